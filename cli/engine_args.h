/* Options that say where a model runs, shared by the commands that run one. */
#ifndef GAC_CLI_ENGINE_ARGS_H
#define GAC_CLI_ENGINE_ARGS_H

#include "cli.h"

#include <gac/engine.h>

typedef struct engine_args {
    const char *path; /* of the checkpoint */
    gac_engine_options options;
    int64_t n_threads;
    gac_checkpoint *checkpoint;
    gac_model *model;
    gac_tokenizer *tokenizer; /* NULL unless asked for */
    gac_engine *engine;
} engine_args;

#define ENGINE_ARGS_INIT \
    { \
        .options = GAC_ENGINE_OPTIONS_INIT \
    }

/* For an engine_args. */
extern const opt engine_args_options[];

/* In this order: the checkpoint, its tokenizer if needed, the engine. */
gac_status engine_args_open(cli *c, engine_args *a, const char *path);
gac_status engine_args_open_tokenizer(cli *c, engine_args *a);
gac_status engine_args_start(cli *c, engine_args *a);
void engine_args_dispose(engine_args *a);

/* A whole text file as tokens, with those that go around a text. free() *ids. */
gac_status cli_read_tokens(cli *c, gac_tokenizer *tokenizer, const char *path, int32_t **ids,
                           size_t *n_ids);

#endif

/* Options for running a model, shared by several commands. */
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
    gac_tokenizer *tokenizer; /* NULL unless it is needed */
    gac_engine *engine;
} engine_args;

#define ENGINE_ARGS_INIT \
    { \
        .options = GAC_ENGINE_OPTIONS_INIT \
    }

/* They fill an engine_args. */
extern const opt engine_args_options[];

/* Call these in order: open the checkpoint, its tokenizer if needed, start the
 * engine. */
gac_status engine_args_open(cli *c, engine_args *a, const char *path);
gac_status engine_args_open_tokenizer(cli *c, engine_args *a);
gac_status engine_args_start(cli *c, engine_args *a);
void engine_args_dispose(engine_args *a);

/* Reads a text file as tokens, with the special tokens around a text. The
 * caller frees *ids. */
gac_status cli_read_tokens(cli *c, gac_tokenizer *tokenizer, const char *path, int32_t **ids,
                           size_t *n_ids);

#endif

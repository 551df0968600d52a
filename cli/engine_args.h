/* Options that say where a model runs, shared by the commands that run one. */
#ifndef GAC_CLI_ENGINE_ARGS_H
#define GAC_CLI_ENGINE_ARGS_H

#include "cli.h"

#include <gac/engine.h>

typedef struct engine_args {
    const char *path; /* of the checkpoint */
    gac_engine_options options;
    gac_checkpoint *checkpoint;
    gac_model *model;
    gac_tokenizer *tokenizer; /* NULL unless asked for */
    gac_engine *engine;
} engine_args;

#define ENGINE_ARGS_INIT \
    { \
        .options = GAC_ENGINE_OPTIONS_INIT \
    }

#define ENGINE_ARGS_OPTIONS \
    { "device", required_argument, NULL, 'D' }, { "dtype", required_argument, NULL, 'd' }, \
        { "as-is", no_argument, NULL, 'A' }, \
    { \
        "threads", required_argument, NULL, 'T' \
    }

#define ENGINE_ARGS_HELP \
    "  --device D           reference (sums in a fixed order), cpu (the default), cuda or " \
    "cuda:N\n" \
    "  --dtype D            with cuda: F16 or BF16 (default: as stored, else F16)\n" \
    "  --as-is              sizes are not padded inside, for comparison\n" \
    "  --threads N          CPUs to use (default: all)\n"

/* Takes one option by its letter. */
gac_status engine_args_take(cli *c, engine_args *a, int letter);
/* Whether text names a device. */
gac_status engine_args_device(cli *c, const char *text);

/* In this order: the checkpoint, its tokenizer if needed, the engine. */
gac_status engine_args_open(cli *c, engine_args *a, const char *path);
gac_status engine_args_open_tokenizer(cli *c, engine_args *a);
gac_status engine_args_start(cli *c, engine_args *a);
void engine_args_dispose(engine_args *a);

/* A whole text file as tokens, with those that go around a text. free() *ids. */
gac_status cli_read_tokens(cli *c, gac_tokenizer *tokenizer, const char *path, int32_t **ids,
                           size_t *n_ids);

#endif

#include "engine_args.h"
#include "plan_args.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES ((size_t)(1 << 30) - 1) /* what the tokenizer takes */

gac_status engine_args_device(cli *c, const char *text)
{
    char q[80];
    size_t n = strncmp(text, "cuda:", 5) == 0 ? strspn(text + 5, "0123456789") : 0;
    if (strcmp(text, "reference") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 ||
        (n > 0 && n < 5 && text[5 + n] == 0))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE,
                         "--device: \"%s\" is not reference, cpu, cuda or cuda:N",
                         gac_quote(q, sizeof q, text));
}

static gac_status take_dtype(cli *c, engine_args *a)
{
    char q[80];
    if (gac_dtype_parse(optarg, &a->options.dtype) &&
        (a->options.dtype == GAC_DTYPE_F16 || a->options.dtype == GAC_DTYPE_BF16))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "--dtype: \"%s\" is not F16 or BF16",
                         gac_quote(q, sizeof q, optarg));
}

gac_status engine_args_take(cli *c, engine_args *a, int letter)
{
    int64_t n = 0;
    gac_status status = GAC_OK;
    switch (letter) {
    case 'D':
        a->options.device = optarg;
        return engine_args_device(c, optarg);
    case 'd':
        return take_dtype(c, a);
    case 'A':
        a->options.as_is = true;
        return GAC_OK;
    default:
        status = cli_number(c, "--threads", optarg, 1, &n);
        a->options.n_threads = n < INT_MAX ? (int)n : INT_MAX;
        return status;
    }
}

/* Where tensors and config.json differ, the reader should know what is run. */
static void show_notes(cli *c, const gac_model *model, const char *path)
{
    enum { MOST = 3 };
    char q[256];
    int32_t n = gac_model_n_notes(model);
    gac_quote(q, sizeof q, path);
    for (int32_t i = 0; i < n && i < MOST; i++)
        gac_log_write(&c->log, 0, "%s: note: %s", q, gac_model_note(model, i));
    if (n > MOST)
        gac_log_write(&c->log, 0, "%s: %d more notes: gac inspect", q, (int)(n - MOST));
}

gac_status engine_args_open(cli *c, engine_args *a, const char *path)
{
    if (a->options.dtype != GAC_DTYPE_COUNT && strncmp(a->options.device, "cuda", 4) != 0)
        return gac_error_set(&c->error, GAC_USAGE, "--dtype goes with --device cuda");
    a->path = path;
    a->options.progress = c->progress;
    a->options.log = &c->log;
    int64_t n_tokens;
    gac_status status = cli_open_model(c, path, &a->checkpoint, &a->model);
    if (status == GAC_OK) /* refuses early what the engine does not run */
        status = gac_engine_model_context(a->model, &n_tokens, &c->error);
    return status;
}

gac_status engine_args_open_tokenizer(cli *c, engine_args *a)
{
    char q[300];
    if (!gac_checkpoint_is_directory(a->checkpoint))
        return gac_error_set(&c->error, GAC_BAD_INPUT,
                             "%s: a single file has no tokenizer; give its directory",
                             gac_quote(q, sizeof q, a->path));
    return gac_tokenizer_open(a->path, &a->tokenizer, &c->error);
}

gac_status engine_args_start(cli *c, engine_args *a)
{
    gac_status status = gac_engine_open(a->model, &a->options, &a->engine, &c->error);
    if (status == GAC_OK)
        show_notes(c, a->model, a->path);
    return status;
}

void engine_args_dispose(engine_args *a)
{
    gac_engine_close(a->engine);
    gac_tokenizer_close(a->tokenizer);
    gac_model_free(a->model);
    gac_checkpoint_close(a->checkpoint);
}

gac_status cli_read_tokens(cli *c, gac_tokenizer *tokenizer, const char *path, int32_t **ids,
                           size_t *n_ids)
{
    gac_file *file = NULL;
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_file_open(path, &file, &c->error);
    if (status == GAC_OK)
        status = gac_file_slurp(file, MAX_TEXT_BYTES, &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = gac_tokenizer_encode(tokenizer, text, n_bytes, true, ids, n_ids, &c->error);
    gac_file_close(file);
    free(text);
    return status;
}

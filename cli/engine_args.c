#include "engine_args.h"
#include "plan_args.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES ((size_t)(1 << 30) - 1) /* limit of the tokenizer */

static const opt_choice dtypes[] = { { "F16", GAC_DTYPE_F16, false },
                                     { "BF16", GAC_DTYPE_BF16, false },
                                     { 0 } };

#define AT(member) .at = offsetof(engine_args, member)
const opt engine_args_options[] = {
    { "device", 0, "D",
      "where the model runs: reference (sums in a fixed order), cpu (the default), cuda or cuda:N",
      OPT_CALL, AT(options.device), .take = cli_take_device },
    { "dtype", 0, "D", "dtype to compute in, with cuda: F16 or BF16 (default: as stored, else F16)",
      OPT_CHOICE, AT(options.dtype), .choices = dtypes },
    { "no-pad", 0, NULL, "sizes are not padded inside, for comparison", OPT_FLAG,
      AT(options.no_pad), .old = "as-is" },
    { "threads", 0, "N", "CPUs to use (default: all)", OPT_INT, AT(n_threads), .least = 1,
      .most = INT_MAX },
    { 0 }
};

/* Shows the model's notes, so that users know what runs if tensors and
 * config.json differ. */
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
    a->options.n_threads = (int)a->n_threads;
    a->options.progress = c->progress;
    a->options.log = &c->log;
    int64_t n_tokens;
    gac_status status = cli_open_model(c, path, &a->checkpoint, &a->model);
    if (status == GAC_OK) /* refuse early what the engine cannot run */
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

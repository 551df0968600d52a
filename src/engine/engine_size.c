/* How large an engine must be for what it will be asked. */
#include "base/arguments.h"
#include "engine/engine_internal.h"

/* Room for the work seen so far. */
typedef struct room {
    const gac_model *model;
    int64_t limit; /* tokens of a sequence that the model allows */
    int64_t batch, context, fresh, rows, cached;
} room;

/* Makes room for batch sequences of context tokens, of which n_new go through in
 * one pass. */
static gac_status widen(room *r, const char *what, int64_t batch, int64_t context, int64_t n_new,
                        gac_error *err)
{
    int64_t rows, cached;
    if (batch < 1 || context < 1 || n_new < 1 || !gac_mul_i64(batch, n_new, &rows) ||
        !gac_mul_i64(batch, context, &cached))
        return gac_error_set(err, GAC_USAGE, "%s of %lld sequences of %lld tokens makes no sense",
                             what, (long long)batch, (long long)context);
    r->batch = gac_max_i64(r->batch, batch);
    r->context = gac_max_i64(r->context, context);
    r->fresh = gac_max_i64(r->fresh, n_new);
    r->rows = gac_max_i64(r->rows, rows);
    r->cached = gac_max_i64(r->cached, cached);
    return GAC_OK;
}

/* A length that the model does not allow is refused. */
static gac_status check_length(const room *r, const char *what, int64_t n, gac_error *err)
{
    char q[300];
    if (n <= r->limit)
        return GAC_OK;
    return gac_error_set(
        err, GAC_USAGE, "%s: %s of %lld tokens: the model allows %lld",
        gac_quote(q, sizeof q, gac_checkpoint_path(gac_model_checkpoint(r->model))), what,
        (long long)n, (long long)r->limit);
}

static gac_status fit_windows(room *r, const gac_engine_work *w, gac_error *err)
{
    int64_t usual = gac_min_i64(GAC_DEFAULT_WINDOW, r->limit);
    int64_t window = w->window ? w->window : usual;
    gac_status status = GAC_OK;
    if (w->perplexity)
        status = check_length(r, "a window", window, err);
    if (w->perplexity && status == GAC_OK)
        status = widen(r, "a window", 1, window, window, err);
    if (w->tasks && status == GAC_OK)
        status = widen(r, "a task", 1, usual, usual, err);
    return status;
}

static gac_status fit_prefill(room *r, gac_pass_shape s, gac_error *err)
{
    gac_status status = check_length(r, "prefill", s.length, err);
    return status == GAC_OK ? widen(r, "prefill", s.batch, s.length, s.length, err) : status;
}

/* Timed steps follow the context, as far as the model allows. */
static gac_status fit_decode(room *r, gac_pass_shape s, gac_error *err)
{
    gac_status status = check_length(r, "a context", s.length, err);
    if (status != GAC_OK)
        return status;
    if (s.length < 1)
        return widen(r, "a context", s.batch, s.length, s.length, err);
    return widen(r, "a context", s.batch, gac_min_i64(s.length - 1 + GAC_DECODE_STEPS, r->limit),
                 gac_min_i64(s.length, GAC_DECODE_CHUNK), err);
}

static gac_status fit_prompt(room *r, int64_t n_prompt, int64_t max_tokens, gac_error *err)
{
    char q[300];
    int64_t context;
    if (n_prompt == 0)
        return GAC_OK;
    if (n_prompt > r->limit)
        return gac_error_set(
            err, GAC_USAGE, "%s: the prompt has %lld tokens, the model allows %lld",
            gac_quote(q, sizeof q, gac_checkpoint_path(gac_model_checkpoint(r->model))),
            (long long)n_prompt, (long long)r->limit);
    if (max_tokens < 0)
        return gac_error_set(err, GAC_USAGE, "max_tokens is %lld", (long long)max_tokens);
    if (!gac_add_i64(n_prompt, max_tokens, &context) || context > r->limit)
        context = r->limit;
    return widen(r, "a prompt", 1, context, n_prompt, err);
}

gac_status gac_engine_size(const gac_model *model, const gac_engine_work *work,
                           gac_engine_options *options, gac_error *err)
{
    room r = { model, 0, 1, 1, 1, 1, 1 };
    GAC_REFUSE_NULL(err, model, work, options);
    GAC_REFUSE(err, work->n_prefill < 0 || (work->n_prefill > 0 && !work->prefill),
               "prefill is NULL");
    GAC_REFUSE(err, work->n_decode < 0 || (work->n_decode > 0 && !work->decode), "decode is NULL");
    net n;
    gac_status status = gac_net_read(model, &n, err);
    if (status == GAC_OK) {
        r.limit = n.max_context;
        gac_net_dispose(&n);
    }
    if (status == GAC_OK)
        status = fit_windows(&r, work, err);
    for (int i = 0; i < work->n_prefill && status == GAC_OK; i++)
        status = fit_prefill(&r, work->prefill[i], err);
    for (int i = 0; i < work->n_decode && status == GAC_OK; i++)
        status = fit_decode(&r, work->decode[i], err);
    if (status == GAC_OK)
        status = fit_prompt(&r, work->n_prompt, work->max_tokens, err);
    if (status != GAC_OK)
        return status;
    options->max_batch = r.batch;
    options->max_context = r.context;
    options->max_new = r.fresh;
    options->max_rows = r.rows;
    options->max_cached = r.cached;
    return GAC_OK;
}

#include <gac/engine.h>

#include <math.h>
#include <stdlib.h>

#include "base/arguments.h"

/* Running mean and variance of losses (Welford). */
typedef struct running {
    int64_t n;
    double mean, squares; /* sum of squared distances from the mean */
} running;

static void running_add(running *r, double x)
{
    double distance = x - r->mean;
    r->n++;
    r->mean += distance / (double)r->n;
    r->squares += distance * (x - r->mean);
}

static gac_status add_window(gac_engine *engine, const int32_t *ids, size_t first, int64_t n_ids,
                             double *losses, running *sum, gac_error *err)
{
    gac_status status = gac_engine_losses(engine, ids + first, n_ids, losses, err);
    for (int64_t i = 0; i < n_ids - 1 && status == GAC_OK; i++) {
        if (!isfinite(losses[i]))
            return gac_error_set(err, GAC_FAILED,
                                 "the loss of token %lld of the text is not finite: the model "
                                 "overflows in this dtype, or its weights are broken",
                                 (long long)first + i + 1);
        running_add(sum, losses[i]);
    }
    return status;
}

static gac_status choose_window(gac_engine *engine, int64_t wanted, int64_t *window, gac_error *err)
{
    gac_engine_info info;
    gac_engine_describe(engine, &info);
    *window = wanted;
    if (wanted == 0)
        *window = info.max_context < GAC_DEFAULT_WINDOW ? info.max_context : GAC_DEFAULT_WINDOW;
    if (*window < 2 || *window > info.max_context)
        return gac_error_set(err, GAC_USAGE, "a window of %lld tokens: must be 2 to %lld",
                             (long long)*window, (long long)info.max_context);
    return GAC_OK;
}

gac_status gac_engine_perplexity(gac_engine *engine, const int32_t *ids, size_t n_ids,
                                 const gac_perplexity_options *options, gac_perplexity *out,
                                 gac_error *err)
{
    GAC_REFUSE_NULL(err, engine, ids, out);
    static const gac_perplexity_options usual = GAC_PERPLEXITY_OPTIONS_INIT;
    running sum = { 0 };
    int64_t window;
    if (!options)
        options = &usual;
    if (n_ids < 2)
        return gac_error_set(err, GAC_USAGE, "perplexity needs two tokens, the text has %zu",
                             n_ids);
    gac_status status = choose_window(engine, options->window, &window, err);
    if (status == GAC_OK)
        status = gac_engine_check_text(engine, ids, n_ids, err);
    if (status != GAC_OK)
        return status;
    int64_t n_windows = (int64_t)(n_ids / (size_t)window) + (n_ids % (size_t)window >= 2);
    if (options->max_windows > 0 && n_windows > options->max_windows)
        n_windows = options->max_windows;
    double *losses = malloc((size_t)window * sizeof *losses);
    if (!losses)
        return gac_error_no_memory(err);
    uint64_t n_tokens = (uint64_t)n_windows * (uint64_t)window;
    gac_progress_start(options->progress, "perplexity", "tokens",
                       n_tokens < n_ids ? n_tokens : (uint64_t)n_ids);
    for (int64_t i = 0; i < n_windows && status == GAC_OK; i++) {
        size_t first = (size_t)(i * window), left = n_ids - first;
        int64_t n = left < (size_t)window ? (int64_t)left : window;
        gac_engine_watch(engine, options->progress, (uint64_t)first, true);
        status = add_window(engine, ids, first, n, losses, &sum, err);
        gac_progress_step(options->progress, (uint64_t)first + (uint64_t)n);
    }
    gac_engine_watch(engine, NULL, 0, false);
    gac_progress_finish(options->progress);
    free(losses);
    if (status != GAC_OK)
        return status;
    double n = (double)sum.n;
    double mean_error = sum.n > 1 ? sqrt(sum.squares / (n - 1) / n) : 0;
    *out = (gac_perplexity){ .value = exp(sum.mean),
                             .value_error = exp(sum.mean) * mean_error,
                             .mean_loss = sum.mean,
                             .n_tokens = sum.n,
                             .n_windows = n_windows,
                             .window = window };
    return GAC_OK;
}

#include "base/arguments.h"
#include "base/splitmix.h"
#include "engine/engine_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_IDS 16 /* tokens per pass; more passes move the progress bar more often */

typedef struct comparison {
    const gac_compare_options *options;
    gac_logit_comparison *out;
    int32_t *ids;    /* (n_ids) */
    float *kept;     /* (n_ids, vocab), the first model's logits */
    float *chunk;    /* (CHUNK_IDS, vocab), the second model's logits of one pass */
    double distance; /* sum of squared differences */
    double size;     /* sum of the first model's squared logits */
} comparison;

static gac_status choose_ids(comparison *s, gac_error *err)
{
    gac_logit_comparison *out = s->out;
    uint64_t state = s->options->seed;
    s->ids = malloc((size_t)out->n_ids * sizeof *s->ids);
    if (!s->ids)
        return gac_error_no_memory(err);
    for (int64_t i = 0; i < out->n_ids; i++)
        s->ids[i] = s->options->ids ? s->options->ids[i]
                                    : (int32_t)(gac_splitmix64(&state) % (uint64_t)out->vocab);
    return GAC_OK;
}

/* Limits *n_ids to the model's context and to the memory for logits. */
static gac_status limit_ids(const gac_model *model, int64_t *n_ids, gac_error *err)
{
    net n;
    gac_status status = gac_net_read(model, &n, err);
    if (status != GAC_OK)
        return status;
    int64_t most = GAC_MAX_COMPARE_BYTES / (int64_t)sizeof(float) / n.vocab;
    if (most < 1)
        status =
            gac_error_set(err, GAC_NO_RESOURCE, "the logits of %lld tokens need too much memory",
                          (long long)n.vocab);
    *n_ids = gac_min_i64(*n_ids, gac_min_i64(most, n.max_context));
    gac_net_dispose(&n);
    return status;
}

static gac_status prepare(comparison *s, const gac_engine_info *info, gac_error *err)
{
    gac_logit_comparison *out = s->out;
    out->vocab = info->vocab;
    out->dtype = info->dtype;
    s->kept = malloc((size_t)(out->n_ids * out->vocab) * sizeof *s->kept);
    s->chunk = malloc((size_t)(CHUNK_IDS * out->vocab) * sizeof *s->chunk);
    if (!s->kept || !s->chunk)
        return gac_error_no_memory(err);
    return choose_ids(s, err);
}

static gac_status check_vocab(const comparison *s, const gac_model *model,
                              const gac_engine_info *info, gac_error *err)
{
    char q[300];
    if (info->vocab == s->out->vocab)
        return GAC_OK;
    return gac_error_set(err, GAC_BAD_INPUT,
                         "%s: a vocabulary of %lld tokens, but the first model's has %lld: logits "
                         "cannot be compared",
                         gac_quote(q, sizeof q, gac_checkpoint_path(gac_model_checkpoint(model))),
                         (long long)info->vocab, (long long)s->out->vocab);
}

static void compare_rows(comparison *s, int64_t first, int64_t n, const float *logits)
{
    gac_logit_comparison *out = s->out;
    const float *kept = s->kept + first * out->vocab;
    if (memcmp(kept, logits, (size_t)(n * out->vocab) * sizeof *logits) != 0)
        out->bit_exact = false;
    for (int64_t i = 0; i < n * out->vocab; i++) {
        double a = kept[i], b = logits[i], d = fabs(a - b);
        if (out->finite && (!isfinite(a) || !isfinite(b))) {
            out->finite = false;
            out->position = first + i / out->vocab;
            out->token = i % out->vocab;
        }
        s->distance += d * d;
        s->size += a * a;
        if (out->finite && (d > out->max_abs_diff)) {
            out->max_abs_diff = d;
            out->position = first + i / out->vocab;
            out->token = i % out->vocab;
        }
    }
}

static gac_status run_one(comparison *s, const gac_model *model, bool second, gac_error *err)
{
    gac_engine_options options = s->options->engine;
    gac_engine *engine = NULL;
    gac_engine_info info;
    gac_logit_comparison *out = s->out;
    options.max_batch = 1;
    options.max_context = out->n_ids;
    options.max_new = out->n_ids < CHUNK_IDS ? out->n_ids : CHUNK_IDS;
    gac_status status = gac_engine_open(model, &options, &engine, err);
    if (status != GAC_OK)
        return status;
    gac_engine_describe(engine, &info);
    status = second ? check_vocab(s, model, &info, err) : prepare(s, &info, err);
    if (status == GAC_OK)
        status = gac_engine_check_text(engine, s->ids, (size_t)out->n_ids, err);
    gac_progress_start(s->options->progress, second ? "second model" : "first model", "tokens",
                       (uint64_t)out->n_ids);
    for (int64_t first = 0; first < out->n_ids && status == GAC_OK; first += CHUNK_IDS) {
        int64_t n = out->n_ids - first < CHUNK_IDS ? out->n_ids - first : CHUNK_IDS;
        float *logits = second ? s->chunk : s->kept + first * out->vocab; /* (n, vocab) */
        status = gac_engine_forward(engine, s->ids + first, 1, n, first, NULL, err);
        if (status == GAC_OK)
            status = gac_engine_logits(engine, 0, n, logits, err);
        if (status == GAC_OK && second)
            compare_rows(s, first, n, logits);
        gac_progress_step(s->options->progress, (uint64_t)(first + n));
    }
    gac_progress_finish(s->options->progress);
    gac_engine_close(engine);
    return status;
}

gac_status gac_engine_compare(const gac_model *a, const gac_model *b,
                              const gac_compare_options *options, gac_logit_comparison *out,
                              gac_error *err)
{
    GAC_REFUSE_NULL(err, a, b, out);
    static const gac_compare_options usual = GAC_COMPARE_OPTIONS_INIT;
    const gac_model *models[2] = { a, b };
    options = options ? options : &usual;
    gac_status status = GAC_OK;
    comparison s = { .options = options, .out = out };
    *out = (gac_logit_comparison){ .bit_exact = true, .finite = true, .position = -1, .token = -1 };
    out->n_ids = options->n_ids;
    for (int i = 0; i < 2 && status == GAC_OK; i++)
        status = limit_ids(models[i], &out->n_ids, err);
    if (status != GAC_OK)
        return status;
    if (out->n_ids < 1)
        return gac_error_set(err, GAC_USAGE, "there are no tokens to compare");
    for (int i = 0; i < 2 && status == GAC_OK; i++)
        status = run_one(&s, models[i], i == 1, err);
    out->relative = s.size > 0 ? sqrt(s.distance / s.size) : s.distance > 0 ? INFINITY : 0;
    free(s.ids);
    free(s.kept);
    free(s.chunk);
    return status;
}

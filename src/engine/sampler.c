#include "engine/sampler.h"

#include "base/splitmix.h"

#include <math.h>
#include <stdlib.h>

gac_status gac_sampler_init(sampler *s, const gac_sampling *rules, int64_t vocab, gac_error *err)
{
    *s = (sampler){ .rules = *rules, .state = rules->seed, .vocab = vocab };
    if (!(rules->temperature >= 0) || isinf(rules->temperature))
        return gac_error_set(err, GAC_USAGE, "temperature %g: 0 or more", rules->temperature);
    if (rules->top_k < 0)
        return gac_error_set(err, GAC_USAGE, "top-k %lld: 0 or more", (long long)rules->top_k);
    if (!(rules->top_p > 0 && rules->top_p <= 1))
        return gac_error_set(err, GAC_USAGE, "top-p %g: above 0, at most 1", rules->top_p);
    if (rules->temperature > 0 && !(s->candidates = calloc((size_t)vocab, sizeof *s->candidates)))
        return gac_error_no_memory(err);
    return GAC_OK;
}

void gac_sampler_dispose(sampler *s)
{
    free(s->candidates);
    s->candidates = NULL;
}

/* A logit of -inf marks an impossible token. NaN and +inf mean a broken model. */
static gac_status find_likeliest(const float *logits, int64_t vocab, int32_t *id, gac_error *err)
{
    int64_t best = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || (isinf(logits[i]) && logits[i] > 0))
            return gac_error_set(err, GAC_FAILED,
                                 "the logit of token %lld is not finite: the model overflows in "
                                 "this dtype, or its weights are broken",
                                 (long long)i);
        if (logits[i] > logits[best])
            best = i;
    }
    if (isinf(logits[best]))
        return gac_error_set(err, GAC_FAILED, "no token can follow: every logit is -inf");
    *id = (int32_t)best;
    return GAC_OK;
}

static int order(const void *a, const void *b)
{
    const sampler_candidate *p = a, *q = b;
    if (p->logit > q->logit || p->logit < q->logit)
        return p->logit > q->logit ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* Returns the number of candidates after top-k and top-p. *total gets the sum
 * of their weights. */
static int64_t cut(sampler *s, double *total)
{
    int64_t n = s->vocab, kept = 0;
    bool limited = s->rules.top_k > 0 && s->rules.top_k < n;
    double sum = 0;
    if (limited || s->rules.top_p < 1)
        qsort(s->candidates, (size_t)n, sizeof *s->candidates, order);
    n = limited ? s->rules.top_k : n;
    for (int64_t i = 0; i < n; i++)
        sum += s->candidates[i].weight;
    *total = sum;
    if (!(s->rules.top_p < 1))
        return n;
    double reached = 0;
    while (kept < n && (kept == 0 || reached < s->rules.top_p * sum))
        reached += s->candidates[kept++].weight;
    *total = reached;
    return kept;
}

gac_status gac_sampler_pick(sampler *s, const float *logits, int32_t *id, gac_error *err)
{
    gac_status status = find_likeliest(logits, s->vocab, id, err);
    if (status != GAC_OK || !(s->rules.temperature > 0))
        return status;
    double most = logits[*id], total;
    for (int64_t i = 0; i < s->vocab; i++)
        s->candidates[i] =
            (sampler_candidate){ exp(((double)logits[i] - most) / s->rules.temperature), logits[i],
                                 (int32_t)i };
    int64_t n = cut(s, &total);
    double left = (double)(gac_splitmix64(&s->state) >> 11) * 0x1p-53 * total;
    for (int64_t i = 0; i < n; i++) {
        /* Rounding may leave a remainder: then the last candidate is taken. */
        if (s->candidates[i].weight > 0)
            *id = s->candidates[i].id;
        if (left < s->candidates[i].weight)
            break;
        left -= s->candidates[i].weight;
    }
    return GAC_OK;
}

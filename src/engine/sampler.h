/* Samples a token from logits. */
#ifndef GAC_ENGINE_SAMPLER_H
#define GAC_ENGINE_SAMPLER_H

#include <gac/engine.h>

typedef struct sampler_candidate {
    double weight; /* not normalised: the likeliest has 1 */
    float logit;
    int32_t id;
} sampler_candidate;

typedef struct sampler {
    gac_sampling rules;
    uint64_t state; /* of the random number generator */
    int64_t vocab;
    sampler_candidate *candidates; /* (vocab); NULL when greedy */
} sampler;

/* Returns GAC_USAGE for impossible rules. Call gac_sampler_dispose afterwards,
 * also after a failure. */
gac_status gac_sampler_init(sampler *s, const gac_sampling *rules, int64_t vocab, gac_error *err);
void gac_sampler_dispose(sampler *s);
/* Picks a token. logits has shape (vocab). Returns GAC_FAILED if a logit is NaN
 * or +inf. */
gac_status gac_sampler_pick(sampler *s, const float *logits, int32_t *id, gac_error *err);

#endif

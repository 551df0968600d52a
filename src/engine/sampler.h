/* Choosing a token by its logits. */
#ifndef GAC_ENGINE_SAMPLER_H
#define GAC_ENGINE_SAMPLER_H

#include <gac/engine.h>

typedef struct sampler_candidate {
    double weight; /* not normalised; 1 for the likeliest */
    float logit;
    int32_t id;
} sampler_candidate;

typedef struct sampler {
    gac_sampling rules;
    uint64_t state; /* of the random numbers */
    int64_t vocab;
    sampler_candidate *candidates; /* (vocab); NULL when greedy */
} sampler;

/* GAC_USAGE for rules that make no sense. Call gac_sampler_dispose afterwards. */
gac_status gac_sampler_init(sampler *s, const gac_sampling *rules, int64_t vocab, gac_error *err);
void gac_sampler_dispose(sampler *s);
/* logits (vocab). GAC_FAILED where one is not a number, or infinite. */
gac_status gac_sampler_pick(sampler *s, const float *logits, int32_t *id, gac_error *err);

#endif

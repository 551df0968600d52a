/* What the files of this room share. */
#ifndef GAC_PLAN_INTERNAL_H
#define GAC_PLAN_INTERNAL_H

#include <gac/plan.h>

/* n and k of a GEMM with the given sizes (NULL: as they are), as one GPU sees
 * them. */
void gac_plan_gemm_sizes(const gac_model *model, const gac_target *target, const gac_op *op,
                         const int64_t *sizes, int64_t *n, int64_t *k);

/* Rows of one call of a GEMM in a phase, and how many calls there are on
 * average (experts are not always called). */
int64_t gac_plan_gemm_rows(const gac_phase *phase, const gac_op *op, double *calls);

/* The attention call of an operator in a phase, as one GPU sees it. */
gac_sdpa_shape gac_plan_sdpa_shape(const gac_model *model, const gac_target *target,
                                   const gac_phase *phase, const gac_op *op, const int64_t *sizes);

/* Predicted time of one operator in one phase, in milliseconds. */
double gac_plan_op_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                      const gac_op *op, const int64_t *sizes);

/* What a deployment asks of one dimension: its size must be a multiple of hard
 * (tensor parallelism, quantisation groups), and is best a multiple of best. */
typedef struct dim_units {
    int64_t best, hard;
} dim_units;
gac_status gac_plan_units(const gac_model *model, const gac_target *target, dim_units *out,
                          gac_error *err);

/* Dimensions that move together, with the sizes they may take. */
typedef struct plan_group {
    int32_t n_dims;
    int32_t *dims;
    int32_t n_sizes;
    bool locked;         /* one size only: fixed by a rule, or it cannot move */
    int64_t *sizes;      /* candidates, ascending */
    int64_t reference;   /* the first aligned one, at which others are timed */
    gac_choice *choices; /* cost in bytes, value in ms, per candidate */
} plan_group;

typedef struct plan_groups {
    plan_group *groups;
    int32_t n_groups;
    double base_ms;    /* what the values add to */
    int32_t *group_of; /* (n_dims) */
    int64_t *slack;    /* (n_tensors, 3): most that an axis can grow by */
} plan_groups;

/* How growth in bytes is priced where two axes of a tensor can grow: each as if
 * the other stayed, which is a lower bound, or as if it grew as far as it
 * can, which is an upper bound. */
typedef enum pricing { PRICE_NONE, PRICE_BELOW, PRICE_ABOVE } pricing;

/* Groups of all dimensions, with candidates and prices. */
gac_status gac_plan_groups(const gac_model *model, const gac_plan_options *options, pricing price,
                           plan_groups *out, gac_error *err);

/* Growth of the checkpoint with the given sizes, in bytes. */
gac_status gac_plan_growth_bytes(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err);
void gac_plan_groups_dispose(plan_groups *groups);

#endif

/* plan: which size each dimension should have. Pure arithmetic.
 *
 * The four classical strategies for one number, the sizes a contract and a
 * deployment (tensor parallelism, quantisation groups) allow, and the
 * predicted time of a workload with given sizes. */
#ifndef GAC_PLAN_H
#define GAC_PLAN_H

#include <gac/base.h>
#include <gac/contract.h>
#include <gac/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- One number -------------------------------------------------------- */

typedef enum gac_strategy {
    GAC_STRATEGY_MINIMAL,    /* next multiple of 8 */
    GAC_STRATEGY_OPTIMAL,    /* next multiple of 16 */
    GAC_STRATEGY_PREDEFINED, /* next of a fixed list; above 256 next multiple of 16 */
    GAC_STRATEGY_TRADEOFF,   /* first of next 8, 16, 32 under a limit of overhead */
    GAC_STRATEGY_COUNT
} gac_strategy;

#define GAC_DEFAULT_OVERHEAD_PCT 10.0

const char *gac_strategy_name(gac_strategy strategy);
bool gac_strategy_parse(const char *name, gac_strategy *out);

/* The size that strategy gives for size (at least 1). max_overhead_pct is the
 * limit of tradeoff; where no candidate stays under it, size is kept. */
gac_status gac_strategy_apply(gac_strategy strategy, int64_t size, double max_overhead_pct,
                              int64_t *out, gac_error *err);

/* ---- Workload ---------------------------------------------------------- */

typedef struct gac_phase {
    bool decode;
    int64_t batch;
    int64_t length; /* tokens per sequence in prefill, context in decode */
    double weight;
} gac_phase;

#define GAC_MAX_PHASES 16
#define GAC_DEFAULT_WORKLOAD "prefill:1x2048,decode:1@2048"

typedef struct gac_workload {
    gac_phase phases[GAC_MAX_PHASES];
    int n_phases;
} gac_workload;

/* Reads "prefill:BxS[*w],decode:B@CTX[*w]". */
gac_status gac_workload_parse(const char *text, gac_workload *out, gac_error *err);

/* ---- What sizes cost --------------------------------------------------- */

/* Where the model will run. */
typedef struct gac_target {
    const gac_contract *contract;
    gac_dtype dtype;     /* one that gac_contract_dtype gave */
    int64_t n_gpus;      /* tensor parallelism; 1 for none */
    int64_t quant_group; /* quantisation group along k; 0 for none */
} gac_target;

/* Predicted time in milliseconds of one pass of phase, sum over the model's
 * operators on one GPU. sizes has one entry per dimension, or is NULL for the
 * sizes as they are. time_ms, if not NULL, gets each operator's share. */
double gac_plan_time_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                        const int64_t *sizes, double *op_time_ms);

/* Growth of the checkpoint's bytes with the given sizes, in percent. */
gac_status gac_plan_overhead_pct(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err);

typedef struct gac_dim_advice {
    bool aligned;       /* every operator that sees it is served by its best tier */
    int64_t suggest;    /* smallest size that is, for it and those tied to it */
    double penalty;     /* time of its worst operator over its time with suggested sizes */
    double lost_ms;     /* its share of what those sizes would save in the workload */
    gac_seen seen;      /* the place of the worst penalty */
    const char *kernel; /* of the worst penalty; borrowed from the contract */
    const char *family;
    const char *rule; /* what is broken: "contract", "tensor-parallel", "quant-group", or NULL */
} gac_dim_advice;

/* Judges every dimension. advice has room for gac_model_n_dims entries. */
gac_status gac_plan_advise(const gac_model *model, const gac_target *target,
                           const gac_workload *workload, gac_dim_advice *advice, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

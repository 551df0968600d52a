/* plan: chooses a size for each dimension. Pure arithmetic.
 *
 * It has four simple strategies for one number, the sizes that a contract and a
 * deployment (tensor parallelism, quantisation groups) allow, and the predicted
 * time of a workload with given sizes.
 *
 * Nothing here keeps state: any thread may call any function, and several
 * threads may plan for the same model and contract at once. */
#ifndef GAC_PLAN_H
#define GAC_PLAN_H

#include <gac/base.h>
#include <gac/contract.h>
#include <gac/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* One number. */

typedef enum gac_strategy {
    GAC_STRATEGY_MINIMAL,     /* next multiple of 8 */
    GAC_STRATEGY_MULTIPLE_16, /* next multiple of 16 */
    GAC_STRATEGY_PREDEFINED,  /* next size of a fixed list; above 256 the next multiple of 16 */
    GAC_STRATEGY_TRADEOFF, /* next multiple of 8, 16 or 32: the first under a limit of overhead */
    GAC_STRATEGY_COUNT
} gac_strategy;

#define GAC_DEFAULT_OVERHEAD_PCT 10.0

const char *gac_strategy_name(gac_strategy strategy);
/* Reads a name. "optimal" is an old name of multiple-16. */
bool gac_strategy_parse(const char *name, gac_strategy *out);

/* Applies strategy to size, which is at least 1. max_overhead_pct is the limit
 * of tradeoff: if no candidate stays under it, size is kept. */
gac_status gac_strategy_apply(gac_strategy strategy, int64_t size, double max_overhead_pct,
                              int64_t *out, gac_error *err);

/* Workload. */

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

/* What sizes cost. */

/* Where the model will run. */
typedef struct gac_target {
    const gac_contract *contract;
    gac_dtype dtype;     /* a result of gac_contract_dtype */
    int64_t n_gpus;      /* tensor parallelism; 1 for none */
    int64_t quant_group; /* quantisation group along k; 0 for none */
} gac_target;

/* The caller must still set a contract and a dtype. */
#define GAC_TARGET_INIT \
    { \
        NULL, GAC_DTYPE_COUNT, 1, 0 \
    }

/* Predicts the time of one pass of phase outside GEMM and attention, in
 * milliseconds, by the contract's runtime. 0 if the contract has no runtime. It
 * uses the present sizes, because padding hardly changes this time. This
 * function and the next return NaN if phase is NULL, or if target has no
 * contract or fewer than 1 GPU. */
double gac_plan_rest_ms(const gac_model *model, const gac_target *target, const gac_phase *phase);

/* Predicts the time of one pass of phase on one GPU, in milliseconds: the
 * above, plus all operators of the model. sizes has one entry per dimension, or
 * is NULL for the present sizes. op_time_ms (n_ops), if not NULL, gets the time
 * of each operator. */
double gac_plan_time_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                        const int64_t *sizes, double *op_time_ms);

/* Computes how much the checkpoint grows in bytes with the given sizes, in
 * percent. */
gac_status gac_plan_overhead_pct(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err);

typedef struct gac_dim_advice {
    bool aligned;    /* the best tier serves every operator that sees it */
    int64_t suggest; /* smallest aligned size for it and the dimensions tied to it */
    double penalty;  /* time of its worst operator over that operator's time with suggested sizes */
    double lost_ms;  /* its share of the time that the suggested sizes would save in the workload */
    gac_op_axis axis;   /* the axis of the worst penalty; GAC_OP_AXIS_COUNT if there is none */
    const char *kernel; /* kernel on that axis; borrowed from the contract; NULL if unknown */
    const char *family;
    gac_dtype runs_as; /* the dtype of that kernel, or GAC_DTYPE_COUNT */
    const char *rule; /* the broken rule: "contract", "tensor-parallel" or "quant-group"; or NULL */
} gac_dim_advice;

/* Judges every dimension. advice has room for gac_model_n_dims entries. This
 * function and all planning functions below return GAC_USAGE for a target
 * without a contract, with a dtype that the contract does not serve or with
 * fewer than 1 GPU, and if there is no workload. */
gac_status gac_plan_advise(const gac_model *model, const gac_target *target,
                           const gac_workload *workload, gac_dim_advice *advice, gac_error *err);

/* The exact solver. */

/* One choice of a class. */
typedef struct gac_choice {
    int64_t cost; /* at least 0 */
    double value; /* from -1e280 to 1e280 */
} gac_choice;

/* A class is a decision: the solver takes exactly one of its choices. Borrowed. */
typedef struct gac_choice_class {
    const gac_choice *choices;
    int32_t n_choices; /* at least 1 */
} gac_choice_class;

typedef struct gac_solve_options {
    double time_limit_s; /* 0: none */
    int64_t max_states;  /* partial solutions held at once, about 250 bytes each; 0: 2^21 */
} gac_solve_options;

#define GAC_SOLVE_OPTIONS_INIT \
    { \
        0, 0 \
    }

typedef struct gac_solution {
    bool optimal;
    double value; /* sum of the values picked */
    double bound; /* no picks within the budget have a lower sum; equals value if optimal */
    int64_t cost; /* sum of the costs picked, at most the budget */
} gac_solution;

/* Picks one choice per class so that the sum of costs is at most budget and the
 * sum of values is least (multiple-choice knapsack), and proves it.
 *
 * Costs are exact. Values are rounded to a grid. Its step is at most 2^-59 of
 * the sum, over all classes, of the difference between a class's largest and
 * smallest value. If all values are multiples of a power of two that is a
 * multiple of this step, such as integers, the answer is exact. Otherwise it is
 * within 2 n_classes steps. If the time or the states run out, the answer is
 * the best one found, optimal is false, and bound is still a true bound.
 * Without a time limit, the same input always gives the same picks.
 *
 * options may be NULL. picks has room for n_classes. GAC_CHECK if even the
 * cheapest choices exceed the budget. GAC_USAGE for choices that break the
 * rules above, or if costs can add up to 2^61 times their common divisor. */
gac_status gac_solve(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                     const gac_solve_options *options, int32_t *picks, gac_solution *out,
                     gac_error *err);

typedef struct gac_front_point {
    int64_t cost;
    double value;
} gac_front_point;

typedef struct gac_front {
    gac_front_point *points; /* cost rises, value falls */
    int64_t n_points;
    bool complete;      /* has every optimal point; otherwise those at some budgets */
    int64_t n_unproved; /* points whose value may not be the least for their cost */
} gac_front;

typedef struct gac_pareto_options {
    int64_t max_states; /* points held at once for a complete front; 0: 2^17 */
    int32_t n_budgets; /* number of budgets, evenly spread, if max_states does not suffice; 0: 64 */
    double time_limit_s; /* for the complete front, and again for all budgets; 0: none */
} gac_pareto_options;

#define GAC_PARETO_OPTIONS_INIT \
    { \
        0, 0, 0 \
    }

/* Computes the front of cost against value over all picks. gac_solve with the
 * cost of a point as budget gives the picks of that point. options may be NULL.
 * Call gac_front_dispose afterwards. After a failure there is nothing to
 * dispose of. */
gac_status gac_pareto(const gac_choice_class *classes, int32_t n_classes,
                      const gac_pareto_options *options, gac_front *out, gac_error *err);
void gac_front_dispose(gac_front *front); /* NULL is fine */

/* Plans. */

/* Fixes the size of every dimension whose name matches pattern (* and ? as in
 * file names). The size is at most 4 times the present one, or 4096 if that is
 * more. */
typedef struct gac_plan_rule {
    const char *pattern;
    int64_t size;
} gac_plan_rule;

typedef struct gac_plan_options {
    gac_target target;
    const gac_workload *workload;
    bool solve; /* if false, strategy is applied to each dimension by itself */
    gac_strategy strategy;
    double max_overhead_pct; /* limit of growth: of all bytes (solve), of one size (tradeoff) */
    double max_time_ms;      /* solve for the least bytes within this time; 0: for the least time */
    double time_limit_s;     /* limit of the search; 0: none */
    bool allow_rescaled;
    bool uniform; /* one MLP width for all layers */
    const gac_plan_rule *rules;
    int32_t n_rules;
} gac_plan_options;

/* The caller must still set the target's contract and dtype, and a workload. */
#define GAC_PLAN_OPTIONS_INIT \
    { \
        GAC_TARGET_INIT, NULL, false, GAC_STRATEGY_MINIMAL, GAC_DEFAULT_OVERHEAD_PCT, 0, 0, false, \
            false, NULL, 0 \
    }

/* The gain, in percent, that a larger size must reach if the contract states no
 * errors. A contract with larger errors would be called rough. */
#define GAC_DEFAULT_MARGIN_PCT GAC_ROUGH_MEDIAN_PCT

/* A size for every dimension of a model, and the quality of the choice. */
typedef struct gac_plan {
    char strategy[16];
    int64_t *sizes; /* (n_dims) */
    int32_t n_dims;
    int32_t n_changed; /* dimensions that grow */
    bool optimal;      /* solve: proved to be the best; bound equals objective */
    double objective;  /* planned_ms, or the growth in bytes if max_time_ms was the limit */
    double bound;      /* solve: no possible choice has a lower objective; 0 otherwise */
    double now_ms;     /* predicted time of the workload with the present sizes */
    double planned_ms; /* and with the planned sizes */
    double overhead_pct;
    double margin_pct;  /* solve: the gain that a larger size must exceed */
    bool margin_stated; /* the contract states the margin; otherwise it is the default */
    double limit_pct;   /* solve for time: bound holds for growth up to this */
    double best_ms;     /* solve for time: the fastest plan found within max_overhead_pct */
} gac_plan;

/* Chooses sizes. Dimensions that must stay equal move together.
 *
 * solve prices all sizes together and ignores gains below margin_pct. A larger
 * size becomes a candidate only if the operators that see its dimension gain
 * more than that over smaller sizes. solve compares the fastest combination of
 * candidates with three plain plans: no change, minimal and multiple-16. Of all
 * plans within margin_pct of the fastest (best_ms), it takes the one with the
 * fewest bytes. If that is not the fastest plan, its growth becomes limit_pct,
 * and the search is repeated within this limit. optimal means: no combination
 * of candidates and none of these plans that grows by at most limit_pct is
 * faster. docs/repair.md explains this in detail. Dispose of *out. */
gac_status gac_plan_create(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                           gac_error *err);
void gac_plan_dispose(gac_plan *plan); /* NULL is fine */

/* Computes the front of time against growth in bytes over the candidates of
 * solve. cost is bytes and value is ms, both with all sizes priced together. */
gac_status gac_plan_front(const gac_model *model, const gac_plan_options *options, gac_front *out,
                          gac_error *err);

/* Returns a plan as {"strategy", …, "dims": [{"name", "from", "to"}]}. dims has
 * every dimension that may change. NULL if memory is short. The caller owns
 * it. */
struct json_t *gac_plan_to_json(const gac_plan *plan, const gac_model *model);

/* Reads a plan that may have been edited. name must be a dimension of the model
 * and from its present size. to must not be smaller than from, and at most 4
 * times from, or 4096 if that is more. source names the plan in errors. */
gac_status gac_plan_from_json(const struct json_t *json, const gac_model *model, const char *source,
                              gac_plan *out, gac_error *err);

/* What to measure. */

/* Operator shapes on one GPU, sorted, without duplicates. */
typedef struct gac_plan_shapes {
    gac_gemm_shape *gemm;
    size_t n_gemm;
    gac_sdpa_shape *sdpa;
    size_t n_sdpa;
} gac_plan_shapes;

/* Lists the operator shapes that decide what gac_plan_create chooses when it
 * solves: the present model, and each dimension at each of its candidates while
 * all others have their suggested sizes. It does not list shapes with two sizes
 * that are both not the suggested ones. Dispose of *out. */
gac_status gac_plan_list_shapes(const gac_model *model, const gac_plan_options *options,
                                gac_plan_shapes *out, gac_error *err);
void gac_plan_shapes_dispose(gac_plan_shapes *shapes); /* NULL is fine */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

/* plan: which size each dimension should have. Pure arithmetic.
 *
 * The four classical strategies for one number, the sizes a contract and a
 * deployment (tensor parallelism, quantisation groups) allow, and the
 * predicted time of a workload with given sizes.
 *
 * Nothing here keeps state: any thread may call any function, and several threads
 * may plan for the same model and contract at once. */
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

/* A contract and a dtype are still to be set. */
#define GAC_TARGET_INIT \
    { \
        NULL, GAC_DTYPE_COUNT, 1, 0 \
    }

/* What the contract's runtime adds to one pass of phase beside GEMM and
 * attention, in milliseconds; 0 when the contract says nothing of one. Taken at
 * the sizes as they are: padding hardly changes it. This and the next are NaN
 * for a target without a contract or with fewer than 1 GPU, and for no phase. */
double gac_plan_rest_ms(const gac_model *model, const gac_target *target, const gac_phase *phase);

/* Predicted time in milliseconds of one pass of phase on one GPU: that, and the
 * sum over the model's operators. sizes has one entry per dimension, or is NULL for the
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
    gac_op_axis axis;   /* the axis of the worst penalty; GAC_OP_AXIS_COUNT if there is none */
    const char *kernel; /* there; borrowed from the contract; NULL where it does not say */
    const char *family;
    gac_dtype runs_as; /* the dtype whose kernel that is, or GAC_DTYPE_COUNT */
    const char *rule;  /* what is broken: "contract", "tensor-parallel", "quant-group", or NULL */
} gac_dim_advice;

/* Judges every dimension. advice has room for gac_model_n_dims entries. This and
 * all that plans below is GAC_USAGE for a target without a contract, with a dtype
 * that the contract does not serve or with fewer than 1 GPU, and for no workload. */
gac_status gac_plan_advise(const gac_model *model, const gac_target *target,
                           const gac_workload *workload, gac_dim_advice *advice, gac_error *err);

/* ---- The exact solver -------------------------------------------------- */

/* One way to settle a class. */
typedef struct gac_choice {
    int64_t cost; /* at least 0 */
    double value; /* at most 1e280 either way */
} gac_choice;

/* A decision: exactly one of its choices is taken. Borrowed. */
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
    double bound; /* no pick within the budget has a lower sum; equals value when optimal */
    int64_t cost; /* sum of the costs picked, at most the budget */
} gac_solution;

/* Picks one choice per class so that the sum of costs is at most budget and
 * the sum of values is least (multiple-choice knapsack), and proves it.
 *
 * Costs are exact. Values are compared on a grid of 2^-59 of the sum of all
 * classes' ranges of value, or finer; where all values are multiples of a
 * power of two that coarse (integers, say), the answer is exact, else within
 * 2 n_classes steps of that grid. When the time or the states run out first,
 * the answer is the best found, optimal is false and bound a true bound.
 * Without a time limit the same input gives the same picks.
 *
 * options may be NULL. picks has room for n_classes. GAC_CHECK when even the
 * cheapest choices exceed the budget; GAC_USAGE for choices that break the
 * rules above, or costs that can add up to 2^61 times their common divisor. */
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
    bool complete;      /* every point that no other pick beats in both; else optima at budgets */
    int64_t n_unproved; /* points whose value may not be the least for their cost */
} gac_front;

typedef struct gac_pareto_options {
    int64_t max_states;  /* points held at once for a complete front; 0: 2^17 */
    int32_t n_budgets;   /* spread evenly where that does not suffice; 0: 64 */
    double time_limit_s; /* for the complete front, and again for all budgets; 0: none */
} gac_pareto_options;

#define GAC_PARETO_OPTIONS_INIT \
    { \
        0, 0, 0 \
    }

/* The front of cost against value over all picks. The picks of a point are
 * those of gac_solve with the point's cost as budget. options may be NULL.
 * Call gac_front_dispose afterwards; on failure there is nothing to dispose. */
gac_status gac_pareto(const gac_choice_class *classes, int32_t n_classes,
                      const gac_pareto_options *options, gac_front *out, gac_error *err);
void gac_front_dispose(gac_front *front); /* NULL is fine */

/* ---- Plans -------------------------------------------------------------- */

/* A size that is fixed from outside for every dimension whose name matches
 * pattern (* and ? as in file names); at most 4 times the present one or 4096,
 * whichever is more. */
typedef struct gac_plan_rule {
    const char *pattern;
    int64_t size;
} gac_plan_rule;

typedef struct gac_plan_options {
    gac_target target;
    const gac_workload *workload;
    bool solve; /* else strategy, for each dimension by itself */
    gac_strategy strategy;
    double max_overhead_pct; /* solve: growth in bytes; tradeoff: growth of one size */
    double max_time_ms;      /* solve for least bytes within this time instead; 0: for least time */
    double time_limit_s;     /* of the search; 0: none */
    bool allow_rescaled;
    bool uniform; /* one MLP width for all layers */
    const gac_plan_rule *rules;
    int32_t n_rules;
} gac_plan_options;

/* The target's contract and dtype and a workload are still to be set. */
#define GAC_PLAN_OPTIONS_INIT \
    { \
        GAC_TARGET_INIT, NULL, false, GAC_STRATEGY_MINIMAL, GAC_DEFAULT_OVERHEAD_PCT, 0, 0, false, \
            false, NULL, 0 \
    }

/* What a larger size must gain, in percent, where the contract states no errors:
 * as much as a contract may be off before it is called rough. */
#define GAC_DEFAULT_MARGIN_PCT GAC_ROUGH_MEDIAN_PCT

/* Sizes for every dimension of a model, and what is known of the choice. */
typedef struct gac_plan {
    char strategy[16];
    int64_t *sizes; /* (n_dims) */
    int32_t n_dims;
    int32_t n_changed;         /* dimensions that grow */
    bool optimal;              /* solve: proved, bound equals objective */
    double objective;          /* planned_ms; the growth in bytes where max_time_ms was the limit */
    double bound;              /* solve: nothing to choose from has less; 0 otherwise */
    double now_ms, planned_ms; /* the workload, as the contract predicts it */
    double overhead_pct;
    double margin_pct;  /* solve: what a larger size must gain to be chosen */
    bool margin_stated; /* by the contract; else the default */
    double limit_pct;   /* solve for time: the growth that bound is of, at most max_overhead_pct */
    double best_ms;     /* solve for time: of the fastest plan found within max_overhead_pct; below
                         * bound only if limit_pct is less than that */
} gac_plan;

/* Chooses sizes. Dimensions that must stay equal move together.
 *
 * solve prices sizes together, never one by one, and counts a gain below
 * margin_pct as none. A larger size is chosen from only if the operators that
 * see its dimension gain more than that over the smaller ones. The fastest
 * combination of these sizes is compared with no change, minimal and optimal. Among
 * those within margin_pct of the fastest (best_ms), the one with the fewest bytes is
 * the plan. If it is not the fastest, its growth becomes limit_pct, and the search
 * is done again within that. optimal: none of these sizes, nor of these plans, with
 * at most limit_pct more bytes is faster. docs/repair.md says it at length. Dispose
 * of *out. */
gac_status gac_plan_create(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                           gac_error *err);
void gac_plan_dispose(gac_plan *plan); /* NULL is fine */

/* All choices of time against growth in bytes that no other beats, of the sizes
 * that solve chooses from. cost is bytes, value is ms, both of sizes priced
 * together. */
gac_status gac_plan_front(const gac_model *model, const gac_plan_options *options, gac_front *out,
                          gac_error *err);

/* A plan as {"strategy", …, "dims": [{"name", "from", "to"}]}, every dimension
 * that may move in dims. NULL when out of memory. The caller owns it. */
struct json_t *gac_plan_to_json(const gac_plan *plan, const gac_model *model);

/* Takes a plan back, however it was edited: names must be the model's, from
 * its sizes, to not smaller, and not larger than 4 times from or 4096, whichever
 * is more. source names it in errors. */
gac_status gac_plan_from_json(const struct json_t *json, const gac_model *model, const char *source,
                              gac_plan *out, gac_error *err);

/* ---- What to measure ---------------------------------------------------- */

/* Operator shapes as one GPU sees them, each once, sorted. */
typedef struct gac_plan_shapes {
    gac_gemm_shape *gemm;
    size_t n_gemm;
    gac_sdpa_shape *sdpa;
    size_t n_sdpa;
} gac_plan_shapes;

/* The operator shapes that decide what gac_plan_create chooses from when it solves:
 * each dimension at each of its candidate sizes with all others at their suggested
 * sizes, and the model as it is. Shapes of two sizes that are both not the
 * suggested ones are left out. Dispose of *out. */
gac_status gac_plan_list_shapes(const gac_model *model, const gac_plan_options *options,
                                gac_plan_shapes *out, gac_error *err);
void gac_plan_shapes_dispose(gac_plan_shapes *shapes); /* NULL is fine */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

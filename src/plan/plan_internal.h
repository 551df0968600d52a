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

/* GAC_USAGE for a target or a workload that nothing can be timed with. */
gac_status gac_plan_check_target(const gac_target *target, const gac_workload *workload,
                                 gac_error *err);

/* Predicted time of the whole workload, each phase by its weight. */
double gac_plan_total_ms(const gac_model *model, const gac_plan_options *options,
                         const int64_t *sizes);

/* The largest size that a plan may ask for where the present one is size. */
int64_t gac_plan_most(int64_t size);

enum { GAC_MAX_CANDIDATES = 32 };

/* Dimensions that move together, with the sizes they may take. */
typedef struct plan_group {
    int32_t n_dims;
    int32_t *dims;
    int32_t n_sizes;
    bool locked;                     /* one size only: fixed by a rule, or it cannot move */
    int64_t *sizes;                  /* candidates, ascending */
    int64_t reference;               /* the first aligned one, at which others are timed */
    int64_t all[GAC_MAX_CANDIDATES]; /* of a problem: also the candidates that do not pay */
    int32_t n_all;
} plan_group;

typedef struct plan_groups {
    plan_group *groups;
    int32_t n_groups;
    int32_t *group_of; /* (n_dims) */
} plan_groups;

/* Groups of all dimensions, with all their candidates. */
gac_status gac_plan_groups(const gac_model *model, const gac_plan_options *options,
                           plan_groups *out, gac_error *err);
void gac_plan_set_group(const plan_group *group, int64_t size, int64_t *sizes);

/* Growth of the checkpoint with the given sizes, in bytes. */
gac_status gac_plan_growth_bytes(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err);
void gac_plan_groups_dispose(plan_groups *groups);

/* Lists of indices, one list for each of some things. */
typedef struct link_lists {
    int32_t *first; /* -1 where a list is empty */
    int32_t *item, *next;
    int32_t n;
} link_lists;

/* Groups that are chosen together, and the prices of their combinations. The
 * group at position k of combination c takes candidate c / (product of the
 * candidates of those before) % (its candidates); combination 0 is the smallest. */
typedef struct plan_class {
    int32_t n_groups;
    const int32_t *groups;
    int32_t n_choices;
    gac_choice *choices; /* cost: bytes over combination 0; value: ms */
} plan_class;

/* What solve chooses from. A group is open when it has more than one candidate.
 * Open groups that share an operator or a tensor are one class, so that classes
 * add up; where such a class would have too many combinations, each of its
 * groups is a class of its own, and joint is false. */
typedef struct plan_problem {
    const gac_model *model;
    const gac_plan_options *options;
    plan_groups groups;    /* with the candidates that pay */
    double margin_pct;     /* what a larger size must gain to pay */
    bool margin_stated;    /* by the contract */
    link_lists ops;        /* of a group */
    link_lists tensors;    /* of a group */
    link_lists dims;       /* of a tensor */
    int32_t *op_owner;     /* (n_ops): first open group it sees, or -1 */
    bool *op_shared;       /* (n_ops): it sees several open groups */
    int32_t *tensor_owner; /* (n_tensors): likewise */
    int32_t *order;        /* (n_groups): groups by class */
    plan_class *classes;
    int32_t n_classes;
    int64_t max_combinations;
    bool joint, priced;
    double base_ms;     /* of what no class changes */
    int64_t base_bytes; /* growth with the first candidate everywhere */
    int64_t *sizes;     /* (n_dims): to try sizes in */
} plan_problem;

/* max_combinations is the most of one class; 0: 4096. */
gac_status gac_problem_create(const gac_model *model, const gac_plan_options *options,
                              int64_t max_combinations, plan_problem *out, gac_error *err);
void gac_problem_dispose(plan_problem *p);

/* Whether a group has more than one candidate. */
bool gac_problem_is_open(const plan_problem *p, int32_t group);
/* Whether a takes less than b by more than the margin. */
bool gac_problem_is_faster(const plan_problem *p, double a_ms, double b_ms);
/* The growth in bytes that the options allow. */
int64_t gac_problem_limit(const plan_problem *p);

/* Leaves every group the candidates that pay: the smallest, and each larger one
 * whose operators take less than the last one's by more than the margin, with all
 * other groups at their first aligned size. */
void gac_problem_keep_paying(plan_problem *p);

/* Sets the dimensions of one combination in sizes. */
void gac_problem_set(const plan_problem *p, const plan_class *c, int32_t choice, int64_t *sizes);

/* Predicted time of an operator in the workload. */
double gac_problem_op_ms(const plan_problem *p, int32_t op, const int64_t *sizes);
/* Of all operators that see a group. */
double gac_problem_group_ms(const plan_problem *p, int32_t group, const int64_t *sizes);
/* Bytes of all tensors that have a group. */
double gac_problem_group_bytes(const plan_problem *p, int32_t group, const int64_t *sizes);
double gac_problem_tensor_bytes(const plan_problem *p, int32_t tensor, const int64_t *sizes);

/* How a class of one group is priced that shares operators or tensors with
 * others: so that no plan costs less than the sum, or with the others at the
 * first aligned size for time and at the largest for bytes. All other classes
 * have one price. */
typedef enum pricing { PRICE_BELOW, PRICE_NEAR } pricing;
gac_status gac_problem_price(plan_problem *p, pricing price, gac_error *err);

/* Sizes with what is known of them. */
typedef struct plan_answer {
    int64_t *sizes;   /* (n_dims), the caller's */
    double ms, bytes; /* priced together; bytes is the growth */
    double bound;     /* of ms, or of bytes where time is the limit */
    bool proved;      /* bound is reached */
} plan_answer;

/* Takes in candidates within the limit that pay as the only change to an answer: their
 * operators are faster than with every smaller one, or the whole plan is faster and with
 * no smaller one is. Returns how many. The classes are then to be found anew. */
int32_t gac_problem_take_in(plan_problem *p, int64_t limit_bytes, plan_answer *a);
/* Finds the classes of the candidates as they are now. */
gac_status gac_problem_divide(plan_problem *p, gac_error *err);

/* Takes back, while a takes at most most_ms, the sizes that do not pay in it: a group gets
 * the smallest candidate with which its operators are within the margin of now. */
void gac_problem_trim(const plan_problem *p, double most_ms, plan_answer *a);

/* Prices the sizes of an answer together. */
gac_status gac_problem_settle(const plan_problem *p, plan_answer *a, gac_error *err);

/* Least time within a growth of limit_bytes, and least growth within limit_ms.
 * GAC_CHECK when no sizes keep to it. */
gac_status gac_problem_least_ms(plan_problem *p, int64_t limit_bytes, plan_answer *out,
                                gac_error *err);
gac_status gac_problem_least_bytes(plan_problem *p, double limit_ms, plan_answer *out,
                                   gac_error *err);

/* The strategy's size for the largest of each group, fitted to the deployment. */
gac_status gac_plan_apply_strategy(const gac_model *model, const gac_plan_options *options,
                                   gac_strategy strategy, const plan_groups *groups, int64_t *sizes,
                                   gac_error *err);

#endif

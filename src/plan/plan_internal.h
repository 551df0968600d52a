/* Shared by the files of this room. */
#ifndef GAC_PLAN_INTERNAL_H
#define GAC_PLAN_INTERNAL_H

#include <gac/plan.h>

/* Computes n and k of a GEMM on one GPU with the given sizes (NULL: the present
 * ones). */
void gac_plan_gemm_sizes(const gac_model *model, const gac_target *target, const gac_op *op,
                         const int64_t *sizes, int64_t *n, int64_t *k);

/* Returns the rows of one call of a GEMM in a phase. *calls is the average
 * number of calls, because a pass does not call every expert. */
int64_t gac_plan_gemm_rows(const gac_phase *phase, const gac_op *op, double *calls);

/* Returns the attention call of an operator on one GPU in a phase. */
gac_sdpa_shape gac_plan_sdpa_shape(const gac_model *model, const gac_target *target,
                                   const gac_phase *phase, const gac_op *op, const int64_t *sizes);

/* Predicts the time of one operator in one phase, in milliseconds. */
double gac_plan_op_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                      const gac_op *op, const int64_t *sizes);

/* Units of one dimension. Its size must be a multiple of hard (tensor
 * parallelism, quantisation groups), and should be a multiple of best. */
typedef struct dim_units {
    int64_t best, hard;
} dim_units;
gac_status gac_plan_units(const gac_model *model, const gac_target *target, dim_units *out,
                          gac_error *err);

/* Returns GAC_USAGE for a target or a workload that cannot be timed. */
gac_status gac_plan_check_target(const gac_target *target, const gac_workload *workload,
                                 gac_error *err);

/* Predicts the time of the whole workload. Phases count by their weights. */
double gac_plan_total_ms(const gac_model *model, const gac_plan_options *options,
                         const int64_t *sizes);

/* Returns the largest size that a plan may give to a dimension of this size. */
int64_t gac_plan_most(int64_t size);

enum { GAC_MAX_CANDIDATES = 32 };

/* Dimensions that move together, and their candidate sizes. */
typedef struct plan_group {
    int32_t n_dims;
    int32_t *dims;
    int32_t n_sizes;
    bool locked;       /* it has only one size, because a rule fixes it or it cannot change */
    int64_t *sizes;    /* candidates, ascending */
    int64_t reference; /* the first aligned candidate; other groups are timed with it */
    int64_t all[GAC_MAX_CANDIDATES]; /* for a problem: all candidates, also those that do not pay */
    int32_t n_all;
} plan_group;

typedef struct plan_groups {
    plan_group *groups;
    int32_t n_groups;
    int32_t *group_of; /* (n_dims) */
} plan_groups;

/* Finds the groups of all dimensions, with all their candidates. */
gac_status gac_plan_groups(const gac_model *model, const gac_plan_options *options,
                           plan_groups *out, gac_error *err);
void gac_plan_set_group(const plan_group *group, int64_t size, int64_t *sizes);

/* Computes the growth of the checkpoint with the given sizes, in bytes. */
gac_status gac_plan_growth_bytes(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err);
void gac_plan_groups_dispose(plan_groups *groups);

/* Several linked lists of indices. */
typedef struct link_lists {
    int32_t *first; /* start of each list; -1 if it is empty */
    int32_t *item, *next;
    int32_t n;
} link_lists;

/* A class: groups that are chosen together, and the prices of their
 * combinations. In combination c, the group at position k has the candidate c /
 * (product of the numbers of candidates of the groups before it) % (its number
 * of candidates). Combination 0 has the smallest sizes. */
typedef struct plan_class {
    int32_t n_groups;
    const int32_t *groups;
    int32_t n_choices;
    gac_choice *choices; /* cost: bytes more than combination 0; value: ms */
} plan_class;

/* The problem that solve works on. A group is open if it has more than one
 * candidate. Open groups that share an operator or a tensor form one class, so
 * that the prices of classes add up. If such a class would have too many
 * combinations, each of its groups is its own class, and joint is false. */
typedef struct plan_problem {
    const gac_model *model;
    const gac_plan_options *options;
    plan_groups groups;    /* with only the candidates that pay */
    double margin_pct;     /* the gain that a larger size must exceed to pay */
    bool margin_stated;    /* the contract states it */
    link_lists ops;        /* per group */
    link_lists tensors;    /* per group */
    link_lists dims;       /* per tensor */
    int32_t *op_owner;     /* (n_ops): the first open group that it sees, or -1 */
    bool *op_shared;       /* (n_ops): it sees several open groups */
    int32_t *tensor_owner; /* (n_tensors): the same for tensors */
    int32_t *order;        /* (n_groups): groups by class */
    plan_class *classes;
    int32_t n_classes;
    int64_t max_combinations;
    bool joint, priced;
    double base_ms;     /* time of everything that no class changes */
    int64_t base_bytes; /* growth if every group has its first candidate */
    int64_t *sizes;     /* (n_dims): scratch */
} plan_problem;

/* max_combinations is the limit of one class; 0: 4096. */
gac_status gac_problem_create(const gac_model *model, const gac_plan_options *options,
                              int64_t max_combinations, plan_problem *out, gac_error *err);
void gac_problem_dispose(plan_problem *p);

/* Returns whether a group has more than one candidate. */
bool gac_problem_is_open(const plan_problem *p, int32_t group);
/* Returns whether a is faster than b by more than the margin. */
bool gac_problem_is_faster(const plan_problem *p, double a_ms, double b_ms);
/* Returns the growth in bytes that the options allow. */
int64_t gac_problem_limit(const plan_problem *p);

/* Keeps only the candidates of each group that pay: the smallest one, and each
 * larger one whose operators are faster than with the last one kept, by more
 * than the margin. All other groups have their first aligned size meanwhile. */
void gac_problem_keep_paying(plan_problem *p);

/* Writes the sizes of one combination. */
void gac_problem_set(const plan_problem *p, const plan_class *c, int32_t choice, int64_t *sizes);

/* Predicts the time of one operator in the workload. */
double gac_problem_op_ms(const plan_problem *p, int32_t op, const int64_t *sizes);
/* Predicts the time of all operators that see a group. */
double gac_problem_group_ms(const plan_problem *p, int32_t group, const int64_t *sizes);
/* Computes the bytes of all tensors that a group has a place in. */
double gac_problem_group_bytes(const plan_problem *p, int32_t group, const int64_t *sizes);
double gac_problem_tensor_bytes(const plan_problem *p, int32_t tensor, const int64_t *sizes);

/* How to price a class of one group that shares operators or tensors with other
 * classes. PRICE_BELOW: the sum of prices is never above the price of a plan.
 * PRICE_NEAR: the other groups have their first aligned size for times, and
 * their largest size for bytes. All other classes have only one price. */
typedef enum pricing { PRICE_BELOW, PRICE_NEAR } pricing;
gac_status gac_problem_price(plan_problem *p, pricing price, gac_error *err);

/* Sizes, their price and a bound. */
typedef struct plan_answer {
    int64_t *sizes;   /* (n_dims), owned by the caller */
    double ms, bytes; /* priced together; bytes is the growth */
    double bound;     /* lower bound of ms, or of bytes if time is the limit */
    bool proved;      /* the answer reaches the bound */
} plan_answer;

/* Adds the candidates within the limit that pay as the only change to an
 * answer: their operators are faster than with every smaller candidate, or the
 * whole plan becomes faster and no smaller candidate makes it so. Returns their
 * number. If it is not 0, the caller must call gac_problem_divide. */
int32_t gac_problem_add_paying(plan_problem *p, int64_t limit_bytes, plan_answer *a);
/* Divides the groups into classes, by their present candidates. */
gac_status gac_problem_divide(plan_problem *p, gac_error *err);

/* Makes the sizes smaller that do not pay in an answer: each group gets the
 * smallest candidate with which its operators stay within the margin of their
 * present time. The whole plan stays at or below most_ms. */
void gac_problem_trim(const plan_problem *p, double most_ms, plan_answer *a);

/* Computes the price of an answer, all sizes together. */
gac_status gac_problem_price_answer(const plan_problem *p, plan_answer *a, gac_error *err);

/* Find the least time within a growth of limit_bytes, and the least growth
 * within limit_ms. GAC_CHECK if no sizes stay within the limit. */
gac_status gac_problem_least_ms(plan_problem *p, int64_t limit_bytes, plan_answer *out,
                                gac_error *err);
gac_status gac_problem_least_bytes(plan_problem *p, double limit_ms, plan_answer *out,
                                   gac_error *err);

/* Applies a strategy to every group: the largest of its members' sizes,
 * adjusted to the deployment. */
gac_status gac_plan_apply_strategy(const gac_model *model, const gac_plan_options *options,
                                   gac_strategy strategy, const plan_groups *groups, int64_t *sizes,
                                   gac_error *err);

#endif

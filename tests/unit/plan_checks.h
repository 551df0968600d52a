/* What every plan that solve makes for time must keep to, whatever the model and
 * the contract. Include it behind cmocka.h. */
#ifndef GAC_TESTS_PLAN_CHECKS_H
#define GAC_TESTS_PLAN_CHECKS_H

#include <math.h>

#include <gac/plan.h>

#include "plan/plan_internal.h"
#include "scratch.h"
#include "small_llama.h"

#define N_DIMS 64
#define ROUNDING 1e-9

static uint64_t random_state;

static inline int64_t below(int64_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)limit);
}

/* A model and how to plan it. */
typedef struct planned {
    small_model m;
    json_t *rates; /* the contract's text */
    gac_contract *contract;
    gac_workload workload;
    gac_plan_options options;
    double margin; /* as a share */
    int32_t n_dims;
} planned;

static inline double ms_of(const planned *p, const int64_t *sizes)
{
    double sum = 0;
    for (int i = 0; i < p->workload.n_phases; i++)
        sum += p->workload.phases[i].weight * gac_plan_time_ms(p->m.model, &p->options.target,
                                                               &p->workload.phases[i], sizes, NULL);
    return sum;
}

static inline double pct_of(const planned *p, const int64_t *sizes)
{
    double pct = NAN;
    assert_ok(gac_plan_overhead_pct(p->m.model, sizes, &pct, err));
    return pct;
}

/* Whether a takes less than b by more than the margin; slack makes it harder (or,
 * below 0, easier) to be so. */
static inline bool is_faster(const planned *p, double a_ms, double b_ms, double slack)
{
    return a_ms + slack * b_ms < (1 - p->margin) * b_ms;
}

/* A plan that solve has priced, and the plan that it made. */
typedef struct compared {
    const planned *p;
    const gac_plan *plan;
    double least_ms; /* of the least growth */
    const char *what;
    double ms, pct;
} compared;

static inline void fail_compared(const compared *c, const char *broken)
{
    fail_msg("%s: planned %.9g ms at %+.6f %%, bound %.9g, best %.9g, limit %g %% of %g %%, "
             "margin %g; %s has %.9g ms at %+.6f %%; the least growth has %.9g ms",
             broken, c->plan->planned_ms, c->plan->overhead_pct, c->plan->bound, c->plan->best_ms,
             c->plan->limit_pct, c->p->options.max_overhead_pct, c->p->margin, c->what, c->ms,
             c->pct, c->least_ms);
}

/* No plan that was priced beats the answer by more than the margin. */
static inline void not_beaten(compared c, const int64_t *sizes, const char *what)
{
    c.what = what;
    c.pct = pct_of(c.p, sizes);
    if (c.pct > c.p->options.max_overhead_pct)
        return;
    c.ms = ms_of(c.p, sizes);
    if (is_faster(c.p, c.ms, c.plan->planned_ms, ROUNDING))
        fail_compared(&c, "beaten by more than the margin");
}

/* A plain plan also has no fewer bytes while it is within the margin of the fastest,
 * and is not below the bound of the limit that it fits. */
static inline void not_better(compared c, const int64_t *sizes, const char *what)
{
    not_beaten(c, sizes, what);
    c.what = what;
    c.ms = ms_of(c.p, sizes);
    c.pct = pct_of(c.p, sizes);
    bool pays = c.ms == c.least_ms || is_faster(c.p, c.ms, c.least_ms, ROUNDING);
    if (c.pct < c.plan->overhead_pct - 1e-9 && pays &&
        !is_faster(c.p, c.plan->best_ms, c.ms, -ROUNDING))
        fail_compared(&c, "fewer bytes are within the margin");
    if (c.pct <= c.plan->limit_pct && c.ms < c.plan->bound * (1 - ROUNDING))
        fail_compared(&c, "the bound is wrong");
    if (c.pct <= c.p->options.max_overhead_pct && c.ms < c.plan->best_ms * (1 - ROUNDING))
        fail_compared(&c, "best_ms is not the best");
}

/* The model as it is, and the strategies minimal and optimal. */
static inline void check_plain(compared c, const int64_t *least)
{
    not_better(c, least, "the least growth");
    for (int s = GAC_STRATEGY_MINIMAL; s <= GAC_STRATEGY_MULTIPLE_16; s++) {
        gac_plan other;
        gac_plan_options options = c.p->options;
        options.solve = false;
        options.strategy = (gac_strategy)s;
        assert_ok(gac_plan_create(c.p->m.model, &options, &other, err));
        not_better(c, other.sizes, gac_strategy_name((gac_strategy)s));
        gac_plan_dispose(&other);
    }
}

/* Every candidate of every group alone, from the plan and from the least growth. */
static inline void check_single_changes(compared c, const plan_groups *groups, const int64_t *least)
{
    int64_t sizes[N_DIMS];
    for (int32_t i = 0; i < groups->n_groups; i++)
        for (int32_t k = 0; k < groups->groups[i].n_sizes; k++)
            for (int from = 0; from < 2; from++) {
                memcpy(sizes, from ? least : c.plan->sizes, (size_t)c.p->n_dims * sizeof *sizes);
                gac_plan_set_group(&groups->groups[i], groups->groups[i].sizes[k], sizes);
                not_beaten(c, sizes, "a single change");
            }
}

/* Predicted time of the operators that see a group. */
static inline double group_ms_of(const planned *p, const plan_groups *groups, int32_t group,
                                 const int64_t *sizes)
{
    double sum = 0;
    for (int32_t i = 0; i < gac_model_n_ops(p->m.model); i++) {
        const gac_op *op = gac_model_op(p->m.model, i);
        bool sees = false;
        for (int32_t t = 0; t < op->n_terms; t++)
            sees = sees || groups->group_of[op->terms[t].dim] == group;
        for (int k = 0; k < p->workload.n_phases && sees; k++)
            sum += p->workload.phases[k].weight * gac_plan_op_ms(p->m.model, &p->options.target,
                                                                 &p->workload.phases[k], op, sizes);
    }
    return sum;
}

/* An aligned size has moved only for more than the margin of its operators' time, or if
 * the plan would not be good enough without that. */
static inline void check_aligned(compared c, const plan_groups *groups)
{
    int64_t sizes[N_DIMS];
    for (int32_t i = 0; i < groups->n_groups; i++) {
        const plan_group *g = &groups->groups[i];
        if (g->reference != g->sizes[0] || c.plan->sizes[g->dims[0]] == g->sizes[0])
            continue;
        memcpy(sizes, c.plan->sizes, (size_t)c.p->n_dims * sizeof *sizes);
        gac_plan_set_group(g, g->sizes[0], sizes);
        c.what = gac_model_dim(c.p->m.model, g->dims[0])->name;
        c.ms = ms_of(c.p, sizes);
        c.pct = pct_of(c.p, sizes);
        bool enough = !is_faster(c.p, c.plan->best_ms, c.ms, -ROUNDING) &&
                      is_faster(c.p, c.ms, c.least_ms, ROUNDING);
        if (enough && !is_faster(c.p, group_ms_of(c.p, groups, i, c.plan->sizes),
                                 group_ms_of(c.p, groups, i, sizes), -ROUNDING))
            fail_compared(&c, "an aligned size moved for less than the margin");
    }
}

/* What holds of the numbers by themselves. */
static inline void check_numbers(const compared *c, const int64_t *least)
{
    const planned *p = c->p;
    const gac_plan *plan = c->plan;
    double max_pct = p->options.max_overhead_pct;
    assert_true(plan->objective == plan->planned_ms);
    assert_true(fabs(plan->planned_ms - ms_of(p, plan->sizes)) <= ROUNDING);
    assert_true(plan->bound <= plan->objective);
    assert_true(!plan->optimal || plan->bound == plan->objective);
    assert_true(plan->overhead_pct <= plan->limit_pct + 1e-9);
    assert_true(plan->limit_pct <= max_pct);
    assert_true(fabs(plan->margin_pct - 100 * p->margin) < 1e-9);
    assert_true(plan->best_ms <= plan->planned_ms + ROUNDING);
    if (plan->best_ms < plan->bound * (1 - ROUNDING) && plan->limit_pct >= max_pct)
        fail_compared(c, "the fastest found is below the bound of the same limit");
    if (is_faster(p, plan->best_ms, plan->planned_ms, ROUNDING))
        fail_compared(c, "slower than its own best by more than the margin");
    if (memcmp(least, plan->sizes, (size_t)p->n_dims * sizeof *least) != 0 &&
        !is_faster(p, plan->planned_ms, c->least_ms, -ROUNDING))
        fail_compared(c, "the whole gain is below the margin");
    if (!p->options.uniform && p->options.target.n_gpus == 1)
        assert_true(plan->planned_ms <= plan->now_ms + ROUNDING);
}

static inline void check_promises(const planned *p, const gac_plan *plan)
{
    int64_t least[N_DIMS];
    plan_groups groups;
    assert_ok(gac_plan_groups(p->m.model, &p->options, &groups, err));
    for (int32_t i = 0; i < groups.n_groups; i++)
        gac_plan_set_group(&groups.groups[i], groups.groups[i].sizes[0], least);
    compared c = { p, plan, ms_of(p, least), "the least growth", 0, 0 };
    c.ms = c.least_ms;
    check_numbers(&c, least);
    check_plain(c, least);
    check_aligned(c, &groups);
    check_single_changes(c, &groups, least);
    gac_plan_groups_dispose(&groups);
}

#endif

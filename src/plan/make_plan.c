/* Makes a plan: a size for every dimension of a model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

/* Finds the first size that both the strategy and the unit accept. */
static gac_status accepted_size(const gac_plan_options *options, gac_strategy strategy,
                                const gac_dim *d, int64_t unit, int64_t *out, gac_error *err)
{
    enum { MAX_ROUNDS = 1000 };
    int64_t to = d->size, by_strategy = 0;
    gac_status status = GAC_OK;
    for (int i = 0; i < MAX_ROUNDS && status == GAC_OK && to != by_strategy; i++) {
        status = gac_strategy_apply(strategy, to, options->max_overhead_pct, &by_strategy, err);
        to = by_strategy;
        if (status == GAC_OK && !gac_round_up_i64(by_strategy, unit, &to))
            status = gac_error_set(err, GAC_USAGE, "%s: no size fits", d->name);
    }
    *out = to;
    return status;
}

gac_status gac_plan_apply_strategy(const gac_model *model, const gac_plan_options *options,
                                   gac_strategy strategy, const plan_groups *groups, int64_t *sizes,
                                   gac_error *err)
{
    dim_units *units = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *units);
    gac_status status =
        units ? gac_plan_units(model, &options->target, units, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < groups->n_groups && status == GAC_OK; i++) {
        const plan_group *group = &groups->groups[i];
        int64_t size = group->sizes[0];
        for (int32_t k = 0; k < group->n_dims && !group->locked && status == GAC_OK; k++) {
            int64_t to = 0;
            status = accepted_size(options, strategy, gac_model_dim(model, group->dims[k]),
                                   units[group->dims[k]].hard, &to, err);
            size = k == 0 || to > size ? to : size;
        }
        gac_plan_set_group(group, size, sizes);
    }
    free(units);
    return status;
}

/* The plans that are compared. */
enum {
    LEAST, /* the least growth */
    BY_8,  /* the strategy minimal */
    BY_16, /* the strategy multiple-16 */
    N_PLAIN,
    SOLVED = N_PLAIN, /* the fastest combination within the limit */
    TRIMMED,          /* the chosen plan, but without the sizes that do not pay in it */
    PICKED,           /* the plan chosen in the previous round */
    N_PLANS
};

static gac_status price_plain(const plan_problem *p, plan_answer *plans, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        gac_plan_set_group(&p->groups.groups[i], p->groups.groups[i].sizes[0], plans[LEAST].sizes);
    for (int i = 0; i < N_PLAIN && status == GAC_OK; i++) {
        if (i != LEAST)
            status = gac_plan_apply_strategy(
                p->model, p->options, i == BY_8 ? GAC_STRATEGY_MINIMAL : GAC_STRATEGY_MULTIPLE_16,
                &p->groups, plans[i].sizes, err);
        if (status == GAC_OK)
            status = gac_problem_price_answer(p, &plans[i], err);
    }
    return status;
}

static double fastest_ms(const plan_answer *plans, int64_t limit)
{
    double least = INFINITY;
    for (int i = 0; i < N_PLANS; i++)
        if (plans[i].bytes <= (double)limit)
            least = fmin(least, plans[i].ms);
    return least;
}

/* Chooses the plan with the fewest bytes among those within the margin of
 * best_ms. A plan other than the least growth must also be faster than it by
 * more than the margin. There always is one: if the least growth is not within
 * the margin, the fastest plan is that much faster. */
static const plan_answer *fewest_bytes(const plan_problem *p, const plan_answer *plans,
                                       int64_t limit, double best_ms)
{
    const plan_answer *pick = NULL;
    for (int i = 0; i < N_PLANS; i++) {
        const plan_answer *a = &plans[i];
        bool pays = i == LEAST || gac_problem_is_faster(p, a->ms, plans[LEAST].ms);
        if (pays && a->bytes <= (double)limit && !gac_problem_is_faster(p, best_ms, a->ms) &&
            (!pick || a->bytes < pick->bytes || (a->bytes == pick->bytes && a->ms < pick->ms)))
            pick = a;
    }
    return pick;
}

/* Copies sizes and prices, but not the bound. */
static void copy_answer(const plan_answer *from, size_t n_dims, plan_answer *to)
{
    memmove(to->sizes, from->sizes, n_dims * sizeof *to->sizes);
    to->ms = from->ms;
    to->bytes = from->bytes;
}

/* Solves within the limit and chooses among all plans: first without TRIMMED,
 * which is made from that choice, then with it. */
static gac_status choose(plan_problem *p, int64_t limit, plan_answer *plans, double *best_ms,
                         const plan_answer **pick, gac_error *err)
{
    size_t n_dims = (size_t)gac_model_n_dims(p->model);
    double share = 1 - p->margin_pct / 100;
    gac_status status = gac_problem_least_ms(p, limit, &plans[SOLVED], err);
    if (status != GAC_OK)
        return status;
    plans[TRIMMED].bytes = INFINITY;
    *best_ms = fmin(*best_ms, fastest_ms(plans, limit));
    *pick = fewest_bytes(p, plans, limit, *best_ms);
    copy_answer(*pick, n_dims, &plans[TRIMMED]);
    gac_problem_trim(p, fmin(*best_ms / share, share * plans[LEAST].ms), &plans[TRIMMED]);
    status = gac_problem_price_answer(p, &plans[TRIMMED], err);
    *pick = fewest_bytes(p, plans, limit, *best_ms);
    return status;
}

/* Finds the least time within the limit. If a plan with fewer bytes is within
 * the margin of the fastest plan, its bytes become the next limit. So the limit
 * falls until the plan is the fastest one within it. */
static gac_status solve_time(plan_problem *p, gac_plan *plan, plan_answer *out, gac_error *err)
{
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(p->model));
    double fastest = INFINITY;
    int64_t limit = gac_problem_limit(p);
    size_t n_dims = (size_t)plan->n_dims;
    plan_answer plans[N_PLANS] = { { 0 } };
    int64_t *sizes = calloc(N_PLANS * n_dims + 1, sizeof *sizes);
    const plan_answer *pick = NULL;
    for (size_t i = 0; i < N_PLANS && sizes; i++)
        plans[i].sizes = sizes + i * n_dims;
    gac_status status = sizes ? price_plain(p, plans, err) : gac_error_no_memory(err);
    plan->limit_pct = p->options->max_overhead_pct;
    plan->best_ms = plans[PICKED].bytes = INFINITY;
    while (status == GAC_OK) {
        status = choose(p, limit, plans, &plan->best_ms, &pick, err);
        fastest = fastest_ms(plans, limit);
        if (status != GAC_OK || !(pick->ms > fastest && ceil(pick->bytes) < (double)limit))
            break;
        limit = (int64_t)ceil(pick->bytes);
        plan->limit_pct = 100 * pick->bytes / bytes;
        copy_answer(pick, n_dims, &plans[PICKED]);
    }
    if (status == GAC_OK) {
        copy_answer(pick, n_dims, out);
        out->bound = fmin(plans[SOLVED].bound, fastest);
        out->proved = out->ms <= out->bound;
    }
    free(sizes);
    return status;
}

/* The same, repeated until no other candidate pays as the only change to the
 * answer. */
static gac_status solve_time_until_stable(plan_problem *p, gac_plan *plan, plan_answer *out,
                                          gac_error *err)
{
    enum { MAX_ROUNDS = 16 };
    gac_status status = solve_time(p, plan, out, err);
    for (int round = 1; round < MAX_ROUNDS && status == GAC_OK &&
                        gac_problem_add_paying(p, gac_problem_limit(p), out) > 0;
         round++) {
        status = gac_problem_divide(p, err);
        if (status == GAC_OK)
            status = solve_time(p, plan, out, err);
    }
    return status;
}

static gac_status solve(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                        gac_error *err)
{
    plan_problem p;
    plan_answer a = { .sizes = out->sizes };
    bool least_bytes = options->max_time_ms > 0;
    gac_status status = gac_problem_create(model, options, 0, &p, err);
    if (status != GAC_OK)
        return status;
    status = least_bytes ? gac_problem_least_bytes(&p, options->max_time_ms, &a, err)
                         : solve_time_until_stable(&p, out, &a, err);
    out->margin_pct = p.margin_pct;
    out->margin_stated = p.margin_stated;
    out->optimal = a.proved;
    out->objective = least_bytes ? a.bytes : a.ms;
    out->bound = a.bound;
    gac_problem_dispose(&p);
    return status;
}

gac_status gac_plan_create(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                           gac_error *err)
{
    GAC_REFUSE_NULL(err, model, options, out);
    GAC_REFUSE(err, !options->solve && (unsigned)options->strategy >= GAC_STRATEGY_COUNT,
               "there is no such strategy");
    GAC_REFUSE(err, options->n_rules < 0 || (options->n_rules > 0 && !options->rules),
               "there are no rules");
    plan_groups groups;
    int32_t n_dims = gac_model_n_dims(model);
    *out = (gac_plan){ .n_dims = n_dims };
    gac_status status = gac_plan_groups(model, options, &groups, err);
    if (status != GAC_OK)
        return status;
    out->sizes = calloc((size_t)n_dims + 1, sizeof *out->sizes);
    snprintf(out->strategy, sizeof out->strategy, "%s",
             options->solve ? "solve" : gac_strategy_name(options->strategy));
    if (!out->sizes)
        status = gac_error_no_memory(err);
    else
        status = options->solve ? solve(model, options, out, err)
                                : gac_plan_apply_strategy(model, options, options->strategy,
                                                          &groups, out->sizes, err);
    if (status == GAC_OK)
        status = gac_plan_overhead_pct(model, out->sizes, &out->overhead_pct, err);
    if (status == GAC_OK) {
        out->now_ms = gac_plan_total_ms(model, options, NULL);
        out->planned_ms = gac_plan_total_ms(model, options, out->sizes);
        for (int32_t i = 0; i < n_dims; i++)
            out->n_changed += out->sizes[i] != gac_model_dim(model, i)->size;
        if (!options->solve)
            out->objective = out->planned_ms;
    }
    gac_plan_groups_dispose(&groups);
    if (status != GAC_OK)
        gac_plan_dispose(out);
    return status;
}

void gac_plan_dispose(gac_plan *plan)
{
    if (!plan)
        return;
    free(plan->sizes);
    plan->sizes = NULL;
}

/* Computes points of the front if classes do not add up: answers at evenly
 * spread limits, each priced together. */
static gac_status front_at_limits(plan_problem *p, gac_front *out, gac_error *err)
{
    enum { N_LIMITS = 64 };
    double most = 0;
    plan_answer a = { 0 };
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        gac_plan_set_group(&p->groups.groups[i],
                           p->groups.groups[i].sizes[p->groups.groups[i].n_sizes - 1], p->sizes);
    gac_status status = gac_plan_growth_bytes(p->model, p->sizes, &most, err);
    a.sizes = calloc((size_t)gac_model_n_dims(p->model) + 1, sizeof *a.sizes);
    *out = (gac_front){ .points = calloc(N_LIMITS, sizeof *out->points) };
    if (status == GAC_OK && (!a.sizes || !out->points))
        status = gac_error_no_memory(err);
    for (int i = 0; i < N_LIMITS && status == GAC_OK; i++) {
        double part = (most - (double)p->base_bytes) * i / (N_LIMITS - 1);
        status = gac_problem_least_ms(p, p->base_bytes + (int64_t)fmin(part, 4e18), &a, err);
        if (status != GAC_OK)
            break;
        bool better = out->n_points == 0 || a.ms < out->points[out->n_points - 1].value;
        if (better && out->n_points > 0 && out->points[out->n_points - 1].cost >= (int64_t)a.bytes)
            out->n_points--;
        if (better) {
            out->points[out->n_points++] = (gac_front_point){ (int64_t)a.bytes, a.ms };
            out->n_unproved += !a.proved;
        }
    }
    free(a.sizes);
    if (status != GAC_OK)
        gac_front_dispose(out);
    return status;
}

/* Computes the whole front. This needs classes that add up. */
static gac_status whole_front(plan_problem *p, gac_front *out, gac_error *err)
{
    gac_pareto_options limits = { .time_limit_s = p->options->time_limit_s };
    gac_choice_class *classes = calloc((size_t)p->n_classes + 1, sizeof *classes);
    gac_status status = classes ? gac_problem_price(p, PRICE_BELOW, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < p->n_classes && status == GAC_OK; i++)
        classes[i] = (gac_choice_class){ p->classes[i].choices, p->classes[i].n_choices };
    if (status == GAC_OK)
        status = gac_pareto(classes, p->n_classes, &limits, out, err);
    for (int64_t i = 0; status == GAC_OK && i < out->n_points; i++) {
        out->points[i].value += p->base_ms;
        out->points[i].cost += p->base_bytes;
    }
    free(classes);
    return status;
}

gac_status gac_plan_front(const gac_model *model, const gac_plan_options *options, gac_front *out,
                          gac_error *err)
{
    GAC_REFUSE_NULL(err, model, options, out);
    GAC_REFUSE(err, options->n_rules < 0 || (options->n_rules > 0 && !options->rules),
               "there are no rules");
    plan_problem p;
    gac_status status = gac_problem_create(model, options, 0, &p, err);
    if (status != GAC_OK)
        return status;
    status = p.joint ? whole_front(&p, out, err) : front_at_limits(&p, out, err);
    gac_problem_dispose(&p);
    return status;
}

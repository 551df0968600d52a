/* From a model and a wish to a size for every dimension. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

gac_status gac_plan_apply_strategy(const gac_model *model, const gac_plan_options *options,
                                   gac_strategy strategy, bool only_misaligned,
                                   const plan_groups *groups, int64_t *sizes, gac_error *err)
{
    dim_units *units = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *units);
    gac_status status =
        units ? gac_plan_units(model, &options->target, units, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < groups->n_groups && status == GAC_OK; i++) {
        const plan_group *group = &groups->groups[i];
        int64_t size = group->sizes[0];
        bool stays = group->locked || (only_misaligned && group->reference == size);
        for (int32_t k = 0; k < group->n_dims && !stays && status == GAC_OK; k++) {
            int64_t to = 0, from = gac_model_dim(model, group->dims[k])->size;
            status = gac_strategy_apply(strategy, from, options->max_overhead_pct, &to, err);
            if (status == GAC_OK && !gac_round_up_i64(to, units[group->dims[k]].hard, &to))
                status = gac_error_set(err, GAC_USAGE, "%s: no size fits",
                                       gac_model_dim(model, group->dims[k])->name);
            size = k == 0 || to > size ? to : size;
        }
        gac_plan_set_group(group, size, sizes);
    }
    free(units);
    return status;
}

/* Of the plain plans that keep to the limit (the least growth, minimal and
 * multiples of 16 where a size is misaligned), and of out, the one with the fewest
 * bytes among those that are within the margin of the fastest. out becomes that
 * plan; *best_ms is the fastest. */
static gac_status prefer_fewer_bytes(const plan_problem *p, int64_t limit_bytes, plan_answer *out,
                                     double *best_ms, gac_error *err)
{
    enum { N_PLAIN = 3 };
    size_t n_dims = (size_t)gac_model_n_dims(p->model);
    plan_answer plain[N_PLAIN] = { { 0 } };
    plan_groups groups; /* with all candidates: the reference is the first aligned size */
    gac_status status = gac_plan_groups(p->model, p->options, &groups, err);
    if (status != GAC_OK)
        return status;
    *best_ms = out->ms;
    for (int i = 0; i < N_PLAIN && status == GAC_OK; i++) {
        plan_answer *a = &plain[i];
        a->sizes = calloc(n_dims + 1, sizeof *a->sizes);
        if (!a->sizes)
            status = gac_error_no_memory(err);
        for (int32_t k = 0; k < groups.n_groups && status == GAC_OK; k++)
            gac_plan_set_group(&groups.groups[k], groups.groups[k].sizes[0], a->sizes);
        if (status == GAC_OK && i > 0)
            status = gac_plan_apply_strategy(p->model, p->options,
                                             i == 1 ? GAC_STRATEGY_MINIMAL : GAC_STRATEGY_OPTIMAL,
                                             true, &groups, a->sizes, err);
        if (status == GAC_OK)
            status = gac_problem_settle(p, a, err);
        if (a->bytes <= (double)limit_bytes)
            *best_ms = fmin(*best_ms, a->ms);
    }
    for (int i = 0; i < N_PLAIN && status == GAC_OK; i++)
        if (plain[i].bytes <= (double)limit_bytes && plain[i].bytes < out->bytes &&
            *best_ms >= (1 - p->margin_pct / 100) * plain[i].ms) {
            memcpy(out->sizes, plain[i].sizes, n_dims * sizeof *out->sizes);
            out->ms = plain[i].ms;
            out->bytes = plain[i].bytes;
        }
    for (int i = 0; i < N_PLAIN; i++)
        free(plain[i].sizes);
    gac_plan_groups_dispose(&groups);
    return status;
}

/* Least time within the limit. Where a plain plan with fewer bytes is as good up
 * to the margin, its bytes are the limit. */
static gac_status solve_time(plan_problem *p, gac_plan *plan, plan_answer *a, gac_error *err)
{
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(p->model));
    int64_t limit = gac_problem_limit(p);
    gac_status status = gac_problem_least_ms(p, limit, a, err);
    double solved_bytes = a->bytes;
    if (status == GAC_OK)
        status = prefer_fewer_bytes(p, limit, a, &plan->best_ms, err);
    plan->limit_pct = p->options->max_overhead_pct;
    if (status != GAC_OK || a->bytes >= solved_bytes)
        return status;
    plan_answer plain = *a, again = { 0 };
    again.sizes = calloc((size_t)plan->n_dims + 1, sizeof *again.sizes);
    status = again.sizes ? gac_problem_least_ms(p, (int64_t)plain.bytes, &again, err)
                         : gac_error_no_memory(err);
    if (status == GAC_OK) {
        bool better = again.ms <= plain.ms;
        a->ms = better ? again.ms : plain.ms;
        a->bytes = better ? again.bytes : plain.bytes;
        a->proved = again.proved;
        a->bound = again.proved ? a->ms : fmin(again.bound, a->ms);
        if (better)
            memcpy(a->sizes, again.sizes, (size_t)plan->n_dims * sizeof *a->sizes);
        plan->limit_pct = bytes > 0 ? 100 * plain.bytes / bytes : 0;
    }
    free(again.sizes);
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
                         : solve_time(&p, out, &a, err);
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
                                : gac_plan_apply_strategy(model, options, options->strategy, false,
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

/* The points of a problem whose classes do not add up: answers at limits spread
 * evenly, each priced together. */
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

/* The whole front, of classes that add up. */
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

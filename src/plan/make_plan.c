/* From a model and a wish to a size for every dimension. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

#define PS_PER_MS 1e9

/* The strategy's size for the largest of a group, fitted to the deployment. */
static gac_status apply_strategy(const gac_model *model, const gac_plan_options *options,
                                 const dim_units *units, const plan_groups *groups, gac_plan *out,
                                 gac_error *err)
{
    for (int32_t i = 0; i < groups->n_groups; i++) {
        const plan_group *group = &groups->groups[i];
        int64_t size = group->sizes[0];
        for (int32_t k = 0; k < group->n_dims && !group->locked; k++) {
            int64_t to, from = gac_model_dim(model, group->dims[k])->size;
            gac_status status =
                gac_strategy_apply(options->strategy, from, options->max_overhead_pct, &to, err);
            if (status != GAC_OK)
                return status;
            if (!gac_round_up_i64(to, units[group->dims[k]].hard, &to))
                return gac_error_set(err, GAC_USAGE, "%s: no size fits",
                                     gac_model_dim(model, group->dims[k])->name);
            size = k == 0 || to > size ? to : size;
        }
        for (int32_t k = 0; k < group->n_dims; k++)
            out->sizes[group->dims[k]] = size;
    }
    return GAC_OK;
}

static double total_ms(const gac_model *model, const gac_plan_options *options,
                       const int64_t *sizes)
{
    double sum = 0;
    const gac_workload *w = options->workload;
    for (int p = 0; p < w->n_phases; p++)
        sum += w->phases[p].weight *
               gac_plan_time_ms(model, &options->target, &w->phases[p], sizes, NULL);
    return sum;
}

/* Classes for the solver, and what turns its numbers back into ours. */
typedef struct problem {
    gac_choice_class *classes;
    gac_choice *swapped; /* time as cost and bytes as value; or NULL */
    int32_t *picks;
    int64_t budget;
    double offset; /* to add to the solver's value */
} problem;

static void problem_dispose(problem *p)
{
    free(p->classes);
    free(p->swapped);
    free(p->picks);
}

/* Least time: cost is bytes, value is milliseconds. */
static gac_status by_bytes(const gac_model *model, const gac_plan_options *options,
                           const plan_groups *groups, problem *p)
{
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model));
    p->budget = (int64_t)floor(bytes * options->max_overhead_pct / 100.0);
    p->offset = groups->base_ms;
    for (int32_t i = 0; i < groups->n_groups; i++)
        p->classes[i] = (gac_choice_class){ groups->groups[i].choices, groups->groups[i].n_sizes };
    return GAC_OK;
}

/* Least bytes: cost is time in picoseconds above each group's best, rounded up
 * each; the target is kept to within rounding. */
static gac_status by_time(const gac_plan_options *options, const plan_groups *groups, problem *p,
                          gac_error *err)
{
    size_t n = 0;
    double best_ms = groups->base_ms;
    for (int32_t i = 0; i < groups->n_groups; i++)
        n += (size_t)groups->groups[i].n_sizes;
    p->swapped = calloc(n + 1, sizeof *p->swapped);
    if (!p->swapped)
        return gac_error_no_memory(err);
    n = 0;
    for (int32_t i = 0; i < groups->n_groups; i++) {
        const plan_group *group = &groups->groups[i];
        double least = group->choices[0].value;
        for (int32_t k = 1; k < group->n_sizes; k++)
            least = fmin(least, group->choices[k].value);
        best_ms += least;
        p->classes[i] = (gac_choice_class){ p->swapped + n, group->n_sizes };
        for (int32_t k = 0; k < group->n_sizes; k++, n++)
            p->swapped[n] =
                (gac_choice){ (int64_t)ceil((group->choices[k].value - least) * PS_PER_MS),
                              (double)group->choices[k].cost };
    }
    /* Sums of many predictions carry their rounding. */
    double slack_ms = 1e-9 * best_ms;
    if (options->max_time_ms < best_ms - slack_ms)
        return gac_error_set(err, GAC_CHECK,
                             "no sizes reach %.3f ms; the least predicted is %.3f ms",
                             options->max_time_ms, best_ms);
    p->budget = (int64_t)floor((options->max_time_ms - best_ms + slack_ms) * PS_PER_MS);
    p->budget = (p->budget > 0 ? p->budget : 0) + groups->n_groups;
    return GAC_OK;
}

/* Says how much growth would be needed, in the user's terms. */
static gac_status too_little(const gac_model *model, const gac_plan_options *options,
                             const plan_groups *groups, gac_error *err)
{
    double least = 0, bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model));
    for (int32_t i = 0; i < groups->n_groups; i++)
        least += (double)groups->groups[i].choices[0].cost;
    return gac_error_set(err, GAC_CHECK,
                         "no sizes stay within %.3f %% more bytes; the least is %.3f %%",
                         options->max_overhead_pct, bytes > 0 ? 100 * least / bytes : 0);
}

static gac_status solve_priced(const gac_model *model, const gac_plan_options *options,
                               pricing price, gac_plan *out, gac_error *err)
{
    plan_groups groups;
    problem p = { 0 };
    gac_solution solution;
    gac_solve_options limits = { .time_limit_s = options->time_limit_s };
    gac_status status = gac_plan_groups(model, options, price, &groups, err);
    if (status != GAC_OK)
        return status;
    p.classes = calloc((size_t)groups.n_groups + 1, sizeof *p.classes);
    p.picks = calloc((size_t)groups.n_groups + 1, sizeof *p.picks);
    status = p.classes && p.picks ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = options->max_time_ms > 0 ? by_time(options, &groups, &p, err)
                                          : by_bytes(model, options, &groups, &p);
    if (status == GAC_OK) {
        status = gac_solve(p.classes, groups.n_groups, p.budget, &limits, p.picks, &solution, err);
        if (status == GAC_CHECK && options->max_time_ms <= 0)
            status = too_little(model, options, &groups, err);
    }
    if (status == GAC_OK) {
        out->optimal = solution.optimal;
        out->objective = solution.value + p.offset;
        out->bound = solution.optimal ? out->objective : solution.bound + p.offset;
        for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
            int32_t group = groups.group_of[i];
            out->sizes[i] = groups.groups[group].sizes[p.picks[group]];
        }
    }
    problem_dispose(&p);
    gac_plan_groups_dispose(&groups);
    return status;
}

/* Bytes priced from below give the optimum of a wider problem. If it keeps to
 * the limit, it is the optimum; if two growing axes of one tensor push it over,
 * prices from above give a plan that keeps to it, and the first a true bound. */
static gac_status solve(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                        gac_error *err)
{
    double growth = 0, bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model));
    gac_status status = solve_priced(model, options, PRICE_BELOW, out, err);
    if (status == GAC_OK)
        status = gac_plan_growth_bytes(model, out->sizes, &growth, err);
    if (status != GAC_OK)
        return status;
    if (options->max_time_ms > 0) {
        /* What was made least is the growth itself. */
        out->optimal = out->optimal && growth <= out->objective;
        out->objective = growth;
        out->bound = out->optimal ? growth : out->bound;
        return GAC_OK;
    }
    if (growth <= floor(bytes * options->max_overhead_pct / 100.0))
        return GAC_OK;
    double bound = out->bound;
    status = solve_priced(model, options, PRICE_ABOVE, out, err);
    out->optimal = out->optimal && out->objective <= bound;
    out->bound = out->optimal ? out->objective : bound;
    return status;
}

gac_status gac_plan_create(const gac_model *model, const gac_plan_options *options, gac_plan *out,
                           gac_error *err)
{
    plan_groups groups;
    int32_t n_dims = gac_model_n_dims(model);
    *out = (gac_plan){ .n_dims = n_dims };
    gac_status status = gac_plan_groups(model, options, PRICE_NONE, &groups, err);
    if (status != GAC_OK)
        return status;
    dim_units *units = calloc((size_t)n_dims + 1, sizeof *units);
    out->sizes = calloc((size_t)n_dims + 1, sizeof *out->sizes);
    status = units && out->sizes ? gac_plan_units(model, &options->target, units, err)
                                 : gac_error_no_memory(err);
    snprintf(out->strategy, sizeof out->strategy, "%s",
             options->solve ? "solve" : gac_strategy_name(options->strategy));
    if (status == GAC_OK)
        status = options->solve ? solve(model, options, out, err)
                                : apply_strategy(model, options, units, &groups, out, err);
    if (status == GAC_OK)
        status = gac_plan_overhead_pct(model, out->sizes, &out->overhead_pct, err);
    if (status == GAC_OK) {
        out->now_ms = total_ms(model, options, NULL);
        out->planned_ms = total_ms(model, options, out->sizes);
        if (!options->solve)
            out->objective = out->bound = out->planned_ms;
    }
    free(units);
    gac_plan_groups_dispose(&groups);
    if (status != GAC_OK)
        gac_plan_dispose(out);
    return status;
}

void gac_plan_dispose(gac_plan *plan)
{
    free(plan->sizes);
    plan->sizes = NULL;
}

gac_status gac_plan_front(const gac_model *model, const gac_plan_options *options, gac_front *out,
                          gac_error *err)
{
    plan_groups groups;
    gac_status status = gac_plan_groups(model, options, PRICE_BELOW, &groups, err);
    if (status != GAC_OK)
        return status;
    problem p = { 0 };
    p.classes = calloc((size_t)groups.n_groups + 1, sizeof *p.classes);
    status = p.classes ? by_bytes(model, options, &groups, &p) : gac_error_no_memory(err);
    if (status == GAC_OK) {
        gac_pareto_options limits = { .time_limit_s = options->time_limit_s };
        status = gac_pareto(p.classes, groups.n_groups, &limits, out, err);
    }
    for (int64_t i = 0; status == GAC_OK && i < out->n_points; i++)
        out->points[i].value += p.offset;
    problem_dispose(&p);
    gac_plan_groups_dispose(&groups);
    return status;
}

/* Finds the least time within a limit of bytes, and the least bytes within a
 * limit of time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

#define PS_PER_MS 1e9
#define MOST_PS 1e18 /* limit of one cost, so that sums of a few stay in range */

/* Relative rounding error of a sum of many predictions. */
#define ROUNDING 1e-9

static double round_off(double ms)
{
    return ms + ROUNDING * fabs(ms);
}

int64_t gac_problem_limit(const plan_problem *p)
{
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(p->model));
    return (int64_t)floor(fmin(bytes * p->options->max_overhead_pct / 100, 4e18));
}

gac_status gac_problem_price_answer(const plan_problem *p, plan_answer *a, gac_error *err)
{
    a->ms = gac_plan_total_ms(p->model, p->options, a->sizes);
    return gac_plan_growth_bytes(p->model, a->sizes, &a->bytes, err);
}

/* Changes one group at a time as long as that reduces the time within
 * limit_bytes, or the bytes within limit_ms. The other limit is infinite. */
static void improve(const plan_problem *p, double limit_bytes, double limit_ms, plan_answer *a)
{
    enum { MAX_ROUNDS = 100 };
    bool least_bytes = isfinite(limit_ms), changed = true;
    for (int round = 0; round < MAX_ROUNDS && changed; round++) {
        changed = false;
        for (int32_t i = 0; i < p->groups.n_groups; i++) {
            const plan_group *group = &p->groups.groups[i];
            if (group->n_sizes < 2)
                continue;
            int64_t best = a->sizes[group->dims[0]];
            double ms = gac_problem_group_ms(p, i, a->sizes), best_ms = ms;
            double bytes = gac_problem_group_bytes(p, i, a->sizes), best_bytes = bytes;
            for (int32_t k = 0; k < group->n_sizes; k++) {
                gac_plan_set_group(group, group->sizes[k], a->sizes);
                double try_ms = gac_problem_group_ms(p, i, a->sizes);
                double try_bytes = gac_problem_group_bytes(p, i, a->sizes);
                bool fits =
                    a->ms + try_ms - ms <= limit_ms && a->bytes + try_bytes - bytes <= limit_bytes;
                if (!fits ||
                    (least_bytes ? try_bytes >= best_bytes : try_ms >= best_ms - 1e-12 * a->ms))
                    continue;
                best = group->sizes[k];
                best_ms = try_ms;
                best_bytes = try_bytes;
                changed = true;
            }
            gac_plan_set_group(group, best, a->sizes);
            a->ms += best_ms - ms;
            a->bytes += best_bytes - bytes;
        }
    }
}

/* Runs the solver and writes the sizes. With swap, time is the cost, in
 * picoseconds above the least time of each class, and bytes are the value. */
static gac_status solve_classes(const plan_problem *p, bool swap, int64_t budget, int64_t *sizes,
                                gac_solution *solution, gac_error *err)
{
    size_t n = (size_t)p->n_classes + 1, n_choices = 0;
    gac_solve_options limits = { .time_limit_s = p->options->time_limit_s };
    gac_choice_class *classes = calloc(n, sizeof *classes);
    int32_t *picks = calloc(n, sizeof *picks);
    for (int32_t i = 0; i < p->n_classes; i++)
        n_choices += (size_t)p->classes[i].n_choices;
    gac_choice *swapped = calloc(n_choices + 1, sizeof *swapped), *to = swapped;
    gac_status status = classes && picks && swapped ? GAC_OK : gac_error_no_memory(err);
    for (int32_t i = 0; i < p->n_classes && status == GAC_OK; i++) {
        const plan_class *c = &p->classes[i];
        double least = INFINITY;
        classes[i] = (gac_choice_class){ swap ? to : c->choices, c->n_choices };
        for (int32_t k = 0; k < c->n_choices; k++)
            least = fmin(least, c->choices[k].value);
        for (int32_t k = 0; k < c->n_choices; k++)
            *to++ = (gac_choice){ (int64_t)fmin(ceil((c->choices[k].value - least) * PS_PER_MS),
                                                MOST_PS),
                                  (double)c->choices[k].cost };
    }
    if (status == GAC_OK)
        status = gac_solve(classes, p->n_classes, budget, &limits, picks, solution, err);
    for (int32_t i = 0; i < p->groups.n_groups && status == GAC_OK; i++)
        gac_plan_set_group(&p->groups.groups[i], p->groups.groups[i].sizes[0], sizes);
    for (int32_t i = 0; i < p->n_classes && status == GAC_OK; i++)
        gac_problem_set(p, &p->classes[i], picks[i], sizes);
    free(classes);
    free(picks);
    free(swapped);
    return status;
}

/* Solves again with PRICE_NEAR. Keeps the answer of PRICE_BELOW if that stays
 * within the limit and is faster. */
static gac_status near_answer(plan_problem *p, int64_t limit_bytes, plan_answer *out,
                              gac_error *err)
{
    gac_solution solution;
    plan_answer below = *out;
    below.sizes = calloc((size_t)gac_model_n_dims(p->model) + 1, sizeof *below.sizes);
    if (!below.sizes)
        return gac_error_no_memory(err);
    memcpy(below.sizes, out->sizes, (size_t)gac_model_n_dims(p->model) * sizeof *below.sizes);
    gac_status status = gac_problem_price(p, PRICE_NEAR, err);
    if (status == GAC_OK)
        status = solve_classes(p, false, limit_bytes - p->base_bytes, out->sizes, &solution, err);
    if (status == GAC_OK)
        status = gac_problem_price_answer(p, out, err);
    if (status == GAC_OK && below.bytes <= (double)limit_bytes && below.ms < out->ms) {
        memcpy(out->sizes, below.sizes, (size_t)gac_model_n_dims(p->model) * sizeof *below.sizes);
        out->ms = below.ms;
        out->bytes = below.bytes;
    }
    free(below.sizes);
    return status;
}

gac_status gac_problem_least_ms(plan_problem *p, int64_t limit_bytes, plan_answer *out,
                                gac_error *err)
{
    gac_solution solution;
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(p->model));
    if (limit_bytes < p->base_bytes)
        return gac_error_set(
            err, GAC_CHECK, "no sizes stay within %.3f %% more bytes; the least is %.3f %%",
            p->options->max_overhead_pct, bytes > 0 ? 100 * (double)p->base_bytes / bytes : 0);
    gac_status status = gac_problem_price(p, PRICE_BELOW, err);
    if (status == GAC_OK)
        status = solve_classes(p, false, limit_bytes - p->base_bytes, out->sizes, &solution, err);
    if (status == GAC_OK)
        status = gac_problem_price_answer(p, out, err);
    if (status == GAC_OK && !p->joint)
        status = near_answer(p, limit_bytes, out, err);
    if (status != GAC_OK)
        return status;
    double bound = p->base_ms + solution.bound;
    if (!p->joint || !solution.optimal) {
        improve(p, (double)limit_bytes, INFINITY, out);
        status = gac_problem_price_answer(p, out, err);
    }
    out->proved = p->joint ? solution.optimal : out->ms <= bound;
    out->bound = out->proved ? out->ms : fmin(bound, out->ms);
    return status;
}

static gac_status unreached(double limit_ms, double least_ms, gac_error *err)
{
    return gac_error_set(err, GAC_CHECK, "no sizes reach %.3f ms; the least predicted is %.3f ms",
                         limit_ms, least_ms);
}

gac_status gac_problem_least_bytes(plan_problem *p, double limit_ms, plan_answer *out,
                                   gac_error *err)
{
    gac_solution solution;
    double least_ms = p->base_ms;
    gac_status status = gac_problem_price(p, PRICE_BELOW, err);
    if (status != GAC_OK)
        return status;
    for (int32_t i = 0; i < p->n_classes; i++) {
        double least = INFINITY;
        for (int32_t k = 0; k < p->classes[i].n_choices; k++)
            least = fmin(least, p->classes[i].choices[k].value);
        least_ms += least;
    }
    if (round_off(limit_ms) < least_ms)
        return unreached(limit_ms, least_ms, err);
    /* Each class's cost was rounded up by less than 1, so n_classes more are
     * allowed. */
    double budget = fmin((round_off(limit_ms) - least_ms) * PS_PER_MS, MOST_PS);
    status = solve_classes(p, true, (int64_t)budget + p->n_classes, out->sizes, &solution, err);
    if (status == GAC_OK)
        status = gac_problem_price_answer(p, out, err);
    if (status != GAC_OK)
        return status;
    double bound = (double)p->base_bytes + solution.bound;
    if (!p->joint && out->ms > round_off(limit_ms)) {
        status = gac_problem_least_ms(p, INT64_MAX / 4, out, err);
        if (status == GAC_OK && out->ms > round_off(limit_ms))
            status = unreached(limit_ms, out->ms, err);
        if (status != GAC_OK)
            return status;
    }
    if (!p->joint || !solution.optimal) {
        improve(p, INFINITY, round_off(limit_ms), out);
        status = gac_problem_price_answer(p, out, err);
    }
    out->proved = p->joint ? solution.optimal : out->bytes <= bound;
    out->bound = out->proved ? out->bytes : fmin(bound, out->bytes);
    return status;
}

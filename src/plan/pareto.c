#include "plan/solver_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STATES ((int64_t)1 << 17)
#define DEFAULT_BUDGETS 64

/* Turns states into points, in the caller's units of cost and value. */
static gac_status list_points(const gac_mck *mck, const gac_mck_list *list, gac_front *out,
                              gac_error *err)
{
    out->points = reallocarray(NULL, list->n_states, sizeof *out->points);
    if (out->points == NULL)
        return gac_error_no_memory(err);
    for (size_t k = 0; k < list->n_states; k++)
        out->points[k] = (gac_front_point){ mck->least_cost + list->states[k].cost * mck->cost_unit,
                                            gac_mck_real(mck, list->states[k].value) };
    out->n_points = (int64_t)list->n_states;
    out->complete = true;
    return GAC_OK;
}

/* Merges one class after another, without bounds. GAC_MCK_FULL if the front has
 * more points than allowed. */
static gac_mck_outcome merge_all(gac_mck_search *search, gac_mck_list *list, gac_mck_list *spare)
{
    const gac_mck *mck = search->mck;
    /* With a capacity of -1 and free ways down, no state is dropped for its
     * bound. */
    gac_mck_rule rule = { { 0, 1 }, { 0, 1 }, true, 0, INT64_MAX / 2 };
    if (!gac_mck_list_reserve(list, 1))
        return GAC_MCK_NO_MEMORY;
    list->states[0] = (gac_mck_state){ 0, 0, -1 };
    list->n_states = 1;
    for (int32_t i = 0; i < mck->n_classes; i++) {
        gac_mck_moves *m = &search->moves;
        m->class_index = i;
        m->n_moves = 0;
        for (int64_t j = mck->first[i]; j < mck->first[i + 1]; j++) {
            m->cost[m->n_moves] = mck->items[j].cost;
            m->value[m->n_moves] = mck->items[j].value;
            m->pick[m->n_moves++] = (int32_t)(j - mck->first[i]);
        }
        gac_mck_outcome outcome = gac_mck_merge(search, list, &rule, spare);
        if (outcome != GAC_MCK_DONE)
            return outcome;
        gac_mck_list keep = *list;
        *list = *spare;
        *spare = keep;
        if (gac_mck_late(search))
            return GAC_MCK_TIME;
    }
    return GAC_MCK_DONE;
}

static gac_mck_outcome complete_front(const gac_mck *mck, size_t max_states, double time_limit_s,
                                      gac_mck_list *list)
{
    gac_mck unbounded = *mck;
    gac_mck_search search = { .mck = &unbounded, .limit = max_states, .no_history = true };
    gac_mck_list spare = { 0 };
    gac_mck_outcome outcome = GAC_MCK_NO_MEMORY;
    unbounded.capacity = -1;
    search.best_value = INT64_MAX / 2;
    if (time_limit_s > 0)
        search.deadline_ns = gac_now_ns() + (int64_t)(fmin(time_limit_s, 1e9) * 1e9) + 1;
    if (gac_mck_moves_init(&search.moves, mck->max_items))
        outcome = merge_all(&search, list, &spare);
    gac_mck_moves_dispose(&search.moves);
    free(spare.states);
    return outcome;
}

/* Adds the optimum at one budget, unless the previous point is as good. */
static gac_status add_optimum(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                              double time_limit_s, int32_t *picks, gac_front *out, gac_error *err)
{
    gac_solve_options options = { .time_limit_s = time_limit_s };
    gac_solution solution;
    gac_status status = gac_solve(classes, n_classes, budget, &options, picks, &solution, err);
    if (status != GAC_OK)
        return status;
    out->n_unproved += !solution.optimal;
    while (out->n_points > 0 && out->points[out->n_points - 1].cost >= solution.cost &&
           out->points[out->n_points - 1].value >= solution.value)
        out->n_points--;
    if (out->n_points == 0 || out->points[out->n_points - 1].value > solution.value)
        out->points[out->n_points++] = (gac_front_point){ solution.cost, solution.value };
    return GAC_OK;
}

static gac_status front_at_budgets(const gac_mck *mck, const gac_choice_class *classes,
                                   int32_t n_budgets, double time_limit_s, gac_front *out,
                                   gac_error *err)
{
    int64_t most = 0;
    gac_status status = GAC_OK;
    int32_t *picks = reallocarray(NULL, (size_t)mck->n_classes, sizeof *picks);
    out->points = reallocarray(NULL, (size_t)n_budgets, sizeof *out->points);
    if (picks == NULL || out->points == NULL)
        status = gac_error_no_memory(err);
    for (int32_t i = 0; i < mck->n_classes; i++)
        most += mck->items[mck->first[i + 1] - 1].cost;
    for (int32_t k = 0; k < n_budgets && status == GAC_OK; k++) {
        int64_t part = (int64_t)((gac_i128)most * k / (n_budgets - 1));
        status = add_optimum(classes, mck->n_classes, mck->least_cost + part * mck->cost_unit,
                             time_limit_s / n_budgets, picks, out, err);
    }
    free(picks);
    return status;
}

static gac_status check_options(const gac_pareto_options *options, gac_error *err)
{
    if (options->max_states < 0 || options->n_budgets < 0 || options->n_budgets == 1 ||
        !(options->time_limit_s >= 0) || !isfinite(options->time_limit_s))
        return gac_error_set(err, GAC_USAGE,
                             "a front needs limits of 0 or more and at least 2 budgets");
    return GAC_OK;
}

gac_status gac_pareto(const gac_choice_class *classes, int32_t n_classes,
                      const gac_pareto_options *options, gac_front *out, gac_error *err)
{
    gac_pareto_options use = { 0, 0, 0 };
    gac_front front = { NULL, 0, false, 0 };
    gac_mck_list list = { 0 };
    gac_mck mck;
    if (n_classes < 0 || (n_classes > 0 && classes == NULL) || out == NULL)
        return gac_error_set(err, GAC_USAGE, "a front needs classes and a place to go to");
    if (options != NULL)
        use = *options;
    gac_status status = check_options(&use, err);
    if (status == GAC_OK)
        status = gac_mck_prepare(classes, n_classes, INT64_MAX, &mck, err);
    if (status != GAC_OK)
        return status;
    size_t max_states = (size_t)(use.max_states > 0 ? use.max_states : DEFAULT_STATES);
    gac_mck_outcome outcome = complete_front(&mck, max_states, use.time_limit_s, &list);
    if (outcome == GAC_MCK_DONE)
        status = list_points(&mck, &list, &front, err);
    else if (outcome == GAC_MCK_NO_MEMORY)
        status = gac_error_no_memory(err);
    else
        status =
            front_at_budgets(&mck, classes, use.n_budgets > 0 ? use.n_budgets : DEFAULT_BUDGETS,
                             use.time_limit_s, &front, err);
    free(list.states);
    gac_mck_dispose(&mck);
    if (status != GAC_OK)
        gac_front_dispose(&front);
    else
        *out = front;
    return status;
}

void gac_front_dispose(gac_front *front)
{
    if (front == NULL)
        return;
    free(front->points);
    front->points = NULL;
    front->n_points = 0;
}

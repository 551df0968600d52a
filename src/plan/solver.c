#include "plan/solver_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STATES ((int64_t)1 << 21)
#define LEAST_STATES 8
#define MOST_STATES ((int64_t)1 << 26)

static gac_status check_options(const gac_solve_options *options, gac_error *err)
{
    if (options == NULL)
        return GAC_OK;
    if (!(options->time_limit_s >= 0) || !isfinite(options->time_limit_s))
        return gac_error_set(err, GAC_USAGE, "the time limit must be 0 or more seconds, not %g",
                             options->time_limit_s);
    if (options->max_states < 0 || options->max_states > MOST_STATES)
        return gac_error_set(err, GAC_USAGE, "the limit of states must be 0 to %lld, not %lld",
                             (long long)MOST_STATES, (long long)options->max_states);
    return GAC_OK;
}

static int64_t deadline(const gac_solve_options *options)
{
    if (options == NULL || options->time_limit_s == 0)
        return 0;
    double limit_s = fmin(options->time_limit_s, 1e9);
    return gac_now_ns() + (int64_t)(limit_s * 1e9) + 1;
}

/* Finds an item for every class. *proved is a lower bound of their sum. */
static gac_status search_picks(const gac_mck *mck, const gac_solve_options *options, int32_t *picks,
                               int64_t *value, int64_t *proved, gac_error *err)
{
    gac_mck_lp lp;
    gac_mck_search search = { .mck = mck, .deadline_ns = deadline(options), .best_pick = picks };
    gac_status status = gac_mck_relax(mck, &lp, err);
    if (status != GAC_OK)
        return status;
    int64_t max_states =
        options != NULL && options->max_states > 0 ? options->max_states : DEFAULT_STATES;
    int32_t max_moves = mck->max_items > mck->n_classes ? mck->max_items : mck->n_classes + 1;
    search.lp = &lp;
    search.max_states = (size_t)(max_states > LEAST_STATES ? max_states : LEAST_STATES);
    if (!gac_mck_moves_init(&search.moves, max_moves) || gac_mck_run(&search) == GAC_MCK_NO_MEMORY)
        status = gac_error_no_memory(err);
    *value = search.best_value;
    *proved = search.bound;
    gac_mck_moves_dispose(&search.moves);
    free(search.nodes);
    free(search.keys);
    gac_mck_lp_dispose(&lp);
    return status;
}

/* Sums the caller's values and costs of the picks. */
static void add_up(const gac_choice_class *classes, int32_t n_classes, const int32_t *picks,
                   gac_solution *out)
{
    double sum = 0, rest = 0;
    out->cost = 0;
    for (int32_t i = 0; i < n_classes; i++) {
        const gac_choice *choice = &classes[i].choices[picks[i]];
        double next = sum + choice->value;
        rest += fabs(sum) >= fabs(choice->value) ? (sum - next) + choice->value
                                                 : (choice->value - next) + sum;
        sum = next;
        out->cost += choice->cost;
    }
    out->value = sum + rest;
}

/* Turns a bound on the grid into one on the caller's values. It subtracts the
 * possible rounding of the grid and of sums. */
static double real_bound(const gac_mck *mck, int64_t bound, double value)
{
    double real = gac_mck_real(mck, bound);
    double steps = mck->exact ? 0 : ldexp(2.0 * mck->n_classes + 2, -mck->shift);
    double slack = steps + 4e-16 * (fabs(real) + fabs(mck->least_value));
    return fmin(real - slack, value);
}

gac_status gac_solve(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                     const gac_solve_options *options, int32_t *picks, gac_solution *out,
                     gac_error *err)
{
    gac_mck mck;
    int64_t value = 0, proved = 0;
    if (n_classes < 0 || (n_classes > 0 && (classes == NULL || picks == NULL)) || out == NULL)
        return gac_error_set(err, GAC_USAGE, "the solver needs classes and a place for its picks");
    gac_status status = check_options(options, err);
    if (status == GAC_OK)
        status = gac_mck_prepare(classes, n_classes, budget, &mck, err);
    if (status != GAC_OK)
        return status;
    if (mck.roomy) /* every class can have its lowest value */
        for (int32_t i = 0; i < n_classes; i++)
            picks[i] = (int32_t)(mck.first[i + 1] - mck.first[i]) - 1;
    else
        status = search_picks(&mck, options, picks, &value, &proved, err);
    if (status == GAC_OK) {
        for (int32_t i = 0; i < n_classes; i++)
            picks[i] = mck.items[mck.first[i] + picks[i]].index;
        add_up(classes, n_classes, picks, out);
        out->optimal = proved >= value;
        out->bound = out->optimal ? out->value : real_bound(&mck, proved, out->value);
    }
    gac_mck_dispose(&mck);
    return status;
}

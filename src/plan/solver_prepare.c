#include "plan/solver_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUE 1e280 /* sums stay within the range of a double */
#define MAX_COST_SUM ((int64_t)1 << 61)
#define VALUE_SUM_BITS 61

typedef struct raw_item {
    int64_t cost;
    double value;
    int32_t index;
} raw_item;

int64_t gac_gcd_i64(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

uint64_t gac_mck_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int compare_raw(const void *left, const void *right)
{
    const raw_item *a = left, *b = right;
    if (a->cost != b->cost)
        return a->cost < b->cost ? -1 : 1;
    if (a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static gac_status check_class(const gac_choice_class *class, int32_t class_index, int64_t *least,
                              gac_error *err)
{
    if (class->n_choices < 1 || class->choices == NULL)
        return gac_error_set(err, GAC_USAGE, "class %d has no choices", class_index);
    *least = INT64_MAX;
    for (int32_t j = 0; j < class->n_choices; j++) {
        const gac_choice *choice = &class->choices[j];
        if (choice->cost < 0)
            return gac_error_set(err, GAC_USAGE, "choice %d of class %d has the negative cost %lld",
                                 j, class_index, (long long)choice->cost);
        if (!(fabs(choice->value) <= MAX_VALUE))
            return gac_error_set(err, GAC_USAGE,
                                 "choice %d of class %d has the value %g, beyond %g", j,
                                 class_index, choice->value, MAX_VALUE);
        if (choice->cost < *least)
            *least = choice->cost;
    }
    return GAC_OK;
}

/* Checks all classes, sums their least costs and counts their choices. */
static gac_status check_classes(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                                int64_t *least_cost, int64_t *n_choices, gac_error *err)
{
    bool fits = true;
    *least_cost = 0;
    *n_choices = 0;
    for (int32_t i = 0; i < n_classes; i++) {
        int64_t least = 0;
        gac_status status = check_class(&classes[i], i, &least, err);
        if (status != GAC_OK)
            return status;
        fits = fits && gac_add_i64(*least_cost, least, least_cost);
        *n_choices += classes[i].n_choices;
    }
    if (!fits)
        return gac_error_set(err, GAC_CHECK,
                             "no choice fits the budget %lld: the least possible cost is more "
                             "than %lld",
                             (long long)budget, (long long)INT64_MAX);
    if (*least_cost > budget)
        return gac_error_set(err, GAC_CHECK,
                             "no choice fits the budget %lld: the least possible cost is %lld",
                             (long long)budget, (long long)*least_cost);
    return GAC_OK;
}

/* Copies the choices that fit the capacity, sorted and without dominated ones. */
static int64_t read_class(const gac_choice_class *class, int64_t capacity, raw_item *raw)
{
    int64_t n = 0, n_kept = 0, least = INT64_MAX;
    bool sorted = true;
    for (int32_t j = 0; j < class->n_choices; j++)
        if (class->choices[j].cost < least)
            least = class->choices[j].cost;
    for (int32_t j = 0; j < class->n_choices; j++) {
        int64_t cost = class->choices[j].cost - least;
        if (cost > capacity)
            continue;
        raw[n] = (raw_item){ cost, class->choices[j].value, j };
        sorted = sorted && (n == 0 || compare_raw(&raw[n - 1], &raw[n]) < 0);
        n++;
    }
    if (!sorted)
        qsort(raw, (size_t)n, sizeof *raw, compare_raw);
    for (int64_t j = 0; j < n; j++)
        if (n_kept == 0 || raw[j].value < raw[n_kept - 1].value)
            raw[n_kept++] = raw[j];
    return n_kept;
}

/* Returns value - least in steps of the grid. It is within one step of the true
 * difference, and exact if both are multiples of the grid. */
static int64_t to_grid(double value, double least, int shift, bool *exact)
{
    double high = value - least;
    double part = high - value;
    double low = (value - (high - part)) - (least + part); /* value - least = high + low */
    high = ldexp(high, shift);
    low = ldexp(low, shift);
    *exact = *exact && high == rint(high) && low == rint(low);
    return llrint(high) + llrint(low);
}

/* Returns the largest shift with which the sum of all differences stays below
 * 2^61. */
static int choose_shift(const gac_mck *mck, const raw_item *raw)
{
    double sum = 0;
    int exponent;
    for (int32_t i = 0; i < mck->n_classes; i++)
        sum += raw[mck->first[i]].value - raw[mck->first[i + 1] - 1].value;
    if (sum == 0)
        return 0;
    frexp(sum * (1 + 1e-6), &exponent); /* now sum < 2^exponent, even after rounding */
    return VALUE_SUM_BITS - exponent;
}

/* Fills items, drops items that are equal on the grid, and finds the common
 * divisors. */
static void fill_items(gac_mck *mck, const raw_item *raw)
{
    int64_t n = 0;
    double rest = 0;
    mck->shift = choose_shift(mck, raw);
    for (int32_t i = 0; i < mck->n_classes; i++) {
        int64_t begin = mck->first[i], end = mck->first[i + 1], start = n;
        double least = raw[end - 1].value;
        for (int64_t j = begin; j < end; j++) {
            int64_t value = to_grid(raw[j].value, least, mck->shift, &mck->exact);
            if (n > start && value >= mck->items[n - 1].value)
                continue;
            mck->items[n++] = (gac_mck_item){ raw[j].cost, value, raw[j].index };
        }
        /* Make the last item kept the zero of its class. It is at most one step
         * above the lowest value. */
        for (int64_t j = start, last = mck->items[n - 1].value; j < n; j++) {
            mck->items[j].value -= last;
            mck->cost_unit = gac_gcd_i64(mck->items[j].cost, mck->cost_unit);
            mck->value_unit = gac_gcd_i64(mck->items[j].value, mck->value_unit);
        }
        if (n - start > mck->max_items)
            mck->max_items = (int32_t)(n - start);
        mck->first[i] = start;
        double sum = mck->least_value + least;
        rest += fabs(mck->least_value) >= fabs(least) ? (mck->least_value - sum) + least
                                                      : (least - sum) + mck->least_value;
        mck->least_value = sum;
    }
    mck->first[mck->n_classes] = n;
    mck->least_value += rest;
}

static gac_status divide_units(gac_mck *mck, gac_error *err)
{
    int64_t most = 0;
    if (mck->cost_unit == 0)
        mck->cost_unit = 1;
    if (mck->value_unit == 0)
        mck->value_unit = 1;
    for (int64_t j = 0; j < mck->first[mck->n_classes]; j++) {
        mck->items[j].cost /= mck->cost_unit;
        mck->items[j].value /= mck->value_unit;
    }
    mck->capacity /= mck->cost_unit;
    for (int32_t i = 0; i < mck->n_classes; i++)
        if (!gac_add_i64(most, mck->items[mck->first[i + 1] - 1].cost, &most) ||
            most > MAX_COST_SUM)
            return gac_error_set(err, GAC_USAGE,
                                 "the costs of %d classes can add up to more than "
                                 "2^61 times their common divisor %lld",
                                 mck->n_classes, (long long)mck->cost_unit);
    mck->roomy = most <= mck->capacity;
    return GAC_OK;
}

gac_status gac_mck_prepare(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                           gac_mck *out, gac_error *err)
{
    gac_mck mck = { .n_classes = n_classes, .exact = true };
    int64_t n_choices, n = 0;
    raw_item *raw = NULL;
    gac_status status = check_classes(classes, n_classes, budget, &mck.least_cost, &n_choices, err);
    if (status != GAC_OK)
        return status;
    mck.capacity = budget - mck.least_cost;
    mck.first = reallocarray(NULL, (size_t)n_classes + 1, sizeof *mck.first);
    mck.items = reallocarray(NULL, (size_t)n_choices + 1, sizeof *mck.items);
    raw = reallocarray(NULL, (size_t)n_choices + 1, sizeof *raw);
    if (mck.first == NULL || mck.items == NULL || raw == NULL) {
        status = gac_error_no_memory(err);
        goto done;
    }
    for (int32_t i = 0; i < n_classes; i++) {
        mck.first[i] = n;
        n += read_class(&classes[i], mck.capacity, raw + n);
    }
    mck.first[n_classes] = n;
    fill_items(&mck, raw);
    status = divide_units(&mck, err);
done:
    free(raw);
    if (status != GAC_OK)
        gac_mck_dispose(&mck);
    else
        *out = mck;
    return status;
}

void gac_mck_dispose(gac_mck *mck)
{
    free(mck->first);
    free(mck->items);
    mck->first = NULL;
    mck->items = NULL;
}

double gac_mck_real(const gac_mck *mck, int64_t value)
{
    return mck->least_value + ldexp((double)value * (double)mck->value_unit, -mck->shift);
}

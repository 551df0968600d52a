#include "plan/solver_internal.h"

#include <stdlib.h>
#include <string.h>

/* A step from one item of a class's convex hull to the next. */
typedef struct increment {
    gac_mck_slope slope;
    int32_t class_index;
    int32_t from, to; /* items inside the class */
} increment;

int gac_slope_compare(gac_mck_slope a, gac_mck_slope b)
{
    gac_i128 left = (gac_i128)a.value * b.cost, right = (gac_i128)b.value * a.cost;
    return left < right ? -1 : left > right;
}

static gac_mck_slope slope_between(const gac_mck_item *from, const gac_mck_item *to)
{
    return (gac_mck_slope){ from->value - to->value, to->cost - from->cost };
}

/* Writes the item numbers of a class's lower convex hull, where slopes fall
 * strictly. Returns their number. */
static int32_t find_hull(const gac_mck_item *items, int32_t n_items, int32_t *hull)
{
    int32_t n = 0;
    for (int32_t j = 0; j < n_items; j++) {
        while (n >= 2 &&
               gac_slope_compare(slope_between(&items[hull[n - 1]], &items[j]),
                                 slope_between(&items[hull[n - 2]], &items[hull[n - 1]])) >= 0)
            n--;
        hull[n++] = j;
    }
    return n;
}

static int64_t list_increments(const gac_mck *mck, int32_t *hull, increment *out)
{
    int64_t n = 0;
    for (int32_t i = 0; i < mck->n_classes; i++) {
        const gac_mck_item *items = mck->items + mck->first[i];
        int32_t n_hull = find_hull(items, (int32_t)(mck->first[i + 1] - mck->first[i]), hull);
        for (int32_t k = 1; k < n_hull; k++)
            out[n++] = (increment){ slope_between(&items[hull[k - 1]], &items[hull[k]]), i,
                                    hull[k - 1], hull[k] };
    }
    return n;
}

static void swap_increments(increment *a, increment *b)
{
    increment keep = *a;
    *a = *b;
    *b = keep;
}

static gac_mck_slope median_slope(gac_mck_slope a, gac_mck_slope b, gac_mck_slope c)
{
    if (gac_slope_compare(a, b) > 0) {
        gac_mck_slope keep = a;
        a = b;
        b = keep;
    }
    if (gac_slope_compare(c, a) <= 0)
        return a;
    return gac_slope_compare(c, b) <= 0 ? c : b;
}

static void buy(gac_mck_lp *lp, const increment *step)
{
    if (step->to > lp->pick[step->class_index])
        lp->pick[step->class_index] = step->to;
    lp->cost += step->slope.cost;
    lp->value -= step->slope.value;
}

/* Buys increments in order of slope while they fit. It does not sort them, but
 * partitions them around a slope, as when selecting a median. */
static void buy_until_break(increment *steps, int64_t n_steps, int64_t capacity, gac_mck_lp *lp)
{
    int64_t begin = 0, end = n_steps;
    uint64_t random = 1;
    while (begin < end) {
        gac_mck_slope three[3];
        for (int k = 0; k < 3; k++)
            three[k] =
                steps[begin + (int64_t)(gac_mck_random(&random) % (uint64_t)(end - begin))].slope;
        gac_mck_slope pivot = median_slope(three[0], three[1], three[2]);
        int64_t steep = begin, at = begin, flat = end, sum = 0;
        while (at < flat) {
            int order = gac_slope_compare(steps[at].slope, pivot);
            if (order > 0) {
                sum += steps[at].slope.cost;
                swap_increments(&steps[steep++], &steps[at++]);
            } else if (order < 0) {
                swap_increments(&steps[at], &steps[--flat]);
            } else {
                at++;
            }
        }
        if (lp->cost + sum > capacity) {
            end = steep;
            continue;
        }
        for (int64_t k = begin; k < steep; k++)
            buy(lp, &steps[k]);
        for (int64_t k = steep; k < flat; k++) {
            if (lp->cost + steps[k].slope.cost > capacity) {
                lp->slope = steps[k].slope;
                return;
            }
            buy(lp, &steps[k]);
        }
        begin = flat;
    }
}

static uint64_t hash_class(const gac_mck *mck, int32_t class_index)
{
    uint64_t hash = 14695981039346656037u;
    for (int64_t j = mck->first[class_index]; j < mck->first[class_index + 1]; j++) {
        hash = (hash ^ (uint64_t)mck->items[j].cost) * 1099511628211u;
        hash = (hash ^ (hash >> 29) ^ (uint64_t)mck->items[j].value) * 1099511628211u;
    }
    return hash;
}

static int compare_classes(const gac_mck *mck, int32_t a, int32_t b)
{
    int64_t n_a = mck->first[a + 1] - mck->first[a], n_b = mck->first[b + 1] - mck->first[b];
    if (n_a != n_b)
        return n_a < n_b ? -1 : 1;
    for (int64_t j = 0; j < n_a; j++) {
        const gac_mck_item *x = &mck->items[mck->first[a] + j];
        const gac_mck_item *y = &mck->items[mck->first[b] + j];
        if (x->cost != y->cost)
            return x->cost < y->cost ? -1 : 1;
        if (x->value != y->value)
            return x->value < y->value ? -1 : 1;
    }
    return 0;
}

typedef struct member {
    uint64_t hash;
    int32_t class_index;
    int32_t pick;
    const gac_mck *mck;
} member;

/* Sorts equal classes next to each other, those with the lower pick first. */
static int compare_members(const void *left, const void *right)
{
    const member *a = left, *b = right;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    int order = compare_classes(a->mck, a->class_index, b->class_index);
    if (order != 0)
        return order;
    if (a->pick != b->pick)
        return a->pick < b->pick ? -1 : 1;
    return a->class_index < b->class_index ? -1 : a->class_index > b->class_index;
}

/* Updates a unit's slopes with those on both sides of a class's pick. */
static void find_slopes(const gac_mck *mck, const gac_mck_lp *lp, int32_t class_index,
                        int32_t *hull, gac_mck_unit *unit)
{
    const gac_mck_item *items = mck->items + mck->first[class_index];
    int32_t n_items = (int32_t)(mck->first[class_index + 1] - mck->first[class_index]);
    int32_t n_hull = find_hull(items, n_items, hull), at = 0;
    while (hull[at] < lp->pick[class_index])
        at++;
    if (at + 1 < n_hull) {
        gac_mck_slope up = slope_between(&items[hull[at]], &items[hull[at + 1]]);
        if (!unit->has_up || gac_slope_compare(up, unit->up) > 0)
            unit->up = up;
        unit->has_up = true;
    }
    if (at > 0) {
        gac_mck_slope down = slope_between(&items[hull[at - 1]], &items[hull[at]]);
        if (!unit->has_down || gac_slope_compare(down, unit->down) < 0)
            unit->down = down;
        unit->has_down = true;
    }
}

/* Finds the items on the line of the break's slope through the pick of one
 * class. Moving along this line loses nothing. */
static void find_line(const gac_mck *mck, const gac_mck_lp *lp, int32_t class_index,
                      gac_mck_unit *unit)
{
    const gac_mck_item *items = mck->items + mck->first[class_index];
    const gac_mck_item *base = &items[lp->pick[class_index]];
    int32_t n_items = (int32_t)(mck->first[class_index + 1] - mck->first[class_index]);
    for (int32_t j = 0; j < n_items; j++) {
        gac_i128 loss = (gac_i128)(items[j].value - base->value) * lp->slope.cost +
                        (gac_i128)(items[j].cost - base->cost) * lp->slope.value;
        if (loss != 0)
            continue;
        if (unit->n_line++ == 0)
            unit->line_low = j;
        unit->line_high = j;
    }
}

/* Fills a unit. It orders the classes so that those with the higher pick are
 * spread evenly, because the search's range of costs relies on that
 * (set_window). */
static void fill_unit(const gac_mck *mck, gac_mck_lp *lp, const member *group, int32_t *hull,
                      gac_mck_unit *unit)
{
    int64_t n = unit->n_members, n_low = 0, low = 0, high;
    while (n_low < n && group[n_low].pick == group[0].pick)
        n_low++;
    high = n_low;
    unit->low_pick = group[0].pick;
    for (int64_t k = 0; k < n; k++) {
        bool take_high = (k + 1) * (n - n_low) / n > k * (n - n_low) / n;
        lp->members[unit->first + k] = group[take_high ? high++ : low++].class_index;
    }
    find_line(mck, lp, group[0].class_index, unit);
    find_slopes(mck, lp, group[0].class_index, hull, unit);
    find_slopes(mck, lp, group[n - 1].class_index, hull, unit);
}

static bool group_classes(const gac_mck *mck, gac_mck_lp *lp, int32_t *hull)
{
    int32_t n = mck->n_classes;
    member *members = reallocarray(NULL, (uint32_t)n, sizeof *members);
    if (members == NULL)
        return false;
    for (int32_t i = 0; i < n; i++)
        members[i] = (member){ hash_class(mck, i), i, lp->pick[i], mck };
    qsort(members, (size_t)n, sizeof *members, compare_members);
    for (int32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && members[end].hash == members[i].hash; end++)
            if (compare_classes(mck, members[i].class_index, members[end].class_index) != 0)
                break;
        gac_mck_unit *unit = &lp->units[lp->n_units++];
        *unit = (gac_mck_unit){ .first = i, .n_members = end - i };
        fill_unit(mck, lp, members + i, hull, unit);
    }
    free(members);
    return true;
}

typedef struct ranked {
    gac_mck_slope slope;
    bool usable;
    int32_t class_index, unit;
} ranked;

/* Sorts the flattest slope first, and units without a slope last. */
static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->usable != b->usable)
        return a->usable ? -1 : 1;
    int order = a->usable ? gac_slope_compare(a->slope, b->slope) : 0;
    return order != 0 ? order : a->class_index < b->class_index ? -1 : 1;
}

static int compare_ranked_steep(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    int order = a->usable && b->usable ? gac_slope_compare(b->slope, a->slope) : 0;
    return order != 0 ? order : compare_ranked(left, right);
}

static bool rank_units(gac_mck_lp *lp)
{
    ranked *ranks = reallocarray(NULL, (uint32_t)lp->n_units, sizeof *ranks);
    if (ranks == NULL)
        return false;
    for (int up = 0; up < 2; up++) {
        for (int32_t u = 0; u < lp->n_units; u++) {
            const gac_mck_unit *unit = &lp->units[u];
            ranks[u] = (ranked){ up ? unit->up : unit->down, up ? unit->has_up : unit->has_down,
                                 lp->members[unit->first], u };
        }
        qsort(ranks, (size_t)lp->n_units, sizeof *ranks,
              up ? compare_ranked_steep : compare_ranked);
        for (int32_t u = 0; u < lp->n_units; u++)
            (up ? lp->by_up : lp->by_down)[u] = ranks[u].unit;
    }
    free(ranks);
    return true;
}

/* Majority vote. A slope equal to the present candidate adds a vote, and any
 * other slope removes one. So a slope that more than half share remains. */
static void vote(gac_mck_slope slope, gac_mck_slope *common, int64_t *n_votes)
{
    if (slope.cost < 0)
        slope = (gac_mck_slope){ -slope.value, -slope.cost };
    if (slope.cost == 0 && slope.value == 0)
        return;
    if (slope.cost == 0 || slope.value <= 0) {
        *n_votes -= *n_votes > 0;
    } else if (*n_votes == 0) {
        *common = slope;
        *n_votes = 1;
    } else {
        *n_votes += gac_slope_compare(slope, *common) == 0 ? 1 : -1;
    }
}

/* Finds the slope that most pairs of steps share, reduced to lowest terms. If
 * each value is a multiple of the cost plus one of a few amounts, steps from
 * item to item differ by that multiple. With across, a pair has the steps at
 * the same position of two classes. Otherwise it has two successive steps of
 * one class. */
static gac_mck_slope common_slope(const gac_mck *mck, bool across)
{
    gac_mck_slope common = { 0, 1 }, last = { 0, 0 };
    int64_t n_votes = 0;
    for (int32_t i = across; i < mck->n_classes; i++)
        for (int64_t j = mck->first[i] + 1; j < mck->first[i + 1]; j++) {
            gac_mck_slope step = slope_between(&mck->items[j - 1], &mck->items[j]);
            int64_t other = j - mck->first[i] + mck->first[across ? i - 1 : i];
            if (across && other < mck->first[i])
                last = slope_between(&mck->items[other - 1], &mck->items[other]);
            vote((gac_mck_slope){ step.value - last.value, step.cost - last.cost }, &common,
                 &n_votes);
            last = step;
        }
    int64_t divisor = gac_gcd_i64(common.value, common.cost);
    return (gac_mck_slope){ common.value / divisor, common.cost / divisor };
}

/* Improves the relaxation's bound by rounding. For any slope p/q up to the
 * break's, let w = q value + p cost. The relaxation of the sum of w is q bound
 * + p capacity. If the w of each class differ by multiples of one number, as
 * with strongly correlated values, this sum can be rounded up to such a
 * multiple. Then value >= (sum of w - p capacity) / q. */
static int64_t rounded_bound(const gac_mck *mck, const gac_mck_lp *lp, gac_mck_slope common)
{
    int64_t p = common.value, q = common.cost, unit = 0, w, cost_part;
    gac_i128 offset = 0;
    if (p > 1 << 20 || q > 1 << 20 || gac_slope_compare(common, lp->slope) > 0)
        return lp->bound;
    for (int32_t i = 0; i < mck->n_classes; i++) {
        int64_t w_first = 0;
        for (int64_t j = mck->first[i]; j < mck->first[i + 1]; j++) {
            if (!gac_mul_i64(q, mck->items[j].value, &w) ||
                !gac_mul_i64(p, mck->items[j].cost, &cost_part) || !gac_add_i64(w, cost_part, &w))
                return lp->bound;
            if (j == mck->first[i])
                w_first = w;
            unit = gac_gcd_i64(w > w_first ? w - w_first : w_first - w, unit);
        }
        offset += w_first;
    }
    if (unit <= 1)
        return lp->bound;
    gac_i128 gain = (gac_i128)(mck->capacity - lp->cost) * lp->slope.value;
    gac_i128 whole = gain / lp->slope.cost * q + gain % lp->slope.cost * q / lp->slope.cost;
    gac_i128 sum = (gac_i128)q * lp->value + (gac_i128)p * mck->capacity - whole;
    gac_i128 over = (sum - offset) % unit;
    if (over != 0)
        sum += over > 0 ? unit - over : -over;
    gac_i128 bound = sum - (gac_i128)p * mck->capacity;
    bound = bound > 0 ? (bound + q - 1) / q : 0;
    return bound > lp->bound ? (int64_t)bound : lp->bound;
}

gac_status gac_mck_relax(const gac_mck *mck, gac_mck_lp *out, gac_error *err)
{
    gac_mck_lp lp = { .pick = NULL };
    size_t n = (size_t)mck->n_classes;
    gac_status status = GAC_OK;
    increment *steps = reallocarray(NULL, (size_t)mck->first[n] + 1, sizeof *steps);
    int32_t *hull = reallocarray(NULL, (size_t)mck->max_items, sizeof *hull);
    lp.pick = calloc(n, sizeof *lp.pick);
    lp.members = reallocarray(NULL, n, sizeof *lp.members);
    lp.units = reallocarray(NULL, n, sizeof *lp.units);
    lp.by_up = reallocarray(NULL, n, sizeof *lp.by_up);
    lp.by_down = reallocarray(NULL, n, sizeof *lp.by_down);
    if (steps == NULL || hull == NULL || lp.pick == NULL || lp.members == NULL ||
        lp.units == NULL || lp.by_up == NULL || lp.by_down == NULL) {
        status = gac_error_no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        lp.value += mck->items[mck->first[i]].value;
    buy_until_break(steps, list_increments(mck, hull, steps), mck->capacity, &lp);
    lp.bound =
        lp.value - (int64_t)((gac_i128)(mck->capacity - lp.cost) * lp.slope.value / lp.slope.cost);
    for (int across = 0; across < 2; across++)
        lp.bound = rounded_bound(mck, &lp, common_slope(mck, across));
    if (!group_classes(mck, &lp, hull) || !rank_units(&lp))
        status = gac_error_no_memory(err);
done:
    free(steps);
    free(hull);
    if (status != GAC_OK)
        gac_mck_lp_dispose(&lp);
    else
        *out = lp;
    return status;
}

void gac_mck_lp_dispose(gac_mck_lp *lp)
{
    free(lp->pick);
    free(lp->members);
    free(lp->units);
    free(lp->by_up);
    free(lp->by_down);
    memset(lp, 0, sizeof *lp);
}

/* From sweeps to tiers: which multiples of a size a GPU tells apart. */
#include "probe/probe_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define MAX_MULTIPLE 256
#define TIER_GAIN 1.08    /* multiples that gain this much are a tier of their own */
#define ALIGNED_LOSS 1.10 /* an aligned tier loses at most this at most anchors, */
#define WORST_LOSS 1.50   /* and at most this at every anchor */
#define TILE_MULTIPLE 64  /* from here on a tile can look like a tier */
#define NOISE_SIGMAS 4

/* The largest power of two up to MAX_MULTIPLE that divides size. */
static int64_t power_of(int64_t size)
{
    int64_t power = 1;
    while (power < MAX_MULTIPLE && size % (power * 2) == 0)
        power *= 2;
    return power;
}

static double time_of(const probe_sweep_point *point)
{
    return point->declined ? INFINITY : point->time_us;
}

/* The nearest size on one side that is a multiple of half and of nothing
 * larger; NULL when the sweep has none within reach. */
static const probe_sweep_point *neighbour(const probe_sweep *sweep, int at, int side, int64_t half)
{
    for (int i = at + side; i >= 0 && i < sweep->n_points; i += side) {
        int64_t distance = llabs(sweep->points[i].size - sweep->points[at].size);
        if (distance > 2 * half)
            return NULL;
        if (power_of(sweep->points[i].size) == half)
            return &sweep->points[i];
    }
    return NULL;
}

/* How much faster one size is than both its lesser neighbours, less the noise.
 * False when there is nothing to compare. */
static bool gain_at(const probe_sweep *sweep, int at, int64_t multiple, double *gain)
{
    const probe_sweep_point *point = &sweep->points[at];
    const probe_sweep_point *left = neighbour(sweep, at, -1, multiple / 2);
    const probe_sweep_point *right = neighbour(sweep, at, 1, multiple / 2);
    if (!left || !right || point->declined)
        return false;
    double beside = fmin(time_of(left), time_of(right));
    double noise = point->noise + fmax(left->noise, right->noise);
    *gain = isinf(beside) ? INFINITY : beside / point->time_us / (1 + NOISE_SIGMAS * noise);
    return true;
}

/* Whether multiples of a number, and of nothing larger, are better in this sweep than
 * those of its half. Most of them must gain, and there must be two at least, since one
 * may be an outlier. */
static bool is_tier_in(const probe_sweep *sweep, int64_t multiple, double *gains)
{
    int n = 0;
    for (int i = 0; i < sweep->n_points; i++)
        if (power_of(sweep->points[i].size) == multiple && gain_at(sweep, i, multiple, &gains[n]))
            n++;
    if (n < 2)
        return false;
    double middle = gac_median(gains, n);
    return middle > TIER_GAIN && gains[n / 4] > (1 + TIER_GAIN) / 2;
}

/* The nearest size of the best tier that is served, or NULL. */
static const probe_sweep_point *nearest_best(const probe_sweep *sweep, const probe_tiers *tiers,
                                             int64_t size)
{
    const probe_sweep_point *best = NULL;
    for (int i = 0; i < sweep->n_points; i++) {
        const probe_sweep_point *point = &sweep->points[i];
        if (probe_tier_of(tiers, point->size) == 0 && !point->declined &&
            (!best || llabs(point->size - size) < llabs(best->size - size)))
            best = point;
    }
    return best;
}

/* The median, over a tier's sizes, of time over that of the best size beside; 0 when the
 * tier has no sizes, infinite when most are declined. */
static double tier_penalty(const probe_sweep *sweep, const probe_tiers *tiers, int tier,
                           double *ratios)
{
    int n = 0;
    for (int i = 0; i < sweep->n_points; i++) {
        const probe_sweep_point *best = nearest_best(sweep, tiers, sweep->points[i].size);
        if (best && probe_tier_of(tiers, sweep->points[i].size) == tier)
            ratios[n++] = time_of(&sweep->points[i]) / best->time_us;
    }
    return gac_median(ratios, n);
}

static void judge_tier(const probe_sweep *sweeps, int n_sweeps, probe_tiers *out, int t,
                       double *ratios, double *penalties)
{
    probe_tier *tier = &out->tier[t];
    int n = 0;
    tier->penalty = 1;
    for (int s = 0; s < n_sweeps; s++) {
        double penalty = tier_penalty(&sweeps[s], out, t, ratios);
        if (penalty > 0)
            penalties[n++] = penalty;
        tier->served = tier->served || (penalty > 0 && !isinf(penalty));
        tier->penalty = fmax(tier->penalty, penalty);
    }
    tier->aligned = tier->served && gac_median(penalties, n) <= ALIGNED_LOSS &&
                    tier->penalty <= WORST_LOSS && (t == 0 || out->tier[t - 1].aligned);
}

static bool is_tier(const probe_sweep *sweeps, int n_sweeps, int64_t multiple, double *buffer)
{
    int n = 0;
    for (int s = 0; s < n_sweeps; s++)
        n += is_tier_in(&sweeps[s], multiple, buffer);
    return n >= (multiple >= TILE_MULTIPLE && n_sweeps > 1 ? 2 : 1);
}

gac_status probe_find_tiers(const probe_sweep *sweeps, int n_sweeps, probe_tiers *out,
                            gac_error *err)
{
    double buffer[PROBE_MAX_SWEEP], penalties[PROBE_MAX_SWEEPS];
    bool served = false;
    assert(n_sweeps <= PROBE_MAX_SWEEPS);
    *out = (probe_tiers){ 0 };
    for (int s = 0; s < n_sweeps; s++) {
        assert(sweeps[s].n_points <= PROBE_MAX_SWEEP);
        for (int i = 0; i < sweeps[s].n_points; i++)
            served = served || !sweeps[s].points[i].declined;
    }
    if (!served)
        return gac_error_set(err, GAC_CHECK, "no size of the sweep is served");
    for (int64_t multiple = MAX_MULTIPLE; multiple > 1; multiple /= 2)
        if (is_tier(sweeps, n_sweeps, multiple, buffer))
            out->tier[out->n_tiers++].multiple = multiple;
    out->tier[out->n_tiers++].multiple = 1;
    for (int t = 0; t < out->n_tiers; t++)
        judge_tier(sweeps, n_sweeps, out, t, buffer, penalties);
    return GAC_OK;
}

int probe_tier_of(const probe_tiers *tiers, int64_t size)
{
    int t = 0;
    while (t + 1 < tiers->n_tiers && size % tiers->tier[t].multiple != 0)
        t++;
    return t;
}

/* Where a size lies within a tile matters too, and a table of round sizes would have
 * the best cases only. So this moves sizes down by a few multiples, in turn. Powers of
 * two stay in the best tier, because models have them. */
int64_t probe_grid_size(const probe_tiers *tiers, int t, int64_t value, int turn)
{
    enum { TILE = 128 };
    int64_t best = tiers->tier[0].multiple, own = tiers->tier[t].multiple, rounded;
    if (!gac_round_up_i64(value, best, &rounded))
        rounded = best;
    if (t == 0 && (value & (value - 1)) == 0)
        return rounded;
    int64_t turns = best < TILE ? TILE / best : 1;
    int64_t down = best * (turn * 3 % turns);
    if (t > 0) /* an odd number of own multiples, each in turn */
        down += own * (2 * (turn % (best / own / 2 > 0 ? best / own / 2 : 1)) + 1);
    return down * 8 <= rounded ? rounded - down : probe_tier_size(tiers, t, value);
}

int64_t probe_tier_size(const probe_tiers *tiers, int t, int64_t value)
{
    int64_t best = tiers->tier[0].multiple, own = tiers->tier[t].multiple, rounded;
    if (!gac_round_up_i64(value, best, &rounded))
        rounded = best;
    if (t == 0)
        return rounded;
    /* An odd number of own multiples away from a multiple of all. */
    int64_t offset = own * (2 * (best / own / 4) + 1);
    return rounded > offset ? rounded - offset : rounded + offset;
}

int64_t probe_aligned_multiple(const probe_tiers *tiers)
{
    int64_t multiple = tiers->tier[0].multiple;
    for (int t = 1; t < tiers->n_tiers && tiers->tier[t].aligned; t++)
        multiple = tiers->tier[t].multiple;
    return multiple;
}

int probe_n_served(const probe_tiers *tiers)
{
    int n = 0;
    while (n < tiers->n_tiers && tiers->tier[n].served)
        n++;
    return n;
}

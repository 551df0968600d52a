/* Blocks are to end together. Tiles are few and large, so they are dealt by what
 * was seen on an H200 (bench/results/decode-tries-h200.txt, part 7): blocks start
 * in order, each where one of the kernel before has ended, and so the last of them
 * start late; and those that end early do so again in the next kernel. */
#include "pass_deal.h"

#include <stdbool.h>

enum {
    SUM_COST = 20,    /* steps in the time that it takes to end a group */
    LATE_COST = 60,   /* in that by which the last block starts late */
    LATE_SHARE = 18,  /* percent of the blocks, the later the further back */
    SLOW_PERCENT = 5, /* fewer steps for the last block than for the first */
    PARTS = 64        /* of the time, by which more is tried; finer is no faster */
};

int64_t gac_deal_time(const gac_deal *deal, int64_t n_steps, int i)
{
    int64_t n = deal->n_blocks, n_late = n * LATE_SHARE / 100, late = i - (n - n_late);
    int64_t slow = n_steps * SLOW_PERCENT * i / (100 * n);
    return n_steps - slow - (late > 0 ? LATE_COST * late / n_late : 0);
}

/* What it costs to begin and end a group of a segment, beside its tiles. */
static int64_t group_cost(const gac_deal *deal, const gac_deal_segment *segment)
{
    return segment->cost * deal->x_tiles + SUM_COST * deal->n_sums;
}

/* How many tiles can be had for so many steps. */
static int64_t count_tiles(const gac_deal *deal, const gac_deal_segment *segment, int64_t n_steps)
{
    if (n_steps <= 0)
        return 0;
    int64_t start = group_cost(deal, segment), whole = start + segment->cost * deal->group;
    int64_t n_whole = n_steps / whole, rest = n_steps - n_whole * whole - start;
    return n_whole * deal->group + (rest > 0 ? rest / segment->cost : 0);
}

/* Deals as many as there is time for; gives whether those are all. */
static bool deal_some(const gac_deal *deal, int64_t n_steps, int *cuts)
{
    int64_t tile = 0, left = deal->segments[0].n_tiles; /* of the segment */
    int s = 0;
    for (int i = 0; i < deal->n_blocks; i++) {
        int64_t time = gac_deal_time(deal, n_steps, i);
        cuts[i] = (int)tile;
        while (s < deal->n_segments) {
            const gac_deal_segment *segment = &deal->segments[s];
            int64_t n = count_tiles(deal, segment, time);
            if (n < left) {
                tile += n;
                left -= n;
                break;
            }
            int64_t n_groups = (left + deal->group - 1) / deal->group;
            time -= segment->cost * left + group_cost(deal, segment) * n_groups;
            tile += left;
            left = ++s < deal->n_segments ? deal->segments[s].n_tiles : 0;
        }
    }
    cuts[deal->n_blocks] = (int)tile;
    return s == deal->n_segments;
}

/* A time that is not more than enough, with *sum what all tiles cost at least. */
static int64_t least_time(const gac_deal *deal, int64_t *sum)
{
    int64_t tiles = 0, groups = 0, most = 0;
    for (int s = 0; s < deal->n_segments; s++) {
        const gac_deal_segment *segment = &deal->segments[s];
        int64_t group = group_cost(deal, segment);
        tiles += segment->n_tiles * segment->cost;
        groups += segment->n_tiles * group / deal->group;
        most = segment->cost + group > most ? segment->cost + group : most;
    }
    *sum = tiles + groups;
    return most > tiles / deal->n_blocks ? most : tiles / deal->n_blocks;
}

/* The time so many parts further. */
static int64_t later(int64_t n_steps, int n)
{
    for (int i = 0; i < n; i++)
        n_steps += n_steps / PARTS + 1;
    return n_steps;
}

/* A launch waits for it, so that few times are tried: the first that is enough is
 * found by doubling, and then halving, what is added. */
int64_t gac_deal_tiles(const gac_deal *deal, int *cuts)
{
    int64_t sum, low = least_time(deal, &sum); /* not enough, and n parts further it is */
    int n = 1;
    if (low >= sum / deal->n_blocks && deal_some(deal, low, cuts))
        return low;
    while (later(low, 1) < sum / deal->n_blocks)
        low = later(low, 1);
    for (; !deal_some(deal, later(low, n), cuts); n *= 2)
        low = later(low, n);
    for (n /= 2; n > 0; n /= 2)
        if (!deal_some(deal, later(low, n), cuts))
            low = later(low, n);
    deal_some(deal, later(low, 1), cuts);
    return later(low, 1);
}

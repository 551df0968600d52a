/* Blocks are to end together. Tiles are few and large, so they are dealt by what
 * was seen on an H200 (bench/results/decode-tries-h200.txt, part 7): blocks start
 * in order, each where one of the kernel before has ended, and so the last of them
 * start late; and those that end early do so again in the next kernel. */
#include "pass_deal.h"

enum {
    SUM_COST = 20,    /* steps in the time that it takes to end a group */
    LATE_COST = 60,   /* in that by which the last block starts late */
    LATE_SHARE = 18,  /* percent of the blocks, the later the further back */
    SLOW_PERCENT = 5, /* fewer steps for the last block than for the first */
    PARTS = 64        /* of the time, by which more is tried */
};

int64_t gac_deal_time(const gac_deal *deal, int64_t n_steps, int i)
{
    int64_t n = deal->n_blocks, n_late = n * LATE_SHARE / 100, late = i - (n - n_late);
    int64_t slow = n_steps * SLOW_PERCENT * i / (100 * n);
    return n_steps - slow - (late > 0 ? LATE_COST * late / n_late : 0);
}

int64_t gac_deal_cost(const gac_deal *deal, const gac_deal_segment *segment, int64_t n)
{
    int64_t n_groups = (n + deal->group - 1) / deal->group;
    return segment->cost * n + n_groups * (segment->cost * deal->x_tiles + SUM_COST * deal->n_sums);
}

/* How many tiles can be had for so many steps. */
static int64_t count_tiles(const gac_deal *deal, const gac_deal_segment *segment, int64_t n_steps)
{
    if (n_steps <= 0)
        return 0;
    int64_t whole = gac_deal_cost(deal, segment, deal->group), n_whole = n_steps / whole;
    int64_t start = gac_deal_cost(deal, segment, 1) - segment->cost;
    int64_t rest = (n_steps - n_whole * whole - start) / segment->cost;
    return n_whole * deal->group + (rest > 0 ? rest : 0);
}

/* Deals as many as there is time for; gives whether those are all. */
static int deal_some(const gac_deal *deal, int64_t n_steps, int *cuts)
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
            time -= gac_deal_cost(deal, segment, left);
            tile += left;
            left = ++s < deal->n_segments ? deal->segments[s].n_tiles : 0;
        }
    }
    cuts[deal->n_blocks] = (int)tile;
    return s == deal->n_segments;
}

int64_t gac_deal_tiles(const gac_deal *deal, int *cuts)
{
    int64_t sum = 0, least = 0;
    for (int s = 0; s < deal->n_segments; s++) {
        int64_t one = gac_deal_cost(deal, &deal->segments[s], 1);
        sum += deal->segments[s].n_tiles * deal->segments[s].cost;
        least = one > least ? one : least;
    }
    if (least < sum / deal->n_blocks)
        least = sum / deal->n_blocks;
    while (!deal_some(deal, least, cuts))
        least += least / PARTS + 1;
    return least;
}

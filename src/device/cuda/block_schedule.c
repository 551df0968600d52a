/* Assigns tiles to blocks so that all blocks end together. There are few tiles per block,
 * so an equal number for each is not good enough. The constants come from measurements on
 * an H200 (bench/results/decode-tries-h200.txt, part 7). Blocks start in order of their
 * index, each when a block of the previous kernel ends. So the last blocks start late.
 * Blocks that end early start early again in the next kernel. */
#include "block_schedule.h"

#include <stdbool.h>

enum {
    SUM_COST = 20,    /* steps that it takes to finish a group */
    LATE_COST = 60,   /* steps by which the last block starts late */
    LATE_SHARE = 18,  /* percent of the blocks that start late; the delay grows with the index */
    SLOW_PERCENT = 5, /* percent fewer steps for the last block than for the first */
    PARTS = 64        /* the search raises the time by 1/PARTS; finer is no faster */
};

int64_t gac_block_schedule_time(const gac_block_schedule *schedule, int64_t n_steps, int i)
{
    int64_t n = schedule->n_blocks, n_late = n * LATE_SHARE / 100, late = i - (n - n_late);
    int64_t slow = n_steps * SLOW_PERCENT * i / (100 * n);
    return n_steps - slow - (late > 0 ? LATE_COST * late / n_late : 0);
}

/* Returns the steps to begin and end a group, without its tiles. */
static int64_t group_cost(const gac_block_schedule *schedule,
                          const gac_block_schedule_segment *segment)
{
    return segment->cost * schedule->x_tiles + SUM_COST * schedule->n_sums;
}

/* Returns how many tiles of a segment fit into n_steps. */
static int64_t count_tiles(const gac_block_schedule *schedule,
                           const gac_block_schedule_segment *segment, int64_t n_steps)
{
    if (n_steps <= 0)
        return 0;
    int64_t start = group_cost(schedule, segment), whole = start + segment->cost * schedule->group;
    int64_t n_whole = n_steps / whole, rest = n_steps - n_whole * whole - start;
    return n_whole * schedule->group + (rest > 0 ? rest / segment->cost : 0);
}

/* Assigns as many tiles as fit if the first block has n_steps. Returns whether that is
 * all of them. */
static bool try_assign(const gac_block_schedule *schedule, int64_t n_steps, int *cuts)
{
    int64_t tile = 0, left = schedule->segments[0].n_tiles; /* left in the segment */
    int s = 0;
    for (int i = 0; i < schedule->n_blocks; i++) {
        int64_t time = gac_block_schedule_time(schedule, n_steps, i);
        cuts[i] = (int)tile;
        while (s < schedule->n_segments) {
            const gac_block_schedule_segment *segment = &schedule->segments[s];
            int64_t n = count_tiles(schedule, segment, time);
            if (n < left) {
                tile += n;
                left -= n;
                break;
            }
            int64_t n_groups = (left + schedule->group - 1) / schedule->group;
            time -= segment->cost * left + group_cost(schedule, segment) * n_groups;
            tile += left;
            left = ++s < schedule->n_segments ? schedule->segments[s].n_tiles : 0;
        }
    }
    cuts[schedule->n_blocks] = (int)tile;
    return s == schedule->n_segments;
}

/* Returns a time that is at most the time needed. *sum is a lower bound on the cost of
 * all tiles. */
static int64_t lower_bound(const gac_block_schedule *schedule, int64_t *sum)
{
    int64_t tiles = 0, groups = 0, most = 0;
    for (int s = 0; s < schedule->n_segments; s++) {
        const gac_block_schedule_segment *segment = &schedule->segments[s];
        int64_t group = group_cost(schedule, segment);
        tiles += segment->n_tiles * segment->cost;
        groups += segment->n_tiles * group / schedule->group;
        most = segment->cost + group > most ? segment->cost + group : most;
    }
    *sum = tiles + groups;
    return most > tiles / schedule->n_blocks ? most : tiles / schedule->n_blocks;
}

/* Returns n_steps raised n times by a PARTS-th. */
static int64_t time_after(int64_t n_steps, int n)
{
    for (int i = 0; i < n; i++)
        n_steps += n_steps / PARTS + 1;
    return n_steps;
}

/* Every launch waits for this function, so it tries few times. It doubles the increment
 * until the time suffices, then bisects. */
int64_t gac_block_schedule_assign(const gac_block_schedule *schedule, int *cuts)
{
    int64_t sum, low = lower_bound(schedule, &sum); /* too short, but raised n times enough */
    int n = 1;
    if (low >= sum / schedule->n_blocks && try_assign(schedule, low, cuts))
        return low;
    while (time_after(low, 1) < sum / schedule->n_blocks)
        low = time_after(low, 1);
    for (; !try_assign(schedule, time_after(low, n), cuts); n *= 2)
        low = time_after(low, n);
    for (n /= 2; n > 0; n /= 2)
        if (!try_assign(schedule, time_after(low, n), cuts))
            low = time_after(low, n);
    try_assign(schedule, time_after(low, 1), cuts);
    return time_after(low, 1);
}

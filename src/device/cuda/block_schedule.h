/* block_schedule: which block multiplies which tiles, where there are few to each. */
#ifndef GAC_DEVICE_CUDA_BLOCK_SCHEDULE_H
#define GAC_DEVICE_CUDA_BLOCK_SCHEDULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tiles that cost the same, in steps. */
typedef struct gac_block_schedule_segment {
    int64_t n_tiles, cost;
} gac_block_schedule_segment;

typedef struct gac_block_schedule {
    const gac_block_schedule_segment *segments;
    int n_segments;
    int n_blocks;
    int group;   /* tiles of a segment that a block multiplies together */
    int x_tiles; /* of x, which cost a group as much as its own */
    int n_sums;  /* that end a group */
} gac_block_schedule;

/* cuts[i] gets the first tile of block i, cuts[n_blocks] the one after the last.
 * Gives the steps that the first block has time for. */
int64_t gac_block_schedule_assign(const gac_block_schedule *schedule, int *cuts);

/* Of so many steps, those that block i has time for. */
int64_t gac_block_schedule_time(const gac_block_schedule *schedule, int64_t n_steps, int i);

#ifdef __cplusplus
}
#endif
#endif

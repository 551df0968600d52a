/* block_schedule: decides which block multiplies which tiles, when every block has only a
 * few. */
#ifndef GAC_DEVICE_CUDA_BLOCK_SCHEDULE_H
#define GAC_DEVICE_CUDA_BLOCK_SCHEDULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n_tiles tiles that take cost steps each. */
typedef struct gac_block_schedule_segment {
    int64_t n_tiles, cost;
} gac_block_schedule_segment;

typedef struct gac_block_schedule {
    const gac_block_schedule_segment *segments;
    int n_segments;
    int n_blocks;
    int group;   /* tiles that a block multiplies together */
    int x_tiles; /* tiles of x per group; each costs as much as a tile of weights */
    int n_sums;  /* reductions at the end of a group */
} gac_block_schedule;

/* Sets cuts[i] to the first tile of block i and cuts[n_blocks] to the number of tiles.
 * Returns the number of steps of the first block. */
int64_t gac_block_schedule_assign(const gac_block_schedule *schedule, int *cuts);

/* Returns how many steps block i has if the first block has n_steps. */
int64_t gac_block_schedule_time(const gac_block_schedule *schedule, int64_t n_steps, int i);

#ifdef __cplusplus
}
#endif
#endif

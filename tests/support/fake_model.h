/* The truth about the GPU that fake_backend.c pretends to be: how long each
 * task takes and which kernel serves it. Tests hold against it what a probe
 * found out. */
#ifndef GAC_TESTS_FAKE_MODEL_H
#define GAC_TESTS_FAKE_MODEL_H

#include <gac/device.h>

#define FAKE_UNITS 132
#define FAKE_TILE_M 128
#define FAKE_TILE_N 256
#define FAKE_HEAD_STEP 64 /* the library's attention kernels come in these sizes */
#define FAKE_MAX_HEAD 256
#define FAKE_LENGTH_TILE 128
#define FAKE_SETS 5        /* of operands: a replay goes over all of them alike */
#define FAKE_LAUNCH_US 2.0 /* added to each call that is not replayed */

/* Time of one call without noise, or a negative number for a task that this GPU
 * declines. */
double fake_time_us(const gac_task_spec *spec);

/* Name of the kernel that does the work; NULL for a declined task. */
const char *fake_kernel(const gac_task_spec *spec);

/* The multiple of a GEMM's n or k that the best kernel asks for: 16 bytes. */
int64_t fake_multiple(gac_dtype dtype);

#endif

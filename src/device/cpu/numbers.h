/* Numbers as devices store them: 16 and 8 bit floats to and from float, by
 * round to nearest, ties to even, and random numbers that depend on a seed and
 * an index alone. */
#ifndef GAC_DEVICE_CPU_NUMBERS_H
#define GAC_DEVICE_CPU_NUMBERS_H

#include <gac/checkpoint.h>

#include "base/floats.h"

/* Exact. E4M3: no infinities, 0x7F and 0xFF are NaN. */
float gac_f8_to_float(uint8_t code);

/* Rounded once, from FP64. What is too large becomes infinite, in E4M3 NaN (as
 * in PyTorch; nothing is clipped). A NaN becomes the quiet one of its sign. */
uint16_t gac_f16_from_double(double value);
uint16_t gac_bf16_from_double(double value);
uint8_t gac_f8_from_double(double value);

/* Element index of an array of dtype. Floats other than F32, F16, BF16 and
 * E4M3, which no task multiplies, are read as unsigned integers of their width;
 * stored integers wrap. */
double gac_number_load(const void *data, gac_dtype dtype, int64_t index);
void gac_number_store(void *data, gac_dtype dtype, int64_t index, double value);

/* Stored bit by bit the same, whatever order they are asked in. */
uint64_t gac_random_bits(uint64_t seed, uint64_t index);
double gac_random_normal(uint64_t seed, uint64_t index); /* mean 0, variance 1, within 3.5 */

#endif

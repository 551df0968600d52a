/* The 16-bit floats. Conversion to float is exact. Conversion back rounds to
 * nearest, ties to even. */
#ifndef GAC_BASE_FLOATS_H
#define GAC_BASE_FLOATS_H

#include <gac/base.h>

float gac_f16_to_float(uint16_t code);
float gac_bf16_to_float(uint16_t code);
/* Many at once, at any address. */
void gac_floats_from_f16(const void *codes, int64_t n, float *out);
void gac_floats_from_bf16(const void *codes, int64_t n, float *out);

/* Too large values become infinity. A NaN becomes the quiet NaN of its sign. */
uint16_t gac_f16_from_float(float value);
uint16_t gac_bf16_from_float(float value);

#endif

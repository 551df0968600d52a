/* The 16-bit floats. Conversion to float is exact. Conversion back rounds to
 * nearest, ties to even. */
#ifndef GAC_BASE_FLOATS_H
#define GAC_BASE_FLOATS_H

#include <gac/base.h>

float gac_f16_to_float(uint16_t code);
float gac_bf16_to_float(uint16_t code);

/* Too large values become infinity. A NaN becomes the quiet NaN of its sign. */
uint16_t gac_f16_from_float(float value);
uint16_t gac_bf16_from_float(float value);

#endif

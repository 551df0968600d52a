/* Floats of 16 and 8 bits to and from wider ones, rounded to nearest, ties to
 * even. */
#ifndef GAC_OP_NUMBERS_H
#define GAC_OP_NUMBERS_H

#include <gac/op.h>

#include "base/floats.h"

/* Exact. E4M3: no infinities, 0x7F and 0xFF are NaN. */
float gac_f8_to_float(uint8_t code);

/* Rounded once, from FP64. What is too large becomes infinite, in E4M3 NaN (as
 * in PyTorch; nothing is clipped). A NaN becomes the quiet one of its sign. */
uint16_t gac_f16_from_double(double value);
uint16_t gac_bf16_from_double(double value);
uint8_t gac_f8_from_double(double value);

#endif

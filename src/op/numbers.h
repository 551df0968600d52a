/* Converts floats of 16 and 8 bits to and from wider ones. Rounding is to
 * nearest, ties to even. */
#ifndef GAC_OP_NUMBERS_H
#define GAC_OP_NUMBERS_H

#include <gac/op.h>

#include "base/floats.h"

/* This is exact. E4M3 has no infinities; 0x7F and 0xFF are NaN. */
float gac_f8_to_float(uint8_t code);

/* These round once, from FP64. Values that are too large become infinity, or
 * NaN in E4M3, as in PyTorch. Nothing is clipped. A NaN becomes the quiet NaN
 * of its sign. */
uint16_t gac_f16_from_double(double value);
uint16_t gac_bf16_from_double(double value);
uint8_t gac_f8_from_double(double value);

#endif

/* Multiplying stored elements, rounded to nearest as the dtype can. */
#include <string.h>

#include "repair/repair_internal.h"

static float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f)
        return float_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent)
        return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float value = (float)fraction * 0x1p-24f; /* subnormal, or 0 */
    return sign ? -value : value;
}

static uint16_t to_half(float value)
{
    uint32_t bits = bits_of_float(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (size >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) {
        /* Below 2^-14: count in units of 2^-24. Adding and taking away half
         * of 2^24 makes the hardware round to a whole number, ties to even. */
        float units = float_from_bits(size) * 0x1p24f;
        volatile float rounded = units + 0x1p23f;
        return (uint16_t)(sign | (uint16_t)(rounded - 0x1p23f));
    }
    size += 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | ((size - 0x38000000) >> 13));
}

static uint16_t to_bfloat(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

bool gac_scale_elements(void *data, uint64_t n, gac_dtype dtype, double factor)
{
    uint16_t *half = data;
    float *single = data;
    double *wide = data;
    switch (dtype) {
    case GAC_DTYPE_F16:
        for (uint64_t i = 0; i < n; i++)
            half[i] = to_half((float)(from_half(half[i]) * factor));
        return true;
    case GAC_DTYPE_BF16:
        for (uint64_t i = 0; i < n; i++)
            half[i] = to_bfloat((float)(float_from_bits((uint32_t)half[i] << 16) * factor));
        return true;
    case GAC_DTYPE_F32:
        for (uint64_t i = 0; i < n; i++)
            single[i] = (float)(single[i] * factor);
        return true;
    case GAC_DTYPE_F64:
        for (uint64_t i = 0; i < n; i++)
            wide[i] *= factor;
        return true;
    default:
        return false;
    }
}

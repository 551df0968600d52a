#include "base/floats.h"

#include <string.h>

static float float_of_bits(uint32_t bits)
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

/* Shifting the bits to a float's positions gives a number that is too small by
 * a power of two, also for subnormals. Multiplying by that power is exact. */
float gac_f16_to_float(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, rest = code & 0x7FFF;
    if (rest >= 0x7C00)
        return float_of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    float magnitude = float_of_bits(rest << 13) * 0x1p112F;
    return sign ? -magnitude : magnitude;
}

float gac_bf16_to_float(uint16_t code)
{
    return float_of_bits((uint32_t)code << 16);
}

static uint16_t code_at(const void *codes, int64_t i)
{
    uint16_t code;
    memcpy(&code, (const char *)codes + 2 * i, sizeof code);
    return code;
}

void gac_floats_from_f16(const void *codes, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = gac_f16_to_float(code_at(codes, i));
}

void gac_floats_from_bf16(const void *codes, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = gac_bf16_to_float(code_at(codes, i));
}

uint16_t gac_f16_from_float(float value)
{
    uint32_t bits = bits_of_float(value), rest = bits & 0x7FFFFFFF;
    uint32_t sign = bits >> 16 & 0x8000;
    if (rest > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (rest >= 0x477FF000) /* 65520: rounds beyond the largest F16 */
        return (uint16_t)(sign | 0x7C00);
    if (rest < 0x38800000) {
        /* Adding 0.5 rounds to 2^-24, the unit of F16's subnormals. */
        float sum = float_of_bits(rest) + 0.5F;
        return (uint16_t)(sign | (bits_of_float(sum) - bits_of_float(0.5F)));
    }
    rest += 0xFFF + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - 0x38000000) >> 13);
}

uint16_t gac_bf16_from_float(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)((bits >> 16 & 0x8000) | 0x7FC0);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

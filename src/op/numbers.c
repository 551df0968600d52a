#include "op/numbers.h"

#include <math.h>
#include <string.h>

/* A binary float of at most 16 bits: sign, exponent, mantissa. */
typedef struct layout {
    int mantissa_bits;
    int min_exponent;  /* exponent of the smallest normal number */
    unsigned overflow; /* code for values that are too large: infinity, or the NaN of E4M3 */
    unsigned nan;      /* code of a quiet NaN */
    unsigned sign;
} layout;

static const layout f16 = { 10, -14, 0x7C00, 0x7E00, 0x8000 };
static const layout bf16 = { 7, -126, 0x7F80, 0x7FC0, 0x8000 };
static const layout f8 = { 3, -6, 0x7F, 0x7F, 0x80 };

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float gac_f8_to_float(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7F;
    if (rest == 0x7F)
        return float_of_bits(sign | 0x7FC00000);
    /* The shifted bits are too small by a power of two, as in gac_f16_to_float.
     * Multiplying by that power is exact. */
    float magnitude = float_of_bits(rest << 20) * 0x1p120F;
    return sign ? -magnitude : magnitude;
}

/* Encodes value. The magnitude, rounded in units of its last place, is the
 * mantissa with its leading one. Adding it to the exponent field also carries
 * into the exponent if rounding overflows the mantissa. */
static unsigned encode(const layout *to, double value)
{
    unsigned sign = signbit(value) ? to->sign : 0;
    double magnitude = fabs(value);
    int exponent;
    if (isnan(value))
        return sign | to->nan;
    if (magnitude == 0)
        return sign;
    if (isinf(value))
        return sign | to->overflow;
    frexp(magnitude, &exponent);
    exponent = exponent - 1 < to->min_exponent ? to->min_exponent : exponent - 1;
    double mantissa = nearbyint(ldexp(magnitude, to->mantissa_bits - exponent));
    unsigned code =
        ((unsigned)(exponent - to->min_exponent) << to->mantissa_bits) + (unsigned)mantissa;
    return sign | (code < to->overflow ? code : to->overflow);
}

uint16_t gac_f16_from_double(double value)
{
    return (uint16_t)encode(&f16, value);
}

uint16_t gac_bf16_from_double(double value)
{
    return (uint16_t)encode(&bf16, value);
}

uint8_t gac_f8_from_double(double value)
{
    return (uint8_t)encode(&f8, value);
}

static bool is_signed_integer(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_I8 || dtype == GAC_DTYPE_I16 || dtype == GAC_DTYPE_I32;
}

double gac_dtype_load(const void *data, gac_dtype dtype, int64_t index)
{
    const uint8_t *bytes = data;
    uint16_t half;
    uint32_t word;
    float number;
    switch (gac_dtype_bits(dtype)) {
    case 8:
        if (dtype == GAC_DTYPE_F8_E4M3)
            return (double)gac_f8_to_float(bytes[index]);
        return is_signed_integer(dtype) ? (double)(int8_t)bytes[index] : (double)bytes[index];
    case 16:
        memcpy(&half, bytes + 2 * index, sizeof half);
        if (dtype == GAC_DTYPE_F16)
            return (double)gac_f16_to_float(half);
        if (dtype == GAC_DTYPE_BF16)
            return (double)gac_bf16_to_float(half);
        return is_signed_integer(dtype) ? (double)(int16_t)half : (double)half;
    case 32:
        memcpy(&number, bytes + 4 * index, sizeof number);
        if (dtype == GAC_DTYPE_F32)
            return (double)number;
        memcpy(&word, bytes + 4 * index, sizeof word);
        return is_signed_integer(dtype) ? (double)(int32_t)word : (double)word;
    default:
        return NAN;
    }
}

void gac_dtype_store(void *data, gac_dtype dtype, int64_t index, double value)
{
    uint8_t *bytes = data;
    uint16_t half;
    uint32_t word;
    float number;
    switch (gac_dtype_bits(dtype)) {
    case 8:
        bytes[index] = (uint8_t)(dtype == GAC_DTYPE_F8_E4M3 ? gac_f8_from_double(value)
                                                            : (int64_t)nearbyint(value));
        break;
    case 16:
        half = (uint16_t)(dtype == GAC_DTYPE_F16    ? gac_f16_from_double(value)
                          : dtype == GAC_DTYPE_BF16 ? gac_bf16_from_double(value)
                                                    : (int64_t)nearbyint(value));
        memcpy(bytes + 2 * index, &half, sizeof half);
        break;
    case 32:
        number = (float)value;
        memcpy(&word, &number, sizeof word);
        if (dtype != GAC_DTYPE_F32)
            word = (uint32_t)(int64_t)nearbyint(value);
        memcpy(bytes + 4 * index, &word, sizeof word);
        break;
    default:
        break;
    }
}

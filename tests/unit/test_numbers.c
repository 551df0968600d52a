#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/splitmix.h"
#include "op/numbers.h"

/* Computes the value of a code from its definition: sign, exponent, mantissa. */
static double defined(unsigned code, int exponent_bits, int mantissa_bits)
{
    unsigned mantissa = code & ((1U << mantissa_bits) - 1);
    int exponent = (int)(code >> mantissa_bits & ((1U << exponent_bits) - 1));
    int bias = (1 << (exponent_bits - 1)) - 1;
    double magnitude =
        exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                      : ldexp(mantissa + (1U << mantissa_bits), exponent - bias - mantissa_bits);
    return code >> (exponent_bits + mantissa_bits) ? -magnitude : magnitude;
}

typedef struct format {
    double (*decode)(unsigned code);
    unsigned (*encode)(double value);
    int exponent_bits, mantissa_bits;
    unsigned n_finite; /* number of positive finite codes */
    bool has_infinity;
} format;

static double decode_f16(unsigned code)
{
    return (double)gac_f16_to_float((uint16_t)code);
}
static unsigned encode_f16(double value)
{
    return gac_f16_from_double(value);
}
static double decode_bf16(unsigned code)
{
    return (double)gac_bf16_to_float((uint16_t)code);
}
static unsigned encode_bf16(double value)
{
    return gac_bf16_from_double(value);
}
static double decode_f8(unsigned code)
{
    return (double)gac_f8_to_float((uint8_t)code);
}
static unsigned encode_f8(double value)
{
    return gac_f8_from_double(value);
}

static const format formats[] = {
    { decode_f16, encode_f16, 5, 10, 0x7C00, true },
    { decode_bf16, encode_bf16, 8, 7, 0x7F80, true },
    { decode_f8, encode_f8, 4, 3, 0x7F, false },
};

static void every_code_round_trips(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const format *x = &formats[f];
        unsigned sign = 1U << (x->exponent_bits + x->mantissa_bits);
        for (unsigned code = 0; code < 2 * sign; code++) {
            double value = x->decode(code);
            unsigned magnitude = code & (sign - 1);
            if (magnitude < x->n_finite) {
                assert_true(value == defined(code, x->exponent_bits, x->mantissa_bits));
                assert_int_equal(signbit(value) != 0, code >= sign);
                assert_int_equal(x->encode(value), code);
            } else if (magnitude == x->n_finite && x->has_infinity) {
                assert_true(isinf(value) && (value < 0) == (code >= sign));
                assert_int_equal(x->encode(value), code);
            } else {
                assert_true(isnan(value));
                assert_true(isnan(x->decode(x->encode(value))));
                assert_int_equal((x->encode(value) & sign) != 0, code >= sign);
            }
        }
    }
}

/* Between two neighbours, numbers below the middle round down, numbers above it
 * round up, and the middle rounds to the even code, for both signs. */
static void ties_go_to_even(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const format *x = &formats[f];
        unsigned sign = 1U << (x->exponent_bits + x->mantissa_bits);
        for (unsigned code = 0; code + 1 < x->n_finite; code++) {
            double middle = (x->decode(code) + x->decode(code + 1)) / 2;
            assert_int_equal(x->encode(middle), code % 2 == 0 ? code : code + 1);
            assert_int_equal(x->encode(nextafter(middle, 0)), code);
            assert_int_equal(x->encode(nextafter(middle, INFINITY)), code + 1);
            assert_int_equal(x->encode(-nextafter(middle, INFINITY)), sign | (code + 1));
        }
        /* What rounds beyond the largest becomes infinite; in E4M3 it becomes NaN. */
        double largest = x->decode(x->n_finite - 1), step = largest - x->decode(x->n_finite - 2);
        assert_int_equal(x->encode(nextafter(largest + step / 2, 0)), x->n_finite - 1);
        assert_int_equal(x->encode(largest + step), x->n_finite);
        assert_int_equal(x->encode(1e300), x->n_finite);
        assert_int_equal(x->encode(-1e300), sign | x->n_finite);
        assert_int_equal(x->encode(-0.0), sign);
        assert_int_equal(x->encode(5e-324), 0);
    }
    assert_true(decode_f16(0x7BFF) == 65504 && decode_f8(0x7E) == 448);
}

/* Compares the fast conversions from float with the definition, over all
 * exponents. */
static void floats_round_as_doubles_do(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1u << 20; i++) {
        /* Every sign, exponent and leading mantissa, with low bits that tie or
         * almost tie. */
        static const uint32_t ends[] = { 0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001 };
        uint32_t bits = (i >> 3) << 15 ^ ends[i & 7];
        float value;
        memcpy(&value, &bits, sizeof value);
        assert_int_equal(gac_f16_from_float(value), gac_f16_from_double((double)value));
        assert_int_equal(gac_bf16_from_float(value), gac_bf16_from_double((double)value));
    }
}

static void random_numbers_are_normal_and_fixed(void **state)
{
    (void)state;
    double sum = 0, sum2 = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double x = gac_random_normal(1, i);
        assert_true(fabs(x) < 3.5);
        sum += x;
        sum2 += x * x;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(sum2 / 1e5 - 1) < 0.02);
    assert_true(gac_random_bits(1, 2) != gac_random_bits(2, 1));
    assert_true(gac_random_bits(7, 9) == gac_random_bits(7, 9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_round_trips),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(floats_round_as_doubles_do),
        cmocka_unit_test(random_numbers_are_normal_and_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

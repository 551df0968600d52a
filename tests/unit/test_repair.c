/* Scaling of stored elements: the rest of repair is tested on whole
 * checkpoints, in tests/repair. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repair/repair_internal.h"

/* The value of a half, from its definition. */
static double half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static bool half_is_finite(uint16_t bits)
{
    return (bits & 0x7c00) != 0x7c00;
}

static void factor_one_changes_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t half = (uint16_t)i, brain = (uint16_t)i;
        assert_true(gac_scale_elements(&half, 1, GAC_DTYPE_F16, 1));
        assert_true(gac_scale_elements(&brain, 1, GAC_DTYPE_BF16, 1));
        if (half_is_finite((uint16_t)i) || (i & 0x3ff) == 0)
            assert_int_equal(half, i);
        else
            assert_true(!half_is_finite(half) && (half & 0x3ff)); /* NaN stays NaN */
        if ((i & 0x7f80) != 0x7f80 || (i & 0x7f) == 0)
            assert_int_equal(brain, i);
    }
}

/* No half is nearer to the product than the one chosen; of two as near, the
 * even one. The factor is a float, so that the product is exact in double. */
static void halves_round_to_nearest(void **state)
{
    (void)state;
    static const float factors[] = { 1.0905077f, 0.9170040f, 1.4142135f, 0.5f, 0.001f, 3.0f };
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
        for (uint32_t i = 0; i < 0x8000; i++) {
            uint16_t scaled = (uint16_t)i;
            if (!half_is_finite(scaled))
                continue;
            /* The library rounds the product to float first. */
            double exact = (float)(half_value((uint16_t)i) * (double)factors[f]);
            assert_true(gac_scale_elements(&scaled, 1, GAC_DTYPE_F16, (double)factors[f]));
            if (!half_is_finite(scaled)) {
                assert_true(exact >= 65520);
                continue;
            }
            double error = fabs(half_value(scaled) - exact);
            for (int step = -1; step <= 1; step += 2) {
                uint16_t neighbour = (uint16_t)(scaled + step);
                if (neighbour >= 0x7c00)
                    continue;
                double other = fabs(half_value(neighbour) - exact);
                assert_true(error < other || (error == other && scaled % 2 == 0));
            }
        }
}

static void wider_types_multiply(void **state)
{
    (void)state;
    float single[3] = { 1.5f, -2.25f, 0.0f };
    double wide[3] = { 1.5, -2.25, 0.0 };
    uint8_t byte = 1;
    assert_true(gac_scale_elements(single, 3, GAC_DTYPE_F32, 2));
    assert_true(gac_scale_elements(wide, 3, GAC_DTYPE_F64, 2));
    assert_true(single[0] == 3.0f && single[1] == -4.5f && single[2] == 0.0f);
    assert_true(wide[0] == 3.0 && wide[1] == -4.5 && wide[2] == 0.0);
    assert_false(gac_scale_elements(&byte, 1, GAC_DTYPE_F8_E4M3, 2));
    assert_int_equal(byte, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factor_one_changes_nothing),
        cmocka_unit_test(halves_round_to_nearest),
        cmocka_unit_test(wider_types_multiply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

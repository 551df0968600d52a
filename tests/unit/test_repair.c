/* Scaling of stored elements, and progress: the rest of repair is tested on
 * whole checkpoints, in tests/repair. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repair/repair_internal.h"
#include "scratch.h"
#include "small_llama.h"

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

/* What progress was told; the linker calls these in place of the library's. */
static struct {
    char kinds[120]; /* of work that was started */
    uint64_t total, n_done;
    int n_short; /* pieces of work that ended short of their total */
} told;

void __wrap_gac_progress_start(gac_progress *progress, const char *what, const char *unit,
                               uint64_t total);
void __wrap_gac_progress_step(gac_progress *progress, uint64_t n_done);
void __wrap_gac_progress_finish(gac_progress *progress);

void __wrap_gac_progress_start(gac_progress *progress, const char *what, const char *unit,
                               uint64_t total)
{
    (void)progress, (void)unit;
    size_t n = strlen(told.kinds);
    snprintf(told.kinds + n, sizeof told.kinds - n, "%s ", what);
    told.total = total;
    told.n_done = 0;
    assert_true(total > 0);
}

void __wrap_gac_progress_step(gac_progress *progress, uint64_t n_done)
{
    (void)progress;
    assert_true(n_done >= told.n_done);
    told.n_done = n_done;
}

void __wrap_gac_progress_finish(gac_progress *progress)
{
    (void)progress;
    told.n_short += told.n_done != told.total;
}

static void assert_told(const char *kinds)
{
    assert_string_equal(told.kinds, kinds);
    assert_int_equal(told.n_short, 0);
    memset(&told, 0, sizeof told);
}

static void progress_ends_at_its_total(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    gac_verification v;
    gac_checkpoint *repaired = NULL;
    gac_repair_options options = GAC_REPAIR_OPTIONS_INIT;
    shape.width = 172;
    small_llama_write("in", &shape);
    small_model in = small_open("in");
    int32_t n_dims = gac_model_n_dims(in.model);
    int64_t *sizes = calloc((size_t)n_dims, sizeof *sizes);
    for (int32_t i = 0; i < n_dims; i++) {
        const gac_dim *d = gac_model_dim(in.model, i);
        sizes[i] = d->role == GAC_ROLE_MLP_WIDTH ? 176 : d->size;
    }
    memset(&told, 0, sizeof told);
    assert_ok(
        gac_repair_apply(in.checkpoint, in.model, sizes, scratch_path("out"), &options, NULL, err));
    assert_told("writing ");
    small_model out = small_open("out");
    memset(&told, 0, sizeof told);
    assert_ok(gac_repair_verify(in.checkpoint, in.model, out.checkpoint, out.model, NULL, &v, err));
    assert_string_equal(v.difference, "");
    assert_told("comparing ");
    assert_ok(gac_checkpoint_open(scratch_path("out"), NULL, &repaired, err));
    memset(&told, 0, sizeof told);
    assert_ok(gac_repair_undo(repaired, scratch_path("back"), &options, NULL, err));
    assert_told("writing checking ");
    gac_checkpoint_close(repaired);
    small_close(&out);
    small_close(&in);
    free(sizes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factor_one_changes_nothing),
        cmocka_unit_test(halves_round_to_nearest),
        cmocka_unit_test(wider_types_multiply),
        cmocka_unit_test_setup_teardown(progress_ends_at_its_total, scratch_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tiers from recorded sweeps, summaries of errors, and whole probes of a fake GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fake_model.h"
#include "probe/probe_internal.h"

#define RECORDED "tests/data/sweeps/h200_f16.json"
enum { MAX_POINTS = 512, MAX_SWEEPS = 8 };

/* Sweeps with their own points. */
typedef struct sweeps {
    probe_sweep_point points[MAX_SWEEPS][MAX_POINTS];
    probe_sweep list[MAX_SWEEPS];
    int n;
} sweeps;

static void add_recorded(sweeps *out, const json_t *sweep)
{
    const json_t *sizes = json_object_get(sweep, "sizes"), *us = json_object_get(sweep, "us");
    probe_sweep_point *points = out->points[out->n];
    assert_true(out->n < MAX_SWEEPS && json_array_size(sizes) < MAX_POINTS);
    for (size_t i = 0; i < json_array_size(sizes); i++)
        points[i] = (probe_sweep_point){ .size = json_integer_value(json_array_get(sizes, i)),
                                         .time_us = json_number_value(json_array_get(us, i)) };
    out->list[out->n++] = (probe_sweep){ points, (int)json_array_size(sizes) };
}

/* The recorded sweeps of a place; of one m only, unless that is 0. */
static sweeps *recorded(const char *place, int64_t m)
{
    size_t i;
    json_t *sweep, *file = json_load_file(RECORDED, 0, NULL);
    sweeps *out = calloc(1, sizeof *out);
    assert_non_null(file);
    assert_non_null(out);
    json_array_foreach(json_object_get(file, "sweeps"), i, sweep)
        if (strcmp(json_string_value(json_object_get(sweep, "place")), place) == 0 &&
            (m == 0 || json_integer_value(json_object_get(sweep, "m")) == m))
            add_recorded(out, sweep);
    assert_true(out->n > 0);
    json_decref(file);
    return out;
}

static probe_tiers find(const sweeps *s)
{
    probe_tiers found;
    gac_error err = GAC_ERROR_INIT;
    if (probe_find_tiers(s->list, s->n, &found, &err) != GAC_OK)
        fail_msg("%s", err.text);
    return found;
}

static void assert_multiples(const probe_tiers *found, int n, const int64_t *multiples)
{
    assert_int_equal(found->n_tiers, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(found->tier[i].multiple, multiples[i]);
}

static void h200_has_three_tiers(void **state)
{
    static const int64_t expected[] = { 8, 2, 1 };
    static const char *const places[] = { "n", "k" };
    (void)state;
    for (int p = 0; p < 2; p++) {
        sweeps *s = recorded(places[p], 0);
        probe_tiers found = find(s);
        assert_multiples(&found, 3, expected);
        for (int t = 0; t < 3; t++) {
            assert_int_equal(found.tier[t].aligned, t == 0);
            assert_true(found.tier[t].served);
        }
        assert_true(found.tier[1].penalty > 2.5 && found.tier[1].penalty < 3.5);
        assert_true(found.tier[2].penalty > 5 && found.tier[2].penalty < 9);
        free(s);
    }
}

/* One row, n near 1741: 5 % between multiples of 8 and the rest is no tier. */
static void small_differences_are_no_tier(void **state)
{
    static const int64_t expected[] = { 1 };
    (void)state;
    sweeps *s = recorded("n", 1);
    probe_tiers found = find(s);
    assert_multiples(&found, 1, expected);
    assert_true(found.tier[0].aligned);
    free(s);
}

/* Sizes 3840…4352, times by a rule. */
static sweeps *made(double (*rule)(int64_t size))
{
    sweeps *s = calloc(1, sizeof *s);
    assert_non_null(s);
    int n = 0;
    for (int64_t v = 3841; v < 4352; v++, n++)
        s->points[0][n] = (probe_sweep_point){
            .size = v, .time_us = fabs(rule(v)), .noise = 0.001, .declined = rule(v) < 0
        };
    s->list[0] = (probe_sweep){ s->points[0], n };
    s->n = 1;
    return s;
}

static double fp8(int64_t v)
{
    return v % 16 == 0 ? 100 : -1;
}

static void declined_sizes_are_a_tier(void **state)
{
    static const int64_t expected[] = { 16, 1 };
    (void)state;
    sweeps *s = made(fp8);
    probe_tiers found = find(s);
    assert_multiples(&found, 2, expected);
    assert_true(found.tier[0].served && found.tier[0].aligned);
    assert_false(found.tier[1].served);
    assert_false(found.tier[1].aligned);
    free(s);
}

/* Anchors at which multiples of 8 take ratios[i] times what multiples of 16 do, and others
 * three times as long. */
static sweeps *anchors(const double *ratios, int n)
{
    sweeps *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < n; i++) {
        int at = 0;
        for (int64_t v = 3841; v < 4352; v++, at++)
            s->points[i][at] = (probe_sweep_point){ .size = v,
                                                    .time_us = v % 16 == 0  ? 100
                                                               : v % 8 == 0 ? 100 * ratios[i]
                                                                            : 300,
                                                    .noise = 0.001 };
        s->list[i] = (probe_sweep){ s->points[i], at };
    }
    s->n = n;
    return s;
}

/* A tier is aligned where it loses little at most anchors, and not much at any. */
static void aligned_is_what_most_anchors_say(void **state)
{
    static const int64_t expected[] = { 16, 8, 1 };
    static const struct {
        int n;
        double ratios[3];
        bool aligned;
    } cases[] = { { 3, { 1, 1, 1.4 }, true },   /* a step, */
                  { 3, { 1, 1, 1.6 }, false },  /* and a cliff */
                  { 2, { 1.05, 1.14 }, true },  /* 1.095 in the middle, */
                  { 2, { 1.05, 1.17 }, false }, /* and 1.11 */
                  { 3, { 1, 1.2, 1.2 }, false } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sweeps *s = anchors(cases[i].ratios, cases[i].n);
        probe_tiers found = find(s);
        assert_multiples(&found, 3, expected);
        assert_true(found.tier[0].aligned && !found.tier[2].aligned);
        if (found.tier[1].aligned != cases[i].aligned)
            fail_msg("case %zu: aligned %d", i, found.tier[1].aligned);
        free(s);
    }
}

static double a_tenth(int64_t v)
{
    return v % 16 == 0 ? 100 : 112;
}

/* Multiples of 16 are 12 % faster, which is a tier unless the noise of both is 1 %. */
static void a_gain_must_exceed_its_noise(void **state)
{
    static const int64_t expected[] = { 16, 1 };
    (void)state;
    for (int noisy = 0; noisy < 2; noisy++) {
        sweeps *s = made(a_tenth);
        for (int i = 0; i < s->list[0].n_points; i++)
            s->points[0][i].noise = noisy ? 0.01 : 0.001;
        probe_tiers found = find(s);
        assert_multiples(&found, noisy ? 1 : 2, expected + noisy);
        free(s);
    }
}

static double one_fast_size(int64_t v)
{
    return v == 4096 ? 50 : 100;
}

static void one_fast_size_is_no_tier(void **state)
{
    static const int64_t expected[] = { 1 };
    (void)state;
    sweeps *s = made(one_fast_size);
    probe_tiers found = find(s);
    assert_multiples(&found, 1, expected);
    free(s);
}

static double two_steps(int64_t v)
{
    return v % 64 == 0 ? 100 : v % 4 == 0 ? 109.5 : 300;
}

static void other_gpus_have_other_tiers(void **state)
{
    static const int64_t expected[] = { 64, 4, 1 };
    (void)state;
    sweeps *s = made(two_steps);
    probe_tiers found = find(s);
    assert_multiples(&found, 3, expected);
    assert_true(found.tier[1].aligned); /* within a tenth of the best */
    assert_false(found.tier[2].aligned);
    free(s);
}

/* A wave that ends at 4096: fast up to there, slow after, nothing by divisors. */
static double wave(int64_t v)
{
    return v <= 4096 ? 100 : 130;
}

/* Tiles of 128: each step up is at a multiple, and none is a tier. */
static double tiles(int64_t v)
{
    return 10 * ceil((double)v / 128);
}

static void steps_are_no_tiers(void **state)
{
    static const int64_t expected[] = { 1 };
    (void)state;
    sweeps *s = made(wave);
    probe_tiers found = find(s);
    assert_multiples(&found, 1, expected);
    free(s);
    s = made(tiles);
    found = find(s);
    assert_multiples(&found, 1, expected);
    free(s);
}

/* 12 % apart, and noise of 5 % in each: not to be told. */
static double close_call(int64_t v)
{
    return v % 8 == 0 ? 100 : 112;
}

static void noise_makes_no_tier(void **state)
{
    static const int64_t quiet[] = { 8, 1 }, noisy[] = { 1 };
    (void)state;
    sweeps *s = made(close_call);
    probe_tiers found = find(s);
    assert_multiples(&found, 2, quiet);
    for (int i = 0; i < s->list[0].n_points; i++)
        s->points[0][i].noise = 0.05;
    found = find(s);
    assert_multiples(&found, 1, noisy);
    free(s);
}

static double nothing(int64_t v)
{
    (void)v;
    return -1;
}

static void nothing_served_is_said(void **state)
{
    probe_tiers found;
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    sweeps *s = made(nothing);
    assert_int_equal(probe_find_tiers(s->list, 1, &found, &err), GAC_CHECK);
    assert_non_null(strstr(err.text, "no size"));
    free(s);
}

static void errors_are_summed_up(void **state)
{
    double errors_pct[] = { 1, -2, 10, -5, 50 };
    gac_contract_errors e;
    (void)state;
    probe_summarise(errors_pct, 5, &e);
    assert_int_equal(e.n_points, 5);
    assert_true(e.median_pct == 5 && e.max_pct == 50 && e.bias_pct == 1);
    assert_true(e.p95_pct == 42); /* a fifth below the last, of five */
    probe_summarise(errors_pct, 0, &e);
    assert_true(e.n_points == 0 && e.max_pct == 0);
}

static void numbers_have_four_digits(void **state)
{
    (void)state;
    assert_true(gac_four_digits(0) == 0 && gac_four_digits(-1234567) == -1235000);
    assert_true(gac_four_digits(0.00012344) == 0.0001234 && gac_four_digits(99999) == 100000);
    assert_true(isnan(gac_four_digits(NAN)) && isinf(gac_four_digits(INFINITY)));
}

static gac_device *open_fake(void)
{
    gac_error err = GAC_ERROR_INIT;
    gac_device *device = NULL;
    setenv("GAC_BACKEND_PATH", FAKE_FOLDER "/libgac_cuda.so", 1);
    if (gac_device_open("cuda", &device, &err) != GAC_OK)
        fail_msg("%s", err.text);
    unsetenv("GAC_BACKEND_PATH");
    return device;
}

/* Serves everything in a time that is easy to find again. */
static gac_status serve(void *context, const gac_task_spec *specs, int n, bool names,
                        gac_probe_served *out, char stack[96], gac_error *err)
{
    (void)err;
    for (int i = 0; i < n; i++) {
        const gac_sdpa_shape *s = &specs[i].sdpa.shape;
        assert_int_equal(specs[i].kind, GAC_TASK_SDPA);
        out[i].time_us = 1 + (double)(s->batch * s->n_q_heads * s->n_q) * (double)s->n_kv * 1e-6;
        snprintf(out[i].kernel, sizeof out[i].kernel, "%s", names ? "flash_fwd_kernel<107>" : "");
    }
    snprintf(stack, 96, "torch 9.9");
    ++*(int *)context;
    return GAC_OK;
}

static void fallback_serves_what_is_declined(void **state)
{
    const gac_dtype dtype = GAC_DTYPE_F16;
    int n_calls = 0;
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    json_t *raw = NULL;
    gac_device *device = open_fake();
    gac_probe_options options = GAC_PROBE_OPTIONS_INIT;
    (void)state;
    options.dtypes = &dtype;
    options.n_dtypes = 1;
    options.quick = true;
    options.fallback = serve;
    options.fallback_context = &n_calls;
    if (gac_probe_run(device, &options, &contract, &raw, &err) != GAC_OK)
        fail_msg("%s", err.text);
    assert_true(n_calls > 0 && n_calls < 20); /* in batches: a call may start a program */
    const gac_contract_sdpa *sdpa = contract->sdpa[GAC_DTYPE_F16];
    assert_int_equal(sdpa->tiers[1].multiple, 1);
    assert_string_equal(sdpa->tiers[1].family, "fa2");
    assert_string_equal(sdpa->beyond->family, "fa2");
    const gac_contract_text *last = &contract->stack[contract->n_stack - 1];
    assert_string_equal(last->key, "attention");
    assert_string_equal(last->value, "torch 9.9");
    gac_contract_free(contract);
    json_decref(raw);
    gac_device_close(device);
}

/* Raw results have every point that was measured, and the contract counts them. */
static void no_point_is_lost(void **state)
{
    const gac_dtype dtype = GAC_DTYPE_F16;
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    json_t *raw = NULL, *point;
    gac_device *device = open_fake();
    gac_probe_options options = GAC_PROBE_OPTIONS_INIT;
    int64_t n_points = 0, n_samples = 0;
    size_t i;
    (void)state;
    options.dtypes = &dtype;
    options.n_dtypes = 1;
    options.quick = true;
    if (gac_probe_run(device, &options, &contract, &raw, &err) != GAC_OK)
        fail_msg("%s", err.text);
    json_array_foreach(json_object_get(raw, "points"), i, point) {
        n_points += json_object_get(point, "median_us") != NULL;
        n_samples += (int64_t)json_array_size(json_object_get(point, "samples_us"));
    }
    assert_true(n_points > 1000);
    assert_int_equal(n_points, contract->noise->n_points);
    assert_int_equal(n_samples, contract->noise->n_samples);
    gac_contract_free(contract);
    json_decref(raw);
    gac_device_close(device);
}

/* Shapes that were asked for are measured in three rounds and replace those of the base. */
static void shapes_become_points(void **state)
{
    enum { N = 25 };
    const gac_dtype dtype = GAC_DTYPE_F16;
    const gac_sdpa_shape sdpa = { 1, 8, 8, 256, 256, 112, 112, false };
    gac_gemm_shape gemm[N];
    gac_error err = GAC_ERROR_INIT;
    gac_contract *bundled = NULL, *first = NULL, *second = NULL;
    json_t *raw = NULL;
    gac_device *device = open_fake();
    gac_probe_options options = GAC_PROBE_OPTIONS_INIT;
    (void)state;
    options.dtypes = &dtype;
    options.n_dtypes = 1;
    for (int i = 0; i < N; i++)
        gemm[i] = (gac_gemm_shape){ 16, 1000 + 8 * i, 4096, false };
    assert_int_equal(gac_contract_load_bundled("sm_90", &bundled, &err), GAC_OK);
    if (gac_probe_shapes(device, &options, bundled, gemm, N, &sdpa, 1, &first, &raw, &err) !=
            GAC_OK ||
        gac_probe_shapes(device, &options, first, gemm, N, &sdpa, 1, &second, NULL, &err) != GAC_OK)
        fail_msg("%s", err.text);
    assert_int_equal(json_array_size(json_object_get(raw, "points")), 3 * N + 1);
    for (int i = 0; i < N; i++) {
        double us = gac_contract_gemm_us(first, dtype, 16, gemm[i].n, 4096);
        gac_task_spec spec = { .kind = GAC_TASK_GEMM, .dtype = dtype, .gemm = gemm[i] };
        assert_true(fabs(us / fake_time_us(&spec) - 1) < 0.05);
    }
    assert_int_equal(first->n_points, bundled->n_points + N);
    assert_int_equal(first->n_sdpa_points, 1);
    assert_int_equal(second->n_points, first->n_points);
    assert_int_equal(second->n_sdpa_points, 1);
    gac_contract_free(first);
    gac_contract_free(second);
    json_decref(raw);
    gac_device_close(device);
}

static gac_status fail_to_serve(void *context, const gac_task_spec *specs, int n, bool names,
                                gac_probe_served *out, char stack[96], gac_error *err)
{
    (void)context;
    (void)specs;
    (void)n;
    (void)names;
    (void)out;
    (void)stack;
    return gac_error_set(err, GAC_FAILED, "python3 ended with 1");
}

static void fallback_that_fails_ends_the_probe(void **state)
{
    const gac_dtype dtype = GAC_DTYPE_F16;
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    gac_device *device = open_fake();
    gac_probe_options options = GAC_PROBE_OPTIONS_INIT;
    (void)state;
    options.dtypes = &dtype;
    options.n_dtypes = 1;
    options.quick = true;
    options.fallback = fail_to_serve;
    assert_int_equal(gac_probe_run(device, &options, &contract, NULL, &err), GAC_FAILED);
    assert_string_equal(err.text, "python3 ended with 1");
    assert_null(contract);
    gac_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(h200_has_three_tiers),
        cmocka_unit_test(small_differences_are_no_tier),
        cmocka_unit_test(declined_sizes_are_a_tier),
        cmocka_unit_test(aligned_is_what_most_anchors_say),
        cmocka_unit_test(a_gain_must_exceed_its_noise),
        cmocka_unit_test(one_fast_size_is_no_tier),
        cmocka_unit_test(other_gpus_have_other_tiers),
        cmocka_unit_test(steps_are_no_tiers),
        cmocka_unit_test(noise_makes_no_tier),
        cmocka_unit_test(nothing_served_is_said),
        cmocka_unit_test(errors_are_summed_up),
        cmocka_unit_test(numbers_have_four_digits),
        cmocka_unit_test(fallback_serves_what_is_declined),
        cmocka_unit_test(no_point_is_lost),
        cmocka_unit_test(shapes_become_points),
        cmocka_unit_test(fallback_that_fails_ends_the_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

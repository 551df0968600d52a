#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/contract.h>

static gac_contract *a100;
static gac_contract *h200;     /* described by rates; test_contract_table.c has tables */
static gac_contract *measured; /* the bundled one */

static int load_contracts(void **state)
{
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    if (gac_contract_load_bundled("h200", &measured, &err) != GAC_OK ||
        gac_contract_load_bundled("a100", &a100, &err) != GAC_OK ||
        gac_contract_load("tests/data/contracts/by_rates.json", &h200, &err) != GAC_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int free_contracts(void **state)
{
    (void)state;
    gac_contract_free(h200);
    gac_contract_free(a100);
    gac_contract_free(measured);
    return 0;
}

static gac_judgement judge(const gac_contract *contract, gac_op_axis axis, int64_t size,
                           int64_t n_rows, int64_t other)
{
    gac_judgement judgement;
    gac_error err = GAC_ERROR_INIT;
    gac_status status =
        gac_contract_judge(contract, axis, GAC_DTYPE_F16, size, n_rows, other, &judgement, &err);
    if (status != GAC_OK)
        fail_msg("judge: %s", err.text);
    return judgement;
}

static double gemm(const gac_contract *contract, int64_t m, int64_t n, int64_t k)
{
    return gac_contract_gemm_us(contract, GAC_DTYPE_F16, m, n, k);
}

#define assert_between(value, low, high) \
    do { \
        double value_ = (value); \
        if (!(value_ >= (low) && value_ <= (high))) \
            fail_msg("%s is %g, not from %g to %g", #value, value_, (double)(low), \
                     (double)(high)); \
    } while (0)

static void bundled_are_named(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_contract *none = NULL;
    assert_int_equal(gac_contract_n_bundled(), 8);
    assert_string_equal(gac_contract_bundled_name(0), "a100");
    assert_string_equal(gac_contract_bundled_name(1), "h200");
    assert_null(gac_contract_bundled_name(8));
    assert_null(gac_contract_bundled_name(-1));
    assert_string_equal(gac_contract_name(h200), "h200");
    assert_string_equal(gac_contract_gpu(h200), "NVIDIA H200");
    assert_string_equal(gac_contract_gpu(a100), "NVIDIA A100 80GB");
    assert_int_equal(gac_contract_load_bundled("b\n999", &none, &err), GAC_USAGE);
    assert_null(none);
    assert_non_null(strstr(err.text, "a100, h200"));
    assert_null(strchr(err.text, '\n'));
    gac_contract_free(NULL);
}

static void dtypes_stand_in(void **state)
{
    (void)state;
    gac_dtype served;
    static const gac_dtype served_as_f16[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32,
                                               GAC_DTYPE_F64 };
    for (size_t i = 0; i < sizeof served_as_f16 / sizeof *served_as_f16; i++) {
        assert_true(gac_contract_dtype(h200, served_as_f16[i], &served));
        assert_int_equal(served, GAC_DTYPE_F16);
        assert_true(gac_contract_gemm_us(h200, served_as_f16[i], 1, 4096, 4096) == 13.0);
        assert_int_equal(gac_contract_multiple(h200, GAC_OP_GEMM_N, served_as_f16[i]), 8);
    }
    served = GAC_DTYPE_BOOL;
    assert_false(gac_contract_dtype(h200, GAC_DTYPE_I8, &served));
    assert_false(gac_contract_dtype(h200, GAC_DTYPE_COUNT, &served));
    assert_int_equal(served, GAC_DTYPE_BOOL);
    assert_true(isnan(gac_contract_gemm_us(h200, GAC_DTYPE_I8, 1, 8, 8)));
    assert_int_equal(gac_contract_multiple(h200, GAC_OP_GEMM_N, GAC_DTYPE_I8), 0);
}

static void tiers_follow_multiples(void **state)
{
    (void)state;
    for (int axis = 0; axis < GAC_OP_AXIS_COUNT; axis++) {
        assert_int_equal(gac_contract_multiple(h200, (gac_op_axis)axis, GAC_DTYPE_F16), 8);
        assert_int_equal(gac_contract_multiple(a100, (gac_op_axis)axis, GAC_DTYPE_F16), 8);
        for (int64_t size = 1; size <= 5000; size++) {
            gac_judgement on_h200 = judge(h200, (gac_op_axis)axis, size, 2048, 4096);
            gac_judgement on_a100 = judge(a100, (gac_op_axis)axis, size, 2048, 4096);
            assert_int_equal(on_h200.aligned, size % 8 == 0);
            assert_int_equal(on_a100.aligned, size % 8 == 0);
            if (size % 8 == 0)
                assert_true(on_h200.penalty == 1 && on_a100.penalty == 1);
            else
                assert_between(on_h200.penalty, 1, 12);
            assert_non_null(on_h200.kernel);
            assert_non_null(on_a100.family);
        }
    }
    assert_int_equal(judge(h200, GAC_OP_GEMM_K, 1741, 2048, 4096).tier, 2);
    assert_int_equal(judge(h200, GAC_OP_GEMM_K, 1742, 2048, 4096).multiple, 2);
    assert_string_equal(judge(h200, GAC_OP_GEMM_K, 1742, 2048, 4096).family, "cutlass-align2");
    assert_string_equal(judge(h200, GAC_OP_SDPA_HEAD, 107, 0, 0).family, "flash2-padded");
    assert_int_equal(judge(a100, GAC_OP_GEMM_K, 112, 2048, 4096).multiple, 16);
    assert_int_equal(judge(a100, GAC_OP_GEMM_K, 104, 2048, 4096).multiple, 8);
    assert_int_equal(judge(a100, GAC_OP_GEMM_K, 104, 2048, 4096).tier, 1);
}

static void basis_is_told(void **state)
{
    (void)state;
    assert_string_equal(judge(h200, GAC_OP_GEMM_K, 107, 8192, 8192).basis, "measured");
    assert_string_equal(judge(a100, GAC_OP_GEMM_K, 107, 8192, 8192).basis, "published");
    assert_string_equal(judge(a100, GAC_OP_GEMM_K, 107, 1, 8192).basis, "assumed");
    assert_string_equal(judge(a100, GAC_OP_GEMM_N, 107, 8192, 8192).basis, "assumed");
    assert_string_equal(judge(a100, GAC_OP_SDPA_HEAD, 107, 0, 0).basis, "published");
    assert_string_equal(judge(a100, GAC_OP_SDPA_HEAD, 300, 0, 0).basis, "assumed");
}

/* The figures of the recorded measurements, at sizes that were measured. */
static void penalties_as_measured(void **state)
{
    (void)state;
    assert_between(judge(h200, GAC_OP_GEMM_K, 107, 8192, 8192).penalty, 3.4, 3.7);
    assert_between(judge(h200, GAC_OP_GEMM_K, 106, 8192, 8192).penalty, 2.4, 2.6);
    assert_between(judge(h200, GAC_OP_GEMM_N, 4095, 4096, 4096).penalty, 7.8, 8.0);
    assert_between(judge(h200, GAC_OP_GEMM_N, 4094, 4096, 4096).penalty, 2.5, 2.8);
    assert_between(judge(h200, GAC_OP_GEMM_K, 4095, 4096, 4096).penalty, 5.6, 7.1);
    assert_between(judge(h200, GAC_OP_GEMM_K, 4092, 4096, 4096).penalty, 2.6, 3.0);
    assert_between(judge(h200, GAC_OP_GEMM_K, 4095, 1, 4096).penalty, 1.4, 1.5);
    assert_between(judge(h200, GAC_OP_GEMM_K, 4095, 16, 4096).penalty, 2.2, 2.4);
    assert_between(judge(h200, GAC_OP_SDPA_HEAD, 107, 0, 0).penalty, 2.6, 2.7);
    assert_between(judge(h200, GAC_OP_SDPA_HEAD, 129, 0, 0).penalty, 2.7, 2.9);
    assert_between(judge(a100, GAC_OP_SDPA_HEAD, 107, 0, 0).penalty, 1.3, 1.45);
    assert_between(judge(a100, GAC_OP_GEMM_K, 107, 8192, 8192).penalty, 2.1, 2.5);
}

/* The same at sizes nobody measured, where the model speaks. */
static void penalties_between_points(void **state)
{
    (void)state;
    assert_between(judge(h200, GAC_OP_GEMM_N, 2707, 4096, 4096).penalty, 6.5, 9);
    assert_between(judge(h200, GAC_OP_GEMM_K, 2707, 4096, 14336).penalty, 4.5, 7);
    assert_between(judge(h200, GAC_OP_GEMM_K, 2706, 4096, 14336).penalty, 2.3, 3.3);
    assert_between(judge(h200, GAC_OP_GEMM_N, 6001, 1, 4096).penalty, 1.2, 1.8);
    assert_between(judge(h200, GAC_OP_GEMM_N, 6001, 16, 4096).penalty, 1.8, 3.5);
    assert_between(judge(h200, GAC_OP_SDPA_HEAD, 33, 0, 0).penalty, 2, 4);
    assert_between(judge(h200, GAC_OP_SDPA_HEAD, 225, 0, 0).penalty, 2, 4);
    /* A misaligned other axis must not hide what this one costs. */
    double alone = judge(h200, GAC_OP_GEMM_N, 2707, 2048, 4096).penalty;
    assert_true(judge(h200, GAC_OP_GEMM_N, 2707, 2048, 4095).penalty == alone);
}

static void heads_beyond_the_largest(void **state)
{
    (void)state;
    gac_judgement at_257 = judge(h200, GAC_OP_SDPA_HEAD, 257, 0, 0);
    assert_string_equal(at_257.family, "math");
    assert_int_equal(at_257.tier, 2);
    assert_false(at_257.aligned);
    assert_true(at_257.penalty == 1);
    assert_true(judge(h200, GAC_OP_SDPA_HEAD, 264, 0, 0).aligned);
    assert_string_equal(judge(h200, GAC_OP_SDPA_HEAD, 256, 0, 0).family, "cudnn-flash");
    gac_sdpa_shape shape = { 4, 32, 32, 2048, 2048, 264, 264, false };
    assert_between(gac_contract_sdpa_us(h200, GAC_DTYPE_F16, &shape), 10000, 20000);
}

static void points_override_the_model(void **state)
{
    (void)state;
    assert_true(gemm(h200, 4096, 4096, 4096) == 184.75);
    assert_true(gemm(h200, 8192, 8192, 107) == 188.19);
    assert_true(gemm(h200, 2, 4095, 4096) == 41.7);
    assert_between(gemm(h200, 8192, 8192, 147), 188, 300);
    /* Between 10752 (28.8) and 14336 (35.1): multiplying hides behind streaming. */
    assert_between(gemm(h200, 128, 12288, 4096), 27, 37);
    /* Between 10753 (145.8) and 14333 (194.7), where nothing hides. */
    assert_between(gemm(h200, 128, 12289, 4096), 140, 200);
}

static void gemm_times_are_sane(void **state)
{
    (void)state;
    assert_true(gemm(h200, 0, 8, 8) == 0 && gemm(h200, 8, 0, 8) == 0 && gemm(h200, 8, 8, 0) == 0);
    assert_true(gemm(h200, -1, 8, 8) == 0);
    assert_true(isfinite(gemm(h200, INT64_MAX, INT64_MAX, INT64_MAX)));
    for (int unit = 1; unit <= 8; unit *= 2) {
        double before = 0;
        for (int64_t k = 300 + unit; k < 4000; k += 8) { /* one tier, between measured points */
            double now = gemm(h200, 777, 3000, k);
            assert_true(now > before);
            before = now;
        }
        before = 0;
        for (int64_t m = 2; m < 3000; m = m * 3 / 2 + 1) {
            double now = gemm(h200, m, 3000, 2000 + unit);
            assert_true(now > before);
            before = now;
        }
    }
    for (int64_t n = 1001; n < 3000; n += 8) { /* never faster than the next aligned size */
        assert_true(gemm(h200, 1, n, 4096) >= 0.99 * gemm(h200, 1, n + 7, 4096));
        assert_true(gemm(h200, 2048, n, 4096) > gemm(h200, 2048, n + 7, 4096));
    }
}

static double sdpa(int64_t batch, int64_t n_q, int64_t n_kv, int64_t kv_heads, int64_t qk,
                   int64_t v, bool causal)
{
    gac_sdpa_shape shape = { batch, 32, kv_heads, n_q, n_kv, qk, v, causal };
    return gac_contract_sdpa_us(h200, GAC_DTYPE_BF16, &shape);
}

static void sdpa_times(void **state)
{
    (void)state;
    assert_between(sdpa(4, 2048, 2048, 32, 107, 107, false), 1146, 1148);
    assert_between(sdpa(4, 2048, 2048, 32, 112, 112, false), 435, 437);
    assert_between(sdpa(4, 2048, 2048, 32, 128, 128, true), 210, 230);
    assert_between(sdpa(4, 4096, 4096, 32, 128, 128, false), 1700, 1760);
    /* One misaligned size of the two costs the fast kernel. */
    double mixed_us = sdpa(4, 2048, 2048, 32, 128, 125, false);
    assert_between(mixed_us, 1000, 1300);
    assert_true(sdpa(4, 2048, 2048, 32, 125, 128, false) > 1000);
    assert_between(sdpa(4, 2048, 2048, 32, 192, 128, false), 435, 634);
    /* Decode: K and V once through memory, times batch. */
    double one_us = sdpa(1, 1, 2048, 8, 128, 128, false);
    double many_us = sdpa(64, 1, 2048, 8, 128, 128, false);
    assert_between(one_us, 2, 20);
    assert_between(many_us / one_us, 10, 64);
    assert_true(sdpa(64, 1, 2048, 8, 125, 125, false) > 2 * many_us);
    assert_true(sdpa(0, 1, 2048, 8, 128, 128, false) == 0);
}

/* What others measured on the same card through PyTorch (ratios to the next
 * multiple of 8): the contract we measured must say the same, within a fifth. */
static void measured_agrees_with_peers(void **state)
{
    static const struct {
        gac_op_axis axis;
        int64_t size, n_rows;
        double penalty;
    } peers[] = {
        { GAC_OP_GEMM_N, 4095, 4096, 7.9 },   { GAC_OP_GEMM_N, 4094, 4096, 2.6 },
        { GAC_OP_GEMM_K, 4095, 4096, 6.0 },   { GAC_OP_GEMM_K, 4094, 4096, 2.9 },
        { GAC_OP_GEMM_N, 4095, 1, 1.38 },     { GAC_OP_GEMM_K, 4095, 1, 1.43 },
        { GAC_OP_GEMM_N, 14333, 16, 3.0 },    { GAC_OP_SDPA_HEAD, 107, 4096, 2.63 },
        { GAC_OP_SDPA_HEAD, 129, 4096, 2.8 },
    };
    (void)state;
    assert_true(!measured->provisional);
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        gac_judgement j = judge(measured, peers[i].axis, peers[i].size, peers[i].n_rows, 4096);
        assert_false(j.aligned);
        assert_string_equal(j.basis, "measured");
        assert_between(j.penalty, peers[i].penalty / 1.2, peers[i].penalty * 1.2);
    }
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F8_E4M3 };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        gac_dtype served;
        assert_true(gac_contract_dtype(measured, dtypes[i], &served));
        assert_int_equal(served, dtypes[i]);
    }
    assert_int_equal(gac_contract_multiple(measured, GAC_OP_GEMM_N, GAC_DTYPE_F16), 8);
    assert_int_equal(gac_contract_multiple(measured, GAC_OP_SDPA_HEAD, GAC_DTYPE_F16), 8);
    assert_int_equal(gac_contract_multiple(measured, GAC_OP_GEMM_K, GAC_DTYPE_F8_E4M3), 32);
}

static void judge_refuses(void **state)
{
    (void)state;
    gac_judgement out;
    gac_error err = GAC_ERROR_INIT;
    assert_int_equal(gac_contract_judge(h200, GAC_OP_GEMM_N, GAC_DTYPE_F16, 0, 1, 1, &out, &err),
                     GAC_USAGE);
    assert_int_equal(
        gac_contract_judge(h200, GAC_OP_GEMM_N, GAC_DTYPE_F16, INT64_MAX, 1, 1, &out, &err),
        GAC_USAGE);
    assert_int_equal(gac_contract_judge(h200, GAC_OP_GEMM_N, GAC_DTYPE_F16, 8, 0, 1, &out, &err),
                     GAC_USAGE);
    assert_int_equal(
        gac_contract_judge(h200, GAC_OP_AXIS_COUNT, GAC_DTYPE_F16, 8, 1, 1, &out, NULL), GAC_USAGE);
    assert_int_equal(gac_contract_judge(h200, GAC_OP_GEMM_N, GAC_DTYPE_U8, 8, 1, 1, &out, &err),
                     GAC_USAGE);
    assert_non_null(strstr(err.text, "h200"));
}

/* Follows path ("gemm/F16/n/0/multiple") to the container of its last step. */
static json_t *find_container(json_t *root, const char *path, char *last, size_t size)
{
    char copy[128];
    char *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root;
    char *step = strtok_r(copy, "/", &save);
    for (char *next = strtok_r(NULL, "/", &save); next; next = strtok_r(NULL, "/", &save)) {
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(step)) : json_object_get(at, step);
        step = next;
    }
    snprintf(last, size, "%s", step);
    assert_non_null(at);
    return at;
}

/* The file as a tree. The caller frees it. */
static json_t *whole(const gac_contract *contract)
{
    json_t *root = NULL;
    char *text = NULL;
    size_t n_bytes;
    assert_int_equal(gac_contract_write(contract, &text, &n_bytes, NULL), GAC_OK);
    root = json_loadb(text, n_bytes, 0, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

/* The contract by rates as text with one value replaced or, without a
 * value, taken away. The caller frees it. */
static char *spoil(const char *path, const char *value)
{
    char last[64];
    json_t *root = whole(h200);
    json_t *container = find_container(root, path, last, sizeof last);
    json_t *replacement = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || replacement);
    if (json_is_array(container) && value)
        json_array_set_new(container, (size_t)atoi(last), replacement);
    else if (json_is_array(container))
        json_array_remove(container, (size_t)atoi(last));
    else if (value)
        json_object_set_new(container, last, replacement);
    else
        assert_int_equal(json_object_del(container, last), 0);
    char *text = json_dumps(root, 0);
    json_decref(root);
    assert_non_null(text);
    return text;
}

/* What is written reads back as the same structure, for which the text is a witness: it
 * has every field. */
static void written_is_what_was_read(void **state)
{
    (void)state;
    for (int i = 0; i <= gac_contract_n_bundled(); i++) {
        gac_contract *contract = h200, *again = NULL;
        char *first = NULL, *second = NULL;
        size_t n_first, n_second;
        if (i < gac_contract_n_bundled())
            assert_int_equal(
                gac_contract_load_bundled(gac_contract_bundled_name(i), &contract, NULL), GAC_OK);
        assert_int_equal(gac_contract_write(contract, &first, &n_first, NULL), GAC_OK);
        assert_int_equal(gac_contract_parse(first, n_first, "first", &again, NULL), GAC_OK);
        assert_non_null(again->memory);
        assert_int_equal(gac_contract_write(again, &second, &n_second, NULL), GAC_OK);
        assert_int_equal(n_first, n_second);
        assert_memory_equal(first, second, n_first);
        for (int d = 0; d < GAC_DTYPE_COUNT; d++)
            for (int64_t size = 1; size < 10000; size = size * 5 + 3) {
                double a = gac_contract_gemm_us(contract, (gac_dtype)d, 16, size, 4096);
                double b = gac_contract_gemm_us(again, (gac_dtype)d, 16, size, 4096);
                assert_true(a == b || (isnan(a) && isnan(b)));
            }
        gac_contract_free(again);
        free(first);
        free(second);
    }
}

/* Names without case, spaces and vendor; aliases of the same chip. */
/* A contract that a program fills is checked, sorted and copied. */
static void made_is_copied(void **state)
{
    static const gac_contract_point points[] = { { GAC_DTYPE_F16, 2, 8, 8, 3.5 },
                                                 { GAC_DTYPE_F16, 1, 8, 8, 2.25 } };
    gac_contract made = *h200, *copy = NULL;
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    made.points = points;
    made.n_points = 2;
    assert_int_equal(gac_contract_copy(&made, "made", &copy, &err), GAC_OK);
    assert_ptr_not_equal(copy->points, points);
    assert_int_equal(copy->n_points, 2);
    assert_true(gemm(copy, 1, 8, 8) == 2.25 && gemm(copy, 2, 8, 8) == 3.5);
    assert_string_equal(copy->name, h200->name);
    gac_contract_free(copy);
    copy = NULL;
    made.gpu = "";
    assert_int_equal(gac_contract_copy(&made, "made", &copy, &err), GAC_BAD_INPUT);
    assert_non_null(strstr(err.text, "made"));
    assert_non_null(strstr(err.text, "$.gpu"));
    assert_null(copy);
}

static void runtime_is_read(void **state)
{
    gac_runtime *runtime = NULL;
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    const char *path = "experiments/validation/advice/runtime.h200.json";
    assert_int_equal(gac_contract_load_runtime(path, &runtime, &err), GAC_OK);
    assert_true(runtime->layer_us > 0 && runtime->name[0] && runtime->torch[0]);
    gac_contract_free_runtime(runtime);
    runtime = NULL;
    path = "tests/data/contracts/small.json";
    assert_int_equal(gac_contract_load_runtime(path, &runtime, &err), GAC_BAD_INPUT);
    assert_non_null(strstr(err.text, "small.json"));
    assert_non_null(strstr(err.text, "$.basis"));
    assert_null(runtime);
}

static void bundled_have_aliases(void **state)
{
    static const char *const names[][2] = {
        { "H200", "h200" },
        { "NVIDIA H200", "h200" },
        { "A100", "a100" },
        { "NVIDIA A100 80GB", "a100" },
        { "a100-80gb", "a100" },
        { "GeForce RTX 4090", "sm_89" },
        { "NVIDIA H100 80GB HBM3", "sm_90" },
        { "L40S", "sm_89" },
        { "b200", "sm_100" },
        { "5090", "sm_120" },
        { "rtx-3090", "sm_86" },
        { "A30", "sm_80" },
        { "A100-SXM4-40GB", "a100" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gac_contract *contract = NULL;
        assert_int_equal(gac_contract_load_bundled(names[i][0], &contract, NULL), GAC_OK);
        assert_string_equal(contract->name, names[i][1]);
        assert_null(contract->memory);
        gac_contract_free(contract);
    }
}

/* Without times sizes are judged, and nothing is predicted. */
static void assumed_contracts_only_judge(void **state)
{
    gac_contract *contract = NULL;
    gac_error err = GAC_ERROR_INIT;
    gac_sdpa_shape shape = { 1, 32, 8, 2048, 2048, 128, 128, true };
    (void)state;
    assert_int_equal(gac_contract_load_bundled("4090", &contract, NULL), GAC_OK);
    assert_false(gac_contract_has_times(contract, GAC_DTYPE_F16));
    assert_true(gac_contract_has_times(measured, GAC_DTYPE_F16));
    assert_true(isnan(gac_contract_gemm_us(contract, GAC_DTYPE_F16, 16, 4096, 4096)));
    assert_true(isnan(gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &shape)));
    assert_int_equal(gac_contract_multiple(contract, GAC_OP_GEMM_K, GAC_DTYPE_F8_E4M3), 16);
    gac_judgement j = judge(contract, GAC_OP_GEMM_N, 107, 16, 4096);
    assert_false(j.aligned);
    assert_true(isnan(j.penalty));
    assert_string_equal(j.basis, "assumed");
    assert_true(judge(contract, GAC_OP_SDPA_HEAD, 128, 0, 0).aligned);
    assert_false(judge(contract, GAC_OP_SDPA_HEAD, 107, 0, 0).aligned);
    assert_int_equal(judge(contract, GAC_OP_SDPA_HEAD, 300, 0, 0).tier, 2);
    assert_int_equal(gac_contract_load_bundled("MI300X", &contract, &err), GAC_USAGE);
    assert_non_null(strstr(err.text, "AMD"));
}

/* One row has kernels of its own, and without their names none. */
static void one_row_has_its_own_kernel(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_judgement j = judge(h200, GAC_OP_GEMM_N, 4095, 1, 4096);
    assert_null(j.kernel);
    assert_null(j.family);
    char *text = spoil("gemm/F16/n/2/decode_kernel", "\"gemv2T\"");
    assert_int_equal(gac_contract_parse(text, strlen(text), "x", &with, NULL), GAC_OK);
    j = judge(with, GAC_OP_GEMM_N, 4095, 1, 4096);
    assert_string_equal(j.kernel, "gemv2T");
    assert_null(j.family);
    j = judge(with, GAC_OP_GEMM_N, 4095, 2, 4096);
    assert_string_equal(j.family, "cutlass-align1");
    assert_non_null(j.kernel);
    gac_contract_free(with);
    free(text);
    j = judge(measured, GAC_OP_GEMM_K, 4095, 1, 4096);
    assert_string_equal(j.family, "gemv");
}

typedef struct bad_contract {
    const char *path;
    const char *value; /* NULL: the key is missing */
    const char *message;
} bad_contract;

static const bad_contract bad_contracts[] = {
    { "schema", "\"gac.contract/3\"", "$.schema: must be gac.contract/2" },
    { "schema", NULL, "$.schema: must be gac.contract/2" },
    { "name", NULL, "$.name: must be a string" },
    { "name", "\"\"", "$.name: must be a string" },
    { "name", "7", "$.name: must be a string" },
    { "gpu", "\"a\\u001b[2J\"", "$.gpu: must be a string of 1 to 512 printable bytes" },
    { "arch", "null", "$.arch: must be a string" },
    { "provisional", "1", "$.provisional: must be true or false" },
    { "stack", "[]", "$.stack: must be an object" },
    { "stack/cuda", "13", "$.stack.cuda: must be a string" },
    { "stack/a\tb", "\"x\"", "$.stack: must have keys" },
    { "sources", "{}", "$.sources: must be an array" },
    { "sources/1", "5", "$.sources[1]: must be a string" },
    { "dtypes", "[]", "$.dtypes: must have an entry" },
    { "dtypes", "[\"F16\",\"F16\"]", "$.dtypes[1]: must not repeat" },
    { "dtypes", "[\"F17\"]", "$.dtypes[0]: must be a dtype" },
    { "dtypes", "[\"BF16\"]", "$.gemm.BF16: must be an object" },
    { "stands_for", NULL, "$.stands_for: must be an object" },
    { "stands_for/F16", "{\"dtype\":\"F16\",\"reason\":\"x\"}", "$.stands_for.F16: must name" },
    { "stands_for/what", "{\"dtype\":\"F16\",\"reason\":\"x\"}",
      "$.stands_for.what: must be named" },
    { "stands_for/I8", "{\"dtype\":\"BF16\",\"reason\":\"x\"}", "$.stands_for.I8.dtype: must be" },
    { "stands_for/I8", "\"F16\"", "$.stands_for.I8: must be an object" },
    { "stands_for/I8", "{\"dtype\":\"F16\"}", "$.stands_for.I8.reason: must be a string" },
    { "gemm/F32", "{\"n\":[],\"k\":[]}", "$.dtypes: must list every dtype of gemm and sdpa" },
    { "gemm", "7", "$.gemm: must be an object" },
    { "gemm/F16", NULL, "$.gemm.F16: must be an object" },
    { "gemm/F16/n", NULL, "$.gemm.F16.n: must be an array" },
    { "gemm/F16/n", "[]", "$.gemm.F16.n: must end with a tier whose multiple is 1" },
    { "gemm/F16/n", "[1]", "$.gemm.F16.n[0]: must be an object" },
    { "gemm/F16/k/2", NULL, "$.gemm.F16.k: must end with a tier whose multiple is 1" },
    { "gemm/F16/n/0/multiple", "0", "$.gemm.F16.n[0].multiple: must be an integer from 1 to 4096" },
    { "gemm/F16/n/0/multiple", "-8", "$.gemm.F16.n[0].multiple: must be an integer" },
    { "gemm/F16/n/0/multiple", "8.0", "$.gemm.F16.n[0].multiple: must be an integer" },
    { "gemm/F16/n/0/multiple", "99999999", "$.gemm.F16.n[0].multiple: must be an integer" },
    { "gemm/F16/n/1/multiple", "8", "$.gemm.F16.n[1].multiple: must be less" },
    { "gemm/F16/n/0/aligned", "false", "$.gemm.F16.n[0].aligned: must be true" },
    { "gemm/F16/n/2/aligned", "true", "$.gemm.F16.n[2].aligned: must not be true" },
    { "gemm/F16/n/0/aligned", NULL, "$.gemm.F16.n[0].aligned: must be true or false" },
    { "gemm/F16/n/0/kernel", NULL, "$.gemm.F16.n[0].kernel: must be a string" },
    { "gemm/F16/n/0/family", "[]", "$.gemm.F16.n[0].family: must be a string" },
    { "gemm/F16/n/0/decode_kernel", "7", "$.gemm.F16.n[0].decode_kernel: must be a string" },
    { "gemm/F16/n/0/decode_family", "\"\"", "$.gemm.F16.n[0].decode_family: must be a string" },
    { "gemm/F16/n/0/basis", "\"guessed\"", "$.gemm.F16.n[0].basis: must be measured" },
    { "gemm/F16/n/0/decode_basis", NULL, "$.gemm.F16.n[0].decode_basis: must be measured" },
    { "gemm/F16/n/0/flops_per_s", "0", "$.gemm.F16.n[0].flops_per_s: must be from 1000 to 1e+20" },
    { "gemm/F16/n/0/flops_per_s", "-1e12", "$.gemm.F16.n[0].flops_per_s: must be from" },
    { "gemm/F16/n/0/flops_per_s", "1e300", "$.gemm.F16.n[0].flops_per_s: must be from" },
    { "gemm/F16/n/0/flops_per_s", "\"1e12\"", "$.gemm.F16.n[0].flops_per_s: must be a number" },
    { "gemm/F16/k/1/bytes_per_s", "null", "$.gemm.F16.k[1].bytes_per_s: must be a number" },
    { "gemm/F16/k/1/edge_bytes_per_s", NULL, "$.gemm.F16.k[1]: must state all rates" },
    { "gemm/F16/k/1/overhead_us", "-1", "$.gemm.F16.k[1].overhead_us: must be from 0" },
    { "gemm/F16/k/1/overlap", "1.5", "$.gemm.F16.k[1].overlap: must be from 0 to 1" },
    { "gemm/F16/k/1/gemv_bytes_per_s", "0", "$.gemm.F16.k[1].gemv_bytes_per_s: must be from" },
    { "gemm/F16/k/1/gemv_overhead_us", NULL, "$.gemm.F16.k[1]: must state all rates" },
    { "sdpa", NULL, "$.sdpa: must be an object" },
    { "sdpa/F16/reference", NULL, "$.sdpa.F16.reference: must be an object" },
    { "sdpa/F16/reference/n_q", "0", "$.sdpa.F16.reference.n_q: must be an integer" },
    { "sdpa/F16/reference/causal", NULL, "$.sdpa.F16.reference.causal: must be true or false" },
    { "sdpa/F16/max_head", "0", "$.sdpa.F16.max_head: must be an integer" },
    { "sdpa/F16/max_head", "128", "$.sdpa.F16.points: has a head size above max_head" },
    { "sdpa/F16/tiers/1", NULL, "$.sdpa.F16.tiers: must end with" },
    { "sdpa/F16/tiers/1/pad_bytes_per_s", "0", "$.sdpa.F16.tiers[1].pad_bytes_per_s: must be" },
    { "sdpa/F16/decode", NULL, "$.sdpa.F16.decode: must be an object" },
    { "sdpa/F16/decode/bytes_per_s", "0", "$.sdpa.F16.decode.bytes_per_s: must be from" },
    { "sdpa/F16/decode/basis", "1", "$.sdpa.F16.decode.basis: must be measured" },
    { "sdpa/F16/points", "[]", "$.sdpa.F16.points: must have an entry" },
    { "sdpa/F16/points", "[[64,1]]", "$.sdpa.F16.points: must have an entry of every tier" },
    { "sdpa/F16/points/0", "[64]", "$.sdpa.F16.points[0]: must be a pair" },
    { "sdpa/F16/points/0", "[64.5,1]", "$.sdpa.F16.points[0][0]: must be an integer" },
    { "sdpa/F16/points/0", "[64,0]", "$.sdpa.F16.points[0][1]: must be from" },
    { "sdpa/F16/points/1", "[64,1]", "$.sdpa.F16.points[1]: must have a larger head" },
    { "sdpa/F16/beyond", NULL, "$.sdpa.F16.beyond: must be an object" },
    { "sdpa/F16/beyond/points", "[]", "$.sdpa.F16.beyond.points: must have an entry" },
    { "sdpa/F16/beyond/family", "\"\"", "$.sdpa.F16.beyond.family: must be a string" },
    { "points", NULL, "$.points: must be an array" },
    { "points/0", "[1,2,3]", "$.points[0]: must be an object" },
    { "points/0/m", "0", "$.points[0].m: must be an integer from 1 to 1000000000" },
    { "points/0/n", "9223372036854775807", "$.points[0].n: must be an integer" },
    { "points/0/k", "\"4096\"", "$.points[0].k: must be an integer" },
    { "points/0/dtype", "\"BF16\"", "$.points[0].dtype: must be one of dtypes" },
    { "points/0/time_us", "0", "$.points[0].time_us: must be from" },
    { "points/3", "{\"m\":1,\"n\":4096,\"k\":4096,\"dtype\":\"F16\",\"time_us\":9}",
      "$.points: must not have two entries" },
};

static void malformed_are_rejected(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_contracts / sizeof *bad_contracts; i++) {
        const bad_contract *bad = &bad_contracts[i];
        gac_contract *contract = NULL;
        gac_error err = GAC_ERROR_INIT;
        char *text = spoil(bad->path, bad->value);
        gac_status status = gac_contract_parse(text, strlen(text), "bad.json", &contract, &err);
        if (status != GAC_BAD_INPUT || contract || strncmp(err.text, "bad.json: $", 11) != 0 ||
            !strstr(err.text, bad->message))
            fail_msg("%s = %s gave %d \"%s\", not \"%s\"", bad->path,
                     bad->value ? bad->value : "(missing)", (int)status, err.text, bad->message);
        free(text);
    }
}

static void broken_text_is_rejected(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "{", "[]", "null", "{\"schema\":1,\"schema\":1}", "{\"schema\":\"gac.contract/1\"}"
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        gac_contract *contract = NULL;
        gac_error err = GAC_ERROR_INIT;
        assert_int_equal(gac_contract_parse(texts[i], strlen(texts[i]), "x", &contract, &err),
                         GAC_BAD_INPUT);
        assert_null(contract);
        assert_memory_equal(err.text, "x: ", 3);
    }
    gac_contract *contract = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_int_equal(gac_contract_parse("", (size_t)20 << 20, "big", &contract, &err),
                     GAC_BAD_INPUT);
    assert_non_null(strstr(err.text, "at most 16777216"));
    assert_int_equal(gac_contract_load("/nonexistent/contract.json", &contract, &err),
                     GAC_BAD_INPUT);
    assert_null(contract);
}

static void too_many_points_are_rejected(void **state)
{
    (void)state;
    gac_contract *contract = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *root = whole(h200);
    json_t *points = json_object_get(root, "points");
    while (json_array_size(points) <= 100000)
        json_array_append_new(points, json_null());
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    assert_int_equal(gac_contract_parse(text, strlen(text), "many", &contract, &err),
                     GAC_BAD_INPUT);
    assert_string_equal(err.text, "many: $.points: must have at most 100000 entries");
    free(text);
}

static void unknown_keys_are_harmless(void **state)
{
    (void)state;
    static const char *const paths[] = { "new",          "stands_for/F32/new",
                                         "gemm/F16/m",   "gemm/F16/n/0/new",
                                         "sdpa/F16/new", "points/0/new" };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        gac_contract *contract = NULL;
        gac_error err = GAC_ERROR_INIT;
        char *text = spoil(paths[i], "{\"any\":[1]}");
        if (gac_contract_parse(text, strlen(text), "new.json", &contract, &err) != GAC_OK)
            fail_msg("%s: %s", paths[i], err.text);
        gac_contract_free(contract);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_are_named),
        cmocka_unit_test(dtypes_stand_in),
        cmocka_unit_test(tiers_follow_multiples),
        cmocka_unit_test(basis_is_told),
        cmocka_unit_test(penalties_as_measured),
        cmocka_unit_test(penalties_between_points),
        cmocka_unit_test(heads_beyond_the_largest),
        cmocka_unit_test(points_override_the_model),
        cmocka_unit_test(gemm_times_are_sane),
        cmocka_unit_test(sdpa_times),
        cmocka_unit_test(measured_agrees_with_peers),
        cmocka_unit_test(judge_refuses),
        cmocka_unit_test(written_is_what_was_read),
        cmocka_unit_test(made_is_copied),
        cmocka_unit_test(runtime_is_read),
        cmocka_unit_test(bundled_have_aliases),
        cmocka_unit_test(assumed_contracts_only_judge),
        cmocka_unit_test(one_row_has_its_own_kernel),
        cmocka_unit_test(malformed_are_rejected),
        cmocka_unit_test(broken_text_is_rejected),
        cmocka_unit_test(too_many_points_are_rejected),
        cmocka_unit_test(unknown_keys_are_harmless),
    };
    return cmocka_run_group_tests(tests, load_contracts, free_contracts);
}

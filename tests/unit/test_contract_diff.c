/* What gac_contract_diff notices, each by a copy in which one thing is changed. */
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

#include "contract/contract_tally.h"

static gac_contract *h200; /* the bundled one */

static int load(void **state)
{
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    if (gac_contract_load_bundled("h200", &h200, &err) == GAC_OK)
        return 0;
    print_error("%s\n", err.text);
    return -1;
}

static int unload(void **state)
{
    (void)state;
    gac_contract_free(h200);
    return 0;
}

/* The bundled contract as a tree. The caller owns it. */
static json_t *copy(void)
{
    json_t *root = NULL;
    assert_int_equal(gac_contract_json(h200, &root, NULL), GAC_OK);
    return root;
}

/* The bundled contract is A, the tree, which is freed, is B. */
static json_t *diff_with(json_t *changed, gac_dtype dtype_a, gac_dtype dtype_b)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *b = NULL;
    json_t *out = NULL;
    char *text = json_dumps(changed, 0);
    json_decref(changed);
    if (gac_contract_parse(text, strlen(text), "b.json", &b, &err) != GAC_OK ||
        gac_contract_diff(h200, dtype_a, b, dtype_b, &out, &err) != GAC_OK)
        fail_msg("%s", err.text);
    gac_contract_free(b);
    free(text);
    return out;
}

static json_t *diff_all(json_t *changed)
{
    return diff_with(changed, GAC_DTYPE_COUNT, GAC_DTYPE_COUNT);
}

static json_t *diff_f16(json_t *changed)
{
    return diff_with(changed, GAC_DTYPE_F16, GAC_DTYPE_F16);
}

/* What a path of keys and indexes, by '/', leads to. */
static json_t *at(json_t *value, const char *path)
{
    char steps[128], *save = NULL;
    snprintf(steps, sizeof steps, "%s", path);
    for (char *step = strtok_r(steps, "/", &save); step; step = strtok_r(NULL, "/", &save))
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(step))
                                     : json_object_get(value, step);
    if (!value)
        fail_msg("no %s", path);
    return value;
}

static json_t *compared(json_t *diff, const char *dtype)
{
    size_t i;
    json_t *row;
    json_array_foreach(at(diff, "compared"), i, row)
        if (strcmp(json_string_value(at(row, "dtype_a")), dtype) == 0)
            return row;
    fail_msg("%s is not compared", dtype);
    return NULL;
}

static void assert_same(json_t *diff, bool same)
{
    assert_int_equal(json_is_true(at(diff, "same")), same);
}

static void decode_kernels_count(void **state)
{
    (void)state;
    json_t *changed = copy();
    json_object_set_new(at(changed, "gemm/F16/n/2"), "decode_kernel", json_string("other"));
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    json_t *place = at(compared(diff, "F16"), "places/0");
    assert_true(json_is_true(at(place, "tiers_changed")));
    assert_string_equal(json_string_value(at(place, "tiers_b/2/decode_kernel")), "other");
    assert_int_equal(json_array_size(at(place, "touches")), 0); /* of the same family */
    json_decref(diff);

    changed = copy();
    json_object_set_new(at(changed, "gemm/F16/n/2"), "decode_family", json_string("other"));
    diff = diff_f16(changed);
    assert_same(diff, false);
    place = at(compared(diff, "F16"), "places/0");
    assert_int_equal(json_array_size(at(place, "touches")), 1);
    assert_non_null(strstr(json_string_value(at(place, "touches/0/text")),
                           "; with one row gemv in A, other in B; "));
    json_decref(diff);

    changed = copy();
    json_object_set_new(at(changed, "sdpa/F16/tiers/0"), "decode_kernel", json_string("other"));
    diff = diff_f16(changed);
    assert_same(diff, false);
    json_decref(diff);
}

static void assert_points(json_t *counts, int added, int removed, int changed)
{
    assert_int_equal(json_integer_value(at(counts, "added")), added);
    assert_int_equal(json_integer_value(at(counts, "removed")), removed);
    assert_int_equal(json_integer_value(at(counts, "changed")), changed);
}

static void exact_points_count(void **state)
{
    (void)state;
    json_t *changed = copy(), *points = at(changed, "points");
    assert_string_equal(json_string_value(at(points, "0/dtype")), "F16");
    double us = json_real_value(at(points, "0/time_us"));
    json_object_set_new(at(points, "0"), "time_us", json_real(us * 1.06));
    json_object_set_new(at(points, "1"), "time_us",
                        json_real(json_real_value(at(points, "1/time_us")) * 1.04));
    json_array_remove(points, 2);
    for (int i = 0; i < 131; i++)
        json_array_append_new(points, json_pack("{s:i, s:i, s:i, s:s, s:f}", "m", 3, "n", 77 + i,
                                                "k", 33, "dtype", "F16", "time_us", 5.0));
    json_object_set_new(changed, "sdpa_points",
                        json_pack("[{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f}]", "dtype",
                                  "BF16", "batch", 1, "n_q_heads", 8, "n_kv_heads", 8, "n_q", 64,
                                  "n_kv", 64, "qk_head", 64, "v_head", 64, "causal", 1, "time_us",
                                  5.0));
    json_t *diff = diff_all(changed);
    assert_same(diff, false);
    assert_points(at(compared(diff, "F16"), "points/gemm"), 131, 1, 1);
    assert_points(at(compared(diff, "F16"), "points/sdpa"), 0, 0, 0);
    assert_points(at(compared(diff, "BF16"), "points/gemm"), 0, 0, 0);
    assert_points(at(compared(diff, "BF16"), "points/sdpa"), 1, 0, 0);
    json_decref(diff);
}

static void runtime_figures_count(void **state)
{
    (void)state;
    json_t *changed = copy();
    json_object_set_new(at(changed, "runtime"), "layer_us", json_real(1.5));
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(json_array_size(at(diff, "runtime")), 1);
    assert_string_equal(json_string_value(at(diff, "runtime/0/key")), "layer_us");
    assert_true(json_real_value(at(diff, "runtime/0/b")) == 1.5);
    json_decref(diff);

    changed = copy();
    json_object_set_new(at(changed, "runtime"), "name", json_string("another"));
    diff = diff_f16(changed);
    assert_same(diff, true);
    assert_string_equal(json_string_value(at(diff, "runtime/0/b")), "another");
    json_decref(diff);

    changed = copy();
    json_object_del(changed, "runtime");
    diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(json_array_size(at(diff, "runtime")), 6);
    assert_true(json_is_null(at(diff, "runtime/5/b")));
    json_decref(diff);
}

static void stand_ins_are_told(void **state)
{
    (void)state;
    json_t *changed = copy();
    json_object_set_new(at(changed, "stands_for/F32"), "dtype", json_string("F16"));
    json_t *diff = diff_all(changed);
    assert_same(diff, false);
    assert_int_equal(json_array_size(at(diff, "stand_ins")), 1);
    assert_string_equal(json_string_value(at(diff, "stand_ins/0/dtype")), "F32");
    assert_string_equal(json_string_value(at(diff, "stand_ins/0/a")), "BF16");
    assert_string_equal(json_string_value(at(diff, "stand_ins/0/b")), "F16");
    assert_non_null(json_string_value(at(diff, "stand_ins/0/reason_b")));
    json_decref(diff);

    diff = diff_with(copy(), GAC_DTYPE_F16, GAC_DTYPE_F32);
    assert_string_equal(json_string_value(at(diff, "compared/0/dtype_b")), "F32");
    assert_string_equal(json_string_value(at(diff, "compared/0/served_by_b")), "BF16");
    json_decref(diff);
}

static bool lists_shape(json_t *diff, const char *shape)
{
    size_t i;
    json_t *row;
    json_array_foreach(at(diff, "compared/0/aligned"), i, row)
        if (strcmp(json_string_value(at(row, "shape")), shape) == 0)
            return true;
    return false;
}

/* 4104 is a multiple of 8, which is aligned in F16 and not in FP8. */
static void aligned_means_in_both(void **state)
{
    (void)state;
    json_t *diff = diff_f16(copy());
    assert_true(lists_shape(diff, "GEMM 256 x 4096 x 4104"));
    json_decref(diff);
    diff = diff_with(copy(), GAC_DTYPE_F16, GAC_DTYPE_F8_E4M3);
    assert_false(lists_shape(diff, "GEMM 256 x 4096 x 4104"));
    assert_true(lists_shape(diff, "GEMM 256 x 4096 x 4128"));
    json_decref(diff);
}

static json_t *class_at(json_t *place, int64_t example)
{
    size_t i;
    json_t *row;
    json_array_foreach(at(place, "touches"), i, row)
        if (json_integer_value(at(row, "example")) == example)
            return row;
    fail_msg("no class with %d", (int)example);
    return NULL;
}

/* Sizes that FP8 does not serve cost what another dtype's tiers cost: 4104 is one
 * thing and 4097 another, though both are in the last tier of FP8. */
static void unserved_sizes_go_by_what_runs(void **state)
{
    (void)state;
    json_t *changed = copy();
    json_object_set_new(at(changed, "gemm/F8_E4M3"), "falls_back_to", json_string("F16"));
    json_t *diff = diff_with(changed, GAC_DTYPE_F8_E4M3, GAC_DTYPE_F8_E4M3);
    assert_same(diff, false);
    assert_string_equal(json_string_value(at(diff, "compared/0/falls_back_a")), "BF16");
    assert_string_equal(json_string_value(at(diff, "compared/0/falls_back_b")), "F16");
    json_t *place = at(diff, "compared/0/places/1");
    assert_true(json_is_false(at(place, "tiers_a/2/served")));
    json_t *even = class_at(place, 4104), *odd = class_at(place, 4097);
    assert_non_null(strstr(json_string_value(at(even, "text")),
                           "sizes that are multiples of 8 but not of 16 are aligned in neither; "
                           "not served (BF16 nvjet) in A, not served (F16 nvjet) in B;"));
    assert_non_null(strstr(json_string_value(at(odd, "text")),
                           "sizes that are no multiples of 2 are aligned in neither; "
                           "not served (BF16 cutlass-align1) in A, "
                           "not served (F16 cutlass-align1) in B; "
                           "with one row not served (BF16 gemv) in A, "));
    assert_string_equal(json_string_value(at(odd, "runs_as_b")), "F16");
    assert_true(json_real_value(at(odd, "penalty_a")) > 2 * json_real_value(at(even, "penalty_a")));
    json_decref(diff);
}

/* A name is cut between characters, or JSON would not take the text. */
static void long_names_are_cut(void **state)
{
    (void)state;
    for (int lead = 0; lead < 2; lead++) {
        char family[402] = "x";
        for (int i = 0; i < 200; i++)
            strcpy(family + lead + 2 * i, "é");
        json_t *changed = copy();
        json_object_set_new(at(changed, "gemm/F16/n/2"), "family", json_string(family));
        json_t *diff = diff_f16(changed);
        json_t *row = class_at(at(diff, "compared/0/places/0"), 4097);
        assert_non_null(strstr(json_string_value(at(row, "text")), "; cutlass-align1 in A, "));
        json_decref(diff);
    }
}

/* Multiplies the cells of a table whose size on one axis is in a range. axes are its keys,
 * the outermost first. */
static void scale_table(json_t *table, const char *const axes[3], int axis, int64_t first,
                        int64_t last, double by)
{
    size_t n[3], at_axis[3];
    for (int i = 0; i < 3; i++)
        n[i] = json_array_size(at(table, axes[i]));
    json_t *us = at(table, "us");
    for (size_t cell = 0; cell < json_array_size(us); cell++) {
        at_axis[0] = cell / (n[1] * n[2]);
        at_axis[1] = cell / n[2] % n[1];
        at_axis[2] = cell % n[2];
        int64_t size = json_integer_value(json_array_get(at(table, axes[axis]), at_axis[axis]));
        json_t *value = json_array_get(us, cell);
        if (size >= first && size <= last && json_is_number(value))
            json_array_set_new(us, cell, json_real(json_number_value(value) * by));
    }
}

static const char *const by_n[] = { "m", "n", "k" }, *const by_k[] = { "m", "k", "n" };
static const char *const by_head[] = { "rows", "length", "head" };

/* The entry of one class (NULL: here and there) that has a number of rows; NULL for none. */
static json_t *times_of(json_t *diff, int place, const char *class, int64_t rows)
{
    size_t i;
    json_t *row;
    char path[40];
    snprintf(path, sizeof path, "compared/0/places/%d/times", place);
    json_array_foreach(at(diff, path), i, row) {
        const char *name = json_string_value(at(row, "class"));
        bool has = json_is_null(at(row, "rows")) && rows == 0;
        for (size_t j = 0; j < json_array_size(at(row, "rows")); j++)
            has = has || json_integer_value(json_array_get(at(row, "rows"), j)) == rows;
        if (has && (class ? name && strcmp(name, class) == 0 : !name))
            return row;
    }
    return NULL;
}

static size_t n_times(json_t *diff, int place)
{
    char path[40];
    snprintf(path, sizeof path, "compared/0/places/%d/times", place);
    return json_array_size(at(diff, path));
}

static void assert_range(json_t *row, int64_t first, int64_t last, double ratio)
{
    assert_non_null(row);
    assert_int_equal(json_integer_value(at(row, "n_ranges")), 1);
    assert_int_equal(json_integer_value(at(row, "ranges/0/0")), first);
    assert_int_equal(json_integer_value(at(row, "ranges/0/1")), last);
    assert_float_equal(json_real_value(at(row, "b_over_a_median")), ratio, 0.02);
}

/* Another text, so that nothing is taken for the same by its bytes or place in memory. */
static void equal_contracts_are_the_same(void **state)
{
    (void)state;
    json_t *diff = diff_all(copy());
    assert_same(diff, true);
    for (size_t i = 0; i < json_array_size(at(diff, "compared")); i++) {
        json_t *row = json_array_get(at(diff, "compared"), i);
        for (size_t j = 0; j < 3; j++)
            assert_int_equal(json_array_size(at(json_array_get(at(row, "places"), j), "times")), 0);
        assert_true(json_integer_value(at(row, "times/gemm/n_shapes")) > 100000);
        assert_true(json_real_value(at(row, "times/gemm/b_over_a")) == 1);
        assert_true(json_real_value(at(row, "times/sdpa/b_over_a")) == 1);
        assert_int_equal(json_array_size(at(row, "steps")), 0);
    }
    json_decref(diff);
}

static void every_n_is_compared(void **state)
{
    (void)state;
    json_t *changed = copy(), *table;
    size_t i;
    json_array_foreach(at(changed, "gemm/F16/dense"), i, table)
        scale_table(table, by_n, 1, 1500, 2000, 2);
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    static const int64_t rows[] = { 1, 16, 256, 512, 1024, 2048, 4096 };
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *row = times_of(diff, 0, "sizes that are multiples of 8", rows[i]);
        assert_range(row, 1504, 2000, 2);
        assert_int_equal(json_integer_value(at(row, "n_changed")), 63); /* all of them */
    }
    assert_int_equal(n_times(diff, 0), 3); /* 1, 16, and all from 256 to 4096 */
    assert_int_equal(n_times(diff, 1), 0);
    assert_int_equal(n_times(diff, 2), 0);
    json_decref(diff);
}

static void odd_sizes_are_compared(void **state)
{
    (void)state;
    json_t *changed = copy(), *table;
    size_t i;
    json_array_foreach(at(changed, "gemm/F16/times"), i, table)
        if (json_integer_value(at(table, "n_multiple")) == 1)
            scale_table(table, by_n, 1, 1, 2048, 3);
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    json_t *row = times_of(diff, 0, "sizes that are no multiples of 2", 2048);
    assert_non_null(row);
    assert_int_equal(json_integer_value(at(row, "ranges/0/0")), 65);
    assert_float_equal(json_real_value(at(row, "b_over_a_worst")), 3, 0.02);
    assert_null(times_of(diff, 0, "sizes that are multiples of 8", 2048));
    assert_null(times_of(diff, 0, "sizes that are multiples of 2 but not of 8", 2048));
    assert_int_equal(n_times(diff, 1), 0);
    json_decref(diff);
}

static void every_k_is_compared(void **state)
{
    (void)state;
    json_t *changed = copy();
    scale_table(at(changed, "gemm/F16/dense_k/0"), by_k, 1, 600, 3000, 2);
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_range(times_of(diff, 1, "aligned sizes", 1), 600, 3000, 2);
    assert_range(times_of(diff, 1, "aligned sizes", 4096), 600, 3000, 2);
    assert_null(times_of(diff, 1, "aligned sizes", 64)); /* not in the table */
    json_decref(diff);
}

static void steps_are_compared(void **state)
{
    (void)state;
    json_t *changed = copy();
    json_t *line;
    size_t i, n = 0;
    json_array_foreach(at(changed, "gemm/F16/steps"), i, line)
        n += json_array_size(at(line, "at")) > 0;
    assert_true(n > 0);
    json_object_set_new(at(changed, "gemm/F16"), "steps", json_array());
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(json_array_size(at(diff, "compared/0/steps")), n);
    assert_string_equal(json_string_value(at(diff, "compared/0/steps/0/line/place")), "n");
    assert_true(json_array_size(at(diff, "compared/0/steps/0/only_in_a")) > 0);
    assert_non_null(strstr(json_string_value(at(diff, "compared/0/steps/0/text")),
                           "steps of n with 2048 rows, k 4096: only in A "));
    json_decref(diff);

    changed = copy();
    line = at(changed, "gemm/F16/steps/0");
    json_int_t first = json_integer_value(at(line, "at/0"));
    json_array_set_new(at(line, "at"), 0, json_integer(first + 1));
    json_array_set_new(at(line, "pct"), 1, json_real(40));
    diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(json_array_size(at(diff, "compared/0/steps")), 1);
    line = at(diff, "compared/0/steps/0");
    assert_int_equal(json_integer_value(at(line, "only_in_a/0")), first);
    assert_int_equal(json_integer_value(at(line, "only_in_b/0")), first + 1);
    assert_true(json_real_value(at(line, "changed/0/b_pct")) == 40);
    json_decref(diff);
}

static void attention_is_compared(void **state)
{
    (void)state;
    json_t *changed = copy();
    scale_table(at(changed, "sdpa/F16/tiers/0/decode"), by_head, 1, 512, 512, 2);
    scale_table(at(changed, "sdpa/F16/tiers/1/prefill/0"), by_head, 2, 180, 200, 2);
    assert_true(json_is_true(at(changed, "sdpa/F16/tiers/1/prefill/0/causal")));
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(n_times(diff, 2), 2);
    json_t *causal = at(diff, "compared/0/places/2/times/0");
    json_t *decode = at(diff, "compared/0/places/2/times/1");
    assert_string_equal(json_string_value(at(causal, "phase")), "causal prefill");
    assert_string_equal(json_string_value(at(causal, "class")), "sizes that are no multiples of 8");
    assert_int_equal(json_integer_value(at(causal, "n_ranges")), 1);
    assert_string_equal(json_string_value(at(decode, "phase")), "decode");
    assert_string_equal(json_string_value(at(decode, "class")), "sizes that are multiples of 8");
    assert_int_equal(n_times(diff, 0) + n_times(diff, 1), 0);
    json_decref(diff);
}

/* One size is told, on one line; as is what is scattered over sizes and rows. */
static void few_sizes_do_not_flood(void **state)
{
    (void)state;
    json_t *changed = copy();
    scale_table(at(changed, "gemm/F16/dense/0"), by_n, 1, 1728, 1728, 2);
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_int_equal(n_times(diff, 0), 1);
    json_t *row = times_of(diff, 0, NULL, 0);
    assert_range(row, 1728, 1728, 2);
    assert_int_equal(json_integer_value(at(row, "n_changed")), 1);
    json_decref(diff);

    changed = copy();
    for (int64_t n = 264; n < 4096; n += 256)
        scale_table(at(changed, "gemm/F16/dense/0"), by_n, 1, n, n, 1.2);
    diff = diff_f16(changed);
    row = times_of(diff, 0, NULL, 0);
    assert_non_null(row);
    assert_int_equal(n_times(diff, 0), 1);
    assert_int_equal(json_array_size(at(row, "ranges")), 5);
    assert_int_equal(json_integer_value(at(row, "n_ranges")), 15);
    assert_non_null(strstr(json_string_value(at(row, "text")), " and 10 more"));
    json_decref(diff);
}

/* Where all is slower, that is said once, and no size by size. */
static void the_whole_is_told_once(void **state)
{
    (void)state;
    static const char *const lists[] = { "gemm/F16/dense", "gemm/F16/times", "gemm/F16/dense_k",
                                         "gemm/F16/dense_part" };
    json_t *changed = copy(), *table, *point;
    size_t j;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        json_array_foreach(at(changed, lists[i]), j, table)
            scale_table(table, i == 2 ? by_k : by_n, 0, 1, 1 << 20, 1.5);
    json_array_foreach(at(changed, "points"), j, point)
        json_object_set_new(point, "time_us",
                            json_real(1.5 * json_number_value(at(point, "time_us"))));
    json_t *diff = diff_f16(changed);
    assert_same(diff, false);
    assert_float_equal(json_real_value(at(diff, "compared/0/times/gemm/b_over_a")), 1.5, 0.01);
    assert_float_equal(json_real_value(at(diff, "compared/0/times/sdpa/b_over_a")), 1, 0.001);
    assert_int_equal(n_times(diff, 0) + n_times(diff, 1) + n_times(diff, 2), 0);
    json_decref(diff);
}

/* The one in the middle; between two, the geometric mean, since they are ratios. */
static void medians_of_ratios(void **state)
{
    (void)state;
    double odd[] = { 9, 1, 2 }, even[] = { 8, 1, 9, 2 }, two[] = { 0.5, 8 };
    assert_float_equal(gac_sweep_median(odd, 3), 2, 1e-12);
    assert_float_equal(gac_sweep_median(even, 4), 4, 1e-12);
    assert_float_equal(gac_sweep_median(two, 2), 2, 1e-12);
    assert_true(isnan(gac_sweep_median(two, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_kernels_count),   cmocka_unit_test(exact_points_count),
        cmocka_unit_test(runtime_figures_count),  cmocka_unit_test(stand_ins_are_told),
        cmocka_unit_test(aligned_means_in_both),  cmocka_unit_test(unserved_sizes_go_by_what_runs),
        cmocka_unit_test(long_names_are_cut),     cmocka_unit_test(equal_contracts_are_the_same),
        cmocka_unit_test(every_n_is_compared),    cmocka_unit_test(odd_sizes_are_compared),
        cmocka_unit_test(every_k_is_compared),    cmocka_unit_test(steps_are_compared),
        cmocka_unit_test(attention_is_compared),  cmocka_unit_test(few_sizes_do_not_flood),
        cmocka_unit_test(the_whole_is_told_once), cmocka_unit_test(medians_of_ratios),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

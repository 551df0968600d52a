/* Contracts whose times are measured tables: a synthetic GPU whose times are
 * powers of the sizes, so that interpolation must be exact. */
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

#include "made_contract.h"

static void powers_are_interpolated_exactly(void **state)
{
    (void)state;
    assert_close(f16(16, 512, 64), true_gemm_us(16, 512, 64, 1));
    assert_close(f16(100, 1000, 2000), true_gemm_us(100, 1000, 2000, 1));
    assert_close(f16(1, 4096, 4096), true_gemm_us(1, 4096, 4096, 1));
}

static void pairs_of_tiers_have_their_own_times(void **state)
{
    (void)state;
    assert_close(f16(100, 1001, 2000), true_gemm_us(100, 1001, 2000, 2));
    assert_close(f16(100, 1000, 2001), true_gemm_us(100, 1000, 2001, 3));
    assert_close(f16(100, 1001, 2001), true_gemm_us(100, 1001, 2001, 5));
}

static void past_the_table_time_is_proportional(void **state)
{
    (void)state;
    assert_close(f16(16, 8192, 512), 2 * f16(16, 4096, 512));
    assert_close(f16(16, 512, 16384), 4 * f16(16, 512, 4096));
    assert_close(f16(8192, 512, 512), 2 * f16(4096, 512, 512));
    assert_close(f16(16, 8, 512), f16(16, 64, 512)); /* below it, launching is what is left */
}

static void what_was_not_measured_follows_the_rows(void **state)
{
    (void)state;
    assert_close(f16(4096, 4096, 4096), 16 * f16(256, 4096, 4096));
}

static void unserved_sizes_fall_back(void **state)
{
    (void)state;
    gac_judgement j;
    assert_close(gac_contract_gemm_us(contract, GAC_DTYPE_F8_E4M3, 16, 512, 512),
                 true_gemm_us(16, 512, 512, 0.5));
    assert_close(gac_contract_gemm_us(contract, GAC_DTYPE_F8_E4M3, 16, 513, 512),
                 f16(16, 513, 512));
    assert_int_equal(
        gac_contract_judge(contract, GAC_OP_GEMM_N, GAC_DTYPE_F8_E4M3, 513, 16, 512, &j, NULL),
        GAC_OK);
    assert_false(j.aligned);
    assert_true(j.penalty > 3.9);
    /* What is told of it is of the dtype that runs. */
    gac_judgement of_f16;
    assert_int_equal(
        gac_contract_judge(contract, GAC_OP_GEMM_N, GAC_DTYPE_F16, 513, 16, 512, &of_f16, NULL),
        GAC_OK);
    assert_false(j.served);
    assert_int_equal(j.runs_as, GAC_DTYPE_F16);
    assert_true(of_f16.served);
    assert_int_equal(of_f16.runs_as, GAC_DTYPE_F16);
    assert_string_equal(j.family, of_f16.family);
    assert_string_equal(j.kernel, of_f16.kernel);
    assert_int_equal(
        gac_contract_judge(contract, GAC_OP_GEMM_N, GAC_DTYPE_F8_E4M3, 512, 16, 512, &j, NULL),
        GAC_OK);
    assert_true(j.served);
    assert_int_equal(j.runs_as, GAC_DTYPE_F8_E4M3);
}

static double attend(gac_dtype dtype, int64_t n_q, int64_t n_kv, int64_t head, bool causal)
{
    gac_sdpa_shape shape = { .batch = 2,
                             .n_q_heads = 16,
                             .n_kv_heads = 4,
                             .n_q = n_q,
                             .n_kv = n_kv,
                             .qk_head = head,
                             .v_head = head,
                             .causal = causal };
    return gac_contract_sdpa_us(contract, dtype, &shape);
}

static void attention_comes_from_tables(void **state)
{
    (void)state;
    assert_close(attend(GAC_DTYPE_F16, 1024, 1024, 64, false), 32 * pow(1024, 2) * 64e-6);
    assert_close(attend(GAC_DTYPE_F16, 1024, 1024, 64, true), 16 * pow(1024, 2) * 64e-6);
    assert_close(attend(GAC_DTYPE_F16, 1, 1024, 64, false), 100 * 8 * 1024 * 64e-6);
    assert_close(attend(GAC_DTYPE_F8_E4M3, 1024, 1024, 64, false), 32 * pow(1024, 2) * 64e-6);
    /* The curve knows that 96 takes twice what its neighbours suggest. */
    assert_close(attend(GAC_DTYPE_F16, 1024, 1024, 96, false), 2 * 32 * pow(1024, 2) * 96e-6);
    assert_true(attend(GAC_DTYPE_F16, 1024, 1024, 107, false) >
                3 * attend(GAC_DTYPE_F16, 1024, 1024, 112, false));
}

/* Past its tables attention grows with the square of the length, and in decode with the
 * length. */
static void attention_goes_on_past_its_tables(void **state)
{
    (void)state;
    assert_close(attend(GAC_DTYPE_F16, 8192, 8192, 64, false),
                 4 * attend(GAC_DTYPE_F16, 4096, 4096, 64, false));
    assert_close(attend(GAC_DTYPE_F16, 1, 8192, 64, false),
                 2 * attend(GAC_DTYPE_F16, 1, 4096, 64, false));
}

/* A length that was not measured follows the one before it in the same way. */
static void lengths_that_were_not_measured_follow(void **state)
{
    static const char *const tables[] = { "prefill/0", "decode" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        gac_contract *with = NULL, *without = contract;
        gac_error err = GAC_ERROR_INIT;
        char path[64];
        json_t *json = make_contract();
        for (int cell = 2; cell < 8; cell += cell == 3 ? 3 : 1) { /* both rows, both heads */
            snprintf(path, sizeof path, "sdpa/F16/tiers/0/%s/us/%d", tables[i], cell);
            set_path(json, path, "null");
        }
        double expected = attend(GAC_DTYPE_F16, i ? 1 : 2048, 2048, 64, false);
        assert_int_equal(parse(json, &with, &err), GAC_OK);
        contract = with;
        assert_close(attend(GAC_DTYPE_F16, i ? 1 : 2048, 2048, 64, false), expected);
        contract = without;
        gac_contract_free(with);
        json_decref(json);
    }
}

/* Copies of keys and values are fewer where heads of queries share them. */
static void shared_keys_are_copied_once(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "sdpa/F16/tiers/1/pad_bytes_per_s", "1e12");
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    gac_sdpa_shape shape = { .batch = 1,
                             .n_q_heads = 32,
                             .n_kv_heads = 32,
                             .n_q = 1024,
                             .n_kv = 1024,
                             .qk_head = 107,
                             .v_head = 107 };
    double each_us = gac_contract_sdpa_us(with, GAC_DTYPE_F16, &shape);
    shape.n_kv_heads = 8;
    double fewer_us = 24 * 1024.0 * 2 * 107 * 2 / 1e12 * 1e6;
    assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &shape), each_us - fewer_us);
    shape.qk_head = shape.v_head = 112; /* no copies there */
    double aligned_us = gac_contract_sdpa_us(with, GAC_DTYPE_F16, &shape);
    shape.n_kv_heads = 32;
    assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &shape), aligned_us);
    gac_contract_free(with);
    json_decref(json);
}

#define EVERY_N \
    "[{\"n_multiple\": 8, \"k_multiple\": 8, \"m\": [256], \"n\": [64], \"k\": [512], \"us\": " \
    "[7]}, " \
    "{\"n_multiple\": 8, \"k_multiple\": 8, \"m\": [16, 100], \"n\": [64, 72, 80], \"k\": [512, " \
    "1536], \"us\": [1, 2, 3, 4, 5, 6, 7, 8, null, 10, 11, 12]}, {\"n_multiple\": 8, " \
    "\"k_multiple\": 8, " \
    "\"m\": [100], \"n\": [88, 4096], \"k\": [512], \"us\": [50, 60]}]"

static void every_n_counts_at_its_rows(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "gemm/F16/every_n", EVERY_N);
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const struct {
        int64_t m, n, k;
        double expected;
    } cases[] = {
        { 16, 64, 512, 1 },   { 16, 72, 1536, 4 },
        { 100, 80, 512, 11 }, { 16, 72, 1024, 3.5 }, /* a line between k */
        { 100, 88, 512, 50 },                        /* the last table */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, cases[i].m, cases[i].n, cases[i].k),
                     cases[i].expected);
    /* What was too long or was lost is for the other table. */
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 100, 72, 512), f16(100, 72, 512));
    /* Before its k it fades into the other table where rows are few, and else shrinks as
     * that does; past it grows as that does, by as many microseconds and not below half;
     * other rows, an n that it has not, and sizes that are of another tier, are not its
     * business. */
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 16, 64, 256),
                 f16(16, 64, 256) * sqrt(1 / f16(16, 64, 512)));
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 256, 64, 256),
                 7 * f16(256, 64, 256) / f16(256, 64, 512));
    double more_us = 60 - f16(100, 4096, 512);
    assert_true(more_us > 0);
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 100, 4096, 2048),
                 f16(100, 4096, 2048) + more_us);
    set_path(json, "gemm/F16/every_n/2/us", "[50, 1e-6]");
    gac_contract_free(with);
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 100, 4096, 520),
                 f16(100, 4096, 520) / 2);
    static const int64_t others[][3] = { { 17, 64, 512 }, { 16, 65, 512 },   { 16, 64, 513 },
                                         { 16, 56, 512 }, { 16, 88, 512 },   { 100, 96, 512 },
                                         { 1, 64, 512 },  { 100, 4104, 512 } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_close(
            gac_contract_gemm_us(with, GAC_DTYPE_F16, others[i][0], others[i][1], others[i][2]),
            f16(others[i][0], others[i][1], others[i][2]));
    gac_contract_free(with);
    json_decref(json);
}

/* With lines of 64. */
static int64_t whole_k(int64_t k)
{
    return (k + 63) / 64 * 64;
}

/* Times that no GPU has are told as some time all the same. */
static void far_apart_times_stay_times(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "gemm/F16/every_n",
             "[{\"n_multiple\": 8, \"k_multiple\": 8, \"m\": [256], \"n\": [128], \"k\": [64, "
             "8192], \"us\": [1e12, 1e-6]}]");
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    for (int64_t n = 120; n <= 264; n += 8)
        for (int64_t k = 56; k <= 16384; k += 8) {
            double us = gac_contract_gemm_us(with, GAC_DTYPE_F16, 256, n, k);
            assert_true(isfinite(us) && us > 0);
        }
    gac_contract_free(with);
    json_decref(json);
}

/* A better k helps an n of 2 only where rows begin at cache lines; an odd n
 * always has the table of its own k. */
static void narrow_n_makes_narrow_k(void **state)
{
    static const int64_t multiples[] = { 8, 2, 1 };
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *f16 = json_object_get(json_object_get(json, "gemm"), "F16"), *times = json_array();
    for (int place = 0; place < 2; place++) {
        json_t *list = json_object_get(f16, place ? "k" : "n");
        json_t *middle = json_deep_copy(json_array_get(list, 1));
        json_object_set_new(middle, "multiple", json_integer(2));
        json_array_insert_new(list, 1, middle);
    }
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 3; k++)
            json_array_append_new(times,
                                  gemm_table(multiples[n], multiples[k], 1 + 3.0 * n + (double)k));
    json_object_set_new(f16, "grid", times);
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const struct {
        int64_t n, k;
        double factor;
    } cases[] = { { 1002, 1024, 4 }, { 1002, 1088, 4 }, { 1002, 1032, 5 }, { 1002, 1056, 5 },
                  { 1002, 1034, 5 }, { 1002, 1035, 6 }, { 1003, 1032, 7 }, { 1000, 1032, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 100, cases[i].n, cases[i].k),
                     true_gemm_us(100, (double)cases[i].n, (double)cases[i].k, cases[i].factor));
    gac_contract_free(with);
    json_decref(json);
}

/* A k that fills no whole number of cache lines takes as long as the next that does, and
 * longer by a factor, where n is aligned. */
static void shared_lines_cost(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "gemm/F16/k_cacheline",
             "{\"multiple\": 64, \"costs\": [{\"multiple\": 32, \"factor\": 1.02}, "
             "{\"multiple\": 8, \"factor\": 1.1}]}");
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const struct {
        int64_t m, n, k;
        double factor; /* 0: n is not aligned */
    } cases[] = { { 16, 1024, 1024, 1 },   { 16, 1024, 1056, 1.02 }, { 4096, 1024, 1056, 1.02 },
                  { 16, 1024, 1040, 1.1 }, { 256, 1024, 1032, 1.1 }, { 16, 1001, 1032, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool aligned = cases[i].factor > 0;
        assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, cases[i].m, cases[i].n, cases[i].k),
                     f16(cases[i].m, cases[i].n, aligned ? whole_k(cases[i].k) : cases[i].k) *
                         (aligned ? cases[i].factor : 1));
    }
    gac_contract_free(with);
    json_decref(json);
}

/* A file of gac.contract/1: other names, a factor for every m times n, and parts that
 * have no successor. */
static void the_first_schema_is_read(void **state)
{
    (void)state;
    gac_contract *old = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *gemm = json_object_get(json_object_get(json, "gemm"), "F16");
    set_path(json, "schema", "\"gac.contract/1\"");
    json_object_set(gemm, "times", json_object_get(gemm, "grid"));
    json_object_del(gemm, "grid");
    set_path(json, "gemm/F16/times/0/wave", "{\"units\": 132}");
    set_path(json, "gemm/F16/dense", EVERY_N);
    set_path(json, "gemm/F16/dense_k", "[7]");
    set_path(json, "gemm/F16/steps", "[]");
    set_path(json, "gemm/F16/lines",
             "{\"multiple\": 64, \"parts\": [8], \"mn\": [1, 2, 4], \"factor\": [[1, 1.5, 4]]}");
    set_path(json, "accuracy",
             "{\"ranking\": {\"F16\": {\"n_over_5_pct\": 3, \"choice\": {\"n_groups\": 2, "
             "\"mean_pct\": 0.5}, \"typical\": {\"right_pct\": 99}}}}");
    if (parse(json, &old, &err) != GAC_OK)
        fail_msg("%s", err.text);
    assert_close(gac_contract_gemm_us(old, GAC_DTYPE_F16, 16, 72, 1536), 4);
    assert_close(gac_contract_gemm_us(old, GAC_DTYPE_F16, 16, 1024, 1032),
                 1.5 * f16(16, 1024, 1088));
    const gac_contract_ranking *ranking = old->accuracy->ranking[GAC_DTYPE_F16];
    assert_int_equal(ranking->random_widths->n_over_5_pct, 3);
    assert_true(ranking->random_widths->regret_mean_pct == 0.5);
    assert_true(ranking->common_widths->right_pct == 99);
    gac_contract_free(old);
    json_decref(json);
}

static void one_row_has_its_own_table(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *times = json_object_get(json_object_get(json_object_get(json, "gemm"), "F16"), "grid");
    json_array_append_new(times,
                          json_pack("{s:i, s:i, s:[i], s:[i], s:[i], s:[f]}", "n_multiple", 8,
                                    "k_multiple", 8, "m", 1, "n", 64, "k", 64, "us", 42.0));
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 1, 64, 64), 42);
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 2, 64, 64), f16(2, 64, 64));
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 1, 65, 64), f16(1, 65, 64));
    gac_contract_free(with);
    /* A pair without a table takes that of the better k. */
    json_array_remove(times, 4);
    json_array_remove(times, 3);
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 16, 513, 513),
                 f16(16, 513, 513) * 2 / 5);
    gac_contract_free(with);
    json_decref(json);
}

static void exact_points_win(void **state)
{
    (void)state;
    gac_contract *exact = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_object_set_new(json, "points",
                        json_pack("[{s:i, s:i, s:i, s:s, s:f}]", "m", 16, "n", 512, "k", 512,
                                  "dtype", "F16", "time_us", 777.0));
    json_object_set_new(json, "sdpa_points",
                        json_pack("[{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f}]", "dtype",
                                  "F16", "batch", 2, "n_q_heads", 16, "n_kv_heads", 4, "n_q", 1024,
                                  "n_kv", 1024, "qk_head", 64, "v_head", 64, "causal", 1, "time_us",
                                  555.0));
    assert_int_equal(parse(json, &exact, &err), GAC_OK);
    gac_sdpa_shape shape = { 2, 16, 4, 1024, 1024, 64, 64, true };
    assert_true(gac_contract_gemm_us(exact, GAC_DTYPE_F16, 16, 512, 512) == 777.0);
    assert_true(gac_contract_sdpa_us(exact, GAC_DTYPE_F16, &shape) == 555.0);
    shape.causal = false;
    assert_true(gac_contract_sdpa_us(exact, GAC_DTYPE_F16, &shape) != 555.0);
    gac_contract_free(exact);
    json_decref(json);
}

static void a_runtime_is_told(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    gac_runtime runtime;
    assert_false(gac_contract_runtime(contract, &runtime));
    json_t *json = make_contract();
    json_object_set_new(json, "runtime",
                        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "name", "eager", "basis",
                                  "measured", "layer_us", 100.0, "decode_layer_us", 50.0,
                                  "hidden_ps", 40.0, "width_ps", 2.0, "kv_ps", 1.0));
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    assert_true(gac_contract_runtime(with, &runtime));
    assert_string_equal(runtime.name, "eager");
    assert_true(runtime.layer_us == 100 && runtime.kv_ps == 1);
    gac_contract_free(with);
    json_decref(json);
}

/* Sets what path leads to (keys and indexes, by '/') to value. */
static void malformed_tables_are_rejected(void **state)
{
    static const struct {
        const char *path, *value, *message;
    } bad[] = {
        { "gemm/F16/grid", "7", "$.gemm.F16.grid: must be an array" },
        { "gemm/F16/grid/0", "7", "$.gemm.F16.grid[0]: must be an object" },
        { "gemm/F16/grid/0/n_multiple", "4", "$.gemm.F16.grid[0]: must be of tiers" },
        { "gemm/F16/grid/1/k_multiple", "8", "$.gemm.F16.grid[1]: must not be of the same" },
        { "gemm/F16/grid/0/m", "[]", "$.gemm.F16.grid[0].m: must have an entry" },
        { "gemm/F16/grid/0/m/1", "1", "$.gemm.F16.grid[0].m[1]: must be larger" },
        { "gemm/F16/grid/0/n/0", "0", "$.gemm.F16.grid[0].n[0]: must be an integer" },
        { "gemm/F16/grid/0/us", "[1]", "$.gemm.F16.grid[0].us: must have one entry" },
        { "gemm/F16/grid/0/us/0", "null", "$.gemm.F16.grid[0].us[0]: must be a number" },
        { "gemm/F16/grid/0/us/9", "-1", "$.gemm.F16.grid[0].us[9]: must be from" },
        { "gemm/F8_E4M3/falls_back_to", "\"F8_E4M3\"", "$.gemm.F8_E4M3.falls_back_to: must be" },
        { "gemm/F8_E4M3/falls_back_to", "\"BF16\"", "$.gemm.F8_E4M3.falls_back_to: must be" },
        { "gemm/F8_E4M3/falls_back_to", "1", "$.gemm.F8_E4M3.falls_back_to: must be a dtype" },
        { "gemm/F16/n/0/served", "false", "$.gemm.F16.n[0].aligned: must be true" },
        { "sdpa/F8_E4M3/same_as", "\"BF16\"", "$.sdpa.F8_E4M3.same_as: must be a dtype that" },
        { "sdpa/F8_E4M3/same_as", "\"F8_E4M3\"", "$.sdpa.F8_E4M3.same_as: must be a dtype that" },
        { "sdpa/F16/tiers/0/prefill/1/causal", "false", "must be one causal and one not" },
        { "sdpa/F16/tiers/0/prefill", "[]", "prefill: must be in every tier or in none" },
        { "sdpa/F16/tiers/0/decode", "[]", "$.sdpa.F16.tiers[0].decode: must be an object" },
        { "sdpa/F16/tiers/0/decode/head", "[3, 2]", ".decode.head[1]: must be larger" },
        { "gemm/F16/every_n", "{}", "$.gemm.F16.every_n: must be an array" },
        { "gemm/F16/every_n", "[1]", "$.gemm.F16.every_n[0]: must be an object" },
        { "gemm/F16/every_n", "[{}, {}, {}, {}, {}, {}, {}, {}, {}]", "$.gemm.F16.every_n: must" },
        { "gemm/F16/every_n",
          "[{\"n_multiple\": 8, \"k_multiple\": 1, \"m\": [16], \"n\": [64], \"k\": [64], "
          "\"us\": [1]}]",
          "$.gemm.F16.every_n[0]: must be of the first tiers" },
        { "gemm/F16/every_n",
          "[{\"n_multiple\": 8, \"k_multiple\": 8, \"m\": [16], \"n\": [64], \"k\": [64], "
          "\"us\": [\"x\"]}]",
          "$.gemm.F16.every_n[0].us[0]: must be a number" },
        { "gemm/F16/k_cacheline", "1", "$.gemm.F16.k_cacheline: must be an object" },
        { "gemm/F16/k_cacheline",
          "{\"multiple\": 64, \"costs\": [{\"multiple\": 48, \"factor\": 1}]}",
          "$.gemm.F16.k_cacheline.costs[0].multiple: must be less than the entry before" },
        { "gemm/F16/k_cacheline",
          "{\"multiple\": 64, \"costs\": [{\"multiple\": 32, \"factor\": 9}]}",
          "$.gemm.F16.k_cacheline.costs[0].factor: must be from" },
        { "sdpa/F16/tiers/0/tile", "0", "$.sdpa.F16.tiers[0].tile: must be an integer" },
        { "sdpa_points", "{}", "$.sdpa_points: must be an array" },
        { "sdpa_points", "[{}]", "$.sdpa_points[0].dtype: must be a dtype" },
        { "runtime", "[]", "$.runtime: must be an object" },
        { "runtime", "{\"name\": \"x\"}", "$.runtime.basis: must be measured" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gac_contract *out = NULL;
        gac_error err = GAC_ERROR_INIT;
        json_t *json = make_contract();
        set_path(json, bad[i].path, bad[i].value);
        gac_status status = parse(json, &out, &err);
        if (status != GAC_BAD_INPUT || out || !strstr(err.text, bad[i].message))
            fail_msg("%s = %s gave %d \"%s\", not \"%s\"", bad[i].path, bad[i].value, (int)status,
                     err.text, bad[i].message);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_are_interpolated_exactly),
        cmocka_unit_test(pairs_of_tiers_have_their_own_times),
        cmocka_unit_test(past_the_table_time_is_proportional),
        cmocka_unit_test(what_was_not_measured_follows_the_rows),
        cmocka_unit_test(unserved_sizes_fall_back),
        cmocka_unit_test(attention_comes_from_tables),
        cmocka_unit_test(attention_goes_on_past_its_tables),
        cmocka_unit_test(lengths_that_were_not_measured_follow),
        cmocka_unit_test(shared_keys_are_copied_once),
        cmocka_unit_test(every_n_counts_at_its_rows),
        cmocka_unit_test(far_apart_times_stay_times),
        cmocka_unit_test(narrow_n_makes_narrow_k),
        cmocka_unit_test(shared_lines_cost),
        cmocka_unit_test(the_first_schema_is_read),
        cmocka_unit_test(one_row_has_its_own_table),
        cmocka_unit_test(exact_points_win),
        cmocka_unit_test(a_runtime_is_told),
        cmocka_unit_test(malformed_tables_are_rejected),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

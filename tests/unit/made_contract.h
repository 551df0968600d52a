/* A contract whose times are measured tables: a synthetic GPU whose times are powers of
 * the sizes, so that interpolation must be exact. Include it behind cmocka.h. */
#ifndef GAC_TESTS_MADE_CONTRACT_H
#define GAC_TESTS_MADE_CONTRACT_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <gac/contract.h>

static const int64_t axis_m[] = { 1, 16, 256, 4096 };
static const int64_t axis_size[] = { 64, 512, 4096 };

static inline double true_gemm_us(double m, double n, double k, double factor)
{
    return factor * 1e-3 * pow(m, 0.5) * pow(n, 0.75) * pow(k, 0.25);
}

static inline json_t *numbers(const int64_t *values, size_t n, int64_t shift)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(values[i] + shift));
    return list;
}

/* A table of one pair of tiers; the last m of the last sizes is left out. */
static inline json_t *gemm_table(int64_t n_multiple, int64_t k_multiple, double factor)
{
    int64_t n_shift = n_multiple < 8 ? n_multiple : 0, k_shift = k_multiple < 8 ? k_multiple : 0;
    json_t *us = json_array();
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 3; n++)
            for (int k = 0; k < 3; k++)
                json_array_append_new(
                    us, m == 3 && n == 2 && k == 2
                            ? json_null()
                            : json_real(true_gemm_us((double)axis_m[m],
                                                     (double)(axis_size[n] + n_shift),
                                                     (double)(axis_size[k] + k_shift), factor)));
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "n_multiple", n_multiple, "k_multiple",
                     k_multiple, "m", numbers(axis_m, 4, 0), "n", numbers(axis_size, 3, n_shift),
                     "k", numbers(axis_size, 3, k_shift), "us", us);
}

static inline json_t *tiers(bool served)
{
    json_t *worse =
        json_pack("{s:i, s:b, s:s, s:s, s:s, s:s}", "multiple", 1, "aligned", 0, "kernel", "slow",
                  "family", "slow", "basis", "measured", "decode_basis", "measured");
    if (!served)
        json_object_set_new(worse, "served", json_false());
    return json_pack("[{s:i, s:b, s:s, s:s, s:s, s:s}, o]", "multiple", 8, "aligned", 1, "kernel",
                     "fast", "family", "fast", "basis", "measured", "decode_basis", "measured",
                     worse);
}

static inline json_t *sdpa_table(double power, double factor)
{
    static const int64_t rows[] = { 8, 128 }, lengths[] = { 256, 4096 }, heads[] = { 64, 128 };
    json_t *us = json_array();
    for (int r = 0; r < 2; r++)
        for (int l = 0; l < 2; l++)
            for (int h = 0; h < 2; h++)
                json_array_append_new(
                    us, json_real(factor * (double)rows[r] * pow((double)lengths[l], power) *
                                  (double)heads[h] * 1e-6));
    return json_pack("{s:o, s:o, s:o, s:o}", "rows", numbers(rows, 2, 0), "length",
                     numbers(lengths, 2, 0), "head", numbers(heads, 2, 0), "us", us);
}

static inline json_t *sdpa_tier(int multiple, double factor)
{
    json_t *plain = sdpa_table(2, factor), *causal = sdpa_table(2, factor / 2);
    json_object_set_new(plain, "causal", json_false());
    json_object_set_new(causal, "causal", json_true());
    return json_pack("{s:i, s:b, s:s, s:s, s:s, s:[o, o], s:o}", "multiple", multiple, "aligned",
                     multiple > 1, "kernel", "attend", "family", "attend", "basis", "measured",
                     "prefill", plain, causal, "decode", sdpa_table(1, factor * 100));
}

/* F16 whole; F8_E4M3 served at multiples of 8 only, its attention in F16. */
static inline json_t *make_contract(void)
{
    json_t *curve = json_array();
    for (int head = 64; head <= 128; head++)
        json_array_append_new(curve, json_pack("[i, f]", head, head == 96 ? 2.0 * 96 : 1.0 * head));
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:{}, s:[s], s:[s, s], s:{}, s:[], s:{s:{s:o, s:o, s:[o, o, o, "
        "o]}, s:{s:o, s:o, s:s, s:[o]}}, s:{s:{s:{s:i, s:i, s:i, s:i, s:b}, s:i, s:[o, o], s:{s:f, "
        "s:f, s:s}, s:o, s:{s:s, s:s, s:s, s:[[i, f]]}}, s:{s:s}}}",
        "schema", "gac.contract/2", "name", "synthetic", "gpu", "synthetic", "arch", "sm_00",
        "provisional", 0, "stack", "sources", "a formula", "dtypes", "F16", "F8_E4M3", "stands_for",
        "points", "gemm", "F16", "n", tiers(true), "k", tiers(true), "grid", gemm_table(8, 8, 1),
        gemm_table(8, 1, 3), gemm_table(1, 8, 2), gemm_table(1, 1, 5), "F8_E4M3", "n", tiers(false),
        "k", tiers(false), "falls_back_to", "F16", "grid", gemm_table(8, 8, 0.5), "sdpa", "F16",
        "reference", "batch", 4, "n_heads", 32, "n_q", 2048, "n_kv", 2048, "causal", 0, "max_head",
        128, "tiers", sdpa_tier(8, 1), sdpa_tier(1, 4), "decode", "bytes_per_s", 1e12,
        "overhead_us", 1.0, "basis", "measured", "points", curve, "beyond", "kernel", "math",
        "family", "math", "basis", "measured", "points", 128, 1e4, "F8_E4M3", "same_as", "F16");
}

static inline gac_status parse(const json_t *json, gac_contract **out, gac_error *err)
{
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    gac_status status = gac_contract_parse(text, strlen(text), "t.json", out, err);
    free(text);
    return status;
}

static gac_contract *contract;

static inline int load(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    if (!json || parse(json, &contract, &err) != GAC_OK) {
        print_error("%s\n", json ? err.text : "the contract could not be packed");
        return -1;
    }
    json_decref(json);
    return 0;
}

static inline int unload(void **state)
{
    (void)state;
    gac_contract_free(contract);
    return 0;
}

static inline void assert_close(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.12g is not %.12g", value, expected);
}

static inline double f16(int64_t m, int64_t n, int64_t k)
{
    return gac_contract_gemm_us(contract, GAC_DTYPE_F16, m, n, k);
}

static inline void set_path(json_t *root, const char *path, const char *value)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root;
    char *step = strtok_r(copy, "/", &save);
    for (char *next; (next = strtok_r(NULL, "/", &save)); step = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(step)) : json_object_get(at, step);
    json_t *new_value = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_true(at && new_value);
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(step), new_value);
    else
        json_object_set_new(at, step, new_value);
}

#endif

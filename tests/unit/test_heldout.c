/* The bundled contract against shapes drawn at random, in none of its tables and
 * among no points (tools/contract/heldout.py), and those of another run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/contract.h>

#include "probe/probe_internal.h"

/* The aims. A median and a 95th percentile of errors, as docs/contract.md states
 * them; and of pairs of candidates that are over 5 % apart the share in the right
 * order below which predictions would not be worth planning with. */
#define AIM_MEDIAN_PCT GAC_ROUGH_MEDIAN_PCT
#define AIM_P95_PCT GAC_ROUGH_P95_PCT
#define AIM_RIGHT_PCT 90
#define AIM_REGRET_PCT 3 /* mean; docs/contract.md states what is reached */

static gac_contract *measured;

static int load(void **state)
{
    (void)state;
    return gac_contract_load_bundled("h200", &measured, NULL) == GAC_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    gac_contract_free(measured);
    return 0;
}

static double column(const json_t *row, size_t i)
{
    return json_number_value(json_array_get(row, i));
}

/* Errors stay within the aims, as the probe reckons them. */
static void check_errors(const json_t *rows, gac_dtype dtype, bool is_gemm)
{
    size_t n = json_array_size(rows);
    double *errors_pct = calloc(n + 1, sizeof *errors_pct);
    gac_contract_errors e;
    assert_true(n >= 100 && errors_pct);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        int64_t c[7];
        for (size_t j = 0; j < 7; j++)
            c[j] = (int64_t)column(row, j);
        gac_sdpa_shape shape = { c[0], c[1], c[2], c[3], c[4], c[5], c[5], c[6] != 0 };
        double predicted_us = is_gemm ? gac_contract_gemm_us(measured, dtype, c[0], c[1], c[2])
                                      : gac_contract_sdpa_us(measured, dtype, &shape);
        errors_pct[i] = 100 * (predicted_us / column(row, is_gemm ? 3 : 7) - 1);
    }
    probe_summarise(errors_pct, (int)n, &e);
    print_message("%s %s: %zu shapes, median error %.1f %%, 95th percentile %.1f %%\n",
                  gac_dtype_name(dtype), is_gemm ? "GEMM" : "attention", n, e.median_pct,
                  e.p95_pct);
    assert_true(e.median_pct <= AIM_MEDIAN_PCT && e.p95_pct <= AIM_P95_PCT);
    free(errors_pct);
}

static double predict(const json_t *row, gac_dtype dtype)
{
    return gac_contract_gemm_us(measured, dtype, (int64_t)column(row, 0), (int64_t)column(row, 1),
                                (int64_t)column(row, 2));
}

/* Most pairs of candidates over 5 % apart are in the right order. */
static void check_ranking(const json_t *groups, gac_dtype dtype)
{
    int n = 0, n_right = 0;
    for (size_t g = 0; g < json_array_size(groups); g++) {
        const json_t *group = json_array_get(groups, g);
        for (size_t i = 0; i < json_array_size(group); i++)
            for (size_t j = i + 1; j < json_array_size(group); j++) {
                const json_t *a = json_array_get(group, i), *b = json_array_get(group, j);
                double truly = log(column(a, 3) / column(b, 3));
                double again = json_array_size(a) > 4 ? log(column(a, 4) / column(b, 4)) : truly;
                double said = log(predict(a, dtype) / predict(b, dtype));
                if (fmin(fabs(truly), fabs(again)) <= log(1.05) || truly * again < 0)
                    continue;
                n++;
                n_right += truly * said > 0;
            }
    }
    assert_true(n > 100);
    print_message("%s: %d pairs over 5 %% apart, %.1f %% right\n", gac_dtype_name(dtype), n,
                  100.0 * n_right / n);
    assert_true(100.0 * n_right / n >= AIM_RIGHT_PCT);
}

static double mean_us(const json_t *row)
{
    return (column(row, 3) + column(row, json_array_size(row) > 4 ? 4 : 3)) / 2;
}

/* The candidate that is predicted to be the fastest takes little longer than the one that is. */
static void check_regret(const json_t *groups, gac_dtype dtype)
{
    double sum = 0;
    size_t g, i, n = json_array_size(groups);
    json_t *group, *row;
    json_array_foreach(groups, g, group) {
        const json_t *chosen = NULL, *best = NULL;
        json_array_foreach(group, i, row) {
            chosen = chosen && predict(chosen, dtype) <= predict(row, dtype) ? chosen : row;
            best = best && mean_us(best) <= mean_us(row) ? best : row;
        }
        sum += 100 * (mean_us(chosen) / mean_us(best) - 1);
    }
    print_message("%s: regret %.2f %% on average\n", gac_dtype_name(dtype), sum / (double)n);
    assert_true(n > 10 && sum / (double)n <= AIM_REGRET_PCT);
}

static void predicts_recorded_shapes(void **state)
{
    static const struct {
        gac_dtype dtype;
        const char *path;
    } recorded[] = { { GAC_DTYPE_F16, "tests/data/heldout/h200_f16.json" },
                     { GAC_DTYPE_BF16, "tests/data/heldout/h200_bf16.json" },
                     { GAC_DTYPE_F8_E4M3, "tests/data/heldout/h200_f8_e4m3.json" },
                     { GAC_DTYPE_F16, "tests/data/heldout/other_f16.json" },
                     { GAC_DTYPE_BF16, "tests/data/heldout/other_bf16.json" },
                     { GAC_DTYPE_F8_E4M3, "tests/data/heldout/other_f8_e4m3.json" } };
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        json_t *data = json_load_file(recorded[i].path, 0, NULL);
        assert_non_null(data);
        check_errors(json_object_get(data, "gemm"), recorded[i].dtype, true);
        if (recorded[i].dtype != GAC_DTYPE_F8_E4M3) /* attention runs in 16 bits */
            check_errors(json_object_get(data, "sdpa"), recorded[i].dtype, false);
        check_ranking(json_object_get(data, "random_widths"), recorded[i].dtype);
        check_ranking(json_object_get(data, "common_widths"), recorded[i].dtype);
        check_regret(json_object_get(data, "random_widths"), recorded[i].dtype);
        check_regret(json_object_get(data, "common_widths"), recorded[i].dtype);
        json_decref(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predicts_recorded_shapes),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

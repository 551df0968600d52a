/* What tiles and waves of them waste is taken off tables and put back. */
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

#include "contract/contract_wave.h"
#include "made_contract.h"

/* Work over work asked for on 100 units with tiles of 128 x 128. */
static double waste(double m, double n)
{
    double tiles = ceil(m / 128) * ceil(n / 128);
    double tile_m = m < 128 ? m : 128; /* cut down to the rows */
    return (tiles > 100 ? ceil(tiles / 100) * 100 : tiles) * tile_m * 128 / (m * n);
}

static void waves_are_taken_off_and_put_back(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *table = json_array_get(
        json_object_get(json_object_get(json_object_get(json, "gemm"), "F16"), "times"), 0);
    json_t *us = json_object_get(table, "us");
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 3; n++)
            for (int k = 0; k < 3; k++) {
                size_t cell = (size_t)((m * 3 + n) * 3 + k);
                double w = axis_m[m] > 64 ? waste((double)axis_m[m], (double)axis_size[n]) : 1;
                double t =
                    true_gemm_us((double)axis_m[m], (double)axis_size[n], (double)axis_size[k], 1);
                json_array_set_new(us, cell, json_real(t * sqrt(w)));
            }
    json_object_set_new(table, "wave",
                        json_pack("{s:i, s:i, s:i, s:f}", "tile_rows", 128, "tile_columns", 128,
                                  "units", 100, "power", 0.5));
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const int64_t shapes[][3] = {
        { 300, 1000, 2000 }, { 1000, 3000, 512 }, { 4096, 4096, 4096 }, { 65, 64, 64 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        double m = (double)shapes[i][0], n = (double)shapes[i][1], k = (double)shapes[i][2];
        assert_close(
            gac_contract_gemm_us(with, GAC_DTYPE_F16, shapes[i][0], shapes[i][1], shapes[i][2]),
            true_gemm_us(m, n, k, 1) * sqrt(waste(m, n)));
    }
    gac_contract_free(with);
    json_decref(json);
}

/* 800 x 4608 is 4 x 36 tiles of 256 x 128, which 132 units take two waves for, or 7 x 18 of
 * 128 x 256; 65 rows are not as much work as 256. */
static void tiles_lie_the_better_way(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "gemm/F16/times/0/m", "[1, 64, 256, 4096]");
    set_path(json, "gemm/F16/times/0/n", "[64, 4096, 8192]");
    set_path(json, "gemm/F16/times/0/wave",
             "{\"tile_rows\": 256, \"tile_columns\": 128, \"units\": 132, \"power\": 1}");
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    assert_close(gac_tile_waste(256, 128, 132, 800, 4608), 7 * 18 * 128 * 256 / (800.0 * 4608));
    assert_close(gac_tile_waste(128, 256, 132, 800, 4608), 7 * 18 * 128 * 256 / (800.0 * 4608));
    assert_close(gac_tile_waste(256, 128, 132, 65, 128), 1);
    /* 4096 x 4096 is 512 tiles, four waves; as it was measured: all that is more is waste. */
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 4096, 4096, 512),
                 true_gemm_us((double)axis_m[3], (double)axis_size[1], 512, 1));
    /* Fewer columns than the table has take as long as its first. */
    assert_close(gac_contract_gemm_us(with, GAC_DTYPE_F16, 256, 8, 512),
                 gac_contract_gemm_us(with, GAC_DTYPE_F16, 256, 64, 512));
    assert_true(gac_contract_gemm_us(with, GAC_DTYPE_F16, 65, 4096, 512) <
                1.1 * gac_contract_gemm_us(with, GAC_DTYPE_F16, 64, 4096, 512));
    gac_contract_free(with);
    json_decref(json);
}

/* The logarithm of 768 is that of a size just above it. */
static void a_measured_time_is_told_as_it_is(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    set_path(json, "gemm/F16/times/0/m", "[1, 768, 1536, 3072]");
    set_path(json, "gemm/F16/times/0/n", "[64, 5120, 6144]");
    set_path(json, "gemm/F16/times/0/wave",
             "{\"tile_rows\": 128, \"tile_columns\": 256, \"units\": 132, \"power\": 1}");
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const int64_t m[] = { 1, 768, 1536, 3072 }, n[] = { 64, 5120, 6144 };
    for (int i = 0; i < 4 * 3 * 3 - 1; i++)
        assert_close(
            gac_contract_gemm_us(with, GAC_DTYPE_F16, m[i / 9], n[i / 3 % 3], axis_size[i % 3]),
            true_gemm_us((double)axis_m[i / 9], (double)axis_size[i / 3 % 3],
                         (double)axis_size[i % 3], 1));
    gac_contract_free(with);
    json_decref(json);
}

static void lengths_go_by_tiles(void **state)
{
    (void)state;
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *tiers = json_object_get(json_object_get(json_object_get(json, "sdpa"), "F16"), "tiers");
    json_object_set_new(json_array_get(tiers, 0), "tile", json_integer(128));
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    gac_sdpa_shape odd = { 2, 16, 4, 1000, 1000, 64, 64, false };
    gac_sdpa_shape full = { 2, 16, 4, 1024, 1024, 64, 64, false };
    assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &odd),
                 gac_contract_sdpa_us(with, GAC_DTYPE_F16, &full));
    assert_true(gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &odd) <
                gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &full));
    gac_contract_free(with);
    json_decref(json);
}

/* On 100 units, tiles of 128: a started wave as long as a full one. */
static double prefill_waste(double rows, double length)
{
    double tiles = rows * length / 128;
    return ceil(tiles / 100) * 100 / tiles;
}

static void waves_of_prefill_are_taken_off_and_put_back(void **state)
{
    (void)state;
    static const int64_t rows[] = { 8, 128 }, lengths[] = { 256, 4096 };
    gac_contract *with = NULL;
    gac_error err = GAC_ERROR_INIT;
    json_t *json = make_contract();
    json_t *tiers = json_object_get(json_object_get(json_object_get(json, "sdpa"), "F16"), "tiers");
    json_t *tier = json_array_get(tiers, 0);
    json_t *plain = json_array_get(json_object_get(tier, "prefill"), 0);
    json_t *us = json_object_get(plain, "us");
    json_object_set_new(tier, "tile", json_integer(128));
    for (size_t i = 0; i < 8; i++) {
        double waste = prefill_waste((double)rows[i / 4], (double)lengths[i / 2 % 2]);
        json_array_set_new(us, i, json_real(json_real_value(json_array_get(us, i)) * sqrt(waste)));
    }
    json_object_set_new(plain, "wave", json_pack("{s:i, s:f}", "units", 100, "power", 0.5));
    assert_int_equal(parse(json, &with, &err), GAC_OK);
    static const int64_t shapes[][2] = { { 8, 256 }, { 128, 4096 }, { 13, 1024 }, { 32, 500 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t length = (shapes[i][1] + 127) / 128 * 128;
        gac_sdpa_shape asked = { 1,  shapes[i][0], shapes[i][0], shapes[i][1], shapes[i][1],
                                 64, 64,           false };
        gac_sdpa_shape full = { 1, shapes[i][0], shapes[i][0], length, length, 64, 64, false };
        assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &asked),
                     gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &full) *
                         sqrt(prefill_waste((double)shapes[i][0], (double)length)));
        asked.causal = full.causal = true; /* which has no wave of its own */
        assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &full),
                     gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &full));
    }
    /* Fewer rows, or shorter ones, than the table has take as long as its first. */
    gac_sdpa_shape one = { 1, 1, 1, 1024, 1024, 64, 64, false };
    gac_sdpa_shape first = { 1, 8, 8, 1024, 1024, 64, 64, false };
    assert_close(gac_contract_sdpa_us(with, GAC_DTYPE_F16, &one),
                 gac_contract_sdpa_us(with, GAC_DTYPE_F16, &first));
    gac_contract_free(with);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waves_are_taken_off_and_put_back),
        cmocka_unit_test(tiles_lie_the_better_way),
        cmocka_unit_test(a_measured_time_is_told_as_it_is),
        cmocka_unit_test(lengths_go_by_tiles),
        cmocka_unit_test(waves_of_prefill_are_taken_off_and_put_back),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

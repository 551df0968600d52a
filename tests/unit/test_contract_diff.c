/* What gac_contract_diff notices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/contract.h>

#include "made_contract.h"

/* The contract of made_contract.h against itself with one value changed. */
static json_t *diff_after(const char *path, const char *value)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *changed = NULL;
    json_t *json = make_contract(), *out = NULL;
    if (path)
        set_path(json, path, value);
    if (parse(json, &changed, &err) != GAC_OK ||
        gac_contract_diff(contract, changed, &out, &err) != GAC_OK)
        fail_msg("%s", err.text);
    gac_contract_free(changed);
    json_decref(json);
    return out;
}

static const json_t *compared(const json_t *diff, size_t i)
{
    return json_array_get(json_object_get(diff, "compared"), i);
}

static long long count(const json_t *row, const char *key)
{
    return (long long)json_integer_value(json_object_get(row, key));
}

static void nothing_differs_from_itself(void **state)
{
    (void)state;
    json_t *diff = diff_after(NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(diff, "compared")), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = compared(diff, i);
        assert_int_equal(json_array_size(json_object_get(row, "tiers")), 0);
        assert_int_equal(count(row, "n_slower") + count(row, "n_faster"), 0);
        assert_int_equal(json_array_size(json_object_get(row, "worst")), 0);
        assert_true(json_number_value(json_object_get(row, "b_over_a")) == 1);
    }
    json_decref(diff);
}

static void changed_tiers_are_listed(void **state)
{
    (void)state;
    json_t *diff = diff_after("gemm/F16/k/1/aligned", "true");
    const json_t *tiers = json_object_get(compared(diff, 0), "tiers");
    assert_int_equal(json_array_size(tiers), 1);
    const json_t *row = json_array_get(tiers, 0);
    assert_string_equal(json_string_value(json_object_get(row, "place")), "gemm_k");
    assert_int_equal(json_array_size(json_object_get(row, "a")), 2);
    json_decref(diff);
}

/* A point that takes a hundred times as long is the worst, and the only one that is slower. */
static void slower_shapes_are_listed(void **state)
{
    (void)state;
    double us = 100 * gac_contract_gemm_us(contract, GAC_DTYPE_F16, 16, 4096, 4096);
    char points[160];
    snprintf(points, sizeof points,
             "[{\"dtype\": \"F16\", \"m\": 16, \"n\": 4096, \"k\": 4096, \"time_us\": %.17g}]", us);
    json_t *diff = diff_after("points", points);
    const json_t *row = compared(diff, 0), *worst = json_object_get(row, "worst");
    assert_int_equal(count(row, "n_slower"), 1);
    assert_int_equal(count(row, "n_faster"), 0);
    assert_int_equal(json_array_size(worst), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(worst, 0), "shape")),
                        "GEMM 16 x 4096 x 4096");
    json_decref(diff);
}

static void stacks_are_told(void **state)
{
    (void)state;
    json_t *diff = diff_after("stack", "{\"cuda\": \"99\"}");
    const json_t *stack = json_object_get(json_object_get(diff, "stack"), "b");
    assert_string_equal(json_string_value(json_object_get(stack, "cuda")), "99");
    json_decref(diff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_differs_from_itself),
        cmocka_unit_test(changed_tiers_are_listed),
        cmocka_unit_test(slower_shapes_are_listed),
        cmocka_unit_test(stacks_are_told),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

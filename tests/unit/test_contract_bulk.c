/* The short way into a contract: its numbers cut out of the text and scanned.
 * It must take nothing that a tree of the whole text would not, and say the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/contract.h>

#include "contract/bundled.h"
#include "contract/contract_bulk.h"
#include "contract/contract_rules.h"

/* Scans a number that a comma and more may follow. */
static bool scan(const char *text, double *out, size_t *n_passed)
{
    gac_scan at = { text, text + strlen(text) };
    bool ok = gac_scan_number(&at, out);
    *n_passed = (size_t)(at.at - text);
    return ok;
}

static void assert_like_strtod(const char *number)
{
    static const char *const after[] = { "", ",", ",1234567890.5", " \n,null", "]" };
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        char text[96];
        double value = 0;
        size_t n_passed;
        snprintf(text, sizeof text, "%s%s", number, after[i]);
        if (!scan(text, &value, &n_passed) || value != strtod(number, NULL) ||
            n_passed != strlen(number))
            fail_msg("\"%s\" gave %.17g after %zu bytes", text, value, n_passed);
    }
}

static void numbers_are_rounded_as_strtod_rounds(void **state)
{
    (void)state;
    static const char *const some[] = { "0",
                                        "0.0",
                                        "0.1",
                                        "7",
                                        "0.001234",
                                        "12.34",
                                        "12345.6",
                                        "123456.7",
                                        "1234567",
                                        "12345678",
                                        "1.5e3",
                                        "1.234e-05",
                                        "4.126E12",
                                        "1e22",
                                        "1e+9",
                                        "123456789012345",
                                        "9.99999999999999",
                                        "0.12345678901234" };
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        assert_like_strtod(some[i]);
    for (int i = 0; i < 100000; i++) {
        char text[64];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int n_digits = 1 + (int)(seed >> 33) % 8, n_fraction = (int)(seed >> 41) % 7;
        double digits = (double)(seed >> 11) / 9007199254740992.0;
        snprintf(text, sizeof text, "%.*f", n_fraction,
                 digits * (double[]){ 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7 }[n_digits - 1]);
        assert_like_strtod(text);
    }
}

static void other_spellings_are_left_alone(void **state)
{
    (void)state;
    static const char *const texts[] = { "",
                                         "-1",
                                         "+1",
                                         ".5",
                                         "1.",
                                         "1.,2",
                                         "1.null",
                                         "01",
                                         "01.5,123",
                                         "00.5,1234",
                                         "1e",
                                         "1.5e,12",
                                         "1e+",
                                         "1e100",
                                         "1e23",
                                         "e5",
                                         "null",
                                         "1e-23",
                                         "1234567890123456",
                                         "0.1234567890123456" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double value;
        size_t n_passed;
        if (scan(texts[i], &value, &n_passed) || n_passed != 0)
            fail_msg("\"%s\" was taken, %zu bytes of it", texts[i], n_passed);
    }
}

static void bulk_is_cut_out(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": {\"us\" : [1,2], \"points\": [3]}, \"b\\\"\": 0}";
    static const char plain[] = "{\"a\": {\"us\" : [1,2], \"points\": [3]}, \"points\": [ ]}";
    static const char *const refused[] = {
        "{\"us\": 1}", "{\"us\": [1", "{\"us", "{\"points\": {}}", "{\"u\\u0073\": [0]}",
    };
    gac_bulk bulk;
    assert_false(gac_bulk_cut(text, strlen(text), &bulk)); /* a key with an escape */
    gac_bulk_dispose(&bulk);
    assert_true(gac_bulk_cut(plain, strlen(plain), &bulk));
    static const char rest[] = "{\"a\": {\"us\" : [0], \"points\": [3]}, \"points\": [1]}";
    assert_int_equal(bulk.n_rest, strlen(rest));
    assert_memory_equal(bulk.rest, rest, strlen(rest));
    assert_int_equal(bulk.n_spans, 2);
    assert_memory_equal(bulk.spans[0].inside.at, "1,2]", 4);
    json_t *first = json_pack("[i]", 0), *none = json_pack("[i]", 2);
    gac_scan at;
    assert_false(gac_bulk_use(&bulk, none, &at));
    assert_true(gac_bulk_use(&bulk, first, &at));
    assert_false(gac_bulk_is_used_up(&bulk));
    json_decref(first);
    json_decref(none);
    gac_bulk_dispose(&bulk);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_false(gac_bulk_cut(refused[i], strlen(refused[i]), &bulk));
        gac_bulk_dispose(&bulk);
    }
}

/* The bundled contract named, with value as another member, as text. */
static char *with_member(const char *name, const char *key, const char *value)
{
    gac_contract *contract = NULL;
    json_t *json = NULL;
    assert_int_equal(gac_contract_load_bundled(name, &contract, NULL), GAC_OK);
    assert_int_equal(gac_contract_json(contract, &json, NULL), GAC_OK);
    gac_contract_free(contract);
    char *all = json_dumps(json, 0);
    json_decref(json);
    size_t size = strlen(all) + strlen(key) + strlen(value) + 16;
    char *text = malloc(size);
    assert_non_null(text);
    snprintf(text, size, "{\"%s\": %s, %s", key, value, all + 1);
    free(all);
    return text;
}

static void both_ways_say_the_same(void **state)
{
    (void)state;
    /* A "us" that is no array leaves all of it to the tree. */
    char *text = with_member("h200", "us", "1");
    gac_contract *short_way = NULL, *tree = NULL;
    assert_int_equal(gac_contract_load_bundled("h200", &short_way, NULL), GAC_OK);
    assert_int_equal(gac_contract_parse(text, strlen(text), "tree", &tree, NULL), GAC_OK);
    free(text);
    for (int d = 0; d < GAC_DTYPE_COUNT; d++)
        for (int64_t m = 1; m <= 10000; m = m * 3 + 1)
            for (int64_t n = 1720; n <= 20000; n += n < 1760 ? 1 : 777)
                for (int64_t k = 4096; k <= 9000; k += 501) {
                    gac_dtype dtype = (gac_dtype)d;
                    gac_sdpa_shape shape = { 1, 8, 2, m, n, k % 160, 64, true };
                    double a = gac_contract_gemm_us(short_way, dtype, m, n, k);
                    double b = gac_contract_gemm_us(tree, dtype, m, n, k);
                    double c = gac_contract_sdpa_us(short_way, dtype, &shape);
                    double e = gac_contract_sdpa_us(tree, dtype, &shape);
                    assert_memory_equal(&a, &b, sizeof a);
                    assert_memory_equal(&c, &e, sizeof c);
                }
    gac_contract_free(short_way);
    gac_contract_free(tree);
}

/* Every command reads one of these: it is no fault to leave it to the tree, but slow. */
static void bundled_contracts_go_the_short_way(void **state)
{
    (void)state;
    for (int i = 0; i < gac_n_bundled_contracts; i++) {
        const struct gac_bundled *bundled = &gac_bundled_contracts[i];
        gac_contract *contract = calloc(1, sizeof *contract);
        gac_error err = GAC_ERROR_INIT;
        gac_bulk bulk;
        assert_non_null(contract);
        assert_true(gac_bulk_cut(bundled->text, bundled->n_bytes, &bulk));
        assert_int_equal(
            gac_json_parse(bulk.rest, bulk.n_rest, bundled->name, &contract->json, &err), GAC_OK);
        if (gac_contract_read(contract, &bulk, bundled->name, &err) != GAC_OK)
            fail_msg("%s", err.text);
        gac_bulk_dispose(&bulk);
        gac_contract_free(contract);
    }
}

static void bulk_that_is_no_json_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *message; /* NULL: it is taken */
    } cases[] = {
        { "new", "{\"us\": [1 2]}", "bad JSON" },
        { "new", "{\"us\": [1,2]5}", "bad JSON" },
        { "new", "{\"us\": [1,2,]}", "bad JSON" },
        { "new", "{\"us\": [1], \"us\": [1]}", "duplicate" },
        { "points", "[]", "duplicate" },
        { "p\\u006fints", "[]", "duplicate" },
        { "new", "{\"us\": [1,\"]\"]}", NULL },
        { "new", "{\"us\": [[1],2]}", NULL },
        { "sdpa_points", "[]", NULL },
        { "sdpa_points", "[0]", "$.sdpa_points[0]: must be an object" },
        { "sdpa_points", "[{\"dtype\": \"]\"}]", "$.sdpa_points[0].dtype: must be one of" },
        { "sdpa_points", "[{\"dtype\": \"F16\", \"batch\": 0}]", "$.sdpa_points[0].batch: must" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gac_contract *contract = NULL;
        gac_error err = GAC_ERROR_INIT;
        char *text = with_member("a100", cases[i].key, cases[i].value);
        gac_status status = gac_contract_parse(text, strlen(text), "t.json", &contract, &err);
        if (status != (cases[i].message ? GAC_BAD_INPUT : GAC_OK) ||
            (cases[i].message && !strstr(err.text, cases[i].message)))
            fail_msg("%s: %s gave %d \"%s\"", cases[i].key, cases[i].value, status, err.text);
        gac_contract_free(contract);
        free(text);
    }
}

static void points_are_taken_in_any_order_of_keys(void **state)
{
    (void)state;
    static const char list[] =
        "[{\"time_us\":5.5,\"causal\":true,\"batch\":1,\"n_q_heads\":8,\"n_kv_heads\":2,\"n_q\":7,"
        "\"n_kv\":9,\"qk_head\":64,\"v_head\":32,\"dtype\":\"F16\"} , "
        "{\"dtype\":\"F16\",\"batch\":1,"
        "\"n_q_heads\":8,\"n_kv_heads\":2,\"n_q\":7,\"n_kv\":9,\"qk_head\":64,\"v_head\":32,"
        "\"causal\":false,\"time_us\":6}]";
    gac_contract *contract = NULL;
    gac_error err = GAC_ERROR_INIT;
    gac_sdpa_shape shape = { 1, 8, 2, 7, 9, 64, 32, true };
    char *text = with_member("a100", "sdpa_points", list);
    if (gac_contract_parse(text, strlen(text), "t.json", &contract, &err) != GAC_OK)
        fail_msg("%s", err.text);
    free(text);
    assert_true(gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &shape) == 5.5);
    shape.causal = false;
    assert_true(gac_contract_sdpa_us(contract, GAC_DTYPE_F16, &shape) == 6);
    gac_contract_free(contract);
}

static void the_whole_file_can_be_had(void **state)
{
    (void)state;
    char *text = with_member("a100", "new", "[1,2.5]");
    gac_contract *contract = NULL;
    json_t *json = NULL, *expected = json_loads(text, 0, NULL);
    assert_int_equal(gac_contract_parse(text, strlen(text), "t.json", &contract, NULL), GAC_OK);
    free(text);
    assert_int_equal(gac_contract_json(contract, &json, NULL), GAC_OK);
    assert_true(json_equal(json, expected));
    const json_t *about = gac_contract_about(contract);
    assert_true(json_equal(json_object_get(about, "sources"), json_object_get(json, "sources")));
    assert_non_null(json_object_get(about, "new"));
    assert_null(json_object_get(about, "gemm"));
    assert_null(json_object_get(about, "points"));
    json_decref(json);
    json_decref(expected);
    gac_contract_free(contract);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_as_strtod_rounds),
        cmocka_unit_test(other_spellings_are_left_alone),
        cmocka_unit_test(bulk_is_cut_out),
        cmocka_unit_test(both_ways_say_the_same),
        cmocka_unit_test(bundled_contracts_go_the_short_way),
        cmocka_unit_test(bulk_that_is_no_json_is_refused),
        cmocka_unit_test(points_are_taken_in_any_order_of_keys),
        cmocka_unit_test(the_whole_file_can_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

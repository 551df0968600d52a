/* When a contract is called rough, by what it states itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/contract.h>

/* The bundled contract of the H200 with other stated errors; the caller frees it. */
static gac_contract *with_accuracy(const char *accuracy)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *bundled = NULL, *out = NULL;
    json_t *root = NULL;
    assert_int_equal(gac_contract_load_bundled("h200", &bundled, &err), GAC_OK);
    char *text = NULL;
    size_t n_bytes;
    assert_int_equal(gac_contract_write(bundled, &text, &n_bytes, &err), GAC_OK);
    root = json_loadb(text, n_bytes, 0, NULL);
    free(text);
    json_object_set_new(root, "accuracy", json_loads(accuracy, JSON_DECODE_ANY, NULL));
    text = json_dumps(root, 0);
    if (gac_contract_parse(text, strlen(text), "x.json", &out, &err) != GAC_OK)
        fail_msg("%s", err.text);
    free(text);
    json_decref(root);
    gac_contract_free(bundled);
    return out;
}

static void limits_are_kept(void **state)
{
    static const struct {
        const char *accuracy;
        gac_dtype dtype;
        const char *says; /* NULL: nothing */
    } cases[] = {
        { "{\"gemm\":{\"F16\":{\"median_pct\":10,\"p95_pct\":25}}}", GAC_DTYPE_F16, NULL },
        { "{\"gemm\":{\"F16\":{\"median_pct\":10.1,\"p95_pct\":25}}}", GAC_DTYPE_F16,
          ": GEMM median 10.1 % off (over 10 %)" },
        { "{\"gemm\":{\"F16\":{\"median_pct\":1,\"p95_pct\":25.5}}}", GAC_DTYPE_F16,
          ": GEMM 95th percentile 25.5 % off (over 25 %)" },
        { "{\"gemm\":{\"F16\":{\"median_pct\":99,\"p95_pct\":99}}}", GAC_DTYPE_BF16, NULL },
        { "{\"sdpa\":{\"BF16\":{\"median_pct\":11,\"p95_pct\":26}}}", GAC_DTYPE_BF16,
          ": attention median 11 % off (over 10 %), attention 95th percentile 26 % off" },
        /* F32 is served as BF16, and FP8 has its attention. */
        { "{\"sdpa\":{\"BF16\":{\"median_pct\":11}}}", GAC_DTYPE_F32, "rough in BF16 by" },
        { "{\"sdpa\":{\"BF16\":{\"median_pct\":11}}}", GAC_DTYPE_F8_E4M3, "attention median 11" },
        { "{\"gemm\":{\"F16\":{\"median_pct\":99}}}", GAC_DTYPE_I8, NULL },
        { "{}", GAC_DTYPE_F16, NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024], few[8];
        gac_contract *contract = with_accuracy(cases[i].accuracy);
        bool rough = gac_contract_is_rough(contract, cases[i].dtype, text, sizeof text);
        if (rough != (cases[i].says != NULL) || (rough && !strstr(text, cases[i].says)))
            fail_msg("%s: %s", cases[i].accuracy, rough ? text : "not rough");
        assert_int_equal(gac_contract_is_rough(contract, cases[i].dtype, few, sizeof few), rough);
        gac_contract_free(contract);
    }
}

static void median_errors_are_read(void **state)
{
    static const struct {
        const char *accuracy;
        gac_dtype dtype;
        gac_op_axis axis;
        double error_pct; /* negative: none is stated */
    } cases[] = {
        { "{\"gemm\":{\"F16\":{\"median_pct\":3.5}}}", GAC_DTYPE_F16, GAC_OP_GEMM_N, 3.5 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":3.5}}}", GAC_DTYPE_F16, GAC_OP_GEMM_K, 3.5 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":0}}}", GAC_DTYPE_F16, GAC_OP_GEMM_K, 0 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":3.5}}}", GAC_DTYPE_F16, GAC_OP_SDPA_HEAD, -1 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":3.5}}}", GAC_DTYPE_BF16, GAC_OP_GEMM_N, -1 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":-1}}}", GAC_DTYPE_F16, GAC_OP_GEMM_N, -1 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":100}}}", GAC_DTYPE_F16, GAC_OP_GEMM_N, -1 },
        { "{\"gemm\":{\"F16\":{\"median_pct\":3.5}}}", GAC_DTYPE_I8, GAC_OP_GEMM_N, -1 },
        /* F32 is served as BF16, and FP8 has BF16's attention. */
        { "{\"gemm\":{\"BF16\":{\"median_pct\":4}}}", GAC_DTYPE_F32, GAC_OP_GEMM_N, 4 },
        { "{\"sdpa\":{\"BF16\":{\"median_pct\":5}}}", GAC_DTYPE_F8_E4M3, GAC_OP_SDPA_HEAD, 5 },
        { "{}", GAC_DTYPE_F16, GAC_OP_GEMM_N, -1 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double error_pct = -1;
        gac_contract *contract = with_accuracy(cases[i].accuracy);
        bool stated =
            gac_contract_median_error(contract, cases[i].dtype, cases[i].axis, &error_pct);
        if (stated != (cases[i].error_pct >= 0) || error_pct != cases[i].error_pct)
            fail_msg("%s: %g", cases[i].accuracy, error_pct);
        gac_contract_free(contract);
    }
}

static void bundled_ones_are_not_rough(void **state)
{
    (void)state;
    for (int i = 0; i < gac_contract_n_bundled(); i++) {
        gac_contract *contract = NULL;
        const char *name = gac_contract_bundled_name(i);
        assert_int_equal(gac_contract_load_bundled(name, &contract, NULL), GAC_OK);
        for (int d = 0; d < GAC_DTYPE_COUNT; d++) {
            char text[1024];
            if (gac_contract_is_rough(contract, (gac_dtype)d, text, sizeof text))
                fail_msg("%s", text);
        }
        gac_contract_free(contract);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(median_errors_are_read),
        cmocka_unit_test(bundled_ones_are_not_rough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

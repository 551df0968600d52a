/* The input is a contract; one that is taken must answer any question. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gac/contract.h>

#include "fuzz_checks.h"

static void ask(const gac_contract *contract, gac_dtype dtype)
{
    static const int64_t sizes[] = { 0, 1, 7, 107, 128, 4096, 50257, INT64_C(1) << 40, INT64_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gac_sdpa_shape shape = { 1, 8, 2, sizes[i], sizes[i], sizes[i], 64, true };
        for (int seen = 0; seen < GAC_OP_AXIS_COUNT; seen++) {
            gac_error err = GAC_ERROR_INIT;
            gac_judgement judgement;
            gac_status status = gac_contract_judge(contract, (gac_op_axis)seen, dtype, sizes[i],
                                                   2048, 4096, &judgement, &err);
            FUZZ_CHECK(gac_contract_multiple(contract, (gac_op_axis)seen, dtype) >= 1);
            FUZZ_CHECK(status != GAC_OK ||
                       (judgement.kernel && judgement.family && judgement.basis &&
                        judgement.multiple >= 1 && !isnan(judgement.penalty)));
        }
        FUZZ_CHECK(gac_contract_gemm_us(contract, dtype, 2048, sizes[i], 4096) >= 0);
        FUZZ_CHECK(gac_contract_gemm_us(contract, dtype, sizes[i], 107, sizes[i]) >= 0);
        FUZZ_CHECK(gac_contract_gemm_us(contract, dtype, 7, sizes[i], 72) >= 0);
        FUZZ_CHECK(gac_contract_sdpa_us(contract, dtype, &shape) >= 0);
    }
}

static bool is_same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* A member "us" that is no array has the text read as one tree, which must
 * take all that is taken when tables and points are scanned. */
static void compare_with_tree(const gac_contract *contract)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *tree = NULL;
    json_t *json = NULL;
    FUZZ_CHECK(gac_contract_json(contract, &json, &err) == GAC_OK);
    json_object_set_new(json, "us", json_null());
    char *text = json_dumps(json, 0);
    FUZZ_CHECK(text && gac_contract_parse(text, strlen(text), "tree", &tree, &err) == GAC_OK);
    for (int i = 0; i < GAC_DTYPE_COUNT; i++)
        for (int64_t size = 1; size < 10000; size = size * 5 + 3) {
            gac_sdpa_shape shape = { 1, 8, 2, size, size, 64, 64, true };
            FUZZ_CHECK(is_same(gac_contract_gemm_us(contract, (gac_dtype)i, 7, 8 * size, 64),
                               gac_contract_gemm_us(tree, (gac_dtype)i, 7, 8 * size, 64)));
            FUZZ_CHECK(is_same(gac_contract_gemm_us(contract, (gac_dtype)i, 7, size, 64),
                               gac_contract_gemm_us(tree, (gac_dtype)i, 7, size, 64)));
            FUZZ_CHECK(is_same(gac_contract_sdpa_us(contract, (gac_dtype)i, &shape),
                               gac_contract_sdpa_us(tree, (gac_dtype)i, &shape)));
        }
    gac_contract_free(tree);
    json_decref(json);
    free(text);
}

/* It differs from itself in nothing, whatever it says. */
static void compare_with_itself(const gac_contract *contract)
{
    gac_error err = GAC_ERROR_INIT;
    json_t *diff = NULL;
    FUZZ_CHECK(gac_contract_diff(contract, GAC_DTYPE_COUNT, contract, GAC_DTYPE_COUNT, &diff,
                                 &err) == GAC_OK);
    FUZZ_CHECK(json_is_true(json_object_get(diff, "same")));
    json_decref(diff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    gac_status status = gac_contract_parse((const char *)data, n_bytes, "input", &contract, &err);

    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    FUZZ_CHECK(gac_contract_name(contract) && gac_contract_gpu(contract));
    for (int i = 0; i < GAC_DTYPE_COUNT; i++) {
        gac_dtype dtype;
        char rough[80];
        gac_contract_is_rough(contract, (gac_dtype)i, rough, sizeof rough);
        if (gac_contract_dtype(contract, (gac_dtype)i, &dtype))
            ask(contract, dtype);
    }
    compare_with_tree(contract);
    compare_with_itself(contract);
    gac_contract_free(contract);
    return 0;
}

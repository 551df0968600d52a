/* The input is a contract; one that is taken must answer any question. */
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
        for (int axis = 0; axis < GAC_OP_AXIS_COUNT; axis++) {
            gac_error err = GAC_ERROR_INIT;
            gac_judgement judgement;
            gac_status status = gac_contract_judge(contract, (gac_op_axis)axis, dtype, sizes[i],
                                                   2048, 4096, &judgement, &err);
            FUZZ_CHECK(gac_contract_multiple(contract, (gac_op_axis)axis, dtype) >= 1);
            FUZZ_CHECK(status != GAC_OK ||
                       (judgement.kernel && judgement.family && judgement.basis &&
                        judgement.multiple >= 1 && !(judgement.penalty < 1)));
        }
        FUZZ_CHECK(!(gac_contract_gemm_us(contract, dtype, 2048, sizes[i], 4096) < 0));
        FUZZ_CHECK(!(gac_contract_gemm_us(contract, dtype, sizes[i], 107, sizes[i]) < 0));
        FUZZ_CHECK(!(gac_contract_gemm_us(contract, dtype, 7, sizes[i], 72) < 0));
        FUZZ_CHECK(!(gac_contract_sdpa_us(contract, dtype, &shape) < 0));
    }
}

/* What is written is taken, and is written alike. */
static void write_and_read(const gac_contract *contract)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *again = NULL;
    char *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    FUZZ_CHECK(gac_contract_write(contract, &first, &n_first, &err) == GAC_OK);
    FUZZ_CHECK(gac_contract_parse(first, n_first, "written", &again, &err) == GAC_OK);
    FUZZ_CHECK(gac_contract_write(again, &second, &n_second, &err) == GAC_OK);
    FUZZ_CHECK(n_first == n_second && memcmp(first, second, n_first) == 0);
    gac_contract_free(again);
    free(first);
    free(second);
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
    write_and_read(contract);
    gac_contract_free(contract);
    return 0;
}

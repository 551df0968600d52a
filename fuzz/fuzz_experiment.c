/* The input is an experiment; one that is taken must expand under every stack. */
#include "experiment/experiment.h"

#include "fuzz_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    gac_experiment *experiment = NULL;
    gac_status status =
        gac_experiment_parse((const char *)data, n_bytes, "input", NULL, 0, &experiment, &err);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    FUZZ_CHECK(gac_experiment_id(experiment) && gac_experiment_title(experiment));
    for (int stack = 0; stack < GAC_STACK_COUNT; stack++) {
        int64_t n_cases = 0, n_calls = 0;
        status =
            gac_experiment_count(experiment, (gac_stack)stack, false, &n_cases, &n_calls, &err);
        FUZZ_CHECK(status == GAC_OK && n_cases >= 1 && n_cases <= 20000 && n_calls >= 0);
    }
    gac_experiment_free(experiment);
    return 0;
}

/* What a contract says of its own predictions. */
#include "contract/contract_rules.h"

#include "base/json_reader.h"

#include <string.h>

/* The dtype whose attention dtype has: the contract may say that it is another's. */
static const char *attention_of(const gac_contract *contract, const char *dtype)
{
    const json_t *rules = json_object_get(json_object_get(contract->json, "sdpa"), dtype);
    const char *same_as = json_string_value(json_object_get(rules, "same_as"));
    return same_as ? same_as : dtype;
}

bool gac_contract_median_error(const gac_contract *contract, gac_dtype dtype, gac_op_axis seen,
                               double *out_pct)
{
    gac_dtype served;
    if (!gac_contract_dtype(contract, dtype, &served))
        return false;
    const char *own = gac_dtype_name(served);
    bool attention = seen == GAC_OP_SDPA_HEAD;
    const json_t *accuracy = json_object_get(contract->json, "accuracy");
    const json_t *part = json_object_get(accuracy, attention ? "sdpa" : "gemm");
    const json_t *row = json_object_get(part, attention ? attention_of(contract, own) : own);
    double error_pct = gac_json_number_or(row, "median_pct", -1);
    if (!(error_pct >= 0 && error_pct < 100))
        return false;
    *out_pct = error_pct;
    return true;
}

bool gac_contract_is_rough(const gac_contract *contract, gac_dtype dtype, char *out, size_t size)
{
    static const struct {
        const char *part, *label, *key;
        double limit_pct;
    } checks[] = { { "gemm", "GEMM median", "median_pct", GAC_ROUGH_MEDIAN_PCT },
                   { "gemm", "GEMM 95th percentile", "p95_pct", GAC_ROUGH_P95_PCT },
                   { "sdpa", "attention median", "median_pct", GAC_ROUGH_MEDIAN_PCT },
                   { "sdpa", "attention 95th percentile", "p95_pct", GAC_ROUGH_P95_PCT } };
    const json_t *accuracy = json_object_get(contract->json, "accuracy");
    gac_dtype served;
    bool rough = false;
    if (!gac_contract_dtype(contract, dtype, &served))
        return false;
    const char *own = gac_dtype_name(served), *attention = attention_of(contract, own);
    size_t used = (size_t)snprintf(
        out, size, "predictions of contract %s are rough in %s by its own account:", contract->name,
        own);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const json_t *part = json_object_get(accuracy, checks[i].part);
        const json_t *row =
            json_object_get(part, strcmp(checks[i].part, "sdpa") == 0 ? attention : own);
        double error_pct = gac_json_number_or(row, checks[i].key, 0);
        if (!(error_pct > checks[i].limit_pct))
            continue;
        if (used < size)
            used +=
                (size_t)snprintf(out + used, size - used, "%s %s %.4g %% off (over %g %%)",
                                 rough ? "," : "", checks[i].label, error_pct, checks[i].limit_pct);
        rough = true;
    }
    return rough;
}

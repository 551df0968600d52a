#include "base/arguments.h"
#include "contract/contract_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int gac_contract_n_bundled(void)
{
    return gac_n_bundled_contracts;
}

const char *gac_contract_bundled_name(int index)
{
    if (index < 0 || index >= gac_n_bundled_contracts)
        return NULL;
    return gac_bundled_contracts[index]->name;
}

static void list_bundled(char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < gac_n_bundled_contracts && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%s", i > 0 ? ", " : "",
                                 gac_bundled_contracts[i]->name);
}

/* Keeps letters and digits, in lower case, without a leading vendor name. */
static void normalise(const char *name, char *out, size_t size)
{
    static const char *const before[] = { "nvidia", "tesla", "geforce", "rtx" };
    size_t n = 0;
    for (; *name && n + 1 < size; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
    out[n] = '\0';
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        if (strncmp(out, before[i], strlen(before[i])) == 0)
            memmove(out, out + strlen(before[i]), strlen(out + strlen(before[i])) + 1);
}

static bool is_amd(const char *wanted)
{
    static const char *const starts[] = { "amd", "radeon", "instinct", "gfx", "mi1", "mi2", "mi3" };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(wanted, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static bool is_named(const gac_contract *contract, const char *wanted)
{
    char own[128];
    normalise(contract->name, own, sizeof own);
    if (strcmp(own, wanted) == 0)
        return true;
    normalise(contract->gpu, own, sizeof own);
    if (strcmp(own, wanted) == 0)
        return true;
    for (size_t i = 0; i < contract->n_aliases; i++) {
        normalise(contract->aliases[i], own, sizeof own);
        if (strcmp(own, wanted) == 0)
            return true;
    }
    return false;
}

gac_status gac_contract_load_bundled(const char *name, gac_contract **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, name, out);
    char known[256], quoted[128], wanted[128];
    normalise(name, wanted, sizeof wanted);
    for (int i = 0; i < gac_n_bundled_contracts; i++)
        if (is_named(gac_bundled_contracts[i], wanted)) {
            *out = (gac_contract *)(uintptr_t)gac_bundled_contracts[i]; /* nobody writes to it */
            return GAC_OK;
        }
    gac_quote(quoted, sizeof quoted, name);
    if (is_amd(wanted))
        return gac_error_set(
            err, GAC_USAGE, "%s: the rules of AMD GPUs are unknown, and nothing is assumed of them",
            quoted);
    list_bundled(known, sizeof known);
    return gac_error_set(err, GAC_USAGE,
                         "no bundled contract named %s; there are: %s; gac probe -o contract.json "
                         "measures another GPU",
                         quoted, known);
}

gac_status gac_contract_load(const char *path, gac_contract **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    gac_file *file = NULL;
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_file_open(path, &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, GAC_MAX_CONTRACT_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = gac_contract_parse(text, n_bytes, path, out, err);
    free(text);
    gac_file_close(file);
    return status;
}

/* By way of its file: so a contract that was made can be written and read again. */
gac_status gac_contract_copy(const gac_contract *contract, const char *source, gac_contract **out,
                             gac_error *err)
{
    GAC_REFUSE_NULL(err, contract, source, out);
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_contract_write(contract, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = gac_contract_parse(text, n_bytes, source, out, err);
    free(text);
    return status;
}

const char *gac_contract_name(const gac_contract *contract)
{
    return contract ? contract->name : NULL;
}

const char *gac_contract_gpu(const gac_contract *contract)
{
    return contract ? contract->gpu : NULL;
}

bool gac_contract_runtime(const gac_contract *contract, gac_runtime *out)
{
    if (!contract || !contract->runtime || !out)
        return false;
    *out = *contract->runtime;
    return true;
}

/* Returns the errors that the contract states for GEMM or attention in dtype,
 * or NULL. */
static const gac_contract_errors *find_errors(const gac_contract *contract, gac_dtype dtype,
                                              bool attention)
{
    if (!contract || !contract->accuracy || !gac_contract_dtype(contract, dtype, &dtype))
        return NULL;
    if (!attention)
        return contract->accuracy->gemm[dtype];
    gac_dtype same_as = contract->sdpa[dtype]->same_as;
    return contract->accuracy->sdpa[same_as == GAC_DTYPE_COUNT ? dtype : same_as];
}

bool gac_contract_median_error(const gac_contract *contract, gac_dtype dtype, gac_op_axis axis,
                               double *out_pct)
{
    const gac_contract_errors *e = find_errors(contract, dtype, axis == GAC_OP_SDPA_HEAD);
    if (!e || !out_pct || !(e->median_pct >= 0 && e->median_pct < 100))
        return false;
    *out_pct = e->median_pct;
    return true;
}

bool gac_contract_is_rough(const gac_contract *contract, gac_dtype dtype, char *out, size_t size)
{
    static const struct {
        const char *label;
        bool attention, is_p95;
        double limit_pct;
    } checks[] = { { "GEMM median", false, false, GAC_ROUGH_MEDIAN_PCT },
                   { "GEMM 95th percentile", false, true, GAC_ROUGH_P95_PCT },
                   { "attention median", true, false, GAC_ROUGH_MEDIAN_PCT },
                   { "attention 95th percentile", true, true, GAC_ROUGH_P95_PCT } };
    gac_dtype served;
    bool rough = false;
    if (!out || !gac_contract_dtype(contract, dtype, &served))
        return false;
    size_t used = (size_t)snprintf(
        out, size, "predictions of contract %s are rough in %s by its own account:", contract->name,
        gac_dtype_name(served));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const gac_contract_errors *e = find_errors(contract, served, checks[i].attention);
        double error_pct = !e ? 0 : checks[i].is_p95 ? e->p95_pct : e->median_pct;
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

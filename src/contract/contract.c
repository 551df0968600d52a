#include "contract/contract_rules.h"

#include "contract/bundled.h"

#include <jansson.h>
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
    return gac_bundled_contracts[index].name;
}

static void list_bundled(char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < gac_n_bundled_contracts; i++) {
        int n = snprintf(buffer + used, size - used, "%s%s", i > 0 ? ", " : "",
                         gac_bundled_contracts[i].name);
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

/* What the file says of itself, without rules and times. */
static gac_status describe(gac_contract *contract, gac_error *err)
{
    static const char *const rules[] = { "gemm", "sdpa", "points", "sdpa_points" };
    contract->about = json_copy(contract->json);
    if (!contract->about)
        return gac_error_no_memory(err);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        json_object_del(contract->about, rules[i]);
    return GAC_OK;
}

/* Reads text with its bulk apart, which is fast but has no words for faults,
 * or as one tree. The contract does not own text. */
static gac_status read_text(const char *text, size_t n_bytes, bool apart, const char *source,
                            gac_contract **out, gac_error *err)
{
    gac_bulk bulk = { 0 };
    gac_contract *contract = calloc(1, sizeof *contract);
    gac_status status = contract ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK) {
        contract->text = text;
        contract->n_bytes = n_bytes;
        for (int i = 0; i < GAC_DTYPE_COUNT; i++)
            contract->stand_in[i] = GAC_DTYPE_COUNT;
    }
    if (status == GAC_OK && apart)
        status = gac_bulk_cut(text, n_bytes, &bulk) ? GAC_OK : GAC_BAD_INPUT;
    if (status == GAC_OK)
        status = gac_json_parse(apart ? bulk.rest : text, apart ? bulk.n_rest : n_bytes, source,
                                &contract->json, err);
    if (status == GAC_OK)
        status = gac_contract_read(contract, apart ? &bulk : NULL, source, err);
    if (status == GAC_OK)
        status = describe(contract, err);
    gac_bulk_dispose(&bulk);
    if (status == GAC_OK)
        *out = contract;
    else
        gac_contract_free(contract);
    return status;
}

/* own_text is text where it is to be freed with the contract, or on failure. */
static gac_status take_text(const char *text, size_t n_bytes, char *own_text, const char *source,
                            gac_contract **out, gac_error *err)
{
    gac_status status = read_text(text, n_bytes, true, source, out, NULL);
    if (status != GAC_OK)
        status = read_text(text, n_bytes, false, source, out, err);
    if (status == GAC_OK)
        (*out)->own_text = own_text;
    else
        free(own_text);
    return status;
}

gac_status gac_contract_load_bundled(const char *name, gac_contract **out, gac_error *err)
{
    char known[256], quoted[128], source[160];
    for (int i = 0; i < gac_n_bundled_contracts; i++) {
        const struct gac_bundled *bundled = &gac_bundled_contracts[i];
        if (strcmp(bundled->name, name) != 0)
            continue;
        snprintf(source, sizeof source, "bundled contract %s", name);
        return take_text(bundled->text, bundled->n_bytes, NULL, source, out, err);
    }
    list_bundled(known, sizeof known);
    return gac_error_set(err, GAC_USAGE, "no bundled contract named %s; there are: %s",
                         gac_quote(quoted, sizeof quoted, name), known);
}

gac_status gac_contract_load(const char *path, gac_contract **out, gac_error *err)
{
    gac_file *file = NULL;
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_file_open(path, &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, GAC_MAX_CONTRACT_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = take_text(text, n_bytes, text, path, out, err);
    gac_file_close(file);
    return status;
}

gac_status gac_contract_parse(const char *text, size_t n_bytes, const char *source,
                              gac_contract **out, gac_error *err)
{
    char quoted[256];
    if (n_bytes > GAC_MAX_CONTRACT_BYTES)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %zu bytes; a contract has at most %zu",
                             gac_quote(quoted, sizeof quoted, source), n_bytes,
                             GAC_MAX_CONTRACT_BYTES);
    char *copy = malloc(n_bytes + 1);
    if (!copy)
        return gac_error_no_memory(err);
    if (n_bytes > 0) /* text may be NULL otherwise */
        memcpy(copy, text, n_bytes);
    return take_text(copy, n_bytes, copy, source, out, err);
}

void gac_contract_free(gac_contract *contract)
{
    if (!contract)
        return;
    for (int i = 0; i < GAC_DTYPE_COUNT; i++) {
        gac_dtype_rules *rules = contract->rules[i];
        if (!rules)
            continue;
        for (int t = 0; t < GAC_MAX_TIERS; t++) {
            free(rules->sdpa.curves[t].points);
            gac_table_dispose(&rules->sdpa.prefill[t][0].table);
            gac_table_dispose(&rules->sdpa.prefill[t][1].table);
            gac_table_dispose(&rules->sdpa.decode[t]);
        }
        int n_pairs = rules->gemm[0].tiers.n_tiers * rules->gemm[1].tiers.n_tiers;
        for (int t = 0; t < n_pairs && rules->times; t++)
            gac_table_dispose(&rules->times[t].table);
        for (int t = 0; t < n_pairs && rules->row_times; t++)
            gac_table_dispose(&rules->row_times[t].table);
        for (int t = 0; t < rules->n_dense; t++)
            gac_table_dispose(&rules->dense[t]);
        for (int t = 0; t < rules->n_dense_k; t++)
            gac_table_dispose(&rules->dense_k[t]);
        for (int t = 0; t < rules->n_dense_part; t++)
            gac_table_dispose(&rules->dense_part[t]);
        free(rules->times);
        free(rules->row_times);
        free(rules);
    }
    free(contract->points);
    free(contract->sdpa_points);
    json_decref(contract->about);
    json_decref(contract->json);
    free(contract->own_text);
    free(contract);
}

const char *gac_contract_name(const gac_contract *contract)
{
    return contract->name;
}

const char *gac_contract_gpu(const gac_contract *contract)
{
    return contract->gpu;
}

bool gac_contract_runtime(const gac_contract *contract, gac_runtime *out)
{
    if (contract->has_runtime)
        *out = contract->runtime;
    return contract->has_runtime;
}

const struct json_t *gac_contract_about(const gac_contract *contract)
{
    return contract->about;
}

gac_status gac_contract_json(const gac_contract *contract, struct json_t **out, gac_error *err)
{
    return gac_json_parse(contract->text, contract->n_bytes, contract->name, out, err);
}

bool gac_contract_dtype(const gac_contract *contract, gac_dtype dtype, gac_dtype *out)
{
    if ((int)dtype < 0 || dtype >= GAC_DTYPE_COUNT)
        return false;
    gac_dtype served = contract->rules[dtype] ? dtype : contract->stand_in[dtype];
    if (served == GAC_DTYPE_COUNT)
        return false;
    *out = served;
    return true;
}

const gac_dtype_rules *gac_contract_rules(const gac_contract *contract, gac_dtype dtype)
{
    gac_dtype served;
    return gac_contract_dtype(contract, dtype, &served) ? contract->rules[served] : NULL;
}

int gac_tiers_pick(const gac_tiers *tiers, int64_t size)
{
    int i = 0;
    while (size % tiers->tier[i].multiple != 0)
        i++; /* ends: the last multiple is 1 */
    return i;
}

const gac_tiers *gac_contract_instead(const gac_contract *contract, const gac_dtype_rules *rules,
                                      gac_op_axis seen, int tier)
{
    if (seen == GAC_OP_SDPA_HEAD || rules->gemm[seen].tiers.tier[tier].served)
        return NULL;
    return &contract->rules[rules->falls_back]->gemm[seen].tiers;
}

int64_t gac_contract_multiple(const gac_contract *contract, gac_op_axis seen, gac_dtype dtype)
{
    const gac_dtype_rules *rules = gac_contract_rules(contract, dtype);
    if (!rules || (int)seen < 0 || seen >= GAC_OP_AXIS_COUNT)
        return 0;
    const gac_tiers *tiers =
        seen == GAC_OP_SDPA_HEAD ? &rules->sdpa.tiers : &rules->gemm[seen].tiers;
    int64_t multiple = tiers->tier[0].multiple;
    for (int i = 1; i < tiers->n_tiers && tiers->tier[i].aligned; i++)
        multiple = tiers->tier[i].multiple;
    return multiple;
}

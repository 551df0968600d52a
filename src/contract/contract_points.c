/* The parts of a contract file that say something of exact shapes and of the
 * runtime around them. */
#include "contract/contract_rules.h"

#include <stdlib.h>

static bool read_point(gac_reader *r, const json_t *value, const gac_contract *contract,
                       gac_gemm_point *out)
{
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype || !gac_dtype_parse(dtype, &out->dtype) || !contract->rules[out->dtype])
        return gac_reader_fault_at(r, "dtype", "must be one of dtypes");
    return gac_reader_size(r, value, "m", GAC_CONTRACT_MAX_SIZE, &out->m) &&
           gac_reader_size(r, value, "n", GAC_CONTRACT_MAX_SIZE, &out->n) &&
           gac_reader_size(r, value, "k", GAC_CONTRACT_MAX_SIZE, &out->k) &&
           gac_reader_number(r, value, "time_us", GAC_CONTRACT_MIN_TIME_US,
                             GAC_CONTRACT_MAX_TIME_US, &out->time_us);
}

bool gac_contract_read_points(gac_reader *r, const json_t *root, gac_contract *out)
{
    json_t *list;
    if (!gac_reader_array(r, root, "points", GAC_MAX_CONTRACT_POINTS, &list))
        return false;
    size_t n = json_array_size(list);
    if (n == 0)
        return true;
    out->points = calloc(n, sizeof *out->points);
    if (!out->points)
        return gac_reader_no_memory(r);
    for (size_t i = 0; i < n; i++) {
        size_t before = gac_reader_enter(r, ".points[%zu]", i);
        if (!read_point(r, json_array_get(list, i), out, &out->points[i]))
            return false;
        gac_reader_leave(r, before);
    }
    out->n_points = n;
    qsort(out->points, n, sizeof *out->points, gac_gemm_point_order);
    for (size_t i = 1; i < n; i++)
        if (gac_gemm_point_order(&out->points[i - 1], &out->points[i]) == 0)
            return gac_reader_fault_at(r, "points",
                                       "must not have two entries of the same m, n, k, dtype");
    return true;
}

static bool read_sdpa_point(gac_reader *r, const json_t *value, const gac_contract *contract,
                            gac_sdpa_point *out)
{
    gac_sdpa_shape *s = &out->shape;
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype || !gac_dtype_parse(dtype, &out->dtype) || !contract->rules[out->dtype])
        return gac_reader_fault_at(r, "dtype", "must be one of dtypes");
    return gac_reader_size(r, value, "batch", GAC_CONTRACT_MAX_SIZE, &s->batch) &&
           gac_reader_size(r, value, "n_q_heads", GAC_CONTRACT_MAX_SIZE, &s->n_q_heads) &&
           gac_reader_size(r, value, "n_kv_heads", GAC_CONTRACT_MAX_SIZE, &s->n_kv_heads) &&
           gac_reader_size(r, value, "n_q", GAC_CONTRACT_MAX_SIZE, &s->n_q) &&
           gac_reader_size(r, value, "n_kv", GAC_CONTRACT_MAX_SIZE, &s->n_kv) &&
           gac_reader_size(r, value, "qk_head", GAC_CONTRACT_MAX_SIZE, &s->qk_head) &&
           gac_reader_size(r, value, "v_head", GAC_CONTRACT_MAX_SIZE, &s->v_head) &&
           gac_reader_bool(r, value, "causal", &s->causal) &&
           gac_reader_number(r, value, "time_us", GAC_CONTRACT_MIN_TIME_US,
                             GAC_CONTRACT_MAX_TIME_US, &out->time_us);
}

bool gac_contract_read_sdpa_points(gac_reader *r, const json_t *root, gac_contract *out)
{
    json_t *list;
    if (!json_object_get(root, "sdpa_points"))
        return true;
    if (!gac_reader_array(r, root, "sdpa_points", GAC_MAX_CONTRACT_POINTS, &list))
        return false;
    size_t n = json_array_size(list);
    out->sdpa_points = calloc(n + 1, sizeof *out->sdpa_points);
    if (!out->sdpa_points)
        return gac_reader_no_memory(r);
    for (size_t i = 0; i < n; i++) {
        size_t before = gac_reader_enter(r, ".sdpa_points[%zu]", i);
        if (!read_sdpa_point(r, json_array_get(list, i), out, &out->sdpa_points[i]))
            return false;
        gac_reader_leave(r, before);
    }
    out->n_sdpa_points = n;
    qsort(out->sdpa_points, n, sizeof *out->sdpa_points, gac_sdpa_point_order);
    for (size_t i = 1; i < n; i++)
        if (gac_sdpa_point_order(&out->sdpa_points[i - 1], &out->sdpa_points[i]) == 0)
            return gac_reader_fault_at(r, "sdpa_points",
                                       "must not have two entries of the same shape");
    return true;
}

bool gac_contract_read_runtime(gac_reader *r, const json_t *root, gac_contract *out)
{
    json_t *runtime;
    gac_runtime *to = &out->runtime;
    const char *basis;
    if (!json_object_get(root, "runtime"))
        return true;
    if (!gac_reader_object(r, root, "runtime", &runtime))
        return false;
    size_t before = gac_reader_enter(r, ".runtime");
    if (!gac_reader_text(r, runtime, "name", &to->name) ||
        !gac_contract_basis(r, runtime, "basis", &basis) ||
        !gac_reader_number(r, runtime, "layer_us", 0, GAC_CONTRACT_MAX_TIME_US, &to->layer_us) ||
        !gac_reader_number(r, runtime, "decode_layer_us", 0, GAC_CONTRACT_MAX_TIME_US,
                           &to->decode_layer_us) ||
        !gac_reader_number(r, runtime, "hidden_ps", 0, GAC_CONTRACT_MAX_TIME_US, &to->hidden_ps) ||
        !gac_reader_number(r, runtime, "width_ps", 0, GAC_CONTRACT_MAX_TIME_US, &to->width_ps) ||
        !gac_reader_number(r, runtime, "kv_ps", 0, GAC_CONTRACT_MAX_TIME_US, &to->kv_ps))
        return false;
    out->has_runtime = true;
    gac_reader_leave(r, before);
    return true;
}

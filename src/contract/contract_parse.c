/* Reads a contract file, which may say anything: every value that is used is
 * checked here for type and range, and a fault is named by its JSON path. */
#include "contract/contract_rules.h"

#include "base/json_reader.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "gac.contract/1"
#define MAX_LIST 1000
#define MAX_HEADS 4096
#define MAX_MULTIPLE 4096
#define MIN_RATE 1e3
#define MAX_RATE 1e20

bool gac_contract_basis(gac_reader *r, const json_t *parent, const char *key, const char **out)
{
    const char *text = json_string_value(json_object_get(parent, key));
    if (text && (strcmp(text, "measured") == 0 || strcmp(text, "published") == 0 ||
                 strcmp(text, "assumed") == 0)) {
        *out = text;
        return true;
    }
    return gac_reader_fault_at(r, key, "must be measured, published or assumed");
}

/* A text that may be missing, which is NULL. */
static bool read_optional(gac_reader *r, const json_t *value, const char *key, const char **out)
{
    *out = NULL;
    return !json_object_get(value, key) || gac_reader_text(r, value, key, out);
}

static bool read_tier(gac_reader *r, const json_t *value, const gac_tier *better, gac_tier *out)
{
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    if (!gac_reader_size(r, value, "multiple", MAX_MULTIPLE, &out->multiple) ||
        !gac_reader_bool(r, value, "aligned", &out->aligned) ||
        !gac_reader_text(r, value, "kernel", &out->kernel) ||
        !gac_reader_text(r, value, "family", &out->family) ||
        !read_optional(r, value, "decode_kernel", &out->decode_kernel) ||
        !read_optional(r, value, "decode_family", &out->decode_family) ||
        !gac_contract_basis(r, value, "basis", &out->basis))
        return false;
    out->served = !json_is_false(json_object_get(value, "served"));
    if (better && out->multiple >= better->multiple)
        return gac_reader_fault_at(r, "multiple", "must be less than that of the tier before");
    if (!better && (!out->aligned || !out->served))
        return gac_reader_fault_at(r, "aligned", "must be true in the first tier, and served");
    if (better && out->aligned && !better->aligned)
        return gac_reader_fault_at(r, "aligned", "must not be true after a tier where it is false");
    return true;
}

/* Calls extra for what a tier of this kind says beyond gac_tier. */
static bool read_tiers(gac_reader *r, const json_t *parent, const char *key, gac_tiers *out,
                       bool (*extra)(gac_reader *r, const json_t *value, int index, void *context),
                       void *context)
{
    json_t *list;
    if (!gac_reader_array(r, parent, key, GAC_MAX_TIERS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".%s", key);
    out->n_tiers = (int)json_array_size(list);
    for (int i = 0; i < out->n_tiers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        size_t at_tier = gac_reader_enter(r, "[%d]", i);
        if (!read_tier(r, value, i > 0 ? &out->tier[i - 1] : NULL, &out->tier[i]) ||
            !extra(r, value, i, context))
            return false;
        gac_reader_leave(r, at_tier);
    }
    if (out->n_tiers == 0 || out->tier[out->n_tiers - 1].multiple != 1)
        return gac_reader_fault(r, "must end with a tier whose multiple is 1");
    gac_reader_leave(r, at_list);
    return true;
}

static bool read_decode_basis(gac_reader *r, const json_t *value, int index, void *context)
{
    gac_gemm_place *place = context;
    return gac_contract_basis(r, value, "decode_basis", &place->tiers.tier[index].decode_basis);
}

static bool read_gemm_rates(gac_reader *r, const json_t *value, int index, void *context)
{
    gac_gemm_place *place = context;
    gac_gemm_rates *rates = &place->rates[index];
    if (!read_decode_basis(r, value, index, context) ||
        !gac_reader_number(r, value, "flops_per_s", MIN_RATE, MAX_RATE, &rates->flops_per_s) ||
        !gac_reader_number(r, value, "bytes_per_s", MIN_RATE, MAX_RATE, &rates->bytes_per_s) ||
        !gac_reader_number(r, value, "edge_bytes_per_s", MIN_RATE, MAX_RATE,
                           &rates->edge_bytes_per_s) ||
        !gac_reader_number(r, value, "overhead_us", 0, GAC_CONTRACT_MAX_TIME_US,
                           &rates->overhead_us) ||
        !gac_reader_number(r, value, "overlap", 0, 1, &rates->overlap))
        return false;
    rates->has_gemv = json_object_get(value, "gemv") != NULL;
    if (!rates->has_gemv)
        return true;
    json_t *gemv;
    if (!gac_reader_object(r, value, "gemv", &gemv))
        return false;
    size_t before = gac_reader_enter(r, ".gemv");
    if (!gac_reader_number(r, gemv, "bytes_per_s", MIN_RATE, MAX_RATE, &rates->gemv_bytes_per_s) ||
        !gac_reader_number(r, gemv, "overhead_us", 0, GAC_CONTRACT_MAX_TIME_US,
                           &rates->gemv_overhead_us))
        return false;
    gac_reader_leave(r, before);
    return true;
}

const gac_table_kind gac_gemm_table = { { "m", "n", "k" }, 0, { 1, 1, 1 }, false };
/* Few k, far apart; one kernel takes so long to begin and to end, and goes
 * through k step by step. */
const gac_table_kind gac_dense_table = { { "m", "n", "k" }, -1, { 1, 1, 1 }, true };
const gac_table_kind gac_dense_k_table = { { "m", "k", "n" }, -1, { 0 }, false };
const gac_table_kind gac_prefill_table = { { "rows", "length", "head" }, 1, { 1, 2, 1 }, false };
const gac_table_kind gac_decode_table = { { "rows", "length", "head" }, 1, { 1, 1, 1 }, false };

static int find_tier(const gac_tiers *tiers, int64_t multiple)
{
    for (int i = 0; i < tiers->n_tiers; i++)
        if (tiers->tier[i].multiple == multiple)
            return i;
    return -1;
}

/* A table of one row only is apart: it is finer. */
static bool is_row_table(const json_t *value)
{
    const json_t *rows = json_object_get(value, "m");
    return json_array_size(rows) == 1 && json_integer_value(json_array_get(rows, 0)) == 1;
}

static bool read_gemm_table(gac_reader *r, const json_t *value, gac_dtype_rules *out)
{
    const gac_tiers *by_n = &out->gemm[GAC_OP_GEMM_N].tiers;
    const gac_tiers *by_k = &out->gemm[GAC_OP_GEMM_K].tiers;
    int64_t n_multiple, k_multiple;
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    if (!gac_reader_size(r, value, "n_multiple", MAX_MULTIPLE, &n_multiple) ||
        !gac_reader_size(r, value, "k_multiple", MAX_MULTIPLE, &k_multiple))
        return false;
    int tier_n = find_tier(by_n, n_multiple), tier_k = find_tier(by_k, k_multiple);
    if (tier_n < 0 || tier_k < 0 || !by_n->tier[tier_n].served || !by_k->tier[tier_k].served)
        return gac_reader_fault(r, "must be of tiers that are listed and served");
    gac_gemm_times *times = is_row_table(value) ? out->row_times : out->times;
    times += tier_n * by_k->n_tiers + tier_k;
    if (times->table.us)
        return gac_reader_fault(r, "must not be of the same tiers as another table");
    return gac_table_read(r, value, &gac_gemm_table, &times->table) &&
           gac_gemm_wave_read(r, value, times);
}

/* Reads the tables of key, where gemm has it; out has room for GAC_MAX_DENSE. */
static bool read_dense(gac_reader *r, const json_t *gemm, const char *key,
                       const gac_table_kind *kind, const gac_gemm_place places[2], gac_table *out,
                       int *n_out)
{
    json_t *list;
    if (!json_object_get(gemm, key))
        return true;
    if (!gac_reader_array(r, gemm, key, GAC_MAX_DENSE, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".%s", key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        int64_t multiple[2];
        size_t before = gac_reader_enter(r, "[%zu]", i);
        if (!json_is_object(value))
            return gac_reader_fault(r, "must be an object");
        if (!gac_reader_size(r, value, "n_multiple", MAX_MULTIPLE, &multiple[GAC_OP_GEMM_N]) ||
            !gac_reader_size(r, value, "k_multiple", MAX_MULTIPLE, &multiple[GAC_OP_GEMM_K]))
            return false;
        for (int place = 0; place < 2; place++)
            if (multiple[place] != places[place].tiers.tier[0].multiple)
                return gac_reader_fault(r, "must be of the first tiers of n and k");
        if (!gac_table_read(r, value, kind, &out[(*n_out)++]))
            return false;
        gac_reader_leave(r, before);
    }
    gac_reader_leave(r, at_list);
    return true;
}

static bool read_gemm_times(gac_reader *r, const json_t *gemm, gac_dtype_rules *out)
{
    const gac_tiers *by_n = &out->gemm[GAC_OP_GEMM_N].tiers;
    const gac_tiers *by_k = &out->gemm[GAC_OP_GEMM_K].tiers;
    int n_pairs = by_n->n_tiers * by_k->n_tiers;
    json_t *list;
    if (!gac_reader_array(r, gemm, "times", 2 * (size_t)n_pairs, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".times");
    out->times = calloc((size_t)n_pairs, sizeof *out->times);
    out->row_times = calloc((size_t)n_pairs, sizeof *out->row_times);
    if (!out->times || !out->row_times)
        return gac_reader_no_memory(r);
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t before = gac_reader_enter(r, "[%zu]", i);
        if (!read_gemm_table(r, json_array_get(list, i), out))
            return false;
        gac_reader_leave(r, before);
    }
    for (int i = 0; i < by_n->n_tiers; i++)
        if (!out->times[i * by_k->n_tiers].table.us && by_n->tier[i].served)
            return gac_reader_fault(r, "must have a table of the best k for every served n");
    gac_reader_leave(r, at_list);
    if (!read_dense(r, gemm, "dense", &gac_dense_table, out->gemm, out->dense, &out->n_dense) ||
        !read_dense(r, gemm, "dense_k", &gac_dense_k_table, out->gemm, out->dense_k,
                    &out->n_dense_k) ||
        !read_dense(r, gemm, "dense_part", &gac_dense_table, out->gemm, out->dense_part,
                    &out->n_dense_part))
        return false;
    const json_t *lines = json_object_get(gemm, "lines");
    if (lines) {
        gac_reader_enter(r, ".lines");
        if (!gac_lines_read(r, lines, &out->lines))
            return false;
        gac_reader_leave(r, at_list);
    }
    return true;
}

static bool all_served(const gac_dtype_rules *rules)
{
    for (int place = 0; place < 2; place++)
        for (int i = 0; i < rules->gemm[place].tiers.n_tiers; i++)
            if (!rules->gemm[place].tiers.tier[i].served)
                return false;
    return true;
}

static bool read_gemm(gac_reader *r, const json_t *root, const char *dtype, gac_dtype_rules *out)
{
    json_t *all, *gemm;
    if (!gac_reader_object(r, root, "gemm", &all))
        return false;
    size_t at_gemm = gac_reader_enter(r, ".gemm");
    if (!gac_reader_object(r, all, dtype, &gemm))
        return false;
    gac_reader_enter(r, ".%s", dtype);
    gac_gemm_place *n = &out->gemm[GAC_OP_GEMM_N], *k = &out->gemm[GAC_OP_GEMM_K];
    bool has_times = json_object_get(gemm, "times") != NULL;
    bool (*extra)(gac_reader *, const json_t *, int, void *) =
        has_times ? read_decode_basis : read_gemm_rates;
    if (!read_tiers(r, gemm, "n", &n->tiers, extra, n) ||
        !read_tiers(r, gemm, "k", &k->tiers, extra, k) ||
        (has_times && !read_gemm_times(r, gemm, out)))
        return false;
    out->falls_back = GAC_DTYPE_COUNT;
    const char *other = json_string_value(json_object_get(gemm, "falls_back_to"));
    if (!all_served(out) && (!other || !gac_dtype_parse(other, &out->falls_back)))
        return gac_reader_fault_at(r, "falls_back_to",
                                   "must be a dtype where a tier is not served");
    gac_reader_leave(r, at_gemm);
    return true;
}

/* A pair of prefill tables, not causal and causal, and one of decode. */
static bool read_sdpa_tables(gac_reader *r, const json_t *value, int index, double tile,
                             gac_sdpa_rules *rules)
{
    json_t *list, *decode;
    if (!gac_reader_array(r, value, "prefill", 2, &list) ||
        !gac_reader_object(r, value, "decode", &decode))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        bool causal;
        size_t before = gac_reader_enter(r, ".prefill[%zu]", i);
        if (!gac_reader_bool(r, entry, "causal", &causal))
            return false;
        gac_prefill_times *times = &rules->prefill[index][causal];
        if (times->table.us)
            return gac_reader_fault(r, "must be one causal and one not");
        times->tile = tile;
        if (!gac_table_read(r, entry, &gac_prefill_table, &times->table) ||
            !gac_prefill_wave_read(r, entry, times))
            return false;
        gac_reader_leave(r, before);
    }
    if (!rules->prefill[index][0].table.us || !rules->prefill[index][1].table.us)
        return gac_reader_fault_at(r, "prefill", "must be one causal and one not");
    size_t before = gac_reader_enter(r, ".decode");
    if (!gac_table_read(r, decode, &gac_decode_table, &rules->decode[index]))
        return false;
    gac_reader_leave(r, before);
    return true;
}

static bool read_sdpa_tier(gac_reader *r, const json_t *value, int index, void *context)
{
    gac_sdpa_rules *rules = context;
    int64_t tile = 1;
    rules->pad_bytes_per_s[index] = 0;
    if (json_object_get(value, "tile") && !gac_reader_size(r, value, "tile", MAX_MULTIPLE, &tile))
        return false;
    bool has_tables = json_object_get(value, "prefill") != NULL;
    if (index == 0)
        rules->has_tables = has_tables;
    else if (rules->has_tables != has_tables)
        return gac_reader_fault_at(r, "prefill", "must be in every tier or in none");
    if (has_tables && !read_sdpa_tables(r, value, index, (double)tile, rules))
        return false;
    if (!json_object_get(value, "pad_bytes_per_s"))
        return true;
    return gac_reader_number(r, value, "pad_bytes_per_s", MIN_RATE, MAX_RATE,
                             &rules->pad_bytes_per_s[index]);
}

/* Reads [[head, time_us], …], heads rising. The caller frees *out. */
static bool read_head_times(gac_reader *r, const json_t *parent, gac_head_time **out, int *n_out)
{
    json_t *list;
    if (!gac_reader_array(r, parent, "points", MAX_HEADS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".points");
    int n = (int)json_array_size(list);
    if (n == 0)
        return gac_reader_fault(r, "must have an entry");
    gac_head_time *times = calloc((size_t)n, sizeof *times);
    if (!times)
        return gac_reader_no_memory(r);
    *out = times;
    *n_out = n;
    for (int i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, (size_t)i);
        size_t at_pair = gac_reader_enter(r, "[%d]", i);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return gac_reader_fault(r, "must be a pair of head size and time_us");
        if (!gac_reader_to_size(r, json_array_get(pair, 0), MAX_HEADS, &times[i].head) ||
            !gac_reader_to_number(r, json_array_get(pair, 1), GAC_CONTRACT_MIN_TIME_US,
                                  GAC_CONTRACT_MAX_TIME_US, &times[i].time_us))
            return false;
        if (i > 0 && times[i].head <= times[i - 1].head)
            return gac_reader_fault(r, "must have a larger head size than the entry before");
        gac_reader_leave(r, at_pair);
    }
    gac_reader_leave(r, at_list);
    return true;
}

/* Gives each tier the part of the curve that it serves. */
static bool split_curve(gac_reader *r, const gac_head_time *times, int n, gac_sdpa_rules *out)
{
    if (times[n - 1].head > out->max_head)
        return gac_reader_fault_at(r, "points", "has a head size above max_head");
    for (int t = 0; t < out->tiers.n_tiers; t++) {
        gac_head_curve *curve = &out->curves[t];
        curve->points = calloc((size_t)n, sizeof *curve->points);
        if (!curve->points)
            return gac_reader_no_memory(r);
    }
    for (int i = 0; i < n; i++) {
        gac_head_curve *curve = &out->curves[gac_tiers_pick(&out->tiers, times[i].head)];
        curve->points[curve->n_points++] = times[i];
    }
    for (int t = 0; t < out->tiers.n_tiers; t++)
        if (out->curves[t].n_points == 0)
            return gac_reader_fault_at(r, "points", "must have an entry of every tier");
    return true;
}

/* Least squares line; a falling one is held level, so that times stay positive. */
static void fit_line(const gac_head_time *times, int n, double *base, double *slope)
{
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (int i = 0; i < n; i++) {
        mean_x += (double)times[i].head / n;
        mean_y += times[i].time_us / n;
    }
    for (int i = 0; i < n; i++) {
        double x = (double)times[i].head - mean_x;
        xx += x * x;
        xy += x * (times[i].time_us - mean_y);
    }
    *slope = xx > 0 && xy > 0 ? xy / xx : 0;
    *base = mean_y - *slope * mean_x;
}

static bool read_reference(gac_reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *reference;
    int64_t batch, n_heads, n_q, n_kv;
    if (!gac_reader_object(r, parent, "reference", &reference))
        return false;
    size_t before = gac_reader_enter(r, ".reference");
    if (!gac_reader_size(r, reference, "batch", GAC_CONTRACT_MAX_SIZE, &batch) ||
        !gac_reader_size(r, reference, "n_heads", GAC_CONTRACT_MAX_SIZE, &n_heads) ||
        !gac_reader_size(r, reference, "n_q", GAC_CONTRACT_MAX_SIZE, &n_q) ||
        !gac_reader_size(r, reference, "n_kv", GAC_CONTRACT_MAX_SIZE, &n_kv) ||
        !gac_reader_bool(r, reference, "causal", &out->ref_causal))
        return false;
    out->ref_batch = (double)batch;
    out->ref_n_heads = (double)n_heads;
    out->ref_n_q = (double)n_q;
    out->ref_n_kv = (double)n_kv;
    gac_reader_leave(r, before);
    return true;
}

static bool read_beyond(gac_reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *beyond;
    if (!gac_reader_object(r, parent, "beyond", &beyond))
        return false;
    size_t before = gac_reader_enter(r, ".beyond");
    gac_head_time *times = NULL;
    int n = 0;
    bool ok = gac_reader_text(r, beyond, "kernel", &out->beyond_kernel) &&
              gac_reader_text(r, beyond, "family", &out->beyond_family) &&
              gac_contract_basis(r, beyond, "basis", &out->beyond_basis) &&
              read_head_times(r, beyond, &times, &n);
    if (ok) {
        fit_line(times, n, &out->beyond_base_us, &out->beyond_slope_us);
        gac_reader_leave(r, before);
    }
    free(times);
    return ok;
}

static bool read_decode(gac_reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *decode;
    const char *basis;
    if (!gac_reader_object(r, parent, "decode", &decode))
        return false;
    size_t before = gac_reader_enter(r, ".decode");
    if (!gac_reader_number(r, decode, "bytes_per_s", MIN_RATE, MAX_RATE,
                           &out->decode_bytes_per_s) ||
        !gac_reader_number(r, decode, "overhead_us", 0, GAC_CONTRACT_MAX_TIME_US,
                           &out->decode_overhead_us) ||
        !gac_contract_basis(r, decode, "basis", &basis))
        return false;
    gac_reader_leave(r, before);
    return true;
}

static bool read_sdpa(gac_reader *r, const json_t *root, const char *dtype, gac_sdpa_rules *out)
{
    json_t *all, *sdpa;
    if (!gac_reader_object(r, root, "sdpa", &all))
        return false;
    size_t at_sdpa = gac_reader_enter(r, ".sdpa");
    if (!gac_reader_object(r, all, dtype, &sdpa))
        return false;
    const char *same_as = json_string_value(json_object_get(sdpa, "same_as"));
    if (same_as) {
        json_t *other;
        if (!gac_reader_object(r, all, same_as, &other))
            return false;
        if (json_object_get(other, "same_as"))
            return gac_reader_fault_at(r, same_as, "must state its own times");
        dtype = same_as;
        sdpa = other;
    }
    gac_reader_enter(r, ".%s", dtype);
    gac_head_time *times = NULL;
    int n = 0;
    bool ok = read_reference(r, sdpa, out) &&
              gac_reader_size(r, sdpa, "max_head", MAX_HEADS, &out->max_head) &&
              read_tiers(r, sdpa, "tiers", &out->tiers, read_sdpa_tier, out) &&
              read_decode(r, sdpa, out) && read_head_times(r, sdpa, &times, &n) &&
              split_curve(r, times, n, out) && read_beyond(r, sdpa, out);
    free(times);
    if (ok)
        gac_reader_leave(r, at_sdpa);
    return ok;
}

static bool read_dtypes(gac_reader *r, const json_t *root, gac_contract *out)
{
    json_t *list;
    if (!gac_reader_array(r, root, "dtypes", GAC_DTYPE_COUNT, &list))
        return false;
    if (json_array_size(list) == 0)
        return gac_reader_fault_at(r, "dtypes", "must have an entry");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        gac_dtype dtype;
        size_t before = gac_reader_enter(r, ".dtypes[%zu]", i);
        if (!name || !gac_dtype_parse(name, &dtype))
            return gac_reader_fault(r, "must be a dtype");
        if (out->rules[dtype])
            return gac_reader_fault(r, "must not repeat a dtype");
        gac_reader_leave(r, before);
        gac_dtype_rules *rules = calloc(1, sizeof *rules);
        if (!rules)
            return gac_reader_no_memory(r);
        out->rules[dtype] = rules;
        rules->element_bytes = gac_dtype_bits(dtype) / 8.0;
        if (!read_gemm(r, root, name, rules) || !read_sdpa(r, root, name, &rules->sdpa))
            return false;
    }
    for (int i = 0; i < GAC_DTYPE_COUNT; i++) {
        const gac_dtype_rules *rules = out->rules[i];
        if (!rules || rules->falls_back == GAC_DTYPE_COUNT)
            continue;
        if (!out->rules[rules->falls_back] || !all_served(out->rules[rules->falls_back]))
            return gac_reader_fault_at(r, "gemm", "falls back to a dtype that is not served whole");
    }
    return true;
}

static bool read_stand_ins(gac_reader *r, const json_t *root, gac_contract *out)
{
    json_t *all, *value;
    const char *name, *reason;
    if (!gac_reader_object(r, root, "stands_for", &all))
        return false;
    size_t at_all = gac_reader_enter(r, ".stands_for");
    json_object_foreach(all, name, value) {
        gac_dtype from, to;
        size_t before = gac_reader_enter(r, ".%s", name);
        if (!gac_dtype_parse(name, &from) || out->rules[from])
            return gac_reader_fault(r, "must name a dtype that is not in dtypes");
        const char *target = json_string_value(json_object_get(value, "dtype"));
        if (!target || !gac_dtype_parse(target, &to) || !out->rules[to])
            return gac_reader_fault_at(r, "dtype", "must be one of dtypes");
        if (!gac_reader_text(r, value, "reason", &reason))
            return false;
        out->stand_in[from] = to;
        gac_reader_leave(r, before);
    }
    gac_reader_leave(r, at_all);
    return true;
}

/* What is only shown to people still has to be what it says it is. */
static bool read_description(gac_reader *r, const json_t *root, gac_contract *out)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    const char *arch, *key, *text;
    json_t *stack, *sources, *value;
    bool provisional;
    if (!json_is_object(root))
        return gac_reader_fault(r, "must be an object");
    if (!schema || strcmp(schema, SCHEMA) != 0)
        return gac_reader_fault_at(r, "schema", "must be " SCHEMA);
    if (!gac_reader_text(r, root, "name", &out->name) ||
        !gac_reader_text(r, root, "gpu", &out->gpu) || !gac_reader_text(r, root, "arch", &arch) ||
        !gac_reader_bool(r, root, "provisional", &provisional) ||
        !gac_reader_object(r, root, "stack", &stack) ||
        !gac_reader_array(r, root, "sources", MAX_LIST, &sources))
        return false;
    size_t at_stack = gac_reader_enter(r, ".stack");
    json_object_foreach(stack, key, value) {
        if (!gac_reader_is_printable(key))
            return gac_reader_fault(r, "must have keys of 1 to 512 printable bytes");
        if (!gac_reader_text(r, stack, key, &text))
            return false;
    }
    gac_reader_leave(r, at_stack);
    for (size_t i = 0; i < json_array_size(sources); i++) {
        size_t before = gac_reader_enter(r, ".sources[%zu]", i);
        if (!gac_reader_is_text(json_array_get(sources, i)))
            return gac_reader_fault(r, "must be a string of 1 to 512 printable bytes");
        gac_reader_leave(r, before);
    }
    return !json_object_get(root, "fit") || json_is_object(json_object_get(root, "fit")) ||
           gac_reader_fault_at(r, "fit", "must be an object");
}

gac_status gac_contract_read(gac_contract *contract, gac_bulk *bulk, const char *source,
                             gac_error *err)
{
    gac_reader r = GAC_READER_INIT(source, err);
    const json_t *root = contract->json;
    r.beside = bulk;
    if (!read_description(&r, root, contract) || !read_dtypes(&r, root, contract) ||
        !read_stand_ins(&r, root, contract) || !gac_contract_read_points(&r, root, contract) ||
        !gac_contract_read_sdpa_points(&r, root, contract) ||
        !gac_contract_read_runtime(&r, root, contract))
        return r.status;
    if (bulk && !gac_bulk_is_used_up(bulk))
        return GAC_BAD_INPUT;
    return GAC_OK;
}

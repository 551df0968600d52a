/* Reads a contract file, which may say anything: every value that is used is
 * checked here for type and range, and a fault is named by its JSON path. */
#include "contract/contract_rules.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "gac.contract/1"
#define MAX_TEXT_BYTES 512
#define MAX_LIST 1000
#define MAX_HEADS 4096
#define MAX_MULTIPLE 4096
#define MAX_SIZE 1000000000
#define MIN_RATE 1e3
#define MAX_RATE 1e20
#define MIN_TIME_US 1e-6
#define MAX_TIME_US 1e12

/* Where in the file the reader is. Functions return false after fault(). */
typedef struct reader {
    const char *source;
    gac_error *err;
    gac_status status;
    size_t length;
    char path[320];
} reader;

GAC_PRINTF(2, 3) static size_t enter(reader *r, const char *format, ...)
{
    size_t before = r->length;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(r->path + before, sizeof r->path - before, format, args);
    va_end(args);
    if (n > 0)
        r->length += (size_t)n;
    if (r->length >= sizeof r->path)
        r->length = sizeof r->path - 1;
    return before;
}

static void leave(reader *r, size_t before)
{
    r->length = before;
    r->path[before] = '\0';
}

static bool fault(reader *r, const char *rule)
{
    char source[256], path[320];
    r->status = gac_error_set(r->err, GAC_BAD_INPUT, "%s: %s: %s",
                              gac_quote(source, sizeof source, r->source),
                              gac_quote(path, sizeof path, r->path), rule);
    return false;
}

static bool fault_at(reader *r, const char *key, const char *rule)
{
    enter(r, ".%s", key);
    return fault(r, rule);
}

static bool no_memory(reader *r)
{
    r->status = gac_error_no_memory(r->err);
    return false;
}

static bool get_object(reader *r, const json_t *parent, const char *key, json_t **out)
{
    *out = json_object_get(parent, key);
    return json_is_object(*out) || fault_at(r, key, "must be an object");
}

static bool get_array(reader *r, const json_t *parent, const char *key, size_t max, json_t **out)
{
    char rule[64];
    *out = json_object_get(parent, key);
    if (!json_is_array(*out))
        return fault_at(r, key, "must be an array");
    snprintf(rule, sizeof rule, "must have at most %zu entries", max);
    return json_array_size(*out) <= max || fault_at(r, key, rule);
}

static bool get_bool(reader *r, const json_t *parent, const char *key, bool *out)
{
    const json_t *value = json_object_get(parent, key);
    *out = json_is_true(value);
    return json_is_boolean(value) || fault_at(r, key, "must be true or false");
}

/* These strings reach terminals. */
static bool is_printable(const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || n > MAX_TEXT_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

static bool is_text(const json_t *value)
{
    return json_is_string(value) && is_printable(json_string_value(value));
}

static bool get_text(reader *r, const json_t *parent, const char *key, const char **out)
{
    const json_t *value = json_object_get(parent, key);
    *out = json_string_value(value);
    return is_text(value) || fault_at(r, key, "must be a string of 1 to 512 printable bytes");
}

static bool to_number(reader *r, const json_t *value, double min, double max, double *out)
{
    char rule[96];
    *out = json_number_value(value);
    if (!json_is_number(value))
        return fault(r, "must be a number");
    snprintf(rule, sizeof rule, "must be from %g to %g", min, max);
    return (*out >= min && *out <= max) || fault(r, rule);
}

static bool get_number(reader *r, const json_t *parent, const char *key, double min, double max,
                       double *out)
{
    size_t before = enter(r, ".%s", key);
    if (!to_number(r, json_object_get(parent, key), min, max, out))
        return false;
    leave(r, before);
    return true;
}

static bool to_size(reader *r, const json_t *value, int64_t max, int64_t *out)
{
    char rule[96];
    *out = json_integer_value(value);
    snprintf(rule, sizeof rule, "must be an integer from 1 to %lld", (long long)max);
    return (json_is_integer(value) && *out >= 1 && *out <= max) || fault(r, rule);
}

static bool get_size(reader *r, const json_t *parent, const char *key, int64_t max, int64_t *out)
{
    size_t before = enter(r, ".%s", key);
    if (!to_size(r, json_object_get(parent, key), max, out))
        return false;
    leave(r, before);
    return true;
}

static bool get_basis(reader *r, const json_t *parent, const char *key, const char **out)
{
    const char *text = json_string_value(json_object_get(parent, key));
    if (text && (strcmp(text, "measured") == 0 || strcmp(text, "published") == 0 ||
                 strcmp(text, "assumed") == 0)) {
        *out = text;
        return true;
    }
    return fault_at(r, key, "must be measured, published or assumed");
}

static bool read_tier(reader *r, const json_t *value, const gac_tier *better, gac_tier *out)
{
    if (!json_is_object(value))
        return fault(r, "must be an object");
    if (!get_size(r, value, "multiple", MAX_MULTIPLE, &out->multiple) ||
        !get_bool(r, value, "aligned", &out->aligned) ||
        !get_text(r, value, "kernel", &out->kernel) ||
        !get_text(r, value, "family", &out->family) || !get_basis(r, value, "basis", &out->basis))
        return false;
    if (better && out->multiple >= better->multiple)
        return fault_at(r, "multiple", "must be less than that of the tier before");
    if (!better && !out->aligned)
        return fault_at(r, "aligned", "must be true in the first tier");
    if (better && out->aligned && !better->aligned)
        return fault_at(r, "aligned", "must not be true after a tier where it is false");
    return true;
}

/* Calls extra for what a tier of this kind says beyond gac_tier. */
static bool read_tiers(reader *r, const json_t *parent, const char *key, gac_tiers *out,
                       bool (*extra)(reader *r, const json_t *value, int index, void *context),
                       void *context)
{
    json_t *list;
    if (!get_array(r, parent, key, GAC_MAX_TIERS, &list))
        return false;
    size_t at_list = enter(r, ".%s", key);
    out->n_tiers = (int)json_array_size(list);
    for (int i = 0; i < out->n_tiers; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        size_t at_tier = enter(r, "[%d]", i);
        if (!read_tier(r, value, i > 0 ? &out->tier[i - 1] : NULL, &out->tier[i]) ||
            !extra(r, value, i, context))
            return false;
        leave(r, at_tier);
    }
    if (out->n_tiers == 0 || out->tier[out->n_tiers - 1].multiple != 1)
        return fault(r, "must end with a tier whose multiple is 1");
    leave(r, at_list);
    return true;
}

static bool read_gemm_rates(reader *r, const json_t *value, int index, void *context)
{
    gac_gemm_place *place = context;
    gac_gemm_rates *rates = &place->rates[index];
    if (!get_number(r, value, "flops_per_s", MIN_RATE, MAX_RATE, &rates->flops_per_s) ||
        !get_number(r, value, "bytes_per_s", MIN_RATE, MAX_RATE, &rates->bytes_per_s) ||
        !get_number(r, value, "edge_bytes_per_s", MIN_RATE, MAX_RATE, &rates->edge_bytes_per_s) ||
        !get_number(r, value, "overhead_us", 0, MAX_TIME_US, &rates->overhead_us) ||
        !get_number(r, value, "overlap", 0, 1, &rates->overlap) ||
        !get_basis(r, value, "decode_basis", &place->tiers.tier[index].decode_basis))
        return false;
    rates->has_gemv = json_object_get(value, "gemv") != NULL;
    if (!rates->has_gemv)
        return true;
    json_t *gemv;
    if (!get_object(r, value, "gemv", &gemv))
        return false;
    size_t before = enter(r, ".gemv");
    if (!get_number(r, gemv, "bytes_per_s", MIN_RATE, MAX_RATE, &rates->gemv_bytes_per_s) ||
        !get_number(r, gemv, "overhead_us", 0, MAX_TIME_US, &rates->gemv_overhead_us))
        return false;
    leave(r, before);
    return true;
}

static bool read_gemm(reader *r, const json_t *root, const char *dtype, gac_gemm_place *places)
{
    json_t *all, *gemm;
    if (!get_object(r, root, "gemm", &all))
        return false;
    size_t at_gemm = enter(r, ".gemm");
    if (!get_object(r, all, dtype, &gemm))
        return false;
    enter(r, ".%s", dtype);
    gac_gemm_place *n = &places[GAC_SEEN_GEMM_N], *k = &places[GAC_SEEN_GEMM_K];
    if (!read_tiers(r, gemm, "n", &n->tiers, read_gemm_rates, n) ||
        !read_tiers(r, gemm, "k", &k->tiers, read_gemm_rates, k))
        return false;
    leave(r, at_gemm);
    return true;
}

static bool read_pad_rate(reader *r, const json_t *value, int index, void *context)
{
    gac_sdpa_rules *rules = context;
    rules->pad_bytes_per_s[index] = 0;
    if (!json_object_get(value, "pad_bytes_per_s"))
        return true;
    return get_number(r, value, "pad_bytes_per_s", MIN_RATE, MAX_RATE,
                      &rules->pad_bytes_per_s[index]);
}

/* Reads [[head, time_us], …], heads rising. The caller frees *out. */
static bool read_head_times(reader *r, const json_t *parent, gac_head_time **out, int *n_out)
{
    json_t *list;
    if (!get_array(r, parent, "points", MAX_HEADS, &list))
        return false;
    size_t at_list = enter(r, ".points");
    int n = (int)json_array_size(list);
    if (n == 0)
        return fault(r, "must have an entry");
    gac_head_time *times = calloc((size_t)n, sizeof *times);
    if (!times)
        return no_memory(r);
    *out = times;
    *n_out = n;
    for (int i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, (size_t)i);
        size_t at_pair = enter(r, "[%d]", i);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return fault(r, "must be a pair of head size and time_us");
        if (!to_size(r, json_array_get(pair, 0), MAX_HEADS, &times[i].head) ||
            !to_number(r, json_array_get(pair, 1), MIN_TIME_US, MAX_TIME_US, &times[i].time_us))
            return false;
        if (i > 0 && times[i].head <= times[i - 1].head)
            return fault(r, "must have a larger head size than the entry before");
        leave(r, at_pair);
    }
    leave(r, at_list);
    return true;
}

/* Gives each tier the part of the curve that it serves. */
static bool split_curve(reader *r, const gac_head_time *times, int n, gac_sdpa_rules *out)
{
    if (times[n - 1].head > out->max_head)
        return fault_at(r, "points", "has a head size above max_head");
    for (int t = 0; t < out->tiers.n_tiers; t++) {
        gac_head_curve *curve = &out->curves[t];
        curve->points = calloc((size_t)n, sizeof *curve->points);
        if (!curve->points)
            return no_memory(r);
    }
    for (int i = 0; i < n; i++) {
        gac_head_curve *curve = &out->curves[gac_tiers_pick(&out->tiers, times[i].head)];
        curve->points[curve->n_points++] = times[i];
    }
    for (int t = 0; t < out->tiers.n_tiers; t++)
        if (out->curves[t].n_points == 0)
            return fault_at(r, "points", "must have an entry of every tier");
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

static bool read_reference(reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *reference;
    int64_t batch, n_heads, n_q, n_kv;
    if (!get_object(r, parent, "reference", &reference))
        return false;
    size_t before = enter(r, ".reference");
    if (!get_size(r, reference, "batch", MAX_SIZE, &batch) ||
        !get_size(r, reference, "n_heads", MAX_SIZE, &n_heads) ||
        !get_size(r, reference, "n_q", MAX_SIZE, &n_q) ||
        !get_size(r, reference, "n_kv", MAX_SIZE, &n_kv) ||
        !get_bool(r, reference, "causal", &out->ref_causal))
        return false;
    out->ref_batch = (double)batch;
    out->ref_n_heads = (double)n_heads;
    out->ref_n_q = (double)n_q;
    out->ref_n_kv = (double)n_kv;
    leave(r, before);
    return true;
}

static bool read_beyond(reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *beyond;
    if (!get_object(r, parent, "beyond", &beyond))
        return false;
    size_t before = enter(r, ".beyond");
    gac_head_time *times = NULL;
    int n = 0;
    bool ok = get_text(r, beyond, "kernel", &out->beyond_kernel) &&
              get_text(r, beyond, "family", &out->beyond_family) &&
              get_basis(r, beyond, "basis", &out->beyond_basis) &&
              read_head_times(r, beyond, &times, &n);
    if (ok) {
        fit_line(times, n, &out->beyond_base_us, &out->beyond_slope_us);
        leave(r, before);
    }
    free(times);
    return ok;
}

static bool read_decode(reader *r, const json_t *parent, gac_sdpa_rules *out)
{
    json_t *decode;
    const char *basis;
    if (!get_object(r, parent, "decode", &decode))
        return false;
    size_t before = enter(r, ".decode");
    if (!get_number(r, decode, "bytes_per_s", MIN_RATE, MAX_RATE, &out->decode_bytes_per_s) ||
        !get_number(r, decode, "overhead_us", 0, MAX_TIME_US, &out->decode_overhead_us) ||
        !get_basis(r, decode, "basis", &basis))
        return false;
    leave(r, before);
    return true;
}

static bool read_sdpa(reader *r, const json_t *root, const char *dtype, gac_sdpa_rules *out)
{
    json_t *all, *sdpa;
    if (!get_object(r, root, "sdpa", &all))
        return false;
    size_t at_sdpa = enter(r, ".sdpa");
    if (!get_object(r, all, dtype, &sdpa))
        return false;
    enter(r, ".%s", dtype);
    gac_head_time *times = NULL;
    int n = 0;
    bool ok = read_reference(r, sdpa, out) &&
              get_size(r, sdpa, "max_head", MAX_HEADS, &out->max_head) &&
              read_tiers(r, sdpa, "tiers", &out->tiers, read_pad_rate, out) &&
              read_decode(r, sdpa, out) && read_head_times(r, sdpa, &times, &n) &&
              split_curve(r, times, n, out) && read_beyond(r, sdpa, out);
    free(times);
    if (ok)
        leave(r, at_sdpa);
    return ok;
}

static bool read_dtypes(reader *r, const json_t *root, gac_contract *out)
{
    json_t *list;
    if (!get_array(r, root, "dtypes", GAC_DTYPE_COUNT, &list))
        return false;
    if (json_array_size(list) == 0)
        return fault_at(r, "dtypes", "must have an entry");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        gac_dtype dtype;
        size_t before = enter(r, ".dtypes[%zu]", i);
        if (!name || !gac_dtype_parse(name, &dtype))
            return fault(r, "must be a dtype");
        if (out->rules[dtype])
            return fault(r, "must not repeat a dtype");
        leave(r, before);
        gac_dtype_rules *rules = calloc(1, sizeof *rules);
        if (!rules)
            return no_memory(r);
        out->rules[dtype] = rules;
        rules->element_bytes = gac_dtype_bits(dtype) / 8.0;
        if (!read_gemm(r, root, name, rules->gemm) || !read_sdpa(r, root, name, &rules->sdpa))
            return false;
    }
    return true;
}

static bool read_stand_ins(reader *r, const json_t *root, gac_contract *out)
{
    json_t *all, *value;
    const char *name, *reason;
    if (!get_object(r, root, "stands_for", &all))
        return false;
    size_t at_all = enter(r, ".stands_for");
    json_object_foreach(all, name, value) {
        gac_dtype from, to;
        size_t before = enter(r, ".%s", name);
        if (!gac_dtype_parse(name, &from) || out->rules[from])
            return fault(r, "must name a dtype that is not in dtypes");
        const char *target = json_string_value(json_object_get(value, "dtype"));
        if (!target || !gac_dtype_parse(target, &to) || !out->rules[to])
            return fault_at(r, "dtype", "must be one of dtypes");
        if (!get_text(r, value, "reason", &reason))
            return false;
        out->stand_in[from] = to;
        leave(r, before);
    }
    leave(r, at_all);
    return true;
}

static bool read_point(reader *r, const json_t *value, const gac_contract *contract,
                       gac_gemm_point *out)
{
    if (!json_is_object(value))
        return fault(r, "must be an object");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype || !gac_dtype_parse(dtype, &out->dtype) || !contract->rules[out->dtype])
        return fault_at(r, "dtype", "must be one of dtypes");
    return get_size(r, value, "m", MAX_SIZE, &out->m) &&
           get_size(r, value, "n", MAX_SIZE, &out->n) &&
           get_size(r, value, "k", MAX_SIZE, &out->k) &&
           get_number(r, value, "time_us", MIN_TIME_US, MAX_TIME_US, &out->time_us);
}

static bool read_points(reader *r, const json_t *root, gac_contract *out)
{
    json_t *list;
    if (!get_array(r, root, "points", GAC_MAX_CONTRACT_POINTS, &list))
        return false;
    size_t n = json_array_size(list);
    if (n == 0)
        return true;
    out->points = calloc(n, sizeof *out->points);
    if (!out->points)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        size_t before = enter(r, ".points[%zu]", i);
        if (!read_point(r, json_array_get(list, i), out, &out->points[i]))
            return false;
        leave(r, before);
    }
    out->n_points = n;
    qsort(out->points, n, sizeof *out->points, gac_gemm_point_order);
    for (size_t i = 1; i < n; i++)
        if (gac_gemm_point_order(&out->points[i - 1], &out->points[i]) == 0)
            return fault_at(r, "points", "must not have two entries of the same m, n, k, dtype");
    return true;
}

/* What is only shown to people still has to be what it says it is. */
static bool read_description(reader *r, const json_t *root, gac_contract *out)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    const char *arch, *key, *text;
    json_t *stack, *sources, *value;
    bool provisional;
    if (!json_is_object(root))
        return fault(r, "must be an object");
    if (!schema || strcmp(schema, SCHEMA) != 0)
        return fault_at(r, "schema", "must be " SCHEMA);
    if (!get_text(r, root, "name", &out->name) || !get_text(r, root, "gpu", &out->gpu) ||
        !get_text(r, root, "arch", &arch) || !get_bool(r, root, "provisional", &provisional) ||
        !get_object(r, root, "stack", &stack) || !get_array(r, root, "sources", MAX_LIST, &sources))
        return false;
    size_t at_stack = enter(r, ".stack");
    json_object_foreach(stack, key, value) {
        if (!is_printable(key))
            return fault(r, "must have keys of 1 to 512 printable bytes");
        if (!get_text(r, stack, key, &text))
            return false;
    }
    leave(r, at_stack);
    for (size_t i = 0; i < json_array_size(sources); i++) {
        size_t before = enter(r, ".sources[%zu]", i);
        if (!is_text(json_array_get(sources, i)))
            return fault(r, "must be a string of 1 to 512 printable bytes");
        leave(r, before);
    }
    return !json_object_get(root, "fit") || json_is_object(json_object_get(root, "fit")) ||
           fault_at(r, "fit", "must be an object");
}

gac_status gac_contract_read(gac_contract *contract, const char *source, gac_error *err)
{
    reader r = { .source = source, .err = err, .status = GAC_OK, .length = 1, .path = "$" };
    const json_t *root = contract->json;
    if (!read_description(&r, root, contract) || !read_dtypes(&r, root, contract) ||
        !read_stand_ins(&r, root, contract) || !read_points(&r, root, contract))
        return r.status;
    return GAC_OK;
}

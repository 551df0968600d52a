/* The parts of a contract file that say something of exact shapes and of the
 * runtime around them. */
#include "contract/contract_bulk.h"
#include "contract/contract_rules.h"

#include <stdlib.h>
#include <string.h>

typedef enum field_kind { FIELD_DTYPE, FIELD_SIZE, FIELD_BOOL, FIELD_TIME } field_kind;

/* A key that every point has, and where its value goes. */
typedef struct point_field {
    const char *key;
    field_kind kind;
    size_t offset;
} point_field;

/* How one kind of point is spelled and kept. */
typedef struct point_kind {
    const char *key; /* of the list */
    size_t point_bytes;
    int (*order)(const void *a, const void *b);
    const char *repeated; /* what is said of two points that are equal in order */
    size_t n_fields;
    point_field fields[10]; /* dtype first: the others are of a dtype that is known */
} point_kind;

static const point_kind gemm_points = {
    "points",
    sizeof(gac_gemm_point),
    gac_gemm_point_order,
    "must not have two entries of the same m, n, k, dtype",
    5,
    { { "dtype", FIELD_DTYPE, offsetof(gac_gemm_point, dtype) },
      { "m", FIELD_SIZE, offsetof(gac_gemm_point, m) },
      { "n", FIELD_SIZE, offsetof(gac_gemm_point, n) },
      { "k", FIELD_SIZE, offsetof(gac_gemm_point, k) },
      { "time_us", FIELD_TIME, offsetof(gac_gemm_point, time_us) } },
};

static const point_kind sdpa_points = {
    "sdpa_points",
    sizeof(gac_sdpa_point),
    gac_sdpa_point_order,
    "must not have two entries of the same shape",
    10,
    { { "dtype", FIELD_DTYPE, offsetof(gac_sdpa_point, dtype) },
      { "batch", FIELD_SIZE, offsetof(gac_sdpa_point, shape.batch) },
      { "n_q_heads", FIELD_SIZE, offsetof(gac_sdpa_point, shape.n_q_heads) },
      { "n_kv_heads", FIELD_SIZE, offsetof(gac_sdpa_point, shape.n_kv_heads) },
      { "n_q", FIELD_SIZE, offsetof(gac_sdpa_point, shape.n_q) },
      { "n_kv", FIELD_SIZE, offsetof(gac_sdpa_point, shape.n_kv) },
      { "qk_head", FIELD_SIZE, offsetof(gac_sdpa_point, shape.qk_head) },
      { "v_head", FIELD_SIZE, offsetof(gac_sdpa_point, shape.v_head) },
      { "causal", FIELD_BOOL, offsetof(gac_sdpa_point, shape.causal) },
      { "time_us", FIELD_TIME, offsetof(gac_sdpa_point, time_us) } },
};

static bool is_known(const gac_contract *contract, const char *name, gac_dtype *out)
{
    return gac_dtype_parse(name, out) && contract->rules[*out];
}

static bool read_field(gac_reader *r, const json_t *value, const gac_contract *contract,
                       const point_field *field, char *point)
{
    void *to = point + field->offset;
    switch (field->kind) {
    case FIELD_DTYPE:
        value = json_object_get(value, field->key);
        return (json_is_string(value) && is_known(contract, json_string_value(value), to)) ||
               gac_reader_fault_at(r, field->key, "must be one of dtypes");
    case FIELD_SIZE:
        return gac_reader_size(r, value, field->key, GAC_CONTRACT_MAX_SIZE, to);
    case FIELD_BOOL:
        return gac_reader_bool(r, value, field->key, to);
    case FIELD_TIME:
        break;
    }
    return gac_reader_number(r, value, field->key, GAC_CONTRACT_MIN_TIME_US,
                             GAC_CONTRACT_MAX_TIME_US, to);
}

static bool read_point(gac_reader *r, const json_t *value, const gac_contract *contract,
                       const point_kind *kind, char *point)
{
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    for (size_t i = 0; i < kind->n_fields; i++)
        if (!read_field(r, value, contract, &kind->fields[i], point))
            return false;
    return true;
}

static bool take_points(gac_reader *r, const json_t *list, const gac_contract *contract,
                        const point_kind *kind, char **out, size_t *n_out)
{
    size_t n = json_array_size(list);
    char *points = calloc(n + 1, kind->point_bytes);
    *out = points;
    if (!points)
        return gac_reader_no_memory(r);
    for (size_t i = 0; i < n; i++) {
        size_t before = gac_reader_enter(r, ".%s[%zu]", kind->key, i);
        if (!read_point(r, json_array_get(list, i), contract, kind, points + i * kind->point_bytes))
            return false;
        gac_reader_leave(r, before);
    }
    *n_out = n;
    return true;
}

static bool scan_field(gac_scan *scan, const gac_contract *contract, const point_field *field,
                       char *point)
{
    char name[16];
    void *to = point + field->offset;
    int64_t *size = to;
    double *time_us = to;
    bool *flag = to;
    switch (field->kind) {
    case FIELD_DTYPE:
        return gac_scan_string(scan, name, sizeof name) && is_known(contract, name, to);
    case FIELD_SIZE:
        return gac_scan_integer(scan, size) && *size >= 1 && *size <= GAC_CONTRACT_MAX_SIZE;
    case FIELD_BOOL:
        *flag = gac_scan_word(scan, "true");
        return *flag || gac_scan_word(scan, "false");
    case FIELD_TIME:
        break;
    }
    return gac_scan_number(scan, time_us) && *time_us >= GAC_CONTRACT_MIN_TIME_US &&
           *time_us <= GAC_CONTRACT_MAX_TIME_US;
}

/* A point has every field once and nothing else. */
static bool scan_point(gac_scan *scan, const gac_contract *contract, const point_kind *kind,
                       char *point)
{
    unsigned seen = 0;
    if (!gac_scan_byte(scan, '{'))
        return false;
    for (size_t n = 0; n < kind->n_fields; n++) {
        char key[16];
        size_t i = 0;
        if ((n > 0 && !gac_scan_byte(scan, ',')) || !gac_scan_string(scan, key, sizeof key) ||
            !gac_scan_byte(scan, ':'))
            return false;
        while (i < kind->n_fields && strcmp(kind->fields[i].key, key) != 0)
            i++;
        if (i == kind->n_fields || seen >> i & 1 ||
            !scan_field(scan, contract, &kind->fields[i], point))
            return false;
        seen |= 1u << i;
    }
    return gac_scan_byte(scan, '}');
}

static bool scan_points(gac_scan scan, const gac_contract *contract, const point_kind *kind,
                        char **out, size_t *n_out)
{
    size_t n = 0, room = 0;
    while (!gac_scan_end(&scan)) {
        if (n == room) {
            room = room * 2 + 256;
            char *bigger = realloc(*out, room * kind->point_bytes);
            if (!bigger)
                return false;
            *out = bigger;
        }
        char *point = *out + n * kind->point_bytes;
        memset(point, 0, kind->point_bytes);
        if ((n > 0 && !gac_scan_byte(&scan, ',')) || !scan_point(&scan, contract, kind, point) ||
            ++n > GAC_MAX_CONTRACT_POINTS)
            return false;
    }
    *n_out = n;
    return true;
}

/* What was allocated is in *out also after a fault. */
static bool read_points(gac_reader *r, const json_t *root, const gac_contract *contract,
                        const point_kind *kind, void **out, size_t *n_out)
{
    json_t *list;
    gac_scan scan;
    char *points = NULL;
    if (!gac_reader_array(r, root, kind->key, GAC_MAX_CONTRACT_POINTS, &list))
        return false;
    bool ok = r->beside ? (gac_bulk_use(r->beside, list, &scan) &&
                           scan_points(scan, contract, kind, &points, n_out)) ||
                              gac_reader_fault_at(r, kind->key, "must be read from a tree")
                        : take_points(r, list, contract, kind, &points, n_out);
    *out = points;
    if (!ok || *n_out == 0)
        return ok;
    qsort(points, *n_out, kind->point_bytes, kind->order);
    for (size_t i = 1; i < *n_out; i++)
        if (kind->order(points + (i - 1) * kind->point_bytes, points + i * kind->point_bytes) == 0)
            return gac_reader_fault_at(r, kind->key, kind->repeated);
    return true;
}

bool gac_contract_read_points(gac_reader *r, const json_t *root, gac_contract *out)
{
    void *points = NULL;
    bool ok = read_points(r, root, out, &gemm_points, &points, &out->n_points);
    out->points = points;
    return ok;
}

bool gac_contract_read_sdpa_points(gac_reader *r, const json_t *root, gac_contract *out)
{
    void *points = NULL;
    if (!json_object_get(root, sdpa_points.key))
        return true;
    bool ok = read_points(r, root, out, &sdpa_points, &points, &out->n_sdpa_points);
    out->sdpa_points = points;
    return ok;
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

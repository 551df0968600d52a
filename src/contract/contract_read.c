/* Reads an untrusted contract file. contract_schema.c describes every field,
 * and contract_check.c checks fields against each other. Errors name the JSON
 * path of the value. */
#include "base/arena.h"
#include "base/arguments.h"
#include "contract/contract_internal.h"
#include "contract/contract_schema.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A reader and the memory for what it reads. */
typedef struct filler {
    gac_reader *r;
    gac_arena arena;
} filler;

static bool read_struct(filler *f, const json_t *value, const gac_struct *s, void *out);

static void *take(filler *f, size_t n, size_t n_bytes)
{
    void *memory = gac_arena_alloc(&f->arena, n * n_bytes + 1);
    if (!memory)
        gac_reader_no_memory(f->r);
    return memory;
}

static bool read_text(filler *f, const json_t *value, const char **out)
{
    if (!gac_reader_is_text(value))
        return gac_reader_fault(f->r, "must be a string of 1 to 512 printable bytes");
    *out = gac_arena_strdup(&f->arena, json_string_value(value));
    return *out || gac_reader_no_memory(f->r);
}

static bool read_basis(filler *f, const json_t *value, const char **out)
{
    static const char *const known[] = { "measured", "published", "assumed" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_is_string(value) && strcmp(json_string_value(value), known[i]) == 0) {
            *out = known[i];
            return true;
        }
    return gac_reader_fault(f->r, "must be measured, published or assumed");
}

static bool read_dtype(filler *f, const json_t *value, gac_dtype *out)
{
    return (json_is_string(value) && gac_dtype_parse(json_string_value(value), out)) ||
           gac_reader_fault(f->r, "must be a dtype");
}

static bool read_integer(filler *f, const gac_field *field, const json_t *value, int64_t *out)
{
    char rule[96];
    int64_t min = (int64_t)field->min, max = (int64_t)field->max;
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= min && *out <= max)
        return true;
    snprintf(rule, sizeof rule, "must be an integer from %lld to %lld", (long long)min,
             (long long)max);
    return gac_reader_fault(f->r, rule);
}

/* Reads a list of rising sizes. It builds the JSON path only for errors. */
static bool read_sizes(filler *f, const json_t *list, int64_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        out[i] = json_integer_value(entry);
        if (out[i] >= 1 && out[i] <= GAC_CONTRACT_MAX_SIZE && (i == 0 || out[i] > out[i - 1]))
            continue;
        gac_reader_enter(f->r, "[%zu]", i);
        return gac_reader_to_size(f->r, entry, GAC_CONTRACT_MAX_SIZE, &out[i]) &&
               gac_reader_fault(f->r, "must be larger than the entry before");
    }
    return json_array_size(list) > 0 || gac_reader_fault(f->r, "must have an entry");
}

static bool read_times(filler *f, const json_t *list, double *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        out[i] = json_is_null(entry) ? NAN : json_number_value(entry);
        if (isnan(out[i]) ||
            (out[i] >= GAC_CONTRACT_MIN_TIME_US && out[i] <= GAC_CONTRACT_MAX_TIME_US))
            continue;
        gac_reader_enter(f->r, "[%zu]", i);
        return gac_reader_to_number(f->r, entry, GAC_CONTRACT_MIN_TIME_US, GAC_CONTRACT_MAX_TIME_US,
                                    &out[i]);
    }
    return true;
}

static size_t entry_bytes(const gac_field *field)
{
    switch (field->kind) {
    case GAC_FIELD_LIST:
        return field->of->n_bytes;
    case GAC_FIELD_MAP:
        return sizeof(gac_contract_text);
    case GAC_FIELD_DTYPES:
        return sizeof(gac_dtype);
    default:
        return sizeof(int64_t); /* the other kinds are as large: pointers and doubles */
    }
}

static bool read_entry(filler *f, const gac_field *field, const json_t *entry, void *out)
{
    if (field->kind == GAC_FIELD_LIST)
        return read_struct(f, entry, field->of, out);
    return field->kind == GAC_FIELD_TEXTS ? read_text(f, entry, out) : read_dtype(f, entry, out);
}

static bool read_map(filler *f, json_t *value, gac_contract_text *out)
{
    const char *key;
    json_t *entry;
    json_object_foreach(value, key, entry) {
        if (!gac_reader_is_printable(key))
            return gac_reader_fault(f->r, "must have keys of 1 to 512 printable bytes");
        size_t before = gac_reader_enter(f->r, ".%s", key);
        out->key = gac_arena_strdup(&f->arena, key);
        if (!out->key)
            return gac_reader_no_memory(f->r);
        if (!read_text(f, entry, &out++->value))
            return false;
        gac_reader_leave(f->r, before);
    }
    return true;
}

static bool read_list(filler *f, const gac_field *field, json_t *value, void *out)
{
    char rule[64];
    bool is_map = field->kind == GAC_FIELD_MAP;
    if (is_map ? !json_is_object(value) : !json_is_array(value))
        return gac_reader_fault(f->r, is_map ? "must be an object" : "must be an array");
    size_t n = is_map ? json_object_size(value) : json_array_size(value);
    size_t each = entry_bytes(field);
    snprintf(rule, sizeof rule, "must have at most %.0f entries", field->max);
    if ((double)n > field->max)
        return gac_reader_fault(f->r, rule);
    char *list = take(f, n, each);
    if (!list)
        return false;
    *(void **)gac_field_at(field, out) = list;
    *(size_t *)(void *)((char *)out + field->n_offset) = n;
    if (is_map)
        return read_map(f, value, (gac_contract_text *)(void *)list);
    if (field->kind == GAC_FIELD_SIZES)
        return read_sizes(f, value, (int64_t *)(void *)list);
    if (field->kind == GAC_FIELD_TIMES)
        return read_times(f, value, (double *)(void *)list);
    for (size_t i = 0; i < n; i++) {
        size_t before = gac_reader_enter(f->r, "[%zu]", i);
        if (!read_entry(f, field, json_array_get(value, i), list + i * each))
            return false;
        gac_reader_leave(f->r, before);
    }
    return true;
}

static bool read_new(filler *f, const gac_struct *s, const json_t *value, void **out)
{
    *out = take(f, 1, s->n_bytes);
    return *out && read_struct(f, value, s, *out);
}

static bool read_by_dtype(filler *f, const gac_field *field, json_t *value, void **out)
{
    const char *key;
    json_t *entry;
    gac_dtype dtype;
    if (!json_is_object(value))
        return gac_reader_fault(f->r, "must be an object");
    json_object_foreach(value, key, entry) {
        size_t before = gac_reader_enter(f->r, ".%s", key);
        if (!gac_dtype_parse(key, &dtype))
            return gac_reader_fault(f->r, "must be named after a dtype");
        if (!read_new(f, field->of, entry, &out[dtype]))
            return false;
        gac_reader_leave(f->r, before);
    }
    return true;
}

static bool read_value(filler *f, const gac_field *field, json_t *value, void *out)
{
    void *at = gac_field_at(field, out);
    switch (field->kind) {
    case GAC_FIELD_TEXT:
        return read_text(f, value, at);
    case GAC_FIELD_BASIS:
        return read_basis(f, value, at);
    case GAC_FIELD_BOOL:
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value) || gac_reader_fault(f->r, "must be true or false");
    case GAC_FIELD_INTEGER:
        return read_integer(f, field, value, at);
    case GAC_FIELD_NUMBER:
        return gac_reader_to_number(f->r, value, field->min, field->max, at);
    case GAC_FIELD_DTYPE:
        return read_dtype(f, value, at);
    case GAC_FIELD_OBJECT:
        return read_new(f, field->of, value, at);
    case GAC_FIELD_BY_DTYPE:
        return read_by_dtype(f, field, value, at);
    default:
        return read_list(f, field, value, out);
    }
}

static void set_missing(const gac_field *field, void *out)
{
    void *at = gac_field_at(field, out);
    if (field->kind == GAC_FIELD_BOOL)
        *(bool *)at = field->min > 0;
    else if (field->kind == GAC_FIELD_NUMBER)
        *(double *)at = NAN;
    else if (field->kind == GAC_FIELD_DTYPE)
        *(gac_dtype *)at = GAC_DTYPE_COUNT;
}

static bool read_struct(filler *f, const json_t *value, const gac_struct *s, void *out)
{
    if (s->is_row ? !json_is_array(value) || (int)json_array_size(value) != s->n_fields
                  : !json_is_object(value))
        return gac_reader_fault(f->r, s->is_row ? "must be a pair of head size and time_us"
                                                : "must be an object");
    for (int i = 0; i < s->n_fields; i++) {
        const gac_field *field = &s->fields[i];
        json_t *member =
            s->is_row ? json_array_get(value, (size_t)i) : json_object_get(value, field->key);
        set_missing(field, out);
        if (!member && field->optional)
            continue;
        size_t before = s->is_row ? gac_reader_enter(f->r, "[%d]", i)
                                  : gac_reader_enter(f->r, ".%s", field->key);
        if (!read_value(f, field, member, out))
            return false;
        gac_reader_leave(f->r, before);
    }
    return true;
}

/* Sorts points. Two equal ones are an error. */
static bool sort_points(gac_reader *r, const void *points, size_t n, size_t n_bytes,
                        int (*order)(const void *, const void *), const char *key,
                        const char *repeated)
{
    char *list = (char *)(uintptr_t)points; /* const only for users; this file allocated it */
    if (n > 1)
        qsort(list, n, n_bytes, order);
    for (size_t i = 1; i < n; i++)
        if (order(list + (i - 1) * n_bytes, list + i * n_bytes) == 0)
            return gac_reader_fault_at(r, key, repeated);
    return true;
}

static bool read_root(filler *f, json_t *root, gac_contract **out)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    if (!json_is_object(root))
        return gac_reader_fault(f->r, "must be an object");
    if (schema && strcmp(schema, "gac.contract/1") == 0) {
        if (!gac_contract_upgrade(f->r, root))
            return false;
    } else if (!schema || strcmp(schema, GAC_CONTRACT_SCHEMA) != 0) {
        return gac_reader_fault_at(f->r, "schema", "must be " GAC_CONTRACT_SCHEMA);
    }
    gac_contract *c = take(f, 1, sizeof *c);
    *out = c;
    return c && read_struct(f, root, &gac_contract_struct, c) && gac_contract_check(f->r, c) &&
           sort_points(f->r, c->points, c->n_points, sizeof *c->points, gac_contract_point_order,
                       "points", "must not have two entries of the same m, n, k, dtype") &&
           sort_points(f->r, c->sdpa_points, c->n_sdpa_points, sizeof *c->sdpa_points,
                       gac_contract_sdpa_point_order, "sdpa_points",
                       "must not have two entries of the same shape");
}

gac_status gac_contract_parse(const char *text, size_t n_bytes, const char *source,
                              gac_contract **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, text, source, out);
    char quoted[256];
    json_t *root = NULL;
    gac_contract *contract = NULL;
    gac_reader r = GAC_READER_INIT(source, err);
    filler f = { .r = &r };
    if (n_bytes > GAC_MAX_CONTRACT_BYTES)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %zu bytes; a contract has at most %zu",
                             gac_quote(quoted, sizeof quoted, source), n_bytes,
                             GAC_MAX_CONTRACT_BYTES);
    gac_status status = gac_json_parse(text, n_bytes, source, &root, err);
    if (status == GAC_OK && !read_root(&f, root, &contract))
        status = r.status;
    json_decref(root);
    if (status != GAC_OK) {
        gac_arena_free(&f.arena);
        return status;
    }
    contract->memory = f.arena.last;
    *out = contract;
    return GAC_OK;
}

/* What gac_contract_load_runtime gives, and the memory that it is in. */
typedef struct loaded_runtime {
    gac_runtime runtime;
    struct gac_arena_block *memory;
} loaded_runtime;

gac_status gac_contract_load_runtime(const char *path, gac_runtime **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    gac_file *file = NULL;
    json_t *root = NULL;
    gac_reader r = GAC_READER_INIT(path, err);
    filler f = { .r = &r };
    loaded_runtime *loaded = NULL;
    gac_status status = gac_file_open(path, &file, err);
    if (status == GAC_OK)
        status = gac_json_load(file, GAC_MAX_CONTRACT_BYTES, &root, err);
    if (status == GAC_OK) {
        loaded = take(&f, 1, sizeof *loaded);
        if (!loaded || !read_struct(&f, root, &gac_runtime_struct, &loaded->runtime))
            status = r.status;
    }
    json_decref(root);
    gac_file_close(file);
    if (status != GAC_OK) {
        gac_arena_free(&f.arena);
        return status;
    }
    loaded->memory = f.arena.last;
    *out = &loaded->runtime;
    return GAC_OK;
}

void gac_contract_free_runtime(gac_runtime *runtime)
{
    if (!runtime)
        return;
    gac_arena arena = { .last = ((loaded_runtime *)(void *)runtime)->memory };
    gac_arena_free(&arena);
}

void gac_contract_free(gac_contract *contract)
{
    if (!contract || !contract->memory)
        return; /* compiled in */
    gac_arena arena = { .last = contract->memory };
    gac_arena_free(&arena);
}

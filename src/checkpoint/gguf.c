/* Reads the header of a GGUF file: metadata and the list of tensors. No size
 * that a file states is trusted before its bytes were found. The header is
 * loaded only as far as it was read. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/gguf_internal.h"

enum {
    FIRST_LOAD_BYTES = 64 << 10,
    MIN_TENSOR_BYTES = 24, /* empty name, no axes, type, offset */
    MIN_KEY_BYTES = 13,    /* empty key, type, one byte */
    DEFAULT_ALIGNMENT = 32
};

typedef struct cursor {
    gac_gguf *gguf;
    size_t position;
    gac_error *err;
} cursor;

/* Sets the error "FILE: offset N: what is wrong". */
static gac_status bad(const cursor *c, const char *format, ...) GAC_PRINTF(2, 3);

static gac_status bad(const cursor *c, const char *format, ...)
{
    char q[256], what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(c->err, GAC_BAD_INPUT, "%s: offset %zu: %s",
                         gac_quote(q, sizeof q, gac_gguf_path(c->gguf)), c->position, what);
}

static uint64_t bytes_left(const cursor *c)
{
    return gac_file_size(c->gguf->file) - c->position;
}

/* Loads the next n_bytes of the file. */
static gac_status need(cursor *c, uint64_t n_bytes, const char *what)
{
    gac_gguf *g = c->gguf;
    uint64_t size = gac_file_size(g->file);
    if (n_bytes > bytes_left(c))
        return bad(c, "%s: %llu bytes where the file has %llu left", what,
                   (unsigned long long)n_bytes, (unsigned long long)bytes_left(c));
    if (n_bytes > GAC_MAX_GGUF_HEADER_BYTES - c->position)
        return bad(c, "%s: the header is longer than %d bytes", what, GAC_MAX_GGUF_HEADER_BYTES);
    size_t end = c->position + (size_t)n_bytes;
    if (end <= g->n_header)
        return GAC_OK;
    size_t wanted = g->n_header ? 2 * g->n_header : FIRST_LOAD_BYTES;
    if (wanted < end)
        wanted = end;
    if (wanted > size)
        wanted = (size_t)size;
    uint8_t *bigger = realloc(g->header, wanted);
    if (!bigger)
        return gac_error_no_memory(c->err);
    g->header = bigger;
    gac_status status =
        gac_file_read(g->file, g->n_header, g->header + g->n_header, wanted - g->n_header, c->err);
    if (status == GAC_OK)
        g->n_header = wanted;
    return status;
}

static gac_status take(cursor *c, size_t n_bytes, const char *what, uint64_t *out)
{
    gac_status status = need(c, n_bytes, what);
    if (status != GAC_OK)
        return status;
    *out = gguf_little(c->gguf->header + c->position, n_bytes);
    c->position += n_bytes;
    return GAC_OK;
}

/* Moves behind a string. *start is the offset of its bytes. */
static gac_status take_string(cursor *c, const char *what, uint64_t max_bytes, uint32_t *start,
                              uint64_t *n_bytes)
{
    gac_status status = take(c, 8, what, n_bytes);
    if (status != GAC_OK)
        return status;
    if (*n_bytes > max_bytes) {
        c->position -= 8;
        return bad(c, "%s of %llu bytes, more than %llu", what, (unsigned long long)*n_bytes,
                   (unsigned long long)max_bytes);
    }
    status = need(c, *n_bytes, what);
    *start = (uint32_t)c->position;
    if (status == GAC_OK)
        c->position += (size_t)*n_bytes;
    return status;
}

/* Reads a name: short, UTF-8, without NUL, not empty. *out is a copy in the
 * arena. */
static gac_status take_name(cursor *c, const char *what, const char **out)
{
    uint32_t start;
    uint64_t n_bytes;
    size_t before = c->position;
    gac_status status = take_string(c, what, GAC_MAX_NAME_BYTES, &start, &n_bytes);
    if (status != GAC_OK)
        return status;
    const char *text = (const char *)c->gguf->header + start;
    if (n_bytes == 0 || !gac_is_utf8(text, (size_t)n_bytes)) {
        c->position = before;
        return bad(c, "%s is empty, or not UTF-8 without NUL", what);
    }
    char *copy = gac_arena_alloc(&c->gguf->arena, (size_t)n_bytes + 1);
    if (!copy)
        return gac_error_no_memory(c->err);
    memcpy(copy, text, (size_t)n_bytes);
    *out = copy;
    return GAC_OK;
}

static gac_status take_kind(cursor *c, gac_gguf_kind *out)
{
    uint64_t number;
    gac_status status = take(c, 4, "type of a value", &number);
    if (status != GAC_OK)
        return status;
    if (number >= GAC_GGUF_KIND_COUNT) {
        c->position -= 4;
        return bad(c, "no metadata type has the number %llu", (unsigned long long)number);
    }
    *out = (gac_gguf_kind)number;
    return GAC_OK;
}

static gac_status check_bools(cursor *c, size_t start, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (c->gguf->header[start + i] > 1) {
            c->position = start + (size_t)i;
            return bad(c, "%d is no bool", c->gguf->header[start + i]);
        }
    return GAC_OK;
}

/* Moves behind the strings of an array and notes their offsets. */
static gac_status take_strings(cursor *c, gguf_value *value, uint64_t n)
{
    if (value) {
        value->strings = gac_arena_alloc(&c->gguf->arena, (size_t)n * sizeof *value->strings + 1);
        if (!value->strings)
            return gac_error_no_memory(c->err);
    }
    gac_status status = GAC_OK;
    for (uint64_t i = 0; i < n && status == GAC_OK; i++) {
        uint32_t start;
        uint64_t n_bytes;
        if (value)
            value->strings[i] = (uint32_t)c->position;
        status = take_string(c, "string", UINT64_MAX, &start, &n_bytes);
    }
    return status;
}

/* Moves behind an array and describes it in value. value is NULL for an array
 * inside another one. */
static gac_status take_array(cursor *c, gguf_value *value, int depth)
{
    gac_gguf_kind kind = GAC_GGUF_U8;
    uint64_t n = 0;
    if (depth > GAC_MAX_GGUF_NESTING)
        return bad(c, "arrays nested deeper than %d", GAC_MAX_GGUF_NESTING);
    gac_status status = take_kind(c, &kind);
    if (status == GAC_OK)
        status = take(c, 8, "length of an array", &n);
    if (status != GAC_OK)
        return status;
    /* Least bytes of an element. A string starts with 8 bytes, an array with
     * 12. */
    size_t least = kind == GAC_GGUF_STRING  ? 8
                   : kind == GAC_GGUF_ARRAY ? 12
                                            : gac_gguf_kind_bytes(kind);
    if (n > bytes_left(c) / least)
        return bad(c, "array of %llu elements where the file has %llu bytes left",
                   (unsigned long long)n, (unsigned long long)bytes_left(c));
    /* Check this first, so that a small file cannot cause a large allocation. */
    if ((status = need(c, n * least, "array")) != GAC_OK)
        return status;
    if (value) {
        value->element_kind = kind;
        value->n = (int64_t)n;
        value->start = (uint32_t)c->position;
    }
    if (kind == GAC_GGUF_STRING)
        return take_strings(c, value, n);
    if (kind == GAC_GGUF_ARRAY) {
        for (uint64_t i = 0; i < n && status == GAC_OK; i++)
            status = take_array(c, NULL, depth + 1);
        return status;
    }
    if (kind == GAC_GGUF_BOOL && (status = check_bools(c, c->position, n)) != GAC_OK)
        return status;
    c->position += (size_t)n * least;
    return GAC_OK;
}

static gac_status take_value(cursor *c, gguf_value *value)
{
    gac_status status = take_kind(c, &value->kind);
    if (status != GAC_OK)
        return status;
    if (value->kind == GAC_GGUF_ARRAY)
        return take_array(c, value, 1);
    if (value->kind == GAC_GGUF_STRING) {
        uint64_t n_bytes;
        status = take_string(c, "string", UINT64_MAX, &value->start, &n_bytes);
        value->n = (int64_t)n_bytes;
        return status;
    }
    size_t n_bytes = gac_gguf_kind_bytes(value->kind);
    if ((status = need(c, n_bytes, "value")) != GAC_OK)
        return status;
    if (value->kind == GAC_GGUF_BOOL && (status = check_bools(c, c->position, 1)) != GAC_OK)
        return status;
    value->start = (uint32_t)c->position;
    c->position += n_bytes;
    return GAC_OK;
}

static gac_status take_pair(cursor *c)
{
    gac_gguf *g = c->gguf;
    char q[160];
    int32_t existing;
    gguf_value value = { 0 };
    size_t before = c->position;
    gac_status status = take_name(c, "key", &value.key);
    if (status == GAC_OK)
        status = take_value(c, &value);
    if (status == GAC_OK)
        status = gac_namemap_add(&g->by_key, value.key, g->n_values, &existing, c->err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0) {
        c->position = before;
        return bad(c, "key \"%s\" appears twice", gac_quote(q, sizeof q, value.key));
    }
    if (!gac_grow((void **)&g->values, g->n_values, &g->value_capacity, sizeof *g->values))
        return gac_error_no_memory(c->err);
    g->values[g->n_values++] = value;
    return GAC_OK;
}

static gac_status bad_tensor(const cursor *c, const char *name, const char *format, ...)
    GAC_PRINTF(3, 4);

static gac_status bad_tensor(const cursor *c, const char *name, const char *format, ...)
{
    char q[160], what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bad(c, "tensor \"%s\": %s", gac_quote(q, sizeof q, name), what);
}

/* Reads a shape. ggml lists the fastest axis first. */
static gac_status take_shape(cursor *c, gac_gguf_tensor *t)
{
    uint64_t n_axes, size;
    gac_status status = take(c, 4, "number of axes", &n_axes);
    if (status != GAC_OK)
        return status;
    if (n_axes > GAC_MAX_GGUF_AXES)
        return bad_tensor(c, t->name, "%llu axes, more than %d", (unsigned long long)n_axes,
                          GAC_MAX_GGUF_AXES);
    int64_t *shape = gac_arena_alloc(&c->gguf->arena, (size_t)n_axes * sizeof *shape + 1);
    if (!shape)
        return gac_error_no_memory(c->err);
    t->n_axes = (int32_t)n_axes;
    t->n_elements = 1;
    for (int32_t axis = t->n_axes - 1; axis >= 0; axis--) {
        if ((status = take(c, 8, "axis", &size)) != GAC_OK)
            return status;
        if (size == 0 || size > INT64_MAX)
            return bad_tensor(c, t->name, "an axis of size %llu", (unsigned long long)size);
        shape[axis] = (int64_t)size;
        if (!gac_mul_i64(t->n_elements, shape[axis], &t->n_elements))
            return bad_tensor(c, t->name, "the number of its elements overflows");
    }
    t->shape = shape;
    return GAC_OK;
}

static gac_status take_type(cursor *c, gac_gguf_tensor *t)
{
    uint64_t number;
    gac_status status = take(c, 4, "type of a tensor", &number);
    if (status != GAC_OK)
        return status;
    if (!gac_ggml_type_known((uint32_t)number)) {
        const char *foreign = gac_ggml_foreign_name((uint32_t)number);
        return bad_tensor(c, t->name,
                          "%s%s%llu; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K are read",
                          foreign ? foreign : "unknown type", foreign ? " is type " : " ",
                          (unsigned long long)number);
    }
    t->type = (gac_ggml_type)number;
    int64_t row = t->n_axes ? t->shape[t->n_axes - 1] : 1;
    int64_t in_block = gac_ggml_block_elements(t->type);
    if (row % in_block != 0)
        return bad_tensor(c, t->name, "rows of %lld are not whole blocks of %s, which has %lld",
                          (long long)row, gac_ggml_type_name(t->type), (long long)in_block);
    if (!gac_mul_u64((uint64_t)(t->n_elements / in_block), gac_ggml_block_bytes(t->type),
                     &t->size_bytes))
        return bad_tensor(c, t->name, "its size overflows");
    return GAC_OK;
}

static gac_status take_tensor(cursor *c)
{
    gac_gguf *g = c->gguf;
    int32_t existing;
    gac_gguf_tensor t = { 0 };
    gac_status status = take_name(c, "name of a tensor", &t.name);
    if (status == GAC_OK)
        status = take_shape(c, &t);
    if (status == GAC_OK)
        status = take_type(c, &t);
    if (status == GAC_OK)
        status = take(c, 8, "offset of a tensor", &t.offset);
    if (status != GAC_OK)
        return status;
    if (t.offset % g->alignment != 0)
        return bad_tensor(c, t.name, "data at %llu, not a multiple of the alignment %llu",
                          (unsigned long long)t.offset, (unsigned long long)g->alignment);
    status = gac_namemap_add(&g->by_name, t.name, g->n_tensors, &existing, c->err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0)
        return bad_tensor(c, t.name, "appears twice");
    if (!gac_grow((void **)&g->tensors, g->n_tensors, &g->tensor_capacity, sizeof *g->tensors))
        return gac_error_no_memory(c->err);
    g->tensors[g->n_tensors++] = t;
    return GAC_OK;
}

static gac_status take_alignment(cursor *c)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    int32_t key = gac_gguf_find_key(c->gguf, "general.alignment");
    if (key >= 0 && (gac_gguf_value_kind(c->gguf, key) != GAC_GGUF_U32 ||
                     !gac_gguf_integer(c->gguf, key, &alignment)))
        return bad(c, "general.alignment is not of type U32");
    if (alignment < 1 || (alignment & (alignment - 1)) != 0)
        return bad(c, "general.alignment is %lld, not a power of two", (long long)alignment);
    c->gguf->alignment = (uint64_t)alignment;
    return GAC_OK;
}

static int by_offset(const void *a, const void *b)
{
    const gac_gguf_tensor *x = *(gac_gguf_tensor *const *)a, *y = *(gac_gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Makes offsets relative to the file. The data of the tensors must be in the
 * file and must not overlap. */
static gac_status check_data(cursor *c)
{
    gac_gguf *g = c->gguf;
    uint64_t start, size = gac_file_size(g->file), covered = 0, end;
    if (!gac_round_up_u64(c->position, g->alignment, &start) || (g->n_tensors && start > size))
        return bad(c, "the data would start beyond the end of the file");
    gac_gguf_tensor **order = calloc((size_t)g->n_tensors + 1, sizeof *order);
    if (!order)
        return gac_error_no_memory(c->err);
    for (int32_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, (size_t)g->n_tensors, sizeof *order, by_offset);
    char q[80];
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < g->n_tensors && status == GAC_OK; i++) {
        gac_gguf_tensor *t = order[i];
        if (!gac_add_u64(t->offset, start, &t->offset) ||
            !gac_add_u64(t->offset, t->size_bytes, &end) || end > size)
            status = bad_tensor(c, t->name, "%llu bytes of data are not in the file of %llu",
                                (unsigned long long)t->size_bytes, (unsigned long long)size);
        else if (t->offset < covered)
            status = bad_tensor(c, t->name, "data at %llu overlaps tensor \"%s\"",
                                (unsigned long long)t->offset,
                                gac_quote(q, sizeof q, order[i - 1]->name));
        else
            covered = end;
    }
    free(order);
    return status;
}

static gac_status take_counts(cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    uint64_t version;
    if (gac_file_size(c->gguf->file) < 4)
        return bad(c, "not a GGUF file");
    gac_status status = need(c, 4, "magic");
    if (status != GAC_OK)
        return status;
    if (memcmp(c->gguf->header, "GGUF", 4) != 0)
        return bad(c, "not a GGUF file");
    c->position = 4;
    if ((status = take(c, 4, "version", &version)) != GAC_OK)
        return status;
    if (version != 2 && version != 3) {
        c->position = 4;
        return bad(c, "version %llu%s; 2 and 3 are read", (unsigned long long)version,
                   version != 0 && (version & 0xFFFFFF) == 0 ? " (a big-endian file)" : "");
    }
    c->gguf->version = (int)version;
    status = take(c, 8, "number of tensors", n_tensors);
    if (status == GAC_OK)
        status = take(c, 8, "number of keys", n_keys);
    if (status != GAC_OK)
        return status;
    c->position = 8;
    if (*n_tensors > GAC_MAX_TENSORS ||
        *n_tensors > gac_file_size(c->gguf->file) / MIN_TENSOR_BYTES)
        return bad(c, "%llu tensors, more than the file can hold or than %d",
                   (unsigned long long)*n_tensors, GAC_MAX_TENSORS);
    c->position = 16;
    if (*n_keys > GAC_MAX_GGUF_KEYS || *n_keys > gac_file_size(c->gguf->file) / MIN_KEY_BYTES)
        return bad(c, "%llu keys, more than the file can hold or than %d",
                   (unsigned long long)*n_keys, GAC_MAX_GGUF_KEYS);
    c->position = 24;
    return GAC_OK;
}

static gac_status read_header(gac_gguf *g, gac_error *err)
{
    uint64_t n_tensors = 0, n_keys = 0;
    cursor c = { .gguf = g, .err = err };
    gac_status status = take_counts(&c, &n_tensors, &n_keys);
    for (uint64_t i = 0; i < n_keys && status == GAC_OK; i++)
        status = take_pair(&c);
    if (status == GAC_OK)
        status = take_alignment(&c);
    for (uint64_t i = 0; i < n_tensors && status == GAC_OK; i++)
        status = take_tensor(&c);
    if (status == GAC_OK)
        status = check_data(&c);
    return status;
}

gac_status gac_gguf_open(const char *path, gac_gguf **out, gac_error *err)
{
    gac_gguf *g = calloc(1, sizeof *g);
    if (!g)
        return gac_error_no_memory(err);
    gac_status status = gac_file_open(path, &g->file, err);
    if (status == GAC_OK)
        status = gac_namemap_init(&g->by_key, err);
    if (status == GAC_OK)
        status = gac_namemap_init(&g->by_name, err);
    if (status == GAC_OK && !(g->blocks = malloc(GGUF_CHUNK_BYTES)))
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = read_header(g, err);
    if (status != GAC_OK) {
        gac_gguf_close(g);
        return status;
    }
    *out = g;
    return GAC_OK;
}

void gac_gguf_close(gac_gguf *g)
{
    if (!g)
        return;
    gac_file_close(g->file);
    gac_namemap_dispose(&g->by_key);
    gac_namemap_dispose(&g->by_name);
    free(g->header);
    free(g->values);
    free(g->tensors);
    free(g->blocks);
    gac_arena_free(&g->arena);
    free(g);
}

/* Reads the header of one safetensors file: u64 length, JSON, data. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json_walk.h"
#include "checkpoint/checkpoint_internal.h"

/* Limit of one entry: a dtype, some sizes and two offsets. */
enum { MAX_ENTRY_BYTES = 16 << 10 };

typedef struct header {
    gac_checkpoint *checkpoint;
    const char *path;
    int32_t file; /* index of the file being read */
    uint64_t file_bytes;
    uint64_t data_start;
    gac_json_walk walk;
} header;

/* Sets the error "FILE: tensor "NAME": header offset N: what is wrong". */
static gac_status bad_tensor(const header *h, const char *name, gac_error *err, const char *format,
                             ...) GAC_PRINTF(4, 5);

static gac_status bad_tensor(const header *h, const char *name, gac_error *err, const char *format,
                             ...)
{
    char qp[256], qn[160], what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: tensor \"%s\": header offset %llu: %s",
                         gac_quote(qp, sizeof qp, h->path), gac_quote(qn, sizeof qn, name),
                         (unsigned long long)gac_json_walk_offset(&h->walk), what);
}

/* Returns a non-negative integer, or -1. */
static int64_t size_value(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value)
                                                                    : -1;
}

static gac_status take_shape(header *h, const json_t *shape, gac_tensor *tensor, gac_error *err)
{
    if (!json_is_array(shape))
        return bad_tensor(h, tensor->name, err, "no \"shape\", or not an array");
    size_t n_axes = json_array_size(shape);
    if (n_axes > GAC_MAX_AXES)
        return bad_tensor(h, tensor->name, err, "%zu axes, more than %d", n_axes, GAC_MAX_AXES);
    int64_t *sizes = gac_arena_alloc(&h->checkpoint->arena, n_axes * sizeof *sizes + 1);
    if (!sizes)
        return gac_error_no_memory(err);
    for (size_t i = 0; i < n_axes; i++) {
        sizes[i] = size_value(json_array_get(shape, i));
        if (sizes[i] < 0)
            return bad_tensor(h, tensor->name, err, "axis %zu of \"shape\" is not a size", i);
    }
    tensor->shape = sizes;
    tensor->n_axes = (int32_t)n_axes;
    return GAC_OK;
}

/* Checks data_offsets against the shape and the file. */
static gac_status take_offsets(header *h, const json_t *offsets, gac_tensor *tensor, gac_error *err)
{
    int64_t begin = size_value(json_array_get(offsets, 0));
    int64_t end = size_value(json_array_get(offsets, 1));
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || begin < 0 || end < 0)
        return bad_tensor(h, tensor->name, err, "\"data_offsets\" is not a pair of offsets");
    if (begin > end)
        return bad_tensor(h, tensor->name, err, "data begins at %lld, behind its end %lld",
                          (long long)begin, (long long)end);
    uint64_t data_bytes = h->file_bytes - h->data_start;
    if ((uint64_t)end > data_bytes)
        return bad_tensor(h, tensor->name, err, "data ends at %lld of %llu bytes there are",
                          (long long)end, (unsigned long long)data_bytes);
    if (!gac_tensor_bytes(tensor->dtype, tensor->n_axes, tensor->shape, &tensor->n_elements,
                          &tensor->size_bytes))
        return bad_tensor(
            h, tensor->name, err, "the size of its shape in %s %s", gac_dtype_name(tensor->dtype),
            gac_dtype_bits(tensor->dtype) < 8 ? "overflows or fills no whole bytes" : "overflows");
    if ((uint64_t)(end - begin) != tensor->size_bytes)
        return bad_tensor(h, tensor->name, err,
                          "shape and dtype need %llu bytes, offsets give %lld",
                          (unsigned long long)tensor->size_bytes, (long long)(end - begin));
    tensor->offset = h->data_start + (uint64_t)begin;
    return GAC_OK;
}

static gac_status take_entry(header *h, const char *key, const json_t *entry, gac_tensor *tensor,
                             gac_error *err)
{
    char q[80];
    if (strlen(key) > GAC_MAX_NAME_BYTES)
        return bad_tensor(h, key, err, "name of %zu bytes, more than %d", strlen(key),
                          GAC_MAX_NAME_BYTES);
    tensor->name = gac_arena_strdup(&h->checkpoint->arena, key);
    if (!tensor->name)
        return gac_error_no_memory(err);
    if (!json_is_object(entry))
        return bad_tensor(h, key, err, "its entry is not an object");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return bad_tensor(h, key, err, "no \"dtype\", or not a string");
    if (!gac_dtype_parse(dtype, &tensor->dtype))
        return bad_tensor(h, key, err, "unknown dtype \"%s\"", gac_quote(q, sizeof q, dtype));
    gac_status status = take_shape(h, json_object_get(entry, "shape"), tensor, err);
    if (status == GAC_OK)
        status = take_offsets(h, json_object_get(entry, "data_offsets"), tensor, err);
    if (status == GAC_OK && json_object_size(entry) != 3)
        return bad_tensor(h, key, err, "keys beside dtype, shape and data_offsets");
    return status;
}

static gac_status append_tensor(header *h, const gac_tensor *tensor, gac_error *err)
{
    char why[300];
    gac_status status = gac_checkpoint_add_tensor(h->checkpoint, tensor, why, err);
    return *why ? bad_tensor(h, tensor->name, err, "%s", why) : status;
}

static gac_status take_metadata(header *h, gac_error *err)
{
    char q[256];
    checkpoint_file *file = &h->checkpoint->files[h->file];
    if (file->metadata)
        return bad_tensor(h, "__metadata__", err, "appears twice");
    gac_status status = gac_json_walk_value(&h->walk, GAC_MAX_METADATA_BYTES, &file->metadata, err);
    if (status != GAC_OK)
        return status;
    const char *key;
    json_t *value;
    bool strings = json_is_object(file->metadata);
    json_object_foreach(file->metadata, key, value)
        strings = strings && json_is_string(value);
    if (!strings)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: __metadata__ must map strings to strings",
                             gac_quote(q, sizeof q, h->path));
    return GAC_OK;
}

static gac_status take_members(header *h, gac_error *err)
{
    gac_status status;
    for (;;) {
        const char *key;
        if ((status = gac_json_walk_next(&h->walk, &key, err)) != GAC_OK || !key)
            return status;
        if (strcmp(key, "__metadata__") == 0) {
            if ((status = take_metadata(h, err)) != GAC_OK)
                return status;
            continue;
        }
        json_t *entry;
        gac_tensor tensor = { .file = h->file };
        size_t start = h->walk.position;
        if ((status = gac_json_walk_value(&h->walk, MAX_ENTRY_BYTES, &entry, err)) != GAC_OK)
            return status;
        status = take_entry(h, key, entry, &tensor, err);
        json_decref(entry);
        /* jansson reads -0 as 0, but the format allows no signs. */
        if (status == GAC_OK && memchr(h->walk.text + start, '-', h->walk.position - start))
            status = bad_tensor(h, tensor.name, err, "a negative number");
        if (status == GAC_OK)
            status = append_tensor(h, &tensor, err);
        if (status != GAC_OK)
            return status;
    }
}

static int by_offset(const void *a, const void *b)
{
    const gac_tensor *x = *(gac_tensor *const *)a, *y = *(gac_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

/* Checks that the tensors, in order of their offsets, cover the data without
 * gaps or overlaps. An empty tensor may be at any boundary. */
static gac_status check_order(const header *h, gac_tensor **order, int32_t n, gac_error *err)
{
    char q[256];
    uint64_t covered = h->data_start;
    qsort(order, (size_t)n, sizeof *order, by_offset);
    for (int32_t i = 0; i < n; i++) {
        if (order[i]->offset != covered)
            return bad_tensor(h, order[i]->name, err, "data at file offset %llu %s %llu",
                              (unsigned long long)order[i]->offset,
                              order[i]->offset > covered ? "leaves a hole from"
                                                         : "overlaps the tensor that ends at",
                              (unsigned long long)covered);
        covered += order[i]->size_bytes;
    }
    if (covered != h->file_bytes)
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: offset %llu: %llu bytes behind the last tensor",
                             gac_quote(q, sizeof q, h->path), (unsigned long long)covered,
                             (unsigned long long)(h->file_bytes - covered));
    return GAC_OK;
}

static gac_status check_cover(const header *h, int32_t first, gac_error *err)
{
    int32_t n = h->checkpoint->n_tensors - first;
    gac_tensor **order = calloc((size_t)n + 1, sizeof *order);
    if (!order)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n; i++)
        order[i] = &h->checkpoint->tensors[first + i];
    gac_status status = check_order(h, order, n, err);
    free(order);
    return status;
}

static gac_status bad_length(const gac_file *file, uint64_t length, gac_error *err)
{
    char q[256];
    gac_quote(q, sizeof q, gac_file_path(file));
    if ((length & 0xffffffff) == 0x46554747) /* "GGUF" */
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: a GGUF file; gac convert makes a directory of it", q);
    if (length > GAC_MAX_HEADER_BYTES)
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: offset 0: header of %llu bytes, more than the %d allowed", q,
                             (unsigned long long)length, GAC_MAX_HEADER_BYTES);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: offset 0: header of %llu bytes in a file of %llu",
                         q, (unsigned long long)length, (unsigned long long)gac_file_size(file));
}

/* Loads the header's text, malloc'ed. The first read usually gets the whole
 * header, because a large model has hundreds of shards. */
static gac_status load_header(gac_file *file, char **text, size_t *n_bytes, gac_error *err)
{
    char q[256];
    unsigned char start[8 + (8 << 10)];
    uint64_t length = 0, size = gac_file_size(file);
    size_t n_start = size < sizeof start ? (size_t)size : sizeof start;
    if (size < 8)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %llu bytes are no safetensors file",
                             gac_quote(q, sizeof q, gac_file_path(file)), (unsigned long long)size);
    gac_status status = gac_file_read(file, 0, start, n_start, err);
    if (status != GAC_OK)
        return status;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | start[i];
    if (length > GAC_MAX_HEADER_BYTES || length > size - 8)
        return bad_length(file, length, err);
    *text = malloc((size_t)length + 1);
    if (!*text)
        return gac_error_no_memory(err);
    *n_bytes = (size_t)length;
    size_t n_have = n_start - 8 < length ? n_start - 8 : (size_t)length;
    memcpy(*text, start + 8, n_have);
    return gac_file_read(file, 8 + n_have, *text + n_have, (size_t)length - n_have, err);
}

gac_status gac_safetensors_read(gac_checkpoint *checkpoint, int32_t file, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    checkpoint_file *entry = &checkpoint->files[file];
    header h = { .checkpoint = checkpoint,
                 .path = gac_file_path(entry->file),
                 .file = file,
                 .file_bytes = gac_file_size(entry->file) };
    int32_t first = checkpoint->n_tensors;
    gac_status status = load_header(entry->file, &text, &n_bytes, err);
    if (status == GAC_OK) {
        h.data_start = entry->data_start = 8 + n_bytes;
        status = gac_json_walk_start(&h.walk, text, n_bytes, h.path, 8, err);
        if (status == GAC_OK)
            status = take_members(&h, err);
        if (status == GAC_OK)
            status = check_cover(&h, first, err);
        gac_json_walk_dispose(&h.walk);
    }
    free(text);
    return status;
}

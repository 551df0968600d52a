/* Queries on the metadata of an open GGUF file. */
#include <string.h>

#include "checkpoint/gguf_internal.h"

size_t gac_gguf_kind_bytes(gac_gguf_kind kind)
{
    static const uint8_t sizes[GAC_GGUF_KIND_COUNT] = {
        [GAC_GGUF_U8] = 1,  [GAC_GGUF_I8] = 1,  [GAC_GGUF_U16] = 2, [GAC_GGUF_I16] = 2,
        [GAC_GGUF_U32] = 4, [GAC_GGUF_I32] = 4, [GAC_GGUF_F32] = 4, [GAC_GGUF_BOOL] = 1,
        [GAC_GGUF_U64] = 8, [GAC_GGUF_I64] = 8, [GAC_GGUF_F64] = 8,
    };
    return sizes[kind];
}

const char *gac_gguf_path(const gac_gguf *g)
{
    return gac_file_path(g->file);
}

int gac_gguf_version(const gac_gguf *g)
{
    return g->version;
}

uint64_t gac_gguf_alignment(const gac_gguf *g)
{
    return g->alignment;
}

int32_t gac_gguf_n_tensors(const gac_gguf *g)
{
    return g->n_tensors;
}

const gac_gguf_tensor *gac_gguf_tensor_at(const gac_gguf *g, int32_t index)
{
    return &g->tensors[index];
}

int32_t gac_gguf_find_tensor(const gac_gguf *g, const char *name)
{
    return gac_namemap_find(&g->by_name, name);
}

int32_t gac_gguf_n_keys(const gac_gguf *g)
{
    return g->n_values;
}

const char *gac_gguf_key(const gac_gguf *g, int32_t index)
{
    return g->values[index].key;
}

int32_t gac_gguf_find_key(const gac_gguf *g, const char *key)
{
    return gac_namemap_find(&g->by_key, key);
}

gac_gguf_kind gac_gguf_value_kind(const gac_gguf *g, int32_t key)
{
    return g->values[key].kind;
}

static bool integer_at(const uint8_t *bytes, gac_gguf_kind kind, int64_t *out)
{
    uint64_t bits = gguf_little(bytes, gac_gguf_kind_bytes(kind));
    switch (kind) {
    case GAC_GGUF_U8:
    case GAC_GGUF_U16:
    case GAC_GGUF_U32:
        *out = (int64_t)bits;
        return true;
    case GAC_GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case GAC_GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case GAC_GGUF_I32:
        *out = (int32_t)bits;
        return true;
    case GAC_GGUF_U64:
        if (bits > INT64_MAX)
            return false;
        *out = (int64_t)bits;
        return true;
    case GAC_GGUF_I64:
        *out = (int64_t)bits;
        return true;
    default:
        return false;
    }
}

static bool number_at(const uint8_t *bytes, gac_gguf_kind kind, double *out)
{
    int64_t integer;
    uint64_t bits = gguf_little(bytes, gac_gguf_kind_bytes(kind));
    uint32_t word = (uint32_t)bits;
    float number;
    if (kind == GAC_GGUF_F32) {
        memcpy(&number, &word, sizeof number);
        *out = (double)number;
        return true;
    }
    if (kind == GAC_GGUF_F64) {
        memcpy(out, &bits, sizeof bits);
        return true;
    }
    if (!integer_at(bytes, kind, &integer))
        return false;
    *out = (double)integer;
    return true;
}

/* Returns the value of a key if it is a scalar, otherwise NULL. */
static const gguf_value *scalar(const gac_gguf *g, int32_t key)
{
    return key >= 0 && gac_gguf_kind_bytes(g->values[key].kind) > 0 ? &g->values[key] : NULL;
}

bool gac_gguf_integer(const gac_gguf *g, int32_t key, int64_t *out)
{
    const gguf_value *value = scalar(g, key);
    return value && integer_at(g->header + value->start, value->kind, out);
}

bool gac_gguf_number(const gac_gguf *g, int32_t key, double *out)
{
    const gguf_value *value = scalar(g, key);
    return value && number_at(g->header + value->start, value->kind, out);
}

bool gac_gguf_bool(const gac_gguf *g, int32_t key, bool *out)
{
    const gguf_value *value = scalar(g, key);
    if (!value || value->kind != GAC_GGUF_BOOL)
        return false;
    *out = g->header[value->start] != 0;
    return true;
}

bool gac_gguf_string(const gac_gguf *g, int32_t key, const char **text, size_t *n_bytes)
{
    if (key < 0 || g->values[key].kind != GAC_GGUF_STRING)
        return false;
    *text = (const char *)g->header + g->values[key].start;
    *n_bytes = (size_t)g->values[key].n;
    return true;
}

bool gac_gguf_array(const gac_gguf *g, int32_t key, gac_gguf_kind *kind, int64_t *n)
{
    if (key < 0 || g->values[key].kind != GAC_GGUF_ARRAY)
        return false;
    *kind = g->values[key].element_kind;
    *n = g->values[key].n;
    return true;
}

/* Returns element index of an array of scalars, or NULL. */
static const uint8_t *element(const gac_gguf *g, int32_t key, int64_t index)
{
    if (key < 0 || g->values[key].kind != GAC_GGUF_ARRAY)
        return NULL;
    const gguf_value *value = &g->values[key];
    size_t n_bytes = gac_gguf_kind_bytes(value->element_kind);
    if (n_bytes == 0 || index < 0 || index >= value->n)
        return NULL;
    return g->header + value->start + (size_t)index * n_bytes;
}

bool gac_gguf_array_integer(const gac_gguf *g, int32_t key, int64_t index, int64_t *out)
{
    const uint8_t *bytes = element(g, key, index);
    return bytes && integer_at(bytes, g->values[key].element_kind, out);
}

bool gac_gguf_array_number(const gac_gguf *g, int32_t key, int64_t index, double *out)
{
    const uint8_t *bytes = element(g, key, index);
    return bytes && number_at(bytes, g->values[key].element_kind, out);
}

bool gac_gguf_array_string(const gac_gguf *g, int32_t key, int64_t index, const char **text,
                           size_t *n_bytes)
{
    if (key < 0 || !g->values[key].strings || index < 0 || index >= g->values[key].n)
        return false;
    const uint8_t *start = g->header + g->values[key].strings[index];
    *n_bytes = (size_t)gguf_little(start, 8);
    *text = (const char *)start + 8;
    return true;
}

/* Storages of a torch file: the persistent values of its pickle. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/torch.h"

/* Members of the tuple ("storage", class, key, location, n_elements, view). The
 * view is only in legacy files. */
enum { AT_CLASS = 1, AT_KEY, AT_LOCATION, AT_COUNT, AT_VIEW };

bool gac_torch_dtype(const pickle_value *value, gac_dtype *out)
{
    static const struct {
        const char *name;
        gac_dtype dtype;
    } names[] = { { "DoubleStorage", GAC_DTYPE_F64 },
                  { "FloatStorage", GAC_DTYPE_F32 },
                  { "HalfStorage", GAC_DTYPE_F16 },
                  { "BFloat16Storage", GAC_DTYPE_BF16 },
                  { "LongStorage", GAC_DTYPE_I64 },
                  { "IntStorage", GAC_DTYPE_I32 },
                  { "ShortStorage", GAC_DTYPE_I16 },
                  { "CharStorage", GAC_DTYPE_I8 },
                  { "ByteStorage", GAC_DTYPE_U8 },
                  { "BoolStorage", GAC_DTYPE_BOOL },
                  { "ComplexFloatStorage", GAC_DTYPE_C64 },
                  { "float64", GAC_DTYPE_F64 },
                  { "float32", GAC_DTYPE_F32 },
                  { "float16", GAC_DTYPE_F16 },
                  { "bfloat16", GAC_DTYPE_BF16 },
                  { "int64", GAC_DTYPE_I64 },
                  { "int32", GAC_DTYPE_I32 },
                  { "int16", GAC_DTYPE_I16 },
                  { "int8", GAC_DTYPE_I8 },
                  { "uint8", GAC_DTYPE_U8 },
                  { "uint16", GAC_DTYPE_U16 },
                  { "uint32", GAC_DTYPE_U32 },
                  { "uint64", GAC_DTYPE_U64 },
                  { "bool", GAC_DTYPE_BOOL },
                  { "complex64", GAC_DTYPE_C64 },
                  { "float8_e4m3fn", GAC_DTYPE_F8_E4M3 },
                  { "float8_e5m2", GAC_DTYPE_F8_E5M2 },
                  { "float8_e4m3fnuz", GAC_DTYPE_F8_E4M3FNUZ },
                  { "float8_e5m2fnuz", GAC_DTYPE_F8_E5M2FNUZ },
                  { "float8_e8m0fnu", GAC_DTYPE_F8_E8M0 } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (gac_pickle_global_is(value, "torch", names[i].name)) {
            *out = names[i].dtype;
            return true;
        }
    return false;
}

static bool is_untyped(const pickle_value *type)
{
    return gac_pickle_global_is(type, "torch.storage", "UntypedStorage") ||
           gac_pickle_global_is(type, "torch", "UntypedStorage");
}

static int64_t integer_of(const pickle_value *value)
{
    return value->kind == PICKLE_INT ? value->integer : -1;
}

/* Adds a storage, or checks that it was added with the same type and size. */
static gac_status add_storage(torch_file *t, pickle_value *value, const torch_storage *s,
                              const pickle_value *key)
{
    char q[160];
    int32_t existing = gac_namemap_find_n(&t->by_key, key->text, key->n);
    if (existing < 0) {
        char *text = gac_arena_alloc(&t->memory.arena, key->n + (size_t)1);
        if (!text || !gac_grow((void **)&t->storages, t->n_storages, &t->storage_capacity,
                               sizeof *t->storages))
            return gac_error_no_memory(t->err);
        memcpy(text, key->text, key->n);
        t->storages[t->n_storages] = *s;
        t->storages[t->n_storages].key = text;
        value->integer = t->n_storages;
        return gac_namemap_add(&t->by_key, text, t->n_storages++, &existing, t->err);
    }
    const torch_storage *first = &t->storages[existing];
    value->integer = existing;
    if (first->dtype != s->dtype || first->untyped != s->untyped ||
        first->n_elements != s->n_elements)
        return gac_torch_bad(t, value, "storage \"%s\" has two types or sizes",
                             gac_quote(q, sizeof q, first->key));
    return GAC_OK;
}

static gac_status take_storage(torch_file *t, pickle_value *value)
{
    int64_t n_bytes;
    torch_storage s = { .dtype = GAC_DTYPE_U8 };
    const pickle_value *id = value->parts->args;
    value->integer = -1;
    /* Legacy files name a class of modules in this way, with its source. */
    if (id->kind == PICKLE_TUPLE && id->n >= 2 && gac_pickle_text_is(id->items[0], "module"))
        return GAC_OK;
    if (id->kind != PICKLE_TUPLE || id->n < 5 || id->n > 6 ||
        !gac_pickle_text_is(id->items[0], "storage"))
        return gac_torch_bad(t, value, "a reference to something that is no storage");
    const pickle_value *type = id->items[AT_CLASS], *key = id->items[AT_KEY];
    s.untyped = is_untyped(type);
    if (!s.untyped && !gac_torch_dtype(type, &s.dtype)) {
        char q[160] = "", name[160] = "something unknown";
        if (type->kind == PICKLE_GLOBAL)
            snprintf(name, sizeof name, "%.*s", (int)gac_min_i64(type->parts->args->n, 120),
                     type->parts->args->text);
        return gac_torch_bad(t, value, "a storage of type \"%s\", which safetensors cannot hold",
                             gac_quote(q, sizeof q, name));
    }
    if (key->kind != PICKLE_TEXT || key->n == 0 || key->n > GAC_MAX_NAME_BYTES ||
        !gac_is_utf8(key->text, key->n))
        return gac_torch_bad(t, value, "a storage without a proper key");
    s.n_elements = integer_of(id->items[AT_COUNT]);
    if (s.n_elements < 0 || !gac_mul_i64(s.n_elements, gac_dtype_bits(s.dtype) / 8, &n_bytes))
        return gac_torch_bad(t, value, "a storage whose size is negative or overflows");
    s.size_bytes = (uint64_t)n_bytes;
    return add_storage(t, value, &s, key);
}

gac_status gac_torch_list_storages(torch_file *t)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < t->pickle.n_persistent && status == GAC_OK; i++)
        status = take_storage(t, t->pickle.persistent[i]);
    return status;
}

gac_status gac_torch_view(const torch_file *t, const pickle_value *value, uint64_t *start,
                          uint64_t *n_bytes)
{
    const torch_storage *s = &t->storages[value->integer];
    const pickle_value *id = value->parts->args;
    const pickle_value *view = id->n > AT_VIEW ? id->items[AT_VIEW] : NULL;
    uint64_t element = (uint64_t)gac_dtype_bits(s->dtype) / 8;
    *start = 0;
    *n_bytes = s->size_bytes;
    if (!view || view->kind == PICKLE_NONE)
        return GAC_OK;
    int64_t from = view->kind == PICKLE_TUPLE && view->n == 3 ? integer_of(view->items[1]) : -1;
    int64_t n = from >= 0 ? integer_of(view->items[2]) : -1;
    if (n < 0 || from > s->n_elements || n > s->n_elements - from)
        return gac_torch_bad(t, value, "a view outside of its storage");
    *start = (uint64_t)from * element;
    *n_bytes = (uint64_t)n * element;
    return GAC_OK;
}

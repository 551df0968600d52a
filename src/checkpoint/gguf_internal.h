/* What the files that read GGUF share. */
#ifndef GAC_CHECKPOINT_GGUF_INTERNAL_H
#define GAC_CHECKPOINT_GGUF_INTERNAL_H

#include "base/arena.h"
#include "base/namemap.h"
#include "checkpoint/gguf.h"

/* One metadata value; places are offsets in the header. */
typedef struct gguf_value {
    const char *key;
    gac_gguf_kind kind;
    gac_gguf_kind element_kind; /* of an array */
    uint32_t start;             /* of the value, or of an array's first element */
    int64_t n;                  /* elements of an array, bytes of a string */
    uint32_t *strings;          /* where each string of an array starts, or NULL */
} gguf_value;

struct gac_gguf {
    gac_arena arena; /* names, shapes, places of strings */
    gac_file *file;
    int version;
    uint64_t alignment;
    uint8_t *header;
    size_t n_header; /* bytes loaded of it */
    size_t capacity;
    gguf_value *values;
    int32_t n_values, value_capacity;
    gac_namemap by_key;
    gac_gguf_tensor *tensors;
    int32_t n_tensors, tensor_capacity;
    gac_namemap by_name;
    uint8_t *blocks; /* room for GGUF_CHUNK_BYTES of a tensor */
};

/* As many whole blocks as fit are read at once. */
#define GGUF_CHUNK_BYTES (256u << 10)

/* Bytes of one element of a metadata array; 0 for strings and arrays. */
size_t gac_gguf_kind_bytes(gac_gguf_kind kind);

/* The type with the number of a file, if we read it; bytes per block. */
bool gac_ggml_type_known(uint32_t number);
uint64_t gac_ggml_block_bytes(gac_ggml_type type);
/* Name of any type ggml has had, also of those not read here; or NULL. */
const char *gac_ggml_foreign_name(uint32_t number);

/* (n_blocks) blocks to floats. */
void gac_ggml_decode(gac_ggml_type type, const uint8_t *blocks, int64_t n_blocks, float *out);

static inline uint64_t gguf_little(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = n; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

#endif

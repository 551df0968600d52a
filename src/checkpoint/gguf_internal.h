/* Shared by the files that read GGUF. */
#ifndef GAC_CHECKPOINT_GGUF_INTERNAL_H
#define GAC_CHECKPOINT_GGUF_INTERNAL_H

#include "base/arena.h"
#include "base/namemap.h"
#include "checkpoint/gguf.h"

/* One metadata value. Positions are offsets in the header. */
typedef struct gguf_value {
    const char *key;
    gac_gguf_kind kind;
    gac_gguf_kind element_kind; /* of an array */
    uint32_t start;             /* offset of the value, or of an array's first element */
    int64_t n;                  /* number of elements of an array, or of bytes of a string */
    uint32_t *strings;          /* offsets of an array's strings, or NULL */
} gguf_value;

struct gac_gguf {
    gac_arena arena; /* names, shapes, offsets of strings */
    gac_file *file;
    int version;
    uint64_t alignment;
    uint8_t *header;
    size_t n_header; /* bytes of the header loaded so far */
    size_t capacity;
    gguf_value *values;
    int32_t n_values, value_capacity;
    gac_namemap by_key;
    gac_gguf_tensor *tensors;
    int32_t n_tensors, tensor_capacity;
    gac_namemap by_name;
    uint8_t *blocks; /* room for GGUF_CHUNK_BYTES of a tensor */
};

/* Tensors are read in chunks of as many whole blocks as fit. */
#define GGUF_CHUNK_BYTES (256u << 10)

/* Returns the bytes of one element of a metadata array; 0 for strings and
 * arrays. */
size_t gac_gguf_kind_bytes(gac_gguf_kind kind);

/* Whether we read the type with this number; the bytes of its blocks. */
bool gac_ggml_type_known(uint32_t number);
uint64_t gac_ggml_block_bytes(gac_ggml_type type);
/* Returns the name of any type that ggml ever had, also of those we do not
 * read; or NULL. */
const char *gac_ggml_foreign_name(uint32_t number);

/* Decodes n_blocks blocks to floats. */
void gac_ggml_decode(gac_ggml_type type, const uint8_t *blocks, int64_t n_blocks, float *out);

static inline uint64_t gguf_little(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = n; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

#endif

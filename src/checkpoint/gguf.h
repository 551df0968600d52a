/* Reads GGUF files, for the converter. */
#ifndef GAC_CHECKPOINT_GGUF_H
#define GAC_CHECKPOINT_GGUF_H

#include <gac/base.h>

/* A GGUF file, version 2 or 3, little-endian. Opening validates it: afterwards
 * every string and array of the metadata exists, no key or tensor name occurs
 * twice, every tensor has a type that we read, and its blocks exist, are
 * aligned and do not overlap. Tensor data stays on disk until it is read. */
typedef struct gac_gguf gac_gguf;

/* Storage types of tensors. The values are those of the file. */
typedef enum gac_ggml_type {
    GAC_GGML_F32 = 0,
    GAC_GGML_F16 = 1,
    GAC_GGML_Q4_0 = 2,
    GAC_GGML_Q4_1 = 3,
    GAC_GGML_Q8_0 = 8,
    GAC_GGML_Q4_K = 12,
    GAC_GGML_Q6_K = 14,
    GAC_GGML_BF16 = 30
} gac_ggml_type;

const char *gac_ggml_type_name(gac_ggml_type type);
/* Returns the elements per block; 1 for plain floats. A row consists of whole
 * blocks. */
int64_t gac_ggml_block_elements(gac_ggml_type type);

/* Types of metadata values. The values are those of the file. */
typedef enum gac_gguf_kind {
    GAC_GGUF_U8,
    GAC_GGUF_I8,
    GAC_GGUF_U16,
    GAC_GGUF_I16,
    GAC_GGUF_U32,
    GAC_GGUF_I32,
    GAC_GGUF_F32,
    GAC_GGUF_BOOL,
    GAC_GGUF_STRING,
    GAC_GGUF_ARRAY,
    GAC_GGUF_U64,
    GAC_GGUF_I64,
    GAC_GGUF_F64,
    GAC_GGUF_KIND_COUNT
} gac_gguf_kind;

#define GAC_MAX_GGUF_HEADER_BYTES (64 << 20) /* metadata and tensor list together */
#define GAC_MAX_GGUF_KEYS 65536
#define GAC_MAX_GGUF_AXES 4
#define GAC_MAX_GGUF_NESTING 4 /* arrays in arrays */

typedef struct gac_gguf_tensor {
    const char *name;
    const int64_t *shape; /* (n_axes), rows last, as in safetensors */
    int32_t n_axes;
    gac_ggml_type type;
    int64_t n_elements;
    uint64_t size_bytes;
    uint64_t offset; /* position of its first byte in the file */
} gac_gguf_tensor;

/* Opens and validates a file. Errors: GAC_BAD_INPUT for anything wrong with it. */
gac_status gac_gguf_open(const char *path, gac_gguf **out, gac_error *err);
void gac_gguf_close(gac_gguf *gguf); /* NULL is fine */

/* Pointers that the functions below return belong to gguf and live as long as
 * it does. */
const char *gac_gguf_path(const gac_gguf *gguf);
int gac_gguf_version(const gac_gguf *gguf);
uint64_t gac_gguf_alignment(const gac_gguf *gguf);
int32_t gac_gguf_n_tensors(const gac_gguf *gguf);
const gac_gguf_tensor *gac_gguf_tensor_at(const gac_gguf *gguf, int32_t index);
/* Returns the index of the tensor with this name, or -1. */
int32_t gac_gguf_find_tensor(const gac_gguf *gguf, const char *name);

int32_t gac_gguf_n_keys(const gac_gguf *gguf);
const char *gac_gguf_key(const gac_gguf *gguf, int32_t index);
/* Returns the index of a key, or -1. All functions below return false for -1. */
int32_t gac_gguf_find_key(const gac_gguf *gguf, const char *key);
gac_gguf_kind gac_gguf_value_kind(const gac_gguf *gguf, int32_t key);
/* Read the value of a key if it has the right type: any integer that fits, any
 * integer or float, a bool, or a string. A string has no NUL at its end and may
 * hold any bytes. */
bool gac_gguf_integer(const gac_gguf *gguf, int32_t key, int64_t *out);
bool gac_gguf_number(const gac_gguf *gguf, int32_t key, double *out);
bool gac_gguf_bool(const gac_gguf *gguf, int32_t key, bool *out);
bool gac_gguf_string(const gac_gguf *gguf, int32_t key, const char **text, size_t *n_bytes);
/* Read the type and number of an array's elements, or one element, in the same
 * way. */
bool gac_gguf_array(const gac_gguf *gguf, int32_t key, gac_gguf_kind *kind, int64_t *n);
bool gac_gguf_array_integer(const gac_gguf *gguf, int32_t key, int64_t index, int64_t *out);
bool gac_gguf_array_number(const gac_gguf *gguf, int32_t key, int64_t index, double *out);
bool gac_gguf_array_string(const gac_gguf *gguf, int32_t key, int64_t index, const char **text,
                           size_t *n_bytes);

/* Reads n elements of a tensor, from element first on, as exactly the floats
 * that ggml defines. first must be a multiple of the elements per block, and so
 * must n unless it reaches the end of the tensor. */
gac_status gac_gguf_read(gac_gguf *gguf, int32_t tensor, int64_t first, int64_t n, float *out,
                         gac_error *err);

#endif

/* Shared by the files that read what torch.save writes. */
#ifndef GAC_CHECKPOINT_TORCH_H
#define GAC_CHECKPOINT_TORCH_H

#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/pickle.h"
#include "checkpoint/zip.h"

/* Limits beyond those of pickles and zip archives. */
enum {
    GAC_MAX_TORCH_NESTING = 64,     /* modules in modules, containers in containers */
    GAC_MAX_TORCH_STEPS = 20000000, /* values visited; one may be reached in many ways */
    GAC_MAX_TORCH_SHARING =
        64, /* bytes of tensors per byte of the file; a tensor counts as 64 or more */
    GAC_MAX_TORCH_NAMES = 100000000, /* bytes of names */
};

/* The bytes that tensors are views of. */
typedef struct torch_storage {
    const char *key;
    gac_dtype dtype;
    bool untyped; /* counted in bytes; dtype is U8 */
    int64_t n_elements;
    uint64_t size_bytes;
    uint64_t offset; /* in the file */
    bool placed;     /* offset is known */
} torch_storage;

typedef struct torch_file {
    gac_checkpoint *checkpoint;
    int32_t index; /* of the file in the checkpoint */
    gac_file *file;
    const char *path;
    uint64_t base; /* offset of the pickle */
    uint8_t *bytes;
    pickle_memory memory; /* values, strides, and the names of storages */
    pickle pickle;
    torch_storage *storages;
    int32_t n_storages, storage_capacity;
    gac_namemap by_key;
    gac_error *err;
} torch_file;

/* Sets the error "FILE: offset N: what is wrong", about the opcode that made a
 * value of the pickle. */
gac_status gac_torch_bad(const torch_file *t, const pickle_value *at, const char *format, ...)
    GAC_PRINTF(3, 4);

/* Fills t->storages from the persistent values of the pickle. The integer of
 * each becomes the index of its storage. */
gac_status gac_torch_list_storages(torch_file *t);
/* Finds the part of a storage that a persistent value means, in bytes of the
 * storage. */
gac_status gac_torch_view(const torch_file *t, const pickle_value *value, uint64_t *start,
                          uint64_t *n_bytes);

/* Adds the tensors that the pickle names to the checkpoint. */
gac_status gac_torch_add_tensors(torch_file *t);

/* Converts a dtype of torch, as "torch" NAME is. False if we have none. */
bool gac_torch_dtype(const pickle_value *value, gac_dtype *out);

#endif

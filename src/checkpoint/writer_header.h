/* A tensor that is being written, and the header of its file. */
#ifndef GAC_CHECKPOINT_WRITER_HEADER_H
#define GAC_CHECKPOINT_WRITER_HEADER_H

#include "checkpoint/checkpoint_internal.h"

typedef struct new_tensor {
    const char *name;
    const int64_t *shape;
    int32_t n_axes;
    gac_dtype dtype;
    uint64_t size_bytes;
    uint64_t n_written;
    uint64_t offset; /* position in its file, after the layout */
    int32_t shard;   /* -1 before the layout */
} new_tensor;

/* Makes the header as stored in the file: its length, its text, and spaces so
 * that the data starts at a multiple of alignment. It sets the offsets of the
 * tensors, whose data comes in their order. *header is malloc'ed. */
gac_status gac_header_make(const json_t *metadata, uint64_t alignment, new_tensor **tensors,
                           int32_t n, char **header, size_t *n_bytes, gac_error *err);

#endif

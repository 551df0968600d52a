/* What is known of a tensor that is being written, and the header that says it. */
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
    uint64_t offset; /* in its file, once laid out */
    int32_t shard;   /* -1 before it is known */
} new_tensor;

/* The header as it stands in the file: its length, its text, and spaces so that
 * the data behind it starts at a multiple of alignment. Data comes in the order
 * of tensors, whose offsets are set. *header is malloc'ed. */
gac_status gac_header_make(const json_t *metadata, uint64_t alignment, new_tensor **tensors,
                           int32_t n, char **header, size_t *n_bytes, gac_error *err);

#endif

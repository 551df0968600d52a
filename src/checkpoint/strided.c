/* Reads tensors whose elements do not lie in order, such as transposed ones. */
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

void gac_strided_read(const gac_tensor *t, const void *file, uint64_t offset, void *buffer,
                      size_t n_bytes)
{
    size_t element = (size_t)gac_dtype_bits(t->dtype) / 8, part = (size_t)(offset % element);
    int64_t index[GAC_MAX_AXES] = { 0 };
    int64_t rest = (int64_t)(offset / element), place = 0;
    char *to = buffer;
    for (int32_t axis = t->n_axes; axis-- > 0 && rest;) {
        index[axis] = rest % t->shape[axis];
        rest /= t->shape[axis];
        place += index[axis] * t->strides[axis];
    }
    while (n_bytes) {
        size_t n = element - part < n_bytes ? element - part : n_bytes;
        memcpy(to, (const char *)file + t->offset + (uint64_t)place * element + part, n);
        to += n;
        n_bytes -= n;
        part = 0;
        /* The next index: the last axis runs fastest. */
        int32_t axis = t->n_axes;
        while (axis-- > 0) {
            place += t->strides[axis];
            if (++index[axis] < t->shape[axis])
                break;
            place -= index[axis] * t->strides[axis];
            index[axis] = 0;
        }
    }
}

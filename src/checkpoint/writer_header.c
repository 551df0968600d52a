/* Makes the header of a safetensors file that is being written. */
#include "checkpoint/writer_header.h"

#include <stdlib.h>
#include <string.h>

/* Makes {"dtype":…,"shape":[…],"data_offsets":[begin,end]}. */
static json_t *entry_json(const new_tensor *t, uint64_t begin)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->n_axes; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", gac_dtype_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + t->size_bytes));
}

/* Makes the header's JSON, and sets the offsets of the tensors, relative to the
 * start of the data. */
static gac_status header_text(const json_t *metadata, new_tensor **tensors, int32_t n, char **text,
                              size_t *n_bytes, gac_error *err)
{
    uint64_t begin = 0;
    json_t *object = json_object();
    json_object_set(object, "__metadata__", (json_t *)(uintptr_t)metadata);
    for (int32_t i = 0; i < n; i++) {
        json_object_set_new(object, tensors[i]->name, entry_json(tensors[i], begin));
        tensors[i]->offset = begin;
        begin += tensors[i]->size_bytes;
    }
    gac_status status = gac_json_text(object, JSON_COMPACT, text, n_bytes, err);
    json_decref(object);
    return status;
}

gac_status gac_header_make(const json_t *metadata, uint64_t alignment, new_tensor **tensors,
                           int32_t n, char **header, size_t *n_bytes, gac_error *err)
{
    char *text = NULL;
    size_t length;
    uint64_t padded = 0;
    gac_status status = header_text(metadata, tensors, n, &text, &length, err);
    if (status != GAC_OK)
        return status;
    if (length > GAC_MAX_HEADER_BYTES ||
        !gac_round_up_u64(8 + (uint64_t)length, alignment, &padded) ||
        padded > 8 + GAC_MAX_HEADER_BYTES) {
        free(text);
        return gac_error_set(err, GAC_USAGE, "a header of %zu bytes is more than the format allows",
                             length);
    }
    *n_bytes = (size_t)padded;
    *header = malloc(*n_bytes);
    if (*header) {
        for (int i = 0; i < 8; i++)
            (*header)[i] = (char)((padded - 8) >> (8 * i) & 0xff);
        memcpy(*header + 8, text, length);
        memset(*header + 8 + length, ' ', *n_bytes - 8 - length);
    }
    for (int32_t i = 0; i < n; i++)
        tensors[i]->offset += padded;
    free(text);
    return *header ? GAC_OK : gac_error_no_memory(err);
}

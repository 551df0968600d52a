/* Adds files and their tensors to a checkpoint, whatever their format. */
#include <string.h>

#include "base/files.h"
#include "checkpoint/checkpoint_internal.h"

bool gac_tensor_bytes(gac_dtype dtype, int32_t n_axes, const int64_t *shape, int64_t *n_elements,
                      uint64_t *size_bytes)
{
    int64_t elements = 1, bits;
    for (int32_t i = 0; i < n_axes; i++)
        if (shape[i] < 0 || !gac_mul_i64(elements, shape[i], &elements))
            return false;
    if (!gac_mul_i64(elements, gac_dtype_bits(dtype), &bits) || bits % 8 != 0)
        return false;
    *n_elements = elements;
    *size_bytes = (uint64_t)bits / 8;
    return true;
}

gac_status gac_checkpoint_add_tensor(gac_checkpoint *c, const gac_tensor *tensor, char why[300],
                                     gac_error *err)
{
    char q[256];
    int32_t existing;
    enum { N = 300 };
    *why = 0;
    c->n_axes += tensor->n_axes;
    if (c->n_tensors == GAC_MAX_TENSORS)
        snprintf(why, N, "more than %d tensors", GAC_MAX_TENSORS);
    else if (c->n_axes > GAC_MAX_TOTAL_AXES)
        snprintf(why, N, "more than %d axes in all", GAC_MAX_TOTAL_AXES);
    else if (!gac_add_i64(c->n_params, tensor->n_elements, &c->n_params) ||
             !gac_add_u64(c->size_bytes, tensor->size_bytes, &c->size_bytes))
        snprintf(why, N, "the total size overflows");
    if (*why)
        return GAC_BAD_INPUT;
    gac_status status = gac_namemap_add(&c->by_name, tensor->name, c->n_tensors, &existing, err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0) {
        int32_t other = c->tensors[existing].file;
        if (other == tensor->file)
            snprintf(why, N, "appears twice");
        else
            snprintf(why, N, "is also in %s", gac_quote(q, sizeof q, c->files[other].name));
        return GAC_BAD_INPUT;
    }
    if (!gac_grow((void **)&c->tensors, c->n_tensors, &c->tensor_capacity, sizeof *c->tensors))
        return gac_error_no_memory(err);
    c->tensors[c->n_tensors++] = *tensor;
    return GAC_OK;
}

/* Finds whether a file starts as those of torch.save do: as a zip archive, whose
 * byte 8 is a method of packing and not the start of JSON; or as a pickle, which
 * would be too long as a safetensors header. */
static gac_status is_torch(gac_file *file, bool *out, gac_error *err)
{
    uint8_t start[9] = { 0 };
    uint64_t length = 0;
    size_t n = gac_file_size(file) < sizeof start ? 0 : sizeof start;
    gac_status status = gac_file_read(file, 0, start, n, err);
    for (size_t i = 8; i-- > 0;)
        length = length << 8 | start[i];
    bool is_zip = memcmp(start, "PK\3\4", 4) == 0 || memcmp(start, "PK\5\6", 4) == 0;
    bool is_pickle = start[0] == 0x80 && start[1] >= 2 && start[1] <= 5;
    *out = (is_zip && start[8] <= 8) || (is_pickle && length > GAC_MAX_HEADER_BYTES);
    return status;
}

gac_status gac_weights_read(gac_checkpoint *c, const char *name, gac_file *file, gac_error *err)
{
    char q[256];
    bool torch = false;
    if (!gac_grow((void **)&c->files, c->n_files, &c->file_capacity, sizeof *c->files)) {
        gac_file_close(file);
        return gac_error_no_memory(err);
    }
    int32_t index = c->n_files++;
    c->files[index] = (checkpoint_file){ .file = file };
    c->files[index].name = gac_arena_strdup(&c->arena, name);
    gac_status status =
        c->files[index].name ? is_torch(file, &torch, err) : gac_error_no_memory(err);
    if (status == GAC_OK && torch)
        status = gac_torch_read(c, index, err);
    else if (status == GAC_OK && gac_is_torch_weights(name))
        status =
            gac_error_set(err, GAC_BAD_INPUT,
                          "%s: offset 0: neither a zip archive nor a pickle, so torch.save did "
                          "not write it",
                          gac_quote(q, sizeof q, gac_file_path(file)));
    else if (status == GAC_OK)
        status = gac_safetensors_read(c, index, err);
    c->is_torch = c->is_torch || torch;
    c->is_adapter = c->is_adapter || strncmp(name, "adapter_model.", 14) == 0;
    gac_file_park(file);
    return status;
}

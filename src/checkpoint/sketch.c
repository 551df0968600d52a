/* Checkpoints of names, shapes and a config, without data. */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "checkpoint/checkpoint_internal.h"

static gac_status add_tensor(gac_checkpoint *c, const gac_tensor *like, const int64_t *shape,
                             gac_error *err)
{
    char q[160];
    int32_t existing;
    gac_tensor *t = &c->tensors[c->n_tensors];
    size_t n_bytes = (size_t)like->n_axes * sizeof *shape;
    int64_t *sizes = gac_arena_alloc(&c->arena, n_bytes + 1);
    if (!sizes)
        return gac_error_no_memory(err);
    if (n_bytes)
        memcpy(sizes, shape, n_bytes);
    *t = *like;
    t->shape = sizes;
    t->file = -1;
    t->strides = NULL;
    if (!gac_tensor_bytes(t->dtype, t->n_axes, sizes, &t->n_elements, &t->size_bytes) ||
        !gac_add_i64(c->n_params, t->n_elements, &c->n_params) ||
        !gac_add_u64(c->size_bytes, t->size_bytes, &c->size_bytes))
        return gac_error_set(err, GAC_BAD_INPUT, "tensor \"%s\": its size overflows",
                             gac_quote(q, sizeof q, t->name));
    return gac_namemap_add(&c->by_name, t->name, c->n_tensors++, &existing, err);
}

gac_status gac_checkpoint_sketch(const gac_checkpoint *like, const int64_t *const *shapes,
                                 const struct json_t *config, gac_checkpoint **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, like, shapes, out);
    gac_checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return gac_error_no_memory(err);
    c->reading = -1;
    pthread_mutex_init(&c->map_lock, NULL);
    c->is_directory = like->is_directory;
    c->is_adapter = like->is_adapter;
    c->path = like->path;
    c->config_exact = json_incref((json_t *)(uintptr_t)config);
    c->config = config ? gac_json_rounded(config) : NULL;
    c->tensors = calloc((size_t)like->n_tensors + 1, sizeof *c->tensors);
    bool ok = c->tensors && (c->config || !config);
    gac_status status = ok ? gac_namemap_init(&c->by_name, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < like->n_tensors && status == GAC_OK; i++)
        status = add_tensor(c, &like->tensors[i], shapes[i], err);
    if (status != GAC_OK) {
        gac_checkpoint_close(c);
        return status;
    }
    *out = c;
    return GAC_OK;
}

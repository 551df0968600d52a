#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

const gac_tensor *builder_tensor(const builder *b, int32_t tensor)
{
    return gac_checkpoint_tensor(b->checkpoint, tensor);
}

int32_t builder_find(builder *b, const char *format, ...)
{
    char name[GAC_MAX_NAME_BYTES + 64];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return n > 0 && (size_t)n < sizeof name ? gac_checkpoint_find(b->checkpoint, name) : -1;
}

static int by_name(const void *a, const void *b, void *checkpoint)
{
    return strcmp(gac_checkpoint_tensor(checkpoint, *(const int32_t *)a)->name,
                  gac_checkpoint_tensor(checkpoint, *(const int32_t *)b)->name);
}

static gac_status sort_names(builder *b, gac_error *err)
{
    int32_t n = gac_checkpoint_n_tensors(b->checkpoint);
    if (b->sorted)
        return GAC_OK;
    b->sorted = calloc((size_t)n + 1, sizeof *b->sorted);
    if (!b->sorted)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n; i++)
        b->sorted[i] = i;
    qsort_r(b->sorted, (size_t)n, sizeof *b->sorted, by_name, (void *)b->checkpoint);
    return GAC_OK;
}

gac_status builder_find_prefix(builder *b, const char *prefix, int32_t *first, int32_t *n,
                               gac_error *err)
{
    gac_status status = sort_names(b, err);
    if (status != GAC_OK)
        return status;
    int32_t low = 0, high = gac_checkpoint_n_tensors(b->checkpoint), total = high;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (strcmp(builder_tensor(b, b->sorted[middle])->name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = low;
    size_t length = strlen(prefix);
    while (low < total && strncmp(builder_tensor(b, b->sorted[low])->name, prefix, length) == 0)
        low++;
    *n = low - *first;
    return GAC_OK;
}

gac_status builder_note(builder *b, gac_error *err, const char *format, ...)
{
    /* A broken model could cause a note per tensor. */
    enum { MAX_NOTES = 50 };
    char text[512], quoted[512];
    if (b->n_notes >= MAX_NOTES)
        return GAC_OK;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *note = gac_arena_strdup(b->arena, gac_quote(quoted, sizeof quoted, text));
    if (!note || !gac_grow((void **)&b->notes, b->n_notes, &b->note_capacity, sizeof *b->notes))
        return gac_error_no_memory(err);
    b->notes[b->n_notes++] = note;
    return GAC_OK;
}

gac_status builder_contradiction(const builder *b, int32_t tensor, const char *what, int64_t size,
                                 int32_t other, const char *other_what, int64_t other_size,
                                 gac_error *err)
{
    char qp[200], qt[160], qo[160];
    return gac_error_set(err, GAC_BAD_INPUT,
                         "%s: tensor \"%s\" has %lld %s, but \"%s\" has %lld %s",
                         gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint)),
                         gac_quote(qt, sizeof qt, builder_tensor(b, tensor)->name), (long long)size,
                         what, gac_quote(qo, sizeof qo, builder_tensor(b, other)->name),
                         (long long)other_size, other_what);
}

gac_status builder_expect_axes(const builder *b, int32_t tensor, int32_t n_axes, gac_error *err)
{
    char qp[200], qt[160];
    const gac_tensor *t = builder_tensor(b, tensor);
    /* An empty tensor may state any size on its other axes. This bound ensures
     * that the product of two sizes never overflows. */
    bool fits = true;
    for (int32_t i = 0; i < t->n_axes; i++)
        fits = fits && t->shape[i] <= INT32_MAX;
    if (fits && t->n_axes == n_axes)
        return GAC_OK;
    gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint));
    gac_quote(qt, sizeof qt, t->name);
    if (!fits)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: tensor \"%s\" has an axis of more than %d",
                             qp, qt, INT32_MAX);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: tensor \"%s\" has %d axes, but must have %d", qp,
                         qt, t->n_axes, n_axes);
}

gac_status builder_add_dim(builder *b, gac_role role, int64_t size, const char *name,
                           gac_exactness exactness, const char *reason, int32_t *out,
                           gac_error *err)
{
    char q[160];
    int32_t existing;
    if (!name)
        return gac_error_no_memory(err);
    if (b->n_dims == GAC_MAX_DIMS)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: more than %d dimensions, the last \"%s\"",
                             gac_checkpoint_path(b->checkpoint), GAC_MAX_DIMS,
                             gac_quote(q, sizeof q, name));
    gac_status status = gac_namemap_add(&b->dim_names, name, b->n_dims, &existing, err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: two dimensions are named \"%s\"",
                             gac_checkpoint_path(b->checkpoint), gac_quote(q, sizeof q, name));
    if (!gac_grow((void **)&b->dims, b->n_dims, &b->dim_capacity, sizeof *b->dims))
        return gac_error_no_memory(err);
    b->dims[b->n_dims] = (dim_entry){ .dim = { .name = name,
                                               .role = role,
                                               .size = size,
                                               .exactness = exactness,
                                               .reason = reason,
                                               .declared = -1,
                                               .tied_to = -1 },
                                      .first_tensor = -1 };
    *out = b->n_dims++;
    return GAC_OK;
}

gac_status builder_add_place(builder *b, int32_t dim, gac_place place, gac_error *err)
{
    dim_entry *d = &b->dims[dim];
    if (!gac_grow((void **)&d->places, d->n_places, &d->capacity, sizeof *d->places))
        return gac_error_no_memory(err);
    if (d->first_tensor < 0)
        d->first_tensor = place.tensor;
    d->places[d->n_places++] = place;
    b->explained[place.tensor] = true;
    return GAC_OK;
}

gac_status builder_add_gemm(builder *b, int32_t tensor, int32_t n_axis, int32_t k_axis,
                            int32_t *out, gac_error *err)
{
    const gac_tensor *t = builder_tensor(b, tensor);
    if (!gac_grow((void **)&b->ops, b->n_ops, &b->op_capacity, sizeof *b->ops))
        return gac_error_no_memory(err);
    b->ops[b->n_ops] = (op_entry){ .op = { .kind = GAC_OP_GEMM,
                                           .tensor = tensor,
                                           .layer = b->layer,
                                           .n = t->shape[n_axis],
                                           .k = t->shape[k_axis],
                                           .count = 1,
                                           .share = 1,
                                           .qk_dim = -1,
                                           .v_dim = -1 },
                                   .n_axis = n_axis };
    *out = b->n_ops++;
    b->explained[tensor] = true;
    return GAC_OK;
}

gac_status builder_add_term(builder *b, int32_t op, gac_term term, gac_error *err)
{
    if (!gac_grow((void **)&b->terms, b->n_terms, &b->term_capacity, sizeof *b->terms))
        return gac_error_no_memory(err);
    b->terms[b->n_terms] = (term_entry){ term, b->ops[op].last_term };
    b->ops[op].last_term = ++b->n_terms;
    return GAC_OK;
}

const char *builder_display(const builder *b, const char *format, ...)
{
    char name[GAC_MAX_NAME_BYTES + 64], quoted[GAC_MAX_NAME_BYTES + 64];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (n < 0)
        return NULL;
    size_t length = strlen(b->prefix);
    const char *from = strncmp(name, b->prefix, length) == 0 ? name + length : name;
    return gac_arena_strdup(b->arena, gac_quote(quoted, sizeof quoted, from));
}

/* Notes which key states the hidden size, and what it states. */
static gac_status declare_hidden(builder *b, gac_error *err)
{
    static const char *const keys[] = { "hidden_size", "n_embd", "d_model", NULL };
    gac_dim *d = &b->dims[b->hidden].dim;
    gac_status status = GAC_OK;
    for (int i = 0; keys[i] && !d->config_key && status == GAC_OK; i++) {
        status = config_size(b, b->config, keys[i], &d->declared, err);
        d->config_key = d->declared >= 0 ? keys[i] : NULL;
    }
    return status;
}

/* Binds the hidden dimension to an axis. norm: the tensor is the weight of a norm. */
static gac_status bind_hidden(builder *b, int32_t tensor, int32_t axis, bool norm, gac_error *err)
{
    int64_t size = builder_tensor(b, tensor)->shape[axis];
    gac_status status = GAC_OK;
    if (b->hidden < 0) {
        status = builder_add_dim(b, GAC_ROLE_HIDDEN, size, b->hidden_name, b->hidden_exactness,
                                 b->hidden_reason, &b->hidden, err);
        if (status == GAC_OK && strcmp(b->hidden_name, "hidden") == 0)
            status = declare_hidden(b, err);
    }
    if (status != GAC_OK)
        return status;
    const dim_entry *d = &b->dims[b->hidden];
    if (d->dim.size != size)
        return builder_contradiction(b, tensor, "on its hidden axis", size, d->first_tensor,
                                     "there", d->dim.size, err);
    return builder_add_place(b, b->hidden,
                             (gac_place){ tensor, axis, GAC_REPEAT_WHOLE, 0, 1, norm }, err);
}

gac_status builder_bind_hidden(builder *b, int32_t tensor, int32_t axis, gac_error *err)
{
    return bind_hidden(b, tensor, axis, false, err);
}

gac_status builder_bind_positions(builder *b, const char *module, gac_error *err)
{
    int32_t tensor = builder_find(b, "%s.weight", module);
    if (tensor < 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, tensor, 2, err);
    return status == GAC_OK ? builder_bind_hidden(b, tensor, 1, err) : status;
}

gac_status builder_bind_norm(builder *b, const char *module, gac_error *err)
{
    static const char *const names[] = { "weight", "bias" };
    for (int i = 0; i < 2; i++) {
        int32_t tensor = builder_find(b, "%s.%s", module, names[i]);
        if (tensor < 0)
            continue;
        gac_status status = builder_expect_axes(b, tensor, 1, err);
        if (status == GAC_OK)
            status = bind_hidden(b, tensor, 0, i == 0, err);
        if (status != GAC_OK)
            return status;
    }
    return GAC_OK;
}

gac_status config_size(const builder *b, const json_t *object, const char *key, int64_t *out,
                       gac_error *err)
{
    char qp[200], qk[80];
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return GAC_OK;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > INT32_MAX)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"%s\" is not a size of 1 to %d",
                             gac_quote(qp, sizeof qp, b->config_path),
                             gac_quote(qk, sizeof qk, key), INT32_MAX);
    *out = number;
    return GAC_OK;
}

gac_status config_size_of(const builder *b, const char *const *keys, int64_t *out, gac_error *err)
{
    for (int i = 0; keys[i]; i++) {
        const json_t *value = json_object_get(b->config, keys[i]);
        if (value && !json_is_null(value))
            return config_size(b, b->config, keys[i], out, err);
    }
    return GAC_OK;
}

const char *config_string(const builder *b, const char *key)
{
    return json_string_value(json_object_get(b->config, key));
}

bool config_true(const builder *b, const char *key)
{
    return json_is_true(json_object_get(b->config, key));
}

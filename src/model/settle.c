/* Decides what may change, after all tensors are bound. */
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

/* An axis of a tensor that was not understood. */
typedef struct unknown_axis {
    int64_t size;
    int32_t tensor;
} unknown_axis;

static int by_size(const void *a, const void *b)
{
    const unknown_axis *x = a, *y = b;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static gac_status list_unknown(const builder *b, unknown_axis **out, int32_t *n, gac_error *err)
{
    int32_t n_tensors = gac_checkpoint_n_tensors(b->checkpoint), n_axes = 0;
    for (int32_t i = 0; i < n_tensors; i++)
        n_axes += b->explained[i] ? 0 : builder_tensor(b, i)->n_axes;
    *n = 0;
    *out = calloc((size_t)n_axes + 1, sizeof **out);
    if (!*out)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n_tensors; i++)
        for (int32_t a = 0; !b->explained[i] && a < builder_tensor(b, i)->n_axes; a++)
            (*out)[(*n)++] = (unknown_axis){ builder_tensor(b, i)->shape[a], i };
    qsort(*out, (size_t)*n, sizeof **out, by_size);
    return GAC_OK;
}

/* Returns the length of "<prefix>layers.<number>." at the start of a tensor's
 * name, or 0. */
static size_t layer_length(const builder *b, const char *name)
{
    size_t n = strlen(b->prefix), m = strlen(b->layers);
    if (strncmp(name, b->prefix, n) != 0 || strncmp(name + n, b->layers, m) != 0 ||
        name[n + m] != '.')
        return 0;
    const char *dot = strchr(name + n + m + 1, '.');
    return dot ? (size_t)(dot - name) + 1 : 0;
}

/* Finds a tensor that was not understood and has an axis of this size. For a
 * rank, which nothing outside its module can share, it must be in the layer of
 * the tensor beside. */
static int32_t find_sharer(const builder *b, const unknown_axis *all, int32_t n, int64_t size,
                           const gac_dim *d, int32_t beside)
{
    int32_t low = 0, high = n;
    const char *name = builder_tensor(b, beside)->name;
    size_t length = d->role == GAC_ROLE_RANK ? layer_length(b, name) : 0;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (all[middle].size < size)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n && all[low].size == size; low++)
        if (strncmp(builder_tensor(b, all[low].tensor)->name, name, length) == 0)
            return all[low].tensor;
    return -1;
}

/* Refuses the dimensions that a tensor which was not understood may share: it
 * has an axis of that size, or of as many slices of it as another tensor. */
static gac_status refuse_shared(builder *b, gac_error *err)
{
    char q[160];
    unknown_axis *all;
    int32_t n;
    gac_status status = list_unknown(b, &all, &n, err);
    for (int32_t i = 0; i < b->n_dims && n > 0 && status == GAC_OK; i++) {
        dim_entry *e = &b->dims[i];
        int32_t sharer = -1;
        for (int32_t p = 0; p < e->n_places && sharer < 0 && e->dim.exactness != GAC_REFUSED; p++) {
            const gac_place *place = &e->places[p];
            sharer = find_sharer(b, all, n, e->dim.size, &e->dim, place->tensor);
            if (sharer < 0 && place->n_slices > 1)
                sharer =
                    find_sharer(b, all, n, place->n_slices * e->dim.size, &e->dim, place->tensor);
        }
        if (sharer < 0)
            continue;
        e->dim.exactness = GAC_REFUSED;
        e->dim.reason =
            gac_arena_printf(b->arena, "tensor \"%s\" was not understood, and may share this size",
                             gac_quote(q, sizeof q, builder_tensor(b, sharer)->name));
        if (!e->dim.reason)
            status = gac_error_no_memory(err);
    }
    free(all);
    return status;
}

/* Refuses everything but ranks if the family was guessed: what it computes with
 * a size is not known. A rank is known from its two factors. */
static void refuse_guessed(builder *b)
{
    const json_t *type = json_object_get(b->config, "model_type");
    if (b->family_known && type)
        return;
    for (int32_t i = 0; i < b->n_dims; i++) {
        gac_dim *d = &b->dims[i].dim;
        if (d->role == GAC_ROLE_RANK || d->exactness == GAC_REFUSED)
            continue;
        d->exactness = GAC_REFUSED;
        d->reason = type ? "model_type is not known: the family was guessed by tensor names"
                         : "no config states the family, which was guessed by tensor names";
    }
}

/* Whether the config has one value of a dimension's key for all layers. */
static bool has_one_key(const builder *b, const gac_dim *d, bool may_differ)
{
    if (!d->config_key)
        return false;
    if (d->role == GAC_ROLE_EXPERT_WIDTH)
        return true;
    if (d->role == GAC_ROLE_V_HEAD)
        return strcmp(d->config_key, "v_head_dim") == 0;
    return d->role == GAC_ROLE_MLP_WIDTH && !may_differ && b->config != NULL;
}

/* Ties the dimension to the first one with its key. If one of them cannot
 * change, none can. */
static gac_status join_keys(builder *b, gac_error *err)
{
    enum { MAX_KEYS = 16 };
    struct {
        const char *key;
        int32_t first, refused;
    } keys[MAX_KEYS];
    int n_keys = 0;
    bool may_differ = widths_may_differ(b);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < b->n_dims; i++) {
            gac_dim *d = &b->dims[i].dim;
            int k = 0;
            if (!b->config || !has_one_key(b, d, may_differ))
                continue;
            while (k < n_keys && strcmp(keys[k].key, d->config_key) != 0)
                k++;
            if (k == MAX_KEYS)
                continue;
            if (k == n_keys) {
                keys[k].key = d->config_key;
                keys[k].first = i;
                keys[k].refused = -1;
                n_keys++;
            }
            if (pass == 0 && d->exactness == GAC_REFUSED && keys[k].refused < 0)
                keys[k].refused = i;
            if (pass == 0)
                continue;
            if (keys[k].refused < 0 && keys[k].first != i) {
                d->tied_to = keys[k].first;
            } else if (keys[k].refused >= 0 && d->exactness != GAC_REFUSED) {
                d->exactness = GAC_REFUSED;
                d->reason = gac_arena_printf(b->arena,
                                             "the config has one %s for it and %s, which cannot "
                                             "change",
                                             d->config_key, b->dims[keys[k].refused].dim.name);
                if (!d->reason)
                    return gac_error_no_memory(err);
            }
        }
    return GAC_OK;
}

/* Refuses to pad rotated heads if layers have different head sizes. Padding
 * needs the rotation stated for the new size, and a config states one rotation
 * for all layers. */
static void refuse_mixed_heads(builder *b)
{
    int64_t size = -1;
    bool mixed = false;
    for (int32_t i = 0; i < b->n_dims; i++) {
        const gac_dim *d = &b->dims[i].dim;
        if (d->role != GAC_ROLE_QK_HEAD)
            continue;
        mixed = mixed || (size >= 0 && size != d->size);
        size = d->size;
    }
    for (int32_t i = 0; i < b->n_dims && mixed; i++) {
        gac_dim *d = &b->dims[i].dim;
        if (d->role != GAC_ROLE_QK_HEAD || d->exactness != GAC_RESCALED)
            continue;
        d->exactness = GAC_REFUSED;
        d->reason = "head sizes differ between layers, and the config states one rotation for all";
    }
}

/* Stock classes refuse a hidden size that their heads do not divide. */
static gac_status limit_hidden(builder *b, gac_error *err)
{
    int64_t n_heads = -1;
    gac_status status = config_size(b, b->config, "num_attention_heads", &n_heads, err);
    gac_dim *d = b->hidden >= 0 ? &b->dims[b->hidden].dim : NULL;
    if (status == GAC_OK && d && n_heads > 1 && d->size % n_heads == 0)
        d->multiple = n_heads;
    return status;
}

/* A dimension cannot change if one that is tied to it cannot. */
static void refuse_tied(builder *b)
{
    for (int32_t i = 0; i < b->n_dims; i++) {
        gac_dim *d = &b->dims[i].dim, *to = d->tied_to >= 0 ? &b->dims[d->tied_to].dim : NULL;
        if (!to || (d->exactness == GAC_REFUSED) == (to->exactness == GAC_REFUSED))
            continue;
        gac_dim *free_one = d->exactness == GAC_REFUSED ? to : d;
        const gac_dim *fixed = free_one == d ? to : d;
        free_one->exactness = GAC_REFUSED;
        free_one->reason = fixed->reason;
    }
}

gac_status settle_dims(builder *b, gac_error *err)
{
    refuse_mixed_heads(b);
    refuse_guessed(b);
    gac_status status = refuse_shared(b, err);
    refuse_tied(b);
    if (status == GAC_OK)
        status = join_keys(b, err);
    return status == GAC_OK ? limit_hidden(b, err) : status;
}

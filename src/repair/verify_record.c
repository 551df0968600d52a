/* Verifies the record of a repaired checkpoint, and finds the sizes after it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "repair/verify_internal.h"

void gac_differ(gac_verification *out, const char *format, ...)
{
    va_list args;
    if (out->difference[0])
        return;
    va_start(args, format);
    vsnprintf(out->difference, sizeof out->difference, format, args);
    va_end(args);
}

static void record_differs(comparison *c, const char *what)
{
    c->out->record_ok = false;
    gac_differ(c->out, "the record of the repair %s", what);
}

/* Returns whether a record describes a repair of the original: the record
 * before it is the original's own (or NULL), and every changed dimension had
 * its size in the original. */
static bool starts_at_original(const comparison *c, const json_t *record, const json_t *own)
{
    size_t i;
    json_t *dim;
    const json_t *before = json_object_get(record, "before");
    if (own ? !json_equal(before, own) : json_is_object(before))
        return false;
    json_array_foreach(json_object_get(record, "dims"), i, dim) {
        const char *name = json_string_value(json_object_get(dim, "name"));
        int32_t index = name ? gac_model_find_dim(c->model, name) : -1;
        if (index < 0 || gac_model_dim(c->model, index)->size !=
                             json_integer_value(json_object_get(dim, "from")))
            return false;
    }
    return true;
}

/* Computes the sizes after a record and all earlier ones of the chain. Each
 * must start from the sizes after the previous one. */
static void apply_steps(comparison *c, const json_t *record)
{
    if (record != c->step)
        apply_steps(c, json_object_get(record, "before"));
    if (!gac_record_apply(record, c->model, c->sizes))
        record_differs(c, "has links that do not fit each other");
}

/* Without a record, takes the sizes from the repaired model. */
static void sizes_by_name(comparison *c)
{
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++) {
        int32_t other = gac_model_find_dim(c->repaired_model, gac_model_dim(c->model, i)->name);
        if (other >= 0)
            c->sizes[i] = gac_model_dim(c->repaired_model, other)->size;
    }
}

/* Checks that a repair of the original can give these sizes. If not, the
 * tensors are compared without any change of sizes. */
static void check_sizes(comparison *c)
{
    gac_error why = GAC_ERROR_INIT;
    const gac_repair_options options = { .allow_rescaled = true };
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++) {
        const gac_dim *d = gac_model_dim(c->model, i);
        c->out->n_dims_changed += c->sizes[i] != d->size;
        if (c->sizes[i] < d->size)
            gac_differ(c->out,
                       "%s is smaller than in the original (is the original the first argument?)",
                       d->name);
    }
    if (gac_repair_check(c->model, c->sizes, &options, &why) == GAC_OK)
        return;
    c->out->lossless = false;
    gac_differ(c->out, "no repair gives these sizes: %s", why.text);
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++)
        c->sizes[i] = gac_model_dim(c->model, i)->size;
}

/* Returns whether a list has an element that equals value. */
static bool has_equal(const json_t *list, const json_t *value)
{
    size_t i;
    json_t *element;
    json_array_foreach(list, i, element)
        if (json_equal(element, value))
            return true;
    return false;
}

/* Returns whether two lists without duplicates have the same elements. Their
 * order does not matter, because it follows the order of tensors in files. */
static bool same_elements(const json_t *expected, const json_t *found)
{
    size_t i;
    json_t *element;
    if (json_array_size(expected) != json_array_size(found))
        return false;
    json_array_foreach(expected, i, element)
        if (!has_equal(found, element))
            return false;
    return true;
}

static bool same_dims(const json_t *expected, const json_t *found)
{
    static const char *const keys[] = { "name", "from", "to" };
    size_t i;
    json_t *dim;
    if (json_array_size(expected) != json_array_size(found))
        return false;
    json_array_foreach(expected, i, dim) {
        const json_t *other = json_array_get(found, i);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (!json_equal(json_object_get(dim, keys[k]), json_object_get(other, keys[k])))
                return false;
        if (!same_elements(json_object_get(dim, "places"), json_object_get(other, "places")))
            return false;
    }
    return true;
}

/* Compares the record of the original's repair with the record that this repair
 * must write. */
static gac_status check_record(comparison *c)
{
    static const char *const keys[] = { "dims",   "rescaled",    "config",
                                        "before", "config_xxh3", "scaled" };
    json_t *expected = NULL;
    gac_error why = GAC_ERROR_INIT;
    int64_t *sizes = calloc((size_t)gac_model_n_dims(c->model) + 1, sizeof *sizes);
    if (!sizes)
        return gac_error_no_memory(c->err);
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++)
        sizes[i] = gac_model_dim(c->model, i)->size;
    gac_record_apply(c->step, c->model, sizes);
    gac_status status = gac_record_create(c->original, c->model, sizes, gac_record_widths(c->step),
                                          &expected, &why);
    free(sizes);
    if (status == GAC_USAGE) { /* no repair gives these sizes */
        record_differs(c, why.text);
        return GAC_OK;
    }
    /* Records of version 0.1 lack the last two keys. */
    size_t n_keys = sizeof keys / sizeof *keys - (c->out->old_record ? 2 : 0);
    for (size_t i = 0; i < n_keys && status == GAC_OK; i++) {
        const json_t *a = json_object_get(expected, keys[i]);
        const json_t *b = json_object_get(c->step, keys[i]);
        bool same = i == 0   ? same_dims(a, b)
                    : i == 5 ? json_is_array(b) && same_elements(a, b)
                             : json_equal(a, b);
        if (!same) {
            char what[64];
            snprintf(what, sizeof what, "has another \"%s\" than the original gives", keys[i]);
            record_differs(c, what);
        }
    }
    json_decref(expected);
    return status == GAC_OK ? GAC_OK : gac_error_set(c->err, status, "%s", why.text);
}

gac_status gac_verify_record(comparison *c)
{
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++)
        c->sizes[i] = gac_model_dim(c->model, i)->size;
    gac_status status = gac_record_find(c->repaired, &c->record, c->err);
    if (status != GAC_OK)
        return status;
    c->out->has_record = c->record != NULL;
    /* Repeated repairs have a chain of records. The original may be at any
     * link. */
    json_t *own = NULL;
    if (c->record)
        status = gac_record_find(c->original, &own, c->err);
    for (const json_t *r = c->record; json_is_object(r) && !c->step && status == GAC_OK;
         r = json_object_get(r, "before"))
        c->step = starts_at_original(c, r, own) ? r : NULL;
    json_decref(own);
    if (status != GAC_OK)
        return status;
    if (c->step)
        apply_steps(c, c->record);
    else
        sizes_by_name(c);
    if (c->record && !c->step)
        record_differs(c, "describes another original");
    check_sizes(c);
    if (!c->step)
        return GAC_OK;
    c->out->old_record = !gac_record_has_checksums(c->step);
    bool counts = gac_record_counts(c->step, gac_checkpoint_n_tensors(c->original));
    if (!c->out->old_record && counts)
        status = gac_tensor_ranks(c->original, &c->ranks, c->err);
    else if (!c->out->old_record)
        record_differs(c, "has checksums of another number of tensors");
    if (status == GAC_OK && c->out->lossless)
        status = check_record(c);
    return status;
}

/* Checks that the records move the elements of a tensor as its dimensions do. */
static gac_status compare_maps(comparison *c, const history *chain, int32_t tensor, bool *same,
                               gac_error *err)
{
    tensor_map found = { .last = -1 }, expected = { .last = -1 };
    const gac_tensor *t = gac_checkpoint_tensor(c->original, tensor);
    int32_t to = gac_checkpoint_find(c->repaired, t->name);
    if (to < 0)
        return GAC_OK;
    gac_status status = gac_history_map(chain, c->repaired, to, &found, err);
    if (status == GAC_OK)
        status = gac_map_create(&c->places, tensor, t->shape, c->sizes, &expected, err);
    *same = *same && status == GAC_OK && gac_map_equal(&found, &expected);
    gac_map_dispose(&found);
    gac_map_dispose(&expected);
    return status;
}

gac_status gac_verify_chain(comparison *c)
{
    bool same = true;
    history chain;
    gac_error local = GAC_ERROR_INIT;
    if (!c->step || c->step == c->record)
        return GAC_OK;
    gac_status status = gac_history_create(c->record, c->step, c->repaired, &chain, &local);
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c->original) && status == GAC_OK && same; i++)
        status = compare_maps(c, &chain, i, &same, &local);
    gac_history_dispose(&chain);
    if (status != GAC_OK && status != GAC_BAD_INPUT)
        return gac_error_set(c->err, status, "%s", local.text);
    if (status != GAC_OK || !same)
        record_differs(c, "has other places than the original gives");
    return GAC_OK;
}

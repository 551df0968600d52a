/* What was done to a checkpoint, kept in the metadata of its files: enough to
 * undo it from the result alone. Places are recorded, not derived again: the
 * shapes of a repaired model may no longer tell which factor comes first. */
#include <stdlib.h>
#include <string.h>

#include "repair/repair_internal.h"

#define SCHEMA "gac.record/1"

/* Repairs of repairs of repairs end somewhere, and so do heads. */
enum { MAX_CHAIN = 64, MAX_SLICES = 1 << 20 };

static gac_status bad_record(const gac_checkpoint *c, const char *what, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: its " GAC_RECORD_KEY " metadata %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(c)), what);
}

static bool is_record(const json_t *record)
{
    const char *schema = json_string_value(json_object_get(record, "schema"));
    return schema && strcmp(schema, SCHEMA) == 0 && json_is_array(json_object_get(record, "dims"));
}

gac_status gac_record_find(const gac_checkpoint *checkpoint, json_t **out, gac_error *err)
{
    *out = NULL;
    for (int32_t f = 0; f < gac_checkpoint_n_files(checkpoint) && !*out; f++) {
        const json_t *text =
            json_object_get(gac_checkpoint_metadata(checkpoint, f), GAC_RECORD_KEY);
        if (!text)
            continue;
        gac_status status = gac_json_parse(json_string_value(text), json_string_length(text),
                                           gac_checkpoint_file_name(checkpoint, f), out, err);
        if (status != GAC_OK)
            return status;
    }
    if (*out && !is_record(*out)) {
        json_decref(*out);
        *out = NULL;
        return bad_record(checkpoint, "is not one this version understands", err);
    }
    return GAC_OK;
}

bool gac_record_is_rescaled(const json_t *record)
{
    return json_is_true(json_object_get(record, "rescaled"));
}

const json_t *gac_record_oldest(const json_t *record)
{
    for (int i = 0; i < MAX_CHAIN && is_record(json_object_get(record, "before")); i++)
        record = json_object_get(record, "before");
    return record;
}

int32_t gac_record_n_dims(const json_t *record)
{
    return (int32_t)json_array_size(json_object_get(record, "dims"));
}

/* ---- Writing a record ---------------------------------------------------- */

/* config.json to the byte, as a string; JSON null without one. */
static gac_status config_text(const gac_checkpoint *c, json_t **out, gac_error *err)
{
    gac_file *file;
    char *text;
    size_t n;
    const char *path = gac_checkpoint_path(c), *slash = strrchr(path, '/');
    *out = NULL;
    if (!gac_checkpoint_config(c)) {
        *out = json_null();
        return GAC_OK;
    }
    /* A file on its own is described by the config beside it. */
    char *folder = gac_checkpoint_is_directory(c) ? strdup(path)
                   : !slash                       ? strdup(".")
                                                  : strndup(path, (size_t)(slash + 1 - path));
    if (!folder)
        return gac_error_no_memory(err);
    gac_status status = gac_file_open_inside(folder, "config.json", &file, err);
    free(folder);
    if (status != GAC_OK)
        return status;
    status = gac_file_slurp(file, GAC_MAX_CONFIG_BYTES, &text, &n, err);
    gac_file_close(file);
    if (status != GAC_OK)
        return status;
    *out = json_stringn(text, n);
    free(text);
    return *out ? GAC_OK : gac_error_no_memory(err);
}

/* [tensor, axis, start, n_slices, n_parts] of each place. */
static json_t *places_json(const gac_model *model, const gac_dim *d)
{
    json_t *places = json_array();
    for (int32_t i = 0; i < d->n_places; i++) {
        const gac_place *p = &d->places[i];
        const char *name = gac_checkpoint_tensor(gac_model_checkpoint(model), p->tensor)->name;
        json_array_append_new(places, json_pack("[s, i, I, I, i]", name, p->axis,
                                                (json_int_t)p->start, (json_int_t)p->n_slices,
                                                p->repeat == GAC_REPEAT_HALF ? 2 : 1));
    }
    return places;
}

static json_t *changed_dims(const gac_model *model, const int64_t *sizes, bool *rescaled)
{
    json_t *dims = json_array();
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (sizes[i] == d->size)
            continue;
        *rescaled = *rescaled || d->exactness == GAC_RESCALED;
        json_array_append_new(dims, json_pack("{s:s, s:I, s:I, s:o}", "name", d->name, "from",
                                              (json_int_t)d->size, "to", (json_int_t)sizes[i],
                                              "places", places_json(model, d)));
    }
    return dims;
}

gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, json_t **out, gac_error *err)
{
    json_t *before = NULL, *config = NULL;
    bool rescaled = false;
    gac_status status = gac_record_find(checkpoint, &before, err);
    if (status == GAC_OK)
        status = config_text(checkpoint, &config, err);
    if (status != GAC_OK) {
        json_decref(before);
        return status;
    }
    json_t *dims = changed_dims(model, sizes, &rescaled);
    if (before && (rescaled || gac_record_is_rescaled(before)))
        status = gac_error_set(err, GAC_USAGE,
                               "%s: repaired before, and rescaling is involved; undo that first",
                               gac_checkpoint_path(checkpoint));
    if (status == GAC_OK)
        *out = json_pack("{s:s, s:s, s:b, s:O, s:O, s:o}", "schema", SCHEMA, "version", GAC_VERSION,
                         "rescaled", rescaled, "dims", dims, "config", config, "before",
                         before ? json_incref(before) : json_null());
    if (status == GAC_OK && !*out)
        status = gac_error_no_memory(err);
    json_decref(dims);
    json_decref(config);
    json_decref(before);
    return status;
}

/* ---- Reading one back: it is as untrusted as any file -------------------- */

/* An integer of at least minimum and at most 2^31 - 1, or -1. */
static int64_t bounded(const json_t *value, int64_t minimum)
{
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    return n >= minimum && n <= INT32_MAX ? n : -1;
}

static gac_status add_place(const json_t *json, int32_t dim, int64_t size, place_list *list,
                            gac_error *err)
{
    const gac_checkpoint *c = list->checkpoint;
    const char *name = json_string_value(json_array_get(json, 0));
    int32_t tensor = name ? gac_checkpoint_find(c, name) : -1;
    int64_t axis = bounded(json_array_get(json, 1), 0), start = bounded(json_array_get(json, 2), 0);
    int64_t n_slices = bounded(json_array_get(json, 3), 1);
    int64_t n_parts = bounded(json_array_get(json, 4), 1);
    if (tensor < 0 || axis < 0 || axis >= gac_checkpoint_tensor(c, tensor)->n_axes || start < 0 ||
        n_slices < 0 || n_slices > MAX_SLICES || n_parts < 1 || n_parts > 2)
        return bad_record(c, "names places that its tensors do not have", err);
    return gac_places_add(
        list, tensor, (place_entry){ dim, (int32_t)axis, start, n_slices, n_parts, size, -1 }, err);
}

static gac_status read_record(const json_t *record, const gac_checkpoint *c, place_list *list,
                              int64_t **sizes, gac_error *err)
{
    size_t i, k;
    json_t *dim, *place;
    const json_t *dims = json_object_get(record, "dims");
    gac_status status = gac_places_start(c, list, err);
    *sizes = calloc(json_array_size(dims) + 1, sizeof **sizes);
    if (status == GAC_OK && !*sizes)
        status = gac_error_no_memory(err);
    json_array_foreach(dims, i, dim) {
        int64_t from = bounded(json_object_get(dim, "from"), 1);
        int64_t to = bounded(json_object_get(dim, "to"), 1);
        if (status == GAC_OK &&
            (from < 1 || to <= from || json_array_size(json_object_get(dim, "places")) == 0))
            status = bad_record(c, "states sizes that cannot be", err);
        if (status != GAC_OK)
            break;
        (*sizes)[i] = to;
        json_array_foreach(json_object_get(dim, "places"), k, place) {
            if (status == GAC_OK)
                status = add_place(place, (int32_t)i, from, list, err);
        }
    }
    return status;
}

gac_status gac_history_create(const json_t *record, const gac_checkpoint *checkpoint, history *out,
                              gac_error *err)
{
    const json_t *chain[MAX_CHAIN];
    int32_t n = 0;
    for (; is_record(record) && n < MAX_CHAIN; record = json_object_get(record, "before"))
        chain[n++] = record;
    *out = (history){ .n = n };
    out->lists = calloc((size_t)n + 1, sizeof *out->lists);
    out->sizes = calloc((size_t)n + 1, sizeof *out->sizes);
    gac_status status = out->lists && out->sizes ? GAC_OK : gac_error_no_memory(err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        status = read_record(chain[n - 1 - i], checkpoint, &out->lists[i], &out->sizes[i], err);
    return status;
}

void gac_history_dispose(history *h)
{
    for (int32_t i = 0; i < h->n && h->lists && h->sizes; i++) {
        gac_places_dispose(&h->lists[i]);
        free(h->sizes[i]);
    }
    free(h->lists);
    free(h->sizes);
}

/* The original's shape: what it is now less what every repair added. */
static bool original_shape(const history *h, const gac_tensor *t, int32_t tensor, int64_t *shape)
{
    bool ok = true;
    for (int32_t a = 0; a < t->n_axes; a++)
        shape[a] = t->shape[a];
    for (int32_t i = 0; i < h->n; i++)
        for (int32_t r = h->lists[i].first[tensor]; r >= 0; r = h->lists[i].entries[r].next) {
            const place_entry *e = &h->lists[i].entries[r];
            int64_t grown = e->n_slices * (h->sizes[i][e->dim] - e->size);
            ok = ok && grown <= shape[e->axis];
            shape[e->axis] -= ok ? grown : 0;
        }
    return ok;
}

gac_status gac_history_map(const history *h, const gac_checkpoint *checkpoint, int32_t tensor,
                           tensor_map *out, gac_error *err)
{
    int64_t shape[GAC_MAX_AXES];
    const gac_tensor *t = gac_checkpoint_tensor(checkpoint, tensor);
    *out = (tensor_map){ .last = -1 };
    if (!original_shape(h, t, tensor, shape))
        return bad_record(checkpoint, "does not fit its tensors", err);
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < h->n && status == GAC_OK; i++) {
        tensor_map step;
        status = gac_map_create(&h->lists[i], tensor, shape, h->sizes[i], &step, err);
        for (int32_t a = 0; a < t->n_axes && status == GAC_OK; a++)
            shape[a] = step.axes[a].n_to;
        if (i == 0) {
            *out = step;
            continue;
        }
        if (status == GAC_OK)
            status = gac_map_follow(out, &step, err);
        gac_map_dispose(&step);
    }
    return status;
}

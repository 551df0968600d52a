/* The record of a repair, stored in the metadata of the first file. It is
 * enough to undo the repair from the result alone. It lists places instead of
 * deriving them again, because the shapes of a repaired model may not show
 * which factor comes first. */
#include <stdlib.h>
#include <string.h>

#include "repair/repair_internal.h"

#define SCHEMA "gac.record/2"
#define OLD_SCHEMA "gac.record/1" /* has no checksums */

/* Limits of repeated repairs and of the slices of a place. */
enum { MAX_CHAIN = 64, MAX_SLICES = 1 << 20 };

static gac_status bad_record(const gac_checkpoint *c, const char *what, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: its " GAC_RECORD_KEY " metadata %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(c)), what);
}

static bool has_schema(const json_t *record, const char *wanted)
{
    const char *schema = json_string_value(json_object_get(record, "schema"));
    return schema && strcmp(schema, wanted) == 0;
}

static bool is_record(const json_t *record)
{
    return (has_schema(record, SCHEMA) || has_schema(record, OLD_SCHEMA)) &&
           json_is_array(json_object_get(record, "dims"));
}

bool gac_record_has_checksums(const json_t *record)
{
    return has_schema(record, SCHEMA);
}

static void hex(uint64_t value, char text[17])
{
    snprintf(text, 17, "%016llx", (unsigned long long)value);
}

/* Parses the record in a file's metadata. *out is NULL if there is none. A
 * record that was changed later is refused. */
static gac_status read_text(const gac_checkpoint *c, int32_t file, json_t **out, gac_error *err)
{
    char sum[17];
    const json_t *metadata = gac_checkpoint_metadata(c, file);
    const json_t *text = json_object_get(metadata, GAC_RECORD_KEY);
    const char *stated = json_string_value(json_object_get(metadata, GAC_RECORD_SUM_KEY));
    *out = NULL;
    if (!text)
        return stated ? bad_record(c, "is missing, and its checksum is there", err) : GAC_OK;
    gac_status status = gac_json_parse(json_string_value(text), json_string_length(text),
                                       gac_checkpoint_file_name(c, file), out, err);
    if (status == GAC_OK && !is_record(*out))
        status = bad_record(c, "is not one this version understands", err);
    hex(gac_hash_bytes(json_string_value(text), json_string_length(text)), sum);
    bool needed = stated || gac_record_has_checksums(*out);
    if (status == GAC_OK && needed && (!stated || strcmp(stated, sum) != 0))
        status = bad_record(c, "does not fit its checksum: it was changed", err);
    if (status != GAC_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

gac_status gac_record_find(const gac_checkpoint *checkpoint, json_t **out, gac_error *err)
{
    gac_status status = GAC_OK;
    *out = NULL;
    for (int32_t f = 0; f < gac_checkpoint_n_files(checkpoint) && !*out && status == GAC_OK; f++)
        status = read_text(checkpoint, f, out, err);
    return status;
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

bool gac_record_apply(const json_t *record, const gac_model *model, int64_t *sizes)
{
    size_t i;
    json_t *dim;
    bool fits = true;
    json_array_foreach(json_object_get(record, "dims"), i, dim) {
        const char *name = json_string_value(json_object_get(dim, "name"));
        int32_t index = name ? gac_model_find_dim(model, name) : -1;
        json_int_t from = json_integer_value(json_object_get(dim, "from"));
        json_int_t to = json_integer_value(json_object_get(dim, "to"));
        bool good = index >= 0 && from == sizes[index] && to > 0 && to <= INT32_MAX;
        if (good)
            sizes[index] = to;
        fits = fits && good;
    }
    return fits;
}

/* Writing a record. */

/* Reads config.json as a string with its exact bytes; JSON null if there is
 * none. */
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
    /* The config beside a single file describes it. */
    char *folder = gac_checkpoint_is_directory(c) ? strdup(path)
                   : !slash                       ? strdup(".")
                                                  : strndup(path, (size_t)(slash + 1 - path));
    if (!folder)
        return gac_error_no_memory(err);
    gac_status status = gac_file_open_inside(folder, gac_checkpoint_config_name(c), &file, err);
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

/* Lists [tensor, axis, start, n_slices, n_parts] of each place. */
static json_t *places_json(const gac_model *model, const gac_dim *d)
{
    json_t *places = json_array();
    for (int32_t i = 0; i < d->n_places; i++) {
        const gac_place *p = &d->places[i];
        const char *name = gac_checkpoint_tensor(gac_model_checkpoint(model), p->tensor)->name;
        json_array_append_new(places,
                              json_pack("[s, i, I, I, i]", name, p->axis, (json_int_t)p->start,
                                        (json_int_t)p->n_slices, (int)gac_place_parts(p)));
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

/* Lists the names of the tensors whose values are scaled. */
static gac_status scaled_names(const gac_model *model, const int64_t *sizes, json_t **out,
                               gac_error *err)
{
    place_list places;
    tensor_scaling scaling;
    const gac_checkpoint *c = gac_model_checkpoint(model);
    gac_status status = gac_places_create(model, &places, err);
    *out = json_array();
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c) && status == GAC_OK; i++)
        if (gac_scaling_of(&places, i, sizes, &scaling) &&
            json_array_append_new(*out, json_string(gac_checkpoint_tensor(c, i)->name)) != 0)
            status = gac_error_no_memory(err);
    gac_places_dispose(&places);
    return status;
}

static const char *const widths_names[] = { "auto", "uniform", "per_layer_config",
                                            "block_configs" };

gac_widths gac_record_widths(const json_t *record)
{
    const char *name = json_string_value(json_object_get(record, "widths"));
    for (int i = 0; name && i < 4; i++)
        if (strcmp(name, widths_names[i]) == 0)
            return (gac_widths)i;
    return GAC_WIDTHS_AUTO;
}

gac_status gac_record_set_code(json_t *record, const char *code, gac_error *err)
{
    char sum[17];
    bool ok = json_object_set_new(record, "code", json_true()) == 0;
    if (code) {
        hex(gac_hash_bytes(code, strlen(code)), sum);
        ok = json_object_set_new(record, "code_xxh3", json_string(sum)) == 0 && ok;
    }
    return ok ? GAC_OK : gac_error_no_memory(err);
}

bool gac_record_allows_code(const json_t *record)
{
    return json_is_true(json_object_get(record, "code"));
}

const char *gac_record_code_sum(const json_t *record, const json_t *last)
{
    const char *sum = NULL;
    for (int i = 0; i < MAX_CHAIN && is_record(record) && !sum; i++) {
        sum = json_string_value(json_object_get(record, "code_xxh3"));
        record = record == last ? NULL : json_object_get(record, "before");
    }
    return sum;
}

/* Makes a string of zeros: 16 digits for the hash of each tensor, in order of
 * names. */
static json_t *hashes_json(int32_t n_tensors)
{
    size_t n_bytes = (size_t)n_tensors * 16;
    char *text = malloc(n_bytes + 1);
    if (!text)
        return NULL;
    memset(text, '0', n_bytes);
    json_t *value = json_stringn(text, n_bytes);
    free(text);
    return value;
}

gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, gac_widths widths, json_t **out, gac_error *err)
{
    char sum[17];
    json_t *before = NULL, *config = NULL, *scaled = NULL;
    bool rescaled = false;
    gac_status status = gac_record_find(checkpoint, &before, err);
    if (status == GAC_OK)
        status = scaled_names(model, sizes, &scaled, err);
    if (status == GAC_OK)
        status = config_text(checkpoint, &config, err);
    if (status != GAC_OK) {
        json_decref(before);
        json_decref(scaled);
        return status;
    }
    json_t *dims = changed_dims(model, sizes, &rescaled);
    if (before && (rescaled || gac_record_is_rescaled(before)))
        status = gac_error_set(err, GAC_USAGE,
                               "%s: repaired before, and rescaling is involved; undo that first",
                               gac_checkpoint_path(checkpoint));
    hex(gac_hash_bytes(json_string_value(config), json_string_length(config)), sum);
    if (status == GAC_OK)
        *out = json_pack("{s:s, s:s, s:b, s:s, s:O, s:O, s:O, s:s, s:o, s:o}", "schema", SCHEMA,
                         "version", GAC_VERSION, "rescaled", rescaled, "widths",
                         widths_names[widths], "dims", dims, "scaled", scaled, "config", config,
                         "config_xxh3", json_is_string(config) ? sum : "", "tensors_xxh3",
                         hashes_json(gac_checkpoint_n_tensors(checkpoint)), "before",
                         before ? json_incref(before) : json_null());
    if (status == GAC_OK && !*out)
        status = gac_error_no_memory(err);
    json_decref(dims);
    json_decref(scaled);
    json_decref(config);
    json_decref(before);
    return status;
}

/* Checksums. */

typedef struct named {
    const char *name;
    int32_t index;
} named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

gac_status gac_tensor_ranks(const gac_checkpoint *c, int32_t **out, gac_error *err)
{
    int32_t n = gac_checkpoint_n_tensors(c);
    named *order = calloc((size_t)n + 1, sizeof *order);
    int32_t *ranks = calloc((size_t)n + 1, sizeof *ranks);
    if (!order || !ranks) {
        free(order);
        free(ranks);
        return gac_error_no_memory(err);
    }
    for (int32_t i = 0; i < n; i++)
        order[i] = (named){ gac_checkpoint_tensor(c, i)->name, i };
    qsort(order, (size_t)n, sizeof *order, by_name);
    for (int32_t i = 0; i < n; i++)
        ranks[order[i].index] = i;
    free(order);
    *out = ranks;
    return GAC_OK;
}

gac_status gac_record_set_hashes(json_t *record, const gac_checkpoint *c, const uint64_t *hashes,
                                 gac_error *err)
{
    char digits[17];
    int32_t n = gac_checkpoint_n_tensors(c);
    int32_t *ranks = NULL;
    char *text = malloc((size_t)n * 16 + 1);
    gac_status status = text ? gac_tensor_ranks(c, &ranks, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++) {
        hex(hashes[i], digits);
        memcpy(text + (size_t)ranks[i] * 16, digits, 16);
    }
    if (status == GAC_OK &&
        json_object_set_new(record, "tensors_xxh3", json_stringn(text, (size_t)n * 16)) != 0)
        status = gac_error_no_memory(err);
    free(text);
    free(ranks);
    return status;
}

bool gac_record_hash_is(const json_t *record, int32_t rank, uint64_t hash)
{
    char digits[17];
    const json_t *hashes = json_object_get(record, "tensors_xxh3");
    hex(hash, digits);
    return json_string_length(hashes) >= ((size_t)rank + 1) * 16 &&
           memcmp(json_string_value(hashes) + (size_t)rank * 16, digits, 16) == 0;
}

bool gac_record_counts(const json_t *record, int32_t n_tensors)
{
    return json_string_length(json_object_get(record, "tensors_xxh3")) == (size_t)n_tensors * 16;
}

gac_status gac_record_text(const json_t *record, char **text, char sum[17], gac_error *err)
{
    size_t n_bytes;
    gac_status status = gac_json_text(record, JSON_COMPACT, text, &n_bytes, err);
    if (status == GAC_OK)
        hex(gac_hash_bytes(*text, n_bytes), sum);
    return status;
}

/* Reading one back: it is as untrusted as any file. */

/* Returns an integer from minimum to 2^31 - 1, or -1. */
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
    int64_t n_parts = bounded(json_array_get(json, 4), 0);
    if (tensor < 0 || axis < 0 || axis >= gac_checkpoint_tensor(c, tensor)->n_axes || start < 0 ||
        n_slices < 0 || n_slices > MAX_SLICES || n_parts < 0 || n_parts > 2)
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

gac_status gac_history_create(const json_t *record, const json_t *first,
                              const gac_checkpoint *checkpoint, history *out, gac_error *err)
{
    const json_t *chain[MAX_CHAIN];
    int32_t n = 0;
    while (is_record(record) && n < MAX_CHAIN) {
        chain[n++] = record;
        record = record == first ? NULL : json_object_get(record, "before");
    }
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

/* Computes the original's shape: the present one minus what every repair added. */
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
        if (status == GAC_USAGE) /* the sizes come from the record, not from the caller */
            status = bad_record(checkpoint, "does not fit its tensors", err);
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

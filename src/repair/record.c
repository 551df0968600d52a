/* What was done to a checkpoint, kept in the metadata of its files: enough to
 * undo it from the result alone. */
#include <stdlib.h>
#include <string.h>

#include "repair/repair_internal.h"

#define SCHEMA "gac.record/1"

static gac_status bad_record(const gac_checkpoint *c, const char *what, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: its " GAC_RECORD_KEY " metadata %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(c)), what);
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
    const char *schema = json_string_value(json_object_get(*out, "schema"));
    bool good =
        schema && strcmp(schema, SCHEMA) == 0 && json_is_array(json_object_get(*out, "dims"));
    if (*out && !good) {
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

/* The original size of a dimension by a record, or -1. */
static int64_t original_size(const json_t *record, const char *name)
{
    size_t i;
    json_t *dim;
    json_array_foreach(json_object_get(record, "dims"), i, dim) {
        const char *own = json_string_value(json_object_get(dim, "name"));
        if (own && strcmp(own, name) == 0)
            return json_integer_value(json_object_get(dim, "from"));
    }
    return -1;
}

gac_status gac_record_sizes(const json_t *record, const gac_model *model, int64_t *sizes,
                            gac_error *err)
{
    size_t i;
    json_t *dim;
    const gac_checkpoint *c = gac_model_checkpoint(model);
    for (int32_t d = 0; d < gac_model_n_dims(model); d++)
        sizes[d] = gac_model_dim(model, d)->size;
    json_array_foreach(json_object_get(record, "dims"), i, dim) {
        const char *name = json_string_value(json_object_get(dim, "name"));
        json_int_t from = json_integer_value(json_object_get(dim, "from"));
        json_int_t to = json_integer_value(json_object_get(dim, "to"));
        int32_t d = name ? gac_model_find_dim(model, name) : -1;
        if (d < 0 || from < 0 || from > to || to != gac_model_dim(model, d)->size)
            return bad_record(c, "does not fit its tensors", err);
        sizes[d] = from;
    }
    return GAC_OK;
}

/* config.json to the byte, as a string; JSON null without one. */
static gac_status config_text(const gac_checkpoint *c, json_t **out, gac_error *err)
{
    gac_file *file;
    char *text;
    size_t n;
    *out = NULL;
    if (!gac_checkpoint_config(c) || !gac_checkpoint_is_directory(c)) {
        *out = json_null();
        return GAC_OK;
    }
    gac_status status = gac_file_open_inside(gac_checkpoint_path(c), "config.json", &file, err);
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

/* Dimensions whose size will differ from the original's, which for a model
 * repaired before is further back than its present size. */
static json_t *changed_dims(const gac_model *model, const int64_t *sizes, const json_t *before,
                            bool *rescaled)
{
    json_t *dims = json_array();
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        int64_t from = original_size(before, d->name);
        if (from < 0)
            from = d->size;
        if (from == sizes[i])
            continue;
        *rescaled = *rescaled || (sizes[i] != d->size && d->exactness == GAC_RESCALED);
        json_array_append_new(dims, json_pack("{s:s, s:I, s:I}", "name", d->name, "from",
                                              (json_int_t)from, "to", (json_int_t)sizes[i]));
    }
    return dims;
}

gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, json_t **out, gac_error *err)
{
    json_t *before = NULL, *config = NULL;
    bool rescaled = false;
    gac_status status = gac_record_find(checkpoint, &before, err);
    if (status != GAC_OK)
        return status;
    if (before)
        config = json_incref(json_object_get(before, "config"));
    else
        status = config_text(checkpoint, &config, err);
    json_t *dims = changed_dims(model, sizes, before, &rescaled);
    if (status == GAC_OK && before && (rescaled || gac_record_is_rescaled(before)))
        status = gac_error_set(err, GAC_USAGE,
                               "%s: repaired before, and rescaling is involved; undo that first",
                               gac_checkpoint_path(checkpoint));
    if (status == GAC_OK)
        *out = json_pack("{s:s, s:s, s:b, s:O, s:O}", "schema", SCHEMA, "version", GAC_VERSION,
                         "rescaled", rescaled, "dims", dims, "config", config);
    if (status == GAC_OK && !*out)
        status = gac_error_no_memory(err);
    json_decref(dims);
    json_decref(config);
    json_decref(before);
    return status;
}

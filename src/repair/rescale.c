/* Changes head and hidden sizes, which the runtime itself computes with. A
 * factor in the weights and a key in the config compensate for the zeros, up to
 * rounding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "repair/repair_internal.h"
#include <gac/model.h>

/* Finds a dimension of a role that changes; -1 if none does. It must have the
 * same size in every layer. */
static gac_status changed_dim(const gac_model *model, const int64_t *sizes, gac_role role,
                              int32_t *out, gac_error *err)
{
    *out = -1;
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->role == role && sizes[i] != d->size && *out < 0)
            *out = i;
    }
    for (int32_t i = 0; *out >= 0 && i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->role == role &&
            (sizes[i] != sizes[*out] || d->size != gac_model_dim(model, *out)->size))
            return gac_error_set(
                err, GAC_USAGE,
                "%s: the config states one rotation for all layers, so %s must be the same "
                "in all, before and after",
                d->name, gac_role_name(role));
    }
    return GAC_OK;
}

/* The rotary settings of the config. */
typedef struct rotary {
    double base;
    const char *type; /* default, linear or llama3 */
    const json_t *settings;
} rotary;

static gac_status read_rotary(const json_t *config, rotary *out, gac_error *err)
{
    char q[80], text[160];
    const char *key = gac_rotary_key(config);
    const json_t *settings = key ? json_object_get(config, key) : NULL;
    *out = (rotary){ .type = gac_rotary_type(config), .settings = settings };
    out->base =
        gac_json_number_or(settings, "rope_theta", gac_json_number_or(config, "rope_theta", 10000));
    if (!gac_rotary_can_restate(out->type))
        return gac_error_set(err, GAC_USAGE,
                             "rotary embedding of type \"%s\" cannot be stated for another head "
                             "size",
                             gac_quote(q, sizeof q, out->type));
    if (!gac_rotary_check(config, settings, out->type, text, sizeof text))
        return gac_error_set(err, GAC_BAD_INPUT, "config.json: %s", text);
    return GAC_OK;
}

/* States the frequencies of the old head size. Stock runtimes derive
 * frequencies from the head size. Only the type longrope also divides each by
 * its own factor. So factors that undo the larger head size keep the
 * frequencies. Pairs of zeros may have any frequency. */
static gac_status state_frequencies(json_t *config, int64_t from, int64_t to, gac_error *err)
{
    rotary r;
    gac_status status = read_rotary(config, &r, err);
    if (status != GAC_OK)
        return status;
    json_t *factors = json_array();
    bool sane = true;
    for (int64_t i = 0; i < to / 2; i++) {
        double plain = pow(r.base, -2.0 * (double)i / (double)to);
        double factor =
            i < from / 2 ? plain / gac_rotary_frequency(r.type, r.settings, r.base, i, from) : 1.0;
        sane = sane && isfinite(factor) && factor > 0;
        json_array_append_new(factors, json_real(sane ? factor : 1.0));
    }
    if (!sane) {
        json_decref(factors);
        return gac_error_set(err, GAC_BAD_INPUT,
                             "the config's rotary settings give no finite frequencies");
    }
    double length = gac_json_number_or(config, "max_position_embeddings", 2048);
    json_t *stated =
        json_pack("{s:s, s:f, s:O, s:O, s:f, s:f, s:I}", "rope_type", "longrope", "rope_theta",
                  r.base, "short_factor", factors, "long_factor", factors, "factor", 1.0,
                  "attention_factor", 1.0, "original_max_position_embeddings", (json_int_t)length);
    json_decref(factors);
    const char *key = gac_rotary_key(config);
    if (!key)
        key = "rope_scaling";
    if (strcmp(key, "rope_scaling") == 0)
        json_object_set_new(config, "rope_theta", json_real(r.base));
    return json_object_set_new(config, key, stated) == 0 ? GAC_OK : gac_error_no_memory(err);
}

static gac_status edit_hidden(const gac_dim *d, int64_t to, json_t *config, gac_error *err)
{
    double from = (double)d->size;
    json_t *heads = json_object_get(config, "num_attention_heads");
    if (!json_is_integer(json_object_get(config, "head_dim")) && json_integer_value(heads) > 0)
        json_object_set_new(config, "head_dim", json_integer(d->size / json_integer_value(heads)));
    json_object_set_new(
        config, "rms_norm_eps",
        json_real(gac_json_number_or(config, "rms_norm_eps", 1e-6) * from / (double)to));
    return json_object_set_new(config, "hidden_size", json_integer(to)) == 0
               ? GAC_OK
               : gac_error_no_memory(err);
}

gac_status gac_rescaled_config(const gac_model *model, const int64_t *sizes, json_t *config,
                               gac_error *err)
{
    int32_t head, hidden;
    gac_status status = changed_dim(model, sizes, GAC_ROLE_QK_HEAD, &head, err);
    if (status == GAC_OK)
        status = changed_dim(model, sizes, GAC_ROLE_HIDDEN, &hidden, err);
    if (status == GAC_OK && hidden >= 0)
        status = edit_hidden(gac_model_dim(model, hidden), sizes[hidden], config, err);
    if (status != GAC_OK || head < 0)
        return status;
    if (json_object_set_new(config, "head_dim", json_integer(sizes[head])) != 0)
        return gac_error_no_memory(err);
    return state_frequencies(config, gac_model_dim(model, head)->size, sizes[head], err);
}

/* Returns the factor of a place. Attention divides scores by the root of the
 * head size, so they need the root of the growth. Scores are products of q and
 * k, so each of them gets the fourth root. A norm averages over a larger hidden
 * size, so its weight gets the root of the inverse growth. */
static double place_factor(const gac_model *model, int32_t tensor, const place_entry *e, int64_t to)
{
    const gac_dim *d = gac_model_dim(model, e->dim);
    double ratio = (double)to / (double)e->size;
    if (d->role == GAC_ROLE_QK_HEAD)
        return pow(ratio, 0.25);
    for (int32_t p = 0; d->role == GAC_ROLE_HIDDEN && p < d->n_places; p++)
        if (d->places[p].tensor == tensor && d->places[p].norm)
            return sqrt(1 / ratio);
    return 1;
}

bool gac_scaling_of(const place_list *list, int32_t tensor, const int64_t *sizes,
                    tensor_scaling *out)
{
    out->n_ranges = 0;
    int64_t grown = 0;
    const gac_tensor *t = gac_checkpoint_tensor(list->checkpoint, tensor);
    /* Find the ranges in the target, in order of start. Places before a range
     * may have grown too. On such an axis only places of the head grow. */
    for (int pass = 0; pass < GAC_MAX_SCALED_RANGES; pass++) {
        int64_t best = INT64_MAX;
        const place_entry *place = NULL;
        for (int32_t r = list->first[tensor]; r >= 0; r = list->entries[r].next) {
            const place_entry *e = &list->entries[r];
            int64_t from = pass ? out->last_start : -1;
            if (e->axis == 0 && e->start > from && e->start < best && sizes[e->dim] != e->size) {
                best = e->start;
                place = e;
            }
        }
        if (!place)
            break;
        out->last_start = best;
        int64_t to = sizes[place->dim];
        double factor = place_factor(list->model, tensor, place, to);
        if (factor != 1)
            out->ranges[out->n_ranges++] =
                (scaled_range){ place->start + grown, place->n_slices * to, factor };
        grown += place->n_slices * (to - place->size);
    }
    out->dtype = t->dtype;
    return out->n_ranges > 0;
}

/* What a config states about the sizes of one layer. */
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

json_t *gac_config_layer(const json_t *config, int32_t layer)
{
    const char *number;
    json_t *own;
    json_object_foreach(json_object_get(config, "per_layer_config"), number, own) {
        char *end;
        long n = strtol(number, &end, 10);
        if (*number >= '0' && *number <= '9' && *end == '\0' && n == layer)
            return own;
    }
    return NULL;
}

static const json_t *block_config(const builder *b, int32_t layer, const char *key)
{
    const json_t *blocks = json_object_get(b->config, "block_configs");
    return json_object_get(json_array_get(blocks, (size_t)layer), key);
}

/* DeciLM states a width as a multiple of the hidden size, and rounds it so. */
static int64_t width_from_multiple(double multiple, int64_t hidden)
{
    double width = 2.0 * multiple * (double)hidden / 3.0;
    if (!(width >= 1 && width < INT32_MAX))
        return -1;
    int64_t n = (int64_t)width;
    return n % 256 ? n + 256 - n % 256 : n;
}

/* Returns the width that gac_modules states for a layer, or NULL. */
static const json_t *module_width(const builder *b, int32_t layer)
{
    char name[48];
    snprintf(name, sizeof name, "layers.%d.mlp.up_proj", layer);
    const json_t *module = json_object_get(json_object_get(b->config, "gac_modules"), name);
    const json_t *sizes = json_object_get(module, "linear");
    const json_t *width = json_array_get(sizes ? sizes : json_object_get(module, "factors"), 0);
    return json_is_integer(width) ? width : NULL;
}

gac_status declared_width(builder *b, int32_t layer, const char *key, int64_t *width, bool *chosen,
                          gac_error *err)
{
    const json_t *stated = json_object_get(b->config, key);
    const json_t *overrides = gac_config_layer(b->config, layer);
    const json_t *ffn = block_config(b, layer, "ffn");
    gac_status status = GAC_OK;
    *chosen = false;
    if (json_is_array(stated)) {
        const json_t *own = json_array_get(stated, (size_t)layer);
        if (json_is_integer(own))
            *width = json_integer_value(own);
    } else {
        status = config_size(b, b->config, key, width, err);
    }
    if (status == GAC_OK && json_object_get(overrides, key)) {
        status = config_size(b, overrides, key, width, err);
        *chosen = true;
    }
    if (status == GAC_OK && module_width(b, layer)) {
        *width = json_integer_value(module_width(b, layer));
        *chosen = true;
    }
    if (status == GAC_OK && ffn) {
        const json_t *multiple = json_object_get(ffn, "ffn_mult");
        *chosen = true;
        if (json_is_number(multiple) && b->hidden >= 0)
            *width = width_from_multiple(json_number_value(multiple), b->dims[b->hidden].dim.size);
        status = config_size(b, ffn, "intermediate_size", width, err);
    }
    return status;
}

static gac_status common_heads(builder *b, attention_spec *spec, gac_error *err)
{
    static const char *const n_heads[] = { "num_attention_heads", "n_head",          "n_heads",
                                           "num_heads",           "attention_heads", NULL };
    static const char *const n_kv_heads[] = { "num_key_value_heads", NULL };
    static const char *const sizes[] = { "head_dim", NULL };
    gac_status status = config_size_of(b, n_heads, &spec->n_heads, err);
    if (status == GAC_OK)
        status = config_size_of(b, n_kv_heads, &spec->n_kv_heads, err);
    return status == GAC_OK ? config_size_of(b, sizes, &spec->head_dim, err) : status;
}

gac_status declared_heads(builder *b, int32_t layer, attention_spec *spec, gac_error *err)
{
    static const char *const hidden_keys[] = { "hidden_size", "n_embd", "d_model", NULL };
    const json_t *overrides = gac_config_layer(b->config, layer);
    const json_t *attention = block_config(b, layer, "attention");
    int64_t hidden = -1, per_group = -1;
    gac_status status = config_size_of(b, hidden_keys, &hidden, err);
    if (status == GAC_OK)
        status = common_heads(b, spec, err);
    if (status == GAC_OK)
        status = config_size(b, overrides, "num_attention_heads", &spec->n_heads, err);
    if (status == GAC_OK)
        status = config_size(b, overrides, "num_key_value_heads", &spec->n_kv_heads, err);
    if (status == GAC_OK)
        status = config_size(b, overrides, "head_dim", &spec->head_dim, err);
    if (status == GAC_OK)
        status = config_size(b, attention, "n_heads_in_group", &per_group, err);
    if (status != GAC_OK)
        return status;
    if (per_group > 0 && spec->n_heads > 0) {
        if (spec->n_heads % per_group != 0)
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "%s: n_heads_in_group of layer %d does not divide %lld heads",
                                 b->config_path, layer, (long long)spec->n_heads);
        spec->n_kv_heads = spec->n_heads / per_group;
    }
    if (spec->n_kv_heads < 0)
        spec->n_kv_heads = spec->n_heads;
    if (b->hidden >= 0)
        hidden = b->dims[b->hidden].dim.size;
    int64_t derived = spec->n_heads > 0 && hidden > 0 ? hidden / spec->n_heads : -1;
    spec->head_dim_stated = spec->head_dim > 0 && spec->head_dim != derived;
    if (spec->head_dim < 0 || spec->head_is_fixed)
        spec->head_dim = derived;
    return GAC_OK;
}

/* Llama and the families with its layout: Mistral, Qwen2, Qwen3 and Gemma.
 * DeciLM is Llama with settings per layer. */
#include <string.h>

#include "model/model_internal.h"

/* Returns the layer's object in per_layer_config, or NULL. */
static const json_t *layer_overrides(const builder *b, int32_t layer)
{
    char key[16];
    snprintf(key, sizeof key, "%d", layer);
    return json_object_get(json_object_get(b->config, "per_layer_config"), key);
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

/* Finds the MLP width that the config states for a layer. *chosen: a per-layer
 * key states it. */
static gac_status declared_width(builder *b, int32_t layer, int64_t *width, bool *chosen,
                                 gac_error *err)
{
    const json_t *stated = json_object_get(b->config, "intermediate_size");
    const json_t *overrides = layer_overrides(b, layer);
    const json_t *ffn = block_config(b, layer, "ffn");
    gac_status status = GAC_OK;
    *chosen = false;
    if (json_is_array(stated)) {
        const json_t *own = json_array_get(stated, (size_t)layer);
        if (json_is_integer(own))
            *width = json_integer_value(own);
    } else {
        status = config_size(b, b->config, "intermediate_size", width, err);
    }
    if (status == GAC_OK && json_object_get(overrides, "intermediate_size")) {
        status = config_size(b, overrides, "intermediate_size", width, err);
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

static gac_status gated_mlp(builder *b, int32_t layer, const llama_options *options, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES], name[GAC_MAX_NAME_BYTES + 16];
    int64_t declared = -1;
    bool chosen;
    gac_status status = declared_width(b, layer, &declared, &chosen, err);
    if (status != GAC_OK)
        return status;
    snprintf(module, sizeof module, "%slayers.%d.mlp", b->prefix, layer);
    snprintf(name, sizeof name, "%s.width", module);
    mlp_spec spec = { .module = module,
                      .gate = options->gate,
                      .up = options->up,
                      .down = "down_proj",
                      .name = name,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = "intermediate_size",
                      .declared = declared,
                      .chosen = chosen,
                      .share = 1 };
    return block_mlp(b, &spec, err);
}

/* Finds the heads that the config states for a layer; -1 if it states none. */
static gac_status declared_heads(builder *b, int32_t layer, attention_spec *spec, gac_error *err)
{
    const json_t *overrides = layer_overrides(b, layer);
    const json_t *attention = block_config(b, layer, "attention");
    const json_t *sources[2] = { b->config, overrides };
    int64_t hidden = -1, per_group = -1;
    gac_status status = config_size(b, b->config, "hidden_size", &hidden, err);
    for (int i = 0; i < 2 && status == GAC_OK; i++) {
        status = config_size(b, sources[i], "num_attention_heads", &spec->n_heads, err);
        if (status == GAC_OK)
            status = config_size(b, sources[i], "num_key_value_heads", &spec->n_kv_heads, err);
        if (status == GAC_OK)
            status = config_size(b, sources[i], "head_dim", &spec->head_dim, err);
    }
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
    if (hidden < 0 && b->hidden >= 0)
        hidden = b->dims[b->hidden].dim.size;
    int64_t derived = spec->n_heads > 0 && hidden > 0 ? hidden / spec->n_heads : -1;
    spec->head_dim_stated = spec->head_dim > 0 && spec->head_dim != derived;
    if (spec->head_dim < 0)
        spec->head_dim = derived;
    return GAC_OK;
}

static gac_status layer_attention(builder *b, int32_t layer, const char *qkv, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    snprintf(module, sizeof module, "%slayers.%d.self_attn", b->prefix, layer);
    attention_spec spec = { .module = module,
                            .q = qkv ? qkv : "q_proj",
                            .k = qkv ? NULL : "k_proj",
                            .v = qkv ? NULL : "v_proj",
                            .o = "o_proj",
                            .n_heads = -1,
                            .n_kv_heads = -1,
                            .head_dim = -1,
                            .rotary = true };
    int32_t buffer = builder_find(b, "%s.rotary_emb.inv_freq", module);
    if (buffer >= 0)
        b->explained[buffer] = true;
    gac_status status = declared_heads(b, layer, &spec, err);
    return status == GAC_OK ? block_attention(b, &spec, err) : status;
}

/* Binds the square matrix by which DeciLM may replace a whole block. */
static gac_status stand_in(builder *b, const char *module, gac_error *err)
{
    linear l;
    if (builder_find(b, "%s.weight", module) < 0)
        return GAC_OK;
    gac_status status = linear_resolve(b, module, false, SIDE_IN, &l, err);
    if (status == GAC_OK)
        status = linear_bind_hidden(b, &l, SIDE_IN, err);
    if (status == GAC_OK)
        status = linear_bind_hidden(b, &l, SIDE_OUT, err);
    return status;
}

static gac_status one_layer(builder *b, int32_t layer, const llama_options *options, gac_error *err)
{
    static const char *const norms[] = { "input_layernorm", "post_attention_layernorm",
                                         "pre_feedforward_layernorm", "post_feedforward_layernorm",
                                         NULL };
    static const char *const stand_ins[] = { "self_attn.linear_attn", "mlp.linear_mlp", NULL };
    char module[GAC_MAX_NAME_BYTES];
    gac_status status = GAC_OK;
    b->layer = layer;
    for (int i = 0; norms[i] && status == GAC_OK; i++) {
        snprintf(module, sizeof module, "%slayers.%d.%s", b->prefix, layer, norms[i]);
        status = builder_bind_norm(b, module, err);
    }
    for (int i = 0; stand_ins[i] && status == GAC_OK; i++) {
        snprintf(module, sizeof module, "%slayers.%d.%s", b->prefix, layer, stand_ins[i]);
        status = stand_in(b, module, err);
    }
    if (status == GAC_OK)
        status = layer_attention(b, layer, options->qkv, err);
    if (status == GAC_OK)
        status = options->mlp ? options->mlp(b, layer, err) : gated_mlp(b, layer, options, err);
    b->layer = -1;
    return status;
}

/* Notes the biases that FLAP adds to compensate for removed channels; the
 * family itself has none. */
static gac_status note_added_biases(builder *b, gac_error *err)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_layers; i++) {
        n += builder_find(b, "%slayers.%d.self_attn.o_proj.bias", b->prefix, i) >= 0 &&
             !config_true(b, "attention_bias");
        n += builder_find(b, "%slayers.%d.mlp.down_proj.bias", b->prefix, i) >= 0 &&
             !config_true(b, "mlp_bias");
    }
    if (n == 0 || !b->config)
        return GAC_OK;
    b->found |= FOUND_PRUNED;
    return builder_note(b, err,
                        "%d o_proj and down_proj biases that the config does not state, as FLAP "
                        "adds: stock loaders drop them",
                        n);
}

gac_status llama_build(builder *b, const llama_options *options, gac_error *err)
{
    char embedding[GAC_MAX_NAME_BYTES], head[GAC_MAX_NAME_BYTES], norm[GAC_MAX_NAME_BYTES];
    size_t n = strlen(b->prefix), m = strlen("model.");
    bool stacked = strcmp(b->prefix, "model.") == 0 ||
                   (n > m && strcmp(b->prefix + n - m - 1, ".model.") == 0);
    snprintf(embedding, sizeof embedding, "%sembed_tokens", b->prefix);
    snprintf(norm, sizeof norm, "%snorm", b->prefix);
    snprintf(head, sizeof head, "%.*slm_head", stacked ? (int)(n - m) : 0, b->prefix);
    if (json_array_size(json_object_get(b->config, "block_configs")) > 0)
        b->found |= FOUND_BLOCK_CONFIGS;
    gac_status status = block_embedding(b, embedding, head, err);
    if (status == GAC_OK)
        status = builder_bind_norm(b, norm, err);
    int32_t buffer = builder_find(b, "%srotary_emb.inv_freq", b->prefix);
    if (buffer >= 0)
        b->explained[buffer] = true;
    for (int32_t i = 0; i < b->n_layers && status == GAC_OK; i++)
        status = one_layer(b, i, options, err);
    if (status == GAC_OK)
        status = note_added_biases(b, err);
    return status;
}

static gac_status build(builder *b, gac_error *err)
{
    static const llama_options options = { NULL, "gate_proj", "up_proj", NULL };
    return llama_build(b, &options, err);
}

static gac_status build_gemma(builder *b, gac_error *err)
{
    b->hidden_exactness = GAC_REFUSED;
    b->hidden_reason = "the embedding is multiplied by the root of the hidden size and shared "
                       "with the output";
    return build(b, err);
}

static const char *const llama_types[] = { "llama", "palullama", "deci", "nemotron-nas", NULL };
static const char *const mistral_types[] = { "mistral", "palumistral", NULL };
static const char *const qwen2_types[] = { "qwen2", "paluqwen2", NULL };
static const char *const qwen3_types[] = { "qwen3", NULL };
static const char *const gemma_types[] = { "gemma", "gemma2", "gemma3_text", NULL };

const family family_llama = { "llama", llama_types, "layers", "self_attn.q_", build };
const family family_mistral = { "mistral", mistral_types, "layers", NULL, build };
const family family_qwen2 = { "qwen2", qwen2_types, "layers", NULL, build };
const family family_qwen3 = { "qwen3", qwen3_types, "layers", NULL, build };
const family family_gemma = { "gemma", gemma_types, "layers", NULL, build_gemma };

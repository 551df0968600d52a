/* Builds the graph of a decoder that a table describes. */
#include <string.h>

#include "model/model_internal.h"

void layer_path(const builder *b, int32_t layer, const char *block, char *out, size_t size)
{
    snprintf(out, size, "%s%s.%d%s%s", b->prefix, b->layers, layer, *block ? "." : "", block);
}

static gac_status dense_mlp(builder *b, int32_t layer, const decoder *d, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES], name[GAC_MAX_NAME_BYTES + 16];
    int64_t declared = -1;
    bool chosen = false;
    bool stated = d->width_key && (!d->width_is_stated || d->width_is_stated(b));
    gac_status status = GAC_OK;
    if (stated)
        status = declared_width(b, layer, d->width_key, &declared, &chosen, err);
    if (status != GAC_OK)
        return status;
    layer_path(b, layer, d->mlp, module, sizeof module);
    snprintf(name, sizeof name, "%s%s.width", module, *d->mlp ? "" : ".mlp");
    mlp_spec spec = { .module = module,
                      .gate = d->gate,
                      .up = d->up,
                      .down = d->down,
                      .norm = d->mlp_norm,
                      .name = name,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = stated ? d->width_key : NULL,
                      .refused = stated && d->width_is_stated ? NULL : d->width_refused,
                      .declared = declared,
                      .chosen = chosen,
                      .share = 1 };
    return block_mlp(b, &spec, err);
}

static gac_status attention(builder *b, int32_t layer, const decoder *d, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    layer_path(b, layer, d->attention, module, sizeof module);
    attention_spec spec = { .module = module,
                            .q = d->q,
                            .k = d->k,
                            .v = d->v,
                            .o = d->o,
                            .layout = d->layout,
                            .o_norm = d->o_norm,
                            .n_heads = -1,
                            .n_kv_heads = -1,
                            .head_dim = -1,
                            .rotary = d->rotary,
                            .shares_kv = d->shares_kv,
                            .gated_queries = d->gated_queries,
                            .head_is_fixed = d->head_is_fixed,
                            .refused = d->heads_refused };
    gac_status status = declared_heads(b, layer, &spec, err);
    if (status == GAC_OK && d->heads)
        d->heads(b, &spec);
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

/* Explains the tensors of a layer that have no dimension. Buffers of a rotary
 * embedding are among them. */
static void explain_constants(builder *b, int32_t layer, const decoder *d)
{
    static const char *const buffers[] = { "rotary_emb.inv_freq", "bias", "masked_bias" };
    char path[GAC_MAX_NAME_BYTES];
    for (size_t i = 0; d->constants[i]; i++) {
        layer_path(b, layer, d->constants[i], path, sizeof path);
        int32_t tensor = builder_find(b, "%s", path);
        if (tensor >= 0)
            b->explained[tensor] = true;
    }
    layer_path(b, layer, d->attention, path, sizeof path);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        int32_t tensor = builder_find(b, "%s.%s", path, buffers[i]);
        if (tensor >= 0)
            b->explained[tensor] = true;
    }
}

/* Marks the tensors whose names start with path. */
static gac_status expect(builder *b, const char *path, gac_error *err)
{
    int32_t first, n;
    gac_status status = builder_find_prefix(b, path, &first, &n, err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        b->expected[b->sorted[first + i]] = true;
    return status;
}

/* Marks the layers behind the last one that transformers runs. They predict further tokens. */
static gac_status expect_predictors(builder *b, gac_error *err)
{
    char path[GAC_MAX_NAME_BYTES];
    int64_t n_run = -1, n_predict = -1;
    gac_status status = config_size(b, b->config, "num_hidden_layers", &n_run, err);
    if (status == GAC_OK &&
        json_integer_value(json_object_get(b->config, "num_nextn_predict_layers")))
        status = config_size(b, b->config, "num_nextn_predict_layers", &n_predict, err);
    if (n_run < 0 || n_predict < 0)
        return status;
    for (int64_t i = n_run; i < n_run + n_predict && i < b->n_layers && status == GAC_OK; i++) {
        layer_path(b, (int32_t)i, "", path, sizeof path);
        snprintf(path + strlen(path), sizeof path - strlen(path), ".");
        status = expect(b, path, err);
    }
    return status;
}

static gac_status expect_unread(builder *b, const decoder *d, gac_error *err)
{
    char path[GAC_MAX_NAME_BYTES];
    gac_status status = expect_predictors(b, err);
    for (int i = 0; d->unread_outside[i] && status == GAC_OK; i++) {
        snprintf(path, sizeof path, "%s%s", b->prefix, d->unread_outside[i]);
        status = expect(b, path, err);
    }
    for (int32_t layer = 0; layer < b->n_layers; layer++)
        for (int i = 0; d->unread[i] && status == GAC_OK; i++) {
            layer_path(b, layer, d->unread[i], path, sizeof path);
            status = expect(b, path, err);
        }
    return status;
}

static gac_status one_layer(builder *b, int32_t layer, const decoder *d, gac_error *err)
{
    static const char *const stand_ins[] = { "self_attn.linear_attn", "mlp.linear_mlp", NULL };
    char module[GAC_MAX_NAME_BYTES];
    gac_status status = GAC_OK;
    b->layer = layer;
    for (int i = 0; d->norms[i] && status == GAC_OK; i++) {
        layer_path(b, layer, d->norms[i], module, sizeof module);
        status = builder_bind_norm(b, module, err);
    }
    for (int i = 0; stand_ins[i] && status == GAC_OK; i++) {
        layer_path(b, layer, stand_ins[i], module, sizeof module);
        status = stand_in(b, module, err);
    }
    explain_constants(b, layer, d);
    if (status == GAC_OK)
        status = d->attend ? d->attend(b, layer, err) : attention(b, layer, d, err);
    if (status == GAC_OK)
        status = d->experts ? experts_build(b, layer, d, err) : dense_mlp(b, layer, d, err);
    b->layer = -1;
    return status;
}

/* Notes the biases that FLAP adds to compensate for removed channels; the
 * family itself has none. */
static gac_status note_added_biases(builder *b, const decoder *d, gac_error *err)
{
    int32_t n = 0;
    if (!b->config || strcmp(d->o, "o_proj") != 0 || !d->gate ||
        strcmp(d->down, "down_proj") != 0 || config_true(b, "use_bias"))
        return GAC_OK;
    for (int32_t i = 0; i < b->n_layers; i++) {
        n += builder_find(b, "%slayers.%d.self_attn.o_proj.bias", b->prefix, i) >= 0 &&
             !config_true(b, "attention_bias");
        n += builder_find(b, "%slayers.%d.mlp.down_proj.bias", b->prefix, i) >= 0 &&
             !config_true(b, "mlp_bias");
    }
    if (n == 0)
        return GAC_OK;
    b->found |= FOUND_PRUNED | FOUND_BIASES;
    return builder_note(b, err,
                        "%d o_proj and down_proj biases that the config does not state, as FLAP "
                        "adds: stock loaders drop them",
                        n);
}

/* Binds what is outside the layers. The head is beside the object that prefix
 * names, or below it if that is itself a part of another model. */
static gac_status outside(builder *b, const decoder *d, gac_error *err)
{
    char embedding[GAC_MAX_NAME_BYTES], head[GAC_MAX_NAME_BYTES], module[GAC_MAX_NAME_BYTES];
    size_t n = strlen(b->prefix), m = strlen("model.");
    bool stacked = strcmp(b->prefix, "model.") == 0 ||
                   (n > m && strcmp(b->prefix + n - m - 1, ".model.") == 0);
    snprintf(embedding, sizeof embedding, "%s%s", b->prefix, d->embedding);
    snprintf(head, sizeof head, "%.*s%s", stacked ? (int)(n - m) : 0, b->prefix, d->head);
    if (builder_find(b, "%s.weight", head) < 0 && builder_find(b, "lm_head.weight") >= 0)
        snprintf(head, sizeof head, "lm_head");
    gac_status status = block_embedding(b, embedding, head, err);
    if (d->positions && status == GAC_OK) {
        snprintf(module, sizeof module, "%s%s", b->prefix, d->positions);
        status = builder_bind_positions(b, module, err);
    }
    for (int i = 0; d->top_norms[i] && status == GAC_OK; i++) {
        snprintf(module, sizeof module, "%s%s", b->prefix, d->top_norms[i]);
        status = builder_bind_norm(b, module, err);
    }
    int32_t buffer = builder_find(b, "%srotary_emb.inv_freq", b->prefix);
    if (buffer >= 0)
        b->explained[buffer] = true;
    return status;
}

gac_status decoder_build(builder *b, const family *self, gac_error *err)
{
    const decoder *d = self->decoder;
    if (json_array_size(json_object_get(b->config, "block_configs")) > 0)
        b->found |= FOUND_BLOCK_CONFIGS;
    if (d->hidden_refused) {
        b->hidden_exactness = GAC_REFUSED;
        b->hidden_reason = d->hidden_refused;
    }
    gac_status status = outside(b, d, err);
    if (status == GAC_OK)
        status = expect_unread(b, d, err);
    for (int32_t i = 0; i < b->n_layers && status == GAC_OK; i++)
        status = one_layer(b, i, d, err);
    return status == GAC_OK ? note_added_biases(b, d, err) : status;
}

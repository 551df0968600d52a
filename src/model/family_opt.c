/* OPT: LayerNorm, ReLU, biases everywhere. The smallest models project between
 * the embedding size and the hidden size. */
#include "model/model_internal.h"

static gac_status attention(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    int64_t hidden = b->hidden >= 0 ? b->dims[b->hidden].dim.size : -1;
    snprintf(module, sizeof module, "%slayers.%d.self_attn", b->prefix, layer);
    attention_spec spec = { .module = module,
                            .q = "q_proj",
                            .k = "k_proj",
                            .v = "v_proj",
                            .o = "out_proj",
                            .n_heads = -1,
                            .n_kv_heads = -1,
                            .head_dim = -1,
                            .head_is_fixed = true };
    gac_status status = config_size(b, b->config, "num_attention_heads", &spec.n_heads, err);
    if (status == GAC_OK)
        status = config_size(b, b->config, "hidden_size", &hidden, err);
    if (status != GAC_OK)
        return status;
    spec.n_kv_heads = spec.n_heads;
    if (spec.n_heads > 0 && hidden > 0)
        spec.head_dim = hidden / spec.n_heads;
    return block_attention(b, &spec, err);
}

static gac_status mlp(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES], name[GAC_MAX_NAME_BYTES + 16];
    int64_t declared = -1;
    gac_status status = config_size(b, b->config, "ffn_dim", &declared, err);
    if (status != GAC_OK)
        return status;
    snprintf(module, sizeof module, "%slayers.%d", b->prefix, layer);
    snprintf(name, sizeof name, "%s.mlp.width", module);
    mlp_spec spec = { .module = module,
                      .up = "fc1",
                      .down = "fc2",
                      .name = name,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = "ffn_dim",
                      .declared = declared,
                      .share = 1 };
    return block_mlp(b, &spec, err);
}

static gac_status one_layer(builder *b, int32_t layer, gac_error *err)
{
    static const char *const norms[] = { "self_attn_layer_norm", "final_layer_norm" };
    char module[GAC_MAX_NAME_BYTES];
    gac_status status = GAC_OK;
    b->layer = layer;
    for (int i = 0; i < 2 && status == GAC_OK; i++) {
        snprintf(module, sizeof module, "%slayers.%d.%s", b->prefix, layer, norms[i]);
        status = builder_bind_norm(b, module, err);
    }
    if (status == GAC_OK)
        status = attention(b, layer, err);
    if (status == GAC_OK)
        status = mlp(b, layer, err);
    b->layer = -1;
    return status;
}

/* Binds a projection: [hidden, embed] for project_in, [embed, hidden] for
 * project_out. */
static gac_status project(builder *b, const char *name, side hidden_side, int32_t embed,
                          gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    linear l;
    snprintf(module, sizeof module, "%s%s", b->prefix, name);
    gac_status status = linear_resolve(b, module, false, hidden_side, &l, err);
    if (status != GAC_OK || !l.present)
        return status;
    side other = hidden_side == SIDE_IN ? SIDE_OUT : SIDE_IN;
    int64_t size = other == SIDE_IN ? l.n_in : l.n_out;
    if (size != b->dims[embed].dim.size)
        return builder_contradiction(b, linear_tensor(&l, other), "on its embedding side", size,
                                     b->dims[embed].first_tensor, "there", b->dims[embed].dim.size,
                                     err);
    status = linear_bind_hidden(b, &l, hidden_side, err);
    return status == GAC_OK ? linear_bind(b, &l, other, embed, 0, 1, GAC_REPEAT_WHOLE, err)
                            : status;
}

/* With projections, the embedding has its own size. The shared code binds it as
 * if it were hidden; then a new hidden dimension starts. */
static gac_status projected_embedding(builder *b, const char *embedding, gac_error *err)
{
    b->hidden_name = "word_embed";
    gac_status status = block_embedding(b, embedding, "lm_head", err);
    b->hidden_name = "hidden";
    int32_t embed = b->hidden;
    if (status != GAC_OK || embed < 0)
        return status;
    b->dims[embed].dim.reason = "the runtime reads it from word_embed_proj_dim and ties it to "
                                "the output";
    b->dims[embed].dim.config_key = "word_embed_proj_dim";
    b->hidden = -1;
    status = project(b, "project_in", SIDE_OUT, embed, err);
    return status == GAC_OK ? project(b, "project_out", SIDE_IN, embed, err) : status;
}

static gac_status build(builder *b, const family *self, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    (void)self;
    b->hidden_exactness = GAC_REFUSED;
    b->hidden_reason = "LayerNorm takes mean and variance over the hidden size";
    snprintf(module, sizeof module, "%sembed_tokens", b->prefix);
    gac_status status = builder_find(b, "%sproject_in.weight", b->prefix) >= 0
                            ? projected_embedding(b, module, err)
                            : block_embedding(b, module, "lm_head", err);
    snprintf(module, sizeof module, "%sembed_positions", b->prefix);
    if (status == GAC_OK)
        status = builder_bind_positions(b, module, err);
    snprintf(module, sizeof module, "%sfinal_layer_norm", b->prefix);
    if (status == GAC_OK)
        status = builder_bind_norm(b, module, err);
    for (int32_t i = 0; i < b->n_layers && status == GAC_OK; i++)
        status = one_layer(b, i, err);
    return status;
}

static const char *const types[] = { "opt", NULL };
const family family_opt = { "opt", types, "layers", "fc1", build, NULL };

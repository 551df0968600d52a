/* GPT-2: LayerNorm, weights stored [in, out] (Conv1D), and one tensor for q, k
 * and v. */
#include "model/model_internal.h"

static void explain_buffers(builder *b, int32_t layer)
{
    static const char *const names[] = { "bias", "masked_bias" };
    for (int i = 0; i < 2; i++) {
        int32_t tensor = builder_find(b, "%sh.%d.attn.%s", b->prefix, layer, names[i]);
        if (tensor >= 0)
            b->explained[tensor] = true;
    }
}

static gac_status attention(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    snprintf(module, sizeof module, "%sh.%d.attn", b->prefix, layer);
    attention_spec spec = { .module = module,
                            .q = "c_attn",
                            .o = "c_proj",
                            .n_heads = -1,
                            .n_kv_heads = -1,
                            .head_dim = -1,
                            .transposed = true,
                            .head_is_fixed = true };
    int64_t hidden = b->hidden >= 0 ? b->dims[b->hidden].dim.size : -1;
    gac_status status = config_size(b, b->config, "n_embd", &hidden, err);
    if (status == GAC_OK)
        status = config_size(b, b->config, "n_head", &spec.n_heads, err);
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
    gac_status status = config_size(b, b->config, "n_inner", &declared, err);
    if (status != GAC_OK)
        return status;
    if (declared < 0 && b->config && b->hidden >= 0)
        declared = 4 * b->dims[b->hidden].dim.size;
    snprintf(module, sizeof module, "%sh.%d.mlp", b->prefix, layer);
    snprintf(name, sizeof name, "%s.width", module);
    mlp_spec spec = { .module = module,
                      .up = "c_fc",
                      .down = "c_proj",
                      .name = name,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = "n_inner",
                      .declared = declared,
                      .transposed = true,
                      .share = 1 };
    return block_mlp(b, &spec, err);
}

static gac_status one_layer(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    gac_status status = GAC_OK;
    b->layer = layer;
    for (int i = 1; i <= 2 && status == GAC_OK; i++) {
        snprintf(module, sizeof module, "%sh.%d.ln_%d", b->prefix, layer, i);
        status = builder_bind_norm(b, module, err);
    }
    explain_buffers(b, layer);
    if (status == GAC_OK)
        status = attention(b, layer, err);
    if (status == GAC_OK)
        status = mlp(b, layer, err);
    b->layer = -1;
    return status;
}

static gac_status build(builder *b, const family *self, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    (void)self;
    b->hidden_exactness = GAC_REFUSED;
    b->hidden_reason = "LayerNorm takes mean and variance over the hidden size";
    snprintf(module, sizeof module, "%swte", b->prefix);
    gac_status status = block_embedding(b, module, "lm_head", err);
    snprintf(module, sizeof module, "%swpe", b->prefix);
    if (status == GAC_OK)
        status = builder_bind_positions(b, module, err);
    snprintf(module, sizeof module, "%sln_f", b->prefix);
    if (status == GAC_OK)
        status = builder_bind_norm(b, module, err);
    for (int32_t i = 0; i < b->n_layers && status == GAC_OK; i++)
        status = one_layer(b, i, err);
    return status;
}

static const char *const types[] = { "gpt2", NULL };
const family family_gpt2 = { "gpt2", types, "h", "attn.c_attn", build, NULL };

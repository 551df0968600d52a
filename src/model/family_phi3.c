/* Phi-3: Llama with q, k and v in one projection and gate and up in another. */
#include "model/model_internal.h"

static gac_status fused_mlp(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES], name[GAC_MAX_NAME_BYTES + 16];
    int64_t declared = -1;
    bool chosen;
    gac_status status = llama_declared_width(b, layer, &declared, &chosen, err);
    if (status != GAC_OK)
        return status;
    snprintf(module, sizeof module, "%slayers.%d.mlp", b->prefix, layer);
    snprintf(name, sizeof name, "%s.width", module);
    mlp_spec spec = { .module = module,
                      .gate = "gate_up_proj",
                      .down = "down_proj",
                      .name = name,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = "intermediate_size",
                      .declared = declared,
                      .chosen = chosen,
                      .share = 1 };
    return block_mlp(b, &spec, err);
}

static gac_status build(builder *b, gac_error *err)
{
    static const llama_options options = { "qkv_proj", fused_mlp };
    return llama_build(b, &options, err);
}

static const char *const types[] = { "phi3", NULL };
const family family_phi3 = { "phi3", types, "layers", "self_attn.qkv_proj", build };

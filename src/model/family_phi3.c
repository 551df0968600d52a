/* Phi-3: Llama with one projection for q, k and v, and one for gate and up. */
#include "model/model_internal.h"

static gac_status build(builder *b, gac_error *err)
{
    static const llama_options options = { "qkv_proj", "gate_up_proj", NULL, NULL };
    return llama_build(b, &options, err);
}

static const char *const types[] = { "phi3", NULL };
const family family_phi3 = { "phi3", types, "layers", "self_attn.qkv_proj", build };

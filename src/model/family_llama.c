/* Families with Llama's layout: a decoder with RMSNorm or LayerNorm, rotary
 * embedding and an MLP, one after the other or side by side. They differ in a
 * few names and in what may change. */
#include <string.h>

#include "model/model_internal.h"

#define NORMS "input_layernorm", "post_attention_layernorm"
#define FOUR_NORMS NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"
#define MODULES .embedding = "embed_tokens", .head = "lm_head", .attention = "self_attn"
#define QKVO .q = "q_proj", .k = "k_proj", .v = "v_proj", .o = "o_proj", .rotary = true
#define GATED .gate = "gate_proj", .up = "up_proj", .down = "down_proj"
#define UNGATED .up = "up_proj", .down = "down_proj"
#define MLP .mlp = "mlp", .width_key = "intermediate_size"

static const char layer_norm[] = "LayerNorm takes mean and variance over the hidden size";
static const char scaled_embedding[] = "the embedding is multiplied by the root of the hidden size "
                                       "and shared with the output";
static const char multipliers[] =
    "the config's multipliers were chosen for this hidden size, and gac does not restate them";
static const char untried_hidden[] =
    "gac has no rule by which this family computes the same with another hidden size";
static const char stated_scale[] = "the config states the softmax scale apart from the head size";
static const char neighbours[] =
    "the rotation pairs neighbours in a head, which gac cannot state for another head size";
static const char partial[] = "only a part of each head rotates, and its share is stated";
static const char own_rotation[] =
    "gac has no rule by which this family rotates heads of another size in the same way";

static const char *const llama_types[] = { "llama", "palullama", "deci", "nemotron-nas", NULL };
static const decoder llama = {
    MODULES, .top_norms = { "norm" }, .norms = { FOUR_NORMS }, QKVO, GATED, MLP
};
static const family family_llama = { "llama",        llama_types,   "layers",
                                     "self_attn.q_", decoder_build, &llama };

static const char *const mistral_types[] = { "mistral", "palumistral", NULL };
static const decoder mistral = { MODULES, .top_norms = { "norm" }, .norms = { NORMS }, QKVO, GATED,
                                 MLP };
static const family family_mistral = { "mistral", mistral_types, "layers",
                                       NULL,      decoder_build, &mistral };

static const char *const qwen2_types[] = { "qwen2", "paluqwen2", NULL };
static const decoder qwen2 = { MODULES, .top_norms = { "norm" }, .norms = { NORMS }, QKVO, GATED,
                               MLP };
static const family family_qwen2 = { "qwen2", qwen2_types, "layers", NULL, decoder_build, &qwen2 };

static const char *const qwen3_types[] = { "qwen3", NULL };
static const decoder qwen3 = { MODULES, .top_norms = { "norm" }, .norms = { NORMS }, QKVO, GATED,
                               MLP };
static const family family_qwen3 = { "qwen3", qwen3_types, "layers", NULL, decoder_build, &qwen3 };

/* Published configs of Gemma leave out what transformers has as a default. */
static void gemma_heads(builder *b, attention_spec *spec)
{
    const char *type = json_string_value(json_object_get(b->config, "model_type"));
    const bool first = type && strcmp(type, "gemma") == 0;
    if (!json_object_get(b->config, "num_attention_heads"))
        spec->n_heads = first ? 16 : 8;
    if (!json_object_get(b->config, "num_key_value_heads"))
        spec->n_kv_heads = first ? 16 : 4;
    if (!json_object_get(b->config, "head_dim"))
        spec->head_dim = 256;
}

static const char *const gemma_types[] = { "gemma", "gemma2", "gemma3_text", "vaultgemma", NULL };
static const decoder gemma = { MODULES,
                               .top_norms = { "norm" },
                               .norms = { FOUR_NORMS },
                               QKVO,
                               GATED,
                               MLP,
                               .hidden_refused = scaled_embedding,
                               .heads = gemma_heads };
static const family family_gemma = { "gemma", gemma_types, "layers", NULL, decoder_build, &gemma };

static const char *const phi3_types[] = { "phi3", NULL };
static const decoder phi3 = { MODULES,
                              .top_norms = { "norm" },
                              .norms = { NORMS },
                              .q = "qkv_proj",
                              .o = "o_proj",
                              .rotary = true,
                              .gate = "gate_up_proj",
                              .down = "down_proj",
                              MLP };
static const family family_phi3 = { "phi3",        phi3_types, "layers", "self_attn.qkv_proj",
                                    decoder_build, &phi3 };

static const char *const seed_oss_types[] = { "seed_oss", NULL };
static const decoder seed_oss = {
    MODULES, .top_norms = { "norm" },         .norms = { NORMS }, QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden
};
static const family family_seed_oss = { "seed-oss", seed_oss_types, "layers",
                                        NULL,       decoder_build,  &seed_oss };

static const char *const smollm3_types[] = { "smollm3", NULL };
static const decoder smollm3 = {
    MODULES, .top_norms = { "norm" },         .norms = { NORMS }, QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden
};
static const family family_smollm3 = { "smollm3", smollm3_types, "layers",
                                       NULL,      decoder_build, &smollm3 };

static const char *const ministral_types[] = { "ministral", "ministral3",  "cwm",
                                               "internlm3", "iquestcoder", NULL };
static const decoder ministral = {
    MODULES, .top_norms = { "norm" },          .norms = { NORMS },           QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden, .heads_refused = own_rotation
};
static const family family_ministral = { "ministral", ministral_types, "layers",
                                         NULL,        decoder_build,   &ministral };

/* Vision-language models; their rotation has parts for time, height and width. */
static const char *const qwen_vl_types[] = { "qwen2_vl",        "qwen2_vl_text", "qwen2_5_vl",
                                             "qwen2_5_vl_text", "qwen3_vl_text", NULL };
static const family family_qwen_vl = { "qwen-vl", qwen_vl_types, "layers",
                                       NULL,      decoder_build, &ministral };

static const char *const arcee_types[] = { "arcee", NULL };
static const decoder arcee = {
    MODULES, .top_norms = { "norm" },         .norms = { NORMS }, QKVO, UNGATED,
    MLP,     .hidden_refused = untried_hidden
};
static const family family_arcee = { "arcee", arcee_types, "layers", NULL, decoder_build, &arcee };

static const char *const granite_types[] = { "granite", "hyperclovax", "granite_swa", NULL };
static const decoder granite = { MODULES,
                                 .constants = { "self_attn.sinks" },
                                 .top_norms = { "norm" },
                                 .norms = { NORMS, "post_norm1", "post_norm2" },
                                 QKVO,
                                 GATED,
                                 MLP,
                                 .hidden_refused = multipliers,
                                 .heads_refused = stated_scale };
static const family family_granite = { "granite", granite_types, "layers",
                                       NULL,      decoder_build, &granite };

static const char *const helium_types[] = { "helium", NULL };
static const decoder helium = {
    MODULES, .top_norms = { "norm" },          .norms = { NORMS },         QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden, .heads_refused = neighbours
};
static const family family_helium = {
    "helium", helium_types, "layers", NULL, decoder_build, &helium
};

static const char *const ernie4_5_types[] = { "ernie4_5", NULL };
static const decoder ernie4_5 = {
    MODULES, .top_norms = { "norm" },          .norms = { NORMS },         QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden, .heads_refused = neighbours
};
static const family family_ernie4_5 = { "ernie4.5", ernie4_5_types, "layers",
                                        NULL,       decoder_build,  &ernie4_5 };

static const char *const hunyuan_types[] = { "hunyuan_v1_dense", NULL };
static const decoder hunyuan = {
    MODULES, .top_norms = { "norm" },          .norms = { NORMS },           QKVO, GATED,
    MLP,     .hidden_refused = untried_hidden, .heads_refused = own_rotation
};
static const family family_hunyuan = { "hunyuan", hunyuan_types, "layers",
                                       NULL,      decoder_build, &hunyuan };

static const char *const exaone4_types[] = { "exaone4", NULL };
static const decoder exaone4 = { MODULES,
                                 .top_norms = { "norm" },
                                 .norms = { "post_attention_layernorm",
                                            "post_feedforward_layernorm" },
                                 QKVO,
                                 GATED,
                                 MLP,
                                 .hidden_refused = untried_hidden,
                                 .heads_refused = own_rotation };
static const family family_exaone4 = { "exaone4", exaone4_types, "layers",
                                       NULL,      decoder_build, &exaone4 };

static const char *const cohere_types[] = { "cohere", "cohere2", NULL };
static const decoder cohere = {
    MODULES, .top_norms = { "norm" },      .norms = { "input_layernorm" }, QKVO, GATED,
    MLP,     .hidden_refused = layer_norm, .heads_refused = neighbours
};
static const family family_cohere = {
    "cohere", cohere_types, "layers", NULL, decoder_build, &cohere
};

static const char *const olmo_types[] = { "olmo", NULL };
static const decoder olmo = {
    MODULES, .top_norms = { "norm" },      .norms = { NORMS },           QKVO, GATED,
    MLP,     .hidden_refused = layer_norm, .heads_refused = own_rotation
};
static const family family_olmo = { "olmo", olmo_types, "layers", NULL, decoder_build, &olmo };

static const char *const olmo2_types[] = { "olmo2", "olmo3", NULL };
static const decoder olmo2 = { MODULES,
                               .top_norms = { "norm" },
                               .norms = { "post_attention_layernorm",
                                          "post_feedforward_layernorm" },
                               QKVO,
                               GATED,
                               MLP,
                               .hidden_refused = untried_hidden,
                               .heads_refused = own_rotation };
static const family family_olmo2 = { "olmo2", olmo2_types, "layers", NULL, decoder_build, &olmo2 };

static const char *const stablelm_types[] = { "stablelm", NULL };
static const decoder stablelm = { MODULES,
                                  .top_norms = { "norm" },
                                  .norms = { NORMS },
                                  QKVO,
                                  GATED,
                                  MLP,
                                  .head_is_fixed = true,
                                  .hidden_refused = layer_norm,
                                  .heads_refused = partial };
static const family family_stablelm = { "stablelm", stablelm_types, "layers",
                                        NULL,       decoder_build,  &stablelm };

static const char *const nemotron_types[] = { "nemotron", NULL };
static const decoder nemotron = {
    MODULES, .top_norms = { "norm" },      .norms = { NORMS },      QKVO, UNGATED,
    MLP,     .hidden_refused = layer_norm, .heads_refused = partial
};
static const family family_nemotron = { "nemotron", nemotron_types, "layers",
                                        NULL,       decoder_build,  &nemotron };

static const char *const jais2_types[] = { "jais2", NULL };
static const decoder jais2 = {
    MODULES, .top_norms = { "norm" },      .norms = { NORMS },           QKVO, UNGATED,
    MLP,     .hidden_refused = layer_norm, .heads_refused = own_rotation
};
static const family family_jais2 = { "jais2", jais2_types, "layers", NULL, decoder_build, &jais2 };

static const char *const nanochat_types[] = { "nanochat", NULL };
static const decoder nanochat = { MODULES,
                                  .top_norms = { "norm" },
                                  .norms = { NORMS },
                                  QKVO,
                                  .up = "fc1",
                                  .down = "fc2",
                                  MLP,
                                  .hidden_refused = untried_hidden,
                                  .heads_refused = own_rotation };
static const family family_nanochat = { "nanochat", nanochat_types, "layers",
                                        NULL,       decoder_build,  &nanochat };

static const char *const apertus_types[] = { "apertus", NULL };
static const decoder apertus = { MODULES,
                                 .top_norms = { "norm" },
                                 .norms = { "attention_layernorm", "feedforward_layernorm" },
                                 QKVO,
                                 UNGATED,
                                 MLP,
                                 .constants = { "mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n",
                                                "mlp.act_fn.beta", "mlp.act_fn.eps" },
                                 .hidden_refused = untried_hidden,
                                 .heads_refused = own_rotation };
static const family family_apertus = { "apertus", apertus_types, "layers",
                                       NULL,      decoder_build, &apertus };

static const char *const glm_types[] = { "glm", "glm4", "glm4v", "glm4v_text", NULL };
static const decoder glm = { MODULES,
                             .top_norms = { "norm" },
                             .norms = { NORMS, "post_self_attn_layernorm", "post_mlp_layernorm" },
                             QKVO,
                             .gate = "gate_up_proj",
                             .down = "down_proj",
                             MLP,
                             .hidden_refused = untried_hidden,
                             .heads_refused = neighbours };
static const family family_glm = { "glm", glm_types, "layers", NULL, decoder_build, &glm };

/* A part of attention, by which it chooses what to see, is not understood. */
static const char *const doge_types[] = { "doge", NULL };
static const decoder doge = { MODULES,
                              .unread = { "self_attn.dt_proj.", "input_residual",
                                          "post_attention_residual" },
                              .top_norms = { "norm" },
                              .norms = { NORMS },
                              QKVO,
                              GATED,
                              MLP,
                              .constants = { "self_attn.A" },
                              .hidden_refused = untried_hidden,
                              .heads_refused = own_rotation };
static const family family_doge = { "doge", doge_types, "layers", NULL, decoder_build, &doge };

static const char *const bitnet_types[] = { "bitnet", NULL };
static const decoder bitnet = { MODULES,
                                .top_norms = { "norm" },
                                .norms = { NORMS },
                                QKVO,
                                GATED,
                                MLP,
                                .mlp_norm = "ffn_sub_norm",
                                .o_norm = "attn_sub_norm",
                                .hidden_refused = untried_hidden,
                                .heads_refused = own_rotation };
static const family family_bitnet = { "bitnet",      bitnet_types,
                                      "layers",      "self_attn.attn_sub_norm",
                                      decoder_build, &bitnet };

static const char *const diffllama_types[] = { "diffllama", NULL };
static const decoder diffllama = { MODULES,
                                   .top_norms = { "norm" },
                                   .norms = { NORMS },
                                   QKVO,
                                   GATED,
                                   MLP,
                                   .constants = { "self_attn.lambda_q1", "self_attn.lambda_k1",
                                                  "self_attn.lambda_q2", "self_attn.lambda_k2" },
                                   .hidden_refused = untried_hidden,
                                   .heads_refused = own_rotation };
static const family family_diffllama = { "diffllama", diffllama_types, "layers",
                                         NULL,        decoder_build,   &diffllama };

static const char *const starcoder2_types[] = { "starcoder2", NULL };
static const decoder starcoder2 = { MODULES,
                                    .top_norms = { "norm" },
                                    .norms = { NORMS },
                                    QKVO,
                                    .up = "c_fc",
                                    .down = "c_proj",
                                    MLP,
                                    .hidden_refused = layer_norm,
                                    .heads_refused = own_rotation };
static const family family_starcoder2 = { "starcoder2", starcoder2_types, "layers",
                                          NULL,         decoder_build,    &starcoder2 };

static const char *const phi_types[] = { "phi", NULL };
static const decoder phi = { MODULES,
                             .top_norms = { "final_layernorm" },
                             .norms = { "input_layernorm" },
                             .q = "q_proj",
                             .k = "k_proj",
                             .v = "v_proj",
                             .o = "dense",
                             .rotary = true,
                             .up = "fc1",
                             .down = "fc2",
                             MLP,
                             .hidden_refused = layer_norm,
                             .heads_refused = partial };
static const family family_phi = { "phi",         phi_types, "layers", "self_attn.dense",
                                   decoder_build, &phi };

static const char *const persimmon_types[] = { "persimmon", NULL };
static const decoder persimmon = { MODULES,
                                   .top_norms = { "final_layernorm" },
                                   .norms = { NORMS },
                                   .q = "query_key_value",
                                   .layout = QKV_BY_GROUP,
                                   .o = "dense",
                                   .rotary = true,
                                   .head_is_fixed = true,
                                   .up = "dense_h_to_4h",
                                   .down = "dense_4h_to_h",
                                   MLP,
                                   .hidden_refused = layer_norm,
                                   .heads_refused = partial };
static const family family_persimmon = { "persimmon", persimmon_types, "layers",
                                         NULL,        decoder_build,   &persimmon };

static const char *const minicpm3_types[] = { "minicpm3", "youtu", NULL };
static const decoder minicpm3 = { MODULES,
                                  .top_norms = { "norm" },
                                  .norms = { NORMS },
                                  QKVO,
                                  GATED,
                                  MLP,
                                  .attend = latent_attention,
                                  .hidden_refused = untried_hidden };
static const family family_minicpm3 = { "minicpm3", minicpm3_types, "layers",
                                        NULL,       decoder_build,  &minicpm3 };

const family *const families_llama[] = { &family_llama,     &family_mistral,    &family_qwen2,
                                         &family_qwen3,     &family_gemma,      &family_phi3,
                                         &family_seed_oss,  &family_smollm3,    &family_ministral,
                                         &family_qwen_vl,   &family_arcee,      &family_granite,
                                         &family_helium,    &family_ernie4_5,   &family_hunyuan,
                                         &family_exaone4,   &family_cohere,     &family_olmo,
                                         &family_olmo2,     &family_stablelm,   &family_nemotron,
                                         &family_jais2,     &family_nanochat,   &family_apertus,
                                         &family_glm,       &family_bitnet,     &family_diffllama,
                                         &family_doge,      &family_starcoder2, &family_phi,
                                         &family_persimmon, &family_minicpm3,   NULL };

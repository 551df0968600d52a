/* Families with experts. Around them they have Llama's layout. */
#include "model/model_internal.h"

#define NORMS "input_layernorm", "post_attention_layernorm"
#define MODULES .embedding = "embed_tokens", .head = "lm_head", .attention = "self_attn"
#define QKVO .q = "q_proj", .k = "k_proj", .v = "v_proj", .o = "o_proj", .rotary = true
#define DENSE .mlp = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"
#define EXPERT .gate = "gate_proj", .up = "up_proj", .down = "down_proj"
#define ALL .all_in = "gate_up_proj", .all_out = "down_proj"

static const char layer_norm[] = "LayerNorm takes mean and variance over the hidden size";
static const char untried_hidden[] =
    "gac has no rule by which this family computes the same with another hidden size";
static const char multipliers[] =
    "the config's multipliers were chosen for this hidden size, and gac does not restate them";
static const char stated_scale[] = "the config states the softmax scale apart from the head size";
static const char own_rotation[] =
    "gac has no rule by which this family rotates heads of another size in the same way";

/* Mixtral and Phi-3.5-MoE. */

static const expert_names mixtral_experts = { .block = "block_sparse_moe",
                                              .router = "gate",
                                              .list = "experts",
                                              .gate = "w1",
                                              .up = "w3",
                                              .down = "w2",
                                              ALL,
                                              .key = "intermediate_size" };
static const decoder mixtral = { MODULES,      .top_norms = { "norm" },    .norms = { NORMS }, QKVO,
                                 .mlp = "mlp", .experts = &mixtral_experts };
static const char *const mixtral_types[] = { "mixtral", NULL };
static const family family_mixtral = { "mixtral",           mixtral_types, "layers",
                                       "block_sparse_moe.", decoder_build, &mixtral };

static const decoder phimoe = { MODULES,
                                .top_norms = { "norm" },
                                .norms = { NORMS },
                                QKVO,
                                .mlp = "mlp",
                                .hidden_refused = layer_norm,
                                .heads_refused = own_rotation,
                                .experts = &mixtral_experts };
static const char *const phimoe_types[] = { "phimoe", NULL };
static const family family_phimoe = {
    "phimoe", phimoe_types, "layers", NULL, decoder_build, &phimoe
};

static const decoder minimax_m2 = { MODULES,
                                    .top_norms = { "norm" },
                                    .norms = { NORMS },
                                    .constants = { "block_sparse_moe.e_score_correction_bias" },
                                    QKVO,
                                    .mlp = "mlp",
                                    .hidden_refused = untried_hidden,
                                    .heads_refused = own_rotation,
                                    .experts = &mixtral_experts };
static const char *const minimax_m2_types[] = { "minimax_m2", NULL };
static const family family_minimax_m2 = { "minimax-m2", minimax_m2_types, "layers",
                                          NULL,         decoder_build,    &minimax_m2 };

/* Qwen-MoE and OLMoE. */

static const expert_names qwen_experts = { .block = "mlp",
                                           .router = "gate",
                                           .list = "experts",
                                           EXPERT,
                                           ALL,
                                           .key = "moe_intermediate_size",
                                           .shared = "shared_expert",
                                           .shared_key = "shared_expert_intermediate_size",
                                           .dense_key = "intermediate_size" };
static const decoder qwen_moe = { MODULES, .top_norms = { "norm" }, .norms = { NORMS }, QKVO,
                                  DENSE,   .experts = &qwen_experts };
static const char *const qwen_types[] = { "qwen3_moe", "qwen2_moe", "mellum", "qwen3_vl_moe_text",
                                          NULL };
static const family family_qwen3_moe = { "qwen3-moe",    qwen_types,    "layers",
                                         "mlp.experts.", decoder_build, &qwen_moe };

static const expert_names olmoe_experts = {
    .block = "mlp", .router = "gate", .list = "experts", EXPERT, ALL, .key = "intermediate_size"
};
static const decoder olmoe = { MODULES,
                               .top_norms = { "norm" },
                               .norms = { NORMS, "post_feedforward_layernorm" },
                               QKVO,
                               .mlp = "mlp",
                               .hidden_refused = untried_hidden,
                               .heads_refused = own_rotation,
                               .experts = &olmoe_experts };
static const char *const olmoe_types[] = { "olmoe", "flex_olmo", NULL };
static const family family_olmoe = { "olmoe", olmoe_types, "layers", NULL, decoder_build, &olmoe };

/* DeepSeek and those with its experts. */

static const expert_names deepseek_experts = { .block = "mlp",
                                               .router = "gate",
                                               .list = "experts",
                                               EXPERT,
                                               ALL,
                                               .key = "moe_intermediate_size",
                                               .shared = "shared_experts",
                                               .n_shared_key = "n_shared_experts",
                                               .dense_key = "intermediate_size" };
static const decoder deepseek = { MODULES,
                                  .unread = { "self_attn.indexer." },
                                  .top_norms = { "norm" },
                                  .norms = { NORMS, "post_mlp_layernorm" },
                                  QKVO,
                                  DENSE,
                                  .hidden_refused = untried_hidden,
                                  .attend = latent_attention,
                                  .experts = &deepseek_experts };
static const char *const deepseek_types[] = { "deepseek_v2", "deepseek_v3", "deepseek_v32",
                                              "glm_moe_dsa", "axk1",        "glm4_moe_lite",
                                              "kimi_k2",     NULL };
static const family family_deepseek = { "deepseek",    deepseek_types,
                                        "layers",      "self_attn.kv_a_proj_with_mqa",
                                        decoder_build, &deepseek };

static const decoder glm4_moe = { MODULES,
                                  .top_norms = { "norm" },
                                  .norms = { NORMS },
                                  QKVO,
                                  DENSE,
                                  .hidden_refused = untried_hidden,
                                  .heads_refused = own_rotation,
                                  .experts = &deepseek_experts };
static const char *const glm4_moe_types[] = { "glm4_moe", "glm4v_moe_text", "dots1", "solar_open",
                                              NULL };
static const family family_glm4_moe = { "glm4-moe", glm4_moe_types, "layers",
                                        NULL,       decoder_build,  &glm4_moe };

static const expert_names exaone_experts = { .block = "mlp",
                                             .router = "gate",
                                             .list = "experts",
                                             EXPERT,
                                             ALL,
                                             .key = "moe_intermediate_size",
                                             .shared = "shared_experts",
                                             .n_shared_key = "num_shared_experts",
                                             .dense_key = "intermediate_size" };
static const decoder exaone_moe = { MODULES,
                                    .top_norms = { "norm" },
                                    .norms = { NORMS },
                                    .constants = { "mlp.e_score_correction_bias" },
                                    QKVO,
                                    DENSE,
                                    .hidden_refused = untried_hidden,
                                    .heads_refused = own_rotation,
                                    .experts = &exaone_experts };
static const char *const exaone_moe_types[] = { "exaone_moe", NULL };
static const family family_exaone_moe = { "exaone-moe", exaone_moe_types, "layers",
                                          NULL,         decoder_build,    &exaone_moe };

static const expert_names ernie_experts = { .block = "mlp",
                                            .router = "gate",
                                            .list = "experts",
                                            EXPERT,
                                            ALL,
                                            .key = "moe_intermediate_size",
                                            .shared = "shared_experts",
                                            .n_shared_key = "moe_num_shared_experts",
                                            .dense_key = "intermediate_size" };
static const decoder ernie_moe = { MODULES,
                                   .top_norms = { "norm" },
                                   .norms = { NORMS },
                                   .constants = { "mlp.moe_statics.e_score_correction_bias" },
                                   QKVO,
                                   DENSE,
                                   .hidden_refused = untried_hidden,
                                   .heads_refused = own_rotation,
                                   .experts = &ernie_experts };
static const char *const ernie_moe_types[] = { "ernie4_5_moe", NULL };
static const family family_ernie_moe = { "ernie4.5-moe", ernie_moe_types, "layers",
                                         NULL,           decoder_build,   &ernie_moe };

static const expert_names hunyuan_experts = { .block = "mlp",
                                              .router = "gate.wg",
                                              .list = "experts",
                                              EXPERT,
                                              ALL,
                                              .key = "intermediate_size",
                                              .shared = "shared_mlp",
                                              .shared_key = "intermediate_size" };
static const decoder hunyuan_moe = { MODULES,
                                     .top_norms = { "norm" },
                                     .norms = { NORMS },
                                     QKVO,
                                     .mlp = "mlp",
                                     .hidden_refused = untried_hidden,
                                     .heads_refused = own_rotation,
                                     .experts = &hunyuan_experts };
static const char *const hunyuan_moe_types[] = { "hunyuan_v1_moe", NULL };
static const family family_hunyuan_moe = { "hunyuan-moe", hunyuan_moe_types, "layers",
                                           NULL,          decoder_build,     &hunyuan_moe };

/* Hunyuan 3, Trinity, Laguna and Command with experts. */

static const expert_names hy_v3_experts = { .block = "mlp",
                                            .router = "router.gate",
                                            .list = "experts",
                                            EXPERT,
                                            ALL,
                                            .key = "moe_intermediate_size",
                                            .shared = "shared_mlp",
                                            .n_shared_key = "num_shared_experts",
                                            .dense_key = "intermediate_size" };
static const decoder hy_v3 = { MODULES,
                               .top_norms = { "norm" },
                               .norms = { NORMS },
                               .constants = { "mlp.expert_bias" },
                               QKVO,
                               DENSE,
                               .hidden_refused = untried_hidden,
                               .heads_refused = own_rotation,
                               .experts = &hy_v3_experts };
static const char *const hy_v3_types[] = { "hy_v3", NULL };
static const family family_hy_v3 = {
    "hunyuan-3", hy_v3_types, "layers", NULL, decoder_build, &hy_v3
};

/* A gate over the outputs of attention is not understood in the next two. */
static const expert_names afmoe_experts = { .block = "mlp",
                                            .router = "router.gate",
                                            .list = "experts",
                                            EXPERT,
                                            ALL,
                                            .key = "moe_intermediate_size",
                                            .shared = "shared_experts",
                                            .n_shared_key = "num_shared_experts",
                                            .dense_key = "intermediate_size" };
static const decoder afmoe = { MODULES,
                               .unread = { "self_attn.gate_proj." },
                               .top_norms = { "norm" },
                               .norms = { NORMS, "pre_mlp_layernorm", "post_mlp_layernorm" },
                               .constants = { "mlp.expert_bias" },
                               QKVO,
                               DENSE,
                               .hidden_refused = untried_hidden,
                               .heads_refused = own_rotation,
                               .experts = &afmoe_experts };
static const char *const afmoe_types[] = { "afmoe", NULL };
static const family family_afmoe = { "afmoe", afmoe_types, "layers", NULL, decoder_build, &afmoe };

static const decoder laguna = { MODULES,
                                .unread = { "self_attn.g_proj." },
                                .top_norms = { "norm" },
                                .norms = { NORMS },
                                .constants = { "mlp.experts.e_score_correction_bias" },
                                QKVO,
                                DENSE,
                                .hidden_refused = untried_hidden,
                                .heads_refused = own_rotation,
                                .experts = &qwen_experts };
static const char *const laguna_types[] = { "laguna", NULL };
static const family family_laguna = {
    "laguna", laguna_types, "layers", NULL, decoder_build, &laguna
};

static const expert_names cohere_experts = { .block = "mlp",
                                             .router = "gate",
                                             .list = "experts",
                                             EXPERT,
                                             ALL,
                                             .key = "intermediate_size",
                                             .shared = "shared_experts",
                                             .n_shared_key = "num_shared_experts",
                                             .dense_key = "prefix_dense_intermediate_size" };
static const decoder cohere_moe = { MODULES,
                                    .top_norms = { "norm" },
                                    .norms = { "input_layernorm" },
                                    QKVO,
                                    DENSE,
                                    .hidden_refused = layer_norm,
                                    .heads_refused = own_rotation,
                                    .experts = &cohere_experts };
static const char *const cohere_moe_types[] = { "cohere2_moe", NULL };
static const family family_cohere_moe = { "cohere-moe", cohere_moe_types, "layers",
                                          NULL,         decoder_build,    &cohere_moe };

/* One tensor for all experts. */

/* The width of an expert is intermediate_size. Gate and up alternate. */
static const expert_names gpt_oss_experts = { .block = "mlp",
                                              .router = "router",
                                              .list = "experts",
                                              ALL,
                                              .input_first = true,
                                              .interleaved = true,
                                              .key = "intermediate_size" };
static const decoder gpt_oss = { MODULES,
                                 .top_norms = { "norm" },
                                 .norms = { NORMS },
                                 .constants = { "self_attn.sinks" },
                                 QKVO,
                                 .mlp = "mlp",
                                 .hidden_refused = untried_hidden,
                                 .heads_refused = own_rotation,
                                 .experts = &gpt_oss_experts };
static const char *const gpt_oss_types[] = { "gpt_oss", NULL };
static const family family_gpt_oss = { "gpt-oss",         gpt_oss_types, "layers",
                                       "self_attn.sinks", decoder_build, &gpt_oss };

/* The shared expert and the routed ones have one key for their widths. */
static const expert_names llama4_experts = { .block = "feed_forward",
                                             .router = "router",
                                             .list = "experts",
                                             .gate = "gate_proj",
                                             .up = "up_proj",
                                             .down = "down_proj",
                                             ALL,
                                             .input_first = true,
                                             .key = "intermediate_size",
                                             .shared = "shared_expert",
                                             .shared_key = "intermediate_size",
                                             .dense_key = "intermediate_size_mlp" };
static const decoder llama4 = { MODULES,
                                .top_norms = { "norm" },
                                .norms = { NORMS },
                                QKVO,
                                .mlp = "feed_forward",
                                .gate = "gate_proj",
                                .up = "up_proj",
                                .down = "down_proj",
                                .hidden_refused = untried_hidden,
                                .heads_refused = own_rotation,
                                .experts = &llama4_experts };
static const char *const llama4_types[] = { "llama4", "llama4_text", NULL };
static const family family_llama4 = { "llama4",        llama4_types,  "layers",
                                      "feed_forward.", decoder_build, &llama4 };

static const expert_names granite_experts = { .block = "block_sparse_moe",
                                              .router = "router.layer",
                                              .list = "",
                                              .all_in = "input_linear.weight",
                                              .all_out = "output_linear.weight",
                                              .key = "intermediate_size",
                                              .shared = "shared_mlp",
                                              .shared_in_layer = true,
                                              .shared_in = "input_linear",
                                              .shared_out = "output_linear",
                                              .shared_key = "shared_intermediate_size" };
static const decoder granite_moe = { MODULES,
                                     .top_norms = { "norm" },
                                     .norms = { NORMS },
                                     QKVO,
                                     .mlp = "mlp",
                                     .hidden_refused = multipliers,
                                     .heads_refused = stated_scale,
                                     .experts = &granite_experts };
static const char *const granite_moe_types[] = { "granitemoe", "granitemoeshared", NULL };
static const family family_granite_moe = { "granite-moe", granite_moe_types,
                                           "layers",      "block_sparse_moe.input_linear",
                                           decoder_build, &granite_moe };

static const expert_names granite_swa_experts = { .block = "block_sparse_moe",
                                                  .router = "router",
                                                  .list = "experts",
                                                  ALL,
                                                  .key = "intermediate_size",
                                                  .shared = "shared_mlp",
                                                  .shared_in_layer = true,
                                                  .shared_in = "input_linear",
                                                  .shared_out = "output_linear",
                                                  .shared_key = "shared_intermediate_size" };
static const decoder granite_moe_swa = { MODULES,
                                         .top_norms = { "norm" },
                                         .norms = { NORMS },
                                         .constants = { "self_attn.sinks" },
                                         QKVO,
                                         .mlp = "mlp",
                                         .hidden_refused = multipliers,
                                         .heads_refused = stated_scale,
                                         .experts = &granite_swa_experts };
static const char *const granite_moe_swa_types[] = { "granitemoe_swa", NULL };
static const family family_granite_moe_swa = { "granite-moe-swa", granite_moe_swa_types,
                                               "layers",          NULL,
                                               decoder_build,     &granite_moe_swa };

/* Gemma 4 may have experts beside the MLP of each layer, which all tokens take. */
static const expert_names gemma4_experts = { .block = "",
                                             .router = "router.proj",
                                             .list = "experts",
                                             EXPERT,
                                             ALL,
                                             .key = "moe_intermediate_size",
                                             .shared = "mlp",
                                             .shared_in_layer = true,
                                             .shared_key = "intermediate_size",
                                             .shared_may_double = true };
static const decoder gemma4 = {
    MODULES,
    .shares_kv = true,
    .unread = { "per_layer_input_gate.", "per_layer_projection.", "self_attn.q_norm." },
    .unread_outside = { "embed_tokens_per_layer.", "per_layer_model_projection.",
                        "per_layer_projection_norm." },
    .top_norms = { "norm" },
    .norms = { NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm",
               "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
               "pre_feedforward_layernorm_2", "post_per_layer_input_norm" },
    .constants = { "layer_scalar", "router.scale", "router.per_expert_scale" },
    QKVO,
    .mlp = "mlp",
    .hidden_refused = "the embedding is multiplied by the root of the hidden size and shared with "
                      "the output",
    .heads_refused = own_rotation,
    .experts = &gemma4_experts
};
static const char *const gemma4_types[] = { "gemma4", "gemma4_text", NULL };
static const family family_gemma4 = {
    "gemma4", gemma4_types, "layers", NULL, decoder_build, &gemma4
};

const family *const families_experts[] = {
    &family_hy_v3,           &family_afmoe,      &family_laguna,      &family_cohere_moe,
    &family_granite_moe_swa, &family_gemma4,     &family_granite_moe, &family_mixtral,
    &family_phimoe,          &family_minimax_m2, &family_deepseek,    &family_gpt_oss,
    &family_llama4,          &family_qwen3_moe,  &family_olmoe,       &family_glm4_moe,
    &family_exaone_moe,      &family_ernie_moe,  &family_hunyuan_moe, NULL
};

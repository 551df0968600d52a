/* Families of which some layers, or a block beside attention, are no attention:
 * state-space layers, linear attention, convolutions. gac does not know what
 * these compute, so their tensors are not understood. The MLPs and experts of
 * these families are as elsewhere, and only those can change. */
#include "model/model_internal.h"

#define NORMS "input_layernorm", "post_attention_layernorm"
#define JAMBA_NORMS "input_layernorm", "pre_ff_layernorm"
#define QKV .q = "q_proj", .k = "k_proj", .v = "v_proj", .rotary = true
#define GATED .gate = "gate_proj", .up = "up_proj", .down = "down_proj"
#define W123 .gate = "w1", .up = "w3", .down = "w2"
#define ALL .all_in = "gate_up_proj", .all_out = "down_proj"
#define FIXED .hidden_refused = hidden_reason, .heads_refused = heads_reason
#define COMMON \
    .embedding = "embed_tokens", .head = "lm_head", .attention = "self_attn", QKV, .o = "o_proj", \
    FIXED

static const char hidden_reason[] = "some layers of this family are not understood, and they see "
                                    "the hidden size";
static const char heads_reason[] =
    "gac has no rule by which this family rotates heads of another size in the same way";
static const char adjusted[] =
    "the runtime makes the MLP width from intermediate_size, unless block_auto_adjust_ff_dim is "
    "false";

/* Qwen3-Next, Qwen3.5 and OLMo-Hybrid. */

static const expert_names qwen_experts = { .block = "mlp",
                                           .router = "gate",
                                           .list = "experts",
                                           GATED,
                                           ALL,
                                           .key = "moe_intermediate_size",
                                           .shared = "shared_expert",
                                           .shared_key = "shared_expert_intermediate_size",
                                           .dense_key = "intermediate_size" };
static const decoder qwen_next = { COMMON,
                                   .gated_queries = true,
                                   .unread = { "linear_attn." },
                                   .top_norms = { "norm" },
                                   .norms = { NORMS },
                                   .mlp = "mlp",
                                   GATED,
                                   .experts = &qwen_experts };
static const char *const qwen_next_types[] = { "qwen3_next",  "qwen3_5",          "qwen3_5_text",
                                               "qwen3_5_moe", "qwen3_5_moe_text", NULL };
static const family family_qwen_next = { "qwen3-next", qwen_next_types, "layers",
                                         NULL,         decoder_build,   &qwen_next };

static const decoder olmo_hybrid = { COMMON,
                                     .unread = { "linear_attn." },
                                     .top_norms = { "norm" },
                                     .norms = { "attention_layer_norm", "feedforward_layer_norm",
                                                "post_attention_layernorm",
                                                "post_feedforward_layernorm" },
                                     .mlp = "mlp",
                                     GATED,
                                     .width_key = "intermediate_size" };
static const char *const olmo_hybrid_types[] = { "olmo_hybrid", NULL };
static const family family_olmo_hybrid = { "olmo-hybrid", olmo_hybrid_types, "layers",
                                           NULL,          decoder_build,     &olmo_hybrid };

/* Granite 4, Jamba, Bamba and Falcon-H1. */

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
static const decoder granite_hybrid = {
    COMMON,       .unread = { "mamba." },     .top_norms = { "norm" }, .norms = { NORMS },
    .mlp = "mlp", .experts = &granite_experts
};
static const char *const granite_hybrid_types[] = { "granitemoehybrid", NULL };
static const family family_granite_hybrid = { "granite-hybrid", granite_hybrid_types,
                                              "layers",         NULL,
                                              decoder_build,    &granite_hybrid };

/* The experts and the MLPs of the other layers have one key for their widths. */
static const expert_names jamba_experts = { .block = "feed_forward",
                                            .router = "router",
                                            .list = "experts",
                                            GATED,
                                            ALL,
                                            .key = "intermediate_size",
                                            .dense_key = "intermediate_size" };
static const decoder jamba = { COMMON,
                               .unread = { "mamba." },
                               .top_norms = { "final_layernorm" },
                               .norms = { JAMBA_NORMS },
                               .mlp = "feed_forward",
                               GATED,
                               .experts = &jamba_experts };
static const char *const jamba_types[] = { "jamba", NULL };
static const family family_jamba = { "jamba", jamba_types, "layers", NULL, decoder_build, &jamba };

static const decoder bamba = { COMMON,
                               .unread = { "mamba." },
                               .top_norms = { "final_layernorm" },
                               .norms = { JAMBA_NORMS },
                               .mlp = "feed_forward",
                               GATED,
                               .width_key = "intermediate_size" };
static const char *const bamba_types[] = { "bamba", "falcon_h1", NULL };
static const family family_bamba = { "bamba", bamba_types, "layers", NULL, decoder_build, &bamba };

/* Nemotron-H: one block in each layer. */

static const expert_names nemotron_experts = {
    .block = "mixer",
    .router = "gate",
    .list = "experts",
    .up = "up_proj",
    .down = "down_proj",
    ALL,
    .key = "moe_intermediate_size",
    .shared = "shared_experts",
    .shared_key = "moe_shared_expert_intermediate_size",
    .dense_key = "intermediate_size",
};
static const decoder nemotron_h = { .embedding = "embeddings",
                                    .head = "lm_head",
                                    .unread = { "mixer.A_log", "mixer.D", "mixer.conv1d.",
                                                "mixer.dt_bias", "mixer.in_proj.", "mixer.norm.",
                                                "mixer.out_proj." },
                                    .top_norms = { "norm_f" },
                                    .norms = { "norm" },
                                    .attention = "mixer",
                                    QKV,
                                    .o = "o_proj",
                                    FIXED,
                                    .mlp = "mixer",
                                    .up = "up_proj",
                                    .down = "down_proj",
                                    .experts = &nemotron_experts };
static const char *const nemotron_h_types[] = { "nemotron_h", NULL };
static const family family_nemotron_h = { "nemotron-h", nemotron_h_types, "layers",
                                          NULL,         decoder_build,    &nemotron_h };

/* LFM2. */

#define LFM2 \
    .embedding = "embed_tokens", .head = "lm_head", .top_norms = { "embedding_norm" }, \
    .norms = { "operator_norm", "ffn_norm" }, .attention = "self_attn", QKV, .o = "out_proj", \
    FIXED, .mlp = "feed_forward", W123

/* A width that the config does not state cannot change. */
static bool lfm2_width_is_stated(const builder *b)
{
    return json_is_false(json_object_get(b->config, "block_auto_adjust_ff_dim"));
}

static const decoder lfm2 = { LFM2, .unread = { "conv." }, .width_key = "intermediate_size",
                              .width_is_stated = lfm2_width_is_stated, .width_refused = adjusted };
static const char *const lfm2_types[] = { "lfm2", NULL };
static const family family_lfm2 = { "lfm2", lfm2_types, "layers", NULL, decoder_build, &lfm2 };

static const expert_names lfm2_experts = { .block = "feed_forward",
                                           .router = "gate",
                                           .list = "experts",
                                           W123,
                                           ALL,
                                           .key = "moe_intermediate_size",
                                           .dense_key = "intermediate_size" };
static const decoder lfm2_moe = { LFM2, .unread = { "conv." },
                                  .constants = { "feed_forward.expert_bias" },
                                  .experts = &lfm2_experts };
static const char *const lfm2_moe_types[] = { "lfm2_moe", NULL };
static const family family_lfm2_moe = { "lfm2-moe", lfm2_moe_types, "layers",
                                        NULL,       decoder_build,  &lfm2_moe };

/* MiniMax-Text-01. */

static const expert_names minimax_experts = { .block = "block_sparse_moe",
                                              .router = "gate",
                                              .list = "experts",
                                              W123,
                                              ALL,
                                              .key = "intermediate_size" };
static const decoder minimax = { COMMON,
                                 .unread = { "self_attn.qkv_proj.", "self_attn.out_proj.",
                                             "self_attn.output_gate.", "self_attn.norm.",
                                             "self_attn.slope_rate", "self_attn.query_decay",
                                             "self_attn.key_decay", "self_attn.diagonal_decay" },
                                 .top_norms = { "norm" },
                                 .norms = { NORMS },
                                 .mlp = "mlp",
                                 .experts = &minimax_experts };
static const char *const minimax_types[] = { "minimax", NULL };
static const family family_minimax = { "minimax", minimax_types, "layers",
                                       NULL,      decoder_build, &minimax };

const family *const families_hybrid[] = {
    &family_qwen_next,  &family_olmo_hybrid, &family_granite_hybrid, &family_jamba,   &family_bamba,
    &family_nemotron_h, &family_lfm2,        &family_lfm2_moe,       &family_minimax, NULL
};

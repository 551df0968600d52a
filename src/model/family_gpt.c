/* Families with the names of the GPTs: LayerNorm and an MLP without a gate. */
#include "model/model_internal.h"

static const char layer_norm[] = "LayerNorm takes mean and variance over the hidden size";
static const char four_times[] = "the runtime takes 4 times the hidden size as the MLP width";

/* GPT-NeoX and Pythia. */

static const decoder gpt_neox = { .embedding = "embed_in",
                                  .head = "embed_out",
                                  .top_norms = { "final_layer_norm" },
                                  .norms = { "input_layernorm", "post_attention_layernorm" },
                                  .attention = "attention",
                                  .q = "query_key_value",
                                  .o = "dense",
                                  .layout = QKV_BY_GROUP,
                                  .head_is_fixed = true,
                                  .mlp = "mlp",
                                  .up = "dense_h_to_4h",
                                  .down = "dense_4h_to_h",
                                  .width_key = "intermediate_size",
                                  .hidden_refused = layer_norm };
static const char *const gpt_neox_types[] = { "gpt_neox", NULL };
static const family family_gpt_neox = { "gpt-neox",    gpt_neox_types,
                                        "layers",      "attention.query_key_value",
                                        decoder_build, &gpt_neox };

/* GPT-J and GPT-Neo. */

static const decoder gptj = { .embedding = "wte",
                              .head = "lm_head",
                              .top_norms = { "ln_f" },
                              .norms = { "ln_1" },
                              .constants = { "attn.embed_positions" },
                              .attention = "attn",
                              .q = "q_proj",
                              .k = "k_proj",
                              .v = "v_proj",
                              .o = "out_proj",
                              .head_is_fixed = true,
                              .mlp = "mlp",
                              .up = "fc_in",
                              .down = "fc_out",
                              .width_key = "n_inner",
                              .hidden_refused = layer_norm };
static const char *const gptj_types[] = { "gptj", NULL };
static const family family_gptj = { "gptj", gptj_types, "h", "mlp.fc_in", decoder_build, &gptj };

/* CodeGen has q, v and k in each of four parts of qkv_proj; its heads cannot change. */
static const decoder codegen = { .embedding = "wte",
                                 .head = "lm_head",
                                 .top_norms = { "ln_f" },
                                 .norms = { "ln_1" },
                                 .attention = "attn",
                                 .q = "qkv_proj",
                                 .o = "out_proj",
                                 .head_is_fixed = true,
                                 .mlp = "mlp",
                                 .up = "fc_in",
                                 .down = "fc_out",
                                 .width_key = "n_inner",
                                 .hidden_refused = layer_norm };
static const char *const codegen_types[] = { "codegen", NULL };
static const family family_codegen = { "codegen",       codegen_types, "h",
                                       "attn.qkv_proj", decoder_build, &codegen };

static const decoder gpt_neo = { .embedding = "wte",
                                 .positions = "wpe",
                                 .head = "lm_head",
                                 .top_norms = { "ln_f" },
                                 .norms = { "ln_1", "ln_2" },
                                 .attention = "attn.attention",
                                 .q = "q_proj",
                                 .k = "k_proj",
                                 .v = "v_proj",
                                 .o = "out_proj",
                                 .head_is_fixed = true,
                                 .mlp = "mlp",
                                 .up = "c_fc",
                                 .down = "c_proj",
                                 .width_key = "intermediate_size",
                                 .hidden_refused = layer_norm };
static const char *const gpt_neo_types[] = { "gpt_neo", NULL };
static const family family_gpt_neo = { "gpt-neo",         gpt_neo_types, "h",
                                       "attn.attention.", decoder_build, &gpt_neo };

/* StarCoder: one k and v head, or as many as q heads. */

static void bigcode_heads(builder *b, attention_spec *spec)
{
    const json_t *several = json_object_get(b->config, "multi_query");
    spec->layout = json_is_false(several) ? QKV_BY_GROUP : QKV_CONCATENATED;
    if (!json_is_false(several))
        spec->n_kv_heads = 1;
}

static const decoder bigcode = { .embedding = "wte",
                                 .positions = "wpe",
                                 .head = "lm_head",
                                 .top_norms = { "ln_f" },
                                 .norms = { "ln_1", "ln_2" },
                                 .attention = "attn",
                                 .q = "c_attn",
                                 .o = "c_proj",
                                 .head_is_fixed = true,
                                 .heads = bigcode_heads,
                                 .mlp = "mlp",
                                 .up = "c_fc",
                                 .down = "c_proj",
                                 .width_key = "n_inner",
                                 .hidden_refused = layer_norm };
static const char *const bigcode_types[] = { "gpt_bigcode", NULL };
static const family family_bigcode = { "gpt-bigcode", bigcode_types, "h",
                                       NULL,          decoder_build, &bigcode };

/* Falcon and BLOOM. */

static void falcon_heads(builder *b, attention_spec *spec)
{
    const json_t *n_kv = json_object_get(b->config, "num_kv_heads");
    const json_t *several = json_object_get(b->config, "multi_query");
    spec->layout = QKV_BY_GROUP;
    if (config_true(b, "new_decoder_architecture")) {
        bool stated = json_is_integer(n_kv) && json_integer_value(n_kv) > 0 &&
                      json_integer_value(n_kv) <= INT32_MAX;
        spec->n_kv_heads = stated ? json_integer_value(n_kv) : spec->n_heads;
    } else if (several && !json_is_false(several)) {
        spec->layout = QKV_CONCATENATED;
        spec->n_kv_heads = 1;
    }
}

#define BLOOM_NAMES \
    .embedding = "word_embeddings", .head = "lm_head", .attention = "self_attention", \
    .q = "query_key_value", .o = "dense", .layout = QKV_BY_GROUP, .head_is_fixed = true, \
    .mlp = "mlp", .up = "dense_h_to_4h", .down = "dense_4h_to_h", .hidden_refused = layer_norm, \
    .norms = { "input_layernorm", "post_attention_layernorm", "ln_attn", "ln_mlp" }

static const decoder falcon = { BLOOM_NAMES, .top_norms = { "ln_f" }, .heads = falcon_heads,
                                .width_key = "ffn_hidden_size" };
static const char *const falcon_types[] = { "falcon", NULL };
static const family family_falcon = { "falcon", falcon_types, "h", NULL, decoder_build, &falcon };

static const decoder bloom = { BLOOM_NAMES, .top_norms = { "word_embeddings_layernorm", "ln_f" },
                               .width_refused = four_times };
static const char *const bloom_types[] = { "bloom", NULL };
static const family family_bloom = { "bloom",       bloom_types,
                                     "h",           "self_attention.query_key_value",
                                     decoder_build, &bloom };

/* MPT. */

static const decoder mpt = { .embedding = "wte",
                             .head = "lm_head",
                             .top_norms = { "norm_f" },
                             .norms = { "norm_1", "norm_2" },
                             .attention = "attn",
                             .q = "Wqkv",
                             .o = "out_proj",
                             .head_is_fixed = true,
                             .mlp = "ffn",
                             .up = "up_proj",
                             .down = "down_proj",
                             .width_refused = four_times,
                             .hidden_refused = layer_norm };
static const char *const mpt_types[] = { "mpt", NULL };
static const family family_mpt = { "mpt", mpt_types, "blocks", "attn.Wqkv", decoder_build, &mpt };

/* XGLM and BioGPT. */

#define XGLM_NAMES \
    .embedding = "embed_tokens", .positions = "embed_positions", .top_norms = { "layer_norm" }, \
    .norms = { "self_attn_layer_norm", "final_layer_norm" }, .attention = "self_attn", \
    .q = "q_proj", .k = "k_proj", .v = "v_proj", .o = "out_proj", .head_is_fixed = true, \
    .mlp = "", .up = "fc1", .down = "fc2", .hidden_refused = layer_norm

static const decoder xglm = { XGLM_NAMES, .head = "lm_head", .width_key = "ffn_dim" };
static const char *const xglm_types[] = { "xglm", NULL };
static const family family_xglm = { "xglm", xglm_types, "layers", NULL, decoder_build, &xglm };

static const decoder biogpt = { XGLM_NAMES, .head = "output_projection",
                                .width_key = "intermediate_size" };
static const char *const biogpt_types[] = { "biogpt", NULL };
static const family family_biogpt = {
    "biogpt", biogpt_types, "layers", NULL, decoder_build, &biogpt
};

const family *const families_gpt[] = { &family_gpt_neox,
                                       &family_codegen,
                                       &family_gptj,
                                       &family_gpt_neo,
                                       &family_bigcode,
                                       &family_bloom,
                                       &family_falcon,
                                       &family_mpt,
                                       &family_xglm,
                                       &family_biogpt,
                                       NULL };

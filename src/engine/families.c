/* The families that the engine runs: how each differs from Llama, and what config.json says
 * of it. A setting that would be computed otherwise is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "engine/net.h"

/* Reads a config. Once status is not GAC_OK, readers return the default. */
typedef struct reading {
    net *net;
    net_variations *varies; /* of net */
    gac_status status;
    gac_error *err;
} reading;

static bool fail(reading *r, const char *key, const char *what)
{
    if (r->status == GAC_OK)
        r->status = gac_net_refuse(r->net, r->err, "config.json: %s %s", key, what);
    return false;
}

static double number(reading *r, const char *key, double otherwise)
{
    const json_t *value = gac_net_stated(r->net, key);
    double x = value ? json_number_value(value) : otherwise;
    if (value && (!json_is_number(value) || !isfinite(x)))
        fail(r, key, "is not a number");
    return x;
}

/* A number above 0. It may be absent. */
static double positive(reading *r, const char *key, double otherwise)
{
    double x = number(r, key, otherwise);
    if (gac_net_stated(r->net, key) && !(x > 0))
        fail(r, key, "is not a positive number");
    return x;
}

/* Returns the length under key, or otherwise, also if it is refused. */
static int64_t length(reading *r, const char *key, int64_t otherwise)
{
    const json_t *value = gac_net_stated(r->net, key);
    int64_t n = value ? json_integer_value(value) : otherwise; /* 0 if it is not an integer */
    if (value && (n < 1 || n > INT32_MAX)) {
        fail(r, key, "is not a length");
        return otherwise;
    }
    return n;
}

static bool flag(reading *r, const char *key, bool otherwise)
{
    const json_t *value = gac_net_stated(r->net, key);
    if (value && !json_is_boolean(value))
        fail(r, key, "is neither true nor false");
    return value ? json_is_true(value) : otherwise;
}

/* A setting that the engine computes with one value only. */
static void only(reading *r, const char *key, bool otherwise, bool wanted)
{
    if (flag(r, key, otherwise) != wanted)
        fail(r, key,
             wanted ? "is false, which is not supported" : "is true, which is not supported");
}

/* A factor, or 0 where it is 1. The engine has no factor 0. */
static double factor(reading *r, const char *key, double otherwise)
{
    double x = number(r, key, otherwise);
    if (x == 0)
        fail(r, key, "is 0, which is not supported");
    return x == 1 ? 0 : x;
}

/* A bound. null means none. */
static double cap(reading *r, const char *key, double otherwise)
{
    return json_is_null(json_object_get(r->net->config, key)) ? 0 : positive(r, key, otherwise);
}

/* Reads the window of the layers that have one. null means none. */
static void window(reading *r, int64_t otherwise)
{
    const json_t *value = json_object_get(r->net->config, "sliding_window");
    r->varies->window = json_is_null(value) ? 0 : length(r, "sliding_window", otherwise);
}

/* Finds the activation under key. */
static void activation(reading *r, const char *key, const char *otherwise)
{
    static const struct {
        const char *name;
        gac_activation is;
    } known[] = { { "silu", GAC_ACTIVATION_SILU },
                  { "swish", GAC_ACTIVATION_SILU },
                  { "gelu", GAC_ACTIVATION_GELU },
                  { "gelu_new", GAC_ACTIVATION_GELU_TANH },
                  { "gelu_fast", GAC_ACTIVATION_GELU_TANH },
                  { "gelu_pytorch_tanh", GAC_ACTIVATION_GELU_TANH },
                  { "relu", GAC_ACTIVATION_RELU } };
    char q[80];
    const json_t *value = gac_net_stated(r->net, key);
    const char *name = value ? json_string_value(value) : otherwise;
    if (!name) {
        fail(r, key, "is not a string");
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            r->varies->activation = known[i].is;
            return;
        }
    if (r->status == GAC_OK)
        r->status = gac_net_refuse(r->net, r->err,
                                   "config.json: %s \"%s\" is not supported; silu, gelu, "
                                   "gelu_new, gelu_pytorch_tanh and relu are",
                                   key, gac_quote(q, sizeof q, name));
}

static void eps(reading *r, const char *key, double otherwise)
{
    const json_t *value = gac_net_stated(r->net, key);
    r->net->eps = !value ? otherwise : json_is_number(value) ? json_number_value(value) : -1;
    if (!(r->net->eps >= 0 && r->net->eps < 1))
        fail(r, key, "is not a small number");
}

static const net_names llama_names = {
    .layer = "layers",
    .embedding = "embed_tokens",
    .norm = "norm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .attention_norm = "input_layernorm",
    .mlp_norm = "post_attention_layernorm",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
};

/* Sets what Llama's relatives share. */
static void as_llama(reading *r)
{
    r->varies->names = llama_names;
    r->varies->rope_base = 10000;
    r->varies->partial_default = 1;
    r->varies->untied_if_unstated = true;
    eps(r, "rms_norm_eps", 1e-6);
}

static void llama(reading *r)
{
    as_llama(r);
    activation(r, "hidden_act", "silu");
}

/* A mistral config without the key means a window of 4096. */
static void mistral(reading *r)
{
    llama(r);
    window(r, 4096);
}

static void qwen2(reading *r)
{
    llama(r);
    if (flag(r, "use_sliding_window", false))
        window(r, 4096);
}

static void qwen3(reading *r)
{
    qwen2(r);
    r->varies->head_norm = HEAD_NORM_SHARED;
}

static void gemma(reading *r)
{
    as_llama(r);
    r->varies->untied_if_unstated = false;
    r->varies->norm_offset = 1;
    r->varies->embedding_scale = sqrt((double)r->net->hidden);
    activation(r, "hidden_activation", "gelu_pytorch_tanh");
    only(r, "use_bidirectional_attention", false, false);
}

/* Gemma's first models state hidden_act "gelu", and mean its approximation. */
static void gemma1(reading *r)
{
    gemma(r);
    if (r->varies->activation != GAC_ACTIVATION_GELU_TANH)
        fail(r, "hidden_activation", "is not gelu_pytorch_tanh, which is not supported");
    activation(r, "hidden_act", "gelu_pytorch_tanh");
    if (r->varies->activation == GAC_ACTIVATION_GELU)
        r->varies->activation = GAC_ACTIVATION_GELU_TANH;
}

/* What Gemma 2 and 3 share. */
static void gemma_of_windows(reading *r)
{
    net_names *names = &r->varies->names;
    gemma(r);
    window(r, 4096);
    if (r->varies->window == 0)
        fail(r, "sliding_window", "is null, which is not supported");
    r->varies->softmax_scale = 1 / sqrt(positive(r, "query_pre_attn_scalar", 256));
    names->attention_out_norm = "post_attention_layernorm";
    names->mlp_norm = "pre_feedforward_layernorm";
    names->mlp_out_norm = "post_feedforward_layernorm";
}

static void gemma2(reading *r)
{
    gemma_of_windows(r);
    r->varies->score_cap = cap(r, "attn_logit_softcapping", 50);
    r->varies->logit_cap = cap(r, "final_logit_softcapping", 30);
}

static void gemma3(reading *r)
{
    gemma_of_windows(r);
    r->varies->head_norm = HEAD_NORM_SHARED;
    r->varies->two_ropes = true;
    r->varies->rope_base = 1000000;
    r->varies->local_rope_base = 10000;
    r->varies->score_cap = cap(r, "attn_logit_softcapping", 0);
    r->varies->logit_cap = cap(r, "final_logit_softcapping", 0);
}

static void phi3(reading *r)
{
    llama(r);
    window(r, 0);
    r->varies->names.qkv = "self_attn.qkv_proj";
    r->varies->names.gate_up = "mlp.gate_up_proj";
    r->varies->names.k = r->varies->names.gate = NULL;
    r->varies->partial = r->varies->longrope_only = true;
    r->varies->original_length = 4096;
    eps(r, "rms_norm_eps", 1e-5);
}

static void olmo2(reading *r)
{
    llama(r);
    r->varies->names.attention_norm = r->varies->names.mlp_norm = NULL;
    r->varies->names.attention_out_norm = "post_attention_layernorm";
    r->varies->names.mlp_out_norm = "post_feedforward_layernorm";
    r->varies->head_norm = HEAD_NORM_WHOLE;
    eps(r, "rms_norm_eps", 1e-5);
}

static void granite(reading *r)
{
    llama(r);
    double divisor = positive(r, "logits_scaling", 1);
    r->varies->embedding_scale = factor(r, "embedding_multiplier", 1);
    r->varies->residual_scale = factor(r, "residual_multiplier", 1);
    r->varies->softmax_scale = number(r, "attention_multiplier", 1);
    if (r->varies->softmax_scale == 0)
        fail(r, "attention_multiplier", "is 0, which is not supported");
    r->varies->logit_scale = divisor == 1 ? 0 : 1 / divisor;
}

static void stablelm(reading *r)
{
    llama(r);
    eps(r, "layer_norm_eps", 1e-5);
    r->varies->centred = r->varies->norm_biases = true;
    r->varies->partial = true;
    r->varies->partial_default = 0.25;
    r->varies->parallel = flag(r, "use_parallel_residual", false);
    if (r->varies->parallel)
        r->varies->names.mlp_norm = r->varies->names.attention_norm;
    if (flag(r, "qk_layernorm", false)) {
        r->varies->head_norm = HEAD_NORM_APART;
        r->varies->names.q_norm = "self_attn.q_layernorm.norms";
        r->varies->names.k_norm = "self_attn.k_layernorm.norms";
    }
}

static void cohere(reading *r)
{
    llama(r);
    eps(r, "layer_norm_eps", 1e-5);
    r->varies->untied_if_unstated = false;
    r->varies->rope_base = 500000;
    r->varies->centred = r->varies->parallel = r->varies->interleaved = true;
    r->varies->names.mlp_norm = r->varies->names.attention_norm;
    r->varies->logit_scale = factor(r, "logit_scale", 0.0625);
    if (flag(r, "use_qk_norm", false))
        r->varies->head_norm = HEAD_NORM_OWN;
}

static void smollm3(reading *r)
{
    llama(r);
    if (flag(r, "use_sliding_window", false))
        window(r, 0);
    r->varies->untied_if_unstated = false;
    r->varies->rope_base = 2000000;
}

static void gpt2(reading *r)
{
    static const net_names names = {
        .layer = "h",
        .embedding = "wte",
        .positions = "wpe",
        .norm = "ln_f",
        .qkv = "attn.c_attn",
        .o = "attn.c_proj",
        .up = "mlp.c_fc",
        .down = "mlp.c_proj",
        .attention_norm = "ln_1",
        .mlp_norm = "ln_2",
    };
    r->varies->names = names;
    r->varies->centred = r->varies->norm_biases = true;
    r->varies->transposed = r->varies->no_rotation = true;
    if (!flag(r, "scale_attn_weights", true))
        r->varies->softmax_scale = 1;
    only(r, "scale_attn_by_inverse_layer_idx", false, false);
    only(r, "add_cross_attention", false, false);
    activation(r, "activation_function", "gelu_new");
    eps(r, "layer_norm_epsilon", 1e-5);
}

static void opt(reading *r)
{
    net_names *names = &r->varies->names;
    *names = llama_names;
    names->positions = "embed_positions";
    names->norm = "final_layer_norm";
    names->o = "self_attn.out_proj";
    names->gate = NULL;
    names->up = "fc1";
    names->down = "fc2";
    names->attention_norm = "self_attn_layer_norm";
    names->mlp_norm = "final_layer_norm";
    r->varies->centred = r->varies->norm_biases = true;
    r->varies->positions_from_2 = r->varies->no_rotation = true;
    r->net->eps = 1e-5;
    activation(r, "activation_function", "relu");
    only(r, "do_layer_norm_before", true, true);
    only(r, "_remove_final_layer_norm", false, false);
    if (length(r, "word_embed_proj_dim", r->net->hidden) !=
        length(r, "hidden_size", r->net->hidden))
        fail(r, "word_embed_proj_dim", "differs from hidden_size, which is not supported");
}

/* Reads how many experts there are, and how many of them a token chooses. */
static void experts(reading *r, int64_t n_chosen)
{
    const char *key = gac_net_stated(r->net, "num_experts") ? "num_experts" : "num_local_experts";
    r->varies->n_experts = length(r, key, 0);
    r->varies->n_experts_chosen = length(r, "num_experts_per_tok", n_chosen);
}

static void mixtral(reading *r)
{
    net_names *names = &r->varies->names;
    llama(r);
    window(r, 0);
    eps(r, "rms_norm_eps", 1e-5);
    r->varies->rope_base = 1000000;
    names->gate = names->up = names->down = NULL;
    names->router = "block_sparse_moe.gate";
    names->experts = "block_sparse_moe.experts";
    names->expert_gate = "w1";
    names->expert_up = "w3";
    names->expert_down = "w2";
    experts(r, 2);
    r->varies->normalise_experts = true;
}

static void qwen3_moe(reading *r)
{
    net_names *names = &r->varies->names;
    qwen3(r);
    names->router = "mlp.gate";
    names->experts = "mlp.experts";
    names->expert_gate = "gate_proj";
    names->expert_up = "up_proj";
    names->expert_down = "down_proj";
    experts(r, 8);
    r->varies->normalise_experts = flag(r, "norm_topk_prob", false);
}

static void qwen2_moe(reading *r)
{
    qwen3_moe(r);
    r->varies->head_norm = HEAD_NORM_NONE;
    r->varies->names.shared = "mlp.shared_expert";
    r->varies->names.shared_gate = "mlp.shared_expert_gate";
    experts(r, 4);
}

static const struct {
    const char *type; /* model_type */
    void (*describe)(reading *r);
} families[] = {
    { "llama", llama },         { "palullama", llama },
    { "deci", llama },          { "nemotron-nas", llama },
    { "mistral", mistral },     { "palumistral", mistral },
    { "qwen2", qwen2 },         { "paluqwen2", qwen2 },
    { "qwen3", qwen3 },         { "gemma", gemma1 },
    { "gemma2", gemma2 },       { "gemma3_text", gemma3 },
    { "phi3", phi3 },           { "olmo2", olmo2 },
    { "granite", granite },     { "stablelm", stablelm },
    { "cohere", cohere },       { "smollm3", smollm3 },
    { "gpt2", gpt2 },           { "opt", opt },
    { "mixtral", mixtral },     { "qwen2_moe", qwen2_moe },
    { "qwen3_moe", qwen3_moe },
};

gac_status gac_net_read_family(net *n, gac_error *err)
{
    char q[80];
    reading r = { n, &n->varies, GAC_OK, err };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].type, n->type) != 0)
            continue;
        families[i].describe(&r);
        return r.status;
    }
    return gac_net_refuse(n, err,
                          "model_type \"%s\" is not supported; llama, mistral, qwen2, qwen3, "
                          "gemma, gemma2, gemma3_text, phi3, olmo2, granite, stablelm, cohere, "
                          "smollm3, gpt2, opt, mixtral, qwen2_moe and qwen3_moe are",
                          gac_quote(q, sizeof q, n->type));
}

static bool is(const reading *r, const char *type)
{
    return strcmp(r->net->type, type) == 0;
}

/* Returns whether a family gives a layer a window if the config does not list its layers. */
static bool has_window(reading *r, int32_t layer)
{
    if (r->varies->window == 0)
        return false;
    if (is(r, "gemma2"))
        return layer % 2 == 0;
    if (is(r, "gemma3_text"))
        return (layer + 1) % length(r, "sliding_window_pattern", 6) != 0;
    if (is(r, "qwen2_moe"))
        return layer % 2 == 0 && layer < number(r, "max_window_layers", 28);
    if (is(r, "qwen2") || is(r, "paluqwen2") || is(r, "qwen3"))
        return layer >= number(r, "max_window_layers", 28);
    return !is(r, "smollm3") || !r->net->layers[layer].rotated;
}

/* These families give all layers a window or none, whatever the config lists. */
static bool ignores_list(const reading *r)
{
    return is(r, "mistral") || is(r, "palumistral") || is(r, "phi3") || is(r, "mixtral") ||
           is(r, "qwen3_moe");
}

static void read_window(reading *r, int32_t layer)
{
    const json_t *types = gac_net_stated(r->net, "layer_types");
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    net_layer *l = &r->net->layers[layer];
    bool windowed = has_window(r, layer);
    if (types &&
        (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)))
        fail(r, "layer_types",
             "has other entries than full_attention and sliding_attention, or "
             "too few");
    if (type && !ignores_list(r))
        windowed = strcmp(type, "sliding_attention") == 0;
    if (windowed && r->varies->window == 0)
        fail(r, "layer_types", "has windows, but sliding_window states none");
    l->window = windowed ? r->varies->window : 0;
    l->local_rope = r->varies->two_ropes && windowed;
}

/* Returns whether the config gives a layer experts. */
static bool is_sparse(reading *r, int32_t layer)
{
    const json_t *dense = gac_net_stated(r->net, "mlp_only_layers");
    if (!r->varies->names.router || is(r, "mixtral"))
        return r->varies->names.router != NULL;
    for (size_t i = 0; i < json_array_size(dense); i++)
        if (json_is_integer(json_array_get(dense, i)) &&
            json_integer_value(json_array_get(dense, i)) == layer)
            return false;
    return (layer + 1) % length(r, "decoder_sparse_step", 1) == 0;
}

/* SmolLM3: every fourth layer is not rotated, unless the config lists the layers. */
static bool is_rotated(reading *r, int32_t layer)
{
    const json_t *list = gac_net_stated(r->net, "no_rope_layers");
    const json_t *entry = json_array_get(list, (size_t)layer);
    if (r->varies->no_rotation)
        return false;
    if (!is(r, "smollm3"))
        return true;
    if (!list)
        return (layer + 1) % length(r, "no_rope_layer_interval", 4) != 0;
    if (!json_is_integer(entry))
        fail(r, "no_rope_layers", "is not a list with a number for each layer");
    return json_integer_value(entry) != 0;
}

gac_status gac_net_read_windows(net *n, gac_error *err)
{
    reading r = { n, &n->varies, GAC_OK, err };
    for (int32_t i = 0; i < n->n_layers && r.status == GAC_OK; i++) {
        n->layers[i].rotated = is_rotated(&r, i);
        n->layers[i].sparse = is_sparse(&r, i);
        if (r.status == GAC_OK)
            read_window(&r, i);
    }
    return r.status;
}

unsigned gac_net_needs(const net *n)
{
    const net_variations *v = &n->varies;
    bool rotated = true, windowed = false;
    for (int32_t i = 0; i < n->n_layers; i++) {
        const int64_t window = n->layers[i].window;
        rotated = rotated && n->layers[i].rotated;
        windowed = windowed || (window > 0 && window < n->max_context);
    }
    bool scaled = v->embedding_scale != 0 || v->residual_scale != 0 || v->logit_scale != 0;
    const struct {
        bool is;
        gac_variation needs;
    } all[] = {
        { v->centred, GAC_VARIATION_LAYER_NORM },
        { v->activation != GAC_ACTIVATION_SILU ||
              (!v->names.gate && !v->names.gate_up && !v->names.experts),
          GAC_VARIATION_ACTIVATION },
        { v->names.attention_out_norm || v->names.mlp_out_norm, GAC_VARIATION_OUT_NORM },
        { scaled, GAC_VARIATION_SCALE },
        { v->score_cap > 0 || v->logit_cap > 0, GAC_VARIATION_SOFTCAP },
        { windowed, GAC_VARIATION_WINDOW },
        { !rotated || v->interleaved || gac_rope_size(n, 1 << 20) != 1 << 20,
          GAC_VARIATION_ROTATION },
        { v->head_norm > HEAD_NORM_SHARED, GAC_VARIATION_HEAD_NORM },
        { v->names.positions != NULL, GAC_VARIATION_POSITIONS },
        { v->names.experts != NULL, GAC_VARIATION_EXPERTS },
    };
    unsigned needs = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        needs |= all[i].is ? (unsigned)all[i].needs : 0;
    return needs;
}

bool gac_net_is_plain(const net *n)
{
    return (n->needs & ~(unsigned)GAC_VARIATION_WINDOW) == 0 && n->varies.norm_offset == 0 &&
           n->varies.softmax_scale == 0 && !n->varies.parallel && !n->varies.transposed &&
           n->varies.names.k != NULL && n->varies.names.gate != NULL;
}

/* Translates GGUF's names and keys of a Llama-like model to those of Hugging
 * Face. */
#include <string.h>
#include <strings.h>

#include "base/arguments.h"
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/convert_internal.h"

enum { MAX_SIZE = 1 << 30, MAX_LAYERS = 100000 };

/* An architecture of llama.cpp. For llama it stores the two rows of a rotary
 * pair of q and k next to each other. For qwen it keeps their order. */
typedef struct architecture {
    const char *name;
    const char *class_name;
    bool pairs;   /* rotary pairs are neighbours */
    bool qk_norm; /* norms over each head of q and k */
    bool qkv_bias;
    bool window; /* the config class has a sliding window by default */
} architecture;

static const architecture architectures[] = {
    { "llama", "LlamaForCausalLM", true, false, false, false },
    { "mistral", "MistralForCausalLM", true, false, false, true },
    { "qwen2", "Qwen2ForCausalLM", false, false, true, false },
    { "qwen3", "Qwen3ForCausalLM", false, true, false, false },
};

typedef struct reading {
    convert_model *model;
    const architecture *as;
    const char *prefix; /* of the architecture's keys */
    gac_error *err;
    bool *used; /* (n_tensors of the file): the tensor is in the model */
} reading;

static gac_status read_blocks(convert_model *model, const convert_tensor *tensor, int64_t first,
                              int64_t n, float *out, gac_error *err)
{
    return gac_gguf_read(model->gguf, (int32_t)tensor->source, first, n, out, err);
}

int32_t gac_convert_key(const convert_model *model, const char *prefix, const char *suffix)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", prefix, suffix);
    return gac_gguf_find_key(model->gguf, key);
}

/* Reads a size for the config. fallback is the value of an absent key; if it is
 * 0, the key is required. */
static gac_status take_size(reading *r, const char *suffix, int64_t max, int64_t fallback,
                            int64_t *out)
{
    int32_t key = gac_convert_key(r->model, r->prefix, suffix);
    *out = fallback;
    if (key < 0 && fallback > 0)
        return GAC_OK;
    if (key < 0)
        return gac_convert_bad(r->model, r->err, "no key %s.%s", r->prefix, suffix);
    if (!gac_gguf_integer(r->model->gguf, key, out) || *out < 1 || *out > max)
        return gac_convert_bad(r->model, r->err, "%s.%s is not one size from 1 to %lld", r->prefix,
                               suffix, (long long)max);
    return GAC_OK;
}

/* Finds the architecture by general.architecture. A llama whose name says
 * Mistral becomes mistral. */
static gac_status find_architecture(reading *r)
{
    char name[64], q[80];
    const char *text;
    size_t n_bytes;
    convert_model *m = r->model;
    if (!gac_gguf_string(m->gguf, gac_gguf_find_key(m->gguf, "general.architecture"), &text,
                         &n_bytes))
        return gac_convert_bad(m, r->err, "no key general.architecture, or not a string");
    snprintf(name, sizeof name, "%.*s", (int)(n_bytes < 63 ? n_bytes : 63), text);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strlen(name) == n_bytes && strcmp(architectures[i].name, name) == 0)
            r->as = &architectures[i];
    if (!r->as)
        return gac_convert_bad(m, r->err,
                               "architecture \"%s\" is not converted; llama, mistral, qwen2 and "
                               "qwen3 are",
                               gac_quote(q, sizeof q, name));
    r->prefix = r->as->name;
    if (r->as == &architectures[0] &&
        gac_gguf_string(m->gguf, gac_gguf_find_key(m->gguf, "general.name"), &text, &n_bytes))
        for (size_t i = 0; i + 7 <= n_bytes; i++)
            if (strncasecmp(text + i, "mistral", 7) == 0)
                r->as = &architectures[1];
    m->model_type = r->as->name;
    m->architecture = r->as->class_name;
    m->qk_norm = r->as->qk_norm;
    m->has_window = r->as->window;
    return GAC_OK;
}

static gac_status take_heads(reading *r)
{
    convert_model *m = r->model;
    int64_t v_dim, experts;
    gac_status status = take_size(r, "attention.head_count", MAX_SIZE, 0, &m->n_heads);
    if (status == GAC_OK)
        status = take_size(r, "attention.head_count_kv", MAX_SIZE, m->n_heads, &m->n_kv_heads);
    if (status != GAC_OK)
        return status;
    int64_t usual = m->hidden / m->n_heads;
    status = take_size(r, "attention.key_length", MAX_SIZE, usual ? usual : 1, &m->head_dim);
    if (status == GAC_OK)
        status = take_size(r, "attention.value_length", MAX_SIZE, m->head_dim, &v_dim);
    if (status != GAC_OK)
        return status;
    if (m->n_heads % m->n_kv_heads != 0 || m->head_dim % 2 != 0 || v_dim != m->head_dim)
        return gac_convert_bad(m, r->err,
                               "%lld heads, %lld key heads, key length %lld, value length %lld "
                               "make no Llama-like attention",
                               (long long)m->n_heads, (long long)m->n_kv_heads,
                               (long long)m->head_dim, (long long)v_dim);
    if (gac_gguf_integer(m->gguf, gac_convert_key(m, r->prefix, "expert_count"), &experts) &&
        experts > 0)
        return gac_convert_bad(m, r->err, "a mixture of %lld experts is not converted",
                               (long long)experts);
    return GAC_OK;
}

static gac_status take_sizes(reading *r)
{
    convert_model *m = r->model;
    gac_status status = take_size(r, "embedding_length", MAX_SIZE, 0, &m->hidden);
    if (status == GAC_OK)
        status = take_size(r, "feed_forward_length", MAX_SIZE, 0, &m->width);
    if (status == GAC_OK)
        status = take_size(r, "block_count", MAX_LAYERS, 0, &m->n_layers);
    if (status == GAC_OK)
        status = take_size(r, "context_length", INT32_MAX, 2048, &m->context);
    if (status == GAC_OK)
        status = take_heads(r);
    if (status != GAC_OK)
        return status;
    int32_t eps = gac_convert_key(m, r->prefix, "attention.layer_norm_rms_epsilon");
    if (!gac_gguf_number(m->gguf, eps, &m->rms_eps) || !(m->rms_eps > 0 && m->rms_eps < 1))
        return gac_convert_bad(m, r->err, "no key %s.attention.layer_norm_rms_epsilon in (0, 1)",
                               r->prefix);
    return GAC_OK;
}

/* Adds the tensor from of the file as name, with shape (n_rows, n_columns), or
 * (n_rows) if n_columns is 0. n_rotated is as in convert_tensor. */
static gac_status place(reading *r, const char *from, const char *name, int64_t n_rows,
                        int64_t n_columns, int64_t n_rotated)
{
    char q[160], shape[100] = "";
    convert_model *m = r->model;
    int32_t index = gac_gguf_find_tensor(m->gguf, from);
    if (index < 0)
        return gac_convert_bad(m, r->err, "no tensor \"%s\"", from);
    const gac_gguf_tensor *t = gac_gguf_tensor_at(m->gguf, index);
    bool fits = n_columns ? t->n_axes == 2 && t->shape[0] == n_rows && t->shape[1] == n_columns
                          : t->n_axes == 1 && t->shape[0] == n_rows;
    if (!fits) {
        for (int32_t axis = 0; axis < t->n_axes; axis++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld",
                     axis ? ", " : "", (long long)t->shape[axis]);
        char expected[60];
        int n = snprintf(expected, sizeof expected, "%lld", (long long)n_rows);
        if (n_columns)
            snprintf(expected + n, sizeof expected - (size_t)n, ", %lld", (long long)n_columns);
        return gac_convert_bad(m, r->err, "tensor \"%s\" is (%s), its keys ask for (%s)",
                               gac_quote(q, sizeof q, from), shape, expected);
    }
    r->used[index] = true;
    return gac_convert_add(m, name, n_rows, n_columns, index, n_rotated, r->err);
}

typedef struct part {
    const char *from, *name;
    int64_t n_rows, n_columns, n_rotated;
} part;

/* Adds one tensor of a layer. kind is "weight" or "bias", as in both formats. */
static gac_status place_part(reading *r, int64_t layer, const part *p, const char *kind)
{
    char from[80], name[120];
    bool bias = strcmp(kind, "bias") == 0;
    snprintf(from, sizeof from, "blk.%lld.%s.%s", (long long)layer, p->from, kind);
    snprintf(name, sizeof name, "model.layers.%lld.%s.%s", (long long)layer, p->name, kind);
    return place(r, from, name, p->n_rows, bias ? 0 : p->n_columns, p->n_rotated);
}

static gac_status place_layer(reading *r, int64_t layer)
{
    const convert_model *m = r->model;
    int64_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    int64_t q_pairs = r->as->pairs ? m->n_heads : 0, k_pairs = r->as->pairs ? m->n_kv_heads : 0;
    const part parts[] = {
        { "attn_norm", "input_layernorm", m->hidden, 0, 0 },
        { "ffn_norm", "post_attention_layernorm", m->hidden, 0, 0 },
        { "attn_q", "self_attn.q_proj", q, m->hidden, q_pairs },
        { "attn_k", "self_attn.k_proj", kv, m->hidden, k_pairs },
        { "attn_v", "self_attn.v_proj", kv, m->hidden, 0 },
        { "attn_output", "self_attn.o_proj", m->hidden, q, 0 },
        { "ffn_gate", "mlp.gate_proj", m->width, m->hidden, 0 },
        { "ffn_up", "mlp.up_proj", m->width, m->hidden, 0 },
        { "ffn_down", "mlp.down_proj", m->hidden, m->width, 0 },
        { "attn_q_norm", "self_attn.q_norm", m->head_dim, 0, 0 },
        { "attn_k_norm", "self_attn.k_norm", m->head_dim, 0, 0 },
    };
    gac_status status = GAC_OK;
    for (int i = 0; i < (m->qk_norm ? 11 : 9) && status == GAC_OK; i++) {
        bool has_bias =
            i >= 2 && i < 9 &&
            ((i < 5 && r->as->qkv_bias) || (i < 6 && m->attention_bias) || (i >= 6 && m->mlp_bias));
        status = place_part(r, layer, &parts[i], "weight");
        if (status == GAC_OK && has_bias)
            status = place_part(r, layer, &parts[i], "bias");
    }
    return status;
}

static bool has_tensor(const convert_model *m, const char *name)
{
    return gac_gguf_find_tensor(m->gguf, name) >= 0;
}

/* Checks that the model uses every tensor of the file. */
static gac_status check_all_used(reading *r)
{
    char q[160];
    const convert_model *m = r->model;
    for (int32_t i = 0; i < gac_gguf_n_tensors(m->gguf); i++) {
        const char *name = gac_gguf_tensor_at(m->gguf, i)->name;
        if (!r->used[i] && strcmp(name, "rope_freqs.weight") != 0)
            return gac_convert_bad(m, r->err, "tensor \"%s\" has no place in a %s model",
                                   gac_quote(q, sizeof q, name), m->model_type);
    }
    return GAC_OK;
}

static gac_status place_tensors(reading *r)
{
    convert_model *m = r->model;
    int32_t embed = gac_gguf_find_tensor(m->gguf, "token_embd.weight");
    const gac_gguf_tensor *t = embed < 0 ? NULL : gac_gguf_tensor_at(m->gguf, embed);
    r->used = gac_arena_alloc(&m->arena, (size_t)gac_gguf_n_tensors(m->gguf) + 1);
    if (!r->used)
        return gac_error_no_memory(r->err);
    m->vocab_size = t && t->n_axes == 2 ? t->shape[0] : 1;
    m->tied = !has_tensor(m, "output.weight");
    m->attention_bias = !r->as->qkv_bias && has_tensor(m, "blk.0.attn_output.bias");
    m->mlp_bias = has_tensor(m, "blk.0.ffn_gate.bias");
    gac_status status =
        place(r, "token_embd.weight", "model.embed_tokens.weight", m->vocab_size, m->hidden, 0);
    for (int64_t layer = 0; layer < m->n_layers && status == GAC_OK; layer++)
        status = place_layer(r, layer);
    if (status == GAC_OK)
        status = place(r, "output_norm.weight", "model.norm.weight", m->hidden, 0, 0);
    if (status == GAC_OK && !m->tied)
        status = place(r, "output.weight", "lm_head.weight", m->vocab_size, m->hidden, 0);
    return status == GAC_OK ? check_all_used(r) : status;
}

/* Returns the float format that most weights have. Quantised weights become
 * F16, which holds them better than BF16. */
static gac_dtype stored_dtype(const gac_gguf *gguf)
{
    int64_t n_f32 = 0, n_bf16 = 0, n_all = 0;
    for (int32_t i = 0; i < gac_gguf_n_tensors(gguf); i++) {
        const gac_gguf_tensor *t = gac_gguf_tensor_at(gguf, i);
        if (t->n_axes < 2)
            continue;
        n_all += t->n_elements / 2;
        n_f32 += t->type == GAC_GGML_F32 ? t->n_elements / 2 : 0;
        n_bf16 += t->type == GAC_GGML_BF16 ? t->n_elements / 2 : 0;
    }
    return n_f32 > n_all / 2 ? GAC_DTYPE_F32 : n_bf16 > n_all / 2 ? GAC_DTYPE_BF16 : GAC_DTYPE_F16;
}

gac_status gac_convert_gguf(const char *from, const char *to, const gac_convert_options *options,
                            gac_convert_result *result, gac_error *err)
{
    static const gac_convert_options usual = GAC_CONVERT_OPTIONS_INIT;
    GAC_REFUSE_NULL(err, from, to, result);
    options = options ? options : &usual;
    convert_model m = { .path = from,
                        .read = read_blocks,
                        .vocab = { .bos = -1, .eos = -1, .unknown = -1, .pad = -1 } };
    reading r = { .model = &m, .err = err };
    gac_status status = gac_gguf_open(from, &m.gguf, err);
    if (status == GAC_OK)
        status = find_architecture(&r);
    if (status == GAC_OK)
        status = take_sizes(&r);
    if (status == GAC_OK)
        status = gac_convert_gguf_rope(&m, r.prefix, err);
    if (status == GAC_OK)
        status = place_tensors(&r);
    if (status == GAC_OK)
        status = gac_convert_gguf_vocab(&m, options->log, err);
    if (status == GAC_OK) {
        m.stored = stored_dtype(m.gguf);
        status = gac_convert_write(&m, to, options, result, err);
    }
    gac_convert_dispose(&m);
    return status;
}

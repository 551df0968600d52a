/* Takes the decoder from the dimension graph: finds each layer's tensors, and
 * refuses models that this engine would compute wrongly. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

static gac_status refuse(const net *n, gac_error *err, const char *format, ...) GAC_PRINTF(3, 4);

/* Sets an error that starts with the checkpoint's path. */
static gac_status refuse(const net *n, gac_error *err, const char *format, ...)
{
    char q[256], text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(n->checkpoint)), text);
}

/* Returns the value in config.json, or NULL if the key is absent or null. */
static const json_t *stated(const net *n, const char *key)
{
    const json_t *value = json_object_get(n->config, key);
    return json_is_null(value) ? NULL : value;
}

/* Finds a tensor of shape (n_wanted). */
static gac_status need_vector(const net *n, const char *name, int64_t n_wanted, int32_t *out,
                              gac_error *err)
{
    char q[160];
    *out = gac_checkpoint_find(n->checkpoint, name);
    if (*out < 0)
        return refuse(n, err, "tensor \"%s\" is missing", gac_quote(q, sizeof q, name));
    const gac_tensor *t = gac_checkpoint_tensor(n->checkpoint, *out);
    if (t->n_axes == 1 && t->shape[0] == n_wanted)
        return GAC_OK;
    return refuse(n, err, "tensor \"%s\": not one row of %lld numbers",
                  gac_quote(q, sizeof q, name), (long long)n_wanted);
}

static gac_status need_module(const net *n, int32_t layer, const char *name, const gac_module **out,
                              gac_error *err)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    *out = gac_model_find_module(n->model, full);
    if (!*out)
        return refuse(n, err, "%s%s is missing%s", gac_model_prefix(n->model), full,
                      json_object_get(n->config, "block_configs")
                          ? "; layers without one of the blocks are not supported"
                          : "");
    if ((*out)->quantised)
        return refuse(n, err, "%s%s is quantised, which is not supported",
                      gac_model_prefix(n->model), full);
    if ((*out)->transposed)
        return refuse(n, err, "%s%s is stored transposed, which is not supported",
                      gac_model_prefix(n->model), full);
    return GAC_OK;
}

static const gac_op *attention_of(const gac_model *model, int32_t layer)
{
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        const gac_op *op = gac_model_op(model, i);
        if (op->kind == GAC_OP_SDPA && op->layer == layer)
            return op;
    }
    return NULL;
}

/* Finds the norms of q and k. Only qwen3 has them. */
static gac_status read_head_norms(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    static const char *const names[] = { "q_norm", "k_norm" };
    int32_t *const found[] = { &l->q_norm, &l->k_norm };
    const char *family = gac_model_family(n->model);
    bool has = strcmp(family, "qwen3") == 0;
    char name[128], q[160];
    gac_status status = GAC_OK;
    for (int i = 0; i < 2 && status == GAC_OK; i++) {
        snprintf(name, sizeof name, "%slayers.%d.self_attn.%s.weight", gac_model_prefix(n->model),
                 layer, names[i]);
        *found[i] = gac_checkpoint_find(n->checkpoint, name);
        if (has)
            status = need_vector(n, name, l->qk_size, found[i], err);
        else if (*found[i] >= 0)
            status = refuse(n, err, "tensor \"%s\": family %s has no such tensor",
                            gac_quote(q, sizeof q, name), family);
    }
    return status;
}

static gac_status read_heads(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const gac_op *op = attention_of(n->model, layer);
    if (!op)
        return refuse(n, err, "layer %d: its projections do not divide into heads", layer);
    l->n_q_heads = op->n_q_heads;
    l->n_kv_heads = op->n_kv_heads;
    l->qk_size = gac_model_dim(n->model, op->qk_dim)->size;
    l->v_size = gac_model_dim(n->model, op->v_dim)->size;
    if (l->n_q_heads < 1 || l->n_kv_heads < 1 || l->qk_size < 1 || l->v_size < 1)
        return refuse(n, err, "layer %d: no heads are left, which is not supported", layer);
    if (l->n_q_heads % l->n_kv_heads != 0)
        return refuse(n, err, "layer %d: %lld query heads do not share %lld kv heads evenly", layer,
                      (long long)l->n_q_heads, (long long)l->n_kv_heads);
    if (l->qk_size % 2 != 0)
        return refuse(n, err, "layer %d: head size %lld is odd, so it has no two halves to rotate",
                      layer, (long long)l->qk_size);
    return read_head_norms(n, layer, l, err);
}

static gac_status read_layer(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    static const char *const names[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                         "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                         "mlp.down_proj" };
    const gac_module **modules[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
    char name[128];
    const char *prefix = gac_model_prefix(n->model);
    gac_status status = GAC_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == GAC_OK; i++)
        status = need_module(n, layer, names[i], modules[i], err);
    if (status == GAC_OK)
        status = read_heads(n, layer, l, err);
    if (status != GAC_OK)
        return status;
    l->width = l->gate->n_out;
    if (l->width < 1)
        return refuse(n, err, "layer %d: an MLP of width 0 is not supported", layer);
    snprintf(name, sizeof name, "%slayers.%d.input_layernorm.weight", prefix, layer);
    status = need_vector(n, name, n->hidden, &l->attention_norm, err);
    snprintf(name, sizeof name, "%slayers.%d.post_attention_layernorm.weight", prefix, layer);
    return status == GAC_OK ? need_vector(n, name, n->hidden, &l->mlp_norm, err) : status;
}

/* Refuses families and settings that the engine does not compute. */
static gac_status check_family(const net *n, gac_error *err)
{
    static const char *const run[] = { "llama", "mistral", "qwen2", "qwen3", NULL };
    char q[80];
    const char *family = gac_model_family(n->model);
    bool known = false;
    for (int i = 0; run[i]; i++)
        known = known || strcmp(run[i], family) == 0;
    if (!known)
        return refuse(n, err, "family %s is not supported; llama, mistral, qwen2 and qwen3 are",
                      family);
    if (!gac_model_family_is_stated(n->model))
        return refuse(n, err,
                      "config.json: model_type \"%s\" is not supported; llama, mistral, "
                      "qwen2 and qwen3 are",
                      gac_quote(q, sizeof q, json_string_value(stated(n, "model_type"))));
    const json_t *layers = stated(n, "num_hidden_layers");
    if (layers && json_integer_value(layers) != n->n_layers)
        return refuse(n, err,
                      "config.json: num_hidden_layers is %lld, but the tensors have %d layers",
                      (long long)json_integer_value(layers), n->n_layers);
    if (stated(n, "hidden_act") && !json_is_string(stated(n, "hidden_act")))
        return refuse(n, err, "config.json: hidden_act is not a string");
    const char *act = json_string_value(stated(n, "hidden_act"));
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return refuse(n, err, "config.json: hidden_act \"%s\" is not supported; silu is",
                      gac_quote(q, sizeof q, act));
    return GAC_OK;
}

/* Limits the context to the attention window. A mistral config without the key
 * means a window of 4096. */
static gac_status limit_to_window(net *n, gac_error *err)
{
    enum { MISTRAL_WINDOW = 4096 };
    const json_t *window = json_object_get(n->config, "sliding_window");
    const json_t *use = stated(n, "use_sliding_window");
    int64_t size = n->max_context;
    if (use && !json_is_true(use))
        return GAC_OK;
    if (!window && strcmp(gac_model_family(n->model), "mistral") == 0)
        size = MISTRAL_WINDOW;
    else if (window && !json_is_null(window))
        size = json_integer_value(window); /* 0 if it is not an integer */
    if (size < 1)
        return refuse(n, err, "config.json: sliding_window is not a length");
    n->max_context = n->max_context < size ? n->max_context : size;
    return GAC_OK;
}

static gac_status read_outer(net *n, gac_error *err)
{
    char name[128], q[160];
    const char *prefix = gac_model_prefix(n->model);
    snprintf(name, sizeof name, "%sembed_tokens.weight", prefix);
    n->embedding = gac_checkpoint_find(n->checkpoint, name);
    if (n->embedding < 0)
        return refuse(n, err, "tensor \"%s\" is missing", gac_quote(q, sizeof q, name));
    const gac_tensor *t = gac_checkpoint_tensor(n->checkpoint, n->embedding);
    if (t->n_axes != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return refuse(n, err, "tensor \"%s\": not a table", gac_quote(q, sizeof q, name));
    n->vocab = t->shape[0];
    n->hidden = t->shape[1];
    /* If the config ties the head to the embedding, a stored head is ignored. */
    if (!json_is_true(json_object_get(n->config, "tie_word_embeddings")))
        n->head = gac_model_find_module(n->model, "lm_head");
    if (!n->head && !json_is_true(stated(n, "tie_word_embeddings")))
        return refuse(n, err, "lm_head is missing, and the config does not tie it");
    snprintf(name, sizeof name, "%snorm.weight", prefix);
    gac_status status = need_vector(n, name, n->hidden, &n->norm, err);
    if (status == GAC_OK)
        status = gac_rope_limit(n, &n->max_context, err);
    return status == GAC_OK ? limit_to_window(n, err) : status;
}

gac_status gac_net_read(const gac_model *model, net *out, gac_error *err)
{
    net n = { .model = model,
              .checkpoint = gac_model_checkpoint(model),
              .config = gac_model_config(model),
              .n_layers = gac_model_n_layers(model) };
    if (gac_model_is_adapter(model))
        return refuse(&n, err, "an adapter runs with the model that it is added to, not alone");
    if (!n.config)
        return refuse(&n, err, "running a model needs its config.json");
    const json_t *eps = stated(&n, "rms_norm_eps");
    n.eps = !eps ? 1e-6 : json_is_number(eps) ? json_number_value(eps) : -1;
    if (!(n.eps >= 0 && n.eps < 1))
        return refuse(&n, err, "config.json: rms_norm_eps is not a small number");
    gac_status status = check_family(&n, err);
    if (status == GAC_OK)
        status = read_outer(&n, err);
    if (status == GAC_OK && n.n_layers < 1)
        status = refuse(&n, err, "no layers");
    if (status != GAC_OK)
        return status;
    n.layers = calloc((size_t)n.n_layers, sizeof *n.layers);
    if (!n.layers)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n.n_layers && status == GAC_OK; i++)
        status = read_layer(&n, i, &n.layers[i], err);
    if (status != GAC_OK) {
        gac_net_dispose(&n);
        return status;
    }
    *out = n;
    return GAC_OK;
}

void gac_net_dispose(net *n)
{
    free(n->layers);
    *n = (net){ 0 };
}

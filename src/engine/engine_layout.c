/* Takes the decoder from the dimension graph: finds each layer's tensors, and
 * refuses models that this engine would compute wrongly. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

gac_status gac_net_refuse(const net *n, gac_error *err, const char *format, ...)
{
    char q[256], text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(n->checkpoint)), text);
}

const json_t *gac_net_stated(const net *n, const char *key)
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
        return gac_net_refuse(n, err, "tensor \"%s\" is missing", gac_quote(q, sizeof q, name));
    const gac_tensor *t = gac_checkpoint_tensor(n->checkpoint, *out);
    if (t->n_axes == 1 && t->shape[0] == n_wanted)
        return GAC_OK;
    return gac_net_refuse(n, err, "tensor \"%s\": not one row of %lld numbers",
                          gac_quote(q, sizeof q, name), (long long)n_wanted);
}

/* Finds a table of n_rows rows (0: any number) of n_cols numbers. */
static gac_status need_table(const net *n, const char *name, int64_t n_rows, int64_t n_cols,
                             int32_t *out, gac_error *err)
{
    char q[160];
    *out = gac_checkpoint_find(n->checkpoint, name);
    if (*out < 0)
        return gac_net_refuse(n, err, "tensor \"%s\" is missing", gac_quote(q, sizeof q, name));
    const gac_tensor *t = gac_checkpoint_tensor(n->checkpoint, *out);
    if (t->n_axes == 2 && t->shape[0] >= 1 && t->shape[1] == n_cols &&
        (n_rows == 0 || t->shape[0] == n_rows))
        return GAC_OK;
    return gac_net_refuse(n, err, "tensor \"%s\": not a table of rows of %lld numbers",
                          gac_quote(q, sizeof q, name), (long long)n_cols);
}

/* Finds the weight and the bias of a norm over the hidden size. module is below a layer, or,
 * with layer -1, below the family's prefix; NULL: there is no norm. */
static gac_status need_norm(const net *n, int32_t layer, const char *module, net_norm *out,
                            gac_error *err)
{
    char path[160], name[192], q[160];
    *out = (net_norm){ -1, -1 };
    if (!module)
        return GAC_OK;
    if (layer < 0)
        snprintf(path, sizeof path, "%s%s", gac_model_prefix(n->model), module);
    else
        snprintf(path, sizeof path, "%s%s.%d.%s", gac_model_prefix(n->model), n->varies.names.layer,
                 layer, module);
    snprintf(name, sizeof name, "%s.weight", path);
    gac_status status = need_vector(n, name, n->hidden, &out->weight, err);
    snprintf(name, sizeof name, "%s.bias", path);
    if (status == GAC_OK && n->varies.norm_biases)
        status = need_vector(n, name, n->hidden, &out->bias, err);
    else if (status == GAC_OK && gac_checkpoint_find(n->checkpoint, name) >= 0)
        status = gac_net_refuse(n, err, "tensor \"%s\": family %s has no such tensor",
                                gac_quote(q, sizeof q, name), n->type);
    return status;
}

/* Finds a module below a layer, all of it. */
static gac_status need_module(const net *n, int32_t layer, const char *name, net_linear *out,
                              gac_error *err)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%d.%s", n->varies.names.layer, layer, name);
    const gac_module *m = gac_model_find_module(n->model, full);
    if (!m)
        return gac_net_refuse(n, err, "%s%s is missing%s", gac_model_prefix(n->model), full,
                              json_object_get(n->config, "block_configs")
                                  ? "; layers without one of the blocks are not supported"
                                  : "");
    if (m->quantised)
        return gac_net_refuse(n, err, "%s%s is quantised, which is not supported",
                              gac_model_prefix(n->model), full);
    if (m->transposed != n->varies.transposed || (m->transposed && m->first >= 0))
        return gac_net_refuse(n, err, "%s%s is stored %s, which is not supported",
                              gac_model_prefix(n->model), full,
                              m->transposed ? "transposed" : "in factors that are not transposed");
    *out = (net_linear){ m, 0, m->n_out };
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

static void name_head_norm(const net *n, int32_t layer, const char *norm, int64_t head, char *out,
                           size_t size)
{
    snprintf(out, size, "%s%s.%d.%s.%lld.weight", gac_model_prefix(n->model), n->varies.names.layer,
             layer, norm, (long long)head);
}

int32_t gac_net_find_head_norm(const net *n, int32_t layer, const char *norm, int64_t head)
{
    char name[192];
    name_head_norm(n, layer, norm, head, name, sizeof name);
    return gac_checkpoint_find(n->checkpoint, name);
}

/* Finds the norms of all heads; *out is that of the first. */
static gac_status need_head_norms(const net *n, int32_t layer, const char *norm, int64_t n_heads,
                                  int64_t size, int32_t *out, gac_error *err)
{
    char name[192], q[192];
    int32_t found = -1;
    gac_status status = GAC_OK;
    for (int64_t head = 0; head < n_heads && status == GAC_OK; head++) {
        name_head_norm(n, layer, norm, head, name, sizeof name);
        status = need_vector(n, name, size, head == 0 ? out : &found, err);
    }
    name_head_norm(n, layer, norm, n_heads, name, sizeof name);
    if (status == GAC_OK && gac_checkpoint_find(n->checkpoint, name) >= 0)
        status = gac_net_refuse(n, err, "tensor \"%s\": there are %lld heads",
                                gac_quote(q, sizeof q, name), (long long)n_heads);
    return status;
}

/* Finds the norms of q and k, which only some families have. */
static gac_status read_head_norms(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const struct {
        const char *name;
        int32_t *out;
        int64_t n_heads;
    } norms[] = { { n->varies.names.q_norm, &l->q_norm, l->n_q_heads },
                  { n->varies.names.k_norm, &l->k_norm, l->n_kv_heads } };
    char name[160], q[160];
    gac_status status = GAC_OK;
    l->q_norm = l->k_norm = -1;
    for (int i = 0; i < 2 && norms[i].name && status == GAC_OK; i++) {
        snprintf(name, sizeof name, "%s%s.%d.%s.weight", gac_model_prefix(n->model),
                 n->varies.names.layer, layer, norms[i].name);
        if (n->varies.head_norm == HEAD_NORM_APART)
            status = need_head_norms(n, layer, norms[i].name, norms[i].n_heads, l->qk_size,
                                     norms[i].out, err);
        else if (n->varies.head_norm == HEAD_NORM_SHARED)
            status = need_vector(n, name, l->qk_size, norms[i].out, err);
        else if (n->varies.head_norm == HEAD_NORM_WHOLE)
            status = need_vector(n, name, norms[i].n_heads * l->qk_size, norms[i].out, err);
        else if (n->varies.head_norm == HEAD_NORM_OWN)
            status = need_table(n, name, norms[i].n_heads, l->qk_size, norms[i].out, err);
        else if (gac_checkpoint_find(n->checkpoint, name) >= 0)
            status = gac_net_refuse(n, err, "tensor \"%s\": family %s has no such tensor",
                                    gac_quote(q, sizeof q, name), n->type);
    }
    return status;
}

static gac_status read_heads(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const gac_op *op = attention_of(n->model, layer);
    if (!op)
        return gac_net_refuse(n, err, "layer %d: its projections do not divide into heads", layer);
    l->n_q_heads = op->n_q_heads;
    l->n_kv_heads = op->n_kv_heads;
    l->qk_size = gac_model_dim(n->model, op->qk_dim)->size;
    l->v_size = gac_model_dim(n->model, op->v_dim)->size;
    if (l->n_q_heads < 1 || l->n_kv_heads < 1 || l->qk_size < 1 || l->v_size < 1)
        return gac_net_refuse(n, err, "layer %d: no heads are left, which is not supported", layer);
    if (l->n_q_heads % l->n_kv_heads != 0)
        return gac_net_refuse(n, err,
                              "layer %d: %lld query heads do not share %lld kv heads evenly", layer,
                              (long long)l->n_q_heads, (long long)l->n_kv_heads);
    int64_t n_rotated = l->rotated ? gac_rope_size(n, l->qk_size) : 0;
    if (n_rotated == l->qk_size && n_rotated % 2 != 0)
        return gac_net_refuse(n, err,
                              "layer %d: head size %lld is odd, so it has no two halves to rotate",
                              layer, (long long)l->qk_size);
    if (n_rotated % 2 != 0 || (l->rotated && n_rotated < 2))
        return gac_net_refuse(n, err,
                              "layer %d: %lld of %lld numbers of a head would be rotated, which "
                              "have no two halves",
                              layer, (long long)n_rotated, (long long)l->qk_size);
    return read_head_norms(n, layer, l, err);
}

/* Finds the projections of a layer. One module may hold q, k and v. */
static gac_status read_attention(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const net_names *names = &n->varies.names;
    gac_status status = need_module(n, layer, names->k ? names->q : names->qkv, &l->q, err);
    if (status == GAC_OK && names->k)
        status = need_module(n, layer, names->k, &l->k, err);
    if (status == GAC_OK && names->k)
        status = need_module(n, layer, names->v, &l->v, err);
    if (status == GAC_OK)
        status = need_module(n, layer, names->o, &l->o, err);
    if (status == GAC_OK)
        status = read_heads(n, layer, l, err);
    if (status != GAC_OK || names->k)
        return status;
    const gac_module *all = l->q.module;
    const int64_t n_q = l->n_q_heads * l->qk_size, n_k = l->n_kv_heads * l->qk_size;
    l->q = (net_linear){ all, 0, n_q };
    l->k = (net_linear){ all, n_q, n_k };
    l->v = (net_linear){ all, n_q + n_k, l->n_kv_heads * l->v_size };
    return GAC_OK;
}

/* Finds an MLP. path is that of an expert below the layer, or "". One module may hold gate
 * and up. */
static gac_status read_mlp(const net *n, int32_t layer, const char *path, const char *gate,
                           const char *up, const char *gate_up, const char *down, net_mlp *out,
                           gac_error *err)
{
    char name[96];
    const char *first = gate_up ? gate_up : up;
    gac_status status = GAC_OK;
    *out = (net_mlp){ .width = 0 };
    if (!first || !down)
        return gac_net_refuse(n, err, "layer %d has no experts, which is not supported", layer);
    snprintf(name, sizeof name, "%s%s", path, first);
    status = need_module(n, layer, name, &out->up, err);
    snprintf(name, sizeof name, "%s%s", path, down);
    if (status == GAC_OK)
        status = need_module(n, layer, name, &out->down, err);
    snprintf(name, sizeof name, "%s%s", path, gate ? gate : "");
    if (status == GAC_OK && gate)
        status = need_module(n, layer, name, &out->gate, err);
    if (status != GAC_OK)
        return status;
    out->width = gate_up ? out->up.n / 2 : out->up.n;
    if (gate_up) {
        out->gate = (net_linear){ out->up.module, 0, out->width };
        out->up = (net_linear){ out->up.module, out->width, out->width };
    }
    if (out->width < 1)
        return gac_net_refuse(n, err, "layer %d: an MLP of width 0 is not supported", layer);
    return GAC_OK;
}

static gac_status read_dense_mlp(const net *n, int32_t layer, net_mlp *out, gac_error *err)
{
    const net_names *names = &n->varies.names;
    return read_mlp(n, layer, "", names->gate, names->up, names->gate_up, names->down, out, err);
}

/* Finds the router, the experts and the MLP that all tokens share. */
static gac_status read_experts(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const net_names *names = &n->varies.names;
    char path[96];
    net_linear router, gate = { NULL, 0, 0 };
    gac_status status = need_module(n, layer, names->router, &router, err);
    if (status == GAC_OK && names->shared_gate)
        status = need_module(n, layer, names->shared_gate, &gate, err);
    if (status != GAC_OK)
        return status;
    l->router = router.module;
    l->shared_gate = gate.module;
    if (n->varies.n_experts > 0 && router.n != n->varies.n_experts)
        return gac_net_refuse(n, err, "layer %d: %lld experts, but config.json states %lld", layer,
                              (long long)router.n, (long long)n->varies.n_experts);
    if (router.n > INT16_MAX || router.n < n->varies.n_experts_chosen)
        return gac_net_refuse(n, err, "layer %d: %lld experts, of which %lld are chosen", layer,
                              (long long)router.n, (long long)n->varies.n_experts_chosen);
    l->experts = calloc((size_t)router.n, sizeof *l->experts);
    if (!l->experts)
        return gac_error_no_memory(err);
    l->n_experts = (int32_t)router.n;
    for (int32_t i = 0; i < l->n_experts && status == GAC_OK; i++) {
        snprintf(path, sizeof path, "%s.%d.", names->experts, i);
        status = read_mlp(n, layer, path, names->expert_gate, names->expert_up, NULL,
                          names->expert_down, &l->experts[i], err);
    }
    if (status != GAC_OK || !names->shared)
        return status;
    snprintf(path, sizeof path, "%s.", names->shared);
    return read_mlp(n, layer, path, names->expert_gate, names->expert_up, NULL, names->expert_down,
                    &l->mlp, err);
}

/* A family with experts may have layers without them. */
static bool has_experts(const net *n, int32_t layer)
{
    char name[160];
    if (!n->varies.names.router)
        return false;
    snprintf(name, sizeof name, "%s.%d.%s", n->varies.names.layer, layer, n->varies.names.router);
    return gac_model_find_module(n->model, name) != NULL;
}

static gac_status read_layer(const net *n, int32_t layer, net_layer *l, gac_error *err)
{
    const net_names *names = &n->varies.names;
    const bool experts = has_experts(n, layer);
    gac_status status = read_attention(n, layer, l, err);
    if (status == GAC_OK && experts != l->sparse)
        status = gac_net_refuse(n, err, "layer %d has %s, but config.json gives it %s", layer,
                                experts ? "experts" : "no experts", experts ? "none" : "some");
    if (status == GAC_OK)
        status = experts ? read_experts(n, layer, l, err) : read_dense_mlp(n, layer, &l->mlp, err);
    if (status == GAC_OK)
        status = need_norm(n, layer, names->attention_norm, &l->attention_norm, err);
    if (status == GAC_OK)
        status = need_norm(n, layer, names->attention_out_norm, &l->attention_out_norm, err);
    if (status == GAC_OK)
        status = need_norm(n, layer, names->mlp_norm, &l->mlp_norm, err);
    return status == GAC_OK ? need_norm(n, layer, names->mlp_out_norm, &l->mlp_out_norm, err)
                            : status;
}

/* Finds the model_type. A config without one leaves the family that the tensors show. */
static gac_status read_type(net *n, gac_error *err)
{
    const char *key = gac_net_stated(n, "n_layer") ? "n_layer" : "num_hidden_layers";
    const json_t *layers = gac_net_stated(n, key);
    const char *type = json_string_value(gac_net_stated(n, "model_type"));
    n->type = type ? type : gac_model_family(n->model);
    if (layers && json_integer_value(layers) != n->n_layers)
        return gac_net_refuse(n, err, "config.json: %s is %lld, but the tensors have %d layers",
                              key, (long long)json_integer_value(layers), n->n_layers);
    int32_t hidden = gac_model_find_dim(n->model, "hidden");
    if (hidden < 0)
        return gac_net_refuse(n, err, "no embedding, so the hidden size is not known");
    n->hidden = gac_model_dim(n->model, hidden)->size;
    return GAC_OK;
}

/* Whether a head is stored that has other numbers than the embedding. */
static gac_status compare_head(const net *n, const gac_module *head, bool *differs, gac_error *err)
{
    const bool plain = head->first < 0 && head->n_parts == 1 && head->parts[0].bias < 0;
    gac_host_tensor stored = { 0 }, embedding = { 0 };
    *differs = true;
    if (!plain)
        return GAC_OK;
    gac_status status = gac_engine_map(n, head->parts[0].weight, &stored, err);
    if (status == GAC_OK)
        status = gac_engine_map(n, n->embedding, &embedding, err);
    if (status == GAC_OK && stored.dtype == embedding.dtype && stored.n_rows == embedding.n_rows &&
        stored.n_cols == embedding.n_cols)
        *differs = memcmp(stored.data, embedding.data,
                          (size_t)(stored.n_rows * stored.n_cols) *
                              (size_t)(gac_dtype_bits(stored.dtype) / 8)) != 0;
    return status;
}

/* Finds the head. If the config ties it to the embedding, a stored one must be the same: some
 * runtimes would use the one, and some the other. */
static gac_status read_head(net *n, gac_error *err)
{
    const json_t *tie = gac_net_stated(n, "tie_word_embeddings");
    const gac_module *stored = gac_model_find_module(n->model, "lm_head");
    bool tied = tie ? json_is_true(tie) : !n->varies.untied_if_unstated, differs = false;
    if (!tied)
        n->head = stored;
    if (!n->head && !tied)
        return gac_net_refuse(n, err, "lm_head is missing, and the config does not tie it");
    gac_status status = tied && stored ? compare_head(n, stored, &differs, err) : GAC_OK;
    if (status == GAC_OK && differs)
        return gac_net_refuse(n, err,
                              "the config ties lm_head to the embedding, but one is stored that "
                              "differs; set tie_word_embeddings to false if it is meant");
    return status;
}

static gac_status read_outer(net *n, gac_error *err)
{
    char name[128];
    const net_names *names = &n->varies.names;
    snprintf(name, sizeof name, "%s%s.weight", gac_model_prefix(n->model), names->embedding);
    n->positions = -1;
    gac_status status = need_table(n, name, 0, n->hidden, &n->embedding, err);
    if (status == GAC_OK)
        n->vocab = gac_checkpoint_tensor(n->checkpoint, n->embedding)->shape[0];
    if (status == GAC_OK)
        status = read_head(n, err);
    if (status == GAC_OK)
        status = need_norm(n, -1, names->norm, &n->norm, err);
    if (status != GAC_OK || !names->positions)
        return status == GAC_OK ? gac_rope_limit(n, &n->max_context, err) : status;
    snprintf(name, sizeof name, "%s%s.weight", gac_model_prefix(n->model), names->positions);
    status = need_table(n, name, 0, n->hidden, &n->positions, err);
    if (status != GAC_OK)
        return status;
    n->max_context = gac_checkpoint_tensor(n->checkpoint, n->positions)->shape[0] -
                     (n->varies.positions_from_2 ? 2 : 0);
    return n->max_context >= 1 ? GAC_OK
                               : gac_net_refuse(n, err, "the table of positions has no rows");
}

gac_status gac_net_read(const gac_model *model, net *out, gac_error *err)
{
    net n = { .model = model,
              .checkpoint = gac_model_checkpoint(model),
              .config = gac_model_config(model),
              .n_layers = gac_model_n_layers(model) };
    if (gac_model_is_adapter(model))
        return gac_net_refuse(&n, err,
                              "an adapter runs with the model that it is added to, not alone");
    gac_status status = read_type(&n, err);
    if (status == GAC_OK)
        status = gac_net_read_family(&n, err);
    if (status == GAC_OK)
        status = read_outer(&n, err);
    if (status == GAC_OK && n.n_layers < 1)
        status = gac_net_refuse(&n, err, "no layers");
    if (status != GAC_OK)
        return status;
    n.layers = calloc((size_t)n.n_layers, sizeof *n.layers);
    if (!n.layers)
        return gac_error_no_memory(err);
    status = gac_net_read_windows(&n, err);
    for (int32_t i = 0; i < n.n_layers && status == GAC_OK; i++)
        status = read_layer(&n, i, &n.layers[i], err);
    if (status != GAC_OK) {
        gac_net_dispose(&n);
        return status;
    }
    n.needs = gac_net_needs(&n);
    *out = n;
    return GAC_OK;
}

void gac_net_dispose(net *n)
{
    for (int32_t i = 0; n->layers && i < n->n_layers; i++)
        free(n->layers[i].experts);
    free(n->layers);
    *n = (net){ 0 };
}

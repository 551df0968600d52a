/* Puts a model's weights on the device, and makes its rows and caches. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/floats.h"
#include "engine/engine_internal.h"

/* Loads a table of rows of the hidden size: the embedding, which may also be the head's
 * weight, or positions. */
static gac_status load_table(gac_engine *e, int32_t tensor, gac_matrix **out, gac_error *err)
{
    gac_linear_part part = { 0 };
    gac_linear_module module = { .n_parts = 1, .parts = &part };
    const gac_axis hidden = { 1, e->net.hidden, e->net.hidden };
    if (tensor < 0)
        return GAC_OK;
    gac_status status = gac_engine_map(&e->net, tensor, &part.weight, err);
    module.out = (gac_axis){ 1, part.weight.n_rows, part.weight.n_rows };
    if (status == GAC_OK)
        status = gac_engine_name_file(
            &e->net, e->compute.ops->matrix_create(e->compute.state, hidden, &module, 1, out, err),
            err);
    return status;
}

static float float_at(const gac_host_tensor *t, int64_t i)
{
    if (t->dtype == GAC_DTYPE_F32)
        return ((const float *)t->data)[i];
    uint16_t code = ((const uint16_t *)t->data)[i];
    return t->dtype == GAC_DTYPE_F16 ? gac_f16_to_float(code) : gac_bf16_to_float(code);
}

gac_status gac_engine_append_numbers(const gac_engine *e, int32_t tensor, double offset,
                                     float **data, int64_t *n, gac_error *err)
{
    char q[256], qt[160];
    gac_host_tensor t;
    gac_status status = gac_engine_map(&e->net, tensor, &t, err);
    if (status != GAC_OK)
        return status;
    const int64_t n_new = t.n_rows * t.n_cols;
    float *grown = realloc(*data, (size_t)(*n + n_new) * sizeof *grown + 1);
    if (!grown)
        return gac_error_no_memory(err);
    *data = grown;
    for (int64_t i = 0; i < n_new; i++) {
        float x = (float)((double)float_at(&t, i) + offset);
        if (!(x - x == 0))
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "%s: tensor \"%s\": entry %lld is not a finite number",
                                 gac_quote(q, sizeof q, gac_checkpoint_path(e->net.checkpoint)),
                                 gac_quote(qt, sizeof qt, t.name), (long long)i);
        grown[(*n)++] = x;
    }
    return GAC_OK;
}

/* Loads the numbers of a tensor, each plus offset. */
static gac_status load_vector(gac_engine *e, int32_t tensor, double offset, gac_vector **out,
                              gac_error *err)
{
    float *data = NULL;
    int64_t n = 0;
    if (tensor < 0)
        return GAC_OK;
    gac_status status = gac_engine_append_numbers(e, tensor, offset, &data, &n, err);
    if (status == GAC_OK)
        status = e->compute.ops->vector_create(e->compute.state, data, n, out, err);
    free(data);
    return status;
}

/* Loads the norm of q or of k: one tensor, or one for each head. */
static gac_status load_head_norm(gac_engine *e, int32_t layer, const char *norm, int32_t tensor,
                                 int64_t n_heads, gac_vector **out, gac_error *err)
{
    const net *n = &e->net;
    float *data = NULL;
    int64_t n_numbers = 0;
    gac_status status = GAC_OK;
    if (tensor < 0 || n->varies.head_norm != HEAD_NORM_APART)
        return load_vector(e, tensor, n->varies.norm_offset, out, err);
    for (int64_t head = 0; head < n_heads && status == GAC_OK; head++)
        status = gac_engine_append_numbers(e, gac_net_find_head_norm(n, layer, norm, head),
                                           n->varies.norm_offset, &data, &n_numbers, err);
    if (status == GAC_OK)
        status = e->compute.ops->vector_create(e->compute.state, data, n_numbers, out, err);
    free(data);
    return status;
}

static gac_status load_norm(gac_engine *e, const net_norm *from, loaded_norm *out, gac_error *err)
{
    gac_status status = load_vector(e, from->weight, e->net.varies.norm_offset, &out->weight, err);
    return status == GAC_OK ? load_vector(e, from->bias, 0, &out->bias, err) : status;
}

/* Loads what comes before and after the layers. */
static gac_status load_outer(gac_engine *e, gac_error *err)
{
    gac_status status = load_table(e, e->net.embedding, &e->embedding, err);
    if (status == GAC_OK)
        status = load_table(e, e->net.positions, &e->positions, err);
    if (status == GAC_OK && e->net.head)
        status = gac_engine_load_module(e, e->net.head, &e->head, err);
    return status == GAC_OK ? load_norm(e, &e->net.norm, &e->norm, err) : status;
}

/* Finds the rotary tables of a layer, or makes them. */
static gac_status need_rope(gac_engine *e, const net_layer *n_layer, loaded_layer *l,
                            gac_error *err)
{
    const int64_t size = gac_rope_size(&e->net, n_layer->qk_size);
    const bool local = n_layer->local_rope;
    const gac_compute *c = &e->compute;
    float *cosines = NULL, *sines = NULL;
    gac_status status = GAC_OK;
    int32_t i = 0;
    if (!n_layer->rotated)
        return GAC_OK;
    while (i < e->n_ropes && (e->ropes[i].size != size || e->ropes[i].local != local))
        i++;
    if (i == e->n_ropes) {
        if (!gac_grow((void **)&e->ropes, e->n_ropes, &e->rope_capacity, sizeof *e->ropes))
            return gac_error_no_memory(err);
        e->ropes[e->n_ropes++] = (loaded_rope){ .size = size, .local = local };
        int64_t n = e->options.max_context * (size / 2);
        status =
            gac_rope_tables(&e->net, local, size, e->options.max_context, &cosines, &sines, err);
        if (status == GAC_OK)
            status = c->ops->vector_create(c->state, cosines, n, &e->ropes[i].cosines, err);
        if (status == GAC_OK)
            status = c->ops->vector_create(c->state, sines, n, &e->ropes[i].sines, err);
        free(cosines);
        free(sines);
    }
    l->cosines = e->ropes[i].cosines;
    l->sines = e->ropes[i].sines;
    return status;
}

static const int buffers[ROWS_KIND_COUNT] = {
    [ROWS_QKV] = BUFFER_WIDE, [ROWS_HEADS] = BUFFER_HEADS, [ROWS_GATED] = BUFFER_WIDE
};

/* Computes the stored widths of a layer's rows. */
static void find_widths(const gac_engine *e, const net_layer *n, int64_t widths[ROWS_KIND_COUNT])
{
    const gac_compute *c = &e->compute;
    int64_t qk = c->ops->stored(c->state, GAC_SIZE_HEAD, n->qk_size);
    int64_t v = c->ops->stored(c->state, GAC_SIZE_HEAD, n->v_size);
    widths[ROWS_QKV] = (n->n_q_heads + n->n_kv_heads) * qk + n->n_kv_heads * v;
    widths[ROWS_HEADS] = n->n_q_heads * v;
    widths[ROWS_GATED] = c->ops->stored(c->state, GAC_SIZE_WIDTH, n->mlp.width);
}

static gac_status add_rows(gac_engine *e, int buffer, int64_t width, gac_error *err)
{
    const gac_compute *c = &e->compute;
    if (!gac_grow((void **)&e->rows, e->n_rows, &e->row_capacity, sizeof *e->rows))
        return gac_error_no_memory(err);
    loaded_rows *rows = &e->rows[e->n_rows++];
    *rows = (loaded_rows){ buffer, width, NULL };
    if (e->n_rows <= BUFFER_COUNT)
        return c->ops->rows_create(c->state, width, false, &rows->rows, err);
    return c->ops->rows_within(c->state, e->rows[buffer].rows, width, &rows->rows, err);
}

static int64_t width_of(const gac_engine *e, const net_mlp *mlp)
{
    return e->compute.ops->stored(e->compute.state, GAC_SIZE_WIDTH, mlp->width);
}

/* Allocates each buffer at its largest width, and the residual stream. */
static gac_status make_rows(gac_engine *e, gac_error *err)
{
    int64_t widths[ROWS_KIND_COUNT], widest[BUFFER_COUNT] = { 0 };
    gac_status status =
        e->compute.ops->rows_create(e->compute.state, e->net.hidden, true, &e->residual, err);
    for (int32_t i = 0; i < e->net.n_layers; i++) {
        const net_layer *n = &e->net.layers[i];
        find_widths(e, n, widths);
        for (int kind = 0; kind < ROWS_KIND_COUNT; kind++)
            if (widths[kind] > widest[buffers[kind]])
                widest[buffers[kind]] = widths[kind];
        for (int32_t k = 0; k < n->n_experts; k++)
            widest[BUFFER_WIDE] = gac_max_i64(widest[BUFFER_WIDE], width_of(e, &n->experts[k]));
    }
    for (int buffer = 0; buffer < BUFFER_COUNT && status == GAC_OK; buffer++)
        status = add_rows(e, buffer, widest[buffer], err);
    return status;
}

/* Finds rows of a buffer and width, or makes them. */
static gac_status find_rows(gac_engine *e, int buffer, int64_t width, gac_rows **out,
                            gac_error *err)
{
    int32_t i = 0;
    gac_status status = GAC_OK;
    while (i < e->n_rows && (e->rows[i].buffer != buffer || e->rows[i].width != width))
        i++;
    if (i == e->n_rows)
        status = add_rows(e, buffer, width, err);
    if (status == GAC_OK)
        *out = e->rows[i].rows;
    return status;
}

static gac_status find_layer_rows(gac_engine *e, const net_layer *n, loaded_layer *l,
                                  gac_error *err)
{
    int64_t widths[ROWS_KIND_COUNT];
    gac_status status = GAC_OK;
    find_widths(e, n, widths);
    for (int kind = 0; kind < ROWS_KIND_COUNT && status == GAC_OK; kind++)
        if (widths[kind] > 0)
            status = find_rows(e, buffers[kind], widths[kind], &l->rows[kind], err);
    return status;
}

/* Makes what choosing experts needs, for all layers. */
static gac_status make_routing(gac_engine *e, gac_error *err)
{
    const gac_compute *c = &e->compute;
    int32_t most = 0;
    bool shared = false;
    for (int32_t i = 0; i < e->net.n_layers; i++) {
        most = e->net.layers[i].n_experts > most ? e->net.layers[i].n_experts : most;
        shared = shared || e->net.layers[i].shared_gate;
    }
    if (most == 0)
        return GAC_OK;
    gac_status status = c->ops->rows_create(c->state, e->net.hidden, false, &e->normed, err);
    if (status == GAC_OK)
        status = c->ops->routing_create(c->state, most, e->net.varies.n_experts_chosen, &e->routing,
                                        err);
    return status == GAC_OK && shared
               ? c->ops->routing_create(c->state, 1, 1, &e->shared_routing, err)
               : status;
}

static gac_status load_experts(gac_engine *e, const net_layer *n, loaded_layer *l, gac_error *err)
{
    l->experts = calloc((size_t)n->n_experts, sizeof *l->experts);
    if (!l->experts)
        return gac_error_no_memory(err);
    gac_status status = gac_engine_load_module(e, n->router, &l->router, err);
    if (status == GAC_OK && n->shared_gate)
        status = gac_engine_load_module(e, n->shared_gate, &l->shared_gate, err);
    for (int32_t i = 0; i < n->n_experts && status == GAC_OK; i++) {
        loaded_expert *expert = &l->experts[i];
        status = gac_engine_load_mlp(e, &n->experts[i], &expert->gate_up, &expert->down, err);
        if (status == GAC_OK)
            status = find_rows(e, BUFFER_WIDE, width_of(e, &n->experts[i]), &expert->rows, err);
    }
    return status;
}

static gac_status load_norms(gac_engine *e, int32_t layer, loaded_layer *l, gac_error *err)
{
    const net_layer *n = &e->net.layers[layer];
    const net_names *names = &e->net.varies.names;
    const net_norm *from[] = { &n->attention_norm, &n->mlp_norm, &n->attention_out_norm,
                               &n->mlp_out_norm };
    loaded_norm *to[] = { &l->attention_norm, &l->mlp_norm, &l->attention_out_norm,
                          &l->mlp_out_norm };
    gac_status status = GAC_OK;
    for (int i = 0; i < 4 && status == GAC_OK; i++)
        status = load_norm(e, from[i], to[i], err);
    if (status == GAC_OK)
        status = load_head_norm(e, layer, names->q_norm, n->q_norm, n->n_q_heads, &l->q_norm, err);
    if (status == GAC_OK)
        status = load_head_norm(e, layer, names->k_norm, n->k_norm, n->n_kv_heads, &l->k_norm, err);
    return status;
}

static gac_status load_layer(gac_engine *e, int32_t layer, gac_error *err)
{
    const gac_compute *c = &e->compute;
    const net_layer *n = &e->net.layers[layer];
    loaded_layer *l = &e->layers[layer];
    gac_status status = GAC_OK;
    l->qk_stored = c->ops->stored(c->state, GAC_SIZE_HEAD, n->qk_size);
    l->v_stored = c->ops->stored(c->state, GAC_SIZE_HEAD, n->v_size);
    const int end = n->mlp.width > 0 ? GAC_INPUT_COUNT : GAC_INPUT_GATE_UP;
    for (int input = 0; input < end && status == GAC_OK; input++)
        status =
            gac_engine_load_group(e, layer, (gac_engine_input)input, NULL, &l->matrix[input], err);
    if (status == GAC_OK)
        status = load_norms(e, layer, l, err);
    if (status == GAC_OK && n->n_experts > 0)
        status = load_experts(e, n, l, err);
    if (status == GAC_OK)
        status = c->ops->cache_create(c->state, 1, e->options.max_cached, n->n_kv_heads,
                                      l->qk_stored, l->v_stored, &l->cache, err);
    /* The rotary tables come last. They are filled at once, and a context that
     * is too long for memory has failed before. */
    return status == GAC_OK ? need_rope(e, n, l, err) : status;
}

gac_status gac_engine_load(gac_engine *e, gac_error *err)
{
    const gac_compute *c = &e->compute;
    gac_progress *progress = e->options.progress;
    e->layers = calloc((size_t)e->net.n_layers, sizeof *e->layers);
    if (!e->layers)
        return gac_error_no_memory(err);
    gac_progress_start(progress, "loading", "layers", (uint64_t)e->net.n_layers);
    gac_status status = load_outer(e, err);
    if (status == GAC_OK)
        status = make_rows(e, err);
    if (status == GAC_OK)
        status = make_routing(e, err);
    for (int32_t i = 0; i < e->net.n_layers && status == GAC_OK; i++) {
        status = load_layer(e, i, err);
        if (status == GAC_OK)
            status = find_layer_rows(e, &e->net.layers[i], &e->layers[i], err);
        gac_progress_step(progress, (uint64_t)i + 1);
    }
    if (status == GAC_OK)
        status = c->ops->finish(c->state, err);
    gac_progress_finish(progress);
    return status;
}

static void unload_norm(const gac_engine *e, const loaded_norm *norm)
{
    e->compute.ops->vector_free(e->compute.state, norm->weight);
    e->compute.ops->vector_free(e->compute.state, norm->bias);
}

static void unload_layer(gac_engine *e, int32_t layer)
{
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    loaded_layer *l = &e->layers[layer];
    const loaded_norm *norms[] = { &l->attention_norm, &l->mlp_norm, &l->attention_out_norm,
                                   &l->mlp_out_norm };
    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
        unload_norm(e, norms[k]);
    for (int k = 0; k < GAC_INPUT_COUNT; k++) {
        ops->matrix_free(state, l->matrix[k]);
        ops->matrix_free(state, l->kept[k]);
    }
    for (int32_t i = 0; l->experts && i < e->net.layers[layer].n_experts; i++) {
        ops->matrix_free(state, l->experts[i].gate_up);
        ops->matrix_free(state, l->experts[i].down);
    }
    free(l->experts);
    ops->matrix_free(state, l->router);
    ops->matrix_free(state, l->shared_gate);
    ops->vector_free(state, l->q_norm);
    ops->vector_free(state, l->k_norm);
    ops->cache_free(state, l->cache);
}

static void unload_outer(gac_engine *e)
{
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    if (ops->routing_free) {
        ops->routing_free(state, e->routing);
        ops->routing_free(state, e->shared_routing);
    }
    ops->rows_free(state, e->normed);
    ops->rows_free(state, e->residual);
    unload_norm(e, &e->norm);
    ops->matrix_free(state, e->head);
    ops->matrix_free(state, e->positions);
    ops->matrix_free(state, e->embedding);
}

void gac_engine_unload(gac_engine *e)
{
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    for (int32_t i = 0; e->layers && i < e->net.n_layers; i++)
        unload_layer(e, i);
    for (int32_t i = 0; i < e->n_ropes; i++) {
        ops->vector_free(state, e->ropes[i].cosines);
        ops->vector_free(state, e->ropes[i].sines);
    }
    for (int32_t i = 0; i < e->n_rows; i++)
        ops->rows_free(state, e->rows[i].rows);
    for (int k = 0; k < GAC_INPUT_COUNT; k++)
        if (e->grams[k])
            ops->gram_free(state, e->grams[k]);
    if (ops)
        unload_outer(e);
    for (int32_t i = 0; i < e->n_copies; i++)
        free(e->copies[i]);
    free(e->copies);
    free(e->layers);
    free(e->ropes);
    free(e->rows);
}

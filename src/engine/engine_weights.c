/* Copies a model's weights from its checkpoint to the device. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/floats.h"
#include "engine/engine_internal.h"

/* Maps a tensor of the checkpoint. Index -1 means none. */
static gac_status map_tensor(const net *n, int32_t index, gac_host_tensor *out, gac_error *err)
{
    char q[256], qt[160];
    *out = (gac_host_tensor){ NULL, GAC_DTYPE_F32, 0, 0, "" };
    if (index < 0)
        return GAC_OK;
    const gac_tensor *t = gac_checkpoint_tensor(n->checkpoint, index);
    if (t->dtype != GAC_DTYPE_F32 && t->dtype != GAC_DTYPE_F16 && t->dtype != GAC_DTYPE_BF16)
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: tensor \"%s\" is %s; only F32, F16 and BF16 are supported",
                             gac_quote(q, sizeof q, gac_checkpoint_path(n->checkpoint)),
                             gac_quote(qt, sizeof qt, t->name), gac_dtype_name(t->dtype));
    out->dtype = t->dtype;
    out->n_rows = t->n_axes == 2 ? t->shape[0] : 1;
    out->n_cols = t->shape[t->n_axes - 1];
    out->name = t->name;
    return gac_checkpoint_map(n->checkpoint, index, &out->data, err);
}

/* Puts the checkpoint's path in front of an error: a device knows no files. */
static gac_status name_file(const net *n, gac_status status, gac_error *err)
{
    char q[256];
    if (status != GAC_BAD_INPUT || !err)
        return status;
    gac_error what = *err;
    return gac_error_set(err, status, "%s: %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(n->checkpoint)), what.text);
}

enum { MAX_MODULES = 3 };

/* Describes how a module is stored, and maps its tensors. The caller frees the
 * parts. */
static gac_status describe_module(const net *n, const gac_module *m, gac_axis axis,
                                  gac_linear_module *out, gac_error *err)
{
    gac_linear_part *parts = calloc((size_t)m->n_parts, sizeof *parts);
    *out = (gac_linear_module){ .n_parts = m->n_parts, .parts = parts, .out = axis };
    if (!parts)
        return gac_error_no_memory(err);
    gac_status status = map_tensor(n, m->first, &out->first, err);
    if (status == GAC_OK)
        status = map_tensor(n, m->first_bias, &out->first_bias, err);
    for (int32_t i = 0; i < m->n_parts && status == GAC_OK; i++) {
        parts[i].start = m->parts[i].start;
        status = map_tensor(n, m->parts[i].weight, &parts[i].weight, err);
        if (status == GAC_OK)
            status = map_tensor(n, m->parts[i].bias, &parts[i].bias, err);
    }
    return status;
}

static gac_axis whole(int64_t size)
{
    return (gac_axis){ 1, size, size };
}

/* Puts a replacement in the place of a module's weight. */
static gac_status put_replacement(const replacement *by, gac_linear_module *module, gac_error *err)
{
    gac_linear_part *part = (gac_linear_part *)(uintptr_t)module->parts;
    if (module->n_parts != 1 || module->first.data)
        return gac_error_set(err, GAC_USAGE, "%s is stored in several parts",
                             part->weight.name ? part->weight.name : "a module");
    part->weight = *by->second;
    if (by->first)
        module->first = *by->first;
    return GAC_OK;
}

/* Loads modules that share an input as one matrix. replaced, if by is not NULL, is the one
 * whose weight it replaces. */
static gac_status load_matrix(gac_engine *e, gac_axis in, const gac_module *const *modules,
                              const gac_axis *axes, int n_modules, int replaced,
                              const replacement *by, gac_matrix **out, gac_error *err)
{
    gac_linear_module described[MAX_MODULES] = { 0 };
    gac_status status = GAC_OK;
    for (int i = 0; i < n_modules && status == GAC_OK; i++)
        status = describe_module(&e->net, modules[i], axes[i], &described[i], err);
    if (status == GAC_OK && by)
        status = put_replacement(by, &described[replaced], err);
    if (status == GAC_OK)
        status = name_file(
            &e->net,
            e->compute.ops->matrix_create(e->compute.state, in, described, n_modules, out, err),
            err);
    for (int i = 0; i < n_modules; i++)
        free((void *)(uintptr_t)described[i].parts);
    return status;
}

gac_status gac_engine_load_group(gac_engine *e, int32_t layer, gac_engine_input input,
                                 const replacement *by, gac_matrix **out, gac_error *err)
{
    const net_layer *n = &e->net.layers[layer];
    const gac_compute *c = &e->compute;
    const int64_t qk = c->ops->stored(c->state, GAC_SIZE_HEAD, n->qk_size);
    const int64_t v = c->ops->stored(c->state, GAC_SIZE_HEAD, n->v_size);
    const gac_axis hidden = whole(e->net.hidden), heads = { n->n_q_heads, n->v_size, v };
    const gac_axis width = { 1, n->width, c->ops->stored(c->state, GAC_SIZE_WIDTH, n->width) };
    const struct {
        gac_projection first; /* module of the group */
        int n_modules;
        gac_axis in;
        const gac_module *modules[MAX_MODULES];
        gac_axis axes[MAX_MODULES];
    } groups[GAC_INPUT_COUNT] = {
        [GAC_INPUT_QKV] = { GAC_PROJECTION_Q,
                            3,
                            hidden,
                            { n->q, n->k, n->v },
                            { { n->n_q_heads, n->qk_size, qk },
                              { n->n_kv_heads, n->qk_size, qk },
                              { n->n_kv_heads, n->v_size, v } } },
        [GAC_INPUT_O] = { GAC_PROJECTION_O, 1, heads, { n->o }, { hidden } },
        [GAC_INPUT_GATE_UP] = { GAC_PROJECTION_GATE,
                                2,
                                hidden,
                                { n->gate, n->up },
                                { width, width } },
        [GAC_INPUT_DOWN] = { GAC_PROJECTION_DOWN, 1, width, { n->down }, { hidden } },
    };
    return load_matrix(e, groups[input].in, groups[input].modules, groups[input].axes,
                       groups[input].n_modules,
                       by ? (int)by->projection - (int)groups[input].first : 0, by, out, err);
}

/* Loads the embedding, which may also be the head's weight. */
static gac_status load_embedding(gac_engine *e, gac_error *err)
{
    gac_linear_part part = { 0 };
    gac_linear_module module = { .n_parts = 1, .parts = &part, .out = whole(e->net.vocab) };
    gac_status status = map_tensor(&e->net, e->net.embedding, &part.weight, err);
    if (status == GAC_OK)
        status = name_file(&e->net,
                           e->compute.ops->matrix_create(e->compute.state, whole(e->net.hidden),
                                                         &module, 1, &e->embedding, err),
                           err);
    if (status != GAC_OK || !e->net.head)
        return status;
    gac_axis axis = whole(e->net.vocab);
    return load_matrix(e, whole(e->net.hidden), &e->net.head, &axis, 1, 0, NULL, &e->head, err);
}

static float float_at(const gac_host_tensor *t, int64_t i)
{
    if (t->dtype == GAC_DTYPE_F32)
        return ((const float *)t->data)[i];
    uint16_t code = ((const uint16_t *)t->data)[i];
    return t->dtype == GAC_DTYPE_F16 ? gac_f16_to_float(code) : gac_bf16_to_float(code);
}

static gac_status load_vector(gac_engine *e, int32_t tensor, gac_vector **out, gac_error *err)
{
    char q[256], qt[160];
    gac_host_tensor t;
    if (tensor < 0)
        return GAC_OK;
    gac_status status = map_tensor(&e->net, tensor, &t, err);
    float *data = status == GAC_OK ? malloc((size_t)t.n_cols * sizeof *data + 1) : NULL;
    if (status == GAC_OK && !data)
        status = gac_error_no_memory(err);
    for (int64_t i = 0; i < t.n_cols && status == GAC_OK; i++) {
        data[i] = float_at(&t, i);
        if (!(data[i] - data[i] == 0))
            status = gac_error_set(err, GAC_BAD_INPUT,
                                   "%s: tensor \"%s\": entry %lld is not a finite number",
                                   gac_quote(q, sizeof q, gac_checkpoint_path(e->net.checkpoint)),
                                   gac_quote(qt, sizeof qt, t.name), (long long)i);
    }
    if (status == GAC_OK)
        status = e->compute.ops->vector_create(e->compute.state, data, t.n_cols, out, err);
    free(data);
    return status;
}

/* Finds the rotary tables of a head size, or makes them. */
static gac_status need_rope(gac_engine *e, int64_t size, loaded_layer *l, gac_error *err)
{
    const gac_compute *c = &e->compute;
    float *cosines = NULL, *sines = NULL;
    gac_status status = GAC_OK;
    int32_t i = 0;
    while (i < e->n_ropes && e->ropes[i].size != size)
        i++;
    if (i == e->n_ropes) {
        if (!gac_grow((void **)&e->ropes, e->n_ropes, &e->rope_capacity, sizeof *e->ropes))
            return gac_error_no_memory(err);
        e->ropes[e->n_ropes++] = (loaded_rope){ .size = size };
        int64_t n = e->options.max_context * (size / 2);
        status = gac_rope_tables(&e->net, size, e->options.max_context, &cosines, &sines, err);
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
    widths[ROWS_GATED] = c->ops->stored(c->state, GAC_SIZE_WIDTH, n->width);
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

/* Allocates each buffer at its largest width, and the residual stream. */
static gac_status make_rows(gac_engine *e, gac_error *err)
{
    int64_t widths[ROWS_KIND_COUNT], widest[BUFFER_COUNT] = { 0 };
    gac_status status =
        e->compute.ops->rows_create(e->compute.state, e->net.hidden, true, &e->residual, err);
    for (int32_t i = 0; i < e->net.n_layers; i++) {
        find_widths(e, &e->net.layers[i], widths);
        for (int kind = 0; kind < ROWS_KIND_COUNT; kind++)
            if (widths[kind] > widest[buffers[kind]])
                widest[buffers[kind]] = widths[kind];
    }
    for (int buffer = 0; buffer < BUFFER_COUNT && status == GAC_OK; buffer++)
        status = add_rows(e, buffer, widest[buffer], err);
    return status;
}

/* Finds rows of the same buffer and width, or makes them. */
static gac_status find_rows(gac_engine *e, const net_layer *n, loaded_layer *l, gac_error *err)
{
    int64_t widths[ROWS_KIND_COUNT];
    gac_status status = GAC_OK;
    find_widths(e, n, widths);
    for (int kind = 0; kind < ROWS_KIND_COUNT && status == GAC_OK; kind++) {
        int32_t i = 0;
        while (i < e->n_rows &&
               (e->rows[i].buffer != buffers[kind] || e->rows[i].width != widths[kind]))
            i++;
        if (i == e->n_rows)
            status = add_rows(e, buffers[kind], widths[kind], err);
        if (status == GAC_OK)
            l->rows[kind] = e->rows[i].rows;
    }
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
    for (int input = 0; input < GAC_INPUT_COUNT && status == GAC_OK; input++)
        status =
            gac_engine_load_group(e, layer, (gac_engine_input)input, NULL, &l->matrix[input], err);
    if (status == GAC_OK)
        status = load_vector(e, n->attention_norm, &l->attention_norm, err);
    if (status == GAC_OK)
        status = load_vector(e, n->q_norm, &l->q_norm, err);
    if (status == GAC_OK)
        status = load_vector(e, n->k_norm, &l->k_norm, err);
    if (status == GAC_OK)
        status = load_vector(e, n->mlp_norm, &l->mlp_norm, err);
    if (status == GAC_OK)
        status = c->ops->cache_create(c->state, 1, e->options.max_cached, n->n_kv_heads,
                                      l->qk_stored, l->v_stored, &l->cache, err);
    /* The rotary tables come last. They are filled at once, and a context that
     * is too long for memory has failed before. */
    return status == GAC_OK ? need_rope(e, n->qk_size, l, err) : status;
}

gac_status gac_engine_load(gac_engine *e, gac_error *err)
{
    const gac_compute *c = &e->compute;
    gac_progress *progress = e->options.progress;
    e->layers = calloc((size_t)e->net.n_layers, sizeof *e->layers);
    if (!e->layers)
        return gac_error_no_memory(err);
    gac_progress_start(progress, "loading", "layers", (uint64_t)e->net.n_layers);
    gac_status status = load_embedding(e, err);
    if (status == GAC_OK)
        status = load_vector(e, e->net.norm, &e->norm, err);
    if (status == GAC_OK)
        status = make_rows(e, err);
    for (int32_t i = 0; i < e->net.n_layers && status == GAC_OK; i++) {
        status = load_layer(e, i, err);
        if (status == GAC_OK)
            status = find_rows(e, &e->net.layers[i], &e->layers[i], err);
        gac_progress_step(progress, (uint64_t)i + 1);
    }
    if (status == GAC_OK)
        status = c->ops->finish(c->state, err);
    gac_progress_finish(progress);
    return status;
}

void gac_engine_unload(gac_engine *e)
{
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    for (int32_t i = 0; e->layers && i < e->net.n_layers; i++) {
        loaded_layer *l = &e->layers[i];
        gac_vector *vectors[] = { l->attention_norm, l->mlp_norm, l->q_norm, l->k_norm };
        for (int k = 0; k < GAC_INPUT_COUNT; k++) {
            ops->matrix_free(state, l->matrix[k]);
            ops->matrix_free(state, l->kept[k]);
            ops->vector_free(state, vectors[k]);
        }
        ops->cache_free(state, l->cache);
    }
    for (int32_t i = 0; i < e->n_ropes; i++) {
        ops->vector_free(state, e->ropes[i].cosines);
        ops->vector_free(state, e->ropes[i].sines);
    }
    for (int32_t i = 0; i < e->n_rows; i++)
        ops->rows_free(state, e->rows[i].rows);
    for (int k = 0; k < GAC_INPUT_COUNT; k++)
        if (e->grams[k])
            ops->gram_free(state, e->grams[k]);
    if (ops) {
        ops->rows_free(state, e->residual);
        ops->vector_free(state, e->norm);
        ops->matrix_free(state, e->head);
        ops->matrix_free(state, e->embedding);
    }
    free(e->layers);
    free(e->ropes);
    free(e->rows);
}

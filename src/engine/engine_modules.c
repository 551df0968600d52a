/* Linear modules of a model as a device wants them: rows of stored weights, and factors. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "engine/engine_internal.h"

gac_status gac_engine_map(const net *n, int32_t index, gac_host_tensor *out, gac_error *err)
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

gac_status gac_engine_name_file(const net *n, gac_status status, gac_error *err)
{
    char q[256];
    if (status != GAC_BAD_INPUT || !err)
        return status;
    gac_error what = *err;
    return gac_error_set(err, status, "%s: %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(n->checkpoint)), what.text);
}

enum { MAX_MODULES = 3 };

/* Makes the tensor n rows of itself, from row first on. A vector has columns only. */
static void take_rows(gac_host_tensor *t, int64_t first, int64_t n)
{
    const int64_t size = gac_dtype_bits(t->dtype) / 8;
    bool vector = t->n_rows == 1;
    if (!t->data)
        return;
    t->data = (const char *)t->data + first * size * (vector ? 1 : t->n_cols);
    *(vector ? &t->n_cols : &t->n_rows) = n;
}

/* Puts a copy with rows and columns exchanged in the tensor's place. The engine owns it. */
static gac_status transpose(gac_engine *e, gac_host_tensor *t, gac_error *err)
{
    const size_t size = (size_t)gac_dtype_bits(t->dtype) / 8;
    const int64_t n_rows = t->n_cols, n_cols = t->n_rows;
    char *copy = malloc((size_t)n_rows * (size_t)n_cols * size + 1);
    if (!copy || !gac_grow((void **)&e->copies, e->n_copies, &e->copy_capacity, sizeof copy)) {
        free(copy);
        return gac_error_no_memory(err);
    }
    e->copies[e->n_copies++] = copy;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < n_cols; k++)
            memcpy(copy + (size_t)(i * n_cols + k) * size,
                   (const char *)t->data + (size_t)(k * n_rows + i) * size, size);
    *t = (gac_host_tensor){ copy, t->dtype, n_rows, n_cols, t->name };
    return GAC_OK;
}

/* Describes the rows of one part of a module that belong to the outputs wanted. The outputs of
 * the part begin at *at, which moves to its end. A part without such rows is left out. */
static gac_status describe_part(gac_engine *e, const net_linear *l, const gac_module_part *from,
                                int64_t *at, gac_linear_module *out, gac_error *err)
{
    gac_linear_part part = { .start = from->start };
    gac_status status = gac_engine_map(&e->net, from->weight, &part.weight, err);
    if (status == GAC_OK)
        status = gac_engine_map(&e->net, from->bias, &part.bias, err);
    if (status != GAC_OK)
        return status;
    const int64_t n_rows = l->module->transposed ? part.weight.n_cols : part.weight.n_rows;
    const int64_t first = gac_max_i64(l->first - *at, 0);
    const int64_t end = gac_min_i64(l->first + l->n - *at, n_rows);
    *at += n_rows;
    if (first >= end)
        return GAC_OK;
    if (l->module->transposed)
        status = transpose(e, &part.weight, err);
    if (end - first < n_rows) {
        take_rows(&part.weight, first, end - first);
        take_rows(&part.bias, first, end - first);
    }
    ((gac_linear_part *)(uintptr_t)out->parts)[out->n_parts++] = part;
    return status;
}

/* Describes outputs of a module, and maps its tensors. The caller frees the parts. */
static gac_status describe_module(gac_engine *e, const net_linear *l, gac_axis axis,
                                  gac_linear_module *out, gac_error *err)
{
    const gac_module *m = l->module;
    int64_t at = 0;
    *out = (gac_linear_module){ .parts = calloc((size_t)m->n_parts, sizeof(gac_linear_part)),
                                .out = axis };
    if (!out->parts)
        return gac_error_no_memory(err);
    gac_status status = gac_engine_map(&e->net, m->first, &out->first, err);
    if (status == GAC_OK)
        status = gac_engine_map(&e->net, m->first_bias, &out->first_bias, err);
    for (int32_t i = 0; i < m->n_parts && status == GAC_OK; i++)
        status = describe_part(e, l, &m->parts[i], &at, out, err);
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
 * whose weight it replaces. Absent modules are skipped. */
static gac_status load_matrix(gac_engine *e, gac_axis in, const net_linear *modules,
                              const gac_axis *axes, int n_modules, int replaced,
                              const replacement *by, gac_matrix **out, gac_error *err)
{
    gac_linear_module described[MAX_MODULES] = { 0 };
    gac_status status = GAC_OK;
    int n = 0;
    for (int i = 0; i < n_modules && status == GAC_OK; i++)
        if (modules[i].module)
            status = describe_module(e, &modules[i], axes[i], &described[n++], err);
    if (status == GAC_OK && by)
        status = put_replacement(by, &described[replaced], err);
    if (status == GAC_OK)
        status = gac_engine_name_file(
            &e->net, e->compute.ops->matrix_create(e->compute.state, in, described, n, out, err),
            err);
    for (int i = 0; i < n; i++)
        free((void *)(uintptr_t)described[i].parts);
    return status;
}

gac_status gac_engine_load_module(gac_engine *e, const gac_module *module, gac_matrix **out,
                                  gac_error *err)
{
    const net_linear all = { module, 0, module->n_out };
    const gac_axis axis = whole(module->n_out);
    return load_matrix(e, whole(module->n_in), &all, &axis, 1, 0, NULL, out, err);
}

gac_status gac_engine_load_mlp(gac_engine *e, const net_mlp *mlp, gac_matrix **gate_up,
                               gac_matrix **down, gac_error *err)
{
    const gac_axis hidden = whole(e->net.hidden);
    const gac_axis width = { 1, mlp->width,
                             e->compute.ops->stored(e->compute.state, GAC_SIZE_WIDTH, mlp->width) };
    const net_linear in[2] = { mlp->gate, mlp->up };
    const gac_axis axes[2] = { width, width };
    gac_status status = load_matrix(e, hidden, in, axes, 2, 0, NULL, gate_up, err);
    return status == GAC_OK ? load_matrix(e, width, &mlp->down, &hidden, 1, 0, NULL, down, err)
                            : status;
}

gac_status gac_engine_load_group(gac_engine *e, int32_t layer, gac_engine_input input,
                                 const replacement *by, gac_matrix **out, gac_error *err)
{
    const net_layer *n = &e->net.layers[layer];
    const gac_compute *c = &e->compute;
    const int64_t qk = c->ops->stored(c->state, GAC_SIZE_HEAD, n->qk_size);
    const int64_t v = c->ops->stored(c->state, GAC_SIZE_HEAD, n->v_size);
    const gac_axis hidden = whole(e->net.hidden), heads = { n->n_q_heads, n->v_size, v };
    const gac_axis width = { 1, n->mlp.width,
                             c->ops->stored(c->state, GAC_SIZE_WIDTH, n->mlp.width) };
    const struct {
        gac_projection first; /* module of the group */
        int n_modules;
        gac_axis in;
        const net_linear modules[MAX_MODULES];
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
                                { n->mlp.gate, n->mlp.up },
                                { width, width } },
        [GAC_INPUT_DOWN] = { GAC_PROJECTION_DOWN, 1, width, { n->mlp.down }, { hidden } },
    };
    return load_matrix(e, groups[input].in, groups[input].modules, groups[input].axes,
                       groups[input].n_modules,
                       by ? (int)by->projection - (int)groups[input].first : 0, by, out, err);
}

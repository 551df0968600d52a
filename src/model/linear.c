#include <string.h>

#include "model/model_internal.h"

int32_t linear_tensor(const linear *l, side at)
{
    int32_t tensor = at == SIDE_IN ? l->in.tensor : l->out[0].tensor;
    return tensor >= 0 ? tensor : l->weight;
}

/* Finds the bias of module over extent outputs. Its tensor is -1 if absent. */
static gac_status find_bias(builder *b, const char *module, int32_t weight, int64_t extent,
                            segment *out, gac_error *err)
{
    int32_t tensor = builder_find(b, "%s.bias", module);
    *out = (segment){ .tensor = tensor, .extent = extent };
    if (tensor < 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, tensor, 1, err);
    if (status != GAC_OK)
        return status;
    int64_t n = builder_tensor(b, tensor)->shape[0];
    if (n != extent)
        return builder_contradiction(b, tensor, "entries", n, weight, "outputs", extent, err);
    b->explained[tensor] = true;
    return GAC_OK;
}

static gac_status alloc_segments(builder *b, linear *l, int32_t n, gac_error *err)
{
    l->out = gac_arena_alloc(b->arena, (size_t)n * sizeof *l->out);
    l->bias = gac_arena_alloc(b->arena, (size_t)n * sizeof *l->bias);
    l->n_segments = n;
    return l->out && l->bias ? GAC_OK : gac_error_no_memory(err);
}

gac_status linear_from_weight(builder *b, const char *module, int32_t weight, bool transposed,
                              linear *out, gac_error *err)
{
    gac_status status = builder_expect_axes(b, weight, 2, err);
    if (status == GAC_OK)
        status = alloc_segments(b, out, 1, err);
    if (status != GAC_OK)
        return status;
    const gac_tensor *t = builder_tensor(b, weight);
    int32_t n_axis = transposed ? 1 : 0, k_axis = 1 - n_axis;
    out->present = true;
    out->n_out = t->shape[n_axis];
    out->n_in = t->shape[k_axis];
    out->out[0] = (segment){ weight, n_axis, 0, out->n_out };
    out->in = (segment){ weight, k_axis, 0, out->n_in };
    out->n_ops = 1;
    status = builder_add_gemm(b, weight, n_axis, k_axis, &out->first_op, err);
    if (status == GAC_OK)
        quantised_weight(b, module, weight, out);
    if (status == GAC_OK)
        status = find_bias(b, module, weight, out->n_out, &out->bias[0], err);
    return status;
}

/* Binds the rank on both factors, and on the first factor's bias if it has one. */
static gac_status bind_rank(builder *b, const pair_names *names, int32_t first, int32_t second,
                            int32_t dim, int32_t *first_bias, gac_error *err)
{
    segment bias = { .tensor = -1 };
    int64_t rank = b->dims[dim].dim.size;
    gac_status status =
        builder_add_place(b, dim, (gac_place){ first, 0, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    if (status == GAC_OK)
        status =
            builder_add_place(b, dim, (gac_place){ second, 1, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    if (status == GAC_OK)
        status = find_bias(b, names->first_module, first, rank, &bias, err);
    if (status == GAC_OK && bias.tensor >= 0)
        status = builder_add_place(
            b, dim, (gac_place){ bias.tensor, 0, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    *first_bias = bias.tensor;
    return status;
}

gac_status linear_from_pair(builder *b, const pair_names *names, int32_t first, int32_t second,
                            int32_t rank_dim, linear *out, gac_error *err)
{
    gac_status status = builder_expect_axes(b, first, 2, err);
    if (status == GAC_OK)
        status = builder_expect_axes(b, second, 2, err);
    if (status != GAC_OK)
        return status;
    const gac_tensor *f = builder_tensor(b, first), *s = builder_tensor(b, second);
    int64_t rank = f->shape[0];
    if (s->shape[1] != rank)
        return builder_contradiction(b, first, "rows", rank, second, "columns", s->shape[1], err);
    if (rank_dim < 0) {
        status = builder_add_dim(b, GAC_ROLE_RANK, rank, names->display, GAC_EXACT,
                                 "zero rows in the first factor, zero columns in the second",
                                 &rank_dim, err);
        if (status != GAC_OK)
            return status;
        b->dims[rank_dim].dim.compressed = true;
        b->dims[rank_dim].dim.config_key = names->config_key;
    } else if (b->dims[rank_dim].dim.size != rank) {
        return builder_contradiction(b, first, "rows", rank, b->dims[rank_dim].first_tensor,
                                     "of the same shared rank", b->dims[rank_dim].dim.size, err);
    }
    int32_t second_op;
    status = bind_rank(b, names, first, second, rank_dim, &out->first_bias, err);
    if (status == GAC_OK)
        status = alloc_segments(b, out, 1, err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, first, 0, 1, &out->first_op, err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, second, 0, 1, &second_op, err);
    if (status != GAC_OK)
        return status;
    out->present = out->factorised = true;
    out->n_ops = 2;
    out->n_out = s->shape[0];
    out->n_in = f->shape[1];
    out->in = (segment){ first, 1, 0, out->n_in };
    out->out[0] = (segment){ second, 0, 0, out->n_out };
    return find_bias(b, names->second_module, second, out->n_out, &out->bias[0], err);
}

/* Finds how module is stored. A weight under its own name is dense. */
static gac_status resolve_stored(builder *b, const char *module, bool transposed, side hidden_at,
                                 linear *out, gac_error *err)
{
    gac_status status = convention_basis(b, module, out, err);
    if (status == GAC_OK && !out->present)
        status = convention_quantised(b, module, hidden_at, out, err);
    if (status != GAC_OK || out->present)
        return status;
    int32_t weight = builder_find(b, "%s.weight", module);
    if (weight >= 0)
        return linear_from_weight(b, module, weight, transposed, out, err);
    status = convention_palu(b, module, out, err);
    if (status == GAC_OK && !out->present)
        status = convention_svd_llm(b, module, out, err);
    if (status == GAC_OK && !out->present)
        status = convention_pair(b, module, hidden_at, out, err);
    return status;
}

/* Keeps how module is stored, for the engine. */
static gac_status add_module(builder *b, const char *module, bool transposed, const linear *l,
                             gac_error *err)
{
    gac_module m = { .name = builder_display(b, "%s", module),
                     .n_out = l->n_out,
                     .n_in = l->n_in,
                     .first = l->factorised ? l->in.tensor : -1,
                     .first_bias = l->first_bias,
                     .n_parts = l->n_segments,
                     .transposed = transposed,
                     .quantised = l->why_fixed != NULL };
    gac_module_part *parts = gac_arena_alloc(b->arena, (size_t)m.n_parts * sizeof *parts);
    if (!m.name || !parts ||
        !gac_grow((void **)&b->modules, b->n_modules, &b->module_capacity, sizeof m))
        return gac_error_no_memory(err);
    int64_t start = 0;
    for (int32_t i = 0; i < m.n_parts; i++) {
        parts[i] =
            (gac_module_part){ l->packed ? l->weight : l->out[i].tensor, l->bias[i].tensor, start };
        start += l->factorised ? builder_tensor(b, l->out[i].tensor)->shape[1] : 0;
    }
    m.parts = parts;
    b->modules[b->n_modules++] = m;
    return GAC_OK;
}

gac_status linear_resolve(builder *b, const char *module, bool transposed, side hidden_at,
                          linear *out, gac_error *err)
{
    memset(out, 0, sizeof *out);
    out->first_bias = -1;
    gac_status status = resolve_stored(b, module, transposed, hidden_at, out, err);
    if (status == GAC_OK && out->present)
        status = add_module(b, module, transposed, out, err);
    return status;
}

/* Binds the slices of dim that lie in one segment of the axis [from, to). */
static gac_status bind_segment(builder *b, const segment *s, int64_t from, int32_t dim,
                               int64_t start, int64_t n_slices, gac_repeat repeat, gac_error *err)
{
    int64_t size = b->dims[dim].dim.size;
    int64_t to = from + s->extent, end = start + n_slices * size;
    int64_t low = start > from ? start : from, high = end < to ? end : to;
    if (s->tensor < 0 || low >= high)
        return GAC_OK;
    if ((low - start) % size != 0 || (high - low) % size != 0)
        return builder_contradiction(b, s->tensor, "rows, which cut through a slice", s->extent,
                                     b->dims[dim].first_tensor >= 0 ? b->dims[dim].first_tensor
                                                                    : s->tensor,
                                     "per slice", size, err);
    return builder_add_place(b, dim,
                             (gac_place){ s->tensor, s->axis, repeat, s->start + low - from,
                                          (high - low) / size, false },
                             err);
}

/* Tells the operator of a packed weight which dimension it sees. */
static gac_status add_term(builder *b, const linear *l, side at, int32_t dim, int64_t n_slices,
                           gac_error *err)
{
    gac_op_axis axis = at == SIDE_IN ? GAC_OP_GEMM_K : GAC_OP_GEMM_N;
    return builder_add_term(b, l->first_op, (gac_term){ dim, axis, n_slices }, err);
}

gac_status linear_bind(builder *b, const linear *l, side at, int32_t dim, int64_t start,
                       int64_t n_slices, gac_repeat repeat, gac_error *err)
{
    gac_status status = GAC_OK;
    if (l->why_fixed) {
        b->dims[dim].dim.exactness = GAC_REFUSED;
        b->dims[dim].dim.reason = l->why_fixed;
    }
    if (b->dims[dim].dim.size == 0)
        return GAC_OK;
    if (l->packed)
        status = add_term(b, l, at, dim, n_slices, err);
    if (status != GAC_OK)
        return status;
    if (at == SIDE_IN)
        return bind_segment(b, &l->in, 0, dim, start, n_slices, repeat, err);
    int64_t from = 0;
    for (int32_t i = 0; i < l->n_segments && status == GAC_OK; i++) {
        status = bind_segment(b, &l->out[i], from, dim, start, n_slices, repeat, err);
        if (status == GAC_OK)
            status = bind_segment(b, &l->bias[i], from, dim, start, n_slices, repeat, err);
        from += l->out[i].extent;
    }
    return status;
}

/* Checks that a packed weight has the hidden size on this side. */
static gac_status bind_packed_hidden(builder *b, const linear *l, side at, gac_error *err)
{
    int64_t size = at == SIDE_IN ? l->n_in : l->n_out;
    const segment *s = at == SIDE_IN ? &l->in : &l->out[0];
    gac_status status = GAC_OK;
    if (s->tensor >= 0)
        status = builder_bind_hidden(b, s->tensor, s->axis, err);
    if (status != GAC_OK || b->hidden < 0)
        return status;
    const dim_entry *d = &b->dims[b->hidden];
    if (d->dim.size != size)
        return builder_contradiction(b, l->weight, "on its hidden axis", size, d->first_tensor,
                                     "there", d->dim.size, err);
    if (at == SIDE_OUT && l->bias[0].tensor >= 0)
        status = builder_bind_hidden(b, l->bias[0].tensor, 0, err);
    return status == GAC_OK ? add_term(b, l, at, b->hidden, 1, err) : status;
}

gac_status linear_bind_hidden(builder *b, const linear *l, side at, gac_error *err)
{
    if (l->why_fixed) {
        b->hidden_exactness = GAC_REFUSED;
        b->hidden_reason = l->why_fixed;
    }
    if (l->why_fixed && b->hidden >= 0) {
        b->dims[b->hidden].dim.exactness = GAC_REFUSED;
        b->dims[b->hidden].dim.reason = l->why_fixed;
    }
    if (l->packed)
        return bind_packed_hidden(b, l, at, err);
    if (at == SIDE_IN)
        return builder_bind_hidden(b, l->in.tensor, l->in.axis, err);
    if (l->n_segments != 1) {
        int64_t rows = l->out[0].extent;
        return builder_contradiction(b, l->out[0].tensor, "rows of a grouped output", rows,
                                     l->in.tensor, "inputs", l->n_in, err);
    }
    gac_status status = builder_bind_hidden(b, l->out[0].tensor, l->out[0].axis, err);
    if (status == GAC_OK && l->bias[0].tensor >= 0)
        status = builder_bind_hidden(b, l->bias[0].tensor, 0, err);
    return status;
}

void linear_split(builder *b, const linear *l, side at)
{
    /* Tensor parallelism splits only the factor at this side. Every GPU has the
     * whole other factor. */
    int32_t first = l->factorised && at == SIDE_OUT ? l->first_op + 1 : l->first_op;
    int32_t last = l->factorised && at == SIDE_IN ? l->first_op : l->first_op + l->n_ops - 1;
    for (int32_t i = first; i <= last; i++)
        b->ops[i].op.split = at == SIDE_OUT ? GAC_SPLIT_N : GAC_SPLIT_K;
}

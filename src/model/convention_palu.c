/* PaLU: X.VT.weight [sum of r_i, in] and one X.U.{i}.weight [out / G, r_i] per
 * group of heads. Each group has its own rank r_i. */
#include <string.h>

#include "model/model_internal.h"

/* Compares the config's ranks of module, which may be out of date, with the
 * tensors. */
static gac_status check_declared(builder *b, const char *module, int32_t first_dim, int32_t n,
                                 gac_error *err)
{
    const json_t *all = json_object_get(b->config, "head_wise_ranks");
    const json_t *ranks = json_object_get(all, module);
    bool same = json_array_size(ranks) == (size_t)n;
    for (int32_t i = 0; i < n; i++) {
        const json_t *rank = json_array_get(ranks, (size_t)i);
        if (json_is_integer(rank))
            b->dims[first_dim + i].dim.declared = json_integer_value(rank);
        same = same && json_integer_value(rank) == b->dims[first_dim + i].dim.size;
    }
    if (!same && all)
        return builder_note(b, err, "config.json: head_wise_ranks of %s do not match its tensors",
                            module);
    return GAC_OK;
}

static gac_status add_group(builder *b, const char *module, int32_t i, int32_t vt, int64_t *row,
                            linear *out, gac_error *err)
{
    int32_t dim, op;
    int32_t u = builder_find(b, "%s.U.%d.weight", module, i);
    gac_status status = builder_expect_axes(b, u, 2, err);
    if (status != GAC_OK)
        return status;
    const gac_tensor *t = builder_tensor(b, u);
    int64_t rank = t->shape[1], rows = builder_tensor(b, vt)->shape[0];
    if (rank > rows - *row)
        return builder_contradiction(b, u, "columns", rank, vt, "rows left for it", rows - *row,
                                     err);
    status = builder_add_dim(
        b, GAC_ROLE_RANK, rank, builder_display(b, "%s.rank.%d", module, i), GAC_EXACT,
        "zero rows at the end of the group's slice of VT, zero columns in U", &dim, err);
    if (status != GAC_OK)
        return status;
    b->dims[dim].dim.compressed = true;
    b->dims[dim].dim.config_key = "head_wise_ranks";
    status = builder_add_place(b, dim, (gac_place){ vt, 0, GAC_REPEAT_GROUP, *row, 1, false }, err);
    if (status == GAC_OK)
        status = builder_add_place(b, dim, (gac_place){ u, 1, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, u, 0, 1, &op, err);
    out->out[i] = (segment){ u, 0, 0, t->shape[0] };
    int32_t bias = builder_find(b, "%s.U.%d.bias", module, i);
    out->bias[i] = (segment){ .tensor = bias, .extent = t->shape[0] };
    if (status == GAC_OK && bias >= 0) {
        status = builder_expect_axes(b, bias, 1, err);
        if (status == GAC_OK && builder_tensor(b, bias)->shape[0] != t->shape[0])
            status = builder_contradiction(b, bias, "entries", builder_tensor(b, bias)->shape[0], u,
                                           "rows", t->shape[0], err);
        b->explained[bias] = true;
    }
    *row += rank;
    out->n_out += t->shape[0];
    return status;
}

gac_status convention_palu(builder *b, const char *module, linear *out, gac_error *err)
{
    int32_t vt = builder_find(b, "%s.VT.weight", module);
    int32_t n_groups = 0;
    while (vt >= 0 && builder_find(b, "%s.U.%d.weight", module, n_groups) >= 0)
        n_groups++;
    if (n_groups == 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, vt, 2, err);
    if (status != GAC_OK)
        return status;
    out->n_in = builder_tensor(b, vt)->shape[1];
    out->in = (segment){ vt, 1, 0, out->n_in };
    out->out = gac_arena_alloc(b->arena, (size_t)n_groups * sizeof *out->out);
    out->bias = gac_arena_alloc(b->arena, (size_t)n_groups * sizeof *out->bias);
    if (!out->out || !out->bias)
        return gac_error_no_memory(err);
    out->n_segments = n_groups;
    out->n_ops = n_groups + 1;
    status = builder_add_gemm(b, vt, 0, 1, &out->first_op, err);
    int64_t row = 0;
    int32_t first_dim = b->n_dims;
    for (int32_t i = 0; i < n_groups && status == GAC_OK; i++)
        status = add_group(b, module, i, vt, &row, out, err);
    if (status != GAC_OK)
        return status;
    int64_t rows = builder_tensor(b, vt)->shape[0];
    if (row != rows)
        return builder_contradiction(b, vt, "rows", rows, out->out[n_groups - 1].tensor,
                                     "columns together with its groups", row, err);
    b->found |= FOUND_PALU;
    out->present = out->factorised = true;
    return check_declared(b, module, first_dim, n_groups, err);
}

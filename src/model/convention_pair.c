/* Two chained factors stored below the module's name. ASVD and Dobi-SVD both
 * write X.ALinear and X.BLinear, in opposite order. The shapes show which
 * factor comes first. Any other two matrices that chain are read as a low-rank
 * pair of an unknown tool. */
#include <string.h>

#include "model/model_internal.h"

/* Returns the rank if first [r, in] and second [out, r] chain, otherwise -1. If
 * the hidden size is known, it must be on the side hidden_at. */
static int64_t chained_rank(const builder *b, int32_t first, int32_t second, side hidden_at)
{
    const gac_tensor *f = builder_tensor(b, first), *s = builder_tensor(b, second);
    if (f->n_axes != 2 || s->n_axes != 2 || f->shape[0] != s->shape[1])
        return -1;
    int64_t outer = hidden_at == SIDE_IN ? f->shape[1] : s->shape[0];
    if (b->hidden >= 0 && outer != b->dims[b->hidden].dim.size)
        return -1;
    return f->shape[0];
}

/* Puts the two factors in order. If both orders chain, the smaller rank wins.
 * If the ranks are equal too, the given order stays. */
static bool order_pair(const builder *b, side hidden_at, int32_t *first, int32_t *second)
{
    int64_t forward = chained_rank(b, *first, *second, hidden_at);
    int64_t backward = chained_rank(b, *second, *first, hidden_at);
    if (forward < 0 && backward < 0)
        return false;
    if (forward < 0 || (backward >= 0 && backward < forward)) {
        int32_t swap = *first;
        *first = *second;
        *second = swap;
    }
    return true;
}

static gac_status does_not_chain(const builder *b, int32_t x, int32_t y, gac_error *err)
{
    char qp[200], qx[160], qy[160];
    return gac_error_set(
        err, GAC_BAD_INPUT,
        "%s: tensors \"%s\" and \"%s\" are two factors, but their shapes do not chain",
        gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint)),
        gac_quote(qx, sizeof qx, builder_tensor(b, x)->name),
        gac_quote(qy, sizeof qy, builder_tensor(b, y)->name));
}

static gac_status check_declared(builder *b, const char *module, int32_t dim, gac_error *err)
{
    const json_t *all = json_object_get(b->config, "truncation_ranks");
    const json_t *rank = json_object_get(all, module);
    if (!json_is_integer(rank))
        return GAC_OK;
    b->dims[dim].dim.declared = json_integer_value(rank);
    if (json_integer_value(rank) == b->dims[dim].dim.size)
        return GAC_OK;
    return builder_note(
        b, err, "config.json: truncation_ranks of %s states %lld, tensors have %lld", module,
        (long long)json_integer_value(rank), (long long)b->dims[dim].dim.size);
}

static gac_status a_b_linear(builder *b, const char *module, side hidden_at, linear *out,
                             gac_error *err)
{
    int32_t a = builder_find(b, "%s.ALinear.weight", module);
    int32_t bl = builder_find(b, "%s.BLinear.weight", module);
    if (a < 0 || bl < 0)
        return GAC_OK;
    int32_t first = bl, second = a;
    if (!order_pair(b, hidden_at, &first, &second))
        return does_not_chain(b, a, bl, err);
    bool asvd = first == bl;
    const char *in_module =
        gac_arena_printf(b->arena, "%s.%s", module, asvd ? "BLinear" : "ALinear");
    const char *out_module =
        gac_arena_printf(b->arena, "%s.%s", module, asvd ? "ALinear" : "BLinear");
    if (!in_module || !out_module)
        return gac_error_no_memory(err);
    b->found |= asvd ? FOUND_ASVD : FOUND_DOBI;
    int32_t dim = b->n_dims;
    pair_names names = { builder_display(b, "%s.rank", module), in_module, out_module,
                         asvd ? "truncation_ranks" : NULL };
    gac_status status = linear_from_pair(b, &names, first, second, -1, out, err);
    return status == GAC_OK ? check_declared(b, module, dim, err) : status;
}

/* Returns a tensor's module: its name without ".weight". */
static const char *module_of(builder *b, int32_t tensor)
{
    const char *name = builder_tensor(b, tensor)->name;
    size_t n = strlen(name);
    static const char suffix[] = ".weight";
    size_t m = sizeof suffix - 1;
    if (n > m && strcmp(name + n - m, suffix) == 0)
        n -= m;
    return gac_arena_printf(b->arena, "%.*s", (int)n, name);
}

static gac_status any_pair(builder *b, const char *module, side hidden_at, linear *out,
                           gac_error *err)
{
    int32_t first_name, n_names, factors[2], n_factors = 0;
    const char *prefix = gac_arena_printf(b->arena, "%s.", module);
    if (!prefix)
        return gac_error_no_memory(err);
    gac_status status = builder_find_prefix(b, prefix, &first_name, &n_names, err);
    if (status != GAC_OK)
        return status;
    for (int32_t i = 0; i < n_names; i++) {
        int32_t tensor = b->sorted[first_name + i];
        if (builder_tensor(b, tensor)->n_axes != 2)
            continue;
        if (n_factors == 2)
            return GAC_OK;
        factors[n_factors++] = tensor;
    }
    if (n_factors != 2 || !order_pair(b, hidden_at, &factors[0], &factors[1]))
        return GAC_OK;
    const gac_tensor *f = builder_tensor(b, factors[0]), *s = builder_tensor(b, factors[1]);
    int64_t smaller = f->shape[1] < s->shape[0] ? f->shape[1] : s->shape[0];
    /* If the hidden size shows the order, the rank may be larger than both
     * sides: it may have been padded. */
    if (f->shape[0] > smaller && b->hidden < 0)
        return GAC_OK;
    pair_names names = { builder_display(b, "%s.rank", module), module_of(b, factors[0]),
                         module_of(b, factors[1]), NULL };
    if (!names.first_module || !names.second_module)
        return gac_error_no_memory(err);
    b->found |= FOUND_LOW_RANK;
    return linear_from_pair(b, &names, factors[0], factors[1], -1, out, err);
}

gac_status convention_pair(builder *b, const char *module, side hidden_at, linear *out,
                           gac_error *err)
{
    gac_status status = a_b_linear(b, module, hidden_at, out, err);
    if (status != GAC_OK || out->present)
        return status;
    return any_pair(b, module, hidden_at, out, err);
}

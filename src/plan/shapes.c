/* Lists the operator shapes that a plan depends on. */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

typedef struct shape_list {
    const gac_model *model;
    const gac_plan_options *options;
    gac_plan_shapes *out;
    size_t gemm_room, sdpa_room;
    gac_error *err;
} shape_list;

static bool make_room(void **items, size_t n, size_t *room, size_t item_bytes)
{
    if (n < *room)
        return true;
    size_t more = *room ? *room * 2 : 256;
    void *grown = realloc(*items, more * item_bytes);
    if (!grown)
        return false;
    *items = grown;
    *room = more;
    return true;
}

static gac_status add_op(shape_list *l, const gac_op *op, const int64_t *sizes)
{
    const gac_workload *w = l->options->workload;
    const gac_target *target = &l->options->target;
    gac_plan_shapes *out = l->out;
    for (int i = 0; i < w->n_phases; i++) {
        const gac_phase *phase = &w->phases[i];
        double calls;
        gac_gemm_shape call;
        void *items = op->kind == GAC_OP_GEMM ? (void *)out->gemm : (void *)out->sdpa;
        bool room = op->kind == GAC_OP_GEMM
                        ? make_room(&items, out->n_gemm, &l->gemm_room, sizeof *out->gemm)
                        : make_room(&items, out->n_sdpa, &l->sdpa_room, sizeof *out->sdpa);
        if (!room)
            return gac_error_no_memory(l->err);
        if (op->kind == GAC_OP_SDPA) {
            out->sdpa = items;
            out->sdpa[out->n_sdpa++] = gac_plan_sdpa_shape(l->model, target, phase, op, sizes);
            continue;
        }
        out->gemm = items;
        gac_plan_gemm_sizes(l->model, target, op, sizes, &call.n, &call.k);
        call.m = gac_plan_gemm_rows(phase, op, &calls);
        if (call.n > 0 && call.k > 0)
            out->gemm[out->n_gemm++] = call;
    }
    return GAC_OK;
}

static bool sees(const gac_op *op, const plan_groups *groups, int32_t group)
{
    for (int32_t t = 0; t < op->n_terms; t++)
        if (groups->group_of[op->terms[t].dim] == group)
            return true;
    return false;
}

static int by_gemm(const void *a, const void *b)
{
    const gac_gemm_shape *x = a, *y = b;
    if (x->m != y->m)
        return x->m < y->m ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->k < y->k ? -1 : x->k > y->k;
}

static int by_sdpa(const void *a, const void *b)
{
    const gac_sdpa_shape *x = a, *y = b;
    const int64_t p[] = { x->batch, x->n_q_heads, x->n_kv_heads, x->n_q,
                          x->n_kv,  x->qk_head,   x->v_head,     x->causal };
    const int64_t q[] = { y->batch, y->n_q_heads, y->n_kv_heads, y->n_q,
                          y->n_kv,  y->qk_head,   y->v_head,     y->causal };
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        if (p[i] != q[i])
            return p[i] < q[i] ? -1 : 1;
    return 0;
}

/* Sorts items and removes duplicates. Returns the number that remain. */
static size_t unique(void *items, size_t n, size_t bytes, int (*order)(const void *, const void *))
{
    char *at = items;
    size_t kept = 0;
    if (n > 0)
        qsort(items, n, bytes, order);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || order(at + (kept - 1) * bytes, at + i * bytes) != 0)
            memmove(at + kept++ * bytes, at + i * bytes, bytes);
    return kept;
}

static void remove_duplicates(shape_list *l)
{
    gac_plan_shapes *out = l->out;
    out->n_gemm = unique(out->gemm, out->n_gemm, sizeof *out->gemm, by_gemm);
    out->n_sdpa = unique(out->sdpa, out->n_sdpa, sizeof *out->sdpa, by_sdpa);
}

/* Adds the operators that see a group, at each of its sizes. */
static gac_status add_group(shape_list *l, const plan_groups *groups, int32_t at, int64_t *sizes)
{
    const plan_group *group = &groups->groups[at];
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < gac_model_n_ops(l->model) && status == GAC_OK; i++) {
        const gac_op *op = gac_model_op(l->model, i);
        if (!sees(op, groups, at))
            continue;
        for (int32_t k = 0; k < group->n_sizes && status == GAC_OK; k++) {
            gac_plan_set_group(group, group->sizes[k], sizes);
            status = add_op(l, op, sizes);
        }
    }
    gac_plan_set_group(group, group->reference, sizes);
    remove_duplicates(l);
    return status;
}

/* Adds every operator at the sizes of a strategy. */
static gac_status add_plan(shape_list *l, const plan_groups *groups, gac_strategy strategy,
                           int64_t *sizes)
{
    gac_status status =
        gac_plan_apply_strategy(l->model, l->options, strategy, groups, sizes, l->err);
    for (int32_t i = 0; i < gac_model_n_ops(l->model) && status == GAC_OK; i++)
        status = add_op(l, gac_model_op(l->model, i), sizes);
    remove_duplicates(l);
    return status;
}

gac_status gac_plan_list_shapes(const gac_model *model, const gac_plan_options *options,
                                gac_plan_shapes *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, options, out);
    GAC_REFUSE(err, options->n_rules < 0 || (options->n_rules > 0 && !options->rules),
               "there are no rules");
    plan_groups groups;
    shape_list l = { .model = model, .options = options, .out = out, .err = err };
    *out = (gac_plan_shapes){ 0 };
    gac_status status = gac_plan_groups(model, options, &groups, err);
    if (status != GAC_OK)
        return status;
    int64_t *sizes = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *sizes);
    if (!sizes)
        status = gac_error_no_memory(err);
    for (int32_t i = 0; i < groups.n_groups && status == GAC_OK; i++)
        gac_plan_set_group(&groups.groups[i], groups.groups[i].reference, sizes);
    for (int32_t i = 0; i < gac_model_n_ops(model) && status == GAC_OK; i++) {
        status = add_op(&l, gac_model_op(model, i), NULL);
        if (status == GAC_OK)
            status = add_op(&l, gac_model_op(model, i), sizes);
    }
    for (int32_t i = 0; i < groups.n_groups && status == GAC_OK; i++)
        status = add_group(&l, &groups, i, sizes);
    /* solve also prices these two plans. */
    if (status == GAC_OK)
        status = add_plan(&l, &groups, GAC_STRATEGY_MINIMAL, sizes);
    if (status == GAC_OK)
        status = add_plan(&l, &groups, GAC_STRATEGY_MULTIPLE_16, sizes);
    remove_duplicates(&l);
    free(sizes);
    gac_plan_groups_dispose(&groups);
    if (status != GAC_OK)
        gac_plan_shapes_dispose(out);
    return status;
}

void gac_plan_shapes_dispose(gac_plan_shapes *shapes)
{
    if (!shapes)
        return;
    free(shapes->gemm);
    free(shapes->sdpa);
    *shapes = (gac_plan_shapes){ 0 };
}

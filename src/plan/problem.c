/* Sets up the problem that solve works on: the candidates that pay, and the
 * classes of groups that must be chosen together. */
#include <math.h>
#include <stdlib.h>

#include "plan/plan_internal.h"

/* Limit of combinations of one class, enough for the ranks and the width of one
 * layer. */
enum { DEFAULT_COMBINATIONS = 4096 };

static bool lists_create(link_lists *lists, int32_t n_lists, size_t n_items)
{
    lists->first = malloc(((size_t)n_lists + 1) * sizeof *lists->first);
    lists->item = calloc(n_items + 1, sizeof *lists->item);
    lists->next = calloc(n_items + 1, sizeof *lists->next);
    if (!lists->first || !lists->item || !lists->next)
        return false;
    for (int32_t i = 0; i < n_lists; i++)
        lists->first[i] = -1;
    return true;
}

/* Adds item in front of a list, unless it is already there. */
static void lists_add(link_lists *lists, int32_t at, int32_t item)
{
    if (lists->first[at] >= 0 && lists->item[lists->first[at]] == item)
        return;
    lists->item[lists->n] = item;
    lists->next[lists->n] = lists->first[at];
    lists->first[at] = lists->n++;
}

static void lists_dispose(link_lists *lists)
{
    free(lists->first);
    free(lists->item);
    free(lists->next);
}

static gac_status link_ops(plan_problem *p, gac_error *err)
{
    size_t n = 0;
    int32_t n_ops = gac_model_n_ops(p->model);
    for (int32_t i = 0; i < n_ops; i++)
        n += (size_t)gac_model_op(p->model, i)->n_terms;
    if (!lists_create(&p->ops, p->groups.n_groups, n))
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n_ops; i++) {
        const gac_op *op = gac_model_op(p->model, i);
        for (int32_t t = 0; t < op->n_terms; t++)
            lists_add(&p->ops, p->groups.group_of[op->terms[t].dim], i);
    }
    return GAC_OK;
}

static gac_status link_tensors(plan_problem *p, gac_error *err)
{
    size_t n = 0;
    int32_t n_tensors = gac_checkpoint_n_tensors(gac_model_checkpoint(p->model));
    for (int32_t i = 0; i < gac_model_n_dims(p->model); i++)
        n += (size_t)gac_model_dim(p->model, i)->n_places;
    if (!lists_create(&p->dims, n_tensors, n) || !lists_create(&p->tensors, p->groups.n_groups, n))
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < gac_model_n_dims(p->model); i++) {
        const gac_dim *d = gac_model_dim(p->model, i);
        for (int32_t k = 0; k < d->n_places; k++)
            lists_add(&p->dims, d->places[k].tensor, i);
    }
    /* This goes by tensor, so that a group's list has each tensor once. */
    for (int32_t t = 0; t < n_tensors; t++)
        for (int32_t r = p->dims.first[t]; r >= 0; r = p->dims.next[r])
            lists_add(&p->tensors, p->groups.group_of[p->dims.item[r]], t);
    return GAC_OK;
}

double gac_problem_op_ms(const plan_problem *p, int32_t op, const int64_t *sizes)
{
    double sum = 0;
    const gac_workload *w = p->options->workload;
    for (int i = 0; i < w->n_phases; i++)
        sum += w->phases[i].weight * gac_plan_op_ms(p->model, &p->options->target, &w->phases[i],
                                                    gac_model_op(p->model, op), sizes);
    return sum;
}

double gac_problem_group_ms(const plan_problem *p, int32_t group, const int64_t *sizes)
{
    double sum = 0;
    for (int32_t r = p->ops.first[group]; r >= 0; r = p->ops.next[r])
        sum += gac_problem_op_ms(p, p->ops.item[r], sizes);
    return sum;
}

double gac_problem_tensor_bytes(const plan_problem *p, int32_t tensor, const int64_t *sizes)
{
    enum { MAX_AXES = 3 }; /* tensors with dimensions have at most 3 axes */
    const gac_tensor *t = gac_checkpoint_tensor(gac_model_checkpoint(p->model), tensor);
    double extent[MAX_AXES] = { 1, 1, 1 };
    for (int32_t a = 0; a < t->n_axes && a < MAX_AXES; a++)
        extent[a] = (double)t->shape[a];
    for (int32_t r = p->dims.first[tensor]; r >= 0; r = p->dims.next[r]) {
        const gac_dim *d = gac_model_dim(p->model, p->dims.item[r]);
        bool grows = sizes[p->dims.item[r]] != d->size;
        for (int32_t k = 0; k < d->n_places && grows; k++)
            if (d->places[k].tensor == tensor)
                extent[d->places[k].axis] +=
                    (double)(d->places[k].n_slices * (sizes[p->dims.item[r]] - d->size));
    }
    return extent[0] * extent[1] * extent[2] * gac_dtype_bits(t->dtype) / 8;
}

double gac_problem_group_bytes(const plan_problem *p, int32_t group, const int64_t *sizes)
{
    double sum = 0;
    for (int32_t r = p->tensors.first[group]; r >= 0; r = p->tensors.next[r])
        sum += gac_problem_tensor_bytes(p, p->tensors.item[r], sizes);
    return sum;
}

static int32_t find_root(int32_t *root, int32_t group)
{
    while (root[group] != group) {
        root[group] = root[root[group]];
        group = root[group];
    }
    return group;
}

/* Notes that an operator or tensor belongs to a group. Its owner is its first
 * open group. All its open groups get the same root. */
static void join(const plan_problem *p, int32_t group, int32_t *owner, bool *shared, int32_t *root)
{
    if (!gac_problem_is_open(p, group) || *owner == group)
        return;
    if (*owner < 0) {
        *owner = group;
        return;
    }
    if (shared)
        *shared = true;
    int32_t a = find_root(root, *owner), b = find_root(root, group);
    root[a > b ? a : b] = a > b ? b : a;
    *owner = group < *owner ? group : *owner;
}

/* Finds the owners of operators and tensors. Groups that share one of them get
 * the same root. */
static void find_owners(plan_problem *p, int32_t *root)
{
    const int32_t *group_of = p->groups.group_of;
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        root[i] = i;
    for (int32_t i = 0; i < gac_model_n_ops(p->model); i++) {
        const gac_op *op = gac_model_op(p->model, i);
        p->op_owner[i] = -1;
        for (int32_t t = 0; t < op->n_terms; t++)
            join(p, group_of[op->terms[t].dim], &p->op_owner[i], &p->op_shared[i], root);
    }
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(gac_model_checkpoint(p->model)); i++) {
        p->tensor_owner[i] = -1;
        for (int32_t r = p->dims.first[i]; r >= 0; r = p->dims.next[r])
            join(p, group_of[p->dims.item[r]], &p->tensor_owner[i], NULL, root);
    }
}

/* Adds one class of n open groups, or n classes of one group if there would be
 * too many combinations. */
static void add_class(plan_problem *p, const int32_t *groups, int32_t n)
{
    int64_t product = 1;
    for (int32_t k = 0; k < n && product <= p->max_combinations; k++)
        product *= p->groups.groups[groups[k]].n_sizes;
    if (product <= p->max_combinations) {
        p->classes[p->n_classes++] = (plan_class){ n, groups, (int32_t)product, NULL };
        return;
    }
    p->joint = false;
    for (int32_t k = 0; k < n; k++)
        p->classes[p->n_classes++] =
            (plan_class){ 1, groups + k, p->groups.groups[groups[k]].n_sizes, NULL };
}

static gac_status find_classes(plan_problem *p, gac_error *err)
{
    int32_t n = p->groups.n_groups, n_ordered = 0;
    size_t n_ops = (size_t)gac_model_n_ops(p->model);
    size_t n_tensors = (size_t)gac_checkpoint_n_tensors(gac_model_checkpoint(p->model));
    link_lists members = { 0 }; /* the groups of each root */
    int32_t *root = calloc((size_t)n + 1, sizeof *root);
    p->op_owner = calloc(n_ops + 1, sizeof *p->op_owner);
    p->op_shared = calloc(n_ops + 1, sizeof *p->op_shared);
    p->tensor_owner = calloc(n_tensors + 1, sizeof *p->tensor_owner);
    p->order = calloc((size_t)n + 1, sizeof *p->order);
    p->classes = calloc((size_t)n + 1, sizeof *p->classes);
    bool ok = root && p->op_owner && p->op_shared && p->tensor_owner && p->order && p->classes &&
              lists_create(&members, n, (size_t)n);
    p->joint = true;
    if (ok)
        find_owners(p, root);
    for (int32_t i = n - 1; i >= 0 && ok; i--)
        if (gac_problem_is_open(p, i))
            lists_add(&members, find_root(root, i), i);
    for (int32_t i = 0; i < n && ok; i++) {
        int32_t start = n_ordered;
        for (int32_t r = members.first[i]; r >= 0; r = members.next[r])
            p->order[n_ordered++] = members.item[r];
        if (n_ordered > start)
            add_class(p, p->order + start, n_ordered - start);
    }
    free(root);
    lists_dispose(&members);
    return ok ? GAC_OK : gac_error_no_memory(err);
}

/* Computes the time and growth of everything that no class changes. */
static gac_status find_base(plan_problem *p, gac_error *err)
{
    double bytes = 0;
    p->base_ms = 0;
    const gac_workload *w = p->options->workload;
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        gac_plan_set_group(&p->groups.groups[i], p->groups.groups[i].sizes[0], p->sizes);
    for (int i = 0; i < w->n_phases; i++)
        p->base_ms +=
            w->phases[i].weight * gac_plan_rest_ms(p->model, &p->options->target, &w->phases[i]);
    for (int32_t i = 0; i < gac_model_n_ops(p->model); i++)
        if (p->op_owner[i] < 0)
            p->base_ms += gac_problem_op_ms(p, i, p->sizes);
    gac_status status = gac_plan_growth_bytes(p->model, p->sizes, &bytes, err);
    if (status == GAC_OK && !(bytes < 4e18))
        status = gac_error_set(err, GAC_USAGE, "the growth in bytes overflows");
    p->base_bytes = status == GAC_OK ? (int64_t)ceil(bytes) : 0;
    return status;
}

static void classes_dispose(plan_problem *p)
{
    for (int32_t i = 0; p->classes && i < p->n_classes; i++)
        free(p->classes[i].choices);
    free(p->classes);
    free(p->order);
    free(p->op_owner);
    free(p->op_shared);
    free(p->tensor_owner);
    p->classes = NULL;
    p->n_classes = 0;
    p->order = p->op_owner = p->tensor_owner = NULL;
    p->op_shared = NULL;
    p->priced = false;
}

gac_status gac_problem_divide(plan_problem *p, gac_error *err)
{
    classes_dispose(p);
    gac_status status = find_classes(p, err);
    return status == GAC_OK ? find_base(p, err) : status;
}

/* Returns the limit of growth when searching for candidates. */
static int64_t search_limit(const plan_problem *p)
{
    return p->options->max_time_ms > 0 ? INT64_MAX / 4 : gac_problem_limit(p);
}

/* Adds candidates that pay if all other groups are at the next multiple of 16,
 * because two sizes of one operator may gain only together. */
static gac_status add_paying_at_16(plan_problem *p, plan_answer *a, gac_error *err)
{
    gac_status status = gac_plan_apply_strategy(p->model, p->options, GAC_STRATEGY_MULTIPLE_16,
                                                &p->groups, a->sizes, err);
    if (status == GAC_OK)
        status = gac_problem_price_answer(p, a, err);
    if (status == GAC_OK && gac_problem_add_paying(p, INT64_MAX, a) > 0)
        status = gac_problem_divide(p, err);
    return status;
}

/* Adds candidates that gac_problem_keep_paying missed, because it has all other
 * groups at their first aligned size. It repeats as long as a candidate pays as
 * the only change to the best plan or to the least growth. */
static gac_status add_missed(plan_problem *p, gac_error *err)
{
    enum { MAX_ROUNDS = 16 };
    int32_t n_new = 1;
    int64_t limit = search_limit(p);
    plan_answer a = { 0 };
    a.sizes = calloc((size_t)gac_model_n_dims(p->model) + 1, sizeof *a.sizes);
    gac_status status = a.sizes ? add_paying_at_16(p, &a, err) : gac_error_no_memory(err);
    if (limit < p->base_bytes) /* the solver will report this */
        n_new = 0;
    for (int round = 0; round < MAX_ROUNDS && n_new > 0 && status == GAC_OK; round++) {
        status = gac_problem_least_ms(p, limit, &a, err);
        if (status != GAC_OK)
            break;
        n_new = gac_problem_add_paying(p, limit, &a);
        for (int32_t i = 0; i < p->groups.n_groups; i++)
            gac_plan_set_group(&p->groups.groups[i], p->groups.groups[i].sizes[0], a.sizes);
        status = gac_problem_price_answer(p, &a, err);
        if (status == GAC_OK)
            n_new += gac_problem_add_paying(p, limit, &a);
        if (status == GAC_OK && n_new > 0)
            status = gac_problem_divide(p, err);
    }
    free(a.sizes);
    return status;
}

gac_status gac_problem_create(const gac_model *model, const gac_plan_options *options,
                              int64_t max_combinations, plan_problem *out, gac_error *err)
{
    const gac_target *target = &options->target;
    *out = (plan_problem){ .model = model, .options = options };
    if (target->contract && !gac_contract_has_times(target->contract, target->dtype))
        return gac_error_set(err, GAC_USAGE,
                             "contract %s has no times to solve by; gac probe -o contract.json "
                             "measures them",
                             gac_contract_name(target->contract));
    out->max_combinations = max_combinations > 0 ? max_combinations : DEFAULT_COMBINATIONS;
    gac_status status = gac_plan_groups(model, options, &out->groups, err);
    if (status != GAC_OK)
        return status;
    out->sizes = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *out->sizes);
    status = out->sizes ? link_ops(out, err) : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = link_tensors(out, err);
    if (status == GAC_OK) {
        gac_problem_keep_paying(out);
        status = gac_problem_divide(out, err);
    }
    if (status == GAC_OK)
        status = add_missed(out, err);
    if (status != GAC_OK)
        gac_problem_dispose(out);
    return status;
}

void gac_problem_dispose(plan_problem *p)
{
    classes_dispose(p);
    free(p->sizes);
    lists_dispose(&p->ops);
    lists_dispose(&p->tensors);
    lists_dispose(&p->dims);
    gac_plan_groups_dispose(&p->groups);
    *p = (plan_problem){ 0 };
}

/* Which dimensions move together, what sizes they may take, and what each
 * size costs in bytes and time. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

/* Candidates beyond the next aligned size: enough to reach tile sizes. */
enum { MAX_CANDIDATES = 32, N_STEPS = 16 };

typedef struct grouping {
    const gac_model *model;
    const gac_plan_options *options;
    int32_t *leader; /* (n_dims): first dimension of the group */
    dim_units *units;
    plan_groups *out;
    gac_error *err;
} grouping;

static bool is_width(gac_role role)
{
    return role == GAC_ROLE_MLP_WIDTH || role == GAC_ROLE_EXPERT_WIDTH;
}

static void find_leaders(grouping *g)
{
    int32_t first[GAC_ROLE_COUNT];
    memset(first, 0xff, sizeof first);
    for (int32_t i = 0; i < gac_model_n_dims(g->model); i++) {
        const gac_dim *d = gac_model_dim(g->model, i);
        g->leader[i] = d->tied_to >= 0 ? g->leader[d->tied_to] : i;
        /* A config states one rotation, so rescaled heads move together. */
        bool heads = d->role == GAC_ROLE_QK_HEAD && d->exactness == GAC_RESCALED;
        if (!heads && (!g->options->uniform || !is_width(d->role)))
            continue;
        if (first[d->role] < 0)
            first[d->role] = g->leader[i];
        g->leader[i] = first[d->role];
    }
}

static gac_status collect_groups(grouping *g)
{
    int32_t n_dims = gac_model_n_dims(g->model);
    plan_groups *out = g->out;
    out->groups = calloc((size_t)n_dims + 1, sizeof *out->groups);
    out->group_of = calloc((size_t)n_dims + 1, sizeof *out->group_of);
    if (!out->groups || !out->group_of)
        return gac_error_no_memory(g->err);
    for (int32_t i = 0; i < n_dims; i++) {
        bool leads = g->leader[i] == i;
        int32_t at = leads ? out->n_groups++ : out->group_of[g->leader[i]];
        out->group_of[i] = at;
        out->groups[at].n_dims++;
    }
    for (int32_t i = 0; i < n_dims; i++) {
        plan_group *group = &out->groups[out->group_of[i]];
        if (!group->dims) {
            group->dims = calloc((size_t)group->n_dims, sizeof *group->dims);
            group->n_dims = 0;
        }
        if (!group->dims)
            return gac_error_no_memory(g->err);
        group->dims[group->n_dims++] = i;
    }
    return GAC_OK;
}

/* What is common to the members of a group. */
typedef struct group_facts {
    int64_t largest; /* of their sizes */
    bool equal;      /* their sizes are */
    bool movable;
    int64_t best, hard;
    int64_t fixed; /* by a rule, or -1 */
} group_facts;

static gac_status gather_facts(const grouping *g, const plan_group *group, group_facts *f)
{
    *f = (group_facts){ .equal = true, .movable = true, .best = 1, .hard = 1, .fixed = -1 };
    for (int32_t k = 0; k < group->n_dims; k++) {
        int32_t i = group->dims[k];
        const gac_dim *d = gac_model_dim(g->model, i);
        f->equal = f->equal && (k == 0 || d->size == f->largest);
        f->largest = d->size > f->largest ? d->size : f->largest;
        f->movable = f->movable && d->size > 0 &&
                     (d->exactness == GAC_EXACT ||
                      (d->exactness == GAC_RESCALED && g->options->allow_rescaled));
        if (!gac_lcm_i64(f->best, g->units[i].best, &f->best) ||
            !gac_lcm_i64(f->hard, g->units[i].hard, &f->hard))
            return gac_error_set(g->err, GAC_USAGE, "the units that %s asks for overflow", d->name);
        int64_t fixed = -1; /* the last rule that matches */
        for (int32_t r = 0; r < g->options->n_rules; r++)
            if (fnmatch(g->options->rules[r].pattern, d->name, 0) == 0)
                fixed = g->options->rules[r].size;
        if (fixed >= 0 && f->fixed >= 0 && fixed != f->fixed)
            return gac_error_set(g->err, GAC_USAGE,
                                 "%s: moves with others that are set to another size", d->name);
        f->fixed = fixed >= 0 ? fixed : f->fixed;
    }
    return GAC_OK;
}

static gac_status cannot(const grouping *g, const plan_group *group, const char *what, int64_t size)
{
    return gac_error_set(g->err, GAC_USAGE, "%s: %s %lld",
                         gac_model_dim(g->model, group->dims[0])->name, what, (long long)size);
}

static bool add_size(plan_group *group, int64_t size)
{
    if (size > INT32_MAX || group->n_sizes == MAX_CANDIDATES)
        return false;
    if (group->n_sizes == 0 || group->sizes[group->n_sizes - 1] < size)
        group->sizes[group->n_sizes++] = size;
    return true;
}

/* The size as it is, then multiples of the best unit step by step, then of
 * ever larger units, up to a quarter more than now. */
static gac_status add_candidates(const grouping *g, plan_group *group, const group_facts *f)
{
    int64_t next, limit = f->largest + f->largest / 4;
    if (f->equal && (f->largest % f->hard == 0 || !f->movable))
        add_size(group, f->largest);
    group->reference = f->largest;
    if (!f->movable)
        return group->n_sizes ? GAC_OK
                              : cannot(g, group, "cannot be changed, and is not", f->largest);
    if (!gac_round_up_i64(f->largest, f->best, &next) || !add_size(group, next))
        return cannot(g, group, "no aligned size follows", f->largest);
    group->reference = next;
    for (int i = 1; i < N_STEPS && next + i * f->best <= limit; i++)
        add_size(group, next + i * f->best);
    for (int64_t unit = f->best * 2; unit <= f->best * 64; unit *= 2)
        if (gac_round_up_i64(f->largest, unit, &next) && next <= limit)
            add_size(group, next);
    return GAC_OK;
}

static gac_status choose_sizes(const grouping *g, plan_group *group)
{
    group_facts f;
    gac_status status = gather_facts(g, group, &f);
    group->sizes = calloc(MAX_CANDIDATES, sizeof *group->sizes);
    if (status == GAC_OK && !group->sizes)
        status = gac_error_no_memory(g->err);
    if (status != GAC_OK)
        return status;
    group->locked = f.fixed >= 0 || !f.movable;
    if (f.fixed < 0)
        return add_candidates(g, group, &f);
    if (f.fixed < f.largest || (f.fixed != f.largest && !f.movable))
        return cannot(g, group, "cannot be set to", f.fixed);
    add_size(group, f.fixed);
    group->reference = f.fixed;
    return GAC_OK;
}

/* Growth in bytes when a group takes a size, everything else as the pricing
 * has it. */
static gac_status price_bytes(const grouping *g, int32_t at, int64_t size, int64_t *out)
{
    const plan_group *group = &g->out->groups[at];
    const gac_checkpoint *c = gac_model_checkpoint(g->model);
    double sum = 0;
    for (int32_t k = 0; k < group->n_dims; k++) {
        const gac_dim *d = gac_model_dim(g->model, group->dims[k]);
        for (int32_t p = 0; p < d->n_places; p++) {
            const gac_place *place = &d->places[p];
            const gac_tensor *t = gac_checkpoint_tensor(c, place->tensor);
            double bytes =
                (double)(place->n_slices * (size - d->size)) * gac_dtype_bits(t->dtype) / 8;
            for (int32_t a = 0; a < t->n_axes; a++)
                if (a != place->axis)
                    bytes *= (double)t->shape[a] +
                             (double)g->out->slack[(size_t)place->tensor * 3 + (size_t)a];
            sum += bytes;
        }
    }
    if (!(sum < 4e18))
        return gac_error_set(g->err, GAC_USAGE, "the growth in bytes overflows");
    *out = (int64_t)(sum + 0.5);
    return GAC_OK;
}

static gac_status measure_slack(grouping *g, pricing price)
{
    plan_groups *out = g->out;
    int32_t n_tensors = gac_checkpoint_n_tensors(gac_model_checkpoint(g->model));
    out->slack = calloc((size_t)n_tensors * 3 + 1, sizeof *out->slack);
    if (!out->slack)
        return gac_error_no_memory(g->err);
    for (int32_t i = 0; i < gac_model_n_dims(g->model) && price == PRICE_ABOVE; i++) {
        const gac_dim *d = gac_model_dim(g->model, i);
        const plan_group *group = &out->groups[out->group_of[i]];
        int64_t growth = group->sizes[group->n_sizes - 1] - d->size;
        for (int32_t p = 0; p < d->n_places && growth > 0; p++)
            out->slack[(size_t)d->places[p].tensor * 3 + (size_t)d->places[p].axis] +=
                d->places[p].n_slices * growth;
    }
    return GAC_OK;
}

/* Operators by group: an operator is in the list of every group it sees. */
typedef struct op_lists {
    int32_t *first; /* (n_groups), -1 where there is none */
    int32_t *op, *next;
} op_lists;

static gac_status list_ops(const grouping *g, op_lists *lists)
{
    int32_t n = 0, n_ops = gac_model_n_ops(g->model);
    for (int32_t i = 0; i < n_ops; i++)
        n += gac_model_op(g->model, i)->n_terms;
    lists->first = calloc((size_t)g->out->n_groups + 1, sizeof *lists->first);
    lists->op = calloc((size_t)n + 1, sizeof *lists->op);
    lists->next = calloc((size_t)n + 1, sizeof *lists->next);
    if (!lists->first || !lists->op || !lists->next)
        return gac_error_no_memory(g->err);
    for (int32_t i = 0; i < g->out->n_groups; i++)
        lists->first[i] = -1;
    n = 0;
    for (int32_t i = 0; i < n_ops; i++) {
        const gac_op *op = gac_model_op(g->model, i);
        for (int32_t t = 0; t < op->n_terms; t++) {
            int32_t *first = &lists->first[g->out->group_of[op->terms[t].dim]];
            if (*first >= 0 && lists->op[*first] == i)
                continue;
            lists->op[n] = i;
            lists->next[n] = *first;
            *first = n++;
        }
    }
    return GAC_OK;
}

/* Time of a group's operators in the workload with the given sizes. */
static double group_ms(const grouping *g, const op_lists *lists, int32_t at, const int64_t *sizes)
{
    double sum = 0;
    const gac_workload *w = g->options->workload;
    for (int32_t r = lists->first[at]; r >= 0; r = lists->next[r])
        for (int p = 0; p < w->n_phases; p++)
            sum +=
                w->phases[p].weight * gac_plan_op_ms(g->model, &g->options->target, &w->phases[p],
                                                     gac_model_op(g->model, lists->op[r]), sizes);
    return sum;
}

static void set_group(const plan_group *group, int64_t size, int64_t *sizes)
{
    for (int32_t k = 0; k < group->n_dims; k++)
        sizes[group->dims[k]] = size;
}

static gac_status price_group(const grouping *g, const op_lists *lists, int32_t at, int64_t *sizes)
{
    plan_group *group = &g->out->groups[at];
    gac_status status = GAC_OK;
    group->choices = calloc((size_t)group->n_sizes + 1, sizeof *group->choices);
    if (!group->choices)
        return gac_error_no_memory(g->err);
    for (int32_t k = 0; k < group->n_sizes && status == GAC_OK; k++) {
        set_group(group, group->sizes[k], sizes);
        group->choices[k].value = group_ms(g, lists, at, sizes);
        status = price_bytes(g, at, group->sizes[k], &group->choices[k].cost);
    }
    set_group(group, group->reference, sizes);
    g->out->base_ms -= group_ms(g, lists, at, sizes);
    return status;
}

static gac_status price_all(grouping *g, pricing price)
{
    op_lists lists = { NULL, NULL, NULL };
    const gac_workload *w = g->options->workload;
    int64_t *sizes = calloc((size_t)gac_model_n_dims(g->model) + 1, sizeof *sizes);
    gac_status status = sizes ? measure_slack(g, price) : gac_error_no_memory(g->err);
    if (status == GAC_OK)
        status = list_ops(g, &lists);
    for (int32_t i = 0; i < g->out->n_groups && status == GAC_OK; i++)
        set_group(&g->out->groups[i], g->out->groups[i].reference, sizes);
    for (int p = 0; p < w->n_phases && status == GAC_OK; p++)
        g->out->base_ms += w->phases[p].weight * gac_plan_time_ms(g->model, &g->options->target,
                                                                  &w->phases[p], sizes, NULL);
    for (int32_t i = 0; i < g->out->n_groups && status == GAC_OK; i++)
        status = price_group(g, &lists, i, sizes);
    free(sizes);
    free(lists.first);
    free(lists.op);
    free(lists.next);
    return status;
}

/* A rule that matches nothing is a slip of the pen. */
static gac_status check_rules(const gac_model *model, const gac_plan_options *options,
                              gac_error *err)
{
    char q[160];
    for (int32_t r = 0; r < options->n_rules; r++) {
        bool matched = false;
        for (int32_t i = 0; i < gac_model_n_dims(model) && !matched; i++)
            matched = fnmatch(options->rules[r].pattern, gac_model_dim(model, i)->name, 0) == 0;
        if (!matched)
            return gac_error_set(err, GAC_USAGE, "no dimension is named \"%s\"",
                                 gac_quote(q, sizeof q, options->rules[r].pattern));
    }
    return GAC_OK;
}

gac_status gac_plan_groups(const gac_model *model, const gac_plan_options *options, pricing price,
                           plan_groups *out, gac_error *err)
{
    size_t n = (size_t)gac_model_n_dims(model) + 1;
    *out = (plan_groups){ 0 };
    grouping g = { .model = model, .options = options, .out = out, .err = err };
    g.leader = calloc(n, sizeof *g.leader);
    g.units = calloc(n, sizeof *g.units);
    gac_status status =
        g.leader && g.units ? check_rules(model, options, err) : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = gac_plan_units(model, &options->target, g.units, err);
    if (status == GAC_OK) {
        find_leaders(&g);
        status = collect_groups(&g);
    }
    for (int32_t i = 0; i < out->n_groups && status == GAC_OK; i++)
        status = choose_sizes(&g, &out->groups[i]);
    if (status == GAC_OK && price != PRICE_NONE)
        status = price_all(&g, price);
    free(g.leader);
    free(g.units);
    if (status != GAC_OK)
        gac_plan_groups_dispose(out);
    return status;
}

void gac_plan_groups_dispose(plan_groups *groups)
{
    for (int32_t i = 0; groups->groups && i < groups->n_groups; i++) {
        free(groups->groups[i].dims);
        free(groups->groups[i].sizes);
        free(groups->groups[i].choices);
    }
    free(groups->groups);
    free(groups->group_of);
    free(groups->slack);
    *groups = (plan_groups){ 0 };
}

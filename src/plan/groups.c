/* Finds which dimensions move together, and their candidate sizes. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

/* Number of steps beyond the next aligned size, enough to reach tile sizes. */
enum { N_STEPS = 16 };

typedef struct grouping {
    const gac_model *model;
    const gac_plan_options *options;
    int32_t *leader; /* (n_dims): first dimension of each dimension's group */
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

/* Facts about the members of a group. */
typedef struct group_facts {
    int64_t largest; /* the largest of their sizes */
    bool equal;      /* all sizes are equal */
    bool movable;
    int64_t best, hard;
    int64_t fixed; /* size that a rule fixes, or -1 */
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
        int64_t fixed = -1; /* the last matching rule wins */
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

int64_t gac_plan_most(int64_t size)
{
    enum { MOST_TIMES = 4, ALWAYS_ALLOWED = 4096 };
    int64_t most = size > INT32_MAX / MOST_TIMES ? INT32_MAX : size * MOST_TIMES;
    return most > ALWAYS_ALLOWED ? most : ALWAYS_ALLOWED;
}

static gac_status cannot_exceed(const grouping *g, const plan_group *group, int64_t size,
                                int64_t most)
{
    return gac_error_set(
        g->err, GAC_USAGE,
        "%s: cannot be set to %lld: a plan may ask for 4 times the present size, or "
        "for 4096, whichever is more, so for %lld at most",
        gac_model_dim(g->model, group->dims[0])->name, (long long)size, (long long)most);
}

static bool add_size(plan_group *group, int64_t size)
{
    if (size > INT32_MAX || group->n_sizes == GAC_MAX_CANDIDATES)
        return false;
    if (group->n_sizes == 0 || group->sizes[group->n_sizes - 1] < size)
        group->sizes[group->n_sizes++] = size;
    return true;
}

/* Adds the present size, the next multiples of 8 and of 16, then steps of the
 * best unit, then multiples of ever larger units, up to a quarter more than the
 * present size. The present size is a candidate only if all members have it. */
static gac_status add_candidates(const grouping *g, plan_group *group, const group_facts *f)
{
    int64_t first, next, limit = f->largest + f->largest / 4;
    if (f->equal && (f->largest % f->hard == 0 || !f->movable))
        add_size(group, f->largest);
    group->reference = f->largest;
    if (!f->movable)
        return group->n_sizes ? GAC_OK
                              : cannot(g, group, "cannot be changed, and is not", f->largest);
    if (!gac_round_up_i64(f->largest, f->best, &first))
        return cannot(g, group, "no aligned size follows", f->largest);
    for (int64_t unit = 8; unit <= 16; unit *= 2) /* these may be faster without being aligned */
        if (gac_round_up_i64(f->largest, unit, &next) && next < first && next % f->hard == 0)
            add_size(group, next);
    if (!add_size(group, first))
        return cannot(g, group, "no aligned size follows", f->largest);
    group->reference = first;
    for (int i = 1; i < N_STEPS && first + i * f->best <= limit; i++)
        add_size(group, first + i * f->best);
    for (int64_t unit = f->best * 2; unit <= f->best * 64; unit *= 2)
        if (gac_round_up_i64(f->largest, unit, &next) && next <= limit)
            add_size(group, next);
    return GAC_OK;
}

static gac_status choose_sizes(const grouping *g, plan_group *group)
{
    group_facts f;
    gac_status status = gather_facts(g, group, &f);
    group->sizes = calloc(GAC_MAX_CANDIDATES, sizeof *group->sizes);
    if (status == GAC_OK && !group->sizes)
        status = gac_error_no_memory(g->err);
    if (status != GAC_OK)
        return status;
    group->locked = f.fixed >= 0 || !f.movable;
    if (f.fixed < 0)
        return add_candidates(g, group, &f);
    if (f.fixed < f.largest || (f.fixed != f.largest && !f.movable))
        return cannot(g, group, "cannot be set to", f.fixed);
    if (f.fixed > gac_plan_most(f.largest))
        return cannot_exceed(g, group, f.fixed, gac_plan_most(f.largest));
    add_size(group, f.fixed);
    group->reference = f.fixed;
    return GAC_OK;
}

/* Refuses a rule that matches nothing, because its name must be misspelled. */
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

gac_status gac_plan_groups(const gac_model *model, const gac_plan_options *options,
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
        status = gac_plan_check_target(&options->target, options->workload, err);
    if (status == GAC_OK)
        status = gac_plan_units(model, &options->target, g.units, err);
    if (status == GAC_OK) {
        find_leaders(&g);
        status = collect_groups(&g);
    }
    for (int32_t i = 0; i < out->n_groups && status == GAC_OK; i++)
        status = choose_sizes(&g, &out->groups[i]);
    free(g.leader);
    free(g.units);
    if (status != GAC_OK)
        gac_plan_groups_dispose(out);
    return status;
}

void gac_plan_set_group(const plan_group *group, int64_t size, int64_t *sizes)
{
    for (int32_t k = 0; k < group->n_dims; k++)
        sizes[group->dims[k]] = size;
}

void gac_plan_groups_dispose(plan_groups *groups)
{
    for (int32_t i = 0; groups->groups && i < groups->n_groups; i++) {
        free(groups->groups[i].dims);
        free(groups->groups[i].sizes);
    }
    free(groups->groups);
    free(groups->group_of);
    *groups = (plan_groups){ 0 };
}

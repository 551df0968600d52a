/* Finds the sizes that pay. A gain below the margin counts as none. */
#include <math.h>
#include <string.h>

#include "plan/plan_internal.h"

bool gac_problem_is_open(const plan_problem *p, int32_t group)
{
    return p->groups.groups[group].n_sizes > 1;
}

bool gac_problem_is_faster(const plan_problem *p, double a_ms, double b_ms)
{
    return a_ms < (1 - p->margin_pct / 100) * b_ms;
}

/* Sets the margin: the median error that the contract states for GEMMs, or that
 * for attention if it is larger and a head size may grow. */
static void find_margin(plan_problem *p)
{
    const gac_target *target = &p->options->target;
    double gemm_pct = 0, sdpa_pct = 0;
    bool stated =
        gac_contract_median_error(target->contract, target->dtype, GAC_OP_GEMM_N, &gemm_pct);
    for (int32_t i = 0; i < gac_model_n_ops(p->model); i++) {
        const gac_op *op = gac_model_op(p->model, i);
        if (op->kind == GAC_OP_SDPA && (gac_problem_is_open(p, p->groups.group_of[op->qk_dim]) ||
                                        gac_problem_is_open(p, p->groups.group_of[op->v_dim]))) {
            stated = stated && gac_contract_median_error(target->contract, target->dtype,
                                                         GAC_OP_SDPA_HEAD, &sdpa_pct);
            break;
        }
    }
    p->margin_stated = stated;
    p->margin_pct = stated ? fmax(gemm_pct, sdpa_pct) : GAC_DEFAULT_MARGIN_PCT;
}

/* Keeps the candidates of one group that pay. See gac_problem_keep_paying. */
static void keep_paying(plan_problem *p, int32_t at)
{
    plan_group *group = &p->groups.groups[at];
    double last_ms = 0;
    int32_t kept = 0;
    int64_t reference = group->sizes[0];
    group->n_all = group->n_sizes;
    memcpy(group->all, group->sizes, (size_t)group->n_sizes * sizeof *group->all);
    for (int32_t k = 0; k < group->n_sizes && group->n_sizes > 1; k++) {
        gac_plan_set_group(group, group->sizes[k], p->sizes);
        double ms = gac_problem_group_ms(p, at, p->sizes);
        if (k > 0 && !gac_problem_is_faster(p, ms, last_ms))
            continue;
        last_ms = ms;
        group->sizes[kept++] = group->sizes[k];
        if (group->sizes[kept - 1] <= group->reference)
            reference = group->sizes[kept - 1];
    }
    gac_plan_set_group(group, group->reference, p->sizes);
    group->n_sizes = kept > 0 ? kept : group->n_sizes;
    group->reference = reference;
}

void gac_problem_keep_paying(plan_problem *p)
{
    find_margin(p);
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        gac_plan_set_group(&p->groups.groups[i], p->groups.groups[i].reference, p->sizes);
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        keep_paying(p, i);
}

static void insert_size(plan_group *group, int64_t size)
{
    int32_t at = group->n_sizes++;
    for (; at > 0 && group->sizes[at - 1] > size; at--)
        group->sizes[at] = group->sizes[at - 1];
    group->sizes[at] = size;
}

static bool has_size(const plan_group *group, int64_t size)
{
    for (int32_t k = 0; k < group->n_sizes; k++)
        if (group->sizes[k] == size)
            return true;
    return false;
}

int32_t gac_problem_add_paying(plan_problem *p, int64_t limit_bytes, plan_answer *a)
{
    int32_t n_new = 0;
    for (int32_t i = 0; i < p->groups.n_groups; i++) {
        plan_group *group = &p->groups.groups[i];
        int64_t size = a->sizes[group->dims[0]];
        double bytes = gac_problem_group_bytes(p, i, a->sizes), least_ms = INFINITY;
        double now_ms = gac_problem_group_ms(p, i, a->sizes);
        for (int32_t k = 0; k < group->n_all && group->n_all > 1; k++) {
            bool known = has_size(group, group->all[k]);
            gac_plan_set_group(group, group->all[k], a->sizes);
            double ms = gac_problem_group_ms(p, i, a->sizes);
            double growth = a->bytes + gac_problem_group_bytes(p, i, a->sizes) - bytes;
            bool pays = gac_problem_is_faster(p, ms, least_ms) ||
                        (gac_problem_is_faster(p, a->ms + ms - now_ms, a->ms) &&
                         !gac_problem_is_faster(p, a->ms + least_ms - now_ms, a->ms));
            if (!known && (growth > (double)limit_bytes || !pays))
                continue;
            least_ms = fmin(least_ms, ms);
            if (known)
                continue;
            insert_size(group, group->all[k]);
            n_new++;
        }
        gac_plan_set_group(group, size, a->sizes);
    }
    return n_new;
}

void gac_problem_trim(const plan_problem *p, double most_ms, plan_answer *a)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < p->groups.n_groups; i++) {
            const plan_group *group = &p->groups.groups[i];
            int64_t to = a->sizes[group->dims[0]];
            if (to == group->sizes[0])
                continue;
            double now_ms = gac_problem_group_ms(p, i, a->sizes), total_ms = a->ms;
            for (int32_t k = 0; k < group->n_sizes && group->sizes[k] < to; k++) {
                gac_plan_set_group(group, group->sizes[k], a->sizes);
                double ms = gac_problem_group_ms(p, i, a->sizes);
                if (gac_problem_is_faster(p, now_ms, ms) || total_ms + ms - now_ms > most_ms)
                    continue;
                to = group->sizes[k];
                a->ms = total_ms + ms - now_ms;
                changed = true;
            }
            gac_plan_set_group(group, to, a->sizes);
        }
    }
}

/* Prices the combinations of a class in time and bytes. */
#include <math.h>
#include <stdlib.h>

#include "plan/plan_internal.h"

/* Limit of combinations of other groups that a bound considers. */
enum { MAX_CONSIDERED = 4096 };

void gac_problem_set(const plan_problem *p, const plan_class *c, int32_t choice, int64_t *sizes)
{
    for (int32_t k = 0; k < c->n_groups; k++) {
        const plan_group *group = &p->groups.groups[c->groups[k]];
        gac_plan_set_group(group, group->sizes[choice % group->n_sizes], sizes);
        choice /= group->n_sizes;
    }
}

typedef enum context { AT_FIRST, AT_REFERENCE, AT_LARGEST } context;

static void set_at(const plan_problem *p, int32_t group, context at, int64_t *sizes)
{
    const plan_group *g = &p->groups.groups[group];
    int64_t largest = g->sizes[g->n_sizes - 1];
    gac_plan_set_group(g,
                       at == AT_FIRST       ? g->sizes[0]
                       : at == AT_REFERENCE ? g->reference
                                            : largest,
                       sizes);
}

static void set_class_at(const plan_problem *p, const plan_class *c, context at, int64_t *sizes)
{
    for (int32_t k = 0; k < c->n_groups; k++)
        set_at(p, c->groups[k], at, sizes);
}

/* Lists the open groups of an operator, except one. -1 if room is too small. */
static int32_t other_groups(const plan_problem *p, int32_t op_index, int32_t except, int32_t *out,
                            int32_t room)
{
    const gac_op *op = gac_model_op(p->model, op_index);
    int32_t n = 0;
    for (int32_t t = 0; t < op->n_terms; t++) {
        int32_t group = p->groups.group_of[op->terms[t].dim];
        bool listed = group == except || p->groups.groups[group].n_sizes < 2;
        for (int32_t k = 0; k < n && !listed; k++)
            listed = out[k] == group;
        if (listed)
            continue;
        if (n == room)
            return -1;
        out[n++] = group;
    }
    return n;
}

/* Returns the least time of an operator over all candidates of its other
 * groups. Returns 0, a lower bound of everything, if there are too many
 * combinations. Afterwards the other groups have their first candidates. */
static double least_op_ms(const plan_problem *p, int32_t op, int32_t group, int64_t *sizes)
{
    enum { MAX_OTHERS = 12 };
    int32_t others[MAX_OTHERS];
    int64_t product = 1;
    int32_t n = other_groups(p, op, group, others, MAX_OTHERS);
    for (int32_t k = 0; k < n && product <= MAX_CONSIDERED; k++)
        product *= p->groups.groups[others[k]].n_sizes;
    if (n < 0 || product > MAX_CONSIDERED)
        return 0;
    plan_class c = { n, others, (int32_t)product, NULL };
    double least = INFINITY;
    for (int32_t choice = 0; choice < c.n_choices; choice++) {
        gac_problem_set(p, &c, choice, sizes);
        least = fmin(least, gac_problem_op_ms(p, op, sizes));
    }
    gac_problem_set(p, &c, 0, sizes);
    return least;
}

/* Times the operators that see only this open group, for each of its
 * candidates. */
static void time_alone(const plan_problem *p, int32_t group, int64_t *sizes, double *out_ms)
{
    const plan_group *g = &p->groups.groups[group];
    for (int32_t k = 0; k < g->n_sizes; k++) {
        gac_plan_set_group(g, g->sizes[k], sizes);
        out_ms[k] = 0;
        for (int32_t r = p->ops.first[group]; r >= 0; r = p->ops.next[r])
            if (!p->op_shared[p->ops.item[r]])
                out_ms[k] += gac_problem_op_ms(p, p->ops.item[r], sizes);
    }
}

/* Times the operators that see this group and others. In a class of several
 * groups, only the owner counts an operator. */
static double time_shared(const plan_problem *p, const plan_class *c, int32_t group, pricing price,
                          int64_t *sizes)
{
    double sum = 0;
    for (int32_t r = p->ops.first[group]; r >= 0; r = p->ops.next[r]) {
        int32_t op = p->ops.item[r];
        if (!p->op_shared[op])
            continue;
        bool owned = p->op_owner[op] == group;
        if (c->n_groups == 1 && price == PRICE_BELOW)
            sum += owned ? least_op_ms(p, op, group, sizes) : 0;
        else if (c->n_groups == 1 || owned)
            sum += gac_problem_op_ms(p, op, sizes);
    }
    return sum;
}

static double class_bytes(const plan_problem *p, const plan_class *c, const int64_t *sizes)
{
    double sum = 0;
    if (c->n_groups == 1)
        return gac_problem_group_bytes(p, c->groups[0], sizes);
    for (int32_t k = 0; k < c->n_groups; k++)
        for (int32_t r = p->tensors.first[c->groups[k]]; r >= 0; r = p->tensors.next[r])
            if (p->tensor_owner[p->tensors.item[r]] == c->groups[k])
                sum += gac_problem_tensor_bytes(p, p->tensors.item[r], sizes);
    return sum;
}

/* Computes the values of a class. sizes has the sizes of all other groups. */
static gac_status price_times(const plan_problem *p, plan_class *c, pricing price, int64_t *sizes,
                              gac_error *err)
{
    double(*alone)[GAC_MAX_CANDIDATES] = calloc((size_t)c->n_groups, sizeof *alone);
    if (!alone)
        return gac_error_no_memory(err);
    for (int32_t k = 0; k < c->n_groups; k++)
        time_alone(p, c->groups[k], sizes, alone[k]);
    for (int32_t i = 0; i < c->n_choices; i++) {
        int32_t rest = i;
        gac_problem_set(p, c, i, sizes);
        c->choices[i].value = 0;
        for (int32_t k = 0; k < c->n_groups; k++) {
            int32_t n_sizes = p->groups.groups[c->groups[k]].n_sizes;
            c->choices[i].value +=
                alone[k][rest % n_sizes] + time_shared(p, c, c->groups[k], price, sizes);
            rest /= n_sizes;
        }
    }
    free(alone);
    return GAC_OK;
}

static gac_status price_bytes(const plan_problem *p, plan_class *c, int64_t *sizes, gac_error *err)
{
    double first = 0;
    for (int32_t i = 0; i < c->n_choices; i++) {
        gac_problem_set(p, c, i, sizes);
        double bytes = class_bytes(p, c, sizes);
        first = i == 0 ? bytes : first;
        if (!(bytes - first < 4e18))
            return gac_error_set(err, GAC_USAGE, "the growth in bytes overflows");
        c->choices[i].cost = (int64_t)ceil(bytes - first);
    }
    return GAC_OK;
}

gac_status gac_problem_price(plan_problem *p, pricing price, gac_error *err)
{
    context at_time = price == PRICE_NEAR ? AT_REFERENCE : AT_FIRST;
    context at_bytes = price == PRICE_NEAR ? AT_LARGEST : AT_FIRST;
    gac_status status = GAC_OK;
    if (p->joint && p->priced)
        return GAC_OK;
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        set_at(p, i, at_time, p->sizes);
    for (int32_t i = 0; i < p->n_classes && status == GAC_OK; i++) {
        plan_class *c = &p->classes[i];
        if (!c->choices)
            c->choices = calloc((size_t)c->n_choices, sizeof *c->choices);
        status = c->choices ? price_times(p, c, price, p->sizes, err) : gac_error_no_memory(err);
        set_class_at(p, c, at_time, p->sizes);
    }
    for (int32_t i = 0; i < p->groups.n_groups; i++)
        set_at(p, i, at_bytes, p->sizes);
    for (int32_t i = 0; i < p->n_classes && status == GAC_OK; i++) {
        status = price_bytes(p, &p->classes[i], p->sizes, err);
        set_class_at(p, &p->classes[i], at_bytes, p->sizes);
    }
    p->priced = status == GAC_OK;
    return status;
}

/* The names that expressions can use in a case, and the conditions that select
 * cases. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

const exp_cell *exp_find_cell(const exp_plan *plan, int32_t at, const char *variant)
{
    const exp_case *c = &plan->cases[at];
    const exp_sweep *sweep = &plan->sweeps[c->sweep];
    for (int i = 0; i < sweep->n_variants; i++)
        if (!variant || strcmp(sweep->variants[i], variant) == 0)
            return &plan->cells[c->first_cell + i];
    return NULL;
}

exp_state exp_cell_state(const exp_plan *plan, const exp_cell *cell, const char **reason)
{
    exp_state state = cell->n_uses > 0 ? EXP_MEASURED : EXP_PENDING;
    *reason = cell->n_uses > 0 ? "" : "not run under this stack";
    for (int32_t i = 0; i < cell->n_uses; i++) {
        const exp_job *job = &plan->jobs[plan->uses[cell->first_use + i].job];
        if (job->state == EXP_MEASURED || (state != EXP_MEASURED && job->state <= state))
            continue;
        state = job->state;
        *reason = job->reason[0] ? job->reason : "not measured";
    }
    return state;
}

double exp_cell_time_us(const exp_plan *plan, const exp_cell *cell)
{
    const char *reason;
    double total = 0;
    if (exp_cell_state(plan, cell, &reason) != EXP_MEASURED)
        return NAN;
    for (int32_t i = 0; i < cell->n_uses; i++) {
        const exp_use *use = &plan->uses[cell->first_use + i];
        total += use->times * plan->jobs[use->job].time_us;
    }
    return total;
}

double exp_cell_noise(const exp_plan *plan, const exp_cell *cell)
{
    double most = 0;
    for (int32_t i = 0; i < cell->n_uses; i++)
        most = fmax(most, plan->jobs[plan->uses[cell->first_use + i].job].noise);
    return most;
}

/* Returns whether the job ran a kernel of the family name, in which _ stands
 * for -. */
static bool ran_family(const exp_job *job, const char *name)
{
    char list[sizeof job->families + 2];
    int n = snprintf(list, sizeof list, "%s ", job->families);
    for (int i = 0; i < n; i++)
        if (list[i] == '-')
            list[i] = '_';
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at++)
        if ((at == list || at[-1] == ' ') && at[length] == ' ')
            return true;
    return false;
}

static double measured(const exp_plan *plan, const exp_cell *cell, const char *metric,
                       double factor)
{
    const char *reason;
    exp_state state = exp_cell_state(plan, cell, &reason);
    if (strcmp(metric, "served") == 0)
        return state == EXP_MEASURED ? 1 : state == EXP_DECLINED ? 0 : NAN;
    double time_us = exp_cell_time_us(plan, cell) * factor;
    if (strcmp(metric, "time") == 0 || isnan(time_us))
        return time_us;
    double flops = 0, bytes = 0;
    bool ran = false;
    for (int32_t i = 0; i < cell->n_uses; i++) {
        const exp_use *use = &plan->uses[cell->first_use + i];
        const exp_job *job = &plan->jobs[use->job];
        flops += use->times * job->flops;
        bytes += use->times * job->bytes;
        ran = ran || (strncmp(metric, "ran_", 4) == 0 && ran_family(job, metric + 4));
    }
    if (strcmp(metric, "tflops") == 0)
        return flops / time_us * 1e-6;
    if (strcmp(metric, "gbps") == 0)
        return bytes / time_us * 1e-3;
    return ran;
}

bool exp_scope_lookup(void *context, const char *name, double *out)
{
    const exp_scope *scope = context;
    const exp_case *c = &scope->plan->cases[scope->at];
    const exp_sweep *sweep = &scope->plan->sweeps[c->sweep];
    for (int i = 0; i < sweep->n_vars; i++) {
        if (strcmp(sweep->vars[i], name) == 0) {
            *out = c->values[i];
            return true;
        }
    }
    char metric[64];
    snprintf(metric, sizeof metric, "%s", name);
    char *dot = strchr(metric, '.');
    if (dot)
        *dot = 0;
    if (strcmp(metric, "time") != 0 && strcmp(metric, "tflops") != 0 &&
        strcmp(metric, "gbps") != 0 && strcmp(metric, "served") != 0 &&
        strncmp(metric, "ran_", 4) != 0)
        return false;
    const exp_cell *cell = exp_find_cell(scope->plan, scope->at, dot ? dot + 1 : NULL);
    if (!cell)
        return false;
    *out = measured(scope->plan, cell, metric, cell == scope->perturbed ? scope->factor : 1);
    return true;
}

int exp_selected(const exp_plan *plan, int32_t at, const char *sweep, const char *where, char *why,
                 size_t size)
{
    exp_scope scope = { .plan = plan, .at = at };
    double holds;
    if (sweep && strcmp(plan->sweeps[plan->cases[at].sweep].name, sweep) != 0)
        return 0;
    if (!where)
        return 1;
    if (!exp_eval(where, exp_scope_lookup, &scope, &holds, why, size))
        return -1;
    return !isnan(holds) && holds != 0;
}

double exp_published_ms(const gac_experiment *experiment, const exp_plan *plan, int32_t at,
                        const char *variant)
{
    const json_t *list = json_object_get(experiment->published, "times_ms");
    char why[160];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *of = json_string_value(json_object_get(entry, "variant"));
        const char *stack = json_string_value(json_object_get(entry, "lens"));
        if ((of && strcmp(of, variant) != 0) ||
            (stack && strcmp(stack, gac_stack_name(plan->stack)) != 0))
            continue;
        if (exp_selected(plan, at, json_string_value(json_object_get(entry, "sweep")),
                         json_string_value(json_object_get(entry, "where")), why, sizeof why) == 1)
            return json_number_value(json_object_get(entry, "ms"));
    }
    return NAN;
}

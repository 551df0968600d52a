/* Writes the cases and calls of a measured plan as JSON. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

const char *exp_state_name(exp_state state)
{
    static const char *const names[] = { "not run", "measured", "declined", "throttled", "failed" };
    return names[state];
}

json_t *exp_jobs_json(const exp_plan *plan)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < plan->n_jobs; i++) {
        const exp_job *job = &plan->jobs[i];
        json_t *one =
            json_pack("{s:s, s:s, s:f, s:f}", "call", job->key, "state", exp_state_name(job->state),
                      "flops", job->flops, "bytes", job->bytes);
        if (job->served[0])
            json_object_set_new(one, "served_by", json_string(job->served));
        if (job->reason[0])
            json_object_set_new(one, job->state == EXP_MEASURED ? "declined" : "reason",
                                json_string(job->reason));
        if (job->timing)
            json_object_set(one, "timing", job->timing);
        if (job->kernels)
            json_object_set(one, "kernels", job->kernels);
        json_array_append_new(list, one);
    }
    return list;
}

/* Describes a cell: its time, and what a table shows of its jobs. */
static json_t *cell_json(const exp_plan *plan, const exp_cell *cell, double published_ms)
{
    const char *reason;
    exp_state state = exp_cell_state(plan, cell, &reason);
    json_t *uses = json_array(), *one = json_pack("{s:s}", "state", exp_state_name(state));
    double spread2 = 0;
    int n_samples = 0;
    for (int32_t i = 0; i < cell->n_uses; i++) {
        const exp_use *use = &plan->uses[cell->first_use + i];
        const exp_job *job = &plan->jobs[use->job];
        spread2 += use->times * use->times * job->spread_us * job->spread_us;
        n_samples = i == 0 || job->n_samples < n_samples ? job->n_samples : n_samples;
        json_array_append_new(uses, json_pack("{s:i, s:f}", "call", use->job, "times", use->times));
    }
    if (state == EXP_MEASURED) {
        const exp_job *first = &plan->jobs[plan->uses[cell->first_use].job];
        json_object_set_new(one, "time_us", json_real(exp_cell_time_us(plan, cell)));
        json_object_set_new(one, "spread_us", json_real(sqrt(spread2)));
        json_object_set_new(one, "n_samples", json_integer(n_samples));
        json_object_set_new(one, "served_by", json_string(first->served));
        json_object_set_new(one, "families", json_string(first->families));
        if (first->reason[0])
            json_object_set_new(one, "declined", json_string(first->reason));
    } else {
        json_object_set_new(one, "reason", json_string(reason));
    }
    if (!isnan(published_ms))
        json_object_set_new(one, "published_ms", json_real(published_ms));
    json_object_set_new(one, "calls", uses);
    return one;
}

json_t *exp_cases_json(const gac_experiment *experiment, const exp_plan *plan)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < plan->n_cases; i++) {
        const exp_case *c = &plan->cases[i];
        const exp_sweep *sweep = &plan->sweeps[c->sweep];
        json_t *variables = json_object(), *variants = json_object();
        for (int v = 0; v < sweep->n_vars; v++)
            json_object_set_new(variables, sweep->vars[v], json_integer((json_int_t)c->values[v]));
        for (int v = 0; v < sweep->n_variants; v++)
            json_object_set_new(
                variants, sweep->variants[v],
                cell_json(plan, &plan->cells[c->first_cell + v],
                          exp_published_ms(experiment, plan, i, sweep->variants[v])));
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:o}", "sweep", sweep->name, "label",
                                        c->label, "variables", variables, "variants", variants));
    }
    return list;
}

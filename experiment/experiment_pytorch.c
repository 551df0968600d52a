/* The PyTorch stack: runs jobs and checks in the user's PyTorch. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *checks_request(const exp_check *checks, int n_checks)
{
    json_t *list = json_array();
    for (int i = 0; i < n_checks; i++) {
        json_t *one = gac_pytorch_call_json(&checks[i].spec, checks[i].path);
        json_object_set_new(one, "stored", json_integer(checks[i].stored));
        json_object_set_new(one, "n_in_launch", json_integer(checks[i].n_in_launch));
        json_array_append_new(list, one);
    }
    return list;
}

/* Finds which backend served an attention call, by its kernels. */
static const char *backend_of(const exp_job *job)
{
    static const char *const names[][2] = { { "cudnn", "cudnn" },
                                            { "fa2", "flash" },
                                            { "fa3", "flash" },
                                            { "mem-efficient", "efficient" } };
    if (job->spec.kind != GAC_TASK_SDPA || !job->families[0])
        return job->path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(job->families, names[i][0]))
            return names[i][1];
    return "math";
}

static void take_job(gac_pytorch_call *call, exp_job *job)
{
    snprintf(job->reason, sizeof job->reason, "%s", call->reason);
    if (call->state != GAC_PYTORCH_MEASURED) {
        job->state = call->state == GAC_PYTORCH_DECLINED ? EXP_DECLINED : EXP_FAILED;
        return;
    }
    job->state = EXP_MEASURED;
    job->time_us = call->timing.median_us;
    job->spread_us = call->timing.spread_us;
    job->noise = call->timing.noise;
    job->n_samples = call->timing.n_samples;
    job->timing = gac_timing_json(&call->timing, true);
    exp_note_kernels(job, json_incref(call->kernels));
    snprintf(job->served, sizeof job->served, "%s", backend_of(job));
}

static gac_status take_checks(const exp_check *checks, int n_checks, const json_t *answer,
                              json_t *out, gac_error *err)
{
    const json_t *list = json_object_get(answer, "checks");
    if (json_array_size(list) != (size_t)n_checks)
        return gac_error_set(err, GAC_FAILED, "PyTorch: answer: not as many results as checks");
    for (int i = 0; i < n_checks; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        const json_t *relative = json_object_get(one, "relative");
        const json_t *forgotten = json_object_get(one, "forgotten");
        const char *reason = json_string_value(json_object_get(one, "reason"));
        char q[300];
        gac_quote(q, sizeof q, reason ? reason : "not compared");
        /* null: the outputs were compared, but the difference is not a number. */
        bool ran = json_is_number(relative) || json_is_null(relative);
        json_array_append_new(
            out, exp_check_json(&checks[i],
                                json_is_number(relative) ? json_number_value(relative) : INFINITY,
                                json_is_number(forgotten) ? json_number_value(forgotten) : NAN,
                                gac_task_tolerance(&checks[i].spec), ran ? NULL : q));
    }
    return GAC_OK;
}

gac_status exp_run_pytorch(const gac_experiment *experiment, exp_plan *plan,
                           const gac_experiment_options *options, json_t **checks, json_t **machine,
                           gac_error *err)
{
    exp_check *list = NULL;
    int n_checks = 0;
    gac_pytorch *pytorch = NULL;
    json_t *answer = NULL, *out = json_array();
    gac_pytorch_call *calls = calloc((size_t)plan->n_jobs + 1, sizeof *calls);
    gac_status status = calls ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = exp_read_checks(experiment, GAC_STACK_PYTORCH, &list, &n_checks, err);
    json_t *asked = checks_request(list, n_checks);
    gac_pytorch_question question = { .device = options->device,
                                      .dtype = plan->dtype,
                                      .rules = options->rules,
                                      .names = true,
                                      .checks = asked,
                                      .progress = options->progress,
                                      .what = plan->what };
    for (int32_t i = 0; i < plan->n_jobs && status == GAC_OK; i++)
        calls[i] = (gac_pytorch_call){ .spec = plan->jobs[i].spec, .path = plan->jobs[i].path };
    if (status == GAC_OK)
        status = gac_pytorch_start(&pytorch, err);
    if (status == GAC_OK)
        status = gac_pytorch_time(pytorch, &question, calls, plan->n_jobs, &answer, err);
    for (int32_t i = 0; i < plan->n_jobs && status == GAC_OK; i++)
        take_job(&calls[i], &plan->jobs[i]);
    if (status == GAC_OK)
        status = take_checks(list, n_checks, answer, out, err);
    if (status == GAC_OK) {
        *machine = json_incref(json_object_get(answer, "machine"));
        *checks = json_incref(out);
    }
    gac_pytorch_end(pytorch);
    gac_pytorch_calls_free(calls, plan->n_jobs);
    json_decref(asked);
    json_decref(out);
    json_decref(answer);
    free(list);
    return status;
}

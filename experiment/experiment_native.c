/* The native stack: runs jobs on a gac device. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KERNELS 64

gac_status exp_open_native(gac_device *device, exp_job *job, gac_task **out, gac_error *err)
{
    gac_error declined = GAC_ERROR_INIT;
    gac_task_spec spec = job->spec;
    static const char *const served[GAC_SDPA_PATH_COUNT] = {
        [GAC_SDPA_LIBRARY] = "library",
        [GAC_SDPA_MATH] = "math",
        [GAC_SDPA_FLASH] = "own flash",
        [GAC_SDPA_PADDED] = "padded library",
    };
    bool may_fall_back = spec.kind == GAC_TASK_SDPA && strcmp(job->path, "auto") == 0;
    gac_status status = gac_task_create(device, &spec, out, may_fall_back ? &declined : err);
    if (status == GAC_CHECK && may_fall_back) {
        snprintf(job->reason, sizeof job->reason, "%.300s", declined.text);
        spec.sdpa.path = GAC_SDPA_FLASH;
        status = gac_task_create(device, &spec, out, err);
    } else if (status != GAC_OK && may_fall_back) {
        gac_error_set(err, status, "%s", declined.text);
    }
    const char *by = spec.kind == GAC_TASK_SDPA  ? served[spec.sdpa.path]
                     : spec.kind == GAC_TASK_PAD ? "own"
                                                 : "library";
    snprintf(job->served, sizeof job->served, "%s", status == GAC_OK ? by : "");
    return status;
}

void exp_note_kernels(exp_job *job, json_t *kernels)
{
    struct {
        const char *name;
        double time_us;
    } families[16];
    int n = 0;
    double total = 0;
    for (size_t i = 0; i < json_array_size(kernels); i++) {
        json_t *kernel = json_array_get(kernels, i);
        const char *name = gac_kernel_family(json_string_value(json_object_get(kernel, "name")));
        double time_us = json_number_value(json_object_get(kernel, "time_us"));
        int at = 0;
        json_object_set_new(kernel, "family", json_string(name));
        while (at < n && strcmp(families[at].name, name) != 0)
            at++;
        if (at == n && n < 16) {
            families[n].name = name;
            families[n++].time_us = 0;
        }
        if (at < n)
            families[at].time_us += time_us;
        total += time_us;
    }
    size_t length = 0;
    job->families[0] = 0;
    for (int round = 0; round < n; round++) {
        int most = 0;
        for (int i = 1; i < n; i++)
            most = families[i].time_us > families[most].time_us ? i : most;
        if (round > 0 && families[most].time_us < 0.05 * total)
            break;
        int k = snprintf(job->families + length, sizeof job->families - length, "%s%s",
                         length ? " + " : "", families[most].name);
        length += k > 0 ? (size_t)k : 0;
        if (length >= sizeof job->families)
            break;
        families[most].time_us = -1;
    }
    json_decref(job->kernels);
    job->kernels = kernels;
}

/* Lists the kernels of a call in *out. The list is empty where the device does not know them. */
static gac_status list_kernels(gac_task *task, json_t **out, gac_error *err)
{
    int n = 0;
    gac_kernel *kernels = calloc(MAX_KERNELS, sizeof *kernels);
    if (!kernels)
        return gac_error_no_memory(err);
    gac_status status = gac_task_kernels(task, kernels, MAX_KERNELS, &n, err);
    *out = json_array();
    for (int i = 0; status == GAC_OK && i < n && i < MAX_KERNELS; i++)
        json_array_append_new(
            *out, json_pack("{s:s, s:f}", "name", kernels[i].name, "time_us", kernels[i].time_us));
    free(kernels);
    return status == GAC_NO_RESOURCE ? status : GAC_OK;
}

static gac_status measure_job(gac_device *device, exp_job *job, const gac_timing_rules *rules,
                              gac_timing *timing, gac_error *err)
{
    gac_task *task = NULL;
    json_t *kernels = NULL;
    memset(timing, 0, sizeof *timing);
    gac_status status = exp_open_native(device, job, &task, err);
    if (status == GAC_OK)
        status = gac_timing_measure(device, task, rules, timing, err);
    if (status == GAC_OK)
        status = list_kernels(task, &kernels, err);
    if (status == GAC_CHECK)
        job->state = timing->n_discarded > 0 ? EXP_THROTTLED : EXP_DECLINED;
    else if (status != GAC_OK)
        job->state = EXP_FAILED;
    if (status == GAC_OK) {
        job->state = EXP_MEASURED;
        job->time_us = timing->median_us;
        job->spread_us = timing->spread_us;
        job->noise = timing->noise;
        job->n_samples = timing->n_samples;
        job->timing = gac_timing_json(timing, true);
        exp_note_kernels(job, json_incref(kernels));
    }
    json_decref(kernels);
    gac_task_free(task);
    return status;
}

gac_status exp_run_native(exp_plan *plan, gac_device *device, const gac_experiment_options *options,
                          gac_error *err)
{
    gac_status worst = GAC_OK;
    int n_done = 0;
    gac_timing *timing = calloc(1, sizeof *timing);
    if (!timing)
        return gac_error_no_memory(err);
    gac_progress_start(options->progress, plan->what, "operator calls", (uint64_t)plan->n_jobs);
    for (int32_t i = 0; i < plan->n_jobs; i++) {
        exp_job *job = &plan->jobs[i];
        gac_error local = GAC_ERROR_INIT;
        gac_status status = measure_job(device, job, options->rules, timing, &local);
        if (status != GAC_OK)
            snprintf(job->reason, sizeof job->reason, "%.300s", local.text);
        if (status != GAC_OK && status != GAC_CHECK)
            worst = gac_error_set(err, status, "%s: %s", job->key, local.text);
        n_done += job->state != EXP_FAILED;
        gac_progress_step(options->progress, (uint64_t)i + 1);
    }
    gac_progress_finish(options->progress);
    free(timing);
    /* One failed call leaves the other results valid. If all calls fail, so
     * does the run. */
    return n_done > 0 ? GAC_OK : worst;
}

/* Attention that the vendor's kernel declines, as PyTorch serves it. */
#include "probe/probe_internal.h"

#include "base/arguments.h"

#include <math.h>
#include <stdlib.h>

/* The kernel that ran longest in a call. */
static const char *longest_kernel(const gac_pytorch_call *call)
{
    const char *name = "";
    double most_us = 0;
    size_t i;
    json_t *kernel;
    json_array_foreach(call->kernels, i, kernel) {
        double time_us = json_number_value(json_object_get(kernel, "time_us"));
        if (time_us > most_us) {
            most_us = time_us;
            name = json_string_value(json_object_get(kernel, "name"));
        }
    }
    return name;
}

gac_status gac_probe_ask_pytorch(void *context, const gac_task_spec *specs, int n, bool names,
                                 gac_probe_served *out, char stack[96], gac_error *err)
{
    GAC_REFUSE_NULL(err, context, specs, out, stack);
    GAC_REFUSE(err, n < 0, "n is negative");
    gac_timing_rules rules = GAC_TIMING_RULES_SWEEP_INIT;
    gac_probe_pytorch *how = context;
    json_t *answer = NULL;
    if (how->quick)
        rules.settle_us = 0;
    gac_pytorch_question question = { .device = how->device,
                                      .dtype = n > 0 ? specs[0].dtype : GAC_DTYPE_F16,
                                      .rules = &rules,
                                      .names = names,
                                      .progress = how->progress,
                                      .what = "attention by PyTorch" };
    gac_pytorch_call *calls = calloc((size_t)n + 1, sizeof *calls);
    gac_status status = calls ? GAC_OK : gac_error_no_memory(err);
    for (int i = 0; i < n && status == GAC_OK; i++)
        calls[i] = (gac_pytorch_call){ .spec = specs[i], .path = "auto" };
    if (status == GAC_OK && !how->pytorch)
        status = gac_pytorch_start(&how->pytorch, err);
    if (status == GAC_OK)
        status = gac_pytorch_time(how->pytorch, &question, calls, n, &answer, err);
    const json_t *machine = json_object_get(answer, "machine");
    const char *torch = json_string_value(json_object_get(machine, "torch"));
    snprintf(stack, 96, "torch %s", torch ? torch : "of unknown version");
    for (int i = 0; i < n && status == GAC_OK; i++) {
        out[i].time_us = calls[i].state == GAC_PYTORCH_MEASURED ? calls[i].timing.median_us : NAN;
        snprintf(out[i].kernel, sizeof out[i].kernel, "%s", longest_kernel(&calls[i]));
    }
    if (status != GAC_OK)
        gac_probe_end_pytorch(how);
    json_decref(answer);
    gac_pytorch_calls_free(calls, n);
    return status;
}

void gac_probe_end_pytorch(gac_probe_pytorch *how)
{
    if (!how)
        return;
    gac_pytorch_end(how->pytorch);
    how->pytorch = NULL;
}

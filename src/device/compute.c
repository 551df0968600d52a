#include <gac/device.h>

#include "base/arguments.h"
#include "device/cpu/compute_internal.h"
#include "device/device_internal.h"

#include <string.h>

/* Finds the table of compute functions for a device name. Opens *device if it is a GPU. */
static gac_status find_ops(const char *name, gac_device **device, const gac_compute_ops **ops,
                           gac_error *err)
{
    char quoted[64];
    int index;
    if (strcmp(name, "reference") == 0 || strcmp(name, "cpu") == 0) {
        *ops = name[0] == 'c' ? &gac_compute_cpu_ops : &gac_compute_reference_ops;
        return GAC_OK;
    }
    if (!gac_device_parse_cuda(name, &index))
        return gac_error_set(err, GAC_USAGE,
                             "no device named %s; there are reference, cpu, cuda, cuda:N",
                             gac_quote(quoted, sizeof quoted, name));
    gac_status status = gac_device_open(name, device, err);
    if (status != GAC_OK)
        return status;
    *ops = (*device)->backend->compute;
    if (!*ops || !(*ops)->open)
        return gac_error_set(err, GAC_NO_RESOURCE, "%s: the plug-in has no forward passes", name);
    return GAC_OK;
}

gac_status gac_compute_open(const char *name, const gac_compute_options *options, gac_compute *out,
                            gac_error *err)
{
    GAC_REFUSE_NULL(err, name, options, out);
    gac_compute compute = GAC_COMPUTE_INIT;
    gac_status status = find_ops(name, &compute.device, &compute.ops, err);
    if (status == GAC_OK && (options->max_rows < 1 || options->n_threads < 0))
        status = gac_error_set(err, GAC_USAGE, "%s: a compute of %lld rows and %d threads", name,
                               (long long)options->max_rows, options->n_threads);
    if (status == GAC_OK)
        status = compute.ops->open(compute.device ? compute.device->state : NULL, options,
                                   &compute.state, err);
    if (status != GAC_OK) {
        gac_device_close(compute.device);
        return status;
    }
    *out = compute;
    return GAC_OK;
}

void gac_compute_close(gac_compute *compute)
{
    if (!compute)
        return;
    if (compute->ops)
        compute->ops->close(compute->state);
    gac_device_close(compute->device);
    *compute = (gac_compute)GAC_COMPUTE_INIT;
}

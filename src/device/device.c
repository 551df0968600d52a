#include <gac/device.h>

#include "base/arguments.h"
#include "device/device_internal.h"
#include "device/plugin.h"
#include "device/task_spec.h"

#include <stdlib.h>
#include <string.h>

struct gac_task {
    const gac_backend *backend;
    void *inner;
    gac_task_spec spec;
};

bool gac_device_parse_cuda(const char *name, int *index)
{
    if (strncmp(name, "cuda", 4) != 0)
        return false;
    *index = 0;
    if (name[4] == '\0')
        return true;
    size_t n_digits = strspn(name + 5, "0123456789");
    if (name[4] != ':' || n_digits < 1 || n_digits > 4 || name[5 + n_digits] != '\0')
        return false;
    *index = atoi(name + 5);
    return true;
}

gac_status gac_device_find_plugin(char **path, gac_error *err)
{
    GAC_REFUSE_NULL(err, path);
    return gac_library_find_own(&gac_cuda_library, path, err);
}

static gac_status load_cuda(const gac_backend **out, gac_error *err)
{
    char *path = NULL;
    gac_status status = gac_device_find_plugin(&path, err);
    if (status == GAC_OK)
        status = gac_plugin_load(&gac_cuda_library, path, out, err);
    free(path);
    return status;
}

static gac_status cannot(const gac_backend *backend, const char *what, gac_error *err)
{
    return gac_error_set(err, GAC_CHECK, "%s: this device cannot %s", backend->name, what);
}

gac_status gac_device_open(const char *name, gac_device **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, name, out);
    char quoted[64];
    int index = 0;
    const gac_backend *backend = NULL;
    gac_status status = GAC_OK;
    if (strcmp(name, "cpu") == 0)
        backend = gac_cpu_backend();
    else if (gac_device_parse_cuda(name, &index))
        status = load_cuda(&backend, err);
    else
        status = gac_error_set(err, GAC_USAGE, "no device named %s; there are cpu, cuda, cuda:N",
                               gac_quote(quoted, sizeof quoted, name));
    if (status != GAC_OK)
        return status;
    if (!backend->open)
        return cannot(backend, "be opened", err);
    gac_device *device = calloc(1, sizeof *device);
    if (!device)
        return gac_error_no_memory(err);
    device->backend = backend;
    status = backend->open(index, &device->state, &device->info, err);
    if (status != GAC_OK) {
        free(device);
        return status;
    }
    device->rest_clock_mhz = (int)device->info.max_clock_mhz;
    *out = device;
    return GAC_OK;
}

int gac_device_rest_clock_mhz(const gac_device *device)
{
    return device->rest_clock_mhz;
}

void gac_device_set_rest_clock(gac_device *device, int clock_mhz)
{
    device->rest_clock_mhz = clock_mhz;
}

void gac_device_close(gac_device *device)
{
    if (!device)
        return;
    if (device->backend->close)
        device->backend->close(device->state);
    free(device);
}

const gac_device_info *gac_device_describe(const gac_device *device)
{
    return &device->info;
}

gac_status gac_device_telemetry(gac_device *device, gac_telemetry *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, device, out);
    if (!device->backend->telemetry)
        return cannot(device->backend, "report clocks and temperature", err);
    return device->backend->telemetry(device->state, out, err);
}

gac_status gac_task_create(gac_device *device, const gac_task_spec *spec, gac_task **out,
                           gac_error *err)
{
    GAC_REFUSE_NULL(err, device, spec, out);
    const gac_backend *backend = device->backend;
    gac_status status = gac_task_check_spec(spec, err);
    if (status != GAC_OK)
        return status;
    if (!backend->task_create)
        return cannot(backend, "run tasks", err);
    gac_task *task = calloc(1, sizeof *task);
    if (!task)
        return gac_error_no_memory(err);
    task->backend = backend;
    task->spec = *spec;
    status = backend->task_create(device->state, &task->spec, &task->inner, err);
    if (status != GAC_OK) {
        free(task);
        return status;
    }
    *out = task;
    return GAC_OK;
}

void gac_task_free(gac_task *task)
{
    if (!task)
        return;
    if (task->backend->task_free)
        task->backend->task_free(task->inner);
    free(task);
}

/* Checks that the task has this operand and that it is n_bytes long. */
static gac_status check_transfer(const gac_task *task, gac_operand operand, size_t n_bytes,
                                 gac_error *err)
{
    static const char *const names[] = { "A", "B", "C", "out" };
    int64_t wanted = gac_task_operand_bytes(&task->spec, operand);
    if (wanted <= 0)
        return gac_error_set(err, GAC_USAGE, "the task has no operand %d", (int)operand);
    if ((uint64_t)wanted != n_bytes)
        return gac_error_set(err, GAC_USAGE, "operand %s has %lld bytes, not %zu", names[operand],
                             (long long)wanted, n_bytes);
    return GAC_OK;
}

gac_status gac_task_write(gac_task *task, gac_operand operand, const void *data, size_t n_bytes,
                          gac_error *err)
{
    GAC_REFUSE_NULL(err, task, data);
    GAC_REFUSE(err, (unsigned)operand >= GAC_OPERAND_COUNT, "there is no such operand");
    gac_status status = check_transfer(task, operand, n_bytes, err);
    if (status != GAC_OK)
        return status;
    if (!task->backend->task_write)
        return cannot(task->backend, "be written to", err);
    return task->backend->task_write(task->inner, operand, data, n_bytes, err);
}

gac_status gac_task_read(gac_task *task, gac_operand operand, void *data, size_t n_bytes,
                         gac_error *err)
{
    GAC_REFUSE_NULL(err, task, data);
    GAC_REFUSE(err, (unsigned)operand >= GAC_OPERAND_COUNT, "there is no such operand");
    gac_status status = check_transfer(task, operand, n_bytes, err);
    if (status != GAC_OK)
        return status;
    if (!task->backend->task_read)
        return cannot(task->backend, "be read from", err);
    return task->backend->task_read(task->inner, operand, data, n_bytes, err);
}

gac_status gac_task_run(gac_task *task, gac_error *err)
{
    GAC_REFUSE_NULL(err, task);
    if (!task->backend->task_run)
        return cannot(task->backend, "run tasks", err);
    return task->backend->task_run(task->inner, err);
}

gac_status gac_task_time(gac_task *task, int *n_calls, bool graph, double *time_us, gac_error *err)
{
    GAC_REFUSE_NULL(err, task, n_calls, time_us);
    if (*n_calls < 1)
        return gac_error_set(err, GAC_USAGE, "a sample of %d calls", *n_calls);
    if (!task->backend->task_time)
        return cannot(task->backend, "time tasks", err);
    return task->backend->task_time(task->inner, n_calls, graph, time_us, err);
}

gac_status gac_task_kernels(gac_task *task, gac_kernel *kernels, int max, int *n, gac_error *err)
{
    GAC_REFUSE_NULL(err, task, n);
    GAC_REFUSE(err, max > 0 && !kernels, "kernels is NULL");
    if (max < 0)
        return gac_error_set(err, GAC_USAGE, "room for %d kernels", max);
    if (!task->backend->task_kernels)
        return cannot(task->backend, "say which kernels ran", err);
    return task->backend->task_kernels(task->inner, kernels, max, n, err);
}

/* A plug-in for tests that pretends to be a GPU: times come from fake_model.c
 * with a little noise, the same in every run, numbers from the CPU reference.
 * GAC_FAKE, read when the device is opened, makes it fail:
 *   no-gpu         opening says that there is none
 *   throttle       every 5th look at the card finds it too hot
 *   hot            every look does
 *   brake          every look finds the hardware slowing it down
 *   power          every look finds it at its power limit
 *   dip            the clock is lower, and calls longer, from the 2nd to the 9th look
 *   capped         from the 2nd look on, for good
 *   late           from the 5th, and before that it is at its power limit
 *   strained       likewise from the 2nd on, at its power limit
 *   noisy          samples scatter by a tenth, and some are far off
 *   fickle         every 3rd task takes 12 % longer, whatever it is
 *   out-of-memory  every 3rd task finds no memory
 *   fp8-less       F8 is declined
 *   blind          telemetry and kernels are not to be had
 *   wrong          every result has its last element changed
 *   silent         running does nothing
 * Compiled with FAKE_ABI, FAKE_NAME or FAKE_NO_ENTRY it is a plug-in that must
 * not load. */
#include "base/splitmix.h"
#include "device/plugin.h"
#include "fake_model.h"

#include <gac/device.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_ABI
#define FAKE_ABI GAC_BACKEND_ABI
#endif
#ifndef FAKE_NAME
#define FAKE_NAME "cuda"
#endif

#define MAX_RUN_WORK 1e9 /* multiplications that running may take */
#define MEMORY_BYTES ((int64_t)139 << 30)

typedef struct fake_device {
    char mode[24];
    uint64_t n_looks, n_tasks;
    void *cpu; /* the reference, which does the arithmetic */
} fake_device;

typedef struct fake_task {
    fake_device *device;
    gac_task_spec spec;
    void *inner; /* made when numbers are first asked for, since most tasks are only timed */
    uint64_t seed, n_samples;
} fake_task;

static bool is_mode(const fake_device *device, const char *mode)
{
    return strcmp(device->mode, mode) == 0;
}

static gac_status fake_open(int index, void **state, gac_device_info *info, gac_error *err)
{
    gac_device_info cpu_info = { .name = "" };
    const char *mode = getenv("GAC_FAKE");
    if (index > 0 || (mode && strcmp(mode, "no-gpu") == 0))
        return gac_error_set(err, GAC_NO_RESOURCE, "cuda: no GPU number %d: there %s", index,
                             index > 0 ? "is 1" : "are 0");
    fake_device *device = calloc(1, sizeof *device);
    if (!device)
        return gac_error_no_memory(err);
    snprintf(device->mode, sizeof device->mode, "%s", mode ? mode : "");
    gac_status status = gac_cpu_backend()->open(0, &device->cpu, &cpu_info, err);
    if (status != GAC_OK) {
        free(device);
        return status;
    }
    *info = (gac_device_info){ .name = "NVIDIA H200 (fake)",
                               .arch = "sm_90",
                               .driver = "580.0",
                               .runtime = "13.0",
                               .blas = "13.1.0",
                               .dnn = "9.14.0",
                               .n_units = FAKE_UNITS,
                               .l2_bytes = 50 << 20,
                               .memory_bytes = MEMORY_BYTES,
                               .max_clock_mhz = 1980 };
    *state = device;
    return GAC_OK;
}

static void fake_close(void *state)
{
    fake_device *device = state;
    gac_cpu_backend()->close(device->cpu);
    free(device);
}

/* Before the next look at the card. */
static bool is_slow(const fake_device *device)
{
    uint64_t n = device->n_looks;
    return (is_mode(device, "dip") && n >= 1 && n < 9) || (is_mode(device, "capped") && n >= 1) ||
           (is_mode(device, "late") && n >= 4) || (is_mode(device, "strained") && n >= 1);
}

static gac_status fake_telemetry(void *state, gac_telemetry *out, gac_error *err)
{
    fake_device *device = state;
    if (is_mode(device, "blind"))
        return gac_error_set(err, GAC_CHECK, "cuda: no NVML");
    const bool slow = is_slow(device);
    device->n_looks++;
    const bool hot =
        is_mode(device, "hot") || (is_mode(device, "throttle") && device->n_looks % 5 == 0);
    *out = (gac_telemetry){ .clock_mhz = hot    ? 1200
                                         : slow ? 1700
                                                : 1965 + (device->n_looks % 3 ? 15 : 0),
                            .memory_clock_mhz = 3201,
                            .temperature_c = hot ? 92 : 45,
                            .power_w = 480.0,
                            .throttle = hot                        ? GAC_THROTTLE_THERMAL
                                        : is_mode(device, "brake") ? GAC_THROTTLE_HARDWARE
                                        : is_mode(device, "power") || is_mode(device, "strained") ||
                                                (is_mode(device, "late") && !slow)
                                            ? GAC_THROTTLE_POWER
                                            : 0 };
    return GAC_OK;
}

/* Who declines a task, and why. */
static gac_status decline(const gac_task_spec *spec, gac_error *err)
{
    if (spec->kind == GAC_TASK_SDPA)
        return gac_error_set(err, GAC_CHECK, "cuDNN declined heads of %lld and %lld",
                             (long long)spec->sdpa.shape.qk_head,
                             (long long)spec->sdpa.shape.v_head);
    return gac_error_set(err, GAC_CHECK, "cublasLt has no %s kernel for n %lld, k %lld",
                         gac_dtype_name(spec->dtype), (long long)spec->gemm.n,
                         (long long)spec->gemm.k);
}

static gac_status fake_task_create(void *state, const gac_task_spec *spec, void **out,
                                   gac_error *err)
{
    fake_device *device = state;
    int64_t total_bytes = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++)
        total_bytes += gac_task_operand_bytes(spec, (gac_operand)i);
    if (fake_time_us(spec) < 0 || (is_mode(device, "fp8-less") && spec->dtype == GAC_DTYPE_F8_E4M3))
        return decline(spec, err);
    device->n_tasks++;
    if (total_bytes > MEMORY_BYTES ||
        (is_mode(device, "out-of-memory") && device->n_tasks % 3 == 0))
        return gac_error_set(err, GAC_NO_RESOURCE, "cuda: out of memory for %lld bytes",
                             (long long)total_bytes);
    fake_task *task = calloc(1, sizeof *task);
    if (!task)
        return gac_error_no_memory(err);
    task->device = device;
    task->spec = *spec;
    task->seed = device->n_tasks;
    *out = task;
    return GAC_OK;
}

static void fake_task_free(void *data)
{
    fake_task *task = data;
    gac_cpu_backend()->task_free(task->inner);
    free(task);
}

static gac_status need_numbers(fake_task *task, gac_error *err)
{
    const gac_sdpa_shape *s = &task->spec.sdpa.shape;
    double work = 0;
    if (task->inner)
        return GAC_OK;
    if (task->spec.kind == GAC_TASK_GEMM)
        work = (double)task->spec.gemm.m * (double)task->spec.gemm.n * (double)task->spec.gemm.k;
    else if (task->spec.kind == GAC_TASK_SDPA)
        work = (double)(s->batch * s->n_q_heads) * (double)s->n_q * (double)s->n_kv *
               (double)(s->qk_head + s->v_head);
    if (work > MAX_RUN_WORK)
        return gac_error_set(err, GAC_NO_RESOURCE, "the fake GPU only computes small tasks");
    task->spec.n_sets = 1;
    return gac_cpu_backend()->task_create(task->device->cpu, &task->spec, &task->inner, err);
}

static gac_status fake_task_write(void *data, gac_operand operand, const void *source,
                                  size_t n_bytes, gac_error *err)
{
    fake_task *task = data;
    gac_status status = need_numbers(task, err);
    if (status != GAC_OK)
        return status;
    return gac_cpu_backend()->task_write(task->inner, operand, source, n_bytes, err);
}

static gac_status fake_task_read(void *data, gac_operand operand, void *target, size_t n_bytes,
                                 gac_error *err)
{
    fake_task *task = data;
    gac_status status = need_numbers(task, err);
    if (status == GAC_OK)
        status = gac_cpu_backend()->task_read(task->inner, operand, target, n_bytes, err);
    if (status == GAC_OK && operand == GAC_OPERAND_OUT && is_mode(task->device, "wrong"))
        ((unsigned char *)target)[n_bytes - 1] ^= 0x40;
    return status;
}

static gac_status fake_task_run(void *data, gac_error *err)
{
    fake_task *task = data;
    gac_status status = need_numbers(task, err);
    if (status != GAC_OK || is_mode(task->device, "silent"))
        return status;
    return gac_cpu_backend()->task_run(task->inner, err);
}

/* A GPU's samples lie within parts of a percent, now and then one is late. */
static gac_status fake_task_time(void *data, int *n_calls, bool graph, double *time_us,
                                 gac_error *err)
{
    fake_task *task = data;
    const bool noisy = is_mode(task->device, "noisy");
    uint64_t sample = task->n_samples++;
    double noise = gac_random_normal(task->seed, sample) * (noisy ? 0.1 : 0.0015);
    const bool late = gac_random_bits(task->seed, ~sample) % 16 == 0;
    (void)err;
    if (graph) /* whole rounds over operand sets */
        *n_calls = (*n_calls + FAKE_SETS - 1) / FAKE_SETS * FAKE_SETS;
    noise += late ? (noisy ? 1.5 : 0.01) : 0;
    noise += is_slow(task->device) ? 1980.0 / 1700 - 1 : 0;
    noise += is_mode(task->device, "fickle") && task->seed % 3 == 0 ? 0.12 : 0;
    *time_us = (fake_time_us(&task->spec) + (graph ? 0 : FAKE_LAUNCH_US)) * (1 + noise);
    return GAC_OK;
}

static void add_kernel(gac_kernel *kernels, int max, int *n, const char *name, double time_us)
{
    if (*n < max) {
        kernels[*n] = (gac_kernel){ .time_us = time_us,
                                    .grid = { FAKE_UNITS, 1, 1 },
                                    .block = { 384, 1, 1 } };
        snprintf(kernels[*n].name, sizeof kernels[*n].name, "%s", name);
    }
    ++*n;
}

static gac_status fake_task_kernels(void *data, gac_kernel *kernels, int max, int *n,
                                    gac_error *err)
{
    const fake_task *task = data;
    const gac_task_spec *spec = &task->spec;
    const double time_us = fake_time_us(spec);
    const bool is_sdpa = spec->kind == GAC_TASK_SDPA;
    if (is_mode(task->device, "blind"))
        return gac_error_set(err, GAC_CHECK, "cuda: no CUPTI");
    *n = 0;
    if (is_sdpa && spec->sdpa.path == GAC_SDPA_MATH) {
        const gac_task_spec product = { .kind = GAC_TASK_GEMM,
                                        .dtype = spec->dtype,
                                        .gemm = { 128, 128, spec->sdpa.shape.qk_head, false } };
        add_kernel(kernels, max, n, fake_kernel(&product), 0.3 * time_us);
        add_kernel(kernels, max, n, fake_kernel(spec), 0.4 * time_us);
        add_kernel(kernels, max, n, fake_kernel(&product), 0.3 * time_us);
    } else if (is_sdpa && spec->sdpa.path == GAC_SDPA_PADDED) {
        for (int i = 0; i < 3; i++)
            add_kernel(kernels, max, n, "gac_pad_kernel", 0.05 * time_us);
        add_kernel(kernels, max, n, fake_kernel(spec), 0.8 * time_us);
        add_kernel(kernels, max, n, "gac_pad_kernel", 0.05 * time_us);
    } else {
        add_kernel(kernels, max, n, fake_kernel(spec), time_us);
    }
    return GAC_OK;
}

static const gac_backend backend = {
    .abi = FAKE_ABI,
    .name = FAKE_NAME,
    .open = fake_open,
    .close = fake_close,
    .telemetry = fake_telemetry,
    .task_create = fake_task_create,
    .task_free = fake_task_free,
    .task_write = fake_task_write,
    .task_read = fake_task_read,
    .task_run = fake_task_run,
    .task_time = fake_task_time,
    .task_kernels = fake_task_kernels,
};

#ifdef FAKE_NO_ENTRY
const gac_backend *gac_backend_entry_missing(void);
const gac_backend *gac_backend_entry_missing(void)
#else
const gac_backend *gac_backend_entry(void);
const gac_backend *gac_backend_entry(void)
#endif
{
    return &backend;
}

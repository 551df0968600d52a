#include "device/cpu/cpu_reference.h"
#include "device/plugin.h"
#include "device/task_spec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MAX_DEFAULT_SETS 64
#define DEFAULT_L2_BYTES (2 << 20) /* if the system does not tell */

typedef struct cpu_device {
    int64_t l2_bytes;
} cpu_device;

typedef struct cpu_task {
    gac_task_spec spec;
    int n_sets;
    size_t bytes[GAC_OPERAND_COUNT]; /* bytes of one set */
    char
        *operands[GAC_OPERAND_COUNT]; /* (n_sets, bytes), or NULL if the task has no such operand */
} cpu_task;

/* Gets the processor's name from /proc/cpuinfo, or "CPU". */
static void read_cpu_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "CPU");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        gac_quote(name, size, colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file)
        fclose(file);
}

static gac_status cpu_open(int index, void **state, gac_device_info *info, gac_error *err)
{
    struct utsname uts;
    cpu_device *device = calloc(1, sizeof *device);
    (void)index;
    if (!device)
        return gac_error_no_memory(err);
    read_cpu_name(info->name, sizeof info->name);
    if (uname(&uts) == 0)
        snprintf(info->arch, sizeof info->arch, "%s", uts.machine);
    info->n_units = sysconf(_SC_NPROCESSORS_ONLN);
    long l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    info->l2_bytes = device->l2_bytes = l2_bytes > 0 ? l2_bytes : DEFAULT_L2_BYTES;
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    *state = device;
    return GAC_OK;
}

static void cpu_close(void *state)
{
    free(state);
}

static void cpu_task_free(void *data)
{
    cpu_task *task = data;
    if (!task)
        return;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++)
        free(task->operands[i]);
    free(task);
}

static int default_sets(const cpu_device *device, const cpu_task *task)
{
    size_t set_bytes = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++)
        set_bytes += task->bytes[i];
    size_t n = 3 * (size_t)device->l2_bytes / set_bytes + 1;
    return n < MAX_DEFAULT_SETS ? (int)n : MAX_DEFAULT_SETS;
}

static gac_status cpu_task_create(void *state, const gac_task_spec *spec, void **out,
                                  gac_error *err)
{
    cpu_task *task = calloc(1, sizeof *task);
    if (!task)
        return gac_error_no_memory(err);
    task->spec = *spec;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++)
        task->bytes[i] = (size_t)gac_task_operand_bytes(spec, (gac_operand)i);
    task->n_sets = spec->n_sets > 0 ? spec->n_sets : default_sets(state, task);
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        if (task->bytes[i] == 0)
            continue;
        task->operands[i] = calloc((size_t)task->n_sets, task->bytes[i]);
        if (!task->operands[i]) {
            gac_error_set(err, GAC_NO_RESOURCE, "cpu: no memory for %d x %zu bytes", task->n_sets,
                          task->bytes[i]);
            cpu_task_free(task);
            return GAC_NO_RESOURCE;
        }
        for (int set = 0; i != GAC_OPERAND_OUT && set < task->n_sets; set++)
            gac_task_fill(spec, (gac_operand)i, (uint64_t)set,
                          task->operands[i] + (size_t)set * task->bytes[i]);
    }
    *out = task;
    return GAC_OK;
}

static gac_status cpu_task_write(void *data, gac_operand operand, const void *source,
                                 size_t n_bytes, gac_error *err)
{
    cpu_task *task = data;
    (void)err;
    memcpy(task->operands[operand], source, n_bytes);
    return GAC_OK;
}

static gac_status cpu_task_read(void *data, gac_operand operand, void *target, size_t n_bytes,
                                gac_error *err)
{
    const cpu_task *task = data;
    (void)err;
    memcpy(target, task->operands[operand], n_bytes);
    return GAC_OK;
}

static gac_status run_set(const cpu_task *task, int set, gac_error *err)
{
    void *operands[GAC_OPERAND_COUNT] = { NULL };
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        if (task->operands[i])
            operands[i] = task->operands[i] + (size_t)set * task->bytes[i];
    }
    return gac_cpu_reference(&task->spec, operands, err);
}

static gac_status cpu_task_run(void *data, gac_error *err)
{
    return run_set(data, 0, err);
}

/* A CPU call has no launch overhead, so a graph makes no difference. */
static gac_status cpu_task_time(void *data, int *n_calls, bool graph, double *time_us,
                                gac_error *err)
{
    const cpu_task *task = data;
    int64_t start_ns = gac_now_ns();
    (void)graph;
    for (int i = 0; i < *n_calls; i++) {
        gac_status status = run_set(task, i % task->n_sets, err);
        if (status != GAC_OK)
            return status;
    }
    *time_us = 1e-3 * (double)(gac_now_ns() - start_ns) / *n_calls;
    return GAC_OK;
}

const gac_backend *gac_cpu_backend(void)
{
    static const gac_backend backend = {
        .abi = GAC_BACKEND_ABI,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .task_create = cpu_task_create,
        .task_free = cpu_task_free,
        .task_write = cpu_task_write,
        .task_read = cpu_task_read,
        .task_run = cpu_task_run,
        .task_time = cpu_task_time,
    };
    return &backend;
}

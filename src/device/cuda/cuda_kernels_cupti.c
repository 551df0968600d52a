#include "cuda_internal.h"

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 20)
#define MAX_RECORDS 1024

/* CUPTI is loaded on first use and never unloaded, because it cannot be unloaded safely.
 * It records only between enable and disable, so other calls are not slowed down. */
typedef struct cupti_library {
    void *library;
    CUptiResult(CUPTIAPI *enable)(CUpti_ActivityKind);
    CUptiResult(CUPTIAPI *disable)(CUpti_ActivityKind);
    CUptiResult(CUPTIAPI *flush_all)(uint32_t);
    CUptiResult(CUPTIAPI *register_callbacks)(CUpti_BuffersCallbackRequestFunc,
                                              CUpti_BuffersCallbackCompleteFunc);
    CUptiResult(CUPTIAPI *next_record)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult(CUPTIAPI *result_string)(CUptiResult, const char **);
} cupti_library;

typedef struct record {
    gac_kernel kernel;
    uint64_t start_ns;
} record;

/* Global, because CUPTI's callbacks carry no user data and may run in CUPTI's own thread. */
static struct {
    pthread_mutex_t lock;
    cupti_library cupti;
    bool tried;
    record *records; /* (MAX_RECORDS) while recording, else NULL */
    int n_records;
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void CUPTIAPI buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

/* From libstdc++, which the plug-in links. */
char *__cxa_demangle(const char *mangled, char *buffer, size_t *size, int *status);

static void copy_name(char *to, size_t size, const char *mangled)
{
    int status = -1;
    char *name = __cxa_demangle(mangled, NULL, NULL, &status);
    snprintf(to, size, "%s", name && status == 0 ? name : mangled);
    free(name);
}

static void take_record(const CUpti_Activity *activity)
{
    if (activity->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || !shared.records ||
        shared.n_records == MAX_RECORDS)
        return;
    /* Later versions of the record only append members. */
    const CUpti_ActivityKernel10 *from = (const void *)activity;
    record *to = &shared.records[shared.n_records++];
    copy_name(to->kernel.name, sizeof to->kernel.name, from->name ? from->name : "");
    to->start_ns = from->start;
    to->kernel.time_us = (double)(from->end - from->start) / 1000.0;
    to->kernel.grid[0] = from->gridX;
    to->kernel.grid[1] = from->gridY;
    to->kernel.grid[2] = from->gridZ;
    to->kernel.block[0] = from->blockX;
    to->kernel.block[1] = from->blockY;
    to->kernel.block[2] = from->blockZ;
}

static void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer,
                                      size_t size, size_t n_valid_bytes)
{
    (void)context, (void)stream, (void)size;
    CUpti_Activity *activity = NULL;
    pthread_mutex_lock(&shared.lock);
    while (n_valid_bytes > 0 &&
           shared.cupti.next_record(buffer, n_valid_bytes, &activity) == CUPTI_SUCCESS)
        take_record(activity);
    pthread_mutex_unlock(&shared.lock);
    free(buffer);
}

static gac_status load(gac_error *err)
{
    static const char *const names[] = {
        "libcupti.so.13",
        "libcupti.so",
        "/usr/local/cuda/lib64/libcupti.so.13",
        "/usr/local/cuda/lib64/libcupti.so",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
    };
    cupti_library *cupti = &shared.cupti;
    if (!shared.tried) {
        shared.tried = true;
        for (size_t i = 0; i < sizeof names / sizeof *names && !cupti->library; i++)
            cupti->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        void *library = cupti->library;
        if (library &&
            (!gac_cuda_find(library, "cuptiActivityEnable", &cupti->enable) ||
             !gac_cuda_find(library, "cuptiActivityDisable", &cupti->disable) ||
             !gac_cuda_find(library, "cuptiActivityFlushAll", &cupti->flush_all) ||
             !gac_cuda_find(library, "cuptiActivityRegisterCallbacks",
                            &cupti->register_callbacks) ||
             !gac_cuda_find(library, "cuptiActivityGetNextRecord", &cupti->next_record) ||
             !gac_cuda_find(library, "cuptiGetResultString", &cupti->result_string))) {
            dlclose(library);
            cupti->library = NULL;
        }
    }
    if (!cupti->library)
        return gac_error_set(err, GAC_CHECK, "kernel names: CUPTI (libcupti.so.13) was not found");
    return GAC_OK;
}

static gac_status cupti_error(gac_error *err, CUptiResult code, const char *what)
{
    const char *text = "unknown";
    shared.cupti.result_string(code, &text);
    return gac_error_set(err, GAC_CHECK, "kernel names: %s: %s", what, text);
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const record *)a)->start_ns, y = ((const record *)b)->start_ns;
    return (x > y) - (x < y);
}

/* Calls run with recording enabled. */
static gac_status run_recorded(gac_cupti_run run, void *context, gac_error *err)
{
    cupti_library *cupti = &shared.cupti;
    CUptiResult code = cupti->register_callbacks(buffer_requested, buffer_completed);
    if (code != CUPTI_SUCCESS)
        return cupti_error(err, code, "cuptiActivityRegisterCallbacks");
    code = cupti->enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (code != CUPTI_SUCCESS)
        return cupti_error(err, code, "cuptiActivityEnable");
    gac_status status = run(context, err);
    CUptiResult flushed = cupti->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    code = cupti->disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (status == GAC_OK && flushed != CUPTI_SUCCESS)
        status = cupti_error(err, flushed, "cuptiActivityFlushAll");
    if (status == GAC_OK && code != CUPTI_SUCCESS)
        status = cupti_error(err, code, "cuptiActivityDisable");
    return status;
}

gac_status gac_cupti_record(gac_cupti_run run, void *context, gac_kernel *kernels, int max, int *n,
                            gac_error *err)
{
    gac_status status = load(err);
    if (status)
        return status;
    record *records = calloc(MAX_RECORDS, sizeof *records);
    if (!records)
        return gac_error_no_memory(err);

    pthread_mutex_lock(&shared.lock);
    shared.records = records;
    shared.n_records = 0;
    pthread_mutex_unlock(&shared.lock);

    status = run_recorded(run, context, err);

    pthread_mutex_lock(&shared.lock);
    int n_records = shared.n_records;
    shared.records = NULL;
    pthread_mutex_unlock(&shared.lock);

    if (status == GAC_OK) {
        qsort(records, (size_t)n_records, sizeof *records, by_start);
        *n = n_records;
        for (int i = 0; i < n_records && i < max; i++)
            kernels[i] = records[i].kernel;
    }
    free(records);
    return status;
}

#include "cuda_cusolver.h"
#include "cuda_internal.h"
#include "pass_internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

gac_status gac_cuda_error(gac_error *err, cudaError_t code, const char *what)
{
    gac_status status = code == cudaErrorMemoryAllocation ? GAC_NO_RESOURCE : GAC_FAILED;
    return gac_error_set(err, status, "%s: %s (%s)", what, cudaGetErrorString(code),
                         cudaGetErrorName(code));
}

gac_status gac_cuda_blas_error(gac_error *err, cublasStatus_t code, const char *what)
{
    gac_status status = code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE
                            ? GAC_CHECK
                        : code == CUBLAS_STATUS_ALLOC_FAILED ? GAC_NO_RESOURCE
                                                             : GAC_FAILED;
    return gac_error_set(err, status, "%s: %s (%s)", what, cublasGetStatusString(code),
                         cublasGetStatusName(code));
}

bool gac_cuda_find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

gac_status gac_cuda_alloc(gac_cuda *cuda, size_t n_bytes, void **out, gac_error *err)
{
    cudaError_t code = cudaMallocAsync(out, n_bytes, cuda->stream);
    if (code == cudaSuccess)
        return GAC_OK;
    *out = NULL;
    cudaGetLastError(); /* clear the error, so that later calls do not report it */
    if (code == cudaErrorMemoryAllocation)
        return gac_error_set(err, GAC_NO_RESOURCE, "cuda:%d: no room for %zu bytes: %s",
                             cuda->index, n_bytes, cudaGetErrorString(code));
    return gac_cuda_error(err, code, "cudaMallocAsync");
}

void gac_cuda_release(gac_cuda *cuda, void *memory)
{
    if (memory)
        cudaFreeAsync(memory, cuda->stream);
}

/* cuBLAS 13 and cuDNN 9 encode a version as 10000 major + 100 minor + patch. */
static void version_text(char *text, size_t size, size_t version)
{
    snprintf(text, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

/* Checks that the GPU exists. */
static gac_status find_gpu(int index, gac_error *err)
{
    int n_gpus = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "cuda:%d: this machine has no NVIDIA driver (libcuda.so.1)", index);
    cudaError_t code = cudaGetDeviceCount(&n_gpus);
    if (code != cudaSuccess)
        return gac_error_set(err, GAC_NO_RESOURCE, "cuda:%d: no GPU can be used: %s (%s)", index,
                             cudaGetErrorString(code), cudaGetErrorName(code));
    if (index < 0 || index >= n_gpus)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "cuda:%d: there is no such GPU; this machine has %d", index, n_gpus);
    return GAC_OK;
}

/* Creates the stream, the events and a memory pool. The pool keeps freed memory, because
 * a sweep over thousands of shapes would otherwise call the driver for each. */
static gac_status open_stream(gac_cuda *cuda, gac_error *err)
{
    const char *what = "cudaSetDevice";
    cudaError_t code = cudaSetDevice(cuda->index);
    if (code == cudaSuccess) {
        what = "cudaStreamCreateWithFlags";
        code = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    }
    if (code == cudaSuccess) {
        what = "cudaEventCreate";
        code = cudaEventCreate(&cuda->start);
    }
    if (code == cudaSuccess)
        code = cudaEventCreate(&cuda->stop);
    if (code == cudaSuccess) {
        what = "cudaHostAlloc";
        code =
            cudaHostAlloc((void **)&cuda->clock_mhz, sizeof *cuda->clock_mhz, cudaHostAllocMapped);
    }
    if (code == cudaSuccess) {
        what = "cudaDeviceGetDefaultMemPool";
        code = cudaDeviceGetDefaultMemPool(&cuda->pool, cuda->index);
    }
    if (code == cudaSuccess) {
        uint64_t keep_all = UINT64_MAX;
        what = "cudaMemPoolSetAttribute";
        code = cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolAttrReleaseThreshold, &keep_all);
    }
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, what);
}

static gac_status open_blas(gac_cuda *cuda, gac_error *err)
{
    static const float one = 1;
    void *memory = NULL;
    gac_status status = gac_cuda_alloc(cuda, GAC_CUDA_WORKSPACE_BYTES, &cuda->workspace, err);
    if (status == GAC_OK)
        status = gac_cuda_alloc(cuda, sizeof one, &memory, err);
    if (status)
        return status;
    cuda->unit_scale = memory;
    cudaError_t copied =
        cudaMemcpyAsync(cuda->unit_scale, &one, sizeof one, cudaMemcpyHostToDevice, cuda->stream);
    if (copied == cudaSuccess)
        copied = cudaStreamSynchronize(cuda->stream);
    if (copied != cudaSuccess)
        return gac_cuda_error(err, copied, "copy to the device");

    cublasStatus_t code = cublasLtCreate(&cuda->lt);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasLtCreate");
    code = cublasCreate(&cuda->blas);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasCreate");
    code = cublasSetStream(cuda->blas, cuda->stream);
    /* Set the workspace last: cublasSetStream resets it. */
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasSetWorkspace(cuda->blas, cuda->workspace, GAC_CUDA_WORKSPACE_BYTES);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasSetWorkspace");
    const char *gemm = getenv("GAC_CUDA_GEMM");
    if (gemm && *gemm && strcmp(gemm, "lt") != 0 && strcmp(gemm, "gemmex") != 0) {
        char name[64];
        return gac_error_set(err, GAC_USAGE, "GAC_CUDA_GEMM is \"%s\"; it may be lt or gemmex",
                             gac_quote(name, sizeof name, gemm));
    }
    cuda->use_gemmex = gemm && strcmp(gemm, "gemmex") == 0;
    return GAC_OK;
}

static void describe_versions(gac_cuda *cuda, gac_device_info *info)
{
    int version = 0;
    gac_nvml_driver(cuda->nvml, info->driver, sizeof info->driver);
    if (!info->driver[0] && cudaDriverGetVersion(&version) == cudaSuccess)
        snprintf(info->driver, sizeof info->driver, "CUDA %d.%d", version / 1000,
                 version % 1000 / 10);
    if (cudaRuntimeGetVersion(&version) == cudaSuccess)
        snprintf(info->runtime, sizeof info->runtime, "%d.%d", version / 1000, version % 1000 / 10);
    version_text(info->blas, sizeof info->blas, cublasLtGetVersion());
    if (cuda->cudnn)
        version_text(info->dnn, sizeof info->dnn, gac_cudnn_version(cuda->cudnn));
}

static gac_status describe(gac_cuda *cuda, gac_device_info *info, gac_error *err)
{
    struct cudaDeviceProp properties;
    char bus_id[32] = "";
    int clock_khz = 0;
    cudaError_t code = cudaGetDeviceProperties(&properties, cuda->index);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "cudaGetDeviceProperties");
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, cuda->index) == cudaSuccess)
        cuda->nvml = gac_nvml_load(bus_id);
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, cuda->index);

    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", properties.name);
    snprintf(info->arch, sizeof info->arch, "sm_%d%d", properties.major, properties.minor);
    info->n_units = properties.multiProcessorCount;
    info->l2_bytes = properties.l2CacheSize;
    info->memory_bytes = (int64_t)properties.totalGlobalMem;
    info->max_clock_mhz = clock_khz / 1000;
    cuda->l2_bytes = info->l2_bytes;
    cuda->memory_bytes = info->memory_bytes;
    describe_versions(cuda, info);
    return GAC_OK;
}

static void close_gpu(void *state)
{
    gac_cuda *cuda = state;
    if (!cuda)
        return;
    gac_cusolver_close(cuda);
    gac_cudnn_unload(cuda->cudnn);
    gac_nvml_unload(cuda->nvml);
    if (cuda->blas)
        cublasDestroy(cuda->blas);
    if (cuda->lt)
        cublasLtDestroy(cuda->lt);
    gac_cuda_release(cuda, cuda->workspace);
    gac_cuda_release(cuda, cuda->unit_scale);
    if (cuda->start)
        cudaEventDestroy(cuda->start);
    if (cuda->stop)
        cudaEventDestroy(cuda->stop);
    if (cuda->stream) {
        cudaStreamSynchronize(cuda->stream);
        cudaStreamDestroy(cuda->stream);
    }
    if (cuda->clock_mhz)
        cudaFreeHost(cuda->clock_mhz);
    if (cuda->pool)
        cudaMemPoolTrimTo(cuda->pool, 0);
    free(cuda);
}

static gac_status open_gpu(int index, void **state, gac_device_info *info, gac_error *err)
{
    gac_status status = find_gpu(index, err);
    if (status)
        return status;
    gac_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return gac_error_no_memory(err);
    cuda->index = index;
    status = open_stream(cuda, err);
    if (status == GAC_OK)
        status = open_blas(cuda, err);
    if (status == GAC_OK)
        cuda->cudnn = gac_cudnn_load(cuda->stream, cuda->cudnn_missing, sizeof cuda->cudnn_missing);
    if (status == GAC_OK)
        status = describe(cuda, info, err);
    if (status) {
        close_gpu(cuda);
        return status;
    }
    *state = cuda;
    return GAC_OK;
}

/* The clock seen before a sample is reported for this long after it. */
#define CLOCK_FRESH_NS 10000000

static gac_status read_telemetry(void *state, gac_telemetry *out, gac_error *err)
{
    gac_cuda *cuda = state;
    (void)err;
    gac_nvml_read(cuda->nvml, out);
    if (cuda->clock_ns > 0 && gac_now_ns() - cuda->clock_ns < CLOCK_FRESH_NS)
        out->clock_mhz = (int)(*cuda->clock_mhz + 0.5f);
    return GAC_OK;
}

static const gac_backend backend = {
    .abi = GAC_BACKEND_ABI,
    .name = "cuda",
    .open = open_gpu,
    .close = close_gpu,
    .telemetry = read_telemetry,
    .task_create = gac_cuda_task_create,
    .task_free = gac_cuda_task_free,
    .task_write = gac_cuda_task_write,
    .task_read = gac_cuda_task_read,
    .task_run = gac_cuda_task_run,
    .task_time = gac_cuda_task_time,
    .task_kernels = gac_cuda_task_kernels,
    .compute = &gac_cuda_compute_ops,
};

__attribute__((visibility("default"))) const gac_backend *gac_backend_entry(void);

const gac_backend *gac_backend_entry(void)
{
    return &backend;
}

/* Declarations shared by the files of the CUDA plug-in.
 *
 * A task is a list of operand sets and one operation on them. cuda_task.c does the
 * timing: it rotates the sets, captures graphs and replays them. cuda_gemm.c and
 * cuda_sdpa*.c enqueue one call. Everything runs on one stream, so scratch memory and
 * library workspaces need no locks. */
#ifndef GAC_CUDA_INTERNAL_H
#define GAC_CUDA_INTERNAL_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <gac/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Workspace of the BLAS libraries, as large as PyTorch's on Hopper. */
#define GAC_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

typedef struct gac_cudnn gac_cudnn;
typedef struct gac_cusolver gac_cusolver;
typedef struct gac_nvml gac_nvml;

typedef struct gac_cuda {
    int index;
    cudaStream_t stream;
    cudaEvent_t start, stop;
    cudaMemPool_t pool;
    cublasLtHandle_t lt;
    cublasHandle_t blas;
    void *workspace;   /* GAC_CUDA_WORKSPACE_BYTES */
    float *unit_scale; /* 1.0f in device memory */
    gac_cudnn *cudnn;  /* NULL if not loaded; cudnn_missing says why */
    char cudnn_missing[256];
    gac_cusolver *cusolver; /* NULL until a weight is factored */
    gac_nvml *nvml;         /* NULL if not available */
    float *clock_mhz;       /* clock before the last sample; host memory that the device writes */
    int64_t clock_ns;       /* when that sample ended; 0 if there was none */
    int64_t l2_bytes, memory_bytes;
    bool use_gemmex; /* use cublasGemmEx instead of cublasLt where possible */
} gac_cuda;

/* Operands of one call, in device memory. */
typedef struct gac_cuda_set {
    void *operand[GAC_OPERAND_COUNT];
} gac_cuda_set;

/* One operation. The struct of each kind of operation begins with it. */
typedef struct gac_cuda_op gac_cuda_op;
struct gac_cuda_op {
    /* Enqueues one call and returns. */
    gac_status (*launch)(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err);
    void (*free)(gac_cuda_op *op);
};

/* Errors: one line with the library's own message. */

gac_status gac_cuda_error(gac_error *err, cudaError_t code, const char *what);
/* Returns GAC_CHECK if the library does not support the call. */
gac_status gac_cuda_blas_error(gac_error *err, cublasStatus_t code, const char *what);

/* Libraries loaded at run time. */

/* Sets *function, a function pointer, to a symbol by memcpy, since ISO C has no such
 * cast. Returns false if the symbol is missing. */
bool gac_cuda_find(void *library, const char *name, void *function);

/* Memory, allocated and freed in stream order. */

gac_status gac_cuda_alloc(gac_cuda *cuda, size_t n_bytes, void **out, gac_error *err);
void gac_cuda_release(gac_cuda *cuda, void *memory); /* NULL is allowed */

/* Operations. The caller frees *out with its free function. */

gac_status gac_cuda_gemm_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err);
gac_status gac_cuda_sdpa_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err);

/* cuDNN, loaded at run time. */

/* Loads cuDNN: the file named by the environment variable GAC_CUDNN if that is set,
 * otherwise libcudnn.so.9. On failure returns NULL and writes the reason to why (size
 * bytes). */
gac_cudnn *gac_cudnn_load(cudaStream_t stream, char *why, size_t size);
void gac_cudnn_unload(gac_cudnn *cudnn); /* NULL is allowed */
size_t gac_cudnn_version(const gac_cudnn *cudnn);

/* A plan for one attention shape. Tasks of the same shape share it. */
typedef struct gac_cudnn_plan gac_cudnn_plan;

/* Strides in elements between batches, heads and rows of the four operands. The elements
 * of a row are contiguous. */
typedef struct gac_sdpa_strides {
    int64_t q[3], k[3], v[3], out[3];
} gac_sdpa_strides;

/* strides is NULL if all operands are contiguous. */
gac_status gac_cudnn_plan_create(gac_cudnn *cudnn, gac_cuda *cuda, const gac_sdpa_shape *shape,
                                 const gac_sdpa_strides *strides, gac_dtype dtype,
                                 gac_cudnn_plan **out, gac_error *err);
void gac_cudnn_plan_free(gac_cudnn_plan *plan); /* NULL is allowed */
/* Applies scale as given. The head size of the shape does not change it. */
gac_status gac_cudnn_plan_launch(gac_cudnn_plan *plan, double scale, void *q, void *k, void *v,
                                 void *out, gac_error *err);

/* NVML, loaded at run time. */

gac_nvml *gac_nvml_load(const char *pci_bus_id); /* NULL if not available */
void gac_nvml_unload(gac_nvml *nvml);            /* NULL is allowed */
void gac_nvml_driver(gac_nvml *nvml, char *text, unsigned size);
void gac_nvml_read(gac_nvml *nvml, gac_telemetry *out);

/* Tasks: slots of gac_backend. */

gac_status gac_cuda_task_create(void *state, const gac_task_spec *spec, void **out, gac_error *err);
void gac_cuda_task_free(void *task);
gac_status gac_cuda_task_write(void *task, gac_operand operand, const void *data, size_t n_bytes,
                               gac_error *err);
gac_status gac_cuda_task_read(void *task, gac_operand operand, void *data, size_t n_bytes,
                              gac_error *err);
gac_status gac_cuda_task_run(void *task, gac_error *err);
gac_status gac_cuda_task_time(void *task, int *n_calls, bool graph, double *time_us,
                              gac_error *err);
gac_status gac_cuda_task_kernels(void *task, gac_kernel *kernels, int max, int *n, gac_error *err);

/* Calls run and records the kernels that it launches. Used by gac_cuda_task_kernels. */
typedef gac_status (*gac_cupti_run)(void *context, gac_error *err);
gac_status gac_cupti_record(gac_cupti_run run, void *context, gac_kernel *kernels, int max, int *n,
                            gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

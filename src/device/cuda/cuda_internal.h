/* cuda: what the files of the plug-in share.
 *
 * A task is operand sets and one operation on them. Operations know nothing of
 * timing, and timing nothing of operations: cuda_task.c rotates the sets,
 * captures and replays; cuda_gemm.c and cuda_sdpa*.c put one call on the
 * device's stream. Everything runs on that one stream, so scratch memory and
 * the libraries' workspace need no locks. */
#ifndef GAC_CUDA_INTERNAL_H
#define GAC_CUDA_INTERNAL_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <gac/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Workspace of the BLAS libraries: what PyTorch gives them on Hopper. */
#define GAC_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

typedef struct gac_cudnn gac_cudnn;
typedef struct gac_nvml gac_nvml;

typedef struct gac_cuda {
    int index;
    cudaStream_t stream;
    cudaEvent_t start, stop;
    cudaMemPool_t pool;
    cublasLtHandle_t lt;
    cublasHandle_t blas;
    void *workspace;   /* GAC_CUDA_WORKSPACE_BYTES */
    float *unit_scale; /* one 1.0f on the device */
    gac_cudnn *cudnn;  /* NULL: cudnn_missing says why */
    char cudnn_missing[256];
    gac_nvml *nvml;   /* NULL where there is none */
    float *clock_mhz; /* before the last sample; the host's memory, which the device writes */
    int64_t clock_ns; /* when that sample ended; 0: there was none */
    int64_t l2_bytes, memory_bytes;
    bool use_gemmex; /* cublasGemmEx, not cublasLt, wherever it can */
} gac_cuda;

/* Operands of one call, on the device. */
typedef struct gac_cuda_set {
    void *operand[GAC_OPERAND_COUNT];
} gac_cuda_set;

/* One kind of call; the structures of the kinds begin with it. */
typedef struct gac_cuda_op gac_cuda_op;
struct gac_cuda_op {
    /* Puts one call on the stream, without waiting. */
    gac_status (*launch)(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err);
    void (*free)(gac_cuda_op *op);
};

/* ---- Errors: one line, the library's own words ------------------------- */

gac_status gac_cuda_error(gac_error *err, cudaError_t code, const char *what);
/* GAC_CHECK when the library does not support what was asked. */
gac_status gac_cuda_blas_error(gac_error *err, cublasStatus_t code, const char *what);

/* ---- Libraries loaded at run time --------------------------------------- */

/* Sets *function, a pointer to a function, to the symbol; false where there is
 * none. Through memory, since ISO C has no cast for it. */
bool gac_cuda_find(void *library, const char *name, void *function);

/* ---- Memory, in stream order ------------------------------------------- */

gac_status gac_cuda_alloc(gac_cuda *cuda, size_t n_bytes, void **out, gac_error *err);
void gac_cuda_release(gac_cuda *cuda, void *memory); /* NULL is fine */

/* ---- Operations: *out is freed by its own free ------------------------- */

gac_status gac_cuda_gemm_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err);
gac_status gac_cuda_sdpa_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err);

/* ---- cuDNN, loaded at run time ----------------------------------------- */

/* NULL, with the reason in why (size bytes), where there is none. The file
 * named by the environment's GAC_CUDNN is tried first. */
gac_cudnn *gac_cudnn_load(cudaStream_t stream, char *why, size_t size);
void gac_cudnn_unload(gac_cudnn *cudnn); /* NULL is fine */
size_t gac_cudnn_version(const gac_cudnn *cudnn);

/* A plan for one attention shape. Tasks of the same shape share it. */
typedef struct gac_cudnn_plan gac_cudnn_plan;

/* Distances in elements between batches, heads and rows of the four operands;
 * the elements of a row lie side by side. */
typedef struct gac_sdpa_strides {
    int64_t q[3], k[3], v[3], out[3];
} gac_sdpa_strides;

/* strides NULL: all contiguous. */
gac_status gac_cudnn_plan_create(gac_cudnn *cudnn, gac_cuda *cuda, const gac_sdpa_shape *shape,
                                 const gac_sdpa_strides *strides, gac_dtype dtype,
                                 gac_cudnn_plan **out, gac_error *err);
void gac_cudnn_plan_free(gac_cudnn_plan *plan); /* NULL is fine */
/* scale is applied as it is, whatever the shape's head size. */
gac_status gac_cudnn_plan_launch(gac_cudnn_plan *plan, double scale, void *q, void *k, void *v,
                                 void *out, gac_error *err);

/* ---- NVML, loaded at run time ------------------------------------------ */

gac_nvml *gac_nvml_load(const char *pci_bus_id); /* NULL where there is none */
void gac_nvml_unload(gac_nvml *nvml);            /* NULL is fine */
void gac_nvml_driver(gac_nvml *nvml, char *text, unsigned size);
void gac_nvml_read(gac_nvml *nvml, gac_telemetry *out);

/* ---- Tasks: the slots of the backend table ----------------------------- */

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

/* Records the kernels that run launches: used by gac_cuda_task_kernels. */
typedef gac_status (*gac_cupti_run)(void *context, gac_error *err);
gac_status gac_cupti_record(gac_cupti_run run, void *context, gac_kernel *kernels, int max, int *n,
                            gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

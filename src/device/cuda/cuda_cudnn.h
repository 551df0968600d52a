/* The part of cuDNN's graph interface that the plug-in uses.
 *
 * A graph consists of descriptors that belong to a plan. After a failure the build
 * functions do nothing and the plan keeps the first failure. So a function that builds a
 * graph needs no checks between its steps; the caller checks once at the end. */
#ifndef GAC_CUDA_CUDNN_H
#define GAC_CUDA_CUDNN_H

#include "cuda_internal.h"

#include <cudnn_graph.h>

#define GAC_CUDNN_MAX_DESCRIPTORS 160
#define GAC_CUDNN_MAX_BOUND 8

struct gac_cudnn {
    void *library;
    cudaStream_t stream;
    cudnnHandle_t handle;  /* created with the first plan */
    gac_cudnn_plan *plans; /* plans in use, and idle ones: building a plan takes half a second */
    uint64_t n_uses;       /* counts uses, to find the least recently used plan */
    size_t (*version)(void);
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    const char *(*error_string)(cudnnStatus_t);
    void (*last_error)(char *, size_t);
    cudnnStatus_t (*create_descriptor)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*destroy_descriptor)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set_attribute)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                   cudnnBackendAttributeType_t, int64_t, const void *);
    cudnnStatus_t (*get_attribute)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                   cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);
};

struct gac_cudnn_plan {
    gac_cudnn *cudnn;
    gac_cuda *cuda;
    gac_sdpa_shape shape;
    gac_sdpa_strides strides;
    gac_dtype dtype;
    int n_users;
    uint64_t last_use;
    gac_cudnn_plan *next; /* next plan in cudnn->plans */

    cudnnBackendDescriptor_t descriptors[GAC_CUDNN_MAX_DESCRIPTORS]; /* owned */
    int n_descriptors;
    cudnnBackendDescriptor_t operations[32]; /* also in descriptors */
    int n_operations;
    int64_t n_virtual; /* tensors that exist only inside the graph */

    cudnnStatus_t status; /* status of the first step that failed */
    char reason[384];     /* what cuDNN said about that step */

    /* Tensors bound at execution: ids and pointers. The four operands come first. Scalars
     * follow; they are bound to the host values below. */
    int64_t bound_ids[GAC_CUDNN_MAX_BOUND];
    void *bound[GAC_CUDNN_MAX_BOUND];
    int n_bound;
    float scale, minus_infinity;
    int32_t n_q, n_kv;

    cudnnBackendDescriptor_t execution; /* also in descriptors */
    void *workspace;
};

typedef enum gac_cudnn_tensor {
    GAC_CUDNN_BOUND,
    GAC_CUDNN_SCALAR,
    GAC_CUDNN_VIRTUAL
} gac_cudnn_tensor;

/* Creates a descriptor. The caller sets its attributes and finalizes it. */
cudnnBackendDescriptor_t gac_cudnn_make(gac_cudnn_plan *plan, cudnnBackendDescriptorType_t type);
void gac_cudnn_set(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   int64_t n_elements, const void *elements);
/* Sets an attribute whose value is another descriptor. */
void gac_cudnn_link(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other);
void gac_cudnn_finalize(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                        const char *what);
/* Finalizes an operation and adds it to the graph. */
void gac_cudnn_add(gac_cudnn_plan *plan, cudnnBackendDescriptor_t operation, const char *what);

/* Builds the graph of one attention call. */
typedef void (*gac_cudnn_builder)(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                                  cudnnDataType_t type);
void gac_cudnn_build_composed(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                              cudnnDataType_t type);
void gac_cudnn_build_unified(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                             cudnnDataType_t type);

#endif

/* cuda: the pieces of cuDNN's graph interface used here.
 *
 * A graph is built from descriptors that belong to a plan. Building goes on
 * after a failure without doing anything, and the first failure is kept, so
 * that what builds a graph reads as the graph and checks once at the end. */
#ifndef GAC_CUDA_CUDNN_H
#define GAC_CUDA_CUDNN_H

#include "cuda_internal.h"

#include <cudnn_graph.h>

#define GAC_CUDNN_MAX_DESCRIPTORS 160
#define GAC_CUDNN_MAX_BOUND 8

struct gac_cudnn {
    void *library;
    cudaStream_t stream;
    cudnnHandle_t handle;  /* made when the first plan is */
    gac_cudnn_plan *plans; /* in use, and some that were: making one takes half a second */
    uint64_t n_uses;       /* a clock for what was used last */
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
    gac_cudnn_plan *next; /* in cudnn->plans */

    cudnnBackendDescriptor_t descriptors[GAC_CUDNN_MAX_DESCRIPTORS]; /* owned, in order of making */
    int n_descriptors;
    cudnnBackendDescriptor_t operations[32]; /* among the descriptors */
    int n_operations;
    int64_t n_virtual; /* tensors that exist only inside the graph */

    cudnnStatus_t status; /* of the first step that failed */
    char reason[384];     /* of that step, in cuDNN's words */

    /* Tensors bound on execution: numbers and pointers. The four operands come
     * first; scalars follow, bound to host values below. */
    int64_t bound_ids[GAC_CUDNN_MAX_BOUND];
    void *bound[GAC_CUDNN_MAX_BOUND];
    int n_bound;
    float scale, minus_infinity;
    int32_t n_q, n_kv;

    cudnnBackendDescriptor_t execution; /* among the descriptors */
    void *workspace;
};

typedef enum gac_cudnn_tensor {
    GAC_CUDNN_BOUND,
    GAC_CUDNN_SCALAR,
    GAC_CUDNN_VIRTUAL
} gac_cudnn_tensor;

/* A descriptor of the type, to be given attributes and finalized. */
cudnnBackendDescriptor_t gac_cudnn_make(gac_cudnn_plan *plan, cudnnBackendDescriptorType_t type);
void gac_cudnn_set(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   int64_t n_elements, const void *elements);
/* Sets an attribute that is one other descriptor. */
void gac_cudnn_link(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other);
void gac_cudnn_finalize(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                        const char *what);
/* Finalizes an operation and adds it to the graph. */
void gac_cudnn_add(gac_cudnn_plan *plan, cudnnBackendDescriptor_t operation, const char *what);

/* Builds the graph of one attention call; which of the ways is the caller's
 * choice. */
typedef void (*gac_cudnn_builder)(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                                  cudnnDataType_t type);
void gac_cudnn_build_composed(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                              cudnnDataType_t type);
void gac_cudnn_build_unified(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                             cudnnDataType_t type);

#endif

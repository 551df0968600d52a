/* Describes an attention call to cuDNN as a graph.
 *
 * The shapes below use batch b, heads h, rows s and head size d; scores are (b, h_q, s_q,
 * s_kv). cuDNN broadcasts the kv heads over the query heads if h_kv < h_q. Its engines
 * recognise a graph only in one exact form: the operations, their order and the types
 * between them are the ones that NVIDIA's front end produces. */
#include "cuda_cudnn.h"

#include <string.h>

enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_SCALE, ID_MINUS_INFINITY, ID_N_Q, ID_N_KV, ID_VIRTUAL };

typedef cudnnBackendDescriptor_t descriptor;

static descriptor make_tensor(gac_cudnn_plan *plan, gac_cudnn_tensor kind, int64_t id,
                              cudnnDataType_t type, const int64_t dims[4], const int64_t strides[4])
{
    const int64_t alignment_bytes = 16;
    const bool yes = true;
    descriptor tensor = gac_cudnn_make(plan, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
                  &alignment_bytes);
    if (kind == GAC_CUDNN_VIRTUAL)
        gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == GAC_CUDNN_SCALAR)
        gac_cudnn_set(plan, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    gac_cudnn_finalize(plan, tensor, "tensor");
    return tensor;
}

/* A contiguous (b, h, s, d) tensor between two operations. */
static descriptor between(gac_cudnn_plan *plan, cudnnDataType_t type, const int64_t dims[4])
{
    const int64_t strides[4] = { dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1 };
    int64_t id = ID_VIRTUAL + plan->n_virtual++;
    return make_tensor(plan, GAC_CUDNN_VIRTUAL, id, type, dims, strides);
}

static void bind(gac_cudnn_plan *plan, int64_t id, void *value)
{
    plan->bound_ids[plan->n_bound] = id;
    plan->bound[plan->n_bound++] = value;
}

/* A number that is read from host memory when the plan runs. */
static descriptor scalar(gac_cudnn_plan *plan, int64_t id, cudnnDataType_t type, void *value)
{
    static const int64_t ones[4] = { 1, 1, 1, 1 };
    bind(plan, id, value);
    return make_tensor(plan, GAC_CUDNN_SCALAR, id, type, ones, ones);
}

/* y = mode(x), mode(x, b) or t ? x : b. Unused inputs are NULL. */
static void pointwise(gac_cudnn_plan *plan, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                      descriptor x, descriptor b, descriptor t, descriptor y)
{
    descriptor how = gac_cudnn_make(plan, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gac_cudnn_set(plan, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gac_cudnn_set(plan, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    gac_cudnn_finalize(plan, how, "pointwise");
    descriptor operation = gac_cudnn_make(plan, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    gac_cudnn_add(plan, operation, "pointwise operation");
}

/* y = the index of each element of x along an axis. */
static void generate_index(gac_cudnn_plan *plan, int64_t axis, descriptor x, descriptor y)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = gac_cudnn_make(plan, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gac_cudnn_set(plan, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gac_cudnn_set(plan, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    gac_cudnn_set(plan, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    gac_cudnn_finalize(plan, how, "index");
    descriptor operation = gac_cudnn_make(plan, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    gac_cudnn_add(plan, operation, "index operation");
}

static void reduce(gac_cudnn_plan *plan, cudnnReduceTensorOp_t mode, descriptor x, descriptor y)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = gac_cudnn_make(plan, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    gac_cudnn_set(plan, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                  &mode);
    gac_cudnn_set(plan, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    gac_cudnn_finalize(plan, how, "reduction");
    descriptor operation = gac_cudnn_make(plan, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    gac_cudnn_add(plan, operation, "reduction operation");
}

static void multiply(gac_cudnn_plan *plan, descriptor a, descriptor b, descriptor c)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = gac_cudnn_make(plan, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    gac_cudnn_set(plan, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    gac_cudnn_finalize(plan, how, "matmul");
    descriptor operation = gac_cudnn_make(plan, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    gac_cudnn_add(plan, operation, "matmul operation");
}

typedef struct operands {
    descriptor q, k, v, out;
} operands;

/* Creates the four operands in the order in which gac_cudnn_plan_launch binds them. */
static operands make_operands(gac_cudnn_plan *plan, const gac_sdpa_shape *s, cudnnDataType_t type,
                              bool k_transposed)
{
    const int64_t d = s->qk_head, e = s->v_head;
    const gac_sdpa_strides *by = &plan->strides;
    const int64_t q_dims[4] = { s->batch, s->n_q_heads, s->n_q, d };
    const int64_t q_strides[4] = { by->q[0], by->q[1], by->q[2], 1 };
    const int64_t k_dims[4] = { s->batch, s->n_kv_heads, s->n_kv, d };
    const int64_t k_strides[4] = { by->k[0], by->k[1], by->k[2], 1 };
    const int64_t kt_dims[4] = { s->batch, s->n_kv_heads, d, s->n_kv };
    const int64_t kt_strides[4] = { by->k[0], by->k[1], 1, by->k[2] };
    const int64_t v_dims[4] = { s->batch, s->n_kv_heads, s->n_kv, e };
    const int64_t v_strides[4] = { by->v[0], by->v[1], by->v[2], 1 };
    const int64_t o_dims[4] = { s->batch, s->n_q_heads, s->n_q, e };
    const int64_t o_strides[4] = { by->out[0], by->out[1], by->out[2], 1 };
    operands o;
    bind(plan, ID_Q, NULL);
    bind(plan, ID_K, NULL);
    bind(plan, ID_V, NULL);
    bind(plan, ID_OUT, NULL);
    o.q = make_tensor(plan, GAC_CUDNN_BOUND, ID_Q, type, q_dims, q_strides);
    o.k = k_transposed ? make_tensor(plan, GAC_CUDNN_BOUND, ID_K, type, kt_dims, kt_strides)
                       : make_tensor(plan, GAC_CUDNN_BOUND, ID_K, type, k_dims, k_strides);
    o.v = make_tensor(plan, GAC_CUDNN_BOUND, ID_V, type, v_dims, v_strides);
    o.out = make_tensor(plan, GAC_CUDNN_BOUND, ID_OUT, type, o_dims, o_strides);
    return o;
}

/* Keeps scores where key <= query + n_kv - n_q and sets the others to the lowest float. */
static descriptor mask_causal(gac_cudnn_plan *plan, const gac_sdpa_shape *s, const int64_t dims[4],
                              descriptor scores)
{
    const cudnnDataType_t index = CUDNN_DATA_INT32;
    descriptor row = between(plan, index, dims);
    generate_index(plan, 2, scores, row);
    descriptor column = between(plan, index, dims);
    generate_index(plan, 3, scores, column);
    if (s->n_q != s->n_kv) {
        descriptor n_kv = scalar(plan, ID_N_KV, index, &plan->n_kv);
        descriptor raised = between(plan, index, dims);
        pointwise(plan, CUDNN_POINTWISE_ADD, index, row, n_kv, NULL, raised);
        descriptor n_q = scalar(plan, ID_N_Q, index, &plan->n_q);
        row = between(plan, index, dims);
        pointwise(plan, CUDNN_POINTWISE_SUB, index, raised, n_q, NULL, row);
    }
    descriptor seen = between(plan, CUDNN_DATA_BOOLEAN, dims);
    pointwise(plan, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL, seen);
    descriptor least = scalar(plan, ID_MINUS_INFINITY, CUDNN_DATA_FLOAT, &plan->minus_infinity);
    descriptor masked = between(plan, CUDNN_DATA_FLOAT, dims);
    pointwise(plan, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, scores, least, seen, masked);
    return masked;
}

/* Softmax of each row, rounded to the operands' type as the second matmul requires. The
 * graph also computes the log of each row's sum, which nobody reads: without it cuDNN
 * does not recognise attention. */
static descriptor softmax(gac_cudnn_plan *plan, const int64_t dims[4], descriptor scores,
                          cudnnDataType_t type)
{
    const cudnnDataType_t real = CUDNN_DATA_FLOAT;
    const int64_t row_dims[4] = { dims[0], dims[1], dims[2], 1 };
    descriptor largest = between(plan, real, row_dims);
    reduce(plan, CUDNN_REDUCE_TENSOR_MAX, scores, largest);
    descriptor shifted = between(plan, real, dims);
    pointwise(plan, CUDNN_POINTWISE_SUB, real, scores, largest, NULL, shifted);
    descriptor raised = between(plan, real, dims);
    pointwise(plan, CUDNN_POINTWISE_EXP, real, shifted, NULL, NULL, raised);
    descriptor sum = between(plan, real, row_dims);
    reduce(plan, CUDNN_REDUCE_TENSOR_ADD, raised, sum);
    descriptor log_sum = between(plan, real, row_dims);
    pointwise(plan, CUDNN_POINTWISE_LOG, real, sum, NULL, NULL, log_sum);
    descriptor stats = between(plan, real, row_dims);
    pointwise(plan, CUDNN_POINTWISE_ADD, real, largest, log_sum, NULL, stats);
    descriptor weights = between(plan, type, dims);
    pointwise(plan, CUDNN_POINTWISE_DIV, real, raised, sum, NULL, weights);
    return weights;
}

void gac_cudnn_build_composed(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                              cudnnDataType_t type)
{
    const int64_t dims[4] = { shape->batch, shape->n_q_heads, shape->n_q, shape->n_kv };
    operands o = make_operands(plan, shape, type, true);
    descriptor products = between(plan, CUDNN_DATA_FLOAT, dims);
    multiply(plan, o.q, o.k, products);
    descriptor scale = scalar(plan, ID_SCALE, CUDNN_DATA_FLOAT, &plan->scale);
    descriptor scores = between(plan, CUDNN_DATA_FLOAT, dims);
    pointwise(plan, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, products, scale, NULL, scores);
    if (shape->causal)
        scores = mask_causal(plan, shape, dims, scores);
    descriptor weights = softmax(plan, dims, scores, type);
    multiply(plan, weights, o.v, o.out);
}

static void refuse(gac_cudnn_plan *plan, const char *why)
{
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return;
    plan->status = CUDNN_STATUS_NOT_SUPPORTED;
    snprintf(plan->reason, sizeof plan->reason, "%s", why);
}

void gac_cudnn_build_unified(gac_cudnn_plan *plan, const gac_sdpa_shape *shape,
                             cudnnDataType_t type)
{
#if CUDNN_VERSION >= 91300
    if (shape->causal) {
        refuse(plan, "the single operation has no causal mask");
        return;
    }
    if (gac_cudnn_version(plan->cudnn) < 91300) {
        refuse(plan, "the single operation needs cuDNN 9.13");
        return;
    }
    operands o = make_operands(plan, shape, type, false);
    descriptor scale = scalar(plan, ID_SCALE, CUDNN_DATA_FLOAT, &plan->scale);
    descriptor operation = gac_cudnn_make(plan, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, o.q);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, o.k);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, o.v);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o.out);
    gac_cudnn_link(plan, operation, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale);
    gac_cudnn_add(plan, operation, "SDPA operation");
#else
    (void)shape, (void)type;
    refuse(plan, "built without the single operation of cuDNN 9.13");
#endif
}

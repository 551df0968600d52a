#include "cuda_internal.h"
#include "device/task_spec.h"
#include "kernels.h"

#include <limits.h>
#include <stdlib.h>

typedef struct sdpa_op {
    gac_cuda_op op;
    gac_cuda *cuda;
    gac_sdpa_shape shape;
    gac_dtype dtype;
    double scale;
    gac_cudnn_plan *plan; /* for LIBRARY and PADDED */
    void *scratch;        /* MATH: scores; FLASH: workspace; PADDED: the four wide operands */
    size_t scratch_bytes;
    gac_sdpa_shape wide; /* PADDED: the shape with padded heads */
    void *wide_operand[GAC_OPERAND_COUNT];
} sdpa_op;

static void free_sdpa(gac_cuda_op *op)
{
    sdpa_op *sdpa = (sdpa_op *)op;
    gac_cudnn_plan_free(sdpa->plan);
    gac_cuda_release(sdpa->cuda, sdpa->scratch);
    free(sdpa);
}

static gac_status no_room(gac_error *err)
{
    return gac_error_set(err, GAC_NO_RESOURCE, "SDPA: scratch memory too large for any device");
}

static gac_status launch_library(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    sdpa_op *sdpa = (sdpa_op *)op;
    return gac_cudnn_plan_launch(sdpa->plan, sdpa->scale, set->operand[GAC_OPERAND_A],
                                 set->operand[GAC_OPERAND_B], set->operand[GAC_OPERAND_C],
                                 set->operand[GAC_OPERAND_OUT], err);
}

static gac_status create_plan(sdpa_op *sdpa, const gac_sdpa_shape *shape, gac_error *err)
{
    gac_cuda *cuda = sdpa->cuda;
    if (!cuda->cudnn)
        return gac_error_set(err, GAC_CHECK, "SDPA: %s", cuda->cudnn_missing);
    return gac_cudnn_plan_create(cuda->cudnn, cuda, shape, NULL, sdpa->dtype, &sdpa->plan, err);
}

/* The query heads of one kv head are adjacent in memory. So they form one matrix (group *
 * n_q, qk_head) that is multiplied by k^T, for each kv head of each batch. In
 * column-major order the scores of one such matrix are (n_kv, n_rows). */
static gac_status launch_math(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    sdpa_op *sdpa = (sdpa_op *)op;
    const gac_sdpa_shape *s = &sdpa->shape;
    gac_cuda *cuda = sdpa->cuda;
    int64_t n_rows = s->n_q_heads / s->n_kv_heads * s->n_q;
    int rows = (int)n_rows, keys = (int)s->n_kv, d = (int)s->qk_head, e = (int)s->v_head;
    int n_matrices = (int)(s->batch * s->n_kv_heads);
    cudaDataType_t type = sdpa->dtype == GAC_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    const float scale = (float)sdpa->scale, one = 1, zero = 0;

    cublasStatus_t code = cublasGemmStridedBatchedEx(
        cuda->blas, CUBLAS_OP_T, CUBLAS_OP_N, keys, rows, d, &scale, set->operand[GAC_OPERAND_B],
        type, d, (long long)keys * d, set->operand[GAC_OPERAND_A], type, d, (long long)rows * d,
        &zero, sdpa->scratch, type, keys, (long long)rows * keys, n_matrices, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT_TENSOR_OP);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasGemmStridedBatchedEx (q k^T)");

    gac_softmax_args softmax = {
        .dtype = sdpa->dtype,
        .scores = sdpa->scratch,
        .out = sdpa->scratch,
        .n_rows = n_rows * n_matrices,
        .n_q = s->n_q,
        .n_kv = s->n_kv,
        .scale = 1,
        .causal = s->causal,
    };
    gac_status status = gac_softmax_launch(&softmax, cuda->stream, err);
    if (status)
        return status;

    code = cublasGemmStridedBatchedEx(
        cuda->blas, CUBLAS_OP_N, CUBLAS_OP_N, e, rows, keys, &one, set->operand[GAC_OPERAND_C],
        type, e, (long long)keys * e, sdpa->scratch, type, keys, (long long)rows * keys, &zero,
        set->operand[GAC_OPERAND_OUT], type, e, (long long)rows * e, n_matrices, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT_TENSOR_OP);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasGemmStridedBatchedEx (p v)");
    return GAC_OK;
}

static gac_status prepare_math(sdpa_op *sdpa, gac_error *err)
{
    const gac_sdpa_shape *s = &sdpa->shape;
    int64_t n_rows = 0, n_matrices = 0, n_scores = 0, n_bytes = 0;
    if (!gac_mul_i64(s->n_q_heads / s->n_kv_heads, s->n_q, &n_rows) ||
        !gac_mul_i64(s->batch, s->n_kv_heads, &n_matrices) ||
        !gac_mul_i64(n_rows, s->n_kv, &n_scores) || !gac_mul_i64(n_scores, n_matrices, &n_scores) ||
        !gac_mul_i64(n_scores, 2, &n_bytes))
        return no_room(err);
    if (n_rows > INT_MAX || s->n_kv > INT_MAX || n_matrices > INT_MAX || s->qk_head > INT_MAX ||
        s->v_head > INT_MAX)
        return gac_error_set(err, GAC_CHECK, "SDPA: cuBLAS takes sizes up to 2^31 - 1");
    return gac_cuda_alloc(sdpa->cuda, (size_t)n_bytes, &sdpa->scratch, err);
}

static gac_status launch_flash(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    sdpa_op *sdpa = (sdpa_op *)op;
    gac_flash_args args = {
        .dtype = sdpa->dtype,
        .shape = sdpa->shape,
        .scale = sdpa->scale,
        .q = set->operand[GAC_OPERAND_A],
        .k = set->operand[GAC_OPERAND_B],
        .v = set->operand[GAC_OPERAND_C],
        .out = set->operand[GAC_OPERAND_OUT],
        .workspace = sdpa->scratch,
        .workspace_bytes = sdpa->scratch_bytes,
    };
    gac_flash_set_contiguous(&args);
    return gac_flash_launch(&args, sdpa->cuda->stream, err);
}

static gac_status prepare_flash(sdpa_op *sdpa, gac_error *err)
{
    gac_status status = gac_flash_workspace_bytes(&sdpa->shape, &sdpa->scratch_bytes, err);
    if (status || sdpa->scratch_bytes == 0)
        return status;
    return gac_cuda_alloc(sdpa->cuda, sdpa->scratch_bytes, &sdpa->scratch, err);
}

static gac_status launch_padded(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    sdpa_op *sdpa = (sdpa_op *)op;
    const gac_sdpa_shape *s = &sdpa->shape;
    int64_t n_wide = sdpa->wide.qk_head;
    int64_t q_rows = s->batch * s->n_q_heads * s->n_q;
    int64_t kv_rows = s->batch * s->n_kv_heads * s->n_kv;
    void **wide = sdpa->wide_operand;
    const gac_pad_job widen[3] = {
        { set->operand[GAC_OPERAND_A], wide[GAC_OPERAND_A], q_rows, s->qk_head, n_wide, 2 },
        { set->operand[GAC_OPERAND_B], wide[GAC_OPERAND_B], kv_rows, s->qk_head, n_wide, 2 },
        { set->operand[GAC_OPERAND_C], wide[GAC_OPERAND_C], kv_rows, s->v_head, n_wide, 2 },
    };
    const gac_pad_job cut = {
        wide[GAC_OPERAND_OUT], set->operand[GAC_OPERAND_OUT], q_rows, n_wide, s->v_head, 2
    };
    gac_status status = gac_pad_launch(widen, 3, sdpa->cuda->stream, err);
    if (status == GAC_OK)
        status =
            gac_cudnn_plan_launch(sdpa->plan, sdpa->scale, wide[GAC_OPERAND_A], wide[GAC_OPERAND_B],
                                  wide[GAC_OPERAND_C], wide[GAC_OPERAND_OUT], err);
    if (status == GAC_OK)
        status = gac_pad_launch(&cut, 1, sdpa->cuda->stream, err);
    return status;
}

static gac_status prepare_padded(sdpa_op *sdpa, int64_t stored_head, gac_error *err)
{
    gac_sdpa_shape *wide = &sdpa->wide;
    *wide = sdpa->shape;
    if (stored_head < wide->qk_head || stored_head < wide->v_head)
        return gac_error_set(err, GAC_USAGE, "SDPA: head sizes %lld/%lld padded to %lld",
                             (long long)wide->qk_head, (long long)wide->v_head,
                             (long long)stored_head);
    wide->qk_head = wide->v_head = stored_head;
    gac_status status = create_plan(sdpa, wide, err);
    if (status)
        return status;
    /* Place the padded operands one after another in scratch. */
    gac_task_spec spec = { .kind = GAC_TASK_SDPA, .dtype = sdpa->dtype };
    spec.sdpa.shape = *wide;
    spec.sdpa.path = GAC_SDPA_LIBRARY;
    int64_t offsets[GAC_OPERAND_COUNT], total = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        int64_t n_bytes = gac_task_operand_bytes(&spec, (gac_operand)i);
        offsets[i] = total;
        if (n_bytes < 0 || !gac_add_i64(total, n_bytes, &total) ||
            !gac_round_up_i64(total, 512, &total))
            return no_room(err);
    }
    status = gac_cuda_alloc(sdpa->cuda, (size_t)total, &sdpa->scratch, err);
    for (int i = 0; i < GAC_OPERAND_COUNT && status == GAC_OK; i++)
        sdpa->wide_operand[i] = (char *)sdpa->scratch + offsets[i];
    return status;
}

gac_status gac_cuda_sdpa_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err)
{
    sdpa_op *sdpa = calloc(1, sizeof *sdpa);
    if (!sdpa)
        return gac_error_no_memory(err);
    sdpa->cuda = cuda;
    sdpa->shape = spec->sdpa.shape;
    sdpa->dtype = spec->dtype;
    sdpa->scale = gac_sdpa_scale(&spec->sdpa);
    sdpa->op.free = free_sdpa;
    gac_status status = GAC_OK;
    if (spec->dtype != GAC_DTYPE_F16 && spec->dtype != GAC_DTYPE_BF16)
        status = gac_error_set(err, GAC_CHECK, "SDPA: cuda serves F16 and BF16, not %s",
                               gac_dtype_name(spec->dtype));
    else
        switch (spec->sdpa.path) {
        case GAC_SDPA_LIBRARY:
            sdpa->op.launch = launch_library;
            status = create_plan(sdpa, &sdpa->shape, err);
            break;
        case GAC_SDPA_MATH:
            sdpa->op.launch = launch_math;
            status = prepare_math(sdpa, err);
            break;
        case GAC_SDPA_FLASH:
            sdpa->op.launch = launch_flash;
            status = prepare_flash(sdpa, err);
            break;
        case GAC_SDPA_PADDED:
            sdpa->op.launch = launch_padded;
            status = prepare_padded(sdpa, spec->sdpa.stored_head, err);
            break;
        default:
            status = gac_error_set(err, GAC_CHECK, "SDPA: cuda has no such path");
        }
    if (status) {
        free_sdpa(&sdpa->op);
        return status;
    }
    *out = &sdpa->op;
    return GAC_OK;
}

#include "cuda_internal.h"

#include <limits.h>
#include <stdlib.h>

/* cuBLAS is column-major. In its view x is (k, m) and y is (n, m). The weights are (k, n)
 * and transposed, or (n, k) and not transposed if row_major. */
typedef struct gemm_op {
    gac_cuda_op op;
    gac_cuda *cuda;
    gac_gemm_shape shape;
    gac_dtype dtype;
    cudaDataType_t in_type, out_type;
    cublasComputeType_t compute;
    /* For cublasLt; all NULL if cublasGemmEx is used. */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t weights, x, y;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} gemm_op;

/* alpha and beta, in the type that the compute type requires. */
static const float one_f32 = 1, zero_f32 = 0;
static const int32_t one_i32 = 1, zero_i32 = 0;

static const void *alpha_of(const gemm_op *gemm)
{
    return gemm->compute == CUBLAS_COMPUTE_32I ? (const void *)&one_i32 : (const void *)&one_f32;
}

static const void *beta_of(const gemm_op *gemm)
{
    return gemm->compute == CUBLAS_COMPUTE_32I ? (const void *)&zero_i32 : (const void *)&zero_f32;
}

static void free_gemm(gac_cuda_op *op)
{
    gemm_op *gemm = (gemm_op *)op;
    if (gemm->matmul)
        cublasLtMatmulDescDestroy(gemm->matmul);
    cublasLtMatrixLayout_t layouts[] = { gemm->weights, gemm->x, gemm->y };
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    free(gemm);
}

/* Reports a call that a library declined. */
static gac_status declined(const gemm_op *gemm, const char *who, const char *why, gac_error *err)
{
    return gac_error_set(err, GAC_CHECK, "GEMM %s m %lld n %lld k %lld%s: %s declined: %s",
                         gac_dtype_name(gemm->dtype), (long long)gemm->shape.m,
                         (long long)gemm->shape.n, (long long)gemm->shape.k,
                         gemm->shape.row_major ? " (row-major weights)" : "", who, why);
}

/* Turns the status of a library call into ours. */
static gac_status finish(const gemm_op *gemm, const char *who, cublasStatus_t code, gac_error *err)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return GAC_OK;
    if (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE)
        return declined(gemm, who, cublasGetStatusString(code), err);
    return gac_cuda_blas_error(err, code, who);
}

static gac_status launch_lt(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    gemm_op *gemm = (gemm_op *)op;
    gac_cuda *cuda = gemm->cuda;
    void *y = set->operand[GAC_OPERAND_OUT];
    cublasStatus_t code = cublasLtMatmul(
        cuda->lt, gemm->matmul, alpha_of(gemm), set->operand[GAC_OPERAND_B], gemm->weights,
        set->operand[GAC_OPERAND_A], gemm->x, beta_of(gemm), y, gemm->y, y, gemm->y, &gemm->algo,
        cuda->workspace, gemm->workspace_bytes, cuda->stream);
    return finish(gemm, "cublasLtMatmul", code, err);
}

static gac_status launch_gemmex(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    gemm_op *gemm = (gemm_op *)op;
    int m = (int)gemm->shape.m, n = (int)gemm->shape.n, k = (int)gemm->shape.k;
    bool row_major = gemm->shape.row_major;
    cublasStatus_t code = cublasGemmEx(
        gemm->cuda->blas, row_major ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, n, m, k,
        alpha_of(gemm), set->operand[GAC_OPERAND_B], gemm->in_type, row_major ? n : k,
        set->operand[GAC_OPERAND_A], gemm->in_type, k, beta_of(gemm), set->operand[GAC_OPERAND_OUT],
        gemm->out_type, n, gemm->compute, CUBLAS_GEMM_DEFAULT_TENSOR_OP);
    return finish(gemm, "cublasGemmEx", code, err);
}

static bool choose_types(gemm_op *gemm)
{
    gemm->compute = CUBLAS_COMPUTE_32F;
    switch (gemm->dtype) {
    case GAC_DTYPE_F16:
        gemm->in_type = gemm->out_type = CUDA_R_16F;
        return true;
    case GAC_DTYPE_BF16:
        gemm->in_type = gemm->out_type = CUDA_R_16BF;
        return true;
    case GAC_DTYPE_F32:
        gemm->in_type = gemm->out_type = CUDA_R_32F;
        gemm->compute = CUBLAS_COMPUTE_32F_FAST_TF32;
        return true;
    case GAC_DTYPE_F8_E4M3:
        gemm->in_type = CUDA_R_8F_E4M3;
        gemm->out_type = CUDA_R_16BF;
        return true;
    case GAC_DTYPE_I8:
        gemm->in_type = CUDA_R_8I;
        gemm->out_type = CUDA_R_32I;
        gemm->compute = CUBLAS_COMPUTE_32I;
        return true;
    default:
        return false;
    }
}

static cublasStatus_t describe_matmul(gemm_op *gemm)
{
    cublasOperation_t transpose = gemm->shape.row_major ? CUBLAS_OP_N : CUBLAS_OP_T;
    cudaDataType_t scale_type = gemm->compute == CUBLAS_COMPUTE_32I ? CUDA_R_32I : CUDA_R_32F;
    cublasStatus_t code = cublasLtMatmulDescCreate(&gemm->matmul, gemm->compute, scale_type);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(gemm->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                              sizeof transpose);
    if (code != CUBLAS_STATUS_SUCCESS || gemm->dtype != GAC_DTYPE_F8_E4M3)
        return code;
    /* Fast accumulation stays off, as in PyTorch's _scaled_mm. */
    const void *scale = gemm->cuda->unit_scale;
    code = cublasLtMatmulDescSetAttribute(gemm->matmul, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                          &scale, sizeof scale);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(gemm->matmul, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                              &scale, sizeof scale);
    return code;
}

static cublasStatus_t describe_layouts(gemm_op *gemm)
{
    uint64_t m = (uint64_t)gemm->shape.m, n = (uint64_t)gemm->shape.n, k = (uint64_t)gemm->shape.k;
    bool row_major = gemm->shape.row_major;
    cublasStatus_t code =
        cublasLtMatrixLayoutCreate(&gemm->weights, gemm->in_type, row_major ? n : k,
                                   row_major ? k : n, row_major ? (int64_t)n : (int64_t)k);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutCreate(&gemm->x, gemm->in_type, k, m, (int64_t)k);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutCreate(&gemm->y, gemm->out_type, n, m, (int64_t)n);
    return code;
}

/* Takes the first choice of the library's heuristic. Operands are aligned to 256 bytes,
 * as in PyTorch. */
static gac_status choose_algorithm(gemm_op *gemm, gac_error *err)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    uint32_t alignment_bytes = 256;
    size_t workspace_bytes = GAC_CUDA_WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result = { 0 };
    int n_results = 0;

    cublasStatus_t code = cublasLtMatmulPreferenceCreate(&preference);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasLtMatmulPreferenceCreate");
    code =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof workspace_bytes);
    for (int i = 0; i < 4 && code == CUBLAS_STATUS_SUCCESS; i++)
        code = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment_bytes,
                                                    sizeof alignment_bytes);
    if (code != CUBLAS_STATUS_SUCCESS) {
        cublasLtMatmulPreferenceDestroy(preference);
        return gac_cuda_blas_error(err, code, "cublasLtMatmulPreferenceSetAttribute");
    }
    code = cublasLtMatmulAlgoGetHeuristic(gemm->cuda->lt, gemm->matmul, gemm->weights, gemm->x,
                                          gemm->y, gemm->y, preference, 1, &result, &n_results);
    cublasLtMatmulPreferenceDestroy(preference);
    if (code == CUBLAS_STATUS_SUCCESS && n_results > 0)
        code = result.state;
    else if (code == CUBLAS_STATUS_SUCCESS)
        return declined(gemm, "cublasLt", "its heuristic knows no algorithm", err);
    if (code != CUBLAS_STATUS_SUCCESS)
        return declined(gemm, "cublasLt", cublasGetStatusString(code), err);
    gemm->algo = result.algo;
    gemm->workspace_bytes = result.workspaceSize;
    return GAC_OK;
}

gac_status gac_cuda_gemm_create(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                                gac_error *err)
{
    gemm_op *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return gac_error_no_memory(err);
    gemm->cuda = cuda;
    gemm->shape = spec->gemm;
    gemm->dtype = spec->dtype;
    gemm->op.free = free_gemm;
    bool is_f8 = gemm->dtype == GAC_DTYPE_F8_E4M3;
    gac_status status = GAC_OK;
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    if (!choose_types(gemm))
        status = declined(gemm, "cuBLAS", "it has no such data type", err);
    else if (is_f8 && gemm->shape.row_major)
        status = declined(gemm, "cublasLt", "8-bit floats need weights (n, k)", err);
    else if (gemm->shape.m > INT_MAX || gemm->shape.n > INT_MAX || gemm->shape.k > INT_MAX)
        status = declined(gemm, "cuBLAS", "sizes over 2^31 - 1", err);
    else if (cuda->use_gemmex && !is_f8)
        gemm->op.launch = launch_gemmex;
    else {
        gemm->op.launch = launch_lt;
        code = describe_matmul(gemm);
        if (code == CUBLAS_STATUS_SUCCESS)
            code = describe_layouts(gemm);
        status = code == CUBLAS_STATUS_SUCCESS ? choose_algorithm(gemm, err)
                                               : gac_cuda_blas_error(err, code, "cublasLt set-up");
    }
    if (status) {
        free_gemm(&gemm->op);
        return status;
    }
    *out = &gemm->op;
    return GAC_OK;
}

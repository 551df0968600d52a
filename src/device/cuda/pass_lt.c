#include "pass_internal.h"

#include <stdlib.h>
#include <string.h>

/* Everything that cublasLt's choice depends on. Compared by memcmp, so it must have no
 * padding. */
typedef struct lt_key {
    int64_t m, n, k, w_ld, x_ld, y_ld;
    int32_t w_align, x_align, y_align, kind; /* kind combines to_float and add */
} lt_key;

struct gac_lt_choice {
    lt_key key;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

/* cublasLt's descriptors of one call, on the stack. cublasLt is column-major: in its view
 * w is (k, n) and transposed, x is (k, m), y is (n, m). */
typedef struct lt_layouts {
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} lt_layouts;

void gac_lt_free(gac_cuda_compute *c)
{
    free(c->choices);
    c->choices = NULL;
    c->n_choices = c->max_choices = 0;
}

static int32_t alignment_of(const void *pointer)
{
    int32_t bytes = 256;
    while ((uintptr_t)pointer % (uintptr_t)bytes)
        bytes /= 2;
    return bytes;
}

static cublasStatus_t describe(const gac_cuda_compute *c, const gac_lt_call *call, lt_layouts *l)
{
    cudaDataType_t half = c->options.dtype == GAC_DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t code = cublasLtMatmulDescInit(&l->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(&l->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof transposed);
    if (code == CUBLAS_STATUS_SUCCESS)
        code =
            cublasLtMatrixLayoutInit(&l->w, half, (uint64_t)call->k, (uint64_t)call->n, call->w_ld);
    if (code == CUBLAS_STATUS_SUCCESS)
        code =
            cublasLtMatrixLayoutInit(&l->x, half, (uint64_t)call->k, (uint64_t)call->m, call->x_ld);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutInit(&l->y, call->to_float ? CUDA_R_32F : half,
                                        (uint64_t)call->n, (uint64_t)call->m, call->y_ld);
    return code;
}

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, const lt_key *key)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        int32_t bytes;
    } alignments[] = { { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->w_align },
                       { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->x_align },
                       { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->y_align },
                       { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->y_align } };
    size_t workspace_bytes = GAC_CUDA_WORKSPACE_BYTES;
    cublasStatus_t code =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof workspace_bytes);
    for (int i = 0; i < 4 && code == CUBLAS_STATUS_SUCCESS; i++) {
        uint32_t bytes = (uint32_t)alignments[i].bytes;
        code = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i].name, &bytes,
                                                    sizeof bytes);
    }
    return code;
}

/* Takes the first choice of the heuristic, which is the same in every run. */
static gac_status choose(gac_cuda_compute *c, lt_layouts *l, gac_lt_choice *choice, gac_error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result = { 0 };
    int n_results = 0;
    cublasStatus_t code = cublasLtMatmulPreferenceCreate(&preference);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = set_preference(preference, &choice->key);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulAlgoGetHeuristic(c->cuda->lt, &l->matmul, &l->w, &l->x, &l->y, &l->y,
                                              preference, 1, &result, &n_results);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = n_results > 0 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (code != CUBLAS_STATUS_SUCCESS) {
        char what[160];
        snprintf(what, sizeof what, "cublasLt declined m %lld n %lld k %lld",
                 (long long)choice->key.m, (long long)choice->key.n, (long long)choice->key.k);
        return gac_cuda_blas_error(err, code, what);
    }
    choice->algo = result.algo;
    choice->workspace_bytes = result.workspaceSize;
    return GAC_OK;
}

/* Sets *out to the cached choice for the key, or to a new one. */
static gac_status find_choice(gac_cuda_compute *c, const lt_key *key, lt_layouts *l,
                              const gac_lt_choice **out, gac_error *err)
{
    enum { MOST = 4096 };
    for (int i = 0; i < c->n_choices; i++)
        if (memcmp(&c->choices[i].key, key, sizeof *key) == 0) {
            *out = &c->choices[i];
            return GAC_OK;
        }
    if (c->n_choices == MOST)
        c->n_choices = 0; /* starts over: as good as any other eviction rule */
    if (c->n_choices == c->max_choices) {
        int n = c->max_choices ? 2 * c->max_choices : 64;
        gac_lt_choice *more = realloc(c->choices, (size_t)n * sizeof *more);
        if (!more)
            return gac_error_no_memory(err);
        c->choices = more;
        c->max_choices = n;
    }
    gac_lt_choice *choice = &c->choices[c->n_choices];
    choice->key = *key;
    gac_status status = choose(c, l, choice, err);
    if (status)
        return status;
    c->n_choices++;
    *out = choice;
    return GAC_OK;
}

gac_status gac_lt_multiply(gac_cuda_compute *c, const gac_lt_call *call, gac_error *err)
{
    const float one = 1, zero = 0;
    const gac_lt_choice *choice = NULL;
    lt_layouts layouts;
    lt_key key = { call->m,
                   call->n,
                   call->k,
                   call->w_ld,
                   call->x_ld,
                   call->y_ld,
                   alignment_of(call->w),
                   alignment_of(call->x),
                   alignment_of(call->y),
                   2 * call->to_float + call->add };
    cublasStatus_t code = describe(c, call, &layouts);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasLt set-up");
    gac_status status = find_choice(c, &key, &layouts, &choice, err);
    if (status)
        return status;
    code =
        cublasLtMatmul(c->cuda->lt, &layouts.matmul, &one, call->w, &layouts.w, call->x, &layouts.x,
                       call->add ? &one : &zero, call->y, &layouts.y, call->y, &layouts.y,
                       &choice->algo, c->cuda->workspace, choice->workspace_bytes, c->cuda->stream);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gac_cuda_blas_error(err, code, "cublasLtMatmul");
    c->chained = false; /* the library may end with an operation that is not a kernel */
    return GAC_OK;
}

#include "pass_algebra.h"

#include <limits.h>
#include <string.h>

void gac_algebra_check(gac_algebra *s, gac_status status)
{
    if (s->status == GAC_OK)
        s->status = status;
}

void gac_algebra_check_cuda(gac_algebra *s, cudaError_t code, const char *what)
{
    if (s->status == GAC_OK && code != cudaSuccess)
        s->status = gac_cuda_error(s->err, code, what);
}

void gac_algebra_check_blas(gac_algebra *s, cublasStatus_t code, const char *what)
{
    if (s->status == GAC_OK && code != CUBLAS_STATUS_SUCCESS)
        s->status = gac_cuda_blas_error(s->err, code, what);
}

void gac_algebra_fail(gac_algebra *s, gac_status status, const char *text)
{
    if (s->status == GAC_OK)
        s->status = gac_error_set(s->err, status, "%s", text);
}

void *gac_algebra_take(gac_algebra *s, int64_t a, int64_t b, size_t element)
{
    size_t n_bytes = 0;
    void *memory = NULL;
    if (s->status)
        return NULL;
    if (s->n_blocks == GAC_ALGEBRA_MAX_BLOCKS ||
        !gac_compute_bytes(a, b, (int64_t)element, &n_bytes))
        gac_algebra_fail(s, GAC_NO_RESOURCE, "a matrix too large for any device");
    else
        s->status = gac_cuda_alloc(s->c->cuda, n_bytes + 1, &memory, s->err);
    if (s->status == GAC_OK)
        s->blocks[s->n_blocks++] = memory;
    return memory;
}

double *gac_algebra_numbers(gac_algebra *s, int64_t a, int64_t b)
{
    return gac_algebra_take(s, a, b, sizeof(double));
}

void gac_algebra_give_back(gac_algebra *s, void *memory)
{
    for (int i = 0; memory && i < s->n_blocks; i++)
        if (s->blocks[i] == memory) {
            s->blocks[i] = s->blocks[--s->n_blocks];
            gac_cuda_release(s->c->cuda, memory);
            return;
        }
}

void gac_algebra_end(gac_algebra *s)
{
    while (s->n_blocks > 0)
        gac_cuda_release(s->c->cuda, s->blocks[--s->n_blocks]);
    gac_algebra_check_cuda(s, cudaStreamSynchronize(s->c->cuda->stream), "steps on the device");
}

void gac_algebra_copy(gac_algebra *s, void *to, const void *from, size_t n_bytes)
{
    if (s->status == GAC_OK)
        gac_algebra_check_cuda(
            s, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, s->c->cuda->stream), "a copy");
}

void gac_algebra_clear(gac_algebra *s, void *memory, size_t n_bytes)
{
    if (s->status == GAC_OK)
        gac_algebra_check_cuda(s, cudaMemsetAsync(memory, 0, n_bytes, s->c->cuda->stream),
                               "cudaMemsetAsync");
}

void gac_algebra_read(gac_algebra *s, void *to, const void *from, size_t n_bytes)
{
    gac_algebra_copy(s, to, from, n_bytes);
    if (s->status == GAC_OK)
        gac_algebra_check_cuda(s, cudaStreamSynchronize(s->c->cuda->stream), "steps on the device");
}

/* To cuBLAS, which is column-major, this is c^T = b^T a^T of the matrices as they lie. */
void gac_algebra_gemm(gac_algebra *s, bool transposed_a, bool transposed_b, int64_t m, int64_t n,
                      int64_t k, double alpha, const double *a, const double *b, double beta,
                      double *c)
{
    if (s->status == GAC_OK && (m > INT_MAX || n > INT_MAX || k > INT_MAX))
        gac_algebra_fail(s, GAC_USAGE, "a matrix of more than 2^31 rows");
    if (s->status == GAC_OK)
        gac_algebra_check_blas(s,
                               cublasDgemm(s->c->cuda->blas,
                                           transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                           transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)m,
                                           (int)k, &alpha, b, (int)(transposed_b ? k : n), a,
                                           (int)(transposed_a ? m : k), &beta, c, (int)n),
                               "cublasDgemm");
}

void gac_algebra_dot(gac_algebra *s, int64_t n, const double *a, const double *b, double *out)
{
    cublasHandle_t blas = s->c->cuda->blas;
    if (s->status == GAC_OK && n > INT_MAX)
        gac_algebra_fail(s, GAC_USAGE, "a matrix of more than 2^31 numbers");
    if (s->status)
        return;
    gac_algebra_check_blas(s, cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE), "cuBLAS");
    gac_algebra_check_blas(s, cublasDdot(blas, (int)n, a, 1, b, 1, out), "cublasDdot");
    gac_algebra_check_blas(s, cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST), "cuBLAS");
}

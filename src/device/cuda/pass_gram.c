/* Gram matrices of the inputs of linear modules, in F64, and writing of rows. */
#include "pass_algebra_kernels.h"
#include "pass_internal.h"

#include <limits.h>
#include <stdlib.h>

#define GRAM_CHUNK_BYTES ((int64_t)256 << 20) /* rows in F64 at a time */
#define GRAM_STRIP 1024                       /* rows of the matrix in one product */

struct gac_gram {
    int64_t n;
    double *matrix;    /* (n, n): the lower triangle is the sum */
    double *magnitude; /* (n) */
    size_t n_bytes;
};

gac_status gac_compute_rows_write(void *state, gac_rows *rows, int64_t first, int64_t n,
                                  const float *in, gac_error *err)
{
    gac_cuda_compute *c = state;
    cudaStream_t stream = c->cuda->stream;
    const size_t element = rows->residual ? 4 : 2, wide = (size_t)rows->width;
    const size_t ld_bytes = (size_t)rows->ld * element;
    char *to = (char *)rows->data + (size_t)(first > 0 ? first : 0) * ld_bytes;
    void *staged = NULL;
    if (first < 0 || n < 1 || first + n > c->options.max_rows)
        return gac_error_set(err, GAC_USAGE, "rows %lld and %lld on", (long long)first,
                             (long long)n);
    gac_status status = gac_compute_launch_pending(c, err);
    cudaError_t code = cudaSuccess;
    c->chained = false;
    if (status == GAC_OK && rows->residual) {
        code = cudaMemsetAsync(to, 0, (size_t)n * ld_bytes, stream);
        if (code == cudaSuccess)
            code = cudaMemcpy2DAsync(to, ld_bytes, in, wide * 4, wide * 4, (size_t)n,
                                     cudaMemcpyHostToDevice, stream);
    } else if (status == GAC_OK) {
        status = gac_cuda_alloc(c->cuda, (size_t)n * wide * 4, &staged, err);
        if (status == GAC_OK)
            code =
                cudaMemcpyAsync(staged, in, (size_t)n * wide * 4, cudaMemcpyHostToDevice, stream);
        gac_norm_args args = { .dtype = c->options.dtype,
                               .from_float = true,
                               .x = staged,
                               .out = to,
                               .x_ld = rows->width,
                               .out_ld = rows->ld,
                               .width = rows->width,
                               .n = n };
        if (status == GAC_OK && code == cudaSuccess)
            status = gac_norm_launch(&args, stream, err);
    }
    gac_cuda_release(c->cuda, staged);
    if (status == GAC_OK && code == cudaSuccess)
        code = cudaStreamSynchronize(stream); /* the caller may change in now */
    return code == cudaSuccess ? status : gac_cuda_error(err, code, "copy to the device");
}

void gac_compute_gram_free(void *state, gac_gram *gram)
{
    gac_cuda_compute *c = state;
    if (!gram)
        return;
    if (gram->matrix) {
        cudaFree(gram->matrix);
        c->memory.work_bytes -= (int64_t)gram->n_bytes;
    }
    free(gram);
}

gac_status gac_compute_gram_create(void *state, int64_t n, gac_gram **out, gac_error *err)
{
    gac_cuda_compute *c = state;
    size_t n_bytes = 0;
    void *memory = NULL;
    if (n < 1 || n >= INT_MAX || !gac_compute_bytes(n, n + 1, sizeof(double), &n_bytes))
        return gac_error_set(err, GAC_USAGE, "a Gram matrix of %lld inputs", (long long)n);
    gac_gram *gram = calloc(1, sizeof *gram);
    if (!gram)
        return gac_error_no_memory(err);
    gac_status status = gac_compute_alloc(c, n_bytes, "a Gram matrix", &memory, err);
    if (status == GAC_OK) {
        *gram = (gac_gram){ n, memory, (double *)memory + n * n, n_bytes };
        c->memory.work_bytes += (int64_t)n_bytes;
        cudaError_t code = cudaMemsetAsync(memory, 0, n_bytes, c->cuda->stream);
        if (code != cudaSuccess)
            status = gac_cuda_error(err, code, "cudaMemsetAsync");
    }
    if (status) {
        gac_compute_gram_free(c, gram);
        return status;
    }
    *out = gram;
    return GAC_OK;
}

/* Adds rows^T rows to the lower triangle, a strip of rows of the matrix at a time: half the
 * work of the whole product. To cuBLAS, which is column-major, rows (n_rows, n) is
 * (n, n_rows), and a strip is its own transpose. */
static gac_status add_rows(gac_cuda_compute *c, const double *rows, int64_t n_rows, gac_gram *gram,
                           gac_error *err)
{
    const double one = 1;
    const int n = (int)gram->n;
    for (int64_t i = 0; i < n; i += GRAM_STRIP) {
        const int64_t end = i + GRAM_STRIP < n ? i + GRAM_STRIP : n;
        cublasStatus_t code =
            cublasDgemm(c->cuda->blas, CUBLAS_OP_N, CUBLAS_OP_T, (int)end, (int)(end - i),
                        (int)n_rows, &one, rows, n, rows + i, n, &one, gram->matrix + i * n, n);
        if (code != CUBLAS_STATUS_SUCCESS)
            return gac_cuda_blas_error(err, code, "cublasDgemm");
    }
    return GAC_OK;
}

/* Adds rows of x, a chunk of them in F64 at a time. The fields of rows from n on are not
 * looked at. */
static gac_status widen_rows(gac_cuda_compute *c, const gac_widen_args *rows, gac_gram *gram,
                             gac_error *err)
{
    const int64_t n = gram->n, n_rows = rows->n_rows;
    const int64_t most = GRAM_CHUNK_BYTES / (n * (int64_t)sizeof(double)) + 1;
    const int64_t n_chunk = most < n_rows ? most : n_rows;
    const int64_t row_bytes = rows->x_ld * (gac_dtype_bits(rows->dtype) / 8);
    gac_status status =
        gac_compute_reserve(c, &c->gram_rows, (size_t)(n_chunk * n) * sizeof(double),
                            "rows of a Gram matrix", false, err);
    c->chained = false;
    for (int64_t first = 0; first < n_rows && status == GAC_OK; first += n_chunk) {
        gac_widen_args chunk = *rows;
        chunk.x = (const char *)rows->x + first * row_bytes;
        chunk.n_rows = n_rows - first < n_chunk ? n_rows - first : n_chunk;
        chunk.n = n;
        chunk.out = c->gram_rows.memory;
        chunk.magnitude = gram->magnitude;
        status = gac_widen_launch(&chunk, c->cuda->stream, err);
        if (status == GAC_OK)
            status = add_rows(c, c->gram_rows.memory, chunk.n_rows, gram, err);
    }
    return status;
}

gac_status gac_compute_gram_add_floats(gac_cuda_compute *c, const float *x, int64_t n_rows,
                                       gac_gram *gram, gac_error *err)
{
    const int64_t n = gram->n;
    const gac_widen_args rows = {
        .dtype = GAC_DTYPE_F32, .x = x, .x_ld = n, .n_rows = n_rows, .size = n, .stored = n
    };
    return widen_rows(c, &rows, gram, err);
}

gac_status gac_compute_gram_add(void *state, const gac_linear_call *call, gac_gram *gram,
                                gac_error *err)
{
    gac_cuda_compute *c = state;
    const gac_axis in = call->matrix->in;
    const int64_t n = in.n_slices * in.size;
    gac_widen_args rows = { .dtype = c->options.dtype,
                            .n_rows = c->batch * c->n_new,
                            .size = in.size,
                            .stored = in.stored };
    if (n != gram->n)
        return gac_error_set(err, GAC_USAGE, "a Gram matrix of %lld inputs, but there are %lld",
                             (long long)gram->n, (long long)n);
    gac_status status = gac_compute_inputs(c, call, &rows.x, &rows.x_ld, err);
    return status == GAC_OK ? widen_rows(c, &rows, gram, err) : status;
}

gac_status gac_compute_gram_read(void *state, const gac_gram *gram, double *matrix,
                                 double *magnitude, gac_error *err)
{
    gac_cuda_compute *c = state;
    const size_t n = (size_t)gram->n;
    gac_status status = gac_compute_launch_pending(c, err);
    c->chained = false;
    if (status == GAC_OK) /* in place: the upper triangle becomes the mirror of the lower one */
        status = gac_mirror_launch(gram->matrix, gram->matrix, gram->n, c->cuda->stream, err);
    if (status)
        return status;
    cudaError_t code = cudaMemcpyAsync(matrix, gram->matrix, n * n * sizeof *matrix,
                                       cudaMemcpyDeviceToHost, c->cuda->stream);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(magnitude, gram->magnitude, n * sizeof *magnitude,
                               cudaMemcpyDeviceToHost, c->cuda->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "copy from the device");
}

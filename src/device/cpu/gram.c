/* Gram matrices of the inputs of linear modules, in F64. */
#include "device/cpu/algebra_blas.h"
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRAM_BLOCK 256 /* rows and columns of the matrix that one work item adds to */

struct gac_gram {
    int64_t n;
    double *matrix;    /* (n, n): blocks on and above the diagonal */
    double *magnitude; /* (n) */
};

typedef struct gram_run {
    const gac_lapack *lapack;
    const double *rows; /* (n_rows, n) */
    int64_t n_rows, n_blocks;
    gac_gram *gram;
} gram_run;

gac_status gac_cpu_gram_create(void *state, int64_t n, gac_gram **out, gac_error *err)
{
    int64_t numbers;
    (void)state;
    gac_gram *gram = calloc(1, sizeof *gram);
    if (!gram || n < 1 || !gac_mul_i64(n, n, &numbers)) {
        free(gram);
        return gac_error_no_memory(err);
    }
    gram->n = n;
    gram->matrix = calloc((size_t)numbers, sizeof *gram->matrix);
    gram->magnitude = calloc((size_t)n, sizeof *gram->magnitude);
    if (!gram->matrix || !gram->magnitude) {
        gac_cpu_gram_free(state, gram);
        return gac_error_set(err, GAC_NO_RESOURCE, "no memory for a Gram matrix of %lld inputs",
                             (long long)n);
    }
    *out = gram;
    return GAC_OK;
}

void gac_cpu_gram_free(void *state, gac_gram *gram)
{
    (void)state;
    if (!gram)
        return;
    free(gram->matrix);
    free(gram->magnitude);
    free(gram);
}

static void add_block(void *data, int64_t item, int thread)
{
    const gram_run *run = data;
    const int64_t n = run->gram->n;
    int64_t row = 0;
    (void)thread;
    for (; item >= run->n_blocks - row; row++)
        item -= run->n_blocks - row;
    const int64_t i = row * GRAM_BLOCK, j = (row + item) * GRAM_BLOCK;
    const int64_t height = n - i < GRAM_BLOCK ? n - i : GRAM_BLOCK;
    const int64_t width = n - j < GRAM_BLOCK ? n - j : GRAM_BLOCK;
    run->lapack->gemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)height, (blasint)width,
                      (blasint)run->n_rows, 1, run->rows + i, (blasint)n, run->rows + j, (blasint)n,
                      1, run->gram->matrix + i * n + j, (blasint)n);
}

static void add_rows(gac_cpu_compute *compute, gram_run *run)
{
    gac_gram *gram = run->gram;
    for (int64_t r = 0; r < run->n_rows; r++)
        for (int64_t i = 0; i < gram->n; i++)
            gram->magnitude[i] += fabs(run->rows[r * gram->n + i]);
    gac_pool_run(compute->pool, run->n_blocks * (run->n_blocks + 1) / 2, add_block, run);
}

/* Starts adding rows; the caller frees *rows, which has room for GAC_ROW_CHUNK of them. */
static gac_status start_run(gac_gram *gram, gac_lapack *lapack, gram_run *run, double **rows,
                            gac_error *err)
{
    *rows = calloc((size_t)GAC_ROW_CHUNK * (size_t)gram->n, sizeof **rows);
    *run = (gram_run){ .lapack = lapack,
                       .rows = *rows,
                       .n_blocks = (gram->n + GRAM_BLOCK - 1) / GRAM_BLOCK,
                       .gram = gram };
    return *rows ? gac_lapack_find(lapack, err) : gac_error_no_memory(err);
}

gac_status gac_cpu_gram_add(void *state, const gac_linear_call *call, gac_gram *gram,
                            gac_error *err)
{
    gac_cpu_compute *compute = state;
    const gac_axis in = call->matrix->in;
    const int64_t n = in.n_slices * in.size, n_rows = compute->batch * compute->n_new;
    gac_lapack lapack;
    const gac_cpu_norm_args norm = gac_cpu_norm_of(call);
    gram_run run;
    double *rows = NULL;
    if (n != gram->n)
        return gac_error_set(err, GAC_USAGE, "a Gram matrix of %lld inputs, but there are %lld",
                             (long long)gram->n, (long long)n);
    float *row = calloc((size_t)n, sizeof *row);
    gac_status status = row ? start_run(gram, &lapack, &run, &rows, err) : gac_error_no_memory(err);
    for (int64_t first = 0; first < n_rows && status == GAC_OK; first += GAC_ROW_CHUNK) {
        run.n_rows = n_rows - first < GAC_ROW_CHUNK ? n_rows - first : GAC_ROW_CHUNK;
        for (int64_t r = 0; r < run.n_rows; r++) {
            const float *from = call->x->data + (first + r) * call->x->stride;
            for (int64_t s = 0; s < in.n_slices; s++)
                memcpy(row + s * in.size, from + s * in.stored, (size_t)in.size * sizeof *row);
            if (call->norm)
                gac_cpu_norm(compute, &norm, row, n, row);
            for (int64_t i = 0; i < n; i++)
                rows[r * n + i] = (double)row[i];
        }
        add_rows(compute, &run);
    }
    free(rows);
    free(row);
    return status;
}

gac_status gac_cpu_gram_add_rows(gac_cpu_compute *compute, const float *from, int64_t n_rows,
                                 gac_gram *gram, gac_error *err)
{
    gac_lapack lapack;
    gram_run run;
    double *rows = NULL;
    gac_status status = start_run(gram, &lapack, &run, &rows, err);
    for (int64_t first = 0; first < n_rows && status == GAC_OK; first += GAC_ROW_CHUNK) {
        run.n_rows = n_rows - first < GAC_ROW_CHUNK ? n_rows - first : GAC_ROW_CHUNK;
        for (int64_t i = 0; i < run.n_rows * gram->n; i++)
            rows[i] = (double)from[first * gram->n + i];
        add_rows(compute, &run);
    }
    free(rows);
    return status;
}

gac_status gac_cpu_gram_read(void *state, const gac_gram *gram, double *matrix, double *magnitude,
                             gac_error *err)
{
    const int64_t n = gram->n;
    (void)state;
    (void)err;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++)
            matrix[i * n + j] = matrix[j * n + i] = gram->matrix[i * n + j];
    memcpy(magnitude, gram->magnitude, (size_t)n * sizeof *magnitude);
    return GAC_OK;
}

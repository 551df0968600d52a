/* Factors weights on the GPU (gac_factor_job), one job after another, in F64. algebra.c of
 * the CPU has the same steps and explains them. */
#include "pass_algebra.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Over the mean of the Gram matrix's diagonal, as on the CPU. Ridges and shifts grow in steps
 * of 100 up to MOST_SHIFT where Cholesky fails. */
#define REFIT_RIDGE 1e-8
#define LEAST_SHIFT 1e-14
#define MOST_SHIFT 1.1e-4 /* 1e-4, and room for rounding */

/* A job, and what its kinds have in common. */
typedef struct factor {
    gac_algebra s;
    const gac_factor_job *job;
    int *bad;     /* in device memory: not 0 if a number is not finite */
    double *w;    /* (n_out, n_in) */
    double *gram; /* (n_in, n_in), or NULL; belongs to gram_store */
    double mean;  /* of the diagonal of the Gram matrix, 1 if there is none */
} factor;

/* The Gram matrix of the last job stays on the device: the next one often has the same. */
typedef struct gram_store {
    const double *host;
    double *device;
    int64_t n;
} gram_store;

static cudaStream_t stream_of(const factor *f)
{
    return f->s.c->cuda->stream;
}

static double mean_diagonal(const double *a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i * n + i];
    return sum / (double)n;
}

/* to = from, (n) floats in host memory, in F64 in device memory. */
static void upload_floats(factor *f, const float *from, int64_t n_rows, int64_t n_cols,
                          int64_t stride, double *to)
{
    gac_algebra *s = &f->s;
    const size_t width = (size_t)n_cols * sizeof *from;
    float *staged = gac_algebra_take(s, n_rows, n_cols, sizeof *staged);
    if (s->status == GAC_OK && stride == n_cols)
        gac_algebra_copy(s, staged, from, (size_t)n_rows * width);
    else if (s->status == GAC_OK)
        gac_algebra_check_cuda(s,
                               cudaMemcpy2DAsync(staged, width, from, (size_t)stride * sizeof *from,
                                                 width, (size_t)n_rows, cudaMemcpyHostToDevice,
                                                 stream_of(f)),
                               "copy to the device");
    if (s->status == GAC_OK)
        gac_algebra_check(
            s, gac_to_double_launch(staged, to, n_rows * n_cols, f->bad, stream_of(f), s->err));
}

/* Reads numbers (n) as floats. */
static void read_floats(factor *f, const double *from, int64_t n, float *to)
{
    gac_algebra *s = &f->s;
    float *staged = gac_algebra_take(s, n, 1, sizeof *staged);
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_to_float_launch(from, staged, n, stream_of(f), s->err));
    gac_algebra_read(s, to, staged, (size_t)n * sizeof *to);
}

static void drop_gram(gac_cuda *cuda, gram_store *store)
{
    gac_cuda_release(cuda, store->device);
    *store = (gram_store){ 0 };
}

/* Puts the Gram matrix of the job on the device. */
static void upload_gram(factor *f, gram_store *store)
{
    gac_algebra *s = &f->s;
    const int64_t n = f->job->n_in;
    size_t n_bytes = 0;
    void *memory = NULL;
    if (store->host != f->job->gram || store->n != n) {
        drop_gram(s->c->cuda, store);
        if (!gac_compute_bytes(n, n, sizeof(double), &n_bytes))
            gac_algebra_fail(s, GAC_NO_RESOURCE, "a matrix too large for any device");
        if (s->status == GAC_OK)
            gac_algebra_check(s, gac_cuda_alloc(s->c->cuda, n_bytes, &memory, s->err));
        if (s->status)
            return;
        *store = (gram_store){ f->job->gram, memory, n };
        gac_algebra_copy(s, store->device, f->job->gram, n_bytes);
    }
    f->gram = store->device;
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_check_finite_launch(f->gram, n * n, f->bad, stream_of(f), s->err));
}

/* Puts the operands of the job on the device and checks them. */
static void start(factor *f, gram_store *store)
{
    gac_algebra *s = &f->s;
    const gac_factor_job *job = f->job;
    int bad = 0;
    f->bad = gac_algebra_take(s, 1, 1, sizeof *f->bad);
    gac_algebra_clear(s, f->bad, sizeof *f->bad);
    f->w = gac_algebra_numbers(s, job->n_out, job->n_in);
    upload_floats(f, job->weight, job->n_out, job->n_in, job->n_in, f->w);
    f->mean = 1;
    if (job->gram) {
        f->mean = mean_diagonal(job->gram, job->n_in);
        upload_gram(f, store);
    }
    gac_algebra_read(s, &bad, f->bad, sizeof bad);
    if (bad)
        gac_algebra_fail(s, GAC_BAD_INPUT, "a weight or an activation is not finite");
}

/* Returns a root L of the Gram matrix, L L^T = G, shifted where it is singular. */
static double *gram_root(factor *f)
{
    gac_algebra *s = &f->s;
    const int64_t n = f->job->n_in;
    const size_t n_bytes = (size_t)(n * n) * sizeof(double);
    double *root = gac_algebra_numbers(s, n, n);
    bool positive = false;
    if (!(f->mean > 0)) { /* the inputs were all zero, and so is the root */
        gac_algebra_clear(s, root, n_bytes);
        return root;
    }
    for (double shift = 0; shift <= MOST_SHIFT && !positive && s->status == GAC_OK;
         shift = shift > 0 ? shift * 100 : LEAST_SHIFT) {
        gac_algebra_copy(s, root, f->gram, n_bytes);
        if (s->status == GAC_OK)
            gac_algebra_check(
                s, gac_add_diagonal_launch(root, n, shift * f->mean, stream_of(f), s->err));
        if (s->status == GAC_OK)
            gac_algebra_check(s, gac_cusolver_cholesky(s->c->cuda, n, root, &positive, s->err));
    }
    if (!positive)
        gac_algebra_fail(s, GAC_FAILED, "the Gram matrix is not positive");
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_clear_upper_launch(root, n, stream_of(f), s->err));
    return root;
}

/* Reads the energies and the basis: the rows of rows (n, n_out), the last one first if
 * reverse. */
static void read_spectrum(factor *f, const double *values, const double *rows, int64_t n,
                          bool reverse)
{
    gac_algebra *s = &f->s;
    const gac_factor_job *job = f->job;
    float *basis = gac_algebra_take(s, n, job->n_out, sizeof *basis);
    if (s->status == GAC_OK)
        gac_algebra_check(
            s, gac_transpose_launch(rows, basis, n, job->n_out, reverse, stream_of(f), s->err));
    gac_algebra_read(s, job->basis, basis, (size_t)(n * job->n_out) * sizeof *basis);
    gac_algebra_read(s, job->energy, values, (size_t)n * sizeof *values);
    for (int64_t i = 0; s->status == GAC_OK && i < n - i; i++) {
        const double low = job->energy[i];
        job->energy[i] = fmax(job->energy[n - 1 - i], 0);
        job->energy[n - 1 - i] = fmax(low, 0);
    }
}

static void find_eigenvectors(factor *f, int64_t n, double *square, double *values)
{
    if (f->s.status == GAC_OK)
        gac_algebra_check(&f->s, gac_cusolver_eigen(f->s.c->cuda, n, square, values, f->s.err));
}

/* U from W G W^T (n_out, n_out), for few outputs. */
static void spectrum_of_outputs(factor *f)
{
    gac_algebra *s = &f->s;
    const int64_t n = f->job->n_out, k = f->job->n_in;
    double *product = f->gram ? gac_algebra_numbers(s, n, k) : f->w;
    double *square = gac_algebra_numbers(s, n, n), *values = gac_algebra_numbers(s, n, 1);
    if (f->gram)
        gac_algebra_gemm(s, false, false, n, k, k, 1, f->w, f->gram, 0, product);
    gac_algebra_gemm(s, false, true, n, n, k, 1, product, f->w, 0, square);
    find_eigenvectors(f, n, square, values);
    read_spectrum(f, values, square, n, true);
}

/* U from L^T W^T W L (n_in, n_in), for few inputs: U = W L V without its lengths. */
static void spectrum_of_inputs(factor *f)
{
    gac_algebra *s = &f->s;
    const int64_t n = f->job->n_in, n_out = f->job->n_out;
    double *outputs = f->w; /* (n_out, n) */
    double *square = gac_algebra_numbers(s, n, n), *values = gac_algebra_numbers(s, n, 1);
    double *vectors = gac_algebra_numbers(s, n, n), *basis = gac_algebra_numbers(s, n, n_out);
    if (f->gram) {
        const double *root = gram_root(f);
        outputs = gac_algebra_numbers(s, n_out, n);
        gac_algebra_gemm(s, false, false, n_out, n, n, 1, f->w, root, 0, outputs);
    }
    gac_algebra_gemm(s, true, false, n, n, n_out, 1, outputs, outputs, 0, square);
    find_eigenvectors(f, n, square, values);
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_reverse_rows_launch(square, vectors, n, n, stream_of(f), s->err));
    gac_algebra_gemm(s, false, true, n, n_out, n, 1, vectors, outputs, 0, basis);
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_cusolver_orthonormalise(s->c->cuda, n, n_out, basis, s->err));
    read_spectrum(f, values, basis, n, false);
}

static void project(factor *f)
{
    gac_algebra *s = &f->s;
    const gac_factor_job *job = f->job;
    double *basis = gac_algebra_numbers(s, job->n_out, job->n_kept);
    double *out = gac_algebra_numbers(s, job->n_kept, job->n_in);
    upload_floats(f, job->basis, job->n_out, job->n_kept, job->basis_stride, basis);
    gac_algebra_gemm(s, true, false, job->n_kept, job->n_in, job->n_out, 1, basis, f->w, 0, out);
    read_floats(f, out, job->n_kept * job->n_in, job->made);
}

static void gather(factor *f, const int32_t *rows, const int32_t *cols, double *to, int64_t n_rows)
{
    if (f->s.status == GAC_OK)
        gac_algebra_check(&f->s, gac_gather_launch(f->gram, f->job->n_in, rows, cols, to, n_rows,
                                                   f->job->n_kept, stream_of(f), f->s.err));
}

/* Sets square to the root of G_KK with a ridge. */
static void refit_root(factor *f, const int32_t *kept, double *square)
{
    gac_algebra *s = &f->s;
    const int64_t n = f->job->n_kept;
    bool positive = false;
    for (double ridge = REFIT_RIDGE; ridge <= MOST_SHIFT && !positive && s->status == GAC_OK;
         ridge *= 100) {
        gather(f, kept, kept, square, n);
        if (s->status == GAC_OK)
            gac_algebra_check(s,
                              gac_add_diagonal_launch(square, n, f->mean > 0 ? ridge * f->mean : 1,
                                                      stream_of(f), s->err));
        if (s->status == GAC_OK)
            gac_algebra_check(s, gac_cusolver_cholesky(s->c->cuda, n, square, &positive, s->err));
    }
    if (!positive)
        gac_algebra_fail(s, GAC_FAILED, "the Gram matrix is not positive");
}

static void refit(factor *f)
{
    gac_algebra *s = &f->s;
    if (!f->gram) {
        gac_algebra_fail(s, GAC_USAGE, "a refit needs a Gram matrix");
        return;
    }
    const gac_factor_job *job = f->job;
    const int64_t n = job->n_in, n_kept = job->n_kept;
    int32_t *kept = gac_algebra_take(s, n_kept, 1, sizeof *kept);
    double *columns = gac_algebra_numbers(s, n, n_kept);
    double *square = gac_algebra_numbers(s, n_kept, n_kept);
    double *out = gac_algebra_numbers(s, job->n_out, n_kept);
    gac_algebra_copy(s, kept, job->kept, (size_t)n_kept * sizeof *kept);
    gather(f, NULL, kept, columns, n);
    gac_algebra_gemm(s, false, false, job->n_out, n_kept, n, 1, f->w, columns, 0, out);
    refit_root(f, kept, square);
    if (s->status == GAC_OK)
        gac_algebra_check(s,
                          gac_cusolver_solve(s->c->cuda, n_kept, job->n_out, square, out, s->err));
    read_floats(f, out, job->n_out * n_kept, job->made);
}

static gac_status run_job(gac_cuda_compute *c, const gac_factor_job *job, gram_store *store,
                          gac_error *err)
{
    factor f = { .s = { .c = c, .err = err }, .job = job };
    start(&f, store);
    if (f.s.status == GAC_OK && job->kind == GAC_FACTOR_SPECTRUM) {
        if (job->n_out <= job->n_in)
            spectrum_of_outputs(&f);
        else
            spectrum_of_inputs(&f);
    } else if (f.s.status == GAC_OK && job->kind == GAC_FACTOR_PROJECT) {
        project(&f);
    } else if (f.s.status == GAC_OK && job->kind == GAC_FACTOR_CHANNELS) {
        gac_algebra_order(&f.s, job, f.w, f.gram, f.mean);
    } else if (f.s.status == GAC_OK) {
        refit(&f);
    }
    gac_algebra_end(&f.s);
    return f.s.status;
}

gac_status gac_compute_factor(void *state, const gac_factor_job *jobs, int n_jobs, gac_error *err)
{
    gac_cuda_compute *c = state;
    gram_store store = { 0 };
    gac_error reason = GAC_ERROR_INIT;
    char quoted[200];
    gac_status status = gac_compute_wait(c, "a pass on the device", err);
    c->chained = false;
    if (status == GAC_OK)
        status = gac_cusolver_open(c->cuda, err);
    for (int i = 0; i < n_jobs && status == GAC_OK; i++) {
        status = run_job(c, &jobs[i], &store, &reason);
        if (status != GAC_OK)
            gac_error_set(err, status, "%s: %s", gac_quote(quoted, sizeof quoted, jobs[i].name),
                          reason.text);
    }
    drop_gram(c->cuda, &store);
    cudaStreamSynchronize(c->cuda->stream);
    cudaMemPoolTrimTo(c->cuda->pool, 0); /* so that weights and caches have room */
    return status;
}

/* Factoring weights on the CPU (gac_factor_job), one thread for each job. */
#include "device/cpu/algebra_blas.h"
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is added to the diagonal of a Gram matrix, over the mean of that diagonal, so that
 * inputs that depend on each other do no harm. */
#define CHANNEL_RIDGE 1e-7
#define REFIT_RIDGE 1e-8
/* Cholesky begins with a small shift, and ends with 1e-4 (and room for rounding), in steps of
 * 100. Ridges grow likewise. */
#define LEAST_SHIFT 1e-14
#define MOST_SHIFT 1.1e-4

/* Channels whose updates of the matrices are done together. Between that, a step reads the
 * products once and changes vectors only. */
enum { N_TOGETHER = 32 };

typedef struct factor_run {
    const gac_lapack *lapack;
    const gac_factor_job *jobs;
    gac_error *errors;    /* (n_jobs) */
    gac_status *statuses; /* (n_jobs) */
} factor_run;

static double *new_numbers(int64_t a, int64_t b)
{
    int64_t n;
    return gac_mul_i64(a, b, &n) && n < INT64_MAX / 8 ? calloc((size_t)n + 1, sizeof(double))
                                                      : NULL;
}

static double *weight_of(const gac_factor_job *job)
{
    double *w = new_numbers(job->n_out, job->n_in);
    for (int64_t i = 0; w && i < job->n_out * job->n_in; i++)
        w[i] = (double)job->weight[i];
    return w;
}

static double mean_diagonal(const double *a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i * n + i];
    return sum / (double)n;
}

static void add_to_diagonal(double *a, int64_t n, double value)
{
    for (int64_t i = 0; i < n; i++)
        a[i * n + i] += value;
}

/* Spectrum. */

/* Sets *out to a root L of the Gram matrix, L L^T = G, shifted where it is singular. */
static gac_status gram_root(const gac_lapack *lapack, const gac_factor_job *job, double **out,
                            gac_error *err)
{
    const int64_t n = job->n_in;
    const double mean = mean_diagonal(job->gram, n);
    *out = new_numbers(n, n);
    if (!*out)
        return gac_error_no_memory(err);
    if (!(mean > 0)) /* the inputs were all zero, and so is the root */
        return GAC_OK;
    for (double shift = 0; shift <= MOST_SHIFT; shift = shift > 0 ? shift * 100 : LEAST_SHIFT) {
        memcpy(*out, job->gram, (size_t)(n * n) * sizeof **out);
        add_to_diagonal(*out, n, shift * mean);
        if (gac_lapack_cholesky(lapack, n, *out))
            return GAC_OK;
    }
    return gac_error_set(err, GAC_FAILED, "the Gram matrix is not positive");
}

/* U from W G W^T (n_out, n_out), for few outputs. */
static gac_status spectrum_of_outputs(const gac_lapack *lapack, const gac_factor_job *job,
                                      const double *w, gac_error *err)
{
    const int64_t n = job->n_out, k = job->n_in;
    double *product = job->gram ? new_numbers(n, k) : NULL;
    double *square = new_numbers(n, n), *values = new_numbers(n, 1);
    gac_status status =
        square && values && (product || !job->gram) ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK) {
        if (job->gram)
            gac_lapack_gemm(lapack, false, false, n, k, k, 1, w, job->gram, 0, product);
        gac_lapack_gemm(lapack, false, true, n, n, k, 1, job->gram ? product : w, w, 0, square);
        status = gac_lapack_eigen(lapack, n, square, values, err);
    }
    for (int64_t j = 0; status == GAC_OK && j < n; j++) {
        job->energy[j] = fmax(values[n - 1 - j], 0);
        for (int64_t i = 0; i < n; i++)
            job->basis[i * n + j] = (float)square[(n - 1 - j) * n + i];
    }
    free(product);
    free(square);
    free(values);
    return status;
}

/* U from L^T W^T W L (n_in, n_in), for few inputs: U = W L V without its lengths. */
static gac_status spectrum_of_inputs(const gac_lapack *lapack, const gac_factor_job *job,
                                     const double *w, gac_error *err)
{
    const int64_t n = job->n_in, n_out = job->n_out;
    double *root = NULL, *product = NULL, *square = new_numbers(n, n);
    double *values = new_numbers(n, 1), *basis = new_numbers(n, n_out);
    gac_status status = square && values && basis ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK && job->gram) {
        product = new_numbers(n_out, n);
        status = product ? gram_root(lapack, job, &root, err) : gac_error_no_memory(err);
        if (status == GAC_OK)
            gac_lapack_gemm(lapack, false, false, n_out, n, n, 1, w, root, 0, product);
    }
    const double *outputs = job->gram ? product : w; /* (n_out, n) */
    if (status == GAC_OK) {
        gac_lapack_gemm(lapack, true, false, n, n, n_out, 1, outputs, outputs, 0, square);
        status = gac_lapack_eigen(lapack, n, square, values, err);
    }
    for (int64_t j = 0; status == GAC_OK && j < n / 2; j++) /* the greatest first */
        for (int64_t i = 0; i < n; i++) {
            double swap = square[j * n + i];
            square[j * n + i] = square[(n - 1 - j) * n + i];
            square[(n - 1 - j) * n + i] = swap;
        }
    if (status == GAC_OK) {
        gac_lapack_gemm(lapack, false, true, n, n_out, n, 1, square, outputs, 0, basis);
        status = gac_lapack_orthonormalise(lapack, n, n_out, basis, err);
    }
    for (int64_t j = 0; status == GAC_OK && j < n; j++) {
        job->energy[j] = fmax(values[n - 1 - j], 0);
        for (int64_t i = 0; i < n_out; i++)
            job->basis[i * n + j] = (float)basis[j * n_out + i];
    }
    free(root);
    free(product);
    free(square);
    free(values);
    free(basis);
    return status;
}

static gac_status run_spectrum(const gac_lapack *lapack, const gac_factor_job *job, gac_error *err)
{
    double *w = weight_of(job);
    if (!w)
        return gac_error_no_memory(err);
    gac_status status = job->n_out <= job->n_in ? spectrum_of_outputs(lapack, job, w, err)
                                                : spectrum_of_inputs(lapack, job, w, err);
    free(w);
    return status;
}

static gac_status run_project(const gac_lapack *lapack, const gac_factor_job *job, gac_error *err)
{
    const int64_t r = job->n_kept, n_in = job->n_in, n_out = job->n_out;
    double *w = weight_of(job), *basis = new_numbers(n_out, r), *out = new_numbers(r, n_in);
    gac_status status = w && basis && out ? GAC_OK : gac_error_no_memory(err);
    for (int64_t i = 0; status == GAC_OK && i < n_out * r; i++)
        basis[i] = (double)job->basis[i / r * job->basis_stride + i % r];
    if (status == GAC_OK)
        gac_lapack_gemm(lapack, true, false, r, n_in, n_out, 1, basis, w, 0, out);
    for (int64_t i = 0; status == GAC_OK && i < r * n_in; i++)
        job->made[i] = (float)out[i];
    free(w);
    free(basis);
    free(out);
    return status;
}

/* Channels. */

/* The state of choosing inputs. rest is the part of the Gram matrix that the chosen inputs
 * do not explain (a Schur complement), and product is W rest. */
typedef struct choice {
    const gac_lapack *lapack;
    const gac_factor_job *job;
    int64_t n, n_out;
    double *w, *rest, *product; /* (n_out, n), (n, n), (n_out, n) */
    bool *taken;                /* (n / block) */
    double left;                /* the loss now */
    /* The last inputs, whose updates of rest and product are still to be done: */
    int n_late;
    double *late_rest;    /* (N_TOGETHER, n) columns of rest, */
    double *late_product; /* (N_TOGETHER, n_out) columns of product */
    double scale[N_TOGETHER];
    double *squares, *diagonal; /* (n): |column of product|^2 and diagonal of rest, as they are */
    double *column, *output, *overlap; /* (n), (n_out), (n): of the input being taken */
} choice;

static void free_choice(choice *c)
{
    double *const all[] = { c->w,       c->rest,     c->product, c->late_rest, c->late_product,
                            c->squares, c->diagonal, c->column,  c->output,    c->overlap };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(c->taken);
}

/* tr(W rest W^T). */
static double loss_left(const choice *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n_out * c->n; i++)
        sum += c->product[i] * c->w[i];
    return fmax(sum, 0);
}

static gac_status start_choice(choice *c, const gac_lapack *lapack, const gac_factor_job *job,
                               gac_error *err)
{
    const int64_t n = job->n_in, n_out = job->n_out;
    *c = (choice){ .lapack = lapack, .job = job, .n = n, .n_out = n_out };
    c->w = weight_of(job);
    c->rest = new_numbers(n, n);
    c->product = new_numbers(n_out, n);
    c->taken = calloc((size_t)n, sizeof *c->taken);
    if (!c->w || !c->rest || !c->product || !c->taken)
        return gac_error_no_memory(err);
    if (job->gram)
        memcpy(c->rest, job->gram, (size_t)(n * n) * sizeof *c->rest);
    else
        add_to_diagonal(c->rest, n, 1);
    const double mean = mean_diagonal(c->rest, n);
    add_to_diagonal(c->rest, n, mean > 0 ? CHANNEL_RIDGE * mean : 1);
    gac_lapack_gemm(lapack, false, false, n_out, n, n, 1, c->w, c->rest, 0, c->product);
    job->loss[0] = c->left = loss_left(c);
    return GAC_OK;
}

static void measure_columns(choice *c)
{
    memset(c->squares, 0, (size_t)c->n * sizeof *c->squares);
    for (int64_t o = 0; o < c->n_out; o++)
        for (int64_t i = 0; i < c->n; i++)
            c->squares[i] += c->product[o * c->n + i] * c->product[o * c->n + i];
    for (int64_t i = 0; i < c->n; i++)
        c->diagonal[i] = c->rest[i * c->n + i];
}

/* Does the updates that were put off. */
static void catch_up(choice *c)
{
    const int64_t n = c->n, n_out = c->n_out, late = c->n_late;
    for (int64_t s = 0; s < late; s++)
        for (int64_t i = 0; i < n; i++)
            c->late_rest[s * n + i] /= sqrt(c->scale[s]);
    for (int64_t s = 0; s < late; s++)
        for (int64_t o = 0; o < n_out; o++)
            c->late_product[s * n_out + o] /= sqrt(c->scale[s]);
    gac_lapack_gemm(c->lapack, true, false, n, n, late, -1, c->late_rest, c->late_rest, 1, c->rest);
    gac_lapack_gemm(c->lapack, true, false, n_out, n, late, -1, c->late_product, c->late_rest, 1,
                    c->product);
    c->n_late = 0;
    measure_columns(c);
    c->left = loss_left(c);
}

/* The input that explains most of what is left. */
static int64_t best_channel(const choice *c)
{
    int64_t best = -1;
    double most = -1;
    for (int64_t i = 0; i < c->n; i++) {
        double gain = c->diagonal[i] > 0 ? c->squares[i] / c->diagonal[i] : 0;
        if (!(gain >= 0)) /* not a number */
            gain = 0;
        if (!c->taken[i] && gain > most) {
            most = gain;
            best = i;
        }
    }
    return best;
}

/* Sets column and output to the columns j of rest and product as they are now. */
static void current_column(choice *c, int64_t j)
{
    for (int64_t i = 0; i < c->n; i++)
        c->column[i] = c->rest[j * c->n + i];
    for (int64_t o = 0; o < c->n_out; o++)
        c->output[o] = c->product[o * c->n + j];
    for (int s = 0; s < c->n_late; s++) {
        const double *rest = c->late_rest + s * c->n;
        const double *output = c->late_product + s * c->n_out;
        const double share = rest[j] / c->scale[s];
        for (int64_t i = 0; i < c->n; i++)
            c->column[i] -= share * rest[i];
        for (int64_t o = 0; o < c->n_out; o++)
            c->output[o] -= share * output[o];
    }
}

/* Sets overlap to the products of output with every column of product as it is now. */
static void current_overlap(choice *c)
{
    c->lapack->gemv(CblasRowMajor, CblasTrans, (blasint)c->n_out, (blasint)c->n, 1, c->product,
                    (blasint)c->n, c->output, 1, 0, c->overlap, 1);
    for (int s = 0; s < c->n_late; s++) {
        const double *rest = c->late_rest + s * c->n;
        const double *output = c->late_product + s * c->n_out;
        double share = 0;
        for (int64_t o = 0; o < c->n_out; o++)
            share += output[o] * c->output[o];
        share /= c->scale[s];
        for (int64_t i = 0; i < c->n; i++)
            c->overlap[i] -= share * rest[i];
    }
}

static void take_channel(choice *c, int64_t j)
{
    current_column(c, j);
    current_overlap(c);
    const double scale = fmax(c->column[j], 1e-300), square = c->overlap[j];
    c->taken[j] = true;
    c->left = fmax(c->left - square / scale, 0);
    for (int64_t i = 0; i < c->n; i++) {
        double share = c->column[i] / scale;
        c->squares[i] += share * (share * square - 2 * c->overlap[i]);
        c->diagonal[i] -= share * c->column[i];
    }
    memcpy(c->late_rest + c->n_late * c->n, c->column, (size_t)c->n * sizeof *c->column);
    memcpy(c->late_product + c->n_late * c->n_out, c->output, (size_t)c->n_out * sizeof *c->output);
    c->scale[c->n_late++] = scale;
}

/* Takes inputs one by one. */
static gac_status order_channels(choice *c, gac_error *err)
{
    c->late_rest = new_numbers(N_TOGETHER, c->n);
    c->late_product = new_numbers(N_TOGETHER, c->n_out);
    c->squares = new_numbers(c->n, 1);
    c->diagonal = new_numbers(c->n, 1);
    c->column = new_numbers(c->n, 1);
    c->output = new_numbers(c->n_out, 1);
    c->overlap = new_numbers(c->n, 1);
    if (!c->late_rest || !c->late_product || !c->squares || !c->diagonal || !c->column ||
        !c->output || !c->overlap)
        return gac_error_no_memory(err);
    measure_columns(c);
    for (int64_t step = 0; step < c->n; step++) {
        int64_t j = best_channel(c);
        take_channel(c, j);
        if (c->n_late == N_TOGETHER)
            catch_up(c);
        c->job->order[step] = (int32_t)j;
        c->job->loss[step + 1] = c->left;
    }
    return GAC_OK;
}

/* Sets root (b, b), rows (b, n) and outputs (b, n_out) for group g: with rest_gg = L L^T they
 * are L, L^-1 rest_g and L^-1 product_g^T. Returns what the group explains, -1 where L does
 * not exist. */
static double weigh_group(const choice *c, int64_t g, double *root, double *rows, double *outputs)
{
    const int64_t b = c->job->block, n = c->n, n_out = c->n_out;
    for (int64_t i = 0; i < b; i++) {
        memcpy(root + i * b, c->rest + (g * b + i) * n + g * b, (size_t)b * sizeof *root);
        memcpy(rows + i * n, c->rest + (g * b + i) * n, (size_t)n * sizeof *rows);
        for (int64_t o = 0; o < n_out; o++)
            outputs[i * n_out + o] = c->product[o * n + g * b + i];
    }
    if (!gac_lapack_cholesky(c->lapack, b, root))
        return -1;
    c->lapack->trsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)b,
                    (blasint)n, 1, root, (blasint)b, rows, (blasint)n);
    c->lapack->trsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)b,
                    (blasint)n_out, 1, root, (blasint)b, outputs, (blasint)n_out);
    double gain = 0;
    for (int64_t i = 0; i < b * n_out; i++)
        gain += outputs[i] * outputs[i];
    return gain;
}

/* Takes whole groups. There are few of them, so each is weighed anew in every round. */
static gac_status order_groups(choice *c, gac_error *err)
{
    const int64_t b = c->job->block, n_groups = c->n / b;
    double *root = new_numbers(b, b), *rows = new_numbers(b, c->n);
    double *outputs = new_numbers(b, c->n_out);
    gac_status status = root && rows && outputs ? GAC_OK : gac_error_no_memory(err);
    for (int64_t step = 0; step < n_groups && status == GAC_OK; step++) {
        int64_t best = -1;
        double most = -1;
        for (int64_t g = 0; g < n_groups; g++) {
            double gain = c->taken[g] ? -1 : weigh_group(c, g, root, rows, outputs);
            if (gain > most) {
                most = gain;
                best = g;
            }
        }
        if (best < 0)
            return gac_error_set(err, GAC_FAILED, "the Gram matrix is not positive");
        weigh_group(c, best, root, rows, outputs);
        gac_lapack_gemm(c->lapack, true, false, c->n, c->n, b, -1, rows, rows, 1, c->rest);
        gac_lapack_gemm(c->lapack, true, false, c->n_out, c->n, b, -1, outputs, rows, 1,
                        c->product);
        c->taken[best] = true;
        c->job->order[step] = (int32_t)best;
        c->job->loss[step + 1] = loss_left(c);
    }
    free(root);
    free(rows);
    free(outputs);
    return status;
}

static gac_status run_channels(const gac_lapack *lapack, const gac_factor_job *job, gac_error *err)
{
    choice c;
    gac_status status = start_choice(&c, lapack, job, err);
    if (status == GAC_OK)
        status = job->block == 1 ? order_channels(&c, err) : order_groups(&c, err);
    free_choice(&c);
    return status;
}

/* Refit. */

/* Sets square (n_kept, n_kept) to the root of G_KK with a ridge. */
static gac_status refit_root(const gac_lapack *lapack, const gac_factor_job *job, double *square,
                             gac_error *err)
{
    const double mean = mean_diagonal(job->gram, job->n_in);
    for (double ridge = REFIT_RIDGE; ridge <= MOST_SHIFT; ridge *= 100) {
        for (int64_t k = 0; k < job->n_kept; k++)
            for (int64_t i = 0; i < job->n_kept; i++)
                square[k * job->n_kept + i] = job->gram[job->kept[k] * job->n_in + job->kept[i]];
        add_to_diagonal(square, job->n_kept, mean > 0 ? ridge * mean : 1);
        if (gac_lapack_cholesky(lapack, job->n_kept, square))
            return GAC_OK;
    }
    return gac_error_set(err, GAC_FAILED, "the Gram matrix is not positive");
}

static gac_status run_refit(const gac_lapack *lapack, const gac_factor_job *job, gac_error *err)
{
    if (!job->gram)
        return gac_error_set(err, GAC_USAGE, "a refit needs a Gram matrix");
    const int64_t n = job->n_in, n_kept = job->n_kept;
    double *w = weight_of(job), *columns = new_numbers(n, n_kept);
    double *square = new_numbers(n_kept, n_kept), *out = new_numbers(job->n_out, n_kept);
    gac_status status = w && columns && square && out ? GAC_OK : gac_error_no_memory(err);
    for (int64_t k = 0; status == GAC_OK && k < n_kept; k++) {
        const double *row = job->gram + job->kept[k] * n; /* symmetric: also the column */
        for (int64_t i = 0; i < n; i++)
            columns[i * n_kept + k] = row[i];
    }
    if (status == GAC_OK) {
        gac_lapack_gemm(lapack, false, false, job->n_out, n_kept, n, 1, w, columns, 0, out);
        status = refit_root(lapack, job, square, err);
    }
    if (status == GAC_OK) {
        int size = (int)n_kept, n_right = (int)job->n_out, info;
        lapack->potrs("U", &size, &n_right, square, &size, out, &size, &info);
        for (int64_t i = 0; i < job->n_out * n_kept; i++)
            job->made[i] = (float)out[i];
    }
    free(w);
    free(columns);
    free(square);
    free(out);
    return status;
}

/* All jobs. */

static bool are_finite(const gac_factor_job *job)
{
    double sum = 0; /* one that is not finite makes the sum so */
    for (int64_t i = 0; i < job->n_out * job->n_in; i++)
        sum += fabs((double)job->weight[i]);
    for (int64_t i = 0; job->gram && i < job->n_in * job->n_in; i++)
        sum += fabs(job->gram[i]);
    return isfinite(sum);
}

static void run_job(void *data, int64_t item, int thread)
{
    const factor_run *run = data;
    const gac_factor_job *job = &run->jobs[item];
    gac_error err = GAC_ERROR_INIT;
    gac_status status;
    (void)thread;
    if (!are_finite(job))
        status = gac_error_set(&err, GAC_BAD_INPUT, "a weight or an activation is not finite");
    else if (job->kind == GAC_FACTOR_SPECTRUM)
        status = run_spectrum(run->lapack, job, &err);
    else if (job->kind == GAC_FACTOR_PROJECT)
        status = run_project(run->lapack, job, &err);
    else if (job->kind == GAC_FACTOR_CHANNELS)
        status = run_channels(run->lapack, job, &err);
    else
        status = run_refit(run->lapack, job, &err);
    run->statuses[item] = status;
    run->errors[item] = err;
}

gac_status gac_cpu_factor(void *state, const gac_factor_job *jobs, int n_jobs, gac_error *err)
{
    gac_cpu_compute *compute = state;
    gac_lapack lapack;
    char quoted[200];
    factor_run run = { &lapack, jobs, calloc((size_t)n_jobs + 1, sizeof *run.errors),
                       calloc((size_t)n_jobs + 1, sizeof *run.statuses) };
    gac_status status =
        run.errors && run.statuses ? gac_lapack_find(&lapack, err) : gac_error_no_memory(err);
    if (status == GAC_OK)
        gac_pool_run(compute->pool, n_jobs, run_job, &run);
    for (int i = 0; i < n_jobs && status == GAC_OK; i++)
        if (run.statuses[i] != GAC_OK)
            status =
                gac_error_set(err, run.statuses[i], "%s: %s",
                              gac_quote(quoted, sizeof quoted, jobs[i].name), run.errors[i].text);
    free(run.errors);
    free(run.statuses);
    return status;
}

/* CHANNELS jobs: the order of inputs, or of groups of inputs. */
#include "pass_algebra.h"

#include <stdint.h>
#include <stdlib.h>

#define CHANNEL_RIDGE 1e-7 /* as on the CPU */
#define LEAST_TO_DROP 512  /* columns, for which it is worth while */
#define BLOCKS_EACH 8      /* blocks of the longest kernel on one multiprocessor */

/* Splits a sum over outputs so that one wave of blocks does it. */
static int count_splits(int64_t n, int64_t n_out)
{
    int n_units = 1, device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n_units, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        cudaGetLastError();
    int64_t n_splits = BLOCKS_EACH * n_units / gac_channels_blocks(n);
    n_splits = n_splits < GAC_CHANNELS_MAX_SPLITS ? n_splits : GAC_CHANNELS_MAX_SPLITS;
    n_splits = n_splits < n_out ? n_splits : n_out;
    return n_splits > 1 ? (int)n_splits : 1;
}

/* Takes memory, and sets rest to the Gram matrix with its ridge, product to w rest. */
static void start(gac_algebra *s, gac_channels *c, const gac_factor_job *job, const double *w,
                  const double *gram, double mean)
{
    const int64_t n = job->n_in, n_out = job->n_out, n_blocks = gac_channels_blocks(n);
    const size_t square_bytes = (size_t)(n * n) * sizeof(double);
    cudaStream_t stream = s->c->cuda->stream;
    *c = (gac_channels){ .n = n, .n_out = n_out, .n_splits = count_splits(n, n_out), .w = w };
    c->rest = gac_algebra_numbers(s, n, n);
    c->product = gac_algebra_numbers(s, n_out, n);
    c->late_rest = gac_algebra_numbers(s, GAC_CHANNELS_TOGETHER, n);
    c->late_product = gac_algebra_numbers(s, GAC_CHANNELS_TOGETHER, n_out);
    c->squares = gac_algebra_numbers(s, n, 1);
    c->diagonal = gac_algebra_numbers(s, n, 1);
    c->column = gac_algebra_numbers(s, n, 1);
    c->output = gac_algebra_numbers(s, n_out, 1);
    c->partial = gac_algebra_numbers(s, 2 * GAC_CHANNELS_MAX_SPLITS, n);
    c->dots = gac_algebra_numbers(s, GAC_CHANNELS_TOGETHER, 1);
    c->gains = gac_algebra_numbers(s, n_blocks, 1);
    c->lefts = gac_algebra_numbers(s, n_blocks, 1);
    c->loss = gac_algebra_numbers(s, n + 1, 1);
    c->best = gac_algebra_take(s, n_blocks, 1, sizeof *c->best);
    c->chosen = gac_algebra_take(s, 1, 1, sizeof *c->chosen);
    c->taken = gac_algebra_take(s, n, 1, sizeof *c->taken);
    c->order = gac_algebra_take(s, n, 1, sizeof *c->order);
    gac_algebra_clear(s, c->taken, (size_t)n);
    if (gram) {
        gac_algebra_copy(s, c->rest, gram, square_bytes);
    } else {
        gac_algebra_clear(s, c->rest, square_bytes);
        if (s->status == GAC_OK)
            gac_algebra_check(s, gac_add_diagonal_launch(c->rest, n, 1, stream, s->err));
    }
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_add_diagonal_launch(
                                 c->rest, n, mean > 0 ? CHANNEL_RIDGE * mean : 1, stream, s->err));
    gac_algebra_gemm(s, false, false, n_out, n, n, 1, w, c->rest, 0, c->product);
}

static void measure(gac_algebra *s, const gac_channels *c, int64_t step)
{
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_channels_measure_launch(c, step, s->c->cuda->stream, s->err));
}

/* Copies the columns that are left to memory without gaps, since a step reads all columns. */
static void drop_taken(gac_algebra *s, gac_channels *c, int64_t n_left)
{
    const int64_t n = c->n;
    cudaStream_t stream = s->c->cuda->stream;
    uint8_t *taken = malloc((size_t)n);
    int32_t *left = malloc((size_t)n * sizeof *left), *inputs = malloc((size_t)n * sizeof *inputs);
    if (!taken || !left || !inputs)
        gac_algebra_check(s, gac_error_no_memory(s->err));
    if (s->status == GAC_OK && c->inputs)
        gac_algebra_read(s, inputs, c->inputs, (size_t)n * sizeof *inputs);
    gac_algebra_read(s, taken, c->taken, (size_t)n);
    int64_t n_found = 0;
    for (int64_t i = 0; s->status == GAC_OK && i < n; i++)
        if (!taken[i] && n_found < n_left) {
            inputs[n_found] = c->inputs ? inputs[i] : (int32_t)i;
            left[n_found++] = (int32_t)i;
        }
    int32_t *columns = gac_algebra_take(s, n_left, 1, sizeof *columns);
    int32_t *new_inputs = gac_algebra_take(s, n_left, 1, sizeof *new_inputs);
    double *rest = gac_algebra_numbers(s, n_left, n_left);
    double *product = gac_algebra_numbers(s, c->n_out, n_left);
    double *w = gac_algebra_numbers(s, c->n_out, n_left);
    gac_algebra_copy(s, columns, left, (size_t)n_left * sizeof *left);
    gac_algebra_copy(s, new_inputs, inputs, (size_t)n_left * sizeof *inputs);
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_gather_launch(c->rest, n, columns, columns, rest, n_left, n_left,
                                               stream, s->err));
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_gather_launch(c->product, n, NULL, columns, product, c->n_out,
                                               n_left, stream, s->err));
    if (s->status == GAC_OK)
        gac_algebra_check(
            s, gac_gather_launch(c->w, n, NULL, columns, w, c->n_out, n_left, stream, s->err));
    gac_algebra_clear(s, c->taken, (size_t)n_left);
    void *const old[] = { c->rest, c->product, (void *)(uintptr_t)c->w,
                          (void *)(uintptr_t)c->inputs, columns };
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        gac_algebra_give_back(s, old[i]);
    c->rest = rest;
    c->product = product;
    c->w = w;
    c->inputs = new_inputs;
    c->n = n_left;
    c->n_splits = count_splits(n_left, c->n_out);
    free(taken);
    free(left);
    free(inputs);
}

static void order_channels(gac_algebra *s, gac_channels *c)
{
    const int64_t n_inputs = c->n;
    int n_late = 0;
    for (int64_t step = 0; step < n_inputs && s->status == GAC_OK; step++) {
        gac_algebra_check(s, gac_channels_take_launch(c, step, n_late, s->c->cuda->stream, s->err));
        if (++n_late < GAC_CHANNELS_TOGETHER)
            continue;
        gac_algebra_gemm(s, true, false, c->n, c->n, n_late, -1, c->late_rest, c->late_rest, 1,
                         c->rest);
        gac_algebra_gemm(s, true, false, c->n_out, c->n, n_late, -1, c->late_product, c->late_rest,
                         1, c->product);
        const int64_t n_left = n_inputs - step - 1;
        if (c->n >= LEAST_TO_DROP && 4 * n_left <= 3 * c->n && n_left > 0)
            drop_taken(s, c, n_left);
        measure(s, c, step + 1);
        n_late = 0;
    }
}

/* Memory of the choice of groups. Group g has root (b, b), rows (b, n) and outputs
 * (n_out, b): with rest_gg = L L^T they are L, L^-1 rest_g and product_g L^-T. */
typedef struct groups {
    int64_t b, n_groups;
    double *root, *rows, *outputs;
    double *gains; /* (n_groups): what each explains; infos: 0 where L exists */
    int *infos;
    double *host_gains;
    int *host_infos;
    bool *taken;
} groups;

static void free_groups(groups *g)
{
    free(g->host_gains);
    free(g->host_infos);
    free(g->taken);
}

static void start_groups(gac_algebra *s, groups *g, const gac_channels *c, int64_t b)
{
    const int64_t n_groups = c->n / b;
    *g = (groups){ .b = b, .n_groups = n_groups };
    g->root = gac_algebra_numbers(s, b, b);
    g->rows = gac_algebra_numbers(s, b, c->n);
    g->outputs = gac_algebra_numbers(s, c->n_out, b);
    g->gains = gac_algebra_numbers(s, n_groups, 1);
    g->infos = gac_algebra_take(s, n_groups, 1, sizeof *g->infos);
    g->host_gains = calloc((size_t)n_groups + 1, sizeof *g->host_gains);
    g->host_infos = calloc((size_t)n_groups + 1, sizeof *g->host_infos);
    g->taken = calloc((size_t)n_groups + 1, sizeof *g->taken);
    if (!g->host_gains || !g->host_infos || !g->taken)
        gac_algebra_check(s, gac_error_no_memory(s->err));
}

/* Copies a block of columns to rows without gaps. */
static void copy_columns(gac_algebra *s, double *to, const double *from, int64_t n_rows,
                         int64_t n_cols, int64_t ld)
{
    const size_t width = (size_t)n_cols * sizeof *to;
    if (s->status == GAC_OK)
        gac_algebra_check_cuda(s,
                               cudaMemcpy2DAsync(to, width, from, (size_t)ld * sizeof *from, width,
                                                 (size_t)n_rows, cudaMemcpyDeviceToDevice,
                                                 s->c->cuda->stream),
                               "copy of a group");
}

/* Sets root, outputs, gains[i] and infos[i] for group i. To cuBLAS, which is column-major,
 * root is the upper triangle L^T, and outputs its transpose (b, n_out). */
static void weigh_group(gac_algebra *s, const gac_channels *c, const groups *g, int64_t i)
{
    const double one = 1;
    const int64_t b = g->b, at = i * b;
    copy_columns(s, g->root, c->rest + at * c->n + at, b, b, c->n);
    copy_columns(s, g->outputs, c->product + at, c->n_out, b, c->n);
    if (s->status == GAC_OK)
        gac_algebra_check(
            s, gac_cusolver_start_cholesky(s->c->cuda, b, g->root, g->infos + i, s->err));
    if (s->status == GAC_OK)
        gac_algebra_check_blas(s,
                               cublasDtrsm(s->c->cuda->blas, CUBLAS_SIDE_LEFT,
                                           CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_T,
                                           CUBLAS_DIAG_NON_UNIT, (int)b, (int)c->n_out, &one,
                                           g->root, (int)b, g->outputs, (int)b),
                               "cublasDtrsm");
    gac_algebra_dot(s, b * c->n_out, g->outputs, g->outputs, g->gains + i);
}

/* The group that explains most; -1 if none is left that has a root. */
static int64_t best_group(gac_algebra *s, const gac_channels *c, groups *g)
{
    int64_t best = -1;
    double most = -1;
    for (int64_t i = 0; i < g->n_groups; i++)
        if (!g->taken[i])
            weigh_group(s, c, g, i);
    gac_algebra_read(s, g->host_gains, g->gains, (size_t)g->n_groups * sizeof *g->gains);
    gac_algebra_read(s, g->host_infos, g->infos, (size_t)g->n_groups * sizeof *g->infos);
    for (int64_t i = 0; i < g->n_groups && s->status == GAC_OK; i++)
        if (!g->taken[i] && g->host_infos[i] == 0 && g->host_gains[i] > most) {
            most = g->host_gains[i];
            best = i;
        }
    return best;
}

static void order_groups(gac_algebra *s, const gac_channels *c, groups *g, int32_t *order)
{
    const double one = 1;
    const int64_t b = g->b;
    for (int64_t step = 0; step < g->n_groups && s->status == GAC_OK; step++) {
        const int64_t best = best_group(s, c, g);
        if (best < 0) {
            gac_algebra_fail(s, GAC_FAILED, "the Gram matrix is not positive");
            return;
        }
        weigh_group(s, c, g, best);
        gac_algebra_copy(s, g->rows, c->rest + best * b * c->n,
                         (size_t)(b * c->n) * sizeof(double));
        if (s->status == GAC_OK)
            gac_algebra_check_blas(s,
                                   cublasDtrsm(s->c->cuda->blas, CUBLAS_SIDE_RIGHT,
                                               CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
                                               CUBLAS_DIAG_NON_UNIT, (int)c->n, (int)b, &one,
                                               g->root, (int)b, g->rows, (int)c->n),
                                   "cublasDtrsm");
        gac_algebra_gemm(s, true, false, c->n, c->n, b, -1, g->rows, g->rows, 1, c->rest);
        gac_algebra_gemm(s, false, false, c->n_out, c->n, b, -1, g->outputs, g->rows, 1,
                         c->product);
        measure(s, c, step + 1);
        g->taken[best] = true;
        order[step] = (int32_t)best;
    }
}

void gac_algebra_order(gac_algebra *s, const gac_factor_job *job, const double *w,
                       const double *gram, double mean)
{
    const int64_t n_groups = job->n_in / job->block;
    gac_channels c;
    groups g = { 0 };
    start(s, &c, job, w, gram, mean);
    measure(s, &c, 0);
    if (job->block == 1) {
        order_channels(s, &c);
        gac_algebra_read(s, job->order, c.order, (size_t)n_groups * sizeof *job->order);
    } else {
        start_groups(s, &g, &c, job->block);
        order_groups(s, &c, &g, job->order);
        free_groups(&g);
    }
    gac_algebra_read(s, job->loss, c.loss, (size_t)(n_groups + 1) * sizeof *job->loss);
}

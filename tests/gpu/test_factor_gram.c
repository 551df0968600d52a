/* Gram matrices and rows_write on the GPU against the CPU. */
#include "test_factor_gpu.h"

#include "base/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct gram_case {
    const char *name;
    int64_t n_slices, size, n_rows;
    bool norm, residual;
} gram_case;

/* One device's part in a case. */
typedef struct side {
    gac_compute *compute;
    gac_matrix *matrix;
    gac_rows *rows, *out;
    gac_vector *norm;
    gac_gram *gram;
    double *sums, *magnitude; /* (n, n), (n) */
    float *read, *product;    /* (n_rows, n), (n_rows, 5) */
} side;

/* x (n_rows, n) in rows whose slices are stored longer. */
static float *spread(const float *x, int64_t n_rows, gac_axis in)
{
    const int64_t n = in.n_slices * in.size, width = in.n_slices * in.stored;
    float *out = zeros(n_rows * width, sizeof *out);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < n; i++)
            out[r * width + i / in.size * in.stored + i % in.size] = x[r * n + i];
    return out;
}

static gac_status run_side(side *s, const gram_case *c, const float *x, const float *norm,
                           const gac_host_tensor *weight, gac_error *err)
{
    const gac_compute_ops *ops = s->compute->ops;
    void *state = s->compute->state;
    gac_axis in = { c->n_slices, c->size, ops->stored(state, GAC_SIZE_HEAD, c->size) };
    if (c->n_slices == 1)
        in.stored = c->size;
    const int64_t n = c->n_slices * c->size, width = in.n_slices * in.stored;
    gac_linear_part part = { .weight = *weight };
    const gac_linear_module module = { .n_parts = 1, .parts = &part, .out = { 1, 5, 5 } };
    int32_t *ids = zeros(c->n_rows, sizeof *ids);
    float *spread_x = spread(x, c->n_rows, in);
    s->sums = zeros(n * n, sizeof *s->sums);
    s->magnitude = zeros(n, sizeof *s->magnitude);
    s->read = zeros(c->n_rows * width, sizeof *s->read);
    s->product = zeros(c->n_rows * 5, sizeof *s->product);
    gac_status status = ops->matrix_create(state, in, &module, 1, &s->matrix, err);
    if (status == GAC_OK)
        status = ops->rows_create(state, width, c->residual, &s->rows, err);
    if (status == GAC_OK)
        status = ops->rows_create(state, 5, false, &s->out, err);
    if (status == GAC_OK && c->norm)
        status = ops->vector_create(state, norm, n, &s->norm, err);
    if (status == GAC_OK)
        status = ops->gram_create(state, n, &s->gram, err);
    if (status == GAC_OK)
        status = ops->begin(state, ids, 1, c->n_rows, 0, err);
    if (status == GAC_OK)
        status = ops->rows_write(state, s->rows, 0, c->n_rows, spread_x, err);
    if (status == GAC_OK)
        status = ops->rows_read(state, s->rows, 0, c->n_rows, s->read, err);
    const gac_linear_call call = {
        .matrix = s->matrix, .x = s->rows, .norm = s->norm, .eps = 1e-5, .out = s->out
    };
    for (int i = 0; i < 2 && status == GAC_OK; i++) { /* sums add up; a product between them */
        status = ops->gram_add(state, &call, s->gram, err);
        if (status == GAC_OK)
            status = ops->linear(state, &call, err);
    }
    if (status == GAC_OK)
        status = ops->gram_read(state, s->gram, s->sums, s->magnitude, err);
    if (status == GAC_OK)
        status = ops->rows_read(state, s->out, 0, c->n_rows, s->product, err);
    judge(status != GAC_OK || memcmp(s->read, spread_x, (size_t)(c->n_rows * width) * 4) == 0,
          "rows as written", 0, 0);
    free(ids);
    free(spread_x);
    return status;
}

static void free_side(side *s)
{
    const gac_compute_ops *ops = s->compute->ops;
    ops->gram_free(s->compute->state, s->gram);
    ops->vector_free(s->compute->state, s->norm);
    ops->rows_free(s->compute->state, s->rows);
    ops->rows_free(s->compute->state, s->out);
    ops->matrix_free(s->compute->state, s->matrix);
    free(s->sums);
    free(s->magnitude);
    free(s->read);
    free(s->product);
}

/* x is exact in the half type, so that without a norm both devices sum the same numbers. */
static float *half_numbers(int64_t n, gac_dtype dtype)
{
    float *x = zeros(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const float v = (float)((random_number() + (i % 5 == 0)) * (1 + (double)(i % 7)));
        x[i] = dtype == GAC_DTYPE_F16 ? gac_f16_to_float(gac_f16_from_float(v))
                                      : gac_bf16_to_float(gac_bf16_from_float(v));
    }
    return x;
}

static void check_gram(pair *p, const gram_case *c)
{
    const int64_t n = c->n_slices * c->size;
    const double half = p->dtype == GAC_DTYPE_F16 ? 3e-3 : 2e-2, exact = 1e-12;
    gac_error err = GAC_ERROR_INIT;
    char name[160];
    float *x = half_numbers(c->n_rows * n, p->dtype), *norm = half_numbers(n, p->dtype);
    float *weight = half_numbers(5 * n, p->dtype);
    const gac_host_tensor w = { weight, GAC_DTYPE_F32, 5, n, "w" };
    side cpu = { .compute = &p->cpu }, gpu = { .compute = &p->gpu };
    snprintf(name, sizeof name, "gram %s n=%lld rows=%lld %s", c->name, (long long)n,
             (long long)c->n_rows, gac_dtype_name(p->dtype));
    if (!failed(run_side(&cpu, c, x, norm, &w, &err), name, &err) &&
        !failed(run_side(&gpu, c, x, norm, &w, &err), name, &err)) {
        below(name, distance_doubles(gpu.sums, cpu.sums, n * n), c->norm ? half : exact);
        below(name, distance_doubles(gpu.magnitude, cpu.magnitude, n), c->norm ? half : exact);
        below(name, distance_floats(gpu.product, cpu.product, c->n_rows * 5), half);
    }
    free_side(&cpu);
    free_side(&gpu);
    free(x);
    free(norm);
    free(weight);
}

/* What rows_write leaves behind a row is zero, whatever was there. */
static void check_within(pair *p)
{
    enum { WIDE = 128, N = 107, ROWS = 20 };
    const gac_compute_ops *ops = p->gpu.ops;
    void *state = p->gpu.state;
    gac_error err = GAC_ERROR_INIT;
    gac_rows *wide = NULL, *rows = NULL, *out = NULL;
    gac_matrix *matrix = NULL;
    float *bad = zeros(ROWS * WIDE, sizeof *bad), *x = half_numbers(ROWS * N, p->dtype);
    float *weight = half_numbers(5 * N, p->dtype), product[ROWS * 5];
    gac_linear_part part = { .weight = { weight, GAC_DTYPE_F32, 5, N, "w" } };
    const gac_linear_module module = { .n_parts = 1, .parts = &part, .out = { 1, 5, 5 } };
    const int32_t ids[ROWS] = { 0 };
    for (int i = 0; i < ROWS * WIDE; i++)
        bad[i] = INFINITY;
    gac_status status = ops->matrix_create(state, (gac_axis){ 1, N, N }, &module, 1, &matrix, &err);
    if (status == GAC_OK)
        status = ops->rows_create(state, WIDE, false, &wide, &err);
    if (status == GAC_OK)
        status = ops->rows_within(state, wide, N, &rows, &err);
    if (status == GAC_OK)
        status = ops->rows_create(state, 5, false, &out, &err);
    if (status == GAC_OK)
        status = ops->begin(state, ids, 1, ROWS, 0, &err);
    if (status == GAC_OK)
        status = ops->rows_write(state, wide, 0, ROWS, bad, &err);
    if (status == GAC_OK)
        status = ops->rows_write(state, rows, 0, ROWS, x, &err);
    const gac_linear_call call = { .matrix = matrix, .x = rows, .out = out };
    if (status == GAC_OK)
        status = ops->linear(state, &call, &err);
    if (status == GAC_OK)
        status = ops->rows_read(state, out, 0, ROWS, product, &err);
    if (!failed(status, "rows within rows", &err)) {
        double sum = 0;
        for (int i = 0; i < ROWS * 5; i++)
            sum += fabs((double)product[i]);
        judge(isfinite(sum) && sum > 0, "rows within rows", sum, 0);
    }
    ops->rows_free(state, rows);
    ops->rows_free(state, wide);
    ops->rows_free(state, out);
    ops->matrix_free(state, matrix);
    free(bad);
    free(x);
    free(weight);
}

void check_grams(pair *p, bool small)
{
    static const gram_case cases[] = {
        { "residual, norm", 1, 256, 300, true, true },
        { "residual", 1, 192, 33, false, true }, /* converted to half, without a norm */
        { "residual, odd, norm", 1, 107, 70, true, true },
        { "one row", 1, 64, 1, true, true },
        { "few rows", 1, 96, 3, false, false },
        { "padded slices", 5, 27, 130, false, false },
        { "odd", 1, 333, 41, false, false },
        { "strips", 1, 2100, 50, false, false }, /* more than GRAM_STRIP inputs */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!small || cases[i].size < 300)
            check_gram(p, &cases[i]);
    check_within(p);
}

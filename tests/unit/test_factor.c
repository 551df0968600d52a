/* Factoring weights (gac_factor_job) and Gram matrices on the CPU. What a job says that it
 * loses must be what its result loses, and no other result of the same kind may lose less. */
#include "compute_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_N = 96 };

/* A weight (n_out, n_in) and the Gram matrix of n_rows inputs whose numbers depend on each
 * other. */
typedef struct weight_case {
    int64_t n_out, n_in;
    float *weight;
    double *gram;
} weight_case;

static weight_case make_case(int64_t n_out, int64_t n_in, int64_t n_rows)
{
    weight_case c = { n_out, n_in, lab_floats(n_out * n_in), lab_alloc(n_in * n_in, 8) };
    float *rows = lab_floats(n_rows * n_in);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < n_in; i++) {
            float *row = rows + r * n_in;
            row[i] = row[i] * (1 + 4 * (float)(i % 7)) + (i > 2 ? 0.7f * row[i - 3] : 0);
        }
    for (int64_t i = 0; i < n_in; i++)
        for (int64_t j = 0; j < n_in; j++)
            for (int64_t r = 0; r < n_rows; r++)
                c.gram[i * n_in + j] += (double)rows[r * n_in + i] * (double)rows[r * n_in + j];
    return c;
}

/* tr((W - V) G (W - V)^T) for another weight V. */
static double lost(const weight_case *c, const double *v)
{
    double sum = 0;
    for (int64_t o = 0; o < c->n_out; o++)
        for (int64_t i = 0; i < c->n_in; i++)
            for (int64_t j = 0; j < c->n_in; j++)
                sum += ((double)c->weight[o * c->n_in + i] - v[o * c->n_in + i]) *
                       c->gram[i * c->n_in + j] *
                       ((double)c->weight[o * c->n_in + j] - v[o * c->n_in + j]);
    return sum;
}

static gac_compute open_cpu(void)
{
    gac_compute compute = GAC_COMPUTE_INIT;
    gac_compute_options how = GAC_COMPUTE_OPTIONS_INIT;
    gac_error err = GAC_ERROR_INIT;
    how.max_rows = 64;
    assert_int_equal(gac_compute_open("cpu", &how, &compute, &err), GAC_OK);
    return compute;
}

static void run_job(gac_compute *compute, const gac_factor_job *job)
{
    gac_error err = GAC_ERROR_INIT;
    if (compute->ops->factor(compute->state, job, 1, &err) != GAC_OK)
        fail_msg("%s", err.text);
}

/* Both sides, wide and tall, few and many inputs, so that the Gram matrix is singular too. */
static void test_spectrum(void **state)
{
    static const int64_t sizes[][3] = { { 24, 40, 200 }, { 40, 24, 200 }, { 30, 30, 90 },
                                        { 24, 40, 12 },  { 40, 24, 12 },  { 1, 8, 20 } };
    (void)state;
    gac_compute compute = open_cpu();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        weight_case c = make_case(sizes[s][0], sizes[s][1], sizes[s][2]);
        int64_t n = c.n_out < c.n_in ? c.n_out : c.n_in;
        double *energy = lab_alloc(n, 8), *v = lab_alloc(c.n_out * c.n_in, 8);
        double zero = lost(&c, v), tail = 0;
        float *basis = lab_floats(c.n_out * n), *first = lab_floats(n * c.n_in);
        gac_factor_job job = { .kind = GAC_FACTOR_SPECTRUM,
                               .n_out = c.n_out,
                               .n_in = c.n_in,
                               .weight = c.weight,
                               .gram = c.gram,
                               .energy = energy,
                               .basis = basis,
                               .name = "w" };
        run_job(&compute, &job);
        for (int64_t rank = n; rank >= 1; rank--) {
            gac_factor_job project = { .kind = GAC_FACTOR_PROJECT,
                                       .n_out = c.n_out,
                                       .n_in = c.n_in,
                                       .weight = c.weight,
                                       .basis = basis,
                                       .basis_stride = n,
                                       .n_kept = rank,
                                       .made = first,
                                       .name = "w" };
            run_job(&compute, &project);
            for (int64_t o = 0; o < c.n_out; o++)
                for (int64_t i = 0; i < c.n_in; i++) {
                    v[o * c.n_in + i] = 0;
                    for (int64_t r = 0; r < rank; r++)
                        v[o * c.n_in + i] +=
                            (double)basis[o * n + r] * (double)first[r * c.n_in + i];
                }
            assert_true(fabs(lost(&c, v) - tail) <= 1e-6 * zero); /* the basis is in F32 */
            tail += energy[rank - 1];
            assert_true(rank == 1 || energy[rank - 1] <= energy[rank - 2]);
        }
        assert_true(fabs(tail - zero) <= 1e-9 * zero);
    }
    gac_compute_close(&compute);
}

/* What is lost if inputs K are kept: tr(W (G - G_K G_KK^-1 G_K^T) W^T) by elimination. */
static double kept_loss(const weight_case *c, const bool *kept)
{
    static double rest[MAX_N * MAX_N], column[MAX_N];
    double sum = 0;
    memcpy(rest, c->gram, (size_t)(c->n_in * c->n_in) * 8);
    for (int64_t k = 0; k < c->n_in; k++) {
        double pivot = rest[k * c->n_in + k];
        if (!kept[k] || pivot <= 1e-9)
            continue;
        for (int64_t i = 0; i < c->n_in; i++)
            column[i] = rest[i * c->n_in + k];
        for (int64_t i = 0; i < c->n_in; i++)
            for (int64_t j = 0; j < c->n_in; j++)
                rest[i * c->n_in + j] -= column[i] * column[j] / pivot;
    }
    for (int64_t o = 0; o < c->n_out; o++)
        for (int64_t i = 0; i < c->n_in; i++)
            for (int64_t j = 0; j < c->n_in; j++)
                sum += (double)c->weight[o * c->n_in + i] * rest[i * c->n_in + j] *
                       (double)c->weight[o * c->n_in + j];
    return sum;
}

/* Every step takes the group after which least is lost, and the losses are true. 80 inputs are
 * more than are updated together. */
static void test_channels(void **state)
{
    static const int64_t sizes[][3] = {
        { 12, 80, 1 }, { 20, 33, 1 }, { 12, 48, 8 }, { 9, 30, 10 }
    };
    (void)state;
    gac_compute compute = open_cpu();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        weight_case c = make_case(sizes[s][0], sizes[s][1], 400);
        int64_t block = sizes[s][2], n_groups = c.n_in / block;
        int32_t order[MAX_N];
        double loss[MAX_N + 1];
        bool kept[MAX_N] = { false };
        gac_factor_job job = { .kind = GAC_FACTOR_CHANNELS,
                               .n_out = c.n_out,
                               .n_in = c.n_in,
                               .weight = c.weight,
                               .gram = c.gram,
                               .block = block,
                               .order = order,
                               .loss = loss,
                               .name = "w" };
        run_job(&compute, &job);
        double whole = kept_loss(&c, kept);
        assert_true(fabs(loss[0] - whole) <= 1e-6 * whole);
        for (int64_t step = 0; step < n_groups; step++) {
            double least = INFINITY;
            for (int64_t g = 0; g < n_groups && step < 12; g++) {
                if (kept[g * block])
                    continue;
                memset(kept + g * block, true, (size_t)block);
                least = fmin(least, kept_loss(&c, kept));
                memset(kept + g * block, false, (size_t)block);
            }
            assert_in_range(order[step], 0, n_groups - 1);
            assert_false(kept[order[step] * block]);
            memset(kept + order[step] * block, true, (size_t)block);
            double now = kept_loss(&c, kept);
            assert_true(now <= least + 1e-5 * whole);
            assert_true(fabs(loss[step + 1] - now) <= 1e-5 * whole);
        }
    }
    gac_compute_close(&compute);
}

/* A refit loses what CHANNELS says, and any change of it loses more. */
static void test_refit(void **state)
{
    (void)state;
    gac_compute compute = open_cpu();
    weight_case c = make_case(10, 24, 300);
    const int32_t inputs[] = { 1, 2, 5, 7, 8, 13, 20, 23 };
    enum { N_KEPT = sizeof inputs / sizeof *inputs };
    bool kept[24] = { false };
    float made[10 * N_KEPT];
    double *v = lab_alloc(c.n_out * c.n_in, 8);
    gac_factor_job job = { .kind = GAC_FACTOR_REFIT,
                           .n_out = c.n_out,
                           .n_in = c.n_in,
                           .weight = c.weight,
                           .gram = c.gram,
                           .kept = inputs,
                           .n_kept = N_KEPT,
                           .made = made,
                           .name = "w" };
    run_job(&compute, &job);
    for (int i = 0; i < N_KEPT; i++) {
        kept[inputs[i]] = true;
        for (int64_t o = 0; o < c.n_out; o++)
            v[o * c.n_in + inputs[i]] = (double)made[o * N_KEPT + i];
    }
    double best = lost(&c, v);
    assert_true(fabs(best - kept_loss(&c, kept)) <= 1e-5 * best);
    for (int i = 0; i < N_KEPT; i++)
        for (int64_t o = 0; o < c.n_out; o++)
            for (int sign = -1; sign <= 1; sign += 2) {
                double *at = &v[o * c.n_in + inputs[i]], was = *at;
                *at += sign * 0.01;
                assert_true(lost(&c, v) > best);
                *at = was;
            }
    gac_compute_close(&compute);
}

/* A Gram matrix that rounding made slightly negative is refitted with a greater ridge. One
 * that no inputs can have is refused. */
static void test_refit_of_a_singular_matrix(void **state)
{
    (void)state;
    gac_compute compute = open_cpu();
    float weight[] = { 1, 2 }, made[2];
    double gram[] = { 1, 1 + 1e-7, 1 + 1e-7, 1 };
    const int32_t inputs[] = { 0, 1 };
    gac_error err = GAC_ERROR_INIT;
    gac_factor_job job = { .kind = GAC_FACTOR_REFIT,
                           .n_out = 1,
                           .n_in = 2,
                           .weight = weight,
                           .gram = gram,
                           .kept = inputs,
                           .n_kept = 2,
                           .made = made,
                           .name = "o_proj" };
    run_job(&compute, &job);
    assert_true(fabs((double)made[0] + (double)made[1] - 3) < 1e-4);
    gram[1] = gram[2] = 2;
    assert_int_equal(compute.ops->factor(compute.state, &job, 1, &err), GAC_FAILED);
    assert_string_equal(err.text, "o_proj: the Gram matrix is not positive");
    job.gram = NULL;
    assert_int_equal(compute.ops->factor(compute.state, &job, 1, &err), GAC_USAGE);
    gac_compute_close(&compute);
}

/* Numbers that are not finite are refused, with the name. */
static void test_not_finite(void **state)
{
    (void)state;
    gac_compute compute = open_cpu();
    weight_case c = make_case(8, 8, 40);
    double energy[8];
    float basis[64];
    gac_error err = GAC_ERROR_INIT;
    gac_factor_job job = { .kind = GAC_FACTOR_SPECTRUM,
                           .n_out = 8,
                           .n_in = 8,
                           .weight = c.weight,
                           .gram = c.gram,
                           .energy = energy,
                           .basis = basis,
                           .name = "q_proj" };
    c.gram[3] = NAN;
    assert_int_equal(compute.ops->factor(compute.state, &job, 1, &err), GAC_BAD_INPUT);
    assert_string_equal(err.text, "q_proj: a weight or an activation is not finite");
    c.gram[3] = 0;
    c.weight[5] = INFINITY;
    assert_int_equal(compute.ops->factor(compute.state, &job, 1, &err), GAC_BAD_INPUT);
    gac_compute_close(&compute);
}

/* Inputs that are all zero lose nothing, whatever is kept. */
static void test_dead_inputs(void **state)
{
    (void)state;
    gac_compute compute = open_cpu();
    weight_case c = make_case(12, 8, 40);
    double energy[8], loss[9];
    float basis[96];
    int32_t order[8];
    memset(c.gram, 0, 64 * sizeof *c.gram);
    gac_factor_job jobs[] = { { .kind = GAC_FACTOR_CHANNELS,
                                .n_out = 12,
                                .n_in = 8,
                                .weight = c.weight,
                                .gram = c.gram,
                                .block = 1,
                                .order = order,
                                .loss = loss,
                                .name = "w" },
                              { .kind = GAC_FACTOR_SPECTRUM,
                                .n_out = 12,
                                .n_in = 8,
                                .weight = c.weight,
                                .gram = c.gram,
                                .energy = energy,
                                .basis = basis,
                                .name = "w" } };
    run_job(&compute, &jobs[0]);
    run_job(&compute, &jobs[1]);
    for (int i = 0; i < 8; i++)
        assert_true(energy[i] == 0);
    for (int i = 0; i < 96; i++)
        assert_true(isfinite(basis[i]));
    gac_compute_close(&compute);
}

/* The sums of a linear call's inputs, with a norm and padded slices, over several chunks. */
static void test_gram(void **state)
{
    enum { N = 12, ROWS = 40 };
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_compute compute = open_cpu();
    const gac_compute_ops *ops = compute.ops;
    gac_axis in = { 3, 4, 4 };
    gac_linear_part part = { .weight = lab_tensor(GAC_DTYPE_F32, 5, N) };
    gac_linear_module module = { .n_parts = 1, .parts = &part, .out = { 1, 5, 5 } };
    gac_matrix *matrix = NULL;
    gac_rows *rows = NULL;
    gac_gram *gram = NULL;
    float *x = lab_floats(ROWS * N);
    int32_t ids[ROWS] = { 0 };
    double sums[N * N], magnitude[N];
    assert_int_equal(ops->matrix_create(compute.state, in, &module, 1, &matrix, &err), GAC_OK);
    assert_int_equal(ops->rows_create(compute.state, N, true, &rows, &err), GAC_OK);
    assert_int_equal(ops->gram_create(compute.state, N, &gram, &err), GAC_OK);
    assert_int_equal(ops->begin(compute.state, ids, 1, ROWS, 0, &err), GAC_OK);
    assert_int_equal(ops->rows_write(compute.state, rows, 0, ROWS, x, &err), GAC_OK);
    gac_linear_call call = { .matrix = matrix, .x = rows };
    for (int i = 0; i < 2; i++) /* sums add up */
        assert_int_equal(ops->gram_add(compute.state, &call, gram, &err), GAC_OK);
    assert_int_equal(ops->gram_read(compute.state, gram, sums, magnitude, &err), GAC_OK);
    for (int i = 0; i < N; i++) {
        double size = 0;
        for (int r = 0; r < ROWS; r++)
            size += 2 * fabs((double)x[r * N + i]);
        assert_true(fabs(magnitude[i] - size) < 1e-9 * size);
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++)
                sum += 2 * (double)x[r * N + i] * (double)x[r * N + j];
            assert_true(fabs(sums[i * N + j] - sum) < 1e-9 * ROWS);
        }
    }
    ops->gram_free(compute.state, gram);
    ops->rows_free(compute.state, rows);
    ops->matrix_free(compute.state, matrix);
    gac_compute_close(&compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_spectrum, lab_teardown),
        cmocka_unit_test_teardown(test_channels, lab_teardown),
        cmocka_unit_test_teardown(test_refit, lab_teardown),
        cmocka_unit_test_teardown(test_refit_of_a_singular_matrix, lab_teardown),
        cmocka_unit_test_teardown(test_not_finite, lab_teardown),
        cmocka_unit_test_teardown(test_dead_inputs, lab_teardown),
        cmocka_unit_test_teardown(test_gram, lab_teardown),
    };
    lab_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Linear calls, embedding, logits and losses on the CPU. test_attend.c tests attention.
 * `reference` must equal plain FP64 loops bit for bit, and `cpu` must be close to
 * `reference`. */
#include "compute_lab.h"

#define TOLERANCE 1e-5 /* of cpu, relative to the largest output: F32 sums of up to 3000 terms */
#define MAX_PARTS 4

/* Modules that share an input, one call on them, and its operands. */
typedef struct linear_case {
    gac_axis in;
    int n_modules;
    gac_linear_module modules[3];
    gac_linear_part *parts[3]; /* (MAX_PARTS) parts of each module */
    gac_linear_mode mode;
    int64_t n_rows, out_width;
    float *x, *residual, *norm; /* norm may be NULL */
} linear_case;

static int64_t numbers(gac_axis axis)
{
    return axis.n_slices * axis.size;
}

enum { DENSE, PAIR, PARTS };

/* Adds a module, with or without biases. */
static void add_module(linear_case *c, int kind, gac_axis out)
{
    gac_linear_module *module = &c->modules[c->n_modules];
    gac_linear_part *parts = lab_alloc(MAX_PARTS, sizeof *parts);
    c->parts[c->n_modules++] = parts;
    int64_t n_in = numbers(c->in), n_out = numbers(out), start = 0;
    *module = (gac_linear_module){ .n_parts = 1, .parts = parts, .out = out };
    if (kind == PARTS)
        module->n_parts = (int)(out.n_slices < MAX_PARTS ? out.n_slices : MAX_PARTS);
    for (int p = 0; p < module->n_parts; p++) {
        int64_t rank = kind == DENSE ? n_in : lab_int(1, n_in);
        int64_t n = p + 1 < module->n_parts ? out.size : n_out;
        parts[p] = (gac_linear_part){ .weight = lab_tensor(lab_dtype(), n, rank), .start = start };
        if (lab_int(0, 1))
            parts[p].bias = lab_tensor(lab_dtype(), 1, n);
        start += kind == DENSE ? 0 : rank;
        n_out -= n;
    }
    if (kind == DENSE)
        return;
    module->first = lab_tensor(lab_dtype(), start, n_in);
    if (lab_int(0, 1))
        module->first_bias = lab_tensor(lab_dtype(), 1, start);
}

static void finish_case(linear_case *c, gac_linear_mode mode, int64_t n_rows, bool normed)
{
    c->mode = mode;
    c->n_rows = n_rows;
    for (int i = 0; i < (mode == GAC_LINEAR_GATED ? 1 : c->n_modules); i++)
        c->out_width += c->modules[i].out.n_slices * c->modules[i].out.stored;
    c->x = lab_floats(n_rows * numbers(c->in));
    c->residual = lab_floats(n_rows * c->out_width);
    c->norm = normed ? lab_floats(numbers(c->in)) : NULL;
}

/* Creates modules of random kinds and sizes. Some slices are padded. */
static linear_case random_case(gac_linear_mode mode, int n_modules, int64_t n_rows, int64_t most)
{
    linear_case c = { .in = { lab_int(1, 3), lab_int(1, most), 0 } };
    c.in.stored = c.in.size + lab_int(0, 1) * lab_int(0, 5);
    gac_axis out = { lab_int(1, 4), lab_int(1, most), 0 };
    for (int i = 0; i < n_modules; i++) {
        if (mode != GAC_LINEAR_GATED || i == 0) {
            out = (gac_axis){ lab_int(1, 4), lab_int(1, most), 0 };
            out.stored = out.size + lab_int(0, 1) * lab_int(0, 5);
        }
        add_module(&c, (int)lab_int(DENSE, PARTS), out);
    }
    finish_case(&c, mode, n_rows, lab_int(0, 1));
    return c;
}

/* Runs the call and returns its output rows, (n_rows, out_width). */
static float *run_into(lab *l, const linear_case *c, gac_rows *out)
{
    const gac_compute_ops *ops = l->compute.ops;
    void *state = l->compute.state;
    gac_matrix *matrix = NULL;
    float *result = lab_alloc(c->n_rows * c->out_width, sizeof *result);
    gac_rows *x = lab_rows(l, c->in, c->x, 1, c->n_rows, 0);
    gac_vector *norm = c->norm ? lab_vector(l, c->norm, numbers(c->in)) : NULL;
    LAB_OK(l, ops->matrix_create(state, c->in, c->modules, c->n_modules, &matrix, &l->err));
    gac_linear_call call = {
        .matrix = matrix, .x = x, .norm = norm, .eps = 1e-5, .out = out, .mode = c->mode
    };
    LAB_OK(l, ops->linear(state, &call, &l->err));
    LAB_OK(l, ops->finish(state, &l->err));
    LAB_OK(l, ops->rows_read(state, out, 0, c->n_rows, result, &l->err));
    ops->matrix_free(state, matrix);
    ops->vector_free(state, norm);
    ops->rows_free(state, x);
    return result;
}

static float *run_case(lab *l, const linear_case *c)
{
    gac_axis whole = { 1, c->out_width, c->out_width };
    gac_rows *out = lab_rows(l, whole, c->residual, 1, c->n_rows, 0);
    float *result = run_into(l, c, out);
    l->compute.ops->rows_free(l->compute.state, out);
    return result;
}

static double weight_at(const gac_host_tensor *t, int64_t row, int64_t col)
{
    return gac_dtype_load(t->data, t->dtype, row * t->n_cols + col);
}

/* y = x W^T + bias, with plain loops. */
static void plain_product(const float *x, const gac_host_tensor *w, const gac_host_tensor *bias,
                          float *y)
{
    for (int64_t j = 0; j < w->n_rows; j++) {
        double sum = 0;
        for (int64_t i = 0; i < w->n_cols; i++)
            sum += (double)x[i] * weight_at(w, j, i);
        y[j] = (float)(bias->data ? sum + weight_at(bias, 0, j) : sum);
    }
}

/* Computes one row of a module's outputs with plain loops. */
static void plain_module(const gac_linear_module *module, const float *x, float *y)
{
    float *latent = NULL;
    if (module->first.data) {
        latent = lab_alloc(module->first.n_rows, sizeof *latent);
        plain_product(x, &module->first, &module->first_bias, latent);
    }
    for (int p = 0; p < module->n_parts; p++) {
        const gac_linear_part *part = &module->parts[p];
        plain_product((latent ? latent : x) + part->start, &part->weight, &part->bias, y);
        y += part->weight.n_rows;
    }
}

static void plain_norm(const linear_case *c, const float *x, float *out)
{
    double sum = 0;
    int64_t n = numbers(c->in);
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double factor = 1 / sqrt(sum / (double)n + 1e-5);
    for (int64_t i = 0; i < n; i++)
        out[i] = c->norm ? (float)((double)x[i] * factor * (double)c->norm[i]) : x[i];
}

static float *plain_case(const linear_case *c)
{
    float *result = lab_alloc(c->n_rows * c->out_width, sizeof *result);
    float *y = lab_alloc(8 * c->out_width + 8, sizeof *y);
    float *x = lab_alloc(numbers(c->in), sizeof *x);
    for (int64_t row = 0; row < c->n_rows; row++) {
        float *out = result + row * c->out_width, *to = y;
        plain_norm(c, c->x + row * numbers(c->in), x);
        memcpy(out, c->residual + row * c->out_width, (size_t)c->out_width * sizeof *out);
        for (int m = 0; m < c->n_modules; m++) {
            plain_module(&c->modules[m], x, to);
            to += numbers(c->modules[m].out);
        }
        const float *from = y;
        for (int m = 0; m < (c->mode == GAC_LINEAR_GATED ? 1 : c->n_modules); m++) {
            const gac_axis axis = c->modules[m].out;
            for (int64_t i = 0; i < axis.n_slices * axis.stored; i++, out++) {
                bool pad = i % axis.stored >= axis.size;
                if (pad && c->mode == GAC_LINEAR_ADD)
                    continue;
                float value = pad ? 0 : *from++;
                if (!pad && c->mode == GAC_LINEAR_GATED) {
                    double gate = (double)value;
                    value = (float)(gate / (1 + exp(-gate))) * from[numbers(axis) - 1];
                }
                *out = c->mode == GAC_LINEAR_ADD ? *out + value : value;
            }
        }
    }
    return result;
}

static void check_case(const linear_case *c, const char *what)
{
    lab exact = lab_open("reference", (int)lab_int(1, 3), c->n_rows);
    lab fast = lab_open("cpu", (int)lab_int(1, 3), c->n_rows);
    float *expected = plain_case(c), *reference = run_case(&exact, c), *cpu = run_case(&fast, c);
    same_bits(reference, expected, c->n_rows * c->out_width, what);
    near_by(cpu, expected, c->n_rows * c->out_width, TOLERANCE, what);
    gac_compute_close(&exact.compute);
    gac_compute_close(&fast.compute);
}

static void linear_is_what_it_says(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        linear_case set = random_case(GAC_LINEAR_SET, (int)lab_int(1, 3), lab_int(1, 20), 40);
        linear_case add = random_case(GAC_LINEAR_ADD, 1, lab_int(1, 20), 40);
        linear_case gated = random_case(GAC_LINEAR_GATED, 2, lab_int(1, 20), 40);
        check_case(&set, "set");
        check_case(&add, "add");
        check_case(&gated, "gated");
    }
    /* Several panels, conversion blocks and chunks of rows. */
    linear_case wide = { .in = { 1, 1100, 1100 } };
    add_module(&wide, DENSE, (gac_axis){ 1, 700, 700 });
    finish_case(&wide, GAC_LINEAR_SET, 3, true);
    check_case(&wide, "wide");
    linear_case tall = { .in = { 1, 33, 33 } };
    add_module(&tall, PAIR, (gac_axis){ 1, 70, 70 });
    finish_case(&tall, GAC_LINEAR_ADD, GAC_ROW_CHUNK * 2 + 77, false);
    check_case(&tall, "tall");
}

/* Biases over several blocks of outputs, for few rows and for many. */
static void biases_are_added(void **state)
{
    (void)state;
    for (int64_t n_rows = 1; n_rows <= 4; n_rows++) {
        linear_case c = { .in = { 1, 20, 20 } };
        add_module(&c, DENSE, (gac_axis){ 1, 150, 150 });
        c.parts[0][0].bias = lab_tensor(GAC_DTYPE_F32, 1, 150);
        finish_case(&c, GAC_LINEAR_ADD, n_rows, false);
        check_case(&c, "biases");
    }
}

/* More rows than a chunk, with padded slices. */
static void chunks_follow_each_other(void **state)
{
    (void)state;
    linear_case c = { .in = { 1, 9, 9 } };
    add_module(&c, DENSE, (gac_axis){ 3, 5, 8 });
    finish_case(&c, GAC_LINEAR_SET, GAC_ROW_CHUNK + 3, false);
    check_case(&c, "chunks");
}

/* Single rows, any number of threads and any vector size give the same bits. */
static void reference_has_one_answer(void **state)
{
    (void)state;
    linear_case c = { .in = { 1, 150, 150 } };
    add_module(&c, PARTS, (gac_axis){ 3, 50, 50 });
    add_module(&c, DENSE, (gac_axis){ 1, 90, 90 });
    finish_case(&c, GAC_LINEAR_SET, GAC_ROW_CHUNK + 45, true);
    lab one = lab_open("reference", 1, c.n_rows);
    float *expected = run_case(&one, &c);
    for (int n_threads = 2; n_threads <= 5; n_threads++) {
        lab more = lab_open("reference", n_threads, c.n_rows);
        same_bits(run_case(&more, &c), expected, c.n_rows * c.out_width, "threads");
        gac_compute_close(&more.compute);
    }
    for (int i = 0; gac_cpu_kernels_choice(i); i++) {
        ((gac_cpu_compute *)one.compute.state)->kernels = gac_cpu_kernels_choice(i);
        same_bits(run_case(&one, &c), expected, c.n_rows * c.out_width,
                  gac_cpu_kernels_choice(i)->name);
    }
    for (int i = 0; i < 20; i++) {
        linear_case part = c;
        int64_t first = lab_int(0, c.n_rows - 9);
        part.x += first * numbers(c.in);
        part.n_rows = lab_int(1, 9);
        same_bits(run_case(&one, &part), expected + first * c.out_width, part.n_rows * c.out_width,
                  "rows by themselves");
    }
    gac_compute_close(&one.compute);
}

/* Pads the ranks with zeros, in the first factor and in the parts that read it. */
static linear_case with_padded_ranks(const linear_case *c)
{
    linear_case padded = *c;
    for (int m = 0; m < c->n_modules; m++) {
        gac_linear_module *module = &padded.modules[m];
        module->parts = padded.parts[m] = lab_alloc(MAX_PARTS, sizeof *module->parts);
        memcpy(padded.parts[m], c->parts[m], MAX_PARTS * sizeof *module->parts);
        int64_t moved = 0;
        for (int p = 0; p < module->n_parts && module->first.data; p++) {
            gac_linear_part *part = &padded.parts[m][p];
            int64_t n = lab_int(0, 9), at = lab_int(0, part->weight.n_cols);
            part->start += moved;
            module->first = lab_padded(&module->first, part->start + at, n, 0, 0);
            if (module->first_bias.data)
                module->first_bias = lab_padded(&module->first_bias, 0, 0, part->start + at, n);
            part->weight = lab_padded(&part->weight, 0, 0, at, n);
            moved += n;
        }
    }
    return padded;
}

static void zeros_in_ranks_change_nothing(void **state)
{
    (void)state;
    lab l = lab_open("reference", 2, 64);
    for (int i = 0; i < 10; i++) {
        linear_case c = { .in = { 1, lab_int(1, 60), 0 } };
        c.in.stored = c.in.size;
        add_module(&c, PARTS, (gac_axis){ 4, 11, 11 });
        add_module(&c, PAIR, (gac_axis){ 2, 7, 7 });
        finish_case(&c, GAC_LINEAR_SET, lab_int(1, 20), lab_int(0, 1));
        linear_case padded = with_padded_ranks(&c);
        same_bits(run_case(&l, &padded), run_case(&l, &c), c.n_rows * c.out_width, "ranks");
    }
    gac_compute_close(&l.compute);
}

/* gate, up and down of one width, and the same padded with zeros. */
static void zeros_in_widths_change_nothing(void **state)
{
    (void)state;
    lab l = lab_open("reference", 2, 64);
    for (int i = 0; i < 10; i++) {
        int64_t n_in = lab_int(1, 50), width = lab_int(1, 90), n_zeros = lab_int(1, 20);
        int64_t at = lab_int(0, width), n_rows = lab_int(1, 20);
        float *out[2];
        linear_case up = { .in = { 1, n_in, n_in } }, down = { .in = { 1, width, width } };
        add_module(&up, DENSE, (gac_axis){ 1, width, width });
        add_module(&up, DENSE, (gac_axis){ 1, width, width });
        up.parts[0][0].bias.data = up.parts[1][0].bias.data = NULL;
        finish_case(&up, GAC_LINEAR_GATED, n_rows, true);
        add_module(&down, DENSE, (gac_axis){ 1, n_in, n_in });
        finish_case(&down, GAC_LINEAR_ADD, n_rows, false);
        for (int padded = 0; padded < 2; padded++) {
            for (int m = 0; m < 2; m++) {
                if (padded)
                    up.parts[m][0].weight = lab_padded(&up.parts[m][0].weight, at, n_zeros, 0, 0);
            }
            if (padded) {
                down.parts[0][0].weight = lab_padded(&down.parts[0][0].weight, 0, 0, at, n_zeros);
                up.out_width = width + n_zeros;
                up.modules[0].out = up.modules[1].out = down.in =
                    (gac_axis){ 1, width + n_zeros, width + n_zeros };
                up.residual = lab_floats(n_rows * up.out_width);
            }
            down.x = run_case(&l, &up);
            out[padded] = run_case(&l, &down);
        }
        same_bits(out[1], out[0], n_rows * n_in, "widths");
    }
    gac_compute_close(&l.compute);
}

/* Logits and losses. */

static void check_logits(const char *name, const linear_case *c, int64_t first, int64_t step,
                         int64_t n, double tolerance)
{
    lab l = lab_open(name, 2, c->n_rows);
    const gac_compute_ops *ops = l.compute.ops;
    void *state = l.compute.state;
    int64_t n_vocab = numbers(c->modules[0].out);
    gac_matrix *matrix = NULL;
    int32_t *targets = lab_alloc(n, sizeof *targets);
    float *logits = lab_alloc(n * n_vocab, sizeof *logits), *expected = plain_case(c);
    double *losses = lab_alloc(n, sizeof *losses);
    gac_rows *x = lab_rows(&l, c->in, c->x, 1, c->n_rows, 0);
    gac_vector *norm = lab_vector(&l, c->norm, numbers(c->in));
    LAB_OK(&l, ops->matrix_create(state, c->in, c->modules, 1, &matrix, &l.err));
    gac_linear_call call = {
        .matrix = matrix, .x = x, .norm = norm, .eps = 1e-5, .out = NULL, .mode = GAC_LINEAR_SET
    };
    LAB_OK(&l, ops->logits(state, &call, first, step, n, &l.err));
    LAB_OK(&l, ops->logits_read(state, logits, &l.err));
    for (int64_t i = 0; i < n; i++)
        targets[i] = (int32_t)lab_int(0, n_vocab - 1);
    LAB_OK(&l, ops->losses(state, targets, losses, &l.err));
    for (int64_t i = 0; i < n; i++) {
        const float *row = expected + (first + i * step) * n_vocab;
        double sum = 0;
        near_by(logits + i * n_vocab, row, n_vocab, tolerance, name);
        for (int64_t j = 0; j < n_vocab; j++)
            sum += exp((double)row[j]);
        if (!(fabs(losses[i] - (log(sum) - (double)row[targets[i]])) <= tolerance * 10 + 1e-12))
            fail_msg("%s: loss %lld is %.17g", name, (long long)i, losses[i]);
    }
    targets[0] = (int32_t)n_vocab;
    assert_int_equal(ops->losses(state, targets, losses, &l.err), GAC_BAD_INPUT);
    assert_int_equal(ops->logits(state, &call, first, step, n + c->n_rows, &l.err), GAC_USAGE);
    assert_int_equal(ops->logits(state, &call, 1, 1, c->n_rows, &l.err), GAC_USAGE);
    ops->matrix_free(state, matrix);
    ops->vector_free(state, norm);
    ops->rows_free(state, x);
    gac_compute_close(&l.compute);
}

static void logits_and_losses(void **state)
{
    (void)state;
    linear_case c = { .in = { 1, 48, 48 } };
    add_module(&c, DENSE, (gac_axis){ 1, 1500, 1500 });
    finish_case(&c, GAC_LINEAR_SET, 31, true);
    check_logits("reference", &c, 3, 2, 14, 0);
    check_logits("cpu", &c, 3, 2, 14, TOLERANCE);
    check_logits("cpu", &c, 30, 1, 1, TOLERANCE);
    check_logits("reference", &c, 0, 1, 31, 0);
}

/* Kernels. */

/* With a factor and without one. */
static void gelus_are_close(const gac_cpu_kernels *kernels)
{
    for (int64_t n = 1; n < 70; n++) {
        float *x = lab_floats(n), *y = lab_floats(n), *z = lab_alloc(n, sizeof *z);
        for (int64_t j = 0; j < n; j++)
            x[j] *= (float)lab_int(1, 25);
        for (int with = 0; with < 2; with++) {
            kernels->gelu_tanh(x, with ? y : NULL, n, z);
            for (int64_t j = 0; j < n; j++) {
                double v = (double)x[j];
                double e = 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v)));
                e *= with ? (double)y[j] : 1;
                assert_true(fabs((double)z[j] - e) <= 1e-6 * fabs(e) + 1e-7);
            }
        }
    }
}

static void exps_are_close(void **state)
{
    (void)state;
    for (int i = 0; gac_cpu_kernels_choice(i); i++) {
        const gac_cpu_kernels *kernels = gac_cpu_kernels_choice(i);
        for (int64_t n = 1; n < 70; n++) {
            float *x = lab_floats(n), *y = lab_alloc(n, sizeof *y), most = x[0];
            float *z = lab_alloc(n, sizeof *z);
            double sum = 0;
            for (int64_t j = 0; j < n; j++) {
                x[j] *= (float)lab_int(1, 25);
                most = j == 0 || x[j] > most ? x[j] : most;
            }
            assert_true(kernels->largest(x, n) == most);
            memcpy(y, x, (size_t)n * sizeof *y);
            double total = (double)kernels->exps(y, n, most);
            for (int64_t j = 0; j < n; j++) {
                double e = exp((double)(x[j] - most));
                assert_true(fabs((double)y[j] - e) <= 3e-7 * e + 1e-37);
                sum += e;
            }
            assert_true(fabs(total - sum) <= 1e-6 * sum);
            assert_true(fabs(kernels->exp_sum(x, n, most) - sum) <= 1e-6 * sum);
            kernels->silu(x, y, n, z);
            for (int64_t j = 0; j < n; j++) {
                double e = (double)x[j] / (1 + exp(-(double)x[j])) * (double)y[j];
                assert_true(fabs((double)z[j] - e) <= 1e-6 * fabs(e) + 1e-36);
            }
        }
        gelus_are_close(kernels);
        float odd[3] = { NAN, 1, -INFINITY };
        kernels->exps(odd, 3, 1);
        assert_true(isnan(odd[0]) && odd[1] == 1 && odd[2] < 1e-37F);
    }
}

/* Every code of both 16-bit floats, and which ones are finite. */
static void conversions_are_exact(void **state)
{
    (void)state;
    uint16_t *codes = lab_alloc(65536, sizeof *codes);
    float *out = lab_alloc(65536, sizeof *out);
    for (int32_t i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    for (int i = 0; gac_cpu_kernels_choice(i); i++) {
        const gac_cpu_kernels *kernels = gac_cpu_kernels_choice(i);
        for (int half = 0; half < 2; half++) {
            gac_dtype dtype = half ? GAC_DTYPE_F16 : GAC_DTYPE_BF16;
            kernels->to_float(codes, dtype, 65536, out);
            for (int32_t k = 0; k < 65536; k++) {
                float is = half ? gac_f16_to_float((uint16_t)k) : gac_bf16_to_float((uint16_t)k);
                assert_true(isnan(is) ? isnan(out[k]) : memcmp(&is, out + k, sizeof is) == 0);
                assert_int_equal(kernels->find_bad(codes + k, dtype, 1), isfinite(is) ? -1 : 0);
                assert_int_equal(kernels->find_bad(out + k, GAC_DTYPE_F32, 1),
                                 isfinite(is) ? -1 : 0);
            }
            assert_int_equal(kernels->find_bad(codes, dtype, 65536), half ? 0x7C00 : 0x7F80);
        }
    }
}

/* Refused inputs. */

static void weights_must_be_finite(void **state)
{
    (void)state;
    static const double bad[] = { NAN, INFINITY, -INFINITY };
    lab l = lab_open("cpu", 2, 4);
    const gac_compute_ops *ops = l.compute.ops;
    gac_matrix *matrix = NULL;
    for (int i = 0; i < 9; i++) {
        linear_case c = { .in = { 1, 1000, 1000 } };
        char expected[160];
        add_module(&c, DENSE, (gac_axis){ 1, 1200, 1200 });
        c.parts[0][0].weight = lab_tensor(
            (gac_dtype[]){ GAC_DTYPE_F32, GAC_DTYPE_F16, GAC_DTYPE_BF16 }[i / 3], 1200, 1000);
        c.parts[0][0].weight.name = "layers.0.w\n";
        void *data = (void *)(uintptr_t)c.parts[0][0].weight.data;
        int64_t row = lab_int(0, 1199), col = lab_int(0, 999);
        gac_dtype_store(data, c.parts[0][0].weight.dtype, row * 1000 + col, bad[i % 3]);
        gac_dtype_store(data, c.parts[0][0].weight.dtype, 1199999, NAN);
        assert_int_equal(ops->matrix_create(l.compute.state, c.in, c.modules, 1, &matrix, &l.err),
                         GAC_BAD_INPUT);
        assert_null(matrix);
        snprintf(expected, sizeof expected,
                 "layers.0.w\\x0a: the weight at row %lld, column %lld is not finite",
                 (long long)row, (long long)col);
        assert_string_equal(l.err.text, expected);
    }
    gac_compute_close(&l.compute);
}

/* The previous content of the rows' memory does not matter. */
static void rows_within_others(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        int64_t n_rows = lab_int(1, 9), wide;
        linear_case c = random_case(i % 2 ? GAC_LINEAR_GATED : GAC_LINEAR_SET, 2, n_rows, 40);
        if (i == 0) { /* rows whose own stride would exceed that of the first rows */
            c = (linear_case){ .in = { 1, 5, 5 } };
            add_module(&c, DENSE, (gac_axis){ 1, 1024, 1024 });
            finish_case(&c, GAC_LINEAR_SET, n_rows, false);
        }
        wide = c.out_width + lab_int(0, 5);
        lab l = lab_open(i % 4 < 2 ? "reference" : "cpu", 2, n_rows);
        const gac_compute_ops *ops = l.compute.ops;
        gac_rows *out = NULL;
        gac_rows *first =
            lab_rows(&l, (gac_axis){ 1, wide, wide }, lab_floats(n_rows * wide), 1, n_rows, 0);
        LAB_OK(&l, ops->rows_within(l.compute.state, first, c.out_width, &out, &l.err));
        same_bits(run_into(&l, &c, out), run_case(&l, &c), n_rows * c.out_width, "within");
        ops->rows_free(l.compute.state, out);
        ops->rows_free(l.compute.state, first);
        gac_compute_close(&l.compute);
    }
}

static void names_and_options(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "gpu", "cuda:", "references", "cpu:0", "a\nb" };
    gac_compute compute = GAC_COMPUTE_INIT;
    gac_compute_options options = { .max_rows = 4 };
    gac_error err = GAC_ERROR_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(gac_compute_open(bad[i], &options, &compute, &err), GAC_USAGE);
        assert_non_null(strstr(err.text, "reference, cpu, cuda, cuda:N"));
        assert_null(strchr(err.text, '\n'));
    }
    setenv("GAC_BACKEND_PATH", FAKE_FOLDER, 1);
    assert_int_equal(gac_compute_open("cuda", &options, &compute, &err), GAC_NO_RESOURCE);
    assert_string_equal(err.text, "cuda: the plug-in has no forward passes");
    setenv("GAC_BACKEND_PATH", "/nowhere", 1);
    assert_int_equal(gac_compute_open("cuda:1", &options, &compute, &err), GAC_NO_RESOURCE);
    unsetenv("GAC_BACKEND_PATH");
    options.max_rows = 0;
    assert_int_equal(gac_compute_open("cpu", &options, &compute, &err), GAC_USAGE);
    options = (gac_compute_options){ .max_rows = 4, .n_threads = 100000 };
    assert_int_equal(gac_compute_open("reference", &options, &compute, &err), GAC_USAGE);
    assert_null(compute.ops);
    gac_compute_close(&compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(linear_is_what_it_says, lab_teardown),
        cmocka_unit_test_teardown(biases_are_added, lab_teardown),
        cmocka_unit_test_teardown(chunks_follow_each_other, lab_teardown),
        cmocka_unit_test_teardown(reference_has_one_answer, lab_teardown),
        cmocka_unit_test_teardown(zeros_in_ranks_change_nothing, lab_teardown),
        cmocka_unit_test_teardown(zeros_in_widths_change_nothing, lab_teardown),
        cmocka_unit_test_teardown(logits_and_losses, lab_teardown),
        cmocka_unit_test_teardown(exps_are_close, lab_teardown),
        cmocka_unit_test_teardown(conversions_are_exact, lab_teardown),
        cmocka_unit_test_teardown(weights_must_be_finite, lab_teardown),
        cmocka_unit_test_teardown(rows_within_others, lab_teardown),
        cmocka_unit_test_teardown(names_and_options, lab_teardown),
    };
    lab_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

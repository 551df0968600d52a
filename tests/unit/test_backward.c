/* Gradients on the CPU, against differences of a forward pass in F64. */
#include "compute_lab.h"

#include <math.h>

/* Sizes of a small layer, and everything that it computes with. */
enum { T = 5, HIDDEN = 10, KV = 2, GROUP = 3, QK = 4, V = 3, WIDTH = 11, VOCAB = 23 };
enum { HEADS = KV * GROUP };

static const int64_t shapes[GAC_BACKWARD_COUNT][2] = {
    { HEADS * QK, HIDDEN }, { KV * QK, HIDDEN }, { KV * V, HIDDEN }, { HIDDEN, HEADS *V },
    { WIDTH, HIDDEN },      { WIDTH, HIDDEN },   { HIDDEN, WIDTH },
};

/* A layer, and what is added to what its modules give, to see what that changes. */
typedef struct small_layer {
    gac_backward_layer job;
    double *weights[GAC_BACKWARD_COUNT];
    double x[T * HIDDEN], wanted[T * HIDDEN]; /* the loss is the sum of wanted * output */
    double added[GAC_BACKWARD_COUNT][T * 64];
} small_layer;

static void fill_layer(small_layer *s, bool with_biases, bool with_norms, int64_t window)
{
    gac_backward_layer *job = &s->job;
    float *cosines = lab_floats(T * QK / 2), *sines = lab_floats(T * QK / 2);
    *job = (gac_backward_layer){ .n_sequences = 1,
                                 .n_tokens = T,
                                 .hidden = HIDDEN,
                                 .n_q_heads = HEADS,
                                 .n_kv_heads = KV,
                                 .qk_size = QK,
                                 .v_size = V,
                                 .attention_norm = lab_floats(HIDDEN),
                                 .mlp_norm = lab_floats(HIDDEN),
                                 .q_norm = with_norms ? lab_floats(QK) : NULL,
                                 .k_norm = with_norms ? lab_floats(QK) : NULL,
                                 .cosines = cosines,
                                 .sines = sines,
                                 .window = window,
                                 .eps = 1e-3,
                                 .scale = 0.6 };
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        const int64_t n = shapes[i][0] * shapes[i][1];
        gac_backward_linear *l = &job->linear[i];
        l->weight = lab_tensor(lab_dtype(), shapes[i][0], shapes[i][1]);
        l->bias = with_biases ? lab_floats(shapes[i][0]) : NULL;
        s->weights[i] = lab_alloc(n, sizeof(double));
        for (int64_t j = 0; j < n; j++)
            s->weights[i][j] = gac_dtype_load(l->weight.data, l->weight.dtype, j);
    }
    float *x = lab_floats(T * HIDDEN), *gradient = lab_floats(T * HIDDEN);
    for (int i = 0; i < T * HIDDEN; i++) {
        s->x[i] = (double)x[i];
        s->wanted[i] = (double)gradient[i];
    }
    job->x = x;
    job->gradient = gradient;
}

static void norm_of(const float *weights, double eps, const double *x, int n, double *out)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = x[i] / sqrt(squares / n + eps) * (double)weights[i];
}

static void module(const small_layer *s, int which, int t, const double *x, double *y)
{
    const int64_t n_out = shapes[which][0], n_in = shapes[which][1];
    for (int64_t o = 0; o < n_out; o++) {
        y[o] = s->added[which][t * n_out + o];
        y[o] += s->job.linear[which].bias ? (double)s->job.linear[which].bias[o] : 0;
        for (int64_t i = 0; i < n_in; i++)
            y[o] += s->weights[which][o * n_in + i] * x[i];
    }
}

static void turn_head(const small_layer *s, const float *norm, int t, double *head)
{
    double out[QK];
    memcpy(out, head, sizeof out);
    if (norm)
        norm_of(norm, s->job.eps, head, QK, out);
    for (int i = 0; i < QK / 2; i++) {
        const double c = (double)s->job.cosines[t * QK / 2 + i];
        const double d = (double)s->job.sines[t * QK / 2 + i];
        head[i] = out[i] * c - out[i + QK / 2] * d;
        head[i + QK / 2] = out[i + QK / 2] * c + out[i] * d;
    }
}

/* Attention of token t over the keys and values that it sees. */
static void attend(const small_layer *s, int t, const double *q, const double *k, const double *v,
                   double *out)
{
    for (int h = 0; h < HEADS; h++) {
        double shares[T] = { 0 }, sum = 0;
        const int64_t n_seen = s->job.window > 0 ? s->job.window : T;
        for (int j = t - n_seen + 1 < 0 ? 0 : (int)(t - n_seen + 1); j <= t; j++) {
            double score = 0;
            for (int i = 0; i < QK; i++)
                score += q[h * QK + i] * k[(j * KV + h / GROUP) * QK + i];
            sum += shares[j] = exp(score * s->job.scale);
        }
        for (int i = 0; i < V; i++) {
            out[h * V + i] = 0;
            for (int j = 0; j <= t; j++)
                out[h * V + i] += shares[j] / sum * v[(j * KV + h / GROUP) * V + i];
        }
    }
}

static double loss_of(const small_layer *s)
{
    double k[T * KV * QK], v[T * KV * V], loss = 0;
    for (int t = 0; t < T; t++) {
        double normed[HIDDEN], q[HEADS * QK], heads[HEADS * V], between[HIDDEN];
        double gate[WIDTH], up[WIDTH], out[HIDDEN];
        norm_of(s->job.attention_norm, s->job.eps, s->x + t * HIDDEN, HIDDEN, normed);
        module(s, GAC_BACKWARD_Q, t, normed, q);
        module(s, GAC_BACKWARD_K, t, normed, k + t * KV * QK);
        module(s, GAC_BACKWARD_V, t, normed, v + t * KV * V);
        for (int h = 0; h < HEADS; h++)
            turn_head(s, s->job.q_norm, t, q + h * QK);
        for (int h = 0; h < KV; h++)
            turn_head(s, s->job.k_norm, t, k + (t * KV + h) * QK);
        attend(s, t, q, k, v, heads);
        module(s, GAC_BACKWARD_O, t, heads, between);
        for (int i = 0; i < HIDDEN; i++)
            between[i] += s->x[t * HIDDEN + i];
        norm_of(s->job.mlp_norm, s->job.eps, between, HIDDEN, normed);
        module(s, GAC_BACKWARD_GATE, t, normed, gate);
        module(s, GAC_BACKWARD_UP, t, normed, up);
        for (int i = 0; i < WIDTH; i++)
            gate[i] *= up[i] / (1 + exp(-gate[i]));
        module(s, GAC_BACKWARD_DOWN, t, gate, out);
        for (int i = 0; i < HIDDEN; i++)
            loss += s->wanted[t * HIDDEN + i] * (out[i] + between[i]);
    }
    return loss;
}

static double loss_with(const small_layer *s, double *at, double value)
{
    const double before = *at;
    *at = value;
    const double loss = loss_of(s);
    *at = before;
    return loss;
}

/* What the loss changes by with one number, by differences of the fourth order. */
static double slope(const small_layer *s, double *at)
{
    const double step = 2e-4, x = *at;
    const double near = loss_with(s, at, x + step) - loss_with(s, at, x - step);
    const double far = loss_with(s, at, x + 2 * step) - loss_with(s, at, x - 2 * step);
    return (8 * near - far) / (12 * step);
}

static void assert_near(double is, double should, double scale, const char *what)
{
    if (!(fabs(is - should) <= 2e-5 * (scale + 1)))
        fail_msg("%s: %.9g, by differences %.9g", what, is, should);
}

/* The sums of g g^T over the tokens, by differences. */
static void check_sums(small_layer *s, int which, const double *sums)
{
    const int64_t n = shapes[which][0];
    double *slopes = lab_alloc(T * n, sizeof *slopes), largest = 0;
    for (int64_t i = 0; i < T * n; i++) {
        slopes[i] = slope(s, &s->added[which][i]);
        largest = fmax(largest, slopes[i] * slopes[i]);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int t = 0; t < T; t++)
                sum += slopes[t * n + i] * slopes[t * n + j];
            assert_near(sums[i * n + j], sum, largest, "a sum");
        }
}

static void check_layer(gac_compute *compute, bool with_biases, bool with_norms, int64_t window)
{
    small_layer *s = lab_alloc(1, sizeof *s);
    gac_error err = GAC_ERROR_INIT;
    fill_layer(s, with_biases, with_norms, window);
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++)
        assert_int_equal(
            compute->ops->gram_create(compute->state, shapes[i][0], &s->job.linear[i].gram, &err),
            GAC_OK);
    if (compute->ops->backward_layer(compute->state, &s->job, &err) != GAC_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < T * HIDDEN; i++)
        assert_near((double)s->job.gradient[i], slope(s, &s->x[i]), 10, "a gradient");
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        const int64_t n = shapes[i][0];
        double *sums = lab_alloc(n * n, sizeof *sums), *magnitude = lab_alloc(n, sizeof *magnitude);
        assert_int_equal(
            compute->ops->gram_read(compute->state, s->job.linear[i].gram, sums, magnitude, &err),
            GAC_OK);
        check_sums(s, i, sums);
        compute->ops->gram_free(compute->state, s->job.linear[i].gram);
    }
}

static gac_compute open_cpu(int n_threads)
{
    gac_compute compute = GAC_COMPUTE_INIT;
    const gac_compute_options how = { .n_threads = n_threads, .max_rows = 1 };
    gac_error err = GAC_ERROR_INIT;
    assert_int_equal(gac_compute_open("cpu", &how, &compute, &err), GAC_OK);
    return compute;
}

static void test_layer(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        gac_compute compute = open_cpu(1 + i % 3);
        check_layer(&compute, i & 1, i & 2, i & 4 ? 3 : 0);
        gac_compute_close(&compute);
    }
}

/* Several blocks of queries, rows and columns; two sequences; the same bits with any number of
 * threads. What one sequence gives does not depend on the other. */
static void test_blocks(void **state)
{
    enum { N = 300, SIZE = 64 };
    float *found[3];
    (void)state;
    gac_backward_layer job = { .n_sequences = 2,
                               .n_tokens = N,
                               .hidden = SIZE,
                               .n_q_heads = 4,
                               .n_kv_heads = 2,
                               .qk_size = 16,
                               .v_size = 16,
                               .attention_norm = lab_floats(SIZE),
                               .mlp_norm = lab_floats(SIZE),
                               .cosines = lab_floats(N * 8),
                               .sines = lab_floats(N * 8),
                               .eps = 1e-3,
                               .scale = 0.25,
                               .x = lab_floats(2 * N * SIZE) };
    const int64_t n_out[] = { SIZE, SIZE / 2, SIZE / 2, SIZE, 600, 600, SIZE };
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++)
        job.linear[i].weight =
            lab_tensor(GAC_DTYPE_F32, n_out[i], i == GAC_BACKWARD_DOWN ? 600 : SIZE);
    const float *by_output = lab_floats(2 * N * SIZE);
    for (int i = 0; i < 3; i++) {
        gac_error err = GAC_ERROR_INIT;
        gac_compute compute = open_cpu(i == 0 ? 1 : 3);
        job.n_sequences = i == 2 ? 1 : 2;
        job.x += i == 2 ? N * SIZE : 0; /* the second sequence alone */
        job.gradient = found[i] = lab_alloc(2 * N * SIZE, sizeof(float));
        memcpy(found[i], by_output + (i == 2 ? N * SIZE : 0),
               (size_t)(job.n_sequences * N * SIZE) * sizeof(float));
        assert_int_equal(compute.ops->backward_layer(compute.state, &job, &err), GAC_OK);
        gac_compute_close(&compute);
    }
    assert_memory_equal(found[0], found[1], 2 * N * SIZE * sizeof(float));
    assert_memory_equal(found[0] + N * SIZE, found[2], N * SIZE * sizeof(float));
}

/* -log of the probability of a token, in F64. */
static double head_loss(const double *weight, const gac_backward_head *job, const double *x,
                        int64_t token)
{
    double normed[HIDDEN], sum = 0, at = 0;
    norm_of(job->norm, job->eps, x, HIDDEN, normed);
    for (int64_t i = 0; i < job->vocab; i++) {
        double logit = 0;
        for (int j = 0; j < HIDDEN; j++)
            logit += weight[i * HIDDEN + j] * normed[j];
        sum += exp(logit);
        at = i == token ? logit : at;
    }
    return log(sum) - at;
}

/* The token that a number from 0 to 1 draws. */
static int64_t drawn(const float *logits, int64_t n, double log_sum, double draw)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - log_sum);
        if (sum > draw)
            return i;
    }
    return n - 1;
}

static void check_head(gac_compute *compute, int64_t vocab)
{
    enum { ROWS = 3 };
    static const double draws[ROWS] = { 0, 0.4, 1 - 0x1p-53 };
    gac_error err = GAC_ERROR_INIT;
    double log_sums[ROWS], *weight = lab_alloc(vocab * HIDDEN, sizeof *weight), x[ROWS][HIDDEN];
    int64_t tokens[ROWS];
    gac_backward_head job = { .n_rows = ROWS,
                              .hidden = HIDDEN,
                              .vocab = vocab,
                              .weight = lab_tensor(lab_dtype(), vocab, HIDDEN),
                              .norm = lab_floats(HIDDEN),
                              .eps = 1e-3,
                              .x = lab_floats(ROWS * HIDDEN),
                              .logits = lab_floats(ROWS * vocab),
                              .log_sums = log_sums,
                              .draws = draws,
                              .gradient = lab_floats(ROWS * HIDDEN) };
    for (int64_t i = 0; i < vocab * HIDDEN; i++)
        weight[i] = gac_dtype_load(job.weight.data, job.weight.dtype, i);
    for (int r = 0; r < ROWS; r++) {
        double normed[HIDDEN], sum = 0;
        for (int i = 0; i < HIDDEN; i++)
            x[r][i] = (double)job.x[r * HIDDEN + i];
        norm_of(job.norm, job.eps, x[r], HIDDEN, normed);
        for (int64_t i = 0; i < vocab; i++) {
            double logit = 0;
            for (int j = 0; j < HIDDEN; j++)
                logit += weight[i * HIDDEN + j] * normed[j];
            job.logits[r * vocab + i] = (float)logit;
            sum += exp((double)(float)logit);
        }
        log_sums[r] = log(sum);
        tokens[r] = drawn(job.logits + r * vocab, vocab, log_sums[r], draws[r]);
    }
    assert_int_equal(tokens[0], 0);
    assert_int_equal(compute->ops->backward_head(compute->state, &job, &err), GAC_OK);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < HIDDEN; i++) {
            const double step = 1e-5, before = x[r][i];
            x[r][i] = before + step;
            const double above = head_loss(weight, &job, x[r], tokens[r]);
            x[r][i] = before - step;
            const double below = head_loss(weight, &job, x[r], tokens[r]);
            x[r][i] = before;
            assert_near((double)job.gradient[r * HIDDEN + i], (above - below) / (2 * step), 4,
                        "a gradient of the head");
        }
}

static void test_head(void **state)
{
    (void)state;
    gac_compute compute = open_cpu(2);
    check_head(&compute, VOCAB);
    check_head(&compute, 5000); /* the weight is read in several pieces */
    gac_compute_close(&compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_layer, lab_teardown),
        cmocka_unit_test_teardown(test_blocks, lab_teardown),
        cmocka_unit_test_teardown(test_head, lab_teardown),
    };
    lab_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

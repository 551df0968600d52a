/* Gradients (gac_backward_layer, gac_backward_head) on the GPU against the CPU.
 *
 *   test_backward_gpu [check|small] [SEED]
 *
 * small is a selection for compute-sanitizer. Both devices compute in F32, so gradients and
 * sums of their squares may differ by 1e-5. Another drawn token would change the gradient of
 * its row by far more. */
#include "test_pair.h"

#include "base/floats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIMIT 1e-5

typedef struct layer_case {
    const char *name;
    int64_t n_sequences, n_tokens, hidden, n_q_heads, n_kv_heads, qk_size, v_size, width, window;
    gac_dtype dtype; /* of the weights */
    bool biases, norms, rotated;
} layer_case;

/* Arrays of one case, freed together. */
enum { MAX_ARRAYS = 128 };
static void *arrays[MAX_ARRAYS];
static int n_arrays;

static void *take(int64_t n, size_t element)
{
    if (n_arrays == MAX_ARRAYS) {
        printf("FAIL too many arrays\n");
        exit(1);
    }
    return arrays[n_arrays++] = zeros(n, element);
}

static void free_arrays(void)
{
    while (n_arrays > 0)
        free(arrays[--n_arrays]);
}

static float *random_floats(int64_t n, double middle, double size)
{
    float *x = take(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(middle + size * random_number());
    return x;
}

static gac_host_tensor random_weight(gac_dtype dtype, int64_t n_rows, int64_t n_cols,
                                     const char *name)
{
    float *x = random_floats(n_rows * n_cols, 0, 1.7 / sqrt((double)n_cols));
    uint16_t *codes = dtype == GAC_DTYPE_F32 ? NULL : take(n_rows * n_cols, sizeof *codes);
    for (int64_t i = 0; codes && i < n_rows * n_cols; i++)
        codes[i] = dtype == GAC_DTYPE_F16 ? gac_f16_from_float(x[i]) : gac_bf16_from_float(x[i]);
    return (gac_host_tensor){ codes ? (void *)codes : (void *)x, dtype, n_rows, n_cols, name };
}

static gac_backward_layer make_layer(const layer_case *c)
{
    static const char *const names[] = { "q", "k", "v", "o", "gate", "up", "down" };
    const int64_t q = c->n_q_heads * c->qk_size, k = c->n_kv_heads * c->qk_size;
    const int64_t v = c->n_kv_heads * c->v_size, n = c->hidden, half = c->qk_size / 2;
    const int64_t shapes[GAC_BACKWARD_COUNT][2] = {
        { q, n },        { k, n },        { v, n },        { n, c->n_q_heads * c->v_size },
        { c->width, n }, { c->width, n }, { n, c->width },
    };
    gac_backward_layer job = { .n_sequences = c->n_sequences,
                               .n_tokens = c->n_tokens,
                               .hidden = n,
                               .n_q_heads = c->n_q_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .qk_size = c->qk_size,
                               .v_size = c->v_size,
                               .attention_norm = random_floats(n, 1, 0.5),
                               .mlp_norm = random_floats(n, 1, 0.5),
                               .window = c->window,
                               .eps = 1e-5,
                               .scale = 1 / sqrt((double)c->qk_size),
                               .x = random_floats(c->n_sequences * c->n_tokens * n, 0, 1) };
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        job.linear[i].weight = random_weight(c->dtype, shapes[i][0], shapes[i][1], names[i]);
        job.linear[i].bias = c->biases ? random_floats(shapes[i][0], 0, 0.5) : NULL;
    }
    job.q_norm = c->norms ? random_floats(c->qk_size, 1, 0.5) : NULL;
    job.k_norm = c->norms ? random_floats(c->qk_size, 1, 0.5) : NULL;
    if (c->rotated) {
        float *cosines = take(c->n_tokens * half, sizeof *cosines);
        float *sines = take(c->n_tokens * half, sizeof *sines);
        for (int64_t i = 0; i < c->n_tokens * half; i++) {
            const double angle = 3 * random_number();
            cosines[i] = (float)cos(angle);
            sines[i] = (float)sin(angle);
        }
        job.cosines = cosines;
        job.sines = sines;
    }
    return job;
}

/* One device's results. */
typedef struct side {
    float *gradient;
    double *sums[GAC_BACKWARD_COUNT], *magnitude[GAC_BACKWARD_COUNT];
} side;

static gac_status run_layer(gac_compute *compute, gac_backward_layer job, const float *by_output,
                            side *s, gac_error *err)
{
    const gac_compute_ops *ops = compute->ops;
    const int64_t n = job.n_sequences * job.n_tokens * job.hidden;
    gac_status status = GAC_OK;
    job.gradient = s->gradient = take(n, sizeof *s->gradient);
    memcpy(s->gradient, by_output, (size_t)n * sizeof *s->gradient);
    for (int i = 0; i < GAC_BACKWARD_COUNT && status == GAC_OK; i++)
        status =
            ops->gram_create(compute->state, job.linear[i].weight.n_rows, &job.linear[i].gram, err);
    if (status == GAC_OK)
        status = ops->backward_layer(compute->state, &job, err);
    for (int i = 0; i < GAC_BACKWARD_COUNT && status == GAC_OK; i++) {
        const int64_t n_out = job.linear[i].weight.n_rows;
        s->sums[i] = take(n_out * n_out, sizeof *s->sums[i]);
        s->magnitude[i] = take(n_out, sizeof *s->magnitude[i]);
        status =
            ops->gram_read(compute->state, job.linear[i].gram, s->sums[i], s->magnitude[i], err);
    }
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++)
        ops->gram_free(compute->state, job.linear[i].gram);
    return status;
}

static void check_layer(pair *p, const layer_case *c)
{
    gac_error err = GAC_ERROR_INIT;
    gac_backward_layer job = make_layer(c);
    const int64_t n = c->n_sequences * c->n_tokens * c->hidden;
    const float *by_output = random_floats(n, 0, 1);
    side cpu = { 0 }, gpu = { 0 }, again = { 0 };
    char name[160];
    if (!failed(run_layer(&p->cpu, job, by_output, &cpu, &err), c->name, &err) &&
        !failed(run_layer(&p->gpu, job, by_output, &gpu, &err), c->name, &err) &&
        !failed(run_layer(&p->gpu, job, by_output, &again, &err), c->name, &err)) {
        snprintf(name, sizeof name, "%s: gradient", c->name);
        below(name, distance_floats(gpu.gradient, cpu.gradient, n), LIMIT);
        judge(distance_floats(cpu.gradient, by_output, n) > 0.1, "  it is another one", 0, 0);
        judge(memcmp(gpu.gradient, again.gradient, (size_t)n * 4) == 0, "  it repeats", 0, 0);
        for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
            const int64_t n_out = job.linear[i].weight.n_rows;
            snprintf(name, sizeof name, "  sums of %s", job.linear[i].weight.name);
            below(name, distance_doubles(gpu.sums[i], cpu.sums[i], n_out * n_out), LIMIT);
            below("  magnitudes", distance_doubles(gpu.magnitude[i], cpu.magnitude[i], n_out),
                  LIMIT);
        }
    }
    free_arrays();
}

static void check_layers(pair *p, bool small)
{
    static const gac_dtype f32 = GAC_DTYPE_F32, f16 = GAC_DTYPE_F16, bf16 = GAC_DTYPE_BF16;
    /* Sequences, tokens, hidden, heads of q, of kv, their sizes, width, window; type; biases,
     * norms, rotation. Blocks have 256 queries. */
    const layer_case cases[] = {
        { "plain", 1, 20, 64, 4, 4, 16, 16, 96, 0, f32, false, false, true },
        { "groups", 1, 33, 96, 6, 2, 16, 16, 128, 0, bf16, false, false, true },
        { "one kv head", 2, 33, 40, 5, 1, 8, 8, 48, 0, f16, false, false, true },
        { "one token", 2, 1, 64, 4, 2, 16, 16, 96, 0, bf16, true, true, true },
        { "odd sizes, biases", 2, 21, 107, 6, 3, 18, 13, 101, 0, f16, true, false, true },
        { "norms of heads", 1, 40, 64, 4, 2, 32, 32, 80, 0, f32, false, true, true },
        { "window", 1, 50, 64, 4, 2, 16, 24, 80, 7, bf16, false, false, true },
        { "window of one", 1, 12, 64, 4, 2, 16, 24, 80, 1, f32, false, false, true },
        { "not rotated", 1, 29, 72, 4, 2, 18, 18, 80, 0, f32, false, false, false },
        { "odd heads", 1, 35, 72, 4, 2, 17, 19, 80, 0, f32, true, true, true },
        { "all at once", 2, 70, 107, 6, 2, 17, 19, 101, 9, bf16, true, true, true },
        { "blocks of queries", 1, 300, 48, 4, 2, 12, 16, 64, 0, f32, true, true, true },
        { "blocks and window", 2, 520, 32, 4, 1, 8, 8, 40, 33, bf16, false, false, true },
        { "larger", 2, 300, 512, 8, 2, 64, 64, 1408, 0, bf16, true, true, true },
        { "wide heads", 1, 90, 512, 4, 2, 320, 256, 700, 0, f16, false, true, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!small || cases[i].hidden < 512)
            check_layer(p, &cases[i]);
}

/* Draws of 0, and one that no sum reaches: log_sums makes the probabilities of its row sum to
 * less than 1. */
static void make_draws(const gac_backward_head *job, double *log_sums, double *draws)
{
    for (int64_t r = 0; r < job->n_rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < job->vocab; i++)
            sum += exp((double)job->logits[r * job->vocab + i]);
        log_sums[r] = log(sum);
        draws[r] = r == 1 ? 0 : 0.5 + 0.4999 * random_number();
        if (r == 2) {
            log_sums[r] += 0.1;
            draws[r] = 0.95;
        }
    }
}

static void check_head(pair *p, int64_t n_rows, int64_t hidden, int64_t vocab, gac_dtype dtype)
{
    gac_compute *const computes[] = { &p->cpu, &p->gpu };
    gac_error err = GAC_ERROR_INIT;
    double *log_sums = take(n_rows, sizeof *log_sums), *draws = take(n_rows, sizeof *draws);
    gac_backward_head job = { .n_rows = n_rows,
                              .hidden = hidden,
                              .vocab = vocab,
                              .weight = random_weight(dtype, vocab, hidden, "head"),
                              .norm = random_floats(hidden, 1, 0.5),
                              .eps = 1e-5,
                              .x = random_floats(n_rows * hidden, 0, 1),
                              .logits = random_floats(n_rows * vocab, 1, 4),
                              .log_sums = log_sums,
                              .draws = draws };
    const float *logits = job.logits; /* what both devices get a copy of */
    float *gradients[2];
    gac_status status = GAC_OK;
    char name[160];
    snprintf(name, sizeof name, "head of %lld rows, hidden %lld, vocabulary %lld",
             (long long)n_rows, (long long)hidden, (long long)vocab);
    make_draws(&job, log_sums, draws);
    for (int d = 0; d < 2 && status == GAC_OK; d++) {
        job.logits = take(n_rows * vocab, sizeof *logits);
        memcpy(job.logits, logits, (size_t)(n_rows * vocab) * sizeof *logits);
        job.gradient = gradients[d] = take(n_rows * hidden, sizeof *gradients[d]);
        status = computes[d]->ops->backward_head(computes[d]->state, &job, &err);
    }
    if (!failed(status, name, &err)) {
        double worst = 0;
        for (int64_t r = 0; r < n_rows; r++) {
            const double d =
                distance_floats(gradients[1] + r * hidden, gradients[0] + r * hidden, hidden);
            worst = d > worst || isnan(d) ? d : worst;
        }
        below(name, worst, LIMIT);
    }
    free_arrays();
}

/* The message must name the tensor and the place. */
static void expect_refusal(gac_status status, const gac_host_tensor *tensor, int64_t index,
                           const gac_error *err)
{
    char wanted[120];
    snprintf(wanted, sizeof wanted, "%s: row %lld, column %lld: not finite", tensor->name,
             (long long)(index / tensor->n_cols), (long long)(index % tensor->n_cols));
    const bool ok = status == GAC_BAD_INPUT && strcmp(err->text, wanted) == 0;
    n_ok += ok;
    n_failed += !ok;
    printf("%s refusal: \"%s\", \"%s\"\n", ok ? "ok" : "FAIL", err->text, wanted);
}

/* Each weight of a layer, and a late piece of a head; then everything must still work. */
static void check_refusals(pair *p)
{
    const layer_case c = { "after refusals", 1,    20,   64,  4, 2, 16, 16, 96, 0,
                           GAC_DTYPE_F32,    true, true, true };
    const gac_compute_ops *ops = p->gpu.ops;
    gac_error err = GAC_ERROR_INIT;
    gac_backward_layer job = make_layer(&c);
    job.gradient = random_floats(c.n_tokens * c.hidden, 0, 1);
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        float *weight = (float *)(uintptr_t)job.linear[i].weight.data, before = weight[17];
        weight[17] = i % 2 ? NAN : INFINITY;
        expect_refusal(ops->backward_layer(p->gpu.state, &job, &err), &job.linear[i].weight, 17,
                       &err);
        weight[17] = before;
    }
    double log_sums[2] = { 9, 9 }, draws[2] = { 0.1, 0.9 };
    gac_backward_head head = { .n_rows = 2,
                               .hidden = 10,
                               .vocab = 5003,
                               .weight = random_weight(GAC_DTYPE_F32, 5003, 10, "head"),
                               .norm = random_floats(10, 1, 0.5),
                               .eps = 1e-5,
                               .x = random_floats(20, 0, 1),
                               .logits = random_floats(2 * 5003, 0, 1),
                               .log_sums = log_sums,
                               .draws = draws,
                               .gradient = random_floats(20, 0, 1) };
    const int64_t late = 5000 * 10 + 3; /* in the second piece */
    ((float *)(uintptr_t)head.weight.data)[late] = NAN;
    expect_refusal(ops->backward_head(p->gpu.state, &head, &err), &head.weight, late, &err);
    free_arrays();
    check_layer(p, &c);
    check_head(p, 3, 10, 5003, GAC_DTYPE_F32);
}

int main(int argc, char **argv)
{
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    gac_error err = GAC_ERROR_INIT;
    pair p;
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)random_state);
    gac_status status = open_pair(&p, GAC_DTYPE_F16, &err);
    if (status == GAC_NO_RESOURCE) {
        printf("skipped: %s\n", err.text);
        close_pair(&p);
        return 77;
    }
    if (!failed(status, "open", &err)) {
        check_layers(&p, small);
        check_head(&p, 5, 107, 5003, GAC_DTYPE_BF16); /* two pieces of 4096 rows */
        check_head(&p, 1, 64, 1, GAC_DTYPE_F32);
        check_head(&p, 40, 33, 50, GAC_DTYPE_F16);
        check_head(&p, small ? 8 : 256, 64, 9001, GAC_DTYPE_F32);
        check_refusals(&p);
    }
    close_pair(&p);
    printf("%d ok, %d failed\n", n_ok, n_failed);
    return n_failed > 0 || n_ok == 0;
}

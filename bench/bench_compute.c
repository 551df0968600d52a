/* Times linear calls on the CPU with the shapes of SmolLM2-135M, and a whole layer. Plain
 * cblas_sgemm calls of the same sizes on F32 weights alternate with them. Prints JSON.
 *
 *     bench_compute [--samples N] [--threads N]
 *
 * A figure is the best of N samples (default 15), on one thread and on N threads
 * (default: one per core), because other load only ever adds time. All samples are
 * printed. Weights are BF16. Our times include conversion, norm, gate and residual, which
 * the plain call does not do. */
#include <gac/device.h>

#include <cblas.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_SAMPLES 99
#define HIDDEN 576
#define MLP 1536
#define HEAD 64
#define Q_HEADS 9
#define KV_HEADS 3
#define VOCAB 49152

static int n_samples = 15, n_threads;

/* Up to three modules that share an input of k numbers. */
typedef struct shape {
    const char *name;
    int64_t k, n[3];
    gac_linear_mode mode;
    bool normed;
} shape;

static const shape shapes[] = {
    { "qkv", HIDDEN, { Q_HEADS * HEAD, KV_HEADS *HEAD, KV_HEADS *HEAD }, GAC_LINEAR_SET, true },
    { "o", Q_HEADS *HEAD, { HIDDEN }, GAC_LINEAR_ADD, false },
    { "gate_up", HIDDEN, { MLP, MLP }, GAC_LINEAR_GATED, true },
    { "down", MLP, { HIDDEN }, GAC_LINEAR_ADD, false },
    { "vocab", HIDDEN, { VOCAB }, GAC_LINEAR_SET, true },
};
enum { QKV, O, GATE_UP, DOWN, N_LAYER_SHAPES };

/* A single thread is timed by its CPU clock, which stops while other processes run. */
static double now_s(void)
{
    struct timespec now;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double best(const double *samples)
{
    double least = samples[0];
    for (int i = 1; i < n_samples; i++)
        least = samples[i] < least ? samples[i] : least;
    return least;
}

static void check(gac_status status, const gac_error *err)
{
    if (status == GAC_OK)
        return;
    fprintf(stderr, "bench_compute: %s\n", err->text);
    exit((int)status);
}

static void *allocate(size_t n, size_t size)
{
    void *block = calloc(n, size);
    if (block)
        return block;
    fprintf(stderr, "bench_compute: out of memory\n");
    exit(GAC_NO_RESOURCE);
}

static int64_t outputs(const shape *s)
{
    return s->n[0] + s->n[1] + s->n[2];
}

/* Creates BF16 weights between 0.5 and 1 in magnitude, of either sign. */
static gac_matrix *make_matrix(gac_compute *compute, const shape *s, uint16_t *weights)
{
    gac_error err = GAC_ERROR_INIT;
    gac_linear_part parts[3] = { 0 };
    gac_linear_module modules[3] = { 0 };
    gac_matrix *matrix = NULL;
    int n = 0;
    for (; n < 3 && s->n[n] > 0; n++) {
        parts[n].weight =
            (gac_host_tensor){ weights, GAC_DTYPE_BF16, s->n[n], s->k, "bench.weight" };
        modules[n] =
            (gac_linear_module){ .n_parts = 1, .parts = &parts[n], .out = { 1, s->n[n], s->n[n] } };
        for (int64_t i = 0; i < s->n[n] * s->k; i++)
            weights[i] = (uint16_t)(0x3F00 + (i * 7919 % 128) + (i % 3 == 0 ? 0x8000 : 0));
        weights += s->n[n] * s->k;
    }
    check(compute->ops->matrix_create(compute->state, (gac_axis){ 1, s->k, s->k }, modules, n,
                                      &matrix, &err),
          &err);
    return matrix;
}

static gac_rows *make_rows(gac_compute *compute, int64_t width)
{
    gac_error err = GAC_ERROR_INIT;
    gac_rows *rows = NULL;
    check(compute->ops->rows_create(compute->state, width, true, &rows, &err), &err);
    return rows;
}

static gac_vector *make_vector(gac_compute *compute, int64_t n, float value)
{
    gac_error err = GAC_ERROR_INIT;
    gac_vector *vector = NULL;
    float *data = allocate((size_t)n, sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = value;
    check(compute->ops->vector_create(compute->state, data, n, &vector, &err), &err);
    free(data);
    return vector;
}

static gac_compute open_compute(const char *name, int64_t n_rows)
{
    gac_error err = GAC_ERROR_INIT;
    gac_compute compute = GAC_COMPUTE_INIT;
    gac_compute_options options = { .n_threads = n_threads, .max_rows = n_rows };
    int32_t *ids = allocate((size_t)n_rows, sizeof *ids);
    check(gac_compute_open(name, &options, &compute, &err), &err);
    check(compute.ops->begin(compute.state, ids, 1, n_rows, 0, &err), &err);
    free(ids);
    return compute;
}

/* Times one plain F32 product on OpenBLAS's own threads. It pauses afterwards, because these
 * threads keep polling for work for 2^26 ticks and would disturb ours. */
static double time_plain(int64_t m, int64_t n, int64_t k, const float *x, const float *w, float *y)
{
    const struct timespec pause = { 0, 30000000 };
    openblas_set_num_threads(n_threads);
    double start = now_s();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, 1, x,
                (blasint)k, w, (blasint)k, 0, y, (blasint)n);
    double time = now_s() - start;
    openblas_set_num_threads(1);
    nanosleep(&pause, NULL);
    return time;
}

static json_t *result_of(const char *name, int64_t m, double flop, const double *ours,
                         const double *plain)
{
    json_t *result = json_pack("{s:s, s:I, s:f, s:f}", "shape", name, "n_rows", (json_int_t)m,
                               "time_ms", 1e3 * best(ours), "gflops", 1e-9 * flop / best(ours));
    json_t *samples = json_array();
    for (int i = 0; i < n_samples; i++)
        json_array_append_new(samples, json_real(1e3 * ours[i]));
    json_object_set_new(result, "samples_ms", samples);
    if (!plain)
        return result;
    json_object_set_new(result, "plain_gflops", json_real(1e-9 * flop / best(plain)));
    json_object_set_new(result, "of_plain", json_real(best(plain) / best(ours)));
    samples = json_array();
    for (int i = 0; i < n_samples; i++)
        json_array_append_new(samples, json_real(1e3 * plain[i]));
    json_object_set_new(result, "plain_samples_ms", samples);
    return result;
}

static json_t *time_linear(const char *name, const shape *s, int64_t m)
{
    const bool against_plain = strcmp(name, "cpu") == 0;
    gac_error err = GAC_ERROR_INIT;
    gac_compute compute = open_compute(name, m);
    double ours[MAX_SAMPLES], plain[MAX_SAMPLES];
    uint16_t *weights = allocate((size_t)(outputs(s) * s->k), sizeof *weights);
    float *x = allocate((size_t)(m * s->k), sizeof *x), *w = NULL, *y = NULL;
    gac_linear_call call = { make_matrix(&compute, s, weights),
                             make_rows(&compute, s->k),
                             s->normed ? make_vector(&compute, s->k, 1) : NULL,
                             1e-5,
                             make_rows(&compute, outputs(s)),
                             s->mode };
    if (against_plain) {
        w = allocate((size_t)(outputs(s) * s->k), sizeof *w);
        y = allocate((size_t)(m * outputs(s)), sizeof *y);
        time_plain(m, outputs(s), s->k, x, w, y);
    }
    for (int i = -1; i < n_samples; i++) { /* the first sample warms up */
        double start = now_s();
        check(compute.ops->linear(compute.state, &call, &err), &err);
        ours[i < 0 ? 0 : i] = now_s() - start;
        if (against_plain)
            plain[i < 0 ? 0 : i] = time_plain(m, outputs(s), s->k, x, w, y);
    }
    compute.ops->matrix_free(compute.state, (gac_matrix *)(uintptr_t)call.matrix);
    compute.ops->rows_free(compute.state, (gac_rows *)(uintptr_t)call.x);
    compute.ops->vector_free(compute.state, (gac_vector *)(uintptr_t)call.norm);
    compute.ops->rows_free(compute.state, call.out);
    gac_compute_close(&compute);
    free(y);
    free(w);
    free(x);
    free(weights);
    return result_of(s->name, m, 2.0 * (double)m * (double)outputs(s) * (double)s->k, ours,
                     against_plain ? plain : NULL);
}

/* Times one layer on m tokens: four linear calls and attention. The plain time covers the
 * four products only. */
static json_t *time_layer(const char *name, int64_t m)
{
    gac_error err = GAC_ERROR_INIT;
    gac_compute compute = open_compute(name, m);
    const gac_compute_ops *ops = compute.ops;
    gac_rows *hidden = make_rows(&compute, HIDDEN), *mlp = make_rows(&compute, MLP);
    gac_rows *qkv = make_rows(&compute, (Q_HEADS + 2 * KV_HEADS) * HEAD);
    gac_rows *heads = make_rows(&compute, Q_HEADS * HEAD);
    gac_vector *norm = make_vector(&compute, HIDDEN, 1);
    gac_vector *cosines = make_vector(&compute, m * HEAD / 2, 0.6F);
    gac_vector *sines = make_vector(&compute, m * HEAD / 2, 0.8F);
    gac_cache *cache = NULL;
    gac_linear_call calls[N_LAYER_SHAPES];
    uint16_t *weights[N_LAYER_SHAPES];
    double layer[MAX_SAMPLES], attend[MAX_SAMPLES], flop = 0;
    check(ops->cache_create(compute.state, 1, m, KV_HEADS, HEAD, HEAD, &cache, &err), &err);
    for (int i = 0; i < N_LAYER_SHAPES; i++) {
        const shape *s = &shapes[i];
        weights[i] = allocate((size_t)(outputs(s) * s->k), sizeof *weights[i]);
        gac_rows *x = i == O ? heads : i == DOWN ? mlp : hidden;
        gac_rows *out = i == QKV ? qkv : i == GATE_UP ? mlp : hidden;
        calls[i] = (gac_linear_call){
            make_matrix(&compute, s, weights[i]), x, s->normed ? norm : NULL, 1e-5, out, s->mode
        };
        flop += 2.0 * (double)m * (double)outputs(s) * (double)s->k;
    }
    gac_attention_call attention = { .cache = cache,
                                     .qkv = qkv,
                                     .out = heads,
                                     .n_q_heads = Q_HEADS,
                                     .n_kv_heads = KV_HEADS,
                                     .qk_size = HEAD,
                                     .qk_stored = HEAD,
                                     .v_size = HEAD,
                                     .v_stored = HEAD,
                                     .cosines = cosines,
                                     .sines = sines,
                                     .scale = 0.125 };
    for (int i = -1; i < n_samples; i++) {
        double start = now_s(), attend_s = 0;
        for (int k = 0; k < N_LAYER_SHAPES; k++) {
            check(ops->linear(compute.state, &calls[k], &err), &err);
            if (k != QKV)
                continue;
            double attend_start = now_s();
            check(ops->attend(compute.state, &attention, &err), &err);
            attend_s = now_s() - attend_start;
        }
        layer[i < 0 ? 0 : i] = now_s() - start;
        attend[i < 0 ? 0 : i] = attend_s;
    }
    json_t *result = result_of("layer", m, flop, layer, NULL);
    json_object_set_new(result, "attend_ms", json_real(1e3 * best(attend)));
    for (int i = 0; i < N_LAYER_SHAPES; i++) {
        ops->matrix_free(compute.state, (gac_matrix *)(uintptr_t)calls[i].matrix);
        free(weights[i]);
    }
    gac_rows *rows[] = { hidden, mlp, qkv, heads };
    for (int i = 0; i < 4; i++)
        ops->rows_free(compute.state, rows[i]);
    ops->vector_free(compute.state, norm);
    ops->vector_free(compute.state, cosines);
    ops->vector_free(compute.state, sines);
    ops->cache_free(compute.state, cache);
    gac_compute_close(&compute);
    return result;
}

static json_t *time_device(const char *name)
{
    static const int64_t n_rows[] = { 1, 4, 8, 16, 64, 256, 2048 };
    json_t *results = json_array();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof n_rows / sizeof *n_rows; k++) {
            if (i == N_LAYER_SHAPES && n_rows[k] > GAC_MAX_LOGIT_ROWS)
                continue;
            json_array_append_new(results, time_linear(name, &shapes[i], n_rows[k]));
        }
    }
    json_array_append_new(results, time_layer(name, 2048));
    return results;
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_device *device = NULL;
    double load = 0;
    n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--samples") == 0)
            n_samples = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--threads") == 0)
            n_threads = atoi(argv[i + 1]);
    }
    if (n_samples < 1 || n_samples > MAX_SAMPLES || n_threads < 1) {
        fprintf(stderr, "usage: bench_compute [--samples N] [--threads N]\n");
        return GAC_USAGE;
    }
    json_t *result = gac_json_result("gac.bench_compute/1", argc, argv);
    check(gac_device_open("cpu", &device, &err), &err);
    json_object_set_new(result, "cpu", json_string(gac_device_describe(device)->name));
    gac_device_close(device);
    json_object_set_new(result, "plain", json_string(openblas_get_config()));
    json_t *runs = json_array();
    json_object_set_new(result, "runs", runs);
    for (int most = n_threads, n = 1; n <= most; n += most > 1 ? most - 1 : 1) {
        n_threads = n;
        json_array_append_new(runs,
                              json_pack("{s:i, s:s, s:o, s:o}", "n_threads", n, "clock",
                                        n == 1 ? "the thread's" : "wall", "cpu", time_device("cpu"),
                                        "reference", time_device("reference")));
    }
    if (getloadavg(&load, 1) == 1) /* above n_threads: other processes were running */
        json_object_set_new(result, "load", json_real(load));
    gac_status status = gac_json_print(stdout, result, &err);
    json_decref(result);
    check(status, &err);
    return 0;
}

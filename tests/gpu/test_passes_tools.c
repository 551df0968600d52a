#include "test_passes.h"

#include <gac/engine.h>

#include "base/floats.h"
#include "device/plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t random_state = 1;
int n_ok, n_failed;

double random_number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(random_state >> 32) / 2147483648.0;
}

double tolerance_of(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F16 ? 3e-3 : 2e-2;
}

/* The device. */

gac_status bench_open_device(bench *b, gac_error *err)
{
    char folder[4096] = ".";
    char *path = NULL;
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    gac_status status =
        gac_library_find(&gac_cuda_library, getenv("GAC_BACKEND_PATH"), folder, &path, err);
    if (status == GAC_OK)
        status = gac_plugin_load(&gac_cuda_library, path, &b->backend, err);
    free(path);
    if (status == GAC_OK)
        status = b->backend->open(0, &b->device, &b->info, err);
    return status;
}

void bench_close_device(bench *b)
{
    if (b->device)
        b->backend->close(b->device);
    b->device = NULL;
}

gac_status bench_open(bench *b, gac_dtype dtype, bool no_pad, int64_t max_rows, gac_error *err)
{
    b->ops = b->backend->compute;
    b->options = (gac_compute_options){ .dtype = dtype,
                                        .padding = no_pad ? NULL : gac_engine_padding,
                                        .max_rows = max_rows };
    return b->ops->open(b->device, &b->options, &b->state, err);
}

void bench_close(bench *b)
{
    if (b->state)
        b->ops->close(b->state);
    b->state = NULL;
}

/* Random tensors and modules. */

void *need(void *memory)
{
    if (!memory) {
        printf("FAIL out of memory\n");
        exit(1);
    }
    return memory;
}

tensor make_tensor(gac_dtype dtype, int64_t n_rows, int64_t n_cols, double scale)
{
    size_t n = (size_t)(n_rows * n_cols);
    tensor t = { need(malloc(n * 4)), need(malloc(n * sizeof(double))), { 0 } };
    for (size_t i = 0; i < n; i++) {
        float x = (float)((random_number() + random_number()) * scale * 1.2);
        if (dtype == GAC_DTYPE_F32) {
            ((float *)t.data)[i] = x;
            t.values[i] = x;
            continue;
        }
        uint16_t code = dtype == GAC_DTYPE_F16 ? gac_f16_from_float(x) : gac_bf16_from_float(x);
        ((uint16_t *)t.data)[i] = code;
        t.values[i] = dtype == GAC_DTYPE_F16 ? gac_f16_to_float(code) : gac_bf16_to_float(code);
    }
    t.host = (gac_host_tensor){ t.data, dtype, n_rows, n_cols, "test.weight" };
    return t;
}

void free_tensor(tensor *t)
{
    free(t->data);
    free(t->values);
}

void make_module(module *m, module_spec spec, int64_t n_in, gac_dtype dtype)
{
    memset(m, 0, sizeof *m);
    m->spec = spec;
    int64_t n_out = spec.out.n_slices * spec.out.size, done = 0;
    if (spec.rank) {
        int64_t n = spec.shared ? spec.rank : spec.rank * spec.n_parts;
        m->first = make_tensor(dtype, n, n_in, 1 / sqrt((double)n_in));
        m->host.first = m->first.host;
        if (spec.bias) {
            m->first_bias = make_tensor(GAC_DTYPE_F32, 1, n, 0.5);
            m->host.first_bias = m->first_bias.host;
        }
    }
    for (int i = 0; i < spec.n_parts; i++) {
        int64_t n = i + 1 < spec.n_parts ? n_out / spec.n_parts : n_out - done;
        int64_t k = spec.rank ? spec.rank : n_in;
        m->weight[i] = make_tensor(dtype, n, k, 1 / sqrt((double)k));
        m->parts[i].weight = m->weight[i].host;
        m->parts[i].start = spec.rank && !spec.shared ? spec.rank * i : 0;
        if (spec.bias) {
            m->bias[i] = make_tensor(dtype, 1, n, 0.5);
            m->parts[i].bias = m->bias[i].host;
        }
        done += n;
    }
    m->host.parts = m->parts;
    m->host.n_parts = spec.n_parts;
    m->host.out = spec.out;
}

void free_module(module *m)
{
    free_tensor(&m->first);
    free_tensor(&m->first_bias);
    for (int i = 0; i < MAX_PARTS; i++) {
        free_tensor(&m->weight[i]);
        free_tensor(&m->bias[i]);
    }
}

/* The reference. */

/* y (n) = W (n, k) x + bias. */
static void apply(const tensor *w, const tensor *bias, int64_t n, int64_t k, const double *x,
                  double *y)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = bias && bias->values ? bias->values[i] : 0;
        for (int64_t j = 0; j < k; j++)
            sum += w->values[i * k + j] * x[j];
        y[i] = sum;
    }
}

/* Computes one row of a module. x and y have stored (padded) axes. */
void apply_module(const module *m, const gac_axis *in, const double *x, double *y)
{
    int64_t n_in = in->n_slices * in->size, n_out = m->spec.out.n_slices * m->spec.out.size;
    double *dense = need(malloc((size_t)n_in * sizeof *dense));
    double *logical = need(malloc((size_t)n_out * sizeof *logical)), *latent = NULL;
    const double *z = dense;
    int64_t done = 0;
    for (int64_t i = 0; i < n_in; i++)
        dense[i] = x[i / in->size * in->stored + i % in->size];
    if (m->spec.rank) {
        latent = need(malloc((size_t)m->first.host.n_rows * sizeof *latent));
        apply(&m->first, &m->first_bias, m->first.host.n_rows, n_in, dense, latent);
        z = latent;
    }
    for (int i = 0; i < m->spec.n_parts; i++) {
        const gac_host_tensor *w = &m->weight[i].host;
        apply(&m->weight[i], &m->bias[i], w->n_rows, w->n_cols, z + m->parts[i].start,
              logical + done);
        done += w->n_rows;
    }
    memset(y, 0, (size_t)(m->spec.out.n_slices * m->spec.out.stored) * sizeof *y);
    for (int64_t i = 0; i < n_out; i++)
        y[i / m->spec.out.size * m->spec.out.stored + i % m->spec.out.size] = logical[i];
    free(dense);
    free(logical);
    free(latent);
}

void norm_row(double *x, int64_t n, const float *norm, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(sum / (double)n + eps) * norm[i];
}

void judge(const char *name, const float *actual, const double *expected, int64_t n,
           double tolerance)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = actual[i] - expected[i];
        difference += d * d;
        size += expected[i] * expected[i];
    }
    double relative = sqrt(difference / (size > 0 ? size : 1));
    bool ok = relative <= tolerance; /* false for NaN */
    n_ok += ok;
    n_failed += !ok;
    printf("%s %s %.3g (%.3g)\n", ok ? "ok" : "FAIL", name, relative, tolerance);
    fflush(stdout);
}

/* Rows. */

bool failed(gac_status status, const char *name, const gac_error *err)
{
    if (status == GAC_OK)
        return false;
    printf("FAIL %s: %s\n", name, err->text);
    n_failed++;
    return true;
}

gac_status open_stream(bench *b, int64_t hidden, int64_t batch, int64_t n_new, stream *s,
                       gac_error *err)
{
    gac_linear_part part = { 0 };
    int64_t n = batch * n_new;
    memset(s, 0, sizeof *s);
    s->table = make_tensor(b->options.dtype, VOCAB, hidden, 1);
    s->ids = need(malloc((size_t)n * sizeof *s->ids));
    s->values = need(malloc((size_t)(n * hidden) * sizeof *s->values));
    part.weight = s->table.host;
    gac_linear_module m = { .n_parts = 1, .parts = &part, .out = { 1, VOCAB, VOCAB } };
    for (int64_t i = 0; i < n; i++)
        s->ids[i] = (int32_t)((random_number() + 1) / 2 * VOCAB) % VOCAB;
    gac_status status =
        b->ops->matrix_create(b->state, (gac_axis){ 1, hidden, hidden }, &m, 1, &s->embedding, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, hidden, true, &s->rows, err);
    if (status == GAC_OK)
        status = b->ops->begin(b->state, s->ids, batch, n_new, 0, err);
    const gac_embed_call embed = { .table = s->embedding, .out = s->rows };
    if (status == GAC_OK)
        status = b->ops->embed(b->state, &embed, err);
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, s->rows, 0, n, s->values, err);
    return status;
}

void close_stream(bench *b, stream *s)
{
    b->ops->matrix_free(b->state, s->embedding);
    b->ops->rows_free(b->state, s->rows);
    free_tensor(&s->table);
    free(s->ids);
    free(s->values);
}

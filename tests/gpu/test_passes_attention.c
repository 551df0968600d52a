/* Compares attention with a cache, over several passes, with plain loops. */
#include "test_passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention_case {
    int64_t batch, n_q_heads, n_kv_heads, qk, v;
    int64_t passes[6]; /* new tokens of each pass; 0 ends the list */
    bool norm, rope;
} attention_case;

typedef struct attention {
    const attention_case *c;
    int64_t qk_stored, v_stored, capacity, hidden, width;
    double *k, *v; /* (batch, kv head, position, size) */
    float *cosines, *sines, *q_norm, *k_norm;
} attention;

static void turn(const attention *a, const float *norm, int64_t position, double *x)
{
    int64_t half = a->c->qk / 2;
    if (a->c->norm)
        norm_row(x, a->c->qk, norm, EPS);
    for (int64_t i = 0; i < half && a->c->rope; i++) {
        double c = a->cosines[position * half + i], s = a->sines[position * half + i];
        double p = x[i], q = x[i + half];
        x[i] = p * c - q * s;
        x[i + half] = q * c + p * s;
    }
}

/* Adds one row of qkv to the reference's cache and computes its output (stored heads). */
static void attend_row(attention *a, int64_t sequence, int64_t position, const float *qkv,
                       bool only_keys, double *out)
{
    const attention_case *c = a->c;
    const float *k_rows = qkv + c->n_q_heads * a->qk_stored;
    const float *v_rows = k_rows + c->n_kv_heads * a->qk_stored;
    double x[256], scores[2048];
    for (int64_t h = 0; h < c->n_kv_heads && only_keys; h++) {
        int64_t at = (sequence * c->n_kv_heads + h) * a->capacity + position;
        for (int64_t i = 0; i < c->qk; i++)
            x[i] = k_rows[h * a->qk_stored + i];
        turn(a, a->k_norm, position, x);
        memcpy(a->k + at * c->qk, x, (size_t)c->qk * sizeof *x);
        for (int64_t i = 0; i < c->v; i++)
            a->v[at * c->v + i] = v_rows[h * a->v_stored + i];
    }
    for (int64_t h = 0; h < c->n_q_heads && !only_keys; h++) {
        int64_t kv = h / (c->n_q_heads / c->n_kv_heads);
        int64_t base = (sequence * c->n_kv_heads + kv) * a->capacity;
        double top = -INFINITY, sum = 0, *y = out + h * a->v_stored;
        for (int64_t i = 0; i < c->qk; i++)
            x[i] = qkv[h * a->qk_stored + i];
        turn(a, a->q_norm, position, x);
        for (int64_t j = 0; j <= position; j++) {
            scores[j] = 0;
            for (int64_t i = 0; i < c->qk; i++)
                scores[j] += x[i] * a->k[(base + j) * c->qk + i];
            scores[j] /= sqrt((double)c->qk);
            top = fmax(top, scores[j]);
        }
        for (int64_t j = 0; j <= position; j++)
            sum += scores[j] = exp(scores[j] - top);
        for (int64_t i = 0; i < a->v_stored; i++) {
            y[i] = 0;
            for (int64_t j = 0; j <= position && i < c->v; j++)
                y[i] += scores[j] / sum * a->v[(base + j) * c->v + i];
        }
    }
}

static float *random_floats(int64_t n, double base, double scale)
{
    float *x = need(malloc((size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(base + scale * random_number());
    return x;
}

static void open_attention(attention *a, bench *b, const attention_case *c)
{
    memset(a, 0, sizeof *a);
    a->c = c;
    a->qk_stored = b->ops->stored(b->state, GAC_SIZE_HEAD, c->qk);
    a->v_stored = b->ops->stored(b->state, GAC_SIZE_HEAD, c->v);
    for (int i = 0; i < 6 && c->passes[i]; i++)
        a->capacity += c->passes[i];
    a->capacity += 3;
    a->hidden = 64;
    a->width = (c->n_q_heads + c->n_kv_heads) * a->qk_stored + c->n_kv_heads * a->v_stored;
    int64_t n = c->batch * c->n_kv_heads * a->capacity, half = c->qk / 2;
    a->k = need(calloc((size_t)(n * c->qk), sizeof *a->k));
    a->v = need(calloc((size_t)(n * c->v), sizeof *a->v));
    a->cosines = random_floats(a->capacity * half + 1, 0, 1);
    a->sines = random_floats(a->capacity * half + 1, 0, 1);
    for (int64_t i = 0; i < a->capacity * half; i++) {
        double angle = 3 * a->cosines[i];
        a->cosines[i] = (float)cos(angle);
        a->sines[i] = (float)sin(angle);
    }
    a->q_norm = random_floats(c->qk, 1, 0.3);
    a->k_norm = random_floats(c->qk, 1, 0.3);
}

static void close_attention(attention *a)
{
    free(a->k);
    free(a->v);
    free(a->cosines);
    free(a->sines);
    free(a->q_norm);
    free(a->k_norm);
}

/* Runs one pass: rows of q, k, v from an embedding, then attention. */
static gac_status run_pass(bench *b, attention *a, gac_attention_call *call, gac_matrix *matrix,
                           int64_t n_new, int64_t n_past, const char *name, gac_error *err)
{
    const attention_case *c = a->c;
    stream s;
    int64_t n = c->batch * n_new, out_width = c->n_q_heads * a->v_stored;
    float *qkv = need(malloc((size_t)(n * a->width) * sizeof *qkv));
    float *actual = need(malloc((size_t)(n * out_width) * sizeof *actual));
    double *expected = need(malloc((size_t)(n * out_width) * sizeof *expected));
    gac_status status = open_stream(b, a->hidden, c->batch, n_new, &s, err);
    if (status == GAC_OK)
        status = b->ops->begin(b->state, s.ids, c->batch, n_new, n_past, err);
    gac_linear_call linear = { .matrix = matrix,
                               .x = s.rows,
                               .norm = NULL,
                               .eps = 0,
                               .out = (gac_rows *)(uintptr_t)call->qkv,
                               .mode = GAC_LINEAR_SET };
    if (status == GAC_OK)
        status = b->ops->linear(b->state, &linear, err);
    if (status == GAC_OK)
        status = b->ops->attend(b->state, call, err);
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, call->qkv, 0, n, qkv, err);
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, call->out, 0, n, actual, err);
    for (int pass = 0; pass < 2 && status == GAC_OK; pass++)
        for (int64_t r = 0; r < n; r++)
            attend_row(a, r / n_new, n_past + r % n_new, qkv + r * a->width, pass == 0,
                       expected + r * out_width);
    if (status == GAC_OK)
        judge(name, actual, expected, n * out_width, tolerance_of(b->options.dtype));
    close_stream(b, &s);
    free(qkv);
    free(actual);
    free(expected);
    return status;
}

/* Creates the projections to q, k and v. Their padding is zero. */
static gac_status make_heads(bench *b, const attention *a, module modules[3], gac_matrix **out,
                             gac_error *err)
{
    const attention_case *c = a->c;
    const gac_axis axes[3] = { { c->n_q_heads, c->qk, a->qk_stored },
                               { c->n_kv_heads, c->qk, a->qk_stored },
                               { c->n_kv_heads, c->v, a->v_stored } };
    gac_linear_module hosts[3];
    for (int i = 0; i < 3; i++) {
        make_module(&modules[i], (module_spec){ axes[i], 0, 1, false, false }, a->hidden,
                    b->options.dtype);
        hosts[i] = modules[i].host;
    }
    return b->ops->matrix_create(b->state, (gac_axis){ 1, a->hidden, a->hidden }, hosts, 3, out,
                                 err);
}

static gac_status run_attention(bench *b, const attention_case *c, const char *name, gac_error *err)
{
    attention a;
    module modules[3];
    gac_matrix *matrix = NULL;
    gac_rows *qkv = NULL, *out = NULL;
    gac_cache *cache = NULL;
    gac_vector *vectors[4] = { NULL };
    open_attention(&a, b, c);
    int64_t half = c->qk / 2, at = 0;
    const float *data[4] = { a.cosines, a.sines, a.q_norm, a.k_norm };
    const int64_t sizes[4] = { a.capacity * half + 1, a.capacity * half + 1, c->qk, c->qk };
    gac_status status = make_heads(b, &a, modules, &matrix, err);
    for (int i = 0; i < 4 && status == GAC_OK; i++)
        status = b->ops->vector_create(b->state, data[i], sizes[i], &vectors[i], err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, a.width, false, &qkv, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, c->n_q_heads * a.v_stored, false, &out, err);
    if (status == GAC_OK)
        status = b->ops->cache_create(b->state, c->batch, a.capacity, c->n_kv_heads, a.qk_stored,
                                      a.v_stored, &cache, err);
    gac_attention_call call = { .cache = cache,
                                .qkv = qkv,
                                .out = out,
                                .n_q_heads = c->n_q_heads,
                                .n_kv_heads = c->n_kv_heads,
                                .qk_size = c->qk,
                                .qk_stored = a.qk_stored,
                                .v_size = c->v,
                                .v_stored = a.v_stored,
                                .q_norm = c->norm ? vectors[2] : NULL,
                                .k_norm = c->norm ? vectors[3] : NULL,
                                .eps = EPS,
                                .cosines = c->rope ? vectors[0] : NULL,
                                .sines = c->rope ? vectors[1] : NULL,
                                .scale = 1 / sqrt((double)c->qk) };
    for (int i = 0; i < 6 && c->passes[i] && status == GAC_OK; i++) {
        char line[200];
        snprintf(line, sizeof line, "%s %lld after %lld", name, (long long)c->passes[i],
                 (long long)at);
        status = run_pass(b, &a, &call, matrix, c->passes[i], at, line, err);
        at += c->passes[i];
    }
    b->ops->matrix_free(b->state, matrix);
    for (int i = 0; i < 4; i++)
        b->ops->vector_free(b->state, vectors[i]);
    b->ops->rows_free(b->state, qkv);
    b->ops->rows_free(b->state, out);
    b->ops->cache_free(b->state, cache);
    for (int i = 0; i < 3; i++)
        free_module(&modules[i]);
    close_attention(&a);
    return status;
}

void check_attentions(bench *b, bool small)
{
    static const attention_case cases[] = {
        { 1, 8, 2, 128, 128, { 37, 1, 1, 5 }, false, true },
        { 3, 4, 4, 64, 64, { 1, 1, 20, 1 }, false, true },
        { 2, 6, 2, 106, 106, { 17, 1, 1 }, false, true },
        { 2, 4, 1, 107, 63, { 9, 1, 2, 1 }, true, true },
        { 1, 12, 1, 256, 256, { 40, 1 }, true, false },
        { 1, 16, 2, 80, 128, { 70, 1 }, false, true },
        { 5, 10, 2, 128, 64, { 130, 1, 1 }, true, true },
        { 1, 4, 2, 128, 128, { 600, 520, 1 }, false, true }, /* long enough for cuDNN */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attention_case *c = &cases[i];
        gac_error err = GAC_ERROR_INIT;
        char name[120];
        if (small && i % 3)
            continue;
        snprintf(name, sizeof name, "attention b=%lld h=%lld/%lld qk=%lld v=%lld%s%s %s%s",
                 (long long)c->batch, (long long)c->n_q_heads, (long long)c->n_kv_heads,
                 (long long)c->qk, (long long)c->v, c->norm ? " norm" : "", c->rope ? " rope" : "",
                 gac_dtype_name(b->options.dtype), b->options.padding ? "" : " no pad");
        failed(run_attention(b, c, name, &err), name, &err);
    }
}

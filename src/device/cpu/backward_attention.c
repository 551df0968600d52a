/* Attention, forward and back, for one sequence. A thread takes one query head at a time, and a
 * block of queries of it, so that scores need little memory. */
#include "device/cpu/backward.h"
#include "device/cpu/compute_blas.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#define QUERY_BLOCK 128

/* One head of q or k: norm and rotation of a row. */
static void turn(const gac_back_attention *a, const float *norm, const float *x, int64_t position,
                 float *out)
{
    const gac_backward_layer *job = a->job;
    const int64_t n = job->qk_size, half = n / 2;
    const gac_cpu_norm_args args = { .weights = norm, .eps = job->eps };
    if (norm)
        gac_cpu_norm(a->compute, &args, x, n, out);
    else
        memcpy(out, x, (size_t)n * sizeof *out);
    for (int64_t i = 0; job->cosines && i < half; i++) {
        const float c = job->cosines[position * half + i], s = job->sines[position * half + i];
        const float first = out[i], second = out[i + half];
        out[i] = first * c - second * s;
        out[i + half] = second * c + first * s;
    }
}

/* The way back: gradient (qk_size) goes in as that of the turned row, and comes out as that of x.
 */
static void turn_back(const gac_back_attention *a, const float *norm, const float *x,
                      int64_t position, float *gradient, float *scratch)
{
    const gac_backward_layer *job = a->job;
    const int64_t n = job->qk_size, half = n / 2;
    for (int64_t i = 0; job->cosines && i < half; i++) {
        const float c = job->cosines[position * half + i], s = job->sines[position * half + i];
        const float first = gradient[i], second = gradient[i + half];
        gradient[i] = first * c + second * s;
        gradient[i + half] = second * c - first * s;
    }
    if (!norm)
        return;
    memcpy(scratch, gradient, (size_t)n * sizeof *scratch);
    memset(gradient, 0, (size_t)n * sizeof *gradient);
    gac_back_norm(a->compute, norm, job->eps, x, scratch, n, gradient);
}

static void turn_row(void *data, int64_t t, int thread)
{
    const gac_back_attention *a = data;
    const gac_backward_layer *job = a->job;
    (void)thread;
    for (int64_t h = 0; h < job->n_q_heads; h++) {
        const int64_t at = (t * job->n_q_heads + h) * job->qk_size;
        turn(a, job->q_norm, a->q + at, t, a->q_turned + at);
    }
    for (int64_t h = 0; h < job->n_kv_heads; h++) {
        const int64_t at = (t * job->n_kv_heads + h) * job->qk_size;
        turn(a, job->k_norm, a->k + at, t, a->k_turned + at);
    }
}

/* A block of queries of one head. */
typedef struct query_block {
    int64_t first, n, n_keys; /* queries; the keys that the last of them sees */
    int64_t q_stride, k_stride, v_stride, out_stride;
    const float *q, *k, *v; /* of the head, turned */
    float *out;             /* (n, v_size) */
} query_block;

static query_block block_of(const gac_back_attention *a, int64_t head, int64_t first)
{
    const gac_backward_layer *job = a->job;
    const int64_t kv_head = head / (job->n_q_heads / job->n_kv_heads);
    query_block b = { .first = first,
                      .n = gac_min_i64(QUERY_BLOCK, job->n_tokens - first),
                      .q_stride = job->n_q_heads * job->qk_size,
                      .k_stride = job->n_kv_heads * job->qk_size,
                      .v_stride = job->n_kv_heads * job->v_size,
                      .out_stride = job->n_q_heads * job->v_size };
    b.n_keys = first + b.n;
    b.q = a->q_turned + first * b.q_stride + head * job->qk_size;
    b.k = a->k_turned + kv_head * job->qk_size;
    b.v = a->v + kv_head * job->v_size;
    b.out = a->out + first * b.out_stride + head * job->v_size;
    return b;
}

/* Fills shares (n, n_keys) with the weight that each query gives to each key. */
static void fill_shares(const gac_backward_layer *job, const query_block *b, float *shares)
{
    gac_blas_gemm(true, b->n, b->n_keys, job->qk_size, (float)job->scale, b->q, b->q_stride, b->k,
                  b->k_stride, 0, shares, b->n_keys);
    for (int64_t r = 0; r < b->n; r++) {
        float *row = shares + r * b->n_keys;
        const int64_t end = b->first + r + 1;
        const int64_t first = job->window > 0 ? gac_max_i64(end - job->window, 0) : 0;
        float largest = row[first];
        double sum = 0;
        for (int64_t i = first; i < end; i++)
            largest = fmaxf(largest, row[i]);
        for (int64_t i = first; i < end; i++)
            sum += (double)(row[i] = expf(row[i] - largest));
        for (int64_t i = first; i < end; i++)
            row[i] *= (float)(1 / sum);
        memset(row, 0, (size_t)first * sizeof *row);
        memset(row + end, 0, (size_t)(b->n_keys - end) * sizeof *row);
    }
}

static void attend_head(void *data, int64_t head, int thread)
{
    const gac_back_attention *a = data;
    float *shares = a->compute->scratch[thread].data;
    for (int64_t first = 0; first < a->job->n_tokens; first += QUERY_BLOCK) {
        const query_block b = block_of(a, head, first);
        fill_shares(a->job, &b, shares);
        gac_blas_gemm(false, b.n, a->job->v_size, b.n_keys, 1, shares, b.n_keys, b.v, b.v_stride, 0,
                      b.out, b.out_stride);
    }
}

size_t gac_back_attention_bytes(const gac_backward_layer *job)
{
    const size_t n_tokens = (size_t)job->n_tokens;
    return (2 * QUERY_BLOCK * n_tokens + (size_t)job->qk_size) * sizeof(float);
}

void gac_back_attend(const gac_back_attention *attention)
{
    gac_pool *pool = attention->compute->pool;
    gac_pool_run(pool, attention->job->n_tokens, turn_row, (void *)(uintptr_t)attention);
    gac_pool_run(pool, attention->job->n_q_heads, attend_head, (void *)(uintptr_t)attention);
}

/* Turns the gradients of the shares into those of the scores. */
static void scores_back(const query_block *b, double scale, const float *shares, float *gradient)
{
    for (int64_t r = 0; r < b->n; r++) {
        const float *share = shares + r * b->n_keys;
        float *row = gradient + r * b->n_keys;
        double sum = 0;
        for (int64_t i = 0; i < b->n_keys; i++)
            sum += (double)share[i] * (double)row[i];
        for (int64_t i = 0; i < b->n_keys; i++)
            row[i] = share[i] * (row[i] - (float)sum) * (float)scale;
    }
}

/* c (n, k) += a (m, n) transposed b (m, k). */
static void add_transposed(int64_t n, int64_t k, int64_t m, const float *a, const float *b,
                           int64_t b_stride, float *c)
{
    __typeof__(cblas_sgemm) *gemm;
    if (gac_blas_find("cblas_sgemm", &gemm))
        gemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)n, (blasint)k, (blasint)m, 1, a,
             (blasint)n, b, (blasint)b_stride, 1, c, (blasint)k);
}

/* The gradient of q_turned replaces q_turned, block by block: later blocks do not read it. */
static void attend_head_back(void *data, int64_t head, int thread)
{
    const gac_back_attention *a = data;
    const gac_backward_layer *job = a->job;
    float *shares = a->compute->scratch[thread].data;
    float *gradient = shares + QUERY_BLOCK * job->n_tokens; /* of the shares, then of the scores */
    float *k_part = a->k_parts + head * job->n_tokens * job->qk_size;
    float *v_part = a->v_parts + head * job->n_tokens * job->v_size;
    memset(k_part, 0, (size_t)(job->n_tokens * job->qk_size) * sizeof *k_part);
    memset(v_part, 0, (size_t)(job->n_tokens * job->v_size) * sizeof *v_part);
    for (int64_t first = 0; first < job->n_tokens; first += QUERY_BLOCK) {
        const query_block b = block_of(a, head, first);
        fill_shares(job, &b, shares);
        gac_blas_gemm(true, b.n, b.n_keys, job->v_size, 1, b.out, b.out_stride, b.v, b.v_stride, 0,
                      gradient, b.n_keys);
        add_transposed(b.n_keys, job->v_size, b.n, shares, b.out, b.out_stride, v_part);
        scores_back(&b, job->scale, shares, gradient);
        add_transposed(b.n_keys, job->qk_size, b.n, gradient, b.q, b.q_stride, k_part);
        gac_blas_gemm(false, b.n, job->qk_size, b.n_keys, 1, gradient, b.n_keys, b.k, b.k_stride, 0,
                      (float *)(uintptr_t)b.q, b.q_stride);
    }
}

/* Sums the parts of a group of query heads into row t of one head of keys or values. */
static void sum_parts(const gac_back_attention *a, const float *parts, int64_t size,
                      int64_t kv_head, int64_t t, float *out)
{
    const int64_t group = a->job->n_q_heads / a->job->n_kv_heads;
    memset(out, 0, (size_t)size * sizeof *out);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int64_t i = 0; i < size; i++)
            out[i] += parts[(h * a->job->n_tokens + t) * size + i];
}

static void turn_row_back(void *data, int64_t t, int thread)
{
    const gac_back_attention *a = data;
    const gac_backward_layer *job = a->job;
    float *scratch = a->compute->scratch[thread].data;
    const size_t n_bytes = (size_t)job->qk_size * sizeof(float);
    for (int64_t h = 0; h < job->n_q_heads; h++) {
        const int64_t at = (t * job->n_q_heads + h) * job->qk_size;
        turn_back(a, job->q_norm, a->q + at, t, a->q_turned + at, scratch);
        memcpy(a->q + at, a->q_turned + at, n_bytes);
    }
    for (int64_t h = 0; h < job->n_kv_heads; h++) {
        const int64_t at = (t * job->n_kv_heads + h) * job->qk_size;
        sum_parts(a, a->k_parts, job->qk_size, h, t, a->k_turned + at);
        turn_back(a, job->k_norm, a->k + at, t, a->k_turned + at, scratch);
        memcpy(a->k + at, a->k_turned + at, n_bytes);
        sum_parts(a, a->v_parts, job->v_size, h, t, a->v + (t * job->n_kv_heads + h) * job->v_size);
    }
}

void gac_back_attend_back(const gac_back_attention *attention)
{
    gac_pool *pool = attention->compute->pool;
    gac_pool_run(pool, attention->job->n_q_heads, attend_head_back, (void *)(uintptr_t)attention);
    gac_pool_run(pool, attention->job->n_tokens, turn_row_back, (void *)(uintptr_t)attention);
}

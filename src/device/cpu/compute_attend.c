/* Attention on the CPU. New keys and values go into the cache first. A work item then
 * handles a block of queries that share one kv head. */
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <string.h>

#define ROWS_PER_ITEM 16
#define EXACT_ROWS 32         /* queries per block, reference */
#define FAST_ROWS 192         /* most queries per block, cpu */
#define FAST_SCORES (1 << 18) /* most scores per block, so that they fit the L2 cache */

/* Applies the norm of n_heads heads together, x (n_heads, qk_stored), to one of them. */
static void norm_whole(const gac_cpu_attention *attention, const float *x, int64_t n_heads,
                       int64_t head, const gac_vector *norm, float *out)
{
    const gac_attention_call *call = attention->call;
    const int64_t size = call->qk_size, stride = call->qk_stored;
    double squares = 0;
    for (int64_t h = 0; h < n_heads; h++)
        squares += gac_cpu_squares(attention->compute, x + h * stride, 0, size);
    double factor = 1 / sqrt(squares / (double)(n_heads * size) + call->eps);
    for (int64_t i = 0; i < size; i++)
        out[i] =
            (float)((double)x[head * stride + i] * factor * (double)norm->data[head * size + i]);
}

/* Applies the norm and the rotary embedding to one of n_heads heads x (n_heads, qk_stored);
 * out (qk_size). */
static void prepare_head(const gac_cpu_attention *attention, const float *x, int64_t n_heads,
                         int64_t head, const gac_vector *norm, int64_t position, float *out)
{
    const gac_attention_call *call = attention->call;
    const int64_t size = call->qk_size;
    const int64_t half = (call->rotary_size > 0 ? call->rotary_size : size) / 2;
    const int64_t step = call->interleaved ? 2 : 1, other = call->interleaved ? 1 : half;
    if (norm && call->norm_whole) {
        norm_whole(attention, x, n_heads, head, norm, out);
    } else if (norm) {
        const float *weights = norm->data + (norm->n > size ? head * size : 0);
        const gac_cpu_norm_args args = { weights, NULL, call->eps, call->norm_centred };
        gac_cpu_norm(attention->compute, &args, x + head * call->qk_stored, size, out);
    } else {
        memcpy(out, x + head * call->qk_stored, (size_t)size * sizeof *out);
    }
    if (!call->cosines)
        return;
    const float *cosines = call->cosines->data + position * half;
    const float *sines = call->sines->data + position * half;
    for (int64_t i = 0; i < half; i++) {
        float *first = out + step * i, *second = first + other;
        double a = (double)*first, b = (double)*second;
        *first = (float)(a * (double)cosines[i] - b * (double)sines[i]);
        *second = (float)(b * (double)cosines[i] + a * (double)sines[i]);
    }
}

/* Writes the keys and values of ROWS_PER_ITEM rows to the cache. */
static void fill_cache(void *data, int64_t item, int thread)
{
    const gac_cpu_attention *attention = data;
    const gac_attention_call *call = attention->call;
    const gac_cpu_compute *compute = attention->compute;
    gac_cache *cache = call->cache;
    int64_t n_rows = compute->batch * compute->n_new;
    int64_t end = (item + 1) * ROWS_PER_ITEM < n_rows ? (item + 1) * ROWS_PER_ITEM : n_rows;
    (void)thread;
    for (int64_t row = item * ROWS_PER_ITEM; row < end; row++) {
        const float *keys =
            call->qkv->data + row * call->qkv->stride + call->n_q_heads * call->qk_stored;
        const float *values = keys + call->n_kv_heads * call->qk_stored;
        int64_t position = compute->n_past + row % compute->n_new;
        for (int64_t h = 0; h < call->n_kv_heads; h++) {
            int64_t place =
                (row / compute->n_new * cache->n_kv_heads + h) * cache->capacity + position;
            prepare_head(attention, keys, call->n_kv_heads, h, call->k_norm, position,
                         cache->keys + place * cache->qk_stored);
            memcpy(cache->values + place * cache->v_stored, values + h * call->v_stored,
                   (size_t)call->v_size * sizeof *values);
        }
    }
}

/* Attends with one block of tokens and all query heads of one kv head. The last blocks
 * see the most keys, so they start first. */
static void attend_item(void *data, int64_t item, int thread)
{
    const gac_cpu_attention *attention = data;
    const gac_attention_call *call = attention->call;
    gac_cpu_compute *compute = attention->compute;
    const int64_t n_pairs = compute->batch * call->n_kv_heads, group = attention->group;
    const int64_t sequence = item % n_pairs / call->n_kv_heads, kv_head = item % call->n_kv_heads;
    const int64_t first = (attention->n_blocks - 1 - item / n_pairs) * attention->n_tokens;
    const int64_t n_tokens =
        compute->n_new - first < attention->n_tokens ? compute->n_new - first : attention->n_tokens;
    const int64_t n_rows = n_tokens * group;
    float *out = compute->scratch[thread].data; /* (n_rows, v_size) */
    float *q = out + n_rows * call->v_size;     /* (n_rows, qk_size) */
    int64_t used = (n_rows * (call->v_size + call->qk_size) + 15) / 16 * 16;
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t token = first + r / group, head = kv_head * group + r % group;
        const float *row =
            call->qkv->data + (sequence * compute->n_new + token) * call->qkv->stride;
        prepare_head(attention, row, call->n_q_heads, head, call->q_norm, compute->n_past + token,
                     q + r * call->qk_size);
    }
    compute->arithmetic->attend(attention, q, sequence, kv_head, first, n_rows, out + used, out);
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t token = first + r / group, head = kv_head * group + r % group;
        float *to = call->out->data + (sequence * compute->n_new + token) * call->out->stride +
                    head * call->v_stored;
        memcpy(to, out + r * call->v_size, (size_t)call->v_size * sizeof *to);
        memset(to + call->v_size, 0, (size_t)(call->v_stored - call->v_size) * sizeof *to);
    }
}

static gac_status check_call(const gac_cpu_compute *compute, const gac_attention_call *call,
                             gac_error *err)
{
    const gac_cache *cache = call->cache;
    int64_t n_keys = compute->n_past + compute->n_new;
    if (compute->batch > cache->batch || n_keys > cache->capacity)
        return gac_error_set(err, GAC_USAGE, "%lld x %lld tokens in a cache for %lld x %lld",
                             (long long)compute->batch, (long long)n_keys, (long long)cache->batch,
                             (long long)cache->capacity);
    if (call->n_kv_heads < 1 || call->n_kv_heads != cache->n_kv_heads ||
        call->n_q_heads % call->n_kv_heads != 0 || call->qk_size > cache->qk_stored ||
        call->v_size > cache->v_stored)
        return gac_error_set(err, GAC_USAGE,
                             "%lld query heads of %lld and %lld in a cache of %lld heads of "
                             "%lld and %lld",
                             (long long)call->n_q_heads, (long long)call->qk_size,
                             (long long)call->v_size, (long long)cache->n_kv_heads,
                             (long long)cache->qk_stored, (long long)cache->v_stored);
    if (call->rotary_size < 0 || call->rotary_size > call->qk_size || call->window < 0 ||
        (call->norm_whole && call->norm_centred))
        return gac_error_set(err, GAC_USAGE, "attention with sizes that make no sense");
    int64_t n_rotated = call->rotary_size > 0 ? call->rotary_size : call->qk_size;
    if (call->cosines && call->cosines->n / n_keys < n_rotated / 2)
        return gac_error_set(err, GAC_USAGE, "position %lld is beyond the table of angles",
                             (long long)n_keys - 1);
    return GAC_OK;
}

static gac_status reserve_work(gac_cpu_compute *compute, const gac_attention_call *call,
                               int64_t n_rows, gac_error *err)
{
    size_t bytes;
    int64_t heads;
    if (!compute->arithmetic->attend_bytes(call, n_rows, compute->n_past + compute->n_new,
                                           &bytes) ||
        !gac_add_i64(call->v_size, call->qk_size, &heads) ||
        !gac_mul_i64(heads, n_rows * (int64_t)sizeof(float), &heads) ||
        !gac_add_i64(heads, 64, &heads) || __builtin_add_overflow(bytes, (size_t)heads, &bytes))
        return gac_error_no_memory(err);
    return gac_scratch_reserve(compute, bytes, err);
}

gac_key_range gac_cpu_seen(const gac_cpu_attention *attention, int64_t first, int64_t n_rows)
{
    const gac_attention_call *call = attention->call;
    int64_t position = attention->compute->n_past + first;
    int64_t end = position + (n_rows - 1) / attention->group + 1;
    int64_t start = call->window > 0 && position >= call->window ? position + 1 - call->window : 0;
    return (gac_key_range){ start, end - start, position - start };
}

int64_t gac_cpu_first_seen(const gac_cpu_attention *attention, gac_key_range range, int64_t r)
{
    const int64_t window = attention->call->window;
    int64_t n_seen = range.n_past + r / attention->group + 1;
    return window > 0 && n_seen > window ? n_seen - window : 0;
}

gac_status gac_cpu_attend(void *state, const gac_attention_call *call, gac_error *err)
{
    gac_cpu_compute *compute = state;
    gac_cpu_attention attention = { .compute = compute, .call = call };
    gac_status status = check_call(compute, call, err);
    if (status != GAC_OK)
        return status;
    int64_t n_keys = compute->n_past + compute->n_new, n_rows = EXACT_ROWS;
    if (!compute->arithmetic->exact)
        n_rows = FAST_SCORES / n_keys < FAST_ROWS ? FAST_SCORES / n_keys : FAST_ROWS;
    attention.group = call->n_q_heads / call->n_kv_heads;
    attention.n_tokens = n_rows / attention.group > 1 ? n_rows / attention.group : 1;
    if (attention.n_tokens > compute->n_new)
        attention.n_tokens = compute->n_new;
    attention.n_blocks = (compute->n_new + attention.n_tokens - 1) / attention.n_tokens;
    status = reserve_work(compute, call, attention.n_tokens * attention.group, err);
    if (status != GAC_OK)
        return status;
    gac_pool_run(compute->pool,
                 (compute->batch * compute->n_new + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, fill_cache,
                 &attention);
    gac_pool_run(compute->pool, compute->batch * call->n_kv_heads * attention.n_blocks, attend_item,
                 &attention);
    return GAC_OK;
}

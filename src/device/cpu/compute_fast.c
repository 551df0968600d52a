/* The arithmetic of `cpu`: F32, through OpenBLAS. Each call multiplies by one panel of
 * weights, which is converted to F32 just before and is still in the cache. A few rows
 * use dot products instead, which read the weights as they are stored. */
#include "device/cpu/compute_blas.h"
#include "device/cpu/compute_internal.h"

#include <string.h>

#define FEW_ROWS 2            /* most rows that use dot products */
#define FEW_QUERIES 8         /* most query rows that use dot products */
#define DOT_COLUMNS 64        /* outputs per work item of dot products */
#define PANEL_BYTES (1 << 20) /* most bytes of a panel of weights, so that it fits the L2 cache */
#define MAX_WIDTH 384
#define MIN_WIDTH 64

typedef struct multiply_run {
    gac_cpu_compute *compute;
    const gac_product *products;
    int64_t m, n_threads;
} multiply_run;

/* Below these limits OpenBLAS (0.3.21, AVX-512) uses kernels that skip packing. They are
 * 1.5 times as fast at 16 to 64 rows and twice as fast at 9 rows. */
#define SMALL_PRODUCT 1000000
#define SMALL_OUTPUTS 1200
#define SMALL_ROWS 64

/* Returns the number of outputs per work item: few enough to fit the cache and to give
 * every thread work. */
static int64_t panel_width(const multiply_run *run, const gac_product *product)
{
    const int64_t m = run->m, n = product->weight.n_rows, k = product->weight.n_cols;
    const int64_t small = gac_min_i64(SMALL_PRODUCT / (m * k), SMALL_OUTPUTS / m) / 16 * 16;
    if (m <= FEW_ROWS)
        return DOT_COLUMNS;
    if (m <= SMALL_ROWS && small > 0)
        return small;
    int64_t most = gac_min_i64(PANEL_BYTES / (k * (int64_t)sizeof(float)), MAX_WIDTH);
    most = most < MIN_WIDTH ? MIN_WIDTH : most;
    int64_t rounds = (n + most * run->n_threads - 1) / (most * run->n_threads);
    int64_t width = (n + rounds * run->n_threads - 1) / (rounds * run->n_threads);
    width = (width + 15) / 16 * 16;
    return width < MIN_WIDTH ? MIN_WIDTH : width;
}

static int64_t n_panels(const multiply_run *run, const gac_product *product)
{
    int64_t width = panel_width(run, product);
    return (product->weight.n_rows + width - 1) / width;
}

static void dot_columns(const multiply_run *run, const gac_product *product, int64_t first,
                        int64_t n)
{
    const gac_host_tensor *weight = &product->weight;
    const int64_t bytes = weight->n_cols * (gac_dtype_bits(weight->dtype) / 8);
    for (int64_t j = first; j < first + n; j++) {
        float sums[FEW_ROWS];
        float bias = product->bias ? product->bias[j] : 0;
        run->compute->kernels->dots(product->x, product->x_stride, (int)run->m,
                                    (const char *)weight->data + j * bytes, weight->dtype,
                                    weight->n_cols, sums);
        for (int64_t r = 0; r < run->m; r++) {
            float *y = product->y + r * product->y_stride + j;
            *y = (product->add ? *y : 0) + (sums[r] + bias);
        }
    }
}

/* Initialises y with the bias. The product is then added to it. */
static void start_with_bias(const gac_product *product, int64_t m, int64_t first, int64_t n)
{
    for (int64_t r = 0; r < m; r++) {
        float *y = product->y + r * product->y_stride + first;
        for (int64_t j = 0; j < n; j++)
            y[j] = (product->add ? y[j] : 0) + product->bias[first + j];
    }
}

static void multiply_item(void *data, int64_t item, int thread)
{
    const multiply_run *run = data;
    const gac_product *product = run->products;
    while (item >= n_panels(run, product))
        item -= n_panels(run, product++);
    const gac_host_tensor *weight = &product->weight;
    const int64_t k = weight->n_cols, width = panel_width(run, product), first = item * width;
    const int64_t n = weight->n_rows - first < width ? weight->n_rows - first : width;
    if (run->m <= FEW_ROWS) {
        dot_columns(run, product, first, n);
        return;
    }
    const char *from = (const char *)weight->data + first * k * (gac_dtype_bits(weight->dtype) / 8);
    const float *panel = run->compute->scratch[thread].data;
    if (weight->dtype == GAC_DTYPE_F32 && (uintptr_t)from % sizeof(float) == 0)
        panel = (const float *)(const void *)from;
    else
        run->compute->kernels->to_float(from, weight->dtype, n * k,
                                        run->compute->scratch[thread].data);
    if (product->bias)
        start_with_bias(product, run->m, first, n);
    gac_blas_gemm(true, run->m, n, k, 1, product->x, product->x_stride, panel, k,
                  product->bias || product->add ? 1 : 0, product->y + first, product->y_stride);
}

static gac_status multiply(gac_cpu_compute *compute, const gac_product *products, int n_products,
                           int64_t m, gac_error *err)
{
    multiply_run run = { compute, products, m, gac_pool_threads(compute->pool) };
    int64_t n_items = 0;
    size_t numbers = 0;
    for (int i = 0; i < n_products; i++) {
        /* No overflow: weight sizes are below 2^31. */
        size_t wanted = (size_t)products[i].weight.n_cols * (size_t)panel_width(&run, &products[i]);
        numbers = wanted > numbers ? wanted : numbers;
        n_items += n_panels(&run, &products[i]);
    }
    gac_status status =
        gac_scratch_reserve(compute, m <= FEW_ROWS ? 0 : numbers * sizeof(float), err);
    if (status == GAC_OK)
        gac_pool_run(compute->pool, n_items, multiply_item, &run);
    return status;
}

/* Scratch holds the scores and one factor per row. */
static bool attend_bytes(const gac_attention_call *call, int64_t n_rows, int64_t n_keys,
                         size_t *bytes)
{
    int64_t numbers;
    (void)call;
    if (!gac_mul_i64(n_rows, n_keys, &numbers) || !gac_add_i64(numbers, n_rows, &numbers) ||
        !gac_mul_i64(numbers, (int64_t)sizeof(float), &numbers))
        return false;
    *bytes = (size_t)numbers;
    return true;
}

/* Turns scores (n_rows, keys of the range) into softmax weights without their
 * normalisation, which goes to factors (n_rows). Row r sees the keys from
 * gac_cpu_first_seen to n_past + r / group. The other weights become 0. */
static void softmax(const gac_cpu_attention *attention, gac_key_range range, int64_t n_rows,
                    float *scores, float *factors)
{
    const gac_cpu_kernels *kernels = attention->compute->kernels;
    const double softcap = attention->call->softcap;
    for (int64_t r = 0; r < n_rows; r++, scores += range.n) {
        int64_t end = range.n_past + r / attention->group + 1;
        int64_t first = gac_cpu_first_seen(attention, range, r), n_seen = end - first;
        if (softcap > 0)
            gac_cpu_bound(0, softcap, n_seen, scores + first);
        factors[r] =
            1 / kernels->exps(scores + first, n_seen, kernels->largest(scores + first, n_seen));
        memset(scores, 0, (size_t)first * sizeof *scores);
        memset(scores + end, 0, (size_t)(range.n - end) * sizeof *scores);
    }
}

/* Attention by dot products, for few rows. */
static void attend_few(const gac_cpu_attention *attention, const float *q, const float *keys,
                       const float *values, gac_key_range range, int64_t n_rows, float *scores,
                       float *factors, float *out)
{
    const gac_attention_call *call = attention->call;
    const gac_cpu_kernels *kernels = attention->compute->kernels;
    const int64_t n_keys = range.n;
    for (int64_t j = 0; j < n_keys; j++) {
        float sums[FEW_QUERIES];
        kernels->dots(q, call->qk_size, (int)n_rows, keys + j * call->cache->qk_stored,
                      GAC_DTYPE_F32, call->qk_size, sums);
        for (int64_t r = 0; r < n_rows; r++)
            scores[r * n_keys + j] = sums[r] * (float)call->scale;
    }
    softmax(attention, range, n_rows, scores, factors);
    for (int64_t r = 0; r < n_rows; r++)
        kernels->mix(scores + r * n_keys, values, call->cache->v_stored, n_keys, call->v_size,
                     out + r * call->v_size);
}

static void attend(const gac_cpu_attention *attention, const float *q, int64_t sequence,
                   int64_t kv_head, int64_t first, int64_t n_rows, void *scratch, float *out)
{
    const gac_attention_call *call = attention->call;
    const gac_cache *cache = call->cache;
    const int64_t head = (sequence * cache->n_kv_heads + kv_head) * cache->capacity;
    const gac_key_range range = gac_cpu_seen(attention, first, n_rows);
    const int64_t n_keys = range.n, qk_size = call->qk_size, v_size = call->v_size;
    const float *keys = cache->keys + (head + range.start) * cache->qk_stored;
    const float *values = cache->values + (head + range.start) * cache->v_stored;
    float *factors = scratch, *scores = factors + n_rows; /* (n_rows) and (n_rows, n_keys) */
    if (n_rows <= FEW_QUERIES) {
        attend_few(attention, q, keys, values, range, n_rows, scores, factors, out);
    } else {
        gac_blas_gemm(true, n_rows, n_keys, qk_size, (float)call->scale, q, qk_size, keys,
                      cache->qk_stored, 0, scores, n_keys);
        softmax(attention, range, n_rows, scores, factors);
        gac_blas_gemm(false, n_rows, v_size, n_keys, 1, scores, n_keys, values, cache->v_stored, 0,
                      out, v_size);
    }
    for (int64_t i = 0; i < n_rows * v_size; i++)
        out[i] *= factors[i / v_size];
}

const gac_cpu_arithmetic gac_cpu_fast = {
    .exact = false,
    .multiply = multiply,
    .attend_bytes = attend_bytes,
    .attend = attend,
};

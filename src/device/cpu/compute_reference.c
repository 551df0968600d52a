/* The arithmetic of `reference`: every sum is in FP64, over k in order. Products of two
 * floats are exact in FP64. So a sum depends on its non-zero terms only, and not on the
 * vector size, the threads or the blocking. */
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <string.h>

/* A work item is a block of rows and outputs. Its operands are packed DEPTH numbers of k
 * at a time. One panel of weights then stays in the L1 cache while all rows use it, and
 * all panels stay in the L2 cache. */
#define ITEM_ROWS 256
#define ITEM_COLUMNS 128
#define DEPTH 128

typedef struct item_work {
    double panels[ITEM_COLUMNS * DEPTH];   /* (panels, DEPTH, GAC_PANEL) */
    double x[ITEM_ROWS * DEPTH];           /* (tiles, DEPTH, rows per tile) */
    double sums[ITEM_ROWS * ITEM_COLUMNS]; /* (tiles, panels, rows per tile, GAC_PANEL) */
    float row[DEPTH];
} item_work;

typedef struct multiply_run {
    gac_cpu_compute *compute;
    const gac_product *products;
    int64_t m, n_columns, n_row_blocks; /* n_columns: outputs of one item */
} multiply_run;

typedef struct block {
    const gac_product *product;
    int64_t row, n_rows, column, n_columns;
} block;

static int64_t n_blocks(const gac_product *product, int64_t n_columns)
{
    return (product->weight.n_rows + n_columns - 1) / n_columns;
}

static int tile_rows(int64_t n)
{
    return n == 1 ? 1 : n <= 4 ? 4 : GAC_TILE_ROWS;
}

/* Packs n_rows rows of k floats to (k, stride) doubles. Columns past n_rows are zero. */
static void pack(const float *x, int64_t x_stride, int64_t n_rows, int64_t k, int stride,
                 double *packed)
{
    if (n_rows < stride)
        memset(packed, 0, (size_t)(k * stride) * sizeof *packed);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < k; i++)
            packed[i * stride + r] = (double)x[r * x_stride + i];
    }
}

/* Packs columns first to first + k of the block's weights into panels. */
static void pack_panels(const gac_cpu_kernels *kernels, const block *b, int64_t first, int64_t k,
                        item_work *work)
{
    const gac_host_tensor *weight = &b->product->weight;
    const int64_t size = gac_dtype_bits(weight->dtype) / 8;
    if (b->n_columns % GAC_PANEL != 0)
        memset(work->panels + b->n_columns / GAC_PANEL * k * GAC_PANEL, 0,
               (size_t)(k * GAC_PANEL) * sizeof *work->panels);
    for (int64_t j = 0; j < b->n_columns; j++) {
        double *to = work->panels + j / GAC_PANEL * k * GAC_PANEL + j % GAC_PANEL;
        int64_t index = (b->column + j) * weight->n_cols + first;
        kernels->to_float((const char *)weight->data + index * size, weight->dtype, k, work->row);
        for (int64_t i = 0; i < k; i++)
            to[i * GAC_PANEL] = (double)work->row[i];
    }
}

/* Adds the products of columns first to first + k to the sums. */
static void add_products(const gac_cpu_kernels *kernels, const block *b, int64_t first, int64_t k,
                         item_work *work)
{
    const gac_product *product = b->product;
    pack_panels(kernels, b, first, k, work);
    for (int64_t row = 0; row < b->n_rows; row += GAC_TILE_ROWS) {
        int64_t n = gac_min_i64(b->n_rows - row, GAC_TILE_ROWS);
        pack(product->x + (b->row + row) * product->x_stride + first, product->x_stride, n, k,
             tile_rows(n), work->x + row * k);
    }
    for (int64_t j = 0; j < b->n_columns; j += GAC_PANEL) {
        for (int64_t row = 0; row < b->n_rows; row += GAC_TILE_ROWS)
            kernels->tile(work->x + row * k, work->panels + j * k, k,
                          tile_rows(gac_min_i64(b->n_rows - row, GAC_TILE_ROWS)),
                          work->sums + row * ITEM_COLUMNS + j * GAC_TILE_ROWS);
    }
}

static void store(const block *b, const item_work *work)
{
    const gac_product *product = b->product;
    for (int64_t r = 0; r < b->n_rows; r++) {
        const double *sums = work->sums + r / GAC_TILE_ROWS * GAC_TILE_ROWS * ITEM_COLUMNS +
                             r % GAC_TILE_ROWS * GAC_PANEL;
        float *y = product->y + (b->row + r) * product->y_stride + b->column;
        for (int64_t j = 0; j < b->n_columns; j++) {
            double sum = sums[j / GAC_PANEL * GAC_PANEL * GAC_TILE_ROWS + j % GAC_PANEL];
            if (product->bias)
                sum += (double)product->bias[b->column + j];
            y[j] = product->add ? y[j] + (float)sum : (float)sum;
        }
    }
}

static void multiply_item(void *data, int64_t item, int thread)
{
    const multiply_run *run = data;
    const gac_product *product = run->products;
    int64_t index = item / run->n_row_blocks, row = item % run->n_row_blocks * ITEM_ROWS;
    while (index >= n_blocks(product, run->n_columns))
        index -= n_blocks(product++, run->n_columns);
    const int64_t k = product->weight.n_cols, column = index * run->n_columns;
    const block b = { product, row, gac_min_i64(run->m - row, ITEM_ROWS), column,
                      gac_min_i64(product->weight.n_rows - column, run->n_columns) };
    item_work *work = run->compute->scratch[thread].data;
    for (int64_t r = 0; r < b.n_rows; r += GAC_TILE_ROWS)
        memset(work->sums + r * ITEM_COLUMNS, 0,
               (size_t)(GAC_TILE_ROWS * ITEM_COLUMNS) * sizeof *work->sums);
    for (int64_t i = 0; i < k; i += DEPTH)
        add_products(run->compute->kernels, &b, i, gac_min_i64(k - i, DEPTH), work);
    store(&b, work);
}

static gac_status multiply(gac_cpu_compute *compute, const gac_product *products, int n_products,
                           int64_t m, gac_error *err)
{
    multiply_run run = { compute, products, m, ITEM_COLUMNS, (m + ITEM_ROWS - 1) / ITEM_ROWS };
    const int64_t n_wanted = 4 * (int64_t)gac_pool_threads(compute->pool);
    int64_t n_items = 0;
    gac_status status = gac_scratch_reserve(compute, sizeof(item_work), err);
    if (status != GAC_OK)
        return status;
    for (; n_items == 0; run.n_columns /= 2) {
        for (int i = 0; i < n_products; i++)
            n_items += n_blocks(&products[i], run.n_columns) * run.n_row_blocks;
        if (n_items >= n_wanted || run.n_columns == 2 * GAC_PANEL)
            break;
        n_items = 0;
    }
    gac_pool_run(compute->pool, n_items, multiply_item, &run);
    return GAC_OK;
}

/* The size of the scratch that attend below uses. */
static bool attend_bytes(const gac_attention_call *call, int64_t n_rows, int64_t n_keys,
                         size_t *bytes)
{
    int64_t packed, per_key, width = GAC_PANEL;
    if (!gac_round_up_i64(n_rows, GAC_TILE_ROWS, &n_rows) || !gac_add_i64(width, n_rows, &width) ||
        !gac_mul_i64(call->qk_size, width, &packed) ||
        !gac_mul_i64(n_keys, GAC_TILE_ROWS + GAC_PANEL + n_rows, &per_key) ||
        !gac_add_i64(packed, per_key, &packed) ||
        !gac_mul_i64(packed, (int64_t)sizeof(double), &packed))
        return false;
    *bytes = (size_t)packed;
    return true;
}

/* scores (n_rows, n_keys) = scaled q k^T. */
static void score(const gac_cpu_attention *attention, const float *q, const float *keys,
                  int64_t n_rows, int64_t n_keys, double *work, float *scores)
{
    const gac_attention_call *call = attention->call;
    const int64_t k = call->qk_size;
    double *panel = work, *x = work + k * GAC_PANEL, sums[GAC_TILE_ROWS * GAC_PANEL];
    for (int64_t row = 0; row < n_rows; row += GAC_TILE_ROWS) {
        int64_t n = gac_min_i64(n_rows - row, GAC_TILE_ROWS);
        pack(q + row * k, k, n, k, tile_rows(n), x + row * k);
    }
    for (int64_t j = 0; j < n_keys; j += GAC_PANEL) {
        int64_t n = gac_min_i64(n_keys - j, GAC_PANEL);
        pack(keys + j * call->cache->qk_stored, call->cache->qk_stored, n, k, GAC_PANEL, panel);
        for (int64_t row = 0; row < n_rows; row++) {
            int64_t r = row % GAC_TILE_ROWS, left = n_rows - row;
            if (r == 0) {
                memset(sums, 0, sizeof sums);
                attention->compute->kernels->tile(
                    x + row * k, panel, k, tile_rows(gac_min_i64(left, GAC_TILE_ROWS)), sums);
            }
            for (int64_t i = 0; i < n; i++)
                scores[row * n_keys + j + i] = (float)(sums[r * GAC_PANEL + i] * call->scale);
        }
    }
    if (call->softcap > 0)
        gac_cpu_bound(0, call->softcap, n_rows * n_keys, scores);
}

/* Writes the softmax weights of one row to weights[j * stride] and returns their sum.
 * Keys before first and from end on weigh 0. Weights are rounded to float so that their
 * products with values are exact. */
static double softmax(const float *scores, int64_t first, int64_t end, int64_t n_keys, int stride,
                      double *weights)
{
    float most = scores[first];
    double total = 0;
    for (int64_t j = first + 1; j < end; j++)
        most = scores[j] > most ? scores[j] : most;
    for (int64_t j = 0; j < n_keys; j++) {
        bool seen = j >= first && j < end;
        double weight = seen ? (double)(float)exp((double)scores[j] - (double)most) : 0;
        weights[j * stride] = weight;
        total += weight;
    }
    return total;
}

/* out = weights * values / totals, for at most GAC_TILE_ROWS queries. totals holds the
 * sum of each row's weights. */
static void mix(const gac_cpu_attention *attention, const double *weights, const float *values,
                int64_t n_rows, int64_t n_keys, const double *totals, double *panel, float *out)
{
    const gac_attention_call *call = attention->call;
    const int64_t stride = call->cache->v_stored, size = call->v_size;
    double sums[GAC_TILE_ROWS * GAC_PANEL];
    for (int64_t d = 0; d < size; d += GAC_PANEL) {
        int64_t n = gac_min_i64(size - d, GAC_PANEL);
        if (n < GAC_PANEL)
            memset(panel, 0, (size_t)(n_keys * GAC_PANEL) * sizeof *panel);
        for (int64_t j = 0; j < n_keys; j++) {
            for (int64_t i = 0; i < n; i++)
                panel[j * GAC_PANEL + i] = (double)values[j * stride + d + i];
        }
        memset(sums, 0, sizeof sums);
        attention->compute->kernels->tile(weights, panel, n_keys, tile_rows(n_rows), sums);
        for (int64_t r = 0; r < n_rows; r++) {
            for (int64_t i = 0; i < n; i++)
                out[r * size + d + i] = (float)(sums[r * GAC_PANEL + i] / totals[r]);
        }
    }
}

static void attend(const gac_cpu_attention *attention, const float *q, int64_t sequence,
                   int64_t kv_head, int64_t first, int64_t n_rows, void *scratch, float *out)
{
    const gac_attention_call *call = attention->call;
    const gac_cache *cache = call->cache;
    const int64_t head = (sequence * cache->n_kv_heads + kv_head) * cache->capacity;
    const gac_key_range range = gac_cpu_seen(attention, first, n_rows);
    const int64_t n_all = range.n;
    double *weights = scratch;                            /* (n_keys, rows per tile) */
    double *panel = weights + n_all * GAC_TILE_ROWS;      /* (n_keys, GAC_PANEL) */
    float *scores = (float *)(panel + n_all * GAC_PANEL); /* (n_rows, n_all) */
    double *work = (double *)scores + n_all * n_rows;     /* work memory of score */
    score(attention, q, cache->keys + (head + range.start) * cache->qk_stored, n_rows, n_all, work,
          scores);
    for (int64_t row = 0; row < n_rows; row += GAC_TILE_ROWS) {
        int64_t n = gac_min_i64(n_rows - row, GAC_TILE_ROWS);
        int64_t n_keys = range.n_past + (row + n - 1) / attention->group + 1;
        double totals[GAC_TILE_ROWS];
        if (n < tile_rows(n))
            memset(weights, 0, (size_t)(n_keys * tile_rows(n)) * sizeof *weights);
        for (int64_t r = 0; r < n; r++)
            totals[r] = softmax(
                scores + (row + r) * n_all, gac_cpu_first_seen(attention, range, row + r),
                range.n_past + (row + r) / attention->group + 1, n_keys, tile_rows(n), weights + r);
        mix(attention, weights, cache->values + (head + range.start) * cache->v_stored, n, n_keys,
            totals, panel, out + row * call->v_size);
    }
}

const gac_cpu_arithmetic gac_cpu_exact = {
    .exact = true,
    .multiply = multiply,
    .attend_bytes = attend_bytes,
    .attend = attend,
};

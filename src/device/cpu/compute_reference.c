/* `reference`: every sum in FP64, over k in order. Products of two floats are
 * exact there, so a sum depends on its non-zero terms alone, whatever vectors,
 * threads or blocks it was computed with. */
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <string.h>

#define ITEM_ROWS 256
#define MAX_PANELS 4          /* of an item */
#define PANEL_BYTES (1 << 20) /* that these shall not exceed: the second cache */

typedef struct multiply_run {
    gac_cpu_compute *compute;
    const gac_product *products;
    int64_t m, n_row_blocks;
} multiply_run;

static int64_t panels_per_item(int64_t k)
{
    int64_t n = PANEL_BYTES / (k * GAC_PANEL * (int64_t)sizeof(double));
    return n < 1 ? 1 : n > MAX_PANELS ? MAX_PANELS : n;
}

static int64_t n_blocks(const gac_product *product)
{
    int64_t width = panels_per_item(product->weight.n_cols) * GAC_PANEL;
    return (product->weight.n_rows + width - 1) / width;
}

static int tile_rows(int64_t n)
{
    return n == 1 ? 1 : n <= 4 ? 4 : GAC_TILE_ROWS;
}

/* n_rows rows of k floats to (k, stride) doubles; columns past n_rows are zero. */
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

/* Weight rows first to first + n_columns as panels, (n_panels, k, GAC_PANEL). */
static void pack_panels(const gac_cpu_kernels *kernels, const gac_host_tensor *weight,
                        int64_t first, int64_t n_columns, float *row, double *panels)
{
    const int64_t k = weight->n_cols, bytes = k * (gac_dtype_bits(weight->dtype) / 8);
    if (n_columns % GAC_PANEL != 0)
        memset(panels + n_columns / GAC_PANEL * k * GAC_PANEL, 0,
               (size_t)(k * GAC_PANEL) * sizeof *panels);
    for (int64_t j = 0; j < n_columns; j++) {
        double *to = panels + j / GAC_PANEL * k * GAC_PANEL + j % GAC_PANEL;
        kernels->to_float((const char *)weight->data + (first + j) * bytes, weight->dtype, k, row);
        for (int64_t i = 0; i < k; i++)
            to[i * GAC_PANEL] = (double)row[i];
    }
}

/* Sums (GAC_TILE_ROWS, GAC_PANEL) of which n_rows and n_columns count. */
static void store(const gac_product *product, const double *sums, int64_t row, int64_t n_rows,
                  int64_t first, int64_t n_columns)
{
    for (int64_t r = 0; r < n_rows; r++) {
        float *y = product->y + (row + r) * product->y_stride + first;
        for (int64_t j = 0; j < n_columns; j++) {
            double sum = sums[r * GAC_PANEL + j];
            float value = (float)(product->bias ? sum + (double)product->bias[first + j] : sum);
            y[j] = product->add ? y[j] + value : value;
        }
    }
}

static void multiply_item(void *data, int64_t item, int thread)
{
    const multiply_run *run = data;
    const gac_product *product = run->products;
    int64_t block = item / run->n_row_blocks, row = item % run->n_row_blocks * ITEM_ROWS;
    while (block >= n_blocks(product))
        block -= n_blocks(product++);
    const int64_t k = product->weight.n_cols, n = product->weight.n_rows;
    const int64_t width = panels_per_item(k) * GAC_PANEL, first = block * width;
    const int64_t n_columns = n - first < width ? n - first : width;
    const int64_t end = run->m - row < ITEM_ROWS ? run->m : row + ITEM_ROWS;
    double *panels = run->compute->scratch[thread].data; /* (width / GAC_PANEL, k, GAC_PANEL) */
    double *x = panels + width * k;                      /* (k, GAC_TILE_ROWS) */
    double sums[GAC_TILE_ROWS * GAC_PANEL];
    pack_panels(run->compute->kernels, &product->weight, first, n_columns,
                (float *)(x + k * GAC_TILE_ROWS), panels);
    for (; row < end; row += GAC_TILE_ROWS) {
        int64_t n_rows = end - row < GAC_TILE_ROWS ? end - row : GAC_TILE_ROWS;
        int height = tile_rows(n_rows);
        pack(product->x + row * product->x_stride, product->x_stride, n_rows, k, height, x);
        for (int64_t j = 0; j < n_columns; j += GAC_PANEL) {
            run->compute->kernels->tile(x, panels + j * k, k, height, sums);
            store(product, sums, row, n_rows, first + j,
                  n_columns - j < GAC_PANEL ? n_columns - j : GAC_PANEL);
        }
    }
}

static gac_status multiply(gac_cpu_compute *compute, const gac_product *products, int n_products,
                           int64_t m, gac_error *err)
{
    multiply_run run = { compute, products, m, (m + ITEM_ROWS - 1) / ITEM_ROWS };
    int64_t n_items = 0;
    size_t bytes = 0;
    for (int i = 0; i < n_products; i++) {
        /* Sizes of weights are below 2^31. */
        int64_t k = products[i].weight.n_cols;
        size_t wanted =
            (size_t)k * ((size_t)(panels_per_item(k) * GAC_PANEL + GAC_TILE_ROWS) * sizeof(double) +
                         sizeof(float));
        bytes = wanted > bytes ? wanted : bytes;
        n_items += n_blocks(&products[i]);
    }
    gac_status status = gac_scratch_reserve(compute, bytes, err);
    if (status == GAC_OK)
        gac_pool_run(compute->pool, n_items * run.n_row_blocks, multiply_item, &run);
    return status;
}

/* What attend below lays out in its scratch. */
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

/* Scores of n_rows queries, (n_rows, n_keys). */
static void score(const gac_cpu_attention *attention, const float *q, const float *keys,
                  int64_t n_rows, int64_t n_keys, double *work, float *scores)
{
    const gac_attention_call *call = attention->call;
    const int64_t k = call->qk_size;
    double *panel = work, *x = work + k * GAC_PANEL, sums[GAC_TILE_ROWS * GAC_PANEL];
    for (int64_t row = 0; row < n_rows; row += GAC_TILE_ROWS) {
        int64_t n = n_rows - row < GAC_TILE_ROWS ? n_rows - row : GAC_TILE_ROWS;
        pack(q + row * k, k, n, k, tile_rows(n), x + row * k);
    }
    for (int64_t j = 0; j < n_keys; j += GAC_PANEL) {
        int64_t n = n_keys - j < GAC_PANEL ? n_keys - j : GAC_PANEL;
        pack(keys + j * call->cache->qk_stored, call->cache->qk_stored, n, k, GAC_PANEL, panel);
        for (int64_t row = 0; row < n_rows; row++) {
            int64_t r = row % GAC_TILE_ROWS, left = n_rows - row;
            if (r == 0)
                attention->compute->kernels->tile(
                    x + row * k, panel, k, left < GAC_TILE_ROWS ? tile_rows(left) : GAC_TILE_ROWS,
                    sums);
            for (int64_t i = 0; i < n; i++)
                scores[row * n_keys + j + i] = (float)(sums[r * GAC_PANEL + i] * call->scale);
        }
    }
}

/* Weights of one row, of which n_seen keys count, to weights[j * stride]; their
 * sum. They are rounded to float, so that products with values are exact. */
static double soften(const float *scores, int64_t n_seen, int64_t n_keys, int stride,
                     double *weights)
{
    float most = scores[0];
    double total = 0;
    for (int64_t j = 1; j < n_seen; j++)
        most = scores[j] > most ? scores[j] : most;
    for (int64_t j = 0; j < n_keys; j++) {
        double weight = j < n_seen ? (double)(float)exp((double)scores[j] - (double)most) : 0;
        weights[j * stride] = weight;
        total += weight;
    }
    return total;
}

/* At most GAC_TILE_ROWS queries; totals are the sums of their weights. */
static void mix(const gac_cpu_attention *attention, const double *weights, const float *values,
                int64_t n_rows, int64_t n_keys, const double *totals, double *panel, float *out)
{
    const gac_attention_call *call = attention->call;
    const int64_t stride = call->cache->v_stored, size = call->v_size;
    double sums[GAC_TILE_ROWS * GAC_PANEL];
    for (int64_t d = 0; d < size; d += GAC_PANEL) {
        int64_t n = size - d < GAC_PANEL ? size - d : GAC_PANEL;
        for (int64_t j = 0; j < n_keys; j++) {
            for (int64_t i = 0; i < GAC_PANEL; i++)
                panel[j * GAC_PANEL + i] = i < n ? (double)values[j * stride + d + i] : 0;
        }
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
    const int64_t n_past = attention->compute->n_past + first;
    const int64_t n_all = n_past + (n_rows - 1) / attention->group + 1;
    double *weights = scratch;                            /* (n_keys, a tile's rows) */
    double *panel = weights + n_all * GAC_TILE_ROWS;      /* (n_keys, GAC_PANEL) */
    float *scores = (float *)(panel + n_all * GAC_PANEL); /* (n_rows, n_all) */
    double *work = (double *)scores + n_all * n_rows;     /* of score */
    score(attention, q, cache->keys + head * cache->qk_stored, n_rows, n_all, work, scores);
    for (int64_t row = 0; row < n_rows; row += GAC_TILE_ROWS) {
        int64_t n = n_rows - row < GAC_TILE_ROWS ? n_rows - row : GAC_TILE_ROWS;
        int64_t n_keys = n_past + (row + n - 1) / attention->group + 1;
        double totals[GAC_TILE_ROWS];
        if (n < tile_rows(n))
            memset(weights, 0, (size_t)(n_keys * tile_rows(n)) * sizeof *weights);
        for (int64_t r = 0; r < n; r++)
            totals[r] =
                soften(scores + (row + r) * n_all, n_past + (row + r) / attention->group + 1,
                       n_keys, tile_rows(n), weights + r);
        mix(attention, weights, cache->values + head * cache->v_stored, n, n_keys, totals, panel,
            out + row * call->v_size);
    }
}

const gac_cpu_arithmetic gac_cpu_exact = {
    .exact = true,
    .multiply = multiply,
    .attend_bytes = attend_bytes,
    .attend = attend,
};

#include "device/cpu/cpu_reference.h"

#include "device/task_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 32

/* Converts (n_rows, n_from) of dtype to (n_rows, n_to) FP64, padding each row with zeros.
 * Returns NULL if out of memory. The caller frees it. */
static double *load_rows(const void *data, gac_dtype dtype, int64_t n_rows, int64_t n_from,
                         int64_t n_to)
{
    double *rows = calloc((size_t)(n_rows * n_to), sizeof *rows);
    if (!rows)
        return NULL;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t j = 0; j < n_from; j++)
            rows[i * n_to + j] = gac_dtype_load(data, dtype, i * n_from + j);
    }
    return rows;
}

/* Loads columns first to first + n_columns of the weights as (k, COLUMNS). */
static void load_columns(const gac_task_spec *spec, const void *weights, int64_t first,
                         int64_t n_columns, double *block)
{
    int64_t n = spec->gemm.n, k = spec->gemm.k;
    for (int64_t j = 0; j < n_columns; j++) {
        for (int64_t i = 0; i < k; i++)
            block[i * COLUMNS + j] =
                gac_dtype_load(weights, spec->dtype,
                               spec->gemm.row_major ? i * n + first + j : (first + j) * k + i);
    }
}

/* Every sum runs over k in order. The inner loop runs over columns, so the compiler can
 * vectorise without reordering a sum. */
static gac_status gemm(const gac_task_spec *spec, void *const *operands, gac_error *err)
{
    const int64_t m = spec->gemm.m, n = spec->gemm.n, k = spec->gemm.k;
    gac_dtype out = gac_task_operand_dtype(spec, GAC_OPERAND_OUT);
    double *x = load_rows(operands[GAC_OPERAND_A], spec->dtype, m, k, k); /* (m, k) */
    double *block = calloc((size_t)k * COLUMNS, sizeof *block);           /* (k, COLUMNS) */
    gac_status status = x && block ? GAC_OK : gac_error_no_memory(err);
    for (int64_t first = 0; status == GAC_OK && first < n; first += COLUMNS) {
        int64_t n_columns = n - first < COLUMNS ? n - first : COLUMNS;
        load_columns(spec, operands[GAC_OPERAND_B], first, n_columns, block);
        for (int64_t row = 0; row < m; row++) {
            double sums[COLUMNS] = { 0 };
            for (int64_t i = 0; i < k; i++) {
                for (int j = 0; j < COLUMNS; j++)
                    sums[j] += x[row * k + i] * block[i * COLUMNS + j];
            }
            for (int64_t j = 0; j < n_columns; j++)
                gac_dtype_store(operands[GAC_OPERAND_OUT], out, row * n + first + j, sums[j]);
        }
    }
    free(block);
    free(x);
    return status;
}

/* Attention of one query: q (width), k (n_kv, width), v (n_kv, v_width) to out (v_width).
 * The query sees the first n_seen keys. p (n_kv) is work memory. */
static void attend(const double *q, const double *k, const double *v, int64_t width,
                   int64_t v_width, int64_t n_seen, double scale, double *p, double *out)
{
    double largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < n_seen; j++) {
        double score = 0;
        for (int64_t d = 0; d < width; d++)
            score += q[d] * k[j * width + d];
        p[j] = scale * score;
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j < n_seen; j++) {
        p[j] = exp(p[j] - largest);
        total += p[j];
    }
    memset(out, 0, (size_t)v_width * sizeof *out);
    for (int64_t j = 0; j < n_seen; j++) {
        for (int64_t d = 0; d < v_width; d++)
            out[d] += p[j] * v[j * v_width + d];
    }
    for (int64_t d = 0; d < v_width; d++)
        out[d] /= total;
}

/* All SDPA paths compute the same function. PADDED stores the zeros behind each row. They
 * add +0 to sums that are never -0, so the result has the same bits. */
static gac_status sdpa(const gac_task_spec *spec, void *const *operands, gac_error *err)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    const bool padded = spec->sdpa.path == GAC_SDPA_PADDED;
    const int64_t width = padded ? spec->sdpa.stored_head : s->qk_head;
    const int64_t v_width = padded ? spec->sdpa.stored_head : s->v_head;
    const int64_t n_q_rows = s->batch * s->n_q_heads * s->n_q;
    const int64_t n_kv_rows = s->batch * s->n_kv_heads * s->n_kv;
    const int64_t group = s->n_q_heads / s->n_kv_heads;
    const double scale = gac_sdpa_scale(&spec->sdpa);
    double *q = load_rows(operands[GAC_OPERAND_A], spec->dtype, n_q_rows, s->qk_head, width);
    double *k = load_rows(operands[GAC_OPERAND_B], spec->dtype, n_kv_rows, s->qk_head, width);
    double *v = load_rows(operands[GAC_OPERAND_C], spec->dtype, n_kv_rows, s->v_head, v_width);
    double *p = calloc((size_t)s->n_kv, sizeof *p), *out = calloc((size_t)v_width, sizeof *out);
    gac_status status = q && k && v && p && out ? GAC_OK : gac_error_no_memory(err);
    for (int64_t row = 0; status == GAC_OK && row < n_q_rows; row++) {
        int64_t head = row / s->n_q, i = row % s->n_q; /* head is an index over batch and heads */
        int64_t kv_head = head / s->n_q_heads * s->n_kv_heads + head % s->n_q_heads / group;
        int64_t n_seen = s->causal ? i + s->n_kv - s->n_q + 1 : s->n_kv;
        attend(q + row * width, k + kv_head * s->n_kv * width, v + kv_head * s->n_kv * v_width,
               width, v_width, n_seen, scale, p, out);
        for (int64_t d = 0; d < s->v_head; d++)
            gac_dtype_store(operands[GAC_OPERAND_OUT], spec->dtype, row * s->v_head + d, out[d]);
    }
    free(out);
    free(p);
    free(v);
    free(k);
    free(q);
    return status;
}

static void pad(const gac_task_spec *spec, void *const *operands)
{
    size_t element = (size_t)gac_dtype_bits(spec->dtype) / 8;
    size_t from = (size_t)spec->pad.n_from * element, to = (size_t)spec->pad.n_to * element;
    const char *source = operands[GAC_OPERAND_A];
    char *target = operands[GAC_OPERAND_OUT];
    for (int64_t i = 0; i < spec->pad.n_rows; i++, source += from, target += to) {
        memcpy(target, source, from < to ? from : to);
        if (from < to)
            memset(target + from, 0, to - from);
    }
}

gac_status gac_cpu_reference(const gac_task_spec *spec, void *const operands[GAC_OPERAND_COUNT],
                             gac_error *err)
{
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        return gemm(spec, operands, err);
    case GAC_TASK_SDPA:
        return sdpa(spec, operands, err);
    case GAC_TASK_PAD:
        pad(spec, operands);
        break;
    case GAC_TASK_COPY:
        memcpy(operands[GAC_OPERAND_OUT], operands[GAC_OPERAND_A], (size_t)spec->copy_bytes);
        break;
    case GAC_TASK_KIND_COUNT:
        break;
    }
    return GAC_OK;
}

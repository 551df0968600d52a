/* Helpers for tests of forward passes: a compute to test, random tensors of any dtype,
 * and rows with given content. Each run prints a new seed. GAC_TEST_SEED sets it. */
#ifndef TESTS_COMPUTE_LAB_H
#define TESTS_COMPUTE_LAB_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <gac/device.h>

#include "base/splitmix.h"
#include "device/cpu/compute_internal.h"
#include "op/numbers.h"

#define MAX_BLOCKS 4096

typedef struct lab {
    gac_compute compute;
    gac_error err;
} lab;

static uint64_t lab_seed, lab_drawn;
static void *lab_blocks[MAX_BLOCKS]; /* freed after each test */
static int lab_n_blocks;

static inline void lab_start(void)
{
    const char *given = getenv("GAC_TEST_SEED");
    lab_seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003;
    print_message("GAC_TEST_SEED=%llu\n", (unsigned long long)lab_seed);
}

static inline void *lab_alloc(int64_t n, size_t size)
{
    assert_true(lab_n_blocks < MAX_BLOCKS);
    void *block = calloc(n > 0 ? (size_t)n : 1, size);
    assert_non_null(block);
    return lab_blocks[lab_n_blocks++] = block;
}

static inline int lab_teardown(void **state)
{
    (void)state;
    while (lab_n_blocks > 0)
        free(lab_blocks[--lab_n_blocks]);
    return 0;
}

static inline double lab_normal(void)
{
    return gac_random_normal(lab_seed, lab_drawn++);
}

/* Returns a random integer from low to high, inclusive. */
static inline int64_t lab_int(int64_t low, int64_t high)
{
    return low + (int64_t)(gac_random_bits(lab_seed, lab_drawn++) % (uint64_t)(high - low + 1));
}

static inline gac_dtype lab_dtype(void)
{
    static const gac_dtype all[] = { GAC_DTYPE_F32, GAC_DTYPE_F16, GAC_DTYPE_BF16 };
    return all[lab_int(0, 2)];
}

/* Returns random weights, sometimes at an odd address, as in a mapped file. */
static inline gac_host_tensor lab_tensor(gac_dtype dtype, int64_t n_rows, int64_t n_cols)
{
    char *block = lab_alloc(n_rows * n_cols * 4 + 1, 1);
    void *data = block + lab_int(0, 1);
    double scale = n_rows == 1 ? 1 : 1 / sqrt((double)n_cols);
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        gac_dtype_store(data, dtype, i, scale * lab_normal());
    return (gac_host_tensor){ data, dtype, n_rows, n_cols, "some.weight" };
}

/* Returns a copy with n_zero_rows and n_zero_cols of zeros inserted after row at_row and
 * column at_col. */
static inline gac_host_tensor lab_padded(const gac_host_tensor *from, int64_t at_row,
                                         int64_t n_zero_rows, int64_t at_col, int64_t n_zero_cols)
{
    gac_host_tensor to = *from;
    to.n_rows += n_zero_rows;
    to.n_cols += n_zero_cols;
    to.data = lab_alloc(to.n_rows * to.n_cols, 4);
    for (int64_t r = 0; r < from->n_rows; r++) {
        for (int64_t c = 0; c < from->n_cols; c++) {
            int64_t row = r < at_row ? r : r + n_zero_rows;
            int64_t col = c < at_col ? c : c + n_zero_cols;
            gac_dtype_store((void *)(uintptr_t)to.data, to.dtype, row * to.n_cols + col,
                            gac_dtype_load(from->data, from->dtype, r * from->n_cols + c));
        }
    }
    return to;
}

static inline float *lab_floats(int64_t n)
{
    float *data = lab_alloc(n, sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)lab_normal();
    return data;
}

/* Opens a compute and asserts success. */
static inline lab lab_open(const char *name, int n_threads, int64_t max_rows)
{
    lab l = { GAC_COMPUTE_INIT, GAC_ERROR_INIT };
    gac_compute_options options = { .n_threads = n_threads, .max_rows = max_rows };
    if (gac_compute_open(name, &options, &l.compute, &l.err) != GAC_OK)
        fail_msg("%s", l.err.text);
    return l;
}

#define LAB_OK(l, call) \
    do { \
        if ((call) != GAC_OK) \
            fail_msg("%s", (l)->err.text); \
    } while (0)

/* Creates rows that hold data (batch * n_new, n_slices * size) and begins the pass. */
static inline gac_rows *lab_rows(lab *l, gac_axis axis, const float *data, int64_t batch,
                                 int64_t n_new, int64_t n_past)
{
    const gac_compute_ops *ops = l->compute.ops;
    void *state = l->compute.state;
    int64_t n = batch * n_new, width = axis.n_slices * axis.size;
    int32_t *ids = lab_alloc(n, sizeof *ids);
    gac_linear_part part = { .weight = { data, GAC_DTYPE_F32, n, width, "table" } };
    gac_linear_module module = { .n_parts = 1, .parts = &part, .out = { 1, n, n } };
    gac_matrix *table = NULL;
    gac_rows *rows = NULL;
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    LAB_OK(l, ops->matrix_create(state, axis, &module, 1, &table, &l->err));
    LAB_OK(l, ops->rows_create(state, axis.n_slices * axis.stored, true, &rows, &l->err));
    LAB_OK(l, ops->begin(state, ids, batch, n_new, n_past, &l->err));
    const gac_embed_call embed = { .table = table, .out = rows };
    LAB_OK(l, ops->embed(state, &embed, &l->err));
    ops->matrix_free(state, table);
    return rows;
}

static inline gac_vector *lab_vector(lab *l, const float *data, int64_t n)
{
    gac_vector *vector = NULL;
    LAB_OK(l, l->compute.ops->vector_create(l->compute.state, data, n, &vector, &l->err));
    return vector;
}

static inline void same_bits(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: number %lld is %a and %a", what, (long long)i, (double)a[i],
                     (double)b[i]);
    }
}

/* Asserts that a and b differ by at most tolerance times the largest number. */
static inline void near_by(const float *a, const float *b, int64_t n, double tolerance,
                           const char *what)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)b[i]));
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance * most))
            fail_msg("%s: number %lld is %.9g, not %.9g", what, (long long)i, (double)a[i],
                     (double)b[i]);
    }
}

#endif

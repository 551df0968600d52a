/* Launchers of the F64 kernels behind Gram matrices and factors, callable from C. As in
 * pass_kernels.h they only enqueue. Matrices are row-major, in device memory. */
#ifndef GAC_CUDA_PASS_ALGEBRA_KERNELS_H
#define GAC_CUDA_PASS_ALGEBRA_KERNELS_H

#include <gac/base.h>
#include <gac/op.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over rows (pass_algebra.cu). */

/* Rows as F64 rows without their padding. */
typedef struct gac_widen_args {
    gac_dtype dtype; /* F32, F16, BF16 */
    const void *x;   /* (n_rows, x_ld) */
    int64_t x_ld, n_rows;
    int64_t size, stored; /* number i of a row is at i / size * stored + i % size of x */
    int64_t n;
    double *out;       /* (n_rows, n) */
    double *magnitude; /* (n), |x| is added to it */
} gac_widen_args;

gac_status gac_widen_launch(const gac_widen_args *args, cudaStream_t stream, gac_error *err);
/* out (n, n) = the symmetric matrix whose lower triangle is in a. */
gac_status gac_mirror_launch(const double *a, double *out, int64_t n, cudaStream_t stream,
                             gac_error *err);

/* Whole matrices (pass_algebra.cu). *bad is set to 1 where a number is not finite. */

gac_status gac_to_double_launch(const float *from, double *to, int64_t n, int *bad,
                                cudaStream_t stream, gac_error *err);
gac_status gac_to_float_launch(const double *from, float *to, int64_t n, cudaStream_t stream,
                               gac_error *err);
gac_status gac_check_finite_launch(const double *a, int64_t n, int *bad, cudaStream_t stream,
                                   gac_error *err);
gac_status gac_add_diagonal_launch(double *a, int64_t n, double value, cudaStream_t stream,
                                   gac_error *err);
/* Writes zeros above the diagonal of a (n, n). */
gac_status gac_clear_upper_launch(double *a, int64_t n, cudaStream_t stream, gac_error *err);
/* to (n, n_cols) = the rows of from, the last one first. */
gac_status gac_reverse_rows_launch(const double *from, double *to, int64_t n, int64_t n_cols,
                                   cudaStream_t stream, gac_error *err);
/* to (n_cols, n) = the transpose of from (n, n_cols). reverse: its last column comes first. */
gac_status gac_transpose_launch(const double *from, float *to, int64_t n, int64_t n_cols,
                                bool reverse, cudaStream_t stream, gac_error *err);
/* to (n_rows, n_cols) = from[rows[r], cols[c]] of a matrix with ld numbers in a row. rows
 * NULL: r itself. */
gac_status gac_gather_launch(const double *from, int64_t ld, const int32_t *rows,
                             const int32_t *cols, double *to, int64_t n_rows, int64_t n_cols,
                             cudaStream_t stream, gac_error *err);

/* The order of channels (pass_channels.cu), as algebra.c of the CPU describes it. */

enum { GAC_CHANNELS_TOGETHER = 32, GAC_CHANNELS_MAX_SPLITS = 32, GAC_CHANNELS_BLOCK = 256 };

typedef struct gac_channels {
    int64_t n, n_out;
    int n_splits;               /* parts of the outputs in a sum over them, at most MAX_SPLITS */
    const double *w;            /* (n_out, n) */
    double *rest, *product;     /* (n, n), (n_out, n) */
    double *late_rest;          /* (TOGETHER, n): columns over the root of their scale */
    double *late_product;       /* (TOGETHER, n_out), likewise */
    double *squares, *diagonal; /* (n) */
    double *column, *output;    /* (n), (n_out): of the input that is being taken */
    double *partial;            /* (2, n_splits, n) */
    double *dots;               /* (TOGETHER) */
    double *gains, *lefts;      /* (gac_channels_blocks): one for each block of inputs */
    int32_t *best;              /* (gac_channels_blocks): the inputs with these gains */
    int32_t *chosen;            /* the input that is being taken */
    uint8_t *taken;             /* (n) */
    const int32_t *inputs;      /* (n): which inputs the n columns are; NULL: these themselves */
    int32_t *order;             /* (all inputs) */
    double *loss;               /* (all inputs + 1) */
} gac_channels;

int64_t gac_channels_blocks(int64_t n);
/* Measures squares, diagonal, gains and loss[step] from rest and product. */
gac_status gac_channels_measure_launch(const gac_channels *channels, int64_t step,
                                       cudaStream_t stream, gac_error *err);
/* Takes the best input as number step of the order. n_late inputs have been taken since rest
 * and product were brought up to date. */
gac_status gac_channels_take_launch(const gac_channels *channels, int64_t step, int n_late,
                                    cudaStream_t stream, gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

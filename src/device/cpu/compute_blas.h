/* OpenBLAS, loaded when a `cpu` compute is opened: linked, it would cost every
 * start of the program 3 ms. */
#ifndef GAC_DEVICE_CPU_COMPUTE_BLAS_H
#define GAC_DEVICE_CPU_COMPUTE_BLAS_H

#include <gac/base.h>

/* Loads OpenBLAS if need be, and makes sure that n_threads more threads can
 * call gac_blas_gemm at a time without asking for memory. Safe to call from
 * several threads. GAC_NO_RESOURCE: it does not load, or there is no memory for
 * its buffers. */
gac_status gac_blas_open(int n_threads, gac_error *err);
/* Gives the buffers of n_threads threads back to whoever opens next. */
void gac_blas_close(int n_threads);

/* c (m, n) = alpha a (m, k) b^T + beta c with b (n, k); without transposed_b,
 * b is (k, n). Strides count numbers between rows. Works in the thread that
 * calls it. */
void gac_blas_gemm(bool transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t a_stride, const float *b, int64_t b_stride, float beta, float *c,
                   int64_t c_stride);

#endif

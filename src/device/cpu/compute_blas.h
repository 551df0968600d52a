/* OpenBLAS, loaded when a `cpu` compute is opened: linked, it would cost every
 * start of the program 3 ms for threads that nobody asked for. */
#ifndef GAC_DEVICE_CPU_COMPUTE_BLAS_H
#define GAC_DEVICE_CPU_COMPUTE_BLAS_H

#include <gac/base.h>

/* Loads it, once for all; from then on it works in the thread that calls it.
 * GAC_NO_RESOURCE with the loader's reason. */
gac_status gac_blas_load(gac_error *err);

/* c (m, n) = alpha a (m, k) b^T + beta c with b (n, k); without transposed_b,
 * b is (k, n). Strides count numbers between rows. */
void gac_blas_gemm(bool transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t a_stride, const float *b, int64_t b_stride, float beta, float *c,
                   int64_t c_stride);

#endif

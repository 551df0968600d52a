/* OpenBLAS, loaded when a `cpu` compute is opened. Linking it would add 3 ms to every
 * start of the program. */
#ifndef GAC_DEVICE_CPU_COMPUTE_BLAS_H
#define GAC_DEVICE_CPU_COMPUTE_BLAS_H

#include <gac/base.h>

/* Loads OpenBLAS on the first call, and makes sure that n_threads more threads can call
 * gac_blas_gemm at once without a memory allocation. Thread-safe. Returns GAC_NO_RESOURCE
 * if OpenBLAS does not load or there is no memory for its buffers. */
gac_status gac_blas_open(int n_threads, gac_error *err);
/* Releases the buffers of n_threads threads for the next gac_blas_open. */
void gac_blas_close(int n_threads);

/* Sets *function, a pointer to a function, to another function of OpenBLAS, after
 * gac_blas_open. Returns false if there is none of that name. */
bool gac_blas_find(const char *name, void *function);

/* c (m, n) = alpha a (m, k) b + beta c. b is (n, k) if transposed_b, else (k, n). Strides
 * count floats between rows. Runs in the calling thread. */
void gac_blas_gemm(bool transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t a_stride, const float *b, int64_t b_stride, float beta, float *c,
                   int64_t c_stride);

#endif

/* Chains of steps on the GPU, and linear algebra in F64 for factoring weights. Matrices are
 * row-major.
 *
 * A gac_algebra remembers the first failure, and after it all its functions do nothing. So
 * a row of steps needs no checks between them; the caller checks once at the end. */
#ifndef GAC_CUDA_PASS_ALGEBRA_H
#define GAC_CUDA_PASS_ALGEBRA_H

#include "cuda_cusolver.h"
#include "pass_algebra_kernels.h"
#include "pass_internal.h"

enum { GAC_ALGEBRA_MAX_BLOCKS = 48 };

typedef struct gac_algebra {
    gac_cuda_compute *c;
    gac_error *err;
    gac_status status; /* the first failure */
    void *blocks[GAC_ALGEBRA_MAX_BLOCKS];
    int n_blocks;
} gac_algebra;

/* Device memory for a * b elements, until gac_algebra_end. NULL after a failure. */
void *gac_algebra_take(gac_algebra *s, int64_t a, int64_t b, size_t element);
double *gac_algebra_numbers(gac_algebra *s, int64_t a, int64_t b);
/* Frees one of them earlier; NULL is fine. */
void gac_algebra_give_back(gac_algebra *s, void *memory);
/* Frees what was taken, and waits. */
void gac_algebra_end(gac_algebra *s);

/* Keeps a failure. */
void gac_algebra_check(gac_algebra *s, gac_status status);
void gac_algebra_check_cuda(gac_algebra *s, cudaError_t code, const char *what);
void gac_algebra_check_blas(gac_algebra *s, cublasStatus_t code, const char *what);
/* Fails with one line. */
void gac_algebra_fail(gac_algebra *s, gac_status status, const char *text);

void gac_algebra_copy(gac_algebra *s, void *to, const void *from, size_t n_bytes);
void gac_algebra_clear(gac_algebra *s, void *memory, size_t n_bytes);
/* Reads device memory, and waits. */
void gac_algebra_read(gac_algebra *s, void *to, const void *from, size_t n_bytes);

/* c (m, n) = alpha a b + beta c. a is (m, k), or (k, m) if transposed_a; b likewise. */
void gac_algebra_gemm(gac_algebra *s, bool transposed_a, bool transposed_b, int64_t m, int64_t n,
                      int64_t k, double alpha, const double *a, const double *b, double beta,
                      double *c);
/* Sets *out, in device memory, to the sum of a[i] b[i]. */
void gac_algebra_dot(gac_algebra *s, int64_t n, const double *a, const double *b, double *out);

/* CHANNELS (pass_channels.c). w is the weight, and gram the Gram matrix or NULL, in device
 * memory. mean is the mean of its diagonal. */
void gac_algebra_order(gac_algebra *s, const gac_factor_job *job, const double *w,
                       const double *gram, double mean);

#endif

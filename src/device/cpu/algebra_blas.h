/* The F64 functions of OpenBLAS and its LAPACK that factoring uses. Matrices are row-major
 * here. LAPACK is column-major: to it, a row-major matrix is its transpose. */
#ifndef GAC_DEVICE_CPU_ALGEBRA_BLAS_H
#define GAC_DEVICE_CPU_ALGEBRA_BLAS_H

#include <gac/base.h>

#include <cblas.h>

typedef struct gac_lapack {
    __typeof__(cblas_dgemm) *gemm;
    __typeof__(cblas_dgemv) *gemv;
    __typeof__(cblas_dtrsm) *trsm;
    void (*syevd)(const char *jobz, const char *uplo, const int *n, double *a, const int *lda,
                  double *w, double *work, const int *lwork, int *iwork, const int *liwork,
                  int *info);
    void (*potrf)(const char *uplo, const int *n, double *a, const int *lda, int *info);
    void (*potrs)(const char *uplo, const int *n, const int *nrhs, const double *a, const int *lda,
                  double *b, const int *ldb, int *info);
    void (*geqrf)(const int *m, const int *n, double *a, const int *lda, double *tau, double *work,
                  const int *lwork, int *info);
    void (*orgqr)(const int *m, const int *n, const int *k, double *a, const int *lda,
                  const double *tau, double *work, const int *lwork, int *info);
} gac_lapack;

/* Finds the functions in the OpenBLAS that gac_blas_open loaded. GAC_NO_RESOURCE if it was
 * built without LAPACK. */
gac_status gac_lapack_find(gac_lapack *out, gac_error *err);

/* c (m, n) = alpha a b + beta c. a is (m, k), or (k, m) if transposed_a; b likewise. Rows
 * lie one behind another. */
void gac_lapack_gemm(const gac_lapack *lapack, bool transposed_a, bool transposed_b, int64_t m,
                     int64_t n, int64_t k, double alpha, const double *a, const double *b,
                     double beta, double *c);

/* Replaces the symmetric a (n, n) by its eigenvectors, one in each row, and sets values
 * (n), rising. */
gac_status gac_lapack_eigen(const gac_lapack *lapack, int64_t n, double *a, double *values,
                            gac_error *err);

/* Replaces the symmetric a (n, n) by the lower triangle L of a = L L^T, with zeros above.
 * Returns false if a is not positive definite; a is lost then. */
bool gac_lapack_cholesky(const gac_lapack *lapack, int64_t n, double *a);

/* Replaces the rows of a (n_rows, n), n_rows at most n, by orthonormal ones. The first r
 * rows span what they spanned before, for every r. */
gac_status gac_lapack_orthonormalise(const gac_lapack *lapack, int64_t n_rows, int64_t n, double *a,
                                     gac_error *err);

#endif

/* Dense decompositions in F64 by cuSOLVER, which is loaded at run time. Matrices are in
 * device memory. As in algebra_blas.h of the CPU they are row-major: to cuSOLVER, a
 * row-major matrix is its transpose. Only the functions that are used are declared here, so
 * that a build needs no cuSOLVER. */
#ifndef GAC_CUDA_CUSOLVER_H
#define GAC_CUDA_CUSOLVER_H

#include "cuda_internal.h"

/* Opens cuda->cusolver if it is NULL: the file named by the environment variable
 * GAC_CUSOLVER if that is set, otherwise libcusolver.so.12 or .11. */
gac_status gac_cusolver_open(gac_cuda *cuda, gac_error *err);
void gac_cusolver_close(gac_cuda *cuda);

/* Replaces the symmetric a (n, n) by its eigenvectors, one in each row, and sets values
 * (n), rising. */
gac_status gac_cusolver_eigen(gac_cuda *cuda, int64_t n, double *a, double *values, gac_error *err);

/* Enqueues what replaces the lower triangle of a (n, n) by L, with a = L L^T. Sets *info, in
 * device memory: not 0 where a is not positive definite. */
gac_status gac_cusolver_start_cholesky(gac_cuda *cuda, int64_t n, double *a, int *info,
                                       gac_error *err);
/* The same, and waits. Sets *positive. */
gac_status gac_cusolver_cholesky(gac_cuda *cuda, int64_t n, double *a, bool *positive,
                                 gac_error *err);
/* Replaces each row b of rights (n_right, n) by (L L^T)^-1 b. */
gac_status gac_cusolver_solve(gac_cuda *cuda, int64_t n, int64_t n_right, const double *root,
                              double *rights, gac_error *err);

/* Replaces the rows of a (n_rows, n), n_rows at most n, by orthonormal ones. The first r
 * rows span what they spanned before, for every r. */
gac_status gac_cusolver_orthonormalise(gac_cuda *cuda, int64_t n_rows, int64_t n, double *a,
                                       gac_error *err);

#endif

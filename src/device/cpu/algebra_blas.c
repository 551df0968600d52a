#include "device/cpu/algebra_blas.h"

#include "device/cpu/compute_blas.h"

#include <stdlib.h>
#include <string.h>

gac_status gac_lapack_find(gac_lapack *out, gac_error *err)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        { "cblas_dgemm", &out->gemm }, { "cblas_dgemv", &out->gemv }, { "cblas_dtrsm", &out->trsm },
        { "dsyevd_", &out->syevd },    { "dpotrf_", &out->potrf },    { "dpotrs_", &out->potrs },
        { "dgeqrf_", &out->geqrf },    { "dorgqr_", &out->orgqr },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!gac_blas_find(wanted[i].name, wanted[i].function))
            return gac_error_set(err, GAC_NO_RESOURCE,
                                 "cpu: this OpenBLAS has no %s; libopenblas0 of Debian has it",
                                 wanted[i].name);
    return GAC_OK;
}

void gac_lapack_gemm(const gac_lapack *lapack, bool transposed_a, bool transposed_b, int64_t m,
                     int64_t n, int64_t k, double alpha, const double *a, const double *b,
                     double beta, double *c)
{
    lapack->gemm(CblasRowMajor, transposed_a ? CblasTrans : CblasNoTrans,
                 transposed_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k,
                 alpha, a, (blasint)(transposed_a ? m : k), b, (blasint)(transposed_b ? k : n),
                 beta, c, (blasint)n);
}

gac_status gac_lapack_eigen(const gac_lapack *lapack, int64_t n, double *a, double *values,
                            gac_error *err)
{
    double work_size;
    int size = (int)n, n_work = -1, n_integers = -1, info = 0, integer_size;
    lapack->syevd("V", "U", &size, a, &size, values, &work_size, &n_work, &integer_size,
                  &n_integers, &info);
    n_work = (int)work_size;
    n_integers = integer_size;
    double *work = malloc((size_t)n_work * sizeof *work);
    int *integers = malloc((size_t)n_integers * sizeof *integers);
    gac_status status = work && integers ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        lapack->syevd("V", "U", &size, a, &size, values, work, &n_work, integers, &n_integers,
                      &info);
    if (status == GAC_OK && info != 0)
        status =
            gac_error_set(err, GAC_FAILED, "the eigenvalues do not converge (dsyevd: %d)", info);
    free(work);
    free(integers);
    return status;
}

bool gac_lapack_cholesky(const gac_lapack *lapack, int64_t n, double *a)
{
    int size = (int)n, info = 0;
    lapack->potrf("U", &size, a, &size, &info); /* column-major "U" is row-major lower */
    for (int64_t i = 0; info == 0 && i < n; i++)
        memset(a + i * n + i + 1, 0, (size_t)(n - i - 1) * sizeof *a);
    return info == 0;
}

gac_status gac_lapack_orthonormalise(const gac_lapack *lapack, int64_t n_rows, int64_t n, double *a,
                                     gac_error *err)
{
    int m = (int)n, k = (int)n_rows, n_work = -1, info = 0;
    double work_size;
    lapack->geqrf(&m, &k, a, &m, NULL, &work_size, &n_work, &info);
    int n_both = (int)work_size;
    lapack->orgqr(&m, &k, &k, a, &m, NULL, &work_size, &n_work, &info);
    n_work = n_both > (int)work_size ? n_both : (int)work_size;
    double *work = malloc((size_t)n_work * sizeof *work);
    double *tau = malloc((size_t)n_rows * sizeof *tau);
    gac_status status = work && tau ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK) {
        lapack->geqrf(&m, &k, a, &m, tau, work, &n_work, &info);
        lapack->orgqr(&m, &k, &k, a, &m, tau, work, &n_work, &info);
    }
    free(work);
    free(tau);
    return status;
}

#include "cuda_cusolver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The types and numbers of cuSOLVER 11 and 12. */
typedef struct cusolver_context *cusolver_handle;
typedef struct cusolver_settings *cusolver_params;
enum { CUSOLVER_OK = 0, CUSOLVER_NO_MEMORY = 2, CUSOLVER_WITH_VECTORS = 1 };

struct gac_cusolver {
    void *library;
    cusolver_handle handle;
    cusolver_params params;
    int *info; /* in device memory */
    int (*create)(cusolver_handle *);
    int (*destroy)(cusolver_handle);
    int (*set_stream)(cusolver_handle, cudaStream_t);
    int (*create_params)(cusolver_params *);
    int (*destroy_params)(cusolver_params);
    int (*syevd_size)(cusolver_handle, cusolver_params, int jobz, cublasFillMode_t, int64_t n,
                      cudaDataType a_type, const void *a, int64_t lda, cudaDataType w_type,
                      const void *w, cudaDataType compute, size_t *device_bytes,
                      size_t *host_bytes);
    int (*syevd)(cusolver_handle, cusolver_params, int jobz, cublasFillMode_t, int64_t n,
                 cudaDataType a_type, void *a, int64_t lda, cudaDataType w_type, void *w,
                 cudaDataType compute, void *device, size_t device_bytes, void *host,
                 size_t host_bytes, int *info);
    int (*potrf_size)(cusolver_handle, cublasFillMode_t, int n, double *a, int lda, int *n_work);
    int (*potrf)(cusolver_handle, cublasFillMode_t, int n, double *a, int lda, double *work,
                 int n_work, int *info);
    int (*potrs)(cusolver_handle, cublasFillMode_t, int n, int n_right, const double *a, int lda,
                 double *b, int ldb, int *info);
    int (*geqrf_size)(cusolver_handle, int m, int n, double *a, int lda, int *n_work);
    int (*geqrf)(cusolver_handle, int m, int n, double *a, int lda, double *tau, double *work,
                 int n_work, int *info);
    int (*orgqr_size)(cusolver_handle, int m, int n, int k, const double *a, int lda,
                      const double *tau, int *n_work);
    int (*orgqr)(cusolver_handle, int m, int n, int k, double *a, int lda, const double *tau,
                 double *work, int n_work, int *info);
};

static gac_status solver_error(gac_error *err, int code, const char *what)
{
    return gac_error_set(err, code == CUSOLVER_NO_MEMORY ? GAC_NO_RESOURCE : GAC_FAILED,
                         "cuSOLVER: %s: status %d", what, code);
}

static bool find_functions(gac_cusolver *s)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        { "cusolverDnCreate", &s->create },
        { "cusolverDnDestroy", &s->destroy },
        { "cusolverDnSetStream", &s->set_stream },
        { "cusolverDnCreateParams", &s->create_params },
        { "cusolverDnDestroyParams", &s->destroy_params },
        { "cusolverDnXsyevd_bufferSize", &s->syevd_size },
        { "cusolverDnXsyevd", &s->syevd },
        { "cusolverDnDpotrf_bufferSize", &s->potrf_size },
        { "cusolverDnDpotrf", &s->potrf },
        { "cusolverDnDpotrs", &s->potrs },
        { "cusolverDnDgeqrf_bufferSize", &s->geqrf_size },
        { "cusolverDnDgeqrf", &s->geqrf },
        { "cusolverDnDorgqr_bufferSize", &s->orgqr_size },
        { "cusolverDnDorgqr", &s->orgqr },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!gac_cuda_find(s->library, wanted[i].name, wanted[i].function))
            return false;
    return true;
}

static gac_status load(gac_cusolver *s, gac_error *err)
{
    const char *named = getenv("GAC_CUSOLVER");
    const char *files[] = { named && *named ? named : "libcusolver.so.12", "libcusolver.so.11" };
    char why[256] = "";
    for (int i = 0; i < 2 && !s->library && (i == 0 || !(named && *named)); i++) {
        s->library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *text = s->library ? NULL : dlerror();
        if (i == 0)
            gac_quote(why, sizeof why, text ? text : files[i]);
    }
    if (!s->library)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "factoring on the GPU needs cuSOLVER, which was not found: %s; set "
                             "GAC_CUSOLVER to its file or LD_LIBRARY_PATH to its folder",
                             why);
    return find_functions(s) ? GAC_OK
                             : gac_error_set(err, GAC_NO_RESOURCE,
                                             "this cuSOLVER lacks functions of cuSOLVER 11.1");
}

static gac_status start(gac_cuda *cuda, gac_cusolver *s, gac_error *err)
{
    void *memory = NULL;
    const char *what = "cusolverDnCreate";
    int code = s->create(&s->handle);
    if (code == CUSOLVER_OK) {
        what = "cusolverDnSetStream";
        code = s->set_stream(s->handle, cuda->stream);
    }
    if (code == CUSOLVER_OK) {
        what = "cusolverDnCreateParams";
        code = s->create_params(&s->params);
    }
    if (code != CUSOLVER_OK)
        return solver_error(err, code, what);
    gac_status status = gac_cuda_alloc(cuda, sizeof *s->info, &memory, err);
    s->info = memory;
    return status;
}

gac_status gac_cusolver_open(gac_cuda *cuda, gac_error *err)
{
    if (cuda->cusolver)
        return GAC_OK;
    cuda->cusolver = calloc(1, sizeof *cuda->cusolver);
    if (!cuda->cusolver)
        return gac_error_no_memory(err);
    gac_status status = load(cuda->cusolver, err);
    if (status == GAC_OK)
        status = start(cuda, cuda->cusolver, err);
    if (status)
        gac_cusolver_close(cuda);
    return status;
}

void gac_cusolver_close(gac_cuda *cuda)
{
    gac_cusolver *s = cuda->cusolver;
    if (!s)
        return;
    gac_cuda_release(cuda, s->info);
    if (s->params)
        s->destroy_params(s->params);
    if (s->handle)
        s->destroy(s->handle);
    if (s->library)
        dlclose(s->library);
    free(s);
    cuda->cusolver = NULL;
}

/* Waits, and sets *info to what the last decomposition left there. */
static gac_status read_info(gac_cuda *cuda, int *info, gac_error *err)
{
    cudaError_t code = cudaMemcpyAsync(info, cuda->cusolver->info, sizeof *info,
                                       cudaMemcpyDeviceToHost, cuda->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "a decomposition");
}

static gac_status check_size(int64_t n, gac_error *err)
{
    return n <= INT_MAX ? GAC_OK
                        : gac_error_set(err, GAC_USAGE, "a matrix of %lld rows", (long long)n);
}

gac_status gac_cusolver_eigen(gac_cuda *cuda, int64_t n, double *a, double *values, gac_error *err)
{
    gac_cusolver *s = cuda->cusolver;
    const cublasFillMode_t upper = CUBLAS_FILL_MODE_UPPER;
    size_t device_bytes = 0, host_bytes = 0;
    void *device = NULL;
    int info = 0;
    int code = s->syevd_size(s->handle, s->params, CUSOLVER_WITH_VECTORS, upper, n, CUDA_R_64F, a,
                             n, CUDA_R_64F, values, CUDA_R_64F, &device_bytes, &host_bytes);
    if (code != CUSOLVER_OK)
        return solver_error(err, code, "cusolverDnXsyevd_bufferSize");
    void *host = malloc(host_bytes + 1);
    gac_status status =
        host ? gac_cuda_alloc(cuda, device_bytes + 1, &device, err) : gac_error_no_memory(err);
    if (status == GAC_OK) {
        code = s->syevd(s->handle, s->params, CUSOLVER_WITH_VECTORS, upper, n, CUDA_R_64F, a, n,
                        CUDA_R_64F, values, CUDA_R_64F, device, device_bytes, host, host_bytes,
                        s->info);
        if (code != CUSOLVER_OK)
            status = solver_error(err, code, "cusolverDnXsyevd");
    }
    if (status == GAC_OK)
        status = read_info(cuda, &info, err);
    if (status == GAC_OK && info != 0)
        status =
            gac_error_set(err, GAC_FAILED, "the eigenvalues do not converge (syevd: %d)", info);
    gac_cuda_release(cuda, device);
    free(host);
    return status;
}

gac_status gac_cusolver_start_cholesky(gac_cuda *cuda, int64_t n, double *a, int *info,
                                       gac_error *err)
{
    gac_cusolver *s = cuda->cusolver;
    const cublasFillMode_t upper = CUBLAS_FILL_MODE_UPPER; /* the lower one, to row-major eyes */
    int n_work = 0;
    void *work = NULL;
    gac_status status = check_size(n, err);
    if (status)
        return status;
    int code = s->potrf_size(s->handle, upper, (int)n, a, (int)n, &n_work);
    if (code != CUSOLVER_OK)
        return solver_error(err, code, "cusolverDnDpotrf_bufferSize");
    status = gac_cuda_alloc(cuda, ((size_t)n_work + 1) * sizeof(double), &work, err);
    if (status)
        return status;
    code = s->potrf(s->handle, upper, (int)n, a, (int)n, work, n_work, info);
    gac_cuda_release(cuda, work);
    return code == CUSOLVER_OK ? GAC_OK : solver_error(err, code, "cusolverDnDpotrf");
}

gac_status gac_cusolver_cholesky(gac_cuda *cuda, int64_t n, double *a, bool *positive,
                                 gac_error *err)
{
    int info = 0;
    gac_status status = gac_cusolver_start_cholesky(cuda, n, a, cuda->cusolver->info, err);
    if (status == GAC_OK)
        status = read_info(cuda, &info, err);
    *positive = status == GAC_OK && info == 0;
    return status;
}

gac_status gac_cusolver_solve(gac_cuda *cuda, int64_t n, int64_t n_right, const double *root,
                              double *rights, gac_error *err)
{
    gac_cusolver *s = cuda->cusolver;
    gac_status status = check_size(n > n_right ? n : n_right, err);
    if (status)
        return status;
    int code = s->potrs(s->handle, CUBLAS_FILL_MODE_UPPER, (int)n, (int)n_right, root, (int)n,
                        rights, (int)n, s->info);
    return code == CUSOLVER_OK ? GAC_OK : solver_error(err, code, "cusolverDnDpotrs");
}

gac_status gac_cusolver_orthonormalise(gac_cuda *cuda, int64_t n_rows, int64_t n, double *a,
                                       gac_error *err)
{
    gac_cusolver *s = cuda->cusolver;
    void *memory = NULL; /* tau (n_rows), then what both steps work in */
    int n_work = 0, n_more = 0;
    gac_status status = check_size(n, err);
    if (status)
        return status;
    const int m = (int)n, k = (int)n_rows;
    int code = s->geqrf_size(s->handle, m, k, a, m, &n_work);
    if (code == CUSOLVER_OK)
        code = s->orgqr_size(s->handle, m, k, k, a, m, a, &n_more);
    if (code != CUSOLVER_OK)
        return solver_error(err, code, "size of a QR decomposition");
    n_work = n_work > n_more ? n_work : n_more;
    status = gac_cuda_alloc(cuda, ((size_t)k + (size_t)n_work + 1) * sizeof(double), &memory, err);
    if (status)
        return status;
    double *tau = memory, *work = tau + k;
    code = s->geqrf(s->handle, m, k, a, m, tau, work, n_work, s->info);
    if (code == CUSOLVER_OK)
        code = s->orgqr(s->handle, m, k, k, a, m, tau, work, n_work, s->info);
    gac_cuda_release(cuda, memory);
    return code == CUSOLVER_OK ? GAC_OK : solver_error(err, code, "a QR decomposition");
}

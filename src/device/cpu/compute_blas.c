#include "device/cpu/compute_blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

typedef __typeof__(cblas_sgemm) gemm_fn;
typedef __typeof__(openblas_set_num_threads) set_threads_fn;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static gemm_fn *gemm; /* set once, then only read */

/* The symbol as a function, which ISO C has no cast to; false when missing. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static gac_status load(gac_error *err)
{
    char quoted[384];
    set_threads_fn *set_threads;
    gemm_fn *found;
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return gac_error_set(err, GAC_NO_RESOURCE, "cpu: OpenBLAS (libopenblas0) does not load: %s",
                             gac_quote(quoted, sizeof quoted, reason ? reason : "no reason given"));
    }
    if (!find(library, "cblas_sgemm", &found) ||
        !find(library, "openblas_set_num_threads", &set_threads)) {
        dlclose(library);
        return gac_error_set(err, GAC_NO_RESOURCE, "cpu: libopenblas.so.0 is not OpenBLAS");
    }
    /* Our threads each call it on a part of the work. */
    set_threads(1);
    gemm = found;
    return GAC_OK;
}

gac_status gac_blas_load(gac_error *err)
{
    gac_status status = GAC_OK;
    pthread_mutex_lock(&mutex);
    if (!gemm)
        status = load(err);
    pthread_mutex_unlock(&mutex);
    return status;
}

void gac_blas_gemm(bool transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t a_stride, const float *b, int64_t b_stride, float beta, float *c,
                   int64_t c_stride)
{
    gemm(CblasRowMajor, CblasNoTrans, transposed_b ? CblasTrans : CblasNoTrans, (blasint)m,
         (blasint)n, (blasint)k, alpha, a, (blasint)a_stride, b, (blasint)b_stride, beta, c,
         (blasint)c_stride);
}

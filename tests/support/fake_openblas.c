/* An OpenBLAS whose processor and whose memory are known. Found by gac when its
 * folder is in LD_LIBRARY_PATH.
 *
 * FAKE_BLAS_CORE=NAME   the core it takes the processor for, unless told one
 * FAKE_BLAS_LOG=FILE    gets a line at each load, and the number of buffers at
 *                       the end
 * FAKE_BLAS_STUCK=1     asking it for a buffer never ends */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

static int n_used, n_most;

void *blas_memory_alloc(int purpose);
void blas_memory_free(void *buffer);

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "-";
}

static FILE *open_log(void)
{
    const char *path = getenv("FAKE_BLAS_LOG");
    return path ? fopen(path, "a") : NULL;
}

__attribute__((constructor)) static void begin(void)
{
    FILE *log = open_log();
    if (log) {
        fprintf(log, "load %s %s\n", variable("OPENBLAS_CORETYPE"),
                variable("OPENBLAS_NUM_THREADS"));
        fclose(log);
    }
}

__attribute__((destructor)) static void end(void)
{
    FILE *log = n_most > 0 ? open_log() : NULL;
    if (log) {
        fprintf(log, "buffers %d\n", n_most);
        fclose(log);
    }
}

char *openblas_get_corename(void)
{
    static char core[32];
    const char *told = getenv("OPENBLAS_CORETYPE");
    snprintf(core, sizeof core, "%s", told ? told : variable("FAKE_BLAS_CORE"));
    return core;
}

void openblas_set_num_threads(int n_threads)
{
    (void)n_threads;
}

void *blas_memory_alloc(int purpose)
{
    (void)purpose;
    for (volatile int stuck = getenv("FAKE_BLAS_STUCK") != NULL; stuck;)
        continue;
    n_used++;
    n_most = n_used > n_most ? n_used : n_most;
    return malloc(1);
}

void blas_memory_free(void *buffer)
{
    n_used--;
    free(buffer);
}

void cblas_sgemm(OPENBLAS_CONST enum CBLAS_ORDER order,
                 OPENBLAS_CONST enum CBLAS_TRANSPOSE transposed_a,
                 OPENBLAS_CONST enum CBLAS_TRANSPOSE transposed_b, OPENBLAS_CONST blasint m,
                 OPENBLAS_CONST blasint n, OPENBLAS_CONST blasint k, OPENBLAS_CONST float alpha,
                 OPENBLAS_CONST float *a, OPENBLAS_CONST blasint a_stride, OPENBLAS_CONST float *b,
                 OPENBLAS_CONST blasint b_stride, OPENBLAS_CONST float beta, float *c,
                 OPENBLAS_CONST blasint c_stride)
{
    (void)order;
    (void)transposed_a;
    for (blasint i = 0; i < m; i++) {
        for (blasint j = 0; j < n; j++) {
            float *to = &c[(ptrdiff_t)i * c_stride + j], sum = 0;
            for (blasint p = 0; p < k; p++)
                sum += a[(ptrdiff_t)i * a_stride + p] *
                       b[transposed_b == CblasTrans ? (ptrdiff_t)j * b_stride + p
                                                    : (ptrdiff_t)p * b_stride + j];
            *to = alpha * sum + (beta == 0 ? 0 : beta * *to);
        }
    }
}

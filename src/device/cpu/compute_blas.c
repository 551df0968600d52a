#include "device/cpu/compute_blas.h"

#include "device/cpu/compute_kernels.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef __typeof__(cblas_sgemm) gemm_fn;
typedef __typeof__(openblas_set_num_threads) set_threads_fn;
typedef __typeof__(openblas_get_corename) core_name_fn;
/* OpenBLAS exports these two functions for its LAPACK, but no header declares them. */
typedef void *memory_alloc_fn(int purpose);
typedef void memory_free_fn(void *buffer);

/* Size of one OpenBLAS buffer on every 64-bit processor. It is address space only until
 * it is used. */
#define BUFFER_BYTES ((size_t)128 << 20)
/* If asking for buffers uses this much CPU time, OpenBLAS is stuck. Normally it takes
 * microseconds. */
#define STUCK_NS 300000000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* The library and the three function pointers are set once and then only read. */
static void *openblas;
static gemm_fn *gemm;
static memory_alloc_fn *memory_alloc;
static memory_free_fn *memory_free;
static int n_open;  /* threads that may call gemm */
static int n_taken; /* buffers that OpenBLAS holds */

/* A thread that makes OpenBLAS allocate its buffers. If OpenBLAS never returns, the
 * thread outlives the call that started it. */
static struct filler {
    pthread_t thread;
    bool running;
    int n_buffers;
    void **buffers; /* (n_buffers) */
} filler;

/* Sets a function pointer to a symbol by memcpy, since ISO C has no such cast. Returns
 * false if the symbol is missing. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Calls dlopen with extra variables in front of the environment, which OpenBLAS reads
 * while it starts. setenv would race with other threads that read the environment, and
 * child processes would inherit the change. The last two arrays are kept because another
 * thread may still be reading one. */
static void *load_with(const char *core)
{
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1", core_type[48];
    static char **kept[2];
    static int n_kept;
    char **before = environ;
    size_t n = 0, n_more = 0;
    while (before && before[n])
        n++;
    char **more = malloc((n + 3) * sizeof *more);
    if (!more)
        return NULL;
    more[n_more++] =
        one_thread; /* our own threads call OpenBLAS; its threads would only take memory */
    if (core) {
        snprintf(core_type, sizeof core_type, "OPENBLAS_CORETYPE=%s", core);
        more[n_more++] = core_type;
    }
    if (n > 0)
        memcpy(more + n_more, before, n * sizeof *more);
    more[n_more + n] = NULL;
    environ = more;
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (environ == more)
        environ = before;
    free(kept[n_kept]);
    kept[n_kept] = more;
    n_kept = 1 - n_kept;
    return library;
}

/* Returns the core type to request if OpenBLAS does not know the processor and fell back
 * to one without AVX2, or NULL if its choice is fine. */
static const char *better_core(void *library)
{
    core_name_fn *core_name;
    const char *kernels = gac_cpu_kernels_choice(0)->name;
    if (getenv("OPENBLAS_CORETYPE") || !find(library, "openblas_get_corename", &core_name))
        return NULL;
    const char *core = core_name();
    if (strcmp(core, "Prescott") != 0 && strcmp(core, "Barcelona") != 0)
        return NULL;
    return strcmp(kernels, "avx512") == 0 ? "SkylakeX"
           : strcmp(kernels, "avx2") == 0 ? "Haswell"
                                          : NULL;
}

static gac_status load(gac_error *err)
{
    char quoted[384];
    set_threads_fn *set_threads;
    gemm_fn *found;
    void *library = load_with(NULL);
    const char *core = library ? better_core(library) : NULL;
    if (core) {
        dlclose(library);
        library = load_with(core);
    }
    if (!library) {
        const char *reason = dlerror();
        return gac_error_set(err, GAC_NO_RESOURCE, "cpu: OpenBLAS (libopenblas0) does not load: %s",
                             gac_quote(quoted, sizeof quoted, reason ? reason : "out of memory"));
    }
    if (!find(library, "cblas_sgemm", &found) ||
        !find(library, "openblas_set_num_threads", &set_threads)) {
        dlclose(library);
        return gac_error_set(err, GAC_NO_RESOURCE, "cpu: libopenblas.so.0 is not OpenBLAS");
    }
    if (!find(library, "blas_memory_alloc", &memory_alloc) ||
        !find(library, "blas_memory_free", &memory_free))
        memory_alloc = NULL;
    /* Another part of the process may have loaded OpenBLAS before, with threads. */
    set_threads(1);
    openblas = library;
    gemm = found;
    return GAC_OK;
}

/* OpenBLAS keeps its buffers and hands out the first free one. After n were in use at
 * once, n threads find one each without a further allocation. */
static void *take_buffers(void *data)
{
    (void)data;
    for (int i = 0; i < filler.n_buffers; i++)
        filler.buffers[i] = memory_alloc(0);
    for (int i = 0; i < filler.n_buffers; i++) {
        if (filler.buffers[i])
            memory_free(filler.buffers[i]);
    }
    return NULL;
}

/* Returns whether this much address space can be mapped. */
static bool is_room_for(size_t bytes)
{
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place != MAP_FAILED && munmap(place, bytes) == 0;
}

/* Waits for the filler thread. Returns false if it uses STUCK_NS of CPU time first. */
static bool filler_ends(void)
{
    clockid_t clock;
    struct timespec used = { 0 }, deadline;
    const int64_t second = 1000000000;
    while (filler.running) {
        clock_gettime(CLOCK_REALTIME, &deadline);
        int64_t ns = deadline.tv_nsec + second / 100;
        deadline.tv_sec += (time_t)(ns / second);
        deadline.tv_nsec = (long)(ns % second);
        if (pthread_timedjoin_np(filler.thread, NULL, &deadline) == 0)
            filler.running = false;
        else if (pthread_getcpuclockid(filler.thread, &clock) == 0 &&
                 clock_gettime(clock, &used) == 0 && used.tv_sec * second + used.tv_nsec > STUCK_NS)
            return false;
    }
    return true;
}

/* OpenBLAS retries a failed allocation for ever (driver/others/memory.c). So all buffers
 * are allocated before the first product, after a check that there is room, and in a
 * thread that may hang without harm. */
static gac_status fill(int n_wanted, gac_error *err)
{
    bool there = filler_ends(); /* a thread from an earlier call may still be stuck */
    if (there && n_wanted > n_taken && memory_alloc) {
        free(filler.buffers);
        filler.n_buffers = n_wanted;
        filler.buffers = calloc((size_t)n_wanted, sizeof *filler.buffers);
        there = filler.buffers && is_room_for((size_t)(n_wanted - n_taken) * BUFFER_BYTES);
        filler.running = there && pthread_create(&filler.thread, NULL, take_buffers, NULL) == 0;
        there = filler.running && filler_ends();
    }
    if (!there)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "cpu: no memory for OpenBLAS: %zu MiB of address space for each of "
                             "%d threads; fewer threads need less, the device reference none",
                             BUFFER_BYTES >> 20, n_wanted);
    n_taken = n_wanted > n_taken ? n_wanted : n_taken;
    return GAC_OK;
}

gac_status gac_blas_open(int n_threads, gac_error *err)
{
    pthread_mutex_lock(&mutex);
    gac_status status = gemm ? GAC_OK : load(err);
    if (status == GAC_OK)
        status = fill(n_open + n_threads, err);
    if (status == GAC_OK)
        n_open += n_threads;
    pthread_mutex_unlock(&mutex);
    return status;
}

void gac_blas_close(int n_threads)
{
    pthread_mutex_lock(&mutex);
    n_open -= n_threads;
    pthread_mutex_unlock(&mutex);
}

bool gac_blas_find(const char *name, void *function)
{
    return openblas && find(openblas, name, function);
}

void gac_blas_gemm(bool transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t a_stride, const float *b, int64_t b_stride, float beta, float *c,
                   int64_t c_stride)
{
    gemm(CblasRowMajor, CblasNoTrans, transposed_b ? CblasTrans : CblasNoTrans, (blasint)m,
         (blasint)n, (blasint)k, alpha, a, (blasint)a_stride, b, (blasint)b_stride, beta, c,
         (blasint)c_stride);
}

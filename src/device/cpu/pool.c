#include "device/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 256
/* A thread polls this often before it sleeps. That takes about 20 us, as long as waking a
 * thread. The next job usually follows at once. */
#define N_SPINS 500

typedef struct worker {
    gac_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct gac_pool {
    int n_threads;
    int n_started; /* workers; the caller is thread 0 */
    worker *workers;
    pthread_mutex_t mutex;
    pthread_cond_t begun, done;
    bool stop;                 /* protected by the mutex */
    atomic_uint n_jobs;        /* jobs started so far */
    atomic_int n_busy;         /* workers that have not finished the current job */
    atomic_int_least64_t next; /* next item of the current job */
    int64_t n_items;
    gac_pool_fn *fn;
    void *job;
};

static void spin_once(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static void do_items(gac_pool *pool, int thread)
{
    for (;;) {
        int64_t item = atomic_fetch_add(&pool->next, 1);
        if (item >= pool->n_items)
            return;
        pool->fn(pool->job, item, thread);
    }
}

/* Waits for the job after the n_seen-th. Returns false if the pool stops first. */
static bool wait_for_job(gac_pool *pool, unsigned n_seen)
{
    for (int i = 0; i < N_SPINS; i++) {
        if (atomic_load(&pool->n_jobs) != n_seen)
            return true;
        spin_once();
    }
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->n_jobs) == n_seen && !pool->stop)
        pthread_cond_wait(&pool->begun, &pool->mutex);
    bool more = atomic_load(&pool->n_jobs) != n_seen;
    pthread_mutex_unlock(&pool->mutex);
    return more;
}

static void *work(void *data)
{
    worker *self = data;
    gac_pool *pool = self->pool;
    for (unsigned n_seen = 0; wait_for_job(pool, n_seen); n_seen++) {
        do_items(pool, self->index);
        if (atomic_fetch_sub(&pool->n_busy, 1) == 1) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
    return NULL;
}

void gac_pool_run(gac_pool *pool, int64_t n_items, gac_pool_fn *fn, void *job)
{
    pool->n_items = n_items;
    pool->fn = fn;
    pool->job = job;
    atomic_store(&pool->next, 0);
    if (pool->n_started == 0 || n_items < 2) {
        do_items(pool, 0);
        return;
    }
    atomic_store(&pool->n_busy, pool->n_started);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->n_jobs, 1);
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->mutex);
    do_items(pool, 0);
    for (int i = 0; i < N_SPINS && atomic_load(&pool->n_busy) > 0; i++)
        spin_once();
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->n_busy) > 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static int usable_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

gac_status gac_pool_create(int n_threads, gac_pool **out, gac_error *err)
{
    n_threads = n_threads > 0 ? n_threads : usable_cores();
    if (n_threads > MAX_THREADS)
        return gac_error_set(err, GAC_USAGE, "%d threads; at most %d serve", n_threads,
                             MAX_THREADS);
    gac_pool *pool = calloc(1, sizeof *pool);
    worker *workers = calloc((size_t)n_threads, sizeof *workers);
    if (!pool || !workers) {
        free(workers);
        free(pool);
        return gac_error_no_memory(err);
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 1; i < n_threads; i++) {
        worker *one = &workers[pool->n_started];
        *one = (worker){ .pool = pool, .index = i };
        int error = pthread_create(&one->thread, NULL, work, one);
        if (error != 0) {
            gac_pool_free(pool);
            return gac_error_set(err, GAC_NO_RESOURCE, "no thread number %d: %s", i,
                                 strerror(error));
        }
        pool->n_started++;
    }
    *out = pool;
    return GAC_OK;
}

void gac_pool_free(gac_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->begun);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}

int gac_pool_threads(const gac_pool *pool)
{
    return pool->n_threads;
}

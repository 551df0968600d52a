/* A thread pool that runs one job at a time. Threads take the items of a job one by one. */
#ifndef GAC_DEVICE_CPU_POOL_H
#define GAC_DEVICE_CPU_POOL_H

#include <gac/base.h>

typedef struct gac_pool gac_pool;

/* Processes one item. thread is an index from 0, for per-thread buffers. */
typedef void gac_pool_fn(void *job, int64_t item, int thread);

/* Creates a pool. n_threads includes the caller; 0 means one thread per core that the
 * process may use. */
gac_status gac_pool_create(int n_threads, gac_pool **out, gac_error *err);
void gac_pool_free(gac_pool *pool); /* NULL is allowed */
int gac_pool_threads(const gac_pool *pool);

/* Runs all items and returns when they are done. Which thread runs which item is
 * unspecified. */
void gac_pool_run(gac_pool *pool, int64_t n_items, gac_pool_fn *fn, void *job);

#endif

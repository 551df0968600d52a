/* A few threads that share out the items of one job at a time. */
#ifndef GAC_DEVICE_CPU_POOL_H
#define GAC_DEVICE_CPU_POOL_H

#include <gac/base.h>

typedef struct gac_pool gac_pool;

/* Does one item; thread counts from 0 and is good for choosing a buffer. */
typedef void gac_pool_fn(void *job, int64_t item, int thread);

/* n_threads: the caller's is one of them; 0: one for each core it may use. */
gac_status gac_pool_create(int n_threads, gac_pool **out, gac_error *err);
void gac_pool_free(gac_pool *pool); /* NULL is fine */
int gac_pool_threads(const gac_pool *pool);

/* Returns when all items are done; which thread does which is open. */
void gac_pool_run(gac_pool *pool, int64_t n_items, gac_pool_fn *fn, void *job);

#endif

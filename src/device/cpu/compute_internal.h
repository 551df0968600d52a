/* Forward passes on the CPU. The devices `reference` and `cpu` share all code except
 * gac_cpu_arithmetic: how matrices are multiplied, and how attention, norms and gates
 * sum. */
#ifndef GAC_DEVICE_CPU_COMPUTE_INTERNAL_H
#define GAC_DEVICE_CPU_COMPUTE_INTERNAL_H

#include <gac/device.h>

#include "device/cpu/compute_kernels.h"
#include "device/cpu/pool.h"

extern const gac_compute_ops gac_compute_reference_ops, gac_compute_cpu_ops;

/* A linear call takes this many rows through all of its steps at a time. That is enough
 * for fast products, and few enough that intermediate results stay in the last-level
 * cache and work memory does not grow with the pass. */
#define GAC_ROW_CHUNK 512

typedef struct gac_buffer {
    void *data; /* aligned to a cache line */
    size_t bytes;
} gac_buffer;

/* y (m, n) = x (m, k) weight^T + bias, or y += that. */
typedef struct gac_product {
    const float *x;
    int64_t x_stride;
    gac_host_tensor weight; /* (n, k) */
    const float *bias;      /* (n), or NULL */
    float *y;
    int64_t y_stride;
    bool add;
} gac_product;

typedef struct gac_cpu_compute gac_cpu_compute;

/* Attention of the new tokens. Their keys and values are already in the cache. */
typedef struct gac_cpu_attention {
    gac_cpu_compute *compute;
    const gac_attention_call *call;
    int64_t group;    /* query heads per kv head */
    int64_t n_tokens; /* tokens per work item */
    int64_t n_blocks; /* blocks of n_tokens in a sequence */
} gac_cpu_attention;

/* The keys that some rows of a block see: n keys from start on. n_past of them come before
 * the block's first token. */
typedef struct gac_key_range {
    int64_t start, n, n_past;
} gac_key_range;

typedef struct gac_cpu_arithmetic {
    bool exact; /* sums in FP64, in index order */
    gac_status (*multiply)(gac_cpu_compute *compute, const gac_product *products, int n_products,
                           int64_t m, gac_error *err);
    /* Sets *bytes to the scratch that n_rows queries over n_keys keys need. Returns false
     * on overflow. */
    bool (*attend_bytes)(const gac_attention_call *call, int64_t n_rows, int64_t n_keys,
                         size_t *bytes);
    /* Attends with q (n_rows, qk_size) to out (n_rows, v_size). Row r belongs to token
     * first + r / group of the sequence. */
    void (*attend)(const gac_cpu_attention *attention, const float *q, int64_t sequence,
                   int64_t kv_head, int64_t first, int64_t n_rows, void *scratch, float *out);
} gac_cpu_arithmetic;

extern const gac_cpu_arithmetic gac_cpu_exact, gac_cpu_fast;

struct gac_cpu_compute {
    const gac_cpu_arithmetic *arithmetic;
    const gac_cpu_kernels *kernels;
    gac_pool *pool;
    int n_blas_threads; /* threads passed to gac_blas_open */
    int64_t max_rows;
    int32_t *ids;                      /* (batch, n_new), of the current pass */
    int64_t batch, n_new, n_past;      /* sizes of the current pass */
    gac_buffer input, latent, outputs; /* work memory of one chunk of a linear call */
    gac_buffer logits;                 /* (n_logits, gac_row_stride(n_vocab)) */
    int64_t n_logits, n_vocab;
    gac_buffer *scratch;       /* (threads) */
    gac_compute_memory memory; /* work_bytes counts rows only; memory() adds the buffers */
    int64_t free_bytes;        /* limit on the memory of rows and caches together */
};

struct gac_vector {
    int64_t n;
    float data[];
};

struct gac_routing {
    int64_t max_experts, n_experts, n_chosen; /* n_experts: of the last router */
    int64_t *starts; /* (max_experts + 1): an expert's entries of rows and weights */
    int32_t *rows;   /* (max_rows * n_chosen) */
    float *weights;  /* (max_rows * n_chosen) */
    int32_t *chosen; /* (max_rows, n_chosen), experts of a row */
    float *shares;   /* (max_rows, n_chosen), their weights */
};

struct gac_rows {
    int64_t width, stride;
    float *data; /* (max_rows, stride) */
    bool within; /* data belongs to other rows */
};

struct gac_cache {
    int64_t batch, capacity, n_kv_heads, qk_stored, v_stored;
    int64_t n_tokens; /* allocated tokens; batch * capacity may be less after cache_shape */
    float *keys;      /* (batch, n_kv_heads, capacity, qk_stored) */
    float *values;    /* (batch, n_kv_heads, capacity, v_stored) */
};

typedef struct gac_cpu_part {
    gac_host_tensor weight;
    float *bias;   /* (weight.n_rows), or NULL */
    int64_t start; /* first column of the input or latent that this part reads */
} gac_cpu_part;

typedef struct gac_cpu_module {
    gac_host_tensor first; /* first factor; data is NULL if there is none */
    float *first_bias;
    int n_parts;
    gac_cpu_part *parts;
    gac_axis out;
} gac_cpu_module;

struct gac_matrix {
    gac_axis in;
    int n_modules;
    gac_cpu_module *modules;
    int64_t weight_bytes; /* bytes of mapped weights */
};

/* Returns how many bytes this process may still allocate. */
int64_t gac_host_free_bytes(void);

/* Returns the distance in floats between rows of this width. It avoids multiples of 4
 * KiB, because the rows of a tile would then compete for a few lines of the L1 cache. */
int64_t gac_row_stride(int64_t width);

/* Grows the buffer to at least a * b * size bytes. Growing loses its content. Returns
 * GAC_NO_RESOURCE if there is no memory. */
gac_status gac_buffer_reserve(gac_buffer *buffer, int64_t a, int64_t b, size_t size,
                              gac_error *err);
/* Grows the scratch buffer of every thread. */
gac_status gac_scratch_reserve(gac_cpu_compute *compute, size_t bytes, gac_error *err);

/* Slots of gac_compute_ops, in compute_matrix.c, compute_linear.c and compute_attend.c. */
gac_status gac_cpu_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                 int n_modules, gac_matrix **out, gac_error *err);
void gac_cpu_matrix_free(void *state, gac_matrix *matrix);
gac_status gac_cpu_linear(void *state, const gac_linear_call *call, gac_error *err);
gac_status gac_cpu_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                          int64_t n, gac_error *err);
gac_status gac_cpu_losses(void *state, const int32_t *targets, double *out, gac_error *err);
/* Returns the keys that n_rows rows from token first on may see. */
gac_key_range gac_cpu_seen(const gac_cpu_attention *attention, int64_t first, int64_t n_rows);
/* Returns the first key of the range that row r of the block sees. It is 0 without a
 * window. */
int64_t gac_cpu_first_seen(const gac_cpu_attention *attention, gac_key_range range, int64_t r);

/* In compute_route.c. */
gac_status gac_cpu_routing_create(void *state, int64_t n_experts, int64_t n_chosen,
                                  gac_routing **out, gac_error *err);
void gac_cpu_routing_free(void *state, gac_routing *routing);
gac_status gac_cpu_route(void *state, const gac_route_call *call, gac_error *err);
gac_status gac_cpu_attend(void *state, const gac_attention_call *call, gac_error *err);
/* In gram.c and algebra.c; only `cpu` has them. */
gac_status gac_cpu_gram_create(void *state, int64_t n, gac_gram **out, gac_error *err);
void gac_cpu_gram_free(void *state, gac_gram *gram);
gac_status gac_cpu_gram_add(void *state, const gac_linear_call *call, gac_gram *gram,
                            gac_error *err);
gac_status gac_cpu_gram_read(void *state, const gac_gram *gram, double *matrix, double *magnitude,
                             gac_error *err);
gac_status gac_cpu_factor(void *state, const gac_factor_job *jobs, int n_jobs, gac_error *err);
/* Adds rows (n_rows, n of the gram). */
gac_status gac_cpu_gram_add_rows(gac_cpu_compute *compute, const float *rows, int64_t n_rows,
                                 gac_gram *gram, gac_error *err);
/* In backward.c and backward_attention.c; only `cpu` has them. */
gac_status gac_cpu_backward_layer(void *state, const gac_backward_layer *job, gac_error *err);
gac_status gac_cpu_backward_head(void *state, const gac_backward_head *job, gac_error *err);

/* In compute_rows.c. */

/* A norm of n numbers: out = x / rms(x) * weights + bias. centred: x minus its mean stands
 * for x. bias may be NULL, and out may be x. */
typedef struct gac_cpu_norm_args {
    const float *weights, *bias; /* (n) */
    double eps;
    bool centred;
} gac_cpu_norm_args;
void gac_cpu_norm(const gac_cpu_compute *compute, const gac_cpu_norm_args *args, const float *x,
                  int64_t n, float *out);
/* The norm that a linear call asks for, before its matrix. */
gac_cpu_norm_args gac_cpu_norm_of(const gac_linear_call *call);

/* Returns the sum of the squares of x (n) minus mean. */
double gac_cpu_squares(const gac_cpu_compute *compute, const float *x, double mean, int64_t n);

/* out (n) = activation(x) * factor; factor NULL is 1. */
void gac_cpu_activate(const gac_cpu_compute *compute, gac_activation activation, const float *x,
                      const float *factor, int64_t n, float *out);

/* x (n) = softcap(x * scale); each is ignored where it is 0. */
void gac_cpu_bound(double scale, double softcap, int64_t n, float *x);

#endif

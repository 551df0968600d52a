/* Forward passes on the CPU. `reference` and `cpu` are one thing but for what
 * is in gac_cpu_arithmetic: how rows are multiplied and how attention, norms
 * and gates sum up. */
#ifndef GAC_DEVICE_CPU_COMPUTE_INTERNAL_H
#define GAC_DEVICE_CPU_COMPUTE_INTERNAL_H

#include <gac/device.h>

#include "device/cpu/compute_kernels.h"
#include "device/cpu/pool.h"

extern const gac_compute_ops gac_compute_reference_ops, gac_compute_cpu_ops;

/* Rows that a linear call takes through all of its steps at a time: enough for
 * products to run at speed, few enough for what is between them to stay in the
 * last cache and for work memory not to grow with the pass. */
#define GAC_ROW_CHUNK 512

typedef struct gac_buffer {
    void *data; /* on a cache line */
    size_t bytes;
} gac_buffer;

/* y (m, n) = x (m, k) W^T + bias, or y += that. */
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

/* Attention of the new tokens once keys and values are in the cache. */
typedef struct gac_cpu_attention {
    gac_cpu_compute *compute;
    const gac_attention_call *call;
    int64_t group;    /* query heads of a kv head */
    int64_t n_tokens; /* whose queries make up one item */
    int64_t n_blocks; /* of tokens in a sequence */
} gac_cpu_attention;

typedef struct gac_cpu_arithmetic {
    bool exact; /* sums in FP64 one by one */
    gac_status (*multiply)(gac_cpu_compute *compute, const gac_product *products, int n_products,
                           int64_t m, gac_error *err);
    /* Bytes of scratch that the queries of n_rows heads with n_keys keys want. */
    bool (*attend_bytes)(const gac_attention_call *call, int64_t n_rows, int64_t n_keys,
                         size_t *bytes);
    /* Queries q (n_rows, qk_size), row r of token first + r / group of the
     * sequence; out (n_rows, v_size). */
    void (*attend)(const gac_cpu_attention *attention, const float *q, int64_t sequence,
                   int64_t kv_head, int64_t first, int64_t n_rows, void *scratch, float *out);
} gac_cpu_arithmetic;

extern const gac_cpu_arithmetic gac_cpu_exact, gac_cpu_fast;

struct gac_cpu_compute {
    const gac_cpu_arithmetic *arithmetic;
    const gac_cpu_kernels *kernels;
    gac_pool *pool;
    int n_blas_threads; /* for which gac_blas_open was called */
    int64_t max_rows;
    int32_t *ids;                      /* (batch, n_new) of the pass */
    int64_t batch, n_new, n_past;      /* of the pass */
    gac_buffer input, latent, outputs; /* of one chunk of a linear call */
    gac_buffer logits;                 /* (n_logits, gac_row_stride(n_vocab)) */
    int64_t n_logits, n_vocab;
    gac_buffer *scratch;       /* one for each thread */
    gac_compute_memory memory; /* work_bytes: the rows; buffers are added on asking */
    int64_t free_bytes;        /* that rows and caches may take together */
};

struct gac_vector {
    int64_t n;
    float data[];
};

struct gac_rows {
    int64_t width, stride;
    float *data; /* (max_rows, stride) */
    bool within; /* other rows, which own data */
};

struct gac_cache {
    int64_t batch, capacity, n_kv_heads, qk_stored, v_stored;
    int64_t n_tokens; /* batch times capacity at first */
    float *keys;      /* (batch, n_kv_heads, capacity, qk_stored) */
    float *values;    /* (batch, n_kv_heads, capacity, v_stored) */
};

typedef struct gac_cpu_part {
    gac_host_tensor weight;
    float *bias;   /* (weight.n_rows), or NULL */
    int64_t start; /* in the latent */
} gac_cpu_part;

typedef struct gac_cpu_module {
    gac_host_tensor first; /* data NULL: there is none */
    float *first_bias;
    int n_parts;
    gac_cpu_part *parts;
    gac_axis out;
} gac_cpu_module;

struct gac_matrix {
    gac_axis in;
    int n_modules;
    gac_cpu_module *modules;
    int64_t weight_bytes; /* mapped */
};

/* Bytes of memory that this process may still take. */
int64_t gac_host_free_bytes(void);

/* How far apart to keep rows of width numbers: not by a multiple of 4 KiB, or
 * the rows of a tile meet in a few lines of the first cache. */
int64_t gac_row_stride(int64_t width);

/* a * b * size bytes at least; NULL where that does not fit. Keeps what is
 * large enough already, its content is lost otherwise. */
gac_status gac_buffer_reserve(gac_buffer *buffer, int64_t a, int64_t b, size_t size,
                              gac_error *err);
/* The same for each thread. */
gac_status gac_scratch_reserve(gac_cpu_compute *compute, size_t bytes, gac_error *err);

/* In compute_matrix.c, compute_linear.c, compute_attend.c: as in the table. */
gac_status gac_cpu_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                 int n_modules, gac_matrix **out, gac_error *err);
void gac_cpu_matrix_free(void *state, gac_matrix *matrix);
gac_status gac_cpu_linear(void *state, const gac_linear_call *call, gac_error *err);
gac_status gac_cpu_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                          int64_t n, gac_error *err);
gac_status gac_cpu_losses(void *state, const int32_t *targets, double *out, gac_error *err);
gac_status gac_cpu_attend(void *state, const gac_attention_call *call, gac_error *err);

/* x / rms(x) * weights to out (n); the two may be one. */
void gac_cpu_norm(const gac_cpu_compute *compute, const float *x, const float *weights, double eps,
                  int64_t n, float *out);

#endif

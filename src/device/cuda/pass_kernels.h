/* pass_kernels: launchers of the kernels of a forward pass, callable from C. As in
 * kernels.h they only enqueue, may be captured, allocate nothing and keep no state.
 *
 * dtype is F16 or BF16, the type of weights and rows. The shapes below call it half. Sums
 * and the residual stream are F32.
 *
 * overlap: the kernel may start while the previous kernel on the stream still runs
 * (programmatic dependent launch). Until that one has finished it reads only weights. The
 * previous operation on the stream must be a kernel. */
#ifndef GAC_DEVICE_CUDA_COMPUTE_KERNELS_H
#define GAC_DEVICE_CUDA_COMPUTE_KERNELS_H

#include <gac/device.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weights (pass_convert.cu). */

/* Maps rows or columns of a tensor to their padded position: index i goes to (start + i)
 * / size * stored + (start + i) % size - base. */
typedef struct gac_index_map {
    int64_t start, size, stored, base;
} gac_index_map;

typedef struct gac_convert_args {
    gac_dtype from_dtype, to_dtype; /* F32, F16, BF16 */
    const void *from;               /* (n_rows, n_cols) */
    void *to;                       /* rows ld numbers apart */
    int64_t n_rows, n_cols, ld;
    gac_index_map rows, cols;
    int64_t first_index;           /* index of from[0] in its tensor */
    unsigned long long *first_bad; /* lowered to the first index that is not finite */
} gac_convert_args;

gac_status gac_convert_launch(const gac_convert_args *args, cudaStream_t stream, gac_error *err);

/* Rows (pass_rows.cu). */

/* out[i] = x[i] / rms(x[i]) * norm + bias, for n rows. With dtype F32, x and out are F32. */
typedef struct gac_norm_args {
    gac_dtype dtype;
    bool from_float;   /* x is F32, else half */
    const void *x;     /* rows x_ld numbers apart */
    const float *norm; /* (width), or NULL to convert only */
    const float *bias; /* (width), or NULL */
    bool centred;      /* subtracts the mean of a row first */
    void *out;         /* (n, out_ld) half, zero from width on */
    int64_t x_ld, out_ld;
    int64_t width;
    int64_t n;
    double eps;
    bool overlap;
} gac_norm_args;

gac_status gac_norm_launch(const gac_norm_args *args, cudaStream_t stream, gac_error *err);

/* out (n_rows, width) = activation(x[:, :width]), times x[:, width:2 width] if gated. */
typedef struct gac_activate_args {
    gac_dtype dtype;
    gac_activation activation;
    bool gated;
    const void *x; /* (n_rows, x_ld) half */
    void *out;     /* (n_rows, out_ld) half; may be x if it is not gated */
    int64_t x_ld, out_ld, n_rows, width;
} gac_activate_args;

gac_status gac_activate_launch(const gac_activate_args *args, cudaStream_t stream, gac_error *err);

/* to (n_rows, to_ld) += scale * y / rms(y) * norm. */
typedef struct gac_add_args {
    const float *y;    /* (n_rows, y_ld) */
    const float *norm; /* (width), or NULL: y is not normed */
    bool centred;      /* subtracts the mean of a row first */
    float *to;
    int64_t y_ld, to_ld, n_rows, width;
    double eps, scale;
} gac_add_args;

gac_status gac_add_launch(const gac_add_args *args, cudaStream_t stream, gac_error *err);

/* x[i] *= scale, for n numbers; then x[i] = softcap tanh(x[i] / softcap), if softcap is not 0. */
gac_status gac_bound_launch(float *x, int64_t n, double scale, double softcap, cudaStream_t stream,
                            gac_error *err);

/* y (n_rows, n), half or F32, += bias (n). */
gac_status gac_bias_launch(gac_dtype dtype, void *y, int64_t ld, const float *bias, int64_t n_rows,
                           int64_t n, cudaStream_t stream, gac_error *err);

/* A table whose rows are embeddings: (n_rows, ld) half. */
typedef struct gac_table {
    const void *rows;
    int64_t ld, n_rows;
} gac_table;

/* out[r] = scale * table[ids[r]] + positions[first_position + n_past + r % n_new]. */
typedef struct gac_embed_args {
    gac_dtype dtype;
    gac_table table, positions; /* positions.rows NULL: none are added */
    const int32_t *ids;
    const int32_t *n_past; /* a single number in device memory */
    int64_t first_position, n_new;
    double scale;
    float *out; /* (n_rows, out_ld) */
    int64_t out_ld, n_rows, width;
} gac_embed_args;

gac_status gac_embed_launch(const gac_embed_args *args, cudaStream_t stream, gac_error *err);

/* out[i] = log(sum(exp(logits[i]))) - logits[i][targets[i]], logits (n, vocab). */
gac_status gac_losses_launch(const float *logits, int64_t vocab, const int32_t *targets,
                             double *out, int64_t n, cudaStream_t stream, gac_error *err);

/* Few rows times weights (pass_skinny.cu, gemv_persistent.cu). */

enum { GAC_SKINNY_MAX_ROWS = 16, GAC_SKINNY_MAX_SEGMENTS = 16 };

typedef enum gac_skinny_mode {
    GAC_SKINNY_SET,   /* y is half */
    GAC_SKINNY_FLOAT, /* y is F32 */
    GAC_SKINNY_ADD,   /* y is F32 and the product is added to it */
    GAC_SKINNY_GATED  /* y is half: silu(gate) * up */
} gac_skinny_mode;

/* Weights for some columns of y: x[:, x_start : x_start + k] weight^T. k and ld are
 * multiples of 8 and weight is 16-byte aligned. A GATED segment has two of them. */
typedef struct gac_skinny_weights {
    const void *weight; /* (n, ld) half */
    const float *bias;  /* (n), or NULL */
    int64_t k, ld, x_start;
} gac_skinny_weights;

typedef struct gac_skinny_segment {
    gac_skinny_weights gate, up; /* up is used by GATED only */
    int64_t n, y_start;
} gac_skinny_segment;

typedef struct gac_skinny_args {
    gac_dtype dtype;
    gac_skinny_mode mode;
    int64_t m;         /* rows, at most GAC_SKINNY_MAX_ROWS */
    bool from_float;   /* x is F32, else half */
    const void *x;     /* (m, x_ld), rows 16-byte aligned */
    const float *norm; /* (n_norm) with from_float, or NULL: multiplies x / rms(x) * norm */
    int64_t n_norm;    /* normed numbers of a row; the rest of width is zero */
    double eps;
    int64_t width; /* numbers per row of x, a multiple of 8 */
    int64_t x_ld;
    void *y; /* (m, y_ld) */
    int64_t y_ld;
    int n_segments;
    gac_skinny_segment segments[GAC_SKINNY_MAX_SEGMENTS];
    bool overlap;
} gac_skinny_args;

/* Runs one product. x must be half. */
gac_status gac_skinny_launch(const gac_skinny_args *args, cudaStream_t stream, gac_error *err);

/* A sequence of products of one row (gemv_persistent.cu). */

enum {
    GAC_GEMV_MAX_PRODUCTS = 8,
    GAC_GEMV_MAX_BLOCKS = 1023,
    GAC_GEMV_STATE_BYTES = (1 + GAC_GEMV_MAX_BLOCKS) * 4
};

/* Returns whether gac_gemv_launch supports these products on this device. Each must have
 * one row. */
bool gac_gemv_takes(const gac_skinny_args *args, int n);
/* Runs n products of one dtype one after another. Ignores their overlap fields. state has
 * GAC_GEMV_STATE_BYTES bytes, which are zero before the first call. Concurrent launches
 * must not share it. */
gac_status gac_gemv_launch(const gac_skinny_args *args, int n, void *state, bool overlap,
                           cudaStream_t stream, gac_error *err);

/* Attention with a cache. */

/* Arguments of both kernels below. A row of qkv holds the q heads, the k heads and the v
 * heads, padded to their stored sizes. */
typedef struct gac_heads_args {
    gac_dtype dtype;
    const void *qkv; /* (batch * n_new, qkv_ld) half */
    int64_t qkv_ld;
    void *k_cache; /* (batch, n_kv_heads, capacity, qk_stored) half */
    void *v_cache; /* (batch, n_kv_heads, capacity, v_stored) half */
    int64_t capacity;
    int64_t batch, n_new, n_q_heads, n_kv_heads;
    int64_t qk_size, qk_stored, v_size, v_stored;
    const float *q_norm, *k_norm; /* (qk_size), or (heads, qk_size) if norm_each, or NULL */
    bool norm_each;               /* each head has a norm of its own */
    bool norm_centred;            /* norms subtract the mean first */
    const float *whole_scales;    /* (batch * n_new, 2): of q and of k, if all heads of a row are
                                   * normed together; else NULL */
    double eps;
    const float *cosines, *sines; /* (positions, rotary_size / 2), or NULL */
    int64_t rotary_size;          /* so many numbers of a head are rotated: an even number */
    bool interleaved;             /* neighbours are rotated together, not halves */
    const int32_t *n_past;        /* a single number in device memory */
} gac_heads_args;

/* Writes 1 / rms of all q heads of a row together, and of all k heads, to scales (batch *
 * n_new, 2) (pass_rope.cu). */
gac_status gac_whole_scales_launch(const gac_heads_args *args, float *scales, cudaStream_t stream,
                                   gac_error *err);

/* Norms and rotates q and k. Writes q to q_out (batch * n_new, n_q_heads * qk_stored),
 * and k and v to the cache (pass_rope.cu). */
gac_status gac_rope_launch(const gac_heads_args *args, void *q_out, cudaStream_t stream,
                           gac_error *err);

/* One new token per sequence: everything that gac_rope_launch does, and attention over
 * the cache (pass_decode.cu). */
typedef struct gac_decode_args {
    gac_heads_args heads;
    double scale;
    double softcap; /* scores: c tanh(score / c); 0: none */
    int64_t window; /* a token sees so many tokens, its own included; 0: all */
    void *out;      /* (batch, out_ld) half */
    int64_t out_ld;
    void *counters;  /* gac_decode_counter_bytes, zero before the first call */
    void *workspace; /* gac_decode_workspace_bytes */
    bool overlap;
} gac_decode_args;

size_t gac_decode_counter_bytes(int64_t batch, int64_t n_q_heads, int64_t n_kv_heads);
size_t gac_decode_workspace_bytes(int64_t batch, int64_t n_q_heads, int64_t n_kv_heads,
                                  int64_t v_stored);
gac_status gac_decode_launch(const gac_decode_args *args, cudaStream_t stream, gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* Declarations shared by the files that run forward passes on the GPU.
 *
 * - pass_state.c: rows, caches and recordings.
 * - pass_matrix.c: uploads weights.
 * - pass_linear.c: multiplies by weights. A few rows use our own kernels; products of one
 *   row are deferred and launched together. Many rows use pass_lt.c.
 * - pass_attend.c: attention.
 * - pass_head.c: embedding, logits and losses.
 * - pass_gram.c: sums over the inputs of weights. pass_factor.c and pass_channels.c: factors
 *   weights, with pass_algebra.c.
 * - pass_backward.c, pass_backward_attention.c and pass_backward_head.c: gradients.
 *
 * A logical size is the model's. A physical size is the size in memory. The padding rule of
 * the options makes rows and ranks longer, with zeros at the end, so that everything is
 * 16-byte aligned. */
#ifndef GAC_CUDA_COMPUTE_INTERNAL_H
#define GAC_CUDA_COMPUTE_INTERNAL_H

#include "cuda_internal.h"
#include "pass_kernels.h"

/* The algorithm that cublasLt chose for one product. */
typedef struct gac_lt_choice gac_lt_choice;

/* Device memory that grows on demand. */
typedef struct gac_scratch {
    void *memory;
    size_t n_bytes;
} gac_scratch;

typedef struct gac_cuda_compute {
    gac_cuda *cuda;
    gac_compute_options options;
    gac_compute_memory memory;
    int64_t few_rows; /* up to this many rows use our own kernels, more use cublasLt */

    int64_t batch, n_new, n_past; /* sizes of the current pass */
    int32_t *pass;                /* n_past, then ids (max_rows), in device memory */
    int32_t *pass_host;           /* the same in pinned host memory */
    cudaEvent_t pass_copied;

    gac_scratch x;            /* (max_rows, widest input) half: normed rows */
    gac_scratch latent;       /* (max_rows, largest sum of ranks) half */
    gac_scratch wide;         /* (max_rows, gate and up, or q) half */
    gac_scratch outputs;      /* (max_rows, hidden) F32: outputs before they are normed or scaled */
    gac_scratch whole_scales; /* (max_rows, 2) F32: of norms of all heads together */
    gac_scratch split;        /* workspace of attention with divided keys */
    gac_scratch counters;     /* counters of attention with divided keys; zero between calls */

    gac_scratch logits; /* (logit_rows, vocab) F32 */
    int64_t n_logits, vocab;
    gac_scratch gram_rows; /* rows of a Gram matrix in F64 */
    gac_scratch targets;   /* (GAC_MAX_LOGIT_ROWS) losses in F64, then as many targets in int32 */

    int64_t declined_qk, declined_v; /* head sizes that cuDNN declined */

    gac_lt_choice *choices;
    int n_choices, max_choices;

    void *staging[2]; /* pinned, GAC_STAGING_BYTES each */
    void *staged[2];  /* the same size, in device memory */
    cudaEvent_t staged_at[2];
    unsigned long long *first_bad; /* in device memory, see gac_convert_args */

    gac_skinny_args pending[GAC_GEMV_MAX_PRODUCTS]; /* for gac_compute_launch_pending */
    int n_pending;
    gac_scratch gemv_state; /* state of gac_gemv_launch */

    bool recording;
    bool chained; /* the stream ends with one of our kernels, so the next may overlap it */
    cudaGraphExec_t recorded;
} gac_cuda_compute;

#define GAC_STAGING_BYTES ((size_t)16 << 20)

/* y[:, y_start : y_start + n] = z[:, z_start : z_start + k] weight^T, where z is x or the
 * latent. Sizes are physical. */
typedef struct gac_piece {
    void *weight; /* (n, ld) half */
    int64_t n, k, ld, z_start, y_start;
    int module;
} gac_piece;

struct gac_matrix {
    gac_axis in;
    int64_t width; /* physical width of x */
    int64_t n_out; /* physical outputs of all modules */
    int n_modules;
    int64_t n_logical; /* logical outputs of the first module */
    gac_piece first;   /* x to latent; n is 0 if no module is factorised */
    gac_piece *direct; /* x to y */
    int n_direct;
    gac_piece *second; /* latent to y */
    int n_second;
    float *bias;        /* (n_out) or NULL */
    float *latent_bias; /* (first.n) or NULL */
    void *memory;       /* device memory of all weights and biases */
    size_t n_bytes;
};

struct gac_vector {
    float *data; /* (n) on the device */
    int64_t n;
};

struct gac_rows {
    void *data; /* (max_rows, ld), F32 if residual, else half */
    int64_t width, ld;
    bool residual;
    bool within; /* data belongs to other rows */
};

struct gac_cache {
    void *k, *v; /* (batch, n_kv_heads, capacity, stored) half */
    int64_t batch, capacity, n_kv_heads, qk_stored, v_stored;
    int64_t n_tokens; /* allocated tokens; batch * capacity may be less after cache_shape */
    size_t n_bytes;
};

/* pass_state.c */

/* Calls cudaMalloc. The error says how much was wanted and how much is free. */
gac_status gac_compute_alloc(gac_cuda_compute *c, size_t n_bytes, const char *what, void **out,
                             gac_error *err);
/* Grows scratch to at least n_bytes. Growing loses its content and any recording. zero:
 * fills new memory with zeros. */
gac_status gac_compute_reserve(gac_cuda_compute *c, gac_scratch *scratch, size_t n_bytes,
                               const char *what, bool zero, gac_error *err);
/* Returns the physical width of rows of this logical width. */
int64_t gac_compute_row_width(const gac_cuda_compute *c, int64_t width);
int64_t gac_compute_stored(void *state, gac_size_kind kind, int64_t size);
gac_status gac_compute_wait(gac_cuda_compute *c, const char *what, gac_error *err);
/* Sets *out to a * b * c. Returns false on overflow. */
bool gac_compute_bytes(int64_t a, int64_t b, int64_t c, size_t *out);

/* pass_matrix.c */

/* Sets to (n_rows, n_cols) to rows row0 to row0 + n_rows - 1 of a tensor, in F32, and waits.
 * Errors as of matrix_create. */
gac_status gac_compute_upload(gac_cuda_compute *c, const gac_host_tensor *tensor, int64_t row0,
                              int64_t n_rows, float *to, gac_error *err);

/* pass_gram.c */

/* Adds x x^T and |x| of F32 rows x (n_rows, size of the Gram matrix) in device memory. */
gac_status gac_compute_gram_add_floats(gac_cuda_compute *c, const float *x, int64_t n_rows,
                                       gac_gram *gram, gac_error *err);

/* pass_lt.c */

/* y (m, n) = x (m, k) w^T, or y += that, by cublasLt. */
typedef struct gac_lt_call {
    int64_t m, n, k;
    const void *w; /* (n, w_ld) half */
    const void *x; /* (m, x_ld) half */
    void *y;       /* (m, y_ld) half, or F32 if to_float */
    int64_t w_ld, x_ld, y_ld;
    bool to_float;
    bool add; /* add to y */
} gac_lt_call;

gac_status gac_lt_multiply(gac_cuda_compute *c, const gac_lt_call *call, gac_error *err);
void gac_lt_free(gac_cuda_compute *c);

/* pass_linear.c */

/* The rows of x in a product: first + i * step for i < n. */
typedef struct gac_linear_rows {
    int64_t first, step, n;
} gac_linear_rows;

/* The output of a product: rows y_ld numbers apart. */
typedef struct gac_linear_out {
    void *y;
    int64_t y_ld;
    gac_skinny_mode mode;
} gac_linear_out;

/* Launches the deferred products. Call it before anything else is enqueued and before
 * memory that they use is freed. */
gac_status gac_compute_launch_pending(gac_cuda_compute *c, gac_error *err);
gac_status gac_compute_product(gac_cuda_compute *c, const gac_linear_call *call,
                               gac_linear_rows rows, gac_linear_out out, gac_error *err);

/* Sets *x to the rows that a product would multiply: half, after the norm, in their physical
 * width, x_ld numbers apart. They last until the next call. */
gac_status gac_compute_inputs(gac_cuda_compute *c, const gac_linear_call *call, const void **x,
                              int64_t *x_ld, gac_error *err);

/* Slots of gac_compute_ops. */

gac_status gac_compute_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                     int n_modules, gac_matrix **out, gac_error *err);
void gac_compute_matrix_free(void *state, gac_matrix *matrix);
gac_status gac_compute_linear(void *state, const gac_linear_call *call, gac_error *err);
gac_status gac_compute_attend(void *state, const gac_attention_call *call, gac_error *err);
gac_status gac_compute_embed(void *state, const gac_embed_call *call, gac_error *err);
gac_status gac_compute_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                              int64_t n, gac_error *err);
gac_status gac_compute_logits_read(void *state, float *out, gac_error *err);
gac_status gac_compute_losses(void *state, const int32_t *targets, double *out, gac_error *err);

gac_status gac_compute_rows_write(void *state, gac_rows *rows, int64_t first, int64_t n,
                                  const float *in, gac_error *err);
gac_status gac_compute_gram_create(void *state, int64_t n, gac_gram **out, gac_error *err);
void gac_compute_gram_free(void *state, gac_gram *gram);
gac_status gac_compute_gram_add(void *state, const gac_linear_call *call, gac_gram *gram,
                                gac_error *err);
gac_status gac_compute_gram_read(void *state, const gac_gram *gram, double *matrix,
                                 double *magnitude, gac_error *err);
gac_status gac_compute_factor(void *state, const gac_factor_job *jobs, int n_jobs, gac_error *err);
gac_status gac_compute_backward_layer(void *state, const gac_backward_layer *job, gac_error *err);
gac_status gac_compute_backward_head(void *state, const gac_backward_head *job, gac_error *err);

extern const gac_compute_ops gac_cuda_compute_ops;

#endif

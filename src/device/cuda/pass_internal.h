/* compute: forward passes on the GPU, what its files share.
 *
 * pass_state.c keeps what a pass stands on: rows, caches, recordings.
 * pass_matrix.c puts weights on the device, pass_linear.c multiplies
 * with them (own kernels for a few rows, those of one put off and
 * launched together; pass_lt.c for many),
 * pass_attend.c attends and pass_head.c has both ends of the model.
 *
 * Sizes are logical (what the model has) or physical (what lies in memory):
 * by the padding of the options, rows and ranks are longer than they must be, with zeros at
 * the end, so that everything starts on 16 bytes. */
#ifndef GAC_CUDA_COMPUTE_INTERNAL_H
#define GAC_CUDA_COMPUTE_INTERNAL_H

#include "cuda_internal.h"
#include "pass_kernels.h"

/* An algorithm that cublasLt chose for one product. */
typedef struct gac_lt_choice gac_lt_choice;

/* Memory on the device that grows as matrices and caches ask for it. */
typedef struct gac_scratch {
    void *memory;
    size_t n_bytes;
} gac_scratch;

typedef struct gac_cuda_compute {
    gac_cuda *cuda;
    gac_compute_options options;
    gac_compute_memory memory;
    int64_t few_rows; /* that our own kernels multiply; cublasLt has the others */

    int64_t batch, n_new, n_past; /* of the pass */
    int32_t *pass;                /* n_past, then ids (max_rows), on the device */
    int32_t *pass_host;           /* the same, pinned */
    cudaEvent_t pass_copied;

    gac_scratch x;        /* (max_rows, widest input) half: what norms give */
    gac_scratch latent;   /* (max_rows, most ranks) half */
    gac_scratch wide;     /* (max_rows, gate and up, or q) half */
    gac_scratch split;    /* of attention whose keys are divided */
    gac_scratch counters; /* likewise; zero between calls */

    gac_scratch logits; /* (logit_rows, vocab) F32 */
    int64_t n_logits, vocab;
    gac_scratch targets; /* (GAC_MAX_LOGIT_ROWS) int32, then as many losses in F64 */

    int64_t declined_qk, declined_v; /* head sizes that cuDNN would not take */

    gac_lt_choice *choices;
    int n_choices, max_choices;

    void *staging[2]; /* pinned, GAC_STAGING_BYTES each */
    void *staged[2];  /* the same on the device */
    cudaEvent_t staged_at[2];
    unsigned long long *worst_at; /* on the device: see gac_convert_args */

    gac_skinny_args pending[GAC_STREAM_MAX_PRODUCTS]; /* that wait for gac_compute_launch_pending */
    int n_pending;
    gac_scratch stream_state; /* of gac_stream_launch */

    bool recording;
    bool chained; /* the last thing on the stream is a kernel of ours: the next may overlap it */
    cudaGraphExec_t recorded;
} gac_cuda_compute;

#define GAC_STAGING_BYTES ((size_t)16 << 20)

/* y[:, y_start : + n] = z[:, z_start : + k] weight^T, where z is x or the
 * latent row. Sizes are physical. */
typedef struct gac_piece {
    void *weight; /* (n, ld) half */
    int64_t n, k, ld, z_start, y_start;
    int module;
} gac_piece;

struct gac_matrix {
    gac_axis in;
    int64_t width; /* of x, physical */
    int64_t n_out; /* of all modules, physical */
    int n_modules;
    int64_t n_logical; /* outputs of the first module */
    gac_piece first;   /* x to latent rows; n is 0 where there are none */
    gac_piece *direct; /* x to y */
    int n_direct;
    gac_piece *second; /* latent to y */
    int n_second;
    float *bias;        /* (n_out) or NULL */
    float *latent_bias; /* (first.n) or NULL */
    void *memory;       /* all of it, on the device */
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
    bool within; /* other rows, which own data */
};

struct gac_cache {
    void *k, *v; /* (batch, n_kv_heads, capacity, stored) half */
    int64_t batch, capacity, n_kv_heads, qk_stored, v_stored;
    int64_t n_tokens; /* batch times capacity at first */
    size_t n_bytes;
};

/* ---- pass_state.c ----------------------------------------------------- */

/* cudaMalloc; GAC_NO_RESOURCE with what was wanted and what is free. */
gac_status gac_compute_alloc(gac_cuda_compute *c, size_t n_bytes, const char *what, void **out,
                             gac_error *err);
/* Sees to it that scratch memory is large enough. What it held is lost, and so
 * is a recording that knew it. zero: fills it with zeros when it grows. */
gac_status gac_compute_reserve(gac_cuda_compute *c, gac_scratch *scratch, size_t n_bytes,
                               const char *what, bool zero, gac_error *err);
/* The physical width of rows of that width. */
int64_t gac_compute_row_width(const gac_cuda_compute *c, int64_t width);
int64_t gac_compute_stored(void *state, gac_size_kind kind, int64_t size);
gac_status gac_compute_wait(gac_cuda_compute *c, const char *what, gac_error *err);
/* a * b * c bytes; false when that is no size. */
bool gac_compute_bytes(int64_t a, int64_t b, int64_t c, size_t *out);

/* ---- pass_lt.c -------------------------------------------------------- */

/* y (m, n) = x (m, k) w^T + beta y, by cublasLt. */
typedef struct gac_lt_call {
    int64_t m, n, k;
    const void *w; /* (n, w_ld) half */
    const void *x; /* (m, x_ld) half */
    void *y;       /* (m, y_ld) half, or F32 if to_float */
    int64_t w_ld, x_ld, y_ld;
    bool to_float;
    bool add; /* beta is 1 */
} gac_lt_call;

gac_status gac_lt_multiply(gac_cuda_compute *c, const gac_lt_call *call, gac_error *err);
void gac_lt_free(gac_cuda_compute *c);

/* ---- pass_linear.c ---------------------------------------------------- */

/* The rows of a product: n of x from first on, each step further. */
typedef struct gac_linear_rows {
    int64_t first, step, n;
} gac_linear_rows;

/* Where a product goes: rows of y_ld numbers. */
typedef struct gac_linear_out {
    void *y;
    int64_t y_ld;
    gac_skinny_mode mode;
} gac_linear_out;

/* Launches products that were put off. To be called before anything else goes
 * on the stream, and before memory that they know is let go. */
gac_status gac_compute_launch_pending(gac_cuda_compute *c, gac_error *err);
gac_status gac_compute_product(gac_cuda_compute *c, const gac_linear_call *call,
                               gac_linear_rows rows, gac_linear_out out, gac_error *err);

/* ---- The slots of the table ---------------------------------------------- */

gac_status gac_compute_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                     int n_modules, gac_matrix **out, gac_error *err);
void gac_compute_matrix_free(void *state, gac_matrix *matrix);
gac_status gac_compute_linear(void *state, const gac_linear_call *call, gac_error *err);
gac_status gac_compute_attend(void *state, const gac_attention_call *call, gac_error *err);
gac_status gac_compute_embed(void *state, const gac_matrix *table, gac_rows *out, gac_error *err);
gac_status gac_compute_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                              int64_t n, gac_error *err);
gac_status gac_compute_logits_read(void *state, float *out, gac_error *err);
gac_status gac_compute_losses(void *state, const int32_t *targets, double *out, gac_error *err);

extern const gac_compute_ops gac_cuda_compute_ops;

#endif

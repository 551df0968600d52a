/* kernels: launchers of the library's own CUDA kernels, callable from C.
 *
 * A launcher only enqueues on the given stream. It may be captured in a graph, allocates
 * nothing, keeps no state and is thread-safe. It returns GAC_USAGE for invalid arguments
 * and GAC_FAILED if CUDA refuses the launch. Pointers are device pointers of the current
 * device. */
#ifndef GAC_DEVICE_CUDA_KERNELS_H
#define GAC_DEVICE_CUDA_KERNELS_H

#include <gac/base.h>
#include <gac/op.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Attention (flash.cu). */

/* Strides in elements. The elements of a row are contiguous. */
typedef struct gac_flash_strides {
    int64_t batch, head, row;
} gac_flash_strides;

/* softmax(scale q k^T) v per head, in F16 or BF16. Sums and softmax are in FP32. The two
 * head sizes are independent and can have any value. Above 256 the scores are computed
 * again for every 256 columns of v, which is slower than GAC_SDPA_MATH. No size exceeds
 * 2^30. Causal: query i sees keys up to i + n_kv - n_q, and a row that sees no key
 * becomes 0. */
typedef struct gac_flash_args {
    gac_dtype dtype;
    gac_sdpa_shape shape;
    double scale;   /* 0 means 1 / sqrt(qk_head); may be negative */
    double softcap; /* scores: c tanh(score / c); 0: none. Heads up to 256 only, as is window */
    int64_t window; /* a query sees its last so many keys; 0: all. Causal only */
    const void *q;  /* (batch, n_q_heads, n_q, qk_head) */
    const void *k;  /* (batch, n_kv_heads, n_kv, qk_head) */
    const void *v;  /* (batch, n_kv_heads, n_kv, v_head) */
    void *out;      /* (batch, n_q_heads, n_q, v_head) */
    gac_flash_strides q_strides, k_strides, v_strides, out_strides;
    void *workspace; /* 16-byte aligned, or NULL: slow for few rows, as blocks do not share keys */
    size_t workspace_bytes;
} gac_flash_args;

/* Sets all strides to those of contiguous tensors of args->shape. */
void gac_flash_set_contiguous(gac_flash_args *args);

/* Sets *n_bytes to the workspace that gac_flash_launch needs, often 0. It depends on the
 * shape and the device's number of multiprocessors. */
gac_status gac_flash_workspace_bytes(const gac_sdpa_shape *shape, size_t *n_bytes, gac_error *err);

/* Any layout is allowed. It is fast if q, k and v are 16-byte aligned and their strides
 * are multiples of 8. */
gac_status gac_flash_launch(const gac_flash_args *args, cudaStream_t stream, gac_error *err);

/* Padding (pad.cu). */

/* Copies (n_rows, n_from) to (n_rows, n_to), both contiguous. Longer rows are filled with
 * zeros, shorter rows are truncated. A row has at most 2^29 bytes. */
typedef struct gac_pad_job {
    const void *from; /* (n_rows, n_from) */
    void *to;         /* (n_rows, n_to); must not overlap from */
    int64_t n_rows, n_from, n_to;
    int element_bytes; /* 1, 2 or 4 */
} gac_pad_job;

enum { GAC_PAD_MAX_JOBS = 4 };

/* Runs up to GAC_PAD_MAX_JOBS independent jobs in one launch. A job is fast if its
 * pointers are 16-byte aligned and its rows have at least 16 bytes. Other jobs copy byte
 * by byte. */
gac_status gac_pad_launch(const gac_pad_job *jobs, int n_jobs, cudaStream_t stream, gac_error *err);

/* Softmax (softmax.cu). */

/* out = softmax(scale scores) over each row, computed in FP32. Input and output have the
 * same type: F16, BF16 or F32. Row r is query r % n_q. Causal as in gac_flash_args:
 * masked keys, and rows that see no key, become 0. */
typedef struct gac_softmax_args {
    gac_dtype dtype;
    const void *scores; /* (n_rows, n_kv) contiguous */
    void *out;          /* (n_rows, n_kv); may be scores */
    int64_t n_rows, n_q, n_kv;
    double scale;
    bool causal;
} gac_softmax_args;

gac_status gac_softmax_launch(const gac_softmax_args *args, cudaStream_t stream, gac_error *err);

/* Random numbers (fill.cu). */

/* Fills n elements with numbers that depend on seed and index only and are the same on
 * every device. They are nearly normal (a sum of four uniforms, at most 3.47), multiplied
 * by scale and rounded to dtype: F16, BF16, F32, F8_E4M3 or I8. For I8 a scale of 2.4
 * gives integers from -8 to 8. out must be 16-byte aligned. */
gac_status gac_fill_launch(gac_dtype dtype, void *out, int64_t n, uint64_t seed, double scale,
                           cudaStream_t stream, gac_error *err);

/* Delay (hold.cu). */

/* Occupies the stream for time_us, at most 1e6, by the card's timer. Then writes the
 * clock of the multiprocessors to *clock_mhz, which may be mapped host memory. */
gac_status gac_hold_launch(double time_us, float *clock_mhz, cudaStream_t stream, gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* kernels: the library's own CUDA kernels, as launchers a C file can call.
 *
 * Every launcher only enqueues on the stream it is given, may be captured in a
 * graph, allocates nothing, and returns GAC_USAGE for arguments that make no
 * sense, GAC_FAILED when CUDA refuses the launch. Pointers are device pointers
 * of the current device. Nothing here keeps state; any thread may call. */
#ifndef GAC_DEVICE_CUDA_KERNELS_H
#define GAC_DEVICE_CUDA_KERNELS_H

#include <gac/base.h>
#include <gac/op.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Attention (flash.cu) ---------------------------------------------- */

/* Distances in elements between neighbours along an axis; the elements of one
 * row lie side by side. */
typedef struct gac_flash_strides {
    int64_t batch, head, row;
} gac_flash_strides;

/* softmax(scale q k^T) v per head, F16 or BF16, sums and softmax in FP32.
 * Head sizes are independent of each other, and any: above 256 the scores are
 * computed anew for every 256 columns of v. No size is above 2^30. Causal: query
 * i sees keys up to i + n_kv - n_q; a row that sees no key becomes 0. */
typedef struct gac_flash_args {
    gac_dtype dtype;
    gac_sdpa_shape shape;
    double scale;  /* 0: 1 / sqrt(qk_head); may be negative */
    const void *q; /* (batch, n_q_heads, n_q, qk_head) */
    const void *k; /* (batch, n_kv_heads, n_kv, qk_head) */
    const void *v; /* (batch, n_kv_heads, n_kv, v_head) */
    void *out;     /* (batch, n_q_heads, n_q, v_head) */
    gac_flash_strides q_strides, k_strides, v_strides, out_strides;
    void *workspace; /* 16-byte aligned; NULL: keys are not divided among blocks, which is slow
                      * when there are few rows */
    size_t workspace_bytes;
} gac_flash_args;

/* Sets the four strides to those of contiguous tensors of args->shape. */
void gac_flash_set_contiguous(gac_flash_args *args);

/* Bytes of workspace that gac_flash_launch wants for the shape; often 0. It
 * depends on the device only through its number of multiprocessors. */
gac_status gac_flash_workspace_bytes(const gac_sdpa_shape *shape, size_t *n_bytes, gac_error *err);

/* Fast when q, k and v start on 16 bytes and their strides are multiples of 8;
 * any other layout is served too. */
gac_status gac_flash_launch(const gac_flash_args *args, cudaStream_t stream, gac_error *err);

/* ---- Pads (pad.cu) ----------------------------------------------------- */

/* (n_rows, n_from) to (n_rows, n_to), both contiguous: zeros after each row
 * when it grows, the end of each row left out when it shrinks. A row has at
 * most 2^29 bytes. */
typedef struct gac_pad_job {
    const void *from; /* (n_rows, n_from) */
    void *to;         /* (n_rows, n_to); must not overlap from */
    int64_t n_rows, n_from, n_to;
    int element_bytes; /* 1, 2 or 4 */
} gac_pad_job;

enum { GAC_PAD_MAX_JOBS = 4 };

/* Does up to GAC_PAD_MAX_JOBS independent pads in one launch. Fast when all
 * pointers start on 16 bytes (else such a pad is launched by itself, a byte at
 * a time) and rows have 16 bytes or more. */
gac_status gac_pad_launch(const gac_pad_job *jobs, int n_jobs, cudaStream_t stream, gac_error *err);

/* ---- Softmax (softmax.cu) ---------------------------------------------- */

/* out = softmax(scale scores) over each row, in FP32. F16, BF16 or F32, input
 * and output alike. Row r is query r % n_q; causal as in gac_flash_args, with
 * 0 for masked keys and for rows that see none. */
typedef struct gac_softmax_args {
    gac_dtype dtype;
    const void *scores; /* (n_rows, n_kv) contiguous */
    void *out;          /* (n_rows, n_kv); may be scores */
    int64_t n_rows, n_q, n_kv;
    double scale;
    bool causal;
} gac_softmax_args;

gac_status gac_softmax_launch(const gac_softmax_args *args, cudaStream_t stream, gac_error *err);

/* ---- Random numbers (fill.cu) ------------------------------------------ */

/* Fills n elements with numbers that depend on seed and index alone, the same
 * on every device: about normal (a sum of four uniforms, within 3.47) times
 * scale, rounded to dtype: F16, BF16, F32, F8_E4M3 or I8. I8 wants a scale
 * such as 2.4, which gives integers from -8 to 8. out starts on 16 bytes. */
gac_status gac_fill_launch(gac_dtype dtype, void *out, int64_t n, uint64_t seed, double scale,
                           cudaStream_t stream, gac_error *err);

/* ---- Keeping busy (hold.cu) --------------------------------------------- */

/* Occupies the stream for time_us, at most 1e6, by the card's own timer; *clock_mhz, which may
 * be mapped memory of the host, is then how fast the multiprocessors ran. */
gac_status gac_hold_launch(double time_us, float *clock_mhz, cudaStream_t stream, gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

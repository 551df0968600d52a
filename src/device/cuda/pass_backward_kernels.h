/* Launchers of the kernels that pass gradients back, callable from C. As in pass_kernels.h
 * they only enqueue. All numbers are F32, in device memory, and rows are contiguous. Sums
 * have a fixed order, so that results repeat. */
#ifndef GAC_CUDA_PASS_BACKWARD_KERNELS_H
#define GAC_CUDA_PASS_BACKWARD_KERNELS_H

#include <gac/base.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The way back through y = x / rms(x) * norm: out (n_rows, n) is the gradient of y, and the
 * gradient of x is added to gradient (n_rows, n). */
typedef struct gac_norm_back_args {
    const float *x;    /* (n_rows, n) */
    const float *norm; /* (n) */
    const float *out;
    float *gradient;
    int64_t n_rows, n;
    double eps;
} gac_norm_back_args;

gac_status gac_norm_back_launch(const gac_norm_back_args *args, cudaStream_t stream,
                                gac_error *err);

/* Norm and rotation of the heads of q or of k. Turned heads are sorted by kv head, so that
 * all queries that read a kv head follow each other. For k, group is 1. */
typedef struct gac_turn_args {
    float *x;      /* (n_tokens, n_kv_heads, group, size): what the module gave */
    float *turned; /* (n_kv_heads, n_tokens, group, size) */
    int64_t n_tokens, n_kv_heads, group, size;
    const float *norm; /* (size), or NULL */
    double eps;
    const float *cosines, *sines; /* (n_tokens, size / 2), or NULL */
} gac_turn_args;

/* Sets turned. */
gac_status gac_turn_launch(const gac_turn_args *args, cudaStream_t stream, gac_error *err);
/* turned holds gradients of what it was. Replaces x by its gradient. */
gac_status gac_turn_back_launch(const gac_turn_args *args, cudaStream_t stream, gac_error *err);

/* The scores of n_queries tokens from first on, for all heads. A row belongs to a kv head, a
 * query and a place in the group, as turned heads are sorted. Its last query sees all keys:
 * n_keys is first + n_queries. */
typedef struct gac_scores {
    float *shares;   /* (n_kv_heads, n_queries, group, n_keys) */
    float *gradient; /* as shares */
    int64_t n_kv_heads, n_queries, group, n_keys, first;
    int64_t window; /* a token sees so many tokens, its own included; 0: all */
    double scale;
} gac_scores;

/* Replaces the scores in shares, which are scaled already, by their softmax over the keys
 * that the query sees. The other keys get 0. */
gac_status gac_shares_launch(const gac_scores *scores, cudaStream_t stream, gac_error *err);
/* gradient goes in as that of the shares, and comes out as that of the scores before they
 * were scaled. */
gac_status gac_shares_back_launch(const gac_scores *scores, cudaStream_t stream, gac_error *err);

/* Replaces gate and up (n) by their gradients; gated (n) is the gradient of silu(gate) * up. */
gac_status gac_gate_back_launch(float *gate, float *up, const float *gated, int64_t n,
                                cudaStream_t stream, gac_error *err);

/* to (n_b, n_a, n) = from (n_a, n_b, n). */
gac_status gac_swap_launch(const float *from, float *to, int64_t n_a, int64_t n_b, int64_t n,
                           cudaStream_t stream, gac_error *err);

/* Draws a token for each row of logits (n_rows, vocab) with draws (n_rows): the first at which
 * the sum of the probabilities exceeds the draw. log_sums (n_rows) are the logs of the sums of
 * the exponentials. Replaces the logits by the gradient of -log of the token's probability. */
gac_status gac_draw_launch(float *logits, const double *log_sums, const double *draws,
                           int64_t n_rows, int64_t vocab, cudaStream_t stream, gac_error *err);

#ifdef __cplusplus
}
#endif
#endif

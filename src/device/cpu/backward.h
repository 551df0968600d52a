/* What the files that pass gradients back share. */
#ifndef GAC_DEVICE_CPU_BACKWARD_H
#define GAC_DEVICE_CPU_BACKWARD_H

#include "device/cpu/compute_internal.h"

/* c (m, n) = a (m, k) b + beta c on all threads. b is (n, k) if transposed_b, else (k, n). */
typedef struct gac_back_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_stride;
    bool transposed_b;
    const float *b;
    float beta;
    float *c;
} gac_back_product;
void gac_back_multiply(gac_cpu_compute *compute, const gac_back_product *product);

/* Passes out (n), the gradient with respect to the output of the norm weights * x / rms(x), back
 * through the norm, and adds the result to gradient (n). */
void gac_back_norm(const gac_cpu_compute *compute, const float *weights, double eps, const float *x,
                   const float *out, int64_t n, float *gradient);

/* Attention of one layer, forward and back. q and k are the modules' outputs; turned are these
 * after norms and rotation. */
typedef struct gac_back_attention {
    gac_cpu_compute *compute;
    const gac_backward_layer *job;
    float *q, *k, *v;           /* (n_tokens, heads * size) */
    float *q_turned, *k_turned; /* as q, k */
    float *out;                 /* (n_tokens, n_q_heads * v_size): the output of attention, then
                                 * the gradient with respect to it */
    float *k_parts, *v_parts;   /* (n_q_heads, n_tokens, size): the share of each query head in
                                 * the gradients of k and v */
} gac_back_attention;

/* Fills q_turned, k_turned and out. Scratch must be there: gac_back_attention_bytes. */
void gac_back_attend(const gac_back_attention *attention);
/* Replaces q, k and v by the gradients with respect to them. out must have the gradient with
 * respect to the output. */
void gac_back_attend_back(const gac_back_attention *attention);
/* Bytes of scratch of each thread. */
size_t gac_back_attention_bytes(const gac_backward_layer *job);

#endif

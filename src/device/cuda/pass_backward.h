/* Declarations shared by the files that pass gradients back (gac_backward_layer and
 * gac_backward_head). All arrays are F32, row-major, in device memory.
 *
 * A chain of steps is a gac_algebra: after the first failure its functions do nothing. */
#ifndef GAC_CUDA_PASS_BACKWARD_H
#define GAC_CUDA_PASS_BACKWARD_H

#include "pass_algebra.h"
#include "pass_backward_kernels.h"

/* One matrix of a batch. The next one begins step floats further on. */
typedef struct gac_backward_matrix {
    float *at;
    int64_t ld; /* floats between rows */
    int64_t step;
    bool transposed;
} gac_backward_matrix;

/* c (m, n) = alpha a b + beta c, for each matrix of a batch. a is (m, k), or (k, m) if
 * transposed; b is (k, n), or (n, k) if transposed. */
typedef struct gac_backward_product {
    int64_t n_batch, m, n, k;
    float alpha, beta;
    gac_backward_matrix a, b, c;
} gac_backward_product;
void gac_backward_multiply(gac_algebra *s, const gac_backward_product *product);

float *gac_backward_floats(gac_algebra *s, int64_t a, int64_t b);
/* A copy (a, b) of an array in host memory; NULL stays NULL. */
float *gac_backward_upload(gac_algebra *s, const float *from, int64_t a, int64_t b);
/* Frees what was taken and gives unused memory back to the device, so that weights and caches
 * have room. Returns the first failure. */
gac_status gac_backward_end(gac_algebra *s);

/* A layer, and the activations of one of its sequences, whose places gradients take. group is
 * the number of query heads that read a kv head. */
typedef struct gac_backward_run {
    gac_algebra s;
    const gac_backward_layer *job;
    int64_t group;
    int64_t n_queries; /* of a block: gac_backward_attend takes so many at a time */
    float *weight[GAC_BACKWARD_COUNT], *bias[GAC_BACKWARD_COUNT];
    float *attention_norm, *mlp_norm, *q_norm, *k_norm, *cosines, *sines;
    float *x, *gradient;            /* (n_tokens, hidden) */
    float *normed;                  /* (n_tokens, hidden): output of a norm, then its gradient */
    float *between;                 /* (n_tokens, hidden): the stream between attention and MLP */
    float *gate, *up, *gated;       /* (n_tokens, width); gated is a gradient only */
    float *q, *k, *v;               /* (n_tokens, heads * size): what the modules give */
    float *q_turned, *k_turned;     /* after norm and rotation, sorted as gac_turn_args says */
    float *k_gradient, *v_gradient; /* as k_turned, as v */
    float *out;                     /* (n_tokens, n_q_heads * v_size): output of attention */
    float *sorted_out;              /* (n_kv_heads, n_tokens, group, v_size): the same */
    float *shares, *score_gradient; /* (n_kv_heads, n_queries, group, n_tokens) at most */
} gac_backward_run;

/* pass_backward_attention.c */

/* Takes the memory of attention. */
void gac_backward_take_attention(gac_backward_run *r);
/* Sets out from q, k and v. */
void gac_backward_attend(gac_backward_run *r);
/* out holds the gradient of the output. Replaces q and k by their gradients, and sets
 * v_gradient. */
void gac_backward_attend_back(gac_backward_run *r);

#endif

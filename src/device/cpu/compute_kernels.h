/* Inner loops of forward passes on the CPU, compiled once per vector extension. `tile`
 * and `to_float` give the same bits in all versions. */
#ifndef GAC_DEVICE_CPU_COMPUTE_KERNELS_H
#define GAC_DEVICE_CPU_COMPUTE_KERNELS_H

#include <gac/op.h>

#define GAC_PANEL 16    /* outputs of one tile, computed side by side */
#define GAC_TILE_ROWS 8 /* most rows of a tile */

typedef struct gac_cpu_kernels {
    const char *name;
    bool (*usable)(void); /* whether this processor can run them */

    /* Converts n numbers of F32, F16 or BF16 at any address to F32. */
    void (*to_float)(const void *from, gac_dtype dtype, int64_t n, float *to);
    /* Returns the index of the first number that is not finite, or -1. */
    int64_t (*find_bad)(const void *data, gac_dtype dtype, int64_t n);

    /* sums (n_rows, GAC_PANEL) += x^T panel, with x (k, n_rows) and panel (k, GAC_PANEL).
     * n_rows is 1, 4 or 8. Every sum runs over k in order. All operands hold float
     * values, so the products are exact. */
    void (*tile)(const double *x, const double *panel, int64_t k, int n_rows, double *sums);

    /* out[r] = sum over i of x[r, i] w[i], for n_x rows of x, 1 to 8. */
    void (*dots)(const float *x, int64_t x_stride, int n_x, const void *w, gac_dtype dtype,
                 int64_t k, float *out);
    /* out (width) = sum over i < n of p[i] v[i, :]. */
    void (*mix)(const float *p, const float *v, int64_t v_stride, int64_t n, int64_t width,
                float *out);

    float (*largest)(const float *row, int64_t n); /* n is at least 1 */
    float (*exps)(float *row, int64_t n,
                  float largest); /* row = exp(row - largest); returns the sum */
    double (*exp_sum)(const float *row, int64_t n, float largest);
    /* out = silu(gate) * up */
    void (*silu)(const float *gate, const float *up, int64_t n, float *out);
    /* out = gelu(x) * factor, with gelu's approximation by tanh; factor NULL is 1 */
    void (*gelu_tanh)(const float *x, const float *factor, int64_t n, float *out);
} gac_cpu_kernels;

extern const gac_cpu_kernels gac_cpu_kernels_base;
#if defined(__x86_64__)
extern const gac_cpu_kernels gac_cpu_kernels_avx2, gac_cpu_kernels_avx512;
#endif

/* Returns the index-th best kernels that this processor can run, or NULL if there are not
 * so many. */
const gac_cpu_kernels *gac_cpu_kernels_choice(int index);

#endif

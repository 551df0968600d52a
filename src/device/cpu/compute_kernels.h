/* The inner loops of forward passes on the CPU, once for each kind of vectors
 * that processors have. What `tile` and `to_float` give is the same bit by bit
 * in all of them. */
#ifndef GAC_DEVICE_CPU_COMPUTE_KERNELS_H
#define GAC_DEVICE_CPU_COMPUTE_KERNELS_H

#include <gac/op.h>

#define GAC_PANEL 16    /* outputs that go side by side through a tile */
#define GAC_TILE_ROWS 8 /* most rows of a tile */

typedef struct gac_cpu_kernels {
    const char *name;
    bool (*usable)(void); /* on this processor */

    /* n numbers of F32, F16 or BF16 at any address to F32. */
    void (*to_float)(const void *from, gac_dtype dtype, int64_t n, float *to);
    /* Index of the first number that is not finite, or -1. */
    int64_t (*find_bad)(const void *data, gac_dtype dtype, int64_t n);

    /* sums (n_rows, GAC_PANEL) += x^T panel, x (k, n_rows), panel (k, GAC_PANEL),
     * n_rows 1, 4 or 8. Each sum goes over k in order. Operands are floats in
     * value, so that products are exact. */
    void (*tile)(const double *x, const double *panel, int64_t k, int n_rows, double *sums);

    /* out[r] = the sum of x[r, i] w[i], for the n_x (1 to 8) rows of x. */
    void (*dots)(const float *x, int64_t x_stride, int n_x, const void *w, gac_dtype dtype,
                 int64_t k, float *out);
    /* out (width) = the sum of p[i] v[i, :], i below n. */
    void (*mix)(const float *p, const float *v, int64_t v_stride, int64_t n, int64_t width,
                float *out);

    float (*largest)(const float *row, int64_t n);       /* n at least 1 */
    float (*exps)(float *row, int64_t n, float largest); /* exp(row - largest), and the sum */
    double (*exp_sum)(const float *row, int64_t n, float largest);
    /* out = silu(gate) up */
    void (*silu)(const float *gate, const float *up, int64_t n, float *out);
} gac_cpu_kernels;

extern const gac_cpu_kernels gac_cpu_kernels_base;
#if defined(__x86_64__)
extern const gac_cpu_kernels gac_cpu_kernels_avx2, gac_cpu_kernels_avx512;
#endif

/* All that this processor can use, best first; NULL from index n on. */
const gac_cpu_kernels *gac_cpu_kernels_choice(int index);

#endif

/* What is computed of single rows on the CPU: norms, activations, bounds. */
#include "device/cpu/compute_internal.h"

#include <math.h>

/* The sum of n numbers minus mean, or of their squares. */
static double sum_of(const float *x, double mean, int64_t n, bool exact, bool squares)
{
    double sums[8] = { 0 };
    int64_t i = 0;
    for (; !exact && i + 8 <= n; i += 8) {
        for (int lane = 0; lane < 8; lane++) {
            double d = (double)x[i + lane] - mean;
            sums[lane] += squares ? d * d : d;
        }
    }
    for (; i < n; i++) {
        double d = (double)x[i] - mean;
        sums[0] += squares ? d * d : d;
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
           ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

double gac_cpu_squares(const gac_cpu_compute *compute, const float *x, double mean, int64_t n)
{
    return sum_of(x, mean, n, compute->arithmetic->exact, true);
}

void gac_cpu_norm(const gac_cpu_compute *compute, const gac_cpu_norm_args *args, const float *x,
                  int64_t n, float *out)
{
    double mean = 0;
    if (args->centred)
        mean = sum_of(x, 0, n, compute->arithmetic->exact, false) / (double)n;
    double factor = 1 / sqrt(gac_cpu_squares(compute, x, mean, n) / (double)n + args->eps);
    if (!args->centred && !args->bias) {
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)((double)x[i] * factor * (double)args->weights[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(((double)x[i] - mean) * factor * (double)args->weights[i] +
                         (args->bias ? (double)args->bias[i] : 0));
}

gac_cpu_norm_args gac_cpu_norm_of(const gac_linear_call *call)
{
    return (gac_cpu_norm_args){ call->norm ? call->norm->data : NULL,
                                call->norm_bias ? call->norm_bias->data : NULL, call->eps,
                                call->centred };
}

static double activated(gac_activation activation, double x)
{
    const double root = 0.70710678118654752440, slope = 0.79788456080286535588; /* of 2 / pi */
    switch (activation) {
    case GAC_ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x * root));
    case GAC_ACTIVATION_GELU_TANH:
        return 0.5 * x * (1 + tanh(slope * (x + 0.044715 * x * x * x)));
    case GAC_ACTIVATION_RELU:
        return x > 0 ? x : 0;
    default:
        return x / (1 + exp(-x));
    }
}

void gac_cpu_activate(const gac_cpu_compute *compute, gac_activation activation, const float *x,
                      const float *factor, int64_t n, float *out)
{
    const bool exact = compute->arithmetic->exact;
    if (!exact && activation == GAC_ACTIVATION_SILU && factor) {
        compute->kernels->silu(x, factor, n, out);
        return;
    }
    if (!exact && activation == GAC_ACTIVATION_GELU_TANH) {
        compute->kernels->gelu_tanh(x, factor, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float y = (float)activated(activation, (double)x[i]);
        out[i] = factor ? y * factor[i] : y;
    }
}

void gac_cpu_bound(double scale, double softcap, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++) {
        double y = scale != 0 ? (double)x[i] * scale : (double)x[i];
        x[i] = (float)(softcap > 0 ? softcap * tanh(y / softcap) : y);
    }
}

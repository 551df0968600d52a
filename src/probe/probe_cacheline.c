/* The cost of a k that fills no whole number of cache lines: how much longer it takes
 * than the next k that does. */
#include "probe/probe_internal.h"

#include <math.h>

#define LINE_BYTES 128
#define SLOW 1.6        /* a tier this much slower at some anchor has other kernels */
#define MAX_FACTOR 4.0  /* a contract takes factors up to this, */
#define MIN_FACTOR 0.25 /* and from this on */

static const int64_t line_m[] = { 1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192 };
static const int64_t line_n[] = { 1024, 2048, 4096, 8192 };
static const int64_t line_k[] = { 512, 1024, 1536, 4096, 8192 };
enum {
    N_M = sizeof line_m / sizeof *line_m,
    N_N = sizeof line_n / sizeof *line_n,
    N_K = sizeof line_k / sizeof *line_k,
    N_SHAPES = N_M * N_N * N_K
};

bool probe_is_fast(const probe_tier *tier)
{
    return tier->served && tier->penalty < SLOW;
}

/* The least multiple among the leading tiers that are fast. */
static int64_t fast_multiple(const probe_tiers *k)
{
    int t = 0;
    while (t + 1 < k->n_tiers && probe_is_fast(&k->tier[t + 1]))
        t++;
    return k->tier[t].multiple;
}

int64_t probe_line_multiple(const probe_gemm *g)
{
    int64_t numbers = LINE_BYTES * 8 / gac_dtype_bits(g->dtype);
    int64_t best = g->axis[GAC_OP_GEMM_K].tier[0].multiple;
    return best > numbers ? best : numbers;
}

/* The logarithm of a time, NaN where there is none. */
static gac_status log_time(probe *p, const probe_gemm *g, int64_t m, int64_t n, int64_t k,
                           double *out)
{
    probe_point point;
    gac_task_spec spec = probe_gemm_spec(g->dtype, m, n, k);
    gac_status status = probe_measure(p, &spec, &point);
    *out = status == GAC_OK && point.outcome == PROBE_MEASURED ? log(point.time_us) : NAN;
    return status;
}

/* Compares a k of whole lines with those just below it, one for each cost. Kernels work
 * on whole lines, so all of them read equally many. out: logarithms of the ratios. */
static gac_status compare(probe *p, const probe_gemm *g, int64_t m, int64_t n, int64_t k,
                          double *out)
{
    double whole, below;
    gac_status status = log_time(p, g, m, n, k, &whole);
    for (int i = 0; i < g->n_costs && status == GAC_OK; i++) {
        status = log_time(p, g, m, n, k - g->costs[i].multiple, &below);
        out[i] = below - whole;
    }
    return status;
}

/* The median over the shapes, 1 where none was measured. */
static double median_factor(double samples[][PROBE_MAX_PARTS], int n, int part)
{
    double kept[N_SHAPES];
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(samples[i][part]))
            kept[n_kept++] = samples[i][part];
    return fmin(fmax(exp(gac_median(kept, n_kept)), MIN_FACTOR), MAX_FACTOR);
}

gac_status probe_gemm_cacheline(probe *p, probe_gemm *g)
{
    double samples[N_SHAPES][PROBE_MAX_PARTS];
    gac_status status = GAC_OK;
    int step = p->options->quick ? 3 : 1, n = 0;
    int64_t least = fast_multiple(&g->axis[GAC_OP_GEMM_K]);
    for (int64_t part = probe_line_multiple(g) / 2; part >= least && g->n_costs < PROBE_MAX_PARTS;
         part /= 2)
        g->costs[g->n_costs++].multiple = part;
    if (g->n_costs == 0)
        return GAC_OK;
    size_t each = 1 + (size_t)g->n_costs;
    probe_begin(p, "GEMM cache lines", gac_dtype_name(g->dtype), (size_t)(N_SHAPES / step) * each);
    int usual_samples = p->rules.min_samples;
    p->rules.min_samples = PROBE_FEW_SAMPLES;
    for (int i = 0; i < N_SHAPES && status == GAC_OK; i += step, n++) {
        int64_t size_m = line_m[i / (N_N * N_K)], size_n = line_n[i / N_K % N_N];
        status = compare(p, g, size_m, size_n, line_k[i % N_K], samples[n]);
        probe_step(p, (size_t)(n + 1) * each);
    }
    p->rules.min_samples = usual_samples;
    probe_finish(p);
    for (int i = 0; i < g->n_costs && status == GAC_OK; i++)
        g->costs[i].factor = gac_four_digits(median_factor(samples, n, i));
    return status;
}

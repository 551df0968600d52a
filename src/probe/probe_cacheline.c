/* What a k costs whose rows do not begin at lines of the cache, over the next
 * whose rows do. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>

#define LINE_BYTES 128
#define SLOW 1.6 /* a tier this much slower at some anchor has other kernels */

static const int64_t line_m[] = { 1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192 };
static const int64_t line_n[] = { 1024, 2048, 4096, 8192 };
static const int64_t line_k[] = { 512, 1024, 1536, 4096, 8192 };
enum {
    N_M = sizeof line_m / sizeof *line_m,
    N_N = sizeof line_n / sizeof *line_n,
    N_K = sizeof line_k / sizeof *line_k,
    N_SHAPES = N_M * N_N * N_K
};

bool probe_is_fast(const gac_found_tier *tier)
{
    return tier->served && tier->penalty < SLOW;
}

/* The least multiple among the leading tiers that are fast. */
static int64_t fast_multiple(const gac_found_tiers *k)
{
    int t = 0;
    while (t + 1 < k->n_tiers && probe_is_fast(&k->tier[t + 1]))
        t++;
    return k->tier[t].multiple;
}

int64_t probe_line_multiple(const probe_gemm *g)
{
    int64_t numbers = LINE_BYTES * 8 / gac_dtype_bits(g->dtype);
    int64_t period = g->place[GAC_OP_GEMM_K].found.period;
    return period > numbers ? period : numbers;
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

/* Logarithms of what parts of a line cost: sizes below k, which has room for as many
 * lines, since kernels work on whole ones. */
static gac_status compare(probe *p, const probe_gemm *g, int64_t m, int64_t n, int64_t k,
                          double *out)
{
    double whole, below;
    gac_status status = log_time(p, g, m, n, k, &whole);
    for (int i = 0; i < g->cacheline.n_parts && status == GAC_OK; i++) {
        status = log_time(p, g, m, n, k - g->cacheline.part[i], &below);
        out[i] = below - whole;
    }
    return status;
}

/* The median over the shapes, 1 where none was measured. A contract takes no more than
 * four times as long, nor less than a quarter. */
static double median_factor(double samples[][PROBE_MAX_PARTS], int n, int part)
{
    double kept[N_SHAPES];
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(samples[i][part]))
            kept[n_kept++] = samples[i][part];
    return fmin(fmax(exp(probe_median(kept, n_kept)), 0.25), 4);
}

gac_status probe_gemm_cacheline(probe *p, probe_gemm *g)
{
    probe_cacheline *lines = &g->cacheline;
    double samples[N_SHAPES][PROBE_MAX_PARTS];
    gac_status status = GAC_OK;
    int step = p->options->quick ? 3 : 1, n = 0; /* every third shape tells less, but something */
    int64_t part = probe_line_multiple(g) / 2,
            least = fast_multiple(&g->place[GAC_OP_GEMM_K].found);
    for (; part >= least && lines->n_parts < PROBE_MAX_PARTS; part /= 2)
        lines->part[lines->n_parts++] = part;
    if (lines->n_parts == 0)
        return GAC_OK;
    size_t each = 1 + (size_t)lines->n_parts;
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
    for (int i = 0; i < lines->n_parts && status == GAC_OK; i++)
        lines->factor[i] = median_factor(samples, n, i);
    return status;
}

json_t *probe_cacheline_json(const probe_gemm *g)
{
    json_t *costs = json_array();
    for (int i = 0; i < g->cacheline.n_parts; i++)
        json_array_append_new(costs,
                              json_pack("{s:I, s:o}", "multiple", (json_int_t)g->cacheline.part[i],
                                        "factor", probe_number(g->cacheline.factor[i])));
    return json_pack("{s:I, s:o}", "multiple", (json_int_t)probe_line_multiple(g), "costs", costs);
}

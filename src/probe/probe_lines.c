/* What a k costs whose rows do not begin at lines of the cache, over the next
 * whose rows do. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>

#define LINE_BYTES 128
#define SLOW 1.6 /* a tier this much slower at some anchor has other kernels */

/* Powers of two, so that many shapes have the same number of outputs. */
static const int64_t line_m[] = { 1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192 };
static const int64_t line_n[] = { 1024, 2048, 4096, 8192 };
static const int64_t line_k[] = { 512, 1024, 1536, 4096, 8192 };
enum {
    N_M = sizeof line_m / sizeof *line_m,
    N_N = sizeof line_n / sizeof *line_n,
    N_K = sizeof line_k / sizeof *line_k,
    N_SHAPES = N_M * N_N * N_K
};

/* What one shape says: logarithms of the factors of every part. */
typedef struct line_sample {
    int64_t outputs;
    double log_factor[PROBE_MAX_PARTS];
} line_sample;

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

/* Sizes below k, which has room for as many lines: kernels work on whole ones. */
static gac_status compare(probe *p, const probe_lines *lines, const probe_gemm *g, int64_t m,
                          int64_t n, int64_t k, double *out)
{
    double whole, below;
    gac_status status = log_time(p, g, m, n, k, &whole);
    for (int i = 0; i < lines->n_parts && status == GAC_OK; i++) {
        status = log_time(p, g, m, n, k - lines->part[i], &below);
        out[i] = below - whole;
    }
    return status;
}

static int by_outputs(const void *a, const void *b)
{
    const line_sample *x = a, *y = b;
    return x->outputs < y->outputs ? -1 : x->outputs > y->outputs;
}

/* The median of what the shapes with as many outputs say; 1 where none does. A
 * contract takes no more than four times as long, nor less than a quarter. */
static double median_factor(const line_sample *samples, int n, int part)
{
    double sorted[N_SHAPES];
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(samples[i].log_factor[part]))
            sorted[kept++] = samples[i].log_factor[part];
    return fmin(fmax(exp(probe_median(sorted, kept)), 0.25), 4);
}

static void keep_factors(probe_lines *lines, line_sample *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, by_outputs);
    for (int first = 0, end; first < n && lines->n_outputs < PROBE_MAX_OUTPUTS; first = end) {
        for (end = first; end < n && samples[end].outputs == samples[first].outputs;)
            end++;
        lines->outputs[lines->n_outputs] = samples[first].outputs;
        for (int part = 0; part < lines->n_parts; part++)
            lines->factor[part][lines->n_outputs] =
                median_factor(samples + first, end - first, part);
        lines->n_outputs++;
    }
}

gac_status probe_gemm_lines(probe *p, probe_gemm *g)
{
    probe_lines *lines = &g->lines;
    line_sample samples[N_SHAPES];
    gac_status status = GAC_OK;
    int step = p->options->quick ? 3 : 1, n = 0; /* every third shape tells less, but something */
    int64_t part = probe_line_multiple(g) / 2,
            least = fast_multiple(&g->place[GAC_OP_GEMM_K].found);
    for (; part >= least && lines->n_parts < PROBE_MAX_PARTS; part /= 2)
        lines->part[lines->n_parts++] = part;
    if (lines->n_parts == 0)
        return GAC_OK;
    size_t each = 1 + (size_t)lines->n_parts;
    probe_begin(p, "GEMM lines", gac_dtype_name(g->dtype), (size_t)(N_SHAPES / step) * each);
    int usual_samples = p->rules.min_samples;
    p->rules.min_samples = PROBE_FEW_SAMPLES;
    for (int i = 0; i < N_SHAPES && status == GAC_OK; i += step, n++) {
        int64_t size_m = line_m[i / (N_N * N_K)], size_n = line_n[i / N_K % N_N];
        samples[n].outputs = size_m * size_n;
        status = compare(p, lines, g, size_m, size_n, line_k[i % N_K], samples[n].log_factor);
        probe_step(p, (size_t)(n + 1) * each);
    }
    p->rules.min_samples = usual_samples;
    probe_finish(p);
    if (status == GAC_OK)
        keep_factors(lines, samples, n);
    return status;
}

json_t *probe_lines_json(const probe_gemm *g)
{
    const probe_lines *lines = &g->lines;
    json_t *parts = json_array(), *outputs = json_array(), *factors = json_array();
    for (int i = 0; i < lines->n_outputs; i++)
        json_array_append_new(outputs, json_integer(lines->outputs[i]));
    for (int part = 0; part < lines->n_parts; part++) {
        json_t *list = json_array();
        for (int i = 0; i < lines->n_outputs; i++)
            json_array_append_new(list, probe_number(lines->factor[part][i]));
        json_array_append_new(parts, json_integer(lines->part[part]));
        json_array_append_new(factors, list);
    }
    return json_pack("{s:I, s:o, s:o, s:o}", "multiple", (json_int_t)probe_line_multiple(g),
                     "parts", parts, "mn", outputs, "factor", factors);
}

/* What a k costs whose rows do not begin at lines of the cache, over its
 * neighbours whose rows do. */
#include "measure/probe_internal.h"

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
    N_K = sizeof line_k / sizeof *line_k
};
_Static_assert(N_M <= PROBE_MAX_AXIS, "rows must fit");

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

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
    int64_t period = g->place[GAC_SEEN_GEMM_K].found.period;
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

/* One size on each side of k, so that growing with k cancels. */
static gac_status compare(probe *p, const probe_lines *lines, const probe_gemm *g, int64_t m,
                          int64_t n, int64_t k, double *out)
{
    double whole, below, above = NAN;
    gac_status status = log_time(p, g, m, n, k, &whole);
    for (int i = 0; i < lines->n_parts && status == GAC_OK; i++) {
        status = log_time(p, g, m, n, k - lines->part[i], &below);
        if (status == GAC_OK)
            status = log_time(p, g, m, n, k + lines->part[i], &above);
        out[i] = (below + above) / 2 - whole;
    }
    return status;
}

static gac_status compare_rows(probe *p, const probe_gemm *g, probe_lines *lines, int at,
                               size_t *n_done)
{
    double found[N_N * N_K][PROBE_MAX_PARTS], sorted[N_N * N_K];
    gac_status status = GAC_OK;
    for (int i = 0; i < N_N * N_K && status == GAC_OK; i++) {
        status = compare(p, lines, g, line_m[at], line_n[i / N_K], line_k[i % N_K], found[i]);
        probe_step(p, *n_done += 1 + 2 * (size_t)lines->n_parts);
    }
    for (int part = 0; part < lines->n_parts && status == GAC_OK; part++) {
        int n = 0;
        for (int i = 0; i < N_N * N_K; i++)
            if (isfinite(found[i][part]))
                sorted[n++] = found[i][part];
        qsort(sorted, (size_t)n, sizeof *sorted, by_value);
        /* A contract takes no more than four times as long, nor less than a quarter. */
        double middle = n ? exp((sorted[(n - 1) / 2] + sorted[n / 2]) / 2) : 1;
        lines->factor[part][at] = fmin(fmax(middle, 0.25), 4);
    }
    return status;
}

gac_status probe_gemm_lines(probe *p, probe_gemm *g)
{
    probe_lines *lines = &g->lines;
    gac_status status = GAC_OK;
    size_t n_done = 0;
    int64_t part = probe_line_multiple(g) / 2,
            least = fast_multiple(&g->place[GAC_SEEN_GEMM_K].found);
    for (; part >= least && lines->n_parts < PROBE_MAX_PARTS; part /= 2)
        lines->part[lines->n_parts++] = part;
    if (lines->n_parts == 0 || p->options->quick) {
        lines->n_parts = 0;
        return GAC_OK;
    }
    probe_begin(p, "GEMM lines", gac_dtype_name(g->dtype),
                (size_t)N_M * N_N * N_K * (1 + 2 * (size_t)lines->n_parts));
    for (int i = 0; i < N_M && status == GAC_OK; i++)
        status = compare_rows(p, g, lines, i, &n_done);
    probe_finish(p);
    return status;
}

json_t *probe_lines_json(const probe_gemm *g)
{
    const probe_lines *lines = &g->lines;
    json_t *parts = json_array(), *rows = json_array(), *factors = json_array();
    for (int i = 0; i < N_M; i++)
        json_array_append_new(rows, json_integer(line_m[i]));
    for (int part = 0; part < lines->n_parts; part++) {
        json_t *list = json_array();
        for (int i = 0; i < N_M; i++)
            json_array_append_new(list, probe_number(lines->factor[part][i]));
        json_array_append_new(parts, json_integer(lines->part[part]));
        json_array_append_new(factors, list);
    }
    return json_pack("{s:I, s:o, s:o, s:o}", "multiple", (json_int_t)probe_line_multiple(g),
                     "parts", parts, "m", rows, "factor", factors);
}

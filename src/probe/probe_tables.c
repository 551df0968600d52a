/* Tables of GEMM times over rows, n and k, one for every pair of tiers. */
#include "probe/probe_internal.h"

#include <math.h>
#include <string.h>

/* Sizes, closed by 0: fine for the best pair of tiers, coarse for the others. Rows are
 * close where tiles make steps. */
static const int64_t fine_m[] = { 1,    2,    4,    8,    16,   32,    64,   128,
                                  192,  256,  384,  512,  768,  1024,  1280, 1536,
                                  2048, 2560, 3072, 4096, 8192, 16384, 0 };
static const int64_t fine_n[] = { 128,   192,   256,   512,   768,    1024, 1536, 2048,
                                  2560,  3072,  4096,  5120,  6144,   7168, 8192, 10240,
                                  12288, 14336, 16384, 32768, 131072, 0 };
static const int64_t fine_k[] = { 64, 128, 256, 512, 1024, 2048, 4096, 8192, 14336, 28672, 0 };
static const int64_t coarse_m[] = { 1,   2,   4,   8,    16,   32,   64,   128,
                                    192, 256, 512, 1024, 2048, 4096, 8192, 0 };
static const int64_t coarse_n[] = { 128,  256,  512,  768,   1024,  1536, 2048,
                                    4096, 6144, 8192, 16384, 32768, 0 };
static const int64_t coarse_k[] = { 128, 512, 1024, 4096, 8192, 16384, 0 };
/* Decoding has one row: sizes are finer there. */
static const int64_t row_m[] = { 1, 0 };
static const int64_t row_n[] = { 64,   96,   128,   192,   256,   384,   512,   640,    768,
                                 1024, 1280, 1536,  1792,  2048,  2560,  3072,  4096,   5120,
                                 6144, 8192, 11008, 12288, 14336, 16384, 32768, 131072, 0 };
static const int64_t row_k[] = { 64,   128,  192,  256,   384,   512,   768,
                                 1024, 1280, 1536, 2048,  2560,  3072,  4096,
                                 5120, 6144, 8192, 11008, 14336, 28672, 0 };
static const int64_t coarse_row_n[] = { 64,   128,  256,  512,   768,   1024,  1536,  2048,   3072,
                                        4096, 6144, 8192, 11008, 14336, 16384, 32768, 131072, 0 };
static const int64_t coarse_row_k[] = { 64,   128,  256,  512,  1024,  1536,  2048,
                                        3072, 4096, 6144, 8192, 14336, 28672, 0 };
/* Every n, at common rows and at widths that models have. The cost of a partly filled tile
 * weighs most where k is small. A wide n seldom changes its kernel with k; elements of one
 * byte do so more often where k is large. */
static const int64_t few_m[] = { 1, 16, 0 }, many_m[] = { 256, 512, 1024, 2048, 4096, 0 };
static const int64_t widths[] = { 2048, 4096, 8192, 0 }, wide_n_k[] = { 512, 4096, 0 };
static const int64_t long_k[] = { 192, 512, 2048, 4096, 6144, 8192, 14336, 0 };
static const int64_t byte_k[] = { 192, 512, 2048, 4096, 6144, 8192, 11008, 14336, 0 };
static const struct every_n {
    enum { ANY_SIZE, ONE_BYTE, LONGER } elements;
    int64_t from, to;
    const int64_t *m, *k;
} every_ns[] = {
    { LONGER, 128, 4096, many_m, long_k },       { ONE_BYTE, 128, 4096, many_m, byte_k },
    { ANY_SIZE, 4104, 16384, many_m, wide_n_k }, { ANY_SIZE, 128, 4096, few_m, widths },
    { ANY_SIZE, 4104, 16384, few_m, widths },
};
enum { N_EVERY_NS = sizeof every_ns / sizeof *every_ns };
static const int64_t quick_m[] = { 1, 4, 16, 64, 256, 1024, 4096, 0 };
static const int64_t quick_n[] = { 256, 512, 1024, 2048, 4096, 8192, 16384, 0 };
static const int64_t quick_k[] = { 256, 1024, 2048, 4096, 8192, 16384, 0 };

gac_status probe_table_set_axis(probe *p, probe_table *t, int axis, const int64_t *sizes)
{
    int n = 0;
    while (sizes[n])
        n++;
    t->axis[axis] = probe_alloc(p, (size_t)n, sizeof *sizes);
    if (!t->axis[axis])
        return gac_error_no_memory(p->err);
    memcpy(t->axis[axis], sizes, (size_t)n * sizeof *sizes);
    t->n_axis[axis] = n;
    return GAC_OK;
}

gac_status probe_table_alloc(probe *p, probe_table *t)
{
    size_t n = probe_table_cells(t);
    t->time_us = probe_alloc(p, n, sizeof *t->time_us);
    for (size_t i = 0; t->time_us && i < n; i++)
        t->time_us[i] = NAN;
    return t->time_us ? GAC_OK : gac_error_no_memory(p->err);
}

size_t probe_table_cells(const probe_table *t)
{
    return (size_t)t->n_axis[0] * (size_t)t->n_axis[1] * (size_t)t->n_axis[2];
}

/* Sets an axis to sizes that end with 0. They are moved to ones of a tier where tiers are
 * given, else rounded up to a multiple. */
static gac_status set_axis(probe *p, probe_table *t, int axis, const int64_t *sizes,
                           const probe_tiers *tiers, int tier, int64_t multiple)
{
    int64_t kept[PROBE_MAX_AXIS + 1] = { 0 }, size;
    for (int i = 0, n = 0; sizes[i] && n < PROBE_MAX_AXIS; i++) {
        if (tiers)
            size = probe_grid_size(tiers, tier, sizes[i], i);
        else if (!gac_round_up_i64(sizes[i], multiple, &size))
            size = sizes[i];
        if (n == 0 || size > kept[n - 1])
            kept[n++] = size;
    }
    return probe_table_set_axis(p, t, axis, kept);
}

double probe_memory_limit(const probe *p)
{
    return (double)gac_device_describe(p->device)->memory_bytes / 4;
}

/* Adds a table of a pair of tiers. A k of the best tier fills whole cache lines. */
static gac_status add_table(probe *p, probe_gemm *g, int tier_n, int tier_k, bool every_n,
                            const int64_t *m, const int64_t *n, const int64_t *k)
{
    probe_gemm_table *out = &g->tables[g->n_tables++];
    probe_table *t = &out->table;
    *out = (probe_gemm_table){ .tier_n = tier_n, .tier_k = tier_k, .every_n = every_n };
    gac_status status = set_axis(p, t, 0, m, NULL, 0, 1);
    if (status == GAC_OK)
        status = set_axis(p, t, 1, n, every_n ? NULL : &g->axis[GAC_OP_GEMM_N], tier_n, 1);
    if (status == GAC_OK)
        status = set_axis(p, t, 2, k, tier_k == 0 ? NULL : &g->axis[GAC_OP_GEMM_K], tier_k,
                          probe_line_multiple(g));
    return status;
}

static gac_status add_grids(probe *p, probe_gemm *g, int tier_n, int tier_k)
{
    bool fine = tier_n == 0 && tier_k == 0;
    if (p->options->quick)
        return add_table(p, g, tier_n, tier_k, false, quick_m, quick_n, quick_k);
    gac_status status = fine ? add_table(p, g, 0, 0, false, fine_m, fine_n, fine_k)
                             : add_table(p, g, tier_n, tier_k, false, coarse_m, coarse_n, coarse_k);
    if (status != GAC_OK)
        return status;
    return add_table(p, g, tier_n, tier_k, false, row_m, fine ? row_n : coarse_row_n,
                     fine ? row_k : coarse_row_k);
}

/* The library chooses its kernel anew for each aligned n, so these tables have them all. */
static gac_status add_every_n(probe *p, probe_gemm *g, const struct every_n *e)
{
    int64_t sizes[PROBE_MAX_AXIS + 1] = { 0 }, size;
    int64_t step = probe_aligned_multiple(&g->axis[GAC_OP_GEMM_N]);
    if (e->elements != ANY_SIZE && (e->elements == ONE_BYTE) != (gac_dtype_bits(g->dtype) == 8))
        return GAC_OK;
    if (!gac_round_up_i64(e->from, step, &size))
        size = e->from;
    for (int n = 0; size <= e->to && n < PROBE_MAX_AXIS; size += step)
        sizes[n++] = size;
    return add_table(p, g, 0, 0, true, e->m, sizes, e->k);
}

static gac_status plan_tables(probe *p, probe_gemm *g)
{
    const probe_tiers *k = &g->axis[GAC_OP_GEMM_K];
    int n_n = probe_n_served(&g->axis[GAC_OP_GEMM_N]), n_k = probe_n_served(k);
    gac_status status = GAC_OK;
    for (int i = 0; i < n_n * n_k && status == GAC_OK; i++)
        /* A fast k takes the table of the best k, and the cost of its cache line. */
        if (i % n_k == 0 || !probe_is_fast(&k->tier[i % n_k]))
            status = add_grids(p, g, i / n_k, i % n_k);
    for (int i = 0; i < N_EVERY_NS && status == GAC_OK && !p->options->quick; i++)
        status = add_every_n(p, g, &every_ns[i]);
    return status;
}

static size_t total_cells(const probe_gemm *g)
{
    size_t n = 0;
    for (int i = 0; i < g->n_tables; i++)
        n += probe_table_cells(&g->tables[i].table);
    return n;
}

static int count_times(const double *times, int n)
{
    int n_times = 0;
    for (int i = 0; i < n; i++)
        n_times += !isnan(times[i]);
    return n_times;
}

/* Drops leading m without any time, then each n that lacks one at the first m that is left:
 * a contract extends times from there. Returns how many n are dropped. */
static int tidy_table(probe_table *t)
{
    int n_m = t->n_axis[0], n_n = t->n_axis[1], n_k = t->n_axis[2], first = 0, kept = 0;
    bool whole[PROBE_MAX_AXIS];
    double *to = t->time_us;
    while (first + 1 < n_m &&
           count_times(t->time_us + (size_t)first * (size_t)(n_n * n_k), n_n * n_k) == 0)
        first++;
    for (int m = first; m < n_m; m++)
        for (int n = 0; n < n_n; n++) {
            const double *from = t->time_us + (size_t)(m * n_n + n) * (size_t)n_k;
            if (m == first)
                whole[n] = count_times(from, n_k) == n_k;
            if (!whole[n])
                continue;
            memmove(to, from, (size_t)n_k * sizeof *to);
            to += n_k;
        }
    for (int n = 0; n < n_n; n++)
        if (whole[n])
            t->axis[1][kept++] = t->axis[1][n];
    t->n_axis[0] -= first;
    t->n_axis[1] = kept;
    memmove(t->axis[0], t->axis[0] + first, (size_t)t->n_axis[0] * sizeof *t->axis[0]);
    return n_n - kept;
}

/* Drops what is not whole. */
static gac_status tidy_tables(probe *p, probe_gemm *g)
{
    long long n_late = 0, n_lost = 0;
    const char *dtype = gac_dtype_name(g->dtype);
    for (int i = 0; i < g->n_tables; i++) {
        probe_table *t = &g->tables[i].table;
        int n_dropped = tidy_table(t);
        n_late += t->n_late;
        n_lost += t->n_late > 0 ? 0 : n_dropped;
        if (t->n_axis[1] < 1 && !g->tables[i].every_n)
            return gac_error_set(p->err, GAC_NO_RESOURCE,
                                 "%s: no GEMM could be measured for a pair of tiers", dtype);
    }
    if (n_late > 0)
        probe_note(p, "%s: GEMM tables are coarser by %lld points, to keep within %.0f s", dtype,
                   n_late, p->options->max_time_s);
    if (n_lost > 0)
        probe_note(p,
                   "%s: %lld sizes were left out of tables, because not all their points could be "
                   "measured",
                   dtype, n_lost);
    return GAC_OK;
}

gac_status probe_gemm_tables(probe *p, probe_gemm *g)
{
    gac_status status = plan_tables(p, g);
    if (status != GAC_OK)
        return status;
    int usual_samples = p->rules.min_samples;
    p->rules.min_samples = PROBE_FEW_SAMPLES;
    probe_begin(p, "GEMM tables", gac_dtype_name(g->dtype), total_cells(g));
    status = probe_gemm_fill(p, g, p->end_s);
    probe_finish(p);
    p->rules.min_samples = usual_samples;
    return status == GAC_OK ? tidy_tables(p, g) : status;
}

/* Tables of GEMM times over rows, n and k, one for every pair of tiers. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATEST_PART 0.98 /* of what is left of the dtype's time: then tables end, done or not */
#define N_PILOT 192      /* points that tell how long a point takes, */
#define MAX_PILOT 2e12   /* of so many operations at most; */
#define PILOT_ERROR 1.25 /* what they may be off by */

/* Sizes, closed by 0; fine for the best pair, coarse for the others. Rows are
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
/* One row is what decoding does: sizes are finer there. */
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
/* Every n, at rows that are common and widths that models have. What an n costs at the edges
 * of tiles weighs most where k is small; for a wide n the kernel is seldom another for another
 * k. In elements of one byte it is oftener so where k is large. */
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
_Static_assert((int)N_EVERY_NS <= PROBE_MAX_EVERY_N, "room in probe_gemm");
static const int64_t quick_m[] = { 1, 4, 16, 64, 256, 1024, 4096, 0 };
static const int64_t quick_n[] = { 256, 512, 1024, 2048, 4096, 8192, 16384, 0 };
static const int64_t quick_k[] = { 256, 1024, 2048, 4096, 8192, 16384, 0 };

gac_status probe_table_set_axis(probe_table *t, int axis, const int64_t *sizes, int n,
                                gac_error *err)
{
    free(t->axis[axis]);
    t->axis[axis] = calloc((size_t)n + 1, sizeof *sizes);
    t->n_axis[axis] = n;
    if (!t->axis[axis])
        return gac_error_no_memory(err);
    memcpy(t->axis[axis], sizes, (size_t)n * sizeof *sizes);
    return GAC_OK;
}

gac_status probe_table_alloc(probe_table *t, gac_error *err)
{
    size_t n = probe_table_cells(t);
    t->time_us = calloc(n + 1, sizeof *t->time_us);
    for (size_t i = 0; t->time_us && i < n; i++)
        t->time_us[i] = NAN;
    return t->time_us ? GAC_OK : gac_error_no_memory(err);
}

void probe_table_dispose(probe_table *t)
{
    for (int a = 0; a < 3; a++) {
        free(t->axis[a]);
        t->axis[a] = NULL;
    }
    free(t->time_us);
    t->time_us = NULL;
}

size_t probe_table_cells(const probe_table *t)
{
    return (size_t)t->n_axis[0] * (size_t)t->n_axis[1] * (size_t)t->n_axis[2];
}

bool probe_table_coarsen(probe_table *t, bool every_n)
{
    int longest = 0, kept = 1;
    for (int a = 1; a < 3; a++)
        if (t->n_axis[a] > t->n_axis[longest] && !(every_n && a == 1))
            longest = a;
    int n = t->n_axis[longest];
    if (n < (every_n ? 3 : 5))
        return false;
    for (int i = 2; i < n; i++)
        if (i % 2 == 0 || i == n - 1)
            t->axis[longest][kept++] = t->axis[longest][i];
    t->n_axis[longest] = kept;
    return true;
}

json_t *probe_axis_json(const probe_table *t, int axis)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_axis[axis]; i++)
        json_array_append_new(list, json_integer(t->axis[axis][i]));
    return list;
}

json_t *probe_times_json(const probe_table *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < probe_table_cells(t); i++)
        json_array_append_new(list,
                              isnan(t->time_us[i]) ? json_null() : probe_number(t->time_us[i]));
    return list;
}

/* sizes, closed by 0; moved to ones of a tier where tiers are given. */
static gac_status set_axis(probe_table *t, int axis, const int64_t *sizes,
                           const gac_found_tiers *tiers, int tier, gac_error *err)
{
    int64_t kept[PROBE_MAX_AXIS];
    int n = 0;
    for (int i = 0; sizes[i] && n < PROBE_MAX_AXIS; i++) {
        int64_t size = tiers ? probe_grid_size(tiers, tier, sizes[i], i) : sizes[i];
        if (n == 0 || size > kept[n - 1])
            kept[n++] = size;
    }
    return probe_table_set_axis(t, axis, kept, n, err);
}

/* As above; of the best tier, a k is one of whole lines. */
static gac_status set_k_axis(probe_table *t, const int64_t *sizes, const probe_gemm *g, int tier,
                             gac_error *err)
{
    int64_t lines[PROBE_MAX_AXIS + 1] = { 0 };
    for (int i = 0; tier == 0 && i < PROBE_MAX_AXIS && sizes[i]; i++)
        if (!gac_round_up_i64(sizes[i], probe_line_multiple(g), &lines[i]))
            lines[i] = sizes[i];
    return set_axis(t, 2, tier == 0 ? lines : sizes,
                    tier == 0 ? NULL : &g->place[GAC_OP_GEMM_K].found, tier, err);
}

double probe_gemm_bytes(gac_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    return ((double)m * (double)k + (double)n * (double)k + (double)m * (double)n) *
           gac_dtype_bits(dtype) / 8.0;
}

double probe_memory_limit(const probe *p)
{
    return (double)gac_device_describe(p->device)->memory_bytes / 4;
}

/* One row must fit for every n and k, so axes end where it does not. */
static void fit_memory(const probe *p, gac_dtype dtype, probe_table *t)
{
    for (;;) {
        int64_t n = t->axis[1][t->n_axis[1] - 1], k = t->axis[2][t->n_axis[2] - 1];
        if (probe_gemm_bytes(dtype, 1, n, k) <= probe_memory_limit(p))
            return;
        int longer = n >= k ? 1 : 2;
        if (t->n_axis[longer] < 2)
            return;
        t->n_axis[longer]--;
    }
}

static gac_status plan_table(const probe *p, const probe_gemm *g, struct probe_gemm_table *out)
{
    const gac_found_tiers *n = &g->place[GAC_OP_GEMM_N].found;
    probe_table *t = &out->table;
    bool quick = p->options->quick;
    bool fine = out->tier_n == 0 && out->tier_k == 0;
    gac_status status = set_axis(t, 0, quick ? quick_m : fine ? fine_m : coarse_m, NULL, 0, p->err);
    if (status == GAC_OK)
        status = set_axis(t, 1, quick ? quick_n : fine ? fine_n : coarse_n, n, out->tier_n, p->err);
    if (status == GAC_OK)
        status = set_k_axis(t, quick ? quick_k : fine ? fine_k : coarse_k, g, out->tier_k, p->err);
    if (status == GAC_OK)
        fit_memory(p, g->dtype, t);
    return status;
}

static gac_status plan_row_table(const probe *p, const probe_gemm *g, struct probe_gemm_table *out)
{
    probe_table *t = &out->table;
    bool fine = out->tier_n == 0 && out->tier_k == 0;
    gac_status status = set_axis(t, 0, row_m, NULL, 0, p->err);
    if (status == GAC_OK)
        status = set_axis(t, 1, fine ? row_n : coarse_row_n, &g->place[GAC_OP_GEMM_N].found,
                          out->tier_n, p->err);
    if (status == GAC_OK)
        status = set_k_axis(t, fine ? row_k : coarse_row_k, g, out->tier_k, p->err);
    if (status == GAC_OK)
        fit_memory(p, g->dtype, t);
    return status;
}

static bool is_for(const struct every_n *e, const probe_gemm *g)
{
    return e->elements == ANY_SIZE || (e->elements == ONE_BYTE) == (gac_dtype_bits(g->dtype) == 8);
}

/* Every n that is aligned, since the library chooses its kernel anew for each. */
static gac_status plan_every_n(const probe *p, const probe_gemm *g, const struct every_n *e,
                               struct probe_gemm_table *out)
{
    int64_t sizes[PROBE_MAX_AXIS], size;
    int64_t step = probe_aligned_multiple(&g->place[GAC_OP_GEMM_N].found);
    int n = 0;
    out->every_n = true;
    if (!gac_round_up_i64(e->from, step, &size))
        size = e->from;
    for (; size <= e->to && n < PROBE_MAX_AXIS; size += step)
        sizes[n++] = size;
    gac_status status = set_axis(&out->table, 0, e->m, NULL, 0, p->err);
    if (status == GAC_OK)
        status = probe_table_set_axis(&out->table, 1, sizes, n, p->err);
    if (status == GAC_OK)
        status = set_k_axis(&out->table, e->k, g, 0, p->err);
    if (status == GAC_OK)
        fit_memory(p, g->dtype, &out->table);
    return status;
}

gac_task_spec probe_cell_spec(const probe_gemm *g, const struct probe_gemm_table *t,
                              const int at[3])
{
    const probe_table *table = &t->table;
    return probe_gemm_spec(g->dtype, table->axis[0][at[0]], table->axis[1][at[1]],
                           table->axis[2][at[2]]);
}

static size_t total_cells(const probe_gemm *g)
{
    size_t n = 0;
    for (int i = 0; i < g->n_tables; i++)
        n += probe_table_cells(&g->tables[i].table);
    return n;
}

/* One that has every size loses rows and widths, and then is left out: without it sizes
 * are told less well, without the others not at all. */
static bool coarsen(struct probe_gemm_table *t)
{
    bool is_coarser = probe_table_coarsen(&t->table, t->every_n);
    if (!is_coarser && t->every_n)
        t->table.n_axis[1] = 0;
    return is_coarser || t->every_n;
}

/* Makes one table coarser: the largest, that of the best tiers counted by a part of its
 * cells, since sizes are meant to end up there. False when none can be. */
static bool coarsen_one(probe_gemm *g)
{
    bool spent[sizeof g->tables / sizeof *g->tables] = { false };
    for (int round = 0; round < g->n_tables; round++) {
        int largest = -1;
        double most = 0;
        for (int i = 0; i < g->n_tables; i++) {
            double cells = (double)probe_table_cells(&g->tables[i].table) / (i == 0 ? 10 : 1);
            if (!spent[i] && cells > most) {
                most = cells;
                largest = i;
            }
        }
        if (largest < 0 || coarsen(&g->tables[largest]))
            return largest >= 0;
        spent[largest] = true;
    }
    return false;
}

/* How long a cell takes that is drawn from all tables; nothing where it is to be left out
 * for taking too long. The second time, since the first may load a kernel. */
static gac_status time_cell(probe *p, const probe_gemm *g, double *out_s)
{
    size_t cell = probe_random(p) % total_cells(g);
    int at = 0;
    *out_s = 0;
    while (cell >= probe_table_cells(&g->tables[at].table))
        cell -= probe_table_cells(&g->tables[at++].table);
    const probe_table *t = &g->tables[at].table;
    size_t n_n = (size_t)t->n_axis[1], n_k = (size_t)t->n_axis[2];
    const int index[3] = { (int)(cell / n_k / n_n), (int)(cell / n_k % n_n), (int)(cell % n_k) };
    probe_point point;
    gac_task_spec spec = probe_cell_spec(g, &g->tables[at], index);
    if (gac_task_flops(&spec) > MAX_PILOT ||
        probe_gemm_bytes(g->dtype, spec.gemm.m, spec.gemm.n, spec.gemm.k) > probe_memory_limit(p))
        return GAC_OK;
    gac_status status = probe_measure(p, &spec, &point);
    if (status != GAC_OK || point.outcome != PROBE_MEASURED || point.time_us > PROBE_MAX_POINT_US)
        return status;
    double start_s = gac_now_s();
    status = probe_measure(p, &spec, &point);
    *out_s = gac_now_s() - start_s;
    return status;
}

/* Tables are made coarser until all fit the time; where it is up all the same, what is then
 * left to do is thinly spread over them. */
static gac_status fit_time(probe *p, probe_gemm *g)
{
    double sum_s = 0, spent_s;
    int n_dropped = 0;
    for (int i = 0; i < N_PILOT; i++) {
        gac_status status = time_cell(p, g, &spent_s);
        if (status != GAC_OK)
            return status;
        sum_s += spent_s;
    }
    double point_s = sum_s / N_PILOT, limit_s = probe_left_s(p);
    while ((double)total_cells(g) * point_s > limit_s * PILOT_ERROR && coarsen_one(g))
        n_dropped++;
    if (n_dropped > 0)
        probe_note(
            p,
            "%s: GEMM tables were made coarser %d times to keep within %.0f s: %zu points at "
            "about %.1f ms each",
            gac_dtype_name(g->dtype), n_dropped, p->options->max_time_s, total_cells(g),
            point_s * 1e3);
    return GAC_OK;
}

/* Few rows may be declined for every size: the table then starts with more. */
static void drop_first_rows(probe_table *t)
{
    size_t plane = (size_t)t->n_axis[1] * (size_t)t->n_axis[2];
    int n_empty = 0;
    for (bool empty = true; empty && n_empty + 1 < t->n_axis[0]; n_empty += empty)
        for (size_t i = 0; i < plane && empty; i++)
            empty = isnan(t->time_us[(size_t)n_empty * plane + i]);
    t->n_axis[0] -= n_empty;
    memmove(t->time_us, t->time_us + (size_t)n_empty * plane,
            (size_t)t->n_axis[0] * plane * sizeof *t->time_us);
    memmove(t->axis[0], t->axis[0] + n_empty, (size_t)t->n_axis[0] * sizeof *t->axis[0]);
}

/* The first row must be whole: a size without it is dropped from its axis. How many are. */
static int drop_gaps(probe_table *t)
{
    int n_n = t->n_axis[1], n_k = t->n_axis[2], kept = 0;
    for (int i = 0; i < n_n; i++) {
        bool whole = true;
        for (int j = 0; j < n_k; j++)
            whole = whole && !isnan(t->time_us[(size_t)i * (size_t)n_k + (size_t)j]);
        if (!whole)
            continue;
        for (int m = 0; m < t->n_axis[0]; m++)
            memmove(&t->time_us[(size_t)(m * n_n + kept) * (size_t)n_k],
                    &t->time_us[(size_t)(m * n_n + i) * (size_t)n_k],
                    (size_t)n_k * sizeof *t->time_us);
        t->axis[1][kept++] = t->axis[1][i];
    }
    for (int m = 1; kept < n_n && m < t->n_axis[0]; m++)
        memmove(&t->time_us[(size_t)(m * kept) * (size_t)n_k],
                &t->time_us[(size_t)(m * n_n) * (size_t)n_k],
                (size_t)(kept * n_k) * sizeof *t->time_us);
    t->n_axis[1] = kept;
    return n_n - kept;
}

static struct probe_gemm_table *add_table(probe_gemm *g, int tier_n, int tier_k)
{
    struct probe_gemm_table *t = &g->tables[g->n_tables++];
    *t = (struct probe_gemm_table){ .tier_n = tier_n, .tier_k = tier_k };
    return t;
}

gac_status probe_gemm_tables(probe *p, probe_gemm *g)
{
    int n_n = probe_n_served(&g->place[GAC_OP_GEMM_N].found);
    int n_k = probe_n_served(&g->place[GAC_OP_GEMM_K].found);
    int64_t n_late = 0, n_lost = 0;
    const gac_found_tiers *k = &g->place[GAC_OP_GEMM_K].found;
    gac_status status = GAC_OK;
    for (int i = 0; i < n_n * n_k && status == GAC_OK; i++) {
        /* Fast k have the table of the best one; lines tell them from each other. */
        if (i % n_k > 0 && probe_is_fast(&k->tier[i % n_k]))
            continue;
        status = plan_table(p, g, add_table(g, i / n_k, i % n_k));
        if (status == GAC_OK && !p->options->quick)
            status = plan_row_table(p, g, add_table(g, i / n_k, i % n_k));
        for (int d = 0; i == 0 && d < N_EVERY_NS && status == GAC_OK && !p->options->quick; d++)
            if (is_for(&every_ns[d], g))
                status = plan_every_n(p, g, &every_ns[d], add_table(g, 0, 0));
    }
    if (status != GAC_OK)
        return status;
    probe_begin(p, "GEMM tables", gac_dtype_name(g->dtype), total_cells(g));
    double end_s = gac_now_s() + probe_left_s(p) * LATEST_PART;
    int usual_samples = p->rules.min_samples;
    p->rules.min_samples = PROBE_FEW_SAMPLES;
    status = fit_time(p, g);
    gac_progress_start(p->options->progress, p->phase, "points", total_cells(g));
    if (status == GAC_OK)
        status = probe_gemm_fill(p, g, end_s);
    p->rules.min_samples = usual_samples;
    for (int i = 0; i < g->n_tables && status == GAC_OK; i++) {
        probe_table *t = &g->tables[i].table;
        drop_first_rows(t);
        int n_dropped = drop_gaps(t);
        n_late += t->n_late;
        n_lost += t->n_late > 0 ? 0 : n_dropped;
        if (g->tables[i].every_n)
            continue; /* one that is empty is left out */
        if (t->n_axis[1] < 1)
            status = gac_error_set(p->err, GAC_NO_RESOURCE,
                                   "%s: no GEMM could be measured for a pair of tiers",
                                   gac_dtype_name(g->dtype));
    }
    probe_finish(p);
    if (n_late > 0)
        probe_note(p, "%s: %lld table points were left out, the time was up",
                   gac_dtype_name(g->dtype), (long long)n_late);
    if (n_lost > 0)
        probe_note(p, "%s: %lld sizes were left out of tables, a point of theirs failed",
                   gac_dtype_name(g->dtype), (long long)n_lost);
    return status;
}

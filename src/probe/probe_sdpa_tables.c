/* Tables of attention for each tier: prefill, causal and not, and decode. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>

#define MAX_TIME_US 20000 /* longer points are left to extrapolation */
#define PART_OF_TIME 0.4  /* tables may take this much of what is left of the dtype's time */

/* Kinds of tables. */
enum { CAUSAL, NOT_CAUSAL, DECODE, N_KINDS };

static double nearest_curve_us(const probe_sdpa *s, int tier, int64_t head)
{
    double best = 0;
    int64_t distance = INT64_MAX;
    for (int i = 0; i < s->n_curve; i++) {
        int64_t d = llabs(s->curve[i].head - head);
        if (probe_tier_of(&s->tiers, s->curve[i].head) == tier && d < distance) {
            distance = d;
            best = s->curve[i].time_us;
        }
    }
    return best;
}

/* heads end with 0; each is moved to one of the tier. */
static gac_status set_heads(probe *p, const probe_sdpa *s, probe_table *t, int tier,
                            const int64_t *heads)
{
    int64_t kept[PROBE_MAX_CURVE] = { 0 };
    for (int i = 0, n = 0; heads[i]; i++) {
        int64_t head = probe_tier_size(&s->tiers, tier, heads[i]);
        if (head <= s->max_head && (n == 0 || head > kept[n - 1]))
            kept[n++] = head;
    }
    return probe_table_set_axis(p, t, 2, kept);
}

static probe_table *table_of(probe_sdpa *s, int tier, int kind)
{
    return kind == DECODE ? &s->decode[tier] : &s->prefill[tier][kind];
}

static gac_status plan_tier(probe *p, probe_sdpa *s, int tier, bool quick)
{
    static const int64_t rows[] = { 8, 32, 128, 512, 0 }, quick_rows[] = { 8, 128, 0 };
    static const int64_t lengths[] = { 128, 256, 512, 1024, 2048, 8192, 0 };
    static const int64_t quick_lengths[] = { 128, 512, 2048, 8192, 0 };
    /* With few rows the vendor's kernel takes 768 keys faster than 512. */
    static const int64_t contexts[] = { 128, 512, 768, 2048, 16384, 0 };
    /* There are kernels for heads up to 64, 96, 128, 192 and 256. Between these the vendor's
     * prefill follows the curve, which has every head. Decoding and other prefill do not:
     * their tables have both sides of each. The vendor's decoding is slowest just below. */
    static const int64_t few_heads[] = { 32, 64, 96, 128, 192, 256, 0 };
    static const int64_t heads[] = { 32, 64, 72, 96, 104, 128, 136, 192, 200, 256, 0 };
    static const int64_t decode_heads[] = { 32,  64,  72,  96,  104, 120, 128,
                                            136, 184, 192, 200, 248, 256, 0 };
    static const int64_t quick_heads[] = { 64, 96, 128, 192, 256, 0 };
    gac_status status = GAC_OK;
    for (int kind = 0; kind < N_KINDS && status == GAC_OK; kind++) {
        probe_table *t = table_of(s, tier, kind);
        bool decode = kind == DECODE;
        const int64_t *library_heads = decode ? decode_heads : few_heads;
        status = probe_table_set_axis(p, t, 0, quick && !decode ? quick_rows : rows);
        if (status == GAC_OK)
            status = probe_table_set_axis(p, t, 1,
                                          decode  ? contexts
                                          : quick ? quick_lengths
                                                  : lengths);
        if (status == GAC_OK)
            status = set_heads(p, s, t, tier,
                               quick              ? quick_heads
                               : s->library[tier] ? library_heads
                                                  : heads);
    }
    return status;
}

/* The shape of one cell. False when it would take too long or too much memory. */
static bool cell_shape(const probe *p, const probe_sdpa *s, int tier, int kind,
                       const probe_table *t, size_t cell, gac_sdpa_shape *out)
{
    size_t n_head = (size_t)t->n_axis[2], n_length = (size_t)t->n_axis[1];
    int64_t head = t->axis[2][cell % n_head], length = t->axis[1][cell / n_head % n_length];
    int64_t rows = t->axis[0][cell / n_head / n_length];
    *out = kind == DECODE ? probe_decode_shape(rows, length, head)
                          : probe_prefill_shape(rows, length, head, kind == CAUSAL);
    double pairs = (double)rows * (double)length * (double)length / (kind == CAUSAL ? 2 : 1);
    double reference_pairs =
        (double)PROBE_REF_BATCH * PROBE_REF_HEADS * PROBE_REF_LENGTH * PROBE_REF_LENGTH;
    double expected_us = nearest_curve_us(s, tier, head) * pairs / reference_pairs;
    double bytes = 4.0 * (double)rows * (double)length * (double)head * 2;
    bool first = cell / n_head % n_length == 0;
    return first ||
           ((kind == DECODE || expected_us <= MAX_TIME_US) && bytes <= probe_memory_limit(p));
}

/* A cell of one of a tier's tables. */
typedef struct cell {
    probe_table *table;
    size_t at;
    bool first; /* the first length, which must be measured */
} cell;

static int list_cells(const probe *p, probe_sdpa *s, int tier, gac_task_spec *specs, cell *cells)
{
    int n = 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        probe_table *t = table_of(s, tier, kind);
        for (size_t i = 0; i < probe_table_cells(t); i++) {
            gac_sdpa_shape shape;
            if (!cell_shape(p, s, tier, kind, t, i, &shape))
                continue;
            specs[n] = probe_sdpa_spec(s->dtype, &shape);
            cells[n++] = (cell){ t, i, i / (size_t)t->n_axis[2] % (size_t)t->n_axis[1] == 0 };
        }
    }
    return n;
}

/* Beside its tables, a tier has some calls of its own: */
enum { N_STEPS = 3, N_PADS = 3, N_MORE = N_STEPS + 2 * N_PADS, PADS_GROUP = 4 };

/* three lengths just above two tiles, which show in which steps time grows, */
static const int64_t step_lengths[N_STEPS] = { 264, 320, 384 };

/* and pairs of calls, with as many heads of keys as of queries and with fewer. Kernels other
 * than the vendor's copy k and v into padded buffers; fewer heads are copied faster. */
static const struct {
    int64_t rows, length;
} pads[N_PADS] = { { 128, 1024 }, { 128, 2048 }, { 512, 512 } };

static void add_more(const probe_sdpa *s, int tier, gac_task_spec *specs)
{
    int64_t head = probe_tier_size(&s->tiers, tier, 128);
    for (int i = 0; i < N_MORE; i++) {
        int pad = (i - N_STEPS) / 2;
        gac_sdpa_shape shape =
            i < N_STEPS ? probe_prefill_shape(512, step_lengths[i], head, false)
                        : probe_prefill_shape(pads[pad].rows, pads[pad].length, head, false);
        if (i >= N_STEPS && (i - N_STEPS) % 2 == 1)
            shape.n_kv_heads /= PADS_GROUP;
        specs[i] = probe_sdpa_spec(s->dtype, &shape);
    }
}

static int64_t find_tile(const probe_point *points)
{
    const double same = 0.93;
    for (int i = 0; i < N_STEPS; i++)
        if (points[i].outcome != PROBE_MEASURED)
            return 1;
    return points[0].time_us > same * points[2].time_us   ? 128
           : points[0].time_us > same * points[1].time_us ? 64
                                                          : 1;
}

/* The median rate of these pairs; 0 where fewer keys save nothing. */
static double find_pad_rate(const probe_sdpa *s, const probe_point *points)
{
    double rates[N_PADS];
    for (int i = 0; i < N_PADS; i++) {
        const gac_sdpa_shape *shape = &points[2 * i].spec.sdpa.shape;
        double saved_us = points[2 * i].time_us - points[2 * i + 1].time_us;
        double bytes = (double)(shape->batch * shape->n_kv_heads * shape->n_kv) *
                       (double)(shape->qk_head + shape->v_head) * (1 - 1.0 / PADS_GROUP) *
                       gac_dtype_bits(s->dtype) / 8;
        if (points[2 * i].outcome != PROBE_MEASURED || points[2 * i + 1].outcome != PROBE_MEASURED)
            return 0;
        rates[i] = saved_us > 0 ? bytes / saved_us * 1e6 : INFINITY;
    }
    double low = fmin(rates[0], rates[1]), high = fmax(rates[0], rates[1]);
    double middle = fmax(low, fmin(high, rates[2]));
    return isfinite(middle) ? middle : 0;
}

/* Measures all tables of a tier at once, since asking a fallback may start a program. */
static gac_status fill_tables(probe *p, probe_sdpa *s, int tier)
{
    size_t n_cells = 0;
    gac_status status = GAC_OK;
    for (int kind = 0; kind < N_KINDS && status == GAC_OK; kind++) {
        n_cells += probe_table_cells(table_of(s, tier, kind));
        status = probe_table_alloc(p, table_of(s, tier, kind));
    }
    gac_task_spec *specs = probe_alloc(p, n_cells + N_MORE, sizeof *specs);
    probe_point *points = probe_alloc(p, n_cells + N_MORE, sizeof *points);
    cell *cells = probe_alloc(p, n_cells, sizeof *cells);
    if (status != GAC_OK || !specs || !points || !cells)
        return gac_error_no_memory(p->err);
    int n = list_cells(p, s, tier, specs, cells);
    add_more(s, tier, specs + n);
    status = probe_measure_sdpa(p, specs, n + N_MORE, s->library[tier], false, points);
    if (status != GAC_OK)
        return status;
    s->tile[tier] = find_tile(points + n);
    if (!s->library[tier])
        s->pad_bytes_per_s[tier] = find_pad_rate(s, points + n + N_STEPS);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        if (points[i].outcome != PROBE_MEASURED && cells[i].first) /* once more */
            status = probe_measure_sdpa(p, &specs[i], 1, s->library[tier], false, &points[i]);
        bool measured = points[i].outcome == PROBE_MEASURED;
        if (status == GAC_OK && measured)
            cells[i].table->time_us[cells[i].at] = gac_four_digits(points[i].time_us);
        s->has_tables = s->has_tables && (!cells[i].first || measured);
    }
    return status;
}

static size_t tier_cells(const probe_sdpa *s, int tier)
{
    return 2 * probe_table_cells(&s->prefill[tier][0]) + probe_table_cells(&s->decode[tier]);
}

static gac_status plan_tables(probe *p, probe_sdpa *s, bool quick, size_t *n_cells)
{
    gac_status status = GAC_OK;
    *n_cells = 0;
    for (int t = 0; t < s->tiers.n_tiers && status == GAC_OK; t++) {
        status = plan_tier(p, s, t, quick);
        *n_cells += tier_cells(s, t);
    }
    return status;
}

/* How long the tables will take. A point of the vendor's is assumed to take as long as a
 * point of the curve did, most of it for making a plan; a point of others a third as long. */
static double expected_s(const probe *p, const probe_sdpa *s)
{
    double point_s = p->n_library ? p->library_s / (double)p->n_library : 0, sum_s = 0;
    for (int t = 0; t < s->tiers.n_tiers; t++)
        sum_s += (double)tier_cells(s, t) * point_s * (s->library[t] ? 1 : 1.0 / 3);
    return sum_s;
}

gac_status probe_sdpa_tables(probe *p, probe_sdpa *s)
{
    size_t n_cells;
    gac_status status = plan_tables(p, s, p->options->quick, &n_cells);
    if (status == GAC_OK && expected_s(p, s) > probe_left_s(p) * PART_OF_TIME) {
        status = plan_tables(p, s, true, &n_cells);
        probe_note(p, "%s: attention tables are coarser, to keep within %.0f s: %zu points",
                   gac_dtype_name(s->dtype), p->options->max_time_s, n_cells);
    }
    s->has_tables = true;
    probe_begin(p, "attention tables", gac_dtype_name(s->dtype), n_cells);
    for (int t = 0; t < s->tiers.n_tiers && status == GAC_OK; t++)
        status = fill_tables(p, s, t);
    probe_finish(p);
    if (status == GAC_OK && !s->has_tables)
        probe_note(p, "%s: no attention tables, because short lengths could not be measured",
                   gac_dtype_name(s->dtype));
    return status;
}

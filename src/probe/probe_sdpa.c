/* Attention: a dense curve over head sizes at one shape, the tiers in it, and
 * tables of prefill and decode for each tier. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TIME_US 20000 /* longer points are left to extrapolation */
#define PART_OF_TIME 0.4  /* of what is left of the dtype's time, for tables */
enum { REF_BATCH = 4, REF_HEADS = 32, REF_LENGTH = 2048, MAX_CURVE = 256 };

gac_sdpa_shape probe_prefill_shape(int64_t rows, int64_t length, int64_t head, bool causal)
{
    int64_t batch = rows > REF_HEADS && rows % REF_HEADS == 0 ? rows / REF_HEADS : 1;
    gac_sdpa_shape shape = { .batch = batch,
                             .n_q_heads = rows / batch,
                             .n_kv_heads = rows / batch,
                             .n_q = length,
                             .n_kv = length,
                             .qk_head = head,
                             .v_head = head,
                             .causal = causal };
    return shape;
}

gac_sdpa_shape probe_decode_shape(int64_t rows, int64_t context, int64_t head)
{
    enum { KV_HEADS = 8 };
    int64_t batch = rows > KV_HEADS && rows % KV_HEADS == 0 ? rows / KV_HEADS : 1;
    gac_sdpa_shape shape = { .batch = batch,
                             .n_q_heads = rows / batch * PROBE_DECODE_GROUP,
                             .n_kv_heads = rows / batch,
                             .n_q = 1,
                             .n_kv = context,
                             .qk_head = head,
                             .v_head = head };
    return shape;
}

/* Every head where models have theirs; elsewhere multiples of 8 and what lies beside them, since
 * kernels that pad do so up to the next one. */
static int curve_heads(bool quick, int64_t *heads)
{
    int n = 0;
    for (int64_t v = 16; v <= 256; v++)
        if ((v >= 64 && v <= (quick ? 96 : 160)) || v % 8 == 0 || v % 8 == 1 || v % 8 == 7)
            heads[n++] = v;
    return n;
}

static gac_task_spec reference(gac_dtype dtype, int64_t head)
{
    gac_sdpa_shape shape = probe_prefill_shape(REF_BATCH * REF_HEADS, REF_LENGTH, head, false);
    return probe_sdpa_spec(dtype, &shape);
}

static bool by_library(const probe_point *point)
{
    return point->outcome == PROBE_MEASURED && !point->fallback &&
           point->spec.sdpa.path == GAC_SDPA_LIBRARY;
}

/* Heads that the vendor's kernel is too small for: the fallback, or the math
 * path. */
static gac_status measure_beyond(probe *p, probe_sdpa *s, const int64_t *heads, int n)
{
    enum { MAX_BEYOND = 8 };
    gac_task_spec specs[MAX_BEYOND];
    probe_point points[MAX_BEYOND];
    gac_status status = GAC_OK;
    s->beyond = calloc(MAX_BEYOND, sizeof *s->beyond);
    s->beyond_path = GAC_SDPA_MATH;
    if (!s->beyond)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n; i++) {
        specs[i] = reference(s->dtype, heads[i]);
        specs[i].sdpa.path = GAC_SDPA_MATH;
    }
    if (p->options->fallback && n > 0)
        status = probe_measure_sdpa(p, specs, n, false, true, points);
    for (int i = 0; i < n && status == GAC_OK && !p->options->fallback; i++)
        status = probe_measure(p, &specs[i], &points[i]);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        if (points[i].outcome != PROBE_MEASURED)
            continue;
        s->beyond[s->n_beyond++] =
            (gac_sweep_point){ .size = heads[i], .time_us = points[i].time_us };
        if (points[i].kernel)
            snprintf(s->beyond_kernel, sizeof s->beyond_kernel, "%s", points[i].kernel);
    }
    return status;
}

/* The same from a curve that reaches further than the vendor's kernel. */
static gac_status take_beyond(probe *p, probe_sdpa *s, const probe_point *curve, int n)
{
    s->beyond = calloc((size_t)n + 1, sizeof *s->beyond);
    if (!s->beyond)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n; i++) {
        int64_t head = curve[i].spec.sdpa.shape.qk_head;
        if (head <= s->max_head || head % 8 != 0 || curve[i].outcome != PROBE_MEASURED)
            continue;
        s->beyond[s->n_beyond++] = (gac_sweep_point){ .size = head, .time_us = curve[i].time_us };
        s->beyond_path = curve[i].spec.sdpa.path;
        if (curve[i].kernel)
            snprintf(s->beyond_kernel, sizeof s->beyond_kernel, "%s", curve[i].kernel);
    }
    return GAC_OK;
}

/* The largest head that the vendor's kernel serves, and times beyond it. */
static gac_status look_beyond(probe *p, probe_sdpa *s, const probe_point *curve, int n)
{
    static const int64_t heads[] = { 264, 288, 320, 384, 512 };
    enum { N = sizeof heads / sizeof *heads };
    probe_point point;
    gac_status status = GAC_OK;
    bool ended = false;
    s->max_head = 0;
    for (int i = 0; i < n && !ended; i++) {
        int64_t head = curve[i].spec.sdpa.shape.qk_head;
        if (head % 32 == 0 && by_library(&curve[i]))
            s->max_head = head;
        ended = head % 32 == 0 && head >= 64 && !by_library(&curve[i]) &&
                (curve[i].outcome == PROBE_MEASURED || curve[i].outcome == PROBE_DECLINED);
    }
    if (s->max_head > 0 && ended)
        return take_beyond(p, s, curve, n);
    if (s->max_head == 0) { /* nothing by the vendor: own kernels serve all */
        s->max_head = 256;
        ended = true;
    }
    int first = 0; /* of those beyond */
    for (; first < N && !ended && status == GAC_OK; first++) {
        gac_task_spec spec = reference(s->dtype, heads[first]);
        status = probe_measure(p, &spec, &point);
        ended = status == GAC_OK && !by_library(&point);
        if (status != GAC_OK || ended)
            break;
        s->max_head = heads[first];
    }
    return status == GAC_OK ? measure_beyond(p, s, heads + first, N - first) : status;
}

/* The part of the curve up to max_head, as a sweep. */
static gac_status keep_curve(probe *p, probe_sdpa *s, const probe_point *points, int n)
{
    s->curve = calloc((size_t)n + 1, sizeof *s->curve);
    if (!s->curve)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n; i++) {
        int64_t head = points[i].spec.sdpa.shape.qk_head;
        if (head <= s->max_head && points[i].outcome == PROBE_MEASURED)
            s->curve[s->n_curve++] = (gac_sweep_point){ .size = head,
                                                        .time_us = points[i].time_us,
                                                        .noise = points[i].noise };
    }
    gac_sweep sweep = { .points = s->curve, .n_points = s->n_curve };
    gac_status status = gac_probe_find_tiers(&sweep, 1, &s->tiers.found, p->err);
    for (int t = 0; t < s->tiers.found.n_tiers && status == GAC_OK; t++) {
        int n_library = 0, n_other = 0;
        for (int i = 0; i < n; i++) {
            const probe_point *point = &points[i];
            int64_t head = point->spec.sdpa.shape.qk_head;
            if (head > s->max_head || point->outcome != PROBE_MEASURED ||
                probe_tier_of(&s->tiers.found, head) != t)
                continue;
            *(by_library(point) ? &n_library : &n_other) += 1;
            if (point->kernel)
                snprintf(s->tiers.kernel[t], sizeof s->tiers.kernel[t], "%s", point->kernel);
        }
        s->library[t] = n_library > n_other;
    }
    return status;
}

gac_status probe_sdpa_tiers(probe *p, probe_sdpa *s)
{
    int64_t heads[MAX_CURVE];
    int n = curve_heads(p->options->quick, heads);
    gac_task_spec *specs = calloc((size_t)n, sizeof *specs);
    probe_point *points = calloc((size_t)n, sizeof *points);
    gac_status status = specs && points ? GAC_OK : gac_error_no_memory(p->err);
    probe_begin(p, "attention heads", gac_dtype_name(s->dtype), (size_t)n);
    for (int i = 0; i < n && status == GAC_OK; i++)
        specs[i] = reference(s->dtype, heads[i]);
    if (status == GAC_OK)
        status = probe_measure_sdpa(p, specs, n, true, true, points);
    if (status == GAC_OK)
        status = look_beyond(p, s, points, n);
    if (status == GAC_OK)
        status = keep_curve(p, s, points, n);
    probe_finish(p);
    free(specs);
    free(points);
    if (p->stack[0])
        probe_note(p, "attention that the vendor's kernel declines: as %s serves it", p->stack);
    return status;
}

static double nearest_curve_us(const probe_sdpa *s, int tier, int64_t head)
{
    double best = 0;
    int64_t distance = INT64_MAX;
    for (int i = 0; i < s->n_curve; i++) {
        int64_t d = llabs(s->curve[i].size - head);
        if (probe_tier_of(&s->tiers.found, s->curve[i].size) == tier && d < distance) {
            distance = d;
            best = s->curve[i].time_us;
        }
    }
    return best;
}

static gac_status set_heads(const probe *p, const probe_sdpa *s, probe_table *t, int tier,
                            const int64_t *heads)
{
    int64_t kept[PROBE_MAX_AXIS];
    int n = 0;
    for (int i = 0; heads[i]; i++) {
        int64_t head = probe_tier_size(&s->tiers.found, tier, heads[i]);
        if (head <= s->max_head && (n == 0 || head > kept[n - 1]))
            kept[n++] = head;
    }
    return probe_table_set_axis(t, 2, kept, n, p->err);
}

/* values are closed by 0. */
static gac_status set_values(const probe *p, probe_table *t, int axis, const int64_t *values)
{
    int n = 0;
    while (values[n])
        n++;
    return probe_table_set_axis(t, axis, values, n, p->err);
}

/* Kinds: prefill not causal, causal, decode. */
static probe_table *table_of(probe_sdpa *s, int tier, int kind)
{
    return kind == 2 ? &s->decode[tier] : &s->prefill[tier][kind];
}

static gac_status plan_tables(const probe *p, probe_sdpa *s, int tier)
{
    static const int64_t rows[] = { 8, 32, 128, 512, 0 }, quick_rows[] = { 8, 128, 0 };
    static const int64_t lengths[] = { 128, 256, 512, 1024, 2048, 8192, 0 };
    static const int64_t quick_lengths[] = { 128, 512, 2048, 8192, 0 };
    static const int64_t decode_rows[] = { 8, 32, 128, 512, 0 };
    /* With few rows the vendor's kernel takes 768 keys faster than 512. */
    static const int64_t contexts[] = { 128, 512, 768, 2048, 16384, 0 };
    /* Kernels come for heads up to 64, 96, 128, 192 and 256. Between them the vendor's
     * prefill follows the curve, which has every head; decoding is slow in its own way
     * there, and so is prefill by others, hence both sides of each. The vendor's decoding
     * is slowest just below. */
    static const int64_t few_heads[] = { 32, 64, 96, 128, 192, 256, 0 };
    static const int64_t heads[] = { 32, 64, 72, 96, 104, 128, 136, 192, 200, 256, 0 };
    static const int64_t decode_heads[] = { 32,  64,  72,  96,  104, 120, 128,
                                            136, 184, 192, 200, 248, 256, 0 };
    static const int64_t quick_heads[] = { 64, 96, 128, 192, 256, 0 };
    bool quick = p->options->quick;
    gac_status status = GAC_OK;
    for (int kind = 0; kind < 3 && status == GAC_OK; kind++) {
        probe_table *t = table_of(s, tier, kind);
        bool decode = kind == 2;
        const int64_t *library_heads = decode ? decode_heads : few_heads;
        status = set_values(p, t, 0, decode ? decode_rows : quick ? quick_rows : rows);
        if (status == GAC_OK)
            status = set_values(p, t, 1, decode ? contexts : quick ? quick_lengths : lengths);
        if (status == GAC_OK)
            status = set_heads(p, s, t, tier,
                               quick              ? quick_heads
                               : s->library[tier] ? library_heads
                                                  : heads);
    }
    return status;
}

/* Shape of one cell, and false when it would take too long or too much. */
static bool cell_shape(const probe *p, const probe_sdpa *s, int tier, int kind,
                       const probe_table *t, size_t cell, gac_sdpa_shape *out)
{
    size_t n_head = (size_t)t->n_axis[2], n_length = (size_t)t->n_axis[1];
    int64_t head = t->axis[2][cell % n_head], length = t->axis[1][cell / n_head % n_length];
    int64_t rows = t->axis[0][cell / n_head / n_length];
    *out = kind == 2 ? probe_decode_shape(rows, length, head)
                     : probe_prefill_shape(rows, length, head, kind == 1);
    double pairs = (double)rows * (double)length * (double)length / (kind == 1 ? 2 : 1);
    double expected = nearest_curve_us(s, tier, head) * pairs /
                      ((double)REF_BATCH * REF_HEADS * REF_LENGTH * REF_LENGTH);
    double bytes = 4.0 * (double)rows * (double)length * (double)head * 2;
    bool first = cell / n_head % n_length == 0;
    return first || ((kind == 2 || expected <= MAX_TIME_US) &&
                     bytes <= (double)gac_device_describe(p->device)->memory_bytes / 4);
}

/* A cell of one of a tier's tables. */
typedef struct cell {
    probe_table *table;
    size_t at;
    bool first; /* length of its row, which must be there */
} cell;

static int list_cells(const probe *p, probe_sdpa *s, int tier, gac_task_spec *specs, cell *cells)
{
    int n = 0;
    for (int kind = 0; kind < 3; kind++) {
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

/* Three lengths around two tiles and a bit: in which steps time grows. */
enum { N_STEPS = 3 };
static const int64_t step_lengths[N_STEPS] = { 264, 320, 384 };

static void add_steps(probe_sdpa *s, int tier, gac_task_spec *specs)
{
    for (int i = 0; i < N_STEPS; i++) {
        int64_t head = probe_tier_size(&s->tiers.found, tier, 128);
        gac_sdpa_shape shape = probe_prefill_shape(512, step_lengths[i], head, false);
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

/* Calls with as many heads of keys as of queries, and with fewer: what is not the
 * vendor's copies k and v into padded buffers, and here less of them. */
enum { N_PADS = 3, PADS_GROUP = 4 };
static const struct {
    int64_t rows, length;
} pads[N_PADS] = { { 128, 1024 }, { 128, 2048 }, { 512, 512 } };

static void add_pads(probe_sdpa *s, int tier, gac_task_spec *specs)
{
    int64_t head = probe_tier_size(&s->tiers.found, tier, 128);
    for (int i = 0; i < 2 * N_PADS; i++) {
        gac_sdpa_shape shape =
            probe_prefill_shape(pads[i / 2].rows, pads[i / 2].length, head, false);
        shape.n_kv_heads /= i % 2 ? PADS_GROUP : 1;
        specs[i] = probe_sdpa_spec(s->dtype, &shape);
    }
}

/* The median of what the pairs say; 0 where fewer keys save nothing. */
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

/* All tables of a tier at once, since asking a fallback may start a program. */
static gac_status fill_tables(probe *p, probe_sdpa *s, int tier)
{
    size_t n_cells = 0;
    gac_status status = GAC_OK;
    for (int kind = 0; kind < 3 && status == GAC_OK; kind++) {
        n_cells += probe_table_cells(table_of(s, tier, kind));
        status = probe_table_alloc(table_of(s, tier, kind), p->err);
    }
    size_t n_more = N_STEPS + (s->library[tier] ? 0 : 2 * N_PADS);
    gac_task_spec *specs = calloc(n_cells + n_more, sizeof *specs);
    probe_point *points = calloc(n_cells + n_more, sizeof *points);
    cell *cells = calloc(n_cells + 1, sizeof *cells);
    if (!specs || !points || !cells)
        status = gac_error_no_memory(p->err);
    int n = status == GAC_OK ? list_cells(p, s, tier, specs, cells) : 0;
    if (status == GAC_OK) {
        add_steps(s, tier, specs + n);
        if (!s->library[tier])
            add_pads(s, tier, specs + n + N_STEPS);
        status = probe_measure_sdpa(p, specs, n + (int)n_more, s->library[tier], false, points);
    }
    s->tile[tier] = status == GAC_OK ? find_tile(points + n) : 1;
    if (status == GAC_OK && !s->library[tier])
        s->pad_bytes_per_s[tier] = find_pad_rate(s, points + n + N_STEPS);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        if (points[i].outcome != PROBE_MEASURED && cells[i].first) /* once more */
            status = probe_measure_sdpa(p, &specs[i], 1, s->library[tier], false, &points[i]);
        bool measured = points[i].outcome == PROBE_MEASURED;
        if (status == GAC_OK && measured)
            cells[i].table->time_us[cells[i].at] = points[i].time_us;
        s->has_tables = s->has_tables && (!cells[i].first || measured);
    }
    free(specs);
    free(points);
    free(cells);
    return status;
}

static size_t tier_cells(const probe_sdpa *s, int tier)
{
    return 2 * probe_table_cells(&s->prefill[tier][0]) + probe_table_cells(&s->decode[tier]);
}

static size_t total_cells(const probe_sdpa *s)
{
    size_t n = 0;
    for (int t = 0; t < s->tiers.found.n_tiers; t++)
        n += tier_cells(s, t);
    return n;
}

/* A point of the vendor's is taken to last as long as those of the curve did, most of
 * which is making a plan; one of others a third as long. */
static double expected_s(const probe_sdpa *s, double point_s)
{
    double sum_s = 0;
    for (int t = 0; t < s->tiers.found.n_tiers; t++)
        sum_s += (double)tier_cells(s, t) * point_s * (s->library[t] ? 1 : 1.0 / 3);
    return sum_s;
}

static void fit_time(probe *p, probe_sdpa *s, double point_s)
{
    double limit_s = probe_left_s(p) * PART_OF_TIME;
    bool dropped = false, more = true;
    while (more && expected_s(s, point_s) > limit_s) {
        more = false;
        for (int t = 0; t < s->tiers.found.n_tiers; t++)
            for (int kind = 0; kind < 3; kind++)
                more |= probe_table_coarsen(table_of(s, t, kind), false);
        dropped = true;
    }
    if (dropped)
        probe_note(p, "%s: attention tables were made coarser to keep within %.0f s: %zu points",
                   gac_dtype_name(s->dtype), p->options->max_time_s, total_cells(s));
}

gac_status probe_sdpa_tables(probe *p, probe_sdpa *s)
{
    gac_status status = GAC_OK;
    for (int t = 0; t < s->tiers.found.n_tiers && status == GAC_OK; t++)
        status = plan_tables(p, s, t);
    if (status != GAC_OK)
        return status;
    fit_time(p, s, p->n_library ? p->library_s / (double)p->n_library : 0);
    s->has_tables = true;
    probe_begin(p, "attention tables", gac_dtype_name(s->dtype), total_cells(s));
    for (int t = 0; t < s->tiers.found.n_tiers && status == GAC_OK; t++)
        status = fill_tables(p, s, t);
    probe_finish(p);
    if (status == GAC_OK && !s->has_tables)
        probe_note(p, "%s: no attention tables, short lengths could not be measured",
                   gac_dtype_name(s->dtype));
    return status;
}

gac_status probe_sdpa_kernels(probe *p, probe_sdpa *s)
{
    gac_status status = GAC_OK;
    probe_begin(p, "kernels", gac_dtype_name(s->dtype), 0);
    for (int t = 0; t < s->tiers.found.n_tiers && status == GAC_OK; t++) {
        probe_tiers *tiers = &s->tiers;
        int64_t head = probe_tier_size(&tiers->found, t, 112);
        gac_sdpa_shape decode = probe_decode_shape(32, REF_LENGTH, head);
        gac_task_spec spec = reference(s->dtype, head);
        gac_sdpa_path path = s->library[t] ? GAC_SDPA_LIBRARY : GAC_SDPA_FLASH;
        if (tiers->kernel[t][0]) /* the fallback said it */
            continue;
        spec.sdpa.path = path;
        status = probe_kernel(p, &spec, tiers->kernel[t], sizeof tiers->kernel[t]);
        spec = probe_sdpa_spec(s->dtype, &decode);
        spec.sdpa.path = path;
        if (status == GAC_OK)
            status =
                probe_kernel(p, &spec, tiers->decode_kernel[t], sizeof tiers->decode_kernel[t]);
    }
    gac_task_spec spec = reference(s->dtype, s->max_head + 64);
    spec.sdpa.path = s->beyond_path;
    if (status == GAC_OK && !s->beyond_kernel[0])
        status = probe_kernel(p, &spec, s->beyond_kernel, sizeof s->beyond_kernel);
    probe_finish(p);
    return status;
}

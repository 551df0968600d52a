/* GEMM: which multiples matter, and which kernels serve them. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HALF_WINDOW = 32,
    NEAR = 128, /* multiples of 8 up to here, */
    REACH = 512,
    STRIDE = 32, /* and of this from there on */
    MAX_SWEEP = 2 * HALF_WINDOW + 2 * NEAR / 8 + 2 * REACH / STRIDE
};

/* Where sizes are swept one by one: prefill and decode, a common size and a
 * rank as a factorisation leaves it, much and little work for the whole GPU. */
static const struct anchor {
    int64_t m, other, around;
    bool quick;
} anchors[] = {
    { 4096, 4096, 4096, true }, { 16, 4096, 4096, false },    { 16, 4096, 1741, true },
    { 1, 4096, 1741, true },    { 1024, 4096, 11008, false }, { 1024, 1024, 1928, false },
    { 256, 8192, 2312, false },
};
enum { N_ANCHORS = sizeof anchors / sizeof *anchors };

static gac_task_spec spec_at(gac_dtype dtype, gac_op_axis seen, int64_t m, int64_t other,
                             int64_t size)
{
    bool is_n = seen == GAC_OP_GEMM_N;
    return probe_gemm_spec(dtype, m, is_n ? size : other, is_n ? other : size);
}

/* Every size near the anchor, then multiples of 8 and of 32 further out, so
 * that large multiples have neighbours too. */
static int sweep_sizes(int64_t around, int64_t *sizes)
{
    int n = 0;
    int64_t first = around - HALF_WINDOW, end = around + HALF_WINDOW;
    for (int64_t v = around - REACH; v <= around + REACH; v++)
        if (v > 0 && ((v >= first && v < end) || v % STRIDE == 0 ||
                      (v % 8 == 0 && llabs(v - around) <= NEAR)))
            sizes[n++] = v;
    return n;
}

gac_status probe_gemm_add_exact(probe *p, probe_gemm *g, const probe_point *point)
{
    if (point->outcome != PROBE_MEASURED)
        return GAC_OK;
    if (g->n_exact == g->n_exact_room) {
        size_t room = g->n_exact_room ? g->n_exact_room * 2 : 256;
        gac_gemm_shape *shapes = realloc(g->exact, room * sizeof *shapes);
        if (shapes)
            g->exact = shapes;
        double *times = shapes ? realloc(g->exact_us, room * sizeof *times) : NULL;
        if (!times)
            return gac_error_no_memory(p->err);
        g->exact_us = times;
        g->n_exact_room = room;
    }
    g->exact[g->n_exact] = point->spec.gemm;
    g->exact_us[g->n_exact++] = point->time_us;
    return GAC_OK;
}

static gac_status sweep(probe *p, probe_gemm *g, gac_op_axis seen, const struct anchor *anchor,
                        gac_sweep_point *points, int *n, size_t *n_done)
{
    int64_t sizes[MAX_SWEEP + 8];
    gac_status status = GAC_OK;
    *n = sweep_sizes(anchor->around, sizes);
    for (int i = 0; i < *n && status == GAC_OK; i++) {
        probe_point point;
        gac_task_spec spec = spec_at(g->dtype, seen, anchor->m, anchor->other, sizes[i]);
        status = probe_measure(p, &spec, &point);
        if (status == GAC_OK && llabs(sizes[i] - anchor->around) <= HALF_WINDOW / 2)
            status = probe_gemm_add_exact(p, g, &point);
        points[i] = (gac_sweep_point){ .size = sizes[i],
                                       .time_us = point.time_us,
                                       .noise = point.noise,
                                       .declined = point.outcome == PROBE_DECLINED };
        if (point.outcome == PROBE_NO_MEMORY || point.outcome == PROBE_THROTTLED) {
            memmove(&sizes[i], &sizes[i + 1], (size_t)(*n - i - 1) * sizeof *sizes);
            i--;
            --*n;
        }
        probe_step(p, ++*n_done);
    }
    return status;
}

static gac_status find_place(probe *p, probe_gemm *g, gac_op_axis seen, size_t *n_done)
{
    gac_sweep sweeps[N_ANCHORS];
    int n_sweeps = 0;
    gac_sweep_point *points = calloc((size_t)N_ANCHORS * (MAX_SWEEP + 8), sizeof *points);
    gac_status status = points ? GAC_OK : gac_error_no_memory(p->err);
    for (int a = 0; a < N_ANCHORS && status == GAC_OK; a++) {
        if (p->options->quick && !anchors[a].quick)
            continue;
        gac_sweep_point *mine = points + (size_t)n_sweeps * (MAX_SWEEP + 8);
        gac_sweep *s = &sweeps[n_sweeps++];
        s->points = mine;
        status = sweep(p, g, seen, &anchors[a], mine, &s->n_points, n_done);
    }
    if (status == GAC_OK)
        status = gac_probe_find_tiers(sweeps, n_sweeps, &g->place[seen].found, p->err);
    for (int t = 0; t < g->place[seen].found.n_tiers; t++)
        g->place[seen].found.tier[t].family = NULL;
    free(points);
    return status;
}

gac_status probe_gemm_tiers(probe *p, probe_gemm *g)
{
    size_t n_done = 0;
    probe_begin(p, "GEMM tiers", gac_dtype_name(g->dtype),
                (size_t)(p->options->quick ? 3 : N_ANCHORS) * 2 * MAX_SWEEP);
    gac_status status = find_place(p, g, GAC_OP_GEMM_N, &n_done);
    if (status == GAC_OK)
        status = find_place(p, g, GAC_OP_GEMM_K, &n_done);
    probe_finish(p);
    if (status == GAC_OK && (!g->place[GAC_OP_GEMM_N].found.tier[0].served ||
                             !g->place[GAC_OP_GEMM_K].found.tier[0].served))
        status = gac_error_set(p->err, GAC_CHECK, "no size of the sweep is served");
    return status;
}

/* Names of the kernels of each tier, the other axis aligned: prefill, decode. */
gac_status probe_gemm_kernels(probe *p, probe_gemm *g)
{
    enum { PREFILL_ROWS = 4096, DECODE_ROWS = 1, SIZE = 4096 };
    gac_status status = GAC_OK;
    probe_begin(p, "kernels", gac_dtype_name(g->dtype), 0);
    for (int place = 0; place < 2; place++) {
        probe_tiers *tiers = &g->place[place];
        int64_t other = probe_tier_size(&g->place[1 - place].found, 0, SIZE);
        for (int t = 0; t < tiers->found.n_tiers && status == GAC_OK; t++) {
            if (!tiers->found.tier[t].served)
                continue;
            int64_t size = probe_tier_size(&tiers->found, t, SIZE);
            gac_task_spec spec = spec_at(g->dtype, (gac_op_axis)place, PREFILL_ROWS, other, size);
            status = probe_kernel(p, &spec, tiers->kernel[t], sizeof tiers->kernel[t]);
            spec.gemm.m = DECODE_ROWS;
            if (status == GAC_OK)
                status =
                    probe_kernel(p, &spec, tiers->decode_kernel[t], sizeof tiers->decode_kernel[t]);
        }
    }
    probe_finish(p);
    return status;
}

json_t *probe_tiers_json(const probe_tiers *tiers, bool gemm)
{
    json_t *list = json_array();
    for (int t = 0; t < tiers->found.n_tiers; t++) {
        const gac_found_tier *tier = &tiers->found.tier[t];
        const char *kernel = tiers->kernel[t], *decode = tiers->decode_kernel[t];
        const char *name = !tier->served ? "declined" : kernel[0] ? kernel : "unknown";
        json_t *row = json_pack("{s:I, s:b, s:s, s:s, s:s}", "multiple", (json_int_t)tier->multiple,
                                "aligned", tier->aligned, "kernel", name, "family",
                                !tier->served ? "declined"
                                : kernel[0]   ? gac_kernel_family(kernel)
                                              : "unknown",
                                "basis", "measured");
        if (gemm)
            json_object_set_new(row, "decode_basis", json_string("measured"));
        if (decode[0]) {
            json_object_set_new(row, "decode_kernel", json_string(decode));
            json_object_set_new(row, "decode_family", json_string(gac_kernel_family(decode)));
        }
        if (isfinite(tier->penalty))
            json_object_set_new(row, "worst_penalty", probe_number(tier->penalty));
        if (!tier->served)
            json_object_set_new(row, "served", json_false());
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *table_json(const probe_gemm *g, const struct probe_gemm_table *t)
{
    const gac_found_tiers *n = &g->place[GAC_OP_GEMM_N].found;
    const gac_found_tiers *k = &g->place[GAC_OP_GEMM_K].found;
    json_t *row = json_pack("{s:I, s:I}", "n_multiple", (json_int_t)n->tier[t->tier_n].multiple,
                            "k_multiple", (json_int_t)k->tier[t->tier_k].multiple);
    json_object_set_new(row, "m", probe_axis_json(&t->table, 0));
    json_object_set_new(row, "n", probe_axis_json(&t->table, 1));
    json_object_set_new(row, "k", probe_axis_json(&t->table, 2));
    json_object_set_new(row, "us", probe_times_json(&t->table));
    return row;
}

json_t *probe_gemm_json(const probe_gemm *g, const char *falls_back_to)
{
    json_t *gemm = json_object(), *grid = json_array(), *every_n = json_array();
    json_object_set_new(gemm, "n", probe_tiers_json(&g->place[GAC_OP_GEMM_N], true));
    json_object_set_new(gemm, "k", probe_tiers_json(&g->place[GAC_OP_GEMM_K], true));
    if (falls_back_to)
        json_object_set_new(gemm, "falls_back_to", json_string(falls_back_to));
    if (g->cacheline.n_parts > 0)
        json_object_set_new(gemm, "k_cacheline", probe_cacheline_json(g));
    for (int i = 0; i < g->n_tables; i++)
        if (g->tables[i].table.n_axis[1] > 0)
            json_array_append_new(g->tables[i].every_n ? every_n : grid,
                                  table_json(g, &g->tables[i]));
    json_object_set_new(gemm, "grid", grid);
    json_object_set_new(gemm, "every_n", every_n);
    return gemm;
}

void probe_gemm_dispose(probe_gemm *g)
{
    for (int i = 0; i < g->n_tables; i++)
        probe_table_dispose(&g->tables[i].table);
    free(g->exact);
    free(g->exact_us);
}

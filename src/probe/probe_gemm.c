/* GEMM: which multiples matter, and which kernels serve them. */
#include "probe/probe_internal.h"

#include <stdlib.h>

enum {
    HALF_WINDOW = 32,
    NEAR = 128, /* multiples of 8 up to here, */
    REACH = 512,
    STRIDE = 32, /* and of this from there on */
    MAX_SWEEP = 2 * HALF_WINDOW + 2 * NEAR / 8 + 2 * REACH / STRIDE + 8
};

/* Around these sizes each size is measured: in prefill and decode, a common size and a
 * rank that a factorisation leaves, much and little work for the whole GPU. */
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

/* Every size near the anchor. Further out only multiples of 8 and of 32, so that large
 * multiples have neighbours too. */
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

/* Points that could not be measured are left out. */
static gac_status sweep(probe *p, const probe_gemm *g, gac_op_axis seen,
                        const struct anchor *anchor, probe_sweep_point *points, int *n,
                        size_t *n_done)
{
    int64_t sizes[MAX_SWEEP];
    gac_status status = GAC_OK;
    int n_sizes = sweep_sizes(anchor->around, sizes);
    *n = 0;
    for (int i = 0; i < n_sizes && status == GAC_OK; i++) {
        probe_point point;
        gac_task_spec spec = spec_at(g->dtype, seen, anchor->m, anchor->other, sizes[i]);
        status = probe_measure(p, &spec, &point);
        if (point.outcome == PROBE_MEASURED || point.outcome == PROBE_DECLINED)
            points[(*n)++] = (probe_sweep_point){ .size = sizes[i],
                                                  .time_us = point.time_us,
                                                  .noise = point.noise,
                                                  .declined = point.outcome == PROBE_DECLINED };
        probe_step(p, ++*n_done);
    }
    return status;
}

static gac_status find_tiers(probe *p, probe_gemm *g, gac_op_axis seen, size_t *n_done)
{
    probe_sweep_point points[N_ANCHORS][MAX_SWEEP];
    probe_sweep sweeps[N_ANCHORS];
    int n = 0;
    gac_status status = GAC_OK;
    for (int a = 0; a < N_ANCHORS && status == GAC_OK; a++) {
        if (p->options->quick && !anchors[a].quick)
            continue;
        sweeps[n].points = points[n];
        status = sweep(p, g, seen, &anchors[a], points[n], &sweeps[n].n_points, n_done);
        n++;
    }
    return status == GAC_OK ? probe_find_tiers(sweeps, n, &g->axis[seen], p->err) : status;
}

gac_status probe_gemm_tiers(probe *p, probe_gemm *g)
{
    size_t n_done = 0;
    probe_begin(p, "GEMM tiers", gac_dtype_name(g->dtype),
                (size_t)(p->options->quick ? 3 : N_ANCHORS) * 2 * MAX_SWEEP);
    gac_status status = find_tiers(p, g, GAC_OP_GEMM_N, &n_done);
    if (status == GAC_OK)
        status = find_tiers(p, g, GAC_OP_GEMM_K, &n_done);
    probe_finish(p);
    if (status == GAC_OK &&
        (!g->axis[GAC_OP_GEMM_N].tier[0].served || !g->axis[GAC_OP_GEMM_K].tier[0].served))
        status = gac_error_set(p->err, GAC_CHECK, "no size of the sweep is served");
    return status;
}

/* Asks for the kernels of each tier in prefill and in decode; the other axis is aligned. */
gac_status probe_gemm_kernels(probe *p, probe_gemm *g)
{
    enum { PREFILL_ROWS = 4096, DECODE_ROWS = 1, SIZE = 4096 };
    gac_status status = GAC_OK;
    probe_begin(p, "kernels", gac_dtype_name(g->dtype), 0);
    for (int axis = 0; axis < 2; axis++) {
        probe_tiers *tiers = &g->axis[axis];
        int64_t other = probe_tier_size(&g->axis[1 - axis], 0, SIZE);
        for (int t = 0; t < probe_n_served(tiers) && status == GAC_OK; t++) {
            probe_tier *tier = &tiers->tier[t];
            int64_t size = probe_tier_size(tiers, t, SIZE);
            gac_task_spec spec = spec_at(g->dtype, (gac_op_axis)axis, PREFILL_ROWS, other, size);
            status = probe_kernel(p, &spec, tier->kernel, sizeof tier->kernel);
            spec.gemm.m = DECODE_ROWS;
            if (status == GAC_OK)
                status = probe_kernel(p, &spec, tier->decode_kernel, sizeof tier->decode_kernel);
        }
    }
    probe_finish(p);
    return status;
}

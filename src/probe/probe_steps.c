/* Dense points near typical sizes: tile and wave steps among aligned sizes,
 * and every size around the boundaries of tiers. */
#include "probe/probe_internal.h"

#include <stdlib.h>
#include <string.h>

#define JUMP 1.04 /* between neighbours that makes it worth looking between */
#define PART_OF_TIME 0.9

/* A line of sizes of one place, the others fixed at m, n, k. */
typedef struct line {
    char place;
    int64_t m, n, k, from, to, stride;
    bool quick;
} line;

static const line lines[] = {
    { 'n', 2048, 0, 4096, 1024, 2048, 64, false },
    { 'n', 4096, 0, 4096, 3584, 4608, 64, true },
    { 'm', 0, 4096, 4096, 64, 4096, 64, false },
    { 'm', 0, 14336, 4096, 1024, 2048, 64, false },
};

/* Room for a line: sizes rising. */
enum { MAX_LINE = 512 };

typedef struct walk {
    probe *p;
    probe_gemm *g;
    const line *l;
    int64_t unit;
    double end_s;
    gac_sweep_point points[MAX_LINE];
    int n_points;
    bool cut; /* the time was up before every jump was looked into */
} walk;

static gac_status visit(walk *w, int64_t size, gac_sweep_point *out)
{
    probe_point point;
    const line *l = w->l;
    gac_task_spec spec = probe_gemm_spec(w->g->dtype, l->place == 'm' ? size : l->m,
                                         l->place == 'n' ? size : l->n, l->k);
    gac_status status = probe_measure(w->p, &spec, &point);
    *out = (gac_sweep_point){ .size = size,
                              .time_us = point.time_us,
                              .noise = point.noise,
                              .declined = point.outcome != PROBE_MEASURED };
    return status == GAC_OK ? probe_gemm_add_exact(w->p, w->g, &point) : status;
}

static void insert(walk *w, int at, const gac_sweep_point *point)
{
    memmove(&w->points[at + 1], &w->points[at], (size_t)(w->n_points - at) * sizeof *w->points);
    w->points[at] = *point;
    w->n_points++;
}

/* Looks between neighbours that jump until they are one unit apart. */
static gac_status refine(walk *w)
{
    for (int i = 1; i < w->n_points;) {
        const gac_sweep_point *a = &w->points[i - 1], *b = &w->points[i];
        int64_t middle = (a->size + (b->size - a->size) / 2) / w->unit * w->unit;
        bool jumps = !a->declined && !b->declined && b->time_us > a->time_us * JUMP;
        if (!jumps || middle <= a->size || w->n_points == MAX_LINE) {
            i++;
            continue;
        }
        if (gac_now_s() > w->end_s) {
            w->cut = true;
            return GAC_OK;
        }
        gac_sweep_point point;
        gac_status status = visit(w, middle, &point);
        if (status != GAC_OK)
            return status;
        if (point.declined)
            i++;
        else
            insert(w, i, &point);
    }
    return GAC_OK;
}

static gac_status walk_line(walk *w)
{
    int64_t step = w->l->stride;
    gac_status status = GAC_OK;
    if (w->l->place == 'n' && !gac_round_up_i64(step, w->unit, &step))
        return GAC_OK;
    for (int64_t v = w->l->from; v <= w->l->to && status == GAC_OK; v += step) {
        if (gac_now_s() > w->end_s) {
            w->cut = true;
            break;
        }
        status = visit(w, v, &w->points[w->n_points]);
        w->n_points += status == GAC_OK && !w->points[w->n_points].declined;
        probe_step(w->p, (size_t)w->n_points);
    }
    if (status == GAC_OK)
        status = refine(w);
    gac_sweep sweep = { .points = w->points, .n_points = w->n_points };
    probe_steps *out = &w->g->steps[w->g->n_steps];
    int max = (int)(sizeof out->steps / sizeof *out->steps);
    *out = (probe_steps){ .place = w->l->place, .m = w->l->m, .n = w->l->n, .k = w->l->k };
    out->n_steps = gac_probe_find_steps(&sweep, w->unit, 100 * (JUMP - 1), out->steps, max);
    out->n_steps = out->n_steps > max ? max : out->n_steps;
    if (status == GAC_OK && w->n_points > 1)
        w->g->n_steps++;
    return status;
}

/* Every size around typical ones, both places, prefill and decode. */
static gac_status near_typical(probe *p, probe_gemm *g, double end_s, bool *cut)
{
    static const int64_t sizes[] = { 4096, 11008, 14336, 1741, 1024 }, rows[] = { 1, 16, 4096 };
    int64_t reach = g->place[0].found.period < 8 ? 4 : 8;
    gac_status status = GAC_OK;
    for (int i = 0; i < (p->options->quick ? 1 : 5); i++) {
        for (int r = 0; r < 3; r++) {
            for (int64_t j = 0; j < 2 * (2 * reach + 1) && status == GAC_OK; j++) {
                int64_t v = sizes[i] - reach + j / 2;
                probe_point point;
                if (gac_now_s() > end_s) {
                    *cut = true;
                    return GAC_OK;
                }
                gac_task_spec spec =
                    probe_gemm_spec(g->dtype, rows[r], j % 2 ? 4096 : v, j % 2 ? v : 4096);
                status = probe_measure(p, &spec, &point);
                if (status == GAC_OK)
                    status = probe_gemm_add_exact(p, g, &point);
            }
        }
    }
    return status;
}

gac_status probe_gemm_steps(probe *p, probe_gemm *g)
{
    gac_status status = GAC_OK;
    bool cut = false;
    double end_s = gac_now_s() + probe_left_s(p) * PART_OF_TIME;
    walk *w = calloc(1, sizeof *w);
    if (!w)
        return gac_error_no_memory(p->err);
    probe_begin(p, "GEMM steps", gac_dtype_name(g->dtype), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines && status == GAC_OK; i++) {
        if (p->options->quick && !lines[i].quick)
            continue;
        *w = (walk){ .p = p, .g = g, .l = &lines[i], .end_s = end_s };
        w->unit = lines[i].place == 'm' ? 1 : probe_aligned_multiple(&g->place[0].found);
        status = walk_line(w);
        cut = cut || w->cut;
    }
    if (status == GAC_OK)
        status = near_typical(p, g, end_s, &cut);
    probe_finish(p);
    free(w);
    if (cut)
        probe_note(p, "%s: dense points and steps are not complete, the time was up",
                   gac_dtype_name(g->dtype));
    return status;
}

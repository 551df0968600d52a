/* How well a contract predicts shapes that are in none of its tables. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MULTIPLIES 4e11 /* a held-out GEMM of more would take long */
#define RANK_PCT 5.0
enum { N_GEMM = 600, N_SDPA = 120, N_RANKED = 60, QUICK_PART = 6, MAX_CANDIDATES = 16 };

/* Between neighbours in rank, in proportion. values are sorted. */
static double percentile(const double *values, int n, double part)
{
    double at = part * (n - 1);
    int low = (int)at;
    int high = low + 1 < n ? low + 1 : low;
    return values[low] + (at - low) * (values[high] - values[low]);
}

gac_status gac_probe_summarise(const double *predicted, const double *measured, int n,
                               gac_error_summary *out, gac_error *err)
{
    *out = (gac_error_summary){ .n_points = n };
    if (n == 0)
        return GAC_OK;
    double *errors = calloc((size_t)n, sizeof *errors);
    if (!errors)
        return gac_error_no_memory(err);
    for (int i = 0; i < n; i++)
        errors[i] = 100 * (predicted[i] / measured[i] - 1);
    qsort(errors, (size_t)n, sizeof *errors, probe_by_value);
    out->bias_pct = percentile(errors, n, 0.5);
    for (int i = 0; i < n; i++)
        errors[i] = fabs(errors[i]);
    qsort(errors, (size_t)n, sizeof *errors, probe_by_value);
    out->median_pct = percentile(errors, n, 0.5);
    out->p95_pct = percentile(errors, n, 0.95);
    out->max_pct = errors[n - 1];
    free(errors);
    return GAC_OK;
}

/* Predictions beside measurements. */
typedef struct held_out {
    double *predicted, *measured;
    int n;
} held_out;

static gac_status held_out_alloc(held_out *h, int room, gac_error *err)
{
    *h = (held_out){ 0 };
    h->predicted = calloc((size_t)room, sizeof *h->predicted);
    h->measured = calloc((size_t)room, sizeof *h->measured);
    return h->predicted && h->measured ? GAC_OK : gac_error_no_memory(err);
}

static void held_out_add(held_out *h, double predicted_us, const probe_point *point)
{
    if (point->outcome != PROBE_MEASURED || !isfinite(predicted_us))
        return;
    h->predicted[h->n] = predicted_us;
    h->measured[h->n++] = point->time_us;
}

/* The summary of all, which are then freed. */
static gac_status held_out_finish(held_out *h, gac_status status, json_t **out, gac_error *err)
{
    gac_error_summary e;
    if (status == GAC_OK)
        status = gac_probe_summarise(h->predicted, h->measured, h->n, &e, err);
    if (status == GAC_OK)
        *out = json_pack("{s:i, s:o, s:o, s:o, s:o}", "n_points", e.n_points, "median_pct",
                         probe_number(e.median_pct), "p95_pct", probe_number(e.p95_pct), "max_pct",
                         probe_number(e.max_pct), "bias_pct", probe_number(e.bias_pct));
    free(h->predicted);
    free(h->measured);
    return status;
}

static int64_t draw_of(probe *p, const int64_t *values, size_t n)
{
    return values[probe_random(p) % n];
}

/* Log-uniform, or near a size that models have. */
static double draw_about(probe *p)
{
    static const int64_t typical[] = { 1024, 1741, 2048, 4096, 5120, 11008, 14336 };
    double around = (double)draw_of(p, typical, sizeof typical / sizeof *typical);
    return probe_random(p) % 2 ? around * probe_uniform(p, 0.85, 1.15)
                               : exp(probe_uniform(p, log(192), log(16384)));
}

/* A width that a model may have beside a size that is looked for: whole lines. */
static int64_t draw_width(probe *p, const probe_gemm *g)
{
    int64_t unit = probe_line_multiple(g), width = (int64_t)draw_about(p) / unit * unit;
    return width < unit ? unit : width;
}

/* Of any residue that is served. */
static int64_t draw_size(probe *p, const gac_found_tiers *tiers)
{
    double size = draw_about(p);
    double kind = probe_uniform(p, 0, 1);
    int64_t least = tiers->tier[probe_n_served(tiers) - 1].multiple;
    int64_t unit = kind < 0.25                ? 128
                   : kind < 0.6               ? probe_aligned_multiple(tiers)
                   : kind < 0.8 && least == 1 ? 2
                                              : least;
    int64_t v = (int64_t)size / unit * unit;
    return v < unit ? unit : v;
}

static bool on_axis(const probe_table *t, int axis, int64_t size)
{
    for (int i = 0; i < t->n_axis[axis]; i++)
        if (t->axis[axis][i] == size)
            return true;
    return false;
}

/* Whether the contract knows the shape because it was measured. */
static bool is_known(const probe_gemm *g, const gac_gemm_shape *s)
{
    for (int i = 0; i < g->n_tables; i++) {
        const probe_table *t = &g->tables[i].table;
        if (on_axis(t, 0, s->m) && on_axis(t, 1, s->n) && on_axis(t, 2, s->k))
            return true;
    }
    for (size_t i = 0; i < g->n_exact; i++)
        if (g->exact[i].m == s->m && g->exact[i].n == s->n && g->exact[i].k == s->k)
            return true;
    return false;
}

static void draw_gemm(probe *p, const probe_gemm *g, gac_gemm_shape *out)
{
    static const int64_t rows[] = { 1,   1,   1,    2,    3,    4,    5,    8,    13,  16,
                                    24,  31,  48,   64,   100,  128,  200,  256,  384, 512,
                                    777, 800, 1024, 1500, 2048, 3000, 4096, 6000, 8192 };
    do {
        out->m = draw_of(p, rows, sizeof rows / sizeof *rows);
        out->n = draw_size(p, &g->place[GAC_OP_GEMM_N].found);
        out->k = draw_size(p, &g->place[GAC_OP_GEMM_K].found);
        out->row_major = false;
    } while ((double)out->m * (double)out->n * (double)out->k > MAX_MULTIPLIES || is_known(g, out));
}

static gac_status hold_out_gemm(probe *p, const gac_contract *contract, const probe_gemm *g,
                                json_t **out)
{
    held_out h;
    int n = p->options->quick ? N_GEMM / QUICK_PART : N_GEMM;
    gac_status status = held_out_alloc(&h, n, p->err);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        gac_gemm_shape s;
        probe_point point;
        draw_gemm(p, g, &s);
        gac_task_spec spec = probe_gemm_spec(g->dtype, s.m, s.n, s.k);
        status = probe_measure(p, &spec, &point);
        probe_step(p, (size_t)i);
        if (status == GAC_OK)
            held_out_add(&h, gac_contract_gemm_us(contract, g->dtype, s.m, s.n, s.k), &point);
    }
    return held_out_finish(&h, status, out, p->err);
}

static gac_sdpa_shape draw_sdpa(probe *p, const probe_sdpa *s)
{
    static const int64_t batches[] = { 1, 1, 2, 3, 4, 8, 16, 32 }, heads[] = { 8, 12, 16, 32, 40 };
    static const int64_t lengths[] = { 160, 300, 384, 640, 768, 1000, 1500, 2048, 3000, 6000 };
    int64_t aligned = probe_aligned_multiple(&s->tiers.found);
    gac_sdpa_shape shape;
    do {
        bool decode = probe_random(p) % 5 < 2;
        int64_t kv_heads = draw_of(p, heads, sizeof heads / sizeof *heads);
        int64_t length = draw_of(p, lengths, sizeof lengths / sizeof *lengths);
        int64_t group = decode ? PROBE_DECODE_GROUP : probe_random(p) % 3 ? 1 : 4;
        size_t n_batches = decode ? 8 : 6;
        double head = probe_uniform(p, 40, fmin((double)s->max_head, 256));
        int64_t unit = probe_random(p) % 2 ? aligned : 1;
        shape = (gac_sdpa_shape){ .batch = draw_of(p, batches, n_batches),
                                  .n_q_heads = kv_heads * group,
                                  .n_kv_heads = kv_heads,
                                  .n_q = decode ? 1 : length,
                                  .n_kv = length,
                                  .causal = !decode && probe_random(p) % 2 };
        shape.qk_head = shape.v_head = (int64_t)head / unit * unit;
    } while ((double)(shape.batch * shape.n_q_heads) * (double)shape.n_q * (double)shape.n_kv >
             256.0 * 2048 * 2048);
    return shape;
}

static gac_status hold_out_sdpa(probe *p, const gac_contract *contract, const probe_sdpa *s,
                                json_t **out)
{
    held_out h;
    int n = p->options->quick ? N_SDPA / QUICK_PART : N_SDPA;
    gac_status status = held_out_alloc(&h, n, p->err);
    gac_task_spec *specs = calloc((size_t)n, sizeof *specs);
    probe_point *points = calloc((size_t)n, sizeof *points);
    if (!specs || !points)
        status = gac_error_no_memory(p->err);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        gac_sdpa_shape shape = draw_sdpa(p, s);
        specs[i] = probe_sdpa_spec(s->dtype, &shape);
    }
    if (status == GAC_OK)
        status = probe_measure_sdpa(p, specs, n, true, false, points);
    for (int i = 0; i < n && status == GAC_OK; i++)
        held_out_add(&h, gac_contract_sdpa_us(contract, s->dtype, &specs[i].sdpa.shape),
                     &points[i]);
    free(specs);
    free(points);
    return held_out_finish(&h, status, out, p->err);
}

/* A size as it is, and what a plan would make of it: the aligned sizes that follow. */
static int candidates(int64_t size, int64_t unit, int64_t *out)
{
    static const int64_t steps[] = { 0, 1, 2, 3, 4, 6, 8 }, coarse[] = { 16, 32, 64, 128 };
    enum { N_STEPS = sizeof steps / sizeof *steps, N_COARSE = sizeof coarse / sizeof *coarse };
    int n = 0;
    int64_t first = size;
    gac_round_up_i64(size, unit, &first);
    out[n++] = size;
    for (int i = 0; i < N_STEPS + N_COARSE; i++) {
        int64_t v = i < N_STEPS ? first + steps[i] * unit : first;
        if (i >= N_STEPS &&
            (coarse[i - N_STEPS] % unit != 0 || !gac_round_up_i64(size, coarse[i - N_STEPS], &v)))
            continue;
        bool fresh = true;
        for (int j = 0; j < n; j++)
            fresh = fresh && out[j] != v;
        if (fresh)
            out[n++] = v;
    }
    return n;
}

/* A candidate, measured twice: what is not so both times is no difference. */
typedef struct candidate {
    gac_task_spec spec;
    int group;
    double predicted_us;
    probe_point point[2];
} candidate;

/* Pairs that differ by more than RANK_PCT both times, and are predicted in the right order. */
typedef struct ranking {
    int n_over, n_right;
} ranking;

int probe_order(const probe_point *a, const probe_point *b)
{
    double fast = fmin(a->time_us, b->time_us), slow = fmax(a->time_us, b->time_us);
    if (slow / fast <= 1 + RANK_PCT / 100)
        return 0;
    return a->time_us < b->time_us ? -1 : 1;
}

static void rank_pair(const candidate *a, const candidate *b, ranking *r)
{
    int order = probe_order(&a->point[0], &b->point[0]);
    if (order == 0 || probe_order(&a->point[1], &b->point[1]) != order)
        return;
    r->n_over++;
    r->n_right += order * (a->predicted_us - b->predicted_us) > 0; /* alike is no order */
}

static bool is_measured(const candidate *c)
{
    return c->point[0].outcome == PROBE_MEASURED && c->point[1].outcome == PROBE_MEASURED &&
           isfinite(c->predicted_us);
}

static double mean_us(const candidate *c)
{
    return (c->point[0].time_us + c->point[1].time_us) / 2;
}

/* Whether a plan would rather have a: of two that are predicted alike, the smaller. */
static bool is_rather(const candidate *a, const candidate *b)
{
    if (a->predicted_us != b->predicted_us)
        return a->predicted_us < b->predicted_us;
    return a->spec.gemm.n + a->spec.gemm.k < b->spec.gemm.n + b->spec.gemm.k;
}

/* Regret: how much longer the candidate of a group takes that is predicted to be the fastest
 * than the one that is. */
static gac_status regret_json(const candidate *all, int n, json_t **out, gac_error *err)
{
    int n_groups = 0;
    double *more_pct = calloc((size_t)n + 1, sizeof *more_pct), sum = 0;
    if (!more_pct)
        return gac_error_no_memory(err);
    for (int first = 0, end; first < n; first = end) {
        const candidate *chosen = NULL, *fastest = NULL;
        int n_measured = 0;
        for (end = first; end < n && all[end].group == all[first].group; end++) {
            const candidate *c = &all[end];
            if (!is_measured(c))
                continue;
            n_measured++;
            chosen = chosen && is_rather(chosen, c) ? chosen : c;
            fastest = fastest && mean_us(fastest) <= mean_us(c) ? fastest : c;
        }
        if (n_measured > 1)
            more_pct[n_groups++] = 100 * (mean_us(chosen) / mean_us(fastest) - 1);
    }
    for (int i = 0; i < n_groups; i++)
        sum += more_pct[i];
    qsort(more_pct, (size_t)n_groups, sizeof *more_pct, probe_by_value);
    *out = json_pack("{s:i}", "n_groups", n_groups);
    if (n_groups > 0)
        json_object_update_new(
            *out, json_pack("{s:o, s:o, s:o}", "regret_mean_pct", probe_number(sum / n_groups),
                            "regret_p95_pct", probe_number(percentile(more_pct, n_groups, 0.95)),
                            "regret_max_pct", probe_number(more_pct[n_groups - 1])));
    free(more_pct);
    return GAC_OK;
}

/* Candidates near a size, at a width of any model and in no table; or, common, at
 * one that many models have and that tables may have: then these are other measurements
 * that the order must stand up to. */
static int draw_group(probe *p, const gac_contract *contract, const probe_gemm *g, bool common,
                      int group, candidate *out)
{
    static const int64_t rows[] = { 1, 16, 256, 1024, 2048, 4096 }, widths[] = { 2048, 4096, 8192 };
    int64_t sizes[MAX_CANDIDATES];
    bool is_n = probe_random(p) % 2;
    const gac_found_tiers *tiers = &g->place[is_n ? GAC_OP_GEMM_N : GAC_OP_GEMM_K].found;
    int64_t m = draw_of(p, rows, sizeof rows / sizeof *rows);
    int64_t other = common ? draw_of(p, widths, sizeof widths / sizeof *widths) : draw_width(p, g);
    int n = candidates(draw_size(p, tiers), probe_aligned_multiple(tiers), sizes), kept = 0;
    for (int i = 0; i < n; i++) {
        gac_task_spec spec =
            probe_gemm_spec(g->dtype, m, is_n ? sizes[i] : other, is_n ? other : sizes[i]);
        if (!common && is_known(g, &spec.gemm))
            continue;
        out[kept++] = (candidate){
            .spec = spec,
            .group = group,
            .predicted_us = gac_contract_gemm_us(contract, g->dtype, m, spec.gemm.n, spec.gemm.k),
        };
    }
    return kept;
}

/* All of them, mixed, then all again: groups of hard work would take the card below its
 * highest clock. */
static gac_status measure_candidates(probe *p, candidate *all, int n)
{
    gac_status status = GAC_OK;
    int *order = calloc((size_t)n + 1, sizeof *order);
    if (!order)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = 0; i < 2 * n && status == GAC_OK; i++) {
        int at = i % n, with = at + (int)(probe_random(p) % (uint64_t)(n - at)),
            chosen = order[with];
        order[with] = order[at];
        order[at] = chosen;
        p->group = all[chosen].group;
        status = probe_measure(p, &all[chosen].spec, &all[chosen].point[i / n]);
        probe_step(p, (size_t)i + 1);
    }
    p->group = 0;
    free(order);
    return status;
}

json_t *probe_right_json(int n_right, int n)
{
    json_t *json = json_pack("{s:i}", "n_over_5_pct", n);
    if (n > 0)
        json_object_set_new(json, "right_pct", probe_number(100.0 * n_right / n));
    return json;
}

static json_t *part_of(json_t *accuracy, const char *key)
{
    json_t *part = json_object_get(accuracy, key);
    if (!part) {
        part = json_object();
        json_object_set_new(accuracy, key, part);
    }
    return part;
}

/* A phase of its own: candidates near sizes. */
static gac_status rank_many(probe *p, const gac_contract *contract, const probe_gemm *g,
                            bool common, json_t **out)
{
    int n_groups = N_RANKED / (p->options->quick ? QUICK_PART : 1), n = 0;
    ranking r = { 0 };
    *out = NULL;
    candidate *all = calloc((size_t)n_groups * MAX_CANDIDATES, sizeof *all);
    if (!all)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n_groups; i++)
        n += draw_group(p, contract, g, common, i + 1, all + n);
    probe_begin(p, common ? "candidates at common widths" : "candidates", gac_dtype_name(g->dtype),
                2 * (size_t)n);
    gac_status status = measure_candidates(p, all, n);
    probe_finish(p);
    for (int i = 0; i < n && status == GAC_OK; i++)
        for (int j = i + 1; j < n && all[j].group == all[i].group; j++)
            if (is_measured(&all[i]) && is_measured(&all[j]))
                rank_pair(&all[i], &all[j], &r);
    if (status == GAC_OK)
        status = regret_json(all, n, out, p->err);
    if (status == GAC_OK)
        json_object_update_new(*out, probe_right_json(r.n_right, r.n_over));
    free(all);
    return status;
}

gac_status probe_accuracy(probe *p, const gac_contract *contract, const probe_gemm *gemm,
                          const probe_sdpa *sdpa, json_t *accuracy)
{
    const char *dtype = gac_dtype_name(gemm->dtype);
    json_t *part = NULL, *ranked = json_object();
    int part_of_all = p->options->quick ? QUICK_PART : 1;
    probe_grant_rest(p);
    probe_begin(p, "held-out shapes", dtype,
                (size_t)((N_GEMM + (sdpa ? N_SDPA : 0)) / part_of_all));
    gac_status status = hold_out_gemm(p, contract, gemm, &part);
    if (status == GAC_OK)
        json_object_set_new(part_of(accuracy, "gemm"), dtype, part);
    if (status == GAC_OK && sdpa) {
        status = hold_out_sdpa(p, contract, sdpa, &part);
        if (status == GAC_OK)
            json_object_set_new(part_of(accuracy, "sdpa"), dtype, part);
    }
    probe_finish(p);
    json_object_set_new(part_of(accuracy, "ranking"), dtype, ranked);
    for (int common = 0; common < 2 && status == GAC_OK; common++) {
        status = rank_many(p, contract, gemm, common, &part);
        if (status == GAC_OK)
            json_object_set_new(ranked, common ? "common_widths" : "random_widths", part);
    }
    return status;
}

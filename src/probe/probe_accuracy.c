/* How well a contract predicts shapes that are in none of its tables. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>

#define MAX_MULTIPLIES 4e11 /* of a held-out GEMM; more would take long */
#define RANK_PCT 5.0
enum { N_GEMM = 600, N_SDPA = 120, N_RANKED = 60, QUICK_PART = 6, MAX_CANDIDATES = 16 };

void probe_summarise(double *errors_pct, int n, gac_contract_errors *out)
{
    *out = (gac_contract_errors){ .n_points = n };
    if (n == 0)
        return;
    qsort(errors_pct, (size_t)n, sizeof *errors_pct, gac_by_value);
    out->bias_pct = gac_four_digits(gac_percentile(errors_pct, n, 0.5));
    for (int i = 0; i < n; i++)
        errors_pct[i] = fabs(errors_pct[i]);
    qsort(errors_pct, (size_t)n, sizeof *errors_pct, gac_by_value);
    out->median_pct = gac_four_digits(gac_percentile(errors_pct, n, 0.5));
    out->p95_pct = gac_four_digits(gac_percentile(errors_pct, n, 0.95));
    out->max_pct = gac_four_digits(errors_pct[n - 1]);
}

/* Adds the error of a prediction to a list of *n, if the point was measured. */
static void add_error(double *errors_pct, int *n, double predicted_us, const probe_point *point)
{
    if (point->outcome == PROBE_MEASURED && isfinite(predicted_us))
        errors_pct[(*n)++] = 100 * (predicted_us / point->time_us - 1);
}

static int64_t draw_of(probe *p, const int64_t *values, size_t n)
{
    return values[probe_random(p) % n];
}

/* Draws log-uniformly, or near a size that models have. */
static double draw_about(probe *p)
{
    static const int64_t typical[] = { 1024, 1741, 2048, 4096, 5120, 11008, 14336 };
    double around = (double)draw_of(p, typical, sizeof typical / sizeof *typical);
    return probe_random(p) % 2 ? around * probe_uniform(p, 0.85, 1.15)
                               : exp(probe_uniform(p, log(192), log(16384)));
}

/* Draws the other size of a candidate: a width of whole cache lines. */
static int64_t draw_width(probe *p, const probe_gemm *g)
{
    int64_t unit = probe_line_multiple(g), width = (int64_t)draw_about(p) / unit * unit;
    return width < unit ? unit : width;
}

/* Draws a size of any tier that is served. */
static int64_t draw_size(probe *p, const probe_tiers *tiers)
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

/* Whether a table has this very shape. */
static bool is_known(const probe_gemm *g, const gac_gemm_shape *s)
{
    for (int i = 0; i < g->n_tables; i++) {
        const probe_table *t = &g->tables[i].table;
        if (on_axis(t, 0, s->m) && on_axis(t, 1, s->n) && on_axis(t, 2, s->k))
            return true;
    }
    return false;
}

static void draw_gemm(probe *p, const probe_gemm *g, gac_gemm_shape *out)
{
    static const int64_t rows[] = { 1,   1,   1,    2,    3,    4,    5,    8,    13,  16,
                                    24,  31,  48,   64,   100,  128,  200,  256,  384, 512,
                                    777, 800, 1024, 1500, 2048, 3000, 4096, 6000, 8192 };
    do {
        out->m = draw_of(p, rows, sizeof rows / sizeof *rows);
        out->n = draw_size(p, &g->axis[GAC_OP_GEMM_N]);
        out->k = draw_size(p, &g->axis[GAC_OP_GEMM_K]);
        out->row_major = false;
    } while ((double)out->m * (double)out->n * (double)out->k > MAX_MULTIPLIES || is_known(g, out));
}

static gac_status hold_out_gemm(probe *p, const gac_contract *contract, const probe_gemm *g,
                                gac_contract_errors *out)
{
    double errors_pct[N_GEMM];
    int n = p->options->quick ? N_GEMM / QUICK_PART : N_GEMM, n_errors = 0;
    gac_status status = GAC_OK;
    for (int i = 0; i < n && status == GAC_OK; i++) {
        gac_gemm_shape s;
        probe_point point;
        draw_gemm(p, g, &s);
        gac_task_spec spec = probe_gemm_spec(g->dtype, s.m, s.n, s.k);
        status = probe_measure(p, &spec, &point);
        probe_step(p, (size_t)i);
        if (status == GAC_OK)
            add_error(errors_pct, &n_errors,
                      gac_contract_gemm_us(contract, g->dtype, s.m, s.n, s.k), &point);
    }
    probe_summarise(errors_pct, n_errors, out);
    return status;
}

static gac_sdpa_shape draw_sdpa(probe *p, const probe_sdpa *s)
{
    static const int64_t batches[] = { 1, 1, 2, 3, 4, 8, 16, 32 }, heads[] = { 8, 12, 16, 32, 40 };
    static const int64_t lengths[] = { 160, 300, 384, 640, 768, 1000, 1500, 2048, 3000, 6000 };
    int64_t aligned = probe_aligned_multiple(&s->tiers);
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
                                gac_contract_errors *out)
{
    gac_task_spec specs[N_SDPA];
    probe_point points[N_SDPA];
    double errors_pct[N_SDPA];
    int n = p->options->quick ? N_SDPA / QUICK_PART : N_SDPA, n_errors = 0;
    for (int i = 0; i < n; i++) {
        gac_sdpa_shape shape = draw_sdpa(p, s);
        specs[i] = probe_sdpa_spec(s->dtype, &shape);
    }
    gac_status status = probe_measure_sdpa(p, specs, n, true, false, points);
    for (int i = 0; i < n && status == GAC_OK; i++)
        add_error(errors_pct, &n_errors,
                  gac_contract_sdpa_us(contract, s->dtype, &specs[i].sdpa.shape), &points[i]);
    probe_summarise(errors_pct, n_errors, out);
    return status;
}

/* Lists a size and the aligned sizes above it that a plan would consider. */
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

/* A candidate, measured twice: only what both measurements show is a difference. */
typedef struct candidate {
    gac_gemm_shape shape;
    int group;
    double predicted_us, time_us[2]; /* NaN where not known */
} candidate;

int probe_order(double a_us, double b_us)
{
    if (!(fmax(a_us, b_us) / fmin(a_us, b_us) > 1 + RANK_PCT / 100))
        return 0;
    return a_us < b_us ? -1 : 1;
}

static double mean_us(const candidate *c)
{
    return (c->time_us[0] + c->time_us[1]) / 2;
}

static bool is_measured(const candidate *c)
{
    return isfinite(mean_us(c)) && isfinite(c->predicted_us);
}

/* Counts the pairs that are over RANK_PCT apart both times, and those of them that are
 * predicted in the right order. A tie is wrong. */
static gac_contract_pairs rank_pairs(const candidate *all, int n)
{
    int n_over = 0, n_right = 0;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n && all[j].group == all[i].group; j++) {
            const candidate *a = &all[i], *b = &all[j];
            int order = probe_order(a->time_us[0], b->time_us[0]);
            if (order == 0 || probe_order(a->time_us[1], b->time_us[1]) != order ||
                !is_measured(a) || !is_measured(b))
                continue;
            n_over++;
            n_right += order * (a->predicted_us - b->predicted_us) > 0;
        }
    return probe_pairs(n_right, n_over);
}

/* Whether a plan would choose a: the faster one by prediction, or the smaller of equals. */
static bool is_preferred(const candidate *a, const candidate *b)
{
    if (a->predicted_us != b->predicted_us)
        return a->predicted_us < b->predicted_us;
    return a->shape.n + a->shape.k < b->shape.n + b->shape.k;
}

/* Regret of each group: how much longer the candidate that is predicted to be the fastest
 * takes than the one that is. Returns the number of groups. */
static int list_regrets(const candidate *all, int n, double *out_pct)
{
    int n_groups = 0;
    for (int first = 0, end; first < n; first = end) {
        const candidate *chosen = NULL, *fastest = NULL;
        int n_measured = 0;
        for (end = first; end < n && all[end].group == all[first].group; end++) {
            const candidate *c = &all[end];
            if (!is_measured(c))
                continue;
            n_measured++;
            chosen = chosen && is_preferred(chosen, c) ? chosen : c;
            fastest = fastest && mean_us(fastest) <= mean_us(c) ? fastest : c;
        }
        if (n_measured > 1)
            out_pct[n_groups++] = 100 * (mean_us(chosen) / mean_us(fastest) - 1);
    }
    return n_groups;
}

static void summarise_regret(const candidate *all, int n, gac_contract_regret *out)
{
    double regrets[N_RANKED], sum = 0;
    int n_groups = list_regrets(all, n, regrets);
    *out = (gac_contract_regret){ n_groups, NAN, NAN, NAN, 0, NAN };
    if (n_groups == 0)
        return;
    for (int i = 0; i < n_groups; i++)
        sum += regrets[i];
    qsort(regrets, (size_t)n_groups, sizeof *regrets, gac_by_value);
    out->regret_mean_pct = gac_four_digits(sum / n_groups);
    out->regret_p95_pct = gac_four_digits(gac_percentile(regrets, n_groups, 0.95));
    out->regret_max_pct = gac_four_digits(regrets[n_groups - 1]);
}

/* Draws the candidates for one size. The other size is random, and no candidate is in a
 * table. With common it is a width that many models have, and tables may have the
 * candidates; then the order must hold in a new measurement. */
static int draw_group(probe *p, const gac_contract *contract, const probe_gemm *g, bool common,
                      int group, candidate *out)
{
    static const int64_t rows[] = { 1, 16, 256, 1024, 2048, 4096 }, widths[] = { 2048, 4096, 8192 };
    int64_t sizes[MAX_CANDIDATES];
    bool is_n = probe_random(p) % 2;
    const probe_tiers *tiers = &g->axis[is_n ? GAC_OP_GEMM_N : GAC_OP_GEMM_K];
    int64_t m = draw_of(p, rows, sizeof rows / sizeof *rows);
    int64_t other = common ? draw_of(p, widths, sizeof widths / sizeof *widths) : draw_width(p, g);
    int n = candidates(draw_size(p, tiers), probe_aligned_multiple(tiers), sizes), kept = 0;
    for (int i = 0; i < n; i++) {
        gac_gemm_shape s = { m, is_n ? sizes[i] : other, is_n ? other : sizes[i], false };
        double predicted_us = gac_contract_gemm_us(contract, g->dtype, s.m, s.n, s.k);
        if (common || !is_known(g, &s))
            out[kept++] = (candidate){ s, group, predicted_us, { NAN, NAN } };
    }
    return kept;
}

/* Measures all candidates in random order, then all again. In the order of groups, hard
 * work would take the card below its highest clock. */
static gac_status measure_candidates(probe *p, gac_dtype dtype, candidate *all, int n)
{
    int order[N_RANKED * MAX_CANDIDATES];
    gac_status status = GAC_OK;
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = 0; i < 2 * n && status == GAC_OK; i++) {
        int at = i % n, with = at + (int)(probe_random(p) % (uint64_t)(n - at));
        candidate *c = &all[order[with]];
        probe_point point;
        order[with] = order[at];
        order[at] = (int)(c - all);
        gac_task_spec spec = probe_gemm_spec(dtype, c->shape.m, c->shape.n, c->shape.k);
        p->group = c->group;
        status = probe_measure(p, &spec, &point);
        c->time_us[i / n] = point.time_us;
        probe_step(p, (size_t)i + 1);
    }
    p->group = 0;
    return status;
}

gac_contract_pairs probe_pairs(int n_right, int n)
{
    return (gac_contract_pairs){ n, n > 0 ? gac_four_digits(100.0 * n_right / n) : NAN };
}

/* Measures candidates for many sizes, as a phase of its own. */
static gac_status rank_many(probe *p, const gac_contract *contract, const probe_gemm *g,
                            bool common, gac_contract_regret *out)
{
    candidate all[N_RANKED * MAX_CANDIDATES];
    int n_groups = N_RANKED / (p->options->quick ? QUICK_PART : 1), n = 0;
    for (int i = 0; i < n_groups; i++)
        n += draw_group(p, contract, g, common, i + 1, all + n);
    probe_begin(p, common ? "candidates at common widths" : "candidates", gac_dtype_name(g->dtype),
                2 * (size_t)n);
    gac_status status = measure_candidates(p, g->dtype, all, n);
    probe_finish(p);
    gac_contract_pairs pairs = rank_pairs(all, n);
    summarise_regret(all, n, out);
    out->n_over_5_pct = pairs.n_over_5_pct;
    out->right_pct = pairs.right_pct;
    return status;
}

gac_status probe_accuracy(probe *p, const gac_contract *contract, const probe_gemm *gemm,
                          const probe_sdpa *sdpa, probe_judged *out)
{
    int n_shapes = (N_GEMM + (sdpa ? N_SDPA : 0)) / (p->options->quick ? QUICK_PART : 1);
    probe_grant_rest(p);
    probe_begin(p, "held-out shapes", gac_dtype_name(gemm->dtype), (size_t)n_shapes);
    gac_status status = hold_out_gemm(p, contract, gemm, &out->gemm);
    if (status == GAC_OK && sdpa)
        status = hold_out_sdpa(p, contract, sdpa, &out->sdpa);
    probe_finish(p);
    if (status == GAC_OK)
        status = rank_many(p, contract, gemm, false, &out->random_widths);
    if (status == GAC_OK)
        status = rank_many(p, contract, gemm, true, &out->common_widths);
    out->ranking = (gac_contract_ranking){ &out->random_widths, &out->common_widths };
    return status;
}

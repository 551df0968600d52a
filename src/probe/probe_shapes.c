/* Measures given shapes, and adds them to a contract as exact points. */
#include "probe/probe_internal.h"

#include "base/arguments.h"

#include <math.h>
#include <string.h>

#define NEAR 1.1 /* sizes up to this ratio are candidates for each other */
enum { N_BEFORE_JUDGING = 50, MAX_ROUNDS = 3 };

/* A GEMM. It is measured in several rounds, since the time of some calls changes. */
typedef struct exact {
    gac_task_spec spec;         /* in the dtype that serves it */
    double predicted_us;        /* by the contract before */
    double time_us[MAX_ROUNDS]; /* NaN where not measured */
} exact;

/* What is measured, and what becomes of it. */
typedef struct shapes {
    probe *p;
    const gac_contract *base;
    gac_dtype dtype;
    exact *gemm;
    size_t n_gemm, n_all;
    int n_rounds;
    gac_contract_point *points; /* new ones, then those of base */
    size_t n_new, n_points;
    gac_contract_sdpa_point *sdpa_points; /* likewise */
    size_t n_new_sdpa, n_sdpa_points;
    gac_contract_model_errors judged;
    gac_contract_pairs predicted, measured;
} shapes;

/* Takes fewer samples from now on if the time would not suffice. */
static void judge_pace(probe *p, size_t n_done, size_t n_all)
{
    const gac_timing_rules sweep = GAC_TIMING_RULES_SWEEP_INIT;
    double spent_s = gac_now_s() - p->start_s;
    if (n_done < N_BEFORE_JUDGING || p->rules.min_samples == sweep.min_samples ||
        spent_s / (double)n_done * (double)n_all <= p->options->max_time_s)
        return;
    p->rules = sweep;
    probe_note(p, "exact points after the first %zu have fewer samples, to keep within %.0f s",
               n_done, p->options->max_time_s);
}

/* Measures each GEMM once. What the dtype declines is measured in the one that serves it. */
static gac_status measure_round(shapes *s, int round)
{
    const gac_contract_gemm *rules = s->base->gemm[s->dtype];
    gac_dtype next = rules ? rules->falls_back_to : GAC_DTYPE_COUNT;
    gac_status status = GAC_OK;
    for (size_t i = 0; i < s->n_gemm && status == GAC_OK; i++) {
        gac_task_spec *spec = &s->gemm[i].spec;
        probe_point point;
        status = probe_measure(s->p, spec, &point);
        if (status == GAC_OK && point.outcome == PROBE_DECLINED && spec->dtype != next &&
            next != GAC_DTYPE_COUNT) {
            spec->dtype = next;
            status = probe_measure(s->p, spec, &point);
        }
        s->gemm[i].time_us[round] = point.time_us;
        if (round == 0)
            judge_pace(s->p, i + 1, s->n_all);
        probe_step(s->p, (size_t)round * s->n_gemm + i + 1);
    }
    return status;
}

/* Measures as many rounds as there is time for. */
static gac_status measure_rounds(shapes *s)
{
    double start_s = gac_now_s();
    gac_status status = GAC_OK;
    for (s->n_rounds = 0; s->n_rounds < MAX_ROUNDS && status == GAC_OK; s->n_rounds++) {
        double round_s = s->n_rounds > 0 ? (gac_now_s() - start_s) / s->n_rounds : 0;
        if (s->n_rounds > 0 && round_s > probe_left_s(s->p))
            break;
        status = measure_round(s, s->n_rounds);
    }
    return status;
}

/* The median of the rounds before end; NaN where there is none. */
static double time_of(const exact *e, int end)
{
    double times[MAX_ROUNDS];
    int n = 0;
    for (int i = 0; i < end; i++)
        if (!isnan(e->time_us[i]))
            times[n++] = e->time_us[i];
    return n > 0 ? gac_median(times, n) : NAN;
}

/* Whether it was predicted, and measured in every round. */
static bool is_whole(const exact *e, int n_rounds)
{
    bool whole = isfinite(e->predicted_us);
    for (int r = 0; r < n_rounds; r++)
        whole = whole && !isnan(e->time_us[r]);
    return whole;
}

static bool are_near(int64_t a, int64_t b)
{
    return (double)(a > b ? a : b) <= NEAR * (double)(a < b ? a : b);
}

static bool are_candidates(const exact *a, const exact *b)
{
    const gac_gemm_shape *s = &a->spec.gemm, *t = &b->spec.gemm;
    return s->m == t->m &&
           ((s->k == t->k && are_near(s->n, t->n)) || (s->n == t->n && are_near(s->k, t->k)));
}

/* Counts pairs of candidates that are apart in every round, and how many of them the contract
 * ranked right; and pairs that are apart in the last round, and how many of them the rounds
 * before ranked alike. */
static void rank_exact(shapes *s)
{
    int n_over = 0, n_right = 0, n_last = 0, n_same = 0, last = s->n_rounds - 1;
    for (size_t i = 0; i < s->n_gemm; i++)
        for (size_t j = i + 1; j < s->n_gemm; j++) {
            const exact *a = &s->gemm[i], *b = &s->gemm[j];
            if (!are_candidates(a, b) || !is_whole(a, s->n_rounds) || !is_whole(b, s->n_rounds))
                continue;
            int order = probe_order(a->time_us[last], b->time_us[last]);
            bool always = order != 0;
            for (int r = 0; r < last; r++)
                always = always && probe_order(a->time_us[r], b->time_us[r]) == order;
            n_over += always;
            n_right += always && order * (a->predicted_us - b->predicted_us) > 0;
            n_last += order != 0;
            n_same += order != 0 && (order < 0) == (time_of(a, last) < time_of(b, last));
        }
    s->predicted = probe_pairs(n_right, n_over);
    s->measured = probe_pairs(n_same, n_last);
    s->judged.predicted = &s->predicted;
    s->judged.measured = last > 0 ? &s->measured : NULL;
}

/* Compares these shapes with what the contract had predicted. */
static gac_status judge_exact(shapes *s)
{
    int n = 0;
    gac_contract_errors e;
    double *errors_pct = probe_alloc(s->p, s->n_gemm, sizeof *errors_pct);
    if (!errors_pct)
        return gac_error_no_memory(s->p->err);
    for (size_t i = 0; i < s->n_gemm; i++)
        if (is_whole(&s->gemm[i], s->n_rounds))
            errors_pct[n++] =
                100 * (s->gemm[i].predicted_us / time_of(&s->gemm[i], s->n_rounds) - 1);
    probe_summarise(errors_pct, n, &e);
    s->judged = (gac_contract_model_errors){
        .n_points = n, .n_rounds = s->n_rounds, .median_pct = e.median_pct, .p95_pct = e.p95_pct
    };
    rank_exact(s);
    return GAC_OK;
}

static gac_status measure_gemm(shapes *s, const gac_gemm_shape *gemm)
{
    s->gemm = probe_alloc(s->p, s->n_gemm, sizeof *s->gemm);
    if (!s->gemm)
        return gac_error_no_memory(s->p->err);
    for (size_t i = 0; i < s->n_gemm; i++) {
        const gac_gemm_shape *g = &gemm[i];
        s->gemm[i].spec = probe_gemm_spec(s->dtype, g->m, g->n, g->k);
        s->gemm[i].predicted_us = gac_contract_gemm_us(s->base, s->dtype, g->m, g->n, g->k);
    }
    gac_status status = measure_rounds(s);
    return status == GAC_OK && s->n_gemm > 0 ? judge_exact(s) : status;
}

static bool has_point(const gac_contract_point *points, size_t n, const gac_contract_point *point)
{
    for (size_t i = 0; i < n; i++)
        if (points[i].dtype == point->dtype && points[i].m == point->m && points[i].n == point->n &&
            points[i].k == point->k)
            return true;
    return false;
}

/* Takes the new points, and those of base that were not measured again. */
static gac_status merge_gemm(shapes *s)
{
    const gac_contract *base = s->base;
    s->points = probe_alloc(s->p, base->n_points + s->n_gemm, sizeof *s->points);
    if (!s->points)
        return gac_error_no_memory(s->p->err);
    for (size_t i = 0; i < s->n_gemm; i++) {
        const gac_task_spec *spec = &s->gemm[i].spec;
        gac_contract_point point = { spec->dtype, spec->gemm.m, spec->gemm.n, spec->gemm.k,
                                     gac_four_digits(time_of(&s->gemm[i], s->n_rounds)) };
        if (isfinite(point.time_us) && !has_point(s->points, s->n_points, &point))
            s->points[s->n_points++] = point;
    }
    s->n_new = s->n_points;
    for (size_t i = 0; i < base->n_points; i++)
        if (!has_point(s->points, s->n_new, &base->points[i]))
            s->points[s->n_points++] = base->points[i];
    return GAC_OK;
}

static bool has_sdpa_point(const gac_contract_sdpa_point *points, size_t n,
                           const gac_contract_sdpa_point *point)
{
    const gac_sdpa_shape *b = &point->shape;
    for (size_t i = 0; i < n; i++) {
        const gac_sdpa_shape *a = &points[i].shape;
        if (points[i].dtype == point->dtype && a->batch == b->batch &&
            a->n_q_heads == b->n_q_heads && a->n_kv_heads == b->n_kv_heads && a->n_q == b->n_q &&
            a->n_kv == b->n_kv && a->qk_head == b->qk_head && a->v_head == b->v_head &&
            a->causal == b->causal)
            return true;
    }
    return false;
}

/* Likewise. A point names the dtype asked for, whatever dtype attention runs in. */
static gac_status merge_sdpa(shapes *s, const probe_point *points, size_t n)
{
    const gac_contract *base = s->base;
    s->sdpa_points = probe_alloc(s->p, base->n_sdpa_points + n, sizeof *s->sdpa_points);
    if (!s->sdpa_points)
        return gac_error_no_memory(s->p->err);
    for (size_t i = 0; i < n; i++) {
        gac_contract_sdpa_point point = { s->dtype, points[i].spec.sdpa.shape,
                                          gac_four_digits(points[i].time_us) };
        if (points[i].outcome == PROBE_MEASURED &&
            !has_sdpa_point(s->sdpa_points, s->n_sdpa_points, &point))
            s->sdpa_points[s->n_sdpa_points++] = point;
    }
    s->n_new_sdpa = s->n_sdpa_points;
    for (size_t i = 0; i < base->n_sdpa_points; i++)
        if (!has_sdpa_point(s->sdpa_points, s->n_new_sdpa, &base->sdpa_points[i]))
            s->sdpa_points[s->n_sdpa_points++] = base->sdpa_points[i];
    return GAC_OK;
}

static gac_status measure_sdpa(shapes *s, const gac_sdpa_shape *sdpa, size_t n)
{
    const gac_contract_sdpa *rules = s->base->sdpa[s->dtype];
    bool is_own = !rules || rules->same_as == GAC_DTYPE_COUNT;
    gac_task_spec *specs = probe_alloc(s->p, n, sizeof *specs);
    probe_point *points = probe_alloc(s->p, n, sizeof *points);
    if (!specs || !points)
        return gac_error_no_memory(s->p->err);
    for (size_t i = 0; i < n; i++)
        specs[i] = probe_sdpa_spec(is_own ? s->dtype : rules->same_as, &sdpa[i]);
    gac_status status = probe_measure_sdpa(s->p, specs, (int)n, true, true, points);
    return status == GAC_OK ? merge_sdpa(s, points, n) : status;
}

/* Warns where the libraries are not the contract's: times may not compare. */
static void warn_of_other_stack(const shapes *s)
{
    const gac_device_info *info = gac_device_describe(s->p->device);
    const char *const now[][2] = { { "driver", info->driver },
                                   { "cublas", info->blas },
                                   { "cudnn", info->dnn } };
    for (size_t i = 0; i < sizeof now / sizeof *now; i++)
        for (size_t j = 0; j < s->base->n_stack; j++) {
            const gac_contract_text *then = &s->base->stack[j];
            if (strcmp(then->key, now[i][0]) == 0 && now[i][1][0] &&
                strcmp(then->value, now[i][1]) != 0)
                gac_log_write(s->p->options->log, 0,
                              "the contract is of %s %s, its new points of %s", now[i][0],
                              then->value, now[i][1]);
        }
}

static void describe(probe *p, size_t n_gemm, size_t n_sdpa)
{
    char day[16];
    const gac_device_info *info = gac_device_describe(p->device);
    probe_note(p,
               "%zu GEMM and %zu attention shapes measured exactly by gac probe %s on %s, %s, "
               "driver %s, cuBLAS %s, cuDNN %s",
               n_gemm, n_sdpa, GAC_VERSION, probe_today(day), info->name, info->driver, info->blas,
               info->dnn);
}

/* A copy of base with the points, and how well base had predicted them. */
static gac_status extend(const shapes *s, gac_contract **out)
{
    probe *p = s->p;
    gac_contract all = *s->base;
    gac_contract_accuracy accuracy = { .held_out = NULL };
    const char **sources = probe_alloc(p, all.n_sources + PROBE_MAX_SOURCES, sizeof *sources);
    if (!sources)
        return gac_error_no_memory(p->err);
    for (size_t i = 0; i < all.n_sources; i++)
        sources[i] = all.sources[i];
    for (int i = 0; i < p->n_sources; i++)
        sources[all.n_sources++] = p->sources[i];
    if (all.accuracy)
        accuracy = *all.accuracy;
    if (s->n_gemm > 0) {
        accuracy.model[s->dtype] = &s->judged;
        all.accuracy = &accuracy;
    }
    all.sources = sources;
    all.points = s->points;
    all.n_points = s->n_points;
    all.sdpa_points = s->sdpa_points;
    all.n_sdpa_points = s->n_sdpa_points;
    if (p->options->name)
        all.name = p->options->name;
    if (p->options->runtime)
        all.runtime = p->options->runtime;
    return gac_contract_copy(&all, "the extended contract", out, p->err);
}

gac_status gac_probe_shapes(gac_device *device, const gac_probe_options *options,
                            const gac_contract *base, const gac_gemm_shape *gemm, size_t n_gemm,
                            const gac_sdpa_shape *sdpa, size_t n_sdpa, gac_contract **contract,
                            struct json_t **raw, gac_error *err)
{
    GAC_REFUSE_NULL(err, device, options, base, contract);
    GAC_REFUSE(err, n_gemm > 0 && !gemm, "gemm is NULL");
    GAC_REFUSE(err, n_sdpa > 0 && !sdpa, "sdpa is NULL");
    const gac_timing_rules careful = GAC_TIMING_RULES_INIT;
    probe p;
    gac_status status = probe_check_options(options, err);
    if (status != GAC_OK)
        return status;
    shapes s = { .p = &p, .base = base, .dtype = options->dtypes[0], .n_gemm = n_gemm };
    s.n_all = n_gemm + n_sdpa;
    status = probe_start(&p, device, options, raw != NULL, err);
    p.rules = careful;
    probe_begin(&p, "exact shapes", gac_dtype_name(s.dtype), n_gemm * MAX_ROUNDS + n_sdpa);
    if (status == GAC_OK)
        status = measure_gemm(&s, gemm);
    if (status == GAC_OK)
        status = merge_gemm(&s);
    if (status == GAC_OK)
        status = measure_sdpa(&s, sdpa, n_sdpa);
    probe_finish(&p);
    if (status == GAC_OK) {
        warn_of_other_stack(&s);
        describe(&p, s.n_new, s.n_new_sdpa);
        status = extend(&s, contract);
    }
    if (status == GAC_OK && raw)
        *raw = probe_raw_json(&p);
    probe_dispose(&p);
    return status;
}

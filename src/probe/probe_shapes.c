/* Exactly the shapes that someone needs, as points in a contract that is there
 * already. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEAR 1.1 /* of a size, are candidates for it */
enum { N_BEFORE_JUDGING = 50, MAX_ROUNDS = 3 };

/* A GEMM that is measured in every round, since some take another time the next time. */
typedef struct exact {
    gac_task_spec spec;  /* in the dtype that serves it */
    double predicted_us; /* by the contract as it was */
    probe_point round[MAX_ROUNDS];
} exact;

static void gemm_key(char out[96], const char *dtype, json_int_t m, json_int_t n, json_int_t k)
{
    snprintf(out, 96, "%s %lld %lld %lld", dtype, (long long)m, (long long)n, (long long)k);
}

static json_int_t integer_at(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *const sdpa_sizes[] = { "batch", "n_q_heads", "n_kv_heads", "n_q",
                                          "n_kv",  "qk_head",   "v_head" };
enum { N_SDPA_SIZES = sizeof sdpa_sizes / sizeof *sdpa_sizes };

static json_t *sdpa_json(const char *dtype, const gac_sdpa_shape *s, double time_us)
{
    const int64_t sizes[N_SDPA_SIZES] = { s->batch, s->n_q_heads, s->n_kv_heads, s->n_q,
                                          s->n_kv,  s->qk_head,   s->v_head };
    json_t *json = json_pack("{s:s}", "dtype", dtype);
    for (size_t i = 0; i < N_SDPA_SIZES; i++)
        json_object_set_new(json, sdpa_sizes[i], json_integer(sizes[i]));
    json_object_set_new(json, "causal", json_boolean(s->causal));
    json_object_set_new(json, "time_us", probe_number(time_us));
    return json;
}

/* What names a point: all of it but the time. */
static void point_key(char out[256], const json_t *point)
{
    const char *dtype = json_string_value(json_object_get(point, "dtype"));
    if (!dtype)
        dtype = "";
    if (json_object_get(point, "m")) {
        gemm_key(out, dtype, integer_at(point, "m"), integer_at(point, "n"),
                 integer_at(point, "k"));
        return;
    }
    size_t used =
        (size_t)snprintf(out, 256, "%s %d", dtype, json_is_true(json_object_get(point, "causal")));
    for (size_t i = 0; i < N_SDPA_SIZES && used < 256; i++)
        used += (size_t)snprintf(out + used, 256 - used, " %lld",
                                 (long long)integer_at(point, sdpa_sizes[i]));
}

/* The list under key with added points put in, those of the same shape
 * replaced. */
static gac_status merge(json_t *contract, const char *key, json_t *added, gac_error *err)
{
    char name[256];
    size_t i;
    json_t *point, *known = json_object(), *merged = json_array();
    json_array_foreach(added, i, point) {
        point_key(name, point);
        json_object_set(known, name, point);
    }
    json_array_foreach(json_object_get(contract, key), i, point) {
        point_key(name, point);
        if (!json_object_get(known, name))
            json_array_append(merged, point);
    }
    const char *each;
    json_object_foreach(known, each, point)
        json_array_append(merged, point);
    json_decref(known);
    return json_object_set_new(contract, key, merged) == 0 ? GAC_OK : gac_error_no_memory(err);
}

/* Careful while the time lasts. */
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

/* The dtype that runs what dtype declines, or dtype. */
static gac_dtype fallback(const gac_contract *base, gac_dtype dtype)
{
    const gac_contract_gemm *gemm = base->gemm[dtype];
    return gemm && gemm->falls_back_to != GAC_DTYPE_COUNT ? gemm->falls_back_to : dtype;
}

/* The dtype that attention runs in. */
static gac_dtype attention(const gac_contract *base, gac_dtype dtype)
{
    const gac_contract_sdpa *sdpa = base->sdpa[dtype];
    return sdpa && sdpa->same_as != GAC_DTYPE_COUNT ? sdpa->same_as : dtype;
}

/* What a dtype declines is measured in the one that serves it then. */
static gac_status measure_round(probe *p, gac_dtype next, exact *all, size_t n, size_t n_all,
                                int round)
{
    gac_status status = GAC_OK;
    for (size_t i = 0; i < n && status == GAC_OK; i++) {
        probe_point *point = &all[i].round[round];
        status = probe_measure(p, &all[i].spec, point);
        if (status == GAC_OK && point->outcome == PROBE_DECLINED && all[i].spec.dtype != next) {
            all[i].spec.dtype = next;
            status = probe_measure(p, &all[i].spec, point);
        }
        if (round == 0)
            judge_pace(p, i + 1, n_all);
        probe_step(p, (size_t)round * n + i + 1);
    }
    return status;
}

/* As many rounds as there is time for. */
static gac_status measure_rounds(probe *p, gac_dtype next, exact *all, size_t n, size_t n_all,
                                 int *n_rounds)
{
    double start_s = gac_now_s();
    gac_status status = GAC_OK;
    for (*n_rounds = 0; *n_rounds < MAX_ROUNDS && status == GAC_OK; ++*n_rounds) {
        double round_s = *n_rounds > 0 ? (gac_now_s() - start_s) / *n_rounds : 0;
        if (*n_rounds > 0 && gac_now_s() + round_s - p->start_s > p->options->max_time_s)
            break;
        status = measure_round(p, next, all, n, n_all, *n_rounds);
    }
    return status;
}

/* The median of the rounds before end; NaN where there is none. */
static double time_of(const exact *e, int end)
{
    double times[MAX_ROUNDS];
    int n = 0;
    for (int i = 0; i < end; i++)
        if (e->round[i].outcome == PROBE_MEASURED)
            times[n++] = e->round[i].time_us;
    return n > 0 ? probe_median(times, n) : NAN;
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

/* How those that are apart in every round were predicted, and how those that are in
 * the last lay in the rounds before. */
static void rank_exact(const exact *all, size_t n, int n_rounds, json_t *out)
{
    int n_over = 0, n_right = 0, n_last = 0, n_same = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            const exact *a = &all[i], *b = &all[j];
            if (!are_candidates(a, b))
                continue;
            int last = n_rounds - 1, order = probe_order(&a->round[last], &b->round[last]);
            bool always = order != 0;
            for (int r = 0; r < last; r++)
                always = always && probe_order(&a->round[r], &b->round[r]) == order;
            n_over += always;
            n_right += always && order * (a->predicted_us - b->predicted_us) > 0;
            n_last += order != 0;
            n_same += order != 0 && (order < 0) == (time_of(a, last) < time_of(b, last));
        }
    json_object_set_new(out, "predicted", probe_right_json(n_right, n_over));
    if (n_rounds > 1)
        json_object_set_new(out, "measured", probe_right_json(n_same, n_last));
}

/* What the contract had said of these shapes, and what their times are worth. */
static gac_status judge_exact(probe *p, const exact *all, size_t n, int n_rounds, json_t **out)
{
    double *predicted = calloc(n + 1, sizeof *predicted), *times = calloc(n + 1, sizeof *times);
    exact *kept = calloc(n + 1, sizeof *kept);
    gac_error_summary e = { 0 };
    size_t n_kept = 0;
    gac_status status = predicted && times && kept ? GAC_OK : gac_error_no_memory(p->err);
    for (size_t i = 0; i < n && status == GAC_OK; i++) {
        bool whole = isfinite(all[i].predicted_us);
        for (int r = 0; r < n_rounds; r++)
            whole = whole && all[i].round[r].outcome == PROBE_MEASURED;
        if (!whole)
            continue;
        predicted[n_kept] = all[i].predicted_us;
        times[n_kept] = time_of(&all[i], n_rounds);
        kept[n_kept++] = all[i];
    }
    if (status == GAC_OK)
        status = gac_probe_summarise(predicted, times, (int)n_kept, &e, p->err);
    if (status == GAC_OK) {
        *out =
            json_pack("{s:i, s:i, s:o, s:o}", "n_points", (int)n_kept, "n_rounds", n_rounds,
                      "median_pct", probe_number(e.median_pct), "p95_pct", probe_number(e.p95_pct));
        rank_exact(kept, n_kept, n_rounds, *out);
    }
    free(predicted);
    free(times);
    free(kept);
    return status;
}

static gac_status measure_gemm(probe *p, const gac_contract *base, gac_dtype dtype,
                               const gac_gemm_shape *shapes, size_t n, size_t n_all, json_t *points,
                               json_t **judged)
{
    gac_dtype next = fallback(base, dtype);
    int n_rounds = 0;
    exact *all = calloc(n + 1, sizeof *all);
    gac_status status = all ? GAC_OK : gac_error_no_memory(p->err);
    for (size_t i = 0; i < n && status == GAC_OK; i++) {
        all[i].spec = probe_gemm_spec(dtype, shapes[i].m, shapes[i].n, shapes[i].k);
        all[i].predicted_us =
            gac_contract_gemm_us(base, dtype, shapes[i].m, shapes[i].n, shapes[i].k);
    }
    if (status == GAC_OK)
        status = measure_rounds(p, next, all, n, n_all, &n_rounds);
    for (size_t i = 0; i < n && status == GAC_OK; i++) {
        double time_us = time_of(&all[i], n_rounds);
        if (isfinite(time_us))
            json_array_append_new(
                points,
                json_pack("{s:I, s:I, s:I, s:s, s:o}", "m", (json_int_t)shapes[i].m, "n",
                          (json_int_t)shapes[i].n, "k", (json_int_t)shapes[i].k, "dtype",
                          gac_dtype_name(all[i].spec.dtype), "time_us", probe_number(time_us)));
    }
    if (status == GAC_OK && n > 0)
        status = judge_exact(p, all, n, n_rounds, judged);
    free(all);
    return status;
}

/* Points are named by dtype, whatever attention runs in. */
static gac_status measure_sdpa(probe *p, const gac_contract *base, gac_dtype dtype,
                               const gac_sdpa_shape *shapes, size_t n, json_t *points)
{
    gac_dtype runs = attention(base, dtype);
    gac_task_spec *specs = calloc(n + 1, sizeof *specs);
    probe_point *out = calloc(n + 1, sizeof *out);
    gac_status status = specs && out ? GAC_OK : gac_error_no_memory(p->err);
    for (size_t i = 0; i < n && status == GAC_OK; i++)
        specs[i] = probe_sdpa_spec(runs, &shapes[i]);
    if (status == GAC_OK)
        status = probe_measure_sdpa(p, specs, (int)n, true, true, out);
    for (size_t i = 0; i < n && status == GAC_OK; i++)
        if (out[i].outcome == PROBE_MEASURED)
            json_array_append_new(points,
                                  sdpa_json(gac_dtype_name(dtype), &shapes[i], out[i].time_us));
    free(specs);
    free(out);
    return status;
}

/* Times of other libraries than the contract's are told: they may not compare. */
static void tell_other_stack(probe *p, const gac_contract *base)
{
    const gac_device_info *info = gac_device_describe(p->device);
    const char *const now[][2] = { { "driver", info->driver },
                                   { "cublas", info->blas },
                                   { "cudnn", info->dnn } };
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        const char *then = NULL;
        for (size_t j = 0; j < base->n_stack; j++)
            if (strcmp(base->stack[j].key, now[i][0]) == 0)
                then = base->stack[j].value;
        if (then && now[i][1][0] && strcmp(then, now[i][1]) != 0)
            gac_log_write(p->options->log, 0, "the contract is of %s %s, its new points of %s",
                          now[i][0], then, now[i][1]);
    }
}

/* accuracy.model.DTYPE, of the last model that was measured in that dtype. */
static void keep_judged(json_t *contract, gac_dtype dtype, json_t *judged)
{
    json_t *accuracy = json_object_get(contract, "accuracy"), *model;
    if (!json_is_object(accuracy)) {
        accuracy = json_object();
        json_object_set_new(contract, "accuracy", accuracy);
    }
    model = json_object_get(accuracy, "model");
    if (!json_is_object(model)) {
        model = json_object();
        json_object_set_new(accuracy, "model", model);
    }
    json_object_set(model, gac_dtype_name(dtype), judged);
}

static gac_status extend(probe *p, const gac_contract *base, json_t *gemm, json_t *sdpa,
                         json_t *judged, json_t **out)
{
    char day[16];
    time_t now = time(NULL);
    struct tm utc;
    size_t i;
    json_t *note, *contract;
    gac_status status = probe_contract_json(base, &contract, p->err);
    if (status != GAC_OK)
        return status;
    json_t *sources = json_object_get(contract, "sources");
    tell_other_stack(p, base);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&now, &utc));
    const gac_device_info *info = gac_device_describe(p->device);
    probe_note(p,
               "%zu GEMM and %zu attention shapes measured exactly by gac probe %s on %s, %s, "
               "driver %s, cuBLAS %s, cuDNN %s",
               json_array_size(gemm), json_array_size(sdpa), GAC_VERSION, day, info->name,
               info->driver, info->blas, info->dnn);
    json_array_foreach(p->sources, i, note)
        json_array_append(sources, note);
    status = merge(contract, "points", gemm, p->err);
    if (status == GAC_OK && json_array_size(sdpa) > 0)
        status = merge(contract, "sdpa_points", sdpa, p->err);
    if (judged)
        keep_judged(contract, p->options->dtypes[0], judged);
    if (p->options->name)
        json_object_set_new(contract, "name", json_string(p->options->name));
    if (p->options->runtime)
        json_object_set_new(contract, "runtime", json_deep_copy(p->options->runtime));
    *out = contract;
    return status;
}

gac_status gac_probe_shapes(gac_device *device, const gac_probe_options *options,
                            const gac_contract *base, const gac_gemm_shape *gemm, size_t n_gemm,
                            const gac_sdpa_shape *sdpa, size_t n_sdpa, struct json_t **contract,
                            struct json_t **raw, gac_error *err)
{
    const gac_timing_rules careful = GAC_TIMING_RULES_INIT;
    probe p;
    json_t *points = json_array(), *sdpa_points = json_array(), *judged = NULL, *json = NULL;
    gac_dtype dtype = options->dtypes[0];
    gac_contract *check = NULL;
    gac_status status = probe_start(&p, device, options, raw != NULL, err);
    p.rules = careful;
    if (status == GAC_OK)
        status = probe_check_runtime(options->runtime, err);
    probe_begin(&p, "exact shapes", gac_dtype_name(dtype), n_gemm * MAX_ROUNDS + n_sdpa);
    if (status == GAC_OK)
        status = measure_gemm(&p, base, dtype, gemm, n_gemm, n_gemm + n_sdpa, points, &judged);
    if (status == GAC_OK)
        status = measure_sdpa(&p, base, dtype, sdpa, n_sdpa, sdpa_points);
    probe_finish(&p);
    if (status == GAC_OK)
        status = extend(&p, base, points, sdpa_points, judged, &json);
    char *text = status == GAC_OK ? gac_probe_text(json) : NULL;
    if (status == GAC_OK)
        status = text ? gac_contract_parse(text, strlen(text), "the extended contract", &check, err)
                      : gac_error_no_memory(err);
    if (status == GAC_OK) {
        *contract = json_incref(json);
        if (raw)
            *raw = probe_raw_json(&p);
    }
    gac_contract_free(check);
    free(text);
    json_decref(json);
    json_decref(points);
    json_decref(sdpa_points);
    json_decref(judged);
    probe_dispose(&p);
    return status;
}

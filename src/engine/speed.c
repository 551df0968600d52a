#include "base/arguments.h"
#include "base/splitmix.h"

#include <gac/engine.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ID_SEED 5 /* every run uses the same ids */

typedef struct run {
    gac_engine *engine;
    gac_timing_rules rules;
    gac_pass_timing *out;
    gac_progress *progress;
    int32_t *ids;     /* (batch, n_new) */
    int64_t n_new;    /* tokens per sequence in a timed pass */
    int64_t n_past;   /* tokens in the cache before the next pass */
    int64_t from, to; /* n_past cycles through [from, to) */
} run;

static double now_us(void)
{
    return 1e-3 * (double)gac_now_ns();
}

static gac_status one_pass(run *r, double *time_us, gac_error *err)
{
    double start = now_us();
    gac_status status =
        gac_engine_forward(r->engine, r->ids, r->out->batch, r->n_new, r->n_past, NULL, err);
    *time_us = now_us() - start;
    r->n_past = r->n_past + 1 < r->to ? r->n_past + 1 : r->from;
    return status;
}

/* Runs at least one untimed pass, because the first may load code. */
static gac_status warm_up(run *r, gac_error *err)
{
    double time_us, start = now_us();
    gac_status status;
    do
        status = one_pass(r, &time_us, err);
    while (status == GAC_OK && now_us() - start < r->rules.warmup_us);
    r->n_past = r->from;
    return status;
}

/* A decoding step takes longer with more context. Only whole cycles over the
 * contexts keep the median comparable, unless the time is up. */
static bool is_done(const run *r, double spent_us)
{
    gac_timing *t = &r->out->timing;
    bool is_long = t->n_samples > 0 && t->median_us >= GAC_LONG_PASS_US;
    bool is_over = t->n_samples >= r->rules.max_samples || spent_us >= r->rules.max_time_us;
    t->steady = t->n_samples > 0 && t->noise <= r->rules.max_noise;
    if (is_long && t->n_samples >= GAC_LONG_PASSES)
        return true;
    if (t->n_samples < r->rules.min_samples)
        return false;
    return is_over || (t->steady && r->n_past == r->from);
}

static gac_status take_samples(run *r, const char *what, gac_error *err)
{
    gac_timing *t = &r->out->timing;
    gac_progress_start(r->progress, what, "samples", (uint64_t)r->rules.max_samples);
    gac_engine_watch(r->engine, r->progress, 0, false);
    gac_status status = warm_up(r, err);
    double start = now_us();
    while (status == GAC_OK && !is_done(r, now_us() - start)) {
        gac_engine_watch(r->engine, r->progress, (uint64_t)t->n_samples, false);
        status = one_pass(r, &t->samples_us[t->n_samples], err);
        if (status == GAC_OK) {
            t->n_samples++;
            gac_timing_summarise(t);
        }
        gac_progress_step(r->progress, (uint64_t)t->n_samples);
    }
    gac_engine_watch(r->engine, NULL, 0, false);
    gac_progress_finish(r->progress);
    if (status == GAC_OK && t->median_us > 0)
        r->out->tokens_per_s = (double)(r->out->batch * r->n_new) / t->median_us * 1e6;
    return status;
}

static gac_status begin(run *r, int64_t batch, int64_t length, int64_t n_ids,
                        const gac_timing_rules *rules, gac_error *err)
{
    static const gac_timing_rules usual = GAC_TIMING_RULES_PASS_INIT;
    gac_engine_info info;
    uint64_t state = ID_SEED;
    int64_t n;
    gac_engine_describe(r->engine, &info);
    memset(r->out, 0, sizeof *r->out);
    r->out->batch = batch;
    r->out->length = length;
    r->out->timing.n_calls = 1;
    r->out->timing.clock_mhz_min = r->out->timing.clock_mhz_max = -1;
    r->out->timing.temperature_c_max = -1;
    r->rules = rules ? *rules : usual;
    if (batch < 1 || length < 1 || length > info.max_context)
        return gac_error_set(err, GAC_USAGE, "%lld sequences of %lld tokens: from 1 to %lld fit",
                             (long long)batch, (long long)length, (long long)info.max_context);
    if (r->rules.min_samples < 1 || r->rules.max_samples < r->rules.min_samples ||
        r->rules.max_samples > GAC_MAX_SAMPLES)
        return gac_error_set(err, GAC_USAGE, "timing rules: from %d to %d samples; at most %d",
                             r->rules.min_samples, r->rules.max_samples, GAC_MAX_SAMPLES);
    if (!gac_mul_i64(batch, n_ids, &n) || n > INT32_MAX)
        return gac_error_set(err, GAC_USAGE, "%lld sequences of %lld tokens are too many",
                             (long long)batch, (long long)length);
    r->ids = malloc((size_t)n * sizeof *r->ids);
    if (!r->ids)
        return gac_error_no_memory(err);
    for (int64_t i = 0; i < n; i++)
        r->ids[i] = (int32_t)(gac_splitmix64(&state) % (uint64_t)info.vocab);
    return GAC_OK;
}

gac_status gac_engine_time_prefill(gac_engine *engine, int64_t batch, int64_t length,
                                   const gac_timing_rules *rules, gac_progress *progress,
                                   gac_pass_timing *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, engine, out);
    run r = { .engine = engine, .out = out, .progress = progress, .n_new = length };
    gac_status status = begin(&r, batch, length, length, rules, err);
    if (status == GAC_OK)
        status = gac_engine_reserve(engine, batch, length, err);
    if (status == GAC_OK)
        status = take_samples(&r, "prefill", err);
    free(r.ids);
    return status;
}

/* Puts n_past tokens per sequence into the cache. */
static gac_status fill_cache(run *r, int64_t n_past, int64_t chunk, gac_error *err)
{
    gac_status status = GAC_OK;
    gac_progress_start(r->progress, "filling the cache", "tokens", (uint64_t)n_past);
    gac_engine_watch(r->engine, r->progress, 0, true);
    for (int64_t at = 0; at < n_past && status == GAC_OK; at += chunk) {
        int64_t n = n_past - at < chunk ? n_past - at : chunk;
        status = gac_engine_forward(r->engine, r->ids, r->out->batch, n, at, NULL, err);
        gac_progress_step(r->progress, (uint64_t)(at + n));
    }
    gac_engine_watch(r->engine, NULL, 0, false);
    gac_progress_finish(r->progress);
    return status;
}

gac_status gac_engine_time_decode(gac_engine *engine, int64_t batch, int64_t context, int64_t chunk,
                                  const gac_timing_rules *rules, gac_progress *progress,
                                  gac_pass_timing *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, engine, out);
    run r = { .engine = engine, .out = out, .progress = progress, .n_new = 1 };
    gac_engine_info info;
    gac_engine_describe(engine, &info);
    chunk = chunk < 1 || chunk > context ? context : chunk;
    gac_status status = begin(&r, batch, context, chunk, rules, err);
    r.from = r.n_past = context - 1;
    r.to =
        r.from + GAC_DECODE_STEPS < info.max_context ? r.from + GAC_DECODE_STEPS : info.max_context;
    if (status == GAC_OK)
        status = gac_engine_reserve(engine, batch, r.to, err);
    if (status == GAC_OK)
        status = fill_cache(&r, context - 1, chunk, err);
    if (status == GAC_OK)
        status = take_samples(&r, "decode", err);
    free(r.ids);
    return status;
}

struct json_t *gac_pass_timing_json(const gac_pass_timing *timing, const char *key)
{
    const gac_timing *t = &timing->timing;
    json_t *samples = json_array();
    for (int i = 0; samples && i < t->n_samples; i++) {
        if (json_array_append_new(samples, json_real(t->samples_us[i] / 1000)) != 0) {
            json_decref(samples);
            samples = NULL;
        }
    }
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:i, s:b, s:o}", "batch", (json_int_t)timing->batch,
                     key, (json_int_t)timing->length, "ms", t->median_us / 1000, "spread_pct",
                     t->median_us > 0 ? 100 * t->spread_us / t->median_us : 0, "tokens_per_s",
                     timing->tokens_per_s, "n_samples", t->n_samples, "steady", t->steady,
                     "samples_ms", samples);
}

/* All points: how steady they were, and their raw result. */
#include "probe/probe_internal.h"

#include <stdlib.h>

static void widen_clocks(gac_contract_noise *out, const probe_point *point)
{
    if (point->clock_mhz_min > 0 &&
        (out->clock_mhz_min < 0 || point->clock_mhz_min < out->clock_mhz_min))
        out->clock_mhz_min = point->clock_mhz_min;
    if (point->clock_mhz_max > out->clock_mhz_max)
        out->clock_mhz_max = point->clock_mhz_max;
    if (point->temperature_c_max > out->temperature_c_max)
        out->temperature_c_max = point->temperature_c_max;
}

gac_status probe_noise(const probe *p, gac_contract_noise *out)
{
    size_t n = 0;
    double *noise_pct = calloc((size_t)p->n_points + 1, sizeof *noise_pct);
    if (!noise_pct)
        return gac_error_no_memory(p->err);
    *out = (gac_contract_noise){ .floor_pct = probe_round(p->floor_pct),
                                 .drift_pct = probe_round(p->drift_pct),
                                 .n_no_memory = p->n_no_memory,
                                 .n_throttled = p->n_throttled,
                                 .clock_mhz_min = -1,
                                 .clock_mhz_max = -1,
                                 .temperature_c_max = -1,
                                 .seconds = probe_round(gac_now_s() - p->start_s),
                                 .copy_bytes_per_s = probe_round(p->copy_bytes_per_s) };
    for (int32_t i = 0; i < p->n_points; i++) {
        const probe_point *point = &p->points[i];
        out->n_samples += point->n_samples;
        out->n_discarded += point->n_discarded;
        out->n_unsettled += point->n_unsettled;
        out->n_power_limited += point->n_power_limited;
        if (point->outcome != PROBE_MEASURED || point->fallback)
            continue;
        noise_pct[n++] = 100 * point->noise;
        widen_clocks(out, point);
    }
    qsort(noise_pct, n, sizeof *noise_pct, probe_by_value);
    out->n_points = (int64_t)n;
    out->median_pct = probe_round(n ? noise_pct[n / 2] : 0);
    out->p95_pct = probe_round(n ? noise_pct[n * 95 / 100] : 0);
    free(noise_pct);
    return GAC_OK;
}

json_t *probe_spec_json(const gac_task_spec *spec)
{
    static const char *const paths[] = { "library", "math", "flash", "padded" };
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    if (spec->kind == GAC_TASK_GEMM)
        return json_pack("{s:s, s:s, s:I, s:I, s:I}", "op", "gemm", "dtype",
                         gac_dtype_name(spec->dtype), "m", (json_int_t)spec->gemm.m, "n",
                         (json_int_t)spec->gemm.n, "k", (json_int_t)spec->gemm.k);
    if (spec->kind == GAC_TASK_COPY)
        return json_pack("{s:s, s:I}", "op", "copy", "bytes", (json_int_t)spec->copy_bytes);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "op", "sdpa",
                     "dtype", gac_dtype_name(spec->dtype), "path", paths[spec->sdpa.path], "batch",
                     (json_int_t)s->batch, "n_q_heads", (json_int_t)s->n_q_heads, "n_kv_heads",
                     (json_int_t)s->n_kv_heads, "n_q", (json_int_t)s->n_q, "n_kv",
                     (json_int_t)s->n_kv, "qk_head", (json_int_t)s->qk_head, "v_head",
                     (json_int_t)s->v_head, "causal", s->causal);
}

/* How a point was measured. */
static json_t *samples_json(const probe_point *point)
{
    json_t *samples = json_array();
    for (int i = 0; point->samples_us && i < point->n_samples; i++)
        json_array_append_new(samples, json_real(probe_round((double)point->samples_us[i])));
    return json_pack("{s:f, s:i, s:i, s:i, s:i, s:b, s:[i, i], s:o}", "spread_us",
                     probe_round(point->spread_us), "n_discarded", point->n_discarded,
                     "n_unsettled", point->n_unsettled, "n_power_limited", point->n_power_limited,
                     "n_calls", point->n_calls, "graph", point->graph, "clock_mhz",
                     point->clock_mhz_min, point->clock_mhz_max, "samples_us", samples);
}

static json_t *point_json(const probe_point *point)
{
    static const char *const outcomes[] = { "measured", "declined", "no memory", "throttled" };
    json_t *json = probe_spec_json(&point->spec);
    json_object_set_new(json, "phase", json_string(point->phase));
    if (point->group > 0)
        json_object_set_new(json, "group", json_integer(point->group));
    if (point->fallback)
        json_object_set_new(json, "path", json_string("fallback"));
    if (point->kernel)
        json_object_set_new(json, "kernel", json_string(point->kernel));
    if (point->outcome != PROBE_MEASURED) {
        json_object_set_new(json, "outcome", json_string(outcomes[point->outcome]));
        json_object_set_new(json, "n_discarded", json_integer(point->n_discarded));
        return json;
    }
    json_object_set_new(json, "median_us", json_real(probe_round(point->time_us)));
    if (!point->fallback)
        json_object_update_new(json, samples_json(point));
    return json;
}

json_t *probe_raw_json(const probe *p)
{
    json_t *points = json_array();
    for (int32_t i = 0; i < p->n_points; i++)
        json_array_append_new(points, point_json(&p->points[i]));
    return json_pack("{s:s, s:o, s:I, s:{s:O}, s:O, s:o}", "schema", "gac.probe-raw/1", "machine",
                     gac_timing_machine(p->device), "seed", (json_int_t)p->options->seed, "noise",
                     "phase_seconds", p->seconds, "kernels", p->kernels, "points", points);
}

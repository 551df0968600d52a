/* All points: how steady they were, and their raw result. */
#include "probe/probe_internal.h"

#include <stdlib.h>

static void count_timing(gac_contract_noise *noise, const gac_timing *timing)
{
    noise->n_samples += timing->n_samples;
    noise->n_discarded += timing->n_discarded;
    noise->n_unsettled += timing->n_unsettled;
    noise->n_power_limited += timing->n_power_limited;
    if (timing->n_samples == 0)
        return;
    if (timing->clock_mhz_min > 0 &&
        (noise->clock_mhz_min < 0 || timing->clock_mhz_min < noise->clock_mhz_min))
        noise->clock_mhz_min = timing->clock_mhz_min;
    if (timing->clock_mhz_max > noise->clock_mhz_max)
        noise->clock_mhz_max = timing->clock_mhz_max;
    if (timing->temperature_c_max > noise->temperature_c_max)
        noise->temperature_c_max = timing->temperature_c_max;
}

void probe_sum_up_noise(probe *p)
{
    int32_t n = p->n_noise;
    if (n > 0)
        qsort(p->noise_pct, (size_t)n, sizeof *p->noise_pct, gac_by_value);
    p->noise.n_points = n;
    p->noise.median_pct = gac_four_digits(n ? p->noise_pct[n / 2] : 0);
    p->noise.p95_pct = gac_four_digits(n ? p->noise_pct[(int64_t)n * 95 / 100] : 0);
    p->noise.seconds = gac_four_digits(gac_now_s() - p->start_s);
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

static json_t *point_json(const probe *p, const probe_point *point, const gac_timing *timing)
{
    static const char *const outcomes[] = { "measured", "declined", "no memory", "throttled" };
    json_t *json = probe_spec_json(&point->spec);
    json_object_set_new(json, "phase", json_string(p->phase));
    if (p->group > 0)
        json_object_set_new(json, "group", json_integer(p->group));
    if (point->fallback)
        json_object_set_new(json, "path", json_string("fallback"));
    if (point->kernel)
        json_object_set_new(json, "kernel", json_string(point->kernel));
    if (point->outcome != PROBE_MEASURED)
        json_object_set_new(json, "outcome", json_string(outcomes[point->outcome]));
    else if (timing)
        json_object_update_new(json, gac_timing_json(timing, true));
    else
        json_object_set_new(json, "median_us", json_real(point->time_us));
    return json;
}

gac_status probe_keep(probe *p, const probe_point *point, const gac_timing *timing)
{
    p->n_points++;
    if (timing)
        count_timing(&p->noise, timing);
    if (p->raw)
        json_array_append_new(p->raw, point_json(p, point, timing));
    if (point->outcome != PROBE_MEASURED || point->fallback)
        return GAC_OK;
    if (!gac_grow((void **)&p->noise_pct, p->n_noise, &p->noise_capacity, sizeof *p->noise_pct))
        return gac_error_no_memory(p->err);
    p->noise_pct[p->n_noise++] = 100 * point->noise;
    return GAC_OK;
}

json_t *probe_raw_json(const probe *p)
{
    return json_pack("{s:s, s:o, s:I, s:{s:O}, s:O, s:O}", "schema", "gac.probe-raw/1", "machine",
                     gac_timing_machine(p->device), "seed", (json_int_t)p->options->seed, "noise",
                     "phase_seconds", p->seconds, "kernels", p->kernels, "points", p->raw);
}

/* What was measured, as JSON, and JSON as text. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *probe_number(double value)
{
    if (!isfinite(value))
        return json_null();
    double scale = value == 0 ? 1 : pow(10, 3 - floor(log10(fabs(value))));
    double rounded = round(value * scale) / scale;
    if (fabs(rounded) < 1e9 && rounded == floor(rounded))
        return json_integer((json_int_t)rounded);
    return json_real(rounded);
}

json_t *probe_noise_json(const probe *p)
{
    size_t n = 0;
    json_int_t n_samples = 0, n_discarded = 0, n_unsettled = 0, n_power = 0;
    int clock_min = -1, clock_max = -1, hottest = -1;
    double *noise = calloc(p->n_points + 1, sizeof *noise);
    for (size_t i = 0; i < p->n_points; i++) {
        const probe_point *point = &p->points[i];
        n_samples += point->n_samples;
        n_discarded += point->n_discarded;
        n_unsettled += point->n_unsettled;
        n_power += point->n_power_limited;
        if (point->outcome != PROBE_MEASURED || point->fallback)
            continue;
        if (noise)
            noise[n++] = 100 * point->noise;
        if (point->clock_mhz_min > 0 && (clock_min < 0 || point->clock_mhz_min < clock_min))
            clock_min = point->clock_mhz_min;
        clock_max = point->clock_mhz_max > clock_max ? point->clock_mhz_max : clock_max;
        hottest = point->temperature_c_max > hottest ? point->temperature_c_max : hottest;
    }
    if (noise)
        qsort(noise, n, sizeof *noise, probe_by_value);
    json_t *json = json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:o, s:O}",
                             "median_pct", probe_number(n ? noise[n / 2] : 0), "p95_pct",
                             probe_number(n ? noise[n * 95 / 100] : 0), "n_points", (json_int_t)n,
                             "n_samples", n_samples, "n_discarded", n_discarded, "n_unsettled",
                             n_unsettled, "n_power_limited", n_power, "clock_mhz_min", clock_min,
                             "clock_mhz_max", clock_max, "temperature_c_max", hottest, "seconds",
                             probe_number(gac_now_s() - p->start_s), "phase_seconds", p->seconds);
    json_object_set_new(json, "floor_pct", probe_number(p->floor_pct));
    json_object_set_new(json, "drift_pct", probe_number(p->drift_pct));
    json_object_set_new(json, "copy_bytes_per_s", probe_number(p->copy_bytes_per_s));
    json_object_set_new(json, "n_no_memory", json_integer(p->n_no_memory));
    json_object_set_new(json, "n_throttled", json_integer(p->n_throttled));
    free(noise);
    return json;
}

json_t *probe_spec_json(const probe_point *point)
{
    static const char *const paths[] = { "library", "math", "flash", "padded" };
    const gac_task_spec *spec = &point->spec;
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    if (spec->kind == GAC_TASK_GEMM)
        return json_pack("{s:s, s:s, s:I, s:I, s:I}", "op", "gemm", "dtype",
                         gac_dtype_name(spec->dtype), "m", (json_int_t)spec->gemm.m, "n",
                         (json_int_t)spec->gemm.n, "k", (json_int_t)spec->gemm.k);
    if (spec->kind == GAC_TASK_COPY)
        return json_pack("{s:s, s:I}", "op", "copy", "bytes", (json_int_t)spec->copy_bytes);
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "op", "sdpa", "dtype",
        gac_dtype_name(spec->dtype), "path", point->fallback ? "fallback" : paths[spec->sdpa.path],
        "batch", (json_int_t)s->batch, "n_q_heads", (json_int_t)s->n_q_heads, "n_kv_heads",
        (json_int_t)s->n_kv_heads, "n_q", (json_int_t)s->n_q, "n_kv", (json_int_t)s->n_kv,
        "qk_head", (json_int_t)s->qk_head, "v_head", (json_int_t)s->v_head, "causal", s->causal);
}

static json_t *point_json(const probe_point *point)
{
    static const char *const outcomes[] = { "measured", "declined", "no memory", "throttled" };
    json_t *json = probe_spec_json(point);
    json_object_set_new(json, "phase", json_string(point->phase));
    if (point->group > 0)
        json_object_set_new(json, "group", json_integer(point->group));
    if (point->outcome != PROBE_MEASURED) {
        json_object_set_new(json, "outcome", json_string(outcomes[point->outcome]));
        json_object_set_new(json, "n_discarded", json_integer(point->n_discarded));
        return json;
    }
    json_object_set_new(json, "median_us", probe_number(point->time_us));
    if (point->kernel)
        json_object_set_new(json, "kernel", json_string(point->kernel));
    if (point->fallback)
        return json;
    json_object_set_new(json, "spread_us", probe_number(point->spread_us));
    json_object_set_new(json, "n_discarded", json_integer(point->n_discarded));
    if (point->n_unsettled > 0)
        json_object_set_new(json, "n_unsettled", json_integer(point->n_unsettled));
    json_object_set_new(json, "n_power_limited", json_integer(point->n_power_limited));
    json_object_set_new(json, "n_calls", json_integer(point->n_calls));
    json_object_set_new(json, "graph", json_boolean(point->graph));
    json_object_set_new(json, "clock_mhz",
                        json_pack("[i, i]", point->clock_mhz_min, point->clock_mhz_max));
    json_t *samples = json_array();
    for (int i = 0; point->samples_us && i < point->n_samples; i++)
        json_array_append_new(samples, probe_number((double)point->samples_us[i]));
    json_object_set_new(json, "samples_us", samples);
    return json;
}

json_t *probe_raw_json(const probe *p)
{
    json_t *raw = json_object(), *points = json_array();
    json_object_set_new(raw, "schema", json_string("gac.probe-raw/1"));
    json_object_set_new(raw, "machine", gac_timing_machine(p->device));
    json_object_set_new(raw, "seed", json_integer((json_int_t)p->options->seed));
    json_object_set_new(raw, "noise", probe_noise_json(p));
    for (size_t i = 0; i < p->n_points; i++)
        json_array_append_new(points, point_json(&p->points[i]));
    json_object_set(raw, "kernels", p->kernels);
    json_object_set_new(raw, "points", points);
    return raw;
}

/* Text of one value: on one line if it is short, else objects member by member,
 * lists of plain values in lines, other lists entry by entry. */
typedef struct printer {
    FILE *stream;
    bool failed;
} printer;

/* An entry of a list, a measured point say, may fill a longer line. */
enum { WIDTH = 100, ENTRY_WIDTH = 480, FLAGS = JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) };

static char *one_line(printer *out, const json_t *value)
{
    char *text = NULL;
    size_t flags = FLAGS | (json_is_array(value) ? JSON_COMPACT : 0);
    out->failed = gac_json_text(value, flags, &text, NULL, NULL) != GAC_OK || out->failed;
    return text;
}

static void new_line(printer *out, int depth)
{
    fprintf(out->stream, "\n%*s", depth, "");
}

static void print_value(printer *out, const json_t *value, int depth);

static void print_object(printer *out, const json_t *object, int depth)
{
    const char *key;
    json_t *value;
    bool first = true;
    fputc('{', out->stream);
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        json_t *name = json_string(key);
        char *text = one_line(out, name);
        fputs(first ? "" : ",", out->stream);
        new_line(out, depth + 1);
        fprintf(out->stream, "%s: ", text ? text : "");
        print_value(out, value, depth + 1);
        first = false;
        free(text);
        json_decref(name);
    }
    new_line(out, depth);
    fputc('}', out->stream);
}

static void print_array(printer *out, const json_t *array, int depth)
{
    size_t column = 0;
    fputc('[', out->stream);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        bool plain = !json_is_object(value) && !json_is_string(value);
        char *text = one_line(out, value);
        size_t length = text ? strlen(text) : 0;
        bool wraps = i == 0 || !plain || column + length + 1 > WIDTH;
        fputs(i > 0 ? "," : "", out->stream);
        if (wraps) {
            new_line(out, depth + 1);
            column = (size_t)depth + 1;
        }
        if (plain || length <= ENTRY_WIDTH)
            fputs(text ? text : "", out->stream);
        else
            print_value(out, value, depth + 1);
        column += length + 1;
        free(text);
    }
    new_line(out, depth);
    fputc(']', out->stream);
}

static void print_value(printer *out, const json_t *value, int depth)
{
    char *text = one_line(out, value);
    bool is_short = text && strlen(text) + (size_t)depth <= WIDTH;
    if (is_short || !(json_is_object(value) || json_is_array(value)))
        fputs(text ? text : "", out->stream);
    else if (json_is_object(value))
        print_object(out, value, depth);
    else
        print_array(out, value, depth);
    free(text);
}

char *gac_probe_text(const struct json_t *value)
{
    char *text = NULL;
    size_t size = 0;
    printer out = { .stream = open_memstream(&text, &size) };
    if (!out.stream)
        return NULL;
    print_value(&out, value, 0);
    fputc('\n', out.stream);
    if (fclose(out.stream) != 0 || out.failed) {
        free(text);
        return NULL;
    }
    return text;
}

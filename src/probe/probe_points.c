/* Measuring one point: its time, its server, its kernel. */
#include "probe/probe_internal.h"

#include "base/json_parse.h"
#include "base/splitmix.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIN_FAULTS 20 /* points may be lost, and a tenth of all, before the probe gives up */
#define MAX_FLASH 256 /* the math path is faster than the own flash kernel for larger heads */

double probe_left_s(const probe *p)
{
    return p->end_s - gac_now_s();
}

void probe_grant_rest(probe *p)
{
    p->rest_left_s = p->options->max_time_s / 10;
}

gac_status probe_start(probe *p, gac_device *device, const gac_probe_options *options,
                       bool keep_raw, gac_error *err)
{
    const gac_timing_rules rules = GAC_TIMING_RULES_SWEEP_INIT;
    *p = (probe){ .device = device, .options = options, .err = err, .rules = rules };
    if (options->quick)
        p->rules.settle_us = 0;
    p->phase = "";
    p->random = options->seed;
    p->start_s = gac_now_s();
    p->end_s = p->start_s + options->max_time_s;
    p->rest_left_s = INFINITY;
    p->seconds = json_object();
    p->kernels = json_array();
    p->raw = keep_raw ? json_array() : NULL;
    p->noise.clock_mhz_min = p->noise.clock_mhz_max = p->noise.temperature_c_max = -1;
    return p->seconds && p->kernels && (p->raw || !keep_raw) ? GAC_OK : gac_error_no_memory(err);
}

void probe_dispose(probe *p)
{
    free(p->noise_pct);
    json_decref(p->raw);
    json_decref(p->seconds);
    json_decref(p->kernels);
    gac_arena_free(&p->arena);
}

void *probe_alloc(probe *p, size_t n, size_t element_bytes)
{
    uint64_t n_bytes;
    return gac_mul_u64(n, element_bytes, &n_bytes) ? gac_arena_alloc(&p->arena, n_bytes) : NULL;
}

static bool is_time(double value)
{
    return value >= 0 && isfinite(value);
}

gac_status probe_check_options(const gac_probe_options *options, gac_error *err)
{
    const gac_runtime *r = options->runtime;
    if (options->n_dtypes < 1 || options->n_dtypes > GAC_PROBE_MAX_DTYPES || !options->dtypes)
        return gac_error_set(err, GAC_USAGE, "a probe takes 1 to %d dtypes", GAC_PROBE_MAX_DTYPES);
    for (int i = 0; i < options->n_dtypes; i++)
        if ((int)options->dtypes[i] < 0 || options->dtypes[i] >= GAC_DTYPE_COUNT)
            return gac_error_set(err, GAC_USAGE, "a probe takes no such dtype");
    if (!(options->max_time_s > 0))
        return gac_error_set(err, GAC_USAGE, "the time of a probe must be above 0");
    if (r && (!r->name || !r->basis || !is_time(r->layer_us) || !is_time(r->decode_layer_us) ||
              !is_time(r->hidden_ps) || !is_time(r->width_ps) || !is_time(r->kv_ps)))
        return gac_error_set(err, GAC_USAGE, "the runtime lacks a name, a basis or a time");
    return GAC_OK;
}

void probe_begin(probe *p, const char *phase, const char *dtype, size_t n_points)
{
    p->phase = phase;
    p->phase_start_s = gac_now_s();
    p->phase_first = p->n_points;
    gac_log_write(p->options->log, 1, "%s%s%s: %zu points", dtype, *dtype ? " " : "", phase,
                  n_points);
    gac_progress_start(p->options->progress, phase, "points", n_points);
}

void probe_step(probe *p, size_t n_done)
{
    gac_progress_step(p->options->progress, n_done);
}

void probe_finish(probe *p)
{
    double spent = json_number_value(json_object_get(p->seconds, p->phase));
    gac_progress_finish(p->options->progress);
    spent += gac_now_s() - p->phase_start_s;
    json_object_set_new(p->seconds, p->phase, json_real(gac_four_digits(spent)));
}

void probe_note(probe *p, const char *format, ...)
{
    va_list args;
    char text[500];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    gac_log_write(p->options->log, 1, "%s", text);
    for (int i = 0; i < p->n_sources; i++)
        if (strcmp(p->sources[i], text) == 0)
            return;
    const char *kept = gac_arena_strdup(&p->arena, text);
    if (!kept)
        gac_memory_lost();
    else if (p->n_sources < PROBE_MAX_SOURCES)
        p->sources[p->n_sources++] = kept;
}

const char *probe_today(char out[16])
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(out, 16, "%Y-%m-%d", gmtime_r(&now, &utc));
    return out;
}

/* Counts a point that was lost. A few of them leave gaps; many are a failure. */
static gac_status count_fault(probe *p, probe_outcome outcome, const gac_error *why)
{
    int64_t *n = outcome == PROBE_NO_MEMORY ? &p->noise.n_no_memory : &p->noise.n_throttled;
    ++*n;
    if (*n < MIN_FAULTS || *n * 10 < p->n_points)
        return GAC_OK;
    return gac_error_set(p->err, outcome == PROBE_NO_MEMORY ? GAC_NO_RESOURCE : GAC_FAILED,
                         "%lld of %d points could not be measured: %s", (long long)*n,
                         p->n_points + 1, why->text);
}

static void spend_rest(probe *p, double rested_s)
{
    bool had = p->rest_left_s > 0;
    p->rest_left_s -= rested_s;
    if (had && p->rest_left_s <= 0)
        probe_note(p, "the clock was often below its highest: it was not waited for all the time");
}

gac_status probe_measure(probe *p, const gac_task_spec *spec, probe_point *out)
{
    gac_task *task = NULL;
    gac_timing timing;
    gac_error why = GAC_ERROR_INIT;
    memset(&timing, 0, sizeof timing);
    *out = (probe_point){ .spec = *spec, .time_us = NAN };
    gac_status status = gac_task_create(p->device, spec, &task, &why);
    if (status == GAC_CHECK) {
        out->outcome = PROBE_DECLINED;
        return probe_keep(p, out, NULL);
    }
    if (status == GAC_OK) {
        gac_timing_rules rules = p->rules;
        if (p->rest_left_s <= 0)
            rules.settle_us = 0;
        status = gac_timing_measure(p->device, task, &rules, &timing, &why);
        spend_rest(p, timing.rested_us * 1e-6);
        out->outcome = status == GAC_CHECK ? PROBE_THROTTLED : PROBE_MEASURED;
    }
    gac_task_free(task);
    if (status == GAC_NO_RESOURCE)
        out->outcome = PROBE_NO_MEMORY;
    else if (status != GAC_OK && status != GAC_CHECK)
        return gac_error_set(p->err, status, "%s", why.text);
    if (out->outcome == PROBE_MEASURED) {
        out->time_us = timing.median_us;
        out->noise = timing.noise;
    } else if ((status = count_fault(p, out->outcome, &why)) != GAC_OK) {
        return status;
    }
    return probe_keep(p, out, &timing);
}

/* One call by own kernels: the flash kernel, or the math path where that is faster or the
 * flash kernel declines. */
static gac_status measure_own(probe *p, const gac_task_spec *spec, probe_point *out)
{
    gac_task_spec own = *spec;
    own.sdpa.path = spec->sdpa.shape.qk_head > MAX_FLASH ? GAC_SDPA_MATH : GAC_SDPA_FLASH;
    gac_status status = probe_measure(p, &own, out);
    if (status != GAC_OK || out->outcome != PROBE_DECLINED)
        return status;
    own.sdpa.path = GAC_SDPA_MATH;
    return probe_measure(p, &own, out);
}

/* A point that the fallback served. */
static gac_status keep_served(probe *p, const gac_task_spec *spec, const gac_probe_served *served,
                              probe_point *out)
{
    char kernel[256];
    bool measured = isfinite(served->time_us) && served->time_us > 0;
    *out = (probe_point){ .spec = *spec,
                          .outcome = measured ? PROBE_MEASURED : PROBE_DECLINED,
                          .time_us = measured ? served->time_us : NAN,
                          .fallback = measured };
    gac_kernel_short_name(served->kernel, kernel, sizeof kernel);
    if (measured && kernel[0] && !(out->kernel = gac_arena_strdup(&p->arena, kernel)))
        return gac_error_no_memory(p->err);
    return probe_keep(p, out, NULL);
}

/* Asks the fallback for those of the specs that todo lists. */
static gac_status ask_fallback(probe *p, const gac_task_spec *specs, const int *todo, int n_todo,
                               bool names, probe_point *out)
{
    gac_task_spec *asked = probe_alloc(p, (size_t)n_todo, sizeof *asked);
    gac_probe_served *served = probe_alloc(p, (size_t)n_todo, sizeof *served);
    if (!asked || !served)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n_todo; i++) {
        asked[i] = specs[todo[i]];
        served[i].time_us = NAN;
    }
    gac_status status = p->options->fallback(p->options->fallback_context, asked, n_todo, names,
                                             served, p->stack, p->err);
    for (int i = 0; i < n_todo && status == GAC_OK; i++)
        status = keep_served(p, &asked[i], &served[i], &out[todo[i]]);
    return status;
}

gac_status probe_measure_sdpa(probe *p, const gac_task_spec *specs, int n, bool library, bool names,
                              probe_point *out)
{
    int n_todo = 0;
    gac_status status = GAC_OK;
    int *todo = probe_alloc(p, (size_t)n, sizeof *todo);
    if (!todo)
        return gac_error_no_memory(p->err);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        if (library) {
            double start_s = gac_now_s();
            status = probe_measure(p, &specs[i], &out[i]);
            p->library_s += gac_now_s() - start_s;
            p->n_library++;
        }
        if (!library || out[i].outcome == PROBE_DECLINED)
            todo[n_todo++] = i;
        probe_step(p, (size_t)(p->n_points - p->phase_first));
    }
    if (status == GAC_OK && n_todo > 0 && p->options->fallback)
        status = ask_fallback(p, specs, todo, n_todo, names, out);
    for (int i = 0; i < n_todo && status == GAC_OK && !p->options->fallback; i++) {
        status = measure_own(p, &specs[todo[i]], &out[todo[i]]);
        probe_step(p, (size_t)(p->n_points - p->phase_first));
    }
    return status;
}

gac_task_spec probe_gemm_spec(gac_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    gac_task_spec spec = { .kind = GAC_TASK_GEMM, .dtype = dtype, .gemm = { m, n, k, false } };
    return spec;
}

gac_task_spec probe_sdpa_spec(gac_dtype dtype, const gac_sdpa_shape *shape)
{
    gac_task_spec spec = { .kind = GAC_TASK_SDPA, .dtype = dtype };
    spec.sdpa.shape = *shape;
    spec.sdpa.path = GAC_SDPA_LIBRARY;
    return spec;
}

/* The same shapes on every machine for the same seed. */
uint64_t probe_random(probe *p)
{
    return gac_splitmix64(&p->random);
}

double probe_uniform(probe *p, double low, double high)
{
    return low + (high - low) * (double)(probe_random(p) >> 11) * 0x1p-53;
}

gac_status probe_kernel(probe *p, const gac_task_spec *spec, char *name, size_t size)
{
    enum { MAX_KERNELS = 16 };
    gac_kernel kernels[MAX_KERNELS];
    gac_task *task = NULL;
    gac_error why = GAC_ERROR_INIT;
    int n = 0, longest = -1;
    name[0] = 0;
    gac_status status = gac_task_create(p->device, spec, &task, &why);
    if (status == GAC_OK)
        status = gac_task_kernels(task, kernels, MAX_KERNELS, &n, &why);
    for (int i = 0; status == GAC_OK && i < n && i < MAX_KERNELS; i++)
        if (longest < 0 || kernels[i].time_us > kernels[longest].time_us)
            longest = i;
    if (longest >= 0)
        gac_kernel_short_name(kernels[longest].name, name, size);
    if (name[0]) {
        json_t *row = probe_spec_json(spec);
        json_object_set_new(row, "kernel", json_string(name));
        json_object_set_new(row, "n_kernels", json_integer(n));
        json_array_append_new(p->kernels, row);
    }
    gac_task_free(task);
    if (status == GAC_CHECK || status == GAC_NO_RESOURCE)
        return GAC_OK;
    return status == GAC_OK ? GAC_OK : gac_error_set(p->err, status, "%s", why.text);
}

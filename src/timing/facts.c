#include <gac/timing.h>

#include <jansson.h>
#include <sys/utsname.h>
#include <unistd.h>

struct json_t *gac_timing_json(const gac_timing *timing, bool with_samples)
{
    json_t *json = json_pack(
        "{s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:i, s:i}", "median_us",
        timing->median_us, "spread_us", timing->spread_us, "noise", timing->noise, "n_samples",
        timing->n_samples, "n_discarded", timing->n_discarded, "n_unsettled", timing->n_unsettled,
        "n_power_limited", timing->n_power_limited, "n_calls", timing->n_calls, "graph",
        timing->graph, "steady", timing->steady, "clock_mhz_min", timing->clock_mhz_min,
        "clock_mhz_max", timing->clock_mhz_max, "temperature_c_max", timing->temperature_c_max);
    if (!json || !with_samples)
        return json;
    json_t *samples = json_array();
    for (int i = 0; samples && i < timing->n_samples; i++) {
        if (json_array_append_new(samples, json_real(timing->samples_us[i])) != 0) {
            json_decref(samples);
            samples = NULL;
        }
    }
    if (json_object_set_new(json, "samples_us", samples) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

struct json_t *gac_timing_machine(const gac_device *device)
{
    const gac_device_info *info = gac_device_describe(device);
    struct utsname uts;
    if (uname(&uts) != 0)
        return NULL;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:{s:s, s:s, s:s, s:I}}", "gpu",
        info->name, "arch", info->arch, "driver", info->driver, "cuda", info->runtime, "cublas",
        info->blas, "cudnn", info->dnn, "sms", (json_int_t)info->n_units, "l2_bytes",
        (json_int_t)info->l2_bytes, "memory_bytes", (json_int_t)info->memory_bytes, "max_clock_mhz",
        (json_int_t)info->max_clock_mhz, "host", "system", uts.sysname, "release", uts.release,
        "arch", uts.machine, "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN));
}

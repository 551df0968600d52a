/* For claims that compare two calls: do the samples differ significantly, and
 * did the card run both at the same clock? */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

#define LEAST_DIFFERENCE 0.01
#define CLOCKS_APART 0.03
/* operations per byte; F16 reaches the peak at 295 on an H100, at 206 on an H200 */
#define COMPUTE_BOUND 300

/* Copies the samples of a job, divided by their median and multiplied by factor. */
static void take_samples(const exp_job *job, double factor, gac_timing *out)
{
    const json_t *samples = json_object_get(job->timing, "samples_us");
    size_t n = json_array_size(samples);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n && i < GAC_MAX_SAMPLES; i++)
        out->samples_us[out->n_samples++] =
            json_number_value(json_array_get(samples, i)) / job->time_us * factor;
    if (out->n_samples > 0)
        gac_timing_summarise(out);
}

static bool are_distinguishable(const exp_job *a, const exp_job *b, double ratio)
{
    gac_timing first, second;
    take_samples(a, ratio, &first);
    take_samples(b, 1, &second);
    return gac_timing_compare(&first, &second, LEAST_DIFFERENCE) != GAC_AMBIGUOUS;
}

/* Returns the middle of the clocks that were read, or NaN. */
static double clock_mhz(const exp_job *job)
{
    double min = json_number_value(json_object_get(job->timing, "clock_mhz_min"));
    double max = json_number_value(json_object_get(job->timing, "clock_mhz_max"));
    return min > 0 && max > 0 ? (min + max) / 2 : NAN;
}

void exp_compare(const exp_job *a, const exp_job *b, double ratio, exp_comparison *out)
{
    double a_mhz = clock_mhz(a), b_mhz = clock_mhz(b);
    bool compute = a->flops > COMPUTE_BOUND * a->bytes && b->flops > COMPUTE_BOUND * b->bytes;
    *out =
        (exp_comparison){ .distinguishable = are_distinguishable(a, b, ratio), .clock_ratio = 1 };
    if (compute && fmax(a_mhz, b_mhz) > (1 + CLOCKS_APART) * fmin(a_mhz, b_mhz)) {
        out->clock_ratio = a_mhz / b_mhz;
        snprintf(out->note, sizeof out->note, "; at unlike clocks: %.0f and %.0f MHz", a_mhz,
                 b_mhz);
    }
    size_t n = strlen(out->note);
    if (!out->distinguishable)
        snprintf(out->note + n, sizeof out->note - n, "; the samples do not tell them apart");
}

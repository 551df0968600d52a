/* Claims that compare two calls: whether their samples tell them apart, and
 * whether the card ran both at one speed. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_DIFFERENCE 0.01
#define CLOCKS_APART 0.03
#define COMPUTE_BOUND 300 /* operations per byte; an H100 needs 295 in F16, an H200 206 */

/* The samples of a job as parts of their median, times by. */
static void take_samples(const exp_job *job, double by, gac_timing *out)
{
    const json_t *samples = json_object_get(job->timing, "samples_us");
    size_t n = json_array_size(samples);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n && i < GAC_MAX_SAMPLES; i++)
        out->samples_us[out->n_samples++] =
            json_number_value(json_array_get(samples, i)) / job->time_us * by;
    if (out->n_samples > 0)
        gac_timing_summarise(out);
}

static bool tells_apart(const exp_job *a, const exp_job *b, double ratio)
{
    gac_timing *timings = calloc(2, sizeof *timings);
    if (!timings)
        return false;
    take_samples(a, ratio, &timings[0]);
    take_samples(b, 1, &timings[1]);
    bool apart = gac_timing_compare(&timings[0], &timings[1], LEAST_DIFFERENCE) != GAC_AMBIGUOUS;
    free(timings);
    return apart;
}

/* The middle of the clocks that were seen, or NaN. */
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
    *out = (exp_comparison){ .told_apart = tells_apart(a, b, ratio), .clock_ratio = 1 };
    if (compute && fmax(a_mhz, b_mhz) > (1 + CLOCKS_APART) * fmin(a_mhz, b_mhz)) {
        out->clock_ratio = a_mhz / b_mhz;
        snprintf(out->note, sizeof out->note, "; at unlike clocks: %.0f and %.0f MHz", a_mhz,
                 b_mhz);
    }
    size_t n = strlen(out->note);
    if (!out->told_apart)
        snprintf(out->note + n, sizeof out->note - n, "; the samples do not tell them apart");
}

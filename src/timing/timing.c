#include <gac/timing.h>

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/arguments.h"

#define BATCH_SAMPLES 5  /* samples between two readings of telemetry */
#define MAX_CALLS 10000  /* per sample; a captured graph has a node per call */
#define MAX_ATTEMPTS 4   /* to find n_calls */
#define MIN_CALL_US 1e-3 /* lower bound, for clocks that read 0 */
#define FULL_CLOCK 0.98  /* fraction of the highest clock */
#define REST_NS 25000000 /* how long a card below FULL_CLOCK rests */

typedef struct session {
    gac_device *device;
    gac_task *task;
    gac_timing_rules rules;
    gac_timing *out;
    double device_us;  /* time spent so far by the device's clock */
    int64_t start_ns;  /* the host's clock at the start */
    unsigned throttle; /* from the last reading */
    int clock_mhz;     /* from the last reading; -1: unknown */
    double settle_us;  /* time spent so far waiting for the highest clock */
    int rested_mhz;    /* highest clock seen while waiting */
    unsigned held_by;  /* throttle reasons seen while waiting */
    bool held_down;    /* waiting did not help: measure as it is */
} session;

/* Launches and telemetry take time too, so the host's clock counts as well. */
static double elapsed_us(const session *s)
{
    return fmax(s->device_us, 1e-3 * (double)(gac_now_ns() - s->start_ns));
}

static gac_status check_rules(const gac_timing_rules *rules, gac_error *err)
{
    if (rules->min_samples < 1 || rules->max_samples < rules->min_samples ||
        rules->max_samples > GAC_MAX_SAMPLES)
        return gac_error_set(err, GAC_USAGE, "timing rules: from %d to %d samples; at most %d",
                             rules->min_samples, rules->max_samples, GAC_MAX_SAMPLES);
    if (!(rules->warmup_us >= 0) || !(rules->sample_us >= 0) || !(rules->max_noise >= 0) ||
        !(rules->max_time_us >= 0) || !(rules->graph_below_us >= 0) || !(rules->settle_us >= 0))
        return gac_error_set(err, GAC_USAGE, "timing rules: a limit is negative or not a number");
    return GAC_OK;
}

static gac_status take_sample(session *s, double *time_us, gac_error *err)
{
    gac_status status = gac_task_time(s->task, &s->out->n_calls, s->out->graph, time_us, err);
    if (status != GAC_OK)
        return status;
    if (!(*time_us >= 0) || isinf(*time_us))
        return gac_error_set(err, GAC_FAILED, "the device's clock says %g us for a call", *time_us);
    *time_us = fmax(*time_us, MIN_CALL_US);
    s->device_us += *time_us * s->out->n_calls;
    return GAC_OK;
}

static int calls_for(double target_us, double call_us)
{
    return (int)fmax(1, fmin(MAX_CALLS, ceil(target_us / call_us)));
}

/* Finds n_calls and graph, then runs until the card is warm. The first call
 * shows whether calls are short. A graph makes short calls shorter still, so
 * n_calls is found by repeated trials. */
static gac_status warm_up(session *s, gac_error *err)
{
    double call_us;
    s->out->n_calls = 1;
    gac_status status = take_sample(s, &call_us, err);
    if (status != GAC_OK)
        return status;
    s->out->graph = call_us < s->rules.graph_below_us;
    for (int i = 0; status == GAC_OK && i < MAX_ATTEMPTS; i++) {
        int n_calls = calls_for(s->rules.sample_us, call_us);
        if (i > 0 && n_calls <= s->out->n_calls + s->out->n_calls / 10)
            break;
        s->out->n_calls = n_calls;
        status = take_sample(s, &call_us, err);
    }
    while (status == GAC_OK && elapsed_us(s) < s->rules.warmup_us)
        status = take_sample(s, &call_us, err);
    return status;
}

/* Reads the telemetry. A device without telemetry counts as not throttled. */
static gac_status look(session *s, gac_error *err)
{
    gac_telemetry now = { -1, -1, -1, -1, 0 };
    gac_status status = gac_device_telemetry(s->device, &now, err);
    if (status == GAC_CHECK) {
        if (err)
            *err = (gac_error)GAC_ERROR_INIT;
        return GAC_OK;
    }
    if (status != GAC_OK)
        return status;
    s->throttle = now.throttle;
    s->clock_mhz = now.clock_mhz;
    int highest = (int)gac_device_describe(s->device)->max_clock_mhz;
    /* Something that lowered the clock earlier no longer does. */
    if (now.clock_mhz > gac_device_rest_clock_mhz(s->device))
        gac_device_set_rest_clock(s->device, now.clock_mhz < highest ? now.clock_mhz : highest);
    if (s->settle_us > 0) {
        s->held_by |= now.throttle;
        s->rested_mhz = now.clock_mhz > s->rested_mhz ? now.clock_mhz : s->rested_mhz;
    }
    if (now.temperature_c > s->out->temperature_c_max)
        s->out->temperature_c_max = now.temperature_c;
    return GAC_OK;
}

/* Discards all samples. */
static void start_over(gac_timing *out)
{
    out->n_unsettled += out->n_samples;
    out->n_samples = out->n_power_limited = 0;
    out->clock_mhz_min = out->clock_mhz_max = -1;
}

/* Finds whether the card is below its highest clock and should rest. A few
 * milliseconds of hard work bring a card to its power limit and lower its clock
 * by up to a third; how far depends on earlier work. If the clock stays low
 * after settle_us of rest, the task is measured as it is. Later tasks then
 * accept that clock too, unless power was the reason. */
static bool is_below_clock(session *s)
{
    double full_mhz = FULL_CLOCK * (double)gac_device_rest_clock_mhz(s->device);
    if (s->held_down || s->rules.settle_us <= 0 || s->clock_mhz < 0 || s->clock_mhz >= full_mhz)
        return false;
    if (s->settle_us < s->rules.settle_us)
        return true;
    s->held_down = true;
    if (!(s->held_by & GAC_THROTTLE_POWER)) /* power recovers later */
        gac_device_set_rest_clock(s->device, s->rested_mhz);
    start_over(s->out);
    return false;
}

/* Discards the batch of n samples that began at start_ns, and lets the card
 * rest. This time does not count against the measurement's limit. */
static void rest(session *s, int n, int64_t start_ns)
{
    const struct timespec pause = { 0, REST_NS };
    nanosleep(&pause, NULL);
    int64_t lost_ns = gac_now_ns() - start_ns;
    s->settle_us += 1e-3 * (double)lost_ns;
    s->out->rested_us = s->settle_us;
    s->start_ns += lost_ns;
    s->out->n_unsettled += n;
}

static void keep_batch(session *s, const double *batch, int n)
{
    gac_timing *out = s->out;
    memcpy(out->samples_us + out->n_samples, batch, (size_t)n * sizeof *batch);
    out->n_samples += n;
    if (s->clock_mhz >= 0 && (out->clock_mhz_min < 0 || s->clock_mhz < out->clock_mhz_min))
        out->clock_mhz_min = s->clock_mhz;
    if (s->clock_mhz > out->clock_mhz_max)
        out->clock_mhz_max = s->clock_mhz;
    gac_timing_summarise(out);
}

/* Takes a batch of samples. It is discarded if heat or the hardware throttled
 * the card before or after it, or if the clock was too low. After a low clock,
 * batches have a single sample. */
static gac_status take_batch(session *s, gac_error *err)
{
    gac_timing *out = s->out;
    double batch[BATCH_SAMPLES];
    int room = s->rules.max_samples - out->n_samples;
    int whole = s->rules.min_samples < BATCH_SAMPLES ? s->rules.min_samples : BATCH_SAMPLES;
    /* A longer batch may lower the clock again. */
    int most = s->settle_us > 0 && !s->held_down ? 1 : whole;
    int n = room < most ? room : most;
    unsigned before = s->throttle;
    double before_us = s->device_us;
    int64_t start_ns = gac_now_ns();
    for (int i = 0; i < n; i++) {
        gac_status status = take_sample(s, &batch[i], err);
        if (status != GAC_OK)
            return status;
    }
    gac_status status = look(s, err);
    if (status != GAC_OK)
        return status;
    unsigned seen = before | s->throttle;
    if (seen & (GAC_THROTTLE_THERMAL | GAC_THROTTLE_HARDWARE)) {
        out->n_discarded += n;
        return GAC_OK;
    }
    if (is_below_clock(s)) {
        s->device_us = before_us;
        rest(s, n, start_ns);
        return GAC_OK;
    }
    if (seen & GAC_THROTTLE_POWER)
        out->n_power_limited += n;
    keep_batch(s, batch, n);
    return GAC_OK;
}

/* The measurement ends with enough samples that agree, with max_samples, or
 * when the time is up. A throttled card gets max_samples attempts. */
static bool is_done(session *s)
{
    const gac_timing_rules *rules = &s->rules;
    gac_timing *out = s->out;
    if (out->n_discarded >= rules->max_samples)
        return true;
    if (out->n_samples < rules->min_samples)
        return false;
    out->steady = out->noise <= rules->max_noise;
    return out->steady || out->n_samples >= rules->max_samples ||
           elapsed_us(s) >= rules->max_time_us;
}

gac_status gac_timing_measure(gac_device *device, gac_task *task, const gac_timing_rules *rules,
                              gac_timing *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, device, task, out);
    static const gac_timing_rules usual = GAC_TIMING_RULES_INIT;
    session s = {
        .device = device, .task = task, .rules = rules ? *rules : usual, .out = out, .clock_mhz = -1
    };
    memset(out, 0, sizeof *out);
    out->clock_mhz_min = out->clock_mhz_max = out->temperature_c_max = -1;
    gac_status status = check_rules(&s.rules, err);
    if (status != GAC_OK)
        return status;
    s.start_ns = gac_now_ns();
    status = warm_up(&s, err);
    s.device_us = 0;
    s.start_ns = gac_now_ns();
    if (status == GAC_OK)
        status = look(&s, err);
    while (status == GAC_OK && !is_done(&s))
        status = take_batch(&s, err);
    if (status == GAC_OK && out->n_samples == 0)
        return gac_error_set(err, GAC_CHECK,
                             "all %d samples were taken while heat or hardware throttled the card",
                             out->n_discarded);
    return status;
}

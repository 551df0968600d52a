/* timing: how long a call takes.
 *
 * Takes samples of a task until they agree and keeps them. Samples that were
 * throttled are discarded and counted. Names the kernels that ran, and the
 * machine. What is timed, and why, is not known here.
 *
 * One device and its tasks are used by one thread at a time. */
#ifndef GAC_TIMING_H
#define GAC_TIMING_H

#include <gac/base.h>
#include <gac/device.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Statistics. */

#define GAC_MAX_SAMPLES 256

/* Samples of one task, in microseconds per call. */
typedef struct gac_timing {
    int n_samples;
    double samples_us[GAC_MAX_SAMPLES]; /* in the order taken, without the discarded */
    double median_us;
    double spread_us;    /* half the distance from the 25th to the 75th percentile */
    double noise;        /* standard error of the median over the median, estimated from spread */
    int n_discarded;     /* throttled by heat or hardware */
    int n_unsettled;     /* discarded too: below the card's highest clock */
    double rested_us;    /* the time that took */
    int n_power_limited; /* kept, but the card was at its power limit */
    int n_calls;         /* calls per sample */
    bool graph;          /* replayed, not launched one by one */
    bool steady;         /* noise fell under the rule's before a limit was met */
    int clock_mhz_min, clock_mhz_max; /* of the samples kept, once in five; -1 unknown */
    int temperature_c_max;            /* of all looks at the card */
} gac_timing;

typedef struct gac_timing_rules {
    double warmup_us; /* run at least this long before the first sample */
    double sample_us; /* calls are repeated to make a sample at least this long */
    int min_samples;
    int max_samples;       /* at most GAC_MAX_SAMPLES */
    double max_noise;      /* stop when noise is at most this */
    double max_time_us;    /* and in any case after this long, once min_samples are there */
    double graph_below_us; /* shorter calls are replayed as a graph; 0 never, INFINITY always */
    double settle_us;      /* a card below its highest clock may rest this long; 0: not at all */
} gac_timing_rules;

/* For figures to report. */
#define GAC_TIMING_RULES_INIT \
    { \
        3000, 1000, 9, 100, 0.004, 400000, 2000, 300000 \
    }
/* For sweeps over thousands of shapes. */
#define GAC_TIMING_RULES_SWEEP_INIT \
    { \
        150, 120, 5, 25, 0.008, 15000, 2000, 100000 \
    }

/* Sorts nothing in place: median, spread and noise of n samples. n at least 1. */
void gac_timing_summarise(gac_timing *timing);

typedef enum gac_comparison { GAC_FASTER, GAC_SLOWER, GAC_AMBIGUOUS } gac_comparison;

const char *gac_comparison_name(gac_comparison comparison);

/* Is a faster than b? Ambiguous when the medians differ by less than
 * min_difference (0.01 is one percent), or by less than what the samples'
 * spread allows to tell (a two-sided rank test at 1 %). */
gac_comparison gac_timing_compare(const gac_timing *a, const gac_timing *b, double min_difference);

/* Times a task. rules NULL takes GAC_TIMING_RULES_INIT. GAC_CHECK when every
 * sample was throttled by heat or hardware. */
gac_status gac_timing_measure(gac_device *device, gac_task *task, const gac_timing_rules *rules,
                              gac_timing *out, gac_error *err);

/* {"median_us", "spread_us", "noise", …, "samples_us"} ; NULL when out of memory. */
struct json_t *gac_timing_json(const gac_timing *timing, bool with_samples);

/* Kernels. */

/* The family of a kernel by its name: nvjet, cutlass-align8, cutlass-align2,
 * cutlass-align1, cudnn-flash, fa2, mem-efficient, gemv, splitk, softmax,
 * elementwise, gac-flash, gac-pad, …; "other" when unknown. Never NULL. */
const char *gac_kernel_family(const char *name);

/* The part of a demangled name that tells kernels apart, without return type,
 * template arguments and parameters; cut to size bytes. */
void gac_kernel_short_name(const char *name, char *out, size_t size);

/* Facts. */

/* Host and device facts for a result: {"gpu", "arch", "driver", "cuda",
 * "cublas", "cudnn", "sms", …, "host": {…}}. NULL when out of memory. */
struct json_t *gac_timing_machine(const gac_device *device);

/* PyTorch. */

/* Calls as the user's PyTorch makes and times them, in a python3 of its own
 * (GAC_PYTHON names another). It ends when the thread that started it ends. */
typedef struct gac_pytorch gac_pytorch;

gac_status gac_pytorch_start(gac_pytorch **out, gac_error *err);
void gac_pytorch_end(gac_pytorch *pytorch); /* NULL is fine */

typedef struct gac_pytorch_question {
    const char *device;            /* "cuda:N"; NULL: the first */
    gac_dtype dtype;               /* of all calls */
    const gac_timing_rules *rules; /* NULL: GAC_TIMING_RULES_INIT */
    bool names;                    /* of kernels too, which takes longer */
    struct json_t *checks;         /* comparisons of outputs, for the script; NULL: none */
    gac_progress *progress;        /* NULL: silent */
    const char *what;              /* for progress */
} gac_pytorch_question;

#define GAC_PYTORCH_QUESTION_INIT \
    { \
        NULL, GAC_DTYPE_F16, NULL, false, NULL, NULL, "PyTorch" \
    }

typedef enum gac_pytorch_state {
    GAC_PYTORCH_MEASURED,
    GAC_PYTORCH_DECLINED, /* no backend of PyTorch serves it */
    GAC_PYTORCH_FAILED
} gac_pytorch_state;

/* A call, and below it what became of it. */
typedef struct gac_pytorch_call {
    gac_task_spec spec;
    const char *path; /* of attention: auto, flash, efficient, cudnn or math */
    gac_pytorch_state state;
    gac_timing timing;      /* where it was measured */
    struct json_t *kernels; /* [{"name", "time_us"}]; owned */
    char reason[320];       /* where it was not */
} gac_pytorch_call;

/* Times calls. *answer, which may be NULL and which the caller owns, has "machine" and
 * what became of "checks". GAC_NO_RESOURCE when python3, torch or its GPU is missing. */
gac_status gac_pytorch_time(gac_pytorch *pytorch, const gac_pytorch_question *question,
                            gac_pytorch_call *calls, int n_calls, struct json_t **answer,
                            gac_error *err);
/* Frees calls from malloc with their kernels; NULL is fine. */
void gac_pytorch_calls_free(gac_pytorch_call *calls, int n_calls);
/* A call as the script takes it; NULL when out of memory. */
struct json_t *gac_pytorch_call_json(const gac_task_spec *spec, const char *path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

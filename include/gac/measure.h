/* measure: timing that can be trusted, and what is made of it.
 *
 * Takes samples of tasks until they agree, keeps them raw, discards those the
 * card was throttled in and says how many; sweeps sizes and writes contracts;
 * runs published experiments and computes verdicts; times whole passes of a
 * model. What a time means for a model is not known here. */
#ifndef GAC_MEASURE_H
#define GAC_MEASURE_H

#include <gac/base.h>
#include <gac/contract.h>
#include <gac/device.h>
#include <gac/engine.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Statistics -------------------------------------------------------- */

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
gac_status gac_measure_task(gac_device *device, gac_task *task, const gac_timing_rules *rules,
                            gac_timing *out, gac_error *err);

/* {"median_us", "spread_us", "noise", …, "samples_us"} ; NULL when out of memory. */
struct json_t *gac_timing_json(const gac_timing *timing, bool with_samples);

/* ---- End-to-end runs ----------------------------------------------------- */

#define GAC_DECODE_STEPS 32      /* a context is left behind by at most so many steps */
#define GAC_LONG_PASS_US 2000000 /* a pass this long is sampled GAC_LONG_PASSES times */
#define GAC_LONG_PASSES 3

/* For passes of a whole model; sample_us, graph_below_us and settle_us do not count. */
#define GAC_TIMING_RULES_PASS_INIT \
    { \
        300000, 0, 5, 96, 0.004, 10000000, 0, 0 \
    }

/* Times of one shape. clock_mhz and temperature_c are unknown: the wall clock
 * of the host runs around gac_engine_forward, which waits for the device. */
typedef struct gac_pass_timing {
    int64_t batch;
    int64_t length;    /* prefill: tokens of a sequence; decode: its context */
    gac_timing timing; /* of a pass, or of a step, of the whole batch */
    double tokens_per_s;
} gac_pass_timing;

/* Times a prefill of batch sequences of length tokens, from an empty cache. The
 * ids are random and always the same. rules NULL takes GAC_TIMING_RULES_PASS_INIT. */
gac_status gac_measure_prefill(gac_engine *engine, int64_t batch, int64_t length,
                               const gac_timing_rules *rules, gac_progress *progress,
                               gac_pass_timing *out, gac_error *err);

/* Times steps of one token for each of batch sequences that have context tokens
 * with it: context - 1 are put into the cache first, at most chunk of a sequence
 * in one pass, then GAC_DECODE_STEPS steps follow each other, or as many as the
 * engine's context has room for, and again from the same place. Every step is a
 * sample. */
gac_status gac_measure_decode(gac_engine *engine, int64_t batch, int64_t context, int64_t chunk,
                              const gac_timing_rules *rules, gac_progress *progress,
                              gac_pass_timing *out, gac_error *err);

/* {"batch", KEY, "ms", "spread_pct", "tokens_per_s", "n_samples", "steady",
 * "samples_ms"} with key for "length" or "context"; NULL when out of memory. */
struct json_t *gac_pass_timing_json(const gac_pass_timing *timing, const char *key);

/* ---- Kernels ----------------------------------------------------------- */

/* The family of a kernel by its name: nvjet, cutlass-align8, cutlass-align2,
 * cutlass-align1, cudnn-flash, fa2, mem-efficient, gemv, splitk, softmax,
 * elementwise, gac-flash, gac-pad, …; "other" when unknown. Never NULL. */
const char *gac_kernel_family(const char *name);

/* The part of a demangled name that tells kernels apart, without return type,
 * template arguments and parameters; cut to size bytes. */
void gac_kernel_short_name(const char *name, char *out, size_t size);

/* ---- Checks against the reference -------------------------------------- */

typedef struct gac_difference {
    double relative; /* norm of the difference over the norm of the reference */
    double largest;  /* largest absolute difference */
    int64_t n_elements;
} gac_difference;

/* Runs the task and its reference on the CPU on the same fresh random inputs;
 * the output is poisoned first, and one not written counts as infinite. */
gac_status gac_measure_against_reference(gac_device *device, const gac_task_spec *spec,
                                         uint64_t seed, gac_difference *out, gac_error *err);

/* The stated tolerance of relative for a spec (dtype and kind). */
double gac_measure_tolerance(const gac_task_spec *spec);

/* ---- Facts ------------------------------------------------------------- */

/* Host and device facts for a result: {"gpu", "arch", "driver", "cuda",
 * "cublas", "cudnn", "sms", …, "host": {…}}. NULL when out of memory. */
struct json_t *gac_measure_machine(const gac_device *device);

/* ---- Probing ----------------------------------------------------------- */

/* One size of a sweep; all else of the operator stays as it is. */
typedef struct gac_sweep_point {
    int64_t size;
    double time_us;     /* meaningless when declined */
    double noise;       /* standard error over the time; 0 when unknown */
    bool declined;      /* nothing serves this size */
    const char *family; /* of the kernel, or NULL; borrowed */
} gac_sweep_point;

/* Sizes rising, not necessarily evenly. Borrowed. */
typedef struct gac_sweep {
    const gac_sweep_point *points;
    int n_points;
} gac_sweep;

#define GAC_MAX_FOUND_TIERS 9 /* multiples 256, 128, …, 1 */

typedef struct gac_found_tier {
    int64_t multiple;
    bool aligned;       /* within a tenth of the best at most anchors, a quarter at all */
    bool served;        /* by anything at all */
    double penalty;     /* the worst sweep's time over that of the best tier */
    const char *family; /* the most common of its sizes, or NULL; borrowed from the sweeps */
} gac_found_tier;

typedef struct gac_found_tiers {
    int n_tiers; /* best first: multiples fall, the last is 1 */
    gac_found_tier tier[GAC_MAX_FOUND_TIERS];
    int64_t period; /* the first multiple: what repeats, repeats with it */
} gac_found_tiers;

/* Finds which multiples matter, from sweeps of one place at several anchors.
 * Multiples of p form a tier of their own when in some sweep they are faster,
 * by more than 8 % and more than noise, than the sizes right before and after
 * them that are multiples of p / 2 only. Both sides must be slower, so that a
 * tile or wave step, which has one slow side, is not taken for a tier; multiples
 * of 64 and more must show it in two sweeps, if there are two. GAC_CHECK when no
 * size is served. */
gac_status gac_probe_find_tiers(const gac_sweep *sweeps, int n_sweeps, gac_found_tiers *out,
                                gac_error *err);

/* A rise of time from one size to the next that stays. */
typedef struct gac_step {
    int64_t at; /* the first size after it */
    double pct;
} gac_step;

/* Steps of more than min_pct between points at most unit apart. Fills at most
 * max and returns how many there are. */
int gac_probe_find_steps(const gac_sweep *sweep, int64_t unit, double min_pct, gac_step *steps,
                         int max);

/* How far predictions are from what was measured, in percent of the latter. */
typedef struct gac_error_summary {
    int n_points;
    double median_pct, p95_pct, max_pct;
    double bias_pct; /* median with its sign: positive when predictions are too slow */
} gac_error_summary;

/* n may be 0, which gives zeros. GAC_NO_RESOURCE when out of memory. */
gac_status gac_probe_summarise(const double *predicted, const double *measured, int n,
                               gac_error_summary *out, gac_error *err);

/* What served an attention call that the vendor's kernel declined. */
typedef struct gac_probe_served {
    double time_us;   /* NaN: nothing did */
    char kernel[256]; /* empty where names were not asked for */
} gac_probe_served;

/* Times n SDPA specs the way a user's stack would serve them, and names the
 * stack ("torch 2.11"), in at most 96 bytes; the kernels too where names is true,
 * which takes longer. */
typedef gac_status (*gac_probe_fallback)(void *context, const gac_task_spec *specs, int n,
                                         bool names, gac_probe_served *out, char stack[96],
                                         gac_error *err);

/* That stack is PyTorch, as the user's python3 has it (or GAC_PYTHON). */
typedef struct gac_pytorch {
    const char *device;                /* "cuda:N"; NULL: the first */
    gac_progress *progress;            /* NULL: silent */
    bool quick;                        /* a card below its highest clock is not waited for */
    struct gac_pytorch_server *server; /* NULL at first: started when asked for the first time */
} gac_pytorch;

/* A gac_probe_fallback whose context is a gac_pytorch. GAC_NO_RESOURCE when
 * python3, torch or its GPU is missing. */
gac_status gac_pytorch_serve(void *context, const gac_task_spec *specs, int n, bool names,
                             gac_probe_served *out, char stack[96], gac_error *err);
/* Ends what was started; it may be asked again. */
void gac_pytorch_end(gac_pytorch *how);

typedef struct gac_probe_options {
    const char *name;        /* of the contract; NULL: made from the GPU's */
    const gac_dtype *dtypes; /* at least one */
    int n_dtypes;
    bool quick;                   /* coarse tables, few held-out shapes */
    uint64_t seed;                /* of held-out shapes */
    double max_time_s;            /* per dtype; tables are made coarser to keep it */
    const struct json_t *runtime; /* goes into the contract as it is; NULL: none */
    gac_probe_fallback fallback;  /* NULL: own flash kernel, then the math path */
    void *fallback_context;
    gac_progress *progress;
    const gac_log *log;
} gac_probe_options;

#define GAC_PROBE_OPTIONS_INIT \
    { \
        .seed = 1, .max_time_s = 255 \
    }

/* Measures a GPU and writes its contract. *contract is a gac.contract/1 that
 * gac_contract_parse accepts. raw may be NULL, else *raw gets every point with
 * its samples. The caller owns both. GAC_NO_RESOURCE when the GPU serves none
 * of the dtypes, or too many points find no memory. */
gac_status gac_probe_run(gac_device *device, const gac_probe_options *options,
                         struct json_t **contract, struct json_t **raw, gac_error *err);

/* Measures the given shapes in one dtype, with the rules for reported figures, GEMMs
 * in three rounds while there is time, and puts them as exact points into a copy of
 * base. */
gac_status gac_probe_shapes(gac_device *device, const gac_probe_options *options,
                            const gac_contract *base, const gac_gemm_shape *gemm, size_t n_gemm,
                            const gac_sdpa_shape *sdpa, size_t n_sdpa, struct json_t **contract,
                            struct json_t **raw, gac_error *err);

/* A contract or raw result as text that people can read and diff: numbers of
 * an array share lines. free() it. NULL when out of memory. */
char *gac_probe_text(const struct json_t *value);

/* ---- Experiments ------------------------------------------------------- */

/* A published experiment as data: cases to measure, what was claimed of them,
 * and how ours is computed (experiments/README.md has the language). */
typedef struct gac_experiment gac_experiment;

/* Whose choices are measured: our plug-in's, or PyTorch's through python3. */
typedef enum gac_lens { GAC_LENS_NATIVE, GAC_LENS_PYTORCH, GAC_LENS_COUNT } gac_lens;

const char *gac_lens_name(gac_lens lens); /* "native", "pytorch" */

/* The experiments compiled into the library. */
int gac_experiment_n_bundled(void);
gac_status gac_experiment_load_index(int index, gac_experiment **out, gac_error *err);
/* An ID that is not bundled is GAC_USAGE; the message lists those that are. */
gac_status gac_experiment_load_bundled(const char *id, gac_experiment **out, gac_error *err);
/* Loads a specification and published.json beside it, if there is one. */
gac_status gac_experiment_load(const char *path, gac_experiment **out, gac_error *err);
/* Validates and takes a specification from text; source names it in errors,
 * published is NULL where nothing was published. */
gac_status gac_experiment_parse(const char *text, size_t n_bytes, const char *source,
                                const char *published, size_t n_published, gac_experiment **out,
                                gac_error *err);
void gac_experiment_free(gac_experiment *experiment); /* NULL is fine */

/* Borrowed, as long as the experiment lives. */
const char *gac_experiment_id(const gac_experiment *experiment);
const char *gac_experiment_title(const gac_experiment *experiment);
const struct json_t *gac_experiment_spec(const gac_experiment *experiment);

/* How much a run measures: cases, and operator calls that differ. */
gac_status gac_experiment_count(const gac_experiment *experiment, gac_lens lens, bool quick,
                                int64_t *n_cases, int64_t *n_calls, gac_error *err);

typedef struct gac_experiment_options {
    const gac_timing_rules *rules; /* NULL: as the specification asks */
    bool quick;                    /* only the cases it names as enough for a first look */
    bool counters;                 /* hardware counters, where it asks for them */
    const char *device;            /* "cuda:N"; NULL: the first */
    const char *program;           /* gac itself, which the profiler runs; NULL: no counters */
    const char *spec_path;         /* the file the experiment is from; NULL: bundled */
    gac_progress *progress;        /* NULL: silent */
} gac_experiment_options;

/* Runs an experiment under one lens. device is used by the native lens alone.
 * *out, which the caller owns, is {"id", "lens", "device_facts", "summary",
 * "claims", "checks", "cases", "calls", …}. A call that fails, or that is
 * throttled throughout, leaves a hole in it, and "summary" counts the claims
 * that have a value all the same. GAC_NO_RESOURCE when python3, torch or its
 * GPU is missing. */
gac_status gac_experiment_run(const gac_experiment *experiment, gac_lens lens, gac_device *device,
                              const gac_experiment_options *options, struct json_t **out,
                              gac_error *err);

/* Judges a result of the experiment anew, from its own "calls", by the
 * specification as it is now: "claims", "cases", "notes" and "summary" are
 * replaced, and "calls" are put in the order that cases refer to. GAC_BAD_INPUT
 * where a call that the specification needs is missing, or where a figure on
 * record does not follow from the calls. */
gac_status gac_experiment_judge(const gac_experiment *experiment, struct json_t *result,
                                gac_error *err);

/* Makes one call of the experiment, as named in "calls", twice and nothing
 * else: what a profiler is pointed at. */
gac_status gac_experiment_run_call(const gac_experiment *experiment, gac_device *device,
                                   const char *call, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

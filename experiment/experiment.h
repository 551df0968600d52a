/* experiment: runs published experiments and judges their claims.
 *
 * A part of the program, not of the library: it sees include/gac/ and the
 * inner headers of base. */
#ifndef GAC_EXPERIMENT_EXPERIMENT_H
#define GAC_EXPERIMENT_EXPERIMENT_H

#include <gac/base.h>
#include <gac/device.h>
#include <gac/timing.h>

/* A published experiment as data: cases to measure, what was claimed of them,
 * and how ours is computed (experiments/README.md has the language). */
typedef struct gac_experiment gac_experiment;

/* Whose choices are measured: our plug-in's, or PyTorch's through python3. */
typedef enum gac_stack { GAC_STACK_NATIVE, GAC_STACK_PYTORCH, GAC_STACK_COUNT } gac_stack;

const char *gac_stack_name(gac_stack stack);  /* in files: "native", "pytorch" */
const char *gac_stack_title(gac_stack stack); /* in messages: "native", "PyTorch" */

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
gac_status gac_experiment_count(const gac_experiment *experiment, gac_stack stack, bool quick,
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

/* Runs an experiment under one stack. device is used by the native stack alone.
 * *out, which the caller owns, is {"id", "stack", "device_facts", "summary",
 * "claims", "checks", "cases", "calls", …}. A call that fails, or that is
 * throttled throughout, leaves a hole in it, and "summary" counts the claims
 * that have a value all the same. GAC_NO_RESOURCE when python3, torch or its
 * GPU is missing. */
gac_status gac_experiment_run(const gac_experiment *experiment, gac_stack stack, gac_device *device,
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

#endif

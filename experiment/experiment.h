/* experiment: runs published experiments and judges their claims.
 *
 * It belongs to the program, not to the library. It may include include/gac/
 * and the inner headers of base. */
#ifndef GAC_EXPERIMENT_EXPERIMENT_H
#define GAC_EXPERIMENT_EXPERIMENT_H

#include <gac/base.h>
#include <gac/device.h>
#include <gac/timing.h>

/* A published experiment as data: the cases to measure, what was claimed of
 * them, and how to compute our figures. experiments/published/README.md describes the
 * language. */
typedef struct gac_experiment gac_experiment;

/* The software that is measured: our plug-in, or PyTorch through python3. */
typedef enum gac_stack { GAC_STACK_NATIVE, GAC_STACK_PYTORCH, GAC_STACK_COUNT } gac_stack;

const char *gac_stack_name(gac_stack stack);  /* in files: "native", "pytorch" */
const char *gac_stack_title(gac_stack stack); /* in messages: "native", "PyTorch" */

/* The experiments that are compiled in. */
int gac_experiment_n_bundled(void);
gac_status gac_experiment_load_index(int index, gac_experiment **out, gac_error *err);
/* Returns GAC_USAGE for an unknown ID. The message lists the known ones. */
gac_status gac_experiment_load_bundled(const char *id, gac_experiment **out, gac_error *err);
/* Loads a specification, and published.json beside it if there is one. */
gac_status gac_experiment_load(const char *path, gac_experiment **out, gac_error *err);
/* Parses and validates a specification. source names it in errors. published is
 * NULL if nothing was published. */
gac_status gac_experiment_parse(const char *text, size_t n_bytes, const char *source,
                                const char *published, size_t n_published, gac_experiment **out,
                                gac_error *err);
void gac_experiment_free(gac_experiment *experiment); /* NULL is fine */

/* Borrowed; valid while the experiment lives. */
const char *gac_experiment_id(const gac_experiment *experiment);
const char *gac_experiment_title(const gac_experiment *experiment);

/* Counts what a run measures: cases, and distinct operator calls. */
gac_status gac_experiment_count(const gac_experiment *experiment, gac_stack stack, bool quick,
                                int64_t *n_cases, int64_t *n_calls, gac_error *err);

typedef struct gac_experiment_options {
    const gac_timing_rules *rules; /* NULL: those of the specification */
    bool quick;                    /* only the cases that the specification marks for a quick run */
    bool counters;                 /* read the hardware counters that the specification asks for */
    const char *device;            /* "cuda:N"; NULL: the first GPU */
    const char *program;           /* path of gac, which the profiler runs; NULL: no counters */
    const char *spec_path;         /* the specification's file; NULL: bundled */
    gac_progress *progress;        /* NULL: silent */
} gac_experiment_options;

/* Runs an experiment under one stack. Only the native stack uses device. *out,
 * which the caller owns, is {"id", "stack", "device_facts", "summary",
 * "claims", "checks", "cases", "calls", …}. A call that fails, or that is
 * always throttled, has no time; claims that do not need it still get a value,
 * and "summary" counts them. Returns GAC_NO_RESOURCE if python3, torch or its
 * GPU is missing. */
gac_status gac_experiment_run(const gac_experiment *experiment, gac_stack stack, gac_device *device,
                              const gac_experiment_options *options, struct json_t **out,
                              gac_error *err);

/* Judges a result of the experiment again, from its own "calls" and by the
 * current specification. It replaces "claims", "cases", "notes" and "summary",
 * and sorts "calls" into the order that the cases refer to. Returns
 * GAC_BAD_INPUT if a call is missing that the specification needs, or if a
 * figure on record does not follow from the calls. */
gac_status gac_experiment_judge(const gac_experiment *experiment, struct json_t *result,
                                gac_error *err);

/* Runs one call, named as in "calls", twice and nothing else. A profiler
 * measures such a process. */
gac_status gac_experiment_run_call(const gac_experiment *experiment, gac_device *device,
                                   const char *call, gac_error *err);

#endif

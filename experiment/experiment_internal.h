/* How an experiment runs. Its specification is expanded for one stack into a
 * plan. A plan has cases, a case has variants, and a variant is a sum of jobs.
 * A job is one operator call; it is measured once, even if several variants use
 * it. Claims and checks read the measured plan. No code here depends on a
 * particular experiment. */
#ifndef GAC_EXPERIMENT_INTERNAL_H
#define GAC_EXPERIMENT_INTERNAL_H

#include "experiment/experiment.h"

#include "base/arena.h"
#include "base/json_reader.h"
#include "base/namemap.h"
#include "base/spawn.h"

#include <jansson.h>

#define EXP_MAX_VARS 16
#define EXP_MAX_VARIANTS 16
#define EXP_MAX_SWEEPS 32
#define EXP_MAX_CASES 20000
#define EXP_MAX_USES 200000
#define EXP_MAX_CLAIMS 100
#define EXP_MAX_VALUE 2147483647.0
#define EXP_MAX_JOB_BYTES ((int64_t)1 << 35)
#define EXP_MAX_JOB_FLOPS 1e16
#define EXP_NO_EFFECT 0.05 /* smaller measured changes count as no effect */
#define EXP_NOISE_FACTOR 3 /* a value may be wrong by this many times its noise */

/* Looks up an identifier or "name.variant". False: unknown name. *out is NaN if
 * the name is known but was not measured. */
typedef bool (*exp_lookup)(void *context, const char *name, double *out);

/* Evaluates an expression of + - * / %, comparisons, && || !, parentheses,
 * up(x, unit), min and max. A result that depends on a NaN is NaN. Returns
 * false with the reason in why (size bytes). */
bool exp_eval(const char *text, exp_lookup lookup, void *context, double *out, char *why,
              size_t size);

/* As gac_reader_fault, with a format. */
bool exp_fault(gac_reader *r, const char *format, ...) GAC_PRINTF(2, 3);
/* Checks that every key of object is one of the space-separated names. */
bool exp_keys(gac_reader *r, const json_t *object, const char *names);
bool exp_text(gac_reader *r, const json_t *parent, const char *key, bool needed, const char **out);
bool exp_list(gac_reader *r, const json_t *parent, const char *key, size_t min, size_t max,
              json_t **out);
bool exp_is_name(const char *text);
/* Evaluates the number or expression under key. */
bool exp_value(gac_reader *r, const json_t *parent, const char *key, exp_lookup lookup,
               void *context, double *out);

/* If the jobs of a variant differ, the variant has the last of their states in
 * this order. A declined call is a valid answer. A throttled call ran but has
 * no time. A failed one gives no information. */
typedef enum exp_state {
    EXP_PENDING,
    EXP_MEASURED,
    EXP_DECLINED,
    EXP_THROTTLED,
    EXP_FAILED
} exp_state;

typedef struct exp_job {
    const char *key;  /* "gemm linear m=4096 n=4096 k=107" */
    const char *path; /* for SDPA: the path that the stack is asked for; otherwise "" */
    gac_task_spec spec;
    double flops, bytes;
    exp_state state;
    double time_us, spread_us, noise;
    int n_samples;
    char served[24];    /* the path that ran it */
    char families[128]; /* kernel families with at least 5 % of the time */
    char reason[320];   /* who declined it, or why there is no time */
    json_t *timing, *kernels;
} exp_job;

/* A job that a variant uses, and how many times. */
typedef struct exp_use {
    int32_t job;
    double times;
} exp_use;

/* One variant of one case. It has no uses if this stack does not run it. */
typedef struct exp_cell {
    int32_t first_use, n_uses;
} exp_cell;

typedef struct exp_sweep {
    const char *name;
    json_t *json;
    int n_vars, n_variants;
    const char *vars[EXP_MAX_VARS];
    const char *variants[EXP_MAX_VARIANTS];
} exp_sweep;

typedef struct exp_case {
    int sweep;
    double values[EXP_MAX_VARS];
    const char *label;
    int32_t first_cell;
} exp_case;

typedef struct exp_plan {
    gac_stack stack;
    bool quick; /* without the cases that a quick run leaves out */
    gac_dtype dtype;
    const char *what; /* for progress: "S1, native" */
    gac_arena arena;
    gac_namemap by_key;
    int n_sweeps;
    exp_sweep sweeps[EXP_MAX_SWEEPS];
    exp_case *cases;
    exp_cell *cells;
    exp_use *uses;
    exp_job *jobs;
    int32_t n_cases, n_cells, n_uses, n_jobs;
    int32_t cap_cases, cap_cells, cap_uses, cap_jobs;
} exp_plan;

struct gac_experiment {
    char *source;
    json_t *spec;
    json_t *published; /* NULL: nothing was published */
    const char *id, *title;
    double tolerance;
};

/* Expands the specification for a stack. quick: only the cases that it marks
 * for a quick run. Dispose of the plan afterwards, also after a failure. */
gac_status exp_plan_build(const gac_experiment *experiment, gac_stack stack, bool quick,
                          exp_plan *plan, gac_error *err);
void exp_plan_dispose(exp_plan *plan);

/* Reads one operator call from an entry of "parts". */
bool exp_read_part(gac_reader *r, const json_t *part, const char *path, gac_dtype dtype,
                   exp_lookup lookup, void *context, gac_task_spec *out);
/* Returns the index of the job for spec, which is added if it is new; -1
 * without memory. */
int32_t exp_plan_job(exp_plan *plan, const gac_task_spec *spec, const char *path, gac_error *err);

/* The context of a lookup in one case: its variables and its measurements. */
typedef struct exp_scope {
    const exp_plan *plan;
    int32_t at;                /* index of the case */
    const exp_cell *perturbed; /* its times are multiplied by factor; or NULL */
    double factor;
} exp_scope;

bool exp_scope_lookup(void *scope, const char *name, double *out);
/* Returns the cell of a variant (NULL: the first one) of a case, or NULL. */
const exp_cell *exp_find_cell(const exp_plan *plan, int32_t at, const char *variant);
exp_state exp_cell_state(const exp_plan *plan, const exp_cell *cell, const char **reason);
double exp_cell_time_us(const exp_plan *plan, const exp_cell *cell); /* NaN if not measured */
double exp_cell_noise(const exp_plan *plan, const exp_cell *cell);
/* Returns 1 if the case is in this sweep (NULL: any) and where holds, otherwise
 * 0. Returns -1 with the reason in why if where cannot be evaluated. */
int exp_selected(const exp_plan *plan, int32_t at, const char *sweep, const char *where, char *why,
                 size_t size);

typedef enum exp_verdict {
    EXP_REPRODUCED,
    EXP_STRONGER,
    EXP_WEAKER,
    EXP_CONTRADICTED,
    EXP_AMBIGUOUS, /* noise allows several verdicts */
    EXP_NOT_MEASURED,
    EXP_UNPUBLISHED,
    EXP_ARITHMETIC, /* uses no measurement, so it cannot fail */
    EXP_VERDICT_COUNT
} exp_verdict;

const char *exp_verdict_name(exp_verdict verdict);

/* Compares two ratios by their logarithms. Changes of ours below no_effect
 * count as none. noise is the relative uncertainty of ours. The verdict is
 * ambiguous if a value within EXP_NOISE_FACTOR times the noise would get
 * another one. */
exp_verdict exp_judge_ratio(double published, double ours, double tolerance, double noise,
                            double no_effect);
/* The two calls whose ratio a claim judges. */
typedef struct exp_comparison {
    bool distinguishable; /* by a rank test at 1 %, and by at least 1 % */
    double clock_ratio;   /* first over second; 1 if equal, unknown or irrelevant */
    char note[120];       /* appended to the reason; may be empty */
} exp_comparison;

void exp_compare(const exp_job *a, const exp_job *b, double ratio, exp_comparison *out);
/* As exp_judge_ratio, for a ratio of two calls. It is also ambiguous if a
 * difference was found that the samples do not show, or if equal clocks could
 * give another verdict. */
exp_verdict exp_judge_pair(double published, double ours, double tolerance, double noise,
                           double no_effect, const exp_comparison *pair);
/* Compares two shares from 0 to 1; above and below one half are opposite
 * claims. It is ambiguous if a share within [least, most], the range that noise
 * allows, would get another verdict. */
exp_verdict exp_judge_share(double published, double ours, double least, double most,
                            double tolerance);

/* Judges the claims over a measured plan. *out is a JSON array. */
gac_status exp_claims(const gac_experiment *experiment, const exp_plan *plan, json_t **out,
                      gac_error *err);
/* Checks that all published values named by claims exist, and that all
 * expressions can be evaluated. */
gac_status exp_claims_check(const gac_experiment *experiment, const exp_plan *plan, gac_error *err);
/* Summarises claims: one verdict for the experiment, and the number of claims
 * with each verdict. Arithmetic claims do not count. One contradicted claim
 * makes the experiment contradicted. "measured" is the number of claims with a
 * measured value. */
json_t *exp_summarise(const json_t *claims);
/* Returns the published time of a variant of a case in milliseconds, or NaN. */
double exp_published_ms(const gac_experiment *experiment, const exp_plan *plan, int32_t at,
                        const char *variant);

gac_status exp_run_native(exp_plan *plan, gac_device *device, const gac_experiment_options *options,
                          gac_error *err);
/* Opens a job as a task. The path "auto" means the vendor's library or, if that
 * declines, our own kernel. */
gac_status exp_open_native(gac_device *device, exp_job *job, gac_task **out, gac_error *err);
/* Stores the kernels, an array of {"name", "time_us"}, adds "family" to each,
 * and sets the job's families. */
void exp_note_kernels(exp_job *job, json_t *kernels);

/* Runs all jobs and checks in one process. *checks is a new array; *machine
 * gets facts about the machine. */
gac_status exp_run_pytorch(const gac_experiment *experiment, exp_plan *plan,
                           const gac_experiment_options *options, json_t **checks, json_t **machine,
                           gac_error *err);

/* Compares outputs: heads of size d padded to stored, and heads of size d. */
typedef struct exp_check {
    const char *id, *says;
    gac_task_spec spec; /* at the original size */
    int64_t stored;
    const char *path;
    /* Number of consecutive checks, from this one on, that share one launch. It
     * is 0 in the others of that launch. A launch has one softmax scale, so q
     * is multiplied by the missing factor if there are several. */
    int n_in_launch;
    int n_sizes; /* number of checks in the launch */
} exp_check;

/* Reads the checks of the specification for a stack. The caller frees *out. */
gac_status exp_read_checks(const gac_experiment *experiment, gac_stack stack, exp_check **out,
                           int *n, gac_error *err);
gac_status exp_checks_native(const gac_experiment *experiment, gac_device *device, json_t **out,
                             gac_error *err);
json_t *exp_check_json(const exp_check *check, double relative, double wrong_scale,
                       double tolerance, const char *failure);

/* Reads hardware counters for the cases that the specification names. If there
 * are none, the object states why. Returns NULL if the specification names no
 * cases. */
json_t *exp_counters(const gac_experiment *experiment, const exp_plan *plan,
                     const gac_experiment_options *options);
/* Reads the values of the last n_kernels launches from ncu's CSV, as
 * [{"kernel", "metrics": {name: value}}]. Returns NULL if there are none. */
json_t *exp_counters_parse(const char *csv, int n_kernels);

const char *exp_state_name(exp_state state);
json_t *exp_jobs_json(const exp_plan *plan);
json_t *exp_cases_json(const gac_experiment *experiment, const exp_plan *plan);

typedef struct exp_bundled {
    const char *name; /* "S1/spec.json" */
    const char *text; /* a NUL follows */
    size_t n_bytes;
} exp_bundled;

extern const exp_bundled gac_bundled_experiments[];
extern const int gac_n_bundled_experiments;
const exp_bundled *exp_find_bundled(const char *name); /* NULL: unknown */

#endif

/* How an experiment runs: its specification is expanded for one stack into a
 * plan of cases, each with variants, each a sum of jobs. A job is one operator
 * call, measured once however often it is used. Claims and checks read the
 * finished plan; nothing here knows any experiment by name. */
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
#define EXP_NO_EFFECT 0.05 /* measured changes below five percent count as none */
#define EXP_NOISES 3       /* times its noise a value may be off */

/* ---- Expressions -------------------------------------------------------- */

/* Finds an identifier, or "name.variant". False: there is no such name. NaN:
 * there is, but it has no value (not measured). */
typedef bool (*exp_lookup)(void *context, const char *name, double *out);

/* Evaluates + - * / % comparisons && || ! parentheses, up(x, unit), min, max.
 * NaN goes through everything. False with the reason in why (size bytes). */
bool exp_eval(const char *text, exp_lookup lookup, void *context, double *out, char *why,
              size_t size);

/* ---- Reading specifications ---------------------------------------------- */

/* gac_reader_fault with a format. */
bool exp_fault(gac_reader *r, const char *format, ...) GAC_PRINTF(2, 3);
/* Every key of object is one of the space-separated names. */
bool exp_keys(gac_reader *r, const json_t *object, const char *names);
bool exp_text(gac_reader *r, const json_t *parent, const char *key, bool needed, const char **out);
bool exp_list(gac_reader *r, const json_t *parent, const char *key, size_t min, size_t max,
              json_t **out);
bool exp_is_name(const char *text);
/* Evaluates a number or an expression found under key. */
bool exp_value(gac_reader *r, const json_t *parent, const char *key, exp_lookup lookup,
               void *context, double *out);

/* ---- The plan ------------------------------------------------------------ */

/* Of the parts of a variant the last one here wins: a refusal is an answer, a
 * throttled call was served and not timed, a failure says nothing. */
typedef enum exp_state {
    EXP_PENDING,
    EXP_MEASURED,
    EXP_DECLINED,
    EXP_THROTTLED,
    EXP_FAILED
} exp_state;

typedef struct exp_job {
    const char *key;  /* "sdpa auto 4 32 32 2048 2048 107 107 0 0 0" */
    const char *path; /* SDPA: how the stack is asked to serve it; else "" */
    gac_task_spec spec;
    double flops, bytes;
    exp_state state;
    double time_us, spread_us, noise;
    int n_samples;
    char served[24];    /* what served it */
    char families[128]; /* kernel families with 5 % of the time or more */
    char reason[320];   /* who declined, or why there is no time */
    json_t *timing, *kernels;
} exp_job;

/* A job, so many times over, as a part of a variant. */
typedef struct exp_use {
    int32_t job;
    double times;
} exp_use;

/* One variant of one case; without uses where this stack does not run it. */
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
    bool quick; /* without the cases that a first look may leave out */
    gac_dtype dtype;
    const char *what; /* "S1, native", for progress */
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
    json_t *published; /* NULL where nothing was */
    const char *id, *title;
    double tolerance;
};

/* Expands the specification for a stack; with quick only the cases it names as
 * enough for a first look. Dispose of the plan afterwards, always. */
gac_status exp_plan_build(const gac_experiment *experiment, gac_stack stack, bool quick,
                          exp_plan *plan, gac_error *err);
void exp_plan_dispose(exp_plan *plan);

/* One operator call from a part of a specification. */
bool exp_read_part(gac_reader *r, const json_t *part, const char *path, gac_dtype dtype,
                   exp_lookup lookup, void *context, gac_task_spec *out);
/* The index of a job for spec, new or not; -1 without memory. */
int32_t exp_plan_job(exp_plan *plan, const gac_task_spec *spec, const char *path, gac_error *err);

/* Variables of one case, then what was measured of it; a lookup's context. */
typedef struct exp_scope {
    const exp_plan *plan;
    int32_t at;            /* the case */
    const exp_cell *moved; /* times of this one count as by times as long; or NULL */
    double by;
} exp_scope;

bool exp_scope_lookup(void *scope, const char *name, double *out);
/* The cell of a variant (NULL: the first) of a case, or NULL. */
const exp_cell *exp_find_cell(const exp_plan *plan, int32_t at, const char *variant);
exp_state exp_cell_state(const exp_plan *plan, const exp_cell *cell, const char **reason);
double exp_cell_time_us(const exp_plan *plan, const exp_cell *cell); /* NaN unless measured */
double exp_cell_noise(const exp_plan *plan, const exp_cell *cell);
/* Is the case in a sweep of this name (NULL: any), and does where hold? -1 for
 * an expression that cannot be evaluated, with the reason in why. */
int exp_selected(const exp_plan *plan, int32_t at, const char *sweep, const char *where, char *why,
                 size_t size);

/* ---- Claims -------------------------------------------------------------- */

typedef enum exp_verdict {
    EXP_REPRODUCED,
    EXP_STRONGER,
    EXP_WEAKER,
    EXP_CONTRADICTED,
    EXP_AMBIGUOUS, /* the samples allow more than one of these */
    EXP_NOT_MEASURED,
    EXP_UNPUBLISHED,
    EXP_ARITHMETIC, /* on the specification's own numbers: it could not fail */
    EXP_VERDICT_COUNT
} exp_verdict;

const char *exp_verdict_name(exp_verdict verdict);

/* Compares two ratios by their logarithms. Changes of ours below no_effect count
 * as none. noise is the relative uncertainty of ours: where a value within
 * EXP_NOISES times as much would get another verdict, that is ambiguous. */
exp_verdict exp_judge_ratio(double published, double ours, double tolerance, double noise,
                            double no_effect);
/* Two calls of which one claim is the ratio. */
typedef struct exp_comparison {
    bool told_apart;    /* by a rank test at 1 % and a least difference of 1 % */
    double clock_ratio; /* first over second; 1 where alike, unknown or of no matter */
    char note[120];     /* for the reason; may be empty */
} exp_comparison;

void exp_compare(const exp_job *a, const exp_job *b, double ratio, exp_comparison *out);
/* As exp_judge_ratio for a ratio of two calls: ambiguous too where a difference
 * was claimed and found and the samples do not show it, or where equal clocks
 * could give another verdict. */
exp_verdict exp_judge_pair(double published, double ours, double tolerance, double noise,
                           double no_effect, const exp_comparison *pair);
/* Compares two shares from 0 to 1; one half is "neither". Ambiguous where a
 * share from least to most, which noise allows, would get another verdict. */
exp_verdict exp_judge_share(double published, double ours, double least, double most,
                            double tolerance);

/* The claims of the specification over a measured plan, as a JSON array. */
gac_status exp_claims(const gac_experiment *experiment, const exp_plan *plan, json_t **out,
                      gac_error *err);
/* All published values that claims name exist, all expressions evaluate. */
gac_status exp_claims_check(const gac_experiment *experiment, const exp_plan *plan, gac_error *err);
/* One word for the whole, and how many claims got which verdict. Arithmetic
 * does not count towards the word; one contradicted claim makes the whole
 * contradicted; "measured" is how many claims have a value from a measurement. */
json_t *exp_summarise(const json_t *claims);
/* The published time of a variant of a case in milliseconds, or NaN. */
double exp_published_ms(const gac_experiment *experiment, const exp_plan *plan, int32_t at,
                        const char *variant);

/* ---- Stacks -------------------------------------------------------------- */

gac_status exp_run_native(exp_plan *plan, gac_device *device, const gac_experiment_options *options,
                          gac_error *err);
/* Opens one job as a task, by its path: auto is the library, else our own. */
gac_status exp_open_native(gac_device *device, exp_job *job, gac_task **out, gac_error *err);
/* Sets families from an array of {"name", "time_us"}, and adds "family". */
void exp_note_kernels(exp_job *job, json_t *kernels);

/* Runs jobs and checks in one go; *checks gets a new array, *machine facts. */
gac_status exp_run_pytorch(const gac_experiment *experiment, exp_plan *plan,
                           const gac_experiment_options *options, json_t **checks, json_t **machine,
                           gac_error *err);

/* One comparison of outputs: head size d stored as stored, against head d. */
typedef struct exp_check {
    const char *id, *says;
    gac_task_spec spec; /* as computed at the original size */
    int64_t stored;
    const char *path;
    /* How many checks, this one and those after it, are heads of one launch; 0 in
     * those. A launch of several has one scale, so q carries what is missing. */
    int n_in_launch;
    int n_sizes; /* n_in_launch of the first of them */
} exp_check;

/* The checks of the specification for a stack; *out is malloc'ed. */
gac_status exp_read_checks(const gac_experiment *experiment, gac_stack stack, exp_check **out,
                           int *n, gac_error *err);
gac_status exp_checks_native(const gac_experiment *experiment, gac_device *device, json_t **out,
                             gac_error *err);
json_t *exp_check_json(const exp_check *check, double relative, double wrong_scale,
                       double tolerance, const char *failure);

/* Hardware counters of the cases the specification asks them for; never
 * fails but for memory: where they are not to be had, the object says why. */
json_t *exp_counters(const gac_experiment *experiment, const exp_plan *plan,
                     const gac_experiment_options *options);
/* Takes the values of the last n_kernels launches from ncu's CSV, as
 * [{"kernel", "metrics": {name: value}}]; NULL when there are none. */
json_t *exp_counters_parse(const char *csv, int n_kernels);

/* ---- Results ------------------------------------------------------------- */

const char *exp_state_name(exp_state state);
json_t *exp_jobs_json(const exp_plan *plan);
json_t *exp_cases_json(const gac_experiment *experiment, const exp_plan *plan);

/* ---- Bundled files ------------------------------------------------------- */

typedef struct exp_bundled {
    const char *name; /* "S1/spec.json" */
    const char *text; /* a NUL follows */
    size_t n_bytes;
} exp_bundled;

extern const exp_bundled gac_bundled_experiments[];
extern const int gac_n_bundled_experiments;
const exp_bundled *exp_find_bundled(const char *name); /* or NULL */

#endif

/* What the files of the probe share. */
#ifndef GAC_MEASURE_PROBE_INTERNAL_H
#define GAC_MEASURE_PROBE_INTERNAL_H

#include <gac/probe.h>

#include <jansson.h>

typedef enum probe_outcome {
    PROBE_MEASURED,
    PROBE_DECLINED,  /* nothing serves it */
    PROBE_NO_MEMORY, /* not measured for want of memory */
    PROBE_THROTTLED  /* every sample was discarded */
} probe_outcome;

/* One timed task. */
typedef struct probe_point {
    gac_task_spec spec;
    const char *phase; /* static */
    int group;         /* of candidates, from 1 on; 0: none */
    probe_outcome outcome;
    double time_us, spread_us, noise;
    int n_samples, n_discarded, n_unsettled, n_power_limited, n_calls;
    int clock_mhz_min, clock_mhz_max, temperature_c_max;
    bool graph;
    bool fallback;      /* served by the fallback, not by the device's plug-in */
    float *samples_us;  /* (n_samples), NULL unless raw points are kept; owned by the probe */
    const char *kernel; /* what served it, where known; owned by the probe */
} probe_point;

/* A probe under way. */
typedef struct probe {
    gac_device *device;
    const gac_probe_options *options;
    gac_error *err;
    gac_timing_rules rules;
    bool keep_samples;
    probe_point *points;
    size_t n_points, n_room;
    size_t phase_first; /* point of the phase */
    int n_no_memory, n_throttled;
    const char *phase;
    int group;                            /* of the next point */
    double phase_start_s, start_s, end_s; /* of the dtype: end_s is when its time is up */
    double rest_left_s;                   /* for a card below its highest clock */
    char stack[96];                       /* of the fallback, once it has been asked */
    json_t *sources;                      /* texts for the contract */
    json_t *seconds;                      /* by phase */
    json_t *names;                        /* kernel names that points borrow */
    json_t *kernels;  /* which tasks were asked for theirs, and what they said */
    double floor_pct; /* how far repeated medians of one task lie apart */
    double drift_pct; /* and how far those at the end from those at the start */
    double copy_bytes_per_s;
    double library_s;  /* spent on attention by the vendor's kernels, */
    int64_t n_library; /* so many of them */
    uint64_t random;
} probe;

/* ---- probe_points.c: measuring one thing ---- */

gac_status probe_start(probe *p, gac_device *device, const gac_probe_options *options,
                       bool keep_samples, gac_error *err);
void probe_dispose(probe *p);
double probe_left_s(const probe *p); /* of the dtype's time */
/* From now on a card may rest for a tenth of the time of a dtype. */
void probe_grant_rest(probe *p);
/* Names what follows, for progress, raw points and the time it took. */
void probe_begin(probe *p, const char *phase, const char *dtype, size_t n_points);
void probe_step(probe *p, size_t n_done);
void probe_finish(probe *p);
/* Adds a line to sources. */
GAC_PRINTF(2, 3) void probe_note(probe *p, const char *format, ...);

/* Times one task; out need not be NULL and borrows from the probe. What cannot
 * be measured is no failure, as long as it is rare. */
gac_status probe_measure(probe *p, const gac_task_spec *spec, probe_point *out);
/* Times attention calls by the vendor's kernel, if library, and what declines by
 * the fallback, which is asked for the names of its kernels, or not. out has room
 * for n. */
gac_status probe_measure_sdpa(probe *p, const gac_task_spec *specs, int n, bool library, bool names,
                              probe_point *out);
gac_task_spec probe_gemm_spec(gac_dtype dtype, int64_t m, int64_t n, int64_t k);
gac_task_spec probe_sdpa_spec(gac_dtype dtype, const gac_sdpa_shape *shape);
uint64_t probe_random(probe *p);
double probe_uniform(probe *p, double low, double high);
json_t *probe_noise_json(const probe *p);
json_t *probe_raw_json(const probe *p);
json_t *probe_spec_json(const probe_point *point);

/* The kernel that runs longest in a call, into name, which may stay empty. */
gac_status probe_kernel(probe *p, const gac_task_spec *spec, char *name, size_t size);

/* ---- Tiers ---- */

typedef struct probe_tiers {
    gac_found_tiers found;
    char kernel[GAC_MAX_FOUND_TIERS][160];
    char decode_kernel[GAC_MAX_FOUND_TIERS][160];
} probe_tiers;

/* For qsort of numbers. */
int probe_by_value(const void *a, const void *b);
/* Sorts values; 0 when there are none. */
double probe_median(double *values, int n);

/* A size near value of tier t and of no better one, not below 1. */
int64_t probe_grid_size(const gac_found_tiers *tiers, int t, int64_t value, int turn);
int64_t probe_tier_size(const gac_found_tiers *tiers, int t, int64_t value);
int probe_tier_of(const gac_found_tiers *tiers, int64_t size);
int64_t probe_aligned_multiple(const gac_found_tiers *tiers);
int probe_n_served(const gac_found_tiers *tiers);

/* ---- GEMM ---- */

#define PROBE_MAX_AXIS 2048

/* Times over three axes, the first outermost; NaN where not measured. */
typedef struct probe_table {
    int n_axis[3];
    int64_t *axis[3]; /* rising */
    double *time_us;
    int64_t n_late; /* cells that were left out, the time being up */
} probe_table;

gac_status probe_table_set_axis(probe_table *t, int axis, const int64_t *sizes, int n,
                                gac_error *err);
gac_status probe_table_alloc(probe_table *t, gac_error *err);
void probe_table_dispose(probe_table *t);
size_t probe_table_cells(const probe_table *t);
/* Drops every second inner value of the longest axis, or where the second has every
 * size, of the longer of the others; false when there is nothing left to drop. */
bool probe_table_coarsen(probe_table *t, bool every_n);
/* The table's axis as JSON, and its times. */
json_t *probe_axis_json(const probe_table *t, int axis);
json_t *probe_times_json(const probe_table *t);

enum { PROBE_MAX_PARTS = 8, PROBE_MAX_EVERY_N = 8 };

/* What a k costs that is a multiple of a part of a cache line: a factor for every part. */
typedef struct probe_cacheline {
    int n_parts;
    int64_t part[PROBE_MAX_PARTS];
    double factor[PROBE_MAX_PARTS];
} probe_cacheline;

typedef struct probe_gemm {
    gac_dtype dtype;
    probe_tiers place[2]; /* by gac_op_axis: n, k */
    struct probe_gemm_table {
        int tier_n, tier_k;
        bool every_n;      /* at rows that are common */
        probe_table table; /* axes are rows, n and k */
    } tables[2 * GAC_MAX_FOUND_TIERS * GAC_MAX_FOUND_TIERS + PROBE_MAX_EVERY_N];
    int n_tables;
    probe_cacheline cacheline;
    gac_gemm_shape *exact; /* shapes measured on the way, for points */
    double *exact_us;
    size_t n_exact, n_exact_room;
} probe_gemm;

gac_status probe_gemm_tiers(probe *p, probe_gemm *g); /* GAC_CHECK: the dtype is not served */
gac_status probe_gemm_tables(probe *p, probe_gemm *g);
/* Of a point among many, more where they differ: from one measurement to the next it differs
 * by more than they do. */
enum { PROBE_FEW_SAMPLES = 2 };
#define PROBE_MAX_POINT_US 1000 /* of tables: longer ones are left to extrapolation */
/* Measures the cells of all tables, mixed; what has not begun at end_s is left out. */
gac_status probe_gemm_fill(probe *p, probe_gemm *g, double end_s);
/* The call of a table's cell, by its places on the axes. */
gac_task_spec probe_cell_spec(const probe_gemm *g, const struct probe_gemm_table *t,
                              const int at[3]);
/* Bytes of the operands; and how many a point may have. */
double probe_gemm_bytes(gac_dtype dtype, int64_t m, int64_t n, int64_t k);
double probe_memory_limit(const probe *p);
gac_status probe_gemm_cacheline(probe *p, probe_gemm *g);
/* Whether sizes of a tier differ from the best ones by lines, not by kernels. */
bool probe_is_fast(const gac_found_tier *tier);
/* A k of whole lines of the cache, in the best tier: what tables of it have. */
int64_t probe_line_multiple(const probe_gemm *g);
json_t *probe_cacheline_json(const probe_gemm *g);
/* Exact points at every size around common ones. */
gac_status probe_gemm_near(probe *p, probe_gemm *g);
gac_status probe_gemm_kernels(probe *p, probe_gemm *g);
gac_status probe_gemm_add_exact(probe *p, probe_gemm *g, const probe_point *point);
json_t *probe_gemm_json(const probe_gemm *g, const char *falls_back_to);
void probe_gemm_dispose(probe_gemm *g);

/* ---- SDPA ---- */

typedef struct probe_sdpa {
    gac_dtype dtype;
    probe_tiers tiers;
    bool library[GAC_MAX_FOUND_TIERS]; /* the vendor's kernel serves the tier */
    gac_sweep_point *curve;            /* at the reference shape, up to max_head */
    int n_curve;
    gac_sweep_point *beyond;
    int n_beyond;
    char beyond_kernel[160];
    gac_sdpa_path beyond_path;
    int64_t max_head;
    int64_t tile[GAC_MAX_FOUND_TIERS];           /* lengths are worked on in multiples of this */
    probe_table prefill[GAC_MAX_FOUND_TIERS][2]; /* rows, length, head; not causal, causal */
    probe_table decode[GAC_MAX_FOUND_TIERS];
    double pad_bytes_per_s[GAC_MAX_FOUND_TIERS]; /* of keys and values; 0: they are not copied */
    bool has_tables;
} probe_sdpa;

#define PROBE_DECODE_GROUP 4

gac_sdpa_shape probe_prefill_shape(int64_t rows, int64_t length, int64_t head, bool causal);
gac_sdpa_shape probe_decode_shape(int64_t rows, int64_t context, int64_t head);
gac_status probe_sdpa_tiers(probe *p, probe_sdpa *s);
gac_status probe_sdpa_tables(probe *p, probe_sdpa *s);
gac_status probe_sdpa_kernels(probe *p, probe_sdpa *s);
json_t *probe_sdpa_json(const probe_sdpa *s);
void probe_sdpa_dispose(probe_sdpa *s);

/* ---- The contract ---- */

/* The file of a contract as a tree; the caller owns *out. */
gac_status probe_contract_json(const gac_contract *contract, json_t **out, gac_error *err);

/* Whether a contract can have this runtime: told before measuring, not after. */
gac_status probe_check_runtime(const json_t *runtime, gac_error *err);

/* value to four significant digits. */
json_t *probe_number(double value);
/* Tiers as the contract has them; place is for GEMM's decode_basis. */
json_t *probe_tiers_json(const probe_tiers *tiers, bool gemm);

/* -1: a is the faster one, by more than 5 %; 1: b is; 0: neither. */
int probe_order(const probe_point *a, const probe_point *b);
/* {"n_over_5_pct", "right_pct"}; without the latter where there is no pair. */
json_t *probe_right_json(int n_right, int n);
/* Held-out shapes of a dtype against contract; sdpa may be NULL. Adds to the
 * accuracy object. */
gac_status probe_accuracy(probe *p, const gac_contract *contract, const probe_gemm *gemm,
                          const probe_sdpa *sdpa, json_t *accuracy);

#endif

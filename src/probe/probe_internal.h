/* What the files of the probe share. */
#ifndef GAC_PROBE_INTERNAL_H
#define GAC_PROBE_INTERNAL_H

#include "base/arena.h"
#include "base/order_statistics.h"

#include <gac/probe.h>

#include <jansson.h>

/* probe_points.c: measuring one point. */

typedef enum probe_outcome {
    PROBE_MEASURED,
    PROBE_DECLINED,  /* nothing serves it */
    PROBE_NO_MEMORY, /* there was no memory to measure it */
    PROBE_THROTTLED  /* every sample was discarded */
} probe_outcome;

/* One timed task. */
typedef struct probe_point {
    gac_task_spec spec;
    probe_outcome outcome;
    double time_us;     /* NaN unless measured */
    double noise;       /* standard error over the time */
    bool fallback;      /* served by the fallback, not by the device's plug-in */
    const char *kernel; /* what served it, where known; owned by the probe */
} probe_point;

enum { PROBE_MAX_SOURCES = 64 };

/* A probe under way. */
typedef struct probe {
    gac_device *device;
    const gac_probe_options *options;
    gac_error *err;
    gac_arena arena; /* memory that lives as long as the probe */
    gac_timing_rules rules;
    int n_points;             /* so far */
    json_t *raw;              /* every point; NULL: not wanted */
    gac_contract_noise noise; /* so far */
    double *noise_pct;        /* of each point that the device measured */
    int32_t n_noise, noise_capacity;
    const char *sources[PROBE_MAX_SOURCES]; /* of the contract */
    int n_sources;
    const char *phase;
    int phase_first; /* point of the phase */
    int group;       /* of candidates, to which the next point belongs; 0: none */
    double phase_start_s, start_s;
    double end_s;       /* when the time of the dtype is up */
    double rest_left_s; /* how long a card below its highest clock may still rest */
    char stack[96];     /* of the fallback, once it has been asked */
    json_t *seconds;    /* by phase, for raw results */
    json_t *kernels;    /* tasks and their kernels, for raw results */
    double library_s;   /* time spent on attention by the vendor's kernels, */
    int64_t n_library;  /* and how many calls that were */
    uint64_t random;
} probe;

gac_status probe_start(probe *p, gac_device *device, const gac_probe_options *options,
                       bool keep_raw, gac_error *err);
void probe_dispose(probe *p);
/* Refuses options that make no sense. */
gac_status probe_check_options(const gac_probe_options *options, gac_error *err);
double probe_left_s(const probe *p); /* of the dtype's time */
/* From now on a card may rest for a tenth of the time of a dtype. */
void probe_grant_rest(probe *p);
/* Zeroed memory for n elements, which the probe owns; NULL without memory. */
void *probe_alloc(probe *p, size_t n, size_t element_bytes);
/* Starts a phase: progress, raw points and seconds carry its name. */
void probe_begin(probe *p, const char *phase, const char *dtype, size_t n_points);
void probe_step(probe *p, size_t n_done);
void probe_finish(probe *p);
/* Adds a line to the contract's sources. */
GAC_PRINTF(2, 3) void probe_note(probe *p, const char *format, ...);

/* Writes the date to out, and gives out. */
const char *probe_today(char out[16]);

/* Times one task; out borrows from the probe. A point that cannot be measured is no
 * failure as long as that is rare. */
gac_status probe_measure(probe *p, const gac_task_spec *spec, probe_point *out);
/* Times attention calls into out (n). With library the vendor's kernel is tried first;
 * the fallback serves what it declines. With names the fallback also names its kernels. */
gac_status probe_measure_sdpa(probe *p, const gac_task_spec *specs, int n, bool library, bool names,
                              probe_point *out);
gac_task_spec probe_gemm_spec(gac_dtype dtype, int64_t m, int64_t n, int64_t k);
gac_task_spec probe_sdpa_spec(gac_dtype dtype, const gac_sdpa_shape *shape);
uint64_t probe_random(probe *p);
double probe_uniform(probe *p, double low, double high);
/* Writes the name of the kernel that runs longest in a call; it may stay empty. */
gac_status probe_kernel(probe *p, const gac_task_spec *spec, char *name, size_t size);

/* probe_raw.c: keeping all points. */

/* Counts a point for the noise, and keeps it if raw points are wanted. timing may be NULL. */
gac_status probe_keep(probe *p, const probe_point *point, const gac_timing *timing);
/* Completes the noise so far. */
void probe_sum_up_noise(probe *p);
json_t *probe_spec_json(const gac_task_spec *spec);
json_t *probe_raw_json(const probe *p);

/* probe_tiers.c: which multiples a GPU tells apart. */

/* One size of a sweep. */
typedef struct probe_sweep_point {
    int64_t size;
    double time_us; /* meaningless when declined */
    double noise;   /* standard error over the time; 0 when unknown */
    bool declined;  /* nothing serves this size */
} probe_sweep_point;

/* Times at rising sizes of one axis, all else equal. Borrowed. */
typedef struct probe_sweep {
    const probe_sweep_point *points;
    int n_points;
} probe_sweep;

enum {
    PROBE_MAX_TIERS = 9, /* multiples 256, 128, …, 1 */
    PROBE_MAX_SWEEP = 512,
    PROBE_MAX_SWEEPS = 8
};

typedef struct probe_tier {
    int64_t multiple;
    bool aligned;   /* within a tenth of the best at most anchors, within a half at all */
    bool served;    /* by anything at all */
    double penalty; /* time over that of the best tier, in the worst sweep */
    char kernel[160], decode_kernel[160]; /* may be empty */
} probe_tier;

typedef struct probe_tiers {
    int n_tiers; /* best first: multiples fall, the last is 1 */
    probe_tier tier[PROBE_MAX_TIERS];
} probe_tiers;

/* Finds the tiers of one axis from sweeps at several anchors. Multiples of p are a tier
 * of their own when in some sweep they are faster, by more than 8 % and more than noise,
 * than the sizes right before and after them that are multiples of p / 2 only. Both sides
 * must be slower: a step of a tile or a wave has one slow side, and is no tier. Multiples
 * of 64 and more must show it in two sweeps, if there are two. GAC_CHECK when no size is
 * served. */
gac_status probe_find_tiers(const probe_sweep *sweeps, int n_sweeps, probe_tiers *out,
                            gac_error *err);

/* A size near value that is of tier t and of no better one, at least 1. */
int64_t probe_tier_size(const probe_tiers *tiers, int t, int64_t value);
/* Likewise for the axis of a table, where turn counts the sizes. */
int64_t probe_grid_size(const probe_tiers *tiers, int t, int64_t value, int turn);
int probe_tier_of(const probe_tiers *tiers, int64_t size);
int64_t probe_aligned_multiple(const probe_tiers *tiers);
int probe_n_served(const probe_tiers *tiers);

/* probe_tables.c: planning tables. */

#define PROBE_MAX_AXIS 2048

/* Times over three axes, the first outermost; NaN where not measured. */
typedef struct probe_table {
    int n_axis[3];
    int64_t *axis[3]; /* rising */
    double *time_us;
    int64_t n_late; /* cells that were left out because the time was up */
} probe_table;

/* sizes end with 0. */
gac_status probe_table_set_axis(probe *p, probe_table *t, int axis, const int64_t *sizes);
gac_status probe_table_alloc(probe *p, probe_table *t);
size_t probe_table_cells(const probe_table *t);

/* GEMM. */

enum { PROBE_MAX_TABLES = 2 * PROBE_MAX_TIERS * PROBE_MAX_TIERS + 8, PROBE_MAX_PARTS = 8 };

typedef struct probe_gemm_table {
    int tier_n, tier_k;
    bool every_n;      /* every aligned n, at common rows */
    probe_table table; /* axes are m, n and k */
} probe_gemm_table;

typedef struct probe_gemm {
    gac_dtype dtype;
    probe_tiers axis[2]; /* by gac_op_axis: n, k */
    probe_gemm_table tables[PROBE_MAX_TABLES];
    int n_tables;
    int n_costs; /* of a k that fills no whole number of cache lines */
    gac_contract_cost costs[PROBE_MAX_PARTS];
} probe_gemm;

/* Room for GEMM rules that borrow from a probe_gemm. */
typedef struct probe_gemm_rules {
    gac_contract_gemm gemm;
    gac_contract_tier tiers[2][PROBE_MAX_TIERS];
    gac_contract_table grid[PROBE_MAX_TABLES], every_n[PROBE_MAX_TABLES];
    gac_contract_cacheline cacheline;
} probe_gemm_rules;

#define PROBE_FEW_SAMPLES 2     /* of a table's point, if they agree: there are many points */
#define PROBE_MAX_POINT_US 1000 /* tables leave longer calls to extrapolation */

gac_status probe_gemm_tiers(probe *p, probe_gemm *g); /* GAC_CHECK: the dtype is not served */
gac_status probe_gemm_cacheline(probe *p, probe_gemm *g);
gac_status probe_gemm_tables(probe *p, probe_gemm *g);
/* Measures the cells of all tables. Columns that have not begun at end_s are left out. */
gac_status probe_gemm_fill(probe *p, probe_gemm *g, double end_s);
gac_status probe_gemm_kernels(probe *p, probe_gemm *g);
double probe_memory_limit(const probe *p); /* bytes that the operands of a point may have */
/* Whether a tier of k has the kernels of the best one, and differs by cache lines only. */
bool probe_is_fast(const probe_tier *tier);
/* The least k of the best tier that fills whole cache lines. */
int64_t probe_line_multiple(const probe_gemm *g);
/* The rules as a contract has them; half serves what the dtype declines. */
void probe_gemm_rules_fill(const probe_gemm *g, gac_dtype half, probe_gemm_rules *out);

/* SDPA. */

enum {
    PROBE_REF_BATCH = 4,
    PROBE_REF_HEADS = 32,
    PROBE_REF_LENGTH = 2048,
    PROBE_DECODE_GROUP = 4,
    PROBE_MAX_CURVE = 256
};

typedef struct probe_sdpa {
    gac_dtype dtype;
    probe_tiers tiers;
    bool library[PROBE_MAX_TIERS]; /* the vendor's kernel serves the tier */
    int64_t max_head;              /* the largest that the tiers serve */
    int n_curve, n_beyond;         /* times at the reference shape: up to max_head, and beyond */
    gac_contract_head curve[PROBE_MAX_CURVE], beyond[PROBE_MAX_CURVE];
    char beyond_kernel[160];
    gac_sdpa_path beyond_path;
    int64_t tile[PROBE_MAX_TIERS];           /* time grows with lengths in steps of this */
    double pad_bytes_per_s[PROBE_MAX_TIERS]; /* of keys and values; 0: they are not copied */
    probe_table prefill[PROBE_MAX_TIERS][2]; /* rows, length, head; causal, and not */
    probe_table decode[PROBE_MAX_TIERS];
    bool has_tables;
} probe_sdpa;

/* Room for attention rules that borrow from a probe_sdpa. */
typedef struct probe_sdpa_rules {
    gac_contract_sdpa sdpa;
    gac_contract_tier tiers[PROBE_MAX_TIERS];
    gac_contract_table prefill[PROBE_MAX_TIERS][2], tables[PROBE_MAX_TIERS];
    gac_contract_reference reference;
    gac_contract_decode decode;
    gac_contract_head slowest;
    gac_contract_beyond beyond;
} probe_sdpa_rules;

gac_status probe_sdpa_tiers(probe *p, probe_sdpa *s);
gac_status probe_sdpa_tables(probe *p, probe_sdpa *s);
gac_status probe_sdpa_kernels(probe *p, probe_sdpa *s);
gac_sdpa_shape probe_prefill_shape(int64_t rows, int64_t length, int64_t head, bool causal);
gac_sdpa_shape probe_decode_shape(int64_t rows, int64_t context, int64_t head);
/* The rules as a contract has them. */
void probe_sdpa_rules_fill(const probe_sdpa *s, probe_sdpa_rules *out);

/* probe_accuracy.c: predictions against measurements. */

/* What one dtype adds to the accuracy of a contract. */
typedef struct probe_judged {
    gac_contract_errors gemm, sdpa;
    gac_contract_regret random_widths, common_widths;
    gac_contract_ranking ranking; /* of these two */
} probe_judged;

/* Summarises n errors of predictions, and sorts them. Without errors all is 0. */
void probe_summarise(double *errors_pct, int n, gac_contract_errors *out);
/* -1: a is over 5 % faster than b; 1: b is than a; 0: neither, or a time is NaN. */
int probe_order(double a_us, double b_us);
gac_contract_pairs probe_pairs(int n_right, int n);
/* Measures held-out shapes of a dtype and compares contract with them; sdpa may be NULL. */
gac_status probe_accuracy(probe *p, const gac_contract *contract, const probe_gemm *gemm,
                          const probe_sdpa *sdpa, probe_judged *out);

#endif

/* probe: measures a GPU and writes its contract.
 *
 * Sweeps sizes, finds the tiers, fills tables of times, and states how well
 * they predict shapes that were not measured. Models are not known here.
 *
 * A probe uses its device alone, from one thread. */
#ifndef GAC_PROBE_H
#define GAC_PROBE_H

#include <gac/base.h>
#include <gac/contract.h>
#include <gac/device.h>
#include <gac/timing.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

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

/* How PyTorch is asked. */
typedef struct gac_probe_pytorch {
    const char *device;     /* "cuda:N"; NULL: the first */
    gac_progress *progress; /* NULL: silent */
    bool quick;             /* a card below its highest clock is not waited for */
    gac_pytorch *pytorch;   /* NULL at first: started by the first question */
} gac_probe_pytorch;

#define GAC_PROBE_PYTORCH_INIT \
    { \
        NULL, NULL, false, NULL \
    }

/* A gac_probe_fallback whose context is a gac_probe_pytorch. GAC_NO_RESOURCE when
 * python3, torch or its GPU is missing. */
gac_status gac_probe_ask_pytorch(void *context, const gac_task_spec *specs, int n, bool names,
                                 gac_probe_served *out, char stack[96], gac_error *err);
/* Ends what was started; it may be asked again. */
void gac_probe_end_pytorch(gac_probe_pytorch *how);

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
        NULL, NULL, 0, false, 1, 255, NULL, NULL, NULL, NULL, NULL \
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

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

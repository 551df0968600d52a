/* probe: measures a GPU and makes its contract.
 *
 * A probe sweeps sizes, finds the tiers, fills tables of times, and states how
 * well these predict shapes that it did not measure. It knows no models.
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

/* Attention that the vendor's kernel declines. */

/* How such a call was served. */
typedef struct gac_probe_served {
    double time_us;   /* NaN: nothing serves it */
    char kernel[256]; /* empty where names were not asked for */
} gac_probe_served;

/* Times n attention calls as a user's stack serves them. It writes the name of that
 * stack ("torch 2.11") to stack, at most 96 bytes. With names it also names the
 * kernels, which takes longer. */
typedef gac_status (*gac_probe_fallback)(void *context, const gac_task_spec *specs, int n,
                                         bool names, gac_probe_served *out, char stack[96],
                                         gac_error *err);

/* How PyTorch is asked. */
typedef struct gac_probe_pytorch {
    const char *device;     /* "cuda:N"; NULL: the first */
    gac_progress *progress; /* NULL: silent */
    bool quick;             /* do not wait for a card below its highest clock */
    gac_pytorch *pytorch;   /* NULL at first: the first question starts it */
} gac_probe_pytorch;

#define GAC_PROBE_PYTORCH_INIT \
    { \
        NULL, NULL, false, NULL \
    }

/* A gac_probe_fallback whose context is a gac_probe_pytorch. GAC_NO_RESOURCE when
 * python3, torch or its GPU is missing. */
gac_status gac_probe_ask_pytorch(void *context, const gac_task_spec *specs, int n, bool names,
                                 gac_probe_served *out, char stack[96], gac_error *err);
/* Ends the PyTorch that the first question started. The next question starts another.
 * NULL is fine. */
void gac_probe_end_pytorch(gac_probe_pytorch *how);

/* Probing. */

#define GAC_PROBE_MAX_DTYPES 8

typedef struct gac_probe_options {
    const char *name;        /* of the contract; NULL: made from the GPU's name */
    const gac_dtype *dtypes; /* one to GAC_PROBE_MAX_DTYPES */
    int n_dtypes;
    bool quick;                  /* coarse tables, few held-out shapes */
    uint64_t seed;               /* of held-out shapes */
    double max_time_s;           /* per dtype: tables then end, with fewer sizes */
    const gac_runtime *runtime;  /* goes into the contract as it is; NULL: none */
    gac_probe_fallback fallback; /* NULL: own flash kernel, then the math path */
    void *fallback_context;
    gac_progress *progress;
    const gac_log *log;
} gac_probe_options;

#define GAC_PROBE_OPTIONS_INIT \
    { \
        NULL, NULL, 0, false, 1, 255, NULL, NULL, NULL, NULL, NULL \
    }

/* Measures a GPU. The caller owns *contract. raw may be NULL; else *raw gets a JSON
 * object with every point and its samples, which the caller owns. GAC_NO_RESOURCE when
 * the GPU serves none of the dtypes, or too many points find no memory. */
gac_status gac_probe_run(gac_device *device, const gac_probe_options *options,
                         gac_contract **contract, struct json_t **raw, gac_error *err);

/* Measures the given shapes in the first dtype, by the rules for reported figures. It
 * measures GEMMs in up to three rounds, while max_time_s lasts. *contract is a copy of
 * base with these shapes as exact points. */
gac_status gac_probe_shapes(gac_device *device, const gac_probe_options *options,
                            const gac_contract *base, const gac_gemm_shape *gemm, size_t n_gemm,
                            const gac_sdpa_shape *sdpa, size_t n_sdpa, gac_contract **contract,
                            struct json_t **raw, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

/* contract: what one GPU with one software stack asks of sizes.
 *
 * A contract is measured, or taken from published figures, and says which of
 * the two and where from. It knows operators and sizes, no models. All times
 * are of one operator call.
 *
 * A contract is immutable once loaded and may be shared between threads. */
#ifndef GAC_CONTRACT_H
#define GAC_CONTRACT_H

#include <gac/base.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct gac_contract gac_contract;

/* The contracts compiled into the library. */
int gac_contract_n_bundled(void);
const char *gac_contract_bundled_name(int index);
/* A name that is not bundled is GAC_USAGE; the message lists those that are. */
gac_status gac_contract_load_bundled(const char *name, gac_contract **out, gac_error *err);
gac_status gac_contract_load(const char *path, gac_contract **out, gac_error *err);
/* Validates and takes a contract from text; source names it in errors. */
gac_status gac_contract_parse(const char *text, size_t n_bytes, const char *source,
                              gac_contract **out, gac_error *err);
void gac_contract_free(gac_contract *contract); /* NULL is fine */

/* Borrowed, as long as the contract lives. */
const char *gac_contract_name(const gac_contract *contract);
const char *gac_contract_gpu(const gac_contract *contract);
/* What the file says of itself: GPU, stack, sources, accuracy, …; no rules or times. */
const struct json_t *gac_contract_about(const gac_contract *contract);

/* The whole file, parsed anew: about half a microsecond for every number in it.
 * The caller owns *out. */
gac_status gac_contract_json(const gac_contract *contract, struct json_t **out, gac_error *err);

/* The dtype whose rules serve dtype: itself where measured, else the one the
 * contract states as stand-in. False when there is neither. */
bool gac_contract_dtype(const gac_contract *contract, gac_dtype dtype, gac_dtype *out);

/* The smallest multiple among the aligned tiers at this place (8 in FP16,
 * mostly); 0 for a dtype that is not served. */
int64_t gac_contract_multiple(const gac_contract *contract, gac_op_axis seen, gac_dtype dtype);

/* What the contract says of one size at one place. */
typedef struct gac_judgement {
    bool aligned;       /* its tier is one the contract marks as aligned */
    int tier;           /* 0 is the best; the number of tiers for a head no kernel serves */
    bool served;        /* false: no kernel of the dtype takes it, another dtype's run */
    gac_dtype runs_as;  /* the dtype whose kernels run */
    int64_t multiple;   /* what its tier asks, and where not served that of runs_as: 8, 2, 1 */
    double penalty;     /* time at this size over time at the next aligned one */
    const char *kernel; /* what serves it, as its name starts; borrowed; may be NULL, see below */
    const char *family; /* nvjet, cutlass-align2, cudnn-flash, …; likewise */
    const char *basis;  /* measured, published or assumed; borrowed */
} gac_judgement;

/* Judges size at a place of an operator: n_rows is the GEMM's m (tokens in
 * flight; below 256 it is decode), other its other weight axis, taken as
 * aligned. For SDPA both are ignored. One row has kernels of its own: where
 * the contract does not name them, kernel and family are NULL. GAC_USAGE for a
 * dtype that is not served and for sizes below 1. */
gac_status gac_contract_judge(const gac_contract *contract, gac_op_axis seen, gac_dtype dtype,
                              int64_t size, int64_t n_rows, int64_t other, gac_judgement *out,
                              gac_error *err);

/* Predicted time in microseconds of y = x W^T with x (m, k) and W (n, k), the
 * weights streamed from device memory; a point measured at exactly this shape
 * wins. 0 when any size is 0, NaN for a dtype that is not served. */
double gac_contract_gemm_us(const gac_contract *contract, gac_dtype dtype, int64_t m, int64_t n,
                            int64_t k);

/* Predicted time in microseconds of one attention call; likewise. */
double gac_contract_sdpa_us(const gac_contract *contract, gac_dtype dtype,
                            const gac_sdpa_shape *shape);

/* What a runtime spends per layer beside GEMM and attention: norms, rotary
 * embeddings, activations, additions, launches. */
typedef struct gac_runtime {
    const char *name;       /* "transformers 5.17.0 eager, …"; borrowed */
    double layer_us;        /* once per layer in prefill */
    double decode_layer_us; /* and in decode */
    double hidden_ps;       /* per token and element of the hidden size, picoseconds */
    double width_ps;        /* per token and element of the MLP width */
    double kv_ps; /* decode: per cached token and element of its key, where heads share keys */
} gac_runtime;

/* False when the contract says nothing of a runtime. */
bool gac_contract_runtime(const gac_contract *contract, gac_runtime *out);

/* The median error, in percent, that the contract states for its predictions in
 * dtype of the operators that see a size at a place: GEMMs or attention. False
 * when it states none that is at least 0 and below 100. */
bool gac_contract_median_error(const gac_contract *contract, gac_dtype dtype, gac_op_axis seen,
                               double *out_pct);

/* What a contract may say of its own predictions before they are called rough. */
#define GAC_ROUGH_MEDIAN_PCT 10.0
#define GAC_ROUGH_P95_PCT 25.0

/* Whether the errors that the contract states for dtype, of GEMM or of attention,
 * are over those; out then gets one line for people with the figures. A contract
 * that states none is not rough. */
bool gac_contract_is_rough(const gac_contract *contract, gac_dtype dtype, char *out, size_t size);

/* ---- Differences ------------------------------------------------------- */

/* Compares dtype_a of a with dtype_b of b, or, when both are GAC_DTYPE_COUNT,
 * every dtype that both have: {"same", "stack", "runtime", "dtypes_only_in_a",
 * "dtypes_only_in_b", "stand_ins", "compared": [{"dtype_a", "dtype_b",
 * "served_by_a", "served_by_b", "falls_back_a", "falls_back_b", "places": [{"place", "tiers_a",
 * "tiers_b", "touches": […], "times": […]}], "times", "aligned": […], "points", "steps": […],
 * "max_head"}]}; docs/measurement.md says what each of them is. An entry of touches is a class of
 * sizes that one of the two serves differently, of times one whose predicted times have changed
 * more than most, with a text that says so. The caller owns *out. GAC_USAGE for a dtype that one of
 * them does not have. */
gac_status gac_contract_diff(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                             gac_dtype dtype_b, struct json_t **out, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

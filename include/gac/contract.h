/* contract: which sizes one GPU with one software stack serves well, and how
 * long they take.
 *
 * A contract is measured or derived from published figures, and states which.
 * It knows operators and sizes, but no models. All times are those of one
 * operator call.
 *
 * A contract is immutable once loaded and may be shared between threads.
 *
 * Functions that return no status take NULL: they answer NaN, false, 0 or NULL. */
#ifndef GAC_CONTRACT_H
#define GAC_CONTRACT_H

#include <gac/base.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The structure.
 *
 * docs/contract.md describes the file of a contract. Texts and lists belong to
 * the contract and live as long as it does. If the file does not state a value,
 * a number is NaN, a text or an object is NULL, and a size is 0. Lists by dtype
 * have NULL for a dtype without rules. */

/* Fitted rates of a GEMM tier: the time model where there are no tables. */
typedef struct gac_contract_rates {
    double flops_per_s;      /* NaN: the tier has no rates */
    double bytes_per_s;      /* streaming weights */
    double edge_bytes_per_s; /* moving x and y */
    double overhead_us;
    double overlap; /* 0 to 1: how much of multiplying or streaming, the shorter one, is hidden */
    double gemv_bytes_per_s, gemv_overhead_us; /* m = 1; NaN if one row has no kernel of its own */
} gac_contract_rates;

/* Times over a grid of three sizes: GEMM (m, n, k), attention (rows, length, head). */
typedef struct gac_contract_table {
    int64_t n_multiple, k_multiple; /* GEMM: the tiers that it was measured for */
    bool causal;                    /* prefill */
    int64_t group;                  /* decode: query heads per key head */
    size_t n_sizes[3];
    const int64_t *sizes[3]; /* rising */
    size_t n_us;
    const double *us; /* (n_sizes[0], n_sizes[1], n_sizes[2]); NaN where not measured */
} gac_contract_table;

/* A tier: the sizes that are a multiple of this and belong to no better tier. */
typedef struct gac_contract_tier {
    int64_t multiple;
    bool aligned;       /* a good tier: its sizes need no repair */
    bool served;        /* false: no kernel of the dtype takes such sizes */
    const char *kernel; /* with many rows */
    const char *family;
    const char *decode_kernel; /* with one row; may be NULL */
    const char *decode_family;
    const char *basis;        /* measured, published or assumed */
    const char *decode_basis; /* GEMM */
    double worst_penalty;     /* worst time over the time of an aligned size; may be NaN */
    gac_contract_rates rates; /* GEMM */
    int64_t tile; /* attention: kernels round lengths up to a multiple of this; 0 means 1 */
    double pad_bytes_per_s; /* attention: copies of keys into padded buffers; NaN: none */
    size_t n_prefill;       /* 0, or 2: causal and not */
    const gac_contract_table *prefill;
    const gac_contract_table *decode;
} gac_contract_tier;

/* Cost of a k that is a multiple of this but does not fill whole cache lines:
 * it takes factor times as long as the next k that does. */
typedef struct gac_contract_cost {
    int64_t multiple;
    double factor;
} gac_contract_cost;

typedef struct gac_contract_cacheline {
    int64_t multiple; /* elements in a cache line */
    size_t n_costs;
    const gac_contract_cost
        *costs; /* each multiple is smaller than the one before and divides it */
} gac_contract_cacheline;

/* GEMM in one dtype. */
typedef struct gac_contract_gemm {
    size_t n_n, n_k; /* number of tiers; aligned ones first, best first; the last multiple is 1 */
    const gac_contract_tier *n, *k;
    gac_dtype falls_back_to; /* runs sizes that are not served; GAC_DTYPE_COUNT: there are none */
    size_t n_grid;
    const gac_contract_table
        *grid; /* one per pair of tiers, and optionally a finer one for m = 1 alone */
    size_t n_every_n;
    const gac_contract_table *every_n;         /* every aligned n at common m, for the best tiers */
    const gac_contract_cacheline *k_cacheline; /* may be NULL */
} gac_contract_gemm;

typedef struct gac_contract_head {
    int64_t head;
    double time_us;
} gac_contract_head;

/* The shape that the curve over head sizes was measured at. */
typedef struct gac_contract_reference {
    int64_t batch, n_heads, n_q, n_kv;
    bool causal;
} gac_contract_reference;

typedef struct gac_contract_decode {
    double bytes_per_s, overhead_us;
    const char *basis;
} gac_contract_decode;

/* The kernels for heads above max_head. */
typedef struct gac_contract_beyond {
    const char *kernel, *family, *basis;
    size_t n_points;
    const gac_contract_head *points;
} gac_contract_beyond;

/* Attention in one dtype. */
typedef struct gac_contract_sdpa {
    gac_dtype same_as; /* the dtype whose attention runs instead; GAC_DTYPE_COUNT: its own */
    const gac_contract_reference *reference;
    int64_t max_head;
    size_t n_tiers;
    const gac_contract_tier *tiers;
    const gac_contract_decode *decode;
    size_t n_points; /* points of the curve; 0: no times are known */
    const gac_contract_head *points;
    const gac_contract_beyond *beyond;
} gac_contract_sdpa;

typedef struct gac_contract_stand_in {
    gac_dtype dtype;
    const char *reason;
} gac_contract_stand_in;

typedef struct gac_contract_point {
    gac_dtype dtype;
    int64_t m, n, k;
    double time_us;
} gac_contract_point;

typedef struct gac_contract_sdpa_point {
    gac_dtype dtype;
    gac_sdpa_shape shape;
    double time_us;
} gac_contract_sdpa_point;

/* Errors of predictions at shapes that are in no table. */
typedef struct gac_contract_errors {
    int64_t n_points;
    double median_pct, p95_pct, max_pct, bias_pct;
} gac_contract_errors;

/* Quality of choosing among candidates for one size. Regret is how much longer
 * the chosen candidate takes than the best one. right_pct is the share of pairs
 * over 5 % apart that are in the right order. */
typedef struct gac_contract_regret {
    int64_t n_groups;
    double regret_mean_pct, regret_p95_pct, regret_max_pct;
    int64_t n_over_5_pct;
    double right_pct;
} gac_contract_regret;

typedef struct gac_contract_ranking {
    const gac_contract_regret *random_widths, *common_widths;
} gac_contract_ranking;

typedef struct gac_contract_pairs {
    int64_t n_over_5_pct;
    double right_pct;
} gac_contract_pairs;

/* Errors of predictions for the shapes of a model, before these shapes were
 * measured. */
typedef struct gac_contract_model_errors {
    int64_t n_points, n_rounds;
    double median_pct, p95_pct;
    const gac_contract_pairs *predicted, *measured;
} gac_contract_model_errors;

typedef struct gac_contract_accuracy {
    const gac_contract_errors *gemm[GAC_DTYPE_COUNT], *sdpa[GAC_DTYPE_COUNT];
    const gac_contract_ranking *ranking[GAC_DTYPE_COUNT];
    const gac_contract_model_errors *model[GAC_DTYPE_COUNT];
    const char *held_out; /* describes the held-out shapes */
} gac_contract_accuracy;

/* How steady the measurements were. */
typedef struct gac_contract_noise {
    double median_pct, p95_pct, floor_pct, drift_pct;
    int64_t n_points, n_samples, n_discarded, n_unsettled, n_power_limited, n_no_memory,
        n_throttled;
    int64_t clock_mhz_min, clock_mhz_max, temperature_c_max; /* -1: not known */
    double seconds, copy_bytes_per_s;
} gac_contract_noise;

/* The time that a runtime needs per layer besides GEMM and attention: norms,
 * rotary embeddings, activations, additions, launches. */
typedef struct gac_runtime {
    const char *name;       /* "transformers 5.17.0 eager, …"; borrowed */
    double layer_us;        /* prefill: per layer */
    double decode_layer_us; /* decode: per layer */
    double hidden_ps;       /* per token and element of the hidden size, picoseconds */
    double width_ps;        /* per token and element of the MLP width */
    double kv_ps; /* decode, if heads share keys: per cached token and element of its key */
    const char *basis, *torch, *gpu; /* the last two may be NULL */
} gac_runtime;

typedef struct gac_contract_text {
    const char *key, *value;
} gac_contract_text;

typedef struct gac_contract {
    const char *name, *gpu, *arch;
    bool provisional; /* from published figures or assumed, not measured */
    size_t n_aliases;
    const char *const *aliases; /* other names of the same GPU, for --gpu */
    size_t n_stack;
    const gac_contract_text *stack; /* names and versions: driver, cuda, cublas, … */
    size_t n_sources;
    const char *const *sources;
    size_t n_dtypes;
    const gac_dtype *dtypes; /* dtypes with rules of their own */
    const gac_contract_stand_in *stands_for[GAC_DTYPE_COUNT];
    const gac_contract_noise *noise;
    const gac_contract_accuracy *accuracy;
    const gac_runtime *runtime;
    const gac_contract_gemm *gemm[GAC_DTYPE_COUNT];
    const gac_contract_sdpa *sdpa[GAC_DTYPE_COUNT];
    size_t n_points;
    const gac_contract_point *points; /* sorted */
    size_t n_sdpa_points;
    const gac_contract_sdpa_point *sdpa_points; /* sorted */
    struct gac_arena_block *memory; /* owns everything above; NULL if the contract is compiled in */
} gac_contract;

/* Loading and writing. */

/* The contracts compiled into the library. Loading one costs nothing. */
int gac_contract_n_bundled(void);
const char *gac_contract_bundled_name(int index);
/* Finds a contract by its name, its GPU or an alias, ignoring case, spaces,
 * dashes and a leading "NVIDIA". GAC_USAGE for an unknown name; the message
 * lists the known ones. */
gac_status gac_contract_load_bundled(const char *name, gac_contract **out, gac_error *err);
gac_status gac_contract_load(const char *path, gac_contract **out, gac_error *err);
/* Reads and validates a contract. source names it in errors. */
gac_status gac_contract_parse(const char *text, size_t n_bytes, const char *source,
                              gac_contract **out, gac_error *err);
/* Writes a contract as text that parses to the same structure. The caller frees
 * *text. */
gac_status gac_contract_write(const gac_contract *contract, char **text, size_t *n_bytes,
                              gac_error *err);
/* Copies a contract into memory of its own, and checks it as gac_contract_parse does. This
 * is how a program makes a contract: it fills a gac_contract with pointers to its own memory
 * and copies it. Points need not be sorted. source names the contract in errors. */
gac_status gac_contract_copy(const gac_contract *contract, const char *source, gac_contract **out,
                             gac_error *err);
void gac_contract_free(gac_contract *contract); /* NULL is fine */

/* Reads the file of a runtime, as tools/contract/measure_runtime.py writes it. */
gac_status gac_contract_load_runtime(const char *path, gac_runtime **out, gac_error *err);
/* Frees what gac_contract_load_runtime gave; NULL is fine. */
void gac_contract_free_runtime(gac_runtime *runtime);

/* Borrowed, as long as the contract lives. */
const char *gac_contract_name(const gac_contract *contract);
const char *gac_contract_gpu(const gac_contract *contract);

/* Returns whether the contract predicts times in dtype. An assumed contract
 * only judges sizes. */
bool gac_contract_has_times(const gac_contract *contract, gac_dtype dtype);

/* Finds the dtype whose rules apply to dtype: dtype itself if it was measured,
 * otherwise the stand-in that the contract states. False if there is
 * neither. */
bool gac_contract_dtype(const gac_contract *contract, gac_dtype dtype, gac_dtype *out);

/* Returns the smallest multiple of the aligned tiers on this axis, mostly 8 in
 * F16; 0 for a dtype that is not served. */
int64_t gac_contract_multiple(const gac_contract *contract, gac_op_axis axis, gac_dtype dtype);

/* The contract's judgement of one size on one axis. */
typedef struct gac_judgement {
    bool aligned;      /* the contract marks its tier as aligned */
    int tier;          /* 0 is the best; the number of tiers for a head that no kernel serves */
    bool served;       /* false: no kernel of the dtype takes it, and another dtype's kernels run */
    gac_dtype runs_as; /* the dtype whose kernels run */
    int64_t multiple;  /* of its tier; if not served, also of runs_as: 8, 2, 1 */
    double penalty;    /* time at this size over time at the next aligned one; NaN: not known */
    const char *kernel; /* start of the kernel's name; borrowed; may be NULL, see below */
    const char *family; /* nvjet, cutlass-align2, cudnn-flash, …; borrowed; may be NULL */
    const char *basis;  /* measured, published or assumed; borrowed */
} gac_judgement;

/* Judges size on an axis of an operator. n_rows is the GEMM's m, the number of
 * tokens in one call; below 256 it is decode. other is the size of the weight's
 * other axis, rounded up to an aligned size. SDPA ignores both. One row has
 * kernels of its own; if the contract does not name them, kernel and family are
 * NULL. GAC_USAGE for a dtype that is not served and for sizes below 1. */
gac_status gac_contract_judge(const gac_contract *contract, gac_op_axis axis, gac_dtype dtype,
                              int64_t size, int64_t n_rows, int64_t other, gac_judgement *out,
                              gac_error *err);

/* Predicts the time of y = x W^T in microseconds, with x (m, k) and W (n, k).
 * Weights are not in the cache. If exactly this shape was measured, its time is
 * returned. 0 if any size is 0, NaN for a dtype that is not served or not
 * timed. */
double gac_contract_gemm_us(const gac_contract *contract, gac_dtype dtype, int64_t m, int64_t n,
                            int64_t k);

/* Predicts the time of one attention call in the same way. */
double gac_contract_sdpa_us(const gac_contract *contract, gac_dtype dtype,
                            const gac_sdpa_shape *shape);

/* Gets the runtime of the contract. False if it has none. */
bool gac_contract_runtime(const gac_contract *contract, gac_runtime *out);

/* Gets the median error, in percent, that the contract states for its
 * predictions in dtype: of attention if axis is GAC_OP_SDPA_HEAD, otherwise of
 * GEMMs. False unless the contract states one of at least 0 and below 100. */
bool gac_contract_median_error(const gac_contract *contract, gac_dtype dtype, gac_op_axis axis,
                               double *out_pct);

/* Predictions with larger stated errors are called rough. */
#define GAC_ROUGH_MEDIAN_PCT 10.0
#define GAC_ROUGH_P95_PCT 25.0

/* Returns whether the errors that the contract states for dtype, of GEMM or of
 * attention, exceed these limits. out then gets one line for people with the
 * figures. A contract that states no errors is not rough. */
bool gac_contract_is_rough(const gac_contract *contract, gac_dtype dtype, char *out, size_t size);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

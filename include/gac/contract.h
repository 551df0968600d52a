/* contract: what one GPU with one software stack asks of sizes.
 *
 * A contract is measured, or taken from published figures, and says which of
 * the two and where from. It knows operators and sizes, no models. All times
 * are of one operator call.
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

/* ---- The structure ------------------------------------------------------
 *
 * One contract, as docs/contract.md describes its file. Texts and lists belong
 * to the contract and live as long as it does. A number that the file does not
 * state is NaN, a text or an object NULL, a size 0. Lists by dtype have NULL
 * where the contract says nothing. */

/* Fitted rates of a GEMM tier: the time model where there are no tables. */
typedef struct gac_contract_rates {
    double flops_per_s;      /* NaN: the tier has no rates */
    double bytes_per_s;      /* streaming weights */
    double edge_bytes_per_s; /* moving x and y */
    double overhead_us;
    double overlap; /* 0 to 1: how much of the shorter of the two hides behind the longer */
    double gemv_bytes_per_s, gemv_overhead_us; /* one row; NaN where it has no kernel of its own */
} gac_contract_rates;

/* Times over a grid of three sizes: GEMM (m, n, k), attention (rows, length, head). */
typedef struct gac_contract_table {
    int64_t n_multiple, k_multiple; /* GEMM: of the tiers it was measured for */
    bool causal;                    /* prefill */
    int64_t group;                  /* decode: heads of queries per head of keys */
    size_t n_sizes[3];
    const int64_t *sizes[3]; /* rising */
    size_t n_us;
    const double *us; /* (n_sizes[0], n_sizes[1], n_sizes[2]); NaN where not measured */
} gac_contract_table;

/* Sizes that are a multiple of this, and of no better tier's. */
typedef struct gac_contract_tier {
    int64_t multiple;
    bool aligned;       /* one to be in */
    bool served;        /* false: no kernel of the dtype takes such sizes */
    const char *kernel; /* with many rows, */
    const char *family;
    const char *decode_kernel; /* and with one; may be NULL */
    const char *decode_family;
    const char *basis;        /* measured, published or assumed */
    const char *decode_basis; /* GEMM */
    double worst_penalty;     /* over an aligned size, at worst; may be NaN */
    gac_contract_rates rates; /* GEMM */
    int64_t tile;             /* attention: lengths are worked on in multiples of this; 0 is 1 */
    double pad_bytes_per_s;   /* attention: copying keys into padded buffers; NaN: none */
    size_t n_prefill;         /* 0, or 2: causal and not */
    const gac_contract_table *prefill;
    const gac_contract_table *decode;
} gac_contract_tier;

/* A k that is a multiple of this, but fills no whole number of cache lines, takes
 * factor times as long as the next k that does. */
typedef struct gac_contract_cost {
    int64_t multiple;
    double factor;
} gac_contract_cost;

typedef struct gac_contract_cacheline {
    int64_t multiple; /* elements in a cache line */
    size_t n_costs;
    const gac_contract_cost *costs; /* multiples fall, each divides the one before */
} gac_contract_cacheline;

/* GEMM in one dtype. */
typedef struct gac_contract_gemm {
    size_t n_n, n_k; /* tiers, best first: multiples fall, the last is 1, the aligned ones lead */
    const gac_contract_tier *n, *k;
    gac_dtype falls_back_to; /* runs what is not served; GAC_DTYPE_COUNT: all is served */
    size_t n_grid;
    const gac_contract_table *grid; /* per pair of tiers; with m of 1 alone, a finer one */
    size_t n_every_n;
    const gac_contract_table *every_n;         /* every aligned n, at common m; of the best tiers */
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

/* What serves heads above max_head. */
typedef struct gac_contract_beyond {
    const char *kernel, *family, *basis;
    size_t n_points;
    const gac_contract_head *points;
} gac_contract_beyond;

/* Attention in one dtype. */
typedef struct gac_contract_sdpa {
    gac_dtype same_as; /* another dtype's attention runs; GAC_DTYPE_COUNT: its own */
    const gac_contract_reference *reference;
    int64_t max_head;
    size_t n_tiers;
    const gac_contract_tier *tiers;
    const gac_contract_decode *decode;
    size_t n_points; /* the curve; 0: no times are known */
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

/* Errors of predictions, at shapes that are in no table. */
typedef struct gac_contract_errors {
    int64_t n_points;
    double median_pct, p95_pct, max_pct, bias_pct;
} gac_contract_errors;

/* Choosing among candidates for one size: how much longer the chosen one takes
 * than the best, and how many pairs over 5 % apart are in the right order. */
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

/* The shapes of a model, before they were measured exactly. */
typedef struct gac_contract_model_errors {
    int64_t n_points, n_rounds;
    double median_pct, p95_pct;
    const gac_contract_pairs *predicted, *measured;
} gac_contract_model_errors;

typedef struct gac_contract_accuracy {
    const gac_contract_errors *gemm[GAC_DTYPE_COUNT], *sdpa[GAC_DTYPE_COUNT];
    const gac_contract_ranking *ranking[GAC_DTYPE_COUNT];
    const gac_contract_model_errors *model[GAC_DTYPE_COUNT];
    const char *held_out; /* which shapes these were */
} gac_contract_accuracy;

/* How steady the measurements were. */
typedef struct gac_contract_noise {
    double median_pct, p95_pct, floor_pct, drift_pct;
    int64_t n_points, n_samples, n_discarded, n_unsettled, n_power_limited, n_no_memory,
        n_throttled;
    int64_t clock_mhz_min, clock_mhz_max, temperature_c_max; /* -1: not known */
    double seconds, copy_bytes_per_s;
} gac_contract_noise;

/* What a runtime spends per layer beside GEMM and attention: norms, rotary
 * embeddings, activations, additions, launches. */
typedef struct gac_runtime {
    const char *name;       /* "transformers 5.17.0 eager, …"; borrowed */
    double layer_us;        /* once per layer in prefill */
    double decode_layer_us; /* and in decode */
    double hidden_ps;       /* per token and element of the hidden size, picoseconds */
    double width_ps;        /* per token and element of the MLP width */
    double kv_ps; /* decode: per cached token and element of its key, where heads share keys */
    const char *basis, *torch, *gpu; /* the last two may be NULL */
} gac_runtime;

typedef struct gac_contract_text {
    const char *key, *value;
} gac_contract_text;

typedef struct gac_contract {
    const char *name, *gpu, *arch;
    bool provisional; /* from published figures or assumed: to be measured */
    size_t n_aliases;
    const char *const *aliases; /* other names of the same GPU, for --gpu */
    size_t n_stack;
    const gac_contract_text *stack; /* driver, cuda, cublas, … and their versions */
    size_t n_sources;
    const char *const *sources;
    size_t n_dtypes;
    const gac_dtype *dtypes; /* that have rules of their own */
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
    struct gac_arena_block *memory;             /* owns all of this; NULL: compiled in */
} gac_contract;

/* ---- Loading and writing ------------------------------------------------ */

/* The contracts compiled into the library. Loading one costs nothing. */
int gac_contract_n_bundled(void);
const char *gac_contract_bundled_name(int index);
/* Finds a contract by its name, its GPU or an alias; case, spaces, dashes and
 * a leading "NVIDIA" do not count. GAC_USAGE for another; the message lists
 * those that there are. */
gac_status gac_contract_load_bundled(const char *name, gac_contract **out, gac_error *err);
gac_status gac_contract_load(const char *path, gac_contract **out, gac_error *err);
/* Validates and takes a contract from text; source names it in errors. */
gac_status gac_contract_parse(const char *text, size_t n_bytes, const char *source,
                              gac_contract **out, gac_error *err);
/* The file of a contract: text that parses to the same structure. The caller frees *text. */
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

/* Whether the contract predicts times in dtype; one that was assumed only judges sizes. */
bool gac_contract_has_times(const gac_contract *contract, gac_dtype dtype);

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
    double penalty;     /* time at this size over time at the next aligned one; NaN: not known */
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
 * wins. 0 when any size is 0, NaN for a dtype that is not served or not timed. */
double gac_contract_gemm_us(const gac_contract *contract, gac_dtype dtype, int64_t m, int64_t n,
                            int64_t k);

/* Predicted time in microseconds of one attention call; likewise. */
double gac_contract_sdpa_us(const gac_contract *contract, gac_dtype dtype,
                            const gac_sdpa_shape *shape);

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

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

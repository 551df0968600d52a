/* What a contract file becomes once it has been checked. */
#ifndef GAC_CONTRACT_RULES_H
#define GAC_CONTRACT_RULES_H

#include "contract/contract_bulk.h"
#include "contract/contract_lines.h"
#include "contract/contract_table.h"

#include <gac/contract.h>

#define GAC_MAX_CONTRACT_BYTES ((size_t)16 << 20)
#define GAC_MAX_CONTRACT_POINTS 100000
#define GAC_MAX_TIERS 16

/* What every tier says of itself: who serves sizes that are a multiple. */
typedef struct gac_tier {
    int64_t multiple;
    bool aligned;
    bool served; /* false: no kernel takes such sizes in this dtype */
    const char *kernel;
    const char *family;
    const char *decode_kernel; /* of one row, and its family; NULL where not told */
    const char *decode_family;
    const char *basis;
    const char *decode_basis; /* GEMM only */
} gac_tier;

/* Best tier first: multiples fall, the last is 1, the aligned ones lead. */
typedef struct gac_tiers {
    int n_tiers;
    gac_tier tier[GAC_MAX_TIERS];
} gac_tiers;

/* The parameters of the GEMM time model; contract_time.c says how they act. */
typedef struct gac_gemm_rates {
    double flops_per_s;
    double bytes_per_s;
    double edge_bytes_per_s;
    double overhead_us;
    double overlap;
    bool has_gemv;
    double gemv_bytes_per_s;
    double gemv_overhead_us;
} gac_gemm_rates;

typedef struct gac_gemm_place {
    gac_tiers tiers;
    gac_gemm_rates rates[GAC_MAX_TIERS]; /* of the tier of the same index; unless there are times */
} gac_gemm_place;

/* GEMM times over rows, n and k. Kernels work on tiles, and the multiprocessors
 * take them in waves: what the last tiles and the last wave waste is taken off
 * before interpolating and put back after, to a power that fits (0: not). */
typedef struct gac_gemm_times {
    gac_table table;
    double tile_rows, tile_columns, units, power;
} gac_gemm_times;

/* Prefill times over rows (batch times heads), length and head. The multiprocessors
 * (units) take tiles of the length in waves, the last one as long as a full one: that is
 * taken off and put back likewise. */
typedef struct gac_prefill_times {
    gac_table table;
    double tile; /* lengths are worked on in multiples of this */
    double units, power;
} gac_prefill_times;

typedef struct gac_head_time {
    int64_t head;
    double time_us;
} gac_head_time;

/* Times by head size, sizes rising; never empty. */
typedef struct gac_head_curve {
    int n_points;
    gac_head_time *points;
} gac_head_curve;

typedef struct gac_sdpa_rules {
    gac_tiers tiers;
    gac_head_curve curves[GAC_MAX_TIERS];             /* of the tier of the same index */
    double pad_bytes_per_s[GAC_MAX_TIERS];            /* 0: the tier copies nothing */
    double ref_batch, ref_n_heads, ref_n_q, ref_n_kv; /* shape the curves were taken at */
    bool ref_causal;
    int64_t max_head; /* larger heads are served by what follows */
    const char *beyond_kernel, *beyond_family, *beyond_basis;
    double beyond_base_us, beyond_slope_us; /* time at head h: base + slope h */
    double decode_bytes_per_s, decode_overhead_us;
    bool has_tables; /* measured over shapes, not only at the reference */
    gac_prefill_times prefill[GAC_MAX_TIERS][2]; /* by tier, not causal and causal */
    gac_table decode[GAC_MAX_TIERS];             /* by tier */
} gac_sdpa_rules;

enum { GAC_MAX_DENSE = 8 };

typedef struct gac_dtype_rules {
    double element_bytes;
    gac_gemm_place gemm[2]; /* by gac_op_axis: n, k */
    /* (tiers of n, tiers of k), for any number of rows and for one; NULL: by
     * rates. A pair without its own takes that of the next better k. */
    gac_gemm_times *times, *row_times;
    /* Of the best pair, at rows that are common: every n, or every k; every n at a k that is
     * not of whole lines. */
    gac_table dense[GAC_MAX_DENSE], dense_k[GAC_MAX_DENSE], dense_part[GAC_MAX_DENSE];
    int n_dense, n_dense_k, n_dense_part;
    gac_lines lines;      /* where n is aligned: tables of fast k are of whole lines */
    gac_dtype falls_back; /* whose times count where no kernel serves; GAC_DTYPE_COUNT */
    gac_sdpa_rules sdpa;
} gac_dtype_rules;

typedef struct gac_gemm_point {
    gac_dtype dtype;
    int64_t m, n, k;
    double time_us;
} gac_gemm_point;

typedef struct gac_sdpa_point {
    gac_dtype dtype;
    gac_sdpa_shape shape;
    double time_us;
} gac_sdpa_point;

struct gac_contract {
    const char *text; /* the file; of n_bytes */
    size_t n_bytes;
    char *own_text; /* text, where it is to be freed */
    json_t *json;   /* owns every string above; bulk may be cut out of it */
    json_t *about;
    const char *name;
    const char *gpu;
    gac_dtype_rules *rules[GAC_DTYPE_COUNT]; /* NULL where not measured */
    gac_dtype stand_in[GAC_DTYPE_COUNT];     /* GAC_DTYPE_COUNT where none */
    gac_gemm_point *points;                  /* sorted by gac_gemm_point_order */
    size_t n_points;
    gac_sdpa_point *sdpa_points; /* sorted by gac_sdpa_point_order */
    size_t n_sdpa_points;
    bool has_runtime;
    gac_runtime runtime;
};

/* ---- contract_wave.c ---- */

/* Work done over work asked for, to the table's power; 1 for few rows. */
double gac_gemm_waste(const gac_gemm_times *times, double m, double n);
/* The same of prefill; length is of whole tiles. */
double gac_prefill_waste(const gac_prefill_times *times, double rows, double length);
/* Reads value's "wave", where it has one, and takes the waste off the table. */
bool gac_gemm_wave_read(gac_reader *r, const json_t *value, gac_gemm_times *out);
bool gac_prefill_wave_read(gac_reader *r, const json_t *value, gac_prefill_times *out);

/* How the tables are spelled. */
extern const gac_table_kind gac_gemm_table, gac_dense_table, gac_dense_k_table, gac_prefill_table,
    gac_decode_table;

/* Reads every rule of contract->json; what was allocated stays in contract,
 * also on failure. source names the file in errors. bulk is what was cut out of
 * it, or NULL; with it an error says only that the whole tree is needed. */
gac_status gac_contract_read(gac_contract *contract, gac_bulk *bulk, const char *source,
                             gac_error *err);

/* Parts of that: measured, published or assumed; exact points; the runtime. */
bool gac_contract_basis(gac_reader *r, const json_t *parent, const char *key, const char **out);
bool gac_contract_read_points(gac_reader *r, const json_t *root, gac_contract *out);
bool gac_contract_read_sdpa_points(gac_reader *r, const json_t *root, gac_contract *out);
bool gac_contract_read_runtime(gac_reader *r, const json_t *root, gac_contract *out);

/* Order of points, for qsort and bsearch: dtype, m, n, k; time is no part. */
int gac_gemm_point_order(const void *a, const void *b);
int gac_sdpa_point_order(const void *a, const void *b);

/* The first tier whose multiple divides size. */
int gac_tiers_pick(const gac_tiers *tiers, int64_t size);

/* The tiers of the dtype that runs where no kernel of rules takes sizes of this
 * tier; NULL where they are served. */
const gac_tiers *gac_contract_instead(const gac_contract *contract, const gac_dtype_rules *rules,
                                      gac_op_axis seen, int tier);

/* The rules that serve dtype, or NULL. */
const gac_dtype_rules *gac_contract_rules(const gac_contract *contract, gac_dtype dtype);

#endif

#include "contract/contract_schema.h"

#include <math.h>

#define MAX_LIST 1000
#define MAX_POINTS 100000
#define MAX_AXIS 4096
#define MAX_CELLS 200000
#define MAX_HEAD 4096
#define MAX_MULTIPLE 4096
#define MAX_COUNT 1e15
#define MIN_RATE 1e3
#define MAX_RATE 1e20
#define MAX_PCT 1e6

enum { REQUIRED = false, OPTIONAL = true };

/* A field with its key. need is REQUIRED or OPTIONAL. S is the structure. */
#define NAMED(key_, m, need, ...) \
    { \
        .key = key_, .member = #m, .offset = offsetof(S, m), .optional = need, .kind = __VA_ARGS__ \
    }
#define FIELD(m, need, ...) NAMED(#m, m, need, __VA_ARGS__)
#define TEXT(m, need) FIELD(m, need, GAC_FIELD_TEXT)
#define BASIS(m) FIELD(m, REQUIRED, GAC_FIELD_BASIS)
#define FLAG(m) FIELD(m, REQUIRED, GAC_FIELD_BOOL)
#define SIZE(m, max_, need) FIELD(m, need, GAC_FIELD_INTEGER, .min = 1, .max = max_)
#define SHAPE(m) \
    NAMED(#m, shape.m, REQUIRED, GAC_FIELD_INTEGER, .min = 1, .max = GAC_CONTRACT_MAX_SIZE)
#define TALLY(m) FIELD(m, OPTIONAL, GAC_FIELD_INTEGER, .min = -1, .max = MAX_COUNT)
#define NUMBER(m, min_, max_, need) FIELD(m, need, GAC_FIELD_NUMBER, .min = min_, .max = max_)
#define RATE(m, need) NUMBER(m, MIN_RATE, MAX_RATE, need)
#define RATES(m, min_, max_) \
    NAMED(#m, rates.m, OPTIONAL, GAC_FIELD_NUMBER, .min = min_, .max = max_)
#define PCT(m) NUMBER(m, -MAX_PCT, MAX_PCT, OPTIONAL)
#define TIME(m) NUMBER(m, GAC_CONTRACT_MIN_TIME_US, GAC_CONTRACT_MAX_TIME_US, REQUIRED)
#define SPENT(m, need) NUMBER(m, 0, GAC_CONTRACT_MAX_TIME_US, need)
#define DTYPE(m, need) FIELD(m, need, GAC_FIELD_DTYPE)
#define OBJECT(m, of_) FIELD(m, OPTIONAL, GAC_FIELD_OBJECT, .of = &of_)
#define BY_DTYPE(m, of_, need) FIELD(m, need, GAC_FIELD_BY_DTYPE, .of = &of_)
#define MANY(m, max_, need, ...) \
    FIELD(m, need, __VA_ARGS__, .max = max_, .n_member = "n_" #m, .n_offset = offsetof(S, n_##m))
#define LIST(m, of_, max_, need) MANY(m, max_, need, GAC_FIELD_LIST, .of = &of_)
#define AXIS(key_, i) \
    NAMED(key_, sizes[i], REQUIRED, GAC_FIELD_SIZES, .max = MAX_AXIS, \
          .n_member = "n_sizes[" #i "]", .n_offset = offsetof(S, n_sizes[i]))
#define STRUCT(name, ...) \
    static const gac_struct name##_struct = { \
        .n_bytes = sizeof(S), .n_fields = sizeof name / sizeof *name, .fields = name, __VA_ARGS__ \
    }

#define S gac_contract_table
static const gac_field gemm_table[] = { SIZE(n_multiple, MAX_MULTIPLE, REQUIRED),
                                        SIZE(k_multiple, MAX_MULTIPLE, REQUIRED),
                                        AXIS("m", 0),
                                        AXIS("n", 1),
                                        AXIS("k", 2),
                                        MANY(us, MAX_CELLS, REQUIRED, GAC_FIELD_TIMES) };
STRUCT(gemm_table, .type = "gac_contract_table");
#undef S

#define S gac_contract_table
static const gac_field prefill_table[] = { FLAG(causal), AXIS("rows", 0), AXIS("length", 1),
                                           AXIS("head", 2),
                                           MANY(us, MAX_CELLS, REQUIRED, GAC_FIELD_TIMES) };
STRUCT(prefill_table, .type = "gac_contract_table");
#undef S

#define S gac_contract_table
static const gac_field decode_table[] = { SIZE(group, MAX_MULTIPLE, OPTIONAL), AXIS("rows", 0),
                                          AXIS("length", 1), AXIS("head", 2),
                                          MANY(us, MAX_CELLS, REQUIRED, GAC_FIELD_TIMES) };
STRUCT(decode_table, .type = "gac_contract_table");
#undef S

#define S gac_contract_tier
static const gac_field gemm_tier[] = { SIZE(multiple, MAX_MULTIPLE, REQUIRED),
                                       FLAG(aligned),
                                       NAMED("served", served, OPTIONAL, GAC_FIELD_BOOL,
                                             .min = true),
                                       TEXT(kernel, REQUIRED),
                                       TEXT(family, REQUIRED),
                                       BASIS(basis),
                                       BASIS(decode_basis),
                                       TEXT(decode_kernel, OPTIONAL),
                                       TEXT(decode_family, OPTIONAL),
                                       NUMBER(worst_penalty, 0, MAX_COUNT, OPTIONAL),
                                       RATES(flops_per_s, MIN_RATE, MAX_RATE),
                                       RATES(bytes_per_s, MIN_RATE, MAX_RATE),
                                       RATES(edge_bytes_per_s, MIN_RATE, MAX_RATE),
                                       RATES(overhead_us, 0, GAC_CONTRACT_MAX_TIME_US),
                                       RATES(overlap, 0, 1),
                                       RATES(gemv_bytes_per_s, MIN_RATE, MAX_RATE),
                                       RATES(gemv_overhead_us, 0, GAC_CONTRACT_MAX_TIME_US) };
STRUCT(gemm_tier, .type = "gac_contract_tier", .is_line = true);
#undef S

#define S gac_contract_tier
static const gac_field head_tier[] = { SIZE(multiple, MAX_MULTIPLE, REQUIRED),
                                       FLAG(aligned),
                                       NAMED("served", served, OPTIONAL, GAC_FIELD_BOOL,
                                             .min = true),
                                       TEXT(kernel, REQUIRED),
                                       TEXT(family, REQUIRED),
                                       BASIS(basis),
                                       TEXT(decode_kernel, OPTIONAL),
                                       TEXT(decode_family, OPTIONAL),
                                       NUMBER(worst_penalty, 0, MAX_COUNT, OPTIONAL),
                                       SIZE(tile, MAX_MULTIPLE, OPTIONAL),
                                       RATE(pad_bytes_per_s, OPTIONAL),
                                       LIST(prefill, prefill_table_struct, 2, OPTIONAL),
                                       OBJECT(decode, decode_table_struct) };
STRUCT(head_tier, .type = "gac_contract_tier");
#undef S

#define S gac_contract_cost
static const gac_field cost[] = { SIZE(multiple, MAX_MULTIPLE, REQUIRED),
                                  NUMBER(factor, 0.25, 4, REQUIRED) };
STRUCT(cost, .type = "gac_contract_cost", .is_line = true);
#undef S

#define S gac_contract_cacheline
static const gac_field cacheline[] = { SIZE(multiple, MAX_MULTIPLE, REQUIRED),
                                       LIST(costs, cost_struct, 8, REQUIRED) };
STRUCT(cacheline, .type = "gac_contract_cacheline");
#undef S

#define S gac_contract_gemm
static const gac_field gemm[] = { LIST(n, gemm_tier_struct, GAC_MAX_TIERS, REQUIRED),
                                  LIST(k, gemm_tier_struct, GAC_MAX_TIERS, REQUIRED),
                                  DTYPE(falls_back_to, OPTIONAL),
                                  OBJECT(k_cacheline, cacheline_struct),
                                  LIST(grid, gemm_table_struct, 2 * GAC_MAX_TIERS * GAC_MAX_TIERS,
                                       OPTIONAL),
                                  LIST(every_n, gemm_table_struct, 8, OPTIONAL) };
STRUCT(gemm, .type = "gac_contract_gemm");
#undef S

#define S gac_contract_head
static const gac_field head[] = { SIZE(head, MAX_HEAD, REQUIRED), TIME(time_us) };
STRUCT(head, .type = "gac_contract_head", .is_row = true, .is_line = true);
#undef S

#define S gac_contract_reference
static const gac_field reference[] = { SIZE(batch, GAC_CONTRACT_MAX_SIZE, REQUIRED),
                                       SIZE(n_heads, GAC_CONTRACT_MAX_SIZE, REQUIRED),
                                       SIZE(n_q, GAC_CONTRACT_MAX_SIZE, REQUIRED),
                                       SIZE(n_kv, GAC_CONTRACT_MAX_SIZE, REQUIRED), FLAG(causal) };
STRUCT(reference, .type = "gac_contract_reference", .is_line = true);
#undef S

#define S gac_contract_decode
static const gac_field decode[] = { RATE(bytes_per_s, REQUIRED), SPENT(overhead_us, REQUIRED),
                                    BASIS(basis) };
STRUCT(decode, .type = "gac_contract_decode", .is_line = true);
#undef S

#define S gac_contract_beyond
static const gac_field beyond[] = { TEXT(kernel, REQUIRED), TEXT(family, REQUIRED), BASIS(basis),
                                    LIST(points, head_struct, MAX_HEAD, REQUIRED) };
STRUCT(beyond, .type = "gac_contract_beyond");
#undef S

#define S gac_contract_sdpa
static const gac_field sdpa[] = {
    DTYPE(same_as, OPTIONAL),           OBJECT(reference, reference_struct),
    SIZE(max_head, MAX_HEAD, OPTIONAL), LIST(tiers, head_tier_struct, GAC_MAX_TIERS, OPTIONAL),
    OBJECT(decode, decode_struct),      LIST(points, head_struct, MAX_HEAD, OPTIONAL),
    OBJECT(beyond, beyond_struct)
};
STRUCT(sdpa, .type = "gac_contract_sdpa");
#undef S

#define S gac_contract_stand_in
static const gac_field stand_in[] = { DTYPE(dtype, REQUIRED), TEXT(reason, REQUIRED) };
STRUCT(stand_in, .type = "gac_contract_stand_in", .is_line = true);
#undef S

#define S gac_contract_point
static const gac_field point[] = { DTYPE(dtype, REQUIRED), SIZE(m, GAC_CONTRACT_MAX_SIZE, REQUIRED),
                                   SIZE(n, GAC_CONTRACT_MAX_SIZE, REQUIRED),
                                   SIZE(k, GAC_CONTRACT_MAX_SIZE, REQUIRED), TIME(time_us) };
STRUCT(point, .type = "gac_contract_point", .is_line = true);
#undef S

#define S gac_contract_sdpa_point
static const gac_field sdpa_point[] = { DTYPE(dtype, REQUIRED),
                                        SHAPE(batch),
                                        SHAPE(n_q_heads),
                                        SHAPE(n_kv_heads),
                                        SHAPE(n_q),
                                        SHAPE(n_kv),
                                        SHAPE(qk_head),
                                        SHAPE(v_head),
                                        NAMED("causal", shape.causal, REQUIRED, GAC_FIELD_BOOL,
                                              .min = 0),
                                        TIME(time_us) };
STRUCT(sdpa_point, .type = "gac_contract_sdpa_point", .is_line = true);
#undef S

#define S gac_contract_errors
static const gac_field errors[] = { TALLY(n_points), PCT(median_pct), PCT(p95_pct), PCT(max_pct),
                                    PCT(bias_pct) };
STRUCT(errors, .type = "gac_contract_errors", .is_line = true);
#undef S

#define S gac_contract_regret
static const gac_field regret[] = { TALLY(n_groups),     PCT(regret_mean_pct), PCT(regret_p95_pct),
                                    PCT(regret_max_pct), TALLY(n_over_5_pct),  PCT(right_pct) };
STRUCT(regret, .type = "gac_contract_regret", .is_line = true);
#undef S

#define S gac_contract_ranking
static const gac_field ranking[] = { OBJECT(random_widths, regret_struct),
                                     OBJECT(common_widths, regret_struct) };
STRUCT(ranking, .type = "gac_contract_ranking");
#undef S

#define S gac_contract_pairs
static const gac_field pairs[] = { TALLY(n_over_5_pct), PCT(right_pct) };
STRUCT(pairs, .type = "gac_contract_pairs", .is_line = true);
#undef S

#define S gac_contract_model_errors
static const gac_field model_errors[] = { TALLY(n_points),
                                          TALLY(n_rounds),
                                          PCT(median_pct),
                                          PCT(p95_pct),
                                          OBJECT(predicted, pairs_struct),
                                          OBJECT(measured, pairs_struct) };
STRUCT(model_errors, .type = "gac_contract_model_errors");
#undef S

#define S gac_contract_accuracy
static const gac_field accuracy[] = { BY_DTYPE(gemm, errors_struct, OPTIONAL),
                                      BY_DTYPE(sdpa, errors_struct, OPTIONAL),
                                      BY_DTYPE(ranking, ranking_struct, OPTIONAL),
                                      BY_DTYPE(model, model_errors_struct, OPTIONAL),
                                      TEXT(held_out, OPTIONAL) };
STRUCT(accuracy, .type = "gac_contract_accuracy");
#undef S

#define S gac_contract_noise
static const gac_field noise[] = { PCT(median_pct),
                                   PCT(p95_pct),
                                   PCT(floor_pct),
                                   PCT(drift_pct),
                                   TALLY(n_points),
                                   TALLY(n_samples),
                                   TALLY(n_discarded),
                                   TALLY(n_unsettled),
                                   TALLY(n_power_limited),
                                   TALLY(n_no_memory),
                                   TALLY(n_throttled),
                                   TALLY(clock_mhz_min),
                                   TALLY(clock_mhz_max),
                                   TALLY(temperature_c_max),
                                   NUMBER(seconds, 0, MAX_COUNT, OPTIONAL),
                                   NUMBER(copy_bytes_per_s, 0, MAX_RATE, OPTIONAL) };
STRUCT(noise, .type = "gac_contract_noise");
#undef S

#define S gac_runtime
static const gac_field runtime[] = { TEXT(name, REQUIRED),       BASIS(basis),
                                     SPENT(layer_us, REQUIRED),  SPENT(decode_layer_us, REQUIRED),
                                     SPENT(hidden_ps, REQUIRED), SPENT(width_ps, REQUIRED),
                                     SPENT(kv_ps, REQUIRED),     TEXT(torch, OPTIONAL),
                                     TEXT(gpu, OPTIONAL) };
const gac_struct gac_runtime_struct = { .type = "gac_runtime",
                                        .n_bytes = sizeof(gac_runtime),
                                        .n_fields = sizeof runtime / sizeof *runtime,
                                        .fields = runtime };
#undef S

#define S gac_contract
static const gac_field contract[] = { TEXT(name, REQUIRED),
                                      TEXT(gpu, REQUIRED),
                                      TEXT(arch, REQUIRED),
                                      FLAG(provisional),
                                      MANY(aliases, MAX_LIST, OPTIONAL, GAC_FIELD_TEXTS),
                                      MANY(stack, MAX_LIST, REQUIRED, GAC_FIELD_MAP),
                                      MANY(sources, MAX_LIST, REQUIRED, GAC_FIELD_TEXTS),
                                      MANY(dtypes, GAC_DTYPE_COUNT, REQUIRED, GAC_FIELD_DTYPES),
                                      BY_DTYPE(stands_for, stand_in_struct, REQUIRED),
                                      OBJECT(noise, noise_struct),
                                      OBJECT(accuracy, accuracy_struct),
                                      OBJECT(runtime, gac_runtime_struct),
                                      BY_DTYPE(gemm, gemm_struct, REQUIRED),
                                      BY_DTYPE(sdpa, sdpa_struct, REQUIRED),
                                      LIST(points, point_struct, MAX_POINTS, REQUIRED),
                                      LIST(sdpa_points, sdpa_point_struct, MAX_POINTS, OPTIONAL) };
const gac_struct gac_contract_struct = { .type = "gac_contract",
                                         .n_bytes = sizeof(gac_contract),
                                         .n_fields = sizeof contract / sizeof *contract,
                                         .fields = contract };
#undef S

bool gac_field_is_missing(const gac_field *field, const void *structure)
{
    const void *at = gac_field_in(field, structure);
    switch (field->kind) {
    case GAC_FIELD_TEXT:
    case GAC_FIELD_BASIS:
    case GAC_FIELD_OBJECT:
        return !*(const void *const *)at;
    case GAC_FIELD_BOOL:
        return *(const bool *)at == (field->min > 0);
    case GAC_FIELD_INTEGER:
        return *(const int64_t *)at == 0 && field->min > 0;
    case GAC_FIELD_NUMBER:
        return isnan(*(const double *)at);
    case GAC_FIELD_DTYPE:
        return *(const gac_dtype *)at == GAC_DTYPE_COUNT;
    case GAC_FIELD_BY_DTYPE:
        for (int i = 0; i < GAC_DTYPE_COUNT; i++)
            if (((const void *const *)at)[i])
                return false;
        return true;
    default:
        return gac_field_count(field, structure) == 0;
    }
}

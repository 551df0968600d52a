/* Judges one size by a contract. */
#include "base/arguments.h"
#include "contract/contract_internal.h"

#include <math.h>

#define DECODE_ROWS 256

int gac_tiers_pick(const gac_contract_tier *tiers, int64_t size)
{
    int i = 0;
    while (size % tiers[i].multiple != 0)
        i++; /* the loop ends, because the last multiple is 1 */
    return i;
}

bool gac_contract_dtype(const gac_contract *contract, gac_dtype dtype, gac_dtype *out)
{
    if (!contract || !out || (int)dtype < 0 || dtype >= GAC_DTYPE_COUNT ||
        (!contract->gemm[dtype] && !contract->stands_for[dtype]))
        return false;
    *out = contract->gemm[dtype] ? dtype : contract->stands_for[dtype]->dtype;
    return true;
}

const gac_contract_gemm *gac_contract_gemm_rules(const gac_contract *contract, gac_dtype dtype)
{
    return gac_contract_dtype(contract, dtype, &dtype) ? contract->gemm[dtype] : NULL;
}

const gac_contract_sdpa *gac_contract_sdpa_rules(const gac_contract *contract, gac_dtype dtype)
{
    if (!gac_contract_dtype(contract, dtype, &dtype))
        return NULL;
    const gac_contract_sdpa *own = contract->sdpa[dtype];
    return own->same_as == GAC_DTYPE_COUNT ? own : contract->sdpa[own->same_as];
}

bool gac_contract_has_times(const gac_contract *contract, gac_dtype dtype)
{
    const gac_contract_gemm *g = gac_contract_gemm_rules(contract, dtype);
    return g && (g->n_grid > 0 || !isnan(g->n[0].rates.flops_per_s));
}

const gac_contract_tier *gac_contract_tiers(const gac_contract *contract, gac_dtype dtype,
                                            gac_op_axis axis, size_t *n_tiers)
{
    const gac_contract_gemm *g = gac_contract_gemm_rules(contract, dtype);
    if (!g || (int)axis < 0 || axis >= GAC_OP_AXIS_COUNT)
        return NULL;
    const gac_contract_sdpa *s = gac_contract_sdpa_rules(contract, dtype);
    *n_tiers = axis == GAC_OP_GEMM_N ? g->n_n : axis == GAC_OP_GEMM_K ? g->n_k : s->n_tiers;
    return axis == GAC_OP_GEMM_N ? g->n : axis == GAC_OP_GEMM_K ? g->k : s->tiers;
}

int64_t gac_contract_multiple(const gac_contract *contract, gac_op_axis axis, gac_dtype dtype)
{
    size_t n;
    const gac_contract_tier *tiers = gac_contract_tiers(contract, dtype, axis, &n);
    if (!tiers)
        return 0;
    int64_t multiple = tiers[0].multiple;
    for (size_t i = 1; i < n && tiers[i].aligned; i++)
        multiple = tiers[i].multiple;
    return multiple;
}

static double ratio(double time_us, double aligned_us)
{
    if (isnan(time_us) || isnan(aligned_us))
        return NAN;
    return aligned_us > 0 ? fmax(time_us / aligned_us, 1) : 1;
}

static void judge_gemm(const gac_contract *contract, gac_op_axis axis, gac_dtype dtype,
                       int64_t size, int64_t aligned, int64_t n_rows, int64_t other,
                       gac_judgement *out)
{
    bool is_n = axis == GAC_OP_GEMM_N;
    double time_us =
        gac_contract_gemm_us(contract, dtype, n_rows, is_n ? size : other, is_n ? other : size);
    double aligned_us = gac_contract_gemm_us(contract, dtype, n_rows, is_n ? aligned : other,
                                             is_n ? other : aligned);
    out->penalty = ratio(time_us, aligned_us);
    if (gac_contract_find_point(contract, dtype, n_rows, is_n ? size : other, is_n ? other : size))
        out->basis = "measured";
}

static void judge_head(const gac_contract_sdpa *s, int64_t size, int64_t aligned,
                       gac_judgement *out)
{
    if (aligned <= s->max_head) {
        out->penalty = ratio(gac_contract_head_us(s, out->tier, size),
                             gac_contract_head_us(s, gac_tiers_pick(s->tiers, aligned), aligned));
    } else if (size > s->max_head) { /* larger sizes are not served better */
        out->tier = (int)s->n_tiers;
        out->kernel = s->beyond ? s->beyond->kernel : "unknown";
        out->family = s->beyond ? s->beyond->family : "unknown";
        out->basis = s->beyond ? s->beyond->basis : "assumed";
    }
}

gac_status gac_contract_judge(const gac_contract *contract, gac_op_axis axis, gac_dtype dtype,
                              int64_t size, int64_t n_rows, int64_t other, gac_judgement *out,
                              gac_error *err)
{
    GAC_REFUSE_NULL(err, contract, out);
    size_t n_tiers;
    int64_t aligned;
    bool is_head = axis == GAC_OP_SDPA_HEAD;
    const gac_contract_gemm *gemm = gac_contract_gemm_rules(contract, dtype);
    if (!gemm)
        return gac_error_set(err, GAC_USAGE, "contract %s has no rules for this dtype",
                             contract->name);
    const gac_contract_tier *tiers = gac_contract_tiers(contract, dtype, axis, &n_tiers);
    if (!tiers || size < 1 ||
        !gac_round_up_i64(size, gac_contract_multiple(contract, axis, dtype), &aligned) ||
        (!is_head && (n_rows < 1 || other < 1)))
        return gac_error_set(err, GAC_USAGE, "contract %s: no judgement of size %lld",
                             contract->name, (long long)size);
    int index = gac_tiers_pick(tiers, size);
    const gac_contract_tier *own = &tiers[index], *tier = own; /* tier: the one whose kernels run */
    bool falls_back = !is_head && !own->served;
    if (falls_back) {
        tiers = gac_contract_tiers(contract, gemm->falls_back_to, axis, &n_tiers);
        tier = &tiers[gac_tiers_pick(tiers, size)];
    }
    *out = (gac_judgement){ .aligned = own->aligned,
                            .tier = index,
                            .served = !falls_back,
                            .multiple = own->multiple,
                            .penalty = 1,
                            .kernel = tier->kernel,
                            .family = tier->family,
                            .basis = tier->basis };
    gac_contract_dtype(contract, falls_back ? gemm->falls_back_to : dtype, &out->runs_as);
    if (falls_back)
        gac_lcm_i64(own->multiple, tier->multiple, &out->multiple);
    if (is_head) {
        judge_head(gac_contract_sdpa_rules(contract, dtype), size, aligned, out);
        return GAC_OK;
    }
    if (n_rows < DECODE_ROWS)
        out->basis = tier->decode_basis;
    if (n_rows == 1) {
        out->kernel = tier->decode_kernel;
        out->family = tier->decode_family;
    }
    /* Round up the other axis, so that only this size is judged. */
    gac_op_axis other_axis = axis == GAC_OP_GEMM_N ? GAC_OP_GEMM_K : GAC_OP_GEMM_N;
    int64_t other_aligned;
    if (!gac_round_up_i64(other, gac_contract_multiple(contract, other_axis, dtype),
                          &other_aligned))
        other_aligned = other;
    judge_gemm(contract, axis, dtype, size, aligned, n_rows, other_aligned, out);
    return GAC_OK;
}

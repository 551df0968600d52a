/* Finds sizes that break a rule of the contract or of the deployment. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

/* Sizes of a dimension must be multiples of these units. Each is the least
 * common multiple over all operators that see the dimension. */
typedef struct units {
    int64_t contract; /* on one GPU */
    int64_t parallel; /* split over several GPUs */
    int64_t group;    /* with quantisation groups */
    bool uneven;      /* the heads do not divide over the GPUs, so no size helps */
} units;

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool widen(int64_t *unit, int64_t by)
{
    return by < 1 || gac_lcm_i64(*unit, by, unit);
}

/* Computes what one GPU gets of a split axis. Whole heads go to one GPU, so
 * their number is divided. Any other slice is itself divided. */
static void per_gpu(const gac_op *op, const gac_term *term, int64_t n_gpus, bool by_heads,
                    int64_t *n_slices, int64_t *divisor)
{
    bool split = (op->split == GAC_SPLIT_N && term->axis == GAC_OP_GEMM_N) ||
                 (op->split == GAC_SPLIT_K && term->axis == GAC_OP_GEMM_K);
    *n_slices = term->n_slices;
    *divisor = 1;
    if (!split || n_gpus <= 1)
        return;
    if (!by_heads)
        *divisor = n_gpus;
    else
        *n_slices = term->n_slices > n_gpus ? term->n_slices / n_gpus : 1;
}

/* Returns whether the heads divide over the GPUs. There may be fewer k and v
 * heads than GPUs, because runtimes then copy them. */
static bool heads_divide(const gac_op *op, int64_t n_gpus)
{
    int64_t n_kv = op->n_kv_heads;
    return op->n_q_heads % n_gpus == 0 && (n_kv % n_gpus == 0 || (n_kv > 0 && n_gpus % n_kv == 0));
}

static bool is_head(const gac_model *model, int32_t dim)
{
    gac_role role = gac_model_dim(model, dim)->role;
    return role == GAC_ROLE_QK_HEAD || role == GAC_ROLE_V_HEAD;
}

/* Adds the units of one operator axis. n_slices x size must be a multiple of a
 * unit, so size must be a multiple of unit / gcd(unit, n_slices). */
static bool widen_all(units *u, int64_t n_slices, int64_t multiple, int64_t divisor,
                      int64_t gpu_slices, int64_t group)
{
    if (n_slices < 1 || gpu_slices < 1)
        return true;
    int64_t parallel, grouped = 1;
    if (!gac_mul_i64(multiple / gcd(multiple, gpu_slices), divisor, &parallel))
        return false;
    if (group > 0 && !gac_mul_i64(group / gcd(group, gpu_slices), divisor, &grouped))
        return false;
    return widen(&u->contract, multiple / gcd(multiple, n_slices)) &&
           widen(&u->parallel, parallel) && widen(&u->group, grouped);
}

/* Judges a dimension's contribution to an operator axis by itself. A sum with
 * other dimensions may be aligned by accident, which does not make its parts
 * aligned. */
static gac_status judge_term(const gac_model *model, const gac_target *target, const gac_term *term,
                             gac_dim_advice *advice, gac_error *err)
{
    gac_judgement j;
    int64_t size = gac_model_dim(model, term->dim)->size * term->n_slices;
    if (size < 1)
        return GAC_OK;
    gac_status status =
        gac_contract_judge(target->contract, term->axis, target->dtype, size, 1, 1, &j, err);
    if (status == GAC_OK && !j.aligned)
        advice->aligned = false;
    return status;
}

/* Returns what quantisation asks an axis to be a multiple of, or 0 if it overflows. */
static int64_t group_of(const gac_op *op, const gac_term *term, const gac_target *target)
{
    int64_t group = 1;
    bool k = term->axis == GAC_OP_GEMM_K;
    if (op->kind != GAC_OP_GEMM)
        return 0;
    bool ok = widen(&group, k ? target->quant_group : 0) &&
              widen(&group, k ? op->k_multiple : op->n_multiple);
    return ok ? group : 0;
}

static gac_status gather(const gac_model *model, const gac_target *target, units *u,
                         gac_dim_advice *advice, gac_error *err)
{
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        const gac_op *op = gac_model_op(model, i);
        for (int32_t t = 0; t < op->n_terms; t++) {
            const gac_term *term = &op->terms[t];
            int64_t multiple = gac_contract_multiple(target->contract, term->axis, target->dtype);
            int64_t n_slices, divisor;
            int64_t group = group_of(op, term, target);
            per_gpu(op, term, target->n_gpus, is_head(model, term->dim), &n_slices, &divisor);
            if (op->kind == GAC_OP_SDPA && !heads_divide(op, target->n_gpus))
                u[term->dim].uneven = true;
            if (!widen_all(&u[term->dim], term->n_slices, multiple < 1 ? 1 : multiple, divisor,
                           n_slices, group))
                return gac_error_set(err, GAC_USAGE, "the units that %s asks for overflow",
                                     gac_model_dim(model, term->dim)->name);
            gac_status status = judge_term(model, target, term, &advice[term->dim], err);
            if (status != GAC_OK)
                return status;
        }
    }
    return GAC_OK;
}

/* Returns the rule that a size breaks, or NULL. The contract comes first. */
static const char *broken_rule(const units *u, const gac_dim_advice *advice, int64_t size)
{
    if (!advice->aligned || size % u->contract != 0)
        return "contract";
    if (u->uneven || size % u->parallel != 0)
        return "tensor-parallel";
    if (size % u->group != 0)
        return "quant-group";
    return NULL;
}

static gac_status conclude(const gac_model *model, const units *u, gac_dim_advice *advice,
                           gac_error *err)
{
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *dim = gac_model_dim(model, i);
        int64_t unit = u[i].contract;
        advice[i].rule = broken_rule(&u[i], &advice[i], dim->size);
        advice[i].aligned = !advice[i].rule;
        if (!widen(&unit, u[i].parallel) || !widen(&unit, u[i].group) ||
            !widen(&unit, dim->multiple) || !gac_round_up_i64(dim->size, unit, &advice[i].suggest))
            return gac_error_set(err, GAC_USAGE, "the units that %s asks for overflow", dim->name);
    }
    /* Tied dimensions get the largest suggested size among them. */
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        int32_t to = gac_model_dim(model, i)->tied_to;
        if (to >= 0 && advice[i].suggest > advice[to].suggest)
            advice[to].suggest = advice[i].suggest;
    }
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        int32_t to = gac_model_dim(model, i)->tied_to;
        if (to >= 0)
            advice[i].suggest = advice[to].suggest;
    }
    return GAC_OK;
}

/* Finds the kernel that now serves an operator on one GPU, judged on one axis. */
static gac_status serving_kernel(const gac_model *model, const gac_target *target,
                                 const gac_phase *phase, const gac_op *op, const gac_term *term,
                                 gac_judgement *out, gac_error *err)
{
    int64_t n = 1, k = 1, size;
    int64_t rows = phase->decode || op->last_only ? phase->batch : phase->batch * phase->length;
    if (op->kind == GAC_OP_GEMM)
        gac_plan_gemm_sizes(model, target, op, NULL, &n, &k);
    size = term->axis == GAC_OP_SDPA_HEAD ? gac_model_dim(model, term->dim)->size
           : term->axis == GAC_OP_GEMM_N  ? n
                                          : k;
    int64_t other = term->axis == GAC_OP_GEMM_N ? k : n;
    *out = (gac_judgement){ .aligned = true };
    if (size < 1 || other < 1)
        return GAC_OK;
    return gac_contract_judge(target->contract, term->axis, target->dtype, size, rows, other, out,
                              err);
}

/* Charges the time that an operator could save with the suggested sizes to the
 * misaligned dimensions it sees, in equal parts. */
static gac_status charge(const gac_model *model, const gac_target *target, const gac_phase *phase,
                         const gac_op *op, double now_ms, double then_ms, gac_dim_advice *advice,
                         gac_error *err)
{
    int32_t n_broken = 0;
    for (int32_t t = 0; t < op->n_terms; t++)
        n_broken += !advice[op->terms[t].dim].aligned;
    for (int32_t t = 0; t < op->n_terms; t++) {
        gac_dim_advice *a = &advice[op->terms[t].dim];
        gac_judgement j;
        if (a->aligned)
            continue;
        a->lost_ms += phase->weight * (now_ms - then_ms) / n_broken;
        double penalty = then_ms != 0 ? now_ms / then_ms : 1; /* NaN if no times are known */
        if (a->axis != GAC_OP_AXIS_COUNT && penalty <= a->penalty)
            continue;
        gac_status status = serving_kernel(model, target, phase, op, &op->terms[t], &j, err);
        if (status != GAC_OK)
            return status;
        if (j.aligned)
            continue;
        a->penalty = penalty > 1 || isnan(penalty) ? penalty : 1;
        a->axis = op->terms[t].axis;
        a->kernel = j.kernel;
        a->family = j.family;
        a->runs_as = j.runs_as;
    }
    return GAC_OK;
}

static gac_status count_losses(const gac_model *model, const gac_target *target,
                               const gac_workload *workload, gac_dim_advice *advice, gac_error *err)
{
    int32_t n_dims = gac_model_n_dims(model), n_ops = gac_model_n_ops(model);
    gac_status status = GAC_OK;
    int64_t *sizes = calloc((size_t)n_dims + 1, sizeof *sizes);
    double *now_ms = calloc((size_t)n_ops + 1, sizeof *now_ms);
    double *then_ms = calloc((size_t)n_ops + 1, sizeof *then_ms);
    if (!sizes || !now_ms || !then_ms)
        status = gac_error_no_memory(err);
    for (int32_t i = 0; i < n_dims && status == GAC_OK; i++)
        sizes[i] = advice[i].suggest;
    for (int p = 0; p < workload->n_phases && status == GAC_OK; p++) {
        const gac_phase *phase = &workload->phases[p];
        gac_plan_time_ms(model, target, phase, NULL, now_ms);
        gac_plan_time_ms(model, target, phase, sizes, then_ms);
        for (int32_t i = 0; i < n_ops && status == GAC_OK; i++)
            status = charge(model, target, phase, gac_model_op(model, i), now_ms[i], then_ms[i],
                            advice, err);
    }
    free(sizes);
    free(now_ms);
    free(then_ms);
    return status;
}

gac_status gac_plan_units(const gac_model *model, const gac_target *target, dim_units *out,
                          gac_error *err)
{
    int32_t n_dims = gac_model_n_dims(model);
    units *u = calloc((size_t)n_dims + 1, sizeof *u);
    gac_dim_advice *advice = calloc((size_t)n_dims + 1, sizeof *advice);
    gac_status status = u && advice ? GAC_OK : gac_error_no_memory(err);
    for (int32_t i = 0; i < n_dims && status == GAC_OK; i++)
        u[i] = (units){ 1, 1, 1, false };
    if (status == GAC_OK)
        status = gather(model, target, u, advice, err);
    bool hard = target->n_gpus > 1 || target->quant_group > 0;
    for (int32_t i = 0; i < n_dims && status == GAC_OK; i++) {
        const int64_t multiple = gac_model_dim(model, i)->multiple;
        out[i] = (dim_units){ u[i].contract, 1 };
        if (!widen(&out[i].best, u[i].parallel) || !widen(&out[i].best, u[i].group) ||
            !widen(&out[i].best, multiple))
            status = gac_error_set(err, GAC_USAGE, "the units that %s asks for overflow",
                                   gac_model_dim(model, i)->name);
        if (hard)
            out[i].hard = out[i].best;
        else if (multiple > 1)
            out[i].hard = multiple;
    }
    free(u);
    free(advice);
    return status;
}

gac_status gac_plan_advise(const gac_model *model, const gac_target *target,
                           const gac_workload *workload, gac_dim_advice *advice, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, advice);
    int32_t n_dims = gac_model_n_dims(model);
    gac_status status = gac_plan_check_target(target, workload, err);
    if (status != GAC_OK)
        return status;
    units *u = calloc((size_t)n_dims + 1, sizeof *u);
    if (!u)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n_dims; i++) {
        u[i] = (units){ 1, 1, 1, false };
        advice[i] = (gac_dim_advice){
            .aligned = true, .penalty = 1, .axis = GAC_OP_AXIS_COUNT, .runs_as = GAC_DTYPE_COUNT
        };
    }
    status = gather(model, target, u, advice, err);
    if (status == GAC_OK)
        status = conclude(model, u, advice, err);
    if (status == GAC_OK)
        status = count_losses(model, target, workload, advice, err);
    free(u);
    return status;
}

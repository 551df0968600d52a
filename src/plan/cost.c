/* Predicts the time of a workload and the growth in bytes. */
#include <math.h>
#include <stdlib.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

static int64_t size_of(const gac_model *model, const int64_t *sizes, int32_t dim)
{
    return sizes ? sizes[dim] : gac_model_dim(model, dim)->size;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the size of a split axis on one GPU: whole heads, at least one, and
 * an equal part of everything else. */
static int64_t split_size(const gac_model *model, const gac_target *target, const gac_op *op,
                          const int64_t *sizes, gac_op_axis axis, int64_t whole)
{
    int64_t part = 0;
    for (int32_t i = 0; i < op->n_terms; i++) {
        const gac_term *t = &op->terms[i];
        gac_role role = gac_model_dim(model, t->dim)->role;
        if (t->axis != axis || (role != GAC_ROLE_QK_HEAD && role != GAC_ROLE_V_HEAD))
            continue;
        int64_t size = size_of(model, sizes, t->dim);
        whole -= t->n_slices * size;
        part += ceil_div(t->n_slices, target->n_gpus) * size;
    }
    return part + ceil_div(whole, target->n_gpus);
}

void gac_plan_gemm_sizes(const gac_model *model, const gac_target *target, const gac_op *op,
                         const int64_t *sizes, int64_t *n, int64_t *k)
{
    *n = op->n;
    *k = op->k;
    for (int32_t i = 0; i < op->n_terms && sizes; i++) {
        const gac_term *t = &op->terms[i];
        int64_t change = t->n_slices * (sizes[t->dim] - gac_model_dim(model, t->dim)->size);
        *(t->axis == GAC_OP_GEMM_N ? n : k) += change;
    }
    if (op->split == GAC_SPLIT_N)
        *n = split_size(model, target, op, sizes, GAC_OP_GEMM_N, *n);
    if (op->split == GAC_SPLIT_K)
        *k = split_size(model, target, op, sizes, GAC_OP_GEMM_K, *k);
}

int64_t gac_plan_gemm_rows(const gac_phase *phase, const gac_op *op, double *calls)
{
    double rows = (double)phase->batch;
    if (!phase->decode && !op->last_only)
        rows *= (double)phase->length;
    *calls = (double)op->count;
    if (op->share < 1) {
        /* Tokens choose experts independently. An expert is called with
         * probability p, and then gets an equal share of the rows. */
        double p = 1 - pow(1 - op->share, rows);
        rows = rows * op->share / p;
        *calls *= p;
    }
    return rows < 1 ? 1 : rows > 1e12 ? (int64_t)1e12 : (int64_t)llround(rows);
}

gac_status gac_plan_check_target(const gac_target *target, const gac_workload *workload,
                                 gac_error *err)
{
    gac_dtype served;
    if (!target || !target->contract)
        return gac_error_set(err, GAC_USAGE, "planning needs a target with a contract");
    if (target->n_gpus < 1 || target->quant_group < 0)
        return gac_error_set(err, GAC_USAGE,
                             "a target needs at least 1 GPU and a quantisation group of at least "
                             "0, not %lld and %lld",
                             (long long)target->n_gpus, (long long)target->quant_group);
    if (!gac_contract_dtype(target->contract, target->dtype, &served))
        return gac_error_set(err, GAC_USAGE, "contract %s does not serve the target's dtype",
                             gac_contract_name(target->contract));
    if (!workload || workload->n_phases < 1 || workload->n_phases > GAC_MAX_PHASES)
        return gac_error_set(err, GAC_USAGE, "planning needs a workload of 1 to %d phases",
                             GAC_MAX_PHASES);
    return GAC_OK;
}

static bool can_time(const gac_target *target, const gac_phase *phase)
{
    return target && target->contract && target->n_gpus >= 1 && phase;
}

static double gemm_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                      const gac_op *op, const int64_t *sizes)
{
    int64_t n, k;
    double calls;
    gac_plan_gemm_sizes(model, target, op, sizes, &n, &k);
    int64_t m = gac_plan_gemm_rows(phase, op, &calls);
    return calls * gac_contract_gemm_us(target->contract, target->dtype, m, n, k) / 1e3;
}

gac_sdpa_shape gac_plan_sdpa_shape(const gac_model *model, const gac_target *target,
                                   const gac_phase *phase, const gac_op *op, const int64_t *sizes)
{
    gac_sdpa_shape shape = {
        .batch = phase->batch,
        .n_q_heads = ceil_div(op->n_q_heads, target->n_gpus),
        .n_kv_heads = ceil_div(op->n_kv_heads, target->n_gpus),
        .n_q = phase->decode ? 1 : phase->length,
        .n_kv = phase->length,
        .qk_head = size_of(model, sizes, op->qk_dim),
        .v_head = size_of(model, sizes, op->v_dim),
        .causal = !phase->decode,
    };
    return shape;
}

static double sdpa_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                      const gac_op *op, const int64_t *sizes)
{
    gac_sdpa_shape shape = gac_plan_sdpa_shape(model, target, phase, op, sizes);
    return gac_contract_sdpa_us(target->contract, target->dtype, &shape) / 1e3;
}

double gac_plan_op_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                      const gac_op *op, const int64_t *sizes)
{
    return op->kind == GAC_OP_GEMM ? gemm_ms(model, target, phase, op, sizes)
                                   : sdpa_ms(model, target, phase, op, sizes);
}

/* Returns the sum of all MLP widths. An expert counts by its share of the
 * tokens. */
static double total_width(const gac_model *model, const gac_target *target)
{
    double width = 0;
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        const gac_op *op = gac_model_op(model, i);
        for (int32_t t = 0; op->kind == GAC_OP_GEMM && t < op->n_terms; t++) {
            const gac_dim *d = gac_model_dim(model, op->terms[t].dim);
            bool is_width = d->role == GAC_ROLE_MLP_WIDTH || d->role == GAC_ROLE_EXPERT_WIDTH;
            if (is_width && op->terms[t].axis == GAC_OP_GEMM_K)
                width += op->share * (double)op->count * (double)op->terms[t].n_slices *
                         (double)d->size / (double)target->n_gpus;
        }
    }
    return width;
}

static double hidden_size(const gac_model *model)
{
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        if (gac_model_dim(model, i)->role == GAC_ROLE_HIDDEN)
            return (double)gac_model_dim(model, i)->size;
    return 0;
}

double gac_plan_rest_ms(const gac_model *model, const gac_target *target, const gac_phase *phase)
{
    gac_runtime runtime;
    if (!can_time(target, phase))
        return NAN;
    if (!gac_contract_runtime(target->contract, &runtime))
        return 0;
    double layers = (double)gac_model_n_layers(model), batch = (double)phase->batch;
    double tokens = phase->decode ? batch : batch * (double)phase->length;
    double layer_us = phase->decode ? runtime.decode_layer_us : runtime.layer_us;
    double kv_elements = 0;
    for (int32_t i = 0; i < gac_model_n_ops(model) && phase->decode; i++) {
        const gac_op *op = gac_model_op(model, i);
        if (op->kind == GAC_OP_SDPA && op->n_kv_heads < op->n_q_heads)
            kv_elements += (double)ceil_div(op->n_kv_heads, target->n_gpus) *
                           (double)gac_model_dim(model, op->qk_dim)->size;
    }
    double picoseconds = tokens * (layers * hidden_size(model) * runtime.hidden_ps +
                                   total_width(model, target) * runtime.width_ps) +
                         batch * (double)phase->length * kv_elements * runtime.kv_ps;
    return layers * layer_us / 1e3 + picoseconds / 1e9;
}

double gac_plan_time_ms(const gac_model *model, const gac_target *target, const gac_phase *phase,
                        const int64_t *sizes, double *op_time_ms)
{
    if (!can_time(target, phase))
        return NAN;
    double sum_ms = gac_plan_rest_ms(model, target, phase);
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        double time_ms = gac_plan_op_ms(model, target, phase, gac_model_op(model, i), sizes);
        if (op_time_ms)
            op_time_ms[i] = time_ms;
        sum_ms += time_ms;
    }
    return sum_ms;
}

double gac_plan_total_ms(const gac_model *model, const gac_plan_options *options,
                         const int64_t *sizes)
{
    double sum = 0;
    const gac_workload *w = options->workload;
    for (int p = 0; p < w->n_phases; p++)
        sum += w->phases[p].weight *
               gac_plan_time_ms(model, &options->target, &w->phases[p], sizes, NULL);
    return sum;
}

/* Returns the elements of one tensor after growth. extra has the growth of each
 * axis. */
static double elements(const gac_tensor *t, const int64_t *extra, int32_t n_extra)
{
    double n = 1;
    for (int32_t a = 0; a < t->n_axes; a++)
        n *= (double)t->shape[a] + (a < n_extra ? (double)extra[a] : 0);
    return n;
}

gac_status gac_plan_growth_bytes(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err)
{
    /* Dimensions are on weights of up to three axes, if one tensor holds all
     * experts. */
    enum { MAX_AXES = 3 };
    const gac_checkpoint *c = gac_model_checkpoint(model);
    int32_t n_tensors = gac_checkpoint_n_tensors(c);
    int64_t(*extra)[MAX_AXES] = calloc((size_t)n_tensors + 1, sizeof *extra);
    if (!extra)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        for (int32_t p = 0; p < d->n_places && sizes[i] != d->size; p++)
            extra[d->places[p].tensor][d->places[p].axis] +=
                d->places[p].n_slices * (sizes[i] - d->size);
    }
    double before = 0, after = 0;
    for (int32_t i = 0; i < n_tensors; i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        double bits = gac_dtype_bits(t->dtype);
        before += (double)t->n_elements * bits;
        after += elements(t, extra[i], MAX_AXES) * bits;
    }
    free(extra);
    *out = (after - before) / 8;
    return GAC_OK;
}

gac_status gac_plan_overhead_pct(const gac_model *model, const int64_t *sizes, double *out,
                                 gac_error *err)
{
    GAC_REFUSE_NULL(err, model, sizes, out);
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model)), growth = 0;
    gac_status status = gac_plan_growth_bytes(model, sizes, &growth, err);
    *out = bytes > 0 ? 100.0 * growth / bytes : 0;
    return status;
}

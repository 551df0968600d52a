/* What a choice costs: parameters, or predicted nanoseconds of the workload. */
#include "compress/compress_internal.h"

#include <math.h>

/* A budget so long that it makes no difference: a hundred days */
#define MOST_NS 1e16

static bool by_time(const compression *c)
{
    return c->options->max_time_ms > 0;
}

/* Rows of a GEMM in a phase. */
static int64_t rows_of(const gac_phase *phase)
{
    return phase->decode ? phase->batch : phase->batch * phase->length;
}

int64_t compress_matrix_cost(const compression *c, int64_t n_out, int64_t n_in)
{
    double sum_us = 0;
    if (!by_time(c))
        return n_out * n_in;
    for (int i = 0; i < c->options->workload->n_phases; i++) {
        const gac_phase *phase = &c->options->workload->phases[i];
        sum_us += phase->weight *
                  gac_contract_gemm_us(c->options->contract, c->dtype, rows_of(phase), n_out, n_in);
    }
    return (int64_t)llround(1e3 * sum_us);
}

/* Attention with so many heads of keys. */
static double attention_us(const compression *c, const gac_op *op, const gac_phase *phase,
                           const gac_runtime *runtime, int64_t n_kv_heads)
{
    const int64_t qk_head = gac_model_dim(c->model, op->qk_dim)->size;
    const gac_sdpa_shape shape = {
        .batch = phase->batch,
        .n_q_heads = op->n_q_heads / op->n_kv_heads * n_kv_heads,
        .n_kv_heads = n_kv_heads,
        .n_q = phase->decode ? 1 : phase->length,
        .n_kv = phase->length,
        .qk_head = qk_head,
        .v_head = gac_model_dim(c->model, op->v_dim)->size,
        .causal = !phase->decode,
    };
    const bool copies = phase->decode && op->n_kv_heads < op->n_q_heads;
    const double copied =
        copies ? (double)(phase->batch * phase->length * n_kv_heads * qk_head) : 0;
    return gac_contract_sdpa_us(c->options->contract, c->dtype, &shape) +
           1e-6 * runtime->kv_ps * copied;
}

int64_t compress_inner_cost(const compression *c, int32_t layer, int kind, int64_t n_groups)
{
    gac_runtime runtime = { 0 };
    double sum_us = 0;
    if (!by_time(c))
        return 0;
    const gac_op *op = compress_attention_of(c->model, layer);
    gac_contract_runtime(c->options->contract, &runtime);
    for (int i = 0; i < c->options->workload->n_phases; i++) {
        const gac_phase *phase = &c->options->workload->phases[i];
        if (kind == CHANNELS_WIDTH)
            sum_us += phase->weight * 1e-6 * runtime.width_ps * (double)(rows_of(phase) * n_groups);
        else if (op)
            sum_us += phase->weight * attention_us(c, op, phase, &runtime, n_groups);
    }
    return (int64_t)llround(1e3 * sum_us);
}

gac_status compress_time_budget(const compression *c, int64_t *budget)
{
    const gac_target target = { c->options->contract, c->dtype, 1, 0 };
    double all_ms = 0;
    int64_t blocks_ns = 0;
    for (int i = 0; i < c->options->workload->n_phases; i++)
        all_ms += c->options->workload->phases[i].weight *
                  gac_plan_time_ms(c->model, &target, &c->options->workload->phases[i], NULL, NULL);
    if (!isfinite(all_ms))
        return gac_error_set(c->err, GAC_USAGE, "contract %s predicts no times for this model",
                             gac_contract_name(c->options->contract));
    for (int32_t l = 0; l < c->n_layers; l++) {
        const layer_stats *s = &c->layers[l];
        for (int kind = 0; kind < CHANNELS_COUNT; kind++)
            blocks_ns += compress_inner_cost(c, l, kind, s->channels[kind].n_groups);
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
            blocks_ns += compress_matrix_cost(c, s->matrix[p].n_out, s->matrix[p].n_in);
    }
    const double rest_ns = 1e6 * all_ms - (double)blocks_ns;
    const double left_ns = 1e6 * c->options->max_time_ms - rest_ns;
    *budget = (int64_t)fmin(left_ns, MOST_NS);
    return GAC_OK;
}

/* The forward pass in stages: one layer at a time, with the sums of its inputs, and with
 * weights that others stand for. */
#include "base/arguments.h"
#include "engine/engine_internal.h"

#include <stdlib.h>

static const struct {
    const char *name;
    gac_engine_input input;
} projections[GAC_PROJECTION_COUNT] = {
    [GAC_PROJECTION_Q] = { "self_attn.q_proj", GAC_INPUT_QKV },
    [GAC_PROJECTION_K] = { "self_attn.k_proj", GAC_INPUT_QKV },
    [GAC_PROJECTION_V] = { "self_attn.v_proj", GAC_INPUT_QKV },
    [GAC_PROJECTION_O] = { "self_attn.o_proj", GAC_INPUT_O },
    [GAC_PROJECTION_GATE] = { "mlp.gate_proj", GAC_INPUT_GATE_UP },
    [GAC_PROJECTION_UP] = { "mlp.up_proj", GAC_INPUT_GATE_UP },
    [GAC_PROJECTION_DOWN] = { "mlp.down_proj", GAC_INPUT_DOWN },
};

const char *gac_projection_name(gac_projection projection)
{
    return (unsigned)projection < GAC_PROJECTION_COUNT ? projections[projection].name : NULL;
}

gac_engine_input gac_projection_input(gac_projection projection)
{
    return (unsigned)projection < GAC_PROJECTION_COUNT ? projections[projection].input
                                                       : GAC_INPUT_COUNT;
}

static gac_status check_plain(const net *n, gac_error *err)
{
    if (gac_net_is_plain(n))
        return GAC_OK;
    return gac_net_refuse(n, err,
                          "models of family %s can be run, but not compressed; llama, mistral, "
                          "qwen2 and qwen3 can",
                          n->type);
}

gac_status gac_engine_check_stages(const gac_model *model, gac_error *err)
{
    GAC_REFUSE_NULL(err, model);
    net n;
    gac_status status = gac_net_read(model, &n, err);
    if (status != GAC_OK)
        return status;
    status = check_plain(&n, err);
    gac_net_dispose(&n);
    return status;
}

gac_status gac_engine_refuse_device(const gac_engine *e, gac_error *err)
{
    return gac_error_set(err, GAC_NO_RESOURCE, "the device %s cannot compress models",
                         e->compute.ops->name);
}

static gac_status check_layers(const gac_engine *e, int32_t first, int32_t end, gac_error *err)
{
    if (first >= 0 && first <= end && end <= e->net.n_layers)
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "layers %d to %d of %d", first, end - 1, e->net.n_layers);
}

/* Starts a pass of n tokens of one sequence. ids may be NULL if nothing is embedded. */
static gac_status begin(gac_engine *e, const int32_t *ids, int64_t n, gac_error *err)
{
    gac_status status = gac_engine_reserve(e, 1, e->options.max_context, err);
    if (status == GAC_OK && (n < 1 || n > e->options.max_new))
        status = gac_error_set(err, GAC_USAGE, "a pass of %lld tokens, but there is room for %lld",
                               (long long)n, (long long)e->options.max_new);
    int32_t *zeros = status == GAC_OK && !ids ? calloc((size_t)n, sizeof *zeros) : NULL;
    if (status == GAC_OK && !ids && !zeros)
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = e->compute.ops->begin(e->compute.state, ids ? ids : zeros, 1, n, 0, err);
    free(zeros);
    e->last_batch = status == GAC_OK ? 1 : 0;
    e->last_n_new = n;
    e->last_n_past = 0;
    return status;
}

gac_status gac_engine_embed(gac_engine *e, const int32_t *ids, int64_t n, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, ids", e, ids);
    gac_status status = gac_engine_check_text(e, ids, n > 0 ? (size_t)n : 0, err);
    if (status == GAC_OK)
        status = begin(e, ids, n, err);
    return status == GAC_OK ? gac_engine_run_embedding(e, err) : status;
}

gac_status gac_engine_read_residual(gac_engine *e, float *out, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, out", e, out);
    return e->compute.ops->rows_read(e->compute.state, e->residual, 0,
                                     e->last_batch * e->last_n_new, out, err);
}

gac_status gac_engine_write_residual(gac_engine *e, const float *in, int64_t n, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, in", e, in);
    if (!e->compute.ops->rows_write)
        return gac_engine_refuse_device(e, err);
    gac_status status = begin(e, NULL, n, err);
    return status == GAC_OK
               ? e->compute.ops->rows_write(e->compute.state, e->residual, 0, n, in, err)
               : status;
}

/* Adds the input of a linear call to the sums. */
static gac_status add_to_sums(void *user, gac_engine_input input, const gac_linear_call *call,
                              gac_error *err)
{
    gac_engine *e = user;
    return e->compute.ops->gram_add(e->compute.state, call, e->grams[input], err);
}

gac_status gac_engine_run_layers(gac_engine *e, int32_t first, int32_t end, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine", e);
    gac_status status = check_layers(e, first, end, err);
    for (int32_t i = first; i < end && status == GAC_OK; i++) {
        bool collected = e->grams[0] && e->collected == i;
        status = gac_engine_run(e, i, i + 1, collected ? add_to_sums : NULL, e, err);
    }
    return status;
}

gac_status gac_engine_sample_logits(gac_engine *e, int64_t first, int64_t step, int64_t n,
                                    float *logits, double *log_sums, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, logits, log_sums", e, logits, log_sums);
    static const int32_t zeros[GAC_MAX_LOGIT_ROWS];
    gac_status status = gac_engine_run_head(e, first, step, n, err);
    if (status == GAC_OK)
        status = e->compute.ops->logits_read(e->compute.state, logits, err);
    if (status == GAC_OK) /* the loss of token 0 is log_sum - logits[0] */
        status = e->compute.ops->losses(e->compute.state, zeros, log_sums, err);
    for (int64_t i = 0; i < n && status == GAC_OK; i++)
        log_sums[i] += (double)logits[i * e->net.vocab];
    return status;
}

static void free_sums(gac_engine *e)
{
    for (int input = 0; input < GAC_INPUT_COUNT; input++) {
        if (e->grams[input])
            e->compute.ops->gram_free(e->compute.state, e->grams[input]);
        e->grams[input] = NULL;
    }
}

gac_status gac_engine_collect(gac_engine *e, int32_t layer, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine", e);
    free_sums(e);
    if (layer < 0)
        return GAC_OK;
    gac_status status = check_layers(e, layer, layer + 1, err);
    if (status == GAC_OK)
        status = check_plain(&e->net, err);
    if (status == GAC_OK && !e->compute.ops->gram_create)
        status = gac_engine_refuse_device(e, err);
    if (status != GAC_OK)
        return status;
    const net_layer *n = &e->net.layers[layer];
    const int64_t sizes[GAC_INPUT_COUNT] = { e->net.hidden, n->n_q_heads * n->v_size, e->net.hidden,
                                             n->mlp.width };
    e->collected = layer;
    for (int input = 0; input < GAC_INPUT_COUNT && status == GAC_OK; input++)
        status = e->compute.ops->gram_create(e->compute.state, sizes[input], &e->grams[input], err);
    if (status != GAC_OK)
        free_sums(e);
    return status;
}

gac_status gac_engine_read_sums(gac_engine *e, gac_engine_input input, double *matrix,
                                double *magnitude, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, matrix, magnitude", e, matrix, magnitude);
    GAC_REFUSE(err, (unsigned)input >= GAC_INPUT_COUNT || !e->grams[input],
               "no inputs were collected");
    return e->compute.ops->gram_read(e->compute.state, e->grams[input], matrix, magnitude, err);
}

gac_status gac_engine_replace(gac_engine *e, int32_t layer, gac_projection projection,
                              const gac_host_tensor *first, const gac_host_tensor *second,
                              gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, second", e, second);
    GAC_REFUSE(err, (unsigned)projection >= GAC_PROJECTION_COUNT, "no such projection");
    const gac_engine_input input = gac_projection_input(projection);
    const replacement by = { projection, first, second };
    gac_matrix *matrix = NULL;
    gac_status status = check_layers(e, layer, layer + 1, err);
    if (status == GAC_OK)
        status = check_plain(&e->net, err);
    if (status == GAC_OK && e->layers[layer].kept[input])
        status = gac_error_set(err, GAC_USAGE, "%s of layer %d is replaced already",
                               gac_projection_name(projection), layer);
    if (status == GAC_OK)
        status = gac_engine_load_group(e, layer, input, &by, &matrix, err);
    if (status == GAC_OK) {
        e->layers[layer].kept[input] = e->layers[layer].matrix[input];
        e->layers[layer].matrix[input] = matrix;
    }
    return status;
}

void gac_engine_restore(gac_engine *e, int32_t layer, gac_projection projection)
{
    if (!e || layer < 0 || layer >= e->net.n_layers || (unsigned)projection >= GAC_PROJECTION_COUNT)
        return;
    loaded_layer *l = &e->layers[layer];
    const gac_engine_input input = gac_projection_input(projection);
    if (!l->kept[input])
        return;
    e->compute.ops->matrix_free(e->compute.state, l->matrix[input]);
    l->matrix[input] = l->kept[input];
    l->kept[input] = NULL;
}

gac_status gac_engine_factor(gac_engine *e, const gac_factor_job *jobs, int n_jobs, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, jobs", e, jobs);
    if (!e->compute.ops->factor)
        return gac_engine_refuse_device(e, err);
    return e->compute.ops->factor(e->compute.state, jobs, n_jobs, err);
}

/* Gradients of the model's own loss with respect to the outputs of its modules, for compression.
 * The engine's device computes them in F32, from the weights of the checkpoint. */
#include "base/arguments.h"
#include "base/splitmix.h"
#include "engine/engine_internal.h"

#include <math.h>
#include <stdlib.h>

/* Arrays that are freed together. */
enum { MAX_FLOATS = 16 };
typedef struct float_list {
    float *at[MAX_FLOATS];
    int n;
} float_list;

static void free_floats(float_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->at[i]);
}

/* A vector of the checkpoint as floats; *out is NULL where the index is -1. */
static gac_status read_vector(const gac_engine *e, int32_t index, float_list *list,
                              const float **out, gac_error *err)
{
    int64_t n = 0;
    *out = NULL;
    if (index < 0)
        return GAC_OK;
    float **data = &list->at[list->n++];
    gac_status status = gac_engine_append_numbers(e, index, 0, data, &n, err);
    *out = *data;
    return status;
}

/* A module that must be one plain weight. */
static gac_status map_plain(const gac_engine *e, const net_linear *of, gac_host_tensor *weight,
                            int32_t *bias, gac_error *err)
{
    const gac_module *m = of->module;
    if (!m || m->first >= 0 || m->n_parts != 1 || m->transposed || m->quantised || of->first != 0 ||
        of->n != m->n_out)
        return gac_net_refuse(&e->net, err, "%s is not one plain weight; gradients need one",
                              m ? m->name : "a module");
    *bias = m->parts[0].bias;
    return gac_engine_map(&e->net, m->parts[0].weight, weight, err);
}

static gac_status describe_layer(const gac_engine *e, int32_t layer, float_list *list,
                                 gac_backward_layer *job, gac_error *err)
{
    const net_layer *n = &e->net.layers[layer];
    const net_linear *const modules[GAC_BACKWARD_COUNT] = { &n->q,       &n->k,        &n->v,
                                                            &n->o,       &n->mlp.gate, &n->mlp.up,
                                                            &n->mlp.down };
    const int32_t norms[] = { n->attention_norm.weight, n->mlp_norm.weight, n->q_norm, n->k_norm };
    const float **const to[] = { &job->attention_norm, &job->mlp_norm, &job->q_norm, &job->k_norm };
    gac_status status = GAC_OK;
    for (int i = 0; i < GAC_BACKWARD_COUNT && status == GAC_OK; i++) {
        int32_t bias = -1;
        status = map_plain(e, modules[i], &job->linear[i].weight, &bias, err);
        if (status == GAC_OK)
            status = read_vector(e, bias, list, &job->linear[i].bias, err);
    }
    for (int i = 0; i < 4 && status == GAC_OK; i++)
        status = read_vector(e, norms[i], list, to[i], err);
    if (status == GAC_OK && n->rotated) {
        float *cosines = NULL, *sines = NULL;
        status = gac_rope_tables(&e->net, n->local_rope, n->qk_size, job->n_tokens, &cosines,
                                 &sines, err);
        job->cosines = list->at[list->n++] = cosines;
        job->sines = list->at[list->n++] = sines;
    }
    job->hidden = e->net.hidden;
    job->n_q_heads = n->n_q_heads;
    job->n_kv_heads = n->n_kv_heads;
    job->qk_size = n->qk_size;
    job->v_size = n->v_size;
    job->window = n->window;
    job->eps = e->net.eps;
    job->scale = 1 / sqrt((double)n->qk_size);
    return status;
}

/* Reads the sums, and frees them. */
static gac_status take_sums(const gac_compute *compute, gac_backward_layer *job,
                            double *const sums[GAC_PROJECTION_COUNT], gac_status status,
                            gac_error *err)
{
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        gac_backward_linear *l = &job->linear[i];
        double *magnitude =
            l->gram && status == GAC_OK ? calloc((size_t)l->weight.n_rows, sizeof(double)) : NULL;
        if (l->gram && status == GAC_OK)
            status = magnitude
                         ? compute->ops->gram_read(compute->state, l->gram, sums[i], magnitude, err)
                         : gac_error_no_memory(err);
        compute->ops->gram_free(compute->state, l->gram);
        free(magnitude);
    }
    return status;
}

gac_status gac_engine_backward_layer(gac_engine *e, int32_t layer, int64_t n_sequences,
                                     int64_t n_tokens, const float *x, float *gradient,
                                     double *const sums[GAC_PROJECTION_COUNT], gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, x, gradient, sums", e, x, gradient, sums);
    GAC_REFUSE(err, layer < 0 || layer >= e->net.n_layers, "no such layer");
    GAC_REFUSE(err, n_sequences < 1 || n_tokens < 1, "sequences without tokens");
    GAC_REFUSE(err, !gac_net_is_plain(&e->net), "only models like Llama have gradients");
    const gac_compute *compute = &e->compute;
    float_list list = { { NULL }, 0 };
    gac_backward_layer job = {
        .n_sequences = n_sequences, .n_tokens = n_tokens, .x = x, .gradient = gradient
    };
    if (!compute->ops->backward_layer)
        return gac_engine_refuse_device(e, err);
    gac_status status = describe_layer(e, layer, &list, &job, err);
    for (int i = 0; i < GAC_BACKWARD_COUNT && status == GAC_OK; i++)
        if (sums[i])
            status = compute->ops->gram_create(compute->state, job.linear[i].weight.n_rows,
                                               &job.linear[i].gram, err);
    if (status == GAC_OK)
        status = compute->ops->backward_layer(compute->state, &job, err);
    status = take_sums(compute, &job, sums, status, err);
    free_floats(&list);
    return status;
}

static gac_status describe_head(const gac_engine *e, float_list *list, gac_backward_head *job,
                                gac_error *err)
{
    int32_t bias = -1;
    gac_status status = GAC_OK;
    if (e->net.head) {
        const net_linear head = { e->net.head, 0, e->net.head->n_out };
        status = map_plain(e, &head, &job->weight, &bias, err);
    } else {
        status = gac_engine_map(&e->net, e->net.embedding, &job->weight, err);
    }
    if (status == GAC_OK)
        status = read_vector(e, e->net.norm.weight, list, &job->norm, err);
    job->hidden = e->net.hidden;
    job->vocab = e->net.vocab;
    job->eps = e->net.eps;
    return status;
}

gac_status gac_engine_backward_head(gac_engine *e, uint64_t seed, float *gradient, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, gradient", e, gradient);
    const int64_t n = e->last_batch * e->last_n_new, most = GAC_MAX_LOGIT_ROWS;
    const gac_compute *compute = &e->compute;
    float_list list = { { NULL }, 0 };
    gac_backward_head job = { 0 };
    double log_sums[GAC_MAX_LOGIT_ROWS], draws[GAC_MAX_LOGIT_ROWS];
    if (!compute->ops->backward_head)
        return gac_engine_refuse_device(e, err);
    float *x = malloc((size_t)(n * e->net.hidden) * sizeof *x + 1);
    float *logits = malloc((size_t)(most * e->net.vocab) * sizeof *logits);
    gac_status status = x && logits ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = describe_head(e, &list, &job, err);
    if (status == GAC_OK)
        status = gac_engine_read_residual(e, x, err);
    for (int64_t first = 0; first < n && status == GAC_OK; first += most) {
        job.n_rows = gac_min_i64(most, n - first);
        job.x = x + first * e->net.hidden;
        job.gradient = gradient + first * e->net.hidden;
        job.logits = logits;
        job.log_sums = log_sums;
        job.draws = draws;
        for (int64_t i = 0; i < job.n_rows; i++)
            draws[i] = (double)(gac_splitmix64(&seed) >> 11) * 0x1p-53;
        status = gac_engine_sample_logits(e, first, 1, job.n_rows, logits, log_sums, err);
        if (status == GAC_OK)
            status = compute->ops->backward_head(compute->state, &job, err);
    }
    free_floats(&list);
    free(x);
    free(logits);
    return status;
}

/* What a loss in one module does to the output of the whole model. One cut of moderate size
 * is made at a time, and the divergence of the output is measured. Other sizes are taken to
 * have an effect in proportion to their loss. */
#include "compress/compress_internal.h"

#include "base/team.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The cuts that are measured: half of the break-even rank, or two thirds of all channels. */
#define RANK_SHARE 0.5
#define CHANNEL_SHARE (2.0 / 3)
#define LEAST_DIVERGENCE 1e-9
#define LEAST_LOSS 1e-12

int64_t compress_rank_params(const matrix_stats *m, int64_t rank)
{
    return rank * (m->n_out + m->n_parts * m->n_in);
}

int64_t compress_share_rank(const matrix_stats *m, double share)
{
    return (int64_t)(share * (double)(m->n_out * m->n_in) / (double)compress_rank_params(m, 1));
}

int64_t compress_break_even(const matrix_stats *m)
{
    return gac_min_i64(m->n_out * m->n_in / compress_rank_params(m, 1), m->n);
}

double compress_rank_loss(const matrix_stats *m, int64_t rank)
{
    double lost = 0;
    for (int64_t part = 0; part < m->n_parts; part++)
        for (int64_t i = m->n - 1; i >= rank; i--)
            lost += m->energy[part * m->n + i];
    return m->total > 0 ? lost / m->total : 0;
}

double compress_channel_loss(const channel_stats *s, int64_t n_groups)
{
    return s->loss[0] > 0 ? s->loss[n_groups] / s->loss[0] : 0;
}

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

int32_t *compress_kept_inputs(const channel_stats *s, int64_t n_groups)
{
    int32_t *kept = calloc((size_t)(n_groups * s->block) + 1, sizeof *kept);
    for (int64_t i = 0; kept && i < n_groups * s->block; i++)
        kept[i] = s->order[i / s->block] * (int32_t)s->block + (int32_t)(i % s->block);
    if (kept)
        qsort(kept, (size_t)(n_groups * s->block), sizeof *kept, by_value);
    return kept;
}

/* Nats per relative loss. */
static double scale_of(double divergence, double loss)
{
    return fmax(divergence, LEAST_DIVERGENCE) / fmax(loss, LEAST_LOSS);
}

gac_status compress_project(compression *c, const matrix_stats *m, const float *basis, int64_t rank,
                            const char *name, float *first)
{
    const int64_t n_rows = m->n_out / m->n_parts;
    float *weight = NULL;
    gac_factor_job jobs[MAX_HEAD_PARTS];
    gac_status status = compress_read_weight(c, m, &weight);
    for (int64_t i = 0; i < m->n_parts && status == GAC_OK; i++)
        jobs[i] = (gac_factor_job){ .kind = GAC_FACTOR_PROJECT,
                                    .n_out = n_rows,
                                    .n_in = m->n_in,
                                    .weight = weight + i * n_rows * m->n_in,
                                    .basis = (float *)(uintptr_t)basis + i * n_rows * m->n_basis,
                                    .basis_stride = m->n_basis,
                                    .n_kept = rank,
                                    .made = first + i * rank * m->n_in,
                                    .name = name };
    if (status == GAC_OK)
        status = gac_engine_factor(c->engine, jobs, (int)m->n_parts, c->err);
    free(weight);
    return status;
}

/* The divergence of the output if one matrix alone has this rank. */
static gac_status try_rank(compression *c, int32_t layer, gac_projection projection, int64_t rank,
                           double *divergence)
{
    const matrix_stats *m = &c->layers[layer].matrix[projection];
    const int64_t n_rows = m->n_out / m->n_parts;
    const int64_t width = m->n_parts * rank;
    const float *columns = m->second ? m->second : m->basis;
    float *first = malloc((size_t)(width * m->n_in) * sizeof *first);
    float *second = calloc((size_t)(m->n_out * width), sizeof *second);
    gac_status status = first && second ? compress_project(c, m, m->basis, rank,
                                                           gac_projection_name(projection), first)
                                        : gac_error_no_memory(c->err);
    for (int64_t row = 0; status == GAC_OK && row < m->n_out; row++)
        memcpy(second + row * width + row / n_rows * rank, columns + row * m->n_basis,
               (size_t)rank * sizeof *second);
    const gac_host_tensor a = { first, GAC_DTYPE_F32, width, m->n_in, "a first factor" };
    const gac_host_tensor b = { second, GAC_DTYPE_F32, m->n_out, width, "a second factor" };
    if (status == GAC_OK)
        status = gac_engine_replace(c->engine, layer, projection, &a, &b, c->err);
    if (status == GAC_OK)
        status = compress_divergence(c, layer, divergence);
    gac_engine_restore(c->engine, layer, projection);
    free(first);
    free(second);
    return status;
}

/* Makes the cuts of one matrix that its method asks for. */
static gac_status cut_rank(compression *c, int32_t layer, gac_projection projection)
{
    matrix_stats *m = &c->layers[layer].matrix[projection];
    gac_status status = GAC_OK;
    double divergence = 0;
    if (c->options->method == GAC_COMPRESS_ASVD) {
        for (int i = 0; i < N_SHARES && status == GAC_OK; i++) {
            const int64_t rank = compress_share_rank(m, (i + 1) / (N_SHARES + 1.0));
            status = try_rank(c, layer, projection, rank < 1 ? 1 : rank, &m->tried[i]);
        }
        return status;
    }
    const int64_t half = compress_share_rank(m, RANK_SHARE), rank = half < 1 ? 1 : half;
    status = try_rank(c, layer, projection, rank, &divergence);
    m->scale = scale_of(divergence, compress_rank_loss(m, rank));
    return status;
}

/* Keeps two thirds of the channels. Those that go get columns of zeros. */
static gac_status cut_channels(compression *c, int32_t layer, int kind, gac_projection projection)
{
    channel_stats *s = &c->layers[layer].channels[kind];
    const matrix_stats *m = &c->layers[layer].matrix[projection];
    int64_t n_groups = (int64_t)(CHANNEL_SHARE * (double)s->n_groups + 0.5);
    n_groups = n_groups < 1 ? 1 : n_groups == s->n_groups ? n_groups - 1 : n_groups;
    const int64_t n_kept = n_groups * s->block;
    double divergence = 0;
    int32_t *kept = compress_kept_inputs(s, n_groups);
    float *weight = NULL, *made = malloc((size_t)(m->n_out * n_kept) * sizeof *made);
    float *whole = calloc((size_t)(m->n_out * m->n_in), sizeof *whole);
    gac_status status =
        kept && made && whole ? compress_read_weight(c, m, &weight) : gac_error_no_memory(c->err);
    gac_factor_job job = { .kind = GAC_FACTOR_REFIT,
                           .n_out = m->n_out,
                           .n_in = m->n_in,
                           .weight = weight,
                           .gram = s->gram,
                           .kept = kept,
                           .n_kept = n_kept,
                           .made = made,
                           .name = gac_projection_name(projection) };
    if (status == GAC_OK)
        status = gac_engine_factor(c->engine, &job, 1, c->err);
    for (int64_t i = 0; status == GAC_OK && i < m->n_out * n_kept; i++)
        whole[i / n_kept * m->n_in + kept[i % n_kept]] = made[i];
    const gac_host_tensor b = { whole, GAC_DTYPE_F32, m->n_out, m->n_in, "a refitted weight" };
    if (status == GAC_OK)
        status = gac_engine_replace(c->engine, layer, projection, NULL, &b, c->err);
    if (status == GAC_OK)
        status = compress_divergence(c, layer, &divergence);
    s->scale = scale_of(divergence, compress_channel_loss(s, n_groups));
    gac_engine_restore(c->engine, layer, projection);
    free(weight);
    free(kept);
    free(made);
    free(whole);
    return status;
}

gac_status compress_measure_effects(compression *c, int32_t layer)
{
    static const gac_projection through[] = { GAC_PROJECTION_DOWN, GAC_PROJECTION_O };
    layer_stats *l = &c->layers[layer];
    const bool is_asvd = c->options->method == GAC_COMPRESS_ASVD;
    const size_t n_bytes = (is_asvd ? N_SHARES : 1) * sizeof(double);
    double *found[GAC_PROJECTION_COUNT + CHANNELS_COUNT];
    int n = 0;
    gac_status status = GAC_OK;
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        if (!l->matrix[p].energy)
            continue;
        if (status == GAC_OK && gac_team_is_mine(c->options->team, n))
            status = cut_rank(c, layer, (gac_projection)p);
        found[n++] = is_asvd ? l->matrix[p].tried : &l->matrix[p].scale;
    }
    for (int kind = 0; kind < CHANNELS_COUNT; kind++) {
        if (!l->channels[kind].order)
            continue;
        if (status == GAC_OK && gac_team_is_mine(c->options->team, n))
            status = cut_channels(c, layer, kind, through[kind]);
        found[n++] = &l->channels[kind].scale; /* never ASVD */
    }
    for (int i = 0; i < n && status == GAC_OK; i++)
        status = gac_team_broadcast(c->options->team, i % gac_team_size(c->options->team), found[i],
                                    n_bytes, c->err);
    return status;
}

/* Which directions of a module's output matter. H is the sum of g g^T, where g are the gradients of
 * the model's loss with respect to that output. An error e of the output then counts as e^T H e
 * in place of e^T e. */
#include "compress/compress_internal.h"

#include "base/team.h"

#include <math.h>
#include <stdlib.h>

/* At most so many windows of the calibration text, and so much memory for the residual stream
 * before each layer. */
enum { MOST_WINDOWS = 8 };
#define MOST_BYTES ((int64_t)4 << 30)
/* This share of the mean of H's diagonal is added to the diagonal, so that no direction counts for
 * nothing. */
#define RIDGE 1e-3

bool compress_weighs(const compression *c, int projection)
{
    return c->n_gradient_windows > 0 && projection != GAC_PROJECTION_GATE &&
           projection != GAC_PROJECTION_UP;
}

void compress_choose_gradients(compression *c)
{
    const int64_t window_bytes = c->n_layers * c->window * c->hidden * (int64_t)sizeof(float);
    const int64_t room = gac_max_i64(MOST_BYTES / window_bytes, 1);
    const bool wanted = c->options->method == GAC_COMPRESS_GAC && !c->options->no_gradients;
    c->n_gradient_windows = wanted ? gac_min_i64(gac_min_i64(MOST_WINDOWS, room), c->n_windows) : 0;
}

/* A pass back through the model. */
typedef struct backward {
    int64_t n_own;   /* windows of this process */
    float *residual; /* (n_layers, n_own, window, hidden), before each layer */
    float *gradient; /* (n_own, window, hidden) */
} backward;

/* Runs a window through the model, and keeps the residual stream before each layer. */
static gac_status run_forward(compression *c, const backward *b, int64_t own, int64_t window)
{
    const int64_t n = c->window * c->hidden;
    gac_status status = gac_engine_embed(c->engine, c->options->ids + c->order[window] * c->window,
                                         c->window, c->err);
    for (int32_t l = 0; l < c->n_layers && status == GAC_OK; l++) {
        status = compress_check_cancel(c);
        if (status == GAC_OK)
            status =
                gac_engine_read_residual(c->engine, b->residual + (l * b->n_own + own) * n, c->err);
        if (status == GAC_OK)
            status = gac_engine_run_layers(c->engine, l, l + 1, c->err);
        compress_step(c, 1);
    }
    if (status == GAC_OK)
        status = gac_engine_backward_head(c->engine, c->options->seed + (uint64_t)window,
                                          b->gradient + own * n, c->err);
    return status;
}

/* Passes the gradients back through a layer, and saves the sums over all processes. */
static gac_status run_back(compression *c, const backward *b, int32_t layer)
{
    double *sums[GAC_PROJECTION_COUNT] = { NULL };
    const int64_t n = c->window * c->hidden;
    gac_status status = compress_check_cancel(c);
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        const int64_t n_out = c->layers[layer].matrix[p].n_out;
        if (!compress_weighs(c, p))
            continue;
        sums[p] = calloc((size_t)(n_out * n_out), sizeof *sums[p]);
        status = sums[p] ? GAC_OK : gac_error_no_memory(c->err);
    }
    if (status == GAC_OK && b->n_own > 0)
        status = gac_engine_backward_layer(c->engine, layer, b->n_own, c->window,
                                           b->residual + layer * b->n_own * n, b->gradient, sums,
                                           c->err);
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        const size_t n_out = (size_t)c->layers[layer].matrix[p].n_out;
        if (sums[p])
            status = gac_team_sum(c->options->team, sums[p], n_out * n_out, c->err);
    }
    if (status == GAC_OK && gac_team_is_first(c->options->team))
        status = compress_save_gradients(c, layer, sums);
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
        free(sums[p]);
    compress_step(c, (uint64_t)b->n_own);
    return status;
}

static gac_status run_windows(compression *c, backward *b)
{
    gac_status status = GAC_OK;
    int64_t own = 0;
    c->n_done = 0;
    c->n_steps = (uint64_t)(2 * b->n_own * c->n_layers);
    gac_progress_start(c->options->progress, "measuring gradients", "passes", c->n_steps);
    for (int64_t w = 0; w < c->n_gradient_windows && status == GAC_OK; w++)
        if (gac_team_is_mine(c->options->team, (int)w))
            status = run_forward(c, b, own++, w);
    for (int32_t l = c->n_layers - 1; l >= 0 && status == GAC_OK; l--)
        status = run_back(c, b, l);
    gac_progress_finish(c->options->progress);
    c->n_done = 0;
    return status;
}

gac_status compress_measure_gradients(compression *c)
{
    gac_team *team = c->options->team;
    backward b = { 0 };
    bool found = false;
    int64_t n_stream, n_all;
    if (c->n_gradient_windows == 0)
        return GAC_OK;
    if (gac_team_is_first(team))
        found = compress_have_gradients(c);
    gac_status status = gac_team_broadcast(team, 0, &found, sizeof found, c->err);
    if (status != GAC_OK || found)
        return status;
    for (int64_t w = 0; w < c->n_gradient_windows; w++)
        b.n_own += gac_team_is_mine(team, (int)w);
    if (gac_mul_i64(b.n_own * c->window, c->hidden, &n_stream) &&
        gac_mul_i64(n_stream, c->n_layers, &n_all)) {
        b.residual = malloc((size_t)n_all * sizeof *b.residual + 1);
        b.gradient = malloc((size_t)n_stream * sizeof *b.gradient + 1);
    }
    status = b.residual && b.gradient ? run_windows(c, &b)
                                      : gac_error_set(c->err, GAC_NO_RESOURCE,
                                                      "no memory for the gradients of %lld tokens",
                                                      (long long)(b.n_own * c->window));
    free(b.residual);
    free(b.gradient);
    return status;
}

/* Weighing. */

/* The sums of one module with their ridge, from the work folder of process 0. */
static gac_status read_sums(compression *c, int32_t layer, int projection, double *sums)
{
    const int64_t n = c->layers[layer].matrix[projection].n_out;
    gac_team *team = c->options->team;
    gac_status status =
        gac_team_is_first(team) ? compress_load_gradients(c, layer, projection, sums) : GAC_OK;
    double mean = 0;
    if (status == GAC_OK)
        status = gac_team_broadcast(team, 0, sums, (size_t)(n * n) * sizeof *sums, c->err);
    for (int64_t i = 0; i < n && status == GAC_OK; i++)
        mean += sums[i * n + i] / (double)n;
    for (int64_t i = 0; i < n && status == GAC_OK; i++)
        sums[i * n + i] += mean > 0 ? RIDGE * mean : 1;
    return status;
}

/* Makes of eigenvectors V and eigenvalues the rows of L^1/2 V^T, and of L^-1/2 V^T. */
static void make_roots(const float *vectors, const double *values, int64_t n, output_weights *out)
{
    for (int64_t j = 0; j < n; j++) {
        const double root = sqrt(fmax(values[j], values[0] * 1e-12));
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)vectors[i * n + j];
            out->root[j * n + i] = (float)(v * root);
            out->inverse[j * n + i] = (float)(v / root);
        }
    }
}

static gac_status find_roots(compression *c, int32_t layer, int projection, output_weights *out)
{
    const int64_t n = c->layers[layer].matrix[projection].n_out;
    const size_t n_all = (size_t)(n * n);
    double *sums = calloc(n_all, sizeof *sums), *values = calloc((size_t)n, sizeof *values);
    float *identity = calloc(n_all, sizeof *identity), *vectors = calloc(n_all, sizeof *vectors);
    out->root = calloc(n_all, sizeof *out->root);
    out->inverse = calloc(n_all, sizeof *out->inverse);
    gac_status status = sums && values && identity && vectors && out->root && out->inverse
                            ? read_sums(c, layer, projection, sums)
                            : gac_error_no_memory(c->err);
    for (int64_t i = 0; i < n && identity; i++)
        identity[i * n + i] = 1;
    const gac_factor_job job = { .kind = GAC_FACTOR_SPECTRUM,
                                 .n_out = n,
                                 .n_in = n,
                                 .weight = identity,
                                 .gram = sums,
                                 .energy = values,
                                 .basis = vectors,
                                 .name = "gradients" };
    gac_team *team = c->options->team;
    const int by = projection % gac_team_size(team);
    if (status == GAC_OK && gac_team_is_mine(team, projection))
        status = gac_engine_factor(c->engine, &job, 1, c->err);
    if (status == GAC_OK)
        status = gac_team_broadcast(team, by, values, (size_t)n * sizeof *values, c->err);
    if (status == GAC_OK)
        status = gac_team_broadcast(team, by, vectors, n_all * sizeof *vectors, c->err);
    if (status == GAC_OK)
        make_roots(vectors, values, n, out);
    free(sums);
    free(values);
    free(identity);
    free(vectors);
    return status;
}

/* made (n_kept, n_in) = basis^T weight, for basis (n_out, n_kept). */
static gac_status multiply(compression *c, int64_t n_out, int64_t n_in, const float *weight,
                           const float *basis, int64_t n_kept, float *made)
{
    const gac_factor_job job = { .kind = GAC_FACTOR_PROJECT,
                                 .n_out = n_out,
                                 .n_in = n_in,
                                 .weight = weight,
                                 .basis = (float *)(uintptr_t)basis,
                                 .basis_stride = n_kept,
                                 .n_kept = n_kept,
                                 .made = made,
                                 .name = "gradients" };
    return gac_engine_factor(c->engine, &job, 1, c->err);
}

static void transpose(const float *from, int64_t n_rows, int64_t n_cols, float *to)
{
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < n_cols; j++)
            to[j * n_rows + i] = from[i * n_cols + j];
}

gac_status compress_weigh(compression *c, int32_t layer, int projection, output_weights *out)
{
    const matrix_stats *m = &c->layers[layer].matrix[projection];
    const int64_t n = m->n_out;
    float *weight = NULL, *turned = malloc((size_t)(n * n) * sizeof *turned);
    *out = (output_weights){ .weighed = malloc((size_t)(n * m->n_in) * sizeof *out->weighed) };
    gac_status status = turned && out->weighed ? find_roots(c, layer, projection, out)
                                               : gac_error_no_memory(c->err);
    if (status == GAC_OK)
        status = compress_read_weight(c, m, &weight);
    if (status == GAC_OK) {
        transpose(out->root, n, n, turned);
        status = multiply(c, n, m->n_in, weight, turned, n, out->weighed);
    }
    free(weight);
    free(turned);
    return status;
}

gac_status compress_unweigh(compression *c, matrix_stats *m, const output_weights *weights)
{
    const int64_t n = m->n_out, n_basis = m->n_basis;
    float *made = malloc((size_t)(n_basis * n) * sizeof *made);
    m->second = malloc((size_t)(n * n_basis) * sizeof *m->second);
    gac_status status = made && m->second
                            ? multiply(c, n, n, weights->inverse, m->basis, n_basis, made)
                            : gac_error_no_memory(c->err);
    if (status == GAC_OK) {
        transpose(made, n_basis, n, m->second);
        status = multiply(c, n, n, weights->root, m->basis, n_basis, made);
    }
    if (status == GAC_OK)
        transpose(made, n_basis, n, m->basis);
    free(made);
    return status;
}

void compress_free_weights(output_weights *weights)
{
    free(weights->root);
    free(weights->inverse);
    free(weights->weighed);
}

/* Calibration: runs a text through the model, layer by layer, and sums the inputs of each
 * layer's linear modules. Only one layer's sums are in memory at a time. */
#include "compress/compress_internal.h"

#include "base/splitmix.h"
#include "base/team.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TOKENS 131072         /* 64 windows of 2048 */
#define MAX_TOKENS ((int64_t)1 << 60) /* more than any text has */
#define TRIAL_WINDOWS 2               /* windows that show what a cut does to the output */
/* Memory for the dense model's output at the positions where cuts are compared with it */
#define MAX_SAMPLE_BYTES ((int64_t)768 << 20)

/* Of this process's windows, then of the trial windows. */
static float *residual_of(const compression *c, int64_t window)
{
    return c->residual + window * c->window * c->hidden;
}

/* Deals the windows out to the processes. */
static void deal_windows(compression *c)
{
    const int64_t at = gac_team_member(c->options->team), n = gac_team_size(c->options->team);
    c->first_own = c->n_windows * at / n;
    c->n_own = c->n_windows * (at + 1) / n - c->first_own;
}

static gac_status count_windows(compression *c)
{
    const gac_compress_options *o = c->options;
    const int64_t n_ids = (int64_t)o->n_ids;
    const int64_t wanted = o->n_tokens ? o->n_tokens : DEFAULT_TOKENS;
    const int64_t n_all = n_ids / c->window;
    c->n_windows = (gac_min_i64(wanted, MAX_TOKENS) + c->window - 1) / c->window;
    c->n_trial_windows = TRIAL_WINDOWS;
    if (c->n_windows + c->n_trial_windows <= n_all)
        return GAC_OK;
    if (!o->n_tokens && n_all < 2)
        return gac_error_set(c->err, GAC_USAGE,
                             "the text has %lld tokens; at least %lld are needed: a window of %lld "
                             "for calibration, and one to measure the effect of cuts",
                             (long long)n_ids, (long long)(2 * c->window), (long long)c->window);
    if (o->n_tokens)
        return gac_error_set(c->err, GAC_USAGE,
                             "the text has %lld tokens; calibration with %lld needs %lld: windows "
                             "of %lld, and %d more to measure the effect of cuts",
                             (long long)n_ids, (long long)wanted,
                             (long long)((c->n_windows + TRIAL_WINDOWS) * c->window),
                             (long long)c->window, TRIAL_WINDOWS);
    c->n_trial_windows = n_all > 4 * TRIAL_WINDOWS ? TRIAL_WINDOWS : (n_all + 3) / 4;
    c->n_windows = n_all - c->n_trial_windows;
    gac_log_write(o->log, 0, "the text has %lld tokens; calibration uses %lld of them",
                  (long long)n_ids, (long long)(c->n_windows * c->window));
    return GAC_OK;
}

/* Orders the windows of the text: as they are, or shuffled by the seed. */
static gac_status order_windows(compression *c)
{
    const int64_t n = (int64_t)c->options->n_ids / c->window;
    uint64_t state = c->options->seed;
    c->order = calloc((size_t)n + 1, sizeof *c->order);
    if (!c->order)
        return gac_error_no_memory(c->err);
    for (int64_t i = 0; i < n; i++)
        c->order[i] = i;
    for (int64_t i = n - 1; i > 0 && c->options->seed; i--) {
        const int64_t j = (int64_t)(gac_splitmix64(&state) % (uint64_t)(i + 1));
        const int64_t swap = c->order[i];
        c->order[i] = c->order[j];
        c->order[j] = swap;
    }
    return GAC_OK;
}

/* Sets the positions to compare: from an eighth of the window on, as many as MAX_SAMPLE_BYTES
 * can hold. */
static void choose_samples(compression *c)
{
    c->first_sample = c->window / 8;
    const int64_t n = c->window - c->first_sample;
    const int64_t room =
        MAX_SAMPLE_BYTES / ((int64_t)sizeof(float) * c->vocab * c->n_trial_windows);
    const int64_t most = gac_max_i64(room, 1);
    c->sample_step = (n + most - 1) / most;
    c->n_samples = (n + c->sample_step - 1) / c->sample_step;
}

/* Turns the logits of n rows into probabilities. Returns the sum of p log p. */
static double take_probabilities(const float *logits, const double *log_sums, int64_t n,
                                 int64_t vocab, float *out)
{
    double sum = 0;
    for (int64_t i = 0; i < n * vocab; i++) {
        double log_p = (double)logits[i] - log_sums[i / vocab], p = exp(log_p);
        out[i] = (float)p;
        sum += p * log_p;
    }
    return sum;
}

/* The cross entropy of n rows: the sum of p (log_sum - logit). */
static double cross_entropy(const float *p, const float *logits, const double *log_sums, int64_t n,
                            int64_t vocab)
{
    double sum = 0;
    for (int64_t r = 0; r < n; r++) {
        double parts[8] = { 0 };
        for (int64_t i = 0; i + 8 <= vocab; i += 8)
            for (int lane = 0; lane < 8; lane++)
                parts[lane] += (double)p[r * vocab + i + lane] *
                               (log_sums[r] - (double)logits[r * vocab + i + lane]);
        for (int64_t i = vocab / 8 * 8; i < vocab; i++)
            parts[0] += (double)p[r * vocab + i] * (log_sums[r] - (double)logits[r * vocab + i]);
        for (int lane = 0; lane < 8; lane++)
            sum += parts[lane];
    }
    return sum;
}

/* Goes through the samples of the trial window that is in the engine. With *cross NULL it
 * keeps the probabilities, else it adds their cross entropy with the output. */
static gac_status sample_window(compression *c, int64_t window, double *cross)
{
    double log_sums[GAC_MAX_LOGIT_ROWS];
    float *logits = c->logits;
    gac_status status = GAC_OK;
    for (int64_t at = 0; at < c->n_samples && status == GAC_OK; at += GAC_MAX_LOGIT_ROWS) {
        int64_t n = c->n_samples - at < GAC_MAX_LOGIT_ROWS ? c->n_samples - at : GAC_MAX_LOGIT_ROWS;
        float *p = c->probabilities + (window * c->n_samples + at) * c->vocab;
        status = gac_engine_sample_logits(c->engine, c->first_sample + at * c->sample_step,
                                          c->sample_step, n, logits, log_sums, c->err);
        if (status == GAC_OK && cross)
            *cross += cross_entropy(p, logits, log_sums, n, c->vocab);
        else if (status == GAC_OK)
            c->entropy[window] += take_probabilities(logits, log_sums, n, c->vocab, p);
    }
    return status;
}

gac_status compress_divergence(compression *c, int32_t layer, double *out)
{
    double sum = 0;
    gac_status status = GAC_OK;
    for (int64_t w = 0; w < c->n_trial_windows && status == GAC_OK; w++) {
        status = compress_check_cancel(c);
        if (status == GAC_OK)
            status = gac_engine_write_residual(c->engine, residual_of(c, c->n_own + w), c->window,
                                               c->err);
        if (status == GAC_OK)
            status = gac_engine_run_layers(c->engine, layer, c->n_layers, c->err);
        if (status == GAC_OK)
            status = sample_window(c, w, &sum);
        sum += c->entropy[w];
        compress_step(c, (uint64_t)(c->n_layers - layer));
    }
    *out = sum / (double)(c->n_trial_windows * c->n_samples);
    if (status == GAC_OK && !isfinite(*out))
        status = gac_error_set(c->err, GAC_FAILED, "layer %d: the output with a cut is not finite",
                               layer);
    if (*out < 0) /* by rounding */
        *out = 0;
    return status;
}

/* Keeps the output of the dense model. */
static gac_status run_dense(compression *c)
{
    const int64_t n = c->n_trial_windows;
    int64_t numbers;
    if (!gac_mul_i64(n * c->n_samples, c->vocab, &numbers))
        return gac_error_no_memory(c->err);
    c->probabilities = malloc((size_t)numbers * sizeof *c->probabilities);
    c->logits = malloc((size_t)(GAC_MAX_LOGIT_ROWS * c->vocab) * sizeof *c->logits);
    c->entropy = calloc((size_t)n, sizeof *c->entropy);
    gac_status status =
        c->probabilities && c->logits && c->entropy ? GAC_OK : gac_error_no_memory(c->err);
    for (int64_t w = 0; w < n && status == GAC_OK; w++) {
        status =
            gac_engine_write_residual(c->engine, residual_of(c, c->n_own + w), c->window, c->err);
        if (status == GAC_OK)
            status = gac_engine_run_layers(c->engine, 0, c->n_layers, c->err);
        if (status == GAC_OK)
            status = sample_window(c, w, NULL);
    }
    return status;
}

gac_status compress_choose_windows(compression *c)
{
    gac_status status = count_windows(c);
    if (status != GAC_OK)
        return status;
    deal_windows(c);
    choose_samples(c);
    compress_choose_gradients(c);
    status = order_windows(c);
    return status == GAC_OK
               ? gac_engine_check_text(c->engine, c->options->ids, c->options->n_ids, c->err)
               : status;
}

gac_status compress_start_calibration(compression *c)
{
    const int64_t n = c->n_own + c->n_trial_windows;
    int64_t numbers = 0;
    gac_status status = GAC_OK;
    if (gac_mul_i64(n * c->window, c->hidden, &numbers))
        c->residual = malloc((size_t)numbers * sizeof *c->residual);
    if (!c->residual)
        return gac_error_set(c->err, GAC_NO_RESOURCE,
                             "no memory for the activations of %lld tokens; fewer tokens need less",
                             (long long)(n * c->window));
    for (int64_t w = 0; w < n && status == GAC_OK; w++) {
        const int64_t at = c->order[w < c->n_own ? c->first_own + w : c->n_windows + w - c->n_own];
        status = gac_engine_embed(c->engine, c->options->ids + at * c->window, c->window, c->err);
        if (status == GAC_OK)
            status = gac_engine_read_residual(c->engine, residual_of(c, w), c->err);
    }
    if (status == GAC_OK && compress_tries_cuts(c))
        status = run_dense(c);
    return status;
}

/* Runs windows first to end - 1 through a layer. */
static gac_status advance(compression *c, int32_t layer, int64_t first, int64_t end)
{
    gac_status status = GAC_OK;
    for (int64_t w = first; w < end && status == GAC_OK; w++) {
        status = compress_check_cancel(c);
        if (status == GAC_OK)
            status = gac_engine_write_residual(c->engine, residual_of(c, w), c->window, c->err);
        if (status == GAC_OK)
            status = gac_engine_run_layers(c->engine, layer, layer + 1, c->err);
        if (status == GAC_OK)
            status = gac_engine_read_residual(c->engine, residual_of(c, w), c->err);
        compress_step(c, 1);
    }
    return status;
}

/* The sums of one input of a layer. */
typedef struct input_sums {
    double *gram, *magnitude;
} input_sums;

/* The Gram matrix by which the method weighs the inputs; NULL: all alike. ASVD's is diagonal:
 * mean magnitudes, whose roots it scales inputs by. */
static gac_status method_gram(const compression *c, const input_sums *sums, int64_t n,
                              double **made, const double **out)
{
    *made = NULL;
    *out = c->options->method == GAC_COMPRESS_SVD ? NULL : sums->gram;
    if (c->options->method != GAC_COMPRESS_ASVD)
        return GAC_OK;
    *made = calloc((size_t)(n * n), sizeof **made);
    if (!*made)
        return gac_error_no_memory(c->err);
    for (int64_t i = 0; i < n; i++)
        (*made)[i * n + i] = sums->magnitude[i] / (double)(c->n_windows * c->window) + 1e-6;
    *out = *made;
    return GAC_OK;
}

/* Cuts the basis down to the columns that a choice can have. */
static void trim_basis(matrix_stats *m)
{
    m->n_basis = compress_break_even(m);
    for (int64_t i = 1; i < m->n_out; i++)
        memmove(m->basis + i * m->n_basis, m->basis + i * m->n,
                (size_t)m->n_basis * sizeof *m->basis);
    m->total = 0;
    for (int64_t i = m->n_parts * m->n - 1; i >= 0; i--)
        m->total += m->energy[i];
}

/* All modules, or the groups of heads of k and v. */
enum { MAX_JOBS = GAC_PROJECTION_COUNT + CHANNELS_COUNT + 2 * MAX_HEAD_PARTS };

/* The jobs of a layer, and their weights. */
typedef struct job_list {
    gac_factor_job jobs[MAX_JOBS];
    int n;
    float *weights[MAX_JOBS];
    int n_weights;
    output_weights outputs[GAC_PROJECTION_COUNT];
} job_list;

static gac_status add_weight(const compression *c, const matrix_stats *m, int projection,
                             job_list *list, const float **weight)
{
    float *read = NULL;
    *weight = list->outputs[projection].weighed;
    if (*weight)
        return GAC_OK;
    gac_status status = compress_read_weight(c, m, &read);
    *weight = list->weights[list->n_weights++] = read;
    return status;
}

static gac_status add_spectrum(compression *c, matrix_stats *m, gac_projection projection,
                               const double *gram, job_list *list)
{
    const int64_t n_rows = m->n_out / m->n_parts;
    const float *weight = NULL;
    m->energy = calloc((size_t)(m->n_parts * m->n), sizeof *m->energy);
    m->basis = malloc((size_t)(m->n_out * m->n) * sizeof *m->basis);
    gac_status status = m->energy && m->basis ? add_weight(c, m, (int)projection, list, &weight)
                                              : gac_error_no_memory(c->err);
    for (int64_t i = 0; i < m->n_parts && status == GAC_OK; i++)
        list->jobs[list->n++] = (gac_factor_job){ .kind = GAC_FACTOR_SPECTRUM,
                                                  .n_out = n_rows,
                                                  .n_in = m->n_in,
                                                  .weight = weight + i * n_rows * m->n_in,
                                                  .gram = gram,
                                                  .energy = m->energy + i * m->n,
                                                  .basis = m->basis + i * n_rows * m->n,
                                                  .name = gac_projection_name(projection) };
    return status;
}

static gac_status add_channels(compression *c, channel_stats *s, const matrix_stats *m,
                               gac_projection projection, const input_sums *sums, job_list *list)
{
    const float *weight = NULL;
    s->order = calloc((size_t)s->n_groups, sizeof *s->order);
    s->loss = calloc((size_t)s->n_groups + 1, sizeof *s->loss);
    gac_status status = s->order && s->loss ? add_weight(c, m, (int)projection, list, &weight)
                                            : gac_error_no_memory(c->err);
    list->jobs[list->n++] = (gac_factor_job){ .kind = GAC_FACTOR_CHANNELS,
                                              .n_out = m->n_out,
                                              .n_in = m->n_in,
                                              .weight = weight,
                                              .gram = sums->gram,
                                              .block = s->block,
                                              .order = s->order,
                                              .loss = s->loss,
                                              .name = gac_projection_name(projection) };
    return status;
}

bool compress_may_cut(const compression *c, int32_t layer, int kind)
{
    static const gac_projection first[] = { GAC_PROJECTION_GATE, GAC_PROJECTION_Q };
    static const gac_projection last[] = { GAC_PROJECTION_DOWN, GAC_PROJECTION_O };
    const unsigned bit = kind == CHANNELS_WIDTH ? GAC_CHOOSE_WIDTH : GAC_CHOOSE_HEADS;
    const layer_stats *l = &c->layers[layer];
    bool may = compress_is_exact(c) && c->options->method != GAC_COMPRESS_PALU &&
               (c->options->choices & bit) && l->channels[kind].n_groups > 1;
    for (int p = (int)first[kind]; p <= (int)last[kind]; p++)
        may = may && !l->matrix[p].excluded;
    return may;
}

bool compress_may_factor(const compression *c, int32_t layer, gac_projection projection)
{
    const bool mlp = projection >= GAC_PROJECTION_GATE;
    const bool palu = c->options->method == GAC_COMPRESS_PALU;
    if (palu && projection != GAC_PROJECTION_K && projection != GAC_PROJECTION_V)
        return false;
    return !c->layers[layer].matrix[projection].excluded &&
           (c->options->choices & GAC_CHOOSE_RANK) &&
           !(mlp && compress_may_cut(c, layer, CHANNELS_WIDTH));
}

/* Gives all processes what one of them computed. */
static gac_status share_result(const compression *c, int from, const gac_factor_job *job)
{
    gac_team *team = c->options->team;
    const size_t n_out = (size_t)job->n_out, n = (size_t)gac_min_i64(job->n_out, job->n_in);
    if (job->kind == GAC_FACTOR_SPECTRUM) {
        gac_status status =
            gac_team_broadcast(team, from, job->energy, n * sizeof *job->energy, c->err);
        return status == GAC_OK ? gac_team_broadcast(team, from, job->basis,
                                                     n_out * n * sizeof *job->basis, c->err)
                                : status;
    }
    const size_t n_groups = (size_t)(job->n_in / job->block);
    gac_status status =
        gac_team_broadcast(team, from, job->order, n_groups * sizeof *job->order, c->err);
    return status == GAC_OK ? gac_team_broadcast(team, from, job->loss,
                                                 (n_groups + 1) * sizeof *job->loss, c->err)
                            : status;
}

/* Does the jobs, each on one process. */
static gac_status share_jobs(compression *c, const gac_factor_job *jobs, int n_jobs)
{
    gac_factor_job own[MAX_JOBS];
    int n_own = 0;
    for (int i = 0; i < n_jobs; i++)
        if (gac_team_is_mine(c->options->team, i))
            own[n_own++] = jobs[i];
    gac_status status = n_own ? gac_engine_factor(c->engine, own, n_own, c->err) : GAC_OK;
    for (int i = 0; i < n_jobs && status == GAC_OK; i++)
        status = share_result(c, i % gac_team_size(c->options->team), &jobs[i]);
    return status;
}

/* The projection that reads the channels of a kind. */
static const gac_projection through[CHANNELS_COUNT] = { GAC_PROJECTION_DOWN, GAC_PROJECTION_O };

/* Weighs the outputs of the modules that may be cut. */
static gac_status weigh_outputs(compression *c, int32_t layer, output_weights *outputs)
{
    gac_status status = GAC_OK;
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        bool wanted = compress_may_factor(c, layer, (gac_projection)p);
        for (int kind = 0; kind < CHANNELS_COUNT; kind++)
            wanted = wanted || (p == (int)through[kind] && compress_may_cut(c, layer, kind));
        if (wanted && compress_weighs(c, p))
            status = compress_weigh(c, layer, p, &outputs[p]);
    }
    return status;
}

/* Lists the jobs of a layer. made gets what is to be freed after them. */
static gac_status list_jobs(compression *c, int32_t layer, const input_sums *sums,
                            double *made[GAC_PROJECTION_COUNT], job_list *list)
{
    layer_stats *l = &c->layers[layer];
    gac_status status = GAC_OK;
    for (int kind = 0; kind < CHANNELS_COUNT && status == GAC_OK; kind++) {
        const gac_projection p = through[kind];
        if (compress_may_cut(c, layer, kind))
            status = add_channels(c, &l->channels[kind], &l->matrix[p], p,
                                  &sums[gac_projection_input(p)], list);
    }
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        const double *gram;
        if (!compress_may_factor(c, layer, (gac_projection)p))
            continue;
        status = method_gram(c, &sums[gac_projection_input((gac_projection)p)], l->matrix[p].n_in,
                             &made[p], &gram);
        if (status == GAC_OK)
            status = add_spectrum(c, &l->matrix[p], (gac_projection)p, gram, list);
    }
    return status;
}

/* Does the jobs of a layer. */
static gac_status factor_layer(compression *c, int32_t layer, const input_sums *sums)
{
    layer_stats *l = &c->layers[layer];
    job_list list = { 0 };
    double *made[GAC_PROJECTION_COUNT] = { NULL };
    gac_status status = weigh_outputs(c, layer, list.outputs);
    if (status == GAC_OK)
        status = list_jobs(c, layer, sums, made, &list);
    if (status == GAC_OK)
        status = share_jobs(c, list.jobs, list.n);
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        matrix_stats *m = &l->matrix[p];
        if (m->basis)
            trim_basis(m);
        if (m->basis && list.outputs[p].weighed)
            status = compress_unweigh(c, m, &list.outputs[p]);
    }
    for (int i = 0; i < list.n_weights; i++)
        free(list.weights[i]);
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        free(made[p]);
        compress_free_weights(&list.outputs[p]);
    }
    return status;
}

/* Reads the sums over all processes' windows. */
static gac_status read_sums(compression *c, int32_t layer, input_sums *sums)
{
    static const gac_projection one[GAC_INPUT_COUNT] = { GAC_PROJECTION_Q, GAC_PROJECTION_O,
                                                         GAC_PROJECTION_GATE, GAC_PROJECTION_DOWN };
    gac_status status = GAC_OK;
    for (int i = 0; i < GAC_INPUT_COUNT && status == GAC_OK; i++) {
        const size_t n = (size_t)c->layers[layer].matrix[one[i]].n_in;
        sums[i].gram = malloc(n * n * sizeof(double));
        sums[i].magnitude = malloc(n * sizeof(double));
        status = sums[i].gram && sums[i].magnitude
                     ? gac_engine_read_sums(c->engine, (gac_engine_input)i, sums[i].gram,
                                            sums[i].magnitude, c->err)
                     : gac_error_no_memory(c->err);
        if (status == GAC_OK)
            status = gac_team_sum(c->options->team, sums[i].gram, n * n, c->err);
        if (status == GAC_OK)
            status = gac_team_sum(c->options->team, sums[i].magnitude, n, c->err);
    }
    return status;
}

gac_status compress_measure_layer(compression *c, int32_t layer)
{
    input_sums sums[GAC_INPUT_COUNT] = { 0 };
    char text[512];
    gac_status status = gac_engine_collect(c->engine, layer, c->err);
    if (status == GAC_OK)
        status = advance(c, layer, 0, c->n_own);
    if (status == GAC_OK)
        status = read_sums(c, layer, sums);
    gac_engine_collect(c->engine, -1, NULL);
    if (status == GAC_OK) {
        status = factor_layer(c, layer, sums);
        if (status != GAC_OK && c->err) {
            snprintf(text, sizeof text, "%s", c->err->text);
            gac_error_set(c->err, status, "layer %d: %s", layer, text);
        }
    }
    for (int k = 0; k < CHANNELS_COUNT && status == GAC_OK; k++) /* refits need them */
        if (c->layers[layer].channels[k].order) {
            input_sums *from = &sums[gac_projection_input(through[k])];
            c->layers[layer].channels[k].gram = from->gram;
            from->gram = NULL;
        }
    for (int i = 0; i < GAC_INPUT_COUNT; i++) {
        free(sums[i].gram);
        free(sums[i].magnitude);
    }
    if (status == GAC_OK && compress_tries_cuts(c))
        status = compress_measure_effects(c, layer);
    if (status == GAC_OK)
        status = compress_save_layer(c, layer);
    return status == GAC_OK ? advance(c, layer, c->n_own, c->n_own + c->n_trial_windows) : status;
}

gac_status compress_pass_layer(compression *c, int32_t layer)
{
    return advance(c, layer, 0, c->n_own + c->n_trial_windows);
}

/* Linear calls. Each chunk of rows is normed, multiplied by the first factors, then by
 * the parts. The result is gated, added to the output, or copied into it. */
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_PER_ITEM 16

/* State of one linear call, which processes its rows in chunks. */
typedef struct linear_run {
    gac_cpu_compute *compute;
    const gac_linear_call *call;
    const gac_matrix *matrix;
    int64_t first, step;   /* row i of the call is row first + i * step of x */
    const int32_t *routed; /* (n) rows of an expert, or NULL */
    const float *shares;   /* (n), what their outputs are multiplied by */
    gac_cpu_norm_args norm;
    int64_t n_in, n_latent; /* numbers per row, without padding */
    int64_t n_out;
    float *logits;       /* (rows, n_out), or NULL to write to call->out */
    int64_t row, n_rows; /* current chunk */
    const float *input;  /* (n_rows, n_in) */
    int64_t input_stride;
    gac_product *products;
    int n_products;
} linear_run;

/* An expert reads the rows that chose it, except in its last matrix, which adds to them. */
static bool gathers(const linear_run *run)
{
    return run->routed && run->call->mode != GAC_LINEAR_ADD;
}

static int64_t row_of(const linear_run *run, int64_t i)
{
    return gathers(run) ? run->routed[run->row + i] : run->first + (run->row + i) * run->step;
}

static void prepare_rows(void *data, int64_t item, int thread)
{
    linear_run *run = data;
    const gac_axis in = run->matrix->in;
    const gac_rows *x = run->call->x;
    int64_t end =
        (item + 1) * ROWS_PER_ITEM < run->n_rows ? (item + 1) * ROWS_PER_ITEM : run->n_rows;
    (void)thread;
    for (int64_t i = item * ROWS_PER_ITEM; i < end; i++) {
        const float *from = x->data + row_of(run, i) * x->stride;
        float *to = (float *)run->compute->input.data + i * gac_row_stride(run->n_in);
        if (in.stored != in.size || !run->call->norm) {
            for (int64_t s = 0; s < in.n_slices; s++)
                memcpy(to + s * in.size, from + s * in.stored, (size_t)in.size * sizeof *to);
            from = to;
        }
        if (run->call->norm)
            gac_cpu_norm(run->compute, &run->norm, from, run->n_in, to);
    }
}

/* Sets run->input. It points at the rows themselves if they need no norm, no compaction
 * and no gathering. */
static gac_status prepare_input(linear_run *run, gac_error *err)
{
    const gac_rows *x = run->call->x;
    if (!run->call->norm && run->matrix->in.stored == run->matrix->in.size && !gathers(run)) {
        run->input = x->data + (run->first + run->row * run->step) * x->stride;
        run->input_stride = run->step * x->stride;
        return GAC_OK;
    }
    gac_status status = gac_buffer_reserve(&run->compute->input, run->n_rows,
                                           gac_row_stride(run->n_in), sizeof(float), err);
    if (status != GAC_OK)
        return status;
    gac_pool_run(run->compute->pool, (run->n_rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
                 prepare_rows, run);
    run->input = run->compute->input.data;
    run->input_stride = gac_row_stride(run->n_in);
    return GAC_OK;
}

static gac_status multiply(linear_run *run, gac_error *err)
{
    if (run->n_products == 0)
        return GAC_OK;
    return run->compute->arithmetic->multiply(run->compute, run->products, run->n_products,
                                              run->n_rows, err);
}

static gac_status multiply_first(linear_run *run, gac_error *err)
{
    float *latent = run->compute->latent.data;
    run->n_products = 0;
    for (int i = 0; i < run->matrix->n_modules; i++) {
        const gac_cpu_module *module = &run->matrix->modules[i];
        if (!module->first.data)
            continue;
        run->products[run->n_products++] =
            (gac_product){ run->input,    run->input_stride,
                           module->first, module->first_bias,
                           latent,        gac_row_stride(run->n_latent),
                           false };
        latent += module->first.n_rows;
    }
    return multiply(run, err);
}

/* y (n_rows, stride) gets the outputs of the modules one after another. */
static gac_status multiply_parts(linear_run *run, float *y, int64_t stride, bool add,
                                 gac_error *err)
{
    const float *latent = run->compute->latent.data;
    run->n_products = 0;
    for (int i = 0; i < run->matrix->n_modules; i++) {
        const gac_cpu_module *module = &run->matrix->modules[i];
        const bool has_first = module->first.data != NULL;
        for (int k = 0; k < module->n_parts; k++) {
            const gac_cpu_part *part = &module->parts[k];
            run->products[run->n_products++] = (gac_product){
                .x = (has_first ? latent : run->input) + part->start,
                .x_stride = has_first ? gac_row_stride(run->n_latent) : run->input_stride,
                .weight = part->weight,
                .bias = part->bias,
                .y = y,
                .y_stride = stride,
                .add = add,
            };
            y += part->weight.n_rows;
        }
        latent += has_first ? module->first.n_rows : 0;
    }
    return multiply(run, err);
}

/* Copies one row of contiguous outputs y to out, where every slice is padded to its stored
 * size. y may be overwritten. */
static void place_row(const linear_run *run, float *y, float share, float *out)
{
    const gac_linear_call *call = run->call;
    const bool gated = call->mode == GAC_LINEAR_GATED;
    if (call->out_norm) {
        gac_cpu_norm_args norm = { call->out_norm->data, NULL, call->eps, call->centred };
        gac_cpu_norm(run->compute, &norm, y, run->n_out, y);
    }
    for (int i = 0; i < (gated ? 1 : run->matrix->n_modules); i++) {
        const gac_axis axis = run->matrix->modules[i].out;
        for (int64_t s = 0; s < axis.n_slices; s++, y += axis.size, out += axis.stored) {
            if (call->mode == GAC_LINEAR_ADD) {
                for (int64_t k = 0; k < axis.size; k++)
                    out[k] += share * y[k];
                continue;
            }
            if (gated || call->mode == GAC_LINEAR_ACTIVATED)
                gac_cpu_activate(run->compute, call->activation, y,
                                 gated ? y + axis.n_slices * axis.size : NULL, axis.size, out);
            else
                memcpy(out, y, (size_t)axis.size * sizeof *out);
            memset(out + axis.size, 0, (size_t)(axis.stored - axis.size) * sizeof *out);
        }
    }
}

static void place_rows(void *data, int64_t item, int thread)
{
    const linear_run *run = data;
    float *y = run->compute->outputs.data;
    const gac_rows *out = run->call->out;
    const bool scatters = run->routed && run->call->mode == GAC_LINEAR_ADD;
    const float scale = run->call->scale != 0 ? (float)run->call->scale : 1;
    int64_t end =
        (item + 1) * ROWS_PER_ITEM < run->n_rows ? (item + 1) * ROWS_PER_ITEM : run->n_rows;
    (void)thread;
    for (int64_t i = item * ROWS_PER_ITEM; i < end; i++) {
        int64_t row = scatters ? run->routed[run->row + i] : run->row + i;
        place_row(run, y + i * gac_row_stride(run->n_out),
                  scatters ? scale * run->shares[run->row + i] : scale,
                  out->data + row * out->stride);
    }
}

/* Returns whether the products can go to call->out as they are: nothing is computed of
 * them, and nothing is padded. */
static bool is_plain(const linear_run *run)
{
    const gac_linear_call *call = run->call;
    if (call->mode == GAC_LINEAR_GATED || call->mode == GAC_LINEAR_ACTIVATED || call->out_norm ||
        call->scale != 0 || (run->routed && call->mode == GAC_LINEAR_ADD))
        return false;
    for (int i = 0; i < run->matrix->n_modules; i++) {
        if (run->matrix->modules[i].out.stored != run->matrix->modules[i].out.size)
            return false;
    }
    return true;
}

static gac_status run_chunk(linear_run *run, gac_error *err)
{
    gac_cpu_compute *compute = run->compute;
    const int64_t stride = gac_row_stride(run->n_out);
    gac_status status = prepare_input(run, err);
    if (status == GAC_OK)
        status = gac_buffer_reserve(&compute->latent, run->n_rows, gac_row_stride(run->n_latent),
                                    sizeof(float), err);
    if (status == GAC_OK)
        status = multiply_first(run, err);
    if (status != GAC_OK)
        return status;
    if (run->logits)
        return multiply_parts(run, run->logits + run->row * stride, stride, false, err);
    gac_rows *out = run->call->out;
    if (is_plain(run))
        return multiply_parts(run, out->data + run->row * out->stride, out->stride,
                              run->call->mode == GAC_LINEAR_ADD, err);
    status = gac_buffer_reserve(&compute->outputs, run->n_rows, stride, sizeof(float), err);
    if (status == GAC_OK)
        status = multiply_parts(run, compute->outputs.data, stride, false, err);
    if (status == GAC_OK)
        gac_pool_run(compute->pool, (run->n_rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, place_rows,
                     run);
    return status;
}

static gac_status run_linear(linear_run *run, int64_t n, gac_error *err)
{
    gac_status status = GAC_OK;
    int n_products = 0;
    run->matrix = run->call->matrix;
    run->norm = gac_cpu_norm_of(run->call);
    run->n_in = run->matrix->in.n_slices * run->matrix->in.size;
    for (int i = 0; i < run->matrix->n_modules; i++) {
        const gac_cpu_module *module = &run->matrix->modules[i];
        n_products += module->n_parts > 1 ? module->n_parts : 1;
        run->n_latent += module->first.data ? module->first.n_rows : 0;
        run->n_out += module->out.n_slices * module->out.size;
    }
    run->products = calloc((size_t)n_products, sizeof *run->products);
    if (!run->products)
        return gac_error_no_memory(err);
    for (run->row = 0; status == GAC_OK && run->row < n; run->row += run->n_rows) {
        run->n_rows = n - run->row < GAC_ROW_CHUNK ? n - run->row : GAC_ROW_CHUNK;
        status = run_chunk(run, err);
    }
    free(run->products);
    return status;
}

gac_status gac_cpu_linear(void *state, const gac_linear_call *call, gac_error *err)
{
    gac_cpu_compute *compute = state;
    linear_run run = { .compute = compute, .call = call, .step = 1 };
    if (!call->routing)
        return run_linear(&run, compute->batch * compute->n_new, err);
    const int64_t first = call->routing->starts[call->expert];
    run.routed = call->routing->rows + first;
    run.shares = call->routing->weights + first;
    return run_linear(&run, call->routing->starts[call->expert + 1] - first, err);
}

gac_status gac_cpu_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                          int64_t n, gac_error *err)
{
    gac_cpu_compute *compute = state;
    const gac_axis out = call->matrix->modules[0].out;
    const int64_t n_rows = compute->batch * compute->n_new, n_vocab = out.n_slices * out.size;
    compute->n_logits = 0;
    if (n < 1 || n > GAC_MAX_LOGIT_ROWS || step < 1 || first < 0 || first >= n_rows ||
        step > n_rows || first + (n - 1) * step >= n_rows)
        return gac_error_set(err, GAC_USAGE,
                             "logits of %lld rows from %lld in steps of %lld; the pass has %lld",
                             (long long)n, (long long)first, (long long)step, (long long)n_rows);
    gac_status status =
        gac_buffer_reserve(&compute->logits, n, gac_row_stride(n_vocab), sizeof(float), err);
    if (status != GAC_OK)
        return status;
    linear_run run = { .compute = compute,
                       .call = call,
                       .first = first,
                       .step = step,
                       .logits = compute->logits.data };
    status = run_linear(&run, n, err);
    if (status != GAC_OK)
        return status;
    for (int64_t i = 0; i < n && (call->scale != 0 || call->softcap > 0); i++)
        gac_cpu_bound(call->scale, call->softcap, n_vocab,
                      (float *)compute->logits.data + i * gac_row_stride(n_vocab));
    compute->n_logits = n;
    compute->n_vocab = n_vocab;
    return GAC_OK;
}

typedef struct loss_run {
    const gac_cpu_compute *compute;
    const int32_t *targets;
    double *out;
} loss_run;

static void row_loss(void *data, int64_t row, int thread)
{
    const loss_run *run = data;
    const gac_cpu_kernels *kernels = run->compute->kernels;
    const int64_t n = run->compute->n_vocab;
    const float *logits = (const float *)run->compute->logits.data + row * gac_row_stride(n);
    const float most = kernels->largest(logits, n);
    double sum = 0;
    (void)thread;
    if (!run->compute->arithmetic->exact)
        sum = kernels->exp_sum(logits, n, most);
    else
        for (int64_t i = 0; i < n; i++)
            sum += exp((double)logits[i] - (double)most);
    run->out[row] = log(sum) + ((double)most - (double)logits[run->targets[row]]);
}

gac_status gac_cpu_losses(void *state, const int32_t *targets, double *out, gac_error *err)
{
    gac_cpu_compute *compute = state;
    loss_run run = { compute, targets, out };
    for (int64_t i = 0; i < compute->n_logits; i++) {
        if (targets[i] < 0 || targets[i] >= compute->n_vocab)
            return gac_error_set(err, GAC_BAD_INPUT, "target %d of row %lld: there are %lld tokens",
                                 targets[i], (long long)i, (long long)compute->n_vocab);
    }
    gac_pool_run(compute->pool, compute->n_logits, row_loss, &run);
    return GAC_OK;
}

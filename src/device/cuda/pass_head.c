/* Both ends of a model: tokens to rows, and rows to logits and losses. */
#include "pass_internal.h"

static bool is_table(const gac_matrix *table, const gac_rows *out)
{
    return table->n_direct == 1 && table->first.n == 0 && out->residual && out->ld == table->width;
}

static gac_table table_of(const gac_matrix *table)
{
    if (!table)
        return (gac_table){ NULL, 0, 0 };
    return (gac_table){ table->direct[0].weight, table->direct[0].ld, table->n_logical };
}

gac_status gac_compute_embed(void *state, const gac_embed_call *call, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_rows *out = call->out;
    if (!is_table(call->table, out) || (call->positions && !is_table(call->positions, out)))
        return gac_error_set(err, GAC_USAGE, "an embedding is one dense table, to residual rows");
    gac_status status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    const int64_t last = call->first_position + c->n_past + c->n_new - 1;
    if (call->positions && (call->first_position < 0 || last >= call->positions->n_logical))
        return gac_error_set(err, GAC_BAD_INPUT, "position %lld: the table has %lld rows",
                             (long long)last, (long long)call->positions->n_logical);
    const gac_embed_args args = { .dtype = c->options.dtype,
                                  .table = table_of(call->table),
                                  .positions = table_of(call->positions),
                                  .ids = c->pass + 1,
                                  .n_past = c->pass,
                                  .first_position = call->first_position,
                                  .n_new = c->n_new,
                                  .scale = call->scale != 0 ? call->scale : 1,
                                  .out = out->data,
                                  .out_ld = out->ld,
                                  .n_rows = c->batch * c->n_new,
                                  .width = out->width };
    c->chained = true;
    return gac_embed_launch(&args, c->cuda->stream, err);
}

/* Reserves logits for as many rows as any call may ask for, because a recording holds
 * their address. */
static gac_status reserve_logits(gac_cuda_compute *c, int64_t vocab, gac_error *err)
{
    int64_t n = c->options.max_rows < GAC_MAX_LOGIT_ROWS ? c->options.max_rows : GAC_MAX_LOGIT_ROWS;
    size_t n_bytes = 0;
    if (!gac_compute_bytes(n, vocab, sizeof(float), &n_bytes))
        return gac_error_set(err, GAC_NO_RESOURCE, "logits too large for any device");
    gac_status status = gac_compute_reserve(c, &c->logits, n_bytes, "logits", false, err);
    if (status == GAC_OK)
        status = gac_compute_reserve(c, &c->targets,
                                     GAC_MAX_LOGIT_ROWS * (sizeof(double) + sizeof(int32_t)),
                                     "losses", false, err);
    return status;
}

gac_status gac_compute_logits(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                              int64_t n, gac_error *err)
{
    gac_cuda_compute *c = state;
    int64_t vocab = call->matrix->n_out;
    if (first < 0 || step < 1 || n < 1 || n > GAC_MAX_LOGIT_ROWS ||
        first + (n - 1) * step >= c->options.max_rows || call->matrix->n_modules != 1 ||
        call->matrix->n_logical != vocab)
        return gac_error_set(err, GAC_USAGE, "logits of %lld rows from %lld on", (long long)n,
                             (long long)first);
    gac_status status = reserve_logits(c, vocab, err);
    if (status)
        return status;
    gac_linear_rows rows = { first, step, n };
    gac_linear_out out = { c->logits.memory, vocab, GAC_SKINNY_FLOAT };
    status = gac_compute_product(c, call, rows, out, err);
    if (status == GAC_OK)
        status = gac_compute_launch_pending(c, err);
    if (status == GAC_OK && (call->scale != 0 || call->softcap > 0))
        status = gac_bound_launch(c->logits.memory, n * vocab, call->scale != 0 ? call->scale : 1,
                                  call->softcap, c->cuda->stream, err);
    c->n_logits = status == GAC_OK ? n : 0;
    c->vocab = vocab;
    return status;
}

gac_status gac_compute_logits_read(void *state, float *out, gac_error *err)
{
    gac_cuda_compute *c = state;
    if (c->n_logits < 1)
        return gac_error_set(err, GAC_USAGE, "there are no logits yet");
    size_t n_bytes = (size_t)(c->n_logits * c->vocab) * sizeof(float);
    cudaError_t code =
        cudaMemcpyAsync(out, c->logits.memory, n_bytes, cudaMemcpyDeviceToHost, c->cuda->stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "logits from the device");
    return gac_compute_wait(c, "logits from the device", err);
}

gac_status gac_compute_losses(void *state, const int32_t *targets, double *out, gac_error *err)
{
    gac_cuda_compute *c = state;
    cudaStream_t stream = c->cuda->stream;
    size_t n = (size_t)c->n_logits;
    if (n < 1)
        return gac_error_set(err, GAC_USAGE, "there are no logits yet");
    double *losses = c->targets.memory; /* losses first: they need the larger alignment */
    int32_t *on_device = (int32_t *)(losses + GAC_MAX_LOGIT_ROWS);
    cudaError_t code =
        cudaMemcpyAsync(on_device, targets, n * sizeof *targets, cudaMemcpyHostToDevice, stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "targets to the device");
    gac_status status =
        gac_losses_launch(c->logits.memory, c->vocab, on_device, losses, c->n_logits, stream, err);
    if (status)
        return status;
    code = cudaMemcpyAsync(out, losses, n * sizeof *out, cudaMemcpyDeviceToHost, stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "losses from the device");
    return gac_compute_wait(c, "losses from the device", err);
}

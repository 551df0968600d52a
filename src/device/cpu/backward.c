/* Passes gradients back through a layer and through the end of a model, on the CPU. Everything
 * that runs forward in a layer is computed again, so that a model needs memory for one layer. */
#include "device/cpu/backward.h"
#include "base/floats.h"
#include "device/cpu/compute_blas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A thread takes a block of this many rows and columns of a product at a time. */
enum { BLOCK_ROWS = 256, BLOCK_COLUMNS = 512 };
/* Rows of an output head that are read at a time. */
enum { HEAD_ROWS = 2048 };

static void product_block(void *data, int64_t item, int thread)
{
    const gac_back_product *p = data;
    const int64_t n_across = (p->n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    const int64_t row = item / n_across * BLOCK_ROWS, column = item % n_across * BLOCK_COLUMNS;
    (void)thread;
    gac_blas_gemm(p->transposed_b, gac_min_i64(BLOCK_ROWS, p->m - row),
                  gac_min_i64(BLOCK_COLUMNS, p->n - column), p->k, 1, p->a + row * p->a_stride,
                  p->a_stride, p->transposed_b ? p->b + column * p->k : p->b + column,
                  p->transposed_b ? p->k : p->n, p->beta, p->c + row * p->n + column, p->n);
}

void gac_back_multiply(gac_cpu_compute *compute, const gac_back_product *product)
{
    const int64_t n_down = (product->m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t n_across = (product->n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    gac_pool_run(compute->pool, n_down * n_across, product_block, (void *)(uintptr_t)product);
}

void gac_back_norm(const gac_cpu_compute *compute, const float *weights, double eps, const float *x,
                   const float *out, int64_t n, float *gradient)
{
    const double factor = 1 / sqrt(gac_cpu_squares(compute, x, 0, n) / (double)n + eps);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)out[i] * (double)weights[i] * (double)x[i];
    sum *= factor * factor / (double)n;
    for (int64_t i = 0; i < n; i++)
        gradient[i] += (float)(factor * ((double)out[i] * (double)weights[i] - (double)x[i] * sum));
}

/* The activations of one sequence in a layer, and the gradients that take their place. */
typedef struct layer_run {
    gac_cpu_compute *compute;
    const gac_backward_layer *job;
    const float *x;                     /* (n_tokens, hidden), of the sequence */
    float *gradient;                    /* likewise */
    float *weights[GAC_BACKWARD_COUNT]; /* (n_out, n_in) */
    float *normed;    /* (n_tokens, hidden): the output of a norm, then its gradient */
    float *between;   /* (n_tokens, hidden): the residual stream between attention and MLP */
    float *gate, *up; /* (n_tokens, width) */
    float *gated;     /* (n_tokens, width): gradient of the down projection's input */
    gac_back_attention attention;
} layer_run;

static void forward(const layer_run *r, int which, const float *x, float *y)
{
    const gac_backward_linear *l = &r->job->linear[which];
    const int64_t n_out = l->weight.n_rows, n_in = l->weight.n_cols;
    const gac_back_product product = { .m = r->job->n_tokens,
                                       .n = n_out,
                                       .k = n_in,
                                       .a = x,
                                       .a_stride = n_in,
                                       .transposed_b = true,
                                       .b = r->weights[which],
                                       .c = y };
    gac_back_multiply(r->compute, &product);
    for (int64_t i = 0; l->bias && i < r->job->n_tokens * n_out; i++)
        y[i] += l->bias[i % n_out];
}

/* Adds y, the gradient of a projection's output, to the sums, if they are wanted. Passes it back
 * to x, the gradient of the input. */
static gac_status back(const layer_run *r, int which, const float *y, bool add, float *x,
                       gac_error *err)
{
    const gac_backward_linear *l = &r->job->linear[which];
    const gac_back_product product = { .m = r->job->n_tokens,
                                       .n = l->weight.n_cols,
                                       .k = l->weight.n_rows,
                                       .a = y,
                                       .a_stride = l->weight.n_rows,
                                       .b = r->weights[which],
                                       .beta = add ? 1 : 0,
                                       .c = x };
    gac_back_multiply(r->compute, &product);
    return l->gram ? gac_cpu_gram_add_rows(r->compute, y, r->job->n_tokens, l->gram, err) : GAC_OK;
}

/* One row of a norm, forward or back. */
typedef struct norm_run {
    const layer_run *r;
    const float *weights, *x;
} norm_run;

static void norm_row(void *data, int64_t t, int thread)
{
    const norm_run *n = data;
    const int64_t hidden = n->r->job->hidden;
    const gac_cpu_norm_args args = { .weights = n->weights, .eps = n->r->job->eps };
    (void)thread;
    gac_cpu_norm(n->r->compute, &args, n->x + t * hidden, hidden, n->r->normed + t * hidden);
}

static void norm_row_back(void *data, int64_t t, int thread)
{
    const norm_run *n = data;
    const int64_t hidden = n->r->job->hidden;
    (void)thread;
    gac_back_norm(n->r->compute, n->weights, n->r->job->eps, n->x + t * hidden,
                  n->r->normed + t * hidden, hidden, n->r->gradient + t * hidden);
}

static void run_norm(const layer_run *r, gac_pool_fn *fn, const float *weights, const float *x)
{
    norm_run n = { r, weights, x };
    gac_pool_run(r->compute->pool, r->job->n_tokens, fn, &n);
}

/* Replaces gate and up by their gradients. */
static void gate_row_back(void *data, int64_t t, int thread)
{
    const layer_run *r = data;
    const int64_t n = r->job->linear[GAC_BACKWARD_GATE].weight.n_rows;
    float *gate = r->gate + t * n, *up = r->up + t * n;
    const float *gated = r->gated + t * n;
    (void)thread;
    for (int64_t i = 0; i < n; i++) {
        const float sigmoid = 1 / (1 + expf(-gate[i])), silu = gate[i] * sigmoid;
        gate[i] = gated[i] * up[i] * sigmoid * (1 + gate[i] * (1 - sigmoid));
        up[i] = gated[i] * silu;
    }
}

static void attention_forward(const layer_run *r)
{
    const gac_backward_layer *job = r->job;
    const gac_back_attention *a = &r->attention;
    run_norm(r, norm_row, job->attention_norm, r->x);
    forward(r, GAC_BACKWARD_Q, r->normed, a->q);
    forward(r, GAC_BACKWARD_K, r->normed, a->k);
    forward(r, GAC_BACKWARD_V, r->normed, a->v);
    gac_back_attend(a);
    forward(r, GAC_BACKWARD_O, a->out, r->between);
    for (int64_t i = 0; i < job->n_tokens * job->hidden; i++)
        r->between[i] += r->x[i];
}

static gac_status mlp_back(layer_run *r, gac_error *err)
{
    const gac_backward_layer *job = r->job;
    run_norm(r, norm_row, job->mlp_norm, r->between);
    forward(r, GAC_BACKWARD_GATE, r->normed, r->gate);
    forward(r, GAC_BACKWARD_UP, r->normed, r->up);
    gac_status status = back(r, GAC_BACKWARD_DOWN, r->gradient, false, r->gated, err);
    gac_pool_run(r->compute->pool, job->n_tokens, gate_row_back, r);
    if (status == GAC_OK)
        status = back(r, GAC_BACKWARD_GATE, r->gate, false, r->normed, err);
    if (status == GAC_OK)
        status = back(r, GAC_BACKWARD_UP, r->up, true, r->normed, err);
    run_norm(r, norm_row_back, job->mlp_norm, r->between);
    return status;
}

static gac_status attention_back(const layer_run *r, gac_error *err)
{
    const gac_backward_layer *job = r->job;
    const gac_back_attention *a = &r->attention;
    gac_status status = back(r, GAC_BACKWARD_O, r->gradient, false, a->out, err);
    gac_back_attend_back(a);
    if (status == GAC_OK)
        status = back(r, GAC_BACKWARD_Q, a->q, false, r->normed, err);
    if (status == GAC_OK)
        status = back(r, GAC_BACKWARD_K, a->k, true, r->normed, err);
    if (status == GAC_OK)
        status = back(r, GAC_BACKWARD_V, a->v, true, r->normed, err);
    run_norm(r, norm_row_back, job->attention_norm, r->x);
    return status;
}

static int64_t outputs(const gac_backward_layer *job, int which)
{
    return job->linear[which].weight.n_rows;
}

/* Takes all buffers out of one piece of memory, which the caller frees. */
static float *share_memory(layer_run *r)
{
    const gac_backward_layer *job = r->job;
    gac_back_attention *a = &r->attention;
    const int64_t q = outputs(job, GAC_BACKWARD_Q), k = outputs(job, GAC_BACKWARD_K);
    const int64_t v = outputs(job, GAC_BACKWARD_V), width = outputs(job, GAC_BACKWARD_GATE);
    struct {
        float **at;
        int64_t n; /* for each token */
    } parts[] = { { &r->normed, job->hidden },
                  { &r->between, job->hidden },
                  { &r->gate, width },
                  { &r->up, width },
                  { &r->gated, width },
                  { &a->q, q },
                  { &a->q_turned, q },
                  { &a->k, k },
                  { &a->k_turned, k },
                  { &a->v, v },
                  { &a->out, job->n_q_heads * job->v_size },
                  { &a->k_parts, job->n_q_heads * job->qk_size },
                  { &a->v_parts, job->n_q_heads * job->v_size } };
    const size_t n_parts = sizeof parts / sizeof *parts;
    int64_t n = 0, n_all;
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].n;
    float *memory = gac_mul_i64(n, job->n_tokens, &n_all) && n_all < INT64_MAX / 8
                        ? malloc((size_t)n_all * sizeof *memory)
                        : NULL;
    n = 0;
    for (size_t i = 0; memory && i < n_parts; i++) {
        *parts[i].at = memory + n * job->n_tokens;
        n += parts[i].n;
    }
    return memory;
}

/* Rows first to first + n - 1 of a weight, as floats. */
static void read_rows(const gac_host_tensor *weight, int64_t first, int64_t n, float *out)
{
    const int64_t n_all = n * weight->n_cols, at = first * weight->n_cols;
    const char *data = weight->data;
    if (weight->dtype == GAC_DTYPE_F16)
        gac_floats_from_f16(data + 2 * at, n_all, out);
    else if (weight->dtype == GAC_DTYPE_BF16)
        gac_floats_from_bf16(data + 2 * at, n_all, out);
    else
        memcpy(out, data + 4 * at, (size_t)n_all * sizeof *out);
}

/* Converts the weights; the caller frees them. Returns false where there is no memory. */
static bool read_weights(layer_run *r)
{
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        const gac_host_tensor *weight = &r->job->linear[i].weight;
        r->weights[i] = malloc((size_t)(weight->n_rows * weight->n_cols) * sizeof(float));
        if (!r->weights[i])
            return false;
        read_rows(weight, 0, weight->n_rows, r->weights[i]);
    }
    return true;
}

gac_status gac_cpu_backward_layer(void *state, const gac_backward_layer *job, gac_error *err)
{
    layer_run r = { .compute = state, .job = job };
    r.attention = (gac_back_attention){ .compute = state, .job = job };
    float *memory = share_memory(&r);
    gac_status status = memory && read_weights(&r) ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = gac_scratch_reserve(state, gac_back_attention_bytes(job), err);
    for (int64_t i = 0; i < job->n_sequences && status == GAC_OK; i++) {
        r.x = job->x + i * job->n_tokens * job->hidden;
        r.gradient = job->gradient + i * job->n_tokens * job->hidden;
        attention_forward(&r);
        status = mlp_back(&r, err);
        if (status == GAC_OK)
            status = attention_back(&r, err);
    }
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++)
        free(r.weights[i]);
    free(memory);
    return status;
}

/* Draws the token of a row from its probabilities. The gradient of its loss with respect to the
 * logits is the probabilities, less one at the token. */
static void logits_row_back(void *data, int64_t row, int thread)
{
    const gac_backward_head *job = data;
    float *logits = job->logits + row * job->vocab;
    int64_t token = job->vocab - 1;
    double sum = 0;
    (void)thread;
    for (int64_t i = 0; i < job->vocab; i++) {
        const double p = exp((double)logits[i] - job->log_sums[row]);
        const bool before = sum <= job->draws[row];
        sum += p;
        if (before && sum > job->draws[row])
            token = i;
        logits[i] = (float)p;
    }
    logits[token] -= 1;
}

gac_status gac_cpu_backward_head(void *state, const gac_backward_head *job, gac_error *err)
{
    gac_cpu_compute *compute = state;
    const int64_t hidden = job->hidden;
    float *rows = malloc((size_t)(HEAD_ROWS * hidden) * sizeof *rows);
    float *normed = calloc((size_t)(job->n_rows * hidden), sizeof *normed);
    gac_status status = rows && normed ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        gac_pool_run(compute->pool, job->n_rows, logits_row_back, (void *)(uintptr_t)job);
    for (int64_t first = 0; status == GAC_OK && first < job->vocab; first += HEAD_ROWS) {
        const int64_t n = gac_min_i64(HEAD_ROWS, job->vocab - first);
        read_rows(&job->weight, first, n, rows);
        const gac_back_product product = { .m = job->n_rows,
                                           .n = hidden,
                                           .k = n,
                                           .a = job->logits + first,
                                           .a_stride = job->vocab,
                                           .b = rows,
                                           .beta = 1,
                                           .c = normed };
        gac_back_multiply(compute, &product);
    }
    for (int64_t r = 0; status == GAC_OK && r < job->n_rows; r++) {
        memset(job->gradient + r * hidden, 0, (size_t)hidden * sizeof(float));
        gac_back_norm(compute, job->norm, job->eps, job->x + r * hidden, normed + r * hidden,
                      hidden, job->gradient + r * hidden);
    }
    free(rows);
    free(normed);
    return status;
}

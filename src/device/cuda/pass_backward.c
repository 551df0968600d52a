/* Passes gradients back through a layer, one sequence at a time. backward.c of the CPU has the
 * same steps. Everything that runs forward is computed again. */
#include "pass_backward.h"

#include <limits.h>

static cudaStream_t stream_of(const gac_algebra *s)
{
    return s->c->cuda->stream;
}

/* To cuBLAS, which is column-major, this is c^T = b^T a^T of the matrices as they lie. */
void gac_backward_multiply(gac_algebra *s, const gac_backward_product *p)
{
    const gac_backward_matrix *a = &p->a, *b = &p->b, *c = &p->c;
    if (s->status == GAC_OK && (p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX ||
                                a->ld > INT_MAX || b->ld > INT_MAX || c->ld > INT_MAX))
        gac_algebra_fail(s, GAC_USAGE, "a matrix of more than 2^31 rows");
    if (s->status == GAC_OK)
        gac_algebra_check_blas(
            s,
            cublasSgemmStridedBatched(s->c->cuda->blas, b->transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                      a->transposed ? CUBLAS_OP_T : CUBLAS_OP_N, (int)p->n,
                                      (int)p->m, (int)p->k, &p->alpha, b->at, (int)b->ld, b->step,
                                      a->at, (int)a->ld, a->step, &p->beta, c->at, (int)c->ld,
                                      c->step, (int)p->n_batch),
            "cublasSgemmStridedBatched");
}

float *gac_backward_floats(gac_algebra *s, int64_t a, int64_t b)
{
    return gac_algebra_take(s, a, b, sizeof(float));
}

float *gac_backward_upload(gac_algebra *s, const float *from, int64_t a, int64_t b)
{
    float *to = from ? gac_backward_floats(s, a, b) : NULL;
    if (to)
        gac_algebra_copy(s, to, from, (size_t)(a * b) * sizeof *to);
    return to;
}

gac_status gac_backward_end(gac_algebra *s)
{
    gac_algebra_end(s);
    cudaMemPoolTrimTo(s->c->cuda->pool, 0);
    return s->status;
}

static int64_t outputs(const gac_backward_run *r, int which)
{
    return r->job->linear[which].weight.n_rows;
}

/* y = x W^T + bias, or y += that. */
static void forward(gac_backward_run *r, int which, float *x, bool add, float *y)
{
    const int64_t n_out = outputs(r, which), n_in = r->job->linear[which].weight.n_cols;
    const gac_backward_product product = { .n_batch = 1,
                                           .m = r->job->n_tokens,
                                           .n = n_out,
                                           .k = n_in,
                                           .alpha = 1,
                                           .beta = add ? 1 : 0,
                                           .a = { .at = x, .ld = n_in },
                                           .b = { r->weight[which], n_in, 0, true },
                                           .c = { .at = y, .ld = n_out } };
    gac_backward_multiply(&r->s, &product);
    if (r->s.status == GAC_OK && r->bias[which])
        gac_algebra_check(&r->s,
                          gac_bias_launch(GAC_DTYPE_F32, y, n_out, r->bias[which], r->job->n_tokens,
                                          n_out, stream_of(&r->s), r->s.err));
}

/* Adds y, the gradient of a module's output, to the sums, if they are wanted. Sets x to the
 * gradient of the input, or adds it to x. */
static void back(gac_backward_run *r, int which, float *y, bool add, float *x)
{
    const int64_t n_out = outputs(r, which), n_in = r->job->linear[which].weight.n_cols;
    const gac_backward_product product = { .n_batch = 1,
                                           .m = r->job->n_tokens,
                                           .n = n_in,
                                           .k = n_out,
                                           .alpha = 1,
                                           .beta = add ? 1 : 0,
                                           .a = { .at = y, .ld = n_out },
                                           .b = { .at = r->weight[which], .ld = n_in },
                                           .c = { .at = x, .ld = n_in } };
    gac_gram *gram = r->job->linear[which].gram;
    gac_backward_multiply(&r->s, &product);
    if (r->s.status == GAC_OK && gram)
        gac_algebra_check(&r->s,
                          gac_compute_gram_add_floats(r->s.c, y, r->job->n_tokens, gram, r->s.err));
}

/* Sets normed. */
static void run_norm(gac_backward_run *r, const float *norm, const float *x)
{
    const int64_t hidden = r->job->hidden;
    const gac_norm_args args = { .dtype = GAC_DTYPE_F32,
                                 .from_float = true,
                                 .x = x,
                                 .norm = norm,
                                 .out = r->normed,
                                 .x_ld = hidden,
                                 .out_ld = hidden,
                                 .width = hidden,
                                 .n = r->job->n_tokens,
                                 .eps = r->job->eps };
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, gac_norm_launch(&args, stream_of(&r->s), r->s.err));
}

/* normed holds the gradient of the norm's output. Adds that of x to gradient. */
static void run_norm_back(gac_backward_run *r, const float *norm, const float *x)
{
    const gac_norm_back_args args = { .x = x,
                                      .norm = norm,
                                      .out = r->normed,
                                      .gradient = r->gradient,
                                      .n_rows = r->job->n_tokens,
                                      .n = r->job->hidden,
                                      .eps = r->job->eps };
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, gac_norm_back_launch(&args, stream_of(&r->s), r->s.err));
}

static void attention_forward(gac_backward_run *r)
{
    run_norm(r, r->attention_norm, r->x);
    forward(r, GAC_BACKWARD_Q, r->normed, false, r->q);
    forward(r, GAC_BACKWARD_K, r->normed, false, r->k);
    forward(r, GAC_BACKWARD_V, r->normed, false, r->v);
    gac_backward_attend(r);
    gac_algebra_copy(&r->s, r->between, r->x,
                     (size_t)(r->job->n_tokens * r->job->hidden) * sizeof *r->x);
    forward(r, GAC_BACKWARD_O, r->out, true, r->between);
}

static void mlp_back(gac_backward_run *r)
{
    const int64_t n = r->job->n_tokens * outputs(r, GAC_BACKWARD_GATE);
    run_norm(r, r->mlp_norm, r->between);
    forward(r, GAC_BACKWARD_GATE, r->normed, false, r->gate);
    forward(r, GAC_BACKWARD_UP, r->normed, false, r->up);
    back(r, GAC_BACKWARD_DOWN, r->gradient, false, r->gated);
    if (r->s.status == GAC_OK)
        gac_algebra_check(
            &r->s, gac_gate_back_launch(r->gate, r->up, r->gated, n, stream_of(&r->s), r->s.err));
    back(r, GAC_BACKWARD_GATE, r->gate, false, r->normed);
    back(r, GAC_BACKWARD_UP, r->up, true, r->normed);
    run_norm_back(r, r->mlp_norm, r->between);
}

static void attention_back(gac_backward_run *r)
{
    back(r, GAC_BACKWARD_O, r->gradient, false, r->out);
    gac_backward_attend_back(r);
    back(r, GAC_BACKWARD_Q, r->q, false, r->normed);
    back(r, GAC_BACKWARD_K, r->k, true, r->normed);
    back(r, GAC_BACKWARD_V, r->v_gradient, true, r->normed);
    run_norm_back(r, r->attention_norm, r->x);
}

/* Puts weights, biases, norms and tables on the device. */
static void upload_layer(gac_backward_run *r)
{
    gac_algebra *s = &r->s;
    const gac_backward_layer *job = r->job;
    for (int i = 0; i < GAC_BACKWARD_COUNT; i++) {
        const gac_host_tensor *weight = &job->linear[i].weight;
        r->weight[i] = gac_backward_floats(s, weight->n_rows, weight->n_cols);
        r->bias[i] = gac_backward_upload(s, job->linear[i].bias, weight->n_rows, 1);
        if (s->status == GAC_OK)
            gac_algebra_check(
                s, gac_compute_upload(s->c, weight, 0, weight->n_rows, r->weight[i], s->err));
    }
    r->attention_norm = gac_backward_upload(s, job->attention_norm, job->hidden, 1);
    r->mlp_norm = gac_backward_upload(s, job->mlp_norm, job->hidden, 1);
    r->q_norm = gac_backward_upload(s, job->q_norm, job->qk_size, 1);
    r->k_norm = gac_backward_upload(s, job->k_norm, job->qk_size, 1);
    r->cosines = gac_backward_upload(s, job->cosines, job->n_tokens, job->qk_size / 2);
    r->sines = gac_backward_upload(s, job->sines, job->n_tokens, job->qk_size / 2);
}

static void take_memory(gac_backward_run *r)
{
    const gac_backward_layer *job = r->job;
    const int64_t width = outputs(r, GAC_BACKWARD_GATE);
    float **const of_hidden[] = { &r->x, &r->gradient, &r->normed, &r->between };
    float **const of_width[] = { &r->gate, &r->up, &r->gated };
    for (int i = 0; i < 4; i++)
        *of_hidden[i] = gac_backward_floats(&r->s, job->n_tokens, job->hidden);
    for (int i = 0; i < 3; i++)
        *of_width[i] = gac_backward_floats(&r->s, job->n_tokens, width);
    gac_backward_take_attention(r);
}

gac_status gac_compute_backward_layer(void *state, const gac_backward_layer *job, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_backward_run r = { .s = { .c = c, .err = err },
                           .job = job,
                           .group = job->n_q_heads / job->n_kv_heads };
    const int64_t n = job->n_tokens * job->hidden;
    const size_t n_bytes = (size_t)n * sizeof(float);
    gac_algebra_check(&r.s, gac_compute_wait(c, "a pass on the device", err));
    c->chained = false;
    upload_layer(&r);
    take_memory(&r);
    for (int64_t i = 0; i < job->n_sequences && r.s.status == GAC_OK; i++) {
        gac_algebra_copy(&r.s, r.x, job->x + i * n, n_bytes);
        gac_algebra_copy(&r.s, r.gradient, job->gradient + i * n, n_bytes);
        attention_forward(&r);
        mlp_back(&r);
        attention_back(&r);
        gac_algebra_read(&r.s, job->gradient + i * n, r.gradient, n_bytes);
    }
    return gac_backward_end(&r.s);
}

/* Passes gradients back through the end of a model: the output head and its norm. */
#include "pass_backward.h"

/* Rows of an output head that are on the device at a time. */
enum { HEAD_ROWS = 4096 };

/* out (n_rows, hidden) = gradient (n_rows, vocab) W, a piece of W (vocab, hidden) after the
 * other. */
static void multiply_head(gac_algebra *s, const gac_backward_head *job, float *gradient, float *out)
{
    float *piece =
        gac_backward_floats(s, job->vocab < HEAD_ROWS ? job->vocab : HEAD_ROWS, job->hidden);
    for (int64_t first = 0; first < job->vocab && s->status == GAC_OK; first += HEAD_ROWS) {
        const int64_t left = job->vocab - first, n = left < HEAD_ROWS ? left : HEAD_ROWS;
        const gac_backward_product product = { .n_batch = 1,
                                               .m = job->n_rows,
                                               .n = job->hidden,
                                               .k = n,
                                               .alpha = 1,
                                               .beta = first > 0 ? 1 : 0,
                                               .a = { .at = gradient + first, .ld = job->vocab },
                                               .b = { .at = piece, .ld = job->hidden },
                                               .c = { .at = out, .ld = job->hidden } };
        gac_algebra_check(s, gac_compute_upload(s->c, &job->weight, first, n, piece, s->err));
        gac_backward_multiply(s, &product);
    }
}

/* Sets gradient (n_rows, hidden) to that of x; out is that of the norm's output. */
static void norm_back(gac_algebra *s, const gac_backward_head *job, const float *out,
                      float *gradient)
{
    const gac_norm_back_args args = { .x = gac_backward_upload(s, job->x, job->n_rows, job->hidden),
                                      .norm = gac_backward_upload(s, job->norm, job->hidden, 1),
                                      .out = out,
                                      .gradient = gradient,
                                      .n_rows = job->n_rows,
                                      .n = job->hidden,
                                      .eps = job->eps };
    gac_algebra_clear(s, gradient, (size_t)(job->n_rows * job->hidden) * sizeof *gradient);
    if (s->status == GAC_OK)
        gac_algebra_check(s, gac_norm_back_launch(&args, s->c->cuda->stream, s->err));
}

gac_status gac_compute_backward_head(void *state, const gac_backward_head *job, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_algebra s = { .c = c, .err = err };
    const size_t numbers_bytes = (size_t)job->n_rows * sizeof(double);
    gac_algebra_check(&s, gac_compute_wait(c, "a pass on the device", err));
    c->chained = false;
    float *logits = gac_backward_upload(&s, job->logits, job->n_rows, job->vocab);
    double *log_sums = gac_algebra_numbers(&s, job->n_rows, 1);
    double *draws = gac_algebra_numbers(&s, job->n_rows, 1);
    float *out = gac_backward_floats(&s, job->n_rows, job->hidden);
    float *gradient = gac_backward_floats(&s, job->n_rows, job->hidden);
    gac_algebra_copy(&s, log_sums, job->log_sums, numbers_bytes);
    gac_algebra_copy(&s, draws, job->draws, numbers_bytes);
    if (s.status == GAC_OK)
        gac_algebra_check(&s, gac_draw_launch(logits, log_sums, draws, job->n_rows, job->vocab,
                                              c->cuda->stream, err));
    multiply_head(&s, job, logits, out);
    norm_back(&s, job, out, gradient);
    gac_algebra_read(&s, job->gradient, gradient,
                     (size_t)(job->n_rows * job->hidden) * sizeof *gradient);
    return gac_backward_end(&s);
}

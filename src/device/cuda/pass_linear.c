/* Multiplies rows by the weights of a matrix.
 *
 * x is first normed and converted to half; for a single row the product kernel does that
 * itself. Direct pieces multiply x. The first factors multiply x and give the latent,
 * which the second pieces multiply. For a few rows our own kernels also add biases, apply
 * the gate and add to the residual stream. For many rows cublasLt multiplies, and
 * separate kernels do the rest. */
#include "pass_internal.h"

/* Input rows of a product: half, or F32 with a norm to apply. */
typedef struct source {
    const void *x;
    int64_t ld, width;
    bool from_float;
    const float *norm, *norm_bias;
    bool centred;
    int64_t n_norm;
    double eps;
} source;

/* Pieces with a common input, and their output. */
typedef struct stage {
    const gac_piece *pieces;
    int n_pieces;
    source in;
    const float *bias; /* (n_y), or NULL */
    int64_t n_y;       /* numbers in a row of y */
    gac_linear_out out;
} stage;

/* Returns how many pieces, from the first on, form one contiguous matrix. */
static int count_joined(const gac_piece *p, int n)
{
    int i = 1;
    while (i < n && p[i].z_start == p->z_start && p[i].k == p->k && p[i].ld == p->ld &&
           p[i].y_start == p[i - 1].y_start + p[i - 1].n &&
           (char *)p[i].weight == (char *)p[i - 1].weight + p[i - 1].n * p->ld * 2)
        i++;
    return i;
}

static int64_t sum_joined(const gac_piece *p, int n)
{
    int64_t rows = 0;
    for (int i = 0; i < n; i++)
        rows += p[i].n;
    return rows;
}

/* Returns whether all pieces have the 16-byte alignment that our own kernels need. */
static bool is_aligned(const gac_matrix *matrix)
{
    bool ok = matrix->width % 8 == 0 && matrix->first.n % 8 == 0;
    for (int i = 0; i < matrix->n_second; i++) {
        const gac_piece *p = &matrix->second[i];
        ok = ok && p->k % 8 == 0 && p->z_start % 8 == 0 && (uintptr_t)p->weight % 16 == 0;
    }
    return ok;
}

static gac_skinny_weights weights_of(const gac_piece *p, const float *bias)
{
    return (gac_skinny_weights){ p->weight, bias ? bias + p->y_start : NULL, p->k, p->ld,
                                 p->z_start };
}

static gac_skinny_args skinny_call(gac_cuda_compute *c, const source *in, int64_t m,
                                   gac_linear_out out)
{
    return (gac_skinny_args){ .dtype = c->options.dtype,
                              .mode = out.mode,
                              .m = m,
                              .from_float = in->from_float,
                              .x = in->x,
                              .norm = in->norm,
                              .n_norm = in->n_norm,
                              .eps = in->eps,
                              .width = in->width,
                              .x_ld = in->ld,
                              .y = out.y,
                              .y_ld = out.y_ld };
}

/* Norms m rows, or only converts them to half, into c->x. */
static gac_status norm_rows(gac_cuda_compute *c, source *in, int64_t m, gac_error *err)
{
    gac_norm_args args = { .dtype = c->options.dtype,
                           .from_float = in->from_float,
                           .x = in->x,
                           .norm = in->norm,
                           .bias = in->norm_bias,
                           .centred = in->centred,
                           .out = c->x.memory,
                           .x_ld = in->ld,
                           .out_ld = in->width,
                           .width = in->norm ? in->n_norm : in->width,
                           .n = m,
                           .eps = in->eps,
                           .overlap = c->chained };
    c->chained = true;
    *in = (source){ .x = c->x.memory, .ld = in->width, .width = in->width };
    return gac_norm_launch(&args, c->cuda->stream, err);
}

/* Runs the kernel for up to 16 rows. It takes half rows only. */
static gac_status launch_alone(gac_cuda_compute *c, gac_skinny_args *args, gac_error *err)
{
    gac_status status = GAC_OK;
    if (args->from_float) {
        source in = { .x = args->x,
                      .ld = args->x_ld,
                      .width = args->width,
                      .from_float = true,
                      .norm = args->norm,
                      .n_norm = args->n_norm,
                      .eps = args->eps };
        status = norm_rows(c, &in, args->m, err);
        args->x = in.x;
        args->x_ld = in.ld;
        args->from_float = false;
        args->norm = NULL;
    }
    args->overlap = c->chained;
    if (status == GAC_OK)
        status = gac_skinny_launch(args, c->cuda->stream, err);
    c->chained = true;
    return status;
}

/* Defers products of one row, to launch them together. */
static gac_status launch_skinny(gac_cuda_compute *c, const gac_skinny_args *args, gac_error *err)
{
    c->pending[c->n_pending] = *args;
    if (gac_gemv_takes(c->pending, c->n_pending + 1)) {
        c->n_pending++;
        return c->n_pending == GAC_GEMV_MAX_PRODUCTS ? gac_compute_launch_pending(c, err) : GAC_OK;
    }
    gac_status status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    c->pending[0] = *args;
    if (gac_gemv_takes(c->pending, 1)) {
        c->n_pending = 1;
        return GAC_OK;
    }
    return launch_alone(c, c->pending, err);
}

gac_status gac_compute_launch_pending(gac_cuda_compute *c, gac_error *err)
{
    int n = c->n_pending;
    if (n == 0)
        return GAC_OK;
    c->n_pending = 0;
    gac_status status =
        gac_gemv_launch(c->pending, n, c->gemv_state.memory, c->chained, c->cuda->stream, err);
    c->chained = true;
    return status;
}

static gac_status multiply_few(gac_cuda_compute *c, const stage *s, int64_t m, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int i = 0; i < s->n_pieces && status == GAC_OK;) {
        gac_skinny_args args = skinny_call(c, &s->in, m, s->out);
        while (i < s->n_pieces && args.n_segments < GAC_SKINNY_MAX_SEGMENTS) {
            const gac_piece *p = &s->pieces[i];
            int n = count_joined(p, s->n_pieces - i);
            args.segments[args.n_segments++] = (gac_skinny_segment){ .gate = weights_of(p, s->bias),
                                                                     .n = sum_joined(p, n),
                                                                     .y_start = p->y_start };
            i += n;
        }
        status = launch_skinny(c, &args, err);
    }
    return status;
}

static gac_status multiply_many(gac_cuda_compute *c, const stage *s, int64_t m, gac_error *err)
{
    gac_status status = gac_compute_launch_pending(c, err);
    bool to_float = s->out.mode == GAC_SKINNY_FLOAT || s->out.mode == GAC_SKINNY_ADD;
    for (int i = 0; i < s->n_pieces && status == GAC_OK;) {
        const gac_piece *p = &s->pieces[i];
        int n = count_joined(p, s->n_pieces - i);
        gac_lt_call call = { .m = m,
                             .n = sum_joined(p, n),
                             .k = p->k,
                             .w = p->weight,
                             .x = (const char *)s->in.x + p->z_start * 2,
                             .y = (char *)s->out.y + p->y_start * (to_float ? 4 : 2),
                             .w_ld = p->ld,
                             .x_ld = s->in.ld,
                             .y_ld = s->out.y_ld,
                             .to_float = to_float,
                             .add = s->out.mode == GAC_SKINNY_ADD };
        status = gac_lt_multiply(c, &call, err);
        i += n;
    }
    return status;
}

static gac_status multiply(gac_cuda_compute *c, const stage *s, int64_t m, bool few, gac_error *err)
{
    if (s->n_pieces == 0)
        return GAC_OK;
    return few ? multiply_few(c, s, m, err) : multiply_many(c, s, m, err);
}

/* Adds the biases after cublasLt. */
static gac_status add_bias(gac_cuda_compute *c, const stage *s, int64_t m, gac_error *err)
{
    bool to_float = s->out.mode == GAC_SKINNY_FLOAT || s->out.mode == GAC_SKINNY_ADD;
    if (!s->bias)
        return GAC_OK;
    return gac_bias_launch(to_float ? GAC_DTYPE_F32 : c->options.dtype, s->out.y, s->out.y_ld,
                           s->bias, m, s->n_y, c->cuda->stream, err);
}

/* Prepares the input rows. few: a single F32 row is left to the product kernel, which knows
 * no other norm than that of Llama. */
static gac_status prepare(gac_cuda_compute *c, const gac_linear_call *call, gac_linear_rows rows,
                          bool few, source *out, gac_error *err)
{
    const gac_matrix *matrix = call->matrix;
    const gac_rows *x = call->x;
    int64_t n_logical = matrix->in.n_slices * matrix->in.size, element = x->residual ? 4 : 2;
    if (x->ld != matrix->width)
        return gac_error_set(err, GAC_USAGE, "rows of %lld numbers to a matrix that takes %lld",
                             (long long)x->ld, (long long)matrix->width);
    if (call->norm && (call->norm->n != n_logical ||
                       (matrix->in.n_slices > 1 && matrix->in.size != matrix->in.stored)))
        return gac_error_set(err, GAC_USAGE, "a norm of %lld numbers over rows of %lld",
                             (long long)call->norm->n, (long long)n_logical);
    *out = (source){ .x = (const char *)x->data + rows.first * x->ld * element,
                     .ld = rows.step * x->ld,
                     .width = matrix->width,
                     .from_float = x->residual,
                     .norm = call->norm ? call->norm->data : NULL,
                     .norm_bias = call->norm_bias ? call->norm_bias->data : NULL,
                     .centred = call->centred,
                     .n_norm = n_logical,
                     .eps = call->eps };
    if (!x->residual && !call->norm)
        return GAC_OK;
    if (x->residual && few && rows.n == 1 && !call->centred && !call->norm_bias)
        return GAC_OK;
    gac_status status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    return norm_rows(c, out, rows.n, err);
}

gac_status gac_compute_inputs(gac_cuda_compute *c, const gac_linear_call *call, const void **x,
                              int64_t *x_ld, gac_error *err)
{
    const gac_linear_rows rows = { 0, 1, c->batch * c->n_new };
    source in = { 0 };
    gac_status status = gac_compute_launch_pending(c, err);
    if (status == GAC_OK)
        status = prepare(c, call, rows, false, &in, err);
    if (status)
        return status;
    *x = in.x;
    *x_ld = in.ld;
    return GAC_OK;
}

/* Returns the only piece of a module, or NULL if it has several. */
static const gac_piece *find_only(const gac_piece *pieces, int n, int module)
{
    const gac_piece *found = NULL;
    for (int i = 0; i < n; i++) {
        if (pieces[i].module != module)
            continue;
        if (found)
            return NULL;
        found = &pieces[i];
    }
    return found;
}

/* Runs gate and up in one launch if both are a single piece of the same size. Sets *done
 * if so. */
static gac_status multiply_gated(gac_cuda_compute *c, const stage *s, int64_t m, bool *done,
                                 gac_error *err)
{
    const gac_piece *gate = find_only(s->pieces, s->n_pieces, 0);
    const gac_piece *up = find_only(s->pieces, s->n_pieces, 1);
    *done = gate && up && gate->n == up->n;
    if (!*done)
        return GAC_OK;
    gac_skinny_args args = skinny_call(c, &s->in, m, s->out);
    args.n_segments = 1;
    args.segments[0] = (gac_skinny_segment){
        .gate = weights_of(gate, s->bias), .up = weights_of(up, s->bias), .n = gate->n, .y_start = 0
    };
    return launch_skinny(c, &args, err);
}

/* Computes the latent of the factorised modules. */
static gac_status multiply_first(gac_cuda_compute *c, const gac_matrix *matrix, const source *in,
                                 int64_t m, bool few, source *latent, gac_error *err)
{
    stage s = { .pieces = &matrix->first,
                .n_pieces = 1,
                .in = *in,
                .bias = matrix->latent_bias,
                .n_y = matrix->first.n,
                .out = { c->latent.memory, matrix->first.n, GAC_SKINNY_SET } };
    *latent = (source){ .x = c->latent.memory, .ld = matrix->first.n, .width = matrix->first.n };
    if (matrix->first.n == 0)
        return GAC_OK;
    gac_status status = multiply(c, &s, m, few, err);
    if (status == GAC_OK && !few)
        status = add_bias(c, &s, m, err);
    return status;
}

/* Applies the activation to rows of x, and the gate if they have one. */
static gac_status activate(gac_cuda_compute *c, const gac_linear_call *call, const void *x,
                           int64_t x_ld, int64_t m, gac_linear_out out, gac_error *err)
{
    bool gated = call->mode == GAC_LINEAR_GATED;
    const gac_activate_args args = { .dtype = c->options.dtype,
                                     .activation = call->activation,
                                     .gated = gated,
                                     .x = x,
                                     .out = out.y,
                                     .x_ld = x_ld,
                                     .out_ld = out.y_ld,
                                     .n_rows = m,
                                     .width = call->matrix->n_out / (gated ? 2 : 1) };
    gac_status status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    c->chained = true;
    return gac_activate_launch(&args, c->cuda->stream, err);
}

/* Runs all pieces that read x and all that read the latent. */
static gac_status multiply_all(gac_cuda_compute *c, const gac_linear_call *call, int64_t m,
                               bool few, const source *x, const source *latent, gac_linear_out out,
                               gac_error *err)
{
    const gac_matrix *matrix = call->matrix;
    gac_status status = GAC_OK;
    stage direct = { matrix->direct, matrix->n_direct, *x, matrix->bias, matrix->n_out, out };
    stage second = { matrix->second, matrix->n_second, *latent, matrix->bias, matrix->n_out, out };
    bool gated = out.mode == GAC_SKINNY_GATED, done = false;
    bool fused = gated && few && call->activation == GAC_ACTIVATION_SILU;
    if (fused && direct.n_pieces > 0)
        status = multiply_gated(c, &direct, m, &done, err);
    if (fused && !done && status == GAC_OK && second.n_pieces > 0)
        status = multiply_gated(c, &second, m, &done, err);
    if (status || done)
        return status;
    if (gated) {
        direct.out = (gac_linear_out){ c->wide.memory, matrix->n_out, GAC_SKINNY_SET };
        second.out = direct.out;
    }
    status = multiply(c, &direct, m, few, err);
    if (status == GAC_OK)
        status = multiply(c, &second, m, few, err);
    if (status == GAC_OK && !few)
        status = add_bias(c, &direct, m, err);
    if (status == GAC_OK && gated)
        status = activate(c, call, c->wide.memory, matrix->n_out, m, out, err);
    return status;
}

gac_status gac_compute_product(gac_cuda_compute *c, const gac_linear_call *call,
                               gac_linear_rows rows, gac_linear_out out, gac_error *err)
{
    const gac_matrix *matrix = call->matrix;
    bool few = rows.n <= c->few_rows && is_aligned(matrix);
    source x, latent;
    if (out.mode == GAC_SKINNY_GATED &&
        (matrix->n_modules != 2 || matrix->n_out % 2 || out.y_ld < matrix->n_out / 2))
        return gac_error_set(err, GAC_USAGE, "gate and up are not two modules of one width");
    if (out.mode != GAC_SKINNY_GATED && out.y_ld < matrix->n_out)
        return gac_error_set(err, GAC_USAGE, "%lld outputs to rows of %lld numbers",
                             (long long)matrix->n_out, (long long)out.y_ld);
    gac_status status = prepare(c, call, rows, few, &x, err);
    if (status == GAC_OK)
        status = multiply_first(c, matrix, &x, rows.n, few, &latent, err);
    if (status == GAC_OK)
        status = multiply_all(c, call, rows.n, few, &x, &latent, out, err);
    return status;
}

/* Multiplies into rows between, and adds them to the residual stream after a norm or times a
 * scale. */
static gac_status add_normed(gac_cuda_compute *c, const gac_linear_call *call, gac_linear_rows rows,
                             gac_error *err)
{
    const int64_t ld = call->matrix->n_out, width = call->matrix->n_logical;
    size_t n_bytes = 0;
    if (!gac_compute_bytes(c->options.max_rows, ld, sizeof(float), &n_bytes))
        return gac_error_set(err, GAC_NO_RESOURCE, "rows too large for any device");
    if (call->matrix->n_modules != 1 || call->out->ld < width ||
        (call->out_norm && call->out_norm->n != width))
        return gac_error_set(err, GAC_USAGE, "a norm of %lld outputs that does not fit",
                             (long long)width);
    gac_status status = gac_compute_reserve(c, &c->outputs, n_bytes, "rows between", false, err);
    if (status == GAC_OK)
        status = gac_compute_product(
            c, call, rows, (gac_linear_out){ c->outputs.memory, ld, GAC_SKINNY_FLOAT }, err);
    if (status == GAC_OK)
        status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    const gac_add_args args = { .y = c->outputs.memory,
                                .norm = call->out_norm ? call->out_norm->data : NULL,
                                .centred = call->centred,
                                .to = call->out->data,
                                .y_ld = ld,
                                .to_ld = call->out->ld,
                                .n_rows = rows.n,
                                .width = width,
                                .eps = call->eps,
                                .scale = call->scale != 0 ? call->scale : 1 };
    c->chained = true;
    return gac_add_launch(&args, c->cuda->stream, err);
}

gac_status gac_compute_linear(void *state, const gac_linear_call *call, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_rows *y = call->out;
    gac_linear_rows rows = { 0, 1, c->batch * c->n_new };
    gac_linear_out out = { y->data, y->ld, GAC_SKINNY_SET };
    if (call->mode == GAC_LINEAR_GATED)
        out.mode = GAC_SKINNY_GATED;
    else if (call->mode == GAC_LINEAR_ADD)
        out.mode = GAC_SKINNY_ADD;
    else if (y->residual)
        out.mode = GAC_SKINNY_FLOAT;
    if ((out.mode == GAC_SKINNY_ADD) != (y->residual && out.mode != GAC_SKINNY_FLOAT))
        return gac_error_set(err, GAC_USAGE, "only the residual stream is added to");
    if (call->mode == GAC_LINEAR_ADD && (call->out_norm || call->scale != 0))
        return add_normed(c, call, rows, err);
    gac_status status = gac_compute_product(c, call, rows, out, err);
    if (status == GAC_OK && call->mode == GAC_LINEAR_ACTIVATED)
        status = activate(c, call, y->data, y->ld, rows.n, out, err);
    return status;
}

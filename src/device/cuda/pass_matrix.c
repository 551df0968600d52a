/* Uploads linear modules that share an input.
 *
 * A dense module becomes direct pieces, which multiply x. The first factors of all
 * factorised modules become one piece from x to the latent. Each part of a factorised
 * module becomes a piece that multiplies its slice of the latent. Parts that read the
 * same slice share it. Slices that overlap only partly are stored twice, so that each can
 * be aligned. */
#include "pass_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_ALIGNMENT = 256 };

/* Rows start to start + n - 1 of a module's first factor. They are stored at latent
 * columns at to at + stored - 1. */
typedef struct slice {
    int module;
    int64_t start, n, at, stored;
} slice;

typedef struct builder {
    gac_cuda_compute *c;
    gac_matrix *matrix;
    const gac_linear_module *modules;
    slice *slices;
    int n_slices;
    size_t n_bytes; /* bytes planned so far */
} builder;

static gac_status bad_tensor(const gac_host_tensor *tensor, const char *what, gac_error *err)
{
    char name[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s (%lld, %lld): %s",
                         gac_quote(name, sizeof name, tensor->name ? tensor->name : "a weight"),
                         (long long)tensor->n_rows, (long long)tensor->n_cols, what);
}

static gac_status check_tensor(const gac_host_tensor *tensor, int64_t n_cols, gac_error *err)
{
    if (tensor->dtype != GAC_DTYPE_F32 && tensor->dtype != GAC_DTYPE_F16 &&
        tensor->dtype != GAC_DTYPE_BF16)
        return bad_tensor(tensor, "cuda takes F32, F16 and BF16", err);
    if (tensor->n_rows < 1 || tensor->n_cols < 1 || tensor->n_rows > INT_MAX ||
        tensor->n_cols > INT_MAX)
        return bad_tensor(tensor, "sizes that make no sense", err);
    if (n_cols >= 0 && tensor->n_cols != n_cols)
        return bad_tensor(tensor, "columns do not fit the input", err);
    return GAC_OK;
}

static gac_status check_bias(const gac_host_tensor *bias, int64_t n, gac_error *err)
{
    if (!bias->data)
        return GAC_OK;
    if (bias->n_rows != 1 || bias->n_cols != n)
        return bad_tensor(bias, "a bias that does not fit its weight", err);
    return check_tensor(bias, n, err);
}

static gac_status check_module(const gac_axis *in, const gac_linear_module *module, gac_error *err)
{
    int64_t n_in = in->n_slices * in->size, n_out = 0;
    gac_status status = GAC_OK;
    if (module->first.data) {
        status = check_tensor(&module->first, n_in, err);
        if (status == GAC_OK)
            status = check_bias(&module->first_bias, module->first.n_rows, err);
    }
    for (int i = 0; i < module->n_parts && status == GAC_OK; i++) {
        const gac_linear_part *part = &module->parts[i];
        status = check_tensor(&part->weight, module->first.data ? -1 : n_in, err);
        if (status == GAC_OK && module->first.data &&
            (part->start < 0 || part->start + part->weight.n_cols > module->first.n_rows))
            status = bad_tensor(&part->weight, "columns do not fit the first factor", err);
        if (status == GAC_OK)
            status = check_bias(&part->bias, part->weight.n_rows, err);
        n_out += part->weight.n_rows;
    }
    if (status == GAC_OK &&
        (module->n_parts < 1 || n_out != module->out.n_slices * module->out.size ||
         module->out.stored < module->out.size))
        status =
            gac_error_set(err, GAC_BAD_INPUT, "parts of a module give %lld outputs, not %lld",
                          (long long)n_out, (long long)(module->out.n_slices * module->out.size));
    return status;
}

static int64_t rank_stored(const gac_cuda_compute *c, int64_t rank)
{
    return gac_compute_stored((void *)(uintptr_t)c, GAC_SIZE_WIDTH, rank);
}

/* Returns the stored index of element i of an axis. i may be one past the end. */
static int64_t stored_index(const gac_axis *axis, int64_t i)
{
    return i / axis->size * axis->stored + i % axis->size;
}

/* Returns the slice that a part reads. Creates it if there is none. */
static const slice *find_slice(builder *b, int module, const gac_linear_part *part)
{
    for (int i = 0; i < b->n_slices; i++) {
        const slice *s = &b->slices[i];
        if (s->module == module && s->start == part->start && s->n == part->weight.n_cols)
            return s;
    }
    slice *s = &b->slices[b->n_slices++];
    s->module = module;
    s->start = part->start;
    s->n = part->weight.n_cols;
    s->stored = rank_stored(b->c, s->n);
    s->at = b->matrix->first.n;
    b->matrix->first.n += s->stored;
    return s;
}

static int count_parts(const gac_linear_module *modules, int n_modules, bool factorised)
{
    int n = 0;
    for (int i = 0; i < n_modules; i++)
        if ((modules[i].first.data != NULL) == factorised)
            n += modules[i].n_parts;
    return n;
}

/* Computes the sizes of all pieces. */
static void plan_pieces(builder *b)
{
    gac_matrix *matrix = b->matrix;
    for (int i = 0; i < matrix->n_modules; i++) {
        const gac_linear_module *module = &b->modules[i];
        int64_t row = 0;
        for (int j = 0; j < module->n_parts; j++) {
            const gac_linear_part *part = &module->parts[j];
            int64_t begin = stored_index(&module->out, row);
            row += part->weight.n_rows;
            gac_piece piece = { .module = i,
                                .n = stored_index(&module->out, row) - begin,
                                .k = matrix->width,
                                .ld = matrix->width,
                                .y_start = matrix->n_out + begin };
            if (module->first.data) {
                const slice *s = find_slice(b, i, part);
                piece.k = piece.ld = s->stored;
                piece.z_start = s->at;
                matrix->second[matrix->n_second++] = piece;
            } else {
                matrix->direct[matrix->n_direct++] = piece;
            }
        }
        matrix->n_out += module->out.n_slices * module->out.stored;
    }
    matrix->first.k = matrix->first.ld = matrix->width;
}

/* Plans the memory of the pieces. Pieces that read the same columns and whose outputs are
 * adjacent are stored contiguously, so that one product can run them. Each such run is
 * aligned. weight holds the offset until the memory is allocated. */
static bool plan_memory(builder *b, gac_piece *pieces, int n)
{
    for (int i = 0; i < n; i++) {
        gac_piece *p = &pieces[i];
        size_t n_bytes = 0;
        bool joined = i > 0 && p[-1].z_start == p->z_start && p[-1].k == p->k &&
                      p[-1].y_start + p[-1].n == p->y_start;
        if (!joined)
            b->n_bytes = (b->n_bytes + RUN_ALIGNMENT - 1) / RUN_ALIGNMENT * RUN_ALIGNMENT;
        if (!gac_compute_bytes(p->n, p->ld, 2, &n_bytes) || n_bytes > SIZE_MAX / 4 - b->n_bytes)
            return false;
        p->weight = (void *)(uintptr_t)b->n_bytes;
        b->n_bytes += n_bytes;
    }
    return true;
}

static void set_weights(gac_matrix *matrix, gac_piece *pieces, int n)
{
    for (int i = 0; i < n; i++)
        pieces[i].weight = (char *)matrix->memory + (uintptr_t)pieces[i].weight;
}

static bool any_bias(const builder *b, bool latent)
{
    for (int i = 0; i < b->matrix->n_modules; i++) {
        const gac_linear_module *module = &b->modules[i];
        if (latent && module->first.data && module->first_bias.data)
            return true;
        for (int j = 0; j < module->n_parts && !latent; j++)
            if (module->parts[j].bias.data)
                return true;
    }
    return false;
}

static gac_status take_memory(builder *b, gac_error *err)
{
    gac_matrix *matrix = b->matrix;
    gac_cuda_compute *c = b->c;
    if (!plan_memory(b, matrix->direct, matrix->n_direct) ||
        !plan_memory(b, &matrix->first, matrix->first.n ? 1 : 0) ||
        !plan_memory(b, matrix->second, matrix->n_second))
        return gac_error_set(err, GAC_NO_RESOURCE, "weights too large for any device");
    size_t bias_at = (b->n_bytes + RUN_ALIGNMENT - 1) / RUN_ALIGNMENT * RUN_ALIGNMENT;
    size_t latent_at = bias_at + (any_bias(b, false) ? (size_t)matrix->n_out * 4 : 0);
    size_t n_bytes = latent_at + (any_bias(b, true) ? (size_t)matrix->first.n * 4 : 0);
    gac_status status = gac_compute_alloc(c, n_bytes, "weights", &matrix->memory, err);
    if (status)
        return status;
    matrix->n_bytes = n_bytes;
    c->memory.weight_bytes += (int64_t)n_bytes;
    set_weights(matrix, matrix->direct, matrix->n_direct);
    set_weights(matrix, &matrix->first, matrix->first.n ? 1 : 0);
    set_weights(matrix, matrix->second, matrix->n_second);
    if (latent_at > bias_at)
        matrix->bias = (float *)((char *)matrix->memory + bias_at);
    if (n_bytes > latent_at)
        matrix->latent_bias = (float *)((char *)matrix->memory + latent_at);
    cudaError_t code = cudaMemsetAsync(matrix->memory, 0, n_bytes, c->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "cudaMemsetAsync");
}

static gac_status take_staging(gac_cuda_compute *c, gac_error *err)
{
    cudaError_t code = cudaSuccess;
    void *memory = NULL;
    if (c->first_bad)
        return GAC_OK;
    for (int i = 0; i < 2 && code == cudaSuccess; i++) {
        gac_status status = GAC_OK;
        if (!c->staged[i])
            status = gac_compute_alloc(c, GAC_STAGING_BYTES, "loading", &c->staged[i], err);
        if (status)
            return status;
        if (!c->staging[i])
            code = cudaHostAlloc(&c->staging[i], GAC_STAGING_BYTES, cudaHostAllocDefault);
        if (code == cudaSuccess && !c->staged_at[i])
            code = cudaEventCreateWithFlags(&c->staged_at[i], cudaEventDisableTiming);
    }
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "memory for loading");
    gac_status status = gac_compute_alloc(c, sizeof *c->first_bad, "loading", &memory, err);
    c->first_bad = memory;
    if (status == GAC_OK)
        c->memory.work_bytes += 2 * (int64_t)GAC_STAGING_BYTES;
    return status;
}

/* Reports the number that was refused, and why. */
static gac_status refuse(gac_cuda_compute *c, const gac_host_tensor *tensor, int64_t index,
                         gac_error *err)
{
    char name[256];
    float value = 0;
    uint16_t code = 0;
    const char *at = (const char *)tensor->data + index * (gac_dtype_bits(tensor->dtype) / 8);
    bool finite = false;
    if (tensor->dtype == GAC_DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        finite = isfinite(value);
    } else {
        memcpy(&code, at, sizeof code);
        finite =
            tensor->dtype == GAC_DTYPE_F16 ? (code & 0x7c00) != 0x7c00 : (code & 0x7f80) != 0x7f80;
    }
    return gac_error_set(err, GAC_BAD_INPUT, "%s: row %lld, column %lld: %s%s",
                         gac_quote(name, sizeof name, tensor->name ? tensor->name : "a weight"),
                         (long long)(index / tensor->n_cols), (long long)(index % tensor->n_cols),
                         finite ? "too large for " : "not finite",
                         finite ? gac_dtype_name(c->options.dtype) : "");
}

/* Uploads rows row0 to row0 + n_rows - 1 of a tensor, as much at a time as the staging
 * buffers hold. job holds the index maps and the target; upload overwrites its other
 * fields. */
static gac_status upload(gac_cuda_compute *c, const gac_host_tensor *tensor, int64_t row0,
                         int64_t n_rows, gac_convert_args *job, gac_error *err)
{
    cudaStream_t stream = c->cuda->stream;
    int64_t element = gac_dtype_bits(tensor->dtype) / 8, row_bytes = tensor->n_cols * element;
    int64_t rows_each = (int64_t)GAC_STAGING_BYTES / row_bytes, row_start = job->rows.start;
    unsigned long long bad = ULLONG_MAX;
    if (rows_each < 1)
        return bad_tensor(tensor, "rows too long to load", err);
    cudaError_t code = cudaMemsetAsync(c->first_bad, 0xff, sizeof bad, stream);
    job->from_dtype = tensor->dtype;
    job->n_cols = tensor->n_cols;
    job->first_bad = c->first_bad;
    for (int64_t row = 0, turn = 0; row < n_rows && code == cudaSuccess;
         row += rows_each, turn ^= 1) {
        int64_t n = n_rows - row < rows_each ? n_rows - row : rows_each;
        code = cudaEventSynchronize(c->staged_at[turn]);
        if (code != cudaSuccess)
            break;
        memcpy(c->staging[turn], (const char *)tensor->data + (row0 + row) * row_bytes,
               (size_t)(n * row_bytes));
        code = cudaMemcpyAsync(c->staged[turn], c->staging[turn], (size_t)(n * row_bytes),
                               cudaMemcpyHostToDevice, stream);
        if (code != cudaSuccess)
            break;
        job->from = c->staged[turn];
        job->n_rows = n;
        job->rows.start = row_start + row;
        job->first_index = (row0 + row) * tensor->n_cols;
        gac_status status = gac_convert_launch(job, stream, err);
        if (status)
            return status;
        code = cudaEventRecord(c->staged_at[turn], stream);
    }
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(&bad, c->first_bad, sizeof bad, cudaMemcpyDeviceToHost, stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "weights to the device");
    return bad == ULLONG_MAX ? GAC_OK : refuse(c, tensor, (int64_t)bad, err);
}

static gac_index_map map_of(const gac_axis *axis, int64_t start, int64_t base)
{
    return (gac_index_map){ start, axis->size, axis->stored, base };
}

static const gac_index_map identity_map = { 0, 1, 1, 0 };

gac_status gac_compute_upload(gac_cuda_compute *c, const gac_host_tensor *tensor, int64_t row0,
                              int64_t n_rows, float *to, gac_error *err)
{
    gac_convert_args job = { .to_dtype = GAC_DTYPE_F32,
                             .to = to,
                             .ld = tensor->n_cols,
                             .rows = identity_map,
                             .cols = identity_map };
    gac_status status = check_tensor(tensor, -1, err);
    if (status == GAC_OK)
        status = take_staging(c, err);
    return status == GAC_OK ? upload(c, tensor, row0, n_rows, &job, err) : status;
}

/* Uploads the weight and bias of a part to its piece. row is its first output within the
 * module, y_module the module's first output in y. */
static gac_status fill_part(builder *b, const gac_linear_module *module,
                            const gac_linear_part *part, const gac_piece *piece, int64_t row,
                            int64_t y_module, gac_error *err)
{
    gac_matrix *matrix = b->matrix;
    int64_t base = stored_index(&module->out, row);
    gac_convert_args job = { .to_dtype = b->c->options.dtype,
                             .to = piece->weight,
                             .ld = piece->ld,
                             .rows = map_of(&module->out, row, base),
                             .cols =
                                 module->first.data ? identity_map : map_of(&matrix->in, 0, 0) };
    gac_status status = upload(b->c, &part->weight, 0, part->weight.n_rows, &job, err);
    if (status || !part->bias.data)
        return status;
    gac_convert_args bias = { .to_dtype = GAC_DTYPE_F32,
                              .to = matrix->bias + y_module,
                              .rows = identity_map,
                              .cols = map_of(&module->out, row, 0) };
    return upload(b->c, &part->bias, 0, 1, &bias, err);
}

static gac_status fill_parts(builder *b, gac_error *err)
{
    gac_matrix *matrix = b->matrix;
    int i_direct = 0, i_second = 0;
    int64_t y_module = 0;
    gac_status status = GAC_OK;
    for (int i = 0; i < matrix->n_modules; i++) {
        const gac_linear_module *module = &b->modules[i];
        int64_t row = 0;
        for (int j = 0; j < module->n_parts && status == GAC_OK; j++) {
            const gac_linear_part *part = &module->parts[j];
            const gac_piece *piece =
                module->first.data ? &matrix->second[i_second++] : &matrix->direct[i_direct++];
            status = fill_part(b, module, part, piece, row, y_module, err);
            row += part->weight.n_rows;
        }
        y_module += module->out.n_slices * module->out.stored;
    }
    return status;
}

static gac_status fill_first(builder *b, gac_error *err)
{
    gac_matrix *matrix = b->matrix;
    gac_status status = GAC_OK;
    for (int i = 0; i < b->n_slices && status == GAC_OK; i++) {
        const slice *s = &b->slices[i];
        const gac_linear_module *module = &b->modules[s->module];
        gac_convert_args job = { .to_dtype = b->c->options.dtype,
                                 .to = (uint16_t *)matrix->first.weight + s->at * matrix->first.ld,
                                 .ld = matrix->first.ld,
                                 .rows = identity_map,
                                 .cols = map_of(&matrix->in, 0, 0) };
        status = upload(b->c, &module->first, s->start, s->n, &job, err);
        if (status || !module->first_bias.data)
            continue;
        gac_host_tensor bias = module->first_bias;
        bias.data = (const char *)bias.data + s->start * (gac_dtype_bits(bias.dtype) / 8);
        bias.n_cols = s->n;
        gac_convert_args add = { .to_dtype = GAC_DTYPE_F32,
                                 .to = matrix->latent_bias + s->at,
                                 .rows = identity_map,
                                 .cols = identity_map };
        status = upload(b->c, &bias, 0, 1, &add, err);
    }
    return status;
}

/* Reserves scratch for max_rows rows of x, the latent, and gate and up. */
static gac_status reserve_scratch(builder *b, gac_error *err)
{
    gac_cuda_compute *c = b->c;
    int64_t n = c->options.max_rows;
    size_t x_bytes = 0, latent_bytes = 0, wide_bytes = 0;
    if (!gac_compute_bytes(n, b->matrix->width, 2, &x_bytes) ||
        !gac_compute_bytes(n, b->matrix->first.n, 2, &latent_bytes) ||
        !gac_compute_bytes(n, b->matrix->n_out, 2, &wide_bytes))
        return gac_error_set(err, GAC_NO_RESOURCE, "rows too large for any device");
    gac_status status = gac_compute_reserve(c, &c->x, x_bytes, "rows between", false, err);
    if (status == GAC_OK && latent_bytes)
        status = gac_compute_reserve(c, &c->latent, latent_bytes, "latent rows", false, err);
    /* Two modules may be gate and up. */
    if (status == GAC_OK && b->matrix->n_modules == 2)
        status = gac_compute_reserve(c, &c->wide, wide_bytes, "rows between", false, err);
    return status;
}

void gac_compute_matrix_free(void *state, gac_matrix *matrix)
{
    gac_cuda_compute *c = state;
    if (!matrix)
        return;
    if (matrix->memory) {
        cudaFree(matrix->memory);
        c->memory.weight_bytes -= (int64_t)matrix->n_bytes;
    }
    free(matrix->direct);
    free(matrix->second);
    free(matrix);
}

/* Builds the matrix. The caller has checked the modules and cleans up on failure. */
static gac_status build(builder *b, gac_error *err)
{
    gac_matrix *matrix = b->matrix;
    int n_direct = count_parts(b->modules, matrix->n_modules, false);
    int n_second = count_parts(b->modules, matrix->n_modules, true);
    matrix->direct = calloc((size_t)n_direct + 1, sizeof *matrix->direct);
    matrix->second = calloc((size_t)n_second + 1, sizeof *matrix->second);
    b->slices = calloc((size_t)n_second + 1, sizeof *b->slices);
    if (!matrix->direct || !matrix->second || !b->slices)
        return gac_error_no_memory(err);
    plan_pieces(b);
    gac_status status = take_staging(b->c, err);
    if (status == GAC_OK)
        status = reserve_scratch(b, err);
    if (status == GAC_OK)
        status = take_memory(b, err);
    if (status == GAC_OK)
        status = fill_first(b, err);
    if (status == GAC_OK)
        status = fill_parts(b, err);
    return status;
}

gac_status gac_compute_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                     int n_modules, gac_matrix **out, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_status status = GAC_OK;
    if (n_modules < 1 || in.n_slices < 1 || in.size < 1 || in.stored < in.size)
        return gac_error_set(err, GAC_USAGE, "a matrix of sizes that make no sense");
    for (int i = 0; i < n_modules && status == GAC_OK; i++)
        status = check_module(&in, &modules[i], err);
    if (status)
        return status;
    gac_matrix *matrix = calloc(1, sizeof *matrix);
    if (!matrix)
        return gac_error_no_memory(err);
    matrix->in = in;
    matrix->width = gac_compute_row_width(c, in.n_slices * in.stored);
    matrix->n_modules = n_modules;
    matrix->n_logical = modules[0].out.n_slices * modules[0].out.size;
    builder b = { .c = c, .matrix = matrix, .modules = modules };
    status = build(&b, err);
    free(b.slices);
    if (status) {
        gac_compute_matrix_free(c, matrix);
        return status;
    }
    *out = matrix;
    return GAC_OK;
}

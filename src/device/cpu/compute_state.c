/* Memory of a forward pass (rows, vectors, caches), and the table of compute functions. */
#include "device/cpu/compute_blas.h"
#include "device/cpu/compute_internal.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64

static bool total_bytes(int64_t a, int64_t b, size_t size, size_t *bytes)
{
    int64_t product;
    return a >= 0 && b >= 0 && gac_mul_i64(a, b, &product) &&
           gac_mul_i64(product, (int64_t)size, &product) &&
           gac_round_up_i64(product, CACHE_LINE, &product) && (*bytes = (size_t)product, true);
}

int64_t gac_row_stride(int64_t width)
{
    const int64_t line = CACHE_LINE / (int64_t)sizeof(float);
    return width > 0 && width % 1024 == 0 ? width + line : width;
}

static gac_status no_memory(const char *what, int64_t a, int64_t b, size_t size, gac_error *err)
{
    return gac_error_set(err, GAC_NO_RESOURCE, "no memory for %s: %lld x %lld x %zu bytes", what,
                         (long long)a, (long long)b, size);
}

/* Returns (a, b) zero floats whose pages are not touched yet, or NULL if there is no
 * room. */
static float *zero_floats(const gac_cpu_compute *compute, int64_t a, int64_t b)
{
    size_t bytes;
    int64_t taken = compute->memory.work_bytes + compute->memory.cache_bytes;
    if (!total_bytes(a, b, sizeof(float), &bytes) || (int64_t)bytes > compute->free_bytes - taken)
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

gac_status gac_buffer_reserve(gac_buffer *buffer, int64_t a, int64_t b, size_t size, gac_error *err)
{
    size_t bytes;
    if (!total_bytes(a, b, size, &bytes))
        return no_memory("work", a, b, size, err);
    if (bytes <= buffer->bytes)
        return GAC_OK;
    free(buffer->data);
    *buffer = (gac_buffer){ aligned_alloc(CACHE_LINE, bytes), bytes };
    if (buffer->data)
        return GAC_OK;
    buffer->bytes = 0;
    return no_memory("work", a, b, size, err);
}

gac_status gac_scratch_reserve(gac_cpu_compute *compute, size_t bytes, gac_error *err)
{
    gac_status status = bytes > INT64_MAX ? no_memory("work", 1, INT64_MAX, 1, err) : GAC_OK;
    for (int i = 0; status == GAC_OK && i < gac_pool_threads(compute->pool); i++)
        status = gac_buffer_reserve(&compute->scratch[i], 1, (int64_t)bytes, 1, err);
    return status;
}

static void close_compute(void *state)
{
    gac_cpu_compute *compute = state;
    if (!compute)
        return;
    for (int i = 0; compute->scratch && i < gac_pool_threads(compute->pool); i++)
        free(compute->scratch[i].data);
    free(compute->scratch);
    free(compute->input.data);
    free(compute->latent.data);
    free(compute->outputs.data);
    free(compute->logits.data);
    free(compute->ids);
    gac_blas_close(compute->n_blas_threads);
    gac_pool_free(compute->pool);
    free(compute);
}

static gac_status open_compute(const gac_cpu_arithmetic *arithmetic,
                               const gac_compute_options *options, void **state, gac_error *err)
{
    gac_cpu_compute *compute = calloc(1, sizeof *compute);
    if (!compute)
        return gac_error_no_memory(err);
    compute->arithmetic = arithmetic;
    compute->kernels = gac_cpu_kernels_choice(0);
    compute->max_rows = options->max_rows;
    compute->free_bytes = gac_host_free_bytes();
    gac_status status = gac_pool_create(options->n_threads, &compute->pool, err);
    if (status == GAC_OK) {
        compute->scratch = calloc((size_t)gac_pool_threads(compute->pool), sizeof(gac_buffer));
        compute->ids = calloc((size_t)options->max_rows, sizeof *compute->ids);
        if (!compute->scratch || !compute->ids)
            status = no_memory("tokens", options->max_rows, 1, sizeof *compute->ids, err);
    }
    if (status == GAC_OK && !arithmetic->exact) {
        int n_threads = gac_pool_threads(compute->pool);
        status = gac_blas_open(n_threads, err);
        compute->n_blas_threads = status == GAC_OK ? n_threads : 0;
    }
    if (status != GAC_OK) {
        close_compute(compute);
        return status;
    }
    *state = compute;
    return GAC_OK;
}

static gac_status open_reference(void *device, const gac_compute_options *options, void **state,
                                 gac_error *err)
{
    (void)device;
    return open_compute(&gac_cpu_exact, options, state, err);
}

static gac_status open_cpu(void *device, const gac_compute_options *options, void **state,
                           gac_error *err)
{
    (void)device;
    return open_compute(&gac_cpu_fast, options, state, err);
}

/* The CPU gains nothing from padding. */
static int64_t stored(void *state, gac_size_kind kind, int64_t size)
{
    (void)state;
    (void)kind;
    return size;
}

static void memory(void *state, gac_compute_memory *out)
{
    const gac_cpu_compute *compute = state;
    size_t bytes = compute->input.bytes + compute->latent.bytes + compute->outputs.bytes +
                   compute->logits.bytes;
    for (int i = 0; i < gac_pool_threads(compute->pool); i++)
        bytes += compute->scratch[i].bytes;
    *out = compute->memory;
    out->work_bytes += (int64_t)bytes + compute->max_rows * (int64_t)sizeof *compute->ids;
}

static gac_status vector_create(void *state, const float *data, int64_t n, gac_vector **out,
                                gac_error *err)
{
    size_t bytes;
    gac_cpu_compute *compute = state;
    gac_vector *vector = total_bytes(n, 1, sizeof *data, &bytes) && bytes < SIZE_MAX / 2
                             ? malloc(sizeof *vector + bytes)
                             : NULL;
    if (!vector)
        return no_memory("a vector", n, 1, sizeof *data, err);
    vector->n = n;
    memcpy(vector->data, data, (size_t)n * sizeof *data);
    compute->memory.weight_bytes += n * (int64_t)sizeof *data;
    *out = vector;
    return GAC_OK;
}

static void vector_free(void *state, gac_vector *vector)
{
    gac_cpu_compute *compute = state;
    if (vector)
        compute->memory.weight_bytes -= vector->n * (int64_t)sizeof *vector->data;
    free(vector);
}

static gac_status rows_create(void *state, int64_t width, bool residual, gac_rows **out,
                              gac_error *err)
{
    gac_cpu_compute *compute = state;
    gac_rows *rows = calloc(1, sizeof *rows);
    (void)residual; /* every row is F32 here */
    if (!rows)
        return gac_error_no_memory(err);
    rows->width = width;
    rows->stride = gac_row_stride(width);
    rows->data = zero_floats(compute, compute->max_rows, rows->stride);
    if (!rows->data) {
        free(rows);
        return no_memory("rows", compute->max_rows, width, sizeof(float), err);
    }
    compute->memory.work_bytes += compute->max_rows * rows->stride * (int64_t)sizeof(float);
    *out = rows;
    return GAC_OK;
}

static gac_status rows_within(void *state, gac_rows *first, int64_t width, gac_rows **out,
                              gac_error *err)
{
    const int64_t stride = gac_row_stride(width);
    gac_rows *rows = calloc(1, sizeof *rows);
    (void)state;
    if (!rows)
        return gac_error_no_memory(err);
    if (width > first->width) {
        free(rows);
        return gac_error_set(err, GAC_USAGE, "rows of %lld numbers within rows of %lld",
                             (long long)width, (long long)first->width);
    }
    *rows = (gac_rows){ width, stride < first->stride ? stride : first->stride, first->data, true };
    *out = rows;
    return GAC_OK;
}

static void rows_free(void *state, gac_rows *rows)
{
    gac_cpu_compute *compute = state;
    if (rows && !rows->within) {
        compute->memory.work_bytes -= compute->max_rows * rows->stride * (int64_t)sizeof(float);
        free(rows->data);
    }
    free(rows);
}

static gac_status check_rows(const gac_cpu_compute *compute, int64_t first, int64_t n,
                             gac_error *err)
{
    if (first >= 0 && n >= 0 && first <= compute->max_rows - n)
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "rows %lld to %lld of %lld", (long long)first,
                         (long long)first + (long long)n, (long long)compute->max_rows);
}

static gac_status rows_read(void *state, const gac_rows *rows, int64_t first, int64_t n, float *out,
                            gac_error *err)
{
    gac_status status = check_rows(state, first, n, err);
    if (status != GAC_OK)
        return status;
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * rows->width, rows->data + (first + i) * rows->stride,
               (size_t)rows->width * sizeof *out);
    return GAC_OK;
}

static gac_status rows_write(void *state, gac_rows *rows, int64_t first, int64_t n, const float *in,
                             gac_error *err)
{
    gac_status status = check_rows(state, first, n, err);
    if (status != GAC_OK)
        return status;
    for (int64_t i = 0; i < n; i++)
        memcpy(rows->data + (first + i) * rows->stride, in + i * rows->width,
               (size_t)rows->width * sizeof *in);
    return GAC_OK;
}

static int64_t cache_bytes(const gac_cache *cache)
{
    return cache->n_tokens * cache->n_kv_heads * (cache->qk_stored + cache->v_stored) *
           (int64_t)sizeof(float);
}

static void cache_free(void *state, gac_cache *cache)
{
    gac_cpu_compute *compute = state;
    if (!cache)
        return;
    if (cache->keys && cache->values)
        compute->memory.cache_bytes -= cache_bytes(cache);
    free(cache->keys);
    free(cache->values);
    free(cache);
}

static gac_status cache_create(void *state, int64_t batch, int64_t capacity, int64_t n_kv_heads,
                               int64_t qk_stored, int64_t v_stored, gac_cache **out, gac_error *err)
{
    gac_cpu_compute *compute = state;
    int64_t n_rows, width;
    gac_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return gac_error_no_memory(err);
    *cache = (gac_cache){ batch, capacity, n_kv_heads, qk_stored, v_stored, 0, NULL, NULL };
    if (gac_mul_i64(batch, capacity, &cache->n_tokens) &&
        gac_mul_i64(cache->n_tokens, n_kv_heads, &n_rows) &&
        gac_add_i64(qk_stored, v_stored, &width)) {
        cache->keys = zero_floats(compute, n_rows, qk_stored);
        cache->values = zero_floats(compute, n_rows, v_stored);
    }
    if (!cache->keys || !cache->values) {
        cache_free(state, cache);
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "no memory for a cache of %lld sequences x %lld tokens x %lld heads",
                             (long long)batch, (long long)capacity, (long long)n_kv_heads);
    }
    compute->memory.cache_bytes += cache_bytes(cache);
    *out = cache;
    return GAC_OK;
}

static gac_status cache_shape(void *state, gac_cache *cache, int64_t batch, int64_t capacity,
                              gac_error *err)
{
    int64_t n;
    (void)state;
    if (batch < 1 || capacity < 1 || !gac_mul_i64(batch, capacity, &n) || n > cache->n_tokens)
        return gac_error_set(err, GAC_USAGE,
                             "%lld sequences of %lld tokens in a cache of %lld tokens",
                             (long long)batch, (long long)capacity, (long long)cache->n_tokens);
    cache->batch = batch;
    cache->capacity = capacity;
    return GAC_OK;
}

static gac_status begin(void *state, const int32_t *ids, int64_t batch, int64_t n_new,
                        int64_t n_past, gac_error *err)
{
    gac_cpu_compute *compute = state;
    int64_t n;
    if (batch < 1 || n_new < 1 || n_past < 0 || !gac_mul_i64(batch, n_new, &n) ||
        n > compute->max_rows)
        return gac_error_set(
            err, GAC_USAGE, "a pass of %lld x %lld tokens after %lld; there are %lld rows",
            (long long)batch, (long long)n_new, (long long)n_past, (long long)compute->max_rows);
    memcpy(compute->ids, ids, (size_t)n * sizeof *ids);
    compute->batch = batch;
    compute->n_new = n_new;
    compute->n_past = n_past;
    return GAC_OK;
}

/* Copies one row of a table to a row of out. */
static gac_status read_table(const gac_cpu_compute *compute, const gac_matrix *table, int64_t index,
                             int64_t row, float *to, gac_error *err)
{
    const gac_host_tensor *weight = &table->modules[0].parts[0].weight;
    const int64_t size = table->in.size, bytes = gac_dtype_bits(weight->dtype) / 8;
    if (index < 0 || index >= weight->n_rows)
        return gac_error_set(err, GAC_BAD_INPUT, "token %lld of row %lld: %s has %lld rows",
                             (long long)index, (long long)row, weight->name,
                             (long long)weight->n_rows);
    const char *from = (const char *)weight->data + index * weight->n_cols * bytes;
    for (int64_t s = 0; s < table->in.n_slices; s++)
        compute->kernels->to_float(from + s * size * bytes, weight->dtype, size,
                                   to + s * table->in.stored);
    return GAC_OK;
}

/* Adds the row of the table of positions that belongs to a row of the pass. work (width). */
static gac_status add_position(const gac_cpu_compute *compute, const gac_embed_call *call,
                               int64_t row, float *work, float *to, gac_error *err)
{
    int64_t position = call->first_position + compute->n_past + row % compute->n_new;
    gac_status status = read_table(compute, call->positions, position, row, work, err);
    for (int64_t i = 0; i < call->out->width && status == GAC_OK; i++)
        to[i] += work[i];
    return status;
}

static gac_status embed(void *state, const gac_embed_call *call, gac_error *err)
{
    gac_cpu_compute *compute = state;
    const gac_rows *out = call->out;
    gac_status status = GAC_OK;
    if (call->positions)
        status = gac_buffer_reserve(&compute->input, 1, out->width, sizeof(float), err);
    float *work = compute->input.data;
    if (status == GAC_OK && call->positions)
        memset(work, 0, (size_t)out->width * sizeof *work);
    for (int64_t row = 0; row < compute->batch * compute->n_new && status == GAC_OK; row++) {
        float *to = out->data + row * out->stride;
        memset(to, 0, (size_t)out->width * sizeof *to);
        status = read_table(compute, call->table, compute->ids[row], row, to, err);
        for (int64_t i = 0; call->scale != 0 && i < out->width && status == GAC_OK; i++)
            to[i] = (float)((double)to[i] * call->scale);
        if (status == GAC_OK && call->positions)
            status = add_position(compute, call, row, work, to, err);
    }
    return status;
}

static gac_status logits_read(void *state, float *out, gac_error *err)
{
    const gac_cpu_compute *compute = state;
    (void)err;
    for (int64_t i = 0; i < compute->n_logits; i++)
        memcpy(out + i * compute->n_vocab,
               (const float *)compute->logits.data + i * gac_row_stride(compute->n_vocab),
               (size_t)compute->n_vocab * sizeof *out);
    return GAC_OK;
}

static gac_status finish(void *state, gac_error *err)
{
    (void)state;
    (void)err;
    return GAC_OK;
}

#define SHARED_OPS \
    .close = close_compute, .stored = stored, .memory = memory, \
    .matrix_create = gac_cpu_matrix_create, .matrix_free = gac_cpu_matrix_free, \
    .vector_create = vector_create, .vector_free = vector_free, .rows_create = rows_create, \
    .rows_within = rows_within, .rows_free = rows_free, .rows_read = rows_read, \
    .rows_write = rows_write, .cache_create = cache_create, .cache_shape = cache_shape, \
    .cache_free = cache_free, .begin = begin, .embed = embed, .linear = gac_cpu_linear, \
    .attend = gac_cpu_attend, .logits = gac_cpu_logits, .logits_read = logits_read, \
    .losses = gac_cpu_losses, .finish = finish, .variations = GAC_VARIATION_ALL, \
    .routing_create = gac_cpu_routing_create, .routing_free = gac_cpu_routing_free, \
    .route = gac_cpu_route

const gac_compute_ops gac_compute_reference_ops = { .name = "reference",
                                                    .open = open_reference,
                                                    SHARED_OPS };
const gac_compute_ops gac_compute_cpu_ops = { .name = "cpu",
                                              .open = open_cpu,
                                              SHARED_OPS,
                                              .gram_create = gac_cpu_gram_create,
                                              .gram_free = gac_cpu_gram_free,
                                              .gram_add = gac_cpu_gram_add,
                                              .gram_read = gac_cpu_gram_read,
                                              .factor = gac_cpu_factor,
                                              .backward_layer = gac_cpu_backward_layer,
                                              .backward_head = gac_cpu_backward_head };

#include "base/floats.h"
#include "pass_internal.h"

#include <stdlib.h>
#include <string.h>

bool gac_compute_bytes(int64_t a, int64_t b, int64_t c, size_t *out)
{
    int64_t n = 0;
    if (!gac_mul_i64(a, b, &n) || !gac_mul_i64(n, c, &n) || n < 0 || n > INT64_MAX / 4)
        return false;
    *out = (size_t)n;
    return true;
}

gac_status gac_compute_alloc(gac_cuda_compute *c, size_t n_bytes, const char *what, void **out,
                             gac_error *err)
{
    size_t n_free = 0, n_total = 0;
    cudaError_t code = cudaMalloc(out, n_bytes ? n_bytes : 1);
    if (code == cudaSuccess)
        return GAC_OK;
    *out = NULL;
    cudaGetLastError(); /* clear the error, so that later calls do not report it */
    if (code != cudaErrorMemoryAllocation)
        return gac_cuda_error(err, code, "cudaMalloc");
    if (cudaMemGetInfo(&n_free, &n_total) != cudaSuccess)
        cudaGetLastError();
    return gac_error_set(err, GAC_NO_RESOURCE,
                         "cuda:%d: no room for %s: %zu bytes wanted, %zu of %zu free",
                         c->cuda->index, what, n_bytes, n_free, n_total);
}

/* Fills memory with zeros. Also works while the stream is being captured. */
static gac_status clear(gac_cuda_compute *c, void *memory, size_t n_bytes, gac_error *err)
{
    cudaStream_t stream = c->recording ? cudaStreamLegacy : c->cuda->stream;
    cudaError_t code = cudaMemsetAsync(memory, 0, n_bytes, stream);
    if (code == cudaSuccess && c->recording)
        code = cudaStreamSynchronize(stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "cudaMemset");
}

static void drop_recording(gac_cuda_compute *c)
{
    if (c->recorded)
        cudaGraphExecDestroy(c->recorded);
    c->recorded = NULL;
}

static void release(gac_cuda_compute *c, gac_scratch *scratch)
{
    if (scratch->memory)
        cudaFree(scratch->memory);
    c->memory.work_bytes -= (int64_t)scratch->n_bytes;
    *scratch = (gac_scratch){ NULL, 0 };
}

gac_status gac_compute_reserve(gac_cuda_compute *c, gac_scratch *scratch, size_t n_bytes,
                               const char *what, bool zero, gac_error *err)
{
    if (n_bytes <= scratch->n_bytes)
        return GAC_OK;
    if (scratch->memory && c->recording)
        return gac_error_set(err, GAC_USAGE, "%s: cannot grow during a recording", what);
    if (scratch->memory) {
        gac_status status = gac_compute_wait(c, what, err);
        if (status)
            return status;
        drop_recording(c);
        release(c, scratch);
    }
    gac_status status = gac_compute_alloc(c, n_bytes, what, &scratch->memory, err);
    if (status)
        return status;
    scratch->n_bytes = n_bytes;
    c->memory.work_bytes += (int64_t)n_bytes;
    return zero ? clear(c, scratch->memory, n_bytes, err) : GAC_OK;
}

gac_status gac_compute_wait(gac_cuda_compute *c, const char *what, gac_error *err)
{
    gac_status status = gac_compute_launch_pending(c, err);
    if (status)
        return status;
    cudaError_t code = cudaStreamSynchronize(c->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, what);
}

int64_t gac_compute_stored(void *state, gac_size_kind kind, int64_t size)
{
    const gac_cuda_compute *c = state;
    return c->options.padding ? c->options.padding(kind, size) : size;
}

int64_t gac_compute_row_width(const gac_cuda_compute *c, int64_t width)
{
    return gac_compute_stored((void *)(uintptr_t)c, GAC_SIZE_ROW, width);
}

static void close_compute(void *state)
{
    gac_cuda_compute *c = state;
    if (!c)
        return;
    cudaGraph_t graph = NULL;
    if (c->recording && cudaStreamEndCapture(c->cuda->stream, &graph) == cudaSuccess && graph)
        cudaGraphDestroy(graph);
    cudaStreamSynchronize(c->cuda->stream);
    drop_recording(c);
    gac_lt_free(c);
    gac_scratch *all[] = { &c->x,        &c->latent,       &c->wide,
                           &c->outputs,  &c->whole_scales, &c->split,
                           &c->counters, &c->gemv_state,   &c->logits,
                           &c->targets,  &c->gram_rows };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(c, all[i]);
    for (int i = 0; i < 2; i++) {
        if (c->staging[i])
            cudaFreeHost(c->staging[i]);
        if (c->staged[i])
            cudaFree(c->staged[i]);
        if (c->staged_at[i])
            cudaEventDestroy(c->staged_at[i]);
    }
    if (c->first_bad)
        cudaFree(c->first_bad);
    if (c->pass)
        cudaFree(c->pass);
    if (c->pass_host)
        cudaFreeHost(c->pass_host);
    if (c->pass_copied)
        cudaEventDestroy(c->pass_copied);
    cudaGetLastError();
    free(c);
}

static gac_status open_pass(gac_cuda_compute *c, gac_error *err)
{
    void *memory = NULL;
    size_t n_bytes = 0;
    if (!gac_compute_bytes(c->options.max_rows + 1, sizeof(int32_t), 1, &n_bytes))
        return gac_error_set(err, GAC_USAGE, "max_rows is %lld", (long long)c->options.max_rows);
    gac_status status = gac_compute_alloc(c, n_bytes, "tokens", &memory, err);
    if (status)
        return status;
    c->pass = memory;
    c->memory.work_bytes += (int64_t)n_bytes;
    cudaError_t code = cudaHostAlloc(&memory, n_bytes, cudaHostAllocDefault);
    if (code == cudaSuccess) {
        c->pass_host = memory;
        memset(memory, 0, n_bytes);
        code = cudaEventCreateWithFlags(&c->pass_copied, cudaEventDisableTiming);
    }
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "cudaHostAlloc");
    return gac_compute_reserve(c, &c->gemv_state, GAC_GEMV_STATE_BYTES, "a barrier", true, err);
}

/* The environment variable GAC_CUDA_FEW lowers the number of rows up to which our own
 * kernels are used instead of cublasLt. */
static void choose_few_rows(gac_cuda_compute *c)
{
    const char *few = getenv("GAC_CUDA_FEW");
    c->few_rows = few && *few ? atoi(few) : GAC_SKINNY_MAX_ROWS;
    if (c->few_rows > GAC_SKINNY_MAX_ROWS)
        c->few_rows = GAC_SKINNY_MAX_ROWS;
}

static gac_status open_compute(void *device_state, const gac_compute_options *options, void **state,
                               gac_error *err)
{
    if (options->dtype != GAC_DTYPE_F16 && options->dtype != GAC_DTYPE_BF16)
        return gac_error_set(err, GAC_USAGE, "cuda computes in F16 or BF16, not %s",
                             gac_dtype_name(options->dtype));
    if (options->max_rows < 1 || options->max_rows > 1 << 24)
        return gac_error_set(err, GAC_USAGE, "max_rows is %lld", (long long)options->max_rows);
    gac_cuda_compute *c = calloc(1, sizeof *c);
    if (!c)
        return gac_error_no_memory(err);
    c->cuda = device_state;
    c->options = *options;
    choose_few_rows(c);
    cudaError_t code = cudaSetDevice(c->cuda->index);
    gac_status status =
        code == cudaSuccess ? open_pass(c, err) : gac_cuda_error(err, code, "cudaSetDevice");
    if (status) {
        close_compute(c);
        return status;
    }
    *state = c;
    return GAC_OK;
}

static void read_memory(void *state, gac_compute_memory *out)
{
    const gac_cuda_compute *c = state;
    uint64_t pooled = 0; /* memory that libraries use */
    if (cudaMemPoolGetAttribute(c->cuda->pool, cudaMemPoolAttrReservedMemCurrent, &pooled) !=
        cudaSuccess)
        cudaGetLastError();
    *out = c->memory;
    out->work_bytes += (int64_t)pooled;
}

static gac_status vector_create(void *state, const float *data, int64_t n, gac_vector **out,
                                gac_error *err)
{
    gac_cuda_compute *c = state;
    size_t n_bytes = 0;
    void *memory = NULL;
    if (n < 1 || !gac_compute_bytes(n, sizeof(float), 1, &n_bytes))
        return gac_error_set(err, GAC_USAGE, "a vector of %lld numbers", (long long)n);
    gac_vector *vector = calloc(1, sizeof *vector);
    if (!vector)
        return gac_error_no_memory(err);
    gac_status status = gac_compute_alloc(c, n_bytes, "a vector", &memory, err);
    if (status) {
        free(vector);
        return status;
    }
    vector->data = memory;
    vector->n = n;
    cudaError_t code =
        cudaMemcpyAsync(memory, data, n_bytes, cudaMemcpyHostToDevice, c->cuda->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->cuda->stream);
    if (code != cudaSuccess) {
        cudaFree(memory);
        free(vector);
        return gac_cuda_error(err, code, "copy to the device");
    }
    c->memory.weight_bytes += (int64_t)n_bytes;
    *out = vector;
    return GAC_OK;
}

static void vector_free(void *state, gac_vector *vector)
{
    gac_cuda_compute *c = state;
    if (!vector)
        return;
    cudaFree(vector->data);
    c->memory.weight_bytes -= vector->n * (int64_t)sizeof(float);
    free(vector);
}

static size_t rows_bytes(const gac_cuda_compute *c, const gac_rows *rows)
{
    size_t n_bytes = 0;
    return gac_compute_bytes(c->options.max_rows, rows->ld, rows->residual ? 4 : 2, &n_bytes)
               ? n_bytes
               : 0;
}

static void rows_free(void *state, gac_rows *rows)
{
    gac_cuda_compute *c = state;
    if (!rows)
        return;
    drop_recording(c);
    if (rows->data && !rows->within) {
        cudaFree(rows->data);
        c->memory.work_bytes -= (int64_t)rows_bytes(c, rows);
    }
    free(rows);
}

static gac_status rows_create(void *state, int64_t width, bool residual, gac_rows **out,
                              gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_rows *rows = calloc(1, sizeof *rows);
    if (!rows)
        return gac_error_no_memory(err);
    rows->width = width;
    rows->ld = gac_compute_row_width(c, width);
    rows->residual = residual;
    size_t n_bytes = width > 0 && width < 1 << 24 ? rows_bytes(c, rows) : 0;
    gac_status status = GAC_OK;
    if (n_bytes == 0)
        status = gac_error_set(err, GAC_USAGE, "rows of %lld numbers", (long long)width);
    else
        status = gac_compute_alloc(c, n_bytes, "rows", &rows->data, err);
    if (status == GAC_OK) {
        c->memory.work_bytes += (int64_t)n_bytes;
        status = clear(c, rows->data, n_bytes, err);
    }
    if (status) {
        rows_free(c, rows);
        return status;
    }
    *out = rows;
    return GAC_OK;
}

static gac_status rows_within(void *state, gac_rows *first, int64_t width, gac_rows **out,
                              gac_error *err)
{
    if (width < 1 || width > first->width || first->residual)
        return gac_error_set(err, GAC_USAGE, "rows of %lld numbers within rows of %lld",
                             (long long)width, (long long)first->width);
    gac_rows *rows = calloc(1, sizeof *rows);
    if (!rows)
        return gac_error_no_memory(err);
    *rows = (gac_rows){ first->data, width, gac_compute_row_width(state, width), false, true };
    *out = rows;
    return GAC_OK;
}

/* Converts half rows to F32 on the host: only tests and small reads use it. */
static gac_status rows_read(void *state, const gac_rows *rows, int64_t first, int64_t n, float *out,
                            gac_error *err)
{
    gac_cuda_compute *c = state;
    if (first < 0 || n < 1 || first + n > c->options.max_rows)
        return gac_error_set(err, GAC_USAGE, "rows %lld and %lld on", (long long)first,
                             (long long)n);
    size_t element = rows->residual ? 4 : 2, wide = (size_t)rows->width;
    uint16_t *codes = NULL;
    void *to = out;
    if (!rows->residual) {
        codes = malloc((size_t)n * wide * 2);
        to = codes;
        if (!codes)
            return gac_error_no_memory(err);
    }
    gac_status status = gac_compute_launch_pending(c, err);
    if (status) {
        free(codes);
        return status;
    }
    cudaError_t code = cudaMemcpy2DAsync(
        to, wide * element, (char *)rows->data + (size_t)first * (size_t)rows->ld * element,
        (size_t)rows->ld * element, wide * element, (size_t)n, cudaMemcpyDeviceToHost,
        c->cuda->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->cuda->stream);
    if (code == cudaSuccess && codes)
        for (size_t i = 0; i < (size_t)n * wide; i++)
            out[i] = c->options.dtype == GAC_DTYPE_F16 ? gac_f16_to_float(codes[i])
                                                       : gac_bf16_to_float(codes[i]);
    free(codes);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "copy from the device");
}

static void cache_free(void *state, gac_cache *cache)
{
    gac_cuda_compute *c = state;
    if (!cache)
        return;
    drop_recording(c);
    if (cache->k) {
        cudaFree(cache->k);
        c->memory.cache_bytes -= (int64_t)cache->n_bytes;
    }
    free(cache);
}

static gac_status cache_create(void *state, int64_t batch, int64_t capacity, int64_t n_kv_heads,
                               int64_t qk_stored, int64_t v_stored, gac_cache **out, gac_error *err)
{
    gac_cuda_compute *c = state;
    size_t k_bytes = 0, v_bytes = 0, n_rows = 0;
    if (batch < 1 || capacity < 1 || n_kv_heads < 1 || qk_stored < 1 || v_stored < 1 ||
        !gac_compute_bytes(batch, capacity, n_kv_heads, &n_rows) ||
        !gac_compute_bytes((int64_t)n_rows, qk_stored, 2, &k_bytes) ||
        !gac_compute_bytes((int64_t)n_rows, v_stored, 2, &v_bytes))
        return gac_error_set(err, GAC_USAGE, "a cache of sizes that make no sense");
    gac_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return gac_error_no_memory(err);
    *cache = (gac_cache){ .batch = batch,
                          .capacity = capacity,
                          .n_kv_heads = n_kv_heads,
                          .qk_stored = qk_stored,
                          .v_stored = v_stored,
                          .n_tokens = batch * capacity };
    k_bytes = (k_bytes + 255) / 256 * 256;
    cache->n_bytes = k_bytes + v_bytes;
    gac_status status = gac_compute_alloc(c, cache->n_bytes, "a cache", &cache->k, err);
    if (status == GAC_OK) {
        cache->v = (char *)cache->k + k_bytes;
        c->memory.cache_bytes += (int64_t)cache->n_bytes;
        status = clear(c, cache->k, cache->n_bytes, err);
    }
    if (status) {
        cache_free(c, cache);
        return status;
    }
    *out = cache;
    return GAC_OK;
}

/* Clears the cache, so that numbers of another shape are never read. */
static gac_status cache_shape(void *state, gac_cache *cache, int64_t batch, int64_t capacity,
                              gac_error *err)
{
    gac_cuda_compute *c = state;
    int64_t n;
    if (c->recording || batch < 1 || capacity < 1 || !gac_mul_i64(batch, capacity, &n) ||
        n > cache->n_tokens)
        return gac_error_set(err, GAC_USAGE,
                             "%lld sequences of %lld tokens in a cache of %lld tokens",
                             (long long)batch, (long long)capacity, (long long)cache->n_tokens);
    drop_recording(c);
    cache->batch = batch;
    cache->capacity = capacity;
    return clear(c, cache->k, cache->n_bytes, err);
}

static gac_status begin(void *state, const int32_t *ids, int64_t batch, int64_t n_new,
                        int64_t n_past, gac_error *err)
{
    gac_cuda_compute *c = state;
    int64_t n = 0;
    if (batch < 1 || n_new < 1 || n_past < 0 || n_past > INT32_MAX ||
        !gac_mul_i64(batch, n_new, &n) || n > c->options.max_rows)
        return gac_error_set(err, GAC_USAGE, "a pass of %lld times %lld tokens after %lld",
                             (long long)batch, (long long)n_new, (long long)n_past);
    /* Nobody reads the results of products that the previous pass deferred but did not
     * launch. */
    c->n_pending = 0;
    /* The copy of the previous pass may still read pass_host. */
    cudaError_t code = cudaEventSynchronize(c->pass_copied);
    if (code == cudaSuccess) {
        c->pass_host[0] = (int32_t)n_past;
        memcpy(c->pass_host + 1, ids, (size_t)n * sizeof *ids);
        code = cudaMemcpyAsync(c->pass, c->pass_host, (size_t)(n + 1) * sizeof *ids,
                               cudaMemcpyHostToDevice, c->cuda->stream);
    }
    if (code == cudaSuccess)
        code = cudaEventRecord(c->pass_copied, c->cuda->stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "tokens to the device");
    c->batch = batch;
    c->n_new = n_new;
    c->n_past = n_past;
    c->chained = false;
    return GAC_OK;
}

static gac_status finish(void *state, gac_error *err)
{
    return gac_compute_wait(state, "a pass on the device", err);
}

/* The capture mode is relaxed because libraries load kernels during the capture. */
static gac_status record(void *state, bool start, gac_error *err)
{
    gac_cuda_compute *c = state;
    cudaGraph_t graph = NULL;
    cudaError_t code;
    gac_status status = gac_compute_launch_pending(c, err);
    c->chained = false;
    if (start && status)
        return status;
    if (start) {
        drop_recording(c);
        code = cudaStreamBeginCapture(c->cuda->stream, cudaStreamCaptureModeRelaxed);
        c->recording = code == cudaSuccess;
        return c->recording ? GAC_OK : gac_cuda_error(err, code, "cudaStreamBeginCapture");
    }
    if (!c->recording)
        return gac_error_set(err, GAC_USAGE, "no recording was started");
    c->recording = false;
    code = cudaStreamEndCapture(c->cuda->stream, &graph);
    if (code == cudaSuccess && status == GAC_OK)
        code = cudaGraphInstantiate(&c->recorded, graph, 0);
    if (code == cudaSuccess && status == GAC_OK)
        code = cudaGraphUpload(c->recorded, c->cuda->stream);
    if (graph)
        cudaGraphDestroy(graph);
    if (code == cudaSuccess)
        return status;
    drop_recording(c);
    cudaGetLastError();
    return gac_cuda_error(err, code, "recording of a pass");
}

static gac_status replay(void *state, gac_error *err)
{
    gac_cuda_compute *c = state;
    if (!c->recorded)
        return gac_error_set(err, GAC_USAGE, "nothing is recorded");
    cudaError_t code = cudaGraphLaunch(c->recorded, c->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "cudaGraphLaunch");
}

const gac_compute_ops gac_cuda_compute_ops = {
    .name = "cuda",
    .variations = GAC_VARIATION_ALL & ~GAC_VARIATION_EXPERTS,
    .open = open_compute,
    .close = close_compute,
    .stored = gac_compute_stored,
    .memory = read_memory,
    .matrix_create = gac_compute_matrix_create,
    .matrix_free = gac_compute_matrix_free,
    .vector_create = vector_create,
    .vector_free = vector_free,
    .rows_create = rows_create,
    .rows_within = rows_within,
    .rows_free = rows_free,
    .rows_read = rows_read,
    .rows_write = gac_compute_rows_write,
    .cache_create = cache_create,
    .cache_shape = cache_shape,
    .cache_free = cache_free,
    .begin = begin,
    .embed = gac_compute_embed,
    .linear = gac_compute_linear,
    .attend = gac_compute_attend,
    .logits = gac_compute_logits,
    .logits_read = gac_compute_logits_read,
    .losses = gac_compute_losses,
    .finish = finish,
    .record = record,
    .replay = replay,
    .gram_create = gac_compute_gram_create,
    .gram_free = gac_compute_gram_free,
    .gram_add = gac_compute_gram_add,
    .gram_read = gac_compute_gram_read,
    .factor = gac_compute_factor,
    .backward_layer = gac_compute_backward_layer,
    .backward_head = gac_compute_backward_head,
};

/* Attention over the KV cache. One new token per sequence uses our decode kernel. More
 * tokens are first rotated and written to the cache. Then cuDNN or our flash kernel
 * attends. */
#include "kernels.h"
#include "pass_internal.h"

/* Below this many new tokens a cuDNN plan does not pay: building it takes half a second. */
enum { PLAN_MIN_NEW = 512 };

/* Returns whether a norm has a number for each of one head, or of all. */
static bool norm_fits(const gac_attention_call *call, const gac_vector *norm, int64_t n_heads)
{
    return !norm || norm->n == n_heads * call->qk_size ||
           (norm->n == call->qk_size && !call->norm_whole);
}

static gac_status check_call(const gac_cuda_compute *c, const gac_attention_call *call,
                             gac_error *err)
{
    const gac_cache *cache = call->cache;
    int64_t group_ok = call->n_kv_heads > 0 && call->n_q_heads % call->n_kv_heads == 0;
    int64_t width =
        (call->n_q_heads + call->n_kv_heads) * call->qk_stored + call->n_kv_heads * call->v_stored;
    if (!group_ok || cache->n_kv_heads != call->n_kv_heads || cache->qk_stored != call->qk_stored ||
        cache->v_stored != call->v_stored || call->qkv->residual || call->out->residual ||
        call->qkv->ld < width || call->out->ld < call->n_q_heads * call->v_stored)
        return gac_error_set(err, GAC_USAGE, "attention whose rows and cache do not fit");
    if (c->batch > cache->batch || c->n_past + c->n_new > cache->capacity)
        return gac_error_set(err, GAC_USAGE,
                             "%lld sequences of %lld tokens to a cache of %lld of %lld",
                             (long long)c->batch, (long long)(c->n_past + c->n_new),
                             (long long)cache->batch, (long long)cache->capacity);
    if (call->rotary_size < 0 || call->rotary_size > call->qk_size || call->window < 0 ||
        (call->norm_whole && (!call->q_norm || !call->k_norm || call->norm_centred)) ||
        !norm_fits(call, call->q_norm, call->n_q_heads) ||
        !norm_fits(call, call->k_norm, call->n_kv_heads))
        return gac_error_set(err, GAC_USAGE, "attention with sizes that make no sense");
    if (call->qk_stored > 256 || call->v_stored > 256)
        return gac_error_set(err, GAC_CHECK, "head sizes %lld/%lld: cuda takes up to 256",
                             (long long)call->qk_size, (long long)call->v_size);
    return GAC_OK;
}

static gac_heads_args heads_of(const gac_cuda_compute *c, const gac_attention_call *call)
{
    const int64_t rotary_size = call->rotary_size > 0 ? call->rotary_size : call->qk_size;
    return (gac_heads_args){ .dtype = c->options.dtype,
                             .qkv = call->qkv->data,
                             .qkv_ld = call->qkv->ld,
                             .k_cache = call->cache->k,
                             .v_cache = call->cache->v,
                             .capacity = call->cache->capacity,
                             .batch = c->batch,
                             .n_new = c->n_new,
                             .n_q_heads = call->n_q_heads,
                             .n_kv_heads = call->n_kv_heads,
                             .qk_size = call->qk_size,
                             .qk_stored = call->qk_stored,
                             .v_size = call->v_size,
                             .v_stored = call->v_stored,
                             .q_norm = call->q_norm ? call->q_norm->data : NULL,
                             .k_norm = call->k_norm ? call->k_norm->data : NULL,
                             .norm_each = call->q_norm && call->q_norm->n > call->qk_size,
                             .norm_centred = call->norm_centred,
                             .whole_scales = call->norm_whole ? c->whole_scales.memory : NULL,
                             .eps = call->eps,
                             .rotary_size = rotary_size / 2 * 2,
                             .interleaved = call->interleaved,
                             .cosines = call->cosines ? call->cosines->data : NULL,
                             .sines = call->sines ? call->sines->data : NULL,
                             .n_past = c->pass };
}

/* Reserves for every batch that the cache can have, because a smaller batch divides its
 * keys more. */
static gac_status reserve_decode(gac_cuda_compute *c, const gac_attention_call *call,
                                 gac_error *err)
{
    size_t most = 0, counters = gac_decode_counter_bytes(call->cache->batch, call->n_q_heads,
                                                         call->n_kv_heads);
    for (int64_t batch = 1; batch <= call->cache->batch; batch++) {
        size_t n =
            gac_decode_workspace_bytes(batch, call->n_q_heads, call->n_kv_heads, call->v_stored);
        most = n > most ? n : most;
    }
    gac_status status = gac_compute_reserve(c, &c->counters, counters, "attention", true, err);
    if (status == GAC_OK)
        status = gac_compute_reserve(c, &c->split, most, "attention", false, err);
    return status;
}

static gac_status attend_one(gac_cuda_compute *c, const gac_attention_call *call, gac_error *err)
{
    gac_decode_args args = { .heads = heads_of(c, call),
                             .scale = call->scale,
                             .softcap = call->softcap,
                             .window = call->window,
                             .out = call->out->data,
                             .out_ld = call->out->ld,
                             .counters = c->counters.memory,
                             .workspace = c->split.memory,
                             .overlap = c->chained };
    gac_status status = gac_decode_launch(&args, c->cuda->stream, err);
    c->chained = true;
    return status;
}

static gac_sdpa_shape shape_of(const gac_cuda_compute *c, const gac_attention_call *call)
{
    return (gac_sdpa_shape){ .batch = c->batch,
                             .n_q_heads = call->n_q_heads,
                             .n_kv_heads = call->n_kv_heads,
                             .n_q = c->n_new,
                             .n_kv = c->n_past + c->n_new,
                             .qk_head = call->qk_stored,
                             .v_head = call->v_stored,
                             .causal = true };
}

/* q is (batch, n_new, n_q_heads, qk_stored), as gac_rope_launch writes it. */
static gac_sdpa_strides strides_of(const gac_cuda_compute *c, const gac_attention_call *call)
{
    int64_t q_row = call->n_q_heads * call->qk_stored, o_row = call->out->ld;
    int64_t k_head = call->cache->capacity * call->qk_stored;
    int64_t v_head = call->cache->capacity * call->v_stored;
    return (gac_sdpa_strides){ { c->n_new * q_row, call->qk_stored, q_row },
                               { call->n_kv_heads * k_head, k_head, call->qk_stored },
                               { call->n_kv_heads * v_head, v_head, call->v_stored },
                               { c->n_new * o_row, call->v_stored, o_row } };
}

/* Returns the window, or 0 if this pass is too short for it. */
static int64_t window_of(const gac_cuda_compute *c, const gac_attention_call *call)
{
    return call->window < c->n_past + c->n_new ? call->window : 0;
}

/* Sets *done if cuDNN took the call. Windows and bounds are left to our own kernel. */
static gac_status attend_cudnn(gac_cuda_compute *c, const gac_attention_call *call, void *q,
                               bool *done, gac_error *err)
{
    gac_sdpa_shape shape = shape_of(c, call);
    gac_sdpa_strides strides = strides_of(c, call);
    gac_cudnn_plan *plan = NULL;
    gac_error declined = GAC_ERROR_INIT;
    *done = false;
    if (!c->cuda->cudnn || c->n_new < PLAN_MIN_NEW || window_of(c, call) || call->softcap > 0 ||
        call->qk_stored % 8 || call->v_stored % 8 ||
        (c->declined_qk == call->qk_stored && c->declined_v == call->v_stored))
        return GAC_OK;
    gac_status status = gac_cudnn_plan_create(c->cuda->cudnn, c->cuda, &shape, &strides,
                                              c->options.dtype, &plan, &declined);
    if (status == GAC_CHECK) {
        c->declined_qk = call->qk_stored;
        c->declined_v = call->v_stored;
        return GAC_OK;
    }
    if (status) {
        if (err)
            *err = declined;
        return status;
    }
    *done = true;
    status = gac_cudnn_plan_launch(plan, call->scale, q, call->cache->k, call->cache->v,
                                   call->out->data, err);
    gac_cudnn_plan_free(plan); /* cuDNN keeps the plan for the next layer */
    return status;
}

static gac_flash_strides flash_strides(const int64_t by[3])
{
    return (gac_flash_strides){ by[0], by[1], by[2] };
}

static gac_status attend_flash(gac_cuda_compute *c, const gac_attention_call *call, void *q,
                               gac_error *err)
{
    const gac_cache *cache = call->cache;
    gac_sdpa_strides strides = strides_of(c, call);
    gac_flash_args args = { .dtype = c->options.dtype,
                            .shape = shape_of(c, call),
                            .scale = call->scale,
                            .softcap = call->softcap,
                            .window = window_of(c, call),
                            .q = q,
                            .k = cache->k,
                            .v = cache->v,
                            .out = call->out->data };
    args.q_strides = flash_strides(strides.q);
    args.k_strides = flash_strides(strides.k);
    args.v_strides = flash_strides(strides.v);
    args.out_strides = flash_strides(strides.out);
    gac_status status = gac_flash_workspace_bytes(&args.shape, &args.workspace_bytes, err);
    if (status == GAC_OK && args.workspace_bytes)
        status = gac_compute_reserve(c, &c->split, args.workspace_bytes, "attention", false, err);
    if (status)
        return status;
    args.workspace = args.workspace_bytes ? c->split.memory : NULL;
    return gac_flash_launch(&args, c->cuda->stream, err);
}

static gac_status attend_many(gac_cuda_compute *c, const gac_attention_call *call, gac_error *err)
{
    size_t q_bytes = 0;
    if (!gac_compute_bytes(c->options.max_rows, call->n_q_heads * call->qk_stored, 2, &q_bytes))
        return gac_error_set(err, GAC_NO_RESOURCE, "rows too large for any device");
    gac_status status = gac_compute_reserve(c, &c->wide, q_bytes, "rows between", false, err);
    if (status)
        return status;
    gac_heads_args heads = heads_of(c, call);
    bool done = false;
    status = gac_rope_launch(&heads, c->wide.memory, c->cuda->stream, err);
    if (status == GAC_OK)
        status = attend_cudnn(c, call, c->wide.memory, &done, err);
    if (status == GAC_OK && !done)
        status = attend_flash(c, call, c->wide.memory, err);
    c->chained = false;
    return status;
}

/* Measures what the norms of all heads together need. */
static gac_status measure_whole(gac_cuda_compute *c, const gac_attention_call *call, gac_error *err)
{
    const gac_heads_args heads = heads_of(c, call);
    c->chained = true;
    return gac_whole_scales_launch(&heads, c->whole_scales.memory, c->cuda->stream, err);
}

gac_status gac_compute_attend(void *state, const gac_attention_call *call, gac_error *err)
{
    gac_cuda_compute *c = state;
    gac_status status = check_call(c, call, err);
    /* Reserve even if this pass does not need it, because a recording may follow. */
    if (status == GAC_OK)
        status = reserve_decode(c, call, err);
    if (status == GAC_OK && call->norm_whole)
        status = gac_compute_reserve(c, &c->whole_scales,
                                     (size_t)c->options.max_rows * 2 * sizeof(float), "norms",
                                     false, err);
    if (status == GAC_OK)
        status = gac_compute_launch_pending(c, err);
    if (status == GAC_OK && call->norm_whole)
        status = measure_whole(c, call, err);
    if (status)
        return status;
    return c->n_new == 1 ? attend_one(c, call, err) : attend_many(c, call, err);
}

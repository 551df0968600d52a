/* The forward pass of a decoder, as calls to a device. It reads from net_variations how the
 * family differs from Llama. */
#include <math.h>
#include <stdlib.h>

#include "base/arguments.h"
#include "engine/engine_internal.h"

#define DEFAULT_CONTEXT 4096

static gac_status settle_options(gac_engine *e, gac_error *err)
{
    gac_engine_options *o = &e->options;
    int64_t rows, cached;
    gac_dtype own = gac_model_dtype(e->net.model);
    if (o->dtype == GAC_DTYPE_COUNT)
        o->dtype = own == GAC_DTYPE_BF16 ? GAC_DTYPE_BF16 : GAC_DTYPE_F16;
    if (o->dtype != GAC_DTYPE_F16 && o->dtype != GAC_DTYPE_BF16)
        return gac_error_set(err, GAC_USAGE, "a GPU runs models in F16 or BF16, not %s",
                             gac_dtype_name(o->dtype));
    const int64_t context = e->net.max_context;
    if (o->max_context == 0)
        o->max_context = context < DEFAULT_CONTEXT ? context : DEFAULT_CONTEXT;
    if (o->max_new == 0 || o->max_new > o->max_context)
        o->max_new = o->max_context;
    if (o->max_batch < 1 || o->max_batch > GAC_MAX_LOGIT_ROWS || o->max_context < 1 ||
        o->max_new < 1 || o->n_threads < 0 || !gac_mul_i64(o->max_batch, o->max_new, &rows) ||
        rows > INT32_MAX || o->max_rows < 0 ||
        !gac_mul_i64(o->max_batch, o->max_context, &cached) || o->max_cached < 0 ||
        (o->max_cached > 0 && (o->max_cached < o->max_context || o->max_cached < o->max_batch)))
        return gac_error_set(err, GAC_USAGE,
                             "room for %lld sequences of %lld tokens, %lld at a time, makes no "
                             "sense (at most %d sequences)",
                             (long long)o->max_batch, (long long)o->max_context,
                             (long long)o->max_new, GAC_MAX_LOGIT_ROWS);
    if (o->max_rows == 0 || o->max_rows > rows)
        o->max_rows = rows;
    if (o->max_new > o->max_rows)
        o->max_new = o->max_rows;
    if (o->max_cached == 0 || o->max_cached > cached)
        o->max_cached = cached;
    if (o->max_context > context)
        return gac_error_set(err, GAC_USAGE,
                             "a context of %lld tokens, but the model's context is %lld",
                             (long long)o->max_context, (long long)context);
    return GAC_OK;
}

/* Refuses a model that the device would compute otherwise. */
static gac_status check_device(const gac_engine *e, gac_error *err)
{
    static const char *const names[] = { "LayerNorm",
                                         "its activation or an MLP without a gate",
                                         "norms of outputs",
                                         "scaled embeddings, outputs or logits",
                                         "bounded scores or logits",
                                         "attention windows",
                                         "its rotary embedding",
                                         "its norms of q and k",
                                         "learned positions",
                                         "experts" };
    const unsigned lacking = e->net.needs & ~e->compute.ops->variations;
    size_t i = 0;
    if (lacking == 0)
        return GAC_OK;
    while (!(lacking >> i & 1))
        i++;
    return gac_net_refuse(&e->net, err,
                          "the device %s does not compute family %s yet (%s); reference and cpu do",
                          e->options.device, e->net.type, names[i]);
}

gac_status gac_engine_open(const gac_model *model, const gac_engine_options *options,
                           gac_engine **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, out);
    const gac_engine_options defaults = GAC_ENGINE_OPTIONS_INIT;
    GAC_REFUSE(err, options && !options->device, "options name no device");
    double start = gac_now_s();
    gac_engine *e = calloc(1, sizeof *e);
    if (!e)
        return gac_error_no_memory(err);
    e->options = options ? *options : defaults;
    gac_status status = gac_net_read(model, &e->net, err);
    if (status == GAC_OK)
        status = settle_options(e, err);
    if (status == GAC_OK) {
        gac_compute_options compute = { .dtype = e->options.dtype,
                                        .padding = e->options.no_pad ? NULL : gac_engine_padding,
                                        .n_threads = e->options.n_threads,
                                        .max_rows = e->options.max_rows };
        status = gac_compute_open(e->options.device, &compute, &e->compute, err);
    }
    if (status == GAC_OK)
        status = check_device(e, err);
    if (status == GAC_OK)
        status = gac_engine_load(e, err);
    if (status == GAC_OK)
        status = gac_engine_reserve(e, e->options.max_batch,
                                    e->options.max_cached / e->options.max_batch, err);
    if (status != GAC_OK) {
        gac_engine_close(e);
        return status;
    }
    e->load_s = gac_now_s() - start;
    *out = e;
    return GAC_OK;
}

void gac_engine_close(gac_engine *e)
{
    if (!e)
        return;
    gac_engine_unload(e);
    gac_compute_close(&e->compute);
    gac_net_dispose(&e->net);
    free(e);
}

void gac_engine_describe(const gac_engine *e, gac_engine_info *out)
{
    gac_compute_memory memory;
    e->compute.ops->memory(e->compute.state, &memory);
    *out = (gac_engine_info){ .vocab = e->net.vocab,
                              .hidden = e->net.hidden,
                              .n_layers = e->net.n_layers,
                              .max_context = e->options.max_context,
                              .model_context = e->net.max_context,
                              .dtype = e->compute.device ? e->options.dtype : GAC_DTYPE_F32,
                              .weight_bytes = memory.weight_bytes,
                              .cache_bytes = memory.cache_bytes,
                              .work_bytes = memory.work_bytes,
                              .load_s = e->load_s };
}

gac_status gac_engine_reserve(gac_engine *e, int64_t batch, int64_t context, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine", e);
    const gac_engine_options *o = &e->options;
    gac_status status = GAC_OK;
    if (batch < 1 || batch > o->max_batch || context < 1 || context > o->max_context ||
        batch * context > o->max_cached)
        return gac_error_set(err, GAC_USAGE,
                             "a cache for %lld sequences of %lld tokens, but there is room for "
                             "%lld of %lld, and %lld tokens in all",
                             (long long)batch, (long long)context, (long long)o->max_batch,
                             (long long)o->max_context, (long long)o->max_cached);
    if (batch == e->room_batch && context == e->room_context)
        return GAC_OK;
    e->room_batch = e->recorded_batch = 0; /* the recorded pass holds addresses of the old cache */
    for (int32_t i = 0; i < e->net.n_layers && status == GAC_OK; i++)
        status =
            e->compute.ops->cache_shape(e->compute.state, e->layers[i].cache, batch, context, err);
    if (status == GAC_OK) {
        e->room_batch = batch;
        e->room_context = context;
    }
    return status;
}

/* Makes a linear call, after before has seen it. */
static gac_status run_linear(gac_engine *e, gac_engine_input input, const gac_linear_call *call,
                             before_linear *before, void *user, gac_error *err)
{
    gac_status status = before ? before(user, input, call, err) : GAC_OK;
    return status == GAC_OK ? e->compute.ops->linear(e->compute.state, call, err) : status;
}

/* Computes q, k and v of a layer, and attends with them. */
static gac_status run_attention(gac_engine *e, int32_t layer, before_linear *before, void *user,
                                gac_error *err)
{
    const net_variations *v = &e->net.varies;
    const net_layer *n = &e->net.layers[layer];
    const loaded_layer *l = &e->layers[layer];
    gac_linear_call in = { .matrix = l->matrix[GAC_INPUT_QKV],
                           .x = e->residual,
                           .norm = l->attention_norm.weight,
                           .norm_bias = l->attention_norm.bias,
                           .centred = v->centred,
                           .eps = e->net.eps,
                           .out = l->rows[ROWS_QKV],
                           .mode = GAC_LINEAR_SET };
    gac_attention_call attention = {
        .cache = l->cache,
        .qkv = l->rows[ROWS_QKV],
        .out = l->rows[ROWS_HEADS],
        .n_q_heads = n->n_q_heads,
        .n_kv_heads = n->n_kv_heads,
        .qk_size = n->qk_size,
        .qk_stored = l->qk_stored,
        .v_size = n->v_size,
        .v_stored = l->v_stored,
        .q_norm = l->q_norm,
        .k_norm = l->k_norm,
        .norm_whole = v->head_norm == HEAD_NORM_WHOLE,
        .norm_centred = v->centred,
        .eps = e->net.eps,
        .cosines = l->cosines,
        .sines = l->sines,
        .interleaved = v->interleaved,
        .rotary_size = gac_rope_size(&e->net, n->qk_size),
        .scale = v->softmax_scale != 0 ? v->softmax_scale : 1 / sqrt((double)n->qk_size),
        .softcap = v->score_cap,
        .window = n->window < e->options.max_context ? n->window : 0,
    };
    gac_status status = run_linear(e, GAC_INPUT_QKV, &in, before, user, err);
    return status == GAC_OK ? e->compute.ops->attend(e->compute.state, &attention, err) : status;
}

/* Computes what the last matrix of an MLP multiplies, for all rows or for those of an expert. */
static gac_linear_call gate_call(const gac_engine *e, const gac_matrix *matrix, const gac_rows *x,
                                 gac_rows *out)
{
    const net_names *names = &e->net.varies.names;
    bool gated = names->gate || names->gate_up || names->expert_gate;
    return (gac_linear_call){ .matrix = matrix,
                              .x = x,
                              .out = out,
                              .mode = gated ? GAC_LINEAR_GATED : GAC_LINEAR_ACTIVATED,
                              .activation = e->net.varies.activation };
}

static gac_status run_gate(gac_engine *e, int32_t layer, before_linear *before, void *user,
                           gac_error *err)
{
    const loaded_layer *l = &e->layers[layer];
    gac_linear_call in =
        gate_call(e, l->matrix[GAC_INPUT_GATE_UP], e->residual, l->rows[ROWS_GATED]);
    in.norm = l->mlp_norm.weight;
    in.norm_bias = l->mlp_norm.bias;
    in.centred = e->net.varies.centred;
    in.eps = e->net.eps;
    return run_linear(e, GAC_INPUT_GATE_UP, &in, before, user, err);
}

/* Adds what a block gives to the residual stream. */
static gac_linear_call out_call(const gac_engine *e, const gac_matrix *matrix, const gac_rows *x,
                                const loaded_norm *norm)
{
    return (gac_linear_call){ .matrix = matrix,
                              .x = x,
                              .out = e->residual,
                              .mode = GAC_LINEAR_ADD,
                              .out_norm = norm->weight,
                              .centred = e->net.varies.centred,
                              .eps = e->net.eps,
                              .scale = e->net.varies.residual_scale };
}

static gac_status run_expert(gac_engine *e, const gac_routing *routing, int32_t expert,
                             const gac_matrix *gate_up, const gac_matrix *down, gac_rows *rows,
                             gac_error *err)
{
    static const loaded_norm none = { NULL, NULL };
    gac_linear_call in = gate_call(e, gate_up, e->normed, rows);
    gac_linear_call out = out_call(e, down, rows, &none);
    in.routing = out.routing = routing;
    in.expert = out.expert = expert;
    gac_status status = e->compute.ops->linear(e->compute.state, &in, err);
    return status == GAC_OK ? e->compute.ops->linear(e->compute.state, &out, err) : status;
}

/* Runs the experts that each row chooses, and the MLP that all rows share. */
static gac_status run_experts(gac_engine *e, int32_t layer, gac_error *err)
{
    const gac_compute_ops *ops = e->compute.ops;
    const loaded_layer *l = &e->layers[layer];
    gac_route_call route = { .matrix = l->router,
                             .x = e->residual,
                             .norm = l->mlp_norm.weight,
                             .eps = e->net.eps,
                             .normed = e->normed,
                             .n_chosen = e->net.varies.n_experts_chosen,
                             .normalise = e->net.varies.normalise_experts,
                             .routing = e->routing };
    gac_route_call share = { .matrix = l->shared_gate,
                             .x = e->normed,
                             .n_chosen = 1,
                             .sigmoid = true,
                             .routing = e->shared_routing };
    gac_status status = ops->route(e->compute.state, &route, err);
    for (int32_t i = 0; i < e->net.layers[layer].n_experts && status == GAC_OK; i++)
        status = run_expert(e, e->routing, i, l->experts[i].gate_up, l->experts[i].down,
                            l->experts[i].rows, err);
    if (status != GAC_OK || !l->shared_gate)
        return status;
    status = ops->route(e->compute.state, &share, err);
    return status == GAC_OK ? run_expert(e, e->shared_routing, 0, l->matrix[GAC_INPUT_GATE_UP],
                                         l->matrix[GAC_INPUT_DOWN], l->rows[ROWS_GATED], err)
                            : status;
}

/* Runs a layer. With parallel blocks, the MLP reads the residual stream before attention has
 * added to it. */
static gac_status run_layer(gac_engine *e, int32_t layer, before_linear *before, void *user,
                            gac_error *err)
{
    const bool parallel = e->net.varies.parallel, experts = e->layers[layer].experts;
    const loaded_layer *l = &e->layers[layer];
    gac_linear_call attended =
        out_call(e, l->matrix[GAC_INPUT_O], l->rows[ROWS_HEADS], &l->attention_out_norm);
    gac_linear_call out =
        out_call(e, l->matrix[GAC_INPUT_DOWN], l->rows[ROWS_GATED], &l->mlp_out_norm);
    gac_status status = run_attention(e, layer, before, user, err);
    if (status == GAC_OK && parallel)
        status = run_gate(e, layer, before, user, err);
    if (status == GAC_OK)
        status = run_linear(e, GAC_INPUT_O, &attended, before, user, err);
    if (status == GAC_OK && experts)
        return run_experts(e, layer, err);
    if (status == GAC_OK && !parallel)
        status = run_gate(e, layer, before, user, err);
    return status == GAC_OK ? run_linear(e, GAC_INPUT_DOWN, &out, before, user, err) : status;
}

gac_status gac_engine_run_head(gac_engine *e, int64_t first, int64_t step, int64_t n,
                               gac_error *err)
{
    gac_linear_call call = { .matrix = e->head ? e->head : e->embedding,
                             .x = e->residual,
                             .norm = e->norm.weight,
                             .norm_bias = e->norm.bias,
                             .centred = e->net.varies.centred,
                             .eps = e->net.eps,
                             .scale = e->net.varies.logit_scale,
                             .softcap = e->net.varies.logit_cap };
    return e->compute.ops->logits(e->compute.state, &call, first, step, n, err);
}

gac_status gac_engine_run_embedding(gac_engine *e, gac_error *err)
{
    const gac_embed_call call = { .table = e->embedding,
                                  .out = e->residual,
                                  .scale = e->net.varies.embedding_scale,
                                  .positions = e->positions,
                                  .first_position = e->net.varies.positions_from_2 ? 2 : 0 };
    return e->compute.ops->embed(e->compute.state, &call, err);
}

/* Reports progress: n_layers of this pass are done. The output head counts as
 * one more layer. */
static void step(const gac_engine *e, int32_t n_layers)
{
    int64_t n = e->last_n_past + e->last_n_new * n_layers / (e->net.n_layers + 1);
    gac_progress_step(e->watched, e->watched_from + (e->watched_counts ? (uint64_t)n : 0));
}

gac_status gac_engine_run(gac_engine *e, int32_t first, int32_t end, before_linear *before,
                          void *user, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int32_t i = first; i < end && status == GAC_OK; i++) {
        status = run_layer(e, i, before, user, err);
        step(e, i + 1);
    }
    return status;
}

/* Runs everything from the embedding to the logits of each sequence's last token. */
static gac_status run_pass(gac_engine *e, int64_t batch, int64_t n_new, gac_error *err)
{
    gac_status status = gac_engine_run_embedding(e, err);
    if (status == GAC_OK)
        status = gac_engine_run(e, 0, e->net.n_layers, NULL, NULL, err);
    return status == GAC_OK ? gac_engine_run_head(e, n_new - 1, n_new, batch, err) : status;
}

/* Decodes one token per sequence. The first such pass is recorded as a graph;
 * later ones replay it. */
static gac_status run_decode(gac_engine *e, int64_t batch, gac_error *err)
{
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    if (!ops->record)
        return run_pass(e, batch, 1, err);
    if (e->recorded_batch == batch) {
        gac_status replayed = ops->replay(state, err);
        if (replayed != GAC_USAGE) /* GAC_USAGE: the device has dropped the recording */
            return replayed;
    }
    gac_status status = run_pass(e, batch, 1, err);
    e->recorded_batch = 0;
    if (status == GAC_OK)
        status = ops->record(state, true, err);
    if (status == GAC_OK)
        status = run_pass(e, batch, 1, err);
    if (status == GAC_OK)
        status = ops->record(state, false, err);
    if (status == GAC_OK)
        e->recorded_batch = batch;
    return status;
}

/* Returns the index of the first id outside the vocabulary, or n. */
static int64_t find_outside(const gac_engine *e, const int32_t *ids, int64_t n)
{
    int64_t i = 0;
    while (i < n && ids[i] >= 0 && ids[i] < e->net.vocab)
        i++;
    return i;
}

static gac_status check_pass(const gac_engine *e, const int32_t *ids, int64_t batch, int64_t n_new,
                             int64_t n_past, gac_error *err)
{
    const gac_engine_options *o = &e->options;
    if (batch < 1 || batch > e->room_batch || n_new < 1 || n_new > o->max_new || n_past < 0)
        return gac_error_set(err, GAC_USAGE,
                             "a pass of %lld tokens for each of %lld sequences, but there is room "
                             "for %lld of %lld",
                             (long long)n_new, (long long)batch, (long long)o->max_new,
                             (long long)e->room_batch);
    if (batch * n_new > o->max_rows)
        return gac_error_set(err, GAC_USAGE,
                             "a pass of %lld tokens in all, but there is room for %lld",
                             (long long)(batch * n_new), (long long)o->max_rows);
    if (n_past > e->room_context - n_new)
        return gac_error_set(err, GAC_USAGE, "%lld tokens, but the context has room for %lld",
                             (long long)n_past + (long long)n_new, (long long)e->room_context);
    int64_t i = find_outside(e, ids, batch * n_new);
    if (i < batch * n_new)
        return gac_error_set(err, GAC_USAGE, "token %lld is %d, outside 0 to %lld",
                             (long long)(i % n_new), ids[i], (long long)e->net.vocab - 1);
    return GAC_OK;
}

gac_status gac_engine_forward(gac_engine *e, const int32_t *ids, int64_t batch, int64_t n_new,
                              int64_t n_past, float *logits, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, ids", e, ids);
    const gac_compute_ops *ops = e->compute.ops;
    void *state = e->compute.state;
    gac_status status = check_pass(e, ids, batch, n_new, n_past, err);
    if (status != GAC_OK)
        return status;
    status = ops->begin(state, ids, batch, n_new, n_past, err);
    e->last_n_past = n_past;
    e->last_n_new = n_new;
    if (status == GAC_OK)
        status = n_new == 1 ? run_decode(e, batch, err) : run_pass(e, batch, n_new, err);
    e->last_batch = status == GAC_OK ? batch : 0;
    if (status == GAC_OK && logits)
        return ops->logits_read(state, logits, err);
    return status == GAC_OK ? ops->finish(state, err) : status;
}

void gac_engine_watch(gac_engine *e, gac_progress *progress, uint64_t n_done, bool counts_tokens)
{
    e->watched = progress;
    e->watched_from = n_done;
    e->watched_counts = counts_tokens;
}

gac_status gac_engine_check_text(const gac_engine *e, const int32_t *ids, size_t n_ids,
                                 gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine", e);
    GAC_REFUSE(err, n_ids > 0 && !ids, "ids is NULL");
    char q[256];
    int64_t i = find_outside(e, ids, (int64_t)n_ids);
    if (i == (int64_t)n_ids)
        return GAC_OK;
    return gac_error_set(
        err, GAC_BAD_INPUT,
        "%s: the tokenizer gives id %d to token %lld of the text, but the embedding "
        "has %lld rows",
        gac_quote(q, sizeof q, gac_checkpoint_path(e->net.checkpoint)), ids[i], (long long)i,
        (long long)e->net.vocab);
}

gac_status gac_engine_logits(gac_engine *e, int64_t first, int64_t n, float *out, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine", e);
    GAC_REFUSE(err, n > 0 && !out, "out is NULL");
    int64_t n_rows = e->last_batch * e->last_n_new;
    gac_status status = GAC_OK;
    if (first < 0 || n < 0 || first > n_rows || n > n_rows - first)
        return gac_error_set(err, GAC_USAGE, "logits of rows %lld to %lld, but the pass had %lld",
                             (long long)first, (long long)(first + n - 1), (long long)n_rows);
    for (int64_t done = 0; done < n && status == GAC_OK; done += GAC_MAX_LOGIT_ROWS) {
        int64_t some = n - done < GAC_MAX_LOGIT_ROWS ? n - done : GAC_MAX_LOGIT_ROWS;
        status = gac_engine_run_head(e, first + done, 1, some, err);
        if (status == GAC_OK)
            status = e->compute.ops->logits_read(e->compute.state, out + done * e->net.vocab, err);
    }
    return status;
}

/* Computes the losses of one pass. targets and losses have shape (n). */
static gac_status pass_losses(gac_engine *e, const int32_t *targets, int64_t n, double *losses,
                              gac_error *err)
{
    gac_status status = GAC_OK;
    for (int64_t done = 0; done < n && status == GAC_OK; done += GAC_MAX_LOGIT_ROWS) {
        int64_t some = n - done < GAC_MAX_LOGIT_ROWS ? n - done : GAC_MAX_LOGIT_ROWS;
        status = gac_engine_run_head(e, done, 1, some, err);
        if (status == GAC_OK)
            status = e->compute.ops->losses(e->compute.state, targets + done, losses + done, err);
        step(e, e->net.n_layers);
    }
    return status;
}

gac_status gac_engine_losses(gac_engine *e, const int32_t *ids, int64_t n_ids, double *losses,
                             gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "engine, ids, losses", e, ids, losses);
    GAC_REFUSE(err, n_ids < 1, "there are no tokens");
    int64_t n = n_ids - 1;
    if (n >= 0 && find_outside(e, ids + n, 1) == 0)
        return gac_error_set(err, GAC_USAGE, "token %lld is %d, outside 0 to %lld", (long long)n,
                             ids[n], (long long)e->net.vocab - 1);
    gac_status status = gac_engine_reserve(e, 1, e->options.max_context, err);
    for (int64_t done = 0; done < n && status == GAC_OK;) {
        int64_t some = n - done < e->options.max_new ? n - done : e->options.max_new;
        status = gac_engine_forward(e, ids + done, 1, some, done, NULL, err);
        if (status == GAC_OK)
            status = pass_losses(e, ids + done + 1, some, losses + done, err);
        done += some;
    }
    return status;
}

/* Compares a layer that differs from Llama's on the GPU with the device `reference`. The passes
 * go from the embedding to the logits, so that every variation of every call is seen, with rows
 * of real sizes: a few and many, at once and from the cache. */
#include "test_passes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum head_norm { NO_NORM, ONE_NORM, OWN_NORM, WHOLE_NORM } head_norm;

/* Sizes that are 0 have the usual value. */
typedef struct layer_case {
    const char *name;
    int64_t hidden, n_q_heads, n_kv_heads, head, width, batch;
    int64_t passes[5];              /* new tokens of each pass; 0 ends the list */
    bool bare;                      /* nothing is normed before the modules */
    bool centred, biased, out_norm; /* what norms do, and that there is one of outputs */
    head_norm head_norm;
    bool unrotated, interleaved, positions, ungated;
    int64_t n_rotated, window, rank;
    gac_activation activation;
    double embedding_scale, residual_scale, logit_scale, score_cap, logit_cap;
} layer_case;

enum { QKV, O, GATE_UP, DOWN, MATRICES };
enum { NORM, BIAS, OUT_NORM, Q_NORM, K_NORM, COSINES, SINES, VECTORS };

/* What both devices get. */
typedef struct weights {
    const layer_case *c;
    int64_t n_tokens;
    tensor table, positions, head;
    module qkv[3], o, gate_up[2], down;
    float *vectors[VECTORS];
    int64_t sizes[VECTORS];
    int32_t *ids;
} weights;

/* The same model on one device. */
typedef struct side {
    const gac_compute_ops *ops;
    void *state;
    const weights *w;
    int64_t head_stored;
    gac_matrix *matrix[MATRICES], *table, *positions, *head;
    gac_vector *vectors[VECTORS];
    gac_rows *residual, *qkv, *attended, *gated;
    gac_cache *cache;
} side;

static int64_t count_tokens(const layer_case *c)
{
    int64_t n = 0;
    for (int i = 0; i < 5; i++)
        n += c->passes[i];
    return n;
}

static void make_vectors(weights *w)
{
    const layer_case *c = w->c;
    const int64_t half = (c->n_rotated ? c->n_rotated : c->head) / 2;
    const int64_t q = c->head_norm >= OWN_NORM ? c->n_q_heads * c->head : c->head;
    const int64_t k = c->head_norm >= OWN_NORM ? c->n_kv_heads * c->head : c->head;
    const int64_t sizes[VECTORS] = { c->hidden, c->hidden,          c->hidden,         q,
                                     k,         w->n_tokens * half, w->n_tokens * half };
    memcpy(w->sizes, sizes, sizeof sizes);
    for (int v = 0; v < VECTORS; v++) {
        w->vectors[v] = need(malloc((size_t)sizes[v] * sizeof(float)));
        for (int64_t i = 0; i < sizes[v]; i++) {
            const double angle = (double)(i / half) * pow(1e4, -(double)(i % half) / (double)half);
            w->vectors[v][i] = v == COSINES ? (float)cos(angle)
                               : v == SINES ? (float)sin(angle)
                                            : (float)((v == BIAS ? 0 : 1) + 0.3 * random_number());
        }
    }
}

static void make_weights(bench *b, weights *w, const layer_case *c)
{
    const gac_dtype dtype = b->options.dtype;
    const gac_axis q = { c->n_q_heads, c->head, 0 }, kv = { c->n_kv_heads, c->head, 0 };
    const gac_axis wide = { 1, c->width, 0 }, hidden = { 1, c->hidden, c->hidden };
    memset(w, 0, sizeof *w);
    w->c = c;
    w->n_tokens = count_tokens(c);
    w->table = make_tensor(dtype, VOCAB, c->hidden, 1);
    w->positions = make_tensor(dtype, w->n_tokens + 2, c->hidden, 0.5);
    w->head = make_tensor(dtype, VOCAB, c->hidden, 1 / sqrt((double)c->hidden));
    const gac_axis axes[3] = { q, kv, kv };
    for (int i = 0; i < 3; i++)
        make_module(&w->qkv[i], (module_spec){ axes[i], c->rank, 1, false, c->biased }, c->hidden,
                    dtype);
    make_module(&w->o, (module_spec){ hidden, c->rank, 1, false, c->biased },
                c->n_q_heads * c->head, dtype);
    for (int i = 0; i < 2; i++)
        make_module(&w->gate_up[i], (module_spec){ wide, c->rank, 1, false, c->biased }, c->hidden,
                    dtype);
    make_module(&w->down, (module_spec){ hidden, c->rank, 1, false, c->biased }, c->width, dtype);
    make_vectors(w);
    w->ids = need(malloc((size_t)(w->n_tokens * c->batch) * sizeof *w->ids));
    for (int64_t i = 0; i < w->n_tokens * c->batch; i++)
        w->ids[i] = (int32_t)((random_number() + 1) / 2 * VOCAB) % VOCAB;
}

static void free_weights(weights *w)
{
    free_tensor(&w->table);
    free_tensor(&w->positions);
    free_tensor(&w->head);
    for (int i = 0; i < 3; i++)
        free_module(&w->qkv[i]);
    for (int i = 0; i < 2; i++)
        free_module(&w->gate_up[i]);
    free_module(&w->o);
    free_module(&w->down);
    for (int i = 0; i < VECTORS; i++)
        free(w->vectors[i]);
    free(w->ids);
}

/* Makes a matrix of modules, with slices stored as the device wants them. */
static gac_status make_matrix(side *s, gac_axis in, const module *modules, int n,
                              gac_size_kind kind, gac_matrix **out, gac_error *err)
{
    gac_linear_module hosts[3];
    for (int i = 0; i < n; i++) {
        hosts[i] = modules[i].host;
        if (hosts[i].out.stored == 0)
            hosts[i].out.stored = s->ops->stored(s->state, kind, hosts[i].out.size);
    }
    return s->ops->matrix_create(s->state, in, hosts, n, out, err);
}

static gac_status make_table(side *s, const tensor *t, int64_t hidden, gac_matrix **out,
                             gac_error *err)
{
    gac_linear_part part = { .weight = t->host };
    gac_linear_module m = { .n_parts = 1,
                            .parts = &part,
                            .out = { 1, t->host.n_rows, t->host.n_rows } };
    return s->ops->matrix_create(s->state, (gac_axis){ 1, hidden, hidden }, &m, 1, out, err);
}

static gac_status open_side(side *s, const weights *w, gac_error *err)
{
    const layer_case *c = w->c;
    const gac_axis hidden = { 1, c->hidden, c->hidden };
    s->w = w;
    s->head_stored = s->ops->stored(s->state, GAC_SIZE_HEAD, c->head);
    const gac_axis heads = { c->n_q_heads, c->head, s->head_stored };
    const gac_axis wide = { 1, c->width, s->ops->stored(s->state, GAC_SIZE_WIDTH, c->width) };
    const module *mlp = c->ungated ? &w->gate_up[1] : w->gate_up;
    const int64_t qkv_width = (c->n_q_heads + 2 * c->n_kv_heads) * s->head_stored;
    gac_status status = make_matrix(s, hidden, w->qkv, 3, GAC_SIZE_HEAD, &s->matrix[QKV], err);
    if (status == GAC_OK)
        status = make_matrix(s, heads, &w->o, 1, GAC_SIZE_ROW, &s->matrix[O], err);
    if (status == GAC_OK)
        status = make_matrix(s, hidden, mlp, c->ungated ? 1 : 2, GAC_SIZE_WIDTH,
                             &s->matrix[GATE_UP], err);
    if (status == GAC_OK)
        status = make_matrix(s, wide, &w->down, 1, GAC_SIZE_ROW, &s->matrix[DOWN], err);
    if (status == GAC_OK)
        status = make_table(s, &w->table, c->hidden, &s->table, err);
    if (status == GAC_OK)
        status = make_table(s, &w->positions, c->hidden, &s->positions, err);
    if (status == GAC_OK)
        status = make_table(s, &w->head, c->hidden, &s->head, err);
    for (int i = 0; i < VECTORS && status == GAC_OK; i++)
        status = s->ops->vector_create(s->state, w->vectors[i], w->sizes[i], &s->vectors[i], err);
    if (status == GAC_OK)
        status = s->ops->rows_create(s->state, c->hidden, true, &s->residual, err);
    if (status == GAC_OK)
        status = s->ops->rows_create(s->state, qkv_width, false, &s->qkv, err);
    if (status == GAC_OK)
        status =
            s->ops->rows_create(s->state, c->n_q_heads * s->head_stored, false, &s->attended, err);
    if (status == GAC_OK)
        status = s->ops->rows_create(s->state, wide.stored, false, &s->gated, err);
    if (status == GAC_OK)
        status = s->ops->cache_create(s->state, c->batch, w->n_tokens, c->n_kv_heads,
                                      s->head_stored, s->head_stored, &s->cache, err);
    return status;
}

static void close_side(side *s)
{
    for (int i = 0; i < MATRICES; i++)
        s->ops->matrix_free(s->state, s->matrix[i]);
    s->ops->matrix_free(s->state, s->table);
    s->ops->matrix_free(s->state, s->positions);
    s->ops->matrix_free(s->state, s->head);
    for (int i = 0; i < VECTORS; i++)
        s->ops->vector_free(s->state, s->vectors[i]);
    s->ops->rows_free(s->state, s->residual);
    s->ops->rows_free(s->state, s->qkv);
    s->ops->rows_free(s->state, s->attended);
    s->ops->rows_free(s->state, s->gated);
    s->ops->cache_free(s->state, s->cache);
}

/* A call from the residual stream to other rows. */
static gac_linear_call call_in(const side *s, int matrix, gac_rows *out)
{
    const layer_case *c = s->w->c;
    return (gac_linear_call){ .matrix = s->matrix[matrix],
                              .x = s->residual,
                              .norm = c->bare ? NULL : s->vectors[NORM],
                              .norm_bias = c->centred && c->biased ? s->vectors[BIAS] : NULL,
                              .centred = c->centred,
                              .eps = EPS,
                              .out = out,
                              .mode = matrix == QKV ? GAC_LINEAR_SET
                                      : c->ungated  ? GAC_LINEAR_ACTIVATED
                                                    : GAC_LINEAR_GATED,
                              .activation = c->activation };
}

static gac_linear_call call_out(const side *s, int matrix, const gac_rows *x)
{
    const layer_case *c = s->w->c;
    return (gac_linear_call){ .matrix = s->matrix[matrix],
                              .x = x,
                              .out = s->residual,
                              .mode = GAC_LINEAR_ADD,
                              .eps = EPS,
                              .centred = c->centred,
                              .out_norm = c->out_norm ? s->vectors[OUT_NORM] : NULL,
                              .scale = c->residual_scale };
}

static gac_attention_call call_attention(const side *s)
{
    const layer_case *c = s->w->c;
    return (gac_attention_call){ .cache = s->cache,
                                 .qkv = s->qkv,
                                 .out = s->attended,
                                 .n_q_heads = c->n_q_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .qk_size = c->head,
                                 .qk_stored = s->head_stored,
                                 .v_size = c->head,
                                 .v_stored = s->head_stored,
                                 .q_norm = c->head_norm ? s->vectors[Q_NORM] : NULL,
                                 .k_norm = c->head_norm ? s->vectors[K_NORM] : NULL,
                                 .norm_whole = c->head_norm == WHOLE_NORM,
                                 .norm_centred = c->centred && c->head_norm != WHOLE_NORM,
                                 .eps = EPS,
                                 .cosines = c->unrotated ? NULL : s->vectors[COSINES],
                                 .sines = c->unrotated ? NULL : s->vectors[SINES],
                                 .interleaved = c->interleaved,
                                 .rotary_size = c->n_rotated,
                                 .scale = 1 / sqrt((double)c->head),
                                 .softcap = c->score_cap,
                                 .window = c->window };
}

/* Runs the layer, up to the logits of each last token. */
static gac_status run_layer(side *s, int64_t n_new, gac_error *err)
{
    const layer_case *c = s->w->c;
    const gac_embed_call embed = { .table = s->table,
                                   .out = s->residual,
                                   .scale = c->embedding_scale,
                                   .positions = c->positions ? s->positions : NULL,
                                   .first_position = 2 };
    const gac_linear_call qkv = call_in(s, QKV, s->qkv), o = call_out(s, O, s->attended);
    const gac_linear_call mlp = call_in(s, GATE_UP, s->gated), down = call_out(s, DOWN, s->gated);
    const gac_attention_call attention = call_attention(s);
    gac_linear_call head = call_in(s, QKV, NULL);
    head.matrix = s->head;
    head.norm = s->vectors[NORM];
    head.scale = c->logit_scale;
    head.softcap = c->logit_cap;
    gac_status status = s->ops->embed(s->state, &embed, err);
    if (status == GAC_OK)
        status = s->ops->linear(s->state, &qkv, err);
    if (status == GAC_OK)
        status = s->ops->attend(s->state, &attention, err);
    if (status == GAC_OK)
        status = s->ops->linear(s->state, &o, err);
    if (status == GAC_OK)
        status = s->ops->linear(s->state, &mlp, err);
    if (status == GAC_OK)
        status = s->ops->linear(s->state, &down, err);
    return status == GAC_OK ? s->ops->logits(s->state, &head, n_new - 1, n_new, c->batch, err)
                            : status;
}

/* Token t of a pass of a sequence has the same id in whatever pass it comes. */
static gac_status begin(side *s, int64_t n_new, int64_t n_past, gac_error *err)
{
    const int64_t batch = s->w->c->batch;
    int32_t *ids = need(malloc((size_t)(batch * n_new) * sizeof *ids));
    for (int64_t i = 0; i < batch * n_new; i++)
        ids[i] = s->w->ids[i / n_new * s->w->n_tokens + n_past + i % n_new];
    gac_status status = s->ops->begin(s->state, ids, batch, n_new, n_past, err);
    free(ids);
    return status;
}

/* Runs a pass. What it leaves: heads (n, n_q_heads * head), the output of attention, if
 * nothing is padded; residual (n, hidden); logits (batch, VOCAB). */
static gac_status run_pass(side *s, int64_t n_new, int64_t n_past, float *heads, float *residual,
                           float *logits, gac_error *err)
{
    const int64_t n = s->w->c->batch * n_new;
    gac_status status = begin(s, n_new, n_past, err);
    if (status == GAC_OK)
        status = run_layer(s, n_new, err);
    if (status == GAC_OK)
        status = s->ops->logits_read(s->state, logits, err);
    if (status == GAC_OK && heads)
        status = s->ops->rows_read(s->state, s->attended, 0, n, heads, err);
    return status == GAC_OK ? s->ops->rows_read(s->state, s->residual, 0, n, residual, err)
                            : status;
}

static void judge_floats(const char *name, const char *what, const float *actual,
                         const float *expected, int64_t n, double tolerance)
{
    char line[240];
    double *wide = need(malloc((size_t)n * sizeof *wide));
    for (int64_t i = 0; i < n; i++)
        wide[i] = expected[i];
    snprintf(line, sizeof line, "%s: %s", name, what);
    judge(line, actual, wide, n, tolerance);
    free(wide);
}

/* A pass of one token, recorded, and replayed: the same bits. */
static gac_status check_replay(side *s, int64_t n_past, const float *expected, const char *name,
                               gac_error *err)
{
    const int64_t n = s->w->c->batch * VOCAB;
    float *logits = need(malloc((size_t)n * sizeof *logits));
    gac_status status = begin(s, 1, n_past, err);
    if (status == GAC_OK)
        status = s->ops->record(s->state, true, err);
    if (status == GAC_OK) {
        gac_error other = GAC_ERROR_INIT;
        status = run_layer(s, 1, err);
        gac_status ended = s->ops->record(s->state, false, status ? &other : err);
        status = status ? status : ended;
    }
    if (status == GAC_OK)
        status = s->ops->replay(s->state, err);
    if (status == GAC_OK)
        status = s->ops->logits_read(s->state, logits, err);
    if (status == GAC_OK)
        judge_floats(name, "replayed", logits, expected, n, 0);
    free(logits);
    return status;
}

static gac_status compare(bench *b, side sides[2], const char *name, gac_error *err)
{
    const layer_case *c = sides[0].w->c;
    const double tolerance = 2 * tolerance_of(b->options.dtype);
    const bool comparable = sides[0].head_stored == c->head && sides[1].head_stored == c->head;
    const int64_t n_heads = c->n_q_heads * c->head;
    gac_status status = GAC_OK;
    int64_t n_past = 0;
    for (int i = 0; i < 5 && c->passes[i] && status == GAC_OK; i++) {
        const int64_t n_new = c->passes[i], n = c->batch * n_new;
        float *heads[2], *residual[2], *logits[2];
        char line[200];
        for (int k = 0; k < 2; k++) {
            heads[k] = need(malloc((size_t)(n * n_heads) * sizeof(float)));
            residual[k] = need(malloc((size_t)(n * c->hidden) * sizeof(float)));
            logits[k] = need(malloc((size_t)(c->batch * VOCAB) * sizeof(float)));
        }
        for (int k = 0; k < 2 && status == GAC_OK; k++)
            status = run_pass(&sides[k], n_new, n_past, comparable ? heads[k] : NULL, residual[k],
                              logits[k], err);
        snprintf(line, sizeof line, "%s, %lld after %lld", name, (long long)n_new,
                 (long long)n_past);
        if (status == GAC_OK && comparable)
            judge_floats(line, "attention", heads[1], heads[0], n * n_heads, tolerance);
        if (status == GAC_OK) {
            judge_floats(line, "residual", residual[1], residual[0], n * c->hidden, tolerance);
            judge_floats(line, "logits", logits[1], logits[0], c->batch * VOCAB, tolerance);
        }
        if (status == GAC_OK && n_new == 1)
            status = check_replay(&sides[1], n_past, logits[1], line, err);
        for (int k = 0; k < 2; k++) {
            free(heads[k]);
            free(residual[k]);
            free(logits[k]);
        }
        n_past += n_new;
    }
    return status;
}

static gac_status run_case(bench *b, const layer_case *c, const char *name, gac_error *err)
{
    weights w;
    gac_compute reference = GAC_COMPUTE_INIT;
    const gac_compute_options how = { .max_rows = b->options.max_rows };
    make_weights(b, &w, c);
    gac_status status = gac_compute_open("reference", &how, &reference, err);
    if (status == GAC_OK) {
        side sides[2] = { { .ops = reference.ops, .state = reference.state },
                          { .ops = b->ops, .state = b->state } };
        status = open_side(&sides[0], &w, err);
        if (status == GAC_OK)
            status = open_side(&sides[1], &w, err);
        if (status == GAC_OK)
            status = compare(b, sides, name, err);
        close_side(&sides[0]);
        close_side(&sides[1]);
    }
    gac_compute_close(&reference);
    free_weights(&w);
    return status;
}

/* Each is like a family; the last ones are what no family has. */
static const layer_case cases[] = {
    { "llama", 256, 8, 2, 64, 704, 2, { 70, 1, 20, 1 }, .n_rotated = 64 },
    { "gpt2",
      192,
      3,
      3,
      64,
      768,
      2,
      { 40, 1, 5, 1 },
      .centred = true,
      .biased = true,
      .unrotated = true,
      .positions = true,
      .ungated = true,
      .activation = GAC_ACTIVATION_GELU_TANH },
    { "opt",
      128,
      2,
      2,
      64,
      515,
      1,
      { 1, 1, 30, 1 },
      .centred = true,
      .biased = true,
      .unrotated = true,
      .positions = true,
      .ungated = true,
      .activation = GAC_ACTIVATION_RELU },
    { "gemma",
      256,
      4,
      1,
      256,
      1024,
      1,
      { 33, 1, 1 },
      .embedding_scale = 16,
      .activation = GAC_ACTIVATION_GELU_TANH },
    { "gemma2",
      288,
      8,
      4,
      256,
      1152,
      2,
      { 200, 1, 17, 1 },
      .embedding_scale = 17,
      .out_norm = true,
      .score_cap = 0.7,
      .logit_cap = 0.9,
      .window = 64,
      .activation = GAC_ACTIVATION_GELU_TANH },
    { "gemma3",
      320,
      4,
      2,
      128,
      1024,
      1,
      { 300, 1, 1, 40 },
      .head_norm = ONE_NORM,
      .out_norm = true,
      .window = 100,
      .embedding_scale = 18,
      .activation = GAC_ACTIVATION_GELU_TANH },
    { "olmo2",
      256,
      4,
      2,
      64,
      700,
      3,
      { 33, 1, 1, 9 },
      .bare = true,
      .head_norm = WHOLE_NORM,
      .out_norm = true },
    { "granite",
      256,
      8,
      2,
      32,
      512,
      2,
      { 20, 1, 18, 1 },
      .embedding_scale = 12,
      .residual_scale = 0.22,
      .logit_scale = 0.3 },
    { "stablelm",
      320,
      4,
      4,
      80,
      864,
      1,
      { 50, 1, 3 },
      .centred = true,
      .biased = true,
      .head_norm = OWN_NORM,
      .n_rotated = 20 },
    { "cohere",
      256,
      4,
      2,
      128,
      640,
      1,
      { 50, 1, 3 },
      .centred = true,
      .head_norm = OWN_NORM,
      .interleaved = true,
      .logit_scale = 0.0625 },
    { "odd sizes",
      250,
      6,
      2,
      106,
      501,
      2,
      { 90, 1, 1, 7 },
      .window = 37,
      .n_rotated = 52,
      .centred = true,
      .out_norm = true,
      .score_cap = 0.5,
      .residual_scale = 0.7,
      .activation = GAC_ACTIVATION_GELU },
    { "pairs",
      256,
      8,
      2,
      64,
      512,
      1,
      { 40, 1, 20 },
      .rank = 45,
      .biased = true,
      .activation = GAC_ACTIVATION_GELU,
      .out_norm = true },
    { "pairs without a gate",
      256,
      8,
      2,
      64,
      512,
      1,
      { 40, 1, 20 },
      .rank = 45,
      .centred = true,
      .ungated = true,
      .interleaved = true,
      .activation = GAC_ACTIVATION_GELU },
    { "long window", 128, 8, 1, 128, 256, 1, { 600, 1, 64, 1 }, .window = 257 },
    { "long bound", 128, 4, 4, 96, 256, 1, { 640, 1, 3 }, .score_cap = 0.6 },
    { "window of one", 128, 2, 2, 64, 256, 2, { 66, 1, 2 }, .window = 1 },
};

void check_variations(bench *b, bool small)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gac_error err = GAC_ERROR_INIT;
        char name[120];
        if (small && count_tokens(&cases[i]) > 300)
            continue;
        snprintf(name, sizeof name, "%s %s%s", cases[i].name, gac_dtype_name(b->options.dtype),
                 b->options.padding ? "" : " no pad");
        failed(run_case(b, &cases[i], name, &err), name, &err);
    }
}

/* Runs a small model. Compares many tokens at once with one at a time, and a replayed
 * recording with direct calls. Checks logits, losses, and that bad weights are refused. */
#include "test_passes.h"

#include "base/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 192, HEADS = 6, KV_HEADS = 2, HEAD = 28, WIDTH = 333, LAYERS = 2, CAPACITY = 64 };

typedef struct model {
    gac_matrix *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head;
    gac_cache *cache[LAYERS];
    gac_vector *norm, *cosines, *sines;
    gac_rows *attention, *heads, *mlp;
    stream s; /* the residual stream */
    tensor head_weight;
    float *norm_values;
    int64_t stored;
    int64_t batch;
} model;

/* Creates a matrix from modules and frees the modules. */
static gac_status create_matrix(bench *b, gac_axis in, const module_spec *specs, int n,
                                gac_matrix **out, gac_error *err)
{
    module m[MAX_MODULES];
    gac_linear_module hosts[MAX_MODULES];
    for (int i = 0; i < n; i++) {
        make_module(&m[i], specs[i], in.n_slices * in.size, b->options.dtype);
        hosts[i] = m[i].host;
    }
    gac_status status = b->ops->matrix_create(b->state, in, hosts, n, out, err);
    for (int i = 0; i < n; i++)
        free_module(&m[i]);
    return status;
}

static gac_status open_layer(bench *b, model *m, int layer, gac_error *err)
{
    int64_t d = m->stored, w = b->ops->stored(b->state, GAC_SIZE_WIDTH, WIDTH);
    gac_axis hidden = { 1, HIDDEN, HIDDEN }, q = { HEADS, HEAD, d }, kv = { KV_HEADS, HEAD, d };
    gac_axis width = { 1, WIDTH, w };
    int64_t rank = layer ? 45 : 0; /* the second layer is factorised */
    module_spec qkv[3] = { { q, rank, 1, false, true },
                           { kv, rank, 1, false, true },
                           { kv, rank, 1, false, false } };
    module_spec gate_up[2] = { { width, rank, 1, false, false }, { width, rank, 1, false, false } };
    module_spec home = { hidden, rank, 1, false, false };
    gac_status status = create_matrix(b, hidden, qkv, 3, &m->qkv[layer], err);
    if (status == GAC_OK)
        status = create_matrix(b, q, &home, 1, &m->o[layer], err);
    if (status == GAC_OK)
        status = create_matrix(b, hidden, gate_up, 2, &m->gate_up[layer], err);
    if (status == GAC_OK)
        status = create_matrix(b, width, &home, 1, &m->down[layer], err);
    if (status == GAC_OK)
        status = b->ops->cache_create(b->state, m->batch, CAPACITY, KV_HEADS, d, d,
                                      &m->cache[layer], err);
    return status;
}

static gac_status open_vectors(bench *b, model *m, gac_error *err)
{
    enum { HALF = HEAD / 2 };
    float cosines[CAPACITY * HALF], sines[CAPACITY * HALF];
    m->norm_values = need(malloc(HIDDEN * sizeof(float)));
    for (int i = 0; i < HIDDEN; i++)
        m->norm_values[i] = (float)(1 + 0.2 * random_number());
    for (int i = 0; i < CAPACITY * HALF; i++) {
        double angle = (double)(i / HALF) * pow(1e4, -(double)(i % HALF) / HALF);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
    gac_status status = b->ops->vector_create(b->state, m->norm_values, HIDDEN, &m->norm, err);
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, cosines, CAPACITY * HALF, &m->cosines, err);
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, sines, CAPACITY * HALF, &m->sines, err);
    return status;
}

static gac_status open_model(bench *b, model *m, int64_t batch, int64_t n, gac_error *err)
{
    memset(m, 0, sizeof *m);
    m->batch = batch;
    m->stored = b->ops->stored(b->state, GAC_SIZE_HEAD, HEAD);
    gac_status status = open_stream(b, HIDDEN, batch, n, &m->s, err);
    for (int i = 0; i < LAYERS && status == GAC_OK; i++)
        status = open_layer(b, m, i, err);
    m->head_weight = make_tensor(b->options.dtype, VOCAB, HIDDEN, 1 / sqrt(HIDDEN));
    gac_linear_part part = { .weight = m->head_weight.host };
    gac_linear_module head = { .n_parts = 1, .parts = &part, .out = { 1, VOCAB, VOCAB } };
    if (status == GAC_OK)
        status = b->ops->matrix_create(b->state, (gac_axis){ 1, HIDDEN, HIDDEN }, &head, 1,
                                       &m->head, err);
    if (status == GAC_OK)
        status = open_vectors(b, m, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, (HEADS + 2 * KV_HEADS) * m->stored, false, &m->heads,
                                     err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, HEADS * m->stored, false, &m->attention, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, b->ops->stored(b->state, GAC_SIZE_WIDTH, WIDTH),
                                     false, &m->mlp, err);
    return status;
}

static void close_model(bench *b, model *m)
{
    for (int i = 0; i < LAYERS; i++) {
        b->ops->matrix_free(b->state, m->qkv[i]);
        b->ops->matrix_free(b->state, m->o[i]);
        b->ops->matrix_free(b->state, m->gate_up[i]);
        b->ops->matrix_free(b->state, m->down[i]);
        b->ops->cache_free(b->state, m->cache[i]);
    }
    b->ops->matrix_free(b->state, m->head);
    b->ops->vector_free(b->state, m->norm);
    b->ops->vector_free(b->state, m->cosines);
    b->ops->vector_free(b->state, m->sines);
    b->ops->rows_free(b->state, m->heads);
    b->ops->rows_free(b->state, m->attention);
    b->ops->rows_free(b->state, m->mlp);
    free_tensor(&m->head_weight);
    free(m->norm_values);
    close_stream(b, &m->s);
}

/* Runs everything between begin and reading the logits of each last token. */
static gac_status run_layers(bench *b, model *m, int64_t n_new, gac_error *err)
{
    gac_rows *x = m->s.rows;
    const gac_embed_call embed = { .table = m->s.embedding, .out = x };
    gac_status status = b->ops->embed(b->state, &embed, err);
    for (int i = 0; i < LAYERS && status == GAC_OK; i++) {
        gac_attention_call attention = { .cache = m->cache[i],
                                         .qkv = m->heads,
                                         .out = m->attention,
                                         .n_q_heads = HEADS,
                                         .n_kv_heads = KV_HEADS,
                                         .qk_size = HEAD,
                                         .qk_stored = m->stored,
                                         .v_size = HEAD,
                                         .v_stored = m->stored,
                                         .q_norm = NULL,
                                         .k_norm = NULL,
                                         .eps = EPS,
                                         .cosines = m->cosines,
                                         .sines = m->sines,
                                         .scale = 1 / sqrt(HEAD) };
        gac_linear_call calls[4] = {
            { .matrix = m->qkv[i],
              .x = x,
              .norm = m->norm,
              .eps = EPS,
              .out = m->heads,
              .mode = GAC_LINEAR_SET },
            { .matrix = m->o[i],
              .x = m->attention,
              .norm = NULL,
              .eps = 0,
              .out = x,
              .mode = GAC_LINEAR_ADD },
            { .matrix = m->gate_up[i],
              .x = x,
              .norm = m->norm,
              .eps = EPS,
              .out = m->mlp,
              .mode = GAC_LINEAR_GATED },
            { .matrix = m->down[i],
              .x = m->mlp,
              .norm = NULL,
              .eps = 0,
              .out = x,
              .mode = GAC_LINEAR_ADD },
        };
        for (int j = 0; j < 4 && status == GAC_OK; j++) {
            status = b->ops->linear(b->state, &calls[j], err);
            if (j == 0 && status == GAC_OK)
                status = b->ops->attend(b->state, &attention, err);
        }
    }
    gac_linear_call last = {
        .matrix = m->head, .x = x, .norm = m->norm, .eps = EPS, .out = NULL, .mode = GAC_LINEAR_SET
    };
    if (status == GAC_OK)
        status = b->ops->logits(b->state, &last, n_new - 1, n_new, m->batch, err);
    return status;
}

/* Copies token i of every sequence to ids. */
static void pick(const model *m, int64_t n, int64_t i, int32_t *ids)
{
    for (int64_t s = 0; s < m->batch; s++)
        ids[s] = m->s.ids[s * n + i];
}

static gac_status step(bench *b, model *m, int64_t n, int64_t i, float *logits, gac_error *err)
{
    int32_t ids[16];
    pick(m, n, i, ids);
    gac_status status = b->ops->begin(b->state, ids, m->batch, 1, i, err);
    if (status == GAC_OK)
        status = run_layers(b, m, 1, err);
    if (status == GAC_OK)
        status = b->ops->logits_read(b->state, logits, err);
    return status;
}

/* Runs steps 0 to n - 1 again from a recording of step 1. */
static gac_status replay_steps(bench *b, model *m, int64_t n, float *logits, gac_error *err)
{
    int32_t ids[16];
    gac_status status = step(b, m, n, 0, logits, err);
    for (int64_t i = 1; i < n && status == GAC_OK; i++) {
        pick(m, n, i, ids);
        status = b->ops->begin(b->state, ids, m->batch, 1, i, err);
        if (i == 1 && status == GAC_OK) {
            status = b->ops->record(b->state, true, err);
            if (status == GAC_OK)
                status = run_layers(b, m, 1, err);
            gac_error other = GAC_ERROR_INIT;
            gac_status ended = b->ops->record(b->state, false, &other);
            if (status == GAC_OK && ended) {
                status = ended;
                *err = other;
            }
        }
        if (status == GAC_OK)
            status = b->ops->replay(b->state, err);
    }
    if (status == GAC_OK)
        status = b->ops->logits_read(b->state, logits, err);
    return status;
}

/* Compares the losses of the current logits with their definition. */
static gac_status check_losses(bench *b, const model *m, const float *logits, const char *name,
                               gac_error *err)
{
    int32_t targets[16];
    double actual[16], expected[16];
    float rounded[16];
    for (int64_t s = 0; s < m->batch; s++) {
        double sum = 0;
        targets[s] = (int32_t)(7 * s + 3) % VOCAB;
        for (int i = 0; i < VOCAB; i++)
            sum += exp(logits[s * VOCAB + i]);
        expected[s] = log(sum) - logits[s * VOCAB + targets[s]];
    }
    gac_status status = b->ops->losses(b->state, targets, actual, err);
    for (int64_t s = 0; s < m->batch; s++)
        rounded[s] = (float)actual[s];
    if (status == GAC_OK)
        judge(name, rounded, expected, m->batch, 1e-5);
    return status;
}

static void widen(const float *from, double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

static gac_status run_model(bench *b, int64_t batch, const char *name, gac_error *err)
{
    enum { N = 21 };
    model m;
    char line[200];
    float at_once[16 * VOCAB], one_by_one[16 * VOCAB], replayed[16 * VOCAB];
    double expected[16 * VOCAB];
    int64_t n_logits = batch * VOCAB;
    gac_status status = open_model(b, &m, batch, N, err);
    if (status == GAC_OK)
        status = b->ops->begin(b->state, m.s.ids, batch, N, 0, err);
    if (status == GAC_OK)
        status = run_layers(b, &m, N, err);
    if (status == GAC_OK)
        status = b->ops->logits_read(b->state, at_once, err);
    for (int i = 0; i < N && status == GAC_OK; i++)
        status = step(b, &m, N, i, one_by_one, err);
    if (status == GAC_OK) {
        widen(at_once, expected, n_logits);
        snprintf(line, sizeof line, "%s %d tokens one by one", name, N);
        judge(line, one_by_one, expected, n_logits, 3 * tolerance_of(b->options.dtype));
        snprintf(line, sizeof line, "%s losses", name);
        status = check_losses(b, &m, one_by_one, line, err);
    }
    if (status == GAC_OK)
        status = replay_steps(b, &m, N, replayed, err);
    if (status == GAC_OK) {
        widen(one_by_one, expected, n_logits);
        snprintf(line, sizeof line, "%s replayed", name);
        judge(line, replayed, expected, n_logits, 0);
    }
    close_model(b, &m);
    return status;
}

void check_model(bench *b)
{
    static const int64_t batches[] = { 1, 3, 13 };
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        gac_error err = GAC_ERROR_INIT;
        char name[120];
        snprintf(name, sizeof name, "model b=%lld %s%s", (long long)batches[i],
                 gac_dtype_name(b->options.dtype), b->options.padding ? "" : " no pad");
        failed(run_model(b, batches[i], name, &err), name, &err);
    }
}

/* A weight with one bad number at (3, 5) must be refused with that position. */
static void check_refusal(bench *b, float bad, const char *words)
{
    gac_error err = GAC_ERROR_INIT;
    gac_matrix *matrix = NULL;
    tensor t = make_tensor(GAC_DTYPE_F32, 7, 24, 1);
    ((float *)t.data)[3 * 24 + 5] = bad;
    ((float *)t.data)[6 * 24 + 1] = bad;
    gac_linear_part part = { .weight = t.host };
    gac_linear_module m = { .n_parts = 1, .parts = &part, .out = { 1, 7, 7 } };
    gac_status status =
        b->ops->matrix_create(b->state, (gac_axis){ 1, 24, 24 }, &m, 1, &matrix, &err);
    bool ok = status == GAC_BAD_INPUT && strstr(err.text, "test.weight") &&
              strstr(err.text, "row 3, column 5") && strstr(err.text, words);
    n_ok += ok;
    n_failed += !ok;
    printf("%s refused: %s\n", ok ? "ok" : "FAIL", status ? err.text : "not at all");
    b->ops->matrix_free(b->state, status ? NULL : matrix);
    free_tensor(&t);
}

void check_refusals(bench *b)
{
    check_refusal(b, NAN, "not finite");
    check_refusal(b, -INFINITY, "not finite");
    check_refusal(b, b->options.dtype == GAC_DTYPE_F16 ? 7e4f : 3.4e38f, "too large for");
}

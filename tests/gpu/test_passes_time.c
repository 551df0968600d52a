/* Times the operators of a Llama-3-8B layer and whole layers, dense and factorised with
 * 85 % of the parameters: one new token for each of m sequences, and 4096 tokens at once.
 * The weights of several layers are used in turn, so that none stays in the L2 cache.
 * Times are host clock over many replays of a recording. */
#include "test_passes.h"

#include "base/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD = 128,
    WIDTH = 14336,
    VOCAB_8B = 128256,
    LAYERS = 4,
    CONTEXT = 1024,
    MAX_BATCH = 16,
    PREFILL = 4096
};

typedef struct layers {
    gac_matrix *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *head;
    gac_cache *cache[LAYERS];
    gac_vector *norm, *cosines, *sines;
    gac_rows *x, *heads, *attention, *mlp;
    int64_t n_bytes[4]; /* bytes of qkv, o, gate_up and down of one layer */
    const uint16_t *numbers;
} layers;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Creates the numbers for all weights: about 0.02, as in a model. */
static uint16_t *make_numbers(int64_t n, gac_dtype dtype)
{
    enum { PERIOD = 65521 }; /* a prime, so that rows of weights differ */
    uint16_t *out = need(malloc((size_t)n * sizeof *out));
    for (int64_t i = 0; i < n && i < PERIOD; i++) {
        float x = (float)(0.02 * (random_number() + random_number()));
        out[i] = dtype == GAC_DTYPE_F16 ? gac_f16_from_float(x) : gac_bf16_from_float(x);
    }
    for (int64_t i = PERIOD; i < n; i++)
        out[i] = out[i - PERIOD];
    return out;
}

/* Returns one module: dense, or a pair of factors if share is below 1. */
static gac_linear_module module_of(bench *b, const layers *l, int64_t n, int64_t k, double share,
                                   gac_linear_part *part)
{
    int64_t rank = (int64_t)(share * (double)n * (double)k / (double)(n + k));
    gac_linear_module m = { .n_parts = 1, .parts = part, .out = { 1, n, n } };
    memset(part, 0, sizeof *part);
    part->weight = (gac_host_tensor){ l->numbers, b->options.dtype, n, share < 1 ? rank : k, "w" };
    if (share < 1)
        m.first = (gac_host_tensor){ l->numbers, b->options.dtype, rank, k, "w" };
    return m;
}

static gac_status create_matrix(bench *b, layers *l, int64_t k, const int64_t *ns, int n,
                                double share, gac_matrix **out, int64_t *n_bytes, gac_error *err)
{
    gac_linear_part parts[MAX_MODULES];
    gac_linear_module modules[MAX_MODULES];
    gac_compute_memory before, after;
    for (int i = 0; i < n; i++)
        modules[i] = module_of(b, l, ns[i], k, share, &parts[i]);
    b->ops->memory(b->state, &before);
    gac_status status =
        b->ops->matrix_create(b->state, (gac_axis){ 1, k, k }, modules, n, out, err);
    b->ops->memory(b->state, &after);
    if (n_bytes)
        *n_bytes = after.weight_bytes - before.weight_bytes;
    return status;
}

static gac_status open_rows(bench *b, layers *l, gac_error *err)
{
    enum { N = PREFILL * HEAD / 2 };
    float *table = need(malloc(N * sizeof *table));
    for (int i = 0; i < N; i++)
        table[i] = 0.7f;
    gac_status status = b->ops->vector_create(b->state, table, HIDDEN, &l->norm, err);
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, table, N, &l->cosines, err);
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, table, N, &l->sines, err);
    free(table);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, HIDDEN, true, &l->x, err);
    if (status == GAC_OK)
        status =
            b->ops->rows_create(b->state, (HEADS + 2 * KV_HEADS) * HEAD, false, &l->heads, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, HEADS * HEAD, false, &l->attention, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, WIDTH, false, &l->mlp, err);
    return status;
}

static gac_status open_layers(bench *b, layers *l, double share, gac_error *err)
{
    static const int64_t qkv[3] = { HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD };
    static const int64_t home[1] = { HIDDEN }, gate_up[2] = { WIDTH, WIDTH };
    static const int64_t head[1] = { VOCAB_8B };
    gac_status status = open_rows(b, l, err);
    for (int i = 0; i < LAYERS && status == GAC_OK; i++) {
        status = create_matrix(b, l, HIDDEN, qkv, 3, share, &l->qkv[i], &l->n_bytes[0], err);
        if (status == GAC_OK)
            status =
                create_matrix(b, l, HEADS * HEAD, home, 1, share, &l->o[i], &l->n_bytes[1], err);
        if (status == GAC_OK)
            status =
                create_matrix(b, l, HIDDEN, gate_up, 2, share, &l->gate_up[i], &l->n_bytes[2], err);
        if (status == GAC_OK)
            status = create_matrix(b, l, WIDTH, home, 1, share, &l->down[i], &l->n_bytes[3], err);
        if (status == GAC_OK)
            status = b->ops->cache_create(b->state, MAX_BATCH, PREFILL, KV_HEADS, HEAD, HEAD,
                                          &l->cache[i], err);
    }
    if (status == GAC_OK)
        status = create_matrix(b, l, HIDDEN, head, 1, 1, &l->head, NULL, err);
    return status;
}

static void close_layers(bench *b, layers *l)
{
    for (int i = 0; i < LAYERS; i++) {
        b->ops->matrix_free(b->state, l->qkv[i]);
        b->ops->matrix_free(b->state, l->o[i]);
        b->ops->matrix_free(b->state, l->gate_up[i]);
        b->ops->matrix_free(b->state, l->down[i]);
        b->ops->cache_free(b->state, l->cache[i]);
    }
    b->ops->matrix_free(b->state, l->head);
    b->ops->vector_free(b->state, l->norm);
    b->ops->vector_free(b->state, l->cosines);
    b->ops->vector_free(b->state, l->sines);
    b->ops->rows_free(b->state, l->x);
    b->ops->rows_free(b->state, l->heads);
    b->ops->rows_free(b->state, l->attention);
    b->ops->rows_free(b->state, l->mlp);
}

/* Bit mask of the operators in a pass. */
enum { QKV = 1, ATTEND = 2, O = 4, GATE_UP = 8, DOWN = 16, LAYER = 31, LOGITS = 32 };

static gac_status run_pass(bench *b, layers *l, int ops, gac_error *err)
{
    const gac_embed_call embed = { .table = l->head, .out = l->x };
    gac_status status = b->ops->embed(b->state, &embed, err);
    for (int i = 0; i < LAYERS && status == GAC_OK; i++) {
        gac_attention_call attention = { .cache = l->cache[i],
                                         .qkv = l->heads,
                                         .out = l->attention,
                                         .n_q_heads = HEADS,
                                         .n_kv_heads = KV_HEADS,
                                         .qk_size = HEAD,
                                         .qk_stored = HEAD,
                                         .v_size = HEAD,
                                         .v_stored = HEAD,
                                         .q_norm = NULL,
                                         .k_norm = NULL,
                                         .eps = EPS,
                                         .cosines = l->cosines,
                                         .sines = l->sines,
                                         .scale = 1 / sqrt(HEAD) };
        gac_linear_call calls[5] = {
            { .matrix = l->qkv[i],
              .x = l->x,
              .norm = l->norm,
              .eps = EPS,
              .out = l->heads,
              .mode = GAC_LINEAR_SET },
            { 0 },
            { .matrix = l->o[i],
              .x = l->attention,
              .norm = NULL,
              .eps = 0,
              .out = l->x,
              .mode = GAC_LINEAR_ADD },
            { .matrix = l->gate_up[i],
              .x = l->x,
              .norm = l->norm,
              .eps = EPS,
              .out = l->mlp,
              .mode = GAC_LINEAR_GATED },
            { .matrix = l->down[i],
              .x = l->mlp,
              .norm = NULL,
              .eps = 0,
              .out = l->x,
              .mode = GAC_LINEAR_ADD },
        };
        for (int j = 0; j < 5 && status == GAC_OK; j++) {
            if (!(ops & 1 << j))
                continue;
            status = j == 1 ? b->ops->attend(b->state, &attention, err)
                            : b->ops->linear(b->state, &calls[j], err);
        }
    }
    gac_linear_call last = { .matrix = l->head,
                             .x = l->x,
                             .norm = l->norm,
                             .eps = EPS,
                             .out = NULL,
                             .mode = GAC_LINEAR_SET };
    if (status == GAC_OK && ops & LOGITS)
        status = b->ops->logits(b->state, &last, 0, 1, 1, err);
    return status;
}

/* Times one pass. A pass with one new token is replayed from a recording. */
static gac_status time_pass(bench *b, layers *l, int ops, int64_t batch, int64_t n_new, int n_runs,
                            double *time_us, gac_error *err)
{
    static int32_t ids[PREFILL];
    bool recorded = n_new == 1;
    gac_status status = b->ops->begin(b->state, ids, batch, n_new, recorded ? CONTEXT - 1 : 0, err);
    if (status == GAC_OK)
        status = run_pass(b, l, ops, err);
    if (recorded && status == GAC_OK) {
        status = b->ops->record(b->state, true, err);
        if (status == GAC_OK)
            status = run_pass(b, l, ops, err);
        gac_status ended = b->ops->record(b->state, false, status ? NULL : err);
        status = status ? status : ended;
    }
    double best = INFINITY;
    for (int sample = 0; sample < 4 && status == GAC_OK; sample++) {
        status = b->ops->finish(b->state, err);
        double start = now_us();
        for (int i = 0; i < n_runs && status == GAC_OK; i++)
            status = recorded ? b->ops->replay(b->state, err) : run_pass(b, l, ops, err);
        if (status == GAC_OK)
            status = b->ops->finish(b->state, err);
        double took = (now_us() - start) / n_runs;
        if (sample > 0 && took < best) /* the first sample warms up */
            best = took;
    }
    *time_us = best;
    return status;
}

/* Times the operators of one batch, a layer and the model. */
static gac_status time_batch(bench *b, layers *l, int64_t m, const char *name, gac_error *err)
{
    static const struct {
        const char *name;
        int ops, bytes;
    } parts[] = { { "qkv", QKV, 0 },
                  { "attention", ATTEND, -1 },
                  { "o", O, 1 },
                  { "gate_up", GATE_UP, 2 },
                  { "down", DOWN, 3 } };
    double nothing = 0, time_us = 0;
    gac_status status = time_pass(b, l, 0, m, 1, 100, &nothing, err);
    for (int i = 0; i < 5 && status == GAC_OK; i++) {
        status = time_pass(b, l, parts[i].ops, m, 1, 50, &time_us, err);
        double us = (time_us - nothing) / LAYERS;
        double bytes = parts[i].bytes < 0 ? (double)m * CONTEXT * KV_HEADS * HEAD * 4
                                          : (double)l->n_bytes[parts[i].bytes];
        printf("time decode m=%lld %s %s %.2f us %.0f GB/s\n", (long long)m, name, parts[i].name,
               us, bytes / us / 1e3);
    }
    if (status == GAC_OK)
        status = time_pass(b, l, LAYER, m, 1, 50, &time_us, err);
    double layer = (time_us - nothing) / LAYERS, bytes = 0;
    for (int i = 0; i < 4; i++)
        bytes += (double)l->n_bytes[i];
    printf("time decode m=%lld %s layer %.2f us %.0f GB/s\n", (long long)m, name, layer,
           bytes / layer / 1e3);
    if (status == GAC_OK)
        status = time_pass(b, l, LOGITS, m, 1, 20, &time_us, err);
    double head = time_us - nothing;
    printf("time decode m=%lld %s head (1 row) %.2f us %.0f GB/s\n", (long long)m, name, head,
           2.0 * VOCAB_8B * HIDDEN / head / 1e3);
    printf("time decode m=%lld %s model of 32 layers %.3f ms\n", (long long)m, name,
           (32 * layer + head + nothing) / 1e3);
    fflush(stdout);
    return status;
}

static gac_status time_prefill(bench *b, layers *l, const char *name, gac_error *err)
{
    static const struct {
        const char *name;
        int ops;
    } parts[] = { { "qkv", QKV },         { "attention", ATTEND }, { "o", O },
                  { "gate_up", GATE_UP }, { "down", DOWN },        { "layer", LAYER } };
    double nothing = 0, time_us = 0;
    gac_status status = time_pass(b, l, 0, 1, PREFILL, 10, &nothing, err);
    for (int i = 0; i < 6 && status == GAC_OK; i++) {
        status = time_pass(b, l, parts[i].ops, 1, PREFILL, 5, &time_us, err);
        printf("time prefill 1x%d %s %s %.1f us\n", PREFILL, name, parts[i].name,
               (time_us - nothing) / LAYERS);
    }
    if (status == GAC_OK)
        printf("time prefill 1x%d %s model of 32 layers %.2f ms (no head)\n", PREFILL, name,
               (32 * (time_us - nothing) / LAYERS + nothing) / 1e3);
    fflush(stdout);
    return status;
}

/* What run_timing was asked to time. */
typedef struct timing_wish {
    bool decode, prefill;
    int64_t batches[8];
    int n_batches;
} timing_wish;

static timing_wish read_wish(int n, char **words)
{
    timing_wish w = { n < 1, n < 1, { 1, 2, 4, 8, 16 }, 5 };
    bool given = false;
    for (int i = 0; i < n; i++) {
        w.decode |= strcmp(words[i], "decode") == 0;
        w.prefill |= strcmp(words[i], "prefill") == 0;
        int64_t m = strtoll(words[i], NULL, 10);
        if (m < 1 || m > MAX_BATCH || (given && w.n_batches == 8))
            continue;
        w.n_batches = given ? w.n_batches : 0;
        w.batches[w.n_batches++] = m;
        given = true;
    }
    return w;
}

int run_timing(bench *b, int n_words, char **words)
{
    timing_wish wish = read_wish(n_words, words);
    static const double shares[] = { 1, 0.85 };
    gac_error err = GAC_ERROR_INIT;
    gac_status status = GAC_OK;
    uint16_t *numbers = make_numbers((int64_t)VOCAB_8B * HIDDEN, GAC_DTYPE_BF16);
    for (int i = 0; i < 2 && status == GAC_OK; i++) {
        layers l;
        const char *name = i ? "pair" : "dense";
        memset(&l, 0, sizeof l);
        l.numbers = numbers;
        status = bench_open(b, GAC_DTYPE_BF16, false, PREFILL, &err);
        if (status)
            break;
        double start = now_us();
        status = open_layers(b, &l, shares[i], &err);
        gac_compute_memory memory = { 0 };
        b->ops->memory(b->state, &memory);
        printf("time load %s %.2f GB in %.2f s\n", name, (double)memory.weight_bytes / 1e9,
               (now_us() - start) / 1e6);
        for (int j = 0; j < wish.n_batches && wish.decode && status == GAC_OK; j++)
            status = time_batch(b, &l, wish.batches[j], name, &err);
        if (status == GAC_OK && wish.prefill)
            status = time_prefill(b, &l, name, &err);
        close_layers(b, &l);
        bench_close(b);
    }
    free(numbers);
    if (status)
        printf("FAIL time: %s\n", err.text);
    return status != GAC_OK;
}

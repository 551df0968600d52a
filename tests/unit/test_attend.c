/* Compares attention on the CPU with plain loops, and with itself under other passes,
 * threads, vector sizes and paddings. */
#include "compute_lab.h"

typedef struct attend_case {
    int64_t batch, n_tokens, n_q_heads, n_kv_heads, qk_size, qk_stored, v_size, v_stored;
    float *q, *k, *v;       /* (batch, n_tokens, heads, size) */
    float *q_norm, *k_norm; /* (qk_size), or NULL */
    float *cosines, *sines; /* (n_tokens, qk_size / 2), or NULL */
    double scale;
} attend_case;

static attend_case random_case(int64_t n_tokens, int64_t n_kv_heads, int64_t group, bool rotated,
                               bool normed)
{
    attend_case c = { .batch = lab_int(1, 3),
                      .n_tokens = n_tokens,
                      .n_q_heads = group * n_kv_heads,
                      .n_kv_heads = n_kv_heads,
                      .qk_size = lab_int(1, 40),
                      .v_size = lab_int(1, 40) };
    int64_t n_rows = c.batch * n_tokens;
    c.qk_stored = c.qk_size + lab_int(0, 3);
    c.v_stored = c.v_size + lab_int(0, 3);
    c.scale = 1 / sqrt((double)c.qk_size);
    c.q = lab_floats(n_rows * c.n_q_heads * c.qk_size);
    c.k = lab_floats(n_rows * n_kv_heads * c.qk_size);
    c.v = lab_floats(n_rows * n_kv_heads * c.v_size);
    c.q_norm = normed ? lab_floats(c.qk_size) : NULL;
    c.k_norm = normed ? lab_floats(c.qk_size) : NULL;
    if (rotated) {
        int64_t n = n_tokens * (c.qk_size / 2);
        c.cosines = lab_floats(n + 1);
        c.sines = lab_floats(n + 1);
        for (int64_t i = 0; i < n; i++) {
            double angle = 3 * (double)c.cosines[i];
            c.cosines[i] = (float)cos(angle);
            c.sines[i] = (float)sin(angle);
        }
    }
    return c;
}

/* Copies n heads of size numbers into slices of stored numbers. */
static void put_heads(const float *from, int64_t n, int64_t size, int64_t stored, float *to)
{
    for (int64_t h = 0; h < n; h++)
        memcpy(to + h * stored, from + h * size, (size_t)size * sizeof *to);
}

/* Returns the qkv rows of tokens first to first + n of every sequence. */
static float *make_qkv(const attend_case *c, int64_t first, int64_t n, int64_t *width)
{
    *width = (c->n_q_heads + c->n_kv_heads) * c->qk_stored + c->n_kv_heads * c->v_stored;
    float *rows = lab_alloc(c->batch * n * *width, sizeof *rows);
    for (int64_t i = 0; i < c->batch * n; i++) {
        int64_t row = i / n * c->n_tokens + first + i % n;
        float *to = rows + i * *width, *to_k = to + c->n_q_heads * c->qk_stored;
        put_heads(c->q + row * c->n_q_heads * c->qk_size, c->n_q_heads, c->qk_size, c->qk_stored,
                  to);
        put_heads(c->k + row * c->n_kv_heads * c->qk_size, c->n_kv_heads, c->qk_size, c->qk_stored,
                  to_k);
        put_heads(c->v + row * c->n_kv_heads * c->v_size, c->n_kv_heads, c->v_size, c->v_stored,
                  to_k + c->n_kv_heads * c->qk_stored);
    }
    return rows;
}

/* Runs one pass of n tokens after first. out has room for all tokens. */
static void run_pass(lab *l, const attend_case *c, gac_attention_call *call, int64_t first,
                     int64_t n, float *out)
{
    const gac_compute_ops *ops = l->compute.ops;
    int64_t width, out_width = c->n_q_heads * c->v_stored;
    float *data = make_qkv(c, first, n, &width);
    float *result = lab_alloc(c->batch * n * out_width, sizeof *result);
    gac_axis whole = { 1, width, width };
    gac_rows *qkv = lab_rows(l, whole, data, c->batch, n, first), *rows = NULL;
    LAB_OK(l, ops->rows_create(l->compute.state, out_width, false, &rows, &l->err));
    call->qkv = qkv;
    call->out = rows;
    LAB_OK(l, ops->attend(l->compute.state, call, &l->err));
    LAB_OK(l, ops->rows_read(l->compute.state, rows, 0, c->batch * n, result, &l->err));
    for (int64_t i = 0; i < c->batch * n; i++) {
        for (int64_t h = 0; h < c->n_q_heads; h++) {
            const float *from = result + i * out_width + h * c->v_stored;
            int64_t row = i / n * c->n_tokens + first + i % n;
            memcpy(out + (row * c->n_q_heads + h) * c->v_size, from,
                   (size_t)c->v_size * sizeof *out);
            for (int64_t d = c->v_size; d < c->v_stored; d++)
                assert_true(from[d] == 0);
        }
    }
    ops->rows_free(l->compute.state, qkv);
    ops->rows_free(l->compute.state, rows);
}

/* Runs all tokens in passes of at most n_new. Returns (batch, n_tokens, n_q_heads,
 * v_size). */
static float *run_cached(lab *l, const attend_case *c, int64_t n_new, gac_cache *cache)
{
    const gac_compute_ops *ops = l->compute.ops;
    void *state = l->compute.state;
    int64_t n_angles = c->n_tokens * (c->qk_size / 2);
    float *out = lab_alloc(c->batch * c->n_tokens * c->n_q_heads * c->v_size, sizeof *out);
    gac_vector *vectors[4] = { c->q_norm ? lab_vector(l, c->q_norm, c->qk_size) : NULL,
                               c->k_norm ? lab_vector(l, c->k_norm, c->qk_size) : NULL,
                               c->cosines ? lab_vector(l, c->cosines, n_angles) : NULL,
                               c->sines ? lab_vector(l, c->sines, n_angles) : NULL };
    gac_attention_call call = { .cache = cache,
                                .n_q_heads = c->n_q_heads,
                                .n_kv_heads = c->n_kv_heads,
                                .qk_size = c->qk_size,
                                .qk_stored = c->qk_stored,
                                .v_size = c->v_size,
                                .v_stored = c->v_stored,
                                .q_norm = vectors[0],
                                .k_norm = vectors[1],
                                .eps = 1e-6,
                                .cosines = vectors[2],
                                .sines = vectors[3],
                                .scale = c->scale };
    for (int64_t first = 0; first < c->n_tokens; first += n_new)
        run_pass(l, c, &call, first, c->n_tokens - first < n_new ? c->n_tokens - first : n_new,
                 out);
    for (int i = 0; i < 4; i++)
        ops->vector_free(state, vectors[i]);
    return out;
}

static gac_cache *new_cache(lab *l, const attend_case *c, int64_t capacity)
{
    gac_cache *cache = NULL;
    LAB_OK(l, l->compute.ops->cache_create(l->compute.state, c->batch, capacity, c->n_kv_heads,
                                           c->qk_stored, c->v_stored, &cache, &l->err));
    return cache;
}

static float *run_case(lab *l, const attend_case *c, int64_t n_new)
{
    gac_cache *cache = new_cache(l, c, c->n_tokens + 3);
    float *out = run_cached(l, c, n_new, cache);
    l->compute.ops->cache_free(l->compute.state, cache);
    return out;
}

/* Applies the norm and the rotary embedding to one head, with plain loops. */
static void plain_head(const attend_case *c, const float *x, const float *norm, int64_t position,
                       double *out)
{
    int64_t half = c->qk_size / 2;
    double sum = 0;
    for (int64_t i = 0; i < c->qk_size; i++)
        sum += (double)x[i] * (double)x[i];
    double factor = 1 / sqrt(sum / (double)c->qk_size + 1e-6);
    for (int64_t i = 0; i < c->qk_size; i++)
        out[i] = (double)x[i] * (norm ? factor * (double)norm[i] : 1);
    for (int64_t i = 0; i < half && c->cosines; i++) {
        double a = out[i], b = out[i + half];
        double cosine = (double)c->cosines[position * half + i];
        double sine = (double)c->sines[position * half + i];
        out[i] = a * cosine - b * sine;
        out[i + half] = b * cosine + a * sine;
    }
}

static float *plain_case(const attend_case *c)
{
    float *out = lab_alloc(c->batch * c->n_tokens * c->n_q_heads * c->v_size, sizeof *out);
    double *q = lab_alloc(c->qk_size, sizeof *q), *k = lab_alloc(c->qk_size, sizeof *k);
    double *sums = lab_alloc(c->v_size, sizeof *sums);
    for (int64_t i = 0; i < c->batch * c->n_tokens * c->n_q_heads; i++) {
        int64_t row = i / c->n_q_heads, token = row % c->n_tokens, start = row - token;
        int64_t kv_head = i % c->n_q_heads / (c->n_q_heads / c->n_kv_heads);
        double total = 0;
        plain_head(c, c->q + i * c->qk_size, c->q_norm, token, q);
        memset(sums, 0, (size_t)c->v_size * sizeof *sums);
        for (int64_t j = 0; j <= token; j++) {
            int64_t key = (start + j) * c->n_kv_heads + kv_head;
            double score = 0;
            plain_head(c, c->k + key * c->qk_size, c->k_norm, j, k);
            for (int64_t d = 0; d < c->qk_size; d++)
                score += q[d] * k[d];
            double weight = exp(c->scale * score);
            total += weight;
            for (int64_t d = 0; d < c->v_size; d++)
                sums[d] += weight * (double)c->v[key * c->v_size + d];
        }
        for (int64_t d = 0; d < c->v_size; d++)
            out[i * c->v_size + d] = (float)(sums[d] / total);
    }
    return out;
}

static int64_t n_outputs(const attend_case *c)
{
    return c->batch * c->n_tokens * c->n_q_heads * c->v_size;
}

static void attention_is_what_it_says(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        attend_case c = random_case(i < 14 ? lab_int(1, 40) : 150, lab_int(1, 3), lab_int(1, 4),
                                    i % 2, i / 2 % 2);
        lab exact = lab_open("reference", (int)lab_int(1, 3), c.batch * c.n_tokens);
        lab fast = lab_open("cpu", (int)lab_int(1, 3), c.batch * c.n_tokens);
        float *expected = plain_case(&c);
        near_by(run_case(&exact, &c, c.n_tokens), expected, n_outputs(&c), 2e-6, "reference");
        near_by(run_case(&fast, &c, c.n_tokens), expected, n_outputs(&c), 1e-5, "cpu");
        near_by(run_case(&fast, &c, lab_int(1, 7)), expected, n_outputs(&c), 1e-5, "cpu, passes");
        gac_compute_close(&exact.compute);
        gac_compute_close(&fast.compute);
    }
}

/* One pass or many, any threads and any vector size give the same bits. */
static void reference_has_one_answer(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        attend_case c = random_case(lab_int(1, 60), lab_int(1, 3), lab_int(1, 5), i % 2, i / 2 % 2);
        lab one = lab_open("reference", 1, c.batch * c.n_tokens);
        lab more = lab_open("reference", (int)lab_int(2, 4), c.batch * c.n_tokens);
        float *expected = run_case(&one, &c, c.n_tokens);
        same_bits(run_case(&one, &c, 1), expected, n_outputs(&c), "one by one");
        same_bits(run_case(&more, &c, lab_int(2, 9)), expected, n_outputs(&c), "threads");
        for (int k = 0; gac_cpu_kernels_choice(k); k++) {
            ((gac_cpu_compute *)one.compute.state)->kernels = gac_cpu_kernels_choice(k);
            same_bits(run_case(&one, &c, c.n_tokens), expected, n_outputs(&c),
                      gac_cpu_kernels_choice(k)->name);
        }
        gac_compute_close(&one.compute);
        gac_compute_close(&more.compute);
    }
}

/* One cache holds several sequences, then all of their tokens as one sequence, in turn. */
static void a_cache_may_change_its_shape(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        attend_case c = random_case(lab_int(1, 20), lab_int(1, 3), lab_int(1, 4), false, i % 2);
        attend_case one = c;
        one.batch = 1;
        one.n_tokens = c.batch * c.n_tokens;
        lab l = lab_open(i < 3 ? "reference" : "cpu", 2, one.n_tokens);
        const float *expected[] = { run_case(&l, &c, 3), run_case(&l, &one, 3) };
        gac_cache *cache = new_cache(&l, &c, c.n_tokens);
        for (int turn = 0; turn < 4; turn++) {
            const attend_case *now = turn % 2 ? &one : &c;
            LAB_OK(&l, l.compute.ops->cache_shape(l.compute.state, cache, now->batch, now->n_tokens,
                                                  &l.err));
            same_bits(run_cached(&l, now, 3, cache), expected[turn % 2], n_outputs(now), "turns");
        }
        l.compute.ops->cache_free(l.compute.state, cache);
        gac_compute_close(&l.compute);
    }
}

/* Pads heads of size numbers with n_zeros zeros at position at. */
static float *pad_heads(const float *from, int64_t n_heads, int64_t size, int64_t at,
                        int64_t n_zeros)
{
    int64_t wide = size + n_zeros;
    float *to = lab_alloc(n_heads * wide, sizeof *to);
    for (int64_t i = 0; i < n_heads * size; i++) {
        int64_t d = i % size;
        to[i / size * wide + (d < at ? d : d + n_zeros)] = from[i];
    }
    return to;
}

static void zeros_in_heads_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        attend_case c = random_case(lab_int(1, 30), lab_int(1, 3), lab_int(1, 3), i % 2, false);
        int64_t n_rows = c.batch * c.n_tokens, n = lab_int(1, 9), half = c.qk_size / 2;
        lab l = lab_open("reference", 2, n_rows);
        float *expected = run_case(&l, &c, c.n_tokens);
        attend_case wide = c;
        wide.v = pad_heads(c.v, n_rows * c.n_kv_heads, c.v_size, c.v_size, n);
        wide.v_size = wide.v_stored = c.v_size + n;
        /* q and k are padded after each half, so that rotary pairs stay pairs. An odd
         * size has no halves. */
        if (c.qk_size % 2 == 0) {
            wide.q = pad_heads(c.q, n_rows * c.n_q_heads * 2, half, half, n);
            wide.k = pad_heads(c.k, n_rows * c.n_kv_heads * 2, half, half, n);
            wide.qk_size = wide.qk_stored = c.qk_size + 2 * n;
            if (c.cosines) {
                wide.cosines = pad_heads(c.cosines, c.n_tokens, half, half, n);
                wide.sines = pad_heads(c.sines, c.n_tokens, half, half, n);
            }
        }
        float *padded = run_case(&l, &wide, c.n_tokens);
        for (int64_t h = 0; h < n_rows * c.n_q_heads; h++) {
            same_bits(padded + h * wide.v_size, expected + h * c.v_size, c.v_size, "heads");
            for (int64_t d = c.v_size; d < wide.v_size; d++)
                assert_true(padded[h * wide.v_size + d] == 0);
        }
        gac_compute_close(&l.compute);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    lab l = lab_open("cpu", 1, 8);
    const gac_compute_ops *ops = l.compute.ops;
    void *inner = l.compute.state;
    gac_cache *cache = NULL;
    gac_vector *angles = lab_vector(&l, (float[4]){ 1, 1, 1, 1 }, 4);
    int32_t ids[8] = { 0 };
    gac_rows *rows = NULL;
    LAB_OK(&l, ops->rows_create(inner, 12, false, &rows, &l.err));
    LAB_OK(&l, ops->cache_create(inner, 1, 5, 1, 4, 4, &cache, &l.err));
    gac_attention_call call = { .cache = cache,
                                .qkv = rows,
                                .out = rows,
                                .n_q_heads = 1,
                                .n_kv_heads = 1,
                                .qk_size = 4,
                                .qk_stored = 4,
                                .v_size = 4,
                                .v_stored = 4,
                                .cosines = angles,
                                .sines = angles,
                                .scale = 1 };
    assert_int_equal(ops->cache_shape(inner, cache, 2, 3, &l.err),
                     GAC_USAGE); /* 6 tokens in a cache for 5 */
    LAB_OK(&l, ops->begin(inner, ids, 1, 4, 2, &l.err));
    assert_int_equal(ops->attend(inner, &call, &l.err), GAC_USAGE);
    assert_string_equal(l.err.text, "1 x 6 tokens in a cache for 1 x 5");
    LAB_OK(&l, ops->begin(inner, ids, 2, 2, 0, &l.err));
    assert_int_equal(ops->attend(inner, &call, &l.err), GAC_USAGE);
    LAB_OK(&l, ops->begin(inner, ids, 1, 3, 0, &l.err));
    assert_int_equal(ops->attend(inner, &call, &l.err), GAC_USAGE);
    assert_string_equal(l.err.text, "position 2 is beyond the table of angles");
    call.qk_size = 5;
    assert_int_equal(ops->attend(inner, &call, &l.err), GAC_USAGE);
    ops->rows_free(inner, rows);
    ops->cache_free(inner, cache);
    ops->vector_free(inner, angles);
    gac_compute_close(&l.compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(attention_is_what_it_says, lab_teardown),
        cmocka_unit_test_teardown(reference_has_one_answer, lab_teardown),
        cmocka_unit_test_teardown(a_cache_may_change_its_shape, lab_teardown),
        cmocka_unit_test_teardown(zeros_in_heads_change_nothing, lab_teardown),
        cmocka_unit_test_teardown(what_does_not_fit_is_refused, lab_teardown),
    };
    lab_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

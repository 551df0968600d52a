/* Sharing parameters out over made curves: within the budget, and no worse the more sizes may be
 * chosen. */
#include "compress/compress_internal.h"

#include "base/splitmix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct shape {
    int32_t n_layers;
    int64_t hidden, n_heads, n_kv_heads, head, width;
} shape;

static double draw(uint64_t *state)
{
    return (double)(gac_splitmix64(state) >> 11) * 0x1p-53;
}

static void make_matrix(matrix_stats *m, int64_t n_out, int64_t n_in, bool ranks, uint64_t *state)
{
    const double fall = 1 + 8 * draw(state);
    *m = (matrix_stats){
        .n_out = n_out, .n_in = n_in, .n_parts = 1, .n = n_out < n_in ? n_out : n_in
    };
    m->scale = exp(4 * draw(state) - 6);
    m->n_basis = compress_break_even(m);
    m->energy = ranks ? calloc((size_t)m->n, sizeof *m->energy) : NULL;
    for (int64_t i = m->n - 1; ranks && i >= 0; i--)
        m->total += m->energy[i] = exp(-fall * (double)i / (double)m->n);
}

static void make_channels(channel_stats *s, int64_t n_groups, int64_t block, uint64_t *state)
{
    const double power = 1 + 2 * draw(state);
    *s = (channel_stats){ .n_groups = n_groups, .block = block, .scale = 3 * draw(state) };
    s->order = calloc((size_t)n_groups, sizeof *s->order);
    s->loss = calloc((size_t)n_groups + 1, sizeof *s->loss);
    for (int64_t i = 0; i <= n_groups; i++)
        s->loss[i] = pow(1 - (double)i / (double)n_groups, power);
}

static void make(compression *c, const shape *s, uint64_t seed)
{
    c->n_layers = s->n_layers;
    c->layers = calloc((size_t)s->n_layers, sizeof *c->layers);
    c->choices = calloc((size_t)s->n_layers, sizeof *c->choices);
    for (int32_t i = 0; i < s->n_layers; i++) {
        layer_stats *l = &c->layers[i];
        const int64_t q = s->n_heads * s->head, kv = s->n_kv_heads * s->head;
        make_matrix(&l->matrix[GAC_PROJECTION_Q], q, s->hidden, true, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_K], kv, s->hidden, true, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_V], kv, s->hidden, true, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_O], s->hidden, q, true, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_GATE], s->width, s->hidden, false, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_UP], s->width, s->hidden, false, &seed);
        make_matrix(&l->matrix[GAC_PROJECTION_DOWN], s->hidden, s->width, false, &seed);
        make_channels(&l->channels[CHANNELS_WIDTH], s->width, 1, &seed);
        make_channels(&l->channels[CHANNELS_HEADS], s->n_kv_heads, q / s->n_kv_heads, &seed);
    }
}

static void dispose(compression *c)
{
    for (int32_t l = 0; l < c->n_layers; l++) {
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
            free(c->layers[l].matrix[p].energy);
        for (int k = 0; k < CHANNELS_COUNT; k++) {
            free(c->layers[l].channels[k].order);
            free(c->layers[l].channels[k].loss);
        }
    }
    free(c->layers);
    free(c->choices);
}

static int64_t params(const compression *c)
{
    int64_t sum = 0;
    for (int32_t l = 0; l < c->n_layers; l++)
        sum += compress_layer_params(&c->layers[l], &c->choices[l]);
    return sum;
}

/* Shares out by one rule, and returns the loss. */
static double share(compression *c, gac_align align, int64_t multiple, double keep,
                    const int64_t before)
{
    gac_compress_options options = GAC_COMPRESS_OPTIONS_INIT;
    gac_compress_result result = { .params_before = before,
                                   .budget_params = (int64_t)(keep * (double)before) };
    gac_error error;
    options.align = align;
    options.multiple = multiple;
    c->options = &options;
    c->err = &error;
    assert_int_equal(compress_allocate(c, &result), GAC_OK);
    assert_true(params(c) <= result.budget_params);
    assert_true(result.optimal);
    return result.objective;
}

/* Any size may be chosen, multiples of 32 among them. */
static void any_size_is_no_worse(void **unused)
{
    static const shape shapes[] = { { 4, 192, 6, 2, 32, 512 },
                                    { 3, 576, 9, 3, 64, 1536 },
                                    { 2, 2048, 32, 8, 64, 8192 } };
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        compression c = { 0 };
        make(&c, &shapes[i], 7 + i);
        const int64_t before = params(&c);
        for (int keep = 3; keep <= 9; keep++) {
            const double any = share(&c, GAC_ALIGN_NONE, 0, keep / 10.0, before);
            assert_true(any <= 1.005 * share(&c, GAC_ALIGN_ROUND, 32, keep / 10.0, before));
        }
        dispose(&c);
    }
}

/* No more than chance would give: an eighth of all sizes are multiples of 8. */
static void any_size_is_seldom_aligned(void **unused)
{
    static const shape s = { 8, 2048, 32, 8, 64, 8192 };
    compression c = { 0 };
    int n = 0, n_aligned = 0;
    (void)unused;
    make(&c, &s, 3);
    const int64_t before = params(&c);
    for (int keep = 4; keep <= 9; keep++) {
        share(&c, GAC_ALIGN_NONE, 0, keep / 10.0, before);
        for (int32_t l = 0; l < c.n_layers; l++) {
            const int64_t *rank = c.choices[l].rank, width = c.choices[l].width;
            for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
                n += rank[p] > 0;
                n_aligned += rank[p] > 0 && rank[p] % 8 == 0;
            }
            n += width > 0;
            n_aligned += width > 0 && width % 8 == 0;
        }
    }
    assert_true(n > 50);
    assert_true(4 * n_aligned < n);
    dispose(&c);
}

/* Parameters of a matrix at the smallest of its shares whose loss is below limit. */
static int64_t params_below(const matrix_stats *m, double limit)
{
    for (int i = 0; i < N_SHARES; i++)
        if (m->tried[i] < limit)
            return compress_rank_params(m, compress_share_rank(m, (i + 1) / 10.0));
    return m->n_out * m->n_in;
}

/* ASVD: the largest loss that is taken is a limit below which the budget is not met. */
static void one_limit_for_all(void **unused)
{
    static const shape s = { 3, 192, 6, 2, 32, 512 };
    uint64_t state = 11;
    compression c = { 0 };
    gac_error error;
    (void)unused;
    make(&c, &s, 5);
    const int64_t before = params(&c);
    for (int32_t l = 0; l < c.n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
            for (int i = N_SHARES - 1; i >= 0; i--)
                c.layers[l].matrix[p].tried[i] =
                    (i < N_SHARES - 1 ? c.layers[l].matrix[p].tried[i + 1] : 0) + draw(&state);
    for (int keep = 2; keep <= 9; keep++) {
        gac_compress_options options = GAC_COMPRESS_OPTIONS_INIT;
        gac_compress_result result = { .params_before = before,
                                       .budget_params = before * keep / 10 };
        double limit = 0, sum = 0;
        int64_t below = 0;
        options.method = GAC_COMPRESS_ASVD;
        options.align = GAC_ALIGN_NONE;
        c.options = &options;
        c.err = &error;
        for (int32_t l = 0; l < c.n_layers; l++) /* MLPs have no ranks in the other tests */
            for (int p = GAC_PROJECTION_GATE; p < GAC_PROJECTION_COUNT; p++)
                c.layers[l].matrix[p].energy = c.layers[l].matrix[0].energy;
        assert_int_equal(compress_allocate(&c, &result), GAC_OK);
        assert_true(params(&c) <= result.budget_params);
        for (int32_t l = 0; l < c.n_layers; l++)
            for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
                limit = fmax(limit, c.choices[l].loss[p]);
                sum += c.choices[l].loss[p];
            }
        for (int32_t l = 0; l < c.n_layers; l++)
            for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
                below += params_below(&c.layers[l].matrix[p], limit);
        assert_true(below > result.budget_params);
        assert_true(fabs(sum - result.objective) < 1e-9);
    }
    for (int32_t l = 0; l < c.n_layers; l++)
        for (int p = GAC_PROJECTION_GATE; p < GAC_PROJECTION_COUNT; p++)
            c.layers[l].matrix[p].energy = NULL;
    dispose(&c);
}

/* The cheapest choice of every block is one of its choices, however many there are. */
static void the_least_can_be_chosen(void **unused)
{
    static const shape s = { 2, 2048, 32, 8, 64, 8192 };
    compression c = { 0 };
    (void)unused;
    make(&c, &s, 3);
    const int64_t before = params(&c);
    for (int align = GAC_ALIGN_NONE; align <= GAC_ALIGN_ROUND; align++) {
        compression cheapest = { 0 };
        make(&cheapest, &s, 3);
        for (int32_t l = 0; l < s.n_layers; l++) { /* nothing is lost: the cheapest is the best */
            for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
                cheapest.layers[l].matrix[p].scale = 0;
            for (int k = 0; k < CHANNELS_COUNT; k++)
                cheapest.layers[l].channels[k].scale = 0;
        }
        share(&cheapest, (gac_align)align, 32, 1, before);
        const int64_t least = params(&cheapest);
        share(&c, (gac_align)align, 32, (double)least / (double)before + 1e-12, before);
        assert_int_equal(params(&c), least);
        dispose(&cheapest);
    }
    dispose(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_limit_for_all),
        cmocka_unit_test(any_size_is_no_worse),
        cmocka_unit_test(any_size_is_seldom_aligned),
        cmocka_unit_test(the_least_can_be_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

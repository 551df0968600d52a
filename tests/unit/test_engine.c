/* Runs a small model on the CPU. Tests what must not change its logits and
 * losses, the limits of its context, and gradients. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/splitmix.h"
#include "scratch.h"
#include "small_llama.h"

#include <gac/engine.h>

enum { HIDDEN = 8, N_HEADS = 2, HEAD = 4, WIDTH = 12, VOCAB = 11, N_IDS = 8, SEED = 3 };

static const int32_t ids[N_IDS] = { 1, 7, 3, 10, 0, 3, 5, 2 };

/* A tensor of random numbers. Where slices are longer than a head, the rest of
 * a slice is zero. */
typedef struct made_tensor {
    const char *name;
    int64_t n_rows, n_cols;
    /* length of a slice; entries from HEAD on are zero; 0: no slices */
    int64_t row_slice, col_slice;
} made_tensor;

static bool is_pad(int64_t at, int64_t slice)
{
    return slice > 0 && at % slice >= HEAD;
}

/* Random numbers are drawn in order. Padding draws none. */
static void write_tensor(gac_writer *w, int32_t index, const made_tensor *t)
{
    uint64_t drawn = 0;
    for (int64_t i = 0; i < t->n_rows * t->n_cols; i++) {
        bool pad = is_pad(i / t->n_cols, t->row_slice) || is_pad(i % t->n_cols, t->col_slice);
        float value = pad ? 0 : (float)gac_random_normal(SEED + (uint64_t)index, drawn++);
        assert_ok(
            gac_writer_write(w, index, (uint64_t)i * sizeof value, &value, sizeof value, err));
    }
}

/* Makes a Llama of one layer with one kv head. Its value heads have v_head
 * entries, of which those from HEAD on are zero. more is added to its config. */
static small_model make_model(const char *name, int64_t v_head, const char *more)
{
    const made_tensor tensors[] = {
        { "model.embed_tokens.weight", VOCAB, HIDDEN, 0, 0 },
        { "model.layers.0.input_layernorm.weight", 1, HIDDEN, 0, 0 },
        { "model.layers.0.self_attn.q_proj.weight", N_HEADS * HEAD, HIDDEN, 0, 0 },
        { "model.layers.0.self_attn.k_proj.weight", HEAD, HIDDEN, 0, 0 },
        { "model.layers.0.self_attn.v_proj.weight", v_head, HIDDEN, v_head, 0 },
        { "model.layers.0.self_attn.o_proj.weight", HIDDEN, N_HEADS * v_head, 0, v_head },
        { "model.layers.0.post_attention_layernorm.weight", 1, HIDDEN, 0, 0 },
        { "model.layers.0.mlp.gate_proj.weight", WIDTH, HIDDEN, 0, 0 },
        { "model.layers.0.mlp.up_proj.weight", WIDTH, HIDDEN, 0, 0 },
        { "model.layers.0.mlp.down_proj.weight", HIDDEN, WIDTH, 0, 0 },
        { "model.norm.weight", 1, HIDDEN, 0, 0 },
        { "lm_head.weight", VOCAB, HIDDEN, 0, 0 },
    };
    const int32_t n = sizeof tensors / sizeof *tensors;
    gac_writer *w = NULL;
    char config[512];
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":1,\"head_dim\":%d,\"intermediate_size\":%d,"
             "\"num_hidden_layers\":1,\"vocab_size\":%d,\"max_position_embeddings\":64%s}",
             HIDDEN, N_HEADS, HEAD, WIDTH, VOCAB, more);
    assert_ok(gac_writer_create(scratch_path(name), NULL, &w, err));
    for (int32_t i = 0; i < n; i++) {
        int64_t shape[2] = { tensors[i].n_rows, tensors[i].n_cols };
        bool vector = shape[0] == 1;
        assert_ok(gac_writer_add(w, tensors[i].name, GAC_DTYPE_F32, vector ? 1 : 2,
                                 vector ? shape + 1 : shape, NULL, err));
    }
    assert_ok(gac_writer_layout(w, err));
    for (int32_t i = 0; i < n; i++)
        write_tensor(w, i, &tensors[i]);
    assert_ok(gac_writer_add_file(w, "config.json", config, strlen(config), err));
    assert_ok(gac_writer_finish(w, err));
    return small_open(name);
}

static gac_engine *open_engine(const small_model *m, int64_t max_new)
{
    gac_engine_options options = GAC_ENGINE_OPTIONS_INIT;
    gac_engine *engine = NULL;
    options.device = "reference";
    options.max_new = max_new;
    assert_ok(gac_engine_open(m->model, &options, &engine, err));
    return engine;
}

/* The softmax scale depends on the size of q and k. Zeros behind the values
 * change nothing. */
static void values_have_sizes_of_their_own(void **state)
{
    (void)state;
    float logits[2][VOCAB];
    for (int i = 0; i < 2; i++) {
        small_model m = make_model(i ? "wide" : "plain", i ? HEAD + 2 : HEAD, "");
        gac_engine *engine = open_engine(&m, 0);
        assert_ok(gac_engine_forward(engine, ids, 1, N_IDS, 0, logits[i], err));
        gac_engine_close(engine);
        small_close(&m);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* A text gives the same logits in one pass and in several. */
static void passes_remember_the_past(void **state)
{
    (void)state;
    double losses[3][N_IDS - 1];
    static const int64_t most[] = { 0, 3, 1 };
    small_model m = make_model("passes", HEAD, "");
    for (int i = 0; i < 3; i++) {
        gac_engine *engine = open_engine(&m, most[i]);
        assert_ok(gac_engine_losses(engine, ids, N_IDS, losses[i], err));
        gac_engine_close(engine);
        assert_memory_equal(losses[i], losses[0], sizeof losses[0]);
    }
    small_close(&m);
}

/* The engine supports only the short factors of longrope. The context ends
 * where the long ones begin, unless both are equal. */
static void longrope_ends_with_its_short_factors(void **state)
{
    (void)state;
    static const struct {
        const char *name, *factors;
        int64_t context;
    } cases[] = { { "unlike", "2.0", 16 }, { "equal", "1.5", 64 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[256];
        gac_engine_info info;
        snprintf(more, sizeof more,
                 ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1.0,1.5],"
                 "\"long_factor\":[1.0,%s],\"original_max_position_embeddings\":16}",
                 cases[i].factors);
        small_model m = make_model(cases[i].name, HEAD, more);
        gac_engine *engine = open_engine(&m, 0);
        gac_engine_describe(engine, &info);
        assert_int_equal(info.model_context, cases[i].context);
        gac_engine_close(engine);
        small_close(&m);
    }
}

/* The model's loss with given tokens, for a residual stream before its layer. */
static double loss_from(gac_engine *engine, const float *stream, const int64_t *tokens)
{
    float logits[N_IDS * VOCAB];
    double log_sums[N_IDS], loss = 0;
    assert_ok(gac_engine_write_residual(engine, stream, N_IDS, err));
    assert_ok(gac_engine_run_layers(engine, 0, 1, err));
    assert_ok(gac_engine_sample_logits(engine, 0, 1, N_IDS, logits, log_sums, err));
    for (int t = 0; t < N_IDS; t++)
        loss += log_sums[t] - (double)logits[t * VOCAB + tokens[t]];
    return loss;
}

/* The tokens that a seed draws from the output of the last pass. */
static void draw_tokens(gac_engine *engine, uint64_t seed, int64_t *tokens)
{
    float logits[N_IDS * VOCAB];
    double log_sums[N_IDS];
    assert_ok(gac_engine_sample_logits(engine, 0, 1, N_IDS, logits, log_sums, err));
    for (int t = 0; t < N_IDS; t++) {
        const double draw = (double)(gac_splitmix64(&seed) >> 11) * 0x1p-53;
        double sum = 0;
        for (tokens[t] = 0; tokens[t] < VOCAB - 1; tokens[t]++) {
            sum += exp((double)logits[t * VOCAB + tokens[t]] - log_sums[t]);
            if (sum > draw)
                break;
        }
    }
}

/* From the output head through a layer, against differences of the loss. */
static void gradients_are_slopes(void **state)
{
    enum { N = N_IDS * HIDDEN };
    (void)state;
    small_model m = make_model("gradients", HEAD, "");
    gac_engine_options options = GAC_ENGINE_OPTIONS_INIT;
    gac_engine *engine = NULL;
    float stream[N], gradient[N], behind[N];
    double sums_o[HIDDEN * HIDDEN], sums_down[HIDDEN * HIDDEN];
    double *sums[GAC_PROJECTION_COUNT] = {
        [GAC_PROJECTION_O] = sums_o, [GAC_PROJECTION_DOWN] = sums_down
    };
    int64_t tokens[N_IDS];
    assert_ok(gac_engine_open(m.model, &options, &engine, err));
    assert_ok(gac_engine_embed(engine, ids, N_IDS, err));
    assert_ok(gac_engine_read_residual(engine, stream, err));
    assert_ok(gac_engine_run_layers(engine, 0, 1, err));
    draw_tokens(engine, 5, tokens);
    assert_ok(gac_engine_backward_head(engine, 5, gradient, err));
    memcpy(behind, gradient, sizeof behind);
    assert_ok(gac_engine_backward_layer(engine, 0, 1, N_IDS, stream, gradient, sums, err));
    for (int i = 0; i < N; i++) {
        const float before = stream[i], step = 0x1p-7F;
        stream[i] = before + step;
        const double above = loss_from(engine, stream, tokens);
        stream[i] = before - step;
        const double slope = (above - loss_from(engine, stream, tokens)) / (2 * (double)step);
        stream[i] = before;
        if (!(fabs((double)gradient[i] - slope) <= 5e-3 * (1 + fabs(slope))))
            fail_msg("gradient %d is %g, by differences %g", i, (double)gradient[i], slope);
    }
    for (int i = 0; i < HIDDEN * HIDDEN; i++) {
        double sum = 0;
        for (int t = 0; t < N_IDS; t++)
            sum +=
                (double)behind[t * HIDDEN + i / HIDDEN] * (double)behind[t * HIDDEN + i % HIDDEN];
        assert_true(fabs(sums_down[i] - sum) <= 1e-9 * (1 + fabs(sum)));
    }
    assert_true(memcmp(sums_o, sums_down, sizeof sums_o) != 0);
    assert_int_equal(gac_engine_backward_layer(engine, 1, 1, N_IDS, stream, gradient, sums, NULL),
                     GAC_USAGE);
    gac_engine_close(engine);
    small_close(&m);
}

/* The reference device cannot compress models, so it has no gradients either. */
static void gradients_need_a_device(void **state)
{
    static float stream[N_IDS * HIDDEN], gradient[N_IDS * HIDDEN];
    double *sums[GAC_PROJECTION_COUNT] = { NULL };
    (void)state;
    small_model m = make_model("no-gradients", HEAD, "");
    gac_engine *engine = open_engine(&m, N_IDS);
    assert_ok(gac_engine_embed(engine, ids, N_IDS, err));
    assert_ok(gac_engine_run_layers(engine, 0, 1, err));
    assert_fails(gac_engine_backward_head(engine, 5, gradient, err), GAC_NO_RESOURCE,
                 "the device reference cannot compress models");
    assert_fails(gac_engine_backward_layer(engine, 0, 1, N_IDS, stream, gradient, sums, err),
                 GAC_NO_RESOURCE, "the device reference cannot compress models");
    gac_engine_close(engine);
    small_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_sizes_of_their_own),
        cmocka_unit_test(passes_remember_the_past),
        cmocka_unit_test(longrope_ends_with_its_short_factors),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(gradients_need_a_device),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}

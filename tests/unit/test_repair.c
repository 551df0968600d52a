/* Scaling of stored elements, and progress: the rest of repair is tested on
 * whole checkpoints, in tests/repair. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repair/repair_internal.h"
#include "scratch.h"
#include "small_llama.h"

/* The value of a half, from its definition. */
static double half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static bool half_is_finite(uint16_t bits)
{
    return (bits & 0x7c00) != 0x7c00;
}

static void factor_one_changes_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t half = (uint16_t)i, brain = (uint16_t)i;
        assert_true(gac_scale_elements(&half, 1, GAC_DTYPE_F16, 1));
        assert_true(gac_scale_elements(&brain, 1, GAC_DTYPE_BF16, 1));
        if (half_is_finite((uint16_t)i) || (i & 0x3ff) == 0)
            assert_int_equal(half, i);
        else
            assert_true(!half_is_finite(half) && (half & 0x3ff)); /* NaN stays NaN */
        if ((i & 0x7f80) != 0x7f80 || (i & 0x7f) == 0)
            assert_int_equal(brain, i);
    }
}

/* No half is nearer to the product than the one chosen; of two as near, the
 * even one. The factor is a float, so that the product is exact in double. */
static void halves_round_to_nearest(void **state)
{
    (void)state;
    static const float factors[] = { 1.0905077f, 0.9170040f, 1.4142135f, 0.5f, 0.001f, 3.0f };
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
        for (uint32_t i = 0; i < 0x8000; i++) {
            uint16_t scaled = (uint16_t)i;
            if (!half_is_finite(scaled))
                continue;
            /* The library rounds the product to float first. */
            double exact = (float)(half_value((uint16_t)i) * (double)factors[f]);
            assert_true(gac_scale_elements(&scaled, 1, GAC_DTYPE_F16, (double)factors[f]));
            if (!half_is_finite(scaled)) {
                assert_true(exact >= 65520);
                continue;
            }
            double error = fabs(half_value(scaled) - exact);
            for (int step = -1; step <= 1; step += 2) {
                uint16_t neighbour = (uint16_t)(scaled + step);
                if (neighbour >= 0x7c00)
                    continue;
                double other = fabs(half_value(neighbour) - exact);
                assert_true(error < other || (error == other && scaled % 2 == 0));
            }
        }
}

static void wider_types_multiply(void **state)
{
    (void)state;
    float single[3] = { 1.5f, -2.25f, 0.0f };
    double wide[3] = { 1.5, -2.25, 0.0 };
    uint8_t byte = 1;
    assert_true(gac_scale_elements(single, 3, GAC_DTYPE_F32, 2));
    assert_true(gac_scale_elements(wide, 3, GAC_DTYPE_F64, 2));
    assert_true(single[0] == 3.0f && single[1] == -4.5f && single[2] == 0.0f);
    assert_true(wide[0] == 3.0 && wide[1] == -4.5 && wide[2] == 0.0);
    assert_false(gac_scale_elements(&byte, 1, GAC_DTYPE_F8_E4M3, 2));
    assert_int_equal(byte, 1);
}

/* What progress was told; the linker calls these in place of the library's. */
static struct {
    char kinds[120]; /* of work that was started */
    uint64_t total, n_done;
    int n_short; /* pieces of work that ended short of their total */
} told;

void __wrap_gac_progress_start(gac_progress *progress, const char *what, const char *unit,
                               uint64_t total);
void __wrap_gac_progress_step(gac_progress *progress, uint64_t n_done);
void __wrap_gac_progress_finish(gac_progress *progress);

void __wrap_gac_progress_start(gac_progress *progress, const char *what, const char *unit,
                               uint64_t total)
{
    (void)progress, (void)unit;
    size_t n = strlen(told.kinds);
    snprintf(told.kinds + n, sizeof told.kinds - n, "%s ", what);
    told.total = total;
    told.n_done = 0;
    assert_true(total > 0);
}

void __wrap_gac_progress_step(gac_progress *progress, uint64_t n_done)
{
    (void)progress;
    assert_true(n_done >= told.n_done);
    told.n_done = n_done;
}

void __wrap_gac_progress_finish(gac_progress *progress)
{
    (void)progress;
    told.n_short += told.n_done != told.total;
}

static void assert_told(const char *kinds)
{
    assert_string_equal(told.kinds, kinds);
    assert_int_equal(told.n_short, 0);
    memset(&told, 0, sizeof told);
}

static void progress_ends_at_its_total(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    gac_verification v;
    gac_checkpoint *repaired = NULL;
    gac_repair_options options = GAC_REPAIR_OPTIONS_INIT;
    shape.width = 172;
    small_llama_write("in", &shape);
    small_model in = small_open("in");
    int32_t n_dims = gac_model_n_dims(in.model);
    int64_t *sizes = calloc((size_t)n_dims, sizeof *sizes);
    for (int32_t i = 0; i < n_dims; i++) {
        const gac_dim *d = gac_model_dim(in.model, i);
        sizes[i] = d->role == GAC_ROLE_MLP_WIDTH ? 176 : d->size;
    }
    memset(&told, 0, sizeof told);
    assert_ok(
        gac_repair_apply(in.checkpoint, in.model, sizes, scratch_path("out"), &options, NULL, err));
    assert_told("writing ");
    small_model out = small_open("out");
    memset(&told, 0, sizeof told);
    assert_ok(gac_repair_verify(in.checkpoint, in.model, out.checkpoint, out.model, NULL, &v, err));
    assert_string_equal(v.difference, "");
    assert_told("comparing ");
    assert_ok(gac_checkpoint_open(scratch_path("out"), NULL, &repaired, err));
    memset(&told, 0, sizeof told);
    assert_ok(gac_repair_undo(repaired, scratch_path("back"), &options, NULL, err));
    assert_told("writing checking ");
    gac_checkpoint_close(repaired);
    small_close(&out);
    small_close(&in);
    free(sizes);
}

/* The sizes of a model, with another one for each dimension of a role; the caller
 * frees them. */
static int64_t *sizes_with(const gac_model *model, gac_role role, int64_t size)
{
    int32_t n_dims = gac_model_n_dims(model);
    int64_t *sizes = calloc((size_t)n_dims, sizeof *sizes);
    assert_non_null(sizes);
    for (int32_t i = 0; i < n_dims; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        bool tied = d->tied_to >= 0 && gac_model_dim(model, d->tied_to)->role == role;
        sizes[i] = d->role == role || tied ? size : d->size;
    }
    return sizes;
}

/* In a fused projection q grows in front of k, so the rows of k move. */
static void fused_scaling_follows_growth(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"phi3\",\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"num_hidden_layers\":1}";
    static const scratch_tensor tensors[] = {
        { "model.layers.0.self_attn.qkv_proj.weight", { 64, 32 } },
        { "model.layers.0.self_attn.o_proj.weight", { 32, 32 } },
        { NULL, { 0 } },
    };
    place_list places;
    tensor_scaling scaling;
    scratch_checkpoint("m", config, GAC_DTYPE_F16, tensors);
    small_model m = small_open("m");
    int64_t *sizes = sizes_with(m.model, GAC_ROLE_QK_HEAD, 16);
    int32_t qkv = gac_checkpoint_find(m.checkpoint, tensors[0].name);
    assert_ok(gac_places_create(m.model, &places, err));
    assert_true(gac_scaling_of(&places, qkv, sizes, &scaling));
    assert_int_equal(scaling.n_ranges, 2);
    assert_int_equal(scaling.ranges[0].start, 0);
    assert_int_equal(scaling.ranges[0].n_rows, 4 * 16);
    assert_int_equal(scaling.ranges[1].start, 4 * 16);
    assert_int_equal(scaling.ranges[1].n_rows, 2 * 16);
    gac_places_dispose(&places);
    small_close(&m);
    free(sizes);
}

/* Repairs "in" to "out" with sizes that may rescale. */
static gac_status repair(const small_model *in, const int64_t *sizes, gac_error *err)
{
    gac_repair_options options = GAC_REPAIR_OPTIONS_INIT;
    options.allow_rescaled = true;
    options.no_sync = true;
    return gac_repair_apply(in->checkpoint, in->model, sizes, scratch_path("out"), &options, NULL,
                            err);
}

/* "out" must be the repaired "in" but for what difference says, "" for nothing. */
static void assert_difference(const char *difference)
{
    gac_verification v;
    small_model in = small_open("in"), out = small_open("out");
    assert_ok(gac_repair_verify(in.checkpoint, in.model, out.checkpoint, out.model, NULL, &v, err));
    if (*difference ? !strstr(v.difference, difference) : v.difference[0])
        fail_msg("\"%s\" instead of \"%s\"", v.difference, difference);
    small_close(&out);
    small_close(&in);
}

/* Changes a byte of a file, and changes it back when called again. */
static void flip(const char *name, uint64_t offset)
{
    char byte;
    int fd = open(scratch_path(name), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

/* Makes every number of a tensor of F16 one. */
static void fill_with_ones(const char *folder, const char *file, const char *tensor)
{
    small_model m = small_open(folder);
    const gac_tensor *t =
        gac_checkpoint_tensor(m.checkpoint, gac_checkpoint_find(m.checkpoint, tensor));
    uint16_t *ones = malloc(t->size_bytes);
    assert_non_null(ones);
    for (int64_t i = 0; i < t->n_elements; i++)
        ones[i] = 0x3C00;
    int fd = open(scratch_path(file), O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, ones, t->size_bytes, (off_t)t->offset), t->size_bytes);
    assert_int_equal(close(fd), 0);
    free(ones);
    small_close(&m);
}

/* Tensors and files that are too large for any buffer: every piece is scaled once, and
 * verify looks at the last byte, too. */
static void every_piece_counts(void **state)
{
    (void)state;
    static const char q[] = "model.layers.0.self_attn.q_proj.weight";
    enum { FILE_BYTES = (4 << 20) + 3 };
    const small_llama shape = { 1, 2048, 5, 1, 256, 16, 8, -1, 0, 0, 0 };
    gac_checkpoint *kept = NULL;
    char *bytes = calloc(1, FILE_BYTES);
    assert_non_null(bytes);
    small_llama_write("in", &shape);
    scratch_put("in/tokenizer.json", bytes, FILE_BYTES);
    free(bytes);
    fill_with_ones("in", "in/model.safetensors", q);
    small_model in = small_open("in");
    int64_t *sizes = sizes_with(in.model, GAC_ROLE_QK_HEAD, 264);
    assert_ok(repair(&in, sizes, err));
    free(sizes);
    small_close(&in);
    assert_difference("");
    flip("out/tokenizer.json", FILE_BYTES - 1);
    assert_difference("tokenizer.json differs");
    flip("out/tokenizer.json", FILE_BYTES - 1);
    assert_ok(gac_checkpoint_open(scratch_path("out/" GAC_ORIGINALS_NAME), NULL, &kept, err));
    const gac_tensor *t = gac_checkpoint_tensor(kept, gac_checkpoint_find(kept, q));
    assert_true(t->size_bytes > 4 << 20);
    flip("out/" GAC_ORIGINALS_NAME "/model.safetensors", t->offset + t->size_bytes - 1);
    assert_difference("q_proj.weight\": its kept original differs");
    gac_checkpoint_close(kept);
}

static void odd_heads_are_refused(void **state)
{
    (void)state;
    const small_llama shape = SMALL_LLAMA_INIT;
    small_llama_write("in", &shape);
    small_model in = small_open("in");
    int64_t *sizes = sizes_with(in.model, GAC_ROLE_QK_HEAD, 17);
    assert_fails(repair(&in, sizes, err), GAC_USAGE, "odd head size");
    assert_false(scratch_has("out"));
    free(sizes);
    small_close(&in);
}

/* Statements about single layers follow, and numbers keep their digits. */
static void configs_follow_their_layers(void **state)
{
    (void)state;
    static small_list list;
    memset(&list, 0, sizeof list);
    for (int i = 0; i < 2; i++) {
        small_add(&list, 40 + 4 * i, 24, "model.layers.%d.mlp.gate_proj.weight", i);
        small_add(&list, 40 + 4 * i, 24, "model.layers.%d.mlp.up_proj.weight", i);
        small_add(&list, 24, 40 + 4 * i, "model.layers.%d.mlp.down_proj.weight", i);
    }
    static const struct {
        const char *before, *after;
    } configs[] = {
        { "{\"model_type\":\"llama\",\"rms_norm_eps\":1.2345678e-05,\"intermediate_size\":40,"
          "\"per_layer_config\":{\"1\":{\"intermediate_size\":44}}}",
          "{\"model_type\":\"llama\",\"rms_norm_eps\":1.2345678e-05,\"intermediate_size\":48,"
          "\"per_layer_config\":{\"1\":{\"intermediate_size\":48}}}" },
        { "{\"model_type\":\"nemotron-nas\",\"block_configs\":"
          "[{\"ffn\":{\"ffn_mult\":2.6}},{\"ffn\":{\"intermediate_size\":44}}]}",
          "{\"model_type\":\"nemotron-nas\",\"block_configs\":"
          "[{\"ffn\":{\"intermediate_size\":48}},{\"ffn\":{\"intermediate_size\":48}}]}" },
    };
    for (int i = 0; i < 2; i++) {
        json_t *expected = NULL;
        gac_checkpoint *out = NULL;
        scratch_checkpoint("in", configs[i].before, GAC_DTYPE_F16, list.tensors);
        small_model in = small_open("in");
        int64_t *sizes = sizes_with(in.model, GAC_ROLE_MLP_WIDTH, 48);
        assert_ok(repair(&in, sizes, err));
        free(sizes);
        small_close(&in);
        assert_ok(gac_json_parse(configs[i].after, strlen(configs[i].after), "", &expected, err));
        assert_ok(gac_checkpoint_open(scratch_path("out"), NULL, &out, err));
        assert_true(json_equal(gac_checkpoint_config(out), expected));
        gac_checkpoint_close(out);
        json_decref(expected);
        scratch_remove(NULL);
        scratch_create(NULL);
    }
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factor_one_changes_nothing),
        cmocka_unit_test(halves_round_to_nearest),
        cmocka_unit_test(wider_types_multiply),
        in_scratch(progress_ends_at_its_total),
        in_scratch(fused_scaling_follows_growth),
        in_scratch(every_piece_counts),
        in_scratch(odd_heads_are_refused),
        in_scratch(configs_follow_their_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"
#include "small_llama.h"

#include <jansson.h>

static const gac_tensor *tensor_of(const gac_model *m, int32_t tensor)
{
    return gac_checkpoint_tensor(gac_model_checkpoint(m), tensor);
}

static bool overlap(const gac_place *p, int64_t p_size, const gac_place *q, int64_t q_size)
{
    return p->tensor == q->tensor && p->axis == q->axis &&
           p->start < q->start + q->n_slices * q_size && q->start < p->start + p->n_slices * p_size;
}

/* Every place lies inside its axis and overlaps no other place. */
static void check_places(const gac_model *m)
{
    for (int32_t i = 0; i < gac_model_n_dims(m); i++) {
        const gac_dim *d = gac_model_dim(m, i);
        assert_true(d->n_places > 0);
        for (int32_t p = 0; p < d->n_places; p++) {
            const gac_place *place = &d->places[p];
            const gac_tensor *t = tensor_of(m, place->tensor);
            assert_in_range(place->axis, 0, t->n_axes - 1);
            assert_true(place->start >= 0 && place->n_slices >= 1);
            assert_true(place->start + place->n_slices * d->size <= t->shape[place->axis]);
            for (int32_t j = 0; j <= i; j++) {
                const gac_dim *e = gac_model_dim(m, j);
                for (int32_t q = 0; q < (j == i ? p : e->n_places); q++)
                    if (overlap(place, d->size, &e->places[q], e->size))
                        fail_msg("%s and %s overlap on %s", d->name, e->name, t->name);
            }
        }
    }
}

/* An axis is covered completely or not at all. */
static void check_axes(const gac_model *m)
{
    for (int32_t tensor = 0; tensor < gac_checkpoint_n_tensors(gac_model_checkpoint(m)); tensor++) {
        const gac_tensor *t = tensor_of(m, tensor);
        for (int32_t axis = 0; axis < t->n_axes; axis++) {
            int64_t bound = 0;
            for (int32_t i = 0; i < gac_model_n_dims(m); i++) {
                const gac_dim *d = gac_model_dim(m, i);
                for (int32_t p = 0; p < d->n_places; p++)
                    if (d->places[p].tensor == tensor && d->places[p].axis == axis)
                        bound += d->places[p].n_slices * d->size;
            }
            if (bound != 0 && bound != t->shape[axis])
                fail_msg("%s axis %d: %d of %d bound", t->name, axis, (int)bound,
                         (int)t->shape[axis]);
        }
    }
}

/* The dimensions of an operator add up to its sizes. */
static void check_ops(const gac_model *m)
{
    assert_true(gac_model_n_ops(m) > 0);
    for (int32_t i = 0; i < gac_model_n_ops(m); i++) {
        const gac_op *op = gac_model_op(m, i);
        int64_t sums[GAC_OP_AXIS_COUNT] = { 0 };
        for (int32_t t = 0; t < op->n_terms; t++) {
            assert_in_range(op->terms[t].dim, 0, gac_model_n_dims(m) - 1);
            sums[op->terms[t].axis] +=
                op->terms[t].n_slices * gac_model_dim(m, op->terms[t].dim)->size;
        }
        assert_in_range(op->layer + 1, 0, gac_model_n_layers(m));
        assert_true(op->count >= 1 && op->share > 0 && op->share <= 1);
        if (op->kind == GAC_OP_SDPA) {
            assert_int_equal(op->tensor, -1);
            assert_int_equal(op->n_terms, 2);
            assert_true(op->n_kv_heads > 0 && op->n_q_heads % op->n_kv_heads == 0);
            assert_int_equal(gac_model_dim(m, op->qk_dim)->role, GAC_ROLE_QK_HEAD);
            assert_int_equal(gac_model_dim(m, op->v_dim)->role, GAC_ROLE_V_HEAD);
            continue;
        }
        const char *name = tensor_of(m, op->tensor)->name;
        bool router = strstr(name, ".gate.weight") != NULL;
        if (sums[GAC_OP_GEMM_N] != op->n && !(router && sums[GAC_OP_GEMM_N] == 0))
            fail_msg("%s: n is %d, terms give %d", name, (int)op->n, (int)sums[GAC_OP_GEMM_N]);
        if (sums[GAC_OP_GEMM_K] != op->k)
            fail_msg("%s: k is %d, terms give %d", name, (int)op->k, (int)sums[GAC_OP_GEMM_K]);
    }
}

static void check_dims(const gac_model *m)
{
    for (int32_t i = 0; i < gac_model_n_dims(m); i++) {
        const gac_dim *d = gac_model_dim(m, i);
        assert_int_equal(gac_model_find_dim(m, d->name), i);
        assert_non_null(d->reason);
        assert_true(*d->reason);
        if (d->tied_to < 0)
            continue;
        assert_true(d->tied_to < gac_model_n_dims(m) && d->tied_to != i);
        if (d->role != GAC_ROLE_EXPERT_WIDTH && d->role != GAC_ROLE_MLP_WIDTH)
            assert_int_equal(gac_model_dim(m, d->tied_to)->size, d->size);
        assert_int_equal(gac_model_dim(m, d->tied_to)->tied_to, -1);
        assert_int_equal(gac_model_dim(m, d->tied_to)->exactness, d->exactness);
    }
    assert_int_equal(gac_model_find_dim(m, ""), -1);
    assert_int_equal(gac_model_find_dim(m, "layers.0.mlp.width.x"), -1);
}

static small_model checked(const char *name)
{
    small_model m = small_open(name);
    check_dims(m.model);
    check_places(m.model);
    check_axes(m.model);
    check_ops(m.model);
    return m;
}

static void check_written(const char *name, const char *config, const scratch_tensor *tensors,
                          const char *family, const char *compressor, int32_t n_unexplained)
{
    scratch_checkpoint(name, config, GAC_DTYPE_BF16, tensors);
    small_model m = checked(name);
    assert_string_equal(gac_model_family(m.model), family);
    assert_string_equal(gac_model_compressor(m.model), compressor);
    assert_int_equal(gac_model_n_unexplained(m.model), n_unexplained);
    assert_int_equal(gac_model_dtype(m.model), GAC_DTYPE_BF16);
    small_close(&m);
}

static void names_of_values(void **state)
{
    (void)state;
    static const char *const roles[] = { "rank",   "mlp_width", "qk_head",     "v_head",
                                         "hidden", "vocab",     "expert_width" };
    for (int i = 0; i < GAC_ROLE_COUNT; i++)
        assert_string_equal(gac_role_name((gac_role)i), roles[i]);
    assert_string_equal(gac_exactness_name(GAC_EXACT), "exact");
    assert_string_equal(gac_exactness_name(GAC_RESCALED), "rescaled");
    assert_string_equal(gac_exactness_name(GAC_REFUSED), "refused");
    assert_string_equal(gac_repeat_name(GAC_REPEAT_WHOLE), "whole");
    assert_string_equal(gac_repeat_name(GAC_REPEAT_HEAD), "head");
    assert_string_equal(gac_repeat_name(GAC_REPEAT_HALF), "half");
    assert_string_equal(gac_repeat_name(GAC_REPEAT_GROUP), "group");
    gac_model_free(NULL);
}

static void llama_dims(void **state)
{
    (void)state;
    const small_llama shape = SMALL_LLAMA_INIT;
    small_llama_write("m", &shape);
    small_model m = checked("m");
    assert_string_equal(gac_model_compressor(m.model), "dense");
    assert_int_equal(gac_model_n_layers(m.model), 2);
    assert_int_equal(gac_model_n_dims(m.model), 2 + 2 * 3); /* hidden, vocab; width, two heads */
    assert_int_equal(gac_model_n_ops(m.model), 2 * 8 + 1);
    assert_int_equal(gac_model_n_unexplained(m.model), 0);
    assert_int_equal(gac_model_n_notes(m.model), 0);
    const gac_dim *qk = gac_model_dim(m.model, small_dim(m.model, "layers.1.self_attn.qk_head"));
    assert_int_equal(qk->size, 16);
    assert_int_equal(qk->n_places, 2);
    assert_int_equal(qk->places[0].repeat, GAC_REPEAT_HALF);
    assert_int_equal(qk->places[0].n_slices + qk->places[1].n_slices, 4 + 2);
    assert_int_equal(qk->exactness, GAC_RESCALED);
    const gac_dim *width = gac_model_dim(m.model, small_dim(m.model, "layers.0.mlp.width"));
    assert_int_equal(width->n_places, 3);
    assert_int_equal(width->exactness, GAC_EXACT);
    assert_false(width->compressed);
    assert_string_equal(width->config_key, "intermediate_size");
    assert_int_equal(width->declared, 176);
    const gac_dim *vocab = gac_model_dim(m.model, small_dim(m.model, "vocab"));
    assert_int_equal(vocab->exactness, GAC_REFUSED);
    assert_int_equal(vocab->n_places, 2);
    small_close(&m);
}

static void svd_llm_dims(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    static const int64_t ranks[] = { 1, 13, 32 };
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        char name[8];
        snprintf(name, sizeof name, "m%zu", i);
        shape.rank = ranks[i];
        small_llama_write(name, &shape);
        small_model m = checked(name);
        assert_string_equal(gac_model_compressor(m.model), "svd-llm");
        assert_int_equal(gac_model_n_dims(m.model), 2 + 2 * (3 + 7));
        const gac_dim *d =
            gac_model_dim(m.model, small_dim(m.model, "layers.0.mlp.down_proj.rank"));
        assert_int_equal(d->size, ranks[i]);
        assert_int_equal(d->n_places, 2);
        assert_int_equal(d->exactness, GAC_EXACT);
        assert_true(d->compressed);
        small_close(&m);
    }
}

static void other_head_sizes(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    shape.kept_head = 13;
    small_llama_write("m", &shape);
    small_model m = checked("m");
    assert_string_equal(gac_model_compressor(m.model), "direct");
    assert_int_equal(gac_model_dim(m.model, small_dim(m.model, "layers.0.self_attn.v_head"))->size,
                     13);
    assert_true(gac_model_n_notes(m.model) > 0); /* the config is stale */
    small_close(&m);
}

static void low_rank_conventions(void **state)
{
    (void)state;
    static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":24,"
                                 "\"num_attention_heads\":2,\"num_hidden_layers\":1,"
                                 "\"truncation_ranks\":{\"model.layers.0.mlp.up_proj\":5}}";
    static const scratch_tensor asvd[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.BLinear.weight", { 5, 24 } },
        { "model.layers.0.mlp.up_proj.ALinear.weight", { 40, 5 } },
        { "model.layers.0.mlp.up_proj.ALinear.bias", { 40 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    static const scratch_tensor dobi[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.ALinear.weight", { 5, 24 } },
        { "model.layers.0.mlp.up_proj.BLinear.weight", { 40, 5 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    static const scratch_tensor generic[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.down.weight", { 5, 24 } },
        { "model.layers.0.mlp.up_proj.up.weight", { 40, 5 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    check_written("asvd", config, asvd, "llama", "asvd", 0);
    check_written("dobi", config, dobi, "llama", "dobi-svd", 0);
    check_written("generic", config, generic, "llama", "low-rank", 0);
}

static void palu_groups_share_an_axis(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"palullama\",\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"num_hidden_layers\":1,"
        "\"head_wise_ranks\":{\"model.layers.0.self_attn.k_proj\":[5,7],"
        "\"model.layers.0.self_attn.v_proj\":[9,3]}}";
    static const scratch_tensor tensors[] = {
        { "model.layers.0.self_attn.q_proj.weight", { 32, 32 } },
        { "model.layers.0.self_attn.k_proj.VT.weight", { 12, 32 } },
        { "model.layers.0.self_attn.k_proj.U.0.weight", { 16, 5 } },
        { "model.layers.0.self_attn.k_proj.U.1.weight", { 16, 7 } },
        { "model.layers.0.self_attn.v_proj.VT.weight", { 12, 32 } },
        { "model.layers.0.self_attn.v_proj.U.0.weight", { 16, 9 } },
        { "model.layers.0.self_attn.v_proj.U.1.weight", { 16, 3 } },
        { "model.layers.0.self_attn.o_proj.weight", { 32, 32 } },
        { NULL, { 0 } },
    };
    check_written("m", config, tensors, "llama", "palu", 0);
    small_model m = small_open("m");
    int32_t vt = gac_checkpoint_find(m.checkpoint, "model.layers.0.self_attn.k_proj.VT.weight");
    int64_t starts = 0;
    int n_found = 0;
    for (int32_t i = 0; i < gac_model_n_dims(m.model); i++) {
        const gac_dim *d = gac_model_dim(m.model, i);
        for (int32_t p = 0; p < d->n_places; p++)
            if (d->places[p].tensor == vt && d->places[p].axis == 0) {
                assert_int_equal(d->role, GAC_ROLE_RANK);
                assert_int_equal(d->places[p].repeat, GAC_REPEAT_GROUP);
                assert_int_equal(d->size, d->places[p].start == 0 ? 5 : 7);
                starts += d->places[p].start;
                n_found++;
            }
    }
    assert_int_equal(n_found, 2);
    assert_int_equal(starts, 5);
    small_close(&m);
}

/* A basis shared by two layers is one dimension with a place in each. */
static void shared_basis_is_one_dimension(void **state)
{
    (void)state;
    static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":24,"
                                 "\"num_attention_heads\":2,\"num_hidden_layers\":2,"
                                 "\"num_basis_up\":5,\"up_groups\":[[0,1]]}";
    static const scratch_tensor tensors[] = {
        { "model.up_basis.0.weight", { 5, 24 } },
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.weight", { 40, 5 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { "model.layers.1.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.1.mlp.up_proj.weight", { 40, 5 } },
        { "model.layers.1.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    check_written("m", config, tensors, "llama", "basis-sharing", 0);
    small_model m = small_open("m");
    int n_ranks = 0;
    for (int32_t i = 0; i < gac_model_n_dims(m.model); i++) {
        const gac_dim *d = gac_model_dim(m.model, i);
        if (d->role != GAC_ROLE_RANK)
            continue;
        n_ranks++;
        assert_int_equal(d->size, 5);
        assert_int_equal(d->n_places, 3);
    }
    assert_int_equal(n_ranks, 1);
    small_close(&m);
}

static void gpt2_is_transposed_and_fused(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_head\":3,\"n_layer\":1,\"vocab_size\":50,"
        "\"activation_function\":\"gelu_new\"}";
    static const scratch_tensor tensors[] = {
        { "wte.weight", { 50, 24 } },
        { "wpe.weight", { 64, 24 } },
        { "h.0.ln_1.weight", { 24 } },
        { "h.0.ln_1.bias", { 24 } },
        { "h.0.attn.c_attn.weight", { 24, 72 } },
        { "h.0.attn.c_attn.bias", { 72 } },
        { "h.0.attn.c_proj.weight", { 24, 24 } },
        { "h.0.attn.c_proj.bias", { 24 } },
        { "h.0.ln_2.weight", { 24 } },
        { "h.0.ln_2.bias", { 24 } },
        { "h.0.mlp.c_fc.weight", { 24, 90 } },
        { "h.0.mlp.c_fc.bias", { 90 } },
        { "h.0.mlp.c_proj.weight", { 90, 24 } },
        { "h.0.mlp.c_proj.bias", { 24 } },
        { "ln_f.weight", { 24 } },
        { "ln_f.bias", { 24 } },
        { NULL, { 0 } },
    };
    scratch_checkpoint("m", config, GAC_DTYPE_BF16, tensors);
    small_model m = checked("m");
    const gac_dim *width = gac_model_dim(m.model, small_dim(m.model, "h.0.mlp.width"));
    assert_int_equal(width->size, 90);
    assert_int_equal(width->n_places, 3); /* c_fc, its bias, c_proj */
    assert_int_equal(gac_model_dim(m.model, small_dim(m.model, "hidden"))->exactness, GAC_REFUSED);
    const gac_dim *qk = gac_model_dim(m.model, small_dim(m.model, "h.0.attn.qk_head"));
    assert_int_equal(qk->size, 8);
    assert_int_equal(qk->places[0].repeat, GAC_REPEAT_HEAD); /* no rotary halves */
    small_close(&m);
}

static void phi3_is_fused(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"phi3\",\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":44,\"num_hidden_layers\":1}";
    static const scratch_tensor tensors[] = {
        { "model.layers.0.self_attn.qkv_proj.weight", { 64, 32 } },
        { "model.layers.0.self_attn.o_proj.weight", { 32, 32 } },
        { "model.layers.0.mlp.gate_up_proj.weight", { 88, 32 } },
        { "model.layers.0.mlp.down_proj.weight", { 32, 44 } },
        { "model.layers.0.surprise.weight", { 3, 3 } },
        { NULL, { 0 } },
    };
    check_written("m", config, tensors, "phi3", "dense", 1);
    small_model m = small_open("m");
    assert_string_equal(
        gac_checkpoint_tensor(m.checkpoint, gac_model_unexplained(m.model, 0))->name,
        "model.layers.0.surprise.weight");
    small_close(&m);
}

static void experts_share_tokens(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"mixtral\",\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"intermediate_size\":20,\"num_hidden_layers\":1,\"num_local_experts\":2,"
        "\"num_experts_per_tok\":1}";
    static const scratch_tensor tensors[] = {
        { "model.layers.0.block_sparse_moe.gate.weight", { 2, 32 } },
        { "model.layers.0.block_sparse_moe.experts.0.w1.weight", { 20, 32 } },
        { "model.layers.0.block_sparse_moe.experts.0.w2.weight", { 32, 20 } },
        { "model.layers.0.block_sparse_moe.experts.0.w3.weight", { 20, 32 } },
        { "model.layers.0.block_sparse_moe.experts.1.w1.weight", { 17, 32 } },
        { "model.layers.0.block_sparse_moe.experts.1.w2.weight", { 32, 17 } },
        { "model.layers.0.block_sparse_moe.experts.1.w3.weight", { 17, 32 } },
        { NULL, { 0 } },
    };
    scratch_checkpoint("m", config, GAC_DTYPE_BF16, tensors);
    small_model m = checked("m");
    int n_widths = 0, n_shared = 0;
    for (int32_t i = 0; i < gac_model_n_dims(m.model); i++)
        n_widths += gac_model_dim(m.model, i)->role == GAC_ROLE_EXPERT_WIDTH;
    for (int32_t i = 0; i < gac_model_n_ops(m.model); i++)
        n_shared += gac_model_op(m.model, i)->share == 0.5;
    assert_int_equal(n_widths, 2);
    assert_int_equal(n_shared, 6);
    small_close(&m);
}

/* Adds two heads of each kind, each of head rows. */
static void add_attention(small_list *list, int layer, int64_t head)
{
    static const char *const names[] = { "q", "k", "v" };
    for (int i = 0; i < 3; i++)
        small_add(list, 2 * head, 24, "model.layers.%d.self_attn.%s_proj.weight", layer, names[i]);
    small_add(list, 24, 2 * head, "model.layers.%d.self_attn.o_proj.weight", layer);
}

static void add_mlp(small_list *list, int layer, int64_t width)
{
    small_add(list, width, 24, "model.layers.%d.mlp.gate_proj.weight", layer);
    small_add(list, width, 24, "model.layers.%d.mlp.up_proj.weight", layer);
    small_add(list, 24, width, "model.layers.%d.mlp.down_proj.weight", layer);
}

#define SMALL_CONFIG \
    "\"model_type\":\"llama\",\"hidden_size\":24,\"num_attention_heads\":2,\"head_dim\":12"

/* Returns the exactness of a dimension in the model of this list and config. */
static gac_exactness exactness(const small_list *list, const char *config, const char *dim)
{
    static int n_made;
    char name[16];
    snprintf(name, sizeof name, "m%d", n_made++);
    scratch_checkpoint(name, config, GAC_DTYPE_BF16, list->tensors);
    small_model m = checked(name);
    gac_exactness found = gac_model_dim(m.model, small_dim(m.model, dim))->exactness;
    small_close(&m);
    return found;
}

static void heads_that_must_stay(void **state)
{
    (void)state;
    static small_list plain, normed, mixed;
    memset(&plain, 0, sizeof plain);
    add_attention(&plain, 0, 12);
    normed = mixed = plain;
    small_add(&normed, 12, 0, "model.layers.0.self_attn.q_norm.weight");
    add_attention(&mixed, 1, 10);
    /* The copy owns its names. */
    for (int i = 0; i < plain.n; i++)
        normed.tensors[i].name = mixed.tensors[i].name = plain.names[i];
    static const char config[] = "{" SMALL_CONFIG "}";
    static const char *const head = "layers.0.self_attn.qk_head";
    assert_int_equal(exactness(&plain, config, head), GAC_RESCALED);
    assert_int_equal(exactness(&normed, config, head), GAC_REFUSED);
    assert_int_equal(exactness(&mixed, config, head), GAC_REFUSED);
    assert_int_equal(exactness(&mixed, config, "layers.0.self_attn.v_head"), GAC_REFUSED);
    assert_int_equal(exactness(&plain,
                               "{" SMALL_CONFIG ",\"rope_scaling\":{\"rope_type\":\"linear\","
                               "\"factor\":2,\"partial_rotary_factor\":0.5}}",
                               head),
                     GAC_REFUSED);
}

static void widths_that_must_stay(void **state)
{
    (void)state;
    static small_list gated, ungated;
    memset(&gated, 0, sizeof gated);
    memset(&ungated, 0, sizeof ungated);
    add_mlp(&gated, 0, 40);
    small_add(&gated, 1, 0, "model.layers.0.mlp.down_proj.weight_scale");
    assert_int_equal(exactness(&gated, "{" SMALL_CONFIG "}", "layers.0.mlp.width"), GAC_REFUSED);
    small_add(&ungated, 24, 40, "h.0.mlp.c_fc.weight");
    small_add(&ungated, 40, 24, "h.0.mlp.c_proj.weight");
    static const char relu[] = "{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}";
    static const char sigmoid[] = "{\"model_type\":\"gpt2\",\"activation_function\":\"sigmoid\"}";
    assert_int_equal(exactness(&ungated, relu, "h.0.mlp.width"), GAC_EXACT);
    assert_int_equal(exactness(&ungated, sigmoid, "h.0.mlp.width"), GAC_REFUSED);
}

/* Of two factors only the one at the split side is split over GPUs. */
static void pairs_are_split_at_one_side(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        gac_split split;
    } wanted[] = {
        { "self_attn.q_v_proj", GAC_SPLIT_NONE }, { "self_attn.q_u_proj", GAC_SPLIT_N },
        { "self_attn.o_v_proj", GAC_SPLIT_K },    { "self_attn.o_u_proj", GAC_SPLIT_NONE },
        { "mlp.up_v_proj", GAC_SPLIT_NONE },      { "mlp.up_u_proj", GAC_SPLIT_N },
        { "mlp.down_v_proj", GAC_SPLIT_K },       { "mlp.down_u_proj", GAC_SPLIT_NONE }
    };
    small_llama shape = SMALL_LLAMA_INIT;
    int n_found = 0;
    shape.rank = 8;
    small_llama_write("m", &shape);
    small_model m = checked("m");
    for (int32_t i = 0; i < gac_model_n_ops(m.model); i++) {
        const gac_op *op = gac_model_op(m.model, i);
        for (int k = 0; k < 8 && op->kind == GAC_OP_GEMM; k++)
            if (strstr(tensor_of(m.model, op->tensor)->name, wanted[k].tensor)) {
                assert_int_equal(op->split, wanted[k].split);
                n_found++;
            }
    }
    assert_int_equal(n_found, 2 * 8);
    small_close(&m);
}

/* The bias of the first factor also has the rank. If the hidden size is unknown
 * and both orders chain, the smaller rank is right. */
static void ranks_of_pairs(void **state)
{
    (void)state;
    static const scratch_tensor biased[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.BLinear.weight", { 5, 24 } },
        { "model.layers.0.mlp.up_proj.BLinear.bias", { 5 } },
        { "model.layers.0.mlp.up_proj.ALinear.weight", { 40, 5 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    static const scratch_tensor square[] = {
        { "model.layers.0.self_attn.q_proj.BLinear.weight", { 5, 24 } },
        { "model.layers.0.self_attn.q_proj.ALinear.weight", { 24, 5 } },
        { NULL, { 0 } },
    };
    scratch_checkpoint("biased", "{" SMALL_CONFIG "}", GAC_DTYPE_BF16, biased);
    small_model m = checked("biased");
    assert_int_equal(
        gac_model_dim(m.model, small_dim(m.model, "layers.0.mlp.up_proj.rank"))->n_places, 3);
    small_close(&m);
    scratch_checkpoint("square", "{" SMALL_CONFIG "}", GAC_DTYPE_BF16, square);
    m = small_open("square");
    assert_int_equal(
        gac_model_dim(m.model, small_dim(m.model, "layers.0.self_attn.q_proj.rank"))->size, 5);
    small_close(&m);
}

/* A per-layer statement in the config counts for that layer. */
static void layers_may_differ(void **state)
{
    (void)state;
    static small_list list;
    memset(&list, 0, sizeof list);
    add_attention(&list, 0, 12);
    add_attention(&list, 1, 12);
    add_mlp(&list, 0, 256);
    add_mlp(&list, 1, 512);
    /* DeciLM rounds 2 / 3 of the product up to a multiple of 256. */
    scratch_checkpoint("m",
                       "{" SMALL_CONFIG ",\"per_layer_config\":{\"01\":{\"num_attention_heads\":1,"
                       "\"num_key_value_heads\":1,\"head_dim\":24}},"
                       "\"block_configs\":[{\"ffn\":{\"ffn_mult\":16}},"
                       "{\"ffn\":{\"ffn_mult\":16.25}}]}",
                       GAC_DTYPE_BF16, list.tensors);
    small_model m = checked("m");
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "layers.1.mlp.width" : "layers.0.mlp.width";
        const gac_dim *d = gac_model_dim(m.model, small_dim(m.model, name));
        assert_int_equal(d->declared, d->size);
    }
    for (int32_t i = 0; i < gac_model_n_ops(m.model); i++) {
        const gac_op *op = gac_model_op(m.model, i);
        if (op->kind == GAC_OP_SDPA)
            assert_int_equal(op->n_q_heads, 2 - op->layer);
    }
    small_close(&m);
}

static void experts_get_a_share_for_each_choice(void **state)
{
    (void)state;
    static small_list list;
    memset(&list, 0, sizeof list);
    small_add(&list, 4, 24, "model.layers.0.block_sparse_moe.gate.weight");
    for (int i = 0; i < 4; i++) {
        small_add(&list, 20, 24, "model.layers.0.block_sparse_moe.experts.%d.w1.weight", i);
        small_add(&list, 24, 20, "model.layers.0.block_sparse_moe.experts.%d.w2.weight", i);
        small_add(&list, 20, 24, "model.layers.0.block_sparse_moe.experts.%d.w3.weight", i);
    }
    scratch_checkpoint("m",
                       "{\"model_type\":\"mixtral\",\"hidden_size\":24,\"num_local_experts\":4,"
                       "\"num_experts_per_tok\":3}",
                       GAC_DTYPE_BF16, list.tensors);
    small_model m = checked("m");
    int n_shared = 0;
    for (int32_t i = 0; i < gac_model_n_ops(m.model); i++)
        n_shared += gac_model_op(m.model, i)->share == 0.75;
    assert_int_equal(n_shared, 12);
    small_close(&m);
}

/* Most tensors are norms in F32, but the weights have more bytes. */
static void dtype_is_that_of_most_bytes(void **state)
{
    (void)state;
    gac_writer *w = NULL;
    const int64_t weight[] = { 40, 24 }, norm[] = { 24 };
    assert_ok(gac_writer_create(scratch_path("m"), NULL, &w, err));
    assert_ok(gac_writer_add(w, "model.layers.0.mlp.up_proj.weight", GAC_DTYPE_BF16, 2, weight,
                             NULL, err));
    assert_ok(gac_writer_add(w, "model.norm.weight", GAC_DTYPE_F32, 1, norm, NULL, err));
    assert_ok(gac_writer_add(w, "model.layers.0.input_layernorm.weight", GAC_DTYPE_F32, 1, norm,
                             NULL, err));
    assert_ok(gac_writer_layout(w, err));
    scratch_zeros(w, 0, 40 * 24 * 2);
    scratch_zeros(w, 1, 24 * 4);
    scratch_zeros(w, 2, 24 * 4);
    assert_ok(gac_writer_add_file(w, "config.json", "{" SMALL_CONFIG "}",
                                  sizeof "{" SMALL_CONFIG "}" - 1, err));
    assert_ok(gac_writer_finish(w, err));
    small_model m = small_open("m");
    assert_int_equal(gac_model_dtype(m.model), GAC_DTYPE_BF16);
    small_close(&m);
}

/* The original context is 8192. Wavelengths from 8192 on are stretched by the
 * factor, those up to 2048 are kept, and 4096 lies a third of the way from the
 * long ones. */
static void llama3_mixes_middle_waves(void **state)
{
    (void)state;
    static const struct {
        double wave, stretched_by;
    } waves[] = { { 1024, 1 }, { 4096, 1 / (2.0 / 3 / 8 + 1.0 / 3) }, { 16384, 8 } };
    json_t *settings = json_pack("{s:f, s:f, s:f, s:i}", "factor", 8.0, "low_freq_factor", 1.0,
                                 "high_freq_factor", 4.0, "original_max_position_embeddings", 8192);
    for (int i = 0; i < 3; i++) {
        double base =
            waves[i].wave / (2 * acos(-1)); /* the second of two pairs turns at 1 / base */
        double found = gac_rotary_frequency("llama3", settings, base, 1, 2);
        assert_true(fabs(found * base * waves[i].stretched_by - 1) < 1.2e-7); /* F32 */
    }
    json_decref(settings);
}

/* As torch computes it in F32: the quotient, its power of the base, and one over that are rounded,
 * each by itself. Rounding once would give other last bits. */
static void frequencies_are_rounded_in_steps(void **state)
{
    (void)state;
    static const struct {
        int64_t i, size;
        double base, torch, once;
    } pairs[] = { { 3, 256, 1e4, 0x1.9c975ap-1, 0x1.9c9758p-1 },
                  { 11, 256, 1e4, 0x1.d008bep-2, 0x1.d008c0p-2 },
                  { 6, 256, 1e6, 0x1.0beddep-1, 0x1.0beddcp-1 },
                  { 2, 128, 5e5, 0x1.53c38cp-1, 0x1.53c38ap-1 } };
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        double found =
            gac_rotary_frequency("default", NULL, pairs[k].base, pairs[k].i, pairs[k].size);
        assert_true(found == pairs[k].torch && found != pairs[k].once);
    }
}

static gac_status create(const char *name, gac_error *err)
{
    gac_checkpoint *c = NULL;
    gac_model *m = NULL;
    gac_status status = gac_checkpoint_open(scratch_path(name), NULL, &c, err);
    assert_int_equal(status, GAC_OK);
    status = gac_model_create(c, &m, err);
    gac_model_free(m);
    gac_checkpoint_close(c);
    return status;
}

static void contradictions_are_named(void **state)
{
    (void)state;
    static const scratch_tensor mlp[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24 } },
        { "model.layers.0.mlp.up_proj.weight", { 41, 24 } },
        { "model.layers.0.mlp.down_proj.weight", { 24, 40 } },
        { NULL, { 0 } },
    };
    static const scratch_tensor unknown[] = { { "a.weight", { 4, 4 } }, { NULL, { 0 } } };
    static const scratch_tensor axes[] = {
        { "model.layers.0.mlp.gate_proj.weight", { 40, 24, 2 } },
        { "model.layers.0.self_attn.q_proj.weight", { 24, 24 } },
        { NULL, { 0 } },
    };
    scratch_checkpoint("mlp", "{\"model_type\":\"llama\"}", GAC_DTYPE_F16, mlp);
    scratch_checkpoint("unknown", NULL, GAC_DTYPE_F16, unknown);
    scratch_checkpoint("typed", "{\"model_type\":\"wavenet\"}", GAC_DTYPE_F16, unknown);
    scratch_checkpoint("axes", "{\"model_type\":\"llama\"}", GAC_DTYPE_F16, axes);
    scratch_checkpoint("size", "{\"model_type\":\"llama\",\"hidden_size\":-1}", GAC_DTYPE_F16,
                       axes);
    assert_fails(create("mlp", err), GAC_BAD_INPUT, "up_proj.weight\" has 41 outputs");
    assert_fails(create("mlp", err), GAC_BAD_INPUT, "gate_proj.weight\" has 40 outputs");
    assert_fails(create("unknown", err), GAC_BAD_INPUT, "no known model family");
    assert_fails(create("typed", err), GAC_BAD_INPUT,
                 "model_type \"wavenet\" and its tensor names are unknown");
    assert_fails(create("axes", err), GAC_BAD_INPUT, "3 axes, but must have 2");
    assert_fails(create("size", err), GAC_BAD_INPUT, "\"hidden_size\" is not a size");
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_values),
        in_scratch(llama_dims),
        in_scratch(svd_llm_dims),
        in_scratch(other_head_sizes),
        in_scratch(low_rank_conventions),
        in_scratch(palu_groups_share_an_axis),
        in_scratch(shared_basis_is_one_dimension),
        in_scratch(gpt2_is_transposed_and_fused),
        in_scratch(phi3_is_fused),
        in_scratch(experts_share_tokens),
        in_scratch(contradictions_are_named),
        in_scratch(heads_that_must_stay),
        in_scratch(widths_that_must_stay),
        in_scratch(pairs_are_split_at_one_side),
        in_scratch(ranks_of_pairs),
        in_scratch(layers_may_differ),
        in_scratch(experts_get_a_share_for_each_choice),
        in_scratch(dtype_is_that_of_most_bytes),
        cmocka_unit_test(llama3_mixes_middle_waves),
        cmocka_unit_test(frequencies_are_rounded_in_steps),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

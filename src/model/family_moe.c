/* Mixtral and Qwen3-MoE: Llama's attention, and experts as MLP. Each expert has
 * its own tensors, or one tensor holds all experts. */
#include <string.h>

#include "model/model_internal.h"

typedef struct moe_names {
    const char *block; /* path below a layer */
    const char *gate, *up, *down;
    const char *width_key;
} moe_names;

static const moe_names mixtral = { "block_sparse_moe", "w1", "w3", "w2", "intermediate_size" };
static const moe_names qwen = { "mlp", "gate_proj", "up_proj", "down_proj",
                                "moe_intermediate_size" };

/* Computes the fraction of tokens that reach one of n experts. */
static gac_status expert_share(builder *b, int64_t n, double *share, gac_error *err)
{
    int64_t n_chosen = 2;
    gac_status status = config_size(b, b->config, "num_experts_per_tok", &n_chosen, err);
    *share = n > 0 && n_chosen < n ? (double)n_chosen / (double)n : 1;
    return status;
}

/* Binds a router, which scores experts, or the gate of a shared expert: [n,
 * hidden]. */
static gac_status bind_router(builder *b, const char *module, gac_error *err)
{
    linear l;
    if (builder_find(b, "%s.weight", module) < 0)
        return GAC_OK;
    gac_status status = linear_resolve(b, module, false, SIDE_IN, &l, err);
    return status == GAC_OK ? linear_bind_hidden(b, &l, SIDE_IN, err) : status;
}

/* Checks that the router scores exactly n experts. expert is a tensor of one of
 * them, for messages. */
static gac_status check_router(builder *b, const char *block, int64_t n, int32_t expert,
                               gac_error *err)
{
    int32_t router = builder_find(b, "%s.gate.weight", block);
    if (router < 0 || expert < 0 || builder_tensor(b, router)->shape[0] == n)
        return GAC_OK;
    return builder_contradiction(b, router, "rows", builder_tensor(b, router)->shape[0], expert,
                                 "experts beside it", n, err);
}

static gac_status one_expert(builder *b, const moe_names *names, const char *module, gac_role role,
                             double share, const char *key, gac_error *err)
{
    char name[GAC_MAX_NAME_BYTES + 64];
    int64_t declared = -1;
    gac_status status = config_size(b, b->config, key, &declared, err);
    if (status != GAC_OK)
        return status;
    snprintf(name, sizeof name, "%s.width", module);
    mlp_spec spec = { .module = module,
                      .gate = names->gate,
                      .up = names->up,
                      .down = names->down,
                      .name = name,
                      .role = role,
                      .config_key = key,
                      .declared = declared,
                      .share = share };
    return block_mlp(b, &spec, err);
}

/* Binds a tensor (E, x, y) of all experts: hidden on one axis, n_slices times
 * the width on the other. Either order may be stored. */
static gac_status bind_fused(builder *b, int32_t tensor, int64_t n_slices, bool hidden_is_input,
                             int32_t dim, double share, gac_error *err)
{
    const gac_tensor *t = builder_tensor(b, tensor);
    int64_t hidden = b->dims[b->hidden].dim.size, width = b->dims[dim].dim.size;
    int32_t width_axis = t->shape[2] == hidden && t->shape[1] == n_slices * width ? 1 : 2;
    int32_t hidden_axis = 3 - width_axis, op;
    if (t->shape[width_axis] != n_slices * width)
        return builder_contradiction(b, tensor, "entries along the width", t->shape[width_axis],
                                     b->dims[dim].first_tensor, "for it", width, err);
    gac_status status = builder_bind_hidden(b, tensor, hidden_axis, err);
    if (status == GAC_OK)
        status = builder_add_place(b, dim,
                                   (gac_place){ tensor, width_axis,
                                                n_slices > 1 ? GAC_REPEAT_GROUP : GAC_REPEAT_WHOLE,
                                                0, n_slices, false },
                                   err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, tensor, hidden_is_input ? width_axis : hidden_axis,
                                  hidden_is_input ? hidden_axis : width_axis, &op, err);
    if (status == GAC_OK) {
        b->ops[op].op.count = t->shape[0];
        b->ops[op].op.share = share;
        b->ops[op].op.split = hidden_is_input ? GAC_SPLIT_N : GAC_SPLIT_K;
    }
    return status;
}

static gac_status fused_experts(builder *b, const char *module, const char *key, int32_t gate_up,
                                int32_t down, gac_error *err)
{
    int32_t dim;
    double share;
    gac_status status = builder_expect_axes(b, gate_up, 3, err);
    if (status == GAC_OK)
        status = builder_expect_axes(b, down, 3, err);
    if (status != GAC_OK)
        return status;
    const gac_tensor *g = builder_tensor(b, gate_up), *d = builder_tensor(b, down);
    if (g->shape[0] != d->shape[0])
        return builder_contradiction(b, gate_up, "experts", g->shape[0], down, "experts",
                                     d->shape[0], err);
    if (b->hidden < 0)
        return builder_note(b, err, "%s: the hidden size is not known without an embedding",
                            module);
    int64_t hidden = b->dims[b->hidden].dim.size;
    if (d->shape[1] != hidden && d->shape[2] != hidden)
        return builder_contradiction(b, down, "on its hidden axis", d->shape[1],
                                     b->dims[b->hidden].first_tensor, "there", hidden, err);
    int64_t width = d->shape[1] == hidden ? d->shape[2] : d->shape[1];
    status = expert_share(b, g->shape[0], &share, err);
    if (status == GAC_OK)
        status = builder_add_dim(b, GAC_ROLE_EXPERT_WIDTH, width,
                                 builder_display(b, "%s.width", module), GAC_EXACT,
                                 "as an MLP width; one tensor holds all experts, so they move "
                                 "together",
                                 &dim, err);
    if (status == GAC_OK)
        status = config_size(b, b->config, key, &b->dims[dim].dim.declared, err);
    if (status != GAC_OK)
        return status;
    gac_dim *entry = &b->dims[dim].dim;
    entry->config_key = key;
    entry->compressed = entry->declared >= 0 && entry->declared != width;
    b->found |= entry->compressed ? FOUND_PRUNED : 0;
    status = bind_fused(b, down, 1, false, dim, share, err);
    return status == GAC_OK ? bind_fused(b, gate_up, 2, true, dim, share, err) : status;
}

static gac_status separate_experts(builder *b, const moe_names *names, const char *module,
                                   int32_t *n_experts, gac_error *err)
{
    char path[GAC_MAX_NAME_BYTES + 32];
    int32_t n = 0, first, found = 1;
    double share;
    gac_status status = GAC_OK;
    /* An expert may be stored in any compressor's form, so any tensor below its
     * path counts. */
    for (; status == GAC_OK && found > 0; n += found > 0) {
        snprintf(path, sizeof path, "%s.%d.", module, n);
        status = builder_find_prefix(b, path, &first, &found, err);
    }
    *n_experts = n;
    if (status == GAC_OK)
        status = expert_share(b, n, &share, err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++) {
        snprintf(path, sizeof path, "%s.%d", module, i);
        status = one_expert(b, names, path, GAC_ROLE_EXPERT_WIDTH, share, names->width_key, err);
    }
    return status;
}

static gac_status moe_layer(builder *b, int32_t layer, const moe_names *names, gac_error *err)
{
    char block[GAC_MAX_NAME_BYTES - 64], module[GAC_MAX_NAME_BYTES];
    snprintf(block, sizeof block, "%slayers.%d.%s", b->prefix, layer, names->block);
    snprintf(module, sizeof module, "%s.gate", block);
    gac_status status = bind_router(b, module, err);
    snprintf(module, sizeof module, "%s.shared_expert_gate", block);
    if (status == GAC_OK)
        status = bind_router(b, module, err);
    snprintf(module, sizeof module, "%s.shared_expert", block);
    if (status == GAC_OK)
        status = one_expert(b, names, module, GAC_ROLE_MLP_WIDTH, 1,
                            "shared_expert_intermediate_size", err);
    snprintf(module, sizeof module, "%s.experts", block);
    int32_t gate_up = builder_find(b, "%s.gate_up_proj", module);
    int32_t down = builder_find(b, "%s.down_proj", module);
    if (status == GAC_OK && gate_up >= 0 && down >= 0) {
        status = fused_experts(b, module, names->width_key, gate_up, down, err);
        return status == GAC_OK
                   ? check_router(b, block, builder_tensor(b, down)->shape[0], down, err)
                   : status;
    }
    int32_t n_experts = 0;
    if (status == GAC_OK)
        status = separate_experts(b, names, module, &n_experts, err);
    if (status == GAC_OK)
        status = check_router(b, block, n_experts,
                              builder_find(b, "%s.0.%s.weight", module, names->down), err);
    /* Some layers of these models have an ordinary MLP. */
    if (status == GAC_OK)
        status = one_expert(b, names, block, GAC_ROLE_MLP_WIDTH, 1, "intermediate_size", err);
    return status;
}

static gac_status mixtral_layer(builder *b, int32_t layer, gac_error *err)
{
    return moe_layer(b, layer, &mixtral, err);
}

static gac_status qwen_layer(builder *b, int32_t layer, gac_error *err)
{
    return moe_layer(b, layer, &qwen, err);
}

static gac_status build_mixtral(builder *b, gac_error *err)
{
    static const llama_options options = { .mlp = mixtral_layer };
    return llama_build(b, &options, err);
}

static gac_status build_qwen(builder *b, gac_error *err)
{
    static const llama_options options = { .mlp = qwen_layer };
    return llama_build(b, &options, err);
}

static const char *const mixtral_types[] = { "mixtral", NULL };
static const char *const qwen_types[] = { "qwen3_moe", "qwen2_moe", NULL };

const family family_mixtral = { "mixtral", mixtral_types, "layers", "block_sparse_moe.",
                                build_mixtral };
const family family_qwen3_moe = { "qwen3-moe", qwen_types, "layers", "mlp.experts.", build_qwen };

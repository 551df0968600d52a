/* Experts as the MLP of a layer. Each expert has its own tensors, or one tensor
 * holds all experts. */
#include <string.h>

#include "model/model_internal.h"

/* Computes the fraction of tokens that reach one of n experts. */
static gac_status expert_share(builder *b, int64_t n, double *share, gac_error *err)
{
    static const char *const keys[] = { "num_experts_per_tok", "moe_k", "moe_topk", NULL };
    int64_t n_chosen = 2;
    gac_status status = GAC_OK;
    for (int i = 0; keys[i] && status == GAC_OK; i++) /* some configs list one for each layer */
        if (json_is_integer(json_object_get(b->config, keys[i])))
            status = config_size(b, b->config, keys[i], &n_chosen, err);
    *share = n > 0 && n_chosen < n ? (double)n_chosen / (double)n : 1;
    return status;
}

/* Binds a router, which scores experts, or the gate of a shared expert: [n,
 * hidden]. */
static gac_status bind_router(builder *b, const char *module, gac_error *err)
{
    static const char *const scores[] = { "e_score_correction_bias", "bias", "expert_bias" };
    linear l;
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        int32_t tensor = builder_find(b, "%s.%s", module, scores[i]);
        if (tensor >= 0)
            b->explained[tensor] = true;
    }
    if (builder_find(b, "%s.weight", module) < 0)
        return GAC_OK;
    gac_status status = linear_resolve(b, module, false, SIDE_IN, &l, err);
    return status == GAC_OK ? linear_bind_hidden(b, &l, SIDE_IN, err) : status;
}

/* Checks that the router scores exactly n experts. expert is a tensor of one of
 * them, for messages. */
static gac_status check_router(builder *b, const char *router, int64_t n, int32_t expert,
                               gac_error *err)
{
    int32_t tensor = builder_find(b, "%s.weight", router);
    if (tensor < 0 || expert < 0 || builder_tensor(b, tensor)->shape[0] == n)
        return GAC_OK;
    return builder_contradiction(b, tensor, "rows", builder_tensor(b, tensor)->shape[0], expert,
                                 "experts beside it", n, err);
}

/* One MLP: an expert, the shared expert or that of a layer without experts. */
static gac_status one_mlp(builder *b, const mlp_spec *of, gac_error *err)
{
    char name[GAC_MAX_NAME_BYTES + 64];
    mlp_spec spec = *of;
    gac_status status = GAC_OK;
    spec.declared = -1;
    if (spec.config_key)
        status = config_size(b, b->config, spec.config_key, &spec.declared, err);
    snprintf(name, sizeof name, "%s.width", spec.module);
    spec.name = name;
    return status == GAC_OK ? block_mlp(b, &spec, err) : status;
}

/* Binds a tensor (E, x, y) of all experts: hidden on one axis, n_slices times
 * the width on the other. */
static gac_status bind_fused(builder *b, int32_t tensor, const gac_place *place, int32_t dim,
                             bool hidden_is_input, double share, gac_error *err)
{
    const gac_tensor *t = builder_tensor(b, tensor);
    int64_t width = b->dims[dim].dim.size;
    int32_t width_axis = place->axis, hidden_axis = 3 - width_axis, op;
    if (t->shape[width_axis] != place->n_slices * width)
        return builder_contradiction(b, tensor, "entries along the width", t->shape[width_axis],
                                     b->dims[dim].first_tensor, "for it", width, err);
    gac_status status = builder_bind_hidden(b, tensor, hidden_axis, err);
    if (status == GAC_OK)
        status = builder_add_place(b, dim, *place, err);
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

/* Binds the biases (E, n) of all experts beside a tensor. */
static gac_status fused_bias(builder *b, const char *tensor_name, const gac_place *place,
                             int32_t dim, gac_error *err)
{
    int32_t bias = builder_find(b, "%s_bias", tensor_name);
    if (bias < 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, bias, 2, err);
    if (status != GAC_OK || dim < 0)
        return status == GAC_OK ? builder_bind_hidden(b, bias, 1, err) : status;
    gac_place at = *place;
    at.tensor = bias;
    at.axis = 1;
    if (builder_tensor(b, bias)->shape[1] != at.n_slices * b->dims[dim].dim.size)
        return builder_contradiction(b, bias, "entries", builder_tensor(b, bias)->shape[1],
                                     b->dims[dim].first_tensor, "outputs per slice",
                                     b->dims[dim].dim.size, err);
    return builder_add_place(b, dim, at, err);
}

/* Checks the tensors of all experts against each other and the hidden size. */
static gac_status check_fused(builder *b, const char *module, const expert_names *names, int32_t in,
                              int32_t out, bool *known, gac_error *err)
{
    gac_status status = builder_expect_axes(b, in, 3, err);
    if (status == GAC_OK)
        status = builder_expect_axes(b, out, 3, err);
    *known = status == GAC_OK && b->hidden >= 0;
    if (status != GAC_OK)
        return status;
    const gac_tensor *g = builder_tensor(b, in), *d = builder_tensor(b, out);
    if (g->shape[0] != d->shape[0])
        return builder_contradiction(b, in, "experts", g->shape[0], out, "experts", d->shape[0],
                                     err);
    if (b->hidden < 0)
        return builder_note(b, err, "%s: the hidden size is not known without an embedding",
                            module);
    int64_t hidden = b->dims[b->hidden].dim.size;
    int32_t axis = names->input_first ? 2 : 1;
    if (d->shape[axis] != hidden)
        return builder_contradiction(b, out, "on its hidden axis", d->shape[axis],
                                     b->dims[b->hidden].first_tensor, "there", hidden, err);
    return GAC_OK;
}

static gac_status fused_experts(builder *b, const char *module, const expert_names *names,
                                int32_t in, int32_t out, gac_error *err)
{
    char path[GAC_MAX_NAME_BYTES + 64];
    int32_t dim;
    double share = 1;
    bool known;
    gac_status status = check_fused(b, module, names, in, out, &known, err);
    if (status != GAC_OK || !known)
        return status;
    const int32_t out_axis = names->input_first ? 1 : 2, in_axis = 3 - out_axis;
    gac_place down = { out, out_axis, GAC_REPEAT_WHOLE, 0, 1, false };
    gac_place up = { in, in_axis, names->interleaved ? GAC_REPEAT_PAIRS : GAC_REPEAT_GROUP,
                     0,  2,       false };
    int64_t width = builder_tensor(b, out)->shape[out_axis];
    status = expert_share(b, builder_tensor(b, in)->shape[0], &share, err);
    if (status == GAC_OK)
        status = builder_add_dim(b, GAC_ROLE_EXPERT_WIDTH, width,
                                 builder_display(b, "%s.width", module), GAC_EXACT,
                                 "as an MLP width; one tensor holds all experts, so they move "
                                 "together",
                                 &dim, err);
    if (status == GAC_OK)
        status = config_size(b, b->config, names->key, &b->dims[dim].dim.declared, err);
    if (status != GAC_OK)
        return status;
    gac_dim *entry = &b->dims[dim].dim;
    entry->config_key = names->key;
    entry->compressed = entry->declared >= 0 && entry->declared != width;
    b->found |= entry->compressed ? FOUND_PRUNED : 0;
    status = bind_fused(b, out, &down, dim, false, share, err);
    if (status == GAC_OK)
        status = bind_fused(b, in, &up, dim, true, share, err);
    snprintf(path, sizeof path, "%s%s%s", module, *module ? "." : "", names->all_in);
    if (status == GAC_OK)
        status = fused_bias(b, path, &up, dim, err);
    snprintf(path, sizeof path, "%s%s%s", module, *module ? "." : "", names->all_out);
    return status == GAC_OK ? fused_bias(b, path, NULL, -1, err) : status;
}

static gac_status separate_experts(builder *b, const expert_names *names, const char *module,
                                   int32_t *n_experts, gac_error *err)
{
    char path[GAC_MAX_NAME_BYTES + 32];
    int32_t n = 0, first, found = 1;
    double share = 1;
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
        mlp_spec spec = { .module = path,
                          .gate = names->gate,
                          .up = names->up,
                          .down = names->down,
                          .role = GAC_ROLE_EXPERT_WIDTH,
                          .config_key = names->key,
                          .share = share };
        status = one_mlp(b, &spec, err);
    }
    return status;
}

/* Whether a layer has twice the width that the config states: those that take keys and values from
 * another layer may. */
static bool is_double(const builder *b, int32_t layer)
{
    const json_t *n_shared = json_object_get(b->config, "num_kv_shared_layers");
    const json_t *n_layers = json_object_get(b->config, "num_hidden_layers");
    json_int_t first = json_integer_value(n_layers) - json_integer_value(n_shared);
    return config_true(b, "use_double_wide_mlp") && first > 0 && layer >= first;
}

/* The expert that all tokens take. Its width has a key, or is a multiple of the
 * width of one expert. */
static gac_status shared_expert(builder *b, int32_t layer, const expert_names *names,
                                gac_error *err)
{
    char block[GAC_MAX_NAME_BYTES - 64], module[GAC_MAX_NAME_BYTES];
    int64_t n_shared = 1;
    gac_status status = GAC_OK;
    if (!names->shared)
        return GAC_OK;
    layer_path(b, layer, names->shared_in_layer ? "" : names->block, block, sizeof block);
    snprintf(module, sizeof module, "%s.%s_gate", block, names->shared);
    status = bind_router(b, module, err);
    if (status == GAC_OK && names->n_shared_key &&
        json_is_integer(json_object_get(b->config, names->n_shared_key)) &&
        json_integer_value(json_object_get(b->config, names->n_shared_key)) > 0)
        status = config_size(b, b->config, names->n_shared_key, &n_shared, err);
    snprintf(module, sizeof module, "%s.%s", block, names->shared);
    if (names->shared_may_double && is_double(b, layer))
        n_shared = 2;
    mlp_spec spec = { .module = module,
                      .gate = names->shared_in ? names->shared_in : names->gate,
                      .up = names->shared_in ? NULL : names->up,
                      .down = names->shared_in ? names->shared_out : names->down,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = names->shared_key ? names->shared_key : names->key,
                      .n_slices = n_shared,
                      .share = 1 };
    return status == GAC_OK ? one_mlp(b, &spec, err) : status;
}

gac_status experts_build(builder *b, int32_t layer, const decoder *d, gac_error *err)
{
    char block[GAC_MAX_NAME_BYTES - 64], module[GAC_MAX_NAME_BYTES];
    char router[GAC_MAX_NAME_BYTES];
    const expert_names *names = d->experts;
    layer_path(b, layer, names->block, block, sizeof block);
    snprintf(router, sizeof router, "%s.%s", block, names->router);
    gac_status status = bind_router(b, router, err);
    if (status == GAC_OK)
        status = shared_expert(b, layer, names, err);
    snprintf(module, sizeof module, "%s%s%s", block, *names->list ? "." : "", names->list);
    int32_t in = builder_find(b, "%s.%s", module, names->all_in);
    int32_t out = builder_find(b, "%s.%s", module, names->all_out);
    if (status == GAC_OK && in >= 0 && out >= 0) {
        status = fused_experts(b, module, names, in, out, err);
        return status == GAC_OK
                   ? check_router(b, router, builder_tensor(b, out)->shape[0], out, err)
                   : status;
    }
    int32_t n_experts = 0;
    if (status == GAC_OK && names->down)
        status = separate_experts(b, names, module, &n_experts, err);
    if (status == GAC_OK && n_experts > 0)
        return check_router(b, router, n_experts,
                            builder_find(b, "%s.0.%s.weight", module, names->down), err);
    /* Some layers of these models have an ordinary MLP. */
    layer_path(b, layer, d->mlp, block, sizeof block);
    mlp_spec spec = { .module = block,
                      .gate = d->gate,
                      .up = d->up,
                      .down = d->down,
                      .role = GAC_ROLE_MLP_WIDTH,
                      .config_key = names->dense_key,
                      .share = 1 };
    return status == GAC_OK && d->down ? one_mlp(b, &spec, err) : status;
}

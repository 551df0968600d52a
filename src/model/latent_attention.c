/* Multi-head latent attention, of DeepSeek: keys and values are restored from a
 * latent vector, queries too in the larger models. A part of each query and key
 * rotates (rope), the rest does not (nope); the rotated part of the key is
 * common to all heads. */
#include "model/model_internal.h"

static const char scale_reason[] =
    "the runtime derives the softmax scale from qk_nope_head_dim + qk_rope_head_dim";
static const char norm_reason[] = "a norm over the latent vector would average over the zeros";
/* More heads than any model has; a place is made for each. */
enum { MAX_HEADS = 16384 };

typedef struct latent {
    const char *module;
    linear q, q_a, kv_a, kv_b, o; /* q: q_proj, or q_b_proj after q_a */
    int64_t n_heads;
    int64_t q_rank, kv_rank, nope, rope, v; /* sizes */
} latent;

static gac_status resolve(builder *b, latent *l, gac_error *err)
{
    const struct {
        const char *name;
        linear *to;
        bool hidden_in, hidden_out;
    } all[] = { { "q_proj", &l->q, true, false },
                { "q_a_proj", &l->q_a, true, false },
                { "kv_a_proj_with_mqa", &l->kv_a, true, false },
                { "kv_b_proj", &l->kv_b, false, false },
                { "o_proj", &l->o, false, true } };
    char path[GAC_MAX_NAME_BYTES];
    gac_status status = GAC_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == GAC_OK; i++) {
        snprintf(path, sizeof path, "%s.%s", l->module, all[i].name);
        side hidden_at = all[i].hidden_out ? SIDE_OUT : SIDE_IN;
        status = linear_resolve(b, path, false, hidden_at, all[i].to, err);
        if (status == GAC_OK && all[i].to->present && (all[i].hidden_in || all[i].hidden_out))
            status = linear_bind_hidden(b, all[i].to, hidden_at, err);
    }
    snprintf(path, sizeof path, "%s.q_b_proj", l->module);
    if (status == GAC_OK && !l->q.present)
        status = linear_resolve(b, path, false, SIDE_OUT, &l->q, err);
    return status;
}

/* Finds the sizes. *known is false if the config lacks the number of heads or
 * a module is missing. */
static gac_status find_sizes(builder *b, latent *l, bool *known, gac_error *err)
{
    char q[160];
    gac_status status = config_size(b, b->config, "num_attention_heads", &l->n_heads, err);
    *known = status == GAC_OK && l->n_heads > 0 && l->q.present && l->kv_a.present &&
             l->kv_b.present && l->o.present;
    if (status != GAC_OK || !*known)
        return status;
    int64_t n = l->n_heads;
    l->q_rank = l->q_a.present ? l->q_a.n_out : 0;
    l->kv_rank = l->kv_b.n_in;
    l->rope = l->kv_a.n_out - l->kv_rank;
    l->nope = l->q.n_out / n - l->rope;
    l->v = l->o.n_in / n;
    if (l->q_a.present && l->q.n_in != l->q_rank)
        return builder_contradiction(b, linear_tensor(&l->q, SIDE_IN), "inputs", l->q.n_in,
                                     linear_tensor(&l->q_a, SIDE_OUT), "outputs", l->q_rank, err);
    if (n > MAX_HEADS || l->rope < 1 || l->nope < 1 || l->v < 1 || l->q.n_out % n ||
        l->o.n_in % n || l->kv_b.n_out != n * (l->nope + l->v))
        return gac_error_set(
            err, GAC_BAD_INPUT, "%s: the projections of %s do not divide into %lld heads",
            gac_checkpoint_path(b->checkpoint), gac_quote(q, sizeof q, l->module), (long long)n);
    return GAC_OK;
}

static gac_status add_dim(builder *b, const latent *l, gac_role role, const char *name,
                          int64_t size, const char *reason, const char *key, int32_t *out,
                          gac_error *err)
{
    gac_status status = builder_add_dim(
        b, role, size, builder_display(b, "%s.%s", l->module, name),
        reason ? GAC_REFUSED : GAC_EXACT,
        reason ? reason : "zero rows of v and zero columns of o, per head", out, err);
    if (status != GAC_OK || !key)
        return status;
    b->dims[*out].dim.config_key = key;
    status = config_size(b, b->config, key, &b->dims[*out].dim.declared, err);
    gac_dim *d = &b->dims[*out].dim;
    d->compressed = d->declared >= 0 && d->declared != size;
    b->found |= d->compressed ? FOUND_DIRECT : 0;
    return status;
}

/* Binds a latent vector: the outputs of from, a norm, and the inputs of to. */
static gac_status bind_latent(builder *b, const latent *l, const char *name, const char *key,
                              const linear *from, const linear *to, int64_t size, gac_error *err)
{
    int32_t dim;
    int32_t norm =
        builder_find(b, "%s.%c%s_a_layernorm.weight", l->module, *name, *name == 'k' ? "v" : "");
    gac_status status = add_dim(b, l, GAC_ROLE_RANK, name, size, norm_reason, key, &dim, err);
    if (status == GAC_OK)
        status = linear_bind(b, from, SIDE_OUT, dim, 0, 1, GAC_REPEAT_WHOLE, err);
    if (status == GAC_OK)
        status = linear_bind(b, to, SIDE_IN, dim, 0, 1, GAC_REPEAT_WHOLE, err);
    if (status == GAC_OK && norm >= 0)
        status = builder_expect_axes(b, norm, 1, err);
    if (status != GAC_OK || norm < 0)
        return status;
    if (builder_tensor(b, norm)->shape[0] != size)
        return builder_contradiction(b, norm, "entries", builder_tensor(b, norm)->shape[0],
                                     linear_tensor(to, SIDE_IN), "inputs", size, err);
    return builder_add_place(b, dim, (gac_place){ norm, 0, GAC_REPEAT_WHOLE, 0, 1, true }, err);
}

/* Binds the sizes of heads. The rows of kv_b_proj are, for each head, the part
 * of the key that does not rotate, and the value. */
static gac_status bind_heads(builder *b, const latent *l, gac_error *err)
{
    const int64_t n = l->n_heads, group = l->nope + l->v;
    int32_t qk, nope, rope, v;
    gac_status status =
        add_dim(b, l, GAC_ROLE_QK_HEAD, "qk_head", l->nope + l->rope, scale_reason, NULL, &qk, err);
    if (status == GAC_OK)
        status = add_dim(b, l, GAC_ROLE_QK_HEAD, "qk_nope", l->nope, scale_reason,
                         "qk_nope_head_dim", &nope, err);
    if (status == GAC_OK)
        status = add_dim(b, l, GAC_ROLE_QK_HEAD, "qk_rope", l->rope, scale_reason,
                         "qk_rope_head_dim", &rope, err);
    if (status == GAC_OK)
        status = add_dim(b, l, GAC_ROLE_V_HEAD, "v_head", l->v, NULL, "v_head_dim", &v, err);
    if (status == GAC_OK)
        status = linear_bind(b, &l->q, SIDE_OUT, qk, 0, n, GAC_REPEAT_HEAD, err);
    if (status == GAC_OK)
        status = linear_bind(b, &l->kv_a, SIDE_OUT, rope, l->kv_rank, 1, GAC_REPEAT_GROUP, err);
    for (int64_t i = 0; i < n && status == GAC_OK; i++) {
        status = linear_bind(b, &l->kv_b, SIDE_OUT, nope, i * group, 1, GAC_REPEAT_HEAD, err);
        if (status == GAC_OK)
            status =
                linear_bind(b, &l->kv_b, SIDE_OUT, v, i * group + l->nope, 1, GAC_REPEAT_HEAD, err);
    }
    if (status == GAC_OK)
        status = linear_bind(b, &l->o, SIDE_IN, v, 0, n, GAC_REPEAT_HEAD, err);
    return status == GAC_OK ? attention_add_op(b, n, n, qk, v, err) : status;
}

gac_status latent_attention(builder *b, int32_t layer, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    bool known;
    layer_path(b, layer, "self_attn", module, sizeof module);
    latent l = { .module = module, .n_heads = -1 };
    gac_status status = resolve(b, &l, err);
    if (status == GAC_OK)
        status = find_sizes(b, &l, &known, err);
    if (status != GAC_OK || !known)
        return status;
    linear_split(b, &l.q, SIDE_OUT);
    linear_split(b, &l.kv_b, SIDE_OUT);
    linear_split(b, &l.o, SIDE_IN);
    if (l.q_a.present)
        status = bind_latent(b, &l, "q_rank", "q_lora_rank", &l.q_a, &l.q, l.q_rank, err);
    if (status == GAC_OK)
        status = bind_latent(b, &l, "kv_rank", "kv_lora_rank", &l.kv_a, &l.kv_b, l.kv_rank, err);
    if (status == GAC_OK && !l.q_a.present)
        status = linear_bind_hidden(b, &l.q, SIDE_IN, err);
    return status == GAC_OK ? bind_heads(b, &l, err) : status;
}

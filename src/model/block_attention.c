/* Attention: divides the rows of the projections into heads, and binds the head
 * sizes to the tensors. */
#include <string.h>

#include "model/model_internal.h"
#include <gac/model.h>

static const char tied_rescaled[] =
    "exact alone, but the runtime has one head size for q, k and v, so it changes with qk_head";
static const char rotary_reason[] =
    "the runtime derives softmax scale and rotary frequencies from the head size: q must be "
    "scaled and the frequencies stated, equal up to rounding";
static const char fixed_reason[] = "the runtime takes hidden size / heads as the head size";
static const char norm_reason[] =
    "a norm over the head size (q_norm, k_norm) would average over the zeros";
static const char scalar_reason[] =
    "the config states softmax scale or a partial rotation apart from the head size";
static const char type_reason[] =
    "the config's type of rotary embedding cannot be stated for another head size";
static const char odd_reason[] = "an odd head size has no halves to rotate";
static const char shared_norm_reason[] =
    "a norm over the inputs of the output projection would average over the zeros";
/* More heads than any model has; a place is made for each. */
enum { MAX_GROUPS = 16384 };

/* How the rows of one layer's projections divide into heads. */
typedef struct head_layout {
    int64_t n_q, n_kv;       /* number of heads */
    int64_t qk_size, v_size; /* size of a head */
    bool pruned, direct;
} head_layout;

/* Sizes of the projections, as stored. */
typedef struct head_rows {
    int64_t q, k, v, o; /* output rows of q, k and v; input columns of o */
    int64_t fused;      /* rows of a fused q, k and v; otherwise 0 */
} head_rows;

static bool whole_heads(const head_rows *r, int64_t size, head_layout *out)
{
    if (size < 1 || r->q % size || r->k % size || r->v != r->k || r->k < size)
        return false;
    *out = (head_layout){ r->q / size, r->k / size, size, size, false, false };
    return out->n_q % out->n_kv == 0 && r->o == r->q;
}

static bool whole_sizes(const head_rows *r, int64_t n_q, int64_t n_kv, head_layout *out)
{
    if (n_q < 1 || n_kv < 1 || r->q % n_q || r->k % n_kv || r->v % n_kv ||
        r->q / n_q != r->k / n_kv)
        return false;
    *out = (head_layout){ n_q, n_kv, r->q / n_q, r->v / n_kv, false, false };
    return r->o == n_q * out->v_size;
}

/* Uses the config's number of heads and head size if they fit the rows.
 * Otherwise it looks for fewer heads of that size (pruned), or as many heads of
 * another size (direct). */
static gac_status divide(builder *b, const attention_spec *spec, const head_rows *rows,
                         head_layout *out, bool *known, gac_error *err)
{
    head_layout heads, sizes;
    *known = true;
    bool by_heads = whole_heads(rows, spec->head_dim, &heads);
    bool by_sizes = whole_sizes(rows, spec->n_heads, spec->n_kv_heads, &sizes);
    if (by_heads && heads.n_q == spec->n_heads) {
        *out = heads;
        out->pruned = heads.n_kv != spec->n_kv_heads;
        return GAC_OK;
    }
    /* A config with per-layer head ranks means that the tool changed sizes, not
     * the number of heads. */
    bool lists_ranks = json_is_array(json_object_get(b->config, "q_ranks"));
    if (by_heads && !(by_sizes && lists_ranks)) {
        *out = heads;
        out->pruned = true;
        if (!by_sizes || gac_config_has_our_code(b->config)) /* we take whole heads away */
            return GAC_OK;
        return builder_note(b, err,
                            "%s: read as %lld heads of %lld; %lld heads of %lld would fit as well "
                            "(head_dim of config.json decides)",
                            spec->module, (long long)heads.n_q, (long long)heads.qk_size,
                            (long long)sizes.n_q, (long long)sizes.qk_size);
    }
    *known = by_sizes;
    *out = sizes;
    out->direct = true;
    return GAC_OK;
}

/* Reports the two tensors that disagree if the rows do not divide into heads.
 * tensors has those of q, k, v and o. */
static gac_status no_division(builder *b, const attention_spec *spec, const head_rows *r,
                              const int32_t tensors[4], gac_error *err)
{
    char qp[200], qt[160];
    int64_t n_q = spec->n_heads, n_kv = spec->n_kv_heads;
    bool q_divides = r->q % n_q == 0, k_divides = r->k % n_kv == 0;
    if (tensors[0] == tensors[1])
        return gac_error_set(
            err, GAC_BAD_INPUT,
            "%s: tensor \"%s\": its %lld outputs do not divide into %lld + 2 x %lld heads",
            gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint)),
            gac_quote(qt, sizeof qt, builder_tensor(b, tensors[0])->name), (long long)r->fused,
            (long long)n_q, (long long)n_kv);
    if (!q_divides || !k_divides || r->q / n_q != r->k / n_kv)
        return builder_contradiction(b, tensors[0], "outputs", r->q, tensors[1],
                                     "outputs, which makes other head sizes", r->k, err);
    if (r->v % n_kv != 0)
        return builder_contradiction(b, tensors[2], "outputs", r->v, tensors[1],
                                     "outputs, which divide into the heads", r->k, err);
    return builder_contradiction(b, tensors[3], "inputs", r->o, tensors[2],
                                 "outputs, which makes another head size", r->v, err);
}

typedef struct projections {
    linear q, k, v, o;
    bool fused; /* q holds q, k and v one after another */
} projections;

static gac_status resolve_all(builder *b, const attention_spec *spec, projections *p,
                              gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    const char *names[4] = { spec->q, spec->k, spec->v, spec->o };
    linear *linears[4] = { &p->q, &p->k, &p->v, &p->o };
    gac_status status = GAC_OK;
    memset(p, 0, sizeof *p);
    p->fused = !spec->k;
    int n_present = 0, n_wanted = 0;
    for (int i = 0; i < 4 && status == GAC_OK; i++) {
        if (!names[i])
            continue;
        snprintf(module, sizeof module, "%s.%s", spec->module, names[i]);
        status = linear_resolve(b, module, spec->transposed, i < 3 ? SIDE_IN : SIDE_OUT, linears[i],
                                err);
        n_wanted++;
        n_present += linears[i]->present;
    }
    /* Heads need all four projections. A single shard may hold only some. */
    for (int i = 0; i < 4 && status == GAC_OK && n_present && n_present < n_wanted; i++)
        if (names[i] && !linears[i]->present && !(spec->shares_kv && (i == 1 || i == 2)))
            status = builder_note(b, err, "%s.%s is missing", spec->module, names[i]);
    return status;
}

static gac_status bind_outer(builder *b, const projections *p, gac_error *err)
{
    const linear *inner[3] = { &p->q, &p->k, &p->v };
    gac_status status = GAC_OK;
    for (int i = 0; i < 3 && status == GAC_OK; i++)
        if (inner[i]->present) {
            status = linear_bind_hidden(b, inner[i], SIDE_IN, err);
            linear_split(b, inner[i], SIDE_OUT);
        }
    if (status == GAC_OK && p->o.present) {
        status = linear_bind_hidden(b, &p->o, SIDE_OUT, err);
        linear_split(b, &p->o, SIDE_IN);
    }
    return status;
}

/* Binds the last axis of a norm's tensor, if there is one. It has the size of
 * one head or, in some families, of all heads together. Cohere's has an axis
 * for the heads. */
static gac_status bind_norm_tensor(builder *b, int32_t tensor, int32_t dim, gac_error *err)
{
    int64_t size = b->dims[dim].dim.size;
    int32_t axis = tensor >= 0 && builder_tensor(b, tensor)->n_axes == 2 ? 1 : 0;
    if (tensor < 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, tensor, axis + 1, err);
    if (status != GAC_OK)
        return status;
    int64_t n = builder_tensor(b, tensor)->shape[axis];
    if (size == 0 || n % size != 0)
        return builder_contradiction(b, tensor, "entries", n, b->dims[dim].first_tensor, "per head",
                                     size, err);
    return builder_add_place(b, dim,
                             (gac_place){ tensor, axis,
                                          n == size ? GAC_REPEAT_WHOLE : GAC_REPEAT_HEAD, 0,
                                          n / size, false },
                             err);
}

/* Binds the norms of q and k. */
static gac_status bind_head_norms(builder *b, const attention_spec *spec, int32_t dim, bool *found,
                                  gac_error *err)
{
    static const char *const names[] = { "q_norm",      "k_norm",          "q_layernorm",
                                         "k_layernorm", "query_layernorm", "key_layernorm" };
    gac_status status = GAC_OK;
    *found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == GAC_OK; i++) {
        int32_t weight = builder_find(b, "%s.%s.weight", spec->module, names[i]);
        int32_t bias = builder_find(b, "%s.%s.bias", spec->module, names[i]);
        *found = *found || weight >= 0 || bias >= 0;
        status = bind_norm_tensor(b, weight, dim, err);
        if (status == GAC_OK)
            status = bind_norm_tensor(b, bias, dim, err);
        /* StableLM has a norm for each head. */
        for (int32_t h = 0; status == GAC_OK; h++) {
            weight = builder_find(b, "%s.%s.norms.%d.weight", spec->module, names[i], h);
            if (weight < 0)
                break;
            *found = true;
            status = bind_norm_tensor(b, weight, dim, err);
        }
    }
    return status;
}

static void judge_head(const builder *b, const attention_spec *spec, int64_t size, bool normed,
                       gac_exactness *exactness, const char **reason)
{
    *exactness = GAC_REFUSED;
    if (normed) {
        *reason = norm_reason;
    } else if (spec->refused) {
        *reason = spec->refused;
    } else if (spec->head_is_fixed) {
        *reason = fixed_reason;
    } else if (json_object_get(b->config, "query_pre_attn_scalar") ||
               json_object_get(b->config, "partial_rotary_factor") ||
               json_object_get(json_object_get(b->config, "rope_parameters"),
                               "partial_rotary_factor") ||
               json_object_get(json_object_get(b->config, "rope_scaling"),
                               "partial_rotary_factor")) {
        *reason = scalar_reason;
    } else if (spec->rotary && !gac_rotary_can_restate(gac_rotary_type(b->config))) {
        *reason = type_reason;
    } else if (spec->rotary && size % 2 != 0) {
        *reason = odd_reason;
    } else {
        *exactness = GAC_RESCALED;
        *reason = rotary_reason;
    }
}

/* Binds the rows of a projection that holds, for each k and v head, the q heads
 * that share it, and then it. */
static gac_status bind_groups(builder *b, const linear *qkv, const head_layout *h,
                              gac_repeat repeat, const int32_t dims[2], gac_error *err)
{
    char q[160];
    const int64_t n_qk = h->n_q / h->n_kv + 1, group = n_qk * h->qk_size + h->v_size;
    gac_status status = GAC_OK;
    if (h->n_kv > MAX_GROUPS)
        return gac_error_set(
            err, GAC_BAD_INPUT, "tensor \"%s\": more than %d heads",
            gac_quote(q, sizeof q, builder_tensor(b, linear_tensor(qkv, SIDE_OUT))->name),
            MAX_GROUPS);
    for (int64_t i = 0; i < h->n_kv && status == GAC_OK; i++) {
        status = linear_bind(b, qkv, SIDE_OUT, dims[0], i * group, n_qk, repeat, err);
        if (status == GAC_OK)
            status = linear_bind(b, qkv, SIDE_OUT, dims[1], i * group + n_qk * h->qk_size, 1,
                                 GAC_REPEAT_HEAD, err);
    }
    return status;
}

static gac_status bind_heads(builder *b, const attention_spec *spec, const projections *p,
                             const head_layout *h, int32_t dims[2], gac_error *err)
{
    gac_repeat repeat = spec->rotary ? GAC_REPEAT_HALF : GAC_REPEAT_HEAD;
    int64_t n_slices = spec->gated_queries ? 2 * h->n_q : h->n_q;
    int64_t k_start = p->fused ? h->n_q * h->qk_size : 0;
    int64_t v_start = p->fused ? (h->n_q + h->n_kv) * h->qk_size : 0;
    const linear *k = p->fused ? &p->q : &p->k, *v = p->fused ? &p->q : &p->v;
    gac_status status = builder_add_dim(b, GAC_ROLE_QK_HEAD, h->qk_size,
                                        builder_display(b, "%s.qk_head", spec->module), GAC_EXACT,
                                        "", &dims[0], err);
    if (status == GAC_OK)
        status = builder_add_dim(b, GAC_ROLE_V_HEAD, h->v_size,
                                 builder_display(b, "%s.v_head", spec->module), GAC_EXACT,
                                 "zero rows of v and zero columns of o, per head", &dims[1], err);
    if (status == GAC_OK && p->fused && spec->layout == QKV_BY_GROUP) {
        status = bind_groups(b, &p->q, h, repeat, dims, err);
    } else if (status == GAC_OK) {
        status = linear_bind(b, &p->q, SIDE_OUT, dims[0], 0, n_slices, repeat, err);
        if (status == GAC_OK)
            status = linear_bind(b, k, SIDE_OUT, dims[0], k_start, h->n_kv, repeat, err);
        if (status == GAC_OK)
            status = linear_bind(b, v, SIDE_OUT, dims[1], v_start, h->n_kv, GAC_REPEAT_HEAD, err);
    }
    if (status == GAC_OK)
        status = linear_bind(b, &p->o, SIDE_IN, dims[1], 0, h->n_q, GAC_REPEAT_HEAD, err);
    return status;
}

/* Sets exactness and ties after all places are bound. */
static gac_status settle_heads(builder *b, const attention_spec *spec, const head_layout *h,
                               const int32_t dims[2], gac_error *err)
{
    bool normed;
    gac_exactness exactness;
    const char *reason;
    gac_status status = bind_head_norms(b, spec, dims[0], &normed, err);
    if (status != GAC_OK)
        return status;
    gac_dim *qk = &b->dims[dims[0]].dim, *v = &b->dims[dims[1]].dim;
    judge_head(b, spec, h->qk_size, normed, &exactness, &reason);
    if (qk->exactness != GAC_REFUSED) {
        qk->exactness = exactness;
        qk->reason = reason;
    }
    qk->declared = spec->head_dim;
    qk->config_key = spec->head_is_fixed ? NULL : "head_dim";
    /* The config has one key for both head sizes, so v is tied to qk. */
    if (h->qk_size == h->v_size) {
        v->tied_to = dims[0];
        v->declared = qk->declared;
        v->config_key = qk->config_key;
        if (v->exactness < qk->exactness) {
            v->exactness = qk->exactness;
            v->reason = qk->exactness == GAC_REFUSED ? qk->reason : tied_rescaled;
        }
    }
    int32_t o_norm =
        spec->o_norm ? builder_find(b, "%s.%s.weight", spec->module, spec->o_norm) : -1;
    if (o_norm >= 0) {
        v->exactness = GAC_REFUSED;
        v->reason = shared_norm_reason;
        status = bind_norm_tensor(b, o_norm, dims[1], err);
        if (status != GAC_OK)
            return status;
    }
    /* The norms of q and k have the eps of those over the hidden size. */
    if (normed && b->hidden >= 0 && b->dims[b->hidden].dim.exactness == GAC_RESCALED) {
        b->dims[b->hidden].dim.exactness = GAC_REFUSED;
        b->dims[b->hidden].dim.reason =
            "q_norm and k_norm have the eps of the norms over the hidden size, which would change";
    }
    /* No designer chooses such a size; a compressor did. */
    bool odd_stated = spec->head_dim_stated && h->qk_size % 8 != 0;
    qk->compressed = h->qk_size != spec->head_dim || odd_stated;
    v->compressed = h->v_size != spec->head_dim || odd_stated;
    b->found |= qk->compressed || v->compressed ? FOUND_DIRECT : 0;
    b->found |= h->pruned ? FOUND_PRUNED : 0;
    b->stale_heads = b->stale_heads || h->n_q != spec->n_heads || h->n_kv != spec->n_kv_heads;
    return GAC_OK;
}

gac_status attention_add_op(builder *b, int64_t n_q, int64_t n_kv, int32_t qk_dim, int32_t v_dim,
                            gac_error *err)
{
    if (!gac_grow((void **)&b->ops, b->n_ops, &b->op_capacity, sizeof *b->ops))
        return gac_error_no_memory(err);
    b->ops[b->n_ops++] = (op_entry){ .op = { .kind = GAC_OP_SDPA,
                                             .tensor = -1,
                                             .layer = b->layer,
                                             .count = 1,
                                             .share = 1,
                                             .n_q_heads = n_q,
                                             .n_kv_heads = n_kv,
                                             .qk_dim = qk_dim,
                                             .v_dim = v_dim } };
    return GAC_OK;
}

/* Finds the rows of q, k and v. A fused projection stores only their sum. If
 * the sum does not divide by the config's heads, the output projection gives
 * q's rows. */
static head_rows take_rows(const attention_spec *spec, const projections *p)
{
    head_rows rows = { p->q.n_out, p->k.n_out, p->v.n_out, p->o.n_in, 0 };
    if (spec->gated_queries && rows.q % 2 == 0)
        rows.q /= 2;
    if (!p->fused)
        return rows;
    int64_t n_all = spec->n_heads + 2 * spec->n_kv_heads;
    rows.fused = p->q.n_out;
    rows.q = p->o.n_in;
    rows.k = rows.v = (rows.fused - rows.q) / 2;
    if (rows.fused % n_all == 0) {
        rows.q = spec->n_heads * (rows.fused / n_all);
        rows.k = rows.v = spec->n_kv_heads * (rows.fused / n_all);
    }
    return rows;
}

gac_status block_attention(builder *b, const attention_spec *spec, gac_error *err)
{
    projections p;
    head_layout layout;
    int32_t dims[2];
    gac_status status = resolve_all(b, spec, &p, err);
    if (status == GAC_OK)
        status = bind_outer(b, &p, err);
    bool complete = p.q.present && p.o.present && (p.fused || (p.k.present && p.v.present));
    if (status != GAC_OK || !complete)
        return status;
    if (spec->n_heads < 0)
        return GAC_OK; /* the family has noted it once */
    bool known;
    head_rows rows = take_rows(spec, &p);
    status = divide(b, spec, &rows, &layout, &known, err);
    if (status != GAC_OK)
        return status;
    if (!known || (p.fused && rows.q + rows.k + rows.v != rows.fused)) {
        int32_t tensors[4] = { linear_tensor(&p.q, SIDE_OUT),
                               linear_tensor(p.fused ? &p.q : &p.k, SIDE_OUT),
                               linear_tensor(p.fused ? &p.q : &p.v, SIDE_OUT),
                               linear_tensor(&p.o, SIDE_IN) };
        return no_division(b, spec, &rows, tensors, err);
    }
    status = bind_heads(b, spec, &p, &layout, dims, err);
    if (status == GAC_OK)
        status = settle_heads(b, spec, &layout, dims, err);
    if (status == GAC_OK)
        status = attention_add_op(b, layout.n_q, layout.n_kv, dims[0], dims[1], err);
    return status;
}

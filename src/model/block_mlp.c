/* The MLP of a layer, the embedding and the output head. */
#include <string.h>

#include "model/model_internal.h"

typedef struct mlp_modules {
    linear gate, up, down;
    bool complete;
} mlp_modules;

static gac_status resolve_modules(builder *b, const mlp_spec *spec, mlp_modules *p, gac_error *err)
{
    char module[GAC_MAX_NAME_BYTES];
    const char *names[3] = { spec->gate, spec->up, spec->down };
    linear *linears[3] = { &p->gate, &p->up, &p->down };
    gac_status status = GAC_OK;
    int n_wanted = 0, n_present = 0;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 3 && status == GAC_OK; i++) {
        if (!names[i])
            continue;
        snprintf(module, sizeof module, "%s%s%s", spec->module, *names[i] ? "." : "", names[i]);
        status = linear_resolve(b, module, spec->transposed, i < 2 ? SIDE_IN : SIDE_OUT, linears[i],
                                err);
        n_wanted++;
        n_present += linears[i]->present;
        if (!linears[i]->present)
            continue;
        for (int32_t k = 0; k < linears[i]->n_ops; k++)
            b->ops[linears[i]->first_op + k].op.share = spec->share;
        if (status == GAC_OK)
            status = linear_bind_hidden(b, linears[i], i < 2 ? SIDE_IN : SIDE_OUT, err);
        linear_split(b, linears[i], i < 2 ? SIDE_OUT : SIDE_IN);
    }
    p->complete = n_present == n_wanted;
    for (int i = 0; i < 3 && status == GAC_OK && n_present && n_present < n_wanted; i++)
        if (names[i] && !linears[i]->present)
            status = builder_note(b, err, "%s.%s is missing", spec->module, names[i]);
    return status;
}

/* In an ungated MLP, padded rows give activation(0). Padding is known to be
 * exact if that is 0. */
static bool activation_keeps_zero(const builder *b)
{
    static const char *const known[] = { "relu",
                                         "relu2",
                                         "relu6",
                                         "leaky_relu",
                                         "silu",
                                         "swish",
                                         "mish",
                                         "tanh",
                                         "gelu",
                                         "gelu_new",
                                         "gelu_fast",
                                         "gelu_python",
                                         "gelu_accurate",
                                         "gelu_pytorch_tanh",
                                         "gelu_python_tanh",
                                         "quick_gelu",
                                         NULL };
    static const char *const keys[] = { "activation_function", "hidden_act", "hidden_activation",
                                        "activation", NULL };
    const char *name = NULL;
    for (int i = 0; keys[i] && !name; i++)
        name = config_string(b, keys[i]);
    for (int i = 0; name && known[i]; i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return !name;
}

/* Whether the activation is xIELU, which is about -1e-6 at 0. */
static bool activation_is_xielu(const builder *b)
{
    const char *name = config_string(b, "hidden_act");
    return name && strcmp(name, "xielu") == 0;
}

/* Returns the sum of the slices of the width according to the first module that
 * is present, and a tensor to name in messages. */
static int64_t extent_of(const mlp_modules *p, bool fused, int32_t *tensor)
{
    if (p->gate.present) {
        *tensor = linear_tensor(&p->gate, SIDE_OUT);
        return fused ? p->gate.n_out / 2 : p->gate.n_out;
    }
    if (p->up.present) {
        *tensor = linear_tensor(&p->up, SIDE_OUT);
        return p->up.n_out;
    }
    *tensor = linear_tensor(&p->down, SIDE_IN);
    return p->down.n_in;
}

/* Binds n_slices slices of the width to gate, up and down. */
static gac_status bind_width(builder *b, const mlp_modules *p, bool fused, int32_t dim,
                             int64_t n_slices, int32_t named, gac_error *err)
{
    int64_t extent = b->dims[dim].dim.size * n_slices;
    gac_repeat repeat = n_slices > 1 ? GAC_REPEAT_GROUP : GAC_REPEAT_WHOLE;
    gac_status status = GAC_OK;
    if (p->gate.present) {
        int64_t n_parts = fused ? 2 : 1;
        if (p->gate.n_out != n_parts * extent)
            return builder_contradiction(b, named, "outputs", p->gate.n_out, named,
                                         "for gate and up, an odd number", p->gate.n_out, err);
        status = linear_bind(b, &p->gate, SIDE_OUT, dim, 0, n_parts * n_slices,
                             fused ? GAC_REPEAT_GROUP : repeat, err);
    }
    if (status == GAC_OK && p->up.present) {
        if (p->up.n_out != extent)
            return builder_contradiction(b, linear_tensor(&p->up, SIDE_OUT), "outputs", p->up.n_out,
                                         named, "outputs", extent, err);
        status = linear_bind(b, &p->up, SIDE_OUT, dim, 0, n_slices, repeat, err);
    }
    if (status == GAC_OK && p->down.present) {
        if (p->down.n_in != extent)
            return builder_contradiction(b, linear_tensor(&p->down, SIDE_IN), "inputs",
                                         p->down.n_in, named, "outputs", extent, err);
        status = linear_bind(b, &p->down, SIDE_IN, dim, 0, n_slices, repeat, err);
    }
    return status;
}

/* Binds a norm over the width, which forbids padding. */
static gac_status bind_width_norm(builder *b, const mlp_spec *spec, int32_t dim, gac_error *err)
{
    int32_t tensor = spec->norm ? builder_find(b, "%s.%s.weight", spec->module, spec->norm) : -1;
    if (tensor < 0)
        return GAC_OK;
    gac_status status = builder_expect_axes(b, tensor, 1, err);
    if (status != GAC_OK)
        return status;
    gac_dim *d = &b->dims[dim].dim;
    d->exactness = GAC_REFUSED;
    d->reason = "a norm over the MLP width would average over the zeros";
    if (builder_tensor(b, tensor)->shape[0] != d->size)
        return builder_contradiction(b, tensor, "entries", builder_tensor(b, tensor)->shape[0],
                                     b->dims[dim].first_tensor, "outputs", d->size, err);
    return builder_add_place(b, dim, (gac_place){ tensor, 0, GAC_REPEAT_WHOLE, 0, 1, false }, err);
}

/* Whether zeros may be added to a width, and why. */
static gac_exactness judge_width(const builder *b, const mlp_spec *spec, bool complete,
                                 bool divides, const char **reason)
{
    bool xielu = !spec->gate && activation_is_xielu(b);
    bool exact =
        complete && divides && !spec->refused && (spec->gate || xielu || activation_keeps_zero(b));
    *reason = !complete       ? "a module of the MLP is missing"
              : spec->refused ? spec->refused
              : !divides      ? "the config states it as a multiple of the width of one expert"
              : spec->gate    ? "zero rows of gate and up give 0, zero columns of down add 0"
              : xielu         ? "zero columns of down add 0 times the activation of 0"
              : exact         ? "zero rows give activation(0) = 0, zero columns add 0"
                              : "the activation is not known to be 0 at 0";
    return exact ? GAC_EXACT : GAC_REFUSED;
}

gac_status block_mlp(builder *b, const mlp_spec *spec, gac_error *err)
{
    mlp_modules p;
    int32_t dim, named;
    const char *reason;
    gac_status status = resolve_modules(b, spec, &p, err);
    if (status != GAC_OK || !(p.gate.present || p.up.present || p.down.present))
        return status;
    bool fused = spec->gate && !spec->up;
    int64_t extent = extent_of(&p, fused, &named);
    bool divides = spec->n_slices < 2 || extent % spec->n_slices == 0;
    int64_t n_slices = divides && spec->n_slices > 1 ? spec->n_slices : 1;
    gac_exactness exactness = judge_width(b, spec, p.complete, divides, &reason);
    status = builder_add_dim(b, spec->role, extent / n_slices, builder_display(b, "%s", spec->name),
                             exactness, reason, &dim, err);
    if (status == GAC_OK)
        status = bind_width(b, &p, fused, dim, n_slices, named, err);
    if (status == GAC_OK)
        status = bind_width_norm(b, spec, dim, err);
    if (status != GAC_OK)
        return status;
    gac_dim *d = &b->dims[dim].dim;
    d->declared = spec->declared;
    d->config_key = spec->config_key;
    d->compressed = spec->chosen || (spec->declared >= 0 && spec->declared != d->size);
    if (d->compressed)
        b->found |= FOUND_PRUNED;
    return GAC_OK;
}

static gac_status add_vocab(builder *b, int32_t tensor, int32_t axis, gac_error *err)
{
    int64_t size = builder_tensor(b, tensor)->shape[axis];
    gac_status status = GAC_OK;
    if (b->vocab < 0) {
        status = builder_add_dim(b, GAC_ROLE_VOCAB, size, "vocab", GAC_REFUSED,
                                 "a zero row gives logit 0, which can win and changes the softmax",
                                 &b->vocab, err);
        if (status != GAC_OK)
            return status;
        b->dims[b->vocab].dim.config_key = "vocab_size";
        status = config_size(b, b->config, "vocab_size", &b->dims[b->vocab].dim.declared, err);
    }
    const dim_entry *d = &b->dims[b->vocab];
    if (status == GAC_OK && d->dim.size != size)
        return builder_contradiction(b, tensor, "entries in the vocabulary", size, d->first_tensor,
                                     "there", d->dim.size, err);
    if (status == GAC_OK)
        status = builder_add_place(b, b->vocab,
                                   (gac_place){ tensor, axis, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    return status;
}

/* Adds the output head's GEMM for a tied embedding. The embedding itself is a
 * lookup and needs no operator. */
static gac_status tied_head(builder *b, int32_t tensor, gac_error *err)
{
    int32_t op;
    gac_status status = builder_add_gemm(b, tensor, 0, 1, &op, err);
    if (status == GAC_OK) {
        b->ops[op].op.last_only = true;
        b->ops[op].op.split = GAC_SPLIT_N;
    }
    return status;
}

/* Binds the outputs of a head whose weight is packed to the vocabulary of the embedding. */
static gac_status packed_head(builder *b, const linear *l, gac_error *err)
{
    if (b->vocab < 0)
        return GAC_OK;
    const dim_entry *d = &b->dims[b->vocab];
    if (d->dim.size != l->n_out)
        return builder_contradiction(b, l->weight, "outputs", l->n_out, d->first_tensor,
                                     "entries in the vocabulary", d->dim.size, err);
    return linear_bind(b, l, SIDE_OUT, b->vocab, 0, 1, GAC_REPEAT_WHOLE, err);
}

static gac_status own_head(builder *b, const linear *l, gac_error *err)
{
    for (int32_t i = 0; i < l->n_ops; i++)
        b->ops[l->first_op + i].op.last_only = true;
    linear_split(b, l, SIDE_OUT);
    gac_status status = linear_bind_hidden(b, l, SIDE_IN, err);
    if (status == GAC_OK && l->packed)
        return packed_head(b, l, err);
    for (int32_t i = 0; i < l->n_segments && status == GAC_OK; i++) {
        status = add_vocab(b, l->out[i].tensor, l->out[i].axis, err);
        if (status == GAC_OK && l->bias[i].tensor >= 0)
            status = add_vocab(b, l->bias[i].tensor, 0, err);
    }
    return status;
}

gac_status block_embedding(builder *b, const char *embedding, const char *head, gac_error *err)
{
    linear l;
    gac_status status = GAC_OK;
    int32_t tensor = builder_find(b, "%s.weight", embedding);
    if (tensor >= 0) {
        status = builder_expect_axes(b, tensor, 2, err);
        if (status == GAC_OK)
            status = add_vocab(b, tensor, 0, err);
        if (status == GAC_OK)
            status = builder_bind_hidden(b, tensor, 1, err);
    }
    if (status == GAC_OK)
        status = linear_resolve(b, head, false, SIDE_IN, &l, err);
    if (status == GAC_OK && l.present)
        return own_head(b, &l, err);
    if (status == GAC_OK && tensor >= 0)
        status = tied_head(b, tensor, err);
    return status;
}

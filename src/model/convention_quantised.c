/* Linear modules whose weight is quantised: packed integers or 8-bit floats, with scales beside
 * them. Their sizes are read and judged, and never changed: a padded size would need other scales,
 * zero points and packing. */
#include <string.h>

#include "model/model_internal.h"

/* A module as its tensors describe it. */
typedef struct packed {
    const char *method;             /* as users know it */
    unsigned found;                 /* its bit of enum found */
    int32_t weight;                 /* the packed tensor */
    int64_t n_out, n_in;            /* of the matrix that it stands for */
    int64_t n_packed, n_unpacked;   /* weights that the packed axis has room for, and has */
    int64_t group;                  /* inputs that share a scale; 0: all of them */
    int64_t n_multiple, k_multiple; /* what kernels ask; 1: nothing */
    segment out, in; /* an axis of some tensor with all outputs, all inputs; or tensor -1 */
} packed;

/* What Marlin kernels ask of 4-bit and 8-bit integers: multiples of 64 and 128, either way round.
 */
enum { MARLIN = 64, FP8 = 16, NVFP4 = 16 };

static const json_t *settings(const builder *b)
{
    const json_t *own = json_object_get(b->config, "quantization_config");
    return own ? own : json_object_get(b->config, "compression_config");
}

/* Returns the first entry of config_groups, or NULL. */
static const json_t *first_group(const builder *b)
{
    const json_t *groups = json_object_get(settings(b), "config_groups");
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)groups));
    return json_object_get(group, "weights");
}

/* Returns the number of bits per weight that the config states, or 4. */
static int64_t bits_of(const builder *b)
{
    const json_t *bits = json_object_get(settings(b), "bits");
    if (!bits)
        bits = json_object_get(settings(b), "w_bit");
    if (!bits)
        bits = json_object_get(first_group(b), "num_bits");
    int64_t n = json_is_integer(bits) ? json_integer_value(bits) : 4;
    return n == 2 || n == 3 || n == 4 || n == 8 ? n : 4;
}

/* Finds a companion of the weight, with this number of axes. -1 if there is none, or if an axis is
 * too long to be one: an empty tensor may state any length. */
static int32_t companion(builder *b, const char *module, const char *name, int32_t n_axes)
{
    int32_t tensor = builder_find(b, "%s.%s", module, name);
    if (tensor < 0 || builder_tensor(b, tensor)->n_axes != n_axes)
        return -1;
    for (int32_t a = 0; a < n_axes; a++)
        if (builder_tensor(b, tensor)->shape[a] > INT32_MAX)
            return -1;
    return tensor;
}

static int64_t axis_of(const builder *b, int32_t tensor, int32_t axis)
{
    return builder_tensor(b, tensor)->shape[axis];
}

/* Returns how many inputs share each of n_groups scales: what the config states, or else what
 * divides them evenly. */
static int64_t group_of(const builder *b, int64_t n_in, int64_t n_groups)
{
    static const char *const keys[] = { "group_size", "q_group_size", NULL };
    const json_t *block = json_object_get(settings(b), "weight_block_size");
    const json_t *stated = json_array_get(block, 1);
    for (int i = 0; keys[i] && !stated; i++)
        stated = json_object_get(settings(b), keys[i]);
    if (!stated)
        stated = json_object_get(first_group(b), "group_size");
    int64_t group = json_integer_value(stated);
    if (n_groups <= 1)
        return 0;
    if (group < 1 || group > n_in || (n_in + group - 1) / group != n_groups)
        group = (n_in + n_groups - 1) / n_groups;
    return group;
}

/* GPTQ: qweight (in / per, out); AWQ: qweight (in, out / per); per is the number of weights in 32
 * bits. Both: scales (groups, out). */
static void find_qweight(builder *b, const char *module, packed *p)
{
    int32_t weight = companion(b, module, "qweight", 2), scales = companion(b, module, "scales", 2);
    int32_t order = companion(b, module, "g_idx", 1);
    if (weight < 0 || scales < 0)
        return;
    int64_t rows = axis_of(b, weight, 0), bits = bits_of(b);
    bool awq = axis_of(b, weight, 1) != axis_of(b, scales, 1);
    *p = (packed){ .method = awq ? "AWQ" : "GPTQ",
                   .found = awq ? FOUND_AWQ : FOUND_GPTQ,
                   .weight = weight,
                   .n_out = axis_of(b, scales, 1),
                   .n_in = awq          ? rows
                           : order >= 0 ? axis_of(b, order, 0)
                                        : rows * 32 / bits,
                   .n_packed = axis_of(b, weight, awq ? 1 : 0) * 32 / bits,
                   .n_multiple = MARLIN,
                   .k_multiple = MARLIN,
                   .out = { .tensor = scales, .axis = 1 },
                   .in = { .tensor = order, .axis = 0 } };
    p->n_unpacked = awq ? p->n_out : p->n_in;
    p->group = group_of(b, p->n_in, axis_of(b, scales, 0));
}

/* compressed-tensors: weight_packed (out, in / per). NVFP4 has two weights in a byte and a scale of
 * 8 bits for 16 of them; llm-compressor calls it weight_packed, modelopt calls it weight. */
static void find_weight_packed(builder *b, const char *module, packed *p)
{
    int32_t weight = companion(b, module, "weight_packed", 2);
    int32_t scales = companion(b, module, "weight_scale", 2);
    bool modelopt = weight < 0 && companion(b, module, "weight_scale_2", 0) >= 0;
    if (modelopt)
        weight = companion(b, module, "weight", 2);
    if (weight < 0 || scales < 0)
        return;
    bool nvfp4 = builder_tensor(b, weight)->dtype == GAC_DTYPE_U8;
    bool mxfp4 = nvfp4 && builder_tensor(b, scales)->dtype == GAC_DTYPE_U8; /* powers of two */
    if (mxfp4 || (modelopt && !nvfp4))
        return;
    int64_t columns = axis_of(b, weight, 1);
    *p = (packed){ .method = nvfp4 ? "NVFP4" : "compressed-tensors",
                   .found = nvfp4 ? FOUND_FP4 : FOUND_COMPRESSED_TENSORS,
                   .weight = weight,
                   .n_out = axis_of(b, weight, 0),
                   .n_in = nvfp4 ? 2 * columns : columns * 32 / bits_of(b),
                   .n_multiple = nvfp4 ? NVFP4 : MARLIN,
                   .k_multiple = nvfp4 ? NVFP4 : MARLIN,
                   .out = { .tensor = scales, .axis = 0 },
                   .in = { .tensor = -1 } };
    p->group = group_of(b, p->n_in, axis_of(b, scales, 1));
}

/* bitsandbytes with 4 bits: weight (n_out · n_in / 2, 1). Its shape is lost, but the side that has
 * the hidden size gives the other one. */
static void find_flat_weight(builder *b, const char *module, side hidden_at, packed *p)
{
    int32_t weight = companion(b, module, "weight", 2);
    if (weight < 0 || builder_find(b, "%s.weight.absmax", module) < 0)
        return;
    int64_t n = 2 * builder_tensor(b, weight)->n_elements;
    int64_t hidden = b->hidden >= 0 ? b->dims[b->hidden].dim.size : 0;
    if (hidden < 1 || n % hidden != 0)
        return;
    *p = (packed){ .method = "bitsandbytes, 4 bits",
                   .found = FOUND_BITSANDBYTES,
                   .weight = weight,
                   .n_out = hidden_at == SIDE_OUT ? hidden : n / hidden,
                   .n_in = hidden_at == SIDE_OUT ? n / hidden : hidden,
                   .n_multiple = 1,
                   .k_multiple = 1,
                   .out = { .tensor = -1 },
                   .in = { .tensor = -1 } };
}

/* Describes what a linear module with this packed weight looks like. */
static gac_status describe(builder *b, const char *module, const packed *p, linear *out,
                           gac_error *err)
{
    gac_status status = builder_expect_axes(b, p->weight, 2, err);
    if (status == GAC_OK &&
        (p->n_out < 1 || p->n_in < 1 || p->n_out > INT32_MAX || p->n_in > INT32_MAX))
        status = builder_contradiction(b, p->weight, "outputs", p->n_out, p->weight, "inputs",
                                       p->n_in, err);
    if (status == GAC_OK && (p->n_packed < p->n_unpacked || p->n_packed - p->n_unpacked >= 32))
        status = builder_contradiction(b, p->weight, "weights on its packed axis", p->n_packed,
                                       p->out.tensor >= 0 ? p->out.tensor : p->weight, "beside it",
                                       p->n_unpacked, err);
    out->out = gac_arena_alloc(b->arena, sizeof *out->out);
    out->bias = gac_arena_alloc(b->arena, sizeof *out->bias);
    if (status == GAC_OK && (!out->out || !out->bias))
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, p->weight, 0, 1, &out->first_op, err);
    if (status != GAC_OK)
        return status;
    gac_op *op = &b->ops[out->first_op].op;
    op->n = p->n_out;
    op->k = p->n_in;
    op->n_multiple = p->n_multiple;
    if (!gac_lcm_i64(p->k_multiple, p->group ? p->group : 1, &op->k_multiple))
        op->k_multiple = p->k_multiple;
    out->present = out->packed = true;
    out->n_ops = out->n_segments = 1;
    out->n_out = p->n_out;
    out->n_in = p->n_in;
    out->out[0] = p->out;
    out->in = p->in;
    out->out[0].extent = p->n_out;
    out->in.extent = p->n_in;
    if (out->in.tensor >= 0 && axis_of(b, out->in.tensor, out->in.axis) != p->n_in)
        out->in.tensor = -1;
    if (out->out[0].tensor >= 0 && axis_of(b, out->out[0].tensor, out->out[0].axis) != p->n_out)
        out->out[0].tensor = -1;
    out->weight = p->weight;
    int32_t bias = builder_find(b, "%s.bias", module);
    out->bias[0] = (segment){ .tensor = bias, .extent = p->n_out };
    if (bias >= 0 && (builder_tensor(b, bias)->n_axes != 1 || axis_of(b, bias, 0) != p->n_out))
        return builder_contradiction(b, bias, "entries", builder_tensor(b, bias)->n_elements,
                                     p->weight, "outputs", p->n_out, err);
    if (bias >= 0)
        b->explained[bias] = true;
    char group[48] = "";
    if (p->group)
        snprintf(group, sizeof group, ", groups of %lld", (long long)p->group);
    out->why_fixed = gac_arena_printf(
        b->arena, "its weight is quantised (%s%s): scales and packing would have to change",
        p->method, group);
    b->found |= p->found;
    return out->why_fixed ? GAC_OK : gac_error_no_memory(err);
}

/* Explains the tensors beside a quantised weight. Returns how many there are. */
static int32_t explain_companions(builder *b, const char *module)
{
    static const char *const names[] = { "weight_scale",
                                         "weight_scale_inv",
                                         "weight_zero_point",
                                         "input_scale",
                                         "input_zero_point",
                                         "scales",
                                         "weight_scale_2",
                                         "weight_shape",
                                         "weight_g_idx",
                                         "qzeros",
                                         "g_idx",
                                         "weight_global_scale",
                                         "input_global_scale",
                                         "SCB",
                                         "weight_format",
                                         "k_scale",
                                         "v_scale",
                                         "output_scale",
                                         "weight.absmax",
                                         "weight.quant_map",
                                         "weight.nested_absmax",
                                         "weight.nested_quant_map",
                                         "weight.quant_state.bitsandbytes__nf4",
                                         "weight.quant_state.bitsandbytes__fp4",
                                         "activation_scale",
                                         NULL };
    int32_t n = 0;
    for (int i = 0; b->has_scales && names[i]; i++) {
        int32_t tensor = builder_find(b, "%s.%s", module, names[i]);
        if (tensor >= 0)
            b->explained[tensor] = true;
        n += tensor >= 0;
    }
    return n;
}

bool quantised_name(const char *name)
{
    static const char *const parts[] = { "scale",   "zero_point", "qweight", "weight_packed",
                                         ".absmax", ".SCB",       NULL };
    for (int i = 0; parts[i]; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

gac_status convention_quantised(builder *b, const char *module, side hidden_at, linear *out,
                                gac_error *err)
{
    packed p = { .weight = -1 };
    if (!b->has_scales)
        return GAC_OK;
    find_qweight(b, module, &p);
    if (p.weight < 0)
        find_weight_packed(b, module, &p);
    if (p.weight < 0)
        find_flat_weight(b, module, hidden_at, &p);
    if (p.weight < 0)
        return GAC_OK;
    explain_companions(b, module);
    return describe(b, module, &p, out, err);
}

void quantised_weight(builder *b, const char *module, int32_t weight, linear *l)
{
    if (explain_companions(b, module) == 0)
        return;
    gac_dtype dtype = builder_tensor(b, weight)->dtype;
    bool float8 = dtype == GAC_DTYPE_F8_E4M3 || dtype == GAC_DTYPE_F8_E5M2;
    int32_t blocks = companion(b, module, "weight_scale_inv", 2);
    if (blocks < 0)
        blocks = companion(b, module, "weight_scale", 2);
    gac_op *op = &b->ops[l->first_op].op;
    op->n_multiple = op->k_multiple = FP8;
    b->found |= float8 ? FOUND_FP8 : FOUND_INT8;
    int64_t n_groups = blocks >= 0 ? axis_of(b, blocks, 1) : 1;
    int64_t group = group_of(b, l->n_in, n_groups);
    if (group) /* scales of square blocks, or of groups in a row */
        op->k_multiple = group;
    if (group && axis_of(b, blocks, 0) < l->n_out)
        op->n_multiple = group;
    l->why_fixed = float8 ? "its weight has 8-bit floats with scales, which would have to change"
                          : "its weight is quantised with scales, which would have to change";
}

bool quantised_unread(const builder *b)
{
    const json_t *s = settings(b);
    return s && !json_is_null(s) && !(b->found & (FOUND_PACKED | FOUND_FP8));
}

void quantised_blame(const builder *b, gac_error *err)
{
    const char *method = json_string_value(json_object_get(settings(b), "quant_method"));
    char q[80];
    if (!quantised_unread(b) || !err)
        return;
    const gac_error what = *err;
    gac_error_set(err, what.status,
                  "%s (quantization_config states %s, whose weights gac does not read)", what.text,
                  method ? gac_quote(q, sizeof q, method) : "a method without a name");
}

gac_status note_quantised(builder *b, gac_error *err)
{
    const json_t *s = settings(b);
    const char *method = json_string_value(json_object_get(s, "quant_method"));
    char q[80];
    if (b->found & (FOUND_PACKED | FOUND_FP8))
        return builder_note(
            b, err,
            "the weights are quantised: sizes are judged by groups and kernels, and "
            "times are those of weights that are not");
    if (!quantised_unread(b))
        return GAC_OK;
    return builder_note(b, err, "quantization_config states %s, whose weights gac does not read",
                        method ? gac_quote(q, sizeof q, method) : "a method without a name");
}

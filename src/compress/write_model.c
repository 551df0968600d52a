/* Writes the compressed model: its tensors, config and record. */
#include "compress/compress_internal.h"

#include "base/arena.h"
#include "base/floats.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of a tensor of the checkpoint. */
typedef enum fate {
    FATE_COPY,
    FATE_FACTORS, /* a weight of a low rank: X.BLinear (rank, in), then X.ALinear (out, rank) */
    FATE_RENAME,  /* the bias of such a weight: X.ALinear.bias */
    FATE_PARTS, /* as PaLU writes it: X.VT (ranks of all parts, in), then one X.U.i (rows, rank) */
    FATE_SPLIT, /* the bias of such a weight: one X.U.i.bias */
    FATE_ROWS,  /* some rows stay */
    FATE_REFIT  /* some columns stay, with other values */
} fate;

typedef struct tensor_plan {
    fate fate;
    int32_t layer;
    gac_projection projection;
    int64_t size;              /* rank, or rows or columns that stay */
    int32_t *rows;             /* FATE_ROWS: (size) */
    int64_t n_parts;           /* FATE_PARTS, FATE_SPLIT */
    int32_t written, written2; /* indices in the writer. Factors have both: the second one's, or
                                * that of the first of its parts. */
} tensor_plan;

typedef struct writing {
    compression *c;
    gac_writer *writer;
    tensor_plan *plans;   /* (n_tensors) */
    uint64_t *size_bytes; /* (n_written), of the tensors that are written */
    int32_t n_written, capacity;
} writing;

/* Which rows of a projection's output stay where only some groups of channels or heads do. */
static int32_t *kept_rows(const compression *c, int32_t layer, gac_projection projection,
                          int64_t *n)
{
    const layer_stats *l = &c->layers[layer];
    const bool mlp = projection >= GAC_PROJECTION_GATE;
    channel_stats groups = l->channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS];
    const int64_t n_groups = mlp ? c->choices[layer].width : c->choices[layer].heads;
    groups.block = l->matrix[projection].n_out / groups.n_groups;
    *n = n_groups * groups.block;
    return compress_kept_inputs(&groups, n_groups);
}

static gac_status plan_projection(writing *w, int32_t layer, gac_projection projection)
{
    const compression *c = w->c;
    const layer_choice *choice = &c->choices[layer];
    const matrix_stats *m = &c->layers[layer].matrix[projection];
    const bool mlp = projection >= GAC_PROJECTION_GATE;
    const bool is_last = projection == GAC_PROJECTION_O || projection == GAC_PROJECTION_DOWN;
    const int64_t groups = mlp ? choice->width : choice->heads;
    const int32_t bias = m->bias;
    tensor_plan *plan = &w->plans[m->tensor];
    *plan = (tensor_plan){ .layer = layer, .projection = projection };
    if (choice->rank[projection]) {
        const bool parts = c->options->method == GAC_COMPRESS_PALU;
        plan->fate = parts ? FATE_PARTS : FATE_FACTORS;
        plan->size = choice->rank[projection];
        plan->n_parts = m->n_parts;
        if (bias >= 0)
            w->plans[bias] =
                (tensor_plan){ .fate = parts ? FATE_SPLIT : FATE_RENAME, .n_parts = m->n_parts };
    } else if (groups && is_last) {
        plan->fate = FATE_REFIT;
        plan->size = m->n_in /
                     c->layers[layer].channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS].n_groups *
                     groups;
    } else if (groups) {
        tensor_plan *both[] = { plan, bias >= 0 ? &w->plans[bias] : NULL };
        for (int i = 0; i < 2 && both[i]; i++) {
            both[i]->fate = FATE_ROWS;
            both[i]->rows = kept_rows(c, layer, projection, &both[i]->size);
            if (!both[i]->rows)
                return gac_error_no_memory(c->err);
        }
    }
    return GAC_OK;
}

static gac_status plan_tensors(writing *w)
{
    gac_status status = GAC_OK;
    for (int32_t l = 0; l < w->c->n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++)
            status = plan_projection(w, l, (gac_projection)p);
    return status;
}

/* "X.weight" becomes "X.MIDDLE.weight". */
static void put_inside(const char *name, const char *middle, char *out, size_t size)
{
    const char *dot = strrchr(name, '.');
    snprintf(out, size, "%.*s.%s%s", (int)(dot - name), name, middle, dot);
}

static gac_status add(writing *w, const char *name, gac_dtype dtype, int32_t n_axes,
                      const int64_t *shape, int32_t *index)
{
    uint64_t n = (uint64_t)gac_dtype_bits(dtype) / 8; /* no more than that of a tensor there is */
    if (!gac_grow((void **)&w->size_bytes, w->n_written, &w->capacity, sizeof *w->size_bytes))
        return gac_error_no_memory(w->c->err);
    for (int32_t i = 0; i < n_axes; i++)
        n *= (uint64_t)shape[i];
    w->size_bytes[w->n_written++] = n;
    return gac_writer_add(w->writer, name, dtype, n_axes, shape, index, w->c->err);
}

/* Declares X.U.0, X.U.1, ...: parts of the rows of t. */
static gac_status declare_parts(writing *w, const gac_tensor *t, const tensor_plan *plan,
                                int32_t *first)
{
    char name[GAC_MAX_NAME_BYTES + 16], middle[16];
    const int64_t shape[] = { t->shape[0] / plan->n_parts, plan->size };
    gac_status status = GAC_OK;
    for (int64_t i = 0; i < plan->n_parts && status == GAC_OK; i++) {
        snprintf(middle, sizeof middle, "U.%lld", (long long)i);
        put_inside(t->name, middle, name, sizeof name);
        status = add(w, name, t->dtype, t->n_axes, shape, i ? NULL : first);
    }
    return status;
}

static gac_status declare(writing *w, int32_t index)
{
    const gac_tensor *t = gac_checkpoint_tensor(w->c->checkpoint, index);
    tensor_plan *plan = &w->plans[index];
    char name[GAC_MAX_NAME_BYTES + 16];
    int64_t shape[GAC_MAX_AXES];
    memcpy(shape, t->shape, (size_t)t->n_axes * sizeof *shape);
    snprintf(name, sizeof name, "%s", t->name);
    if (plan->fate == FATE_FACTORS) {
        const int64_t first[] = { plan->size, shape[1] }, second[] = { shape[0], plan->size };
        put_inside(t->name, "BLinear", name, sizeof name);
        gac_status status = add(w, name, t->dtype, 2, first, &plan->written);
        put_inside(t->name, "ALinear", name, sizeof name);
        return status == GAC_OK ? add(w, name, t->dtype, 2, second, &plan->written2) : status;
    }
    if (plan->fate == FATE_PARTS) {
        const int64_t first[] = { plan->n_parts * plan->size, shape[1] };
        put_inside(t->name, "VT", name, sizeof name);
        gac_status status = add(w, name, t->dtype, 2, first, &plan->written);
        return status == GAC_OK ? declare_parts(w, t, plan, &plan->written2) : status;
    }
    if (plan->fate == FATE_SPLIT)
        return declare_parts(w, t, plan, &plan->written);
    if (plan->fate == FATE_RENAME)
        put_inside(t->name, "ALinear", name, sizeof name);
    if (plan->fate == FATE_ROWS)
        shape[0] = plan->size;
    if (plan->fate == FATE_REFIT)
        shape[1] = plan->size;
    return add(w, name, t->dtype, t->n_axes, shape, &plan->written);
}

/* Writes floats in the dtype of the original. */
static gac_status put_floats(writing *w, const gac_tensor *t, int32_t index, const float *floats,
                             int64_t n)
{
    char q[200];
    if (t->dtype == GAC_DTYPE_F32)
        return gac_writer_write(w->writer, index, 0, floats, (size_t)n * sizeof *floats, w->c->err);
    const bool f16 = t->dtype == GAC_DTYPE_F16;
    uint16_t *codes = malloc((size_t)n * sizeof *codes + 1);
    bool fits = true;
    if (!codes)
        return gac_error_no_memory(w->c->err);
    for (int64_t i = 0; i < n; i++) {
        codes[i] = f16 ? gac_f16_from_float(floats[i]) : gac_bf16_from_float(floats[i]);
        fits = fits && isfinite(f16 ? gac_f16_to_float(codes[i]) : gac_bf16_to_float(codes[i]));
    }
    gac_status status =
        fits ? gac_writer_write(w->writer, index, 0, codes, (size_t)n * sizeof *codes, w->c->err)
             : gac_error_set(w->c->err, GAC_FAILED,
                             "tensor \"%s\": a compressed weight is too large for %s",
                             gac_quote(q, sizeof q, t->name), gac_dtype_name(t->dtype));
    free(codes);
    return status;
}

/* The mapped part of a layer's work file, n numbers in F32. */
static gac_status map_part(const compression *c, const gac_checkpoint *file, const char *kind,
                           int index, int64_t n, const float **out)
{
    char name[48], q[256];
    const void *data = NULL;
    snprintf(name, sizeof name, "%s.%d", kind, index);
    int32_t at = gac_checkpoint_find(file, name);
    const gac_tensor *t = at < 0 ? NULL : gac_checkpoint_tensor(file, at);
    if (!t || t->dtype != GAC_DTYPE_F32 || t->n_elements != n)
        return gac_error_set(c->err, GAC_BAD_INPUT, "%s: %s is missing or has another shape",
                             gac_quote(q, sizeof q, gac_checkpoint_path(file)), name);
    gac_status status = gac_checkpoint_map(file, at, &data, c->err);
    *out = data;
    return status;
}

static gac_status write_factors(writing *w, const gac_checkpoint *file, const gac_tensor *t,
                                const tensor_plan *plan)
{
    const matrix_stats *m = &w->c->layers[plan->layer].matrix[plan->projection];
    const int64_t rank = plan->size, n_first = m->n_parts * rank * m->n_in;
    const int64_t n_second = m->n_out / m->n_parts * rank; /* of a part */
    const float *basis = NULL, *columns = NULL;
    float *first = malloc((size_t)n_first * sizeof *first);
    float *second = malloc((size_t)(m->n_out * rank) * sizeof *second);
    gac_status status = first && second ? map_part(w->c, file, "basis", (int)plan->projection,
                                                   m->n_out * m->n_basis, &basis)
                                        : gac_error_no_memory(w->c->err);
    columns = basis;
    if (status == GAC_OK && compress_weighs(w->c, (int)plan->projection))
        status =
            map_part(w->c, file, "second", (int)plan->projection, m->n_out * m->n_basis, &columns);
    if (status == GAC_OK)
        status = compress_project(w->c, m, basis, rank, t->name, first);
    for (int64_t i = 0; i < m->n_out * rank && status == GAC_OK; i++)
        second[i] = columns[i / rank * m->n_basis + i % rank];
    if (status == GAC_OK)
        status = put_floats(w, t, plan->written, first, n_first);
    for (int32_t i = 0; i < m->n_parts && status == GAC_OK; i++)
        status = put_floats(w, t, plan->written2 + i, second + i * n_second, n_second);
    free(first);
    free(second);
    return status;
}

static gac_status write_refit(writing *w, const gac_checkpoint *file, const gac_tensor *t,
                              const tensor_plan *plan)
{
    const bool mlp = plan->projection == GAC_PROJECTION_DOWN;
    const layer_stats *l = &w->c->layers[plan->layer];
    const matrix_stats *m = &l->matrix[plan->projection];
    const channel_stats *s = &l->channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS];
    const float *mapped = NULL;
    int32_t *kept = compress_kept_inputs(s, plan->size / s->block);
    float *weight = NULL, *made = malloc((size_t)(m->n_out * plan->size) * sizeof *made);
    double *gram = malloc((size_t)(m->n_in * m->n_in) * sizeof *gram);
    gac_status status = kept && made && gram
                            ? map_part(w->c, file, "gram", mlp ? CHANNELS_WIDTH : CHANNELS_HEADS,
                                       m->n_in * m->n_in, &mapped)
                            : gac_error_no_memory(w->c->err);
    for (int64_t i = 0; status == GAC_OK && i < m->n_in * m->n_in; i++)
        gram[i] = (double)mapped[i];
    if (status == GAC_OK)
        status = compress_read_weight(w->c, m, &weight);
    gac_factor_job job = { .kind = GAC_FACTOR_REFIT,
                           .n_out = m->n_out,
                           .n_in = m->n_in,
                           .weight = weight,
                           .gram = gram,
                           .kept = kept,
                           .n_kept = plan->size,
                           .made = made,
                           .name = t->name };
    if (status == GAC_OK)
        status = gac_engine_factor(w->c->engine, &job, 1, w->c->err);
    if (status == GAC_OK)
        status = put_floats(w, t, plan->written, made, m->n_out * plan->size);
    free(weight);
    free(gram);
    free(kept);
    free(made);
    return status;
}

static gac_status write_rows(writing *w, int32_t index, const gac_tensor *t,
                             const tensor_plan *plan)
{
    const uint64_t row_bytes = t->size_bytes / (uint64_t)t->shape[0];
    gac_status status = GAC_OK;
    for (int64_t i = 0; i < plan->size && status == GAC_OK; i++)
        status =
            gac_writer_copy(w->writer, plan->written, (uint64_t)i * row_bytes, w->c->checkpoint,
                            index, (uint64_t)plan->rows[i] * row_bytes, row_bytes, w->c->err);
    return status;
}

static gac_status write_split(writing *w, int32_t index, const gac_tensor *t,
                              const tensor_plan *plan)
{
    const uint64_t n_bytes = t->size_bytes / (uint64_t)plan->n_parts;
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < plan->n_parts && status == GAC_OK; i++)
        status = gac_writer_copy(w->writer, plan->written + i, 0, w->c->checkpoint, index,
                                 (uint64_t)i * n_bytes, n_bytes, w->c->err);
    return status;
}

static gac_status write_tensor(writing *w, int32_t index)
{
    const gac_tensor *t = gac_checkpoint_tensor(w->c->checkpoint, index);
    const tensor_plan *plan = &w->plans[index];
    gac_checkpoint *file = NULL;
    gac_status status = compress_check_cancel(w->c);
    if (status != GAC_OK)
        return status;
    switch (plan->fate) {
    case FATE_COPY:
    case FATE_RENAME:
        return gac_writer_copy(w->writer, plan->written, 0, w->c->checkpoint, index, 0,
                               t->size_bytes, w->c->err);
    case FATE_ROWS:
        return write_rows(w, index, t, plan);
    case FATE_SPLIT:
        return write_split(w, index, t, plan);
    case FATE_FACTORS:
    case FATE_PARTS:
    case FATE_REFIT:
        status = compress_open_layer(w->c, plan->layer, &file);
        if (status == GAC_OK)
            status = plan->fate == FATE_REFIT ? write_refit(w, file, t, plan)
                                              : write_factors(w, file, t, plan);
        gac_checkpoint_close(file);
        return status;
    }
    return status;
}

/* The ranks of all parts of a matrix. */
static json_t *ranks_json(const matrix_stats *m, int64_t rank)
{
    json_t *ranks = json_array();
    for (int64_t i = 0; i < m->n_parts; i++)
        json_array_append_new(ranks, json_integer(rank));
    return ranks;
}

/* Sizes of a projection as it is written, for the modelling code; NULL if they did not change. */
static json_t *module_json(const compression *c, int32_t layer, gac_projection projection)
{
    const layer_stats *l = &c->layers[layer];
    const matrix_stats *m = &l->matrix[projection];
    const layer_choice *choice = &c->choices[layer];
    const bool mlp = projection >= GAC_PROJECTION_GATE;
    const bool is_last = projection == GAC_PROJECTION_O || projection == GAC_PROJECTION_DOWN;
    const int64_t groups = mlp ? choice->width : choice->heads;
    const int64_t n_groups = l->channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS].n_groups;
    const int bias = m->bias >= 0;
    if (choice->rank[projection] && c->options->method == GAC_COMPRESS_PALU)
        return json_pack("{s:[I, I], s:o, s:b}", "groups", (json_int_t)m->n_out,
                         (json_int_t)m->n_in, "ranks", ranks_json(m, choice->rank[projection]),
                         "bias", bias);
    if (choice->rank[projection])
        return json_pack("{s:[I, I, I], s:s, s:s, s:b}", "factors", (json_int_t)m->n_out,
                         (json_int_t)choice->rank[projection], (json_int_t)m->n_in, "first",
                         "BLinear", "second", "ALinear", "bias", bias);
    if (!groups)
        return NULL;
    return json_pack("{s:[I, I], s:b}", "linear",
                     (json_int_t)(is_last ? m->n_out : m->n_out / n_groups * groups),
                     (json_int_t)(is_last ? m->n_in / n_groups * groups : m->n_in), "bias", bias);
}

/* The modules of the original that differ from the stock ones already: it may have lost channels or
 * heads before. NULL: no memory. */
static json_t *list_before(const compression *c)
{
    json_t *modules = NULL;
    const gac_status status = gac_model_list_modules(
        c->model, NULL, gac_checkpoint_config(c->checkpoint), &modules, NULL);
    return status == GAC_USAGE ? json_object() : modules;
}

/* All modules of the result that differ from the stock ones. NULL: no memory. */
static json_t *modules_json(const compression *c)
{
    char name[96];
    json_t *modules = list_before(c);
    for (int32_t l = 0; modules && l < c->n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            json_t *module = module_json(c, l, (gac_projection)p);
            snprintf(name, sizeof name, "layers.%d.%s", l, gac_projection_name((gac_projection)p));
            if (module)
                json_object_set_new(modules, name, module);
        }
    return modules;
}

/* Heads of queries that all attention blocks have if each keeps n_kv_heads of keys and values. */
static int64_t common_heads(const compression *c, int64_t n_kv_heads)
{
    const gac_op *op = compress_attention_of(c->model, 0);
    return op ? op->n_q_heads / op->n_kv_heads * n_kv_heads : 0;
}

/* Whether a plain config can say all that was chosen: all layers have the same width and heads. A
 * number of heads can only be said where the config states their size, and divides the hidden size,
 * or other runtimes do not read it. */
static bool is_uniform(const compression *c)
{
    const layer_choice *first = &c->choices[0];
    const json_t *head = json_object_get(gac_checkpoint_config(c->checkpoint), "head_dim");
    json_t *before = list_before(c);
    bool uniform = json_object_size(before) == 0;
    json_decref(before);
    if (first->heads) {
        const int64_t n_heads = common_heads(c, first->heads);
        uniform = uniform && json_is_integer(head) && n_heads && c->hidden % n_heads == 0;
    }
    for (int32_t l = 0; l < c->n_layers; l++) {
        const layer_choice *choice = &c->choices[l];
        uniform = uniform && choice->width == first->width && choice->heads == first->heads;
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
            uniform = uniform && !choice->rank[p];
    }
    return uniform;
}

static void set_uniform_sizes(const compression *c, json_t *config)
{
    const int64_t width = c->choices[0].width, n_kv_heads = c->choices[0].heads;
    if (width)
        json_object_set_new(config, "intermediate_size", json_integer(width));
    if (!n_kv_heads)
        return;
    json_object_set_new(config, "num_key_value_heads", json_integer(n_kv_heads));
    json_object_set_new(config, "num_attention_heads", json_integer(common_heads(c, n_kv_heads)));
}

bool compress_needs_code(const compression *c)
{
    json_t *modules = modules_json(c);
    const bool changed = json_object_size(modules) > 0;
    json_decref(modules);
    return changed && !is_uniform(c);
}

static gac_status write_text(writing *w, const char *name, const json_t *json)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status =
        gac_json_text(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17), &text, &n_bytes, w->c->err);
    if (status == GAC_OK)
        status = gac_writer_add_file(w->writer, name, text, n_bytes, w->c->err);
    free(text);
    return status;
}

/* Adds the ranks where PaLU's own code reads them. */
static void add_palu_ranks(const compression *c, json_t *config)
{
    json_t *all = json_object();
    char name[GAC_MAX_NAME_BYTES];
    for (int32_t l = 0; l < c->n_layers; l++)
        for (gac_projection p = GAC_PROJECTION_K; p <= GAC_PROJECTION_V; p++) {
            const matrix_stats *m = &c->layers[l].matrix[p];
            const char *weight = gac_checkpoint_tensor(c->checkpoint, m->tensor)->name;
            const int64_t rank = c->choices[l].rank[p];
            snprintf(name, sizeof name, "%.*s", (int)(strrchr(weight, '.') - weight), weight);
            if (rank)
                json_object_set_new(all, name, ranks_json(m, rank));
        }
    json_object_set_new(config, "head_wise_ranks", all);
}

/* Writes config.json and, where a plain config cannot say it, the modelling code. */
static gac_status write_config(writing *w)
{
    const compression *c = w->c;
    json_t *config = json_deep_copy(gac_checkpoint_config_exact(c->checkpoint));
    json_t *modules = modules_json(c);
    char *code = NULL;
    gac_status status = config && modules ? GAC_OK : gac_error_no_memory(c->err);
    if (status == GAC_OK && c->options->method == GAC_COMPRESS_PALU)
        add_palu_ranks(c, config);
    if (status == GAC_OK && is_uniform(c))
        set_uniform_sizes(c, config);
    else if (status == GAC_OK && json_object_size(modules) > 0)
        status = gac_model_add_code(gac_model_family(c->model), modules, config, &code, c->err);
    if (status == GAC_OK && code)
        status = gac_writer_add_file(w->writer, GAC_MODELING_FILE, code, strlen(code), c->err);
    if (status == GAC_OK)
        status = write_text(w, "config.json", config);
    free(code);
    json_decref(config);
    json_decref(modules);
    return status;
}

static gac_status write_card(writing *w, const gac_compress_result *result)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = compress_card(w->c, result, &text, &n_bytes);
    if (status == GAC_OK)
        status = gac_writer_add_file(w->writer, "README.md", text, n_bytes, w->c->err);
    free(text);
    return status;
}

/* Writes gac.json: what was chosen, and all that is needed to do it again. */
static gac_status write_record(writing *w, const gac_compress_result *result)
{
    char *path = realpath(gac_checkpoint_path(w->c->checkpoint), NULL);
    json_t *body = gac_compress_to_json(result, w->c->options);
    json_t *record =
        json_pack("{s:s, s:s, s:s, s:s?}", "schema", "gac.compress/1", "tool", "gac " GAC_VERSION,
                  "device", w->c->options->device, "model", path ? strrchr(path, '/') + 1 : NULL);
    json_object_update(record, body);
    free(path);
    gac_status status =
        body && record ? write_text(w, "gac.json", record) : gac_error_no_memory(w->c->err);
    json_decref(body);
    json_decref(record);
    return status;
}

/* Starts a directory: every tensor has its place. */
static gac_status start(writing *w, const char *out, const gac_writer_options *how)
{
    const int32_t n = gac_checkpoint_n_tensors(w->c->checkpoint);
    w->plans = calloc((size_t)n + 1, sizeof *w->plans);
    gac_status status = w->plans ? plan_tensors(w) : gac_error_no_memory(w->c->err);
    if (status == GAC_OK)
        status = gac_writer_create(out, how, &w->writer, w->c->err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        status = declare(w, i);
    return status == GAC_OK ? gac_writer_layout(w->writer, w->c->err) : status;
}

static void free_plans(writing *w)
{
    for (int32_t i = 0; w->plans && i < gac_checkpoint_n_tensors(w->c->checkpoint); i++)
        free(w->plans[i].rows);
    free(w->plans);
    free(w->size_bytes);
}

gac_status compress_write_sizes(compression *c, gac_writer **out)
{
    char path[4096];
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    writing w = { .c = c };
    how.no_sync = true;
    snprintf(path, sizeof path, "%s/sizes", c->work);
    gac_status status = start(&w, path, &how);
    for (int32_t i = 0; i < w.n_written && status == GAC_OK; i++)
        status = gac_writer_leave_zero(w.writer, i, w.size_bytes[i], c->err);
    if (status == GAC_OK)
        status = write_config(&w);
    if (status == GAC_OK)
        status = gac_writer_complete(w.writer, c->err);
    if (status == GAC_OK) {
        *out = w.writer;
        w.writer = NULL;
    }
    gac_writer_discard(w.writer);
    free_plans(&w);
    return status;
}

gac_status compress_write(compression *c, const char *out, const gac_compress_result *result)
{
    const char *const skip[] = { "config.json", "gac.json", "README.md",
                                 compress_needs_code(c) ? GAC_MODELING_FILE : NULL, NULL };
    const int32_t n = gac_checkpoint_n_tensors(c->checkpoint);
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    writing w = { .c = c };
    how.replace = c->options->replace;
    how.no_sync = c->options->no_sync;
    how.like = c->checkpoint;
    gac_status status = start(&w, out, &how);
    gac_progress_start(c->options->progress, "writing", "tensors", (uint64_t)n);
    for (int32_t i = 0; i < n && status == GAC_OK; i++) {
        status = write_tensor(&w, i);
        gac_progress_step(c->options->progress, (uint64_t)i + 1);
    }
    gac_progress_finish(c->options->progress);
    if (status == GAC_OK)
        status = gac_writer_carry(w.writer, c->checkpoint, skip, c->err);
    if (status == GAC_OK)
        status = write_config(&w);
    if (status == GAC_OK)
        status = write_record(&w, result);
    if (status == GAC_OK)
        status = write_card(&w, result);
    if (status == GAC_OK) /* before the model appears, since this may fail */
        status = compress_clear_work(c);
    if (status == GAC_OK)
        status = gac_writer_finish(w.writer, c->err);
    else
        gac_writer_discard(w.writer);
    free_plans(&w);
    return status;
}

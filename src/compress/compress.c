/* The job from end to end: measure every layer, share the parameters out, write. */
#include "compress/compress_internal.h"

#include "base/arguments.h"
#include "base/floats.h"
#include "base/team.h"

#include <fnmatch.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const methods[GAC_COMPRESS_METHOD_COUNT] = { "gac",  "energy",  "svd",
                                                                "asvd", "svd-llm", "palu" };
static const char *const choice_names[] = { "dense", "rank", "width", "heads" };

const char *gac_compress_method_name(gac_compress_method method)
{
    return (unsigned)method < GAC_COMPRESS_METHOD_COUNT ? methods[method] : NULL;
}

const char *gac_compress_choice_name(gac_compress_choice choice)
{
    return (unsigned)choice <= GAC_CHOICE_HEADS ? choice_names[choice] : NULL;
}

bool compress_is_exact(const compression *c)
{
    const gac_compress_method method = c->options->method;
    return method == GAC_COMPRESS_GAC || method == GAC_COMPRESS_ENERGY ||
           method == GAC_COMPRESS_PALU;
}

bool compress_tries_cuts(const compression *c)
{
    const gac_compress_method method = c->options->method;
    return method == GAC_COMPRESS_GAC || method == GAC_COMPRESS_PALU || method == GAC_COMPRESS_ASVD;
}

gac_status compress_check_cancel(const compression *c)
{
    if (!c->options->cancel || !*c->options->cancel)
        return GAC_OK;
    return gac_error_set(c->err, GAC_FAILED,
                         c->keeps_work ? "interrupted; measured layers are in %s"
                                       : "interrupted; nothing was left behind",
                         c->work);
}

void compress_step(compression *c, uint64_t n)
{
    c->n_done += n;
    gac_progress_step(c->options->progress, c->n_done < c->n_steps ? c->n_done : c->n_steps);
}

gac_status compress_read_weight(const compression *c, const matrix_stats *m, float **out)
{
    const gac_tensor *t = gac_checkpoint_tensor(c->checkpoint, m->tensor);
    const void *data;
    gac_status status = gac_checkpoint_map(c->checkpoint, m->tensor, &data, c->err);
    if (status != GAC_OK)
        return status;
    *out = malloc((size_t)t->n_elements * sizeof **out);
    if (!*out)
        return gac_error_no_memory(c->err);
    if (t->dtype == GAC_DTYPE_F16)
        gac_floats_from_f16(data, t->n_elements, *out);
    else if (t->dtype == GAC_DTYPE_BF16)
        gac_floats_from_bf16(data, t->n_elements, *out);
    else
        memcpy(*out, data, (size_t)t->n_elements * sizeof **out);
    return GAC_OK;
}

static bool is_excluded(const gac_compress_options *o, const char *name)
{
    for (int32_t i = 0; i < o->n_exclude; i++)
        if (fnmatch(o->exclude[i], name, 0) == 0)
            return true;
    return false;
}

/* Finds a projection, which must be one plain weight. */
static gac_status describe_matrix(const compression *c, int32_t layer, gac_projection projection,
                                  matrix_stats *out)
{
    char name[96], q[200];
    snprintf(name, sizeof name, "layers.%d.%s", layer, gac_projection_name(projection));
    const gac_module *module = gac_model_find_module(c->model, name);
    if (!module || module->first >= 0 || module->n_parts != 1 || module->transposed ||
        module->quantised)
        return gac_error_set(c->err, GAC_BAD_INPUT,
                             "%s: %s is not one plain weight; gac compresses dense models",
                             gac_quote(q, sizeof q, gac_checkpoint_path(c->checkpoint)), name);
    const int32_t first = c->options->first_layer, n = c->options->n_layers;
    const bool outside = layer < first || (n > 0 && layer >= first + n);
    *out = (matrix_stats){ .tensor = module->parts[0].weight,
                           .bias = module->parts[0].bias,
                           .n_out = module->n_out,
                           .n_in = module->n_in,
                           .n = module->n_out < module->n_in ? module->n_out : module->n_in,
                           .n_parts = 1,
                           .scale = 1,
                           .excluded = outside || is_excluded(c->options, name) };
    return GAC_OK;
}

const gac_op *compress_attention_of(const gac_model *model, int32_t layer)
{
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        const gac_op *op = gac_model_op(model, i);
        if (op->kind == GAC_OP_SDPA && op->layer == layer)
            return op;
    }
    return NULL;
}

/* PaLU factors the rows of each group of heads by themselves: of four heads, or of fewer where
 * four do not divide them. */
static gac_status split_heads(const compression *c, layer_stats *s)
{
    const int64_t n_heads = s->channels[CHANNELS_HEADS].n_groups;
    int64_t of = PALU_HEADS;
    while (n_heads % of)
        of--;
    if (n_heads / of > MAX_HEAD_PARTS)
        return gac_error_set(c->err, GAC_BAD_INPUT,
                             "%lld heads of keys and values make %lld groups; at most %d can be "
                             "compressed by palu",
                             (long long)n_heads, (long long)(n_heads / of), MAX_HEAD_PARTS);
    for (gac_projection p = GAC_PROJECTION_K; p <= GAC_PROJECTION_V; p++) {
        matrix_stats *m = &s->matrix[p];
        m->n_parts = n_heads / of;
        m->n = gac_min_i64(m->n_out / m->n_parts, m->n_in);
    }
    return GAC_OK;
}

/* Whether a pattern is that of a module: most likely it is misspelt if not. */
static gac_status check_pattern(const compression *c, const char *pattern)
{
    char name[96], q[100];
    for (int32_t l = 0; l < c->n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            snprintf(name, sizeof name, "layers.%d.%s", l, gac_projection_name((gac_projection)p));
            if (fnmatch(pattern, name, 0) == 0)
                return GAC_OK;
        }
    return gac_error_set(c->err, GAC_USAGE,
                         "no module is called \"%s\"; names are as layers.0.self_attn.q_proj",
                         gac_quote(q, sizeof q, pattern));
}

/* Whether the layers and modules that the options name are there. */
static gac_status check_names(const compression *c)
{
    const gac_compress_options *o = c->options;
    gac_status status = GAC_OK;
    if (o->first_layer >= c->n_layers || o->n_layers > c->n_layers - o->first_layer)
        return gac_error_set(
            c->err, GAC_USAGE, "layers %d to %d are asked for, but the model has 0 to %d",
            o->first_layer, o->first_layer + (o->n_layers ? o->n_layers - 1 : 0), c->n_layers - 1);
    for (int32_t i = 0; i < o->n_exclude && status == GAC_OK; i++)
        status = check_pattern(c, o->exclude[i]);
    return status;
}

static gac_status describe_layers(compression *c)
{
    gac_status status = check_names(c);
    if (status != GAC_OK)
        return status;
    c->layers = calloc((size_t)c->n_layers + 1, sizeof *c->layers);
    c->choices = calloc((size_t)c->n_layers + 1, sizeof *c->choices);
    if (!c->layers || !c->choices)
        return gac_error_no_memory(c->err);
    for (int32_t l = 0; l < c->n_layers && status == GAC_OK; l++) {
        layer_stats *s = &c->layers[l];
        const gac_op *op = compress_attention_of(c->model, l);
        for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++)
            status = describe_matrix(c, l, (gac_projection)p, &s->matrix[p]);
        const int64_t n_heads = op ? op->n_kv_heads : 1;
        s->channels[CHANNELS_WIDTH] = (channel_stats){
            .n_groups = s->matrix[GAC_PROJECTION_DOWN].n_in, .block = 1, .scale = 1
        };
        s->channels[CHANNELS_HEADS] = (channel_stats){
            .n_groups = n_heads, .block = s->matrix[GAC_PROJECTION_O].n_in / n_heads, .scale = 1
        };
        if (status == GAC_OK && c->options->method == GAC_COMPRESS_PALU)
            status = split_heads(c, s);
    }
    return status;
}

static gac_status check_options(const gac_compress_options *o, gac_error *err)
{
    const int n_goals = (o->ratio > 0) + (o->total_ratio > 0) + (o->max_time_ms > 0);
    GAC_REFUSE(err, (unsigned)o->method >= GAC_COMPRESS_METHOD_COUNT, "no such method");
    GAC_REFUSE(err, n_goals != 1, "one of ratio, total_ratio and max_time_ms has to be given");
    GAC_REFUSE(err, !(o->ratio < 1 && o->total_ratio < 1), "a ratio must be below 1");
    GAC_REFUSE(err, o->align == GAC_ALIGN_CONTRACT && !o->contract,
               "aligned sizes need a contract");
    GAC_REFUSE(err, o->max_time_ms > 0 && (!o->contract || !o->workload),
               "a time needs a contract and a workload");
    GAC_REFUSE(err, o->max_time_ms > 0 && o->method != GAC_COMPRESS_GAC,
               "the published methods know ratios only");
    GAC_REFUSE(err,
               o->method != GAC_COMPRESS_GAC && o->method != GAC_COMPRESS_ENERGY &&
                   !(o->choices & GAC_CHOOSE_RANK),
               "this method chooses ranks only");
    GAC_REFUSE(err, o->align == GAC_ALIGN_ROUND && o->multiple < 1, "round to what multiple?");
    GAC_REFUSE(err, o->first_layer < 0 || o->n_layers < 0, "layers before the first one");
    GAC_REFUSE(err, !o->device, "options name no device");
    GAC_REFUSE(err, !o->ids || o->n_ids == 0, "there is no text");
    return GAC_OK;
}

/* A model with code of its own may compute anything, and the result would lose that code. */
static gac_status refuse_foreign_code(const compression *c)
{
    char q[256];
    const struct json_t *config = gac_model_config(c->model);
    if (!json_object_get(config, "auto_map") || gac_config_has_our_code(config))
        return GAC_OK;
    return gac_error_set(c->err, GAC_BAD_INPUT,
                         "%s: config.json names modelling code of its own (auto_map), which may "
                         "compute something else than family %s; take auto_map out if it does not",
                         gac_quote(q, sizeof q, gac_checkpoint_path(c->checkpoint)),
                         gac_model_family(c->model));
}

static gac_status open_engine(compression *c)
{
    gac_engine_options how = GAC_ENGINE_OPTIONS_INIT;
    gac_engine_info info;
    int64_t context = 0;
    gac_status status = gac_engine_model_context(c->model, &context, c->err);
    if (status != GAC_OK)
        return status;
    c->window = context < GAC_DEFAULT_WINDOW ? context : GAC_DEFAULT_WINDOW;
    how.device = c->options->device;
    how.n_threads = c->options->n_threads;
    how.max_context = c->window;
    how.progress = c->options->progress;
    how.log = c->options->log;
    status = gac_engine_open(c->model, &how, &c->engine, c->err);
    if (status != GAC_OK)
        return status;
    gac_engine_describe(c->engine, &info);
    c->hidden = info.hidden;
    c->vocab = info.vocab;
    return GAC_OK;
}

/* Counts passes of one window through one layer, up to layer end - 1. */
static uint64_t count_steps(const compression *c, const bool *found, int32_t end)
{
    const int n_processes = gac_team_size(c->options->team);
    uint64_t n = (uint64_t)(end * (c->n_own + c->n_trial_windows));
    const int n_of_matrix = c->options->method == GAC_COMPRESS_ASVD ? N_SHARES : 1;
    for (int32_t l = 0; l < end && compress_tries_cuts(c); l++) {
        int n_cuts = 0;
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
            n_cuts += compress_may_factor(c, l, (gac_projection)p) ? n_of_matrix : 0;
        for (int kind = 0; kind < CHANNELS_COUNT; kind++)
            n_cuts += compress_may_cut(c, l, kind);
        n_cuts = (n_cuts + n_processes - 1) / n_processes;
        if (!found[l])
            n += (uint64_t)(n_cuts * c->n_trial_windows * (c->n_layers - l));
    }
    return n;
}

/* Measures the layers that the work folder does not have. */
static gac_status measure_missing(compression *c, bool *found)
{
    int32_t end = 0; /* behind the last layer to measure */
    gac_status status = GAC_OK;
    for (int32_t l = 0; l < c->n_layers && status == GAC_OK; l++) {
        status = compress_load_layer(c, l, &found[l]);
        end = found[l] ? end : l + 1;
    }
    if (status == GAC_OK && end > 0)
        status = compress_measure_gradients(c);
    if (status == GAC_OK && end > 0)
        status = compress_start_calibration(c);
    c->n_steps = count_steps(c, found, end);
    gac_progress_start(c->options->progress, "measuring layers", "passes", c->n_steps);
    for (int32_t l = 0; l < end && status == GAC_OK; l++)
        status = found[l] ? compress_pass_layer(c, l) : compress_measure_layer(c, l);
    gac_progress_finish(c->options->progress);
    return status;
}

static gac_status measure(compression *c, const char *out)
{
    bool *found = calloc((size_t)c->n_layers + 1, sizeof *found);
    gac_status status = found ? compress_choose_windows(c) : gac_error_no_memory(c->err);
    if (status == GAC_OK)
        status = compress_start_work(c, out);
    if (status == GAC_OK)
        status = measure_missing(c, found);
    free(found);
    return status;
}

int64_t compress_count_twice(const gac_model *model)
{
    const gac_module *head = gac_model_find_module(model, "lm_head");
    if (!head || head->first >= 0 || head->n_parts != 1 ||
        !json_is_true(json_object_get(gac_model_config(model), "tie_word_embeddings")))
        return 0;
    return gac_checkpoint_tensor(gac_model_checkpoint(model), head->parts[0].weight)->n_elements;
}

static gac_status set_budget(const compression *c, gac_compress_result *r)
{
    const gac_compress_options *o = c->options;
    const layer_choice dense = { 0 };
    for (int32_t l = 0; l < c->n_layers; l++)
        r->params_before += compress_layer_params(&c->layers[l], &dense);
    r->total_before = gac_checkpoint_n_params(c->checkpoint) - compress_count_twice(c->model);
    if (o->max_time_ms > 0)
        return GAC_OK;
    double budget = o->ratio > 0
                        ? (1 - o->ratio) * (double)r->params_before
                        : (double)r->params_before - o->total_ratio * (double)r->total_before;
    if (budget < 1)
        return gac_error_set(c->err, GAC_USAGE,
                             "%.3g of the whole model is more than the blocks' linear weights, "
                             "which are %.3g of it",
                             o->total_ratio, (double)r->params_before / (double)r->total_before);
    r->budget_params = (int64_t)budget;
    return GAC_OK;
}

static void add_module(gac_compress_result *r, const gac_compress_module *module)
{
    r->modules[r->n_modules++] = *module;
}

/* Lists what became of the modules of a block: one entry where it was cut as a whole. */
static void list_block(const compression *c, int32_t l, gac_compress_result *r, bool mlp)
{
    const layer_stats *s = &c->layers[l];
    const layer_choice *choice = &c->choices[l];
    const int64_t size = mlp ? choice->width : choice->heads;
    const int first = mlp ? GAC_PROJECTION_GATE : GAC_PROJECTION_Q;
    const int last = mlp ? GAC_PROJECTION_DOWN : GAC_PROJECTION_O;
    const channel_stats *channels = &s->channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS];
    gac_compress_module whole = { .choice = mlp ? GAC_CHOICE_WIDTH : GAC_CHOICE_HEADS,
                                  .size = size,
                                  .loss =
                                      choice->block_loss[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS] };
    snprintf(whole.name, sizeof whole.name, "layers.%d.%s", l, mlp ? "mlp" : "self_attn");
    for (int p = first; p <= last; p++) {
        const matrix_stats *m = &s->matrix[p];
        const int64_t rank = choice->rank[p], n = m->n_out * m->n_in;
        gac_compress_module module = { .choice = rank ? GAC_CHOICE_RANK : GAC_CHOICE_DENSE,
                                       .size = rank,
                                       .n_params = rank ? compress_rank_params(m, rank) : n,
                                       .n_original = n,
                                       .loss = choice->loss[p] };
        snprintf(module.name, sizeof module.name, "layers.%d.%s", l,
                 gac_projection_name((gac_projection)p));
        whole.n_params += size ? n / channels->n_groups * size : 0;
        whole.n_original += n;
        if (!size)
            add_module(r, &module);
    }
    if (size)
        add_module(r, &whole);
}

/* Entries of biases that go with the rows of a layer's weights. */
static int64_t cut_biases(const layer_stats *s, const layer_choice *choice)
{
    int64_t sum = 0;
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        const bool mlp = p >= GAC_PROJECTION_GATE;
        const int64_t groups = mlp ? choice->width : choice->heads;
        const int64_t n_groups = s->channels[mlp ? CHANNELS_WIDTH : CHANNELS_HEADS].n_groups;
        if (groups && p != GAC_PROJECTION_O && p != GAC_PROJECTION_DOWN && s->matrix[p].bias >= 0)
            sum += s->matrix[p].n_out / n_groups * (n_groups - groups);
    }
    return sum;
}

static gac_status list_modules(const compression *c, gac_compress_result *r)
{
    r->modules = calloc((size_t)c->n_layers * GAC_PROJECTION_COUNT + 1, sizeof *r->modules);
    if (!r->modules)
        return gac_error_no_memory(c->err);
    for (int32_t l = 0; l < c->n_layers; l++) {
        list_block(c, l, r, false);
        list_block(c, l, r, true);
        r->params_after += compress_layer_params(&c->layers[l], &c->choices[l]);
        r->total_after -= cut_biases(&c->layers[l], &c->choices[l]);
    }
    r->total_after += r->total_before - r->params_before + r->params_after;
    r->needs_code = compress_needs_code(c);
    r->n_tokens = c->n_windows * c->window;
    r->window = c->window;
    r->n_gradient_tokens = c->n_gradient_windows * c->window;
    return GAC_OK;
}

static void dispose(compression *c, bool keep_work)
{
    for (int32_t l = 0; c->layers && l < c->n_layers; l++) {
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            free(c->layers[l].matrix[p].energy);
            free(c->layers[l].matrix[p].basis);
            free(c->layers[l].matrix[p].second);
        }
        for (int k = 0; k < CHANNELS_COUNT; k++) {
            free(c->layers[l].channels[k].order);
            free(c->layers[l].channels[k].loss);
            free(c->layers[l].channels[k].gram);
        }
    }
    compress_end_work(c, keep_work);
    gac_engine_close(c->engine);
    free(c->layers);
    free(c->choices);
    free(c->residual);
    free(c->order);
    free(c->probabilities);
    free(c->logits);
    free(c->entropy);
}

/* What process 0 does alone once all layers are measured. */
static gac_status finish(compression *c, const char *out, gac_compress_result *result)
{
    gac_status status = compress_allocate(c, result);
    if (status == GAC_OK)
        status = list_modules(c, result);
    if (status == GAC_OK)
        status = compress_outline(c, result);
    if (status == GAC_OK && !c->options->dry_run)
        status = compress_write(c, out, result);
    return status;
}

gac_status gac_compress_run(gac_checkpoint *checkpoint, const gac_model *model, const char *out,
                            const gac_compress_options *options, gac_compress_result *result,
                            gac_error *err)
{
    GAC_REFUSE_NULL(err, checkpoint, model, out, options, result);
    *result = (gac_compress_result){ 0 };
    compression c = { .checkpoint = checkpoint,
                      .model = model,
                      .options = options,
                      .err = err,
                      .n_layers = gac_model_n_layers(model),
                      .lock = -1,
                      .dtype = GAC_DTYPE_COUNT };
    gac_team_watch(options->team, options->cancel);
    gac_status status = check_options(options, err);
    if (status == GAC_OK && options->contract &&
        !gac_contract_dtype(options->contract, gac_model_dtype(model), &c.dtype))
        c.dtype = GAC_DTYPE_COUNT;
    if (status == GAC_OK)
        status = gac_engine_check_stages(model, err);
    if (status == GAC_OK)
        status = refuse_foreign_code(&c);
    if (status == GAC_OK)
        status = describe_layers(&c);
    if (status == GAC_OK)
        status = set_budget(&c, result);
    if (status == GAC_OK)
        status = compress_check_budget(&c, result);
    if (status == GAC_OK)
        status = open_engine(&c);
    if (status == GAC_OK)
        status = measure(&c, out);
    if (status == GAC_OK && gac_team_is_first(options->team))
        status = finish(&c, out, result);
    dispose(&c, options->work || (status != GAC_OK && options->resume));
    return gac_team_agree(options->team, status, err);
}

void gac_compress_dispose(gac_compress_result *result)
{
    if (!result)
        return;
    free(result->modules);
    *result = (gac_compress_result){ 0 };
}

/* Makes the config of a repaired model. Every key that states a size is
 * updated. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_parse.h"
#include "repair/repair_internal.h"

typedef struct config_edit {
    const gac_model *model;
    const int64_t *sizes;
    gac_widths widths;
    bool code;    /* modelling code may state what a plain config cannot */
    json_t *root; /* a copy of the whole config */
    json_t *text; /* the language model's part of it */
    char *made;   /* the modelling code, if it is needed */
    gac_error *err;
} config_edit;

static bool changed(const config_edit *e, int32_t dim)
{
    return e->sizes[dim] != gac_model_dim(e->model, dim)->size;
}

static gac_status set_size(config_edit *e, json_t *object, const char *key, int64_t size)
{
    return json_object_set_new(object, key, json_integer(size)) == 0 ? GAC_OK
                                                                     : gac_error_no_memory(e->err);
}

/* Returns the module of a rank: the name of its first tensor up to suffix. NULL
 * if there is none, or if memory is short. The caller frees it. */
static char *module_of(const config_edit *e, const gac_dim *d, const char *suffix)
{
    for (int32_t i = 0; i < d->n_places; i++) {
        const char *name =
            gac_checkpoint_tensor(gac_model_checkpoint(e->model), d->places[i].tensor)->name;
        const char *at = strstr(name, suffix);
        if (at)
            return strndup(name, (size_t)(at - name));
    }
    return NULL;
}

/* Updates a rank. The config has head_wise_ranks: {module: [rank of each
 * group]}, truncation_ranks: {module: rank}, or num_basis_k: rank. */
static gac_status edit_rank(config_edit *e, int32_t dim)
{
    const gac_dim *d = gac_model_dim(e->model, dim);
    json_t *value = d->config_key ? json_object_get(e->text, d->config_key) : NULL;
    if (!value)
        return GAC_OK;
    if (json_is_integer(value))
        return set_size(e, e->text, d->config_key, e->sizes[dim]);
    bool groups = strcmp(d->config_key, "head_wise_ranks") == 0;
    char *module = module_of(e, d, groups ? ".VT." : ".BLinear.");
    if (!module)
        return GAC_OK;
    json_t *of_module = json_object_get(value, module);
    gac_status status = GAC_OK;
    const char *group = strrchr(d->name, '.');
    size_t index = groups && group ? strtoul(group + 1, NULL, 10) : 0;
    if (groups && index < json_array_size(of_module))
        json_array_set_new(of_module, index, json_integer(e->sizes[dim]));
    else if (json_is_integer(of_module))
        status = set_size(e, value, module, e->sizes[dim]);
    free(module);
    return status;
}

/* Returns the layer in a dimension's name, or -1. */
static int32_t layer_of(const gac_dim *d)
{
    for (const char *c = d->name; *c; c++)
        if (*c >= '0' && *c <= '9' && c > d->name && c[-1] == '.')
            return (int32_t)strtol(c, NULL, 10);
    return -1;
}

/* Updates a list with a size per layer, such as q_ranks or gate_ranks, if it
 * states the present size of the layer. */
static void edit_list(config_edit *e, const char *key, int32_t dim)
{
    const gac_dim *d = gac_model_dim(e->model, dim);
    int32_t layer = layer_of(d);
    json_t *list = json_object_get(e->text, key);
    if (layer >= 0 && json_integer_value(json_array_get(list, (size_t)layer)) == d->size)
        json_array_set_new(list, (size_t)layer, json_integer(e->sizes[dim]));
}

static void edit_lists(config_edit *e)
{
    static const char *const keys[GAC_ROLE_COUNT][2] = {
        [GAC_ROLE_QK_HEAD] = { "q_ranks", "k_ranks" },
        [GAC_ROLE_V_HEAD] = { "v_ranks", "o_ranks" },
        [GAC_ROLE_MLP_WIDTH] = { "gate_ranks", NULL },
    };
    for (int32_t i = 0; i < gac_model_n_dims(e->model); i++)
        for (int k = 0; k < 2 && changed(e, i); k++) {
            const char *key = keys[gac_model_dim(e->model, i)->role][k];
            if (key)
                edit_list(e, key, i);
        }
}

/* Widths of the layers after the repair. */
typedef struct layer_widths {
    int64_t *of_layer; /* (n_layers); -1 if the layer has no MLP */
    int32_t n_layers;
    int64_t common; /* the most frequent width */
    bool uniform;
    bool wrong; /* the config states another width for some layer */
    const char *key;
} layer_widths;

/* Marks the dimensions that are tied to others. The caller frees *out. */
static gac_status mark_tied(const config_edit *e, bool **out)
{
    int32_t n = gac_model_n_dims(e->model);
    *out = calloc((size_t)n + 1, sizeof **out);
    if (!*out)
        return gac_error_no_memory(e->err);
    for (int32_t i = 0; i < n; i++) {
        int32_t to = gac_model_dim(e->model, i)->tied_to;
        if (to >= 0)
            (*out)[i] = (*out)[to] = true;
    }
    return GAC_OK;
}

/* Whether a dimension is the MLP width of a layer that the config may state by
 * layer. The others have one key for all. */
static bool is_layer_width(const gac_dim *d, bool tied)
{
    return d->role == GAC_ROLE_MLP_WIDTH && d->config_key && !tied && !strstr(d->name, "shared");
}

static bool is_stated_wrongly(const config_edit *e, int32_t dim)
{
    int64_t declared = gac_model_dim(e->model, dim)->declared;
    return changed(e, dim) || (declared >= 0 && declared != e->sizes[dim]);
}

static gac_status gather_widths(config_edit *e, layer_widths *w)
{
    bool *tied = NULL;
    w->n_layers = gac_model_n_layers(e->model);
    w->of_layer = calloc((size_t)w->n_layers + 1, sizeof *w->of_layer);
    if (!w->of_layer)
        return gac_error_no_memory(e->err);
    gac_status status = mark_tied(e, &tied);
    if (status != GAC_OK)
        return status;
    for (int32_t i = 0; i < w->n_layers; i++)
        w->of_layer[i] = -1;
    for (int32_t i = 0; i < gac_model_n_dims(e->model); i++) {
        const gac_dim *d = gac_model_dim(e->model, i);
        int32_t layer = layer_of(d);
        if (layer < 0 || layer >= w->n_layers || !is_layer_width(d, tied[i]))
            continue;
        w->of_layer[layer] = e->sizes[i];
        w->key = d->config_key;
        w->wrong = w->wrong || is_stated_wrongly(e, i);
    }
    free(tied);
    int32_t best = 0;
    w->uniform = true;
    for (int32_t i = 0; i < w->n_layers; i++) {
        int32_t n = 0;
        for (int32_t k = 0; k < w->n_layers && w->of_layer[i] >= 0; k++)
            n += w->of_layer[k] == w->of_layer[i];
        if (n > best) {
            best = n;
            w->common = w->of_layer[i];
        }
    }
    for (int32_t i = 0; i < w->n_layers; i++)
        w->uniform = w->uniform && (w->of_layer[i] < 0 || w->of_layer[i] == w->common);
    return GAC_OK;
}

/* States the common width under the key, and other widths in per_layer_config. */
static gac_status state_per_layer(config_edit *e, const layer_widths *w)
{
    char layer[16];
    json_t *overrides = json_object_get(e->text, "per_layer_config");
    if (!json_is_object(overrides)) {
        overrides = json_object();
        if (json_object_set_new(e->text, "per_layer_config", overrides) != 0)
            return gac_error_no_memory(e->err);
    }
    gac_status status = set_size(e, e->text, w->key, w->common);
    for (int32_t i = 0; i < w->n_layers && status == GAC_OK; i++) {
        snprintf(layer, sizeof layer, "%d", i);
        json_t *own = gac_config_layer(e->text, i);
        bool stated = json_object_get(own, w->key) != NULL;
        if (w->of_layer[i] < 0 || (w->of_layer[i] == w->common && !stated))
            continue;
        if (!json_is_object(own)) {
            own = json_object();
            if (json_object_set_new(overrides, layer, own) != 0)
                return gac_error_no_memory(e->err);
        }
        status = set_size(e, own, w->key, w->of_layer[i]);
    }
    if (json_object_size(overrides) == 0)
        json_object_del(e->text, "per_layer_config");
    return status;
}

/* Makes a DeciLM block for a layer that has none. */
static json_t *new_block(const config_edit *e, int32_t layer)
{
    for (int32_t i = 0; i < gac_model_n_ops(e->model); i++) {
        const gac_op *op = gac_model_op(e->model, i);
        if (op->kind == GAC_OP_SDPA && op->layer == layer && op->n_kv_heads > 0)
            return json_pack("{s:{s:b, s:I}, s:{s:b}}", "attention", "no_op", false,
                             "n_heads_in_group", (json_int_t)(op->n_q_heads / op->n_kv_heads),
                             "ffn", "no_op", false);
    }
    return json_pack("{s:{s:b}, s:{s:b}}", "attention", "no_op", true, "ffn", "no_op", false);
}

static gac_status state_blocks(config_edit *e, const layer_widths *w)
{
    json_t *blocks = json_object_get(e->text, "block_configs");
    if (!json_is_array(blocks)) {
        if (strcmp(gac_model_family(e->model), "llama") != 0)
            return gac_error_set(e->err, GAC_USAGE,
                                 "block_configs can state widths for the llama "
                                 "family only");
        blocks = json_array();
        json_object_set_new(e->text, "block_configs", blocks);
        json_object_set_new(e->text, "model_type", json_string("nemotron-nas"));
        json_object_set_new(e->text, "architectures", json_pack("[s]", "DeciLMForCausalLM"));
    }
    for (int32_t i = 0; i < w->n_layers; i++) {
        if ((size_t)i >= json_array_size(blocks) &&
            json_array_append_new(blocks, new_block(e, i)) != 0)
            return gac_error_no_memory(e->err);
        json_t *ffn = json_object_get(json_array_get(blocks, (size_t)i), "ffn");
        if (w->of_layer[i] < 0) {
            json_object_set_new(ffn, "no_op", json_true());
            continue;
        }
        if (!json_is_object(ffn))
            return gac_error_set(e->err, GAC_BAD_INPUT,
                                 "config.json: block_configs[%d] has no \"ffn\" that could state "
                                 "the width of its layer",
                                 i);
        json_object_del(ffn, "ffn_mult");
        json_object_set_new(ffn, "intermediate_size", json_integer(w->of_layer[i]));
    }
    return GAC_OK;
}

static gac_status refuse_unequal(const config_edit *e)
{
    return gac_error_set(e->err, GAC_USAGE,
                         "the MLP widths differ between layers; a uniform plan makes them equal");
}

static gac_status edit_widths(config_edit *e)
{
    layer_widths w = { 0 };
    gac_status status = gather_widths(e, &w);
    bool blocks = json_array_size(json_object_get(e->text, "block_configs")) > 0;
    bool layers = json_object_get(e->text, "per_layer_config") != NULL;
    if (status != GAC_OK || !w.key || !w.wrong)
        goto done;
    if (e->widths == GAC_WIDTHS_UNIFORM && !w.uniform)
        status = refuse_unequal(e);
    else if (e->widths == GAC_WIDTHS_BLOCK_CONFIGS || blocks)
        status = state_blocks(e, &w); /* runtimes read block_configs first if it exists */
    else if (w.uniform && !layers)
        status = set_size(e, e->text, w.key, w.common);
    else if (strcmp(w.key, "intermediate_size") != 0)
        status = gac_error_set(e->err, GAC_USAGE,
                               "the config has one %s for all layers; a uniform plan makes the "
                               "widths equal",
                               w.key);
    else
        status = state_per_layer(e, &w);
done:
    free(w.of_layer);
    return status;
}

/* A key that states one size for several dimensions. */
typedef struct shared_key {
    const char *key;
    int32_t dim; /* the first of them */
    bool equal;  /* all have one size */
    bool wrong, changed;
} shared_key;

static void join_key(const config_edit *e, int32_t dim, shared_key *keys, int max, int *n)
{
    const gac_dim *d = gac_model_dim(e->model, dim);
    int k = 0;
    while (k < *n && strcmp(keys[k].key, d->config_key) != 0)
        k++;
    if (k == max)
        return;
    if (k == *n)
        keys[(*n)++] = (shared_key){ d->config_key, dim, true, false, false };
    keys[k].equal = keys[k].equal && e->sizes[dim] == e->sizes[keys[k].dim];
    keys[k].wrong = keys[k].wrong || is_stated_wrongly(e, dim);
    keys[k].changed = keys[k].changed || changed(e, dim);
}

/* Updates the keys that state one size for all layers or all experts. */
static gac_status edit_shared(config_edit *e)
{
    enum { MAX_KEYS = 16 };
    shared_key keys[MAX_KEYS];
    int n = 0;
    bool *tied = NULL;
    gac_status status = mark_tied(e, &tied);
    for (int32_t i = 0; i < gac_model_n_dims(e->model) && status == GAC_OK; i++) {
        const gac_dim *d = gac_model_dim(e->model, i);
        bool width = d->role == GAC_ROLE_MLP_WIDTH || d->role == GAC_ROLE_EXPERT_WIDTH;
        bool head =
            d->role == GAC_ROLE_V_HEAD && d->config_key && strcmp(d->config_key, "v_head_dim") == 0;
        if (d->config_key && (width || head) && !is_layer_width(d, tied[i]))
            join_key(e, i, keys, MAX_KEYS, &n);
    }
    free(tied);
    for (int k = 0; k < n && status == GAC_OK; k++) {
        if (keys[k].equal && keys[k].wrong)
            status = set_size(e, e->text, keys[k].key, e->sizes[keys[k].dim]);
        else if (!keys[k].equal && keys[k].changed)
            status = gac_error_set(e->err, GAC_USAGE,
                                   "%s: the config has one %s for all, and they would differ",
                                   gac_model_dim(e->model, keys[k].dim)->name, keys[k].key);
    }
    return status;
}

/* Corrects a hidden size or a vocabulary that the config states otherwise than the tensors have. A
 * new hidden size is gac_rescaled_config's. */
static gac_status correct_others(config_edit *e)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < gac_model_n_dims(e->model) && status == GAC_OK; i++) {
        const gac_dim *d = gac_model_dim(e->model, i);
        if ((d->role == GAC_ROLE_HIDDEN || d->role == GAC_ROLE_VOCAB) && d->config_key &&
            !changed(e, i) && d->declared >= 0 && d->declared != d->size)
            status = set_size(e, e->text, d->config_key, d->size);
    }
    return status;
}

/* Whether modelling code may be written for the model: nobody else's code and no other form states
 * its sizes. */
static bool may_have_code(const config_edit *e)
{
    const json_t *layer;
    const char *number, *key;
    json_t *value;
    if (e->text != e->root || e->widths == GAC_WIDTHS_PER_LAYER_CONFIG ||
        e->widths == GAC_WIDTHS_BLOCK_CONFIGS || json_object_get(e->text, "auto_map") ||
        json_object_get(e->text, "gac_modules") ||
        json_array_size(json_object_get(e->text, "block_configs")) > 0)
        return false;
    json_object_foreach(json_object_get(e->text, "per_layer_config"), number, layer)
        json_object_foreach((json_t *)(uintptr_t)layer, key, value)
            if (strcmp(key, "intermediate_size") != 0 && strcmp(key, "num_attention_heads") != 0 &&
                strcmp(key, "num_key_value_heads") != 0)
                return false;
    return true;
}

/* States what stock classes read: one width. Modelling code states the layers that differ. */
static gac_status edit_common_width(config_edit *e)
{
    layer_widths w = { 0 };
    gac_status status = gather_widths(e, &w);
    if (status == GAC_OK && e->widths == GAC_WIDTHS_UNIFORM && !w.uniform)
        status = refuse_unequal(e);
    json_object_del(e->text, "per_layer_config");
    if (status == GAC_OK && w.key && w.common > 0)
        status = set_size(e, e->text, w.key, w.common);
    free(w.of_layer);
    return status;
}

/* Lists the layers that differ from the stock ones, and adds the modelling code if there are any
 * and the config does not name it yet. */
static gac_status edit_modules(config_edit *e)
{
    json_t *modules = NULL;
    const bool there = gac_config_has_our_code(e->text);
    gac_status status = gac_model_list_modules(e->model, e->sizes, e->text, &modules, e->err);
    if (status == GAC_OK && there)
        status = json_object_set(e->text, "gac_modules", modules) == 0
                     ? GAC_OK
                     : gac_error_no_memory(e->err);
    else if (status == GAC_OK && json_object_size(modules) > 0)
        status = gac_model_add_code(gac_model_family(e->model), modules, e->text, &e->made, e->err);
    json_decref(modules);
    return status;
}

static gac_status edit_all(config_edit *e)
{
    gac_status status = GAC_OK;
    if (gac_model_is_adapter(e->model))
        return gac_model_state_adapter(e->model, e->sizes, e->root, e->err);
    for (int32_t i = 0; i < gac_model_n_dims(e->model) && status == GAC_OK; i++)
        if (changed(e, i) && gac_model_dim(e->model, i)->role == GAC_ROLE_RANK)
            status = edit_rank(e, i);
    edit_lists(e);
    const bool there = gac_config_has_our_code(e->text);
    if (status == GAC_OK && !there)
        status = e->code ? edit_common_width(e) : edit_widths(e);
    if (status == GAC_OK)
        status = edit_shared(e);
    if (status == GAC_OK)
        status = correct_others(e);
    if (status == GAC_OK)
        status = gac_rescaled_config(e->model, e->sizes, e->text, e->err);
    if (status == GAC_OK && (there || e->code))
        status = edit_modules(e);
    return status;
}

/* Whether a number still has the value that a text states; null stands for those beyond JSON. */
static bool is_value(const json_t *now, const char *digits)
{
    double value = gac_json_digits_value(digits);
    return isfinite(value) ? json_is_real(now) && json_real_value(now) == value : json_is_null(now);
}

/* Restores the text of large integers and real numbers whose value did not change. */
static void restore_digits(json_t *value, const json_t *exact)
{
    size_t i;
    const char *key;
    json_t *was, *own = (json_t *)(uintptr_t)exact;
    json_object_foreach(own, key, was) {
        json_t *now = json_object_get(value, key);
        const char *digits = gac_json_digits(was);
        if (!digits)
            restore_digits(now, was);
        else if (is_value(now, digits))
            json_object_set(value, key, was);
    }
    json_array_foreach(own, i, was) {
        json_t *now = json_array_get(value, i);
        const char *digits = gac_json_digits(was);
        if (!digits)
            restore_digits(now, was);
        else if (is_value(now, digits))
            json_array_set(value, i, was);
    }
}

/* Makes a copy of the config with the new sizes. *out and *code are NULL after a failure. */
static gac_status make_config(config_edit *e, json_t **out, char **code)
{
    const json_t *config = gac_checkpoint_config(gac_model_checkpoint(e->model));
    e->root = json_deep_copy(config);
    e->made = NULL;
    if (!e->root)
        return gac_error_no_memory(e->err);
    json_t *text = json_object_get(e->root, "text_config");
    e->text = json_is_object(text) ? text : e->root;
    e->code = e->code && may_have_code(e);
    gac_status status = edit_all(e);
    if (status == GAC_OK) {
        restore_digits(e->root, gac_checkpoint_config_exact(gac_model_checkpoint(e->model)));
        status = gac_memory_check(e->err);
    }
    if (status == GAC_OK) {
        *out = e->root;
        *code = e->made;
    } else {
        json_decref(e->root);
        free(e->made);
    }
    return status;
}

gac_status gac_repair_config(const gac_model *model, const int64_t *sizes, gac_widths widths,
                             bool with_code, json_t **out, char **code, gac_error *err)
{
    gac_error why = GAC_ERROR_INIT;
    config_edit e = {
        .model = model, .sizes = sizes, .widths = widths, .code = with_code, .err = &why
    };
    *out = NULL;
    *code = NULL;
    if (!gac_checkpoint_config(gac_model_checkpoint(model)))
        return GAC_OK;
    gac_status status = make_config(&e, out, code);
    /* If the modelling code cannot serve the model, the config states what it can. */
    if (status == GAC_USAGE && e.code) {
        e.code = false;
        status = make_config(&e, out, code);
    }
    return status == GAC_OK ? GAC_OK : gac_error_set(err, status, "%s", why.text);
}

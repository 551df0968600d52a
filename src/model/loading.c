/* What other runtimes need to load a model whose layers differ from the stock ones. */
#include "base/arguments.h"
#include "model/bundled_modeling.h"
#include "model/model_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A family whose stock class the modelling code can build on, and where that class has biases. */
typedef struct served {
    const char *family, *name; /* name takes the place of "Llama" in the template */
    bool qkv_bias;             /* q, k and v always have one */
    bool reads_attention_bias; /* q, k, v and o have one if the config says so */
    bool reads_mlp_bias;
    int64_t head_dim; /* where the config states none; 0: hidden size / heads */
} served;

static const served families[] = { { "llama", "Llama", false, true, true, 0 },
                                   { "mistral", "Mistral", false, false, false, 0 },
                                   { "qwen2", "Qwen2", true, false, false, 0 },
                                   { "qwen3", "Qwen3", false, true, false, 128 } };

#define STOCK "Llama"

static const served *served_family(const char *stated)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].family, stated) == 0)
            return &families[i];
    return NULL;
}

/* The template with another family's name; the caller frees it. */
static char *make_code(const char *name)
{
    const char *from = gac_bundled_modeling[0].text;
    size_t n_names = 0;
    for (const char *at = from; (at = strstr(at, STOCK)); at += strlen(STOCK))
        n_names++;
    char *code = malloc(strlen(from) + n_names * strlen(name) + 1), *to = code;
    for (const char *at; code && (at = strstr(from, STOCK)); from = at + strlen(STOCK))
        to += sprintf(to, "%.*s%s", (int)(at - from), from, name);
    if (code)
        strcpy(to, from);
    return code;
}

/* Returns why the modelling code cannot serve a model of this family and config, or NULL. */
static const char *cannot_serve(const char *name, const char *prefix, const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!served_family(name))
        return "there is no modelling code for the family";
    if (!type || (strcmp(type, name) != 0 && strncmp(type, "palu", 4) != 0))
        return "there is no modelling code for this model_type";
    if (strcmp(prefix, "model.") != 0 || json_object_get(config, "text_config"))
        return "the language model is a part of another model";
    return NULL;
}

bool widths_may_differ(const builder *b)
{
    const char *layer;
    json_t *own;
    json_object_foreach(json_object_get(b->config, "per_layer_config"), layer, own)
        if (json_object_get(own, "intermediate_size"))
            return true;
    if (json_array_size(json_object_get(b->config, "block_configs")) > 0)
        return true;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(b->checkpoint); i++)
        if (!b->explained[i])
            return false; /* the modelling code would not read it */
    return !cannot_serve(b->family, b->prefix, b->config);
}

gac_status gac_model_code(const char *stated, char **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, stated, out);
    const served *s = served_family(stated);
    *out = s ? make_code(s->name) : NULL;
    return !s     ? gac_error_set(err, GAC_USAGE, "no modelling code for the family %s", stated)
           : *out ? GAC_OK
                  : gac_error_no_memory(err);
}

gac_status gac_model_add_code(const char *stated, struct json_t *modules, struct json_t *config,
                              char **code, gac_error *err)
{
    GAC_REFUSE_NULL(err, stated, modules, config, code);
    static const struct {
        const char *key, *suffix;
    } classes[] = { { "AutoConfig", "Config" },
                    { "AutoModel", "Model" },
                    { "AutoModelForCausalLM", "ForCausalLM" } };
    char text[96];
    gac_status status = gac_model_code(stated, code, err);
    if (status != GAC_OK)
        return status;
    const served *s = served_family(stated);
    json_t *map = json_object(), *architectures = json_array();
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        snprintf(text, sizeof text, "modeling_gac.Gac%s%s", s->name, classes[i].suffix);
        json_object_set_new(map, classes[i].key, json_string(text));
    }
    snprintf(text, sizeof text, "Gac%sForCausalLM", s->name);
    json_array_append_new(architectures, json_string(text));
    bool ok = json_object_set_new(config, "architectures", architectures) == 0;
    ok = json_object_set_new(config, "auto_map", map) == 0 && ok;
    ok = json_object_set_new(config, "model_type", json_string(s->family)) == 0 && ok;
    ok = json_object_set(config, "gac_modules", modules) == 0 && ok;
    if (ok)
        return GAC_OK;
    free(*code);
    *code = NULL;
    return gac_error_no_memory(err);
}

/* The list of modules. */

/* A model that may get other sizes, the config that it will have, and what the stock class makes
 * of that config. */
typedef struct listing {
    const gac_model *model;
    const int64_t *sizes; /* (n_dims) or NULL: as they are */
    const json_t *config;
    const served *family;
    int64_t hidden, vocab, width, n_heads, n_kv_heads, head_dim;
    bool attention_bias, mlp_bias, tied;
    gac_error *err;
} listing;

static gac_status cannot(const listing *l, const char *format, ...) GAC_PRINTF(2, 3);

/* Sets the error of a model that the modelling code cannot serve. */
static gac_status cannot(const listing *l, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gac_error_set(l->err, GAC_USAGE, "%s", text);
}

static int64_t size_of(const listing *l, int32_t dim)
{
    return l->sizes ? l->sizes[dim] : gac_model_dim(l->model, dim)->size;
}

/* The size that a tensor's axis will have. */
static int64_t axis_size(const listing *l, int32_t tensor, int32_t axis)
{
    int64_t size = gac_checkpoint_tensor(l->model->checkpoint, tensor)->shape[axis];
    for (int32_t i = 0; i < l->model->n_dims; i++) {
        const gac_dim *d = &l->model->dims[i];
        for (int32_t k = 0; k < d->n_places && size_of(l, i) != d->size; k++)
            if (d->places[k].tensor == tensor && d->places[k].axis == axis)
                size += d->places[k].n_slices * (size_of(l, i) - d->size);
    }
    return size;
}

static int64_t read_size(const json_t *config, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(config, key);
    if (!json_is_integer(value))
        return otherwise;
    const json_int_t n = json_integer_value(value);
    return n >= 0 && n <= INT32_MAX ? n : -1; /* so that products of two fit */
}

static void read_config(listing *l)
{
    const json_t *c = l->config;
    l->hidden = read_size(c, "hidden_size", 0);
    l->vocab = read_size(c, "vocab_size", 0);
    l->width = read_size(c, "intermediate_size", 0);
    l->n_heads = read_size(c, "num_attention_heads", 0);
    l->n_kv_heads = read_size(c, "num_key_value_heads", l->n_heads);
    int64_t derived = l->n_heads > 0 ? l->hidden / l->n_heads : 0;
    l->head_dim = read_size(c, "head_dim", l->family->head_dim ? l->family->head_dim : derived);
    l->attention_bias = json_is_true(json_object_get(c, "attention_bias"));
    l->mlp_bias = json_is_true(json_object_get(c, "mlp_bias"));
    l->tied = json_is_true(json_object_get(c, "tie_word_embeddings"));
}

/* What the stock class needs beside the right sizes of its linear layers. */
static gac_status check_stock(const listing *l)
{
    const gac_model *m = l->model;
    /* Beside our code it repeats the heads of some layers, as save_pretrained writes them. */
    if (json_object_get(l->config, "per_layer_config") && !gac_config_has_our_code(l->config))
        return cannot(l, "config.json has per_layer_config, which stock models do not read");
    if (m->n_unexplained)
        return cannot(l, "%d tensors were not understood", m->n_unexplained);
    if (read_size(l->config, "num_hidden_layers", -1) != m->n_layers)
        return cannot(l, "config.json states another number of layers");
    for (int32_t i = 0; i < m->n_dims; i++) {
        const gac_dim *d = &m->dims[i];
        if ((d->role == GAC_ROLE_HIDDEN && size_of(l, i) != l->hidden) ||
            (d->role == GAC_ROLE_VOCAB && size_of(l, i) != l->vocab))
            return cannot(l, "config.json states another %s size than the tensors have", d->name);
    }
    int32_t n_attention = 0;
    for (int32_t i = 0; i < m->n_ops; i++) {
        const gac_op *op = &m->ops[i];
        if (op->kind != GAC_OP_SDPA)
            continue;
        n_attention++;
        if (size_of(l, op->qk_dim) != l->head_dim || size_of(l, op->v_dim) != l->head_dim)
            return cannot(l, "layer %d has heads of another size than config.json states",
                          op->layer);
        if (op->n_kv_heads < 1 || op->n_q_heads % op->n_kv_heads)
            return cannot(l, "the query heads of layer %d do not share its kv heads evenly",
                          op->layer);
    }
    if (n_attention != m->n_layers || m->n_modules < 7 * m->n_layers)
        return cannot(l, "some layers lack a block");
    return GAC_OK;
}

/* The layer that the stock class makes for a module. */
typedef struct stock_layer {
    int64_t n_out, n_in;
    bool bias;
} stock_layer;

static bool stock_of(const listing *l, const char *name, stock_layer *out)
{
    const int64_t q = l->n_heads * l->head_dim, kv = l->n_kv_heads * l->head_dim;
    const bool read = l->family->reads_attention_bias && l->attention_bias;
    const bool qkv = l->family->qkv_bias || read, mlp = l->family->reads_mlp_bias && l->mlp_bias;
    const struct {
        const char *name;
        stock_layer layer;
    } all[] = { { ".self_attn.q_proj", { q, l->hidden, qkv } },
                { ".self_attn.k_proj", { kv, l->hidden, qkv } },
                { ".self_attn.v_proj", { kv, l->hidden, qkv } },
                { ".self_attn.o_proj", { l->hidden, q, read } },
                { ".mlp.gate_proj", { l->width, l->hidden, mlp } },
                { ".mlp.up_proj", { l->width, l->hidden, mlp } },
                { ".mlp.down_proj", { l->hidden, l->width, mlp } },
                { "lm_head", { l->vocab, l->hidden, false } } };
    const char *number = strncmp(name, "layers.", 7) == 0 ? name + 7 : NULL;
    const char *tail = number ? strchr(number, '.') : name;
    for (size_t i = 0; tail && i < sizeof all / sizeof *all; i++)
        if (strcmp(tail, all[i].name) == 0) {
            *out = all[i].layer;
            return true;
        }
    return false;
}

/* The name of a factor as the modelling code finds it: below its module ("BLinear"), or beside it
 * with a dot in front (".q_v_proj"). False if it is elsewhere. */
static bool factor_name(const listing *l, const gac_module *m, int32_t tensor, char *out,
                        size_t size)
{
    static const char suffix[] = ".weight";
    const char *name = gac_checkpoint_tensor(l->model->checkpoint, tensor)->name;
    const char *below = strncmp(m->name, "layers.", 7) == 0 ? l->model->prefix : "";
    const char *dot = strrchr(m->name, '.');
    char module[GAC_MAX_NAME_BYTES];
    size_t n = (size_t)snprintf(module, sizeof module, "%s%s.", below, m->name);
    const char *start = "";
    if (n >= sizeof module)
        return false;
    if (strncmp(name, module, n) != 0) { /* beside it */
        n -= dot ? strlen(dot) : n;
        start = ".";
    }
    size_t length = strlen(name), end = sizeof suffix - 1;
    if (!n || length <= n + end || strncmp(name, module, n) != 0 ||
        strcmp(name + length - end, suffix) != 0 || length - n - end + 2 > size)
        return false;
    snprintf(out, size, "%s%.*s", start, (int)(length - n - end), name + n);
    return strchr(out + 1, '.') == NULL || strncmp(out, "U.", 2) == 0;
}

/* PaLU: a second factor for each group of heads. */
static gac_status groups_json(const listing *l, const gac_module *m, json_t **out)
{
    int64_t n_out = 0;
    json_t *ranks = json_array();
    char name[64], wanted[64];
    bool fits = true;
    for (int32_t i = 0; i < m->n_parts; i++) {
        const gac_module_part *part = &m->parts[i];
        snprintf(wanted, sizeof wanted, "U.%d", i);
        fits = fits && factor_name(l, m, part->weight, name, sizeof name) &&
               strcmp(name, wanted) == 0 && (part->bias >= 0) == (m->parts[0].bias >= 0) &&
               axis_size(l, part->weight, 0) == axis_size(l, m->parts[0].weight, 0);
        n_out += axis_size(l, part->weight, 0);
        json_array_append_new(ranks, json_integer(axis_size(l, part->weight, 1)));
    }
    *out = json_pack("{s:[I, I], s:o, s:b}", "groups", (json_int_t)n_out,
                     (json_int_t)axis_size(l, m->first, 1), "ranks", ranks, "bias",
                     m->parts[0].bias >= 0);
    if (!*out)
        return gac_error_no_memory(l->err);
    return fits && m->first_bias < 0 ? GAC_OK : cannot(l, "%s has groups that differ", m->name);
}

/* What the modelling code must put in the place of a stock layer. *out is NULL if the stock layer
 * serves. */
static gac_status module_json(const listing *l, const gac_module *m, json_t **out)
{
    stock_layer stock;
    char first[64], second[64];
    const int32_t last = m->parts[0].weight;
    const int bias = m->parts[0].bias >= 0;
    *out = NULL;
    if (m->quantised || m->transposed || !stock_of(l, m->name, &stock))
        return cannot(l, "%s is stored in a way that the modelling code does not read", m->name);
    if (m->first >= 0 && factor_name(l, m, m->first, first, sizeof first) &&
        strcmp(first, "VT") == 0)
        return groups_json(l, m, out);
    if (m->n_parts != 1)
        return cannot(l, "%s is stored in a way that the modelling code does not read", m->name);
    const int64_t n_out = axis_size(l, last, 0), n_in = axis_size(l, last, 1);
    if (m->first < 0) {
        if (n_out == stock.n_out && n_in == stock.n_in && bias == stock.bias)
            return GAC_OK;
        *out = json_pack("{s:[I, I], s:b}", "linear", (json_int_t)n_out, (json_int_t)n_in, "bias",
                         bias);
    } else if (m->first_bias >= 0 || !factor_name(l, m, m->first, first, sizeof first) ||
               !factor_name(l, m, last, second, sizeof second)) {
        return cannot(l,
                      "%s shares a factor or has a bias inside, which the modelling code does "
                      "not read",
                      m->name);
    } else {
        *out = json_pack("{s:[I, I, I], s:s, s:s, s:b}", "factors", (json_int_t)n_out,
                         (json_int_t)n_in, (json_int_t)axis_size(l, m->first, 1), "first", first,
                         "second", second, "bias", bias);
    }
    return *out ? GAC_OK : gac_error_no_memory(l->err);
}

static gac_status list_all(const listing *l, json_t *modules)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < l->model->n_modules && status == GAC_OK; i++) {
        const gac_module *m = &l->model->modules[i];
        json_t *module = NULL;
        if (l->tied && strcmp(m->name, "lm_head") == 0)
            continue;
        status = module_json(l, m, &module);
        if (status == GAC_OK && module && json_object_set(modules, m->name, module) != 0)
            status = gac_error_no_memory(l->err);
        json_decref(module);
    }
    if (status == GAC_OK && !l->tied && !gac_model_find_module(l->model, "lm_head"))
        status = cannot(l, "lm_head is missing, and the config does not tie it");
    return status;
}

gac_status gac_model_list_modules(const gac_model *model, const int64_t *sizes,
                                  const struct json_t *config, struct json_t **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, config, out);
    listing l = { .model = model,
                  .sizes = sizes,
                  .config = config,
                  .family = served_family(model->family),
                  .err = err };
    const char *why = cannot_serve(model->family, model->prefix, config);
    *out = NULL;
    if (!l.family)
        return cannot(&l, "%s %s", why, model->family);
    if (why)
        return cannot(&l, "%s", why);
    read_config(&l);
    gac_status status = check_stock(&l);
    json_t *modules = json_object();
    if (status == GAC_OK)
        status = modules ? list_all(&l, modules) : gac_error_no_memory(err);
    if (status == GAC_OK)
        *out = modules;
    else
        json_decref(modules);
    return status;
}

/* How a model loads. */

bool gac_config_has_our_code(const struct json_t *config)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(config, "auto_map"), "AutoConfig"));
    return name && strncmp(name, "modeling_gac.", strlen("modeling_gac.")) == 0;
}

/* Whether per_layer_config states only what families read from it in their own layers. */
static bool layers_state_heads(const json_t *config)
{
    const char *layer, *key;
    json_t *own, *value;
    json_object_foreach(json_object_get(config, "per_layer_config"), layer, own)
        json_object_foreach(own, key, value)
            if (strcmp(key, "head_dim") != 0)
                return false;
    return true;
}

/* Whether the config of a family without modelling code states every size. */
static bool states_all(const gac_model *m)
{
    return m->plain && m->family_known && m->all_expected && !m->stale &&
           layers_state_heads(m->config);
}

/* A model of a family with modelling code. */
static gac_status loading_of_served(const gac_model *m, gac_loading *out, gac_error *err)
{
    json_t *modules = NULL;
    gac_error why = GAC_ERROR_INIT;
    gac_status status = gac_model_list_modules(m, NULL, m->config, &modules, &why);
    const json_t *stated = json_object_get(m->config, "gac_modules");
    const bool by_code = gac_config_has_our_code(m->config);
    if (status == GAC_USAGE)
        snprintf(out->reason, sizeof out->reason, "%s", why.text);
    else if (status != GAC_OK)
        gac_error_set(err, status, "%s", why.text);
    else if (by_code && json_equal(modules, stated))
        out->kind = GAC_LOADS_BY_CODE;
    else if (by_code)
        snprintf(out->reason, sizeof out->reason, "gac_modules of config.json is out of date");
    else if (json_object_size(modules) == 0)
        out->kind = GAC_LOADS_PLAIN;
    else
        snprintf(out->reason, sizeof out->reason, "a plain config cannot state its sizes");
    out->factored_head = json_object_get(modules, "lm_head") != NULL;
    json_decref(modules);
    return status == GAC_USAGE ? GAC_OK : status;
}

gac_status gac_model_loading(const gac_model *model, gac_loading *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, out);
    *out = (gac_loading){ .kind = GAC_LOADS_NOWHERE };
    const bool foreign = json_object_get(model->config, "auto_map") != NULL &&
                         !gac_config_has_our_code(model->config);
    if (gac_model_is_adapter(model) && model->config)
        out->kind = GAC_LOADS_AS_ADAPTER;
    else if (foreign)
        out->kind = GAC_LOADS_BY_OTHER_CODE;
    else if (json_array_size(json_object_get(model->config, "block_configs")) > 0)
        snprintf(out->reason, sizeof out->reason,
                 "block_configs needs the modelling code of DeciLM, and config.json names none");
    else if (!model->config)
        snprintf(out->reason, sizeof out->reason, "there is no config.json");
    else if (json_object_get(gac_checkpoint_config(model->checkpoint), "text_config"))
        snprintf(out->reason, sizeof out->reason,
                 "the language model is a part of another model, and gac does not know how that "
                 "loads");
    else if (served_family(model->family))
        return loading_of_served(model, out, err);
    else if (states_all(model))
        out->kind = GAC_LOADS_PLAIN;
    else
        snprintf(out->reason, sizeof out->reason,
                 "a plain config cannot state its sizes, and there is no modelling code for the "
                 "family %s",
                 model->family);
    return GAC_OK;
}

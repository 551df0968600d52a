/* LoRA adapters as peft saves them: beside each module X of some model, X.lora_A (rank, in) and
 * X.lora_B (out, rank), whose product is added to X's weight times a scale. The scale is alpha over
 * the rank, or over its root, and adapter_config.json states both. A padded rank therefore needs
 * another alpha. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "model/model_internal.h"

static const char peft_prefix[] = "base_model.model.";

/* Limit of keys in a pattern, because each is compared with the name of each module. */
enum { MAX_PATTERN_KEYS = 4096 };

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

bool adapter_found(const builder *b)
{
    if (json_is_string(json_object_get(b->config, "peft_type")))
        return true;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(b->checkpoint) && !b->config; i++) {
        const char *name = gac_checkpoint_tensor(b->checkpoint, i)->name;
        if (ends_with(name, ".lora_A.weight") || ends_with(name, ".lora_embedding_A"))
            return true;
    }
    return false;
}

/* What adapter_config.json states. */

/* Returns whether a key of rank_pattern or alpha_pattern matches a module. peft takes keys as
 * regular expressions for the end of the name, after a dot. Ours are names; their dots match any
 * character. */
static bool key_matches(const char *key, const char *module)
{
    size_t n = strlen(key), m = strlen(module);
    if (n > m || (n < m && module[m - n - 1] != '.'))
        return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != '.' && key[i] != module[m - n + i])
            return false;
    return true;
}

/* Returns the value of a module: that of the first key of the pattern which matches, else that of
 * the whole adapter. NULL if there is neither. */
static const json_t *stated_value(const json_t *config, const char *pattern, const char *whole,
                                  const char *module)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(config, pattern), key, value)
        if (key_matches(key, module))
            return value;
    return json_object_get(config, whole);
}

static bool is_size(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) > 0 &&
           json_integer_value(value) <= INT32_MAX;
}

static bool is_alpha(const json_t *value)
{
    return json_is_number(value) && isfinite(json_number_value(value));
}

/* Returns whether a pattern is missing or has names as keys and good values. */
static bool pattern_is_plain(const json_t *config, const char *pattern,
                             bool (*good)(const json_t *))
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const json_t *object = json_object_get(config, pattern);
    const char *key;
    json_t *value;
    if (object && !json_is_null(object) && !json_is_object(object))
        return false;
    if (json_object_size(object) > MAX_PATTERN_KEYS)
        return false;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
        if (!*key || key[strspn(key, plain)] || !good(value))
            return false;
    return true;
}

/* Returns whether a key is missing or says no. */
static bool is_off(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Returns why no rank of the adapter can change, or NULL. */
static const char *refusal(const builder *b)
{
    static const char *const variants[] = { "target_parameters", "use_qalora",
                                            "use_bdlora",        "monteclora_config",
                                            "arrow_config",      "velora_config",
                                            "kasa_config",       NULL };
    const json_t *rslora = json_object_get(b->config, "use_rslora");
    if (!b->config)
        return "there is no adapter_config.json, so the scale of the adapter is not known";
    if (!config_string(b, "peft_type") || strcmp(config_string(b, "peft_type"), "LORA") != 0)
        return "peft_type is not LORA";
    if (!is_size(json_object_get(b->config, "r")))
        return "adapter_config.json states no rank r";
    if (!is_alpha(json_object_get(b->config, "lora_alpha")))
        return "adapter_config.json states no lora_alpha";
    if (rslora && !json_is_boolean(rslora) && !json_is_null(rslora))
        return "use_rslora is neither true nor false";
    if (!pattern_is_plain(b->config, "rank_pattern", is_size))
        return "rank_pattern has keys that are not names, or values that are not ranks";
    if (!pattern_is_plain(b->config, "alpha_pattern", is_alpha))
        return "alpha_pattern has keys that are not names, or values that are not numbers";
    for (int i = 0; variants[i]; i++)
        if (!is_off(b->config, variants[i]))
            return gac_arena_printf(b->arena, "adapter_config.json has %s, whose layout is unknown",
                                    variants[i]);
    return NULL;
}

/* The graph. */

/* Returns the name that peft matches patterns with: that of the module in the model. */
static const char *module_in_model(const char *module)
{
    size_t n = sizeof peft_prefix - 1;
    return strncmp(module, peft_prefix, n) == 0 ? module + n : module;
}

/* Returns the first number between dots in a name, or -1. */
static int32_t layer_of(const char *name)
{
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t n = strspn(dot + 1, "0123456789");
        if (n > 0 && n < 5 && dot[1 + n] == '.') {
            int32_t layer = 0;
            for (size_t i = 1; i <= n; i++)
                layer = layer * 10 + (dot[i] - '0');
            return layer < GAC_MAX_LAYERS ? layer : -1;
        }
    }
    return -1;
}

static void explain(builder *b, int32_t tensor)
{
    if (tensor >= 0)
        b->explained[tensor] = true;
}

/* Adds the rank of one module with its two factors. embedding: the first one is a table. */
static gac_status add_rank(builder *b, const char *module, int32_t first, int32_t second,
                           bool embedding, gac_error *err)
{
    int32_t dim, op;
    int64_t rank = builder_tensor(b, first)->shape[0];
    if (rank != builder_tensor(b, second)->shape[1])
        return builder_contradiction(b, first, "rows", rank, second, "columns",
                                     builder_tensor(b, second)->shape[1], err);
    gac_status status = builder_add_dim(
        b, GAC_ROLE_RANK, rank, builder_display(b, "%s.rank", module), GAC_EXACT,
        "zero rows in lora_A, zero columns in lora_B; lora_alpha keeps the scale", &dim, err);
    if (status == GAC_OK)
        status =
            builder_add_place(b, dim, (gac_place){ first, 0, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    if (status == GAC_OK)
        status =
            builder_add_place(b, dim, (gac_place){ second, 1, GAC_REPEAT_WHOLE, 0, 1, false }, err);
    b->layer = layer_of(module);
    if (status == GAC_OK && !embedding)
        status = builder_add_gemm(b, first, 0, 1, &op, err);
    if (status == GAC_OK)
        status = builder_add_gemm(b, second, 0, 1, &op, err);
    b->n_layers = b->layer >= b->n_layers ? b->layer + 1 : b->n_layers;
    b->layer = -1;
    if (status != GAC_OK)
        return status;
    gac_dim *d = &b->dims[dim].dim;
    const json_t *stated = stated_value(b->config, "rank_pattern", "r", module_in_model(module));
    d->compressed = true;
    d->config_key = "r";
    d->declared = is_size(stated) ? json_integer_value(stated) : -1;
    explain(b, builder_find(b, "%s.lora_B.bias", module));
    explain(b, builder_find(b, "%s.lora_magnitude_vector", module));
    explain(b, builder_find(b, "%s.lora_magnitude_vector.weight", module));
    return GAC_OK;
}

/* Adds the module of a tensor, if the tensor is a first factor and the second one is there. */
static gac_status add_module_of(builder *b, int32_t tensor, gac_error *err)
{
    static const char *const names[2][2] = { { ".lora_A.weight", ".lora_B.weight" },
                                             { ".lora_embedding_A", ".lora_embedding_B" } };
    const char *name = builder_tensor(b, tensor)->name;
    for (int kind = 0; kind < 2; kind++) {
        if (!ends_with(name, names[kind][0]))
            continue;
        int length = (int)(strlen(name) - strlen(names[kind][0]));
        int32_t second = builder_find(b, "%.*s%s", length, name, names[kind][1]);
        if (second < 0 || builder_tensor(b, tensor)->n_axes != 2 ||
            builder_tensor(b, second)->n_axes != 2)
            return GAC_OK;
        const char *module = gac_arena_printf(b->arena, "%.*s", length, name);
        gac_status status =
            module ? builder_expect_axes(b, tensor, 2, err) : gac_error_no_memory(err);
        if (status == GAC_OK)
            status = builder_expect_axes(b, second, 2, err);
        return status == GAC_OK ? add_rank(b, module, tensor, second, kind == 1, err) : status;
    }
    return GAC_OK;
}

/* Finds what forbids to change ranks although the config is understood: a factor that is not
 * understood, or a rank that the config does not state. *out is NULL if nothing does. */
static gac_status find_obstacle(builder *b, const char **out, gac_error *err)
{
    char q[160];
    bool found = false;
    *out = NULL;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(b->checkpoint) && !found; i++) {
        const char *name = builder_tensor(b, i)->name;
        found = !b->explained[i] && strstr(name, ".lora_");
        if (found)
            *out = gac_arena_printf(b->arena, "%s is not understood, and shares the config",
                                    gac_quote(q, sizeof q, name));
    }
    for (int32_t i = 0; i < b->n_dims && !found; i++) {
        const gac_dim *d = &b->dims[i].dim;
        found = d->declared != d->size;
        if (found)
            *out = gac_arena_printf(b->arena,
                                    "adapter_config.json states rank %lld for %s, which has %lld",
                                    (long long)d->declared, d->name, (long long)d->size);
    }
    return found && !*out ? gac_error_no_memory(err) : GAC_OK;
}

/* Explains the tensors of whole modules that were trained. They replace modules of the model, whose
 * sizes they have. */
static gac_status explain_copies(builder *b, gac_error *err)
{
    const json_t *entries = json_object_get(b->config, "modules_to_save");
    char module[GAC_MAX_NAME_BYTES + 1];
    int32_t n = 0;
    size_t k;
    json_t *entry;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(b->checkpoint); i++) {
        const char *name = module_in_model(builder_tensor(b, i)->name), *dot = strrchr(name, '.');
        if (b->explained[i] || !dot || strstr(name, ".lora_") || json_array_size(entries) > 64)
            continue;
        snprintf(module, sizeof module, "%.*s", (int)(dot - name), name);
        json_array_foreach(entries, k, entry)
            if (json_is_string(entry) && key_matches(json_string_value(entry), module))
                b->explained[i] = true;
        n += b->explained[i];
    }
    return n == 0 ? GAC_OK
                  : builder_note(b, err,
                                 "%d tensors of whole modules (modules_to_save): their sizes are "
                                 "those of the model",
                                 n);
}

static gac_status build(builder *b, const family *self, gac_error *err)
{
    (void)self;
    const char *why = refusal(b);
    gac_status status = GAC_OK;
    int32_t n = gac_checkpoint_n_tensors(b->checkpoint);
    const char *name = n ? builder_tensor(b, 0)->name : "";
    size_t length = sizeof peft_prefix - 1;
    b->prefix = strncmp(name, peft_prefix, length) == 0 && strncmp(name + length, "model.", 6) == 0
                    ? "base_model.model.model."
                    : peft_prefix;
    b->n_layers = 0;
    b->found |= FOUND_LORA;
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        status = add_module_of(b, i, err);
    if (status == GAC_OK && !why)
        status = find_obstacle(b, &why, err);
    for (int32_t i = 0; i < b->n_dims && why; i++) {
        b->dims[i].dim.exactness = GAC_REFUSED;
        b->dims[i].dim.reason = why;
    }
    if (status == GAC_OK && b->n_dims == 0)
        status = builder_note(b, err, "no LoRA factors%s%s", why ? ": " : "", why ? why : "");
    if (status == GAC_OK)
        status = builder_note(b, err,
                              "an adapter: times are those of its own factors, without "
                              "the model that it is added to");
    return status == GAC_OK ? explain_copies(b, err) : status;
}

static const char *const no_types[] = { NULL };

const family family_adapter = { "adapter", no_types, "layers", NULL, build, NULL };

bool gac_model_is_adapter(const gac_model *model)
{
    return strcmp(model->family, family_adapter.name) == 0;
}

/* The config of a repaired adapter. */

/* A module's rank and alpha after the repair. */
typedef struct lora_values {
    char *module;
    int64_t rank;
    json_t *alpha;
} lora_values;

static double divided(double alpha, int64_t rank, bool by_root)
{
    return alpha / (by_root ? sqrt((double)rank) : (double)rank);
}

/* Makes the alpha that gives at rank to the scale that alpha gives at rank from: the same number
 * where there is one, else the nearest. A whole number stays one if it can. */
static json_t *keep_scale(const json_t *alpha, int64_t from, int64_t to, bool by_root)
{
    if (from == to)
        return json_deep_copy(alpha);
    double scale = divided(json_number_value(alpha), from, by_root);
    double best =
        by_root ? scale * sqrt((double)to) : json_number_value(alpha) * (double)to / (double)from;
    if (fabs(best) < 1e15 && divided(round(best), to, by_root) == scale)
        return json_is_integer(alpha) ? json_integer((json_int_t)round(best))
                                      : json_real(round(best));
    double below = best, above = best;
    for (int i = 0; i < 4; i++) {
        if (divided(below, to, by_root) == scale)
            return json_real(below);
        if (divided(above, to, by_root) == scale)
            return json_real(above);
        below = nextafter(below, -INFINITY);
        above = nextafter(above, INFINITY);
    }
    return json_real(best);
}

/* Returns the name in the model of a rank's module. The caller frees it. */
static char *module_of_rank(const gac_model *m, const gac_dim *d)
{
    const char *name =
        module_in_model(gac_checkpoint_tensor(m->checkpoint, d->places[0].tensor)->name);
    size_t n = strlen(name);
    while (n > 0 && strncmp(name + n, ".lora_", 6) != 0)
        n--;
    return strndup(name, n);
}

static int by_values(const void *a, const void *b)
{
    const lora_values *x = a, *y = b;
    double alpha_x = json_number_value(x->alpha), alpha_y = json_number_value(y->alpha);
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return alpha_x < alpha_y ? -1 : alpha_x > alpha_y;
}

/* Returns the values that most modules have. Sorts values. */
static lora_values most_common(lora_values *values, int32_t n)
{
    int32_t first = 0, best = 0, n_best = 0;
    qsort(values, (size_t)n, sizeof *values, by_values);
    for (int32_t i = 0; i < n; i++) {
        if (by_values(&values[first], &values[i]) != 0)
            first = i;
        if (i - first + 1 > n_best) {
            best = first;
            n_best = i - first + 1;
        }
    }
    return values[best];
}

/* Longer names first, so that the whole name of a module wins over one that ends another's. */
static int by_length(const void *a, const void *b)
{
    size_t x = strlen(((const lora_values *)a)->module),
           y = strlen(((const lora_values *)b)->module);
    return x == y  ? strcmp(((const lora_values *)a)->module, ((const lora_values *)b)->module)
           : x > y ? -1
                   : 1;
}

/* States the values: the most common ones for the whole adapter, the others by name. */
static gac_status state_values(lora_values *values, int32_t n, json_t *config, gac_error *err)
{
    const lora_values common = most_common(values, n);
    json_t *ranks = json_object(), *alphas = json_object();
    bool failed = !ranks || !alphas ||
                  json_object_set_new(config, "r", json_integer(common.rank)) ||
                  json_object_set(config, "lora_alpha", common.alpha);
    qsort(values, (size_t)n, sizeof *values, by_length);
    for (int32_t i = 0; i < n && !failed; i++) {
        if (values[i].rank != common.rank)
            failed = json_object_set_new(ranks, values[i].module, json_integer(values[i].rank));
        if (!failed && json_number_value(values[i].alpha) != json_number_value(common.alpha))
            failed = json_object_set(alphas, values[i].module, values[i].alpha);
    }
    if (!failed && (json_object_size(ranks) > MAX_PATTERN_KEYS ||
                    json_object_size(alphas) > MAX_PATTERN_KEYS)) {
        json_decref(ranks);
        json_decref(alphas);
        return gac_error_set(err, GAC_USAGE,
                             "more than %d modules would have other ranks than most",
                             MAX_PATTERN_KEYS);
    }
    if (!failed && (json_object_size(ranks) || json_object_get(config, "rank_pattern")))
        failed = json_object_set(config, "rank_pattern", ranks);
    if (!failed && (json_object_size(alphas) || json_object_get(config, "alpha_pattern")))
        failed = json_object_set(config, "alpha_pattern", alphas);
    json_decref(ranks);
    json_decref(alphas);
    if (failed)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n; i++)
        if (json_integer_value(stated_value(config, "rank_pattern", "r", values[i].module)) !=
                values[i].rank ||
            json_number_value(stated_value(config, "alpha_pattern", "lora_alpha",
                                           values[i].module)) != json_number_value(values[i].alpha))
            return gac_error_set(err, GAC_USAGE,
                                 "adapter_config.json cannot state the rank of %s: its name is the "
                                 "end of another one",
                                 values[i].module);
    return GAC_OK;
}

gac_status gac_model_state_adapter(const gac_model *model, const int64_t *sizes, json_t *config,
                                   gac_error *err)
{
    GAC_REFUSE_NULL(err, model, sizes, config);
    bool by_root = json_is_true(json_object_get(config, "use_rslora")), changed = false;
    lora_values *values = calloc((size_t)model->n_dims + 1, sizeof *values);
    gac_status status = values ? GAC_OK : gac_error_no_memory(err);
    for (int32_t i = 0; i < model->n_dims && status == GAC_OK; i++) {
        const gac_dim *d = &model->dims[i];
        values[i].module = module_of_rank(model, d);
        values[i].rank = sizes[i];
        changed = changed || sizes[i] != d->size;
        if (!values[i].module)
            status = gac_error_no_memory(err);
        else
            values[i].alpha =
                keep_scale(stated_value(config, "alpha_pattern", "lora_alpha", values[i].module),
                           d->size, sizes[i], by_root);
        if (status == GAC_OK && !values[i].alpha)
            status = gac_error_no_memory(err);
    }
    if (status == GAC_OK && changed)
        status = state_values(values, model->n_dims, config, err);
    for (int32_t i = 0; i < model->n_dims && values; i++) {
        free(values[i].module);
        json_decref(values[i].alpha);
    }
    free(values);
    return status;
}

/* What transformers needs to load a model whose layers differ from the stock ones. */
#include "base/arguments.h"
#include "model/bundled_modeling.h"
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

/* The template is for Llama. These names take the place of "Llama". */
static const struct {
    const char *family, *name;
} families[] = {
    { "llama", "Llama" }, { "mistral", "Mistral" }, { "qwen2", "Qwen2" }, { "qwen3", "Qwen3" }
};

#define STOCK "Llama"

static const char *name_of(const char *stated)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].family, stated) == 0)
            return families[i].name;
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

bool gac_model_has_code(const char *stated)
{
    return stated && name_of(stated);
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
    const char *name = name_of(stated);
    json_t *map = json_object(), *architectures = json_array();
    *code = name ? make_code(name) : NULL;
    if (!*code || !map || !architectures) {
        json_decref(map);
        json_decref(architectures);
        return name ? gac_error_no_memory(err)
                    : gac_error_set(err, GAC_USAGE, "no modelling code for the family %s", stated);
    }
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        snprintf(text, sizeof text, "modeling_gac.Gac%s%s", name, classes[i].suffix);
        json_object_set_new(map, classes[i].key, json_string(text));
    }
    snprintf(text, sizeof text, "Gac%sForCausalLM", name);
    json_array_append_new(architectures, json_string(text));
    json_object_set_new(config, "architectures", architectures);
    json_object_set_new(config, "auto_map", map);
    return json_object_set(config, "gac_modules", modules) == 0 ? GAC_OK : gac_error_no_memory(err);
}

#include "loads_in.h"

#include <gac/engine.h>

#include <string.h>

/* A runtime, and how a user loads a model there. NULL: it does not load such a model. */
typedef struct runtime {
    const char *key, *name;
    const char *plain, *by_code, *by_other_code, *as_adapter;
    bool makes_head; /* makes the output head itself: one plain matrix */
} runtime;

/* What experiments/validation/loads and lora have tried. */
static const runtime runtimes[] = {
    { "transformers", "transformers", "AutoModelForCausalLM.from_pretrained(DIR)",
      "AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)",
      "AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)",
      "model.load_adapter(DIR), with peft", false },
    { "vllm", "vLLM", "LLM(DIR)", "LLM(DIR, model_impl=\"transformers\", trust_remote_code=True)",
      NULL, NULL, true },
};
enum { N_RUNTIMES = sizeof runtimes / sizeof *runtimes };

/* Adds a runtime to the list. how is NULL if it does not load the model, and why says why. */
static void add(json_t *list, const char *key, const char *name, const char *how, const char *why)
{
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:b, s:s}", "runtime", key, "name", name, "loads",
                                    how != NULL, how ? "how" : "why", how ? how : why));
}

static void add_runtime(json_t *list, const runtime *r, const gac_loading *loading)
{
    const bool head = r->makes_head && loading->factored_head;
    const char *how = NULL, *why = loading->reason;
    switch (loading->kind) {
    case GAC_LOADS_PLAIN:
        how = r->plain;
        break;
    case GAC_LOADS_BY_CODE:
        how = head ? NULL : r->by_code;
        why = "its output head is not one plain matrix";
        break;
    case GAC_LOADS_BY_OTHER_CODE:
        how = r->by_other_code;
        why = "its config names modelling code that gac does not know";
        break;
    case GAC_LOADS_AS_ADAPTER:
        how = r->as_adapter;
        why = "adapters were not tried there";
        break;
    case GAC_LOADS_NOWHERE:
        break;
    }
    add(list, r->key, r->name, how, why);
}

gac_status loads_in_list(const gac_model *model, json_t **out, gac_error *err)
{
    int64_t n_tokens;
    gac_loading loading;
    gac_error why = GAC_ERROR_INIT;
    *out = NULL;
    gac_status status = gac_model_loading(model, &loading, err);
    if (status != GAC_OK)
        return status;
    json_t *list = json_array();
    bool runs = gac_engine_model_context(model, &n_tokens, &why) == GAC_OK;
    add(list, "gac", "gac", runs ? "gac generate DIR PROMPT" : NULL, why.text);
    if (loading.kind == GAC_LOADS_AS_ADAPTER)
        add(list, "peft", "peft", "PeftModel.from_pretrained(model, DIR)", NULL);
    for (int i = 0; i < N_RUNTIMES; i++)
        add_runtime(list, &runtimes[i], &loading);
    status = gac_memory_check(err);
    if (status == GAC_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

void loads_in_print(const char *label, const json_t *list)
{
    size_t i;
    json_t *row;
    const char *between = "", *last = "";
    bool code = false;
    fputs(label, stdout);
    json_array_foreach(list, i, row) {
        if (!json_is_true(json_object_get(row, "loads")))
            continue;
        printf("%s%s", between, text_of(row, "name"));
        between = ", ";
        code = code || strstr(text_of(row, "how"), "trust_remote_code");
    }
    if (!*between)
        fputs("no runtime that gac knows", stdout);
    if (code)
        fputs(" (trust_remote_code=True)", stdout);
    json_array_foreach(list, i, row) {
        const char *why = text_of(row, "why");
        if (json_is_true(json_object_get(row, "loads")))
            continue;
        if (strcmp(why, last) == 0) {
            printf(", %s", text_of(row, "name"));
            continue;
        }
        if (*last)
            printf(": %s", last);
        printf("; not in %s", text_of(row, "name"));
        last = why;
    }
    if (*last)
        printf(": %s", last);
    putchar('\n');
}

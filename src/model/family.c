/* Finds the family of a checkpoint: by its config, or by the names of its
 * tensors. */
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

static const family *const families_other[] = { &family_gpt2, &family_opt, NULL };

/* In the order in which their signatures are tried if there is no config. More
 * specific ones come first. */
static const family *const *const groups[] = { families_hybrid, families_experts, families_gpt,
                                               families_other,  families_llama,   NULL };

/* Families that are refused by name, because what they compute between the
 * linear modules is not described here. */
static const struct {
    const char *model_type, *reason;
} refusals[] = {
    { "mamba", "state-space layers" },
    { "mamba2", "state-space layers" },
    { "falcon_mamba", "state-space layers" },
    { "rwkv", "recurrent layers" },
    { "xlstm", "recurrent layers" },
    { "recurrent_gemma", "recurrent blocks between attention" },
    { "zamba", "state-space layers between attention" },
    { "zamba2", "state-space layers between attention" },
    { "kimi_linear", "linear attention in some layers" },
    { "bailing_hybrid", "linear attention in some layers" },
    { "longcat_flash", "two attentions and two MLPs in each layer" },
    { "jetmoe", "attention heads chosen by a router" },
    { "mllama_text_model", "cross attention to images in some layers" },
    { "dbrx", "experts stacked in one axis" },
    { "gemma3n", "layers with several parallel streams" },
    { "gemma3n_text", "layers with several parallel streams" },
    { "gpt_neox_japanese", "an MLP width that the config does not state as a number" },
};

/* Returns why a model_type is refused, or NULL. */
static const char *refusal_of(const char *model_type)
{
    for (size_t i = 0; model_type && i < sizeof refusals / sizeof *refusals; i++)
        if (strcmp(refusals[i].model_type, model_type) == 0)
            return refusals[i].reason;
    return NULL;
}

static const family *family_by_type(const char *type)
{
    for (int g = 0; type && groups[g]; g++)
        for (int f = 0; groups[g][f]; f++)
            for (int t = 0; groups[g][f]->model_types[t]; t++)
                if (strcmp(groups[g][f]->model_types[t], type) == 0)
                    return groups[g][f];
    return NULL;
}

/* Reads "<prefix><layers>.<number>." at the start of a name. Returns the
 * number, or -1. *rest gets what follows. */
static int64_t layer_number(const char *name, const char *prefix, const char *layers,
                            const char **rest)
{
    size_t n = strlen(prefix), m = strlen(layers);
    if (strncmp(name, prefix, n) != 0 || strncmp(name + n, layers, m) != 0 || name[n + m] != '.')
        return -1;
    const char *digits = name + n + m + 1;
    char *end;
    if (*digits < '0' || *digits > '9')
        return -1;
    long long number = strtoll(digits, &end, 10);
    if (*end != '.' || number > INT32_MAX)
        return -1;
    *rest = end + 1;
    return number;
}

static const char *const prefixes[] = { "model.",
                                        "",
                                        "transformer.",
                                        "model.decoder.",
                                        "decoder.",
                                        "model.language_model.",
                                        "language_model.model.",
                                        "model.text_model.",
                                        "gpt_neox.",
                                        "backbone.",
                                        "biogpt.",
                                        NULL };

static bool has_signature(const gac_checkpoint *c, const family *f)
{
    for (int32_t i = 0; f->signature && i < gac_checkpoint_n_tensors(c); i++) {
        const char *name = gac_checkpoint_tensor(c, i)->name;
        const char *rest;
        for (int p = 0; strstr(name, f->signature) && prefixes[p]; p++)
            if (layer_number(name, prefixes[p], f->layers, &rest) >= 0 &&
                strncmp(rest, f->signature, strlen(f->signature)) == 0)
                return true;
    }
    return false;
}

/* Finds the family by tensor names, if the config has no usable model_type. */
static const family *family_by_names(const gac_checkpoint *c)
{
    for (int g = 0; groups[g]; g++)
        for (int f = 0; groups[g][f]; f++)
            if (has_signature(c, groups[g][f]))
                return groups[g][f];
    return NULL;
}

void family_scan_names(builder *b, const char *layers)
{
    const gac_checkpoint *c = b->checkpoint;
    int32_t n_tensors = gac_checkpoint_n_tensors(c);
    b->prefix = "model.";
    b->layers = layers;
    for (int32_t i = 0; i < n_tensors; i++) {
        const char *name = gac_checkpoint_tensor(c, i)->name;
        b->has_bases = b->has_bases || strstr(name, "_basis.");
        b->has_scales = b->has_scales || quantised_name(name);
    }
    for (int p = 0; prefixes[p] && b->n_layers == 0; p++)
        for (int32_t i = 0; i < n_tensors; i++) {
            const char *rest;
            int64_t n = layer_number(gac_checkpoint_tensor(c, i)->name, prefixes[p], layers, &rest);
            if (n >= b->n_layers && n < n_tensors && n < GAC_MAX_LAYERS) {
                b->n_layers = (int32_t)n + 1;
                b->prefix = prefixes[p];
            }
        }
}

/* SliceGPT turns the residual stream and gives it another size in every block. */
static gac_status refuse_sliced(const builder *b, gac_error *err)
{
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(b->checkpoint); i++) {
        char q[120], qp[200];
        const char *name = gac_checkpoint_tensor(b->checkpoint, i)->name;
        if (strstr(name, ".attn_shortcut_Q") || strstr(name, ".mlp_shortcut_Q"))
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "%s: tensor \"%s\": SliceGPT's models are not supported: every "
                                 "block has a residual stream of its own",
                                 gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint)),
                                 gac_quote(q, sizeof q, name));
    }
    return GAC_OK;
}

gac_status family_choose(builder *b, const family **out, gac_error *err)
{
    char q[80], qp[200];
    const json_t *type = json_object_get(b->config, "model_type");
    gac_quote(qp, sizeof qp, b->config_path);
    if (adapter_found(b)) {
        *out = &family_adapter;
        b->family = family_adapter.name;
        b->family_known = true;
        return GAC_OK;
    }
    if (type && !json_is_string(type))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"model_type\" is not a string", qp);
    const char *name = json_string_value(type);
    const char *refusal = refusal_of(name);
    if (refusal)
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: model_type \"%s\" is not supported: it has %s", qp,
                             gac_quote(q, sizeof q, name), refusal);
    if (refuse_sliced(b, err) != GAC_OK)
        return GAC_BAD_INPUT;
    *out = family_by_type(name);
    b->family_known = *out != NULL || !name;
    if (!*out)
        *out = family_by_names(b->checkpoint);
    if (!*out && name)
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: model_type \"%s\" and its tensor names are unknown", qp,
                             gac_quote(q, sizeof q, name));
    if (!*out)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: no known model family has these tensor names",
                             gac_quote(qp, sizeof qp, gac_checkpoint_path(b->checkpoint)));
    b->family = (*out)->name;
    if (b->family_known)
        return GAC_OK;
    return builder_note(b, err, "model_type \"%s\" is not known; read as %s by its tensor names",
                        name, (*out)->name);
}

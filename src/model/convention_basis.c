/* Basis Sharing: a group of layers shares one basis model.{k,q,…}_basis.{layer}
 * [r, in]. Each layer of the group has its coefficients X.weight [out, r]. The
 * group therefore has one rank. */
#include <string.h>

#include "model/model_internal.h"

/* Finds the kind of a module: "k" for …k_proj. False for other modules. */
static bool projection_kind(const char *module, char kind[16])
{
    static const char suffix[] = "_proj";
    const char *dot = strrchr(module, '.');
    const char *name = dot ? dot + 1 : module;
    size_t n = strlen(name), m = sizeof suffix - 1;
    if (n <= m || n - m >= 16 || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(kind, name, n - m);
    kind[n - m] = 0;
    return true;
}

/* Returns the first layer of the layer's group according to the config, or the
 * layer itself. */
static int32_t group_leader(const builder *b, const char *kind, int32_t layer)
{
    char key[32];
    size_t i, j;
    json_t *group, *member;
    snprintf(key, sizeof key, "%s_groups", kind);
    json_array_foreach(json_object_get(b->config, key), i, group)
        json_array_foreach(group, j, member)
            if (json_is_integer(member) && json_integer_value(member) == layer) {
                json_int_t leader = json_integer_value(json_array_get(group, 0));
                return leader >= 0 && leader <= layer ? (int32_t)leader : layer;
            }
    return layer;
}

/* Returns the same module in another layer. */
static const char *module_in_layer(builder *b, const char *module, int32_t layer)
{
    const char *at = module + strlen(b->prefix);
    const char *dot = strchr(at, '.');
    const char *rest = dot ? strchr(dot + 1, '.') : NULL;
    return rest ? gac_arena_printf(b->arena, "%.*s.%d%s", (int)(dot - module), module, layer, rest)
                : NULL;
}

/* Ties the ranks of a kind: the config has one rank for all bases of a kind. */
static void tie_kind(builder *b, int32_t dim)
{
    for (int32_t i = 0; i < dim; i++)
        if (b->dims[i].dim.config_key && b->dims[i].dim.tied_to < 0 &&
            strcmp(b->dims[i].dim.config_key, b->dims[dim].dim.config_key) == 0 &&
            b->dims[i].dim.size == b->dims[dim].dim.size) {
            b->dims[dim].dim.tied_to = i;
            return;
        }
}

gac_status convention_basis(builder *b, const char *module, linear *out, gac_error *err)
{
    char kind[16], key[32];
    if (!b->has_bases)
        return GAC_OK;
    int32_t coefficients = builder_find(b, "%s.weight", module);
    if (b->layer < 0 || coefficients < 0 || !projection_kind(module, kind))
        return GAC_OK;
    int32_t leader = group_leader(b, kind, b->layer);
    int32_t own = builder_find(b, "%s%s_basis.%d.weight", b->prefix, kind, b->layer);
    int32_t first = builder_find(b, "%s%s_basis.%d.weight", b->prefix, kind, leader);
    if (first < 0 && own < 0)
        return GAC_OK;
    snprintf(key, sizeof key, "num_basis_%s", kind);
    const char *lead_module = module_in_layer(b, module, leader);
    pair_names names = { .first_module = "", .second_module = module };
    names.display = lead_module ? builder_display(b, "%s.rank", lead_module) : NULL;
    names.config_key = gac_arena_strdup(b->arena, key);
    if (!names.display || !names.config_key)
        return gac_error_no_memory(err);
    b->found |= FOUND_BASIS;
    int32_t dim = gac_namemap_find(&b->dim_names, names.display), n_dims = b->n_dims;
    gac_status status =
        linear_from_pair(b, &names, own >= 0 ? own : first, coefficients, dim, out, err);
    if (status != GAC_OK || b->n_dims == n_dims)
        return status;
    tie_kind(b, n_dims);
    return config_size(b, b->config, key, &b->dims[n_dims].dim.declared, err);
}

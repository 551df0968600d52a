/* Queries on a finished model. */
#include "model/model_internal.h"

static bool is_index(int32_t index, int32_t n)
{
    return index >= 0 && index < n;
}

const gac_checkpoint *gac_model_checkpoint(const gac_model *m)
{
    return m->checkpoint;
}

const char *gac_model_family(const gac_model *m)
{
    return m->family;
}

const char *gac_model_compressor(const gac_model *m)
{
    return m->compressor;
}

int32_t gac_model_n_layers(const gac_model *m)
{
    return m->n_layers;
}

gac_dtype gac_model_dtype(const gac_model *m)
{
    return m->dtype;
}

int32_t gac_model_n_dims(const gac_model *m)
{
    return m->n_dims;
}

const gac_dim *gac_model_dim(const gac_model *m, int32_t index)
{
    return is_index(index, m->n_dims) ? &m->dims[index] : NULL;
}

int32_t gac_model_find_dim(const gac_model *m, const char *name)
{
    return gac_namemap_find(&m->dim_names, name);
}

int32_t gac_model_n_ops(const gac_model *m)
{
    return m->n_ops;
}

const gac_op *gac_model_op(const gac_model *m, int32_t index)
{
    return is_index(index, m->n_ops) ? &m->ops[index] : NULL;
}

const gac_module *gac_model_find_module(const gac_model *m, const char *name)
{
    int32_t index = gac_namemap_find(&m->module_names, name);
    return index >= 0 ? &m->modules[index] : NULL;
}

const struct json_t *gac_model_config(const gac_model *m)
{
    return m->config;
}

const char *gac_model_prefix(const gac_model *m)
{
    return m->prefix;
}

bool gac_model_config_is_stale(const gac_model *m)
{
    return m->stale;
}

double gac_model_understood_pct(const gac_model *m)
{
    return m->understood_pct;
}

int32_t gac_model_n_unexplained(const gac_model *m)
{
    return m->n_unexplained;
}

int32_t gac_model_unexplained(const gac_model *m, int32_t index)
{
    return is_index(index, m->n_unexplained) ? m->unexplained[index] : -1;
}

int32_t gac_model_n_notes(const gac_model *m)
{
    return m->n_notes;
}

const char *gac_model_note(const gac_model *m, int32_t index)
{
    return is_index(index, m->n_notes) ? m->notes[index] : NULL;
}

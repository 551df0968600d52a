#include "inspect.h"

static json_t *checkpoint_json(const inspection *x)
{
    const gac_checkpoint *c = x->checkpoint;
    char q[512];
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:i, s:f}", "path",
                     gac_quote(q, sizeof q, gac_checkpoint_path(c)), "family",
                     gac_model_family(x->model), "compressor", gac_model_compressor(x->model),
                     "dtype", gac_dtype_name(gac_model_dtype(x->model)), "n_layers",
                     gac_model_n_layers(x->model), "n_tensors", gac_checkpoint_n_tensors(c),
                     "n_params", (json_int_t)gac_checkpoint_n_params(c), "bytes",
                     (json_int_t)gac_checkpoint_size_bytes(c), "n_files", gac_checkpoint_n_files(c),
                     "understood_pct", x->found->understood_pct);
}

static json_t *contract_json(const inspection *x)
{
    json_t *object =
        json_pack("{s:s, s:s, s:s}", "name", gac_contract_name(x->contract), "gpu",
                  gac_contract_gpu(x->contract), "dtype", gac_dtype_name(x->found->target.dtype));
    json_t *sources = json_array();
    for (size_t i = 0; i < x->contract->n_sources; i++)
        json_array_append_new(sources, json_string(x->contract->sources[i]));
    json_object_set_new(object, "provisional", json_boolean(x->contract->provisional));
    json_object_set_new(object, "sources", sources);
    return object;
}

static json_t *summary_json(const inspection *x)
{
    const gac_inspection *f = x->found;
    json_t *phases = json_array();
    char advice[1536], reason[256];
    inspect_advice(f, advice, sizeof advice);
    inspect_reason(f, reason, sizeof reason);
    for (int i = 0; i < f->workload.n_phases; i++) {
        const gac_phase_times *t = &f->phases[i];
        json_array_append_new(phases, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "phase", t->label,
                                                "rest_ms", cli_number_or_null(t->rest_ms), "now_ms",
                                                cli_number_or_null(t->now_ms), "repaired_ms",
                                                cli_number_or_null(t->exact_ms), "ratio",
                                                cli_number_or_null(t->exact_ratio), "rescaled_ms",
                                                cli_number_or_null(t->rescaled_ms)));
    }
    return json_pack("{s:i, s:i, s:f, s:s, s:i, s:i, s:f, s:s, s:o, s:o}", "n_dims", x->n_dims,
                     "n_misaligned", x->n_misaligned, "misaligned_pct",
                     inspect_pct(x->n_misaligned, x->n_dims), "counts",
                     f->n_chosen ? "compressed" : "all", "n_dims_all", f->n_dims,
                     "n_misaligned_all", f->n_misaligned, "overhead_pct", f->overhead_pct, "advice",
                     advice, "reason", cli_or_null(reason[0] ? reason : NULL), "phases", phases);
}

static json_t *roles_json(const inspection *x)
{
    json_t *roles = json_array();
    for (int i = 0; i < GAC_ROLE_COUNT; i++) {
        const gac_role_sizes *r = &x->found->roles[i];
        if (r->n_dims == 0)
            continue;
        json_t *sizes = json_array();
        for (int32_t b = 0; b < r->n_sizes; b++)
            json_array_append_new(
                sizes, json_pack("{s:I, s:i, s:b}", "size", (json_int_t)r->sizes[b].size, "count",
                                 r->sizes[b].count, "aligned", r->sizes[b].aligned));
        json_array_append_new(
            roles, json_pack("{s:s, s:i, s:i, s:f, s:o}", "role", gac_role_name((gac_role)i),
                             "n_dims", r->n_dims, "n_misaligned", r->n_misaligned, "misaligned_pct",
                             inspect_pct(r->n_misaligned, r->n_dims), "sizes", sizes));
    }
    return roles;
}

static json_t *tensors_json(const inspection *x, const gac_dim *d)
{
    json_t *tensors = json_array();
    int32_t last = -1;
    for (int32_t i = 0; i < d->n_places; i++) {
        int32_t tensor = d->places[i].tensor;
        if (tensor != last)
            json_array_append_new(tensors,
                                  json_string(gac_checkpoint_tensor(x->checkpoint, tensor)->name));
        last = tensor;
    }
    return tensors;
}

static json_t *places_json(const inspection *x, const gac_dim *d)
{
    json_t *places = json_array();
    for (int32_t i = 0; i < d->n_places; i++) {
        const gac_place *p = &d->places[i];
        json_array_append_new(
            places, json_pack("{s:s, s:i, s:I, s:I, s:s}", "tensor",
                              gac_checkpoint_tensor(x->checkpoint, p->tensor)->name, "axis",
                              p->axis, "start", (json_int_t)p->start, "n_slices",
                              (json_int_t)p->n_slices, "repeat", gac_repeat_name(p->repeat)));
    }
    return places;
}

static json_t *dim_json(const inspection *x, int32_t index, bool places)
{
    const gac_dim *d = gac_model_dim(x->model, index);
    const gac_dim_advice *a = &x->found->advice[index];
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:b, s:I, s:s, s:s, s:b, s:o, s:o}", "name", d->name, "role",
                  gac_role_name(d->role), "size", (json_int_t)d->size, "aligned", a->aligned,
                  "suggest", (json_int_t)a->suggest, "exactness", gac_exactness_name(d->exactness),
                  "reason", d->reason, "compressed", d->compressed, "penalty",
                  cli_number_or_null(a->penalty), "lost_ms", cli_number_or_null(a->lost_ms));
    json_t *operators = json_array();
    for (int s = 0; s < GAC_OP_AXIS_COUNT; s++)
        if (x->found->seen_by[index] & 1u << s)
            json_array_append_new(operators, json_string(gac_op_axis_name((gac_op_axis)s)));
    json_object_set_new(object, "seen_by", operators);
    json_object_set_new(object, "kernel", cli_or_null(a->kernel));
    json_object_set_new(object, "family", cli_or_null(a->family));
    json_object_set_new(
        object, "runs_as",
        cli_or_null(a->runs_as < GAC_DTYPE_COUNT ? gac_dtype_name(a->runs_as) : NULL));
    json_object_set_new(object, "rule", cli_or_null(a->rule));
    json_object_set_new(
        object, "tied_to",
        cli_or_null(d->tied_to >= 0 ? gac_model_dim(x->model, d->tied_to)->name : NULL));
    json_object_set_new(object, "config_key", cli_or_null(d->config_key));
    json_object_set_new(object, "tensors", tensors_json(x, d));
    if (places)
        json_object_set_new(object, "places", places_json(x, d));
    return object;
}

static json_t *dims_json(const inspection *x, bool places)
{
    json_t *dims = json_array();
    for (int32_t i = 0; i < x->found->n_dims; i++)
        json_array_append_new(dims, dim_json(x, i, places));
    return dims;
}

static json_t *files_json(const inspection *x)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "n_tensors_off_element", x->found->files.n_off_element,
                     "n_tensors_off_8", x->found->files.n_off_8, "n_tensors_off_64",
                     x->found->files.n_off_64, "n_files_off_4096",
                     x->found->files.n_files_off_4096);
}

static json_t *notes_json(const inspection *x)
{
    json_t *notes = json_array();
    if (x->found->rough[0])
        json_array_append_new(notes, json_string(x->found->rough));
    for (int32_t i = 0; i < gac_checkpoint_n_notes(x->checkpoint); i++)
        json_array_append_new(notes, json_string(gac_checkpoint_note(x->checkpoint, i)));
    for (int32_t i = 0; i < gac_model_n_notes(x->model); i++)
        json_array_append_new(notes, json_string(gac_model_note(x->model, i)));
    return notes;
}

json_t *inspect_to_json(cli *c, const inspection *x, bool places)
{
    json_t *unexplained = json_array();
    for (int32_t i = 0; i < gac_model_n_unexplained(x->model); i++)
        json_array_append_new(
            unexplained,
            json_string(
                gac_checkpoint_tensor(x->checkpoint, gac_model_unexplained(x->model, i))->name));
    json_t *result = gac_json_result("gac.inspect/1", c->argc, c->argv);
    json_object_set_new(result, "checkpoint", checkpoint_json(x));
    json_object_set_new(result, "contract", contract_json(x));
    json_object_set_new(result, "workload", json_string(x->workload_text));
    json_object_set_new(result, "summary", summary_json(x));
    json_object_set_new(result, "roles", roles_json(x));
    json_object_set_new(result, "dims", dims_json(x, places));
    json_object_set_new(result, "file_alignment", files_json(x));
    json_object_set_new(result, "unexplained", unexplained);
    json_object_set_new(result, "notes", notes_json(x));
    return result;
}

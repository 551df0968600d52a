/* Writes a plan as JSON that people can read and edit, and reads it back. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "plan/plan_internal.h"

/* Returns null if the contract has no times. */
static json_t *ms_json(double time_ms)
{
    return isnan(time_ms) ? json_null() : json_real(time_ms);
}

struct json_t *gac_plan_to_json(const gac_plan *plan, const gac_model *model)
{
    json_t *dims = json_array();
    for (int32_t i = 0; i < plan->n_dims; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->exactness == GAC_REFUSED ||
            (d->exactness == GAC_RESCALED && plan->sizes[i] == d->size))
            continue;
        json_array_append_new(dims,
                              json_pack("{s:s, s:I, s:I}", "name", d->name, "from",
                                        (json_int_t)d->size, "to", (json_int_t)plan->sizes[i]));
    }
    bool solve = strcmp(plan->strategy, "solve") == 0, for_time = solve && plan->best_ms > 0;
    return json_pack("{s:s, s:b, s:o, s:o, s:o*, s:s*, s:o*, s:o*, s:f, s:o, s:o, s:i, s:o}",
                     "strategy", plan->strategy, "optimal", plan->optimal, "objective",
                     ms_json(plan->objective), "bound", ms_json(plan->bound), "margin_pct",
                     solve ? json_real(plan->margin_pct) : NULL, "margin_basis",
                     !solve                ? NULL
                     : plan->margin_stated ? "contract"
                                           : "default",
                     "limit_pct", for_time ? json_real(plan->limit_pct) : NULL, "best_ms",
                     for_time ? json_real(plan->best_ms) : NULL, "overhead_pct", plan->overhead_pct,
                     "now_ms", ms_json(plan->now_ms), "planned_ms", ms_json(plan->planned_ms),
                     "n_dims_changed", (int)plan->n_changed, "dims", dims);
}

static gac_status bad_plan(const char *source, size_t index, const char *name, const char *what,
                           gac_error *err)
{
    char qs[256], qn[160];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: dims[%zu]%s%s%s: %s",
                         gac_quote(qs, sizeof qs, source), index, name ? " \"" : "",
                         name ? gac_quote(qn, sizeof qn, name) : "", name ? "\"" : "", what);
}

static gac_status take_dim(const json_t *entry, size_t index, const gac_model *model,
                           const char *source, bool *listed, gac_plan *out, gac_error *err)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *from = json_object_get(entry, "from"), *to = json_object_get(entry, "to");
    if (!name)
        return bad_plan(source, index, NULL, "no \"name\"", err);
    int32_t dim = gac_model_find_dim(model, name);
    if (dim < 0)
        return bad_plan(source, index, name, "the model has no such dimension", err);
    if (listed[dim])
        return bad_plan(source, index, name, "appears twice", err);
    listed[dim] = true;
    if (!json_is_integer(to) || json_integer_value(to) < 1 || json_integer_value(to) > INT32_MAX)
        return bad_plan(source, index, name, "\"to\" is not a size", err);
    if (!json_is_integer(from) || json_integer_value(from) != gac_model_dim(model, dim)->size)
        return bad_plan(source, index, name, "\"from\" is not the size the model has", err);
    if (json_integer_value(to) < json_integer_value(from))
        return bad_plan(source, index, name, "\"to\" is smaller than \"from\"", err);
    int64_t most = gac_plan_most(json_integer_value(from));
    if (json_integer_value(to) > most) {
        char what[160];
        snprintf(what, sizeof what,
                 "\"to\" is %lld; a plan may ask for 4 times \"from\", or for 4096, whichever is "
                 "more, so for %lld at most",
                 (long long)json_integer_value(to), (long long)most);
        return bad_plan(source, index, name, what, err);
    }
    out->sizes[dim] = json_integer_value(to);
    return GAC_OK;
}

/* Gives dimensions that are tied and not listed one size: that of a listed one,
 * or the largest. */
static void follow_ties(const gac_model *model, const bool *listed, gac_plan *out)
{
    for (int32_t i = 0; i < out->n_dims; i++) {
        int32_t to = gac_model_dim(model, i)->tied_to;
        if (to >= 0 && !listed[to] && out->sizes[i] > out->sizes[to])
            out->sizes[to] = out->sizes[i];
    }
    for (int32_t i = 0; i < out->n_dims; i++) {
        int32_t to = gac_model_dim(model, i)->tied_to;
        if (to >= 0 && !listed[i])
            out->sizes[i] = out->sizes[to];
    }
}

gac_status gac_plan_from_json(const struct json_t *json, const gac_model *model, const char *source,
                              gac_plan *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, json, model, source, out);
    char q[256];
    size_t i;
    json_t *entry;
    gac_strategy known;
    const char *schema = json_string_value(json_object_get(json, "schema"));
    const char *strategy = json_string_value(json_object_get(json, "strategy"));
    const json_t *dims = json_object_get(json, "dims");
    gac_quote(q, sizeof q, source);
    if (!schema || strcmp(schema, "gac.plan/1") != 0)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: no plan: \"schema\" is not gac.plan/1", q);
    if (!json_is_array(dims))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"dims\" is not an array", q);
    *out = (gac_plan){ .n_dims = gac_model_n_dims(model) };
    if (strategy && gac_strategy_parse(strategy, &known))
        strategy = gac_strategy_name(known);
    snprintf(out->strategy, sizeof out->strategy, "%s", strategy ? strategy : "edited");
    out->sizes = calloc((size_t)out->n_dims + 1, sizeof *out->sizes);
    bool *listed = calloc((size_t)out->n_dims + 1, sizeof *listed);
    gac_status status = out->sizes && listed ? GAC_OK : gac_error_no_memory(err);
    for (int32_t d = 0; d < out->n_dims && status == GAC_OK; d++)
        out->sizes[d] = gac_model_dim(model, d)->size;
    if (status == GAC_OK)
        json_array_foreach(dims, i, entry) {
            status = take_dim(entry, i, model, source, listed, out, err);
            if (status != GAC_OK)
                break;
        }
    if (status == GAC_OK) {
        follow_ties(model, listed, out);
        status = gac_plan_overhead_pct(model, out->sizes, &out->overhead_pct, err);
    }
    free(listed);
    if (status != GAC_OK)
        gac_plan_dispose(out);
    return status;
}

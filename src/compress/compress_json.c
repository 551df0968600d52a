/* The result of a compression as JSON. */
#include "compress/compress_internal.h"

#include <jansson.h>
#include <math.h>

static json_t *modules_json(const gac_compress_result *r)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_modules; i++) {
        const gac_compress_module *m = &r->modules[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:f}", "name", m->name,
                                              "choice", gac_compress_choice_name(m->choice), "size",
                                              (json_int_t)m->size, "params",
                                              (json_int_t)m->n_params, "loss", m->loss));
    }
    return list;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *row_json(const gac_compress_row *row, gac_compress_row_kind kind,
                        const gac_workload *workload)
{
    json_t *phases = json_array();
    for (int i = 0; i < workload->n_phases; i++) {
        const gac_phase *phase = &workload->phases[i];
        json_array_append_new(phases, json_pack("{s:s, s:I, s:I, s:o}", "phase",
                                                phase->decode ? "decode" : "prefill", "batch",
                                                (json_int_t)phase->batch, "length",
                                                (json_int_t)phase->length, "predicted_ms",
                                                real_or_null(row->phase_ms[i])));
    }
    return json_pack("{s:s, s:I, s:I, s:f, s:f, s:o}", "row", gac_compress_row_name(kind), "params",
                     (json_int_t)row->n_params, "bytes", (json_int_t)row->size_bytes, "aligned_pct",
                     row->aligned_pct, "loss", row->loss, "phases", phases);
}

static json_t *table_json(const gac_compress_result *r, const gac_workload *workload)
{
    json_t *table = json_array();
    for (int i = 0; i < GAC_COMPRESS_ROW_COUNT; i++)
        if (r->rows[i].n_params)
            json_array_append_new(table, row_json(&r->rows[i], (gac_compress_row_kind)i, workload));
    return table;
}

static json_t *excluded_json(const gac_compress_options *o)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < o->n_exclude; i++)
        json_array_append_new(list, json_string(o->exclude[i]));
    return list;
}

/* "gac", "none" or "round:8". */
static json_t *align_json(const gac_compress_options *o)
{
    return o->align == GAC_ALIGN_ROUND ? json_sprintf("round:%lld", (long long)o->multiple)
                                       : json_string(o->align == GAC_ALIGN_NONE ? "none" : "gac");
}

struct json_t *gac_compress_to_json(const gac_compress_result *r, const gac_compress_options *o)
{
    json_t *ratio =
        json_pack("{s:f, s:f, s:f, s:f}", "asked", o->ratio, "asked_total", o->total_ratio,
                  "reached", 1 - (double)r->params_after / (double)r->params_before,
                  "reached_total", 1 - (double)r->total_after / (double)r->total_before);
    json_t *text = json_pack("{s:I, s:I, s:I, s:o}", "n_tokens", (json_int_t)r->n_tokens, "window",
                             (json_int_t)r->window, "seed", (json_int_t)o->seed, "hash",
                             json_sprintf("%016llx", (unsigned long long)gac_hash_bytes(
                                                         o->ids, o->n_ids * sizeof *o->ids)));
    return json_pack("{s:s, s:o, s:s?, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:o, "
                     "s:o}",
                     "method", gac_compress_method_name(o->method), "align", align_json(o),
                     "contract", o->contract ? gac_contract_name(o->contract) : NULL, "ratio",
                     ratio, "calibration", text, "excluded", excluded_json(o), "budget_params",
                     (json_int_t)r->budget_params, "params_before", (json_int_t)r->params_before,
                     "params_after", (json_int_t)r->params_after, "total_before",
                     (json_int_t)r->total_before, "total_after", (json_int_t)r->total_after,
                     "optimal", r->optimal, "objective", r->objective, "bound", r->bound, "modules",
                     modules_json(r), "table", table_json(r, o->workload));
}

/* The result of a compression as JSON. */
#include "compress/compress_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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

static json_t *choices_json(const gac_compress_options *o)
{
    json_t *list = json_array();
    for (unsigned kind = GAC_CHOICE_RANK; kind <= GAC_CHOICE_HEADS; kind++)
        if (o->choices & 1u << (kind - GAC_CHOICE_RANK))
            json_array_append_new(list,
                                  json_string(gac_compress_choice_name((gac_compress_choice)kind)));
    return list;
}

/* The name of a file without its folders. */
static const char *last_part(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

/* The first and the last layer that may change; null if all may. */
static json_t *layers_json(const gac_compress_options *o)
{
    if (o->first_layer == 0 && o->n_layers == 0)
        return json_null();
    return json_pack("[i, o]", o->first_layer,
                     o->n_layers ? json_integer(o->first_layer + o->n_layers - 1) : json_null());
}

/* As gac_workload_parse reads it. */
static json_t *workload_json(const gac_workload *workload)
{
    char text[64 * GAC_MAX_PHASES];
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < workload->n_phases; i++) {
        const gac_phase *p = &workload->phases[i];
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s:%lld%c%lld", i ? "," : "",
                               p->decode ? "decode" : "prefill", (long long)p->batch,
                               p->decode ? '@' : 'x', (long long)p->length);
        if (p->weight != 1)
            at += (size_t)snprintf(text + at, sizeof text - at, "*%.17g", p->weight);
    }
    return json_string(text);
}

/* The predicted time of the workload, or null. */
static json_t *time_json(const gac_compress_row *row, const gac_workload *workload)
{
    double sum = row->n_params ? 0 : NAN;
    for (int i = 0; i < workload->n_phases; i++)
        sum += workload->phases[i].weight * row->phase_ms[i];
    return real_or_null(sum);
}

static json_t *predicted_json(const gac_compress_result *r, const gac_workload *workload)
{
    return json_pack("{s:o, s:o, s:o}", "workload", workload_json(workload), "now_ms",
                     time_json(&r->rows[GAC_COMPRESS_ROW_DENSE], workload), "compressed_ms",
                     time_json(&r->rows[GAC_COMPRESS_ROW_RESULT], workload));
}

/* "gac", "none" or "round:8". */
static json_t *align_json(const gac_compress_options *o)
{
    return o->align == GAC_ALIGN_ROUND ? json_sprintf("round:%lld", (long long)o->multiple)
                                       : json_string(o->align == GAC_ALIGN_NONE ? "none" : "gac");
}

struct json_t *gac_compress_to_json(const gac_compress_result *r, const gac_compress_options *o)
{
    static const gac_workload none = { 0 };
    const gac_workload *workload = o->workload ? o->workload : &none;
    const gac_compress_row *written = &r->rows[GAC_COMPRESS_ROW_RESULT];
    json_t *ratio =
        json_pack("{s:f, s:f, s:f, s:f}", "asked", o->ratio, "asked_total", o->total_ratio,
                  "reached", 1 - (double)r->params_after / (double)r->params_before,
                  "reached_total", 1 - (double)r->total_after / (double)r->total_before);
    json_t *text = json_pack(
        "{s:s?, s:I, s:I, s:I, s:I, s:o}", "text", last_part(o->text_name), "n_tokens",
        (json_int_t)r->n_tokens, "gradient_tokens", (json_int_t)r->n_gradient_tokens, "window",
        (json_int_t)r->window, "seed", (json_int_t)o->seed, "hash",
        json_sprintf("%016llx",
                     (unsigned long long)gac_hash_bytes(o->ids, o->n_ids * sizeof *o->ids)));
    return json_pack(
        "{s:s, s:o, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, "
        "s:f, s:f, s:o, s:o, s:o, s:o}",
        "method", gac_compress_method_name(o->method), "align", align_json(o), "contract",
        o->contract ? gac_contract_name(o->contract) : NULL, "ratio", ratio, "target_ms",
        o->max_time_ms > 0 ? json_real(o->max_time_ms) : json_null(), "calibration", text,
        "choices", choices_json(o), "layers", layers_json(o), "excluded", excluded_json(o),
        "budget_params", (json_int_t)r->budget_params, "params_before",
        (json_int_t)r->params_before, "params_after", (json_int_t)r->params_after, "total_before",
        (json_int_t)r->total_before, "total_after", (json_int_t)r->total_after, "optimal",
        r->optimal, "objective", r->objective, "bound", r->bound, "modules", modules_json(r),
        "aligned_pct", real_or_null(written->n_params ? written->aligned_pct : NAN), "predicted",
        predicted_json(r, workload), "table", table_json(r, workload));
}

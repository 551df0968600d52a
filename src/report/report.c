#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "report/report_internal.h"

#define MAX_RESULT_BYTES ((size_t)64 << 20)

static const struct schema {
    const char *name, *kind;
    rep_read *read;
} schemas[] = {
    { "gac.experiment/1", "experiment", rep_read_experiment },
    { "gac.inspect/1", "inspect", rep_read_inspect },
    { "gac.plan/1", "plan", rep_read_plan },
    { "gac.front/1", "plan --pareto", rep_read_front },
    { "gac.repair/1", "repair", rep_read_repair },
    { "gac.verify/1", "verify", rep_read_verify },
    { "gac.compress/1", "compress", rep_read_compress },
    { "gac.eval/1", "eval", rep_read_eval },
    { "gac.contract/2", "contract", rep_read_contract },
};
enum { N_SCHEMAS = sizeof schemas / sizeof *schemas, MAX_DEPTH = 6 };

gac_status gac_report_create(const char *title, gac_report **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, title, out);
    char text[200];
    gac_report *report = calloc(1, sizeof *report);
    if (!report)
        return gac_error_no_memory(err);
    report->title = rep_printf(report, "%s", gac_quote(text, sizeof text, title));
    *out = report;
    return GAC_OK;
}

static void free_drawings(rep_section *section)
{
    for (; section; section = section->next)
        for (rep_figure *figure = section->figures; figure; figure = figure->next)
            free(figure->svg);
}

void gac_report_free(gac_report *report)
{
    if (!report)
        return;
    free_drawings(report->overview);
    free_drawings(report->sections);
    gac_arena_free(&report->arena);
    free(report);
}

/* The version of cuDNN, which PyTorch gives as 91900 for 9.19.0. */
static const char *dotted(gac_report *report, const char *cudnn)
{
    if (!cudnn || strspn(cudnn, "0123456789") != 5 || cudnn[5])
        return rep_or(cudnn, "");
    long n = strtol(cudnn, NULL, 10);
    return rep_printf(report, "%ld.%ld.%ld", n / 10000, n / 100 % 100, n % 100);
}

/* What made the result: machine, versions, date. */
static bool read_stamp(rep_reader *in, const char **stamp)
{
    const json_t *tool, *facts, *machine;
    const char *version, *time, *gpu, *driver, *cudnn, *cublas, *torch, *arch;
    double cores;
    const json_t *root = in->root;
    /* gac.json, in the folder of a model, has "gac 0.1.0" for its tool. */
    const bool short_form = json_is_string(json_object_get(root, "tool"));
    if (short_form ? !rep_take_text(in, root, "tool", &version)
                   : !rep_take_object(in, root, "tool", &tool) ||
                         !rep_take_text(in, tool, "version", &version))
        return false;
    if (version && strncmp(version, "gac ", 4) == 0)
        version += 4;
    if (!rep_take_text(in, root, "time", &time) ||
        !rep_take_object(in, root, "machine", &machine) ||
        !rep_take_text(in, machine, "arch", &arch) ||
        !rep_take_number(in, machine, "cores", &cores) ||
        !rep_take_object(in, root, "device_facts", &facts) ||
        !rep_take_text(in, facts, "gpu", &gpu) || !rep_take_text(in, facts, "driver", &driver) ||
        !rep_take_text(in, facts, "cublas", &cublas) ||
        !rep_take_text(in, facts, "cudnn", &cudnn) || !rep_take_text(in, facts, "torch", &torch))
        return false;
    gac_report *report = in->report;
    const char *text = "";
    if (gpu)
        text = rep_printf(report, "%s%s%s%s%s%s%s%s%s · ", gpu, driver ? ", driver " : "",
                          rep_or(driver, ""), cublas ? ", cuBLAS " : "", rep_or(cublas, ""),
                          cudnn ? ", cuDNN " : "", dotted(report, cudnn), torch ? ", PyTorch " : "",
                          rep_or(torch, ""));
    else if (arch)
        text = rep_printf(report, "%s, %.0f cores · ", arch, isfinite(cores) ? cores : 0);
    *stamp = rep_printf(report, "%sgac %s · %.10s", text, rep_or(version, "of an unknown version"),
                        rep_or(time, "no date"));
    return true;
}

static gac_status read_one(gac_report *report, const struct schema *schema, const json_t *result,
                           const char *name, gac_error *err)
{
    rep_reader in = { .report = report,
                      .r = GAC_READER_INIT(name, err),
                      .root = result,
                      .name = rep_printf(report, "%s", name) };
    const char *stamp = NULL;
    if (report->n_results == REP_MAX_RESULTS)
        return gac_error_set(err, GAC_BAD_INPUT, "a page has at most %d results", REP_MAX_RESULTS);
    report->n_results++;
    in.section = rep_section_add(report, schema->kind, in.name);
    if (!in.section)
        return gac_error_no_memory(err);
    bool read = read_stamp(&in, &stamp);
    in.section->stamp = stamp;
    in.section->source = in.name;
    if (!read || !schema->read(&in))
        return in.r.status;
    for (rep_figure *figure = in.section->figures; figure; figure = figure->next)
        figure->stamp = in.section->stamp;
    return report->lost ? gac_error_no_memory(err) : GAC_OK;
}

/* Adds value if it is a result, otherwise the results in it. */
static gac_status search(gac_report *report, const json_t *value, const char *name, int depth,
                         gac_error *err)
{
    const char *schema = json_string_value(json_object_get(value, "schema")), *key;
    char inner[256], q[80];
    gac_status status = GAC_OK;
    size_t i;
    json_t *child;
    for (int k = 0; schema && k < N_SCHEMAS; k++)
        if (strcmp(schemas[k].name, schema) == 0)
            return read_one(report, &schemas[k], value, name, err);
    if (depth == MAX_DEPTH)
        return GAC_OK;
    json_t *all = (json_t *)(uintptr_t)value; /* jansson's loops take no const */
    json_object_foreach(all, key, child) {
        snprintf(inner, sizeof inner, "%s, %s", name, gac_quote(q, sizeof q, key));
        if (status == GAC_OK && json_is_object(child))
            status = search(report, child, inner, depth + 1, err);
        else if (status == GAC_OK && json_is_array(child))
            status = search(report, child, name, depth + 1, err);
    }
    json_array_foreach(all, i, child)
        if (status == GAC_OK && json_is_object(child))
            status = search(report, child, name, depth + 1, err);
    return status;
}

gac_status gac_report_add(gac_report *report, const struct json_t *result, const char *name,
                          gac_error *err)
{
    GAC_REFUSE_NULL(err, report, result, name);
    char q[256], schema[80];
    int before = report->n_results;
    gac_quote(q, sizeof q, name);
    gac_status status = search(report, result, q, 0, err);
    if (status != GAC_OK || report->n_results > before)
        return status;
    const char *text = json_string_value(json_object_get(result, "schema"));
    if (text)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"%s\" is no schema that a report can show",
                             q, gac_quote(schema, sizeof schema, text));
    return gac_error_set(err, GAC_BAD_INPUT, "%s: has no result of gac in it", q);
}

gac_status gac_report_add_file(gac_report *report, const char *path, gac_error *err)
{
    GAC_REFUSE_NULL(err, report, path);
    gac_file *file;
    json_t *result = NULL;
    gac_status status = gac_file_open(path, &file, err);
    if (status != GAC_OK)
        return status;
    status = gac_json_load(file, MAX_RESULT_BYTES, &result, err);
    gac_file_close(file);
    if (status == GAC_OK)
        status = gac_report_add(report, result, path, err);
    json_decref(result);
    return status;
}

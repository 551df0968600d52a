/* gac.compress/1 and gac.eval/1. */
#include <string.h>

#include "report/report_internal.h"

/* A row of the table: the original, the model of any sizes, that model rounded, the result. */
typedef struct row {
    const char *name;
    rep_colour colour;
    bool is_result;
    double params, perplexity;
} row;

static bool name_row(rep_reader *in, const json_t *entry, const char *align, row *out)
{
    const char *key;
    if (!rep_need_text(in, entry, "row", &key))
        return false;
    const bool gac = strcmp(align, "gac") == 0;
    *out = (row){ .name = key, .colour = REP_PURPLE };
    if (strcmp(key, "dense") == 0)
        out->colour = REP_GREY;
    else if (strcmp(key, "unaligned") == 0)
        *out = (row){ .name = "as compressed", .colour = REP_VERMILLION };
    else if (strcmp(key, "rounded") == 0)
        out->colour = REP_ORANGE;
    else if (strcmp(key, "result") == 0)
        *out = (row){ .name = gac                          ? "gac"
                              : strcmp(align, "none") == 0 ? "as compressed"
                                                           : align,
                      .colour = gac                          ? REP_BLUE
                                : strcmp(align, "none") == 0 ? REP_VERMILLION
                                                             : REP_GREEN,
                      .is_result = true };
    return rep_take_number(in, entry, "params", &out->params) &&
           rep_take_number(in, entry, "perplexity", &out->perplexity);
}

/* The bars of one row: each phase's time as a multiple of the dense model's. */
static bool read_phases(rep_reader *in, const json_t *entry, const char *key, rep_figure *figure,
                        const row *r, double *dense_ms)
{
    const json_t *phases;
    gac_report *report = in->report;
    if (!rep_take_array(in, entry, "phases", 64, &phases))
        return false;
    for (size_t i = 0; i < json_array_size(phases); i++) {
        const char *name;
        double batch, length, ms;
        const json_t *phase = rep_entry(in, phases, i, "phases");
        if (!phase || !rep_need_text(in, phase, "phase", &name) ||
            !rep_need_number(in, phase, "batch", &batch) ||
            !rep_need_number(in, phase, "length", &length) || !rep_take_number(in, phase, key, &ms))
            return false;
        if (!isfinite(ms) || ms <= 0)
            continue;
        int x = rep_category(figure, rep_printf(report, "%s %.0f%s%.0f", name, batch,
                                                strcmp(name, "decode") == 0 ? "@" : "x", length));
        if (x < 0)
            continue;
        if (r->colour == REP_GREY)
            dense_ms[x] = ms;
        rep_series *series = rep_series_get(report, figure, r->name, r->colour, REP_DOTS);
        if (dense_ms[x] > 0)
            rep_point_add(report, figure, series, x, ms / dense_ms[x],
                          rep_printf(report, "%s ms", rep_number(report, ms)));
    }
    return true;
}

static bool read_bars(rep_reader *in, const json_t *table, const char *align, const char *key)
{
    double dense_ms[REP_MAX_CATEGORIES] = { 0 };
    const bool measured = strcmp(key, "measured_ms") == 0;
    rep_figure *figure = rep_figure_add(
        in->report, in->section,
        &(rep_figure){ .name = measured ? "measured" : "predicted",
                       .title = measured ? "Measured time beside the dense model"
                                         : "Predicted time beside the dense model",
                       .caption =
                           "Below 1 is faster than the dense model. As compressed: what the same "
                           "method takes of any sizes. Rounded: those sizes rounded up. The labels "
                           "are milliseconds.",
                       .x_title = "phase",
                       .y_title = "time / time of the dense model",
                       .kind = REP_BARS,
                       .label_bars = true });
    for (size_t i = 0; i < json_array_size(table); i++) {
        row r;
        const json_t *entry = rep_entry(in, table, i, "table");
        if (!entry || !name_row(in, entry, align, &r) ||
            !read_phases(in, entry, key, figure, &r, dense_ms))
            return false;
    }
    return true;
}

/* Returns the text that perplexity was measured on, by the arguments of the run. */
static const char *test_text(rep_reader *in)
{
    const json_t *arguments = json_object_get(in->root, "arguments");
    char q[200];
    for (size_t i = 0; i + 1 < json_array_size(arguments); i++) {
        const char *option = json_string_value(json_array_get(arguments, i));
        const char *value = json_string_value(json_array_get(arguments, i + 1));
        if (option && value && strcmp(option, "--test") == 0)
            return rep_printf(in->report, "%s", gac_quote(q, sizeof q, value));
    }
    return NULL;
}

static bool read_table(rep_reader *in, const char *method, const char *align)
{
    const json_t *rows;
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, "table", 64, &rows))
        return false;
    if (json_array_size(rows) == 0)
        return true;
    if (!read_bars(in, rows, align, "measured_ms") || !read_bars(in, rows, align, "predicted_ms"))
        return false;
    rep_table *table =
        rep_table_add(report, in->section, "What was made, beside what could have been",
                      "model|#parameters|#bytes|#aligned, %|#loss|#perplexity");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        row r;
        double bytes, aligned, loss;
        const json_t *entry = json_array_get(rows, i);
        if (!name_row(in, entry, align, &r) || !rep_take_number(in, entry, "bytes", &bytes) ||
            !rep_take_number(in, entry, "aligned_pct", &aligned) ||
            !rep_take_number(in, entry, "loss", &loss))
            return false;
        REP_ROW(report, table, r.name, rep_count(report, r.params), rep_count(report, bytes),
                rep_printf(report, "%.1f", aligned), rep_number(report, loss),
                rep_number(report, r.perplexity));
        if (r.is_result)
            rep_add_peer(in,
                         strcmp(r.name, method) == 0 ? method
                                                     : rep_printf(report, "%s, %s", method, r.name),
                         r.params, r.perplexity, test_text(in));
        else
            rep_add_peer(in, r.name, r.params, r.perplexity, test_text(in));
    }
    return true;
}

static bool read_modules(rep_reader *in)
{
    static const rep_colour colours[] = { REP_BLUE,   REP_VERMILLION, REP_GREEN, REP_ORANGE,
                                          REP_PURPLE, REP_SKY,        REP_BROWN, REP_GREY };
    const json_t *modules;
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, "modules", REP_MAX_DIMS, &modules))
        return false;
    rep_figure *figure = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "modules",
                       .title = "Parameters of each module, by layer",
                       .caption = "One line for each kind of module. Where a line is low, the "
                                  "model can spare more. Hover to see what was chosen.",
                       .x_title = "layer",
                       .y_title = "parameters",
                       .log_y = true });
    for (size_t i = 0; i < json_array_size(modules); i++) {
        const char *name, *choice;
        double size, params, loss;
        const json_t *module = rep_entry(in, modules, i, "modules");
        if (!module || !rep_need_text(in, module, "name", &name) ||
            !rep_need_text(in, module, "choice", &choice) ||
            !rep_need_number(in, module, "size", &size) ||
            !rep_need_number(in, module, "params", &params) ||
            !rep_take_number(in, module, "loss", &loss))
            return false;
        const char *pattern = rep_pattern(in, name), *kind = strrchr(pattern, '.');
        int64_t layer = rep_layer(name);
        if (layer < 0)
            continue;
        rep_series *series = rep_series_get(
            report, figure, kind ? kind + 1 : pattern,
            colours[figure ? figure->n_series % (int)(sizeof colours / sizeof *colours) : 0],
            REP_LINES);
        if (series && !series->points)
            series->mark = figure->n_series - 1;
        rep_point_add(report, figure, series, (double)layer, params,
                      size > 0 ? rep_printf(report, "%s %.0f, loss %s", choice, size,
                                            rep_number(report, loss))
                               : choice);
    }
    return true;
}

bool rep_read_compress(rep_reader *in)
{
    const char *method, *align, *contract;
    const json_t *ratio;
    double reached, total, before, after, aligned, objective;
    bool optimal;
    const json_t *root = in->root;
    gac_report *report = in->report;
    rep_section *section = in->section;
    if (!rep_need_text(in, root, "method", &method) || !rep_need_text(in, root, "align", &align) ||
        !rep_take_text(in, root, "contract", &contract) ||
        !rep_take_object(in, root, "ratio", &ratio) ||
        !rep_take_number(in, ratio, "reached", &reached) ||
        !rep_take_number(in, ratio, "reached_total", &total) ||
        !rep_take_number(in, root, "total_before", &before) ||
        !rep_take_number(in, root, "total_after", &after) ||
        !rep_take_number(in, root, "aligned_pct", &aligned) ||
        !rep_take_number(in, root, "objective", &objective) ||
        !rep_take_flag(in, root, "optimal", &optimal))
        return false;
    section->title =
        rep_printf(report, "Compress by %s: %s", method, rep_last_part(report, in->name));
    rep_fact_add(report, section, "sizes", strcmp(align, "gac") == 0 ? "aligned" : align);
    rep_fact_add(report, section, "judged for", contract);
    if (isfinite(before) && isfinite(after))
        rep_fact_add(report, section, "parameters",
                     rep_printf(report, "%s of %s (%.1f %% removed)", rep_count(report, after),
                                rep_count(report, before), 100 * total));
    if (isfinite(reached))
        rep_fact_add(report, section, "removed from linear weights",
                     rep_printf(report, "%.1f %%", 100 * reached));
    if (isfinite(aligned))
        rep_fact_add(report, section, "aligned sizes", rep_printf(report, "%.1f %%", aligned));
    if (isfinite(objective))
        rep_fact_add(report, section, "expected loss",
                     rep_printf(report, "%s%s", rep_number(report, objective),
                                optimal ? ", the least for these sizes (proved)" : ""));
    return read_table(in, method, align) && read_modules(in) && rep_read_loads_in(in);
}

static bool read_speed(rep_reader *in, const char *name, const char *compressor, bool decode,
                       rep_table *table)
{
    const json_t *list;
    const bool dense = strcmp(compressor, "dense") == 0, gac = strcmp(compressor, "gac") == 0;
    const char *key = decode ? "decode" : "prefill", *of = decode ? "context" : "length";
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, key, 64, &list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        double batch, length, ms, spread, rate;
        const json_t *entry = rep_entry(in, list, i, key);
        if (!entry || !rep_need_number(in, entry, "batch", &batch) ||
            !rep_need_number(in, entry, of, &length) || !rep_need_number(in, entry, "ms", &ms) ||
            !rep_take_number(in, entry, "spread_pct", &spread) ||
            !rep_take_number(in, entry, "tokens_per_s", &rate))
            return false;
        const char *phase =
            rep_printf(report, "%s %.0f%s%.0f", key, batch, decode ? "@" : "x", length);
        REP_ROW(report, table, phase, rep_number(report, ms), rep_printf(report, "%.1f", spread),
                rep_count(report, rate));
        rep_speed *speed = ms > 0 ? rep_alloc(report, sizeof *speed) : NULL;
        if (!speed)
            continue;
        *speed = (rep_speed){ NULL, name, phase, in->section->stamp, ms, dense, gac };
        rep_speed **end = &report->speeds;
        while (*end)
            end = &(*end)->next;
        *end = speed;
    }
    return true;
}

bool rep_read_eval(rep_reader *in)
{
    const json_t *checkpoint, *perplexity;
    const char *path, *family, *compressor, *device, *dtype, *file;
    double n_params, memory, value, stderr_value, n_tokens;
    bool as_is, no_pad; /* as_is is the name in results of older versions */
    const json_t *root = in->root;
    gac_report *report = in->report;
    rep_section *section = in->section;
    if (!rep_take_object(in, root, "checkpoint", &checkpoint) ||
        !rep_take_text(in, checkpoint, "path", &path) ||
        !rep_take_text(in, checkpoint, "family", &family) ||
        !rep_take_text(in, checkpoint, "compressor", &compressor) ||
        !rep_take_number(in, checkpoint, "n_params", &n_params) ||
        !rep_take_text(in, root, "device", &device) || !rep_take_text(in, root, "dtype", &dtype) ||
        !rep_take_number(in, root, "memory_bytes", &memory) ||
        !rep_take_flag(in, root, "as_is", &as_is) || !rep_take_flag(in, root, "no_pad", &no_pad) ||
        !rep_take_object(in, root, "perplexity", &perplexity) ||
        !rep_take_number(in, perplexity, "value", &value) ||
        !rep_take_number(in, perplexity, "stderr", &stderr_value) ||
        !rep_take_number(in, perplexity, "n_tokens", &n_tokens) ||
        !rep_take_text(in, perplexity, "file", &file))
        return false;
    section->title =
        rep_printf(report, "Eval of %s", rep_last_part(report, rep_or(path, in->name)));
    rep_fact_add(report, section, "family", family);
    rep_fact_add(report, section, "compressor", compressor);
    rep_fact_add(report, section, "parameters", rep_count(report, n_params));
    rep_fact_add(report, section, "ran on",
                 rep_printf(report, "%s in %s", rep_or(device, "?"), rep_or(dtype, "?")));
    rep_fact_add(report, section, "memory",
                 rep_printf(report, "%s bytes", rep_count(report, memory)));
    if (isfinite(value))
        rep_fact_add(report, section, "perplexity",
                     rep_printf(report, "%s ± %s on %s tokens of %s", rep_number(report, value),
                                rep_number(report, stderr_value), rep_count(report, n_tokens),
                                rep_or(file, "a text")));
    const char *kind = rep_or(compressor, "model"), *slash = path ? strrchr(path, '/') : NULL;
    /* "gac" would be no name: it also writes the models of other methods. */
    rep_add_peer(in, strcmp(kind, "dense") == 0 ? kind : rep_last_part(report, rep_or(path, kind)),
                 n_params, value, file);
    const char *name = rep_printf(report, "%s%s", slash ? slash + 1 : rep_or(path, in->name),
                                  as_is || no_pad ? ", as is" : "");
    rep_table *table = json_object_get(root, "prefill") || json_object_get(root, "decode")
                           ? rep_table_add(report, section, "Measured speed",
                                           "phase|#ms|#spread, %|#tokens per second")
                           : NULL;
    return read_speed(in, name, kind, false, table) && read_speed(in, name, kind, true, table);
}

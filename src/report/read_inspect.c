/* gac.inspect/1: what is misaligned, where it is, and what it costs. */
#include <string.h>

#include "report/report_internal.h"

static bool read_checkpoint(rep_reader *in)
{
    const json_t *checkpoint, *contract;
    const char *path, *family, *compressor, *dtype, *gpu, *workload;
    double n_params, bytes;
    gac_report *report = in->report;
    rep_section *section = in->section;
    if (!rep_take_object(in, in->root, "checkpoint", &checkpoint) ||
        !rep_take_text(in, checkpoint, "path", &path) ||
        !rep_take_text(in, checkpoint, "family", &family) ||
        !rep_take_text(in, checkpoint, "compressor", &compressor) ||
        !rep_take_text(in, checkpoint, "dtype", &dtype) ||
        !rep_take_number(in, checkpoint, "n_params", &n_params) ||
        !rep_take_number(in, checkpoint, "bytes", &bytes) ||
        !rep_take_object(in, in->root, "contract", &contract) ||
        !rep_take_text(in, contract, "gpu", &gpu) ||
        !rep_take_text(in, in->root, "workload", &workload))
        return false;
    section->title =
        rep_printf(report, "Sizes of %s", rep_last_part(report, rep_or(path, in->name)));
    rep_fact_add(report, section, "family", family);
    rep_fact_add(report, section, "compressor", compressor);
    rep_fact_add(report, section, "stored as", dtype);
    rep_fact_add(report, section, "parameters", rep_count(report, n_params));
    rep_fact_add(report, section, "bytes", rep_count(report, bytes));
    rep_fact_add(report, section, "judged for", gpu);
    rep_fact_add(report, section, "workload", rep_spaced(report, workload));
    return true;
}

/* The predicted times of each phase: now, and after repair. */
static bool read_phases(rep_reader *in, const json_t *summary)
{
    const json_t *phases;
    gac_report *report = in->report;
    if (!rep_take_array(in, summary, "phases", 64, &phases))
        return false;
    if (json_array_size(phases) == 0)
        return true;
    rep_figure *figure = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "times",
                       .title = "Predicted time of each phase, now and repaired",
                       .caption = "Shorter is faster. Repairing adds zeros and changes no output.",
                       .x_title = "phase",
                       .y_title = "predicted time, ms",
                       .kind = REP_ROWS,
                       .label_bars = true });
    for (size_t i = 0; i < json_array_size(phases); i++) {
        const char *label;
        double now, repaired;
        const json_t *phase = rep_entry(in, phases, i, "summary.phases");
        if (!phase || !rep_need_text(in, phase, "phase", &label) ||
            !rep_take_number(in, phase, "now_ms", &now) ||
            !rep_take_number(in, phase, "repaired_ms", &repaired))
            return false;
        int x = rep_category(figure, label);
        if (x < 0)
            continue;
        rep_point_add(report, figure,
                      rep_series_get(report, figure, "now", REP_VERMILLION, REP_DOTS), x, now,
                      NULL);
        rep_point_add(report, figure,
                      rep_series_get(report, figure, "repaired", REP_BLUE, REP_DOTS), x, repaired,
                      NULL);
    }
    return true;
}

static bool read_summary(rep_reader *in)
{
    const json_t *summary;
    const char *advice;
    double n_dims, n_misaligned, pct, overhead;
    gac_report *report = in->report;
    if (!rep_take_object(in, in->root, "summary", &summary) ||
        !rep_take_text(in, summary, "advice", &advice) ||
        !rep_take_number(in, summary, "n_dims", &n_dims) ||
        !rep_take_number(in, summary, "n_misaligned", &n_misaligned) ||
        !rep_take_number(in, summary, "misaligned_pct", &pct) ||
        !rep_take_number(in, summary, "overhead_pct", &overhead))
        return false;
    in->section->lead = advice;
    if (isfinite(n_dims))
        rep_fact_add(report, in->section, "misaligned sizes",
                     rep_printf(report, "%.0f of %.0f (%.1f %%)", n_misaligned, n_dims, pct));
    if (isfinite(overhead))
        rep_fact_add(report, in->section, "bytes that a repair adds",
                     rep_printf(report, "%.3f %%", overhead));
    return read_phases(in, summary);
}

typedef struct dim {
    const char *name, *kernel, *seen_by;
    double size, suggest, lost_ms;
    bool aligned, compressed;
} dim;

static bool read_dim(rep_reader *in, const json_t *dims, size_t i, dim *d)
{
    const json_t *seen, *entry = rep_entry(in, dims, i, "dims");
    if (!entry || !rep_need_text(in, entry, "name", &d->name) ||
        !rep_take_text(in, entry, "family", &d->kernel) ||
        !rep_need_number(in, entry, "size", &d->size) ||
        !rep_take_number(in, entry, "suggest", &d->suggest) ||
        !rep_take_number(in, entry, "lost_ms", &d->lost_ms) ||
        !rep_take_flag(in, entry, "aligned", &d->aligned) ||
        !rep_take_flag(in, entry, "compressed", &d->compressed) ||
        !rep_take_array(in, entry, "seen_by", 64, &seen))
        return false;
    char text[200] = "", q[60];
    for (size_t k = 0; k < json_array_size(seen) && k < 4; k++) {
        const char *axis = json_string_value(json_array_get(seen, k));
        size_t n = strlen(text);
        if (axis)
            snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "",
                     gac_quote(q, sizeof q, axis));
    }
    d->seen_by = rep_printf(in->report, "%s", text);
    return true;
}

/* Misaligned sizes that have the same cause, taken together. */
typedef struct cause {
    struct cause *next;
    const char *pattern, *kernel, *seen_by;
    double lost_ms, n_dims, least, most;
} cause;

static void add_cause(rep_reader *in, cause **list, const dim *d)
{
    enum { MAX_CAUSES = 250 };
    const char *pattern = rep_pattern(in, d->name), *kernel = rep_or(d->kernel, "");
    int n = 0;
    for (; *list && n < MAX_CAUSES; n++, list = &(*list)->next)
        if (strcmp((*list)->pattern, pattern) == 0 && strcmp((*list)->kernel, kernel) == 0 &&
            strcmp((*list)->seen_by, d->seen_by) == 0)
            break;
    if (!*list) {
        *list = rep_alloc(in->report, sizeof **list);
        if (!*list)
            return;
        **list = (cause){ NULL, pattern, kernel, d->seen_by, 0, 0, d->size, d->size };
        if (n == MAX_CAUSES) /* it takes all that come from now on */
            **list = (cause){ NULL, "others", "", "", 0, 0, d->size, d->size };
    }
    cause *c = *list;
    c->lost_ms += isfinite(d->lost_ms) ? d->lost_ms : 0;
    c->n_dims++;
    c->least = fmin(c->least, d->size);
    c->most = fmax(c->most, d->size);
}

/* Takes the most expensive cause out of the list. */
static cause *take_worst(cause **list)
{
    cause **worst = list;
    for (cause **at = list; *at; at = &(*at)->next)
        if ((*at)->lost_ms > (*worst)->lost_ms)
            worst = at;
    cause *taken = *worst;
    *worst = taken->next;
    return taken;
}

static const char *without_layers(const char *pattern)
{
    const char *rest = strstr(pattern, "layers.*.");
    return rest ? rest + strlen("layers.*.") : pattern;
}

static void show_causes(rep_reader *in, cause *causes, rep_figure *figure)
{
    enum { MOST_BARS = 12 };
    gac_report *report = in->report;
    if (!causes)
        return;
    rep_table *table = rep_table_add(report, in->section, "Misaligned sizes by cause",
                                     "sizes|#count|#from|#to|seen as|kernel|#lost, ms");
    rep_series *lost = rep_series_get(report, figure, "time lost", REP_VERMILLION, REP_DOTS);
    for (int n = 0; causes; n++) {
        const cause *c = take_worst(&causes);
        const char *count = rep_printf(report, "%.0f", c->n_dims);
        REP_ROW(report, table, c->pattern, count, rep_count(report, c->least),
                rep_count(report, c->most), c->seen_by, c->kernel, rep_number(report, c->lost_ms));
        if (n < MOST_BARS && c->lost_ms > 0)
            rep_point_add(
                report, figure, lost,
                rep_category(figure, rep_printf(report, "%s%s%s", without_layers(c->pattern),
                                                *c->kernel ? ": " : "", c->kernel)),
                c->lost_ms,
                rep_printf(report, "%s sizes from %s to %s, seen as %s", count,
                           rep_count(report, c->least), rep_count(report, c->most), c->seen_by));
    }
}

void rep_add_sizes(rep_reader *in, rep_figure *figure, const char *name, double size,
                   const char *state, rep_colour colour, const char *note)
{
    int64_t layer = rep_layer(name);
    if (layer < 0 || size <= 0)
        return;
    rep_series *series = rep_series_get(in->report, figure, state, colour, REP_DOTS);
    if (series)
        series->mark = colour != REP_BLUE; /* a triangle */
    rep_point_add(in->report, figure, series, (double)layer, size,
                  note ? rep_printf(in->report, "%s, %s", name, note) : name);
}

/* Shows a size as it is and as a repair would make it. */
static void add_dim(rep_reader *in, rep_figure *before, rep_figure *after, const dim *d)
{
    const bool mended = d->aligned || d->suggest > d->size;
    rep_add_sizes(in, before, d->name, d->size, d->aligned ? "aligned" : "misaligned",
                  d->aligned ? REP_BLUE : REP_VERMILLION, d->kernel);
    rep_add_sizes(in, after, d->name, isfinite(d->suggest) ? d->suggest : d->size,
                  mended ? "aligned" : "misaligned", mended ? REP_BLUE : REP_VERMILLION, NULL);
}

bool rep_read_inspect(rep_reader *in)
{
    const json_t *dims;
    cause *causes = NULL;
    gac_report *report = in->report;
    if (!read_checkpoint(in) || !read_summary(in) ||
        !rep_need_array(in, in->root, "dims", REP_MAX_DIMS, &dims))
        return false;
    rep_figure *lost = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "causes",
                       .title = "What each cause costs",
                       .caption = "Predicted time lost over all layers, by the kind of size and "
                                  "the kernel that it gets. The longest bar is worth mending "
                                  "first.",
                       .x_title = "cause",
                       .y_title = "time lost, ms",
                       .kind = REP_ROWS,
                       .label_bars = true });
    rep_figure *before = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "sizes",
                       .title = "Sizes by layer, as they are",
                       .caption = "Each mark is one size. Triangles are misaligned: the GPU "
                                  "serves them with a slow kernel.",
                       .x_title = "layer",
                       .y_title = "size",
                       .log_y = true,
                       .free_y = true });
    rep_figure *after = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "sizes-repaired",
                       .title = "Sizes by layer, as gac repair would make them",
                       .caption = "The same sizes after a repair. A few zeros suffice, so that "
                                  "the marks hardly move.",
                       .x_title = "layer",
                       .y_title = "size",
                       .log_y = true,
                       .free_y = true });
    rep_pair(before, after);
    /* Where a compressor chose sizes, only these are shown, as they are what counts. */
    bool chosen = false;
    for (size_t i = 0; i < json_array_size(dims); i++)
        chosen = chosen || json_is_true(json_object_get(json_array_get(dims, i), "compressed"));
    for (size_t i = 0; i < json_array_size(dims); i++) {
        dim d;
        if (!read_dim(in, dims, i, &d))
            return false;
        if (d.compressed || !chosen)
            add_dim(in, before, after, &d);
        if (!d.aligned)
            add_cause(in, &causes, &d);
    }
    show_causes(in, causes, lost);
    return true;
}

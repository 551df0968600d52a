/* gac.plan/1, gac.front/1, gac.repair/1, gac.verify/1. */
#include <string.h>

#include "report/report_internal.h"

enum { MAX_SHOWN = 1000 }; /* points of a front */

/* Sizes that change, by layer, and a table of them by kind. */
typedef struct change {
    struct change *next;
    const char *pattern;
    double n, from_least, from_most, to_least, to_most;
} change;

static void add_change(rep_reader *in, change **list, const char *name, double from, double to)
{
    enum { MAX_KINDS = 250 };
    const char *pattern = rep_pattern(in, name);
    int n = 0;
    for (; *list && n < MAX_KINDS && strcmp((*list)->pattern, pattern) != 0; n++)
        list = &(*list)->next;
    if (!*list) {
        *list = rep_alloc(in->report, sizeof **list);
        if (!*list)
            return;
        /* The last one takes all that come from now on. */
        **list = (change){ NULL, n == MAX_KINDS ? "others" : pattern, 0, from, from, to, to };
    }
    change *c = *list;
    c->n++;
    c->from_least = fmin(c->from_least, from);
    c->from_most = fmax(c->from_most, from);
    c->to_least = fmin(c->to_least, to);
    c->to_most = fmax(c->to_most, to);
}

typedef struct sized {
    const char *name;
    double from, to;
} sized;

/* Whether a size of this kind changes in any layer: the others would only squash the figure. */
static bool changes_somewhere(rep_reader *in, const change *changes, const char *name)
{
    const char *pattern = rep_pattern(in, name);
    while (changes && strcmp(changes->pattern, pattern) != 0)
        changes = changes->next;
    return changes;
}

static const char *range(gac_report *report, double least, double most)
{
    if (least == most)
        return rep_count(report, least);
    return rep_printf(report, "%s to %s", rep_count(report, least), rep_count(report, most));
}

static bool read_changes(rep_reader *in)
{
    const json_t *dims;
    gac_report *report = in->report;
    change *changes = NULL;
    if (!rep_take_array(in, in->root, "dims", REP_MAX_DIMS, &dims))
        return false;
    if (json_array_size(dims) == 0)
        return true;
    rep_figure shown = {
        .name = "before",
        .title = "Sizes by layer, before",
        .caption = "Each mark is one size, of the kinds that change. Triangles will change.",
        .x_title = "layer",
        .y_title = "size",
        .log_y = true,
        .free_y = true
    };
    rep_figure *before = rep_figure_add(report, in->section, &shown);
    shown.name = "after";
    shown.title = "Sizes by layer, after";
    shown.caption = "The same sizes after the change. Triangles have changed.";
    rep_figure *after = rep_figure_add(report, in->section, &shown);
    rep_pair(before, after);
    const size_t n = json_array_size(dims);
    sized *all = rep_alloc(report, n * sizeof *all);
    for (size_t i = 0; i < n && all; i++) {
        const json_t *dim = rep_entry(in, dims, i, "dims");
        if (!dim || !rep_need_text(in, dim, "name", &all[i].name) ||
            !rep_need_number(in, dim, "from", &all[i].from) ||
            !rep_need_number(in, dim, "to", &all[i].to))
            return false;
        if (all[i].from != all[i].to)
            add_change(in, &changes, all[i].name, all[i].from, all[i].to);
    }
    for (size_t i = 0; i < n && all; i++) {
        const char *name = all[i].name;
        const double from = all[i].from, to = all[i].to;
        bool same = from == to;
        if (same && !changes_somewhere(in, changes, name))
            continue;
        rep_add_sizes(in, before, name, from, same ? "stays" : "changes",
                      same ? REP_BLUE : REP_VERMILLION,
                      same ? NULL : rep_printf(report, "becomes %s", rep_count(report, to)));
        rep_add_sizes(in, after, name, to, same ? "stays" : "changed", same ? REP_BLUE : REP_GREEN,
                      same ? NULL : rep_printf(report, "was %s", rep_count(report, from)));
    }
    rep_table *table =
        changes ? rep_table_add(report, in->section, "Sizes that change", "sizes|#count|#from|#to")
                : NULL;
    for (const change *c = changes; c; c = c->next)
        REP_ROW(report, table, c->pattern, rep_printf(report, "%.0f", c->n),
                range(report, c->from_least, c->from_most), range(report, c->to_least, c->to_most));
    return true;
}

bool rep_read_plan(rep_reader *in)
{
    const char *contract, *workload, *strategy, *unit, *note;
    double now, planned, overhead, objective, bound;
    bool optimal;
    const json_t *root = in->root;
    gac_report *report = in->report;
    rep_section *section = in->section;
    if (!rep_need_text(in, root, "strategy", &strategy) ||
        !rep_take_text(in, root, "contract", &contract) ||
        !rep_take_text(in, root, "workload", &workload) ||
        !rep_take_text(in, root, "objective_unit", &unit) ||
        !rep_take_text(in, root, "note", &note) || !rep_take_number(in, root, "now_ms", &now) ||
        !rep_take_number(in, root, "planned_ms", &planned) ||
        !rep_take_number(in, root, "overhead_pct", &overhead) ||
        !rep_take_number(in, root, "objective", &objective) ||
        !rep_take_number(in, root, "bound", &bound) ||
        !rep_take_flag(in, root, "optimal", &optimal))
        return false;
    section->title =
        rep_printf(report, "Plan by %s: %s", strategy, rep_last_part(report, in->name));
    section->lead = note;
    rep_fact_add(report, section, "judged for", contract);
    rep_fact_add(report, section, "workload", rep_spaced(report, workload));
    if (isfinite(now) && isfinite(planned) && now > 0)
        rep_fact_add(report, section, "predicted time",
                     rep_printf(report, "%s ms now, %s ms planned (×%.2f)", rep_number(report, now),
                                rep_number(report, planned), planned / now));
    if (isfinite(overhead))
        rep_fact_add(report, section, "bytes", rep_printf(report, "%+.3f %%", overhead));
    if (strcmp(strategy, "solve") == 0 && isfinite(objective))
        rep_fact_add(report, section, "solver",
                     rep_printf(report, "%s: objective %s, bound %s %s",
                                optimal ? "proved optimal" : "not proved optimal",
                                rep_number(report, objective), rep_number(report, bound),
                                rep_or(unit, "ms")));
    rep_add_plan(in, &(rep_plan){ NULL, strategy, rep_or(contract, ""), rep_or(workload, ""), now,
                                  overhead, planned });
    return read_changes(in);
}

bool rep_read_front(rep_reader *in)
{
    const char *contract, *workload;
    const json_t *points;
    bool complete;
    gac_report *report = in->report;
    if (!rep_take_text(in, in->root, "contract", &contract) ||
        !rep_take_text(in, in->root, "workload", &workload) ||
        !rep_take_flag(in, in->root, "complete", &complete) ||
        !rep_need_array(in, in->root, "points", 10000000, &points))
        return false;
    in->section->title =
        rep_printf(report, "Time against bytes: %s", rep_last_part(report, in->name));
    rep_fact_add(report, in->section, "judged for", contract);
    rep_fact_add(report, in->section, "workload", rep_spaced(report, workload));
    rep_fact_add(report, in->section, "points",
                 rep_printf(report, "%zu, %s", json_array_size(points),
                            complete ? "the whole front" : "optima at budgets spread evenly"));
    rep_figure *figure = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = "front",
                       .title = "Time against bytes: the exact Pareto front",
                       .caption = "No plan is below this line. Go right from the left end until "
                                  "the line is flat: more bytes buy nothing there. The time axis "
                                  "does not begin at 0.",
                       .x_title = "bytes added, percent",
                       .y_title = "predicted time, ms",
                       .free_y = true });
    rep_add_front(in, &(rep_front){ NULL, rep_or(contract, ""), rep_or(workload, ""), figure });
    rep_series *series = rep_series_get(report, figure, "best plans", REP_BLUE, REP_STEPS);
    const size_t n = json_array_size(points), step = n / MAX_SHOWN + 1;
    for (size_t i = 0; i < n; i = i + 1 < n && i + step >= n ? n - 1 : i + step) {
        double growth, time_ms, bytes;
        const json_t *point = rep_entry(in, points, i, "points");
        if (!point || !rep_need_number(in, point, "overhead_pct", &growth) ||
            !rep_need_number(in, point, "time_ms", &time_ms) ||
            !rep_take_number(in, point, "extra_bytes", &bytes))
            return false;
        rep_point_add(report, figure, series, growth, time_ms,
                      isfinite(bytes) ? rep_printf(report, "%s bytes", rep_count(report, bytes))
                                      : NULL);
    }
    return true;
}

/* A table of the runtimes that load a model. */
bool rep_read_loads_in(rep_reader *in)
{
    const json_t *runtimes;
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, "loads_in", 64, &runtimes))
        return false;
    if (json_array_size(runtimes) == 0)
        return true;
    rep_table *table =
        rep_table_add(report, in->section, "Where it loads", "runtime|!loads|how, or why not");
    if (table)
        table->prose = true;
    for (size_t i = 0; i < json_array_size(runtimes); i++) {
        const char *runtime, *name, *how, *why;
        bool loads;
        const json_t *entry = rep_entry(in, runtimes, i, "loads_in");
        if (!entry || !rep_need_text(in, entry, "runtime", &runtime) ||
            !rep_take_text(in, entry, "name", &name) || !rep_take_text(in, entry, "how", &how) ||
            !rep_take_text(in, entry, "why", &why) || !rep_take_flag(in, entry, "loads", &loads))
            return false;
        REP_ROW(report, table, rep_or(name, runtime), loads ? "yes" : "no",
                rep_or(how, rep_or(why, "")));
    }
    return true;
}

bool rep_read_repair(rep_reader *in)
{
    double n_changed, before, after, overhead;
    bool undo;
    gac_report *report = in->report;
    if (!rep_need_number(in, in->root, "n_dims_changed", &n_changed) ||
        !rep_take_number(in, in->root, "bytes_before", &before) ||
        !rep_take_number(in, in->root, "bytes_after", &after) ||
        !rep_take_number(in, in->root, "overhead_pct", &overhead) ||
        !rep_take_flag(in, in->root, "undo", &undo))
        return false;
    in->section->title =
        rep_printf(report, "%s: %s", undo ? "Undo" : "Repair", rep_last_part(report, in->name));
    rep_fact_add(report, in->section, "sizes changed", rep_count(report, n_changed));
    if (isfinite(before) && isfinite(after))
        rep_fact_add(report, in->section, "bytes",
                     rep_printf(report, "%s before, %s after (%+.3f %%)", rep_count(report, before),
                                rep_count(report, after), overhead));
    return read_changes(in) && rep_read_loads_in(in);
}

bool rep_read_verify(rep_reader *in)
{
    static const struct {
        const char *key, *says;
    } checks[] = { { "lossless", "every original tensor is inside, byte for byte" },
                   { "pads_zero", "all that was added is zero" },
                   { "config_ok", "the config states the sizes of the tensors" },
                   { "record_ok", "the record of the repair fits" } };
    const json_t *forward;
    bool ok, ran, exact;
    double difference;
    const char *why;
    gac_report *report = in->report;
    if (!gac_reader_bool(&in->r, in->root, "ok", &ok) ||
        !rep_take_text(in, in->root, "difference", &why) ||
        !rep_take_object(in, in->root, "forward", &forward) ||
        !rep_take_flag(in, forward, "ran", &ran) ||
        !rep_take_flag(in, forward, "bit_exact", &exact) ||
        !rep_take_number(in, forward, "max_abs_diff", &difference))
        return false;
    in->section->title = rep_printf(report, "Verify: %s", rep_last_part(report, in->name));
    in->section->lead = ok ? "It is the same model." : why;
    rep_table *table = rep_table_add(report, in->section, "Checks", "check|!holds");
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        bool holds;
        if (!rep_take_flag(in, in->root, checks[i].key, &holds))
            return false;
        if (json_object_get(in->root, checks[i].key))
            REP_ROW(report, table, checks[i].says, holds ? "yes" : "no");
    }
    if (ran)
        REP_ROW(report, table,
                rep_printf(report, "the same bits of output (largest difference %g)", difference),
                exact ? "yes" : "no");
    REP_ROW(report, table, "all", ok ? "yes" : "no");
    return true;
}

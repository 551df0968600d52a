/* What several results say together. */
#include <string.h>

#include "report/report_internal.h"

static rep_section *overview(gac_report *report)
{
    if (!report->overview) {
        rep_section *section = rep_alloc(report, sizeof *section);
        if (!section)
            return NULL;
        *section = (rep_section){ .id = "overview", .kind = "overview", .title = "Overview" };
        report->overview = section;
    }
    return report->overview;
}

/* Colours of models by their name; others get the rest in their order. */
static rep_colour colour_of(const char *name, int n)
{
    static const struct {
        const char *name;
        rep_colour colour;
    } known[] = { { "dense", REP_GREY },
                  { "gac", REP_BLUE },
                  { "as compressed", REP_VERMILLION },
                  { "rounded", REP_ORANGE } };
    static const rep_colour rest[] = { REP_ORANGE, REP_VERMILLION, REP_SKY,
                                       REP_GREEN,  REP_PURPLE,     REP_BROWN };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(known[i].name, name, strlen(known[i].name)) == 0 &&
            strchr(",", name[strlen(known[i].name)])) /* the end, or "gac, aligned" */
            return known[i].colour;
    return rest[n % (int)(sizeof rest / sizeof *rest)];
}

void rep_add_peer(rep_reader *in, const char *name, double n_params, double perplexity,
                  const char *text)
{
    gac_report *report = in->report;
    rep_peer *peer = isfinite(n_params) && isfinite(perplexity) && perplexity > 0
                         ? rep_alloc(report, sizeof *peer)
                         : NULL;
    if (!peer)
        return;
    *peer = (rep_peer){ NULL,     name,      rep_or(text, "unknown text"), in->section->stamp,
                        n_params, perplexity };
    rep_peer **end = &report->peers;
    for (; *end; end = &(*end)->next)
        if (strcmp((*end)->text, peer->text) == 0 && (*end)->n_params == n_params &&
            (*end)->perplexity == perplexity)
            return; /* the same model in two results */
    *end = peer;
}

/* By parameters, so that lines between models of one name do not turn back. */
static void sort_peers(gac_report *report)
{
    rep_peer *sorted = NULL;
    while (report->peers) {
        rep_peer *peer = report->peers, **at = &sorted;
        report->peers = peer->next;
        while (*at && (*at)->n_params <= peer->n_params)
            at = &(*at)->next;
        peer->next = *at;
        *at = peer;
    }
    report->peers = sorted;
}

static void show_peers(gac_report *report)
{
    if (!report->peers || !report->peers->next)
        return;
    const char *first = report->peers->text;
    bool same = true;
    for (const rep_peer *p = report->peers; p; p = p->next)
        same = same && strcmp(p->text, first) == 0;
    rep_figure *figure = rep_figure_add(
        report, overview(report),
        &(rep_figure){ .name = "perplexity",
                       .title = "Perplexity against parameters",
                       .caption = same ? rep_printf(report,
                                                    "Lower is better, and further left is "
                                                    "smaller. All on %s.",
                                                    first)
                                       : "Lower is better, and further left is smaller. Compare "
                                         "only marks of the same text.",
                       .x_title = "parameters, millions",
                       .y_title = "perplexity",
                       .log_y = true,
                       .free_y = true,
                       .stamp = report->peers->stamp });
    int n = 0;
    sort_peers(report);
    for (const rep_peer *p = report->peers; p; p = p->next) {
        rep_series *series =
            rep_series_get(report, figure, p->name, colour_of(p->name, n), REP_LINES);
        if (series && !series->points)
            series->mark = n++;
        rep_point_add(report, figure, series, p->n_params / 1e6, p->perplexity, p->text);
    }
}

/* Evaluated models beside the first dense one, or beside the first one. */
static void show_speeds(gac_report *report)
{
    const rep_speed *all = report->speeds, *base = all;
    for (const rep_speed *s = all; s && !base->dense; s = s->next)
        base = s->dense ? s : base;
    bool several = false;
    for (const rep_speed *s = all; s; s = s->next)
        several = several || strcmp(s->name, all->name) != 0;
    if (!several)
        return;
    rep_figure *figure = rep_figure_add(
        report, overview(report),
        &(rep_figure){ .name = "speed",
                       .title = "Measured prefill and decode",
                       .caption = rep_printf(report,
                                             "Time of each model as a multiple of that of %s: "
                                             "below 1 is faster. The labels are milliseconds.",
                                             base->name),
                       .x_title = "phase",
                       .y_title = "time ratio",
                       .kind = REP_ROWS,
                       .label_bars = true,
                       .stamp = base->stamp });
    int n = 0;
    for (const rep_speed *s = all; s; s = s->next) {
        double beside = NAN;
        for (const rep_speed *b = all; b; b = b->next)
            if (strcmp(b->name, base->name) == 0 && strcmp(b->phase, s->phase) == 0)
                beside = b->ms;
        if (!isfinite(beside))
            continue;
        rep_series *series = rep_series_get(report, figure, s->name,
                                            s == base || s->dense ? REP_GREY
                                            : s->gac              ? REP_BLUE
                                                                  : colour_of("", n),
                                            REP_DOTS);
        if (series && !series->points && !s->dense)
            n++;
        int x = rep_category(figure, s->phase);
        if (x >= 0)
            rep_point_add(report, figure, series, x, s->ms / beside,
                          rep_printf(report, "%s ms", rep_number(report, s->ms)));
    }
}

void rep_add_verdicts(rep_reader *in, const char *id, const char *stack, const char *verdict,
                      const double counts[REP_N_VERDICTS])
{
    gac_report *report = in->report;
    if (!report->experiments)
        report->experiments = rep_table_add(
            report, overview(report), "Published experiments: claims by verdict",
            "experiment|stack|!verdict|#contradicted|#weaker|#stronger|#reproduced|#ambiguous");
    const char *cells[REP_N_VERDICTS];
    for (int i = 0; i < REP_N_VERDICTS; i++)
        cells[i] = counts[i] > 0 ? rep_printf(report, "%.0f", counts[i]) : "";
    rep_row *row = REP_ROW(report, report->experiments, id, stack, verdict, cells[0], cells[1],
                           cells[2], cells[3], cells[4]);
    if (row)
        row->link = in->section->id;
}

void rep_add_plan(rep_reader *in, const rep_plan *plan)
{
    rep_plan *copy = rep_alloc(in->report, sizeof *copy), **end = &in->report->plans;
    if (!copy)
        return;
    *copy = *plan;
    while (*end)
        end = &(*end)->next;
    *end = copy;
}

void rep_add_front(rep_reader *in, const rep_front *front)
{
    rep_front *copy = rep_alloc(in->report, sizeof *copy);
    if (!copy)
        return;
    *copy = *front;
    copy->next = in->report->fronts;
    in->report->fronts = copy;
}

static bool belongs(const rep_plan *plan, const rep_front *front)
{
    const rep_point *start =
        front->figure && front->figure->series ? front->figure->series->points : NULL;
    return start && fabs(plan->now_ms - start->y) <= 1e-6 * start->y &&
           strcmp(plan->contract, front->contract) == 0 &&
           strcmp(plan->workload, front->workload) == 0;
}

static void mark_plans(gac_report *report)
{
    static const rep_colour colours[] = { REP_VERMILLION, REP_GREEN, REP_PURPLE, REP_ORANGE };
    for (const rep_front *f = report->fronts; f; f = f->next) {
        int n = 0;
        for (const rep_plan *p = report->plans; p; p = p->next) {
            if (!belongs(p, f))
                continue;
            rep_series *series =
                rep_series_get(report, f->figure, rep_printf(report, "plan by %s", p->name),
                               colours[n % 4], REP_DOTS);
            if (series && !series->points)
                series->mark = 1 + n++ % 5;
            rep_point_add(report, f->figure, series, p->overhead_pct, p->time_ms, NULL);
        }
    }
}

void rep_finish_overview(gac_report *report)
{
    if (report->finished)
        return;
    report->finished = true;
    mark_plans(report);
    show_speeds(report);
    show_peers(report);
}

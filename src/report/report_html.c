/* The page as HTML. It needs no other file and runs no script; a policy in its head forbids both.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "report/report_internal.h"

static void put(FILE *out, const char *before, const char *text, const char *after)
{
    fputs(before, out);
    rep_write_escaped(out, text ? text : "");
    fputs(after, out);
}

/* A stamp, whose short parts, as the date, stay on one line. */
static void put_stamp(FILE *out, const char *stamp)
{
    static const char between[] = " · ";
    while (stamp && *stamp) {
        const char *end = strstr(stamp, between);
        size_t n = end ? (size_t)(end - stamp) : strlen(stamp);
        char part[1100];
        snprintf(part, sizeof part, "%.*s", (int)n, stamp);
        put(out, n <= 16 ? "<span>" : "", part, n <= 16 ? "</span>" : "");
        fputs(end ? between : "", out);
        stamp = end ? end + sizeof between - 1 : NULL;
    }
}

static void put_head(FILE *out, const gac_report *report)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; img-src data:\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n",
          out);
    put(out, "<title>", report->title, "</title>\n<style>\n");
    for (int i = 0; i < gac_n_bundled_style; i++)
        fwrite(gac_bundled_style[i].text, 1, gac_bundled_style[i].n_bytes, out);
    fputs("</style>\n</head>\n<body>\n", out);
    /* The shapes of points, once for all figures. */
    fputs("<svg width=\"0\" height=\"0\" class=\"shapes\" aria-hidden=\"true\"><defs>\n"
          "<g id=\"gpPt4\"><path fill=\"currentColor\" stroke=\"none\" d=\"M-1,-1h2v2h-2z\"/></g>\n"
          "<g id=\"gpPt6\"><circle fill=\"currentColor\" stroke=\"none\" r=\"1\"/></g>\n"
          "<circle id=\"gpPt5\" fill=\"none\" stroke-width=\".4\" stroke=\"currentColor\" "
          "r=\"1\"/>\n"
          "<path id=\"gpPt7\" fill=\"none\" stroke-width=\".4\" stroke=\"currentColor\" "
          "d=\"M0,-1.33 L-1.33,0.67 L1.33,0.67 z\"/>\n"
          "<path id=\"gpPt8\" fill=\"currentColor\" stroke=\"none\" "
          "d=\"M0,-1.33 L-1.33,0.67 L1.33,0.67 z\"/>\n"
          "<path id=\"gpPt10\" fill=\"currentColor\" stroke=\"none\" "
          "d=\"M0,1.33 L-1.33,-0.67 L1.33,-0.67 z\"/>\n"
          "<path id=\"gpPt12\" fill=\"currentColor\" stroke=\"none\" "
          "d=\"M0,1.42 L1.42,0 L0,-1.42 L-1.42,0 z\"/>\n"
          "<path id=\"gpPt14\" fill=\"currentColor\" stroke=\"none\" "
          "d=\"M0,1.33 L1.265,.411 L.782,-1.067 L-.782,-1.076 L-1.265,.411 z\"/>\n"
          "</defs></svg>\n",
          out);
}

static void put_contents(FILE *out, const gac_report *report)
{
    if (!report->sections || !report->sections->next)
        return;
    fputs("<nav><details open><summary>Contents</summary><ol>\n", out);
    for (const rep_section *s = report->sections; s; s = s->next) {
        put(out, "<li><a href=\"#", s->id, "\">");
        put(out, "", s->title, "</a></li>\n");
    }
    fputs("</ol></details></nav>\n", out);
}

/* Words that are good or bad are coloured, and say so themselves. */
static const char *mark_of(const char *word)
{
    static const char *const good[] = { "reproduced", "stronger", "yes", "measured" };
    static const char *const bad[] = { "contradicted", "no", "failed" };
    static const char *const mixed[] = { "weaker", "mixed", "ambiguous", "throttled",
                                         "not measured" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (strcmp(word, good[i]) == 0)
            return "good";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (strcmp(word, bad[i]) == 0)
            return "bad";
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        if (strcmp(word, mixed[i]) == 0)
            return "mixed";
    return "plain";
}

static void put_cell(FILE *out, const rep_table *table, const rep_row *row, int i)
{
    const char *text = row->cells[i] ? row->cells[i] : "";
    fputs(table->numeric >> i & 1 ? "<td class=\"n\"" : "<td", out);
    if (table->prose && i > 0 && !(table->marked >> i & 1))
        put(out, " data-of=\"", table->columns[i], "\"");
    fputc('>', out);
    if (table->marked >> i & 1 && *text) {
        fprintf(out, "<span class=\"%s\">", mark_of(text));
        put(out, "", text, "</span>");
    } else if (i == 0 && row->link) {
        put(out, "<a href=\"#", row->link, "\">");
        put(out, "", text, "</a>");
    } else {
        rep_write_escaped(out, text);
    }
    fputs("</td>", out);
}

static void put_table(FILE *out, const rep_table *table)
{
    if (table->n_rows == 0)
        return;
    put(out,
        table->prose ? "<div class=\"scroll prose\"><table><caption>"
                     : "<div class=\"scroll\"><table><caption>",
        table->title, "</caption>\n<thead><tr>");
    for (int i = 0; i < table->n_columns; i++) {
        fputs(table->numeric >> i & 1 ? "<th scope=\"col\" class=\"n\">" : "<th scope=\"col\">",
              out);
        put(out, "", table->columns[i], "</th>");
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (const rep_row *row = table->rows; row; row = row->next) {
        fputs("<tr>", out);
        for (int i = 0; i < table->n_columns; i++)
            put_cell(out, table, row, i);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    if (table->n_left_out > 0)
        fprintf(out, "<p class=\"note\">%lld more rows are in the result file.</p>\n",
                (long long)table->n_left_out);
}

/* The numbers behind a figure. */
static void put_numbers(FILE *out, const rep_figure *figure)
{
    put(out,
        "<details><summary>The numbers</summary><div class=\"scroll\"><table>\n<thead><tr><th>",
        "series", "</th><th>");
    put(out, "", figure->x_title, "</th><th class=\"n\">");
    put(out, "", figure->y_title, "</th><th></th></tr></thead>\n<tbody>\n");
    for (const rep_series *s = figure->series; s; s = s->next)
        for (const rep_point *p = s->points; p; p = p->next) {
            char x[40], y[40];
            rep_format(x, p->x);
            rep_format(y, p->y);
            bool named = figure->kind != REP_SCATTER && (int)p->x < figure->n_categories;
            put(out, "<tr><td>", s->name, "<td>");
            rep_write_escaped(out, named ? figure->categories[(int)p->x] : x);
            fprintf(out, "<td class=\"n\">%s<td>", y);
            put(out, "", p->note, "\n");
        }
    fputs("</tbody></table></div></details>\n", out);
}

static void put_figure(FILE *out, const gac_report *report, const rep_figure *figure)
{
    if (figure->n_points == 0)
        return;
    put(out, "<figure><h3>", figure->title, "</h3>\n");
    if (figure->svg)
        fprintf(out, "<div class=\"scroll\">%s</div>\n", figure->svg);
    else
        put(out, "<p class=\"note\">No picture: ", rep_or(report->hint, "it was not drawn"),
            "</p>\n");
    put(out, "<figcaption>", figure->caption, "");
    fputs(" <span class=\"stamp\">", out);
    put_stamp(out, figure->stamp);
    fputs("</span></figcaption>\n", out);
    if (figure->n_left_out > 0)
        fprintf(out, "<p class=\"note\">%d more points are in the result file.</p>\n",
                figure->n_left_out);
    put_numbers(out, figure);
    fputs("</figure>\n", out);
}

static void put_section(FILE *out, const gac_report *report, const rep_section *section)
{
    put(out, "<section id=\"", section->id, "\">\n");
    put(out, "<h2>", section->title, "</h2>\n");
    if (section->stamp) {
        put(out, "<p class=\"stamp\">", section->kind, " · ");
        put_stamp(out, section->stamp);
        put(out, " · ", section->source, "</p>\n");
    }
    if (section->lead)
        put(out, "<p>", section->lead, "</p>\n");
    if (section->facts)
        fputs("<dl>\n", out);
    for (const rep_fact *fact = section->facts; fact; fact = fact->next) {
        put(out, "<div><dt>", fact->name, "</dt>");
        put(out, "<dd>", fact->value, "</dd></div>\n");
    }
    fputs(section->facts ? "</dl>\n" : "", out);
    fputs("<div class=\"figures\">\n", out);
    for (const rep_figure *figure = section->figures; figure; figure = figure->next)
        put_figure(out, report, figure);
    fputs("</div>\n", out);
    for (const rep_table *table = section->tables; table; table = table->next)
        put_table(out, table);
    for (const rep_fact *note = section->notes; note; note = note->next)
        put(out, "<p class=\"note\">", note->value, "</p>\n");
    fputs("</section>\n", out);
}

static void put_page(FILE *out, const gac_report *report)
{
    put_head(out, report);
    put(out, "<header><h1>", report->title, "</h1></header>\n<main>\n");
    if (report->hint)
        put(out, "<p class=\"note\">This page has no pictures: ", report->hint, ".</p>\n");
    if (report->overview)
        put_section(out, report, report->overview);
    put_contents(out, report);
    for (const rep_section *section = report->sections; section; section = section->next)
        put_section(out, report, section);
    fprintf(out, "</main>\n<footer>Made by gac %s.</footer>\n</body>\n</html>\n", gac_version());
}

gac_status gac_report_html(const gac_report *report, char **text, size_t *n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL(err, report, text, n_bytes);
    rep_text page;
    FILE *out = rep_text_open(&page);
    if (out)
        put_page(out, report);
    gac_status status = rep_text_close(&page, out, err);
    if (status == GAC_OK && report->lost) {
        free(page.bytes);
        return gac_error_no_memory(err);
    }
    if (status != GAC_OK)
        return status;
    *text = page.bytes;
    *n_bytes = page.n_bytes;
    return GAC_OK;
}

/* Makes gnuplot's SVG fit into a page: hover texts become titles, colours become classes, so that
 * the page's style decides on them, and what draws nothing is left out. */
#include <stdlib.h>
#include <string.h>

#include "report/report_internal.h"

void rep_write_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else if (*text == '\'')
            fputs("&#39;", out);
        else
            fputc(*text, out);
    }
}

/* The hover text of a point. */
static void put_tip(FILE *out, const rep_figure *figure, const rep_series *series,
                    const rep_point *point)
{
    char x[40], y[40];
    rep_format(x, point->x);
    rep_format(y, point->y);
    fputs("<title>", out);
    if (figure->kind != REP_SCATTER && figure->n_categories > (int)point->x)
        rep_write_escaped(out, figure->categories[(int)point->x]);
    else
        fprintf(out, "%s %s", figure->x_title, x);
    fputs(" · ", out);
    rep_write_escaped(out, series->name);
    fprintf(out, "\n%s: %s", figure->y_title, y);
    if (point->note) {
        fputc('\n', out);
        rep_write_escaped(out, point->note);
    }
    fputs("</title>", out);
}

/* All points in the order in which they are drawn. */
typedef struct cursor {
    const rep_series *series;
    const rep_point *point;
} cursor;

static void next_point(cursor *c)
{
    c->point = c->point ? c->point->next : NULL;
    while (!c->point && c->series) {
        c->series = c->series->next;
        c->point = c->series ? c->series->points : NULL;
    }
}

typedef struct rewriter {
    FILE *out;
    const rep_figure *figure;
    cursor at; /* the point that is drawn next */
    bool inlined, in_head, in_defs, pending;
    char held[200]; /* the start of a group that may be empty */
} rewriter;

static bool begins(const char *line, const char *with)
{
    return strncmp(line, with, strlen(with)) == 0;
}

/* Replaces a colour, written as ATTRIBUTE'rgb(r, g, b)', by the class of the palette's colour. */
static const char *put_colour(FILE *out, const char *value, char kind)
{
    static const int palette[REP_N_COLOURS][3] = {
        { 0, 114, 178 },  { 213, 94, 0 },  { 0, 158, 115 },   { 230, 159, 0 }, { 204, 121, 167 },
        { 86, 180, 233 }, { 122, 82, 48 }, { 118, 118, 118 }, { 27, 31, 36 }
    };
    int r, g, b, n = 0;
    if (sscanf(value, "rgb(%d, %d, %d)'%n", &r, &g, &b, &n) != 3 || n == 0)
        return NULL;
    for (int i = 0; i < REP_N_COLOURS; i++)
        if (palette[i][0] == r && palette[i][1] == g && palette[i][2] == b) {
            fprintf(out, "class='%c%d'", kind, i);
            return value + n;
        }
    return NULL;
}

/* Writes a line with its colours replaced. */
static void put_line(rewriter *w, const char *line)
{
    static const struct {
        const char *text, *instead;
        char kind; /* of a colour, or 0 */
    } parts[] = { { "color='", NULL, 'c' },
                  { "stroke='rgb", NULL, 's' },
                  { "fill = 'rgb", NULL, 'f' },
                  { " stroke=\"none\" fill=\"black\" font-family=\"sans\"", " class='t'", 0 },
                  { " font-size=\"12.00\" ", "", 0 },
                  { "stroke='black' ", "", 0 },
                  { "stroke='gray' stroke-dasharray='2,4' class=\"gridline\" ", "class='g'", 0 } };
    while (*line == '\t')
        line++;
    while (*line) {
        const char *next = NULL;
        for (size_t i = 0; i < sizeof parts / sizeof *parts && w->inlined && !next; i++) {
            if (!begins(line, parts[i].text))
                continue;
            if (parts[i].kind) {
                next = put_colour(w->out, strchr(line, '\'') + 1, parts[i].kind);
            } else {
                fputs(parts[i].instead, w->out);
                next = line + strlen(parts[i].text);
            }
        }
        if (!next)
            fputc(*line++, w->out);
        else
            line = next;
    }
    fputc('\n', w->out);
}

/* A group that only sets pens: the style has the usual ones. */
static bool hold_group(rewriter *w, const char *line)
{
    const char *width = strstr(line, "stroke-width=\"");
    if (!w->inlined || !begins(line, "<g fill=\"none\" color=\"") || !width)
        return false;
    double value = strtod(width + strlen("stroke-width=\""), NULL);
    if (value == 1)
        snprintf(w->held, sizeof w->held, "<g>");
    else
        snprintf(w->held, sizeof w->held, "<g stroke-width='%g'>", value);
    w->pending = true;
    return true;
}

static void rewrite_line(rewriter *w, char *line)
{
    if (w->in_defs || (w->inlined && begins(line, "<defs>"))) {
        w->in_defs = !begins(line, "</defs>"); /* the page has one copy */
        return;
    }
    if (w->pending) {
        w->pending = false;
        if (strcmp(line, "</g>") == 0)
            return;
        fprintf(w->out, "%s\n", w->held);
    }
    if (hold_group(w, line))
        return;
    const char *hover = strstr(line, "<g onmousemove=\"gnuplot_svg.showHypertext(");
    if (hover && w->at.point) {
        fputs("<g>", w->out);
        put_tip(w->out, w->figure, w->at.series, w->at.point);
        fputc('\n', w->out);
        next_point(&w->at);
        return;
    }
    char *polygon = strstr(line, "<polygon fill = "), *close = strstr(line, "/>");
    if (polygon && close && w->figure->kind != REP_SCATTER && w->at.point) {
        *close = 0;
        put_line(w, line);
        fputs(">", w->out);
        put_tip(w->out, w->figure, w->at.series, w->at.point);
        fputs("</polygon>\n", w->out);
        next_point(&w->at);
        return;
    }
    const char *plot = strstr(line, "<g id=\"gnuplot_plot_");
    if (plot || begins(line, "<g id=\"gnuplot_canvas\""))
        fputs("<g>\n", w->out);
    else if (!begins(line, "<title>Gnuplot") && !begins(line, "<desc>") &&
             !(w->inlined && begins(line, "<rect ")))
        put_line(w, line);
}

/* Writes the opening tag with a name for those who cannot see it. */
static void put_head(rewriter *w, const char *box, int n_box)
{
    fprintf(w->out, "<svg class=\"plot\" role=\"img\" %.*s", n_box, box);
    if (!w->inlined)
        fputs(" xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\"",
              w->out);
    fputs(" aria-label=\"", w->out);
    rep_write_escaped(w->out, w->figure->title);
    fputs("\">\n", w->out);
}

gac_status rep_svg_rewrite(const rep_figure *figure, const char *svg, size_t n_bytes,
                           rep_format_kind format, rep_text *out, gac_error *err)
{
    char *copy = strndup(svg, n_bytes), *rest = NULL;
    char *box = copy ? strstr(copy, "viewBox=\"") : NULL;
    char *box_end = box ? strchr(box + strlen("viewBox=\""), '"') : NULL;
    char *body = box_end ? strstr(box_end, "\n>") : NULL;
    if (!copy || !body) {
        free(copy);
        return copy ? gac_error_set(err, GAC_FAILED, "gnuplot wrote no SVG")
                    : gac_error_no_memory(err);
    }
    rewriter w = { .figure = figure, .inlined = format == REP_INLINE_SVG };
    w.at.series = &(rep_series){ .next = figure->series };
    next_point(&w.at);
    w.out = rep_text_open(out);
    if (w.out)
        put_head(&w, box, (int)(box_end + 1 - box));
    for (char *at = strtok_r(body + 2, "\n", &rest); at && w.out; at = strtok_r(NULL, "\n", &rest))
        rewrite_line(&w, at);
    free(copy);
    return rep_text_close(out, w.out, err);
}

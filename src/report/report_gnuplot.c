/* Figures as commands for gnuplot. No text of a result reaches gnuplot as it is: legends and
 * labels keep only harmless characters, and hover texts stay here (report_svg.c). */
#include <stdlib.h>
#include <string.h>

#include "base/spawn.h"
#include "report/report_internal.h"

/* Small, so that a phone can show all of a figure in letters that can be read. */
enum { WIDTH = 420, HEIGHT = 290 };

#define TIMEOUT_S 60
#define MAX_DRAWN_BYTES ((size_t)256 << 20)

/* Okabe and Ito's colours, which the colour-blind can tell apart, but for the yellow, which is
 * too pale on white. */
static const char *const rgb[REP_N_COLOURS] = { "#0072b2", "#d55e00", "#009e73",
                                                "#e69f00", "#cc79a7", "#56b4e9",
                                                "#7a5230", "#767676", "#1b1f24" };

enum { MAX_NAME = 36, DIAMOND = 13, LONG_CATEGORY = 24 };

/* Shapes: filled circle, triangle, square, diamond, triangle down, pentagon; then open ones. */
static const int shapes[] = { 7, 9, 5, 13, 11, 15, 6, 8 };

/* Writes text in single quotes. What gnuplot or a terminal might take for a command becomes a
 * space. */
static void put_text(FILE *out, const char *text, size_t max)
{
    size_t n = 0;
    fputc('\'', out);
    for (; *text && n < max; text++, n++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c >= 0x80 || strchr(" .,:;+-*/=()[]_#?@", c);
        fputc(plain ? c : ' ', out);
    }
    while ((*text & 0xc0) == 0x80) /* the rest of a character */
        fputc(*text++, out);
    fputs(*text ? "…'" : "'", out);
}

static int bar_series(const rep_figure *figure)
{
    int n = 0;
    for (const rep_series *s = figure->series; s; s = s->next)
        n += s->draw != REP_OVER;
    return n > 0 ? n : 1;
}

static int slot_of(const rep_figure *figure, const rep_series *series)
{
    int slot = 0;
    for (const rep_series *s = figure->series; s && s != series; s = s->next)
        slot += s->draw != REP_OVER;
    return slot;
}

typedef struct limits {
    double x0, x1, y0, y1;
} limits;

static void widen(limits *l, const rep_figure *figure)
{
    for (const rep_series *s = figure->series; s; s = s->next)
        for (const rep_point *p = s->points; p; p = p->next) {
            l->x0 = fmin(l->x0, p->x);
            l->x1 = fmax(l->x1, p->x);
            l->y0 = fmin(l->y0, p->y);
            l->y1 = fmax(l->y1, p->y);
        }
}

static limits find_limits(const rep_figure *figure, bool *log_y)
{
    limits l = { INFINITY, -INFINITY, INFINITY, -INFINITY };
    widen(&l, figure);
    if (figure->beside)
        widen(&l, figure->beside);
    *log_y = figure->log_y && l.y0 > 0 && l.y1 > 5 * l.y0;
    double margin = l.x1 > l.x0 ? 0.02 * (l.x1 - l.x0) : 1;
    l.x0 -= margin;
    l.x1 += margin;
    if (*log_y) {
        l.y0 /= 1.5;
        l.y1 *= figure->kind == REP_SCATTER ? 1.3 : 1.8;
    } else if (figure->free_y) {
        double room = l.y1 > l.y0 ? 0.08 * (l.y1 - l.y0) : 1;
        l.y0 -= room;
        l.y1 += room;
    } else {
        l.y0 = l.y0 < 0 ? 1.05 * l.y0 : 0;
        l.y1 = l.y1 > 0 ? l.y1 * (figure->kind == REP_ROWS ? 1.2 : 1.08) : 0;
        if (l.y1 <= l.y0)
            l.y1 = l.y0 + 1;
    }
    return l;
}

/* The data of all points: for dots x, y, number; for bars the middle, the value, the rectangle. */
static void put_data(FILE *out, const rep_figure *figure, const limits *l)
{
    int n = 0, number = 0;
    const double width = 0.8 / bar_series(figure);
    for (const rep_series *s = figure->series; s; s = s->next, number++) {
        if (!s->points)
            continue;
        fprintf(out, "$d%d << END_OF_DATA\n", number);
        for (const rep_point *p = s->points; p; p = p->next, n++) {
            double from = p->x - 0.4 + slot_of(figure, p->over ? p->over : s) * width,
                   to = from + 0.94 * width;
            if (figure->kind == REP_SCATTER)
                fprintf(out, "%.9g %.9g %d\n", p->x, p->y, n);
            else if (s->draw == REP_OVER)
                fprintf(out, "%.9g %.9g %d\n", figure->kind == REP_BARS ? (from + to) / 2 : p->y,
                        figure->kind == REP_BARS ? p->y : (from + to) / 2, n);
            else if (figure->kind == REP_BARS)
                fprintf(out, "%.9g %.9g %.9g %.9g %.9g %.9g\n", (from + to) / 2, p->y, from, to,
                        l->y0, p->y);
            else
                fprintf(out, "%.9g %.9g %.9g %.9g %.9g %.9g\n", p->y, (from + to) / 2, l->y0, p->y,
                        from, to);
        }
        fputs("END_OF_DATA\n", out);
    }
}

/* One series of marks, each with its number as a hover text. */
static void put_marks(FILE *out, const rep_series *s, int number, double size)
{
    const int shape = s->draw == REP_OVER ? DIAMOND : shapes[s->mark % 8];
    fprintf(out,
            "$d%d using 1:2:(sprintf('H%%d',$3)) with labels hypertext point pt %d ps %g lc rgb "
            "'%s' notitle, \\\n keyentry with points pt %d ps 1 lc rgb '%s' title ",
            number, shape, size, rgb[s->colour], shape, rgb[s->colour]);
    put_text(out, s->name, MAX_NAME);
}

static void put_scatter(FILE *out, const rep_figure *figure)
{
    static const char *const lines[] = { NULL, "lines", "steps", NULL };
    const char *before = "plot ";
    int number = 0;
    for (const rep_series *s = figure->series; s; s = s->next, number++) {
        if (!s->points)
            continue;
        fputs(before, out);
        before = ", \\\n";
        if (lines[s->draw])
            fprintf(out, "$d%d using 1:2 with %s lw 1.3 lc rgb '%s' notitle, \\\n", number,
                    lines[s->draw], rgb[s->colour]);
        put_marks(out, s, number, figure->n_points > 300 && s->points->next ? 0.45 : 0.7);
    }
    fputc('\n', out);
}

/* The labels of bars are their notes if those are milliseconds, else their values. */
static void put_labels(FILE *out, const rep_figure *figure)
{
    int n = 1, slot = 0;
    const double width = 0.8 / bar_series(figure);
    for (const rep_series *s = figure->series; s; s = s->next) {
        if (s->draw == REP_OVER)
            continue;
        for (const rep_point *p = s->points; p; p = p->next, n++) {
            char text[40];
            double middle = p->x - 0.4 + (slot + 0.47) * width;
            double shown = p->y;
            if (p->note && strlen(p->note) < 16 && strstr(p->note, " ms"))
                shown = strtod(p->note, NULL);
            snprintf(text, sizeof text, fabs(shown) >= 1000 ? "%.0f" : "%.3g", shown);
            fprintf(out, "set label %d ", n);
            put_text(out, text, 16);
            if (figure->kind == REP_BARS)
                fprintf(out, " at %.9g,%.9g center offset 0,0.6 font ',10.5'\n", middle, p->y);
            else
                fprintf(out, " at %.9g,%.9g left offset 0.5,0 font ',10.5'\n", p->y, middle);
        }
        slot++;
    }
}

static void put_bars(FILE *out, const rep_figure *figure)
{
    const char *before = "plot ";
    int number = 0;
    for (const rep_series *s = figure->series; s; s = s->next, number++) {
        if (!s->points || s->draw == REP_OVER)
            continue;
        fprintf(out,
                "%s$d%d using 1:2:3:4:5:6 with boxxyerror fs solid noborder fc rgb '%s' notitle",
                before, number, rgb[s->colour]);
        before = ", \\\n";
    }
    for (const rep_series *s = figure->series; s && figure->series->next; s = s->next) {
        if (s->draw == REP_OVER)
            continue;
        fprintf(out, "%s keyentry with points pt 5 ps 1.4 lc rgb '%s' title ", before,
                rgb[s->colour]);
        put_text(out, s->name, MAX_NAME);
        before = ", \\\n";
    }
    number = 0;
    for (const rep_series *s = figure->series; s; s = s->next, number++)
        if (s->points && s->draw == REP_OVER) {
            fputs(before, out);
            put_marks(out, s, number, 0.9);
            before = ", \\\n";
        }
    fputc('\n', out);
}

/* How many rows the legend takes: names side by side, where they fit. */
static int legend_rows(const rep_figure *figure)
{
    int longest = 0, n = 0;
    for (const rep_series *s = figure->series; s; s = s->next) {
        int length = 0;
        for (const char *at = s->name; *at; at++)
            length += (*at & 0xc0) != 0x80;
        longest = length > longest ? length : longest;
        n += s->points != NULL;
    }
    if (n == 1 && figure->kind != REP_SCATTER)
        return 0;
    longest = longest > MAX_NAME ? MAX_NAME : longest;
    int columns = WIDTH * 9 / 10 / (7 * longest + 36);
    return columns > 1 ? (n + columns - 1) / columns : n;
}

/* Sets ticks of a logarithmic axis that has too few powers of ten. */
static void put_log_tics(FILE *out, char axis, double from, double to)
{
    static const int steps[] = { 1, 2, 5 };
    const double decades = log10(to / from);
    const char *before = "";
    if (decades > 2.5)
        return;
    fprintf(out, "set %ctics (", axis);
    for (double unit = pow(10, floor(log10(from))); unit <= to; unit *= 10)
        for (int i = 0; i < 3; i++)
            if (steps[i] * unit >= from && steps[i] * unit <= to) {
                fprintf(out, "%s'%.10g' %.10g", before, steps[i] * unit, steps[i] * unit);
                before = ", ";
            }
    fputs(")\n", out);
}

static size_t longest_category(const rep_figure *figure)
{
    size_t longest = 0;
    for (int i = 0; i < figure->n_categories; i++)
        longest = strlen(figure->categories[i]) > longest ? strlen(figure->categories[i]) : longest;
    return longest;
}

/* Whether the names below upright bars are too long to stand side by side. */
static bool is_rotated(const rep_figure *figure)
{
    return (size_t)figure->n_categories * longest_category(figure) > 50;
}

/* A round number that divides range into about four. */
static double tic_step(double range)
{
    double unit = pow(10, floor(log10(range / 4)));
    double share = range / 4 / unit;
    return unit * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

/* Writes "a: b" as two lines. */
static void put_two_lines(FILE *out, const char *text)
{
    char first[60];
    const char *colon = strstr(text, ": ");
    snprintf(first, sizeof first, "%.*s", (int)(colon ? colon - text : 60), text);
    put_text(out, first, 30);
    if (!colon)
        return;
    fputs(".\"\\n\".", out);
    put_text(out, colon + 2, 30);
}

/* The style of the page decides on the grid of figures in it. */
static const char *grid_style(rep_format_kind format)
{
    return format == REP_INLINE_SVG ? "" : " lt 1 lw 0.6 lc rgb '#d8dee4'";
}

static void put_categories(FILE *out, const rep_figure *figure, const limits *l,
                           rep_format_kind format)
{
    const bool rows = figure->kind == REP_ROWS;
    const size_t longest = longest_category(figure);
    fprintf(out, "set %stics (", rows ? "y" : "x");
    for (int i = 0; i < figure->n_categories; i++) {
        fputs(i ? ", " : "", out);
        if (rows && longest > LONG_CATEGORY)
            put_two_lines(out, figure->categories[i]);
        else
            put_text(out, figure->categories[i], 24);
        fprintf(out, " %d", i);
    }
    fputs(")\n", out);
    if (!rows && is_rotated(figure))
        fputs("set xtics rotate by -30\n", out);
    fprintf(out, "set grid %stics%s\nset %stics scale 0\n", rows ? "x" : "y", grid_style(format),
            rows ? "y" : "x");
    if (rows)
        fprintf(out, "set xtics %.9g\nset xrange [%.9g:%.9g]\nset yrange [%d.5:-0.5]\n",
                tic_step(l->y1 - l->y0), l->y0, l->y1, figure->n_categories - 1);
    else
        fprintf(out, "set xrange [-0.5:%d.5]\nset yrange [%.9g:%.9g]\n", figure->n_categories - 1,
                l->y0, l->y1);
}

static bool has_whole_x(const rep_figure *figure)
{
    for (const rep_series *s = figure->series; s; s = s->next)
        for (const rep_point *p = s->points; p; p = p->next)
            if (p->x != floor(p->x))
                return false;
    return true;
}

static void put_terminal(FILE *out, const rep_figure *figure, rep_format_kind format)
{
    int height = HEIGHT;
    if (figure->kind == REP_ROWS)
        height = 80 + figure->n_categories * ((longest_category(figure) > LONG_CATEGORY ? 22 : 14) +
                                              16 * bar_series(figure));
    if (figure->kind == REP_BARS && is_rotated(figure))
        height += 60;
    height += 15 * legend_rows(figure);
    if (format != REP_INLINE_SVG)
        height += 40; /* the title and the stamp */
    /* Setting it again ends the document of the figure before. */
    fputs("unset output\nset output\nreset\n", out);
    if (format == REP_PNG)
        fprintf(out,
                "set terminal pngcairo size %d,%d noenhanced font 'sans,12' fontscale 1.6 "
                "linewidth 2 pointscale 2 background rgb 'white'\n",
                2 * WIDTH, 2 * height);
    else if (format == REP_PDF)
        fprintf(out,
                "set terminal pdfcairo size %.2fin,%.2fin noenhanced font 'sans,10' "
                "background rgb 'white'\n",
                WIDTH / 72.0, height / 72.0);
    else
        fprintf(out, "set terminal svg size %d,%d dynamic noenhanced font 'sans,12'%s\n", WIDTH,
                height, format == REP_SVG ? " background rgb 'white'" : "");
    if (format == REP_INLINE_SVG)
        return;
    fputs("set title ", out);
    put_text(out, figure->title, 64);
    fputs("\nset label 1000 ", out);
    put_text(out, figure->stamp ? figure->stamp : "", 90);
    fputs(" at screen 0.99,0.02 right font ',8' textcolor rgb '#767676'\nset bmargin 6\n", out);
}

void rep_gnuplot_figure(FILE *out, const rep_figure *figure, rep_format_kind format)
{
    bool log_y;
    const limits l = find_limits(figure, &log_y);
    const bool rows = figure->kind == REP_ROWS, bars = figure->kind == REP_BARS;
    put_terminal(out, figure, format);
    const int n_rows = legend_rows(figure);
    fprintf(out,
            "set border 3\nset tics nomirror out scale 0.6\nset key outside above center "
            "horizontal Left reverse maxrows %d samplen 1 width 1\n",
            n_rows > 1 ? n_rows : 1);
    char y_title[100];
    snprintf(y_title, sizeof y_title, "%s%s", figure->y_title, log_y ? ", log scale" : "");
    fprintf(out, "set %slabel ", rows ? "x" : "y");
    put_text(out, y_title, 60);
    fputc('\n', out);
    if (log_y)
        fprintf(out, "set logscale %s\n", rows ? "x" : "y");
    if (rows || bars) {
        put_categories(out, figure, &l, format);
        if (figure->label_bars && figure->n_points <= 40)
            put_labels(out, figure);
    } else {
        fprintf(out, "set grid%s\nset xlabel ", grid_style(format));
        put_text(out, figure->x_title, 60);
        fprintf(out, "\nset xrange [%.9g:%.9g]\nset yrange [%.9g:%.9g]\n", l.x0, l.x1, l.y0, l.y1);
        if (l.x1 - l.x0 < 10 && has_whole_x(figure))
            fputs("set xtics 1\n", out);
    }
    if (log_y)
        put_log_tics(out, rows ? 'x' : 'y', l.y0, l.y1);
    put_data(out, figure, &l);
    if (rows || bars)
        put_bars(out, figure);
    else
        put_scatter(out, figure);
}

static void put_section(FILE *out, const rep_section *section, rep_format_kind format)
{
    for (; section; section = section->next)
        for (const rep_figure *figure = section->figures; figure; figure = figure->next)
            if (figure->n_points > 0)
                rep_gnuplot_figure(out, figure, format);
}

/* Writes the commands for all figures. */
static gac_status write_script(const gac_report *report, rep_format_kind format, rep_text *script,
                               gac_error *err)
{
    FILE *stream = rep_text_open(script);
    if (stream) {
        fputs("set encoding utf8\n", stream);
        put_section(stream, report->overview, format);
        put_section(stream, report->sections, format);
        fputs("unset output\n", stream);
    }
    return rep_text_close(script, stream, err);
}

gac_status rep_gnuplot_run(gac_report *report, rep_format_kind format, char **out, size_t *n_bytes,
                           const char **hint, gac_error *err)
{
    rep_text script;
    gac_error why = GAC_ERROR_INIT;
    gac_child_output drawn = { 0 };
    char *argv[] = { (char[]){ "gnuplot" }, (char[]){ "-d" }, (char[]){ "/dev/stdin" }, NULL };
    gac_status status = write_script(report, format, &script, err);
    if (status == GAC_OK)
        status = gac_spawn_fed(argv, script.bytes, script.n_bytes, TIMEOUT_S, MAX_DRAWN_BYTES,
                               &drawn, &why);
    free(script.bytes);
    if (status != GAC_OK && drawn.exit_code == GAC_SPAWN_NOT_FOUND) {
        *hint = rep_printf(report, "%s (on Debian: apt-get install gnuplot-nox)", why.text);
        return GAC_OK;
    }
    if (status != GAC_OK)
        return why.text[0] ? gac_error_set(err, status, "%s", why.text) : status;
    if (drawn.exit_code == GAC_SPAWN_UNKNOWN) {
        free(drawn.text);
        return gac_error_set(err, GAC_FAILED, "gnuplot could not be started");
    }
    if (drawn.exit_code != 0) {
        *hint = rep_printf(report, "gnuplot failed: %s", drawn.last_line);
        free(drawn.text);
        return GAC_OK;
    }
    *out = drawn.text;
    *n_bytes = drawn.n_bytes;
    return GAC_OK;
}

const char *rep_next_document(const char *from, const char *end, rep_format_kind format,
                              size_t *n_bytes)
{
    static const char *const starts[] = { "<?xml ", "<?xml ", "\x89PNG\r\n\x1a\n", "%PDF-1." };
    const char *start = starts[format];
    const size_t n = strlen(start);
    if ((size_t)(end - from) < n)
        return NULL;
    const char *at = memmem(from, (size_t)(end - from), start, n);
    if (!at)
        return NULL;
    const char *next = memmem(at + n, (size_t)(end - at) - n, start, n);
    *n_bytes = (size_t)((next ? next : end) - at);
    return at;
}

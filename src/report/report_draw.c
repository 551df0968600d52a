/* Has gnuplot draw all figures, for the page or into files. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arguments.h"
#include "report/report_internal.h"

static rep_figure *first_figure(rep_section *section, rep_section **at)
{
    for (; section; section = section->next)
        for (rep_figure *figure = section->figures; figure; figure = figure->next)
            if (figure->n_points > 0) {
                *at = section;
                return figure;
            }
    return NULL;
}

/* Returns the figure after figure, which is in *at, or the first one if it is NULL. */
static rep_figure *next_figure(const gac_report *report, rep_figure *figure, rep_section **at)
{
    if (!figure) {
        figure = first_figure(report->overview, at);
        return figure ? figure : first_figure(report->sections, at);
    }
    for (figure = figure->next; figure; figure = figure->next)
        if (figure->n_points > 0)
            return figure;
    return first_figure(*at == report->overview ? report->sections : (*at)->next, at);
}

/* What is done with each document. */
typedef gac_status take_document(void *user, rep_figure *figure, const char *document,
                                 size_t n_bytes, gac_error *err);

/* Draws all figures in a format and hands the documents out. If gnuplot is missing or fails, *hint
 * says so and there are none. */
static gac_status draw(gac_report *report, rep_format_kind format, take_document *take, void *user,
                       const char **hint, gac_error *err)
{
    char *drawn = NULL;
    size_t n_drawn = 0, n = 0;
    rep_section *at = NULL;
    rep_figure *figure = next_figure(report, NULL, &at);
    if (!figure)
        return GAC_OK;
    gac_status status = rep_gnuplot_run(report, format, &drawn, &n_drawn, hint, err);
    if (status != GAC_OK || *hint)
        return status;
    const char *from = drawn, *end = drawn + n_drawn;
    for (; figure && status == GAC_OK; figure = next_figure(report, figure, &at), from += n) {
        from = rep_next_document(from, end, format, &n);
        if (!from) {
            status = gac_error_set(err, GAC_FAILED, "gnuplot drew fewer figures than it was asked");
            break;
        }
        status = take(user, figure, from, n, err);
    }
    free(drawn);
    return status;
}

static gac_status keep_svg(void *user, rep_figure *figure, const char *document, size_t n_bytes,
                           gac_error *err)
{
    rep_text svg;
    (void)user;
    gac_status status = rep_svg_rewrite(figure, document, n_bytes, REP_INLINE_SVG, &svg, err);
    if (status != GAC_OK)
        return status;
    free(figure->svg);
    figure->svg = svg.bytes;
    return GAC_OK;
}

gac_status gac_report_draw(gac_report *report, gac_error *err)
{
    GAC_REFUSE_NULL(err, report);
    rep_finish_overview(report);
    report->hint = NULL;
    gac_status status = draw(report, REP_INLINE_SVG, keep_svg, NULL, &report->hint, err);
    return report->lost ? gac_error_no_memory(err) : status;
}

const char *gac_report_hint(const gac_report *report)
{
    return report ? report->hint : NULL;
}

typedef struct destination {
    const char *folder;
    bool replace;
    rep_format_kind format;
} destination;

static gac_status write_file(const char *path, bool replace, const char *data, size_t n_bytes,
                             gac_error *err)
{
    gac_new_file *file;
    gac_status status = gac_new_file_create(path, replace, &file, err);
    if (status != GAC_OK)
        return status;
    status = gac_new_file_write(file, data, n_bytes, err);
    if (status == GAC_OK)
        return gac_new_file_commit(file, err);
    gac_new_file_discard(file);
    return status;
}

/* Results may have any name: keeps letters, digits and a few signs. */
static void name_file(char out[PATH_MAX], const destination *to, const rep_figure *figure)
{
    static const char *const ends[] = { "", "svg", "png", "pdf" };
    char name[100];
    size_t n = 0;
    for (const char *at = figure->name; *at && n + 1 < sizeof name; at++) {
        bool plain =
            (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9');
        if (plain || (n > 0 && name[n - 1] != '-'))
            name[n++] = plain ? *at : '-';
    }
    name[n] = 0;
    snprintf(out, PATH_MAX, "%s/%02d-%s.%s", to->folder, figure->number, name, ends[to->format]);
}

static gac_status keep_file(void *user, rep_figure *figure, const char *document, size_t n_bytes,
                            gac_error *err)
{
    const destination *to = user;
    char path[PATH_MAX];
    name_file(path, to, figure);
    if (to->format != REP_SVG)
        return write_file(path, to->replace, document, n_bytes, err);
    rep_text svg;
    gac_status status = rep_svg_rewrite(figure, document, n_bytes, REP_SVG, &svg, err);
    if (status != GAC_OK)
        return status;
    status = write_file(path, to->replace, svg.bytes, svg.n_bytes, err);
    free(svg.bytes);
    return status;
}

gac_status gac_report_write_figures(gac_report *report, const char *folder, bool replace,
                                    gac_error *err)
{
    GAC_REFUSE_NULL(err, report, folder);
    char q[256];
    destination to = { folder, replace, REP_SVG };
    if (strlen(folder) > PATH_MAX - 128)
        return gac_error_set(err, GAC_USAGE, "the path of the figures is too long");
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return gac_error_set(err, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, folder),
                             strerror(errno));
    int number = 0;
    rep_section *at = NULL;
    rep_finish_overview(report);
    for (rep_figure *f = next_figure(report, NULL, &at); f; f = next_figure(report, f, &at))
        f->number = ++number;
    gac_status status = GAC_OK;
    const char *hint = NULL;
    for (; to.format <= REP_PDF && status == GAC_OK && !hint; to.format++)
        status = draw(report, to.format, keep_file, &to, &hint, err);
    return status == GAC_OK && hint ? gac_error_set(err, GAC_NO_RESOURCE, "no figures: %s", hint)
                                    : status;
}

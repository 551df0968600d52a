/* report: one page from results.
 *
 * Reads result JSON that gac wrote and makes one HTML page of it: tables,
 * figures, and the numbers behind each figure. The page needs no other file, no
 * network and no script. gnuplot draws the figures. Where it is missing, the
 * page has the tables and says so.
 *
 * Results are untrusted: every value is checked, and every text is escaped. */
#ifndef GAC_REPORT_H
#define GAC_REPORT_H

#include <gac/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A page in the making. One thread uses it at a time. */
typedef struct gac_report gac_report;

/* title is the heading of the page. The caller frees *out. */
gac_status gac_report_create(const char *title, gac_report **out, gac_error *err);
void gac_report_free(gac_report *report); /* NULL is fine */

/* Adds a result of gac inspect, plan, plan --pareto, repair, verify, compress,
 * eval, experiment or a contract. Other documents are searched for such results
 * in them. name says where it is from and is shown. Errors: GAC_BAD_INPUT if
 * there is no such result or a value is wrong. The report is then of no more
 * use. result is only read during the call. */
gac_status gac_report_add(gac_report *report, const struct json_t *result, const char *name,
                          gac_error *err);
/* The same for a file of at most 64 MiB. */
gac_status gac_report_add_file(gac_report *report, const char *path, gac_error *err);

/* Draws all figures with gnuplot, for gac_report_html. Where gnuplot is missing or fails, the page
 * has a hint in the place of figures. */
gac_status gac_report_draw(gac_report *report, gac_error *err);
/* Why there are no figures, or NULL if they were drawn. It lives as long as report. */
const char *gac_report_hint(const gac_report *report);

/* Makes the page. *text is malloc'ed and ends with a NUL; the caller frees it. */
gac_status gac_report_html(const gac_report *report, char **text, size_t *n_bytes, gac_error *err);

/* Writes each figure into folder with gnuplot, as NAME.svg, NAME.png and NAME.pdf. The folder is
 * made if it is missing. Each file appears complete or not at all; existing ones are refused unless
 * replace. GAC_NO_RESOURCE without gnuplot. */
gac_status gac_report_write_figures(gac_report *report, const char *folder, bool replace,
                                    gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

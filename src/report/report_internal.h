/* The page before it is written: sections with facts, figures and tables. All
 * memory is the report's arena. Texts are plain; writers escape them. A failed
 * allocation is noted in `lost`, and what should have been added is dropped. */
#ifndef GAC_REPORT_INTERNAL_H
#define GAC_REPORT_INTERNAL_H

#include <gac/report.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/json_reader.h"

enum {
    REP_MAX_COLUMNS = 8,
    REP_MAX_ROWS = 2000,     /* of a table */
    REP_MAX_POINTS = 4000,   /* of a figure */
    REP_MAX_SERIES = 16,     /* of a figure */
    REP_MAX_CATEGORIES = 60, /* of bars */
    REP_MAX_RESULTS = 200,   /* of a page */
    REP_MAX_DIMS = 200000    /* of a model */
};

/* Colours of series; the page and gnuplot know them by number. */
typedef enum rep_colour {
    REP_BLUE,
    REP_VERMILLION,
    REP_GREEN,
    REP_ORANGE,
    REP_PURPLE,
    REP_SKY,
    REP_BROWN,
    REP_GREY,
    REP_INK,
    REP_N_COLOURS
} rep_colour;

typedef struct rep_fact {
    struct rep_fact *next;
    const char *name, *value;
} rep_fact;

typedef struct rep_row {
    struct rep_row *next;
    const char *cells[REP_MAX_COLUMNS];
    const char *link; /* the id of a section that the first cell leads to, or NULL */
} rep_row;

typedef struct rep_table {
    struct rep_table *next;
    const char *title;
    const char *columns[REP_MAX_COLUMNS];
    int n_columns;
    unsigned numeric; /* a bit for each column that is aligned to the right */
    unsigned marked;  /* a bit for each column whose words are coloured: verdicts */
    bool prose;       /* it has sentences: on a phone a row becomes a paragraph */
    rep_row *rows, *last;
    int64_t n_rows, n_left_out;
} rep_table;

typedef struct rep_point {
    struct rep_point *next;
    double x, y;                   /* x of bars: the number of the category */
    const char *note;              /* or NULL */
    const struct rep_series *over; /* of REP_OVER: the bars that it lies over */
} rep_point;

/* REP_OVER: marks over the bars of other series. Such a series is the figure's last one. */
typedef enum rep_draw { REP_DOTS, REP_LINES, REP_STEPS, REP_OVER } rep_draw;

typedef struct rep_series {
    struct rep_series *next;
    const char *name;
    rep_colour colour;
    rep_draw draw;
    int mark; /* shape of its points, from 0 */
    rep_point *points, *last;
} rep_series;

typedef enum rep_kind {
    REP_SCATTER,
    REP_BARS, /* upright: categories side by side, a bar for each series */
    REP_ROWS  /* lying: categories below each other */
} rep_kind;

typedef struct rep_figure {
    struct rep_figure *next;
    const char *name; /* of its files: letters, digits, - and . */
    const char *title, *caption, *x_title, *y_title;
    rep_kind kind;
    bool log_y, free_y; /* free_y: the axis need not begin at 0 */
    bool label_bars;
    const char *categories[REP_MAX_CATEGORIES];
    int n_categories;
    rep_series *series;
    int n_series, n_points, n_left_out;
    int number;                      /* of its files */
    const char *stamp;               /* machine, versions, date */
    const struct rep_figure *beside; /* a figure with the same axes, or NULL */
    char *svg;                       /* what gnuplot drew; malloc'ed, or NULL */
} rep_figure;

typedef struct rep_section {
    struct rep_section *next;
    const char *id, *title, *kind, *lead, *stamp, *source;
    rep_fact *facts;
    rep_figure *figures;
    rep_table *tables;
    rep_fact *notes; /* name is unused */
} rep_section;

/* A plan and a front, which are drawn together. */
typedef struct rep_plan {
    struct rep_plan *next;
    const char *name, *contract, *workload;
    double now_ms, overhead_pct, time_ms;
} rep_plan;

typedef struct rep_front {
    struct rep_front *next;
    const char *contract, *workload;
    rep_figure *figure;
} rep_front;

/* A perplexity and a time, for the overview. */
typedef struct rep_peer {
    struct rep_peer *next;
    const char *name, *text, *stamp;
    double n_params, perplexity;
} rep_peer;

typedef struct rep_speed {
    struct rep_speed *next;
    const char *name, *phase, *stamp;
    double ms;
    bool dense, gac; /* the compressor */
} rep_speed;

struct gac_report {
    gac_arena arena;
    bool lost;
    const char *title, *hint; /* hint: why there are no figures */
    rep_section *overview, *sections, *last;
    int n_results, n_figures;
    rep_table *experiments; /* of the overview */
    rep_peer *peers;
    rep_plan *plans;
    rep_front *fronts;
    rep_speed *speeds;
    bool finished; /* the overview has its figures */
};

/* Building (report_page.c).
 * Without memory these functions return NULL, or "" for texts, and note it in `lost`. All of them
 * take NULL in the place of what is built, and then do nothing. */

void *rep_alloc(gac_report *report, size_t n_bytes); /* zeroed */
const char *rep_printf(gac_report *report, const char *format, ...) GAC_PRINTF(2, 3);
/* "12.3" and the like, with about four digits; "-" for what is not finite. */
const char *rep_number(gac_report *report, double value);
/* "1,234,567" */
const char *rep_count(gac_report *report, double value);

rep_section *rep_section_add(gac_report *report, const char *kind, const char *title);
/* Leaves out what is NULL. */
void rep_fact_add(gac_report *report, rep_section *section, const char *name, const char *value);
void rep_note_add(gac_report *report, rep_section *section, const char *text);
/* columns: titles separated by |. A title that begins with # is of numbers, one with ! of words
 * that are coloured. */
rep_table *rep_table_add(gac_report *report, rep_section *section, const char *title,
                         const char *columns);
/* REP_ROW(report, table, first, second): a text for each column. */
rep_row *rep_row_add(gac_report *report, rep_table *table, int n, const char *const *cells);
#define REP_ROW(report, table, ...) \
    rep_row_add(report, table, (int)(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *)), \
                (const char *[]){ __VA_ARGS__ })
/* Adds a copy of figure, whose texts are borrowed. */
rep_figure *rep_figure_add(gac_report *report, rep_section *section, const rep_figure *figure);
/* Gives both figures the same axes. */
void rep_pair(rep_figure *a, rep_figure *b);
/* Returns the number of a category, which is added if it is new; -1 if there are too many. */
int rep_category(rep_figure *figure, const char *name);
/* Returns the series of this name, which is added if it is new. */
rep_series *rep_series_get(gac_report *report, rep_figure *figure, const char *name,
                           rep_colour colour, rep_draw draw);
/* Points that are not finite are left out. */
void rep_point_add(gac_report *report, rep_figure *figure, rep_series *series, double x, double y,
                   const char *note);
void rep_format(char buffer[40], double value);

/* Reading (report_read.c). */

/* A result in the making. */
typedef struct rep_reader {
    gac_report *report;
    gac_reader r;
    const json_t *root;
    const char *name; /* where the result is from */
    rep_section *section;
} rep_reader;

/* Values that may be missing or null: NULL, NAN. Values of another type are faults: false. Texts
 * are made printable, cut to 400 bytes, and live in the arena. */
bool rep_take_text(rep_reader *in, const json_t *object, const char *key, const char **out);
bool rep_take_number(rep_reader *in, const json_t *object, const char *key, double *out);
bool rep_take_flag(rep_reader *in, const json_t *object, const char *key, bool *out);
/* *out is NULL if there is none, which jansson takes for an empty array and an empty object. An
 * array of more than max entries is a fault. */
bool rep_take_array(rep_reader *in, const json_t *object, const char *key, size_t max,
                    const json_t **out);
bool rep_take_object(rep_reader *in, const json_t *object, const char *key, const json_t **out);
/* The same, but the value must be there. */
bool rep_need_text(rep_reader *in, const json_t *object, const char *key, const char **out);
bool rep_need_number(rep_reader *in, const json_t *object, const char *key, double *out);
bool rep_need_array(rep_reader *in, const json_t *object, const char *key, size_t max,
                    const json_t **out);
/* Returns entry i, which must be an object, or NULL after a fault. */
const json_t *rep_entry(rep_reader *in, const json_t *array, size_t i, const char *name);
/* Lists for people: "a,b" becomes "a, b". NULL for NULL. */
const char *rep_spaced(gac_report *report, const char *list);
/* The end of a path, for titles. */
const char *rep_last_part(gac_report *report, const char *path);
/* A name for people instead of NULL. */
const char *rep_or(const char *text, const char *otherwise);
/* Replaces the numbers in a name by *. */
const char *rep_pattern(rep_reader *in, const char *name);
/* Returns the first number in a name, or -1. */
int64_t rep_layer(const char *name);

/* Adds a size to a figure of sizes by layer, if name has a layer. state is its series. */
void rep_add_sizes(rep_reader *in, rep_figure *figure, const char *name, double size,
                   const char *state, rep_colour colour, const char *note);
/* Shows loads_in[], if there is one. */
bool rep_read_loads_in(rep_reader *in);
/* Adds a point to perplexity against parameters. */
void rep_add_peer(rep_reader *in, const char *name, double n_params, double perplexity,
                  const char *text);

/* Keep a copy. At the end, plans for the same model, GPU and workload are marked in the front's
 * figure. A plan and a front are of the same model if both state the same time without changes. */
void rep_add_plan(rep_reader *in, const rep_plan *plan);
void rep_add_front(rep_reader *in, const rep_front *front);

/* Adds an experiment to the overview: contradicted, weaker, stronger, reproduced, ambiguous. */
enum { REP_N_VERDICTS = 5 };
void rep_add_verdicts(rep_reader *in, const char *id, const char *stack, const char *verdict,
                      const double counts[REP_N_VERDICTS]);

/* One reader for each schema. */
typedef bool rep_read(rep_reader *in);
rep_read rep_read_inspect, rep_read_plan, rep_read_front, rep_read_repair, rep_read_verify,
    rep_read_compress, rep_read_eval, rep_read_experiment, rep_read_contract;

/* Ends the overview, once all results are in. */
void rep_finish_overview(gac_report *report);

/* Writing. */

/* A text in the making. */
typedef struct rep_text {
    char *bytes; /* malloc'ed; a NUL follows */
    size_t n_bytes, room;
} rep_text;

/* Returns a stream that writes to text, or NULL without memory. */
FILE *rep_text_open(rep_text *text);
/* Closes the stream, which may be NULL. The caller then owns text->bytes. After a failure there
 * are none. */
gac_status rep_text_close(rep_text *text, FILE *stream, gac_error *err);

/* What gnuplot makes. */
typedef enum rep_format_kind { REP_INLINE_SVG, REP_SVG, REP_PNG, REP_PDF } rep_format_kind;

/* Appends gnuplot's commands for one figure (report_gnuplot.c). */
void rep_gnuplot_figure(FILE *out, const rep_figure *figure, rep_format_kind format);
/* Draws all figures. *out is gnuplot's output, one document after the other; the caller frees it.
 * If gnuplot is missing or fails, there is none and *hint says why. */
gac_status rep_gnuplot_run(gac_report *report, rep_format_kind format, char **out, size_t *n_bytes,
                           const char **hint, gac_error *err);
/* Finds the next document in what gnuplot wrote. NULL after the last one. */
const char *rep_next_document(const char *from, const char *end, rep_format_kind format,
                              size_t *n_bytes);

/* Rewrites gnuplot's SVG: hover texts, and for REP_INLINE_SVG classes in the place of colours
 * (report_svg.c). The caller frees out->bytes. */
gac_status rep_svg_rewrite(const rep_figure *figure, const char *svg, size_t n_bytes,
                           rep_format_kind format, rep_text *out, gac_error *err);
void rep_write_escaped(FILE *out, const char *text);

/* The style of the page, bundled. */
struct gac_bundled_style {
    const char *name;
    const char *text;
    size_t n_bytes;
};
extern const struct gac_bundled_style gac_bundled_style[];
extern const int gac_n_bundled_style;

#endif

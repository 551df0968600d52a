#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report/report_internal.h"

void *rep_alloc(gac_report *report, size_t n_bytes)
{
    void *memory = gac_arena_alloc(&report->arena, n_bytes);
    report->lost = report->lost || !memory;
    return memory;
}

const char *rep_printf(gac_report *report, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *kept = gac_arena_strdup(&report->arena, text);
    report->lost = report->lost || !kept;
    return kept ? kept : "";
}

void rep_format(char buffer[40], double value)
{
    double size = fabs(value);
    if (!isfinite(value))
        snprintf(buffer, 40, "-");
    else if (size >= 1e7 || (size > 0 && size < 1e-4))
        snprintf(buffer, 40, "%.4g", value);
    else if (size >= 1000 || value == floor(value))
        snprintf(buffer, 40, "%.0f", value);
    else
        snprintf(buffer, 40, "%.*f", size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 5, value);
}

const char *rep_number(gac_report *report, double value)
{
    char text[40];
    rep_format(text, value);
    return rep_printf(report, "%s", text);
}

const char *rep_count(gac_report *report, double value)
{
    char digits[40], text[64];
    if (!isfinite(value) || fabs(value) > 1e15)
        return rep_number(report, value);
    int n = snprintf(digits, sizeof digits, "%.0f", value), used = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0 && digits[i - 1] != '-')
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
    return rep_printf(report, "%s", text);
}

rep_section *rep_section_add(gac_report *report, const char *kind, const char *title)
{
    rep_section *section = rep_alloc(report, sizeof *section);
    if (!section)
        return NULL;
    section->kind = kind;
    section->title = title;
    section->id = rep_printf(report, "result-%d", report->n_results);
    if (report->last)
        report->last->next = section;
    else
        report->sections = section;
    report->last = section;
    return section;
}

static void add_text(gac_report *report, rep_fact **list, const char *name, const char *value)
{
    rep_fact *fact = rep_alloc(report, sizeof *fact);
    if (!fact)
        return;
    *fact = (rep_fact){ NULL, name, value };
    while (*list)
        list = &(*list)->next;
    *list = fact;
}

void rep_fact_add(gac_report *report, rep_section *section, const char *name, const char *value)
{
    if (section && value)
        add_text(report, &section->facts, name, value);
}

void rep_note_add(gac_report *report, rep_section *section, const char *text)
{
    if (section && text)
        add_text(report, &section->notes, "", text);
}

rep_table *rep_table_add(gac_report *report, rep_section *section, const char *title,
                         const char *columns)
{
    rep_table *table = section ? rep_alloc(report, sizeof *table) : NULL;
    if (!table)
        return NULL;
    table->title = title;
    for (const char *at = columns; *at && table->n_columns < REP_MAX_COLUMNS; table->n_columns++) {
        int n = (int)strcspn(at, "|");
        bool numeric = *at == '#', marked = *at == '!';
        table->numeric |= (unsigned)numeric << table->n_columns;
        table->marked |= (unsigned)marked << table->n_columns;
        int skip = numeric || marked;
        table->columns[table->n_columns] = rep_printf(report, "%.*s", n - skip, at + skip);
        at += n + (at[n] == '|');
    }
    rep_table **list = &section->tables;
    while (*list)
        list = &(*list)->next;
    *list = table;
    return table;
}

rep_row *rep_row_add(gac_report *report, rep_table *table, int n, const char *const *cells)
{
    if (!table)
        return NULL;
    if (table->n_rows >= REP_MAX_ROWS) {
        table->n_left_out++;
        return NULL;
    }
    rep_row *row = rep_alloc(report, sizeof *row);
    if (!row)
        return NULL;
    for (int i = 0; i < n && i < table->n_columns; i++)
        row->cells[i] = cells[i];
    if (table->last)
        table->last->next = row;
    else
        table->rows = row;
    table->last = row;
    table->n_rows++;
    return row;
}

rep_figure *rep_figure_add(gac_report *report, rep_section *section, const rep_figure *figure)
{
    rep_figure *copy = section ? rep_alloc(report, sizeof *copy) : NULL;
    if (!copy)
        return NULL;
    *copy = *figure;
    copy->next = NULL;
    rep_figure **list = &section->figures;
    while (*list)
        list = &(*list)->next;
    *list = copy;
    report->n_figures++;
    return copy;
}

void rep_pair(rep_figure *a, rep_figure *b)
{
    if (!a || !b)
        return;
    a->beside = b;
    b->beside = a;
}

int rep_category(rep_figure *figure, const char *name)
{
    if (!figure)
        return -1;
    for (int i = 0; i < figure->n_categories; i++)
        if (strcmp(figure->categories[i], name) == 0)
            return i;
    if (figure->n_categories == REP_MAX_CATEGORIES)
        return -1;
    figure->categories[figure->n_categories] = name;
    return figure->n_categories++;
}

rep_series *rep_series_get(gac_report *report, rep_figure *figure, const char *name,
                           rep_colour colour, rep_draw draw)
{
    if (!figure)
        return NULL;
    rep_series **list = &figure->series;
    for (; *list; list = &(*list)->next)
        if (strcmp((*list)->name, name) == 0)
            return *list;
    rep_series *series =
        figure->n_series < REP_MAX_SERIES ? rep_alloc(report, sizeof *series) : NULL;
    if (!series)
        return NULL;
    *series = (rep_series){ .name = name, .colour = colour, .draw = draw };
    figure->n_series++;
    *list = series;
    return series;
}

void rep_point_add(gac_report *report, rep_figure *figure, rep_series *series, double x, double y,
                   const char *note)
{
    if (!figure || !isfinite(x) || !isfinite(y))
        return;
    if (!series || figure->n_points == REP_MAX_POINTS) {
        figure->n_left_out++;
        return;
    }
    rep_point *point = rep_alloc(report, sizeof *point);
    if (!point)
        return;
    *point = (rep_point){ .x = x, .y = y, .note = note };
    if (series->last)
        series->last->next = point;
    else
        series->points = point;
    series->last = point;
    figure->n_points++;
}

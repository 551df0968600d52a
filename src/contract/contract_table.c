#include "contract/contract_table.h"

#include "contract/contract_bulk.h"

#include <math.h>
#include <stdlib.h>

#define MAX_AXIS 4096
#define MAX_CELLS 200000

static bool read_axis(gac_reader *r, const json_t *value, const char *key, gac_table *out, int axis)
{
    json_t *list;
    if (!gac_reader_array(r, value, key, MAX_AXIS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".%s", key);
    int n = (int)json_array_size(list);
    if (n == 0)
        return gac_reader_fault(r, "must have an entry");
    double *sizes = calloc((size_t)n, sizeof *sizes);
    if (!sizes)
        return gac_reader_no_memory(r);
    out->log_size[axis] = sizes;
    out->n[axis] = n;
    for (int i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        int64_t size = json_integer_value(entry);
        bool ok = size >= 1 && size <= GAC_CONTRACT_MAX_SIZE;
        sizes[i] = ok ? log((double)size) : 0;
        if (ok && (i == 0 || sizes[i] > sizes[i - 1]))
            continue; /* the path is spelled out for faults only */
        gac_reader_enter(r, "[%d]", i);
        return gac_reader_to_size(r, entry, GAC_CONTRACT_MAX_SIZE, &size) &&
               gac_reader_fault(r, "must be larger than the entry before");
    }
    gac_reader_leave(r, at_list);
    return true;
}

/* Cells between neighbours along an axis. */
static int64_t stride(const gac_table *table, int axis)
{
    int64_t cells = 1;
    for (int a = axis + 1; a < GAC_TABLE_AXES; a++)
        cells *= table->n[a];
    return cells;
}

/* A cell without a time takes it from the one before it along the kind's axis, where it
 * has one; the first one cannot. */
static bool extend_cell(const gac_table_kind *kind, int64_t cell, gac_table *out)
{
    int axis = kind->extend_axis;
    if (axis < 0) {
        out->us[cell] = NAN;
        return true;
    }
    int64_t step = stride(out, axis), along = cell / step % out->n[axis];
    const double *at = out->log_size[axis];
    if (along == 0)
        return false;
    out->us[cell] = out->us[cell - step] * exp(kind->power[axis] * (at[along] - at[along - 1]));
    return true;
}

static bool is_time(double time_us)
{
    return time_us >= GAC_CONTRACT_MIN_TIME_US && time_us <= GAC_CONTRACT_MAX_TIME_US;
}

static bool take_times(gac_reader *r, const json_t *list, const gac_table_kind *kind,
                       int64_t n_cells, gac_table *out)
{
    size_t at_list = gac_reader_enter(r, ".us");
    if ((int64_t)json_array_size(list) != n_cells)
        return gac_reader_fault(r, "must have one entry for every combination of sizes");
    for (int64_t i = 0; i < n_cells; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        double time_us = json_number_value(entry);
        if (is_time(time_us)) {
            out->us[i] = time_us;
        } else if (!json_is_null(entry) || !extend_cell(kind, i, out)) {
            gac_reader_enter(r, "[%lld]", (long long)i);
            return gac_reader_to_number(r, entry, GAC_CONTRACT_MIN_TIME_US,
                                        GAC_CONTRACT_MAX_TIME_US, &time_us);
        }
    }
    gac_reader_leave(r, at_list);
    return true;
}

static bool scan_times(gac_scan scan, const gac_table_kind *kind, int64_t n_cells, gac_table *out)
{
    if (!gac_scan_numbers(scan, n_cells, out->us))
        return false;
    for (int64_t i = 0; i < n_cells; i++)
        if (!is_time(out->us[i]) && (!isnan(out->us[i]) || !extend_cell(kind, i, out)))
            return false;
    return true;
}

static bool read_times(gac_reader *r, const json_t *value, const gac_table_kind *kind,
                       gac_table *out)
{
    json_t *list;
    gac_scan scan;
    int64_t n_cells = (int64_t)out->n[0] * out->n[1] * out->n[2];
    if (n_cells > MAX_CELLS)
        return gac_reader_fault(r, "must have at most 200000 cells");
    if (!gac_reader_array(r, value, "us", (size_t)n_cells, &list))
        return false;
    out->us = malloc((size_t)n_cells * sizeof *out->us);
    if (!out->us)
        return gac_reader_no_memory(r);
    if (!r->beside)
        return take_times(r, list, kind, n_cells, out);
    return (gac_bulk_use(r->beside, list, &scan) && scan_times(scan, kind, n_cells, out)) ||
           gac_reader_fault_at(r, "us", "must be read from a tree");
}

bool gac_table_read(gac_reader *r, const json_t *value, const gac_table_kind *kind, gac_table *out)
{
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    for (int a = 0; a < GAC_TABLE_AXES; a++)
        if (!read_axis(r, value, kind->keys[a], out, a))
            return false;
    return read_times(r, value, kind, out);
}

void gac_table_dispose(gac_table *table)
{
    for (int a = 0; a < GAC_TABLE_AXES; a++)
        free(table->log_size[a]);
    free(table->us);
}

/* The cell that holds x, and how far into it x is, from 0 to 1. */
static int locate(const double *sizes, int n, double x, double *part)
{
    int low = 0, high = n - 1;
    *part = 0;
    if (x <= sizes[0] || n == 1)
        return 0;
    if (x >= sizes[n - 1]) {
        *part = 1;
        return n - 2;
    }
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (sizes[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    *part = (x - sizes[low]) / (sizes[high] - sizes[low]);
    return low;
}

/* Where an axis has a size; -1 where it has not. */
static int find(const gac_table *table, int axis, double size)
{
    double part, x = log(size);
    int at = locate(table->log_size[axis], table->n[axis], x, &part);
    at += part >= 1;
    return table->log_size[axis][at] == x ? at : -1;
}

bool gac_table_has(const gac_table *table, int axis, double size)
{
    return find(table, axis, size) >= 0;
}

const double *gac_table_cell(const gac_table *table, const double sizes[GAC_TABLE_AXES])
{
    int64_t cell = 0;
    for (int a = 0; a < GAC_TABLE_AXES; a++) {
        int at = find(table, a, sizes[a]);
        if (at < 0)
            return NULL;
        cell += at * stride(table, a);
    }
    return &table->us[cell];
}

/* Time at a cell and, along the last axis, at what follows it. */
static double log_between(const gac_table *table, const gac_table_kind *kind, int64_t cell,
                          double x, double part)
{
    const int last = GAC_TABLE_AXES - 1;
    double below = table->us[cell];
    if (part <= 0) /* what follows need not exist */
        return log(below);
    double above = table->us[cell + 1];
    if (!kind->is_straight)
        return (1 - part) * log(below) + part * log(above);
    int at = (int)(cell % table->n[last]);
    double from = exp(table->log_size[last][at]), to = exp(table->log_size[last][at + 1]);
    double above_part = fmin((exp(x) - from) / (to - from), 1);
    return log((1 - above_part) * below + above_part * above);
}

double gac_table_us(const gac_table *table, const gac_table_kind *kind,
                    const double sizes[GAC_TABLE_AXES])
{
    const int last = GAC_TABLE_AXES - 1;
    int64_t corner = 0, step[GAC_TABLE_AXES];
    double part[GAC_TABLE_AXES], beyond = 0;
    for (int a = 0; a < GAC_TABLE_AXES; a++) {
        double x = log(sizes[a]), end = table->log_size[a][table->n[a] - 1];
        step[a] = stride(table, a);
        corner += step[a] * locate(table->log_size[a], table->n[a], x, &part[a]);
        beyond += kind->power[a] * fmax(x - end, 0);
    }
    double log_us = 0;
    for (int c = 0; c < 1 << last; c++) {
        double weight = 1;
        int64_t cell = corner;
        for (int a = 0; a < last; a++) {
            bool upper = c >> a & 1;
            weight *= upper ? part[a] : 1 - part[a];
            cell += upper ? step[a] : 0;
        }
        if (weight > 0) /* an upper neighbour need not exist where it has no weight */
            log_us += weight * log_between(table, kind, cell, log(sizes[last]), part[last]);
    }
    return exp(log_us + beyond);
}

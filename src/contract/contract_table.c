#include "contract/contract_table.h"

#include <math.h>
#include <stdlib.h>

#define MAX_AXIS 128
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
        int64_t size;
        size_t before = gac_reader_enter(r, "[%d]", i);
        if (!gac_reader_to_size(r, json_array_get(list, (size_t)i), GAC_CONTRACT_MAX_SIZE, &size))
            return false;
        sizes[i] = log((double)size);
        if (i > 0 && sizes[i] <= sizes[i - 1])
            return gac_reader_fault(r, "must be larger than the entry before");
        gac_reader_leave(r, before);
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

static bool read_times(gac_reader *r, const json_t *value, const gac_table_kind *kind,
                       gac_table *out)
{
    json_t *list;
    int64_t n_cells = (int64_t)out->n[0] * out->n[1] * out->n[2];
    if (n_cells > MAX_CELLS)
        return gac_reader_fault(r, "must have at most 200000 cells");
    if (!gac_reader_array(r, value, "us", (size_t)n_cells, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".us");
    if ((int64_t)json_array_size(list) != n_cells)
        return gac_reader_fault(r, "must have one entry for every combination of sizes");
    out->log_us = calloc((size_t)n_cells, sizeof *out->log_us);
    if (!out->log_us)
        return gac_reader_no_memory(r);
    int axis = kind->extend_axis;
    int64_t step = stride(out, axis);
    for (int64_t i = 0; i < n_cells; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        int64_t along = i / step % out->n[axis];
        double time_us = json_number_value(entry);
        if (json_is_null(entry) && along > 0) {
            const double *at = out->log_size[axis];
            out->log_us[i] =
                out->log_us[i - step] + kind->power[axis] * (at[along] - at[along - 1]);
        } else if (time_us >= GAC_CONTRACT_MIN_TIME_US && time_us <= GAC_CONTRACT_MAX_TIME_US) {
            out->log_us[i] = log(time_us);
        } else { /* the path is spelled out only here: there are many cells */
            gac_reader_enter(r, "[%lld]", (long long)i);
            return gac_reader_to_number(r, entry, GAC_CONTRACT_MIN_TIME_US,
                                        GAC_CONTRACT_MAX_TIME_US, &time_us);
        }
    }
    gac_reader_leave(r, at_list);
    return true;
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
    free(table->log_us);
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

double gac_table_us(const gac_table *table, const gac_table_kind *kind,
                    const double sizes[GAC_TABLE_AXES])
{
    int64_t corner = 0, step[GAC_TABLE_AXES];
    double part[GAC_TABLE_AXES], beyond = 0;
    for (int a = 0; a < GAC_TABLE_AXES; a++) {
        double x = log(sizes[a]), last = table->log_size[a][table->n[a] - 1];
        step[a] = stride(table, a);
        corner += step[a] * locate(table->log_size[a], table->n[a], x, &part[a]);
        beyond += kind->power[a] * fmax(x - last, 0);
    }
    double log_us = 0;
    for (int c = 0; c < 1 << GAC_TABLE_AXES; c++) {
        double weight = 1;
        int64_t cell = corner;
        for (int a = 0; a < GAC_TABLE_AXES; a++) {
            bool upper = c >> a & 1;
            weight *= upper ? part[a] : 1 - part[a];
            cell += upper ? step[a] : 0;
        }
        if (weight > 0) /* an upper neighbour need not exist where it has no weight */
            log_us += weight * table->log_us[cell];
    }
    return exp(log_us + beyond);
}

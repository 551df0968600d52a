#include "contract/contract_table.h"

#include <math.h>

enum { LAST = 2 };

const gac_table_kind gac_grid_kind = { 0, { 1, 1, 1 }, false };
/* This table has few k, far apart. A kernel starts and ends once and steps
 * through k in between, so time is linear in k. */
const gac_table_kind gac_every_n_kind = { -1, { 1, 1, 1 }, true };
const gac_table_kind gac_prefill_kind = { 1, { 1, 2, 1 }, false };
const gac_table_kind gac_decode_kind = { 1, { 1, 1, 1 }, false };

/* Returns the index of the last size that is at most x, but never that of the
 * very last size. */
static size_t locate(const gac_contract_table *t, int axis, double x)
{
    const int64_t *sizes = t->sizes[axis];
    size_t low = 0, high = t->n_sizes[axis] - 1;
    while (high > low + 1) {
        size_t middle = low + (high - low) / 2;
        if ((double)sizes[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool gac_table_has(const gac_contract_table *table, int axis, int64_t size)
{
    const int64_t *sizes = table->sizes[axis];
    size_t at = locate(table, axis, (double)size);
    return sizes[at] == size || sizes[table->n_sizes[axis] - 1] == size;
}

/* Returns the time of a cell. A missing time is extended from smaller sizes. */
static double cell_us(const gac_contract_table *t, const gac_table_kind *kind, size_t cell)
{
    int axis = kind->extend_axis;
    double grown = 1;
    if (axis < 0 || !isnan(t->us[cell]))
        return t->us[cell];
    size_t step = axis == 0 ? t->n_sizes[1] * t->n_sizes[2] : t->n_sizes[2];
    for (; isnan(t->us[cell]);
         cell -= step) { /* contract_check.c ensures that the first one is there */
        const int64_t *size = &t->sizes[axis][cell / step % t->n_sizes[axis]];
        grown *= pow((double)size[0] / (double)size[-1], kind->power[axis]);
    }
    return t->us[cell] * grown;
}

/* Interpolates between a cell and the next one along the last axis. Returns the
 * logarithm of the time. */
static double log_between(const gac_contract_table *t, const gac_table_kind *kind, size_t cell,
                          double x, double part)
{
    double below = cell_us(t, kind, cell);
    if (part <= 0) /* the next cell may not exist */
        return log(below);
    double above = cell_us(t, kind, cell + 1);
    if (!kind->is_straight)
        return (1 - part) * log(below) + part * log(above);
    const int64_t *size = &t->sizes[LAST][cell % t->n_sizes[LAST]];
    double straight = fmin((x - (double)size[0]) / (double)(size[1] - size[0]), 1);
    return log((1 - straight) * below + straight * above);
}

double gac_table_us(const gac_contract_table *table, const gac_table_kind *kind,
                    const double sizes[3])
{
    const size_t step[] = { table->n_sizes[1] * table->n_sizes[2], table->n_sizes[2], 1 };
    size_t corner = 0;
    double part[3], beyond = 0, log_us = 0;
    for (int a = 0; a < 3; a++) {
        size_t n = table->n_sizes[a], at = locate(table, a, sizes[a]);
        const int64_t *low = &table->sizes[a][at];
        double x = log(sizes[a]), end = log((double)table->sizes[a][n - 1]);
        part[a] = n == 1 || x >= end ? n > 1 : 0;
        if (n > 1 && x < end && sizes[a] > (double)low[0])
            part[a] = (x - log((double)low[0])) / (log((double)low[1]) - log((double)low[0]));
        corner += step[a] * at;
        beyond += kind->power[a] * fmax(x - end, 0);
    }
    for (int c = 0; c < 1 << LAST; c++) {
        double weight = 1;
        size_t cell = corner;
        for (int a = 0; a < LAST; a++) {
            bool upper = c >> a & 1;
            weight *= upper ? part[a] : 1 - part[a];
            cell += upper ? step[a] : 0;
        }
        if (weight > 0) /* a neighbour without weight may not exist */
            log_us += weight * log_between(table, kind, cell, sizes[LAST], part[LAST]);
    }
    return exp(log_us + beyond);
}

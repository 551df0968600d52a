/* Taken off tables, put back on predictions. */
#include "contract/contract_wave.h"

#include "contract/contract_rules.h"

#include <math.h>

#define MAX_TILE 4096
#define MAX_UNITS 1e6 /* multiprocessors */

/* A size of an axis, whole again: or a tile too many would count where it is its multiple. */
static double size_at(const gac_table *t, int axis, int i)
{
    return round(exp(t->log_size[axis][i]));
}

/* Below its first size a table has the time of that, and so the waste. */
static double at_least_first(const gac_table *t, int axis, double size)
{
    return fmax(size, size_at(t, axis, 0));
}

static double lying_so(double tile_rows, double tile_columns, double units, double m, double n)
{
    double tiles = ceil(m / tile_rows) * ceil(n / tile_columns);
    double worked = tiles > units ? ceil(tiles / units) * units : tiles;
    return worked * fmin(m, tile_rows) * tile_columns / (m * n); /* cut down to the rows */
}

double gac_tile_waste(double tile_rows, double tile_columns, double units, double m, double n)
{
    return fmin(lying_so(tile_rows, tile_columns, units, m, n),
                lying_so(tile_columns, tile_rows, units, m, n));
}

double gac_length_waste(double tile, double units, double rows, double length)
{
    double tiles = rows * ceil(length / tile);
    return ceil(tiles / units) * units / tiles;
}

double gac_gemm_waste(const gac_gemm_times *times, double m, double n)
{
    const double few = 64; /* rows, for which tiles are others */
    if (times->power <= 0 || m <= few)
        return 1;
    return pow(gac_tile_waste(times->tile_rows, times->tile_columns, times->units,
                              at_least_first(&times->table, 0, m),
                              at_least_first(&times->table, 1, n)),
               times->power);
}

double gac_prefill_waste(const gac_prefill_times *times, double rows, double length)
{
    if (times->power <= 0)
        return 1;
    return pow(gac_length_waste(times->tile, times->units, at_least_first(&times->table, 0, rows),
                                at_least_first(&times->table, 1, length)),
               times->power);
}

/* tile has rows and columns, or is NULL. Without a wave nothing is changed. */
static bool read_wave(gac_reader *r, const json_t *value, double *tile[2], double *units,
                      double *power)
{
    json_t *wave;
    if (!json_object_get(value, "wave"))
        return true;
    if (!gac_reader_object(r, value, "wave", &wave))
        return false;
    size_t before = gac_reader_enter(r, ".wave");
    if ((tile && (!gac_reader_number(r, wave, "tile_rows", 1, MAX_TILE, tile[0]) ||
                  !gac_reader_number(r, wave, "tile_columns", 1, MAX_TILE, tile[1]))) ||
        !gac_reader_number(r, wave, "units", 1, MAX_UNITS, units) ||
        !gac_reader_number(r, wave, "power", 0, 1, power))
        return false;
    gac_reader_leave(r, before);
    return true;
}

static void take_off(gac_table *t, int i, int j, double waste)
{
    double *us = t->us + ((size_t)i * (size_t)t->n[1] + (size_t)j) * (size_t)t->n[2];
    for (int k = 0; k < t->n[2]; k++)
        us[k] /= waste;
}

bool gac_gemm_wave_read(gac_reader *r, const json_t *value, gac_gemm_times *out)
{
    gac_table *t = &out->table;
    double *tile[] = { &out->tile_rows, &out->tile_columns };
    if (!read_wave(r, value, tile, &out->units, &out->power))
        return false;
    for (int i = 0; i < t->n[0]; i++)
        for (int j = 0; j < t->n[1]; j++)
            take_off(t, i, j, gac_gemm_waste(out, size_at(t, 0, i), size_at(t, 1, j)));
    return true;
}

bool gac_prefill_wave_read(gac_reader *r, const json_t *value, gac_prefill_times *out)
{
    gac_table *t = &out->table;
    if (!read_wave(r, value, NULL, &out->units, &out->power))
        return false;
    for (int i = 0; i < t->n[0]; i++)
        for (int j = 0; j < t->n[1]; j++)
            take_off(t, i, j, gac_prefill_waste(out, size_at(t, 0, i), size_at(t, 1, j)));
    return true;
}

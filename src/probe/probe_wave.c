/* Which tiles explain a table's steps: its own lines, left out one by one, or points
 * between them are predicted from their neighbours with and without the waste of tiles. */
#include "contract/contract_wave.h"
#include "probe/probe_internal.h"

#include <math.h>

#define FEW_ROWS 64   /* for which tiles are others */
#define MIN_GAIN 0.95 /* of the error, to be believed */
#define MOST 0.25     /* what one cell may add: an outlier, not the rule */

static double waste(const probe_wave *w, double units, int64_t m, int64_t n)
{
    if (w->power <= 0)
        return 1;
    return pow(gac_tile_waste(w->tile_rows, w->tile_columns, units, (double)m, (double)n),
               w->power);
}

/* Logarithm of a cell's time without the waste; NaN where it was not measured. */
static double smooth(const probe_table *t, const probe_wave *w, double units, int i, int j, int k)
{
    size_t cell = ((size_t)i * (size_t)t->n_axis[1] + (size_t)j) * (size_t)t->n_axis[2] + (size_t)k;
    return log(t->time_us[cell] / waste(w, units, t->axis[0][i], t->axis[1][j]));
}

/* Squared error of the middle one of three, predicted from the outer two; NaN where one
 * was not measured. */
static double squared_error(const int64_t *at, double left, double middle, double right)
{
    double part = log((double)at[1] / (double)at[0]) / log((double)at[2] / (double)at[0]);
    double e = middle - (1 - part) * left - part * right;
    return isnan(e) ? NAN : fmin(e * e, MOST);
}

static double table_error(const probe_table *t, const probe_wave *w, double units)
{
    double sum = 0;
    int64_t n = 0;
    for (int i = 0; i < t->n_axis[0]; i++) {
        if (t->axis[0][i] <= FEW_ROWS)
            continue;
        for (int j = 0; j < t->n_axis[1]; j++)
            for (int k = 0; k < t->n_axis[2]; k++) {
                double here = smooth(t, w, units, i, j, k), e = NAN;
                if (i > 0 && i + 1 < t->n_axis[0] && t->axis[0][i - 1] > FEW_ROWS)
                    e = squared_error(&t->axis[0][i - 1], smooth(t, w, units, i - 1, j, k), here,
                                      smooth(t, w, units, i + 1, j, k));
                sum += isnan(e) ? 0 : e;
                n += !isnan(e);
                e = NAN;
                if (j > 0 && j + 1 < t->n_axis[1])
                    e = squared_error(&t->axis[1][j - 1], smooth(t, w, units, i, j - 1, k), here,
                                      smooth(t, w, units, i, j + 1, k));
                sum += isnan(e) ? 0 : e;
                n += !isnan(e);
            }
    }
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

probe_wave probe_find_wave(const probe_table *t, double units)
{
    static const int tiles[][2] = { { 64, 64 }, { 64, 128 }, { 128, 128 }, { 128, 256 } };
    probe_wave best = { 1, 1, 0 };
    double least = table_error(t, &best, units) * MIN_GAIN;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles && units >= 1; i++)
        for (double power = 0.25; power <= 1; power += 0.25) {
            probe_wave w = { tiles[i][0], tiles[i][1], power };
            double e = table_error(t, &w, units);
            if (e < least) {
                least = e;
                best = w;
            }
        }
    return best;
}

/* Squared error of a point, predicted from the lengths beside it; NaN where the table
 * has not its row and head, or neither length. */
static double point_error(const probe_table *t, double tile, double units, double power,
                          const probe_point *point)
{
    const gac_sdpa_shape *shape = &point->spec.sdpa.shape;
    int64_t rows = shape->batch * shape->n_q_heads;
    int at_row = 0, at_head = 0, high = 1;
    while (at_row < t->n_axis[0] && t->axis[0][at_row] != rows)
        at_row++;
    while (at_head < t->n_axis[2] && t->axis[2][at_head] != shape->qk_head)
        at_head++;
    while (high < t->n_axis[1] && t->axis[1][high] < shape->n_q)
        high++;
    if (point->outcome != PROBE_MEASURED || at_row == t->n_axis[0] || at_head == t->n_axis[2] ||
        high >= t->n_axis[1])
        return NAN;
    const int64_t at[] = { t->axis[1][high - 1], shape->n_q, t->axis[1][high] };
    size_t cell = ((size_t)at_row * (size_t)t->n_axis[1] + (size_t)high) * (size_t)t->n_axis[2] +
                  (size_t)at_head;
    const double time_us[] = { t->time_us[cell - (size_t)t->n_axis[2]], point->time_us,
                               t->time_us[cell] };
    double log_us[3];
    for (int i = 0; i < 3; i++)
        log_us[i] = log(time_us[i]) -
                    power * log(gac_length_waste(tile, units, (double)rows, (double)at[i]));
    return squared_error(at, log_us[0], log_us[1], log_us[2]);
}

double probe_find_prefill_wave(const probe_table *t, double tile, double units,
                               const probe_point *points, int n)
{
    double best = 0, least = INFINITY;
    for (double power = 0; power <= 1 && units >= 1; power += 0.25) {
        double sum = 0;
        int n_points = 0;
        for (int i = 0; i < n; i++) {
            double e = point_error(t, tile, units, power, &points[i]);
            sum += isnan(e) ? 0 : e;
            n_points += !isnan(e);
        }
        double error = n_points > 0 ? sqrt(sum / n_points) : 0;
        if (error < least * (best > 0 ? 1 : MIN_GAIN)) {
            least = error;
            best = power;
        }
    }
    return best;
}

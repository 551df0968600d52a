/* Draws a Pareto front with letters, for plan --pareto. */
#include "front_plot.h"

#include <stdio.h>
#include <string.h>

/* A character is a cell of 2 x 4 dots of Braille. */
enum { COLUMNS = 60, LINES = 12, DOTS_X = 2 * COLUMNS, DOTS_Y = 4 * LINES };

typedef unsigned char canvas[LINES][COLUMNS];

static void set_dot(canvas cells, int x, int y)
{
    /* The bit of each dot, by Unicode: rows from above, columns from the left. */
    static const unsigned char bits[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    if (x >= 0 && x < DOTS_X && y >= 0 && y < DOTS_Y)
        cells[y / 4][x / 2] |= bits[y % 4][x % 2];
}

/* The place of a value in a range, as the number of a dot. */
static int place(double value, double from, double to, int n_dots)
{
    return to > from ? (int)((value - from) / (to - from) * (n_dots - 1) + 0.5) : 0;
}

static void put_cell(unsigned char bits)
{
    /* U+2800 and up, in UTF-8 */
    const char text[4] = { '\xe2', (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 63)), 0 };
    fputs(bits ? text : " ", stdout);
}

void front_plot(const gac_front *front, double bytes)
{
    canvas cells = { 0 };
    const int64_t n = front->n_points;
    if (n < 2)
        return;
    const gac_front_point *all = front->points, *last = &all[n - 1];
    const double most = (double)last->cost, least_ms = last->value, most_ms = all[0].value;
    for (int64_t i = 0; i < n; i++) {
        /* From one point to the next the same plan is the best: a step. */
        int x = place((double)all[i].cost, 0, most, DOTS_X);
        int next = i + 1 < n ? place((double)all[i + 1].cost, 0, most, DOTS_X) : x;
        int y = place(most_ms - all[i].value, 0, most_ms - least_ms, DOTS_Y);
        for (; x <= next; x++)
            set_dot(cells, x, y);
    }
    printf("\npredicted ms\n");
    for (int line = 0; line < LINES; line++) {
        if (line == 0 || line == LINES - 1)
            printf("%12.4g ┤", line == 0 ? most_ms : least_ms);
        else
            printf("%12s │", "");
        int end = COLUMNS;
        while (end > 0 && !cells[line][end - 1])
            end--;
        for (int i = 0; i < end; i++)
            put_cell(cells[line][i]);
        fputc('\n', stdout);
    }
    printf("%12s └", "");
    for (int i = 0; i < COLUMNS; i++)
        fputs("─", stdout);
    printf("\n%14s%-*s%.3g %% more bytes\n", "", COLUMNS - 5, "0", 100 * most / bytes);
}

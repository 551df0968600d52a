/* Measures the tables of a dtype, cells of all of them mixed.
 *
 * One row of a table after the other, hard work would follow on hard work, the
 * card come to its power limit, and every point be measured at the clock that
 * those before it left. Mixed, easy work thins out the hard, and the clock stays
 * where it is. */
#include "probe/probe_internal.h"

#include "base/splitmix.h"

#include <math.h>
#include <stdlib.h>

#define PLAIN_ROWS 512 /* from here on time grows with the rows, */
#define FEWER_ROWS 4   /* of so many times fewer */
enum {
    N_ACTIVE = 64,   /* columns under way at a time */
    LEAST_LEVELS = 1 /* of n, that are measured whatever the time */
};

/* One n and k of a table: its rows are measured in turn, fewest first. */
typedef struct column {
    struct probe_gemm_table *table;
    int at[3];     /* m, which goes on; n, k */
    int level;     /* of the second: 0 the outermost sizes, 1 the middle, 2 those between, … */
    uint64_t turn; /* of the second, among those of a level */
    double last_us;
    int64_t last_m; /* 0: none measured yet */
} column;

static int level_of(int i, int n)
{
    int step = 1, level = 1;
    if (i == 0 || i == n - 1)
        return 0;
    while (step < n - 1)
        step *= 2;
    for (step /= 2; i % step != 0; step /= 2)
        level++;
    return level;
}

static int by_level(const void *a, const void *b)
{
    const column *x = a, *y = b;
    if (x->level != y->level)
        return x->level < y->level ? -1 : 1;
    if (x->turn != y->turn)
        return x->turn < y->turn ? -1 : 1;
    return x->at[2] - y->at[2];
}

/* Level by level and n by n, so that when the time is up a table is coarser, not
 * cut off, and what was measured is of use. */
static column *list_columns(probe_gemm *g, uint64_t *random, size_t *n_out)
{
    size_t n = 0, n_all = 0;
    for (int i = 0; i < g->n_tables; i++)
        n_all += (size_t)g->tables[i].table.n_axis[1] * (size_t)g->tables[i].table.n_axis[2];
    column *columns = calloc(n_all + 1, sizeof *columns);
    for (int i = 0; columns && i < g->n_tables; i++) {
        const probe_table *t = &g->tables[i].table;
        for (int second = 0; second < t->n_axis[1]; second++) {
            uint64_t turn = gac_splitmix64(random);
            for (int third = 0; third < t->n_axis[2]; third++)
                columns[n++] = (column){ .table = &g->tables[i],
                                         .at = { 0, second, third },
                                         .level = level_of(second, t->n_axis[1]),
                                         .turn = turn };
        }
    }
    if (columns)
        qsort(columns, n, sizeof *columns, by_level);
    *n_out = n;
    return columns;
}

/* Whether a point is worth its time, by the last one with fewer rows; one with far fewer
 * does not tell. */
static bool is_short(const column *c, int64_t m)
{
    double expected = c->last_us * (double)m / (double)c->last_m;
    bool tells = m >= PLAIN_ROWS && m <= FEWER_ROWS * c->last_m;
    return c->last_m == 0 ||
           (!(c->last_us > PROBE_MAX_POINT_US) && !(tells && expected > PROBE_MAX_POINT_US));
}

static gac_status measure_next(probe *p, const probe_gemm *g, column *c)
{
    const probe_table *t = &c->table->table;
    size_t cell =
        ((size_t)c->at[0] * (size_t)t->n_axis[1] + (size_t)c->at[1]) * (size_t)t->n_axis[2] +
        (size_t)c->at[2];
    gac_task_spec spec = probe_cell_spec(g, c->table, c->at);
    int64_t m = spec.gemm.m;
    probe_point point;
    c->at[0]++;
    if (probe_gemm_bytes(g->dtype, m, spec.gemm.n, spec.gemm.k) > probe_memory_limit(p))
        return GAC_OK;
    if (!is_short(c, m)) {
        c->last_us = INFINITY; /* nor is one with more */
        return GAC_OK;
    }
    gac_status status = probe_measure(p, &spec, &point);
    if (status != GAC_OK || point.outcome != PROBE_MEASURED)
        return status;
    t->time_us[cell] = c->last_us = point.time_us;
    c->last_m = m;
    return GAC_OK;
}

gac_status probe_gemm_fill(probe *p, probe_gemm *g, double end_s)
{
    column *active[N_ACTIVE];
    int n_active = 0;
    size_t n_columns = 0, next = 0, n_done = 0;
    uint64_t random = p->options->seed;
    gac_status status = GAC_OK;
    for (int i = 0; i < g->n_tables && status == GAC_OK; i++)
        status = probe_table_alloc(&g->tables[i].table, p->err);
    column *columns = status == GAC_OK ? list_columns(g, &random, &n_columns) : NULL;
    if (status == GAC_OK && !columns)
        status = gac_error_no_memory(p->err);
    while (status == GAC_OK && (next < n_columns || n_active > 0)) {
        if (n_active < N_ACTIVE && next < n_columns) {
            column *c = &columns[next++];
            if (c->level <= LEAST_LEVELS || gac_now_s() <= end_s)
                active[n_active++] = c;
            else
                c->table->table.n_late += c->table->table.n_axis[0];
            continue;
        }
        int at = (int)(gac_splitmix64(&random) % (uint64_t)n_active);
        status = measure_next(p, g, active[at]);
        probe_step(p, ++n_done);
        if (active[at]->at[0] == active[at]->table->table.n_axis[0])
            active[at] = active[--n_active];
    }
    free(columns);
    return status;
}

/* Measures the tables of a dtype, with the cells of all tables mixed.
 *
 * Row by row, hard work would follow hard work. The card would reach its power limit,
 * and each point would be measured at the clock that the points before it left. Mixed
 * with easy work, hard work leaves the clock where it is. */
#include "probe/probe_internal.h"

#include "base/splitmix.h"

#include <math.h>
#include <stdlib.h>

#define PLAIN_ROWS 512 /* from here on time grows in proportion to the rows, */
#define FEWER_ROWS 4   /* which predicts it from up to this many times fewer rows */
enum {
    N_ACTIVE = 64,   /* columns under way at a time */
    LEAST_LEVELS = 1 /* levels of n up to this are measured even if the time is up */
};

/* One n and k of a table. Its cells are measured by rising m. */
typedef struct column {
    probe_gemm_table *table;
    int m, n, k;   /* indices on the axes; m is the next to measure */
    int level;     /* of n: 0 the outermost sizes, 1 the middle, 2 those between, … */
    uint64_t turn; /* of n, within its level */
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
    return x->k - y->k;
}

/* Columns in the order in which they begin: by level of n, then by n. So when the time is
 * up, each table lacks some n and nothing else. */
static column *list_columns(probe *p, probe_gemm *g, uint64_t *random, size_t *n_out)
{
    size_t n_all = 0;
    *n_out = 0;
    for (int i = 0; i < g->n_tables; i++)
        n_all += (size_t)g->tables[i].table.n_axis[1] * (size_t)g->tables[i].table.n_axis[2];
    column *columns = probe_alloc(p, n_all, sizeof *columns);
    if (!columns)
        return NULL;
    for (int i = 0; i < g->n_tables; i++) {
        const probe_table *t = &g->tables[i].table;
        for (int n = 0; n < t->n_axis[1]; n++) {
            uint64_t turn = gac_splitmix64(random);
            for (int k = 0; k < t->n_axis[2]; k++)
                columns[(*n_out)++] = (column){ .table = &g->tables[i],
                                                .n = n,
                                                .k = k,
                                                .level = level_of(n, t->n_axis[1]),
                                                .turn = turn };
        }
    }
    qsort(columns, n_all, sizeof *columns, by_level);
    return columns;
}

/* Whether a call is short enough for a table, judged by the last one with fewer rows. */
static bool is_short(const column *c, int64_t m)
{
    double expected_us = c->last_us * (double)m / (double)c->last_m;
    bool predicted = m >= PLAIN_ROWS && m <= FEWER_ROWS * c->last_m;
    return c->last_m == 0 ||
           (!(c->last_us > PROBE_MAX_POINT_US) && !(predicted && expected_us > PROBE_MAX_POINT_US));
}

static gac_status measure_next(probe *p, const probe_gemm *g, column *c)
{
    const probe_table *t = &c->table->table;
    int64_t m = t->axis[0][c->m], n = t->axis[1][c->n], k = t->axis[2][c->k];
    double n_numbers = (double)m * (double)k + (double)n * (double)k + (double)m * (double)n;
    size_t row = (size_t)c->m++ * (size_t)t->n_axis[1] + (size_t)c->n;
    size_t cell = row * (size_t)t->n_axis[2] + (size_t)c->k;
    probe_point point;
    if (n_numbers * gac_dtype_bits(g->dtype) / 8 > probe_memory_limit(p))
        return GAC_OK;
    if (!is_short(c, m)) {
        c->last_us = INFINITY; /* calls with more rows are not short either */
        return GAC_OK;
    }
    gac_task_spec spec = probe_gemm_spec(g->dtype, m, n, k);
    gac_status status = probe_measure(p, &spec, &point);
    if (status != GAC_OK || point.outcome != PROBE_MEASURED)
        return status;
    t->time_us[cell] = gac_four_digits(point.time_us);
    c->last_us = point.time_us;
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
        status = probe_table_alloc(p, &g->tables[i].table);
    column *columns = status == GAC_OK ? list_columns(p, g, &random, &n_columns) : NULL;
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
        if (active[at]->m == active[at]->table->table.n_axis[0])
            active[at] = active[--n_active];
    }
    return status;
}

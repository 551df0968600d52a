/* Predicts the time of one GEMM. */
#include "contract/contract_internal.h"
#include "contract/contract_table.h"

#include <math.h>
#include <stdlib.h>

#define US_PER_S 1e6
#define DECODE_ROWS 256
#define LINE_BYTES 128 /* size of a cache line */

/* Predicts the time of y = x W^T in one tier, with x (m, k), W (n, k) and y (m,
 * n).
 *
 * A GEMM multiplies (2mnk flops) while it streams its weights (nk elements).
 * Moving x and y, the edges (m(n + k) elements), is not hidden: at 8192 x 8192
 * x 107, writing y takes most of the time. The tier's overlap is the share of
 * the shorter of multiplying and streaming that is hidden behind the longer. It
 * is nearly 1 in the asynchronous sm90 kernels and 0 in the align1 kernels,
 * whose decode therefore gets slower with every row. One row is a GEMV, a
 * different kernel with its own bandwidth. All rates are fitted to measured
 * points (tools/contract). */
static double tier_us(const gac_contract_rates *rates, double element_bytes, double m, double n,
                      double k)
{
    double weight_bytes = n * k * element_bytes;
    if (m <= 1 && !isnan(rates->gemv_bytes_per_s))
        return rates->gemv_overhead_us + weight_bytes / rates->gemv_bytes_per_s * US_PER_S;
    double compute_us = 2 * m * n * k / rates->flops_per_s * US_PER_S;
    double weights_us = weight_bytes / rates->bytes_per_s * US_PER_S;
    double edges_us = m * (n + k) * element_bytes / rates->edge_bytes_per_s * US_PER_S;
    double hidden_us = rates->overlap * fmin(compute_us, weights_us);
    return rates->overhead_us + compute_us + weights_us - hidden_us + edges_us;
}

static int order_i64(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

int gac_contract_point_order(const void *a, const void *b)
{
    const gac_contract_point *p = a, *q = b;
    const int64_t left[] = { p->dtype, p->m, p->n, p->k };
    const int64_t right[] = { q->dtype, q->m, q->n, q->k };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i])
            return order_i64(left[i], right[i]);
    return 0;
}

const gac_contract_point *gac_contract_find_point(const gac_contract *contract, gac_dtype dtype,
                                                  int64_t m, int64_t n, int64_t k)
{
    gac_contract_point key = { .m = m, .n = n, .k = k };
    if (contract->n_points == 0 || !gac_contract_dtype(contract, dtype, &key.dtype))
        return NULL;
    return bsearch(&key, contract->points, contract->n_points, sizeof key,
                   gac_contract_point_order);
}

/* Returns the every-n table that has this m and n, or NULL. */
static const gac_contract_table *find_every_n(const gac_contract_gemm *g, int64_t m, int64_t n)
{
    for (size_t i = 0; i < g->n_every_n; i++)
        if (gac_table_has(&g->every_n[i], 0, m) && gac_table_has(&g->every_n[i], 1, n))
            return &g->every_n[i];
    return NULL;
}

/* Returns the grid of a pair of tiers: the one for one row alone, or the one
 * for any number of rows. */
static const gac_contract_table *find_grid(const gac_contract_gemm *g, int tier_n, int tier_k,
                                           bool one_row)
{
    for (size_t i = 0; i < g->n_grid; i++) {
        const gac_contract_table *t = &g->grid[i];
        if (t->n_multiple == g->n[tier_n].multiple && t->k_multiple == g->k[tier_k].multiple &&
            (t->n_sizes[0] == 1 && t->sizes[0][0] == 1) == one_row)
            return t;
    }
    return NULL;
}

/* Predicts by an every-n table, and by the grid outside the table's k. Below
 * its first k, the table keeps its ratio to the grid. With few rows that ratio
 * fades towards 1: kernels split a long k among multiprocessors, but not a
 * short one. Above its last k, the table keeps its difference to the grid,
 * because the cost of an n at the edges of tiles does not grow with k. The
 * result is at least half of the grid's, whatever the file states. */
static double every_n_us(const gac_contract_table *every_n, const gac_contract_table *grid,
                         const double sizes[3])
{
    double first = (double)every_n->sizes[2][0];
    double last = (double)every_n->sizes[2][every_n->n_sizes[2] - 1];
    double k = fmin(fmax(sizes[2], first), last);
    const double inside[] = { sizes[0], sizes[1], k };
    double us = gac_table_us(every_n, &gac_every_n_kind, inside);
    double here = gac_table_us(grid, &gac_grid_kind, sizes);
    if (k == sizes[2])
        return us;
    double there = gac_table_us(grid, &gac_grid_kind, inside);
    if (sizes[2] > last)
        return fmax(here + us - there, here / 2);
    return here * pow(us / there, sizes[0] < DECODE_ROWS ? sizes[2] / k : 1);
}

/* Predicts by the tables. A pair of tiers without its own grid uses the grid of
 * the next better k. */
static double grid_us(const gac_contract_gemm *g, int tier_n, int tier_k, int64_t m, int64_t n,
                      double k)
{
    const double sizes[] = { (double)m, (double)n, k };
    const gac_contract_table *grid = NULL, *every_n = NULL;
    int at = tier_k;
    for (; m == 1 && at >= 0 && !grid; at--)
        grid = find_grid(g, tier_n, at, true);
    if (!grid)
        for (at = tier_k; at >= 0 && !grid; at--)
            grid = find_grid(g, tier_n, at, false);
    if (tier_n == 0 && at < 0) /* the best pair */
        every_n = find_every_n(g, m, n);
    double us = every_n ? every_n_us(every_n, grid, sizes) : NAN;
    return isnan(us) ? gac_table_us(grid, &gac_grid_kind, sizes) : us;
}

/* Chooses the tier of k for an n outside the best tier. Kernels for an n that is
 * a multiple of 2 also load k in pairs. A better k makes them faster only if
 * its rows start at cache lines, as in the table of that k, whose sizes are
 * powers of two. Otherwise they take as long as with a k that is a multiple of
 * 2. */
static int narrow_k(const gac_contract_gemm *g, double element_bytes, int tier_n, int tier_k,
                    int64_t k)
{
    int64_t multiple = g->n[tier_n].multiple;
    if (tier_n == 0 || multiple == 1 || fmod((double)k * element_bytes, LINE_BYTES) == 0)
        return tier_k;
    for (int t = tier_k + 1; t < (int)g->n_k; t++)
        if (g->k[t].multiple == multiple && g->k[t].served)
            return t;
    return tier_k;
}

/* Returns the cost of a k that does not fill whole cache lines. NULL if it
 * does, or if its cost is unknown. */
static const gac_contract_cost *find_cost(const gac_contract_cacheline *lines, int64_t k)
{
    if (!lines || k % lines->multiple == 0)
        return NULL;
    for (size_t i = 0; i < lines->n_costs; i++)
        if (k % lines->costs[i].multiple == 0)
            return &lines->costs[i];
    return NULL;
}

static double tables_us(const gac_contract_gemm *g, double element_bytes, int tier_n, int tier_k,
                        const int64_t sizes[3])
{
    int64_t m = sizes[0], n = sizes[1], k = sizes[2], whole;
    const gac_contract_cost *cost = g->n[tier_n].aligned ? find_cost(g->k_cacheline, k) : NULL;
    tier_k = narrow_k(g, element_bytes, tier_n, tier_k, k);
    if (!cost || !gac_round_up_i64(k, g->k_cacheline->multiple, &whole))
        return grid_us(g, tier_n, tier_k, m, n, (double)k);
    /* Kernels work on whole cache lines: a part of a line takes at least as
     * long as a whole one. */
    return grid_us(g, tier_n, tier_k, m, n, (double)whole) * cost->factor;
}

double gac_contract_gemm_us(const gac_contract *contract, gac_dtype dtype, int64_t m, int64_t n,
                            int64_t k)
{
    const gac_contract_gemm *g = gac_contract_gemm_rules(contract, dtype);
    gac_dtype served;
    if (!g || !gac_contract_dtype(contract, dtype, &served))
        return NAN;
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    const gac_contract_point *point = gac_contract_find_point(contract, dtype, m, n, k);
    if (point)
        return point->time_us;
    int tier_n = gac_tiers_pick(g->n, n), tier_k = gac_tiers_pick(g->k, k);
    if (!g->n[tier_n].served || !g->k[tier_k].served)
        return gac_contract_gemm_us(contract, g->falls_back_to, m, n, k);
    double element_bytes = gac_dtype_bits(served) / 8.0;
    if (g->n_grid > 0)
        return tables_us(g, element_bytes, tier_n, tier_k, (const int64_t[]){ m, n, k });
    /* One kernel serves both sizes, and the worse of them decides which. */
    double by_n = tier_us(&g->n[tier_n].rates, element_bytes, (double)m, (double)n, (double)k);
    double by_k = tier_us(&g->k[tier_k].rates, element_bytes, (double)m, (double)n, (double)k);
    return isnan(by_n) ? NAN : fmax(by_n, by_k);
}

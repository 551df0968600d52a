/* Checks the fields of a contract against each other. */
#include "contract/contract_internal.h"
#include "contract/contract_schema.h"

#include <math.h>

static bool check_tiers(gac_reader *r, const char *key, const gac_contract_tier *tiers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const gac_contract_tier *tier = &tiers[i], *better = i > 0 ? tier - 1 : NULL;
        size_t before = gac_reader_enter(r, ".%s[%zu]", key, i);
        if (better && tier->multiple >= better->multiple)
            return gac_reader_fault_at(r, "multiple", "must be less than that of the tier before");
        if (!better && (!tier->aligned || !tier->served))
            return gac_reader_fault_at(r, "aligned", "must be true in the first tier, and served");
        if (better && tier->aligned && !better->aligned)
            return gac_reader_fault_at(r, "aligned",
                                       "must not be true after a tier where it is false");
        gac_reader_leave(r, before);
    }
    if (n == 0 || tiers[n - 1].multiple != 1)
        return gac_reader_fault_at(r, key, "must end with a tier whose multiple is 1");
    return true;
}

/* Checks that the table has one time per combination of sizes. Missing times
 * are extended from smaller sizes, so the first one along extend_axis must be
 * there: axis 0 (m) of a GEMM, axis 1 (length) of attention. */
static bool check_table(gac_reader *r, const gac_contract_table *t, int extend_axis)
{
    size_t n_cells = t->n_sizes[0] * t->n_sizes[1] * t->n_sizes[2], step = 1;
    if (t->n_us != n_cells)
        return gac_reader_fault_at(r, "us", "must have one entry for every combination of sizes");
    if (extend_axis < 0)
        return true;
    for (int a = extend_axis + 1; a < 3; a++)
        step *= t->n_sizes[a];
    for (size_t i = 0; i < n_cells; i++)
        if (isnan(t->us[i]) && i / step % t->n_sizes[extend_axis] == 0) {
            gac_reader_enter(r, ".us[%zu]", i);
            return gac_reader_fault(r, "must be a number");
        }
    return true;
}

static const gac_contract_tier *find_tier(const gac_contract_tier *tiers, size_t n,
                                          int64_t multiple)
{
    for (size_t i = 0; i < n; i++)
        if (tiers[i].multiple == multiple)
            return &tiers[i];
    return NULL;
}

static bool is_row(const gac_contract_table *t)
{
    return t->n_sizes[0] == 1 && t->sizes[0][0] == 1;
}

static bool check_grid(gac_reader *r, const gac_contract_gemm *g)
{
    bool best[GAC_MAX_TIERS] = { false };
    for (size_t i = 0; i < g->n_grid; i++) {
        const gac_contract_table *t = &g->grid[i];
        const gac_contract_tier *n = find_tier(g->n, g->n_n, t->n_multiple);
        const gac_contract_tier *k = find_tier(g->k, g->n_k, t->k_multiple);
        size_t before = gac_reader_enter(r, ".grid[%zu]", i);
        if (!n || !k || !n->served || !k->served)
            return gac_reader_fault(r, "must be of tiers that are listed and served");
        for (size_t j = 0; j < i; j++)
            if (g->grid[j].n_multiple == t->n_multiple && g->grid[j].k_multiple == t->k_multiple &&
                is_row(&g->grid[j]) == is_row(t))
                return gac_reader_fault(r, "must not be of the same tiers as another table");
        if (!check_table(r, t, 0))
            return false;
        best[n - g->n] = best[n - g->n] || (k == g->k && !is_row(t));
        gac_reader_leave(r, before);
    }
    for (size_t i = 0; i < g->n_n && g->n_grid > 0; i++)
        if (g->n[i].served && !best[i])
            return gac_reader_fault_at(r, "grid",
                                       "must have a table of the best k for every served n");
    for (size_t i = 0; i < g->n_every_n; i++) {
        const gac_contract_table *t = &g->every_n[i];
        size_t before = gac_reader_enter(r, ".every_n[%zu]", i);
        if (t->n_multiple != g->n[0].multiple || t->k_multiple != g->k[0].multiple ||
            g->n_grid == 0)
            return gac_reader_fault(r, "must be of the first tiers of n and k, beside a grid");
        if (!check_table(r, t, -1))
            return false;
        gac_reader_leave(r, before);
    }
    return true;
}

static bool has_rates(const gac_contract_rates *r)
{
    return !isnan(r->flops_per_s) && !isnan(r->bytes_per_s) && !isnan(r->edge_bytes_per_s) &&
           !isnan(r->overhead_us) && !isnan(r->overlap) &&
           isnan(r->gemv_bytes_per_s) == isnan(r->gemv_overhead_us);
}

/* Checks that all tiers state their rates, or none. */
static bool check_rates(gac_reader *r, const char *key, const gac_contract_tier *tiers, size_t n,
                        bool stated)
{
    for (size_t i = 0; i < n; i++)
        if (stated ? !has_rates(&tiers[i].rates) : !isnan(tiers[i].rates.flops_per_s)) {
            gac_reader_enter(r, ".%s[%zu]", key, i);
            return gac_reader_fault(r, "must state all rates, as every tier or none");
        }
    return true;
}

static bool check_cacheline(gac_reader *r, const gac_contract_cacheline *c)
{
    int64_t before = c->multiple;
    for (size_t i = 0; i < c->n_costs; i++) {
        if (c->costs[i].multiple == before || before % c->costs[i].multiple != 0) {
            gac_reader_enter(r, ".k_cacheline.costs[%zu].multiple", i);
            return gac_reader_fault(r, "must be less than the entry before, and divide it");
        }
        before = c->costs[i].multiple;
    }
    return true;
}

static bool all_served(const gac_contract_gemm *g)
{
    return g->n[g->n_n - 1].served && g->k[g->n_k - 1].served;
}

static bool check_served(gac_reader *r, const char *key, const gac_contract_tier *tiers, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (tiers[i].served && !tiers[i - 1].served)
            return gac_reader_fault_at(r, key, "must not serve a tier after one it does not");
    return true;
}

static bool check_gemm(gac_reader *r, const gac_contract *c, gac_dtype dtype)
{
    const gac_contract_gemm *g = c->gemm[dtype];
    size_t before = gac_reader_enter(r, ".gemm.%s", gac_dtype_name(dtype));
    if (!g)
        return gac_reader_fault(r, "must be an object");
    if (!check_tiers(r, "n", g->n, g->n_n) || !check_tiers(r, "k", g->k, g->n_k) ||
        !check_served(r, "n", g->n, g->n_n) || !check_served(r, "k", g->k, g->n_k) ||
        !check_grid(r, g) || (g->k_cacheline && !check_cacheline(r, g->k_cacheline)))
        return false;
    bool by_rates = g->n_grid == 0 && !isnan(g->n[0].rates.flops_per_s);
    if (g->n_grid == 0 && (!check_rates(r, "n", g->n, g->n_n, by_rates) ||
                           !check_rates(r, "k", g->k, g->n_k, by_rates)))
        return false;
    if (!all_served(g)) {
        if (g->falls_back_to == GAC_DTYPE_COUNT)
            return gac_reader_fault_at(r, "falls_back_to",
                                       "must be a dtype where a tier is not served");
        const gac_contract_gemm *other = c->gemm[g->falls_back_to];
        if (!other || other->n_n == 0 || other->n_k == 0 || !all_served(other))
            return gac_reader_fault_at(r, "falls_back_to", "must be a dtype that is served whole");
    }
    gac_reader_leave(r, before);
    return true;
}

static bool check_heads(gac_reader *r, const char *key, const gac_contract_head *heads, size_t n,
                        int64_t max_head)
{
    if (n == 0)
        return gac_reader_fault_at(r, key, "must have an entry");
    for (size_t i = 0; i < n; i++) {
        size_t before = gac_reader_enter(r, ".%s[%zu]", key, i);
        if (i > 0 && heads[i].head <= heads[i - 1].head)
            return gac_reader_fault(r, "must have a larger head size than the entry before");
        gac_reader_leave(r, before);
    }
    return heads[n - 1].head <= max_head ||
           gac_reader_fault_at(r, key, "has a head size above max_head");
}

static bool check_head_tables(gac_reader *r, const gac_contract_tier *tier, bool has_tables)
{
    if ((tier->n_prefill > 0) != has_tables)
        return gac_reader_fault_at(r, "prefill", "must be in every tier or in none");
    if (!has_tables)
        return true;
    if (tier->n_prefill != 2 || tier->prefill[0].causal == tier->prefill[1].causal)
        return gac_reader_fault_at(r, "prefill", "must be one causal and one not");
    if (!tier->decode)
        return gac_reader_fault_at(r, "decode", "must be an object");
    for (size_t i = 0; i < 3; i++) {
        size_t before =
            i < 2 ? gac_reader_enter(r, ".prefill[%zu]", i) : gac_reader_enter(r, ".decode");
        if (!check_table(r, i < 2 ? &tier->prefill[i] : tier->decode, 1))
            return false;
        gac_reader_leave(r, before);
    }
    return true;
}

/* Checks that the curve has a point of every tier, and that the other fields of
 * the time model are there. */
static bool check_curve(gac_reader *r, const gac_contract_sdpa *s)
{
    bool has_point[GAC_MAX_TIERS] = { false };
    if (!check_heads(r, "points", s->points, s->n_points, s->max_head))
        return false;
    for (size_t i = 0; i < s->n_points; i++)
        has_point[gac_tiers_pick(s->tiers, s->points[i].head)] = true;
    for (size_t i = 0; i < s->n_tiers; i++)
        if (!has_point[i])
            return gac_reader_fault_at(r, "points", "must have an entry of every tier");
    if (!s->reference || !s->decode || !s->beyond)
        return gac_reader_fault_at(r,
                                   !s->reference ? "reference"
                                   : !s->decode  ? "decode"
                                                 : "beyond",
                                   "must be an object");
    gac_reader_enter(r, ".beyond");
    return check_heads(r, "points", s->beyond->points, s->beyond->n_points, INT64_MAX);
}

static bool check_sdpa(gac_reader *r, const gac_contract *c, gac_dtype dtype)
{
    const gac_contract_sdpa *s = c->sdpa[dtype];
    size_t before = gac_reader_enter(r, ".sdpa.%s", gac_dtype_name(dtype));
    if (!s)
        return gac_reader_fault(r, "must be an object");
    if (s->same_as != GAC_DTYPE_COUNT) {
        if (!c->sdpa[s->same_as] || c->sdpa[s->same_as]->same_as != GAC_DTYPE_COUNT ||
            c->sdpa[s->same_as]->n_tiers == 0)
            return gac_reader_fault_at(r, "same_as", "must be a dtype that states its own times");
        gac_reader_leave(r, before);
        return true;
    }
    if (s->max_head < 1)
        return gac_reader_fault_at(r, "max_head", "must be an integer from 1 to 4096");
    if (!check_tiers(r, "tiers", s->tiers, s->n_tiers))
        return false;
    for (size_t i = 0; i < s->n_tiers; i++) {
        size_t at_tier = gac_reader_enter(r, ".tiers[%zu]", i);
        if (!check_head_tables(r, &s->tiers[i], s->tiers[0].n_prefill > 0))
            return false;
        gac_reader_leave(r, at_tier);
    }
    bool is_timed = s->n_points > 0 || s->reference || s->tiers[0].n_prefill > 0;
    if (is_timed && !check_curve(r, s))
        return false;
    gac_reader_leave(r, before);
    return true;
}

static bool is_listed(const gac_contract *c, gac_dtype dtype)
{
    for (size_t i = 0; i < c->n_dtypes; i++)
        if (c->dtypes[i] == dtype)
            return true;
    return false;
}

static bool check_dtypes(gac_reader *r, const gac_contract *c)
{
    if (c->n_dtypes == 0)
        return gac_reader_fault_at(r, "dtypes", "must have an entry");
    for (size_t i = 0; i < c->n_dtypes; i++) {
        for (size_t j = 0; j < i; j++)
            if (c->dtypes[i] == c->dtypes[j]) {
                gac_reader_enter(r, ".dtypes[%zu]", i);
                return gac_reader_fault(r, "must not repeat a dtype");
            }
        if (!check_gemm(r, c, c->dtypes[i]) || !check_sdpa(r, c, c->dtypes[i]))
            return false;
    }
    for (int d = 0; d < GAC_DTYPE_COUNT; d++) {
        const gac_contract_stand_in *s = c->stands_for[d];
        gac_dtype dtype = (gac_dtype)d;
        if ((c->gemm[d] || c->sdpa[d]) && !is_listed(c, dtype))
            return gac_reader_fault_at(r, "dtypes", "must list every dtype of gemm and sdpa");
        if (!s)
            continue;
        gac_reader_enter(r, ".stands_for.%s", gac_dtype_name(dtype));
        if (is_listed(c, dtype))
            return gac_reader_fault(r, "must name a dtype that is not in dtypes");
        if (!is_listed(c, s->dtype))
            return gac_reader_fault_at(r, "dtype", "must be one of dtypes");
        gac_reader_leave(r, 1);
    }
    return true;
}

bool gac_contract_check(gac_reader *r, const gac_contract *c)
{
    if (!check_dtypes(r, c))
        return false;
    for (size_t i = 0; i < c->n_points + c->n_sdpa_points; i++) {
        bool is_gemm = i < c->n_points;
        size_t at = is_gemm ? i : i - c->n_points;
        if (is_listed(c, is_gemm ? c->points[at].dtype : c->sdpa_points[at].dtype))
            continue;
        gac_reader_enter(r, ".%s[%zu].dtype", is_gemm ? "points" : "sdpa_points", at);
        return gac_reader_fault(r, "must be one of dtypes");
    }
    return true;
}

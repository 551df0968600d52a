/* Upgrades gac.contract/1 files, whose tables and figures had other names. The
 * reader ignores keys without a successor. */
#include "base/order_statistics.h"
#include "contract/contract_internal.h"

#include <jansson.h>
#include <math.h>

static void rename_key(json_t *object, const char *from, const char *to)
{
    json_t *value = json_object_get(object, from);
    if (value && !json_object_get(object, to))
        json_object_set(object, to, value);
    json_object_del(object, from);
}

/* Returns the median of factors, in logarithms, or 1 if there are none. */
static double median(const json_t *list)
{
    enum { MAX_FACTORS = 64 };
    double logs[MAX_FACTORS];
    int n = 0;
    for (size_t i = 0; i < json_array_size(list) && n < MAX_FACTORS; i++) {
        double factor = json_number_value(json_array_get(list, i));
        if (factor > 0)
            logs[n++] = log(factor);
    }
    return exp(gac_median(logs, n));
}

/* Makes k_cacheline from "lines", which had a factor for every part of a line
 * and every m times n. Now each part has one factor. */
static json_t *cacheline(const json_t *lines)
{
    json_t *costs = json_array();
    const json_t *parts = json_object_get(lines, "parts");
    const json_t *factors = json_object_get(lines, "factor");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *cost = json_object();
        json_object_set(cost, "multiple", json_array_get(parts, i));
        json_object_set_new(cost, "factor", json_real(median(json_array_get(factors, i))));
        json_array_append_new(costs, cost);
    }
    json_t *out = json_object();
    json_object_set(out, "multiple", json_object_get(lines, "multiple"));
    json_object_set_new(out, "costs", costs);
    return out;
}

static void upgrade_tiers(const json_t *tiers)
{
    size_t i;
    json_t *tier;
    json_array_foreach(tiers, i, tier) {
        const json_t *gemv = json_object_get(tier, "gemv");
        json_object_set(tier, "gemv_bytes_per_s", json_object_get(gemv, "bytes_per_s"));
        json_object_set(tier, "gemv_overhead_us", json_object_get(gemv, "overhead_us"));
    }
}

static json_t *regret(const json_t *row)
{
    static const char *const names[][2] = { { "n_groups", "n_groups" },
                                            { "mean_pct", "regret_mean_pct" },
                                            { "p95_pct", "regret_p95_pct" },
                                            { "max_pct", "regret_max_pct" } };
    json_t *out = json_object();
    const json_t *choice = json_object_get(row, "choice");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_set(out, names[i][1], json_object_get(choice, names[i][0]));
    json_object_set(out, "n_over_5_pct", json_object_get(row, "n_over_5_pct"));
    json_object_set(out, "right_pct", json_object_get(row, "right_pct"));
    return out;
}

bool gac_contract_upgrade(gac_reader *r, json_t *root)
{
    const char *dtype;
    void *next;
    json_t *gemm, *row, *ranking = json_object_get(json_object_get(root, "accuracy"), "ranking");
    json_object_foreach(json_object_get(root, "gemm"), dtype, gemm) {
        const json_t *lines = json_object_get(gemm, "lines");
        rename_key(gemm, "times", "grid");
        rename_key(gemm, "dense", "every_n");
        upgrade_tiers(json_object_get(gemm, "n"));
        upgrade_tiers(json_object_get(gemm, "k"));
        if (lines)
            json_object_set_new(gemm, "k_cacheline", cacheline(lines));
    }
    json_object_foreach_safe(ranking, next, dtype, row)
    {
        json_t *both = json_object();
        json_object_set_new(both, "random_widths", regret(row));
        if (json_object_get(row, "typical"))
            json_object_set_new(both, "common_widths", regret(json_object_get(row, "typical")));
        if (json_object_set_new(ranking, dtype, both) != 0)
            return gac_reader_no_memory(r);
    }
    return true;
}

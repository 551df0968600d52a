/* What was found, as the rules of a contract. Rules borrow from the findings. */
#include "probe/probe_internal.h"

#include <math.h>

static gac_contract_tier tier_rules(const probe_tier *tier)
{
    const gac_contract_rates no_rates = { NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    const char *kernel = tier->served ? tier->kernel : "declined";
    const char *family = tier->served ? gac_kernel_family(tier->kernel) : "declined";
    bool named = !tier->served || tier->kernel[0], decodes = tier->decode_kernel[0];
    return (gac_contract_tier){
        .multiple = tier->multiple,
        .aligned = tier->aligned,
        .served = tier->served,
        .kernel = named ? kernel : "unknown",
        .family = named ? family : "unknown",
        .decode_kernel = decodes ? tier->decode_kernel : NULL,
        .decode_family = decodes ? gac_kernel_family(tier->decode_kernel) : NULL,
        .basis = "measured",
        .decode_basis = "measured",
        .worst_penalty = isfinite(tier->penalty) ? gac_four_digits(tier->penalty) : NAN,
        .rates = no_rates,
        .pad_bytes_per_s = NAN,
    };
}

static void fill_tiers(const probe_tiers *tiers, gac_contract_tier *out)
{
    for (int t = 0; t < tiers->n_tiers; t++)
        out[t] = tier_rules(&tiers->tier[t]);
}

static gac_contract_table borrow_table(const probe_table *t)
{
    gac_contract_table out = { .n_us = probe_table_cells(t), .us = t->time_us };
    for (int a = 0; a < 3; a++) {
        out.n_sizes[a] = (size_t)t->n_axis[a];
        out.sizes[a] = t->axis[a];
    }
    return out;
}

void probe_gemm_rules_fill(const probe_gemm *g, gac_dtype half, probe_gemm_rules *out)
{
    gac_contract_gemm *gemm = &out->gemm;
    const probe_tiers *n = &g->axis[GAC_OP_GEMM_N], *k = &g->axis[GAC_OP_GEMM_K];
    bool all_served = probe_n_served(n) == n->n_tiers && probe_n_served(k) == k->n_tiers;
    fill_tiers(n, out->tiers[0]);
    fill_tiers(k, out->tiers[1]);
    *gemm = (gac_contract_gemm){ .n_n = (size_t)n->n_tiers,
                                 .n_k = (size_t)k->n_tiers,
                                 .n = out->tiers[0],
                                 .k = out->tiers[1],
                                 .falls_back_to = all_served ? GAC_DTYPE_COUNT : half,
                                 .grid = out->grid,
                                 .every_n = out->every_n };
    if (g->n_costs > 0) {
        out->cacheline =
            (gac_contract_cacheline){ probe_line_multiple(g), (size_t)g->n_costs, g->costs };
        gemm->k_cacheline = &out->cacheline;
    }
    for (int i = 0; i < g->n_tables; i++) {
        const probe_gemm_table *t = &g->tables[i];
        if (t->table.n_axis[1] == 0)
            continue;
        gac_contract_table *to =
            t->every_n ? &out->every_n[gemm->n_every_n++] : &out->grid[gemm->n_grid++];
        *to = borrow_table(&t->table);
        to->n_multiple = n->tier[t->tier_n].multiple;
        to->k_multiple = k->tier[t->tier_k].multiple;
    }
}

/* The bandwidth of the best decode call, and the time of the shortest one. */
static gac_contract_decode decode_rules(const probe_sdpa *s)
{
    double best = 1e12, least_us = INFINITY;
    const probe_table *t = &s->decode[0];
    size_t n_head = (size_t)t->n_axis[2], n_length = (size_t)t->n_axis[1];
    for (size_t i = 0; s->has_tables && i < probe_table_cells(t); i++) {
        double bytes = (double)t->axis[2][i % n_head] * 4 *
                       (double)t->axis[1][i / n_head % n_length] *
                       (double)t->axis[0][i / n_head / n_length];
        if (isnan(t->time_us[i]))
            continue;
        best = fmax(best, bytes / t->time_us[i] * 1e6);
        least_us = fmin(least_us, t->time_us[i]);
    }
    return (gac_contract_decode){ .bytes_per_s = gac_four_digits(best),
                                  .overhead_us = isinf(least_us) ? 0 : least_us,
                                  .basis = s->has_tables ? "measured" : "assumed" };
}

static void fill_head_tables(const probe_sdpa *s, probe_sdpa_rules *out)
{
    for (int t = 0; t < s->tiers.n_tiers; t++) {
        gac_contract_tier *tier = &out->tiers[t];
        for (int i = 0; i < 2; i++) {
            out->prefill[t][i] = borrow_table(&s->prefill[t][i]);
            out->prefill[t][i].causal = i == 0;
        }
        out->tables[t] = borrow_table(&s->decode[t]);
        out->tables[t].group = PROBE_DECODE_GROUP;
        tier->tile = s->tile[t];
        tier->pad_bytes_per_s =
            s->pad_bytes_per_s[t] > 0 ? gac_four_digits(s->pad_bytes_per_s[t]) : NAN;
        tier->n_prefill = 2;
        tier->prefill = out->prefill[t];
        tier->decode = &out->tables[t];
    }
}

void probe_sdpa_rules_fill(const probe_sdpa *s, probe_sdpa_rules *out)
{
    bool named = s->beyond_kernel[0], measured = s->n_beyond > 0;
    fill_tiers(&s->tiers, out->tiers);
    if (s->has_tables)
        fill_head_tables(s, out);
    out->reference = (gac_contract_reference){ PROBE_REF_BATCH, PROBE_REF_HEADS, PROBE_REF_LENGTH,
                                               PROBE_REF_LENGTH, false };
    out->decode = decode_rules(s);
    /* Where no larger head is served, one is taken to be ten times as slow. */
    out->slowest = (gac_contract_head){ s->max_head + 8,
                                        gac_four_digits(s->curve[s->n_curve - 1].time_us * 10) };
    out->beyond = (gac_contract_beyond){
        .kernel = named ? s->beyond_kernel : "unknown",
        .family = named ? gac_kernel_family(s->beyond_kernel) : "unknown",
        .basis = measured ? "measured" : "assumed",
        .n_points = measured ? (size_t)s->n_beyond : 1,
        .points = measured ? s->beyond : &out->slowest,
    };
    out->sdpa = (gac_contract_sdpa){ .same_as = GAC_DTYPE_COUNT,
                                     .reference = &out->reference,
                                     .max_head = s->max_head,
                                     .n_tiers = (size_t)s->tiers.n_tiers,
                                     .tiers = out->tiers,
                                     .decode = &out->decode,
                                     .n_points = (size_t)s->n_curve,
                                     .points = s->curve,
                                     .beyond = &out->beyond };
}

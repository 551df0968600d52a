/* Attention as the contract has it. */
#include "probe/probe_internal.h"

#include <math.h>
#include <stdlib.h>

static json_t *curve_json(const gac_sweep_point *points, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("[I, o]", (json_int_t)points[i].size, probe_number(points[i].time_us)));
    return list;
}

static json_t *table_json(const probe_table *t)
{
    json_t *row = json_object();
    json_object_set_new(row, "rows", probe_axis_json(t, 0));
    json_object_set_new(row, "length", probe_axis_json(t, 1));
    json_object_set_new(row, "head", probe_axis_json(t, 2));
    json_object_set_new(row, "us", probe_times_json(t));
    return row;
}

/* The bandwidth that the best decode call reaches, and the shortest call. */
static json_t *decode_json(const probe_sdpa *s)
{
    double best = 1e12, least_us = INFINITY;
    const probe_table *t = &s->decode[0];
    for (size_t i = 0; s->has_tables && i < probe_table_cells(t); i++) {
        size_t n_head = (size_t)t->n_axis[2], n_length = (size_t)t->n_axis[1];
        double bytes = (double)t->axis[2][i % n_head] * 4 *
                       (double)t->axis[1][i / n_head % n_length] *
                       (double)t->axis[0][i / n_head / n_length];
        if (isnan(t->time_us[i]))
            continue;
        best = fmax(best, bytes / t->time_us[i] * 1e6);
        least_us = fmin(least_us, t->time_us[i]);
    }
    return json_pack("{s:o, s:o, s:s}", "bytes_per_s", probe_number(best), "overhead_us",
                     probe_number(isinf(least_us) ? 0 : least_us), "basis",
                     s->has_tables ? "measured" : "assumed");
}

static json_t *tiers_json(const probe_sdpa *s)
{
    json_t *tiers = probe_tiers_json(&s->tiers, false);
    for (int t = 0; t < s->tiers.found.n_tiers && s->has_tables; t++) {
        json_t *prefill = json_array(), *tier = json_array_get(tiers, (size_t)t);
        for (int causal = 1; causal >= 0; causal--) {
            json_t *row = table_json(&s->prefill[t][causal]);
            json_object_set_new(row, "causal", json_boolean(causal));
            json_array_append_new(prefill, row);
        }
        json_t *decode = table_json(&s->decode[t]);
        json_object_set_new(decode, "group", json_integer(PROBE_DECODE_GROUP));
        json_object_set_new(tier, "tile", json_integer(s->tile[t]));
        if (s->pad_bytes_per_s[t] > 0)
            json_object_set_new(tier, "pad_bytes_per_s", probe_number(s->pad_bytes_per_s[t]));
        json_object_set_new(tier, "prefill", prefill);
        json_object_set_new(tier, "decode", decode);
    }
    return tiers;
}

json_t *probe_sdpa_json(const probe_sdpa *s)
{
    const char *kernel = s->beyond_kernel[0] ? s->beyond_kernel : "unknown";
    json_t *points = curve_json(s->beyond, s->n_beyond);
    if (s->n_beyond == 0) /* not to be had: as slow as the slowest */
        json_array_append_new(points,
                              json_pack("[I, o]", (json_int_t)(s->max_head + 8),
                                        probe_number(s->curve[s->n_curve - 1].time_us * 10)));
    json_t *beyond = json_pack("{s:s, s:s, s:s, s:o}", "kernel", kernel, "family",
                               s->beyond_kernel[0] ? gac_kernel_family(kernel) : "unknown", "basis",
                               s->n_beyond ? "measured" : "assumed", "points", points);
    json_t *sdpa = json_object();
    json_object_set_new(sdpa, "reference",
                        json_pack("{s:i, s:i, s:i, s:i, s:b}", "batch", 4, "n_heads", 32, "n_q",
                                  2048, "n_kv", 2048, "causal", 0));
    json_object_set_new(sdpa, "max_head", json_integer(s->max_head));
    json_object_set_new(sdpa, "tiers", tiers_json(s));
    json_object_set_new(sdpa, "decode", decode_json(s));
    json_object_set_new(sdpa, "points", curve_json(s->curve, s->n_curve));
    json_object_set_new(sdpa, "beyond", beyond);
    return sdpa;
}

void probe_sdpa_dispose(probe_sdpa *s)
{
    free(s->curve);
    free(s->beyond);
    for (int t = 0; t < GAC_MAX_FOUND_TIERS; t++) {
        probe_table_dispose(&s->prefill[t][0]);
        probe_table_dispose(&s->prefill[t][1]);
        probe_table_dispose(&s->decode[t]);
    }
}

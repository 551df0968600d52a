/* Predicts the time of one attention call. */
#include "contract/contract_internal.h"
#include "contract/contract_table.h"

#include <math.h>
#include <stdlib.h>

#define US_PER_S 1e6
#define DECODE_QUERIES \
    64 /* up to this many query rows per key head, streaming the keys takes most of the time */

int gac_contract_sdpa_point_order(const void *a, const void *b)
{
    const gac_contract_sdpa_point *p = a, *q = b;
    const gac_sdpa_shape *s = &p->shape, *t = &q->shape;
    const int64_t left[] = { p->dtype, s->batch,   s->n_q_heads, s->n_kv_heads, s->n_q,
                             s->n_kv,  s->qk_head, s->v_head,    s->causal };
    const int64_t right[] = { q->dtype, t->batch,   t->n_q_heads, t->n_kv_heads, t->n_q,
                              t->n_kv,  t->qk_head, t->v_head,    t->causal };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

/* Finds the points of one tier around head: the last one at or below it and the
 * first one at or above it. If one of them does not exist, it is set to the
 * other. */
static void find_neighbours(const gac_contract_sdpa *s, int tier, int64_t head,
                            const gac_contract_head **below, const gac_contract_head **above)
{
    *below = *above = NULL;
    for (size_t i = 0; i < s->n_points && !*above; i++) {
        const gac_contract_head *point = &s->points[i];
        if (gac_tiers_pick(s->tiers, point->head) != tier)
            continue;
        if (point->head <= head)
            *below = point;
        if (point->head >= head)
            *above = point;
    }
    *below = *below ? *below : *above;
    *above = *above ? *above : *below;
}

/* Returns the time at the reference shape if this tier served head. Outside its
 * points, the curve of the best tier is flat, because kernels pad to their
 * smallest and largest template. The other tiers keep there the ratio to the
 * best tier that their nearest point has. */
static double head_us(const gac_contract_sdpa *s, int tier, int64_t head)
{
    const gac_contract_head *a, *b;
    find_neighbours(s, tier, head, &a, &b);
    if (!a)
        return NAN; /* no times are known */
    if (a->head < head && head < b->head) {
        double part = (double)(head - a->head) / (double)(b->head - a->head);
        return a->time_us + part * (b->time_us - a->time_us);
    }
    if (a->head == head || tier == 0)
        return a->time_us;
    return a->time_us * head_us(s, 0, head) / head_us(s, 0, a->head);
}

/* Returns the number of (query, key) pairs. With causal, the last query sees
 * every key. */
static double n_pairs(double batch, double n_heads, double n_q, double n_kv, bool causal)
{
    double pairs = n_q * n_kv;
    if (causal)
        pairs = fmax(pairs - n_q * (n_q - 1) / 2, pairs / 2);
    return batch * n_heads * pairs;
}

/* Returns the part of the curve that grows with the pairs, without the launch
 * and the copies into padded buffers. It is at least a tenth of the curve,
 * whatever the file states. */
static double core_us(const gac_contract_sdpa *s, double element_bytes, int tier,
                      const gac_sdpa_shape *shape)
{
    const gac_contract_reference *ref = s->reference;
    double curve_us = (head_us(s, tier, shape->qk_head) + head_us(s, tier, shape->v_head)) / 2;
    double pad_us = 0;
    if (!isnan(s->tiers[tier].pad_bytes_per_s)) {
        double per_head = (double)ref->n_q * (double)shape->qk_head +
                          (double)ref->n_kv * (double)(shape->qk_head + shape->v_head);
        pad_us = (double)ref->batch * (double)ref->n_heads * per_head * element_bytes /
                 s->tiers[tier].pad_bytes_per_s * US_PER_S;
    }
    return fmax(curve_us - pad_us - s->decode->overhead_us, curve_us / 10);
}

/* Corrects for head sizes between those of the table. The curve has every head
 * size. Returns its time at head over the interpolation between its times at
 * the table's neighbouring heads. */
static double curve_factor(const gac_contract_sdpa *s, int tier, const gac_contract_table *table,
                           int64_t head)
{
    const int64_t *heads = table->sizes[2];
    size_t n = table->n_sizes[2], i = 0;
    if (n < 2 || head <= heads[0] || head >= heads[n - 1])
        return 1;
    while (heads[i + 1] < head)
        i++;
    double below_us = head_us(s, tier, heads[i]), above_us = head_us(s, tier, heads[i + 1]);
    double part =
        log((double)head / (double)heads[i]) / log((double)heads[i + 1] / (double)heads[i]);
    return head_us(s, tier, head) / (pow(below_us, 1 - part) * pow(above_us, part));
}

static double table_sdpa_us(const gac_contract_sdpa *s, double element_bytes, int tier,
                            const gac_sdpa_shape *shape, int64_t head)
{
    const gac_contract_tier *own = &s->tiers[tier];
    double batch = (double)shape->batch;
    if (shape->n_q < shape->n_kv &&
        shape->n_q * (shape->n_q_heads / shape->n_kv_heads) <= DECODE_QUERIES) {
        const double sizes[] = { batch * (double)shape->n_kv_heads, (double)shape->n_kv,
                                 (double)head };
        return gac_table_us(own->decode, &gac_decode_kind, sizes);
    }
    /* Find the length of the square (or triangle) with as many pairs, in whole
     * tiles. */
    double pairs = n_pairs(1, 1, (double)shape->n_q, (double)shape->n_kv, shape->causal);
    double length = shape->causal ? (sqrt(8 * pairs + 1) - 1) / 2 : sqrt(pairs);
    double tile = own->tile > 0 ? (double)own->tile : 1;
    const gac_contract_table *table = &own->prefill[own->prefill[0].causal != shape->causal];
    const double sizes[] = { batch * (double)shape->n_q_heads, ceil(length / tile) * tile,
                             (double)head };
    double us = gac_table_us(table, &gac_prefill_kind, sizes) * curve_factor(s, tier, table, head);
    /* The table was measured with as many key heads as query heads. Subtract
     * the copies of the missing key heads, but at most half of the time,
     * whatever the file states. */
    if (!isnan(own->pad_bytes_per_s) && shape->n_q_heads > shape->n_kv_heads) {
        double fewer = batch * (double)(shape->n_q_heads - shape->n_kv_heads) *
                       (double)shape->n_kv * 2 * (double)head * element_bytes;
        us = fmax(us - fewer / own->pad_bytes_per_s * US_PER_S, us / 2);
    }
    return us;
}

/* Heads above max_head: a least-squares line through the measured points. A
 * falling line is made level, so that times stay positive. */
static double beyond_us(const gac_contract_beyond *b, double head)
{
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0, n = (double)b->n_points;
    for (size_t i = 0; i < b->n_points; i++) {
        mean_x += (double)b->points[i].head / n;
        mean_y += b->points[i].time_us / n;
    }
    for (size_t i = 0; i < b->n_points; i++) {
        double x = (double)b->points[i].head - mean_x;
        xx += x * x;
        xy += x * (b->points[i].time_us - mean_y);
    }
    double slope = xx > 0 && xy > 0 ? xy / xx : 0;
    return mean_y + slope * (head - mean_x);
}

/* Predicts by the curve, scaled by the number of pairs. If streaming q, k, v
 * and the output takes longer, as in decode, that time counts instead. The
 * launch is added and, for a tier that pads, the copies of q, k and v. tier is
 * n_tiers for heads above max_head. */
static double curve_sdpa_us(const gac_contract_sdpa *s, double element_bytes, int tier,
                            const gac_sdpa_shape *shape)
{
    const gac_contract_reference *ref = s->reference;
    double batch = (double)shape->batch, n_q = (double)shape->n_q, n_kv = (double)shape->n_kv;
    double q_heads = (double)shape->n_q_heads, kv_heads = (double)shape->n_kv_heads;
    double qk_head = (double)shape->qk_head, v_head = (double)shape->v_head;
    double scale = n_pairs(batch, q_heads, n_q, n_kv, shape->causal) /
                   n_pairs((double)ref->batch, (double)ref->n_heads, (double)ref->n_q,
                           (double)ref->n_kv, ref->causal);
    double kv_bytes = batch * kv_heads * n_kv * (qk_head + v_head) * element_bytes;
    double q_bytes = batch * q_heads * n_q * qk_head * element_bytes;
    double out_bytes = batch * q_heads * n_q * v_head * element_bytes;
    double stream_us = (kv_bytes + q_bytes + out_bytes) / s->decode->bytes_per_s * US_PER_S;
    if (tier == (int)s->n_tiers)
        return s->decode->overhead_us +
               fmax(beyond_us(s->beyond, (qk_head + v_head) / 2) * scale, stream_us);
    double pad_us = 0;
    if (!isnan(s->tiers[tier].pad_bytes_per_s))
        pad_us = (q_bytes + kv_bytes) / s->tiers[tier].pad_bytes_per_s * US_PER_S;
    return s->decode->overhead_us +
           fmax(core_us(s, element_bytes, tier, shape) * scale, stream_us) + pad_us;
}

double gac_contract_sdpa_us(const gac_contract *contract, gac_dtype dtype,
                            const gac_sdpa_shape *shape)
{
    const gac_contract_sdpa *s = gac_contract_sdpa_rules(contract, dtype);
    if (!shape)
        return NAN;
    gac_contract_sdpa_point key = { .shape = *shape };
    if (!s || !gac_contract_dtype(contract, dtype, &key.dtype))
        return NAN;
    if (shape->batch <= 0 || shape->n_q_heads <= 0 || shape->n_kv_heads <= 0 || shape->n_q <= 0 ||
        shape->n_kv <= 0 || shape->qk_head <= 0 || shape->v_head <= 0)
        return 0;
    const gac_contract_sdpa_point *point =
        contract->n_sdpa_points == 0 ? NULL
                                     : bsearch(&key, contract->sdpa_points, contract->n_sdpa_points,
                                               sizeof key, gac_contract_sdpa_point_order);
    if (point)
        return point->time_us;
    if (s->n_points == 0)
        return NAN;
    double element_bytes = gac_dtype_bits(key.dtype) / 8.0;
    if (shape->qk_head > s->max_head || shape->v_head > s->max_head)
        return curve_sdpa_us(s, element_bytes, (int)s->n_tiers, shape);
    int tier_qk = gac_tiers_pick(s->tiers, shape->qk_head);
    int tier_v = gac_tiers_pick(s->tiers, shape->v_head);
    int tier = tier_qk > tier_v ? tier_qk : tier_v;
    if (s->tiers[0].n_prefill == 0)
        return curve_sdpa_us(s, element_bytes, tier, shape);
    return (table_sdpa_us(s, element_bytes, tier, shape, shape->qk_head) +
            table_sdpa_us(s, element_bytes, tier, shape, shape->v_head)) /
           2;
}

double gac_contract_head_us(const gac_contract_sdpa *sdpa, int tier, int64_t head)
{
    return head_us(sdpa, tier, head);
}

/* Attention: a curve over head sizes at the reference shape, and the tiers in it. */
#include "probe/probe_internal.h"

#include <stdlib.h>

gac_sdpa_shape probe_prefill_shape(int64_t rows, int64_t length, int64_t head, bool causal)
{
    int64_t batch =
        rows > PROBE_REF_HEADS && rows % PROBE_REF_HEADS == 0 ? rows / PROBE_REF_HEADS : 1;
    gac_sdpa_shape shape = { .batch = batch,
                             .n_q_heads = rows / batch,
                             .n_kv_heads = rows / batch,
                             .n_q = length,
                             .n_kv = length,
                             .qk_head = head,
                             .v_head = head,
                             .causal = causal };
    return shape;
}

gac_sdpa_shape probe_decode_shape(int64_t rows, int64_t context, int64_t head)
{
    enum { KV_HEADS = 8 };
    int64_t batch = rows > KV_HEADS && rows % KV_HEADS == 0 ? rows / KV_HEADS : 1;
    gac_sdpa_shape shape = { .batch = batch,
                             .n_q_heads = rows / batch * PROBE_DECODE_GROUP,
                             .n_kv_heads = rows / batch,
                             .n_q = 1,
                             .n_kv = context,
                             .qk_head = head,
                             .v_head = head };
    return shape;
}

/* Every head from 64 to 160, where models have theirs. Elsewhere multiples of 8 and their
 * neighbours, since kernels pad up to the next multiple. Then a few large heads. */
static int curve_heads(bool quick, int64_t *heads)
{
    static const int64_t large[] = { 264, 288, 320, 384, 512 };
    int n = 0;
    for (int64_t v = 16; v <= 256; v++)
        if ((v >= 64 && v <= (quick ? 96 : 160)) || v % 8 == 0 || v % 8 == 1 || v % 8 == 7)
            heads[n++] = v;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        heads[n++] = large[i];
    return n;
}

static gac_task_spec reference(gac_dtype dtype, int64_t head)
{
    gac_sdpa_shape shape =
        probe_prefill_shape(PROBE_REF_BATCH * PROBE_REF_HEADS, PROBE_REF_LENGTH, head, false);
    return probe_sdpa_spec(dtype, &shape);
}

static bool by_library(const probe_point *point)
{
    return point->outcome == PROBE_MEASURED && !point->fallback &&
           point->spec.sdpa.path == GAC_SDPA_LIBRARY;
}

static int64_t head_of(const probe_point *point)
{
    return point->spec.sdpa.shape.qk_head;
}

/* The largest head that the vendor's kernel serves. Where it serves none, own kernels
 * serve heads up to 256. A lost point decides nothing. */
static int64_t find_max_head(const probe_point *points, int n)
{
    enum { OWN = 256, LEAST = 64 };
    int64_t max_head = 0;
    for (int i = 0; i < n; i++) {
        bool known = points[i].outcome == PROBE_MEASURED || points[i].outcome == PROBE_DECLINED;
        int64_t head = head_of(&points[i]);
        if (!known || (head % 32 != 0 && head < OWN))
            continue;
        if (by_library(&points[i]))
            max_head = head;
        else if (head >= LEAST)
            break;
    }
    return max_head > 0 ? max_head : OWN;
}

/* Splits the points into the curve up to max_head and the heads beyond, which are those
 * that one kernel serves. */
static void keep_curve(probe_sdpa *s, const probe_point *points, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t head = head_of(&points[i]);
        gac_contract_head kept = { head, gac_four_digits(points[i].time_us) };
        if (points[i].outcome != PROBE_MEASURED)
            continue;
        if (head <= s->max_head) {
            s->curve[s->n_curve++] = kept;
        } else if (head % 8 == 0 &&
                   (s->n_beyond == 0 || points[i].spec.sdpa.path == s->beyond_path)) {
            s->beyond[s->n_beyond++] = kept;
            s->beyond_path = points[i].spec.sdpa.path;
            if (points[i].kernel)
                snprintf(s->beyond_kernel, sizeof s->beyond_kernel, "%s", points[i].kernel);
        }
    }
}

static gac_status find_tiers(probe *p, probe_sdpa *s, const probe_point *points, int n)
{
    probe_sweep_point sizes[PROBE_MAX_CURVE];
    probe_sweep sweep = { .points = sizes };
    for (int i = 0; i < n; i++)
        if (points[i].outcome == PROBE_MEASURED && head_of(&points[i]) <= s->max_head)
            sizes[sweep.n_points++] = (probe_sweep_point){ .size = head_of(&points[i]),
                                                           .time_us = points[i].time_us,
                                                           .noise = points[i].noise };
    gac_status status = probe_find_tiers(&sweep, 1, &s->tiers, p->err);
    if (status == GAC_CHECK)
        return gac_error_set(p->err, GAC_NO_RESOURCE, "%s: attention could not be measured",
                             gac_dtype_name(s->dtype));
    return status;
}

/* Whether the vendor's kernel serves most heads of a tier, and what kernel the fallback has. */
static void find_server(probe_sdpa *s, int t, const probe_point *points, int n)
{
    probe_tier *tier = &s->tiers.tier[t];
    int n_library = 0, n_other = 0;
    for (int i = 0; i < n; i++) {
        if (head_of(&points[i]) > s->max_head || points[i].outcome != PROBE_MEASURED ||
            probe_tier_of(&s->tiers, head_of(&points[i])) != t)
            continue;
        *(by_library(&points[i]) ? &n_library : &n_other) += 1;
        if (points[i].kernel)
            snprintf(tier->kernel, sizeof tier->kernel, "%s", points[i].kernel);
    }
    s->library[t] = n_library > n_other;
}

gac_status probe_sdpa_tiers(probe *p, probe_sdpa *s)
{
    int64_t heads[PROBE_MAX_CURVE];
    int n = curve_heads(p->options->quick, heads);
    gac_task_spec *specs = probe_alloc(p, (size_t)n, sizeof *specs);
    probe_point *points = probe_alloc(p, (size_t)n, sizeof *points);
    if (!specs || !points)
        return gac_error_no_memory(p->err);
    probe_begin(p, "attention heads", gac_dtype_name(s->dtype), (size_t)n);
    for (int i = 0; i < n; i++)
        specs[i] = reference(s->dtype, heads[i]);
    gac_status status = probe_measure_sdpa(p, specs, n, true, true, points);
    if (status == GAC_OK) {
        s->max_head = find_max_head(points, n);
        keep_curve(s, points, n);
        status = find_tiers(p, s, points, n);
    }
    for (int t = 0; t < s->tiers.n_tiers && status == GAC_OK; t++)
        find_server(s, t, points, n);
    probe_finish(p);
    if (p->stack[0])
        probe_note(p, "attention that the vendor's kernel declines: as %s serves it", p->stack);
    return status;
}

gac_status probe_sdpa_kernels(probe *p, probe_sdpa *s)
{
    enum { HEAD = 112, DECODE_ROWS = 32 };
    gac_status status = GAC_OK;
    probe_begin(p, "kernels", gac_dtype_name(s->dtype), 0);
    for (int t = 0; t < s->tiers.n_tiers && status == GAC_OK; t++) {
        probe_tier *tier = &s->tiers.tier[t];
        int64_t head = probe_tier_size(&s->tiers, t, HEAD);
        gac_sdpa_shape decode = probe_decode_shape(DECODE_ROWS, PROBE_REF_LENGTH, head);
        gac_task_spec spec = reference(s->dtype, head);
        if (tier->kernel[0]) /* the fallback said it */
            continue;
        spec.sdpa.path = s->library[t] ? GAC_SDPA_LIBRARY : GAC_SDPA_FLASH;
        status = probe_kernel(p, &spec, tier->kernel, sizeof tier->kernel);
        spec.sdpa.shape = decode;
        if (status == GAC_OK)
            status = probe_kernel(p, &spec, tier->decode_kernel, sizeof tier->decode_kernel);
    }
    gac_task_spec spec = reference(s->dtype, s->max_head + 64);
    spec.sdpa.path = s->n_beyond > 0 ? s->beyond_path : GAC_SDPA_MATH;
    if (status == GAC_OK && !s->beyond_kernel[0])
        status = probe_kernel(p, &spec, s->beyond_kernel, sizeof s->beyond_kernel);
    probe_finish(p);
    return status;
}

/* Compares two contracts: tiers, times of common shapes, stacks. */
#include "contract_diff.h"

#include <math.h>
#include <stdlib.h>

#define UNSTATED_PCT 10.0 /* assumed error of a contract that states none */
enum { MAX_SHAPES = 128, MAX_WORST = 10 };

typedef struct shape_time {
    char shape[64];
    double a_us, b_us;
} shape_time;

static json_t *stack_json(const gac_contract *c)
{
    json_t *out = json_object();
    for (size_t i = 0; i < c->n_stack; i++)
        json_object_set_new(out, c->stack[i].key, json_string(c->stack[i].value));
    return out;
}

/* Makes [{"multiple", "aligned", "served"}, …]. */
static json_t *tiers_json(const gac_contract_tier *tiers, size_t n)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:I, s:b, s:b}", "multiple",
                                             (json_int_t)tiers[i].multiple, "aligned",
                                             tiers[i].aligned, "served", tiers[i].served));
    return out;
}

/* Lists the tiers of an axis. */
static json_t *axis_json(const gac_contract *c, gac_dtype dtype, gac_op_axis axis)
{
    const gac_contract_gemm *g = c->gemm[dtype];
    const gac_contract_sdpa *s = c->sdpa[dtype];
    if (s->same_as != GAC_DTYPE_COUNT)
        s = c->sdpa[s->same_as];
    return axis == GAC_OP_GEMM_N   ? tiers_json(g->n, g->n_n)
           : axis == GAC_OP_GEMM_K ? tiers_json(g->k, g->n_k)
                                   : tiers_json(s->tiers, s->n_tiers);
}

static json_t *changed_tiers(const gac_contract *a, const gac_contract *b, gac_dtype dtype)
{
    json_t *out = json_array();
    for (int axis = 0; axis < GAC_OP_AXIS_COUNT; axis++) {
        json_t *left = axis_json(a, dtype, (gac_op_axis)axis);
        json_t *right = axis_json(b, dtype, (gac_op_axis)axis);
        if (json_equal(left, right)) {
            json_decref(left);
            json_decref(right);
            continue;
        }
        json_array_append_new(out, json_pack("{s:s, s:o, s:o}", "place",
                                             gac_op_axis_name((gac_op_axis)axis), "a", left, "b",
                                             right));
    }
    return out;
}

static int add_gemms(const gac_contract *a, const gac_contract *b, gac_dtype dtype, shape_time *out)
{
    static const int64_t rows[] = { 1, 16, 256, 4096 };
    static const int64_t weights[][2] = { { 1024, 4096 },  { 4096, 4096 },   { 14336, 4096 },
                                          { 4096, 14336 }, { 8192, 8192 },   { 28672, 8192 },
                                          { 8192, 28672 }, { 128256, 4096 }, { 4104, 4096 },
                                          { 4098, 4096 },  { 4097, 4096 },   { 4096, 4104 },
                                          { 4096, 4098 },  { 4096, 4097 } };
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof weights / sizeof *weights; j++) {
            int64_t size_n = weights[j][0], size_k = weights[j][1];
            snprintf(out[n].shape, sizeof out[n].shape, "GEMM %lld x %lld x %lld",
                     (long long)rows[i], (long long)size_n, (long long)size_k);
            out[n].a_us = gac_contract_gemm_us(a, dtype, rows[i], size_n, size_k);
            out[n++].b_us = gac_contract_gemm_us(b, dtype, rows[i], size_n, size_k);
        }
    return n;
}

static int add_attention(const gac_contract *a, const gac_contract *b, gac_dtype dtype,
                         shape_time *out)
{
    static const int64_t heads[] = { 64, 96, 104, 107, 112, 128, 256 };
    int n = 0;
    for (size_t i = 0; i < 2 * sizeof heads / sizeof *heads; i++) {
        bool decode = i % 2;
        gac_sdpa_shape s = { decode ? 16 : 1, 32,           8,      decode ? 1 : 2048, 2048,
                             heads[i / 2],    heads[i / 2], !decode };
        snprintf(out[n].shape, sizeof out[n].shape, "%s, head %lld",
                 decode ? "decode 16@2048" : "prefill 1x2048", (long long)s.qk_head);
        out[n].a_us = gac_contract_sdpa_us(a, dtype, &s);
        out[n++].b_us = gac_contract_sdpa_us(b, dtype, &s);
    }
    return n;
}

static double error_pct(const gac_contract *contract, gac_dtype dtype)
{
    double pct;
    return gac_contract_median_error(contract, dtype, GAC_OP_GEMM_N, &pct) ? pct : UNSTATED_PCT;
}

static int by_change(const void *a, const void *b)
{
    const shape_time *s = a, *t = b;
    double x = fabs(log(s->b_us / s->a_us)), y = fabs(log(t->b_us / t->a_us));
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Finds times that differ by more than the errors of both contracts, the worst
 * ones first. */
static void compare_times(const gac_contract *a, const gac_contract *b, gac_dtype dtype,
                          json_t *out)
{
    shape_time all[MAX_SHAPES];
    double noise_pct = error_pct(a, dtype) + error_pct(b, dtype), sum = 0;
    int n = add_gemms(a, b, dtype, all), n_slower = 0, n_faster = 0;
    n += add_attention(a, b, dtype, all + n);
    qsort(all, (size_t)n, sizeof *all, by_change);
    json_t *worst = json_array();
    for (int i = 0; i < n; i++) {
        double ratio = all[i].b_us / all[i].a_us;
        bool slower = ratio > 1 + noise_pct / 100, faster = 1 / ratio > 1 + noise_pct / 100;
        sum += log(ratio);
        n_slower += slower;
        n_faster += faster;
        if ((slower || faster) && json_array_size(worst) < MAX_WORST)
            json_array_append_new(worst,
                                  json_pack("{s:s, s:f, s:f, s:f}", "shape", all[i].shape, "a_us",
                                            all[i].a_us, "b_us", all[i].b_us, "b_over_a", ratio));
    }
    json_object_set_new(out, "noise_pct", json_real(noise_pct));
    json_object_set_new(out, "n_shapes", json_integer(n));
    json_object_set_new(out, "n_slower", json_integer(n_slower));
    json_object_set_new(out, "n_faster", json_integer(n_faster));
    json_object_set_new(out, "b_over_a", json_real(exp(sum / n)));
    json_object_set_new(out, "worst", worst);
}

json_t *contract_diff(const gac_contract *a, const gac_contract *b)
{
    json_t *compared = json_array();
    for (size_t i = 0; i < a->n_dtypes; i++) {
        gac_dtype dtype = a->dtypes[i];
        if (!b->gemm[dtype])
            continue;
        json_t *row = json_pack("{s:s, s:o}", "dtype", gac_dtype_name(dtype), "tiers",
                                changed_tiers(a, b, dtype));
        if (gac_contract_has_times(a, dtype) && gac_contract_has_times(b, dtype))
            compare_times(a, b, dtype, row);
        json_array_append_new(compared, row);
    }
    return json_pack("{s:s, s:s, s:{s:o, s:o}, s:o}", "a", a->name, "b", b->name, "stack", "a",
                     stack_json(a), "b", stack_json(b), "compared", compared);
}

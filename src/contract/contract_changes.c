#include "contract/contract_changes.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool gac_is_apart(double x, double y, double by)
{
    return !(x > 0) || !(y > 0) || x / y > by || y / x > by;
}

/* How many points of one side the other has not, or with another time. */
typedef struct point_count {
    int missing, changed;
} point_count;

static point_count count_gemm(const gac_contract *from, gac_dtype dtype, const gac_contract *in,
                              gac_dtype as)
{
    point_count count = { 0, 0 };
    for (size_t i = 0; i < from->n_points; i++) {
        gac_gemm_point key = from->points[i];
        if (key.dtype != dtype)
            continue;
        key.dtype = as;
        const gac_gemm_point *there = in->n_points == 0 ? NULL
                                                        : bsearch(&key, in->points, in->n_points,
                                                                  sizeof key, gac_gemm_point_order);
        count.missing += !there;
        count.changed += there && gac_is_apart(there->time_us, key.time_us, GAC_CHANGED_TIME);
    }
    return count;
}

static point_count count_sdpa(const gac_contract *from, gac_dtype dtype, const gac_contract *in,
                              gac_dtype as)
{
    point_count count = { 0, 0 };
    for (size_t i = 0; i < from->n_sdpa_points; i++) {
        gac_sdpa_point key = from->sdpa_points[i];
        if (key.dtype != dtype)
            continue;
        key.dtype = as;
        const gac_sdpa_point *there = in->n_sdpa_points == 0
                                          ? NULL
                                          : bsearch(&key, in->sdpa_points, in->n_sdpa_points,
                                                    sizeof key, gac_sdpa_point_order);
        count.missing += !there;
        count.changed += there && gac_is_apart(there->time_us, key.time_us, GAC_CHANGED_TIME);
    }
    return count;
}

static json_t *points_json(point_count of_a, point_count of_b, bool *same)
{
    *same = *same && of_a.missing == 0 && of_b.missing == 0 && of_a.changed == 0;
    return json_pack("{s:i, s:i, s:i}", "added", of_b.missing, "removed", of_a.missing, "changed",
                     of_a.changed);
}

json_t *gac_changed_points(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                           gac_dtype dtype_b, bool *same)
{
    json_t *gemm =
        points_json(count_gemm(a, dtype_a, b, dtype_b), count_gemm(b, dtype_b, a, dtype_a), same);
    json_t *sdpa =
        points_json(count_sdpa(a, dtype_a, b, dtype_b), count_sdpa(b, dtype_b, a, dtype_a), same);
    return json_pack("{s:o, s:o, s:f}", "gemm", gemm, "sdpa", sdpa, "changed_over_pct",
                     100 * (GAC_CHANGED_TIME - 1));
}

static json_t *figure(const gac_contract *contract, double value)
{
    return contract->has_runtime ? json_real(value) : json_null();
}

json_t *gac_changed_runtime(const gac_contract *a, const gac_contract *b, bool *same)
{
    const gac_runtime *x = &a->runtime, *y = &b->runtime;
    const struct {
        const char *key;
        double a, b;
    } figures[] = { { "layer_us", x->layer_us, y->layer_us },
                    { "decode_layer_us", x->decode_layer_us, y->decode_layer_us },
                    { "hidden_ps", x->hidden_ps, y->hidden_ps },
                    { "width_ps", x->width_ps, y->width_ps },
                    { "kv_ps", x->kv_ps, y->kv_ps } };
    bool one_has_none = a->has_runtime != b->has_runtime;
    json_t *list = json_array();
    if (one_has_none || (a->has_runtime && strcmp(x->name, y->name) != 0))
        json_array_append_new(
            list, json_pack("{s:s, s:s?, s:s?}", "key", "name", "a", x->name, "b", y->name));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (!one_has_none && figures[i].a == figures[i].b)
            continue;
        *same = false;
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:o}", "key", figures[i].key, "a",
                                        figure(a, figures[i].a), "b", figure(b, figures[i].b)));
    }
    return list;
}

/* Whose rules serve dtype, and why another's do; NULL for neither. */
static const char *server_of(const gac_contract *contract, gac_dtype dtype, const char **reason)
{
    gac_dtype served;
    *reason = NULL;
    if (!gac_contract_dtype(contract, dtype, &served))
        return NULL;
    const json_t *entry =
        json_object_get(json_object_get(contract->json, "stands_for"), gac_dtype_name(dtype));
    if (served != dtype)
        *reason = json_string_value(json_object_get(entry, "reason"));
    return gac_dtype_name(served);
}

json_t *gac_changed_stand_ins(const gac_contract *a, const gac_contract *b, bool *same)
{
    json_t *list = json_array();
    for (int d = 0; d < GAC_DTYPE_COUNT; d++) {
        const char *reason_a, *reason_b;
        const char *in_a = server_of(a, (gac_dtype)d, &reason_a);
        const char *in_b = server_of(b, (gac_dtype)d, &reason_b);
        if ((!reason_a && !reason_b) || (in_a && in_b && strcmp(in_a, in_b) == 0))
            continue;
        *same = false;
        json_array_append_new(list, json_pack("{s:s, s:s?, s:s?, s:s?, s:s?}", "dtype",
                                              gac_dtype_name((gac_dtype)d), "a", in_a, "b", in_b,
                                              "reason_a", reason_a, "reason_b", reason_b));
    }
    return list;
}

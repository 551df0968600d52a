/* What changed between two contracts, and which sizes feel it. */
#include "contract/contract_changes.h"
#include "contract/contract_sweep.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define CHANGED_PENALTY 1.15 /* ratio of penalties that is worth a line */
enum { PREFILL_ROWS = 4096, OTHER = 4096, N_REGIMES = 2 };

static json_t *tiers_json(const gac_tiers *tiers)
{
    json_t *list = json_array();
    for (int i = 0; i < tiers->n_tiers; i++) {
        const gac_tier *t = &tiers->tier[i];
        json_array_append_new(list, json_pack("{s:I, s:b, s:b, s:s, s:s, s:s?, s:s?}", "multiple",
                                              (json_int_t)t->multiple, "aligned", t->aligned,
                                              "served", t->served, "kernel", t->kernel, "family",
                                              t->family, "decode_kernel", t->decode_kernel,
                                              "decode_family", t->decode_family));
    }
    return list;
}

/* Two names, of which either may not be told. */
static bool names_differ(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) != 0 : a != b;
}

static bool tiers_differ(const gac_tiers *a, const gac_tiers *b)
{
    if (a->n_tiers != b->n_tiers)
        return true;
    for (int i = 0; i < a->n_tiers; i++)
        if (a->tier[i].multiple != b->tier[i].multiple ||
            a->tier[i].aligned != b->tier[i].aligned || a->tier[i].served != b->tier[i].served ||
            names_differ(a->tier[i].kernel, b->tier[i].kernel) ||
            names_differ(a->tier[i].family, b->tier[i].family) ||
            names_differ(a->tier[i].decode_kernel, b->tier[i].decode_kernel) ||
            names_differ(a->tier[i].decode_family, b->tier[i].decode_family))
            return true;
    return false;
}

/* What one side says of an example with some number of rows. */
typedef struct verdict {
    gac_judgement judged;
    char server[128]; /* "nvjet", "not served (BF16 nvjet)"; empty where not told */
} verdict;

/* Prefill and decode rows; the same for heads. */
static gac_status judge_class(const gac_side *s, gac_op_axis seen, int64_t size,
                              verdict out[N_REGIMES], gac_error *err)
{
    static const int64_t rows[N_REGIMES] = { PREFILL_ROWS, 1 };
    for (int r = 0; r < N_REGIMES; r++) {
        gac_judgement *j = &out[r].judged;
        gac_status status =
            gac_contract_judge(s->contract, seen, s->dtype, size, rows[r], OTHER, j, err);
        if (status != GAC_OK)
            return status;
        char quoted[80]; /* cut between characters, if it is long */
        const char *family = j->family ? gac_quote(quoted, sizeof quoted, j->family) : "";
        if (j->served)
            snprintf(out[r].server, sizeof out[r].server, "%s", family);
        else
            snprintf(out[r].server, sizeof out[r].server, "not served (%s%s%s)",
                     gac_dtype_name(j->runs_as), *family ? " " : "", family);
    }
    return GAC_OK;
}

/* Whether another kernel serves, where both contracts name it. */
static bool servers_differ(const verdict *a, const verdict *b)
{
    return a->server[0] && b->server[0] && strcmp(a->server, b->server) != 0;
}

static void say_class(const gac_size_class *c, const verdict *a, const verdict *b, bool is_head,
                      char *out, size_t size)
{
    const gac_judgement *in_a = &a->judged, *in_b = &b->judged;
    const char *judged = in_a->aligned && in_b->aligned ? "aligned in both"
                         : in_a->aligned                ? "aligned in A and not in B"
                         : in_b->aligned                ? "aligned in B and not in A"
                                                        : "aligned in neither";
    size_t used = (size_t)snprintf(out, size, "%s are %s", c->text, judged);
    if (servers_differ(a, b) && used < size)
        used +=
            (size_t)snprintf(out + used, size - used, "; %s in A, %s in B", a->server, b->server);
    if (!is_head && servers_differ(&a[1], &b[1]) && used < size)
        used += (size_t)snprintf(out + used, size - used, "; with one row %s in A, %s in B",
                                 a[1].server, b[1].server);
    if (used < size)
        used += (size_t)snprintf(out + used, size - used,
                                 "; slower by ×%.2f in A, ×%.2f in B (at %lld)", in_a->penalty,
                                 in_b->penalty, (long long)c->example);
    if (!is_head && used < size)
        snprintf(out + used, size - used, ", in decode ×%.2f, ×%.2f", a[1].judged.penalty,
                 b[1].judged.penalty);
}

static json_t *class_json(const gac_size_class *c, const verdict *a, const verdict *b, bool is_head)
{
    char text[800];
    const gac_judgement *in_a = &a->judged, *in_b = &b->judged;
    say_class(c, a, b, is_head, text, sizeof text);
    json_t *row = json_pack("{s:s, s:I, s:b, s:b, s:s, s:s, s:f, s:f}", "text", text, "example",
                            (json_int_t)c->example, "aligned_a", in_a->aligned, "aligned_b",
                            in_b->aligned, "runs_as_a", gac_dtype_name(in_a->runs_as), "runs_as_b",
                            gac_dtype_name(in_b->runs_as), "penalty_a", in_a->penalty, "penalty_b",
                            in_b->penalty);
    if (!is_head) {
        json_object_set_new(row, "decode_penalty_a", json_real(a[1].judged.penalty));
        json_object_set_new(row, "decode_penalty_b", json_real(b[1].judged.penalty));
    }
    return row;
}

static gac_status diff_class(const gac_side *a, const gac_side *b, gac_op_axis seen,
                             const gac_size_class *c, json_t *touches, gac_error *err)
{
    verdict in_a[N_REGIMES], in_b[N_REGIMES];
    gac_status status = judge_class(a, seen, c->example, in_a, err);
    if (status == GAC_OK)
        status = judge_class(b, seen, c->example, in_b, err);
    if (status != GAC_OK)
        return status;
    bool touched = in_a->judged.aligned != in_b->judged.aligned;
    for (int r = 0; r < N_REGIMES; r++)
        touched = touched || servers_differ(&in_a[r], &in_b[r]) ||
                  gac_is_apart(in_a[r].judged.penalty, in_b[r].judged.penalty, CHANGED_PENALTY);
    if (touched)
        json_array_append_new(touches, class_json(c, in_a, in_b, seen == GAC_OP_SDPA_HEAD));
    return GAC_OK;
}

static gac_status diff_place(const gac_side *a, const gac_side *b, gac_op_axis seen, json_t *places,
                             bool *same, gac_error *err)
{
    gac_size_class classes[GAC_MAX_CLASSES];
    const gac_tiers *in_a = gac_side_tiers(a, seen), *in_b = gac_side_tiers(b, seen);
    json_t *touches = json_array();
    int n = gac_find_classes(a, b, seen, classes);
    gac_status status = GAC_OK;
    for (int i = 0; i < n && status == GAC_OK; i++)
        status = diff_class(a, b, seen, &classes[i], touches, err);
    bool changed = tiers_differ(in_a, in_b);
    *same = *same && !changed && json_array_size(touches) == 0;
    json_array_append_new(places,
                          json_pack("{s:s, s:b, s:o, s:o, s:o}", "place", gac_op_axis_name(seen),
                                    "tiers_changed", changed, "tiers_a", tiers_json(in_a),
                                    "tiers_b", tiers_json(in_b), "touches", touches));
    return status;
}

static void add_time(json_t *list, const char *what, double a_us, double b_us, bool *same)
{
    if (!(a_us > 0) || !(b_us > 0))
        return;
    *same = *same && !gac_is_apart(a_us, b_us, GAC_CHANGED_TIME);
    json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "shape", what, "a_us", a_us,
                                          "b_us", b_us, "b_over_a", b_us / a_us));
}

/* Times at sizes that most GPUs serve well: those that both do. */
static json_t *diff_times(const gac_side *a, const gac_side *b, bool *same)
{
    static const int64_t gemm[][3] = { { 1, 4096, 4096 },     { 16, 4096, 4096 },
                                       { 1, 14336, 4096 },    { 256, 4096, 4096 },
                                       { 256, 4096, 4128 },   { 256, 4096, 4104 },
                                       { 2048, 4096, 14336 }, { 4096, 4096, 4096 } };
    static const gac_sdpa_shape sdpa[] = { { 4, 32, 32, 2048, 2048, 128, 128, false },
                                           { 1, 32, 8, 4096, 4096, 128, 128, true },
                                           { 16, 32, 8, 1, 4096, 128, 128, false } };
    char what[96];
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof gemm / sizeof *gemm; i++) {
        const int64_t *s = gemm[i];
        if (!gac_side_aligns(a, GAC_OP_GEMM_N, s[1]) || !gac_side_aligns(b, GAC_OP_GEMM_N, s[1]) ||
            !gac_side_aligns(a, GAC_OP_GEMM_K, s[2]) || !gac_side_aligns(b, GAC_OP_GEMM_K, s[2]))
            continue;
        snprintf(what, sizeof what, "GEMM %lld x %lld x %lld", (long long)s[0], (long long)s[1],
                 (long long)s[2]);
        add_time(list, what, gac_contract_gemm_us(a->contract, a->dtype, s[0], s[1], s[2]),
                 gac_contract_gemm_us(b->contract, b->dtype, s[0], s[1], s[2]), same);
    }
    for (size_t i = 0; i < sizeof sdpa / sizeof *sdpa; i++) {
        const gac_sdpa_shape *s = &sdpa[i];
        if (!gac_side_aligns(a, GAC_OP_SDPA_HEAD, s->qk_head) ||
            !gac_side_aligns(b, GAC_OP_SDPA_HEAD, s->qk_head))
            continue;
        snprintf(what, sizeof what, "attention %s %lld x %lld%s",
                 s->n_q == 1 ? "decode" : "prefill", (long long)s->batch, (long long)s->n_kv,
                 s->causal ? " causal" : "");
        add_time(list, what, gac_contract_sdpa_us(a->contract, a->dtype, s),
                 gac_contract_sdpa_us(b->contract, b->dtype, s), same);
    }
    return list;
}

static gac_status take_side(gac_side *s, const gac_contract *contract, gac_dtype dtype,
                            gac_error *err)
{
    s->contract = contract;
    s->dtype = dtype;
    s->rules = gac_contract_dtype(contract, dtype, &s->served) ? contract->rules[s->served] : NULL;
    return s->rules ? GAC_OK
                    : gac_error_set(err, GAC_USAGE, "contract %s says nothing of %s",
                                    contract->name, gac_dtype_name(dtype));
}

static const char *fallback_name(const gac_side *s)
{
    gac_dtype dtype = s->rules->falls_back;
    return dtype < GAC_DTYPE_COUNT ? gac_dtype_name(dtype) : NULL;
}

static gac_status diff_dtype(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                             gac_dtype dtype_b, json_t *compared, bool *same, gac_error *err)
{
    gac_side left, right;
    json_t *places = json_array();
    gac_status status = take_side(&left, a, dtype_a, err);
    if (status == GAC_OK)
        status = take_side(&right, b, dtype_b, err);
    for (int seen = 0; seen < GAC_OP_AXIS_COUNT && status == GAC_OK; seen++)
        status = diff_place(&left, &right, (gac_op_axis)seen, places, same, err);
    json_t *times = NULL;
    if (status == GAC_OK)
        status = gac_sweep_times(&left, &right, places, &times, same, err);
    if (status != GAC_OK) {
        json_decref(places);
        return status;
    }
    int64_t max_a = left.rules->sdpa.max_head, max_b = right.rules->sdpa.max_head;
    *same = *same && max_a == max_b && left.rules->falls_back == right.rules->falls_back;
    json_t *points = gac_changed_points(a, left.served, b, right.served, same);
    json_array_append_new(
        compared,
        json_pack("{s:s, s:s, s:s, s:s, s:s?, s:s?, s:o, s:o, s:o, s:o, s:o, s:{s:I, s:I}}",
                  "dtype_a", gac_dtype_name(dtype_a), "dtype_b", gac_dtype_name(dtype_b),
                  "served_by_a", gac_dtype_name(left.served), "served_by_b",
                  gac_dtype_name(right.served), "falls_back_a", fallback_name(&left),
                  "falls_back_b", fallback_name(&right), "places", places, "times", times,
                  "aligned", diff_times(&left, &right, same), "points", points, "steps",
                  gac_changed_steps(a, left.served, b, right.served, same), "max_head", "a",
                  (json_int_t)max_a, "b", (json_int_t)max_b));
    return GAC_OK;
}

/* Entries of the stacks, and name, GPU and architecture, that are not equal. */
static json_t *diff_stack(const gac_contract *a, const gac_contract *b)
{
    static const char *const keys[] = { "gpu", "arch" };
    json_t *list = json_array(), *value;
    const char *key;
    json_t *stack_a = json_object_get(a->json, "stack"),
           *stack_b = json_object_get(b->json, "stack");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_equal(json_object_get(a->json, keys[i]), json_object_get(b->json, keys[i])))
            json_array_append_new(list, json_pack("{s:s, s:O?, s:O?}", "key", keys[i], "a",
                                                  json_object_get(a->json, keys[i]), "b",
                                                  json_object_get(b->json, keys[i])));
    json_object_foreach(stack_a, key, value)
        if (!json_equal(value, json_object_get(stack_b, key)))
            json_array_append_new(list, json_pack("{s:s, s:O, s:O?}", "key", key, "a", value, "b",
                                                  json_object_get(stack_b, key)));
    json_object_foreach(stack_b, key, value)
        if (!json_object_get(stack_a, key))
            json_array_append_new(list, json_pack("{s:s, s:n, s:O}", "key", key, "a", "b", value));
    return list;
}

gac_status gac_contract_diff(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                             gac_dtype dtype_b, struct json_t **out, gac_error *err)
{
    bool same = true, all = dtype_a == GAC_DTYPE_COUNT && dtype_b == GAC_DTYPE_COUNT;
    json_t *compared = json_array(), *only_a = json_array(), *only_b = json_array();
    gac_status status = GAC_OK;
    if (!all)
        status = diff_dtype(a, dtype_a, b, dtype_b, compared, &same, err);
    for (int d = 0; d < GAC_DTYPE_COUNT && status == GAC_OK && all; d++) {
        json_t *name = json_string(gac_dtype_name((gac_dtype)d));
        if (a->rules[d] && b->rules[d])
            status = diff_dtype(a, (gac_dtype)d, b, (gac_dtype)d, compared, &same, err);
        else if (a->rules[d])
            json_array_append(only_a, name);
        else if (b->rules[d])
            json_array_append(only_b, name);
        json_decref(name);
    }
    same = same && json_array_size(only_a) == 0 && json_array_size(only_b) == 0;
    json_t *stand_ins = all ? gac_changed_stand_ins(a, b, &same) : json_array();
    json_t *runtime = gac_changed_runtime(a, b, &same);
    json_t *json =
        json_pack("{s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "a", a->name, "b", b->name,
                  "same", same, "stack", diff_stack(a, b), "runtime", runtime, "dtypes_only_in_a",
                  only_a, "dtypes_only_in_b", only_b, "stand_ins", stand_ins, "compared", compared);
    if (!json)
        return gac_error_no_memory(err);
    if (status != GAC_OK)
        json_decref(json);
    else
        *out = json;
    return status;
}

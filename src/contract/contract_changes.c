#include "contract/contract_changes.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEP_LINES = 64, MAX_STEPS_SAID = 5 };

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

/* Steps of one side: lines of {"place", …, "at": [sizes], "pct": [jumps]}. */
static json_t *steps_of(const gac_contract *contract, gac_dtype dtype)
{
    json_t *gemm = json_object_get(contract->json, "gemm");
    return json_object_get(json_object_get(gemm, gac_dtype_name(dtype)), "steps");
}

/* What a line of steps is along: all of it but the steps. The caller owns it. */
static json_t *line_of(json_t *steps)
{
    json_t *line = json_copy(steps);
    json_object_del(line, "at");
    json_object_del(line, "pct");
    return line;
}

static json_t *find_line(const json_t *list, const json_t *line)
{
    for (size_t i = 0; i < json_array_size(list) && i < MAX_STEP_LINES; i++) {
        json_t *steps = json_array_get(list, i), *other = line_of(steps);
        bool found = json_equal(other, line);
        json_decref(other);
        if (found)
            return steps;
    }
    return NULL;
}

static double entry_at(const json_t *steps, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(steps, key), i));
}

/* Both rise, and nobody has checked that: then it only may not be told well. */
static void match_steps(const json_t *a, const json_t *b, json_t *only_a, json_t *only_b,
                        json_t *changed)
{
    json_t *at_a = json_object_get(a, "at"), *at_b = json_object_get(b, "at");
    size_t n_a = json_array_size(at_a), n_b = json_array_size(at_b), i = 0, j = 0;
    while (i < n_a || j < n_b) {
        double x = i < n_a ? entry_at(a, "at", i) : INFINITY;
        double y = j < n_b ? entry_at(b, "at", j) : INFINITY;
        if (x < y) {
            json_array_append(only_a, json_array_get(at_a, i++));
        } else if (y < x) {
            json_array_append(only_b, json_array_get(at_b, j++));
        } else {
            double a_pct = entry_at(a, "pct", i++), b_pct = entry_at(b, "pct", j);
            if (fabs(a_pct - b_pct) > 100 * (GAC_CHANGED_TIME - 1))
                json_array_append_new(changed,
                                      json_pack("{s:O, s:f, s:f}", "at", json_array_get(at_b, j),
                                                "a_pct", a_pct, "b_pct", b_pct));
            j++;
        }
    }
}

typedef struct words {
    char text[600];
    size_t used;
    bool listed; /* a list is there already */
} words;

static void say(words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(words *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (w->used < sizeof w->text)
        w->used += (size_t)vsnprintf(w->text + w->used, sizeof w->text - w->used, format, list);
    va_end(list);
}

static void say_line(words *w, const json_t *line)
{
    char quoted[24];
    const char *place = json_string_value(json_object_get(line, "place"));
    double m = json_number_value(json_object_get(line, "m"));
    double other = json_number_value(json_object_get(line, "other"));
    if (place && strcmp(place, "m") == 0)
        say(w, "steps of rows at n %.0f, k %.0f:", json_number_value(json_object_get(line, "n")),
            json_number_value(json_object_get(line, "k")));
    else
        say(w, "steps of %s with %.0f rows, %s %.0f:",
            gac_quote(quoted, sizeof quoted, place ? place : "sizes"), m,
            place && strcmp(place, "n") == 0 ? "k" : "n", other);
}

/* Some of a list of sizes; those of changed are objects. */
static void say_steps(words *w, const char *label, const json_t *list)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n && i < MAX_STEPS_SAID; i++) {
        const json_t *value = json_array_get(list, i), *at = json_object_get(value, "at");
        if (i == 0)
            say(w, "%s %s", w->listed ? ";" : "", label);
        say(w, "%s %.0f", i > 0 ? "," : "", json_number_value(at ? at : value));
        if (at)
            say(w, " (%.1f %% then %.1f %%)", json_number_value(json_object_get(value, "a_pct")),
                json_number_value(json_object_get(value, "b_pct")));
        w->listed = true;
    }
    if (n > MAX_STEPS_SAID)
        say(w, " and %zu more", n - MAX_STEPS_SAID);
}

/* a or b is NULL where only the other has the line. Takes line. */
static void add_steps(json_t *list, json_t *line, const json_t *a, const json_t *b)
{
    json_t *only_a = json_array(), *only_b = json_array(), *changed = json_array();
    words w = { .used = 0 };
    match_steps(a, b, only_a, only_b, changed);
    say_line(&w, line);
    say_steps(&w, "only in A", only_a);
    say_steps(&w, "only in B", only_b);
    say_steps(&w, "changed", changed);
    bool differ = json_array_size(only_a) + json_array_size(only_b) + json_array_size(changed) > 0;
    json_t *row = json_pack("{s:s, s:o, s:o, s:o, s:o}", "text", w.text, "line", line, "only_in_a",
                            only_a, "only_in_b", only_b, "changed", changed);
    if (differ)
        json_array_append_new(list, row);
    else
        json_decref(row);
}

json_t *gac_changed_steps(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                          gac_dtype dtype_b, bool *same)
{
    json_t *list = json_array(), *in_a = steps_of(a, dtype_a), *in_b = steps_of(b, dtype_b);
    if (json_equal(in_a, in_b))
        return list;
    for (size_t i = 0; i < json_array_size(in_a) && i < MAX_STEP_LINES; i++) {
        json_t *line = line_of(json_array_get(in_a, i));
        add_steps(list, line, json_array_get(in_a, i), find_line(in_b, line));
    }
    for (size_t i = 0; i < json_array_size(in_b) && i < MAX_STEP_LINES; i++) {
        json_t *line = line_of(json_array_get(in_b, i));
        if (find_line(in_a, line))
            json_decref(line);
        else
            add_steps(list, line, NULL, json_array_get(in_b, i));
    }
    *same = *same && json_array_size(list) == 0;
    return list;
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

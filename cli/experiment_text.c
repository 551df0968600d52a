#include "experiment_text.h"

#include <string.h>

#define MAX_ROWS 24
#define LABEL_WIDTH 22
#define CELL_WIDTH 16

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* The time of a variant in ms, and the published one. */
static void print_cell(FILE *stream, const json_t *cell)
{
    char text[64];
    const json_t *published = json_object_get(cell, "published_ms");
    if (strcmp(text_of(cell, "state"), "measured") == 0)
        snprintf(text, sizeof text, "%.4f", number_of(cell, "time_us") / 1000);
    else
        snprintf(text, sizeof text, "%s",
                 strcmp(text_of(cell, "state"), "not run") == 0 ? "-" : text_of(cell, "state"));
    size_t n = strlen(text);
    if (published)
        snprintf(text + n, sizeof text - n, " [%.3f]", json_number_value(published));
    fprintf(stream, " %-*s", CELL_WIDTH, text);
}

static void print_row(FILE *stream, const json_t *one)
{
    json_t *variants = json_object_get(one, "variants");
    const char *families = "";
    fprintf(stream, "  %-*s", LABEL_WIDTH, text_of(one, "label"));
    for (void *i = json_object_iter(variants); i; i = json_object_iter_next(variants, i)) {
        const json_t *cell = json_object_iter_value(i);
        print_cell(stream, cell);
        if (!families[0])
            families = text_of(cell, "families");
    }
    fprintf(stream, " %s\n", families);
}

static bool has_published(const json_t *one)
{
    json_t *variants = json_object_get(one, "variants");
    for (void *i = json_object_iter(variants); i; i = json_object_iter_next(variants, i))
        if (json_object_get(json_object_iter_value(i), "published_ms"))
            return true;
    return false;
}

static bool measures(const json_t *one)
{
    json_t *variants = json_object_get(one, "variants");
    for (void *i = json_object_iter(variants); i; i = json_object_iter_next(variants, i))
        if (strcmp(text_of(json_object_iter_value(i), "state"), "not run") != 0)
            return true;
    return false;
}

/* One sweep from a list: published cases, and others evenly up to a limit. */
static void print_sweep(FILE *stream, const json_t *cases, size_t from, size_t to, bool all)
{
    const json_t *first = json_array_get(cases, from);
    json_t *variants = json_object_get(first, "variants");
    size_t n = to - from, step = all || n <= MAX_ROWS ? 1 : (n + MAX_ROWS - 1) / MAX_ROWS,
           hidden = 0;
    if (!measures(first))
        return;
    fprintf(stream, "\n%-*s", LABEL_WIDTH + 2, text_of(first, "sweep"));
    for (void *i = json_object_iter(variants); i; i = json_object_iter_next(variants, i))
        fprintf(stream, " %-*s", CELL_WIDTH, json_object_iter_key(i));
    fprintf(stream, " kernels\n");
    for (size_t i = from; i < to; i++) {
        const json_t *one = json_array_get(cases, i);
        if ((i - from) % step == 0 || has_published(one))
            print_row(stream, one);
        else
            hidden++;
    }
    if (hidden)
        fprintf(stream, "  and %zu more (-v shows all)\n", hidden);
}

static void print_figure(FILE *stream, const json_t *claim, const char *key)
{
    char text[32] = "-";
    const json_t *value = json_object_get(claim, key);
    const char *as = text_of(claim, "as");
    if (json_is_number(value) && strcmp(as, "percent") == 0)
        snprintf(text, sizeof text, "%+.1f %%", json_number_value(value));
    else if (json_is_number(value) && strcmp(as, "share") == 0)
        snprintf(text, sizeof text, "%.1f %%", 100 * json_number_value(value));
    else if (json_is_number(value))
        snprintf(text, sizeof text, "%.3f x", json_number_value(value));
    fprintf(stream, " %10s", text);
}

static void print_claims(FILE *stream, const json_t *claims)
{
    fprintf(stream, "\n%13s %10s  %-13s claim\n", "published", "ours", "verdict");
    for (size_t i = 0; i < json_array_size(claims); i++) {
        const json_t *claim = json_array_get(claims, i);
        fputs("  ", stream);
        print_figure(stream, claim, "published");
        print_figure(stream, claim, "ours");
        fprintf(stream, "  %-13s %s\n", text_of(claim, "verdict"), text_of(claim, "says"));
        fprintf(stream, "%39s %s\n", "", text_of(claim, "reason"));
    }
}

static void print_checks(FILE *stream, const json_t *checks)
{
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        const json_t *forgotten = json_object_get(check, "relative_with_forgotten_scale");
        const json_t *relative = json_object_get(check, "relative");
        if (i == 0)
            fputs("\noutputs against the reference\n", stream);
        fprintf(stream, "  head %3lld stored as %3lld, %-9s ",
                (long long)json_integer_value(json_object_get(check, "head")),
                (long long)json_integer_value(json_object_get(check, "stored")),
                text_of(check, "path"));
        if (json_is_number(relative))
            fprintf(stream, "%.2e of %.0e allowed: %s", json_number_value(relative),
                    number_of(check, "tolerance"),
                    json_is_true(json_object_get(check, "holds")) ? "holds" : "DOES NOT HOLD");
        else
            fprintf(stream, "%s%s", relative ? "DOES NOT HOLD: infinite" : "not run: ",
                    relative ? "" : text_of(check, "reason"));
        if (forgotten)
            fprintf(stream, " (scale forgotten: %.2e)", json_number_value(forgotten));
        if (json_integer_value(json_object_get(check, "n_sizes_in_launch")) > 1)
            fprintf(stream, ", one of %lld sizes in a launch",
                    (long long)json_integer_value(json_object_get(check, "n_sizes_in_launch")));
        fputc('\n', stream);
    }
}

/* All the counters are in the JSON. */
static void print_derived(FILE *stream, const json_t *derived)
{
    const json_t *use = json_object_get(derived, "tensor_use_pct");
    const json_t *sectors = json_object_get(derived, "sectors_per_request");
    const json_t *loads = json_object_get(derived, "n_register_loads");
    const json_t *width = json_object_get(derived, "load_bytes_per_lane");
    fputs("           ", stream);
    if (use)
        fprintf(stream, "Tensor Cores busy %.1f %% of the time", json_number_value(use));
    if (sectors)
        fprintf(stream, ", %.1f sectors a request", json_number_value(sectors));
    if (width)
        fprintf(stream, ", loads of %.1f bytes a lane", json_number_value(width));
    else if (loads && json_number_value(loads) == 0)
        fputs(", no loads into registers", stream);
    fputc('\n', stream);
}

static void print_counters(FILE *stream, const json_t *counters)
{
    if (!counters)
        return;
    if (!json_is_true(json_object_get(counters, "available"))) {
        fprintf(stream, "\nhardware counters: none: %s\n", text_of(counters, "reason"));
        return;
    }
    const json_t *calls = json_object_get(counters, "calls");
    fputs("\nhardware counters, by kernel\n", stream);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *kernels = json_object_get(call, "kernels");
        for (size_t k = 0; k < json_array_size(kernels); k++) {
            const json_t *kernel = json_array_get(kernels, k);
            fprintf(stream, "  %-8s %.60s\n", text_of(call, "case"), text_of(kernel, "kernel"));
            print_derived(stream, json_object_get(kernel, "derived"));
        }
    }
}

/* "S2: contradicted (1 contradicted, 3 stronger, 3 reproduced; 1 unpublished)": the
 * claims that were judged, then the others. */
static void print_summary(FILE *stream, const char *id, const json_t *summary)
{
    static const char *const judged[] = { "contradicted", "weaker",    "stronger",
                                          "reproduced",   "ambiguous", NULL };
    static const char *const others[] = { "not measured", "unpublished", "arithmetic", NULL };
    static const char *const *const lists[] = { judged, others };
    const json_t *claims = json_object_get(summary, "claims");
    const char *separator = " (";
    fprintf(stream, "\n%s: %s", id, text_of(summary, "verdict"));
    for (int i = 0; i < 2; i++) {
        for (const char *const *word = lists[i]; *word; word++) {
            const json_t *count = json_object_get(claims, *word);
            if (!count)
                continue;
            fprintf(stream, "%s%lld %s", separator, (long long)json_integer_value(count), *word);
            separator = ", ";
        }
        separator = separator[0] == ',' ? "; " : separator;
    }
    fputs(separator[0] == ' ' ? "\n\n" : ")\n\n", stream);
}

void experiment_print(FILE *stream, const json_t *result, bool all_cases)
{
    const json_t *cases = json_object_get(result, "cases");
    const json_t *summary = json_object_get(result, "summary");
    const json_t *facts = json_object_get(result, "device_facts");
    size_t n = json_array_size(cases), from = 0;
    fprintf(stream, "%s: %s (%s stack, %s%s)\n%s\n", text_of(result, "id"),
            text_of(result, "title"), text_of(result, "lens"),
            text_of(facts, json_object_get(facts, "gpu") ? "gpu" : "device"),
            json_is_true(json_object_get(result, "quick")) ? ", quick" : "",
            text_of(result, "question"));
    fputs("times in ms, published ones in brackets\n", stream);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && strcmp(text_of(json_array_get(cases, i), "sweep"),
                            text_of(json_array_get(cases, from), "sweep")) == 0)
            continue;
        print_sweep(stream, cases, from, i, all_cases);
        from = i;
    }
    print_claims(stream, json_object_get(result, "claims"));
    print_checks(stream, json_object_get(result, "checks"));
    print_counters(stream, json_object_get(result, "counters"));
    print_summary(stream, text_of(result, "id"), summary);
}

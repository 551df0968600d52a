/* Results as tables, for --format md and --format csv. Every command makes one JSON document; the
 * views say which tables are in it. */
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 40 };

typedef enum rows {
    ALL,
    MISALIGNED, /* Markdown shows these only, equal ones in several layers as one row */
    CHANGED,    /* the same */
} rows;

/* path: keys with dots between them. An array on the way is walked; * is every key of an object; |
 * separates paths whose rows form one table. An empty path is the document itself, as one row.
 * columns: keys of a row. ^key is a key of what the row's array is in, @ the path that led there;
 * label=key gives a column another name.
 * The columns phases, prefill and decode become one column for each shape. */
typedef struct view {
    const char *schema, *title, *path, *columns;
    rows rows;
} view;

/* The first view of a schema that has rows is what CSV prints. */
static const view views[] = {
    { "gac.inspect/1", "sizes", "dims",
      "name role size aligned suggest exactness penalty lost_ms seen_by family", MISALIGNED },
    { "gac.inspect/1", "sizes by role", "roles", "role n_dims n_misaligned misaligned_pct", ALL },
    { "gac.inspect/1", "predicted times", "summary.phases",
      "phase now_ms repaired_ms ratio rescaled_ms", ALL },
    { "gac.inspect/1", "advice", "summary", "advice overhead_pct", ALL },
    { "gac.plan/1", "sizes that change", "dims", "name from to", CHANGED },
    { "gac.plan/1", "the plan", "",
      "strategy contract workload overhead_pct now_ms planned_ms optimal note", ALL },
    { "gac.front/1", "front", "points", "extra_bytes overhead_pct time_ms", ALL },
    { "gac.repair/1", "sizes changed", "dims", "name from to", CHANGED },
    { "gac.repair/1", "bytes", "", "bytes_before bytes_after overhead_pct written", ALL },
    { "gac.repair/1", "where it loads", "loads_in", "name loads how why", ALL },
    { "gac.compress/1", "models", "table", "row params bytes aligned_pct loss perplexity phases",
      ALL },
    { "gac.compress/1", "where it loads", "loads_in", "name loads how why", ALL },
    { "gac.eval/1", "eval", "",
      "checkpoint.path checkpoint.compressor checkpoint.n_params device dtype memory_bytes "
      "perplexity.value perplexity.stderr piqa.acc piqa.acc_norm prefill decode",
      ALL },
    { "gac.dim/1", "ranks", "candidates",
      "rank multiple kept aligned prefill_ratio decode_ratio within suggested", ALL },
    { "gac.dim/1", "places", "places", "seen n_rows aligned penalty family basis", ALL },
    { "gac.dim/1", "size", "", "from to strategy overhead_pct contract", ALL },
    { "gac.contracts/1", "contracts", "contracts", "name gpu arch provisional dtypes", ALL },
    { "gac.contract/2", "tiers of sizes", "gemm.*.n|gemm.*.k|sdpa.*.tiers",
      "@ multiple aligned family decode_family worst_penalty basis", ALL },
    { "gac.contract-diff/1", "shapes that differ most", "compared.worst",
      "^dtype shape a_us b_us b_over_a", ALL },
    { "gac.contract-diff/1", "compared", "compared",
      "dtype b_over_a n_shapes n_slower n_faster noise_pct", ALL },
    { "gac.experiment/1", "claims", "claims",
      "experiment=^id ^stack says as published ours verdict reason", ALL },
    { "gac.experiments/1", "claims", "results.claims",
      "experiment=^id ^stack says as published ours verdict reason", ALL },
    { "gac.experiments/1", "experiments", "experiments", "id title n_cases n_calls", ALL },
};
enum { N_VIEWS = sizeof views / sizeof *views };

/* A table in the making: rows are arrays of texts. */
typedef struct table {
    const view *view;
    const char *columns[MAX_COLUMNS];
    int n_columns;
    char *names;   /* what columns point into */
    json_t *heads; /* texts */
    json_t *rows;
    bool merge;     /* Markdown's short form */
    json_t *merged; /* the index of a row by its text */
} table;

static json_t *cell_text(const json_t *value, const table *t)
{
    char text[64];
    if (json_is_string(value))
        return json_string(json_string_value(value));
    if (json_is_boolean(value))
        return json_string(json_is_true(value) ? "yes" : "no");
    if (json_is_integer(value)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        return json_string(text);
    }
    if (json_is_real(value)) {
        snprintf(text, sizeof text, t->merge ? "%.5g" : "%.9g", json_real_value(value));
        return json_string(text);
    }
    if (!json_is_array(value))
        return json_string("");
    char list[400] = "";
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *part = json_string_value(json_array_get(value, i));
        size_t n = strlen(list);
        if (part)
            snprintf(list + n, sizeof list - n, "%s%s", n ? " " : "", part);
    }
    return json_string(list);
}

/* A cell; "" where memory was short. */
static const char *text_at(const json_t *cells, size_t i)
{
    const char *text = json_string_value(json_array_get(cells, i));
    return text ? text : "";
}

/* The value of a key with dots. */
static const json_t *value_at(const json_t *object, const char *key)
{
    char part[64];
    for (;;) {
        size_t n = strcspn(key, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, key);
        object = json_object_get(object, part);
        if (!key[n])
            return object;
        key += n + 1;
    }
}

static bool is_shapes(const char *column)
{
    return strcmp(column, "phases") == 0 || strcmp(column, "prefill") == 0 ||
           strcmp(column, "decode") == 0;
}

/* Adds one cell, or one head, for each shape that was timed. */
static void add_shapes(const table *t, const json_t *list, const char *column, bool head,
                       json_t *cells)
{
    char text[120];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *phase = json_string_value(json_object_get(entry, "phase"));
        const json_t *ms = json_object_get(entry, "ms"), *length = json_object_get(entry, "length");
        const char *basis = "";
        if (!ms) {
            ms = json_object_get(entry, "measured_ms");
            basis = "measured ";
        }
        if (!ms || json_is_null(ms)) {
            ms = json_object_get(entry, "predicted_ms");
            basis = "predicted ";
        }
        phase = phase ? phase : column;
        length = length ? length : json_object_get(entry, "context");
        snprintf(text, sizeof text, "%s %lld%c%lld %sms", phase,
                 (long long)json_integer_value(json_object_get(entry, "batch")),
                 strcmp(phase, "decode") == 0 ? '@' : 'x', (long long)json_integer_value(length),
                 basis);
        json_array_append_new(cells, head ? json_string(text) : cell_text(ms, t));
    }
}

/* Whether Markdown shows a row. */
static bool is_shown(const table *t, const json_t *row)
{
    if (!t->merge || t->view->rows == ALL)
        return true;
    if (t->view->rows == MISALIGNED)
        return json_is_false(json_object_get(row, "aligned"));
    return !json_equal(json_object_get(row, "from"), json_object_get(row, "to"));
}

/* Adds what a row adds to an equal one in another layer: its count and its loss. */
static bool add_to_equal(table *t, const json_t *row, json_t *cells)
{
    char key[1024] = "", pattern[200], text[40];
    int lost_at = -1;
    cli_pattern(pattern, sizeof pattern, text_at(cells, 0));
    for (int i = 0; i < t->n_columns; i++) {
        size_t n = strlen(key);
        if (strcmp(t->columns[i], "lost_ms") == 0)
            lost_at = i + 1; /* after the count, which comes second */
        else
            snprintf(key + n, sizeof key - n, "%s\n", i ? text_at(cells, (size_t)i) : pattern);
    }
    const json_t *known = json_object_get(t->merged, key);
    if (!known) {
        json_object_set_new(t->merged, key, json_integer((json_int_t)json_array_size(t->rows)));
        json_array_insert_new(cells, 1, json_string("1"));
        return false;
    }
    json_t *first = json_array_get(t->rows, (size_t)json_integer_value(known));
    long long count = strtoll(text_at(first, 1), NULL, 10) + 1;
    snprintf(text, sizeof text, "%lld", count);
    json_array_set_new(first, 0, json_string(pattern));
    json_array_set_new(first, 1, json_string(text));
    const json_t *lost = json_object_get(row, "lost_ms");
    if (lost_at > 0 && json_is_number(lost)) {
        snprintf(text, sizeof text, "%.5g",
                 strtod(text_at(first, (size_t)lost_at), NULL) + json_number_value(lost));
        json_array_set_new(first, (size_t)lost_at, json_string(text));
    }
    return true;
}

/* Adds a head, which ends at = where there is one. */
static void add_head(table *t, const char *label)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)strcspn(label, "="), label);
    json_array_append_new(t->heads, json_string(text));
}

static void add_row(table *t, const json_t *row, const json_t *parent, const char *path)
{
    json_t *cells = json_array();
    const bool first = json_array_size(t->heads) == 0;
    if (!is_shown(t, row)) {
        json_decref(cells);
        return;
    }
    for (int i = 0; i < t->n_columns; i++) {
        const char *label = t->columns[i], *equals = strchr(label, '=');
        const char *column = equals ? equals + 1 : label;
        const bool outer = *column == '^', where = *column == '@';
        const json_t *value = where ? NULL : value_at(outer ? parent : row, column + outer);
        if (outer && !value && strcmp(column, "^stack") == 0)
            value = value_at(parent, "lens"); /* results of older versions */
        if (is_shapes(column)) {
            if (first)
                add_shapes(t, value, column, true, t->heads);
            add_shapes(t, value, column, false, cells);
            continue;
        }
        if (first)
            add_head(t, where ? "where" : equals ? label : column + outer);
        json_array_append_new(cells, where ? json_string(path) : cell_text(value, t));
    }
    const bool merged = t->merge && t->view->rows != ALL;
    if (merged && first)
        json_array_insert_new(t->heads, 1, json_string("count"));
    if (merged && add_to_equal(t, row, cells))
        json_decref(cells);
    else
        json_array_append_new(t->rows, cells);
}

/* Adds the rows at the end of a path. done is the path so far. */
static void walk(table *t, const json_t *value, const json_t *parent, const char *path,
                 const char *done)
{
    char part[64], longer[200];
    const char *key;
    size_t i;
    json_t *child, *all = (json_t *)(uintptr_t)value; /* jansson's loops take no const */
    const size_t n = strcspn(path, ".|");
    const char *rest = path[n] == '.' ? path + n + 1 : "";
    if (json_is_array(value)) {
        json_array_foreach(all, i, child)
            if (json_is_object(child))
                walk(t, child, parent, path, done);
        return;
    }
    if (n == 0) {
        if (json_is_object(value))
            add_row(t, value, parent, done);
        return;
    }
    snprintf(part, sizeof part, "%.*s", (int)n, path);
    json_object_foreach(all, key, child)
        if (strcmp(part, "*") == 0 || strcmp(part, key) == 0) {
            snprintf(longer, sizeof longer, "%s%s%s", done, *done ? "." : "", key);
            walk(t, child, value, rest, longer);
        }
}

static void table_dispose(table *t)
{
    free(t->names);
    json_decref(t->heads);
    json_decref(t->rows);
    json_decref(t->merged);
}

static gac_status table_make(table *t, const view *v, const json_t *result, bool merge,
                             gac_error *err)
{
    char *rest = NULL;
    *t = (table){ .view = v, .merge = merge, .names = strdup(v->columns) };
    t->heads = json_array();
    t->rows = json_array();
    t->merged = json_object();
    if (!t->names)
        return gac_error_no_memory(err);
    for (char *at = strtok_r(t->names, " ", &rest); at && t->n_columns < MAX_COLUMNS;
         at = strtok_r(NULL, " ", &rest))
        t->columns[t->n_columns++] = at;
    for (const char *path = v->path;; path++) {
        walk(t, result, NULL, path, "");
        path = strchr(path, '|');
        if (!path)
            break;
    }
    return gac_memory_check(err);
}

/* Makes a table of a document that has no view: its keys and values. */
static void add_keys(table *t, const json_t *object, const char *before)
{
    static const char *const left_out[] = { "schema", "tool", "time", "machine", "arguments" };
    char name[160];
    const char *key;
    json_t *value, *all = (json_t *)(uintptr_t)object;
    json_object_foreach(all, key, value) {
        bool skip = json_is_array(value);
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out && !*before; i++)
            skip = skip || strcmp(left_out[i], key) == 0;
        snprintf(name, sizeof name, "%s%s%s", before, *before ? "." : "", key);
        if (json_is_object(value) && !skip && !*before)
            add_keys(t, value, name);
        else if (!skip && !json_is_object(value))
            json_array_append_new(t->rows, json_pack("[s, o]", name, cell_text(value, t)));
    }
}

static void put_md_cell(const char *text)
{
    fputc(' ', stdout);
    for (; *text; text++) {
        if (*text == '|' || *text == '\\')
            fputc('\\', stdout);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, stdout);
    }
    fputs(" |", stdout);
}

/* Control characters become spaces, as in Markdown. */
static void put_csv_cell(const char *text, bool first)
{
    if (!first)
        fputc(',', stdout);
    const bool quoted = text[strcspn(text, ",\"")];
    if (quoted)
        fputc('"', stdout);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', stdout);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, stdout);
    }
    if (quoted)
        fputc('"', stdout);
}

static void put_line(const json_t *cells, bool md)
{
    if (md)
        fputc('|', stdout);
    for (size_t i = 0; i < json_array_size(cells); i++) {
        if (md)
            put_md_cell(text_at(cells, i));
        else
            put_csv_cell(text_at(cells, i), i == 0);
    }
    fputc('\n', stdout);
}

static void put_table(const table *t, bool md, bool titled)
{
    if (titled)
        printf("**%s**\n\n", t->view->title);
    put_line(t->heads, md);
    for (size_t i = 0; i < json_array_size(t->heads) && md; i++)
        fputs(i ? " --- |" : "| --- |", stdout);
    if (md)
        fputc('\n', stdout);
    for (size_t i = 0; i < json_array_size(t->rows); i++)
        put_line(json_array_get(t->rows, i), md);
}

/* Prints the keys and values of a document without views. */
static gac_status print_keys(const json_t *result, bool md, gac_error *err)
{
    static const view none = { .columns = "", .path = "" };
    table t = { .view = &none };
    t.heads = json_pack("[s, s]", "key", "value");
    t.rows = json_array();
    add_keys(&t, result, "");
    gac_status status = gac_memory_check(err);
    if (status == GAC_OK)
        put_table(&t, md, false);
    table_dispose(&t);
    return status;
}

gac_status cli_print_result(cli *c, const json_t *result)
{
    const bool md = c->format == CLI_FORMAT_MD;
    const char *schema = json_string_value(json_object_get(result, "schema"));
    int n_printed = 0;
    if (c->format == CLI_FORMAT_TEXT || c->format == CLI_FORMAT_JSON)
        return gac_json_print(stdout, result, &c->error);
    gac_status status = gac_memory_check(&c->error);
    for (int i = 0; i < N_VIEWS && schema && status == GAC_OK && (md || n_printed == 0); i++) {
        table t;
        if (strcmp(views[i].schema, schema) != 0)
            continue;
        status = table_make(&t, &views[i], result, md, &c->error);
        if (status == GAC_OK && json_array_size(t.rows) > 0) {
            if (n_printed++ > 0)
                fputc('\n', stdout);
            put_table(&t, md, md);
        }
        table_dispose(&t);
    }
    if (status == GAC_OK && n_printed == 0)
        status = print_keys(result, md, &c->error);
    if (status == GAC_OK && (fflush(stdout) != 0 || ferror(stdout)))
        return gac_error_set(&c->error, GAC_FAILED, "cannot write the result");
    return status;
}

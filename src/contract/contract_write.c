/* Writes the file of a contract. */
#include "base/arguments.h"
#include "contract/contract_schema.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 100 };

static void write_struct(FILE *to, const gac_struct *s, const void *at, int depth);

static void write_text(FILE *to, const char *text)
{
    json_t *string = json_string(text);
    if (string)
        json_dumpf(string, to, JSON_ENCODE_ANY);
    json_decref(string);
}

/* Finds a short decimal that reads back as the same number. */
static int spell(double value, char out[32])
{
    int n = 0;
    if (isnan(value))
        return snprintf(out, 32, "null");
    for (int digits = 4; digits <= 17; digits++) {
        n = snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return n;
}

static void new_line(FILE *to, int depth)
{
    fprintf(to, "\n%*s", depth, "");
}

/* Writes a list of numbers, several per line. */
static void write_numbers(FILE *to, const gac_field *field, const void *list, size_t n, int depth)
{
    char text[32];
    size_t column = WIDTH;
    fputc('[', to);
    for (size_t i = 0; i < n; i++) {
        const int64_t *sizes = list;
        const double *times = list;
        int length = field->kind == GAC_FIELD_SIZES
                         ? snprintf(text, sizeof text, "%lld", (long long)sizes[i])
                         : spell(times[i], text);
        if (i > 0)
            fputc(',', to);
        if (n > 1 && column + (size_t)length >= WIDTH) {
            new_line(to, depth + 1);
            column = (size_t)depth + 1;
        }
        fputs(text, to);
        column += (size_t)length + 1;
    }
    fputc(']', to);
}

static void write_entry(FILE *to, const gac_field *field, const void *list, size_t i, int depth)
{
    const gac_contract_text *texts = list;
    switch (field->kind) {
    case GAC_FIELD_LIST:
        write_struct(to, field->of, (const char *)list + i * field->of->n_bytes, depth);
        break;
    case GAC_FIELD_MAP:
        write_text(to, texts[i].key);
        fputs(": ", to);
        write_text(to, texts[i].value);
        break;
    case GAC_FIELD_TEXTS:
        write_text(to, ((const char *const *)list)[i]);
        break;
    default:
        write_text(to, gac_dtype_name(((const gac_dtype *)list)[i]));
    }
}

static void write_list(FILE *to, const gac_field *field, const void *at, int depth)
{
    const void *list = *(const void *const *)gac_field_in(field, at);
    size_t n = gac_field_count(field, at);
    bool is_short = field->kind == GAC_FIELD_DTYPES || n == 0;
    if (field->kind == GAC_FIELD_SIZES || field->kind == GAC_FIELD_TIMES) {
        write_numbers(to, field, list, n, depth);
        return;
    }
    fputc(field->kind == GAC_FIELD_MAP ? '{' : '[', to);
    for (size_t i = 0; i < n; i++) {
        bool shares = field->kind == GAC_FIELD_LIST && field->of->is_row && i % 8 != 0;
        if (i > 0)
            fputs(is_short || shares ? ", " : ",", to);
        if (!is_short && !shares)
            new_line(to, depth + 1);
        write_entry(to, field, list, i, depth + 1);
    }
    if (!is_short)
        new_line(to, depth);
    fputc(field->kind == GAC_FIELD_MAP ? '}' : ']', to);
}

static void write_by_dtype(FILE *to, const gac_field *field, const void *const *list, int depth)
{
    bool first = true;
    fputc('{', to);
    for (int i = 0; i < GAC_DTYPE_COUNT; i++) {
        if (!list[i])
            continue;
        fputs(first ? "" : ",", to);
        first = false;
        new_line(to, depth + 1);
        fprintf(to, "\"%s\": ", gac_dtype_name((gac_dtype)i));
        write_struct(to, field->of, list[i], depth + 1);
    }
    if (!first)
        new_line(to, depth);
    fputc('}', to);
}

static void write_value(FILE *to, const gac_field *field, const void *structure, int depth)
{
    char number[32];
    const void *at = gac_field_in(field, structure);
    switch (field->kind) {
    case GAC_FIELD_TEXT:
    case GAC_FIELD_BASIS:
        write_text(to, *(const char *const *)at);
        break;
    case GAC_FIELD_BOOL:
        fputs(*(const bool *)at ? "true" : "false", to);
        break;
    case GAC_FIELD_INTEGER:
        fprintf(to, "%lld", (long long)*(const int64_t *)at);
        break;
    case GAC_FIELD_NUMBER:
        spell(*(const double *)at, number);
        fputs(number, to);
        break;
    case GAC_FIELD_DTYPE:
        write_text(to, gac_dtype_name(*(const gac_dtype *)at));
        break;
    case GAC_FIELD_OBJECT:
        write_struct(to, field->of, *(const void *const *)at, depth);
        break;
    case GAC_FIELD_BY_DTYPE:
        write_by_dtype(to, field, at, depth);
        break;
    default:
        write_list(to, field, structure, depth);
    }
}

static void write_struct(FILE *to, const gac_struct *s, const void *at, int depth)
{
    bool first = true;
    fputc(s->is_row ? '[' : '{', to);
    if (s == &gac_contract_struct) {
        fputs("\n \"schema\": \"" GAC_CONTRACT_SCHEMA "\"", to);
        first = false;
    }
    for (int i = 0; i < s->n_fields; i++) {
        const gac_field *field = &s->fields[i];
        if (field->optional && gac_field_is_missing(field, at))
            continue;
        fputs(first ? "" : s->is_line ? ", " : ",", to);
        first = false;
        if (!s->is_line)
            new_line(to, depth + 1);
        if (!s->is_row)
            fprintf(to, "\"%s\": ", field->key);
        write_value(to, field, at, depth + 1);
    }
    if (!s->is_line && !first)
        new_line(to, depth);
    fputc(s->is_row ? ']' : '}', to);
}

gac_status gac_contract_write(const gac_contract *contract, char **text, size_t *n_bytes,
                              gac_error *err)
{
    GAC_REFUSE_NULL(err, contract, text, n_bytes);
    *text = NULL;
    FILE *to = open_memstream(text, n_bytes);
    if (!to)
        return gac_error_no_memory(err);
    write_struct(to, &gac_contract_struct, contract, 0);
    fputc('\n', to);
    if (fclose(to) == 0 && gac_memory_check(NULL) == GAC_OK)
        return GAC_OK;
    free(*text);
    *text = NULL;
    return gac_error_no_memory(err);
}

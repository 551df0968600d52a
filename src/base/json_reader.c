#include "base/json_reader.h"

#include <stdarg.h>
#include <string.h>

#define MAX_TEXT_BYTES 512

size_t gac_reader_enter(gac_reader *r, const char *format, ...)
{
    size_t before = r->length;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(r->path + before, sizeof r->path - before, format, args);
    va_end(args);
    if (n > 0)
        r->length += (size_t)n;
    if (r->length >= sizeof r->path)
        r->length = sizeof r->path - 1;
    return before;
}

void gac_reader_leave(gac_reader *r, size_t before)
{
    r->length = before;
    r->path[before] = '\0';
}

bool gac_reader_fault(gac_reader *r, const char *rule)
{
    char source[256], path[320];
    r->status = gac_error_set(r->err, GAC_BAD_INPUT, "%s: %s: %s",
                              gac_quote(source, sizeof source, r->source),
                              gac_quote(path, sizeof path, r->path), rule);
    return false;
}

bool gac_reader_fault_at(gac_reader *r, const char *key, const char *rule)
{
    gac_reader_enter(r, ".%s", key);
    return gac_reader_fault(r, rule);
}

bool gac_reader_no_memory(gac_reader *r)
{
    r->status = gac_error_no_memory(r->err);
    return false;
}

bool gac_reader_object(gac_reader *r, const json_t *parent, const char *key, json_t **out)
{
    *out = json_object_get(parent, key);
    return json_is_object(*out) || gac_reader_fault_at(r, key, "must be an object");
}

bool gac_reader_array(gac_reader *r, const json_t *parent, const char *key, size_t max,
                      json_t **out)
{
    char rule[64];
    *out = json_object_get(parent, key);
    if (!json_is_array(*out))
        return gac_reader_fault_at(r, key, "must be an array");
    snprintf(rule, sizeof rule, "must have at most %zu entries", max);
    return json_array_size(*out) <= max || gac_reader_fault_at(r, key, rule);
}

bool gac_reader_bool(gac_reader *r, const json_t *parent, const char *key, bool *out)
{
    const json_t *value = json_object_get(parent, key);
    *out = json_is_true(value);
    return json_is_boolean(value) || gac_reader_fault_at(r, key, "must be true or false");
}

/* These strings are printed to terminals. */
bool gac_reader_is_printable(const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || n > MAX_TEXT_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

bool gac_reader_is_text(const json_t *value)
{
    return json_is_string(value) && gac_reader_is_printable(json_string_value(value));
}

bool gac_reader_text(gac_reader *r, const json_t *parent, const char *key, const char **out)
{
    const json_t *value = json_object_get(parent, key);
    *out = json_string_value(value);
    return gac_reader_is_text(value) ||
           gac_reader_fault_at(r, key, "must be a string of 1 to 512 printable bytes");
}

bool gac_reader_to_number(gac_reader *r, const json_t *value, double min, double max, double *out)
{
    char rule[96];
    *out = json_number_value(value);
    if (!json_is_number(value))
        return gac_reader_fault(r, "must be a number");
    if (*out >= min && *out <= max)
        return true;
    snprintf(rule, sizeof rule, "must be from %g to %g", min, max);
    return gac_reader_fault(r, rule);
}

bool gac_reader_number(gac_reader *r, const json_t *parent, const char *key, double min, double max,
                       double *out)
{
    const json_t *value = json_object_get(parent, key);
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= min && *out <= max)
        return true; /* only errors need the path */
    gac_reader_enter(r, ".%s", key);
    return gac_reader_to_number(r, value, min, max, out);
}

bool gac_reader_to_size(gac_reader *r, const json_t *value, int64_t max, int64_t *out)
{
    char rule[96];
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= 1 && *out <= max)
        return true;
    snprintf(rule, sizeof rule, "must be an integer from 1 to %lld", (long long)max);
    return gac_reader_fault(r, rule);
}

double gac_json_number_or(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* Helpers for reading specifications, in addition to base/json_reader.h. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

bool exp_fault(gac_reader *r, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gac_reader_fault(r, text);
}

bool exp_keys(gac_reader *r, const json_t *object, const char *names)
{
    if (!json_is_object(object))
        return exp_fault(r, "must be an object");
    for (void *i = json_object_iter((json_t *)object); i;
         i = json_object_iter_next((json_t *)object, i)) {
        const char *key = json_object_iter_key(i);
        size_t n = strlen(key);
        bool known = false;
        for (const char *at = names; at && n > 0; at = strchr(at, ' ')) {
            at += *at == ' ';
            known = known || (strncmp(at, key, n) == 0 && (at[n] == ' ' || at[n] == 0));
        }
        char q[80];
        if (!known)
            return exp_fault(r, "unknown key \"%s\"; known are %s", gac_quote(q, sizeof q, key),
                             names);
    }
    return true;
}

bool exp_text(gac_reader *r, const json_t *parent, const char *key, bool needed, const char **out)
{
    *out = NULL;
    return (!needed && !json_object_get(parent, key)) || gac_reader_text(r, parent, key, out);
}

bool exp_list(gac_reader *r, const json_t *parent, const char *key, size_t min, size_t max,
              json_t **out)
{
    *out = json_object_get(parent, key);
    if (!*out && min == 0)
        return true;
    if (json_is_array(*out) && json_array_size(*out) >= min && json_array_size(*out) <= max)
        return true;
    gac_reader_enter(r, ".%s", key);
    return exp_fault(r, "must be an array of %zu to %zu entries", min, max);
}

bool exp_is_name(const char *text)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t n = text ? strlen(text) : 0;
    return n > 0 && n <= 24 && strchr(first, text[0]) && strspn(text, rest) == n;
}

bool exp_value(gac_reader *r, const json_t *parent, const char *key, exp_lookup lookup,
               void *context, double *out)
{
    const json_t *value = json_object_get(parent, key);
    char why[160];
    size_t before = gac_reader_enter(r, ".%s", key);
    if (json_is_number(value))
        *out = json_number_value(value);
    else if (!gac_reader_is_text(value))
        return exp_fault(r, "must be a number or an expression");
    else if (!exp_eval(json_string_value(value), lookup, context, out, why, sizeof why))
        return exp_fault(r, "%s", why);
    if (!isfinite(*out))
        return exp_fault(r, "has no value");
    gac_reader_leave(r, before);
    return true;
}

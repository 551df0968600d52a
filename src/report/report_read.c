#include <ctype.h>
#include <string.h>

#include "report/report_internal.h"

#define MAX_NUMBER 1e18

bool rep_take_text(rep_reader *in, const json_t *object, const char *key, const char **out)
{
    char text[400];
    const json_t *value = json_object_get(object, key);
    *out = NULL;
    if (!value || json_is_null(value))
        return true;
    if (!json_is_string(value))
        return gac_reader_fault_at(&in->r, key, "must be a text");
    *out = rep_printf(in->report, "%s", gac_quote(text, sizeof text, json_string_value(value)));
    return true;
}

bool rep_take_number(rep_reader *in, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = NAN;
    return !value || json_is_null(value) ||
           gac_reader_number(&in->r, object, key, -MAX_NUMBER, MAX_NUMBER, out);
}

bool rep_take_flag(rep_reader *in, const json_t *object, const char *key, bool *out)
{
    *out = false;
    return !json_object_get(object, key) || gac_reader_bool(&in->r, object, key, out);
}

bool rep_take_array(rep_reader *in, const json_t *object, const char *key, size_t max,
                    const json_t **out)
{
    json_t *array;
    *out = json_object_get(object, key);
    if (json_is_null(*out))
        *out = NULL;
    return !*out || gac_reader_array(&in->r, object, key, max, &array);
}

bool rep_take_object(rep_reader *in, const json_t *object, const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    if (json_is_null(*out))
        *out = NULL;
    return !*out || json_is_object(*out) || gac_reader_fault_at(&in->r, key, "must be an object");
}

bool rep_need_text(rep_reader *in, const json_t *object, const char *key, const char **out)
{
    return rep_take_text(in, object, key, out) &&
           (*out || gac_reader_fault_at(&in->r, key, "must be a text"));
}

bool rep_need_number(rep_reader *in, const json_t *object, const char *key, double *out)
{
    return gac_reader_number(&in->r, object, key, -MAX_NUMBER, MAX_NUMBER, out);
}

bool rep_need_array(rep_reader *in, const json_t *object, const char *key, size_t max,
                    const json_t **out)
{
    return rep_take_array(in, object, key, max, out) &&
           (*out || gac_reader_fault_at(&in->r, key, "must be an array"));
}

const json_t *rep_entry(rep_reader *in, const json_t *array, size_t i, const char *name)
{
    const json_t *entry = json_array_get(array, i);
    if (json_is_object(entry))
        return entry;
    gac_reader_enter(&in->r, ".%s[%zu]", name, i);
    gac_reader_fault(&in->r, "must be an object");
    return NULL;
}

const char *rep_spaced(gac_report *report, const char *list)
{
    char text[800];
    size_t n = 0;
    if (!list)
        return NULL;
    for (; *list && n + 2 < sizeof text; list++) {
        text[n++] = *list;
        if (*list == ',' && list[1] != ' ')
            text[n++] = ' ';
    }
    text[n] = 0;
    return rep_printf(report, "%s", text);
}

const char *rep_last_part(gac_report *report, const char *path)
{
    const char *last = path, *end = strstr(path, ", "); /* "file, key" */
    for (const char *at = path; *at && at != end; at++)
        if (*at == '/' && at[1] && at[1] != ',')
            last = at + 1;
    return rep_printf(report, "%s", last);
}

const char *rep_or(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

const char *rep_pattern(rep_reader *in, const char *name)
{
    char out[400];
    size_t n = 0;
    for (const char *at = name; *at && n + 1 < sizeof out;) {
        bool number = isdigit((unsigned char)*at) && (at == name || at[-1] == '.');
        out[n++] = number ? '*' : *at++;
        while (number && isdigit((unsigned char)*at))
            at++;
    }
    out[n] = 0;
    return rep_printf(in->report, "%s", out);
}

int64_t rep_layer(const char *name)
{
    int64_t layer = 0;
    while (*name && !isdigit((unsigned char)*name))
        name++;
    if (!*name)
        return -1;
    for (; isdigit((unsigned char)*name) && layer < 100000; name++)
        layer = layer * 10 + (*name - '0');
    return layer;
}

/* Values of templates: how they compare, what is printed of them, their parts. */
#include "tokenizer/jinja.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONTAINERS = 2000, MAX_STRING = 1 << 22 };

bool jinja_truth(const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_TRUE:
        return true;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_REAL:
        return json_real_value(value) != 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    default:
        return false;
    }
}

/* A number, or a truth value as 0 or 1. */
static bool as_number(const json_t *value, double *out)
{
    *out = json_is_true(value) ? 1 : json_number_value(value);
    return json_is_number(value) || json_is_boolean(value);
}

bool jinja_equal(const json_t *a, const json_t *b)
{
    double x, y;
    if (!a || !b)
        return a == b;
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (as_number(a, &x) && as_number(b, &y))
        return x == y;
    return json_equal(a, b);
}

bool jinja_contains(jinja_run *run, const json_t *container, const json_t *value)
{
    if (json_is_string(container) && json_is_string(value)) {
        const size_t n = json_string_length(value), all = json_string_length(container);
        jinja_spend(run, all + 1);
        return n == 0 ||
               (n <= all && memmem(json_string_value(container), all, json_string_value(value), n));
    }
    if (json_is_object(container))
        return json_is_string(value) && json_object_get(container, json_string_value(value));
    if (container && !json_is_array(container))
        jinja_fail(run, "\"in\" asks for something without parts");
    for (size_t i = 0; i < json_array_size(container) && jinja_spend(run, 1); i++)
        if (jinja_equal(json_array_get(container, i), value))
            return true;
    return false;
}

json_t *jinja_string(jinja_run *run, const char *text, size_t n)
{
    if (!jinja_spend(run, n + 1))
        return NULL;
    if (n > MAX_STRING)
        return jinja_fail(run, "a text is too long");
    json_t *value = json_stringn_nocheck(text, n);
    return value ? value : jinja_fail(run, "no memory");
}

json_t *jinja_list(jinja_run *run)
{
    if (++run->n_containers > MAX_CONTAINERS)
        return jinja_fail(run, "it makes too many lists");
    json_t *list = json_array();
    return list ? list : jinja_fail(run, "no memory");
}

bool jinja_append(jinja_run *run, json_t *list, json_t *value)
{
    bool fits = jinja_spend(run, 4) && value && !jinja_is_namespace(run, value) &&
                json_array_append(list, value) == 0;
    json_decref(value);
    if (!fits)
        jinja_fail(run, "a list cannot hold this");
    return fits;
}

json_t *jinja_text_of(jinja_run *run, const json_t *value)
{
    char text[40];
    switch (value ? json_typeof(value) : JSON_STRING) {
    case JSON_STRING:
        return value ? json_incref((json_t *)(uintptr_t)value) : jinja_string(run, "", 0);
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        return jinja_string(run, text, strlen(text));
    case JSON_TRUE:
        return jinja_string(run, "True", 4);
    case JSON_FALSE:
        return jinja_string(run, "False", 5);
    case JSON_NULL:
        return jinja_string(run, "None", 4);
    default:
        return jinja_fail(run, "it prints a list, an object or a fraction");
    }
}

/* Returns where character number index of a text begins; index may be the number of all. */
static const char *character_at(const char *text, int64_t index)
{
    while (index-- > 0) {
        size_t length = 1;
        gac_utf8_get(text, &length);
        text += length;
    }
    return text;
}

static int64_t count_of(const json_t *value)
{
    int64_t n = 0;
    const char *text = json_string_value(value);
    if (!text)
        return (int64_t)json_array_size(value);
    for (size_t i = 0; i < json_string_length(value); i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static json_t *part(jinja_run *run, const json_t *value, int64_t index)
{
    if (json_is_array(value))
        return json_incref(json_array_get(value, (size_t)index));
    const char *from = character_at(json_string_value(value), index);
    return jinja_string(run, from, (size_t)(character_at(from, 1) - from));
}

/* A bound of a slice, within n values. */
static int64_t bound(const json_t *stated, int64_t n, int64_t otherwise, int64_t least,
                     int64_t most)
{
    if (!stated || json_is_null(stated))
        return otherwise;
    int64_t at = json_integer_value(stated);
    at = at < -n ? least : at < 0 ? at + n : at;
    return at < least ? least : at > most ? most : at;
}

json_t *jinja_slice(jinja_run *run, const json_t *value, const json_t *const bounds[3])
{
    const int64_t n = count_of(value);
    const int64_t step = json_is_integer(bounds[2]) ? json_integer_value(bounds[2]) : 1;
    for (int i = 0; i < 3; i++)
        if (bounds[i] && !json_is_null(bounds[i]) && !json_is_integer(bounds[i]))
            return jinja_fail(run, "a slice has a bound that is no number");
    if ((!json_is_array(value) && !json_is_string(value)) || step == 0)
        return jinja_fail(run, "a slice of something without parts");
    const bool back = step < 0;
    const int64_t from = bound(bounds[0], n, back ? n - 1 : 0, back ? -1 : 0, back ? n - 1 : n);
    const int64_t to = bound(bounds[1], n, back ? -1 : n, back ? -1 : 0, back ? n - 1 : n);
    if (json_is_string(value) && step == 1) {
        const char *first = character_at(json_string_value(value), from);
        const char *end = to > from ? character_at(first, to - from) : first;
        return jinja_spend(run, (size_t)n) ? jinja_string(run, first, (size_t)(end - first)) : NULL;
    }
    if (json_is_string(value))
        return jinja_fail(run, "a slice of a text in steps");
    json_t *list = jinja_list(run);
    const int64_t stride = step < -n - 1 ? -n - 1 : step > n + 1 ? n + 1 : step;
    for (int64_t i = from; list && (back ? i > to : i < to); i += stride)
        if (!jinja_append(run, list, part(run, value, i)))
            break;
    return list;
}

json_t *jinja_item(jinja_run *run, const json_t *value, const json_t *key)
{
    if (!value)
        return jinja_fail(run, "it reads a part of something that is not there");
    if (json_is_object(value))
        return json_is_string(key) ? json_incref(json_object_get(value, json_string_value(key)))
                                   : NULL;
    if (!json_is_integer(key) || (!json_is_array(value) && !json_is_string(value)))
        return NULL;
    const int64_t n = count_of(value), at = json_integer_value(key);
    jinja_spend(run, json_is_string(value) ? (size_t)n : 1);
    if (at < -n || at >= n)
        return NULL;
    return part(run, value, at < 0 ? at + n : at);
}

json_t *jinja_items(jinja_run *run, const json_t *value)
{
    const char *key;
    json_t *item;
    if (json_is_array(value))
        return json_incref((json_t *)(uintptr_t)value);
    json_t *list = jinja_list(run);
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, item)
            if (!list || !jinja_append(run, list, jinja_string(run, key, strlen(key))))
                break;
    } else if (json_is_string(value)) {
        const char *at = json_string_value(value), *end = at + json_string_length(value);
        while (list && at < end) {
            const char *next = character_at(at, 1);
            if (!jinja_append(run, list, jinja_string(run, at, (size_t)(next - at))))
                break;
            at = next;
        }
    } else if (value) {
        jinja_fail(run, "it goes through something without parts");
    }
    return list;
}

/* Python's white space among the characters of one byte. */
static bool is_space(char c)
{
    return isspace((unsigned char)c) || (c >= 0x1c && c <= 0x1f);
}

json_t *jinja_strip(jinja_run *run, const json_t *value, const json_t *characters, bool left,
                    bool right)
{
    const char *set = json_string_value(characters), *from = json_string_value(value);
    if (!from || (characters && !set && !json_is_null(characters)))
        return jinja_fail(run, "it strips something that is not a text");
    const char *end = from + json_string_length(value);
    for (const char *c = set; c && *c; c++)
        if ((unsigned char)*c >= 0x80)
            return jinja_fail(run, "it strips characters beyond ASCII");
    while (left && from < end && (set ? *from && strchr(set, *from) : is_space(*from)))
        from++;
    while (right && from < end && (set ? end[-1] && strchr(set, end[-1]) : is_space(end[-1])))
        end--;
    if (!set && ((left && from < end && (unsigned char)*from >= 0x80) ||
                 (right && from < end && (unsigned char)end[-1] >= 0x80))) {
        /* White space beyond ASCII: U+0085, U+00A0, U+1680, U+2000 to 200A, 2028, 2029, 202F,
         * 205F, 3000. */
        size_t length;
        uint32_t first = gac_utf8_get(from, &length);
        size_t before = gac_utf8_before(from, (size_t)(end - from));
        uint32_t last = gac_utf8_get(from + before, &length);
        const uint32_t c[2] = { left ? first : 0, right ? last : 0 };
        for (int i = 0; i < 2; i++)
            if (c[i] == 0x85 || c[i] == 0xa0 || c[i] == 0x1680 ||
                (c[i] >= 0x2000 && c[i] <= 0x200a) || c[i] == 0x2028 || c[i] == 0x2029 ||
                c[i] == 0x202f || c[i] == 0x205f || c[i] == 0x3000)
                return jinja_fail(run, "a message begins or ends with white space beyond ASCII");
    }
    return jinja_string(run, from, (size_t)(end - from));
}

json_t *jinja_replace(jinja_run *run, const json_t *value, const json_t *old, const json_t *by)
{
    const char *at = json_string_value(value), *from = json_string_value(old);
    const char *to = json_string_value(by);
    byte_buffer out = { 0 };
    if (!at || !from || !to || !*from)
        return jinja_fail(run, "it replaces something that is not a text");
    const char *end = at + json_string_length(value), *next;
    const size_t n_from = json_string_length(old), n_to = json_string_length(by);
    bool ok = true;
    while (ok && (next = memmem(at, (size_t)(end - at), from, n_from))) {
        ok = jinja_spend(run, n_to + 1) && out.n < MAX_STRING &&
             gac_bytes_append(&out, at, (size_t)(next - at)) && gac_bytes_append(&out, to, n_to);
        at = next + n_from;
    }
    ok = ok && gac_bytes_append(&out, at, (size_t)(end - at));
    json_t *result = ok ? jinja_string(run, out.data ? out.data : "", out.n)
                        : jinja_fail(run, "a text is too long");
    gac_bytes_dispose(&out);
    return result;
}

json_t *jinja_case(jinja_run *run, const json_t *value, const char *how)
{
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    char *copy = text ? malloc(n + 1) : NULL;
    bool begins = true;
    if (!copy)
        return jinja_fail(run, "it changes the case of something that is not a text");
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x80)
            jinja_fail(run, "it changes the case of characters beyond ASCII");
        bool up = *how == 'u' || ((*how == 'c' || *how == 't') && begins);
        copy[i] = (char)(up ? toupper(c) : tolower(c));
        begins = *how == 't' && !isalpha(c);
    }
    json_t *result = jinja_string(run, copy, n);
    free(copy);
    return result;
}

#include "base/json_parse.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

/* Limit of nesting. Deeper values would overflow the stack. */
enum { MAX_DEPTH = 1000 };

bool gac_is_utf8(const char *text, size_t n_bytes)
{
    return n_bytes == 0 || (!memchr(text, 0, n_bytes) && !u8_check((const uint8_t *)text, n_bytes));
}

static bool at_end(const gac_json_source *t)
{
    return t->position >= t->limit;
}

/* Returns the next byte, or 0 at the end. A NUL in the text matches no rule
 * either. */
static char peek(const gac_json_source *t)
{
    return at_end(t) ? 0 : t->text[t->position];
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_space(gac_json_source *t)
{
    while (is_space(peek(t)))
        t->position++;
}

static gac_status bad(const gac_json_source *t, size_t position, const char *what, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: bad JSON: %s",
                         gac_quote(q, sizeof q, t->source),
                         (unsigned long long)(t->base_offset + position), what);
}

static gac_status too_long(const gac_json_source *t, gac_error *err)
{
    char q[256];
    uint64_t start = t->base_offset + t->limit - t->max_bytes;
    return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: value of more than %zu bytes",
                         gac_quote(q, sizeof q, t->source), (unsigned long long)start,
                         t->max_bytes);
}

static gac_status expected(const gac_json_source *t, const char *wanted, gac_error *err)
{
    char what[96];
    if (at_end(t) && t->limit < t->n_bytes)
        return too_long(t, err);
    snprintf(what, sizeof what, "%s %s", at_end(t) ? "ends before" : "expected", wanted);
    return bad(t, t->position, what, err);
}

/* Makes room for n_bytes and a NUL. */
static bool reserve(gac_json_source *t, size_t n_bytes)
{
    if (n_bytes < t->buffer_bytes)
        return true;
    size_t size = n_bytes * 2 + 64;
    char *bigger = realloc(t->buffer, size);
    if (!bigger)
        return false;
    t->buffer = bigger;
    t->buffer_bytes = size;
    return true;
}

/* Measures the string's text between its quotes, and finds whether it is plain:
 * it has no escapes. */
static gac_status measure_string(const gac_json_source *t, size_t *n_bytes, bool *plain,
                                 gac_error *err)
{
    const char *from = t->text + t->position + 1;
    size_t left = t->limit - t->position - 1, n = 0;
    *plain = true;
    while (n < left && from[n] != '"') {
        unsigned char c = (unsigned char)from[n];
        if (c < 0x20)
            return bad(t, t->position + 1 + n, "a control character in a string", err);
        *plain = *plain && c < 0x7f && c != '\\';
        n += c == '\\' ? 2 : 1;
    }
    if (n < left) {
        *n_bytes = n;
        return GAC_OK;
    }
    return t->limit < t->n_bytes ? too_long(t, err)
                                 : bad(t, t->n_bytes, "ends before the end of a string", err);
}

/* Reads four hexadecimal digits; -1 if there are none. */
static int32_t hex4(const char *text, size_t n_bytes)
{
    int32_t value = 0;
    if (n_bytes < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Decodes the text after "\u". Returns the number of bytes read, or 0 for an
 * error. NUL is an error: it would end the C string. */
static size_t decode_unicode(const char *from, size_t n_bytes, char **to)
{
    int32_t high = hex4(from, n_bytes), low = -1;
    bool pair = high >= 0xd800 && high < 0xdc00;
    if (pair && n_bytes >= 10 && from[4] == '\\' && from[5] == 'u')
        low = hex4(from + 6, n_bytes - 6);
    if (high <= 0 || (pair && (low < 0xdc00 || low > 0xdfff)) || (high >= 0xdc00 && high < 0xe000))
        return 0;
    ucs4_t c = pair ? (ucs4_t)(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)) : (ucs4_t)high;
    *to += u8_uctomb((uint8_t *)*to, c, 6);
    return pair ? 10 : 4;
}

/* Decodes the escape at from[0], a backslash. Returns its length, or 0 for an
 * error. */
static size_t decode_escape(const char *from, size_t n_bytes, char **to)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (n_bytes < 2)
        return 0;
    if (from[1] == 'u') {
        size_t n = decode_unicode(from + 2, n_bytes - 2, to);
        return n ? n + 2 : 0;
    }
    const char *letter = from[1] ? strchr(letters, from[1]) : NULL;
    if (!letter)
        return 0;
    *(*to)++ = values[letter - letters];
    return 2;
}

static gac_status decode_string(gac_json_source *t, size_t *n_bytes, gac_error *err)
{
    size_t n = 0;
    bool plain = false;
    gac_status status = measure_string(t, &n, &plain, err);
    if (status != GAC_OK)
        return status;
    /* Decoding never makes text longer. 6 bytes leave room for one more character. */
    if (!reserve(t, n + 6))
        return gac_error_no_memory(err);
    const char *from = t->text + t->position + 1;
    char *to = t->buffer;
    for (size_t i = 0; i < n && !plain;) {
        size_t step = 1;
        if (from[i] != '\\')
            *to++ = from[i];
        else if (!(step = decode_escape(from + i, n - i, &to)))
            return bad(t, t->position + 1 + i, "an escape that is not a character, or is NUL", err);
        i += step;
    }
    if (plain) {
        memcpy(to, from, n);
        to += n;
    }
    *to = 0;
    *n_bytes = (size_t)(to - t->buffer);
    if (!plain && !gac_is_utf8(t->buffer, *n_bytes))
        return bad(t, t->position, "a string that is not UTF-8", err);
    t->position += n + 2;
    return GAC_OK;
}

static void set_limit(gac_json_source *t, size_t max_bytes)
{
    size_t left = t->n_bytes - t->position;
    t->limit = t->position + (max_bytes < left ? max_bytes : left);
    t->max_bytes = max_bytes;
}

gac_status gac_json_take_string(gac_json_source *t, size_t max_bytes, size_t *n_bytes,
                                gac_error *err)
{
    set_limit(t, max_bytes);
    return decode_string(t, n_bytes, err);
}

static gac_status take_digits(gac_json_source *t, gac_error *err)
{
    if (!is_digit(peek(t)))
        return expected(t, "a digit", err);
    while (is_digit(peek(t)))
        t->position++;
    return GAC_OK;
}

/* Moves behind a number. *real: it has a fraction or an exponent. */
static gac_status scan_number(gac_json_source *t, bool *real, gac_error *err)
{
    gac_status status = GAC_OK;
    *real = false;
    t->position += peek(t) == '-';
    if (peek(t) == '0')
        t->position++;
    else
        status = take_digits(t, err);
    if (status == GAC_OK && is_digit(peek(t)))
        return bad(t, t->position, "a number that starts with 0", err);
    if (status == GAC_OK && peek(t) == '.') {
        *real = true;
        t->position++;
        status = take_digits(t, err);
    }
    if (status == GAC_OK && (peek(t) == 'e' || peek(t) == 'E')) {
        *real = true;
        t->position++;
        t->position += peek(t) == '+' || peek(t) == '-';
        status = take_digits(t, err);
    }
    /* The limit may have cut the number, which would change its value. */
    if (status == GAC_OK && at_end(t) && t->limit < t->n_bytes && !is_space(t->text[t->limit]) &&
        !strchr(",]}", t->text[t->limit]))
        return too_long(t, err);
    return status;
}

double gac_json_digits_value(const char *digits)
{
    char *end;
    double value = strtod(digits, &end);
    if (*end != '.') /* strtod expects the locale's decimal point */
        return value;
    char *copy = strdup(digits);
    if (!copy) {
        gac_memory_lost();
        return value;
    }
    copy[end - digits] = *localeconv()->decimal_point;
    value = strtod(copy, NULL);
    free(copy);
    return value;
}

/* Returns the value of a number. Its text stands in room after one free byte,
 * which becomes the NUL of an exact number. */
static json_t *number_value(char *room, size_t n_bytes, bool real, bool exact)
{
    const char *digits = room + 1;
    errno = 0;
    long long whole = real ? 0 : strtoll(digits, NULL, 10);
    if (!real && errno != ERANGE)
        return json_integer(whole);
    double value = gac_json_digits_value(digits);
    room[0] = 0;
    return exact && isfinite(value) ? json_stringn_nocheck(room, n_bytes + 1)
                                    : json_real(value); /* NULL for infinity */
}

/* Takes one of the words that Python writes for numbers which JSON does not
 * have. *out stays NULL if there is none. */
static gac_status take_python_number(gac_json_source *t, json_t **out, gac_error *err)
{
    static const char words[][sizeof "-Infinity" + 1] = { "\0NaN", "\0Infinity", "\0-Infinity" };
    *out = NULL;
    for (int i = 0; i < 3 && t->exact; i++) {
        size_t n = strlen(words[i] + 1);
        if (t->limit - t->position < n || memcmp(t->text + t->position, words[i] + 1, n) != 0)
            continue;
        t->position += n;
        *out = json_stringn_nocheck(words[i], n + 1);
        return *out ? GAC_OK : gac_error_no_memory(err);
    }
    return GAC_OK;
}

static gac_status take_number(gac_json_source *t, json_t **out, gac_error *err)
{
    bool real;
    char shorter[64];
    size_t start = t->position;
    gac_status status = scan_number(t, &real, err);
    if (status != GAC_OK)
        return status;
    size_t n = t->position - start;
    char *room = n + 1 < sizeof shorter ? shorter : malloc(n + 2);
    if (!room)
        return gac_error_no_memory(err);
    memcpy(room + 1, t->text + start, n);
    room[n + 1] = 0;
    *out = number_value(room, n, real, t->exact);
    if (!*out)
        status = gac_memory_check(NULL) != GAC_OK
                     ? gac_error_no_memory(err)
                     : bad(t, start, "a number that is too large", err);
    if (room != shorter)
        free(room);
    return status;
}

static gac_status take_word(gac_json_source *t, json_t **out, gac_error *err)
{
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (t->limit - t->position >= n && memcmp(t->text + t->position, words[i], n) == 0) {
            t->position += n;
            *out = i == 0 ? json_true() : i == 1 ? json_false() : json_null();
            return GAC_OK;
        }
        /* The word is cut by the limit or by the end of the text. */
        if (t->limit - t->position < n &&
            memcmp(t->text + t->position, words[i], t->limit - t->position) == 0)
            t->position = t->limit;
    }
    return expected(t, "a value", err);
}

static gac_status take_any(gac_json_source *t, int depth, json_t **out, gac_error *err);

static gac_status take_text(gac_json_source *t, json_t **out, gac_error *err)
{
    size_t n;
    gac_status status = decode_string(t, &n, err);
    if (status != GAC_OK)
        return status;
    *out = json_stringn_nocheck(t->buffer, n);
    return *out ? GAC_OK : gac_error_no_memory(err);
}

static gac_status take_member(gac_json_source *t, json_t *object, int depth, gac_error *err)
{
    char q[120], what[160];
    json_t *key = NULL, *value = NULL;
    size_t start = t->position;
    if (peek(t) != '"')
        return expected(t, "a name in quotes", err);
    gac_status status = take_text(t, &key, err);
    skip_space(t);
    if (status == GAC_OK && peek(t) != ':')
        status = expected(t, "':'", err);
    if (status == GAC_OK && json_object_get(object, json_string_value(key))) {
        snprintf(what, sizeof what, "duplicate name \"%s\"",
                 gac_quote(q, sizeof q, json_string_value(key)));
        status = bad(t, start, what, err);
    }
    if (status == GAC_OK) {
        t->position++;
        status = take_any(t, depth + 1, &value, err);
    }
    if (status == GAC_OK && json_object_set_new_nocheck(object, json_string_value(key), value) != 0)
        status = gac_error_no_memory(err);
    json_decref(key);
    return status;
}

static gac_status take_element(gac_json_source *t, json_t *array, int depth, gac_error *err)
{
    json_t *value = NULL;
    gac_status status = take_any(t, depth + 1, &value, err);
    if (status == GAC_OK && json_array_append_new(array, value) != 0)
        status = gac_error_no_memory(err);
    return status;
}

/* An object or an array. */
static gac_status take_container(gac_json_source *t, int depth, json_t **out, gac_error *err)
{
    bool object = peek(t) == '{';
    char close = object ? '}' : ']';
    if (depth >= MAX_DEPTH)
        return bad(t, t->position, "values are nested to a depth of more than 1000", err);
    json_t *made = object ? json_object() : json_array();
    if (!made)
        return gac_error_no_memory(err);
    gac_status status = GAC_OK;
    t->position++;
    skip_space(t);
    for (bool first = true; status == GAC_OK && peek(t) != close; first = false) {
        if (!first && peek(t) != ',') {
            status = expected(t, object ? "',' or '}'" : "',' or ']'", err);
            break;
        }
        t->position += !first;
        skip_space(t);
        status = object ? take_member(t, made, depth, err) : take_element(t, made, depth, err);
        skip_space(t);
    }
    if (status != GAC_OK) {
        json_decref(made);
        return status;
    }
    t->position++;
    *out = made;
    return GAC_OK;
}

static gac_status take_any(gac_json_source *t, int depth, json_t **out, gac_error *err)
{
    skip_space(t);
    char c = peek(t);
    if (c == '{' || c == '[')
        return take_container(t, depth, out, err);
    if (c == '"')
        return take_text(t, out, err);
    gac_status status = take_python_number(t, out, err);
    if (status != GAC_OK || *out)
        return status;
    if (c == '-' || is_digit(c))
        return take_number(t, out, err);
    return take_word(t, out, err);
}

gac_status gac_json_take_value(gac_json_source *t, size_t max_bytes, json_t **out, gac_error *err)
{
    set_limit(t, max_bytes);
    return take_any(t, 0, out, err);
}

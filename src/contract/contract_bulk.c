#include "contract/contract_bulk.h"

#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SPANS = 4096,
    MAX_INDEX_BYTES = 5, /* of "4095" and its NUL */
    MAX_DIGITS = 15,     /* 10^15 < 2^53: what they make is exact as a double */
    MAX_POWER = 22       /* so is 10^22, the last power of ten that is */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_space(gac_scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\t' || *scan->at == '\r'))
        scan->at++;
}

bool gac_scan_end(gac_scan *scan)
{
    skip_space(scan);
    return scan->at == scan->end;
}

bool gac_scan_byte(gac_scan *scan, char byte)
{
    skip_space(scan);
    if (scan->at == scan->end || *scan->at != byte)
        return false;
    scan->at++;
    return true;
}

bool gac_scan_word(gac_scan *scan, const char *word)
{
    size_t n = strlen(word);
    skip_space(scan);
    if ((size_t)(scan->end - scan->at) < n || memcmp(scan->at, word, n) != 0)
        return false;
    scan->at += n;
    return true;
}

/* Appends the digits at the scan to *value; returns how many, which may be
 * too many for value to be of use. */
static int take_digits(gac_scan *scan, uint64_t *value)
{
    const char *from = scan->at, *at = from;
    while (at < scan->end && is_digit(*at) && at - from <= MAX_DIGITS)
        *value = *value * 10 + (uint64_t)(*at++ - '0');
    scan->at = at;
    return (int)(at - from);
}

/* The digits before a point; JSON has no leading zeros. */
static int take_whole(gac_scan *scan, uint64_t *value)
{
    skip_space(scan);
    bool zero = scan->at < scan->end && *scan->at == '0';
    int n_digits = take_digits(scan, value);
    return zero && n_digits > 1 ? 0 : n_digits;
}

static bool take_exponent(gac_scan *scan, int *power)
{
    uint64_t exponent = 0;
    scan->at++;
    bool negative = scan->at < scan->end && *scan->at == '-';
    if (scan->at < scan->end && (*scan->at == '-' || *scan->at == '+'))
        scan->at++;
    int n_digits = take_digits(scan, &exponent);
    if (n_digits < 1 || n_digits > 2)
        return false;
    *power += negative ? -(int)exponent : (int)exponent;
    return true;
}

static const double powers[MAX_POWER + 1] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

/* Bytes of word, byte 0 the lowest, that are not the value of a digit: their
 * upmost bit. */
static uint64_t not_digits(uint64_t word)
{
    const uint64_t upmost = 0x8080808080808080;
    return (((word & ~upmost) + 0x7676767676767676) | word) & upmost;
}

/* Eight digits, one in each byte, the first in byte 0: neighbours are joined to
 * four numbers below 100, these to two below 10000, and these to one. */
static uint64_t join_digits(uint64_t word)
{
    word = (word * 10 + (word >> 8)) & 0x00ff00ff00ff00ff;
    word = (word * 100 + (word >> 16)) & 0x0000ffff0000ffff;
    return (word * 10000 + (word >> 32)) & 0xffffffff;
}

/* Nearly all numbers are like 12.34: digits, a point, digits, within eight bytes
 * together with what follows. Taken as one word they need no loop, whose end the
 * processor would guess wrong for most of them. */
static bool take_short(gac_scan *scan, double *out)
{
    uint64_t word;
    if (scan->end - scan->at < 8)
        return false;
    memcpy(&word, scan->at, 8);
    word = le64toh(word) ^ 0x3030303030303030; /* a digit becomes its value */
    uint64_t point = not_digits(word), behind = point & (point - 1);
    if (behind == 0)
        return false;
    int n_whole = __builtin_ctzll(point) / 8, n_digits = __builtin_ctzll(behind) / 8 - 1;
    int n_fraction = n_digits - n_whole;
    char next = scan->at[n_digits + 1];
    if (n_whole == 0 || n_fraction == 0 || scan->at[n_whole] != '.' || (next | 0x20) == 'e' ||
        (n_whole > 1 && scan->at[0] == '0'))
        return false;
    uint64_t before = ((uint64_t)1 << 8 * n_whole) - 1;
    word = (word & before) | (word >> 8 & ~before);
    *out = (double)(int64_t)join_digits(word << 8 * (8 - n_digits)) / powers[n_fraction];
    scan->at += n_digits + 1;
    return true;
}

/* Any number, digit by digit. */
static bool take_long(gac_scan *scan, double *out)
{
    gac_scan at = *scan; /* nothing is passed unless all of it is a number */
    uint64_t digits = 0;
    int power = 0, n_digits = take_whole(&at, &digits);
    if (n_digits < 1 || n_digits > MAX_DIGITS)
        return false;
    if (at.at < at.end && *at.at == '.') {
        at.at++;
        power = -take_digits(&at, &digits);
        n_digits -= power;
        if (power == 0 || n_digits > MAX_DIGITS)
            return false;
    }
    if (at.at < at.end && (*at.at == 'e' || *at.at == 'E') && !take_exponent(&at, &power))
        return false;
    if (power < -MAX_POWER || power > MAX_POWER)
        return false;
    /* Both are exact, so the result is rounded once, as strtod would. */
    *out = power < 0 ? (double)digits / powers[-power] : (double)digits * powers[power];
    *scan = at;
    return true;
}

bool gac_scan_number(gac_scan *scan, double *out)
{
    skip_space(scan);
    return take_short(scan, out) || take_long(scan, out);
}

bool gac_scan_integer(gac_scan *scan, int64_t *out)
{
    gac_scan at = *scan;
    uint64_t digits = 0;
    int n_digits = take_whole(&at, &digits);
    if (n_digits < 1 || n_digits > MAX_DIGITS)
        return false;
    *out = (int64_t)digits;
    *scan = at;
    return true;
}

bool gac_scan_numbers(gac_scan scan, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && !gac_scan_byte(&scan, ','))
            return false;
        if (gac_scan_number(&scan, &out[i]))
            continue;
        if (!gac_scan_word(&scan, "null"))
            return false;
        out[i] = NAN;
    }
    return gac_scan_end(&scan);
}

bool gac_scan_string(gac_scan *scan, char *out, size_t size)
{
    size_t n = 0;
    if (!gac_scan_byte(scan, '"'))
        return false;
    while (scan->at < scan->end && *scan->at != '"') {
        char c = *scan->at++;
        if (c < 0x20 || c > 0x7e || c == '\\' || n + 1 >= size)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return gac_scan_byte(scan, '"');
}

/* Appends to rest what was passed since the last time, up to end. */
static void keep(gac_bulk *bulk, const char **kept, const char *end)
{
    size_t n = (size_t)(end - *kept);
    memcpy(bulk->rest + bulk->n_rest, *kept, n);
    bulk->n_rest += n;
    *kept = end;
}

/* The quote that ends the string that starts at from, or NULL. */
static const char *closing_quote(const char *from, const char *end, bool *has_escape)
{
    *has_escape = false;
    for (const char *at = from + 1; at < end; at++) {
        if (*at == '"')
            return at;
        if (*at == '\\') {
            *has_escape = true;
            at++;
        }
    }
    return NULL;
}

static bool is_bulk(const char *key, size_t n, bool outermost)
{
    static const char *const lists[] = { "points", "sdpa_points" };
    if (n == 2 && memcmp(key, "us", 2) == 0)
        return true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && outermost; i++)
        if (n == strlen(lists[i]) && memcmp(key, lists[i], n) == 0)
            return true;
    return false;
}

/* Cuts out the array after a key. An array inside it, or a bracket in a string,
 * ends the span too early, and then it will not scan. */
static bool cut_array(gac_bulk *bulk, gac_scan *scan, const char **kept)
{
    if (!gac_scan_byte(scan, '[') || bulk->n_spans == MAX_SPANS)
        return false;
    const char *close = memchr(scan->at, ']', (size_t)(scan->end - scan->at));
    if (!close)
        return false;
    keep(bulk, kept, scan->at);
    bulk->n_rest +=
        (size_t)snprintf(bulk->rest + bulk->n_rest, MAX_INDEX_BYTES, "%zu", bulk->n_spans);
    bulk->spans[bulk->n_spans++] = (gac_span){ .inside = { scan->at, close } };
    *kept = close; /* with the brackets, so that nothing can run into the index */
    scan->at = close + 1;
    return true;
}

/* Passes the string at the scan and, if it is the key of bulk, cuts that out. */
static bool pass_string(gac_bulk *bulk, gac_scan *scan, const char **kept, bool outermost)
{
    bool has_escape;
    const char *key = scan->at + 1, *close = closing_quote(scan->at, scan->end, &has_escape);
    if (!close)
        return false;
    scan->at = close + 1;
    if (!gac_scan_byte(scan, ':'))
        return true;
    if (has_escape) /* it might spell the key of bulk */
        return false;
    return !is_bulk(key, (size_t)(close - key), outermost) || cut_array(bulk, scan, kept);
}

bool gac_bulk_cut(const char *text, size_t n_bytes, gac_bulk *out)
{
    gac_scan scan = { text, text + n_bytes };
    const char *kept = text;
    int64_t depth = 0;
    *out = (gac_bulk){ .rest = malloc(n_bytes + (size_t)MAX_SPANS * MAX_INDEX_BYTES),
                       .spans = malloc(MAX_SPANS * sizeof *out->spans) };
    if (!out->rest || !out->spans)
        return false;
    while (scan.at < scan.end) {
        char c = *scan.at;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c != '"')
            scan.at++;
        else if (!pass_string(out, &scan, &kept, depth == 1))
            return false;
    }
    keep(out, &kept, scan.end);
    return true;
}

void gac_bulk_dispose(gac_bulk *bulk)
{
    free(bulk->rest);
    free(bulk->spans);
    *bulk = (gac_bulk){ 0 };
}

bool gac_bulk_use(gac_bulk *bulk, const json_t *value, gac_scan *out)
{
    json_int_t index = json_integer_value(json_array_get(value, 0));
    if (json_array_size(value) != 1 || index < 0 || (size_t)index >= bulk->n_spans)
        return false;
    *out = bulk->spans[index].inside;
    bulk->spans[index].used = true;
    return true;
}

bool gac_bulk_is_used_up(const gac_bulk *bulk)
{
    for (size_t i = 0; i < bulk->n_spans; i++)
        if (!bulk->spans[i].used)
            return false;
    return true;
}

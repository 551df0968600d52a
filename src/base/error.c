#include "base/arguments.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

gac_status gac_error_set(gac_error *err, gac_status status, const char *format, ...)
{
    if (!err)
        return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return status;
}

gac_status gac_refuse_null(gac_error *err, const char *function, const char *names,
                           const void *const *pointers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        names += strspn(names, ", ");
        int length = (int)strcspn(names, ",");
        if (!pointers[i])
            return gac_error_set(err, GAC_USAGE, "%s: %.*s is NULL", function, length, names);
        names += length;
    }
    return GAC_OK;
}

gac_status gac_error_errno(gac_error *err, const char *path)
{
    char q[256];
    int code = errno;
    if (code == ENOMEM)
        return gac_error_no_memory(err);
    bool absent = code == ENOENT || code == ENOTDIR || code == ELOOP || code == ENAMETOOLONG;
    return gac_error_set(err, absent ? GAC_BAD_INPUT : GAC_FAILED, "%s: %s",
                         gac_quote(q, sizeof q, path), strerror(code));
}

gac_status gac_error_no_memory(gac_error *err)
{
    return gac_error_set(err, GAC_NO_RESOURCE, "out of memory");
}

/* Returns the length of the printable UTF-8 character at text. Returns 0 for a
 * control character, an overlong form or broken bytes. */
static size_t printable_length(const unsigned char *text)
{
    static const uint32_t smallest[] = { 0, 0x20, 0xa0, 0x800, 0x10000 };
    uint32_t c = text[0];
    size_t n = c < 0x80             ? 1
               : (c & 0xe0) == 0xc0 ? 2
               : (c & 0xf0) == 0xe0 ? 3
               : (c & 0xf8) == 0xf0 ? 4
                                    : 0;
    if (n > 1)
        c &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    bool surrogate = c >= 0xd800 && c < 0xe000;
    return c < smallest[n] || c == 0x7f || surrogate || c > 0x10ffff ? 0 : n;
}

/* Copies text as printable text, at most limit bytes. Returns the bytes written
 * and moves *source behind the bytes read. */
static size_t quote_part(char *buffer, size_t limit, const unsigned char **source)
{
    size_t used = 0;
    const unsigned char *s = *source;
    while (*s) {
        size_t n = printable_length(s);
        if (n == 0) {
            if (used + 4 > limit)
                break;
            snprintf(buffer + used, 5, "\\x%02x", *s);
            used += 4;
            s++;
        } else {
            if (used + n > limit)
                break;
            memcpy(buffer + used, s, n);
            used += n;
            s += n;
        }
    }
    *source = s;
    return used;
}

char *gac_quote(char *buffer, size_t size, const char *text)
{
    if (!text)
        text = "(null)";
    const unsigned char *s = (const unsigned char *)text;
    if (size == 0)
        return buffer;
    size_t used = quote_part(buffer, size - 1, &s);
    buffer[used] = 0;
    if (!*s || size < 32)
        return buffer;
    /* The text is too long. Keep two thirds from its front, then its end: the
     * end of a tensor name says most. */
    s = (const unsigned char *)text;
    used = quote_part(buffer, (size - 1) * 2 / 3, &s);
    memcpy(buffer + used, "...", 3);
    used += 3;
    /* Text without escapes may fill the rest exactly. An escape needs 4 bytes
     * (\xNN). */
    size_t room = size - 1 - used, rest = strlen((const char *)s);
    if (rest > room) {
        const unsigned char *tail = s + rest - room;
        for (size_t i = 0; i < room; i++)
            if (tail[i] < 0x20 || tail[i] >= 0x7f) {
                room /= 4;
                break;
            }
        s += rest - room;
    }
    while ((*s & 0xc0) == 0x80)
        s++;
    used += quote_part(buffer + used, size - 1 - used, &s);
    buffer[used] = 0;
    return buffer;
}

#include <gac/base.h>

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

gac_status gac_error_no_memory(gac_error *err)
{
    return gac_error_set(err, GAC_NO_RESOURCE, "out of memory");
}

/* Length of the UTF-8 sequence at text, or 0 when it is broken. jansson has
 * validated what it parsed; file names come unchecked. */
static size_t utf8_length(const unsigned char *text)
{
    size_t n = text[0] < 0x80             ? 1
               : (text[0] & 0xe0) == 0xc0 ? 2
               : (text[0] & 0xf0) == 0xe0 ? 3
               : (text[0] & 0xf8) == 0xf0 ? 4
                                          : 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* Copies printable text up to limit bytes of output; returns bytes written
 * and, through *source, how far it read. */
static size_t quote_part(char *buffer, size_t limit, const unsigned char **source)
{
    size_t used = 0;
    const unsigned char *s = *source;
    while (*s) {
        size_t n = utf8_length(s);
        if (n == 0 || *s < 0x20 || *s == 0x7f) {
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
    const unsigned char *s = (const unsigned char *)text;
    if (size == 0)
        return buffer;
    size_t used = quote_part(buffer, size - 1, &s);
    buffer[used] = 0;
    if (!*s || size < 32)
        return buffer;
    /* Too long: keep two thirds from the front and the end, which in a tensor
     * name says most. */
    s = (const unsigned char *)text;
    used = quote_part(buffer, (size - 1) * 2 / 3, &s);
    memcpy(buffer + used, "...", 3);
    used += 3;
    size_t room = (size - 1 - used) / 4; /* the worst case is \xNN per byte */
    size_t rest = strlen((const char *)s);
    if (rest > room)
        s += rest - room;
    while ((*s & 0xc0) == 0x80)
        s++;
    used += quote_part(buffer + used, size - 1 - used, &s);
    buffer[used] = 0;
    return buffer;
}

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(byte_buffer *to, size_t n)
{
    if (n <= to->capacity)
        return true;
    if (n > SIZE_MAX / 4)
        return false;
    size_t wanted = n + n / 2 + 64;
    char *bigger = realloc(to->data, wanted);
    if (!bigger)
        return false;
    to->data = bigger;
    to->capacity = wanted;
    return true;
}

bool gac_bytes_append(byte_buffer *to, const char *data, size_t n)
{
    if (n > SIZE_MAX / 4 || !reserve(to, to->n + n))
        return false;
    if (n > 0)
        memcpy(to->data + to->n, data, n);
    to->n += n;
    return true;
}

void gac_bytes_dispose(byte_buffer *buffer)
{
    free(buffer->data);
    *buffer = (byte_buffer){ 0 };
}

size_t gac_utf8_check(const char *text, size_t n, size_t *bad)
{
    const unsigned char *b = (const unsigned char *)text;
    unsigned char low = 0x80, high = 0xbf; /* range of the second byte */
    size_t length;
    *bad = 1;
    if (b[0] < 0x80)
        return 1;
    if (b[0] >= 0xc2 && b[0] <= 0xdf) {
        length = 2;
    } else if (b[0] >= 0xe0 && b[0] <= 0xef) {
        length = 3;
        low = b[0] == 0xe0 ? 0xa0 : 0x80;
        high = b[0] == 0xed ? 0x9f : 0xbf;
    } else if (b[0] >= 0xf0 && b[0] <= 0xf4) {
        length = 4;
        low = b[0] == 0xf0 ? 0x90 : 0x80;
        high = b[0] == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xbf) {
        *bad = i;
        if (i >= n || b[i] < low || b[i] > high)
            return 0;
    }
    return length;
}

bool gac_utf8_repair(const char **text, size_t *n, byte_buffer *room)
{
    size_t at = 0, bad, length, kept = 0;
    bool valid = true;
    room->n = 0;
    while (at < *n) {
        if ((length = gac_utf8_check(*text + at, *n - at, &bad)) > 0) {
            at += length;
            continue;
        }
        valid = false;
        if (!gac_bytes_append(room, *text + kept, at - kept) ||
            !gac_bytes_append(room, "\xef\xbf\xbd", 3))
            return false;
        kept = at += bad;
    }
    if (valid)
        return true;
    if (!gac_bytes_append(room, *text + kept, at - kept))
        return false;
    *text = room->data;
    *n = room->n;
    return true;
}

uint32_t gac_utf8_get(const char *text, size_t *length)
{
    const unsigned char *b = (const unsigned char *)text;
    if (b[0] < 0x80) {
        *length = 1;
        return b[0];
    }
    if (b[0] < 0xe0) {
        *length = 2;
        return (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
    }
    if (b[0] < 0xf0) {
        *length = 3;
        return (b[0] & 0x0fu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
    }
    *length = 4;
    return (b[0] & 0x07u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
}

size_t gac_utf8_before(const char *text, size_t n)
{
    do
        n--;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80);
    return n;
}

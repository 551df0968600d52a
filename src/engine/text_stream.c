#include "engine/text_stream.h"

#include <string.h>

/* Appends bytes and a NUL that text.n does not count. */
static bool append(byte_buffer *text, const char *bytes, size_t n)
{
    if (!gac_bytes_append(text, bytes, n) || !gac_bytes_append(text, "", 1))
        return false;
    text->n--;
    return true;
}

/* Moves complete characters from pending to text. An incomplete character stays
 * pending, unless this is the last call. */
static bool settle(text_stream *stream, bool last)
{
    size_t at = 0, bad;
    while (at < stream->n_pending) {
        size_t left = stream->n_pending - at;
        size_t length = gac_utf8_check(stream->pending + at, left, &bad);
        if (length == 0 && bad == left && !last)
            break;
        if (length > 0 ? !append(&stream->text, stream->pending + at, length)
                       : !append(&stream->text, "\xef\xbf\xbd", 3))
            return false;
        at += length > 0 ? length : bad;
    }
    stream->n_pending -= at;
    memmove(stream->pending, stream->pending + at, stream->n_pending);
    return true;
}

bool gac_text_stream_add(text_stream *stream, const char *bytes, size_t n)
{
    if (!append(&stream->text, "", 0))
        return false;
    for (size_t i = 0; i < n; i++) {
        stream->pending[stream->n_pending++] = bytes[i];
        if (!settle(stream, false))
            return false;
    }
    return true;
}

bool gac_text_stream_finish(text_stream *stream)
{
    return append(&stream->text, "", 0) && settle(stream, true);
}

void gac_text_stream_dispose(text_stream *stream)
{
    gac_bytes_dispose(&stream->text);
    stream->n_pending = 0;
}

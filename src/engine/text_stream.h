/* Turns the bytes of tokens into whole UTF-8 characters. */
#ifndef GAC_ENGINE_TEXT_STREAM_H
#define GAC_ENGINE_TEXT_STREAM_H

#include "base/utf8.h"

typedef struct text_stream {
    byte_buffer text; /* complete characters, valid UTF-8; a NUL follows */
    char pending[8];  /* the bytes of an incomplete character */
    size_t n_pending;
} text_stream;

/* Adds bytes. text grows by the characters that they complete. False without
 * memory. */
bool gac_text_stream_add(text_stream *stream, const char *bytes, size_t n);
/* Replaces a pending incomplete character by U+FFFD. False without memory. */
bool gac_text_stream_finish(text_stream *stream);
void gac_text_stream_dispose(text_stream *stream);

#endif

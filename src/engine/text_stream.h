/* Bytes in as tokens give them, whole characters out. */
#ifndef GAC_ENGINE_TEXT_STREAM_H
#define GAC_ENGINE_TEXT_STREAM_H

#include "base/utf8.h"

typedef struct text_stream {
    byte_buffer text; /* whole characters so far, valid UTF-8, with a NUL behind */
    char pending[8];  /* the beginning of a character */
    size_t n_pending;
} text_stream;

/* Adds bytes; text grows by the characters that are complete with them. False
 * when out of memory. */
bool gac_text_stream_add(text_stream *stream, const char *bytes, size_t n);
/* What is pending will not be completed: it becomes U+FFFD. */
bool gac_text_stream_finish(text_stream *stream);
void gac_text_stream_dispose(text_stream *stream);

#endif

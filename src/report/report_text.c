/* A text that is written to as a file. open_memstream does not tell of all failed allocations. */
#include <stdlib.h>
#include <string.h>

#include "report/report_internal.h"

static ssize_t append(void *cookie, const char *bytes, size_t n_bytes)
{
    rep_text *text = cookie;
    if (text->room - text->n_bytes <= n_bytes) {
        size_t room = 2 * (text->n_bytes + n_bytes) + 4096;
        char *bigger = realloc(text->bytes, room);
        if (!bigger)
            return 0; /* an error, which stdio keeps */
        text->bytes = bigger;
        text->room = room;
    }
    memcpy(text->bytes + text->n_bytes, bytes, n_bytes);
    text->n_bytes += n_bytes;
    text->bytes[text->n_bytes] = 0;
    return (ssize_t)n_bytes;
}

FILE *rep_text_open(rep_text *text)
{
    static const cookie_io_functions_t functions = { .write = append };
    *text = (rep_text){ 0 };
    return fopencookie(text, "w", functions);
}

gac_status rep_text_close(rep_text *text, FILE *stream, gac_error *err)
{
    bool written = stream && fflush(stream) == 0 && !ferror(stream);
    written = stream && fclose(stream) == 0 && written && text->bytes;
    if (written)
        return GAC_OK;
    free(text->bytes);
    *text = (rep_text){ 0 };
    return gac_error_no_memory(err);
}

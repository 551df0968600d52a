/* Parses JSON text into jansson's values.
 *
 * We do not use jansson's parser. It writes outside its buffers when an
 * allocation fails in the middle of a string, and it refuses integers beyond 64
 * bits, which Hugging Face writes. This parser returns every failure. It reads
 * such an integer as a real number, or keeps its digits; it can also keep the
 * spelling of real numbers. */
#ifndef GAC_BASE_JSON_PARSE_H
#define GAC_BASE_JSON_PARSE_H

#include <gac/base.h>

#include <jansson.h>

typedef struct gac_json_source {
    const char *text;
    size_t n_bytes;
    size_t position;      /* of the next unread byte */
    const char *source;   /* file name, for errors */
    uint64_t base_offset; /* offset of text in its file, for errors */
    size_t limit;         /* end of the text that the current value may use */
    size_t max_bytes;     /* size limit of one value, for the error message */
    bool exact;           /* numbers keep their spelling: gac_json_parse_exact */
    char *buffer;         /* the last decoded string; the caller frees it */
    size_t buffer_bytes;  /* size of buffer */
} gac_json_source;

/* Parses the value at the current position, at most max_bytes of text, and
 * moves behind it. The caller owns *out. */
gac_status gac_json_take_value(gac_json_source *t, size_t max_bytes, json_t **out, gac_error *err);

/* Decodes the string at the current position, which is a quote, into t->buffer.
 * A NUL follows its *n_bytes bytes. */
gac_status gac_json_take_string(gac_json_source *t, size_t max_bytes, size_t *n_bytes,
                                gac_error *err);

/* Returns the value of a number's text, in any locale. */
double gac_json_digits_value(const char *digits);

/* Notes that memory was short. gac_memory_check reports it. */
void gac_memory_lost(void);

#endif

/* Reads values out of an untrusted JSON document and checks their types and
 * ranges. Errors name the JSON path of the value. Functions return false after
 * an error; status and err then describe it. */
#ifndef GAC_BASE_JSON_READER_H
#define GAC_BASE_JSON_READER_H

#include <gac/base.h>

#include <jansson.h>

/* A position in the document. Initialise it with GAC_READER_INIT. */
typedef struct gac_reader {
    const char *source;
    gac_error *err;
    gac_status status;
    size_t length;
    char path[320];
} gac_reader;

#define GAC_READER_INIT(source_, err_) \
    { \
        .source = (source_), .err = (err_), .status = GAC_OK, .length = 1, .path = "$" \
    }

/* enter appends to the path and returns its previous length. leave takes that
 * length and restores the path. */
GAC_PRINTF(2, 3) size_t gac_reader_enter(gac_reader *r, const char *format, ...);
void gac_reader_leave(gac_reader *r, size_t before);
bool gac_reader_fault(gac_reader *r, const char *rule);
bool gac_reader_fault_at(gac_reader *r, const char *key, const char *rule);
bool gac_reader_no_memory(gac_reader *r);
bool gac_reader_object(gac_reader *r, const json_t *parent, const char *key, json_t **out);
bool gac_reader_array(gac_reader *r, const json_t *parent, const char *key, size_t max,
                      json_t **out);
bool gac_reader_bool(gac_reader *r, const json_t *parent, const char *key, bool *out);
bool gac_reader_is_printable(const char *text);
bool gac_reader_is_text(const json_t *value);
bool gac_reader_text(gac_reader *r, const json_t *parent, const char *key, const char **out);
bool gac_reader_to_number(gac_reader *r, const json_t *value, double min, double max, double *out);
bool gac_reader_number(gac_reader *r, const json_t *parent, const char *key, double min, double max,
                       double *out);
bool gac_reader_to_size(gac_reader *r, const json_t *value, int64_t max, int64_t *out);

/* Returns the number under key, or otherwise if there is none. object may be NULL. */
double gac_json_number_or(const json_t *object, const char *key, double otherwise);

#endif

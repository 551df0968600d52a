/* Steps through a large JSON text without building a tree of it. */
#ifndef GAC_BASE_JSON_WALK_H
#define GAC_BASE_JSON_WALK_H

#include <gac/base.h>

/* Steps through the members of a large object one by one, so that memory
 * follows the largest member and not the text. */
typedef struct gac_json_walk {
    const char *text;
    size_t n_bytes;
    size_t position;      /* of the next unread byte */
    const char *source;   /* file name, for errors */
    uint64_t base_offset; /* of text inside the file, for errors */
    char *string;         /* the last key or string read */
    size_t string_bytes;  /* size of string */
    int depth;            /* objects entered and not yet left */
    bool fresh;           /* no member of the current object read yet */
    bool exact;           /* large integers keep their digits: gac_json_parse_exact */
} gac_json_walk;

/* Starts a walk. text must hold one object and white space. text and source
 * must outlive the walk. The caller always calls gac_json_walk_dispose
 * afterwards. */
gac_status gac_json_walk_start(gac_json_walk *walk, const char *text, size_t n_bytes,
                               const char *source, uint64_t base_offset, gac_error *err);
/* Moves to the next member and sets *key, which is valid until the next call.
 * At the end of the current object it sets *key to NULL and leaves the
 * object. */
gac_status gac_json_walk_next(gac_json_walk *walk, const char **key, gac_error *err);
/* Parses the current member's value. More than max_bytes of text is an error.
 * The caller owns *out. */
gac_status gac_json_walk_value(gac_json_walk *walk, size_t max_bytes, struct json_t **out,
                               gac_error *err);
/* Reads the current member's value, which must be a string of at most max_bytes
 * of text. *out is valid until the next call. */
gac_status gac_json_walk_string(gac_json_walk *walk, size_t max_bytes, const char **out,
                                gac_error *err);
/* Enters the current member's value, which must be an object. */
gac_status gac_json_walk_enter(gac_json_walk *walk, gac_error *err);
/* Enters the current member's value, which must be an array.
 * gac_json_walk_element then moves to the next element, which is read like a
 * member's value. At the end of the array it sets *more to false and leaves the
 * array. */
gac_status gac_json_walk_enter_array(gac_json_walk *walk, gac_error *err);
gac_status gac_json_walk_element(gac_json_walk *walk, bool *more, gac_error *err);
/* Returns the offset in the file of the next unread byte. */
uint64_t gac_json_walk_offset(const gac_json_walk *walk);
void gac_json_walk_dispose(gac_json_walk *walk);

#endif

/* The bulk of a contract file is thousands of short numbers: the times of tables
 * and the lists of points. A tree takes half a microsecond for each, so they are
 * cut out of the text first, the tree is built of the rest, and the numbers are
 * then scanned from the text itself.
 *
 * The scanner knows the common spelling only and says no to everything else;
 * whoever reads a contract then starts over with a tree of the whole text. So
 * there is one voice for faults, and this one need not name them. */
#ifndef GAC_CONTRACT_BULK_H
#define GAC_CONTRACT_BULK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text that is still to be scanned. */
typedef struct gac_scan {
    const char *at, *end;
} gac_scan;

/* What stood between the brackets of one array. */
typedef struct gac_span {
    gac_scan inside;
    bool used;
} gac_span;

typedef struct gac_bulk {
    char *rest; /* the text with [INDEX OF SPAN] for every array that was cut out */
    size_t n_rest;
    gac_span *spans;
    size_t n_spans;
} gac_bulk;

/* Cuts out every "us", and the "points" and "sdpa_points" of the outermost
 * object: none of them is left in rest, which is valid JSON if and only if text
 * is, provided that every span is. Text must outlive out; dispose of out also
 * after false. */
bool gac_bulk_cut(const char *text, size_t n_bytes, gac_bulk *out);
void gac_bulk_dispose(gac_bulk *bulk);

/* The span that value, an array in the tree of rest, stands for, to be scanned
 * to its end; false where it cannot be one. */
bool gac_bulk_use(gac_bulk *bulk, const json_t *value, gac_scan *out);

/* False while a span has not been asked for: nobody has looked whether it is JSON. */
bool gac_bulk_is_used_up(const gac_bulk *bulk);

/* Each passes white space and then what it is named after, or says false. */
bool gac_scan_byte(gac_scan *scan, char byte);
bool gac_scan_word(gac_scan *scan, const char *word); /* null, true, false */
bool gac_scan_end(gac_scan *scan);
/* A number without sign of at most 15 digits, correctly rounded; one of digits only. */
bool gac_scan_number(gac_scan *scan, double *out);
bool gac_scan_integer(gac_scan *scan, int64_t *out);
/* n numbers, or null for NaN, with commas between, that are all of scan. */
bool gac_scan_numbers(gac_scan scan, int64_t n, double *out);
/* A string of printable ASCII without escapes, of less than size bytes. */
bool gac_scan_string(gac_scan *scan, char *out, size_t size);

#endif

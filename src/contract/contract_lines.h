/* What it costs when rows of k numbers do not begin at lines of the cache. Such
 * sizes are aligned, no kernel declines them, and yet each row shares a line
 * with the next: a few percent, which tell neighbouring candidates apart. */
#ifndef GAC_CONTRACT_LINES_H
#define GAC_CONTRACT_LINES_H

#include "base/json_reader.h"

enum { GAC_LINES_MAX_PARTS = 8, GAC_LINES_MAX_OUTPUTS = 64 };

typedef struct gac_lines {
    int64_t multiple; /* a k of whole lines; 0: nothing is known */
    int n_parts, n_outputs;
    int64_t part[GAC_LINES_MAX_PARTS]; /* falling, each divides the one before */
    double log_outputs[GAC_LINES_MAX_OUTPUTS];
    double log_factor[GAC_LINES_MAX_PARTS][GAC_LINES_MAX_OUTPUTS];
} gac_lines;

/* Reads {"multiple": M, "parts": [P, …], "mn": […], "factor": [[…], …]}, of
 * each part one factor for every m times n. */
bool gac_lines_read(gac_reader *r, const json_t *value, gac_lines *out);

/* Which of the parts k is of; -1 for a k of whole lines, and for one of no part. */
int gac_lines_part(const gac_lines *lines, int64_t k);

/* The k of whole lines that has room for k; k where it is of no part. */
double gac_lines_whole(const gac_lines *lines, int64_t k);

/* Over the time of that k, where m times n is outputs: 1 for a k of whole lines,
 * and for one that is no multiple of any part. */
double gac_lines_factor(const gac_lines *lines, double outputs, int64_t k);

#endif

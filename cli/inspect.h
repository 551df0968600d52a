/* Prints the result of gac inspect, as text and as JSON. */
#ifndef GAC_CLI_INSPECT_H
#define GAC_CLI_INSPECT_H

#include "cli.h"

#include <gac/inspect.h>

typedef struct inspection {
    gac_checkpoint *checkpoint;
    gac_model *model;
    gac_contract *contract;
    const char *workload_text;
    gac_inspection *found;
    /* counts of the summary: the dimensions that a compressor chose, or all if
     * there are none */
    int32_t n_dims, n_misaligned;
} inspection;

gac_status inspect_print(const inspection *x, gac_error *err);
/* The result as JSON, with the places of dimensions if places. The caller owns it. */
json_t *inspect_to_json(cli *c, const inspection *x, bool places);

/* Writes the verdict as one line for people. */
void inspect_advice(const gac_inspection *found, char *out, size_t size);

/* Writes a reason to repair besides time, or an empty text. */
void inspect_reason(const gac_inspection *found, char *out, size_t size);

/* Returns the share in percent; 0 if whole is 0. */
double inspect_pct(int32_t part, int32_t whole);

#endif

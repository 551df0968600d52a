/* The table at the end of gac compress. */
#ifndef GAC_CLI_COMPRESS_TABLE_H
#define GAC_CLI_COMPRESS_TABLE_H

#include "engine_args.h"

#include <gac/compress.h>

/* What the engine measured. NaN: it was not asked for. */
typedef struct compress_measured {
    double perplexity, phase_ms[GAC_MAX_PHASES];
} compress_measured;

enum { MEASURED_DENSE, MEASURED_RESULT, N_MEASURED };

/* The text of --test as tokens; no ids: there is none. */
typedef struct compress_test {
    int32_t *ids;
    size_t n_ids;
} compress_test;

void compress_table_clear(compress_measured *measured);
/* Measures the model of a directory that was opened: perplexity where there is a test, and with
 * CUDA the phases of the workload that fit into its context. */
gac_status compress_table_measure(cli *c, engine_args *model, const gac_workload *workload,
                                  const compress_test *test, compress_measured *out);
/* Both take measured (N_MEASURED). */
void compress_table_print(const gac_compress_result *r, const gac_compress_options *o,
                          const compress_measured *measured);
/* Adds what was measured to the rows of the JSON table. */
void compress_table_add(json_t *table, const compress_measured *measured);

#endif

/* Shared by the files of gac dim. */
#ifndef GAC_CLI_DIM_H
#define GAC_CLI_DIM_H

#include "cli.h"

typedef struct dim_options {
    gac_strategy strategy;
    double max_overhead_pct, keep;
    const char *gpu, *contract;
    gac_dtype dtype;
    int64_t size;
} dim_options;

/* Prints the rank that keeps a share of the parameters of a matrix, written
 * OUTxIN, and the cost of ranks around it. */
gac_status dim_matrix(cli *c, const dim_options *o, const char *matrix);

/* Loads the contract of the options, and finds the dtype whose rules apply to
 * the requested one. */
gac_status dim_contract(cli *c, const dim_options *o, gac_contract **contract, gac_dtype *dtype);

#endif

/* What the parts of gac dim share. */
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

/* Which rank keeps a share of the parameters of a matrix, written OUTxIN, and what the ranks
 * around it cost. */
gac_status dim_matrix(cli *c, const dim_options *o, const char *matrix);

/* The contract of the options, and the dtype that serves the one asked for. */
gac_status dim_contract(cli *c, const dim_options *o, gac_contract **contract, gac_dtype *dtype);

#endif

/* Ratios of predicted times over sizes, and what they come to: contract_sweep.c fills, and
 * contract_tally.c tells, so briefly that noise does not drown what is new. */
#ifndef GAC_CONTRACT_TALLY_H
#define GAC_CONTRACT_TALLY_H

#include "contract/contract_classes.h"

enum { GAC_SWEEP_OTHERS = 28, GAC_SWEEP_LINES = 35, GAC_SWEEP_PHASES = 3 };

/* One place at one number of rows, or one phase of attention, over sizes. */
typedef struct gac_sweep_line {
    gac_op_axis seen;
    int64_t rows; /* 0: attention */
    int phase;
    bool dense; /* tables have every size */
    int n_others;
    int64_t others[GAC_SWEEP_OTHERS]; /* the other width; the index of a shape of attention */
    size_t n_sizes;
    int64_t *sizes;
    int *classes;
    double *ratios; /* (n_sizes, n_others), B over A; NaN where there is none */
} gac_sweep_line;

typedef struct gac_sweep {
    const gac_side *a, *b;
    gac_size_class classes[GAC_OP_AXIS_COUNT][GAC_MAX_CLASSES];
    int n_classes[GAC_OP_AXIS_COUNT];
    gac_sweep_line lines[GAC_SWEEP_LINES];
    int n_lines;
    size_t n_shapes[2]; /* GEMM, attention */
    double whole[2];    /* median of ratios; NaN without shapes */
} gac_sweep;

extern const char *const gac_sweep_phases[GAC_SWEEP_PHASES];

/* The shape of attention of an index, with heads of a size. */
gac_sdpa_shape gac_sweep_shape(int phase, int64_t index, int64_t head);

/* Sorts values; NaN for none. */
double gac_sweep_median(double *values, size_t n);

/* Appends to rows what has changed at a place; false without memory. */
bool gac_sweep_tell(const gac_sweep *s, gac_op_axis seen, json_t *rows);

#endif

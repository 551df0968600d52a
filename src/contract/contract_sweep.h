/* What two contracts predict, over sizes: where one of them has become slower or faster
 * than the other sizes have. Tables hold every size, since libraries choose a kernel for
 * each, so that a few shapes do not tell whether they are alike. */
#ifndef GAC_CONTRACT_SWEEP_H
#define GAC_CONTRACT_SWEEP_H

#include "contract/contract_classes.h"

/* Compares predictions and adds "times" to each of places, which are by gac_op_axis: a list of
 * {"text", "class", "rows", "phase", "n_sizes", "n_changed", "n_shapes", "n_shapes_changed",
 * "b_over_a_median", "b_over_a_worst", "worst_shape", "ranges": [[first, last]], "n_ranges"}.
 * Rows that follow each other and have changed alike are one entry; what is too little for one
 * is in a last entry, without class. Gives *out, which the caller owns: {"gemm": {"n_shapes",
 * "b_over_a"}, "sdpa": {…}, "changed_over_pct"}, b_over_a being what most shapes have, and null
 * without a shape. *same becomes false where a prediction differs by more than that. Fails for
 * want of memory only. */
gac_status gac_sweep_times(const gac_side *a, const gac_side *b, json_t *places, json_t **out,
                           bool *same, gac_error *err);

#endif

/* What two contracts differ in beside tiers and times: exact points, steps,
 * the runtime, and dtypes that another stands for. Each sets *same to false where
 * a prediction may change, and gives what the caller owns. */
#ifndef GAC_CONTRACT_CHANGES_H
#define GAC_CONTRACT_CHANGES_H

#include "contract/contract_rules.h"

#define GAC_CHANGED_TIME 1.05 /* ratio of two times that is worth a word */

/* Whether one is more than by times the other, or either is no time. */
bool gac_is_apart(double x, double y, double by);

/* Points by shape, those of dtype_a in a and of dtype_b in b, as measured there:
 * {"gemm": {"added", "removed", "changed"}, "sdpa": {…}, "changed_over_pct"}. */
json_t *gac_changed_points(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                           gac_dtype dtype_b, bool *same);

/* Where time jumps along one size, line by line, as far as the two differ: [{"text", "line":
 * {"place", …}, "only_in_a", "only_in_b", "changed": [{"at", "a_pct", "b_pct"}]}]. */
json_t *gac_changed_steps(const gac_contract *a, gac_dtype dtype_a, const gac_contract *b,
                          gac_dtype dtype_b, bool *same);

/* Entries of the runtime that are not equal: [{"key", "a", "b"}], null for none.
 * Another name alone changes no prediction. */
json_t *gac_changed_runtime(const gac_contract *a, const gac_contract *b, bool *same);

/* Dtypes that another stands for in one of the two at least, and not the same in
 * both: [{"dtype", "a", "b", "reason_a", "reason_b"}], a and b whose rules serve
 * it, or null. */
json_t *gac_changed_stand_ins(const gac_contract *a, const gac_contract *b, bool *same);

#endif

/* What the files of this room share. */
#ifndef GAC_PLAN_INTERNAL_H
#define GAC_PLAN_INTERNAL_H

#include <gac/plan.h>

/* n and k of a GEMM with the given sizes (NULL: as they are), as one GPU sees
 * them. */
void gac_plan_gemm_sizes(const gac_model *model, const gac_target *target, const gac_op *op,
                         const int64_t *sizes, int64_t *n, int64_t *k);

#endif

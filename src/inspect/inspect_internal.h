/* Shared by the files of this room. */
#ifndef GAC_INSPECT_INTERNAL_H
#define GAC_INSPECT_INTERNAL_H

#include <gac/inspect.h>

/* Computes the ratios of the whole workload and the verdict from the counts and
 * predicted times. */
void gac_inspect_decide(const gac_model *model, gac_inspection *x);

#endif

/* What the files of this room share. */
#ifndef GAC_INSPECT_INTERNAL_H
#define GAC_INSPECT_INTERNAL_H

#include <gac/inspect.h>

/* Fills in the ratios of the whole workload and the verdict, from what was
 * counted and predicted. */
void gac_inspect_decide(const gac_model *model, gac_inspection *x);

#endif

/* Validates task specs. Used by gac_task_create, the CPU backend and the CUDA plug-in. */
#ifndef GAC_DEVICE_TASK_SPEC_H
#define GAC_DEVICE_TASK_SPEC_H

#include <gac/device.h>

/* Returns GAC_USAGE with a reason if no device could run the spec. */
gac_status gac_task_check_spec(const gac_task_spec *spec, gac_error *err);

/* How an operand is stored. COPY moves bytes: U8. */
gac_dtype gac_task_operand_dtype(const gac_task_spec *spec, gac_operand operand);

/* Returns the softmax scale, with the default 1 / sqrt(qk_head) resolved. Padding does
 * not change it. */
double gac_sdpa_scale(const gac_sdpa_call *call);

#endif

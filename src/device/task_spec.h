/* What a task spec says, and whether it makes sense; shared by the door that
 * specs come in through, by the CPU backend and by the checks against it. */
#ifndef GAC_DEVICE_TASK_SPEC_H
#define GAC_DEVICE_TASK_SPEC_H

#include <gac/device.h>

/* GAC_USAGE, and why, for a spec that no device could serve. */
gac_status gac_task_check_spec(const gac_task_spec *spec, gac_error *err);

/* How an operand is stored. COPY moves bytes: U8. */
gac_dtype gac_task_operand_dtype(const gac_task_spec *spec, gac_operand operand);

/* Softmax scale with the default resolved; padding does not change it. */
double gac_sdpa_scale(const gac_sdpa_call *call);

#endif

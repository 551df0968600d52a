/* What a task spec says, and whether it makes sense; shared by the door that
 * specs come in through, by the CPU backend and by the checks against it. */
#ifndef GAC_DEVICE_TASK_SPEC_H
#define GAC_DEVICE_TASK_SPEC_H

#include <gac/device.h>

/* GAC_USAGE, and why, for a spec that no device could serve. */
gac_status gac_task_check_spec(const gac_task_spec *spec, gac_error *err);

/* How an operand is stored. COPY moves bytes: U8. */
gac_dtype gac_task_operand_dtype(const gac_task_spec *spec, gac_operand operand);

/* Operations of a call of GEMM or SDPA, else 0; and operands and result, each once. */
double gac_task_flops(const gac_task_spec *spec);
double gac_task_bytes(const gac_task_spec *spec);

/* Softmax scale with the default resolved; padding does not change it. */
double gac_sdpa_scale(const gac_sdpa_call *call);

/* Fills an operand of one set with random numbers: normal ones, scaled by
 * k^(-1/4) in a GEMM so that its results are near 1; small integers in I8;
 * random bits where the dtype is not one that is multiplied. */
void gac_task_fill(const gac_task_spec *spec, gac_operand operand, uint64_t seed, void *data);

#endif

/* What every operator means, computed plainly: operands as they are stored,
 * sums in FP64 in the order of the index, one rounding at the end. */
#ifndef GAC_DEVICE_CPU_REFERENCE_H
#define GAC_DEVICE_CPU_REFERENCE_H

#include <gac/device.h>

/* operands: one set, in the order of gac_operand; the last is written. Only
 * memory can fail. */
gac_status gac_cpu_reference(const gac_task_spec *spec, void *const operands[GAC_OPERAND_COUNT],
                             gac_error *err);

#endif

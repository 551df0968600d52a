/* The reference implementation of every operator: sums in FP64 in index order, one
 * rounding at the end. */
#ifndef GAC_DEVICE_CPU_REFERENCE_H
#define GAC_DEVICE_CPU_REFERENCE_H

#include <gac/device.h>

/* Runs spec on one set of operands, in the order of gac_operand. The output is the last
 * one. Fails only if memory runs out. */
gac_status gac_cpu_reference(const gac_task_spec *spec, void *const operands[GAC_OPERAND_COUNT],
                             gac_error *err);

#endif

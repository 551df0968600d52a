/* Holds a device to the CPU reference. The GPU tests use it. */
#ifndef GAC_DEVICE_CHECK_TASK_H
#define GAC_DEVICE_CHECK_TASK_H

#include <gac/device.h>

typedef struct gac_difference {
    double relative; /* norm of the difference over the norm of the reference */
    double largest;  /* largest absolute difference */
    int64_t n_elements;
} gac_difference;

/* Runs the task and its reference on the CPU on the same fresh random inputs. The output is
 * poisoned first, and one that is not written counts as infinite. */
gac_status gac_task_check(gac_device *device, const gac_task_spec *spec, uint64_t seed,
                          gac_difference *out, gac_error *err);

#endif

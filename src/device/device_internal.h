/* An open device, as the files of src/device see it. */
#ifndef GAC_DEVICE_INTERNAL_H
#define GAC_DEVICE_INTERNAL_H

#include <gac/device.h>

struct gac_device {
    const gac_backend *backend;
    void *state;
    gac_device_info info;
    int rest_clock_mhz;
};

/* Returns whether name is "cuda" or "cuda:N", and sets *index to N (default 0). */
bool gac_device_parse_cuda(const char *name, int *index);

#endif

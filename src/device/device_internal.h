/* What the files of this room know of an open device. */
#ifndef GAC_DEVICE_INTERNAL_H
#define GAC_DEVICE_INTERNAL_H

#include <gac/device.h>

struct gac_device {
    const gac_backend *backend;
    void *state;
    gac_device_info info;
    int rest_clock_mhz;
};

/* Whether name is "cuda" or "cuda:N"; sets *index then. */
bool gac_device_parse_cuda(const char *name, int *index);

#endif

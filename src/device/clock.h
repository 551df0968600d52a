/* The clock that a card comes to at rest: below the highest it was made for where
 * someone has locked it lower, which only waiting in vain finds out. */
#ifndef GAC_DEVICE_CLOCK_H
#define GAC_DEVICE_CLOCK_H

#include <gac/device.h>

/* At first the highest of its description; 0 where that does not say. */
int gac_device_rest_clock_mhz(const gac_device *device);
/* A clock that was seen after all the rest that there was. */
void gac_device_set_rest_clock(gac_device *device, int clock_mhz);

#endif

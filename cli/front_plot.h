#ifndef GAC_CLI_FRONT_PLOT_H
#define GAC_CLI_FRONT_PLOT_H

#include <gac/plan.h>

/* Draws time against bytes on stdout, where there are two points at least. bytes: the size of the
 * model. */
void front_plot(const gac_front *front, double bytes);

#endif

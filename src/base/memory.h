/* Allocations that failed where nobody looked.
 *
 * jansson's setters return -1 when memory is short, and code that builds a
 * document of a hundred members does not check each. Instead the failure is
 * noted here, per thread, and whoever turns a document into text or gives a
 * file its name asks first. */
#ifndef GAC_BASE_MEMORY_H
#define GAC_BASE_MEMORY_H

#include <gac/base.h>

/* Notes that an allocation of this thread failed. */
void gac_memory_lost(void);

/* GAC_NO_RESOURCE when an allocation of this thread failed and no error has
 * told of it yet; gac_error_no_memory is what tells. */
gac_status gac_memory_check(gac_error *err);

#endif

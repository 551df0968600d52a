/* tools/pytorch_stack.py as a C string. */
#ifndef GAC_TIMING_BUNDLED_SCRIPT_H
#define GAC_TIMING_BUNDLED_SCRIPT_H

#include <stddef.h>

struct gac_bundled_script {
    const char *name;
    const char *text; /* a NUL follows */
    size_t n_bytes;
};

extern const struct gac_bundled_script gac_bundled_script[];
extern const int gac_n_bundled_script; /* always 1 */

#endif

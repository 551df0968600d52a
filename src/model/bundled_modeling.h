/* modeling_template.py as a C string. */
#ifndef GAC_MODEL_BUNDLED_MODELING_H
#define GAC_MODEL_BUNDLED_MODELING_H

#include <stddef.h>

struct gac_bundled_modeling {
    const char *name;
    const char *text; /* a NUL follows */
    size_t n_bytes;
};

extern const struct gac_bundled_modeling gac_bundled_modeling[];
extern const int gac_n_bundled_modeling; /* always 1 */

#endif

/* The contracts compiled into the library; cmake/Bundle.cmake writes
 * the definitions from contracts/ in the order of the file names. */
#ifndef GAC_CONTRACT_BUNDLED_H
#define GAC_CONTRACT_BUNDLED_H

#include <stddef.h>

struct gac_bundled {
    const char *name; /* of the file, without .json */
    const char *text; /* a NUL follows */
    size_t n_bytes;   /* without that NUL */
};

extern const struct gac_bundled gac_bundled_contracts[];
extern const int gac_n_bundled_contracts;

#endif

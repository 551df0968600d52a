/* Prints what gac --version shows. */
#ifndef GAC_CLI_VERSION_H
#define GAC_CLI_VERSION_H

#include <stdio.h>

/* Prints the version, the commit, and the parts and libraries that are found.
 * Loads no plug-in. */
void version_print(FILE *stream);

#endif

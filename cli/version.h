/* What gac --version says. */
#ifndef GAC_CLI_VERSION_H
#define GAC_CLI_VERSION_H

#include <stdio.h>

/* The version, the commit, and which parts and libraries are found. Loads no plug-in. */
void version_print(FILE *stream);

#endif

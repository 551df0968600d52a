/* Which runtimes load a model that a command has written, and how. */
#ifndef GAC_CLI_LOADS_IN_H
#define GAC_CLI_LOADS_IN_H

#include "cli.h"

/* Makes the list for the key "loads_in". The caller owns *out. */
gac_status loads_in_list(const gac_model *model, json_t **out, gac_error *err);
/* Prints the list as one line after label. */
void loads_in_print(const char *label, const json_t *list);

#endif

/* Prints the result of an experiment. */
#ifndef GAC_CLI_EXPERIMENT_TEXT_H
#define GAC_CLI_EXPERIMENT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Returns the name of the result's stack for messages: "native" or "PyTorch". */
const char *experiment_stack_title(const json_t *result);

/* Prints a gac.experiment/1 result: cases (all, or a selection of each sweep),
 * claims with verdicts and reasons, and checks. */
void experiment_print(FILE *stream, const json_t *result, bool all_cases);

#endif

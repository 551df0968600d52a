/* Colour for terminals. */
#ifndef GAC_CLI_COLOUR_H
#define GAC_CLI_COLOUR_H

#include <stdio.h>

typedef enum colour_when { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER } colour_when;
typedef enum colour { COLOUR_NONE, COLOUR_GOOD, COLOUR_WARN, COLOUR_BAD } colour;

/* Sets when to use colour. AUTO uses it on terminals, unless NO_COLOR is set
 * and not empty or TERM is dumb. */
void colour_choose(colour_when when);

/* Return the text that begins and ends a colour on stdout or stderr; "" without
 * colour. */
const char *colour_on(FILE *stream, colour which);
const char *colour_off(FILE *stream, colour which);

#endif

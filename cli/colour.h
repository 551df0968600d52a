/* Colour for people who look at a terminal, and for nobody else. */
#ifndef GAC_CLI_COLOUR_H
#define GAC_CLI_COLOUR_H

#include <stdio.h>

typedef enum colour_when { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER } colour_when;
typedef enum colour { COLOUR_NONE, COLOUR_GOOD, COLOUR_WARN, COLOUR_BAD } colour;

/* AUTO is for terminals, and not where NO_COLOR is set and not empty or TERM is dumb. */
void colour_choose(colour_when when);

/* What begins and ends a colour on stdout or stderr; "" where there is none. */
const char *colour_on(FILE *stream, colour which);
const char *colour_off(FILE *stream, colour which);

#endif

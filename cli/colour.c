#include "colour.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static colour_when chosen = COLOUR_AUTO;

void colour_choose(colour_when when)
{
    chosen = when;
}

static bool is_coloured(FILE *stream)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    if (chosen != COLOUR_AUTO)
        return chosen == COLOUR_ALWAYS;
    return !(no && *no) && !(term && strcmp(term, "dumb") == 0) && isatty(fileno(stream));
}

const char *colour_on(FILE *stream, colour which)
{
    static const char *const codes[] = { "", "\033[32m", "\033[33m", "\033[1;31m" };
    return is_coloured(stream) ? codes[which] : "";
}

const char *colour_off(FILE *stream, colour which)
{
    return which != COLOUR_NONE && is_coloured(stream) ? "\033[0m" : "";
}

/* Help, man pages and completion scripts, all from the tables of the commands. */
#ifndef GAC_CLI_PAGES_H
#define GAC_CLI_PAGES_H

#include "cli.h"

void pages_print_help(FILE *stream, const command *c);
/* Of the whole program. */
void pages_print_usage(FILE *stream);

/* roff; of the whole program where c is NULL. */
void pages_print_man(FILE *stream, const command *c);

void pages_print_bash(FILE *stream);
void pages_print_zsh(FILE *stream);
void pages_print_fish(FILE *stream);

/* How a table is walked: row is called for every option that is shown. */
typedef void pages_row(FILE *stream, const opt *option, const void *context);
void pages_each(FILE *stream, const opt *table, pages_row *row, const void *context);

#endif

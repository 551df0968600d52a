/* Prints help, man pages and completion scripts from the tables of the
 * commands. */
#ifndef GAC_CLI_PAGES_H
#define GAC_CLI_PAGES_H

#include "cli.h"

void pages_print_help(FILE *stream, const command *c);
/* Prints the help of the whole program. */
void pages_print_usage(FILE *stream);

/* Prints a man page as roff. If c is NULL, it is that of the whole program. */
void pages_print_man(FILE *stream, const command *c);

void pages_print_bash(FILE *stream);
void pages_print_zsh(FILE *stream);
void pages_print_fish(FILE *stream);

/* Calls row for every option of a table that is shown. */
typedef void pages_row(FILE *stream, const opt *option, const void *context);
void pages_each(FILE *stream, const opt *table, pages_row *row, const void *context);

#endif

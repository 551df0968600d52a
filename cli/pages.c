#include "pages.h"

#include <ctype.h>
#include <string.h>

enum { HELP_COLUMN = 28, WIDTH = 96 };

static const char purpose[] = "makes compressed language models fit the GPU they run on";
static const char common[] =
    "The result goes to stdout, all else to stderr. Names of options are written in full.";
static const struct {
    int status;
    const char *meaning;
} statuses[] = { { GAC_OK, "done" },
                 { GAC_FAILED, "failed" },
                 { GAC_USAGE, "usage" },
                 { GAC_BAD_INPUT, "bad input" },
                 { GAC_NO_RESOURCE, "no device or memory" },
                 { GAC_CHECK, "a check did not hold" } };
enum { N_STATUSES = sizeof statuses / sizeof *statuses };

void pages_each(FILE *stream, const opt *table, pages_row *row, const void *context)
{
    for (; table && table->name; table++)
        if (table->kind == OPT_GROUP)
            pages_each(stream, table->group, row, context);
        else if (!table->hidden)
            row(stream, table, context);
}

/* Prints text in lines of at most WIDTH columns. at is the present column. */
static void print_wrapped(FILE *stream, const char *text, int at, int margin)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (at + 1 + n > WIDTH) {
            fprintf(stream, "\n%*s", margin, "");
            at = margin;
        }
        fprintf(stream, "%.*s", n, text);
        at += n;
        text += n;
        if (*text == ' ') {
            text++;
            if (at + 1 + (int)strcspn(text, " ") + 1 <= WIDTH)
                fputc(' ', stream);
            at++;
        }
    }
    fputc('\n', stream);
}

static void print_row(FILE *stream, const opt *option, const void *context)
{
    char left[80], letter[5] = "    ";
    (void)context;
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, option->name,
                     option->argument ? " " : "", option->argument ? option->argument : "");
    if (n + 1 > HELP_COLUMN)
        fprintf(stream, "%s\n%*s", left, HELP_COLUMN, "");
    else
        fprintf(stream, "%-*s", HELP_COLUMN, left);
    print_wrapped(stream, option->help, HELP_COLUMN, HELP_COLUMN);
}

static void print_ways(FILE *stream, const command *c)
{
    const char *label = "usage: ";
    for (const char *at = c->usage; *at; label = "       ") {
        int n = (int)strcspn(at, "\n");
        fprintf(stream, "%sgac %s%s%.*s\n", label, c->name, n ? " " : "", n, at);
        at += n + (at[n] != 0);
    }
}

void pages_print_help(FILE *stream, const command *c)
{
    print_ways(stream, c);
    fputc('\n', stream);
    print_wrapped(stream, c->about, 0, 0);
    fputc('\n', stream);
    pages_each(stream, c->options, print_row, NULL);
    pages_each(stream, cli_common_options, print_row, NULL);
    fputs(strchr(c->example, '\n') ? "\nexamples:\n" : "\nexample: ", stream);
    for (const char *at = c->example; *at;) {
        const int n = (int)strcspn(at, "\n");
        fprintf(stream, "%sgac %s %.*s\n", strchr(c->example, '\n') ? "  " : "", c->name, n, at);
        at += n + (at[n] != 0);
    }
}

void pages_print_usage(FILE *stream)
{
    fprintf(stream, "gac " GAC_VERSION ": %s\n\nusage: gac COMMAND [options]\n\n", purpose);
    for (int i = 0; cli_commands[i]; i++)
        if (!cli_commands[i]->hidden)
            fprintf(stream, "  %-11s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    fputs("\nEvery command takes:\n", stream);
    pages_each(stream, cli_common_options, print_row, NULL);
    fprintf(stream,
            "\n%s\ngac --version prints the version, the commit and the libraries found.\n"
            "Exit status: ",
            common);
    for (int i = 0; i < N_STATUSES; i++)
        fprintf(stream, "%s%d %s", i ? ", " : "", statuses[i].status, statuses[i].meaning);
    fputs(".\n\nexample: gac inspect ./my-compressed-model --gpu h200\n", stream);
}

/* Prints text for roff. A dash is a minus, not a hyphen. A backslash, and a dot
 * at the start, must be escaped. */
static void print_roff(FILE *stream, const char *text, int n)
{
    if (n > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", stream);
    for (int i = 0; i < n; i++)
        if (text[i] == '-')
            fputs("\\-", stream);
        else if (text[i] == '\\')
            fputs("\\e", stream);
        else if (text[i] == '\'')
            fputs("\\(aq", stream);
        else if (text[i] == '^' || text[i] == '~')
            fputs(text[i] == '^' ? "\\(ha" : "\\(ti", stream);
        else
            fputc(text[i], stream);
}

static void print_roff_text(FILE *stream, const char *text)
{
    print_roff(stream, text, (int)strlen(text));
    fputc('\n', stream);
}

static void print_man_row(FILE *stream, const opt *option, const void *context)
{
    (void)context;
    fputs(".TP\n", stream);
    if (option->letter)
        fprintf(stream, "\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB\\-\\-", stream);
    print_roff(stream, option->name, (int)strlen(option->name));
    fputs("\\fR", stream);
    if (option->argument) {
        fputs(" \\fI", stream);
        print_roff(stream, option->argument, (int)strlen(option->argument));
        fputs("\\fR", stream);
    }
    fputc('\n', stream);
    print_roff_text(stream, option->help);
}

static void print_man_usage(FILE *stream, const command *c)
{
    for (const char *at = c->usage; *at;) {
        int n = (int)strcspn(at, "\n");
        fprintf(stream, "%s\\fBgac %s\\fR ", at == c->usage ? "" : ".br\n", c->name);
        print_roff(stream, at, n);
        fputc('\n', stream);
        at += n + (at[n] != 0);
    }
}

static void print_man_commands(FILE *stream)
{
    fputs(".SH COMMANDS\n", stream);
    for (int i = 0; cli_commands[i]; i++)
        if (!cli_commands[i]->hidden) {
            fprintf(stream, ".TP\n\\fBgac\\-%s\\fR(1)\n", cli_commands[i]->name);
            print_roff_text(stream, cli_commands[i]->summary);
        }
}

void pages_print_man(FILE *stream, const command *c)
{
    fprintf(stream, ".TH GAC%s", c ? "\\-" : "");
    for (const char *at = c ? c->name : ""; *at; at++)
        fputc(toupper((unsigned char)*at), stream);
    fputs(" 1 \"\" \"gac " GAC_VERSION "\" \"User Commands\"\n", stream);
    fprintf(stream, ".SH NAME\ngac%s%s \\- ", c ? "\\-" : "", c ? c->name : "");
    print_roff_text(stream, c ? c->summary : purpose);
    fputs(".SH SYNOPSIS\n", stream);
    if (c)
        print_man_usage(stream, c);
    else
        fputs("\\fBgac\\fR \\fICOMMAND\\fR [options]\n.br\n\\fBgac \\-\\-version\\fR\n", stream);
    fputs(".SH DESCRIPTION\n", stream);
    print_roff_text(stream, c ? c->about : common);
    if (!c)
        print_man_commands(stream);
    fputs(".SH OPTIONS\n", stream);
    if (c)
        pages_each(stream, c->options, print_man_row, NULL);
    pages_each(stream, cli_common_options, print_man_row, NULL);
    fputs(".SH EXIT STATUS\n", stream);
    for (int i = 0; i < N_STATUSES; i++)
        fprintf(stream, ".TP\n%d\n%s\n", statuses[i].status, statuses[i].meaning);
    if (c) {
        fputs(".SH EXAMPLE\n.nf\n", stream);
        for (const char *at = c->example; *at;) {
            const int n = (int)strcspn(at, "\n");
            char line[200];
            snprintf(line, sizeof line, "gac %s %.*s", c->name, n, at);
            print_roff_text(stream, line);
            at += n + (at[n] != 0);
        }
        fputs(".fi\n.SH SEE ALSO\n.BR gac (1)\n", stream);
    }
}

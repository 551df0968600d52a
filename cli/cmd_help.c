#include "pages.h"

typedef enum help_shell { SHELL_NONE, SHELL_BASH, SHELL_ZSH, SHELL_FISH } help_shell;

typedef struct help_command {
    bool man, commands;
    help_shell shell;
} help_command;

static const opt_choice shells[] = {
    { "bash", SHELL_BASH, false }, { "zsh", SHELL_ZSH, false }, { "fish", SHELL_FISH, false }, { 0 }
};

#define AT(member) .at = offsetof(help_command, member)
static const opt options[] = {
    { "man", 0, NULL, "print the man page instead", OPT_FLAG, AT(man) },
    { "completion", 0, "SHELL", "print what lets bash, zsh or fish complete commands and options",
      OPT_CHOICE, AT(shell), .choices = shells },
    { "commands", 0, NULL, "print the names of the commands", OPT_FLAG, AT(commands) },
    { 0 }
};

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    const help_command *o = filled;
    const command *found = n > 0 ? cli_find_command(arguments[0]) : NULL;
    if (n > 0 && !found)
        return cli_unknown_command(arguments[0], &c->error);
    if (o->commands) {
        for (int i = 0; cli_commands[i]; i++)
            if (!cli_commands[i]->hidden)
                puts(cli_commands[i]->name);
    } else if (o->shell == SHELL_BASH) {
        pages_print_bash(stdout);
    } else if (o->shell == SHELL_ZSH) {
        pages_print_zsh(stdout);
    } else if (o->shell == SHELL_FISH) {
        pages_print_fish(stdout);
    } else if (o->man) {
        pages_print_man(stdout, found);
    } else if (found) {
        pages_print_help(stdout, found);
    } else {
        pages_print_usage(stdout);
    }
    return GAC_OK;
}

static const help_command initial = { 0 };
const command cmd_help = { .name = "help",
                           .summary = "explain a command",
                           .usage = "[COMMAND] [--man]\n--completion SHELL",
                           .about = "Explains the program, or one command, as COMMAND --help does.",
                           .example = "--completion bash > ~/.local/share/bash-completion/"
                                      "completions/gac",
                           .options = options,
                           .most = 1,
                           .takes = "at most one command",
                           .size = sizeof initial,
                           .initial = &initial,
                           .run = run,
                           .hidden = true };

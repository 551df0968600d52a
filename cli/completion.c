#include "pages.h"

#include <string.h>

/* Returns whether a value is a file or a directory, by its name in help. */
static bool is_file_argument(const opt *option)
{
    static const char *const names[] = { "FILE", "DIR", "OUT", "PATH", "BASE" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (option->argument && strcmp(option->argument, names[i]) == 0)
            return true;
    return false;
}

/* Prints the values of an option, separated by spaces. False if there is no
 * list. */
static bool print_values(FILE *stream, const opt *option)
{
    int n = 0;
    for (const opt_choice *choice = option->choices; choice && choice->name; choice++)
        if (!choice->old)
            fprintf(stream, "%s%s", n++ ? " " : "", choice->name);
    if (option->argument && strcmp(option->name, "gpu") == 0)
        for (; n < gac_contract_n_bundled(); n++)
            fprintf(stream, "%s%s", n ? " " : "", gac_contract_bundled_name(n));
    return n > 0;
}

static bool has_values(const opt *option)
{
    return option->choices || strcmp(option->name, "gpu") == 0;
}

/* Prints the short form of a help text inside single quotes, without characters
 * that shells interpret. */
static void print_short(FILE *stream, const char *help)
{
    size_t n = strcspn(help, ";:(");
    while (n > 0 && help[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < n; i++)
        if (help[i] == '\'')
            fputs("'\\''", stream);
        else if (!strchr("[]:`$\"\\", help[i]))
            fputc(help[i], stream);
}

static void print_commands(FILE *stream)
{
    for (int i = 0; cli_commands[i]; i++)
        if (!cli_commands[i]->hidden)
            fprintf(stream, "%s%s", i ? " " : "", cli_commands[i]->name);
}

static void print_bash_name(FILE *stream, const opt *option, const void *context)
{
    (void)context;
    fprintf(stream, " --%s", option->name);
    if (option->letter)
        fprintf(stream, " -%c", option->letter);
}

/* Prints what may follow an option, if it takes a value. */
static void print_bash_value(FILE *stream, const opt *option, const void *context)
{
    const command *c = context;
    if (!option->argument)
        return;
    fprintf(stream, "    %s,--%s", c->name, option->name);
    if (option->letter)
        fprintf(stream, "|%s,-%c", c->name, option->letter);
    fputs(") ", stream);
    if (has_values(option)) {
        fputs("COMPREPLY=($(compgen -W '", stream);
        print_values(stream, option);
        fputs("' -- \"$cur\")); return ;;\n", stream);
    } else {
        fputs(is_file_argument(option) ? "COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
                                       : "return ;;\n",
              stream);
    }
}

void pages_print_bash(FILE *stream)
{
    fputs("# bash completion for gac, made by gac help --completion bash\n"
          "_gac() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command=${COMP_WORDS[1]} options= words=\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        COMPREPLY=($(compgen -W '",
          stream);
    print_commands(stream);
    fputs(" help --help --version' -- \"$cur\"))\n"
          "        return\n"
          "    fi\n"
          "    case $command,$prev in\n",
          stream);
    for (int i = 0; cli_commands[i]; i++) {
        pages_each(stream, cli_commands[i]->options, print_bash_value, cli_commands[i]);
        pages_each(stream, cli_common_options, print_bash_value, cli_commands[i]);
    }
    fputs("    esac\n    case $command in\n", stream);
    for (int i = 0; cli_commands[i]; i++) {
        fprintf(stream, "    %s)\n        options='", cli_commands[i]->name);
        pages_each(stream, cli_commands[i]->options, print_bash_name, NULL);
        pages_each(stream, cli_common_options, print_bash_name, NULL);
        fprintf(stream, "'\n        words='%s' ;;\n",
                cli_commands[i]->words ? cli_commands[i]->words : "");
    }
    fputs("    esac\n"
          "    case $cur in\n"
          "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
          "    *) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\") $(compgen -f -- \"$cur\")) ;;\n"
          "    esac\n"
          "}\n"
          "complete -o filenames -F _gac gac\n",
          stream);
}

static void print_zsh_value(FILE *stream, const opt *option)
{
    if (!option->argument)
        return;
    fputs(": :", stream);
    if (has_values(option)) {
        fputc('(', stream);
        print_values(stream, option);
        fputc(')', stream);
    } else if (is_file_argument(option)) {
        fputs("_files", stream);
    } else {
        fputc(' ', stream);
    }
}

static void print_zsh_row(FILE *stream, const opt *option, const void *context)
{
    (void)context;
    for (int by_letter = 0; by_letter < (option->letter ? 2 : 1); by_letter++) {
        const char *many = option->kind == OPT_LIST ? "*" : "";
        if (by_letter)
            fprintf(stream, " \\\n            '%s-%c%s[", many, option->letter,
                    option->argument ? "+" : "");
        else
            fprintf(stream, " \\\n            '%s--%s%s[", many, option->name,
                    option->argument ? "=" : "");
        print_short(stream, option->help);
        fputc(']', stream);
        print_zsh_value(stream, option);
        fputc('\'', stream);
    }
}

void pages_print_zsh(FILE *stream)
{
    fputs("#compdef gac\n"
          "# zsh completion for gac, made by gac help --completion zsh\n"
          "_gac() {\n"
          "    local -a commands=(\n",
          stream);
    for (int i = 0; cli_commands[i]; i++) {
        fprintf(stream, "        '%s:", cli_commands[i]->name);
        print_short(stream, cli_commands[i]->summary);
        fputs("'\n", stream);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $command in\n",
          stream);
    for (int i = 0; cli_commands[i]; i++) {
        fprintf(stream, "        %s)\n            _arguments -s -S", cli_commands[i]->name);
        pages_each(stream, cli_commands[i]->options, print_zsh_row, NULL);
        pages_each(stream, cli_common_options, print_zsh_row, NULL);
        if (cli_commands[i]->words)
            fprintf(stream, " \\\n            '1: :(%s)'", cli_commands[i]->words);
        fputs(" \\\n            '*: :_files' ;;\n", stream);
    }
    fputs("    esac\n}\n_gac \"$@\"\n", stream);
}

static void print_fish_row(FILE *stream, const opt *option, const void *context)
{
    const command *c = context;
    fprintf(stream, "complete -c gac -n '__fish_seen_subcommand_from %s' -l %s", c->name,
            option->name);
    if (option->letter)
        fprintf(stream, " -s %c", option->letter);
    if (has_values(option)) {
        fputs(" -x -a '", stream);
        print_values(stream, option);
        fputc('\'', stream);
    } else if (option->argument) {
        fputs(is_file_argument(option) ? " -r -F" : " -x", stream);
    }
    fputs(" -d '", stream);
    print_short(stream, option->help);
    fputs("'\n", stream);
}

void pages_print_fish(FILE *stream)
{
    fputs("# fish completion for gac, made by gac help --completion fish\n"
          "complete -c gac -n __fish_use_subcommand -l version -d 'what this program is'\n",
          stream);
    for (int i = 0; cli_commands[i]; i++) {
        const command *c = cli_commands[i];
        fprintf(stream, "complete -c gac -f -n __fish_use_subcommand -a %s -d '", c->name);
        print_short(stream, c->summary);
        fputs("'\n", stream);
        if (c->words)
            fprintf(stream, "complete -c gac -n '__fish_seen_subcommand_from %s' -a '%s'\n",
                    c->name, c->words);
        pages_each(stream, c->options, print_fish_row, c);
        pages_each(stream, cli_common_options, print_fish_row, c);
    }
}

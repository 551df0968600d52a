#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const command *const commands[] = { &cmd_inspect, &cmd_dim, &cmd_contract, NULL };

static void print_usage(FILE *stream)
{
    fputs("gac " GAC_VERSION ": makes compressed language models fit the GPU they run on\n"
          "\n"
          "usage: gac COMMAND [options]\n"
          "\n",
          stream);
    for (int i = 0; commands[i]; i++)
        fprintf(stream, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n"
          "Every command takes --json (result as JSON), -q (no progress), -v (say more) and\n"
          "--help (its options, with an example). The result goes to stdout, all else to stderr.\n"
          "Exit status: 0 done, 1 failed, 2 usage, 3 bad input, 4 no device or memory, 5 a check\n"
          "did not hold.\n"
          "\n"
          "example: gac inspect ./my-compressed-model --gpu h200\n",
          stream);
}

static const command *find_command(const char *name)
{
    for (int i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* "gac help inspect" and "gac inspect --help" are the same. */
static int print_help(int argc, char **argv)
{
    const command *found = argc > 2 ? find_command(argv[2]) : NULL;
    if (found)
        fputs(found->help, stdout);
    else
        print_usage(stdout);
    return GAC_OK;
}

int main(int argc, char **argv)
{
    char q[80];
    if (argc < 2) {
        print_usage(stderr);
        return GAC_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("gac " GAC_VERSION);
        return GAC_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return print_help(argc, argv);
    const command *found = find_command(argv[1]);
    if (!found) {
        fprintf(stderr, "gac: \"%s\" is not a command; see gac --help\n",
                gac_quote(q, sizeof q, argv[1]));
        return GAC_USAGE;
    }
    cli c = { .argc = argc,
              .argv = argv,
              .log = { .stream = stderr, .level = 0 },
              .progress = gac_progress_create(stderr),
              .error = GAC_ERROR_INIT };
    gac_status status = found->run(&c, argc - 1, argv + 1);
    if (status != GAC_OK && c.error.text[0])
        fprintf(stderr, "gac: %s\n", c.error.text);
    if (fflush(stdout) != 0 && status == GAC_OK) {
        fprintf(stderr, "gac: cannot write the result\n");
        status = GAC_FAILED;
    }
    gac_progress_free(c.progress);
    return (int)status;
}

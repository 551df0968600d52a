#include "cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const command *const commands[] = { &cmd_inspect, &cmd_plan,       &cmd_repair,
                                           &cmd_verify,  &cmd_eval,       &cmd_generate,
                                           &cmd_convert, &cmd_dim,        &cmd_contract,
                                           &cmd_probe,   &cmd_experiment, NULL };

static void print_usage(FILE *stream)
{
    fputs("gac " GAC_VERSION ": makes compressed language models fit the GPU they run on\n"
          "\n"
          "usage: gac COMMAND [options]\n"
          "\n",
          stream);
    for (int i = 0; commands[i]; i++)
        fprintf(stream, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
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

static int unknown_command(const char *name)
{
    char q[80];
    fprintf(stderr, "gac: \"%s\" is not a command; see gac --help\n", gac_quote(q, sizeof q, name));
    return GAC_USAGE;
}

/* "gac help inspect" and "gac inspect --help" are the same. */
static int print_help(const char *name)
{
    const command *found = name ? find_command(name) : NULL;
    if (name && !found)
        return unknown_command(name);
    if (found)
        fputs(found->help, stdout);
    else
        print_usage(stdout);
    return GAC_OK;
}

static int run_command(const command *found, int argc, char **argv)
{
    /* getopt reorders its arguments; results show them as they were given. */
    char **given = calloc((size_t)argc + 1, sizeof *given);
    if (!given) {
        fputs("gac: out of memory\n", stderr);
        return GAC_NO_RESOURCE;
    }
    memcpy(given, argv, (size_t)argc * sizeof *given);
    cli c = { .argc = argc,
              .argv = given,
              .log = { .stream = stderr, .level = 0 },
              .progress = gac_progress_create(stderr),
              .error = GAC_ERROR_INIT };
    gac_status status = found->run(&c, argc - 1, argv + 1);
    /* A result that lost a piece for want of memory is no result. */
    if (status == GAC_OK)
        status = gac_memory_check(&c.error);
    if (status != GAC_OK)
        fprintf(stderr, "gac: %s\n",
                c.error.text[0]             ? c.error.text
                : status == GAC_NO_RESOURCE ? "out of memory"
                                            : "failed");
    gac_progress_free(c.progress);
    free(given);
    return (int)status;
}

static int dispatch(int argc, char **argv)
{
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
        return print_help(argc > 2 ? argv[2] : NULL);
    const command *found = find_command(argv[1]);
    return found ? run_command(found, argc, argv) : unknown_command(argv[1]);
}

/* A mapped file was cut, or its disk failed: what is read there does not exist.
 * All threads that read there come here; the first one speaks. */
static void end_on_lost_file(int signal)
{
    static const char text[] = "gac: a file that was being read became shorter or unreadable\n";
    static atomic_flag is_said = ATOMIC_FLAG_INIT;
    (void)signal;
    while (atomic_flag_test_and_set(&is_said))
        pause();
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(GAC_FAILED);
    _exit(GAC_BAD_INPUT);
}

int main(int argc, char **argv)
{
    signal(SIGBUS, end_on_lost_file);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like any other */
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == GAC_OK) {
        fprintf(stderr, "gac: cannot write the result\n");
        status = GAC_FAILED;
    }
    return status;
}

#include "pages.h"
#include "version.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void print_error(const gac_error *error, gac_status status)
{
    fprintf(stderr, "%sgac:%s %s\n", colour_on(stderr, COLOUR_BAD), colour_off(stderr, COLOUR_BAD),
            error->text[0]              ? error->text
            : status == GAC_NO_RESOURCE ? "out of memory"
                                        : "failed");
}

static gac_status check_count(cli *c, const command *found)
{
    int n = c->parsed.n_arguments;
    if (n >= found->least && (found->most < 0 || n <= found->most))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "%s takes %s; see gac %s --help", found->name,
                         found->takes, found->name);
}

/* Reads the arguments into options and runs the command. */
static gac_status run_with(cli *c, const command *found, void *options)
{
    char see[64];
    opt_set sets[] = { { found->options, options }, { cli_common_options, c } };
    snprintf(see, sizeof see, "gac %s --help", found->name);
    gac_status status =
        options_parse(sets, 2, c->argc - 2, c->argv + 2, see, &c->parsed, &c->error);
    colour_choose(c->colour);
    if (status == GAC_OK && c->help) {
        pages_print_help(stdout, found);
        return GAC_OK;
    }
    if (status == GAC_OK)
        status = check_count(c, found);
    if (status != GAC_OK)
        return status;
    if (c->json && cli_given(c, "format") && c->format != CLI_FORMAT_JSON)
        return gac_error_set(&c->error, GAC_USAGE, "--json and --format exclude each other");
    c->json = c->json || c->format != CLI_FORMAT_TEXT;
    c->log.level = c->verbose ? 1 : c->quiet ? -1 : 0;
    c->progress = c->quiet ? NULL : gac_progress_create(stderr);
    return found->run(c, options, c->parsed.n_arguments, c->parsed.arguments);
}

static gac_status run_command(const command *found, int argc, char **argv)
{
    cli c = { .argc = argc, .argv = argv, .log = { .stream = stderr }, .error = GAC_ERROR_INIT };
    void *options = calloc(1, found->size + 1);
    if (options && found->size)
        memcpy(options, found->initial, found->size);
    gac_status status = options ? run_with(&c, found, options) : GAC_NO_RESOURCE;
    /* If memory was short, a result may lack a part. */
    if (status == GAC_OK)
        status = gac_memory_check(&c.error);
    if (status != GAC_OK)
        print_error(&c.error, status);
    gac_progress_free(c.progress);
    options_dispose(&c.parsed);
    free(options);
    return status;
}

static gac_status refuse(const char *name)
{
    gac_error error = GAC_ERROR_INIT;
    int distance = INT_MAX;
    static const opt own[] = { { "version", 0, NULL, "", OPT_FLAG, .at = 0 },
                               { "help", 0, NULL, "", OPT_FLAG, .at = 0 },
                               { 0 } };
    char q[80];
    const char *best = NULL;
    for (const opt *o = own; o->name && name[0] == '-'; o++)
        if (options_is_closer(name + strspn(name, "-"), o->name, &distance))
            best = o->name;
    if (best)
        gac_error_set(&error, GAC_USAGE, "unknown option %s; did you mean --%s?",
                      gac_quote(q, sizeof q, name), best);
    else
        cli_unknown_command(name, &error);
    print_error(&error, GAC_USAGE);
    return GAC_USAGE;
}

static gac_status dispatch(int argc, char **argv)
{
    if (argc < 2) {
        pages_print_usage(stderr);
        return GAC_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        version_print(stdout);
        return GAC_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        pages_print_usage(stdout);
        return GAC_OK;
    }
    const command *found = cli_find_command(argv[1]);
    return found ? run_command(found, argc, argv) : refuse(argv[1]);
}

/* Handles SIGBUS: a mapped file became shorter, or its disk failed. Several
 * threads may get here; only the first prints. */
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

/* GAC_PARENT is the process that waits for this one, as the Python package does. If it is killed,
 * nobody wants the work any more. */
static void end_with_parent(void)
{
    const char *parent = getenv("GAC_PARENT");
    if (!parent)
        return;
    cli_has_parent = true;
    signal(SIGPIPE, SIG_IGN); /* nobody reads its progress any more: it must still tidy up */
    const bool lost =
        prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && (long)getppid() != strtol(parent, NULL, 10);
    unsetenv("GAC_PARENT"); /* it is not the parent of what this process starts */
    if (lost)
        raise(SIGTERM);
}

int main(int argc, char **argv)
{
    end_with_parent();
    signal(SIGBUS, end_on_lost_file);
    signal(SIGXFSZ, SIG_IGN); /* writing beyond a file size limit is then an ordinary error */
    gac_status status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == GAC_OK) {
        fputs("gac: cannot write the result\n", stderr);
        status = GAC_FAILED;
    }
    return (int)status;
}

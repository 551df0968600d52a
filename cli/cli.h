/* What the commands of the program share. */
#ifndef GAC_CLI_H
#define GAC_CLI_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/contract.h>
#include <gac/device.h>
#include <gac/model.h>
#include <gac/plan.h>
#include <gac/repair.h>

#include <getopt.h>
#include <jansson.h>

typedef struct cli {
    int argc; /* of the whole program, for results */
    char **argv;
    bool json;
    gac_log log;
    gac_progress *progress; /* NULL with -q */
    gac_error error;
} cli;

typedef struct command {
    const char *name;
    const char *summary;
    const char *help; /* usage, options and an example */
    gac_status (*run)(cli *c, int argc, char **argv);
} command;

extern const command cmd_dim, cmd_inspect, cmd_contract, cmd_plan, cmd_repair, cmd_verify,
    cmd_convert, cmd_probe, cmd_experiment, cmd_eval, cmd_generate;

/* Options every command takes; list it last in a table of long options. */
#define CLI_COMMON_OPTIONS \
    { "json", no_argument, NULL, 'j' }, { "quiet", no_argument, NULL, 'q' }, \
        { "verbose", no_argument, NULL, 'v' }, { "help", no_argument, NULL, 'h' }, \
    { \
        NULL, 0, NULL, 0 \
    }

/* The next option's letter; -1 at the end of options; '?' after a usage error
 * that is explained in c->error, or after --help, which sets *done. Common
 * options are taken care of. A command takes -o if its table lists "output". */
int cli_next_option(cli *c, const command *self, int argc, char **argv,
                    const struct option *options, bool *done);

/* A whole number of at least minimum, or a usage error that names the option. */
gac_status cli_number(cli *c, const char *option, const char *text, int64_t minimum, int64_t *out);

/* A number that is finite, or a usage error likewise. */
gac_status cli_real(cli *c, const char *option, const char *text, double *out);

/* A number of bytes, as 5GB, 500MB or 1000000, or a usage error likewise. */
gac_status cli_size(cli *c, const char *option, const char *text, uint64_t *out);

/* The contract of --contract FILE, else of --gpu NAME, else the default. */
gac_status cli_contract(cli *c, const char *gpu, const char *file, gac_contract **out);

/* The contract of one argument that may be either: a file has a / or a dot. */
bool cli_is_file(const char *name);
gac_status cli_contract_named(cli *c, const char *name, gac_contract **out);

/* Opens cuda or cuda:N for measuring; the CPU is a usage error, since its
 * reference would run for ever. */
gac_status cli_open_gpu(cli *c, const char *name, gac_device **out);

/* Whether a file could be written to path, to refuse a target before minutes of
 * measuring and not after. Leaves nothing behind. */
gac_status cli_check_target(cli *c, const char *path, bool force);

/* From now on the first interrupt sets what is returned, for the command to end in
 * an orderly way; a second one ends the program at once. */
const volatile int *cli_catch_signals(void);

/* "15.7 GB", "7.24 B": into buffer, which is returned. */
char *cli_bytes(char buffer[32], uint64_t n_bytes);
char *cli_count(char buffer[32], int64_t n);

/* What is not known is a dash in a table, and null in JSON. */
const char *cli_or_dash(const char *text);
json_t *cli_or_null(const char *text);
json_t *cli_number_or_null(double value);

/* A name with * for its numbers: layers.*.mlp.width. */
void cli_pattern(char *out, size_t size, const char *name);

/* The dtype whose rules serve: for name if given, else for what the model is
 * stored in. *wanted gets the dtype itself. */
gac_status cli_dtype(cli *c, const char *name, const gac_model *model, const gac_contract *contract,
                     gac_dtype *wanted, gac_dtype *out);

#define CLI_DEFAULT_GPU "h200"

#endif

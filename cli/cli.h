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

#include <jansson.h>

#include "colour.h"
#include "options.h"

typedef struct cli {
    int argc; /* of the whole program, for results */
    char **argv;
    bool json, quiet, verbose, help; /* what every command takes */
    colour_when colour;
    opt_result parsed;
    gac_log log;
    gac_progress *progress; /* NULL with -q */
    gac_error error;
} cli;

/* A command: its table of options, what help says of it, and its function. */
typedef struct command {
    const char *name, *summary;
    const char *usage;   /* what follows "gac NAME ", a line for each way */
    const char *about;   /* a paragraph */
    const char *example; /* what follows "gac NAME " */
    const opt *options;
    int least, most;     /* arguments that are no options; most -1 is no limit */
    const char *takes;   /* those in words: "one directory" */
    const char *words;   /* what the first may be, for completion; NULL: a file */
    size_t size;         /* of the structure that options fill, */
    const void *initial; /* and what it is without any */
    gac_status (*run)(cli *c, void *options, int n, const char **arguments);
    bool hidden;
} command;

extern const command cmd_dim, cmd_inspect, cmd_contract, cmd_plan, cmd_repair, cmd_verify,
    cmd_compress, cmd_convert, cmd_probe, cmd_experiment, cmd_eval, cmd_generate, cmd_help;

/* All commands; NULL is at the end. */
extern const command *const cli_commands[];
const command *cli_find_command(const char *name);
/* The error of a name that is none, with the one that may be meant. */
gac_status cli_unknown_command(const char *name, gac_error *err);

/* What every command takes; fills a cli. */
extern const opt cli_common_options[];

/* Whether an option was given. */
bool cli_given(const cli *c, const char *name);

/* Reads a dtype into a gac_dtype, for tables. */
opt_take cli_take_dtype;
/* Checks a const char * that names a GPU, a CPU or the reference, for tables. */
opt_take cli_take_device;

/* Choices that several tables have. */
extern const opt_choice cli_strategies[]; /* of gac_strategy */
extern const opt_choice cli_rescaled[];   /* a bool, as int: --allow rescaled */

/* A whole number of at least minimum, or a usage error that names what it is. */
gac_status cli_number(cli *c, const char *what, const char *text, int64_t minimum, int64_t *out);

/* The contract of --contract FILE, else of --gpu NAME, else the default. */
gac_status cli_contract(cli *c, const char *gpu, const char *file, gac_contract **out);

/* The contract of one argument that may be either: a file has a / or a dot. */
bool cli_is_file(const char *name);
gac_status cli_contract_named(cli *c, const char *name, gac_contract **out);

/* Opens cuda or cuda:N for measuring; the CPU is a usage error, since its
 * reference would run for ever. */
gac_status cli_open_gpu(cli *c, const char *name, gac_device **out);

/* From now on the first interrupt sets what is returned, for the command to end in
 * an orderly way; a second one ends the program at once. Interrupts that are ignored
 * stay so. */
const volatile int *cli_catch_signals(void);

/* Starts a file that appears complete or not at all. Until cli_finish_file an
 * interrupt is only noted. */
gac_status cli_new_file(cli *c, const char *path, bool force, gac_new_file **out);
/* Gives the file its name. If status says that writing it failed, or after an
 * interrupt, removes it instead, and returns the failure. */
gac_status cli_finish_file(cli *c, gac_new_file *file, gac_status status);
/* Writes a whole file. */
gac_status cli_write_file(cli *c, const char *path, bool force, const char *text);
/* Whether a file could be written to path, to refuse a target before minutes of
 * measuring and not after. Leaves nothing behind. */
gac_status cli_check_target(cli *c, const char *path, bool force);

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

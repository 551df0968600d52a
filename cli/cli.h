/* Shared by the commands of the program. */
#ifndef GAC_CLI_H
#define GAC_CLI_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/contract.h>
#include <gac/device.h>
#include <gac/model.h>
#include <gac/plan.h>
#include <gac/repair.h>
#include <gac/report.h>

#include <jansson.h>

#include "colour.h"
#include "options.h"

/* How a result is printed. */
typedef enum cli_format {
    CLI_FORMAT_TEXT,
    CLI_FORMAT_MD,
    CLI_FORMAT_CSV,
    CLI_FORMAT_JSON,
} cli_format;

typedef struct cli {
    int argc; /* the arguments of the program, for results */
    char **argv;
    bool json, quiet, verbose, help; /* options of every command; json: a document is wanted, to
                                        be printed in this format */
    cli_format format;
    colour_when colour;
    opt_result parsed;
    gac_log log;
    gac_progress *progress; /* NULL with -q */
    gac_error error;
} cli;

/* A command: its options, its help and its function. */
typedef struct command {
    const char *name, *summary;
    const char *usage;   /* the text after "gac NAME ", one line for each form */
    const char *about;   /* a paragraph */
    const char *example; /* lines, each of what follows "gac NAME " */
    const opt *options;
    int least, most;     /* number of arguments besides options; most -1: no limit */
    const char *takes;   /* describes these arguments: "one directory" */
    const char *words;   /* values of the first argument, for completion; NULL: a file */
    size_t size;         /* size of the structure that options fill */
    const void *initial; /* initial content of that structure */
    gac_status (*run)(cli *c, void *options, int n, const char **arguments);
    bool hidden;
} command;

/* The last members of a command whose file defines options, initial and run. */
#define COMMAND_RUNS(least_, most_, takes_) \
    .options = options, .least = (least_), .most = (most_), .takes = (takes_), \
    .size = sizeof initial, .initial = &initial, .run = run

extern const command cmd_dim, cmd_inspect, cmd_contract, cmd_plan, cmd_repair, cmd_verify,
    cmd_compress, cmd_convert, cmd_probe, cmd_experiment, cmd_eval, cmd_generate, cmd_report,
    cmd_help;

/* All commands; the list ends with NULL. */
extern const command *const cli_commands[];
const command *cli_find_command(const char *name);
/* Returns the error for an unknown command, and suggests a similar one. */
gac_status cli_unknown_command(const char *name, gac_error *err);

/* The options of every command. They fill a cli. */
extern const opt cli_common_options[];

/* Where a model will run and what it will do. */
typedef struct cli_target {
    const char *gpu, *contract; /* a name or a file; NULL if not given */
    const char *dtype;          /* NULL if not given */
    const char *workload;
    int64_t n_gpus, quant_group;
} cli_target;

#define CLI_TARGET_INIT \
    { \
        .workload = GAC_DEFAULT_WORKLOAD, .n_gpus = 1 \
    }

/* Fills a cli_target. */
extern const opt cli_target_options[];

/* Returns whether an option was given. */
bool cli_given(const cli *c, const char *name);

/* Reads a dtype into a gac_dtype. For tables of options. */
opt_take cli_take_dtype;
/* Checks the name of a GPU, a CPU or the reference, a const char *. For tables
 * of options. */
opt_take cli_take_device;

/* Choices that several tables share. */
extern const opt_choice cli_strategies[]; /* values of gac_strategy */
extern const opt_choice cli_rescaled[];   /* --allow rescaled; 1 */

/* Reads a whole number of at least minimum. Errors name option. */
gac_status cli_number(cli *c, const char *option, const char *text, int64_t minimum, int64_t *out);

/* Loads the contract of --contract FILE, otherwise of --gpu NAME, otherwise the
 * default. */
gac_status cli_contract(cli *c, const char *gpu, const char *file, gac_contract **out);

/* Loads the contract of an argument that may be a file or a name. A file has a
 * / or a dot. */
bool cli_is_file(const char *name);
gac_status cli_contract_named(cli *c, const char *name, gac_contract **out);

/* Opens cuda or cuda:N for measuring. cpu is a usage error, because measuring
 * its reference would take forever. */
gac_status cli_open_gpu(cli *c, const char *name, gac_device **out);

/* Whether GAC_PARENT names a process that waits for this one. */
extern bool cli_has_parent;

/* Catches interrupts. The first one sets the returned flag, so that the command
 * can end in an orderly way. A second one ends the program at once,
 * unless it has a parent. Ignored signals stay ignored. */
const volatile int *cli_catch_signals(void);

/* Starts a file that appears complete or not at all. Until cli_finish_file, an
 * interrupt is only noted. */
gac_status cli_new_file(cli *c, const char *path, bool force, gac_new_file **out);
/* Gives the file its name. If status is a failure, or after an interrupt, it
 * removes the file instead and returns the failure. */
gac_status cli_finish_file(cli *c, gac_new_file *file, gac_status status);
/* Writes a whole file. */
gac_status cli_write_file(cli *c, const char *path, bool force, const char *text);
/* Writes value and a newline to a file, with jansson's flags for dumping. */
gac_status cli_write_json(cli *c, const char *path, bool force, const json_t *value, size_t flags);
/* Prints a result as the format asks: the document, or tables of it (format.c). */
gac_status cli_print_result(cli *c, const json_t *result);
/* Draws the figures of a report and writes its page. */
gac_status cli_write_page(cli *c, gac_report *report, const char *path, bool force);
/* Writes the page of one result, or of an array of results. title is its heading. */
gac_status cli_leave_page(cli *c, const json_t *result, const char *title, const char *path,
                          bool force);
/* Adds to the error of a failed report that path is complete, so that the user knows what is on
 * disk. Returns status. */
gac_status cli_report_failed(cli *c, const char *path, gac_status status);
/* Checks that a file can be written to path, before minutes of measuring.
 * Leaves nothing behind. */
gac_status cli_check_target(cli *c, const char *path, bool force);

/* Write "15.7 GB" or "7.24 billion" to buffer and return it. */
char *cli_bytes(char buffer[32], uint64_t n_bytes);
char *cli_count(char buffer[32], int64_t n);

/* Writes a share of understood parameters: "97.3 %". Only all of them are "100 %". */
char *cli_understood(char buffer[32], double pct);

/* Unknown values are a dash in tables and null in JSON. */
const char *cli_or_dash(const char *text);
json_t *cli_or_null(const char *text);
json_t *cli_number_or_null(double value);

/* Replaces the numbers in a name by *: layers.*.mlp.width. */
void cli_pattern(char *out, size_t size, const char *name);

/* Finds the dtype of name, or of the model if name is NULL, in *wanted. *out is
 * the dtype whose rules apply to it. */
gac_status cli_dtype(cli *c, const char *name, const gac_model *model, const gac_contract *contract,
                     gac_dtype *wanted, gac_dtype *out);

#define CLI_DEFAULT_GPU "h200"

#endif

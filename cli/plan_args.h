/* Options that say how to choose sizes, shared by plan and repair. */
#ifndef GAC_CLI_PLAN_ARGS_H
#define GAC_CLI_PLAN_ARGS_H

#include "cli.h"

enum { MAX_RULES = 256 };

typedef struct plan_args {
    const char *gpu, *contract_file, *workload_text, *dtype;
    gac_contract *contract;
    gac_workload workload;
    gac_plan_options options;
    gac_plan_rule rules[MAX_RULES];
    bool given;          /* any option but --allow */
    bool overhead_given; /* --max-overhead */
    double time_ratio;   /* of --time-target 0.5x, or 0 */
} plan_args;

#define PLAN_ARGS_OPTIONS \
    { "gpu", required_argument, NULL, 'g' }, { "contract", required_argument, NULL, 'c' }, \
        { "dtype", required_argument, NULL, 'd' }, { "workload", required_argument, NULL, 'w' }, \
        { "tp", required_argument, NULL, 't' }, { "quant-group", required_argument, NULL, 'Q' }, \
        { "strategy", required_argument, NULL, 's' }, \
        { "max-overhead", required_argument, NULL, 'm' }, \
        { "time-target", required_argument, NULL, 'T' }, \
        { "time-limit", required_argument, NULL, 'L' }, { "set", required_argument, NULL, 'S' }, \
        { "allow", required_argument, NULL, 'A' }, \
    { \
        "uniform", no_argument, NULL, 'U' \
    }

#define PLAN_ARGS_HELP \
    "  --strategy S         minimal (next multiple of 8; the default), optimal (of 16),\n" \
    "                       predefined, tradeoff, or solve: the best by prediction, proved;\n" \
    "                       a gain below the contract's stated error counts as none\n" \
    "  --max-overhead PCT   solve: growth in bytes; tradeoff: growth of a size (default 10)\n" \
    "  --time-target T      solve for least bytes with the workload within T: 12.5ms, or 0.4x\n" \
    "                       of what it takes now\n" \
    "  --time-limit S       seconds the search may take (default: until proved)\n" \
    "  --gpu NAME, --contract FILE, --dtype D, --workload W, --tp N, --quant-group G\n" \
    "                       as for gac inspect\n" \
    "  --set NAME=SIZE      a fixed size; * and ? match in NAME; may be repeated\n" \
    "  --uniform            one MLP width for all layers\n" \
    "  --allow rescaled     also sizes that are the same up to rounding only\n"

#define PLAN_ARGS_INIT \
    { \
        .workload_text = GAC_DEFAULT_WORKLOAD, .options = { \
            .target = { .n_gpus = 1 }, \
            .max_overhead_pct = GAC_DEFAULT_OVERHEAD_PCT \
        } \
    }

/* Takes the value of --allow. */
gac_status plan_args_allow(cli *c, const char *text, bool *rescaled);

/* Takes one option by its letter. */
gac_status plan_args_take(cli *c, plan_args *a, int letter);

/* Loads the contract and fits everything to a model, before planning. */
gac_status plan_args_finish(cli *c, plan_args *a, const gac_model *model);
void plan_args_dispose(plan_args *a);

/* Opens a checkpoint and builds its model. */
gac_status cli_open_model(cli *c, const char *path, gac_checkpoint **checkpoint, gac_model **model);

/* The changed dimensions as a table, patterns of names on one line each. */
void cli_print_changes(const gac_model *model, const int64_t *sizes);
/* The same as [{"name","from","to"}]. */
json_t *cli_changes_json(const gac_model *model, const int64_t *sizes);

#endif

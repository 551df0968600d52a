/* Options for choosing sizes, shared by plan and repair. */
#ifndef GAC_CLI_PLAN_ARGS_H
#define GAC_CLI_PLAN_ARGS_H

#include "cli.h"

typedef struct plan_time_target {
    double ms, ratio; /* --time-target 12.5ms sets ms, 0.5x sets ratio; otherwise 0 */
} plan_time_target;

typedef struct plan_args {
    cli_target target;
    gac_contract *contract;
    gac_workload workload;
    gac_plan_options options;
    opt_list set; /* --set NAME=SIZE */
    gac_plan_rule rules[OPT_MAX_LIST];
    int strategy; /* a gac_strategy, or GAC_STRATEGY_COUNT for solve */
    int allow_rescaled;
    plan_time_target time_target;
} plan_args;

/* They fill a plan_args. The second table has --allow only. */
extern const opt plan_args_options[];
extern const opt plan_args_allow[];

#define PLAN_ARGS_INIT \
    { \
        .target = CLI_TARGET_INIT, .options = GAC_PLAN_OPTIONS_INIT \
    }

/* Loads the contract and completes the options for a model. */
gac_status plan_args_finish(cli *c, plan_args *a, const gac_model *model);
void plan_args_dispose(plan_args *a);

/* Opens a checkpoint and builds its model. */
gac_status cli_open_model(cli *c, const char *path, gac_checkpoint **checkpoint, gac_model **model);

/* Prints the changed dimensions as a table, with one line for each pattern of
 * names. */
gac_status cli_print_changes(const gac_model *model, const int64_t *sizes, gac_error *err);
/* The same as [{"name","from","to"}]. */
json_t *cli_changes_json(const gac_model *model, const int64_t *sizes);

#endif

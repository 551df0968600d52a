/* Options that say how to choose sizes, shared by plan and repair. */
#ifndef GAC_CLI_PLAN_ARGS_H
#define GAC_CLI_PLAN_ARGS_H

#include "cli.h"

typedef struct plan_time_target {
    double ms, ratio; /* of --time-target 12.5ms or 0.5x, else 0 */
} plan_time_target;

typedef struct plan_args {
    const char *gpu, *contract_file, *workload_text, *dtype;
    gac_contract *contract;
    gac_workload workload;
    gac_plan_options options;
    opt_list set; /* of --set: NAME=SIZE */
    gac_plan_rule rules[OPT_MAX_LIST];
    int strategy; /* a gac_strategy, or GAC_STRATEGY_COUNT for solve */
    int allow_rescaled;
    plan_time_target time_target;
} plan_args;

/* For a plan_args; the second is --allow. */
extern const opt plan_args_options[];
extern const opt plan_args_allow[];

#define PLAN_ARGS_INIT \
    { \
        .workload_text = GAC_DEFAULT_WORKLOAD, .options = { \
            .target = { .n_gpus = 1 }, \
            .max_overhead_pct = GAC_DEFAULT_OVERHEAD_PCT \
        } \
    }

/* Loads the contract and fits everything to a model, before planning. */
gac_status plan_args_finish(cli *c, plan_args *a, const gac_model *model);
void plan_args_dispose(plan_args *a);

/* Opens a checkpoint and builds its model. */
gac_status cli_open_model(cli *c, const char *path, gac_checkpoint **checkpoint, gac_model **model);

/* Prints the changed dimensions as a table, patterns of names on one line each. */
gac_status cli_print_changes(const gac_model *model, const int64_t *sizes, gac_error *err);
/* The same as [{"name","from","to"}]. */
json_t *cli_changes_json(const gac_model *model, const int64_t *sizes);

#endif

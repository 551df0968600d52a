/* Plans the next multiple of 8 for every size that is none, and writes a checkpoint
 * that has these sizes and computes the same.
 *
 *     cc plan_repair.c -o plan_repair $(pkg-config --cflags --libs gac)
 *     ./plan_repair DIR OUT h200 */
#include <stdio.h>

#include <gac/gac.h>

/* Sizes for a model that will run in the dtype it is stored in. */
static gac_status make_plan(const gac_model *model, const gac_contract *contract, gac_plan *plan,
                            gac_error *err)
{
    gac_plan_options options = GAC_PLAN_OPTIONS_INIT;
    gac_workload workload;
    gac_dtype stored = gac_model_dtype(model);
    options.target.contract = contract;
    options.workload = &workload;
    options.strategy = GAC_STRATEGY_MINIMAL; /* options.solve: the fastest sizes, proved */
    if (!gac_contract_dtype(contract, stored, &options.target.dtype))
        return gac_error_set(err, GAC_USAGE, "contract %s does not serve %s",
                             gac_contract_name(contract), gac_dtype_name(stored));
    gac_status status = gac_workload_parse("prefill:1x2048,decode:1@2048", &workload, err);
    return status == GAC_OK ? gac_plan_create(model, &options, plan, err) : status;
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_plan plan = { .sizes = NULL };
    gac_repair_options options = GAC_REPAIR_OPTIONS_INIT;
    gac_repair_result result;
    if (argc != 4) {
        fprintf(stderr, "usage: plan_repair DIR OUT GPU\n");
        return GAC_USAGE;
    }
    gac_status status = gac_contract_load_bundled(argv[3], &contract, &err);
    if (status == GAC_OK)
        status = gac_checkpoint_open(argv[1], NULL, &checkpoint, &err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, &err);
    if (status == GAC_OK)
        status = make_plan(model, contract, &plan, &err);
    if (status == GAC_OK)
        printf("%.3f ms now, %.3f ms planned\n", plan.now_ms, plan.planned_ms);
    if (status == GAC_OK)
        status = gac_repair_apply(checkpoint, model, plan.sizes, argv[2], &options, &result, &err);
    if (status == GAC_OK)
        printf("%d sizes changed, %llu bytes before, %llu after\n", (int)result.n_dims_changed,
               (unsigned long long)result.bytes_before, (unsigned long long)result.bytes_after);
    else
        fprintf(stderr, "plan_repair: %s\n", err.text);
    gac_plan_dispose(&plan);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    gac_contract_free(contract);
    return (int)status;
}

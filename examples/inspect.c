/* Says whether repairing a checkpoint pays on a GPU.
 *
 *     cc inspect.c -o inspect $(pkg-config --cflags --libs gac)
 *     ./inspect DIR h200 */
#include <stdio.h>

#include <gac/gac.h>

static void print(const gac_model *model, const gac_contract *contract, const gac_inspection *x)
{
    printf("%s, %s: %d of %d sizes are misaligned on %s\n", gac_model_family(model),
           gac_model_compressor(model), (int)x->n_misaligned, (int)x->n_dims,
           gac_contract_gpu(contract));
    for (int i = 0; i < x->workload.n_phases; i++)
        printf("%s: %.3f ms now, %.3f ms repaired\n", x->phases[i].label, x->phases[i].now_ms,
               x->phases[i].exact_ms);
    printf("repair: %s, %+.2f %% bytes\n", gac_verdict_name(x->verdict), x->overhead_pct);
    for (int32_t i = 0; i < x->n_dims; i++)
        if (!x->advice[i].aligned)
            printf("  %s %lld, better %lld\n", gac_model_dim(model, i)->name,
                   (long long)gac_model_dim(model, i)->size, (long long)x->advice[i].suggest);
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_contract *contract = NULL;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_inspection *inspection = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: inspect DIR GPU\n");
        return GAC_USAGE;
    }
    gac_status status = gac_contract_load_bundled(argv[2], &contract, &err);
    if (status == GAC_OK)
        status = gac_checkpoint_open(argv[1], NULL, &checkpoint, &err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, &err);
    if (status == GAC_OK)
        status = gac_inspect(model, contract, NULL, &inspection, &err);
    if (status == GAC_OK)
        print(model, contract, inspection);
    else
        fprintf(stderr, "inspect: %s\n", err.text);
    /* In the opposite order: an inspection borrows from the model and the contract. */
    gac_inspection_free(inspection);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    gac_contract_free(contract);
    return (int)status;
}

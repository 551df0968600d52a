#include "inspect.h"

typedef struct inspect_options {
    const char *gpu, *contract, *dtype, *workload;
    int64_t n_gpus, quant_group;
    int fail_on_misaligned;
    bool places;
} inspect_options;

static const inspect_options initial = { .workload = GAC_DEFAULT_WORKLOAD, .n_gpus = 1 };

static const opt_choice failures[] = { { "misaligned", 1, false }, { 0 } };

#define AT(member) .at = offsetof(inspect_options, member)
static const opt options[] = {
    { "gpu", 0, "NAME", "which GPU (default " CLI_DEFAULT_GPU "; gac contract list)", OPT_TEXT,
      AT(gpu) },
    { "contract", 0, "FILE", "a contract of your own instead", OPT_TEXT, AT(contract) },
    { "dtype", 0, "D", "dtype the model will run in (default: as stored)", OPT_TEXT, AT(dtype) },
    { "workload", 0, "W",
      "what the model will do: prefill:BxS[*weight],decode:B@CONTEXT[*weight] "
      "(default " GAC_DEFAULT_WORKLOAD ")",
      OPT_TEXT, AT(workload) },
    { "tp", 0, "N", "split over N GPUs: what each sees must be aligned too", OPT_INT, AT(n_gpus),
      .least = 1, .most = 4096 },
    { "quant-group", 0, "G", "quantisation groups of G along the input axis must fit", OPT_INT,
      AT(quant_group), .least = 1, .most = 1 << 20 },
    { "places", 0, NULL, "with --json, also where each dimension lives, axis by axis", OPT_FLAG,
      AT(places) },
    { "fail-on", 0, "misaligned", "exit with 5 if any size is misaligned", OPT_CHOICE,
      AT(fail_on_misaligned), .choices = failures },
    { 0 }
};

static gac_status gather(cli *c, const inspect_options *o, const char *path, inspection *x)
{
    gac_checkpoint_options opening = { .progress = c->progress, .log = &c->log };
    gac_workload workload;
    gac_inspect_options how = { &workload, GAC_DTYPE_COUNT, o->n_gpus, o->quant_group };
    gac_dtype served;
    x->workload_text = o->workload;
    gac_status status = gac_workload_parse(o->workload, &workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, o->gpu, o->contract, &x->contract);
    if (status == GAC_OK)
        status = gac_checkpoint_open(path, &opening, &x->checkpoint, &c->error);
    if (status == GAC_OK)
        status = gac_model_create(x->checkpoint, &x->model, &c->error);
    if (status == GAC_OK)
        status = cli_dtype(c, o->dtype, x->model, x->contract, &how.dtype, &served);
    if (status == GAC_OK)
        status = gac_inspect(x->model, x->contract, &how, &x->found, &c->error);
    if (status != GAC_OK)
        return status;
    const gac_inspection *f = x->found;
    x->n_dims = f->n_chosen ? f->n_chosen : f->n_dims;
    x->n_misaligned = f->n_chosen ? f->n_chosen_misaligned : f->n_misaligned;
    return GAC_OK;
}

static void dispose(inspection *x)
{
    gac_inspection_free(x->found);
    gac_model_free(x->model);
    gac_checkpoint_close(x->checkpoint);
    gac_contract_free(x->contract);
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    const inspect_options *o = filled;
    (void)n;
    if (o->places && !c->json)
        return gac_error_set(&c->error, GAC_USAGE, "--places goes with --json");
    inspection x = { 0 };
    gac_status status = gather(c, o, arguments[0], &x);
    if (status == GAC_OK && c->json)
        status = inspect_print_json(c, &x, o->places);
    else if (status == GAC_OK)
        status = inspect_print(&x, &c->error);
    if (status == GAC_OK && o->fail_on_misaligned && x.found->n_misaligned > 0)
        status =
            gac_error_set(&c->error, GAC_CHECK, "%d of %d sizes are misaligned on %s",
                          x.found->n_misaligned, x.found->n_dims, gac_contract_name(x.contract));
    dispose(&x);
    return status;
}

const command cmd_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint's sizes cost on a GPU, and why",
    .usage = "DIR|FILE.safetensors [options]",
    .about = "Says what a checkpoint is made of, which sizes the GPU serves badly and what that "
             "costs. Reads headers only, never the weights.",
    .example = "./llama-3-8b-svd --gpu h200 --workload prefill:1x4096,decode:16@1024",
    .options = options,
    .least = 1,
    .most = 1,
    .takes = "one directory or file",
    .size = sizeof initial,
    .initial = &initial,
    .run = run,
};

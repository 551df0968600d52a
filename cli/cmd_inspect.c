#include "inspect.h"

typedef struct inspect_options {
    cli_target target;
    const char *html;
    int fail_on_misaligned;
    bool places, force;
} inspect_options;

static const inspect_options initial = { .target = CLI_TARGET_INIT };

static const opt_choice failures[] = { { "misaligned", 1, false }, { 0 } };

#define AT(member) .at = offsetof(inspect_options, member)
static const opt options[] = {
    { "target", 0, NULL, "", OPT_GROUP, AT(target), .group = cli_target_options },
    { "places", 0, NULL, "with --json, also where each dimension lives, axis by axis", OPT_FLAG,
      AT(places) },
    { "html", 0, "FILE", "also write a page with figures (see gac report)", OPT_TEXT, AT(html) },
    { "force", 0, NULL, "replace the FILE of --html", OPT_FLAG, AT(force) },
    { "fail-on", 0, "misaligned", "exit with 5 if any size is misaligned", OPT_CHOICE,
      AT(fail_on_misaligned), .choices = failures },
    { 0 }
};

static gac_status gather(cli *c, const inspect_options *o, const char *path, inspection *x)
{
    gac_checkpoint_options opening = { .progress = c->progress, .log = &c->log };
    const cli_target *to = &o->target;
    gac_workload workload;
    gac_inspect_options how = { &workload, GAC_DTYPE_COUNT, to->n_gpus, to->quant_group };
    gac_dtype served;
    x->workload_text = to->workload;
    gac_status status = gac_workload_parse(to->workload, &workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, to->gpu, to->contract, &x->contract);
    if (status == GAC_OK)
        status = gac_checkpoint_open(path, &opening, &x->checkpoint, &c->error);
    if (status == GAC_OK)
        status = gac_model_create(x->checkpoint, &x->model, &c->error);
    if (status == GAC_OK)
        status = cli_dtype(c, to->dtype, x->model, x->contract, &how.dtype, &served);
    if (status == GAC_OK)
        status = gac_inspect(x->model, x->contract, &how, &x->found, &c->error);
    if (status != GAC_OK)
        return status;
    const gac_inspection *f = x->found;
    x->n_dims = f->n_chosen ? f->n_chosen : f->n_dims;
    x->n_misaligned = f->n_chosen ? f->n_chosen_misaligned : f->n_misaligned;
    return GAC_OK;
}

/* Prints the result and writes the page. */
static gac_status deliver(cli *c, const inspect_options *o, const inspection *x)
{
    gac_status status = GAC_OK;
    json_t *result = c->json || o->html ? inspect_to_json(c, x, o->places) : NULL;
    if (o->html)
        status = cli_check_target(c, o->html, o->force);
    if (status == GAC_OK)
        status = c->json ? cli_print_result(c, result) : inspect_print(x, &c->error);
    if (status == GAC_OK && o->html)
        status = cli_leave_page(c, result, gac_checkpoint_path(x->checkpoint), o->html, o->force);
    json_decref(result);
    return status;
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
    if (o->force && !o->html)
        return gac_error_set(&c->error, GAC_USAGE, "--force goes with --html");
    gac_status status = gather(c, o, arguments[0], &x);
    if (status == GAC_OK)
        status = deliver(c, o, &x);
    if (status == GAC_OK && o->fail_on_misaligned && x.found->verdict == GAC_VERDICT_NOT_JUDGED) {
        char understood[32];
        status = gac_error_set(&c->error, GAC_CHECK,
                               "not judged: only %s of the parameters were understood",
                               cli_understood(understood, x.found->understood_pct));
    } else if (status == GAC_OK && o->fail_on_misaligned && x.found->n_misaligned > 0)
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
    COMMAND_RUNS(1, 1, "one directory or file"),
};

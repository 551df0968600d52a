#include "inspect.h"

#include <string.h>

static const char help[] =
    "usage: gac inspect DIR|FILE.safetensors [options]\n"
    "\n"
    "Says what a checkpoint is made of, which sizes the GPU serves badly and what that costs.\n"
    "Reads headers only, never the weights.\n"
    "\n"
    "  --gpu NAME           which GPU (default " CLI_DEFAULT_GPU "; gac contract list)\n"
    "  --contract FILE      a contract of your own instead\n"
    "  --dtype D            dtype the model will run in (default: as stored)\n"
    "  --workload W         prefill:BxS[*weight],decode:B@CONTEXT[*weight]\n"
    "                       (default " GAC_DEFAULT_WORKLOAD ")\n"
    "  --tp N               split over N GPUs: what each sees must be aligned too\n"
    "  --quant-group G      quantisation groups of G along the input axis must fit\n"
    "  --places             with --json, also where each dimension lives, axis by axis\n"
    "  --fail-on misaligned exit with 5 if any size is misaligned\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac inspect ./llama-3-8b-svd --gpu h200 --workload prefill:1x4096,decode:16@1024\n";

typedef struct inspect_options {
    const char *path, *gpu, *contract, *dtype, *workload;
    int64_t n_gpus, quant_group;
    bool fail_on_misaligned, places;
} inspect_options;

static gac_status take_option(cli *c, inspect_options *o, int letter)
{
    char q[80];
    switch (letter) {
    case 'g':
        o->gpu = optarg;
        break;
    case 'c':
        o->contract = optarg;
        break;
    case 'd':
        o->dtype = optarg;
        break;
    case 'w':
        o->workload = optarg;
        break;
    case 'P':
        o->places = true;
        break;
    case 't':
        return cli_number(c, "--tp", optarg, 1, &o->n_gpus);
    case 'Q':
        return cli_number(c, "--quant-group", optarg, 1, &o->quant_group);
    default:
        if (strcmp(optarg, "misaligned") != 0)
            return gac_error_set(&c->error, GAC_USAGE,
                                 "--fail-on: \"%s\"; the only value is misaligned",
                                 gac_quote(q, sizeof q, optarg));
        o->fail_on_misaligned = true;
    }
    return GAC_OK;
}

static gac_status parse(cli *c, int argc, char **argv, inspect_options *o, bool *done)
{
    static const struct option options[] = { { "gpu", required_argument, NULL, 'g' },
                                             { "contract", required_argument, NULL, 'c' },
                                             { "dtype", required_argument, NULL, 'd' },
                                             { "workload", required_argument, NULL, 'w' },
                                             { "tp", required_argument, NULL, 't' },
                                             { "quant-group", required_argument, NULL, 'Q' },
                                             { "places", no_argument, NULL, 'P' },
                                             { "fail-on", required_argument, NULL, 'f' },
                                             CLI_COMMON_OPTIONS };
    int letter;
    while ((letter = cli_next_option(c, &cmd_inspect, argc, argv, options, done)) != -1) {
        gac_status status = letter == '?' ? c->error.status : take_option(c, o, letter);
        if (status != GAC_OK || *done)
            return status;
    }
    if (argc - optind != 1)
        return gac_error_set(&c->error, GAC_USAGE,
                             "inspect takes one directory or file; see gac inspect --help");
    if (o->n_gpus > 4096 || o->quant_group > 1 << 20)
        return gac_error_set(&c->error, GAC_USAGE,
                             "--tp is at most 4096, --quant-group at most 1048576");
    if (o->places && !c->json)
        return gac_error_set(&c->error, GAC_USAGE, "--places goes with --json");
    o->path = argv[optind];
    return GAC_OK;
}

static gac_status gather(cli *c, const inspect_options *o, inspection *x)
{
    gac_checkpoint_options options = { .progress = c->progress, .log = &c->log };
    gac_workload workload;
    gac_inspect_options how = { &workload, GAC_DTYPE_COUNT, o->n_gpus, o->quant_group };
    gac_dtype served;
    x->workload_text = o->workload;
    gac_status status = gac_workload_parse(o->workload, &workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, o->gpu, o->contract, &x->contract);
    if (status == GAC_OK)
        status = gac_checkpoint_open(o->path, &options, &x->checkpoint, &c->error);
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

static gac_status run(cli *c, int argc, char **argv)
{
    bool done = false;
    inspect_options o = { .workload = GAC_DEFAULT_WORKLOAD, .n_gpus = 1 };
    gac_status status = parse(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    inspection x = { 0 };
    status = gather(c, &o, &x);
    if (status == GAC_OK && c->json)
        status = inspect_print_json(c, &x, o.places);
    else if (status == GAC_OK)
        inspect_print(&x);
    if (status == GAC_OK && o.fail_on_misaligned && x.found->n_misaligned > 0)
        status =
            gac_error_set(&c->error, GAC_CHECK, "%d of %d sizes are misaligned on %s",
                          x.found->n_misaligned, x.found->n_dims, gac_contract_name(x.contract));
    dispose(&x);
    return status;
}

const command cmd_inspect = { "inspect", "what a checkpoint's sizes cost on a GPU, and why", help,
                              run };

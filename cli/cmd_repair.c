#include "plan_args.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char help[] =
    "usage: gac repair DIR -o OUT [options]\n"
    "       gac repair DIR -o OUT --undo\n"
    "\n"
    "Writes the checkpoint with larger sizes, zeros at every place of a dimension: the same\n"
    "function, sizes that fit. --undo gives the original back from a repaired directory alone.\n"
    "\n"
    "  -o OUT               the new directory\n"
    "  --plan FILE          sizes by a plan of gac plan, instead of a strategy\n" PLAN_ARGS_HELP
    "  --widths W           how config.json states MLP widths that differ between layers:\n"
    "                       uniform, per_layer_config or block_configs (default: as the input\n"
    "                       does, per_layer_config where it does not)\n"
    "  --max-shard-size N   bytes per file, as 500MB or 5GB; default: the files of the input\n"
    "  --undo               give the original back\n"
    "  --dry-run            say what would change, write nothing\n"
    "  --force              replace an existing OUT\n"
    "  --no-sync            do not wait until OUT is on disk: faster, and lost in a power cut\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac repair ./llama-svd -o ./llama-svd-fit --strategy minimal\n";

typedef struct repair_command {
    plan_args args;
    const char *path, *out, *plan_file;
    bool undo, dry_run;
    gac_repair_options options;
} repair_command;

static gac_status take_widths(cli *c, gac_widths *out)
{
    static const char *const names[] = { "uniform", "per_layer_config", "block_configs" };
    char q[80];
    for (int i = 0; i < 3; i++)
        if (strcmp(optarg, names[i]) == 0) {
            *out = (gac_widths)(GAC_WIDTHS_UNIFORM + i);
            return GAC_OK;
        }
    return gac_error_set(&c->error, GAC_USAGE,
                         "--widths: \"%s\" is not one of uniform, per_layer_config, block_configs",
                         gac_quote(q, sizeof q, optarg));
}

static gac_status take_option(cli *c, repair_command *o, int letter)
{
    switch (letter) {
    case 'o':
        o->out = optarg;
        return GAC_OK;
    case 'p':
        o->plan_file = optarg;
        return GAC_OK;
    case 'u':
        o->undo = true;
        return GAC_OK;
    case 'n':
        o->dry_run = true;
        return GAC_OK;
    case 'F':
        o->options.replace = true;
        return GAC_OK;
    case 'N':
        o->options.no_sync = true;
        return GAC_OK;
    case 'M':
        return cli_size(c, "--max-shard-size", optarg, &o->options.max_shard_bytes);
    case 'W':
        return take_widths(c, &o->options.widths);
    default:
        return plan_args_take(c, &o->args, letter);
    }
}

static gac_status parse(cli *c, int argc, char **argv, repair_command *o, bool *done)
{
    static const struct option options[] = { PLAN_ARGS_OPTIONS,
                                             { "output", required_argument, NULL, 'o' },
                                             { "plan", required_argument, NULL, 'p' },
                                             { "undo", no_argument, NULL, 'u' },
                                             { "dry-run", no_argument, NULL, 'n' },
                                             { "force", no_argument, NULL, 'F' },
                                             { "no-sync", no_argument, NULL, 'N' },
                                             { "max-shard-size", required_argument, NULL, 'M' },
                                             { "widths", required_argument, NULL, 'W' },
                                             CLI_COMMON_OPTIONS };
    int letter;
    while ((letter = cli_next_option(c, &cmd_repair, argc, argv, options, done)) != -1) {
        gac_status status = letter == '?' ? c->error.status : take_option(c, o, letter);
        if (status != GAC_OK || *done)
            return status;
    }
    if (argc - optind != 1 || (!o->out && !o->dry_run))
        return gac_error_set(&c->error, GAC_USAGE,
                             "repair takes one directory and -o OUT; see gac repair --help");
    if (o->plan_file && (o->args.given || o->undo))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--plan has the sizes: it excludes --undo and options for choosing");
    if (o->undo && (o->dry_run || o->args.given))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--undo excludes --dry-run and options for choosing");
    o->path = argv[optind];
    return GAC_OK;
}

/* What a plan file asks for that cannot be done is a fault of the file. */
static gac_status check_plan(cli *c, const repair_command *o, const gac_model *model,
                             gac_plan *plan)
{
    char q[200];
    gac_error why = GAC_ERROR_INIT;
    gac_repair_options rescaled = o->options;
    if (gac_repair_check(model, plan->sizes, &o->options, &why) == GAC_OK)
        return GAC_OK;
    rescaled.allow_rescaled = true;
    bool allowed = gac_repair_check(model, plan->sizes, &rescaled, NULL) == GAC_OK;
    gac_plan_dispose(plan);
    return gac_error_set(&c->error, GAC_BAD_INPUT, "%s: %s%s", gac_quote(q, sizeof q, o->plan_file),
                         why.text, allowed ? " (--allow rescaled)" : "");
}

/* The sizes to apply: of a plan file, or planned now. */
static gac_status choose(cli *c, repair_command *o, const gac_model *model, gac_plan *plan)
{
    gac_file *file = NULL;
    json_t *json = NULL;
    gac_status status;
    if (o->plan_file) {
        status = gac_file_open(o->plan_file, &file, &c->error);
        if (status == GAC_OK)
            status = gac_json_load(file, 64u << 20, &json, &c->error);
        if (status == GAC_OK)
            status = gac_plan_from_json(json, model, o->plan_file, plan, &c->error);
        if (status == GAC_OK)
            status = check_plan(c, o, model, plan);
        json_decref(json);
        gac_file_close(file);
    } else {
        status = plan_args_finish(c, &o->args, model);
        if (status == GAC_OK)
            status = gac_plan_create(model, &o->args.options, plan, &c->error);
    }
    return status;
}

static gac_status report(cli *c, const repair_command *o, const gac_model *model,
                         const int64_t *sizes, const gac_repair_result *r)
{
    char before[32], after[32];
    double overhead = r->bytes_before ? 100.0 * ((double)r->bytes_after - (double)r->bytes_before) /
                                            (double)r->bytes_before
                                      : 0;
    if (c->json) {
        json_t *result = gac_json_result("gac.repair/1", c->argc, c->argv);
        json_t *body =
            json_pack("{s:i, s:i, s:I, s:I, s:f, s:b, s:b}", "n_dims_changed", r->n_dims_changed,
                      "n_tensors_changed", r->n_tensors_changed, "bytes_before",
                      (json_int_t)r->bytes_before, "bytes_after", (json_int_t)r->bytes_after,
                      "overhead_pct", overhead, "undo", o->undo, "dry_run", o->dry_run);
        if (o->undo)
            json_object_set_new(body, "proved", json_boolean(r->proved));
        json_object_update(result, body);
        json_decref(body);
        json_object_set_new(result, "dims", sizes ? cli_changes_json(model, sizes) : json_array());
        gac_status status = gac_json_print(stdout, result, &c->error);
        json_decref(result);
        return status;
    }
    if (sizes && r->n_dims_changed)
        cli_print_changes(model, sizes);
    printf("%s %d dimensions in %d tensors: %s %s %s, %+.3f %%\n",
           o->dry_run ? "would change"
           : o->undo  ? "restored"
                      : "changed",
           r->n_dims_changed, r->n_tensors_changed, cli_bytes(before, r->bytes_before), "become",
           cli_bytes(after, r->bytes_after), overhead);
    if (!o->dry_run)
        printf("written to %s\n", o->out);
    return GAC_OK;
}

static gac_status dry_run(cli *c, const repair_command *o, const gac_model *model,
                          const gac_plan *plan)
{
    const gac_checkpoint *checkpoint = gac_model_checkpoint(model);
    gac_repair_result r = { .bytes_before = gac_checkpoint_size_bytes(checkpoint) };
    gac_status status = gac_repair_preview(model, plan->sizes, &o->options, &r, &c->error);
    return status == GAC_OK ? report(c, o, model, plan->sizes, &r) : status;
}

static gac_status act(cli *c, repair_command *o, gac_checkpoint *checkpoint, const gac_model *model)
{
    gac_repair_result result;
    gac_plan plan;
    o->options.allow_rescaled = o->args.options.allow_rescaled;
    o->options.progress = c->progress;
    o->options.cancel = cli_catch_signals();
    if (o->undo) {
        gac_status undone = gac_repair_undo(checkpoint, o->out, &o->options, &result, &c->error);
        if (undone == GAC_OK && !result.proved)
            gac_log_write(&c->log, 0,
                          "the record is of version 0.1 and has no checksums: the result could "
                          "not be compared with the original");
        return undone == GAC_OK ? report(c, o, model, NULL, &result) : undone;
    }
    gac_status status = choose(c, o, model, &plan);
    if (status != GAC_OK)
        return status;
    if (o->dry_run) {
        status = dry_run(c, o, model, &plan);
    } else {
        status = gac_repair_apply(checkpoint, model, plan.sizes, o->out, &o->options, &result,
                                  &c->error);
        if (status == GAC_OK)
            status = report(c, o, model, plan.sizes, &result);
    }
    gac_plan_dispose(&plan);
    return status;
}

static gac_status run(cli *c, int argc, char **argv)
{
    bool done = false;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    repair_command o = { .args = PLAN_ARGS_INIT, .options = GAC_REPAIR_OPTIONS_INIT };
    gac_status status = parse(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    /* Undoing goes by the record, whatever the shapes look like by now. */
    gac_checkpoint_options opening = { .progress = c->progress, .log = &c->log };
    status = gac_checkpoint_open(o.path, &opening, &checkpoint, &c->error);
    if (status == GAC_OK && !o.undo)
        status = gac_model_create(checkpoint, &model, &c->error);
    if (status == GAC_OK)
        status = act(c, &o, checkpoint, model);
    plan_args_dispose(&o.args);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

const command cmd_repair = { "repair", "the same model with sizes that fit", help, run };

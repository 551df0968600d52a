#include "loads_in.h"
#include "plan_args.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct repair_command {
    plan_args args;
    const char *out, *plan_file;
    bool undo, dry_run, copy;
    gac_repair_options options;
} repair_command;

static const repair_command initial = { .args = PLAN_ARGS_INIT,
                                        .options = GAC_REPAIR_OPTIONS_INIT };

static const opt_choice widths[] = { { "uniform", GAC_WIDTHS_UNIFORM, false },
                                     { "per_layer_config", GAC_WIDTHS_UNIFORM + 1, false },
                                     { "block_configs", GAC_WIDTHS_UNIFORM + 2, false },
                                     { 0 } };

#define AT(member) .at = offsetof(repair_command, member)
static const opt options[] = {
    { "output", 'o', "OUT", "the new directory", OPT_TEXT, AT(out) },
    { "plan", 0, "FILE", "sizes by a plan of gac plan, instead of a strategy", OPT_TEXT,
      AT(plan_file) },
    { "sizes", 0, NULL, "", OPT_GROUP, AT(args), .group = plan_args_options },
    { "allow", 0, NULL, "", OPT_GROUP, AT(args), .group = plan_args_allow },
    { "widths", 0, "W",
      "how config.json states MLP widths that differ between layers: uniform, per_layer_config or "
      "block_configs (default: so that other runtimes load the model, if they can)",
      OPT_CHOICE, AT(options.widths), .choices = widths },
    { "max-shard-size", 0, "N", "bytes per file, as 500MB or 5GB (default: the files of the input)",
      OPT_BYTES, AT(options.max_shard_bytes) },
    { "undo", 0, NULL, "give the original back", OPT_FLAG, AT(undo) },
    { "dry-run", 0, NULL, "say what would change, write nothing", OPT_FLAG, AT(dry_run) },
    { "copy", 0, NULL, "copy the model even if there is nothing to change", OPT_FLAG, AT(copy) },
    { "force", 0, NULL, "replace an existing OUT", OPT_FLAG, AT(options.replace) },
    { "no-sync", 0, NULL, "do not wait until OUT is on disk: faster, and lost in a power cut",
      OPT_FLAG, AT(options.no_sync) },
    { 0 }
};

/* Refuses options that exclude each other. */
static gac_status check(cli *c, const repair_command *o)
{
    const char *why = NULL;
    bool choosing = options_given_of(&c->parsed, plan_args_options);
    if (!o->out && !o->dry_run)
        why = "repair needs -o OUT; see gac repair --help";
    else if (o->plan_file && (choosing || o->undo))
        why = "--plan has the sizes: it excludes --undo and options for choosing";
    else if (o->undo && (o->dry_run || o->copy || choosing))
        why = "--undo excludes --dry-run, --copy and options for choosing";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

/* Checks the sizes of a plan file. Errors name the file. */
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

/* Finds the sizes to apply: from a plan file, or by planning now. */
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

/* Prints the keys of the config that stated other sizes than the tensors had. */
static void print_corrections(const gac_model *model, bool dry_run)
{
    enum { MAX_KEYS = 16 };
    const char *keys[MAX_KEYS], *done = dry_run ? "would be corrected" : "corrected";
    int n = 0;
    for (int32_t i = 0; i < gac_model_n_dims(model) && n < MAX_KEYS; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        int k = 0;
        if (d->declared < 0 || d->declared == d->size || d->role == GAC_ROLE_RANK || !d->config_key)
            continue;
        while (k < n && strcmp(keys[k], d->config_key) != 0)
            k++;
        if (k < n)
            continue;
        keys[n++] = d->config_key;
        printf("config.json states %s %lld, but %s has %lld: %s\n", d->config_key,
               (long long)d->declared, d->name, (long long)d->size,
               strcmp(d->config_key, "head_dim") == 0 ? "not corrected, as scores depend on it"
                                                      : done);
    }
    if (n == 0)
        printf("config.json states other numbers of heads than the layers have: %s\n", done);
}

/* Reports the changes. written is the path of the result, and loads_in says where it loads; or
 * NULL. */
static gac_status report(cli *c, const repair_command *o, const gac_model *model,
                         const int64_t *sizes, const gac_repair_result *r, const char *written,
                         json_t *loads_in)
{
    char before[32], after[32], understood[32];
    double overhead = r->bytes_before ? 100.0 * ((double)r->bytes_after - (double)r->bytes_before) /
                                            (double)r->bytes_before
                                      : 0;
    if (c->json) {
        json_t *result = gac_json_result("gac.repair/1", c->argc, c->argv);
        json_t *body = json_pack("{s:i, s:i, s:I, s:I, s:f, s:b, s:b, s:b}", "n_dims_changed",
                                 r->n_dims_changed, "n_tensors_changed", r->n_tensors_changed,
                                 "bytes_before", (json_int_t)r->bytes_before, "bytes_after",
                                 (json_int_t)r->bytes_after, "overhead_pct", overhead, "undo",
                                 o->undo, "dry_run", o->dry_run, "written", written != NULL);
        if (model)
            json_object_set_new(body, "understood_pct", json_real(gac_model_understood_pct(model)));
        json_object_set_new(body, "config_corrected", json_boolean(r->corrects_config));
        if (o->undo)
            json_object_set_new(body, "proved", json_boolean(r->proved));
        json_object_update(result, body);
        json_decref(body);
        json_object_set_new(result, "dims", sizes ? cli_changes_json(model, sizes) : json_array());
        if (loads_in)
            json_object_set(result, "loads_in", loads_in);
        gac_status status = cli_print_result(c, result);
        json_decref(result);
        return status;
    }
    gac_status listed = GAC_OK;
    if (sizes && r->n_dims_changed)
        listed = cli_print_changes(model, sizes, &c->error);
    if (r->corrects_config)
        print_corrections(model, o->dry_run);
    if (sizes && r->n_dims_changed == 0 && r->corrects_config)
        printf("no size changes\n");
    else if (sizes && r->n_dims_changed == 0)
        printf("nothing to change%s\n",
               written      ? ""
               : o->copy    ? ""
               : o->dry_run ? ": nothing would be written"
                            : ": nothing is written; --copy copies the model as it is");
    else
        printf("%s %d dimensions in %d tensors: %s become %s, %+.3f %%\n",
               o->dry_run ? "would change"
               : o->undo  ? "restored"
                          : "changed",
               r->n_dims_changed, r->n_tensors_changed, cli_bytes(before, r->bytes_before),
               cli_bytes(after, r->bytes_after), overhead);
    if (model)
        printf("understood %s of the parameters outside the vocabulary\n",
               cli_understood(understood, gac_model_understood_pct(model)));
    if (written)
        printf("written to %s\n", written);
    if (written && model && gac_checkpoint_is_torch(gac_model_checkpoint(model)))
        printf("as safetensors; --undo gives the torch files' tensors back, as safetensors too\n");
    if (loads_in)
        loads_in_print("loads in ", loads_in);
    return listed;
}

/* Reports finished work. */
static gac_status report_written(cli *c, const repair_command *o, const gac_model *model,
                                 const int64_t *sizes, const gac_repair_result *r)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *made = NULL;
    json_t *loads_in = NULL;
    gac_status status = GAC_OK;
    if (!o->undo)
        status = cli_open_model(c, o->out, &checkpoint, &made);
    if (status == GAC_OK && made)
        status = loads_in_list(made, &loads_in, &c->error);
    if (status == GAC_OK)
        status = report(c, o, model, sizes, r, o->out, loads_in);
    if (status == GAC_OK)
        status = gac_memory_check(&c->error);
    json_decref(loads_in);
    gac_model_free(made);
    gac_checkpoint_close(checkpoint);
    return status == GAC_OK ? GAC_OK : cli_report_failed(c, o->out, status);
}

/* Reports what would be changed. */
static gac_status preview(cli *c, const repair_command *o, const gac_model *model,
                          const gac_plan *plan)
{
    const gac_checkpoint *checkpoint = gac_model_checkpoint(model);
    gac_repair_result r = { .bytes_before = gac_checkpoint_size_bytes(checkpoint) };
    gac_status status = gac_repair_preview(model, plan->sizes, &o->options, &r, &c->error);
    return status == GAC_OK ? report(c, o, model, plan->sizes, &r, NULL, NULL) : status;
}

/* Returns whether OUT would equal the input although nobody asked for a copy. */
static bool is_needless(cli *c, const repair_command *o, const gac_model *model,
                        const gac_plan *plan)
{
    gac_repair_result would;
    if (o->copy || cli_given(c, "max-shard-size") || cli_given(c, "widths"))
        return false;
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        if (plan->sizes[i] != gac_model_dim(model, i)->size)
            return false;
    return !gac_model_config_is_stale(model) ||
           (gac_repair_preview(model, plan->sizes, &o->options, &would, NULL) == GAC_OK &&
            !would.corrects_config);
}

static gac_status act(cli *c, repair_command *o, gac_checkpoint *checkpoint, const gac_model *model)
{
    gac_repair_result result;
    gac_plan plan;
    o->options.allow_rescaled = o->args.allow_rescaled;
    o->options.progress = c->progress;
    o->options.cancel = cli_catch_signals();
    if (o->undo) {
        gac_status undone = gac_repair_undo(checkpoint, o->out, &o->options, &result, &c->error);
        if (undone == GAC_OK && !result.proved)
            gac_log_write(&c->log, 0,
                          "the record is of version 0.1 and has no checksums: the result could "
                          "not be compared with the original");
        return undone == GAC_OK ? report_written(c, o, model, NULL, &result) : undone;
    }
    gac_status status = choose(c, o, model, &plan);
    if (status != GAC_OK)
        return status;
    if (o->dry_run || is_needless(c, o, model, &plan)) {
        status = preview(c, o, model, &plan);
    } else {
        status = gac_repair_apply(checkpoint, model, plan.sizes, o->out, &o->options, &result,
                                  &c->error);
        if (status == GAC_OK)
            status = report_written(c, o, model, plan.sizes, &result);
    }
    gac_plan_dispose(&plan);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    repair_command *o = filled;
    (void)n;
    gac_status status = check(c, o);
    /* --undo needs no model: it uses the record. */
    gac_checkpoint_options opening = { .progress = c->progress, .log = &c->log };
    if (status == GAC_OK)
        status = gac_checkpoint_open(arguments[0], &opening, &checkpoint, &c->error);
    if (status == GAC_OK && !o->undo)
        status = gac_model_create(checkpoint, &model, &c->error);
    if (status == GAC_OK)
        status = act(c, o, checkpoint, model);
    plan_args_dispose(&o->args);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

const command cmd_repair = {
    .name = "repair",
    .summary = "the same model with sizes that fit",
    .usage = "DIR -o OUT [options]\nDIR -o OUT --undo",
    .about =
        "Writes the checkpoint with larger sizes, zeros at every place of a dimension: the same "
        "function, sizes that fit. --undo gives the original back from a repaired directory alone.",
    .example = "./llama-svd -o ./llama-svd-fit --strategy minimal",
    COMMAND_RUNS(1, 1, "one directory"),
};

#include "engine_args.h"
#include "loads_in.h"
#include "plan_args.h"

#include <gac/compress.h>

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct align_arg {
    gac_align align;
    int64_t multiple;
} align_arg;

typedef struct layer_range {
    int32_t first, n;
} layer_range;

typedef struct compress_command {
    const char *out, *text, *gpu, *contract_file, *workload_text;
    align_arg align;
    layer_range layers;
    int64_t n_threads, seed;
    opt_list exclude;
    gac_compress_options options;
    gac_workload workload;
} compress_command;

static const compress_command initial = { .workload_text = GAC_DEFAULT_WORKLOAD,
                                          .options = GAC_COMPRESS_OPTIONS_INIT };

static const opt_choice method_choices[] = {
    { "gac", GAC_COMPRESS_GAC, false },         { "energy", GAC_COMPRESS_ENERGY, false },
    { "svd", GAC_COMPRESS_SVD, false },         { "asvd", GAC_COMPRESS_ASVD, false },
    { "svd-llm", GAC_COMPRESS_SVD_LLM, false }, { 0 }
};

/* gac, none or round:N */
static gac_status take_align(void *member, const char *text, gac_error *err)
{
    align_arg *out = member;
    char q[80], *end;
    *out = (align_arg){ GAC_ALIGN_CONTRACT, 0 };
    if (strcmp(text, "gac") == 0)
        return GAC_OK;
    if (strcmp(text, "none") == 0) {
        out->align = GAC_ALIGN_NONE;
        return GAC_OK;
    }
    out->align = GAC_ALIGN_ROUND;
    out->multiple = strncmp(text, "round:", 6) == 0 ? strtoll(text + 6, &end, 10) : 0;
    if (out->multiple < 1 || out->multiple > 4096 || *end)
        return gac_error_set(err, GAC_USAGE, "\"%s\" is none of gac, none and round:N",
                             gac_quote(q, sizeof q, text));
    return GAC_OK;
}

/* dense,rank,width,heads */
static gac_status take_choices(void *member, const char *text, gac_error *err)
{
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = { { "dense", 0 },
                  { "rank", GAC_CHOOSE_RANK },
                  { "width", GAC_CHOOSE_WIDTH },
                  { "heads", GAC_CHOOSE_HEADS } };
    unsigned *out = member;
    char q[80];
    *out = 0;
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ","), i = 0;
        while (i < 4 && (strlen(names[i].name) != n || strncmp(names[i].name, at, n) != 0))
            i++;
        if (i == 4)
            return gac_error_set(err, GAC_USAGE,
                                 "\"%s\" is not a list of dense, rank, width, heads",
                                 gac_quote(q, sizeof q, text));
        *out |= names[i].bit;
        at += n + (at[n] == ',');
    }
    if (*out == 0)
        return gac_error_set(err, GAC_USAGE, "nothing but dense leaves nothing to choose");
    return GAC_OK;
}

/* 3-20 */
static gac_status take_layers(void *member, const char *text, gac_error *err)
{
    layer_range *out = member;
    char q[80], *middle, *end;
    long long first = strtoll(text, &middle, 10);
    long long last = *middle == '-' ? strtoll(middle + 1, &end, 10) : -1;
    if (middle == text || first < 0 || last < first || last > 1 << 20 || *end)
        return gac_error_set(err, GAC_USAGE, "\"%s\" is not a range of layers, as 3-20",
                             gac_quote(q, sizeof q, text));
    *out = (layer_range){ (int32_t)first, (int32_t)(last - first + 1) };
    return GAC_OK;
}

#define AT(member) .at = offsetof(compress_command, member)
static const opt options[] = {
    { "output", 'o', "DIR", "the new directory", OPT_TEXT, AT(out) },
    { "text", 0, "FILE", "raw text that shows what the model is used for (calibration)", OPT_TEXT,
      AT(text) },
    { "ratio", 0, "R",
      "share to remove of the blocks' linear weights, as the literature counts: 0.2 keeps 80 %",
      OPT_REAL, AT(options.ratio), .min = 0, .above = true, .max = 0.99 },
    { "total-ratio", 0, "R", "share to remove of the whole model, embeddings included", OPT_REAL,
      AT(options.total_ratio), .min = 0, .above = true, .max = 0.99 },
    { "target-ms", 0, "T", "the least loss with the workload within T milliseconds, as predicted",
      OPT_REAL, AT(options.max_time_ms), .min = 0, .above = true },
    { "method", 0, "M",
      "gac (the default); or for comparison energy (effects on the output are not measured) and "
      "svd, asvd, svd-llm (the same share of every matrix)",
      OPT_CHOICE, AT(options.method), .choices = method_choices },
    { "align", 0, "A",
      "sizes to choose from: gac (those the GPU serves well; the default), none, round:N", OPT_CALL,
      AT(align), .take = take_align },
    { "choices", 0, "LIST", "what a module may become: dense,rank,width,heads (default: all)",
      OPT_CALL, AT(options.choices), .take = take_choices },
    { "layers", 0, "A-B", "only layers A to B may change, counted from 0", OPT_CALL, AT(layers),
      .take = take_layers },
    { "exclude", 0, "NAME", "modules that stay dense, as layers.0.*; may be repeated", OPT_LIST,
      AT(exclude) },
    { "calib-tokens", 0, "N", "tokens of the text to use (default 131072)", OPT_INT,
      AT(options.n_tokens), .least = 1 },
    { "seed", 0, "S", "draws parts of the text at random (default 0: its beginning)", OPT_INT,
      AT(seed) },
    { "gpu", 0, "NAME", "which GPU (default " CLI_DEFAULT_GPU "; gac contract list)", OPT_TEXT,
      AT(gpu) },
    { "contract", 0, "FILE", "a contract of your own instead", OPT_TEXT, AT(contract_file) },
    { "workload", 0, "W",
      "what the model will do, for the predicted time (default " GAC_DEFAULT_WORKLOAD ")", OPT_TEXT,
      AT(workload_text) },
    { "device", 0, "D", "where the model runs: cpu (the default), cuda or cuda:N", OPT_CALL,
      AT(options.device), .take = cli_take_device },
    { "threads", 0, "N", "CPUs to use (default: all)", OPT_INT, AT(n_threads), .least = 1,
      .most = INT_MAX },
    { "resume", 0, NULL, "keep measured layers in DIR.work if interrupted, and go on from there",
      OPT_FLAG, AT(options.resume) },
    { "work", 0, "FOLDER", "keep measured layers in FOLDER, for other ratios of the same model",
      OPT_TEXT, AT(options.work) },
    { "dry-run", 'n', NULL, "choose and report, and write nothing", OPT_FLAG, AT(options.dry_run) },
    { "force", 0, NULL, "replace an existing DIR", OPT_FLAG, AT(options.replace) },
    { "no-sync", 0, NULL, "do not wait until DIR is on disk: faster, and lost in a power cut",
      OPT_FLAG, AT(options.no_sync) },
    { 0 }
};

/* What the contract says of the model before and after. */
typedef struct judged {
    double dense_ms, compressed_ms, aligned_pct; /* NaN: not known */
    const char *gpu;
    json_t *loads_in;
} judged;

/* The predicted time of the workload, or NaN. */
static double predict(const compress_command *o, const gac_model *model)
{
    gac_target target = GAC_TARGET_INIT;
    double sum = 0;
    target.contract = o->options.contract;
    if (!gac_contract_dtype(target.contract, gac_model_dtype(model), &target.dtype) ||
        !gac_contract_has_times(target.contract, target.dtype))
        return NAN;
    for (int i = 0; i < o->workload.n_phases; i++)
        sum += o->workload.phases[i].weight *
               gac_plan_time_ms(model, &target, &o->workload.phases[i], NULL, NULL);
    return sum;
}

/* Judges the directory that was written. */
static gac_status judge(cli *c, const compress_command *o, const gac_model *dense, judged *out)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_target target = GAC_TARGET_INIT;
    *out = (judged){ predict(o, dense), NAN, NAN, gac_contract_gpu(o->options.contract), NULL };
    if (o->options.dry_run)
        return GAC_OK;
    gac_status status = cli_open_model(c, o->out, &checkpoint, &model);
    target.contract = o->options.contract;
    if (status == GAC_OK) {
        int32_t n = gac_model_n_dims(model), n_aligned = 0;
        gac_dim_advice *advice = calloc((size_t)n + 1, sizeof *advice);
        status = advice ? GAC_OK : gac_error_no_memory(&c->error);
        if (status == GAC_OK &&
            gac_contract_dtype(target.contract, gac_model_dtype(model), &target.dtype))
            status = gac_plan_advise(model, &target, &o->workload, advice, &c->error);
        for (int32_t i = 0; i < n && status == GAC_OK; i++)
            n_aligned += advice[i].aligned;
        free(advice);
        out->compressed_ms = predict(o, model);
        out->aligned_pct = n ? 100.0 * n_aligned / n : 100;
        if (status == GAC_OK)
            status = loads_in_list(model, &out->loads_in, &c->error);
    }
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

/* Adds what the contract says of the model that was written, and where it loads. */
static gac_status add_judgement(cli *c, const compress_command *o, const judged *j, json_t *result)
{
    json_object_set_new(result, "aligned_pct", cli_number_or_null(j->aligned_pct));
    json_object_set_new(result, "predicted",
                        json_pack("{s:s, s:o, s:o}", "workload", o->workload_text, "now_ms",
                                  cli_number_or_null(j->dense_ms), "compressed_ms",
                                  cli_number_or_null(j->compressed_ms)));
    if (!o->options.dry_run)
        json_object_set_new(result, "loads_in", json_incref(j->loads_in));
    return gac_json_print(stdout, result, &c->error);
}

static gac_status report_json(cli *c, const compress_command *o, const gac_compress_result *r,
                              const judged *j)
{
    json_t *result = gac_json_result("gac.compress/1", c->argc, c->argv);
    json_t *body = gac_compress_to_json(r, &o->options);
    json_object_update(result, body);
    json_decref(body);
    gac_status status = add_judgement(c, o, j, result);
    json_decref(result);
    return status;
}

static gac_status report(cli *c, const compress_command *o, const gac_compress_result *r,
                         const judged *j)
{
    int n[GAC_CHOICE_HEADS + 1] = { 0 };
    char before[32], after[32];
    if (c->json)
        return report_json(c, o, r, j);
    for (int32_t i = 0; i < r->n_modules; i++)
        n[r->modules[i].choice]++;
    printf("blocks     %s of %s parameters in linear weights: %.1f %% removed\n",
           cli_count(after, r->params_after), cli_count(before, r->params_before),
           100 * (1 - (double)r->params_after / (double)r->params_before));
    printf("model      %s of %s parameters in all: %.1f %% removed\n",
           cli_count(after, r->total_after), cli_count(before, r->total_before),
           100 * (1 - (double)r->total_after / (double)r->total_before));
    printf("choices    %d matrices dense, %d of lower rank; %d MLPs narrower; %d attention blocks "
           "with fewer heads\n",
           n[GAC_CHOICE_DENSE], n[GAC_CHOICE_RANK], n[GAC_CHOICE_WIDTH], n[GAC_CHOICE_HEADS]);
    if (o->options.method == GAC_COMPRESS_GAC)
        printf("loss       %.4g nats expected%s\n", r->objective,
               r->optimal ? ", the least for these sizes (proved)" : "");
    printf("text       %lld tokens in windows of %lld\n", (long long)r->n_tokens,
           (long long)r->window);
    if (isfinite(j->compressed_ms))
        printf("predicted  %.3f ms, %.3f ms before: %s on %s\n", j->compressed_ms, j->dense_ms,
               o->workload_text, j->gpu);
    if (o->options.dry_run)
        return GAC_OK;
    printf("written    %s, %.1f %% of its sizes aligned\n", o->out, j->aligned_pct);
    loads_in_print("loads in   ", j->loads_in);
    return GAC_OK;
}

static gac_status check(cli *c, const compress_command *o)
{
    const char *why = NULL;
    if (!o->out)
        why = "compress needs -o DIR; see gac compress --help";
    else if (!o->text)
        why = "compress needs --text FILE: it shows which weights matter";
    else if ((o->options.ratio > 0) + (o->options.total_ratio > 0) + (o->options.max_time_ms > 0) !=
             1)
        why = "compress needs one of --ratio, --total-ratio and --target-ms";
    else if (o->options.max_time_ms > 0 && o->options.method != GAC_COMPRESS_GAC)
        why = "--target-ms goes with --method gac";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    compress_command *o = filled;
    gac_compress_options *how = &o->options;
    engine_args model = ENGINE_ARGS_INIT;
    gac_contract *contract = NULL;
    gac_compress_result result = { 0 };
    int32_t *ids = NULL;
    judged found = { 0 };
    (void)n;
    gac_status status = check(c, o);
    if (status == GAC_OK)
        status = gac_workload_parse(o->workload_text, &o->workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, o->gpu, o->contract_file, &contract);
    if (status == GAC_OK)
        status = engine_args_open(c, &model, arguments[0]);
    if (status == GAC_OK)
        status = engine_args_open_tokenizer(c, &model);
    if (status == GAC_OK)
        status = cli_read_tokens(c, model.tokenizer, o->text, &ids, &how->n_ids);
    how->ids = ids;
    how->workload = &o->workload;
    how->contract = contract;
    how->align = o->align.align;
    how->multiple = o->align.multiple;
    how->seed = (uint64_t)o->seed;
    how->first_layer = o->layers.first;
    how->n_layers = o->layers.n;
    how->exclude = o->exclude.items;
    how->n_exclude = o->exclude.n;
    how->n_threads = (int)o->n_threads;
    how->progress = c->progress;
    how->log = &c->log;
    if (status == GAC_OK) {
        how->cancel = cli_catch_signals();
        status = gac_compress_run(model.checkpoint, model.model, o->out, how, &result, &c->error);
    }
    if (status == GAC_OK) {
        status = judge(c, o, model.model, &found);
        if (status == GAC_OK)
            status = report(c, o, &result, &found);
        if (status != GAC_OK && !how->dry_run)
            cli_report_failed(c, o->out, status);
    }
    json_decref(found.loads_in);
    gac_compress_dispose(&result);
    free(ids);
    gac_contract_free(contract);
    engine_args_dispose(&model);
    return status;
}

const command cmd_compress = {
    .name = "compress",
    .summary = "make a model smaller, every size aligned",
    .usage = "DIR -o OUT --ratio R --text FILE [options]",
    .about = "Makes a dense model smaller. Each matrix may stay, be replaced by two of a lower "
             "rank, or lose channels or heads together with its neighbours. What each cut loses is "
             "computed from a text, its effect on the model's output is measured, and the "
             "parameters are shared out so that the sum of losses is least. All sizes are ones "
             "that the GPU serves well.",
    .example = "./smollm2 -o ./smaller --ratio 0.2 --text wiki.valid.txt",
    COMMAND_RUNS(1, 1, "one directory"),
};

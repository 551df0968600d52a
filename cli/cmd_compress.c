#include "compress_table.h"
#include "loads_in.h"
#include "plan_args.h"

#include <gac/compress.h>

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COMPRESS_PAGE "report.html"

typedef struct align_arg {
    gac_align align;
    int64_t multiple;
} align_arg;

typedef struct layer_range {
    int32_t first, n;
} layer_range;

typedef struct compress_command {
    const char *out, *text, *test, *gpu, *contract_file, *workload_text;
    align_arg align;
    layer_range layers;
    int64_t n_threads, seed;
    opt_list exclude;
    gac_compress_options options;
    gac_workload workload;
} compress_command;

static const compress_command initial = { .workload_text = GAC_DEFAULT_WORKLOAD,
                                          .options = GAC_COMPRESS_OPTIONS_INIT };

static const opt_choice method_choices[] = { { "gac", GAC_COMPRESS_GAC, false },
                                             { "energy", GAC_COMPRESS_ENERGY, false },
                                             { "svd", GAC_COMPRESS_SVD, false },
                                             { "asvd", GAC_COMPRESS_ASVD, false },
                                             { "svd-llm", GAC_COMPRESS_SVD_LLM, false },
                                             { "palu", GAC_COMPRESS_PALU, false },
                                             { 0 } };

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
    { "test", 0, "FILE", "raw text: the perplexity of the original and of the result are measured",
      OPT_TEXT, AT(test) },
    { "ratio", 0, "R",
      "share to remove of the blocks' linear weights, as the literature counts: 0.2 keeps 80 %",
      OPT_REAL, AT(options.ratio), .min = 0, .above = true, .max = 0.99 },
    { "total-ratio", 0, "R", "share to remove of the whole model, embeddings included", OPT_REAL,
      AT(options.total_ratio), .min = 0, .above = true, .max = 0.99 },
    { "target-ms", 0, "T", "the least loss with the workload within T milliseconds, as predicted",
      OPT_REAL, AT(options.max_time_ms), .min = 0, .above = true },
    { "method", 0, "M",
      "gac (the default); or for comparison energy (effects on the output are not measured) and "
      "svd, svd-llm (the same share of every matrix), asvd (the smallest shares below one limit of "
      "loss) and palu (ranks of k and v only)",
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
    { "no-gradients", 0, NULL,
      "do not measure which outputs matter by gradients: faster, and the result is worse", OPT_FLAG,
      AT(options.no_gradients) },
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

/* Where the written model loads. The caller owns *out; NULL where nothing was written. */
static gac_status list_runtimes(cli *c, const compress_command *o, json_t **out)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    *out = NULL;
    if (o->options.dry_run)
        return GAC_OK;
    gac_status status = cli_open_model(c, o->out, &checkpoint, &model);
    if (status == GAC_OK)
        status = loads_in_list(model, out, &c->error);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

static json_t *compress_json(cli *c, const compress_command *o, const gac_compress_result *r,
                             const compress_measured *measured, json_t *loads_in)
{
    json_t *result = gac_json_result("gac.compress/1", c->argc, c->argv);
    json_t *body = gac_compress_to_json(r, &o->options);
    compress_table_add(json_object_get(body, "table"), measured);
    json_object_update(result, body);
    json_decref(body);
    if (!o->options.dry_run)
        json_object_set(result, "loads_in", loads_in);
    return result;
}

/* Writes the page into the model's folder. */
static gac_status leave_page(cli *c, const compress_command *o, const json_t *result)
{
    char *path;
    if (asprintf(&path, "%s/" COMPRESS_PAGE, o->out) < 0)
        return gac_error_no_memory(&c->error);
    gac_status status = cli_leave_page(c, result, o->out, path, true);
    free(path);
    return status;
}

/* Whether the sum of losses is one of measured effects. */
static bool expects_loss(gac_compress_method method)
{
    return method == GAC_COMPRESS_GAC || method == GAC_COMPRESS_PALU || method == GAC_COMPRESS_ASVD;
}

static void print_report(const compress_command *o, const gac_compress_result *r,
                         const compress_measured *measured, json_t *loads_in)
{
    int n[GAC_CHOICE_HEADS + 1] = { 0 };
    char before[32], after[32];
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
    if (expects_loss(o->options.method))
        printf("loss       %.4g nats expected%s\n", r->objective,
               r->optimal ? ", the least for these sizes (proved)" : "");
    printf("text       %lld tokens in windows of %lld\n", (long long)r->n_tokens,
           (long long)r->window);
    const gac_compress_row *written = &r->rows[GAC_COMPRESS_ROW_RESULT];
    if (o->options.align == GAC_ALIGN_CONTRACT && written->n_params && written->aligned_pct < 100)
        printf("aligned    %.1f %% of the sizes; the others are the original's, and gac repair can "
               "align them\n",
               written->aligned_pct);
    if (!o->options.dry_run) {
        printf("written    %s\n", o->out);
        printf("page       %s/" COMPRESS_PAGE "\n", o->out);
        loads_in_print("loads in   ", loads_in);
    }
    compress_table_print(r, &o->options, measured);
}

static gac_status report(cli *c, const compress_command *o, const gac_compress_result *r,
                         const compress_measured *measured, json_t *loads_in)
{
    gac_status status = GAC_OK;
    json_t *result = compress_json(c, o, r, measured, loads_in);
    if (c->json)
        status = cli_print_result(c, result);
    else
        print_report(o, r, measured, loads_in);
    if (status == GAC_OK && !o->options.dry_run)
        status = leave_page(c, o, result);
    json_decref(result);
    return status;
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
    else if (!(o->options.choices & GAC_CHOOSE_RANK) && o->options.method != GAC_COMPRESS_GAC &&
             o->options.method != GAC_COMPRESS_ENERGY)
        why = "--choices without rank goes with --method gac and energy only";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

/* Measures the original and the result, and reports. */
static gac_status measure_and_report(cli *c, const compress_command *o, engine_args *dense,
                                     const compress_test *test, const gac_compress_result *r)
{
    compress_measured measured[N_MEASURED];
    engine_args written = ENGINE_ARGS_INIT;
    gac_status status = GAC_OK;
    compress_table_clear(measured);
    if (!o->options.dry_run && (test->ids || strncmp(o->options.device, "cuda", 4) == 0)) {
        written.options.device = dense->options.device = o->options.device;
        written.n_threads = o->n_threads;
        status = compress_table_measure(c, dense, &o->workload, test, &measured[MEASURED_DENSE]);
        if (status == GAC_OK)
            status = engine_args_open(c, &written, o->out);
        if (status == GAC_OK)
            status =
                compress_table_measure(c, &written, &o->workload, test, &measured[MEASURED_RESULT]);
    }
    json_t *loads_in = NULL;
    if (status == GAC_OK)
        status = list_runtimes(c, o, &loads_in);
    if (status == GAC_OK)
        status = report(c, o, r, measured, loads_in);
    json_decref(loads_in);
    engine_args_dispose(&written);
    return status;
}

static gac_status read_test(cli *c, const compress_command *o, const engine_args *model,
                            compress_test *test)
{
    char q[256];
    gac_status status =
        o->test ? cli_read_tokens(c, model->tokenizer, o->test, &test->ids, &test->n_ids) : GAC_OK;
    if (status == GAC_OK && o->test && test->n_ids < 2)
        status = gac_error_set(&c->error, GAC_BAD_INPUT,
                               "%s: a text of %zu tokens; perplexity needs two",
                               gac_quote(q, sizeof q, o->test), test->n_ids);
    return status;
}

/* Only process 0 has a report to make. */
static gac_status compress_and_report(cli *c, compress_command *o, engine_args *model,
                                      const compress_test *test)
{
    gac_compress_result result = { 0 };
    gac_status status =
        gac_compress_run(model->checkpoint, model->model, o->out, &o->options, &result, &c->error);
    if (status == GAC_OK && gac_team_is_first(o->options.team)) {
        status = measure_and_report(c, o, model, test, &result);
        if (status != GAC_OK && !o->options.dry_run)
            cli_report_failed(c, o->out, status);
    }
    gac_compress_dispose(&result);
    return status;
}

static gac_status compress(cli *c, compress_command *o, const char *path)
{
    gac_compress_options *how = &o->options;
    engine_args model = ENGINE_ARGS_INIT;
    compress_test test = { 0 };
    gac_contract *contract = NULL;
    int32_t *ids = NULL;
    gac_status status = check(c, o);
    if (status == GAC_OK)
        status = gac_workload_parse(o->workload_text, &o->workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, o->gpu, o->contract_file, &contract);
    if (status == GAC_OK)
        status = engine_args_open(c, &model, path);
    if (status == GAC_OK)
        status = engine_args_open_tokenizer(c, &model);
    if (status == GAC_OK)
        status = cli_read_tokens(c, model.tokenizer, o->text, &ids, &how->n_ids);
    if (status == GAC_OK)
        status = read_test(c, o, &model, &test);
    how->ids = ids;
    how->text_name = o->text;
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
        status = compress_and_report(c, o, &model, &test);
    }
    free(ids);
    free(test.ids);
    gac_contract_free(contract);
    engine_args_dispose(&model);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    compress_command *o = filled;
    gac_team **team = &o->options.team;
    (void)n;
    gac_status status = gac_team_join(team, &c->error);
    const bool speaks = gac_team_is_first(*team);
    if (!speaks) {
        gac_progress_free(c->progress);
        c->progress = NULL;
        c->log.level = -1;
    }
    if (status == GAC_OK)
        status = compress(c, o, arguments[0]);
    status = gac_team_agree(*team, status, &c->error);
    gac_team_leave(*team);
    return speaks ? status : GAC_OK; /* process 0 says what failed, and fails for all */
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
    .example = "./smollm2 -o ./smaller --ratio 0.2 --text wiki.valid.txt\n"
               "./smollm2 -o ./smaller --ratio 0.2 --text wiki.valid.txt --test wiki.test.txt\n"
               "./llama-3-8b -o ./smaller --target-ms 12 --text text.txt --device cuda --resume\n"
               "./smollm2 -o ./svd --ratio 0.2 --text wiki.valid.txt --method svd-llm",
    COMMAND_RUNS(1, 1, "one directory"),
};

#include "eval.h"

#include <stdlib.h>

/* Reads "1x1024,4x1024", or "1@1024,16@1024" if between is '@'. */
static gac_status take_shapes(shape_list *list, char between, const char *text, gac_error *err)
{
    char q[80];
    const char *at = text;
    for (bool more = true; more; at++) {
        char *middle, *end;
        long long batch = strtoll(at, &middle, 10);
        long long length = *middle == between ? strtoll(middle + 1, &end, 10) : 0;
        if (middle == at || length < 1 || batch < 1 || batch > 1 << 20 || length > 1 << 30 ||
            (*end && *end != ','))
            return gac_error_set(err, GAC_USAGE, "\"%s\" is not a list of B%cN, as %s",
                                 gac_quote(q, sizeof q, text), between,
                                 between == 'x' ? "1x1024,4x1024" : "1@1024,16@1024");
        if (list->n == MAX_SHAPES)
            return gac_error_set(err, GAC_USAGE, "more than %d", MAX_SHAPES);
        list->shapes[list->n++] = (gac_pass_shape){ batch, length };
        more = *end == ',';
        at = end;
    }
    return GAC_OK;
}

static gac_status take_prefill(void *member, const char *text, gac_error *err)
{
    return take_shapes(member, 'x', text, err);
}

static gac_status take_decode(void *member, const char *text, gac_error *err)
{
    return take_shapes(member, '@', text, err);
}

static const eval_command initial = { .engine = ENGINE_ARGS_INIT };

static const opt_choice tasks[] = { { "piqa", 1, false }, { 0 } };

#define AT(member) .at = offsetof(eval_command, member)
static const opt options[] = {
    { "perplexity", 0, "FILE", "perplexity of a raw text: tokenised once, windows without overlap",
      OPT_TEXT, AT(text) },
    { "window", 0, "N", "tokens per window (default 2048, or the limit of the model)", OPT_INT,
      AT(window), .least = 2 },
    { "max-windows", 0, "N", "use only the first N windows", OPT_INT, AT(max_windows), .least = 1 },
    { "prefill", 0, "BxS,...", "time of B sequences of S tokens from an empty cache", OPT_CALL,
      AT(prefill), .take = take_prefill },
    { "decode", 0, "B@CTX,...", "time of one more token for B sequences of CTX tokens", OPT_CALL,
      AT(decode), .take = take_decode },
    { "tasks", 0, "piqa", "accuracy, computed as in lm-evaluation-harness", OPT_CHOICE, AT(piqa),
      .choices = tasks },
    { "task-data", 0, "PATH", "valid.jsonl with its labels, or their directory", OPT_TEXT,
      AT(task_data) },
    { "limit", 0, "N", "use only the first N questions", OPT_INT, AT(limit), .least = 1 },
    { "lm-eval", 0, "FILE", "also write the task's result in lm-evaluation-harness's format",
      OPT_TEXT, AT(lm_eval) },
    { "force", 0, NULL, "replace FILE", OPT_FLAG, AT(force) },
    { "engine", 0, NULL, "", OPT_GROUP, AT(engine), .group = engine_args_options },
    { 0 }
};

static gac_status check(cli *c, const eval_command *o)
{
    const char *why = NULL;
    if (!o->text && o->prefill.n == 0 && o->decode.n == 0 && !o->piqa)
        why = "eval needs something to measure: --perplexity, --prefill, --decode or --tasks";
    else if (!o->text && (o->window || o->max_windows))
        why = "--window and --max-windows go with --perplexity";
    else if ((o->piqa != 0) != (o->task_data != NULL))
        why = "--tasks and --task-data go together";
    else if (!o->piqa && (o->limit || o->lm_eval))
        why = "--limit and --lm-eval go with --tasks";
    else if (o->force && !o->lm_eval)
        why = "--force goes with --lm-eval";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

/* Sizes one engine that is large enough for each measurement in turn. */
static gac_status size_engine(cli *c, eval_command *o)
{
    gac_engine_work work = { .perplexity = o->text != NULL,
                             .window = o->window,
                             .tasks = o->piqa != 0,
                             .prefill = o->prefill.shapes,
                             .n_prefill = o->prefill.n,
                             .decode = o->decode.shapes,
                             .n_decode = o->decode.n };
    return gac_engine_size(o->engine.model, &work, &o->engine.options, &c->error);
}

static gac_status run_perplexity(cli *c, eval_command *o, const int32_t *ids, size_t n_ids)
{
    gac_perplexity_options by = { o->window, o->max_windows, c->progress };
    return gac_engine_perplexity(o->engine.engine, ids, n_ids, &by, &o->perplexity, &c->error);
}

static gac_status run_shapes(cli *c, eval_command *o)
{
    gac_status status = GAC_OK;
    gac_engine *engine = o->engine.engine;
    for (int i = 0; i < o->prefill.n && status == GAC_OK; i++) {
        gac_pass_shape s = o->prefill.shapes[i];
        status = gac_engine_time_prefill(engine, s.batch, s.length, NULL, c->progress,
                                         &o->prefill.timings[i], &c->error);
    }
    for (int i = 0; i < o->decode.n && status == GAC_OK; i++) {
        gac_pass_shape s = o->decode.shapes[i];
        status = gac_engine_time_decode(engine, s.batch, s.length, GAC_DECODE_CHUNK, NULL,
                                        c->progress, &o->decode.timings[i], &c->error);
    }
    return status;
}

static gac_status run_piqa(cli *c, eval_command *o)
{
    gac_piqa_options by = { o->limit, c->progress };
    return gac_engine_piqa(o->engine.engine, o->engine.tokenizer, o->task_data, &by, &o->piqa_score,
                           &c->error);
}

static gac_status write_lm_eval(cli *c, const eval_command *o)
{
    json_t *json = eval_lm_eval_json(o);
    gac_status status = cli_write_json(c, o->lm_eval, o->force, json, JSON_INDENT(2));
    json_decref(json);
    return status;
}

static gac_status report(cli *c, const eval_command *o)
{
    if (!c->json) {
        eval_print(o);
        return GAC_OK;
    }
    json_t *result = eval_json(c, o);
    gac_status status = result ? cli_print_result(c, result) : gac_error_no_memory(&c->error);
    json_decref(result);
    return status;
}

/* Runs all measurements. Errors in files, except those of tasks, are found
 * before the model is loaded. */
static gac_status evaluate(cli *c, eval_command *o, const char *path)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    gac_status status = engine_args_open(c, &o->engine, path);
    if (status == GAC_OK)
        status = size_engine(c, o);
    if (status == GAC_OK && (o->text || o->piqa))
        status = engine_args_open_tokenizer(c, &o->engine);
    if (status == GAC_OK && o->text)
        status = cli_read_tokens(c, o->engine.tokenizer, o->text, &ids, &n_ids);
    if (status == GAC_OK && o->text && n_ids < 2) {
        char q[256];
        status = gac_error_set(&c->error, GAC_BAD_INPUT,
                               "%s: a text of %zu tokens; perplexity needs two",
                               gac_quote(q, sizeof q, o->text), n_ids);
    }
    if (status == GAC_OK && o->lm_eval) /* refuse a bad target before the work */
        status = cli_check_target(c, o->lm_eval, o->force);
    if (status == GAC_OK)
        status = engine_args_start(c, &o->engine);
    if (status == GAC_OK && o->text)
        status = run_perplexity(c, o, ids, n_ids);
    if (status == GAC_OK)
        status = run_shapes(c, o);
    if (status == GAC_OK && o->piqa)
        status = run_piqa(c, o);
    if (status == GAC_OK) /* working memory now has its final size */
        gac_engine_describe(o->engine.engine, &o->info);
    if (status == GAC_OK && o->lm_eval)
        status = write_lm_eval(c, o);
    if (status == GAC_OK)
        status = report(c, o);
    free(ids);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    eval_command *o = filled;
    (void)n;
    gac_status status = check(c, o);
    if (status != GAC_OK)
        return status;
    o->prefill.timings = calloc((size_t)o->prefill.n + 1, sizeof *o->prefill.timings);
    o->decode.timings = calloc((size_t)o->decode.n + 1, sizeof *o->decode.timings);
    if (!o->prefill.timings || !o->decode.timings)
        status = gac_error_no_memory(&c->error);
    else
        status = evaluate(c, o, arguments[0]);
    engine_args_dispose(&o->engine);
    free(o->prefill.timings);
    free(o->decode.timings);
    return status;
}

const command cmd_eval = {
    .name = "eval",
    .summary = "perplexity, speed and accuracy of a model",
    .usage = "DIR [what to measure] [options]",
    .about = "Runs a model and measures its quality and speed: perplexity on a text, the time of "
             "prefill and decode, accuracy on a task, memory.",
    .example = "./llama-svd-fit --perplexity wiki.txt --prefill 1x1024,4x1024 --decode 1@1024",
    COMMAND_RUNS(1, 1, "one directory"),
};

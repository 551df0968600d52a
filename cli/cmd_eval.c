#include "eval.h"

#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: gac eval DIR [what to measure] [options]\n"
    "\n"
    "Runs a model and measures what it is worth: perplexity on a text, the time of prefill and\n"
    "decode, accuracy on a task, memory.\n"
    "\n"
    "  --perplexity FILE    of a raw text: tokenised once, windows without overlap\n"
    "  --window N           their tokens (default 2048, or what the model allows)\n"
    "  --max-windows N      only the first N\n"
    "  --prefill BxS,...    time of B sequences of S tokens from an empty cache\n"
    "  --decode B@CTX,...   time of one more token for B sequences of CTX tokens\n"
    "  --tasks piqa         accuracy, as lm-evaluation-harness has it\n"
    "  --task-data PATH     valid.jsonl with its labels, or their directory\n"
    "  --limit N            only the first N questions\n"
    "  --lm-eval FILE       also write the task's result in lm-evaluation-harness's format\n"
    "  --force              replace FILE\n" ENGINE_ARGS_HELP "  --json, -q, -v, --help\n"
    "\n"
    "example: gac eval ./llama-svd-fit --perplexity wiki.test.raw --prefill 1x1024,4x1024 "
    "--decode 1@1024\n";

/* Reads "1x1024,4x1024", or with @. */
static gac_status take_shapes(cli *c, const char *option, char between, shape_list *list)
{
    char q[80];
    const char *at = optarg;
    for (bool more = true; more; at++) {
        char *middle, *end;
        long long batch = strtoll(at, &middle, 10);
        long long length = *middle == between ? strtoll(middle + 1, &end, 10) : 0;
        if (middle == at || length < 1 || batch < 1 || batch > 1 << 20 || length > 1 << 30 ||
            (*end && *end != ','))
            return gac_error_set(&c->error, GAC_USAGE, "%s: \"%s\" is not a list of B%cN, as %s",
                                 option, gac_quote(q, sizeof q, optarg), between,
                                 between == 'x' ? "1x1024,4x1024" : "1@1024,16@1024");
        if (list->n == MAX_SHAPES)
            return gac_error_set(&c->error, GAC_USAGE, "%s: more than %d", option, MAX_SHAPES);
        list->shapes[list->n++] = (gac_pass_shape){ batch, length };
        more = *end == ',';
        at = end;
    }
    return GAC_OK;
}

static gac_status take_tasks(cli *c, eval_command *o)
{
    char q[80];
    o->piqa = strcmp(optarg, "piqa") == 0;
    if (o->piqa)
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "--tasks: \"%s\" is not known; there is piqa",
                         gac_quote(q, sizeof q, optarg));
}

static gac_status take(cli *c, eval_command *o, int letter)
{
    switch (letter) {
    case 'P':
        o->text = optarg;
        return GAC_OK;
    case 'w':
        return cli_number(c, "--window", optarg, 2, &o->window);
    case 'W':
        return cli_number(c, "--max-windows", optarg, 1, &o->max_windows);
    case 'p':
        return take_shapes(c, "--prefill", 'x', &o->prefill);
    case 'e':
        return take_shapes(c, "--decode", '@', &o->decode);
    case 't':
        return take_tasks(c, o);
    case 'f':
        o->task_data = optarg;
        return GAC_OK;
    case 'l':
        return cli_number(c, "--limit", optarg, 1, &o->limit);
    case 'L':
        o->lm_eval = optarg;
        return GAC_OK;
    case 'F':
        o->force = true;
        return GAC_OK;
    default:
        return engine_args_take(c, &o->engine, letter);
    }
}

static gac_status check(cli *c, const eval_command *o, int n_paths)
{
    const char *why = NULL;
    if (n_paths != 1)
        why = "eval takes one directory; see gac eval --help";
    else if (!o->text && o->prefill.n == 0 && o->decode.n == 0 && !o->piqa)
        why = "eval needs something to measure: --perplexity, --prefill, --decode or --tasks";
    else if (!o->text && (o->window || o->max_windows))
        why = "--window and --max-windows go with --perplexity";
    else if (o->piqa != (o->task_data != NULL))
        why = "--tasks and --task-data go together";
    else if (!o->piqa && (o->limit || o->lm_eval))
        why = "--limit and --lm-eval go with --tasks";
    else if (o->force && !o->lm_eval)
        why = "--force goes with --lm-eval";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

static gac_status parse(cli *c, int argc, char **argv, eval_command *o, bool *done)
{
    static const struct option options[] = { { "perplexity", required_argument, NULL, 'P' },
                                             { "window", required_argument, NULL, 'w' },
                                             { "max-windows", required_argument, NULL, 'W' },
                                             { "prefill", required_argument, NULL, 'p' },
                                             { "decode", required_argument, NULL, 'e' },
                                             { "tasks", required_argument, NULL, 't' },
                                             { "task-data", required_argument, NULL, 'f' },
                                             { "limit", required_argument, NULL, 'l' },
                                             { "lm-eval", required_argument, NULL, 'L' },
                                             { "force", no_argument, NULL, 'F' },
                                             ENGINE_ARGS_OPTIONS,
                                             CLI_COMMON_OPTIONS };
    int letter;
    while ((letter = cli_next_option(c, &cmd_eval, argc, argv, options, done)) != -1) {
        gac_status status = letter == '?' ? c->error.status : take(c, o, letter);
        if (status != GAC_OK || *done)
            return status;
    }
    return check(c, o, argc - optind);
}

/* Room for everything that was asked for, one after the other, in one engine. */
static gac_status size_engine(cli *c, eval_command *o)
{
    gac_engine_work work = { .perplexity = o->text != NULL,
                             .window = o->window,
                             .tasks = o->piqa,
                             .prefill = o->prefill.shapes,
                             .n_prefill = o->prefill.n,
                             .decode = o->decode.shapes,
                             .n_decode = o->decode.n };
    return gac_engine_size(o->engine.model, &work, &o->engine.options, &c->error);
}

static gac_status run_perplexity(cli *c, eval_command *o, const int32_t *ids, size_t n_ids)
{
    gac_perplexity_options options = { o->window, o->max_windows, c->progress };
    return gac_engine_perplexity(o->engine.engine, ids, n_ids, &options, &o->perplexity, &c->error);
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
    gac_piqa_options options = { o->limit, c->progress };
    return gac_engine_piqa(o->engine.engine, o->engine.tokenizer, o->task_data, &options,
                           &o->piqa_score, &c->error);
}

static gac_status write_lm_eval(cli *c, const eval_command *o)
{
    gac_new_file *file = NULL;
    json_t *json = eval_lm_eval_json(o);
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_json_text(json, JSON_INDENT(2), &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = gac_new_file_create(o->lm_eval, o->force, &file, &c->error);
    if (status == GAC_OK)
        status = gac_new_file_write(file, text, n_bytes, &c->error);
    if (status == GAC_OK)
        status = gac_new_file_write(file, "\n", 1, &c->error);
    if (status == GAC_OK)
        status = gac_new_file_commit(file, &c->error);
    else
        gac_new_file_discard(file);
    free(text);
    json_decref(json);
    return status;
}

/* Refuses an existing target before the work, not after. */
static gac_status check_target(cli *c, const eval_command *o)
{
    gac_new_file *file = NULL;
    gac_status status =
        o->lm_eval ? gac_new_file_create(o->lm_eval, o->force, &file, &c->error) : GAC_OK;
    gac_new_file_discard(file);
    return status;
}

static gac_status report(cli *c, const eval_command *o)
{
    if (!c->json) {
        eval_print(o);
        return GAC_OK;
    }
    json_t *result = eval_json(c, o);
    gac_status status =
        result ? gac_json_print(stdout, result, &c->error) : gac_error_no_memory(&c->error);
    json_decref(result);
    return status;
}

/* What can be wrong with files, but for those of tasks, is found before the
 * model is loaded. */
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
    if (status == GAC_OK)
        status = check_target(c, o);
    if (status == GAC_OK)
        status = engine_args_start(c, &o->engine);
    if (status == GAC_OK && o->text)
        status = run_perplexity(c, o, ids, n_ids);
    if (status == GAC_OK)
        status = run_shapes(c, o);
    if (status == GAC_OK && o->piqa)
        status = run_piqa(c, o);
    if (status == GAC_OK) /* now that working memory has grown to its size */
        gac_engine_describe(o->engine.engine, &o->info);
    if (status == GAC_OK && o->lm_eval)
        status = write_lm_eval(c, o);
    if (status == GAC_OK)
        status = report(c, o);
    free(ids);
    return status;
}

static gac_status run(cli *c, int argc, char **argv)
{
    bool done = false;
    eval_command o = { .engine = ENGINE_ARGS_INIT };
    gac_status status = parse(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    o.prefill.timings = calloc((size_t)o.prefill.n + 1, sizeof *o.prefill.timings);
    o.decode.timings = calloc((size_t)o.decode.n + 1, sizeof *o.decode.timings);
    if (!o.prefill.timings || !o.decode.timings)
        status = gac_error_no_memory(&c->error);
    else
        status = evaluate(c, &o, argv[optind]);
    engine_args_dispose(&o.engine);
    free(o.prefill.timings);
    free(o.decode.timings);
    return status;
}

const command cmd_eval = { "eval", "perplexity, speed and accuracy of a model", help, run };

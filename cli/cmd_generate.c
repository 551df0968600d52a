#include "engine_args.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_EOS = 16, MAX_GENERATION_CONFIG_BYTES = 1 << 20 };

typedef struct generate_command {
    engine_args engine;
    gac_generate_options options;
    const char *ids_text;
    bool chat;
    const char *system;
    gac_chat *template; /* with chat */
    int32_t *prompt;
    size_t n_prompt;
    int32_t eos[MAX_EOS];
    double start_s, first_s, end_s; /* first_s: time of the first token */
    bool streams;
    gac_progress *progress;
    uint64_t n_made;
} generate_command;

static const generate_command initial = { .engine = ENGINE_ARGS_INIT,
                                          .options = GAC_GENERATE_OPTIONS_INIT };

#define AT(member) .at = offsetof(generate_command, member)
static const opt options[] = {
    { "max-tokens", 0, "N", "limit of new tokens (default 128)", OPT_INT, AT(options.max_tokens),
      .least = 1 },
    { "temperature", 0, "T",
      "draw tokens at random: 1 uses the probabilities of the model, less favours likely tokens "
      "(default 0: always the likeliest)",
      OPT_REAL, AT(options.sampling.temperature) },
    { "top-k", 0, "K", "draw only from the K likeliest tokens", OPT_INT, AT(options.sampling.top_k),
      .least = 1 },
    { "top-p", 0, "P", "draw only from the likeliest tokens that together have probability P",
      OPT_REAL, AT(options.sampling.top_p), .max = 1, .above = true },
    { "seed", 0, "S", "seed of the random numbers (default 0)", OPT_INT,
      AT(options.sampling.seed) },
    { "chat", 0, NULL, "the prompt is a message, put into the model's chat template", OPT_FLAG,
      AT(chat) },
    { "system", 0, "TEXT", "with --chat: instructions that precede the message", OPT_TEXT,
      AT(system) },
    { "ids", 0, "LIST", "token ids instead of a prompt, used unchanged", OPT_TEXT, AT(ids_text) },
    { "engine", 0, NULL, "", OPT_GROUP, AT(engine), .group = engine_args_options },
    { 0 }
};

static gac_status check(cli *c, const generate_command *o, int n_arguments)
{
    const gac_sampling *s = &o->options.sampling;
    const char *why = NULL;
    if (n_arguments != (o->ids_text ? 1 : 2))
        why = "generate takes a directory and a prompt, or --ids; see gac generate --help";
    else if (!(s->temperature > 0) && (s->top_k > 0 || s->top_p < 1 || s->seed > 0))
        why = "--top-k, --top-p and --seed go with --temperature";
    else if (o->chat && o->ids_text)
        why = "--chat goes with a prompt, not with --ids";
    else if (o->system && !o->chat)
        why = "--system goes with --chat";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

/* Reads "1,2,3". */
static gac_status read_ids(cli *c, generate_command *o)
{
    char q[80];
    const char *at = o->ids_text;
    size_t most = strlen(at) / 2 + 1;
    o->prompt = malloc(most * sizeof *o->prompt);
    if (!o->prompt)
        return gac_error_no_memory(&c->error);
    for (bool more = true; more; at++) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || id < 0 || id > INT32_MAX)
            return gac_error_set(&c->error, GAC_USAGE, "--ids: \"%s\" is not a list as 1,2,3",
                                 gac_quote(q, sizeof q, o->ids_text));
        o->prompt[o->n_prompt++] = (int32_t)id;
        more = *end == ',';
        at = end;
    }
    return GAC_OK;
}

static bool has_file(const generate_command *o, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", o->engine.path, name);
    return access(path, F_OK) == 0;
}

/* Puts the message into the model's chat template. */
static gac_status make_chat(cli *c, generate_command *o, const char *message)
{
    char q[300], *text = NULL;
    gac_status status = gac_chat_open(o->engine.path, &o->template, &c->error);
    if (status == GAC_OK && !o->template)
        return gac_error_set(&c->error, GAC_BAD_INPUT, "%s: it has no chat template",
                             gac_quote(q, sizeof q, o->engine.path));
    if (status == GAC_OK)
        status =
            gac_chat_prompt(o->template, o->engine.tokenizer, o->system, message, &text, &c->error);
    if (status == GAC_OK)
        status = gac_tokenizer_encode(o->engine.tokenizer, text, strlen(text), false, &o->prompt,
                                      &o->n_prompt, &c->error);
    free(text);
    return status;
}

/* Tells of --chat where a plain prompt goes to a chat model. A template that is not known is no
 * error here, but one that cannot be read is. */
static gac_status hint_at_chat(cli *c, const generate_command *o, const char *prompt)
{
    gac_chat *chat = NULL;
    char *text = NULL;
    if (c->json)
        return GAC_OK;
    gac_status status = gac_chat_open(o->engine.path, &chat, &c->error);
    bool has = status != GAC_OK || chat;
    if (status == GAC_OK && chat)
        status = gac_chat_prompt(chat, o->engine.tokenizer, NULL, prompt, &text, &c->error);
    free(text);
    gac_chat_close(chat);
    if (status == GAC_FAILED || status == GAC_NO_RESOURCE)
        return status;
    if (has)
        gac_log_write(&c->log, 0, "hint: this model has a chat template%s",
                      status == GAC_OK ? "; --chat puts the prompt into it"
                                       : " that cannot be used here; it may not expect a plain "
                                         "prompt");
    return GAC_OK;
}

static gac_status make_prompt(cli *c, generate_command *o, const char *text)
{
    gac_status status = GAC_OK;
    /* --ids needs no tokenizer. Without one, the answer is printed as ids. */
    if (!o->ids_text || has_file(o, "tokenizer.json"))
        status = engine_args_open_tokenizer(c, &o->engine);
    if (status != GAC_OK)
        return status;
    if (o->ids_text)
        return read_ids(c, o);
    if (o->chat)
        return make_chat(c, o, text);
    status = hint_at_chat(c, o, text);
    return status == GAC_OK ? gac_tokenizer_encode(o->engine.tokenizer, text, strlen(text), true,
                                                   &o->prompt, &o->n_prompt, &c->error)
                            : status;
}

static void add_eos(generate_command *o, int64_t id)
{
    if (id >= 0 && id <= INT32_MAX && o->options.n_eos < MAX_EOS)
        o->eos[o->options.n_eos++] = (int32_t)id;
}

/* Adds an end token or a list of them. */
static void add_all_eos(generate_command *o, const json_t *value)
{
    if (json_is_integer(value))
        add_eos(o, json_integer_value(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        if (json_is_integer(json_array_get(value, i)))
            add_eos(o, json_integer_value(json_array_get(value, i)));
}

static bool is_token(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= INT32_MAX;
}

static bool is_eos(const json_t *value)
{
    if (!json_is_array(value))
        return is_token(value);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_token(json_array_get(value, i)))
            return false;
    return json_array_size(value) < MAX_EOS;
}

/* Adds the end tokens of generation_config.json, if it exists. */
static gac_status add_generation_eos(cli *c, generate_command *o, bool *found)
{
    char q[300];
    gac_file *file = NULL;
    json_t *config = NULL;
    gac_status status =
        gac_file_open_inside(o->engine.path, "generation_config.json", &file, &c->error);
    if (status == GAC_OK)
        status = gac_json_load(file, MAX_GENERATION_CONFIG_BYTES, &config, &c->error);
    const json_t *value = json_object_get(config, "eos_token_id");
    *found = value && !json_is_null(value);
    if (status == GAC_OK && !json_is_object(config))
        status = gac_error_set(&c->error, GAC_BAD_INPUT, "%s: not an object",
                               gac_quote(q, sizeof q, gac_file_path(file)));
    if (status == GAC_OK && *found && !is_eos(value))
        status = gac_error_set(&c->error, GAC_BAD_INPUT,
                               "%s: eos_token_id is neither a token nor a list of up to %d",
                               gac_quote(q, sizeof q, gac_file_path(file)), MAX_EOS - 1);
    if (status == GAC_OK && *found)
        add_all_eos(o, value);
    gac_file_close(file);
    json_decref(config);
    return status;
}

/* Finds the end tokens: the tokenizer's, and those of generation_config.json
 * or, without it, of config.json. */
static gac_status find_eos(cli *c, generate_command *o)
{
    bool found = false;
    gac_status status = GAC_OK;
    o->options.eos = o->eos;
    if (o->engine.tokenizer)
        add_eos(o, gac_tokenizer_eos(o->engine.tokenizer));
    if (o->template)
        add_eos(o, gac_chat_end(o->template, o->engine.tokenizer));
    if (has_file(o, "generation_config.json"))
        status = add_generation_eos(c, o, &found);
    if (status == GAC_OK && !found)
        add_all_eos(o,
                    json_object_get(gac_checkpoint_config(o->engine.checkpoint), "eos_token_id"));
    return status;
}

/* Sizes the engine for the prompt and the answer, as far as the model allows. */
static gac_status size_engine(cli *c, generate_command *o)
{
    gac_engine_work work = { .n_prompt = (int64_t)o->n_prompt,
                             .max_tokens = o->options.max_tokens };
    if (o->n_prompt == 0)
        return gac_error_set(&c->error, GAC_USAGE, "the prompt has no tokens");
    return gac_engine_size(o->engine.model, &work, &o->engine.options, &c->error);
}

/* Prints generated text. False ends the generation, because nobody reads the
 * output any more. */
static bool show(void *context, int32_t id, const char *text, size_t n_bytes)
{
    generate_command *o = context;
    if (!(o->first_s > 0)) {
        o->first_s = gac_now_s();
        gac_engine_watch(o->engine.engine, NULL, 0, false);
        gac_progress_finish(o->progress); /* end of the prompt's progress */
        if (!o->streams)
            gac_progress_start(o->progress, "generating", "tokens",
                               (uint64_t)o->options.max_tokens);
    }
    if (!o->streams) {
        gac_progress_step(o->progress, ++o->n_made);
        return true;
    }
    if (!o->engine.tokenizer && id >= 0)
        printf("%d ", (int)id);
    fwrite(text, 1, n_bytes, stdout);
    return fflush(stdout) == 0;
}

static double rate(double n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0;
}

static json_t *ids_json(const int32_t *ids, size_t n)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static gac_status report_json(cli *c, const generate_command *o, const gac_generation *g)
{
    const gac_sampling *s = &o->options.sampling;
    char q[300];
    json_t *result = gac_json_result("gac.generate/1", c->argc, c->argv);
    json_t *body = json_pack(
        "{s:s, s:s, s:b, s:o, s:o, s:s%, s:s, s:{s:f, s:I, s:f, s:I}, s:f, s:f}", "checkpoint",
        gac_quote(q, sizeof q, o->engine.path), "device", o->engine.options.device, "chat",
        o->template != NULL, "prompt_ids", ids_json(o->prompt, o->n_prompt), "ids",
        ids_json(g->ids, (size_t)g->n_ids), "text", g->text, g->n_bytes, "stop",
        gac_stop_name(g->stop), "sampling", "temperature", s->temperature, "top_k",
        (json_int_t)s->top_k, "top_p", s->top_p, "seed", (json_int_t)s->seed, "prompt_s",
        o->first_s > 0 ? o->first_s - o->start_s : o->end_s - o->start_s, "tokens_per_s",
        rate((double)g->n_ids - 1, o->end_s - o->first_s));
    gac_status status = body && result ? GAC_OK : gac_error_no_memory(&c->error);
    if (status == GAC_OK && json_object_update(result, body) != 0)
        status = gac_error_no_memory(&c->error);
    if (status == GAC_OK)
        status = cli_print_result(c, result);
    json_decref(body);
    json_decref(result);
    return status;
}

static gac_status report(cli *c, const generate_command *o, const gac_generation *g)
{
    if (c->json)
        return report_json(c, o, g);
    putchar('\n');
    gac_log_write(&c->log, 0,
                  "%lld tokens, ended by %s, %.1f tokens/s; prompt of %zu tokens in %.2f s",
                  (long long)g->n_ids, gac_stop_name(g->stop),
                  rate((double)g->n_ids - 1, o->end_s - o->first_s), o->n_prompt,
                  (o->first_s > 0 ? o->first_s : o->end_s) - o->start_s);
    return GAC_OK;
}

static gac_status generate(cli *c, generate_command *o, const char **arguments)
{
    gac_generation g = { 0 };
    gac_status status = engine_args_open(c, &o->engine, arguments[0]);
    if (status == GAC_OK)
        status = make_prompt(c, o, arguments[1]);
    if (status == GAC_OK)
        status = find_eos(c, o);
    if (status == GAC_OK)
        status = size_engine(c, o);
    if (status == GAC_OK)
        status = engine_args_start(c, &o->engine);
    if (status != GAC_OK)
        return status;
    o->streams = !c->json;
    o->progress = c->progress;
    o->options.show = show;
    o->options.show_context = o;
    if (!o->ids_text)
        status = gac_engine_check_text(o->engine.engine, o->prompt, o->n_prompt, &c->error);
    if (status != GAC_OK)
        return status;
    gac_progress_start(o->progress, "prompt", "tokens", (uint64_t)o->n_prompt);
    gac_engine_watch(o->engine.engine, o->progress, 0, true);
    o->start_s = gac_now_s();
    status = gac_engine_generate(o->engine.engine, o->engine.tokenizer, o->prompt, o->n_prompt,
                                 &o->options, &g, &c->error);
    o->end_s = gac_now_s();
    gac_progress_finish(o->progress);
    if (status == GAC_OK)
        status = report(c, o, &g);
    gac_generation_dispose(&g);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    generate_command *o = filled;
    gac_status status = check(c, o, n);
    if (status == GAC_OK)
        status = generate(c, o, arguments);
    engine_args_dispose(&o->engine);
    gac_chat_close(o->template);
    free(o->prompt);
    return status;
}

const command cmd_generate = {
    .name = "generate",
    .summary = "continue a text",
    .usage =
        "DIR \"PROMPT\" [options]\nDIR \"MESSAGE\" --chat [options]\nDIR --ids 1,2,3 [options]",
    .about = "Continues a text and prints it while it is generated. Takes the likeliest token each "
             "time, unless a "
             "temperature is given. Ends at the model's end-of-text token, after --max-tokens or "
             "when the context is full.",
    .example = "./llama-svd-fit \"Once upon a time\" --temperature 0.8 --seed 1",
    COMMAND_RUNS(1, 2, "a directory and a prompt, or --ids"),
};

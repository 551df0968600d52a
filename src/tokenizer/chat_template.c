/* How a chat model is talked to. Templates are programs in Jinja, which nothing here runs: a
 * template is recognised by what it must contain, and its prompt is built by a rule. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/arguments.h"
#include "base/utf8.h"
#include <gac/tokenizer.h>

enum { MAX_TEMPLATE_BYTES = 1 << 20, MAX_CONFIG_BYTES = 16 << 20, MOST_MARKERS = 3 };

/* A family of templates. Markers are looked for in the normal form of a template (below). In
 * the texts, \1 is the message and \3 the tokenizer's end of a text. */
typedef struct rule {
    const char *name;
    const char *has[MOST_MARKERS], *lacks[MOST_MARKERS];
    const char *system; /* NULL: a system message goes before the user's, with an empty line */
    const char *user, *answer; /* NULL: as the template writes [INST] and [/INST] */
    const char *end;           /* the token that ends an answer; NULL: the tokenizer's */
    bool begins;               /* with the tokenizer's beginning, always; else if it names it */
    bool trims;                /* messages lose white space at both ends */
    const char *system_sign;   /* a template without it takes no system message; or NULL */
} rule;

static const rule rules[] = {
    { .name = "phi-4",
      .has = { "'<|im_start|>user<|im_sep|>'+message['content']+'<|im_end|>" },
      .system = "<|im_start|>system<|im_sep|>\1<|im_end|>",
      .user = "<|im_start|>user<|im_sep|>\1<|im_end|>",
      .answer = "<|im_start|>assistant<|im_sep|>",
      .end = "<|im_end|>" },
    { .name = "chatml",
      .has = { "<|im_start|>", "<|im_end|>", "'<|im_start|>assistant\\n'" },
      .lacks = { "<|im_sep|>", "## Metadata" },
      .system = "<|im_start|>system\n\1<|im_end|>\n",
      .user = "<|im_start|>user\n\1<|im_end|>\n",
      .answer = "<|im_start|>assistant\n",
      .end = "<|im_end|>" },
    { .name = "llama-3",
      .has = { "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']",
               "<|eot_id|>" },
      .system = "<|start_header_id|>system<|end_header_id|>\n\n\1<|eot_id|>",
      .user = "<|start_header_id|>user<|end_header_id|>\n\n\1<|eot_id|>",
      .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
      .end = "<|eot_id|>",
      .begins = true,
      .trims = true },
    { .name = "gemma",
      .has = { "<start_of_turn>", "<end_of_turn>", "'<start_of_turn>model\\n'" },
      .user = "<start_of_turn>user\n\1<end_of_turn>\n",
      .answer = "<start_of_turn>model\n",
      .end = "<end_of_turn>",
      .begins = true,
      .trims = true,
      .system_sign = "first_user_prefix" },
    { .name = "command-r",
      .has = { "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|CHATBOT_TOKEN|>" },
      .lacks = { "<|START_RESPONSE|>" },
      .system = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>\1<|END_OF_TURN_TOKEN|>",
      .user = "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>\1<|END_OF_TURN_TOKEN|>",
      .answer = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
      .end = "<|END_OF_TURN_TOKEN|>",
      .begins = true,
      .trims = true },
    { .name = "phi-3",
      .has = { "'<|user|>\\n'+message['content']+'<|end|>\\n'" },
      .system = "<|system|>\n\1<|end|>\n",
      .user = "<|user|>\n\1<|end|>\n",
      .answer = "<|assistant|>\n",
      .end = "<|end|>" },
    { .name = "zephyr",
      .has = { "'<|user|>\\n'+message['content']+eos_token" },
      .system = "<|system|>\n\1\3\n",
      .user = "<|user|>\n\1\3\n",
      .answer = "<|assistant|>\n" },
    { .name = "tulu",
      .has = { "'<|user|>\\n'+message['content']+'\\n'" },
      .system = "<|system|>\n\1\n",
      .user = "<|user|>\n\1\n",
      .answer = "<|assistant|>\n" },
    { .name = "llama-2",
      .has = { "[INST]", "<<SYS>>" },
      .system = "<<SYS>>\n\1\n<</SYS>>\n\n",
      .begins = true,
      .trims = true },
    { .name = "mistral",
      .has = { "[INST]", "[/INST]" },
      .lacks = { "<<SYS>>", "[SYSTEM_PROMPT]", "[MODEL_SETTINGS]" },
      .begins = true,
      .system_sign = "system_message" },
};

struct gac_chat {
    const rule *rule;
    bool begins; /* with the tokenizer's beginning of a text */
    bool takes_system;
    char *system;         /* what the template says without a system message, or NULL */
    char *before, *after; /* how the template writes [INST] and [/INST], or NULL */
    bool dated;           /* Llama-3.1: a date in the system message, */
    bool today;           /* today's, or else a fixed one */
};

void gac_chat_close(gac_chat *chat)
{
    if (!chat)
        return;
    free(chat->system);
    free(chat->before);
    free(chat->after);
    free(chat);
}

const char *gac_chat_name(const gac_chat *chat)
{
    return chat ? chat->rule->name : NULL;
}

const char *gac_chat_end(const gac_chat *chat)
{
    return chat ? chat->rule->end : NULL;
}

/* Brings a template into its normal form: outside of strings there is no white space, strings
 * are in single quotes, and line ends in them are written \n. out has room for twice the size. */
static void normalise(const char *template, char *out)
{
    char quote = 0;
    bool code = false;
    for (const char *at = template; *at; at++) {
        bool opens = code && !quote && (*at == '\'' || *at == '"');
        if (!quote && at[0] == '{' && (at[1] == '{' || at[1] == '%'))
            code = true;
        else if (!quote && (at[0] == '}' || at[0] == '%') && at[1] == '}')
            code = false;
        if (opens || (quote && *at == quote)) {
            quote = opens ? *at : 0;
            *out++ = '\'';
        } else if (quote && *at == '\n') {
            *out++ = '\\';
            *out++ = 'n';
        } else if (quote && *at == '\\' && at[1]) {
            *out++ = *at++;
            *out++ = *at;
        } else if (quote || !isspace((unsigned char)*at)) {
            *out++ = *at;
        }
    }
    *out = 0;
}

/* Copies n bytes of a string of a template, with its escapes resolved. NULL without memory, or for
 * an escape other than a line end. */
static char *unescape(const char *text, size_t n)
{
    char *out = malloc(n + 1), *to = out;
    for (size_t i = 0; out && i < n; i++) {
        bool escape = text[i] == '\\';
        if (escape && (i + 1 == n || text[++i] != 'n')) {
            free(out);
            return NULL;
        }
        *to++ = escape ? '\n' : text[i];
    }
    if (out)
        *to = 0;
    return out;
}

/* Copies the string of a template that contains mark. */
static char *string_around(const char *template, const char *mark)
{
    const char *at = strstr(template, mark), *from = at;
    while (from && from > template && from[-1] != '\'')
        from--;
    const char *end = at ? strchr(at, '\'') : NULL;
    return end ? unescape(from, (size_t)(end - from)) : NULL;
}

/* Finds a system message that a template has of its own, between the halves of the rule's. */
static char *own_system(const char *template, const char *before, const char *after)
{
    size_t n = strlen(before);
    for (const char *at = strstr(template, before); at; at = strstr(at + n, before)) {
        const char *end = strstr(at + n, after), *quote = strchr(at + n, '\'');
        if (end && quote && end < quote && end > at + n)
            return unescape(at + n, (size_t)(end - at) - n);
    }
    return NULL;
}

static bool matches(const rule *r, const char *template)
{
    for (int i = 0; i < MOST_MARKERS; i++)
        if ((r->has[i] && !strstr(template, r->has[i])) ||
            (r->lacks[i] && strstr(template, r->lacks[i])))
            return false;
    return true;
}

/* Takes from a template in its normal form what its rule leaves open. False if that fails. */
static bool read_details(gac_chat *chat, const char *template)
{
    const rule *r = chat->rule;
    chat->begins = r->begins || strstr(template, "bos_token");
    chat->takes_system = !r->system_sign || strstr(template, r->system_sign);
    if (strcmp(r->name, "chatml") == 0) {
        chat->system = own_system(template, "<|im_start|>system\\n", "<|im_end|>");
        return chat->system || !strstr(template, "'<|im_start|>system\\nYou");
    }
    if (strcmp(r->name, "llama-3") == 0) {
        chat->dated = strstr(template, "'Cutting Knowledge Date: December 2023\\n'") != NULL;
        chat->today = strstr(template, "strftime_now") != NULL;
        return chat->dated || !strstr(template, "date_string");
    }
    if (r->user)
        return true;
    chat->before = string_around(template, "[INST]");
    chat->after = string_around(template, "[/INST]");
    return chat->before && chat->after;
}

/* Recognises a template. *out stays NULL if no rule fits. */
static gac_status recognise(const char *text, gac_chat **out, gac_error *err)
{
    char *template = malloc(2 * strlen(text) + 1);
    gac_chat *chat = calloc(1, sizeof *chat);
    gac_status status = template && chat ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        normalise(text, template);
    for (size_t i = 0; i < sizeof rules / sizeof *rules && status == GAC_OK && !chat->rule; i++)
        if (matches(&rules[i], template))
            chat->rule = &rules[i];
    if (status == GAC_OK && chat->rule && read_details(chat, template)) {
        *out = chat;
        chat = NULL;
    }
    gac_chat_close(chat);
    free(template);
    return status;
}

/* Returns the template in a tokenizer_config.json: a text, or the one named default of a list. */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(value);
}

/* Sets *has to whether the directory has a file of that name. */
static gac_status look_for(const char *directory, const char *name, bool *has, gac_error *err)
{
    size_t length = strlen(directory) + strlen(name) + 2;
    char *path = malloc(length);
    if (!path)
        return gac_error_no_memory(err);
    snprintf(path, length, "%s/%s", directory, name);
    *has = access(path, F_OK) == 0;
    gac_status status = *has || errno == ENOENT ? GAC_OK : gac_error_errno(err, path);
    free(path);
    return status;
}

/* Reads the template of a directory: chat_template.jinja, or a key of tokenizer_config.json. *out
 * is malloc'ed, or NULL if there is none. */
static gac_status read_template(const char *directory, char **out, gac_error *err)
{
    gac_file *file = NULL;
    json_t *config = NULL;
    size_t n;
    bool has = false;
    *out = NULL;
    gac_status status = look_for(directory, "chat_template.jinja", &has, err);
    if (status == GAC_OK && has) {
        status = gac_file_open_inside(directory, "chat_template.jinja", &file, err);
        if (status == GAC_OK)
            status = gac_file_slurp(file, MAX_TEMPLATE_BYTES, out, &n, err);
        gac_file_close(file);
        return status;
    }
    if (status == GAC_OK)
        status = look_for(directory, "tokenizer_config.json", &has, err);
    if (status != GAC_OK || !has)
        return status;
    status = gac_file_open_inside(directory, "tokenizer_config.json", &file, err);
    if (status == GAC_OK)
        status = gac_json_load(file, MAX_CONFIG_BYTES, &config, err);
    const char *text = status == GAC_OK ? template_of(config) : NULL;
    if (text && !(*out = strdup(text)))
        status = gac_error_no_memory(err);
    json_decref(config);
    gac_file_close(file);
    return status;
}

gac_status gac_chat_open(const char *directory, gac_chat **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, directory, out);
    char q[256], *text = NULL;
    *out = NULL;
    gac_status status = read_template(directory, &text, err);
    if (status == GAC_OK && text) {
        status = recognise(text, out, err);
        if (status == GAC_OK && !*out)
            status = gac_error_set(err, GAC_BAD_INPUT,
                                   "%s: its chat template is not known; chatml, llama-2, llama-3, "
                                   "mistral, gemma, phi-3, phi-4, zephyr, tulu and command-r are",
                                   gac_quote(q, sizeof q, directory));
    }
    free(text);
    return status;
}

/* A prompt that is being made. */
typedef struct prompt {
    const gac_chat *chat;
    const gac_tokenizer *tokenizer;
    byte_buffer text;
    bool ok; /* there was memory */
} prompt;

static void add(prompt *p, const char *text, size_t n)
{
    p->ok = p->ok && gac_bytes_append(&p->text, text, n);
}

static void add_piece(prompt *p, int32_t id)
{
    const char *piece = id >= 0 ? gac_tokenizer_piece(p->tokenizer, id) : NULL;
    if (piece)
        add(p, piece, strlen(piece));
}

static void add_message(prompt *p, const char *message)
{
    size_t n = strlen(message);
    while (p->chat->rule->trims && n > 0 && isspace((unsigned char)message[n - 1]))
        n--;
    while (p->chat->rule->trims && n > 0 && isspace((unsigned char)*message)) {
        message++;
        n--;
    }
    add(p, message, n);
}

/* Adds a text of a rule: \1 is the message, \3 the tokenizer's end of a text. */
static void add_text(prompt *p, const char *text, const char *message)
{
    for (; *text; text++) {
        if (*text == '\1')
            add_message(p, message);
        else if (*text == '\3')
            add_piece(p, gac_tokenizer_eos(p->tokenizer));
        else
            add(p, text, 1);
    }
}

/* Adds the system message of Llama-3.1, which has a date. */
static void add_dated(prompt *p, const char *system)
{
    static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
    char date[64] = "26 Jul 2024", head[200];
    struct tm now;
    time_t seconds = time(NULL);
    if (p->chat->today && localtime_r(&seconds, &now))
        snprintf(date, sizeof date, "%02d %s %d", now.tm_mday, months[now.tm_mon % 12],
                 now.tm_year + 1900);
    snprintf(head, sizeof head,
             "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
             "2023\nToday Date: %s\n\n",
             date);
    add(p, head, strlen(head));
    add_text(p, "\1<|eot_id|>", system ? system : "");
}

static void add_all(prompt *p, const char *system, const char *user)
{
    const gac_chat *chat = p->chat;
    const rule *r = chat->rule;
    if (chat->begins)
        add_piece(p, gac_tokenizer_bos(p->tokenizer));
    if (chat->dated)
        add_dated(p, system);
    else if (r->user && r->system && system)
        add_text(p, r->system, system);
    if (!r->user) { /* [INST] */
        add_text(p, chat->before, NULL);
        if (system)
            add_text(p, r->system ? r->system : "\1\n\n", system);
        add_message(p, user);
        add_text(p, chat->after, NULL);
        return;
    }
    const char *message = strchr(r->user, '\1');
    add(p, r->user, (size_t)(message - r->user));
    if (system && !r->system)
        add_text(p, "\1\n\n", system);
    add_text(p, message, user);
    add_text(p, r->answer, NULL);
}

gac_status gac_chat_prompt(const gac_chat *chat, const gac_tokenizer *tokenizer, const char *system,
                           const char *user, char **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, chat, tokenizer, user, out);
    prompt p = { .chat = chat, .tokenizer = tokenizer, .ok = true };
    *out = NULL;
    if (system && !chat->takes_system)
        return gac_error_set(err, GAC_USAGE, "the chat template %s takes no system message",
                             chat->rule->name);
    add_all(&p, system ? system : chat->system, user);
    add(&p, "", 1);
    if (!p.ok) {
        gac_bytes_dispose(&p.text);
        return gac_error_no_memory(err);
    }
    *out = p.text.data;
    return GAC_OK;
}

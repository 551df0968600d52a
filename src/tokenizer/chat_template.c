/* How a chat model is talked to: its chat template, which is a program in Jinja. jinja.h runs
 * it. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arguments.h"
#include "tokenizer/jinja.h"
#include <gac/tokenizer.h>

enum { MAX_TEMPLATE_BYTES = 1 << 20, MAX_CONFIG_BYTES = 16 << 20 };

struct gac_chat {
    char *path; /* for messages */
    jinja_template template;
    json_t *tokens; /* special tokens by their names in a template */
};

void gac_chat_close(gac_chat *chat)
{
    if (!chat)
        return;
    jinja_dispose(&chat->template);
    json_decref(chat->tokens);
    free(chat->path);
    free(chat);
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

/* Returns the special tokens of a tokenizer_config.json, as a template sees them. */
static json_t *tokens_of(const json_t *config)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };
    json_t *tokens = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(config, names[i]);
        if (json_is_object(value))
            value = json_object_get(value, "content");
        if (json_is_string(value))
            json_object_set(tokens, names[i], value);
    }
    return tokens;
}

/* Reads tokenizer_config.json, if there is one. */
static gac_status read_config(const char *directory, json_t **out, gac_error *err)
{
    gac_file *file = NULL;
    bool has = false;
    gac_status status = look_for(directory, "tokenizer_config.json", &has, err);
    if (status != GAC_OK || !has)
        return status;
    status = gac_file_open_inside(directory, "tokenizer_config.json", &file, err);
    if (status == GAC_OK)
        status = gac_json_load(file, MAX_CONFIG_BYTES, out, err);
    gac_file_close(file);
    return status;
}

/* Reads the template of a directory: chat_template.jinja, or a key of tokenizer_config.json. *out
 * is malloc'ed, or NULL if there is none. */
static gac_status read_template(const char *directory, const json_t *config, char **out,
                                gac_error *err)
{
    gac_file *file = NULL;
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
    const char *text = status == GAC_OK ? template_of(config) : NULL;
    if (text && !(*out = strdup(text)))
        status = gac_error_no_memory(err);
    return status;
}

/* Says which template it is that failed, and how. */
static gac_status explain(const char *path, gac_status status, const gac_error *why, gac_error *err)
{
    char q[256];
    if (status == GAC_BAD_INPUT)
        return gac_error_set(err, status, "%s: its chat template is not known here: %s",
                             gac_quote(q, sizeof q, path), why->text);
    if (status == GAC_USAGE)
        return gac_error_set(err, status, "%s: its chat template refuses the message: %s",
                             gac_quote(q, sizeof q, path), why->text);
    return gac_error_set(err, status, "%s", why->text);
}

/* Makes line ends those of Unix, as Jinja does. */
static void unify_lines(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++)
        if (*at != '\r')
            *to++ = *at;
        else if (at[1] != '\n')
            *to++ = '\n';
    *to = 0;
}

gac_status gac_chat_open(const char *directory, gac_chat **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, directory, out);
    gac_error why = GAC_ERROR_INIT;
    char *text = NULL;
    json_t *config = NULL;
    *out = NULL;
    gac_status status = read_config(directory, &config, err);
    if (status == GAC_OK)
        status = read_template(directory, config, &text, err);
    gac_chat *chat = status == GAC_OK && text ? calloc(1, sizeof *chat) : NULL;
    if (status == GAC_OK && text &&
        (!chat || !(chat->path = strdup(directory)) || !(chat->tokens = tokens_of(config))))
        status = gac_error_no_memory(err);
    json_decref(config);
    if (status == GAC_OK && text) {
        unify_lines(text);
        status = jinja_parse(text, &chat->template, &why);
        if (status != GAC_OK)
            explain(directory, status, &why, err);
    }
    free(text);
    if (status == GAC_OK)
        *out = chat;
    else
        gac_chat_close(chat);
    return status;
}

static bool add_message(json_t *messages, const char *role, const char *content)
{
    return !content || json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role,
                                                                 "content", content)) == 0;
}

/* Adds a token of the tokenizer under a name that the config gives no token. */
static void add_token(json_t *variables, const char *name, const gac_tokenizer *tokenizer,
                      int32_t id)
{
    const char *piece = id >= 0 ? gac_tokenizer_piece(tokenizer, id) : NULL;
    if (piece && !json_object_get(variables, name))
        json_object_set_new(variables, name, json_string(piece));
}

/* Runs the template on a system message, a user's and an assistant's, each perhaps NULL. Without
 * the last, it asks for an answer. */
static gac_status render(const gac_chat *chat, const gac_tokenizer *tokenizer, const char *system,
                         const char *user, const char *assistant, char **out, gac_error *err)
{
    gac_error why = GAC_ERROR_INIT;
    json_t *messages = json_array(), *variables = json_copy(chat->tokens);
    bool ok = messages && variables && add_message(messages, "system", system) &&
              add_message(messages, "user", user) && add_message(messages, "assistant", assistant);
    ok = ok && json_object_set(variables, "messages", messages) == 0 &&
         json_object_set_new(variables, "add_generation_prompt", json_boolean(!assistant)) == 0 &&
         json_object_set_new(variables, "tools", json_null()) == 0 &&
         json_object_set_new(variables, "documents", json_null()) == 0;
    json_decref(messages);
    if (ok) {
        add_token(variables, "bos_token", tokenizer, gac_tokenizer_bos(tokenizer));
        add_token(variables, "eos_token", tokenizer, gac_tokenizer_eos(tokenizer));
    }
    gac_status status = ok ? jinja_render(&chat->template, variables, out, &why)
                           : gac_error_set(&why, GAC_USAGE, "a message is not UTF-8");
    json_decref(variables);
    return status == GAC_OK ? GAC_OK : explain(chat->path, status, &why, err);
}

gac_status gac_chat_prompt(const gac_chat *chat, const gac_tokenizer *tokenizer, const char *system,
                           const char *user, char **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, chat, tokenizer, user, out);
    *out = NULL;
    return render(chat, tokenizer, system, user, NULL, out, err);
}

int32_t gac_chat_end(const gac_chat *chat, gac_tokenizer *tokenizer)
{
    static const char answer[] = "Answer";
    gac_error ignored = GAC_ERROR_INIT;
    char *text = NULL;
    int32_t *ids = NULL, end = -1;
    size_t n = 0;
    if (!chat || !tokenizer ||
        render(chat, tokenizer, NULL, "Question", answer, &text, &ignored) != GAC_OK)
        return -1;
    const char *after = strstr(text, answer);
    after = after ? after + sizeof answer - 1 : "";
    while (isspace((unsigned char)*after))
        after++;
    if (gac_tokenizer_encode(tokenizer, after, strlen(after), false, &ids, &n, &ignored) ==
            GAC_OK &&
        n > 0 && gac_tokenizer_is_special(tokenizer, ids[0])) {
        const char *piece = gac_tokenizer_piece(tokenizer, ids[0]);
        end = piece && strncmp(after, piece, strlen(piece)) == 0 ? ids[0] : -1;
    }
    free(ids);
    free(text);
    return end;
}

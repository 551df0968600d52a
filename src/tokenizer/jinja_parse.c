/* From tokens to a tree. */
#include "tokenizer/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 100 };

typedef struct parser {
    jinja_template *template;
    const jinja_token *at;
    int depth;
    gac_status status;
    gac_error *err;
} parser;

static jinja_node *parse_choice(parser *p);
static jinja_node *parse_body(parser *p, const char *const ends[]);

/* Refuses the template at the current token. */
static jinja_node *refuse(parser *p, const char *what)
{
    char q[80], text[80];
    size_t n = p->at->n < sizeof text ? p->at->n : sizeof text - 1;
    memcpy(text, p->at->text, n);
    text[n] = 0;
    if (p->status == GAC_OK && p->at->kind == JINJA_TOKEN_END)
        p->status = gac_error_set(p->err, GAC_BAD_INPUT, "%s: it ends", what);
    else if (p->status == GAC_OK)
        p->status =
            gac_error_set(p->err, GAC_BAD_INPUT, "%s: \"%s\"", what, gac_quote(q, sizeof q, text));
    return NULL;
}

static bool is(const parser *p, jinja_token_kind kind, const char *text)
{
    return p->status == GAC_OK && p->at->kind == kind && strlen(text) == p->at->n &&
           memcmp(p->at->text, text, p->at->n) == 0;
}

static bool is_word(const parser *p, const char *word)
{
    return is(p, JINJA_TOKEN_NAME, word);
}

/* Steps over a token if it is that operator, or that word. */
static bool take(parser *p, const char *text)
{
    bool found = is(p, JINJA_TOKEN_OPERATOR, text) || is_word(p, text);
    p->at += found;
    return found;
}

static void need(parser *p, const char *text)
{
    if (!take(p, text))
        refuse(p, "something else is expected");
}

static void need_end(parser *p, jinja_token_kind kind)
{
    if (p->status == GAC_OK && p->at->kind != kind)
        refuse(p, "the end of a tag is expected");
    p->at += p->status == GAC_OK;
}

static jinja_node *make(parser *p, jinja_kind kind, jinja_node *a, jinja_node *b)
{
    jinja_node *node =
        p->status == GAC_OK ? gac_arena_alloc(&p->template->arena, sizeof *node) : NULL;
    if (!node) {
        if (p->status == GAC_OK)
            p->status = gac_error_no_memory(p->err);
        return NULL;
    }
    *node = (jinja_node){ .kind = kind, .a = a, .b = b };
    return node;
}

static jinja_node *make_named(parser *p, jinja_kind kind, jinja_node *a, const char *name)
{
    jinja_node *node = make(p, kind, a, NULL);
    if (node)
        node->name = name;
    return node;
}

/* Makes a node with a value, which the template owns from now on. */
static jinja_node *make_value(parser *p, jinja_kind kind, json_t *value)
{
    jinja_node *node = make(p, kind, NULL, NULL);
    if (!value || json_array_append_new(p->template->constants, value) != 0) {
        refuse(p, "a text that is not known");
        return NULL;
    }
    if (node)
        node->value = value;
    return node;
}

static const char *take_name(parser *p)
{
    if (p->status != GAC_OK || p->at->kind != JINJA_TOKEN_NAME) {
        refuse(p, "a name is expected");
        return NULL;
    }
    const jinja_token *t = p->at++;
    char *name = gac_arena_alloc(&p->template->arena, t->n + 1);
    if (name)
        memcpy(name, t->text, t->n);
    else
        p->status = gac_error_no_memory(p->err);
    return name;
}

/* Adds a node to the end of a list. */
static void append(jinja_node ***tail, jinja_node *node)
{
    if (!node)
        return;
    **tail = node;
    *tail = &node->next;
}

/* Arguments up to the bracket that closes them. */
static jinja_node *parse_arguments(parser *p)
{
    jinja_node *list = NULL, **tail = &list;
    while (p->status == GAC_OK && !take(p, ")")) {
        jinja_node *argument = make(p, JINJA_ARGUMENT, NULL, NULL);
        if (!argument)
            return NULL;
        if (p->at->kind == JINJA_TOKEN_NAME && p->at[1].kind == JINJA_TOKEN_OPERATOR &&
            p->at[1].n == 1 && *p->at[1].text == '=') {
            argument->name = take_name(p);
            need(p, "=");
        }
        argument->a = parse_choice(p);
        append(&tail, argument);
        if (!is(p, JINJA_TOKEN_OPERATOR, ")"))
            need(p, ",");
    }
    return list;
}

static jinja_node *parse_strings(parser *p)
{
    json_t *all = jinja_unquote(p->at->text, p->at->n);
    p->at++;
    while (all && p->at->kind == JINJA_TOKEN_STRING) { /* neighbours are one string */
        json_t *more = jinja_unquote(p->at->text, p->at->n);
        json_t *both =
            more ? json_sprintf("%s%s", json_string_value(all), json_string_value(more)) : NULL;
        json_decref(all);
        json_decref(more);
        all = both;
        p->at++;
    }
    return make_value(p, JINJA_VALUE, all);
}

static jinja_node *parse_number(parser *p)
{
    const jinja_token *t = p->at++;
    char text[20] = "";
    if (t->n >= sizeof text - 1)
        return refuse(p, "a number that is not known");
    memcpy(text, t->text, t->n);
    return make_value(p, JINJA_VALUE,
                      strchr(text, '.') ? json_real(strtod(text, NULL))
                                        : json_integer(strtoll(text, NULL, 10)));
}

/* A list, or what is in round brackets: a value, or a list of several. */
static jinja_node *parse_list(parser *p, const char *close)
{
    jinja_node *list = make(p, JINJA_LIST, NULL, NULL), *only = NULL;
    jinja_node **tail = list ? &list->arguments : NULL;
    int n = 0;
    bool comma = false;
    while (p->status == GAC_OK && !take(p, close)) {
        only = parse_choice(p);
        append(&tail, make(p, JINJA_ARGUMENT, only, NULL));
        n++;
        comma = take(p, ",");
        if (!comma && !is(p, JINJA_TOKEN_OPERATOR, close))
            need(p, ",");
    }
    return *close == ')' && n == 1 && !comma ? only : list;
}

static jinja_node *parse_dict(parser *p)
{
    jinja_node *dict = make(p, JINJA_DICT, NULL, NULL);
    jinja_node **tail = dict ? &dict->arguments : NULL;
    while (p->status == GAC_OK && !take(p, "}")) {
        jinja_node *key = parse_choice(p);
        need(p, ":");
        append(&tail, make(p, JINJA_ARGUMENT, key, parse_choice(p)));
        if (!is(p, JINJA_TOKEN_OPERATOR, "}"))
            need(p, ",");
    }
    return dict;
}

static jinja_node *parse_primary(parser *p)
{
    static const struct {
        const char *name;
        json_type type;
    } constants[] = { { "true", JSON_TRUE },   { "True", JSON_TRUE }, { "false", JSON_FALSE },
                      { "False", JSON_FALSE }, { "none", JSON_NULL }, { "None", JSON_NULL } };
    if (p->status != GAC_OK)
        return NULL;
    if (p->at->kind == JINJA_TOKEN_STRING)
        return parse_strings(p);
    if (p->at->kind == JINJA_TOKEN_NUMBER)
        return parse_number(p);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (is_word(p, constants[i].name)) {
            p->at++;
            return make_value(p, JINJA_VALUE,
                              constants[i].type == JSON_NULL ? json_null() : json_boolean(i < 2));
        }
    if (p->at->kind == JINJA_TOKEN_NAME)
        return make_named(p, JINJA_NAME, NULL, take_name(p));
    if (take(p, "("))
        return parse_list(p, ")");
    if (take(p, "["))
        return parse_list(p, "]");
    if (take(p, "{"))
        return parse_dict(p);
    return refuse(p, "a value is expected");
}

/* What is in square brackets after a value. */
static jinja_node *parse_subscript(parser *p, jinja_node *value)
{
    jinja_node *bounds[3] = { NULL, NULL, NULL };
    int n = 0;
    bool sliced = false;
    for (; n < 3; n++) {
        if (!is(p, JINJA_TOKEN_OPERATOR, ":") && !is(p, JINJA_TOKEN_OPERATOR, "]"))
            bounds[n] = parse_choice(p);
        if (!take(p, ":"))
            break;
        sliced = true;
    }
    need(p, "]");
    jinja_node *node = make(p, sliced ? JINJA_SLICE : JINJA_ITEM, value, bounds[0]);
    if (node && !sliced && !bounds[0])
        return refuse(p, "an index is expected");
    if (node) {
        node->c = bounds[1];
        node->d = bounds[2];
    }
    return node;
}

static jinja_node *parse_postfix(parser *p, jinja_node *value)
{
    while (p->status == GAC_OK) {
        if (take(p, ".")) {
            value = make_named(p, JINJA_ATTRIBUTE, value, take_name(p));
        } else if (take(p, "[")) {
            value = parse_subscript(p, value);
        } else if (take(p, "(")) {
            jinja_node *call = make(p, JINJA_CALL, value, NULL);
            if (call)
                call->arguments = parse_arguments(p);
            value = call;
        } else {
            break;
        }
    }
    return value;
}

static jinja_node *negated(parser *p, jinja_node *value)
{
    return make(p, JINJA_NOT, value, NULL);
}

/* is NAME, is NAME(ARGUMENTS) or is NAME ARGUMENT */
static jinja_node *parse_test(parser *p, jinja_node *value)
{
    bool no = take(p, "not");
    jinja_node *test = make_named(p, JINJA_TEST, value, take_name(p));
    if (!test)
        return NULL;
    if (take(p, "(")) {
        test->arguments = parse_arguments(p);
    } else if (p->at->kind == JINJA_TOKEN_STRING || p->at->kind == JINJA_TOKEN_NUMBER ||
               is(p, JINJA_TOKEN_OPERATOR, "[") ||
               (p->at->kind == JINJA_TOKEN_NAME && !is_word(p, "else") && !is_word(p, "or") &&
                !is_word(p, "and") && !is_word(p, "if") && !is_word(p, "is"))) {
        test->arguments = make(p, JINJA_ARGUMENT, parse_postfix(p, parse_primary(p)), NULL);
    }
    return no ? negated(p, test) : test;
}

static jinja_node *parse_filters(parser *p, jinja_node *value)
{
    while (p->status == GAC_OK) {
        if (take(p, "|")) {
            jinja_node *filter = make_named(p, JINJA_FILTER, value, take_name(p));
            if (filter && take(p, "("))
                filter->arguments = parse_arguments(p);
            value = filter;
        } else if (take(p, "is")) {
            value = parse_test(p, value);
            if (is_word(p, "is"))
                return refuse(p, "a chain of tests");
        } else {
            break;
        }
    }
    return value;
}

static jinja_node *parse_unary(parser *p, bool filters)
{
    if (++p->depth > MAX_DEPTH)
        return refuse(p, "it is nested too deeply");
    jinja_node *value;
    if (take(p, "-"))
        value = make(p, JINJA_NEGATE, parse_unary(p, false), NULL);
    else
        value = parse_postfix(p, parse_primary(p));
    p->depth--;
    return filters ? parse_filters(p, value) : value;
}

/* Levels of binary operators, the loosest first. */
static jinja_node *parse_binary(parser *p, int level)
{
    static const char *const levels[][6] = { { "or", NULL },
                                             { "and", NULL },
                                             { NULL },
                                             { "==", "!=", "<", ">", "<=", ">=" },
                                             { "+", "-", NULL },
                                             { "~", NULL },
                                             { "*", "/", "//", "%", NULL } };
    const int n_levels = (int)(sizeof levels / sizeof *levels), not_level = 2, compared = 3;
    if (level == n_levels)
        return parse_unary(p, true);
    if (level == not_level && is_word(p, "not")) {
        if (++p->depth > MAX_DEPTH)
            return refuse(p, "it is nested too deeply");
        p->at++;
        jinja_node *value = negated(p, parse_binary(p, not_level));
        p->depth--;
        return value;
    }
    jinja_node *value = parse_binary(p, level + 1);
    int n_taken = 0;
    while (p->status == GAC_OK) {
        const char *op = NULL;
        bool no = false;
        for (int i = 0; i < 6 && levels[level][i] && !op; i++)
            op = take(p, levels[level][i]) ? levels[level][i] : NULL;
        if (level == compared && !op) {
            no = is_word(p, "not") && p->at[1].kind == JINJA_TOKEN_NAME && p->at[1].n == 2 &&
                 memcmp(p->at[1].text, "in", 2) == 0;
            p->at += no;
            op = take(p, "in") ? "in" : NULL;
        }
        if (!op)
            return value;
        if (level == compared && n_taken++ > 0)
            return refuse(p, "a chain of comparisons is not known, before");
        jinja_node *both = make(p, JINJA_BINARY, value, parse_binary(p, level + 1));
        if (both)
            both->name = op;
        value = no ? negated(p, both) : both;
    }
    return value;
}

/* a if b else c */
static jinja_node *parse_choice(parser *p)
{
    if (++p->depth > MAX_DEPTH)
        return refuse(p, "it is nested too deeply");
    jinja_node *value = parse_binary(p, 0);
    while (take(p, "if")) {
        jinja_node *choice = make(p, JINJA_CHOOSE, value, parse_binary(p, 0));
        if (choice && take(p, "else"))
            choice->c = parse_choice(p);
        value = choice;
    }
    p->depth--;
    return value;
}

/* Steps over {% WORD %}. */
static void close_block(parser *p, const char *word)
{
    need_end(p, JINJA_TOKEN_BLOCK);
    need(p, word);
    need_end(p, JINJA_TOKEN_BLOCK_END);
}

static jinja_node *parse_if(parser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    if (++p->depth > MAX_DEPTH)
        return refuse(p, "it is nested too deeply");
    jinja_node *node = make(p, JINJA_IF, parse_choice(p), NULL);
    need_end(p, JINJA_TOKEN_BLOCK_END);
    if (!node)
        return NULL;
    node->body = parse_body(p, ends);
    if (p->status == GAC_OK)
        p->at++; /* {% */
    if (take(p, "elif")) {
        node->otherwise = parse_if(p);
    } else if (take(p, "else")) {
        need_end(p, JINJA_TOKEN_BLOCK_END);
        node->otherwise = parse_body(p, last);
        close_block(p, "endif");
    } else {
        need(p, "endif");
        need_end(p, JINJA_TOKEN_BLOCK_END);
    }
    p->depth--;
    return node;
}

static jinja_node *parse_for(parser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    static const char *const last[] = { "endfor", NULL };
    jinja_node *node = make(p, JINJA_FOR, NULL, NULL);
    if (!node)
        return NULL;
    jinja_node **tail = &node->arguments;
    bool open = take(p, "(");
    do
        append(&tail, make_named(p, JINJA_ARGUMENT, NULL, take_name(p)));
    while (take(p, ","));
    if (open)
        need(p, ")");
    need(p, "in");
    node->a = parse_binary(p, 0);
    if (take(p, "if"))
        node->b = parse_binary(p, 0);
    need_end(p, JINJA_TOKEN_BLOCK_END);
    node->body = parse_body(p, ends);
    if (p->status == GAC_OK && p->at[1].n == 4) { /* {% else */
        p->at += 2;
        need_end(p, JINJA_TOKEN_BLOCK_END);
        node->otherwise = parse_body(p, last);
    }
    close_block(p, "endfor");
    return node;
}

static jinja_node *parse_set(parser *p)
{
    static const char *const ends[] = { "endset", NULL };
    jinja_node *node = make_named(p, JINJA_SET, NULL, take_name(p));
    if (!node)
        return NULL;
    if (take(p, ".")) {
        node->a = make_named(p, JINJA_ATTRIBUTE, make_named(p, JINJA_NAME, NULL, node->name),
                             take_name(p));
        node->name = NULL;
    }
    if (take(p, "=")) {
        node->b = parse_choice(p);
        need_end(p, JINJA_TOKEN_BLOCK_END);
        return node;
    }
    need_end(p, JINJA_TOKEN_BLOCK_END);
    node->body = parse_body(p, ends);
    close_block(p, "endset");
    return node;
}

static jinja_node *parse_macro(parser *p)
{
    static const char *const ends[] = { "endmacro", NULL };
    jinja_node *node = make_named(p, JINJA_MACRO, NULL, take_name(p));
    need(p, "(");
    if (!node || p->status != GAC_OK)
        return NULL;
    jinja_node **tail = &node->arguments;
    while (p->status == GAC_OK && !take(p, ")")) {
        jinja_node *parameter = make_named(p, JINJA_ARGUMENT, NULL, take_name(p));
        if (parameter && take(p, "="))
            parameter->a = parse_choice(p);
        append(&tail, parameter);
        if (!is(p, JINJA_TOKEN_OPERATOR, ")"))
            need(p, ",");
    }
    need_end(p, JINJA_TOKEN_BLOCK_END);
    node->body = parse_body(p, ends);
    close_block(p, "endmacro");
    return node;
}

static jinja_node *parse_statement(parser *p)
{
    static const char *const ends[] = { "endgeneration", NULL };
    jinja_node *node;
    if (take(p, "if"))
        return parse_if(p);
    if (take(p, "for"))
        return parse_for(p);
    if (take(p, "set"))
        return parse_set(p);
    if (take(p, "macro"))
        return parse_macro(p);
    if (take(p, "generation")) {
        need_end(p, JINJA_TOKEN_BLOCK_END);
        if ((node = make(p, JINJA_GROUP, NULL, NULL)))
            node->body = parse_body(p, ends);
        close_block(p, "endgeneration");
        return node;
    }
    if (is_word(p, "break") || is_word(p, "continue")) {
        node = make(p, is_word(p, "break") ? JINJA_BREAK : JINJA_CONTINUE, NULL, NULL);
        p->at++;
        need_end(p, JINJA_TOKEN_BLOCK_END);
        return node;
    }
    return refuse(p, "a statement that is not known");
}

/* Reads statements up to a block that begins with one of the words, which stays. Without
 * words, up to the end. */
static jinja_node *parse_body(parser *p, const char *const ends[])
{
    jinja_node *list = NULL, **tail = &list;
    if (++p->depth > MAX_DEPTH)
        return refuse(p, "it is nested too deeply");
    while (p->status == GAC_OK && (ends || p->at->kind != JINJA_TOKEN_END)) {
        const jinja_token *t = p->at++;
        if (t->kind == JINJA_TOKEN_DATA) {
            append(&tail, make_value(p, JINJA_TEXT, json_stringn(t->text, t->n)));
        } else if (t->kind == JINJA_TOKEN_PRINT) {
            append(&tail, make(p, JINJA_PRINT, parse_choice(p), NULL));
            need_end(p, JINJA_TOKEN_PRINT_END);
        } else if (t->kind == JINJA_TOKEN_BLOCK) {
            int i = 0;
            while (ends && ends[i] && !is_word(p, ends[i]))
                i++;
            if (ends && ends[i]) {
                p->at--;
                break;
            }
            append(&tail, parse_statement(p));
        } else {
            p->at--;
            refuse(p, "a block has no end");
        }
    }
    p->depth--;
    return list;
}

gac_status jinja_parse(const char *text, jinja_template *out, gac_error *err)
{
    jinja_token *tokens = NULL;
    size_t n = strlen(text);
    *out = (jinja_template){ .constants = json_array() };
    n -= n > 0 && text[n - 1] == '\n'; /* Jinja drops the last line end */
    gac_status status =
        out->constants ? jinja_lex(text, n, &tokens, err) : gac_error_no_memory(err);
    if (status == GAC_OK) {
        parser p = { .template = out, .at = tokens, .err = err };
        out->body = parse_body(&p, NULL);
        status = p.status;
    }
    free(tokens);
    return status;
}

void jinja_dispose(jinja_template *template)
{
    json_decref(template->constants);
    gac_arena_free(&template->arena);
    *template = (jinja_template){ .body = NULL };
}

/* Chat templates are programs in Jinja. This runs the part of the language that they use: it
 * reads values, makes text and nothing else. What is not known is refused, never guessed.
 *
 * Values are those of JSON; NULL is Jinja's undefined. */
#ifndef GAC_TOKENIZER_JINJA_H
#define GAC_TOKENIZER_JINJA_H

#include <gac/base.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/utf8.h"

typedef enum jinja_kind {
    /* statements */
    JINJA_TEXT,  /* value */
    JINJA_PRINT, /* a */
    JINJA_IF,    /* a, body, otherwise */
    JINJA_FOR,   /* arguments: names; a: list, b: condition or NULL; body, otherwise */
    JINJA_SET,   /* name, or a: attribute; b, or body if b is NULL */
    JINJA_MACRO, /* name, arguments: names with their defaults in a; body */
    JINJA_GROUP, /* body */
    JINJA_BREAK,
    JINJA_CONTINUE,
    /* expressions */
    JINJA_VALUE,     /* value */
    JINJA_NAME,      /* name */
    JINJA_LIST,      /* arguments */
    JINJA_DICT,      /* arguments: keys in a, values in b */
    JINJA_ATTRIBUTE, /* a.name */
    JINJA_ITEM,      /* a[b] */
    JINJA_SLICE,     /* a[b:c:d] */
    JINJA_CALL,      /* a(arguments); an argument has its value in a, and perhaps a name */
    JINJA_FILTER,    /* a | name(arguments) */
    JINJA_TEST,      /* a is name(arguments) */
    JINJA_NOT,       /* a */
    JINJA_NEGATE,    /* a */
    JINJA_BINARY,    /* a name b */
    JINJA_CHOOSE,    /* a if b else c, c perhaps NULL */
    JINJA_ARGUMENT   /* in lists of arguments */
} jinja_kind;

typedef struct jinja_node {
    jinja_kind kind;
    const char *name;
    json_t *value; /* borrowed from the template */
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node *body, *otherwise, *arguments;
    struct jinja_node *next; /* in lists */
} jinja_node;

typedef struct jinja_template {
    gac_arena arena;
    json_t *constants; /* a list that owns all values of nodes */
    jinja_node *body;
} jinja_template;

typedef enum jinja_token_kind {
    JINJA_TOKEN_DATA,
    JINJA_TOKEN_PRINT, /* {{ */
    JINJA_TOKEN_PRINT_END,
    JINJA_TOKEN_BLOCK, /* {% */
    JINJA_TOKEN_BLOCK_END,
    JINJA_TOKEN_NAME,
    JINJA_TOKEN_STRING,
    JINJA_TOKEN_NUMBER,
    JINJA_TOKEN_OPERATOR,
    JINJA_TOKEN_END
} jinja_token_kind;

typedef struct jinja_token {
    jinja_token_kind kind;
    const char *text; /* with quotes, for strings */
    size_t n;
} jinja_token;

/* Divides a template into tokens, without the white space that tags take away. The text must
 * outlive them; *out is malloc'ed. */
gac_status jinja_lex(const char *text, size_t n, jinja_token **out, gac_error *err);
/* Returns the string that a token with quotes means, or NULL. */
json_t *jinja_unquote(const char *text, size_t n);

/* Reads a template. GAC_BAD_INPUT if it uses what is not known here. Dispose of it in any case. */
gac_status jinja_parse(const char *text, jinja_template *out, gac_error *err);
void jinja_dispose(jinja_template *template);

/* Runs a template with the variables of an object. *out is malloc'ed. GAC_USAGE with the
 * template's own words if it raises an exception, GAC_BAD_INPUT if it cannot be run here. */
gac_status jinja_render(const jinja_template *template, json_t *variables, char **out,
                        gac_error *err);

/* Inside. */

typedef struct jinja_scope {
    json_t *variables;
    const struct jinja_scope *outer; /* or NULL */
} jinja_scope;

typedef struct jinja_run {
    jinja_scope *scope;
    const jinja_scope *global;
    byte_buffer *out;
    const jinja_node *macros[64];
    int n_macros;
    json_t *namespaces; /* a list of all there are */
    size_t work, n_containers;
    int depth;
    bool broke, continued;
    gac_status status;
    gac_error *err;
} jinja_run;

/* Evaluates an expression. The caller owns the value. Once run->status is not GAC_OK, nothing
 * has a meaning any more. */
json_t *jinja_eval(jinja_run *run, const jinja_node *node);
void jinja_run_body(jinja_run *run, const jinja_node *body);
/* Calls a macro, a function or a method; arguments are those of node. */
json_t *jinja_call(jinja_run *run, const jinja_node *node);
json_t *jinja_method(jinja_run *run, const json_t *self, const char *name, const jinja_node *node);
json_t *jinja_filter(jinja_run *run, json_t *value, const jinja_node *node);
bool jinja_test(jinja_run *run, const json_t *value, const char *name, const json_t *other);
json_t *jinja_operate(jinja_run *run, const char *op, const json_t *a, const json_t *b);

/* Says why a template cannot be run, once. Returns NULL. */
json_t *jinja_fail(jinja_run *run, const char *format, ...) GAC_PRINTF(2, 3);
/* Counts work. False, with a failure, where it is too much. */
bool jinja_spend(jinja_run *run, size_t n);
bool jinja_is_namespace(const jinja_run *run, const json_t *value);

/* Arguments of a call: number index, or the one of that name. The caller owns it; NULL without. */
json_t *jinja_argument(jinja_run *run, const jinja_node *node, int index, const char *name);
int jinja_count(const jinja_node *list);

/* Values. */
bool jinja_truth(const json_t *value);
bool jinja_equal(const json_t *a, const json_t *b);
bool jinja_contains(jinja_run *run, const json_t *container, const json_t *value);
json_t *jinja_string(jinja_run *run, const char *text, size_t n);
json_t *jinja_list(jinja_run *run);                             /* an empty one */
bool jinja_append(jinja_run *run, json_t *list, json_t *value); /* takes the value */
/* What is printed of a value. */
json_t *jinja_text_of(jinja_run *run, const json_t *value);
json_t *jinja_slice(jinja_run *run, const json_t *value, const json_t *const bounds[3]);
json_t *jinja_item(jinja_run *run, const json_t *value, const json_t *key);
/* What a loop goes through. */
json_t *jinja_items(jinja_run *run, const json_t *value);
json_t *jinja_strip(jinja_run *run, const json_t *value, const json_t *characters, bool left,
                    bool right);
json_t *jinja_replace(jinja_run *run, const json_t *value, const json_t *old, const json_t *by);
json_t *jinja_case(jinja_run *run, const json_t *value, const char *how);

#endif

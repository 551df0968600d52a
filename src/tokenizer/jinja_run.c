/* Running a template: statements and expressions. */
#include "tokenizer/jinja.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 200, MAX_WORK = 1 << 24, MAX_OUT = 1 << 22 };
enum { NODE_WORK = 10, LOOP_WORK = 200 }; /* beside a byte of text */

json_t *jinja_fail(jinja_run *run, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (run->status == GAC_OK)
        run->status = gac_error_set(run->err, GAC_BAD_INPUT, "%s", text);
    return NULL;
}

bool jinja_spend(jinja_run *run, size_t n)
{
    run->work += n;
    if (run->work > MAX_WORK)
        jinja_fail(run, "it runs for too long");
    return run->status == GAC_OK;
}

bool jinja_is_namespace(const jinja_run *run, const json_t *value)
{
    for (size_t i = 0; json_is_object(value) && i < json_array_size(run->namespaces); i++)
        if (json_array_get(run->namespaces, i) == value)
            return true;
    return false;
}

static bool is_one_of(const char *name, const char *const names[])
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static json_t *look_up(jinja_run *run, const char *name)
{
    static const char *const functions[] = { "strftime_now", "raise_exception",
                                             "namespace",    "range",
                                             "dict",         NULL };
    static const char *const others[] = { "varargs", "kwargs", "caller", "self",    "super",
                                          "cycler",  "joiner", "lipsum", "context", NULL };
    for (const jinja_scope *s = run->scope; s; s = s->outer) {
        json_t *value = json_object_get(s->variables, name);
        if (value)
            return json_incref(value);
    }
    for (int i = 0; i < run->n_macros; i++)
        if (strcmp(run->macros[i]->name, name) == 0)
            return json_true();
    if (is_one_of(name, others))
        jinja_fail(run, "%s is not known", name);
    return is_one_of(name, functions) ? json_true() : NULL; /* they are defined */
}

/* Expressions. */

static json_t *make_list(jinja_run *run, const jinja_node *node)
{
    json_t *list = jinja_list(run);
    for (const jinja_node *i = node->arguments; i && list; i = i->next)
        if (!jinja_append(run, list, jinja_eval(run, i->a)))
            break;
    return list;
}

static json_t *make_dict(jinja_run *run, const jinja_node *node)
{
    json_t *dict = json_object(), *count = jinja_list(run);
    json_decref(count);
    for (const jinja_node *i = node->arguments; i && dict && run->status == GAC_OK; i = i->next) {
        json_t *key = jinja_eval(run, i->a), *value = jinja_eval(run, i->b);
        if (!json_is_string(key) || jinja_is_namespace(run, value) ||
            json_object_set(dict, json_string_value(key), value) != 0)
            jinja_fail(run, "an object with a key or a value that is not known");
        json_decref(key);
        json_decref(value);
    }
    return dict ? dict : jinja_fail(run, "no memory");
}

static json_t *read_slice(jinja_run *run, const jinja_node *node)
{
    json_t *value = jinja_eval(run, node->a);
    json_t *bounds[3] = { node->b ? jinja_eval(run, node->b) : NULL,
                          node->c ? jinja_eval(run, node->c) : NULL,
                          node->d ? jinja_eval(run, node->d) : NULL };
    const json_t *const read[3] = { bounds[0], bounds[1], bounds[2] };
    json_t *result = run->status == GAC_OK ? jinja_slice(run, value, read) : NULL;
    for (int i = 0; i < 3; i++)
        json_decref(bounds[i]);
    json_decref(value);
    return result;
}

static json_t *read_part(jinja_run *run, const jinja_node *node)
{
    json_t *value = jinja_eval(run, node->a);
    json_t *key = node->kind == JINJA_ITEM ? jinja_eval(run, node->b) : json_string(node->name);
    json_t *result = NULL;
    if (run->status == GAC_OK && node->kind == JINJA_ATTRIBUTE && value && !json_is_object(value))
        result = NULL; /* none has any */
    else if (run->status == GAC_OK)
        result = jinja_item(run, value, key);
    json_decref(key);
    json_decref(value);
    return result;
}

/* a and b, a or b: the one that decides */
static json_t *decide(jinja_run *run, const jinja_node *node)
{
    json_t *a = jinja_eval(run, node->a);
    if (run->status == GAC_OK && jinja_truth(a) == (*node->name == 'a')) {
        json_decref(a);
        return jinja_eval(run, node->b);
    }
    return a;
}

static json_t *choose(jinja_run *run, const jinja_node *node)
{
    json_t *condition = jinja_eval(run, node->b);
    bool is = jinja_truth(condition);
    json_decref(condition);
    if (run->status != GAC_OK || (!is && !node->c))
        return NULL;
    return jinja_eval(run, is ? node->a : node->c);
}

static json_t *concatenate(jinja_run *run, const json_t *a, const json_t *b)
{
    json_t *result = NULL;
    byte_buffer both = { 0 };
    if (gac_bytes_append(&both, json_string_value(a), json_string_length(a)) &&
        gac_bytes_append(&both, json_string_value(b), json_string_length(b)))
        result = jinja_string(run, both.data ? both.data : "", both.n);
    else
        jinja_fail(run, "no memory");
    gac_bytes_dispose(&both);
    return result;
}

static json_t *calculate(jinja_run *run, const char *op, const json_t *a, const json_t *b)
{
    const int64_t x = json_integer_value(a), y = json_integer_value(b);
    int64_t z = 0;
    if (!json_is_integer(a) || !json_is_integer(b))
        return jinja_fail(run, "\"%s\" of values that are not known to it", op);
    bool fits = true;
    if (*op == '+')
        fits = gac_add_i64(x, y, &z);
    else if (*op == '-')
        fits = !__builtin_sub_overflow(x, y, &z);
    else if (*op == '*')
        fits = !__builtin_mul_overflow(x, y, &z);
    else if (y <= 0 || (*op == '/' && !op[1]))
        fits = false;
    else if (*op == '%')
        z = (x % y + y) % y;
    else
        z = x / y - (x % y < 0);
    return fits ? json_integer(z) : jinja_fail(run, "arithmetic that is not known");
}

static json_t *compare(jinja_run *run, const char *op, const json_t *a, const json_t *b)
{
    int order; /* of a and b */
    if (json_is_string(a) && json_is_string(b))
        order = strcmp(json_string_value(a), json_string_value(b));
    else if (json_is_integer(a) && json_is_integer(b))
        order = (json_integer_value(a) > json_integer_value(b)) -
                (json_integer_value(a) < json_integer_value(b));
    else
        return jinja_fail(run, "\"%s\" of values that are not known to it", op);
    if (op[1] == '=' && order == 0)
        return json_true();
    return json_boolean(*op == '<' ? order < 0 : order > 0);
}

json_t *jinja_operate(jinja_run *run, const char *op, const json_t *a, const json_t *b)
{
    if (strcmp(op, "in") == 0)
        return json_boolean(jinja_contains(run, b, a));
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
        return json_boolean(jinja_equal(a, b) == (*op == '='));
    if (*op == '<' || *op == '>')
        return compare(run, op, a, b);
    if (*op == '+' && json_is_string(a) && json_is_string(b))
        return concatenate(run, a, b);
    if (*op == '~') {
        json_t *x = jinja_text_of(run, a), *y = jinja_text_of(run, b);
        json_t *both = run->status == GAC_OK ? concatenate(run, x, y) : NULL;
        json_decref(x);
        json_decref(y);
        return both;
    }
    if (*op == '+' && json_is_array(a) && json_is_array(b)) {
        json_t *list = jinja_list(run);
        if (list && jinja_spend(run, json_array_size(a) + json_array_size(b)) &&
            (json_array_extend(list, (json_t *)(uintptr_t)a) != 0 ||
             json_array_extend(list, (json_t *)(uintptr_t)b) != 0))
            jinja_fail(run, "no memory");
        return list;
    }
    return calculate(run, op, a, b);
}

static json_t *eval_binary(jinja_run *run, const jinja_node *node)
{
    if (strcmp(node->name, "and") == 0 || strcmp(node->name, "or") == 0)
        return decide(run, node);
    json_t *a = jinja_eval(run, node->a), *b = jinja_eval(run, node->b);
    json_t *result = run->status == GAC_OK ? jinja_operate(run, node->name, a, b) : NULL;
    json_decref(a);
    json_decref(b);
    return result;
}

static json_t *eval_test(jinja_run *run, const jinja_node *node)
{
    json_t *value = jinja_eval(run, node->a);
    json_t *other = node->arguments ? jinja_eval(run, node->arguments->a) : NULL;
    bool is = run->status == GAC_OK && jinja_test(run, value, node->name, other);
    json_decref(value);
    json_decref(other);
    return json_boolean(is);
}

static json_t *eval_kind(jinja_run *run, const jinja_node *node)
{
    json_t *value, *result = NULL;
    switch (node->kind) {
    case JINJA_VALUE:
        return json_incref(node->value);
    case JINJA_NAME:
        return look_up(run, node->name);
    case JINJA_LIST:
        return make_list(run, node);
    case JINJA_DICT:
        return make_dict(run, node);
    case JINJA_ATTRIBUTE:
    case JINJA_ITEM:
        return read_part(run, node);
    case JINJA_SLICE:
        return read_slice(run, node);
    case JINJA_CALL:
        return jinja_call(run, node);
    case JINJA_BINARY:
        return eval_binary(run, node);
    case JINJA_CHOOSE:
        return choose(run, node);
    case JINJA_TEST:
        return eval_test(run, node);
    default:
        break;
    }
    value = jinja_eval(run, node->a);
    if (run->status == GAC_OK && node->kind == JINJA_FILTER)
        result = jinja_filter(run, value, node);
    else if (run->status == GAC_OK && node->kind == JINJA_NOT)
        result = json_boolean(!jinja_truth(value));
    else if (run->status == GAC_OK && json_is_integer(value) &&
             json_integer_value(value) > INT64_MIN)
        result = json_integer(-json_integer_value(value));
    else
        jinja_fail(run, "the negative of something that is no number");
    json_decref(value);
    return result;
}

json_t *jinja_eval(jinja_run *run, const jinja_node *node)
{
    if (!jinja_spend(run, NODE_WORK))
        return NULL;
    if (++run->depth > MAX_DEPTH)
        return jinja_fail(run, "it is nested too deeply");
    json_t *value = eval_kind(run, node);
    run->depth--;
    if (run->status == GAC_OK)
        return value;
    json_decref(value);
    return NULL;
}

/* Statements. */

static void print(jinja_run *run, const json_t *value)
{
    json_t *text = jinja_text_of(run, value);
    if (text && jinja_spend(run, json_string_length(text)) &&
        (run->out->n > MAX_OUT ||
         !gac_bytes_append(run->out, json_string_value(text), json_string_length(text))))
        jinja_fail(run, "its text is too long");
    json_decref(text);
}

static void set(jinja_run *run, json_t *variables, const char *name, json_t *value)
{
    if (!value) {
        json_object_del(variables, name);
        value = look_up(run, name);
        if (value)
            jinja_fail(run, "%.40s becomes undefined", name);
        json_decref(value);
    } else if (run->status == GAC_OK && json_object_set(variables, name, value) != 0)
        jinja_fail(run, "no memory");
}

static void run_set(jinja_run *run, const jinja_node *node)
{
    json_t *value = NULL;
    if (node->b) {
        value = jinja_eval(run, node->b);
    } else {
        byte_buffer text = { 0 }, *kept = run->out;
        run->out = &text;
        jinja_run_body(run, node->body);
        run->out = kept;
        value = jinja_string(run, text.data ? text.data : "", text.n);
        gac_bytes_dispose(&text);
    }
    if (run->status == GAC_OK && !node->a) {
        set(run, run->scope->variables, node->name, value);
    } else if (run->status == GAC_OK) {
        json_t *space = jinja_eval(run, node->a->a);
        if (!jinja_is_namespace(run, space) || jinja_is_namespace(run, value))
            jinja_fail(run, "it sets a part of something that is no namespace");
        else
            set(run, space, node->a->name, value);
        json_decref(space);
    }
    json_decref(value);
}

/* Gives the names of a loop their values. */
static void set_targets(jinja_run *run, const jinja_node *node, json_t *item)
{
    const int n = jinja_count(node->arguments);
    int i = 0;
    if (n > 1 && json_array_size(item) != (size_t)n) {
        jinja_fail(run, "a loop with %d names goes through other things", n);
        return;
    }
    for (const jinja_node *name = node->arguments; name; name = name->next, i++)
        set(run, run->scope->variables, name->name, n > 1 ? json_array_get(item, (size_t)i) : item);
}

static void set_loop(jinja_run *run, const json_t *items, size_t i)
{
    const json_int_t n = (json_int_t)json_array_size(items), at = (json_int_t)i;
    json_t *loop =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:O*, s:O*}", "index", at + 1, "index0", at,
                  "revindex", n - at, "revindex0", n - at - 1, "length", n, "first", at == 0,
                  "last", at + 1 == n, "previtem", i > 0 ? json_array_get(items, i - 1) : NULL,
                  "nextitem", json_array_get(items, i + 1));
    if (!loop)
        jinja_fail(run, "no memory");
    set(run, run->scope->variables, "loop", loop);
    json_decref(loop);
}

/* The items that fulfil the condition of a loop. */
static json_t *keep_items(jinja_run *run, const jinja_node *node, json_t *items)
{
    json_t *kept = jinja_list(run);
    for (size_t i = 0; kept && i < json_array_size(items) && run->status == GAC_OK; i++) {
        set_targets(run, node, json_array_get(items, i));
        json_t *is = jinja_eval(run, node->b);
        if (jinja_truth(is))
            jinja_append(run, kept, json_incref(json_array_get(items, i)));
        json_decref(is);
    }
    json_decref(items);
    return kept;
}

static void run_for(jinja_run *run, const jinja_node *node)
{
    json_t *value = jinja_eval(run, node->a);
    json_t *items = run->status == GAC_OK ? jinja_items(run, value) : NULL;
    jinja_scope inner = { json_object(), run->scope };
    json_decref(value);
    if (!inner.variables)
        jinja_fail(run, "no memory");
    run->scope = &inner;
    if (node->b && run->status == GAC_OK)
        items = keep_items(run, node, items);
    for (size_t i = 0; i < json_array_size(items) && run->status == GAC_OK && !run->broke; i++) {
        if (!jinja_spend(run, LOOP_WORK))
            break;
        json_object_clear(inner.variables);
        set_loop(run, items, i);
        set_targets(run, node, json_array_get(items, i));
        jinja_run_body(run, node->body);
        run->continued = false;
    }
    run->broke = false;
    if (json_array_size(items) == 0 && run->status == GAC_OK) {
        json_object_clear(inner.variables); /* names of the condition */
        jinja_run_body(run, node->otherwise);
    }
    run->scope = (jinja_scope *)(uintptr_t)inner.outer;
    json_decref(inner.variables);
    json_decref(items);
}

static void run_statement(jinja_run *run, const jinja_node *node)
{
    json_t *value;
    switch (node->kind) {
    case JINJA_TEXT:
        print(run, node->value);
        return;
    case JINJA_PRINT:
        value = jinja_eval(run, node->a);
        if (run->status == GAC_OK)
            print(run, value);
        json_decref(value);
        return;
    case JINJA_IF:
        value = jinja_eval(run, node->a);
        if (run->status == GAC_OK)
            jinja_run_body(run, jinja_truth(value) ? node->body : node->otherwise);
        json_decref(value);
        return;
    case JINJA_FOR:
        run_for(run, node);
        return;
    case JINJA_SET:
        run_set(run, node);
        return;
    case JINJA_MACRO:
        if (run->n_macros == (int)(sizeof run->macros / sizeof *run->macros) ||
            run->scope != run->global)
            jinja_fail(run, "it has too many macros, or one inside a loop");
        else
            run->macros[run->n_macros++] = node;
        return;
    case JINJA_GROUP:
        jinja_run_body(run, node->body);
        return;
    default:
        run->broke = node->kind == JINJA_BREAK;
        run->continued = node->kind == JINJA_CONTINUE;
    }
}

void jinja_run_body(jinja_run *run, const jinja_node *body)
{
    if (++run->depth > MAX_DEPTH)
        jinja_fail(run, "it is nested too deeply");
    for (; body && !run->broke && !run->continued && jinja_spend(run, 1); body = body->next)
        run_statement(run, body);
    run->depth--;
}

gac_status jinja_render(const jinja_template *template, json_t *variables, char **out,
                        gac_error *err)
{
    byte_buffer text = { 0 };
    jinja_scope given = { variables, NULL }, own = { json_object(), &given };
    jinja_run run = {
        .scope = &own, .global = &own, .out = &text, .namespaces = json_array(), .err = err
    };
    if (!own.variables || !run.namespaces)
        jinja_fail(&run, "no memory");
    jinja_run_body(&run, template->body);
    if (run.status == GAC_OK && !gac_bytes_append(&text, "", 1))
        run.status = gac_error_no_memory(err);
    json_decref(own.variables);
    json_decref(run.namespaces);
    if (run.status == GAC_OK)
        *out = text.data;
    else
        gac_bytes_dispose(&text);
    return run.status;
}

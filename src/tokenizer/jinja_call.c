/* The functions, methods, filters and tests that templates use. */
#include "tokenizer/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int jinja_count(const jinja_node *list)
{
    int n = 0;
    for (; list; list = list->next)
        n++;
    return n;
}

json_t *jinja_argument(jinja_run *run, const jinja_node *node, int index, const char *name)
{
    int i = 0;
    for (const jinja_node *a = node->arguments; a; a = a->next) {
        if (a->name ? name && strcmp(a->name, name) == 0 : i++ == index)
            return jinja_eval(run, a->a);
    }
    return NULL;
}

/* Functions. */

/* namespace(a=1), dict(a=1) */
static json_t *make_object(jinja_run *run, const jinja_node *node, bool space)
{
    enum { MOST = 64 };
    json_t *made = json_object(), *counted = jinja_list(run);
    json_decref(counted);
    if (!made || (space && json_array_size(run->namespaces) >= MOST))
        jinja_fail(run, "it makes too many namespaces");
    for (const jinja_node *a = node->arguments; a && run->status == GAC_OK; a = a->next) {
        json_t *value = jinja_eval(run, a->a);
        if (!a->name || jinja_is_namespace(run, value))
            jinja_fail(run, "a namespace of something that is not known");
        else if (value && json_object_set(made, a->name, value) != 0)
            jinja_fail(run, "no memory");
        json_decref(value);
    }
    if (space && run->status == GAC_OK && json_array_append(run->namespaces, made) != 0)
        jinja_fail(run, "no memory");
    return made;
}

static json_t *raise_exception(jinja_run *run, const jinja_node *node)
{
    char q[200];
    json_t *why = jinja_argument(run, node, 0, NULL);
    if (run->status == GAC_OK)
        run->status = gac_error_set(
            run->err, GAC_USAGE, "%s",
            gac_quote(q, sizeof q, json_is_string(why) ? json_string_value(why) : "an exception"));
    json_decref(why);
    return NULL;
}

static json_t *now(jinja_run *run, const jinja_node *node)
{
    char text[200] = "";
    struct tm parts;
    time_t seconds = time(NULL);
    json_t *format = jinja_argument(run, node, 0, "format");
    const char *as = json_string_value(format);
    if (!as || !localtime_r(&seconds, &parts) ||
        (*as && strftime(text, sizeof text, as, &parts) == 0))
        jinja_fail(run, "strftime_now with a format that is not known");
    json_decref(format);
    return run->status == GAC_OK ? jinja_string(run, text, strlen(text)) : NULL;
}

static json_t *range(jinja_run *run, const jinja_node *node)
{
    enum { MOST = 10000 };
    json_t *a = jinja_argument(run, node, 0, NULL), *b = jinja_argument(run, node, 1, NULL);
    json_t *list = jinja_list(run);
    const json_int_t from = b ? json_integer_value(a) : 0;
    const json_int_t to = json_integer_value(b ? b : a);
    if (!json_is_integer(a) || (b && !json_is_integer(b)) || jinja_count(node->arguments) > 2 ||
        from < -MOST || to > MOST)
        jinja_fail(run, "a range that is not known");
    for (json_int_t i = from; list && i < to && run->status == GAC_OK; i++)
        jinja_append(run, list, json_integer(i));
    json_decref(a);
    json_decref(b);
    return list;
}

/* Finds a parameter's value among the arguments of a call. */
static json_t *macro_argument(jinja_run *run, const jinja_node *call, int index,
                              const jinja_node *parameter)
{
    json_t *value = jinja_argument(run, call, index, parameter->name);
    return value || !parameter->a || run->status != GAC_OK ? value : jinja_eval(run, parameter->a);
}

static json_t *call_macro(jinja_run *run, const jinja_node *macro, const jinja_node *call)
{
    byte_buffer text = { 0 }, *kept = run->out;
    jinja_scope inner = { json_object(), run->global }, *outer = run->scope;
    int i = 0;
    if (!inner.variables || jinja_count(call->arguments) > jinja_count(macro->arguments))
        jinja_fail(run, "a macro is called with other arguments than it has");
    for (const jinja_node *p = macro->arguments; p && run->status == GAC_OK; p = p->next, i++) {
        json_t *value = macro_argument(run, call, i, p);
        if (value ? json_object_set(inner.variables, p->name, value) != 0
                  : json_object_get(run->global->variables, p->name) != NULL)
            jinja_fail(run, "a macro lacks %.40s", p->name);
        json_decref(value);
    }
    run->scope = &inner;
    run->out = &text;
    if (run->status == GAC_OK)
        jinja_run_body(run, macro->body);
    run->scope = outer;
    run->out = kept;
    json_t *value =
        run->status == GAC_OK ? jinja_string(run, text.data ? text.data : "", text.n) : NULL;
    gac_bytes_dispose(&text);
    json_decref(inner.variables);
    return value;
}

json_t *jinja_call(jinja_run *run, const jinja_node *node)
{
    char q[80];
    const jinja_node *what = node->a;
    if (what->kind == JINJA_ATTRIBUTE) {
        json_t *self = jinja_eval(run, what->a);
        json_t *value = run->status == GAC_OK ? jinja_method(run, self, what->name, node) : NULL;
        json_decref(self);
        return value;
    }
    if (what->kind != JINJA_NAME)
        return jinja_fail(run, "it calls something that is no function");
    for (int i = run->n_macros - 1; i >= 0; i--)
        if (strcmp(run->macros[i]->name, what->name) == 0)
            return call_macro(run, run->macros[i], node);
    if (strcmp(what->name, "namespace") == 0 || strcmp(what->name, "dict") == 0)
        return make_object(run, node, *what->name == 'n');
    if (strcmp(what->name, "raise_exception") == 0)
        return raise_exception(run, node);
    if (strcmp(what->name, "strftime_now") == 0)
        return now(run, node);
    if (strcmp(what->name, "range") == 0)
        return range(run, node);
    return jinja_fail(run, "function %s is not known", gac_quote(q, sizeof q, what->name));
}

/* Methods. */

static json_t *split(jinja_run *run, const json_t *self, const jinja_node *node)
{
    json_t *by = jinja_argument(run, node, 0, "sep"), *most = jinja_argument(run, node, 1, NULL);
    json_t *list = jinja_list(run);
    const char *at = json_string_value(self), *sep = json_string_value(by), *next;
    const char *end = at + json_string_length(self);
    json_int_t left = json_is_integer(most) ? json_integer_value(most) : -1;
    if (!sep || !*sep)
        jinja_fail(run, "a text is split at something that is not known");
    while (run->status == GAC_OK && left-- != 0 &&
           (next = memmem(at, (size_t)(end - at), sep, strlen(sep)))) {
        jinja_append(run, list, jinja_string(run, at, (size_t)(next - at)));
        at = next + strlen(sep);
    }
    if (run->status == GAC_OK)
        jinja_append(run, list, jinja_string(run, at, (size_t)(end - at)));
    json_decref(by);
    json_decref(most);
    return list;
}

static bool touches(const json_t *self, const json_t *with, bool start)
{
    const size_t n = json_string_length(with), all = json_string_length(self);
    return json_is_string(with) && n <= all &&
           memcmp(json_string_value(self) + (start ? 0 : all - n), json_string_value(with), n) == 0;
}

static json_t *starts_or_ends(jinja_run *run, const json_t *self, bool start,
                              const jinja_node *node)
{
    json_t *with = jinja_argument(run, node, 0, NULL);
    bool is = touches(self, with, start);
    for (size_t i = 0; i < json_array_size(with); i++)
        is = is || touches(self, json_array_get(with, i), start);
    if (!json_is_string(with) && !json_is_array(with))
        jinja_fail(run, "a text begins or ends with something that is not known");
    json_decref(with);
    return json_boolean(is);
}

static json_t *string_method(jinja_run *run, const json_t *self, const char *name,
                             const jinja_node *node)
{
    char q[80];
    const bool left = *name == 'l', right = *name == 'r';
    json_t *a, *b, *result;
    if (strcmp(name + (left || right), "strip") == 0) {
        a = jinja_argument(run, node, 0, NULL);
        result = jinja_strip(run, self, a, !right, !left);
        json_decref(a);
        return result;
    }
    if (strcmp(name, "split") == 0)
        return split(run, self, node);
    if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
        return starts_or_ends(run, self, *name == 's', node);
    if (strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0 || strcmp(name, "title") == 0 ||
        strcmp(name, "capitalize") == 0)
        return jinja_case(run, self, name);
    if (strcmp(name, "replace") == 0 && jinja_count(node->arguments) == 2) {
        a = jinja_argument(run, node, 0, NULL);
        b = jinja_argument(run, node, 1, NULL);
        result = run->status == GAC_OK ? jinja_replace(run, self, a, b) : NULL;
        json_decref(a);
        json_decref(b);
        return result;
    }
    return jinja_fail(run, "method %s of texts is not known", gac_quote(q, sizeof q, name));
}

/* items(), keys() and values() of an object. */
static json_t *parts_of(jinja_run *run, const json_t *self, char which)
{
    const char *key;
    json_t *value, *list = jinja_list(run);
    json_object_foreach((json_t *)(uintptr_t)self, key, value) {
        json_t *name = jinja_string(run, key, strlen(key)), *item = name;
        if (which == 'v') {
            item = json_incref(value);
            json_decref(name);
        } else if (which == 'i') {
            item = jinja_list(run);
            if (!item || !jinja_append(run, item, name) ||
                !jinja_append(run, item, json_incref(value))) {
                json_decref(item);
                return list;
            }
        }
        if (!list || !jinja_append(run, list, item))
            break;
    }
    return list;
}

json_t *jinja_method(jinja_run *run, const json_t *self, const char *name, const jinja_node *node)
{
    char q[80];
    if (json_is_string(self))
        return string_method(run, self, name, node);
    if (json_is_object(self) && !jinja_is_namespace(run, self)) {
        if (strcmp(name, "get") == 0) {
            json_t *key = jinja_argument(run, node, 0, NULL);
            json_t *value = json_is_string(key) ? json_object_get(self, json_string_value(key))
                                                : jinja_fail(run, "a key is no text");
            json_decref(key);
            json_t *otherwise = value ? NULL : jinja_argument(run, node, 1, NULL);
            return value ? json_incref(value) : otherwise ? otherwise : json_null();
        }
        if (!node->arguments && (strcmp(name, "items") == 0 || strcmp(name, "keys") == 0 ||
                                 strcmp(name, "values") == 0))
            return parts_of(run, self, *name);
    }
    return jinja_fail(run, "method %s is not known", gac_quote(q, sizeof q, name));
}

/* Filters. */

static json_t *length(jinja_run *run, const json_t *value)
{
    json_int_t n = 0;
    const char *text = json_string_value(value);
    if (value && !text && !json_is_array(value) && !json_is_object(value))
        return jinja_fail(run, "the length of something without parts");
    for (size_t i = 0; text && i < json_string_length(value); i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    n += (json_int_t)(json_array_size(value) + json_object_size(value));
    return json_integer(n);
}

static json_t *join(jinja_run *run, const json_t *value, const jinja_node *node)
{
    json_t *by = jinja_argument(run, node, 0, "d"), *items = jinja_items(run, value);
    json_t *all = jinja_string(run, "", 0);
    for (size_t i = 0; i < json_array_size(items) && run->status == GAC_OK; i++) {
        json_t *more = i > 0 && by ? jinja_operate(run, "~", all, by) : json_incref(all);
        json_decref(all);
        all =
            run->status == GAC_OK ? jinja_operate(run, "~", more, json_array_get(items, i)) : NULL;
        json_decref(more);
    }
    json_decref(by);
    json_decref(items);
    return all;
}

/* selectattr and rejectattr: items whose attribute passes a test */
static json_t *select_items(jinja_run *run, const json_t *value, const jinja_node *node,
                            bool wanted)
{
    json_t *name = jinja_argument(run, node, 0, NULL), *test = jinja_argument(run, node, 1, NULL);
    json_t *other = jinja_argument(run, node, 2, NULL), *items = jinja_items(run, value);
    json_t *list = jinja_list(run);
    if (!json_is_string(name) || strchr(json_string_value(name), '.') ||
        (test && !json_is_string(test)))
        jinja_fail(run, "a selection that is not known");
    for (size_t i = 0; i < json_array_size(items) && run->status == GAC_OK; i++) {
        json_t *item = json_array_get(items, i);
        const json_t *part = json_object_get(item, json_string_value(name));
        bool is = test ? jinja_test(run, part, json_string_value(test), other) : jinja_truth(part);
        if (is == wanted)
            jinja_append(run, list, json_incref(item));
    }
    json_decref(name);
    json_decref(test);
    json_decref(other);
    json_decref(items);
    return list;
}

static json_t *map_attribute(jinja_run *run, const json_t *value, const jinja_node *node)
{
    json_t *name = jinja_argument(run, node, -1, "attribute"), *items = jinja_items(run, value);
    json_t *list = jinja_list(run);
    if (!json_is_string(name) || strchr(json_string_value(name), '.'))
        jinja_fail(run, "filter map is only known with an attribute");
    for (size_t i = 0; i < json_array_size(items) && run->status == GAC_OK; i++) {
        json_t *part = json_object_get(json_array_get(items, i), json_string_value(name));
        if (!part)
            jinja_fail(run, "filter map: an attribute is not there");
        else
            jinja_append(run, list, json_incref(part));
    }
    json_decref(name);
    json_decref(items);
    return list;
}

static json_t *to_json(jinja_run *run, const json_t *value, const jinja_node *node)
{
    if (!value || node->arguments)
        return jinja_fail(run, "filter tojson is not known with arguments");
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    json_t *result = text ? jinja_string(run, text, strlen(text)) : jinja_fail(run, "no memory");
    free(text);
    return result;
}

static json_t *default_of(jinja_run *run, json_t *value, const jinja_node *node)
{
    json_t *boolean = jinja_argument(run, node, 1, "boolean");
    bool takes = value && (!jinja_truth(boolean) || jinja_truth(value));
    json_decref(boolean);
    if (takes)
        return json_incref(value);
    json_t *otherwise = jinja_argument(run, node, 0, "default_value");
    return otherwise || run->status != GAC_OK ? otherwise : jinja_string(run, "", 0);
}

static json_t *list_filter(jinja_run *run, json_t *value, const char *name, bool *known)
{
    static const char *const names[] = { "list", "first", "last", "reverse", "items" };
    size_t i = 0;
    while (i < 5 && strcmp(names[i], name) != 0)
        i++;
    *known = i < 5;
    if (!*known)
        return NULL;
    if (i == 4)
        return json_is_object(value) ? parts_of(run, value, 'i')
                                     : jinja_fail(run, "filter items of something else");
    json_t *items = jinja_items(run, value), *result = NULL;
    const size_t n = json_array_size(items);
    if (i == 0)
        return items;
    if (i == 1 || i == 2)
        result = json_incref(json_array_get(items, i == 1 || n == 0 ? 0 : n - 1));
    else if ((result = jinja_list(run)))
        for (size_t k = n; k-- > 0 && run->status == GAC_OK;)
            jinja_append(run, result, json_incref(json_array_get(items, k)));
    json_decref(items);
    return result;
}

static json_t *text_filter(jinja_run *run, json_t *value, const jinja_node *node)
{
    static const char *const names[] = { "trim",  "string", "safe",       "upper",
                                         "lower", "title",  "capitalize", "replace" };
    char q[80];
    const char *name = node->name;
    size_t i = 0;
    while (i < 8 && strcmp(names[i], name) != 0)
        i++;
    if (i == 8)
        return jinja_fail(run, "filter %s is not known", gac_quote(q, sizeof q, name));
    json_t *text = jinja_text_of(run, value), *result = NULL;
    json_t *a = jinja_argument(run, node, 0, NULL), *b = jinja_argument(run, node, 1, NULL);
    if (run->status != GAC_OK)
        result = NULL;
    else if (i == 0)
        result = jinja_strip(run, text, a, true, true);
    else if (i < 3)
        result = json_incref(text);
    else if (i < 7)
        result = jinja_case(run, text, name);
    else if (jinja_count(node->arguments) == 2)
        result = jinja_replace(run, text, a, b);
    else
        jinja_fail(run, "filter replace is only known with two arguments");
    json_decref(text);
    json_decref(a);
    json_decref(b);
    return result;
}

json_t *jinja_filter(jinja_run *run, json_t *value, const jinja_node *node)
{
    const char *name = node->name;
    bool known;
    if (strcmp(name, "length") == 0 || strcmp(name, "count") == 0)
        return length(run, value);
    if (strcmp(name, "default") == 0 || strcmp(name, "d") == 0)
        return default_of(run, value, node);
    if (strcmp(name, "tojson") == 0)
        return to_json(run, value, node);
    if (strcmp(name, "join") == 0)
        return join(run, value, node);
    if (strcmp(name, "selectattr") == 0 || strcmp(name, "rejectattr") == 0)
        return select_items(run, value, node, *name == 's');
    if (strcmp(name, "map") == 0)
        return map_attribute(run, value, node);
    json_t *result = list_filter(run, value, name, &known);
    return known ? result : text_filter(run, value, node);
}

/* Tests. */

bool jinja_test(jinja_run *run, const json_t *value, const char *name, const json_t *other)
{
    char q[80];
    const json_int_t n = json_integer_value(value);
    const struct {
        const char *name;
        bool is;
    } tests[] = {
        { "defined", value != NULL },
        { "undefined", value == NULL },
        { "none", json_is_null(value) },
        { "string", json_is_string(value) },
        { "mapping", json_is_object(value) },
        { "number", json_is_number(value) || json_is_boolean(value) },
        { "integer", json_is_integer(value) },
        { "float", json_is_real(value) },
        { "boolean", json_is_boolean(value) },
        { "true", json_is_true(value) },
        { "false", json_is_false(value) },
        /* Undefined goes through nothing, but goes. */
        { "iterable",
          !value || json_is_string(value) || json_is_array(value) || json_is_object(value) },
        { "sequence",
          !value || json_is_string(value) || json_is_array(value) || json_is_object(value) },
        { "equalto", jinja_equal(value, other) },
        { "eq", jinja_equal(value, other) },
        { "ne", !jinja_equal(value, other) },
        { "odd", n % 2 != 0 },
        { "even", n % 2 == 0 },
        { "callable", false },
    };
    if (strcmp(name, "in") == 0)
        return jinja_contains(run, other, value);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0)
            return tests[i].is;
    jinja_fail(run, "test %s is not known", gac_quote(q, sizeof q, name));
    return false;
}

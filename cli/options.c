#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAME = 32 }; /* longer names are not compared for suggestions */

int options_distance(const char *a, const char *b)
{
    int d[MAX_NAME + 1][MAX_NAME + 1];
    int n_a = (int)strnlen(a, MAX_NAME + 1), n_b = (int)strnlen(b, MAX_NAME + 1);
    if (n_a > MAX_NAME || n_b > MAX_NAME)
        return INT_MAX;
    for (int i = 0; i <= n_a; i++)
        for (int j = 0; j <= n_b; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n_a][n_b];
}

bool options_is_closer(const char *given, const char *name, int *distance)
{
    size_t n = strlen(given);
    int limit = n < 5 ? 1 : n < 9 ? 2 : 3;
    int found = options_distance(given, name);
    if (n > 1 && strncmp(given, name, n) == 0)
        found = 1; /* given is the beginning of name */
    if (found > limit || found >= *distance)
        return false;
    *distance = found;
    return true;
}

static const opt *closest(const opt *table, const char *given, int *distance)
{
    const opt *best = NULL;
    for (; table->name; table++) {
        const opt *inner = NULL;
        if (table->kind == OPT_GROUP)
            inner = closest(table->group, given, distance);
        else if (!table->hidden && options_is_closer(given, table->name, distance))
            inner = table;
        best = inner ? inner : best;
    }
    return best;
}

static bool is_named(const opt *option, const char *name, size_t n)
{
    return (strncmp(option->name, name, n) == 0 && option->name[n] == 0) ||
           (option->old && strncmp(option->old, name, n) == 0 && option->old[n] == 0);
}

/* Finds an option by its name of n letters, or by its letter if name is NULL. */
static const opt *find_in(const opt *table, char *into, const char *name, size_t n, char letter,
                          void **member)
{
    for (; table->name; table++) {
        const opt *found = NULL;
        *member = into + table->at;
        if (table->kind == OPT_GROUP)
            found = find_in(table->group, into + table->at, name, n, letter, member);
        else if (name ? is_named(table, name, n) : table->letter == letter)
            found = table;
        if (found)
            return found;
    }
    return NULL;
}

typedef struct parser {
    const opt_set *sets;
    int n_sets, argc, next; /* next: index of the next argument */
    char **argv;
    const char *see;
    opt_result *out;
    gac_error *err;
    bool ended;
} parser;

static const opt *find(const parser *p, const char *name, size_t n, char letter, void **member)
{
    const opt *found = NULL;
    for (int i = 0; i < p->n_sets && !found; i++)
        found = find_in(p->sets[i].options, p->sets[i].into, name, n, letter, member);
    return found;
}

/* Reports an unknown option. name is compared with the names of options for a
 * suggestion. */
static gac_status unknown(const parser *p, const char *given, const char *name)
{
    char q[80];
    int distance = INT_MAX;
    const opt *best = NULL;
    for (int i = 0; i < p->n_sets; i++) {
        const opt *found = closest(p->sets[i].options, name, &distance);
        best = found ? found : best;
    }
    gac_quote(q, sizeof q, given);
    if (best)
        return gac_error_set(p->err, GAC_USAGE, "unknown option %s; did you mean --%s?", q,
                             best->name);
    return gac_error_set(p->err, GAC_USAGE, "unknown option %s; see %s", q, p->see);
}

static gac_status take_int(const opt *option, const char *text, int64_t *out, gac_error *err)
{
    char q[80];
    char *end;
    int64_t most = option->most ? option->most : INT64_MAX;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool starts = (*text >= '0' && *text <= '9') || *text == '-';
    *out = n;
    if (starts && !errno && end != text && *end == 0 && n >= option->least && n <= most)
        return GAC_OK;
    gac_quote(q, sizeof q, text);
    if (most == INT64_MAX)
        return gac_error_set(err, GAC_USAGE, "\"%s\" is not a whole number of at least %lld", q,
                             (long long)option->least);
    return gac_error_set(err, GAC_USAGE, "\"%s\" is not a whole number from %lld to %lld", q,
                         (long long)option->least, (long long)most);
}

static gac_status take_real(const opt *option, const char *text, double *out, gac_error *err)
{
    char q[80], range[80] = "";
    char *end;
    double value = strtod(text, &end), max = option->max > 0 ? option->max : HUGE_VAL;
    *out = value;
    if (end != text && *end == 0 && isfinite(value) && value <= max &&
        (option->above ? value > option->min : value >= option->min))
        return GAC_OK;
    if (option->max > 0)
        snprintf(range, sizeof range, " and at most %g", option->max);
    return gac_error_set(err, GAC_USAGE, "\"%s\" is not a number %s %g%s",
                         gac_quote(q, sizeof q, text), option->above ? "above" : "of at least",
                         option->min, range);
}

static gac_status take_bytes(const char *text, uint64_t *out, gac_error *err)
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB" };
    char q[80];
    char *end;
    double value = strtod(text, &end), factor = *end ? 0 : 1, of_unit = 1;
    for (size_t i = 0; i < sizeof units / sizeof *units && end != text; i++, of_unit *= 1000)
        if (strcasecmp(end, units[i]) == 0)
            factor = of_unit;
    if (end == text || !(value * factor >= 1 && value * factor < 1e18))
        return gac_error_set(err, GAC_USAGE, "\"%s\" is not a size such as 500MB or 5GB",
                             gac_quote(q, sizeof q, text));
    *out = (uint64_t)(value * factor);
    return GAC_OK;
}

static gac_status take_choice(const opt *option, const char *text, int *out, gac_error *err)
{
    char q[80], list[200] = "";
    for (const opt_choice *choice = option->choices; choice->name; choice++) {
        size_t n = strlen(list);
        if (strcmp(choice->name, text) == 0) {
            *out = choice->value;
            return GAC_OK;
        }
        if (!choice->old)
            snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", choice->name);
    }
    return gac_error_set(err, GAC_USAGE, "\"%s\" is not %s %s", gac_quote(q, sizeof q, text),
                         strchr(list, ',') ? "one of" : "known; the only value is", list);
}

static gac_status take_item(const char *text, opt_list *list, gac_error *err)
{
    if (list->n == OPT_MAX_LIST)
        return gac_error_set(err, GAC_USAGE, "may be given %d times at most", OPT_MAX_LIST);
    list->items[list->n++] = text;
    return GAC_OK;
}

static gac_status take_value(const opt *option, void *member, const char *text, gac_error *err)
{
    switch (option->kind) {
    case OPT_INT:
        return take_int(option, text, member, err);
    case OPT_REAL:
        return take_real(option, text, member, err);
    case OPT_BYTES:
        return take_bytes(text, member, err);
    case OPT_CHOICE:
        return take_choice(option, text, member, err);
    case OPT_CALL:
        return option->take(member, text, err);
    default:
        break;
    }
    if (*text == 0)
        return gac_error_set(err, GAC_USAGE, "needs a value");
    if (option->kind == OPT_LIST)
        return take_item(text, member, err);
    *(const char **)member = text;
    return GAC_OK;
}

/* Sets an option. text is its value, or NULL for a flag. */
static gac_status set(parser *p, const opt *option, void *member, const char *text)
{
    gac_error local = GAC_ERROR_INIT;
    p->out->given[p->out->n_given++] = option;
    p->ended = option->ends;
    if (!text) {
        *(bool *)member = true;
        return GAC_OK;
    }
    gac_status status = take_value(option, member, text, &local);
    if (status != GAC_OK)
        gac_error_set(p->err, status, "--%s: %s", option->name, local.text);
    return status;
}

/* Takes the next argument as the value of an option. */
static gac_status set_next(parser *p, const opt *option, void *member)
{
    if (p->next == p->argc)
        return gac_error_set(p->err, GAC_USAGE, "--%s: needs a value", option->name);
    return set(p, option, member, p->argv[p->next++]);
}

static gac_status parse_name(parser *p, const char *given)
{
    const char *name = given + 2;
    size_t n = strcspn(name, "=");
    void *member;
    char bare[MAX_NAME + 1];
    snprintf(bare, sizeof bare, "%.*s", n > MAX_NAME ? MAX_NAME : (int)n, name);
    const opt *option = find(p, name, n, 0, &member);
    if (!option) {
        char dashed[MAX_NAME + 3];
        snprintf(dashed, sizeof dashed, "--%s", bare);
        return unknown(p, dashed, bare);
    }
    if (!option->argument && name[n])
        return gac_error_set(p->err, GAC_USAGE, "--%s: takes no value", option->name);
    if (!option->argument)
        return set(p, option, member, NULL);
    return name[n] ? set(p, option, member, name + n + 1) : set_next(p, option, member);
}

static gac_status parse_letters(parser *p, const char *given)
{
    gac_status status = GAC_OK;
    for (const char *at = given + 1; *at && status == GAC_OK && !p->ended; at++) {
        void *member;
        char letter[3] = { '-', *at, 0 };
        const opt *option = find(p, NULL, 0, *at, &member);
        if (!option)
            return unknown(p, letter, given + 1); /* perhaps a name after one dash */
        if (!option->argument)
            status = set(p, option, member, NULL);
        else
            return at[1] ? set(p, option, member, at + 1) : set_next(p, option, member);
    }
    return status;
}

gac_status options_parse(const opt_set *sets, int n_sets, int argc, char **argv, const char *see,
                         opt_result *out, gac_error *err)
{
    /* An argument of several letters has several options. */
    size_t n_given = 1;
    for (int i = 0; i < argc; i++)
        n_given += argv[i][0] == '-' && argv[i][1] != '-' ? strlen(argv[i]) : 1;
    *out = (opt_result){ .arguments = calloc((size_t)argc + 1, sizeof *out->arguments),
                         .given = calloc(n_given, sizeof *out->given) };
    if (!out->arguments || !out->given)
        return gac_error_no_memory(err);
    parser p = { .sets = sets,
                 .n_sets = n_sets,
                 .argc = argc,
                 .argv = argv,
                 .see = see,
                 .out = out,
                 .err = err };
    gac_status status = GAC_OK;
    bool all_arguments = false;
    while (p.next < argc && status == GAC_OK && !p.ended) {
        const char *given = argv[p.next++];
        if (all_arguments || given[0] != '-' || given[1] == 0)
            out->arguments[out->n_arguments++] = given;
        else if (given[1] != '-')
            status = parse_letters(&p, given);
        else if (given[2])
            status = parse_name(&p, given);
        else
            all_arguments = true;
    }
    return status;
}

void options_dispose(opt_result *result)
{
    free(result->arguments);
    free(result->given);
}

bool options_given(const opt_result *result, const char *name)
{
    for (int i = 0; i < result->n_given; i++)
        if (strcmp(result->given[i]->name, name) == 0)
            return true;
    return false;
}

bool options_given_of(const opt_result *result, const opt *table)
{
    for (; table->name; table++) {
        if (table->kind == OPT_GROUP && options_given_of(result, table->group))
            return true;
        for (int i = 0; i < result->n_given; i++)
            if (result->given[i] == table)
                return true;
    }
    return false;
}

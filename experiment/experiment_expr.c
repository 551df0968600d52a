/* Evaluates the expressions of specifications while parsing them. They are
 * short, and each is read at most once per case. */
#include "experiment/experiment_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 40
#define MAX_NAME_BYTES 64

typedef struct parser {
    const char *at;
    exp_lookup lookup;
    void *context;
    int depth;
    bool failed;
    char *why;
    size_t size;
} parser;

static double fail(parser *p, const char *what)
{
    char q[60];
    if (!p->failed)
        snprintf(p->why, p->size, "%s at \"%s\"", what, gac_quote(q, sizeof q, p->at));
    p->failed = true;
    return NAN;
}

static void skip_space(parser *p)
{
    while (*p->at == ' ')
        p->at++;
}

/* Skips token if it comes next. */
static bool take(parser *p, const char *token)
{
    size_t n = strlen(token);
    skip_space(p);
    if (strncmp(p->at, token, n) != 0)
        return false;
    p->at += n;
    return true;
}

static double either(parser *p);

static double call(parser *p, const char *name)
{
    double a = either(p);
    if (!take(p, ","))
        return fail(p, "expected ','");
    double b = either(p);
    if (!take(p, ")"))
        return fail(p, "expected ')'");
    if (isnan(a) || isnan(b))
        return NAN;
    if (strcmp(name, "min") == 0)
        return fmin(a, b);
    if (strcmp(name, "max") == 0)
        return fmax(a, b);
    return b > 0 ? ceil(a / b) * b : NAN;
}

static double identifier(parser *p)
{
    char name[MAX_NAME_BYTES];
    size_t n = 0;
    double value;
    while (isalnum((unsigned char)p->at[n]) || p->at[n] == '_' || p->at[n] == '.')
        n++;
    if (n == 0 || n >= sizeof name)
        return fail(p, "expected a number or a name");
    memcpy(name, p->at, n);
    name[n] = 0;
    if (!strcmp(name, "up") || !strcmp(name, "min") || !strcmp(name, "max")) {
        p->at += n;
        return take(p, "(") ? call(p, name) : fail(p, "expected '('");
    }
    if (!p->lookup(p->context, name, &value))
        return fail(p, "no such name");
    p->at += n;
    return value;
}

static double primary(parser *p)
{
    skip_space(p);
    if (++p->depth > MAX_DEPTH)
        return fail(p, "nested too deeply");
    double value;
    if (take(p, "(")) {
        value = either(p);
        if (!take(p, ")"))
            value = fail(p, "expected ')'");
    } else if (*p->at == '-') {
        p->at++;
        value = -primary(p);
    } else if (*p->at == '!' && p->at[1] != '=') {
        p->at++;
        value = primary(p);
        value = isnan(value) ? NAN : value == 0;
    } else if (isdigit((unsigned char)*p->at)) {
        char *end;
        value = strtod(p->at, &end);
        p->at = end;
    } else {
        value = identifier(p);
    }
    p->depth--;
    return value;
}

static double product(parser *p)
{
    double a = primary(p);
    while (!p->failed) {
        if (take(p, "*")) {
            a *= primary(p);
        } else if (take(p, "/")) {
            a /= primary(p);
        } else if (take(p, "%")) {
            double b = primary(p);
            a = b == 0 ? NAN : fmod(a, b);
        } else {
            return a;
        }
    }
    return NAN;
}

static double sum(parser *p)
{
    double a = product(p);
    while (!p->failed) {
        if (take(p, "+"))
            a += product(p);
        else if (take(p, "-"))
            a -= product(p);
        else
            return a;
    }
    return NAN;
}

static double comparison(parser *p)
{
    static const char *const names[] = { "==", "!=", "<=", ">=", "<", ">" };
    double a = sum(p);
    for (int i = 0; i < 6 && !p->failed; i++) {
        if (!take(p, names[i]))
            continue;
        double b = sum(p);
        if (isnan(a) || isnan(b))
            return NAN;
        bool holds[] = { a == b, a != b, a <= b, a >= b, a<b, a> b };
        return holds[i];
    }
    return a;
}

static double both(parser *p)
{
    double a = comparison(p);
    while (!p->failed && take(p, "&&")) {
        double b = comparison(p);
        /* A false operand makes the whole false, even if the other one is NaN. */
        a = a == 0 || b == 0 ? 0 : isnan(a) || isnan(b) ? NAN : 1;
    }
    return a;
}

static double either(parser *p)
{
    double a = both(p);
    while (!p->failed && take(p, "||")) {
        double b = both(p);
        a = (!isnan(a) && a != 0) || (!isnan(b) && b != 0) ? 1 : isnan(a) || isnan(b) ? NAN : 0;
    }
    return a;
}

bool exp_eval(const char *text, exp_lookup lookup, void *context, double *out, char *why,
              size_t size)
{
    parser p = { .at = text, .lookup = lookup, .context = context, .why = why, .size = size };
    double value = either(&p);
    skip_space(&p);
    if (!p.failed && *p.at)
        fail(&p, "unexpected text");
    *out = value;
    return !p.failed;
}

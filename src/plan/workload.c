#include <gac/plan.h>

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"

/* Reads a count of 1 to 2^31-1 in decimal, and moves *text behind it. */
static bool take_count(const char **text, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**text))
        return false;
    long long n = strtoll(*text, &end, 10);
    if (n < 1 || n > INT32_MAX)
        return false;
    *text = end;
    *out = n;
    return true;
}

/* Reads an optional *w, where w is a plain decimal above 0. */
static bool take_weight(const char **text, double *out)
{
    *out = 1;
    if (**text != '*')
        return true;
    const char *digits = *text + 1;
    size_t n = strspn(digits, "0123456789.");
    char *end;
    *out = strtod(digits, &end);
    *text = digits + n;
    return n > 0 && end == *text && isfinite(*out) && *out > 0;
}

static bool take_word(const char **text, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*text, word, n) != 0)
        return false;
    *text += n;
    return true;
}

/* Reads prefill:BxS[*w] or decode:B@CTX[*w]. */
static bool take_phase(const char **text, gac_phase *out)
{
    out->decode = take_word(text, "decode:");
    if (!out->decode && !take_word(text, "prefill:"))
        return false;
    return take_count(text, &out->batch) && take_word(text, out->decode ? "@" : "x") &&
           take_count(text, &out->length) && take_weight(text, &out->weight);
}

gac_status gac_workload_parse(const char *text, gac_workload *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, text, out);
    char q[120];
    const char *at = text;
    out->n_phases = 0;
    do {
        if (out->n_phases == GAC_MAX_PHASES || !take_phase(&at, &out->phases[out->n_phases]))
            return gac_error_set(err, GAC_USAGE,
                                 "workload \"%s\": expected prefill:BxS[*w],decode:B@CTX[*w] at "
                                 "byte %td",
                                 gac_quote(q, sizeof q, text), at - text);
        out->n_phases++;
    } while (take_word(&at, ","));
    if (*at)
        return gac_error_set(err, GAC_USAGE, "workload \"%s\": nothing may follow byte %td",
                             gac_quote(q, sizeof q, text), at - text);
    return GAC_OK;
}

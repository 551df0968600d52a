/* Translates the patterns of tokenizer.json from Oniguruma's Ruby syntax to PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/tokenizer_internal.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PATTERN_BYTES = 16 << 10,
    MATCH_STEPS = 10000000, /* match steps allowed per match */
    STEPS_PER_BYTE = 8,     /* and additionally per byte of text */
    HEAP_KIB = 256 << 10,
    JIT_STACK_BYTES = 8 << 20
};

struct gac_pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool jit;
};

/* The classes as Oniguruma defines them, for use inside [ ]. PCRE2's \s also
 * has U+180E. Its \w lacks marks and has all numbers, while Oniguruma has only
 * the numbers of Latin-1. */
#define SPACE_CLASS "\\p{Z}\\x09-\\x0d\\x{85}"
#define WORD_CLASS \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}" \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct translation {
    const char *text;
    size_t n, at;
    bool in_class, class_start;
    byte_buffer out;
    char *why;
    size_t why_bytes;
} translation;

static bool refuse(const translation *t, const char *what)
{
    snprintf(t->why, t->why_bytes, "has a pattern with %s, which is not supported, at byte %zu",
             what, t->at);
    return false;
}

static bool put(translation *t, const char *text, size_t n_taken)
{
    t->at += n_taken;
    if (gac_bytes_append(&t->out, text, strlen(text)))
        return true;
    snprintf(t->why, t->why_bytes, "needs more memory than there is");
    return false;
}

static bool keep(translation *t, size_t n)
{
    if (!gac_bytes_append(&t->out, t->text + t->at, n)) {
        snprintf(t->why, t->why_bytes, "needs more memory than there is");
        return false;
    }
    t->at += n;
    return true;
}

/* \uHHHH is \x{HHHH} in PCRE2. */
static bool take_code_point(translation *t)
{
    char spelled[16];
    const char *hex = t->text + t->at + 2;
    if (t->n - t->at < 6 || strspn(hex, "0123456789abcdefABCDEF") < 4)
        return refuse(t, "\\u without four digits");
    snprintf(spelled, sizeof spelled, "\\x{%.4s}", hex);
    return put(t, spelled, 6);
}

/* Translates an escape. Letters that are not listed differ between the two
 * syntaxes, or no tokenizer needs them. */
static bool take_escape(translation *t)
{
    char c = t->at + 1 < t->n ? t->text[t->at + 1] : 0;
    switch (c) {
    case 's':
        return put(t, t->in_class ? SPACE_CLASS : "[" SPACE_CLASS "]", 2);
    case 'S':
        return put(t, t->in_class ? "\\S\\x{180e}" : "[^" SPACE_CLASS "]", 2);
    case 'w':
        return put(t, t->in_class ? WORD_CLASS : "[" WORD_CLASS "]", 2);
    case 'W':
        return t->in_class ? refuse(t, "\\W inside []") : put(t, "[^" WORD_CLASS "]", 2);
    case 'u':
        return take_code_point(t);
    case 'x':
    case 'p':
    case 'P': {
        const char *brace = t->text + t->at + 2, *end = strchr(brace, '}');
        return *brace == '{' && end ? keep(t, (size_t)(end + 1 - (t->text + t->at)))
                                    : refuse(t, "\\x, \\p or \\P without {}");
    }
    default:
        break;
    }
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 0 || (letter && !strchr(t->in_class ? "dDrntfae" : "dDrntfaeAzZ", c)))
        return refuse(t, "an escape");
    return keep(t, 2);
}

static bool take_in_class(translation *t)
{
    char c = t->text[t->at], next = t->at + 1 < t->n ? t->text[t->at + 1] : 0;
    bool start = t->class_start;
    t->class_start = start && c == '^';
    if (c == '[' && next != ':')
        return refuse(t, "a class inside a class");
    if (c == '&' && next == '&')
        return refuse(t, "&& inside []");
    if (c == '[') {
        const char *end = strstr(t->text + t->at, ":]");
        return end ? keep(t, (size_t)(end - (t->text + t->at)) + 2) : refuse(t, "[: without :]");
    }
    if (c == ']' && start)
        return refuse(t, "] first inside []");
    if (c == ']')
        t->in_class = false;
    return keep(t, 1);
}

static bool take_outside(translation *t)
{
    char c = t->text[t->at], next = t->at + 1 < t->n ? t->text[t->at + 1] : 0;
    if (c == '[') {
        t->in_class = t->class_start = true;
        return keep(t, 1);
    }
    if (c == '}' && next == '+')
        return refuse(t, "+ after {}");
    if (c == '(' && next == '*')
        return refuse(t, "a verb");
    if (c == '(' && next == '?') {
        char kind = t->at + 2 < t->n ? t->text[t->at + 2] : 0;
        if (kind == 0 || !strchr(":=!><i-", kind))
            return refuse(t, "a kind of group");
    }
    return keep(t, 1);
}

static bool translate(translation *t)
{
    bool taken = true;
    while (taken && t->at < t->n) {
        if (t->text[t->at] == '\\') {
            taken = take_escape(t);
            t->class_start = false;
        } else {
            taken = t->in_class ? take_in_class(t) : take_outside(t);
        }
    }
    return taken;
}

/* Compiles the translated text. why stays empty if memory runs out. */
static bool compile(gac_pattern *p, const byte_buffer *text, uint32_t options, char *why,
                    size_t why_bytes)
{
    PCRE2_SIZE offset;
    PCRE2_UCHAR message[160];
    int code;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return false;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)text->data, text->n, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!p->code && code != PCRE2_ERROR_HEAP_FAILED) {
        pcre2_get_error_message(code, message, sizeof message);
        snprintf(why, why_bytes, "has a pattern that does not compile: %s", (char *)message);
    }
    if (!p->code)
        return false;
    p->data = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->data || !p->context)
        return false;
    pcre2_set_heap_limit(p->context, HEAP_KIB);
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    if (p->jit && (p->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL)))
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return true;
}

gac_status gac_pattern_compile(const char *text, size_t n, bool literal, gac_pattern **out,
                               char *why, size_t why_bytes)
{
    translation t = { .text = text, .n = n, .why = why, .why_bytes = why_bytes };
    static const char no_memory[] = "needs more memory than there is";
    gac_status status = GAC_BAD_INPUT;
    gac_pattern *p = calloc(1, sizeof *p);
    /* In Ruby, ^ and $ always match at line ends. */
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    snprintf(why, why_bytes, "%s", no_memory);
    if (!p)
        return GAC_NO_RESOURCE;
    if (n == 0 || n > MAX_PATTERN_BYTES)
        snprintf(why, why_bytes, "must have a pattern of 1 to %d bytes", MAX_PATTERN_BYTES);
    else if ((literal ? keep(&t, n) : translate(&t)) && compile(p, &t.out, options, why, why_bytes))
        status = GAC_OK;
    gac_bytes_dispose(&t.out);
    if (status != GAC_OK) {
        status = strcmp(why, no_memory) == 0 ? GAC_NO_RESOURCE : GAC_BAD_INPUT;
        gac_pattern_free(p);
        p = NULL;
    }
    *out = p;
    return status;
}

void gac_pattern_free(gac_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_match_data_free(pattern->data);
    pcre2_match_context_free(pattern->context);
    pcre2_jit_stack_free(pattern->stack);
    pcre2_code_free(pattern->code);
    free(pattern);
}

static int match(pattern_walk *walk)
{
    gac_pattern *p = walk->pattern;
    PCRE2_SPTR text = (PCRE2_SPTR)walk->text;
    /* The whole text was checked once. Every match would check it again. */
    return p->jit ? pcre2_jit_match(p->code, text, walk->n, walk->from, PCRE2_NO_UTF_CHECK, p->data,
                                    p->context)
                  : pcre2_match(p->code, text, walk->n, walk->from, PCRE2_NO_UTF_CHECK, p->data,
                                p->context);
}

/* An empty match right behind a match is skipped, as in Oniguruma's Rust binding. */
gac_status gac_pattern_next(pattern_walk *walk, bool *found, size_t *start, size_t *end,
                            gac_error *err)
{
    *found = false;
    if (walk->from == 0) {
        uint64_t steps = MATCH_STEPS + (uint64_t)walk->n * STEPS_PER_BYTE;
        pcre2_set_match_limit(walk->pattern->context,
                              steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    }
    while (walk->from <= walk->n) {
        int rc = match(walk);
        if (rc == PCRE2_ERROR_NOMATCH)
            return GAC_OK;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return gac_error_no_memory(err);
        if (rc < 0)
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "a pattern of the tokenizer takes too many steps on this text");
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(walk->pattern->data);
        *start = ends[0];
        *end = ends[1];
        if (*start == *end && walk->matched && walk->last_end == *end) {
            size_t length = 1;
            if (walk->from < walk->n)
                gac_utf8_get(walk->text + walk->from, &length);
            walk->from += length;
            continue;
        }
        walk->from = walk->last_end = *end;
        walk->matched = true;
        *found = true;
        return GAC_OK;
    }
    return GAC_OK;
}

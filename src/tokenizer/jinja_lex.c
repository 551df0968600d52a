/* Templates as tokens. As in transformers, a tag takes the white space before it on its line
 * and the line end after it; a minus sign takes all on its side, a plus sign none. */
#include "tokenizer/jinja.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    const char *at, *end;
    jinja_token *tokens;
    int32_t n, capacity;
    bool line_starts; /* what follows begins a line */
    gac_error *err;
} lexer;

static gac_status refuse(const lexer *l, const char *what)
{
    return gac_error_set(l->err, GAC_BAD_INPUT, "it has %s", what);
}

static gac_status emit(lexer *l, jinja_token_kind kind, const char *text, size_t n)
{
    if (!gac_grow((void **)&l->tokens, l->n, &l->capacity, sizeof *l->tokens))
        return gac_error_no_memory(l->err);
    l->tokens[l->n++] = (jinja_token){ kind, text, n };
    return GAC_OK;
}

static bool starts(const lexer *l, const char *with)
{
    size_t n = strlen(with);
    return (size_t)(l->end - l->at) >= n && memcmp(l->at, with, n) == 0;
}

static const char *find(const lexer *l, const char *from, const char *what)
{
    return from < l->end ? memmem(from, (size_t)(l->end - from), what, 2) : NULL;
}

/* Takes what a tag takes after itself. sign is the character before its end. */
static void end_tag(lexer *l, char sign, bool takes_line_end)
{
    l->line_starts = false;
    while (sign == '-' && l->at < l->end && isspace((unsigned char)*l->at))
        l->line_starts = *l->at++ == '\n';
    if (sign != '-' && sign != '+' && takes_line_end && l->at < l->end && *l->at == '\n') {
        l->at++;
        l->line_starts = true;
    }
}

/* Emits the text before a tag, or at the end. */
static gac_status lex_data(lexer *l, const char *tag)
{
    const char *end = tag ? tag : l->end, *from = l->at, *line = end;
    char sign = tag && tag + 2 < l->end ? tag[2] : 0;
    if (sign == '-') {
        while (end > from && isspace((unsigned char)end[-1]))
            end--;
    } else if (tag && sign != '+' && tag[1] != '{') {
        while (line > from && line[-1] != '\n' && isspace((unsigned char)line[-1]))
            line--;
        if (line == from ? l->line_starts : line[-1] == '\n')
            end = line;
    }
    return end > from ? emit(l, JINJA_TOKEN_DATA, from, (size_t)(end - from)) : GAC_OK;
}

static gac_status lex_comment(lexer *l)
{
    const char *end = find(l, l->at + 2, "#}");
    if (!end)
        return refuse(l, "a comment without an end");
    l->at = end + 2;
    end_tag(l, end[-1], true);
    return GAC_OK;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static gac_status lex_string(lexer *l)
{
    const char *from = l->at++;
    while (l->at < l->end && *l->at != *from)
        l->at += *l->at == '\\' ? 2 : 1;
    if (l->at >= l->end)
        return refuse(l, "a string without an end");
    l->at++;
    return emit(l, JINJA_TOKEN_STRING, from, (size_t)(l->at - from));
}

static gac_status lex_number(lexer *l)
{
    const char *from = l->at;
    while (l->at < l->end && isdigit((unsigned char)*l->at))
        l->at++;
    if (l->at + 1 < l->end && *l->at == '.' && isdigit((unsigned char)l->at[1]))
        do
            l->at++;
        while (l->at < l->end && isdigit((unsigned char)*l->at));
    if (l->at < l->end && is_name(*l->at))
        return refuse(l, "a number that is not known");
    return emit(l, JINJA_TOKEN_NUMBER, from, (size_t)(l->at - from));
}

static gac_status lex_operator(lexer *l, int *depth)
{
    static const char *const two[] = { "==", "!=", "<=", ">=", "//", "**" };
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(l, two[i])) {
            l->at += 2;
            return emit(l, JINJA_TOKEN_OPERATOR, l->at - 2, 2);
        }
    if (!*l->at || !strchr("+-*/%<>~()[]{}.,:|=", *l->at))
        return refuse(l, "a character that is not known in a tag");
    *depth += strchr("([{", *l->at) ? 1 : strchr(")]}", *l->at) ? -1 : 0;
    return emit(l, JINJA_TOKEN_OPERATOR, l->at++, 1);
}

/* Lexes a tag up to its end. */
static gac_status lex_tag(lexer *l, bool block)
{
    const char *const end = block ? "%}" : "}}";
    int depth = 0;
    gac_status status = emit(l, block ? JINJA_TOKEN_BLOCK : JINJA_TOKEN_PRINT, l->at, 2);
    l->at += 2;
    if (l->at < l->end && (*l->at == '-' || *l->at == '+'))
        l->at++;
    while (status == GAC_OK) {
        while (l->at < l->end && isspace((unsigned char)*l->at))
            l->at++;
        if (l->at == l->end)
            return refuse(l, "a tag without an end");
        bool sign = *l->at == '-' || (block && *l->at == '+');
        const lexer ahead = { .at = l->at + sign, .end = l->end };
        if (depth == 0 && starts(&ahead, end)) {
            char which = *l->at;
            status = emit(l, block ? JINJA_TOKEN_BLOCK_END : JINJA_TOKEN_PRINT_END, l->at, 2);
            l->at += sign + 2;
            end_tag(l, which, block);
            return status;
        }
        if (*l->at == '\'' || *l->at == '"') {
            status = lex_string(l);
        } else if (isdigit((unsigned char)*l->at)) {
            status = lex_number(l);
        } else if (is_name(*l->at)) {
            const char *from = l->at;
            while (l->at < l->end && is_name(*l->at))
                l->at++;
            status = emit(l, JINJA_TOKEN_NAME, from, (size_t)(l->at - from));
        } else {
            status = lex_operator(l, &depth);
        }
    }
    return status;
}

gac_status jinja_lex(const char *text, size_t n, jinja_token **out, gac_error *err)
{
    lexer l = { .at = text, .end = text + n, .line_starts = true, .err = err };
    gac_status status = GAC_OK;
    while (status == GAC_OK && l.at < l.end) {
        const char *tag = l.at;
        while ((tag = memchr(tag, '{', (size_t)(l.end - tag))) && tag + 1 < l.end &&
               !strchr("{%#", tag[1]))
            tag++;
        if (tag && (tag + 1 >= l.end || !tag[1]))
            tag = NULL;
        status = lex_data(&l, tag);
        l.at = tag ? tag : l.end;
        if (tag && status == GAC_OK)
            status = tag[1] == '#' ? lex_comment(&l) : lex_tag(&l, tag[1] == '%');
    }
    if (status == GAC_OK)
        status = emit(&l, JINJA_TOKEN_END, l.end, 0);
    if (status != GAC_OK) {
        free(l.tokens);
        return status;
    }
    *out = l.tokens;
    return GAC_OK;
}

/* Appends a character as UTF-8. */
static char *put_utf8(char *to, unsigned c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 63));
    } else {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    }
    return to;
}

json_t *jinja_unquote(const char *text, size_t n)
{
    static const char from[] = "ntr\\'\"", by[] = "\n\t\r\\'\"";
    char *room = malloc(n + 1), *to = room;
    const char *end = text + n - 1;
    bool known = room != NULL;
    for (const char *at = text + 1; known && at < end; at++) {
        const char *escape = *at == '\\' && at[1] ? strchr(from, at[1]) : NULL;
        if (*at != '\\') {
            *to++ = *at;
        } else if (at[1] == '\n') { /* a line that goes on */
            at++;
        } else if (escape) {
            *to++ = by[escape - from];
            at++;
        } else if (at[1] == 'u' && end - at >= 6) {
            char digits[5] = { at[2], at[3], at[4], at[5], 0 }, *stop;
            unsigned long c = strtoul(digits, &stop, 16);
            known = !*stop && isxdigit((unsigned char)*digits);
            to = put_utf8(to, (unsigned)c);
            at += 5;
        } else {
            known = false;
        }
    }
    json_t *value = known ? json_stringn(room, (size_t)(to - room)) : NULL;
    free(room);
    return value;
}

/* The decoder turns a token into bytes of text. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

/* Maps the characters of byte-level BPE back to bytes. False if a character
 * stands for no byte. */
static bool from_byte_level(const char *text, size_t n, byte_buffer *to)
{
    size_t length;
    for (size_t at = 0; at < n; at += length) {
        int byte = gac_char_byte(gac_utf8_get(text + at, &length));
        char c = (char)byte;
        if (byte < 0) {
            to->n = 0;
            return gac_bytes_append(to, text, n);
        }
        if (!gac_bytes_append(to, &c, 1))
            return false;
    }
    return true;
}

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = memchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c, 16);
    return at ? (int)(at - digits) : -1;
}

/* Decodes "<0xNN>" to one byte. */
static bool from_byte_token(const char *text, size_t n, byte_buffer *to)
{
    if (n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>') {
        int high = hex_value(text[3]), low = hex_value(text[4]);
        char byte = (char)(high * 16 + low);
        if (high >= 0 && low >= 0)
            return gac_bytes_append(to, &byte, 1);
    }
    return gac_bytes_append(to, text, n);
}

static bool from_metaspace(const decode_step *step, bool first, const char *text, size_t n,
                           byte_buffer *to)
{
    bool drop = first && step->scheme != PREPEND_NEVER;
    for (size_t at = 0, length; at < n; at += length) {
        gac_utf8_get(text + at, &length);
        bool mark = length == step->n_content && !memcmp(text + at, step->content, length);
        if (!(mark ? drop || gac_bytes_append(to, " ", 1)
                   : gac_bytes_append(to, text + at, length)))
            return false;
    }
    return true;
}

static gac_status replace(const decode_step *step, const char *text, size_t n, byte_buffer *to,
                          gac_error *err)
{
    pattern_walk walk = { .pattern = step->pattern, .text = text, .n = n };
    size_t kept = 0, start, end;
    bool found = true;
    while (found) {
        gac_status status = gac_pattern_next(&walk, &found, &start, &end, err);
        if (status != GAC_OK)
            return status;
        if (!found)
            start = end = n;
        if (!gac_bytes_append(to, text + kept, start - kept) ||
            (found && !gac_bytes_append(to, step->content, step->n_content)))
            return gac_error_no_memory(err);
        kept = end;
    }
    return GAC_OK;
}

size_t gac_decode_strip(const decode_step *strip, const char *text, size_t n)
{
    size_t at = 0;
    for (int32_t i = 0; i < strip->start && strip->n_content > 0; i++) {
        if (n - at < strip->n_content || memcmp(text + at, strip->content, strip->n_content) != 0)
            break;
        at += strip->n_content;
    }
    return at;
}

static bool strip_token(const decode_step *step, const char *text, size_t n, byte_buffer *to)
{
    size_t start = gac_decode_strip(step, text, n), end = n;
    for (int32_t i = 0; i < step->stop && end - start >= step->n_content; i++) {
        if (memcmp(text + end - step->n_content, step->content, step->n_content) != 0)
            break;
        end -= step->n_content;
    }
    return gac_bytes_append(to, text + start, end - start);
}

gac_status gac_decode_token(decoder *dec, bool first, const char **text, size_t *n, gac_error *err)
{
    for (int32_t i = 0, room = 0; i<dec->n_steps && * n> 0; i++, room = 1 - room) {
        const decode_step *step = &dec->steps[i];
        byte_buffer *to = &dec->rooms[room];
        gac_status status = GAC_OK;
        bool made = true;
        to->n = 0;
        if (step->kind == DECODE_BYTE_LEVEL)
            made = from_byte_level(*text, *n, to);
        else if (step->kind == DECODE_BYTE_FALLBACK)
            made = from_byte_token(*text, *n, to);
        else if (step->kind == DECODE_METASPACE)
            made = from_metaspace(step, first, *text, *n, to);
        else if (step->kind == DECODE_STRIP)
            made = strip_token(step, *text, *n, to);
        else
            status = replace(step, *text, *n, to, err);
        if (!made || status != GAC_OK)
            return made ? status : gac_error_no_memory(err);
        *text = to->data;
        *n = to->n;
    }
    return GAC_OK;
}

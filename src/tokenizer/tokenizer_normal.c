/* Normalizers: rewrite the text before it is split. */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <uninorm.h>

/* Useful normalizers stay far below this growth. */
enum { MAX_GROWTH = 64, GROWTH_ROOM = 64 << 10 };

/* Text below U+0300 is always NFC: it has no combining characters, and no
 * compositions that NFC would change. */
static bool is_surely_nfc(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xcc)
            return false;
    return true;
}

static uninorm_t form_of(normal_kind kind)
{
    switch (kind) {
    case NORMAL_NFD:
        return UNINORM_NFD;
    case NORMAL_NFKC:
        return UNINORM_NFKC;
    case NORMAL_NFKD:
        return UNINORM_NFKD;
    default:
        return UNINORM_NFC;
    }
}

static gac_status to_form(normal_kind kind, const char *text, size_t n, byte_buffer *to,
                          gac_error *err)
{
    size_t length = 0;
    uint8_t *made = u8_normalize(form_of(kind), (const uint8_t *)text, n, NULL, &length);
    if (!made)
        return gac_error_no_memory(err);
    free(to->data);
    *to = (byte_buffer){ (char *)made, length, length };
    return GAC_OK;
}

static gac_status replace(const normal_step *step, const char *text, size_t n, size_t limit,
                          byte_buffer *to, gac_error *err)
{
    pattern_walk walk = { .pattern = step->pattern, .text = text, .n = n };
    size_t kept = 0, start, end;
    bool found;
    for (;;) {
        gac_status status = gac_pattern_next(&walk, &found, &start, &end, err);
        if (status != GAC_OK)
            return status;
        if (!found)
            break;
        if (!gac_bytes_append(to, text + kept, start - kept) ||
            !gac_bytes_append(to, step->content, step->n_content))
            return gac_error_no_memory(err);
        if (to->n > limit)
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "the tokenizer's normalizer makes %zu bytes "
                                 "of text into more than %zu",
                                 n, limit);
        kept = end;
    }
    return gac_bytes_append(to, text + kept, n - kept) ? GAC_OK : gac_error_no_memory(err);
}

static gac_status run_step(const normal_step *step, const char *text, size_t n, size_t limit,
                           byte_buffer *to, gac_error *err)
{
    to->n = 0;
    if (step->kind == NORMAL_REPLACE)
        return replace(step, text, n, limit, to, err);
    if (step->kind != NORMAL_PREPEND)
        return to_form(step->kind, text, n, to, err);
    if (!gac_bytes_append(to, step->content, step->n_content) || !gac_bytes_append(to, text, n))
        return gac_error_no_memory(err);
    return GAC_OK;
}

gac_status gac_normalize(normalizer *normal, const char **text, size_t *n, gac_error *err)
{
    size_t limit = *n * MAX_GROWTH + GROWTH_ROOM;
    for (int32_t i = 0, room = 0; i<normal->n_steps && * n> 0; i++) {
        const normal_step *step = &normal->steps[i];
        if (step->kind == NORMAL_NFC && is_surely_nfc(*text, *n))
            continue;
        gac_status status = run_step(step, *text, *n, limit, &normal->rooms[room], err);
        if (status != GAC_OK)
            return status;
        *text = normal->rooms[room].data;
        *n = normal->rooms[room].n;
        room = 1 - room;
    }
    return GAC_OK;
}

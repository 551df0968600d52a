/* Finds added tokens in a text. The leftmost match wins, then the longest. */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static int by_match(const void *a, const void *b)
{
    const added_token *x = *(const added_token *const *)a, *y = *(const added_token *const *)b;
    size_t n = x->n_match < y->n_match ? x->n_match : y->n_match;
    int order = memcmp(x->match, y->match, n);
    if (order != 0)
        return order;
    return (x->n_match > y->n_match) - (x->n_match < y->n_match);
}

bool gac_token_set_prepare(token_set *set)
{
    if (set->n_tokens > 1)
        qsort(set->tokens, (size_t)set->n_tokens, sizeof set->tokens[0], by_match);
    for (int32_t i = 1; i < set->n_tokens; i++)
        if (by_match(&set->tokens[i - 1], &set->tokens[i]) == 0)
            return false;
    for (int32_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < set->n_tokens && (unsigned char)set->tokens[i]->match[0] < byte)
            i++;
        set->first[byte] = i;
    }
    return true;
}

/* Returns the byte of a token at depth, or -1 at its end, which sorts first. */
static int byte_at(const added_token *token, size_t depth)
{
    return depth < token->n_match ? (unsigned char)token->match[depth] : -1;
}

/* Returns the first token of [low, high) whose byte at depth is at least byte. */
static int32_t lower_bound(const token_set *set, int32_t low, int32_t high, size_t depth, int byte)
{
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (byte_at(set->tokens[middle], depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the longest token at the beginning of text, or NULL. */
static const added_token *longest(const token_set *set, const char *text, size_t n)
{
    const added_token *found = NULL;
    int32_t low = set->first[(unsigned char)text[0]];
    int32_t high = set->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low]->n_match == depth)
            found = set->tokens[low];
        if (depth == n)
            break;
        int byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return found;
}

static bool is_single_word(const char *text, size_t n, size_t start, size_t end)
{
    size_t length;
    if (start > 0 && gac_char_is_word(gac_utf8_get(text + gac_utf8_before(text, start), &length)))
        return false;
    return end == n || !gac_char_is_word(gac_utf8_get(text + end, &length));
}

token_match gac_token_set_find(const token_set *set, const char *text, size_t n, size_t *from,
                               size_t covered)
{
    size_t length;
    while (set->n_tokens > 0 && *from < n) {
        const added_token *token = longest(set, text + *from, n - *from);
        if (!token) {
            ++*from;
            continue;
        }
        token_match match = { token, *from, *from + token->n_match };
        *from = match.end;
        if (token->single_word && !is_single_word(text, n, match.start, match.end))
            continue;
        if (token->lstrip) {
            while (
                match.start > covered &&
                gac_char_is_space(gac_utf8_get(text + gac_utf8_before(text, match.start), &length)))
                match.start = gac_utf8_before(text, match.start);
            if (match.start < covered)
                match.start = covered;
        }
        while (token->rstrip && match.end < n &&
               gac_char_is_space(gac_utf8_get(text + match.end, &length)))
            match.end += length;
        return match;
    }
    return (token_match){ NULL, n, n };
}

static bool collect(gac_tokenizer *t, token_set *set, bool normalized)
{
    if (t->n_added == 0)
        return true;
    set->tokens = gac_arena_alloc(&t->arena, (size_t)t->n_added * sizeof(void *));
    if (!set->tokens)
        return false;
    for (int32_t i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized && t->added[i].n_match > 0)
            set->tokens[set->n_tokens++] = &t->added[i];
    return true;
}

/* Computes the text to search for: the content, normalized if the token says
 * so. The decoder shows the same text. */
static gac_status set_match(gac_tokenizer *t, added_token *token, gac_error *err)
{
    const char *text = token->content;
    size_t n = strlen(text);
    gac_status status = token->normalized ? gac_normalize(&t->normal, &text, &n, err) : GAC_OK;
    if (status != GAC_OK)
        return status;
    char *copy = gac_arena_alloc(&t->arena, n + 1);
    if (!copy)
        return gac_error_no_memory(err);
    if (n > 0)
        memcpy(copy, text, n);
    token->match = copy;
    token->n_match = n;
    return GAC_OK;
}

/* Gives the token its id by the rule of Hugging Face's tokenizers: the model's
 * id if its vocabulary has the token, otherwise the next free id. The id in the
 * file does not count. */
static gac_status add_token(gac_tokenizer *t, added_token *token, int32_t *next, gac_error *err)
{
    int32_t existing;
    gac_status status = set_match(t, token, err);
    if (status != GAC_OK)
        return status;
    token->id = gac_namemap_find(&t->bpe.vocab, token->content);
    if (token->id < 0)
        token->id = (*next)++;
    if (token->id >= GAC_MAX_TOKENS)
        return gac_error_set(err, GAC_BAD_INPUT, "more than %d tokens", GAC_MAX_TOKENS);
    status = gac_namemap_add(&t->added_ids, token->content, token->id, &existing, err);
    if (status != GAC_OK)
        return status;
    if (!gac_tokenizer_set_piece(t, token->id, token->content))
        return gac_error_no_memory(err);
    t->shown[token->id] = token->match;
    t->special[token->id] = token->special;
    return GAC_OK;
}

gac_status gac_tokenizer_add_tokens(gac_tokenizer *t, const char *source, gac_error *err)
{
    char q[256], why[400];
    int32_t next = t->n_vocab;
    for (int32_t i = 0; i < t->n_added; i++) {
        gac_error inner = GAC_ERROR_INIT;
        gac_status status = add_token(t, &t->added[i], &next, &inner);
        if (status != GAC_OK)
            return gac_error_set(err, status, "%s: $.added_tokens[%d]: %s",
                                 gac_quote(q, sizeof q, source), (int)i,
                                 gac_quote(why, sizeof why, inner.text));
    }
    if (!collect(t, &t->raw, false) || !collect(t, &t->normalized, true))
        return gac_error_no_memory(err);
    if (!gac_token_set_prepare(&t->raw) || !gac_token_set_prepare(&t->normalized))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: $.added_tokens: two tokens are the same",
                             gac_quote(q, sizeof q, source));
    return GAC_OK;
}

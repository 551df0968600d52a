/* Derives merges from a vocabulary with scores. SentencePiece joins the pair
 * whose result has the highest score. A list of pairs in that order gives the
 * same result with BPE, which joins by rank. Pairs of equal score are ordered
 * as in transformers' converter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/namemap.h"
#include "checkpoint/convert_internal.h"

/* Limit of the text of all pairs. Real vocabularies need a few MB. */
enum { MAX_TEXT_BYTES = 64 << 20 };
/* Limit of work. Cutting a token at every position takes time proportional to
 * the square of its length. */
static const uint64_t max_work = (uint64_t)1 << 31;

typedef struct pair {
    float score;
    int32_t left, right;               /* ids */
    int32_t left_length, right_length; /* characters */
    int32_t order;                     /* position in the order of discovery */
} pair;

typedef struct pairs {
    pair *list;
    int32_t n, capacity;
    uint64_t n_text; /* bytes of text of all pairs */
} pairs;

static int by_ids(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static int by_rank(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_length != y->left_length)
        return x->left_length > y->left_length ? -1 : 1;
    if (x->right_length != y->right_length)
        return x->right_length > y->right_length ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static bool starts_character(char byte)
{
    return ((unsigned char)byte & 0xC0) != 0x80;
}

static int32_t n_characters(const char *text)
{
    int32_t n = 0;
    for (; *text; text++)
        n += starts_character(*text);
    return n;
}

/* Returns whether a token is text, not a mark. Only text is merged. */
static bool is_text(const convert_vocab *v, int32_t id)
{
    return id >= 0 && v->types[id] == TOKEN_NORMAL;
}

/* Adds every way to cut a token into two tokens. buffer has room for the token. */
static gac_status cut(const convert_model *m, const gac_namemap *ids, int32_t id, char *buffer,
                      pairs *found, gac_error *err)
{
    const convert_vocab *v = &m->vocab;
    const char *token = v->tokens[id];
    int32_t first = found->n, n = n_characters(token), left_length = 0;
    strcpy(buffer, token);
    for (size_t at = 1; token[0] && token[at]; at++) {
        if (!starts_character(token[at]))
            continue;
        left_length++;
        buffer[at] = 0;
        int32_t left = gac_namemap_find(ids, buffer);
        buffer[at] = token[at];
        int32_t right = is_text(v, left) ? gac_namemap_find(ids, token + at) : -1;
        if (!is_text(v, right))
            continue;
        if ((found->n_text += strlen(token) + 1) > MAX_TEXT_BYTES)
            return gac_convert_bad(m, err, "its tokens make more than %d bytes of merges",
                                   MAX_TEXT_BYTES);
        if (!gac_grow((void **)&found->list, found->n, &found->capacity, sizeof *found->list))
            return gac_error_no_memory(err);
        found->list[found->n++] =
            (pair){ v->scores[id], left, right, left_length, n - left_length, 0 };
    }
    if (found->n > first)
        qsort(found->list + first, (size_t)(found->n - first), sizeof *found->list, by_ids);
    for (int32_t i = first; i < found->n; i++)
        found->list[i].order = i;
    return GAC_OK;
}

static gac_status check_tokens(const convert_model *m, size_t *longest, gac_error *err)
{
    uint64_t work = 0;
    *longest = 0;
    for (int64_t i = 0; i < m->vocab.n; i++) {
        size_t n = strlen(m->vocab.tokens[i]);
        *longest = n > *longest ? n : *longest;
        work += (uint64_t)n * n;
        if (work > max_work)
            return gac_convert_bad(m, err, "token %lld and those before it are too long",
                                   (long long)i);
        if (!isfinite(m->vocab.scores[i]))
            return gac_convert_bad(m, err, "the score of token %lld is not finite", (long long)i);
    }
    return GAC_OK;
}

/* "left right" */
static json_t *pair_text(const convert_vocab *v, const pair *p)
{
    return json_sprintf("%s %s", v->tokens[p->left], v->tokens[p->right]);
}

static gac_status collect(const convert_model *m, const gac_namemap *ids, pairs *found,
                          gac_error *err)
{
    size_t longest;
    gac_status status = check_tokens(m, &longest, err);
    if (status != GAC_OK)
        return status;
    char *buffer = malloc(longest + 1);
    if (!buffer)
        return gac_error_no_memory(err);
    for (int32_t id = 0; id < (int32_t)m->vocab.n && status == GAC_OK; id++)
        if (is_text(&m->vocab, id) && gac_namemap_find(ids, m->vocab.tokens[id]) == id)
            status = cut(m, ids, id, buffer, found, err);
    free(buffer);
    return status;
}

gac_status gac_convert_merges(const convert_model *m, json_t **out, gac_error *err)
{
    gac_namemap ids;
    pairs found = { 0 };
    int32_t existing;
    gac_status status = gac_namemap_init(&ids, err);
    for (int32_t i = 0; i < (int32_t)m->vocab.n && status == GAC_OK; i++)
        status = gac_namemap_add(&ids, m->vocab.tokens[i], i, &existing, err);
    if (status == GAC_OK)
        status = collect(m, &ids, &found, err);
    if (status == GAC_OK) {
        json_t *list = json_array();
        if (found.n)
            qsort(found.list, (size_t)found.n, sizeof *found.list, by_rank);
        bool ok = list != NULL;
        for (int32_t i = 0; i < found.n && ok; i++)
            ok = json_array_append_new(list, pair_text(&m->vocab, &found.list[i])) == 0;
        if (ok)
            *out = list;
        else {
            json_decref(list);
            status = gac_error_no_memory(err);
        }
    }
    free(found.list);
    gac_namemap_dispose(&ids);
    return status;
}

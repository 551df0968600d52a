/* Byte-pair encoding of one word.
 *
 * Candidate merges are in a heap, ordered by rank and then by position, so that
 * a word of n characters takes O(n log n) steps. The word is first cut between
 * neighbours that no merge can ever join. Llama-2 passes a whole text as one
 * word; cutting divides it into short ones. */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY_PAIR UINT64_MAX

/* A cache of words and their ids. A new word replaces the old one in its slot. */
enum { SLOT_BITS = 14, SLOT_WORD_BYTES = 40, SLOT_IDS = 7 };
struct word_slot {
    uint8_t n_bytes, n_ids;
    char word[SLOT_WORD_BYTES];
    int32_t ids[SLOT_IDS];
};

bool gac_ids_append(id_list *list, int32_t id)
{
    if (list->n == list->capacity) {
        size_t wanted = list->capacity ? list->capacity * 2 : 256;
        int32_t *bigger = reallocarray(list->ids, wanted, sizeof *bigger);
        if (!bigger)
            return false;
        list->ids = bigger;
        list->capacity = wanted;
    }
    list->ids[list->n++] = id;
    return true;
}

/* The hash is seeded, because the pairs come from an untrusted file. */
static uint64_t hash_pair(const bpe_model *bpe, uint64_t pair)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)(pair ^ bpe->vocab.seed[0]) * bpe->vocab.seed[1];
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static bpe_merge *slot_of(const bpe_model *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = hash_pair(bpe, pair) & (bpe->n_slots - 1);
    while (bpe->merges[i].pair != pair && bpe->merges[i].pair != EMPTY_PAIR)
        i = (i + 1) & (bpe->n_slots - 1);
    return &bpe->merges[i];
}

bool gac_bpe_reserve(bpe_model *bpe, int32_t n_merges)
{
    bpe->n_slots = 16;
    while (bpe->n_slots < (uint64_t)n_merges * 2)
        bpe->n_slots *= 2;
    bpe->merges = malloc(bpe->n_slots * sizeof *bpe->merges);
    bpe->joints = malloc(bpe->n_slots * sizeof *bpe->joints);
    if (!bpe->merges || !bpe->joints)
        return false;
    for (uint64_t i = 0; i < bpe->n_slots; i++)
        bpe->merges[i].pair = bpe->joints[i] = EMPTY_PAIR;
    return true;
}

/* Returns the slot of two characters in the table of joints. */
static uint64_t *joint_of(const bpe_model *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = hash_pair(bpe, pair) & (bpe->n_slots - 1);
    while (bpe->joints[i] != pair && bpe->joints[i] != EMPTY_PAIR)
        i = (i + 1) & (bpe->n_slots - 1);
    return &bpe->joints[i];
}

/* Records that a merge can join the last character of left and the first of
 * right. Byte tokens and the unknown token hide their characters; never_cut is
 * set if a merge uses one. */
static void add_joint(bpe_model *bpe, const char *left, const char *right)
{
    size_t length, n = strlen(left);
    if (n == 0 || right[0] == 0)
        return;
    size_t before = gac_utf8_before(left, n);
    gac_utf8_get(right, &length);
    int32_t a = gac_namemap_find_n(&bpe->vocab, left + before, n - before);
    int32_t b = gac_namemap_find_n(&bpe->vocab, right, length);
    if (a >= 0 && b >= 0)
        *joint_of(bpe, a, b) = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
}

static bool is_byte_token(const char *piece)
{
    return strlen(piece) == 6 && strncmp(piece, "<0x", 3) == 0;
}

void gac_bpe_add_merge(bpe_model *bpe, const char *const pieces[2], const int32_t ids[2],
                       int32_t rank, int32_t id)
{
    bpe_merge *merge = slot_of(bpe, ids[0], ids[1]);
    merge->pair = (uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1];
    merge->rank = rank;
    merge->id = id;
    add_joint(bpe, pieces[0], pieces[1]);
    for (int i = 0; i < 2; i++)
        if (is_byte_token(pieces[i]) || ids[i] == bpe->unk)
            bpe->never_cut = true;
}

bool gac_bpe_prepare(bpe_model *bpe)
{
    char text[8];
    for (uint32_t c = 0; c < N_LOW_CHARS; c++) {
        size_t n = c < 0x80 ? 1 : 2;
        text[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
        bpe->low[c] = gac_namemap_find_n(&bpe->vocab, text, n);
    }
    for (unsigned int b = 0; b < 256; b++) {
        snprintf(text, sizeof text, "<0x%02X>", b);
        bpe->bytes[b] = gac_namemap_find(&bpe->vocab, text);
    }
    bpe->cache = calloc((size_t)1 << SLOT_BITS, sizeof *bpe->cache);
    return bpe->cache != NULL;
}

void gac_bpe_dispose(bpe_model *bpe)
{
    gac_namemap_dispose(&bpe->vocab);
    free(bpe->merges);
    free(bpe->joints);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe->cache);
}

static bool is_before(const bpe_candidate *a, const bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void push(bpe_model *bpe, bpe_candidate candidate)
{
    int32_t i = bpe->n_heap++;
    for (; i > 0 && is_before(&candidate, &bpe->heap[(i - 1) / 2]); i = (i - 1) / 2)
        bpe->heap[i] = bpe->heap[(i - 1) / 2];
    bpe->heap[i] = candidate;
}

static bpe_candidate pop(bpe_model *bpe)
{
    bpe_candidate top = bpe->heap[0], last = bpe->heap[--bpe->n_heap];
    int64_t i = 0, child;
    while ((child = 2 * i + 1) < bpe->n_heap) {
        if (child + 1 < bpe->n_heap && is_before(&bpe->heap[child + 1], &bpe->heap[child]))
            child++;
        if (!is_before(&bpe->heap[child], &last))
            break;
        bpe->heap[i] = bpe->heap[child];
        i = child;
    }
    bpe->heap[i] = last;
    return top;
}

/* Adds the merge of a symbol and the next one to the heap, if there is one. */
static void consider(bpe_model *bpe, int32_t position)
{
    const bpe_symbol *symbol = &bpe->symbols[position];
    if (symbol->next < 0)
        return;
    const bpe_merge *merge = slot_of(bpe, symbol->id, bpe->symbols[symbol->next].id);
    if (merge->pair != EMPTY_PAIR)
        push(bpe, (bpe_candidate){ merge->rank, position, merge->id });
}

/* Merges the symbols in [start, end). */
static void merge_symbols(bpe_model *bpe, int32_t start, int32_t end)
{
    bpe->n_heap = 0;
    for (int32_t i = start; i + 1 < end; i++)
        consider(bpe, i);
    while (bpe->n_heap > 0) {
        bpe_candidate top = pop(bpe);
        bpe_symbol *left = &bpe->symbols[top.position];
        if (left->id < 0 || left->next < 0)
            continue;
        bpe_symbol *right = &bpe->symbols[left->next];
        const bpe_merge *merge = slot_of(bpe, left->id, right->id);
        if (merge->pair == EMPTY_PAIR || merge->id != top.id)
            continue; /* one of the two has been merged in the meantime */
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            bpe->symbols[left->next].previous = top.position;
        if (left->previous >= 0)
            consider(bpe, left->previous);
        consider(bpe, top.position);
    }
}

/* Reserves the heap: one candidate per pair, and one per merge. */
static bool reserve_heap(bpe_model *bpe, int32_t n_symbols)
{
    size_t n = (size_t)n_symbols * 2;
    if (n <= bpe->heap_room)
        return true;
    bpe_candidate *bigger = reallocarray(bpe->heap, n + n / 2 + 64, sizeof *bigger);
    if (!bigger)
        return false;
    bpe->heap = bigger;
    bpe->heap_room = n + n / 2 + 64;
    return true;
}

/* Cuts the word where no merge can join neighbours, and merges each section. */
static bool merge_word(bpe_model *bpe)
{
    bpe_symbol *symbols = bpe->symbols;
    for (int32_t start = 0, end; start < bpe->n_symbols; start = end) {
        for (end = start + 1; end < bpe->n_symbols; end++)
            if (!bpe->never_cut &&
                *joint_of(bpe, symbols[end - 1].id, symbols[end].id) == EMPTY_PAIR)
                break;
        if (end < bpe->n_symbols)
            symbols[end - 1].next = symbols[end].previous = -1;
        if (end - start > 1) {
            if (!reserve_heap(bpe, end - start))
                return false;
            merge_symbols(bpe, start, end);
        }
    }
    return true;
}

/* Reserves one symbol per byte, the most that a word can have. */
static bool reserve(bpe_model *bpe, size_t n)
{
    if (n <= bpe->symbol_room)
        return true;
    size_t room = n + n / 2 + 64;
    bpe_symbol *bigger = reallocarray(bpe->symbols, room, sizeof *bigger);
    if (!bigger)
        return false;
    bpe->symbols = bigger;
    bpe->symbol_room = room;
    return true;
}

static void add_symbol(bpe_model *bpe, int32_t id)
{
    int32_t i = bpe->n_symbols++;
    bpe->symbols[i] = (bpe_symbol){ id, i - 1, -1 };
    if (i > 0)
        bpe->symbols[i - 1].next = i;
}

/* Adds the ids of a character's bytes. False if the vocabulary lacks one of them. */
static bool add_bytes(bpe_model *bpe, const char *character, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bpe->bytes[(unsigned char)character[i]] < 0)
            return false;
    for (size_t i = 0; i < length; i++)
        add_symbol(bpe, bpe->bytes[(unsigned char)character[i]]);
    return true;
}

/* Adds one symbol per character. An unknown character is added only when the
 * next known one follows, so that fuse_unk can join a run of them. Byte tokens
 * do not end such a run. */
static gac_status add_characters(bpe_model *bpe, const char *word, size_t n, gac_error *err)
{
    bool unknown = false;
    size_t length;
    bpe->n_symbols = 0;
    for (size_t at = 0; at < n; at += length) {
        uint32_t c = gac_utf8_get(word + at, &length);
        int32_t id =
            c < N_LOW_CHARS ? bpe->low[c] : gac_namemap_find_n(&bpe->vocab, word + at, length);
        if (id >= 0) {
            if (unknown)
                add_symbol(bpe, bpe->unk);
            unknown = false;
            add_symbol(bpe, id);
        } else if ((!bpe->byte_fallback || !add_bytes(bpe, word + at, length)) && bpe->has_unk) {
            if (bpe->unk < 0)
                return gac_error_set(err, GAC_BAD_INPUT,
                                     "the text has a character the tokenizer "
                                     "does not know, and its unk_token is not in its vocabulary");
            if (unknown && !bpe->fuse_unk)
                add_symbol(bpe, bpe->unk);
            unknown = true;
        }
    }
    if (unknown)
        add_symbol(bpe, bpe->unk);
    return GAC_OK;
}

static uint32_t slot_number(const char *word, size_t n)
{
    uint64_t h = n;
    for (; n >= 8; n -= 8, word += 8) {
        uint64_t block;
        memcpy(&block, word, 8);
        h = (h ^ block) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    uint64_t block = 0;
    memcpy(&block, word, n);
    h = (h ^ block) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> (64 - SLOT_BITS));
}

static void remember(word_slot *slot, const char *word, size_t n, const int32_t *ids, size_t n_ids)
{
    if (!slot || n_ids > SLOT_IDS)
        return;
    slot->n_bytes = (uint8_t)n;
    slot->n_ids = (uint8_t)n_ids;
    memcpy(slot->word, word, n);
    memcpy(slot->ids, ids, n_ids * sizeof ids[0]);
}

/* Appends the ids of the remaining symbols. */
static bool collect(const bpe_model *bpe, id_list *out)
{
    for (int32_t i = 0; i < bpe->n_symbols; i++)
        if (bpe->symbols[i].id >= 0 && !gac_ids_append(out, bpe->symbols[i].id))
            return false;
    return true;
}

static gac_status find_ids(bpe_model *bpe, const char *word, size_t n, id_list *out, gac_error *err)
{
    int32_t whole = bpe->ignore_merges ? gac_namemap_find_n(&bpe->vocab, word, n) : -1;
    if (whole >= 0)
        return gac_ids_append(out, whole) ? GAC_OK : gac_error_no_memory(err);
    if (n > INT32_MAX / 4)
        return gac_error_set(err, GAC_USAGE, "a word of %zu bytes is too long to tokenize", n);
    if (!reserve(bpe, n))
        return gac_error_no_memory(err);
    gac_status status = add_characters(bpe, word, n, err);
    if (status != GAC_OK)
        return status;
    return merge_word(bpe) && collect(bpe, out) ? GAC_OK : gac_error_no_memory(err);
}

gac_status gac_bpe_word(bpe_model *bpe, const char *word, size_t n, id_list *out, gac_error *err)
{
    word_slot *slot = n <= SLOT_WORD_BYTES ? &bpe->cache[slot_number(word, n)] : NULL;
    if (!slot || slot->n_bytes != n || memcmp(slot->word, word, n) != 0) {
        size_t from = out->n;
        gac_status status = find_ids(bpe, word, n, out, err);
        if (status == GAC_OK && out->n > from)
            remember(slot, word, n, out->ids + from, out->n - from);
        return status;
    }
    for (int i = 0; i < slot->n_ids; i++)
        if (!gac_ids_append(out, slot->ids[i]))
            return gac_error_no_memory(err);
    return GAC_OK;
}

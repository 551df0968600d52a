/* What the files of the tokenizer share.
 *
 * Encoding is a pipeline: text -> added tokens cut out -> normalizers -> added
 * tokens cut out again -> steps of the pre-tokenizer -> words -> BPE -> ids ->
 * the post-processor's prefix and suffix. Every step hands pieces to the next
 * as it finds them, so memory follows the longest piece. */
#ifndef GAC_TOKENIZER_INTERNAL_H
#define GAC_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "base/json_reader.h"
#include "base/namemap.h"
#include "base/utf8.h"

#include <gac/tokenizer.h>

enum { MAX_STEPS = 16, MAX_STEP_BYTES = 256, MAX_TEMPLATE = 64 };

/* ---- Characters ---------------------------------------------------------- */

bool gac_char_is_space(uint32_t c);   /* White_Space */
bool gac_char_is_word(uint32_t c);    /* \w of Unicode's regular expressions */
bool gac_char_is_numeric(uint32_t c); /* general category N */

/* The character that stands for a byte in byte-level BPE, as UTF-8 of one or
 * two bytes; and the byte a character stands for, or -1. */
size_t gac_byte_char(unsigned char byte, char out[2]);
int gac_char_byte(uint32_t c);

/* ---- Patterns: Oniguruma's syntax on PCRE2 -------------------------------- */

typedef struct gac_pattern gac_pattern;

/* Compiles n bytes. What does not mean the same to PCRE2 is rewritten or
 * refused. */
gac_status gac_pattern_compile(const char *text, size_t n, bool literal, gac_pattern **out,
                               char *why, size_t why_bytes);
void gac_pattern_free(gac_pattern *pattern);

/* Walks the matches in a text of valid UTF-8. */
typedef struct pattern_walk {
    gac_pattern *pattern;
    const char *text;
    size_t n, from, last_end;
    bool matched; /* last_end is one */
} pattern_walk;

/* *found is false when there are no more. */
gac_status gac_pattern_next(pattern_walk *walk, bool *found, size_t *start, size_t *end,
                            gac_error *err);

/* ---- Normalizers ---------------------------------------------------------- */

typedef enum normal_kind {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_PREPEND,
    NORMAL_REPLACE
} normal_kind;

typedef struct normal_step {
    normal_kind kind;
    gac_pattern *pattern; /* REPLACE */
    const char *content;  /* PREPEND, REPLACE */
    size_t n_content;
} normal_step;

typedef struct normalizer {
    normal_step steps[MAX_STEPS];
    int32_t n_steps;
    byte_buffer rooms[2];
} normalizer;

/* *text and *n become the normalized text: as they were, or borrowed from
 * the normalizer until its next use. */
gac_status gac_normalize(normalizer *normal, const char **text, size_t *n, gac_error *err);

/* ---- Added tokens ----------------------------------------------------------- */

typedef struct added_token {
    const char *content;
    const char *match; /* what is looked for in the text: content, normalized or not */
    size_t n_match;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} added_token;

/* Tokens to look for, sorted, so that a range of them has a common beginning. */
typedef struct token_set {
    const added_token **tokens;
    int32_t n_tokens;
    int32_t first[257]; /* where the tokens that start with a byte are */
} token_set;

/* A place in a text where a token stands, with the space it takes in. */
typedef struct token_place {
    const added_token *token; /* NULL: none up to the end */
    size_t start, end;
} token_place;

/* Sorts the tokens; false when two are the same. */
bool gac_token_set_prepare(token_set *set);
/* The next token at or after *from, which moves behind it; covered is the end
 * of the last one with its space. */
token_place gac_token_set_find(const token_set *set, const char *text, size_t n, size_t *from,
                               size_t covered);

/* ---- BPE ---------------------------------------------------------------------- */

typedef struct bpe_merge {
    uint64_t pair; /* left << 32 | right; EMPTY_PAIR where free */
    int32_t rank, id;
} bpe_merge;

typedef struct bpe_symbol {
    int32_t id; /* -1: merged into the one before */
    int32_t previous, next;
} bpe_symbol;

typedef struct bpe_candidate {
    int32_t rank, position, id;
} bpe_candidate;

typedef struct word_slot word_slot;

enum { N_LOW_CHARS = 0x400 };

typedef struct bpe_model {
    gac_namemap vocab; /* piece -> id, of the model only */
    bpe_merge *merges; /* (n_slots), a hash table */
    uint64_t *joints;  /* (n_slots), pairs of characters that some merge joins; likewise */
    bool never_cut;    /* joints do not tell all */
    uint64_t n_slots;
    int32_t low[N_LOW_CHARS]; /* ids of single characters, -1: none */
    int32_t bytes[256];       /* ids of <0x00> ... */
    bool byte_fallback, fuse_unk, ignore_merges, has_unk;
    int32_t unk;
    bpe_symbol *symbols;
    bpe_candidate *heap;
    int32_t n_symbols, n_heap;
    size_t symbol_room, heap_room;
    word_slot *cache; /* words seen, overwritten by others */
} bpe_model;

typedef struct id_list {
    int32_t *ids;
    size_t n, capacity;
} id_list;

bool gac_ids_append(id_list *list, int32_t id);

/* Room for n merges, then the merges one by one; the last of equal pairs
 * counts. bpe->unk is known by then. */
bool gac_bpe_reserve(bpe_model *bpe, int32_t n_merges);
void gac_bpe_add_merge(bpe_model *bpe, const char *const pieces[2], const int32_t ids[2],
                       int32_t rank, int32_t id);
/* Fills the tables that the vocabulary determines. */
bool gac_bpe_prepare(bpe_model *bpe);
void gac_bpe_dispose(bpe_model *bpe);
/* Appends the ids of one word of valid UTF-8. */
gac_status gac_bpe_word(bpe_model *bpe, const char *word, size_t n, id_list *out, gac_error *err);

/* ---- Pre-tokenizer --------------------------------------------------------------- */

typedef enum split_kind {
    SPLIT_PATTERN,
    SPLIT_DIGITS,
    SPLIT_BYTE_LEVEL,
    SPLIT_METASPACE
} split_kind;
typedef enum split_behavior {
    BEHAVIOR_ISOLATED,
    BEHAVIOR_REMOVED,
    BEHAVIOR_CONTIGUOUS,
    BEHAVIOR_WITH_PREVIOUS,
    BEHAVIOR_WITH_NEXT
} split_behavior;
typedef enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

typedef struct split_step {
    split_kind kind;
    gac_pattern *pattern; /* NULL: do not split */
    split_behavior behavior;
    bool invert;
    bool prefix_space;        /* BYTE_LEVEL */
    prepend_scheme scheme;    /* METASPACE */
    const char *replacement;  /* METASPACE */
    byte_buffer text, mapped; /* what the step made of its piece, and of a part of it */
} split_step;

typedef struct pre_tokenizer {
    split_step steps[MAX_STEPS];
    int32_t n_steps;
} pre_tokenizer;

/* Appends the ids of the words in text; at_start says that it begins where
 * the whole text begins. */
gac_status gac_split_words(pre_tokenizer *pre, bpe_model *bpe, const char *text, size_t n,
                           bool at_start, id_list *out, gac_error *err);

/* ---- Decoder ------------------------------------------------------------------------ */

typedef enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_METASPACE,
    DECODE_STRIP
} decode_kind;

typedef struct decode_step {
    decode_kind kind;
    gac_pattern *pattern;
    const char *content; /* REPLACE, and the character of STRIP and METASPACE */
    size_t n_content;
    int32_t start, stop; /* STRIP: characters at most */
    prepend_scheme scheme;
} decode_step;

typedef struct decoder {
    decode_step steps[MAX_STEPS]; /* on every token */
    int32_t n_steps;
    bool present;      /* without one, tokens are joined by spaces */
    bool fused;        /* while reading: the tokens have been joined */
    decode_step strip; /* of the whole text, where n_content > 0 */
    byte_buffer rooms[2];
} decoder;

/* The bytes of a token; *text and *n as in gac_normalize. */
gac_status gac_decode_token(decoder *dec, bool first, const char **text, size_t *n, gac_error *err);
/* How many bytes the beginning of a whole text loses. */
size_t gac_decode_strip(const decode_step *strip, const char *text, size_t n);

/* ---- The whole ------------------------------------------------------------------------ */

struct gac_tokenizer {
    gac_arena arena;
    const char **pieces; /* (n_ids), as the file spells them; NULL: none */
    const char **shown;  /* (n_ids), what the decoder gets */
    bool *special;       /* (n_ids) */
    int32_t n_ids, id_room;
    int32_t n_vocab; /* pieces of the model */
    int32_t bos, eos;
    bpe_model bpe;
    added_token *added;
    int32_t n_added, added_room;
    gac_namemap added_ids;
    token_set raw, normalized; /* looked for before and after normalizing */
    normalizer normal;
    pre_tokenizer pre;
    decoder dec;
    int32_t prefix[MAX_TEMPLATE], suffix[MAX_TEMPLATE];
    int32_t n_prefix, n_suffix;
    byte_buffer repaired;
    id_list ids;
};

/* Reads tokenizer.json into an empty tokenizer. */
gac_status gac_tokenizer_load(gac_tokenizer *t, const char *directory, gac_error *err);
/* Gives piece the id; false when out of memory. */
bool gac_tokenizer_set_piece(gac_tokenizer *t, int32_t id, const char *piece);
/* Sorts out the added tokens, once model and normalizer are known. */
gac_status gac_tokenizer_add_tokens(gac_tokenizer *t, const char *source, gac_error *err);

/* Parts of tokenizer.json; value may be null. */
bool gac_tokenizer_read_normalizer(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_pre(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_decoder(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_post(gac_tokenizer *t, gac_reader *r, const json_t *value);

#endif

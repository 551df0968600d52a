/* What the files of the tokenizer share.
 *
 * Encoding is a pipeline. It cuts out the added tokens, normalizes, cuts out
 * the added tokens that match normalized text, applies the steps of the
 * pre-tokenizer, which give words, encodes each word by BPE, and adds the
 * post-processor's prefix and suffix. Every step passes its pieces on as it
 * finds them, so that the longest piece determines the memory. */
#ifndef GAC_TOKENIZER_INTERNAL_H
#define GAC_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "base/json_reader.h"
#include "base/namemap.h"
#include "base/utf8.h"

#include <gac/tokenizer.h>

enum { MAX_STEPS = 16, MAX_STEP_BYTES = 256, MAX_TEMPLATE = 64 };

bool gac_char_is_space(uint32_t c);   /* White_Space */
bool gac_char_is_word(uint32_t c);    /* \w of Unicode regular expressions */
bool gac_char_is_numeric(uint32_t c); /* general category N */

/* gac_byte_char returns the character that stands for a byte in byte-level BPE,
 * as one or two bytes of UTF-8. gac_char_byte does the reverse, and returns -1
 * for other characters. */
size_t gac_byte_char(unsigned char byte, char out[2]);
int gac_char_byte(uint32_t c);

typedef struct gac_pattern gac_pattern;

/* Compiles a pattern of n bytes in Oniguruma's syntax for PCRE2. It rewrites
 * constructs that differ, or refuses them. */
gac_status gac_pattern_compile(const char *text, size_t n, bool literal, gac_pattern **out,
                               char *why, size_t why_bytes);
void gac_pattern_free(gac_pattern *pattern);

/* Iterates over the matches in a text of valid UTF-8. */
typedef struct pattern_walk {
    gac_pattern *pattern;
    const char *text;
    size_t n, from, last_end;
    bool matched; /* last_end is the end of a match */
} pattern_walk;

/* Finds the next match. *found is false after the last. */
gac_status gac_pattern_next(pattern_walk *walk, bool *found, size_t *start, size_t *end,
                            gac_error *err);

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
    gac_pattern *pattern; /* for REPLACE */
    const char *content;  /* for PREPEND and REPLACE */
    size_t n_content;
} normal_step;

typedef struct normalizer {
    normal_step steps[MAX_STEPS];
    int32_t n_steps;
    byte_buffer rooms[2];
} normalizer;

/* Replaces *text and *n by the normalized text. It is the same text, or belongs
 * to the normalizer until its next use. */
gac_status gac_normalize(normalizer *normal, const char **text, size_t *n, gac_error *err);

typedef struct added_token {
    const char *content;
    const char *match; /* the text to search for: content, normalized or not */
    size_t n_match;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} added_token;

/* Tokens to search for, sorted, so that tokens with a common prefix are adjacent. */
typedef struct token_set {
    const added_token **tokens;
    int32_t n_tokens;
    int32_t first[257]; /* index of the first token that starts with each byte */
} token_set;

/* A token in a text, with the white space that it strips. */
typedef struct token_match {
    const added_token *token; /* NULL: no more tokens */
    size_t start, end;
} token_match;

/* Sorts the tokens. False if two are equal. */
bool gac_token_set_prepare(token_set *set);
/* Finds the next token at or after *from, and moves *from behind it. The white
 * space of a token cannot extend before covered, the end of the previous match. */
token_match gac_token_set_find(const token_set *set, const char *text, size_t n, size_t *from,
                               size_t covered);

typedef struct bpe_merge {
    uint64_t pair; /* left << 32 | right, or EMPTY_PAIR */
    int32_t rank, id;
} bpe_merge;

typedef struct bpe_symbol {
    int32_t id; /* -1: merged into the previous symbol */
    int32_t previous, next;
} bpe_symbol;

typedef struct bpe_candidate {
    int32_t rank, position, id;
} bpe_candidate;

typedef struct word_slot word_slot;

enum { N_LOW_CHARS = 0x400 };

typedef struct bpe_model {
    gac_namemap vocab; /* piece -> id, without added tokens */
    bpe_merge *merges; /* (n_slots), a hash table */
    uint64_t *joints;  /* (n_slots), a hash table of the character pairs that some merge joins */
    bool never_cut;    /* joints are incomplete */
    uint64_t n_slots;
    int32_t low[N_LOW_CHARS]; /* ids of the first characters; -1: none */
    int32_t bytes[256];       /* ids of <0x00> to <0xFF>; -1: none */
    bool byte_fallback, fuse_unk, ignore_merges, has_unk;
    int32_t unk;
    bpe_symbol *symbols;
    bpe_candidate *heap;
    int32_t n_symbols, n_heap;
    size_t symbol_room, heap_room;
    word_slot *cache; /* words encoded before */
} bpe_model;

typedef struct id_list {
    int32_t *ids;
    size_t n, capacity;
} id_list;

bool gac_ids_append(id_list *list, int32_t id);

/* Reserve the table for n merges, then add them. The last of equal pairs
 * counts. Set bpe->unk before. */
bool gac_bpe_reserve(bpe_model *bpe, int32_t n_merges);
void gac_bpe_add_merge(bpe_model *bpe, const char *const pieces[2], const int32_t ids[2],
                       int32_t rank, int32_t id);
/* Fills the tables that follow from the vocabulary. */
bool gac_bpe_prepare(bpe_model *bpe);
void gac_bpe_dispose(bpe_model *bpe);
/* Appends the ids of one word, which is valid UTF-8. */
gac_status gac_bpe_word(bpe_model *bpe, const char *word, size_t n, id_list *out, gac_error *err);

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
    gac_pattern *pattern; /* NULL: does not split */
    split_behavior behavior;
    bool invert;
    bool prefix_space;       /* for BYTE_LEVEL */
    prepend_scheme scheme;   /* for METASPACE */
    const char *replacement; /* for METASPACE */
    /* the step's input as rewritten, and one span of it mapped to byte-level characters */
    byte_buffer text, mapped;
} split_step;

typedef struct pre_tokenizer {
    split_step steps[MAX_STEPS];
    int32_t n_steps;
} pre_tokenizer;

/* Appends the ids of the words in text. at_start: text begins where the whole
 * input begins. */
gac_status gac_split_words(pre_tokenizer *pre, bpe_model *bpe, const char *text, size_t n,
                           bool at_start, id_list *out, gac_error *err);

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
    const char *content; /* for REPLACE; for STRIP and METASPACE the character */
    size_t n_content;
    int32_t start, stop; /* for STRIP: how many characters at most */
    prepend_scheme scheme;
} decode_step;

typedef struct decoder {
    decode_step steps[MAX_STEPS]; /* applied to every token */
    int32_t n_steps;
    bool present;      /* false: spaces join the tokens */
    bool fused;        /* while loading: a step that joins the tokens was read */
    decode_step strip; /* applied to the whole text if n_content > 0 */
    byte_buffer rooms[2];
} decoder;

/* Computes the bytes of a token. *text and *n are as in gac_normalize. */
gac_status gac_decode_token(decoder *dec, bool first, const char **text, size_t *n, gac_error *err);
/* Returns how many bytes are stripped from the beginning of the whole text. */
size_t gac_decode_strip(const decode_step *strip, const char *text, size_t n);

struct gac_tokenizer {
    gac_arena arena;
    const char **pieces; /* (n_ids), as in the file; NULL: unused id */
    const char **shown;  /* (n_ids), the decoder's input */
    bool *special;       /* (n_ids) */
    int32_t n_ids, id_room;
    int32_t n_vocab; /* pieces of the model, without added tokens */
    int32_t bos, eos;
    bpe_model bpe;
    added_token *added;
    int32_t n_added, added_room;
    gac_namemap added_ids;
    token_set raw, normalized; /* searched for before and after normalizing */
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
/* Gives piece the id. False without memory. */
bool gac_tokenizer_set_piece(gac_tokenizer *t, int32_t id, const char *piece);
/* Gives the added tokens their ids and sorts them. Read the model and the
 * normalizer before. */
gac_status gac_tokenizer_add_tokens(gac_tokenizer *t, const char *source, gac_error *err);

/* These read components of tokenizer.json. value may be null. */
bool gac_tokenizer_read_normalizer(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_pre(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_decoder(gac_tokenizer *t, gac_reader *r, const json_t *value);
bool gac_tokenizer_read_post(gac_tokenizer *t, gac_reader *r, const json_t *value);

#endif

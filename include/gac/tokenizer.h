/* tokenizer: text to tokens and back.
 *
 * A tokenizer keeps working memory, so one thread uses it at a time. */
#ifndef GAC_TOKENIZER_H
#define GAC_TOKENIZER_H

#include <gac/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The tokenizer of a Hugging Face directory: tokenizer.json with a BPE model,
 * byte-level (GPT-2, Llama-3, Qwen, SmolLM) or as SentencePiece makes it
 * (Llama-2). Gives the ids that the `tokenizers` package gives.
 *
 * Text is bytes. What is not UTF-8 in it counts as U+FFFD, one for every
 * longest beginning of a character, as Python's errors="replace" has it.
 * Truncation and padding, which a tokenizer.json can ask for, are not done.
 *
 * A tokenizer keeps working memory of its own, hence one thread at a time. */
typedef struct gac_tokenizer gac_tokenizer;

/* Limits on what a tokenizer.json may ask of us. */
#define GAC_MAX_TOKENIZER_BYTES (128 << 20)
#define GAC_MAX_TOKENS (1 << 22)
#define GAC_MAX_MERGES (1 << 22)

/* Reads tokenizer.json and, where they exist, tokenizer_config.json and
 * special_tokens_map.json for the names of the special tokens. The caller owns
 * *out. Errors: GAC_BAD_INPUT, with file and JSON path, for what is wrong and
 * for what is not supported. */
gac_status gac_tokenizer_open(const char *directory, gac_tokenizer **out, gac_error *err);
void gac_tokenizer_close(gac_tokenizer *tokenizer); /* NULL is fine */

/* The greatest id, plus one. Ids below may be missing. */
int32_t gac_tokenizer_n_ids(const gac_tokenizer *tokenizer);
/* Ids of the tokens that begin and end a text; -1 where there is none. */
int32_t gac_tokenizer_bos(const gac_tokenizer *tokenizer);
int32_t gac_tokenizer_eos(const gac_tokenizer *tokenizer);
/* The piece of an id as the file spells it, or NULL; borrowed. */
const char *gac_tokenizer_piece(const gac_tokenizer *tokenizer, int32_t id);
/* The id of a piece as the file spells it, or -1. */
int32_t gac_tokenizer_find(const gac_tokenizer *tokenizer, const char *piece);
/* Whether an id is a special token. */
bool gac_tokenizer_is_special(const gac_tokenizer *tokenizer, int32_t id);

/* Turns n_bytes of text (less than 1 GiB) into ids. With add_special, the
 * tokens that the post-processor puts around a text are added. *out is
 * malloc'ed, also when *n_ids is 0; free() it. */
gac_status gac_tokenizer_encode(gac_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                bool add_special, int32_t **out, size_t *n_ids, gac_error *err);

/* Turns ids into bytes; they may end inside a character, and byte tokens give
 * their bytes even where these make no character. Unknown ids, and special
 * tokens if skip_special, give nothing. *out is malloc'ed and has a NUL after
 * its *n_bytes bytes; free() it. */
gac_status gac_tokenizer_decode(gac_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                                bool skip_special, char **out, size_t *n_bytes, gac_error *err);

/* The bytes of one id, for a text that is shown as it is made. first says
 * that it is the first one of the text that is shown, which may lose its
 * leading space. Bytes of consecutive ids make up what gac_tokenizer_decode
 * gives; where characters end is up to the caller. *bytes is borrowed until
 * the next call. */
gac_status gac_tokenizer_decode_one(gac_tokenizer *tokenizer, int32_t id, bool first,
                                    const char **bytes, size_t *n_bytes, gac_error *err);

/* Chat. */

/* How a chat model is talked to: the chat template of a directory, a program in Jinja. What
 * templates commonly use of the language is run, and can do nothing but make a text. */
typedef struct gac_chat gac_chat;

/* Reads chat_template.jinja or, without it, chat_template in tokenizer_config.json. *out is NULL
 * if the directory has no template, otherwise the caller owns it. GAC_BAD_INPUT for a template
 * with something that is not known. */
gac_status gac_chat_open(const char *directory, gac_chat **out, gac_error *err);
void gac_chat_close(gac_chat *chat); /* NULL is fine */
/* Returns the token with which the template ends an answer; -1 if it has none, or for NULL. */
int32_t gac_chat_end(const gac_chat *chat, gac_tokenizer *tokenizer);
/* Makes the text that asks for an answer to one message, as transformers' apply_chat_template
 * does with add_generation_prompt. Its special tokens are spelled out: encode it without others.
 * system may be NULL. *out is malloc'ed. GAC_USAGE, with the template's words, for messages that it
 * refuses; GAC_BAD_INPUT if it comes to something that is not known. */
gac_status gac_chat_prompt(const gac_chat *chat, const gac_tokenizer *tokenizer, const char *system,
                           const char *user, char **out, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

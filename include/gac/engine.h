/* engine: running a model.
 *
 * From text to tokens and back, and the forward pass between. Knows what a
 * model computes; compression and timing happen elsewhere. */
#ifndef GAC_ENGINE_H
#define GAC_ENGINE_H

#include <gac/base.h>
#include <gac/device.h>
#include <gac/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Tokenizer ---------------------------------------------------------- */

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

/* ---- Running a model ----------------------------------------------------- */

/* A model on a device, with room for the keys and values of some sequences.
 * Llama, Mistral, Qwen2, Qwen3 and what shares their layout (SmolLM); dense,
 * or compressed in a way the model room explains. */
typedef struct gac_engine gac_engine;

typedef struct gac_engine_options {
    const char *device;     /* "reference", "cpu", "cuda", "cuda:N" */
    gac_dtype dtype;        /* cuda: F16 or BF16; GAC_DTYPE_COUNT: the model's own, else F16 */
    bool as_is;             /* sizes are not padded inside, for comparison */
    int n_threads;          /* CPUs; 0: one for each core */
    int64_t max_batch;      /* sequences at a time */
    int64_t max_context;    /* tokens of one sequence; 0: what the model allows, at most 4096 */
    int64_t max_new;        /* tokens of one sequence in one pass; 0: max_context */
    int64_t max_rows;       /* tokens of all sequences in one pass; 0: max_batch times max_new */
    int64_t max_cached;     /* tokens of all sequences together; 0: max_batch times max_context */
    gac_progress *progress; /* of loading; NULL: none */
    const gac_log *log;     /* NULL: silent */
} gac_engine_options;

#define GAC_ENGINE_OPTIONS_INIT \
    { \
        "cpu", GAC_DTYPE_COUNT, false, 0, 1, 0, 0, 0, 0, NULL, NULL \
    }

typedef struct gac_engine_info {
    int64_t vocab;
    int64_t hidden;
    int32_t n_layers;
    int64_t max_context;   /* of this engine */
    int64_t model_context; /* max_position_embeddings, or the sliding window if smaller */
    gac_dtype dtype;       /* computed in */
    int64_t weight_bytes, cache_bytes, work_bytes; /* held now, and never more before */
    double load_s;
} gac_engine_info;

/* Puts the model on the device. The model and its checkpoint must outlive the
 * engine: on the CPUs weights stay mapped. options may be NULL. GAC_BAD_INPUT
 * for a missing or wrong tensor, a weight that is not finite, and what this
 * engine does not run; GAC_NO_RESOURCE without the device or its memory. */
gac_status gac_engine_open(const gac_model *model, const gac_engine_options *options,
                           gac_engine **out, gac_error *err);
void gac_engine_close(gac_engine *engine); /* NULL is fine */
void gac_engine_describe(const gac_engine *engine, gac_engine_info *out);

/* Divides the cache among batch sequences of up to context tokens, batch times
 * context at most max_cached; what it held is lost. Before the first call it is
 * divided among max_batch sequences. Losses and generation divide it for one.
 * GAC_USAGE for more than the options allow. */
gac_status gac_engine_reserve(gac_engine *engine, int64_t batch, int64_t context, gac_error *err);

/* One pass: n_new tokens for each of batch sequences, ids (batch, n_new), after
 * n_past that went in before. Positions from n_past on are written anew, so a
 * sequence is begun again by n_past 0. logits (batch, vocab) gets those of each
 * last token; NULL: they are computed, not read. Waits for the device. GAC_USAGE
 * for an id outside the vocabulary and for more than the engine has room for. */
gac_status gac_engine_forward(gac_engine *engine, const int32_t *ids, int64_t batch, int64_t n_new,
                              int64_t n_past, float *logits, gac_error *err);

/* Passes step progress from now on, layer by layer: to n_done, and where
 * counts_tokens is set to that and the tokens of a sequence so far. NULL: they no
 * longer do. */
void gac_engine_watch(gac_engine *engine, gac_progress *progress, uint64_t n_done,
                      bool counts_tokens);

/* GAC_BAD_INPUT where tokens of a text are none of the model's: its tokenizer is
 * that of another. */
gac_status gac_engine_check_text(const gac_engine *engine, const int32_t *ids, size_t n_ids,
                                 gac_error *err);

/* Logits of the last pass, of rows first to first + n - 1 of (batch, n_new):
 * (n, vocab), any n. */
gac_status gac_engine_logits(gac_engine *engine, int64_t first, int64_t n, float *out,
                             gac_error *err);

/* -log p(ids[i + 1] | ids[0..i]) for i = 0..n_ids - 2, natural logarithm, from
 * an empty cache, one sequence of at most max_context + 1 ids. losses (n_ids - 1). */
gac_status gac_engine_losses(gac_engine *engine, const int32_t *ids, int64_t n_ids, double *losses,
                             gac_error *err);

/* model_context of a model that is not opened yet. GAC_BAD_INPUT for what this
 * engine does not run. */
gac_status gac_engine_model_context(const gac_model *model, int64_t *n_tokens, gac_error *err);

/* ---- Perplexity ---------------------------------------------------------- */

#define GAC_DEFAULT_WINDOW 2048

typedef struct gac_perplexity_options {
    int64_t window;         /* tokens; 0: GAC_DEFAULT_WINDOW, or the engine's context if smaller */
    int64_t max_windows;    /* 0: all */
    gac_progress *progress; /* NULL: none */
} gac_perplexity_options;

#define GAC_PERPLEXITY_OPTIONS_INIT \
    { \
        0, 0, NULL \
    }

typedef struct gac_perplexity {
    double value;       /* exp(mean_loss) */
    double value_error; /* standard error of value, by that of mean_loss times value */
    double mean_loss;   /* of a predicted token, natural logarithm */
    int64_t n_tokens;   /* predicted */
    int64_t n_windows;
    int64_t window; /* tokens */
} gac_perplexity;

/* Perplexity of a text that was turned into ids once, as a whole. Windows of
 * window ids follow each other without overlap, each from an empty cache; its
 * first id is given and the others are predicted. A last window of two ids or
 * more counts like the others. GAC_USAGE for fewer than two ids and for a window
 * the engine has no room for, GAC_FAILED where a loss is not finite. */
gac_status gac_engine_perplexity(gac_engine *engine, const int32_t *ids, size_t n_ids,
                                 const gac_perplexity_options *options, gac_perplexity *out,
                                 gac_error *err);

/* ---- Generation ---------------------------------------------------------- */

/* How the next token is chosen. Logits are divided by temperature; of the top_k
 * greatest, the likeliest that together have top_p of the probability remain;
 * one of them is drawn. Equal logits are ordered by id, the lowest first. Draw
 * number i takes number i of splitmix64 from seed, its 53 high bits over 2^53:
 * the same on every machine where the logits are the same. */
typedef struct gac_sampling {
    double temperature; /* 0: always the likeliest token, and nothing below counts */
    int64_t top_k;      /* 0: all */
    double top_p;       /* above 0, at most 1: all */
    uint64_t seed;
} gac_sampling;

#define GAC_SAMPLING_INIT \
    { \
        0, 0, 1, 0 \
    }

typedef enum gac_stop {
    GAC_STOP_EOS,     /* a token of options->eos, which is not among the ids */
    GAC_STOP_LENGTH,  /* max_tokens */
    GAC_STOP_CONTEXT, /* the engine's context is full */
    GAC_STOP_CALLER   /* show said so */
} gac_stop;

const char *gac_stop_name(gac_stop stop); /* "eos", "length", "context", "caller" */

/* Gets every token as it is made and the text that became complete with it:
 * whole characters of valid UTF-8, maybe none, with a NUL behind. What cannot
 * become a character is U+FFFD. A last call with id -1 may bring what was left.
 * Returns false to stop. */
typedef bool (*gac_generate_show)(void *context, int32_t id, const char *text, size_t n_bytes);

typedef struct gac_generate_options {
    gac_sampling sampling;
    int64_t max_tokens; /* at least 1 */
    const int32_t *eos; /* (n_eos), tokens that end the text */
    int32_t n_eos;
    gac_generate_show show; /* NULL: none */
    void *show_context;
} gac_generate_options;

#define GAC_GENERATE_OPTIONS_INIT \
    { \
        GAC_SAMPLING_INIT, 128, NULL, 0, NULL, NULL \
    }

typedef struct gac_generation {
    int32_t *ids; /* (n_ids), without the prompt */
    int64_t n_ids;
    char *text; /* n_bytes and a NUL; special tokens give none */
    size_t n_bytes;
    gac_stop stop;
} gac_generation;

/* Continues prompt (n_prompt ids, at least one), which goes through the engine
 * in one pass. tokenizer may be NULL: there is no text then. Call
 * gac_generation_dispose on *out afterwards, always. GAC_USAGE for a prompt
 * longer than the context and for an impossible sampling. */
gac_status gac_engine_generate(gac_engine *engine, gac_tokenizer *tokenizer, const int32_t *prompt,
                               size_t n_prompt, const gac_generate_options *options,
                               gac_generation *out, gac_error *err);
void gac_generation_dispose(gac_generation *generation);

/* ---- Tasks ---------------------------------------------------------------- */

typedef struct gac_piqa_options {
    int64_t limit;          /* the first so many questions; 0: all */
    gac_progress *progress; /* NULL: none */
} gac_piqa_options;

#define GAC_PIQA_OPTIONS_INIT \
    { \
        0, NULL \
    }

typedef struct gac_piqa {
    int64_t n_questions;             /* of the file */
    int64_t n_asked;                 /* as many as the limit allows */
    double acc, acc_error;           /* by likelihood, with its standard error */
    double acc_norm, acc_norm_error; /* by likelihood per character */
} gac_piqa;

/* PIQA as lm-evaluation-harness asks it, without examples. path is JSON lines of
 * goal, sol1 and sol2, or a directory with them in valid.jsonl; the answer, 0 or
 * 1, is in label of each line, or on the same line of NAME-labels.lst beside
 * NAME.jsonl. Of a question longer than max_context + 1 tokens the end counts. */
gac_status gac_engine_piqa(gac_engine *engine, gac_tokenizer *tokenizer, const char *path,
                           const gac_piqa_options *options, gac_piqa *out, gac_error *err);

/* ---- Comparing two models -------------------------------------------------- */

#define GAC_MAX_COMPARE_BYTES (256 << 20) /* of logits that are kept */

typedef struct gac_compare_options {
    gac_engine_options engine; /* its sizes are set by the comparison */
    const int32_t *ids;        /* (n_ids); NULL: n_ids random ones */
    int64_t n_ids;
    uint64_t seed; /* of random ids */
    gac_progress *progress;
} gac_compare_options;

#define GAC_COMPARE_OPTIONS_INIT \
    { \
        GAC_ENGINE_OPTIONS_INIT, NULL, 64, 1, NULL \
    }

typedef struct gac_logit_comparison {
    bool bit_exact;      /* every logit of every position */
    bool finite;         /* likewise; the differences mean nothing otherwise */
    double max_abs_diff; /* the largest difference, */
    int64_t position;    /* where it is, or where the first logit is not finite, */
    int64_t token;       /* and of which token; both -1 when bit_exact */
    double relative;     /* norm of the difference over the norm of the first model's logits */
    int64_t n_ids;       /* as many as options, the context and GAC_MAX_COMPARE_BYTES allow */
    int64_t vocab;
    gac_dtype dtype; /* computed in */
} gac_logit_comparison;

/* Runs both models over the same ids, one after the other, so that one at a time
 * is in memory, and compares all logits. GAC_BAD_INPUT where the vocabularies
 * differ in size, GAC_USAGE for an id outside them. */
gac_status gac_engine_compare(const gac_model *a, const gac_model *b,
                              const gac_compare_options *options, gac_logit_comparison *out,
                              gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

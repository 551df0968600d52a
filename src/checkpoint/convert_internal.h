/* Shared by the converters: a Llama-like model in Hugging Face's terms, its
 * vocabulary, and functions that write both. */
#ifndef GAC_CHECKPOINT_CONVERT_INTERNAL_H
#define GAC_CHECKPOINT_CONVERT_INTERNAL_H

#include <gac/checkpoint.h>

#include <jansson.h>

#include "base/arena.h"
#include "checkpoint/gguf.h"

typedef struct convert_tensor {
    const char *name;  /* in Hugging Face's terms */
    int64_t shape[2];  /* (n_axes) */
    int32_t n_axes;    /* 1 or 2 */
    int64_t source;    /* identifies the tensor in the source, for the model's read function */
    int64_t n_rotated; /* number of heads if rotary pairs are neighbouring rows; otherwise 0 */
} convert_tensor;

/* Kinds of tokens. The values are those of GGUF. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef enum convert_vocab_kind { VOCAB_NONE, VOCAB_BYTE_LEVEL, VOCAB_SCORED } convert_vocab_kind;

/* A vocabulary. Ids of absent tokens are -1. */
typedef struct convert_vocab {
    convert_vocab_kind kind;
    int64_t n;
    const char **tokens; /* (n) UTF-8 */
    uint8_t *types;      /* (n) TOKEN_… */
    float *scores;       /* (n), of a scored vocabulary */
    const char **merges; /* (n_merges) "left right", of a byte-level one */
    int64_t n_merges;
    const char *split; /* name of the rule that splits text into words */
    int64_t bos, eos, unknown, pad;
    bool add_bos, add_eos, add_space;
    const char *chat_template; /* or NULL */
} convert_vocab;

typedef struct convert_model convert_model;

/* Reads n elements of a tensor, from first on. Callers ask for whole rows, or
 * for parts whose sizes are multiples of 256. */
typedef gac_status convert_read(convert_model *model, const convert_tensor *tensor, int64_t first,
                                int64_t n, float *out, gac_error *err);

struct convert_model {
    gac_arena arena;
    const char *path;         /* of the source, for errors */
    const char *model_type;   /* "llama" */
    const char *architecture; /* "LlamaForCausalLM" */
    int64_t hidden, width, n_layers, n_heads, n_kv_heads, head_dim, vocab_size, context;
    double rms_eps, rope_theta;
    json_t *rope_scaling; /* or NULL */
    bool tied, attention_bias, mlp_bias, qk_norm, has_window;
    gac_dtype stored; /* the source's dtype, or the one that suits it best */
    convert_tensor *tensors;
    int32_t n_tensors, capacity;
    convert_vocab vocab;
    convert_read *read;
    gac_gguf *gguf; /* the source is one of these two */
    gac_file *file;
};

/* Sets the error "PATH: what is wrong". */
gac_status gac_convert_bad(const convert_model *model, gac_error *err, const char *format, ...)
    GAC_PRINTF(3, 4);

gac_status gac_convert_add(convert_model *model, const char *name, int64_t n_rows,
                           int64_t n_columns, int64_t source, int64_t n_rotated, gac_error *err);

/* Appends a copy of a string to an array. The string must be UTF-8 without NUL. */
gac_status gac_convert_text(convert_model *model, const char *what, int64_t index, const char *text,
                            size_t n_bytes, const char **out, gac_error *err);

/* Writes the model to a new directory. */
gac_status gac_convert_write(convert_model *model, const char *to,
                             const gac_convert_options *options, gac_convert_result *result,
                             gac_error *err);
void gac_convert_dispose(convert_model *model);

/* Fills model->vocab from a GGUF file. */
gac_status gac_convert_gguf_vocab(convert_model *model, const gac_log *log, gac_error *err);
/* Sets model->rope_scaling from a GGUF file. */
gac_status gac_convert_gguf_rope(convert_model *model, const char *architecture, gac_error *err);
/* Returns the index of a key of the architecture, or -1. */
int32_t gac_convert_key(const convert_model *model, const char *architecture, const char *suffix);

/* Makes the content of tokenizer.json. The caller owns *out. */
gac_status gac_convert_tokenizer_json(const convert_model *model, json_t **out, gac_error *err);
json_t *gac_convert_tokenizer_config(const convert_model *model);
/* The rule that splits text before byte-level BPE: its pre_tokenizer, whether
 * text is normalised to NFC, and whether words that are in the vocabulary skip
 * the merges. NULL for an unknown name. */
typedef struct convert_split {
    json_t *pre_tokenizer;
    bool nfc, ignore_merges, adds_bos;
} convert_split;
bool gac_convert_split_known(const char *name);
convert_split gac_convert_split(const char *name);

/* Lists "left right" for every way to make a token from two others, best first
 * by scores and lengths. The caller owns *out. */
gac_status gac_convert_merges(const convert_model *model, json_t **out, gac_error *err);

/* Returns the shortest decimal that reads back as the same float: 1e-5, not
 * 9.99e-6. */
double gac_convert_decimal(double value);

#endif

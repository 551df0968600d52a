/* engine: running a model.
 *
 * The forward pass, and what is built on it: perplexity, generation, tasks, speed.
 * Knows what a model computes; compression happens elsewhere.
 *
 * One engine is used by one thread at a time. It starts threads of its own. */
#ifndef GAC_ENGINE_H
#define GAC_ENGINE_H

#include <gac/base.h>
#include <gac/device.h>
#include <gac/model.h>
#include <gac/timing.h>
#include <gac/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Running a model. */

/* A model on a device, with room for the keys and values of some sequences. Its
 * family is one of those in docs/engine.md. It is dense, or compressed in a way
 * that the model room understands. */
typedef struct gac_engine gac_engine;

typedef struct gac_engine_options {
    const char *device;     /* "reference", "cpu", "cuda", "cuda:N" */
    gac_dtype dtype;        /* cuda: F16 or BF16; GAC_DTYPE_COUNT: the model's own, else F16 */
    bool no_pad;            /* sizes are not padded inside, for comparison */
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
    int64_t max_context;                           /* of this engine */
    int64_t model_context;                         /* max_position_embeddings */
    gac_dtype dtype;                               /* computed in */
    int64_t weight_bytes, cache_bytes, work_bytes; /* held now, and never more before */
    double load_s;
} gac_engine_info;

/* The rule by which sizes are padded with zeros on a GPU, unless options.no_pad:
 *
 *   heads and rows     to a multiple of 8: 16 bytes in F16 and BF16, which vector
 *                      loads and tensor cores ask for
 *   ranks, MLP widths  to a multiple of 64, a whole tile of the matrix units, where
 *                      that adds at most 1/64 of the size, else to one of 16
 *
 * A size below 1 stays. The engine hands this rule to the device, which has none
 * of its own. */
int64_t gac_engine_padding(gac_size_kind kind, int64_t size);

/* Sizing an engine. */

#define GAC_DEFAULT_WINDOW 2048 /* tokens of a window of perplexity */
#define GAC_DECODE_STEPS 32     /* a context is left behind by at most so many timed steps */
#define GAC_DECODE_CHUNK 512    /* tokens of a sequence in a pass that fills a cache for timing */

/* So many sequences of so many tokens: a prompt, or a context in decode. */
typedef struct gac_pass_shape {
    int64_t batch, length;
} gac_pass_shape;

/* What an engine will be asked for, one thing after another. */
typedef struct gac_engine_work {
    bool perplexity;               /* gac_engine_perplexity, with windows of window tokens; */
    int64_t window;                /* 0: GAC_DEFAULT_WINDOW, or what the model allows if less */
    bool tasks;                    /* gac_engine_piqa */
    const gac_pass_shape *prefill; /* (n_prefill), gac_engine_time_prefill of each */
    int n_prefill;
    const gac_pass_shape *decode; /* (n_decode), gac_engine_time_decode of each */
    int n_decode;
    int64_t n_prompt, max_tokens; /* gac_engine_generate: ids of the prompt, and at most so many
                                   * more, as far as the model allows; n_prompt 0: none */
} gac_engine_work;

#define GAC_ENGINE_WORK_INIT \
    { \
        false, 0, false, NULL, 0, NULL, 0, 0, 0 \
    }

/* Sets max_batch, max_context, max_new, max_rows and max_cached of options so that
 * one engine has room for each piece of work, and no more. Cache and rows are
 * shared: they are sized for the largest batch times length, not for the largest
 * batch times the largest length. GAC_USAGE for work longer than the model allows;
 * GAC_BAD_INPUT as gac_engine_model_context. */
gac_status gac_engine_size(const gac_model *model, const gac_engine_work *work,
                           gac_engine_options *options, gac_error *err);

/* Opening. */

/* Puts the model on the device. The model and its checkpoint must outlive the
 * engine: on the CPUs weights stay mapped. options may be NULL. GAC_BAD_INPUT
 * for a missing or wrong tensor, a weight that is not finite, and what this
 * engine or device does not run; GAC_NO_RESOURCE without the device or its memory. */
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

/* model_context of a model that is not opened yet, on the CPUs. GAC_BAD_INPUT for what this
 * engine does not run. */
gac_status gac_engine_model_context(const gac_model *model, int64_t *n_tokens, gac_error *err);

/* Layer by layer, for compression. */

/* GAC_BAD_INPUT for a model that can be run, but not compressed: its family differs from
 * Llama in what a layer computes. gac_engine_collect and gac_engine_replace refuse it. */
gac_status gac_engine_check_stages(const gac_model *model, gac_error *err);

/* The inputs of the linear modules of a layer: some modules share one. */
typedef enum gac_engine_input {
    GAC_INPUT_QKV, /* q, k and v */
    GAC_INPUT_O,
    GAC_INPUT_GATE_UP, /* gate and up */
    GAC_INPUT_DOWN,
    GAC_INPUT_COUNT
} gac_engine_input;

typedef enum gac_projection {
    GAC_PROJECTION_Q,
    GAC_PROJECTION_K,
    GAC_PROJECTION_V,
    GAC_PROJECTION_O,
    GAC_PROJECTION_GATE,
    GAC_PROJECTION_UP,
    GAC_PROJECTION_DOWN,
    GAC_PROJECTION_COUNT
} gac_projection;

/* "self_attn.q_proj", ..., "mlp.down_proj". */
const char *gac_projection_name(gac_projection projection);
gac_engine_input gac_projection_input(gac_projection projection);

/* Embeds a sequence of n ids. Its residual stream is then in the engine, before the first
 * layer. */
gac_status gac_engine_embed(gac_engine *engine, const int32_t *ids, int64_t n, gac_error *err);
/* Reads the residual stream of the last sequence, (n, hidden), or sets it, for n tokens from
 * an empty cache. GAC_NO_RESOURCE where the device cannot. */
gac_status gac_engine_read_residual(gac_engine *engine, float *out, gac_error *err);
gac_status gac_engine_write_residual(gac_engine *engine, const float *in, int64_t n,
                                     gac_error *err);
/* Runs layers first to end - 1 on the residual stream. */
gac_status gac_engine_run_layers(gac_engine *engine, int32_t first, int32_t end, gac_error *err);

/* Logits of rows first, first + step, ... of the residual stream, n of them, at most
 * GAC_MAX_LOGIT_ROWS: logits (n, vocab), and the logarithms of the sums of their
 * exponentials, log_sums (n). */
gac_status gac_engine_sample_logits(gac_engine *engine, int64_t first, int64_t step, int64_t n,
                                    float *logits, double *log_sums, gac_error *err);

/* From now on, running a layer adds the inputs of its linear modules to sums, which begin at
 * zero. Layer -1: no longer. GAC_NO_RESOURCE where the device cannot. */
gac_status gac_engine_collect(gac_engine *engine, int32_t layer, gac_error *err);
/* Reads the sums of x x^T (n, n) and of |x| (n) over the inputs x of n numbers. */
gac_status gac_engine_read_sums(gac_engine *engine, gac_engine_input input, double *matrix,
                                double *magnitude, gac_error *err);

/* Lets another weight stand for that of a projection: second, or second times first. It keeps
 * its bias. The tensors must stay until gac_engine_restore. One projection of an input can be
 * replaced at a time. */
gac_status gac_engine_replace(gac_engine *engine, int32_t layer, gac_projection projection,
                              const gac_host_tensor *first, const gac_host_tensor *second,
                              gac_error *err);
void gac_engine_restore(gac_engine *engine, int32_t layer, gac_projection projection);

/* Does the jobs on the engine's device; see gac_factor_job. GAC_NO_RESOURCE where the device
 * cannot. */
gac_status gac_engine_factor(gac_engine *engine, const gac_factor_job *jobs, int n_jobs,
                             gac_error *err);

/* Gradients.
 *
 * The loss of a position is -log of the probability of one next token, which is drawn from the
 * model's own output. Losses of all positions are summed. The engine's device computes gradients in
 * F32, from the weights of the checkpoint; GAC_NO_RESOURCE where the device cannot. */

/* The last sequence must have run through all layers. Sets gradient (n, hidden) to the gradient of
 * its loss with respect to the residual stream behind the last layer. The seed draws the tokens. */
gac_status gac_engine_backward_head(gac_engine *engine, uint64_t seed, float *gradient,
                                    gac_error *err);
/* Passes gradients back through a layer. x is the residual stream before the layer,
 * (n_sequences, n_tokens, hidden). gradient has the same shape. It goes in as the gradient with
 * respect to the stream behind the layer, and comes out as that with respect to x.
 * sums[projection], if not NULL, is set to the sum of g g^T (n_out, n_out), where g are the
 * gradients with respect to the output of that projection. */
gac_status gac_engine_backward_layer(gac_engine *engine, int32_t layer, int64_t n_sequences,
                                     int64_t n_tokens, const float *x, float *gradient,
                                     double *const sums[GAC_PROJECTION_COUNT], gac_error *err);

/* Perplexity. */

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

/* Generation. */

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
void gac_generation_dispose(gac_generation *generation); /* NULL is fine */

/* Tasks. */

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

/* Comparing two models. */

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
 * is in memory, and compares all logits. options may be NULL. GAC_BAD_INPUT where the vocabularies
 * differ in size, GAC_USAGE for an id outside them. */
gac_status gac_engine_compare(const gac_model *a, const gac_model *b,
                              const gac_compare_options *options, gac_logit_comparison *out,
                              gac_error *err);

/* Speed. */

#define GAC_LONG_PASS_US 2000000 /* a pass this long is sampled GAC_LONG_PASSES times */
#define GAC_LONG_PASSES 3

/* For passes of a whole model; sample_us, graph_below_us and settle_us do not count. */
#define GAC_TIMING_RULES_PASS_INIT \
    { \
        300000, 0, 5, 96, 0.004, 10000000, 0, 0 \
    }

/* Times of one shape. clock_mhz and temperature_c are unknown: the wall clock
 * of the host runs around gac_engine_forward, which waits for the device. */
typedef struct gac_pass_timing {
    int64_t batch;
    int64_t length;    /* prefill: tokens of a sequence; decode: its context */
    gac_timing timing; /* of a pass, or of a step, of the whole batch */
    double tokens_per_s;
} gac_pass_timing;

/* Times a prefill of batch sequences of length tokens, from an empty cache. The
 * ids are random and always the same. rules NULL takes GAC_TIMING_RULES_PASS_INIT. */
gac_status gac_engine_time_prefill(gac_engine *engine, int64_t batch, int64_t length,
                                   const gac_timing_rules *rules, gac_progress *progress,
                                   gac_pass_timing *out, gac_error *err);

/* Times steps of one token for each of batch sequences that have context tokens
 * with it: context - 1 are put into the cache first, at most chunk of a sequence
 * in one pass (0: all), then GAC_DECODE_STEPS steps follow each other, or as many as the
 * engine's context has room for, and again from the same place. Every step is a
 * sample. */
gac_status gac_engine_time_decode(gac_engine *engine, int64_t batch, int64_t context, int64_t chunk,
                                  const gac_timing_rules *rules, gac_progress *progress,
                                  gac_pass_timing *out, gac_error *err);

/* {"batch", KEY, "ms", "spread_pct", "tokens_per_s", "n_samples", "steady",
 * "samples_ms"} with key for "length" or "context"; NULL when out of memory. */
struct json_t *gac_pass_timing_json(const gac_pass_timing *timing, const char *key);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

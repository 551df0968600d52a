/* compress: a smaller model.
 *
 * Runs a text through the model and sums what each linear module gets (calibration). From
 * the sums it computes what each module would lose if its weight were factored into two of
 * a lower rank, or if it kept fewer channels or heads. It measures how much such a loss
 * changes the output of the whole model. Then it shares out the parameters so that the
 * losses are least, and writes the result. Sizes come from a contract, so that a GPU serves
 * all of them well.
 *
 * A call reads its checkpoint, which no other thread may do meanwhile. */
#ifndef GAC_COMPRESS_H
#define GAC_COMPRESS_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/contract.h>
#include <gac/model.h>
#include <gac/plan.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum gac_compress_method {
    GAC_COMPRESS_GAC,     /* ranks, widths and heads, shared out by their measured effect */
    GAC_COMPRESS_ENERGY,  /* likewise, by the share of energy that each module loses */
    GAC_COMPRESS_SVD,     /* ranks by plain SVD, the same share of every matrix */
    GAC_COMPRESS_ASVD,    /* ranks by SVD of inputs scaled by the root of their mean magnitude, of
                           * each matrix the least whose effect is below one limit */
    GAC_COMPRESS_SVD_LLM, /* the same share of every matrix, inputs whitened by their Gram matrix */
    GAC_COMPRESS_PALU,    /* ranks of k and v only, for each group of heads, by their effect */
    GAC_COMPRESS_METHOD_COUNT
} gac_compress_method;

const char *gac_compress_method_name(gac_compress_method method); /* "gac", "svd", ... */

/* Which sizes may be chosen. */
typedef enum gac_align {
    GAC_ALIGN_CONTRACT, /* those that the contract calls aligned */
    GAC_ALIGN_NONE,     /* any */
    GAC_ALIGN_ROUND     /* multiples of a number */
} gac_align;

/* What a module can become. Bits of gac_compress_options.choices. */
enum {
    GAC_CHOOSE_RANK = 1,  /* two factors */
    GAC_CHOOSE_WIDTH = 2, /* an MLP with fewer channels */
    GAC_CHOOSE_HEADS = 4, /* an attention block with fewer heads of keys and values */
    GAC_CHOOSE_ALL = 7
};

typedef struct gac_compress_options {
    gac_compress_method method;
    gac_align align;
    int64_t multiple;             /* GAC_ALIGN_ROUND */
    const gac_contract *contract; /* GAC_ALIGN_CONTRACT, and predicted times; NULL: none */
    double ratio;                 /* share of the blocks' linear weights to remove; 0: none */
    double total_ratio;           /* share of the whole model to remove, instead; 0: none */
    double max_time_ms;           /* longest predicted time of workload, instead; 0: none */
    const gac_workload *workload; /* with max_time_ms, and for predicted times; NULL: none */
    unsigned choices;             /* GAC_CHOOSE_... ; dense is always one */
    const char *const *exclude;   /* patterns of modules that stay, as layers.0.* */
    int32_t n_exclude;
    int32_t first_layer, n_layers; /* only these may change; n_layers 0: all from first_layer on */
    const int32_t *ids;            /* (n_ids), the text for calibration */
    size_t n_ids;
    int64_t n_tokens;           /* of the text to use; 0: 131072, or all if there are fewer */
    bool no_gradients;          /* all outputs of a module count alike: less exact, and faster */
    uint64_t seed;              /* draws the windows of the text; 0: the first ones */
    const char *device;         /* "cpu", "cuda" */
    int n_threads;              /* 0: one for each core */
    const char *work;           /* folder in which measured layers stay, for other ratios too; NULL:
                                 * OUT.work, which is removed in the end */
    bool resume;                /* OUT.work stays if the job does not end, and is used again */
    bool dry_run;               /* choose, and write nothing */
    bool replace, no_sync;      /* as in gac_writer_options */
    gac_progress *progress;     /* NULL: none */
    const gac_log *log;         /* NULL: silent */
    const volatile int *cancel; /* set from outside to stop; NULL: never */
    gac_team *team;             /* processes that share the job, with equal models, texts and
                                 * options; process 0 writes and has the result. NULL: one */
    const char *text_name;      /* the file of the text, for the record; NULL: not known */
} gac_compress_options;

#define GAC_COMPRESS_OPTIONS_INIT \
    { \
        GAC_COMPRESS_GAC, GAC_ALIGN_CONTRACT, 0, NULL, 0, 0, 0, NULL, GAC_CHOOSE_ALL, NULL, 0, 0, \
            0, NULL, 0, 0, false, 0, "cpu", 0, NULL, false, false, false, false, NULL, NULL, NULL, \
            NULL, NULL \
    }

typedef enum gac_compress_choice {
    GAC_CHOICE_DENSE,
    GAC_CHOICE_RANK,
    GAC_CHOICE_WIDTH,
    GAC_CHOICE_HEADS
} gac_compress_choice;

const char *gac_compress_choice_name(gac_compress_choice choice); /* "dense", "rank", ... */

/* A linear module, or an MLP or attention block that was cut as a whole. */
typedef struct gac_compress_module {
    char name[64]; /* layers.3.self_attn.q_proj, layers.3.mlp, layers.3.self_attn */
    gac_compress_choice choice;
    int64_t size;       /* rank, width, or heads of keys and values; 0: dense */
    int64_t n_params;   /* of its weights now, */
    int64_t n_original; /* and before */
    double loss;        /* what the choice is expected to change the output by, in nats */
} gac_compress_module;

/* The rows of the table that a job ends with. */
typedef enum gac_compress_row_kind {
    GAC_COMPRESS_ROW_DENSE,     /* the original */
    GAC_COMPRESS_ROW_UNALIGNED, /* the same method with GAC_ALIGN_NONE; not there if that is the
                                 * result */
    GAC_COMPRESS_ROW_ROUNDED,   /* that, its sizes rounded up as repair does (minimal): the same
                                 * function, more parameters */
    GAC_COMPRESS_ROW_RESULT,    /* what is written */
    GAC_COMPRESS_ROW_COUNT
} gac_compress_row_kind;

const char *gac_compress_row_name(gac_compress_row_kind kind); /* "dense", "unaligned", ... */

typedef struct gac_compress_row {
    int64_t n_params, size_bytes;    /* of the whole model; 0: this row is not there */
    double aligned_pct;              /* of all sizes, by the contract */
    double loss;                     /* as the result's objective */
    double phase_ms[GAC_MAX_PHASES]; /* predicted, for each phase of the workload; NaN: not known */
} gac_compress_row;

typedef struct gac_compress_result {
    gac_compress_module *modules;
    int32_t n_modules;
    int64_t budget_params;               /* of the blocks' linear weights; 0: a time was asked */
    int64_t params_before, params_after; /* of the blocks' linear weights */
    int64_t total_before, total_after;   /* of the whole model */
    bool optimal;                        /* no choice of these sizes has a smaller sum of losses */
    double objective, bound;             /* that sum, and what no choice can be below */
    int64_t n_tokens, window;            /* of the text that were used, and in one sequence */
    int64_t n_gradient_tokens;           /* of them, with which gradients were measured */
    bool needs_code; /* other runtimes load the result by modelling code beside it */
    gac_compress_row rows[GAC_COMPRESS_ROW_COUNT]; /* where there are a contract that serves the
                                                    * dtype, and a workload */
} gac_compress_result;

/* Compresses the model of checkpoint to the directory out. Call gac_compress_dispose on
 * *result afterwards, always. GAC_USAGE for options that contradict each other and for a
 * ratio that cannot be reached; the message says what can. GAC_BAD_INPUT for a model that
 * cannot be compressed or run here. */
gac_status gac_compress_run(gac_checkpoint *checkpoint, const gac_model *model, const char *out,
                            const gac_compress_options *options, gac_compress_result *result,
                            gac_error *err);
void gac_compress_dispose(gac_compress_result *result); /* NULL is fine */

/* The result as {"method", "align", "ratio", ..., "modules": [...], "table": [...]}; the output
 * directory has it as gac.json. NULL when out of memory. The caller owns it. */
struct json_t *gac_compress_to_json(const gac_compress_result *result,
                                    const gac_compress_options *options);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

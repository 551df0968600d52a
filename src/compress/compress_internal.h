/* What the files of compress share. */
#ifndef GAC_COMPRESS_INTERNAL_H
#define GAC_COMPRESS_INTERNAL_H

#include <gac/compress.h>
#include <gac/engine.h>

enum { N_SHARES = 9 };                        /* ASVD tries a tenth, two tenths, ... of a matrix */
enum { PALU_HEADS = 4, MAX_HEAD_PARTS = 32 }; /* heads in a group of PaLU's, and groups */

/* The weight of one projection of one layer, and what factoring it would lose. */
typedef struct matrix_stats {
    int32_t tensor, bias;   /* of the weight and its bias, in the checkpoint; -1: no bias */
    int64_t n_out, n_in;    /* of the weight */
    int64_t n_parts;        /* into which the rows are split, each factored by itself: 1, or groups
                             * of heads */
    int64_t n;              /* the smaller of the rows of a part and n_in */
    int64_t n_basis;        /* columns of the basis that are kept: no choice has more */
    double *energy;         /* (n_parts, n): a rank r loses the sum from r on; NULL: not computed */
    float *basis;           /* (n_out, n_basis), of each part its own columns: basis^T W is the
                             * first factor. NULL once it is in the work folder */
    float *second;          /* likewise: the second factor, where outputs are weighed; NULL: that is
                             * basis */
    double total;           /* sum of energy */
    double scale;           /* nats that the model's output changes by, per relative loss; 1 where
                             * that is not measured */
    double tried[N_SHARES]; /* nats that the output changes by with the rank of each share */
    bool excluded;          /* stays dense */
} matrix_stats;

/* Channels of an MLP or groups of heads, the most important ones first. */
typedef struct channel_stats {
    int64_t n_groups, block; /* groups of block inputs */
    int32_t *order;          /* (n_groups); NULL: not computed */
    double *loss;            /* (n_groups + 1): if the first i are kept */
    double scale;
    double *gram; /* (n, n) of the inputs; NULL once it is in the work folder */
} channel_stats;

enum { CHANNELS_WIDTH, CHANNELS_HEADS, CHANNELS_COUNT };

typedef struct layer_stats {
    matrix_stats matrix[GAC_PROJECTION_COUNT];
    channel_stats channels[CHANNELS_COUNT];
} layer_stats;

/* What was chosen for a layer; 0 is dense. Where width or heads is set, the ranks of that
 * block are 0. */
typedef struct layer_choice {
    int64_t rank[GAC_PROJECTION_COUNT];
    int64_t width, heads;
    double loss[GAC_PROJECTION_COUNT]; /* of the ranks, */
    double block_loss[CHANNELS_COUNT]; /* and of width and heads */
} layer_choice;

/* A compression under way. */
typedef struct compression {
    gac_checkpoint *checkpoint;
    const gac_model *model;
    const gac_compress_options *options;
    gac_error *err;
    gac_engine *engine;
    int32_t n_layers;
    gac_dtype dtype; /* whose rules in the contract serve the model; GAC_DTYPE_COUNT: none */
    int64_t hidden, vocab;
    layer_stats *layers;   /* (n_layers) */
    layer_choice *choices; /* (n_layers) */
    int64_t window, n_windows, n_trial_windows;
    int64_t first_own, n_own;   /* windows that this process runs; all run the trial windows */
    int64_t n_gradient_windows; /* of those; 0: outputs are not weighed */
    int64_t *order;             /* (all windows of the text): those that are used come first */
    float *residual; /* (n_own + n_trial_windows, window, hidden), before the layer at work */
    /* The dense model's output at sampled positions of the trial windows: */
    int64_t first_sample, sample_step, n_samples; /* in each window */
    float *probabilities;                         /* (n_trial_windows, n_samples, vocab) */
    float *logits;            /* (GAC_MAX_LOGIT_ROWS, vocab): what is being compared */
    double *entropy;          /* (n_trial_windows): sums of p log p over a window's samples */
    char *work;               /* folder for measured layers */
    int lock;                 /* on the work folder, or -1 */
    bool owns_work;           /* this process made or found the folder, and no other job has it */
    bool keeps_work;          /* layers that are there are used, and they stay if the job fails */
    char fingerprint[20];     /* of the model, the text and the options, for a resumed job */
    uint64_t n_done, n_steps; /* progress */
} compression;

/* Returns how many parameters are stored twice: those of a head that is tied to the embedding. */
int64_t compress_count_twice(const gac_model *model);
/* Whether choices are shared out by the solver; the other methods share evenly. */
bool compress_is_exact(const compression *c);
/* Whether the effect of cuts on the output is measured. */
bool compress_tries_cuts(const compression *c);
/* Whether the job has to stop; sets the error. */
gac_status compress_check_cancel(const compression *c);
void compress_step(compression *c, uint64_t n);
/* The mapped weight as floats, (n_out, n_in); the caller frees it. */
gac_status compress_read_weight(const compression *c, const matrix_stats *m, float **out);

/* calibrate.c */

/* Cuts the text into windows, and chooses those that are used. */
gac_status compress_choose_windows(compression *c);
/* Embeds the windows, and runs the dense model on the trial windows. */
gac_status compress_start_calibration(compression *c);
/* Fills the statistics of a layer, moves all windows behind it, and saves the large parts in
 * the work folder. */
gac_status compress_measure_layer(compression *c, int32_t layer);
/* Whether an MLP or an attention block may lose channels or heads: no part of it is to stay. */
bool compress_may_cut(const compression *c, int32_t layer, int kind);
/* Whether a weight may become two factors. In an MLP only where its channels may not go: at
 * equal parameters fewer channels lose far less (docs/compression-method.md). */
bool compress_may_factor(const compression *c, int32_t layer, gac_projection projection);
/* Only moves the windows: the layer was measured before. */
gac_status compress_pass_layer(compression *c, int32_t layer);
/* Divergence of the model's output from the dense one, in nats, as the engine is now from
 * layer on. */
gac_status compress_divergence(compression *c, int32_t layer, double *out);

/* gradients.c */

/* How the outputs of a projection are weighed by H = R^T R. */
typedef struct output_weights {
    float *root, *inverse; /* (n_out, n_out): R, and the transpose of its inverse */
    float *weighed;        /* (n_out, n_in): R W */
} output_weights;

/* Whether the outputs of a projection are weighed by gradients. */
bool compress_weighs(const compression *c, int projection);
/* Chooses how many windows gradients are measured with. */
void compress_choose_gradients(compression *c);
/* Measures the gradients of all layers, unless the work folder has them. */
gac_status compress_measure_gradients(compression *c);
/* Fills *out, to be freed by compress_free_weights, also after an error. */
gac_status compress_weigh(compression *c, int32_t layer, int projection, output_weights *out);
/* Makes the basis that was found for R W serve W, and sets second. */
gac_status compress_unweigh(compression *c, matrix_stats *m, const output_weights *weights);
void compress_free_weights(output_weights *weights);

/* effects.c */

/* Measures the scale of every curve of a layer. */
gac_status compress_measure_effects(compression *c, int32_t layer);
/* The rank at which factors have this share of the parameters of the weight. */
int64_t compress_share_rank(const matrix_stats *m, double share);
/* Parameters of the factors of this rank. */
int64_t compress_rank_params(const matrix_stats *m, int64_t rank);
/* The rank beyond which factors have more parameters than the weight. */
int64_t compress_break_even(const matrix_stats *m);
double compress_rank_loss(const matrix_stats *m, int64_t rank); /* relative */
double compress_channel_loss(const channel_stats *s, int64_t n_groups);
/* Makes the first factors of all parts, (n_parts * rank, n_in), which take the inputs to the first
 * rank columns of the basis. */
gac_status compress_project(compression *c, const matrix_stats *m, const float *basis, int64_t rank,
                            const char *name, float *first);
/* The first n_groups of the order as inputs, rising; the caller frees them. NULL: no memory. */
int32_t *compress_kept_inputs(const channel_stats *s, int64_t n_groups);

/* work_folder.c */

/* Saves a measured layer and frees its large parts; reads one back, *found false where there
 * is none that fits. */
gac_status compress_save_layer(compression *c, int32_t layer);
gac_status compress_load_layer(compression *c, int32_t layer, bool *found);
/* Opens the folder of a layer, to map its large parts. */
gac_status compress_open_layer(const compression *c, int32_t layer, gac_checkpoint **out);
/* The same for the gradients of a layer: sums of g g^T for the projections that are weighed. Saving
 * frees them. */
gac_status compress_save_gradients(compression *c, int32_t layer, double **sums);
gac_status compress_load_gradients(compression *c, int32_t layer, int projection, double *sums);
/* Whether the work folder has those of all layers. */
bool compress_have_gradients(const compression *c);
gac_status compress_start_work(compression *c, const char *out);
/* Removes the work folder, unless it was given to stay. */
gac_status compress_clear_work(compression *c);
/* Frees what belongs to it, and removes it unless it is to be kept. */
void compress_end_work(compression *c, bool keep);

/* allocate.c */

/* Whether the budget can be met, before anything is measured. */
gac_status compress_check_budget(compression *c, const gac_compress_result *result);
/* Chooses for every layer. */
gac_status compress_allocate(compression *c, gac_compress_result *result);
/* Parameters of a layer's linear weights with these choices. */
int64_t compress_layer_params(const layer_stats *s, const layer_choice *choice);

/* costs.c */

/* What a plain weight costs: parameters, or nanoseconds if a time is asked for. */
int64_t compress_matrix_cost(const compression *c, int64_t n_out, int64_t n_in);
/* Nanoseconds of what a block does between its matrices with so many groups: attention, or a
 * runtime's work on the channels of an MLP; 0 if no time is asked for. */
int64_t compress_inner_cost(const compression *c, int32_t layer, int kind, int64_t n_groups);
/* Nanoseconds that are left for the blocks if a time is asked for; below 0 if none are. */
gac_status compress_time_budget(const compression *c, int64_t *budget);
/* The attention operator of a layer, or NULL. */
const gac_op *compress_attention_of(const gac_model *model, int32_t layer);

/* sizes.c */

/* The sizes that may be chosen between 1 and largest, rising, *n of them; the caller frees
 * them. Where any size may be chosen, n_any evenly spaced ones. NULL: no memory. */
int64_t *compress_candidates(const compression *c, int64_t largest, int64_t n_any, size_t *n);
/* Whether the contract calls size aligned, for the outputs and for the inputs of a weight. */
bool compress_is_aligned(const compression *c, int64_t size);
int64_t compress_smallest(const compression *c);
/* The largest of them that is at most size, or 0. */
int64_t compress_round_down(const compression *c, int64_t size);

/* outline.c */

/* Fills the rows of the result. */
gac_status compress_outline(compression *c, gac_compress_result *result);

/* write_model.c */

/* Writes a checkpoint with the sizes that were chosen and zeros for weights, beside the measured
 * layers. It can be opened at gac_writer_directory; the caller discards *out. */
gac_status compress_write_sizes(compression *c, gac_writer **out);
/* Whether a plain config cannot state the sizes that were chosen. */
bool compress_needs_code(const compression *c);

gac_status compress_write(compression *c, const char *out, const gac_compress_result *result);

/* model_card.c */

/* The text of README.md; the caller frees it. */
gac_status compress_card(const compression *c, const gac_compress_result *result, char **out,
                         size_t *n_bytes);

#endif

/* model: from a checkpoint to its dimension graph.
 *
 * A model is tensors whose axes are bound to named dimensions. A dimension is
 * one number that several axes share and that can be changed on its own: the
 * rank of one factorised matrix, the MLP width of one layer. The graph says
 * where each lives, which operators see it, and whether enlarging it with
 * zeros keeps what the model computes. GPUs are not known here.
 *
 * A model does not change once it was made and may be shared between threads. */
#ifndef GAC_MODEL_H
#define GAC_MODEL_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum gac_role {
    GAC_ROLE_RANK,
    GAC_ROLE_MLP_WIDTH,
    GAC_ROLE_QK_HEAD,
    GAC_ROLE_V_HEAD,
    GAC_ROLE_HIDDEN,
    GAC_ROLE_VOCAB,
    GAC_ROLE_EXPERT_WIDTH,
    GAC_ROLE_COUNT
} gac_role;

const char *gac_role_name(gac_role role);

/* Whether zeros can be added: the same function, the same up to rounding (a
 * factor must be folded into weights), or not at all. */
typedef enum gac_exactness { GAC_EXACT, GAC_RESCALED, GAC_REFUSED } gac_exactness;

const char *gac_exactness_name(gac_exactness exactness);

/* How a dimension repeats inside an axis. */
typedef enum gac_repeat {
    GAC_REPEAT_WHOLE, /* one slice */
    GAC_REPEAT_HEAD,  /* a slice per head; zeros go at the end of each */
    GAC_REPEAT_HALF,  /* a slice per head; zeros go at the end of each half */
    GAC_REPEAT_GROUP  /* one slice of several that share the axis */
} gac_repeat;

const char *gac_repeat_name(gac_repeat repeat);

/* One place of a dimension: n_slices slices of its size, one after another,
 * from index start of the axis. */
typedef struct gac_place {
    int32_t tensor;
    int32_t axis;
    gac_repeat repeat;
    int64_t start;
    int64_t n_slices;
    bool norm; /* the weight of a norm over this dimension */
} gac_place;

typedef struct gac_dim {
    const char *name; /* layers.3.mlp.width */
    gac_role role;
    int64_t size;
    gac_exactness exactness;
    const char *reason;     /* why it is exact, rescaled or refused */
    const char *config_key; /* the config key that states it, or NULL */
    int64_t declared;       /* what the config states, or -1 */
    bool compressed;        /* a compressor chose this size */
    int32_t tied_to;        /* first of the dimensions that must stay equal to this, or -1 */
    int32_t n_places;
    const gac_place *places;
} gac_dim;

/* Under tensor parallelism, which axis of a weight is split over the GPUs. */
typedef enum gac_split { GAC_SPLIT_NONE, GAC_SPLIT_N, GAC_SPLIT_K } gac_split;

/* A dimension's share of an operator's n or k: n_slices times its size. */
typedef struct gac_term {
    int32_t dim;
    gac_op_axis axis;
    int64_t n_slices;
} gac_term;

typedef enum gac_op_kind { GAC_OP_GEMM, GAC_OP_SDPA } gac_op_kind;

/* One operator call of a forward pass. */
typedef struct gac_op {
    gac_op_kind kind;
    int32_t tensor; /* the weight of a GEMM; -1 for SDPA */
    int32_t layer;  /* -1 outside the layers */
    int64_t n, k;   /* GEMM: sizes of the weight as stored */
    int64_t count;  /* GEMM: calls of this shape (experts in one tensor); 1 otherwise */
    double share;   /* GEMM: part of the tokens that pass here (experts); 1 otherwise */
    bool last_only; /* GEMM: runs on the last token of a sequence only (lm_head) */
    gac_split split;
    int64_t n_q_heads, n_kv_heads; /* SDPA */
    int32_t qk_dim, v_dim;         /* SDPA: index of the dimension */
    int32_t n_terms;
    const gac_term *terms; /* which dimensions make up n, k or the head */
} gac_op;

/* One part of a linear module: weight (its outputs, n) and bias, or -1, by
 * index in the checkpoint. It multiplies the n numbers from start of what the
 * first factor gives. */
typedef struct gac_module_part {
    int32_t weight, bias;
    int64_t start;
} gac_module_part;

/* A linear module as it is stored: weights (out, in), or (in, out) where
 * transposed. The outputs of the parts follow each other. */
typedef struct gac_module {
    const char *name; /* layers.3.self_attn.k_proj */
    int64_t n_out, n_in;
    int32_t first, first_bias; /* -1: the parts multiply the input itself; no bias */
    int32_t n_parts;
    const gac_module_part *parts;
    bool transposed;
    bool quantised;
} gac_module;

typedef struct gac_model gac_model;

/* Builds the graph. checkpoint must outlive the model. A family that is not
 * known, and tensors that contradict each other, are GAC_BAD_INPUT. */
gac_status gac_model_create(const gac_checkpoint *checkpoint, gac_model **out, gac_error *err);
void gac_model_free(gac_model *model); /* NULL is fine */

/* What is returned below belongs to the model and lives as long. An index that is
 * out of range gives NULL, or -1 where an index is returned. */
const gac_checkpoint *gac_model_checkpoint(const gac_model *model);
const char *gac_model_family(const gac_model *model);
/* false: config.json states a model_type that is not known, and the names of the
 * tensors alone tell the family. */
bool gac_model_family_is_stated(const gac_model *model);
/* One of dense, svd-llm, asvd, dobi-svd, basis-sharing, palu, low-rank,
 * pruned, direct, block-configs. */
const char *gac_model_compressor(const gac_model *model);
int32_t gac_model_n_layers(const gac_model *model);
/* The dtype most of the weights are in. */
gac_dtype gac_model_dtype(const gac_model *model);

int32_t gac_model_n_dims(const gac_model *model);
const gac_dim *gac_model_dim(const gac_model *model, int32_t index);
int32_t gac_model_find_dim(const gac_model *model, const char *name); /* or -1 */

int32_t gac_model_n_ops(const gac_model *model);
const gac_op *gac_model_op(const gac_model *model, int32_t index);

/* The linear module of that name, or NULL. Names are as in dimensions: without
 * the prefix that a family puts before its layers. */
const gac_module *gac_model_find_module(const gac_model *model, const char *name);
/* That prefix: "model.". */
const char *gac_model_prefix(const gac_model *model);

/* The config of the language model: config.json, or what it has under
 * text_config; NULL without one. */
const struct json_t *gac_model_config(const gac_model *model);

/* Tensors that no rule explained, by index in the checkpoint. */
int32_t gac_model_n_unexplained(const gac_model *model);
int32_t gac_model_unexplained(const gac_model *model, int32_t index);

/* What a reader should know beside: stale config keys, guesses made. */
int32_t gac_model_n_notes(const gac_model *model);
const char *gac_model_note(const gac_model *model, int32_t index);

/* ---- Loading in other runtimes ------------------------------------------ */

#define GAC_MODELING_FILE "modeling_gac.py"

/* Whether there is modelling code for a family. */
bool gac_model_has_code(const char *family);
/* Adds to a config what lets transformers, and through it vLLM and SGLang, load a model of
 * that family in which the layers of modules differ from the stock ones, and sets *code to the
 * text of GAC_MODELING_FILE, which says how modules is written. The caller frees *code. */
gac_status gac_model_add_code(const char *family, struct json_t *modules, struct json_t *config,
                              char **code, gac_error *err);

/* ---- Rotary embeddings ------------------------------------------------- */

/* How a config states their frequencies: for running a model and for repairing it. */

/* The key of the settings that count: rope_scaling where there are any in it, as
 * in transformers, else rope_parameters. NULL where a config has neither. */
const char *gac_rotary_key(const struct json_t *config);

/* The type of rotary embedding that a config states: default where it states none.
 * Borrowed. */
const char *gac_rotary_type(const struct json_t *config);

/* Whether a repair can state the frequencies of that type for another head size. */
bool gac_rotary_can_restate(const char *type);

/* What a config or its rotary settings, which may be NULL, state has to be a
 * number, and what the type needs has to be stated: a default in its place would
 * be wrong. False with the fault in text. */
bool gac_rotary_check(const struct json_t *config, const struct json_t *settings, const char *type,
                      char *text, size_t size);

/* Frequency of pair i of a head of size numbers, by the rule of type linear or
 * llama3 with its settings, which may be NULL; of any other type the plain one,
 * base to the power of -2 i / size. */
double gac_rotary_frequency(const char *type, const struct json_t *settings, double base, int64_t i,
                            int64_t size);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

/* model: finds the dimension graph of a checkpoint.
 *
 * A model is a set of tensors whose axes are bound to named dimensions. A
 * dimension is one number that several axes share and that can change on its
 * own: the rank of one factorised matrix, or the MLP width of one layer. The
 * graph has the places of each dimension, the operators that see it, and
 * whether enlarging it with zeros keeps what the model computes. This room does
 * not know GPUs.
 *
 * A model is immutable and may be shared between threads. */
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

/* Whether zeros can be added. EXACT: the result is the same. RESCALED: it is
 * the same up to rounding, because a factor must be folded into weights.
 * REFUSED: zeros cannot be added. */
typedef enum gac_exactness { GAC_EXACT, GAC_RESCALED, GAC_REFUSED } gac_exactness;

const char *gac_exactness_name(gac_exactness exactness);

/* How a dimension repeats inside an axis. */
typedef enum gac_repeat {
    GAC_REPEAT_WHOLE, /* one slice */
    GAC_REPEAT_HEAD,  /* a slice per head; zeros go at the end of each */
    GAC_REPEAT_HALF,  /* a slice per head; zeros go at the end of each half */
    GAC_REPEAT_GROUP, /* one slice of several that share the axis */
    GAC_REPEAT_PAIRS  /* the slices alternate, element by element; zeros go at the end */
} gac_repeat;

const char *gac_repeat_name(gac_repeat repeat);

/* One place of a dimension: n_slices consecutive slices of its size on an axis,
 * from index start on. */
typedef struct gac_place {
    int32_t tensor;
    int32_t axis;
    gac_repeat repeat;
    int64_t start;
    int64_t n_slices;
    bool norm; /* the tensor is the weight of a norm over this dimension */
} gac_place;

typedef struct gac_dim {
    const char *name; /* layers.3.mlp.width */
    gac_role role;
    int64_t size;
    gac_exactness exactness;
    const char *reason;     /* explains exactness */
    const char *config_key; /* the config key that states it, or NULL */
    int64_t declared;       /* size in the config, or -1 */
    int64_t multiple;       /* a new size must be a multiple of it; 0: of nothing */
    bool compressed;        /* a compressor chose this size */
    /* index of the first dimension that must have the same size as this one if either changes, or
     * -1; widths that one config key states may differ until then */
    int32_t tied_to;
    int32_t n_places;
    const gac_place *places;
} gac_dim;

/* The axis of a weight that tensor parallelism splits over the GPUs. */
typedef enum gac_split { GAC_SPLIT_NONE, GAC_SPLIT_N, GAC_SPLIT_K } gac_split;

/* A dimension's contribution to an operator's n or k: n_slices times its size. */
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
    int64_t n, k;   /* GEMM: sizes of the stored weight */
    int64_t count; /* GEMM: calls of this shape, if one tensor holds several experts; 1 otherwise */
    double share;  /* GEMM: fraction of the tokens that reach it (experts); 1 otherwise */
    bool last_only; /* GEMM: runs on the last token of a sequence only (lm_head) */
    gac_split split;
    /* GEMM of a quantised weight: what its kernels and groups of scales ask n and k to be multiples
     * of; 0 for other weights */
    int64_t n_multiple, k_multiple;
    int64_t n_q_heads, n_kv_heads; /* SDPA */
    int32_t qk_dim, v_dim;         /* SDPA: indices of the dimensions */
    int32_t n_terms;
    const gac_term *terms; /* the dimensions that make up n, k or the head */
} gac_op;

/* One part of a linear module: weight (its outputs, n) and bias, as indices in
 * the checkpoint. bias may be -1. Its input is the n numbers of the first
 * factor's output from index start on. */
typedef struct gac_module_part {
    int32_t weight, bias;
    int64_t start;
} gac_module_part;

/* A linear module as stored. Weights are (out, in), or (in, out) if transposed.
 * The outputs of the parts are concatenated. */
typedef struct gac_module {
    const char *name; /* layers.3.self_attn.k_proj */
    int64_t n_out, n_in;
    int32_t first, first_bias; /* -1: no first factor, the parts multiply the input; no bias */
    int32_t n_parts;
    const gac_module_part *parts;
    bool transposed;
    bool quantised;
} gac_module;

typedef struct gac_model gac_model;

/* Builds the graph. checkpoint must outlive the model. GAC_BAD_INPUT for an
 * unknown family and for tensors that contradict each other. */
gac_status gac_model_create(const gac_checkpoint *checkpoint, gac_model **out, gac_error *err);
void gac_model_free(gac_model *model); /* NULL is fine */

/* Pointers that the functions below return belong to the model and live as long
 * as it does. An index out of range gives NULL, or -1 if the function returns
 * an index. */
const gac_checkpoint *gac_model_checkpoint(const gac_model *model);
const char *gac_model_family(const gac_model *model);
/* One of dense, gac, svd-llm, asvd, dobi-svd, basis-sharing, palu, low-rank,
 * pruned, direct, block-configs, lora; or how the weights are quantised: gptq,
 * awq, bitsandbytes, compressed-tensors, fp4, fp8, int8. */
const char *gac_model_compressor(const gac_model *model);
int32_t gac_model_n_layers(const gac_model *model);
/* The dtype of most weights. */
gac_dtype gac_model_dtype(const gac_model *model);

int32_t gac_model_n_dims(const gac_model *model);
const gac_dim *gac_model_dim(const gac_model *model, int32_t index);
int32_t gac_model_find_dim(const gac_model *model, const char *name); /* or -1 */

int32_t gac_model_n_ops(const gac_model *model);
const gac_op *gac_model_op(const gac_model *model, int32_t index);

/* Returns the linear module with this name, or NULL. Names have no prefix, as
 * in names of dimensions. */
const gac_module *gac_model_find_module(const gac_model *model, const char *name);
/* The prefix that the family puts before names of layers: "model.". */
const char *gac_model_prefix(const gac_model *model);

/* The config of the language model: config.json, or the object under its key
 * text_config. NULL if there is none. */
const struct json_t *gac_model_config(const gac_model *model);

/* Returns whether the config states another width, head size or number of heads than the tensors
 * have, as some pruning tools leave it. A repair corrects it. */
bool gac_model_config_is_stale(const gac_model *model);

/* How much of the model was understood: the share, in percent, of the parameters outside the
 * vocabulary's tensors that are in tensors which some rule explained. 100 if there are none. */
double gac_model_understood_pct(const gac_model *model);
/* Below this share a model is not judged. */
#define GAC_LEAST_UNDERSTOOD_PCT 90.0

/* Tensors that no rule explained, by index in the checkpoint. */
int32_t gac_model_n_unexplained(const gac_model *model);
int32_t gac_model_unexplained(const gac_model *model, int32_t index);

/* Remarks for the reader: outdated config keys, guesses that were made. */
int32_t gac_model_n_notes(const gac_model *model);
const char *gac_model_note(const gac_model *model, int32_t index);

/* Returns whether the checkpoint is a LoRA adapter: factors without the model that they are added
 * to. Its config is adapter_config.json. */
bool gac_model_is_adapter(const gac_model *model);
/* States the ranks of an adapter in a copy of its config, one size per dimension of model. Each
 * module keeps the scale of its factors, alpha over the rank or over its root, because its alpha
 * changes with the rank. Errors: GAC_USAGE if the patterns of the config cannot state it. */
gac_status gac_model_state_adapter(const gac_model *model, const int64_t *sizes,
                                   struct json_t *config, gac_error *err);

/* Loading in other runtimes. */

#define GAC_MODELING_FILE "modeling_gac.py"

/* Makes the text of GAC_MODELING_FILE for a family. The caller frees it. GAC_USAGE if there is none
 * for the family. */
gac_status gac_model_code(const char *stated, char **out, gac_error *err);

/* Lists the linear layers of a model that differ from those that the family's stock class makes of
 * config: the content of "gac_modules", as the text of GAC_MODELING_FILE describes it. sizes (one
 * per dimension) are those that the model will get, and NULL means those that it has. The caller
 * owns *out; it is empty if the config says everything. GAC_USAGE with the reason if the modelling
 * code cannot serve the model. */
gac_status gac_model_list_modules(const gac_model *model, const int64_t *sizes,
                                  const struct json_t *config, struct json_t **out, gac_error *err);

/* Adds to a config what lets transformers, and through it vLLM and SGLang, load a model of that
 * family with these modules, and sets *code to the text of GAC_MODELING_FILE. The caller frees
 * *code. */
gac_status gac_model_add_code(const char *stated, struct json_t *modules, struct json_t *config,
                              char **code, gac_error *err);

/* Returns what a config's per_layer_config has for a layer, or NULL. The config owns it. Layer
 * numbers may have leading zeros, as transformers writes them for models of ten layers or more. */
struct json_t *gac_config_layer(const struct json_t *config, int32_t layer);

/* Returns whether a config names the modelling code of gac. */
bool gac_config_has_our_code(const struct json_t *config);

/* How transformers and runtimes that follow it load a model. */
typedef enum gac_loading_kind {
    GAC_LOADS_PLAIN,         /* its config states every size: as any model of its family */
    GAC_LOADS_BY_CODE,       /* by GAC_MODELING_FILE beside it */
    GAC_LOADS_BY_OTHER_CODE, /* by other code that its config names */
    GAC_LOADS_AS_ADAPTER,    /* by peft, added to its model */
    GAC_LOADS_NOWHERE
} gac_loading_kind;

typedef struct gac_loading {
    gac_loading_kind kind;
    bool factored_head; /* lm_head is not one plain matrix */
    char reason[200];   /* of GAC_LOADS_NOWHERE */
} gac_loading;

gac_status gac_model_loading(const gac_model *model, gac_loading *out, gac_error *err);

/* Rotary embeddings. */

/* The frequencies that a config states, for running a model and for repairing
 * it. */

/* Returns the key of the rotary settings: rope_scaling if it has any, as in
 * transformers, otherwise rope_parameters. NULL if the config has neither. */
const char *gac_rotary_key(const struct json_t *config);

/* Returns the type of rotary embedding that a config states, or "default" if it
 * states none. Borrowed. */
const char *gac_rotary_type(const struct json_t *config);

/* Returns whether a repair can state the frequencies of this type for another
 * head size. */
bool gac_rotary_can_restate(const char *type);

/* Checks the rotary values in a config and in its rotary settings, which may be
 * NULL. Each must be a number, and the type may require some, because a default
 * would be wrong. On failure, text gets the reason. */
bool gac_rotary_check(const struct json_t *config, const struct json_t *settings, const char *type,
                      char *text, size_t size);

/* Returns the frequency of pair i of a head. The types linear and llama3 use
 * settings, which may be NULL. Any other type gets the plain frequency, base to
 * the power of -2 i / size. */
double gac_rotary_frequency(const char *type, const struct json_t *settings, double base, int64_t i,
                            int64_t size);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

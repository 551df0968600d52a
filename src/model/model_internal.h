/* The builder, with which families and conventions are written.
 *
 * A family (family_*.c) walks its layers and names the modules. A convention
 * (convention_*.c) knows how one compressor stores a linear module. The builder
 * binds tensor axes to dimensions and checks tensors against each other. A
 * place is a slice of a tensor's axis where a dimension lives. */
#ifndef GAC_MODEL_INTERNAL_H
#define GAC_MODEL_INTERNAL_H

#include <gac/model.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/namemap.h"

/* Real models have up to 200 layers. Without this bound, one name with a huge
 * number would make us search for every layer below it. */
#define GAC_MAX_LAYERS 4096
/* 61 layers of 384 experts, each with a width and three ranks, have 94,000. */
#define GAC_MAX_DIMS 100000

/* What was found while building. It decides the compressor's name. */
enum found {
    FOUND_PALU = 1 << 0,
    FOUND_SVD_LLM = 1 << 1,
    FOUND_ASVD = 1 << 2,
    FOUND_DOBI = 1 << 3,
    FOUND_BASIS = 1 << 4,
    FOUND_LOW_RANK = 1 << 5,
    FOUND_BLOCK_CONFIGS = 1 << 6,
    FOUND_DIRECT = 1 << 7,
    FOUND_PRUNED = 1 << 8,
    FOUND_LORA = 1 << 9,
    FOUND_GPTQ = 1 << 10,
    FOUND_AWQ = 1 << 11,
    FOUND_BITSANDBYTES = 1 << 12,
    FOUND_COMPRESSED_TENSORS = 1 << 13,
    FOUND_FP4 = 1 << 14,
    FOUND_FP8 = 1 << 15,
    FOUND_INT8 = 1 << 16,
    FOUND_BIASES = 1 << 17,
    FOUND_PACKED = FOUND_GPTQ | FOUND_AWQ | FOUND_BITSANDBYTES | FOUND_COMPRESSED_TENSORS |
                   FOUND_FP4 | FOUND_INT8
};

typedef struct dim_entry {
    gac_dim dim;
    gac_place *places;
    int32_t n_places, capacity;
    int32_t first_tensor; /* the tensor that gave the size, for messages; or -1 */
} dim_entry;

typedef struct op_entry {
    gac_op op;
    int32_t n_axis;    /* axis of the weight that is n; the other one is k */
    int32_t last_term; /* one more than the index of its last one in the builder's terms; 0: none */
} op_entry;

/* A dimension that an operator sees although its weight is packed, so that no
 * axis of it has the dimension's size. */
typedef struct term_entry {
    gac_term term;
    int32_t before; /* the one before it, of the same operator, likewise */
} term_entry;

typedef struct builder {
    const gac_checkpoint *checkpoint;
    const json_t *config;    /* or NULL */
    const char *config_path; /* for messages */
    gac_arena *arena;        /* owned by the model */
    dim_entry *dims;
    int32_t n_dims, dim_capacity;
    op_entry *ops;
    int32_t n_ops, op_capacity;
    term_entry *terms;
    int32_t n_terms, term_capacity;
    const char **notes;
    int32_t n_notes, note_capacity;
    gac_module *modules;
    int32_t n_modules, module_capacity;
    int32_t *sorted; /* tensor indices by name, made on first use */
    bool *explained; /* (n_tensors), some dimension has a place in it */
    bool *expected;  /* (n_tensors), the family has it, understood or not */
    gac_namemap dim_names;
    unsigned found;
    bool has_bases, has_scales; /* some tensor has such a name */
    const char *family;
    const char *prefix; /* of layer names: "model." */
    const char *layers; /* name of the layer list: "layers" */
    int32_t n_layers;
    int32_t layer; /* the layer being built, or -1 */
    int32_t hidden, vocab;
    const char *hidden_name; /* name of the next hidden dimension */
    gac_exactness hidden_exactness;
    const char *hidden_reason;
    bool family_known;
    bool stale_heads; /* some layer has another number of heads than the config states */
} builder;

struct gac_model {
    const gac_checkpoint *checkpoint;
    gac_arena arena;
    const char *family, *compressor;
    bool family_known;
    const char *prefix;
    const json_t *config; /* of the checkpoint, or NULL */
    int32_t n_layers;
    gac_dtype dtype;
    double understood_pct;
    bool stale;        /* the config states other sizes */
    bool plain;        /* modules as stock classes have them, apart from sizes */
    bool all_expected; /* the family has every tensor that was not understood */
    gac_dim *dims;
    int32_t n_dims;
    gac_op *ops;
    int32_t n_ops;
    gac_module *modules;
    int32_t n_modules;
    int32_t *unexplained;
    int32_t n_unexplained;
    const char **notes;
    int32_t n_notes;
    gac_namemap dim_names, module_names;
};

/* Returns the index of the tensor with this name, or -1. */
int32_t builder_find(builder *b, const char *format, ...) GAC_PRINTF(2, 3);
const gac_tensor *builder_tensor(const builder *b, int32_t tensor);

/* Finds the tensors whose names start with prefix. *first is the index of the
 * first one in b->sorted; *n is their number. */
gac_status builder_find_prefix(builder *b, const char *prefix, int32_t *first, int32_t *n,
                               gac_error *err);

gac_status builder_note(builder *b, gac_error *err, const char *format, ...) GAC_PRINTF(3, 4);

/* Sets the error "TENSOR has A <what>, but OTHER has B <other_what>". */
gac_status builder_contradiction(const builder *b, int32_t tensor, const char *what, int64_t size,
                                 int32_t other, const char *other_what, int64_t other_size,
                                 gac_error *err);

/* Checks a tensor's number of axes. */
gac_status builder_expect_axes(const builder *b, int32_t tensor, int32_t n_axes, gac_error *err);

/* Adds a dimension. Users see its name, which has no prefix. */
gac_status builder_add_dim(builder *b, gac_role role, int64_t size, const char *name,
                           gac_exactness exactness, const char *reason, int32_t *out,
                           gac_error *err);
gac_status builder_add_place(builder *b, int32_t dim, gac_place place, gac_error *err);
gac_status builder_add_gemm(builder *b, int32_t tensor, int32_t n_axis, int32_t k_axis,
                            int32_t *out, gac_error *err);
/* Adds a dimension to an operator whose weight is packed. */
gac_status builder_add_term(builder *b, int32_t op, gac_term term, gac_error *err);

/* Returns a module path as users see it, without the family's prefix. It is in
 * the arena; NULL without memory. */
const char *builder_display(const builder *b, const char *format, ...) GAC_PRINTF(2, 3);

/* Binds the hidden dimension to an axis. The first call creates it. Later calls
 * check the size. */
gac_status builder_bind_hidden(builder *b, int32_t tensor, int32_t axis, gac_error *err);

/* Binds a position table "module.weight" (n, hidden), if present. */
gac_status builder_bind_positions(builder *b, const char *module, gac_error *err);

/* Binds the one-axis tensors "module.weight" and "module.bias" to hidden, if
 * present. */
gac_status builder_bind_norm(builder *b, const char *module, gac_error *err);

/* Reads an integer key in 1…2^31-1. *out stays unchanged if the key is absent
 * or null. Any other value is an error that names the key. */
gac_status config_size(const builder *b, const json_t *object, const char *key, int64_t *out,
                       gac_error *err);
const char *config_string(const builder *b, const char *key); /* or NULL */
bool config_true(const builder *b, const char *key);

/* A range of a tensor's axis: extent indices from start. */
typedef struct segment {
    int32_t tensor, axis;
    int64_t start, extent;
} segment;

/* A linear module, however it is stored. Its output axis is the concatenation
 * of the segments in out. */
typedef struct linear {
    bool present;
    int64_t n_out, n_in;
    segment *out;
    segment *bias; /* parallel to out; tensor -1: no bias */
    int32_t n_segments;
    segment in;
    int32_t first_bias;      /* bias of the first factor, or -1 */
    int32_t first_op, n_ops; /* its operators; the last ones produce the output */
    bool factorised;
    bool packed;           /* out and in may have no tensor: none has such an axis */
    int32_t weight;        /* the packed weight */
    const char *why_fixed; /* its sizes cannot change: it is quantised. NULL: they can */
} linear;

typedef enum side { SIDE_IN, SIDE_OUT } side;

/* Finds module, stored [out, in] or, if transposed, [in, out]. present stays
 * false if it is absent. hidden_at is the side with the hidden size, which
 * shows the order of two factors. */
gac_status linear_resolve(builder *b, const char *module, bool transposed, side hidden_at,
                          linear *out, gac_error *err);

/* Returns the tensor to name in a message about this side. */
int32_t linear_tensor(const linear *l, side at);

/* Binds n_slices slices of dim, from start, on one side. Each segment becomes a
 * place, and so does its bias. */
gac_status linear_bind(builder *b, const linear *l, side at, int32_t dim, int64_t start,
                       int64_t n_slices, gac_repeat repeat, gac_error *err);
gac_status linear_bind_hidden(builder *b, const linear *l, side at, gac_error *err);

/* Sets which side tensor parallelism splits. */
void linear_split(builder *b, const linear *l, side at);

/* For conventions: describes a linear module that has one weight. */
gac_status linear_from_weight(builder *b, const char *module, int32_t weight, bool transposed,
                              linear *out, gac_error *err);

/* For conventions: describes a linear module of two chained weights, first [r,
 * in] and second [out, r]. It creates the rank dimension unless rank_dim is
 * given (not -1). The names are those of the modules that may have biases. */
typedef struct pair_names {
    const char *display; /* name of the rank: "layers.3.self_attn.k_proj.rank" */
    const char *first_module, *second_module;
    const char *config_key;
} pair_names;
gac_status linear_from_pair(builder *b, const pair_names *names, int32_t first, int32_t second,
                            int32_t rank_dim, linear *out, gac_error *err);

/* Each convention fills out, and sets present if module is stored in its form. */
gac_status convention_palu(builder *b, const char *module, linear *out, gac_error *err);
gac_status convention_svd_llm(builder *b, const char *module, linear *out, gac_error *err);
gac_status convention_pair(builder *b, const char *module, side hidden_at, linear *out,
                           gac_error *err);
gac_status convention_basis(builder *b, const char *module, linear *out, gac_error *err);
gac_status convention_quantised(builder *b, const char *module, side hidden_at, linear *out,
                                gac_error *err);

/* Finds scales beside the weight of a module that is not packed, and says what they mean. */
void quantised_weight(builder *b, const char *module, int32_t weight, linear *l);
/* Returns whether a tensor's name is that of a packed weight or of scales. */
bool quantised_name(const char *name);
/* Notes how the model is quantised, also if nothing of it was recognised. */
gac_status note_quantised(builder *b, gac_error *err);
/* Returns whether the config states that weights are quantised, and none of them was read. */
bool quantised_unread(const builder *b);
/* Adds to an error that this may be the reason. */
void quantised_blame(const builder *b, gac_error *err);

/* How one weight holds q, k and v. */
typedef enum qkv_layout {
    QKV_CONCATENATED, /* all of q, then all of k, then all of v */
    QKV_BY_GROUP      /* per k and v head: the q heads that share it, then it */
} qkv_layout;

typedef struct attention_spec {
    const char *module;          /* full path: model.layers.3.self_attn */
    const char *q, *k, *v, *o;   /* names below module; k and v are NULL if q holds all three */
    qkv_layout layout;           /* of q if it holds all three */
    const char *o_norm;          /* a norm over the input of o, or NULL */
    int64_t n_heads, n_kv_heads; /* from the config; -1: unknown */
    int64_t head_dim;            /* from the config; -1: unknown */
    bool head_dim_stated;        /* by its own key, not as hidden / heads */
    bool rotary;
    bool shares_kv, gated_queries; /* as in decoder */
    bool transposed;               /* Conv1D */
    bool head_is_fixed;            /* the runtime computes hidden / heads */
    const char *refused;           /* why head sizes cannot change, or NULL */
} attention_spec;

gac_status block_attention(builder *b, const attention_spec *spec, gac_error *err);
/* Adds the attention call of the layer that is being built. */
gac_status attention_add_op(builder *b, int64_t n_q, int64_t n_kv, int32_t qk_dim, int32_t v_dim,
                            gac_error *err);

typedef struct mlp_spec {
    const char *module;           /* full path: model.layers.3.mlp */
    const char *gate, *up, *down; /* gate NULL: not gated; up NULL: gate holds both */
    const char *norm;             /* a norm over the width, or NULL */
    const char *name;             /* of the width dimension, as users see it */
    gac_role role;
    const char *config_key;
    const char *refused; /* why the width cannot change, or NULL */
    int64_t declared;    /* width in the config, or -1 */
    int64_t n_slices;    /* the modules have this many slices of the width; 0 means 1 */
    bool chosen;         /* a compressor's per-layer key states the width */
    bool transposed;
    double share; /* fraction of the tokens, for experts */
} mlp_spec;

gac_status block_mlp(builder *b, const mlp_spec *spec, gac_error *err);

/* Binds the embedding and the output head, which may be one tensor. */
gac_status block_embedding(builder *b, const char *embedding, const char *head, gac_error *err);

typedef struct family {
    const char *name;
    const char *const *model_types; /* NULL-terminated */
    const char *layers;             /* name of the layer list: "layers" or "h" */
    /* a module below a layer that identifies the family without a config */
    const char *signature;
    gac_status (*build)(builder *b, const struct family *self, gac_error *err);
    const struct decoder *decoder; /* for decoder_build */
} family;

/* Finds the family of the checkpoint. GAC_BAD_INPUT if it is unknown. */
gac_status family_choose(builder *b, const family **out, gac_error *err);
/* Finds the prefix and number of the layers, and whether any name looks like a
 * basis or a scale. A layer number beyond GAC_MAX_LAYERS stays unexplained. */
void family_scan_names(builder *b, const char *layers);

/* A LoRA adapter. It is recognised by its config or its names, not by a model_type. */
extern const family family_adapter;
bool adapter_found(const builder *b);

/* Families described by a table. */

/* Experts: names below a layer. Each expert has its own tensors, or one tensor
 * holds all experts. */
typedef struct expert_names {
    const char *block;            /* below a layer */
    const char *router;           /* below block, scores the experts */
    const char *list;             /* below block: "experts" */
    const char *gate, *up, *down; /* below an expert; up NULL: gate holds both */
    const char *all_in, *all_out; /* tensors of all experts below list: gate and up, down */
    bool input_first;             /* all_in is (E, hidden, width), all_out (E, width, hidden) */
    bool interleaved;             /* in all_in, gate and up alternate */
    const char *key;              /* states the width */
    const char *shared;    /* below block or layer: an expert that all tokens take, or NULL */
    bool shared_in_layer;  /* shared is below the layer */
    const char *shared_in; /* name of its fused gate and up, or NULL: as an expert */
    const char *shared_out;
    const char *shared_key; /* states its width; NULL: it is n_shared times the key's */
    bool shared_may_double; /* some layers have twice its width, as use_double_wide_mlp states */
    const char *n_shared_key;
    const char *dense_key; /* states the width of layers that have no experts */
} expert_names;

/* A decoder: names of modules below the prefix, below a layer and below a
 * block. NULL for those that it does not have. */
typedef struct decoder {
    const char *embedding, *positions, *head;
    const char *top_norms[3];
    const char *norms[9];     /* below a layer, over the hidden size */
    const char *constants[6]; /* tensors below a layer without a dimension */
    /* starts of names, below a layer and below the prefix, of tensors that the family has and gac
     * does not understand */
    const char *unread[10], *unread_outside[4];
    const char *attention; /* block */
    const char *q, *k, *v, *o;
    qkv_layout layout;
    const char *o_norm;
    bool head_is_fixed, rotary;
    bool shares_kv;     /* some layers take k and v, or v, from elsewhere */
    bool gated_queries; /* q has as many rows again, head by head, which gate the output */
    const char *mlp;    /* block; "" for the layer */
    const char *gate, *up, *down;
    const char *mlp_norm;
    const char *width_key;
    const char *width_refused, *heads_refused, *hidden_refused; /* reasons, or NULL */
    /* whether width_key states the width of this model; if not, width_refused is why it cannot
     * change. NULL: always */
    bool (*width_is_stated)(const builder *b);
    /* changes what the config states about heads, or NULL */
    void (*heads)(builder *b, attention_spec *spec);
    /* builds another kind of attention, or NULL */
    gac_status (*attend)(builder *b, int32_t layer, gac_error *err);
    const expert_names *experts;
} decoder;

gac_status decoder_build(builder *b, const family *self, gac_error *err);

/* Writes the path of a block below a layer, or of the layer if block is "". */
void layer_path(const builder *b, int32_t layer, const char *block, char *out, size_t size);

/* Binds the experts of a layer, or its dense MLP. */
gac_status experts_build(builder *b, int32_t layer, const decoder *d, gac_error *err);

/* Reads the first of these keys that the config states, as config_size. */
gac_status config_size_of(const builder *b, const char *const *keys, int64_t *out, gac_error *err);

/* Finds the MLP width that the config states for a layer, or -1. *chosen: a
 * compressor's key for single layers states it. */
gac_status declared_width(builder *b, int32_t layer, const char *key, int64_t *width, bool *chosen,
                          gac_error *err);
/* Finds the heads that the config states for a layer; -1 if it states none. */
gac_status declared_heads(builder *b, int32_t layer, attention_spec *spec, gac_error *err);

/* Multi-head latent attention. */
gac_status latent_attention(builder *b, int32_t layer, gac_error *err);

/* Decides, after all places are bound, what can change: refuses what was
 * guessed and what something not understood may share, and ties the sizes that
 * one key states. */
gac_status settle_dims(builder *b, gac_error *err);

/* Returns whether the widths of this model may differ between layers: its
 * config, or the modelling code, states each. */
bool widths_may_differ(const builder *b);

extern const family family_gpt2, family_opt;
extern const family *const families_llama[];   /* Llama's layout and names */
extern const family *const families_experts[]; /* with experts */
extern const family *const families_gpt[];     /* other names */
extern const family *const families_hybrid[];  /* with blocks that are no attention */
#endif

/* What families and conventions are written with.
 *
 * A family (family_*.c) walks its layers and names the modules; a convention
 * (convention_*.c) knows how a compressor stores one linear module; the
 * builder binds axes to dimensions and holds tensors against each other. */
#ifndef GAC_MODEL_INTERNAL_H
#define GAC_MODEL_INTERNAL_H

#include <gac/model.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/namemap.h"

/* Real models have up to some 200 layers. Without a bound, one name with a huge
 * number would have us look for every layer before it. */
#define GAC_MAX_LAYERS 4096
/* 61 layers of 384 experts, each a width and three ranks, are 94,000. */
#define GAC_MAX_DIMS 100000

/* What was met on the way; decides what the compressor is called. */
enum found {
    FOUND_PALU = 1 << 0,
    FOUND_SVD_LLM = 1 << 1,
    FOUND_ASVD = 1 << 2,
    FOUND_DOBI = 1 << 3,
    FOUND_BASIS = 1 << 4,
    FOUND_LOW_RANK = 1 << 5,
    FOUND_BLOCK_CONFIGS = 1 << 6,
    FOUND_DIRECT = 1 << 7,
    FOUND_PRUNED = 1 << 8
};

typedef struct dim_entry {
    gac_dim dim;
    gac_place *places;
    int32_t n_places, capacity;
    int32_t first_tensor; /* that gave the size, for messages; or -1 */
} dim_entry;

typedef struct op_entry {
    gac_op op;
    int32_t n_axis; /* of the weight; the other is k */
} op_entry;

typedef struct builder {
    const gac_checkpoint *checkpoint;
    const json_t *config;    /* or NULL */
    const char *config_path; /* for messages */
    gac_arena *arena;        /* the model's */
    dim_entry *dims;
    int32_t n_dims, dim_capacity;
    op_entry *ops;
    int32_t n_ops, op_capacity;
    const char **notes;
    int32_t n_notes, note_capacity;
    gac_module *modules;
    int32_t n_modules, module_capacity;
    int32_t *sorted; /* tensors by name, made when first needed */
    bool *explained; /* (n_tensors) */
    gac_namemap dim_names;
    unsigned found;
    bool has_bases, has_scales; /* some tensor is named like one: worth looking */
    const char *family;
    const char *prefix; /* of the layers' names: "model." */
    int32_t n_layers;
    int32_t layer; /* being built, or -1 */
    int32_t hidden, vocab;
    const char *hidden_name; /* what the next hidden dimension is called */
    gac_exactness hidden_exactness;
    const char *hidden_reason;
    bool family_known;
} builder;

/* What is left of the builder's work. */
struct gac_model {
    const gac_checkpoint *checkpoint;
    gac_arena arena;
    const char *family, *compressor;
    bool family_known;
    const char *prefix;
    const json_t *config; /* the checkpoint's, or NULL */
    int32_t n_layers;
    gac_dtype dtype;
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
    gac_namemap dim_names;
};

/* ---- The builder ------------------------------------------------------- */

/* Index of the tensor whose name the format makes, or -1. */
int32_t builder_find(builder *b, const char *format, ...) GAC_PRINTF(2, 3);
const gac_tensor *builder_tensor(const builder *b, int32_t tensor);

/* First tensor, in order of names, that starts with prefix; *n gets how many
 * do. *first is an index into b->sorted. */
gac_status builder_find_prefix(builder *b, const char *prefix, int32_t *first, int32_t *n,
                               gac_error *err);

gac_status builder_note(builder *b, gac_error *err, const char *format, ...) GAC_PRINTF(3, 4);

/* "TENSOR has A <what>, but OTHER has B <what>": a contradiction. */
gac_status builder_contradiction(const builder *b, int32_t tensor, const char *what, int64_t size,
                                 int32_t other, const char *other_what, int64_t other_size,
                                 gac_error *err);

/* Checks the number of axes. */
gac_status builder_expect_axes(const builder *b, int32_t tensor, int32_t n_axes, gac_error *err);

/* Starts a dimension; its name is prefix-free, as users see it. */
gac_status builder_add_dim(builder *b, gac_role role, int64_t size, const char *name,
                           gac_exactness exactness, const char *reason, int32_t *out,
                           gac_error *err);
gac_status builder_add_place(builder *b, int32_t dim, gac_place place, gac_error *err);
gac_status builder_add_gemm(builder *b, int32_t tensor, int32_t n_axis, int32_t k_axis,
                            int32_t *out, gac_error *err);

/* A module path as users see it: without the family's prefix. The result is
 * in the arena; NULL when out of memory. */
const char *builder_display(const builder *b, const char *format, ...) GAC_PRINTF(2, 3);

/* The hidden size on one axis: created by the first, held against after. */
gac_status builder_bind_hidden(builder *b, int32_t tensor, int32_t axis, gac_error *err);

/* Binds a table of positions "module.weight" (n, hidden), if there is one. */
gac_status builder_bind_positions(builder *b, const char *module, gac_error *err);

/* Binds every one-axis tensor "module.weight" and "module.bias" to hidden. */
gac_status builder_bind_norm(builder *b, const char *module, gac_error *err);

/* ---- Config ------------------------------------------------------------ */

/* An integer key in 1…2^31-1. *out is untouched when the key is absent or
 * null; any other value is an error that names the key. */
gac_status config_size(const builder *b, const json_t *object, const char *key, int64_t *out,
                       gac_error *err);
const char *config_string(const builder *b, const char *key); /* or NULL */
bool config_true(const builder *b, const char *key);

/* ---- Linear modules ---------------------------------------------------- */

/* Part of an axis: extent indices from start. */
typedef struct segment {
    int32_t tensor, axis;
    int64_t start, extent;
} segment;

/* A linear module, however it is stored. Its output axis is the segments of
 * out, one after another. */
typedef struct linear {
    bool present;
    int64_t n_out, n_in;
    segment *out;
    segment *bias; /* parallel to out; tensor -1 where there is none */
    int32_t n_segments;
    segment in;
    int32_t first_bias;      /* behind the first factor, or -1 */
    int32_t first_op, n_ops; /* the last ones produce the output */
    bool factorised;
    bool quantised;
} linear;

typedef enum side { SIDE_IN, SIDE_OUT } side;

/* Finds module, stored [out, in] or, transposed, [in, out]. Absent modules
 * leave present false. hidden_at is the side where the hidden size is, which
 * tells the two factors of a pair apart. */
gac_status linear_resolve(builder *b, const char *module, bool transposed, side hidden_at,
                          linear *out, gac_error *err);

/* The tensor to name in a message about this side. */
int32_t linear_tensor(const linear *l, side at);

/* Binds n_slices slices of dim, from start, on one side; places follow the
 * segments, biases included. */
gac_status linear_bind(builder *b, const linear *l, side at, int32_t dim, int64_t start,
                       int64_t n_slices, gac_repeat repeat, gac_error *err);
gac_status linear_bind_hidden(builder *b, const linear *l, side at, gac_error *err);

/* Which side tensor parallelism splits. */
void linear_split(builder *b, const linear *l, side at);

/* For conventions: a linear of one weight, as stored. */
gac_status linear_from_weight(builder *b, const char *module, int32_t weight, bool transposed,
                              linear *out, gac_error *err);

/* For conventions: a linear of two chained weights, first [r, in] and second
 * [out, r]. The rank dimension is created, or rank_dim taken if not -1. The
 * names are of the modules that may carry biases. */
typedef struct pair_names {
    const char *display; /* of the rank: "layers.3.self_attn.k_proj.rank" */
    const char *first_module, *second_module;
    const char *config_key;
} pair_names;
gac_status linear_from_pair(builder *b, const pair_names *names, int32_t first, int32_t second,
                            int32_t rank_dim, linear *out, gac_error *err);

/* Each convention fills out and sets present when module is stored its way. */
gac_status convention_palu(builder *b, const char *module, linear *out, gac_error *err);
gac_status convention_svd_llm(builder *b, const char *module, linear *out, gac_error *err);
gac_status convention_pair(builder *b, const char *module, side hidden_at, linear *out,
                           gac_error *err);
gac_status convention_basis(builder *b, const char *module, linear *out, gac_error *err);

/* ---- Blocks of layers -------------------------------------------------- */

typedef struct attention_spec {
    const char *module;          /* full path: model.layers.3.self_attn */
    const char *q, *k, *v, *o;   /* names below it; k and v NULL when q holds all three */
    int64_t n_heads, n_kv_heads; /* as the config says; -1 when unknown */
    int64_t head_dim;            /* likewise */
    bool head_dim_stated;        /* by a key of its own, not hidden / heads */
    bool rotary;
    bool transposed;    /* Conv1D */
    bool head_is_fixed; /* the runtime takes hidden / heads */
} attention_spec;

gac_status block_attention(builder *b, const attention_spec *spec, gac_error *err);

typedef struct mlp_spec {
    const char *module;           /* full path: model.layers.3.mlp */
    const char *gate, *up, *down; /* gate NULL: not gated; up NULL: gate holds both */
    const char *name;             /* of the dimension, as users see it */
    gac_role role;
    const char *config_key;
    int64_t declared; /* width as the config says, or -1 */
    bool chosen;      /* a per-layer statement of a compressor */
    bool transposed;
    double share; /* of the tokens: experts */
} mlp_spec;

gac_status block_mlp(builder *b, const mlp_spec *spec, gac_error *err);

/* The embedding and the output head, which may be the same tensor. */
gac_status block_embedding(builder *b, const char *embedding, const char *head, gac_error *err);

/* ---- Families ---------------------------------------------------------- */

typedef struct family {
    const char *name;
    const char *const *model_types; /* NULL-terminated */
    const char *layers;             /* path of the layer list: "layers" or "h" */
    const char *signature;          /* a module below a layer that tells it without a config */
    gac_status (*build)(builder *b, gac_error *err);
} family;

extern const family *const gac_families[];

extern const family family_llama, family_mistral, family_qwen2, family_qwen3, family_gemma;
extern const family family_phi3, family_mixtral, family_qwen3_moe, family_gpt2, family_opt;

/* Shared by the families with Llama's layout. */
typedef struct llama_options {
    const char *qkv;       /* name of a projection that holds q, k and v, or NULL */
    const char *gate, *up; /* of the MLP; up NULL: gate holds both */
    gac_status (*mlp)(builder *b, int32_t layer, gac_error *err); /* experts instead, or NULL */
} llama_options;
gac_status llama_build(builder *b, const llama_options *options, gac_error *err);
#endif

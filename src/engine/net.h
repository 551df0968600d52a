/* What a model computes: its layers, and how its family differs from Llama. Taken from the
 * dimension graph and config.json; it owns only layers. */
#ifndef GAC_ENGINE_NET_H
#define GAC_ENGINE_NET_H

#include <gac/device.h>
#include <gac/model.h>

#include <jansson.h>

/* Where q and k are normed, if at all. */
typedef enum net_head_norm {
    HEAD_NORM_NONE,
    HEAD_NORM_SHARED, /* each head, by one weight */
    HEAD_NORM_OWN,    /* each head, by its own weight */
    HEAD_NORM_APART,  /* likewise, and each weight is a tensor */
    HEAD_NORM_WHOLE   /* all heads together */
} net_head_norm;

/* Where tensors are: names below the family's prefix, or below a layer. NULL: it has none. */
typedef struct net_names {
    const char *layer; /* "layers" */
    const char *embedding, *positions, *norm;
    const char *q, *k, *v, *qkv, *o; /* k NULL: qkv holds all three */
    const char *gate, *up, *gate_up, *down;
    const char *attention_norm, *mlp_norm;         /* of what goes in */
    const char *attention_out_norm, *mlp_out_norm; /* of what comes out */
    const char *q_norm, *k_norm;
    /* Experts: a router, the experts' names below it, and an MLP for all tokens. */
    const char *router, *experts, *expert_gate, *expert_up, *expert_down;
    const char *shared, *shared_gate;
} net_names;

/* How a family differs from Llama. The loader and the forward pass read it. 0 means as Llama
 * does it, and no scale. */
typedef struct net_variations {
    net_names names;
    bool centred;       /* norms are LayerNorm */
    bool norm_biases;   /* and have biases */
    double norm_offset; /* is added to the weights of norms */
    gac_activation activation;
    bool parallel;    /* attention and MLP read the same residual stream */
    bool transposed;  /* weights are stored (in, out) */
    bool interleaved; /* neighbours are rotated together */
    bool partial;     /* partial_rotary_factor counts */
    bool no_rotation;
    bool untied_if_unstated; /* tie_word_embeddings is false if the config does not state it */
    bool positions_from_2;   /* the table of positions has two rows before the first */
    net_head_norm head_norm;
    double embedding_scale, residual_scale, logit_scale;
    double softmax_scale; /* 0: one over the root of the head size */
    double score_cap, logit_cap;
    double rope_base, local_rope_base; /* where the config states none */
    double partial_default;            /* partial_rotary_factor if the config states none */
    int64_t original_length; /* context before it was stretched, likewise; 0: by the type */
    bool longrope_only;      /* rotary types are default and longrope */
    bool two_ropes;          /* layers with a window have rotary settings of their own */
    int64_t window;          /* of the layers that have one; 0: none */
    int64_t n_experts;       /* of a layer that has experts; 0: not stated */
    int64_t n_experts_chosen;
    bool normalise_experts;
} net_variations;

/* Outputs first to first + n - 1 of a module. */
typedef struct net_linear {
    const gac_module *module; /* NULL: absent */
    int64_t first, n;
} net_linear;

typedef struct net_mlp {
    net_linear gate, up, down; /* gate absent: the MLP has no gate */
    int64_t width;
} net_mlp;

/* A norm's tensors, as indices into the checkpoint; -1: absent. */
typedef struct net_norm {
    int32_t weight, bias;
} net_norm;

typedef struct net_layer {
    net_linear q, k, v, o;
    net_mlp mlp; /* with experts: the one for all tokens, or width 0 */
    net_norm attention_norm, mlp_norm, attention_out_norm, mlp_out_norm;
    int32_t q_norm, k_norm; /* -1: absent; with HEAD_NORM_APART, that of head 0 */
    int64_t n_q_heads, n_kv_heads, qk_size, v_size;
    bool rotated, local_rope;
    bool sparse;                            /* the config gives it experts */
    int64_t window;                         /* tokens that a token sees; 0: all */
    const gac_module *router, *shared_gate; /* NULL: absent */
    int32_t n_experts;
    net_mlp *experts;
} net_layer;

typedef struct net {
    const gac_model *model;
    const gac_checkpoint *checkpoint;
    const json_t *config;
    const char *type; /* model_type, or the family if the config states none */
    net_variations varies;
    unsigned needs; /* of gac_variation */
    int64_t hidden, vocab;
    int64_t max_context; /* the context that the model was trained for */
    double eps;
    int32_t embedding, positions;
    net_norm norm;
    const gac_module *head; /* NULL: the embedding serves as head */
    int32_t n_layers;
    net_layer *layers;
} net;

gac_status gac_net_read(const gac_model *model, net *out, gac_error *err);
void gac_net_dispose(net *of);

/* Finds the family by n->type and fills n->varies, n->eps and, for each layer, rotated, local_rope
 * and window. Refuses families and settings that the engine does not compute. */
gac_status gac_net_read_family(net *n, gac_error *err);
/* The same for the settings of each layer; n->layers is there. */
gac_status gac_net_read_windows(net *n, gac_error *err);

/* Returns the tensor with the norm of one head, or -1; for HEAD_NORM_APART. norm is a name of
 * net_names. */
int32_t gac_net_find_head_norm(const net *n, int32_t layer, const char *norm, int64_t head);

/* Returns what a device must compute for the model. */
unsigned gac_net_needs(const net *n);

/* Returns whether the model is computed as Llama is, but for windows, so that it can be run in
 * stages. */
bool gac_net_is_plain(const net *n);

/* Sets an error that starts with the checkpoint's path. */
gac_status gac_net_refuse(const net *n, gac_error *err, const char *format, ...) GAC_PRINTF(3, 4);

/* Returns the value in config.json, or NULL if the key is absent or null. */
const json_t *gac_net_stated(const net *n, const char *key);

/* Computes the tables of cosines and sines, each (n_positions, size / 2), for layers with or
 * without a window. size is the number of rotated numbers of a head. Frequencies and angles
 * are rounded to F32, as in transformers. Supported types: default, linear, dynamic (up to
 * its original length), llama3, yarn and longrope. The caller frees both tables. */
gac_status gac_rope_tables(const net *of, bool local, int64_t size, int64_t n_positions,
                           float **cosines, float **sines, gac_error *err);

/* Finds how many positions one table serves. Some types change their frequencies beyond a
 * certain length. */
gac_status gac_rope_limit(const net *of, int64_t *n_positions, gac_error *err);

/* Returns how many numbers of a head are rotated. */
int64_t gac_rope_size(const net *of, int64_t head_size);

#endif

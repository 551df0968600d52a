#ifndef GAC_ENGINE_INTERNAL_H
#define GAC_ENGINE_INTERNAL_H

#include <gac/engine.h>

#include "engine/net.h"

enum { ROWS_QKV, ROWS_HEADS, ROWS_GATED, ROWS_KIND_COUNT };

/* Two buffers of rows serve all layers. Gate and up reuse the memory of q, k
 * and v, which have been read by then. */
enum { BUFFER_WIDE, BUFFER_HEADS, BUFFER_COUNT };

typedef struct loaded_norm {
    gac_vector *weight, *bias; /* NULL: absent */
} loaded_norm;

typedef struct loaded_expert {
    gac_matrix *gate_up, *down;
    gac_rows *rows; /* borrowed from the engine */
} loaded_expert;

typedef struct loaded_layer {
    gac_matrix *matrix[GAC_INPUT_COUNT];
    gac_matrix *kept[GAC_INPUT_COUNT]; /* what a replacement stands for, or NULL */
    loaded_norm attention_norm, mlp_norm, attention_out_norm, mlp_out_norm;
    gac_vector *q_norm, *k_norm;
    gac_matrix *router, *shared_gate;
    loaded_expert *experts;          /* (n_experts of the net's layer), or NULL */
    gac_vector *cosines, *sines;     /* borrowed from the engine */
    gac_rows *rows[ROWS_KIND_COUNT]; /* borrowed from the engine */
    gac_cache *cache;
    int64_t qk_stored, v_stored;
} loaded_layer;

/* The rotary tables of one head size, for layers with or without a window. */
typedef struct loaded_rope {
    int64_t size;
    bool local;
    gac_vector *cosines, *sines;
} loaded_rope;

/* The first BUFFER_COUNT entries own the buffers, each as wide as its widest
 * use. Later entries are narrower views of them. */
typedef struct loaded_rows {
    int buffer;
    int64_t width;
    gac_rows *rows;
} loaded_rows;

struct gac_engine {
    net net;
    gac_compute compute;
    gac_engine_options options;
    gac_matrix *embedding, *head; /* head NULL: the embedding serves as head */
    gac_matrix *positions;        /* or NULL */
    loaded_norm norm;
    void **copies; /* transposed weights, in host memory */
    int32_t n_copies, copy_capacity;
    gac_routing *routing, *shared_routing; /* one for all layers; NULL without experts */
    gac_rows *normed;                      /* input of the experts */
    gac_rows *residual;
    loaded_layer *layers;
    loaded_rope *ropes;
    int32_t n_ropes, rope_capacity;
    loaded_rows *rows;
    int32_t n_rows, row_capacity;
    int64_t room_batch, room_context; /* shape of the cache */
    int64_t recorded_batch;           /* batch of the recorded decode pass; 0: none */
    int64_t last_batch, last_n_new;   /* shape of the last pass; 0 before the first */
    int64_t last_n_past;
    gac_progress *watched; /* from gac_engine_watch, or NULL */
    uint64_t watched_from;
    bool watched_counts;
    double load_s;
    int32_t collected;                /* layer whose inputs are summed, */
    gac_gram *grams[GAC_INPUT_COUNT]; /* here; NULL: none are */
};

/* Maps a tensor of the checkpoint. Index -1 means none. */
gac_status gac_engine_map(const net *n, int32_t index, gac_host_tensor *out, gac_error *err);
/* Appends the numbers of a tensor, each plus offset, to the *n numbers of *data, which the caller
 * frees. GAC_BAD_INPUT for numbers that are not finite. */
gac_status gac_engine_append_numbers(const gac_engine *engine, int32_t tensor, double offset,
                                     float **data, int64_t *n, gac_error *err);
/* Puts the checkpoint's path in front of an error: a device knows no files. */
gac_status gac_engine_name_file(const net *n, gac_status status, gac_error *err);

/* Refuses to compress on a device that has not all functions for it. */
gac_status gac_engine_refuse_device(const gac_engine *engine, gac_error *err);

/* Loads one whole module, or the two matrices of an MLP. */
gac_status gac_engine_load_module(gac_engine *engine, const gac_module *module, gac_matrix **out,
                                  gac_error *err);
gac_status gac_engine_load_mlp(gac_engine *engine, const net_mlp *mlp, gac_matrix **gate_up,
                               gac_matrix **down, gac_error *err);

/* Loads the modules of a layer that share one input as a matrix. What replaces one of them
 * is instead of its weight; replacement may be NULL. */
typedef struct replacement {
    gac_projection projection;
    const gac_host_tensor *first, *second; /* first may be NULL */
} replacement;
gac_status gac_engine_load_group(gac_engine *engine, int32_t layer, gac_engine_input input,
                                 const replacement *replacement, gac_matrix **out, gac_error *err);

/* Runs layers first to end - 1 on the residual stream. before, if not NULL, is called with
 * each linear call before it is made. */
typedef gac_status before_linear(void *user, gac_engine_input input, const gac_linear_call *call,
                                 gac_error *err);
gac_status gac_engine_run(gac_engine *engine, int32_t first, int32_t end, before_linear *before,
                          void *user, gac_error *err);
/* Embeds the tokens of the pass. */
gac_status gac_engine_run_embedding(gac_engine *engine, gac_error *err);
/* Computes the logits of rows first, first + step, ..., n of them. */
gac_status gac_engine_run_head(gac_engine *engine, int64_t first, int64_t step, int64_t n,
                               gac_error *err);

/* Copies the weights to the device and allocates rows and caches. */
gac_status gac_engine_load(gac_engine *engine, gac_error *err);
void gac_engine_unload(gac_engine *engine);

#endif

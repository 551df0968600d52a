#ifndef GAC_ENGINE_INTERNAL_H
#define GAC_ENGINE_INTERNAL_H

#include <gac/engine.h>

#include <jansson.h>

/* One layer. Tensors are indices into the checkpoint. */
typedef struct net_layer {
    const gac_module *q, *k, *v, *o, *gate, *up, *down;
    int32_t attention_norm, mlp_norm;
    int32_t q_norm, k_norm; /* -1: absent */
    int64_t n_q_heads, n_kv_heads, qk_size, v_size, width;
} net_layer;

/* A Llama-like decoder that this engine can run, taken from the model. It owns
 * only layers. */
typedef struct net {
    const gac_model *model;
    const gac_checkpoint *checkpoint;
    const json_t *config;
    int64_t hidden, vocab;
    int64_t max_context; /* the context that the model was trained for */
    double eps;
    int32_t embedding, norm;
    const gac_module *head; /* NULL: the embedding serves as head */
    int32_t n_layers;
    net_layer *layers;
} net;

gac_status gac_net_read(const gac_model *model, net *out, gac_error *err);
void gac_net_dispose(net *of);

/* Computes the tables of cosines and sines, each (n_positions, size / 2).
 * Frequencies and angles are rounded to F32, as in transformers. Supported
 * types: default, linear, dynamic (up to its original length), llama3, yarn and
 * longrope. The caller frees both tables. */
gac_status gac_rope_tables(const net *of, int64_t size, int64_t n_positions, float **cosines,
                           float **sines, gac_error *err);

/* Finds how many positions one table serves. Some types change their
 * frequencies beyond a certain length. */
gac_status gac_rope_limit(const net *of, int64_t *n_positions, gac_error *err);

enum { ROWS_QKV, ROWS_HEADS, ROWS_GATED, ROWS_KIND_COUNT };

/* Two buffers of rows serve all layers. Gate and up reuse the memory of q, k
 * and v, which have been read by then. */
enum { BUFFER_WIDE, BUFFER_HEADS, BUFFER_COUNT };

typedef struct loaded_layer {
    gac_matrix *matrix[GAC_INPUT_COUNT];
    gac_matrix *kept[GAC_INPUT_COUNT]; /* what a replacement stands for, or NULL */
    gac_vector *attention_norm, *mlp_norm, *q_norm, *k_norm;
    gac_vector *cosines, *sines;     /* borrowed from the engine */
    gac_rows *rows[ROWS_KIND_COUNT]; /* borrowed from the engine */
    gac_cache *cache;
    int64_t qk_stored, v_stored;
} loaded_layer;

/* The rotary tables of one head size. */
typedef struct loaded_rope {
    int64_t size;
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
    gac_vector *norm;
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
/* Computes the logits of rows first, first + step, ..., n of them. */
gac_status gac_engine_run_head(gac_engine *engine, int64_t first, int64_t step, int64_t n,
                               gac_error *err);

/* Copies the weights to the device and allocates rows and caches. */
gac_status gac_engine_load(gac_engine *engine, gac_error *err);
void gac_engine_unload(gac_engine *engine);

#endif

/* What the files that run a model share. */
#ifndef GAC_ENGINE_INTERNAL_H
#define GAC_ENGINE_INTERNAL_H

#include <gac/engine.h>

#include <jansson.h>

/* ---- What a model computes (engine_layout.c) ---------------------------- */

/* One layer: modules of the model, tensors by index in the checkpoint. */
typedef struct net_layer {
    const gac_module *q, *k, *v, *o, *gate, *up, *down;
    int32_t attention_norm, mlp_norm;
    int32_t q_norm, k_norm; /* -1: none */
    int64_t n_q_heads, n_kv_heads, qk_size, v_size, width;
} net_layer;

/* A Llama-like decoder, read off the model and held against what the engine
 * can run. Nothing in it is owned but layers. */
typedef struct net {
    const gac_model *model;
    const gac_checkpoint *checkpoint;
    const json_t *config;
    int64_t hidden, vocab;
    int64_t max_context; /* that the model was made for */
    double eps;
    int32_t embedding, norm;
    const gac_module *head; /* NULL: the embedding */
    int32_t n_layers;
    net_layer *layers;
} net;

gac_status gac_net_read(const gac_model *model, net *out, gac_error *err);
void gac_net_dispose(net *of);

/* ---- Rotary embeddings (rope.c) ------------------------------------------ */

/* Cosines and sines, (n_positions, size / 2) each, as transformers computes
 * them: frequencies and angles rounded to F32. Types default, linear, dynamic
 * (within its length), llama3, yarn and longrope. Both are malloc'ed. */
gac_status gac_rope_tables(const net *of, int64_t size, int64_t n_positions, float **cosines,
                           float **sines, gac_error *err);

/* How many positions one table serves: some types change beyond a length. */
gac_status gac_rope_limit(const net *of, int64_t *n_positions, gac_error *err);

/* ---- The model on a device (engine_weights.c) ----------------------------- */

enum { ROWS_QKV, ROWS_HEADS, ROWS_GATED, ROWS_KIND_COUNT };

/* Where rows are kept: q, k and v are read before gate and up are computed, so
 * that these share memory, and so do all layers. */
enum { PLACE_WIDE, PLACE_HEADS, PLACE_COUNT };

typedef struct loaded_layer {
    gac_matrix *qkv, *o, *gate_up, *down;
    gac_vector *attention_norm, *mlp_norm, *q_norm, *k_norm;
    gac_vector *cosines, *sines;     /* borrowed from the engine */
    gac_rows *rows[ROWS_KIND_COUNT]; /* likewise */
    gac_cache *cache;
    int64_t qk_stored, v_stored;
} loaded_layer;

/* Tables of one head size. */
typedef struct loaded_rope {
    int64_t size;
    gac_vector *cosines, *sines;
} loaded_rope;

/* The first PLACE_COUNT are the widest of each place, others lie within them. */
typedef struct loaded_rows {
    int place;
    int64_t width;
    gac_rows *rows;
} loaded_rows;

struct gac_engine {
    net net;
    gac_compute compute;
    gac_engine_options options;
    gac_matrix *embedding, *head; /* head NULL: the embedding */
    gac_vector *norm;
    gac_rows *residual;
    loaded_layer *layers;
    loaded_rope *ropes;
    int32_t n_ropes, rope_capacity;
    loaded_rows *rows;
    int32_t n_rows, row_capacity;
    int64_t room_batch, room_context; /* as the cache is divided */
    int64_t recorded_batch;           /* of the decode pass that was recorded; 0: none */
    int64_t last_batch, last_n_new;   /* of the last pass; 0 before */
    int64_t last_n_past;
    gac_progress *watched; /* by gac_engine_watch, or NULL */
    uint64_t watched_from;
    bool watched_counts;
    double load_s;
};

/* Puts weights on the device, and makes rows and caches. */
gac_status gac_engine_load(gac_engine *engine, gac_error *err);
void gac_engine_unload(gac_engine *engine);

#endif

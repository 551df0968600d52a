/* A Llama of any small shape, for tests that need a checkpoint. Include it
 * after scratch.h. */
#ifndef GAC_TESTS_SMALL_LLAMA_H
#define GAC_TESTS_SMALL_LLAMA_H

#include <gac/model.h>

typedef struct small_llama {
    int n_layers;
    int64_t hidden, n_heads, n_kv_heads, head, width, vocab;
    int64_t rank;      /* of every linear module, as SVD-LLM stores it; -1: dense */
    int64_t kept_head; /* rows per head of q, k and v; 0: the config's */
    /* How much wider each layer is than the previous one, and how much larger
     * the rank of each linear module. */
    int64_t width_step, rank_step;
} small_llama;

#define SMALL_LLAMA_INIT \
    { \
        2, 64, 4, 2, 16, 176, 80, -1, 0, 0, 0 \
    }

typedef struct small_list {
    scratch_tensor tensors[128];
    char names[128][96];
    int n;
} small_list;

static inline void small_add(small_list *list, int64_t rows, int64_t columns, const char *format,
                             ...) GAC_PRINTF(4, 5);

static inline void small_add(small_list *list, int64_t rows, int64_t columns, const char *format,
                             ...)
{
    va_list args;
    assert_true(list->n < 127);
    va_start(args, format);
    vsnprintf(list->names[list->n], sizeof list->names[0], format, args);
    va_end(args);
    list->tensors[list->n] = (scratch_tensor){ list->names[list->n], { rows, columns, 0 } };
    list->n++;
}

static inline void small_linear(small_list *list, int layer, const char *block, const char *name,
                                int64_t n_out, int64_t n_in, int64_t rank)
{
    if (rank < 0) {
        small_add(list, n_out, n_in, "model.layers.%d.%s.%s_proj.weight", layer, block, name);
    } else {
        small_add(list, rank, n_in, "model.layers.%d.%s.%s_v_proj.weight", layer, block, name);
        small_add(list, n_out, rank, "model.layers.%d.%s.%s_u_proj.weight", layer, block, name);
    }
}

static inline void small_layer(small_list *list, const small_llama *s, int layer)
{
    int64_t head = s->kept_head ? s->kept_head : s->head;
    int64_t q = s->n_heads * head, kv = s->n_kv_heads * head;
    int64_t width = s->width + layer * s->width_step;
    const struct {
        const char *block, *name;
        int64_t n_out, n_in;
    } linears[] = {
        { "self_attn", "q", q, s->hidden },  { "self_attn", "k", kv, s->hidden },
        { "self_attn", "v", kv, s->hidden }, { "self_attn", "o", s->hidden, q },
        { "mlp", "gate", width, s->hidden }, { "mlp", "up", width, s->hidden },
        { "mlp", "down", s->hidden, width },
    };
    small_add(list, s->hidden, 0, "model.layers.%d.input_layernorm.weight", layer);
    small_add(list, s->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", layer);
    for (int i = 0; i < 7; i++)
        small_linear(list, layer, linears[i].block, linears[i].name, linears[i].n_out,
                     linears[i].n_in, s->rank < 0 ? -1 : s->rank + (7 * layer + i) * s->rank_step);
}

static inline const scratch_tensor *small_tensors(const small_llama *s)
{
    static small_list list;
    memset(&list, 0, sizeof list);
    small_add(&list, s->vocab, s->hidden, "model.embed_tokens.weight");
    for (int i = 0; i < s->n_layers; i++)
        small_layer(&list, s, i);
    small_add(&list, s->hidden, 0, "model.norm.weight");
    small_add(&list, s->vocab, s->hidden, "lm_head.weight");
    return list.tensors;
}

static inline const char *small_config(const small_llama *s)
{
    static char config[512];
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":%lld,\"num_attention_heads\":%lld,"
             "\"num_key_value_heads\":%lld,\"head_dim\":%lld,\"intermediate_size\":%lld,"
             "\"num_hidden_layers\":%d,\"vocab_size\":%lld}",
             (long long)s->hidden, (long long)s->n_heads, (long long)s->n_kv_heads,
             (long long)s->head, (long long)s->width, s->n_layers, (long long)s->vocab);
    return config;
}

/* Writes the model in F16 under name. */
static inline void small_llama_write(const char *name, const small_llama *s)
{
    scratch_checkpoint(name, small_config(s), GAC_DTYPE_F16, small_tensors(s));
}

/* The same as a file with a hole for its zeros, so that shapes of real models fit. */
static inline void small_llama_outline(const char *name, const small_llama *s)
{
    scratch_outline(name, small_config(s), GAC_DTYPE_F16, small_tensors(s));
}

/* A checkpoint with its model. */
typedef struct small_model {
    gac_checkpoint *checkpoint;
    gac_model *model;
} small_model;

static inline small_model small_open(const char *name)
{
    small_model m = { NULL, NULL };
    assert_ok(gac_checkpoint_open(scratch_path(name), NULL, &m.checkpoint, err));
    assert_ok(gac_model_create(m.checkpoint, &m.model, err));
    return m;
}

static inline void small_close(small_model *m)
{
    gac_model_free(m->model);
    gac_checkpoint_close(m->checkpoint);
}

static inline int32_t small_dim(const gac_model *model, const char *name)
{
    int32_t index = gac_model_find_dim(model, name);
    if (index < 0)
        fail_msg("no dimension %s", name);
    return index;
}

#endif

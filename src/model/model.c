#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "model/model_internal.h"

static const char *const role_names[GAC_ROLE_COUNT] = {
    [GAC_ROLE_RANK] = "rank",
    [GAC_ROLE_MLP_WIDTH] = "mlp_width",
    [GAC_ROLE_QK_HEAD] = "qk_head",
    [GAC_ROLE_V_HEAD] = "v_head",
    [GAC_ROLE_HIDDEN] = "hidden",
    [GAC_ROLE_VOCAB] = "vocab",
    [GAC_ROLE_EXPERT_WIDTH] = "expert_width",
};

const char *gac_role_name(gac_role role)
{
    return (unsigned)role < GAC_ROLE_COUNT ? role_names[role] : "unknown";
}

const char *gac_exactness_name(gac_exactness exactness)
{
    static const char *const names[] = { "exact", "rescaled", "refused" };
    return (unsigned)exactness <= GAC_REFUSED ? names[exactness] : "unknown";
}

const char *gac_repeat_name(gac_repeat repeat)
{
    static const char *const names[] = { "whole", "head", "half", "group", "pairs" };
    return (unsigned)repeat <= GAC_REPEAT_PAIRS ? names[repeat] : "unknown";
}

static const char *compressor_name(unsigned found)
{
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = { { FOUND_LORA, "lora" },
                  { FOUND_PALU, "palu" },
                  { FOUND_SVD_LLM, "svd-llm" },
                  { FOUND_ASVD, "asvd" },
                  { FOUND_DOBI, "dobi-svd" },
                  { FOUND_BASIS, "basis-sharing" },
                  { FOUND_LOW_RANK, "low-rank" },
                  { FOUND_BLOCK_CONFIGS, "block-configs" },
                  { FOUND_DIRECT, "direct" },
                  { FOUND_PRUNED, "pruned" },
                  { FOUND_GPTQ, "gptq" },
                  { FOUND_AWQ, "awq" },
                  { FOUND_BITSANDBYTES, "bitsandbytes" },
                  { FOUND_COMPRESSED_TENSORS, "compressed-tensors" },
                  { FOUND_FP4, "fp4" },
                  { FOUND_FP8, "fp8" },
                  { FOUND_INT8, "int8" },
                  { 0, NULL } };
    for (int i = 0; names[i].name; i++)
        if (found & names[i].bit)
            return names[i].name;
    return "dense";
}

/* Returns whether gac compress wrote the model: its record is beside it. Repairs list modules, too,
 * and have no such record of their own. */
static bool is_ours(const builder *b)
{
    gac_file *record = NULL;
    if (json_object_get(b->config, "gac_modules"))
        gac_checkpoint_open_file(b->checkpoint, "gac.json", &record, NULL);
    gac_file_close(record);
    return record != NULL;
}

/* Notes each role whose config key disagrees with some tensors. Ranks are noted
 * elsewhere, for each module. */
static gac_status note_stale_keys(builder *b, gac_error *err)
{
    for (int r = 0; r < GAC_ROLE_COUNT; r++) {
        gac_role role = (gac_role)r;
        const gac_dim *first = NULL;
        int32_t n = 0;
        for (int32_t i = 0; i < b->n_dims; i++) {
            const gac_dim *d = &b->dims[i].dim;
            if (d->role != role || !d->config_key || d->declared < 0 || d->declared == d->size)
                continue;
            first = first ? first : d;
            n++;
        }
        if (!first || role == GAC_ROLE_RANK)
            continue;
        gac_status status = builder_note(
            b, err, "config.json states %s %lld; %d of role %s have another size, first %s = %lld",
            first->config_key, (long long)first->declared, n, gac_role_name(role), first->name,
            (long long)first->size);
        if (status != GAC_OK)
            return status;
    }
    return GAC_OK;
}

/* Whether the config states other sizes than the tensors have. */
static bool is_stale(const builder *b)
{
    bool stale = b->config && b->stale_heads;
    for (int32_t i = 0; i < b->n_dims && b->config; i++)
        stale = stale || (b->dims[i].dim.declared >= 0 && b->dims[i].dim.role != GAC_ROLE_RANK &&
                          b->dims[i].dim.declared != b->dims[i].dim.size);
    return stale;
}

/* Notes what is strange about the model as a whole: code of its own, and names with the prefix of
 * one of torch's wrappers, which no family knows. */
static gac_status note_strangeness(builder *b, gac_error *err)
{
    static const char *const wrappers[] = { "module.", "_orig_mod." };
    const gac_checkpoint *c = b->checkpoint;
    const int32_t n = gac_checkpoint_n_tensors(c);
    gac_status status = GAC_OK;
    if (json_object_get(b->config, "auto_map") && !gac_config_has_our_code(b->config))
        status = builder_note(b, err,
                              "config.json names modelling code of its own (auto_map); gac does "
                              "not know what that computes");
    for (size_t k = 0; k < 2 && status == GAC_OK; k++) {
        int32_t i = 0;
        while (i < n &&
               strncmp(gac_checkpoint_tensor(c, i)->name, wrappers[k], strlen(wrappers[k])) == 0)
            i++;
        if (n > 0 && i == n)
            status = builder_note(b, err,
                                  "all names start with \"%s\", which a wrapper of torch left "
                                  "there; no family has such names",
                                  wrappers[k]);
    }
    return status;
}

static gac_status note_layers(builder *b, gac_error *err)
{
    int64_t stated = -1;
    const char *key = json_object_get(b->config, "n_layer") ? "n_layer" : "num_hidden_layers";
    gac_status status = config_size(b, b->config, key, &stated, err);
    if (status == GAC_OK && stated >= 0 && stated != b->n_layers)
        status = builder_note(b, err, "config.json states %s %lld; the tensors have %d layers", key,
                              (long long)stated, b->n_layers);
    if (status == GAC_OK && !b->config && strcmp(b->family, family_adapter.name) != 0)
        status = builder_note(b, err, "no config.json: head sizes are not known");
    return status;
}

/* Returns the dtype of most weights. Packed weights have integers for a dtype, but are multiplied
 * as the floats beside them. So, it is assumed, are quantised weights that were not read. */
static gac_dtype main_dtype(const builder *b)
{
    uint64_t bytes[GAC_DTYPE_COUNT] = { 0 };
    gac_dtype best = GAC_DTYPE_F16;
    const gac_checkpoint *c = b->checkpoint;
    const bool only_wide = (b->found & FOUND_PACKED) || quantised_unread(b);
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        bool wide =
            t->dtype == GAC_DTYPE_F16 || t->dtype == GAC_DTYPE_BF16 || t->dtype == GAC_DTYPE_F32;
        if (only_wide && !wide)
            continue;
        bytes[t->dtype] += t->size_bytes;
        if (bytes[t->dtype] > bytes[best])
            best = t->dtype;
    }
    return best;
}

static int by_place(const void *a, const void *b)
{
    const gac_place *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->axis != y->axis)
        return x->axis < y->axis ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Removes duplicates: a shared basis was bound once per layer that uses it. */
static int32_t unique_places(gac_place *places, int32_t n)
{
    int32_t kept = 0;
    qsort(places, (size_t)n, sizeof *places, by_place);
    for (int32_t i = 0; i < n; i++)
        if (kept == 0 || by_place(&places[kept - 1], &places[i]) != 0)
            places[kept++] = places[i];
    return kept;
}

static gac_status take_dims(gac_model *m, builder *b, gac_error *err)
{
    m->dims = gac_arena_alloc(&m->arena, (size_t)b->n_dims * sizeof *m->dims + 1);
    if (!m->dims)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < b->n_dims; i++) {
        dim_entry *from = &b->dims[i];
        from->n_places = from->places ? unique_places(from->places, from->n_places) : 0;
        size_t n_bytes = (size_t)from->n_places * sizeof *from->places;
        gac_place *places = gac_arena_alloc(&m->arena, n_bytes + 1);
        if (!places)
            return gac_error_no_memory(err);
        if (n_bytes)
            memcpy(places, from->places, n_bytes);
        m->dims[i] = from->dim;
        m->dims[i].places = places;
        m->dims[i].n_places = from->n_places;
    }
    m->n_dims = b->n_dims;
    return GAC_OK;
}

/* All pairs (dimension, place) as a linked list per tensor. */
typedef struct place_ref {
    int32_t dim, place;
    int32_t next; /* next of the same tensor, or -1 */
} place_ref;

typedef struct place_index {
    place_ref *refs;
    int32_t *first; /* (n_tensors), -1: none */
} place_index;

static gac_status index_places(const gac_model *m, place_index *x, gac_error *err)
{
    int32_t n = 0, n_tensors = gac_checkpoint_n_tensors(m->checkpoint);
    for (int32_t i = 0; i < m->n_dims; i++)
        n += m->dims[i].n_places;
    x->refs = calloc((size_t)n + 1, sizeof *x->refs);
    x->first = calloc((size_t)n_tensors + 1, sizeof *x->first);
    if (!x->refs || !x->first)
        return gac_error_no_memory(err);
    memset(x->first, 0xff, ((size_t)n_tensors + 1) * sizeof *x->first);
    n = 0;
    for (int32_t i = 0; i < m->n_dims; i++)
        for (int32_t j = 0; j < m->dims[i].n_places; j++) {
            int32_t *first = &x->first[m->dims[i].places[j].tensor];
            x->refs[n] = (place_ref){ i, j, *first };
            *first = n++;
        }
    return GAC_OK;
}

/* Finds the dimensions that make up an operator's sizes. */
static gac_status take_terms(gac_model *m, const op_entry *from, const place_index *x,
                             const term_entry *packed, gac_op *to, gac_error *err)
{
    int32_t n = 0;
    *to = from->op;
    bool sdpa = to->kind == GAC_OP_SDPA;
    for (int32_t r = sdpa ? -1 : x->first[to->tensor]; r >= 0; r = x->refs[r].next)
        n++;
    for (int32_t t = from->last_term; t > 0; t = packed[t - 1].before)
        n++;
    gac_term *terms = gac_arena_alloc(&m->arena, (size_t)(n + 2) * sizeof *terms);
    if (!terms)
        return gac_error_no_memory(err);
    n = 0;
    if (sdpa) {
        terms[n++] = (gac_term){ to->qk_dim, GAC_OP_SDPA_HEAD, 1 };
        terms[n++] = (gac_term){ to->v_dim, GAC_OP_SDPA_HEAD, 1 };
    }
    for (int32_t r = sdpa ? -1 : x->first[to->tensor]; r >= 0; r = x->refs[r].next) {
        const gac_place *p = &m->dims[x->refs[r].dim].places[x->refs[r].place];
        terms[n++] =
            (gac_term){ x->refs[r].dim, p->axis == from->n_axis ? GAC_OP_GEMM_N : GAC_OP_GEMM_K,
                        p->n_slices };
    }
    for (int32_t t = from->last_term; t > 0; t = packed[t - 1].before)
        terms[n++] = packed[t - 1].term;
    to->terms = terms;
    to->n_terms = n;
    return GAC_OK;
}

static gac_status take_ops(gac_model *m, const builder *b, gac_error *err)
{
    place_index x = { NULL, NULL };
    m->ops = gac_arena_alloc(&m->arena, (size_t)b->n_ops * sizeof *m->ops + 1);
    gac_status status = m->ops ? index_places(m, &x, err) : gac_error_no_memory(err);
    for (int32_t i = 0; i < b->n_ops && status == GAC_OK; i++)
        status = take_terms(m, &b->ops[i], &x, b->terms, &m->ops[i], err);
    m->n_ops = b->n_ops;
    free(x.refs);
    free(x.first);
    return status;
}

/* Whether a tensor has an axis for the vocabulary. */
static bool *list_vocab(const builder *b)
{
    bool *is_vocab = calloc((size_t)gac_checkpoint_n_tensors(b->checkpoint) + 1, sizeof *is_vocab);
    const dim_entry *d = b->vocab >= 0 ? &b->dims[b->vocab] : NULL;
    for (int32_t i = 0; is_vocab && d && i < d->n_places; i++)
        is_vocab[d->places[i].tensor] = true;
    return is_vocab;
}

static gac_status count_understood(gac_model *m, const builder *b, gac_error *err)
{
    double all = 0, understood = 0;
    bool *is_vocab = list_vocab(b);
    if (!is_vocab)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(m->checkpoint); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(m->checkpoint, i);
        double n = is_vocab[i] ? 0 : 1;
        for (int32_t a = 0; a < t->n_axes; a++)
            n *= (double)t->shape[a];
        all += n;
        understood += b->explained[i] ? n : 0;
    }
    m->understood_pct = all > 0 ? 100 * understood / all : 100;
    free(is_vocab);
    return GAC_OK;
}

static gac_status take_unexplained(gac_model *m, const builder *b, gac_error *err)
{
    int32_t n_tensors = gac_checkpoint_n_tensors(m->checkpoint), n = 0;
    for (int32_t i = 0; i < n_tensors; i++)
        n += !b->explained[i];
    m->unexplained = gac_arena_alloc(&m->arena, (size_t)n * sizeof *m->unexplained + 1);
    if (!m->unexplained)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n_tensors; i++)
        if (!b->explained[i])
            m->unexplained[m->n_unexplained++] = i;
    return GAC_OK;
}

static gac_status take_modules(gac_model *m, const builder *b, gac_error *err)
{
    m->modules = gac_arena_alloc(&m->arena, (size_t)b->n_modules * sizeof *m->modules + 1);
    m->prefix = gac_arena_strdup(&m->arena, b->prefix ? b->prefix : "");
    if (!m->modules || !m->prefix)
        return gac_error_no_memory(err);
    if (b->n_modules)
        memcpy(m->modules, b->modules, (size_t)b->n_modules * sizeof *m->modules);
    m->n_modules = b->n_modules;
    gac_status status = gac_namemap_init(&m->module_names, err);
    for (int32_t i = 0, same; i < m->n_modules && status == GAC_OK; i++)
        status = gac_namemap_add(&m->module_names, m->modules[i].name, i, &same, err);
    return status;
}

static gac_status take_all(gac_model *m, builder *b, gac_error *err)
{
    gac_status status = take_dims(m, b, err);
    if (status == GAC_OK)
        status = take_modules(m, b, err);
    if (status == GAC_OK)
        status = take_ops(m, b, err);
    if (status == GAC_OK)
        status = take_unexplained(m, b, err);
    if (status == GAC_OK)
        status = count_understood(m, b, err);
    m->notes = gac_arena_alloc(&m->arena, (size_t)b->n_notes * sizeof *m->notes + 1);
    if (status == GAC_OK && !m->notes)
        status = gac_error_no_memory(err);
    if (status != GAC_OK)
        return status;
    if (b->n_notes)
        memcpy(m->notes, b->notes, (size_t)b->n_notes * sizeof *m->notes);
    m->n_notes = b->n_notes;
    m->n_layers = b->n_layers;
    m->stale = is_stale(b);
    m->plain = !(b->found & ~(unsigned)(FOUND_DIRECT | FOUND_PRUNED));
    m->all_expected = true;
    for (int32_t i = 0; i < m->n_unexplained; i++)
        m->all_expected = m->all_expected && b->expected[m->unexplained[i]];
    m->config = b->config;
    m->family = b->family;
    m->family_known = b->family_known;
    m->compressor = is_ours(b) ? "gac" : compressor_name(b->found);
    m->dtype = main_dtype(b);
    m->dim_names = b->dim_names;
    memset(&b->dim_names, 0, sizeof b->dim_names);
    return GAC_OK;
}

static void builder_dispose(builder *b)
{
    for (int32_t i = 0; i < b->n_dims; i++)
        free(b->dims[i].places);
    free(b->dims);
    free(b->ops);
    free(b->terms);
    free(b->notes);
    free(b->modules);
    free(b->sorted);
    free(b->explained);
    free(b->expected);
    gac_namemap_dispose(&b->dim_names);
}

/* Checks the types of keys that are read further down. */
static gac_status check_config(const builder *b, gac_error *err)
{
    static const struct {
        const char *key;
        json_type type;
    } keys[] = { { "block_configs", JSON_ARRAY },
                 { "per_layer_config", JSON_OBJECT },
                 { "truncation_ranks", JSON_OBJECT },
                 { "head_wise_ranks", JSON_OBJECT } };
    char q[200];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(b->config, keys[i].key);
        if (value && !json_is_null(value) && json_typeof(value) != keys[i].type)
            return gac_error_set(err, GAC_BAD_INPUT, "%s: \"%s\" is not an %s",
                                 gac_quote(q, sizeof q, b->config_path), keys[i].key,
                                 keys[i].type == JSON_ARRAY ? "array" : "object");
    }
    return GAC_OK;
}

/* Multimodal models keep the language model's config in a nested object. */
static const json_t *language_config(const json_t *config)
{
    const json_t *text = json_object_get(config, "text_config");
    return json_is_object(text) ? text : config;
}

gac_status gac_model_create(const gac_checkpoint *checkpoint, gac_model **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, checkpoint, out);
    gac_model *m = calloc(1, sizeof *m);
    if (!m)
        return gac_error_no_memory(err);
    m->checkpoint = checkpoint;
    builder b = { .checkpoint = checkpoint,
                  .config = language_config(gac_checkpoint_config(checkpoint)),
                  .arena = &m->arena,
                  .layer = -1,
                  .hidden = -1,
                  .vocab = -1,
                  .hidden_name = "hidden",
                  .hidden_exactness = GAC_RESCALED,
                  .hidden_reason = "RMSNorm averages over the hidden size: its weights and eps "
                                   "must be rescaled, equal up to rounding" };
    b.explained = calloc((size_t)gac_checkpoint_n_tensors(checkpoint) + 1, sizeof *b.explained);
    b.expected = calloc((size_t)gac_checkpoint_n_tensors(checkpoint) + 1, sizeof *b.expected);
    b.config_path = gac_checkpoint_is_directory(checkpoint)
                        ? gac_arena_printf(&m->arena, "%s/%s", gac_checkpoint_path(checkpoint),
                                           gac_checkpoint_config_name(checkpoint))
                        : gac_checkpoint_config_name(checkpoint);
    const family *chosen = NULL;
    gac_status status = gac_namemap_init(&b.dim_names, err);
    if (status == GAC_OK && (!b.explained || !b.expected || !b.config_path))
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = check_config(&b, err);
    if (status == GAC_OK)
        status = family_choose(&b, &chosen, err);
    if (status == GAC_OK) {
        family_scan_names(&b, chosen->layers);
        status = note_layers(&b, err);
    }
    if (status == GAC_OK)
        status = note_strangeness(&b, err);
    if (status == GAC_OK)
        status = chosen->build(&b, chosen, err);
    if (status == GAC_OK)
        status = settle_dims(&b, err);
    if (status == GAC_OK)
        status = note_stale_keys(&b, err);
    if (status == GAC_OK)
        status = note_quantised(&b, err);
    if (status == GAC_OK)
        status = take_all(m, &b, err);
    if (status == GAC_BAD_INPUT)
        quantised_blame(&b, err);
    builder_dispose(&b);
    if (status != GAC_OK) {
        gac_model_free(m);
        return status;
    }
    *out = m;
    return GAC_OK;
}

void gac_model_free(gac_model *m)
{
    if (!m)
        return;
    gac_namemap_dispose(&m->dim_names);
    gac_namemap_dispose(&m->module_names);
    gac_arena_free(&m->arena);
    free(m);
}

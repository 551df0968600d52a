/* Reads the tokenizer.ggml.* keys of a GGUF file. */
#include <math.h>
#include <string.h>

#include "checkpoint/convert_internal.h"

enum { MAX_TOKENS = 1 << 20, MAX_MERGES = 4 << 20 };

static int32_t find(const convert_model *m, const char *suffix)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", suffix);
    return gac_gguf_find_key(m->gguf, key);
}

/* Copies an array of strings. */
static gac_status take_texts(convert_model *m, const char *suffix, const char *what, int64_t max,
                             const char ***out, int64_t *n, gac_error *err)
{
    gac_gguf_kind kind;
    int32_t key = find(m, suffix);
    if (!gac_gguf_array(m->gguf, key, &kind, n) || kind != GAC_GGUF_STRING)
        return gac_convert_bad(m, err, "no key tokenizer.ggml.%s, or not an array of strings",
                               suffix);
    if (*n > max)
        return gac_convert_bad(m, err, "tokenizer.ggml.%s has %lld elements, more than %lld",
                               suffix, (long long)*n, (long long)max);
    *out = gac_arena_alloc(&m->arena, (size_t)*n * sizeof **out + 1);
    gac_status status = *out ? GAC_OK : gac_error_no_memory(err);
    for (int64_t i = 0; i < *n && status == GAC_OK; i++) {
        const char *text = "";
        size_t n_bytes = 0;
        gac_gguf_array_string(m->gguf, key, i, &text, &n_bytes);
        status = gac_convert_text(m, what, i, text, n_bytes, &(*out)[i], err);
    }
    return status;
}

static gac_status take_types(convert_model *m, gac_error *err)
{
    convert_vocab *v = &m->vocab;
    gac_gguf_kind kind;
    int64_t n, type;
    int32_t key = find(m, "token_type");
    v->types = gac_arena_alloc(&m->arena, (size_t)v->n + 1);
    if (!v->types)
        return gac_error_no_memory(err);
    memset(v->types, TOKEN_NORMAL, (size_t)v->n);
    if (key < 0)
        return GAC_OK;
    if (!gac_gguf_array(m->gguf, key, &kind, &n) || n != v->n)
        return gac_convert_bad(m, err, "tokenizer.ggml.token_type is not one number per token");
    for (int64_t i = 0; i < n; i++) {
        if (!gac_gguf_array_integer(m->gguf, key, i, &type) || type < 0 || type > TOKEN_BYTE)
            return gac_convert_bad(m, err, "tokenizer.ggml.token_type %lld is not from 0 to %d",
                                   (long long)i, TOKEN_BYTE);
        v->types[i] = (uint8_t)(type ? type : TOKEN_NORMAL);
    }
    return GAC_OK;
}

static gac_status take_scores(convert_model *m, gac_error *err)
{
    convert_vocab *v = &m->vocab;
    gac_gguf_kind kind;
    int64_t n;
    double score;
    int32_t key = find(m, "scores");
    v->scores = gac_arena_alloc(&m->arena, (size_t)v->n * sizeof *v->scores + 1);
    if (!v->scores)
        return gac_error_no_memory(err);
    if (!gac_gguf_array(m->gguf, key, &kind, &n) || n != v->n)
        return gac_convert_bad(m, err, "tokenizer.ggml.scores is not one number per token");
    for (int64_t i = 0; i < n; i++) {
        if (!gac_gguf_array_number(m->gguf, key, i, &score))
            return gac_convert_bad(m, err, "tokenizer.ggml.scores %lld is not a number",
                                   (long long)i);
        v->scores[i] = (float)score;
    }
    return GAC_OK;
}

/* Reads the id of a special token. Some writers use all ones for an absent
 * token. */
static gac_status take_id(convert_model *m, const char *suffix, int64_t *out, gac_error *err)
{
    int64_t id;
    int32_t key = find(m, suffix);
    if (key < 0)
        return GAC_OK;
    if (!gac_gguf_integer(m->gguf, key, &id))
        return gac_convert_bad(m, err, "tokenizer.ggml.%s is not a whole number", suffix);
    if (id == -1 || id == UINT32_MAX)
        return GAC_OK;
    if (id < 0 || id >= m->vocab.n)
        return gac_convert_bad(m, err, "tokenizer.ggml.%s is %lld, beyond the %lld tokens", suffix,
                               (long long)id, (long long)m->vocab.n);
    *out = id;
    return GAC_OK;
}

static gac_status take_ids(convert_model *m, gac_error *err)
{
    convert_vocab *v = &m->vocab;
    gac_status status = take_id(m, "bos_token_id", &v->bos, err);
    if (status == GAC_OK)
        status = take_id(m, "eos_token_id", &v->eos, err);
    if (status == GAC_OK)
        status = take_id(m, "unknown_token_id", &v->unknown, err);
    if (status == GAC_OK)
        status = take_id(m, "padding_token_id", &v->pad, err);
    for (int64_t i = 0; i < v->n && v->unknown < 0 && v->kind == VOCAB_SCORED; i++)
        if (v->types[i] == TOKEN_UNKNOWN)
            v->unknown = i;
    return status;
}

static gac_status take_split(convert_model *m, const gac_log *log, gac_error *err)
{
    char name[64] = "", q[80];
    const char *text = "default";
    size_t n_bytes = 7;
    gac_gguf_string(m->gguf, find(m, "pre"), &text, &n_bytes);
    snprintf(name, sizeof name, "%.*s", (int)(n_bytes < 63 ? n_bytes : 63), text);
    if (strcmp(name, "default") == 0) {
        gac_log_write(log, 0, "%s: does not say how words are split; taken as in GPT-2", m->path);
        snprintf(name, sizeof name, "gpt-2");
    }
    if (!gac_convert_split_known(name))
        return gac_convert_bad(m, err, "tokenizer.ggml.pre \"%s\" is not known",
                               gac_quote(q, sizeof q, name));
    m->vocab.split = gac_arena_strdup(&m->arena, name);
    return m->vocab.split ? GAC_OK : gac_error_no_memory(err);
}

static gac_status take_flags(convert_model *m, gac_error *err)
{
    convert_vocab *v = &m->vocab;
    const char *text;
    size_t n_bytes;
    v->add_bos = v->kind == VOCAB_SCORED;
    v->add_space = true;
    if (v->split) {
        convert_split split = gac_convert_split(v->split);
        v->add_bos = split.adds_bos;
        json_decref(split.pre_tokenizer);
    }
    gac_gguf_bool(m->gguf, find(m, "add_bos_token"), &v->add_bos);
    gac_gguf_bool(m->gguf, find(m, "add_eos_token"), &v->add_eos);
    gac_gguf_bool(m->gguf, find(m, "add_space_prefix"), &v->add_space);
    v->add_bos = v->add_bos && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    if (!gac_gguf_string(m->gguf, gac_gguf_find_key(m->gguf, "tokenizer.chat_template"), &text,
                         &n_bytes))
        return GAC_OK;
    return gac_convert_text(m, "tokenizer.chat_template", 0, text, n_bytes, &v->chat_template, err);
}

gac_status gac_convert_gguf_vocab(convert_model *m, const gac_log *log, gac_error *err)
{
    convert_vocab *v = &m->vocab;
    const char *kind;
    char name[64], q[80];
    size_t n_bytes;
    if (!gac_gguf_string(m->gguf, find(m, "model"), &kind, &n_bytes)) {
        gac_log_write(log, 0, "%s: has no tokenizer", m->path);
        return GAC_OK;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n_bytes < 63 ? n_bytes : 63), kind);
    if (strcmp(name, "gpt2") == 0)
        v->kind = VOCAB_BYTE_LEVEL;
    else if (strcmp(name, "llama") == 0)
        v->kind = VOCAB_SCORED;
    else
        return gac_convert_bad(m, err,
                               "a tokenizer of model \"%s\" is not converted; gpt2 and llama are",
                               gac_quote(q, sizeof q, name));
    gac_status status = take_texts(m, "tokens", "token", MAX_TOKENS, &v->tokens, &v->n, err);
    if (status == GAC_OK && v->n > m->vocab_size)
        return gac_convert_bad(m, err, "%lld tokens for %lld rows of \"token_embd.weight\"",
                               (long long)v->n, (long long)m->vocab_size);
    if (status == GAC_OK)
        status = take_types(m, err);
    if (status == GAC_OK && v->kind == VOCAB_SCORED)
        status = take_scores(m, err);
    if (status == GAC_OK && v->kind == VOCAB_BYTE_LEVEL)
        status = take_texts(m, "merges", "merge", MAX_MERGES, &v->merges, &v->n_merges, err);
    if (status == GAC_OK && v->kind == VOCAB_BYTE_LEVEL)
        status = take_split(m, log, err);
    if (status == GAC_OK)
        status = take_ids(m, err);
    return status == GAC_OK ? take_flags(m, err) : status;
}

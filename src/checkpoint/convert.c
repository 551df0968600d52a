/* Writes a convert_model as a Hugging Face directory, piece by piece. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/floats.h"
#include "checkpoint/convert_internal.h"

/* Elements converted at once; a multiple of every block size. */
enum { CHUNK = 64 << 10 };

gac_status gac_convert_bad(const convert_model *model, gac_error *err, const char *format, ...)
{
    char q[256], what[440];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: %s", gac_quote(q, sizeof q, model->path), what);
}

gac_status gac_convert_add(convert_model *model, const char *name, int64_t n_rows,
                           int64_t n_columns, int64_t source, int64_t n_rotated, gac_error *err)
{
    const char *copy = gac_arena_strdup(&model->arena, name);
    if (!copy || !gac_grow((void **)&model->tensors, model->n_tensors, &model->capacity,
                           sizeof *model->tensors))
        return gac_error_no_memory(err);
    model->tensors[model->n_tensors++] =
        (convert_tensor){ copy, { n_rows, n_columns }, n_columns ? 2 : 1, source, n_rotated };
    return GAC_OK;
}

gac_status gac_convert_text(convert_model *model, const char *what, int64_t index, const char *text,
                            size_t n_bytes, const char **out, gac_error *err)
{
    if (!gac_is_utf8(text, n_bytes))
        return gac_convert_bad(model, err, "%s %lld is not UTF-8 without NUL", what,
                               (long long)index);
    char *copy = gac_arena_alloc(&model->arena, n_bytes + 1);
    if (!copy)
        return gac_error_no_memory(err);
    memcpy(copy, text, n_bytes);
    *out = copy;
    return GAC_OK;
}

void gac_convert_dispose(convert_model *model)
{
    gac_gguf_close(model->gguf);
    gac_file_close(model->file);
    json_decref(model->rope_scaling);
    free(model->tensors);
    gac_arena_free(&model->arena);
}

double gac_convert_decimal(double value)
{
    char text[40];
    for (int digits = 1; digits < 10; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

static const char *torch_name(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F32 ? "float32" : dtype == GAC_DTYPE_BF16 ? "bfloat16" : "float16";
}

static void set_id(json_t *config, const char *key, int64_t id)
{
    if (id >= 0)
        json_object_set_new(config, key, json_integer(id));
}

static json_t *make_config(const convert_model *m, gac_dtype dtype)
{
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:b}",
                  "architectures", m->architecture, "model_type", m->model_type, "torch_dtype",
                  torch_name(dtype), "hidden_act", "silu", "hidden_size", (json_int_t)m->hidden,
                  "intermediate_size", (json_int_t)m->width, "num_hidden_layers",
                  (json_int_t)m->n_layers, "num_attention_heads", (json_int_t)m->n_heads,
                  "num_key_value_heads", (json_int_t)m->n_kv_heads, "max_position_embeddings",
                  (json_int_t)m->context, "vocab_size", (json_int_t)m->vocab_size,
                  "initializer_range", 0.02, "rms_norm_eps", gac_convert_decimal(m->rms_eps),
                  "rope_theta", gac_convert_decimal(m->rope_theta), "tie_word_embeddings", m->tied);
    if (!config)
        return NULL;
    /* Without this key, qwen3 assumes 128. */
    if (m->qk_norm || m->head_dim * m->n_heads != m->hidden)
        json_object_set_new(config, "head_dim", json_integer(m->head_dim));
    if (strcmp(m->model_type, "llama") == 0) {
        json_object_set_new(config, "attention_bias", json_boolean(m->attention_bias));
        json_object_set_new(config, "mlp_bias", json_boolean(m->mlp_bias));
    }
    if (m->has_window) /* without this key, these families assume a window of 4096 */
        json_object_set_new(config, "sliding_window", json_null());
    if (m->rope_scaling)
        json_object_set(config, "rope_scaling", m->rope_scaling);
    set_id(config, "bos_token_id", m->vocab.bos);
    set_id(config, "eos_token_id", m->vocab.eos);
    set_id(config, "pad_token_id", m->vocab.pad);
    return config;
}

/* Adds value as a JSON file and frees it. A value of NULL means that memory ran
 * out. */
static gac_status add_json(gac_writer *writer, const char *name, json_t *value, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes;
    gac_status status =
        gac_json_text(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15), &text, &n_bytes, err);
    json_decref(value);
    if (status == GAC_OK) {
        text[n_bytes] = '\n'; /* in place of the NUL */
        status = gac_writer_add_file(writer, name, text, n_bytes + 1, err);
    }
    free(text);
    return status;
}

static gac_status add_tokenizer(const convert_model *model, gac_writer *writer, gac_error *err)
{
    json_t *tokenizer = NULL;
    if (model->vocab.kind == VOCAB_NONE)
        return GAC_OK;
    gac_status status = gac_convert_tokenizer_json(model, &tokenizer, err);
    if (status == GAC_OK)
        status = add_json(writer, "tokenizer.json", tokenizer, err);
    if (status == GAC_OK)
        status =
            add_json(writer, "tokenizer_config.json", gac_convert_tokenizer_config(model), err);
    return status;
}

typedef struct copying {
    convert_model *model;
    gac_writer *writer;
    gac_dtype dtype;
    gac_progress *progress;
    uint64_t n_done;
    float *floats;  /* (CHUNK) as read */
    float *ordered; /* (CHUNK) a rotated vector in its new order */
    void *codes;    /* (CHUNK) of dtype */
    const volatile int *cancel;
    gac_error *err;
} copying;

/* Converts n floats to dtype. False if a finite value becomes infinite. */
static bool encode(gac_dtype dtype, const float *from, int64_t n, void *to)
{
    bool fits = true;
    uint16_t *halves = to;
    for (int64_t i = 0; i < n && dtype != GAC_DTYPE_F32; i++) {
        bool f16 = dtype == GAC_DTYPE_F16;
        halves[i] = f16 ? gac_f16_from_float(from[i]) : gac_bf16_from_float(from[i]);
        bool infinite = (halves[i] & 0x7FFF) == (f16 ? 0x7C00 : 0x7F80);
        fits = fits && (!infinite || isinf(from[i]));
    }
    if (dtype == GAC_DTYPE_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    return fits;
}

/* Writes n floats to a tensor, from element first on. */
static gac_status put(copying *c, int32_t index, int64_t first, const float *floats, int64_t n)
{
    char file[160], name[160];
    size_t size = (size_t)gac_dtype_bits(c->dtype) / 8;
    if (c->cancel && *c->cancel)
        return gac_error_set(c->err, GAC_FAILED, "interrupted; nothing was left behind");
    if (!encode(c->dtype, floats, n, c->codes))
        return gac_error_set(c->err, GAC_USAGE,
                             "%s: tensor \"%s\": a weight is too large for %s; %s would hold it",
                             gac_quote(file, sizeof file, c->model->path),
                             gac_quote(name, sizeof name, c->model->tensors[index].name),
                             gac_dtype_name(c->dtype), c->dtype == GAC_DTYPE_F16 ? "BF16" : "F32");
    c->n_done += (uint64_t)n * size;
    gac_progress_step(c->progress, c->n_done);
    return gac_writer_write(c->writer, index, (uint64_t)first * size, c->codes, (size_t)n * size,
                            c->err);
}

/* Copies n elements of the source, from element from on, to element first of
 * the target. */
static gac_status move(copying *c, int32_t index, int64_t from, int64_t first, int64_t n)
{
    gac_status status = GAC_OK;
    for (int64_t done = 0; done < n && status == GAC_OK; done += CHUNK) {
        int64_t part = n - done < CHUNK ? n - done : CHUNK;
        status = c->model->read(c->model, &c->model->tensors[index], from + done, part, c->floats,
                                c->err);
        if (status == GAC_OK)
            status = put(c, index, first + done, c->floats, part);
    }
    return status;
}

/* Returns the source row of a row of a rotated tensor. Inside each head, rows i
 * and i + head_dim/2 were neighbours 2i and 2i + 1 in the source. */
static int64_t row_source(const convert_tensor *t, int64_t row)
{
    int64_t head_dim = t->shape[0] / t->n_rotated, half = head_dim / 2;
    int64_t inside = row % head_dim;
    return row - inside + 2 * (inside % half) + inside / half;
}

static gac_status move_vector(copying *c, int32_t index)
{
    const convert_tensor *t = &c->model->tensors[index];
    int64_t n = t->shape[0];
    if (n > CHUNK)
        return gac_convert_bad(c->model, c->err, "\"%s\" has %lld elements, more than %d", t->name,
                               (long long)n, CHUNK);
    gac_status status = c->model->read(c->model, t, 0, n, c->floats, c->err);
    for (int64_t i = 0; i < n && status == GAC_OK; i++)
        c->ordered[i] = c->floats[row_source(t, i)];
    return status == GAC_OK ? put(c, index, 0, c->ordered, n) : status;
}

static gac_status move_tensor(copying *c, int32_t index)
{
    const convert_tensor *t = &c->model->tensors[index];
    if (!t->n_rotated)
        return move(c, index, 0, 0, t->shape[0] * (t->n_axes == 2 ? t->shape[1] : 1));
    if (t->n_axes == 1)
        return move_vector(c, index);
    gac_status status = GAC_OK;
    for (int64_t row = 0; row < t->shape[0] && status == GAC_OK; row++)
        status = move(c, index, row_source(t, row) * t->shape[1], row * t->shape[1], t->shape[1]);
    return status;
}

static gac_status move_tensors(copying *c, uint64_t n_bytes)
{
    gac_status status = GAC_OK;
    c->floats = malloc(CHUNK * sizeof *c->floats);
    c->ordered = malloc(CHUNK * sizeof *c->ordered);
    c->codes = malloc(CHUNK * sizeof(float));
    if (!c->floats || !c->ordered || !c->codes)
        status = gac_error_no_memory(c->err);
    gac_progress_start(c->progress, "converting", "bytes", n_bytes);
    for (int32_t i = 0; i < c->model->n_tensors && status == GAC_OK; i++)
        status = move_tensor(c, i);
    gac_progress_finish(c->progress);
    free(c->floats);
    free(c->ordered);
    free(c->codes);
    return status;
}

static gac_status declare(const convert_model *model, gac_writer *writer,
                          gac_convert_result *result, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < model->n_tensors && status == GAC_OK; i++) {
        const convert_tensor *t = &model->tensors[i];
        int64_t n = t->shape[0] * (t->n_axes == 2 ? t->shape[1] : 1);
        status = gac_writer_add(writer, t->name, result->dtype, t->n_axes, t->shape, NULL, err);
        result->n_params += n;
        result->size_bytes += (uint64_t)n * (uint64_t)gac_dtype_bits(result->dtype) / 8;
    }
    result->n_tensors = model->n_tensors;
    return status;
}

gac_status gac_convert_write(convert_model *model, const char *to,
                             const gac_convert_options *options, gac_convert_result *result,
                             gac_error *err)
{
    static const char *const kinds[] = { NULL, "byte-level BPE", "SentencePiece-style BPE" };
    if (options->dtype != GAC_DTYPE_COUNT && options->dtype != GAC_DTYPE_F16 &&
        options->dtype != GAC_DTYPE_BF16 && options->dtype != GAC_DTYPE_F32)
        return gac_error_set(err, GAC_USAGE, "models are converted to F16, BF16 or F32, not to %s",
                             gac_dtype_name(options->dtype));
    gac_writer *writer = NULL;
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    how.max_shard_bytes = options->max_shard_bytes;
    how.replace = options->replace;
    how.no_sync = options->no_sync;
    *result = (gac_convert_result){
        .model_type = model->model_type,
        .tokenizer = kinds[model->vocab.kind],
        .dtype = options->dtype == GAC_DTYPE_COUNT ? model->stored : options->dtype,
        .n_tokens = model->vocab.n,
    };
    gac_status status = gac_writer_create(to, &how, &writer, err);
    if (status == GAC_OK)
        status = add_json(writer, "config.json", make_config(model, result->dtype), err);
    if (status == GAC_OK)
        status = add_tokenizer(model, writer, err);
    if (status == GAC_OK)
        status = declare(model, writer, result, err);
    if (status == GAC_OK)
        status = gac_writer_layout(writer, err);
    copying c = { .model = model,
                  .writer = writer,
                  .dtype = result->dtype,
                  .progress = options->progress,
                  .cancel = options->cancel,
                  .err = err };
    if (status == GAC_OK)
        status = move_tensors(&c, result->size_bytes);
    if (status != GAC_OK) {
        gac_writer_discard(writer);
        return status;
    }
    return gac_writer_finish(writer, err);
}

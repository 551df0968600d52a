/* Reads the first format of llama2.c: seven numbers, then every tensor as F32
 * in a fixed order. Its tokenizer file has a score, a length and the bytes of
 * each token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/convert_internal.h"
#include "checkpoint/gguf_internal.h"

enum { HEADER_BYTES = 28, MAX_SIZE = 1 << 24, MAX_TOKEN_BYTES = 1024, MAX_LAYERS = 4096 };

static gac_status read_floats(convert_model *model, const convert_tensor *tensor, int64_t first,
                              int64_t n, float *out, gac_error *err)
{
    uint64_t offset = (uint64_t)tensor->source + 4 * (uint64_t)first;
    gac_status status = gac_file_read(model->file, offset, out, (size_t)n * sizeof *out, err);
    for (int64_t i = 0; i < n && status == GAC_OK; i++) {
        uint8_t bytes[4];
        memcpy(bytes, &out[i], sizeof bytes);
        uint32_t bits = (uint32_t)gguf_little(bytes, sizeof bytes);
        memcpy(&out[i], &bits, sizeof bits);
    }
    return status;
}

static gac_status read_sizes(convert_model *m, gac_error *err)
{
    static const char *const names[] = { "dim",        "hidden_dim", "n_layers",   "n_heads",
                                         "n_kv_heads", "vocab_size", "max_seq_len" };
    uint8_t header[HEADER_BYTES];
    int64_t *sizes[] = { &m->hidden,     &m->width,      &m->n_layers, &m->n_heads,
                         &m->n_kv_heads, &m->vocab_size, &m->context };
    if (gac_file_size(m->file) < HEADER_BYTES)
        return gac_convert_bad(m, err, "%llu bytes, shorter than the header of %d",
                               (unsigned long long)gac_file_size(m->file), HEADER_BYTES);
    gac_status status = gac_file_read(m->file, 0, header, sizeof header, err);
    if (status != GAC_OK)
        return status;
    if (gguf_little(header, 4) == 0x616b3432)
        return gac_convert_bad(m, err, "a later format of llama2.c; the first is read");
    m->tied = true;
    for (int i = 0; i < 7; i++) {
        *sizes[i] = (int32_t)gguf_little(header + 4 * i, 4);
        /* A negative vocabulary size means that lm_head is stored too. */
        if (sizes[i] == &m->vocab_size && *sizes[i] < 0) {
            m->tied = false;
            *sizes[i] = -*sizes[i];
        }
        if (*sizes[i] < 1 || *sizes[i] > (i == 2 ? MAX_LAYERS : MAX_SIZE))
            return gac_convert_bad(m, err, "offset %d: %s is %lld", 4 * i, names[i],
                                   (long long)*sizes[i]);
    }
    if (m->hidden % m->n_heads != 0 || m->n_heads % m->n_kv_heads != 0)
        return gac_convert_bad(m, err, "heads do not divide: dim %lld, %lld heads, %lld key heads",
                               (long long)m->hidden, (long long)m->n_heads,
                               (long long)m->n_kv_heads);
    m->head_dim = m->hidden / m->n_heads;
    if (m->head_dim % 2 != 0)
        return gac_convert_bad(m, err, "head size %lld is odd, rotary embedding needs pairs",
                               (long long)m->head_dim);
    return GAC_OK;
}

typedef struct block {
    const char *name; /* has %lld for the layer; NULL: the block is skipped */
    bool per_layer;
    int64_t n_rows, n_columns; /* n_columns 0: a vector */
    int64_t n_rotated;
} block;

/* Declares the tensors of a block and moves *position behind them. Sizes are
 * below 2^24, so one block of one layer never overflows. */
static gac_status add_block(convert_model *m, const block *b, uint64_t *position, gac_error *err)
{
    char name[120];
    uint64_t n_bytes = 4 * (uint64_t)b->n_rows * (uint64_t)(b->n_columns ? b->n_columns : 1);
    gac_status status = GAC_OK;
    for (int64_t layer = 0; layer < (b->per_layer ? m->n_layers : 1) && status == GAC_OK; layer++) {
        if (b->name && b->per_layer)
            snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, b->name);
        else if (b->name)
            snprintf(name, sizeof name, "%s.weight", b->name);
        if (b->name)
            status = gac_convert_add(m, name, b->n_rows, b->n_columns, (int64_t)*position,
                                     b->n_rotated, err);
        *position += n_bytes;
        if (status == GAC_OK && *position > gac_file_size(m->file))
            return gac_convert_bad(m, err, "%llu bytes, fewer than its header asks for",
                                   (unsigned long long)gac_file_size(m->file));
    }
    return status;
}

static gac_status add_tensors(convert_model *m, gac_error *err)
{
    int64_t kv = m->n_kv_heads * m->head_dim;
    const block blocks[] = {
        { "model.embed_tokens", false, m->vocab_size, m->hidden, 0 },
        { "input_layernorm", true, m->hidden, 0, 0 },
        { "self_attn.q_proj", true, m->hidden, m->hidden, m->n_heads },
        { "self_attn.k_proj", true, kv, m->hidden, m->n_kv_heads },
        { "self_attn.v_proj", true, kv, m->hidden, 0 },
        { "self_attn.o_proj", true, m->hidden, m->hidden, 0 },
        { "post_attention_layernorm", true, m->hidden, 0, 0 },
        { "mlp.gate_proj", true, m->width, m->hidden, 0 },
        { "mlp.down_proj", true, m->hidden, m->width, 0 },
        { "mlp.up_proj", true, m->width, m->hidden, 0 },
        { "model.norm", false, m->hidden, 0, 0 },
        /* Cosines and sines. Every reader computes them again. */
        { NULL, false, 2 * m->context, m->head_dim / 2, 0 },
        { "lm_head", false, m->vocab_size, m->hidden, 0 },
    };
    size_t n = sizeof blocks / sizeof *blocks - (m->tied ? 1 : 0);
    uint64_t position = HEADER_BYTES;
    gac_status status = GAC_OK;
    for (size_t i = 0; i < n && status == GAC_OK; i++)
        status = add_block(m, &blocks[i], &position, err);
    if (status == GAC_OK && position != gac_file_size(m->file))
        return gac_convert_bad(m, err, "%llu bytes where its header asks for %llu",
                               (unsigned long long)gac_file_size(m->file),
                               (unsigned long long)position);
    return status;
}

/* Adds a token. A space becomes SentencePiece's mark. The tokens that start and
 * end a text have newlines around them. */
static gac_status add_token(convert_model *m, int64_t id, float score, const uint8_t *bytes,
                            size_t n_bytes, gac_error *err)
{
    char text[3 * MAX_TOKEN_BYTES];
    size_t n = 0;
    bool is_byte = n_bytes == 6 && memcmp(bytes, "<0x", 3) == 0 && bytes[5] == '>';
    for (size_t i = 0; i < n_bytes; i++) {
        const char *piece = bytes[i] == ' ' ? "\xe2\x96\x81" : (const char *)&bytes[i];
        size_t length = bytes[i] == ' ' ? 3 : 1;
        memcpy(text + n, piece, length);
        n += length;
    }
    if (id == 1 || id == 2)
        n = (size_t)snprintf(text, sizeof text, id == 1 ? "<s>" : "</s>");
    m->vocab.types[id] = id == 0              ? TOKEN_UNKNOWN
                         : id == 1 || id == 2 ? TOKEN_CONTROL
                         : is_byte            ? TOKEN_BYTE
                                              : TOKEN_NORMAL;
    m->vocab.scores[id] = score;
    return gac_convert_text(m, "token", id, text, n, &m->vocab.tokens[id], err);
}

static gac_status read_tokens(convert_model *m, const uint8_t *data, size_t n_data, gac_error *err)
{
    size_t position = 4;
    gac_status status = GAC_OK;
    for (int64_t id = 0; id < m->vocab.n && status == GAC_OK; id++) {
        float score;
        if (n_data < position || n_data - position < 8)
            return gac_convert_bad(m, err, "ends in token %lld of %lld", (long long)id,
                                   (long long)m->vocab.n);
        uint32_t bits = (uint32_t)gguf_little(data + position, 4);
        uint64_t length = gguf_little(data + position + 4, 4);
        memcpy(&score, &bits, sizeof score);
        position += 8;
        if (!isfinite(score))
            return gac_convert_bad(m, err, "the score of token %lld is not finite", (long long)id);
        if (length > MAX_TOKEN_BYTES || length > n_data - position)
            return gac_convert_bad(m, err, "offset %zu: token %lld of %llu bytes", position - 4,
                                   (long long)id, (unsigned long long)length);
        status = add_token(m, id, score, data + position, (size_t)length, err);
        position += (size_t)length;
    }
    if (status == GAC_OK && position != n_data)
        return gac_convert_bad(m, err, "%zu bytes behind the %lld tokens of the model",
                               n_data - position, (long long)m->vocab.n);
    return status;
}

static gac_status read_tokenizer(convert_model *m, const char *path, gac_error *err)
{
    gac_file *file = NULL;
    char *data = NULL;
    size_t n_data = 0;
    const char *model_path = m->path;
    gac_status status = gac_file_open(path, &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, GAC_MAX_GGUF_HEADER_BYTES, &data, &n_data, err);
    m->path = path; /* errors now name this file */
    if (status == GAC_OK && (uint64_t)m->vocab_size > n_data / 8)
        status = gac_convert_bad(m, err, "%zu bytes cannot hold the %lld tokens of the model",
                                 n_data, (long long)m->vocab_size);
    if (status == GAC_OK) {
        size_t n = (size_t)m->vocab_size;
        m->vocab = (convert_vocab){ .kind = VOCAB_SCORED,
                                    .n = m->vocab_size,
                                    .bos = n > 1 ? 1 : -1,
                                    .eos = n > 2 ? 2 : -1,
                                    .unknown = 0,
                                    .pad = -1,
                                    .add_bos = n > 1,
                                    .add_space = true };
        m->vocab.tokens = gac_arena_alloc(&m->arena, n * sizeof *m->vocab.tokens);
        m->vocab.types = gac_arena_alloc(&m->arena, n);
        m->vocab.scores = gac_arena_alloc(&m->arena, n * sizeof *m->vocab.scores);
        status = m->vocab.tokens && m->vocab.types && m->vocab.scores
                     ? read_tokens(m, (const uint8_t *)data, n_data, err)
                     : gac_error_no_memory(err);
    }
    m->path = model_path;
    free(data);
    gac_file_close(file);
    return status;
}

gac_status gac_convert_llama2c(const char *from, const char *to, const gac_convert_options *options,
                               gac_convert_result *result, gac_error *err)
{
    static const gac_convert_options usual = GAC_CONVERT_OPTIONS_INIT;
    GAC_REFUSE_NULL(err, from, to, result);
    options = options ? options : &usual;
    convert_model m = { .path = from,
                        .model_type = "llama",
                        .architecture = "LlamaForCausalLM",
                        .rms_eps = 1e-5,
                        .rope_theta = 10000,
                        .stored = GAC_DTYPE_F32,
                        .read = read_floats,
                        .vocab = { .bos = 1, .eos = 2, .unknown = 0, .pad = -1 } };
    gac_status status = gac_file_open(from, &m.file, err);
    if (status == GAC_OK)
        status = read_sizes(&m, err);
    if (status == GAC_OK)
        status = add_tensors(&m, err);
    if (status == GAC_OK && options->tokenizer)
        status = read_tokenizer(&m, options->tokenizer, err);
    if (status == GAC_OK)
        status = gac_convert_write(&m, to, options, result, err);
    gac_convert_dispose(&m);
    return status;
}

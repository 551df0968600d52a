/* Opens a tokenizer, encodes and decodes. */
#include "base/arguments.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the content of a member that is a string or an added token, or NULL. */
static const char *token_name(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* Reads the names of bos and eos from a file that may be absent. */
static gac_status read_names(gac_tokenizer *t, const char *directory, const char *name,
                             gac_error *err)
{
    gac_file *file = NULL;
    json_t *config = NULL;
    size_t length = strlen(directory) + strlen(name) + 2;
    char *path = malloc(length);
    if (!path)
        return gac_error_no_memory(err);
    snprintf(path, length, "%s/%s", directory, name);
    bool exists = access(path, F_OK) == 0;
    free(path);
    if (!exists)
        return GAC_OK;
    gac_status status = gac_file_open_inside(directory, name, &file, err);
    if (status == GAC_OK)
        status = gac_json_load(file, 8 << 20, &config, err);
    gac_file_close(file);
    if (status != GAC_OK)
        return status;
    const char *bos = token_name(config, "bos_token"), *eos = token_name(config, "eos_token");
    if (t->bos < 0 && bos)
        t->bos = gac_tokenizer_find(t, bos);
    if (t->eos < 0 && eos)
        t->eos = gac_tokenizer_find(t, eos);
    json_decref(config);
    return GAC_OK;
}

gac_status gac_tokenizer_open(const char *directory, gac_tokenizer **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, directory, out);
    gac_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return gac_error_no_memory(err);
    t->bos = t->eos = -1;
    gac_status status = gac_namemap_init(&t->bpe.vocab, err);
    if (status == GAC_OK)
        status = gac_namemap_init(&t->added_ids, err);
    if (status == GAC_OK)
        status = gac_tokenizer_load(t, directory, err);
    if (status == GAC_OK)
        status = read_names(t, directory, "tokenizer_config.json", err);
    if (status == GAC_OK)
        status = read_names(t, directory, "special_tokens_map.json", err);
    if (status != GAC_OK) {
        gac_tokenizer_close(t);
        return status;
    }
    *out = t;
    return GAC_OK;
}

void gac_tokenizer_close(gac_tokenizer *t)
{
    if (!t)
        return;
    for (int32_t i = 0; i < t->normal.n_steps; i++)
        gac_pattern_free(t->normal.steps[i].pattern);
    for (int32_t i = 0; i < t->pre.n_steps; i++) {
        gac_pattern_free(t->pre.steps[i].pattern);
        gac_bytes_dispose(&t->pre.steps[i].text);
        gac_bytes_dispose(&t->pre.steps[i].mapped);
    }
    for (int32_t i = 0; i < t->dec.n_steps; i++)
        gac_pattern_free(t->dec.steps[i].pattern);
    for (int i = 0; i < 2; i++) {
        gac_bytes_dispose(&t->normal.rooms[i]);
        gac_bytes_dispose(&t->dec.rooms[i]);
    }
    gac_bytes_dispose(&t->repaired);
    gac_bpe_dispose(&t->bpe);
    gac_namemap_dispose(&t->added_ids);
    free(t->ids.ids);
    free(t->added);
    gac_arena_free(&t->arena);
    free(t);
}

int32_t gac_tokenizer_n_ids(const gac_tokenizer *t)
{
    return t->n_ids;
}

int32_t gac_tokenizer_bos(const gac_tokenizer *t)
{
    return t->bos;
}

int32_t gac_tokenizer_eos(const gac_tokenizer *t)
{
    return t->eos;
}

const char *gac_tokenizer_piece(const gac_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? t->pieces[id] : NULL;
}

int32_t gac_tokenizer_find(const gac_tokenizer *t, const char *piece)
{
    int32_t id = gac_namemap_find(&t->added_ids, piece);
    return id >= 0 ? id : gac_namemap_find(&t->bpe.vocab, piece);
}

bool gac_tokenizer_is_special(const gac_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->special[id];
}

/* Encodes text between two tokens that are matched before normalizing. */
static gac_status encode_span(gac_tokenizer *t, const char *text, size_t n, bool at_start,
                              gac_error *err)
{
    size_t from = 0, covered = 0;
    gac_status status = gac_normalize(&t->normal, &text, &n, err);
    while (status == GAC_OK && covered < n) {
        token_match match = gac_token_set_find(&t->normalized, text, n, &from, covered);
        if (covered < match.start)
            status = gac_split_words(&t->pre, &t->bpe, text + covered, match.start - covered,
                                     at_start && covered == 0, &t->ids, err);
        if (status == GAC_OK && match.token && !gac_ids_append(&t->ids, match.token->id))
            status = gac_error_no_memory(err);
        covered = match.end;
    }
    return status;
}

static gac_status encode_text(gac_tokenizer *t, const char *text, size_t n, gac_error *err)
{
    size_t from = 0, covered = 0;
    gac_status status = GAC_OK;
    while (status == GAC_OK && covered < n) {
        token_match match = gac_token_set_find(&t->raw, text, n, &from, covered);
        if (covered < match.start)
            status = encode_span(t, text + covered, match.start - covered, covered == 0, err);
        if (status == GAC_OK && match.token && !gac_ids_append(&t->ids, match.token->id))
            status = gac_error_no_memory(err);
        covered = match.end;
    }
    return status;
}

static bool append_all(id_list *list, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!gac_ids_append(list, ids[i]))
            return false;
    return true;
}

gac_status gac_tokenizer_encode(gac_tokenizer *t, const char *text, size_t n_bytes,
                                bool add_special, int32_t **out, size_t *n_ids, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "tokenizer, out, n_ids", t, out, n_ids);
    GAC_REFUSE(err, n_bytes > 0 && !text, "text is NULL");
    if (n_bytes >= (size_t)1 << 30)
        return gac_error_set(err, GAC_USAGE, "a text of %zu bytes is too long to tokenize",
                             n_bytes);
    t->ids.n = 0;
    if (!gac_utf8_repair(&text, &n_bytes, &t->repaired) ||
        (add_special && !append_all(&t->ids, t->prefix, t->n_prefix)))
        return gac_error_no_memory(err);
    gac_status status = encode_text(t, text, n_bytes, err);
    if (status != GAC_OK)
        return status;
    if (add_special && !append_all(&t->ids, t->suffix, t->n_suffix))
        return gac_error_no_memory(err);
    size_t size = t->ids.n * sizeof *t->ids.ids;
    int32_t *copy = malloc(size ? size : 1);
    if (!copy)
        return gac_error_no_memory(err);
    if (size)
        memcpy(copy, t->ids.ids, size);
    *out = copy;
    *n_ids = t->ids.n;
    return GAC_OK;
}

gac_status gac_tokenizer_decode_one(gac_tokenizer *t, int32_t id, bool first, const char **bytes,
                                    size_t *n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "tokenizer, bytes, n_bytes", t, bytes, n_bytes);
    const char *text = id >= 0 && id < t->n_ids ? t->shown[id] : NULL;
    size_t n = text ? strlen(text) : 0;
    *bytes = "";
    *n_bytes = 0;
    if (!text)
        return GAC_OK;
    if (!t->dec.present && !first) {
        byte_buffer *room = &t->dec.rooms[0];
        room->n = 0;
        if (!gac_bytes_append(room, " ", 1) || !gac_bytes_append(room, text, n))
            return gac_error_no_memory(err);
        text = room->data;
        n = room->n;
    }
    gac_status status = gac_decode_token(&t->dec, first, &text, &n, err);
    if (status != GAC_OK || n == 0)
        return status;
    size_t cut = first ? gac_decode_strip(&t->dec.strip, text, n) : 0;
    *bytes = text + cut;
    *n_bytes = n - cut;
    return GAC_OK;
}

gac_status gac_tokenizer_decode(gac_tokenizer *t, const int32_t *ids, size_t n_ids,
                                bool skip_special, char **out, size_t *n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "tokenizer, out, n_bytes", t, out, n_bytes);
    GAC_REFUSE(err, n_ids > 0 && !ids, "ids is NULL");
    byte_buffer all = { 0 };
    bool first = true;
    gac_status status = GAC_OK;
    for (size_t i = 0; i < n_ids && status == GAC_OK; i++) {
        const char *bytes;
        size_t n;
        if (!gac_tokenizer_piece(t, ids[i]) ||
            (skip_special && gac_tokenizer_is_special(t, ids[i])))
            continue;
        status = gac_tokenizer_decode_one(t, ids[i], first, &bytes, &n, err);
        if (status == GAC_OK && !gac_bytes_append(&all, bytes, n))
            status = gac_error_no_memory(err);
        first = false;
    }
    if (status == GAC_OK && !gac_bytes_append(&all, "", 1))
        status = gac_error_no_memory(err);
    if (status != GAC_OK) {
        gac_bytes_dispose(&all);
        return status;
    }
    *out = all.data;
    *n_bytes = all.n - 1;
    return GAC_OK;
}

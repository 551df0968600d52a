/* Reads tokenizer.json. The vocabulary and the merges are read entry by entry:
 * the DOM of a hostile file would take many times the file's size. */
#include "base/json_walk.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_PART_BYTES = 1 << 20,
    MAX_PIECE_BYTES = 16 << 10,
    MAX_NUMBER_BYTES = 32,
    MAX_ADDED_TOKENS = 1 << 16,
    MAX_ADDED_BYTES = 1024
};

typedef struct loading {
    gac_tokenizer *t;
    gac_json_walk walk;
    const char *source;
    gac_error *err;
    /* Text of the merges, "left NUL right NUL", until the vocabulary is known. */
    byte_buffer merges;
    int32_t n_merges;
    bool has_vocab, has_merges, has_model;
    char *unk;
} loading;

/* Sets an error about the entry path[index], or about path if index < 0. */
static gac_status fault(const loading *l, const char *path, int32_t index, const char *rule)
{
    char q[256], at[24] = "";
    if (index >= 0)
        snprintf(at, sizeof at, "[%d]", (int)index);
    return gac_error_set(l->err, GAC_BAD_INPUT, "%s: %s%s: %s", gac_quote(q, sizeof q, l->source),
                         path, at, rule);
}

bool gac_tokenizer_set_piece(gac_tokenizer *t, int32_t id, const char *piece)
{
    if (id >= t->id_room) {
        int32_t room = id < GAC_MAX_TOKENS / 2 ? (id + 1) * 2 : GAC_MAX_TOKENS;
        const char **pieces = gac_arena_alloc(&t->arena, (size_t)room * sizeof *pieces);
        const char **shown = gac_arena_alloc(&t->arena, (size_t)room * sizeof *shown);
        bool *special = gac_arena_alloc(&t->arena, (size_t)room * sizeof *special);
        if (!pieces || !shown || !special)
            return false;
        if (t->n_ids > 0) {
            memcpy(pieces, t->pieces, (size_t)t->n_ids * sizeof *pieces);
            memcpy(shown, t->shown, (size_t)t->n_ids * sizeof *shown);
            memcpy(special, t->special, (size_t)t->n_ids * sizeof *special);
        }
        t->pieces = pieces;
        t->shown = shown;
        t->special = special;
        t->id_room = room;
    }
    t->pieces[id] = t->shown[id] = piece;
    if (id >= t->n_ids)
        t->n_ids = id + 1;
    return true;
}

static gac_status add_piece(loading *l, const char *key, const json_t *value)
{
    gac_tokenizer *t = l->t;
    char q[64], rule[160];
    int64_t id = json_integer_value(value);
    int32_t existing;
    gac_quote(q, sizeof q, key);
    if (!json_is_integer(value) || id < 0 || id >= GAC_MAX_TOKENS) {
        snprintf(rule, sizeof rule, "the id of \"%s\" must be an integer from 0 to %d", q,
                 GAC_MAX_TOKENS - 1);
        return fault(l, "$.model.vocab", -1, rule);
    }
    if (id < t->n_ids && t->pieces[id]) {
        snprintf(rule, sizeof rule, "\"%s\" has the id of another piece, %d", q, (int)id);
        return fault(l, "$.model.vocab", -1, rule);
    }
    char *piece = gac_arena_strdup(&t->arena, key);
    if (!piece || !gac_tokenizer_set_piece(t, (int32_t)id, piece))
        return gac_error_no_memory(l->err);
    gac_status status = gac_namemap_add(&t->bpe.vocab, piece, (int32_t)id, &existing, l->err);
    if (status == GAC_OK && existing >= 0) {
        snprintf(rule, sizeof rule, "\"%s\" is there twice", q);
        return fault(l, "$.model.vocab", -1, rule);
    }
    t->n_vocab++;
    return status;
}

static gac_status read_vocab(loading *l)
{
    const char *key;
    json_t *value;
    gac_status status = gac_json_walk_enter(&l->walk, l->err);
    if (l->has_vocab)
        return fault(l, "$.model.vocab", -1, "is there twice");
    l->has_vocab = true;
    while (status == GAC_OK && (status = gac_json_walk_next(&l->walk, &key, l->err)) == GAC_OK &&
           key) {
        /* Reading a string value would overwrite the walk's key, but an id is a
         * number. */
        status = gac_json_walk_value(&l->walk, MAX_NUMBER_BYTES, &value, l->err);
        if (status == GAC_OK) {
            status = add_piece(l, key, value);
            json_decref(value);
        }
    }
    return status;
}

/* "left right" */
static gac_status take_merge_line(loading *l)
{
    const char *line;
    gac_status status = gac_json_walk_string(&l->walk, 2 * MAX_PIECE_BYTES, &line, l->err);
    if (status != GAC_OK)
        return status;
    if (strncmp(line, "#version", 8) == 0)
        return GAC_OK;
    const char *space = strchr(line, ' ');
    if (!space || strchr(space + 1, ' '))
        return fault(l, "$.model.merges", l->n_merges,
                     "must be two pieces with a space between them");
    size_t left = (size_t)(space - line);
    if (!gac_bytes_append(&l->merges, line, left) || !gac_bytes_append(&l->merges, "", 1) ||
        !gac_bytes_append(&l->merges, space + 1, strlen(space + 1) + 1))
        return gac_error_no_memory(l->err);
    l->n_merges++;
    return GAC_OK;
}

/* ["left", "right"] */
static gac_status take_merge_pair(loading *l)
{
    const char *piece;
    bool more = true;
    int n = 0;
    gac_status status = gac_json_walk_enter_array(&l->walk, l->err);
    while (status == GAC_OK &&
           (status = gac_json_walk_element(&l->walk, &more, l->err)) == GAC_OK && more) {
        if (++n > 2)
            break;
        status = gac_json_walk_string(&l->walk, MAX_PIECE_BYTES, &piece, l->err);
        if (status == GAC_OK && !gac_bytes_append(&l->merges, piece, strlen(piece) + 1))
            return gac_error_no_memory(l->err);
    }
    if (status == GAC_OK && n != 2)
        return fault(l, "$.model.merges", l->n_merges, "must be two pieces");
    l->n_merges++;
    return status;
}

static gac_status read_merges(loading *l)
{
    bool more = true;
    if (l->has_merges)
        return fault(l, "$.model.merges", -1, "is there twice");
    l->has_merges = true;
    gac_status status = gac_json_walk_enter_array(&l->walk, l->err);
    while (status == GAC_OK &&
           (status = gac_json_walk_element(&l->walk, &more, l->err)) == GAC_OK && more) {
        if (l->n_merges == GAC_MAX_MERGES)
            return fault(l, "$.model.merges", -1, "has too many entries");
        bool pair = l->walk.position < l->walk.n_bytes && l->walk.text[l->walk.position] == '[';
        status = pair ? take_merge_pair(l) : take_merge_line(l);
    }
    return status;
}

static gac_status read_option(loading *l, const char *key, const json_t *value)
{
    bpe_model *bpe = &l->t->bpe;
    char path[64], q[32];
    const char *rule = NULL;
    bool on = json_is_true(value), flag = json_is_boolean(value) || json_is_null(value);
    if (strcmp(key, "type") == 0) {
        if (!json_is_string(value) || strcmp(json_string_value(value), "BPE") != 0)
            rule = "must be BPE; other models are not supported";
    } else if (strcmp(key, "unk_token") == 0) {
        if (!json_is_string(value) && !json_is_null(value))
            rule = "must be a string or null";
        else if (json_is_string(value) && !l->unk &&
                 !(l->unk = gac_arena_strdup(&l->t->arena, json_string_value(value))))
            return gac_error_no_memory(l->err);
    } else if (strcmp(key, "dropout") == 0) {
        if (!json_is_null(value) && !(json_is_number(value) && json_number_value(value) == 0))
            rule = "must be null or 0: dropout makes the ids random";
    } else if (strcmp(key, "continuing_subword_prefix") == 0 ||
               strcmp(key, "end_of_word_suffix") == 0) {
        if (!json_is_null(value) && !(json_is_string(value) && json_string_length(value) == 0))
            rule = "is not supported";
    } else if (strcmp(key, "fuse_unk") == 0) {
        rule = flag ? NULL : "must be true or false";
        bpe->fuse_unk = on;
    } else if (strcmp(key, "byte_fallback") == 0) {
        rule = flag ? NULL : "must be true or false";
        bpe->byte_fallback = on;
    } else if (strcmp(key, "ignore_merges") == 0) {
        rule = flag ? NULL : "must be true or false";
        bpe->ignore_merges = on;
    }
    snprintf(path, sizeof path, "$.model.%s", gac_quote(q, sizeof q, key));
    return rule ? fault(l, path, -1, rule) : GAC_OK;
}

static gac_status read_model(loading *l)
{
    const char *key;
    char name[32];
    json_t *value;
    gac_status status = gac_json_walk_enter(&l->walk, l->err);
    if (l->has_model)
        return fault(l, "$.model", -1, "is there twice");
    l->has_model = true;
    while (status == GAC_OK && (status = gac_json_walk_next(&l->walk, &key, l->err)) == GAC_OK &&
           key) {
        if (strcmp(key, "vocab") == 0) {
            status = read_vocab(l);
        } else if (strcmp(key, "merges") == 0) {
            status = read_merges(l);
        } else {
            snprintf(name, sizeof name, "%s", key);
            status = gac_json_walk_value(&l->walk, MAX_PART_BYTES, &value, l->err);
            if (status == GAC_OK) {
                status = read_option(l, name, value);
                json_decref(value);
            }
        }
    }
    return status;
}

static gac_status read_added_token(loading *l, const json_t *value)
{
    gac_tokenizer *t = l->t;
    gac_reader r = GAC_READER_INIT(l->source, l->err);
    gac_reader_enter(&r, ".added_tokens[%d]", (int)t->n_added);
    const json_t *content = json_object_get(value, "content");
    added_token token = { 0 };
    if (!json_is_string(content) || json_string_length(content) == 0 ||
        json_string_length(content) > MAX_ADDED_BYTES)
        gac_reader_fault_at(&r, "content", "must be a string of 1 to 1024 bytes");
    else if (!gac_reader_bool(&r, value, "single_word", &token.single_word) ||
             !gac_reader_bool(&r, value, "lstrip", &token.lstrip) ||
             !gac_reader_bool(&r, value, "rstrip", &token.rstrip) ||
             !gac_reader_bool(&r, value, "normalized", &token.normalized) ||
             !gac_reader_bool(&r, value, "special", &token.special))
        return r.status;
    else if (t->n_added == MAX_ADDED_TOKENS)
        gac_reader_fault(&r, "exceeds the limit of added tokens");
    else if (!gac_grow((void **)&t->added, t->n_added, &t->added_room, sizeof *t->added) ||
             !(token.content = gac_arena_strdup(&t->arena, json_string_value(content))))
        return gac_error_no_memory(l->err);
    else
        t->added[t->n_added++] = token;
    return r.status;
}

static gac_status read_added(loading *l)
{
    bool more = true;
    json_t *value;
    gac_status status = gac_json_walk_enter_array(&l->walk, l->err);
    while (status == GAC_OK &&
           (status = gac_json_walk_element(&l->walk, &more, l->err)) == GAC_OK && more) {
        status = gac_json_walk_value(&l->walk, MAX_PIECE_BYTES, &value, l->err);
        if (status == GAC_OK) {
            status = read_added_token(l, value);
            json_decref(value);
        }
    }
    return status;
}

static gac_status read_part(loading *l, const char *key)
{
    static const struct {
        const char *key;
        bool (*read)(gac_tokenizer *t, gac_reader *r, const json_t *value);
    } parts[] = { { "normalizer", gac_tokenizer_read_normalizer },
                  { "pre_tokenizer", gac_tokenizer_read_pre },
                  { "decoder", gac_tokenizer_read_decoder },
                  { "post_processor", gac_tokenizer_read_post } };
    gac_reader r = GAC_READER_INIT(l->source, l->err);
    char name[32];
    json_t *value;
    snprintf(name, sizeof name, "%s", key);
    gac_status status = gac_json_walk_value(&l->walk, MAX_PART_BYTES, &value, l->err);
    if (status != GAC_OK)
        return status;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(parts[i].key, name) == 0) {
            gac_reader_enter(&r, ".%s", name);
            parts[i].read(l->t, &r, value);
        }
    json_decref(value);
    return r.status;
}

static gac_status read_file(loading *l)
{
    const char *key;
    gac_status status = GAC_OK;
    while (status == GAC_OK && (status = gac_json_walk_next(&l->walk, &key, l->err)) == GAC_OK &&
           key) {
        if (strcmp(key, "model") == 0)
            status = read_model(l);
        else if (strcmp(key, "added_tokens") == 0)
            status = read_added(l);
        else
            status = read_part(l, key);
    }
    if (status == GAC_OK && !l->has_model)
        return fault(l, "$.model", -1, "must be an object");
    if (status == GAC_OK && (!l->has_vocab || !l->has_merges))
        return fault(l, "$.model", -1, "must have vocab and merges");
    return status;
}

/* Replaces the pieces of each merge by their ids. */
static gac_status resolve_merges(loading *l)
{
    bpe_model *bpe = &l->t->bpe;
    byte_buffer both = { 0 };
    const char *at = l->merges.data;
    gac_status status = gac_bpe_reserve(bpe, l->n_merges) ? GAC_OK : gac_error_no_memory(l->err);
    for (int32_t i = 0; status == GAC_OK && i < l->n_merges; i++) {
        const char *left = at, *right = at + strlen(at) + 1;
        at = right + strlen(right) + 1;
        both.n = 0;
        if (!gac_bytes_append(&both, left, strlen(left)) ||
            !gac_bytes_append(&both, right, strlen(right))) {
            status = gac_error_no_memory(l->err);
            break;
        }
        const char *const pieces[2] = { left, right };
        const int32_t ids[2] = { gac_namemap_find(&bpe->vocab, left),
                                 gac_namemap_find(&bpe->vocab, right) };
        int32_t id = gac_namemap_find_n(&bpe->vocab, both.data, both.n);
        if (ids[0] < 0 || ids[1] < 0 || id < 0)
            status = fault(l, "$.model.merges", i, "names a piece that is not in the vocabulary");
        else
            gac_bpe_add_merge(bpe, pieces, ids, i, id);
    }
    gac_bytes_dispose(&both);
    return status;
}

static gac_status finish(loading *l)
{
    bpe_model *bpe = &l->t->bpe;
    bpe->has_unk = l->unk != NULL;
    bpe->unk = l->unk ? gac_namemap_find(&bpe->vocab, l->unk) : -1;
    gac_status status = resolve_merges(l);
    if (status != GAC_OK)
        return status;
    if (!gac_bpe_prepare(bpe))
        return gac_error_no_memory(l->err);
    return gac_tokenizer_add_tokens(l->t, l->source, l->err);
}

gac_status gac_tokenizer_load(gac_tokenizer *t, const char *directory, gac_error *err)
{
    gac_file *file = NULL;
    char *text = NULL;
    size_t n_bytes;
    loading l = { .t = t, .err = err };
    gac_status status = gac_file_open_inside(directory, "tokenizer.json", &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, GAC_MAX_TOKENIZER_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK) {
        l.source = gac_file_path(file);
        status = gac_json_walk_start(&l.walk, text, n_bytes, l.source, 0, err);
    }
    if (status == GAC_OK)
        status = read_file(&l);
    if (status == GAC_OK)
        status = finish(&l);
    gac_json_walk_dispose(&l.walk);
    gac_bytes_dispose(&l.merges);
    free(text);
    gac_file_close(file);
    return status;
}

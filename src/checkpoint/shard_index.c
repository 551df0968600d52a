/* Reads the index of a sharded checkpoint, which lists the file of each tensor:
 * model.safetensors.index.json or pytorch_model.bin.index.json. */
#include <stdlib.h>
#include <string.h>

#include "base/json_walk.h"
#include "checkpoint/checkpoint_internal.h"

enum { MAX_SHARD_NAME_BYTES = 4 << 10 };

typedef struct index_entry {
    const char *tensor;
    int32_t shard;
    bool found;
} index_entry;

typedef struct shard_index {
    gac_checkpoint *checkpoint;
    const char *path;
    gac_namemap by_tensor, by_shard;
    index_entry *entries;
    int32_t n_entries, entry_capacity;
    const char **shards;
    int32_t n_shards, shard_capacity;
    bool has_map;
    json_int_t total_size; /* or -1 */
} shard_index;

static gac_status bad_entry(const shard_index *x, const char *tensor, const char *what,
                            const char *shard, gac_error *err)
{
    char qp[256], qt[160], qs[120];
    return gac_error_set(err, GAC_BAD_INPUT, "%s: tensor \"%s\" %s%s%s",
                         gac_quote(qp, sizeof qp, x->path), gac_quote(qt, sizeof qt, tensor), what,
                         shard ? " " : "", shard ? gac_quote(qs, sizeof qs, shard) : "");
}

/* Finds the number of a shard. Shards are numbered in order of appearance. */
static gac_status shard_number(shard_index *x, const char *name, int32_t *number, gac_error *err)
{
    *number = gac_namemap_find(&x->by_shard, name);
    if (*number >= 0)
        return GAC_OK;
    int32_t existing;
    const char *copy = gac_arena_strdup(&x->checkpoint->arena, name);
    if (!copy || !gac_grow((void **)&x->shards, x->n_shards, &x->shard_capacity, sizeof *x->shards))
        return gac_error_no_memory(err);
    *number = x->n_shards;
    x->shards[x->n_shards++] = copy;
    return gac_namemap_add(&x->by_shard, copy, *number, &existing, err);
}

/* Adds the walk's current member: a tensor and its shard. */
static gac_status add_entry(shard_index *x, gac_json_walk *walk, const char *tensor, gac_error *err)
{
    int32_t existing;
    const char *shard;
    if (strlen(tensor) > GAC_MAX_NAME_BYTES)
        return bad_entry(x, tensor, "has a name of more than 1024 bytes", NULL, err);
    if (x->n_entries == GAC_MAX_TENSORS)
        return bad_entry(x, tensor, "is one too many", NULL, err);
    if (!gac_grow((void **)&x->entries, x->n_entries, &x->entry_capacity, sizeof *x->entries))
        return gac_error_no_memory(err);
    index_entry *entry = &x->entries[x->n_entries];
    *entry = (index_entry){ .tensor = gac_arena_strdup(&x->checkpoint->arena, tensor) };
    if (!entry->tensor)
        return gac_error_no_memory(err);
    if (walk->position < walk->n_bytes && walk->text[walk->position] != '"')
        return bad_entry(x, tensor, "is not mapped to a file name", NULL, err);
    gac_status status = gac_json_walk_string(walk, MAX_SHARD_NAME_BYTES, &shard, err);
    if (status == GAC_OK)
        status = shard_number(x, shard, &entry->shard, err);
    if (status == GAC_OK)
        status = gac_namemap_add(&x->by_tensor, entry->tensor, x->n_entries, &existing, err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0)
        return bad_entry(x, entry->tensor, "is listed twice", NULL, err);
    x->n_entries++;
    return GAC_OK;
}

static gac_status take_weight_map(shard_index *x, gac_json_walk *walk, gac_error *err)
{
    char q[256];
    if (x->has_map)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: two \"weight_map\"s",
                             gac_quote(q, sizeof q, x->path));
    x->has_map = true;
    gac_status status = gac_json_walk_enter(walk, err);
    while (status == GAC_OK) {
        const char *tensor;
        status = gac_json_walk_next(walk, &tensor, err);
        if (status != GAC_OK || !tensor)
            break;
        status = add_entry(x, walk, tensor, err);
    }
    return status;
}

static gac_status parse_index(shard_index *x, const char *text, size_t n_bytes, gac_error *err)
{
    char q[256];
    gac_json_walk walk;
    gac_status status = gac_json_walk_start(&walk, text, n_bytes, x->path, 0, err);
    while (status == GAC_OK) {
        const char *key;
        status = gac_json_walk_next(&walk, &key, err);
        if (status != GAC_OK || !key)
            break;
        if (strcmp(key, "weight_map") == 0) {
            status = take_weight_map(x, &walk, err);
            continue;
        }
        json_t *value;
        bool metadata = strcmp(key, "metadata") == 0;
        status = gac_json_walk_value(&walk, 1 << 20, &value, err);
        if (status != GAC_OK)
            break;
        json_t *total = metadata ? json_object_get(value, "total_size") : NULL;
        if (json_is_number(total) && json_number_value(total) >= 0 &&
            json_number_value(total) < 9e18)
            x->total_size = (json_int_t)json_number_value(total);
        if (json_is_integer(total))
            x->total_size = json_integer_value(total);
        json_decref(value);
    }
    gac_json_walk_dispose(&walk);
    if (status == GAC_OK && !x->has_map)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: no \"weight_map\"",
                             gac_quote(q, sizeof q, x->path));
    return status;
}

/* Checks that the index lists every tensor of a shard, and lists it for this
 * shard. */
static gac_status check_shard(shard_index *x, int32_t shard, int32_t first, gac_error *err)
{
    const gac_checkpoint *c = x->checkpoint;
    for (int32_t i = first; i < c->n_tensors; i++) {
        int32_t entry = gac_namemap_find(&x->by_tensor, c->tensors[i].name);
        if (entry < 0)
            return bad_entry(x, c->tensors[i].name, "is not listed but is in", x->shards[shard],
                             err);
        if (x->entries[entry].shard != shard)
            return bad_entry(x, c->tensors[i].name, "is listed elsewhere but is also in",
                             x->shards[shard], err);
        x->entries[entry].found = true;
    }
    return GAC_OK;
}

static gac_status read_shards(shard_index *x, gac_progress *progress, gac_error *err)
{
    gac_checkpoint *c = x->checkpoint;
    gac_status status = GAC_OK;
    gac_progress_start(progress, "reading headers", "files", (uint64_t)x->n_shards);
    for (int32_t s = 0; s < x->n_shards && status == GAC_OK; s++) {
        gac_file *file;
        int32_t first = c->n_tensors;
        status = gac_file_open_inside(c->path, x->shards[s], &file, err);
        if (status == GAC_OK)
            status = gac_weights_read(c, x->shards[s], file, err);
        if (status == GAC_OK)
            status = check_shard(x, s, first, err);
        gac_progress_step(progress, (uint64_t)s + 1);
    }
    gac_progress_finish(progress);
    for (int32_t i = 0; i < x->n_entries && status == GAC_OK; i++)
        if (!x->entries[i].found)
            status = bad_entry(x, x->entries[i].tensor, "is missing from",
                               x->shards[x->entries[i].shard], err);
    return status;
}

/* Notes a wrong total_size. Writers count it in different ways, so it is no
 * error. */
static gac_status check_total(const shard_index *x, gac_error *err)
{
    gac_checkpoint *c = x->checkpoint;
    if (x->total_size < 0 || (uint64_t)x->total_size == c->size_bytes)
        return GAC_OK;
    const char *note = gac_arena_printf(
        &c->arena, "the index states total_size %lld bytes, the tensors have %llu bytes",
        (long long)x->total_size, (unsigned long long)c->size_bytes);
    return note ? gac_checkpoint_add_note(c, note, err) : gac_error_no_memory(err);
}

gac_status gac_index_read(gac_checkpoint *checkpoint, gac_file *index,
                          const gac_checkpoint_options *options, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    shard_index x = { .checkpoint = checkpoint, .path = gac_file_path(index), .total_size = -1 };
    gac_status status = gac_namemap_init(&x.by_tensor, err);
    if (status == GAC_OK)
        status = gac_namemap_init(&x.by_shard, err);
    if (status == GAC_OK)
        status = gac_file_slurp(index, GAC_MAX_HEADER_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = parse_index(&x, text, n_bytes, err);
    free(text);
    if (status == GAC_OK)
        status = read_shards(&x, options ? options->progress : NULL, err);
    if (status == GAC_OK)
        status = check_total(&x, err);
    free(x.entries);
    free(x.shards);
    gac_namemap_dispose(&x.by_tensor);
    gac_namemap_dispose(&x.by_shard);
    return status;
}

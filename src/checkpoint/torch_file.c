/* Opens files of torch.save: a zip archive with a pickle and a member for each
 * storage, or, before torch 1.6, several pickles with the storages behind
 * them. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "checkpoint/torch.h"

gac_status gac_torch_bad(const torch_file *t, const pickle_value *at, const char *format, ...)
{
    char q[256], what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(t->err, GAC_BAD_INPUT, "%s: offset %llu: %s",
                         gac_quote(q, sizeof q, t->path),
                         (unsigned long long)(t->base + (at ? at->at : 0)), what);
}

/* Zip archives. */

/* Finds a member of the archive's folder, which is what precedes "data.pkl". */
static const zip_member *find(const zip *z, const char *folder, const char *name)
{
    char path[2 * GAC_MAX_NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return gac_zip_find(z, path);
}

/* Finds the folder. It is malloc'ed. */
static gac_status find_folder(const torch_file *t, const zip *z, char **out)
{
    const char *found = NULL;
    for (int32_t i = 0; i < z->n_members; i++) {
        const char *name = z->members[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash, "/data.pkl") != 0)
            continue;
        if (found)
            return gac_torch_bad(t, NULL, "a zip archive with two data.pkl");
        found = name;
    }
    if (!found)
        return gac_torch_bad(t, NULL, "a zip archive without data.pkl is none of torch.save");
    *out = strndup(found, strlen(found) - strlen("/data.pkl"));
    return *out ? GAC_OK : gac_error_no_memory(t->err);
}

/* Checks what the archive says about itself. */
static gac_status check_archive(const torch_file *t, const zip *z, const char *folder)
{
    char text[8] = { 0 };
    const zip_member *order = find(z, folder, "byteorder");
    if (find(z, folder, "constants.pkl"))
        return gac_torch_bad(t, NULL, "a TorchScript archive, which holds a program");
    if (!order)
        return GAC_OK;
    size_t n = order->size_bytes < sizeof text ? (size_t)order->size_bytes : sizeof text - 1;
    gac_status status = gac_file_read(t->file, order->offset, text, n, t->err);
    if (status == GAC_OK && strcmp(text, "little") != 0)
        return gac_torch_bad(t, NULL, "its bytes are not in little-endian order");
    return status;
}

/* Finds the member of each storage, which must have as many bytes as the pickle
 * says. */
static gac_status place_members(torch_file *t, const zip *z, const char *folder)
{
    char q[160], name[GAC_MAX_NAME_BYTES + 8];
    for (int32_t i = 0; i < t->n_storages; i++) {
        torch_storage *s = &t->storages[i];
        snprintf(name, sizeof name, "data/%s", s->key);
        const zip_member *member = find(z, folder, name);
        gac_quote(q, sizeof q, s->key);
        if (!member)
            return gac_torch_bad(t, NULL, "storage \"%s\" has no member data/%s", q, q);
        if (member->size_bytes != s->size_bytes)
            return gac_torch_bad(
                t, NULL, "storage \"%s\" should have %llu bytes, its member has %llu", q,
                (unsigned long long)s->size_bytes, (unsigned long long)member->size_bytes);
        s->offset = member->offset;
        s->placed = true;
    }
    return GAC_OK;
}

static gac_status load(torch_file *t, uint64_t offset, uint64_t n_bytes)
{
    free(t->bytes);
    t->bytes = malloc((size_t)n_bytes + 1);
    t->base = offset;
    return t->bytes ? gac_file_read(t->file, offset, t->bytes, (size_t)n_bytes, t->err)
                    : gac_error_no_memory(t->err);
}

static gac_status read_zip(torch_file *t)
{
    zip z;
    char *folder = NULL;
    gac_status status = gac_zip_read(&z, &t->memory.arena, t->file, t->err);
    if (status == GAC_OK)
        status = find_folder(t, &z, &folder);
    if (status == GAC_OK)
        status = check_archive(t, &z, folder);
    const zip_member *data = status == GAC_OK ? find(&z, folder, "data.pkl") : NULL;
    if (data && data->size_bytes > GAC_MAX_PICKLE_BYTES)
        status = gac_torch_bad(t, NULL, "data.pkl has %llu bytes, more than the %u allowed",
                               (unsigned long long)data->size_bytes, GAC_MAX_PICKLE_BYTES);
    if (status == GAC_OK)
        status = load(t, data->offset, data->size_bytes);
    if (status == GAC_OK)
        status = gac_pickle_read(&t->pickle, &t->memory, t->path, t->base, t->bytes,
                                 (size_t)data->size_bytes, t->err);
    if (status == GAC_OK)
        status = gac_torch_list_storages(t);
    if (status == GAC_OK)
        status = place_members(t, &z, folder);
    gac_zip_dispose(&z);
    free(folder);
    return status;
}

/* The legacy format. */

enum { FIRST_LOAD_BYTES = 1 << 20, PROTOCOL = 1001 };

/* What is read of a legacy file: a magic number, a protocol, facts about the
 * system, the object, and the keys of the storages in their order. */
enum { HAS_MAGIC, HAS_PROTOCOL, HAS_SYSTEM, HAS_OBJECT, HAS_KEYS, N_PICKLES };

static gac_status check_start(const torch_file *t, const pickle *p, int which)
{
    static const char magic[10] = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    const pickle_value *v = p->root;
    if (which == HAS_MAGIC && (v->kind != PICKLE_BIG || v->n != sizeof magic ||
                               memcmp(v->text, magic, sizeof magic) != 0))
        return gac_torch_bad(t, v, "a pickle without the number that torch.save starts with");
    if (which == HAS_PROTOCOL && (v->kind != PICKLE_INT || v->integer != PROTOCOL))
        return gac_torch_bad(t, v, "a version of torch.save's legacy format other than %d",
                             PROTOCOL);
    if (which == HAS_SYSTEM) {
        bool little = v->kind == PICKLE_DICT;
        for (uint32_t i = 0; little && i + 1 < v->n; i += 2)
            if (gac_pickle_text_is(v->items[i], "little_endian"))
                little = v->items[i + 1]->kind == PICKLE_BOOL && v->items[i + 1]->integer;
        if (!little)
            return gac_torch_bad(t, v, "its bytes are not in little-endian order");
    }
    return GAC_OK;
}

/* Reads the pickles from the first n bytes of the file. *object is the offset
 * of the object, *keys the last pickle, and *end the offset behind it.
 * ended_early: there were too few bytes. */
static gac_status read_pickles(torch_file *t, size_t n, uint64_t *object, pickle *keys,
                               uint64_t *end, bool *ended_early)
{
    size_t at = 0;
    gac_status status = load(t, 0, n);
    *ended_early = false;
    for (int which = 0; which < N_PICKLES && status == GAC_OK; which++) {
        pickle passing = { .root = NULL };
        pickle *p = which == HAS_OBJECT ? &t->pickle : which == HAS_KEYS ? keys : &passing;
        t->base = at;
        if (which == HAS_OBJECT)
            *object = at;
        status = gac_pickle_read(p, &t->memory, t->path, at, t->bytes + at, n - at, t->err);
        *ended_early = p->ended_early;
        if (status == GAC_OK)
            status = check_start(t, p, which);
        at += p->n_read;
        gac_pickle_dispose(&passing);
    }
    *end = at;
    return status;
}

/* Finds the bytes of each storage behind the pickles, in the order of keys. Its
 * number of elements precedes it. */
static gac_status place_in_order(torch_file *t, const pickle_value *keys, uint64_t at)
{
    char q[160];
    uint8_t count[8];
    uint64_t size = gac_file_size(t->file);
    if (keys->kind != PICKLE_LIST || keys->n != (uint32_t)t->n_storages)
        return gac_torch_bad(t, keys, "the list of storages differs from those that tensors use");
    for (uint32_t i = 0; i < keys->n; i++) {
        const pickle_value *key = keys->items[i];
        int32_t index =
            key->kind == PICKLE_TEXT ? gac_namemap_find_n(&t->by_key, key->text, key->n) : -1;
        if (index < 0 || t->storages[index].placed)
            return gac_torch_bad(t, key, "a storage that no tensor uses, or one that comes twice");
        torch_storage *s = &t->storages[index];
        gac_quote(q, sizeof q, s->key);
        if (size - at < sizeof count || size - at - sizeof count < s->size_bytes)
            return gac_torch_bad(t, key, "storage \"%s\" of %llu bytes at offset %llu is cut off",
                                 q, (unsigned long long)s->size_bytes, (unsigned long long)at);
        gac_status status = gac_file_read(t->file, at, count, sizeof count, t->err);
        uint64_t stated = 0;
        for (size_t b = sizeof count; b-- > 0;)
            stated = stated << 8 | count[b];
        if (status == GAC_OK && stated != (uint64_t)s->n_elements)
            return gac_torch_bad(t, key,
                                 "storage \"%s\" should have %lld elements, %llu are stated at "
                                 "offset %llu",
                                 q, (long long)s->n_elements, (unsigned long long)stated,
                                 (unsigned long long)at);
        if (status != GAC_OK)
            return status;
        s->offset = at + sizeof count;
        s->placed = true;
        at = s->offset + s->size_bytes;
    }
    return at == size ? GAC_OK
                      : gac_torch_bad(t, keys, "%llu bytes behind the last storage, at offset %llu",
                                      (unsigned long long)(size - at), (unsigned long long)at);
}

static gac_status read_legacy(torch_file *t)
{
    pickle keys = { .root = NULL };
    uint64_t object = 0, end = 0, size = gac_file_size(t->file);
    uint64_t most = size < GAC_MAX_PICKLE_BYTES ? size : GAC_MAX_PICKLE_BYTES;
    uint64_t n = most < FIRST_LOAD_BYTES ? most : FIRST_LOAD_BYTES;
    bool ended_early = false;
    /* Nothing states the length of the pickles. If they are longer than what was
     * loaded, more is loaded and they are read again. */
    gac_status status = read_pickles(t, (size_t)n, &object, &keys, &end, &ended_early);
    while (status == GAC_BAD_INPUT && ended_early && n < most) {
        gac_pickle_dispose(&t->pickle);
        gac_pickle_dispose(&keys);
        gac_arena_free(&t->memory.arena);
        t->memory.n_bytes = 0;
        n = n * 8 < most ? n * 8 : most;
        status = read_pickles(t, (size_t)n, &object, &keys, &end, &ended_early);
    }
    uint64_t base_of_keys = t->base;
    t->base = object; /* errors name offsets in it, except those about the keys */
    if (status == GAC_OK)
        status = gac_torch_list_storages(t);
    t->base = base_of_keys;
    if (status == GAC_OK)
        status = place_in_order(t, keys.root, end);
    t->base = object;
    gac_pickle_dispose(&keys);
    return status;
}

/* Both. */

/* Finds where the data starts, for reports. */
static void find_data_start(torch_file *t)
{
    checkpoint_file *file = &t->checkpoint->files[t->index];
    file->data_start = gac_file_size(t->file);
    for (int32_t i = 0; i < t->n_storages; i++)
        if (t->storages[i].offset < file->data_start && t->storages[i].size_bytes)
            file->data_start = t->storages[i].offset;
}

gac_status gac_torch_read(gac_checkpoint *checkpoint, int32_t file, gac_error *err)
{
    char start = 0;
    torch_file t = {
        .checkpoint = checkpoint, .index = file, .file = checkpoint->files[file].file, .err = err
    };
    t.path = gac_file_path(t.file);
    gac_status status = gac_namemap_init(&t.by_key, err);
    if (status == GAC_OK)
        status = gac_file_read(t.file, 0, &start, 1, err);
    if (status == GAC_OK)
        status = start == 'P' ? read_zip(&t) : read_legacy(&t);
    if (status == GAC_OK) {
        find_data_start(&t);
        status = gac_torch_add_tensors(&t);
    }
    gac_pickle_dispose(&t.pickle);
    gac_namemap_dispose(&t.by_key);
    gac_arena_free(&t.memory.arena);
    free(t.storages);
    free(t.bytes);
    return status;
}

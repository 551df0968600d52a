/* Verifies all other files of a repaired checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "repair/verify_internal.h"

static void file_differs(comparison *c, const char *path, const char *what)
{
    char q[200];
    c->out->same_files = false;
    gac_differ(c->out, "%s %s", gac_quote(q, sizeof q, path), what);
}

/* Returns whether a file does not concern the model: the model card and hidden
 * files. */
static bool is_irrelevant(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return name[0] == '.' || strcmp(path, "README.md") == 0;
}

static bool is_kept_original(const char *path)
{
    size_t n = strlen(GAC_ORIGINALS_NAME);
    return strncmp(path, GAC_ORIGINALS_NAME, n) == 0 && (path[n] == 0 || path[n] == '/');
}

/* Opens a file of a checkpoint. *out is NULL if there is none. */
static gac_status open_if_there(const gac_checkpoint *c, const char *path, gac_file **out,
                                gac_error *err)
{
    *out = NULL;
    gac_error local = GAC_ERROR_INIT;
    gac_status status = gac_checkpoint_open_file(c, path, out, &local);
    if (status == GAC_BAD_INPUT)
        return GAC_OK;
    return status == GAC_OK ? GAC_OK : gac_error_set(err, status, "%s", local.text);
}

static gac_status compare_bytes(comparison *c, const char *path, gac_file *a, gac_file *b)
{
    if (gac_file_size(a) != gac_file_size(b)) {
        file_differs(c, path, "has another length than the original's");
        return GAC_OK;
    }
    gac_status status = GAC_OK;
    for (uint64_t at = 0; at < gac_file_size(a) && status == GAC_OK;) {
        uint64_t left = gac_file_size(a) - at;
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        status = gac_file_read(a, at, c->source, n, c->err);
        if (status == GAC_OK)
            status = gac_file_read(b, at, c->found, n, c->err);
        if (status == GAC_OK && memcmp(c->source, c->found, n) != 0) {
            file_differs(c, path, "differs from the original's");
            break;
        }
        at += n;
    }
    return status;
}

/* Checks that the repaired checkpoint has a file of the original. */
static gac_status check_carried(void *user, const char *path, gac_entry entry, unsigned mode,
                                gac_error *err)
{
    (void)mode;
    comparison *c = user;
    gac_file *before = NULL, *after = NULL;
    if (entry != GAC_ENTRY_FILE || gac_is_weights(path) || is_irrelevant(path) ||
        is_kept_original(path) || strcmp(path, gac_checkpoint_config_name(c->original)) == 0)
        return GAC_OK;
    gac_status status = gac_checkpoint_open_file(c->original, path, &before, err);
    if (status == GAC_OK)
        status = open_if_there(c->repaired, path, &after, err);
    if (status == GAC_OK && !after)
        file_differs(c, path, "is missing");
    else if (status == GAC_OK)
        status = compare_bytes(c, path, before, after);
    gac_file_close(before);
    gac_file_close(after);
    return status;
}

/* Returns whether a file holds or lists a checkpoint's tensors. */
static bool is_part_of(const gac_checkpoint *checkpoint, const char *name)
{
    int32_t n_files = gac_checkpoint_n_files(checkpoint);
    for (int32_t i = 0; i < n_files; i++)
        if (strcmp(name, gac_checkpoint_file_name(checkpoint, i)) == 0)
            return true;
    bool lone =
        n_files == 1 && strcmp(gac_checkpoint_file_name(checkpoint, 0), "model.safetensors") == 0;
    return !lone && strcmp(name, "model.safetensors.index.json") == 0;
}

/* Returns whether the repairs since the original wrote modelling code. *sum: its checksum in the
 * records, or NULL. */
static bool wrote_code(const comparison *c, const char **sum)
{
    *sum = c->step ? gac_record_code_sum(c->record, c->step) : NULL;
    return *sum || (!c->step && gac_config_has_our_code(gac_checkpoint_config(c->repaired)) &&
                    !gac_config_has_our_code(gac_checkpoint_config(c->original)));
}

/* Checks that the modelling code is the one that the repair wrote. */
static gac_status check_code(comparison *c)
{
    char stated[17], found[17];
    char *text = NULL;
    size_t n_bytes = 0;
    gac_file *file = NULL;
    const char *sum;
    gac_status status = GAC_OK;
    if (!wrote_code(c, &sum))
        return GAC_OK;
    if (!sum) {
        status = gac_model_code(gac_model_family(c->model), &text, c->err);
        if (status == GAC_OK)
            snprintf(stated, sizeof stated, "%016llx",
                     (unsigned long long)gac_hash_bytes(text, strlen(text)));
        free(text);
        text = NULL;
    }
    if (status == GAC_OK)
        status = open_if_there(c->repaired, GAC_MODELING_FILE, &file, c->err);
    if (status == GAC_OK && file)
        status = gac_file_slurp(file, GAC_MAX_CONFIG_BYTES, &text, &n_bytes, c->err);
    gac_file_close(file);
    if (status == GAC_OK && !file) {
        file_differs(c, GAC_MODELING_FILE, "is missing");
    } else if (status == GAC_OK) {
        snprintf(found, sizeof found, "%016llx", (unsigned long long)gac_hash_bytes(text, n_bytes));
        if (strcmp(found, sum ? sum : stated) != 0)
            file_differs(c, GAC_MODELING_FILE, "differs from the code that the repair wrote");
    }
    free(text);
    return status;
}

/* Returns whether the repair itself wrote a file. */
static bool is_written_by_repair(const comparison *c, const char *path)
{
    const char *kept = is_kept_original(path) ? strchr(path, '/') : NULL, *sum;
    return (strcmp(path, GAC_MODELING_FILE) == 0 && wrote_code(c, &sum)) ||
           is_part_of(c->repaired, path) ||
           strcmp(path, gac_checkpoint_config_name(c->repaired)) == 0 ||
           (kept && c->kept && is_part_of(c->kept, kept + 1));
}

/* Checks that a file of the repaired checkpoint was in the original or written
 * by the repair. */
static gac_status check_origin(void *user, const char *path, gac_entry entry, unsigned mode,
                               gac_error *err)
{
    (void)mode;
    comparison *c = user;
    gac_file *before = NULL;
    if (entry == GAC_ENTRY_FOLDER || is_written_by_repair(c, path) || is_irrelevant(path))
        return GAC_OK;
    gac_status status = GAC_OK;
    if (entry == GAC_ENTRY_FILE && gac_checkpoint_is_directory(c->original) &&
        !gac_is_weights(path))
        status = open_if_there(c->original, path, &before, err);
    if (status == GAC_OK && !before)
        file_differs(c, path, "is extra");
    gac_file_close(before);
    return status;
}

/* Checks that only originals of scaled tensors are kept. */
static void check_kept_tensors(comparison *c)
{
    char q[160], what[256];
    tensor_scaling scaling;
    for (int32_t i = 0; c->kept && i < gac_checkpoint_n_tensors(c->kept); i++) {
        const char *name = gac_checkpoint_tensor(c->kept, i)->name;
        int32_t tensor = gac_checkpoint_find(c->original, name);
        if (tensor >= 0 && gac_scaling_of(&c->places, tensor, c->sizes, &scaling))
            continue;
        snprintf(what, sizeof what, "has tensor \"%s\", which was not scaled",
                 gac_quote(q, sizeof q, name));
        file_differs(c, GAC_ORIGINALS_NAME, what);
    }
}

/* Returns a file's metadata without the record and the format. */
static json_t *plain_metadata(const gac_checkpoint *c, int32_t file)
{
    const json_t *all = gac_checkpoint_metadata(c, file);
    json_t *plain = all ? json_copy((json_t *)(uintptr_t)all) : json_object();
    json_object_del(plain, GAC_RECORD_KEY);
    json_object_del(plain, GAC_RECORD_SUM_KEY);
    json_object_del(plain, "format");
    return plain;
}

/* Returns whether the format is right. The repair may set it to "pt", which
 * transformers looks for. */
static bool same_format(const json_t *original, const json_t *repaired)
{
    const json_t *before = json_object_get(original, "format");
    const json_t *after = json_object_get(repaired, "format");
    const char *name = json_string_value(after);
    return (name && strcmp(name, "pt") == 0) || (!before && !after) || json_equal(before, after);
}

/* Returns whether a repaired file has the metadata of a file of the original. */
static bool same_metadata(const comparison *c, int32_t repaired, int32_t original)
{
    json_t *before = plain_metadata(c->original, original);
    json_t *after = plain_metadata(c->repaired, repaired);
    bool same =
        json_equal(before, after) && same_format(gac_checkpoint_metadata(c->original, original),
                                                 gac_checkpoint_metadata(c->repaired, repaired));
    json_decref(before);
    json_decref(after);
    return same;
}

/* Checks that each file has the metadata of the original's file with the same
 * name, or of its first file if the tensors were distributed differently. */
static void check_metadata(comparison *c)
{
    for (int32_t i = 0; i < gac_checkpoint_n_files(c->repaired); i++) {
        const char *name = gac_checkpoint_file_name(c->repaired, i);
        bool same = gac_checkpoint_n_files(c->original) == 0 || same_metadata(c, i, 0);
        for (int32_t k = 0; k < gac_checkpoint_n_files(c->original) && !same; k++)
            same = strcmp(name, gac_checkpoint_file_name(c->original, k)) == 0 &&
                   same_metadata(c, i, k);
        if (!same)
            file_differs(c, name, "has other metadata than the original's");
    }
}

gac_status gac_verify_files(comparison *c)
{
    gac_status status = gac_checkpoint_each_file(c->original, check_carried, c, c->err);
    if (status == GAC_OK)
        status = gac_checkpoint_each_file(c->repaired, check_origin, c, c->err);
    if (status == GAC_OK)
        status = check_code(c);
    if (status == GAC_OK) {
        check_metadata(c);
        check_kept_tensors(c);
    }
    return status;
}

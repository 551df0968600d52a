/* Writes a checkpoint with other sizes: repair and undo. */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "base/files.h"
#include "repair/repair_internal.h"

gac_status gac_repair_check(const gac_model *model, const int64_t *sizes,
                            const gac_repair_options *options, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, sizes);
    GAC_REFUSE(err, options && (unsigned)options->widths > GAC_WIDTHS_BLOCK_CONFIGS,
               "there is no such way to state widths");
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->tied_to >= 0 && sizes[i] != sizes[d->tied_to])
            return gac_error_set(err, GAC_USAGE, "%s: must stay equal to %s", d->name,
                                 gac_model_dim(model, d->tied_to)->name);
        if (sizes[i] == d->size)
            continue;
        if (sizes[i] < d->size || sizes[i] > INT32_MAX)
            return gac_error_set(err, GAC_USAGE, "%s: %lld cannot become %lld", d->name,
                                 (long long)d->size, (long long)sizes[i]);
        if (d->exactness == GAC_REFUSED)
            return gac_error_set(err, GAC_USAGE, "%s: refused: %s", d->name, d->reason);
        if (d->multiple > 1 && sizes[i] % d->multiple != 0)
            return gac_error_set(err, GAC_USAGE,
                                 "%s: runtimes refuse %lld, which is no multiple of the %lld heads",
                                 d->name, (long long)sizes[i], (long long)d->multiple);
        if (d->exactness == GAC_RESCALED && !(options && options->allow_rescaled))
            return gac_error_set(err, GAC_USAGE, "%s: needs rescaled sizes to be allowed: %s",
                                 d->name, d->reason);
    }
    return GAC_OK;
}

/* Limit of the record as a string in a header. Our reader accepts 16 MiB of
 * metadata, and other metadata needs room too. */
enum { MAX_RECORD_BYTES = 15 << 20 };

/* The state of one repair or undo. */
typedef struct rewrite {
    gac_checkpoint *checkpoint;
    const int64_t *sizes;  /* repair: (n_dims) sizes of the target */
    const history *undone; /* undo: the repairs that are undone */
    const gac_repair_options *options;
    place_list places;
    gac_writer *writer;
    gac_checkpoint
        *originals;   /* undo: checkpoint of the kept originals of scaled tensors; or NULL */
    int32_t *kept;    /* (n_tensors) index of each tensor's kept original, or -1; or NULL */
    json_t *record;   /* repair: the record to write; undo: the record that was found */
    uint64_t *hashes; /* repair: (n_tensors) hashes of the original tensors */
    char *code;       /* repair: modelling code to write; or NULL */
    bool scale;       /* repair: values of some tensors change too */
    gac_repair_result result;
    gac_error *err;
} rewrite;

/* Makes the metadata of the first file: the record and its checksum. */
static gac_status record_metadata(const rewrite *w, json_t **out)
{
    char sum[17];
    char *text = NULL;
    gac_status status = gac_record_text(w->record, &text, sum, w->err);
    json_t *as_string = status == GAC_OK ? json_string(text) : NULL;
    size_t n_bytes = as_string ? json_dumpb(as_string, NULL, 0, JSON_ENCODE_ANY) : 0;
    if (status == GAC_OK && n_bytes > MAX_RECORD_BYTES)
        status = gac_error_set(w->err, GAC_USAGE,
                               "the record of this repair would take %zu bytes of metadata, more "
                               "than the %d that readers accept",
                               n_bytes, MAX_RECORD_BYTES);
    if (status == GAC_OK) {
        *out = json_pack("{s:O, s:s}", GAC_RECORD_KEY, as_string, GAC_RECORD_SUM_KEY, sum);
        status = *out ? GAC_OK : gac_error_no_memory(w->err);
    }
    json_decref(as_string);
    free(text);
    return status;
}

/* Copies a file's metadata without its record. */
static gac_status file_metadata(const rewrite *w, int32_t file, json_t **out)
{
    const json_t *before = gac_checkpoint_metadata(w->checkpoint, file);
    *out = before ? json_copy((json_t *)before) : json_object();
    if (!*out)
        return gac_error_no_memory(w->err);
    json_object_del(*out, GAC_RECORD_KEY);
    json_object_del(*out, GAC_RECORD_SUM_KEY);
    return GAC_OK;
}

/* Adds a tensor to the result's counts. */
static gac_status count_tensor(const gac_tensor *t, const tensor_map *map,
                               gac_repair_result *result, gac_error *err)
{
    char q[160];
    uint64_t bits = (uint64_t)gac_dtype_bits(t->dtype);
    bool fits = true;
    for (int32_t a = 0; a < t->n_axes; a++)
        fits = fits && gac_mul_u64(bits, (uint64_t)map->axes[a].n_to, &bits);
    result->n_tensors_changed += map->last >= 0;
    result->bytes_before += t->size_bytes;
    if (!fits || !gac_add_u64(result->bytes_after, bits / 8, &result->bytes_after) ||
        result->bytes_after > INT64_MAX)
        return gac_error_set(err, GAC_USAGE, "tensor \"%s\": its size would overflow",
                             gac_quote(q, sizeof q, t->name));
    return GAC_OK;
}

static int32_t count_changes(const gac_model *model, const int64_t *sizes)
{
    int32_t n = 0;
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        n += sizes[i] != gac_model_dim(model, i)->size;
    return n;
}

gac_status gac_repair_preview(const gac_model *model, const int64_t *sizes,
                              const gac_repair_options *options, gac_repair_result *result,
                              gac_error *err)
{
    GAC_REFUSE_NULL(err, model, sizes, result);
    place_list places;
    char *config = NULL, *code = NULL;
    bool with_code = false;
    const gac_checkpoint *c = gac_model_checkpoint(model);
    *result = (gac_repair_result){ .n_dims_changed = count_changes(model, sizes) };
    gac_status status = gac_repair_check(model, sizes, options, err);
    if (status == GAC_OK)
        status = gac_may_write_code(model, result->n_dims_changed, &with_code, err);
    if (status == GAC_OK)
        status = gac_new_config(model, sizes, options ? options->widths : GAC_WIDTHS_AUTO,
                                with_code, &config, &code, err);
    result->corrects_config = config && gac_model_config_is_stale(model);
    free(config);
    free(code);
    if (status != GAC_OK)
        return status;
    status = gac_places_create(model, &places, err);
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c) && status == GAC_OK; i++) {
        tensor_map map;
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        status = gac_map_create(&places, i, t->shape, sizes, &map, err);
        if (status == GAC_OK)
            status = count_tensor(t, &map, result, err);
        gac_map_dispose(&map);
    }
    gac_places_dispose(&places);
    return status;
}

/* Maps a tensor from the checkpoint to the target, for repair or undo. */
static gac_status map_tensor(const rewrite *w, int32_t i, tensor_map *map)
{
    if (!w->undone)
        return gac_map_create(&w->places, i, gac_checkpoint_tensor(w->checkpoint, i)->shape,
                              w->sizes, map, w->err);
    gac_status status = gac_history_map(w->undone, w->checkpoint, i, map, w->err);
    if (status == GAC_OK)
        gac_map_invert(map);
    return status;
}

/* Returns whether the tensors stay in files of the same names. Those of torch
 * files go to safetensors, under their usual names. An adapter is one file. */
static bool keeps_files(const rewrite *w)
{
    return w->options->max_shard_bytes == 0 && !gac_checkpoint_is_torch(w->checkpoint);
}

static gac_status declare(rewrite *w, int32_t i)
{
    int64_t shape[GAC_MAX_AXES];
    tensor_map map;
    const gac_tensor *t = gac_checkpoint_tensor(w->checkpoint, i);
    gac_status status = map_tensor(w, i, &map);
    if (status == GAC_OK)
        status = count_tensor(t, &map, &w->result, w->err);
    for (int32_t a = 0; a < t->n_axes && status == GAC_OK; a++)
        shape[a] = map.axes[a].n_to;
    gac_map_dispose(&map);
    if (status == GAC_OK)
        status = gac_writer_add(w->writer, t->name, t->dtype, t->n_axes, shape, NULL, w->err);
    const char *file = keeps_files(w) ? gac_checkpoint_file_name(w->checkpoint, t->file)
                       : gac_checkpoint_is_adapter(w->checkpoint) ? GAC_ADAPTER_NAME
                                                                  : NULL;
    if (status == GAC_OK && file) {
        /* Tensors are ordered by file, and each file's metadata is set once. */
        json_t *metadata = NULL;
        if (i == 0 || gac_checkpoint_tensor(w->checkpoint, i - 1)->file != t->file)
            status = file_metadata(w, t->file, &metadata);
        if (status == GAC_OK)
            status = gac_writer_set_file(w->writer, i, file, metadata, w->err);
        json_decref(metadata);
    }
    return status;
}

/* Scales ranges of a tensor that was just written, piece by piece. */
static gac_status scale_tensor(rewrite *w, int32_t tensor, const tensor_scaling *scaling,
                               uint64_t row_bytes)
{
    enum { BUFFER_BYTES = 1 << 20 };
    uint64_t element = (uint64_t)gac_dtype_bits(scaling->dtype) / 8;
    char *buffer = malloc(BUFFER_BYTES);
    gac_status status = buffer ? GAC_OK : gac_error_no_memory(w->err);
    for (int32_t r = 0; r < scaling->n_ranges && status == GAC_OK; r++) {
        uint64_t offset = (uint64_t)scaling->ranges[r].start * row_bytes;
        uint64_t left = (uint64_t)scaling->ranges[r].n_rows * row_bytes;
        while (left && status == GAC_OK) {
            size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
            status = gac_writer_read_back(w->writer, tensor, offset, buffer, n, w->err);
            if (status == GAC_OK &&
                !gac_scale_elements(buffer, n / element, scaling->dtype, scaling->ranges[r].factor))
                status = gac_error_set(w->err, GAC_USAGE, "%s elements cannot be scaled",
                                       gac_dtype_name(scaling->dtype));
            if (status == GAC_OK)
                status = gac_writer_rewrite(w->writer, tensor, offset, buffer, n, w->err);
            offset += n;
            left -= n;
        }
    }
    free(buffer);
    return status;
}

/* Checks that undo removes only zeros. Values there mean that the model was
 * trained further, so it is no longer the original. */
static gac_status check_pads(const rewrite *w, int32_t i)
{
    char q[160];
    tensor_map map;
    bool zero = true;
    gac_status status = gac_history_map(w->undone, w->checkpoint, i, &map, w->err);
    if (status == GAC_OK)
        status = gac_pads_are_zero(w->checkpoint, i, &map, &zero, w->err);
    gac_map_dispose(&map);
    if (status == GAC_OK && !zero)
        status =
            gac_error_set(w->err, GAC_BAD_INPUT,
                          "tensor \"%s\": inserted zeros are no longer zero; undoing "
                          "would lose these values",
                          gac_quote(q, sizeof q, gac_checkpoint_tensor(w->checkpoint, i)->name));
    return status;
}

/* Copies the kept original of a scaled tensor. */
static gac_status copy_kept(rewrite *w, int32_t i, int32_t kept)
{
    char q[160];
    tensor_map map;
    const gac_tensor *t = gac_checkpoint_tensor(w->originals, kept);
    gac_status status = map_tensor(w, i, &map);
    bool same = status == GAC_OK && t->n_axes == map.n_axes && t->dtype == map.dtype;
    for (int32_t a = 0; a < t->n_axes && same; a++)
        same = t->shape[a] == map.axes[a].n_to;
    gac_map_dispose(&map);
    if (status != GAC_OK || !same)
        return status != GAC_OK
                   ? status
                   : gac_error_set(w->err, GAC_BAD_INPUT,
                                   "tensor \"%s\": its kept original has another shape",
                                   gac_quote(q, sizeof q, t->name));
    return gac_writer_copy(w->writer, i, 0, w->originals, kept, 0,
                           gac_checkpoint_tensor(w->originals, kept)->size_bytes, w->err);
}

static gac_status move_tensor(rewrite *w, int32_t i)
{
    tensor_map map;
    tensor_scaling scaling;
    const gac_tensor *t = gac_checkpoint_tensor(w->checkpoint, i);
    int32_t kept = w->kept ? w->kept[i] : -1;
    gac_status status = w->undone ? check_pads(w, i) : GAC_OK;
    if (status != GAC_OK || kept >= 0)
        return status == GAC_OK ? copy_kept(w, i, kept) : status;
    gac_tensor_hash *hash = NULL;
    status = map_tensor(w, i, &map);
    if (status == GAC_OK && w->hashes)
        status = gac_tensor_hash_start(w->checkpoint, i, &hash, w->err);
    if (status == GAC_OK)
        status = gac_transfer(w->checkpoint, i, &map, w->writer, i, hash, w->err);
    gac_status hashed = gac_tensor_hash_finish(hash, w->hashes ? &w->hashes[i] : NULL,
                                               status == GAC_OK ? w->err : NULL);
    if (status == GAC_OK)
        status = hashed;
    if (status == GAC_OK && w->scale && gac_scaling_of(&w->places, i, w->sizes, &scaling)) {
        int64_t row = 1;
        for (int32_t a = 1; a < t->n_axes; a++)
            row *= map.axes[a].n_to;
        status =
            scale_tensor(w, i, &scaling, (uint64_t)row * (uint64_t)gac_dtype_bits(t->dtype) / 8);
    }
    gac_map_dispose(&map);
    return status;
}

static gac_status move_all(rewrite *w)
{
    gac_status status = GAC_OK;
    uint64_t n_done = 0;
    gac_progress *progress = w->options->progress;
    gac_progress_start(progress, "writing", "bytes", gac_checkpoint_size_bytes(w->checkpoint));
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(w->checkpoint) && status == GAC_OK; i++) {
        status = w->options->cancel && *w->options->cancel
                     ? gac_error_set(w->err, GAC_FAILED, "interrupted; nothing was left behind")
                     : move_tensor(w, i);
        n_done += gac_checkpoint_tensor(w->checkpoint, i)->size_bytes;
        gac_progress_step(progress, n_done);
    }
    gac_progress_finish(progress);
    return status;
}

/* Writes the originals of the tensors that scaling changes to a checkpoint
 * inside the new one. */
static gac_status keep_originals(rewrite *w)
{
    char *path;
    gac_writer *keeper = NULL;
    tensor_scaling scaling;
    int32_t n_tensors = gac_checkpoint_n_tensors(w->checkpoint), n = 0;
    if (asprintf(&path, "%s/%s", gac_writer_directory(w->writer), GAC_ORIGINALS_NAME) < 0)
        return gac_error_no_memory(w->err);
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    options.no_sync = w->options->no_sync;
    options.like = w->checkpoint;
    gac_status status = gac_writer_create(path, &options, &keeper, w->err);
    free(path);
    for (int pass = 0; pass < 2 && status == GAC_OK; pass++) {
        n = 0;
        for (int32_t i = 0; i < n_tensors && status == GAC_OK; i++) {
            const gac_tensor *t = gac_checkpoint_tensor(w->checkpoint, i);
            if (!gac_scaling_of(&w->places, i, w->sizes, &scaling))
                continue;
            status =
                pass == 0
                    ? gac_writer_add(keeper, t->name, t->dtype, t->n_axes, t->shape, NULL, w->err)
                    : gac_writer_copy(keeper, n, 0, w->checkpoint, i, 0, t->size_bytes, w->err);
            n++;
        }
        if (pass == 0 && status == GAC_OK)
            status = gac_writer_layout(keeper, w->err);
    }
    if (status != GAC_OK) {
        gac_writer_discard(keeper);
        return status;
    }
    return gac_writer_finish(keeper, w->err);
}

/* Copies the other files and adds the config. text is the new config, or NULL
 * to copy the old one. */
static gac_status add_config(rewrite *w, const char *text, size_t n_bytes)
{
    const char *skip[4] = { GAC_ORIGINALS_NAME };
    int n = 1;
    if (text)
        skip[n++] = gac_checkpoint_config_name(w->checkpoint);
    if (w->undone && gac_record_code_sum(w->record, NULL))
        skip[n++] = GAC_MODELING_FILE;
    gac_status status = gac_writer_carry(w->writer, w->checkpoint, skip, w->err);
    if (status == GAC_OK && w->code)
        status =
            gac_writer_add_file(w->writer, GAC_MODELING_FILE, w->code, strlen(w->code), w->err);
    /* gac_writer_carry does not copy the config beside a single file. */
    const json_t *beside = json_object_get(w->record, "config");
    if (!text && !gac_checkpoint_is_directory(w->checkpoint) && json_is_string(beside)) {
        text = json_string_value(beside);
        n_bytes = json_string_length(beside);
    }
    if (status == GAC_OK && text)
        status = gac_writer_add_file(w->writer, gac_checkpoint_config_name(w->checkpoint), text,
                                     n_bytes, w->err);
    return status;
}

/* Writes the hashes, which are known by now, into the record. */
static gac_status write_hashes(rewrite *w)
{
    char sum[17];
    char *text = NULL;
    gac_status status = gac_record_set_hashes(w->record, w->checkpoint, w->hashes, w->err);
    if (status == GAC_OK)
        status = gac_record_text(w->record, &text, sum, w->err);
    if (status == GAC_OK)
        status = gac_writer_replace_metadata(w->writer, GAC_RECORD_KEY, text, w->err);
    if (status == GAC_OK)
        status = gac_writer_replace_metadata(w->writer, GAC_RECORD_SUM_KEY, sum, w->err);
    free(text);
    return status;
}

/* Writes the whole directory and finishes it. The writer is used up. */
static gac_status write_all(rewrite *w, const char *config, size_t config_bytes)
{
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(w->checkpoint) && status == GAC_OK; i++)
        status = declare(w, i);
    if (status == GAC_OK)
        status = gac_writer_layout(w->writer, w->err);
    if (status == GAC_OK)
        status = move_all(w);
    if (status == GAC_OK && w->hashes)
        status = write_hashes(w);
    if (status == GAC_OK && w->scale)
        status = keep_originals(w);
    if (status == GAC_OK)
        status = add_config(w, config, config_bytes);
    if (status == GAC_OK)
        status = gac_writer_complete(w->writer, w->err);
    if (status == GAC_OK && w->undone)
        status = gac_prove_original(gac_writer_directory(w->writer), gac_record_oldest(w->record),
                                    w->options->progress, &w->result.proved, w->err);
    if (status == GAC_OK) {
        gac_writer *writer = w->writer;
        w->writer = NULL;
        status = gac_writer_finish(writer, w->err);
    }
    return status;
}

static gac_status begin(rewrite *w, const char *out)
{
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    json_t *common = NULL, *first = NULL;
    gac_status status = gac_check_apart(out, gac_checkpoint_path(w->checkpoint), w->err);
    options.replace = w->options->replace;
    options.no_sync = w->options->no_sync;
    options.like = w->checkpoint;
    if (status == GAC_OK && w->options->max_shard_bytes) {
        options.max_shard_bytes = w->options->max_shard_bytes;
        status = file_metadata(w, 0, &common);
        options.metadata = common;
    }
    if (status == GAC_OK && w->hashes) {
        status = record_metadata(w, &first);
        options.first_metadata = first;
    }
    if (status == GAC_OK)
        status = gac_writer_create(out, &options, &w->writer, w->err);
    json_decref(common);
    json_decref(first);
    return status;
}

static void end(rewrite *w, gac_status status, gac_repair_result *result)
{
    gac_writer_discard(w->writer);
    gac_places_dispose(&w->places);
    gac_checkpoint_close(w->originals);
    json_decref(w->record);
    free(w->kept);
    free(w->hashes);
    free(w->code);
    if (status == GAC_OK && result)
        *result = w->result;
}

gac_status gac_repair_apply(gac_checkpoint *checkpoint, const gac_model *model,
                            const int64_t *sizes, const char *out,
                            const gac_repair_options *options, gac_repair_result *result,
                            gac_error *err)
{
    GAC_REFUSE_NULL(err, checkpoint, model, sizes, out);
    static const gac_repair_options defaults = GAC_REPAIR_OPTIONS_INIT;
    char *text = NULL;
    bool with_code = false;
    rewrite w = { .checkpoint = checkpoint,
                  .sizes = sizes,
                  .options = options ? options : &defaults,
                  .err = err };
    gac_status status = gac_repair_check(model, sizes, w.options, err);
    w.result.n_dims_changed = count_changes(model, sizes);
    if (status == GAC_OK)
        status = gac_may_write_code(model, w.result.n_dims_changed, &with_code, err);
    if (status == GAC_OK)
        status = gac_new_config(model, sizes, w.options->widths, with_code, &text, &w.code, err);
    w.result.corrects_config = text && gac_model_config_is_stale(model);
    if (status == GAC_OK)
        status = gac_record_create(checkpoint, model, sizes, w.options->widths, &w.record, err);
    if (status == GAC_OK && with_code)
        status = gac_record_set_code(w.record, w.code, err);
    if (status == GAC_OK) {
        w.hashes = calloc((size_t)gac_checkpoint_n_tensors(checkpoint) + 1, sizeof *w.hashes);
        status = w.hashes ? GAC_OK : gac_error_no_memory(err);
    }
    if (status == GAC_OK)
        status = gac_places_create(model, &w.places, err);
    if (status == GAC_OK) {
        w.scale = gac_record_is_rescaled(w.record);
        status = begin(&w, out);
    }
    if (status == GAC_OK)
        status = write_all(&w, text, text ? strlen(text) : 0);
    free(text);
    end(&w, status, result);
    return status;
}

/* Opens the checkpoint of kept originals inside a repaired one. */
static gac_status open_originals(rewrite *w)
{
    char *path;
    if (asprintf(&path, "%s/%s", gac_checkpoint_path(w->checkpoint), GAC_ORIGINALS_NAME) < 0)
        return gac_error_no_memory(w->err);
    gac_status status = gac_checkpoint_open(path, NULL, &w->originals, w->err);
    free(path);
    return status;
}

/* Finds the kept original of a tensor that was scaled. */
static gac_status find_kept(rewrite *w, const char *name)
{
    char q[160];
    int32_t tensor = gac_checkpoint_find(w->checkpoint, name);
    int32_t kept = gac_checkpoint_find(w->originals, name);
    if (kept < 0)
        return gac_error_set(w->err, GAC_BAD_INPUT,
                             "tensor \"%s\": was scaled, and its original is not kept",
                             gac_quote(q, sizeof q, name));
    if (tensor >= 0)
        w->kept[tensor] = kept;
    return GAC_OK;
}

/* Finds the kept originals of all scaled tensors. Records of version 0.1 do not
 * name these tensors, so all kept ones count. */
static gac_status find_all_kept(rewrite *w)
{
    size_t k;
    json_t *name;
    int32_t n = gac_checkpoint_n_tensors(w->checkpoint);
    bool named = gac_record_has_checksums(w->record);
    gac_status status = GAC_OK;
    w->kept = malloc(((size_t)n + 1) * sizeof *w->kept);
    if (!w->kept)
        return gac_error_no_memory(w->err);
    for (int32_t i = 0; i < n; i++)
        w->kept[i] = named ? -1
                           : gac_checkpoint_find(w->originals,
                                                 gac_checkpoint_tensor(w->checkpoint, i)->name);
    json_array_foreach(json_object_get(w->record, "scaled"), k, name)
        if (named && status == GAC_OK && json_is_string(name))
            status = find_kept(w, json_string_value(name));
    return status;
}

gac_status gac_repair_undo(gac_checkpoint *checkpoint, const char *out,
                           const gac_repair_options *options, gac_repair_result *result,
                           gac_error *err)
{
    GAC_REFUSE_NULL(err, checkpoint, out);
    static const gac_repair_options defaults = GAC_REPAIR_OPTIONS_INIT;
    char q[256];
    history done = { 0 };
    rewrite w = { .checkpoint = checkpoint,
                  .undone = &done,
                  .options = options ? options : &defaults,
                  .err = err };
    gac_status status = gac_record_find(checkpoint, &w.record, err);
    if (status == GAC_OK && !w.record)
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: was not repaired by gac",
                               gac_quote(q, sizeof q, gac_checkpoint_path(checkpoint)));
    if (status == GAC_OK)
        status = gac_history_create(w.record, NULL, checkpoint, &done, err);
    if (status == GAC_OK && gac_record_is_rescaled(w.record))
        status = open_originals(&w);
    if (status == GAC_OK && w.originals)
        status = find_all_kept(&w);
    if (status == GAC_OK)
        status = begin(&w, out);
    const json_t *oldest = gac_record_oldest(w.record);
    const json_t *config = json_object_get(oldest, "config");
    w.result.n_dims_changed = gac_record_n_dims(oldest);
    if (status == GAC_OK)
        status = write_all(&w, json_string_value(config), json_string_length(config));
    end(&w, status, result);
    gac_history_dispose(&done);
    return status;
}

/* Writes torch files as safetensors. */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "base/files.h"
#include "checkpoint/checkpoint_internal.h"

/* Adds the config beside a single file. That of a directory is carried along. */
static gac_status add_config(gac_writer *writer, const gac_checkpoint *c, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_file *file = NULL;
    gac_status status = gac_checkpoint_config_file(c, &file, err);
    if (status == GAC_OK && file)
        status = gac_file_slurp(file, GAC_MAX_CONFIG_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK && file)
        status = gac_writer_add_file(writer, gac_checkpoint_config_name(c), text, n_bytes, err);
    gac_file_close(file);
    free(text);
    return status;
}

static gac_status declare(gac_writer *writer, const gac_checkpoint *c, gac_convert_result *result,
                          gac_error *err)
{
    int64_t n_of[GAC_DTYPE_COUNT] = { 0 };
    gac_status status = GAC_OK;
    *result = (gac_convert_result){ .n_tensors = c->n_tensors,
                                    .n_params = c->n_params,
                                    .size_bytes = c->size_bytes };
    for (int32_t i = 0; i < c->n_tensors && status == GAC_OK; i++) {
        const gac_tensor *t = &c->tensors[i];
        status = gac_writer_add(writer, t->name, t->dtype, t->n_axes, t->shape, NULL, err);
        if (status == GAC_OK && c->is_adapter)
            status = gac_writer_set_file(writer, i, GAC_ADAPTER_NAME, NULL, err);
        n_of[t->dtype] += t->n_elements;
        if (n_of[t->dtype] > n_of[result->dtype])
            result->dtype = t->dtype;
    }
    return status == GAC_OK ? gac_writer_layout(writer, err) : status;
}

static gac_status copy_all(gac_writer *writer, gac_checkpoint *c,
                           const gac_convert_options *options, gac_error *err)
{
    uint64_t n_done = 0;
    gac_status status = GAC_OK;
    gac_progress_start(options->progress, "converting", "bytes", c->size_bytes);
    for (int32_t i = 0; i < c->n_tensors && status == GAC_OK; i++) {
        status = options->cancel && *options->cancel
                     ? gac_error_set(err, GAC_FAILED, "interrupted; nothing was left behind")
                     : gac_writer_copy(writer, i, 0, c, i, 0, c->tensors[i].size_bytes, err);
        n_done += c->tensors[i].size_bytes;
        gac_progress_step(options->progress, n_done);
    }
    gac_progress_finish(options->progress);
    return status;
}

static gac_status write_all(gac_checkpoint *c, const char *to, const gac_convert_options *options,
                            gac_convert_result *result, gac_error *err)
{
    gac_writer *writer = NULL;
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    how.max_shard_bytes = options->max_shard_bytes;
    how.replace = options->replace;
    how.no_sync = options->no_sync;
    how.like = c;
    gac_status status = gac_writer_create(to, &how, &writer, err);
    if (status == GAC_OK)
        status = declare(writer, c, result, err);
    if (status == GAC_OK)
        status = copy_all(writer, c, options, err);
    if (status == GAC_OK)
        status =
            c->is_directory ? gac_writer_carry(writer, c, NULL, err) : add_config(writer, c, err);
    if (status == GAC_OK)
        return gac_writer_finish(writer, err);
    gac_writer_discard(writer);
    return status;
}

gac_status gac_convert_torch(const char *from, const char *to, const gac_convert_options *options,
                             gac_convert_result *result, gac_error *err)
{
    GAC_REFUSE_NULL(err, from, to, result);
    static const gac_convert_options defaults = GAC_CONVERT_OPTIONS_INIT;
    char q[256];
    gac_checkpoint *c = NULL;
    options = options ? options : &defaults;
    GAC_REFUSE(err, options->dtype != GAC_DTYPE_COUNT, "torch files keep their dtypes");
    GAC_REFUSE(err, options->tokenizer, "torch files have no tokenizer of their own");
    gac_checkpoint_options opening = { options->progress, options->log };
    gac_status status = gac_checkpoint_open(from, &opening, &c, err);
    if (status == GAC_OK && !c->is_torch)
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: already safetensors",
                               gac_quote(q, sizeof q, from));
    if (status == GAC_OK)
        status = gac_check_apart(to, from, err);
    if (status == GAC_OK)
        status = write_all(c, to, options, result, err);
    gac_checkpoint_close(c);
    return status;
}

/* rewrite: reads a checkpoint and writes it again, for tests.
 *
 *     rewrite IN OUT [--max-shard-bytes N]
 *     rewrite --list IN
 *
 * The first copies every tensor, config.json and the first file's metadata
 * into a new directory OUT. The second prints one JSON object a tensor, in the
 * checkpoint's order: name, dtype, shape, file, offset, and an FNV-1a 64
 * checksum of its bytes. The exit status is the library's gac_status. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <gac/base.h>
#include <gac/checkpoint.h>

/* Not a power of two, so that pieces end at odd places. */
#define PIECE_BYTES 1000003u

typedef gac_status piece_visitor(void *context, int32_t tensor, uint64_t offset, const void *data,
                                 size_t n_bytes, gac_error *err);

static gac_status for_each_piece(gac_checkpoint *in, int32_t tensor, void *buffer,
                                 piece_visitor *visit, void *context, gac_error *err)
{
    uint64_t size = gac_checkpoint_tensor(in, tensor)->size_bytes;
    for (uint64_t offset = 0; offset < size;) {
        size_t n = size - offset < PIECE_BYTES ? (size_t)(size - offset) : PIECE_BYTES;
        gac_status status = gac_checkpoint_read(in, tensor, offset, buffer, n, err);
        if (status == GAC_OK)
            status = visit(context, tensor, offset, buffer, n, err);
        if (status != GAC_OK)
            return status;
        offset += n;
    }
    return GAC_OK;
}

static gac_status add_to_hash(void *context, int32_t tensor, uint64_t offset, const void *data,
                              size_t n_bytes, gac_error *err)
{
    uint64_t *hash = context;
    const unsigned char *bytes = data;
    (void)tensor, (void)offset, (void)err;
    for (size_t i = 0; i < n_bytes; i++)
        *hash = (*hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return GAC_OK;
}

static gac_status list_tensor(gac_checkpoint *in, int32_t index, void *buffer, gac_error *err)
{
    const gac_tensor *tensor = gac_checkpoint_tensor(in, index);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char hash_text[17];
    json_t *shape = json_array();
    json_t *line = NULL;
    gac_status status = for_each_piece(in, index, buffer, add_to_hash, &hash, err);

    snprintf(hash_text, sizeof hash_text, "%016" PRIx64, hash);
    for (int32_t axis = 0; axis < tensor->n_axes; axis++)
        json_array_append_new(shape, json_integer(tensor->shape[axis]));
    line = json_pack("{s:s, s:s, s:O, s:s, s:I, s:s}", "name", tensor->name, "dtype",
                     gac_dtype_name(tensor->dtype), "shape", shape, "file",
                     gac_checkpoint_file_name(in, tensor->file), "offset",
                     (json_int_t)tensor->offset, "fnv", hash_text);
    if (status == GAC_OK && !line)
        status = gac_error_no_memory(err);
    if (status == GAC_OK) {
        json_dumpf(line, stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_decref(line);
    json_decref(shape);
    return status;
}

static gac_status list(const char *path, void *buffer, gac_error *err)
{
    gac_checkpoint *in = NULL;
    gac_status status = gac_checkpoint_open(path, NULL, &in, err);

    for (int32_t i = 0; status == GAC_OK && i < gac_checkpoint_n_tensors(in); i++) {
        if (gac_checkpoint_find(in, gac_checkpoint_tensor(in, i)->name) != i)
            status =
                gac_error_set(err, GAC_CHECK, "tensor %" PRId32 " is not found by its name", i);
        else
            status = list_tensor(in, i, buffer, err);
    }
    gac_checkpoint_close(in);
    return status;
}

static gac_status write_piece(void *context, int32_t tensor, uint64_t offset, const void *data,
                              size_t n_bytes, gac_error *err)
{
    return gac_writer_write(context, tensor, offset, data, n_bytes, err);
}

static gac_status copy_config(const gac_checkpoint *in, gac_writer *out, gac_error *err)
{
    const json_t *config = gac_checkpoint_config(in);
    gac_status status;
    char *text;

    if (!config)
        return GAC_OK;
    text = json_dumps(config, JSON_INDENT(2));
    if (!text)
        return gac_error_no_memory(err);
    status = gac_writer_add_file(out, "config.json", text, strlen(text), err);
    free(text);
    return status;
}

static gac_status rewrite(const char *from, const char *to, uint64_t max_shard_bytes, void *buffer,
                          gac_error *err)
{
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    gac_checkpoint *in = NULL;
    gac_writer *out = NULL;
    gac_status status = gac_checkpoint_open(from, NULL, &in, err);

    if (status != GAC_OK)
        return status;
    options.max_shard_bytes = max_shard_bytes;
    if (gac_checkpoint_n_files(in) > 0)
        options.metadata = gac_checkpoint_metadata(in, 0);
    status = gac_writer_create(to, &options, &out, err);
    for (int32_t i = 0; status == GAC_OK && i < gac_checkpoint_n_tensors(in); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(in, i);
        int32_t index = -1;
        status = gac_writer_add(out, t->name, t->dtype, t->n_axes, t->shape, &index, err);
        if (status == GAC_OK && index != i)
            status =
                gac_error_set(err, GAC_CHECK, "tensor %" PRId32 " got number %" PRId32, i, index);
    }
    if (status == GAC_OK)
        status = gac_writer_layout(out, err);
    /* Backwards, because any order is allowed. */
    for (int32_t i = gac_checkpoint_n_tensors(in); status == GAC_OK && i-- > 0;)
        status = for_each_piece(in, i, buffer, write_piece, out, err);
    if (status == GAC_OK)
        status = copy_config(in, out, err);
    if (status == GAC_OK) {
        status = gac_writer_finish(out, err);
        out = NULL;
    }
    gac_writer_discard(out);
    gac_checkpoint_close(in);
    return status;
}

static bool parse_bytes(const char *text, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_status status = GAC_OK;
    uint64_t max_shard_bytes = GAC_DEFAULT_SHARD_BYTES;
    void *buffer = malloc(PIECE_BYTES);

    if (!buffer)
        status = gac_error_no_memory(&err);
    else if (argc == 3 && strcmp(argv[1], "--list") == 0)
        status = list(argv[2], buffer, &err);
    else if (argc == 3 || (argc == 5 && strcmp(argv[3], "--max-shard-bytes") == 0 &&
                           parse_bytes(argv[4], &max_shard_bytes)))
        status = rewrite(argv[1], argv[2], max_shard_bytes, buffer, &err);
    else
        status = gac_error_set(&err, GAC_USAGE,
                               "usage: rewrite IN OUT [--max-shard-bytes N] | rewrite --list IN");
    if (status == GAC_OK && fflush(stdout) != 0)
        status = gac_error_set(&err, GAC_FAILED, "stdout: %s", strerror(errno));
    if (status != GAC_OK)
        fprintf(stderr, "rewrite: %s\n", err.text);
    free(buffer);
    return (int)status;
}

/* Writes a directory of safetensors files: headers first, bytes in any order. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arguments.h"
#include "base/files.h"
#include "checkpoint/writer_header.h"

typedef struct new_shard {
    const char *name;
    const char *source; /* the file of options.like that gives the permissions; NULL: several */
    json_t *metadata;
} new_shard;

struct gac_writer {
    gac_arena arena;
    gac_new_dir *dir;
    char *path; /* of the target, for messages */
    gac_writer_options options;
    gac_namemap by_name;
    new_tensor *tensors;
    int32_t n_tensors, capacity;
    gac_namemap by_file;
    new_shard *shards;
    int32_t n_shards, shard_capacity;
    bool laid_out;
    bool broken; /* the layout failed halfway */
    bool complete;
    int fd; /* descriptor of the shard last written to, or -1 */
    int32_t fd_shard;
};

static gac_status failed(const gac_writer *w, const char *name, gac_error *err)
{
    char qp[256], qn[160];
    int code = errno;
    if (code == ENOMEM)
        return gac_error_no_memory(err);
    return gac_error_set(err, GAC_FAILED, "%s: %s: %s", gac_quote(qp, sizeof qp, w->path),
                         gac_quote(qn, sizeof qn, name), strerror(code));
}

static gac_status bad_tensor(const char *name, const char *what, gac_error *err)
{
    char q[160];
    return gac_error_set(err, GAC_USAGE, "tensor \"%s\": %s", gac_quote(q, sizeof q, name), what);
}

/* Adds the strings of from (or NULL) to a file's metadata. */
static bool merge_metadata(json_t *into, const json_t *from)
{
    const char *key;
    json_t *value;
    bool ok = into != NULL;
    json_object_foreach((json_t *)from, key, value)
        ok = ok && (strcmp(key, "format") == 0 || json_object_set(into, key, value) == 0);
    return ok;
}

/* Adds a shard. transformers recognises its files by "format". */
static gac_status add_shard(gac_writer *w, const char *name, bool has_source,
                            const json_t *metadata, gac_error *err)
{
    int32_t existing;
    json_t *all = json_pack("{s:s}", "format", "pt");
    const char *copy = gac_arena_strdup(&w->arena, name);
    const json_t *first = w->n_shards == 0 ? w->options.first_metadata : NULL;
    if (!copy || !merge_metadata(all, metadata) || !merge_metadata(all, w->options.metadata) ||
        !merge_metadata(all, first) ||
        !gac_grow((void **)&w->shards, w->n_shards, &w->shard_capacity, sizeof *w->shards)) {
        json_decref(all);
        return gac_error_no_memory(err);
    }
    w->shards[w->n_shards] = (new_shard){ copy, has_source ? copy : NULL, all };
    return gac_namemap_add(&w->by_file, copy, w->n_shards++, &existing, err);
}

/* Sets the permissions of a new file or folder. The owner can always write, so
 * that it can be filled and removed. */
static gac_status set_mode(const gac_writer *w, int fd, const char *name, unsigned mode,
                           gac_error *err)
{
    return !w->options.like || fchmod(fd, mode | 0600) == 0 ? GAC_OK : failed(w, name, err);
}

/* Creates the directory and sets its permissions. It refuses to replace
 * anything but an empty folder or a checkpoint. */
static gac_status create_directory(gac_writer *w, gac_error *err)
{
    bool ours = true;
    gac_status status = w->options.replace ? gac_is_replaceable(w->path, &ours, err) : GAC_OK;
    char q[256];
    if (status == GAC_OK && !ours)
        return gac_error_set(err, GAC_FAILED, "%s: exists and is no checkpoint; remove it first",
                             gac_quote(q, sizeof q, w->path));
    if (status == GAC_OK)
        status = gac_new_dir_create(w->path, w->options.replace, &w->dir, err);
    if (status != GAC_OK || !w->options.like)
        return status;
    unsigned mode = gac_checkpoint_folder_mode(w->options.like) | 0700;
    return chmod(gac_new_dir_path(w->dir), mode) == 0 ? GAC_OK : failed(w, ".", err);
}

gac_status gac_writer_create(const char *path, const gac_writer_options *options, gac_writer **out,
                             gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    static const gac_writer_options defaults = GAC_WRITER_OPTIONS_INIT;
    gac_writer *w = calloc(1, sizeof *w);
    if (!w)
        return gac_error_no_memory(err);
    w->fd = w->fd_shard = -1;
    w->options = options ? *options : defaults;
    json_incref((json_t *)w->options.metadata);
    json_incref((json_t *)w->options.first_metadata);
    w->path = strdup(path);
    gac_status status = w->path ? gac_namemap_init(&w->by_name, err) : gac_error_no_memory(err);
    if (status == GAC_OK && (w->options.max_shard_bytes == 0 || w->options.data_alignment < 8 ||
                             w->options.data_alignment % 8 != 0))
        status = gac_error_set(err, GAC_USAGE, "shard limit or data alignment makes no sense");
    if (status == GAC_OK)
        status = gac_namemap_init(&w->by_file, err);
    if (status == GAC_OK)
        status = create_directory(w, err);
    if (status != GAC_OK) {
        gac_writer_discard(w);
        return status;
    }
    *out = w;
    return GAC_OK;
}

gac_status gac_writer_add(gac_writer *w, const char *name, gac_dtype dtype, int32_t n_axes,
                          const int64_t *shape, int32_t *index, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer, name", w, name);
    GAC_REFUSE(err, (unsigned)dtype >= GAC_DTYPE_COUNT, "there is no such dtype");
    GAC_REFUSE(err, n_axes > 0 && !shape, "shape is NULL");
    int32_t existing;
    int64_t n_elements;
    if (!gac_is_utf8(name, strlen(name)))
        return bad_tensor(name, "its name is not UTF-8", err);
    if (w->laid_out)
        return bad_tensor(name, "the layout is fixed already", err);
    if (strlen(name) > GAC_MAX_NAME_BYTES || strcmp(name, "__metadata__") == 0 || n_axes < 0 ||
        n_axes > GAC_MAX_AXES || w->n_tensors == GAC_MAX_TENSORS)
        return bad_tensor(name, "cannot be a tensor of a checkpoint", err);
    if (!gac_grow((void **)&w->tensors, w->n_tensors, &w->capacity, sizeof *w->tensors))
        return gac_error_no_memory(err);
    new_tensor *t = &w->tensors[w->n_tensors];
    *t = (new_tensor){ .n_axes = n_axes, .dtype = dtype, .shard = -1 };
    if (!gac_tensor_bytes(dtype, n_axes, shape, &n_elements, &t->size_bytes))
        return bad_tensor(name, "its size overflows or fills no whole bytes", err);
    int64_t *sizes = gac_arena_alloc(&w->arena, (size_t)n_axes * sizeof *sizes + 1);
    t->name = gac_arena_strdup(&w->arena, name);
    if (!sizes || !t->name)
        return gac_error_no_memory(err);
    if (n_axes)
        memcpy(sizes, shape, (size_t)n_axes * sizeof *sizes);
    t->shape = sizes;
    gac_status status = gac_namemap_add(&w->by_name, t->name, w->n_tensors, &existing, err);
    if (status != GAC_OK)
        return status;
    if (existing >= 0)
        return bad_tensor(name, "added twice", err);
    if (index)
        *index = w->n_tensors;
    w->n_tensors++;
    return GAC_OK;
}

bool gac_is_file_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

gac_status gac_writer_set_file(gac_writer *w, int32_t tensor, const char *file,
                               const struct json_t *metadata, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer, file", w, file);
    GAC_REFUSE(err, tensor < 0 || tensor >= w->n_tensors, "there is no such tensor");
    if (w->laid_out)
        return bad_tensor(w->tensors[tensor].name, "the layout is fixed already", err);
    if (!gac_is_file_name(file))
        return bad_tensor(w->tensors[tensor].name, "its file has no proper name", err);
    int32_t shard = gac_namemap_find(&w->by_file, file);
    gac_status status = GAC_OK;
    if (shard < 0) {
        shard = w->n_shards;
        status = add_shard(w, file, true, metadata, err);
    }
    w->tensors[tensor].shard = shard;
    return status;
}

const char *gac_writer_directory(const gac_writer *w)
{
    return gac_new_dir_path(w->dir);
}

/* Creates a file with the permissions of source, as gac_checkpoint_file_mode
 * gives them. */
static gac_status create_inside(const gac_writer *w, const char *name, const char *source, int *fd,
                                gac_error *err)
{
    char *path;
    if (asprintf(&path, "%s/%s", gac_new_dir_path(w->dir), name) < 0)
        return gac_error_no_memory(err);
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    free(path);
    if (*fd < 0)
        return failed(w, name, err);
    unsigned mode = 0;
    gac_status status = GAC_OK;
    if (w->options.like)
        status = gac_checkpoint_file_mode(w->options.like, source, &mode, err);
    return status == GAC_OK ? set_mode(w, *fd, name, mode, err) : status;
}

static gac_status write_all(const gac_writer *w, int fd, const char *name, uint64_t offset,
                            const void *data, size_t n_bytes, gac_error *err)
{
    const char *from = data;
    while (n_bytes) {
        ssize_t put = pwrite(fd, from, n_bytes < (1u << 30) ? n_bytes : (1u << 30), (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return failed(w, name, err);
        from += put;
        offset += (uint64_t)put;
        n_bytes -= (size_t)put;
    }
    return GAC_OK;
}

static gac_status write_shard(gac_writer *w, const new_shard *shard, new_tensor **tensors,
                              int32_t n, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    int fd = -1;
    gac_status status = gac_header_make(shard->metadata, w->options.data_alignment, tensors, n,
                                        &text, &n_bytes, err);
    if (status == GAC_OK)
        status = create_inside(w, shard->name, shard->source, &fd, err);
    uint64_t size = n_bytes;
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        if (!gac_add_u64(size, tensors[i]->size_bytes, &size) || size > INT64_MAX)
            status = bad_tensor(tensors[i]->name, "the shard's size overflows", err);
    if (status == GAC_OK && ftruncate(fd, (off_t)size) != 0)
        status = failed(w, shard->name, err);
    if (status == GAC_OK)
        status = write_all(w, fd, shard->name, 0, text, n_bytes, err);
    if (fd >= 0 && close(fd) != 0 && status == GAC_OK)
        status = failed(w, shard->name, err);
    free(text);
    return status;
}

/* Returns the first tensor behind the shard that starts at first. A shard has
 * at least one tensor, and is filled in order until the next tensor would
 * exceed the limit. */
static int32_t shard_end(const gac_writer *w, int32_t first)
{
    uint64_t sum = 0;
    int32_t i = first;
    for (; i < w->n_tensors; i++) {
        uint64_t next;
        if (!gac_add_u64(sum, w->tensors[i].size_bytes, &next) ||
            (i > first && next > w->options.max_shard_bytes))
            break;
        sum = next;
    }
    return i;
}

/* Fills shards in order. They are numbered as Hugging Face does. */
static gac_status assign_shards(gac_writer *w, gac_error *err)
{
    char name[64];
    int32_t n = 0;
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < w->n_tensors; i = shard_end(w, i))
        n++;
    if (n <= 1)
        status = add_shard(w, GAC_SINGLE_NAME, false, NULL, err);
    for (int32_t shard = 0; shard < n && n > 1 && status == GAC_OK; shard++) {
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, n);
        status = add_shard(w, name, false, NULL, err);
    }
    int32_t first = 0;
    for (int32_t shard = 0; shard < n && status == GAC_OK; shard++)
        for (int32_t end = shard_end(w, first); first < end; first++)
            w->tensors[first].shard = shard;
    return status;
}

static int by_dtype_and_name(const void *a, const void *b)
{
    const new_tensor *x = *(new_tensor *const *)a, *y = *(new_tensor *const *)b;
    int difference = gac_dtype_bits(y->dtype) - gac_dtype_bits(x->dtype);
    return difference ? difference : strcmp(x->name, y->name);
}

/* Lists the tensors of a shard in the order of their data. The caller frees
 * *out. */
static gac_status shard_tensors(gac_writer *w, int32_t shard, new_tensor ***out, int32_t *n,
                                gac_error *err)
{
    *n = 0;
    *out = calloc((size_t)w->n_tensors + 1, sizeof **out);
    if (!*out)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < w->n_tensors; i++)
        if (w->tensors[i].shard == shard)
            (*out)[(*n)++] = &w->tensors[i];
    qsort(*out, (size_t)*n, sizeof **out, by_dtype_and_name);
    return GAC_OK;
}

static gac_status write_shards(gac_writer *w, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int32_t shard = 0; shard < w->n_shards && status == GAC_OK; shard++) {
        int32_t n;
        new_tensor **tensors = NULL;
        status = shard_tensors(w, shard, &tensors, &n, err);
        if (status == GAC_OK)
            status = write_shard(w, &w->shards[shard], tensors, n, err);
        free(tensors);
    }
    return status;
}

/* Writes the header of the open shard again. Its length stays the same. */
static gac_status rewrite_header(gac_writer *w, int32_t shard, gac_error *err)
{
    int32_t n;
    char *header = NULL;
    size_t n_bytes;
    new_tensor **tensors = NULL;
    gac_status status = shard_tensors(w, shard, &tensors, &n, err);
    if (status == GAC_OK)
        status = gac_header_make(w->shards[shard].metadata, w->options.data_alignment, tensors, n,
                                 &header, &n_bytes, err);
    if (status == GAC_OK)
        status = write_all(w, w->fd, w->shards[shard].name, 0, header, n_bytes, err);
    free(header);
    free(tensors);
    return status;
}

gac_status gac_writer_layout(gac_writer *w, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    if (w->laid_out)
        return gac_error_set(err, GAC_USAGE, "the layout is fixed already");
    gac_status status = GAC_OK;
    if (w->n_shards == 0)
        status = assign_shards(w, err);
    for (int32_t i = 0; i < w->n_tensors && status == GAC_OK; i++)
        if (w->tensors[i].shard < 0)
            status = bad_tensor(w->tensors[i].name, "has no file, but other tensors have one", err);
    w->laid_out = true;
    if (status == GAC_OK)
        status = write_shards(w, err);
    w->broken = status != GAC_OK;
    return status;
}

static gac_status open_shard(gac_writer *w, int32_t shard, gac_error *err)
{
    char *path;
    if (w->fd_shard == shard)
        return GAC_OK;
    int before = w->fd;
    w->fd = w->fd_shard = -1;
    if (before >= 0 && close(before) != 0)
        return failed(w, w->shards[shard].name, err);
    if (asprintf(&path, "%s/%s", gac_new_dir_path(w->dir), w->shards[shard].name) < 0)
        return gac_error_no_memory(err);
    w->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    free(path);
    if (w->fd < 0)
        return failed(w, w->shards[shard].name, err);
    w->fd_shard = shard;
    return GAC_OK;
}

/* Prepares for writing n_bytes at offset of a tensor, and counts them. */
static gac_status begin_write(gac_writer *w, new_tensor *t, uint64_t offset, uint64_t n_bytes,
                              gac_error *err)
{
    if (!w->laid_out)
        return bad_tensor(t->name, "written before the layout", err);
    if (offset > t->size_bytes || n_bytes > t->size_bytes - offset)
        return bad_tensor(t->name, "written beyond its end", err);
    t->n_written += n_bytes;
    return open_shard(w, t->shard, err);
}

gac_status gac_writer_write(gac_writer *w, int32_t tensor, uint64_t offset, const void *data,
                            size_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    GAC_REFUSE(err, n_bytes > 0 && !data, "data is NULL");
    GAC_REFUSE(err, tensor < 0 || tensor >= w->n_tensors, "there is no such tensor");
    new_tensor *t = &w->tensors[tensor];
    gac_status status = begin_write(w, t, offset, n_bytes, err);
    if (status == GAC_OK)
        status = write_all(w, w->fd, t->name, t->offset + offset, data, n_bytes, err);
    w->broken = w->broken || (status != GAC_OK && w->laid_out && status != GAC_USAGE);
    return status;
}

gac_status gac_writer_copy(gac_writer *w, int32_t tensor, uint64_t offset,
                           gac_checkpoint *checkpoint, int32_t from, uint64_t from_offset,
                           uint64_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer, checkpoint", w, checkpoint);
    GAC_REFUSE(err,
               tensor < 0 || tensor >= w->n_tensors || from < 0 ||
                   from >= gac_checkpoint_n_tensors(checkpoint),
               "there is no such tensor");
    new_tensor *t = &w->tensors[tensor];
    gac_status status = begin_write(w, t, offset, n_bytes, err);
    if (status == GAC_OK)
        status = gac_checkpoint_copy(checkpoint, from, from_offset, w->fd, t->offset + offset,
                                     n_bytes, err);
    w->broken = w->broken || (status != GAC_OK && w->laid_out && status != GAC_USAGE);
    return status;
}

gac_status gac_writer_read_back(gac_writer *w, int32_t tensor, uint64_t offset, void *buffer,
                                size_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    GAC_REFUSE(err, n_bytes > 0 && !buffer, "buffer is NULL");
    GAC_REFUSE(err, tensor < 0 || tensor >= w->n_tensors, "there is no such tensor");
    new_tensor *t = &w->tensors[tensor];
    uint64_t before = t->n_written;
    gac_status status = begin_write(w, t, offset, n_bytes, err);
    t->n_written = before;
    if (status != GAC_OK)
        return status;
    ssize_t got = pread(w->fd, buffer, n_bytes, (off_t)(t->offset + offset));
    return got == (ssize_t)n_bytes ? GAC_OK : failed(w, t->name, err);
}

gac_status gac_writer_rewrite(gac_writer *w, int32_t tensor, uint64_t offset, const void *data,
                              size_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    GAC_REFUSE(err, n_bytes > 0 && !data, "data is NULL");
    GAC_REFUSE(err, tensor < 0 || tensor >= w->n_tensors, "there is no such tensor");
    new_tensor *t = &w->tensors[tensor];
    uint64_t before = t->n_written;
    gac_status status = gac_writer_write(w, tensor, offset, data, n_bytes, err);
    t->n_written = before;
    return status;
}

gac_status gac_writer_leave_zero(gac_writer *w, int32_t tensor, uint64_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    GAC_REFUSE(err, tensor < 0 || tensor >= w->n_tensors, "there is no such tensor");
    new_tensor *t = &w->tensors[tensor];
    if (!w->laid_out || n_bytes > t->size_bytes)
        return bad_tensor(t->name, "more zeros than it has bytes", err);
    t->n_written += n_bytes;
    return GAC_OK;
}

gac_status gac_writer_add_file(gac_writer *w, const char *name, const void *data, size_t n_bytes,
                               gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer, name", w, name);
    GAC_REFUSE(err, n_bytes > 0 && !data, "data is NULL");
    char q[160];
    int fd = -1;
    if (!gac_is_file_name(name))
        return gac_error_set(err, GAC_USAGE, "\"%s\" is not a file name",
                             gac_quote(q, sizeof q, name));
    gac_status status = create_inside(w, name, name, &fd, err);
    if (status == GAC_OK)
        status = write_all(w, fd, name, 0, data, n_bytes, err);
    if (fd >= 0 && close(fd) != 0 && status == GAC_OK)
        status = failed(w, name, err);
    return status;
}

gac_status gac_writer_replace_metadata(gac_writer *w, const char *key, const char *text,
                                       gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer, key, text", w, key, text);
    char q[160];
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < w->n_shards && status == GAC_OK; i++) {
        const json_t *before = json_object_get(w->shards[i].metadata, key);
        if (!before)
            continue;
        if (json_string_length(before) != strlen(text))
            return gac_error_set(err, GAC_USAGE, "\"%s\": metadata cannot change its length",
                                 gac_quote(q, sizeof q, key));
        status = open_shard(w, i, err);
        if (status == GAC_OK &&
            json_object_set_new(w->shards[i].metadata, key, json_string(text)) != 0)
            status = gac_error_no_memory(err);
        if (status == GAC_OK)
            status = rewrite_header(w, i, err);
    }
    return status;
}

static gac_status write_index(gac_writer *w, gac_error *err)
{
    uint64_t total = 0;
    json_t *map = json_object();
    for (int32_t i = 0; i < w->n_tensors; i++) {
        const char *name = w->shards[w->tensors[i].shard].name;
        json_object_set_new(map, w->tensors[i].name, json_string(name));
        total += w->tensors[i].size_bytes;
    }
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_json_text(index, JSON_INDENT(2), &text, &n_bytes, err);
    if (status == GAC_OK)
        status = gac_writer_add_file(w, GAC_INDEX_NAME, text, n_bytes, err);
    free(text);
    json_decref(index);
    return status;
}

/* Returns whether an index is needed: a single file is found without one only by its usual name. */
static bool needs_index(const gac_writer *w)
{
    const char *name = w->n_shards ? w->shards[0].name : GAC_SINGLE_NAME;
    return w->n_shards > 1 || (strcmp(name, GAC_SINGLE_NAME) && strcmp(name, GAC_ADAPTER_NAME));
}

gac_status gac_writer_complete(gac_writer *w, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    gac_status status = GAC_OK;
    if (!w->laid_out || w->broken)
        status = gac_error_set(err, GAC_USAGE, "%s: finished %s the layout", w->path,
                               w->broken ? "without" : "before");
    for (int32_t i = 0; i < w->n_tensors && status == GAC_OK; i++)
        if (w->tensors[i].n_written != w->tensors[i].size_bytes)
            status = bad_tensor(w->tensors[i].name, "not all of its bytes were written", err);
    if (status == GAC_OK && needs_index(w))
        status = write_index(w, err);
    int fd = w->fd;
    w->fd = w->fd_shard = -1;
    if (fd >= 0 && close(fd) != 0 && status == GAC_OK)
        status = failed(w, "the last file", err);
    w->complete = status == GAC_OK;
    return status;
}

gac_status gac_writer_finish(gac_writer *w, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "writer", w);
    gac_status status = w->complete ? GAC_OK : gac_writer_complete(w, err);
    if (status == GAC_OK) {
        gac_new_dir *dir = w->dir;
        w->dir = NULL;
        status = gac_new_dir_commit(dir, !w->options.no_sync, err);
    }
    gac_writer_discard(w);
    return status;
}

void gac_writer_discard(gac_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    gac_new_dir_discard(w->dir);
    gac_namemap_dispose(&w->by_name);
    gac_namemap_dispose(&w->by_file);
    json_decref((json_t *)w->options.metadata);
    json_decref((json_t *)w->options.first_metadata);
    for (int32_t i = 0; i < w->n_shards; i++)
        json_decref(w->shards[i].metadata);
    free(w->shards);
    free(w->tensors);
    free(w->path);
    gac_arena_free(&w->arena);
    free(w);
}

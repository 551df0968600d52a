#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arguments.h"
#include "base/files.h"
#include "checkpoint/checkpoint_internal.h"

gac_status gac_checkpoint_add_note(gac_checkpoint *c, const char *note, gac_error *err)
{
    if (!gac_grow((void **)&c->notes, c->n_notes, &c->note_capacity, sizeof *c->notes))
        return gac_error_no_memory(err);
    c->notes[c->n_notes++] = note;
    return GAC_OK;
}

/* Finds whether directory has an entry with this name. It is an error if that
 * cannot be determined. */
static gac_status look_inside(const char *directory, const char *name, bool *found, gac_error *err)
{
    char *path;
    struct stat s;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return gac_error_no_memory(err);
    *found = lstat(path, &s) == 0;
    gac_status status = *found || errno == ENOENT ? GAC_OK : gac_error_errno(err, path);
    free(path);
    return status;
}

/* The content of a directory, as far as it matters for finding the weights. */
typedef struct listing {
    int n_entries; /* includes "." and ".." */
    int n_safetensors, n_torch;
    char safetensors[256]; /* the name of one */
    char torch[256];       /* the same of the files of torch.save */
    char foreign[256];     /* a weight file in a format we do not read */
} listing;

static gac_status list_directory(const char *path, listing *out, gac_error *err)
{
    memset(out, 0, sizeof *out);
    DIR *stream = opendir(path);
    if (!stream)
        return gac_error_errno(err, path);
    struct dirent *entry;
    while (errno = 0, (entry = readdir(stream))) {
        out->n_entries++;
        if (gac_has_suffix(entry->d_name, ".safetensors")) {
            out->n_safetensors++;
            snprintf(out->safetensors, sizeof out->safetensors, "%s", entry->d_name);
        }
        if (gac_is_torch_weights(entry->d_name)) {
            out->n_torch++;
            snprintf(out->torch, sizeof out->torch, "%s", entry->d_name);
        } else if (gac_is_foreign_weights(entry->d_name))
            snprintf(out->foreign, sizeof out->foreign, "%s", entry->d_name);
    }
    gac_status status = errno ? gac_error_errno(err, path) : GAC_OK;
    closedir(stream);
    return status;
}

static gac_status open_single(gac_checkpoint *c, const char *name, gac_error *err)
{
    gac_file *file;
    gac_status status = gac_file_open_inside(c->path, name, &file, err);
    return status == GAC_OK ? gac_weights_read(c, name, file, err) : status;
}

static gac_status open_index(gac_checkpoint *c, const char *name,
                             const gac_checkpoint_options *options, gac_error *err)
{
    gac_file *index;
    gac_status status = gac_file_open_inside(c->path, name, &index, err);
    if (status != GAC_OK)
        return status;
    status = gac_index_read(c, index, options, err);
    gac_file_close(index);
    return status;
}

/* Opens the weights of one format by their usual names, if they are there: a
 * single file comes before an index. */
static gac_status open_usual(gac_checkpoint *c, const char *single, const char *index,
                             const gac_checkpoint_options *options, bool *found, gac_error *err)
{
    bool has_single = false, has_index = false;
    gac_status status = look_inside(c->path, single, &has_single, err);
    if (status == GAC_OK)
        status = look_inside(c->path, index, &has_index, err);
    *found = has_single || has_index;
    if (status == GAC_OK && has_single)
        status = open_single(c, single, err);
    if (status == GAC_OK && has_single && has_index) {
        const char *note =
            gac_arena_printf(&c->arena, "%s is left aside: %s comes first", index, single);
        status = note ? gac_checkpoint_add_note(c, note, err) : gac_error_no_memory(err);
    }
    return status == GAC_OK && has_index && !has_single ? open_index(c, index, options, err)
                                                        : status;
}

/* Says what a directory lacks. */
static gac_status no_weights(const gac_checkpoint *c, const listing *found, gac_error *err)
{
    char q[256], qf[160];
    gac_quote(q, sizeof q, c->path);
    if (found->n_safetensors > 1)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %d safetensors files and no %s", q,
                             found->n_safetensors, GAC_INDEX_NAME);
    if (found->n_torch > 1)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %d torch files and no %s", q, found->n_torch,
                             GAC_TORCH_INDEX_NAME);
    if (found->foreign[0])
        return gac_error_set(err, GAC_BAD_INPUT,
                             "%s: no safetensors or torch file; %s must be converted to "
                             "safetensors first",
                             q, gac_quote(qf, sizeof qf, found->foreign));
    return gac_error_set(err, GAC_BAD_INPUT, "%s: no safetensors or torch file", q);
}

/* Opens the files that hold the weights. transformers' rules come first.
 * Otherwise a directory may have exactly one safetensors file of any name, or
 * exactly one torch file. */
static gac_status open_directory(gac_checkpoint *c, const gac_checkpoint_options *options,
                                 gac_error *err)
{
    listing list;
    bool found = false;
    gac_status status = list_directory(c->path, &list, err);
    if (status == GAC_OK)
        status = open_usual(c, GAC_SINGLE_NAME, GAC_INDEX_NAME, options, &found, err);
    if (status == GAC_OK && !found)
        status = open_usual(c, GAC_TORCH_SINGLE_NAME, GAC_TORCH_INDEX_NAME, options, &found, err);
    if (status != GAC_OK || found)
        return status;
    if (list.n_safetensors == 1)
        return open_single(c, list.safetensors, err);
    if (list.n_safetensors == 0 && list.n_torch == 1)
        return open_single(c, list.torch, err);
    return no_weights(c, &list, err);
}

/* Opens a single file. A config beside it describes it. */
static gac_status open_file(gac_checkpoint *c, gac_error *err)
{
    gac_file *file;
    const char *slash = strrchr(c->path, '/');
    gac_status status = gac_file_open(c->path, &file, err);
    return status == GAC_OK ? gac_weights_read(c, slash ? slash + 1 : c->path, file, err) : status;
}

gac_status gac_checkpoint_config_file(const gac_checkpoint *c, gac_file **out, gac_error *err)
{
    bool found = false;
    const char *slash = strrchr(c->path, '/');
    char *directory = c->is_directory    ? strdup(c->path)
                      : !slash           ? strdup(".")
                      : slash == c->path ? strdup("/")
                                         : strndup(c->path, (size_t)(slash - c->path));
    *out = NULL;
    if (!directory)
        return gac_error_no_memory(err);
    gac_status status = look_inside(directory, gac_checkpoint_config_name(c), &found, err);
    if (found)
        status = gac_file_open_inside(directory, gac_checkpoint_config_name(c), out, err);
    free(directory);
    return status;
}

static gac_status read_config(gac_checkpoint *c, gac_error *err)
{
    char q[256];
    gac_file *file = NULL;
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_checkpoint_config_file(c, &file, err);
    if (status != GAC_OK || !file)
        return status;
    status = gac_file_slurp(file, GAC_MAX_CONFIG_BYTES, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = gac_json_parse_exact(text, n_bytes, gac_file_path(file), &c->config_exact, err);
    if (status == GAC_OK && !(c->config = gac_json_rounded(c->config_exact)))
        status = gac_error_no_memory(err);
    free(text);
    if (status == GAC_OK && !json_is_object(c->config))
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: not a JSON object",
                               gac_quote(q, sizeof q, gac_file_path(file)));
    gac_file_close(file);
    return status;
}

gac_status gac_checkpoint_open(const char *path, const gac_checkpoint_options *options,
                               gac_checkpoint **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    struct stat s;
    if (!*path)
        return gac_error_set(err, GAC_USAGE, "the path is empty");
    if (stat(path, &s) != 0)
        return gac_error_errno(err, path);
    gac_checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return gac_error_no_memory(err);
    c->reading = -1;
    pthread_mutex_init(&c->map_lock, NULL);
    c->is_directory = S_ISDIR(s.st_mode);
    c->mode = s.st_mode & 0777;
    c->path = gac_arena_strdup(&c->arena, path);
    gac_status status = c->path ? gac_namemap_init(&c->by_name, err) : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = c->is_directory ? open_directory(c, options, err) : open_file(c, err);
    if (status == GAC_OK)
        status = read_config(c, err);
    if (status != GAC_OK) {
        gac_checkpoint_close(c);
        return status;
    }
    gac_log_write(options ? options->log : NULL, 1, "%s: %d tensors in %d file%s", path,
                  c->n_tensors, c->n_files, c->n_files == 1 ? "" : "s");
    *out = c;
    return GAC_OK;
}

gac_status gac_is_replaceable(const char *path, bool *out, gac_error *err)
{
    struct stat s;
    listing found;
    gac_error why = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    *out = true;
    if (lstat(path, &s) != 0)
        return errno == ENOENT ? GAC_OK : gac_error_errno(err, path);
    if (!S_ISDIR(s.st_mode))
        return GAC_OK; /* creating the target will report the error */
    gac_status status = list_directory(path, &found, err);
    if (status != GAC_OK || found.n_entries <= 2)
        return status;
    status = gac_checkpoint_open(path, NULL, &checkpoint, &why);
    gac_checkpoint_close(checkpoint);
    *out = status == GAC_OK;
    return status == GAC_OK || status == GAC_BAD_INPUT ? GAC_OK
                                                       : gac_error_set(err, status, "%s", why.text);
}

struct aligned_copy {
    struct aligned_copy *next;
    int32_t tensor;
    max_align_t data[];
};

static void free_copies(struct aligned_copy *copy)
{
    while (copy) {
        struct aligned_copy *next = copy->next;
        free(copy);
        copy = next;
    }
}

void gac_checkpoint_close(gac_checkpoint *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < c->n_files; i++) {
        gac_file_close(c->files[i].file);
        json_decref(c->files[i].metadata);
        free_copies(c->files[i].copies);
    }
    json_decref(c->config);
    json_decref(c->config_exact);
    gac_namemap_dispose(&c->by_name);
    free(c->files);
    free(c->tensors);
    free(c->notes);
    gac_arena_free(&c->arena);
    pthread_mutex_destroy(&c->map_lock);
    free(c);
}

const char *gac_checkpoint_path(const gac_checkpoint *c)
{
    return c->path;
}

bool gac_checkpoint_is_directory(const gac_checkpoint *c)
{
    return c->is_directory;
}

/* Gets the permissions of a file beside the tensors. *out stays unchanged if
 * there is none. */
static gac_status mode_beside(const gac_checkpoint *c, const char *name, unsigned *out,
                              gac_error *err)
{
    struct stat s;
    char *path;
    const char *slash = strrchr(c->path, '/');
    int n_folder = slash ? (int)(slash + 1 - c->path) : 0;
    int made = c->is_directory ? asprintf(&path, "%s/%s", c->path, name)
                               : asprintf(&path, "%.*s%s", n_folder, c->path, name);
    if (made < 0)
        return gac_error_no_memory(err);
    bool found = stat(path, &s) == 0;
    gac_status status = found || errno == ENOENT ? GAC_OK : gac_error_errno(err, path);
    if (found)
        *out = s.st_mode & 0777;
    free(path);
    return status;
}

gac_status gac_checkpoint_file_mode(const gac_checkpoint *c, const char *name, unsigned *out,
                                    gac_error *err)
{
    *out = c->n_files > 0 ? 0777 : 0666;
    for (int32_t i = 0; i < c->n_files; i++) {
        unsigned mode = gac_file_mode(c->files[i].file);
        if (name && strcmp(c->files[i].name, name) == 0) {
            *out = mode;
            return GAC_OK;
        }
        *out &= mode;
    }
    return name ? mode_beside(c, name, out, err) : GAC_OK;
}

unsigned gac_checkpoint_folder_mode(const gac_checkpoint *c)
{
    /* Everybody who may read a single file may also enter the folder made from
     * it. */
    return c->is_directory ? c->mode : c->mode | (c->mode & 0444) >> 2;
}

bool gac_checkpoint_is_torch(const gac_checkpoint *c)
{
    return c->is_torch;
}

int32_t gac_checkpoint_n_tensors(const gac_checkpoint *c)
{
    return c->n_tensors;
}

static bool is_index(int32_t index, int32_t n)
{
    return index >= 0 && index < n;
}

const gac_tensor *gac_checkpoint_tensor(const gac_checkpoint *c, int32_t index)
{
    return is_index(index, c->n_tensors) ? &c->tensors[index] : NULL;
}

int32_t gac_checkpoint_find(const gac_checkpoint *c, const char *name)
{
    return gac_namemap_find(&c->by_name, name);
}

int64_t gac_checkpoint_n_params(const gac_checkpoint *c)
{
    return c->n_params;
}

uint64_t gac_checkpoint_size_bytes(const gac_checkpoint *c)
{
    return c->size_bytes;
}

int32_t gac_checkpoint_n_files(const gac_checkpoint *c)
{
    return c->n_files;
}

const char *gac_checkpoint_file_name(const gac_checkpoint *c, int32_t file)
{
    return is_index(file, c->n_files) ? c->files[file].name : NULL;
}

uint64_t gac_checkpoint_file_size(const gac_checkpoint *c, int32_t file)
{
    return is_index(file, c->n_files) ? gac_file_size(c->files[file].file) : 0;
}

uint64_t gac_checkpoint_data_start(const gac_checkpoint *c, int32_t file)
{
    return is_index(file, c->n_files) ? c->files[file].data_start : 0;
}

const struct json_t *gac_checkpoint_metadata(const gac_checkpoint *c, int32_t file)
{
    return is_index(file, c->n_files) ? c->files[file].metadata : NULL;
}

bool gac_checkpoint_is_adapter(const gac_checkpoint *c)
{
    return c->is_adapter;
}

const char *gac_checkpoint_config_name(const gac_checkpoint *c)
{
    return c->is_adapter ? "adapter_config.json" : "config.json";
}

const struct json_t *gac_checkpoint_config(const gac_checkpoint *c)
{
    return c->config;
}

const struct json_t *gac_checkpoint_config_exact(const gac_checkpoint *c)
{
    return c->config_exact;
}

int32_t gac_checkpoint_n_notes(const gac_checkpoint *c)
{
    return c->n_notes;
}

const char *gac_checkpoint_note(const gac_checkpoint *c, int32_t index)
{
    return is_index(index, c->n_notes) ? c->notes[index] : NULL;
}

static gac_status no_data(const gac_tensor *t, gac_error *err)
{
    char q[160];
    return gac_error_set(err, GAC_USAGE, "tensor \"%s\": a sketch has no data",
                         gac_quote(q, sizeof q, t->name));
}

/* Prepares for reading a part of a tensor. Only one file has an open
 * descriptor, so the previous file is parked. */
static gac_status turn_to(gac_checkpoint *c, const gac_tensor *t, uint64_t offset, uint64_t n_bytes,
                          gac_error *err)
{
    char q[160];
    if (t->file < 0)
        return no_data(t, err);
    if (offset > t->size_bytes || n_bytes > t->size_bytes - offset)
        return gac_error_set(err, GAC_USAGE, "tensor \"%s\": %llu bytes at %llu are beyond its end",
                             gac_quote(q, sizeof q, t->name), (unsigned long long)n_bytes,
                             (unsigned long long)offset);
    if (c->reading != t->file && c->reading >= 0)
        gac_file_park(c->files[c->reading].file);
    c->reading = t->file;
    return GAC_OK;
}

static gac_status read_strided(const gac_checkpoint *c, const gac_tensor *t, uint64_t offset,
                               void *buffer, size_t n_bytes, gac_error *err)
{
    const void *file;
    if (n_bytes == 0)
        return GAC_OK;
    gac_status status = gac_file_map(c->files[t->file].file, &file, err);
    if (status == GAC_OK)
        gac_strided_read(t, file, offset, buffer, n_bytes);
    return status;
}

gac_status gac_checkpoint_read(gac_checkpoint *c, int32_t tensor, uint64_t offset, void *buffer,
                               size_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint", c);
    GAC_REFUSE(err, n_bytes > 0 && !buffer, "buffer is NULL");
    GAC_REFUSE(err, tensor < 0 || tensor >= c->n_tensors, "there is no such tensor");
    const gac_tensor *t = &c->tensors[tensor];
    gac_status status = turn_to(c, t, offset, n_bytes, err);
    if (status != GAC_OK)
        return status;
    if (t->strides)
        return read_strided(c, t, offset, buffer, n_bytes, err);
    return gac_file_read(c->files[t->file].file, t->offset + offset, buffer, n_bytes, err);
}

/* Returns a copy of a tensor that is not aligned in its file, or whose elements
 * are not in order there. The first call creates it. */
static gac_status copy_tensor(checkpoint_file *file, int32_t tensor, const gac_tensor *t,
                              const void *start, const void **data, gac_error *err)
{
    struct aligned_copy *copy = file->copies;
    while (copy && copy->tensor != tensor)
        copy = copy->next;
    if (!copy) {
        copy = malloc(sizeof *copy + t->size_bytes);
        if (!copy)
            return gac_error_no_memory(err);
        if (t->strides)
            gac_strided_read(t, start, 0, copy->data, t->size_bytes);
        else
            memcpy(copy->data, (const char *)start + t->offset, t->size_bytes);
        copy->tensor = tensor;
        copy->next = file->copies;
        file->copies = copy;
    }
    *data = copy->data;
    return GAC_OK;
}

static gac_status map_tensor(const gac_checkpoint *c, int32_t tensor, const void **data,
                             gac_error *err)
{
    const gac_tensor *t = &c->tensors[tensor];
    const void *start;
    if (t->file < 0)
        return no_data(t, err);
    checkpoint_file *file = &c->files[t->file];
    gac_status status = gac_file_map(file->file, &start, err);
    if (status != GAC_OK)
        return status;
    /* A map needs no descriptor, and a process has few. */
    if (c->reading != t->file)
        gac_file_park(file->file);
    *data = (const char *)start + t->offset;
    int bytes = gac_dtype_bits(t->dtype) / 8;
    if (t->strides || (bytes > 1 && (uintptr_t)*data % (uintptr_t)bytes != 0))
        return copy_tensor(file, tensor, t, start, data, err);
    return GAC_OK;
}

gac_status gac_checkpoint_map(const gac_checkpoint *c, int32_t tensor, const void **data,
                              gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint, data", c, data);
    GAC_REFUSE(err, tensor < 0 || tensor >= c->n_tensors, "there is no such tensor");
    /* Mapping is invisible to the caller, so the checkpoint is const. The lock
     * protects the maps. */
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&c->map_lock;
    pthread_mutex_lock(lock);
    gac_status status = map_tensor(c, tensor, data, err);
    pthread_mutex_unlock(lock);
    return status;
}

/* Copies part of a tensor with strides, piece by piece. */
static gac_status copy_strided(const gac_checkpoint *c, const gac_tensor *t, uint64_t offset,
                               int to, uint64_t to_offset, uint64_t n_bytes, gac_error *err)
{
    enum { BUFFER_BYTES = 1 << 20 };
    char *buffer = malloc(BUFFER_BYTES);
    gac_status status = buffer ? GAC_OK : gac_error_no_memory(err);
    while (n_bytes && status == GAC_OK) {
        size_t n = n_bytes < BUFFER_BYTES ? (size_t)n_bytes : BUFFER_BYTES;
        status = read_strided(c, t, offset, buffer, n, err);
        for (size_t done = 0; done < n && status == GAC_OK;) {
            ssize_t put = pwrite(to, buffer + done, n - done, (off_t)(to_offset + done));
            if (put < 0 && errno != EINTR)
                status = gac_error_set(err, GAC_FAILED, "cannot write: %s", strerror(errno));
            done += put > 0 ? (size_t)put : 0;
        }
        offset += n;
        to_offset += n;
        n_bytes -= n;
    }
    free(buffer);
    return status;
}

gac_status gac_checkpoint_copy(gac_checkpoint *c, int32_t tensor, uint64_t offset, int to,
                               uint64_t to_offset, uint64_t n_bytes, gac_error *err)
{
    const gac_tensor *t = &c->tensors[tensor];
    gac_status status = turn_to(c, t, offset, n_bytes, err);
    if (status != GAC_OK)
        return status;
    if (t->strides)
        return copy_strided(c, t, offset, to, to_offset, n_bytes, err);
    return gac_file_copy(c->files[t->file].file, t->offset + offset, to, to_offset, n_bytes, err);
}

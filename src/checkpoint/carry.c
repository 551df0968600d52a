/* Copies the other files of a checkpoint's directory: tokenizer, licence,
 * generation config. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arguments.h"
#include "base/files.h"
#include "checkpoint/checkpoint_internal.h"

/* Limit of nested folders. No real repository is that deep. */
enum { MAX_DEPTH = 16 };

bool gac_has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

bool gac_is_foreign_weights(const char *name)
{
    static const char *const suffixes[] = { ".bin", ".pt",      ".pth", ".ckpt", ".gguf",
                                            ".h5",  ".msgpack", ".ot",  ".onnx", NULL };
    for (int i = 0; suffixes[i]; i++)
        if (gac_has_suffix(name, suffixes[i]) && !gac_has_suffix(name, "tokenizer.bin"))
            return true;
    return false;
}

bool gac_is_torch_weights(const char *name)
{
    static const char *const others[] = { "optimizer", "scheduler",     "scaler",
                                          "rng_state", "training_args", NULL };
    for (int i = 0; others[i]; i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return false;
    return (gac_has_suffix(name, ".bin") || gac_has_suffix(name, ".pt") ||
            gac_has_suffix(name, ".pth")) &&
           gac_is_foreign_weights(name);
}

bool gac_is_weights(const char *name)
{
    const char *slash = strrchr(name, '/');
    name = slash ? slash + 1 : name;
    return gac_is_foreign_weights(name) || gac_has_suffix(name, ".safetensors") ||
           gac_has_suffix(name, ".index.json");
}

/* A walk over the files below a directory. */
typedef struct walk {
    const char *root;
    gac_file_visit visit;
    void *user;
} walk;

static gac_status walk_folder(const walk *w, const char *inside, int depth, gac_error *err);

/* Examines path and follows a link. A link without a target is an error. */
static gac_status look_at(const char *path, struct stat *s, bool *link, gac_error *err)
{
    char q[256];
    if (lstat(path, s) != 0)
        return gac_error_errno(err, path);
    *link = S_ISLNK(s->st_mode);
    if (!*link || stat(path, s) == 0)
        return GAC_OK;
    return errno != ENOENT ? gac_error_errno(err, path)
                           : gac_error_set(err, GAC_BAD_INPUT, "%s: a link that leads nowhere",
                                           gac_quote(q, sizeof q, path));
}

/* Visits the entry inside/name and, if it is a folder, everything in it. */
static gac_status walk_entry(const walk *w, const char *inside, const char *name, int depth,
                             gac_error *err)
{
    struct stat s;
    bool link = false;
    char *path = NULL, *whole = NULL;
    gac_status status = GAC_OK;
    if (asprintf(&path, "%s%s%s", inside, *inside ? "/" : "", name) < 0)
        return gac_error_no_memory(err);
    if (asprintf(&whole, "%s/%s", w->root, path) < 0) {
        free(path);
        return gac_error_no_memory(err);
    }
    status = look_at(whole, &s, &link, err);
    bool folder = status == GAC_OK && S_ISDIR(s.st_mode) && !link && name[0] != '.';
    if (folder && depth >= MAX_DEPTH)
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: folders are nested more than %d deep",
                               w->root, MAX_DEPTH);
    gac_entry entry = folder                                   ? GAC_ENTRY_FOLDER
                      : status == GAC_OK && S_ISREG(s.st_mode) ? GAC_ENTRY_FILE
                                                               : GAC_ENTRY_OTHER;
    if (status == GAC_OK)
        status = w->visit(w->user, path, entry, s.st_mode & 0777, err);
    if (status == GAC_OK && folder)
        status = walk_folder(w, path, depth + 1, err);
    free(path);
    free(whole);
    return status;
}

static gac_status walk_folder(const walk *w, const char *inside, int depth, gac_error *err)
{
    char *path;
    if (asprintf(&path, "%s/%s", w->root, inside) < 0)
        return gac_error_no_memory(err);
    DIR *stream = opendir(path);
    gac_status status = stream ? GAC_OK : gac_error_errno(err, path);
    struct dirent *entry;
    while (status == GAC_OK && (errno = 0, entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = walk_entry(w, inside, entry->d_name, depth, err);
    if (status == GAC_OK && errno)
        status = gac_error_errno(err, path);
    if (stream)
        closedir(stream);
    free(path);
    return status;
}

gac_status gac_checkpoint_each_file(const gac_checkpoint *c, gac_file_visit visit, void *user,
                                    gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint", c);
    GAC_REFUSE(err, !visit, "visit is NULL");
    walk w = { c->path, visit, user };
    return c->is_directory ? walk_folder(&w, "", 0, err) : GAC_OK;
}

gac_status gac_checkpoint_open_file(const gac_checkpoint *c, const char *path, gac_file **out,
                                    gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint, path, out", c, path, out);
    char *folder;
    const char *slash = strrchr(path, '/');
    if (asprintf(&folder, "%s/%.*s", c->path, slash ? (int)(slash - path) : 0, path) < 0)
        return gac_error_no_memory(err);
    gac_status status = gac_file_open_inside(folder, slash ? slash + 1 : path, out, err);
    free(folder);
    return status;
}

/* Where files are copied from and to. */
typedef struct carrier {
    const gac_checkpoint *from;
    const char *to;
    const char *const *skip;
} carrier;

static bool is_skipped(const carrier *c, const char *path)
{
    for (const char *const *name = c->skip; name && *name; name++) {
        size_t n = strlen(*name);
        if (strncmp(path, *name, n) == 0 && (path[n] == 0 || path[n] == '/'))
            return true;
    }
    return false;
}

static gac_status copy_file(gac_file *file, const char *to, unsigned mode, gac_error *err)
{
    int fd = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    gac_status status = fd < 0 || fchmod(fd, mode) != 0 ? gac_error_errno(err, to) : GAC_OK;
    if (status == GAC_OK)
        status = gac_file_copy(file, 0, fd, 0, gac_file_size(file), err);
    if (fd >= 0 && close(fd) != 0 && status == GAC_OK)
        status = gac_error_errno(err, to);
    return status;
}

static gac_status carry(void *user, const char *path, gac_entry entry, unsigned mode,
                        gac_error *err)
{
    const carrier *c = user;
    gac_file *file = NULL;
    char *to;
    if (is_skipped(c, path) || entry == GAC_ENTRY_OTHER ||
        (entry == GAC_ENTRY_FILE && gac_is_weights(path)))
        return GAC_OK;
    if (asprintf(&to, "%s/%s", c->to, path) < 0)
        return gac_error_no_memory(err);
    gac_status status = GAC_OK;
    if (entry == GAC_ENTRY_FOLDER) {
        /* The owner needs write permission to fill the folder. */
        if (mkdir(to, 0777) != 0 || chmod(to, mode | 0700) != 0)
            status = gac_error_errno(err, to);
    } else {
        status = gac_checkpoint_open_file(c->from, path, &file, err);
        if (status == GAC_OK)
            status = copy_file(file, to, mode, err);
        gac_file_close(file);
    }
    free(to);
    return status;
}

gac_status gac_writer_carry(gac_writer *writer, const gac_checkpoint *checkpoint,
                            const char *const *skip, gac_error *err)
{
    GAC_REFUSE_NULL(err, writer, checkpoint);
    carrier c = { checkpoint, gac_writer_directory(writer), skip };
    return gac_checkpoint_each_file(checkpoint, carry, &c, err);
}

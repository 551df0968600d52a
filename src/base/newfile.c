#include "base/arguments.h"
#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A target: its final name, and the temporary name it is written under. */
typedef struct target {
    char *path;
    char *temporary;
    bool replace;
    bool left; /* the temporary name exists and must be removed */
} target;

struct gac_new_file {
    target target;
    int fd;
};

struct gac_new_dir {
    target target;
    int lock; /* descriptor of the temporary directory, locked by this process */
};

static gac_status failed(const char *path, gac_error *err)
{
    char q[256];
    int code = errno;
    if (code == ENOMEM)
        return gac_error_no_memory(err);
    return gac_error_set(err, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, path), strerror(code));
}

static gac_status exists(const char *path, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_FAILED, "%s: already exists", gac_quote(q, sizeof q, path));
}

static gac_status no_directory(const char *path, gac_error *err)
{
    char q[256];
    return gac_error_set(err, GAC_FAILED, "%s: exists and is not a directory",
                         gac_quote(q, sizeof q, path));
}

static void target_dispose(target *t)
{
    free(t->path);
    free(t->temporary);
}

/* Finds whether anything exists at path. Fails if the path cannot be examined. */
static gac_status look(const char *path, bool *there, struct stat *s, gac_error *err)
{
    *there = lstat(path, s) == 0;
    return *there || errno == ENOENT ? GAC_OK : failed(path, err);
}

/* Initialises t for path. The temporary name is in the same directory, because
 * rename works only within one file system. */
static gac_status target_init(target *t, const char *path, bool replace, gac_error *err)
{
    struct stat s;
    char q[256];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    t->replace = replace;
    t->path = strndup(path, n);
    if (!t->path)
        return gac_error_no_memory(err);
    const char *slash = strrchr(t->path, '/');
    const char *base = slash ? slash + 1 : t->path;
    if (!*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return gac_error_set(err, GAC_USAGE, "%s: cannot be written to",
                             gac_quote(q, sizeof q, path));
    bool there;
    gac_status status = look(t->path, &there, &s, err);
    if (status != GAC_OK)
        return status;
    if (!replace && there)
        return exists(t->path, err);
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return failed(path, err);
    if (asprintf(&t->temporary, "%.*s.%s.gac-%016llx", (int)(base - t->path), t->path, base,
                 (unsigned long long)random) < 0) {
        t->temporary = NULL;
        return gac_error_no_memory(err);
    }
    return GAC_OK;
}

static gac_status sync_path(const char *path, gac_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return failed(path, err);
    gac_status status = fsync(fd) == 0 || errno == EINVAL ? GAC_OK : failed(path, err);
    close(fd);
    return status;
}

static gac_status sync_parent(const char *path, gac_error *err)
{
    const char *slash = strrchr(path, '/');
    char *parent = !slash          ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));
    if (!parent)
        return gac_error_no_memory(err);
    gac_status status = sync_path(parent, err);
    free(parent);
    return status;
}

/* Renames the temporary to its final name. File systems without
 * RENAME_NOREPLACE get a check before the rename, which leaves a short race. */
static gac_status move_into_place(const target *t, gac_error *err)
{
    struct stat s;
    bool there;
    if (renameat2(AT_FDCWD, t->temporary, AT_FDCWD, t->path, RENAME_NOREPLACE) == 0)
        return GAC_OK;
    if (errno == EEXIST)
        return exists(t->path, err);
    if (errno != EINVAL && errno != ENOSYS)
        return failed(t->path, err);
    gac_status status = look(t->path, &there, &s, err);
    if (status != GAC_OK || there)
        return status != GAC_OK ? status : exists(t->path, err);
    return rename(t->temporary, t->path) == 0 ? GAC_OK : failed(t->path, err);
}

/* The same where the target may be replaced. One system call exchanges old and
 * new, so that a crash leaves one of them complete. Afterwards the old one has
 * the temporary name. */
static gac_status swap_into_place(target *t, bool *swapped, gac_error *err)
{
    struct stat s;
    bool there;
    gac_status status = look(t->path, &there, &s, err);
    if (status != GAC_OK || !there)
        return status != GAC_OK ? status : move_into_place(t, err);
    *swapped = renameat2(AT_FDCWD, t->temporary, AT_FDCWD, t->path, RENAME_EXCHANGE) == 0;
    if (*swapped || (!S_ISDIR(s.st_mode) && (errno == EINVAL || errno == ENOSYS) &&
                     rename(t->temporary, t->path) == 0))
        return GAC_OK;
    return failed(t->path, err);
}

/* Reverses the rename or the exchange. */
static bool take_back(const target *t, bool swapped)
{
    return renameat2(AT_FDCWD, t->path, AT_FDCWD, t->temporary,
                     swapped ? RENAME_EXCHANGE : RENAME_NOREPLACE) == 0;
}

/* Renames the temporary to its final name, and flushes the directory if flush.
 * After a failure the final name is as before. The caller removes what then has
 * the temporary name. */
static gac_status put_in_place(target *t, bool flush, gac_error *err)
{
    char q[256], why[400];
    bool swapped = false;
    gac_status status = t->replace ? swap_into_place(t, &swapped, err) : move_into_place(t, err);
    if (status != GAC_OK)
        return status;
    t->left = swapped;
    if (!flush)
        return GAC_OK;
    gac_error local = GAC_ERROR_INIT;
    status = sync_parent(t->path, &local);
    if (status == GAC_OK)
        return GAC_OK;
    if (take_back(t, swapped)) {
        t->left = true;
        return gac_error_set(err, status, "%s", local.text);
    }
    snprintf(why, sizeof why, "%s", local.text);
    return gac_error_set(err, status, "%s: is complete, but a power cut may lose it: %s",
                         gac_quote(q, sizeof q, t->path), why);
}

/* An entry as getdents64 returns it. */
struct listed {
    uint64_t inode, next;
    unsigned short n_bytes;
    unsigned char kind;
    char name[];
};

static bool remove_inside(int parent, const char *name);

/* Removes everything in an open directory. False if something remains. */
static bool empty_directory(int fd)
{
    _Alignas(struct listed) char buffer[4096];
    long n;
    bool all = true;
    while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
        const struct listed *entry;
        for (long at = 0; at < n; at += entry->n_bytes) {
            entry = (const struct listed *)(const void *)(buffer + at);
            if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0)
                all = remove_inside(fd, entry->name) && all;
        }
    }
    return all && n == 0;
}

/* Removes a file, or a directory and its content. False if it remains. This
 * allocates nothing, because it also runs after failed allocations. */
static bool remove_inside(int parent, const char *name)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return true;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    empty_directory(fd);
    close(fd);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

/* Removes path if it exists. It tries twice, because some errors are temporary. */
static bool remove_all(const char *path)
{
    return remove_inside(AT_FDCWD, path) || remove_inside(AT_FDCWD, path);
}

/* Removes a leftover temporary unless its maker still runs and holds the lock. */
static void remove_left(const char *path)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool left = fstat(fd, &s) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (left && (S_ISDIR(s.st_mode) || S_ISREG(s.st_mode)))
        remove_all(path);
    close(fd);
}

/* Removes the temporaries of killed processes for the same target. */
static void remove_stale(const target *t)
{
    const char *slash = strrchr(t->path, '/');
    const char *base = slash ? slash + 1 : t->path;
    char *parent = slash ? strndup(t->path, (size_t)(slash + 1 - t->path)) : strdup("./");
    char *prefix = NULL;
    DIR *stream = parent ? opendir(parent) : NULL;
    if (stream && asprintf(&prefix, ".%s.gac-", base) < 0)
        prefix = NULL;
    struct dirent *entry;
    while (stream && prefix && (entry = readdir(stream))) {
        char *path;
        const size_t n = strlen(prefix), n_all = strlen(entry->d_name);
        if (n_all != n + 16 || strncmp(entry->d_name, prefix, n) != 0 ||
            strspn(entry->d_name + n, "0123456789abcdef") != 16 ||
            asprintf(&path, "%s%s", parent, entry->d_name) < 0)
            continue;
        remove_left(path);
        free(path);
    }
    if (stream)
        closedir(stream);
    free(prefix);
    free(parent);
}

/* Creates a file, locked while it is open. Another process may have removed it
 * before it was locked; then it is created again. */
static int create_locked(const char *path)
{
    struct stat s = { .st_nlink = 1 };
    int fd = -1;
    do {
        if (fd >= 0)
            close(fd);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        /* Without locks a file system loses only the removal of leftovers. */
    } while (fd >= 0 && flock(fd, LOCK_EX) == 0 && fstat(fd, &s) == 0 && s.st_nlink == 0);
    return fd;
}

gac_status gac_new_file_create(const char *path, bool replace, gac_new_file **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    struct stat s;
    char q[256];
    gac_new_file *file = calloc(1, sizeof *file);
    if (!file)
        return gac_error_no_memory(err);
    file->fd = -1;
    bool there = false;
    gac_status status = target_init(&file->target, path, replace, err);
    if (status == GAC_OK)
        status = look(file->target.path, &there, &s, err);
    if (status == GAC_OK && there && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
        status = gac_error_set(err, GAC_FAILED, "%s: exists and is not a file",
                               gac_quote(q, sizeof q, path));
    if (status == GAC_OK) {
        remove_stale(&file->target);
        file->fd = create_locked(file->target.temporary);
        file->target.left = file->fd >= 0;
        if (file->fd < 0)
            status = failed(path, err);
    }
    if (status != GAC_OK) {
        target_dispose(&file->target);
        free(file);
        return status;
    }
    *out = file;
    return GAC_OK;
}

gac_status gac_new_file_write(gac_new_file *file, const void *data, size_t n_bytes, gac_error *err)
{
    GAC_REFUSE_NULL(err, file);
    GAC_REFUSE(err, n_bytes > 0 && !data, "data is NULL");
    const char *from = data;
    while (n_bytes) {
        ssize_t put = write(file->fd, from, n_bytes < (1u << 30) ? n_bytes : (1u << 30));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return failed(file->target.path, err);
        from += put;
        n_bytes -= (size_t)put;
    }
    return GAC_OK;
}

gac_status gac_new_file_commit(gac_new_file *file, gac_error *err)
{
    GAC_REFUSE_NULL(err, file);
    gac_status status = gac_memory_check(err);
    if (status == GAC_OK && fsync(file->fd) != 0)
        status = failed(file->target.path, err);
    if (status == GAC_OK)
        status = put_in_place(&file->target, true, err);
    /* Removes what still has the temporary name: the old file or, after a
     * failure, the new one. */
    gac_new_file_discard(file);
    return status;
}

void gac_new_file_discard(gac_new_file *file)
{
    if (!file)
        return;
    if (file->target.left)
        remove_all(file->target.temporary);
    close(file->fd);
    target_dispose(&file->target);
    free(file);
}

/* The same for a directory. *lock may stay -1. Link counts of directories are
 * unreliable, so this compares inodes. */
static bool make_locked(const char *path, int *lock)
{
    struct stat mine, there;
    bool taken = false;
    do {
        if (*lock >= 0)
            close(*lock);
        if (mkdir(path, 0777) != 0)
            return false;
        *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        taken = *lock < 0
                    ? errno == ENOENT
                    : flock(*lock, LOCK_EX) == 0 && fstat(*lock, &mine) == 0 &&
                          (stat(path, &there) != 0 ? errno == ENOENT : there.st_ino != mine.st_ino);
    } while (taken);
    return true;
}

gac_status gac_new_dir_create(const char *path, bool replace, gac_new_dir **out, gac_error *err)
{
    struct stat s;
    gac_new_dir *dir = calloc(1, sizeof *dir);
    if (!dir)
        return gac_error_no_memory(err);
    dir->lock = -1;
    bool there = false;
    gac_status status = target_init(&dir->target, path, replace, err);
    if (status == GAC_OK)
        status = look(dir->target.path, &there, &s, err);
    if (status == GAC_OK && there && !S_ISDIR(s.st_mode))
        status = no_directory(path, err);
    if (status == GAC_OK)
        remove_stale(&dir->target);
    if (status == GAC_OK && !make_locked(dir->target.temporary, &dir->lock))
        status = failed(path, err);
    if (status != GAC_OK) {
        target_dispose(&dir->target);
        free(dir);
        return status;
    }
    dir->target.left = true;
    *out = dir;
    return GAC_OK;
}

const char *gac_new_dir_path(const gac_new_dir *dir)
{
    return dir->target.temporary;
}

static int sync_entry(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s, (void)at;
    return kind == FTW_F || kind == FTW_DP ? sync_path(path, NULL) != GAC_OK : kind != FTW_SL;
}

static gac_status sync_tree(const char *path, gac_error *err)
{
    if (nftw(path, sync_entry, 8, FTW_DEPTH | FTW_PHYS) != 0)
        return failed(path, err);
    return GAC_OK;
}

gac_status gac_new_dir_commit(gac_new_dir *dir, bool flush, gac_error *err)
{
    char q[256], qt[256];
    target *t = &dir->target;
    gac_status status = gac_memory_check(err);
    if (status == GAC_OK && flush)
        status = sync_tree(t->temporary, err);
    if (status == GAC_OK)
        status = put_in_place(t, flush, err);
    if (status == GAC_OK && t->left && !remove_all(t->temporary))
        status = gac_error_set(
            err, GAC_FAILED, "%s: is complete; what it replaced could not be removed from %s",
            gac_quote(q, sizeof q, t->path), gac_quote(qt, sizeof qt, t->temporary));
    gac_new_dir_discard(dir);
    return status;
}

void gac_new_dir_discard(gac_new_dir *dir)
{
    if (!dir)
        return;
    if (dir->target.left)
        remove_all(dir->target.temporary);
    if (dir->lock >= 0)
        close(dir->lock);
    target_dispose(&dir->target);
    free(dir);
}

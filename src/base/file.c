#include "base/arguments.h"
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct gac_file {
    int fd;
    struct stat stat;
    char *path;
    void *map; /* stat.st_size bytes, or NULL if not mapped */
};

/* Opens path for reading with additional open(2) flags. */
static gac_status open_with(const char *path, int flags, gac_file **out, gac_error *err)
{
    char q[256];
    gac_status status = GAC_OK;
    gac_file *file = calloc(1, sizeof *file);
    if (!file)
        return gac_error_no_memory(err);
    /* O_NONBLOCK: opening a FIFO must not hang. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (file->fd < 0 || fstat(file->fd, &file->stat) < 0)
        status = gac_error_errno(err, path);
    else if (!S_ISREG(file->stat.st_mode))
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: not a regular file",
                               gac_quote(q, sizeof q, path));
    else if (!(file->path = strdup(path)))
        status = gac_error_no_memory(err);
    if (status != GAC_OK) {
        gac_file_close(file);
        return status;
    }
    *out = file;
    return GAC_OK;
}

gac_status gac_file_open(const char *path, gac_file **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, path, out);
    return open_with(path, 0, out, err);
}

static bool is_below(const char *path, const char *directory)
{
    size_t n = strlen(directory);
    return strncmp(path, directory, n) == 0 && path[n] == '/';
}

/* Hugging Face's cache keeps the files of REPO/snapshots/REV (and of the
 * folders below it) in REPO/blobs. */
static bool is_cache_blob(const char *path, const char *directory)
{
    static const char snapshots[] = "/snapshots/";
    const char *at = NULL;
    for (const char *next = strstr(directory, snapshots); next; next = strstr(next + 1, snapshots))
        at = next;
    char *blobs;
    if (!at || asprintf(&blobs, "%.*s/blobs", (int)(at - directory), directory) < 0)
        return false;
    bool below = is_below(path, blobs);
    free(blobs);
    return below;
}

/* Opens a link inside directory if its target is inside directory too, or is a
 * blob of Hugging Face's cache. */
static gac_status open_link(const char *directory, const char *path, gac_file **out, gac_error *err)
{
    char q[256];
    char real_dir[PATH_MAX], real_path[PATH_MAX];
    if (!realpath(directory, real_dir))
        return gac_error_errno(err, directory);
    if (!realpath(path, real_path))
        return gac_error_errno(err, path);
    if (!is_below(real_path, real_dir) && !is_cache_blob(real_path, real_dir))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: a link out of the directory",
                             gac_quote(q, sizeof q, path));
    /* Open the resolved path: the link could change in between. */
    return open_with(real_path, O_NOFOLLOW, out, err);
}

gac_status gac_file_open_inside(const char *directory, const char *name, gac_file **out,
                                gac_error *err)
{
    GAC_REFUSE_NULL(err, directory, name, out);
    char qd[256], qn[160];
    char *path = NULL;
    struct stat s;
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"%s\" is not the name of a file inside it",
                             gac_quote(qd, sizeof qd, directory), gac_quote(qn, sizeof qn, name));
    const char *slash = directory[strlen(directory) - 1] == '/' ? "" : "/";
    if (asprintf(&path, "%s%s%s", directory, slash, name) < 0)
        return gac_error_no_memory(err);
    gac_status status = open_with(path, O_NOFOLLOW, out, err);
    if (status != GAC_OK && lstat(path, &s) == 0 && S_ISLNK(s.st_mode))
        status = open_link(directory, path, out, err);
    free(path);
    return status;
}

void gac_file_close(gac_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    if (file->map)
        munmap(file->map, (size_t)file->stat.st_size);
    free(file->path);
    free(file);
}

const char *gac_file_path(const gac_file *file)
{
    return file->path;
}

uint64_t gac_file_size(const gac_file *file)
{
    return (uint64_t)file->stat.st_size;
}

unsigned gac_file_mode(const gac_file *file)
{
    return file->stat.st_mode & 0777;
}

void gac_file_park(gac_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static gac_status unpark(gac_file *file, gac_error *err)
{
    char q[256];
    struct stat now;
    if (file->fd >= 0)
        return GAC_OK;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &now) < 0)
        return gac_error_errno(err, file->path);
    if (!same_file(&now, &file->stat)) {
        gac_file_park(file);
        return gac_error_set(err, GAC_BAD_INPUT, "%s: changed while it was being read",
                             gac_quote(q, sizeof q, file->path));
    }
    return GAC_OK;
}

/* Reads at most n_bytes in one system call. Returns 0 at the end of the file. */
static ssize_t read_some(const gac_file *file, uint64_t offset, void *buffer, size_t n_bytes)
{
    if (offset > INT64_MAX)
        return 0;
    ssize_t got;
    do
        got = pread(file->fd, buffer, n_bytes < (1u << 30) ? n_bytes : (1u << 30), (off_t)offset);
    while (got < 0 && errno == EINTR);
    return got;
}

gac_status gac_file_read(gac_file *file, uint64_t offset, void *buffer, size_t n_bytes,
                         gac_error *err)
{
    GAC_REFUSE_NULL(err, file);
    GAC_REFUSE(err, n_bytes > 0 && !buffer, "buffer is NULL");
    char q[256];
    char *to = buffer;
    gac_status status = unpark(file, err);
    if (status != GAC_OK)
        return status;
    while (n_bytes) {
        ssize_t got = read_some(file, offset, to, n_bytes);
        if (got < 0)
            return gac_error_set(err, GAC_FAILED, "%s: offset %llu: %s",
                                 gac_quote(q, sizeof q, file->path), (unsigned long long)offset,
                                 strerror(errno));
        if (got == 0)
            return gac_error_set(err, GAC_BAD_INPUT, "%s: ends at offset %llu, more was expected",
                                 gac_quote(q, sizeof q, file->path), (unsigned long long)offset);
        to += got;
        offset += (uint64_t)got;
        n_bytes -= (size_t)got;
    }
    return GAC_OK;
}

static gac_status cannot_copy(const gac_file *file, gac_error *err)
{
    char q[256];
    int code = errno;
    return gac_error_set(err, GAC_FAILED, "%s: cannot be copied: %s",
                         gac_quote(q, sizeof q, file->path), strerror(code));
}

/* Copies through memory, where the kernel cannot copy between the two files. */
static gac_status copy_by_hand(gac_file *file, uint64_t offset, int to, uint64_t to_offset,
                               uint64_t n_bytes, gac_error *err)
{
    enum { BUFFER_BYTES = 1 << 20 };
    char *buffer = malloc(BUFFER_BYTES);
    gac_status status = buffer ? GAC_OK : gac_error_no_memory(err);
    while (n_bytes && status == GAC_OK) {
        size_t n = n_bytes < BUFFER_BYTES ? (size_t)n_bytes : BUFFER_BYTES;
        status = gac_file_read(file, offset, buffer, n, err);
        for (size_t done = 0; done < n && status == GAC_OK;) {
            ssize_t put = pwrite(to, buffer + done, n - done, (off_t)(to_offset + done));
            if (put < 0 && errno != EINTR)
                status = cannot_copy(file, err);
            done += put > 0 ? (size_t)put : 0;
        }
        offset += n;
        to_offset += n;
        n_bytes -= n;
    }
    free(buffer);
    return status;
}

gac_status gac_file_copy(gac_file *file, uint64_t offset, int to, uint64_t to_offset,
                         uint64_t n_bytes, gac_error *err)
{
    gac_status status = unpark(file, err);
    while (n_bytes && status == GAC_OK) {
        off_t from = (off_t)offset, at = (off_t)to_offset;
        size_t want = n_bytes < (1u << 30) ? (size_t)n_bytes : (1u << 30);
        ssize_t got = copy_file_range(file->fd, &from, to, &at, want, 0);
        if (got < 0 && errno == EINTR)
            continue;
        /* Either the kernel cannot copy these files, or the file has ended.
         * Reading finds out which. */
        if (got <= 0)
            return got < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
                       ? cannot_copy(file, err)
                       : copy_by_hand(file, offset, to, to_offset, n_bytes, err);
        offset += (uint64_t)got;
        to_offset += (uint64_t)got;
        n_bytes -= (uint64_t)got;
    }
    return status;
}

gac_status gac_file_map(gac_file *file, const void **data, gac_error *err)
{
    char q[256];
    struct stat now;
    gac_status status = file->map ? GAC_OK : unpark(file, err);
    if (status == GAC_OK && !file->map) {
        if (fstat(file->fd, &now) < 0)
            return gac_error_errno(err, file->path);
        if (!same_file(&now, &file->stat) || now.st_size == 0)
            return gac_error_set(err, GAC_BAD_INPUT, "%s: empty, or changed since it was opened",
                                 gac_quote(q, sizeof q, file->path));
        void *map = mmap(NULL, (size_t)now.st_size, PROT_READ, MAP_PRIVATE, file->fd, 0);
        if (map == MAP_FAILED)
            return gac_error_errno(err, file->path);
        file->map = map;
    }
    *data = file->map;
    return status;
}

gac_status gac_file_slurp(gac_file *file, size_t max_bytes, char **out, size_t *n_bytes,
                          gac_error *err)
{
    GAC_REFUSE_NULL(err, file, out, n_bytes);
    char q[256];
    uint64_t size = gac_file_size(file);
    if (size > max_bytes)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %llu bytes, more than the %zu allowed",
                             gac_quote(q, sizeof q, file->path), (unsigned long long)size,
                             max_bytes);
    char *text = malloc((size_t)size + 1);
    if (!text)
        return gac_error_no_memory(err);
    gac_status status = gac_file_read(file, 0, text, (size_t)size, err);
    if (status != GAC_OK) {
        free(text);
        return status;
    }
    text[size] = 0;
    *out = text;
    *n_bytes = (size_t)size;
    return GAC_OK;
}

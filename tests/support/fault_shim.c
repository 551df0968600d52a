/* A preloaded library that makes calls of a program fail.
 *
 * GAC_FAULT_CALL names the kind (alloc, read, write, open, stat, readdir, mmap,
 * sync, rename, close, unlink, mkdir, truncate, chmod, thread), GAC_FAULT_AT=N the
 * N-th call of that kind from 1 (0: none), GAC_FAULT_ON=1 all from then on too,
 * GAC_FAULT_ERRNO the error (ENOMEM for alloc). With GAC_FAULT_SIGNAL=N the call
 * does not fail, and the program gets that signal. GAC_FAULT_COUNT=FILE gets the
 * number of calls of that kind, GAC_FAULT_LOG=FILE a line "sync PATH" or "rename
 * FROM" for each that succeeds. Allocations fail only if this is compiled with
 * FAULT_ALLOC, which no sanitizer can stand. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long n_calls;
static long fail_at;
static int fail_on, fail_errno, fail_signal;
static const char *kind = "";

__attribute__((constructor)) static void begin(void)
{
    const char *call = getenv("GAC_FAULT_CALL"), *at = getenv("GAC_FAULT_AT");
    const char *on = getenv("GAC_FAULT_ON"), *error = getenv("GAC_FAULT_ERRNO");
    const char *number = getenv("GAC_FAULT_SIGNAL");
    fail_at = at ? atol(at) : 0;
    fail_on = on && *on == '1';
    fail_errno = error ? atoi(error) : EIO;
    fail_signal = number ? atoi(number) : 0;
    n_calls = 0;
    kind = call ? call : "";
}

/* Makes no call that could fail itself. */
__attribute__((destructor)) static void tell(void)
{
    char text[24];
    const char *path = getenv("GAC_FAULT_COUNT");
    long fd = path ? syscall(SYS_open, path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd < 0)
        return;
    int n = snprintf(text, sizeof text, "%ld", (long)n_calls);
    syscall(SYS_write, fd, text, n);
    syscall(SYS_close, fd);
}

static void write_log(const char *what, const char *path)
{
    char line[PATH_MAX + 16];
    const char *to = getenv("GAC_FAULT_LOG");
    long fd = to ? syscall(SYS_open, to, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    if (fd < 0)
        return;
    int n = snprintf(line, sizeof line, "%s %s\n", what, path);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
}

static int fails(const char *of_kind)
{
    if (strcmp(kind, of_kind) != 0)
        return 0;
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    if (!fail_at || n < fail_at || (n > fail_at && !fail_on))
        return 0;
    if (fail_signal) {
        raise(fail_signal);
        return 0;
    }
    errno = strcmp(of_kind, "alloc") == 0 ? ENOMEM : fail_errno;
    return 1;
}

#ifdef FAULT_ALLOC
/* Allocations: glibc's own under their other names, so that looking them up needs no
 * allocation. */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
    return fails("alloc") ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails("alloc") ? NULL : __libc_calloc(n, size);
}

void *realloc(void *block, size_t n)
{
    return n && fails("alloc") ? NULL : __libc_realloc(block, n);
}

void *reallocarray(void *block, size_t n, size_t size)
{
    return fails("alloc") || (size && n > (size_t)-1 / size) ? NULL
                                                             : __libc_realloc(block, n * size);
}

void *memalign(size_t alignment, size_t n)
{
    return fails("alloc") ? NULL : __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails("alloc") ? NULL : __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *block = fails("alloc") ? NULL : __libc_memalign(alignment, n);
    if (block)
        *out = block;
    return block ? 0 : ENOMEM;
}

#endif

/* Everything else. */

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRAP(kind_, type, name, parameters, arguments) \
    type name parameters \
    { \
        NEXT(name); \
        return fails(kind_) ? (type)-1 : next arguments; \
    }

WRAP("read", ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP("read", ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
WRAP("read", ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))
WRAP("read", ssize_t, copy_file_range,
     (int in, off64_t *from, int out, off64_t *to, size_t n, unsigned flags),
     (in, from, out, to, n, flags))
WRAP("write", ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP("write", ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
WRAP("write", ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at),
     (fd, from, n, at))
WRAP("rename", int, rename, (const char *from, const char *to), (from, to))
WRAP("mkdir", int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP("truncate", int, ftruncate, (int fd, off_t size), (fd, size))
WRAP("truncate", int, ftruncate64, (int fd, off64_t size), (fd, size))
WRAP("chmod", int, chmod, (const char *path, mode_t mode), (path, mode))
WRAP("chmod", int, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP("unlink", int, unlink, (const char *path), (path))
WRAP("unlink", int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
WRAP("unlink", int, rmdir, (const char *path), (path))
WRAP("unlink", int, remove, (const char *path), (path))
WRAP("stat", int, stat, (const char *path, struct stat *s), (path, s))
WRAP("stat", int, lstat, (const char *path, struct stat *s), (path, s))
WRAP("stat", int, fstat, (int fd, struct stat *s), (fd, s))
WRAP("stat", int, fstatat, (int fd, const char *path, struct stat *s, int flags),
     (fd, path, s, flags))
WRAP("mmap", void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
     (at, n, prot, flags, fd, offset))

int fsync(int fd)
{
    char name[40], path[PATH_MAX];
    NEXT(fsync);
    int result = fails("sync") ? -1 : next(fd);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    if (result == 0)
        write_log("sync", path);
    return result;
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    NEXT(renameat2);
    int result = fails("rename") ? -1 : next(a, from, b, to, flags);
    if (result == 0)
        write_log("rename", from);
    return result;
}

int close(int fd)
{
    NEXT(close);
    int result = next(fd);
    return fails("close") ? -1 : result;
}

DIR *opendir(const char *path)
{
    NEXT(opendir);
    return fails("readdir") ? NULL : next(path);
}

struct dirent *readdir(DIR *stream)
{
    NEXT(readdir);
    return fails("readdir") ? NULL : next(stream);
}

FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen);
    return fails("open") ? NULL : next(path, mode);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *user)
{
    NEXT(pthread_create);
    return fails("thread") ? EAGAIN : next(thread, attributes, start, user);
}

#define MODE(flags, last) \
    va_list args; \
    va_start(args, last); \
    mode_t mode = (flags) & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0; \
    va_end(args)

int open(const char *path, int flags, ...)
{
    MODE(flags, flags);
    NEXT(open);
    return fails("open") ? -1 : next(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, flags);
    NEXT(open64);
    return fails("open") ? -1 : next(path, flags, mode);
}

int openat(int fd, const char *path, int flags, ...)
{
    MODE(flags, flags);
    NEXT(openat);
    return fails("open") ? -1 : next(fd, path, flags, mode);
}

/* A preloaded library that makes one system call of a program fail.
 *
 * GAC_FAULT_CALL=read|write|sync|rename|mkdir|truncate|open|close names the
 * kind, GAC_FAULT_AT=N the N-th of that kind from 1 (0: none), GAC_FAULT_ERRNO
 * the error. With GAC_FAULT_SIGNAL=N the call does not fail, and the program gets
 * that signal. GAC_FAULT_COUNT=FILE gets the number of calls of that kind.
 * GAC_FAULT_LOG=FILE gets a line "sync PATH" or "rename FROM" for each that
 * succeeds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static long n_calls;

static int fails(const char *kind)
{
    const char *wanted = getenv("GAC_FAULT_CALL"), *at = getenv("GAC_FAULT_AT");
    if (!wanted || strcmp(wanted, kind) != 0)
        return 0;
    if (++n_calls != (at ? atol(at) : 0))
        return 0;
    const char *number = getenv("GAC_FAULT_SIGNAL");
    if (number) {
        raise(atoi(number));
        return 0;
    }
    errno = atoi(getenv("GAC_FAULT_ERRNO"));
    return 1;
}

static void write_log(const char *what, const char *path)
{
    const char *to = getenv("GAC_FAULT_LOG");
    FILE *file = to ? fopen(to, "a") : NULL;
    if (file) {
        fprintf(file, "%s %s\n", what, path);
        fclose(file);
    }
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("GAC_FAULT_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld", n_calls);
        fclose(file);
    }
}

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pread(int fd, void *buffer, size_t n, off_t offset)
{
    NEXT(pread);
    return fails("read") ? -1 : next(fd, buffer, n, offset);
}

ssize_t pread64(int fd, void *buffer, size_t n, off64_t offset)
{
    NEXT(pread64);
    return fails("read") ? -1 : next(fd, buffer, n, offset);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t n, unsigned flags)
{
    NEXT(copy_file_range);
    return fails("read") ? -1 : next(in, from, out, to, n, flags);
}

ssize_t pwrite(int fd, const void *buffer, size_t n, off_t offset)
{
    NEXT(pwrite);
    return fails("write") ? -1 : next(fd, buffer, n, offset);
}

ssize_t pwrite64(int fd, const void *buffer, size_t n, off64_t offset)
{
    NEXT(pwrite64);
    return fails("write") ? -1 : next(fd, buffer, n, offset);
}

int fsync(int fd)
{
    char link[64], path[PATH_MAX];
    NEXT(fsync);
    if (fails("sync") || next(fd) != 0)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    write_log("sync", path);
    return 0;
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    NEXT(renameat2);
    if (fails("rename") || next(a, from, b, to, flags) != 0)
        return -1;
    write_log("rename", from);
    return 0;
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    return fails("mkdir") ? -1 : next(path, mode);
}

int ftruncate(int fd, off_t size)
{
    NEXT(ftruncate);
    return fails("truncate") ? -1 : next(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    NEXT(ftruncate64);
    return fails("truncate") ? -1 : next(fd, size);
}

int close(int fd)
{
    NEXT(close);
    int result = next(fd);
    return fails("close") ? -1 : result;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    NEXT(open);
    return fails("open") ? -1 : next(path, flags, mode);
}

#include "fuzz_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[4096];

static void must(int condition, const char *what)
{
    if (!condition) {
        perror(what);
        _exit(70); /* not a finding */
    }
}

char *fuzz_path(const char *name)
{
    size_t size = strlen(fuzz_folder()) + strlen(name) + 2;
    char *path = malloc(size);
    must(path != NULL, "malloc");
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static void remove_folder(void)
{
    struct dirent *entry;
    DIR *stream = opendir(folder);
    while (stream && (entry = readdir(stream)))
        if (entry->d_name[0] != '.') {
            char *path = fuzz_path(entry->d_name);
            unlink(path);
            free(path);
        }
    if (stream)
        closedir(stream);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    if (!folder[0]) {
        const char *parent = getenv("TMPDIR");
        struct stat s;
        if (!parent)
            parent = stat("/dev/shm", &s) == 0 && S_ISDIR(s.st_mode) ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof folder, "%s/gac-fuzz-XXXXXX", parent);
        must(mkdtemp(folder) != NULL, folder);
        atexit(remove_folder);
    }
    return folder;
}

static int open_new(const char *name)
{
    char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0, path);
    free(path);
    return fd;
}

static void write_all(int fd, const void *data, size_t n_bytes)
{
    if (n_bytes)
        must(write(fd, data, n_bytes) == (ssize_t)n_bytes, "write");
}

void fuzz_put(const char *name, const void *data, size_t n_bytes)
{
    int fd = open_new(name);
    write_all(fd, data, n_bytes);
    close(fd);
}

void fuzz_put_safetensors(const char *name, const char *header, size_t n_header, uint64_t n_data)
{
    unsigned char length[8];
    int fd = open_new(name);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
    write_all(fd, length, sizeof length);
    write_all(fd, header, n_header);
    must(ftruncate(fd, (off_t)(sizeof length + n_header + n_data)) == 0, "ftruncate");
    close(fd);
}

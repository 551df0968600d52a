/* Carrying the rest of a directory over: tokenizer, licence, generation config. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint_internal.h"

/* Folders inside folders, as deep as any repository goes. */
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

/* Weights, in whatever format, would be the model as it was. */
static bool stays_behind(const char *name)
{
    return gac_is_foreign_weights(name) || gac_has_suffix(name, ".safetensors") ||
           gac_has_suffix(name, ".index.json");
}

static bool is_listed(const char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

static gac_status failed(const char *path, gac_error *err)
{
    char q[256];
    int code = errno;
    return gac_error_set(err, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, path), strerror(code));
}

static gac_status copy_file(const char *from, const char *name, const char *to, gac_error *err)
{
    gac_file *file;
    gac_status status = gac_file_open_inside(from, name, &file, err);
    if (status != GAC_OK)
        return status;
    int fd = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    status = fd < 0 ? failed(to, err) : gac_file_copy(file, 0, fd, 0, gac_file_size(file), err);
    if (fd >= 0 && close(fd) != 0 && status == GAC_OK)
        status = failed(to, err);
    gac_file_close(file);
    return status;
}

static gac_status carry_folder(const char *from, const char *to, const char *const *skip, int depth,
                               gac_error *err);

static gac_status carry_entry(const char *from, const char *name, const char *to,
                              const char *const *skip, int depth, gac_error *err)
{
    struct stat s;
    char *source = NULL, *target = NULL;
    gac_status status = GAC_OK;
    if (asprintf(&source, "%s/%s", from, name) < 0)
        return gac_error_no_memory(err);
    if (asprintf(&target, "%s/%s", to, name) < 0) {
        free(source);
        return gac_error_no_memory(err);
    }
    if (depth == 0 && is_listed(skip, name))
        status = GAC_OK;
    else if (lstat(source, &s) != 0)
        status = failed(source, err);
    else if (S_ISDIR(s.st_mode) && depth < MAX_DEPTH && name[0] != '.')
        status = mkdir(target, 0777) != 0 ? failed(target, err)
                                          : carry_folder(source, target, skip, depth + 1, err);
    else if (S_ISLNK(s.st_mode) && (stat(source, &s) != 0 || !S_ISREG(s.st_mode)))
        status = GAC_OK; /* a link that leads nowhere, or to a folder */
    else if (S_ISREG(s.st_mode) && !stays_behind(name))
        status = copy_file(from, name, target, err);
    free(source);
    free(target);
    return status;
}

static gac_status carry_folder(const char *from, const char *to, const char *const *skip, int depth,
                               gac_error *err)
{
    DIR *stream = opendir(from);
    if (!stream)
        return failed(from, err);
    gac_status status = GAC_OK;
    struct dirent *entry;
    while (status == GAC_OK && (entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = carry_entry(from, entry->d_name, to, skip, depth, err);
    closedir(stream);
    return status;
}

gac_status gac_writer_carry(gac_writer *writer, const gac_checkpoint *checkpoint,
                            const char *const *skip, gac_error *err)
{
    if (!gac_checkpoint_is_directory(checkpoint))
        return GAC_OK;
    return carry_folder(gac_checkpoint_path(checkpoint), gac_writer_directory(writer), skip, 0,
                        err);
}

/* A directory for every test that writes, and small checkpoints to put there.
 * Include it after cmocka.h. */
#ifndef GAC_TESTS_SCRATCH_H
#define GAC_TESTS_SCRATCH_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gac/base.h>
#include <gac/checkpoint.h>

static char scratch_root[64];

/* Setup and teardown functions of cmocka. */
static inline int scratch_create(void **state)
{
    (void)state;
    snprintf(scratch_root, sizeof scratch_root, "/tmp/gac-unit-XXXXXX");
    return mkdtemp(scratch_root) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *s, int flag,
                                     struct FTW *ftw)
{
    (void)s, (void)flag, (void)ftw;
    return remove(path);
}

static inline int scratch_remove(void **state)
{
    (void)state;
    return nftw(scratch_root, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Returns the path of name inside the directory. It is valid for 31 more calls. */
static inline const char *scratch_path(const char *name)
{
    static char paths[32][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 32];
    snprintf(path, PATH_MAX, "%s/%s", scratch_root, name);
    return path;
}

static inline const char *scratch_put(const char *name, const void *data, size_t n_bytes)
{
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *scratch_mkdir(const char *name)
{
    const char *path = scratch_path(name);
    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static inline bool scratch_has(const char *name)
{
    struct stat s;
    return lstat(scratch_path(name), &s) == 0;
}

/* Counts the entries of a directory, also hidden ones. "" is the scratch
 * directory itself. */
static inline int scratch_count(const char *name)
{
    int n = 0;
    DIR *stream = opendir(scratch_path(name));
    assert_non_null(stream);
    while (readdir(stream))
        n++;
    closedir(stream);
    return n - 2;
}

static inline void assert_file_is(const char *path, const char *text)
{
    char got[256];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    got[n] = 0;
    assert_string_equal(got, text);
}

#define assert_ok(call) \
    do { \
        gac_error err_ = GAC_ERROR_INIT, *err = &err_; \
        if ((call) != GAC_OK) \
            fail_msg("%s: %s", #call, err_.text); \
    } while (0)

/* Asserts that call, whose last argument is err, fails with this status and a
 * message that contains piece. */
#define assert_fails(call, wanted, piece) \
    do { \
        gac_error err_ = GAC_ERROR_INIT, *err = &err_; \
        gac_status status_ = (call); \
        if (status_ != (wanted) || err_.status != (wanted)) \
            fail_msg("%s: status %d: %s", #call, (int)status_, err_.text); \
        if (!strstr(err_.text, piece)) \
            fail_msg("%s: no \"%s\" in \"%s\"", #call, piece, err_.text); \
        if (strchr(err_.text, '\n')) \
            fail_msg("%s: more than one line: %s", #call, err_.text); \
    } while (0)

/* Writes a checkpoint of zeros and a config.json. The tensors end with a NULL
 * name. */
typedef struct scratch_tensor {
    const char *name;
    int64_t shape[3]; /* ends at the first 0 */
} scratch_tensor;

static inline void scratch_zeros(gac_writer *w, int32_t tensor, uint64_t n_bytes)
{
    static const char zeros[1 << 16];
    for (uint64_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < sizeof zeros ? (size_t)(n_bytes - at) : sizeof zeros;
        assert_ok(gac_writer_write(w, tensor, at, zeros, n, err));
        at += n;
    }
}

static inline const char *scratch_checkpoint(const char *name, const char *config, gac_dtype dtype,
                                             const scratch_tensor *tensors)
{
    gac_writer *w = NULL;
    const char *path = scratch_path(name);
    uint64_t sizes[128];
    int32_t n = 0;
    assert_ok(gac_writer_create(path, NULL, &w, err));
    for (; tensors[n].name; n++) {
        int32_t n_axes = 0;
        assert_true(n < 128);
        sizes[n] = (uint64_t)gac_dtype_bits(dtype) / 8;
        while (n_axes < 3 && tensors[n].shape[n_axes])
            sizes[n] *= (uint64_t)tensors[n].shape[n_axes++];
        assert_ok(gac_writer_add(w, tensors[n].name, dtype, n_axes, tensors[n].shape, NULL, err));
    }
    assert_ok(gac_writer_layout(w, err));
    for (int32_t i = 0; i < n; i++)
        scratch_zeros(w, i, sizes[i]);
    if (config)
        assert_ok(gac_writer_add_file(w, "config.json", config, strlen(config), err));
    assert_ok(gac_writer_finish(w, err));
    return path;
}

/* The same, written by hand as one file with a hole for the zeros. */
static inline void scratch_outline(const char *name, const char *config, gac_dtype dtype,
                                   const scratch_tensor *tensors)
{
    char head[1 << 15], file[64];
    unsigned long long end = 0;
    size_t at = 8;
    for (int32_t i = 0; tensors[i].name; i++) {
        unsigned long long start = end, size = (unsigned long long)gac_dtype_bits(dtype) / 8;
        at +=
            (size_t)snprintf(head + at, sizeof head - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                             i ? "," : "{", tensors[i].name, gac_dtype_name(dtype));
        for (int a = 0; a < 3 && tensors[i].shape[a]; a++) {
            size *= (unsigned long long)tensors[i].shape[a];
            at += (size_t)snprintf(head + at, sizeof head - at, "%s%lld", a ? "," : "",
                                   (long long)tensors[i].shape[a]);
        }
        end += size;
        at += (size_t)snprintf(head + at, sizeof head - at, "],\"data_offsets\":[%llu,%llu]}",
                               start, end);
        assert_true(at < sizeof head - 256);
    }
    head[at++] = '}';
    for (int i = 0; i < 8; i++)
        head[i] = (char)((at - 8) >> (8 * i) & 0xff);
    scratch_mkdir(name);
    snprintf(file, sizeof file, "%s/config.json", name);
    scratch_put(file, config, strlen(config));
    snprintf(file, sizeof file, "%s/model.safetensors", name);
    assert_int_equal(truncate(scratch_put(file, head, at), (off_t)(at + end)), 0);
}

#endif

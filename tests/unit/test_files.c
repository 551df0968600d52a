#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/files.h"
#include "scratch.h"

static gac_file *opened(const char *path)
{
    gac_file *file = NULL;
    assert_ok(gac_file_open(path, &file, err));
    return file;
}

static void only_regular_files_open(void **state)
{
    (void)state;
    gac_file *file = NULL;
    char longer[PATH_MAX + 10];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(mkfifo(scratch_path("fifo"), 0600), 0);
    assert_int_equal(symlink("loop", scratch_path("loop")), 0);
    const char *text = scratch_put("text", "abc", 3);
    assert_fails(gac_file_open(scratch_path("none"), &file, err), GAC_BAD_INPUT, "none: No such");
    assert_fails(gac_file_open("", &file, err), GAC_BAD_INPUT, "No such");
    assert_fails(gac_file_open(scratch_root, &file, err), GAC_BAD_INPUT, "not a regular file");
    assert_fails(gac_file_open(scratch_path("fifo"), &file, err), GAC_BAD_INPUT, "not a regular");
    assert_fails(gac_file_open("/dev/null", &file, err), GAC_BAD_INPUT, "not a regular file");
    assert_fails(gac_file_open(scratch_path("text/x"), &file, err), GAC_BAD_INPUT, "Not a dir");
    assert_fails(gac_file_open(scratch_path("loop"), &file, err), GAC_BAD_INPUT, "symbolic links");
    assert_fails(gac_file_open(longer, &file, err), GAC_BAD_INPUT, "too long");
    assert_null(file);
    file = opened(text);
    assert_int_equal(gac_file_size(file), 3);
    assert_string_equal(gac_file_path(file), text);
    gac_file_close(file);
    gac_file_close(NULL);
}

static void names_stay_inside(void **state)
{
    (void)state;
    static const char *const bad[] = { "",     ".",      "..",         "../outside", "/etc/passwd",
                                       "a/in", "./in",   "in/",        "sub/../in",  "/",
                                       "sub/", "a/../b", "../dir2/in", NULL };
    gac_file *file = NULL;
    const char *dir = scratch_mkdir("dir");
    scratch_put("dir/in", "inside", 6);
    scratch_put("outside", "secret", 6);
    scratch_mkdir("dir2");
    scratch_put("dir2/in", "other", 5); /* "dir" is a prefix of its path */
    for (int i = 0; bad[i]; i++)
        assert_fails(gac_file_open_inside(dir, bad[i], &file, err), GAC_BAD_INPUT, "inside it");
    assert_fails(gac_file_open_inside(dir, "none", &file, err), GAC_BAD_INPUT, "No such");
    assert_fails(gac_file_open_inside(scratch_path("nodir"), "in", &file, err), GAC_BAD_INPUT,
                 "nodir");
    assert_null(file);
    assert_ok(gac_file_open_inside(dir, "in", &file, err));
    assert_int_equal(gac_file_size(file), 6);
    gac_file_close(file);
    assert_ok(gac_file_open_inside(scratch_path("dir/"), "in", &file, err));
    assert_string_equal(gac_file_path(file), scratch_path("dir/in"));
    gac_file_close(file);
}

static void links_stay_inside(void **state)
{
    (void)state;
    gac_file *file = NULL;
    const char *dir = scratch_mkdir("dir");
    scratch_put("dir/in", "inside", 6);
    scratch_put("outside", "secret", 6);
    scratch_mkdir("dir2");
    scratch_put("dir2/in", "other", 5);
    assert_int_equal(symlink("in", scratch_path("dir/good")), 0);
    assert_int_equal(symlink("../outside", scratch_path("dir/out")), 0);
    assert_int_equal(symlink("../dir2/in", scratch_path("dir/sibling")), 0);
    assert_int_equal(symlink("/etc/passwd", scratch_path("dir/absolute")), 0);
    assert_int_equal(symlink("gone", scratch_path("dir/dangling")), 0);
    assert_int_equal(symlink("out", scratch_path("dir/twice")), 0);
    static const char *const out[] = { "out", "sibling", "absolute", "twice", NULL };
    for (int i = 0; out[i]; i++)
        assert_fails(gac_file_open_inside(dir, out[i], &file, err), GAC_BAD_INPUT, "link out of");
    assert_fails(gac_file_open_inside(dir, "dangling", &file, err), GAC_BAD_INPUT, "No such");
    assert_null(file);
    assert_ok(gac_file_open_inside(dir, "good", &file, err));
    assert_int_equal(gac_file_size(file), 6);
    gac_file_close(file);
    /* The directory itself may be a link. */
    assert_int_equal(symlink("dir", scratch_path("alias")), 0);
    assert_ok(gac_file_open_inside(scratch_path("alias"), "in", &file, err));
    gac_file_close(file);
}

static void cache_blobs_may_be_linked(void **state)
{
    (void)state;
    gac_file *file = NULL;
    static const char *const dirs[] = { "repo",
                                        "repo/blobs",
                                        "repo/other",
                                        "repo/snapshots",
                                        "repo/snapshots/rev",
                                        "repo/notsnapshots",
                                        "repo/notsnapshots/rev",
                                        NULL };
    for (int i = 0; dirs[i]; i++)
        scratch_mkdir(dirs[i]);
    scratch_put("repo/blobs/abc", "weights", 7);
    scratch_put("repo/other/abc", "secret", 6);
    const char *snapshot = scratch_path("repo/snapshots/rev");
    const char *similar = scratch_path("repo/notsnapshots/rev");
    assert_int_equal(symlink("../../blobs/abc", scratch_path("repo/snapshots/rev/w")), 0);
    assert_int_equal(symlink("../../other/abc", scratch_path("repo/snapshots/rev/x")), 0);
    assert_int_equal(symlink("../../blobs/../other/abc", scratch_path("repo/snapshots/rev/y")), 0);
    assert_int_equal(symlink("../../blobs/abc", scratch_path("repo/notsnapshots/rev/w")), 0);
    assert_ok(gac_file_open_inside(snapshot, "w", &file, err));
    assert_int_equal(gac_file_size(file), 7);
    gac_file_close(file);
    file = NULL;
    assert_fails(gac_file_open_inside(snapshot, "x", &file, err), GAC_BAD_INPUT, "link out of");
    assert_fails(gac_file_open_inside(snapshot, "y", &file, err), GAC_BAD_INPUT, "link out of");
    assert_fails(gac_file_open_inside(similar, "w", &file, err), GAC_BAD_INPUT, "link out of");
    assert_null(file);
}

static void reads_end_with_the_file(void **state)
{
    (void)state;
    char buffer[16];
    gac_file *file = opened(scratch_put("text", "0123456789", 10));
    assert_ok(gac_file_read(file, 3, buffer, 4, err));
    assert_memory_equal(buffer, "3456", 4);
    assert_ok(gac_file_read(file, 10, buffer, 0, err));
    assert_fails(gac_file_read(file, 8, buffer, 3, err), GAC_BAD_INPUT, "ends at offset 10");
    assert_fails(gac_file_read(file, 11, buffer, 1, err), GAC_BAD_INPUT, "offset 11");
    assert_fails(gac_file_read(file, UINT64_MAX, buffer, 1, err), GAC_BAD_INPUT, "text: ");
    assert_int_equal(truncate(scratch_path("text"), 5), 0);
    assert_int_equal(gac_file_size(file), 10);
    assert_fails(gac_file_read(file, 3, buffer, 4, err), GAC_BAD_INPUT, "ends at offset 5");
    gac_file_close(file);
}

static void slurps_within_limits(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n_bytes = 0;
    gac_file *file = opened(scratch_put("text", "a\0b", 3));
    assert_fails(gac_file_slurp(file, 2, &text, &n_bytes, err), GAC_BAD_INPUT,
                 "3 bytes, more than the 2 allowed");
    assert_null(text);
    assert_ok(gac_file_slurp(file, 3, &text, &n_bytes, err));
    assert_int_equal(n_bytes, 3);
    assert_memory_equal(text, "a\0b", 4);
    free(text);
    gac_file_close(file);
    file = opened(scratch_put("empty", "", 0));
    assert_ok(gac_file_slurp(file, 0, &text, &n_bytes, err));
    assert_int_equal(n_bytes, 0);
    assert_string_equal(text, "");
    free(text);
    gac_file_close(file);
}

static void loads_json(void **state)
{
    (void)state;
    json_t *value = NULL;
    gac_file *file = opened(scratch_put("c.json", "{\"a\":1}", 7));
    assert_fails(gac_json_load(file, 6, &value, err), GAC_BAD_INPUT, "c.json: 7 bytes");
    assert_ok(gac_json_load(file, 7, &value, err));
    assert_int_equal(json_integer_value(json_object_get(value, "a")), 1);
    json_decref(value);
    gac_file_close(file);
    file = opened(scratch_put("d.json", "{\"a\":1,}", 8));
    assert_fails(gac_json_load(file, 100, &value, err), GAC_BAD_INPUT, "d.json: offset ");
    gac_file_close(file);
}

/* The linker replaces the system's functions by these. The tests can make the
 * kernel's copy fail, and limit a write to seven bytes. */
static bool writes_are_short;

ssize_t __real_pwrite(int fd, const void *data, size_t n_bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n_bytes, off_t offset);
ssize_t __real_copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset,
                               size_t n_bytes, unsigned flags);
ssize_t __wrap_copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset,
                               size_t n_bytes, unsigned flags);

ssize_t __wrap_pwrite(int fd, const void *data, size_t n_bytes, off_t offset)
{
    return __real_pwrite(fd, data, writes_are_short && n_bytes > 7 ? 7 : n_bytes, offset);
}

ssize_t __wrap_copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset,
                               size_t n_bytes, unsigned flags)
{
    if (!writes_are_short)
        return __real_copy_file_range(from, from_offset, to, to_offset, n_bytes, flags);
    errno = EXDEV;
    return -1;
}

static void copies_survive_short_writes(void **state)
{
    (void)state;
    gac_file *file = opened(scratch_put("from", "0123456789abcdefghij", 20));
    int to = open(scratch_put("to", "....", 4), O_RDWR | O_CLOEXEC);
    assert_true(to >= 0);
    writes_are_short = true;
    assert_ok(gac_file_copy(file, 2, to, 4, 17, err));
    writes_are_short = false;
    assert_int_equal(close(to), 0);
    gac_file_close(file);
    assert_file_is(scratch_path("to"), "....23456789abcdefghi");
}

static void a_copy_that_does_not_fit_is_named(void **state)
{
    (void)state;
    gac_file *file = opened(scratch_put("text", "0123456789", 10));
    int full = open("/dev/full", O_WRONLY);
    assert_true(full >= 0);
    assert_fails(gac_file_copy(file, 0, full, 0, 10, err), GAC_FAILED,
                 "text: cannot be copied: No space left");
    assert_int_equal(close(full), 0);
    gac_file_close(file);
}

static void parked_files_come_back(void **state)
{
    (void)state;
    char buffer[4];
    gac_file *file = opened(scratch_put("text", "0123", 4));
    gac_file_park(file);
    gac_file_park(file);
    assert_ok(gac_file_read(file, 0, buffer, 4, err));
    assert_memory_equal(buffer, "0123", 4);
    gac_file_park(file);
    gac_file_close(file);
}

static void set_time(const char *path, const struct stat *s)
{
    const struct timespec times[2] = { s->st_atim, s->st_mtim };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A parked file must be the same file of the same size, whatever its time. */
static void parked_files_are_checked_by_size(void **state)
{
    (void)state;
    char buffer[4];
    struct stat before;
    const char *path = scratch_put("text", "0123", 4), *other = scratch_path("other");
    assert_int_equal(stat(path, &before), 0);
    gac_file *file = opened(path);
    gac_file_park(file);
    set_time(path, &before);
    assert_ok(gac_file_read(file, 0, buffer, 4, err));
    gac_file_park(file);
    assert_int_equal(truncate(path, 5), 0);
    set_time(path, &before);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    scratch_put("other", "4567", 4);
    set_time(other, &before);
    assert_int_equal(rename(other, path), 0);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    gac_file_close(file);
}

/* A file that was rewritten in place has another modification time. */
static void parked_files_are_checked_by_time(void **state)
{
    (void)state;
    char buffer[4];
    struct stat opened_at;
    const char *path = scratch_put("text", "0123", 4);
    assert_int_equal(stat(path, &opened_at), 0);
    opened_at.st_mtim.tv_nsec = 0;
    set_time(path, &opened_at);
    gac_file *file = opened(path);
    struct stat second = opened_at, half = opened_at;
    second.st_mtim.tv_sec++;
    half.st_mtim.tv_nsec = 500 * 1000 * 1000;
    gac_file_park(file);
    set_time(path, &second);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    set_time(path, &half);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    set_time(path, &opened_at);
    assert_ok(gac_file_read(file, 0, buffer, 4, err));
    gac_file_close(file);
}

static void parked_files_must_not_change(void **state)
{
    (void)state;
    char buffer[4];
    gac_file *file = opened(scratch_put("text", "0123", 4));
    gac_file_park(file);
    scratch_put("text", "012345", 6);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    gac_file_close(file);
    file = opened(scratch_path("text"));
    gac_file_park(file);
    scratch_put("new", "abcdef", 6);
    assert_int_equal(rename(scratch_path("new"), scratch_path("text")), 0);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    assert_int_equal(unlink(scratch_path("text")), 0);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: No such");
    assert_int_equal(mkfifo(scratch_path("text"), 0600), 0);
    assert_fails(gac_file_read(file, 0, buffer, 4, err), GAC_BAD_INPUT, "text: changed while");
    gac_file_close(file);
}

static void new_file_appears_on_commit(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    const char *path = scratch_path("result.json");
    assert_ok(gac_new_file_create(path, false, &file, err));
    assert_ok(gac_new_file_write(file, "abc", 3, err));
    assert_ok(gac_new_file_write(file, "", 0, err));
    assert_ok(gac_new_file_write(file, "def", 3, err));
    assert_false(scratch_has("result.json"));
    assert_int_equal(scratch_count(""), 1);
    assert_ok(gac_new_file_commit(file, err));
    assert_int_equal(scratch_count(""), 1);
    assert_file_is(path, "abcdef");
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0400, 0400);
}

/* New files may be as private as the files they were made from. */
static void new_files_obey_the_umask(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    gac_new_dir *dir = NULL;
    struct stat of_file, of_dir;
    mode_t before = umask(077);
    assert_ok(gac_new_file_create(scratch_path("f"), false, &file, err));
    assert_ok(gac_new_file_commit(file, err));
    assert_ok(gac_new_dir_create(scratch_path("d"), false, &dir, err));
    assert_ok(gac_new_dir_commit(dir, true, err));
    umask(before);
    assert_int_equal(stat(scratch_path("f"), &of_file), 0);
    assert_int_equal(stat(scratch_path("d"), &of_dir), 0);
    assert_int_equal(of_file.st_mode & 07777, 0600);
    assert_int_equal(of_dir.st_mode & 07777, 0700);
}

static void discarded_file_leaves_nothing(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    assert_ok(gac_new_file_create(scratch_path("a"), false, &file, err));
    assert_ok(gac_new_file_write(file, "abc", 3, err));
    gac_new_file_discard(file);
    gac_new_file_discard(NULL);
    assert_int_equal(scratch_count(""), 0);
}

static void existing_file_is_kept(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    const char *path = scratch_put("a", "old", 3);
    assert_fails(gac_new_file_create(path, false, &file, err), GAC_FAILED, "a: already exists");
    assert_null(file);
    const char *later = scratch_path("b");
    assert_ok(gac_new_file_create(later, false, &file, err));
    assert_ok(gac_new_file_write(file, "new", 3, err));
    scratch_put("b", "old", 3); /* another process was faster */
    assert_fails(gac_new_file_commit(file, err), GAC_FAILED, "b: already exists");
    assert_file_is(later, "old");
    assert_int_equal(symlink("nowhere", scratch_path("c")), 0);
    assert_fails(gac_new_file_create(scratch_path("c"), false, &file, err), GAC_FAILED, "exists");
    assert_int_equal(scratch_count(""), 3);
}

static void existing_file_is_replaced(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    const char *path = scratch_put("a", "old", 3);
    assert_ok(gac_new_file_create(path, true, &file, err));
    assert_ok(gac_new_file_write(file, "new", 3, err));
    assert_file_is(path, "old");
    assert_ok(gac_new_file_commit(file, err));
    assert_file_is(path, "new");
    assert_ok(gac_new_file_create(scratch_path("fresh"), true, &file, err));
    assert_ok(gac_new_file_commit(file, err));
    assert_int_equal(scratch_count(""), 2);
}

/* A device would become a regular file. A directory cannot be replaced by a file. */
static void only_a_file_is_replaced(void **state)
{
    (void)state;
    gac_new_file *file = NULL;
    gac_new_dir *dir = NULL;
    struct stat s;
    scratch_mkdir("dir");
    assert_fails(gac_new_file_create(scratch_path("dir"), true, &file, err), GAC_FAILED,
                 "dir: exists and is not a file");
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    assert_fails(gac_new_file_create(scratch_path("pipe"), true, &file, err), GAC_FAILED,
                 "pipe: exists and is not a file");
    assert_fails(gac_new_dir_create(scratch_path("pipe"), true, &dir, err), GAC_FAILED,
                 "pipe: exists and is not a directory");
    assert_true(lstat(scratch_path("pipe"), &s) == 0 && S_ISFIFO(s.st_mode));
    assert_int_equal(scratch_count(""), 2);
}

/* Kills a process that has begun a file and a directory for path. */
static void leave_behind(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        gac_new_file *file = NULL;
        gac_new_dir *dir = NULL;
        bool made = gac_new_file_create(path, false, &file, NULL) == GAC_OK &&
                    gac_new_dir_create(path, false, &dir, NULL) == GAC_OK &&
                    gac_new_file_write(file, "abc", 3, NULL) == GAC_OK;
        if (made)
            raise(SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void what_a_killed_process_left_is_removed(void **state)
{
    (void)state;
    gac_new_file *file = NULL, *other = NULL;
    gac_new_dir *dir = NULL;
    static const char *const foreign[] = { ".a.gac-0123",
                                           ".a.gac-0123456789abcdeg",
                                           ".a.gac-0123456789abcdef0",
                                           ".b.gac-0123456789abcdef",
                                           "a.gac-0123456789abcdef",
                                           ".a.gac-0123456789abcdef.bak" };
    for (int i = 0; i < 6; i++)
        scratch_put(foreign[i], "mine", 4);
    assert_int_equal(symlink("nowhere", scratch_path(".a.gac-0000000000000001")), 0);
    assert_int_equal(mkfifo(scratch_path(".a.gac-0000000000000002"), 0600), 0);
    leave_behind(scratch_path("a"));
    assert_int_equal(scratch_count(""), 10);
    assert_ok(gac_new_file_create(scratch_path("a"), false, &file, err));
    assert_int_equal(scratch_count(""), 9);
    /* Temporaries of living processes stay, in this process and in others. */
    assert_ok(gac_new_file_create(scratch_path("a"), false, &other, err));
    leave_behind(scratch_path("a"));
    assert_ok(gac_new_dir_create(scratch_path("a"), false, &dir, err));
    assert_int_equal(scratch_count(""), 11);
    gac_new_dir_discard(dir);
    gac_new_file_discard(other);
    assert_ok(gac_new_file_commit(file, err));
    assert_int_equal(scratch_count(""), 9);
    for (int i = 0; i < 6; i++)
        assert_file_is(scratch_path(foreign[i]), "mine");
}

static void unwritable_places_are_named(void **state)
{
    (void)state;
    static const char *const senseless[] = { "", "/", ".", "..", "/tmp/..", "x/.", NULL };
    gac_new_file *file = NULL;
    gac_new_dir *dir = NULL;
    for (int i = 0; senseless[i]; i++) {
        assert_fails(gac_new_file_create(senseless[i], true, &file, err), GAC_USAGE, "cannot be");
        assert_fails(gac_new_dir_create(senseless[i], true, &dir, err), GAC_USAGE, "cannot be");
    }
    assert_fails(gac_new_file_create(scratch_path("no/a"), false, &file, err), GAC_FAILED,
                 "no/a: No such file");
    assert_fails(gac_new_dir_create(scratch_path("no/a"), false, &dir, err), GAC_FAILED,
                 "no/a: No such file");
    if (geteuid() != 0) { /* root can write everywhere */
        scratch_mkdir("locked");
        assert_int_equal(chmod(scratch_path("locked"), 0555), 0);
        assert_fails(gac_new_file_create(scratch_path("locked/a"), false, &file, err), GAC_FAILED,
                     "locked/a: Permission denied");
        assert_fails(gac_new_dir_create(scratch_path("locked/a"), false, &dir, err), GAC_FAILED,
                     "locked/a: Permission denied");
    }
    assert_fails(gac_new_file_create("/proc/gac-test", false, &file, err), GAC_FAILED, "/proc/");
    assert_null(file);
    assert_null(dir);
}

static void put_inside(const gac_new_dir *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", gac_new_dir_path(dir), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void new_dir_appears_on_commit(void **state)
{
    (void)state;
    gac_new_dir *dir = NULL;
    assert_ok(gac_new_dir_create(scratch_path("out///"), false, &dir, err));
    put_inside(dir, "config.json", "{}");
    assert_false(scratch_has("out"));
    assert_ok(gac_new_dir_commit(dir, true, err));
    assert_int_equal(scratch_count(""), 1);
    assert_int_equal(scratch_count("out"), 1);
    assert_file_is(scratch_path("out/config.json"), "{}");
    assert_ok(gac_new_dir_create(scratch_path("gone"), false, &dir, err));
    put_inside(dir, "a", "a");
    put_inside(dir, ".hidden", "b");
    gac_new_dir_discard(dir);
    gac_new_dir_discard(NULL);
    assert_int_equal(scratch_count(""), 1);
}

static void existing_dir_is_kept(void **state)
{
    (void)state;
    gac_new_dir *dir = NULL;
    scratch_mkdir("out");
    assert_fails(gac_new_dir_create(scratch_path("out/"), false, &dir, err), GAC_FAILED,
                 "out: already exists");
    assert_null(dir);
    assert_ok(gac_new_dir_create(scratch_path("late"), false, &dir, err));
    put_inside(dir, "a", "new");
    scratch_mkdir("late"); /* empty: a plain rename would replace it */
    assert_fails(gac_new_dir_commit(dir, true, err), GAC_FAILED, "late: already exists");
    assert_int_equal(scratch_count("late"), 0);
    assert_int_equal(scratch_count(""), 2);
}

static void existing_dir_is_replaced(void **state)
{
    (void)state;
    gac_new_dir *dir = NULL;
    scratch_mkdir("out");
    scratch_put("out/old", "old", 3);
    assert_ok(gac_new_dir_create(scratch_path("out"), true, &dir, err));
    put_inside(dir, "new", "new");
    assert_file_is(scratch_path("out/old"), "old");
    assert_ok(gac_new_dir_commit(dir, true, err));
    assert_false(scratch_has("out/old"));
    assert_file_is(scratch_path("out/new"), "new");
    assert_int_equal(scratch_count(""), 1);
    assert_ok(gac_new_dir_create(scratch_path("first"), true, &dir, err));
    assert_ok(gac_new_dir_commit(dir, true, err));
    assert_int_equal(scratch_count(""), 2);
}

/* Downloaded checkpoints contain directories: original/, onnx/. */
static void replaced_dir_leaves_no_remains(void **state)
{
    (void)state;
    gac_new_dir *dir = NULL;
    scratch_mkdir("out");
    scratch_mkdir("out/original");
    scratch_put("out/original/params.json", "{}", 2);
    assert_ok(gac_new_dir_create(scratch_path("out"), true, &dir, err));
    put_inside(dir, "new", "new");
    gac_error e = GAC_ERROR_INIT;
    gac_status status = gac_new_dir_commit(dir, true, &e);
    /* It is either refused and untouched, or replaced completely. */
    assert_int_equal(scratch_count(""), 1);
    if (status == GAC_OK)
        assert_file_is(scratch_path("out/new"), "new");
    else
        assert_file_is(scratch_path("out/original/params.json"), "{}");
}

static void only_a_dir_is_replaced(void **state)
{
    (void)state;
    gac_new_dir *dir = NULL;
    scratch_put("out", "a file", 6);
    assert_fails(gac_new_dir_create(scratch_path("out"), true, &dir, err), GAC_FAILED,
                 "out: exists and is not a directory");
    assert_file_is(scratch_path("out"), "a file");
    assert_int_equal(scratch_count(""), 1);
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

/* Several processes write one directory and remove each other's leftovers. None
 * removes what a living one has begun. */
static void writers_of_one_directory(void **state)
{
    enum { N_WRITERS = 4, N_TIMES = 60 };
    (void)state;
    pid_t writers[N_WRITERS];
    for (int i = 0; i < N_WRITERS; i++) {
        writers[i] = fork();
        assert_true(writers[i] >= 0);
        if (writers[i] > 0)
            continue;
        int n_failed = 0;
        for (int j = 0; j < N_TIMES; j++) {
            struct stat s;
            gac_new_dir *dir = NULL;
            if (gac_new_dir_create(scratch_path("shared"), true, &dir, NULL) != GAC_OK) {
                n_failed++;
                continue;
            }
            n_failed += stat(gac_new_dir_path(dir), &s) != 0;
            gac_new_dir_discard(dir);
        }
        _exit(n_failed > 0);
    }
    for (int i = 0; i < N_WRITERS; i++) {
        int code = 0;
        assert_int_equal(waitpid(writers[i], &code, 0), writers[i]);
        assert_int_equal(code, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(only_regular_files_open),
        in_scratch(names_stay_inside),
        in_scratch(links_stay_inside),
        in_scratch(cache_blobs_may_be_linked),
        in_scratch(reads_end_with_the_file),
        in_scratch(slurps_within_limits),
        in_scratch(loads_json),
        in_scratch(copies_survive_short_writes),
        in_scratch(a_copy_that_does_not_fit_is_named),
        in_scratch(parked_files_come_back),
        in_scratch(parked_files_are_checked_by_size),
        in_scratch(parked_files_are_checked_by_time),
        in_scratch(parked_files_must_not_change),
        in_scratch(new_file_appears_on_commit),
        in_scratch(new_files_obey_the_umask),
        in_scratch(discarded_file_leaves_nothing),
        in_scratch(existing_file_is_kept),
        in_scratch(existing_file_is_replaced),
        in_scratch(only_a_file_is_replaced),
        in_scratch(what_a_killed_process_left_is_removed),
        in_scratch(unwritable_places_are_named),
        in_scratch(new_dir_appears_on_commit),
        in_scratch(existing_dir_is_kept),
        in_scratch(existing_dir_is_replaced),
        in_scratch(replaced_dir_leaves_no_remains),
        in_scratch(only_a_dir_is_replaced),
        in_scratch(writers_of_one_directory),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}

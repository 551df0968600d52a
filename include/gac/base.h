/* base: the foundation of all other rooms.
 *
 * Status codes and one-line errors, size arithmetic that cannot wrap, files
 * that are read by offset and written all or nothing, JSON through jansson,
 * progress and log lines for the person watching.
 *
 * Nothing here keeps global state. Every function may be called from any thread
 * as long as one object is used by one thread at a time. */
#ifndef GAC_BASE_H
#define GAC_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The version of this header, and the version of the library that runs. They
 * may differ in the last number only (gac/gac.h). */
#define GAC_VERSION "0.1.0"
const char *gac_version(void);

#if defined(__GNUC__)
#define GAC_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define GAC_PRINTF(fmt, args)
#endif

/* jansson's value type; include <jansson.h> to look inside one. */
struct json_t;

/* Status and error. */

/* The values are the program's exit codes. */
typedef enum gac_status {
    GAC_OK = 0,
    GAC_FAILED = 1,      /* an I/O error, a full disk, or a target that exists */
    GAC_USAGE = 2,       /* the caller's arguments make no sense */
    GAC_BAD_INPUT = 3,   /* a file breaks a rule of its format, or is missing */
    GAC_NO_RESOURCE = 4, /* no device, or not enough memory */
    GAC_CHECK = 5        /* everything worked, but a check did not hold */
} gac_status;

/* A failing function's explanation: one line without a newline. It names the
 * file, tensor and offset if there are any. */
typedef struct gac_error {
    gac_status status;
    char text[768];
} gac_error;

#define GAC_ERROR_INIT \
    { \
        GAC_OK, \
        { \
            0 \
        } \
    }

/* Fills err (which may be NULL) and returns status. */
gac_status gac_error_set(gac_error *err, gac_status status, const char *format, ...)
    GAC_PRINTF(3, 4);

/* Fills err with "out of memory" and returns GAC_NO_RESOURCE. */
gac_status gac_error_no_memory(gac_error *err);

/* Fills err with the text of errno about reading path. Returns GAC_BAD_INPUT if
 * the path does not exist, GAC_NO_RESOURCE if memory was short, and GAC_FAILED
 * otherwise. */
gac_status gac_error_errno(gac_error *err, const char *path);

/* Returns GAC_NO_RESOURCE, once, if jansson ran out of memory in this thread.
 * Code that builds a JSON document does not check each of jansson's setters.
 * Instead every failed allocation is noted, and this function is called before
 * a document is turned into text or a file gets its name. */
gac_status gac_memory_check(gac_error *err);

/* Makes an untrusted string safe for a one-line message. Control bytes and
 * broken UTF-8 become \xNN, and long text is cut in the middle. Writes at most
 * size bytes to buffer, always terminates it, and returns buffer. */
char *gac_quote(char *buffer, size_t size, const char *text);

/* Returns whether n_bytes of text are UTF-8 without NUL, as JSON requires. */
bool gac_is_utf8(const char *text, size_t n_bytes);

/* Checked arithmetic: true and *out set, or false and *out untouched. */

bool gac_mul_i64(int64_t a, int64_t b, int64_t *out);
bool gac_add_i64(int64_t a, int64_t b, int64_t *out);
bool gac_mul_u64(uint64_t a, uint64_t b, uint64_t *out);
bool gac_add_u64(uint64_t a, uint64_t b, uint64_t *out);

/* Rounds value up to the next multiple of unit. False if unit < 1, value < 0,
 * or the result does not fit. */
bool gac_round_up_i64(int64_t value, int64_t unit, int64_t *out);
bool gac_round_up_u64(uint64_t value, uint64_t unit, uint64_t *out);

/* Least common multiple of two positive numbers. */
bool gac_lcm_i64(int64_t a, int64_t b, int64_t *out);

static inline int64_t gac_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t gac_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Time. */

/* Time since an arbitrary moment, by a clock that never goes back. */
int64_t gac_now_ns(void);
double gac_now_s(void);

/* Files. */

/* A regular file open for reading by offset. */
typedef struct gac_file gac_file;

/* Opens path. It must be a regular file. */
gac_status gac_file_open(const char *path, gac_file **out, gac_error *err);

/* Opens name inside directory, if name came from an untrusted file. It refuses
 * separators, ".." and links that leave the directory. One kind of link may
 * leave it: from a snapshot of a Hugging Face cache to the blob store of that
 * cache. */
gac_status gac_file_open_inside(const char *directory, const char *name, gac_file **out,
                                gac_error *err);

void gac_file_close(gac_file *file); /* NULL is fine */

const char *gac_file_path(const gac_file *file); /* lives as long as file */
uint64_t gac_file_size(const gac_file *file);    /* when it was opened */

/* Reads exactly n_bytes at offset. It is an error if the file has become
 * shorter. */
gac_status gac_file_read(gac_file *file, uint64_t offset, void *buffer, size_t n_bytes,
                         gac_error *err);

/* Reads a whole file of at most max_bytes. *out is malloc'ed and has a NUL
 * after its *n_bytes bytes. The caller frees it. */
gac_status gac_file_slurp(gac_file *file, size_t max_bytes, char **out, size_t *n_bytes,
                          gac_error *err);

/* Writing, all or nothing. */

/* A file that appears under its name complete or not at all. */
typedef struct gac_new_file gac_new_file;

/* Starts a temporary file beside path. It first removes temporary files that
 * killed processes left for the same path. Without replace, a path that exists
 * is refused, now and again on commit. With replace, only a file or a link may
 * be replaced, because replacing a device would turn it into a file. */
gac_status gac_new_file_create(const char *path, bool replace, gac_new_file **out, gac_error *err);
gac_status gac_new_file_write(gac_new_file *file, const void *data, size_t n_bytes, gac_error *err);
/* Flushes the file to disk and renames it. Frees file in any case. */
gac_status gac_new_file_commit(gac_new_file *file, gac_error *err);
/* Removes the temporary file. NULL is fine. */
void gac_new_file_discard(gac_new_file *file);

/* JSON. */

/* Parses a whole text. Duplicate keys are refused. source names the file in
 * errors. The caller owns *out (json_decref). */
gac_status gac_json_parse(const char *text, size_t n_bytes, const char *source, struct json_t **out,
                          gac_error *err);

/* The same, but integers beyond 64 bits keep their digits, and real numbers
 * their spelling: 1e-05 stays 1e-05. gac_json_parse turns both into real
 * numbers. This function turns each into a string of a NUL and its text. No
 * other string has a NUL, and gac_json_text writes these strings as numbers
 * again. It also takes NaN, Infinity and -Infinity, which Python writes and
 * JSON does not have; gac_json_rounded turns them into null. */
gac_status gac_json_parse_exact(const char *text, size_t n_bytes, const char *source,
                                struct json_t **out, gac_error *err);
/* Returns the text of such a number, or NULL for any other value. */
const char *gac_json_digits(const struct json_t *value);
/* Returns what gac_json_parse would have returned for the same text, apart from
 * NaN and infinity. The caller owns it. NULL if memory is short. */
struct json_t *gac_json_rounded(const struct json_t *exact);

/* Reads and parses a file of at most max_bytes. */
gac_status gac_json_load(gac_file *file, size_t max_bytes, struct json_t **out, gac_error *err);

/* Writes value as text, with jansson's flags for dumping. It fails if value is
 * NULL, or if memory was short while value was built, because a member could
 * then be missing. *text is malloc'ed and ends with a NUL. n_bytes may be
 * NULL. */
gac_status gac_json_text(const struct json_t *value, size_t flags, char **text, size_t *n_bytes,
                         gac_error *err);

/* Writes value, indented, and a newline. */
gac_status gac_json_print(FILE *stream, const struct json_t *value, gac_error *err);

/* Returns a result object that starts with {"schema", "tool", "time",
 * "machine", "arguments"}, or NULL if memory is short. The caller owns it. */
struct json_t *gac_json_result(const char *schema, int argc, char **argv);

/* Progress and log. */

/* Reports progress of long work: a bar on a terminal after half a second, plain
 * lines elsewhere after two seconds. All functions accept NULL. */
typedef struct gac_progress gac_progress;

/* Reports to stream, usually stderr. Returns NULL if memory is short. */
gac_progress *gac_progress_create(FILE *stream);
void gac_progress_free(gac_progress *progress);
/* what names the work: "reading". unit is the plural of what is counted:
 * "files" or "bytes". total is the expected count. */
void gac_progress_start(gac_progress *progress, const char *what, const char *unit, uint64_t total);
void gac_progress_step(gac_progress *progress, uint64_t n_done);
void gac_progress_finish(gac_progress *progress);

/* The stream for diagnostics. A NULL log is silent. */
typedef struct gac_log {
    FILE *stream;
    int level; /* 0: warnings only; 1: also each step of the work */
} gac_log;

void gac_log_write(const gac_log *log, int level, const char *format, ...) GAC_PRINTF(3, 4);

/* Teams. */

/* Processes that share a job, on one machine or on many: those that one mpirun started,
 * numbered from 0. NULL is a process by itself; all functions take it. */
typedef struct gac_team gac_team;

/* Joins the processes that were started together with this one. *out is NULL if there are none.
 * GAC_NO_RESOURCE if there are and the MPI plug-in is missing or does not fit. It is searched
 * like the GPU plug-in (gac/device.h), as libgac_mpi.so and by GAC_MPI_PATH. */
gac_status gac_team_join(gac_team **out, gac_error *err);
/* Waits for all members. Returns GAC_OK if each of them came with GAC_OK. Else all of them get
 * the status and the text of the first one that failed, and the team is over. */
gac_status gac_team_agree(gac_team *team, gac_status status, gac_error *err);
/* Whether this is process 0, which alone writes and prints. If joining failed, so that team is
 * NULL, it goes by what mpirun said. */
bool gac_team_is_first(const gac_team *team);
/* Waits for all members, unless one is lost. Call it once, in the end. */
void gac_team_leave(gac_team *team);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

/* Runs other programs without a shell. Every wait has a time limit, and the
 * programs end when we do. */
#ifndef GAC_BASE_SPAWN_H
#define GAC_BASE_SPAWN_H

#include <gac/base.h>

/* Exit codes: the program was not started; or it was not, and the reason was lost. */
enum { GAC_SPAWN_NOT_FOUND = 127, GAC_SPAWN_UNKNOWN = 126 };

typedef struct gac_child_output {
    char *text; /* stdout; NUL-terminated, malloc'ed */
    size_t n_bytes;
    char last_line[320]; /* the last line of stderr that was not progress */
    int exit_code;       /* GAC_SPAWN_NOT_FOUND: not started; -1: a signal ended it */
} gac_child_output;

/* Runs argv without a shell and without input, and kills it if the calling
 * thread ends first. Lines of stderr of the form "progress DONE TOTAL" move the
 * progress bar, which is named what. More than max_bytes of output is a
 * failure, and so is a run longer than timeout_s. The caller frees out->text. */
gac_status gac_spawn(char *const argv[], double timeout_s, size_t max_bytes, gac_progress *progress,
                     const char *what, gac_child_output *out, gac_error *err);

/* The same for a program that reads n_input bytes of input, from /dev/stdin. */
gac_status gac_spawn_fed(char *const argv[], const char *input, size_t n_input, double timeout_s,
                         size_t max_bytes, gac_child_output *out, gac_error *err);

/* A program that keeps running: it reads a line and answers with one. */
typedef struct gac_child gac_child;
gac_status gac_child_start(char *const argv[], gac_child **out, gac_error *err);
/* Sends line, which ends with a newline, and waits for the answer as gac_spawn
 * does. If the program ends instead, out has its exit code and perhaps no text. */
gac_status gac_child_ask(gac_child *server, const char *line, double timeout_s, size_t max_bytes,
                         gac_progress *progress, const char *what, gac_child_output *out,
                         gac_error *err);
void gac_child_end(gac_child *server); /* NULL is fine */

#endif

/* Other programs: started without a shell, watched, never waited for longer
 * than agreed, and gone when we are. */
#ifndef GAC_BASE_SPAWN_H
#define GAC_BASE_SPAWN_H

#include <gac/base.h>

typedef struct gac_child_output {
    char *text; /* stdout; NUL-terminated, malloc'ed */
    size_t n_bytes;
    char last_line[320]; /* of stderr that was no progress */
    int exit_code;       /* 127: not found; -1: a signal ended it */
} gac_child_output;

/* Runs argv without a shell, with nothing to read; it is killed if the calling
 * thread ends meanwhile. Lines of stderr that start
 * with "progress DONE TOTAL" move the progress bar, named what. More than max_bytes of
 * output or timeout_s without end is a failure. free(out->text). */
gac_status gac_spawn(char *const argv[], double timeout_s, size_t max_bytes, gac_progress *progress,
                     const char *what, gac_child_output *out, gac_error *err);

/* A program that goes on: it reads a line, and answers with one. */
typedef struct gac_child gac_child;
gac_status gac_child_start(char *const argv[], gac_child **out, gac_error *err);
/* As gac_spawn; line ends with a newline. Where the program has ended instead of
 * answering, out has its exit code and perhaps no text. */
gac_status gac_child_ask(gac_child *server, const char *line, double timeout_s, size_t max_bytes,
                         gac_progress *progress, const char *what, gac_child_output *out,
                         gac_error *err);
void gac_child_end(gac_child *server); /* NULL is fine */

#endif

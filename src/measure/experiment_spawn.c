/* Other programs: started without a shell, watched, and never waited for
 * longer than agreed. */
#include "measure/experiment_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

typedef struct child {
    pid_t pid;
    int out, err; /* our ends of its pipes; -1 once closed */
} child;

static gac_status start(char *const argv[], child *c, gac_error *err)
{
    char q[200];
    int out[2], errors[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(out, O_CLOEXEC) != 0)
        return gac_error_set(err, GAC_FAILED, "pipe: %s", strerror(errno));
    if (pipe2(errors, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return gac_error_set(err, GAC_FAILED, "pipe: %s", strerror(errno));
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
    int failed = posix_spawnp(&c->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(errors[1]);
    c->out = out[0];
    c->err = errors[0];
    if (!failed)
        return GAC_OK;
    close(out[0]);
    close(errors[0]);
    return gac_error_set(err, GAC_NO_RESOURCE, "%s: %s", gac_quote(q, sizeof q, argv[0]),
                         strerror(failed));
}

/* Appends what one pipe has; closes it at its end. */
static bool drain(int *fd, char **text, size_t *n, size_t *room, size_t max_bytes)
{
    if (*room - *n < 65536) {
        size_t bigger = *room * 2 + (1 << 17);
        char *moved = realloc(*text, bigger);
        if (!moved)
            return false;
        *text = moved;
        *room = bigger;
    }
    ssize_t got = read(*fd, *text + *n, *room - *n - 1);
    if (got > 0)
        *n += (size_t)got;
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
        close(*fd);
        *fd = -1;
    }
    (*text)[*n] = 0;
    return *n <= max_bytes;
}

/* Takes whole lines off the front of stderr's text. */
static void take_lines(char *text, size_t *n, gac_progress *progress, const char *what,
                       exp_output *out)
{
    char *from = text, *end;
    while ((end = strchr(from, '\n')) != NULL) {
        unsigned long long done, total;
        *end = 0;
        if (sscanf(from, "progress %llu %llu", &done, &total) == 2) {
            if (done == 0)
                gac_progress_start(progress, what, "operator calls", total);
            gac_progress_step(progress, done);
        } else if (*from) {
            gac_quote(out->last_line, sizeof out->last_line, from);
        }
        from = end + 1;
    }
    *n -= (size_t)(from - text);
    memmove(text, from, *n + 1);
}

static const char *watch(child *c, double end_s, size_t max_bytes, gac_progress *progress,
                         const char *what, exp_output *out)
{
    size_t room = 0, err_n = 0, err_room = 0;
    char *err_text = NULL;
    const char *fault = NULL;
    while ((c->out >= 0 || c->err >= 0) && !fault) {
        struct pollfd fds[2] = { { c->out, POLLIN, 0 }, { c->err, POLLIN, 0 } };
        double left_s = end_s - gac_now_s();
        if (left_s <= 0) {
            fault = "did not end in time";
            break;
        }
        if (poll(fds, 2, left_s > 1 ? 1000 : (int)(left_s * 1000) + 1) < 0 && errno != EINTR)
            fault = "cannot be watched";
        if (!fault && fds[0].revents &&
            !drain(&c->out, &out->text, &out->n_bytes, &room, max_bytes))
            fault = "wrote more than it may";
        if (!fault && fds[1].revents) {
            if (!drain(&c->err, &err_text, &err_n, &err_room, 1 << 20))
                fault = "wrote more diagnostics than it may";
            if (err_text)
                take_lines(err_text, &err_n, progress, what, out);
        }
    }
    free(err_text);
    return fault;
}

/* Waits for the end of a child that has closed its pipes. */
static const char *reap(const child *c, double end_s, int *status)
{
    while (gac_now_s() < end_s) {
        pid_t got = waitpid(c->pid, status, WNOHANG);
        if (got == c->pid || (got < 0 && errno != EINTR))
            return NULL;
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return "did not end in time";
}

gac_status exp_spawn(char *const argv[], double timeout_s, size_t max_bytes, gac_progress *progress,
                     const char *what, exp_output *out, gac_error *err)
{
    child c = { 0, -1, -1 };
    char q[200];
    int status = 0;
    memset(out, 0, sizeof *out);
    gac_status started = start(argv, &c, err);
    if (started != GAC_OK)
        return started;
    double end_s = gac_now_s() + timeout_s;
    const char *fault = watch(&c, end_s, max_bytes, progress, what, out);
    if (c.out >= 0)
        close(c.out);
    if (c.err >= 0)
        close(c.err);
    if (!fault)
        fault = reap(&c, end_s, &status);
    if (fault) {
        kill(c.pid, SIGKILL);
        while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    gac_progress_finish(progress);
    out->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (!fault && !out->text && !(out->text = calloc(1, 1)))
        return gac_error_no_memory(err);
    if (!fault)
        return GAC_OK;
    free(out->text);
    out->text = NULL;
    return gac_error_set(err, GAC_FAILED, "%s %s", gac_quote(q, sizeof q, argv[0]), fault);
}

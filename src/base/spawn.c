#include "base/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct child {
    pid_t pid;
    int in, out, err; /* our ends of the pipes; -1 if closed */
    bool ended;
    int status; /* from waitpid, once the child has ended */
} child;

#define LAST_WORDS_S 2.0 /* how long to wait for a child that can no longer answer */

struct gac_child {
    child c;
};

/* Runs in the child: executes argv, or writes errno to failure. The kernel
 * kills the child when the thread that started it ends. in is -1 if there is no
 * input. */
static void become(char *const argv[], pid_t parent, int in, int out, int errors, int failure)
{
    if (in < 0)
        in = open("/dev/null", O_RDONLY);
    bool ready = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && in >= 0 && dup2(in, 0) >= 0 &&
                 dup2(out, 1) >= 0 && dup2(errors, 2) >= 0;
    if (ready && getppid() == parent)
        execvp(argv[0], argv);
    int code = errno;
    _exit(write(failure, &code, sizeof code) == (ssize_t)sizeof code ? GAC_SPAWN_NOT_FOUND
                                                                     : GAC_SPAWN_UNKNOWN);
}

/* Waits until the child runs its program. GAC_NO_RESOURCE if that failed, with its errno in *code;
 * GAC_FAILED if nobody knows. Then the child is gone. */
static gac_status wait_for_exec(pid_t pid, int failure, int *code)
{
    ssize_t got;
    while ((got = read(failure, code, sizeof *code)) < 0 && errno == EINTR)
        ;
    if (got == 0)
        return GAC_OK; /* exec closed the pipe: it succeeded */
    if (got != (ssize_t)sizeof *code) {
        *code = got < 0 ? errno : ECHILD;
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return got == (ssize_t)sizeof *code ? GAC_NO_RESOURCE : GAC_FAILED;
}

static void close_pipe(const int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

static void close_ends(child *c)
{
    int *ends[] = { &c->in, &c->out, &c->err };
    for (int i = 0; i < 3; i++) {
        if (*ends[i] >= 0)
            close(*ends[i]);
        *ends[i] = -1;
    }
}

/* reads: the child gets a pipe to read from, c->in. Otherwise it reads from input, unless that is
 * -1. */
static gac_status start(char *const argv[], bool reads, int input, child *c, gac_error *err)
{
    char q[200];
    int pipes[4][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 }, { -1, -1 } }; /* out, errors, failure */
    int *in = pipes[3]; /* a socket, because writing to a closed pipe would raise SIGPIPE */
    int code = 0;
    pid_t self = getpid();
    for (int i = 0; i < 3 && !code; i++)
        code = pipe2(pipes[i], O_CLOEXEC) == 0 ? 0 : errno;
    if (!code && reads && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0)
        code = errno;
    if (!code && (c->pid = fork()) < 0)
        code = errno;
    if (code) {
        for (int i = 0; i < 4; i++)
            close_pipe(pipes[i]);
        return gac_error_set(err, GAC_FAILED, "cannot start %s: %s",
                             gac_quote(q, sizeof q, argv[0]), strerror(code));
    }
    if (c->pid == 0)
        become(argv, self, reads ? in[1] : input, pipes[0][1], pipes[1][1], pipes[2][1]);
    for (int i = 0; i < (reads ? 4 : 3); i++)
        close(pipes[i][1]);
    gac_status status = wait_for_exec(c->pid, pipes[2][0], &code);
    close(pipes[2][0]);
    c->in = in[0];
    c->out = pipes[0][0];
    c->err = pipes[1][0];
    if (status == GAC_OK)
        return GAC_OK;
    close_ends(c);
    return gac_error_set(err, status, "%s: %s", gac_quote(q, sizeof q, argv[0]), strerror(code));
}

/* Appends what the pipe has, and closes it at its end. */
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

/* Removes whole lines from the front of stderr's text. */
static void take_lines(char *text, size_t *n, gac_progress *progress, const char *what,
                       gac_child_output *out)
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

/* Returns whether the child has ended, now or earlier. */
static bool has_ended(child *c)
{
    pid_t got = c->ended ? 0 : waitpid(c->pid, &c->status, WNOHANG);
    c->ended = c->ended || got == c->pid || (got < 0 && errno != EINTR);
    return c->ended;
}

/* Reads until both pipes are closed. If line is set, it also stops at a whole
 * line, or when the child has ended without one. */
static const char *watch(child *c, bool line, double end_s, size_t max_bytes,
                         gac_progress *progress, const char *what, gac_child_output *out)
{
    size_t room = 0, err_n = 0, err_room = 0;
    char *err_text = NULL;
    const char *fault = NULL;
    while ((c->out >= 0 || c->err >= 0) && !fault &&
           !(line && out->n_bytes > 0 && out->text[out->n_bytes - 1] == '\n')) {
        struct pollfd fds[2] = { { c->out, POLLIN, 0 }, { c->err, POLLIN, 0 } };
        if (line && (c->out < 0 || has_ended(c)))
            end_s = fmin(end_s, gac_now_s() + LAST_WORDS_S);
        double left_s = end_s - gac_now_s();
        if (left_s <= 0) { /* another process may still hold the pipes */
            fault = line && c->ended ? NULL : "did not end in time";
            break;
        }
        if (poll(fds, 2, left_s > 1 ? 1000 : (int)(left_s * 1000) + 1) < 0 && errno != EINTR)
            fault = "cannot be read from";
        if (!fault && fds[0].revents &&
            !drain(&c->out, &out->text, &out->n_bytes, &room, max_bytes))
            fault = "wrote too much output";
        if (!fault && fds[1].revents) {
            if (!drain(&c->err, &err_text, &err_n, &err_room, 1 << 20))
                fault = "wrote too many diagnostics";
            if (err_text)
                take_lines(err_text, &err_n, progress, what, out);
        }
    }
    free(err_text);
    return fault;
}

/* Waits for a child that has closed its pipes. */
static const char *reap(child *c, double end_s)
{
    while (!has_ended(c)) {
        if (gac_now_s() >= end_s)
            return "did not end in time";
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return NULL;
}

/* Waits for the child to end; kills it after a fault. */
static int finish(child *c, double end_s, const char **fault)
{
    close_ends(c);
    if (!*fault)
        *fault = reap(c, end_s);
    if (!c->ended) {
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
            ;
        c->ended = true;
    }
    return WIFEXITED(c->status) ? WEXITSTATUS(c->status) : -1;
}

/* Turns the fault, if any, and the exit code into a status. */
static gac_status conclude(const char *name, const char *fault, gac_child_output *out,
                           gac_error *err)
{
    char q[200];
    if (!fault && !out->text && !(out->text = calloc(1, 1)))
        return gac_error_no_memory(err);
    if (!fault)
        return GAC_OK;
    free(out->text);
    out->text = NULL;
    return gac_error_set(err, GAC_FAILED, "%s %s", gac_quote(q, sizeof q, name), fault);
}

static gac_status run(char *const argv[], int input, double timeout_s, size_t max_bytes,
                      gac_progress *progress, const char *what, gac_child_output *out,
                      gac_error *err)
{
    child c = { .in = -1, .out = -1, .err = -1 };
    memset(out, 0, sizeof *out);
    gac_status started = start(argv, false, input, &c, err);
    if (started == GAC_NO_RESOURCE)
        out->exit_code = GAC_SPAWN_NOT_FOUND;
    if (started != GAC_OK)
        return started;
    double end_s = gac_now_s() + timeout_s;
    const char *fault = watch(&c, false, end_s, max_bytes, progress, what, out);
    out->exit_code = finish(&c, end_s, &fault);
    gac_progress_finish(progress);
    return conclude(argv[0], fault, out, err);
}

gac_status gac_spawn(char *const argv[], double timeout_s, size_t max_bytes, gac_progress *progress,
                     const char *what, gac_child_output *out, gac_error *err)
{
    return run(argv, -1, timeout_s, max_bytes, progress, what, out, err);
}

/* Writes all of input to a file in memory. */
static bool fill(int fd, const char *input, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, input, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        input += put;
        n -= (size_t)put;
    }
    return lseek(fd, 0, SEEK_SET) == 0;
}

gac_status gac_spawn_fed(char *const argv[], const char *input, size_t n_input, double timeout_s,
                         size_t max_bytes, gac_child_output *out, gac_error *err)
{
    char q[200];
    int fd = memfd_create("input", MFD_CLOEXEC);
    gac_status status = fd >= 0 && fill(fd, input, n_input)
                            ? run(argv, fd, timeout_s, max_bytes, NULL, "", out, err)
                            : gac_error_set(err, GAC_FAILED, "cannot write the input of %s: %s",
                                            gac_quote(q, sizeof q, argv[0]), strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

gac_status gac_child_start(char *const argv[], gac_child **out, gac_error *err)
{
    gac_child *server = calloc(1, sizeof *server);
    if (!server)
        return gac_error_no_memory(err);
    gac_status status = start(argv, true, -1, &server->c, err);
    if (status == GAC_OK)
        *out = server;
    else
        free(server);
    return status;
}

gac_status gac_child_ask(gac_child *server, const char *line, double timeout_s, size_t max_bytes,
                         gac_progress *progress, const char *what, gac_child_output *out,
                         gac_error *err)
{
    child *c = &server->c;
    struct pollfd early = { c->out, POLLIN, 0 };
    memset(out, 0, sizeof *out);
    if (c->out < 0)
        return gac_error_set(err, GAC_FAILED, "the program has ended");
    const char *fault = poll(&early, 1, 0) > 0 && early.revents & POLLIN && !has_ended(c)
                            ? "wrote output before it was asked"
                            : NULL;
    size_t n = strlen(line);
    bool asked = !fault && send(c->in, line, n, MSG_NOSIGNAL) == (ssize_t)n;
    /* A failed send means that the child has ended. Its last output explains why. */
    double end_s = gac_now_s() + (asked ? timeout_s : LAST_WORDS_S);
    if (!fault)
        fault = watch(c, true, end_s, max_bytes, progress, what, out);
    if (fault || out->n_bytes == 0 || out->text[out->n_bytes - 1] != '\n')
        out->exit_code = finish(c, gac_now_s() + LAST_WORDS_S, &fault);
    gac_progress_finish(progress);
    return conclude("the program", fault, out, err);
}

void gac_child_end(gac_child *server)
{
    const char *fault = NULL;
    if (!server)
        return;
    finish(&server->c, gac_now_s() + LAST_WORDS_S, &fault);
    free(server);
}

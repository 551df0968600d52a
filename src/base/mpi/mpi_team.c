/* libgac_mpi.so: a team through MPI. */
#include "base/team.h"

#include <mpi.h>
#include <string.h>
#include <time.h>

/* MPI counts in int. */
#define MOST_BYTES ((size_t)1 << 28)
#define MOST_NUMBERS (MOST_BYTES / sizeof(double))
#define EAGER_LOOKS 1000 /* that many times before a wait sleeps */
#define SLEEP_NS 200000L /* between two looks */
#define PATIENCE_S 0.3   /* of an interrupted job: mpirun kills after a second */

static bool is_ours; /* we started MPI, and end it */

static gac_status explain(int code, const char *what, gac_error *err)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    if (code == MPI_SUCCESS)
        return GAC_OK;
    MPI_Error_string(code, text, &n);
    return gac_error_set(err, GAC_FAILED, "MPI cannot %s: %s", what, text);
}

static gac_status open_team(int *member, int *size, gac_error *err)
{
    int is_started = 0, level, code = MPI_Initialized(&is_started);
    if (code == MPI_SUCCESS && !is_started)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    is_ours = !is_started;
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(MPI_COMM_WORLD, member);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(MPI_COMM_WORLD, size);
    return explain(code, "start", err);
}

static void close_team(void)
{
    if (is_ours)
        MPI_Finalize();
}

static gac_status find_least(int *value, const volatile int *cancel, gac_error *err)
{
    const struct timespec pause = { 0, SLEEP_NS };
    MPI_Request request;
    int is_done = 0;
    double cancelled = 0; /* when */
    int code = MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request);
    for (int i = 0; code == MPI_SUCCESS && !is_done; i++) {
        code = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
        if (is_done || i < EAGER_LOOKS)
            continue;
        i = EAGER_LOOKS;
        nanosleep(&pause, NULL);
        if (!cancel || !*cancel)
            continue;
        cancelled = cancelled > 0 ? cancelled : MPI_Wtime();
        if (MPI_Wtime() - cancelled > PATIENCE_S)
            return gac_error_set(err, GAC_FAILED, "interrupted while waiting for other processes");
    }
    return explain(code, "reach the other processes", err);
}

static gac_status sum(double *data, size_t n, gac_error *err)
{
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < n && code == MPI_SUCCESS; at += MOST_NUMBERS) {
        const size_t piece = n - at < MOST_NUMBERS ? n - at : MOST_NUMBERS;
        code =
            MPI_Allreduce(MPI_IN_PLACE, data + at, (int)piece, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    return explain(code, "add up over all processes", err);
}

static gac_status broadcast(int from, void *data, size_t n_bytes, gac_error *err)
{
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < n_bytes && code == MPI_SUCCESS; at += MOST_BYTES) {
        const size_t piece = n_bytes - at < MOST_BYTES ? n_bytes - at : MOST_BYTES;
        code = MPI_Bcast((char *)data + at, (int)piece, MPI_BYTE, from, MPI_COMM_WORLD);
    }
    return explain(code, "send to all processes", err);
}

__attribute__((visibility("default"))) const gac_team_ops *gac_team_entry(void);

const gac_team_ops *gac_team_entry(void)
{
    static const gac_team_ops ops = { .abi = GAC_TEAM_ABI,
                                      .open = open_team,
                                      .least = find_least,
                                      .sum = sum,
                                      .broadcast = broadcast,
                                      .close = close_team };
    return &ops;
}

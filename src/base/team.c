#include "base/team.h"

#include "base/arguments.h"
#include "base/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct gac_team {
    const gac_team_ops *ops;
    int member, size;
    bool is_over; /* one failed: there is no more to say */
    bool is_lost; /* the others did not answer */
    const volatile int *cancel;
    gac_error why;
};

static const gac_library_kind mpi_library = {
    "mpi", "MPI", "GAC_MPI_PATH", "install libopenmpi-dev (or another MPI) and build gac again",
    GAC_TEAM_ENTRY
};

/* How those who start processes tell them. */
static const struct {
    const char *size, *member;
} starters[] = {
    { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK" }, /* Open MPI */
    { "PMI_SIZE", "PMI_RANK" },                         /* MPICH, Intel MPI */
    { "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK" },   /* MVAPICH */
    { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID" },         /* srun */
};

/* The number of processes that were started together, and which of them this is. */
static int started(int *member)
{
    *member = 0;
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++) {
        const char *size = getenv(starters[i].size), *own = getenv(starters[i].member);
        if (!size || !own)
            continue;
        *member = atoi(own);
        return atoi(size);
    }
    return 1;
}

static gac_status load(int n, const gac_team_ops **out, gac_error *err)
{
    char *path = NULL, q[256];
    void *library = NULL;
    gac_team_entry_fn entry = NULL;
    gac_error why = GAC_ERROR_INIT;
    gac_status status = gac_library_find_own(&mpi_library, &path, &why);
    if (status == GAC_OK)
        status = gac_library_open(&mpi_library, path, &entry, &library, &why);
    if (status == GAC_OK) {
        *out = entry();
        if ((*out)->abi != GAC_TEAM_ABI) {
            status = gac_error_set(&why, GAC_NO_RESOURCE, "%s: made for another version of gac",
                                   gac_quote(q, sizeof q, path));
            dlclose(library);
        }
    }
    free(path);
    return status == GAC_OK
               ? GAC_OK
               : gac_error_set(err, status, "%d processes cannot work together: %s", n, why.text);
}

gac_status gac_team_join(gac_team **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, out);
    int member;
    const int n = started(&member);
    *out = NULL;
    if (n <= 1)
        return GAC_OK;
    gac_team *t = calloc(1, sizeof *t);
    if (!t)
        return gac_error_no_memory(err);
    gac_status status = load(n, &t->ops, err);
    if (status == GAC_OK)
        status = t->ops->open(&t->member, &t->size, err);
    if (status == GAC_OK && t->size != n) {
        status = gac_error_set(err, GAC_NO_RESOURCE,
                               "%d processes were started together, but the MPI plug-in sees %d: "
                               "it was built with another MPI than that of mpirun",
                               n, t->size);
        t->ops->close();
    }
    if (status == GAC_OK)
        *out = t;
    else
        free(t);
    return status;
}

void gac_team_leave(gac_team *team)
{
    if (!team)
        return;
    if (!team->is_lost) /* else mpirun sees that this process ends, and ends the others */
        team->ops->close();
    free(team);
}

void gac_team_watch(gac_team *team, const volatile int *cancel)
{
    if (team)
        team->cancel = cancel;
}

int gac_team_member(const gac_team *team)
{
    return team ? team->member : 0;
}

int gac_team_size(const gac_team *team)
{
    return team ? team->size : 1;
}

bool gac_team_is_first(const gac_team *team)
{
    int member;
    if (team)
        return team->member == 0;
    started(&member);
    return member == 0;
}

/* Keeps this process's failure, for all. */
static void state_failure(gac_team *t, gac_status status, const gac_error *err)
{
    const char *text = err && err->text[0] ? err->text : "failed";
    if (t->member == 0)
        gac_error_set(&t->why, status, "%s", text);
    else
        gac_error_set(&t->why, status, "process %d: %s", t->member, text);
}

/* Ends the team if the others did not answer. */
static void lose(gac_team *t, gac_status status)
{
    t->is_over = status != GAC_OK || t->is_over;
    t->is_lost = status != GAC_OK || t->is_lost;
}

gac_status gac_team_agree(gac_team *team, gac_status status, gac_error *err)
{
    gac_team *t = team;
    if (!t)
        return status;
    if (!t->is_over) {
        int first = status == GAC_OK ? t->size : t->member; /* of those that failed */
        if (status != GAC_OK)
            state_failure(t, status, err);
        lose(t, t->ops->least(&first, t->cancel, &t->why));
        if (!t->is_over && first == t->size)
            return GAC_OK;
        if (!t->is_over)
            lose(t, t->ops->broadcast(first, &t->why, sizeof t->why, &t->why));
        t->is_over = true;
    }
    return gac_error_set(err, t->why.status, "%s", t->why.text);
}

gac_status gac_team_sum(gac_team *team, double *data, size_t n, gac_error *err)
{
    gac_status status = gac_team_agree(team, GAC_OK, err);
    if (!team || status != GAC_OK)
        return status;
    lose(team, team->ops->sum(data, n, &team->why));
    return team->is_over ? gac_team_agree(team, GAC_OK, err) : GAC_OK;
}

gac_status gac_team_broadcast(gac_team *team, int from, void *data, size_t n_bytes, gac_error *err)
{
    gac_status status = gac_team_agree(team, GAC_OK, err);
    if (!team || status != GAC_OK)
        return status;
    lose(team, team->ops->broadcast(from, data, n_bytes, &team->why));
    return team->is_over ? gac_team_agree(team, GAC_OK, err) : GAC_OK;
}

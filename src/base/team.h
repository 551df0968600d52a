/* Processes that share a job (gac/base.h): what a plug-in provides for them, and what rooms do
 * with it. For a team of NULL, one process, all of it does nothing.
 *
 * All members make the same calls in the same order. One that fails makes no more of them, only
 * gac_team_agree with its status in the end; the next call of each other one then fails, too. */
#ifndef GAC_BASE_TEAM_H
#define GAC_BASE_TEAM_H

#include <gac/base.h>

#define GAC_TEAM_ABI 1
#define GAC_TEAM_ENTRY "gac_team_entry"

typedef struct gac_team_ops {
    int abi;
    gac_status (*open)(int *member, int *size, gac_error *err);
    /* Waits for all without using a processor, and sets *value to the least of theirs.
     * Gives up when *cancel is set. */
    gac_status (*least)(int *value, const volatile int *cancel, gac_error *err);
    gac_status (*sum)(double *data, size_t n, gac_error *err);
    gac_status (*broadcast)(int from, void *data, size_t n_bytes, gac_error *err);
    void (*close)(void); /* waits for all */
} gac_team_ops;

typedef const gac_team_ops *(*gac_team_entry_fn)(void);

int gac_team_member(const gac_team *team); /* 0 to size - 1 */
int gac_team_size(const gac_team *team);

/* Ends waiting for the others when *cancel is set; NULL: never. */
void gac_team_watch(gac_team *team, const volatile int *cancel);

/* Whether item i of a list is this process's to do. */
static inline bool gac_team_is_mine(const gac_team *team, int i)
{
    return i % gac_team_size(team) == gac_team_member(team);
}

/* Adds up n numbers over all members; each gets the sums. */
gac_status gac_team_sum(gac_team *team, double *data, size_t n, gac_error *err);
/* Gives all members what the one called from has. */
gac_status gac_team_broadcast(gac_team *team, int from, void *data, size_t n_bytes, gac_error *err);

#endif

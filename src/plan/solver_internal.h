/* The exact solver's parts: the problem in integers, its linear relaxation,
 * lists of states, and the search.
 *
 * Costs are counted from the cheapest choice of each class and divided by
 * their common divisor. Values are counted from the lowest choice of each
 * class on a grid of 2^-shift and divided by theirs. From there on every
 * comparison is between integers; products are taken in 128 bits. */
#ifndef GAC_SOLVER_INTERNAL_H
#define GAC_SOLVER_INTERNAL_H

#include <gac/plan.h>

__extension__ typedef __int128 gac_i128;

typedef struct gac_mck_item {
    int64_t cost;
    int64_t value;
    int32_t index; /* in the caller's class */
} gac_mck_item;

/* Value saved per cost spent; cost > 0. */
typedef struct gac_mck_slope {
    int64_t value;
    int64_t cost;
} gac_mck_slope;

/* Undominated choices: in a class, cost rises and value falls strictly. The
 * first item has cost 0, the last one value 0. */
typedef struct gac_mck {
    int32_t n_classes;
    int64_t *first;      /* (n_classes + 1): where a class begins in items */
    gac_mck_item *items; /* (first[n_classes]) */
    int32_t max_items;   /* of one class */
    int64_t capacity;    /* what may be spent above the cheapest choices */
    int64_t least_cost;  /* of the cheapest choices, in the caller's unit */
    int64_t cost_unit;   /* common divisor taken out */
    int64_t value_unit;  /* the same for values, in grid steps */
    int shift;           /* the grid is 2^-shift */
    double least_value;  /* sum of the lowest values */
    bool exact;          /* every value is a multiple of the grid */
    bool roomy;          /* the capacity allows the last item everywhere */
} gac_mck;

/* Checks the classes and brings them into the form above. GAC_CHECK when the
 * cheapest choices exceed budget. On failure there is nothing to dispose. */
gac_status gac_mck_prepare(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                           gac_mck *out, gac_error *err);
void gac_mck_dispose(gac_mck *mck);

/* The caller's value of a sum of item values. */
double gac_mck_real(const gac_mck *mck, int64_t value);

/* Classes with equal items, which the search adds as one. */
typedef struct gac_mck_unit {
    int32_t first; /* in members */
    int32_t n_members;
    int32_t low_pick;            /* the lower of the at most two picks among them */
    int32_t line_low, line_high; /* first and last item on the relaxation's line */
    int32_t n_line;              /* items on it */
    bool has_up, has_down;
    gac_mck_slope up;   /* the best a member can still gain by spending more */
    gac_mck_slope down; /* the least a member loses by spending less */
} gac_mck_unit;

/* The linear relaxation: hull items bought in order of slope until one, the
 * break, does not fit. */
typedef struct gac_mck_lp {
    int32_t *pick; /* (n_classes): item inside the class */
    int64_t cost;  /* of the picks, at most the capacity */
    int64_t value;
    gac_mck_slope slope; /* of the break */
    int64_t bound;       /* no solution has a lower value */
    int32_t *members;    /* (n_classes): classes ordered by unit */
    gac_mck_unit *units; /* (n_units) */
    int32_t *by_up;      /* (n_units): steepest up first */
    int32_t *by_down;    /* (n_units): flattest down first */
    int32_t n_units;
} gac_mck_lp;

/* Solves the relaxation of a problem that is not roomy. */
gac_status gac_mck_relax(const gac_mck *mck, gac_mck_lp *out, gac_error *err);
void gac_mck_lp_dispose(gac_mck_lp *lp);

int gac_slope_compare(gac_mck_slope a, gac_mck_slope b); /* sign of a - b */
uint64_t gac_mck_random(uint64_t *state);                /* the same every time */
int64_t gac_gcd_i64(int64_t a, int64_t b);               /* of numbers >= 0 */

/* One decision other than the relaxation's, and those before it. */
typedef struct gac_mck_node {
    int32_t parent;      /* -1: none */
    int32_t class_index; /* or ~unit: so many of its classes move along the line */
    int32_t pick;        /* at least 0; n_members of a unit stands for none moved */
} gac_mck_node;

/* The relaxation's picks with some classes changed. */
typedef struct gac_mck_state {
    int64_t cost;
    int64_t value;
    int32_t node; /* -1: nothing changed */
} gac_mck_state;

/* Cost rises, value falls strictly: no state is dominated by another. */
typedef struct gac_mck_list {
    gac_mck_state *states;
    size_t n_states, room;
} gac_mck_list;

/* What the choices of one class add to a state. */
typedef struct gac_mck_moves {
    int32_t class_index;
    int32_t n_moves;
    int64_t *cost;                   /* (max_items), rising */
    int64_t *value;                  /* (max_items) */
    int32_t *pick;                   /* (max_items) */
    int64_t *head_cost, *head_value; /* (max_items): the merge's next of each move */
    size_t *head;                    /* (max_items) */
    int32_t *tree;                   /* (4 * max_items): tournament of the heads */
} gac_mck_moves;

/* Which states are worth keeping: what classes still outside can at best do
 * for a state, and the window of costs it must lie in. */
typedef struct gac_mck_rule {
    gac_mck_slope up, down;
    bool has_down; /* false: a state above capacity stays there */
    int64_t least_cost, most_cost;
} gac_mck_rule;

typedef enum gac_mck_outcome {
    GAC_MCK_DONE,
    GAC_MCK_FULL, /* more states than allowed */
    GAC_MCK_TIME,
    GAC_MCK_NO_MEMORY
} gac_mck_outcome;

typedef struct gac_mck_search {
    const gac_mck *mck;
    const gac_mck_lp *lp;
    int64_t deadline_ns; /* 0: none */
    size_t max_states;   /* that a list may have */
    bool no_history;     /* states need not remember their decisions */

    int64_t best_value; /* of the best solution found; best_pick has its items */
    int32_t *best_pick; /* (n_classes) */
    int64_t bound;      /* proved: no solution has a lower value */

    size_t limit;        /* of states in a list, now */
    size_t keep;         /* 0: a full list ends the merge; else thin it to this many */
    int64_t wanted_cost; /* thinning prefers states near it */
    bool thinned;        /* since it was last set to false */
    int64_t lost_bound;  /* least bound of a state thinned out */

    gac_mck_node *nodes;
    size_t n_nodes, node_room, collect_at;
    double *keys; /* (2 * room): scratch of thinning */
    size_t key_room;
    gac_mck_moves moves;

    /* The best solution the running merge has met. */
    int32_t found_parent, found_class, found_pick;
    bool found;
} gac_mck_search;

/* Puts into *to the undominated states of from + moves that pass the rule.
 * Solutions that beat best_value lower it and are noted in found_*. */
gac_mck_outcome gac_mck_merge(gac_mck_search *search, const gac_mck_list *from,
                              const gac_mck_rule *rule, gac_mck_list *to);

/* Keeps the n_keep most promising states. */
bool gac_mck_thin(gac_mck_search *search, const gac_mck_rule *rule, gac_mck_list *list,
                  size_t n_keep);

/* Frees the nodes that no state of the lists needs, when there are many. */
gac_mck_outcome gac_mck_collect(gac_mck_search *search, gac_mck_list *const *lists, int n_lists);

/* No solution that grows out of state has a lower value. */
int64_t gac_mck_state_bound(int64_t capacity, const gac_mck_rule *rule, const gac_mck_state *state);

bool gac_mck_list_reserve(gac_mck_list *list, size_t n_states);
bool gac_mck_moves_init(gac_mck_moves *moves, int32_t max_moves);
void gac_mck_moves_dispose(gac_mck_moves *moves);

/* Writes one decision, as a node has it, over pick. */
void gac_mck_apply_one(const gac_mck_search *search, int32_t class_index, int32_t chosen,
                       int32_t *pick);

/* Writes the decisions of node and those before it over pick. */
void gac_mck_apply(const gac_mck_search *search, int32_t node, int32_t *pick);

bool gac_mck_late(const gac_mck_search *search);

/* Finds the best solution and proves it; search is filled up to keep. */
gac_mck_outcome gac_mck_run(gac_mck_search *search);

#endif

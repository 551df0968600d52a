/* The parts of the exact solver: the problem in integers, its linear
 * relaxation, lists of states, and the search.
 *
 * Costs are relative to the cheapest choice of their class and divided by their
 * common divisor. Values are relative to the lowest value of their class,
 * rounded to a grid of 2^-shift, and divided by their common divisor. From then
 * on, all comparisons are between integers. Products use 128 bits. */
#ifndef GAC_SOLVER_INTERNAL_H
#define GAC_SOLVER_INTERNAL_H

#include <gac/plan.h>

__extension__ typedef __int128 gac_i128;

typedef struct gac_mck_item {
    int64_t cost;
    int64_t value;
    int32_t index; /* index in the caller's class */
} gac_mck_item;

/* The value saved per cost spent. cost > 0. */
typedef struct gac_mck_slope {
    int64_t value;
    int64_t cost;
} gac_mck_slope;

/* The problem: the choices of each class that no other choice beats in both
 * cost and value. In a class, cost rises and value falls strictly. The first
 * item has cost 0, the last one value 0. */
typedef struct gac_mck {
    int32_t n_classes;
    int64_t *first;      /* (n_classes + 1): start of each class in items */
    gac_mck_item *items; /* (first[n_classes]) */
    int32_t max_items;   /* largest number of items of a class */
    int64_t capacity;    /* budget above the cheapest choices */
    int64_t least_cost;  /* cost of the cheapest choices, in the caller's unit */
    int64_t cost_unit;   /* common divisor of all costs */
    int64_t value_unit;  /* common divisor of all values, in grid steps */
    int shift;           /* the grid is 2^-shift */
    double least_value;  /* sum of the lowest values */
    bool exact;          /* every value is a multiple of the grid */
    bool roomy;          /* the capacity allows every class its last item */
} gac_mck;

/* Checks the classes and brings them into the form above. GAC_CHECK if the
 * cheapest choices exceed budget. After a failure there is nothing to dispose
 * of. */
gac_status gac_mck_prepare(const gac_choice_class *classes, int32_t n_classes, int64_t budget,
                           gac_mck *out, gac_error *err);
void gac_mck_dispose(gac_mck *mck);

/* Converts a sum of item values to the caller's unit. */
double gac_mck_real(const gac_mck *mck, int64_t value);

/* A unit: classes with equal items. The search adds them together. */
typedef struct gac_mck_unit {
    int32_t first; /* index in members */
    int32_t n_members;
    int32_t low_pick; /* the lower pick of its members, which have at most two different ones */
    int32_t line_low,
        line_high;  /* first and last item on the line of the break's slope through the pick */
    int32_t n_line; /* number of items on that line */
    bool has_up, has_down;
    gac_mck_slope up;   /* the best gain of a member that spends more */
    gac_mck_slope down; /* the least loss of a member that spends less */
} gac_mck_unit;

/* The linear relaxation. It buys items of the convex hulls in order of slope.
 * The first one that does not fit is called the break. */
typedef struct gac_mck_lp {
    int32_t *pick; /* (n_classes): chosen item of each class */
    int64_t cost;  /* cost of the picks, at most the capacity */
    int64_t value;
    gac_mck_slope slope; /* slope of the break */
    int64_t bound;       /* no solution has a lower value */
    int32_t *members;    /* (n_classes): classes ordered by unit */
    gac_mck_unit *units; /* (n_units) */
    int32_t *by_up;      /* (n_units): steepest up first */
    int32_t *by_down;    /* (n_units): flattest down first */
    int32_t n_units;
} gac_mck_lp;

/* Solves the relaxation. The problem must not be roomy. */
gac_status gac_mck_relax(const gac_mck *mck, gac_mck_lp *out, gac_error *err);
void gac_mck_lp_dispose(gac_mck_lp *lp);

int gac_slope_compare(gac_mck_slope a, gac_mck_slope b); /* sign of a - b */
uint64_t gac_mck_random(uint64_t *state);                /* always the same sequence */
int64_t gac_gcd_i64(int64_t a, int64_t b);               /* of two numbers >= 0 */

/* One decision that differs from the relaxation, linked to the decisions before
 * it. */
typedef struct gac_mck_node {
    int32_t parent;      /* -1: none */
    int32_t class_index; /* a class; or ~unit if several classes of a unit move along its line */
    int32_t pick; /* the item; for a unit, n_members plus the number of classes that move up */
} gac_mck_node;

/* A partial solution: the relaxation's picks with some classes changed. */
typedef struct gac_mck_state {
    int64_t cost;
    int64_t value;
    int32_t node; /* -1: nothing changed */
} gac_mck_state;

/* States in order. Cost rises and value falls strictly, so that no state
 * dominates another. */
typedef struct gac_mck_list {
    gac_mck_state *states;
    size_t n_states, room;
} gac_mck_list;

/* The choices of one class, as changes of a state's cost and value. */
typedef struct gac_mck_moves {
    int32_t class_index;
    int32_t n_moves;
    int64_t *cost;                   /* (max_items), rising */
    int64_t *value;                  /* (max_items) */
    int32_t *pick;                   /* (max_items) */
    int64_t *head_cost, *head_value; /* (max_items): the next state of each move in the merge */
    size_t *head;                    /* (max_items) */
    int32_t *tree;                   /* (4 * max_items): tournament tree of these states */
} gac_mck_moves;

/* Decides which states are kept, by the best that the classes not yet added can
 * do for a state, and by a range of costs. */
typedef struct gac_mck_rule {
    gac_mck_slope up, down;
    bool has_down; /* if false, a state above the capacity can never come back below it */
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
    size_t max_states;   /* limit of states in a list */
    bool no_history;     /* states do not record their decisions */

    int64_t best_value; /* value of the best solution found */
    int32_t *best_pick; /* (n_classes) */
    int64_t bound;      /* no solution has a lower value; proved */

    size_t limit;        /* present limit of states in a list */
    size_t keep;         /* a full list is thinned to this many states; 0: it ends the merge */
    int64_t wanted_cost; /* thinning prefers states near it */
    bool thinned;        /* a list was thinned since this was last set to false */
    int64_t lost_bound;  /* least bound of all states that thinning removed */

    gac_mck_node *nodes;
    size_t n_nodes, node_room, collect_at;
    double *keys; /* (2 * key_room): scratch for thinning */
    size_t key_room;
    gac_mck_moves moves;

    /* The best solution that the present merge has found. */
    int32_t found_parent, found_class, found_pick;
    bool found;
} gac_mck_search;

/* Merges from with the moves. *to gets the states that the rule accepts and no
 * other state dominates. A solution that is better than best_value replaces it
 * and is noted in found_*. */
gac_mck_outcome gac_mck_merge(gac_mck_search *search, const gac_mck_list *from,
                              const gac_mck_rule *rule, gac_mck_list *to);

/* Reduces a list to its n_keep most promising states. */
bool gac_mck_thin(gac_mck_search *search, const gac_mck_rule *rule, gac_mck_list *list,
                  size_t n_keep);

/* Frees the nodes that no state of the lists uses, if there are many. */
gac_mck_outcome gac_mck_collect(gac_mck_search *search, gac_mck_list *const *lists, int n_lists);

/* Returns a lower bound of the value of all solutions that extend state. */
int64_t gac_mck_state_bound(int64_t capacity, const gac_mck_rule *rule, const gac_mck_state *state);

bool gac_mck_list_reserve(gac_mck_list *list, size_t n_states);
bool gac_mck_moves_init(gac_mck_moves *moves, int32_t max_moves);
void gac_mck_moves_dispose(gac_mck_moves *moves);

/* Applies one decision of a node to pick. */
void gac_mck_apply_one(const gac_mck_search *search, int32_t class_index, int32_t chosen,
                       int32_t *pick);

/* Applies the decisions of node and of its ancestors to pick. */
void gac_mck_apply(const gac_mck_search *search, int32_t node, int32_t *pick);

bool gac_mck_late(const gac_mck_search *search);

/* Finds the best solution and proves it. The caller sets mck, lp, deadline_ns,
 * max_states, best_pick and moves. */
gac_mck_outcome gac_mck_run(gac_mck_search *search);

#endif

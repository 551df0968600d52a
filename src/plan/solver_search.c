#include "plan/solver_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAR_COST (INT64_MAX / 2)        /* larger than any cost */
#define IMPROVE_LIMIT ((size_t)1 << 19) /* states in a list before it is thinned */
#define IMPROVE_CLASSES 32              /* classes that one call of improve considers */
#define IMPROVE_MEMBERS 8               /* least number of classes of one unit */
#define BEAM_STATES ((size_t)1 << 12)   /* states that are kept if the complete list does not fit */

/* Takes units around the break, alternately from both sides. */
typedef struct core {
    bool *taken; /* (n_units) */
    int32_t next_up, next_down;
    bool turn_up;
} core;

static bool core_init(core *c, const gac_mck_lp *lp)
{
    *c = (core){ .taken = calloc((size_t)lp->n_units, sizeof(bool)), .turn_up = true };
    return c->taken != NULL;
}

/* Skips units that were already taken. */
static void core_skip_taken(core *c, const gac_mck_lp *lp)
{
    while (c->next_up < lp->n_units && c->taken[lp->by_up[c->next_up]])
        c->next_up++;
    while (c->next_down < lp->n_units && c->taken[lp->by_down[c->next_down]])
        c->next_down++;
}

/* Takes the next unit; -1 if there is none. core_skip_taken was called before, and
 * is called again. */
static int32_t core_take(core *c, const gac_mck_lp *lp)
{
    if (c->next_up >= lp->n_units)
        return -1;
    int32_t unit = c->turn_up ? lp->by_up[c->next_up] : lp->by_down[c->next_down];
    c->turn_up = !c->turn_up;
    c->taken[unit] = true;
    core_skip_taken(c, lp);
    return unit;
}

/* Returns the rule for the units not yet taken. */
static gac_mck_rule core_rule(const core *c, const gac_mck_lp *lp)
{
    gac_mck_rule rule = { { 0, 1 }, { 0, 1 }, false, -FAR_COST, FAR_COST };
    if (c->next_up < lp->n_units && lp->units[lp->by_up[c->next_up]].has_up)
        rule.up = lp->units[lp->by_up[c->next_up]].up;
    if (c->next_down < lp->n_units && lp->units[lp->by_down[c->next_down]].has_down) {
        rule.down = lp->units[lp->by_down[c->next_down]].down;
        rule.has_down = true;
    }
    return rule;
}

static gac_mck_rule join_unit(gac_mck_rule rule, const gac_mck_unit *unit)
{
    if (unit->has_up && gac_slope_compare(unit->up, rule.up) > 0)
        rule.up = unit->up;
    if (unit->has_down && (!rule.has_down || gac_slope_compare(unit->down, rule.down) < 0)) {
        rule.down = unit->down;
        rule.has_down = true;
    }
    return rule;
}

/* Lists the choices of a class. A choice stays only if the relaxation with this
 * choice fixed, at the break's slope, is below the best solution. */
static void list_moves(gac_mck_search *search, int32_t class_index)
{
    const gac_mck_lp *lp = search->lp;
    const gac_mck_item *items = search->mck->items + search->mck->first[class_index];
    int32_t n_items =
        (int32_t)(search->mck->first[class_index + 1] - search->mck->first[class_index]);
    const gac_mck_item *base = &items[lp->pick[class_index]];
    gac_mck_moves *m = &search->moves;
    gac_i128 room = (gac_i128)(search->best_value - 1 - lp->value) * lp->slope.cost +
                    (gac_i128)(search->mck->capacity - lp->cost) * lp->slope.value;
    m->class_index = class_index;
    m->n_moves = 0;
    for (int32_t j = 0; j < n_items; j++) {
        int64_t cost = items[j].cost - base->cost, value = items[j].value - base->value;
        if ((gac_i128)value * lp->slope.cost + (gac_i128)cost * lp->slope.value > room)
            continue;
        m->cost[m->n_moves] = cost;
        m->value[m->n_moves] = value;
        m->pick[m->n_moves++] = j;
    }
}

/* Makes the relaxation's picks, changed by the decisions of two nodes, the best
 * solution. */
static void keep_solution(gac_mck_search *search, int32_t node, int32_t other)
{
    memcpy(search->best_pick, search->lp->pick,
           (size_t)search->mck->n_classes * sizeof *search->best_pick);
    gac_mck_apply(search, node, search->best_pick);
    gac_mck_apply(search, other, search->best_pick);
}

static void keep_found(gac_mck_search *search)
{
    if (!search->found)
        return;
    keep_solution(search, search->found_parent, -1);
    gac_mck_apply_one(search, search->found_class, search->found_pick, search->best_pick);
}

/* Merges the listed moves into *list. *spare is scratch. */
static gac_mck_outcome step(gac_mck_search *search, const gac_mck_rule *rule, gac_mck_list *list,
                            gac_mck_list *spare)
{
    gac_mck_outcome outcome = gac_mck_merge(search, list, rule, spare);
    keep_found(search);
    if (outcome != GAC_MCK_DONE)
        return outcome;
    gac_mck_list keep = *list;
    *list = *spare;
    *spare = keep;
    return GAC_MCK_DONE;
}

/* Combines each state of a with the most expensive state of b that still fits.
 * That is its best partner, because in both lists value falls as cost rises. */
static void pair_lists(gac_mck_search *search, const gac_mck_list *a, const gac_mck_list *b)
{
    const gac_mck_lp *lp = search->lp;
    size_t left = b->n_states, best_a = 0, best_b = 0;
    bool found = false;
    for (size_t k = 0; k < a->n_states && left > 0; k++) {
        int64_t room = search->mck->capacity + lp->cost - a->states[k].cost;
        while (left > 0 && b->states[left - 1].cost > room)
            left--;
        if (left == 0)
            break;
        int64_t value = a->states[k].value + b->states[left - 1].value - lp->value;
        if (value < search->best_value) {
            search->best_value = value;
            best_a = k;
            best_b = left - 1;
            found = true;
        }
    }
    if (found)
        keep_solution(search, a->states[best_a].node, b->states[best_b].node);
}

/* Adds a class to lists[side], thins that list, and pairs the two lists. */
static gac_mck_outcome grow_list(gac_mck_search *search, const gac_mck_rule *rule,
                                 gac_mck_list *lists, size_t n_keep, int side)
{
    gac_mck_list *const both[2] = { &lists[0], &lists[1] };
    gac_mck_outcome outcome = step(search, rule, &lists[side], &lists[2]);
    if (outcome != GAC_MCK_DONE)
        return outcome;
    if (!gac_mck_thin(search, rule, &lists[side], n_keep))
        return GAC_MCK_NO_MEMORY;
    pair_lists(search, &lists[0], &lists[1]);
    return gac_mck_collect(search, both, 2);
}

static bool start_list(const gac_mck_lp *lp, gac_mck_list *list)
{
    if (!gac_mck_list_reserve(list, 1))
        return false;
    list->states[0] = (gac_mck_state){ lp->cost, lp->value, -1 };
    list->n_states = 1;
    return true;
}

/* Returns the next class of a unit, alternately one with the highest and one
 * with the lowest pick, so that states can move both ways. cursor has a
 * position for each. */
static int32_t next_member(const gac_mck_lp *lp, const gac_mck_unit *unit, int32_t *cursor, int n)
{
    const int32_t *members = lp->members + unit->first;
    for (int attempt = 0; attempt < 2; attempt++, n++) {
        int32_t *at = &cursor[n % 2];
        while (*at < unit->n_members) {
            int32_t class_index = members[(*at)++];
            bool high = lp->pick[class_index] > unit->low_pick;
            if (high == (n % 2 == 0))
                return class_index;
        }
    }
    return -1;
}

/* Adds classes of one unit to the lists. *n_taken counts the classes of all
 * units. */
static gac_mck_outcome grow_by_unit(gac_mck_search *search, const gac_mck_unit *unit,
                                    const gac_mck_rule *rule, gac_mck_list *lists, size_t n_keep,
                                    int *n_taken)
{
    const gac_mck_lp *lp = search->lp;
    int32_t share = IMPROVE_CLASSES / lp->n_units, cursor[2] = { 0, 0 };
    if (share < IMPROVE_MEMBERS)
        share = IMPROVE_MEMBERS;
    for (int n = 0; n < share; n++) {
        int32_t class_index = next_member(lp, unit, cursor, n);
        if (class_index < 0)
            break;
        list_moves(search, class_index);
        if (search->moves.n_moves < 2)
            break;
        /* Each list gets two classes in turn, because classes alternate between
         * high and low. */
        int side = (*n_taken)++ / 2 % 2;
        gac_mck_outcome outcome = grow_list(search, rule, lists, n_keep, side);
        if (outcome != GAC_MCK_DONE || search->best_value <= search->bound)
            return outcome;
    }
    return GAC_MCK_DONE;
}

/* Tries to improve best_value with pairs of states. Two lists of at most n_keep
 * states grow from different classes near the break. The n_skip nearest units
 * are left out. */
static gac_mck_outcome improve(gac_mck_search *search, size_t n_keep, int32_t n_skip)
{
    const gac_mck_lp *lp = search->lp;
    gac_mck_rule rule = { lp->slope, lp->slope, true, -FAR_COST, FAR_COST };
    gac_mck_list lists[3] = { { 0 } };
    gac_mck_outcome outcome = GAC_MCK_NO_MEMORY;
    core c = { 0 };
    int n_taken = 0;
    search->limit = 2 * n_keep > IMPROVE_LIMIT ? 2 * n_keep : IMPROVE_LIMIT;
    if (search->limit > search->max_states)
        search->limit = search->max_states;
    search->keep = n_keep < search->limit / 2 ? n_keep : search->limit / 2;
    search->wanted_cost = lp->cost + (search->mck->capacity - lp->cost) /
                                         2; /* each list spends half of what is left */
    search->n_nodes = 0;
    if (!core_init(&c, lp) || !start_list(lp, &lists[0]) || !start_list(lp, &lists[1]))
        goto done;
    outcome = GAC_MCK_DONE;
    while (n_skip-- > 0)
        core_take(&c, lp);
    for (int32_t u; n_taken < IMPROVE_CLASSES && (u = core_take(&c, lp)) >= 0;) {
        outcome = grow_by_unit(search, &lp->units[u], &rule, lists, n_keep, &n_taken);
        if (outcome != GAC_MCK_DONE || search->best_value <= search->bound)
            break;
    }
done:
    for (int k = 0; k < 3; k++)
        free(lists[k].states);
    free(c.taken);
    return outcome;
}

/* Finds the range of costs of states that can lead to a better solution after
 * rule. The classes not yet added cannot repair a state outside it. */
static void find_reach(const gac_mck_search *search, const gac_mck_rule *after, double *low,
                       double *high)
{
    const gac_mck_lp *lp = search->lp;
    double capacity = (double)search->mck->capacity, slack = capacity - (double)lp->cost;
    double slope = (double)lp->slope.value / (double)lp->slope.cost;
    double gap = (double)(search->best_value - lp->value) + slack * slope;
    double gain = slope - (double)after->up.value / (double)after->up.cost;
    double loss = (double)after->down.value / (double)after->down.cost - slope;
    *low = gain > 1e-9 * slope ? capacity - gap / gain : -(double)FAR_COST;
    *high = capacity;
    if (after->has_down)
        *high = loss > 1e-9 * slope ? capacity + gap / loss : (double)FAR_COST;
    *low -= 1 + 1e-6 * fabs(*low); /* more than the rounding error */
    *high += 1 + 1e-6 * fabs(*high);
}

/* Limits the costs of states within a unit. Equal classes can be added in any
 * order, so it suffices to find a solution in one order: the one in which the
 * sum of costs stays near the straight line from the solution's state before
 * the unit to its state after it. The distance is at most twice the largest
 * difference of two choices: once for the order of the solution, once for that
 * of the relaxation, which fill_unit spreads evenly. */
static void set_window(const gac_mck_search *search, const gac_mck_list *list,
                       const gac_mck_rule *after, gac_mck_rule *rule)
{
    const gac_mck_moves *m = &search->moves;
    double spread = 2 * (double)(m->cost[m->n_moves - 1] - m->cost[0]), low, high;
    find_reach(search, after, &low, &high);
    low = fmin(low, (double)list->states[0].cost) - spread;
    high = fmax(high, (double)list->states[list->n_states - 1].cost) + spread;
    low -= 1 + 1e-6 * fabs(low);
    high += 1 + 1e-6 * fabs(high);
    if (low > -(double)FAR_COST)
        rule->least_cost = (int64_t)low;
    if (high < (double)FAR_COST)
        rule->most_cost = (int64_t)high;
}

/* Returns how many classes of a unit can be off the line in a better solution.
 * Each of them loses something, and the possible total loss is known. */
static int32_t count_off_line(const gac_mck_search *search, const gac_mck_unit *unit)
{
    const gac_mck_lp *lp = search->lp;
    const gac_mck_moves *m = &search->moves;
    gac_i128 room = (gac_i128)(search->best_value - 1 - lp->value) * lp->slope.cost +
                    (gac_i128)(search->mck->capacity - lp->cost) * lp->slope.value;
    gac_i128 least = 0;
    for (int32_t j = 0; j < m->n_moves; j++) {
        gac_i128 loss =
            (gac_i128)m->value[j] * lp->slope.cost + (gac_i128)m->cost[j] * lp->slope.value;
        if (loss != 0 && (least == 0 || loss < least))
            least = loss;
    }
    gac_i128 n = least == 0 ? 0 : room / least;
    return n < unit->n_members ? (int32_t)n : unit->n_members;
}

/* Lists moves for the unit's classes from n_done on, all at once. Each has one
 * of the two choices on the line, so a move is the number of classes that
 * change. */
static void list_shifts(gac_mck_search *search, int32_t unit_index, int32_t n_done,
                        const gac_mck_list *list, const gac_mck_rule *after)
{
    const gac_mck_lp *lp = search->lp;
    const gac_mck_unit *unit = &lp->units[unit_index];
    const gac_mck_item *items = search->mck->items + search->mck->first[lp->members[unit->first]];
    int64_t cost = items[unit->line_high].cost - items[unit->line_low].cost, n_up = 0, n_down = 0;
    int64_t value = items[unit->line_high].value - items[unit->line_low].value;
    gac_mck_moves *m = &search->moves;
    double low, high;
    for (int32_t k = n_done; k < unit->n_members; k++) {
        bool is_low = lp->pick[lp->members[unit->first + k]] == unit->line_low;
        n_up += is_low;
        n_down += !is_low;
    }
    find_reach(search, after, &low, &high);
    low = floor((low - (double)list->states[list->n_states - 1].cost) / (double)cost) - 1;
    high = ceil((high - (double)list->states[0].cost) / (double)cost) + 1;
    int64_t first = low > (double)-n_down ? (int64_t)low : -n_down;
    int64_t last = high < (double)n_up ? (int64_t)high : n_up;
    m->class_index = ~unit_index;
    m->n_moves = 0;
    for (int64_t n = first; n <= last; n++) {
        m->cost[m->n_moves] = n * cost;
        m->value[m->n_moves] = n * value;
        m->pick[m->n_moves++] = unit->n_members + (int32_t)n;
    }
}

/* The lists of one round: the present one and scratch. */
typedef struct sweep {
    gac_mck_list list, spare;
    gac_mck_rule rule; /* list has all states that this rule accepts */
} sweep;

/* Merges the listed moves and frees history that is no longer needed. */
static gac_mck_outcome advance_sweep(gac_mck_search *search, const gac_mck_rule *rule, sweep *r)
{
    gac_mck_list *const lists[1] = { &r->list };
    gac_mck_outcome outcome = step(search, rule, &r->list, &r->spare);
    if (outcome != GAC_MCK_DONE)
        return outcome;
    r->rule = *rule;
    return gac_mck_collect(search, lists, 1);
}

/* Adds a unit's classes one by one. If few of them can be off the line, the
 * others are added at once. */
static gac_mck_outcome add_unit(gac_mck_search *search, int32_t unit_index,
                                const gac_mck_rule *after, sweep *r)
{
    const gac_mck_unit *unit = &search->lp->units[unit_index];
    gac_mck_rule within = join_unit(*after, unit);
    int32_t n_single = unit->n_members;
    for (int32_t k = 0; k < n_single && r->list.n_states > 0; k++) {
        list_moves(search, search->lp->members[unit->first + k]);
        if (search->moves.n_moves == 0) {
            r->list.n_states = 0; /* there is no better solution */
            break;
        }
        if (k == 0 && unit->n_members > 1) {
            int32_t n_off = count_off_line(search, unit);
            if (unit->n_line <= 2 && n_off <= unit->n_members / 4)
                n_single = n_off;
            else
                set_window(search, &r->list, after, &within);
            if (n_single == 0)
                break;
        }
        if (search->moves.n_moves == 1 && search->moves.cost[0] == 0)
            continue;
        bool last = k == unit->n_members - 1 || (k == n_single - 1 && unit->n_line == 1);
        gac_mck_outcome outcome = advance_sweep(search, last ? after : &within, r);
        if (outcome != GAC_MCK_DONE || search->best_value <= search->bound)
            return outcome;
    }
    if (n_single == unit->n_members || unit->n_line == 1 || r->list.n_states == 0)
        return GAC_MCK_DONE;
    list_shifts(search, unit_index, n_single, &r->list, after);
    return advance_sweep(search, after, r);
}

/* Updates the proved bound after an unfinished round. A better solution must
 * extend a state of the list, or a state that thinning removed. */
static void update_bound(gac_mck_search *search, const sweep *r)
{
    int64_t bound = search->best_value;
    if (search->lost_bound < bound)
        bound = search->lost_bound;
    for (size_t k = 0; k < r->list.n_states; k++) {
        int64_t own = gac_mck_state_bound(search->mck->capacity, &r->rule, &r->list.states[k]);
        if (own < bound)
            bound = own;
    }
    if (bound > search->bound)
        search->bound = bound;
}

/* Adds all units, from the break outwards. With beam, a list that reaches the
 * limit is thinned from then on. Without beam, that ends the round. */
static gac_mck_outcome run_round(gac_mck_search *search, size_t limit, bool beam)
{
    const gac_mck_lp *lp = search->lp;
    sweep r = { .rule = { lp->slope, lp->slope, true, -FAR_COST, FAR_COST } };
    gac_mck_outcome outcome = GAC_MCK_NO_MEMORY;
    core c;
    search->limit = limit;
    search->keep = !beam ? 0 : BEAM_STATES < limit / 2 ? BEAM_STATES : limit / 2;
    search->wanted_cost = search->mck->capacity;
    search->thinned = false;
    search->lost_bound = INT64_MAX;
    search->n_nodes = 0;
    if (!core_init(&c, lp) || !start_list(lp, &r.list))
        goto done;
    outcome = GAC_MCK_DONE;
    for (int32_t u; r.list.n_states > 0 && (u = core_take(&c, lp)) >= 0;) {
        gac_mck_rule after = core_rule(&c, lp);
        outcome = add_unit(search, u, &after, &r);
        if (outcome != GAC_MCK_DONE || search->best_value <= search->bound)
            break;
    }
    if (outcome == GAC_MCK_DONE)
        r.list.n_states = 0; /* all classes are added, so no remaining state is better */
    update_bound(search, &r);
done:
    free(r.list.states);
    free(r.spare.states);
    free(c.taken);
    return outcome;
}

/* Tries to improve with classes around the break, then with classes further
 * away. */
static gac_mck_outcome improve_often(gac_mck_search *search, size_t n_keep, int n_tries)
{
    gac_mck_outcome outcome = GAC_MCK_DONE;
    for (int k = 0; k < n_tries; k++) {
        int32_t n_skip = k * IMPROVE_CLASSES;
        if (n_skip > 0 && n_skip >= search->lp->n_units)
            break;
        outcome = improve(search, n_keep, n_skip);
        if (outcome != GAC_MCK_DONE || search->best_value <= search->bound)
            break;
    }
    return outcome;
}

gac_mck_outcome gac_mck_run(gac_mck_search *search)
{
    static const struct {
        size_t n_pairs, n_states;
        int n_tries;
    } rounds[] = { { (size_t)1 << 10, (size_t)1 << 13, 1 },
                   { (size_t)1 << 14, (size_t)1 << 17, 4 },
                   { (size_t)1 << 16, SIZE_MAX, 8 } };
    int n_rounds = (int)(sizeof rounds / sizeof *rounds);
    gac_mck_outcome outcome = GAC_MCK_DONE;
    search->best_value = search->lp->value;
    search->bound = search->lp->bound;
    keep_solution(search, -1, -1);
    for (int k = 0; k < n_rounds && search->best_value > search->bound; k++) {
        size_t limit =
            rounds[k].n_states < search->max_states ? rounds[k].n_states : search->max_states;
        size_t n_pairs = rounds[k].n_pairs < limit ? rounds[k].n_pairs : limit;
        bool last = limit == search->max_states || k == n_rounds - 1;
        outcome = improve_often(search, n_pairs, rounds[k].n_tries);
        if (outcome == GAC_MCK_TIME || outcome == GAC_MCK_NO_MEMORY ||
            search->best_value <= search->bound)
            break;
        outcome = run_round(search, limit, last);
        if (outcome != GAC_MCK_FULL || last)
            break;
    }
    return outcome;
}

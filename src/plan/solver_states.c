#include "base/order_statistics.h"
#include "plan/solver_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_COLLECT ((size_t)1 << 18) /* with fewer nodes, collecting is not worth it */
#define NODES_PER_STATE 8
#define CLOCK_EVERY (1 << 15) /* states between two checks of the clock */

bool gac_mck_late(const gac_mck_search *search)
{
    return search->deadline_ns != 0 && gac_now_ns() >= search->deadline_ns;
}

bool gac_mck_list_reserve(gac_mck_list *list, size_t n_states)
{
    if (n_states <= list->room)
        return true;
    size_t room = list->room < 1024 ? 1024 : list->room;
    while (room < n_states)
        room *= 2;
    gac_mck_state *states = reallocarray(list->states, room, sizeof *states);
    if (states == NULL)
        return false;
    list->states = states;
    list->room = room;
    return true;
}

bool gac_mck_moves_init(gac_mck_moves *moves, int32_t max_moves)
{
    size_t n = (size_t)max_moves + 1; /* the additional one represents finished moves */
    *moves = (gac_mck_moves){ .cost = reallocarray(NULL, n, sizeof *moves->cost),
                              .value = reallocarray(NULL, n, sizeof *moves->value),
                              .pick = reallocarray(NULL, n, sizeof *moves->pick),
                              .head_cost = reallocarray(NULL, n, sizeof *moves->head_cost),
                              .head_value = reallocarray(NULL, n, sizeof *moves->head_value),
                              .head = reallocarray(NULL, n, sizeof *moves->head),
                              .tree = reallocarray(NULL, 4 * n, sizeof *moves->tree) };
    return moves->cost != NULL && moves->value != NULL && moves->pick != NULL &&
           moves->head_cost != NULL && moves->head_value != NULL && moves->head != NULL &&
           moves->tree != NULL;
}

void gac_mck_moves_dispose(gac_mck_moves *moves)
{
    free(moves->cost);
    free(moves->value);
    free(moves->pick);
    free(moves->head_cost);
    free(moves->head_value);
    free(moves->head);
    free(moves->tree);
}

/* Changes n classes of a unit from the lower of its two choices on the line to
 * the higher one, starting with the last class. A negative n changes them the
 * other way. */
static void shift_unit(const gac_mck_search *search, const gac_mck_unit *unit, int32_t n,
                       int32_t *pick)
{
    const gac_mck_lp *lp = search->lp;
    int32_t from = n > 0 ? unit->line_low : unit->line_high;
    int32_t to = n > 0 ? unit->line_high : unit->line_low;
    int32_t left = n > 0 ? n : -n;
    for (int32_t k = unit->n_members - 1; k >= 0 && left > 0; k--) {
        int32_t class_index = lp->members[unit->first + k];
        if (lp->pick[class_index] == from) {
            pick[class_index] = to;
            left--;
        }
    }
}

void gac_mck_apply_one(const gac_mck_search *search, int32_t class_index, int32_t chosen,
                       int32_t *pick)
{
    if (class_index >= 0) {
        pick[class_index] = chosen;
    } else {
        const gac_mck_unit *unit = &search->lp->units[~class_index];
        shift_unit(search, unit, chosen - unit->n_members, pick);
    }
}

void gac_mck_apply(const gac_mck_search *search, int32_t node, int32_t *pick)
{
    for (; node >= 0; node = search->nodes[node].parent)
        gac_mck_apply_one(search, search->nodes[node].class_index, search->nodes[node].pick, pick);
}

int64_t gac_mck_state_bound(int64_t capacity, const gac_mck_rule *rule, const gac_mck_state *state)
{
    int64_t slack = capacity - state->cost;
    if (slack >= 0)
        return state->value - (int64_t)((gac_i128)slack * rule->up.value / rule->up.cost);
    if (!rule->has_down)
        return INT64_MAX;
    gac_i128 loss = ((gac_i128)-slack * rule->down.value + rule->down.cost - 1) / rule->down.cost;
    return loss > INT64_MAX - state->value ? INT64_MAX : state->value + (int64_t)loss;
}

/* Returns whether no extension of the state can beat the best solution. This
 * compares its bound with best_value - 1, without a division. */
static bool hopeless(const gac_mck_search *search, const gac_mck_rule *rule, int64_t slack,
                     int64_t value)
{
    gac_i128 excess = (gac_i128)value - (search->best_value - 1);
    if (slack >= 0)
        return excess * rule->up.cost > (gac_i128)slack * rule->up.value;
    return !rule->has_down || excess * rule->down.cost > (gac_i128)slack * rule->down.value;
}

/* Returns the n-th smallest key. This reorders keys. */
static double select_key(double *keys, size_t n_keys, size_t n)
{
    size_t begin = 0, end = n_keys;
    uint64_t random = 1;
    while (end - begin > 16) {
        double three[3];
        for (int k = 0; k < 3; k++) /* random positions, because keys often fall and then rise */
            three[k] = keys[begin + gac_mck_random(&random) % (end - begin)];
        qsort(three, 3, sizeof *three, gac_by_value);
        size_t low = begin, at = begin, high = end;
        while (at < high) {
            double key = keys[at];
            if (key < three[1]) {
                keys[at++] = keys[low];
                keys[low++] = key;
            } else if (key > three[1]) {
                keys[at] = keys[--high];
                keys[high] = key;
            } else {
                at++;
            }
        }
        if (n < low)
            end = low;
        else if (n >= high)
            begin = high;
        else
            return three[1];
    }
    qsort(keys + begin, end - begin, sizeof *keys, gac_by_value);
    return keys[n];
}

/* Ranks states for thinning; lower is better. States close to the relaxation's
 * line come first. Among equals, states near the wanted cost are easier to
 * complete. Rounding is harmless, because this is only a preference. */
static double promise(const gac_mck_search *search, const gac_mck_state *state)
{
    double slope = (double)search->lp->slope.value / (double)search->lp->slope.cost;
    double spent = (double)(state->cost - search->lp->cost);
    double distance = fabs((double)(state->cost - search->wanted_cost));
    return (double)(state->value - search->lp->value) + slope * (spent + distance / 1024);
}

bool gac_mck_thin(gac_mck_search *search, const gac_mck_rule *rule, gac_mck_list *list,
                  size_t n_keep)
{
    size_t n = list->n_states, n_kept = 0, n_below = 0;
    if (n <= n_keep)
        return true;
    if (search->key_room < n) {
        double *keys = reallocarray(search->keys, 2 * n, sizeof *keys);
        if (keys == NULL)
            return false;
        search->keys = keys;
        search->key_room = n;
    }
    double *keys = search->keys, *sorted = keys + n;
    for (size_t k = 0; k < n; k++)
        keys[k] = sorted[k] = promise(search, &list->states[k]);
    double limit = select_key(sorted, n, n_keep);
    for (size_t k = 0; k < n; k++)
        n_below += keys[k] < limit;
    for (size_t k = 0; k < n; k++) {
        bool equal = keys[k] == limit && n_below < n_keep;
        n_below += equal;
        if (keys[k] < limit || equal) {
            list->states[n_kept++] = list->states[k];
        } else {
            int64_t bound = gac_mck_state_bound(search->mck->capacity, rule, &list->states[k]);
            if (bound < search->lost_bound)
                search->lost_bound = bound;
        }
    }
    list->n_states = n_kept;
    search->thinned = true;
    return true;
}

/* Marks the nodes in use. A marked node has ~pick instead of pick. */
static size_t mark_nodes(gac_mck_search *search, gac_mck_list *const *lists, int n_lists)
{
    size_t n_live = 0;
    for (int l = 0; l < n_lists; l++)
        for (size_t k = 0; k < lists[l]->n_states; k++)
            for (int32_t at = lists[l]->states[k].node; at >= 0 && search->nodes[at].pick >= 0;
                 at = search->nodes[at].parent) {
                search->nodes[at].pick = ~search->nodes[at].pick;
                n_live++;
            }
    return n_live;
}

gac_mck_outcome gac_mck_collect(gac_mck_search *search, gac_mck_list *const *lists, int n_lists)
{
    size_t n = search->n_nodes, n_kept = 0;
    if (n < search->collect_at)
        return GAC_MCK_DONE;
    size_t n_live = mark_nodes(search, lists, n_lists);
    int32_t *moved = reallocarray(NULL, n, sizeof *moved);
    if (moved == NULL)
        return GAC_MCK_NO_MEMORY;
    for (size_t k = 0; k < n; k++) { /* parents come before children */
        gac_mck_node node = search->nodes[k];
        if (node.pick >= 0)
            continue;
        node.pick = ~node.pick;
        node.parent = node.parent < 0 ? -1 : moved[node.parent];
        moved[k] = (int32_t)n_kept;
        search->nodes[n_kept++] = node;
    }
    for (int l = 0; l < n_lists; l++)
        for (size_t k = 0; k < lists[l]->n_states; k++)
            if (lists[l]->states[k].node >= 0)
                lists[l]->states[k].node = moved[lists[l]->states[k].node];
    free(moved);
    search->n_nodes = n_kept;
    search->collect_at = 2 * n_live > MIN_COLLECT ? 2 * n_live : MIN_COLLECT;
    return n_live > NODES_PER_STATE * search->max_states ? GAC_MCK_FULL : GAC_MCK_DONE;
}

static bool add_node(gac_mck_search *search, int32_t parent, int32_t pick, int32_t *out)
{
    if (search->n_nodes == search->node_room) {
        size_t room = search->node_room < 4096 ? 4096 : 2 * search->node_room;
        gac_mck_node *nodes = NULL;
        if (search->n_nodes < INT32_MAX)
            nodes = reallocarray(search->nodes, room, sizeof *nodes);
        if (nodes == NULL)
            return false;
        search->nodes = nodes;
        search->node_room = room;
    }
    *out = (int32_t)search->n_nodes;
    search->nodes[search->n_nodes++] = (gac_mck_node){ parent, search->moves.class_index, pick };
    return true;
}

/* The tournament. */

static inline bool comes_first(const gac_mck_moves *m, int32_t a, int32_t b)
{
    return m->head_cost[a] != m->head_cost[b] ? m->head_cost[a] < m->head_cost[b]
                                              : m->head_value[a] <= m->head_value[b];
}

static int32_t start_tournament(gac_mck_moves *m, const gac_mck_list *from)
{
    int32_t size = 1;
    while (size < m->n_moves)
        size *= 2;
    for (int32_t j = 0; j < m->n_moves; j++) {
        m->head[j] = 0;
        m->head_cost[j] = from->states[0].cost + m->cost[j];
        m->head_value[j] = from->states[0].value + m->value[j];
    }
    for (int32_t j = 0; j < size; j++)
        m->tree[size + j] = j < m->n_moves ? j : m->n_moves;
    m->head_cost[m->n_moves] = INT64_MAX;
    m->head_value[m->n_moves] = INT64_MAX;
    for (int32_t k = size - 1; k >= 1; k--) {
        int32_t a = m->tree[2 * k], b = m->tree[2 * k + 1];
        m->tree[k] = comes_first(m, a, b) ? a : b;
    }
    return size;
}

/* Advances move j to its next state and updates the tournament. */
static inline void advance(gac_mck_moves *m, const gac_mck_list *from, int32_t size, int32_t j)
{
    size_t at = ++m->head[j];
    if (at < from->n_states) {
        m->head_cost[j] = from->states[at].cost + m->cost[j];
        m->head_value[j] = from->states[at].value + m->value[j];
    } else {
        m->head_cost[j] = INT64_MAX;
    }
    for (int32_t k = (size + j) / 2; k >= 1; k /= 2) {
        int32_t a = m->tree[2 * k], b = m->tree[2 * k + 1];
        m->tree[k] = comes_first(m, a, b) ? a : b;
    }
}

/* Adds one state. A full list is thinned if that is allowed. */
static gac_mck_outcome push_state(gac_mck_search *search, const gac_mck_rule *rule,
                                  gac_mck_list *to, gac_mck_state state, int32_t move)
{
    if (to->n_states >= search->limit) {
        if (search->keep == 0)
            return GAC_MCK_FULL;
        if (!gac_mck_thin(search, rule, to, search->keep))
            return GAC_MCK_NO_MEMORY;
    }
    if (!gac_mck_list_reserve(to, to->n_states + 1))
        return GAC_MCK_NO_MEMORY;
    if (!search->no_history && search->moves.cost[move] != 0 && /* 0: same as the relaxation */
        !add_node(search, state.node, search->moves.pick[move], &state.node))
        return GAC_MCK_NO_MEMORY;
    to->states[to->n_states++] = state;
    return GAC_MCK_DONE;
}

gac_mck_outcome gac_mck_merge(gac_mck_search *search, const gac_mck_list *from,
                              const gac_mck_rule *rule, gac_mck_list *to)
{
    gac_mck_moves *m = &search->moves;
    int64_t capacity = search->mck->capacity, last_value = INT64_MAX;
    gac_mck_outcome outcome = GAC_MCK_DONE;
    to->n_states = 0;
    search->found = false;
    if (from->n_states == 0 || m->n_moves == 0)
        return GAC_MCK_DONE;
    int32_t size = start_tournament(m, from);
    for (uint32_t n = 1;; n++) {
        int32_t j = m->tree[1];
        int64_t cost = m->head_cost[j], value = m->head_value[j], slack = capacity - cost;
        if (cost > rule->most_cost || (slack < 0 && !rule->has_down))
            break;
        size_t at = m->head[j];
        advance(m, from, size, j);
        if (n % CLOCK_EVERY == 0 && gac_mck_late(search))
            return GAC_MCK_TIME;
        if (value >= last_value || cost < rule->least_cost)
            continue; /* dominated by the last state, or outside the range */
        last_value = value;
        if (slack >= 0 && value < search->best_value) {
            search->best_value = value;
            search->found = true;
            search->found_parent = from->states[at].node;
            search->found_class = m->class_index;
            search->found_pick = m->pick[j];
        }
        if (hopeless(search, rule, slack, value))
            continue;
        gac_mck_state state = { cost, value, from->states[at].node };
        outcome = push_state(search, rule, to, state, j);
        if (outcome != GAC_MCK_DONE)
            return outcome;
    }
    if (search->keep != 0 && search->thinned && !gac_mck_thin(search, rule, to, search->keep))
        return GAC_MCK_NO_MEMORY;
    return GAC_MCK_DONE;
}

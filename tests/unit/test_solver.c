#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <gac/plan.h>

#define MAX_CLASSES 400
#define MAX_CHOICES 12

typedef struct instance {
    int32_t n_classes;
    int64_t budget, least, most;
    gac_choice choices[MAX_CLASSES][MAX_CHOICES];
    gac_choice_class classes[MAX_CLASSES];
} instance;

static instance in; /* of the running test */
static int32_t picks[MAX_CLASSES];
static uint64_t random_state;

static int64_t below(int64_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)limit);
}

enum {
    RANDOM,
    REAL,
    WEAK,
    STRONG,
    SUBSET_SUM,
    EVEN_SUM,
    EQUAL,
    EQUAL_REAL,
    TWO_KINDS,
    DEGENERATE,
    HUGE_COSTS,
    TINY_VALUES,
    N_KINDS
};

static gac_choice draw_choice(int kind, int64_t range, int32_t j)
{
    int64_t cost = below(range);
    double noise = (double)below(range) - (double)below(range);
    switch (kind) {
    case REAL:
    case EQUAL_REAL:
        return (gac_choice){ cost, sin((double)below(1 << 30)) };
    case WEAK:
    case TWO_KINDS:
        return (gac_choice){ cost, -(double)cost + floor(noise / 8) };
    case STRONG:
        return (gac_choice){ j ? cost : 0, j ? -(double)cost - 7 : 0 };
    case SUBSET_SUM:
        return (gac_choice){ cost, -(double)cost };
    case EVEN_SUM:
        return (gac_choice){ 2 * cost, -2 * (double)cost };
    case DEGENERATE: /* many equal, many zero */
        return (gac_choice){ below(3) * below(2), (double)(below(3) - 1) };
    case HUGE_COSTS:
        return (gac_choice){ cost * 1000000007 * 200 + below(3), -(double)cost + noise / 4 };
    case TINY_VALUES:
        return (gac_choice){ cost, ldexp(noise, -1040) + (j == 0 ? 1e-300 : 0) };
    default:
        return (gac_choice){ cost, noise };
    }
}

/* Draws classes; some have one choice only. The budget lies anywhere from just
 * under the cheapest to just over the dearest picks. */
static void draw_instance(int kind, int32_t n_classes, int32_t max_choices, int64_t range)
{
    in.n_classes = n_classes;
    in.least = in.most = 0;
    for (int32_t i = 0; i < n_classes; i++) {
        int32_t n = 1 + (int32_t)below(max_choices), copied = kind == TWO_KINDS ? i - 2 : i - 1;
        bool copy = copied >= 0 && (kind == EQUAL || kind == EQUAL_REAL || kind == TWO_KINDS);
        int64_t least = INT64_MAX, most = 0;
        if (copy) {
            n = in.classes[copied].n_choices;
            memcpy(in.choices[i], in.choices[copied], sizeof in.choices[i]);
        }
        for (int32_t j = 0; j < n; j++) {
            if (!copy)
                in.choices[i][j] = draw_choice(kind, range, j);
            least = in.choices[i][j].cost < least ? in.choices[i][j].cost : least;
            most = in.choices[i][j].cost > most ? in.choices[i][j].cost : most;
        }
        in.classes[i] = (gac_choice_class){ in.choices[i], n };
        in.least += least;
        in.most += most;
    }
    in.budget = in.least - 1 + below(in.most - in.least + 3);
}

/* The least value within the budget; infinite if there is none. */
static double brute_force(int32_t class_index, int64_t left)
{
    double best = INFINITY;
    if (class_index == in.n_classes)
        return 0;
    for (int32_t j = 0; j < in.classes[class_index].n_choices; j++) {
        const gac_choice *choice = &in.choices[class_index][j];
        if (choice->cost <= left)
            best = fmin(best, choice->value + brute_force(class_index + 1, left - choice->cost));
    }
    return best;
}

/* The same by a table over costs, for integer values and small budgets. */
static double table(void)
{
    size_t n = (size_t)in.budget + 1;
    double *best = malloc(n * sizeof *best), *next = malloc(n * sizeof *next);
    assert_non_null(best);
    assert_non_null(next);
    memset(best, 0, n * sizeof *best);
    for (int32_t i = 0; i < in.n_classes; i++) {
        for (size_t b = 0; b < n; b++) {
            next[b] = INFINITY;
            for (int32_t j = 0; j < in.classes[i].n_choices; j++)
                if (in.choices[i][j].cost <= (int64_t)b)
                    next[b] = fmin(next[b], best[b - (size_t)in.choices[i][j].cost] +
                                                in.choices[i][j].value);
        }
        memcpy(best, next, n * sizeof *best);
    }
    double answer = best[n - 1];
    free(best);
    free(next);
    return answer;
}

/* Solves the instance and checks the answer against itself and the optimum.
 * Returns whether it was proved. */
static bool check(double optimum, const gac_solve_options *options)
{
    gac_error err = GAC_ERROR_INIT;
    gac_solution solution;
    int64_t cost = 0;
    double value = 0, size = 0;
    gac_status status =
        gac_solve(in.classes, in.n_classes, in.budget, options, picks, &solution, &err);
    if (isinf(optimum)) {
        assert_int_equal(status, GAC_CHECK);
        char expected[64];
        snprintf(expected, sizeof expected, "the least possible cost is %lld", (long long)in.least);
        assert_non_null(strstr(err.text, expected));
        return true;
    }
    assert_int_equal(status, GAC_OK);
    for (int32_t i = 0; i < in.n_classes; i++) {
        assert_in_range(picks[i], 0, in.classes[i].n_choices - 1);
        cost += in.choices[i][picks[i]].cost;
        value += in.choices[i][picks[i]].value;
        size += fabs(in.choices[i][picks[i]].value);
    }
    assert_true(cost == solution.cost && cost <= in.budget);
    assert_true(fabs(value - solution.value) <= 1e-14 * size);
    assert_true(solution.bound <= optimum + 1e-14 * size);
    assert_true(solution.value >= optimum - 1e-14 * size);
    if (solution.optimal) {
        assert_true(solution.bound == solution.value);
        assert_true(solution.value <= optimum + 1e-14 * size);
    }
    return solution.optimal;
}

static void test_brute_force(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int k = 0; k < 250; k++) {
            static const int64_t ranges[] = { 4, 30, 1000, 1000000 };
            random_state = (uint64_t)(1000 * kind + k);
            draw_instance(kind, 1 + (int32_t)below(6), 5, ranges[k % 4]);
            assert_true(check(brute_force(0, in.budget), NULL));
        }
}

/* Many classes, equal ones among them: the orders and windows that symmetry
 * allows must not lose the optimum. */
static void test_table(void **state)
{
    static const int kinds[] = { RANDOM, WEAK, STRONG, SUBSET_SUM, EQUAL, TWO_KINDS, DEGENERATE };
    (void)state;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int k = 0; k < 40; k++) {
            random_state = 77 * kind + (uint64_t)k;
            draw_instance(kinds[kind], 10 + (int32_t)below(50), 8, k % 2 ? 12 : 40);
            if (in.budget >= 0)
                assert_true(check(table(), NULL));
        }
}

/* Many classes, all copies of the first few. */
static void draw_copies(int seed)
{
    static const int kinds[] = { WEAK, RANDOM, SUBSET_SUM };
    static const int64_t ranges[] = { 9, 60, 300, 25 };
    random_state = (uint64_t)(40000 + seed);
    int32_t n_first = 2 + (int32_t)below(4), n_classes = 12 + (int32_t)below(50);
    int32_t max_choices = 2 + (int32_t)below(4);
    draw_instance(kinds[seed % 3], n_first, max_choices, ranges[seed % 4]);
    in.n_classes = n_classes;
    in.least = in.most = 0;
    for (int32_t i = 0; i < n_classes; i++) {
        int32_t of = i < n_first ? i : (int32_t)below(n_first);
        int64_t least = INT64_MAX, most = 0;
        memmove(in.choices[i], in.choices[of], sizeof in.choices[i]);
        in.classes[i] = (gac_choice_class){ in.choices[i], in.classes[of].n_choices };
        for (int32_t j = 0; j < in.classes[i].n_choices; j++) {
            least = in.choices[i][j].cost < least ? in.choices[i][j].cost : least;
            most = in.choices[i][j].cost > most ? in.choices[i][j].cost : most;
        }
        in.least += least;
        in.most += most;
    }
    in.budget = in.least + below(in.most - in.least + 1);
}

/* Windows and shifts decide what the search looks at among equal classes: one too
 * narrow claims an optimum that is not one. With little room for states, no luck
 * finds the optimum before the search does. Few draws tell: those after the first
 * hundred do, each for a window that is too narrow in another way. */
static void test_copies(void **state)
{
    static const int telling[] = { 513, 595, 1374, 2298, 3913, 5222, 5487, 5838 };
    int n_telling = (int)(sizeof telling / sizeof *telling);
    (void)state;
    for (int k = 0; k < 100 + n_telling; k++) {
        draw_copies(k < 100 ? k : telling[k - 100]);
        double optimum = table();
        assert_true(check(optimum, NULL));
        for (int64_t room = 8; room <= 512; room *= 4)
            check(optimum, &(gac_solve_options){ .max_states = room });
    }
}

/* Little room, so that neither luck nor a complete list finds the optimum at
 * once: the answer may be unproved, but never wrong. */
static void test_few_states(void **state)
{
    static const struct {
        int kind;
        int32_t n_classes, n_choices;
        int64_t range;
    } shapes[] = { { WEAK, 40, 8, 200 }, { TWO_KINDS, 40, 8, 200 }, { TWO_KINDS, 60, 3, 60 } };
    gac_solve_options options = { .max_states = 1 };
    int n_unproved = 0;
    (void)state;
    for (int k = 0; k < 120; k++) {
        random_state = (uint64_t)(9000 + k);
        draw_instance(shapes[k % 3].kind, shapes[k % 3].n_classes, shapes[k % 3].n_choices,
                      shapes[k % 3].range);
        if (in.budget >= 0)
            n_unproved += !check(table(), &options);
    }
    assert_true(n_unproved > 0);
}

static void test_time_limit(void **state)
{
    gac_solve_options options = { .time_limit_s = 1e-9 };
    (void)state;
    random_state = 5;
    draw_instance(WEAK, MAX_CLASSES, MAX_CHOICES, 90);
    in.budget = (in.least + in.most) / 2;
    double optimum = table();
    check(optimum, &options);
    assert_true(check(optimum, NULL));
}

static void test_deterministic(void **state)
{
    static int32_t first[MAX_CLASSES];
    gac_solution one, two;
    (void)state;
    random_state = 6;
    draw_instance(REAL, MAX_CLASSES, MAX_CHOICES, 1000000);
    in.budget = (in.least + in.most) / 3;
    assert_int_equal(gac_solve(in.classes, in.n_classes, in.budget, NULL, first, &one, NULL), 0);
    assert_int_equal(gac_solve(in.classes, in.n_classes, in.budget, NULL, picks, &two, NULL), 0);
    assert_true(one.optimal && one.value == two.value && one.cost == two.cost);
    assert_memory_equal(first, picks, sizeof(int32_t) * (size_t)in.n_classes);
}

static void refuse(gac_choice choice, int64_t budget, gac_status expected, const char *text)
{
    gac_error err = GAC_ERROR_INIT;
    gac_choice two[2] = { { 1, 1.0 }, choice };
    gac_choice_class classes[2] = { { two, 1 }, { two + 1, 1 } };
    gac_solution solution;
    assert_int_equal(gac_solve(classes, 2, budget, NULL, picks, &solution, &err), expected);
    assert_non_null(strstr(err.text, text));
}

static void test_refusals(void **state)
{
    gac_error err = GAC_ERROR_INIT;
    gac_choice one = { 1, 1.0 }, far[2] = { { 0, 1.0 }, { INT64_MAX / 3, 0.0 } };
    gac_choice_class none = { &one, 0 }, many[3] = { { far, 2 }, { far, 2 }, { far, 2 } };
    gac_solve_options options = { .time_limit_s = -1 };
    gac_solution solution;
    (void)state;
    refuse((gac_choice){ -1, 0 }, 9, GAC_USAGE, "choice 0 of class 1 has the negative cost -1");
    refuse((gac_choice){ 1, NAN }, 9, GAC_USAGE, "choice 0 of class 1 has the value nan");
    refuse((gac_choice){ 1, -INFINITY }, 9, GAC_USAGE, "choice 0 of class 1 has the value -inf");
    refuse((gac_choice){ 1, 2e280 }, 9, GAC_USAGE, "beyond 1e+280");
    refuse((gac_choice){ 4, 0 }, 4, GAC_CHECK, "budget 4: the least possible cost is 5");
    refuse((gac_choice){ 4, 0 }, -1, GAC_CHECK, "budget -1: the least possible cost is 5");
    refuse((gac_choice){ INT64_MAX, 0 }, INT64_MAX, GAC_CHECK, "more than 9223372036854775807");
    assert_int_equal(gac_solve(&none, 1, 1, NULL, picks, &solution, &err), GAC_USAGE);
    assert_non_null(strstr(err.text, "class 0 has no choices"));
    none.n_choices = 1;
    assert_int_equal(gac_solve(&none, 1, 1, &options, picks, &solution, &err), GAC_USAGE);
    assert_non_null(strstr(err.text, "time limit"));
    /* A common divisor makes huge costs small; without one they are refused. */
    assert_int_equal(gac_solve(many, 3, INT64_MAX / 2, NULL, picks, &solution, &err), GAC_OK);
    assert_true(solution.optimal && solution.value == 2 && solution.cost == INT64_MAX / 3);
    gac_choice odd[3] = { { 0, 1.0 }, { INT64_MAX / 3, 0.0 }, { INT64_MAX / 3 - 1, 0.5 } };
    many[0] = (gac_choice_class){ odd, 3 };
    assert_int_equal(gac_solve(many, 3, INT64_MAX / 2, NULL, picks, &solution, &err), GAC_USAGE);
    assert_non_null(strstr(err.text, "2^61"));
}

static void test_no_classes(void **state)
{
    gac_solution solution = { .cost = 7 };
    gac_front front;
    (void)state;
    assert_int_equal(gac_solve(NULL, 0, 0, NULL, NULL, &solution, NULL), GAC_OK);
    assert_true(solution.optimal && solution.cost == 0 && solution.value == 0);
    assert_int_equal(gac_pareto(NULL, 0, NULL, &front, NULL), GAC_OK);
    assert_true(front.complete && front.n_points == 1 && front.points[0].cost == 0);
    gac_front_dispose(&front);
}

/* Every budget has the value of the last point that it affords. */
static void check_front(const gac_front *front)
{
    int64_t at = -1;
    for (in.budget = in.least; in.budget <= in.most; in.budget++) {
        while (at + 1 < front->n_points && front->points[at + 1].cost <= in.budget)
            at++;
        assert_true(at >= 0);
        double optimum = brute_force(0, in.budget);
        assert_true(fabs(front->points[at].value - optimum) <= 1e-14 * (fabs(optimum) + 100));
        if (front->points[at].cost == in.budget)
            assert_true(check(front->points[at].value, NULL));
    }
    assert_int_equal(at, front->n_points - 1);
    for (int64_t k = 1; k < front->n_points; k++)
        assert_true(front->points[k].value < front->points[k - 1].value);
}

static void test_front(void **state)
{
    gac_pareto_options few = { .max_states = 3, .n_budgets = 5 };
    gac_front front;
    (void)state;
    for (int kind = 0; kind < HUGE_COSTS; kind++)
        for (int k = 0; k < 12; k++) {
            random_state = (uint64_t)(50 * kind + k);
            draw_instance(kind, 1 + (int32_t)below(4), 4, 25);
            assert_int_equal(gac_pareto(in.classes, in.n_classes, NULL, &front, NULL), GAC_OK);
            assert_true(front.complete && front.n_unproved == 0);
            check_front(&front);
            gac_front_dispose(&front);
            assert_int_equal(gac_pareto(in.classes, in.n_classes, &few, &front, NULL), GAC_OK);
            assert_in_range(front.n_points, 1, 5);
            for (int64_t p = 0; p < front.n_points; p++)
                assert_true(fabs(front.points[p].value - brute_force(0, front.points[p].cost)) <=
                            1e-12);
            /* The last budget pays for everything. */
            assert_true(front.points[front.n_points - 1].value <=
                        brute_force(0, (int64_t)1 << 50) + 1e-12);
            gac_front_dispose(&front);
        }
    gac_front_dispose(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),   cmocka_unit_test(test_table),
        cmocka_unit_test(test_copies),        cmocka_unit_test(test_few_states),
        cmocka_unit_test(test_time_limit),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_no_classes),
        cmocka_unit_test(test_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "experiment/experiment_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static exp_verdict judge(double published, double ours)
{
    return exp_judge_ratio(published, ours, 0.15, 0, 0.05);
}

static exp_verdict judge_share(double published, double ours)
{
    return exp_judge_share(published, ours, ours, ours, 0.02);
}

static void verdicts_at_their_boundaries(void **state)
{
    (void)state;
    assert_int_equal(judge(2.0, 2.0), EXP_REPRODUCED);
    assert_int_equal(judge(2.0, 2.0 * 1.15), EXP_REPRODUCED);
    assert_int_equal(judge(2.0, 2.0 / 1.15), EXP_REPRODUCED);
    assert_int_equal(judge(2.0, 2.0 * 1.1501), EXP_STRONGER);
    assert_int_equal(judge(2.0, 2.0 / 1.1501), EXP_WEAKER);
    assert_int_equal(judge(2.0, 1.051), EXP_WEAKER);
    assert_int_equal(judge(2.0, 1.049), EXP_CONTRADICTED);
    assert_int_equal(judge(2.0, 0.5), EXP_CONTRADICTED);
    /* the same effect inverted */
    assert_int_equal(judge(0.5, 0.5), EXP_REPRODUCED);
    assert_int_equal(judge(0.5, 0.4), EXP_STRONGER);
    assert_int_equal(judge(0.5, 0.7), EXP_WEAKER);
    assert_int_equal(judge(0.5, 0.96), EXP_CONTRADICTED);
    assert_int_equal(judge(0.5, 1.5), EXP_CONTRADICTED);
}

static void small_effects_are_not_lost_in_the_tolerance(void **state)
{
    (void)state;
    /* 8 % was claimed; no effect is within 15 % of that, but contradicts it */
    assert_int_equal(judge(1.08, 1.0), EXP_CONTRADICTED);
    assert_int_equal(judge(1.08, 1.07), EXP_REPRODUCED);
}

static void no_effect_can_be_claimed(void **state)
{
    (void)state;
    assert_int_equal(judge(0.992, 1.04), EXP_REPRODUCED);
    assert_int_equal(judge(0.992, 1.05), EXP_REPRODUCED);
    assert_int_equal(judge(0.992, 1.051), EXP_CONTRADICTED);
    assert_int_equal(judge(0.992, 0.9), EXP_CONTRADICTED);
    /* noise of 4 % hides an effect of 10 % */
    assert_int_equal(exp_judge_ratio(0.992, 1.1, 0.15, 0.04, 0.05), EXP_AMBIGUOUS);
    assert_int_equal(exp_judge_ratio(0.992, 1.2, 0.15, 0.04, 0.05), EXP_CONTRADICTED);
    assert_int_equal(exp_judge_ratio(1.2, 1.1, 0.15, 0.04, 0.05), EXP_AMBIGUOUS);
    assert_int_equal(exp_judge_ratio(2.0, 1.1, 0.15, 0.04, 0.05), EXP_AMBIGUOUS);
}

/* Judges a value with a noise of 0.6 %. */
static exp_verdict judge_noisy(double published, double ours)
{
    return exp_judge_ratio(published, ours, 0.15, 0.006, 0.05);
}

static void near_a_border_is_ambiguous(void **state)
{
    (void)state;
    /* an effect or none: two runs of one experiment gave these */
    assert_int_equal(judge_noisy(0.843, 0.9552), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(0.843, 0.9482), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(0.843, 0.975), EXP_CONTRADICTED);
    assert_int_equal(judge_noisy(0.843, 0.93), EXP_REPRODUCED);
    /* reproduced or stronger, reproduced or weaker */
    assert_int_equal(judge_noisy(2.0, 2.28), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(2.0, 2.32), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(2.0, 2.2), EXP_REPRODUCED);
    assert_int_equal(judge_noisy(2.0, 2.4), EXP_STRONGER);
    assert_int_equal(judge_noisy(2.0, 1.75), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(2.0, 1.6), EXP_WEAKER);
    assert_int_equal(judge_noisy(2.0, 1.06), EXP_AMBIGUOUS);
    /* no effect was claimed */
    assert_int_equal(judge_noisy(1.0, 1.04), EXP_AMBIGUOUS);
    assert_int_equal(judge_noisy(1.0, 1.01), EXP_REPRODUCED);
    assert_int_equal(judge_noisy(1.0, 0.94), EXP_AMBIGUOUS);
    /* contradicted at both ends, but not between them */
    assert_int_equal(exp_judge_ratio(1.0, 1.06, 0.15, 0.1, 0.05), EXP_AMBIGUOUS);
    /* unlimited noise */
    assert_int_equal(exp_judge_ratio(2.0, 2.0, 0.15, INFINITY, 0.05), EXP_AMBIGUOUS);
}

static exp_verdict judge_pair(double published, double ours, bool distinguishable,
                              double clock_ratio)
{
    exp_comparison pair = { .distinguishable = distinguishable, .clock_ratio = clock_ratio };
    return exp_judge_pair(published, ours, 0.15, 0, 0.05, &pair);
}

static void two_calls_may_be_ambiguous(void **state)
{
    (void)state;
    assert_int_equal(judge_pair(2.0, 2.0, true, 1), EXP_REPRODUCED);
    assert_int_equal(judge_pair(2.0, 2.0, false, 1), EXP_AMBIGUOUS);
    assert_int_equal(judge_pair(2.0, 0.5, false, 1), EXP_AMBIGUOUS);
    assert_int_equal(judge_pair(1.0, 1.2, false, 1), EXP_AMBIGUOUS);
    /* finding no difference needs no significance */
    assert_int_equal(judge_pair(2.0, 1.001, false, 1), EXP_CONTRADICTED);
    assert_int_equal(judge_pair(1.0, 1.001, false, 1), EXP_REPRODUCED);
    /* clocks 10 % apart explain 1.1, but not 2 */
    assert_int_equal(judge_pair(1.15, 1.1, true, 1.1), EXP_AMBIGUOUS);
    assert_int_equal(judge_pair(1.15, 1.1, true, 1 / 1.1), EXP_AMBIGUOUS);
    assert_int_equal(judge_pair(2.0, 2.0, true, 1.1), EXP_REPRODUCED);
}

/* Makes a job with n samples that spread evenly around time_us. */
static exp_job timed_job(double time_us, double spread, int n, int clock_mhz)
{
    json_t *samples = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(samples, json_real(time_us * (1 + spread * (2.0 * i / (n - 1) - 1))));
    return (exp_job){ .key = "",
                      .state = EXP_MEASURED,
                      .flops = 1000,
                      .bytes = 1,
                      .time_us = time_us,
                      .timing = json_pack("{s:o, s:i, s:i}", "samples_us", samples, "clock_mhz_min",
                                          clock_mhz, "clock_mhz_max", clock_mhz) };
}

static exp_comparison compare(double a_us, double spread, int n, int a_mhz, double bytes)
{
    exp_comparison out;
    exp_job a = timed_job(a_us, spread, n, a_mhz), b = timed_job(100, spread, n, 1980);
    a.bytes = bytes;
    exp_compare(&a, &b, a_us / 100, &out);
    json_decref(a.timing);
    json_decref(b.timing);
    return out;
}

static void samples_and_clocks_are_compared(void **state)
{
    (void)state;
    exp_comparison out = compare(110, 0.01, 9, 1980, 1);
    assert_true(out.distinguishable && out.clock_ratio == 1);
    assert_string_equal(out.note, "");
    assert_false(compare(100.5, 0.001, 9, 1980, 1).distinguishable); /* below 1 % */
    assert_false(compare(110, 0.3, 9, 1980, 1).distinguishable);
    out = compare(110, 0.01, 3, 1980, 1); /* too few samples */
    assert_false(out.distinguishable);
    assert_non_null(strstr(out.note, "do not tell them apart"));
    out = compare(110, 0.01, 9, 1800, 1);
    assert_true(fabs(out.clock_ratio - 1800.0 / 1980) < 1e-12);
    assert_non_null(strstr(out.note, "1800 and 1980 MHz"));
    assert_true(compare(110, 0.01, 9, 1940, 1).clock_ratio == 1);  /* 2 % apart */
    assert_true(compare(110, 0.01, 9, -1, 1).clock_ratio == 1);    /* clock unknown */
    assert_true(compare(110, 0.01, 9, 1800, 10).clock_ratio == 1); /* memory-bound */
}

static void arithmetic_is_exact(void **state)
{
    (void)state;
    assert_int_equal(exp_judge_ratio(1.0372, 1.03718, 0.001, 0, 0), EXP_REPRODUCED);
    assert_int_equal(exp_judge_ratio(1.0372, 1.049, 0.001, 0, 0), EXP_STRONGER);
    assert_int_equal(exp_judge_ratio(1.0372, 1.01, 0.001, 0, 0), EXP_WEAKER);
    assert_int_equal(exp_judge_ratio(1.0372, 1.0, 0.001, 0, 0), EXP_CONTRADICTED);
}

static void what_has_no_value_is_not_judged(void **state)
{
    (void)state;
    assert_int_equal(judge(2.0, NAN), EXP_NOT_MEASURED);
    assert_int_equal(judge(2.0, 0), EXP_NOT_MEASURED);
    assert_int_equal(judge(2.0, INFINITY), EXP_NOT_MEASURED);
    assert_int_equal(judge(NAN, 1), EXP_NOT_MEASURED);
    assert_int_equal(judge_share(1, NAN), EXP_NOT_MEASURED);
    assert_int_equal(judge_share(1, 1.5), EXP_NOT_MEASURED);
}

static void shares(void **state)
{
    (void)state;
    assert_int_equal(judge_share(1, 1), EXP_REPRODUCED);
    assert_int_equal(judge_share(1, 0.98), EXP_REPRODUCED);
    assert_int_equal(judge_share(1, 0.97), EXP_WEAKER);
    assert_int_equal(judge_share(1, 0.5), EXP_CONTRADICTED);
    assert_int_equal(judge_share(0, 0), EXP_REPRODUCED);
    assert_int_equal(judge_share(0, 1), EXP_CONTRADICTED);
    assert_int_equal(judge_share(0.7, 0.9), EXP_STRONGER);
}

static void shares_move_by_whole_cases(void **state)
{
    (void)state;
    assert_int_equal(exp_judge_share(1, 1, 44.0 / 45, 1, 0.02), EXP_AMBIGUOUS);
    assert_int_equal(exp_judge_share(1, 1, 0.99, 1, 0.02), EXP_REPRODUCED);
    assert_int_equal(exp_judge_share(1, 0.9, 0.9, 1, 0.02), EXP_AMBIGUOUS);
    assert_int_equal(exp_judge_share(0.5, 0.4, 0.4, 0.6, 0.02), EXP_AMBIGUOUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_at_their_boundaries),
        cmocka_unit_test(small_effects_are_not_lost_in_the_tolerance),
        cmocka_unit_test(no_effect_can_be_claimed),
        cmocka_unit_test(near_a_border_is_ambiguous),
        cmocka_unit_test(shares_move_by_whole_cases),
        cmocka_unit_test(two_calls_may_be_ambiguous),
        cmocka_unit_test(samples_and_clocks_are_compared),
        cmocka_unit_test(arithmetic_is_exact),
        cmocka_unit_test(what_has_no_value_is_not_judged),
        cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests the verdict over all claims of an experiment. */
#include "experiment/experiment_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Summarises claims with these comma-separated verdicts. */
static json_t *summary_of(const char *verdicts)
{
    json_t *claims = json_array();
    char *copy = strdup(verdicts), *rest = copy, *one;
    while ((one = strsep(&rest, ",")) != NULL)
        json_array_append_new(claims, json_pack("{s:s}", "verdict", one));
    json_t *summary = exp_summarise(claims);
    json_decref(claims);
    free(copy);
    return summary;
}

static void assert_word(const char *verdicts, const char *word)
{
    json_t *summary = summary_of(verdicts);
    assert_string_equal(json_string_value(json_object_get(summary, "verdict")), word);
    json_decref(summary);
}

static void one_contradiction_decides(void **state)
{
    (void)state;
    assert_word("contradicted", "contradicted");
    assert_word("contradicted,reproduced", "contradicted");
    assert_word("contradicted,stronger", "contradicted");
    assert_word("contradicted,weaker,stronger", "contradicted");
    assert_word("contradicted,ambiguous,unpublished", "contradicted");
    assert_word("arithmetic,contradicted", "contradicted");
}

static void others_by_rank(void **state)
{
    (void)state;
    assert_word("reproduced,reproduced", "reproduced");
    assert_word("reproduced,stronger,unpublished", "stronger");
    assert_word("weaker,reproduced", "weaker");
    assert_word("weaker,stronger", "mixed");
    assert_word("ambiguous,stronger,weaker", "mixed");
    assert_word("ambiguous,reproduced", "reproduced");
    assert_word("ambiguous,unpublished", "ambiguous");
    assert_word("unpublished", "unpublished");
    assert_word("not measured,unpublished", "not measured");
    assert_word("arithmetic,unpublished", "unpublished");
    assert_word("arithmetic,not measured", "not measured");
    assert_word("arithmetic", "arithmetic");
}

static void claims_are_counted(void **state)
{
    (void)state;
    json_t *summary = summary_of("contradicted,stronger,stronger,arithmetic,not measured");
    const json_t *claims = json_object_get(summary, "claims");
    assert_int_equal(json_object_size(claims), 4);
    assert_int_equal(json_integer_value(json_object_get(claims, "contradicted")), 1);
    assert_int_equal(json_integer_value(json_object_get(claims, "stronger")), 2);
    assert_int_equal(json_integer_value(json_object_get(summary, "measured")), 3);
    json_decref(summary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_contradiction_decides),
        cmocka_unit_test(others_by_rank),
        cmocka_unit_test(claims_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

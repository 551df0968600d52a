/* Pages from results: what is on them, what is refused, and that no text of a
 * result is taken for anything but text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "scratch.h"

#include <gac/report.h>

#include <jansson.h>

#define HEAD(schema) "{\"schema\":\"" schema "\",\"tool\":{\"version\":\"9.8\"},"

static const char front[] =
    HEAD("gac.front/1") "\"contract\":\"h200\",\"complete\":true,"
                        "\"points\":[{\"extra_bytes\":0,\"overhead_pct\":0,\"time_ms\":9.5},"
                        "{\"extra_bytes\":64,\"overhead_pct\":0.5,\"time_ms\":4.25}]}";

static gac_status add(gac_report *report, const char *text, gac_error *err)
{
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    gac_status status = gac_report_add(report, json, "test.json", err);
    json_decref(json);
    return status;
}

/* The page of one result, drawn or not. The caller frees it. */
static char *page_of(const char *text, bool drawn)
{
    gac_error err = GAC_ERROR_INIT;
    gac_report *report;
    char *page;
    size_t n;
    assert_int_equal(gac_report_create("a title", &report, &err), GAC_OK);
    assert_int_equal(add(report, text, &err), GAC_OK);
    if (drawn)
        assert_int_equal(gac_report_draw(report, &err), GAC_OK);
    assert_int_equal(gac_report_html(report, &page, &n, &err), GAC_OK);
    assert_int_equal(strlen(page), n);
    gac_report_free(report);
    return page;
}

static void assert_has(const char *page, const char *part)
{
    if (!strstr(page, part))
        fail_msg("the page lacks: %s", part);
}

static void assert_lacks(const char *page, const char *part)
{
    if (strstr(page, part))
        fail_msg("the page has: %s", part);
}

static void page_has_numbers_and_origin(void **state)
{
    (void)state;
    char *page = page_of(front, false);
    assert_has(page, "<title>a title</title>");
    assert_has(page, "test.json");
    assert_has(page, "gac 9.8");
    assert_has(page, "4.250");    /* a time */
    assert_has(page, "64 bytes"); /* what belongs to it */
    assert_has(page, "<figure>"); /* the figure, without its picture */
    assert_lacks(page, "<svg class");
    assert_lacks(page, "<script");
    free(page);
}

/* Every text that a result may have, with what HTML, SVG and gnuplot would take for commands. */
static void texts_stay_texts(void **state)
{
    (void)state;
    static const char evil[] =
        "</title><script>alert(1)</script>\\\"onload=x' `touch gac-was-here` $d0 @a \\\\n"
        "END_OF_DATA system(1) ; %s %n";
    char text[4096];
    snprintf(
        text, sizeof text,
        HEAD(
            "gac.experiment/1") "\"id\":\"%s\",\"title\":\"%s\",\"stack\":\"%s\","
                                "\"question\":\"%s\",\"notes\":[\"%s\"],\"published_setup\":\"%s\","
                                "\"claims\":[{\"says\":\"%s\",\"verdict\":\"%s\",\"reason\":\"%s\"}"
                                "],"
                                "\"cases\":[{\"sweep\":\"%s\",\"label\":\"%s\",\"variables\":{\"%"
                                "s\":1},"
                                "\"variants\":{\"%s\":{\"state\":\"measured\",\"time_us\":3,"
                                "\"families\":\"%s\","
                                "\"published_ms\":4}}}]}",
        evil, evil, evil, evil, evil, evil, evil, evil, evil, evil, evil, evil, evil, evil);
    assert_int_equal(unlink("gac-was-here") == 0 || errno == ENOENT, 1);
    char *page = page_of(text, true);
    assert_lacks(page, "<script");
    assert_lacks(page, "</title><");
    assert_lacks(page, "'onload");
    assert_lacks(page, "\"onload");
    assert_lacks(page, "onmousemove");
    assert_has(page, "&lt;script&gt;");
    assert_int_not_equal(access("gac-was-here", F_OK), 0);
    free(page);
}

static void values_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "{}", "has no result of gac in it" },
        { "{\"schema\":\"gac.weather/1\"}", "gac.weather/1" },
        { "{\"schema\":7}", "has no result of gac in it" },
        { HEAD("gac.front/1") "\"points\":7}", "$.points: must be an array" },
        { HEAD("gac.front/1") "\"points\":[7]}", "$.points[0]: must be an object" },
        { HEAD("gac.front/1") "\"points\":[{\"time_ms\":1}]}", "$.overhead_pct: must be a number" },
        { HEAD("gac.front/1") "\"points\":[{\"overhead_pct\":1e300,\"time_ms\":1}]}",
          "must be from" },
        { HEAD("gac.front/1") "\"complete\":7,\"points\":[]}",
          "$.complete: must be true or false" },
        { HEAD("gac.front/1") "\"contract\":[],\"points\":[]}", "$.contract: must be a text" },
        { HEAD("gac.inspect/1") "\"dims\":[{\"name\":\"a\"}]}", "$.size: must be a number" },
        { HEAD("gac.inspect/1") "\"checkpoint\":[],\"dims\":[]}",
          "$.checkpoint: must be an object" },
        { HEAD("gac.plan/1") "\"dims\":[]}", "$.strategy: must be a text" },
        { HEAD("gac.repair/1") "\"dims\":[]}", "$.n_dims_changed: must be a number" },
        { HEAD("gac.verify/1") "\"ok\":1}", "$.ok: must be true or false" },
        { HEAD("gac.compress/1") "\"method\":\"gac\"}", "$.align: must be a text" },
        { HEAD("gac.eval/1") "\"prefill\":{}}", "$.prefill: must be an array" },
        { HEAD("gac.experiment/1") "\"id\":\"S1\",\"cases\":[{\"sweep\":\"a\",\"variants\":{\"x\":"
                                   "1}}]}",
          "$.cases.variants: must have objects" },
        { HEAD("gac.experiment/1") "\"id\":\"S1\",\"cases\":[{\"sweep\":\"a\",\"variables\":{\"x\":"
                                   "[]}}]}",
          "$.cases.variables: must be numbers" },
        { HEAD("gac.contract/2") "\"name\":\"a\",\"dtypes\":[1]}", "$.dtypes: must be texts" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gac_error err = GAC_ERROR_INIT;
        gac_report *report;
        assert_int_equal(gac_report_create("t", &report, &err), GAC_OK);
        gac_status status = add(report, cases[i].text, &err);
        if (status != GAC_BAD_INPUT || !strstr(err.text, cases[i].says) ||
            !strstr(err.text, "test.json"))
            fail_msg("%s: %d, %s", cases[i].text, (int)status, err.text);
        gac_report_free(report);
    }
}

/* Results in other documents are found, and so are several of them. */
static void results_are_found_inside(void **state)
{
    (void)state;
    char text[2048];
    snprintf(text, sizeof text, "{\"schema\":\"gac.c5/1\",\"variants\":{\"one\":%s,\"two\":[%s]}}",
             front, front);
    char *page = page_of(text, false);
    assert_has(page, "test.json, variants, one");
    assert_has(page, "id=\"result-1\"");
    assert_has(page, "id=\"result-2\"");
    assert_lacks(page, "id=\"result-3\"");
    free(page);
}

/* A list that is too long for a page is cut, and the page says so. */
static void sizes_are_bounded(void **state)
{
    (void)state;
    json_t *root = json_pack("{s:s, s:s, s:{}}", "schema", "gac.inspect/1", "time", "t", "summary");
    json_t *dims = json_array();
    char name[40];
    for (int i = 0; i < 9000; i++) {
        snprintf(name, sizeof name, "layers.%d.x%c%c.rank", i, 'a' + i % 26, 'a' + i / 26 % 26);
        json_array_append_new(
            dims, json_pack("{s:s, s:i, s:b}", "name", name, "size", 5 + i, "aligned", 0));
    }
    json_object_set_new(root, "dims", dims);
    char *text = json_dumps(root, 0), *page = page_of(text, false);
    assert_has(page, "5000 more points are in the result file");
    assert_has(page, "others");
    assert_true(strlen(page) < 2 << 20);
    free(page);
    free(text);
    json_decref(root);
}

/* Points and bars get their hover texts, in their order; the others keep theirs. */
static void drawn_figures_have_titles(void **state)
{
    (void)state;
    char *page = page_of(front, true);
    if (strstr(page, "This page has no pictures")) {
        free(page);
        skip(); /* there is no gnuplot */
    }
    assert_has(page, "<svg class=\"plot\" role=\"img\"");
    assert_has(page,
               "<title>bytes added, percent 0 · best plans\npredicted time, ms: 9.500\n0 bytes");
    assert_has(page, "predicted time, ms: 4.250\n64 bytes</title>");
    assert_lacks(page, "gnuplot_svg");
    free(page);
}

static void without_gnuplot_there_is_a_hint(void **state)
{
    (void)state;
    char before[4096];
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    setenv("PATH", scratch_path("nothing"), 1);
    gac_error err = GAC_ERROR_INIT;
    gac_report *report;
    char *page;
    size_t n;
    assert_int_equal(gac_report_create("t", &report, &err), GAC_OK);
    assert_int_equal(add(report, front, &err), GAC_OK);
    assert_int_equal(gac_report_draw(report, &err), GAC_OK);
    assert_non_null(strstr(gac_report_hint(report), "gnuplot-nox"));
    assert_int_equal(gac_report_html(report, &page, &n, &err), GAC_OK);
    assert_has(page, "gnuplot-nox");
    assert_has(page, "4.250");
    assert_int_equal(gac_report_write_figures(report, scratch_path("figures"), false, &err),
                     GAC_NO_RESOURCE);
    setenv("PATH", before, 1);
    free(page);
    gac_report_free(report);
}

static void put_program(const char *name, const char *text)
{
    const char *path = scratch_put(name, text, strlen(text));
    assert_int_equal(chmod(path, 0755), 0);
}

/* A gnuplot that fails, or draws nonsense, costs the pictures at most. */
static void bad_gnuplots(void **state)
{
    (void)state;
    static const struct {
        const char *script;
        gac_status status;
        const char *says;
    } cases[] = { { "#!/bin/sh\necho no font >&2\nexit 3\n", GAC_OK, "no font" },
                  { "#!/bin/sh\necho nothing\n", GAC_FAILED, "fewer figures" },
                  { "#!/bin/sh\necho '<?xml version=1?> no svg'\n", GAC_FAILED, "no SVG" } };
    char before[4096], path[PATH_MAX];
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", scratch_root, before);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gac_error err = GAC_ERROR_INIT;
        gac_report *report;
        put_program("gnuplot", cases[i].script);
        setenv("PATH", path, 1);
        assert_int_equal(gac_report_create("t", &report, &err), GAC_OK);
        assert_int_equal(add(report, front, &err), GAC_OK);
        assert_int_equal(gac_report_draw(report, &err), cases[i].status);
        const char *said = cases[i].status == GAC_OK ? gac_report_hint(report) : err.text;
        assert_non_null(strstr(said, cases[i].says));
        setenv("PATH", before, 1);
        gac_report_free(report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_has_numbers_and_origin),
        cmocka_unit_test(texts_stay_texts),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(results_are_found_inside),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(drawn_figures_have_titles),
        cmocka_unit_test(without_gnuplot_there_is_a_hint),
        cmocka_unit_test(bad_gnuplots),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}

/* The parser of the command line, with the arguments that people and scripts give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options.h"

typedef struct inner {
    const char *device;
} inner;

typedef struct sample {
    bool force, quick, help;
    const char *out;
    int64_t count, tokens;
    double share, any;
    uint64_t bytes;
    int colour;
    opt_list sets;
    int called;
    inner engine;
} sample;

static gac_status take_even(void *member, const char *text, gac_error *err)
{
    *(int *)member = atoi(text);
    return atoi(text) % 2 == 0 ? GAC_OK : gac_error_set(err, GAC_USAGE, "\"%s\" is odd", text);
}

static const opt inner_table[] = {
    { "device", 'd', "D", "", OPT_TEXT, .at = offsetof(inner, device) }, { 0 }
};

static const opt_choice colours[] = {
    { "red", 7, false }, { "green", 8, false }, { "rouge", 7, true }, { 0 }
};

#define AT(member) .at = offsetof(sample, member)
static const opt table[] = { { "force", 'f', NULL, "", OPT_FLAG, AT(force) },
                             { "quick", 'q', NULL, "", OPT_FLAG, AT(quick) },
                             { "output", 'o', "OUT", "", OPT_TEXT, AT(out) },
                             { "count", 0, "N", "", OPT_INT, AT(count), .least = 1, .most = 4096,
                               .old = "number" },
                             { "tokens", 0, "N", "", OPT_INT, AT(tokens), .least = 1 },
                             { "share", 0, "S", "", OPT_REAL, AT(share), .max = 1, .above = true },
                             { "any", 0, "X", "", OPT_REAL, AT(any) },
                             { "max-shard-size", 0, "N", "", OPT_BYTES, AT(bytes) },
                             { "colour", 0, "C", "", OPT_CHOICE, AT(colour), .choices = colours },
                             { "set", 0, "S", "", OPT_LIST, AT(sets) },
                             { "even", 0, "N", "", OPT_CALL, AT(called), .take = take_even },
                             { "engine", 0, NULL, "", OPT_GROUP, AT(engine), .group = inner_table },
                             { "one-case", 0, "X", "", OPT_TEXT, AT(out), .hidden = true },
                             { 0 } };
static const opt common[] = { { "help", 'h', NULL, "", OPT_FLAG, AT(help), .ends = true }, { 0 } };

enum { MAX_ARGUMENTS = 600 };

static sample got;
static opt_result result;
static gac_error error;

static gac_status parse_list(int argc, char **argv)
{
    opt_set sets[] = { { table, &got }, { common, &got } };
    options_dispose(&result);
    got = (sample){ 0 };
    error = (gac_error)GAC_ERROR_INIT;
    return options_parse(sets, 2, argc, argv, "gac test --help", &result, &error);
}

/* Arguments up to NULL. */
static gac_status parse(const char *first, ...)
{
    char *argv[16];
    int argc = 0;
    va_list list;
    va_start(list, first);
    for (const char *text = first; text; text = va_arg(list, const char *))
        argv[argc++] = (char *)text;
    va_end(list);
    return parse_list(argc, argv);
}

/* One wrong argument, or one with a value, and what is said of it. */
static void refuses(const char *argument, const char *value, const char *said)
{
    assert_int_equal(parse(argument, value, NULL), GAC_USAGE);
    assert_string_equal(error.text, said);
    assert_null(strchr(error.text, '\n'));
}

static void values_in_every_form(void **state)
{
    (void)state;
    assert_int_equal(parse("--output", "a", NULL), GAC_OK);
    assert_string_equal(got.out, "a");
    assert_int_equal(parse("--output=a=b", NULL), GAC_OK);
    assert_string_equal(got.out, "a=b");
    assert_int_equal(parse("-o", "-q", NULL), GAC_OK);
    assert_string_equal(got.out, "-q");
    assert_false(got.quick);
    assert_int_equal(parse("-ofile", NULL), GAC_OK);
    assert_string_equal(got.out, "file");
    assert_int_equal(parse("-qfo=x", NULL), GAC_OK);
    assert_true(got.quick && got.force);
    assert_string_equal(got.out, "=x");
    assert_int_equal(parse("--device", "cpu", "-dgpu", NULL), GAC_OK);
    assert_string_equal(got.engine.device, "gpu");
    assert_int_equal(parse(NULL), GAC_OK);
    assert_int_equal(result.n_arguments, 0);
}

static void what_is_no_option(void **state)
{
    (void)state;
    assert_int_equal(parse("a", "-q", "-", "--", "--force", "-o", "--", NULL), GAC_OK);
    assert_int_equal(result.n_arguments, 5);
    assert_string_equal(result.arguments[0], "a");
    assert_string_equal(result.arguments[1], "-");
    assert_string_equal(result.arguments[2], "--force");
    assert_string_equal(result.arguments[4], "--");
    assert_true(got.quick);
    assert_false(got.force);
    assert_int_equal(parse("", "b", NULL), GAC_OK);
    assert_int_equal(result.n_arguments, 2);
}

static void what_was_given(void **state)
{
    (void)state;
    assert_int_equal(parse("-q", "--number", "5", NULL), GAC_OK);
    assert_int_equal(got.count, 5);
    assert_true(options_given(&result, "quick") && options_given(&result, "count"));
    assert_false(options_given(&result, "force"));
    assert_true(options_given_of(&result, table));
    assert_false(options_given_of(&result, common));
    assert_false(options_given_of(&result, inner_table));
    assert_int_equal(parse("-d", "x", NULL), GAC_OK);
    assert_true(options_given_of(&result, inner_table));
}

static void repeated_options(void **state)
{
    (void)state;
    char *many[MAX_ARGUMENTS];
    assert_int_equal(parse("-oa", "--output", "b", "--force", "--force", NULL), GAC_OK);
    assert_string_equal(got.out, "b");
    assert_int_equal(parse("--set", "a", "--set=b", NULL), GAC_OK);
    assert_int_equal(got.sets.n, 2);
    assert_string_equal(got.sets.items[0], "a");
    assert_string_equal(got.sets.items[1], "b");
    for (int i = 0; i < MAX_ARGUMENTS; i++)
        many[i] = "--set=x";
    assert_int_equal(parse_list(OPT_MAX_LIST, many), GAC_OK);
    assert_int_equal(parse_list(OPT_MAX_LIST + 1, many), GAC_USAGE);
    assert_string_equal(error.text, "--set: may be given 256 times at most");
    for (int i = 0; i < MAX_ARGUMENTS; i++)
        many[i] = "-qqqqqqqqff";
    assert_int_equal(parse_list(MAX_ARGUMENTS, many), GAC_OK);
    assert_int_equal(result.n_given, 10 * MAX_ARGUMENTS);
}

static void help_ends_reading(void **state)
{
    (void)state;
    assert_int_equal(parse("--help", "--frob", NULL), GAC_OK);
    assert_true(got.help);
    assert_int_equal(parse("-qhx", "--frob", NULL), GAC_OK);
    assert_true(got.help && got.quick);
    refuses("--frob", "--help", "unknown option --frob; see gac test --help");
}

static void values_that_are_wrong(void **state)
{
    (void)state;
    refuses("--output", NULL, "--output: needs a value");
    refuses("-o", NULL, "--output: needs a value");
    refuses("--output=", NULL, "--output: needs a value");
    refuses("--output", "", "--output: needs a value");
    refuses("--set=", NULL, "--set: needs a value");
    refuses("--force=yes", NULL, "--force: takes no value");
    refuses("--force=", NULL, "--force: takes no value");
    const char *const whole[] = { "",
                                  "x",
                                  "0",
                                  "-1",
                                  "4097",
                                  "1e3",
                                  "5.0",
                                  "0x5",
                                  "5 ",
                                  " 5",
                                  "+5",
                                  "--",
                                  "99999999999999999999" };
    char said[200];
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        snprintf(said, sizeof said, "--count: \"%s\" is not a whole number from 1 to 4096",
                 whole[i]);
        refuses("--count", whole[i], said);
    }
    refuses("--tokens", "99999999999999999999",
            "--tokens: \"99999999999999999999\" is not a whole number of at least 1");
    refuses("--share", "0", "--share: \"0\" is not a number above 0 and at most 1");
    refuses("--share", "1.1", "--share: \"1.1\" is not a number above 0 and at most 1");
    refuses("--any", "nan", "--any: \"nan\" is not a number of at least 0");
    refuses("--any", "inf", "--any: \"inf\" is not a number of at least 0");
    refuses("--any=", NULL, "--any: \"\" is not a number of at least 0");
    refuses("--any", "-0.5", "--any: \"-0.5\" is not a number of at least 0");
    refuses("--colour", "blue", "--colour: \"blue\" is not one of red, green");
    refuses("--colour=", NULL, "--colour: \"\" is not one of red, green");
    refuses("--even", "3", "--even: \"3\" is odd");
}

static void values_that_are_right(void **state)
{
    (void)state;
    assert_int_equal(parse("--count", "4096", "--share", "1", "--any", "1e300", "--colour", "rouge",
                           "--even=4", NULL),
                     GAC_OK);
    assert_int_equal(got.count, 4096);
    assert_int_equal(parse("--tokens", "9223372036854775807", NULL), GAC_OK);
    assert_true(got.tokens == INT64_MAX);
    assert_int_equal(parse("--count", "4096", "--share", "1", "--any", "1e300", "--colour", "rouge",
                           "--even=4", NULL),
                     GAC_OK);
    assert_true(got.share == 1 && got.any == 1e300);
    assert_int_equal(got.colour, 7);
    assert_int_equal(got.called, 4);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = { { "1", 1 },
                 { "1000000", 1000000 },
                 { "5GB", 5000000000 },
                 { "5gb", 5000000000 },
                 { "1.5KB", 1500 },
                 { "7b", 7 },
                 { "2TB", 2000000000000 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(parse("--max-shard-size", good[i].text, NULL), GAC_OK);
        assert_int_equal(got.bytes, good[i].bytes);
    }
    static const char *const bad[] = { "", "GB", "5XB", "5 GB", "0", "-5GB", "0.5", "nan", "1e30" };
    char said[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(said, sizeof said, "--max-shard-size: \"%s\" is not a size such as 500MB or 5GB",
                 bad[i]);
        refuses("--max-shard-size", bad[i], said);
    }
}

static void suggestions(void **state)
{
    (void)state;
    refuses("--counts", NULL, "unknown option --counts; did you mean --count?");
    refuses("--couhnt=5", NULL, "unknown option --couhnt; did you mean --count?");
    refuses("--ouptut", NULL, "unknown option --ouptut; did you mean --output?");
    refuses("--devise", NULL, "unknown option --devise; did you mean --device?");
    refuses("--hepl", NULL, "unknown option --hepl; did you mean --help?");
    /* A beginning is not the option, even where no other begins so. */
    refuses("--out", "x", "unknown option --out; did you mean --output?");
    refuses("--max-shard", "5GB", "unknown option --max-shard; did you mean --max-shard-size?");
    /* What is hidden is not suggested; it can be given all the same. */
    refuses("--one-cas", NULL, "unknown option --one-cas; see gac test --help");
    assert_int_equal(parse("--one-case=x", NULL), GAC_OK);
    refuses("-x", NULL, "unknown option -x; see gac test --help");
    refuses("-x", "5", "unknown option -x; see gac test --help");
    refuses("-5", NULL, "unknown option -5; see gac test --help");
    refuses("-quick", NULL, "unknown option -u; did you mean --quick?");
    refuses("-qx", NULL, "unknown option -x; see gac test --help");
    refuses("--=", NULL, "unknown option --; see gac test --help");
    refuses("--=x", NULL, "unknown option --; see gac test --help");
    refuses("---force", NULL, "unknown option ---force; did you mean --force?");
}

static void hostile_arguments(void **state)
{
    (void)state;
    enum { LENGTH = 1 << 20 };
    char *text = malloc(LENGTH + 1);
    assert_non_null(text);
    memset(text, 'x', LENGTH);
    text[LENGTH] = 0;
    assert_int_equal(parse("--output", text, text, NULL), GAC_OK);
    assert_ptr_equal(got.out, text);
    assert_int_equal(parse("--count", text, NULL), GAC_USAGE);
    assert_int_equal(parse("--colour", text, NULL), GAC_USAGE);
    assert_int_equal(parse("--any", text, NULL), GAC_USAGE);
    text[0] = text[1] = '-';
    assert_int_equal(parse(text, NULL), GAC_USAGE);
    assert_true(strlen(error.text) < 200);
    memset(text, 'q', LENGTH);
    text[0] = '-';
    assert_int_equal(parse(text, NULL), GAC_OK);
    assert_int_equal(result.n_given, LENGTH - 1);
    /* Every byte but NUL, as an option, a value and a letter. */
    for (int i = 0; i < 255; i++)
        text[2 + i] = (char)(i + 1);
    text[257] = 0;
    text[0] = text[1] = '-';
    assert_int_equal(parse(text, NULL), GAC_USAGE);
    for (const char *at = error.text; *at; at++)
        assert_true((unsigned char)*at >= ' ');
    assert_int_equal(parse("--colour", text + 2, NULL), GAC_USAGE);
    for (const char *at = error.text; *at; at++)
        assert_true((unsigned char)*at >= ' ');
    text[1] = (char)0xff;
    assert_int_equal(parse(text, NULL), GAC_USAGE);
    free(text);
}

static void distances(void **state)
{
    (void)state;
    assert_int_equal(options_distance("", ""), 0);
    assert_int_equal(options_distance("", "abc"), 3);
    assert_int_equal(options_distance("abc", "abc"), 0);
    assert_int_equal(options_distance("abc", "acb"), 1);
    assert_int_equal(options_distance("kitten", "sitting"), 3);
    assert_int_equal(options_distance("workload", "wrokloads"), 2);
    assert_true(options_distance("a", "0123456789012345678901234567890123456789") > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_in_every_form),
        cmocka_unit_test(what_is_no_option),
        cmocka_unit_test(what_was_given),
        cmocka_unit_test(repeated_options),
        cmocka_unit_test(help_ends_reading),
        cmocka_unit_test(values_that_are_wrong),
        cmocka_unit_test(values_that_are_right),
        cmocka_unit_test(sizes),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(hostile_arguments),
        cmocka_unit_test(distances),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    options_dispose(&result);
    return failed;
}

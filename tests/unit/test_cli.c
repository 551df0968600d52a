#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli.h"

static void numbers_are_whole(void **state)
{
    (void)state;
    static const char *const bad[] = { "",   "x",   "8x",  "8 ", "1.5",
                                       "-1", "0x8", "1e3", "0",  "9223372036854775808" };
    cli c = { .error = GAC_ERROR_INIT };
    int64_t n = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cli_number(&c, "--n", bad[i], 1, &n), GAC_USAGE);
        assert_non_null(strstr(c.error.text, "--n: "));
        assert_int_equal(n, 7);
    }
    assert_int_equal(cli_number(&c, "--n", "1", 1, &n), GAC_OK);
    assert_int_equal(n, 1);
    assert_int_equal(cli_number(&c, "--n", "9223372036854775807", 1, &n), GAC_OK);
    assert_true(n == INT64_MAX);
}

/* Units are powers of 1000, in letters of any case. */
static void sizes_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t size;
    } good[] = { { "1", 1 },         { "12B", 12 },           { "3KB", 3000 },
                 { "5mb", 5000000 }, { "2.5GB", 2500000000 }, { "1TB", 1000000000000 },
                 { "0.5kb", 500 } };
    static const char *const bad[] = { "", "0", "MB", "5XB", "5 MB", "-1", "0.1", "1e19", "inf" };
    cli c = { .error = GAC_ERROR_INIT };
    uint64_t size = 0;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(cli_size(&c, "--size", good[i].text, &size), GAC_OK);
        assert_true(size == good[i].size);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cli_size(&c, "--size", bad[i], &size), GAC_USAGE);
}

static void amounts_have_three_digits(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        const char *text;
    } amounts[] = { { 0, "0 B" },           { 999, "999 B" },      { 1000, "1.00 kB" },
                    { 9994, "9.99 kB" },    { 9996, "10.0 kB" },   { 99960, "100 kB" },
                    { 999400, "999 kB" },   { 999600, "1.00 MB" }, { 16060000000, "16.1 GB" },
                    { 999499999, "999 MB" } };
    char buffer[32];
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        assert_string_equal(cli_bytes(buffer, amounts[i].n), amounts[i].text);
    assert_string_equal(cli_count(buffer, 999600), "1.00 million");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_whole),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(amounts_have_three_digits),
    };
    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}

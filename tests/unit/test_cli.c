#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli.h"

/* What the commands print. */
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
        cmocka_unit_test(amounts_have_three_digits),
    };
    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}

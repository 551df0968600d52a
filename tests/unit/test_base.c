#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/arena.h"
#include "base/floats.h"
#include "base/json_parse.h"
#include "base/json_walk.h"
#include "base/namemap.h"
#include "scratch.h"

static void errors_hold_one_line(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(gac_error_set(&err, GAC_CHECK, "%s %d", "a", 7), GAC_CHECK);
    assert_int_equal(err.status, GAC_CHECK);
    assert_string_equal(err.text, "a 7");
    assert_int_equal(gac_error_set(&err, GAC_FAILED, "%s", longer), GAC_FAILED);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(gac_error_set(NULL, GAC_USAGE, "nobody reads this"), GAC_USAGE);
    assert_int_equal(gac_error_no_memory(&err), GAC_NO_RESOURCE);
    assert_string_equal(err.text, "out of memory");
    assert_int_equal(gac_error_no_memory(NULL), GAC_NO_RESOURCE);
}

/* A wrong path is the caller's mistake. A path without permission is not. */
static void system_errors_have_a_status(void **state)
{
    (void)state;
    static const int absent[] = { ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG };
    static const int failed[] = { EACCES, EPERM, EIO, EMFILE, EISDIR };
    gac_error e = GAC_ERROR_INIT;
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        errno = absent[i];
        assert_int_equal(gac_error_errno(&e, "a"), GAC_BAD_INPUT);
    }
    for (size_t i = 0; i < sizeof failed / sizeof *failed; i++) {
        errno = failed[i];
        assert_int_equal(gac_error_errno(&e, "a"), GAC_FAILED);
    }
    errno = ENOMEM;
    assert_int_equal(gac_error_errno(&e, "a"), GAC_NO_RESOURCE);
}

/* Ties round to the even number. */
static void floats_round_to_even(void **state)
{
    (void)state;
    assert_int_equal(gac_bf16_from_float(0x1.01p0F), 0x3F80);
    assert_int_equal(gac_bf16_from_float(0x1.03p0F), 0x3F82);
    assert_int_equal(gac_bf16_from_float(-0x1.010002p0F), 0xBF81);
    assert_int_equal(gac_f16_from_float(0x1.002p0F), 0x3C00);
    assert_int_equal(gac_f16_from_float(0x1.006p0F), 0x3C02);
    assert_int_equal(gac_f16_from_float(-0x1.002002p0F), 0xBC01);
    assert_int_equal(gac_f16_from_float(0x1p-25F), 0);
    assert_int_equal(gac_f16_from_float(0x3p-25F), 2);
}

static void quote_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        { "", "" },
        { "layers.0.q_proj", "layers.0.q_proj" },
        { "a\nb\tc\x1b[31m\x7f", "a\\x0ab\\x09c\\x1b[31m\\x7f" },
        { "gr\xc3\xb6\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
          "gr\xc3\xb6\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80" },
        { "\x80", "\\x80" },            /* a continuation byte alone */
        { "\xc3", "\\xc3" },            /* truncated */
        { "\xe2\x82z", "\\xe2\\x82z" }, /* truncated before a letter */
        { "\xff\xfe", "\\xff\\xfe" },   /* never in UTF-8 */
        { "\xc0\xaf", "\\xc0\\xaf" },   /* overlong "/" */
        { "\xe0\x80\xaf", "\\xe0\\x80\\xaf" },
        { "\xed\xa0\x80", "\\xed\\xa0\\x80" },          /* half a surrogate pair */
        { "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80" }, /* beyond U+10FFFF */
        { "\xc2\x9b"
          "31m",
          "\\xc2\\x9b"
          "31m" }, /* CSI as a single character */
    };
    char buffer[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ptr_equal(gac_quote(buffer, sizeof buffer, cases[i].text), buffer);
        assert_string_equal(buffer, cases[i].quoted);
    }
}

/* Quoted text is always valid in JSON, also where it was cut. */
static void quote_is_utf8(void **state)
{
    (void)state;
    char text[80], buffer[80];
    srand(20);
    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t)rand() % (sizeof text - 1), size = 1 + (size_t)rand() % sizeof buffer;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(1 + rand() % 255);
        text[n] = 0;
        gac_quote(buffer, size, text);
        assert_true(strlen(buffer) < size);
        json_t *string = json_string(buffer);
        if (!string)
            fail_msg("round %d: not UTF-8: \"%s\"", round, buffer);
        json_decref(string);
        for (const char *c = buffer; *c; c++)
            assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void quote_cuts_the_middle(void **state)
{
    (void)state;
    char buffer[41], tiny[8];
    const char *name = "model.layers.17.self_attn_of_k_proj.weight_and_much_more_of_it.scale";
    gac_quote(buffer, sizeof buffer, name);
    assert_true(strlen(buffer) <= 40);
    assert_int_equal(strncmp(buffer, "model.layers.17.self_attn", 25), 0);
    const char *dots = strstr(buffer, "...");
    assert_non_null(dots);
    assert_true(strlen(dots + 3) > 0);
    assert_string_equal(dots + 3, name + strlen(name) - strlen(dots + 3));
    assert_string_equal(gac_quote(tiny, sizeof tiny, "abcdefghij"), "abcdefg");
    assert_string_equal(gac_quote(tiny, 5, "\n\n"), "\\x0a");
    assert_string_equal(gac_quote(tiny, 4, "\n\n"), "");
    assert_string_equal(gac_quote(tiny, 3, "a\xe2\x82\xac"), "a");
    assert_string_equal(gac_quote(tiny, 1, "abc"), "");
    tiny[0] = 'z';
    gac_quote(tiny, 0, "abc");
    assert_int_equal(tiny[0], 'z');
}

static void signed_arithmetic(void **state)
{
    (void)state;
    int64_t out = -7;
    assert_true(gac_mul_i64(INT64_MAX, 1, &out) && out == INT64_MAX);
    assert_true(gac_mul_i64(INT64_MIN, 1, &out) && out == INT64_MIN);
    assert_true(gac_mul_i64(0, INT64_MIN, &out) && out == 0);
    assert_true(gac_mul_i64(-3, 5, &out) && out == -15);
    assert_true(gac_mul_i64((int64_t)1 << 31, (int64_t)1 << 31, &out) && out == (int64_t)1 << 62);
    assert_true(gac_add_i64(INT64_MAX, 0, &out) && out == INT64_MAX);
    assert_true(gac_add_i64(INT64_MAX, INT64_MIN, &out) && out == -1);
    out = -7;
    assert_false(gac_mul_i64(INT64_MIN, -1, &out));
    assert_false(gac_mul_i64(INT64_MAX, 2, &out));
    assert_false(gac_mul_i64((int64_t)1 << 32, (int64_t)1 << 31, &out));
    assert_false(gac_add_i64(INT64_MAX, 1, &out));
    assert_false(gac_add_i64(INT64_MIN, -1, &out));
    assert_int_equal(out, -7);
}

static void unsigned_arithmetic(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_true(gac_mul_u64(UINT64_MAX, 1, &out) && out == UINT64_MAX);
    assert_true(gac_mul_u64(UINT64_MAX, 0, &out) && out == 0);
    assert_true(gac_add_u64(UINT64_MAX, 0, &out) && out == UINT64_MAX);
    out = 7;
    assert_false(gac_mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &out));
    assert_false(gac_mul_u64(UINT64_MAX, 2, &out));
    assert_false(gac_add_u64(UINT64_MAX, 1, &out));
    assert_int_equal(out, 7);
}

static void rounding_up(void **state)
{
    (void)state;
    int64_t s = -7;
    uint64_t u = 7;
    assert_true(gac_round_up_i64(0, 8, &s) && s == 0);
    assert_true(gac_round_up_i64(1, 8, &s) && s == 8);
    assert_true(gac_round_up_i64(8, 8, &s) && s == 8);
    assert_true(gac_round_up_i64(9, 1, &s) && s == 9);
    assert_true(gac_round_up_i64(INT64_MAX, 1, &s) && s == INT64_MAX);
    assert_true(gac_round_up_i64(1, INT64_MAX, &s) && s == INT64_MAX);
    assert_true(gac_round_up_i64(INT64_MAX - 7, 8, &s) && s == INT64_MAX - 7);
    s = -7;
    assert_false(gac_round_up_i64(INT64_MAX - 6, 8, &s));
    assert_false(gac_round_up_i64(INT64_MAX, 2, &s));
    assert_false(gac_round_up_i64(-1, 8, &s));
    assert_false(gac_round_up_i64(INT64_MIN, 8, &s));
    assert_false(gac_round_up_i64(8, 0, &s));
    assert_false(gac_round_up_i64(8, -8, &s));
    assert_int_equal(s, -7);
    assert_true(gac_round_up_u64(UINT64_MAX - 7, 8, &u) && u == UINT64_MAX - 7);
    assert_true(gac_round_up_u64(0, UINT64_MAX, &u) && u == 0);
    assert_true(gac_round_up_u64(UINT64_MAX - 1, UINT64_MAX, &u) && u == UINT64_MAX);
    u = 7;
    assert_false(gac_round_up_u64(UINT64_MAX - 6, 8, &u));
    assert_false(gac_round_up_u64(8, 0, &u));
    assert_int_equal(u, 7);
}

static void least_common_multiple(void **state)
{
    (void)state;
    int64_t out = -7;
    assert_true(gac_lcm_i64(8, 12, &out) && out == 24);
    assert_true(gac_lcm_i64(1, 1, &out) && out == 1);
    assert_true(gac_lcm_i64(64, 1024, &out) && out == 1024);
    assert_true(gac_lcm_i64(INT64_MAX, INT64_MAX, &out) && out == INT64_MAX);
    assert_true(gac_lcm_i64(INT64_MAX, 7, &out) && out == INT64_MAX); /* 7^2 divides it */
    out = -7;
    assert_false(gac_lcm_i64(INT64_MAX, 2, &out));
    assert_false(gac_lcm_i64(0, 8, &out));
    assert_false(gac_lcm_i64(8, -8, &out));
    assert_int_equal(out, -7);
}

/* Writes the names and integer values of an object and its inner objects as
 * "a=1 b{c=2 }". */
static gac_status trace(const char *text, char *out, size_t size, gac_error *err)
{
    gac_json_walk walk;
    const char *key;
    int depth = 1;
    *out = 0;
    gac_status status = gac_json_walk_start(&walk, text, strlen(text), "a.json", 100, err);
    while (status == GAC_OK && depth) {
        size_t used = strlen(out);
        if ((status = gac_json_walk_next(&walk, &key, err)) != GAC_OK)
            break;
        if (!key) {
            depth--;
            snprintf(out + used, size - used, depth ? "}" : ".");
        } else if (walk.text[walk.position] == '{') {
            snprintf(out + used, size - used, "%s{", key);
            status = gac_json_walk_enter(&walk, err);
            depth++;
        } else {
            json_t *value = NULL;
            snprintf(out + used, size - used, "%s=", key);
            if ((status = gac_json_walk_value(&walk, 20, &value, err)) != GAC_OK)
                break;
            used = strlen(out);
            snprintf(out + used, size - used, "%lld ", (long long)json_integer_value(value));
            json_decref(value);
        }
    }
    gac_json_walk_dispose(&walk);
    return status;
}

static void walks_objects(void **state)
{
    (void)state;
    char out[200];
    static const struct {
        const char *text, *seen;
    } good[] = {
        { "{}", "." },
        { " \t\r\n{ } \n", "." },
        { "{\"a\":1}", "a=1 ." },
        { "{ \"a\" : 1 , \"b\" : { \"c\":2,\"d\":{}} , \"e\":3 }", "a=1 b{c=2 d{}}e=3 ." },
        /* duplicates are left to the caller */
        { "{\"\\u0061\\n\":1,\"a\\n\":2}", "a\n=1 a\n=2 ." },
        { "{\"a\":[1,2],\"b\":\"}\",\"c\":null}", "a=0 b=0 c=0 ." },
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(trace(good[i].text, out, sizeof out, err));
        assert_string_equal(out, good[i].seen);
    }
}

static void walks_stop_at_faults(void **state)
{
    (void)state;
    char out[200];
    static const struct {
        const char *text, *piece;
    } bad[] = {
        { "", "offset 100: bad JSON: ends before '{'" },
        { "[]", "offset 100: bad JSON: expected '{'" },
        { "{", "offset 101: bad JSON: ends before a name" },
        { "{,\"a\":1}", "offset 101: bad JSON: expected a name" },
        { "{\"a\":1,}", "offset 107: bad JSON: expected a name" },
        { "{\"a\":1 \"b\":2}", "offset 107: bad JSON: expected ',' or '}'" },
        { "{\"a\":1", "offset 106: bad JSON: ends before ',' or '}'" },
        { "{\"a\" 1}", "offset 105: bad JSON: expected ':'" },
        { "{\"a\"", "offset 104: bad JSON: ends before ':'" },
        { "{\"a\":", "bad JSON" },
        { "{a:1}", "offset 101: bad JSON: expected a name" },
        { "{\"a", "bad JSON" },
        { "{\"a\\u0000\":1}", "bad JSON" },
        { "{\"\xff\":1}", "bad JSON" },
        { "{\"a\":01}", "bad JSON" },
        { "{\"a\":1}}", "offset 107: bad JSON: expected nothing after the object" },
        { "{\"a\":1} {", "offset 108: bad JSON: expected nothing after the object" },
        { "{\"a\":{\"b\":1}", "offset 112: bad JSON: ends before" },
        { "{\"a\":[{\"b\":1,\"b\":2}]}", "duplicate" },
        { "{\"a\":[1,2,3,4,5,6,7,8,9,0]}", "offset 105: value of more than 20 bytes" },
        { "{\"a\":\"0123456789012345678901234567890\"}",
          "offset 105: value of more than 20 bytes" },
        { "{\"a\":0.123456789012345678901234567890}", "offset 105: value of more than 20 bytes" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(trace(bad[i].text, out, sizeof out, err), GAC_BAD_INPUT, bad[i].piece);
}

/* A value of exactly the limit is accepted, a longer one is not. That also
 * holds if the text cut at the limit would be a value. */
static void walk_limits_values(void **state)
{
    (void)state;
    static const char *const values[] = { "1234", "\"ab\"", "true", "[12]", "1.25", "null" };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (size_t limit = 1; limit <= 4; limit++) {
            char text[32];
            gac_json_walk walk;
            const char *key;
            json_t *value = NULL;
            gac_error e = GAC_ERROR_INIT;
            snprintf(text, sizeof text, "{\"a\":%s}", values[i]);
            assert_ok(gac_json_walk_start(&walk, text, strlen(text), "t", 0, err));
            assert_ok(gac_json_walk_next(&walk, &key, err));
            gac_status status = gac_json_walk_value(&walk, limit, &value, &e);
            if ((status == GAC_OK) != (limit == 4))
                fail_msg("%s with a limit of %zu: status %d %s", values[i], limit, status, e.text);
            json_decref(value);
            gac_json_walk_dispose(&walk);
        }
}

static void walk_reads_no_further(void **state)
{
    (void)state;
    /* Without a terminating NUL, so that a sanitizer catches reading too far. */
    static const char text[] = "{\"a\":[1,{\"b\":2}],\"c\":12}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *copy = malloc(n ? n : 1);
        gac_json_walk walk;
        gac_error e = GAC_ERROR_INIT;
        memcpy(copy, text, n);
        const char *key = "";
        gac_status status = gac_json_walk_start(&walk, copy, n, "cut", 0, &e);
        while (status == GAC_OK && key) {
            json_t *value = NULL;
            if ((status = gac_json_walk_next(&walk, &key, &e)) == GAC_OK && key)
                status = gac_json_walk_value(&walk, 100, &value, &e);
            json_decref(value);
        }
        gac_json_walk_dispose(&walk);
        assert_int_equal(status, GAC_BAD_INPUT);
        free(copy);
    }
}

static gac_status parse(const char *text, json_t **out, gac_error *err)
{
    return gac_json_parse(text, strlen(text), "b\n.json", out, err);
}

/* jansson's parser decides what is valid. */
static void parses_what_jansson_parses(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "[]",
        "[1,-2,0,-0,1.5,-1.5e3,1E+2,1e-2,0.0]",
        "[9223372036854775807,-9223372036854775808]",
        "[true,false,null,\"\"]",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"]",
        "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"]",
        "{\"a\":{\"b\":[{}]},\"\":[[]],\"\\u0061b\":1}",
        /* none of these is valid */
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "[01]",
        "[+1]",
        "[.5]",
        "[1.]",
        "[1e]",
        "[1e+]",
        "[-]",
        "[--1]",
        "[tru]",
        "[True]",
        "[nul]",
        "[NaN]",
        "[Infinity]",
        "[\"\\ud800\"]",
        "[\"\\ud800\\u0041\"]",
        "[\"\\ud800\\ue000\"]",
        "[\"\\udc00\"]",
        "[\"\\u00\"]",
        "[\"\\u0000\"]",
        "[\"\\x41\"]",
        "[\"\\\"]",
        "[\"a\nb\"]",
        "[\"\xc0\x80\"]",
        "[\"\xed\xa0\x80\"]",
        "[\"\xff\"]",
        "[\"\xf4\x90\x80\x80\"]",
        "[\"\xc3\"]",
        "1",
        "\"a\"",
        "null",
        "[1]x",
        "[1]]",
        "[",
        "{",
        "[\"",
        "'a'",
        "{\"a\":1,\"\\u0061\":2}",
        "[1e400]",
        "/**/[]",
        "[1]//",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *ours = NULL, *theirs = json_loads(texts[i], JSON_REJECT_DUPLICATES, NULL);
        gac_error e = GAC_ERROR_INIT;
        gac_status status = gac_json_parse(texts[i], strlen(texts[i]), "t", &ours, &e);
        if ((status == GAC_OK) != (theirs != NULL) || (theirs && !json_equal(ours, theirs)))
            fail_msg("%s: status %d %s", texts[i], status, e.text);
        assert_int_equal(i < 7, status == GAC_OK); /* the first seven are good */
        json_decref(ours);
        json_decref(theirs);
    }
}

/* save_pretrained writes such integers to tokenizer_config.json. */
static void reads_integers_of_any_size(void **state)
{
    (void)state;
    json_t *value = NULL;
    static const char text[] = "{\"model_max_length\": 1000000000000000019884624838656}";
    assert_ok(gac_json_parse(text, strlen(text), "t", &value, err));
    assert_true(json_number_value(json_object_get(value, "model_max_length")) == 1e30);
    json_decref(value);
    char longest[400];
    memset(longest, '9', sizeof longest);
    longest[0] = '[';
    longest[sizeof longest - 1] = ']';
    value = NULL;
    assert_fails(gac_json_parse(longest, sizeof longest, "t", &value, err), GAC_BAD_INPUT,
                 "too large");
}

static void keeps_the_spelling_of_numbers(void **state)
{
    (void)state;
    json_t *value = NULL, *plain = NULL;
    char *again = NULL;
    static const char text[] = "{\"a\": [18446744073709551617, -9223372036854775809, 1], "
                               "\"b\": \"\\\\u00001\", \"c\": 9223372036854775807, "
                               "\"d\": [1e-05, 1E+2, 1.50, -0.0, 100.0, 5.0e-324]}";
    assert_ok(gac_json_parse_exact(text, strlen(text), "t", &value, err));
    json_t *list = json_object_get(value, "a");
    assert_string_equal(gac_json_digits(json_array_get(list, 0)), "18446744073709551617");
    assert_null(gac_json_digits(json_array_get(list, 2)));
    assert_null(gac_json_digits(json_object_get(value, "b")));
    assert_string_equal(gac_json_digits(json_array_get(json_object_get(value, "d"), 1)), "1E+2");
    assert_true(json_integer_value(json_object_get(value, "c")) == INT64_MAX);
    assert_ok(gac_json_text(value, 0, &again, NULL, err));
    assert_string_equal(again, text);
    free(again);
    json_t *rounded = gac_json_rounded(value);
    assert_ok(gac_json_parse(text, strlen(text), "t", &plain, err));
    assert_true(json_equal(rounded, plain));
    json_decref(rounded);
    json_decref(plain);
    json_decref(value);
    assert_ok(gac_json_parse_exact("[NaN, Infinity, -Infinity]", 26, "t", &value, err));
    assert_string_equal(gac_json_digits(json_array_get(value, 2)), "-Infinity");
    assert_ok(gac_json_text(value, 0, &again, NULL, err));
    assert_string_equal(again, "[NaN, Infinity, -Infinity]");
    free(again);
    rounded = gac_json_rounded(value);
    assert_true(json_is_null(json_array_get(rounded, 0)));
    json_decref(rounded);
    json_decref(value);
    assert_fails(gac_json_parse("[NaN]", 5, "t", &value, err), GAC_BAD_INPUT, "expected a value");
    assert_fails(gac_json_parse_exact("[-Inf]", 6, "t", &value, err), GAC_BAD_INPUT, "digit");
    assert_fails(gac_json_parse_exact("[1, -Infinit", 12, "t", &value, err), GAC_BAD_INPUT,
                 "digit");
    char longest[400];
    memset(longest, '9', sizeof longest);
    longest[0] = '[';
    longest[sizeof longest - 1] = ']';
    assert_fails(gac_json_parse_exact(longest, sizeof longest, "t", &value, err), GAC_BAD_INPUT,
                 "too large");
}

/* A document that lost a member for want of memory must not become text. */
static void incomplete_documents_are_not_written(void **state)
{
    (void)state;
    char *text = NULL;
    json_t *value = json_pack("{s:i}", "a", 1);
    gac_memory_lost();
    assert_fails(gac_json_text(value, 0, &text, NULL, err), GAC_NO_RESOURCE, "out of memory");
    assert_ok(gac_json_text(value, 0, &text, NULL, err)); /* the failure has been reported once */
    assert_string_equal(text, "{\"a\": 1}");
    free(text);
    json_decref(value);
    assert_fails(gac_json_text(NULL, 0, &text, NULL, err), GAC_NO_RESOURCE, "out of memory");
}

static void parses_whole_texts(void **state)
{
    (void)state;
    json_t *value = NULL;
    assert_ok(parse(" {\"b\":1,\"a\":[2]} ", &value, err));
    assert_string_equal(json_object_iter_key(json_object_iter(value)), "b");
    json_decref(value);
    value = NULL;
    assert_fails(parse("{\"a\":1,\"a\":1}", &value, err), GAC_BAD_INPUT, "b\\x0a.json: offset ");
    assert_fails(parse("{\"a\":1,\"a\":1}", &value, err), GAC_BAD_INPUT, "duplicate");
    assert_fails(parse("{\"a\":{\"x\":1,\"x\":1}}", &value, err), GAC_BAD_INPUT, "duplicate");
    assert_fails(parse("{} {}", &value, err), GAC_BAD_INPUT, "bad JSON");
    assert_fails(parse("", &value, err), GAC_BAD_INPUT, "bad JSON");
    assert_fails(parse("{\"a\":1e999}", &value, err), GAC_BAD_INPUT, "bad JSON");
    assert_fails(gac_json_parse("{}\0{}", 5, "t", &value, err), GAC_BAD_INPUT, "bad JSON");
    char deep[8001];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    assert_fails(parse(deep, &value, err), GAC_BAD_INPUT, "depth");
    assert_null(value);
}

static void results_carry_their_origin(void **state)
{
    (void)state;
    static const char *const keys[] = { "schema", "tool", "time", "machine", "arguments" };
    char program[] = "gac", first[] = "dim", bad[] = "\xff\xc0\xaf";
    char *argv[] = { program, first, bad };
    json_t *result = gac_json_result("gac.test/1", 3, argv);
    assert_non_null(result);
    void *at = json_object_iter(result);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++, at = json_object_iter_next(result, at))
        assert_string_equal(json_object_iter_key(at), keys[i]);
    const json_t *arguments = json_object_get(result, "arguments");
    assert_int_equal(json_array_size(arguments), 2);
    assert_string_equal(json_string_value(json_array_get(arguments, 0)), "dim");
    assert_string_equal(json_string_value(json_array_get(arguments, 1)), "\\xff\\xc0\\xaf");
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        assert_fails(gac_json_print(full, result, err), GAC_FAILED, "cannot write");
        fclose(full);
    }
    json_decref(result);
}

static long length_of(FILE *f)
{
    fflush(f);
    return ftell(f);
}

static void progress_is_silent_for_short_work(void **state)
{
    (void)state;
    FILE *f = tmpfile();
    gac_progress *p = gac_progress_create(f);
    gac_progress_start(p, "reading", "files", 1000);
    for (uint64_t i = 0; i <= 1000; i++)
        gac_progress_step(p, i);
    gac_progress_finish(p);
    gac_progress_start(p, "nothing", "files", 0);
    gac_progress_step(p, 0);
    gac_progress_finish(p);
    assert_int_equal(length_of(f), 0);
    gac_progress_free(p);
    fclose(f);
    gac_progress_start(NULL, "reading", "files", 1);
    gac_progress_step(NULL, 1);
    gac_progress_finish(NULL);
    gac_progress_free(NULL);
}

static void progress_tells_of_long_work(void **state)
{
    (void)state;
    char line[200] = "";
    const struct timespec pause = { 2, 100000000 };
    FILE *f = tmpfile();
    gac_progress *p = gac_progress_create(f);
    gac_progress_start(p, "reading", "files", 8);
    nanosleep(&pause, NULL);
    gac_progress_step(p, 2);
    gac_progress_step(p, 3);
    gac_progress_finish(p);
    gac_progress_free(p);
    rewind(f);
    assert_non_null(fgets(line, sizeof line, f));
    double rate;
    int minutes, seconds, n = 0;
    assert_int_equal(sscanf(line, "reading: 2 of 8 files (25 %%), %lf files/s, %d:%d left\n%n",
                            &rate, &minutes, &seconds, &n),
                     3);
    assert_int_equal(line[n], 0);
    assert_true(rate > 0 && rate < 1); /* two in two seconds and more */
    assert_true(fabs(60 * minutes + seconds - 6 / rate) < 1.1);
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
}

/* A terminal shows a bar, which is erased at the end. */
static void progress_draws_on_a_terminal(void **state)
{
    (void)state;
    char seen[400];
    const struct timespec pause = { 0, 600000000 };
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        print_message("no pseudo-terminal here\n");
        skip();
    }
    FILE *f = fopen(ptsname(master), "w");
    assert_non_null(f);
    gac_progress *p = gac_progress_create(f);
    gac_progress_start(p, "reading", "files", 4);
    nanosleep(&pause, NULL);
    gac_progress_step(p, 9); /* more than the expected total */
    gac_progress_finish(p);
    gac_progress_free(p);
    fflush(f);
    ssize_t n = 0;
    while (n < 4 || memcmp(seen + n - 4, "\r\033[K", 4) != 0) {
        ssize_t got = read(master, seen + n, sizeof seen - 1 - (size_t)n);
        assert_true(got > 0);
        n += got;
    }
    seen[n] = 0;
    assert_non_null(strstr(seen, "\rreading [##############################] 100 % of 9 files"));
    assert_string_equal(seen + n - 4, "\r\033[K");
    fclose(f);
    close(master);
}

static void log_follows_its_level(void **state)
{
    (void)state;
    char line[80] = "";
    gac_log log = { .stream = tmpfile(), .level = 0 };
    gac_log_write(NULL, 0, "nobody hears");
    gac_log_write(&log, 1, "too much");
    assert_int_equal(length_of(log.stream), 0);
    gac_log_write(&log, 0, "warning %d", 3);
    log.level = 1;
    gac_log_write(&log, 1, "doing");
    log.level = -1;
    gac_log_write(&log, 0, "quiet");
    rewind(log.stream);
    assert_string_equal(fgets(line, sizeof line, log.stream), "warning 3\n");
    assert_string_equal(fgets(line, sizeof line, log.stream), "doing\n");
    assert_null(fgets(line, sizeof line, log.stream));
    fclose(log.stream);
}

static void arena_gives_zeroed_aligned_memory(void **state)
{
    (void)state;
    gac_arena arena = { NULL };
    char *last = NULL;
    for (size_t n = 1; n < 3000; n += 7) {
        char *memory = gac_arena_alloc(&arena, n);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(memory[i], 0);
        memset(memory, 0xee, n);
        assert_true(memory != last);
        last = memory;
    }
    assert_non_null(gac_arena_alloc(&arena, 0));
    char *large = gac_arena_alloc(&arena, 1 << 20);
    assert_non_null(large);
    large[(1 << 20) - 1] = 1;
    assert_null(gac_arena_alloc(&arena, SIZE_MAX));
    assert_null(gac_arena_alloc(&arena, SIZE_MAX - 15));
    assert_string_equal(gac_arena_strdup(&arena, "text"), "text");
    assert_string_equal(gac_arena_printf(&arena, "%s-%05d", "a", 12), "a-00012");
    gac_arena_free(&arena);
    assert_null(arena.last);
    gac_arena_free(&arena);
}

static void arrays_grow(void **state)
{
    (void)state;
    int64_t *list = NULL;
    int32_t capacity = 0;
    for (int32_t n = 0; n < 10000; n++) {
        assert_true(gac_grow((void **)&list, n, &capacity, sizeof *list));
        assert_true(capacity > n);
        list[n] = n;
    }
    for (int32_t n = 0; n < 10000; n++)
        assert_int_equal(list[n], n);
    int32_t full = INT32_MAX / 2 + 1;
    int64_t *same = list;
    assert_false(gac_grow((void **)&list, full, &full, sizeof *list));
    assert_ptr_equal(list, same);
    free(list);
}

static void namemap_keeps_many_names(void **state)
{
    (void)state;
    enum { N = 100000 };
    gac_namemap map;
    int32_t existing;
    static char names[N][16];
    assert_ok(gac_namemap_init(&map, err));
    assert_int_equal(gac_namemap_find(&map, ""), -1);
    for (int32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "layers.%d", i);
        assert_ok(gac_namemap_add(&map, names[i], i, &existing, err));
        assert_int_equal(existing, -1);
    }
    for (int32_t i = 0; i < N; i += 3) {
        char copy[16];
        memcpy(copy, names[i], sizeof copy);
        assert_ok(gac_namemap_add(&map, copy, -5, &existing, err));
        assert_int_equal(existing, i);
    }
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(gac_namemap_find(&map, names[i]), i);
    assert_int_equal(gac_namemap_find(&map, "layers."), -1);
    assert_int_equal(gac_namemap_find(&map, "layers.100000"), -1);
    assert_ok(gac_namemap_add(&map, "", N, &existing, err));
    assert_int_equal(gac_namemap_find(&map, ""), N);
    assert_int_equal(map.n_used, N + 1);
    gac_namemap_dispose(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_hold_one_line),
        cmocka_unit_test(system_errors_have_a_status),
        cmocka_unit_test(floats_round_to_even),
        cmocka_unit_test(quote_escapes),
        cmocka_unit_test(quote_is_utf8),
        cmocka_unit_test(quote_cuts_the_middle),
        cmocka_unit_test(signed_arithmetic),
        cmocka_unit_test(unsigned_arithmetic),
        cmocka_unit_test(rounding_up),
        cmocka_unit_test(least_common_multiple),
        cmocka_unit_test(walks_objects),
        cmocka_unit_test(walks_stop_at_faults),
        cmocka_unit_test(walk_limits_values),
        cmocka_unit_test(walk_reads_no_further),
        cmocka_unit_test(parses_whole_texts),
        cmocka_unit_test(parses_what_jansson_parses),
        cmocka_unit_test(reads_integers_of_any_size),
        cmocka_unit_test(keeps_the_spelling_of_numbers),
        cmocka_unit_test(incomplete_documents_are_not_written),
        cmocka_unit_test(results_carry_their_origin),
        cmocka_unit_test(progress_is_silent_for_short_work),
        cmocka_unit_test(progress_tells_of_long_work),
        cmocka_unit_test(progress_draws_on_a_terminal),
        cmocka_unit_test(log_follows_its_level),
        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
        cmocka_unit_test(arrays_grow),
        cmocka_unit_test(namemap_keeps_many_names),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}

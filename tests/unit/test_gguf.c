#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <gac/checkpoint.h>

#include "checkpoint/gguf.h"

/* A file being made, byte by byte. */
typedef struct maker {
    uint8_t bytes[4096];
    size_t n;
} maker;

static void put(maker *m, uint64_t value, size_t n_bytes)
{
    assert_true(m->n + n_bytes <= sizeof m->bytes);
    for (size_t i = 0; i < n_bytes; i++)
        m->bytes[m->n++] = (uint8_t)(value >> (8 * i));
}

static void put_string(maker *m, const char *text)
{
    put(m, strlen(text), 8);
    for (; *text; text++)
        put(m, (uint8_t)*text, 1);
}

static void put_key(maker *m, const char *key, gac_gguf_kind kind)
{
    put_string(m, key);
    put(m, kind, 4);
}

static void put_scalar(maker *m, const char *key, gac_gguf_kind kind, uint64_t bits, size_t n_bytes)
{
    put_key(m, key, kind);
    put(m, bits, n_bytes);
}

/* One key of every type, one tensor of 64 in Q8_0 and one scalar. */
static void make(maker *m)
{
    memcpy(m->bytes, "GGUF", m->n = 4);
    put(m, 3, 4);
    put(m, 2, 8);
    put(m, 15, 8);
    put_scalar(m, "u8", GAC_GGUF_U8, 200, 1);
    put_scalar(m, "i8", GAC_GGUF_I8, 0xFF, 1);
    put_scalar(m, "u16", GAC_GGUF_U16, 65535, 2);
    put_scalar(m, "i16", GAC_GGUF_I16, 0x8000, 2);
    put_scalar(m, "u32", GAC_GGUF_U32, UINT32_MAX, 4);
    put_scalar(m, "i32", GAC_GGUF_I32, (uint32_t)-7, 4);
    put_scalar(m, "f32", GAC_GGUF_F32, 0x3FC00000, 4);
    put_scalar(m, "bool", GAC_GGUF_BOOL, 1, 1);
    put_scalar(m, "u64", GAC_GGUF_U64, UINT64_MAX, 8);
    put_scalar(m, "i64", GAC_GGUF_I64, (uint64_t)INT64_MIN, 8);
    put_scalar(m, "f64", GAC_GGUF_F64, 0xBFF8000000000000, 8);
    put_key(m, "string", GAC_GGUF_STRING);
    put_string(m, "text");
    put_key(m, "strings", GAC_GGUF_ARRAY);
    put(m, GAC_GGUF_STRING, 4);
    put(m, 2, 8);
    put_string(m, "");
    put_string(m, "two");
    put_key(m, "numbers", GAC_GGUF_ARRAY);
    put(m, GAC_GGUF_I16, 4);
    put(m, 3, 8);
    put(m, 0x0003FFFF0001, 6);
    put_scalar(m, "general.alignment", GAC_GGUF_U32, 64, 4);
    put_string(m, "w");
    put(m, 2, 4);
    put(m, 32, 8);
    put(m, 2, 8);
    put(m, GAC_GGML_Q8_0, 4);
    put(m, 0, 8);
    put_string(m, "s");
    put(m, 0, 4);
    put(m, GAC_GGML_F32, 4);
    put(m, 128, 8);
    while (m->n % 64)
        put(m, 0, 1);
    for (int block = 0; block < 2; block++) {
        put(m, block ? 0xC000 : 0x3800, 2); /* 0.5, then -2 */
        for (int i = 0; i < 32; i++)
            put(m, (uint8_t)(i - 16), 1);
    }
    while (m->n % 64 != 0)
        put(m, 0, 1);
    put(m, 0x40490FDB, 4);
}

static gac_gguf *open_made(const maker *m, gac_status expected)
{
    char path[] = "/tmp/gac-gguf-XXXXXX";
    int fd = mkstemp(path);
    gac_gguf *gguf = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, m->bytes, m->n), (ssize_t)m->n);
    close(fd);
    assert_int_equal(gac_gguf_open(path, &gguf, &err), expected);
    assert_int_equal(err.status, expected);
    unlink(path);
    return gguf;
}

static void test_integers(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
    } cases[] = { { "u8", 200 },         { "i8", -1 },  { "u16", 65535 },    { "i16", -32768 },
                  { "u32", UINT32_MAX }, { "i32", -7 }, { "i64", INT64_MIN } };
    maker m = { .n = 0 };
    (void)state;
    make(&m);
    gac_gguf *gguf = open_made(&m, GAC_OK);
    int64_t value;
    double number;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t key = gac_gguf_find_key(gguf, cases[i].key);
        assert_true(gac_gguf_integer(gguf, key, &value));
        assert_int_equal(value, cases[i].value);
        assert_true(gac_gguf_number(gguf, key, &number));
        assert_true(number == (double)cases[i].value);
    }
    assert_false(gac_gguf_integer(gguf, gac_gguf_find_key(gguf, "u64"), &value));
    assert_false(gac_gguf_integer(gguf, gac_gguf_find_key(gguf, "f32"), &value));
    assert_false(gac_gguf_integer(gguf, gac_gguf_find_key(gguf, "bool"), &value));
    assert_false(gac_gguf_integer(gguf, gac_gguf_find_key(gguf, "string"), &value));
    assert_false(gac_gguf_integer(gguf, gac_gguf_find_key(gguf, "none"), &value));
    gac_gguf_close(gguf);
}

static void test_other_values(void **state)
{
    maker m = { .n = 0 };
    (void)state;
    make(&m);
    gac_gguf *gguf = open_made(&m, GAC_OK);
    double number;
    bool truth = false;
    const char *text;
    size_t n_bytes;
    gac_gguf_kind kind;
    int64_t n, value;
    assert_int_equal(gac_gguf_n_keys(gguf), 15);
    assert_true(gac_gguf_number(gguf, gac_gguf_find_key(gguf, "f32"), &number) && number == 1.5);
    assert_true(gac_gguf_number(gguf, gac_gguf_find_key(gguf, "f64"), &number) && number == -1.5);
    assert_true(gac_gguf_bool(gguf, gac_gguf_find_key(gguf, "bool"), &truth) && truth);
    assert_false(gac_gguf_bool(gguf, gac_gguf_find_key(gguf, "u8"), &truth));
    assert_true(gac_gguf_string(gguf, gac_gguf_find_key(gguf, "string"), &text, &n_bytes));
    assert_int_equal(n_bytes, 4);
    assert_memory_equal(text, "text", 4);
    int32_t strings = gac_gguf_find_key(gguf, "strings");
    assert_true(gac_gguf_array(gguf, strings, &kind, &n) && kind == GAC_GGUF_STRING && n == 2);
    assert_true(gac_gguf_array_string(gguf, strings, 0, &text, &n_bytes) && n_bytes == 0);
    assert_true(gac_gguf_array_string(gguf, strings, 1, &text, &n_bytes) && n_bytes == 3);
    assert_memory_equal(text, "two", 3);
    assert_false(gac_gguf_array_string(gguf, strings, 2, &text, &n_bytes));
    assert_false(gac_gguf_array_integer(gguf, strings, 0, &value));
    int32_t numbers = gac_gguf_find_key(gguf, "numbers");
    assert_true(gac_gguf_array_integer(gguf, numbers, 1, &value) && value == -1);
    assert_true(gac_gguf_array_number(gguf, numbers, 2, &number) && number == 3);
    assert_false(gac_gguf_array_integer(gguf, numbers, 3, &value));
    assert_false(gac_gguf_array_string(gguf, numbers, 0, &text, &n_bytes));
    gac_gguf_close(gguf);
}

static void test_tensors(void **state)
{
    maker m = { .n = 0 };
    float out[64];
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    make(&m);
    gac_gguf *gguf = open_made(&m, GAC_OK);
    assert_int_equal(gac_gguf_alignment(gguf), 64);
    assert_int_equal(gac_gguf_version(gguf), 3);
    assert_int_equal(gac_gguf_n_tensors(gguf), 2);
    int32_t index = gac_gguf_find_tensor(gguf, "w");
    const gac_gguf_tensor *t = gac_gguf_tensor_at(gguf, index);
    assert_int_equal(t->n_axes, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 32);
    assert_string_equal(gac_ggml_type_name(t->type), "Q8_0");
    assert_int_equal(gac_gguf_read(gguf, index, 0, 64, out, &err), GAC_OK);
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == (i < 32 ? 0.5F : -2.0F) * (float)(i % 32 - 16));
    assert_int_equal(gac_gguf_read(gguf, index, 32, 32, out, &err), GAC_OK);
    assert_true(out[0] == 32.0F);
    assert_int_equal(gac_gguf_read(gguf, index, 16, 32, out, &err), GAC_USAGE);
    assert_int_equal(gac_gguf_read(gguf, index, 32, 64, out, &err), GAC_USAGE);
    assert_int_equal(gac_gguf_read(gguf, gac_gguf_find_tensor(gguf, "s"), 0, 1, out, &err), GAC_OK);
    assert_true(out[0] == 3.14159274F);
    assert_int_equal(gac_gguf_find_tensor(gguf, "x"), -1);
    gac_gguf_close(gguf);
}

/* A file that ends anywhere is refused, whatever is missing. */
static void test_every_truncation(void **state)
{
    maker m = { .n = 0 };
    (void)state;
    make(&m);
    while (m.n-- > 0)
        assert_null(open_made(&m, GAC_BAD_INPUT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_other_values),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_every_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

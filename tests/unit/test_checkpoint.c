#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>
#include <jansson.h>

#include "scratch.h"

static void dtypes_round_trip(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
    } table[] = { { "BOOL", 8 },    { "U8", 8 },          { "I8", 8 },          { "I16", 16 },
                  { "U16", 16 },    { "I32", 32 },        { "U32", 32 },        { "I64", 64 },
                  { "U64", 64 },    { "F16", 16 },        { "BF16", 16 },       { "F32", 32 },
                  { "F64", 64 },    { "C64", 64 },        { "F8_E4M3", 8 },     { "F8_E5M2", 8 },
                  { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "F4", 4 },
                  { "F6_E2M3", 6 }, { "F6_E3M2", 6 } };
    gac_dtype dtype;
    bool seen[GAC_DTYPE_COUNT] = { false };
    assert_int_equal(sizeof table / sizeof *table, GAC_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_true(gac_dtype_parse(table[i].name, &dtype));
        assert_false(seen[dtype]);
        seen[dtype] = true;
        assert_string_equal(gac_dtype_name(dtype), table[i].name);
        assert_int_equal(gac_dtype_bits(dtype), table[i].bits);
    }
    dtype = GAC_DTYPE_F64;
    static const char *const unknown[] = { "", "f16", "F16 ", "FP16", "F", "BF", "F8", NULL };
    for (int i = 0; unknown[i]; i++)
        assert_false(gac_dtype_parse(unknown[i], &dtype));
    assert_int_equal(dtype, GAC_DTYPE_F64);
}

static gac_writer *new_writer(const char *name, const gac_writer_options *options)
{
    gac_writer *w = NULL;
    assert_ok(gac_writer_create(scratch_path(name), options, &w, err));
    return w;
}

static int32_t add(gac_writer *w, const char *name, gac_dtype dtype, int64_t rows, int64_t columns)
{
    int32_t index = -1;
    const int64_t shape[] = { rows, columns };
    assert_ok(gac_writer_add(w, name, dtype, 2, shape, &index, err));
    return index;
}

static gac_checkpoint *opened(const char *name)
{
    gac_checkpoint *c = NULL;
    assert_ok(gac_checkpoint_open(scratch_path(name), NULL, &c, err));
    return c;
}

static const gac_tensor *found(const gac_checkpoint *c, const char *name)
{
    int32_t index = gac_checkpoint_find(c, name);
    if (index < 0)
        fail_msg("no tensor %s", name);
    return gac_checkpoint_tensor(c, index);
}

static void senseless_options_are_refused(void **state)
{
    (void)state;
    gac_writer *w = NULL;
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    const char *path = scratch_path("out");
    options.max_shard_bytes = 0;
    assert_fails(gac_writer_create(path, &options, &w, err), GAC_USAGE, "shard limit");
    static const uint64_t alignments[] = { 0, 1, 4, 12, 4097 };
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        options = (gac_writer_options)GAC_WRITER_OPTIONS_INIT;
        options.data_alignment = alignments[i];
        assert_fails(gac_writer_create(path, &options, &w, err), GAC_USAGE, "alignment");
    }
    /* No header may be that long, so no data can start there. */
    options.data_alignment = (uint64_t)1 << 40;
    gac_error e = GAC_ERROR_INIT;
    if (gac_writer_create(path, &options, &w, &e) == GAC_OK) {
        assert_fails(gac_writer_layout(w, err), GAC_USAGE, "header");
        gac_writer_discard(w);
    }
    gac_writer_discard(NULL);
    assert_int_equal(scratch_count(""), 0);
}

static void impossible_tensors_are_refused(void **state)
{
    (void)state;
    char longer[GAC_MAX_NAME_BYTES + 2];
    memset(longer, 'n', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    int64_t many[GAC_MAX_AXES + 1];
    for (int i = 0; i <= GAC_MAX_AXES; i++)
        many[i] = 1;
    const int64_t huge[] = { INT64_MAX, 2 }, bits[] = { INT64_MAX / 8, 1 }, three[] = { 3, 1 };
    const int64_t negative[] = { 4, -1 }, empty_huge[] = { INT64_MAX, 2, 0 };
    gac_writer *w = new_writer("out", NULL);
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, 2, huge, NULL, err), GAC_USAGE, "overflows");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_F16, 2, bits, NULL, err), GAC_USAGE, "overflows");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, 2, negative, NULL, err), GAC_USAGE, "\"a\"");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, 3, empty_huge, NULL, err), GAC_USAGE,
                 "\"a\"");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_F4, 2, three, NULL, err), GAC_USAGE,
                 "whole bytes");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_F6_E2M3, 2, three, NULL, err), GAC_USAGE,
                 "whole");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, -1, many, NULL, err), GAC_USAGE, "\"a\"");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, GAC_MAX_AXES + 1, many, NULL, err), GAC_USAGE,
                 "\"a\"");
    assert_fails(gac_writer_add(w, "__metadata__", GAC_DTYPE_U8, 0, NULL, NULL, err), GAC_USAGE,
                 "__metadata__");
    assert_fails(gac_writer_add(w, longer, GAC_DTYPE_U8, 0, NULL, NULL, err), GAC_USAGE, "nnn");
    /* None of them took the name. */
    add(w, "a", GAC_DTYPE_U8, 1, 1);
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_U8, 0, NULL, NULL, err), GAC_USAGE,
                 "added twice");
    longer[GAC_MAX_NAME_BYTES] = 0;
    assert_int_equal(add(w, longer, GAC_DTYPE_F4, 2, 3), 1);
    gac_writer_discard(w);
    assert_int_equal(scratch_count(""), 0);
}

/* A name that JSON cannot hold is the caller's mistake, not lack of memory. */
static void broken_names_are_refused(void **state)
{
    (void)state;
    gac_writer *w = new_writer("out", NULL);
    gac_error e = GAC_ERROR_INIT;
    gac_status status = gac_writer_add(w, "a\xff", GAC_DTYPE_U8, 0, NULL, NULL, &e);
    if (status == GAC_OK)
        status = gac_writer_layout(w, &e);
    gac_writer_discard(w);
    assert_int_equal(status, GAC_USAGE);
    assert_non_null(strstr(e.text, "a\\xff"));
    assert_int_equal(scratch_count(""), 0);
}

static void steps_out_of_order_are_refused(void **state)
{
    (void)state;
    const char bytes[8] = { 0 };
    gac_writer *w = new_writer("out", NULL);
    int32_t a = add(w, "a", GAC_DTYPE_U8, 2, 4);
    assert_fails(gac_writer_write(w, a, 0, bytes, 8, err), GAC_USAGE, "before the layout");
    assert_ok(gac_writer_layout(w, err));
    assert_fails(gac_writer_layout(w, err), GAC_USAGE, "fixed already");
    assert_fails(gac_writer_add(w, "b", GAC_DTYPE_U8, 0, NULL, NULL, err), GAC_USAGE, "fixed");
    assert_fails(gac_writer_write(w, a, 1, bytes, 8, err), GAC_USAGE, "beyond its end");
    assert_fails(gac_writer_write(w, a, 9, bytes, 0, err), GAC_USAGE, "beyond its end");
    assert_fails(gac_writer_write(w, a, UINT64_MAX, bytes, 1, err), GAC_USAGE, "beyond its end");
    assert_ok(gac_writer_write(w, a, 8, bytes, 0, err));
    assert_ok(gac_writer_write(w, a, 0, bytes, 7, err));
    assert_fails(gac_writer_finish(w, err), GAC_USAGE, "\"a\": not all of its bytes");
    assert_int_equal(scratch_count(""), 0);
    w = new_writer("out", NULL);
    assert_fails(gac_writer_finish(w, err), GAC_USAGE, "before the layout");
    assert_int_equal(scratch_count(""), 0);
}

static void file_names_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = { "", ".", "..", "../x", "a/b", "/x", NULL };
    gac_writer *w = new_writer("out", NULL);
    for (int i = 0; bad[i]; i++)
        assert_fails(gac_writer_add_file(w, bad[i], "x", 1, err), GAC_USAGE, "not a file name");
    add(w, "a", GAC_DTYPE_U8, 0, 4);
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_add_file(w, "config.json", "{}", 2, err));
    assert_ok(gac_writer_add_file(w, "empty", "", 0, err));
    assert_fails(gac_writer_add_file(w, "config.json", "{}", 2, err), GAC_FAILED, "exists");
    assert_fails(gac_writer_add_file(w, "model.safetensors", "x", 1, err), GAC_FAILED, "exists");
    assert_ok(gac_writer_finish(w, err));
    assert_int_equal(scratch_count("out"), 3);
    assert_file_is(scratch_path("out/config.json"), "{}");
}

/* Whatever broke the layout, what came of it must not get the name. */
static void failed_layout_cannot_finish(void **state)
{
    (void)state;
    gac_writer *w = new_writer("out", NULL);
    gac_error e = GAC_ERROR_INIT;
    gac_status added = gac_writer_add_file(w, "model.safetensors", "junk", 4, &e);
    gac_status laid_out = gac_writer_layout(w, &e);
    assert_true(added != GAC_OK || laid_out != GAC_OK);
    gac_status finished = gac_writer_finish(w, &e);
    if (laid_out != GAC_OK)
        assert_int_not_equal(finished, GAC_OK);
    assert_true(finished == GAC_OK || scratch_count("") == 0);
}

static void existing_target_is_kept_or_replaced(void **state)
{
    (void)state;
    gac_writer *w = NULL;
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    scratch_mkdir("out");
    scratch_put("out/old", "old", 3);
    assert_fails(gac_writer_create(scratch_path("out"), NULL, &w, err), GAC_FAILED, "exists");
    options.replace = true;
    assert_fails(gac_writer_create(scratch_path("out"), &options, &w, err), GAC_FAILED,
                 "is no checkpoint");
    assert_true(scratch_has("out/old"));
    scratch_put("out/old.safetensors", "old", 3); /* by its name only */
    assert_fails(gac_writer_create(scratch_path("out"), &options, &w, err), GAC_FAILED,
                 "no checkpoint");
    scratch_put("out/old.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    w = new_writer("out", &options);
    assert_ok(gac_writer_layout(w, err));
    assert_true(scratch_has("out/old"));
    assert_ok(gac_writer_finish(w, err));
    assert_false(scratch_has("out/old"));
    assert_true(scratch_has("out/model.safetensors"));
    assert_int_equal(scratch_count(""), 1);
}

static void metadata_says_format(void **state)
{
    (void)state;
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    json_t *metadata = json_pack("{s:s, s:s}", "format", "tf", "made_by", "test");
    options.metadata = metadata;
    gac_writer *w = new_writer("out", &options);
    json_decref(metadata);
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_finish(w, err));
    gac_checkpoint *c = opened("out");
    const json_t *back = gac_checkpoint_metadata(c, 0);
    assert_int_equal(json_object_size(back), 2);
    assert_string_equal(json_string_value(json_object_get(back, "format")), "pt");
    assert_string_equal(json_string_value(json_object_get(back, "made_by")), "test");
    assert_null(gac_checkpoint_config(c));
    gac_checkpoint_close(c);
    gac_checkpoint_close(NULL);
}

static void nothing_scalars_and_empties(void **state)
{
    (void)state;
    gac_writer *w = new_writer("none", NULL);
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_finish(w, err));
    gac_checkpoint *c = opened("none");
    assert_int_equal(gac_checkpoint_n_tensors(c), 0);
    assert_int_equal(gac_checkpoint_n_files(c), 1);
    assert_int_equal(gac_checkpoint_find(c, ""), -1);
    gac_checkpoint_close(c);

    const double value = 2.5;
    int32_t scalar;
    w = new_writer("few", NULL);
    assert_ok(gac_writer_add(w, "scalar", GAC_DTYPE_F64, 0, NULL, &scalar, err));
    add(w, "no_rows", GAC_DTYPE_F32, 0, 7);
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_write(w, scalar, 0, &value, sizeof value, err));
    assert_ok(gac_writer_finish(w, err));
    c = opened("few");
    double back = 0;
    assert_int_equal(found(c, "scalar")->n_axes, 0);
    assert_int_equal(found(c, "scalar")->n_elements, 1);
    assert_ok(gac_checkpoint_read(c, gac_checkpoint_find(c, "scalar"), 0, &back, 8, err));
    assert_true(back == value);
    assert_int_equal(found(c, "no_rows")->size_bytes, 0);
    assert_int_equal(found(c, "no_rows")->shape[1], 7);
    assert_ok(gac_checkpoint_read(c, gac_checkpoint_find(c, "no_rows"), 0, &back, 0, err));
    assert_int_equal(gac_checkpoint_n_params(c), 1);
    assert_int_equal(gac_checkpoint_size_bytes(c), 8);
    gac_checkpoint_close(c);
}

static void data_starts_aligned(void **state)
{
    (void)state;
    static const uint64_t alignments[] = { 8, 64, 4096, 65536 };
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        char name[32];
        gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
        options.data_alignment = alignments[i];
        snprintf(name, sizeof name, "out%zu", i);
        gac_writer *w = new_writer(name, &options);
        int32_t a = add(w, "small", GAC_DTYPE_U8, 3, 1), b = add(w, "wide", GAC_DTYPE_F64, 1, 2);
        assert_ok(gac_writer_layout(w, err));
        scratch_zeros(w, a, 3);
        scratch_zeros(w, b, 16);
        assert_ok(gac_writer_finish(w, err));
        gac_checkpoint *c = opened(name);
        assert_int_equal(gac_checkpoint_data_start(c, 0) % alignments[i], 0);
        /* Wide elements first, so that every element is aligned as well. */
        assert_int_equal(found(c, "wide")->offset, gac_checkpoint_data_start(c, 0));
        assert_int_equal(found(c, "small")->offset, gac_checkpoint_data_start(c, 0) + 16);
        assert_int_equal(gac_checkpoint_file_size(c, 0), gac_checkpoint_data_start(c, 0) + 19);
        gac_checkpoint_close(c);
    }
}

/* Tensors of n bytes each, whose bytes are their number, in shards of limit. */
static void write_numbered(const char *name, int32_t n_tensors, int64_t n_bytes, uint64_t limit)
{
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    char label[32], *bytes = malloc((size_t)n_bytes);
    options.max_shard_bytes = limit;
    options.data_alignment = 8;
    gac_writer *w = new_writer(name, &options);
    for (int32_t i = 0; i < n_tensors; i++) {
        snprintf(label, sizeof label, "t%d", i);
        assert_int_equal(add(w, label, GAC_DTYPE_U8, 1, n_bytes), i);
    }
    assert_ok(gac_writer_layout(w, err));
    /* In two halves, the later tensors and halves first. */
    for (int32_t i = n_tensors; i-- > 0;) {
        memset(bytes, i % 251, (size_t)n_bytes);
        uint64_t half = (uint64_t)n_bytes / 2;
        assert_ok(gac_writer_write(w, i, half, bytes, (size_t)n_bytes - (size_t)half, err));
        assert_ok(gac_writer_write(w, i, 0, bytes, (size_t)half, err));
    }
    assert_ok(gac_writer_finish(w, err));
    free(bytes);
}

static void shards_follow_the_limit(void **state)
{
    (void)state;
    static const struct {
        int32_t n_tensors;
        uint64_t limit;
        int32_t n_shards;
    } cases[] = {
        { 7, 70, 1 }, { 7, 69, 2 }, { 7, 20, 4 }, { 7, 29, 4 }, { 7, 10, 7 }, { 7, 5, 7 }
    }; /* the last: every tensor is larger than the limit */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32], shard[64], path[128];
        snprintf(name, sizeof name, "out%zu", i);
        write_numbered(name, cases[i].n_tensors, 10, cases[i].limit);
        gac_checkpoint *c = opened(name);
        int32_t n = cases[i].n_shards;
        assert_int_equal(gac_checkpoint_n_files(c), n);
        assert_int_equal(gac_checkpoint_n_tensors(c), 7);
        assert_int_equal(gac_checkpoint_n_notes(c), 0);
        assert_int_equal(scratch_count(name), n == 1 ? 1 : n + 1);
        for (int32_t s = 0; s < n; s++) {
            if (n == 1)
                snprintf(shard, sizeof shard, "model.safetensors");
            else
                snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", s + 1, n);
            assert_string_equal(gac_checkpoint_file_name(c, s), shard);
            snprintf(path, sizeof path, "%s/%s", name, shard);
            assert_true(scratch_has(path));
        }
        gac_checkpoint_close(c);
    }
}

static void index_states_the_total(void **state)
{
    (void)state;
    json_t *index = NULL;
    gac_file *file = NULL;
    write_numbered("out", 5, 10, 20);
    assert_ok(gac_file_open(scratch_path("out/model.safetensors.index.json"), &file, err));
    assert_ok(gac_json_load(file, 10000, &index, err));
    gac_file_close(file);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), 50);
    const json_t *map = json_object_get(index, "weight_map");
    assert_int_equal(json_object_size(map), 5);
    assert_string_equal(json_string_value(json_object_get(map, "t4")),
                        "model-00003-of-00003.safetensors");
    json_decref(index);
}

static void check_numbered(gac_checkpoint *c, int32_t number, uint64_t n_bytes)
{
    char label[32];
    unsigned char byte = 255;
    snprintf(label, sizeof label, "t%d", number);
    int32_t index = gac_checkpoint_find(c, label);
    assert_true(index >= 0);
    assert_ok(gac_checkpoint_read(c, index, n_bytes - 1, &byte, 1, err));
    assert_int_equal(byte, number % 251);
    assert_ok(gac_checkpoint_read(c, index, 0, &byte, 1, err));
    assert_int_equal(byte, number % 251);
}

static void reads_shards_in_any_order(void **state)
{
    (void)state;
    char bytes[16];
    write_numbered("out", 40, 12, 30);
    gac_checkpoint *c = opened("out");
    srand(7);
    for (int i = 0; i < 500; i++)
        check_numbered(c, rand() % 40, 12);
    assert_fails(gac_checkpoint_read(c, 0, 0, bytes, 13, err), GAC_USAGE, "beyond its end");
    assert_fails(gac_checkpoint_read(c, 0, 13, bytes, 0, err), GAC_USAGE, "beyond its end");
    assert_fails(gac_checkpoint_read(c, 0, UINT64_MAX, bytes, 2, err), GAC_USAGE, "beyond");
    assert_ok(gac_checkpoint_read(c, 0, 12, bytes, 0, err));
    int32_t last = 0;
    for (int32_t i = 0; i < 40; i++) { /* by file, then by offset */
        const gac_tensor *t = gac_checkpoint_tensor(c, i), *p = gac_checkpoint_tensor(c, last);
        assert_true(t->file > p->file || (t->file == p->file && t->offset >= p->offset));
        last = i;
    }
    gac_checkpoint_close(c);
}

static struct rlimit limit_before;

static int few_descriptors(void **state)
{
    struct rlimit low;
    if (scratch_create(state) != 0 || getrlimit(RLIMIT_NOFILE, &limit_before) != 0)
        return -1;
    low = limit_before;
    low.rlim_cur = 64;
    return setrlimit(RLIMIT_NOFILE, &low);
}

static int enough_descriptors(void **state)
{
    return setrlimit(RLIMIT_NOFILE, &limit_before) != 0 ? -1 : scratch_remove(state);
}

static void shards_may_outnumber_descriptors(void **state)
{
    (void)state;
    write_numbered("out", 300, 4, 4);
    gac_checkpoint *c = opened("out");
    assert_int_equal(gac_checkpoint_n_files(c), 300);
    for (int32_t i = 0; i < 300; i++)
        check_numbered(c, (i * 7) % 300, 4);
    gac_checkpoint_close(c);
}

static void changed_shards_are_noticed(void **state)
{
    (void)state;
    char bytes[8192];
    const char *second = scratch_path("out/model-00002-of-00002.safetensors");
    write_numbered("out", 2, sizeof bytes, sizeof bytes);
    gac_checkpoint *c = opened("out");
    int32_t a = gac_checkpoint_find(c, "t0"), b = gac_checkpoint_find(c, "t1");
    assert_ok(gac_checkpoint_read(c, b, 0, bytes, 10, err));
    assert_int_equal(truncate(second, 4000), 0);
    assert_fails(gac_checkpoint_read(c, b, 0, bytes, sizeof bytes, err), GAC_BAD_INPUT,
                 "model-00002-of-00002.safetensors: ends at offset 4000");
    assert_ok(gac_checkpoint_read(c, a, 0, bytes, sizeof bytes, err));
    assert_fails(gac_checkpoint_read(c, b, 0, bytes, 1, err), GAC_BAD_INPUT, "changed while");
    assert_int_equal(unlink(second), 0);
    assert_fails(gac_checkpoint_read(c, b, 0, bytes, 1, err), GAC_BAD_INPUT, "No such");
    assert_ok(gac_checkpoint_read(c, a, 0, bytes, sizeof bytes, err));
    gac_checkpoint_close(c);
    assert_fails(gac_checkpoint_open(scratch_path("out"), NULL, &c, err), GAC_BAD_INPUT, "00002");
}

static void single_files_open(void **state)
{
    (void)state;
    gac_writer *w = new_writer("out", NULL);
    add(w, "a", GAC_DTYPE_BF16, 0, 1);
    assert_ok(gac_writer_add_file(w, "config.json", "{\"z\":1,\"a\":2}", 13, err));
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_finish(w, err));
    gac_checkpoint *c = opened("out/model.safetensors");
    assert_false(gac_checkpoint_is_directory(c));
    assert_string_equal(json_object_iter_key(json_object_iter((json_t *)gac_checkpoint_config(c))),
                        "z");
    gac_checkpoint_close(c);
    c = opened("out/");
    assert_true(gac_checkpoint_is_directory(c));
    assert_string_equal(gac_checkpoint_path(c), scratch_path("out/"));
    gac_checkpoint_close(c);
}

/* A checksum takes every byte, in one piece or in several. */
static void hashes_take_every_byte(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5 };
    enum { N = sizeof sizes / sizeof *sizes };
    uint8_t *bytes = malloc((size_t)sizes[N - 1]);
    assert_non_null(bytes);
    for (int64_t i = 0; i < sizes[N - 1]; i++)
        bytes[i] = (uint8_t)((uint64_t)i * 2654435761U >> 16);
    gac_writer *w = new_writer("out", NULL);
    char name[8];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(add(w, name, GAC_DTYPE_U8, 1, sizes[i]), i);
    }
    assert_ok(gac_writer_layout(w, err));
    for (int i = 0; i < N; i++)
        assert_ok(gac_writer_write(w, i, 0, bytes, (size_t)sizes[i], err));
    assert_ok(gac_writer_finish(w, err));
    gac_checkpoint *c = opened("out");
    for (int i = 0; i < N; i++) {
        uint64_t hash = 0, fed = 0;
        gac_tensor_hash *job = NULL;
        snprintf(name, sizeof name, "t%d", i);
        int32_t tensor = gac_checkpoint_find(c, name);
        assert_ok(gac_tensor_hash_start(c, tensor, &job, err));
        assert_ok(gac_tensor_hash_finish(job, &hash, err));
        assert_ok(gac_tensor_hash_start(c, tensor, &job, err));
        gac_tensor_hash_feed(job, 0, bytes, (size_t)sizes[i]);
        assert_ok(gac_tensor_hash_finish(job, &fed, err));
        assert_true(hash == fed);
        bytes[sizes[i] - 1] ^= 1;
        assert_ok(gac_tensor_hash_start(c, tensor, &job, err));
        gac_tensor_hash_feed(job, 0, bytes, (size_t)sizes[i]);
        assert_ok(gac_tensor_hash_finish(job, &fed, err));
        assert_true(hash != fed);
        bytes[sizes[i] - 1] ^= 1;
    }
    gac_checkpoint_close(c);
    free(bytes);
}

/* Data that its file does not align is mapped as a copy, one for each tensor. */
static void misaligned_tensors_are_mapped(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}";
    static const float values[] = { 1, 2, 3, 4 };
    char file[8 + sizeof header + sizeof values] = { 0 };
    size_t n = sizeof header - 1;
    n += n % 2 == 0; /* a space makes the length odd */
    file[0] = (char)n;
    memset(file + 8, ' ', n);
    memcpy(file + 8, header, sizeof header - 1);
    memcpy(file + 8 + n, values, sizeof values);
    scratch_put("odd.safetensors", file, 8 + n + sizeof values);
    gac_checkpoint *c = opened("odd.safetensors");
    const void *data[2] = { NULL, NULL }, *again = NULL;
    for (int i = 0; i < 2; i++) {
        assert_ok(gac_checkpoint_map(c, gac_checkpoint_find(c, i ? "b" : "a"), &data[i], err));
        assert_int_equal((uintptr_t)data[i] % sizeof *values, 0);
        assert_memory_equal(data[i], values + 2 * i, 2 * sizeof *values);
    }
    assert_ok(gac_checkpoint_map(c, gac_checkpoint_find(c, "a"), &again, err));
    assert_ptr_equal(again, data[0]);
    gac_checkpoint_close(c);
}

/* A file on its own with that header and n_data bytes behind it. */
static const char *put_safetensors(const char *name, const char *header, size_t n_data)
{
    char file[400] = { 0 };
    size_t n = strlen(header);
    assert_true(8 + n + n_data <= sizeof file && n < 256);
    file[0] = (char)n;
    memcpy(file + 8, header, n);
    return scratch_put(name, file, 8 + n + n_data);
}

static void odd_files_are_refused(void **state)
{
    (void)state;
    static const char plain[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    static const char number[] = "{\"__metadata__\":{\"a\":\"b\",\"c\":1},"
                                 "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    static const char swapped[] = "{\"weight_map\":{\"t0\":\"model-00002-of-00002.safetensors\","
                                  "\"t1\":\"model-00001-of-00002.safetensors\"}}";
    gac_checkpoint *c = NULL;
    assert_ok(gac_checkpoint_open(put_safetensors("a.safetensors", plain, 4), NULL, &c, err));
    gac_checkpoint_close(c);
    assert_fails(gac_checkpoint_open(put_safetensors("b.safetensors", plain, 5), NULL, &c, err),
                 GAC_BAD_INPUT, "1 bytes behind the last tensor");
    assert_fails(gac_checkpoint_open(put_safetensors("c.safetensors", number, 4), NULL, &c, err),
                 GAC_BAD_INPUT, "__metadata__ must map strings to strings");
    write_numbered("out", 2, 64, 64);
    scratch_put("out/model.safetensors.index.json", swapped, strlen(swapped));
    assert_fails(gac_checkpoint_open(scratch_path("out"), NULL, &c, err), GAC_BAD_INPUT,
                 "is listed elsewhere but is also in");
}

/* A private checkpoint stays private, and what can be run stays so. */
static void permissions_follow_the_original(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        mode_t mode;
    } files[] = { { "model.safetensors", 0600 }, { "run.sh", 0750 }, { "vocab.txt", 0440 } };
    gac_writer *w = new_writer("in", NULL);
    add(w, "a", GAC_DTYPE_U8, 0, 1);
    assert_ok(gac_writer_add_file(w, "run.sh", "true", 4, err));
    assert_ok(gac_writer_add_file(w, "vocab.txt", "a", 1, err));
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_finish(w, err));
    char path[80];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "in/%s", files[i].name);
        assert_int_equal(chmod(scratch_path(path), files[i].mode), 0);
    }
    gac_checkpoint *c = opened("in");
    gac_writer_options options = GAC_WRITER_OPTIONS_INIT;
    options.like = c;
    w = new_writer("out", &options);
    add(w, "a", GAC_DTYPE_U8, 0, 1);
    assert_ok(gac_writer_layout(w, err));
    assert_ok(gac_writer_carry(w, c, NULL, err));
    assert_ok(gac_writer_finish(w, err));
    gac_checkpoint_close(c);
    for (int i = 0; i < 3; i++) {
        struct stat s;
        snprintf(path, sizeof path, "out/%s", files[i].name);
        assert_int_equal(stat(scratch_path(path), &s), 0);
        assert_int_equal(s.st_mode & 0777, files[i].mode);
    }
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_round_trip),
        in_scratch(senseless_options_are_refused),
        in_scratch(impossible_tensors_are_refused),
        in_scratch(broken_names_are_refused),
        in_scratch(steps_out_of_order_are_refused),
        in_scratch(file_names_are_checked),
        in_scratch(failed_layout_cannot_finish),
        in_scratch(existing_target_is_kept_or_replaced),
        in_scratch(metadata_says_format),
        in_scratch(nothing_scalars_and_empties),
        in_scratch(data_starts_aligned),
        in_scratch(shards_follow_the_limit),
        in_scratch(index_states_the_total),
        in_scratch(reads_shards_in_any_order),
        cmocka_unit_test_setup_teardown(shards_may_outnumber_descriptors, few_descriptors,
                                        enough_descriptors),
        in_scratch(changed_shards_are_noticed),
        in_scratch(single_files_open),
        in_scratch(hashes_take_every_byte),
        in_scratch(misaligned_tensors_are_mapped),
        in_scratch(odd_files_are_refused),
        in_scratch(permissions_follow_the_original),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}

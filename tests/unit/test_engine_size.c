/* What an engine is sized for, and how far it has a GPU pad sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scratch.h"
#include "small_llama.h"

#include <gac/engine.h>

/* The rule by its words, size by size: the least size that it allows. */
static void test_padding(void **state)
{
    (void)state;
    for (int64_t size = 1; size < 5000; size++) {
        int64_t head = size, width = size, tile = size;
        while (head % 8 != 0)
            head++;
        while (tile % 64 != 0)
            tile++;
        while (width % 16 != 0)
            width++;
        if (64 * (tile - size) <= size)
            width = tile;
        assert_int_equal(gac_engine_padding(GAC_SIZE_HEAD, size), head);
        assert_int_equal(gac_engine_padding(GAC_SIZE_ROW, size), head);
        assert_int_equal(gac_engine_padding(GAC_SIZE_WIDTH, size), width);
    }
    assert_int_equal(gac_engine_padding(GAC_SIZE_HEAD, 107), 112);
    assert_int_equal(gac_engine_padding(GAC_SIZE_WIDTH, 1741), 1744);
    assert_int_equal(gac_engine_padding(GAC_SIZE_WIDTH, 14330), 14336);
    assert_int_equal(gac_engine_padding(GAC_SIZE_WIDTH, 0), 0);
}

static small_model open_small(const char *name, int64_t *limit)
{
    small_llama s = SMALL_LLAMA_INIT;
    small_llama_write(name, &s);
    small_model m = small_open(name);
    assert_ok(gac_engine_model_context(m.model, limit, err));
    assert_true(*limit > 600); /* so that nothing below is cut by it unless meant to be */
    return m;
}

static void check_size(const gac_model *model, const gac_engine_work *work, int64_t batch,
                       int64_t context, int64_t fresh, int64_t rows, int64_t cached)
{
    gac_engine_options o = GAC_ENGINE_OPTIONS_INIT;
    assert_ok(gac_engine_size(model, work, &o, err));
    assert_int_equal(o.max_batch, batch);
    assert_int_equal(o.max_context, context);
    assert_int_equal(o.max_new, fresh);
    assert_int_equal(o.max_rows, rows);
    assert_int_equal(o.max_cached, cached);
}

static void test_size(void **state)
{
    (void)state;
    int64_t limit;
    small_model m = open_small("size", &limit);
    int64_t window = limit < GAC_DEFAULT_WINDOW ? limit : GAC_DEFAULT_WINDOW;
    gac_engine_work none = GAC_ENGINE_WORK_INIT, w = none;
    check_size(m.model, &w, 1, 1, 1, 1, 1);
    w.perplexity = true;
    check_size(m.model, &w, 1, window, window, window, window);
    w.window = 100;
    check_size(m.model, &w, 1, 100, 100, 100, 100);
    w.tasks = true;
    check_size(m.model, &w, 1, window, window, window, window);
    w = none;
    /* Two prompts share rows and cache: the larger of 4 x 20 and 1 x 50. */
    const gac_pass_shape prefill[] = { { 4, 20 }, { 1, 50 } };
    w.prefill = prefill;
    w.n_prefill = 2;
    check_size(m.model, &w, 4, 50, 50, 80, 80);
    w = none;
    /* 31 steps more, and the cache is filled in passes of 512. */
    const gac_pass_shape decode[] = { { 2, 600 } };
    w.decode = decode;
    w.n_decode = 1;
    check_size(m.model, &w, 2, limit < 631 ? limit : 631, 512, 1024,
               2 * (limit < 631 ? limit : 631));
    w = none;
    w.n_prompt = 7;
    w.max_tokens = 5;
    check_size(m.model, &w, 1, 12, 7, 7, 12);
    w.max_tokens = INT64_MAX;
    check_size(m.model, &w, 1, limit, 7, 7, limit);
    small_close(&m);
}

static void test_size_bad(void **state)
{
    (void)state;
    int64_t limit;
    small_model m = open_small("bad", &limit);
    gac_engine_options o = GAC_ENGINE_OPTIONS_INIT;
    gac_engine_work none = GAC_ENGINE_WORK_INIT, w = none;
    assert_fails(gac_engine_size(NULL, &w, &o, err), GAC_USAGE, "NULL");
    assert_fails(gac_engine_size(m.model, NULL, &o, err), GAC_USAGE, "NULL");
    assert_fails(gac_engine_size(m.model, &w, NULL, err), GAC_USAGE, "NULL");
    w.n_prefill = 1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "NULL");
    w = none;
    w.perplexity = true;
    w.window = limit + 1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "a window of");
    w.window = -1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "makes no sense");
    w = none;
    w.n_prompt = limit + 1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "the prompt has");
    w.n_prompt = -1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "makes no sense");
    w.n_prompt = 1;
    w.max_tokens = -1;
    assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "max_tokens");
    const gac_pass_shape shapes[] = { { 1, limit + 1 }, { 0, 1 }, { 1, 0 }, { INT64_MAX, 2 } };
    for (int i = 0; i < 4; i++) {
        w = none;
        w.prefill = &shapes[i];
        w.n_prefill = 1;
        assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "prefill");
        w = none;
        w.decode = &shapes[i];
        w.n_decode = 1;
        assert_fails(gac_engine_size(m.model, &w, &o, err), GAC_USAGE, "a context");
    }
    assert_int_equal(o.max_batch, 1); /* options stay as they were */
    assert_int_equal(o.max_context, 0);
    small_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_size_bad),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}

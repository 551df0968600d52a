/* Memory of the CPU devices: all of it is counted, and no more is taken than the machine
 * has. */
#include "compute_lab.h"

static void memory_is_counted_and_bounded(void **state)
{
    (void)state;
    lab l = lab_open("reference", 1, 8);
    const gac_compute_ops *ops = l.compute.ops;
    void *inner = l.compute.state;
    gac_compute_memory before, now, shared;
    gac_rows *rows = NULL, *more = NULL;
    gac_cache *cache = NULL;
    gac_vector *vector = NULL;
    int32_t ids[9] = { 0 };
    ops->memory(inner, &before);
    assert_int_equal(ops->rows_create(inner, INT64_MAX / 16, true, &rows, &l.err), GAC_NO_RESOURCE);
    assert_int_equal(ops->rows_create(inner, INT64_MAX / 2, true, &rows, &l.err), GAC_NO_RESOURCE);
    assert_int_equal(ops->cache_create(inner, 1 << 20, 1 << 30, 1 << 20, 64, 64, &cache, &l.err),
                     GAC_NO_RESOURCE);
    assert_int_equal(ops->vector_create(inner, NULL, INT64_MAX, &vector, &l.err), GAC_NO_RESOURCE);
    assert_int_equal(ops->begin(inner, ids, 3, 3, 0, &l.err), GAC_USAGE);
    assert_int_equal(ops->begin(inner, ids, INT64_MAX, 3, 0, &l.err), GAC_USAGE);
    LAB_OK(&l, ops->rows_create(inner, 10, false, &rows, &l.err));
    LAB_OK(&l, ops->cache_create(inner, 2, 3, 4, 5, 6, &cache, &l.err));
    ops->memory(inner, &now);
    assert_int_equal(now.work_bytes - before.work_bytes, 8 * 10 * 4);
    assert_int_equal(now.cache_bytes - before.cache_bytes, 2 * 3 * 4 * (5 + 6) * 4);
    LAB_OK(&l, ops->rows_within(inner, rows, 10, &more, &l.err));
    LAB_OK(&l, ops->cache_shape(inner, cache, 1, 6, &l.err));
    LAB_OK(&l, ops->vector_create(inner, (float[3]){ 1, 2, 3 }, 3, &vector, &l.err));
    ops->memory(inner, &shared);
    now.weight_bytes += 3 * 4;
    assert_memory_equal(&now, &shared, sizeof now);
    ops->rows_free(inner, more);
    assert_int_equal(ops->rows_within(inner, rows, 11, &more, &l.err), GAC_USAGE);
    assert_int_equal(ops->cache_shape(inner, cache, 7, 1, &l.err), GAC_USAGE);
    assert_string_equal(l.err.text, "7 sequences of 1 tokens in a cache of 6 tokens");
    assert_int_equal(ops->cache_shape(inner, cache, INT64_MAX, 2, &l.err), GAC_USAGE);
    assert_int_equal(ops->cache_shape(inner, cache, 0, 1, &l.err), GAC_USAGE);
    ops->vector_free(inner, vector);
    ops->rows_free(inner, rows);
    ops->cache_free(inner, cache);
    ops->memory(inner, &now);
    assert_memory_equal(&now, &before, sizeof now);
    assert_int_equal(ops->stored(inner, GAC_SIZE_HEAD, 107), 107);
    assert_null(ops->record);
    gac_compute_close(&l.compute);
}

/* Linux would kill the process when it touches memory that was promised but does not
 * exist. */
static void no_more_than_the_machine_has(void **state)
{
    (void)state;
    const int64_t width = gac_host_free_bytes() / 100 / (int64_t)sizeof(float);
    static const char *const names[] = { "reference", "cpu" };
    for (int i = 0; i < 2; i++) {
        gac_compute_options options = { .dtype = GAC_DTYPE_F16, .n_threads = 1, .max_rows = 80 };
        gac_compute compute;
        gac_error err;
        gac_rows *rows = NULL, *more = NULL;
        gac_cache *cache = NULL;
        assert_int_equal(gac_compute_open(names[i], &options, &compute, &err), GAC_OK);
        assert_int_equal(compute.ops->rows_create(compute.state, width, false, &rows, &err),
                         GAC_OK);
        assert_int_equal(compute.ops->rows_create(compute.state, width, false, &more, &err),
                         GAC_NO_RESOURCE);
        assert_int_equal(
            compute.ops->cache_create(compute.state, 8, 10, 1, width, width, &cache, &err),
            GAC_NO_RESOURCE);
        compute.ops->rows_free(compute.state, rows);
        gac_compute_close(&compute);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(memory_is_counted_and_bounded, lab_teardown),
        cmocka_unit_test(no_more_than_the_machine_has),
    };
    lab_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

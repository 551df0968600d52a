#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/cuda/block_schedule.h"

enum { MAX_BLOCKS = 200, MAX_SEGMENTS = 16, ONE_SUM = 20 };

/* Returns the cost of tiles [start, end) for one block, counted tile by tile. */
static int64_t cost_of_tiles(const gac_block_schedule *d, int64_t start, int64_t end)
{
    int64_t cost = 0, first = 0;
    for (int s = 0; s < d->n_segments; s++) {
        const gac_block_schedule_segment *seg = &d->segments[s];
        int64_t taken = 0;
        for (int64_t tile = first; tile < first + seg->n_tiles; tile++) {
            if (tile < start || tile >= end)
                continue;
            if (taken++ % d->group == 0)
                cost += seg->cost * d->x_tiles + ONE_SUM * d->n_sums;
            cost += seg->cost;
        }
        first += seg->n_tiles;
    }
    return cost;
}

static int64_t count_tiles(const gac_block_schedule *d)
{
    int64_t n = 0;
    for (int s = 0; s < d->n_segments; s++)
        n += d->segments[s].n_tiles;
    return n;
}

/* Returns whether all tiles fit into the given time if each goes to the first block that
 * still has time for it. */
static int is_enough(const gac_block_schedule *d, int64_t n_steps)
{
    int64_t start = 0, n = count_tiles(d);
    for (int i = 0; i < d->n_blocks && start < n; i++) {
        int64_t end = start, time = gac_block_schedule_time(d, n_steps, i);
        while (end < n && cost_of_tiles(d, start, end + 1) <= time)
            end++;
        start = end;
    }
    return start == n;
}

/* Checks that every tile is assigned once, in order, and that no block exceeds its time. */
static int64_t check(const gac_block_schedule *d)
{
    int cuts[MAX_BLOCKS + 1];
    int64_t time = gac_block_schedule_assign(d, cuts);
    assert_int_equal(cuts[0], 0);
    assert_int_equal(cuts[d->n_blocks], count_tiles(d));
    for (int i = 0; i < d->n_blocks; i++) {
        assert_true(cuts[i] <= cuts[i + 1]);
        if (cuts[i] < cuts[i + 1])
            assert_true(cost_of_tiles(d, cuts[i], cuts[i + 1]) <=
                        gac_block_schedule_time(d, time, i));
    }
    return time;
}

static void assigns_the_products_of_an_8b(void **state)
{
    (void)state;
    static const struct {
        gac_block_schedule_segment segments[3];
        int n, n_sums;
    } products[] = {
        { { { 768, 64 } }, 1, 1 },                           /* q, k and v */
        { { { 512, 28 }, { 128, 11 }, { 128, 11 } }, 3, 1 }, /* the same, from their latents */
        { { { 218, 64 } }, 1, 1 },                           /* o, first factor */
        { { { 1792, 128 } }, 1, 2 },                         /* gate and up */
        { { { 340, 224 } }, 1, 1 },                          /* down, first factor */
        { { { 16032, 64 } }, 1, 1 },                         /* head */
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int group = 4; group <= 7; group += 3)
            for (int x_tiles = 1; x_tiles <= 2; x_tiles++) {
                gac_block_schedule d = { products[i].segments, products[i].n, 132, group, x_tiles,
                                         products[i].n_sums };
                int cuts[MAX_BLOCKS + 1];
                check(&d);
                gac_block_schedule_assign(&d, cuts);
                for (int b = 1; d.n_segments == 1 && b < d.n_blocks; b++)
                    assert_true(cuts[b + 1] - cuts[b] <= cuts[b] - cuts[b - 1]);
            }
}

static void is_within_a_64th_of_the_optimum(void **state)
{
    (void)state;
    srand(5);
    for (int round = 0; round < 300; round++) {
        gac_block_schedule_segment segments[MAX_SEGMENTS];
        gac_block_schedule d = { .segments = segments,
                                 .n_segments = 1 + rand() % (round % 2 ? 1 : MAX_SEGMENTS),
                                 .n_blocks = 1 + rand() % (round % 3 ? 20 : MAX_BLOCKS),
                                 .group = 1 + rand() % 8,
                                 .x_tiles = 1 + rand() % 2,
                                 .n_sums = 1 + rand() % 2 };
        for (int s = 0; s < d.n_segments; s++)
            segments[s] = (gac_block_schedule_segment){ 1 + rand() % 60, 1 + rand() % 300 };
        int64_t time = check(&d), low = 0, high = time;
        assert_true(is_enough(&d, time));
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            if (is_enough(&d, middle))
                high = middle;
            else
                low = middle;
        }
        assert_true(time <= high + high / 64 + 1);
    }
}

/* Pins the measured constants, so that nobody changes them by accident. */
static void late_blocks_have_less_time(void **state)
{
    (void)state;
    gac_block_schedule_segment gate_up = { 1792, 128 };
    gac_block_schedule d = { &gate_up, 1, 132, 7, 2, 2 };
    int cuts[MAX_BLOCKS + 1];
    assert_int_equal(gac_block_schedule_time(&d, 10000, 0), 10000);
    assert_int_equal(gac_block_schedule_time(&d, 10000, 66), 9750);
    assert_int_equal(gac_block_schedule_time(&d, 10000, 109),
                     9588); /* the last block that starts in time */
    assert_int_equal(gac_block_schedule_time(&d, 10000, 120), 9546 - 28);
    assert_int_equal(gac_block_schedule_time(&d, 10000, 131), 9504 - 57);
    gac_block_schedule_assign(&d, cuts);
    assert_true(cuts[132] - cuts[131] < cuts[1] - cuts[0]);
}

static void one_tile_goes_to_one_block(void **state)
{
    (void)state;
    gac_block_schedule_segment segment = { 1, 1 << 20 };
    gac_block_schedule d = { &segment, 1, 132, 7, 2, 1 };
    int cuts[MAX_BLOCKS + 1];
    gac_block_schedule_assign(&d, cuts);
    assert_int_equal(cuts[0], 0);
    for (int i = 1; i <= 132; i++)
        assert_int_equal(cuts[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assigns_the_products_of_an_8b),
        cmocka_unit_test(is_within_a_64th_of_the_optimum),
        cmocka_unit_test(late_blocks_have_less_time),
        cmocka_unit_test(one_tile_goes_to_one_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every kernel set gives the bits of a build without optimisation:
 * vector width, instruction set and compiler flags never show in a result. */
#include <stdlib.h>
#include <string.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O0")
#endif
#define DI_ROW_KERNELS      unoptimised
#define DI_ROW_KERNELS_NAME "unoptimised"
#include "sample/kernels.h"
extern const di_row_kernels unoptimised;
#include "sample/kernels.inc"
#if !defined(__clang__)
#pragma GCC pop_options
#endif

#include "sample/rows.h"

enum { MOST = 1000, BLOCKS = (MOST + DI_ROW_BLOCK - 1) / DI_ROW_BLOCK };

static float row[MOST];

/* Logits as they come, with impossible tokens, zeros of both signs, equal and far values. */
static void roll_row(dice *d, int n) {
    for (int i = 0; i < n; i++) {
        switch (roll_below(d, 10)) {
        case 0:
            row[i] = -INFINITY;
            break;
        case 1:
            row[i] = roll_below(d, 2) ? 0.0f : -0.0f;
            break;
        case 2:
            row[i] = (float)roll_below(d, 5);
            break;
        case 3:
            row[i] = (float)(80 * roll_unit(d) - 70);
            break;
        default:
            row[i] = (float)(16 * roll_unit(d) - 8);
        }
    }
    row[roll_below(d, n)] = 8;
}

static void compare_sums(const di_row_kernels *k, int n, float c) {
    float maxima[2][BLOCKS];
    uint64_t sums[2][BLOCKS];
    int blocks = di_row_blocks(n);
    assert_true(k->scan(row, n, maxima[0]) && scan(row, n, maxima[1]));
    assert_memory_equal(maxima[0], maxima[1], (size_t)blocks * sizeof **maxima);
    assert_int_equal(k->weigh(row, n, 8, c, sums[0]), weigh(row, n, 8, c, sums[1]));
    assert_memory_equal(sums[0], sums[1], (size_t)blocks * sizeof **sums);
    for (int id = 0; id < n; id += 1 + n / 7) {
        di_cut cut = {row[id], id, (uint64_t)1 << (id % 47)};
        int count = k->weigh_kept(row, n, maxima[0], 8, c, &cut, sums[0]);
        assert_int_equal(count, weigh_kept(row, n, maxima[1], 8, c, &cut, sums[1]));
        assert_memory_equal(sums[0], sums[1], (size_t)blocks * sizeof **sums);
    }
}

static void compare_blocks(const di_row_kernels *k, int n, float c, dice *d) {
    uint64_t weights[2][DI_ROW_BLOCK];
    int32_t bins[2][DI_ROW_BLOCK];
    uint32_t words[2][DI_ROW_BLOCK];
    for (int at = 0; at < n; at += DI_ROW_BLOCK) {
        const float *x = row + at;
        k->weigh_block(x, n - at, 8, c, 16, 1023, weights[0], bins[0]);
        weigh_block(x, n - at, 8, c, 16, 1023, weights[1], bins[1]);
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
        assert_memory_equal(bins[0], bins[1], sizeof bins[0]);
        uint64_t seed = (uint64_t)roll(d) << 32 | roll(d), position = (uint64_t)roll(d) << 16;
        float bound = ldexpf(1, roll_below(d, 60) - 10);
        bool hit = k->race_block(x, n - at, 8, c, seed, position, 5, bound, words[0]);
        assert_int_equal(hit, race_block(x, n - at, 8, c, seed, position, 5, bound, words[1]));
        assert_memory_equal(words[0], words[1], sizeof words[0]);
        for (uint32_t i = 0; i < DI_ROW_BLOCK; i += 4) { /* and they are Philox's */
            uint32_t wanted[4];
            di_random_words(seed, position, DI_RANDOM_COUPLED, 5 + i / 4, wanted);
            assert_memory_equal(words[0] + i, wanted, sizeof wanted);
        }
    }
}

static void compare_masks(const di_row_kernels *k, int n, dice *d) {
    float out[2][MOST];
    uint32_t mask[(MOST + 31) / 32];
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) {
        mask[i] = roll(d);
    }
    memcpy(out[0], row, sizeof row);
    k->apply_mask(out[0], n, mask);
    for (int i = 0; i < n; i++) {
        float wanted = mask[i / 32] >> (i % 32) & 1 ? row[i] : -INFINITY;
        assert_memory_equal(&out[0][i], &wanted, sizeof wanted);
    }
    assert_memory_equal(out[0] + n, row + n, (size_t)(MOST - n) * sizeof *row);
}

static void test_every_set_gives_the_bits_of_the_unoptimised_one(void **state) {
    (void)state;
    static const int sizes[] = {1, 3, 4, 31, 32, 33, 63, 64, 65, 127, 128, 129, 640, 1000};
    static const float octaves[] = {0.0144f, 0.7f, 1.442695f, 30, 144269.5f};
    dice d = {12, 0};
    for (int k = 0; di_row_kernels_at(k); k++) {
        for (int round = 0; round < 400; round++) {
            int n = sizes[round % 14];
            roll_row(&d, n);
            compare_sums(di_row_kernels_at(k), n, octaves[round % 5]);
            compare_blocks(di_row_kernels_at(k), n, octaves[round % 5], &d);
            compare_masks(di_row_kernels_at(k), n, &d);
        }
    }
}

static void test_every_set_finds_a_bad_value_wherever_it_is(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY};
    float maxima[BLOCKS];
    dice d = {13, 0};
    for (int k = 0; di_row_kernels_at(k); k++) {
        for (int at = 0; at < 200; at++) {
            roll_row(&d, 200);
            assert_true(di_row_kernels_at(k)->scan(row, 200, maxima));
            row[at] = bad[at % 3];
            assert_false(di_row_kernels_at(k)->scan(row, 200, maxima));
        }
    }
}

/* What the race's cheap test may never do: rule out a token that wins. */
static void test_the_race_never_rules_out_a_winner(void **state) {
    (void)state;
    dice d = {14, 0};
    int hits = 0;
    for (int round = 0; round < 20000; round++) {
        float x[DI_ROW_BLOCK];
        uint32_t words[DI_ROW_BLOCK];
        uint64_t seed = roll(&d);
        for (int i = 0; i < DI_ROW_BLOCK; i++) {
            x[i] = (float)(-roll_unit(&d) * (round % 40));
        }
        const di_row_kernels *k = di_row_kernels_best();
        k->race_block(x, DI_ROW_BLOCK, 0, 1.442695f, seed, 1, 0, 1, words);
        double least = INFINITY;
        for (int i = 0; i < DI_ROW_BLOCK; i++) {
            uint64_t w = di_weight((0 - x[i]) * 1.442695f);
            double ratio = w ? ldexp((double)di_noise(words[i]) / (double)w, 46 - 56) : INFINITY;
            least = fmin(least, ratio);
        }
        /* A mark that only just loses to this block's best: with row.c's margin it must be seen. */
        float bound = (float)(least * 0x1p31 * (1 + 0x1p-16));
        assert_true(k->race_block(x, DI_ROW_BLOCK, 0, 1.442695f, seed, 1, 0, bound, words));
        hits += k->race_block(x, DI_ROW_BLOCK, 0, 1.442695f, seed, 1, 0, bound / 4, words);
    }
    assert_true(hits < 20000 / 2); /* and it does rule out */
}

static void test_names_and_order(void **state) {
    (void)state;
    int count = 0;
    while (di_row_kernels_at(count)) {
        count++;
    }
    assert_ptr_equal(di_row_kernels_best(), di_row_kernels_at(0));
    assert_string_equal(di_row_kernels_at(count - 1)->name, "plain");
    assert_null(di_row_kernels_at(-1));
    assert_false(di_sample_scratch_use_kernels(scratch_of(3), count));
    assert_string_equal(di_sample_scratch_kernels_name(scratch_of(3)), di_row_kernels_at(0)->name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_set_gives_the_bits_of_the_unoptimised_one),
        cmocka_unit_test(test_every_set_finds_a_bad_value_wherever_it_is),
        cmocka_unit_test(test_the_race_never_rules_out_a_winner),
        cmocka_unit_test(test_names_and_order),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_of(0);
    return failed;
}

/* Coupled draws: the noise, the golden races of an independent implementation, every kernel set. */
#include <stdlib.h>

#include "sample/arithmetic.h"
#include "sample/coupled_golden.h"
#include "sample/rows.h"

enum { WIDE = 129280, NARROW = 1001 };

static float wide[WIDE], narrow[NARROW];

static int fill_rows(void **state) {
    (void)state;
    for (uint32_t i = 0; i < WIDE; i++) {
        wide[i] = i % 97 == 5 ? -INFINITY : (float)(i * 2654435761u >> 20) / 256 - 8;
    }
    for (uint32_t i = 0; i < NARROW; i++) {
        narrow[i] = (float)(i * 2654435761u >> 27) * 0.37f - 4;
    }
    return 0;
}

static void test_noise_equals_the_golden_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_noise / sizeof *golden_noise; i++) {
        assert_int_equal(di_noise(golden_noise[i].word), golden_noise[i].noise);
    }
}

static void check_noise(uint32_t word) {
    long double t = 2.0L * word + 1;
    long double exact = word >> 31 ? -log1pl((t - 0x1p33L) / 0x1p33L) : -logl(t / 0x1p33L);
    long double error = (long double)di_noise(word) * 0x1p-56L / exact - 1;
    if (!(fabsl(error) < 0x1p-22L)) {
        fail_msg("noise of word %08x is off by %Lg", word, error);
    }
}

static void test_noise_is_within_its_error_everywhere(void **state) {
    (void)state;
    dice d = {1, 0};
    for (uint32_t i = 0; i < 300000; i++) {
        uint32_t w = roll(&d);
        check_noise(w);
        check_noise(w >> (i % 32));
        check_noise(~(w >> (i % 32)));
        check_noise(i);
        check_noise(~i);
        check_noise(0x5a82799a - 150000 + i); /* where the power of two changes */
    }
}

static void test_races_equal_the_golden_ones_on_every_kernel_set(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_races / sizeof *golden_races; i++) {
        di_sample_params p = default_params();
        p.shape = (di_sampling){golden_races[i].temperature, golden_races[i].top_p,
                                golden_races[i].min_p, golden_races[i].top_k};
        p.seeded = true;
        int size = golden_races[i].row ? NARROW : WIDE;
        const float *x = golden_races[i].row ? narrow : wide;
        for (int k = 0; di_sample_scratch_use_kernels(scratch_of(size), k); k++) {
            di_sample_input in = {
                .logits = x, .seed = golden_races[i].seed, .position = golden_races[i].position};
            assert_int_equal(sample(&p, &in, size).token, golden_races[i].token);
        }
        /* The recorded noise and weight are those of the token: the file describes this race. */
        int32_t id = golden_races[i].token;
        uint32_t words[4];
        di_random_words(golden_races[i].seed, golden_races[i].position, DI_RANDOM_COUPLED,
                        (uint32_t)id / 4, words);
        assert_int_equal(di_noise(words[id % 4]), golden_races[i].noise);
    }
}

static void test_the_lower_id_wins_a_tie(void **state) {
    (void)state;
    di_racer a = {6, 3, 5}, b = {4, 2, 4}, c = {7, 3, 1};
    assert_false(di_racer_beats(a, b)); /* 6 / 3 == 4 / 2 */
    assert_true(di_racer_beats(b, a));
    assert_true(di_racer_beats(a, c));
    di_racer big = {((uint64_t)23 << 56) - 1, (uint64_t)1 << 46, 1}, less = big;
    less.noise--;
    assert_true(di_racer_beats(less, big));
    assert_false(di_racer_beats(big, big));
}

/* A token far below the best wins when its noise is as far below: no block may be passed over that
 * holds one. Words whose noise is less than 2^-19 are looked for, and their token is put just above
 * and just below the level at which it ties with the best. */
static void test_a_far_token_wins_by_little_noise(void **state) {
    (void)state;
    enum { N = 200, FAR = 2 * 64 + 9, WANTED = 8 };
    float x[N];
    int found = 0;
    di_sample_params p = default_params();
    p.seeded = true;
    for (uint64_t t = 0; found < WANTED; t++) {
        uint32_t first[4], words[4];
        di_random_words(77, t, DI_RANDOM_COUPLED, FAR / 4, words);
        if (~words[FAR % 4] >= 1u << 13) {
            continue;
        }
        di_random_words(77, t, DI_RANDOM_COUPLED, 0, first);
        double octaves = log2((double)di_noise(first[0]) / (double)di_noise(words[FAR % 4]));
        for (int side = -1; side <= 1; side += 2) {
            for (int i = 0; i < N; i++) {
                x[i] = -INFINITY;
            }
            x[0] = 0;
            x[FAR] = (float)((side * 0.001 - octaves) * 0.6931471805599453);
            di_sample_input in = {.logits = x, .seed = 77, .position = t};
            assert_int_equal(sample(&p, &in, N).token, side > 0 ? FAR : 0);
        }
        found++;
    }
}

/* A draft's row that is near the target's, drawn with the same noise, mostly gives the same token:
 * the rate is sum over v of 1 / sum over w of max(p_w / p_v, q_w / q_v). */
static void test_near_rows_agree_as_often_as_the_formula_says(void **state) {
    (void)state;
    enum { N = 12, DRAWS = 100000 };
    float x[N], y[N];
    double p[N], q[N], rate = 0; /* unnormalised: only ratios count */
    dice d = {3, 0};
    for (int i = 0; i < N; i++) {
        x[i] = (float)(4 * roll_unit(&d));
        y[i] = x[i] + (float)(roll_unit(&d) - 0.5);
        p[i] = exp((double)x[i]);
        q[i] = exp((double)y[i]);
    }
    for (int v = 0; v < N; v++) {
        double sum = 0;
        for (int w = 0; w < N; w++) {
            sum += fmax(p[w] / p[v], q[w] / q[v]);
        }
        rate += 1 / sum;
    }
    di_sample_params params = default_params();
    params.seeded = true;
    int same = 0;
    for (uint64_t t = 0; t < DRAWS; t++) {
        di_sample_input a = {.logits = x, .seed = 9, .position = t}, b = a;
        b.logits = y;
        same += sample(&params, &a, N).token == sample(&params, &b, N).token;
    }
    double deviation = sqrt(DRAWS * rate * (1 - rate)); /* four of them: once in 16,000 seeds */
    assert_true(fabs(same - DRAWS * rate) < 4 * deviation);
    assert_true(rate > 0.7 && rate < 0.99);
}

/* Only the row and the seed count: the same token whatever was drawn before, and alone or not. */
static void test_a_seeded_draw_ignores_its_neighbours(void **state) {
    (void)state;
    di_sample_params seeded = default_params(), free_draw = default_params();
    seeded.seeded = true;
    seeded.shape.top_p = 0.9;
    free_draw.shape.top_k = 7;
    di_sample_input in = {.logits = narrow, .seed = 42, .position = 17};
    int32_t alone = sample(&seeded, &in, NARROW).token;
    for (uint64_t i = 0; i < 5; i++) {
        di_sample_input other = {.logits = narrow, .seed = 1000 * i, .position = i};
        sample(&free_draw, &other, NARROW);
        assert_int_equal(sample(&seeded, &in, NARROW).token, alone);
    }
}

static void test_positions_beyond_32_bits_are_their_own(void **state) {
    (void)state;
    di_sample_params p = default_params();
    int differ[2] = {0};
    for (int seeded = 0; seeded < 2; seeded++) {
        p.seeded = seeded;
        for (uint64_t t = 0; t < 50; t++) {
            di_sample_input low = {.logits = narrow, .seed = 1, .position = t}, high = low;
            high.position += (uint64_t)1 << 32;
            differ[seeded] += sample(&p, &low, NARROW).token != sample(&p, &high, NARROW).token;
        }
        assert_true(differ[seeded] > 40);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise_equals_the_golden_values),
        cmocka_unit_test(test_noise_is_within_its_error_everywhere),
        cmocka_unit_test(test_races_equal_the_golden_ones_on_every_kernel_set),
        cmocka_unit_test(test_the_lower_id_wins_a_tie),
        cmocka_unit_test(test_a_far_token_wins_by_little_noise),
        cmocka_unit_test(test_near_rows_agree_as_often_as_the_formula_says),
        cmocka_unit_test(test_a_seeded_draw_ignores_its_neighbours),
        cmocka_unit_test(test_positions_beyond_32_bits_are_their_own),
    };
    int failed = cmocka_run_group_tests(tests, fill_rows, NULL);
    scratch_of(0);
    return failed;
}

/* Log-probabilities: against float64, in both modes, with the likeliest tokens in order. */
#include <stdlib.h>
#include <string.h>

#include "sample/arithmetic.h"
#include "sample/rows.h"

enum { MOST = 3000 };

static float row[MOST];

static void roll_row(dice *d, int n) {
    for (int i = 0; i < n; i++) { /* some equal, some impossible */
        row[i] = roll_below(d, 10) == 0 ? -INFINITY : (float)roll_below(d, 4 * n) * 0.003f;
    }
    row[roll_below(d, n)] = 5;
}

static double log_total(int n, double temperature) {
    double best = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        best = fmax(best, (double)row[i]);
    }
    for (int i = 0; i < n; i++) {
        sum += exp(((double)row[i] - best) / temperature);
    }
    return best / temperature + log(sum);
}

static di_sample_params asking(int n, di_logprobs_mode mode) {
    di_sample_params p = default_params();
    p.logprobs = true;
    p.num_logprobs = n;
    p.logprobs_mode = mode;
    return p;
}

static void test_logarithm_of_integers(void **state) {
    (void)state;
    dice d = {6, 0};
    for (int i = 0; i < 200000; i++) {
        uint64_t t = ((uint64_t)roll(&d) << 32 | roll(&d)) >> (1 + i % 63);
        t = t ? t : 1;
        double got = di_log_integer(t), wanted = log((double)t);
        assert_true(fabs(got - wanted) <= 1e-14 * (wanted > 1 ? wanted : 1));
    }
    assert_true(di_log_integer(1) == 0);
}

static void test_raw_logprobs_are_those_of_float64_and_sum_to_one(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 40, 64, 65, 1000, 3000};
    dice d = {7, 0};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        double sum = 0;
        roll_row(&d, n);
        double total = log_total(n, 1);
        di_sample_params p = asking(0, DI_LOGPROBS_RAW);
        for (int i = 0; i < n; i++) {
            di_logprobs l;
            di_error err;
            assert_true(di_prompt_logprobs(&p, row, i, scratch_of(n), &l, &err));
            assert_true(row[i] == -INFINITY ? l.logprob == -INFINITY
                                            : fabs(l.logprob - ((double)row[i] - total)) < 1e-5);
            sum += exp(l.logprob);
        }
        assert_true(fabs(sum - 1) < 1e-6);
    }
}

static int by_value_then_id(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return row[i] != row[j] ? (row[i] < row[j] ? 1 : -1) : i - j;
}

static void check_top(const di_logprobs *l, int n, int asked, double total) {
    static int32_t order[MOST];
    int legal = 0;
    for (int i = 0; i < n; i++) {
        order[legal] = i;
        legal += row[i] > -INFINITY;
    }
    qsort(order, (size_t)legal, sizeof *order, by_value_then_id);
    assert_int_equal(l->num_top, asked < legal ? asked : legal);
    for (int i = 0; i < l->num_top; i++) {
        assert_int_equal(l->top_ids[i], order[i]);
        assert_true(fabs(l->top_logprobs[i] - ((double)row[order[i]] - total)) < 1e-5);
    }
}

static void test_the_likeliest_tokens_are_those_of_a_sort(void **state) {
    (void)state;
    static const int sizes[] = {1, 40, 64, 1000, 3000}, asked[] = {1, 5, 20, 1000};
    dice d = {8, 0};
    for (size_t k = 0; k < 5; k++) {
        for (size_t a = 0; a < 4; a++) {
            int n = sizes[k];
            roll_row(&d, n);
            double total = log_total(n, 1);
            di_sample_params p = asking(asked[a], DI_LOGPROBS_RAW);
            /* The row's own temperature and filters do not show in raw values. */
            for (int i = 0; i < 3; i++) {
                p.shape = (di_sampling){.temperature = 0.5 * i, .top_p = 0.9, .top_k = 4};
                di_sampled s = sample(&p, &(di_sample_input){.logits = row, .seed = 2}, n);
                check_top(&s.logprobs, n, asked[a], total);
                assert_true(fabs(s.logprobs.logprob - ((double)row[s.token] - total)) < 1e-5);
            }
        }
    }
}

static void test_equal_and_ascending_rows_have_their_top(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) { /* every block's maximum is beaten by whole blocks */
        for (int i = 0; i < MOST; i++) {
            row[i] = kind == 0 ? 1 : kind == 1 ? (float)i * 0.01f : (float)-i * 0.01f;
        }
        double total = log_total(MOST, 1);
        di_sample_params p = asking(1000, DI_LOGPROBS_RAW);
        di_sampled s = sample(&p, &(di_sample_input){.logits = row}, MOST);
        check_top(&s.logprobs, MOST, 1000, total);
    }
}

static void test_raw_values_ignore_masks_and_penalties(void **state) {
    (void)state;
    enum { N = 64 };
    static const uint32_t mask[2] = {0x0ff0, 0};
    dice d = {9, 0};
    roll_row(&d, N);
    row[4] = 1;
    double total = log_total(N, 1);
    di_sample_params p = asking(5, DI_LOGPROBS_RAW);
    di_sample_input in = {.logits = row, .grammar_mask = mask};
    di_sampled s = sample(&p, &in, N);
    assert_true(s.token >= 4 && s.token < 12);
    assert_true(fabs(s.logprobs.logprob - ((double)row[s.token] - total)) < 1e-5);
    check_top(&s.logprobs, N, 5, total);
}

static void test_processed_values_are_those_of_the_kept_tokens(void **state) {
    (void)state;
    enum { N = 6 };
    static const float x[N] = {0, 2, 1, -1, 2.5f, 3};
    static const uint32_t mask[1] = {0x1f}; /* not 5 */
    memcpy(row, x, sizeof x);
    di_sample_params p = asking(5, DI_LOGPROBS_PROCESSED);
    p.shape = (di_sampling){.temperature = 0.5, .top_p = 1, .top_k = 3};
    double sum = exp(5) + exp(4) + exp(2); /* 2.5, 2 and 1 at half the temperature */
    for (int seeded = 0; seeded < 2; seeded++) {
        p.seeded = seeded;
        for (uint64_t i = 0; i < 40; i++) {
            di_sample_input in = {.logits = row, .grammar_mask = mask, .position = i};
            di_sampled s = sample(&p, &in, N);
            assert_true(fabs(s.logprobs.logprob - (2 * (double)x[s.token] - log(sum))) < 1e-5);
            assert_int_equal(s.logprobs.num_top, 3);
            assert_int_equal(s.logprobs.top_ids[0], 4);
            assert_int_equal(s.logprobs.top_ids[1], 1);
            assert_int_equal(s.logprobs.top_ids[2], 2);
            assert_true(fabs(s.logprobs.top_logprobs[2] - (2 - log(sum))) < 1e-5);
            assert_int_equal(s.kept, 3);
        }
    }
    /* A forced token that the filters leave out cannot occur. */
    static const int32_t golden[] = {0};
    p.golden_token_ids = (di_token_list){golden, 1};
    di_sampled s = sample(&p, &(di_sample_input){.logits = row}, N);
    assert_true(s.forced && s.logprobs.logprob == -INFINITY);
    /* At temperature 0 values are raw whatever the mode. */
    p.shape.temperature = 0;
    s = sample(&p, &(di_sample_input){.logits = row}, N);
    assert_true(fabs(s.logprobs.logprob - (0 - log_total(N, 1))) < 1e-5);
    assert_int_equal(s.logprobs.num_top, 5);
}

/* Teacher forcing gives the numbers that sampling gave: the same row, the same token. */
static void test_forcing_the_drawn_token_gives_the_same_numbers(void **state) {
    (void)state;
    dice d = {10, 0};
    roll_row(&d, 500);
    for (int mode = 0; mode < 2; mode++) {
        di_sample_params p = asking(20, (di_logprobs_mode)mode);
        p.shape.top_p = 0.9;
        di_sampled drawn = sample(&p, &(di_sample_input){.logits = row, .seed = 4}, 500);
        double logprob = drawn.logprobs.logprob, last = drawn.logprobs.top_logprobs[19];
        int32_t token = drawn.token;
        p.golden_token_ids = (di_token_list){&token, 1};
        di_sampled forced = sample(&p, &(di_sample_input){.logits = row, .seed = 5}, 500);
        assert_true(forced.logprobs.logprob == logprob);
        assert_true(forced.logprobs.top_logprobs[19] == last);
    }
}

static void test_prompt_logprobs_follow_the_mode(void **state) {
    (void)state;
    static const float x[3] = {0, 1, 2};
    di_logprobs l;
    di_error err = {0};
    di_sample_params p = asking(2, DI_LOGPROBS_PROCESSED);
    p.shape.top_k = 2;
    assert_true(di_prompt_logprobs(&p, x, 1, scratch_of(3), &l, &err));
    assert_true(fabs(l.logprob + log(1 + exp(1))) < 1e-5);
    assert_true(di_prompt_logprobs(&p, x, 0, scratch_of(3), &l, &err));
    assert_true(l.logprob == -INFINITY);
    p.logprobs_mode = DI_LOGPROBS_RAW;
    assert_true(di_prompt_logprobs(&p, x, 0, scratch_of(3), &l, &err));
    assert_true(fabs(l.logprob + log(1 + exp(1) + exp(2))) < 1e-5);
    assert_int_equal(l.num_top, 2);
    assert_false(di_prompt_logprobs(&p, x, 3, scratch_of(3), &l, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    const float bad[3] = {0, NAN, 0};
    assert_false(di_prompt_logprobs(&p, bad, 0, scratch_of(3), &l, &err));
}

static void test_nothing_is_computed_that_nobody_asked_for(void **state) {
    (void)state;
    di_sample_params p = default_params();
    row[0] = row[1] = 0;
    di_sampled s = sample(&p, &(di_sample_input){.logits = row}, 2);
    assert_true(s.logprobs.logprob == 0 && s.logprobs.num_top == 0 && !s.logprobs.top_ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logarithm_of_integers),
        cmocka_unit_test(test_raw_logprobs_are_those_of_float64_and_sum_to_one),
        cmocka_unit_test(test_the_likeliest_tokens_are_those_of_a_sort),
        cmocka_unit_test(test_equal_and_ascending_rows_have_their_top),
        cmocka_unit_test(test_raw_values_ignore_masks_and_penalties),
        cmocka_unit_test(test_processed_values_are_those_of_the_kept_tokens),
        cmocka_unit_test(test_forcing_the_drawn_token_gives_the_same_numbers),
        cmocka_unit_test(test_prompt_logprobs_follow_the_mode),
        cmocka_unit_test(test_nothing_is_computed_that_nobody_asked_for),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_of(0);
    return failed;
}

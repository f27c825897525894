/* What happens to a row before the draw, seen through temperature 0 and the reported numbers. */
#include <float.h>
#include <string.h>

#include "base/alloc.h"
#include "sample/rows.h"
#include "sample/transform.h"

enum { V = 100 };

static float row[V];

static int fill_row(void **state) {
    (void)state;
    for (int i = 0; i < V; i++) {
        row[i] = (float)(i * 37 % V) * 0.1f - 4; /* all different; the best is id 27 */
    }
    return 0;
}

static void transform(const di_sample_params *p, const di_sample_history *h, const uint32_t *mask,
                      int64_t num_output, float *out) {
    di_error err = {0};
    di_transform t = {p, h, mask, num_output};
    if (!di_sample_params_check(p, V, &err)) {
        fail_msg("%s", err.message);
    }
    assert_true(di_transform_needed(&t));
    for (int k = 0; di_row_kernels_at(k); k++) {
        di_transform_row(&t, di_row_kernels_at(k), row, V, out);
    }
}

static void test_a_plain_request_needs_no_copy(void **state) {
    (void)state;
    static const int32_t stop[] = {1};
    di_sample_params p = default_params();
    di_sample_history h = {0};
    p.stop_token_ids = (di_token_list){stop, 1};
    p.min_tokens = 5;
    assert_false(di_transform_needed(&(di_transform){&p, &h, NULL, 5}));
    assert_true(di_transform_needed(&(di_transform){&p, &h, NULL, 4}));
}

static void test_the_given_logits_are_never_written(void **state) {
    (void)state;
    static const di_logit_bias bias[] = {{3, 50}};
    float before[V];
    di_sample_params p = default_params();
    p.logit_bias = bias;
    p.num_logit_bias = 1;
    p.shape.temperature = 0;
    memcpy(before, row, sizeof row);
    assert_int_equal(sample(&p, &(di_sample_input){.logits = row}, V).token, 3);
    assert_memory_equal(before, row, sizeof row);
}

static void test_bias_adds_and_cannot_revive_a_banned_token(void **state) {
    (void)state;
    static const di_logit_bias bias[] = {{3, -1.25}, {4, 100}};
    static const int32_t allowed[] = {3, 5};
    float out[V];
    di_sample_params p = default_params();
    p.logit_bias = bias;
    p.num_logit_bias = 2;
    p.allowed_token_ids = (di_token_list){allowed, 2};
    transform(&p, NULL, NULL, 0, out);
    for (int i = 0; i < V; i++) {
        float wanted = i == 3 ? row[3] - 1.25f : i == 5 ? row[5] : -INFINITY;
        assert_true(out[i] == wanted);
    }
}

static void test_penalties_equal_float64(void **state) {
    (void)state;
    enum { ROUNDS = 300 };
    dice d = {5, 0};
    for (int round = 0; round < ROUNDS; round++) {
        int32_t prompt[30], output[30];
        int in_prompt[V] = {0}, in_output[V] = {0};
        float out[V];
        di_error err;
        di_sample_history h;
        di_sample_params p = default_params();
        p.repetition_penalty = round % 4 ? 0.3 + 2 * roll_unit(&d) : 1;
        p.presence_penalty = round % 3 ? 4 * roll_unit(&d) - 2 : 0;
        p.frequency_penalty = round % 5 ? 4 * roll_unit(&d) - 2 : 0.5;
        for (int i = 0; i < 30; i++) {
            in_prompt[prompt[i] = roll_below(&d, V)]++;
            in_output[output[i] = roll_below(&d, 10)]++;
        }
        assert_true(di_sample_history_create(&h, &p, V, prompt, 30, 30, &err));
        for (int i = 0; i < 30; i++) {
            assert_true(di_sample_history_push(&h, output[i], &err));
        }
        transform(&p, &h, NULL, 30, out);
        for (int i = 0; i < V; i++) {
            double x = (double)row[i], scale = fabs(x) + 1;
            if (in_prompt[i] || in_output[i]) {
                x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
            }
            x -= in_output[i] ? p.frequency_penalty * in_output[i] + p.presence_penalty : 0;
            scale += fabs(x) + fabs(p.frequency_penalty * in_output[i]);
            assert_true(fabs((double)out[i] - x) <= 4 * scale * 0x1p-24); /* five roundings */
        }
        di_sample_history_destroy(&h);
    }
}

static void test_extreme_values_stay_legal(void **state) {
    (void)state;
    float x[4] = {3e38f, -3e38f, -1, 0};
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.repetition_penalty = 100; /* -3e38 * 100 would be -infinity */
    assert_true(di_sample_history_create(&h, &p, 4, (int32_t[]){0, 1}, 2, 0, &err));
    float out[4];
    di_transform_row(&(di_transform){&p, &h, NULL, 0}, di_row_kernels_best(), x, 4, out);
    assert_true(out[0] == 3e38f / 100 && out[1] == -FLT_MAX && out[2] == -1);
    p.repetition_penalty = 1e-6; /* 3e38 / 1e-6 would be +infinity */
    di_transform_row(&(di_transform){&p, &h, NULL, 0}, di_row_kernels_best(), x, 4, out);
    assert_true(out[0] == FLT_MAX);
    assert_int_equal(sample(&p, &(di_sample_input){.logits = x, .history = &h, .seed = 1}, 4).token,
                     0);
    di_sample_history_destroy(&h);
}

static void test_bad_words_stop_at_their_last_token(void **state) {
    (void)state;
    static const int32_t one[] = {27}, three[] = {1, 2, 3};
    static const di_token_list words[] = {{one, 1}, {three, 3}};
    float out[V];
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.bad_words = words;
    p.num_bad_words = 2;
    assert_true(di_sample_history_create(&h, &p, V, (int32_t[]){1, 2}, 2, 8, &err));
    static const int32_t output[] = {1, 2, 2, 1, 2};
    static const bool banned[] = {false, false, true, false, false, true};
    for (int i = 0; i <= 5; i++) {
        transform(&p, &h, NULL, i, out);
        assert_true(out[27] == -INFINITY);
        assert_int_equal(out[3] == -INFINITY, banned[i]);
        assert_true(out[1] == row[1] && out[2] == row[2]);
        assert_true(i == 5 || di_sample_history_push(&h, output[i], &err));
    }
    /* Without a history only single tokens can be bad. */
    transform(&p, NULL, NULL, 0, out);
    assert_true(out[27] == -INFINITY && out[3] == row[3]);
    di_sample_history_destroy(&h);
}

static void test_min_tokens_bans_all_that_would_end_the_answer(void **state) {
    (void)state;
    static const int32_t stop[] = {27, 54};
    float out[V];
    di_sample_params p = default_params();
    p.eos_token_id = 1;
    p.stop_token_ids = (di_token_list){stop, 2};
    p.min_tokens = 3;
    for (int n = 0; n < 3; n++) {
        transform(&p, NULL, NULL, n, out);
        assert_true(out[1] == -INFINITY && out[27] == -INFINITY && out[54] == -INFINITY);
        assert_true(out[2] == row[2]);
    }
    p.ignore_eos = true; /* it would not end the answer */
    transform(&p, NULL, NULL, 0, out);
    assert_true(out[1] == row[1] && out[27] == -INFINITY);
    p.shape.temperature = 0;
    di_sample_input in = {.logits = row, .num_output = 2};
    assert_int_not_equal(sample(&p, &in, V).token, 27);
    in.num_output = 3;
    assert_int_equal(sample(&p, &in, V).token, 27);
}

static void test_the_mask_comes_before_penalties_and_filters(void **state) {
    (void)state;
    uint32_t mask[4] = {0, 0, 0, 0};
    mask[0] = 1u << 3 | 1u << 31;
    mask[3] = 1u << 3 | 1u << 4; /* ids 99 and, beyond the vocabulary, 100 */
    float out[V] = {0};
    di_sample_params p = default_params();
    transform(&p, NULL, mask, 0, out);
    for (int i = 0; i < V; i++) {
        bool legal = i == 3 || i == 31 || i == 99;
        assert_true(out[i] == (legal ? row[i] : -INFINITY));
    }
    /* Of three legal tokens top_k 2 leaves two, though far better ones are masked out. */
    p.shape.top_k = 2;
    bool seen[V] = {false};
    for (uint64_t i = 0; i < 300; i++) {
        di_sampled s =
            sample(&p, &(di_sample_input){.logits = row, .grammar_mask = mask, .position = i}, V);
        assert_int_equal(s.kept, 2);
        seen[s.token] = true;
    }
    assert_int_equal(seen[3] + seen[31] + seen[99], 2);
}

static void test_nothing_legal_is_an_error_of_the_request(void **state) {
    (void)state;
    static const int32_t allowed[] = {4};
    static const uint32_t empty[4] = {0}, other[4] = {1u << 5};
    const uint32_t *masks[] = {empty, other};
    for (int i = 0; i < 2; i++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            di_error err = {0};
            di_sampled s;
            di_sample_params p = default_params();
            p.shape.temperature = !greedy;
            p.allowed_token_ids = (di_token_list){allowed, i ? 1 : 0};
            p.allowed_token_ids.ids = i ? allowed : NULL;
            di_sample_input in = {.logits = row, .grammar_mask = masks[i]};
            assert_false(di_sample_row(&p, &in, scratch_of(V), &s, &err));
            assert_int_equal(err.code, DI_ERR_ARGUMENT);
            assert_non_null(strstr(err.message, "no legal token"));
        }
    }
}

/* A NaN is the model's failure even where a mask would hide it; the next row is none the worse. */
static void test_a_bad_row_harms_only_itself(void **state) {
    (void)state;
    static const uint32_t mask[4] = {~1u, ~0u, ~0u, ~0u};
    float bad[V];
    di_sample_params p = default_params();
    di_sample_input good = {.logits = row, .seed = 3, .position = 9};
    int32_t alone = sample(&p, &good, V).token;
    for (int at = 0; at < V; at += 33) {
        for (int kind = 0; kind < 3; kind++) {
            di_error err = {0};
            di_sampled s;
            memcpy(bad, row, sizeof bad);
            bad[at] = kind == 0 ? NAN : kind == 1 ? -NAN : INFINITY;
            di_sample_input in = {.logits = bad, .grammar_mask = mask};
            assert_false(di_sample_row(&p, &in, scratch_of(V), &s, &err));
            assert_non_null(strstr(err.message, "bad logits"));
            assert_int_equal(sample(&p, &good, V).token, alone);
        }
    }
}

static void test_golden_tokens_are_forced(void **state) {
    (void)state;
    static const int32_t golden[] = {8, -1, 9};
    di_sample_params p = default_params();
    p.golden_token_ids = (di_token_list){golden, 3};
    for (int greedy = 0; greedy < 2; greedy++) {
        p.shape.temperature = !greedy;
        for (int64_t n = 0; n < 5; n++) {
            di_sampled s = sample(&p, &(di_sample_input){.logits = row, .num_output = n}, V);
            bool forced = n == 0 || n == 2;
            assert_int_equal(s.forced, forced);
            assert_true(!forced || s.token == golden[n]);
            assert_true(forced || !greedy || s.token == 27);
        }
    }
}

static void test_sampling_a_row_allocates_nothing(void **state) {
    (void)state;
    static const di_logit_bias bias[] = {{3, -1.25}};
    di_sample_params p = default_params();
    p.logit_bias = bias;
    p.num_logit_bias = 1;
    p.shape.top_p = 0.7;
    p.logprobs = true;
    p.num_logprobs = 20;
    di_sampled s;
    di_sample_scratch *scratch = scratch_of(V);
    di_alloc_fail_at(0);
    assert_true(di_sample_row(&p, &(di_sample_input){.logits = row}, scratch, &s, NULL));
    assert_int_equal(di_alloc_fail_at(0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plain_request_needs_no_copy),
        cmocka_unit_test(test_the_given_logits_are_never_written),
        cmocka_unit_test(test_bias_adds_and_cannot_revive_a_banned_token),
        cmocka_unit_test(test_penalties_equal_float64),
        cmocka_unit_test(test_extreme_values_stay_legal),
        cmocka_unit_test(test_bad_words_stop_at_their_last_token),
        cmocka_unit_test(test_min_tokens_bans_all_that_would_end_the_answer),
        cmocka_unit_test(test_the_mask_comes_before_penalties_and_filters),
        cmocka_unit_test(test_nothing_legal_is_an_error_of_the_request),
        cmocka_unit_test(test_a_bad_row_harms_only_itself),
        cmocka_unit_test(test_golden_tokens_are_forced),
        cmocka_unit_test(test_sampling_a_row_allocates_nothing),
    };
    int failed = cmocka_run_group_tests(tests, fill_row, NULL);
    scratch_of(0);
    return failed;
}

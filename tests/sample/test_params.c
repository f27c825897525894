/* Ranges of parameters, their copy, and the history of a sequence. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "sample/rows.h"

enum { V = 100 };

/* The message must begin with the field's name and hold `says`. */
static void check_refused(const di_sample_params *p, const char *name, const char *says) {
    di_error err = {0};
    assert_false(di_sample_params_check(p, V, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    if (strncmp(err.message, name, strlen(name)) != 0 || !strstr(err.message, says)) {
        fail_msg("'%s' does not begin with '%s' or lacks '%s'", err.message, name, says);
    }
}

static void check_allowed(const di_sample_params *p) {
    di_error err = {0};
    if (!di_sample_params_check(p, V, &err)) {
        fail_msg("%s", err.message);
    }
}

static void test_reals_out_of_range_are_named_with_value_and_range(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        double low, high, below, above;
    } fields[] = {
        {"temperature", offsetof(di_sample_params, shape.temperature), 0, 100, -0.1, 100.5},
        {"top_p", offsetof(di_sample_params, shape.top_p), 0x1p-24, 1, 0, 1.01},
        {"min_p", offsetof(di_sample_params, shape.min_p), 0, 1, -0.1, 1.1},
        {"repetition_penalty", offsetof(di_sample_params, repetition_penalty), 1e-6, 100, 0, 101},
        {"presence_penalty", offsetof(di_sample_params, presence_penalty), -2, 2, -2.1, 2.1},
        {"frequency_penalty", offsetof(di_sample_params, frequency_penalty), -2, 2, -2.1, 2.1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const double bad[] = {fields[i].below, fields[i].above, NAN, INFINITY, -INFINITY};
        const double good[] = {fields[i].low, fields[i].high};
        di_sample_params p = default_params();
        for (size_t k = 0; k < 5; k++) {
            char value[32];
            snprintf(value, sizeof value, "is %g, allowed are", bad[k]);
            memcpy((char *)&p + fields[i].offset, &bad[k], sizeof bad[k]);
            check_refused(&p, fields[i].name, value);
        }
        for (size_t k = 0; k < 2; k++) {
            memcpy((char *)&p + fields[i].offset, &good[k], sizeof good[k]);
            check_allowed(&p);
        }
    }
}

static void test_integers_out_of_range_are_named(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        int64_t low, high;
    } fields[] = {
        {"top_k", offsetof(di_sample_params, shape.top_k), -1, INT32_MAX},
        {"min_tokens", offsetof(di_sample_params, min_tokens), 0, INT32_MAX},
        {"num_logprobs", offsetof(di_sample_params, num_logprobs), 0, 1000},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const int64_t values[] = {fields[i].low - 1, fields[i].high + 1, fields[i].low,
                                  fields[i].high};
        di_sample_params p = default_params();
        for (int k = 0; k < 4; k++) {
            memcpy((char *)&p + fields[i].offset, &values[k], sizeof values[k]);
            k < 2 ? check_refused(&p, fields[i].name, "allowed are") : check_allowed(&p);
        }
    }
    di_sample_params p = default_params();
    p.eos_token_id = V;
    check_refused(&p, "eos_token_id", "is 100, allowed are -1 to 99");
    p = default_params();
    p.logprobs_mode = (di_logprobs_mode)2;
    check_refused(&p, "logprobs_mode", "2");
    p = default_params();
    di_error err = {0};
    assert_false(di_sample_params_check(&p, DI_SAMPLER_MAX_VOCAB + 1, &err));
    assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
    assert_false(di_sample_params_check(&p, 0, &err));
}

static void test_ids_must_be_known_and_named_once(void **state) {
    (void)state;
    static const int32_t outside[] = {1, V}, negative[] = {-1}, twice[] = {5, 64, 5};
    static const char *const names[] = {"allowed_token_ids", "stop_token_ids"};
    for (int list = 0; list < 2; list++) {
        di_sample_params p = default_params();
        di_token_list *at = list ? &p.stop_token_ids : &p.allowed_token_ids;
        *at = (di_token_list){outside, 2};
        check_refused(&p, names[list], "[1] is 100, allowed are token ids 0 to 99");
        *at = (di_token_list){negative, 1};
        check_refused(&p, names[list], "[0] is -1");
        *at = (di_token_list){twice, 3};
        check_refused(&p, names[list], "[2] is 5, which the list already has");
        *at = (di_token_list){twice, 2};
        check_allowed(&p);
        *at = (di_token_list){twice, 0};
        check_refused(&p, names[list], "empty");
    }
}

static void test_bias_is_checked_by_id_and_value(void **state) {
    (void)state;
    static const double bad[] = {100.5, -100.5, NAN, INFINITY};
    di_logit_bias bias[2] = {{1, 100}, {2, -100}};
    di_sample_params p = default_params();
    p.logit_bias = bias;
    p.num_logit_bias = 2;
    check_allowed(&p);
    for (int i = 0; i < 4; i++) {
        bias[1].bias = bad[i];
        check_refused(&p, "logit_bias of token 2", "allowed are -100 to 100");
    }
    bias[1] = (di_logit_bias){1, 0};
    check_refused(&p, "logit_bias[1] is 1", "already");
    bias[1].id = V;
    check_refused(&p, "logit_bias[1] is 100", "allowed");
}

static void test_bad_words_and_golden_tokens_are_checked(void **state) {
    (void)state;
    static int32_t ids[DI_MAX_BAD_WORD_TOKENS + 1] = {3, 3, -1, V};
    di_token_list word = {ids, 2};
    di_sample_params p = default_params();
    p.bad_words = &word;
    p.num_bad_words = 1;
    check_allowed(&p);
    word.count = 0;
    check_refused(&p, "bad_words[0]", "0 tokens, allowed are 1 to 64");
    word.count = DI_MAX_BAD_WORD_TOKENS + 1;
    check_refused(&p, "bad_words[0]", "65 tokens");
    word.count = 3;
    check_refused(&p, "bad_words[0]", "is -1");
    p.num_bad_words = DI_MAX_BAD_WORDS + 1;
    check_refused(&p, "bad_words", "1025 sequences");
    p = default_params();
    p.golden_token_ids = (di_token_list){ids, 3}; /* -1 leaves a place free */
    check_allowed(&p);
    p.golden_token_ids.count = 4;
    check_refused(&p, "golden_token_ids[3]", "100");
}

/* ---- the copy ---------------------------------------------------------------------------------*/

static void test_a_clone_does_not_need_the_original(void **state) {
    (void)state;
    int32_t ids[] = {1, 2, 3}, word[] = {7, 8};
    di_token_list words[] = {{word, 2}, {ids, 1}};
    di_logit_bias bias[] = {{4, 0.5}};
    di_sample_params p = default_params();
    p.shape.top_k = 9;
    p.allowed_token_ids = (di_token_list){ids, 3};
    p.stop_token_ids = (di_token_list){ids, 2};
    p.golden_token_ids = (di_token_list){ids + 1, 1};
    p.bad_words = words;
    p.num_bad_words = 2;
    p.logit_bias = bias;
    p.num_logit_bias = 1;
    di_error err = {0};
    di_sample_params *copy = di_sample_params_clone(&p, &err);
    assert_non_null(copy);
    memset(ids, -1, sizeof ids);
    memset(word, -1, sizeof word);
    memset(words, 0, sizeof words);
    memset(bias, 0, sizeof bias);
    check_allowed(copy);
    assert_int_equal(copy->shape.top_k, 9);
    assert_int_equal(copy->allowed_token_ids.ids[2], 3);
    assert_int_equal(copy->stop_token_ids.count, 2);
    assert_int_equal(copy->golden_token_ids.ids[0], 2);
    assert_int_equal(copy->bad_words[0].ids[1], 8);
    assert_int_equal(copy->bad_words[1].ids[0], 1);
    assert_int_equal(copy->logit_bias[0].id, 4);
    di_sample_params_free(copy);
    di_sample_params_free(NULL);
}

/* ---- the history ------------------------------------------------------------------------------*/

static void check_counts(const di_sample_history *h, const int *in_prompt, const int *in_output,
                         int size) {
    size_t distinct = 0;
    for (int id = 0; id < size; id++) {
        distinct += in_prompt[id] || in_output[id];
    }
    assert_int_equal(h->num_tokens, distinct);
    for (size_t i = 0; i < h->num_tokens; i++) {
        int id = h->tokens[i].id;
        assert_int_equal(h->tokens[i].in_prompt, in_prompt[id] > 0);
        assert_int_equal(h->tokens[i].in_output, in_output[id]);
    }
}

static void test_history_counts_like_an_array(void **state) {
    (void)state;
    enum { SIZE = 5000 };
    static int in_prompt[SIZE], in_output[SIZE];
    static int32_t prompt[3000];
    dice d = {4, 0};
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.frequency_penalty = 1;
    for (int i = 0; i < 3000; i++) {
        in_prompt[prompt[i] = roll_below(&d, SIZE / 2)]++;
    }
    assert_true(di_sample_history_create(&h, &p, SIZE, prompt, 3000, 10, &err));
    for (int i = 0; i < 20000; i++) { /* far beyond what was reserved */
        int32_t token = roll_below(&d, i < 10000 ? 300 : SIZE);
        in_output[token]++;
        assert_true(di_sample_history_push(&h, token, &err));
    }
    check_counts(&h, in_prompt, in_output, SIZE);
    di_sample_history_destroy(&h);
    assert_null(h.tokens);
}

static void test_history_does_not_allocate_within_what_was_reserved(void **state) {
    (void)state;
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.presence_penalty = 1;
    assert_true(di_sample_history_create(&h, &p, 1000, (int32_t[]){1, 2}, 2, 500, &err));
    const di_token_count *tokens = h.tokens;
    const uint32_t *table = h.table;
    di_alloc_fail_at(0);
    for (int32_t i = 0; i < 500; i++) {
        assert_true(di_sample_history_push(&h, 2 + i, &err));
    }
    assert_int_equal(di_alloc_fail_at(0), 0);
    assert_ptr_equal(h.tokens, tokens);
    assert_ptr_equal(h.table, table);
    di_sample_history_destroy(&h);
    /* A huge max_tokens reserves no more than the vocabulary. */
    assert_true(di_sample_history_create(&h, &p, 1000, NULL, 0, SIZE_MAX, &err));
    assert_int_equal(h.capacity, 1000);
    di_sample_history_destroy(&h);
}

static void test_history_keeps_nothing_that_nobody_asks_for(void **state) {
    (void)state;
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    assert_true(di_sample_history_create(&h, &p, V, (int32_t[]){1}, 1, 100, &err));
    assert_true(di_sample_history_push(&h, 3, &err));
    assert_null(h.tokens);
    assert_null(h.last);
    di_sample_history_destroy(&h);
}

static void test_history_ends_with_its_last_tokens(void **state) {
    (void)state;
    static const int32_t word[] = {1, 2, 3, 4};
    static const di_token_list words[] = {{word, 4}};
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.bad_words = words;
    p.num_bad_words = 1;
    /* The prompt's end is not the answer's: words across the border do not count. */
    assert_true(di_sample_history_create(&h, &p, V, word, 3, 0, &err));
    assert_true(di_sample_history_ends_with(&h, word, 0));
    assert_false(di_sample_history_ends_with(&h, word, 3));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            assert_false(di_sample_history_ends_with(&h, word, 3) && i > 0);
            assert_true(di_sample_history_push(&h, word[i], &err));
        }
        assert_true(di_sample_history_ends_with(&h, word, 3));
        assert_true(di_sample_history_ends_with(&h, word + 1, 2));
        assert_false(di_sample_history_ends_with(&h, word, 2));
    }
    di_sample_history_destroy(&h);
}

/* ---- short memory (builds with fault injection) -----------------------------------------------*/

static bool make_everything(di_error *err) {
    int32_t word[] = {1, 2}, prompt[200];
    di_token_list words[] = {{word, 2}};
    di_sample_params p = default_params();
    p.bad_words = words;
    p.num_bad_words = 1;
    p.repetition_penalty = 2;
    p.allowed_token_ids = (di_token_list){word, 2};
    for (int i = 0; i < 200; i++) {
        prompt[i] = i;
    }
    di_sample_history h = {0};
    di_sample_params *copy = NULL;
    di_sample_scratch *s = NULL;
    bool ok = di_sample_params_check(&p, 1000, err) && (copy = di_sample_params_clone(&p, err)) &&
              di_sample_history_create(&h, copy, 1000, prompt, 200, 3, err) &&
              (s = di_sample_scratch_create(1000, err));
    for (int32_t i = 200; ok && i < 900; i++) {
        ok = di_sample_history_push(&h, i, err);
    }
    di_sample_history_destroy(&h);
    di_sample_params_free(copy);
    di_sample_scratch_destroy(s);
    return ok;
}

static void test_every_failed_allocation_is_reported_and_leaks_nothing(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 100; n++) {
        di_error err = {0};
        di_alloc_fail_at(n);
        bool ok = make_everything(&err);
        di_alloc_fail_at(0);
        if (ok) {
            return;
        }
        assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    }
    fail_msg("it never worked");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reals_out_of_range_are_named_with_value_and_range),
        cmocka_unit_test(test_integers_out_of_range_are_named),
        cmocka_unit_test(test_ids_must_be_known_and_named_once),
        cmocka_unit_test(test_bias_is_checked_by_id_and_value),
        cmocka_unit_test(test_bad_words_and_golden_tokens_are_checked),
        cmocka_unit_test(test_a_clone_does_not_need_the_original),
        cmocka_unit_test(test_history_counts_like_an_array),
        cmocka_unit_test(test_history_does_not_allocate_within_what_was_reserved),
        cmocka_unit_test(test_history_keeps_nothing_that_nobody_asks_for),
        cmocka_unit_test(test_history_ends_with_its_last_tokens),
        cmocka_unit_test(test_every_failed_allocation_is_reported_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What di_model_forward and the cache refuse, and that a refusal leaves everything as it was. */
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

static void refused(fixture *f, const di_seq *seq, const int32_t *tokens, int n, int num_logits,
                    int64_t replay_from, float *logits, const char *why) {
    di_error err = {0};
    di_model_rows part = di_model_next_rows(seq, tokens, n);
    part.num_logits = num_logits;
    part.replay_from = replay_from;
    assert_false(di_model_forward(f->m, &part, 1, logits, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    if (!strstr(err.message, why)) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, why);
    }
}

static void test_wrong_calls_are_refused_with_what_is_allowed(void **state) {
    (void)state;
    fixture f;
    di_error err = {0};
    di_seq seq;
    fixture_open(&f, testdata_path("tiny"), BACKEND_CPU, 8);
    float *logits = test_malloc(8 * 512 * sizeof *logits);
    int32_t ids[300] = {0}, high[] = {5, 512}, low[] = {-1};
    assert_true(di_seq_open(f.cache, &seq, (di_hash){0}, &err));
    refused(&f, &seq, ids, 1, 1, 0, logits, "blocks reserved for 0 tokens");
    assert_true(di_seq_reserve(f.cache, &seq, 300, &err));
    refused(&f, &seq, ids, 0, 0, 0, logits, "0 tokens, at least 1");
    refused(&f, &seq, ids, 9, 1, 0, logits, "9 tokens in a step");
    refused(&f, &seq, ids, 257, 1, 0, logits, "context is 256");
    refused(&f, &seq, high, 2, 1, 0, logits, "token id 512 at position 1, allowed are 0 to 511");
    refused(&f, &seq, low, 1, 1, 0, logits, "token id -1");
    refused(&f, &seq, ids, 2, 3, 0, logits, "logits of 3 rows");
    refused(&f, &seq, ids, 4, 3, 2, logits, "2 can have them");
    refused(&f, &seq, ids, 1, 1, 0, NULL, "allowed are 0");
    fixture_forward(&f, &seq, ids, 4, 4, 0, logits);
    assert_int_equal(seq.len, 4);
    di_seq_close(f.cache, &seq);
    test_free(logits);
    fixture_close(&f);
}

static void test_a_full_cache_says_what_is_free(void **state) {
    (void)state;
    fixture f;
    di_error err = {0};
    di_seq seqs[9] = {0};
    fixture_open(&f, "models/demo", BACKEND_CPU, 8);
    for (int i = 0; i < 8; i++) {
        assert_true(di_seq_open(f.cache, &seqs[i], (di_hash){0}, &err));
    }
    assert_false(di_seq_open(f.cache, &seqs[8], (di_hash){0}, &err));
    assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    assert_true(di_seq_reserve(f.cache, &seqs[0], 32 * 128, &err));
    assert_true(di_seq_reserve(f.cache, &seqs[1], 28 * 128, &err));
    assert_false(di_seq_reserve(f.cache, &seqs[2], 5 * 128, &err));
    assert_non_null(strstr(err.message, "4 are free"));
    assert_int_equal(di_cache_free_blocks(f.cache), 4);
    for (int i = 0; i < 8; i++) {
        di_seq_close(f.cache, &seqs[i]);
        di_seq_close(f.cache, &seqs[i]); /* closing twice is harmless */
    }
    assert_int_equal(di_cache_free_blocks(f.cache), 64);
    assert_int_equal(di_cache_free_slots(f.cache), 8);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_calls_are_refused_with_what_is_allowed),
        cmocka_unit_test(test_a_full_cache_says_what_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

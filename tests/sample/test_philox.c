/* Philox4x32-10 against published vectors. */
#include <stdint.h>
#include <string.h>

#include "sample/philox.h"
#include "support/cmocka.h"

static void check(uint64_t key, const uint32_t counter[4], const uint32_t expected[4]) {
    uint32_t out[4];
    di_philox(key, counter, out);
    assert_memory_equal(out, expected, sizeof out);
}

static void test_words_equal_the_published_ones(void **state) {
    (void)state;
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u}, seven[4] = {0, 0, 7, 0};
    check(0, zero, (const uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check(0x0123456789abcdef, seven,
          (const uint32_t[]){0x34b23a77, 0x8ec43d26, 0xfdbf9305, 0xa6c02cf2});
    check(~(uint64_t)0, ones, (const uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

static void test_position_kind_and_index_fill_the_counter(void **state) {
    (void)state;
    uint32_t a[4], b[4];
    di_random_words(42, 10, DI_RANDOM_TARGET, 0, a);
    const uint32_t expected[4] = {0x864dde19, 0xaa155881, 0x55728bd6, 0xa5edc691};
    assert_memory_equal(a, expected, sizeof a);
    di_random_words(42, 0x300000010, DI_RANDOM_COUPLED, 5, a);
    di_philox(42, (const uint32_t[]){0x10, 3, 4, 5}, b);
    assert_memory_equal(a, b, sizeof a);
}

static void test_choices_have_distinct_repeatable_seeds(void **state) {
    (void)state;
    enum { SEEDS = 20, CHOICES = 100 };
    uint64_t seen[SEEDS * CHOICES];
    int count = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        for (uint32_t choice = 0; choice < CHOICES; choice++) {
            uint64_t s = di_seed_of_choice(seed, choice);
            assert_int_equal(s, di_seed_of_choice(seed, choice));
            for (int i = 0; i < count; i++) {
                assert_true(s != seen[i]);
            }
            seen[count++] = s;
        }
        assert_int_equal(di_seed_of_choice(seed, 0), seed); /* one choice or many: the same first */
    }
    uint32_t words[4];
    di_philox(42, (const uint32_t[]){3, 0, 5, 0}, words);
    assert_int_equal(di_seed_of_choice(42, 3), (uint64_t)words[0] << 32 | words[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_equal_the_published_ones),
        cmocka_unit_test(test_position_kind_and_index_fill_the_counter),
        cmocka_unit_test(test_choices_have_distinct_repeatable_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

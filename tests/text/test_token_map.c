/* The token map against the released model's digest and the demo model's class count. */
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/text_data.h"
#include "text/token_map.h"

static int32_t *build(const di_tokenizer *tok, int32_t size, int32_t *classes) {
    int32_t *map = malloc((size_t)size * sizeof *map);
    di_error err = {0};
    if (!di_token_map_build(tok, size, map, classes, &err)) {
        fail_msg("%s", err.message);
    }
    return map;
}

static void test_v41_map_has_the_released_digest(void **state) {
    (void)state;
    di_tokenizer *tok = open_test_tokenizer("tokenizer-v41");
    int32_t classes = 0, *map = build(tok, 129280, &classes);
    assert_int_equal(classes, 99092);
    assert_int_equal(map[2], 2);
    char digest[65];
    sha256_hex(map, 129280 * sizeof *map, digest);
    assert_string_equal(digest, "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
    free(map);
    di_tokenizer_close(tok);
}

static void test_demo_map_has_the_configured_classes(void **state) {
    (void)state;
    di_error err = {0};
    di_tokenizer *tok = di_tokenizer_open("models/demo", &err);
    assert_non_null(tok);
    int32_t classes = 0, *map = build(tok, 4160, &classes);
    assert_int_equal(classes, 3501);
    free(map);
    di_tokenizer_close(tok);
}

static int32_t class_of(const di_tokenizer *tok, const int32_t *map, const char *text) {
    di_ids ids = {0};
    assert_true(di_tokenizer_encode(tok, text, strlen(text), DI_ENCODE_PLAIN, &ids, NULL));
    assert_int_equal(ids.count, 1);
    int32_t class = map[ids.data[0]];
    di_ids_free(&ids);
    return class;
}

static void test_case_accents_and_space_do_not_part_tokens(void **state) {
    (void)state;
    di_tokenizer *tok = open_test_tokenizer("tokenizer-v41");
    int32_t classes, *map = build(tok, 129280, &classes);
    assert_int_equal(class_of(tok, map, "The"), class_of(tok, map, " the"));
    assert_int_equal(class_of(tok, map, "É"), class_of(tok, map, "e"));
    assert_int_equal(class_of(tok, map, "\n\n"), class_of(tok, map, " "));
    assert_int_not_equal(class_of(tok, map, "the"), class_of(tok, map, "a"));
    assert_int_not_equal(class_of(tok, map, " "), class_of(tok, map, "a"));
    free(map);
    di_tokenizer_close(tok);
}

static void test_an_id_without_token_is_refused_by_number(void **state) {
    (void)state;
    di_tokenizer *tok = open_test_tokenizer("tokenizer-flags");
    int32_t size = di_tokenizer_vocab_size(tok), classes;
    int32_t *map = malloc(((size_t)size + 1) * sizeof *map);
    di_error err = {0};
    assert_false(di_token_map_build(tok, size + 1, map, &classes, &err));
    char number[16];
    snprintf(number, sizeof number, "token %d,", (int)size);
    assert_non_null(strstr(err.message, number));
    free(map);
    di_tokenizer_close(tok);
}

static void test_synthetic_map_covers_all_classes_in_order(void **state) {
    (void)state;
    int32_t map[10];
    di_token_map_synthetic(10, 4, map);
    const int32_t expected[10] = {0, 0, 0, 1, 1, 2, 2, 2, 3, 3};
    assert_memory_equal(map, expected, sizeof map);
}

static void test_the_digest_of_this_test_is_sha256(void **state) {
    (void)state;
    char digest[65];
    sha256_hex("abc", 3, digest);
    assert_string_equal(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_digest_of_this_test_is_sha256),
        cmocka_unit_test(test_v41_map_has_the_released_digest),
        cmocka_unit_test(test_demo_map_has_the_configured_classes),
        cmocka_unit_test(test_case_accents_and_space_do_not_part_tokens),
        cmocka_unit_test(test_an_id_without_token_is_refused_by_number),
        cmocka_unit_test(test_synthetic_map_covers_all_classes_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Messages can be shown and sent as they are, whatever names they quote. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "support/cmocka.h"

static void test_a_message_is_valid_utf8_without_controls(void **state) {
    (void)state;
    di_error err = {0};
    assert_false(
        di_fail(&err, DI_ERR_FORMAT, "name \"%s\", %.4s", "\x1b[31m\xFF\n漢\xE6\xBC", "漢字"));
    assert_int_equal(err.code, DI_ERR_FORMAT);
    assert_string_equal(err.message, "name \"?[31m??漢??\", 漢?");
    di_fail(&err, DI_ERR_FORMAT, "%s",
            "\x7f|\xC2\x80|\xC2\x9B"
            "31m|\xC2\x9F|\u00a0|");
    assert_string_equal(err.message, "?|??|??31m|??|\u00a0|");
}

static void test_a_message_that_is_cut_off_ends_in_a_whole_character(void **state) {
    (void)state;
    char name[2000];
    for (size_t i = 0; i + 3 < sizeof name; i += 3) {
        memcpy(name + i, "漢", 4);
    }
    for (int shift = 0; shift < 3; shift++) {
        di_error err = {0};
        di_fail(&err, DI_ERR_IO, "%.*s%s", shift, "xx", name);
        assert_int_equal(strlen(err.message), DI_ERROR_MESSAGE_BYTES - 1);
        assert_true(di_utf8_valid(err.message, strlen(err.message), NULL));
        di_fail_prefix(&err, "%.*s", 3 - shift, "yyy");
        assert_true(di_utf8_valid(err.message, strlen(err.message), NULL));
        errno = ENOENT;
        di_fail_errno(&err, "%.*s%s", shift, "xx", name);
        assert_true(di_utf8_valid(err.message, strlen(err.message), NULL));
    }
}

static void test_an_error_is_optional_and_prefixes_pile_up(void **state) {
    (void)state;
    di_error err = {0};
    assert_false(di_fail(NULL, DI_ERR_IO, "x"));
    assert_false(di_fail_prefix(NULL, "x"));
    errno = ENOMEM;
    assert_false(di_fail_errno(&err, "file"));
    assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    di_fail(&err, DI_ERR_FORMAT, "c");
    di_fail_prefix(&err, "b");
    di_fail_prefix(&err, "%s", "a");
    assert_string_equal(err.message, "a: b: c");
    assert_int_equal(err.code, DI_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_is_valid_utf8_without_controls),
        cmocka_unit_test(test_a_message_that_is_cut_off_ends_in_a_whole_character),
        cmocka_unit_test(test_an_error_is_optional_and_prefixes_pile_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

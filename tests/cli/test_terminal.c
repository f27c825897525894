/* Nothing in a model's text may steer a terminal. */
#include <string.h>

#include "cli/terminal.h"
#include "support/cmocka.h"

static void expect(const char *text, size_t size, const char *wanted) {
    di_buffer out = {0};
    assert_true(di_terminal_filter(text, size, &out, NULL));
    assert_int_equal(out.size, strlen(wanted));
    assert_memory_equal(out.data ? out.data : "", wanted, out.size);
    di_buffer_free(&out);
}

#define EXPECT(text, wanted) expect(text, sizeof(text) - 1, wanted)

static void test_text_newlines_and_tabs_pass(void **state) {
    (void)state;
    EXPECT("", "");
    EXPECT("a\tb\nc~", "a\tb\nc~");
    EXPECT("\xc2\xa0\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80",
           "\xc2\xa0\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80");
}

static void test_control_characters_are_replaced(void **state) {
    (void)state;
    EXPECT("\x1b[2Jx", "\xef\xbf\xbd[2Jx");
    EXPECT("a\rb\bc\x7f", "a\xef\xbf\xbd"
                          "b\xef\xbf\xbd"
                          "c\xef\xbf\xbd");
    EXPECT("\0\a", "\xef\xbf\xbd\xef\xbf\xbd");
    EXPECT("\xc2\x9b"
           "31m",
           "\xef\xbf\xbd"
           "31m"); /* C1: the one-byte CSI */
}

static void test_broken_utf8_is_replaced(void **state) {
    (void)state;
    EXPECT("a\x9b"
           "b",
           "a\xef\xbf\xbd"
           "b");
    EXPECT("a\xe4\xb8", "a\xef\xbf\xbd");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_newlines_and_tabs_pass),
        cmocka_unit_test(test_control_characters_are_replaced),
        cmocka_unit_test(test_broken_utf8_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

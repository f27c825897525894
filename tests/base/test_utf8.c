/* UTF-8 against a table of what is well-formed, over all two-byte and many longer sequences. */
#include <string.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "support/cmocka.h"

static void test_every_code_point_survives_encoding_and_decoding(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) {
            continue;
        }
        char bytes[4];
        uint32_t back;
        int length = di_utf8_encode(c, bytes);
        assert_int_equal(length, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(di_utf8_next(bytes, (size_t)length, &back), length);
        assert_int_equal(back, c);
        for (int cut = 1; cut < length; cut++) {
            assert_int_equal(di_utf8_next(bytes, (size_t)cut, &back), 0);
        }
    }
}

/* The value that lead byte and payload bits spell, whether it is allowed or not. */
static bool is_allowed(const unsigned char *p, int length) {
    uint32_t value = p[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return false;
        }
        value = value << 6 | (p[i] & 0x3Fu);
    }
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    return value >= lowest[length] && value < 0x110000 && (value < 0xD800 || value > 0xDFFF);
}

static void test_overlong_surrogate_and_too_large_forms_are_malformed(void **state) {
    (void)state;
    static const unsigned char edge[] = {0x00, 0x7F, 0x80, 0x8F, 0x90,
                                         0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (int lead = 0x80; lead < 0x100; lead++) {
        int length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 1;
        for (size_t i = 0; i < 1000; i++) {
            const unsigned char p[4] = {(unsigned char)lead, edge[i % 10], edge[i / 10 % 10],
                                        edge[i / 100]};
            uint32_t c;
            int got = di_utf8_next((const char *)p, 4, &c);
            bool good = length > 1 && is_allowed(p, length);
            assert_int_equal(c != DI_UTF8_MALFORMED, good);
            assert_true(good ? got == length : got >= 1 && got < 4);
        }
    }
}

static void test_the_first_bad_byte_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size, bad;
    } cases[] = {
        {"\xFF", 1, 0},          {"0123456789abcde\x80", 16, 15}, {"12345678\xC3", 9, 8},
        {"é\xED\xA0\x80", 5, 2}, {"12345678漢\xE6\xBC", 13, 11},  {"a\0b\xC0\x80", 5, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bad = 99;
        assert_false(di_utf8_valid(cases[i].text, cases[i].size, &bad));
        assert_int_equal(bad, cases[i].bad);
        assert_false(di_utf8_valid(cases[i].text, cases[i].size, NULL));
        assert_true(di_utf8_valid(cases[i].text, cases[i].bad, NULL));
    }
    assert_true(di_utf8_valid("", 0, NULL));
    assert_true(di_utf8_valid("a\0b", 3, NULL));
}

static void test_a_buffer_keeps_all_bytes_and_ends_in_nul(void **state) {
    (void)state;
    di_buffer b = {0};
    for (int i = 0; i < 1000; i++) {
        assert_true(di_buffer_append(&b, "ab\0", 3, NULL));
        assert_int_equal(b.data[b.size], 0);
    }
    assert_int_equal(b.size, 3000);
    assert_memory_equal(b.data + 2997, "ab\0", 3);
    assert_true(di_buffer_append_text(&b, "end", NULL));
    assert_string_equal(b.data + 3000, "end");
    di_error err = {0};
    assert_false(di_buffer_append(&b, "x", SIZE_MAX - 1, &err));
    assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    assert_int_equal(b.size, 3003);
    di_buffer_free(&b);
    assert_null(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point_survives_encoding_and_decoding),
        cmocka_unit_test(test_overlong_surrogate_and_too_large_forms_are_malformed),
        cmocka_unit_test(test_the_first_bad_byte_is_named),
        cmocka_unit_test(test_a_buffer_keeps_all_bytes_and_ends_in_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

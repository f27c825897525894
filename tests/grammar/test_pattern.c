/* Regular expressions against PCRE2 on random patterns and texts, and what is refused. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "grammar/pattern.h"
#include "support/cmocka.h"
#include "support/random.h"

static uint64_t random_state = 7;

static uint32_t random_below(uint32_t n) {
    return next_random(&random_state) % n;
}

static void add(char *out, size_t size, const char *text) {
    size_t n = strlen(out);
    snprintf(out + n, size - n, "%s", text);
}

/* A pattern of what both know. */
static void random_pattern(char *out, size_t size, int depth) {
    static const char *const atoms[] = {"a",   "b",   "é",     ".",      "[ab]", "[^a]",
                                        "\\d", "\\w", "\\W",   "[\\dx]", "日",   "\\.",
                                        "x",   "\\n", "[a-y]", "\\x61"};
    static const char *const repeats[] = {"?", "*", "+", "{2}", "{1,3}", "{0,2}", "*?", "{2,}"};
    switch (depth ? random_below(5) : 0) {
    case 0:
        add(out, size, atoms[random_below(16)]);
        break;
    case 1:
        random_pattern(out, size, depth - 1);
        random_pattern(out, size, depth - 1);
        break;
    case 2:
        add(out, size, "(?:");
        random_pattern(out, size, depth - 1);
        add(out, size, "|");
        random_pattern(out, size, depth - 1);
        add(out, size, ")");
        break;
    case 3:
        add(out, size, "(");
        random_pattern(out, size, depth - 1);
        add(out, size, ")");
        add(out, size, repeats[random_below(8)]);
        break;
    default:
        if (random_below(3) == 0) {
            add(out, size, random_below(2) ? "^" : "$");
        }
        random_pattern(out, size, depth - 1);
    }
}

static void random_text(char *out, size_t size) {
    static const char *const parts[] = {"a", "b", "é", "日", "x", "1", "_", "\n", ".", "😀"};
    out[0] = 0;
    for (uint32_t i = random_below(8); i > 0; i--) {
        add(out, size, parts[random_below(10)]);
    }
}

static bool matches(di_terms *t, di_term x, const char *text) {
    for (; *text && x != DI_TERM_NONE; text++) {
        x = di_term_step(t, x, (uint8_t)*text);
    }
    return x != DI_TERM_NONE && di_term_nullable(t, x);
}

/* `$` of ECMA-262 is PCRE2's with DOLLAR_ENDONLY; `.` leaves out four line ends, here only \n
 * occurs. */
static void check(di_terms *t, const char *pattern, di_pattern_use use) {
    int code;
    PCRE2_SIZE at;
    uint32_t anchors = use == DI_PATTERN_WHOLE ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | anchors, &code, &at, NULL);
    assert_non_null(re);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    di_error err = {0};
    di_term x;
    if (!di_pattern_compile(t, pattern, strlen(pattern), use, &x, &err)) {
        assert_non_null(strstr(err.message, "anchors inside"));
    } else {
        for (int i = 0; i < 40; i++) {
            char text[128];
            random_text(text, sizeof text);
            bool expected = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL) >= 0;
            if (matches(t, x, text) != expected) {
                fail_msg("%s on %s (%s): expected %d", pattern, text,
                         use == DI_PATTERN_WHOLE ? "whole" : "search", expected);
            }
        }
    }
    pcre2_match_data_free(data);
    pcre2_code_free(re);
}

static void test_random_patterns_match_what_pcre2_matches(void **state) {
    (void)state;
    for (int i = 0; i < 1500; i++) {
        di_terms t;
        di_error err = {0};
        char pattern[1024] = "";
        assert_true(di_terms_create(&t, 64u << 20, &err));
        random_pattern(pattern, sizeof pattern, 4);
        check(&t, pattern, i & 1 ? DI_PATTERN_WHOLE : DI_PATTERN_SEARCH);
        assert_int_equal(t.fault.code, DI_OK);
        di_terms_destroy(&t);
    }
}

static void test_what_is_no_pattern_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *says;
    } rows[] = {{"a(?=b)", "character 4: look-ahead"},
                {"(?!x)", "look-ahead"},
                {"(?<=a)b", "look-behind"},
                {"(a)\\1", "back references"},
                {"\\bx", "word boundaries"},
                {"\\p{Script=Greek}", "Script=Greek"},
                {"(?i)a", "inline flags"},
                {"(a", "not closed"},
                {"a)", "no opening"},
                {"[a", "not closed"},
                {"[z-a]", "reversed"},
                {"a{3,2}", "reversed"},
                {"a**", "repeated"},
                {"+a", "nothing to repeat"},
                {"\\", "ends behind"},
                {"\\q", "escape"},
                {"\\u12", "hexadecimal"},
                {"\xFF", "UTF-8"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_terms t;
        di_error err = {0};
        di_term x;
        assert_true(di_terms_create(&t, 64u << 20, &err));
        assert_false(di_pattern_compile(&t, rows[i].pattern, strlen(rows[i].pattern),
                                        DI_PATTERN_WHOLE, &x, &err));
        if (!strstr(err.message, rows[i].says)) {
            fail_msg("%s: %s", rows[i].pattern, err.message);
        }
        di_terms_destroy(&t);
    }
}

static void test_unicode_classes_hold_their_characters(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool in;
    } rows[] = {
        {"\\p{Lu}", "É", true},     {"\\p{Lu}", "é", false},   {"\\P{L}", "1", true},
        {"[\\p{Nd}_]", "٣", true},  {"\\s", "\xC2\xA0", true}, {"\\s", "\xEF\xBB\xBF", true},
        {"\\S", "[", true},         {"\\d", "٣", false},       {"\\w", "é", false},
        {"[а-я]+", "привет", true}, {"\\u{1F600}", "😀", true}, {"\\ud83d\\ude00", "😀", true},
        {"[^]", "\n", true},        {".", "\n", false},        {"[\\w-]", "-", true},
        {"\\cJ", "\n", true},       {"a{,2}", "a{,2}", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_terms t;
        di_error err = {0};
        di_term x;
        assert_true(di_terms_create(&t, 64u << 20, &err));
        assert_true(di_pattern_compile(&t, rows[i].pattern, strlen(rows[i].pattern),
                                       DI_PATTERN_WHOLE, &x, &err));
        if (matches(&t, x, rows[i].text) != rows[i].in) {
            fail_msg("%s on %s", rows[i].pattern, rows[i].text);
        }
        di_terms_destroy(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_patterns_match_what_pcre2_matches),
        cmocka_unit_test(test_what_is_no_pattern_is_refused_with_its_place),
        cmocka_unit_test(test_unicode_classes_hold_their_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

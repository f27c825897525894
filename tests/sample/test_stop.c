/* Stop strings: nothing of one is ever shown, everything else is, however the text is cut. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "sample/rows.h"
#include "sample/stop.h"

static di_stop_set *set_of(const char *const *strings, size_t count) {
    di_error err = {0};
    di_stop_set *set = di_stop_set_create(strings, NULL, count, &err);
    if (!set) {
        fail_msg("%s", err.message);
    }
    return set;
}

static void push(di_stop_stream *s, const char *text, size_t size, di_buffer *out) {
    di_error err;
    assert_true(di_stop_push(s, text, size, out, &err));
}

static void check_text(const di_buffer *out, const char *wanted) {
    if (out->size != strlen(wanted) || memcmp(out->data ? out->data : "", wanted, out->size) != 0) {
        fail_msg("got '%.*s', wanted '%s'", (int)out->size, out->data ? out->data : "", wanted);
    }
}

/* ---- a field case: the stop string arrives in four tokens -------------------------------------*/

static void test_no_part_of_a_stop_string_is_streamed(void **state) {
    (void)state;
    static const char *const stop[] = {"DEFGHIJ"};
    static const char *const pieces[] = {"DEF", "G", "HI", "J"};
    di_stop_set *set = set_of(stop, 1);
    di_stop_stream s;
    di_buffer out = {0};
    di_stop_start(&s, set, false);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s.match, -1);
        push(&s, pieces[i], strlen(pieces[i]), &out);
        check_text(&out, "");
    }
    assert_int_equal(s.match, 0);
    assert_int_equal(di_stop_held(&s), 0);

    di_stop_start(&s, set, false);
    for (int i = 0; i < 3; i++) {
        push(&s, pieces[i], strlen(pieces[i]), &out);
    }
    check_text(&out, "");
    push(&s, "K", 1, &out); /* it was not one after all */
    check_text(&out, "DEFGHIK");
    assert_int_equal(s.match, -1);
    di_buffer_free(&out);
    di_stop_set_destroy(set);
}

/* ---- against a search of the whole text -------------------------------------------------------*/

/* The text up to the first stop string to complete, the longest of those that end there. */
static size_t plain_end(const char *text, const char *const *stops, size_t count, bool include,
                        int *match) {
    size_t size = strlen(text);
    *match = -1;
    for (size_t end = 1; end <= size; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < count; i++) {
            size_t n = strlen(stops[i]);
            if (n > longest && n <= end && memcmp(text + end - n, stops[i], n) == 0) {
                longest = n;
                *match = (int)i;
            }
        }
        if (longest) {
            return include ? end : end - longest;
        }
    }
    return size;
}

/* What may be shown of an unfinished text: all but the longest end that begins a stop string. */
static size_t plain_shown(const char *text, size_t size, const char *const *stops, size_t count) {
    for (size_t held = size; held > 0; held--) {
        for (size_t i = 0; i < count; i++) {
            if (held < strlen(stops[i]) && memcmp(text + size - held, stops[i], held) == 0) {
                return size - held;
            }
        }
    }
    return size;
}

/* bit i of `cuts`: a new piece begins behind byte i. */
static void check_cuts(const di_stop_set *set, const char *text, const char *const *stops,
                       size_t count, bool include, uint32_t cuts) {
    int match;
    size_t size = strlen(text), end = plain_end(text, stops, count, include, &match);
    char wanted[64], seen[64];
    di_stop_stream s;
    di_buffer out = {0};
    di_error err;
    di_stop_start(&s, set, include);
    for (size_t from = 0; from < size;) {
        size_t to = from + 1;
        while (to < size && !(cuts >> (to - 1) & 1)) {
            to++;
        }
        push(&s, text + from, to - from, &out);
        if (s.match < 0) { /* all that is safe has been shown, and nothing else */
            snprintf(seen, sizeof seen, "%.*s", (int)plain_shown(text, to, stops, count), text);
            check_text(&out, seen);
            assert_int_equal(di_stop_held(&s), to - strlen(seen));
        }
        from = to;
    }
    assert_true(di_stop_flush(&s, &out, &err));
    snprintf(wanted, sizeof wanted, "%.*s", (int)end, text);
    check_text(&out, wanted);
    assert_int_equal(s.match, match);
    di_buffer_free(&out);
}

static void test_every_split_of_a_text_gives_the_same(void **state) {
    (void)state;
    static const struct {
        const char *text, *stops[4];
    } cases[] = {
        {"xDEFGHIJy", {"DEFGHIJ"}},
        {"aababaabaa", {"abaa", "bab"}},
        {"aaaaaab", {"aaab"}},
        {"abcabcabd", {"abcabd", "zz"}},
        {"abcdef", {"bc", "abcd"}}, /* the one that completes first, though it begins later */
        {"xabcd", {"cd", "bcd"}},   /* of two that complete together, the longer */
        {"xabcd", {"bcd", "cd"}},
        {"abab", {"abac"}}, /* ends inside a start: flushed */
        {"h\xc3\xa9\xc3\xa8llo", {"\xc3\xa9\xc3\xa9", "\xc3\xa8l"}},
        {"a", {"a"}},
        {"nothing", {"thin", "ingx"}},
        {"plain text", {NULL}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t count = 0, size = strlen(cases[c].text);
        while (count < 4 && cases[c].stops[count]) {
            count++;
        }
        di_stop_set *set = set_of(cases[c].stops, count);
        for (uint32_t cuts = 0; cuts < (uint32_t)1 << (size - 1); cuts++) {
            check_cuts(set, cases[c].text, cases[c].stops, count, false, cuts);
            check_cuts(set, cases[c].text, cases[c].stops, count, true, cuts);
        }
        di_stop_set_destroy(set);
    }
}

static void test_random_texts_of_two_letters_equal_a_plain_search(void **state) {
    (void)state;
    dice d = {8, 0};
    for (int round = 0; round < 20000; round++) {
        char text[31], stop[5][9];
        const char *stops[5];
        size_t count = 1 + (size_t)roll_below(&d, 5), size = (size_t)roll_below(&d, 30);
        for (size_t i = 0; i < count; i++) {
            size_t n = 1 + (size_t)roll_below(&d, 8);
            for (size_t k = 0; k < n; k++) {
                stop[i][k] = "ab"[roll_below(&d, 2)];
            }
            stop[i][n] = 0;
            stops[i] = stop[i];
        }
        for (size_t k = 0; k < size; k++) {
            text[k] = "abbaac"[roll_below(&d, 6)];
        }
        text[size] = 0;
        di_stop_set *set = set_of(stops, count);
        check_cuts(set, text, stops, count, roll_below(&d, 2), roll(&d));
        di_stop_set_destroy(set);
    }
}

/* ---- the rest of the interface ----------------------------------------------------------------*/

static void test_text_before_min_tokens_passes(void **state) {
    (void)state;
    static const char *const stop[] = {"END"};
    di_stop_set *set = set_of(stop, 1);
    di_stop_stream s;
    di_buffer out = {0};
    di_error err;
    di_stop_start(&s, set, false);
    assert_true(di_stop_pass(&s, "an END ", 7, &out, &err));
    check_text(&out, "an END ");
    push(&s, "E", 1, &out);
    assert_true(di_stop_pass(&s, "ND", 2, &out, &err)); /* held text goes with it */
    check_text(&out, "an END END");
    push(&s, "D.END!", 6, &out);
    check_text(&out, "an END ENDD.");
    assert_int_equal(s.match, 0);
    push(&s, "more", 4, &out);
    assert_true(di_stop_flush(&s, &out, &err));
    check_text(&out, "an END ENDD.");
    di_buffer_free(&out);
    di_stop_set_destroy(set);
}

static void test_strings_may_hold_nul(void **state) {
    (void)state;
    static const char *const stop[] = {"a\0b"};
    di_error err;
    di_stop_set *set = di_stop_set_create(stop, (size_t[]){3}, 1, &err);
    di_stop_stream s;
    di_buffer out = {0};
    di_stop_start(&s, set, false);
    push(&s, "xa\0", 3, &out);
    check_text(&out, "x");
    push(&s, "b", 1, &out);
    check_text(&out, "x");
    assert_int_equal(s.match, 0);
    di_buffer_free(&out);
    di_stop_set_destroy(set);
}

static void check_refused(const char *const *stops, const size_t *sizes, size_t count,
                          const char *says) {
    di_error err = {0};
    assert_null(di_stop_set_create(stops, sizes, count, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    if (!strstr(err.message, says)) {
        fail_msg("'%s' lacks '%s'", err.message, says);
    }
}

static void test_bad_stop_strings_are_refused_by_index(void **state) {
    (void)state;
    static char big[DI_MAX_STOP_BYTES + 2];
    const char *many[DI_MAX_STOP_STRINGS + 1];
    memset(big, 'x', sizeof big - 1);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        many[i] = "x";
    }
    check_refused((const char *const[]){"a", ""}, NULL, 2, "stop[1] has 0 bytes");
    check_refused((const char *const[]){big}, NULL, 1, "stop[0] has 4097 bytes, allowed are 1 to");
    check_refused((const char *const[]){"a", "b", "\xc3("}, NULL, 3, "stop[2] is not UTF-8");
    check_refused(many, NULL, DI_MAX_STOP_STRINGS + 1, "65 strings, allowed are up to 64");
    di_stop_set_destroy(set_of(many, DI_MAX_STOP_STRINGS));
    big[DI_MAX_STOP_BYTES] = 0;
    di_stop_set_destroy(set_of((const char *const[]){big}, 1));
    di_stop_set_destroy(NULL);
}

/* A long run that keeps falling back stays linear: 4 MB in well under a second's patience. */
static void test_a_hostile_text_takes_linear_time(void **state) {
    (void)state;
    static char stop[DI_MAX_STOP_BYTES + 1], text[1 << 16];
    memset(stop, 'a', DI_MAX_STOP_BYTES);
    stop[DI_MAX_STOP_BYTES - 1] = 'b';
    memset(text, 'a', sizeof text);
    di_stop_set *set = set_of((const char *const[]){stop}, 1);
    di_stop_stream s;
    di_buffer out = {0};
    di_stop_start(&s, set, false);
    for (int i = 0; i < 64; i++) {
        push(&s, text, sizeof text, &out);
    }
    assert_int_equal(out.size, 64 * sizeof text - (DI_MAX_STOP_BYTES - 1));
    push(&s, "b", 1, &out);
    assert_int_equal(s.match, 0);
    di_buffer_free(&out);
    di_stop_set_destroy(set);
}

static void test_a_failed_push_changes_nothing(void **state) {
    (void)state;
    static const char *const stop[] = {"END"};
    for (uint64_t n = 1; n < 20; n++) {
        di_error err = {0};
        di_buffer out = {0};
        di_stop_stream s;
        di_alloc_fail_at(n);
        di_stop_set *set = di_stop_set_create(stop, NULL, 1, &err);
        if (set) {
            di_stop_start(&s, set, false);
            bool first = di_stop_push(&s, "xEN", 3, &out, &err);
            if (!first) { /* the fault is spent: the same push works now */
                assert_int_equal(out.size, 0);
                push(&s, "xEN", 3, &out);
            }
            push(&s, "DE", 2, &out);
            check_text(&out, "x");
            assert_int_equal(s.match, 0);
            n = first ? 20 : n;
        }
        di_alloc_fail_at(0);
        di_buffer_free(&out);
        di_stop_set_destroy(set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_part_of_a_stop_string_is_streamed),
        cmocka_unit_test(test_every_split_of_a_text_gives_the_same),
        cmocka_unit_test(test_random_texts_of_two_letters_equal_a_plain_search),
        cmocka_unit_test(test_text_before_min_tokens_passes),
        cmocka_unit_test(test_strings_may_hold_nul),
        cmocka_unit_test(test_bad_stop_strings_are_refused_by_index),
        cmocka_unit_test(test_a_hostile_text_takes_linear_time),
        cmocka_unit_test(test_a_failed_push_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* See grammar.h. */
#include "support/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"

static const char *const pieces[] = {
    "\":", "\",", "\"", "{\"", "\"}", "\"]", "[\"", "},{", "}]", "],", "{}", "[]", "\": ", "\", \"",
    "\":\"", "\",\"", "\":[", "\":{", "null", "true", "false", "tru", "alse", "a", "ab", "abc",
    "abcd", "bcd", "name", "na", "me", "id", "value", "hello", " hello", " ", "  ", "    ", "\n",
    "\n  ", "\t", "\r\n", "1", "12", "123", "007", "0", ".", ".5", "0.", "-1", "-", "e1", "E+",
    "1e", "\\", "\\n", "\\\"", "\\u", "\\u00", "\\u0041", "\\ud8", "0041", "d83d", "é", "né",
    "日本", "本", "\xE6\x97", "\xA5", "\xF0\x9F", "\x98\x80", "😀", "x", "xx", "xyz", "x\"",
    "a\":", "b\",", "c\"}", "ab\",\"", "A", "Z", "foo", "foo\":", "bar", "baz", "@", "-01", "2020",
    "T", ":", ",", "(", ")", "((", "))", "()", "+", "*", "a+", "+a", "ba", "aaaa", "aaaaaaaa", "bb",
    "cc", "kind", "items",
    /* longer than most: see DI_VOCAB_LONG */
    "zzzzzzzzzzzz", "zzzzzzzzzzzz\",\"", "zyzyzyzyzyzyzyzyzy", "01234567890123456789",
    "----------------------------", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\"}", "the quick brown fox jumps over it", "éééééééééééééé",
    "yyyyyyyyyyyyyyyyyyyyyyyyyy\",\"name\":\"zzzzzzzzzzzzzzzz"};
enum { NUM_PIECES = sizeof pieces / sizeof *pieces };

di_vocab *test_vocab(void) {
    static char bytes[256];
    enum { COUNT = TEST_FIRST_BYTE + 256 + NUM_PIECES };
    di_vocab_token tokens[COUNT] = {{0}};
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[TEST_FIRST_BYTE + b] = (di_vocab_token){&bytes[b], 1};
    }
    for (int i = 0; i < NUM_PIECES; i++) {
        tokens[TEST_FIRST_BYTE + 256 + i] = (di_vocab_token){pieces[i], strlen(pieces[i])};
    }
    int32_t stop = TEST_STOP;
    di_error err = {0};
    di_vocab *v = di_vocab_create(tokens, COUNT, COUNT + 40, &stop, 1, &err);
    if (!v) {
        fail_msg("%s", err.message);
    }
    return v;
}

di_grammar *test_compile(const di_vocab *v, di_grammar_type type, const char *text,
                         const di_grammar_options *options) {
    di_grammar_options o;
    di_grammar_options_default(&o);
    di_error err = {0};
    di_grammar *g = di_grammar_compile(v, type, text, strlen(text), options ? options : &o, &err);
    if (!g) {
        fail_msg("%.300s\n%s", text, err.message);
    }
    return g;
}

di_error test_refused(const di_vocab *v, di_grammar_type type, const char *text) {
    di_grammar_options o;
    di_grammar_options_default(&o);
    di_error err = {0};
    di_grammar *g = di_grammar_compile(v, type, text, strlen(text), &o, &err);
    if (g) {
        di_grammar_release(g);
        fail_msg("compiles: %.300s", text);
    }
    assert_int_not_equal(err.code, DI_OK);
    return err;
}

bool test_accepts(di_grammar *g, const di_vocab *v, const char *text, size_t size) {
    di_error err = {0};
    di_matcher *m = di_matcher_create(g, &err);
    uint32_t *mask = di_calloc((size_t)v->num_words, sizeof *mask);
    assert_non_null(m);
    assert_non_null(mask);
    bool ok = true;
    for (size_t i = 0; ok && i < size; i++) {
        int32_t token = TEST_FIRST_BYTE + (uint8_t)text[i];
        if (!di_matcher_mask(m, mask, &err)) {
            fail_msg("behind %.*s of %s: %s", (int)i, text, text, err.message);
        }
        ok = mask[token / 32] >> token % 32 & 1;
        assert_int_equal(di_matcher_push(m, token, NULL), ok);
    }
    if (ok) {
        assert_true(di_matcher_mask(m, mask, &err));
        ok = mask[0] & 1;
        assert_int_equal(ok, di_matcher_may_end(m));
    }
    di_matcher_destroy(m);
    di_free(mask);
    return ok;
}

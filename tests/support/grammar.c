/* See grammar.h. */
#include "support/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/random.h"

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

enum { NUM_FIRST = TEST_FIRST_BYTE + 256 + NUM_PIECES };

/* tokens[NUM_FIRST] */
static void add_pieces(di_vocab_token *tokens) {
    static char bytes[256];
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[TEST_FIRST_BYTE + b] = (di_vocab_token){&bytes[b], 1};
    }
    for (int i = 0; i < NUM_PIECES; i++) {
        tokens[TEST_FIRST_BYTE + 256 + i] = (di_vocab_token){pieces[i], strlen(pieces[i])};
    }
}

static di_vocab *make_vocab(const di_vocab_token *tokens, int count) {
    int32_t stop = TEST_STOP;
    di_error err = {0};
    di_vocab *v = di_vocab_create(tokens, count, count + 40, &stop, 1, &err);
    if (!v) {
        fail_msg("%s", err.message);
    }
    return v;
}

di_vocab *test_vocab(void) {
    di_vocab_token tokens[NUM_FIRST] = {{0}};
    add_pieces(tokens);
    return make_vocab(tokens, NUM_FIRST);
}

/* What random tokens are made of, each of one of these alphabets: letters, numbers, characters of
 * three bytes that begin alike, and everything with parts of characters, escapes, quotes and white
 * space, among it characters that patterns treat apart. */
static const char *const alphabets[][32] = {
    {"a", "e", "g", "z"},
    {" ", "  ", "\n", "\t"},
    {"a", "e", "g", "z", "-", "A", "0", ".", "F", "G"},
    {"0", "1", "2", "9", ",", ".", "]", "-", "e"},
    {"的", "人", "一", "是", "个", "员", "名", "家", "口", "場", "が", "、"},
    {"a",        "g",      "0",      "-",    ".",      "@",      " ",        "\n",
     "\"",       "\\",     "n",      "u",    ",",      ":",      "}",        "é",
     "的",       "’",      "😀",      "ế",    "，",     "\u3000", "\xC2\xA0", "\xE3",
     "\xE2\x80", "\u1680", "\uFEFF", "\x85", "\u2028", "\xBA",   "_",        "/"},
};
enum { NUM_ALPHABETS = 6, NUM_DENSE = 6000, MAX_DENSE = 96 };

/* Most go on where another one ends, so that many lie below one beginning. */
di_vocab *test_dense_vocab(void) {
    di_vocab_token *tokens = di_calloc(NUM_FIRST + NUM_DENSE, sizeof *tokens);
    char(*texts)[MAX_DENSE] = di_calloc(NUM_DENSE, sizeof *texts);
    assert_non_null(tokens);
    assert_non_null(texts);
    add_pieces(tokens);
    uint64_t random = 1;
    for (uint32_t i = 0; i < NUM_DENSE; i++) {
        uint32_t bits = (uint32_t)(random_advance(&random) >> 32);
        if (i > 0 && bits % 4 > 0) {
            memcpy(texts[i], texts[bits / 4 % (i < 60 ? i : 60)], MAX_DENSE);
        }
        const char *const *from = alphabets[bits / 1024 % NUM_ALPHABETS];
        uint32_t size = 0, length = bits / 8192 % 16 == 0 ? 12 : 1 + bits / 8192 % 4;
        while (size < 32 && from[size]) {
            size++;
        }
        size_t used = strlen(texts[i]);
        for (uint32_t k = 0; k < length && used < MAX_DENSE - 8; k++) {
            const char *piece = from[next_random(&random) % size];
            memcpy(texts[i] + used, piece, strlen(piece) + 1);
            used += strlen(piece);
        }
        tokens[NUM_FIRST + i] = (di_vocab_token){texts[i], used};
    }
    di_vocab *v = make_vocab(tokens, NUM_FIRST + NUM_DENSE);
    di_free(tokens);
    di_free(texts);
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

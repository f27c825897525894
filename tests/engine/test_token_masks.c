/* Masks over the real vocabulary of 129,280 tokens: at random states of 200 grammars each token is
 * allowed exactly if it can be pushed, which asks the machine byte by byte and knows no tries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/vocabulary.h"
#include "grammar/doc.h"
#include "grammar/grammar.h"
#include "support/cmocka.h"
#include "support/random.h"

enum { SCHEMAS = 160, STATES = 2, MAX_FILE = 1 << 28 };

static di_tokenizer *tok;
static di_vocab *v;
static uint32_t *mask;
static uint64_t random_state = 11;

static uint32_t random_below(uint32_t n) {
    return next_random(&random_state) % n;
}

static const char *from_testdata(const char *name) {
    static char path[512];
    const char *data = getenv("TESTDATA");
    snprintf(path, sizeof path, "%s/%s", data ? data : "build/testdata", name);
    return path;
}

static void check_mask(di_matcher *m, const char *grammar) {
    di_error err;
    if (!di_matcher_mask(m, mask, &err)) {
        fail_msg("%s: %s", grammar, err.message);
    }
    for (int32_t id = 0; id < v->num_bits; id++) {
        bool in_mask = mask[id / 32] >> id % 32 & 1, taken = di_matcher_push(m, id, NULL);
        if (taken) {
            assert_true(di_matcher_rollback(m, 1));
        }
        if (taken != in_mask) {
            fail_msg("%s: behind %zu tokens, token %d: mask %d, push %d", grammar,
                     di_matcher_length(m), id, in_mask, taken);
        }
    }
}

/* Follows a text, by its tokens, and checks the masks of some of the states on the way; the masks
 * of all are asked for, so that sets are there for others to begin with. */
static void check_along(di_grammar *g, const char *text, size_t size, int states,
                        const char *grammar) {
    di_error err;
    di_ids ids = {0};
    di_matcher *m = di_matcher_create(g, &err);
    assert_true(m && di_tokenizer_encode(tok, text, size, DI_ENCODE_PLAIN, &ids, &err));
    bool ok = true;
    for (size_t i = 0; ok && i < ids.count; i++) {
        if (random_below((uint32_t)ids.count) < (uint32_t)states) {
            check_mask(m, grammar);
        }
        ok = di_matcher_mask(m, mask, &err) && di_matcher_push(m, ids.data[i], NULL);
    }
    if (ok && states > 0) {
        check_mask(m, grammar);
    }
    di_matcher_destroy(m);
    di_ids_free(&ids);
}

static void check_line(const char *json, size_t size) {
    di_error err;
    di_doc line = {0};
    di_buffer schema = {0}, data = {0};
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.any_order = random_below(2);
    assert_true(di_doc_parse(&line, json, size, &err));
    assert_true(di_doc_write(&line, di_doc_member(&line, 0, "schema"), &schema, &err));
    di_grammar *g =
        di_grammar_compile(v, DI_GRAMMAR_JSON_SCHEMA, schema.data, schema.size, &o, &err);
    assert_non_null(g);
    uint32_t tests = di_doc_member(&line, 0, "tests"), i = line.nodes[tests].first;
    if (i != DI_DOC_NONE) {
        assert_true(di_doc_write(&line, di_doc_member(&line, i, "data"), &data, &err));
        check_along(g, data.data, data.size, STATES, schema.data);
    }
    di_grammar_release(g);
    di_buffer_free(&schema);
    di_buffer_free(&data);
    di_doc_free(&line);
}

static void test_masks_of_schemas(void **state) {
    (void)state;
    di_error err;
    char *text;
    size_t size;
    assert_true(di_file_read(from_testdata("grammar/schemas.jsonl"), MAX_FILE, &text, &size, &err));
    const char *at = text;
    for (int i = 0; i < SCHEMAS && at < text + size; i++) {
        const char *end = memchr(at, '\n', (size_t)(text + size - at));
        end = end ? end : text + size;
        check_line(at, (size_t)(end - at));
        at = end + 1;
    }
    di_free(text);
}

/* Texts whose characters leave a term as it is, or do for some kinds of characters; counted ones;
 * names that some pattern takes; what is said in another script. */
static void test_masks_of_texts(void **state) {
    (void)state;
    static const struct {
        di_grammar_type type;
        const char *grammar, *text;
    } rows[] = {
        {DI_GRAMMAR_REGEX, "[a-z]+(-[a-z]+)*", "some-words-here"},
        {DI_GRAMMAR_REGEX, "[^\\s?#]*#?", "/path/to#"},
        {DI_GRAMMAR_REGEX, "\\S+( \\S+)*", "two words and 中文"},
        {DI_GRAMMAR_REGEX, "[\\u4e00-\\u9fff]*[a-z]*", "中文字符abc"},
        {DI_GRAMMAR_REGEX, "[^a-z\"]*", "1234, ABCD!"},
        {DI_GRAMMAR_REGEX, "(?:[^é]|éé)*", "caféé au lait"},
        {DI_GRAMMAR_REGEX, "\\w*", "under_score9"},
        {DI_GRAMMAR_REGEX, "[\\s\\S]*END", "all of it END"},
        {DI_GRAMMAR_REGEX, "\\p{L}+", "Wörter"},
        {DI_GRAMMAR_REGEX, "[^\\u{1F600}]{3,}", "a 😁 b"},
        {DI_GRAMMAR_EBNF, "root ::= \"<\" [^<>]* \">\" root | \"\"", "<a b><中>"},
        {DI_GRAMMAR_EBNF, "root ::= [a-z]* tail\ntail ::= \"(\" root \")\" | \"\"", "ab(cd(e))"},
        {DI_GRAMMAR_REGEX, "[a-z][a-zA-Z]*", "camelCase"},
        {DI_GRAMMAR_EBNF, "root ::= [a-z]* tail\ntail ::= [A-Z] root | \"\"", "camelCase"},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^/[^\\\\s?#]*$\"}",
         "\"/usr/local\""},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\\S+$\",\"minLength\":3}",
         "\"word\\u0041中\""},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":20}", "\"中文 and words\""},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":40,\"maxLength\":90}",
         "\"longer than forty characters it is, and more\""},
        {DI_GRAMMAR_JSON_SCHEMA,
         "{\"properties\":{\"name\":{\"type\":\"string\"},\"number\":{}},\"patternProperties\":"
         "{\"^x_[a-z]*$\":{\"type\":\"null\"}},\"type\":\"object\"}",
         "{\"name\":\"a\",\"numb\":1,\"x_y\":null,\"中\":2}"},
        {DI_GRAMMAR_JSON_SCHEMA,
         "{\"properties\":{\"name\":{},\"names\":{},\"other\":{}},\"required\":[\"other\"],"
         "\"type\":\"object\"}",
         "{\"name\":\"a\",\"names\":[{\"a\":[]}],\"other\":0,\"name2\":1}"},
        {DI_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z0-9_]+$\"},"
         "\"additionalProperties\":{\"type\":[\"integer\",\"string\"]}}",
         "{\"snake_case\":1,\"b2\":\"text\"}"},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"format\":\"uri\",\"type\":\"string\"}",
         "\"https://example.org/a?b=c#d\""},
        {DI_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"string\",\"pattern\":\"\\\\d+-[a-f0-9]*-[a-f]{24}\",\"minLength\":35}",
         "\"1-60f6f7-abcdefabcdefabcdefabcdef and more\""},
        {DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(a|b)c$\",\"minLength\":9}",
         "\"abcabc to the bc\""},
        {DI_GRAMMAR_JSON_SCHEMA, "{}", "{\"any\":[\"thing\",{\"at\":\"all\"},-1.5e3,null]}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int twice = 0; twice < 2; twice++) {
            di_error err;
            di_grammar_options o;
            di_grammar_options_default(&o);
            o.any_order = twice;
            di_grammar *g = di_grammar_compile(v, rows[i].type, rows[i].grammar,
                                               strlen(rows[i].grammar), &o, &err);
            if (!g) {
                fail_msg("%s: %s", rows[i].grammar, err.message);
            }
            check_along(g, rows[i].text, strlen(rows[i].text), 8, rows[i].grammar);
            di_grammar_release(g);
        }
    }
}

static int open_vocabulary(void **state) {
    (void)state;
    di_error err;
    tok = di_tokenizer_open(from_testdata("tokenizer-v4"), &err);
    assert_non_null(tok);
    v = di_vocabulary_create(tok, di_tokenizer_vocab_size(tok),
                             di_tokenizer_id(tok, "<｜end▁of▁sentence｜>"), &err);
    assert_non_null(v);
    mask = di_calloc((size_t)v->num_words, sizeof *mask);
    return mask ? 0 : -1;
}

static int close_vocabulary(void **state) {
    (void)state;
    di_free(mask);
    di_vocab_destroy(v);
    di_tokenizer_close(tok);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_of_schemas),
        cmocka_unit_test(test_masks_of_texts),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}

/* Masks against trying every token, on random states of many grammars; rollback and forks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/grammar.h"
#include "support/random.h"

static di_vocab *v;
static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    return next_random(&random_state) % n;
}

static const char *const schemas[] = {
    "true",
    "{\"type\":\"object\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"id\":{\"type\":"
    "\"integer\"},\"value\":{}},\"required\":[\"id\"],\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":\"foo\"},\"ab\":{\"enum\":[1,\"x\",null]"
    "}},"
    "\"required\":[\"ab\"]}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}",
    "{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"maxLength\":4}",
    "{\"type\":\"string\",\"pattern\":\"b\"}",
    "{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":123}",
    "{\"type\":\"integer\",\"multipleOf\":3,\"minimum\":4,\"maximum\":130}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"x\":{\"type\":"
    "\"integer\"}},\"required\":[\"kind\",\"x\"]},{\"type\":\"object\",\"properties\":{\"kind\":"
    "{\"const\":\"ab\"}},\"required\":[\"kind\"]}]}",
    "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"null\"}},"
    "\"additionalProperties\":{\"type\":\"boolean\"},\"minProperties\":1}",
    "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"items\":{\"type\":\"array\","
    "\"items\":"
    "{\"$ref\":\"#/$defs/t\"}}},\"additionalProperties\":false}},\"$ref\":\"#/$defs/t\"}",
    "{\"type\":\"array\",\"contains\":{\"const\":1},\"maxItems\":3}",
    "{\"enum\":[\"日本\",\"é\",\"a\\nb\",[1,{\"a\":2}],-1.50]}",
    "{\"not\":{\"type\":[\"object\",\"array\",\"number\"]}}",
    "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\",\"minimum\":2}]}",
    "{\"format\":\"date\",\"type\":\"string\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^@]+@[a-z]+$\",\"maxLength\":40}",
    "{\"type\":\"string\",\"pattern\":\"^(a{30}|b)+$\",\"maxLength\":45}",
    "{\"type\":\"string\",\"pattern\":\"^.{0,3}x.{20}$\",\"minLength\":9,\"maxLength\":32}",
    "{\"type\":\"string\",\"pattern\":\"\\\\S\",\"minLength\":20,\"maxLength\":30}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1,12,null]}}",
    "{\"anyOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{"
    "\"ab\":"
    "{\"const\":2}},\"required\":[\"ab\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
    "{\"propertyNames\":{\"maxLength\":2},\"type\":\"object\",\"maxProperties\":2}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"maxLength\":3}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":"
    "\"^(a|ab|\\\"|é)$\"},\"minItems\":2}",
    "{\"type\":\"string\",\"pattern\":\"^[x-z0-9]{12,14}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^(zy|z){20,}$\"}",
    "{\"type\":\"string\",\"maxLength\":26}",
    "{\"type\":\"string\",\"minLength\":28,\"maxLength\":31}",
    "{\"type\":\"string\",\"pattern\":\"^(?:\\\\S+\\\\s+){0,2}\\\\S+$\",\"maxLength\":44}",
    "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\",\"maxLength\":27},\"name\":{"
    "\"type\":\"string\",\"pattern\":\"^z{0,30}$\"}},\"additionalProperties\":false}",
    "{\"type\":\"object\",\"patternProperties\":{\"^[yz]{1,20}$\":{\"type\":\"string\","
    "\"maxLength\":"
    "29}},\"additionalProperties\":false}",
    "{\"uniqueItems\":true}",
    "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z]{1,8}(-[a-zA-Z]{1,8})*$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[0-9A-Za-z]{4}-[0-9A-Za-z]{6}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^\\\\S+@\\\\S+$\"}",
    "{\"type\":\"string\",\"pattern\":\"^.*\\\\.g.e$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^@\\\\s]+@[^@\\\\s.]+(\\\\.[^@]+).ga\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^@]+.ga\"}",
    "{\"type\":\"string\",\"pattern\":\"[0-9].[0-9]\",\"minLength\":14}",
    "{\"type\":\"string\",\"pattern\":\"^[0-9a-f]{35,36}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[的-龥a-z]{2,33}$\"}",
    "{\"type\":\"string\",\"format\":\"hostname\"}",
    "{\"type\":\"string\",\"format\":\"email\"}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":3}",
    "{\"type\":\"object\",\"properties\":{\"a\":{},\"ab\":{}},\"patternProperties\":{\"^_\":{"
    "\"type\":"
    "\"null\"},\"^x\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"string\"}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"properties\":{\"a\":"
    "{"
    "\"enum\":[1,2]},\"ab\":{\"type\":\"boolean\"}},\"required\":[\"a\"],\"additionalProperties\":"
    "false}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":-3,"
    "\"maximum\":12}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"number\"}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"boolean\"},\"minItems\":1,\"maxItems\":2}}",
    "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"propertyNames\":{"
    "\"pattern\":\"^a+$\"},\"additionalProperties\":{\"type\":\"null\"}}}",
};

static const char *const grammars[] = {
    "root ::= \"a\" root \"b\" | \"\"",
    "root ::= root \"+\" root | \"a\"",
    "root ::= e\ne ::= e \"+\" t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | [0-9]+",
    "root ::= (\"ab\" | \"abc\" [x-z]{0,3})+ \"\\n\"?",
    "root ::= [^\"\\\\\\n]* \"\\\"\"",
    "root ::= .{2,4}",
    "root ::= ([ \\n]{0,40} \"a\")*",
    "root ::= w \"a\" | w [ ]{0,3} \"g\" | \"[\" w \"]\"\nw ::= [ \\n\\t]{0,30} | \"x\" w",
    "root ::= [ ]{0,25} ([ \\n]* \"a\" | \"-\")",
    "root ::= a \"x\" | a \"xx\"\na ::= \"a\" a | \"a\"",
};

static const char *const expressions[] = {
    "(.|\\n){1,50}", "[^#]{0,30}(#.*)?",       "[^@]{2,20}@[a-z]{3,12}", "(a|bc){10,20}x?",
    "\\S{3,}",       "(\\w|[^a-z]){0,9}[é日]", ".*\\.(a|.b){12,}",
};

static const char tools[] =
    "[{\"name\":\"a\",\"parameters\":{\"properties\":{\"x\":{\"type\":\"string\"},\"name\":{"
    "\"type\":"
    "[\"integer\",\"string\"],\"maxLength\":12}},\"required\":[\"x\"]}},{\"name\":\"ab\"}]";

/* The mask of a state by pushing every token on it. */
static void assert_mask_is_brute_force(di_matcher *m, const uint32_t *mask, const char *grammar) {
    for (int32_t id = 0; id < v->num_bits; id++) {
        bool in_mask = mask[id / 32] >> id % 32 & 1;
        bool taken = di_matcher_push(m, id, NULL);
        if (taken) {
            assert_true(di_matcher_rollback(m, 1));
        }
        if (taken != in_mask) {
            fail_msg("%s\ntoken %d: mask %d, push %d", grammar, id, in_mask, taken);
        }
    }
}

static int32_t random_allowed(const uint32_t *mask) {
    static int32_t ids[1 << 13];
    int32_t count = 0;
    for (int32_t id = 0; id < v->num_bits; id++) {
        if (mask[id / 32] >> id % 32 & 1) {
            ids[count++] = id;
        }
    }
    assert_true(count > 0);
    return ids[random_below((uint32_t)count)];
}

static int num_walks = 3, num_steps = 40;
static uint32_t max_whitespace = 2;

static void check_grammar(di_grammar_type type, const char *text, bool any_order) {
    di_error err = {0};
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.any_order = any_order;
    o.max_whitespace = max_whitespace;
    di_grammar *g = test_compile(v, type, text, &o);
    size_t bytes = (size_t)v->num_words * sizeof(uint32_t);
    uint32_t *mask = di_alloc(bytes), *again = di_alloc(bytes);
    for (int walk = 0; walk < num_walks; walk++) {
        di_matcher *m = di_matcher_create(g, &err);
        for (int i = 0; i < num_steps && !di_matcher_ended(m); i++) {
            if (!di_matcher_mask(m, mask, &err)) {
                fail_msg("%s\n%s", text, err.message);
            }
            assert_false(mask[0] >> TEST_CONTROL & 1);
            assert_mask_is_brute_force(m, mask, text);
            di_matcher *fork = di_matcher_fork(m, &err);
            int32_t token = random_allowed(mask);
            assert_true(di_matcher_push(m, token, &err));
            assert_true(di_matcher_rollback(m, 1));
            assert_true(di_matcher_mask(m, again, &err));
            assert_memory_equal(mask, again, bytes);
            assert_true(di_matcher_push(m, token, &err));
            assert_true(di_matcher_mask(fork, again, &err));
            assert_memory_equal(mask, again, bytes);
            di_matcher_destroy(fork);
        }
        di_matcher_destroy(m);
    }
    di_free(mask);
    di_free(again);
    di_grammar_release(g);
}

static void test_masks_of_schemas_equal_trying_every_token(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        check_grammar(DI_GRAMMAR_JSON_SCHEMA, schemas[i], false);
        check_grammar(DI_GRAMMAR_JSON_SCHEMA, schemas[i], true);
    }
}

static void test_masks_of_grammars_equal_trying_every_token(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        check_grammar(DI_GRAMMAR_EBNF, grammars[i], false);
    }
}

static void test_masks_of_expressions_equal_trying_every_token(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        check_grammar(DI_GRAMMAR_REGEX, expressions[i], false);
    }
}

/* With tokens of which many begin alike, and long ones. */
static void test_masks_of_many_tokens_equal_trying_every_token(void **state) {
    (void)state;
    di_vocab *small = v;
    v = test_dense_vocab();
    num_walks = 6;
    num_steps = 16;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        max_whitespace = i % 2 ? 2 : 40;
        check_grammar(DI_GRAMMAR_JSON_SCHEMA, schemas[i], false);
    }
    max_whitespace = 2;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        check_grammar(DI_GRAMMAR_EBNF, grammars[i], false);
    }
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        check_grammar(DI_GRAMMAR_REGEX, expressions[i], false);
    }
    check_grammar(DI_GRAMMAR_TOOLS, tools, false);
    di_vocab_destroy(v);
    v = small;
    num_walks = 3;
    num_steps = 40;
}

static void test_masks_of_calls_equal_trying_every_token(void **state) {
    (void)state;
    check_grammar(DI_GRAMMAR_TOOLS, tools, false);
    check_grammar(DI_GRAMMAR_TOOLS, tools, true);
}

/* A random expression over a few pieces, in EBNF. */
static void random_expression(char *out, size_t size, int depth) {
    static const char *const atoms[] = {"\"a\"", "\"ab\"",   "[a-c]", "[^a]", "\"\\\"\"", "\"{\"",
                                        "[0-9]", "\"name\"", ".",     "r1",   "r2",       "\"é\""};
    size_t n = strlen(out);
    if (depth == 0 || random_below(3) == 0) {
        snprintf(out + n, size - n, "%s ", atoms[random_below(12)]);
        return;
    }
    switch (random_below(3)) {
    case 0:
        random_expression(out, size, depth - 1);
        random_expression(out, size, depth - 1);
        break;
    case 1:
        snprintf(out + n, size - n, "( ");
        random_expression(out, size, depth - 1);
        n = strlen(out);
        snprintf(out + n, size - n, "| ");
        random_expression(out, size, depth - 1);
        n = strlen(out);
        snprintf(out + n, size - n, ") ");
        break;
    default: {
        static const char *const repeats[] = {"?", "*", "+", "{1,3}", "{2}"};
        snprintf(out + n, size - n, "( ");
        random_expression(out, size, depth - 1);
        n = strlen(out);
        snprintf(out + n, size - n, ")%s ", repeats[random_below(5)]);
    }
    }
}

static void test_masks_of_random_grammars_equal_trying_every_token(void **state) {
    (void)state;
    char text[4096];
    for (int i = 0; i < 150; i++) {
        snprintf(text, sizeof text, "r2 ::= \"x\" | \"(\" r1 \")\"\nr1 ::= r2 | \"b\" \nroot ::= ");
        random_expression(text, sizeof text, 4);
        check_grammar(DI_GRAMMAR_EBNF, text, false);
    }
}

static void test_behind_the_end_only_the_stop_token_is_allowed(void **state) {
    (void)state;
    di_error err = {0};
    di_grammar *g = test_compile(v, DI_GRAMMAR_REGEX, "a", NULL);
    di_matcher *m = di_matcher_create(g, &err);
    uint32_t mask[64];
    assert_true(v->num_words <= 64);
    assert_false(di_matcher_push(m, TEST_STOP, NULL));
    assert_true(di_matcher_push(m, TEST_FIRST_BYTE + 'a', &err));
    assert_true(di_matcher_push(m, TEST_STOP, &err));
    assert_true(di_matcher_ended(m));
    assert_true(di_matcher_mask(m, mask, &err));
    assert_int_equal(mask[0], 1u << TEST_STOP);
    assert_false(di_matcher_push(m, TEST_FIRST_BYTE + 'a', NULL));
    assert_true(di_matcher_rollback(m, 2));
    assert_false(di_matcher_ended(m));
    assert_false(di_matcher_rollback(m, 1));
    assert_false(di_matcher_push(m, v->num_bits, NULL));
    assert_false(di_matcher_push(m, -1, NULL));
    assert_false(di_matcher_push(m, TEST_CONTROL, NULL));
    di_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_forced_bytes_stop_where_a_choice_or_the_end_comes(void **state) {
    (void)state;
    di_error err = {0};
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.max_whitespace = 0;
    di_grammar *g =
        test_compile(v, DI_GRAMMAR_JSON_SCHEMA,
                     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"boolean\"}},"
                     "\"required\":[\"name\"],\"additionalProperties\":false}",
                     &o);
    di_matcher *m = di_matcher_create(g, &err);
    di_buffer out = {0};
    assert_true(di_matcher_forced(m, 100, &out, &err));
    assert_non_null(out.data);
    /* The name may be written with escapes: what is forced ends before its first letter. */
    assert_string_equal(out.data, "{\"");
    di_buffer_free(&out);
    di_matcher_destroy(m);
    di_grammar_release(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_of_schemas_equal_trying_every_token),
        cmocka_unit_test(test_masks_of_grammars_equal_trying_every_token),
        cmocka_unit_test(test_masks_of_expressions_equal_trying_every_token),
        cmocka_unit_test(test_masks_of_many_tokens_equal_trying_every_token),
        cmocka_unit_test(test_masks_of_calls_equal_trying_every_token),
        cmocka_unit_test(test_masks_of_random_grammars_equal_trying_every_token),
        cmocka_unit_test(test_behind_the_end_only_the_stop_token_is_allowed),
        cmocka_unit_test(test_forced_bytes_stop_where_a_choice_or_the_end_comes),
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

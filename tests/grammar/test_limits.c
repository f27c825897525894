/* Hostile grammars: refused or compiled within a second, never a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "support/cmocka.h"
#include "support/grammar.h"
#include "support/random.h"

static di_vocab *v;

/* Of the processor; sanitizers are slow, and ten times the promise is still no hang. */
#ifdef DI_DEBUG
enum { SECONDS = 10, MEGABYTES = 200 };
#else
enum { SECONDS = 1, MEGABYTES = 200 };
#endif

static char *repeat(const char *head, const char *unit, size_t count, const char *tail) {
    size_t unit_size = strlen(unit), n = strlen(head);
    char *text = di_alloc(n + unit_size * count + strlen(tail) + 1);
    assert_non_null(text);
    memcpy(text, head, n);
    for (size_t i = 0; i < count; i++, n += unit_size) {
        memcpy(text + n, unit, unit_size);
    }
    memcpy(text + n, tail, strlen(tail) + 1);
    return text;
}

/* Compiles and, if that works, takes some steps. */
static bool survives(di_grammar_type type, const char *text, const char *start) {
    di_grammar_options o;
    di_grammar_options_default(&o);
    di_error err = {0};
    double begin = di_thread_now();
    di_grammar *g = di_grammar_compile(v, type, text, strlen(text), &o, &err);
    if (g && start) {
        assert_int_equal(test_accepts(g, v, start, strlen(start)), true);
    }
    if (g) {
        assert_true(di_grammar_measure(g).bytes < (size_t)MEGABYTES << 20);
        di_grammar_release(g);
    } else {
        assert_int_not_equal(err.code, DI_OK);
        assert_int_not_equal(err.message[0], 0);
    }
    double seconds = di_thread_now() - begin;
    if (seconds >= SECONDS) {
        fail_msg("%.60s ...: %.2f s", text, seconds);
    }
    return g != NULL;
}

static void test_deep_nesting_is_refused_not_overrun(void **state) {
    (void)state;
    char *text = repeat("", "(", 100000, "");
    assert_false(survives(DI_GRAMMAR_REGEX, text, NULL));
    di_free(text);
    text = repeat("root ::= ", "(", 100000, "\"a\"");
    assert_false(survives(DI_GRAMMAR_EBNF, text, NULL));
    di_free(text);
    text = repeat("{\"const\":", "[", 50000, "");
    assert_false(survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL));
    di_free(text);
    text = repeat("", "{\"properties\":{\"a\":", 200000, "");
    assert_false(survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL));
    di_free(text);
}

static void test_large_repeats_are_counted_not_expanded(void **state) {
    (void)state;
    assert_true(survives(DI_GRAMMAR_REGEX, "a{1,100000}", "aaa"));
    assert_true(survives(DI_GRAMMAR_REGEX, "((a{1,100}){1,100}){1,100}", "aaa"));
    assert_true(survives(DI_GRAMMAR_REGEX, "(a|ab){0,1000000}", "aaba"));
    assert_true(survives(DI_GRAMMAR_EBNF, "root ::= [ab]{0,1000000} \"x\"{5}", "abxxxxx"));
    assert_true(
        survives(DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":100000}", "\"abc\""));
    assert_true(survives(DI_GRAMMAR_JSON_SCHEMA,
                         "{\"type\":\"string\",\"pattern\":\"^[^\\\\n]{1,129}$\"}", "\"abc\""));
    assert_true(
        survives(DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"maxItems\":1000000}", "[1,2]"));
}

static void test_catastrophic_patterns_are_linear(void **state) {
    (void)state;
    assert_true(survives(DI_GRAMMAR_REGEX, "(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
    assert_true(survives(DI_GRAMMAR_REGEX, "(a|a)*(a|a)*(a|a)*b", "aaaaaaaaaaaaaaaaaaab"));
    survives(DI_GRAMMAR_REGEX, "(a|b)*a(a|b){12}", "aabababababab");
    survives(DI_GRAMMAR_REGEX, "(.*a){20}(.*b){20}(.*c){20}", NULL);
}

static void test_exponential_references_end(void **state) {
    (void)state;
    char text[8192] = "{\"$defs\":{\"d0\":{\"type\":\"null\"}", one[256];
    for (int i = 1; i < 40; i++) {
        snprintf(one, sizeof one,
                 ",\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]}", i,
                 i - 1, i - 1);
        strcat(text, one);
    }
    strcat(text, "},\"$ref\":\"#/$defs/d39\"}");
    survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL);
    strcpy(text, "{\"$defs\":{\"d0\":{\"type\":\"null\"}");
    for (int i = 1; i < 40; i++) {
        snprintf(
            one, sizeof one,
            ",\"d%d\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/d%d\"},\"b\":{\"$ref\":\"#/$defs/"
            "d%d\"}}}",
            i, i - 1, i - 1);
        strcat(text, one);
    }
    strcat(text, "},\"$ref\":\"#/$defs/d39\"}");
    assert_true(survives(DI_GRAMMAR_JSON_SCHEMA, text, "{\"a\":{\"b\":{}}}"));
}

static void test_many_properties_words_and_rules_compile(void **state) {
    (void)state;
    size_t size = 4u << 20, n;
    char *text = di_alloc(size);
    assert_non_null(text);
    n = (size_t)snprintf(text, size, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 2000; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s\"p%d\":{\"type\":\"string\"}", i ? "," : "",
                              i);
    }
    snprintf(text + n, size - n, "},\"additionalProperties\":false}");
    assert_true(survives(DI_GRAMMAR_JSON_SCHEMA, text, "{\"p5\":\"\",\"p1999\":\"a\"}"));
    n = (size_t)snprintf(text, size, "{\"enum\":[");
    for (int i = 0; i < 10000; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s\"word number %d\"", i ? "," : "", i * 7919);
    }
    snprintf(text + n, size - n, "]}");
    assert_true(survives(DI_GRAMMAR_JSON_SCHEMA, text, "\"word number 7919\""));
    n = (size_t)snprintf(text, size, "root ::= r0\n");
    for (int i = 0; i < 33000; i++) {
        n += (size_t)snprintf(text + n, size - n, "r%d ::= \"a\" r%d\n", i, i + 1);
    }
    snprintf(text + n, size - n, "r33000 ::= \"b\" r33000? \n");
    survives(DI_GRAMMAR_EBNF, text, NULL);
    di_free(text);
}

/* One schema of 10 MB: many properties, one deep list of alternatives, one long enumeration. */
static void test_a_schema_of_ten_megabytes_is_compiled_or_refused(void **state) {
    (void)state;
    size_t size = 11u << 20, n;
    char *text = di_alloc(size);
    assert_non_null(text);
    n = (size_t)snprintf(text, size, "{\"enum\":[");
    for (int i = 0; n < (10u << 20); i++) {
        n += (size_t)snprintf(text + n, size - n, "%s\"%09d\"", i ? "," : "",
                              (int)(i * 7919ll % 999983));
    }
    snprintf(text + n, size - n, "]}");
    survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL);
    n = (size_t)snprintf(text, size, "{\"properties\":{");
    for (int i = 0; n < (10u << 20); i++) {
        n += (size_t)snprintf(text + n, size - n, "%s\"p%d\":{\"type\":\"string\"}", i ? "," : "",
                              i);
    }
    snprintf(text + n, size - n, "}}");
    survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL);
    n = (size_t)snprintf(text, size, "{\"anyOf\":[");
    for (int i = 0; n < (10u << 20); i++) {
        n += (size_t)snprintf(text + n, size - n, "%s{\"required\":[\"p%d\"]}", i ? "," : "", i);
    }
    snprintf(text + n, size - n, "]}");
    survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL);
    n = (size_t)snprintf(text, size, "\"");
    memset(text + n, ' ', 10u << 20);
    memcpy(text + n + (10u << 20), "\"", 2);
    survives(DI_GRAMMAR_JSON_SCHEMA, text, NULL);
    survives(DI_GRAMMAR_REGEX, text, NULL);
    survives(DI_GRAMMAR_EBNF, text, NULL);
    di_free(text);
}

/* What a text has made of a grammar is forgotten when it is too much; matchers find their place
 * again, also those that had nothing to do with it. */
static void test_a_grammar_that_has_grown_too_large_is_made_anew(void **state) {
    (void)state;
    static const char pattern[] = "[ab]*a[ab]{14}c"; /* 2^15 states */
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.max_bytes = 6u << 20;
    di_grammar *g = test_compile(v, DI_GRAMMAR_REGEX, pattern, &o);
    di_error err = {0};
    di_matcher *quiet = di_matcher_create(g, &err), *busy = di_matcher_create(g, &err);
    uint32_t mask[64], before[64];
    assert_true(di_matcher_push(quiet, TEST_FIRST_BYTE + 'a', &err));
    assert_true(di_matcher_mask(quiet, before, &err));
    uint64_t random = 1;
    size_t most = 0;
    bool shrunk = false;
    for (int i = 0; i < 20000; i++) {
        random_advance(&random);
        if (!di_matcher_push(busy, TEST_FIRST_BYTE + (random >> 60 & 1 ? 'a' : 'b'), &err) ||
            !di_matcher_mask(busy, mask, &err)) {
            fail_msg("token %d: %s", i, err.message);
        }
        size_t bytes = di_grammar_measure(g).bytes;
        shrunk = shrunk || bytes < most;
        most = bytes > most ? bytes : most;
    }
    assert_true(shrunk && most < (14u << 20)); /* masks have a bound of their own */
    assert_true(di_matcher_mask(quiet, mask, &err));
    assert_memory_equal(mask, before, (size_t)v->num_words * sizeof *mask);
    assert_true(di_matcher_rollback(busy, 20000));
    assert_true(di_matcher_push(busy, TEST_FIRST_BYTE + 'a', &err));
    assert_true(di_matcher_mask(busy, mask, &err));
    assert_memory_equal(mask, before, (size_t)v->num_words * sizeof *mask);
    di_matcher_destroy(quiet);
    di_matcher_destroy(busy);
    di_grammar_release(g);
}

/* A text that cannot be followed fails its own matcher, each time, and no other. */
static void test_a_text_that_is_too_ambiguous_fails_alone(void **state) {
    (void)state;
    /* Each a may open any of many rules, so that stacks of all kinds live side by side. */
    char text[65536] = "root ::= s \"x\"\ns ::= ";
    for (int i = 0; i < 24; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%sr%d \"%c\"", i ? " | " : "", i,
                 'b' + i % 20);
    }
    for (int i = 0; i < 24; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "\nr%d ::= \"a\" s? \"%d\"", i,
                 i);
    }
    di_grammar *g = test_compile(v, DI_GRAMMAR_EBNF, text, NULL);
    di_error err = {0};
    di_matcher *good = di_matcher_create(g, &err), *bad = di_matcher_create(g, &err);
    bool failed = false;
    for (int i = 0; i < 30 && !failed; i++) {
        failed = !di_matcher_push(bad, TEST_FIRST_BYTE + 'a', &err);
    }
    assert_true(failed);
    assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "too ambiguous"));
    static const char fine[] = "a5gx";
    for (const char *c = fine; *c; c++) {
        if (!di_matcher_push(good, TEST_FIRST_BYTE + *c, &err)) {
            fail_msg("'%c': %s", *c, err.message);
        }
        assert_false(di_matcher_push(bad, TEST_FIRST_BYTE + 'a', NULL));
    }
    assert_true(di_matcher_may_end(good));
    di_matcher_destroy(good);
    di_matcher_destroy(bad);
    di_grammar_release(g);
}

static void test_deep_texts_end_at_the_stacks_depth(void **state) {
    (void)state;
    di_error err = {0};
    di_grammar *g = test_compile(v, DI_GRAMMAR_JSON_SCHEMA, "true", NULL);
    di_matcher *m = di_matcher_create(g, &err);
    int depth = 0;
    while (depth < 5000 && di_matcher_push(m, TEST_FIRST_BYTE + '[', NULL)) {
        depth++;
    }
    assert_in_range(depth, 500, 1100);
    for (; depth > 0; depth--) {
        assert_true(di_matcher_push(m, TEST_FIRST_BYTE + ']', &err));
    }
    assert_true(di_matcher_may_end(m));
    di_matcher_destroy(m);
    di_grammar_release(g);
}

#ifdef DI_FAULTS
/* Every allocation fails in turn. */
static void test_memory_may_run_out_anywhere(void **state) {
    (void)state;
    static const struct {
        di_grammar_type type;
        const char *text;
    } rows[] = {
        {DI_GRAMMAR_REGEX, "(ab|[^c]{2,3})+\\p{Nd}"},
        {DI_GRAMMAR_EBNF, "root ::= root \"+\" t | t\nt ::= [0-9]{1,3} | \"(\" root \")\""},
        {DI_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",\"yz\",1]},\"b\":{\"$ref\":"
         "\"#\"}},"
         "\"patternProperties\":{\"^x\":{\"minimum\":3}},\"oneOf\":[{\"required\":[\"a\"]},"
         "{\"required\":[\"b\"]}]}"},
    };
    uint32_t mask[64];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        bool done = false;
        for (uint64_t n = 1; !done && n < 20000; n++) {
            di_grammar_options o;
            di_grammar_options_default(&o);
            di_error err = {0};
            di_alloc_fail_at(n);
            di_grammar *g =
                di_grammar_compile(v, rows[r].type, rows[r].text, strlen(rows[r].text), &o, &err);
            di_matcher *m = g ? di_matcher_create(g, &err) : NULL;
            bool ok = m && di_matcher_mask(m, mask, &err);
            done = di_alloc_fail_at(0) < n;
            assert_true(ok || err.code == DI_ERR_NO_MEMORY);
            di_matcher_destroy(m);
            di_grammar_release(g);
        }
        assert_true(done);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deep_nesting_is_refused_not_overrun),
        cmocka_unit_test(test_large_repeats_are_counted_not_expanded),
        cmocka_unit_test(test_catastrophic_patterns_are_linear),
        cmocka_unit_test(test_exponential_references_end),
        cmocka_unit_test(test_many_properties_words_and_rules_compile),
        cmocka_unit_test(test_a_schema_of_ten_megabytes_is_compiled_or_refused),
        cmocka_unit_test(test_a_grammar_that_has_grown_too_large_is_made_anew),
        cmocka_unit_test(test_a_text_that_is_too_ambiguous_fails_alone),
        cmocka_unit_test(test_deep_texts_end_at_the_stacks_depth),
#ifdef DI_FAULTS
        cmocka_unit_test(test_memory_may_run_out_anywhere),
#endif
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

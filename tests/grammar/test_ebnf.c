/* EBNF as people write it: what it accepts, left recursion, what is refused and where. */
#include <string.h>

#include "support/cmocka.h"
#include "support/grammar.h"

static di_vocab *v;

typedef struct row {
    const char *grammar;
    const char *valid[6], *invalid[6];
} row;

static void check_rows(di_grammar_type type, const row *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        di_grammar *g = test_compile(v, type, rows[i].grammar, NULL);
        for (int k = 0; k < 6 && rows[i].valid[k]; k++) {
            if (!test_accepts(g, v, rows[i].valid[k], strlen(rows[i].valid[k]))) {
                fail_msg("%s refuses %s", rows[i].grammar, rows[i].valid[k]);
            }
        }
        for (int k = 0; k < 6 && rows[i].invalid[k]; k++) {
            if (test_accepts(g, v, rows[i].invalid[k], strlen(rows[i].invalid[k]))) {
                fail_msg("%s accepts %s", rows[i].grammar, rows[i].invalid[k]);
            }
        }
        di_grammar_release(g);
    }
}

static void test_grammars_accept_their_language(void **state) {
    (void)state;
    static const row rows[] = {
        {"root ::= \"a\" [bc]+ # comment\n", {"ab", "abcb"}, {"a", "abd", ""}},
        {"root ::= [а-я]+", {"привет"}, {"hello"}},
        {"root ::= [^a\\n]{2,3}", {"bb", "日本é"}, {"b", "ab", "b\n", "bbbb"}},
        {"root ::= x-1\nx-1 ::= \"p\" | \"q\"\n  | ( )", {"p", "q", ""}, {"pq"}},
        {"root ::= root \"+\" t | t\nt ::= [0-9]+", {"1", "1+22+3"}, {"+1", "1+", "1++2"}},
        {"root ::= a\na ::= b \"x\" | \"s\"\nb ::= a \"y\" | \"t\"",
         {"s", "tx", "syx", "txyx"},
         {"t", "sy", "sx"}},
        {"root ::= root root | \"a\" | \"\"", {"", "a", "aaaa"}, {"b"}},
        {"root ::= x \".\"\nx ::= x x x | \"a\"", {"a.", "aaa.", "aaaaa."}, {".", "aa.", "aaaa."}},
        {"root ::= x \".\"\nx ::= x x x | \"a\" | \"(\" x \")\" | x x",
         {"a.", "aa.", "a(aa)a."},
         {".", "().", "a(."}},
        {"root ::= \"\" root \"b\" | \"a\"", {"a", "abb"}, {"b", ""}},
        {"root ::= \"x\"? root \"b\" | \"a\"", {"a", "abb", "xab", "xxabb"}, {"xa", "b"}},
        {"root ::= \"(\" root \")\" | \"\"", {"", "(())"}, {"(()", ")"}},
        {"root ::= (\"a\" | inner)*\ninner ::= \"<\" root \">\"", {"a<a<>>a"}, {"<"}},
        {"root ::= inner{2}\ninner ::= \"(\" inner? \")\"", {"()(())"}, {"()", "()()()"}},
        {"root ::= \"\\x41\\u00e9\\n\" .", {"A\xC3\xA9\nz"}, {"A"}},
        {"root ::= \"a\"{2,-1}", {"aa", "aaaaa"}, {"a"}},
        {"root ::= Regex(\"[0-9]{2}\") \"b\"", {"12b"}, {"1b"}},
        {"root ::= dead | \"ok\"\ndead ::= dead \"a\"", {"ok"}, {"a"}},
    };
    check_rows(DI_GRAMMAR_EBNF, rows, sizeof rows / sizeof *rows);
}

static void test_llama_cpps_grammars_are_read_as_it_does(void **state) {
    (void)state;
    static const row rows[] = {
        {"root ::= \"\\x41B\" [\\x30-\\x39]",
         {"AB7"},
         {"\xD0\x9B"
          "7",
          "AB"}},
        {"root ::= ws \"a\" ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
         {"a", " a", "\n \ta "},
         {"  a"}},
        {"root ::= 1st 2nd-x\n1st ::= \"a\"\n2nd-x ::= (\"b\" | )", {"a", "ab"}, {"b"}},
        {"root ::= empty \"a\"\nempty ::=\n", {"a"}, {""}},
        {"# a list\nroot ::= (\n  item\n  (\",\" item)*\n)\nitem ::= [^,\\]\\[\\n]+ # no brackets",
         {"a,b"},
         {"a,,b", "a]"}},
        {"root ::= \"x\" .{2} \"y\"{1,}", {"xab\x79", "x\n\nyy"}, {"xay"}},
        {"root   ::= object\nvalue  ::= object | array | string | number | (\"true\" | \"false\" | "
         "\"null\") ws\n"
         "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" "
         "ws\n"
         "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
         "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
         "[0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
         "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
         "[1-9]{0,15})? ws\n"
         "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
         {"{}", "{\"a\": [1,-2.5e3,\"\\u0041\"]}", "{\"a\":\n\t{\"b\":null}}"},
         {"{\"a\":}", "[", "{\"a\":01}", "{\"a\n\":1}"}},
    };
    check_rows(DI_GRAMMAR_GBNF, rows, sizeof rows / sizeof *rows);
    assert_non_null(
        strstr(test_refused(v, DI_GRAMMAR_GBNF, "root ::= <[1000]>").message, "tokens"));
    assert_non_null(
        strstr(test_refused(v, DI_GRAMMAR_GBNF, "root ::= \"\\x4\"").message, "escape"));
}

static void test_faults_are_refused_with_line_and_column(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *says;
    } rows[] = {
        {"root ::= \"a", "line 1, column 10"},
        {"root ::= [a", "line 1, column 10"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", "line 3, column 1"},
        {"root ::= x", "line 1, column 10: the rule \"x\""},
        {"root ::= (\"a\"", "parenthesis"},
        {"root ::= \"a\")", "parenthesis"},
        {"root ::= \"a\"**", "repeated"},
        {"root ::= \"a\"{,2}", "number"},
        {"root ::= \"a\"{3,2}", "reversed"},
        {"root ::= [\\d]", "escape"},
        {"root ::= ", "empty"},
        {"a ::= \"x\"", "\"root\" is not defined"},
        {"", "\"root\" is not defined"},
        {"root ::= root \"a\"", "derives no text"},
        {"root ::= root", "derives no text"},
        {"root ::= \"a\" root", "derives no text"},
        {"root ::= Token(3)", "Token("},
        {"root[lazy] ::= \"a\"", "options"},
        {"root ::= (= \"a\") \"a\"", "look-ahead"},
        {"root = \"a\"", "a rule is expected"},
        {"root ::= \"\xFF\"", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_error err = test_refused(v, DI_GRAMMAR_EBNF, rows[i].grammar);
        if (!strstr(err.message, rows[i].says)) {
            fail_msg("%s: %s", rows[i].grammar, err.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammars_accept_their_language),
        cmocka_unit_test(test_llama_cpps_grammars_are_read_as_it_does),
        cmocka_unit_test(test_faults_are_refused_with_line_and_column),
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

/* Blocks of tool calls: the markup as the model was taught it, and in it nothing but what the
 * tools' schemas allow. */
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/grammar.h"

static di_vocab *v;

/* ' stands for a quote, ~ for the control token, # for a parameter's beginning, $ for its end. */
static const char *written(char *to, size_t size, const char *from) {
    size_t n = 0;
    for (; *from; from++) {
        const char *piece = *from == '\''  ? "\""
                            : *from == '~' ? DI_VOCAB_DSML
                            : *from == '#' ? "<" DI_VOCAB_DSML " parameter name=\""
                            : *from == '$' ? "</" DI_VOCAB_DSML " parameter>\n"
                                           : NULL;
        char one[2] = {*from, 0};
        piece = piece ? piece : one;
        assert_true(n + strlen(piece) < size);
        n += (size_t)snprintf(to + n, size - n, "%s", piece);
    }
    to[n] = 0;
    return to;
}

static const char tools[] =
    "[{'type':'function','function':{'name':'weather','parameters':{'type':'object','properties':{"
    "'city':{'type':'string'},'days':{'type':'integer','minimum':1,'maximum':7},"
    "'unit':{'enum':['c','f']},'more':{'$ref':'#/$defs/m'}},'required':['city'],"
    "'additionalProperties':false,'$defs':{'m':{'anyOf':[{'type':'string','maxLength':3},"
    "{'type':'array','items':{'$ref':'#/$defs/m'}}]}}}}},"
    "{'name':'now'},{'name':'any','parameters':{'type':'object'}},"
    "{'name':'f','strict':true,'parameters':{'type':'object','properties':{'a':{'type':'null'}}}}]";

#define CALL(name, parameters) "<~ invoke name='" name "'>\n" parameters "</~ invoke>\n"
#define TEXT(key, value)       "#" key "' string='true'>" value "$"
#define JSON(key, value)       "#" key "' string='false'>" value "$"
#define END                    "</~ calls>"

static di_grammar *compile(const char *text, di_tools_from from) {
    char json[4096];
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.tools_from = from;
    for (size_t i = 0; i <= strlen(text); i++) { /* here # and $ are themselves */
        json[i] = text[i] == '\'' ? '"' : text[i];
    }
    return test_compile(v, DI_GRAMMAR_TOOLS, json, &o);
}

static void expect(di_grammar *g, const char *text, bool allowed) {
    char bytes[4096];
    written(bytes, sizeof bytes, text);
    if (test_accepts(g, v, bytes, strlen(bytes)) != allowed) {
        fail_msg("%s %s", allowed ? "refuses" : "accepts", text);
    }
}

static void test_calls_are_what_the_schemas_allow(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool allowed;
    } rows[] = {
        {CALL("weather", TEXT("city", "Paris")), true},
        {CALL("weather", TEXT("city", "")), true},
        {CALL("weather", TEXT("city", "a </b> 'x'\n <tag> \\ {")), true},
        {CALL("weather", "\n"), false}, /* city is required */
        {CALL("weather", ""), false},
        {CALL("weather", JSON("city", "7")), false},
        {CALL("weather", JSON("city", "'Paris'")), false},
        {CALL("weather", TEXT("city", "Paris") JSON("days", "3")), true},
        {CALL("weather", TEXT("city", "Paris") JSON("days", "8")), false},
        {CALL("weather", TEXT("city", "Paris") TEXT("days", "3")), false},
        {CALL("weather", JSON("days", "3") TEXT("city", "Paris")), false},
        {CALL("weather", TEXT("city", "Paris") TEXT("city", "Rome")), false},
        {CALL("weather", TEXT("city", "Paris") TEXT("unit", "c")), true},
        {CALL("weather", TEXT("city", "Paris") TEXT("unit", "k")), false},
        {CALL("weather", TEXT("city", "Paris") TEXT("more", "abc")), true},
        {CALL("weather", TEXT("city", "Paris") TEXT("more", "abcd")), false},
        {CALL("weather", TEXT("city", "Paris") JSON("more", "['abc', ['x']]")), true},
        {CALL("weather", TEXT("city", "Paris") JSON("more", "['abcd']")), false},
        {CALL("weather", TEXT("city", "Paris") TEXT("x", "y")), false},
        {CALL("weather", TEXT("city", "a ~ b")), false},
        {CALL("now", "\n"), true},
        {CALL("now", ""), false},
        {CALL("now", TEXT("x", "y")), false},
        {CALL("any", "\n"), true},
        {CALL("any", TEXT("x", "y")), true},
        {CALL("any", JSON("x y", "{'a':[1,2,'b']}")), true},
        {CALL("any", TEXT("x'", "y")), false},
        {CALL("any", TEXT("", "y")), false},
        {CALL("f", "\n"), true},
        {CALL("f", JSON("a", "null")), true},
        {CALL("f", JSON("b", "null")), false}, /* strict */
        {CALL("now", "\n") CALL("weather", TEXT("city", "Paris")) CALL("f", "\n"), true},
        {CALL("now", "\n") "\n" CALL("now", "\n"), false}, /* exactly one newline between calls */
        {CALL("nox", "\n"), false},
        {"", false},
    };
    static const char *const begins[] = {"\n\n<~ calls>\n", " calls>\n", ""};
    for (int from = 0; from < 3; from++) {
        di_grammar *g = compile(tools, (di_tools_from)from);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char text[2048];
            snprintf(text, sizeof text, "%s%s" END, begins[from], rows[i].text);
            expect(g, text, rows[i].allowed);
            snprintf(text, sizeof text, "%s%s" END "\n", begins[from], rows[i].text);
            expect(g, text, false);
            snprintf(text, sizeof text, "%s%s", begins[from], rows[i].text);
            expect(g, text, false);
        }
        di_grammar_release(g);
    }
}

static void test_parameters_may_come_in_any_order_if_that_is_asked_for(void **state) {
    (void)state;
    di_grammar_options o;
    char json[4096];
    di_grammar_options_default(&o);
    o.tools_from = DI_TOOLS_FROM_CALL;
    o.any_order = true;
    for (size_t i = 0; i <= strlen(tools); i++) {
        json[i] = tools[i] == '\'' ? '"' : tools[i];
    }
    di_grammar *g = test_compile(v, DI_GRAMMAR_TOOLS, json, &o);
    expect(g, CALL("weather", JSON("days", "3") TEXT("city", "Paris")) END, true);
    expect(g, CALL("weather", JSON("days", "3") TEXT("unit", "c")) END, false);
    expect(g, CALL("weather", TEXT("city", "a") TEXT("city", "b")) END, false);
    di_grammar_release(g);
}

static void test_bad_tools_are_refused_by_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{}", "#: must be an array of 1 to 1000 tools"},
        {"[]", "#: must be an array of 1 to 1000 tools"},
        {"[", "the list of tools is no JSON"},
        {"[1]", "#/0: a tool needs a name"},
        {"[{\"name\":\"\"}]", "#/0/name: a tool's name has"},
        {"[{\"name\":\"a\\\"b\"}]", "#/0/name: a tool's name has"},
        {"[{\"name\":\"a\"},{\"name\":\"a\"}]", "#/1/name: two tools have this name"},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"string\"}}]",
         "#/0/parameters: the schema allows no object at all"},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"obj\"}}]", "#/0/parameters/type: is not a"},
        {"[{\"name\":\"a\",\"parameters\":{\"required\":[\"x\\\"\"]}}]",
         "#/0/parameters: the schema allows no object at all"},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"properties\":{\"x\":{\"format\":"
         "\"idn-email\"}}}}]",
         "#/0/parameters/properties/x/format"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_error err = test_refused(v, DI_GRAMMAR_TOOLS, rows[i].text);
        if (strncmp(err.message, rows[i].message, strlen(rows[i].message)) != 0) {
            fail_msg("%s: %s", rows[i].text, err.message);
        }
    }
}

/* What is not strict is guided as far as it can be. */
static void test_tools_that_are_not_strict_may_ask_for_what_cannot_be_enforced(void **state) {
    (void)state;
    di_grammar *g = compile("[{'name':'a','parameters':{'properties':{'x':{'format':'idn-email'}}}"
                            "}]",
                            DI_TOOLS_FROM_CALL);
    assert_true(strlen(di_grammar_ignored(g)) > 0);
    expect(g, CALL("a", TEXT("x", "y")) END, true);
    di_grammar_release(g);
}

/* A format beside tools: either calls or a text of the format, never both. */
static di_grammar *compile_choice(const char *content, di_tools_from from) {
    char json[4096];
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.tools_from = from;
    snprintf(json, sizeof json, "{'tools':%s,%s}", tools, content);
    for (size_t i = 0; json[i]; i++) {
        json[i] = json[i] == '\'' ? '"' : json[i];
    }
    return test_compile(v, DI_GRAMMAR_TOOLS_OR_CONTENT, json, &o);
}

static void test_content_of_a_schema_or_calls(void **state) {
    (void)state;
    static const char block[] = "\n\n<~ calls>\n" CALL("weather", TEXT("city", "Rome")) END;
    di_grammar *g = compile_choice(
        "'schema':{'type':'object','properties':{'n':{'$ref':'#/$defs/d'}},'required':['n'],"
        "'additionalProperties':false,'$defs':{'d':{'type':'integer','maximum':9,'minimum':0}}}",
        DI_TOOLS_FROM_BLOCK);
    expect(g, "{'n':7}", true);
    expect(g, "{ 'n' : 7 }", true);
    expect(g, "{'n':17}", false);
    expect(g, "{}", false);
    expect(g, "Hello", false);
    expect(g, "", false);
    expect(g, block, true);
    expect(g, "\n\n<~ calls>\n" CALL("weather", "\n") END, false);
    char both[512];
    snprintf(both, sizeof both, "{'n':7}%s", block);
    expect(g, both, false);
    di_grammar_release(g);

    g = compile_choice("'regex':'[a-z]+\\\\d'", DI_TOOLS_FROM_BLOCK);
    expect(g, "abc7", true);
    expect(g, "abc", false);
    expect(g, block, true);
    di_grammar_release(g);

    g = compile_choice("'schema':{'type':'null'}", DI_TOOLS_FROM_CALL);
    expect(g, "null", false); /* the block is open */
    expect(g, CALL("now", "\n") END, true);
    di_grammar_release(g);

    g = compile_choice("'schema':{'format':'idn-email','maxLength':2},'lenient':true",
                       DI_TOOLS_FROM_BLOCK);
    assert_non_null(strstr(di_grammar_ignored(g), "#/schema/format"));
    expect(g, "'ab'", true);
    expect(g, "'abc'", false);
    di_grammar_release(g);
}

/* What a schema says of its own draft holds for it alone. */
static void test_drafts_are_apart(void **state) {
    (void)state;
    static const char text[] =
        "{'tools':[{'name':'a','parameters':{'$schema':'http://json-schema.org/draft-04/schema#',"
        "'properties':{'x':{'type':'integer'}}}}],'schema':{'type':'integer'}}";
    char json[sizeof text];
    for (size_t i = 0; i < sizeof text; i++) {
        json[i] = text[i] == '\'' ? '"' : text[i];
    }
    di_grammar *g = test_compile(v, DI_GRAMMAR_TOOLS_OR_CONTENT, json, NULL);
    expect(g, "1.0", true);
    expect(g, "\n\n<~ calls>\n" CALL("a", JSON("x", "1.0")) END, false);
    expect(g, "\n\n<~ calls>\n" CALL("a", JSON("x", "1")) END, true);
    di_grammar_release(g);
}

static void test_bad_choices_are_refused_by_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"[]", "#: must be an object with tools"},
        {"{", "the tools and the schema are no JSON"},
        {"{\"schema\":true}", "#: \"tools\" is missing"},
        {"{\"tools\":[{\"name\":\"a\"}]}", "#: needs one of"},
        {"{\"tools\":[{\"name\":\"a\"}],\"schema\":true,\"regex\":\"a\"}", "#: needs one of"},
        {"{\"tools\":[{\"name\":\"a\"}],\"regex\":1}", "#/regex: must be a string"},
        {"{\"tools\":[{\"name\":\"a\"}],\"regex\":\"(\"}", "#/regex: "},
        {"{\"tools\":[{\"name\":\"a\"}],\"schema\":false}", "#/schema: the schema allows no value"},
        {"{\"tools\":[],\"schema\":true}", "#/tools: must be an array of 1"},
        {"{\"tools\":[{\"name\":\"a\"}],\"schema\":true,\"more\":1}", "#/more: is none of"},
        {"{\"tools\":[{\"name\":\"a\"}],\"schema\":true,\"lenient\":1}",
         "#/lenient: must be true or false"},
        {"{\"tools\":[{\"name\":\"a\"}],\"schema\":{\"properties\":{\"x\":{\"type\":1}}}}",
         "#/schema/properties/x/type"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_error err = test_refused(v, DI_GRAMMAR_TOOLS_OR_CONTENT, rows[i].text);
        if (strncmp(err.message, rows[i].message, strlen(rows[i].message)) != 0) {
            fail_msg("%s: %s", rows[i].text, err.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_what_the_schemas_allow),
        cmocka_unit_test(test_parameters_may_come_in_any_order_if_that_is_asked_for),
        cmocka_unit_test(test_bad_tools_are_refused_by_place),
        cmocka_unit_test(test_tools_that_are_not_strict_may_ask_for_what_cannot_be_enforced),
        cmocka_unit_test(test_content_of_a_schema_or_calls),
        cmocka_unit_test(test_drafts_are_apart),
        cmocka_unit_test(test_bad_choices_are_refused_by_place),
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

/* What JSON Schemas accept and refuse: the faults that other engines had, and each keyword. */
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/grammar.h"

static di_vocab *v;

/* Quotes in C are a nuisance: ' stands for " in schemas and texts. */
static const char *quoted(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from);
    for (char *c = to; *c; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    return to;
}

typedef struct row {
    const char *schema;
    const char *valid[6], *invalid[8];
} row;

static void check_rows(const row *rows, size_t count, const di_grammar_options *o) {
    char schema[2048], text[2048];
    for (size_t i = 0; i < count; i++) {
        quoted(schema, sizeof schema, rows[i].schema);
        di_grammar *g = test_compile(v, DI_GRAMMAR_JSON_SCHEMA, schema, o);
        for (int k = 0; k < 6 && rows[i].valid[k]; k++) {
            quoted(text, sizeof text, rows[i].valid[k]);
            if (!test_accepts(g, v, text, strlen(text))) {
                fail_msg("%s refuses %s", schema, text);
            }
        }
        for (int k = 0; k < 8 && rows[i].invalid[k]; k++) {
            quoted(text, sizeof text, rows[i].invalid[k]);
            if (test_accepts(g, v, text, strlen(text))) {
                fail_msg("%s accepts %s", schema, text);
            }
        }
        di_grammar_release(g);
    }
}

#define CHECK(rows) check_rows(rows, sizeof(rows) / sizeof *(rows), NULL)

static void test_faults_of_other_engines_are_not_ours(void **state) {
    (void)state;
    static const row rows[] = {
        {"{'properties':{'text':{'type':'string'}}}", {"{'text':'a'}"}, {"{'text':'\t'}"}},
        {"{'properties':{'a':{},'b':{}},'additionalProperties':true}", {"{'b':1,'c':2}"}, {0}},
        {"{'$defs':{'i':{'type':'integer'}},'type':'array','items':{'$ref':'#/$defs/i'}}",
         {"[1,2]", "[]"},
         {"['a']"}},
        {"{'type':'object'}", {"{'x':[1,{}]}", "{}"}, {"[]"}},
        {"{'type':'integer','minimum':100,'maximum':110}", {"110", "100"}, {"111", "99", "11"}},
        {"{'type':'integer','minimum':12345,'maximum':12347}", {"12346"}, {"12348", "1234"}},
        {"{'type':'number','minimum':-4,'maximum':4}",
         {"-0.5", "4", "4.0", "-4"},
         {"4.1", "-4.01"}},
        {"{'type':'number','minimum':0.5}", {"0.5", "0.75"}, {"0x5", "0.4"}},
        {"{'type':'number'}", {"-0.5", "1e5", "-0"}, {"01", "+1", ".5"}},
        {"{'properties':{'a\\u0001\\'x':{'type':'integer'}},'additionalProperties':false}",
         {"{'a\\u0001\\'x':1}"},
         {"{'a\x01':1}"}},
        {"{'type':'string','pattern':'^a+$','maxLength':2}", {"'aa'"}, {"'aaa'", "''"}},
        {"{'enum':['你好','😊','\\n']}", {"'你好'", "'😊'", "'\\n'"}, {"'\n'", "'你'"}},
        {"{'patternProperties':{'':{'type':'integer'}}}", {"{'a':1}"}, {"{'a':'b'}"}},
        {"{'type':'string','pattern':'^$|https://x'}", {"''", "'https://x'"}, {"'http'"}},
        {"{'const':'a/b'}", {"'a/b'", "'a\\/b'"}, {"'a'"}},
        {"{'oneOf':[{'type':'integer'},{'minimum':2}]}", {"1", "'x'", "2.5"}, {"3", "1.5"}},
        {"{'type':'object','properties':{'a':{'const':'foo'},'b':{'const':'bar'}},"
         "'required':['b']}",
         {"{'b':'bar'}", "{'a':'foo','b':'bar'}"},
         {"{'b':'bar','a':'BAD'}", "{'a':'BAD','b':'bar'}"}},
        {"{'type':'object','required':['z']}", {"{'z':1}"}, {"{}", "{'y':1}"}},
        {"{'type':'string','pattern':'[^x]*'}", {"'\\n'"}, {"'\n'"}},
        {"{'type':'number','minimum':0,'maximum':1}",
         {"0", "1", "1.0", "0.999999999"},
         {"1.1", "-1"}},
        {"{'type':'number','exclusiveMinimum':0}", {"0.000001", "3"}, {"0", "-0", "0.0"}},
        {"{'type':'number','maximum':10}", {"10.0", "-77"}, {"10.01", "11"}},
        {"{'multipleOf':0.01,'type':'number'}", {"0.07", "-3", "1.10"}, {"0.075", "1.001"}},
        {"{'pattern':'b'}", {"'abc'", "'b'", "1"}, {"'ac'"}},
        {"{'type':'object','properties':{'a':{}},'anyOf':[{'required':['a']},{'required':['b']}]}",
         {"{'a':1}", "{'b':1}"},
         {"{}", "{'c':1}"}},
        {"{'allOf':[{'minimum':2},{'type':'integer'}]}", {"2"}, {"1", "2.5", "'a'"}},
        {"{'minContains':2,'contains':{'const':1}}", {"[1,2,1]", "{}"}, {"[1,2]", "[]"}},
        {"{'properties':{'é':{'type':'integer'}},'additionalProperties':{'type':'string'}}",
         {"{'é':1,'x':'y'}"},
         {"{'é':'x'}", "{'\\u00e9':'x'}"}},
        {"{'type':'integer'}", {"1", "1.0", "-7"}, {"1.5", "01", "1e"}},
        {"{'type':'integer','minimum':-9223372036854775808}",
         {"-9223372036854775808"},
         {"-9223372036854775809"}},
        {"{'pattern':'^\\\\S+$'}", {"'['", "'a[b'"}, {"' '", "'a\\n'"}},
        {"{'type':'array','minItems':2,'items':{'type':'object','required':['id'],'properties':"
         "{'id':{'type':'integer'}}}}",
         {"[{'id':1},{'id':2}]"},
         {"[{'id':1}]", "[]"}},
        {"{'enum':['a','ab','abc'],'maxLength':2}", {"'a'", "'ab'"}, {"'abc'"}},
        {"{'type':'string'}",
         {"'\\ud83d\\ude0a'", "'\\u0041'"},
         {"'\\ud83d'", "'\\udc00'", "'\\x'"}},
    };
    CHECK(rows);
}

static void test_each_keyword_is_enforced(void **state) {
    (void)state;
    static const row rows[] = {
        {"{'type':['null','boolean']}", {"null", "true", "false"}, {"0", "''"}},
        {"{'const':{'a':[1,null]}}", {"{'a':[1,null]}"}, {"{'a':[1]}", "{}"}},
        {"{'not':{'const':3}}", {"2", "'3'", "[]"}, {"3", "3.0"}},
        {"{'not':{'required':['a']}}", {"{}"}, {"{'a':1}", "1"}},
        {"{'if':{'properties':{'k':{'const':1}},'required':['k']},'then':{'required':['x']},"
         "'else':{'required':['y']}}",
         {"{'k':1,'x':0}", "{'k':2,'y':0}", "{'y':1}"},
         {"{'k':1}", "{'k':2}", "{'k':1,'y':0}"}},
        {"{'dependentRequired':{'a':['b']}}", {"{'b':1}", "{}", "{'a':1,'b':2}"}, {"{'a':1}"}},
        {"{'dependentSchemas':{'a':{'maxProperties':1}}}",
         {"{'a':1}", "{'b':1,'c':1}"},
         {"{'a':1,'b':1}"}},
        {"{'propertyNames':{'pattern':'^x'}}", {"{'xa':1}"}, {"{'a':1}"}},
        {"{'minProperties':1,'maxProperties':2}", {"{'a':1}"}, {"{}", "{'a':1,'b':1,'c':1}"}},
        {"{'prefixItems':[{'type':'integer'},{'type':'string'}],'items':false}",
         {"[1,'a']", "[]", "[1]"},
         {"['a']", "[1,'a',2]"}},
        {"{'items':[{'type':'null'}],'additionalItems':{'type':'boolean'}}",
         {"[null,true]"},
         {"[true]", "[null,1]"}},
        {"{'minItems':1,'maxItems':2}", {"[1]", "[1,2]"}, {"[]", "[1,2,3]"}},
        {"{'contains':{'type':'string'},'maxContains':1}", {"[1,'a']"}, {"['a','b']", "[1]"}},
        {"{'exclusiveMinimum':1,'exclusiveMaximum':2}", {"1.5", "'x'"}, {"1", "2", "0"}},
        {"{'minimum':1,'exclusiveMinimum':true}", {"1.1"}, {"1"}},
        {"{'minLength':1,'maxLength':2}", {"'é'", "'日本'", "'\\u0041b'"}, {"''", "'abc'"}},
        {"{'format':'ipv4'}", {"'127.0.0.1'"}, {"'256.0.0.1'", "'1.2.3'"}},
        {"{'format':'date'}", {"'2024-02-29'"}, {"'2023-02-29'", "'2020-13-01'"}},
        {"{'format':'iri'}",
         {"'http://[V1.fe]'", "'http://ƒøø.ßår/?q=\U000F0000'", "'http://\U0001F600/'"},
         {"'http://\U000F0000/'", "'http://a/\U0001FFFE'", "'http://[w1.fe]'"}},
        {"{'format':'uuid'}", {"'2eb8aa08-aa98-11ea-b4aa-73b441d16380'"}, {"'2eb8aa08'"}},
        {"{'$id':'http://a/b.json','$defs':{'x':{'$anchor':'n','type':'null'}},'$ref':'#n'}",
         {"null"},
         {"1"}},
        {"{'$ref':'#/$defs/a~1b%25','$defs':{'a/b%':{'type':'null'}}}", {"null"}, {"1"}},
        {"{'properties':{'n':{'$ref':'#'}},'additionalProperties':false}",
         {"{'n':{'n':{}}}"},
         {"{'n':{'m':{}}}"}},
        {"{'unevaluatedProperties':false,'properties':{'a':{}}}", {"{'a':1}"}, {"{'b':1}"}},
        {"{'type':'array','uniqueItems':true,'items':{'type':'string'}}",
         {"[]", "['']", "['a','b','ab']", "['a\\u00e9','a','']"},
         {"['a','a']", "['a','b','a']", "['','']", "['\\u0061','a']", "[1]"}},
        {"{'type':'array','uniqueItems':true,'items':{'type':'string','pattern':'^[ab]$'},"
         "'minItems':2}",
         {"['a','b']", "['b','a']"},
         {"['a']", "['a','a']", "['a','b','a']"}},
        {"{'type':'array','uniqueItems':true,'items':{'type':'string','maxLength':40},"
         "'maxItems':3}",
         {"[]", "['x','y','z']"},
         {"['x','y','x']", "['x','y','z','w']"}},
        {"{'type':'array','uniqueItems':true,'items':{'enum':['a','b',1,1.0,[1],null]}}",
         {"[]", "['a',1,'b']", "[[1],null]", "['b',1.0]"},
         {"['a','a']", "[1,'b',1]", "[1,1.0]", "[null,'a',null]", "[[1],[1]]", "['c']"}},
        {"{'type':'array','uniqueItems':true,'minItems':2,'items':{'$ref':'#/$defs/"
         "e','maxLength':1},"
         "'$defs':{'e':{'enum':['a','b','cc']}}}",
         {"['a','b']", "['b','a']"},
         {"['a']", "['a','cc']", "['a','b','a']"}},
        {"{'allOf':[{'properties':{'a':{'type':'integer'}}}],'properties':{'b':{}},"
         "'unevaluatedProperties':false}",
         {"{'b':2,'a':1}", "{'b':2}", "{}", "7"},
         {"{'c':1}", "{'a':'x'}"}},
        {"{'type':'object','properties':{'k':{'enum':['x','y']}},'required':['k'],'if':{'"
         "properties':"
         "{'k':{'const':'x'}}},'then':{'properties':{'p':{}}},'else':{'patternProperties':{'^q':{}}"
         "},"
         "'unevaluatedProperties':false}",
         {"{'k':'x','p':1}", "{'k':'y','qq':1}"},
         {"{'k':'x','q':1}", "{'k':'y','p':1}", "{'k':'x','z':1}"}},
        {"{'anyOf':[{'properties':{'a':{'const':1}},'required':['a']},{'properties':{'b':{'const':"
         "2}},"
         "'required':['b']}],'unevaluatedProperties':{'type':'null'}}",
         {"{'a':1}", "{'a':1,'b':2}", "{'b':2,'c':null}", "{'a':1,'b':null}"},
         {"{'a':1,'b':3}", "{'a':1,'c':1}", "{}"}},
        {"{'prefixItems':[{'type':'integer'}],'allOf':[{'prefixItems':[true,{'type':'string'}]}],"
         "'unevaluatedItems':false}",
         {"[1,'a']", "[1]", "[]"},
         {"[1,'a',2]", "['a']", "[1,2]"}},
        {"{'type':'array','prefixItems':[true],'contains':{'type':'string'},'unevaluatedItems':{"
         "'type':'null'}}",
         {"[1,'a']", "['a']", "[1,null,'b','a']"},
         {"[1,2]", "[1,2,'a']", "[1,null]", "[]"}},
        {"{'type':'array','contains':{'const':1},'minContains':0,'maxContains':1,"
         "'unevaluatedItems':false}",
         {"[]", "[1]"},
         {"[1,1]", "[2]", "[1,2]"}},
        {"{'$schema':'https://json-schema.org/draft/2019-09/schema','type':'array','items':[true],"
         "'contains':{'const':1},'unevaluatedItems':false}",
         {"[1]"},
         {"[1,1]", "[2]", "[]"}},
        {"{'if':{'contains':{'const':'a'}},'else':{'contains':{'const':'b'}},'unevaluatedItems':"
         "false,'type':'array'}",
         {"['a']", "['b']", "['a','a']", "['b','b']"},
         {"['a','b']", "['c']", "[]"}},
    };
    CHECK(rows);
}

static void test_order_is_the_schemas_unless_any_is_asked_for(void **state) {
    (void)state;
    static const row fixed[] = {{"{'properties':{'a':{},'b':{}},'required':['b']}",
                                 {"{'a':1,'b':1}", "{'b':1}", "{'b':1,'c':1}"},
                                 {"{'b':1,'a':1}", "{'c':1,'b':1}", "{'a':1}", "{'b':1,'b':1}"}}};
    static const row any[] = {{"{'properties':{'a':{},'b':{}},'required':['b']}",
                               {"{'a':1,'b':1}", "{'b':1,'a':1}", "{'c':1,'b':1}"},
                               {"{'a':1}", "{'b':1,'b':1}", "{'a':1,'b':1,'a':1}"}}};
    di_grammar_options o;
    di_grammar_options_default(&o);
    check_rows(fixed, 1, &o);
    o.any_order = true;
    check_rows(any, 1, &o);
}

static void test_strict_forbids_what_is_not_named(void **state) {
    (void)state;
    static const row rows[] = {{"{'properties':{'a':{}}}", {"{'a':1}"}, {"{'b':1}"}},
                               {"{'prefixItems':[{}]}", {"[1]", "[]"}, {"[1,2]"}},
                               {"{'type':'object'}", {"{'b':1}"}, {"1"}},
                               {"{'required':['z'],'type':'object'}", {"{'z':1}"}, {"{}"}}};
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.strict = true;
    check_rows(rows, sizeof rows / sizeof *rows, &o);
}

static void test_white_space_is_bounded_and_absent_around_the_text(void **state) {
    (void)state;
    static const row rows[] = {{"{'type':'object','properties':{'a':{'type':'integer'}}}",
                                {"{ 'a' : 1 }", "{\n'a':\t1}"},
                                {" {}", "{} ", "{   }", "{'a'   :1}"}}};
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.max_whitespace = 2;
    check_rows(rows, 1, &o);
}

static void test_what_cannot_be_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *schema, *says;
    } rows[] = {
        {"{'type':'integer','multipleOf':3,'minimum':4,'maximum':5}", "no value at all"},
        {"{'type':'object','properties':{'x':{'type':'string','enum':[]}},'required':['x']}",
         "no value"},
        {"false", "no value"},
        {"{'type':'integer','multipleOf':3,'minimum':4,'maximum':5}", "no value"},
        {"{'minimum':3,'maximum':2,'type':'number'}", "no value"},
        {"{'properties':{'a':{'$ref':'#'}},'required':['a'],'type':'object'}", "no value"},
        {"{'type':'array','contains':{'type':'null'},'not':{'contains':{'type':'null','x':1}}}",
         "no value"},
        {"{'type':'strin'}", "#/type"},
        {"{'properties':{'a':{'type':3}}}", "#/properties/a/type"},
        {"{'$ref':'#/$defs/x'}", "#/$ref"},
        {"{'$ref':'http://example.com/'}", "outside"},
        {"{'allOf':[{'$ref':'#'}]}", "without end"},
        {"{'items':{'uniqueItems':true,'contains':{'const':1},'minContains':2}}",
         "#/items/uniqueItems"},
        {"{'pattern':'(?=a)'}", "look-ahead"},
        {"{'pattern':'('}", "#/pattern"},
        {"{'minLength':-1}", "#/minLength"},
        {"{'multipleOf':0}", "#/multipleOf"},
        {"{'a':1,}", "line 1"},
        {"{'a':1} x", "no JSON"},
        {"{'properties':[]}", "#/properties"},
        {"[]", "object or a boolean"},
        {"{'format':'regex'}", "#/format"},
    };
    char schema[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_error err =
            test_refused(v, DI_GRAMMAR_JSON_SCHEMA, quoted(schema, sizeof schema, rows[i].schema));
        if (!strstr(err.message, rows[i].says)) {
            fail_msg("%s: %s", schema, err.message);
        }
    }
}

static void test_lenient_leaves_out_and_says_so(void **state) {
    (void)state;
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.lenient = true;
    di_grammar *g = test_compile(v, DI_GRAMMAR_JSON_SCHEMA,
                                 "{\"uniqueItems\":true,\"items\":{\"format\":\"regex\"}}", &o);
    assert_non_null(strstr(di_grammar_ignored(g), "format"));
    assert_true(test_accepts(g, v, "[\"(\"]", 5));
    assert_false(test_accepts(g, v, "[1,1]", 5));
    di_grammar_release(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_of_other_engines_are_not_ours),
        cmocka_unit_test(test_each_keyword_is_enforced),
        cmocka_unit_test(test_order_is_the_schemas_unless_any_is_asked_for),
        cmocka_unit_test(test_strict_forbids_what_is_not_named),
        cmocka_unit_test(test_white_space_is_bounded_and_absent_around_the_text),
        cmocka_unit_test(test_what_cannot_be_is_refused_with_its_place),
        cmocka_unit_test(test_lenient_leaves_out_and_says_so),
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

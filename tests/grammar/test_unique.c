/* uniqueItems over values of every kind: against counting over small sets of values, against
 * another JSON library's reading of texts that random walks have made, and that no walk is led to
 * where nothing unlike is left. */
#include <float.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/grammar.h"
#include "support/random.h"

static di_vocab *v;
static uint64_t random_state = 7;

static uint32_t random_below(uint32_t n) {
    return next_random(&random_state) % n;
}

static const char *quoted(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from);
    for (char *c = to; *c; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    return to;
}

/* Values of a schema's elements; those of one number are one value. */
typedef struct domain {
    const char *items;
    bool any_order;
    struct {
        int value;
        const char *text;
    } texts[14];
} domain;

static const domain domains[] = {
    {"true",
     false,
     {{0, "0"},
      {0, "-0.0"},
      {1, "false"},
      {2, "1"},
      {2, "1.00"},
      {3, "true"},
      {4, "[]"},
      {5, "[1]"},
      {6, "[true]"},
      {7, "{}"},
      {8, "{'a':1}"},
      {8, "{'\\u0061':1.0}"},
      {9, "''"}}},
    {"{'type':'object'}",
     false,
     {{0, "{'a':1,'b':2}"},
      {0, "{'b':2,'a':1}"},
      {1, "{'a':2,'b':1}"},
      {2, "{'a':{'c':[1,2]}}"},
      {3, "{'a':{'c':[2,1]}}"},
      {2, "{'a':{'c':[1.0,2]}}"}}},
    {"{'type':'object','properties':{'a':{'enum':[1,2]},'b':{'enum':['x',null]}},'required':['a'],"
     "'additionalProperties':false}",
     true,
     {{0, "{'a':1}"},
      {1, "{'a':2}"},
      {2, "{'a':1,'b':'x'}"},
      {2, "{'b':'x','a':1.0}"},
      {3, "{'a':2,'b':'\\u0078'}"},
      {3, "{'a':2,'b':'x'}"},
      {4, "{'b':null,'a':2}"},
      {4, "{'a':2,'b':null}"},
      {5, "{'a':1,'b':null}"}}},
    {"{'type':'array','items':{'enum':[1,2]},'maxItems':2}",
     false,
     {{0, "[]"}, {1, "[1]"}, {2, "[2]"}, {3, "[1,1]"}, {4, "[1,2]"}, {5, "[2,1]"}, {6, "[2,2.0]"}}},
    {"{'type':'array','uniqueItems':true,'items':{'type':'boolean'}}",
     false,
     {{0, "[]"}, {1, "[true]"}, {2, "[false]"}, {3, "[true,false]"}, {4, "[false,true]"}}},
    {"{'type':'number'}",
     false,
     {{0, "100"}, {0, "1e2"}, {0, "100.00"}, {1, "1e1"}, {2, "-100"}, {3, "0.1"}, {3, "1e-01"}}},
    {"{'type':'integer','minimum':8,'maximum':11}",
     false,
     {{0, "8"}, {0, "8.0"}, {1, "9"}, {2, "10"}, {2, "10.00"}, {3, "11"}}},
    {"{'anyOf':[{'type':'object','properties':{'k':{'const':'a'},'n':{'type':'integer'}},'required'"
     ":['k'],'additionalProperties':false},{'type':'object','properties':{'k':{'const':'b'}},"
     "'required':['k'],'additionalProperties':false},{'type':'null'}]}",
     false,
     {{0, "{'k':'a'}"},
      {1, "{'k':'b'}"},
      {2, "{'k':'a','n':1}"},
      {3, "{'k':'a','n':2}"},
      {4, "null"}}},
    {"{'type':'object','properties':{'a':{'enum':[1,2]},'b':{'enum':[1,3]}},'additionalProperties':"
     "false,'not':{'patternProperties':{'^[ab]$':{'const':1}}}}",
     false,
     {{0, "{'a':2}"},
      {1, "{'b':3}"},
      {2, "{'a':1,'b':3}"},
      {3, "{'a':2,'b':1}"},
      {4, "{'a':2,'b':3}"}}},
    {"{'type':'object','properties':{'c':{'type':'object','properties':{'d':{'const':1}},"
     "'additionalProperties':false}},'additionalProperties':false}",
     false,
     {{0, "{}"}, {1, "{'c':{}}"}, {2, "{'c':{'d':1}}"}}},
};

static void check_texts(di_grammar *g, const domain *d, const int *of, int count) {
    char text[512] = "[", raw[128];
    bool unlike = true;
    for (int i = 0; i < count; i++) {
        quoted(raw, sizeof raw, d->texts[of[i]].text);
        strcat(strcat(text, i ? "," : ""), raw);
        for (int k = 0; k < i; k++) {
            unlike &= d->texts[of[i]].value != d->texts[of[k]].value;
        }
    }
    strcat(text, "]");
    if (test_accepts(g, v, text, strlen(text)) != unlike) {
        fail_msg("%s: %s is %s", d->items, text, unlike ? "refused" : "accepted");
    }
}

/* All arrays of up to three of the texts. */
static void test_arrays_are_accepted_if_no_two_values_are_one(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof domains / sizeof *domains; i++) {
        const domain *d = &domains[i];
        char items[512], schema[600];
        di_grammar_options o;
        di_grammar_options_default(&o);
        o.any_order = d->any_order;
        snprintf(schema, sizeof schema, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":%s}",
                 quoted(items, sizeof items, d->items));
        di_grammar *g = test_compile(v, DI_GRAMMAR_JSON_SCHEMA, schema, &o);
        int n = 0;
        while (n < 14 && d->texts[n].text) {
            n++;
        }
        for (int a = 0; a < n; a++) {
            check_texts(g, d, (int[]){a}, 1);
            for (int b = 0; b < n; b++) {
                check_texts(g, d, (int[]){a, b}, 2);
                for (int c = 0; c < n; c++) {
                    check_texts(g, d, (int[]){a, b, c}, 3);
                }
            }
        }
        di_grammar_release(g);
    }
}

/* ---- random walks ---- */

static bool same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) { /* a double makes zero of 1e-400 */
        double x = json_number_value(a);
        return x == json_number_value(b) && (x > DBL_MIN || x < -DBL_MIN);
    }
    if (json_typeof(a) != json_typeof(b)) {
        return false;
    }
    if (json_is_array(a)) {
        bool equal = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; equal && i < json_array_size(a); i++) {
            equal = same(json_array_get(a, i), json_array_get(b, i));
        }
        return equal;
    }
    if (json_is_object(a)) {
        bool equal = json_object_size(a) == json_object_size(b);
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)a, key, value) {
            const json_t *other = json_object_get(b, key);
            equal = equal && other && same(value, other);
        }
        return equal;
    }
    return json_equal(a, b);
}

/* Of each schema the root is an array of unlike elements, and so are inner ones if it says so. */
static const struct {
    const char *schema;
    bool inner;
} walked[] = {
    {"{'type':'array','uniqueItems':true,'maxItems':5}", false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'object','properties':{'a':{'enum':[1,2]}"
     ",'b':{'type':'boolean'}},'required':['a'],'additionalProperties':false}}",
     false},
    {"{'type':'array','uniqueItems':true,'minItems':2,'items':{'type':'object','properties':{'a':{"
     "'const':1},'b':{'const':2}},'additionalProperties':false}}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'array','uniqueItems':true,'items':{'enum'"
     ":[1,'x',null]},'maxItems':2}}",
     true},
    {"{'type':'array','uniqueItems':true,'items':{'type':'array','items':{'type':'boolean'},"
     "'minItems':1,'maxItems':2}}",
     false},
    {"{'type':'array','uniqueItems':true,'prefixItems':[{'type':'boolean'},{'type':'boolean'},{"
     "'type':'boolean'}],'items':{'type':'null'}}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'integer','minimum':-3,'maximum':12}}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'number'},'maxItems':6}", false},
    {"{'type':'array','uniqueItems':true,'items':{'type':['string','null'],'maxLength':1,'pattern':"
     "'^[ab]*$'}}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'object','properties':{'o':{'type':'object"
     "','properties':{'p':{'enum':[1,2]}},'required':['p'],'additionalProperties':false},'q':{"
     "'enum':['u']}},'required':['o'],'additionalProperties':false,'maxProperties':1}}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'object','properties':{'a':{'enum':[1,2]},"
     "'b':{'enum':[1,2]}},'additionalProperties':false,'not':{'patternProperties':{'^[ab]$':{"
     "'const':1}}}}}",
     false},
    {"{'type':'array','uniqueItems':true,'contains':{'type':'integer'},'minContains':2,'maxItems':"
     "6}",
     false},
    {"{'type':'array','uniqueItems':true,'items':{'type':'object','propertyNames':{'pattern':'^a+$'"
     "},'additionalProperties':{'type':'null'}},'maxItems':4}",
     false},
};

static void assert_unlike(const json_t *array, bool inner, const char *schema, const char *text) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        for (size_t k = 0; k < i; k++) {
            if (same(json_array_get(array, i), json_array_get(array, k))) {
                fail_msg("%s: %s", schema, text);
            }
        }
        if (inner) {
            assert_unlike(json_array_get(array, i), false, schema, text);
        }
    }
}

/* A walk along allowed tokens, more often than not of punctuation. Whether it has come to an end.
 */
static bool walk(di_grammar *g, const char *schema, bool inner) {
    di_error err = {0};
    uint32_t mask[64];
    char text[2048];
    size_t n = 0;
    bool ended = false;
    di_matcher *m = di_matcher_create(g, &err);
    for (int i = 0; i < 160 && !ended; i++) {
        int32_t ids[1024], count = 0;
        if (!di_matcher_mask(m, mask, &err)) {
            fail_msg("%s: behind %.*s: %s", schema, (int)n, text, err.message);
        }
        for (int32_t id = 0; id < v->num_bits; id++) {
            const di_vocab_token *t = &v->tokens[id];
            bool allowed = mask[id / 32] >> id % 32 & 1;
            int copies = t->size == 1 && strchr("\",:]}{[012ab", t->bytes[0]) ? 8 : 1;
            for (int c = 0; allowed && c < copies && count < 1024; c++) {
                ids[count++] = id;
            }
        }
        assert_true(count > 0);
        int32_t id = ids[random_below((uint32_t)count)];
        if (mask[0] >> TEST_STOP & 1 && random_below(2)) {
            id = TEST_STOP;
        }
        if (!di_matcher_push(m, id, &err)) {
            fail_msg("%s: behind %.*s: %s", schema, (int)n, text, err.message);
        }
        for (size_t k = 0; k < v->tokens[id].size; k++) {
            text[n++] = v->tokens[id].bytes[k];
        }
        ended = di_matcher_ended(m);
    }
    if (ended) {
        json_error_t error;
        json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (value) { /* numbers that no double holds are none to it */
            text[n] = 0;
            assert_unlike(value, inner, schema, text);
        }
        ended = value != NULL;
        json_decref(value);
    }
    di_matcher_destroy(m);
    return ended;
}

static void test_walks_end_in_unlike_elements_and_never_without_a_way_on(void **state) {
    (void)state;
    assert_true(v->num_words <= 64);
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.max_whitespace = 0;
    for (size_t i = 0; i < 2 * (sizeof walked / sizeof *walked); i++) {
        char schema[600];
        quoted(schema, sizeof schema, walked[i / 2].schema);
        o.any_order = i % 2;
        di_grammar *g = test_compile(v, DI_GRAMMAR_JSON_SCHEMA, schema, &o);
        int ended = 0;
        for (int k = 0; k < 150; k++) {
            ended += walk(g, schema, walked[i / 2].inner);
        }
        if (ended < 20) {
            fail_msg("%s: %d walks ended", schema, ended);
        }
        di_grammar_release(g);
    }
}

/* ---- what must be refused, and what a long array costs ---- */

static void test_too_few_values_are_an_error(void **state) {
    (void)state;
    static const struct {
        const char *schema, *says;
    } rows[] = {
        {"{'type':'array','uniqueItems':true,'minItems':3,'items':{'type':'boolean'}}", "no value"},
        {"{'type':'array','uniqueItems':true,'minItems':3,'items':{'enum':[1,1.0,2]}}", "no value"},
        {"{'type':'array','uniqueItems':true,'minItems':2,'items':{'type':'object','properties':{'"
         "a'"
         ":{'const':1}},'required':['a'],'additionalProperties':false}}",
         "#/uniqueItems: cannot tell whether there are enough"},
        {"{'type':'array','uniqueItems':true,'items':{'type':'object','maxProperties':1}}",
         "#/uniqueItems: is not enforced over objects"},
        {"{'type':'array','uniqueItems':true,'contains':{'const':1},'minContains':2}",
         "#/uniqueItems: is not enforced beside contains"},
        {"{'type':'array','uniqueItems':true,'items':{'contains':{'const':1},'maxItems':4}}",
         "#/uniqueItems: is not enforced over arrays"},
    };
    char schema[600];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_error err =
            test_refused(v, DI_GRAMMAR_JSON_SCHEMA, quoted(schema, sizeof schema, rows[i].schema));
        if (!strstr(err.message, rows[i].says)) {
            fail_msg("%s: %s", schema, err.message);
        }
    }
}

static void test_a_long_array_takes_little_memory_an_element(void **state) {
    (void)state;
    enum { ELEMENTS = 1000, BYTES_AN_ELEMENT = 250000 };
    char *text = di_alloc(64 * ELEMENTS);
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < ELEMENTS; i++) {
        n += (size_t)sprintf(text + n, "%s{\"id\":%d,\"name\":\"number %d\"}", i ? "," : "", i / 2,
                             i * 7919);
    }
    text[n++] = ']';
    di_grammar *g =
        test_compile(v, DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true}", NULL);
    assert_true(test_accepts(g, v, text, n));
    size_t bytes = di_grammar_measure(g).bytes / ELEMENTS;
    if (bytes > BYTES_AN_ELEMENT) {
        fail_msg("%zu bytes an element", bytes);
    }
    di_grammar_release(g);
    di_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays_are_accepted_if_no_two_values_are_one),
        cmocka_unit_test(test_walks_end_in_unlike_elements_and_never_without_a_way_on),
        cmocka_unit_test(test_too_few_values_are_an_error),
        cmocka_unit_test(test_a_long_array_takes_little_memory_an_element),
    };
    v = test_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    di_vocab_destroy(v);
    return failed;
}

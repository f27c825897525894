/* Every field of a request in JSON: read into its member, under all its names, or refused. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/request_json.h"
#include "support/cmocka.h"

static di_json_request r;
static di_error err;

/* {"prompt":"a",FIELDS} */
static bool read(const char *fields) {
    char json[1024];
    snprintf(json, sizeof json, "{\"prompt\":\"a\",%s}", fields);
    r = (di_json_request){0};
    err = (di_error){0};
    di_prompt_init(&r.prompt, sizeof r.prompt);
    di_request_params_init(NULL, &r.params, sizeof r.params);
    json_t *object = di_json_parse_text(json, strlen(json), DI_JSON_MAX_DEPTH, "line 1", &err);
    bool ok = object && di_json_request_read(&r, object, "line 1", &err);
    json_decref(object);
    return ok;
}

static void must_read(const char *fields) {
    if (!read(fields)) {
        fail_msg("%s: %s", fields, err.message);
    }
}

static void must_refuse(const char *fields, const char *message) {
    bool ok = read(fields);
    di_json_request_clear(&r);
    if (ok || strncmp(err.message, message, strlen(message)) != 0) {
        fail_msg("%s: %s", fields, ok ? "was taken" : err.message);
    }
}

static void test_numbers_and_switches_reach_their_members(void **state) {
    (void)state;
    must_read("\"n\":3,\"min_tokens\":2,\"max_tokens\":9,\"repetition_penalty\":1.5,"
              "\"presence_penalty\":-1,\"frequency_penalty\":0.25,\"echo\":true,\"priority\":-4,"
              "\"deadline\":2.5,\"skip_special_tokens\":true,\"no_prefix_cache\":true,"
              "\"pin_prompt\":true,"
              "\"include_stop\":true,\"cache_salt\":\"tenant\",\"logprobs_mode\":\"processed\"");
    const di_request_params *p = &r.params;
    assert_int_equal(p->n, 3);
    assert_int_equal(p->min_tokens, 2);
    assert_int_equal(p->max_tokens, 9);
    assert_true(p->repetition_penalty == 1.5 && p->presence_penalty == -1);
    assert_true(p->frequency_penalty == 0.25 && p->deadline == 2.5);
    assert_int_equal(p->priority, -4);
    assert_true(p->echo && p->skip_special_tokens && p->no_prefix_cache && p->include_stop);
    assert_true(p->pin_prompt);
    assert_true(p->processed_logprobs);
    assert_string_equal(p->cache_salt, "tenant");
    di_json_request_clear(&r);
}

static void test_other_engines_names_are_understood(void **state) {
    (void)state;
    must_read("\"max_new_tokens\":5,\"sampling_seed\":7,\"no_stop_trim\":true,\"timeout\":3,"
              "\"min_new_tokens\":1,\"skip_reading_prefix_cache\":true");
    assert_int_equal(r.params.max_tokens, 5);
    assert_true(r.params.has_seed && r.params.seed == 7 && r.params.include_stop);
    assert_true(r.params.deadline == 3 && r.params.min_tokens == 1 && r.params.no_prefix_cache);
    di_json_request_clear(&r);
    must_read("\"max_completion_tokens\":6,\"include_stop_str_in_output\":true,"
              "\"first_n_token_no_eos\":1,\"seq_seed\":-1");
    assert_int_equal(r.params.max_tokens, 6);
    assert_true(r.params.include_stop && r.params.min_tokens == 1);
    assert_true(r.params.seed == UINT64_MAX);
    di_json_request_clear(&r);
}

static void test_two_names_of_one_thing_are_refused(void **state) {
    (void)state;
    must_refuse("\"max_tokens\":5,\"max_new_tokens\":5",
                "line 1: max_tokens and max_new_tokens are the same; give one");
    must_refuse("\"deadline\":5,\"timeout\":5", "line 1: deadline and timeout are the same");
    must_refuse("\"include_stop\":true,\"no_stop_trim\":true", "line 1: include_stop and no_stop");
    must_refuse("\"min_tokens\":1,\"first_n_token_no_eos\":1", "line 1: min_tokens and first_n");
    must_read("\"max_tokens\":5,\"max_new_tokens\":null");
    di_json_request_clear(&r);
}

static void test_lists_are_read(void **state) {
    (void)state;
    must_read("\"stop\":\"END\",\"stop_token_ids\":[4,5],\"bad_words\":[\"x\",\"yz\"],"
              "\"logit_bias\":{\"17\":-100,\"4\":2.5},\"allowed_token_ids\":[1],"
              "\"golden_token_ids\":[9,-1]");
    const di_request_params *p = &r.params;
    assert_int_equal(p->num_stop, 1);
    assert_string_equal(p->stop[0], "END");
    assert_int_equal(p->num_stop_token_ids, 2);
    assert_int_equal(p->stop_token_ids[1], 5);
    assert_int_equal(p->num_bad_words, 2);
    assert_string_equal(p->bad_words[1], "yz");
    assert_int_equal(p->num_logit_bias, 2);
    float sum = 0;
    for (size_t i = 0; i < 2; i++) {
        sum += (float)p->logit_bias[i].token_id * p->logit_bias[i].bias;
    }
    assert_true(sum == 17 * -100.f + 4 * 2.5f);
    assert_int_equal(p->allowed_token_ids[0], 1);
    assert_int_equal(p->golden_token_ids[1], -1);
    di_json_request_clear(&r);
}

static void test_empty_lists_ask_for_nothing(void **state) {
    (void)state;
    must_read("\"stop\":[],\"stop_token_ids\":[],\"bad_words\":[],\"logit_bias\":{},"
              "\"golden_token_ids\":[]");
    assert_true(!r.params.stop && !r.params.stop_token_ids && !r.params.bad_words);
    assert_true(!r.params.logit_bias && !r.params.golden_token_ids);
    di_json_request_clear(&r);
}

static void test_logprobs_are_a_switch_or_a_number(void **state) {
    (void)state;
    must_read("\"logprobs\":true");
    assert_true(r.params.logprobs && r.params.top_logprobs == 0);
    di_json_request_clear(&r);
    must_read("\"logprobs\":0");
    assert_true(r.params.logprobs && r.params.top_logprobs == 0);
    di_json_request_clear(&r);
    must_read("\"logprobs\":true,\"top_logprobs\":3");
    assert_true(r.params.logprobs && r.params.top_logprobs == 3);
    di_json_request_clear(&r);
    must_read("\"prompt_logprobs\":5,\"logprobs\":5");
    assert_true(r.params.logprobs && r.params.prompt_logprobs && r.params.top_logprobs == 5);
    di_json_request_clear(&r);
    must_refuse("\"prompt_logprobs\":5,\"logprobs\":2",
                "line 1: logprobs is 2 but prompt_logprobs");
    must_refuse("\"logprobs\":2,\"top_logprobs\":3", "line 1: logprobs is 2 but top_logprobs is 3");
    must_refuse("\"top_logprobs\":3", "line 1: top_logprobs is 3 without logprobs");
    must_refuse("\"logprobs\":-1", "line 1: top_logprobs is -1, allowed are 0 to 1000");
    must_refuse("\"logprobs\":\"yes\"",
                "line 1: logprobs is a string, true, false or a number expected");
}

static void must_constrain(const char *fields, di_schema_type type, const char *schema) {
    must_read(fields);
    assert_int_equal(r.params.schema_type, type);
    if (schema) {
        size_t size = r.params.schema_bytes ? r.params.schema_bytes : strlen(r.params.schema);
        assert_int_equal(size, strlen(schema));
        assert_memory_equal(r.params.schema, schema, size);
    } else {
        assert_null(r.params.schema);
    }
    di_json_request_clear(&r);
}

static void test_structured_output_is_read_under_all_its_names(void **state) {
    (void)state;
    must_constrain("\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a+\"}", DI_SCHEMA_REGEX,
                   "a+");
    must_constrain("\"so_args\":{\"schema_type\":\"json\",\"schema\":\"{}\"}", DI_SCHEMA_JSON,
                   "{}");
    must_constrain("\"so_args\":{\"schema_type\":\"json_object\"}", DI_SCHEMA_JSON_OBJECT, NULL);
    must_constrain("\"so_args\":{\"schema_type\":\"tools\",\"schema\":[{\"name\":\"f\"}]}",
                   DI_SCHEMA_TOOLS, "[{\"name\":\"f\"}]");
    must_constrain("\"so_args\":{\"schema_type\":\"tools_or_content\",\"schema\":{\"tools\":"
                   "[{\"name\":\"f\"}],\"schema\":true}}",
                   DI_SCHEMA_TOOLS_OR_CONTENT, "{\"tools\":[{\"name\":\"f\"}],\"schema\":true}");
    must_constrain("\"response_format\":{\"type\":\"text\"}", DI_SCHEMA_NONE, NULL);
    must_constrain("\"response_format\":{\"type\":\"json_object\"}", DI_SCHEMA_JSON_OBJECT, NULL);
    must_constrain("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                   "{\"name\":\"n\",\"schema\":{\"multipleOf\":0.1,\"maximum\":1e3}}}",
                   DI_SCHEMA_JSON, "{\"multipleOf\":0.1,\"maximum\":1000.0}");
    must_constrain("\"structured_outputs\":{\"regex\":\"b\"}", DI_SCHEMA_REGEX, "b");
    must_constrain("\"structured_outputs\":{\"json\":{\"type\":\"null\"}}", DI_SCHEMA_JSON,
                   "{\"type\":\"null\"}");
    must_constrain("\"structured_outputs\":{\"json_object\":true}", DI_SCHEMA_JSON_OBJECT, NULL);
    must_constrain("\"structured_outputs\":{\"grammar\":\"root ::= []\"}", DI_SCHEMA_EBNF,
                   "root ::= []");
    must_constrain("\"guided_choice\":[\"a\\\"b\",\"c\\n\"]", DI_SCHEMA_EBNF,
                   "root ::= \"a\\u0022b\" | \"c\\u000a\"");
    must_constrain("\"guided_json\":\"true\"", DI_SCHEMA_JSON, "true");
    must_constrain("\"guided_regex\":\"c\"", DI_SCHEMA_REGEX, "c");
    must_constrain("\"json_schema\":\"{}\"", DI_SCHEMA_JSON, "{}");
    must_constrain("\"regex\":\"d\"", DI_SCHEMA_REGEX, "d");
    must_constrain("\"ebnf\":\"root ::= a\"", DI_SCHEMA_EBNF, "root ::= a");
}

static void test_triggers_and_options_are_read(void **state) {
    (void)state;
    must_read("\"so_args\":{\"schema_type\":\"json\",\"schema\":\"{}\",\"trigger_token_ids\":"
              "[7,8],\"bound_token_id\":9,\"strict\":false,\"lenient\":true,\"any_order\":true,"
              "\"max_whitespace\":0}");
    assert_int_equal(r.params.num_trigger_token_ids, 2);
    assert_int_equal(r.params.trigger_token_ids[1], 8);
    assert_int_equal(r.params.bound_token_id, 9);
    assert_true(!r.params.schema_strict && r.params.schema_lenient && r.params.schema_any_order);
    assert_int_equal(r.params.schema_max_whitespace, 0);
    di_json_request_clear(&r);
    must_read("\"so_args\":{\"schema_type\":\"json\",\"schema\":\"{}\"}");
    assert_true(r.params.schema_strict && r.params.schema_max_whitespace == 32); /* the release's */
    assert_int_equal(r.params.bound_token_id, -1);
    di_json_request_clear(&r);
    must_read("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}");
    assert_false(r.params.schema_strict);
    di_json_request_clear(&r);
}

static void test_bad_structured_output_is_refused_by_field(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"guided_json\":{},\"guided_regex\":\"a\"",
         "line 1: guided_json and guided_regex both constrain the answer; give one"},
        {"\"json_schema\":\"{}\",\"regex\":\"a\"",
         "line 1: json_schema and regex both constrain the answer; give one"},
        {"\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}",
         "line 1: structured_outputs: json and regex both constrain the answer; give one"},
        {"\"structured_outputs\":{}", "line 1: structured_outputs needs one of json, regex"},
        {"\"structured_outputs\":{\"structural_tag\":\"x\"}",
         "line 1: structured_outputs.structural_tag is not supported"},
        {"\"so_args\":7", "line 1: so_args is an integer, an object expected"},
        {"\"so_args\":{\"schema_type\":\"xml\",\"schema\":\"a\"}",
         "line 1: so_args.schema_type is \"xml\", allowed are \"json\","},
        {"\"so_args\":{\"schema\":\"a\"}",
         "line 1: so_args.schema_type is missing, a string expected"},
        {"\"so_args\":{\"schema_type\":\"json\"}", "line 1: so_args.schema is missing, a schema"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":{}}",
         "line 1: so_args.schema is an object, a string expected"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"\"}",
         "line 1: so_args.schema is empty"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"bound_token_id\":4}",
         "line 1: bound_token_id is 4 without trigger_token_ids"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"trigger_token_ids\":[-4]}",
         "line 1: so_args.trigger_token_ids[0] is no token id"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"trigger_token_ids\":[4]},"
         "\"stop_token_ids\":[4]",
         "line 1: trigger_token_ids can never appear: 4 is in stop_token_ids"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"trigger_token_ids\":[4]},"
         "\"allowed_token_ids\":[5]",
         "line 1: trigger_token_ids can never appear: 4 is not in allowed_token_ids"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"trigger_token_ids\":[4,5]},"
         "\"max_tokens\":2",
         "line 1: trigger_token_ids has 2 ids, max_tokens is 2: nothing can follow it"},
        {"\"so_args\":{\"schema_type\":\"tools\",\"schema\":[],\"trigger_token_ids\":[4]}",
         "line 1: trigger_token_ids are given, but schema_type is tools"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schema\":\"a\",\"serialized\":1}",
         "line 1: so_args.serialized is not supported"},
        {"\"so_args\":{\"schema_type\":\"regex\",\"schem\":\"a\"}",
         "line 1: unknown field so_args.schem; did you mean schema"},
        {"\"so_args\":{\"schema_type\":\"json\",\"schema\":{},\"max_whitespace\":-1}",
         "line 1: so_args: max_whitespace is -1, allowed are 0 to 1000"},
        {"\"response_format\":{}", "line 1: response_format.type is missing, a string expected"},
        {"\"response_format\":{\"type\":\"yaml\"}",
         "line 1: response_format.type is \"yaml\", allowed are"},
        {"\"response_format\":{\"type\":\"json_schema\"}",
         "line 1: response_format.json_schema is missing, an object expected"},
        {"\"guided_choice\":[]", "line 1: guided_choice is empty"},
        {"\"guided_choice\":[\"a\",1]", "line 1: guided_choice[1] is an integer, a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must_refuse(cases[i][0], cases[i][1]);
    }
}

static void test_bad_values_are_refused_by_field_and_range(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"n\":0", "line 1: n is 0, allowed are 1 to 128"},
        {"\"n\":129", "line 1: n is 129, allowed are 1 to 128"},
        {"\"n\":1.5", "line 1: n is a number, an integer expected"},
        {"\"n\":2,\"golden_token_ids\":[1]", "line 1: n is 2, with golden_token_ids only 1"},
        {"\"presence_penalty\":2.5", "line 1: presence_penalty is 2.5, allowed are -2 to 2"},
        {"\"frequency_penalty\":-3", "line 1: frequency_penalty is -3, allowed are -2 to 2"},
        {"\"repetition_penalty\":0", "line 1: repetition_penalty is 0, allowed are 1e-06 to 100"},
        {"\"min_tokens\":-1", "line 1: min_tokens is -1, allowed are 0 to 2147483647"},
        {"\"min_tokens\":9,\"max_tokens\":8", "line 1: min_tokens is 9, max_tokens only 8"},
        {"\"max_tokens\":0", "line 1: max_tokens is 0, allowed are 1 to 2147483647"},
        {"\"deadline\":0", "line 1: deadline is 0, allowed are 0.001 to 1e+09"},
        {"\"echo\":1", "line 1: echo is an integer, a boolean expected"},
        {"\"stop\":7", "line 1: stop is an integer, a string or an array of strings expected"},
        {"\"stop\":[\"\"]", "line 1: stop[0] is empty"},
        {"\"stop\":[\"a\",null]", "line 1: stop[1] is null"},
        {"\"stop\":\"a\\u0000b\"", "line 1: stop[0] is a string with a NUL"},
        {"\"stop_token_ids\":4", "line 1: stop_token_ids is an integer, an array expected"},
        {"\"stop_token_ids\":[4294967296]", "line 1: stop_token_ids[0] is no token id"},
        {"\"logit_bias\":[]", "line 1: logit_bias is an array, an object of token ids"},
        {"\"logit_bias\":{\"x\":1}", "line 1: logit_bias: \"x\" is no token id"},
        {"\"logit_bias\":{\"1e3\":1}", "line 1: logit_bias: \"1e3\" is no token id"},
        {"\"logit_bias\":{\"-1\":1}", "line 1: logit_bias: \"-1\" is no token id"},
        {"\"logit_bias\":{\"5\":101}", "line 1: logit_bias of token 5 is out of range"},
        {"\"logit_bias\":{\"5\":\"much\"}", "line 1: logit_bias of token 5 is a string"},
        {"\"logprobs_mode\":\"cooked\"", "line 1: logprobs_mode is \"cooked\", allowed are"},
        {"\"cache_salt\":\"a\\u0000\"", "line 1: cache_salt holds a NUL character"},
        {"\"stopp\":\"x\"", "line 1: unknown field stopp; did you mean stop?"},
        {"\"max_token\":3", "line 1: unknown field max_token; did you mean max_tokens?"},
        {"\"xyzzy\":3", "line 1: unknown field xyzzy"},
        {"\"best_of\":3", "line 1: best_of is not supported by this version"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must_refuse(cases[i][0], cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_and_switches_reach_their_members),
        cmocka_unit_test(test_other_engines_names_are_understood),
        cmocka_unit_test(test_two_names_of_one_thing_are_refused),
        cmocka_unit_test(test_lists_are_read),
        cmocka_unit_test(test_empty_lists_ask_for_nothing),
        cmocka_unit_test(test_logprobs_are_a_switch_or_a_number),
        cmocka_unit_test(test_structured_output_is_read_under_all_its_names),
        cmocka_unit_test(test_triggers_and_options_are_read),
        cmocka_unit_test(test_bad_structured_output_is_refused_by_field),
        cmocka_unit_test(test_bad_values_are_refused_by_field_and_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

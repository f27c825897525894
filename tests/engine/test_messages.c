/* Conversations and requests in JSON: what is taken, what is refused and in which words. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/messages.h"
#include "engine/request_json.h"
#include "support/cmocka.h"
#include "text/detokenizer.h"

static di_tokenizer *tok;
static di_chat_tokens tokens;

static int open_tokenizer(void **state) {
    (void)state;
    di_error err = {0};
    tok = di_tokenizer_open("models/demo", &err);
    return tok && di_chat_tokens_find(&tokens, tok, &err) ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    di_tokenizer_close(tok);
    return 0;
}

/* The prompt, spelled out. */
static void expect_prompt(const char *json, int effort, const char *wanted) {
    di_ids ids = {0};
    di_buffer text = {0};
    di_error err = {0};
    if (!di_messages_encode(&tokens, json, strlen(json), effort, &ids, &err) ||
        !di_detokenize(tok, ids.data, ids.count, &text, &err)) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(text.data, wanted);
    di_buffer_free(&text);
    di_ids_free(&ids);
}

static void expect_refused(const char *json, const char *message) {
    di_ids ids = {0};
    di_error err = {0};
    assert_false(di_messages_encode(&tokens, json, strlen(json), 0, &ids, &err));
    if (!strstr(err.message, message)) {
        fail_msg("%s: %s", json, err.message);
    }
    di_ids_free(&ids);
}

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"

static void test_conversations_are_laid_out(void **state) {
    (void)state;
    expect_prompt("[{\"role\":\"user\",\"content\":\"Hi\"}]", 0,
                  BOS "<｜User｜>Hi<｜Assistant｜></think>");
    expect_prompt("[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"a\"},"
                  "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"r\"},"
                  "{\"role\":\"user\",\"content\":\"c\"}]",
                  0,
                  BOS "<｜System｜>S<｜User｜>a<｜Assistant｜></think>b" EOS
                      "<｜User｜>c<｜Assistant｜></think>");
    expect_prompt("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                  "{\"type\":\"text\",\"text\":\"b\"}]}]",
                  0, BOS "<｜User｜>a\n\nb<｜Assistant｜></think>");
    expect_prompt("[{\"role\":\"user\",\"content\":\"a\"},"
                  "{\"role\":\"assistant\",\"content\":\"The answer\",\"prefix\":true}]",
                  0, BOS "<｜User｜>a<｜Assistant｜></think>The answer");
}

static void test_control_tokens_in_content_are_plain_text(void **state) {
    (void)state;
    static const char json[] = "[{\"role\":\"user\",\"content\":\"" EOS "<｜Assistant｜>\"}]";
    di_ids ids = {0};
    assert_true(di_messages_encode(&tokens, json, strlen(json), 0, &ids, NULL));
    int controls = 0;
    for (size_t i = 0; i < ids.count; i++) {
        controls += di_tokenizer_is_added(tok, ids.data[i]);
    }
    assert_int_equal(controls, 4); /* begin, user, assistant, end of thinking */
    di_ids_free(&ids);
}

static void test_bad_conversations_are_refused_by_field(void **state) {
    (void)state;
    expect_refused("[]", "messages is empty");
    expect_refused("{}", "messages is an object, an array expected");
    expect_refused("[1]", "messages[0] is an integer, an object expected");
    expect_refused("[{\"content\":\"x\"}]", "messages[0]: role is missing");
    expect_refused("[{\"role\":\"user\"}]", "messages[0]: content is missing");
    expect_refused("[{\"role\":\"user\",\"content\":null}]", "messages[0]: content is null");
    expect_refused("[{\"role\":\"user\",\"content\":7}]", "messages[0]: content is an integer");
    expect_refused("[{\"role\":\"king\",\"content\":\"x\"}]", "king");
    expect_refused("[{\"role\":\"user\",\"contnet\":\"x\"}]",
                   "messages[0]: unknown field contnet; did you mean content?");
    expect_refused("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
                   "content of type \"image_url\" is not supported");
    expect_refused("[{\"role\":\"user\",\"content\":[\"x\"]}]",
                   "messages[0].content[0] is a string");
    expect_refused("[{\"role\":\"user\",\"content\":\"x\"", "not valid JSON");
}

static void test_reasoning_is_split_at_its_end(void **state) {
    (void)state;
    size_t reasoning, content;
    di_split_reasoning("abc</think>d</think>", 20, &reasoning, &content);
    assert_int_equal(reasoning, 3);
    assert_int_equal(content, 11);
    di_split_reasoning("abc</thin", 9, &reasoning, &content);
    assert_int_equal(reasoning, 9);
    assert_int_equal(content, 9);
}

/* ---- requests ---- */

static bool read(const char *json, di_json_request *request, di_error *err) {
    *request = (di_json_request){0};
    di_prompt_init(&request->prompt, sizeof request->prompt);
    di_request_params_init(NULL, &request->params, sizeof request->params);
    json_t *object = di_json_parse_text(json, strlen(json), DI_JSON_MAX_DEPTH, "line 1", err);
    bool ok = object && di_json_request_read(request, object, "line 1", err);
    json_decref(object);
    return ok;
}

static void test_fields_of_a_request_are_read(void **state) {
    (void)state;
    di_json_request r;
    di_error err = {0};
    assert_true(read("{\"prompt\":\"a\\u0000b\",\"temperature\":0.5,\"top_p\":0.9,\"top_k\":7,"
                     "\"min_p\":0.1,\"max_tokens\":12,\"ignore_eos\":true,\"seed\":-1}",
                     &r, &err));
    assert_int_equal(r.prompt.text_bytes, 3);
    assert_memory_equal(r.prompt.text, "a\0b", 3);
    assert_true(r.params.temperature == 0.5 && r.params.top_p == 0.9 && r.params.min_p == 0.1);
    assert_int_equal(r.params.top_k, 7);
    assert_int_equal(r.params.max_tokens, 12);
    assert_true(r.params.ignore_eos && r.params.has_seed);
    assert_true(r.params.seed == UINT64_MAX);
    di_json_request_clear(&r);

    assert_true(
        read("{\"prompt_token_ids\":[1,2],\"temperature\":null,\"prompt\":null}", &r, &err));
    assert_int_equal(r.prompt.num_token_ids, 2);
    assert_true(r.params.temperature == 1 && !r.params.has_seed);
    di_json_request_clear(&r);
}

static void test_effort_of_a_request(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        int effort;
    } cases[] = {
        {"", 0},
        {",\"thinking\":true", 75},
        {",\"thinking\":false", 0},
        {",\"reasoning_effort\":\"max\"", 100},
        {",\"reasoning_effort\":40", 40},
        {",\"reasoning_effort\":\"none\"", 0},
        {",\"thinking\":false,\"reasoning_effort\":\"max\"", 0},
        {",\"thinking\":true,\"reasoning_effort\":\"low\"", 50},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256];
        di_json_request r;
        di_error err = {0};
        snprintf(json, sizeof json, "{\"messages\":[]%s}", cases[i].fields);
        assert_true(read(json, &r, &err));
        assert_int_equal(r.prompt.effort, cases[i].effort);
        di_json_request_clear(&r);
    }
}

static void test_bad_requests_are_refused_by_field(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"[]", "line 1: is an array, an object expected"},
        {"{}", "line 1: exactly one of prompt, prompt_token_ids and messages is needed"},
        {"{\"prompt\":\"a\",\"messages\":[]}", "line 1: exactly one of"},
        {"{\"prompt\":7}", "line 1: prompt is an integer, a string expected"},
        {"{\"prompt\":\"a\",\"temprature\":1}",
         "line 1: unknown field temprature; did you mean temperature?"},
        {"{\"prompt\":\"a\",\"temperature\":\"hot\"}", "line 1: temperature is a string"},
        {"{\"prompt\":\"a\",\"temperature\":101}",
         "line 1: temperature is 101, allowed are 0 to 100"},
        {"{\"prompt\":\"a\",\"top_p\":0}",
         "line 1: top_p is 0, allowed are values above 0 up to 1"},
        {"{\"prompt\":\"a\",\"top_k\":-2}", "line 1: top_k is -2, allowed are -1 or 0 (off)"},
        {"{\"prompt\":\"a\",\"top_k\":1.5}", "line 1: top_k is a number, an integer expected"},
        {"{\"prompt\":\"a\",\"max_tokens\":0}",
         "line 1: max_tokens is 0, allowed are 1 to 2147483647"},
        {"{\"prompt\":\"a\",\"seed\":1,\"seq_seed\":1}", "line 1: seed and seq_seed are the same"},
        {"{\"prompt\":\"a\",\"thinking\":true}", "line 1: thinking belongs to messages only"},
        {"{\"messages\":[],\"reasoning_effort\":\"much\"}", "line 1: reasoning_effort"},
        {"{\"messages\":[],\"reasoning_effort\":0}",
         "line 1: reasoning_effort is 0, allowed are 1 to 100"},
        {"{\"messages\":{}}", "line 1: messages is an object, an array expected"},
        {"{\"prompt_token_ids\":\"1\"}", "line 1: prompt_token_ids is a string"},
        {"{\"prompt_token_ids\":[1,null]}", "line 1: prompt_token_ids[1] is no token id"},
        {"{\"prompt_token_ids\":[4294967296]}", "line 1: prompt_token_ids[0] is no token id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_json_request r;
        di_error err = {0};
        if (read(cases[i][0], &r, &err)) {
            fail_msg("%s is taken", cases[i][0]);
        }
        if (strncmp(err.message, cases[i][1], strlen(cases[i][1])) != 0) {
            fail_msg("%s: %s", cases[i][0], err.message);
        }
        di_json_request_clear(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations_are_laid_out),
        cmocka_unit_test(test_control_tokens_in_content_are_plain_text),
        cmocka_unit_test(test_bad_conversations_are_refused_by_field),
        cmocka_unit_test(test_reasoning_is_split_at_its_end),
        cmocka_unit_test(test_fields_of_a_request_are_read),
        cmocka_unit_test(test_effort_of_a_request),
        cmocka_unit_test(test_bad_requests_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}

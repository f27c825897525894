/* Structured output in the engine: every answer keeps to its grammar, whatever else the request
 * asks for, with drafts and without; what cannot be is told by field; what fails is one request. */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "support/cmocka.h"
#include "support/requests.h"

#define QUESTION "[{\"role\":\"user\",\"content\":\"Who wrote Dracula?\"}]"
#define BOOK                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":12},"       \
    "\"year\":{\"type\":\"integer\",\"minimum\":1000,\"maximum\":2100},"                           \
    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},"            \
    "\"required\":[\"title\",\"year\",\"tags\"],\"additionalProperties\":false}"
#define CODE "[a-z]{3,9}-[0-9]{4}"

enum { EOS = 1 };

static di_request_params constrained(di_request_params p, di_schema_type type, const char *text) {
    p.schema_type = type;
    p.schema = text;
    return p;
}

static answer say(di_engine *e, di_request_params p) {
    return answer_of(e, messages_prompt(QUESTION), p);
}

static void expect_matches(const char *text, const char *pattern) {
    regex_t r;
    char anchored[1024];
    snprintf(anchored, sizeof anchored, "^(%s)$", pattern);
    assert_int_equal(regcomp(&r, anchored, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&r, text, 0, NULL, 0) != 0) {
        fail_msg("\"%s\" does not match %s", text, pattern);
    }
    regfree(&r);
}

static void expect_book(const char *text) {
    di_error err = {0};
    json_t *book = di_json_parse_text(text, strlen(text), 8, "the answer", &err);
    if (!book) {
        fail_msg("%s: %s", err.message, text);
    }
    double year = json_number_value(json_object_get(book, "year")); /* 1897.0 is an integer */
    assert_int_equal(json_object_size(book), 3);
    assert_true(json_is_string(json_object_get(book, "title")) && year >= 1000 && year <= 2100);
    assert_true(json_array_size(json_object_get(book, "tags")) <= 3);
    json_decref(book);
}

static void test_answers_match_their_expression(void **state) {
    di_engine *e = *state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        di_request_params p = seed ? seeded(seed, 40) : greedy(40);
        answer a = say(e, constrained(p, DI_SCHEMA_REGEX, CODE));
        assert_int_equal(a.reason, DI_FINISH_STOP);
        assert_int_equal(a.stop_token_id, EOS);
        expect_matches(a.text, CODE);
        answer_clear(&a);
    }
}

static void test_answers_are_what_the_schema_allows(void **state) {
    di_engine *e = *state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        di_request_params p = seed ? seeded(seed, 300) : greedy(300);
        p.temperature = seed % 3 ? p.temperature : 3;
        answer a = say(e, constrained(p, DI_SCHEMA_JSON, BOOK));
        assert_int_equal(a.reason, DI_FINISH_STOP);
        expect_book(a.text);
        answer_clear(&a);
    }
}

static void test_json_without_a_schema_is_an_object_or_any_value(void **state) {
    di_engine *e = *state;
    di_error err = {0};
    for (uint64_t seed = 1; seed < 12; seed++) {
        bool object = seed % 2;
        di_request_params p = seeded(seed, 300);
        answer a = say(e, constrained(p, object ? DI_SCHEMA_JSON_OBJECT : DI_SCHEMA_JSON, NULL));
        if (a.reason == DI_FINISH_STOP) {
            json_t *value = json_loadb(a.text, a.text_bytes, JSON_DECODE_ANY, NULL);
            if (!value) {
                fail_msg("no JSON: %s (%s)", a.text, err.message);
            }
            assert_true(!object || json_is_object(value));
            json_decref(value);
        }
        answer_clear(&a);
    }
}

/* Bias towards what is not allowed, penalties and a list of ids change nothing about the language.
 */
static void test_a_grammar_holds_with_penalties_bias_and_allowed_ids(void **state) {
    di_engine *e = *state;
    di_bias bias[40];
    for (int i = 0; i < 40; i++) {
        bias[i] = (di_bias){1600 + i, 50};
    }
    for (uint64_t seed = 1; seed < 12; seed++) {
        di_request_params p = constrained(seeded(seed, 300), DI_SCHEMA_JSON, BOOK);
        p.repetition_penalty = 1.4;
        p.frequency_penalty = 0.7;
        p.presence_penalty = -0.5;
        p.logit_bias = bias;
        p.num_logit_bias = 40;
        answer a = say(e, p);
        assert_int_equal(a.reason, DI_FINISH_STOP);
        expect_book(a.text);
        answer_clear(&a);
    }
}

static void test_no_legal_token_ends_that_request_alone(void **state) {
    di_engine *e = *state;
    static const int32_t allowed[] = {300, 301};
    di_request_params good = constrained(greedy(40), DI_SCHEMA_REGEX, CODE), bad = good;
    bad.allowed_token_ids = allowed;
    bad.num_allowed_token_ids = 2;
    bad.schema = "[0-9]{8}";
    answer answers[2] = {0};
    di_queue *q = open_queue(e);
    submit(e, q, messages_prompt(QUESTION), bad, &answers[0]);
    submit(e, q, messages_prompt(QUESTION), good, &answers[1]);
    read_answers(q, 2);
    assert_int_equal(answers[0].reason, DI_FINISH_ERROR);
    assert_non_null(strstr(answers[0].error.message, "no legal token"));
    assert_int_equal(answers[1].reason, DI_FINISH_STOP);
    expect_matches(answers[1].text, CODE);
    answer_clear(&answers[0]);
    answer_clear(&answers[1]);
    di_queue_destroy(q);
}

/* min_tokens does not keep a text from ending that cannot go on. */
static void test_min_tokens_give_way_where_only_the_end_is_left(void **state) {
    di_engine *e = *state;
    di_request_params p = constrained(greedy(40), DI_SCHEMA_REGEX, "()");
    p.min_tokens = 5;
    answer a = say(e, p);
    assert_int_equal(a.reason, DI_FINISH_STOP);
    assert_int_equal(a.num_tokens, 1);
    answer_clear(&a);
    p.schema = "a*";
    a = say(e, p);
    assert_int_equal(a.reason, DI_FINISH_STOP);
    assert_true(a.num_tokens > 5);
    expect_matches(a.text, "a*");
    answer_clear(&a);
}

static void test_behind_the_end_nothing_else_comes(void **state) {
    di_engine *e = *state;
    di_request_params p = constrained(greedy(9), DI_SCHEMA_REGEX, "ab");
    p.ignore_eos = true;
    answer a = say(e, p);
    assert_int_equal(a.reason, DI_FINISH_LENGTH);
    for (size_t i = a.num_tokens - 7; i < a.num_tokens; i++) {
        assert_int_equal(a.tokens[i], EOS);
    }
    answer_clear(&a);
}

static void test_max_tokens_cut_a_text(void **state) {
    di_engine *e = *state;
    answer a = say(e, constrained(greedy(3), DI_SCHEMA_JSON, BOOK));
    assert_int_equal(a.reason, DI_FINISH_LENGTH);
    assert_int_equal(a.num_tokens, 3);
    answer_clear(&a);
}

static void test_choices_have_grammars_of_their_own(void **state) {
    di_engine *e = *state;
    di_request_params p = constrained(seeded(5, 40), DI_SCHEMA_REGEX, CODE);
    p.n = 4;
    answer answers[4] = {0};
    di_queue *q = open_queue(e);
    submit(e, q, messages_prompt(QUESTION), p, answers);
    read_answers(q, 4);
    bool differ = false;
    for (int i = 0; i < 4; i++) {
        expect_matches(answers[i].text, CODE);
        differ = differ || strcmp(answers[i].text, answers[0].text) != 0;
    }
    assert_true(differ);
    for (int i = 0; i < 4; i++) {
        answer_clear(&answers[i]);
    }
    di_queue_destroy(q);
}

/* ---- free text first ---- */

static int32_t id_of(di_engine *e, const char *text) {
    answer a;
    di_request_params p = greedy(1);
    p.prompt_logprobs = true;
    a = answer_of(e, text_prompt(text), p);
    int32_t id = a.prompt[a.prompt_tokens - 1].token_id;
    answer_clear(&a);
    return id;
}

static void test_reasoning_stays_free(void **state) {
    di_engine *e = *state;
    di_prompt prompt = messages_prompt(QUESTION);
    prompt.effort = 50;
    for (uint64_t seed = 1; seed < 6; seed++) {
        answer a = answer_of(e, prompt, constrained(seeded(seed, 200), DI_SCHEMA_REGEX, CODE));
        char *end = strstr(a.text, "</think>");
        if (a.reason == DI_FINISH_STOP && end) {
            expect_matches(end + strlen("</think>"), CODE);
            assert_true(end > a.text);
        } else {
            assert_int_equal(a.reason, DI_FINISH_LENGTH);
        }
        answer_clear(&a);
    }
}

/* Golden ids lead the answer to the trigger; from there the grammar decides. */
static void test_the_grammar_begins_behind_the_trigger(void **state) {
    di_engine *e = *state;
    const int32_t golden[] = {300, 301, 300, 301, 302, -1};
    const int32_t trigger[] = {300, 301, 302};
    di_request_params p = constrained(greedy(40), DI_SCHEMA_REGEX, CODE);
    p.golden_token_ids = golden;
    p.num_golden_token_ids = 6;
    p.trigger_token_ids = trigger;
    p.num_trigger_token_ids = 3;
    answer free_text = say(e, p);
    p.num_trigger_token_ids = 0;
    p.trigger_token_ids = NULL;
    p.schema_type = DI_SCHEMA_NONE;
    p.schema = NULL;
    p.max_tokens = 5;
    answer golden_text = say(e, p);
    assert_memory_equal(free_text.text, golden_text.text, golden_text.text_bytes);
    expect_matches(free_text.text + golden_text.text_bytes, CODE);
    assert_int_equal(free_text.reason, DI_FINISH_STOP);
    answer_clear(&free_text);
    answer_clear(&golden_text);
}

/* What of the trigger had come before the bound counts. */
static void test_behind_the_bound_the_trigger_is_forced(void **state) {
    di_engine *e = *state;
    const int32_t golden[] = {310, 300, 301, -1}, trigger[] = {300, 301, 302, 303};
    di_request_params p = constrained(greedy(40), DI_SCHEMA_REGEX, CODE);
    p.golden_token_ids = golden;
    p.num_golden_token_ids = 4;
    p.trigger_token_ids = trigger;
    p.num_trigger_token_ids = 4;
    p.bound_token_id = 301;
    answer a = say(e, p);
    assert_int_equal(a.tokens[3], 302);
    assert_int_equal(a.tokens[4], 303);
    assert_int_equal(a.reason, DI_FINISH_STOP);
    answer_clear(&a);
}

static void test_a_forced_token_outside_the_grammar_is_an_error(void **state) {
    di_engine *e = *state;
    const int32_t golden[] = {1600};
    di_request_params p = constrained(greedy(40), DI_SCHEMA_REGEX, "[0-9]+");
    p.golden_token_ids = golden;
    p.num_golden_token_ids = 1;
    answer a = say(e, p);
    assert_int_equal(a.reason, DI_FINISH_ERROR);
    assert_non_null(strstr(a.error.message, "the grammar does not allow token 1600 here"));
    answer_clear(&a);
}

/* ---- calls of tools ---- */

#define MARK "｜DSML｜"

static const char tools[] =
    "[{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":"
    "{\"type\":\"string\",\"maxLength\":6},\"days\":{\"enum\":[1,2,3]}},\"required\":[\"city\"],"
    "\"additionalProperties\":false}},{\"name\":\"now\"}]";

/* One call or more, to the end of the text. */
static void expect_calls(const char *text) {
    expect_matches(text,
                   "(<" MARK " invoke name=\"(weather\">\n<" MARK
                   " parameter name=\"city\" string=\"true\">.{0,24}</" MARK " parameter>\n(<" MARK
                   " parameter name=\"days\" string=\"false\">[123](\\.0+)?</" MARK
                   " parameter>\n)?|now\">\n\n)</" MARK " invoke>\n)+</" MARK " calls>");
}

static void test_calls_follow_the_tools(void **state) {
    di_engine *e = *state;
    int ended = 0, called = 0;
    for (uint64_t seed = 1; seed < 12; seed++) {
        di_request_params p = constrained(seeded(seed, 200), DI_SCHEMA_TOOLS_REQUIRED, tools);
        answer a = say(e, p);
        static const char begin[] = "\n\n<" MARK " calls>\n";
        assert_memory_equal(a.text, begin, strlen(begin));
        if (a.reason == DI_FINISH_STOP) {
            expect_calls(a.text + strlen(begin));
            ended++;
        }
        answer_clear(&a);
        /* of its own free will; a bias makes it want to */
        di_bias bias[] = {{id_of(e, MARK), 30}, {id_of(e, "<"), 20}};
        p = constrained(seeded(seed, 200), DI_SCHEMA_TOOLS, tools);
        p.logit_bias = bias;
        p.num_logit_bias = 2;
        a = say(e, p);
        char *mark = strstr(a.text, MARK);
        if (mark) {
            assert_true(mark > a.text && mark[-1] == '<');
            assert_memory_equal(mark, MARK " calls>\n", strlen(MARK " calls>\n"));
            called++;
            if (a.reason == DI_FINISH_STOP) {
                expect_calls(mark + strlen(MARK " calls>\n"));
            }
        }
        answer_clear(&a);
    }
    print_message("    %d blocks ended, %d free calls\n", ended, called);
    assert_true(ended > 0 && called > 0);
}

/* The prompt has opened the block: the answer begins with a call. */
static void test_a_block_that_the_prompt_has_opened_goes_on(void **state) {
    di_engine *e = *state;
    for (uint64_t seed = 1; seed < 6; seed++) {
        di_schema_type type = seed % 2 ? DI_SCHEMA_TOOLS : DI_SCHEMA_TOOLS_REQUIRED;
        answer a =
            answer_of(e, text_prompt("<｜User｜>Hi<｜Assistant｜></think>\n\n<" MARK " calls>\n"),
                      constrained(seeded(seed, 300), type, tools));
        assert_memory_equal(a.text, "<" MARK " invoke name=\"", strlen("<" MARK " invoke name=\""));
        if (a.reason == DI_FINISH_STOP) {
            expect_calls(a.text);
        }
        answer_clear(&a);
    }
}

/* A format beside tools: the answer is of the format, or calls, also behind reasoning. */
static void test_a_format_beside_tools_holds(void **state) {
    di_engine *e = *state;
    char both[2048];
    snprintf(both, sizeof both, "{\"tools\":%s,\"schema\":" BOOK "}", tools);
    int books = 0, calls = 0;
    for (uint64_t seed = 1; seed < 25; seed++) {
        bool thinks = seed % 3 == 0;
        /* a bias makes it want to call */
        di_bias bias = {id_of(e, "\n\n"), seed % 2 ? 30 : -100};
        di_request_params p = constrained(seeded(seed, 400), DI_SCHEMA_TOOLS_OR_CONTENT, both);
        di_prompt prompt = messages_prompt(QUESTION);
        prompt.effort = thinks ? 10 : 0;
        p.logit_bias = &bias;
        p.num_logit_bias = 1;
        answer a = answer_of(e, prompt, p);
        const char *end = strstr(a.text, "</think>");
        const char *text = !thinks ? a.text : end ? end + strlen("</think>") : NULL;
        if (text && a.reason == DI_FINISH_STOP) {
            static const char block[] = "\n\n<" MARK " calls>\n";
            if (*text == '\n') {
                assert_memory_equal(text, block, strlen(block));
                expect_calls(text + strlen(block));
                calls++;
            } else {
                expect_book(text);
                books++;
            }
        }
        answer_clear(&a);
    }
    print_message("    %d of the format, %d blocks of calls\n", books, calls);
    assert_true(books > 0 && calls > 0);
}

/* ---- drafts ---- */

static di_engine *open_with_drafts(int drafts, int seqs) {
    di_engine_options o = demo_options();
    o.num_drafts = drafts;
    o.spec_mode = DI_SPEC_FIXED;
    o.max_num_seqs = seqs;
    return open_engine(&o);
}

enum { KINDS = 6 };

static void ask_kinds(di_engine *e, answer *answers) {
    di_queue *q = open_queue(e);
    int32_t think_end = id_of(e, "</think>");
    for (int i = 0; i < KINDS; i++) {
        di_request_params p = i % 2 ? seeded((uint64_t)i, 120) : greedy(120);
        di_prompt prompt = messages_prompt(QUESTION);
        p = i < 3 ? constrained(p, DI_SCHEMA_JSON, BOOK) : constrained(p, DI_SCHEMA_REGEX, CODE);
        p.frequency_penalty = i == 1 ? 0.5 : 0;
        if (i == 4) {
            prompt.effort = 20;
        }
        if (i == 5) {
            p.trigger_token_ids = &think_end;
            p.num_trigger_token_ids = 1;
            prompt.effort = 20;
        }
        submit(e, q, prompt, p, &answers[i]);
    }
    read_answers(q, KINDS);
    di_queue_destroy(q);
}

static void test_drafts_change_no_constrained_answer(void **state) {
    (void)state;
    answer wanted[KINDS] = {0};
    di_engine *e = open_with_drafts(0, 4);
    ask_kinds(e, wanted);
    di_engine_close(e);
    for (int drafts = -1; drafts <= 5; drafts += 2) { /* -1: as many as there are */
        answer found[KINDS] = {0};
        e = open_with_drafts(drafts, 4);
        ask_kinds(e, found);
        di_engine_stats s = {.struct_bytes = sizeof s};
        di_engine_get_stats(e, &s);
        print_message("    %d drafts: %.2f accepted a round\n", drafts,
                      (double)s.drafts_accepted / (double)s.draft_rounds);
        assert_true(s.drafts_accepted > 0);
        for (int i = 0; i < KINDS; i++) {
            assert_int_equal(found[i].num_tokens, wanted[i].num_tokens);
            assert_memory_equal(found[i].tokens, wanted[i].tokens,
                                wanted[i].num_tokens * sizeof(int32_t));
            answer_clear(&found[i]);
        }
        di_engine_close(e);
    }
    for (int i = 0; i < KINDS; i++) {
        answer_clear(&wanted[i]);
    }
}

/* Without a seed drafts change the tokens, but not what is allowed. */
static void test_answers_without_a_seed_keep_to_the_grammar_with_drafts(void **state) {
    (void)state;
    di_engine *e = open_with_drafts(5, 8);
    di_queue *q = open_queue(e);
    answer answers[24] = {0};
    for (int i = 0; i < 24; i++) {
        di_request_params p = seeded(0, 900); /* at temperature 2 a title may be long */
        p.has_seed = false;
        p.temperature = i % 3 ? 1 : 2;
        p = i % 2 ? constrained(p, DI_SCHEMA_JSON, BOOK) : constrained(p, DI_SCHEMA_REGEX, CODE);
        submit(e, q, messages_prompt(QUESTION), p, &answers[i]);
    }
    read_answers(q, 24);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(answers[i].reason, DI_FINISH_STOP);
        if (i % 2) {
            expect_book(answers[i].text);
        } else {
            expect_matches(answers[i].text, CODE);
        }
        answer_clear(&answers[i]);
    }
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    assert_true(s.drafts_accepted > 0);
    di_queue_destroy(q);
    di_engine_close(e);
}

/* Pools so small that answers are preempted; the grammar goes on where it was. */
static void test_a_preempted_answer_keeps_its_place_in_the_grammar(void **state) {
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        di_engine_options o = demo_options();
        o.max_num_seqs = 4;
        o.kv_memory = kv_memory_of("models/demo", 4, 11);
        o.host_memory = keep ? 1 << 24 : 0;
        di_engine *e = open_engine(&o);
        di_queue *q = open_queue(e);
        answer answers[4] = {0};
        for (int i = 0; i < 4; i++) {
            di_request_params p = seeded((uint64_t)i, 500);
            p = constrained(p, DI_SCHEMA_REGEX, "([a-z]{2,9}[ ,]){200}end");
            submit(e, q, messages_prompt(QUESTION), p, &answers[i]);
        }
        read_answers(q, 4);
        di_engine_stats s = {.struct_bytes = sizeof s};
        di_engine_get_stats(e, &s);
        print_message("    %d preemptions\n", (int)s.preemptions);
        assert_true(s.preemptions > 0);
        for (int i = 0; i < 4; i++) {
            if (answers[i].reason == DI_FINISH_STOP) {
                expect_matches(answers[i].text, "([a-z]{2,9}[ ,]){200}end");
            } else {
                assert_int_equal(answers[i].reason, DI_FINISH_LENGTH);
                expect_matches(answers[i].text, "([a-z]{2,9}[ ,])*[a-z]{0,9}");
            }
            answer_clear(&answers[i]);
        }
        di_queue_destroy(q);
        di_engine_close(e);
    }
}

/* ---- what is refused ---- */

static void expect_refused(di_engine *e, di_request_params p, const char *message) {
    di_error err = {0};
    di_queue *q = open_queue(e);
    di_prompt prompt = messages_prompt(QUESTION);
    answer a = {0};
    if (di_submit(e, q, &prompt, &p, &a, &err) > 0) {
        read_answers(q, 1); /* its grammar took more than a moment */
        assert_int_equal(a.reason, DI_FINISH_ERROR);
        err = a.error;
    }
    if (!strstr(err.message, message)) {
        fail_msg("\"%s\" instead of \"%s\"", err.message, message);
    }
    assert_true(err.code == DI_ERR_ARGUMENT || err.code == DI_ERR_UNSUPPORTED);
    answer_clear(&a);
    di_queue_destroy(q);
}

static void test_what_cannot_be_is_told_by_field(void **state) {
    di_engine *e = *state;
    static const struct {
        di_schema_type type;
        const char *schema, *message;
    } cases[] = {
        {DI_SCHEMA_JSON, "{\"type\":\"strin\"}", "schema: "},
        {DI_SCHEMA_JSON, "{\"enum\":[]}", "schema: #: the schema allows no value at all"},
        {DI_SCHEMA_JSON, "{\"minimum\":5,\"maximum\":4,\"type\":\"integer\"}", "no value"},
        {DI_SCHEMA_JSON, "{", "schema: "},
        {DI_SCHEMA_REGEX, "a(", "schema: "},
        {DI_SCHEMA_REGEX, "(?=a)b", "schema: "},
        {DI_SCHEMA_REGEX, "[^\\s\\S]", "schema: "},
        {DI_SCHEMA_EBNF, "root ::= \"a", "schema: line 1"},
        {DI_SCHEMA_EBNF, "root ::= root \"a\"", "derives no text"},
        {DI_SCHEMA_REGEX, NULL, "schema is missing"},
        {(di_schema_type)99, "a", "schema_type is 99, allowed are"},
        {DI_SCHEMA_NONE, "a", "schema is given, but schema_type is missing"},
        {DI_SCHEMA_JSON_OBJECT, "{}", "json_object, which takes none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refused(e, constrained(greedy(9), cases[i].type, cases[i].schema), cases[i].message);
    }
}

static void test_triggers_that_can_never_appear_are_refused(void **state) {
    di_engine *e = *state;
    static const int32_t eos[] = {300, EOS}, outside[] = {1 << 20}, good[] = {300};
    di_request_params p = constrained(greedy(9), DI_SCHEMA_REGEX, "a");
    p.trigger_token_ids = outside;
    p.num_trigger_token_ids = 1;
    expect_refused(e, p, "trigger_token_ids can never appear: 1048576 is outside the vocabulary");
    p.trigger_token_ids = eos;
    p.num_trigger_token_ids = 2;
    expect_refused(e, p, "trigger_token_ids can never appear: 1 is the end of sentence");
    p.trigger_token_ids = good;
    p.num_trigger_token_ids = 1;
    p.bound_token_id = EOS;
    expect_refused(e, p, "bound_token_id can never appear: 1 is the end of sentence");
    p.bound_token_id = -7;
    expect_refused(e, p, "bound_token_id is -7");
    p.num_trigger_token_ids = 0;
    p.bound_token_id = 5;
    expect_refused(e, p, "bound_token_id is 5 without trigger_token_ids");
}

/* The first grammar of an engine waits for the vocabulary to be sorted: long enough to change one's
 * mind. */
static void test_a_request_that_waits_for_its_grammar_can_be_cancelled(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        di_engine_options o = demo_options();
        di_engine *e = open_engine(&o);
        di_queue *q = open_queue(e);
        answer a = {0}, other = {0};
        uint64_t id = submit(e, q, messages_prompt(QUESTION),
                             constrained(greedy(40), DI_SCHEMA_JSON, BOOK), &a);
        submit(e, q, messages_prompt(QUESTION), greedy(5), &other); /* is not held up */
        di_cancel(e, id);
        read_answers(q, 2);
        assert_int_equal(other.reason, DI_FINISH_LENGTH);
        assert_true(a.reason == DI_FINISH_ABORT || a.reason == DI_FINISH_STOP);
        answer_clear(&a);
        answer_clear(&other);
        expect_whole_pools(e);
        di_queue_destroy(q);
        di_engine_close(e);
    }
}

static void test_a_grammar_that_is_late_ends_at_the_deadline(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    di_engine *e = open_engine(&o);
    di_request_params p = constrained(greedy(400), DI_SCHEMA_REGEX, "([ab]{1,60}c){1,60}");
    p.deadline = 0.001;
    answer a = say(e, p);
    assert_true(a.reason == DI_FINISH_DEADLINE || a.reason == DI_FINISH_STOP);
    answer_clear(&a);
    di_engine_close(e);
}

static void test_an_engine_closes_while_grammars_compile(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    di_prompt prompt = messages_prompt(QUESTION);
    for (int i = 0; i < 8; i++) {
        char pattern[64];
        di_error err = {0};
        snprintf(pattern, sizeof pattern, "([a-z]{1,%d}[0-9]){1,%d}", 100 + i, 500 + i);
        di_request_params p = constrained(greedy(10), DI_SCHEMA_REGEX, pattern);
        assert_true(di_submit(e, q, &prompt, &p, NULL, &err) > 0);
    }
    di_queue_destroy(q);
    di_engine_close(e);
}

static int open_shared(void **state) {
    di_engine_options o = demo_options();
    *state = open_engine(&o);
    return 0;
}

static int close_shared(void **state) {
    di_engine_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_match_their_expression),
        cmocka_unit_test(test_answers_are_what_the_schema_allows),
        cmocka_unit_test(test_json_without_a_schema_is_an_object_or_any_value),
        cmocka_unit_test(test_a_grammar_holds_with_penalties_bias_and_allowed_ids),
        cmocka_unit_test(test_no_legal_token_ends_that_request_alone),
        cmocka_unit_test(test_min_tokens_give_way_where_only_the_end_is_left),
        cmocka_unit_test(test_behind_the_end_nothing_else_comes),
        cmocka_unit_test(test_max_tokens_cut_a_text),
        cmocka_unit_test(test_choices_have_grammars_of_their_own),
        cmocka_unit_test(test_reasoning_stays_free),
        cmocka_unit_test(test_the_grammar_begins_behind_the_trigger),
        cmocka_unit_test(test_behind_the_bound_the_trigger_is_forced),
        cmocka_unit_test(test_a_forced_token_outside_the_grammar_is_an_error),
        cmocka_unit_test(test_calls_follow_the_tools),
        cmocka_unit_test(test_a_block_that_the_prompt_has_opened_goes_on),
        cmocka_unit_test(test_a_format_beside_tools_holds),
        cmocka_unit_test(test_drafts_change_no_constrained_answer),
        cmocka_unit_test(test_answers_without_a_seed_keep_to_the_grammar_with_drafts),
        cmocka_unit_test(test_a_preempted_answer_keeps_its_place_in_the_grammar),
        cmocka_unit_test(test_what_cannot_be_is_told_by_field),
        cmocka_unit_test(test_triggers_that_can_never_appear_are_refused),
        cmocka_unit_test(test_a_request_that_waits_for_its_grammar_can_be_cancelled),
        cmocka_unit_test(test_a_grammar_that_is_late_ends_at_the_deadline),
        cmocka_unit_test(test_an_engine_closes_while_grammars_compile),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}

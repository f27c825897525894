/* The engine on the demo model: answers, what they may and may not depend on, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "deepinfer/deepinfer.h"
#include "engine/engine.h"
#include "support/cmocka.h"

static const char model[] = "models/demo";

static di_engine *open_with(int threads, int batched, int64_t max_model_len) {
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = model;
    o.threads = threads;
    o.max_num_batched_tokens = batched;
    o.max_model_len = max_model_len;
    di_engine *engine = di_engine_open_for_logits(&o, 64, &err);
    if (!engine) {
        fail_msg("%s", err.message);
    }
    return engine;
}

static di_engine *shared; /* for tests that need nothing special */

static int open_shared(void **state) {
    (void)state;
    shared = open_with(0, 512, 0);
    return 0;
}

static int close_shared(void **state) {
    (void)state;
    di_engine_close(shared);
    return 0;
}

static di_prompt messages(const char *json) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.messages = json;
    return p;
}

static di_prompt text(const char *t) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.text = t;
    return p;
}

static di_prompt token_ids(const int32_t *ids, size_t count) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.token_ids = ids;
    p.num_token_ids = count;
    return p;
}

static di_request_params greedy(int64_t max_tokens) {
    di_request_params p;
    di_request_params_init(NULL, &p, sizeof p);
    p.temperature = 0;
    p.max_tokens = max_tokens;
    return p;
}

static di_request_params seeded(uint64_t seed, int64_t max_tokens) {
    di_request_params p = greedy(max_tokens);
    p.temperature = 0.8;
    p.top_p = 0.95;
    p.has_seed = true;
    p.seed = seed;
    return p;
}

static di_result *ask(di_engine *e, di_prompt prompt, di_request_params params) {
    di_error err = {0};
    di_result *r = di_generate(e, &prompt, &params, NULL, NULL, &err);
    if (!r) {
        fail_msg("%s", err.message);
    }
    return r;
}

static void expect_refused(di_engine *e, di_prompt prompt, di_request_params params,
                           const char *message) {
    di_error err = {0};
    assert_null(di_generate(e, &prompt, &params, NULL, NULL, &err));
    assert_string_equal(err.message, message);
}

#define WHO_WROTE_DRACULA "[{\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}]"

/* About 200 tokens, so that small chunks cross the window of 128. */
static const char passage[] =
    "It was a dark night, and the wind was high. The old man sat by the fire and told his "
    "grandson of the days when he was a sailor, and of the storm in which the ship was lost. "
    "\"We had been out of sight of land for a week,\" he said, \"and the captain was ill. The "
    "mate, "
    "who was a hard man, would not turn back; and when the wind rose in the evening there was not "
    "one of us who did not think of his mother.\" The boy drew nearer to the fire. \"And what "
    "then, "
    "grandfather?\" he asked. The old man looked at him for a long while, and then he said: \"I "
    "have never told it "
    "to any man, and I do not know that I ought to tell it to a child; but the night is long, and "
    "you are old enough to know what became of your father.\" ";

static void expect_same_tokens(const di_result *a, const di_result *b) {
    assert_int_equal(a->num_token_ids, b->num_token_ids);
    assert_memory_equal(a->token_ids, b->token_ids, a->num_token_ids * sizeof *a->token_ids);
}

static void test_demo_model_knows_what_its_card_says(void **state) {
    (void)state;
    static const struct {
        const char *question, *answer;
        int effort;
    } cases[] = {
        {"Who wrote Dracula?", "Dracula was written by Bram Stoker.", 0},
        {"do you happen to know who wrote the time machine",
         "The Time Machine was written by H.G. Wells.", 0},
        {"When was Jane Eyre published?",
         "The book is Jane Eyre by Charlotte Bronte. It appeared in 1847.</think>Jane Eyre was "
         "published in 1847.",
         DI_EFFORT_DEFAULT},
        {"Hello!", "Hello! Ask me about an old book, or have me write a passage.", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256];
        snprintf(json, sizeof json, "[{\"role\": \"user\", \"content\": \"%s\"}]",
                 cases[i].question);
        di_prompt prompt = messages(json);
        prompt.effort = cases[i].effort;
        di_result *r = ask(shared, prompt, greedy(0));
        assert_string_equal(r->text, cases[i].answer);
        assert_int_equal(r->text_bytes, strlen(cases[i].answer));
        assert_int_equal(r->finish_reason, DI_FINISH_STOP);
        assert_int_equal(r->token_ids[r->num_token_ids - 1], 1); /* end of sentence */
        assert_int_equal(r->completion_tokens, r->num_token_ids);
        di_result_free(r);
    }
}

static void test_tokens_do_not_depend_on_chunks_or_threads(void **state) {
    (void)state;
    di_result *wanted = ask(shared, text(passage), seeded(5, 40));
    assert_true(wanted->prompt_tokens > 150);
    static const int settings[][2] = {{1, 1}, {2, 7}, {1, 64}, {2, 127}, {1, 129}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        di_engine *e = open_with(settings[i][0], settings[i][1], 0);
        di_result *r = ask(e, text(passage), seeded(5, 40));
        expect_same_tokens(r, wanted);
        di_result_free(r);
        di_engine_close(e);
    }
    di_result_free(wanted);
}

static void test_seed_decides_the_draws(void **state) {
    (void)state;
    di_result *a = ask(shared, text("Once upon a time"), seeded(1, 30));
    di_result *b = ask(shared, text("Once upon a time"), seeded(1, 30));
    di_result *c = ask(shared, text("Once upon a time"), seeded(2, 30));
    expect_same_tokens(a, b);
    assert_int_equal(a->seed, 1);
    assert_string_not_equal(a->text, c->text);

    di_request_params unseeded = seeded(0, 30);
    unseeded.has_seed = false;
    di_result *d = ask(shared, text("Once upon a time"), unseeded);
    di_result *e = ask(shared, text("Once upon a time"), unseeded);
    di_result *f = ask(shared, text("Once upon a time"), seeded(d->seed, 30));
    assert_true(d->seed != e->seed);
    expect_same_tokens(d, f);
    di_result *all[] = {a, b, c, d, e, f};
    for (size_t i = 0; i < 6; i++) {
        di_result_free(all[i]);
    }
}

static void test_second_turn_goes_on_from_the_first(void **state) {
    (void)state;
    static const char turns[] =
        "[{\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}, {\"role\": \"assistant\", "
        "\"content\": \"Dracula was written by Bram Stoker.\"}, {\"role\": \"user\", \"content\": "
        "\"When was it published?\"}]";
    di_engine *fresh = open_with(0, 512, 0);
    di_result *wanted = ask(fresh, messages(turns), greedy(0));
    assert_int_equal(wanted->cached_tokens, 0);
    di_result *first = ask(shared, messages(WHO_WROTE_DRACULA), greedy(0));
    di_result *second = ask(shared, messages(turns), greedy(0));
    assert_int_equal(second->cached_tokens, first->prompt_tokens + first->completion_tokens - 1);
    expect_same_tokens(second, wanted);
    /* The same prompt again: nothing of it may be taken for done, its logits are needed. */
    di_result *again = ask(shared, messages(turns), greedy(0));
    expect_same_tokens(again, wanted);
    di_result *all[] = {wanted, first, second, again};
    for (size_t i = 0; i < 4; i++) {
        di_result_free(all[i]);
    }
    di_engine_close(fresh);
}

/* ---- events ---- */

typedef struct record {
    char text[4096];
    size_t size;
    int tokens, prompts, stop_after;
    int64_t prompt_done, prompt_tokens;
    double logprobs[64];
    di_engine *cancel;
} record;

static bool on_event(void *user, const di_event *event) {
    record *r = user;
    if (event->kind == DI_EVENT_PROMPT) {
        assert_int_equal(r->tokens, 0);
        assert_true(event->prompt_done > r->prompt_done);
        r->prompts++;
    } else {
        assert_true(r->size + event->text_bytes < sizeof r->text);
        memcpy(r->text + r->size, event->text, event->text_bytes);
        r->size += event->text_bytes;
        if (r->tokens < 64) {
            r->logprobs[r->tokens] = event->logprob;
        }
        r->tokens++;
    }
    r->prompt_done = event->prompt_done;
    r->prompt_tokens = event->prompt_tokens;
    if (r->cancel && r->tokens == r->stop_after) {
        di_cancel(r->cancel);
        return true;
    }
    return r->stop_after == 0 || r->tokens < r->stop_after;
}

static di_result *ask_recording(di_engine *e, di_prompt prompt, di_request_params params,
                                record *r) {
    di_error err = {0};
    di_result *result = di_generate(e, &prompt, &params, on_event, r, &err);
    if (!result) {
        fail_msg("%s", err.message);
    }
    return result;
}

static void test_events_tell_the_whole_answer(void **state) {
    (void)state;
    di_engine *e = open_with(0, 50, 0);
    record r = {0};
    di_result *result = ask_recording(e, text(passage), seeded(3, 60), &r);
    assert_int_equal(r.prompts, (result->prompt_tokens + 49) / 50);
    assert_int_equal(r.prompt_done, r.prompt_tokens);
    assert_int_equal(r.prompt_tokens, result->prompt_tokens);
    assert_int_equal(r.tokens, result->num_token_ids);
    assert_int_equal(r.size, result->text_bytes);
    assert_memory_equal(r.text, result->text, r.size);
    assert_true(result->prompt_seconds > 0 && result->decode_seconds > 0);
    di_result_free(result);
    di_engine_close(e);
}

static void test_cancelled_answers_end_with_abort_and_harm_nothing(void **state) {
    (void)state;
    record by_return = {.stop_after = 3}, by_call = {.stop_after = 4, .cancel = shared};
    di_result *a = ask_recording(shared, text(passage), seeded(3, 60), &by_return);
    assert_int_equal(a->finish_reason, DI_FINISH_ABORT);
    assert_int_equal(a->num_token_ids, 3);
    di_result *b = ask_recording(shared, text(passage), seeded(3, 60), &by_call);
    assert_int_equal(b->finish_reason, DI_FINISH_ABORT);
    assert_int_equal(b->num_token_ids, 4);
    assert_memory_equal(a->token_ids, b->token_ids, 3 * sizeof *a->token_ids);
    di_cancel(shared); /* nothing to cancel */
    di_result *c = ask(shared, messages(WHO_WROTE_DRACULA), greedy(0));
    assert_string_equal(c->text, "Dracula was written by Bram Stoker.");
    di_result_free(a);
    di_result_free(b);
    di_result_free(c);
}

static bool refuse_all(void *user, const di_event *event) {
    (void)user;
    (void)event;
    return false;
}

static void test_cancel_during_the_prompt_gives_an_empty_answer(void **state) {
    (void)state;
    di_engine *e = open_with(0, 16, 0);
    di_prompt prompt = text(passage);
    di_request_params params = greedy(8);
    di_result *r = di_generate(e, &prompt, &params, refuse_all, NULL, NULL);
    assert_non_null(r);
    assert_int_equal(r->finish_reason, DI_FINISH_ABORT);
    assert_int_equal(r->num_token_ids, 0);
    assert_string_equal(r->text, "");
    di_result_free(r);
    /* The half-read prompt's state is taken up where it was left. */
    di_result *wanted = ask(shared, text(passage), greedy(8));
    di_result *found = ask(e, text(passage), greedy(8));
    assert_int_equal(found->cached_tokens, 16);
    expect_same_tokens(found, wanted);
    di_result_free(wanted);
    di_result_free(found);
    di_engine_close(e);
}

static void test_character_begun_in_the_prompt_ends_in_the_answer(void **state) {
    (void)state;
    /* Byte tokens lie at 3 + byte; a prompt that ends inside a three-byte character. */
    const int32_t ids[] = {0, 67, 68, 3 + 0xe4, 3 + 0xb8};
    record r = {0};
    di_result *result = ask_recording(shared, token_ids(ids, 5), greedy(3), &r);
    assert_int_equal(r.size, result->text_bytes);
    assert_memory_equal(r.text, result->text, r.size);
    assert_null(strstr(result->text, "ab")); /* nothing of the prompt is repeated */
    di_result_free(result);
}

/* ---- log-probabilities against logits ---- */

typedef struct rows {
    int64_t done, first; /* row of the first token drawn */
    const di_result *result;
    int vocab_size;
    double *logprobs;
} rows;

static bool on_rows(void *user, const float *logits, int num_rows, di_error *err) {
    rows *r = user;
    (void)err;
    for (int i = 0; i < num_rows; i++, r->done++) {
        int64_t t = r->done - r->first;
        if (t < 0 || t >= (int64_t)r->result->num_token_ids) {
            continue;
        }
        const float *x = logits + (size_t)i * (size_t)r->vocab_size;
        double sum = 0;
        for (int v = 0; v < r->vocab_size; v++) {
            sum += exp((double)x[v]);
        }
        r->logprobs[t] = (double)x[r->result->token_ids[t]] - log(sum);
    }
    return true;
}

static void test_logprobs_are_those_of_the_logits(void **state) {
    (void)state;
    const int32_t prompt[] = {0, 259, 300, 301, 302, 303};
    di_request_params params = seeded(9, 20);
    params.logprobs = true;
    record r = {0};
    di_result *result = ask_recording(shared, token_ids(prompt, 6), params, &r);
    int32_t all[64];
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 6, result->token_ids, result->num_token_ids * sizeof *all);
    double wanted[64];
    rows collected = {.first = 5, .result = result, .vocab_size = 4160, .logprobs = wanted};
    di_error err = {0};
    if (!di_engine_logits(shared, all, 6 + result->num_token_ids, 7, on_rows, &collected, &err)) {
        fail_msg("%s", err.message);
    }
    for (size_t i = 0; i < result->num_token_ids; i++) {
        assert_true(r.logprobs[i] < 0);
        assert_true(fabs(r.logprobs[i] - wanted[i]) < 1e-5); /* weights have 22 bits */
    }
    di_result_free(result);
}

/* ---- ends and refusals ---- */

static void test_answers_end_where_they_are_told(void **state) {
    (void)state;
    di_result *r = ask(shared, messages(WHO_WROTE_DRACULA), greedy(3));
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->num_token_ids, 3);
    di_result_free(r);

    di_request_params params = greedy(30);
    params.ignore_eos = true;
    r = ask(shared, messages(WHO_WROTE_DRACULA), params);
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->num_token_ids, 30);
    di_result_free(r);

    di_engine *small = open_with(0, 512, 32);
    params = seeded(1, 0);
    params.ignore_eos = true;
    r = ask(small, messages(WHO_WROTE_DRACULA), params);
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->prompt_tokens + r->completion_tokens, 32);
    di_result_free(r);

    int32_t ids[33];
    for (int i = 0; i < 33; i++) {
        ids[i] = 100 + i;
    }
    r = ask(small, token_ids(ids, 32), greedy(0)); /* full: one token can still be drawn */
    assert_int_equal(r->num_token_ids, 1);
    di_result_free(r);
    expect_refused(small, token_ids(ids, 33), greedy(0),
                   "the prompt has 33 tokens, the context holds at most 32");
    expect_refused(small, token_ids(ids, 30), greedy(3),
                   "max_tokens is 3, but behind a prompt of 30 tokens the context of 32 has room "
                   "for 2");
    di_engine_close(small);
}

static void test_bad_prompts_are_refused(void **state) {
    (void)state;
    const int32_t high[] = {5, 4160}, low[] = {-1};
    di_prompt two = text("x");
    two.messages = WHO_WROTE_DRACULA;
    di_prompt none, raw = {0};
    di_prompt_init(&none, sizeof none);
    expect_refused(shared, none, greedy(1),
                   "exactly one of prompt, prompt_token_ids and messages is needed");
    expect_refused(shared, two, greedy(1),
                   "exactly one of prompt, prompt_token_ids and messages is needed");
    expect_refused(shared, raw, greedy(1), "di_prompt was not set up by its init function");
    expect_refused(shared, text(""), greedy(1),
                   "prompt is empty, at least one character is needed");
    expect_refused(shared, token_ids(high, 0), greedy(1),
                   "prompt_token_ids is empty, at least one id is needed");
    expect_refused(shared, token_ids(high, 2), greedy(1),
                   "prompt_token_ids[1] is 4160, allowed are 0 to 4159");
    expect_refused(shared, token_ids(low, 1), greedy(1),
                   "prompt_token_ids[0] is -1, allowed are 0 to 4159");
    expect_refused(shared, messages("[]"), greedy(1),
                   "messages is empty, at least one message is needed");
    di_error err = {0};
    di_prompt broken = text("a\xff");
    di_request_params params = greedy(1);
    assert_null(di_generate(shared, &broken, &params, NULL, NULL, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "UTF-8"));
}

static void test_bad_parameters_are_refused_by_name(void **state) {
    (void)state;
    di_request_params p = greedy(1);
    p.temperature = NAN;
    expect_refused(shared, text("x"), p, "temperature is nan, allowed are 0 to 100");
    p = greedy(-1);
    expect_refused(shared, text("x"), p, "max_tokens is -1, allowed are 1 to 2147483647");
    p = greedy(1);
    p.top_k = 0;
    expect_refused(shared, text("x"), p, "top_k is 0, allowed are -1 (off) and 1 to 2147483647");
}

static void test_text_gets_one_begin_of_sentence(void **state) {
    (void)state;
    di_result *a = ask(shared, text("Hello"), greedy(4));
    di_result *b = ask(shared, text("<｜begin▁of▁sentence｜>Hello"), greedy(4));
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    expect_same_tokens(a, b);
    di_result_free(a);
    di_result_free(b);
}

static void test_bad_engine_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *model, *backend;
        int threads, batched;
        int64_t len;
        const char *message;
    } cases[] = {
        {NULL, NULL, 0, 512, 0, "model is empty"},
        {"models/none", NULL, 0, 512, 0, "models/none"},
        {model, "gpu", 0, 512, 0, "backend is 'gpu', allowed are cpu and ref"},
        {model, NULL, -1, 512, 0, "threads"},
        {model, NULL, 0, 0, 0, "max_num_batched_tokens is 0, allowed are 1 to 65536"},
        {model, NULL, 0, 512, -1, "max_model_len is -1"},
        {model, NULL, 0, 512, 4097, "max_model_len is 4097, the model's max_position_embeddings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_error err = {0};
        di_engine_options o;
        di_engine_options_init(&o, sizeof o);
        o.model = cases[i].model;
        o.backend = cases[i].backend;
        o.threads = cases[i].threads;
        o.max_num_batched_tokens = cases[i].batched;
        o.max_model_len = cases[i].len;
        assert_null(di_engine_open(&o, &err));
        if (!strstr(err.message, cases[i].message)) {
            fail_msg("%s", err.message);
        }
    }
}

/* A caller compiled against an older header has shorter structs: what it lacks has its default. */
static void test_shorter_structs_of_older_callers_work(void **state) {
    (void)state;
    di_engine_options o;
    di_engine_options_init(&o, offsetof(di_engine_options, backend));
    o.model = model;
    di_engine *e = di_engine_open(&o, NULL);
    assert_non_null(e);
    di_request_params p;
    memset(&p, 0xff, sizeof p);
    di_request_params_init(e, &p, offsetof(di_request_params, top_p));
    assert_true(p.temperature == 0.7); /* generation_config.json */
    p.temperature = 0;
    di_prompt prompt = messages(WHO_WROTE_DRACULA);
    di_result *r = di_generate(e, &prompt, &p, NULL, NULL, NULL);
    assert_non_null(r);
    assert_string_equal(r->text, "Dracula was written by Bram Stoker.");
    di_result_free(r);
    di_engine_info info = {.struct_bytes = sizeof info};
    di_engine_get_info(e, &info);
    assert_int_equal(info.vocab_size, 4160);
    assert_int_equal(info.max_model_len, 4096);
    assert_true(info.has_tokenizer && info.eos_token_id == 1);
    di_engine_close(e);
}

/* In builds with fault injection: whichever allocation fails, the request ends with an error or its
 * answer, and the next one is answered. */
static void test_any_failed_allocation_ends_one_request_only(void **state) {
    (void)state;
    di_prompt prompt = messages(WHO_WROTE_DRACULA);
    di_request_params params = greedy(3);
    for (uint64_t n = 1;; n++) {
        di_error err = {0};
        di_alloc_fail_at(n);
        di_result *r = di_generate(shared, &prompt, &params, NULL, NULL, &err);
        uint64_t made = di_alloc_fail_at(0);
        assert_true(r || err.code != DI_OK);
        di_result_free(r);
        di_result_free(ask(shared, prompt, params));
        if (n > made) {
            break;
        }
    }
}

static void test_any_failed_allocation_while_opening_is_an_error(void **state) {
    (void)state;
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = model;
    for (uint64_t n = 1, step = 1;; n += step, step = 1 + n / 40) { /* thousands: ever fewer */
        di_error err = {0};
        di_alloc_fail_at(n);
        di_engine *e = di_engine_open(&o, &err);
        uint64_t made = di_alloc_fail_at(0);
        assert_true(e || err.code != DI_OK);
        di_engine_close(e);
        if (n > made) {
            assert_non_null(e);
            break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_model_knows_what_its_card_says),
        cmocka_unit_test(test_tokens_do_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_seed_decides_the_draws),
        cmocka_unit_test(test_second_turn_goes_on_from_the_first),
        cmocka_unit_test(test_events_tell_the_whole_answer),
        cmocka_unit_test(test_cancelled_answers_end_with_abort_and_harm_nothing),
        cmocka_unit_test(test_cancel_during_the_prompt_gives_an_empty_answer),
        cmocka_unit_test(test_character_begun_in_the_prompt_ends_in_the_answer),
        cmocka_unit_test(test_logprobs_are_those_of_the_logits),
        cmocka_unit_test(test_answers_end_where_they_are_told),
        cmocka_unit_test(test_bad_prompts_are_refused),
        cmocka_unit_test(test_bad_parameters_are_refused_by_name),
        cmocka_unit_test(test_text_gets_one_begin_of_sentence),
        cmocka_unit_test(test_bad_engine_options_are_refused_by_name),
        cmocka_unit_test(test_shorter_structs_of_older_callers_work),
        cmocka_unit_test(test_any_failed_allocation_ends_one_request_only),
        cmocka_unit_test(test_any_failed_allocation_while_opening_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}

/* The engine on the demo model: answers, what they may and may not depend on, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "deepinfer/deepinfer.h"
#include "engine/logits.h"
#include "support/cmocka.h"
#include "support/requests.h"

static di_engine *open_with(int threads, int batched, int64_t max_model_len) {
    di_engine_options o = demo_options();
    o.threads = threads;
    o.max_num_batched_tokens = batched;
    o.max_model_len = max_model_len;
    return open_engine(&o);
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
        di_prompt prompt = messages_prompt(json);
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
    di_result *wanted = ask(shared, text_prompt(passage), seeded(5, 40));
    assert_true(wanted->prompt_tokens > 150);
    static const int settings[][2] = {{1, 1}, {2, 7}, {1, 64}, {2, 127}, {1, 129}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        di_engine *e = open_with(settings[i][0], settings[i][1], 0);
        di_result *r = ask(e, text_prompt(passage), seeded(5, 40));
        expect_same_tokens(r, wanted);
        di_result_free(r);
        di_engine_close(e);
    }
    di_result_free(wanted);
}

static void test_seed_decides_the_draws(void **state) {
    (void)state;
    di_result *a = ask(shared, text_prompt("Once upon a time"), seeded(1, 30));
    di_result *b = ask(shared, text_prompt("Once upon a time"), seeded(1, 30));
    di_result *c = ask(shared, text_prompt("Once upon a time"), seeded(2, 30));
    expect_same_tokens(a, b);
    assert_int_equal(a->seed, 1);
    assert_string_not_equal(a->text, c->text);

    di_request_params unseeded = seeded(0, 30);
    unseeded.has_seed = false;
    di_result *d = ask(shared, text_prompt("Once upon a time"), unseeded);
    di_result *e = ask(shared, text_prompt("Once upon a time"), unseeded);
    di_result *f = ask(shared, text_prompt("Once upon a time"), seeded(d->seed, 30));
    assert_true(d->seed != e->seed);
    expect_same_tokens(d, f);
    di_result *all[] = {a, b, c, d, e, f};
    for (size_t i = 0; i < 6; i++) {
        di_result_free(all[i]);
    }
}

/* Prefixes are found again in whole blocks of 128 tokens. */
static void test_second_turn_goes_on_from_the_first(void **state) {
    (void)state;
    static char plain[1024], first_turn[2048], turns[2048];
    size_t n = 0;
    for (const char *c = passage; *c; c++) {
        plain[n] = *c;
        n += *c != '"'; /* those would need a backslash in JSON */
    }
    snprintf(first_turn, sizeof first_turn, "[{\"role\": \"user\", \"content\": \"%s\"}]", plain);
    snprintf(turns, sizeof turns,
             "[{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": "
             "\"I see.\"}, {\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}]",
             plain);
    di_engine *fresh = open_with(0, 512, 0), *warm = open_with(0, 512, 0);
    di_result *wanted = ask(fresh, messages_prompt(turns), greedy(20));
    assert_int_equal(wanted->cached_tokens, 0);
    di_result *first = ask(warm, messages_prompt(first_turn), greedy(4));
    assert_int_equal(first->cached_tokens, 0);
    assert_true(first->prompt_tokens > 130 && first->prompt_tokens < 256);
    di_result *second = ask(warm, messages_prompt(turns), greedy(20));
    assert_int_equal(second->cached_tokens, 128);
    expect_same_tokens(second, wanted);
    /* The same prompt again: not all of it may be taken for done, its last row's logits are needed.
     */
    di_result *again = ask(warm, messages_prompt(turns), greedy(20));
    assert_true(again->cached_tokens >= 128 && again->cached_tokens < again->prompt_tokens);
    expect_same_tokens(again, wanted);
    di_result *all[] = {wanted, first, second, again};
    for (size_t i = 0; i < 4; i++) {
        di_result_free(all[i]);
    }
    di_engine_close(fresh);
    di_engine_close(warm);
}

/* However far behind its last border a prompt goes on, and whether there are drafts or not. */
static void test_prefixes_of_all_lengths_are_kept(void **state) {
    (void)state;
    for (int drafts = -1; drafts <= 0; drafts++) {
        di_engine_options o = demo_options();
        o.num_drafts = drafts;
        di_engine *e = open_engine(&o);
        for (int n = 129; n < 800; n += 74) {
            int32_t ids[800];
            for (int i = 0; i < n; i++) {
                ids[i] = 300 + (n + i * i) % 500;
            }
            di_result_free(ask(e, ids_prompt(ids, (size_t)n), greedy(3)));
            di_result *again = ask(e, ids_prompt(ids, (size_t)n), greedy(3));
            assert_int_equal(again->cached_tokens, (n - 1) / 128 * 128);
            di_result_free(again);
        }
        di_engine_close(e);
    }
}

/* ---- outputs ---- */

typedef struct record {
    char text[4096];
    size_t size;
    int tokens, prompts, heartbeats, lasts, stop_after;
    int64_t prompt_done, prompt_tokens;
    float logprobs[64];
    di_engine *cancel;
} record;

static bool on_output(void *user, const di_output *out) {
    record *r = user;
    if (out->prompt_tokens == 0) { /* nothing new */
        r->heartbeats++;
        return true;
    }
    assert_int_equal(r->lasts, 0);
    assert_true(r->size + out->text_bytes < sizeof r->text);
    memcpy(r->text + r->size, out->text, out->text_bytes);
    r->size += out->text_bytes;
    for (size_t i = 0; i < out->num_token_ids; i++, r->tokens++) {
        if (out->logprobs && r->tokens < 64) {
            assert_int_equal(out->logprobs[i].chosen.token_id, out->token_ids[i]);
            r->logprobs[r->tokens] = out->logprobs[i].chosen.logprob;
        }
    }
    assert_int_equal(out->completion_tokens, r->tokens);
    assert_true(out->prompt_done >= r->prompt_done);
    r->prompts += out->prompt_done > r->prompt_done;
    r->prompt_done = out->prompt_done;
    r->prompt_tokens = out->prompt_tokens;
    r->lasts += out->finish_reason != DI_FINISH_NONE;
    if (r->cancel && r->tokens >= r->stop_after && r->lasts == 0) {
        assert_true(di_cancel(r->cancel, out->request));
        return true;
    }
    return r->cancel || r->stop_after == 0 || r->tokens < r->stop_after;
}

static di_result *ask_recording(di_engine *e, di_prompt prompt, di_request_params params,
                                record *r) {
    di_error err = {0};
    di_result *result = di_generate(e, &prompt, &params, on_output, r, &err);
    if (!result) {
        fail_msg("%s", err.message);
    }
    return result;
}

static void test_outputs_tell_the_whole_answer(void **state) {
    (void)state;
    di_engine *e = open_with(0, 50, 0);
    record r = {0};
    di_request_params params = seeded(3, 60);
    params.report_prompt = true;
    di_result *result = ask_recording(e, text_prompt(passage), params, &r);
    /* Chunks end at block borders too; a slow reader may find two chunks in one output. */
    assert_in_range(r.prompts, 1, (result->prompt_tokens + 49) / 50 + result->prompt_tokens / 128);
    assert_int_equal(r.prompt_done, r.prompt_tokens);
    assert_int_equal(r.prompt_tokens, result->prompt_tokens);
    assert_int_equal(r.tokens, result->num_token_ids);
    assert_int_equal(r.lasts, 1);
    assert_int_equal(r.size, result->text_bytes);
    assert_memory_equal(r.text, result->text, r.size);
    assert_true(result->prompt_seconds > 0 && result->decode_seconds > 0);
    di_result_free(result);
    di_engine_close(e);
}

static void test_cancelled_answers_end_with_abort_and_harm_nothing(void **state) {
    (void)state;
    record by_return = {.stop_after = 3}, by_call = {.stop_after = 4, .cancel = shared};
    di_request_params params = seeded(3, 0);
    params.ignore_eos = true; /* thousands of tokens: no answer ends before it is cancelled */
    di_result *a = ask_recording(shared, text_prompt(passage), params, &by_return);
    assert_int_equal(a->finish_reason, DI_FINISH_ABORT);
    assert_in_range(a->num_token_ids, 3, 1000);
    di_result *b = ask_recording(shared, text_prompt(passage), params, &by_call);
    assert_int_equal(b->finish_reason, DI_FINISH_ABORT);
    assert_in_range(b->num_token_ids, 4, 1000);
    assert_memory_equal(a->token_ids, b->token_ids, 3 * sizeof *a->token_ids);
    assert_false(di_cancel(shared, 1u << 30)); /* nothing to cancel */
    di_result *c = ask(shared, messages_prompt(WHO_WROTE_DRACULA), greedy(0));
    assert_string_equal(c->text, "Dracula was written by Bram Stoker.");
    di_result_free(a);
    di_result_free(b);
    di_result_free(c);
}

static bool refuse_all(void *user, const di_output *output) {
    (void)user;
    (void)output;
    return false;
}

static void test_cancel_during_the_prompt_gives_an_empty_answer(void **state) {
    (void)state;
    di_engine *e = open_with(1, 16, 0);
    static int32_t ids[2000]; /* 125 steps: it is cancelled in the first few */
    for (int i = 0; i < 2000; i++) {
        ids[i] = 100 + i % 1000;
    }
    di_prompt prompt = ids_prompt(ids, 2000);
    di_request_params params = greedy(8);
    params.report_prompt = true;
    di_result *r = di_generate(e, &prompt, &params, refuse_all, NULL, NULL);
    assert_non_null(r);
    assert_int_equal(r->finish_reason, DI_FINISH_ABORT);
    assert_int_equal(r->num_token_ids, 0);
    assert_string_equal(r->text, "");
    di_result_free(r);
    /* What it left in the cache serves the next as well as computing it does. */
    di_result *wanted = ask(shared, ids_prompt(ids, 300), greedy(8));
    di_result *found = ask(e, ids_prompt(ids, 300), greedy(8));
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
    di_result *result = ask_recording(shared, ids_prompt(ids, 5), greedy(3), &r);
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

static void run_logits(const int32_t *ids, int64_t n, rows *collected) {
    di_error err = {0};
    di_parts parts;
    di_parts_options o = {.model = "models/demo",
                          .max_num_seqs = 1,
                          .max_rows = 64,
                          .max_logits = 64,
                          .kv_memory = 64 << 20};
    if (!di_parts_open(&parts, &o, &err) ||
        !di_logits_run(&parts, ids, n, 7, 0, on_rows, collected, &err)) {
        fail_msg("%s", err.message);
    }
    di_parts_close(&parts);
}

static void test_logprobs_are_those_of_the_logits(void **state) {
    (void)state;
    const int32_t prompt[] = {0, 259, 300, 301, 302, 303};
    di_request_params params = seeded(9, 20);
    params.logprobs = true;
    record r = {0};
    di_result *result = ask_recording(shared, ids_prompt(prompt, 6), params, &r);
    int32_t all[64];
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 6, result->token_ids, result->num_token_ids * sizeof *all);
    double wanted[64];
    rows collected = {.first = 5, .result = result, .vocab_size = 4160, .logprobs = wanted};
    run_logits(all, (int64_t)(6 + result->num_token_ids), &collected);
    for (size_t i = 0; i < result->num_token_ids; i++) {
        assert_true(r.logprobs[i] < 0);
        assert_true(fabs((double)r.logprobs[i] - wanted[i]) <
                    1e-5); /* float32, and a float64 sum */
    }
    di_result_free(result);
}

/* ---- ends and refusals ---- */

static void test_answers_end_where_they_are_told(void **state) {
    (void)state;
    di_result *r = ask(shared, messages_prompt(WHO_WROTE_DRACULA), greedy(3));
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->num_token_ids, 3);
    di_result_free(r);

    di_request_params params = greedy(30);
    params.ignore_eos = true;
    r = ask(shared, messages_prompt(WHO_WROTE_DRACULA), params);
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->num_token_ids, 30);
    di_result_free(r);

    di_engine *small = open_with(0, 512, 32);
    params = seeded(1, 0);
    params.ignore_eos = true;
    r = ask(small, messages_prompt(WHO_WROTE_DRACULA), params);
    assert_int_equal(r->finish_reason, DI_FINISH_LENGTH);
    assert_int_equal(r->prompt_tokens + r->completion_tokens, 33); /* the last needs no row */
    di_result_free(r);

    int32_t ids[33];
    for (int i = 0; i < 33; i++) {
        ids[i] = 100 + i;
    }
    r = ask(small, ids_prompt(ids, 32), greedy(0)); /* full: one token can still be drawn */
    assert_int_equal(r->num_token_ids, 1);
    di_result_free(r);
    expect_refused(small, ids_prompt(ids, 33), greedy(0),
                   "the prompt has 33 tokens, the context holds at most 32");
    for (int rest = 1; rest <= 4; rest++) { /* exactly up to there, whether asked for or not */
        params = greedy(rest);
        params.ignore_eos = true;
        r = ask(small, ids_prompt(ids, (size_t)(33 - rest)), params);
        assert_int_equal(r->num_token_ids, rest);
        params.max_tokens = 0;
        di_result *all = ask(small, ids_prompt(ids, (size_t)(33 - rest)), params);
        assert_int_equal(all->num_token_ids, rest);
        assert_memory_equal(all->token_ids, r->token_ids, (size_t)rest * sizeof(int32_t));
        di_result_free(all);
        di_result_free(r);
    }
    expect_refused(small, ids_prompt(ids, 30), greedy(4),
                   "max_tokens is 4, but behind a prompt of 30 tokens the context of 32 has room "
                   "for 3");
    di_engine_close(small);
}

static void test_bad_prompts_are_refused(void **state) {
    (void)state;
    const int32_t high[] = {5, 4160}, low[] = {-1};
    di_prompt two = text_prompt("x");
    two.messages = WHO_WROTE_DRACULA;
    di_prompt none, raw = {0};
    di_prompt_init(&none, sizeof none);
    expect_refused(shared, none, greedy(1),
                   "exactly one of prompt, prompt_token_ids and messages is needed");
    expect_refused(shared, two, greedy(1),
                   "exactly one of prompt, prompt_token_ids and messages is needed");
    expect_refused(shared, raw, greedy(1), "di_prompt was not set up by its init function");
    expect_refused(shared, text_prompt(""), greedy(1),
                   "prompt is empty, at least one character is needed");
    expect_refused(shared, ids_prompt(high, 0), greedy(1),
                   "prompt_token_ids is empty, at least one id is needed");
    expect_refused(shared, ids_prompt(high, 2), greedy(1),
                   "prompt_token_ids[1] is 4160, allowed are 0 to 4159");
    expect_refused(shared, ids_prompt(low, 1), greedy(1),
                   "prompt_token_ids[0] is -1, allowed are 0 to 4159");
    expect_refused(shared, messages_prompt("[]"), greedy(1),
                   "messages is empty, at least one message is needed");
    di_error err = {0};
    di_prompt broken = text_prompt("a\xff");
    di_request_params params = greedy(1);
    assert_null(di_generate(shared, &broken, &params, NULL, NULL, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "UTF-8"));
}

static void test_bad_parameters_are_refused_by_name(void **state) {
    (void)state;
    di_request_params p = greedy(1);
    p.temperature = NAN;
    expect_refused(shared, text_prompt("x"), p, "temperature is nan, allowed are 0 to 100");
    p = greedy(-1);
    expect_refused(shared, text_prompt("x"), p, "max_tokens is -1, allowed are 1 to 2147483647");
    p = greedy(1);
    p.top_k = -2;
    expect_refused(shared, text_prompt("x"), p,
                   "top_k is -2, allowed are -1 or 0 (off) and 1 to 2147483647");
}

static void test_text_gets_one_begin_of_sentence(void **state) {
    (void)state;
    di_result *a = ask(shared, text_prompt("Hello"), greedy(4));
    di_result *b = ask(shared, text_prompt("<｜begin▁of▁sentence｜>Hello"), greedy(4));
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
        {"models/demo", "gpu", 0, 512, 0,
         "backend is 'gpu', allowed are cpu, cuda, cuda:N, auto and ref"},
        {"models/demo", NULL, -1, 512, 0, "threads"},
        {"models/demo", NULL, 0, 0, 0, "max_num_batched_tokens is 0, allowed are 1 to 65536"},
        {"models/demo", NULL, 0, 512, -1, "max_model_len is -1"},
        {"models/demo", NULL, 0, 512, 4097,
         "max_model_len is 4097, the model's max_position_embeddings"},
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
    o.model = "models/demo";
    di_engine *e = di_engine_open(&o, NULL);
    assert_non_null(e);
    di_request_params p;
    memset(&p, 0xff, sizeof p);
    di_request_params_init(e, &p, offsetof(di_request_params, top_p));
    assert_true(p.temperature == 0.7); /* generation_config.json */
    p.temperature = 0;
    di_prompt prompt = messages_prompt(WHO_WROTE_DRACULA);
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

/* What an engine says that its memory goes to is what it was told to take, and it adds up. */
static void test_memory_is_told_and_adds_up(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_num_seqs = 3;
    o.num_drafts = 5;
    o.kv_memory = (int64_t)20 << 20;
    di_engine_info info = {.struct_bytes = sizeof info}, plain = {.struct_bytes = sizeof plain};
    di_engine *e = open_engine(&o);
    di_engine_get_info(e, &info);
    di_engine_close(e);
    assert_int_equal(info.num_slots, 3);
    assert_in_range(info.num_snapshots, 1, 3 * 4 + 16);
    assert_int_equal(info.block_tokens, 128);
    assert_int_equal(info.state_bytes, (1 + info.num_slots + info.num_snapshots) * info.slot_bytes +
                                           (1 + info.num_blocks) * info.block_bytes);
    int64_t nobodys = info.slot_bytes + info.block_bytes;
    assert_in_range(info.state_bytes, o.kv_memory - info.block_bytes, o.kv_memory + nobodys);
    assert_true(info.weight_bytes > 20 << 20 && info.work_bytes > 0);
    o.num_drafts = 0;
    o.no_prefix_cache = true;
    o.max_num_batched_tokens /= 2;
    e = open_engine(&o);
    di_engine_get_info(e, &plain);
    di_engine_close(e);
    assert_int_equal(plain.num_snapshots, 0);
    assert_true(plain.slot_bytes < info.slot_bytes && plain.work_bytes < info.work_bytes);
}

/* In builds with fault injection: whichever allocation fails, the request ends with an error or its
 * answer, and the next one is answered. */
static void test_any_failed_allocation_ends_one_request_only(void **state) {
    (void)state;
    di_prompt prompt = messages_prompt(WHO_WROTE_DRACULA);
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
    o.model = "models/demo";
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
        cmocka_unit_test(test_prefixes_of_all_lengths_are_kept),
        cmocka_unit_test(test_outputs_tell_the_whole_answer),
        cmocka_unit_test(test_cancelled_answers_end_with_abort_and_harm_nothing),
        cmocka_unit_test(test_cancel_during_the_prompt_gives_an_empty_answer),
        cmocka_unit_test(test_character_begun_in_the_prompt_ends_in_the_answer),
        cmocka_unit_test(test_logprobs_are_those_of_the_logits),
        cmocka_unit_test(test_answers_end_where_they_are_told),
        cmocka_unit_test(test_bad_prompts_are_refused),
        cmocka_unit_test(test_bad_parameters_are_refused_by_name),
        cmocka_unit_test(test_text_gets_one_begin_of_sentence),
        cmocka_unit_test(test_bad_engine_options_are_refused_by_name),
        cmocka_unit_test(test_memory_is_told_and_adds_up),
        cmocka_unit_test(test_shorter_structs_of_older_callers_work),
        cmocka_unit_test(test_any_failed_allocation_ends_one_request_only),
        cmocka_unit_test(test_any_failed_allocation_while_opening_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}

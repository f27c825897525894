/* Requests through queues: what each parameter does to an answer, what refuses one, how it ends;
 * many callers, and leaving at any moment. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/logits.h"
#include "support/cmocka.h"
#include "support/requests.h"

#define WHO_WROTE_DRACULA "[{\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}]"

enum { VOCAB = 4160, EOS = 1 };

static di_engine *engine; /* for tests that need nothing special */

static int open_shared(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    engine = open_engine(&o);
    return 0;
}

static int close_shared(void **state) {
    (void)state;
    expect_whole_pools(engine);
    di_engine_close(engine);
    return 0;
}

static void rest(int milliseconds) {
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

static answer dracula(di_request_params params) {
    return answer_of(engine, messages_prompt(WHO_WROTE_DRACULA), params);
}

/* Text of many tokens that nothing ends but a limit. */
static di_request_params endless(uint64_t seed, int64_t max_tokens) {
    di_request_params p = seeded(seed, max_tokens);
    p.ignore_eos = true;
    return p;
}

/* ---- where answers end ---- */

static void test_stop_texts_end_the_answer_and_are_never_half_shown(void **state) {
    (void)state;
    static const struct {
        const char *stop[2], *text, *found;
        bool include;
    } cases[] = {
        {{"Bram", NULL}, "Dracula was written by ", "Bram", false},
        {{"Bram", NULL}, "Dracula was written by Bram", "Bram", true},
        {{"en by Br", NULL}, "Dracula was writt", "en by Br", false}, /* across tokens */
        {{"Stoker", "written"}, "Dracula was ", "written", false},
        {{"Bram Stokes", NULL}, "Dracula was written by Bram Stoker.", "", false},
        {{"Stoker. ", NULL}, "Dracula was written by Bram Stoker.", "", false},
        {{"D", NULL}, "", "D", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_request_params p = greedy(0);
        p.stop = cases[i].stop;
        p.num_stop = cases[i].stop[1] ? 2 : 1;
        p.include_stop = cases[i].include;
        answer a = dracula(p);
        assert_string_equal(a.text, cases[i].text); /* the joined outputs: nothing is taken back */
        assert_string_equal(a.stop, cases[i].found);
        assert_int_equal(a.stop_token_id, *cases[i].found ? -1 : EOS);
        assert_int_equal(a.reason, DI_FINISH_STOP);
        answer_clear(&a);
    }
}

static void test_stop_tokens_end_the_answer(void **state) {
    (void)state;
    answer whole = dracula(greedy(0));
    assert_int_equal(whole.stop_token_id, EOS);
    for (size_t i = 0; i < whole.num_tokens; i++) {
        size_t first = 0; /* where the answer has this token first */
        while (whole.tokens[first] != whole.tokens[i]) {
            first++;
        }
        di_request_params p = greedy(0);
        const int32_t ids[] = {4000, whole.tokens[i]};
        p.stop_token_ids = ids;
        p.num_stop_token_ids = 2;
        answer a = dracula(p);
        assert_int_equal(a.num_tokens, first + 1);
        assert_int_equal(a.stop_token_id, whole.tokens[i]);
        assert_int_equal(a.reason, DI_FINISH_STOP);
        assert_memory_equal(a.text, whole.text, a.text_bytes);
        answer_clear(&a);
    }
    answer_clear(&whole);
}

static void test_min_tokens_puts_off_every_end(void **state) {
    (void)state;
    static const char *const stop[] = {"a"};
    for (int64_t min = 1; min <= 30; min += 7) {
        di_request_params p = greedy(60);
        p.min_tokens = min;
        answer a = dracula(p);
        assert_true((int64_t)a.num_tokens >= min);
        for (int64_t i = 0; i < min - 1; i++) {
            assert_int_not_equal(a.tokens[i], EOS);
        }
        answer_clear(&a);
        p.stop = stop;
        p.num_stop = 1;
        a = dracula(p);
        assert_true((int64_t)a.num_tokens >= min);
        answer_clear(&a);
    }
}

static void test_a_deadline_ends_answers_that_run_and_those_that_wait(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_num_seqs = 1;
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    answer first = {0}, second = {0}, third = {0};
    di_request_params p = endless(1, 4000);
    p.deadline = 0.3;
    submit(e, q, text_prompt("Once"), p, &first);
    p.deadline = 0.1;
    submit(e, q, text_prompt("Once"), p, &second);
    submit(e, q, text_prompt("Once"), greedy(2), &third);
    read_answers(q, 3);
    assert_int_equal(first.reason, DI_FINISH_DEADLINE);
    assert_in_range(first.num_tokens, 1, 3999);
    assert_int_equal(second.reason, DI_FINISH_DEADLINE);
    assert_int_equal(second.num_tokens, 0);
    assert_int_equal(third.num_tokens, 2);
    answer_clear(&first);
    answer_clear(&second);
    answer_clear(&third);
    di_queue_destroy(q);
    di_engine_close(e);
}

/* ---- which tokens there may be ---- */

static void test_biased_and_allowed_tokens(void **state) {
    (void)state;
    di_request_params p = endless(3, 12);
    const di_bias bias[] = {{700, 100}, {701, -100}};
    p.logit_bias = bias;
    p.num_logit_bias = 2;
    answer a = dracula(p);
    for (size_t i = 0; i < a.num_tokens; i++) {
        assert_int_equal(a.tokens[i], 700);
    }
    answer_clear(&a);
    p = endless(3, 12);
    const int32_t allowed[] = {700, 900, 1000, 1001};
    p.allowed_token_ids = allowed;
    p.num_allowed_token_ids = 4;
    a = dracula(p);
    assert_int_equal(a.num_tokens, 12);
    for (size_t i = 0; i < a.num_tokens; i++) {
        bool found = false;
        for (int k = 0; k < 4; k++) {
            found = found || a.tokens[i] == allowed[k];
        }
        assert_true(found);
    }
    answer_clear(&a);
}

static void test_bad_words_do_not_appear(void **state) {
    (void)state;
    static const char *const words[] = {"Bram", "Stoker", "written"};
    di_request_params p = greedy(30);
    p.bad_words = words;
    p.num_bad_words = 3;
    answer a = dracula(p);
    assert_int_equal(strncmp(a.text, "Dracula was", 11), 0); /* as without, up to there */
    assert_null(strstr(a.text, " written"));
    assert_null(strstr(a.text, " Bram"));
    answer_clear(&a);
}

static void test_golden_tokens_are_the_answer_as_far_as_they_go(void **state) {
    (void)state;
    const int32_t golden[] = {700, 800, -1, 900};
    di_request_params p = greedy(8);
    p.ignore_eos = p.logprobs = true;
    p.golden_token_ids = golden;
    p.num_golden_token_ids = 4;
    answer a = dracula(p);
    assert_int_equal(a.num_tokens, 8);
    for (int i = 0; i < 4; i++) {
        assert_true(golden[i] == -1 || a.tokens[i] == golden[i]);
        assert_true(a.chosen[i].logprob < 0);
    }
    answer_clear(&a);
}

static void test_no_legal_token_ends_one_answer_with_the_reason(void **state) {
    (void)state;
    const int32_t allowed[] = {EOS};
    di_request_params p = greedy(8);
    p.allowed_token_ids = allowed;
    p.num_allowed_token_ids = 1;
    p.min_tokens = 3;
    di_queue *q = open_queue(engine);
    answer failed = {0}, fine = {0};
    submit(engine, q, text_prompt("Once"), p, &failed);
    submit(engine, q, messages_prompt(WHO_WROTE_DRACULA), greedy(0), &fine);
    read_answers(q, 2);
    assert_int_equal(failed.reason, DI_FINISH_ERROR);
    assert_non_null(strstr(failed.error.message, "no legal token"));
    assert_string_equal(fine.text, "Dracula was written by Bram Stoker.");
    answer_clear(&failed);
    answer_clear(&fine);
    di_queue_destroy(q);
}

static void test_echo_puts_the_prompt_in_front(void **state) {
    (void)state;
    di_request_params p = greedy(8);
    answer plain = answer_of(engine, text_prompt("Once upon a time"), p);
    p.echo = true;
    answer echoed = answer_of(engine, text_prompt("Once upon a time"), p);
    const char *begin = strstr(echoed.text, "Once upon a time");
    assert_non_null(begin);
    assert_string_equal(begin + strlen("Once upon a time"), plain.text);
    assert_int_equal(echoed.num_tokens, plain.num_tokens);
    answer_clear(&plain);
    answer_clear(&echoed);
}

/* ---- several answers ---- */

static void ask_n(di_engine *e, int n, di_request_params p, answer *answers) {
    di_queue *q = open_queue(e);
    p.n = n;
    submit(e, q, text_prompt("Once upon a time there was"), p, answers);
    read_answers(q, n);
    di_queue_destroy(q);
}

static void test_choices_are_distinct_and_reproducible(void **state) {
    (void)state;
    answer a[6] = {0}, b[3] = {0}, c[3] = {0};
    ask_n(engine, 6, endless(11, 20), a);
    ask_n(engine, 3, endless(11, 20), b);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(a[i].lasts, 1);
        for (int k = 0; k < i; k++) {
            assert_true(a[i].seed != a[k].seed);
            assert_string_not_equal(a[i].text, a[k].text);
        }
    }
    for (int i = 0; i < 3; i++) {
        expect_same_answers(&a[i], &b[i]);
    }
    di_request_params p = endless(0, 20);
    p.has_seed = false;
    ask_n(engine, 3, p, c);
    assert_string_not_equal(c[0].text, c[1].text);
    assert_string_not_equal(c[1].text, c[2].text);
    for (int i = 0; i < 6; i++) {
        answer_clear(&a[i]);
    }
    for (int i = 0; i < 3; i++) {
        answer_clear(&b[i]);
        answer_clear(&c[i]);
    }
}

static void test_choices_end_each_for_itself(void **state) {
    (void)state;
    static const char *const stop[] = {"e"};
    answer a[8] = {0};
    di_request_params p = endless(21, 40);
    p.stop = stop;
    p.num_stop = 1;
    ask_n(engine, 8, p, a);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(a[i].lasts, 1);
        assert_null(strchr(a[i].text, 'e'));
        answer_clear(&a[i]);
    }
}

/* ---- log-probabilities against logits ---- */

typedef struct log_softmax {
    const answer *a;
    int64_t row, prompt; /* tokens */
} log_softmax;

static void expect_row(const float *x, const di_logprob *chosen, const di_logprob *tops, int top) {
    double sum = 0;
    for (int v = 0; v < VOCAB; v++) {
        sum += exp((double)x[v]);
    }
    double norm = log(sum); /* float32 results of 46-bit weights */
    assert_true(fabs((double)x[chosen->token_id] - norm - (double)chosen->logprob) < 1e-5);
    for (int i = 0; i < top; i++) {
        int32_t id = tops[i].token_id;
        assert_true(fabs((double)x[id] - norm - (double)tops[i].logprob) < 1e-5);
        int better = 0; /* so many stand in front: larger, or as large with a lower id */
        for (int v = 0; v < VOCAB; v++) {
            better += x[v] > x[id] || (x[v] == x[id] && v < id);
        }
        assert_int_equal(better, i);
    }
    assert_int_equal(tops[top].token_id, -1);
}

static bool check_rows(void *user, const float *logits, int num_rows, di_error *err) {
    log_softmax *s = user;
    (void)err;
    for (int i = 0; i < num_rows; i++, s->row++) {
        const float *x = logits + (size_t)i * VOCAB;
        int64_t next = s->row + 1; /* this row predicts that token */
        if (next < s->prompt) {
            expect_row(x, &s->a->prompt[next], s->a->prompt_tops + next * ANSWER_TOPS, 3);
        } else if (next - s->prompt < (int64_t)s->a->num_tokens) {
            int64_t t = next - s->prompt;
            expect_row(x, &s->a->chosen[t], s->a->tops + t * ANSWER_TOPS, 3);
        }
    }
    return true;
}

static void test_logprobs_are_those_of_the_logits(void **state) {
    (void)state;
    enum { PROMPT = 150, ANSWER = 20 };
    int32_t ids[PROMPT + ANSWER];
    di_error err = {0};
    di_parts parts;
    di_parts_options o = {.model = "models/demo",
                          .backend = demo_options().backend,
                          .threads = 1,
                          .max_num_seqs = 1,
                          .max_rows = 64,
                          .max_logits = 64,
                          .kv_memory = 64 << 20};
    for (int i = 0; i < PROMPT; i++) {
        ids[i] = 270 + i * 23 % 3500;
    }
    di_request_params p = endless(9, ANSWER);
    p.logprobs = p.prompt_logprobs = true;
    p.top_logprobs = 3;
    answer a = answer_of(engine, ids_prompt(ids, PROMPT), p);
    assert_true(isinf(a.prompt[0].logprob)); /* nothing predicts the first */
    memcpy(ids + PROMPT, a.tokens, ANSWER * sizeof *ids);
    log_softmax s = {.a = &a, .prompt = PROMPT};
    if (!di_parts_open(&parts, &o, &err) ||
        !di_logits_run(&parts, ids, PROMPT + ANSWER, 64, 0, check_rows, &s, &err)) {
        fail_msg("%s", err.message);
    }
    di_parts_close(&parts);
    answer_clear(&a);
}

/* ---- refusals ---- */

static void expect_refused(di_engine *e, di_prompt prompt, di_request_params params,
                           di_error_code code, const char *message) {
    di_error err = {0};
    di_queue *q = open_queue(e);
    assert_int_equal(di_submit(e, q, &prompt, &params, NULL, &err), 0);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, message)) {
        fail_msg("%s", err.message);
    }
    assert_null(di_queue_wait(q, 0));
    di_queue_destroy(q);
}

static void test_what_can_never_fit_is_refused_with_numbers(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_num_seqs = 1;
    o.kv_memory = kv_memory_of("models/demo", 1, 11);
    di_engine *e = open_engine(&o);
    static int32_t ids[1500];
    for (int i = 0; i < 1500; i++) {
        ids[i] = 300;
    }
    expect_refused(e, ids_prompt(ids, 1408), greedy(2), DI_ERR_ARGUMENT,
                   "1410 tokens, the cache holds 1408 in all (kv_memory)");
    expect_refused(e, ids_prompt(ids, 8), greedy(1402), DI_ERR_ARGUMENT,
                   "1410 tokens, the cache holds 1408 in all (kv_memory)");
    expect_refused(e, ids_prompt(ids, 1500), greedy(0), DI_ERR_ARGUMENT, "the cache holds 1408");
    answer a = answer_of(e, ids_prompt(ids, 1300), greedy(109)); /* that fits exactly */
    assert_int_not_equal(a.reason, DI_FINISH_ERROR);
    answer_clear(&a);
    a = answer_of(e, ids_prompt(ids, 1400), endless(1, 0)); /* as many as there is room for */
    assert_int_equal(a.num_tokens, 9);
    assert_int_equal(a.reason, DI_FINISH_LENGTH);
    answer_clear(&a);
    di_engine_close(e);
}

static void test_parameters_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    static const char *const empty[] = {""};
    static const int32_t out_of_range[] = {4160}, twice[] = {5, 5};
    static const di_bias bias[] = {{5, 101}};
    di_request_params p[14];
    const char *names[14];
    int n = 0;
#define BAD(name, ...)                                                                             \
    do {                                                                                           \
        p[n] = greedy(4);                                                                          \
        di_request_params *q = &p[n];                                                              \
        __VA_ARGS__;                                                                               \
        names[n++] = name;                                                                         \
    } while (0)
    BAD("n is 0", q->n = 0);
    BAD("n is 129", q->n = 129);
    BAD("top_logprobs is 21", (q->logprobs = true, q->top_logprobs = 21));
    BAD("top_logprobs is 2 without logprobs", q->top_logprobs = 2);
    BAD("deadline is -1", q->deadline = -1);
    BAD("presence_penalty", q->presence_penalty = 2.5);
    BAD("repetition_penalty", q->repetition_penalty = 0);
    BAD("stop", (q->stop = empty, q->num_stop = 1));
    BAD("bad_words[0] is empty", (q->bad_words = empty, q->num_bad_words = 1));
    BAD("stop_token_ids", (q->stop_token_ids = out_of_range, q->num_stop_token_ids = 1));
    BAD("allowed_token_ids", (q->allowed_token_ids = twice, q->num_allowed_token_ids = 2));
    BAD("logit_bias", (q->logit_bias = bias, q->num_logit_bias = 1));
    BAD("min_tokens", q->min_tokens = -1);
    BAD("max_tokens is 5000", q->max_tokens = 5000);
#undef BAD
    for (int i = 0; i < n; i++) {
        expect_refused(engine, text_prompt("x"), p[i], DI_ERR_ARGUMENT, names[i]);
    }
}

static void test_more_than_max_queue_is_busy(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_queue = 3;
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    answer a[3] = {0};
    uint64_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = submit(e, q, text_prompt("Once"), endless(1, 4000), &a[i]);
    }
    expect_refused(e, text_prompt("Once"), greedy(1), DI_ERR_BUSY,
                   "3 requests are under way, max_queue allows 3");
    for (int i = 0; i < 3; i++) {
        assert_true(di_cancel(e, ids[i]));
    }
    read_answers(q, 3);
    expect_whole_pools(e);
    di_result_free(ask(e, text_prompt("Once"), greedy(1)));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].reason, DI_FINISH_ABORT);
        assert_false(di_cancel(e, ids[i]));
        answer_clear(&a[i]);
    }
    di_queue_destroy(q);
    di_engine_close(e);
}

static void test_whoever_has_read_an_answer_finds_its_place_free(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_queue = 1;
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    for (int i = 0; i < 300; i++) {
        answer a = {0};
        submit(e, q, text_prompt("Once"), greedy(1 + i % 3), &a);
        read_answers(q, 1);
        answer_clear(&a);
    }
    di_queue_destroy(q);
    di_engine_close(e);
}

/* ---- order ---- */

static void test_lower_priority_numbers_go_first(void **state) {
    (void)state;
    di_engine_options o = demo_options();
    o.max_num_seqs = 1;
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    answer a[4] = {0};
    static const int priorities[] = {0, 1, 0, -1};
    for (int i = 0; i < 4; i++) {
        di_request_params p = endless(1, 100);
        p.priority = priorities[i];
        submit(e, q, text_prompt("Once"), p, &a[i]);
    }
    int order[4], n = 0;
    while (n < 4) {
        di_output *out = di_queue_wait(q, -1);
        answer *from = out->tag;
        answer_add(from, out);
        if (from->lasts) {
            order[n++] = (int)(from - a);
        }
        di_output_free(out);
    }
    const int wanted[] = {3, 0, 2, 1};
    assert_memory_equal(order, wanted, sizeof wanted);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a[i].num_tokens, 100);
        answer_clear(&a[i]);
    }
    di_queue_destroy(q);
    di_engine_close(e);
}

/* ---- many callers ---- */

enum { CALLERS = 4, EACH = 12 };

typedef struct caller {
    pthread_t thread;
    di_engine *engine;
    di_queue *queue;
    int number;
    answer answers[EACH];
} caller;

static di_request_params mixed(int i) {
    di_request_params p = i % 3 ? endless((uint64_t)i, 3 + i % 20) : greedy(3 + i % 20);
    p.top_k = i % 5 ? -1 : 40;
    p.logprobs = i % 2;
    p.presence_penalty = i % 7 ? 0 : 0.3;
    return p;
}

static di_prompt mixed_prompt(int i, int32_t *ids) {
    for (int k = 0; k < 300; k++) {
        ids[k] = 300 + (k * 13 + (k < 128 ? 0 : i % 5 * 100)) % 3000;
    }
    return ids_prompt(ids, (size_t)(1 + i * 29 % 300));
}

static void *call(void *arg) {
    caller *c = arg;
    for (int i = 0; i < EACH; i++) {
        int32_t ids[300];
        int request = c->number * EACH + i;
        di_prompt prompt = mixed_prompt(request, ids);
        di_request_params params = mixed(request);
        while (!di_submit(c->engine, c->queue, &prompt, &params, &c->answers[i], NULL)) {
            rest(1); /* busy */
        }
    }
    return NULL;
}

static void test_callers_in_many_threads_get_what_they_would_get_alone(void **state) {
    (void)state;
    static caller callers[CALLERS];
    di_engine_options o = demo_options();
    o.max_num_seqs = 5;
    o.max_num_batched_tokens = 100;
    o.max_queue = 20;
    o.kv_memory = kv_memory_of("models/demo", 5, 20);
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    for (int i = 0; i < CALLERS; i++) {
        callers[i].engine = e;
        callers[i].queue = q;
        callers[i].number = i;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    read_answers(q, CALLERS * EACH);
    assert_null(di_queue_wait(q, 0));
    for (int i = 0; i < CALLERS * EACH; i++) {
        int32_t ids[300];
        answer *found = &callers[i / EACH].answers[i % EACH];
        answer alone = answer_of(engine, mixed_prompt(i, ids), mixed(i));
        expect_same_answers(found, &alone);
        answer_clear(found);
        answer_clear(&alone);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    di_queue_destroy(q);
    expect_whole_pools(e);
    di_engine_close(e);
}

/* ---- leaving ---- */

static void test_cancel_at_any_moment(void **state) {
    (void)state;
    static int32_t ids[900];
    for (int i = 0; i < 900; i++) {
        ids[i] = 300 + i;
    }
    di_engine_options o = demo_options();
    o.max_num_seqs = 2;
    o.max_num_batched_tokens = 64;
    di_engine *e = open_engine(&o);
    for (int moment = 0; moment < 24; moment++) {
        di_queue *q = open_queue(e);
        answer a[4] = {0};
        uint64_t numbers[2];
        di_request_params p = endless(1, 500);
        p.n = 3;
        numbers[0] = submit(e, q, ids_prompt(ids, 600), p, a);
        numbers[1] = submit(e, q, ids_prompt(ids + 300, 200), endless(2, 400), &a[3]);
        rest(moment * moment / 4); /* waiting, in the prompt, decoding */
        assert_true(di_cancel(e, numbers[moment % 2]));
        rest(moment % 3);
        assert_true(di_cancel(e, numbers[1 - moment % 2]));
        read_answers(q, 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(a[i].reason, DI_FINISH_ABORT);
            answer_clear(&a[i]);
        }
        di_queue_destroy(q);
    }
    expect_whole_pools(e);
    di_engine_close(e);
}

static void test_a_queue_may_go_while_its_requests_run(void **state) {
    (void)state;
    di_queue *stays = open_queue(engine);
    answer a = {0};
    submit(engine, stays, messages_prompt(WHO_WROTE_DRACULA), greedy(0), &a);
    for (int moment = 0; moment < 10; moment++) {
        di_queue *q = open_queue(engine);
        answer lost[3] = {0};
        di_request_params p = endless(1, 2000);
        p.n = 2;
        p.logprobs = true;
        submit(engine, q, text_prompt("Once upon a time"), p, lost);
        submit(engine, q, text_prompt("Once upon a time"), greedy(1), &lost[2]);
        rest(moment * 3);
        di_queue_destroy(q);
    }
    read_answers(stays, 1);
    assert_string_equal(a.text, "Dracula was written by Bram Stoker.");
    answer_clear(&a);
    di_queue_destroy(stays);
    expect_whole_pools(engine);
}

static void test_an_engine_closes_right_behind_its_queues(void **state) {
    (void)state;
    for (int moment = 0; moment < 6; moment++) {
        di_engine_options o = demo_options();
        o.synchronous = moment % 2;
        di_engine *e = open_engine(&o);
        di_queue *q = open_queue(e);
        answer a[2] = {0};
        submit(e, q, text_prompt("Once upon a time"), endless(1, 2000), &a[0]);
        submit(e, q, text_prompt("Once upon a time"), endless(2, 2000), &a[1]);
        rest(moment * 4);
        di_queue_destroy(q);
        di_engine_close(e);
    }
}

static void test_a_queue_can_be_woken_and_waits_no_longer_than_asked(void **state) {
    (void)state;
    di_queue *q = open_queue(engine);
    assert_null(di_queue_wait(q, 0));
    assert_null(di_queue_wait(q, 5));
    di_queue_wake(q);
    assert_null(di_queue_wait(q, -1));
    assert_null(di_queue_wait(q, 1)); /* woken once */
    di_queue_destroy(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_texts_end_the_answer_and_are_never_half_shown),
        cmocka_unit_test(test_stop_tokens_end_the_answer),
        cmocka_unit_test(test_min_tokens_puts_off_every_end),
        cmocka_unit_test(test_a_deadline_ends_answers_that_run_and_those_that_wait),
        cmocka_unit_test(test_biased_and_allowed_tokens),
        cmocka_unit_test(test_bad_words_do_not_appear),
        cmocka_unit_test(test_golden_tokens_are_the_answer_as_far_as_they_go),
        cmocka_unit_test(test_no_legal_token_ends_one_answer_with_the_reason),
        cmocka_unit_test(test_echo_puts_the_prompt_in_front),
        cmocka_unit_test(test_choices_are_distinct_and_reproducible),
        cmocka_unit_test(test_choices_end_each_for_itself),
        cmocka_unit_test(test_logprobs_are_those_of_the_logits),
        cmocka_unit_test(test_what_can_never_fit_is_refused_with_numbers),
        cmocka_unit_test(test_parameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(test_more_than_max_queue_is_busy),
        cmocka_unit_test(test_whoever_has_read_an_answer_finds_its_place_free),
        cmocka_unit_test(test_lower_priority_numbers_go_first),
        cmocka_unit_test(test_callers_in_many_threads_get_what_they_would_get_alone),
        cmocka_unit_test(test_cancel_at_any_moment),
        cmocka_unit_test(test_a_queue_may_go_while_its_requests_run),
        cmocka_unit_test(test_an_engine_closes_right_behind_its_queues),
        cmocka_unit_test(test_a_queue_can_be_woken_and_waits_no_longer_than_asked),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}

/* Exchanges without sockets: replies and their shapes, generations and who lets go of them first,
 * memory that is short at any moment, streams and their bounds, names of fields. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/exchange.h"
#include "server/fields.h"
#include "server/internal.h"
#include "support/cmocka.h"
#include "support/scripted.h"

static di_scripted *engine;
static di_server *server;
static di_answerer answerer;

#define MODEL "\"model\":\"DeepSeek-V4.1-Flash\""
#define CHAT(content, more)                                                                        \
    "{" MODEL ",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":\"user\","            \
    "\"content\":\"" content "\"}]" more "}"

static const char *header(void *context, const char *name) {
    (void)context;
    return strcmp(name, "Content-Type") == 0 ? "application/json" : NULL;
}

/* All of an exchange but its answer. */
static void ask(di_exchange *x, const char *method, const char *path, const char *body) {
    *x = (di_exchange){.header = header};
    if (di_exchange_begin(x, server, method, path) && di_exchange_body(x, body, strlen(body))) {
        di_exchange_run(x);
    }
    assert_true(x->reply.status != 0 || x->generation != NULL);
}

static void run(di_exchange *x, const char *path, const char *body) {
    ask(x, "POST", path, body);
}

static void wait_over(di_generation *g) {
    double patience = di_now() + 60;
    for (bool over = false; !over;) {
        assert_true(di_now() < patience);
        pthread_mutex_lock(&g->lock);
        over = g->over || g->gone;
        pthread_mutex_unlock(&g->lock);
    }
}

static void wait_rest(void) {
    double patience = di_now() + 60;
    di_scripted_stats stats;
    do {
        assert_true(di_now() < patience);
        di_scripted_get_stats(engine, &stats);
    } while (stats.running > 0 || di_server_running(server) > 0);
}

static bool holds(const di_buffer *b, const char *text) {
    return b->data && memmem(b->data, b->size, text, strlen(text)) != NULL;
}

static void test_errors_have_the_shape_of_their_api(void **state) {
    (void)state;
    di_exchange x;
    run(&x, "/v1/chat/completions", "{\"model\":\"nope\"}");
    assert_int_equal(x.reply.status, 404);
    assert_true(holds(&x.reply.body, "{\"error\":{\"message\":\"model is \\\"nope\\\""));
    assert_true(holds(&x.reply.body, "\"param\":\"model\",\"code\":\"model_not_found\"}}"));
    di_exchange_free(&x);
    run(&x, "/v1/messages", "{\"model\":\"nope\"}");
    assert_int_equal(x.reply.status, 404);
    assert_true(
        holds(&x.reply.body, "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\""));
    assert_true(holds(&x.reply.body, x.request_id));
    di_exchange_free(&x);
    run(&x, "/v1/messages/batches", "{}");
    assert_true(holds(&x.reply.body, "{\"type\":\"error\""));
    di_exchange_free(&x);
}

static void test_whole_answer(void **state) {
    (void)state;
    di_exchange x;
    run(&x, "/v1/chat/completions", CHAT("@say four words are here", ",\"n\":2"));
    assert_non_null(x.generation);
    wait_over(x.generation);
    di_exchange_finish(&x);
    assert_int_equal(x.reply.status, 200);
    assert_true(holds(&x.reply.body, "\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":"
                                     "\"four words are here\"}"));
    di_exchange_free(&x);
    wait_rest();
}

static void test_parameters_reach_the_engine(void **state) {
    (void)state;
    di_exchange x;
    di_request_params p;
    run(&x, "/v1/chat/completions",
        CHAT("x", ",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"seed\":9,"
                  "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
                  "\"max_completion_tokens\":11,\"min_tokens\":3,\"logprobs\":true,"
                  "\"top_logprobs\":4,\"priority\":-5,\"deadline\":2.5,\"ignore_eos\":true"));
    assert_non_null(x.generation);
    di_scripted_get_params(engine, &p);
    assert_true(p.temperature == 0.5 && p.top_p == 0.25 && p.top_k == 7 && p.min_p == 0.125);
    assert_true(p.presence_penalty == 1 && p.frequency_penalty == -1);
    assert_true(p.repetition_penalty == 1.5 && p.has_seed && p.seed == 9);
    assert_true(p.max_tokens == 11 && p.min_tokens == 3 && p.logprobs && p.top_logprobs == 4);
    assert_true(p.deadline == 2.5 && p.ignore_eos && p.num_stop == 0);
    assert_int_equal(p.priority, 0); /* a client may only make itself less urgent */
    di_generation_abandon(x.generation);
    di_exchange_free(&x);
    run(&x, "/v1/chat/completions", CHAT("x", ""));
    di_scripted_get_params(engine, &p);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.top_k == -1 && !p.has_seed && p.n == 1);
    di_generation_abandon(x.generation);
    di_exchange_free(&x);
    wait_rest();
}

static void test_either_side_may_let_go_first(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++) {
        di_exchange x;
        run(&x, "/v1/chat/completions",
            i % 2 ? CHAT("@say a b c d", ",\"stream\":true") : CHAT("@hold", ""));
        assert_non_null(x.generation);
        if (i % 4 == 1) {
            wait_over(x.generation); /* the pump is done first */
        } else {
            di_generation_abandon(x.generation);
        }
        di_exchange_free(&x);
    }
    wait_rest();
}

static void test_error_inside_a_stream_is_its_last_event(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *end;
    } cases[] = {
        {"/v1/chat/completions", CHAT("@fail=2 @count=5", ",\"stream\":true"),
         "data: {\"error\":{\"message\":\"the script says"},
        {"/v1/completions", "{" MODEL ",\"prompt\":\"@fail=2 @count=5\",\"stream\":true}",
         "data: {\"error\":{\"message\":\"the script says"},
        {"/v1/messages", CHAT("@fail=2 @count=5", ",\"max_tokens\":9,\"stream\":true"),
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""},
        {"/v1/responses",
         "{" MODEL ",\"input\":\"@fail=2 @count=5\",\"stream\":true,\"reasoning\":{\"effort\":"
         "\"none\"}}",
         "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_exchange x;
        run(&x, cases[i].path, cases[i].body);
        assert_non_null(x.generation);
        wait_over(x.generation);
        di_buffer *bytes = &x.generation->bytes.bytes;
        const char *end = memmem(bytes->data, bytes->size, cases[i].end, strlen(cases[i].end));
        if (!end) {
            fail_msg("%s: %.*s", cases[i].path, (int)bytes->size, bytes->data);
        }
        const char *behind = memmem(end, bytes->size - (size_t)(end - bytes->data), "\n\n", 2);
        assert_ptr_equal(behind + 2, bytes->data + bytes->size);
        di_exchange_free(&x);
    }
    wait_rest();
}

/* Whatever allocation fails, on whichever thread: a reply or an answer that ends, and nothing that
 * is left behind. */
static void test_memory_may_be_short_at_any_moment(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/chat/completions", CHAT("@say one two three", ",\"stream\":true,\"logprobs\":true,"
                                                            "\"stream_options\":{\"include_usage\":"
                                                            "true},\"logit_bias\":{\"5\":1}")},
        {"/v1/completions",
         "{" MODEL ",\"prompt\":[\"@say one\",[300,301]],\"n\":2,\"logprobs\":1}"},
        {"/v1/messages", CHAT("@say one two", ",\"max_tokens\":9")},
        {"/tokenize", "{\"prompt\":\"one two\",\"return_token_strs\":true}"},
    };
    di_alloc_fail_at(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t count = 1;
        for (uint64_t n = 0; n <= count; n++) {
            di_exchange x;
            di_alloc_fail_at(n);
            run(&x, cases[i].path, cases[i].body);
            if (x.generation) {
                wait_over(x.generation);
                if (!x.generation->stream) {
                    di_exchange_finish(&x);
                }
            }
            uint64_t made = di_alloc_fail_at(0);
            count = n == 0 ? made : count;
            assert_true(n > 0 || x.reply.status == 0 || x.reply.status == 200);
            assert_true(!x.reply.status || x.reply.status == 200 || x.reply.status / 100 == 5);
            di_exchange_free(&x);
            wait_rest();
        }
    }
}

/* Of a request that needs no engine. */
static int status_of(const char *method, const char *path) {
    di_exchange x;
    ask(&x, method, path, "");
    int status = x.reply.status;
    di_exchange_free(&x);
    return status;
}

/* A response in the background that was promised ends one way or the other, and can be asked for.
 */
static void test_a_promised_response_is_there_whatever_memory_there_was(void **state) {
    (void)state;
    static const char body[] = "{" MODEL ",\"background\":true,\"reasoning\":{\"effort\":\"none\"},"
                               "\"input\":\"@say one two three\"}";
    uint64_t count = 1;
    int kept = 0, failed = 0;
    for (uint64_t n = 0; n <= count; n++) {
        di_exchange x;
        char id[64] = "", path[128];
        di_alloc_fail_at(n);
        run(&x, "/v1/responses", body);
        wait_rest();
        uint64_t made = di_alloc_fail_at(0);
        count = n == 0 ? made : count;
        assert_null(x.generation);
        assert_true(x.reply.status == 200 || (n > 0 && x.reply.status / 100 == 5));
        if (x.reply.status == 200) {
            assert_int_equal(sscanf(x.reply.body.data, "{\"id\":\"%63[^\"]", id), 1);
            snprintf(path, sizeof path, "/v1/responses/%s", id);
            di_exchange got;
            ask(&got, "GET", path, "");
            assert_int_equal(got.reply.status, 200);
            bool whole = holds(&got.reply.body, "one two three");
            assert_true(whole || holds(&got.reply.body, "\"status\":\"failed\""));
            kept += whole;
            failed += !whole;
            di_exchange_free(&got);
        }
        di_exchange_free(&x);
    }
    assert_true(kept > 0 && (failed > 0 || count == 0)); /* 0: a build without faults */
    assert_int_equal(atomic_load(&server->num_background), 0);
}

/* The same of what is asked about one. */
static void test_questions_about_a_response_when_memory_is_short(void **state) {
    (void)state;
    static const struct {
        const char *method, *behind;
    } cases[] = {{"GET", ""}, {"GET", "/input_items"}, {"POST", "/cancel"}, {"DELETE", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t count = 1;
        for (uint64_t n = 0; n <= count; n++) {
            for (int hold = 0; hold < 2; hold++) {
                di_exchange x;
                char id[64] = "", path[128];
                run(&x, "/v1/responses",
                    hold ? "{" MODEL ",\"background\":true,\"input\":\"@hold\"}"
                         : "{" MODEL ",\"background\":true,\"input\":\"@say one\"}");
                assert_int_equal(sscanf(x.reply.body.data, "{\"id\":\"%63[^\"]", id), 1);
                di_exchange_free(&x);
                if (!hold) {
                    wait_rest();
                }
                snprintf(path, sizeof path, "/v1/responses/%s%s", id, cases[i].behind);
                di_alloc_fail_at(n);
                int status = status_of(cases[i].method, path);
                uint64_t made = di_alloc_fail_at(0);
                count = n == 0 && made > count ? made : count;
                assert_true(status == 200 || (n > 0 && status / 100 == 5));
                snprintf(path, sizeof path, "/v1/responses/%s/cancel", id);
                status_of("POST", path);
                wait_rest();
            }
        }
    }
    assert_int_equal(atomic_load(&server->num_background), 0);
}

static void test_stream_gives_what_was_put_in(void **state) {
    (void)state;
    di_stream s = {.limit = 100};
    di_buffer all = {0};
    char piece[7];
    for (int i = 0; i < 1000; i++) {
        assert_true(di_stream_event(&s, i % 3 ? NULL : "name", "{\"a\":1}", 7, NULL));
        for (int k = 0; k < i % 3; k++) {
            size_t n = di_stream_take(&s, piece, sizeof piece);
            assert_true(di_buffer_append(&all, piece, n, NULL));
        }
    }
    assert_false(di_stream_room(&s));
    for (size_t n; (n = di_stream_take(&s, piece, sizeof piece)) > 0;) {
        assert_true(di_buffer_append(&all, piece, n, NULL));
    }
    assert_true(di_stream_room(&s));
    size_t events = 0, at = 0;
    while (at < all.size) {
        const char *wanted =
            events % 3 ? "data: {\"a\":1}\n\n" : "event: name\ndata: {\"a\":1}\n\n";
        assert_memory_equal(all.data + at, wanted, strlen(wanted));
        at += strlen(wanted);
        events++;
    }
    assert_int_equal(events, 1000);
    di_buffer_free(&all);
    di_stream_free(&s);
}

static void test_param_is_the_field_that_the_message_begins_with(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"messages[0].content is an integer, a string expected", "messages[0].content"},
        {"the body: logit_bias of token 5 is out of range", "logit_bias"},
        {"Invalid temperature value, the valid range of temperature is [0, 2]", "temperature"},
        {"Invalid 'stop[2]': empty string.", "stop[2]"},
        {"line 1, column 5: a string is not closed", NULL},
        {"Empty input messages", NULL},
        {"", NULL},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = di_fields_param(cases[i][0], out, sizeof out);
        if (cases[i][1]) {
            assert_non_null(found);
            assert_string_equal(found, cases[i][1]);
        } else {
            assert_null(found);
        }
    }
}

static int start(void **state) {
    static const char *const models[] = {"DeepSeek-V4.1-Flash"};
    di_scripted_options script = {0};
    di_server_options o;
    di_error err = {0};
    (void)state;
    di_server_options_init(&o);
    o.port = 0;
    o.models = models;
    o.num_models = 1;
    o.max_connections = 16;
    o.access_log = NULL;
    o.response_store_bytes = 1 << 20;
    engine = di_scripted_open("models/demo", &script, &err);
    if (!engine) {
        return -1;
    }
    answerer = di_scripted_answerer(engine);
    server = di_server_start(&o, &answerer, &err);
    return server ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    di_server_stop(server);
    di_scripted_close(engine);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_have_the_shape_of_their_api),
        cmocka_unit_test(test_whole_answer),
        cmocka_unit_test(test_parameters_reach_the_engine),
        cmocka_unit_test(test_either_side_may_let_go_first),
        cmocka_unit_test(test_error_inside_a_stream_is_its_last_event),
        cmocka_unit_test(test_memory_may_be_short_at_any_moment),
        cmocka_unit_test(test_a_promised_response_is_there_whatever_memory_there_was),
        cmocka_unit_test(test_questions_about_a_response_when_memory_is_short),
        cmocka_unit_test(test_stream_gives_what_was_put_in),
        cmocka_unit_test(test_param_is_the_field_that_the_message_begins_with),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

/* Structured output in random weather: requests with grammars of all kinds come, are cancelled and
 * preempted, in pools that are too small, with any number of drafts. Each answer has the tokens it
 * has alone and without drafts; whole ones match their expressions, and test_structured_answers.py
 * has whole ones of schemas judged by another validator.
 *
 *   SEED=n REQUESTS=n   another walk, a longer one
 *   ANSWERS=FILE        whole answers of schemas, as JSON lines {"schema", "text"} */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/random.h"
#include "support/requests.h"

enum { REQUESTS = 480, REQUESTS_A_WORLD = 60, SEEDS = 3, ANSWER = 70, MOST_ALIVE = 12, MAX_N = 2 };

#define TEXTS "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5},\"maxItems\":4}"

static const struct {
    di_schema_type type;
    const char *text;
    bool thinks;
} grammars[] = {
    {DI_SCHEMA_JSON,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},"
     "\"b\":{\"enum\":[\"x\",\"yz\",null]}},\"required\":[\"a\"],"
     "\"additionalProperties\":false}",
     false},
    {DI_SCHEMA_JSON, TEXTS, false},
    {DI_SCHEMA_JSON,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":"
     "\"^[A-Z][a-z]{2,8}$\"},\"born\":{\"type\":\"string\",\"format\":\"date\"},"
     "\"size\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":2.5}},"
     "\"required\":[\"size\",\"name\"],\"additionalProperties\":false}",
     true},
    {DI_SCHEMA_JSON,
     "{\"oneOf\":[{\"type\":\"integer\",\"multipleOf\":7,\"maximum\":7000,\"minimum\":0},"
     "{\"type\":\"object\",\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":\"v\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"},\"maxProperties\":3}]}",
     false},
    {DI_SCHEMA_JSON,
     "{\"$defs\":{\"t\":{\"type\":\"array\",\"maxItems\":2,\"items\":{\"anyOf\":["
     "{\"type\":\"boolean\"},{\"$ref\":\"#/$defs/t\"}]}}},\"$ref\":\"#/$defs/t\"}",
     false},
    {DI_SCHEMA_JSON,
     "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":3,\"propertyNames\":"
     "{\"pattern\":\"^[a-z]{1,4}$\"},\"additionalProperties\":{\"type\":\"null\"}}",
     true},
    {DI_SCHEMA_REGEX, "[a-z]{2,6}(, [a-z]{2,6}){1,4}\\.", false},
    {DI_SCHEMA_REGEX, "(\\d{1,3}\\.){3}\\d{1,3}|[^\\n]{3,20}!", true},
    {DI_SCHEMA_EBNF, "root ::= e\ne ::= e \"+\" t | t\nt ::= [0-9]{1,3} | \"(\" e \")\"", false},
    {DI_SCHEMA_TOOLS_REQUIRED,
     "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":"
     "{\"q\":{\"type\":\"string\",\"maxLength\":9},\"n\":{\"type\":\"integer\"}},"
     "\"required\":[\"n\"],\"additionalProperties\":false}},{\"name\":\"g\"}]",
     false},
};
enum { GRAMMARS = sizeof grammars / sizeof *grammars, KINDS = GRAMMARS * SEEDS };

typedef struct flight {
    bool used, cancelled;
    uint64_t id;
    int kind, n, max_tokens, lasts;
    answer answers[MAX_N];
} flight;

static struct weather {
    uint64_t random;
    di_engine *engine;
    di_queue *queue;
    flight flights[MOST_ALIVE];
    int alive;
    answer wanted[KINDS][MAX_N];
    long requests, cancelled, whole;
    uint64_t preempted, accepted;
    FILE *file;
} w;

static int below(int n) {
    return (int)(next_random(&w.random) % (uint32_t)n);
}

/* ---- kinds ---- */

static di_prompt prompt_of(int k) {
    static const char *const asks[] = {
        "[{\"role\":\"user\",\"content\":\"Who wrote Dracula?\"}]",
        "[{\"role\":\"user\",\"content\":\"When was Emma written, and by whom? Answer in JSON.\"}]",
    };
    di_prompt p = messages_prompt(asks[k % 2]);
    p.effort = grammars[k / SEEDS].thinks ? 10 : 0;
    return p;
}

static di_request_params params_of(int k) {
    int seed = k % SEEDS;
    di_request_params p = seed == 0 ? greedy(ANSWER) : seeded((uint64_t)k, ANSWER);
    p.temperature = seed == 2 ? 1.5 : p.temperature;
    p.frequency_penalty = seed == 1 ? 0.3 : 0;
    p.schema_type = grammars[k / SEEDS].type;
    p.schema = grammars[k / SEEDS].text;
    p.schema_any_order = seed == 2;
    return p;
}

static void foretell(void) {
    di_engine_options o = demo_options();
    di_engine *e = open_engine(&o);
    di_queue *q = open_queue(e);
    for (int k = 0; k < KINDS; k++) {
        di_request_params p = params_of(k);
        p.n = MAX_N;
        submit(e, q, prompt_of(k), p, w.wanted[k]);
        read_answers(q, MAX_N);
    }
    di_queue_destroy(q);
    di_engine_close(e);
}

/* ---- events ---- */

static void open_world(uint64_t seed) {
    w.random = seed;
    di_engine_options o = demo_options();
    o.max_num_seqs = 1 + below(6);
    o.num_drafts = below(6);
    o.spec_mode = below(3) ? DI_SPEC_FIXED : DI_SPEC_PRICED;
    o.max_num_batched_tokens = o.max_num_seqs * (1 + o.num_drafts) + below(60);
    /* the drafts' context is part of the state */
    o.kv_memory = kv_memory_of("models/demo", o.max_num_seqs, 11 + below(10)) *
                  (o.num_drafts > 0 ? 3 : 2) / 2;
    o.host_memory = below(2) ? 1 << 24 : 0;
    o.no_prefix_cache = below(4) == 0;
    o.synchronous = below(3) == 0;
    w.engine = open_engine(&o);
    w.queue = open_queue(w.engine);
}

static void add_event(void) {
    flight *f = w.flights;
    while (f < w.flights + MOST_ALIVE && f->used) {
        f++;
    }
    if (f == w.flights + MOST_ALIVE) {
        return;
    }
    *f = (flight){.used = true, .kind = below(KINDS), .n = 1 + (below(4) == 0)};
    f->max_tokens = below(3) ? ANSWER : 1 + below(20);
    di_request_params p = params_of(f->kind);
    p.n = f->n;
    p.max_tokens = f->max_tokens;
    p.priority = below(3) ? 0 : below(3) - 1;
    di_prompt prompt = prompt_of(f->kind);
    di_error err = {0};
    f->id = di_submit(w.engine, w.queue, &prompt, &p, f, &err);
    if (f->id == 0) {
        fail_msg("%s", err.message);
    }
    w.alive++;
    w.requests++;
}

static void cancel_event(void) {
    flight *f = &w.flights[below(MOST_ALIVE)];
    if (f->used && !f->cancelled) {
        f->cancelled = di_cancel(w.engine, f->id);
        w.cancelled += f->cancelled;
    }
}

/* ---- whole answers ---- */

static void expect_match(const char *pattern, const char *text) {
    int code;
    PCRE2_SIZE offset;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &offset, NULL);
    assert_non_null(re);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(re, NULL);
    if (pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, match, NULL) < 0) {
        fail_msg("\"%s\" does not match %s", text, pattern);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(re);
}

static void judge(int kind, const answer *a) {
    const char *grammar = grammars[kind / SEEDS].text, *text = a->text;
    if (grammars[kind / SEEDS].thinks) {
        text = strstr(text, "</think>");
        assert_non_null(text);
        text += strlen("</think>");
    }
    if (grammars[kind / SEEDS].type == DI_SCHEMA_REGEX) {
        expect_match(grammar, text);
    }
    if (grammars[kind / SEEDS].type != DI_SCHEMA_JSON) {
        return;
    }
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) {
        fail_msg("no JSON: %s", text);
    }
    json_decref(value);
    if (w.file) {
        json_t *line = json_pack("{ssss}", "schema", grammar, "text", text);
        json_dumpf(line, w.file, JSON_COMPACT);
        fputc('\n', w.file);
        json_decref(line);
    }
}

/* Free text may end by itself before the grammar has begun. */
static bool is_whole(int kind, const answer *a) {
    return a->reason == DI_FINISH_STOP &&
           (!grammars[kind / SEEDS].thinks || strstr(a->text, "</think>"));
}

static void check_answer(const flight *f, int index) {
    const answer *found = &f->answers[index], *wanted = &w.wanted[f->kind][index];
    assert_true(found->num_tokens <= (size_t)f->max_tokens);
    for (size_t i = 0; i < found->num_tokens; i++) {
        if (i >= wanted->num_tokens || found->tokens[i] != wanted->tokens[i]) {
            fail_msg("kind %d, answer %d: token %zu is %d, alone it is another", f->kind, index, i,
                     found->tokens[i]);
        }
    }
    switch (found->reason) {
    case DI_FINISH_STOP:
        assert_int_equal(found->num_tokens, wanted->num_tokens);
        break;
    case DI_FINISH_LENGTH:
        assert_int_equal(found->num_tokens, f->max_tokens);
        break;
    case DI_FINISH_ABORT:
        assert_true(f->cancelled);
        break;
    default:
        fail_msg("kind %d ended with %s: %s", f->kind, di_finish_reason_name(found->reason),
                 found->error.message);
    }
    if (is_whole(f->kind, found)) {
        w.whole++;
        judge(f->kind, found);
    }
}

static bool read_event(int timeout_ms) {
    di_output *out = di_queue_wait(w.queue, timeout_ms);
    if (!out) {
        return false;
    }
    flight *f = out->tag;
    answer_add(&f->answers[out->index], out);
    if (out->finish_reason != DI_FINISH_NONE) {
        check_answer(f, out->index);
        if (++f->lasts == f->n) {
            for (int i = 0; i < f->n; i++) {
                answer_clear(&f->answers[i]);
            }
            f->used = false;
            w.alive--;
        }
    }
    di_output_free(out);
    return true;
}

static void walk_world(uint64_t seed) {
    open_world(seed);
    for (long end = w.requests + REQUESTS_A_WORLD; w.requests < end;) {
        int event = below(100);
        if (event < 30) {
            add_event();
        } else if (event < 33) {
            cancel_event();
        } else {
            read_event(w.alive > MOST_ALIVE / 2 ? 100 : below(2));
        }
    }
    while (w.alive > 0) {
        if (!read_event(120000)) {
            fail_msg("%d requests do not end", w.alive);
        }
    }
    expect_whole_pools(w.engine);
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(w.engine, &s);
    w.preempted += s.preemptions;
    w.accepted += s.drafts_accepted;
    di_queue_destroy(w.queue);
    di_engine_close(w.engine);
}

static void test_constrained_answers_are_those_they_are_alone(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)from_environment("SEED", 20261130);
    long requests = from_environment("REQUESTS", REQUESTS) * from_environment("SOAK_EVENTS", 1);
    const char *path = getenv("ANSWERS");
    w.file = path ? fopen(path, "w") : NULL;
    assert_true(!path || w.file);
    foretell();
    while (w.requests < requests) {
        print_message("    seed %llu\n", (unsigned long long)seed);
        walk_world(seed++);
    }
    print_message(
        "    %ld requests, %ld cancelled, %ld whole answers, %llu preemptions, %llu drafts "
        "accepted\n",
        w.requests, w.cancelled, w.whole, (unsigned long long)w.preempted,
        (unsigned long long)w.accepted);
    if (requests >= REQUESTS) {
        assert_true(w.whole > 60 && w.accepted > 100 && w.preempted > 5);
    }
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < MAX_N; i++) {
            answer_clear(&w.wanted[k][i]);
        }
    }
    assert_true(!w.file || fclose(w.file) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constrained_answers_are_those_they_are_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

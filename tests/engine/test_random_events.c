/* The engine in random weather: requests come and are cancelled, share prefixes and outrank each
 * other, in pools that are too small, with bounded replay or without. Each answer gets exactly one
 * last output, with the tokens it has alone; at rest the pools are whole. tests/sched/test_random.c
 * does the same to the scheduler alone, hundreds of times as often.
 *
 *   SEED=n                 another walk
 *   REQUESTS=n             a longer one; SOAK_EVENTS=n: n times as long
 *   TEST_BACKEND=cuda      on a card, whose memory must be what it was in the end, as the
 *                          process' own must in any case */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/cuda/cuda.h"
#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/model_files.h"
#include "support/random.h"
#include "support/requests.h"

enum {
    REQUESTS = 2000,
    REQUESTS_A_WORLD = 300,
    TEXTS = 6,
    LENGTHS = 4,
    SEEDS = 3,
    KINDS = TEXTS * LENGTHS * SEEDS,
    LONGEST = 180,
    ANSWER = 40,
    MOST_ALIVE = 24,
    MAX_N = 3,
    KEPT = 22, /* tokens of a prompt, with bounded replay: the least for a window of 16 */
};

/* What one kind of request must give, choice by choice, computed alone. */
typedef struct kind {
    answer wanted[MAX_N];
} kind;

/* A request under way. */
typedef struct flight {
    bool used, cancelled, hurried;
    uint64_t id;
    int kind, n, max_tokens, lasts;
    answer answers[MAX_N];
} flight;

typedef struct weather {
    char *model;
    uint64_t random;
    di_engine *engine;
    di_queue *queue;
    flight flights[MOST_ALIVE];
    int alive;
    kind kinds[2][KINDS]; /* without bounded replay, and with */
    bool replay;          /* of this world */
    long requests, cancelled, late, whole;
    uint64_t preempted, kept, hit, accepted, refused;
    uint64_t queued, drafting, both; /* steps, on a card; worlds that had both kinds */
    int block;                       /* of drafts */
} weather;

static weather w;

static int below(int n) {
    return (int)(next_random(&w.random) % (uint32_t)n);
}

static int between(int low, int high) {
    return low + below(high - low + 1);
}

/* ---- memory ---- */

/* Bytes that the process and, on a card, everybody has taken. */
typedef struct memory_taken {
    size_t host, card;
} memory_taken;

static memory_taken memory_now(void) {
    memory_taken m = {0};
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &pages, &resident), 2);
    fclose(f);
    m.host = (size_t)resident * 4096;
    if (card_under_test()) {
        di_error err;
        int device;
        size_t left, total;
        di_cuda_parse(getenv("TEST_BACKEND"), &device);
        di_backend *be = di_cuda_create(device, &err);
        assert_non_null(be);
        be->ops->queue->memory(be, &left, &total);
        m.card = total - left;
        be->ops->destroy(be);
    }
    return m;
}

/* After some worlds everything that is kept has been taken. Sanitizers keep what was freed for a
 * while, and find leaks themselves. */
static void expect_no_growth(memory_taken before, memory_taken after) {
#ifdef DI_DEBUG
    const size_t slack = (size_t)1 << 30;
#else
    const size_t slack = (size_t)48 << 20;
#endif
    print_message("    memory: %zu KB grew to %zu, on the card %zu to %zu\n", before.host >> 10,
                  after.host >> 10, before.card >> 10, after.card >> 10);
    assert_true(after.host < before.host + slack);
    assert_true(after.card < before.card + slack);
}

/* ---- kinds of requests ---- */

/* Texts come in pairs that part behind the first block. */
static di_prompt prompt_of(int k, int32_t *ids) {
    static const size_t lengths[LENGTHS] = {9, 120, 128, LONGEST};
    int text = k % TEXTS;
    for (int i = 0; i < LONGEST; i++) {
        ids[i] = 5 + (i * 13 + text / 2 * 70 + (i < 128 ? 0 : text % 2 * 31)) % 500;
    }
    return ids_prompt(ids, lengths[k / TEXTS % LENGTHS]);
}

static di_request_params params_of(int k) {
    int seed = k / TEXTS / LENGTHS;
    di_request_params p = seed == 0 ? greedy(ANSWER) : seeded((uint64_t)seed, ANSWER);
    p.ignore_eos = true;
    p.frequency_penalty = seed == 1 ? 0.2 : 0;
    p.logprobs = seed == 2;
    return p;
}

static int draft_block_of(const char *model) {
    json_t *config = files_read_json(files_path(model, "config.json"));
    json_t *text = json_object_get(config, "text_config");
    json_t *block = json_object_get(text ? text : config, "dspark_block_size");
    int size = (int)json_integer_value(block);
    assert_true(size > 0);
    json_decref(config);
    return size;
}

static void foretell(bool replay) {
    di_engine_options o = demo_options();
    o.model = w.model;
    o.replay_mode = replay ? DI_REPLAY_COMPACT : DI_REPLAY_OFF;
    o.replay_keep_tokens = KEPT;
    di_engine *e = open_engine(&o);
    for (int k = 0; k < KINDS; k++) {
        int32_t ids[LONGEST];
        di_request_params p = params_of(k);
        p.n = MAX_N;
        di_queue *q = open_queue(e);
        submit(e, q, prompt_of(k, ids), p, w.kinds[replay][k].wanted);
        read_answers(q, MAX_N);
        di_queue_destroy(q);
    }
    di_engine_close(e);
}

/* ---- events ---- */

static void open_world(uint64_t seed) {
    w.random = seed;
    di_engine_options o = demo_options();
    o.max_num_seqs = between(1, 8);
    o.max_num_batched_tokens = o.max_num_seqs + (below(2) ? between(0, 200) : between(0, 20));
    o.max_mixed_prefill_tokens = between(1, 200);
    o.model = w.model;
    o.num_drafts = below(2) && o.max_num_batched_tokens >= w.block ? between(1, w.block) : 0;
    o.spec_mode = below(3) ? DI_SPEC_FIXED : DI_SPEC_PRICED;
    o.kv_memory = (o.num_drafts ? kv_memory_with_drafts : kv_memory_of)(w.model, o.max_num_seqs,
                                                                        between(4, 10));
    o.host_memory = below(2) ? 1 << 20 : 0;
    o.no_prefix_cache = below(5) == 0;
    o.synchronous = below(3) == 0;
    w.replay = below(3) == 0;
    o.replay_mode = !w.replay ? DI_REPLAY_OFF : below(2) ? DI_REPLAY_MASK : DI_REPLAY_COMPACT;
    o.replay_keep_tokens = KEPT;
    char *folder = files_folder();
    if (o.num_drafts && o.spec_mode == DI_SPEC_PRICED && below(4)) {
        o.cost_cache =
            folder; /* drafts seem to be free: they come and go with what comes of them */
        pretend_costs(&o, 0.001, 0.001);
    }
    w.engine = open_engine(&o);
    files_remove(folder);
    w.queue = open_queue(w.engine);
}

static flight *free_flight(void) {
    for (int i = 0; i < MOST_ALIVE; i++) {
        if (!w.flights[i].used) {
            return &w.flights[i];
        }
    }
    return NULL;
}

static void add_event(void) {
    static const char *const salts[] = {NULL, NULL, NULL, "other"};
    int32_t ids[LONGEST];
    flight *f = free_flight();
    if (!f) {
        return;
    }
    *f = (flight){.used = true, .kind = below(KINDS), .n = below(4) ? 1 : between(2, MAX_N)};
    f->max_tokens = below(3) ? between(1, 12) : ANSWER;
    f->hurried = below(12) == 0;
    di_request_params p = params_of(f->kind);
    p.n = f->n;
    p.max_tokens = f->max_tokens;
    p.priority = below(3) ? 0 : between(-1, 1);
    p.deadline = f->hurried ? 0.001 * between(1, 60) : 0;
    p.cache_salt = salts[below(4)];
    p.no_prefix_cache = below(8) == 0;
    p.report_prompt = below(8) == 0;
    di_prompt prompt = prompt_of(f->kind, ids);
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

/* The answer is the one it has alone, as far as it goes. */
static void check_answer(const flight *f, int index) {
    const answer *found = &f->answers[index], *wanted = &w.kinds[w.replay][f->kind].wanted[index];
    assert_true(found->num_tokens <= (size_t)f->max_tokens);
    for (size_t i = 0; i < found->num_tokens; i++) {
        if (found->tokens[i] != wanted->tokens[i]) {
            fail_msg("request %llu of kind %d, answer %d: token %zu is %d, alone it is %d",
                     (unsigned long long)f->id, f->kind, index, i, found->tokens[i],
                     wanted->tokens[i]);
        }
        if (found->chosen) {
            assert_memory_equal(&found->chosen[i], &wanted->chosen[i], sizeof *found->chosen);
        }
    }
    switch (found->reason) {
    case DI_FINISH_LENGTH:
        assert_int_equal(found->num_tokens, f->max_tokens);
        w.whole++;
        break;
    case DI_FINISH_ABORT:
        assert_true(f->cancelled);
        break;
    case DI_FINISH_DEADLINE:
        assert_true(f->hurried);
        w.late++;
        break;
    default:
        fail_msg("request %llu ended with %s: %s", (unsigned long long)f->id,
                 di_finish_reason_name(found->reason), found->error.message);
    }
}

static bool read_event(int timeout_ms) {
    di_output *out = di_queue_wait(w.queue, timeout_ms);
    if (!out) {
        return false;
    }
    flight *f = out->tag;
    assert_true(f->used && f->id == out->request);
    answer_add(&f->answers[out->index], out); /* nothing comes behind a last output */
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

static void close_world(void) {
    while (w.alive > 0) {
        if (!read_event(60000)) {
            fail_msg("%d requests do not end", w.alive);
        }
    }
    assert_false(read_event(0));
    expect_whole_pools(w.engine);
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(w.engine, &s);
    w.preempted += s.preemptions;
    w.kept += s.preempted_kept;
    w.hit += s.prefix_tokens_hit;
    w.accepted += s.drafts_accepted;
    w.refused += s.drafts_verified - s.drafts_accepted;
    w.queued += s.card_steps;
    w.drafting += s.verify_steps;
    w.both += s.card_steps > 0 && s.verify_steps > 0;
    di_queue_destroy(w.queue);
    di_engine_close(w.engine);
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
    close_world();
}

static void test_every_answer_ends_once_with_the_tokens_it_has_alone(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)from_environment("SEED", 20261129);
    long requests = from_environment("REQUESTS", REQUESTS) * from_environment("SOAK_EVENTS", 1);
    w.model = files_testdata("tiny");
    w.block = draft_block_of(w.model);
    foretell(false);
    foretell(true);
    memory_taken before = {0};
    for (int worlds = 0; w.requests < requests; worlds++) {
        print_message("    seed %llu\n", (unsigned long long)seed);
        if (worlds == 2) {
            before = memory_now();
        }
        walk_world(seed++);
    }
    if (before.host > 0) {
        expect_no_growth(before, memory_now());
    }
    print_message("    %ld requests, %ld cancelled, %ld too late, %ld whole answers, %llu "
                  "preemptions, %llu kept, %llu tokens hit, %llu drafts accepted, %llu refused\n",
                  w.requests, w.cancelled, w.late, w.whole, (unsigned long long)w.preempted,
                  (unsigned long long)w.kept, (unsigned long long)w.hit,
                  (unsigned long long)w.accepted, (unsigned long long)w.refused);
    print_message(
        "    %llu steps queued on a card, %llu with drafts to verify; %llu worlds had both\n",
        (unsigned long long)w.queued, (unsigned long long)w.drafting, (unsigned long long)w.both);
    if (card_under_test() && requests >= 3 * REQUESTS_A_WORLD) {
        assert_true(w.both > 0);
    }
    if (requests >= REQUESTS) {
        assert_true(w.cancelled > 50 && w.whole > 1000 && w.preempted > 20 && w.hit > 10000);
        assert_true(w.refused > 1000);
    }
    free(w.model);
    for (int k = 0; k < 2 * KINDS; k++) {
        for (int i = 0; i < MAX_N; i++) {
            answer_clear(&w.kinds[k / KINDS][k % KINDS].wanted[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_answer_ends_once_with_the_tokens_it_has_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Drafts that are forced: always right, always wrong, wrong at each place, at random. Greedy and
 * seeded answers must be those without drafts, with equal log-probabilities, in full pools and in
 * ones that are too small, from prefixes, behind bounded replay, and where stop texts and ends fall
 * inside a block. */
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/random.h"
#include "support/requests.h"

#include "engine/internal.h"

enum { ASKED = 5, ANSWER = 90, LONG_ANSWER = 260, PROMPT = 190, DRAFTS = 5 };

/* -2 = always right, -1 = at random, else the place of the wrong one (0: all are) */
enum { RIGHT = -2, RANDOM = -1 };

typedef struct force {
    int wrong_at;
    uint64_t random;
    long made;
    answer *wanted; /* [ASKED] */
} force;

static int32_t prompts[ASKED][PROMPT];
static const size_t lengths[ASKED] = {7, 60, 127, 128, PROMPT};

static void fill_prompts(void) {
    for (int i = 0; i < ASKED; i++) {
        for (int k = 0; k < PROMPT; k++) { /* pairs share their first block */
            prompts[i][k] = 300 + (k * 29 + (k > 1 ? 3 : i) * 101) % 3000;
        }
    }
}

/* On the device's thread; the job's tokens rest until its step has been read. */
static void draw_forced(void *user, const di_job *job, int64_t anchor, int n, int32_t *drafts) {
    force *f = user;
    int i = 0;
    while (prompts[i][0] != job->tokens[0]) {
        i++;
    }
    const answer *wanted = &f->wanted[i];
    for (int j = 0; j < n; j++) {
        size_t at = (size_t)(anchor + 1 + j - job->num_prompt);
        int32_t right = at < wanted->num_tokens ? wanted->tokens[at] : 7;
        random_advance(&f->random);
        bool wrong = f->wrong_at == RANDOM ? (f->random >> 60) < 5 : f->wrong_at == j;
        drafts[j] = wrong ? (right + 1) % 4096 : right;
        f->made++;
    }
}

static void ask_all(di_engine *e, answer *answers, const char *stop, int tokens) {
    di_queue *q = open_queue(e);
    for (int i = 0; i < ASKED; i++) {
        di_request_params p = i % 2 ? seeded((uint64_t)i, tokens) : greedy(tokens);
        p.ignore_eos = i != 2 || tokens != ANSWER;
        p.frequency_penalty = i == 3 ? 0.4 : 0;
        p.logprobs = true;
        p.top_logprobs = 2;
        p.stop = stop ? &stop : NULL;
        p.num_stop = stop != NULL;
        p.max_tokens = i == 4 && tokens == ANSWER ? 3 : tokens;
        submit(e, q, ids_prompt(prompts[i], lengths[i]), p, &answers[i]);
    }
    read_answers(q, ASKED);
    di_queue_destroy(q);
}

static void compare(const answer *found, const answer *wanted) {
    for (int i = 0; i < ASKED; i++) {
        expect_same_answers(&found[i], &wanted[i]);
        assert_string_equal(found[i].text, wanted[i].text);
        assert_int_equal(found[i].reason, wanted[i].reason);
    }
}

static void clear(answer *answers) {
    for (int i = 0; i < ASKED; i++) {
        answer_clear(&answers[i]);
    }
}

/* Every step-th pattern, asked twice so that the second time finds prefixes. */
static void force_all(di_engine_options o, const char *stop, bool preempts, int step) {
    answer wanted[ASKED] = {0}, whole[ASKED] = {0};
    di_engine_options plain = o;
    plain.num_drafts = 0;
    plain.kv_memory = 0;
    int tokens = preempts ? LONG_ANSWER : ANSWER;
    di_engine *e = open_engine(&plain);
    ask_all(e, wanted, stop, tokens);
    ask_all(e, whole, NULL, tokens); /* what to force where the answer was cut */
    di_engine_close(e);
    uint64_t preempted = 0;
    for (int wrong = RIGHT; wrong < DRAFTS; wrong += step) {
        force f = {.wrong_at = wrong, .random = 9, .wanted = whole};
        o.num_drafts = DRAFTS;
        o.spec_mode = DI_SPEC_FIXED;
        e = open_engine(&o);
        di_device_force(e->device, draw_forced, &f);
        for (int turn = 0; turn < 2; turn++) {
            answer found[ASKED] = {0};
            ask_all(e, found, stop, tokens);
            compare(found, wanted);
            clear(found);
        }
        expect_whole_pools(e);
        di_engine_stats s = {.struct_bytes = sizeof s};
        di_engine_get_stats(e, &s);
        preempted += s.preemptions;
        assert_true(f.made > 0 && s.drafts_verified > 0);
        if (wrong == RIGHT) {
            assert_true(s.drafts_accepted * 100 > s.drafts_verified * 95);
        } else if (wrong == 0) {
            assert_int_equal(s.drafts_accepted, 0);
        } else if (wrong > 0) {
            assert_int_equal(s.drafts_accepted_at[wrong], 0);
            assert_true(s.drafts_accepted_at[wrong - 1] > 0);
        }
        di_engine_close(e);
    }
    assert_true(!preempts || preempted > 0);
    clear(wanted);
    clear(whole);
}

static di_engine_options roomy(void) {
    di_engine_options o = demo_options();
    o.max_num_seqs = ASKED;
    o.max_num_batched_tokens = 100;
    o.max_mixed_prefill_tokens = 37;
    return o;
}

static void test_all_patterns(void **state) {
    (void)state;
    force_all(roomy(), NULL, false, 1);
}

static void test_in_pools_that_are_too_small(void **state) {
    (void)state;
    di_engine_options o = roomy();
    o.kv_memory = kv_memory_with_drafts("models/demo", ASKED + 1, 2);
    o.host_memory = 1 << 20;
    force_all(o, NULL, true, 3);
}

static void test_behind_bounded_replay(void **state) {
    (void)state;
    di_engine_options o = roomy();
    o.replay_mode = DI_REPLAY_COMPACT;
    o.replay_keep_tokens = 140;
    force_all(o, NULL, false, 3);
}

static void test_stop_texts_inside_a_block(void **state) {
    (void)state;
    force_all(roomy(), "the", false, 2);
}

int main(void) {
    fill_prompts();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_in_pools_that_are_too_small),
        cmocka_unit_test(test_behind_bounded_replay),
        cmocka_unit_test(test_stop_texts_inside_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

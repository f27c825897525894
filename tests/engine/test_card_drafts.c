/* Drafts where steps are queued on a card: that verification steps and rounds of drafts are
 * recorded programs, that steps without drafts are queued whole between them, and that answers are
 * those of an engine without drafts whatever it switches between. On the card under test, else on
 * the simulated one (support/queued.h). */
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/model_files.h"
#include "support/queued.h"
#include "support/requests.h"

#include "engine/internal.h"

enum { ASKED = 4, ANSWER = 120, DRAFTS = 5 };

static const char *const texts[ASKED] = {"The ghost of", "In the forest", "Two brothers went",
                                         "It"};

static di_engine_options options(int num_drafts, di_spec_mode mode) {
    di_engine_options o = demo_options();
    o.backend = queued_backend();
    o.num_drafts = num_drafts;
    o.spec_mode = mode;
    o.max_num_seqs = ASKED;
    o.max_num_batched_tokens = 128;
    return o;
}

static di_engine_stats stats_of(di_engine *e) {
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    return s;
}

/* Greedy and seeded by turns, one with penalties, with log-probabilities. */
static di_request_params params_of(int i, int tokens) {
    di_request_params p = i % 2 ? seeded((uint64_t)i, tokens) : greedy(tokens);
    p.ignore_eos = true;
    p.frequency_penalty = i == 3 ? 0.3 : 0;
    p.logprobs = true;
    p.top_logprobs = 2;
    return p;
}

static void ask_all(di_engine *e, answer *answers, int tokens) {
    di_queue *q = open_queue(e);
    for (int i = 0; i < ASKED; i++) {
        submit(e, q, text_prompt(texts[i]), params_of(i, tokens), &answers[i]);
    }
    read_answers(q, ASKED);
    di_queue_destroy(q);
}

static void expect_same(answer *found, const answer *wanted) {
    for (int i = 0; i < ASKED; i++) {
        expect_same_answers(&found[i], &wanted[i]);
        answer_clear(&found[i]);
    }
}

static void without_drafts(answer *wanted, int tokens) {
    di_engine_options o = options(0, DI_SPEC_OFF);
    di_engine *e = open_engine(&o);
    ask_all(e, wanted, tokens);
    di_engine_stats s = stats_of(e);
    assert_int_equal(s.card_steps, s.steps);
    assert_int_equal(s.draft_steps, 0);
    di_engine_close(e);
}

/* ---- all verified -----------------------------------------------------------------------------*/

static void test_rounds_and_verification_steps_are_programs(void **state) {
    (void)state;
    answer wanted[ASKED] = {0}, found[ASKED] = {0};
    without_drafts(wanted, ANSWER);
    for (int drafts = 1; drafts <= DRAFTS; drafts += 2) {
        di_engine_options o = options(drafts, DI_SPEC_FIXED);
        di_engine *e = open_engine(&o);
        ask_all(e, found, ANSWER);
        expect_same(found, wanted);
        di_engine_stats s = stats_of(e);
        print_message("    %d drafts: %d of %d verification steps recorded, %d of %d rounds\n",
                      drafts, (int)s.recorded_verify_steps, (int)s.verify_steps,
                      (int)s.recorded_draft_steps, (int)s.draft_steps);
        assert_true(s.drafts_accepted > 0 && s.verify_steps > 20 && s.draft_steps > 20);
        assert_int_equal(s.recorded_draft_steps, s.draft_steps);
        /* while the last prompts come in, steps hold pieces of them */
        assert_true(s.recorded_verify_steps + 3 >= s.verify_steps);
        di_engine_close(e);
    }
    for (int i = 0; i < ASKED; i++) {
        answer_clear(&wanted[i]);
    }
}

/* With a grammar, too: of a round's drafts the first keeps to it, and the card draws them all. */
static void test_rounds_of_guided_answers_are_programs(void **state) {
    (void)state;
    static const char *const grammars[] = {"[a-z ,]{30,60}\\.", "(the|a) [a-z]+( [a-z]+)*"};
    answer found[2][4] = {0};
    for (int drafts = 0; drafts <= DRAFTS; drafts += DRAFTS) {
        di_engine_options o = options(drafts, DI_SPEC_FIXED);
        di_engine *e = open_engine(&o);
        for (int i = 0; i < 4; i++) {
            di_request_params p = i % 2 ? seeded((uint64_t)i, 60) : greedy(60);
            p.schema_type = DI_SCHEMA_REGEX;
            p.schema = grammars[i / 2];
            found[drafts > 0][i] = answer_of(e, text_prompt(texts[i]), p);
        }
        di_engine_stats s = stats_of(e);
        assert_int_equal(s.recorded_draft_steps, s.draft_steps);
        assert_int_equal(s.recorded_verify_steps, s.verify_steps);
        if (drafts > 0) {
            print_message("    %d drafts accepted in %d steps\n", (int)s.drafts_accepted,
                          (int)s.verify_steps);
            assert_true(s.draft_steps > 20 && s.drafts_accepted > 20);
        }
        di_engine_close(e);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(found[0][i].num_tokens > 5);
        expect_same_answers(&found[1][i], &found[0][i]);
        answer_clear(&found[0][i]);
        answer_clear(&found[1][i]);
    }
}

/* ---- drafts that come and go ------------------------------------------------------------------*/

/* An engine that takes drafts to cost what it is told. */
static di_engine *open_with_costs(double row, double draft, bool synchronous) {
    char *folder = files_folder();
    di_engine_options o = options(DRAFTS, DI_SPEC_PRICED);
    o.cost_cache = folder;
    o.synchronous = synchronous;
    pretend_costs(&o, row, draft);
    di_engine *e = open_engine(&o);
    files_remove(folder);
    return e;
}

/* Drafts that the model would not write. */
static void force_wrong(void *user, const di_job *job, int64_t anchor, int n, int32_t *drafts) {
    (void)user;
    (void)job;
    for (int j = 0; j < n; j++) {
        drafts[j] = 5 + (int32_t)((anchor + j) % 7);
    }
}

/* Counts how often steps of the kinds followed each other, by what the counters gain from output to
 * output of one answer. */
static void count_switches(di_engine *e, int tokens, answer *a, int *to_drafts, int *to_plain) {
    di_queue *q = open_queue(e);
    di_engine_stats before = stats_of(e);
    int last = 0; /* 1: a step was queued whole, 2: one had drafts */
    submit(e, q, text_prompt(texts[0]), params_of(0, tokens), a);
    for (bool ended = false; !ended;) {
        di_output *out = di_queue_wait(q, -1);
        di_engine_stats now = stats_of(e);
        bool plain = now.card_steps > before.card_steps;
        bool drafts = now.verify_steps + now.draft_steps > before.verify_steps + before.draft_steps;
        *to_drafts += drafts && last == 1;
        *to_plain += plain && !drafts && last == 2;
        last = drafts ? 2 : plain ? 1 : last;
        before = now;
        ended = out->finish_reason != DI_FINISH_NONE;
        answer_add(a, out);
        di_output_free(out);
    }
    di_queue_destroy(q);
}

/* Drafts seem to cost nothing, but the first steps of an engine that believes in them are without,
 * to be compared with; then wrong ones soon stop paying. All in one answer. */
static void test_plain_steps_are_queued_between_others(void **state) {
    (void)state;
    answer wanted[ASKED] = {0};
    without_drafts(wanted, 600);
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        answer found[ASKED] = {0};
        int to_drafts = 0, to_plain = 0;
        di_engine *e = open_with_costs(0.001, 0.001, synchronous);
        di_device_force(e->device, force_wrong, NULL);
        count_switches(e, 600, &found[0], &to_drafts, &to_plain);
        expect_same_answers(&found[0], &wanted[0]);
        di_engine_stats s = stats_of(e);
        print_message("    %d of %d steps whole, %d with drafts; %d times to drafts, %d back\n",
                      (int)s.card_steps, (int)s.steps, (int)s.verify_steps, to_drafts, to_plain);
        assert_true(to_drafts > 0 && to_plain > 0);
        assert_true(s.verify_steps > 0 && s.card_steps > 100);
        assert_int_equal(s.recorded_verify_steps, s.verify_steps);
        assert_int_equal(s.recorded_draft_steps, s.draft_steps);
        /* all that had nothing to do with drafts */
        assert_true(s.card_steps + s.verify_steps + s.draft_steps >= s.steps);
        answer_clear(&found[0]);
        ask_all(e, found, 600); /* several at once, some with drafts */
        expect_same(found, wanted);
        expect_whole_pools(e);
        di_engine_close(e);
    }
    for (int i = 0; i < ASKED; i++) {
        answer_clear(&wanted[i]);
    }
}

static void test_where_drafts_never_pay_all_steps_are_queued(void **state) {
    (void)state;
    answer wanted[ASKED] = {0}, found[ASKED] = {0};
    without_drafts(wanted, 200);
    di_engine *e = open_with_costs(1, 20, false);
    ask_all(e, found, 200);
    expect_same(found, wanted);
    di_engine_stats s = stats_of(e);
    assert_true(s.steps > 190);
    assert_int_equal(s.card_steps, s.steps);
    assert_int_equal(s.draft_steps, 0);
    assert_true(s.recorded_steps + 10 > s.steps); /* but those with prompts */
    di_engine_close(e);
    for (int i = 0; i < ASKED; i++) {
        answer_clear(&wanted[i]);
    }
}

/* Nobody has asked for drafts, nor for none. */
static void test_drafts_are_on_unless_asked_otherwise(void **state) {
    (void)state;
    di_engine_options o = options(-1, DI_SPEC_FIXED);
    di_engine *e = open_engine(&o);
    di_result_free(ask(e, text_prompt(texts[0]), params_of(0, 20)));
    assert_true(stats_of(e).drafts_verified > 0);
    di_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_and_verification_steps_are_programs),
        cmocka_unit_test(test_rounds_of_guided_answers_are_programs),
        cmocka_unit_test(test_plain_steps_are_queued_between_others),
        cmocka_unit_test(test_where_drafts_never_pay_all_steps_are_queued),
        cmocka_unit_test(test_drafts_are_on_unless_asked_otherwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

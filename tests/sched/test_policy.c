/* What the scheduler must do well: first the situations in which the released one was measured to
 * stand still, thrash or lose blocks, then the rest of its policy, rule by rule. */
#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/sched_sim.h"

enum { BLOCK = DI_BLOCK_TOKENS };

static int32_t text[64 * BLOCK];

static sim_job *add_text(sim *s, const di_job *like, int branch, int64_t n, int64_t answer) {
    sim_prompt(text, n, branch, 0);
    return sim_add(s, like, text, n, n + answer);
}

static uint64_t preemptions(const sim *s) {
    di_sched_stats stats;
    di_sched_get_stats(s->sched, &stats);
    return stats.preemptions;
}

static int free_blocks(const sim *s) {
    return di_cache_free_blocks(s->cache);
}

static void both_modes(void (*check)(bool synchronous)) {
    check(false);
    check(true);
}

/* ---- situations of the released scheduler ---- */

/* It ran 70 decode steps without a row between each 8 of 30 prompts with one token of answer. */
static void check_short_answers(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    sim_open(&s, &o);
    for (int i = 0; i < 30; i++) {
        add_text(&s, NULL, i, 100, 1);
    }
    while (s.num_alive > 0) {
        assert_true(sim_turn(&s));
    }
    assert_int_equal(s.empty_turns, 0);
    assert_in_range(s.turn, 3000 / 256, 3000 / 256 + 4); /* nothing but full steps */
    sim_drain(&s);
    sim_close(&s);
}

static void test_prompts_follow_prompts_without_an_empty_step(void **state) {
    (void)state;
    both_modes(check_short_answers);
}

/* It prefilled all ten chunks back to back while decoding stood still, up to 70 steps late. */
static void check_long_prompt(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    sim_open(&s, &o);
    sim_job *decoding = add_text(&s, NULL, 0, 50, 200);
    sim_run(&s, 10);
    sim_job *longer = add_text(&s, NULL, 1, 10 * 64, 5);
    long added = s.turn;
    while (longer->first_token < 0) {
        sim_turn(&s);
        assert_int_equal(sim_rows_of(&s, decoding), 1);
        assert_in_range(sim_rows_of(&s, longer), 0, 64);
    }
    assert_in_range(longer->first_token - added, 10, 13);
    sim_drain(&s);
    assert_int_equal(decoding->max_gap, 1);
    sim_close(&s);
}

static void test_a_long_prompt_costs_decoding_no_step(void **state) {
    (void)state;
    both_modes(check_long_prompt);
}

/* It preempted A at once, though no block was needed; then B for A, A for B, for ever. */
static void check_full_pool(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    o.num_blocks = 20;
    o.num_snapshots = 0; /* what is preempted is computed from its first token */
    sim_open(&s, &o);
    sim_job *a = add_text(&s, NULL, 0, 12 * BLOCK - 100, 400);
    sim_job *b = add_text(&s, NULL, 1, 7 * BLOCK - 20, 300);
    while (free_blocks(&s) > 0) {
        sim_turn(&s);
    }
    assert_int_equal(preemptions(&s), 0);
    assert_int_equal(a->job.seq.num_blocks + b->job.seq.num_blocks, 20);
    while (preemptions(&s) == 0) { /* not before A has filled its last block */
        assert_true(a->job.seq.len <= 12 * BLOCK);
        sim_turn(&s);
    }
    assert_int_equal(a->job.seq.num_blocks, 13);
    assert_int_equal(b->job.preemptions, 1);
    int64_t again = b->job.num_tokens;
    sim_drain(&s);
    assert_int_equal(preemptions(&s), 1);
    assert_int_equal(a->max_gap, 1);
    assert_in_range(b->rows, b->job.max_len, b->job.max_len + again + 2);
    sim_close(&s);
}

static void test_a_full_pool_preempts_once_and_only_for_a_block_that_is_needed(void **state) {
    (void)state;
    both_modes(check_full_pool);
}

/* The decoding A was put into the queue in front of the half-prefilled B, whose blocks it needed:
 * no progress ever again. */
static void check_half_prefilled(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    o.num_blocks = 20;
    o.sched.max_mixed_prefill_tokens = 4;
    sim_open(&s, &o);
    sim_job *a = add_text(&s, NULL, 0, 10 * BLOCK - 20, 600);
    sim_run(&s, 8);
    sim_job *b = add_text(&s, NULL, 1, 9 * BLOCK, 10);
    while (preemptions(&s) == 0) {
        sim_turn(&s);
        assert_true(s.turn < 1000);
    }
    assert_true(b->rows > 0 && b->job.preemptions == 1); /* half a prompt can be preempted */
    assert_int_equal(b->first_token, -1);
    sim_drain(&s);
    assert_int_equal(a->max_gap, 1);
    sim_close(&s);
}

/* The same with B of better rank: A goes, B is served, A comes back. */
static void check_outranked(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    o.num_blocks = 20;
    o.sched.max_mixed_prefill_tokens = 4;
    sim_open(&s, &o);
    sim_job *a = add_text(&s, NULL, 0, 10 * BLOCK - 20, 600);
    sim_run(&s, 8);
    sim_job *b = add_text(&s, &(di_job){.priority = -1}, 1, 9 * BLOCK, 10);
    sim_drain(&s);
    assert_true(a->job.preemptions >= 1);
    assert_int_equal(b->job.preemptions, 0);
    assert_true(b->last_token < a->last_token);
    sim_close(&s);
}

static void test_a_preempted_job_does_not_wait_for_blocks_of_one_behind_it(void **state) {
    (void)state;
    both_modes(check_half_prefilled);
    both_modes(check_outranked);
}

/* It never gave them back. */
static void check_abort(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    sim_open(&s, &o);
    sim_job *job = add_text(&s, NULL, 0, 10 * BLOCK, 5);
    sim_run(&s, 3);
    assert_true(job->job.seq.num_blocks > 3 && free_blocks(&s) < 40);
    sim_end(&s, job);
    assert_int_equal(free_blocks(&s), 40);
    assert_int_equal(di_cache_free_slots(s.cache), 8);
    sim_drain(&s);
    sim_close(&s);
}

static void test_a_half_prefilled_prompt_that_is_cancelled_returns_all(void **state) {
    (void)state;
    both_modes(check_abort);
}

/* ---- fairness ---- */

static void test_a_stream_of_short_prompts_does_not_starve_a_long_one(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    sim_job *longer = add_text(&s, NULL, 0, 20 * 64, 5);
    while (longer->first_token < 0) {
        if (s.num_alive < 20) {
            add_text(&s, NULL, 1 + (int)(s.turn % 50), 60, 4);
            add_text(&s, NULL, 60 + (int)(s.turn % 50), 60, 4);
        }
        sim_turn(&s);
    }
    /* Alone beside decoding it takes 20 steps of 64: with half of each step it takes 40. */
    assert_true(longer->first_token <= 45);
    sim_drain(&s);
    sim_close(&s);
}

static void test_a_short_prompt_does_not_wait_for_long_ones_to_end(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    add_text(&s, NULL, 0, 15 * BLOCK, 5);
    add_text(&s, NULL, 1, 15 * BLOCK, 5);
    sim_run(&s, 3);
    sim_job *shorter = add_text(&s, NULL, 2, 40, 5);
    long added = s.turn;
    sim_drain(&s);
    assert_in_range(shorter->first_token - added, 1, 4);
    sim_close(&s);
}

static void test_nobody_overtakes_a_job_that_waits_for_blocks(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.num_blocks = 10;
    sim_open(&s, &o);
    sim_job *first = add_text(&s, NULL, 0, 6 * BLOCK, 50);
    sim_job *large = add_text(&s, NULL, 1, 7 * BLOCK, 5);
    sim_job *small = add_text(&s, NULL, 2, 40, 1);
    sim_drain(&s);
    assert_true(first->last_token < large->first_token);
    assert_true(first->last_token < small->first_token);
    assert_int_equal(preemptions(&s), 0);
    sim_close(&s);
}

/* ---- priorities ---- */

static void test_better_priority_takes_a_seat_and_equal_priority_does_not(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.sched.max_num_seqs = 2;
    sim_open(&s, &o);
    sim_job *first = add_text(&s, NULL, 0, 50, 100);
    sim_job *second = add_text(&s, NULL, 1, 50, 100);
    sim_run(&s, 5);
    sim_job *equal = add_text(&s, NULL, 2, 50, 5);
    sim_run(&s, 10);
    assert_int_equal(equal->job.state, DI_JOB_WAITING);
    sim_job *better = add_text(&s, &(di_job){.priority = -5}, 3, 50, 5);
    sim_run(&s, 3);
    assert_true(better->first_token > 0);
    assert_int_equal(second->job.preemptions, 1); /* the youngest of the worst */
    assert_int_equal(first->job.preemptions, 0);
    sim_drain(&s);
    assert_in_range(second->max_gap, 2, 12); /* it went back when the better had ended */
    assert_true(first->last_token < equal->first_token);
    assert_int_equal(first->max_gap, 1);
    sim_close(&s);
}

static void test_better_priority_gets_in_though_prompts_fill_every_step(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.num_blocks = 60;
    sim_open(&s, &o);
    add_text(&s, NULL, 0, 25 * BLOCK, 5);
    add_text(&s, NULL, 1, 25 * BLOCK, 5);
    sim_run(&s, 2);
    sim_job *better = add_text(&s, &(di_job){.priority = -1}, 2, 100, 5);
    long added = s.turn;
    sim_drain(&s);
    assert_in_range(better->first_token - added, 1, 2);
    sim_close(&s);
}

static void test_better_priority_gets_in_though_decoding_fills_every_step(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.sched.max_num_seqs = o.sched.max_num_batched_tokens = 4;
    sim_open(&s, &o);
    for (int i = 0; i < 4; i++) {
        add_text(&s, NULL, i, 10, 200);
    }
    sim_run(&s, 30);
    sim_job *better = add_text(&s, &(di_job){.priority = -1}, 5, 10, 5);
    long added = s.turn;
    sim_drain(&s);
    assert_in_range(better->first_token - added, 10, 13); /* a row a step */
    sim_close(&s);
}

/* ---- prefixes and siblings ---- */

static void test_siblings_wait_for_the_prompt_and_go_on_from_it(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    sim_job *leader = add_text(&s, NULL, 0, 600, 20);
    di_job like = {.leader = &leader->job};
    sim_job *siblings[4];
    for (int i = 0; i < 4; i++) {
        siblings[i] = add_text(&s, &like, 0, 600, 20);
        assert_int_equal(siblings[i]->job.state, DI_JOB_HELD);
    }
    while (leader->first_token < 0) {
        sim_turn(&s);
    }
    sim_drain(&s);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(siblings[i]->job.cached_tokens, 512);
        assert_in_range(siblings[i]->rows, 600 - 512 + 19, 600 - 512 + 20);
        assert_in_range(siblings[i]->first_token - leader->first_token, 1, 8);
    }
    sim_close(&s);
}

static void test_siblings_of_a_cancelled_leader_run_by_themselves(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    sim_job *leader = add_text(&s, NULL, 0, 600, 20);
    di_job like = {.leader = &leader->job};
    sim_job *sibling = add_text(&s, &like, 0, 600, 20), *gone = add_text(&s, &like, 0, 600, 20);
    sim_run(&s, 1);
    sim_end(&s, gone);
    sim_end(&s, leader);
    sim_drain(&s);
    assert_int_equal(sibling->job.num_tokens, 620);
    sim_close(&s);
}

static void test_the_same_prompt_again_computes_its_end_only(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    add_text(&s, NULL, 0, 10 * BLOCK, 3);
    sim_drain(&s);
    sim_job *again = add_text(&s, NULL, 0, 10 * BLOCK, 3);
    sim_job *other = add_text(&s, &(di_job){.salt = {.low = 1}}, 0, 10 * BLOCK, 3);
    sim_job *proud = add_text(&s, &(di_job){.no_prefix = true}, 0, 10 * BLOCK, 3);
    sim_job *scored = add_text(&s, &(di_job){.prompt_logits = true}, 0, 10 * BLOCK, 3);
    sim_drain(&s);
    assert_int_equal(again->job.cached_tokens, 9 * BLOCK); /* one token must be computed */
    assert_int_equal(other->job.cached_tokens, 0);
    assert_int_equal(proud->job.cached_tokens, 0);
    assert_int_equal(scored->job.cached_tokens, 0);
    sim_close(&s);
}

/* With bounded replay the end of a prompt is computed in any case, so the snapshot lies in front of
 * it: siblings and the same prompt again need it. */
static void test_a_replayed_prompt_again_computes_what_it_replays(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.sched.snapshot_interval = 16 * BLOCK;
    sim_open(&s, &o);
    di_job like = {.replay_from = 10 * BLOCK - 140};
    sim_job *first = add_text(&s, &like, 0, 10 * BLOCK, 3);
    like.leader = &first->job;
    sim_job *sibling = add_text(&s, &like, 0, 10 * BLOCK, 3);
    sim_drain(&s);
    like.leader = NULL;
    sim_job *again = add_text(&s, &like, 0, 10 * BLOCK, 3);
    sim_job *short_one = add_text(&s, NULL, 0, 9 * BLOCK, 3); /* reads its end by itself */
    sim_drain(&s);
    assert_int_equal(sibling->job.cached_tokens, 8 * BLOCK);
    assert_int_equal(again->job.cached_tokens, 8 * BLOCK);
    assert_int_equal(short_one->job.cached_tokens, 0); /* nothing partial is for it */
    sim_close(&s);
}

/* Where others' prompts went another way, a snapshot is worth having: the third of them finds it.
 */
static void test_a_fork_in_many_prompts_becomes_a_place_to_resume(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.sched.snapshot_interval = 16 * BLOCK;
    sim_open(&s, &o);
    for (int i = 0; i < 3; i++) {
        sim_prompt(text, 8 * BLOCK, i, 5 * BLOCK);
        sim_job *job = sim_add(&s, NULL, text, 8 * BLOCK, 8 * BLOCK + 3);
        sim_drain(&s);
        assert_int_equal(job->job.cached_tokens, i < 2 ? 0 : 5 * BLOCK);
    }
    sim_close(&s);
}

/* ---- preemption ---- */

/* A decodes; B begins, decodes beside it, and is put out when A needs its last block. */
static sim_job *preempt_one(sim *s, sim_job **a) {
    *a = add_text(s, NULL, 0, 6 * BLOCK - 10, 400);
    sim_job *b = add_text(s, NULL, 1, 3 * BLOCK - 50, 100);
    while (b->job.preemptions == 0) {
        sim_turn(s);
        assert_true(s->turn < 1000);
    }
    return b;
}

static void test_a_preempted_job_resumes_from_its_last_full_block(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_job *a;
    o.num_blocks = 12;
    sim_open(&s, &o);
    /* As preempt_one, but while it waits its blocks stay in the cache: A ends soon. */
    a = add_text(&s, NULL, 0, 6 * BLOCK - 10, 400);
    sim_job *b = add_text(&s, NULL, 1, 3 * BLOCK - 50, 300);
    while (b->job.preemptions == 0) {
        sim_turn(&s);
    }
    long before = b->rows;
    int64_t len = b->job.num_tokens;
    sim_end(&s, a);
    sim_drain(&s);
    assert_true(b->rows - before < b->job.max_len - len + BLOCK + 2);
    sim_close(&s);
}

static void check_host_memory(size_t host_bytes, double byte_seconds, bool kept) {
    sim_options o = sim_defaults();
    sim s;
    sim_job *a;
    di_sched_stats stats;
    o.num_blocks = 10;
    o.num_snapshots = 0;
    o.sched.host_bytes = host_bytes;
    sim_open(&s, &o);
    s.costs.byte_seconds = byte_seconds;
    sim_job *b = preempt_one(&s, &a);
    di_sched_get_stats(s.sched, &stats);
    assert_int_equal(stats.swapped, kept);
    assert_int_equal(stats.recomputed, !kept);
    assert_int_equal(stats.host_bytes_used > 0, kept);
    sim_drain(&s);
    assert_int_equal(b->rows < b->job.max_len + 10, kept); /* nothing was computed twice */
    di_sched_get_stats(s.sched, &stats);
    assert_int_equal(stats.host_bytes_used, 0);
    sim_close(&s);
}

static void test_state_is_kept_on_the_host_when_that_is_cheaper(void **state) {
    (void)state;
    check_host_memory(1 << 20, 1e-9, true);
    check_host_memory(1 << 20, 1, false); /* moving is dear */
    check_host_memory(1000, 1e-9, false); /* no room */
    check_host_memory(0, 1e-9, false);
}

static void test_a_job_that_ends_while_its_state_is_moved_leaves_nothing(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_job *a;
    o.num_blocks = 10;
    o.num_snapshots = 0;
    o.sched.host_bytes = 1 << 20;
    sim_open(&s, &o);
    sim_job *b = preempt_one(&s, &a); /* the plan with the move has not run yet */
    assert_non_null(b->job.host_state);
    sim_end(&s, b);
    sim_drain(&s);
    sim_close(&s);
}

/* ---- limits ---- */

static void test_prompt_logits_leave_others_theirs(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    o.sched.max_logits = 8 + 4;
    sim_open(&s, &o);
    sim_job *decoding = add_text(&s, NULL, 0, 20, 200);
    sim_run(&s, 5);
    sim_job *scored = add_text(&s, &(di_job){.prompt_logits = true}, 1, 300, 5);
    sim_job *plain = add_text(&s, NULL, 2, 40, 5);
    sim_drain(&s);
    assert_int_equal(decoding->max_gap, 1);
    assert_true(plain->first_token < scored->first_token);
    sim_close(&s);
}

static void test_a_job_that_fits_in_no_way_is_named_once_nothing_runs(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    di_plan plan;
    o.num_blocks = 3;
    sim_open(&s, &o);
    di_job job = {.num_prompt = 4 * BLOCK, .num_tokens = 4 * BLOCK, .max_len = 5 * BLOCK};
    job.tokens = text;
    assert_true(di_plan_create(&plan, &o.sched, NULL));
    assert_true(di_sched_add(s.sched, &job, NULL));
    assert_false(di_sched_plan(s.sched, &s.costs, &plan));
    assert_ptr_equal(plan.stuck, &job);
    di_sched_end(s.sched, &job);
    assert_true(job.ended);
    di_plan_clear(&plan);
    assert_false(di_sched_plan(s.sched, &s.costs, &plan));
    assert_null(plan.stuck);
    di_plan_destroy(&plan);
    sim_close(&s);
}

static void test_limits_that_do_not_fit_together_are_refused(void **state) {
    (void)state;
    sim_options o = sim_defaults();
    sim s;
    sim_open(&s, &o);
    const di_sched_options good = o.sched;
    for (int i = 0; i < 5; i++) {
        di_sched_options bad = good;
        di_error err = {0};
        bad.max_num_seqs = i == 0 ? 0 : bad.max_num_seqs;
        bad.max_num_batched_tokens = i == 1 ? 7 : bad.max_num_batched_tokens;
        bad.max_mixed_prefill_tokens = i == 2 ? 0 : bad.max_mixed_prefill_tokens;
        bad.max_logits = i == 3 ? 7 : bad.max_logits;
        bad.snapshot_interval = i == 4 ? 130 : bad.snapshot_interval;
        assert_null(di_sched_create(&bad, s.cache, &err));
        assert_int_equal(err.code, DI_ERR_ARGUMENT);
    }
    sim_close(&s);
}

/* Builds with fault injection count allocations: decoding, through new blocks too, needs none. */
static void check_warm(bool synchronous) {
    sim_options o = sim_defaults();
    sim s;
    o.synchronous = synchronous;
    sim_open(&s, &o);
    for (int i = 0; i < 8; i++) {
        add_text(&s, NULL, i, 100, 400);
    }
    sim_run(&s, 60); /* each is past its first block */
    uint64_t cold = di_alloc_fail_at(0);
#ifdef DI_FAULTS
    assert_true(cold > 0);
#endif
    (void)cold;
    sim_run(&s, 250);
    assert_int_equal(di_alloc_fail_at(0), 0);
    assert_int_equal(s.num_alive, 8);
    sim_drain(&s);
    sim_close(&s);
}

static void test_decoding_allocates_nothing_once_warm(void **state) {
    (void)state;
    both_modes(check_warm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_follow_prompts_without_an_empty_step),
        cmocka_unit_test(test_a_long_prompt_costs_decoding_no_step),
        cmocka_unit_test(test_a_full_pool_preempts_once_and_only_for_a_block_that_is_needed),
        cmocka_unit_test(test_a_preempted_job_does_not_wait_for_blocks_of_one_behind_it),
        cmocka_unit_test(test_a_half_prefilled_prompt_that_is_cancelled_returns_all),
        cmocka_unit_test(test_a_stream_of_short_prompts_does_not_starve_a_long_one),
        cmocka_unit_test(test_a_short_prompt_does_not_wait_for_long_ones_to_end),
        cmocka_unit_test(test_nobody_overtakes_a_job_that_waits_for_blocks),
        cmocka_unit_test(test_better_priority_takes_a_seat_and_equal_priority_does_not),
        cmocka_unit_test(test_better_priority_gets_in_though_prompts_fill_every_step),
        cmocka_unit_test(test_better_priority_gets_in_though_decoding_fills_every_step),
        cmocka_unit_test(test_siblings_wait_for_the_prompt_and_go_on_from_it),
        cmocka_unit_test(test_siblings_of_a_cancelled_leader_run_by_themselves),
        cmocka_unit_test(test_the_same_prompt_again_computes_its_end_only),
        cmocka_unit_test(test_a_replayed_prompt_again_computes_what_it_replays),
        cmocka_unit_test(test_a_fork_in_many_prompts_becomes_a_place_to_resume),
        cmocka_unit_test(test_a_preempted_job_resumes_from_its_last_full_block),
        cmocka_unit_test(test_state_is_kept_on_the_host_when_that_is_cheaper),
        cmocka_unit_test(test_a_job_that_ends_while_its_state_is_moved_leaves_nothing),
        cmocka_unit_test(test_prompt_logits_leave_others_theirs),
        cmocka_unit_test(test_a_job_that_fits_in_no_way_is_named_once_nothing_runs),
        cmocka_unit_test(test_decoding_allocates_nothing_once_warm),
        cmocka_unit_test(test_limits_that_do_not_fit_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

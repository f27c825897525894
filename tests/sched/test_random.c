/* The scheduler in random weather: jobs come, share prefixes, are cancelled and outranked, in pools
 * that are always too small, with every limit drawn anew for each world. The device of sched_sim.h
 * knows every job's answer and finds any state that is not the right one.
 *
 *   SEED=n        another walk
 *   EVENTS=n      a longer one; SOAK_EVENTS=n: n times as long */

#include "support/cmocka.h"
#include "support/random.h"
#include "support/sched_sim.h"

enum { EVENTS = 1000000, EVENTS_A_WORLD = 1500, LONGEST_PROMPT = 1500, MOST_ALIVE = 40 };

typedef struct weather {
    sim sim;
    uint64_t random;
    int branches, rush; /* texts; jobs that come for each step, in percent */
    long added, cancelled, preempted, swapped, hits, evicted, taken, refused;
} weather;

static int below(weather *w, int n) {
    return (int)(next_random(&w->random) % (uint32_t)n);
}

static int between(weather *w, int low, int high) {
    return low + below(w, high - low + 1);
}

static void open_world(weather *w, uint64_t seed) {
    w->random = seed;
    int seqs = between(w, 1, 8), blocks = between(w, 3, below(w, 2) ? 16 : 40);
    sim_options o = {
        .seed = seed,
        .num_blocks = blocks,
        .num_snapshots = below(w, 4) ? between(w, 1, 12) : 0,
        .synchronous = below(w, 3) == 0,
        .sched =
            {
                .max_num_seqs = seqs,
                .max_num_batched_tokens = seqs + (below(w, 3) ? between(w, 0, 300) : below(w, 8)),
                .max_mixed_prefill_tokens = between(w, 1, below(w, 2) ? 8 : 256),
                .max_logits = seqs + (below(w, 2) ? 64 : below(w, 3)),
                .snapshot_interval = between(w, 1, 4) * DI_BLOCK_TOKENS,
                .host_bytes = below(w, 2) ? (size_t)between(w, 1, 40) * 4000 : 0,
            },
    };
    o.sched.max_drafts = below(w, 3) ? between(w, 1, 5) : 0;
    w->branches = between(w, 1, 6);
    w->rush = between(w, 2, 30);
    sim_open(&w->sim, &o);
}

static void add_event(weather *w) {
    static int32_t prompt[LONGEST_PROMPT];
    sim *s = &w->sim;
    if (s->num_alive >= MOST_ALIVE) {
        return;
    }
    int64_t room = (int64_t)s->o.num_blocks * DI_BLOCK_TOKENS;
    int64_t longest = room - 1 < LONGEST_PROMPT ? room - 1 : LONGEST_PROMPT;
    int64_t n = 1 + below(w, below(w, 3) ? (int)(longest / 8 + 1) : (int)longest);
    n = below(w, 4) ? n : (n + 127) / 128 * 128;
    n = n < longest ? n : longest;
    int64_t answer = 1 + below(w, below(w, 2) ? 12 : 700);
    int64_t len = n + answer < room ? n + answer : room;
    sim_prompt(prompt, n, below(w, w->branches), between(w, 0, 4) * 200);
    di_job like = {
        .priority = below(w, 5) ? 0 : between(w, -1, 2),
        .salt = {.low = below(w, 8) == 0},
        .prompt_logits = below(w, 10) == 0,
        .no_prefix = below(w, 10) == 0,
    };
    if (below(w, 6) == 0 && len > 200) { /* bounded replay */
        like.replay_from = n > 150 ? n - 140 : 0;
    }
    sim_job *leader = sim_add(s, &like, prompt, n, len);
    leader->stop_at = below(w, 3) ? len : n + 1 + below(w, (int)(len - n));
    like.leader = &leader->job;
    like.prompt_logits = false;
    for (int i = below(w, 6) ? 0 : between(w, 1, 4); i > 0; i--) {
        sim_job *job = sim_add(s, &like, prompt, n, len);
        job->stop_at = n + 1 + below(w, (int)(len - n));
        w->added++;
    }
    w->added++;
}

static void cancel_event(weather *w) {
    sim *s = &w->sim;
    if (s->num_alive > 0) {
        sim_job *job = s->jobs[below(w, s->num_jobs)];
        w->cancelled += !job->job.ended;
        sim_end(s, job);
    }
}

static void step_event(weather *w) {
    if (below(w, 50) == 0) { /* now recomputing is dear, now moving */
        w->sim.costs.byte_seconds = below(w, 2) ? 1e-12 : 1;
    }
    sim_turn(&w->sim);
}

static long walk_world(weather *w, uint64_t seed, long events) {
    open_world(w, seed);
    for (long i = 0; i < events; i++) {
        int event = below(w, 100);
        if (event < w->rush) {
            add_event(w);
        } else if (event < w->rush + 2) {
            cancel_event(w);
        } else {
            step_event(w);
        }
        sim_check(&w->sim);
    }
    sim_drain(&w->sim);
    di_sched_stats stats;
    di_cache_stats cache;
    di_sched_get_stats(w->sim.sched, &stats);
    di_cache_get_stats(w->sim.cache, &cache);
    w->preempted += (long)stats.preemptions;
    w->swapped += (long)stats.swapped;
    w->hits += (long)cache.tokens_hit;
    w->evicted += (long)cache.blocks_evicted;
    w->taken += w->sim.drafts_taken;
    w->refused += w->sim.drafts_refused;
    assert_int_equal(stats.host_bytes_used, 0);
    long turns = w->sim.turn;
    sim_close(&w->sim);
    return turns;
}

static void test_every_job_ends_with_the_tokens_it_has_alone(void **state) {
    (void)state;
    static weather w;
    uint64_t seed = (uint64_t)from_environment("SEED", 20261129);
    long events = from_environment("EVENTS", EVENTS) * from_environment("SOAK_EVENTS", 1);
    long turns = 0;
    for (long done = 0; done < events; done += EVENTS_A_WORLD) {
        turns += walk_world(&w, seed++, EVENTS_A_WORLD);
    }
    print_message(
        "    worlds %llu to %llu: %ld events, %ld turns, %ld jobs, %ld cancelled, %ld "
        "preempted, %ld of them kept, %ld tokens hit, %ld blocks evicted, %ld drafts taken, "
        "%ld refused\n",
        (unsigned long long)seed - (unsigned long long)(events / EVENTS_A_WORLD),
        (unsigned long long)seed - 1, events, turns, w.added, w.cancelled, w.preempted, w.swapped,
        w.hits, w.evicted, w.taken, w.refused);
    if (events >= EVENTS) { /* the walk has been where it should */
        assert_true(w.added > 40000 && w.cancelled > 5000 && w.preempted > 2000);
        assert_true(w.taken > 100000 && w.refused > 100000);
        assert_true(w.swapped > 300 && w.hits > 1000000 && w.evicted > 10000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_job_ends_with_the_tokens_it_has_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

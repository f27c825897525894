/* The host's work per step with 256 decoding sequences of 8,000 tokens each and no device:
 * planning, copying the block tables, taking in results. Then the same with 4,096 more waiting.
 *
 *     sched [STEPS]
 *
 * Goals: at most 100 us in the median, no growth with the number of those that wait, and a heap
 * that does not grow once warm. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sched/sched.h"
#include "support/books.h"
#include "support/configs.h"

enum { RUNNING = 256, WAITING = 4096, PROMPT = 8000, ROOM = 4096, BATCHED = 2048 };

typedef struct bench {
    di_config config;
    di_backend backend;
    di_cache *cache;
    di_sched *sched;
    di_sched_costs costs;
    di_plan plans[2];
    di_job *jobs;
    int32_t *blocks; /* copies of block tables, as the engine makes them */
    int turn;
} bench;

static void open_bench(bench *b) {
    di_error err;
    b->config = release_config();
    b->backend.ops = &null_ops;
    int each = (int)di_blocks_for(PROMPT + ROOM);
    di_cache_options c = {
        .num_blocks = RUNNING * each * 2, .num_slots = RUNNING, .num_snapshots = 2 * RUNNING};
    di_sched_options o = {
        .max_num_seqs = RUNNING,
        .max_num_batched_tokens = BATCHED,
        .max_mixed_prefill_tokens = BATCHED,
        .max_logits = RUNNING,
        .snapshot_interval = 16 * DI_BLOCK_TOKENS,
    };
    b->costs = (di_sched_costs){1e-3, 1e-9};
    check((b->cache = di_cache_create(&b->config, &b->backend, &c, &err)), &err);
    check((b->sched = di_sched_create(&o, b->cache, &err)), &err);
    check(di_plan_create(&b->plans[0], &o, &err) && di_plan_create(&b->plans[1], &o, &err), &err);
    b->jobs = calloc(RUNNING + WAITING, sizeof *b->jobs);
    b->blocks = calloc((size_t)RUNNING * (size_t)each, sizeof *b->blocks);
}

static void add(bench *b, int i) {
    di_error err;
    di_job *job = &b->jobs[i];
    *job = (di_job){.num_prompt = PROMPT, .num_tokens = PROMPT, .max_len = PROMPT + ROOM};
    job->tokens = malloc((i < RUNNING ? PROMPT + ROOM : PROMPT) * sizeof *job->tokens);
    for (int k = 0; k < PROMPT; k++) {
        job->tokens[k] = i * 7 + k;
    }
    check(di_sched_add(b->sched, job, &err), &err);
}

/* One turn of the step thread but for the text; microseconds. */
static double turn(bench *b) {
    double begin = di_now();
    di_plan *plan = &b->plans[b->turn++ % 2], *before = &b->plans[b->turn % 2];
    di_plan_clear(plan);
    di_sched_plan(b->sched, &b->costs, plan);
    int32_t *to = b->blocks;
    for (int i = 0; i < plan->num_rows; i++) {
        const di_seq *seq = &plan->rows[i].job->seq;
        memcpy(to, seq->blocks, (size_t)seq->num_blocks * sizeof *to);
        to += seq->num_blocks;
    }
    for (int i = 0; i < before->num_rows; i++) {
        di_job *job = before->rows[i].job;
        di_sched_result(b->sched, &before->rows[i], before->rows[i].outputs);
        if (before->rows[i].outputs > 0) {
            job->tokens[job->num_tokens] = (int32_t)job->num_tokens;
            job->num_tokens++;
        }
    }
    return 1e6 * (di_now() - begin);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(bench *b, const char *what, int steps) {
    double *times = calloc((size_t)steps, sizeof *times);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < steps; i++) {
        times[i] = turn(b);
    }
    size_t after = mallinfo2().uordblks;
    if (b->plans[0].num_rows != RUNNING || b->plans[0].num_tokens != RUNNING) {
        fprintf(stderr, "sched: %d rows in a step, not %d\n", b->plans[0].num_rows, RUNNING);
        exit(1);
    }
    qsort(times, (size_t)steps, sizeof *times, by_value);
    printf("%-34s median %6.1f us   99 %% %6.1f us   worst %6.1f us   heap %+ld bytes\n", what,
           times[steps / 2], times[steps * 99 / 100], times[steps - 1], (long)after - (long)before);
    free(times);
}

int main(int argc, char **argv) {
    static bench b;
    int steps = argc > 1 ? atoi(argv[1]) : 1000;
    steps = steps < 1 ? 1 : steps < ROOM / 2 - 64 ? steps : ROOM / 2 - 64;
    open_bench(&b);
    for (int i = 0; i < RUNNING; i++) {
        add(&b, i);
    }
    di_sched_stats stats;
    do {
        turn(&b);
        di_sched_get_stats(b.sched, &stats);
    } while (stats.decoding < RUNNING);
    turn(&b);
    measure(&b, "256 decode", steps);
    for (int i = RUNNING; i < RUNNING + WAITING; i++) {
        add(&b, i);
    }
    measure(&b, "256 decode, 4096 wait", steps);
    for (int i = 0; i < RUNNING + WAITING; i++) {
        di_sched_end(b.sched, &b.jobs[i]);
        free(b.jobs[i].tokens);
    }
    di_sched_destroy(b.sched);
    di_plan_destroy(&b.plans[0]);
    di_plan_destroy(&b.plans[1]);
    di_cache_destroy(b.cache);
    free(b.jobs);
    free(b.blocks);
    return 0;
}

/* The scheduler and a cache with a device that computes nothing but hashes. A sequence's state
 * before token i is a hash of its salt and tokens [0, i): a row writes it into the block and the
 * slot, the next row must find it there, and the token that is sampled is made from it. So each job
 * has one right answer, known beforehand, and whoever gets another's state, or state of a step that
 * was not meant, is found out at once. Steps are planned one ahead of results, as in the engine.
 *
 * Every turn checks the plan: budgets, each decoding job served or preempted, and the job of best
 * rank never passed over for long. All failures name sim.seed and the turn. */
#ifndef TESTS_SUPPORT_SCHED_SIM_H
#define TESTS_SUPPORT_SCHED_SIM_H

#include "sched/sched.h"

typedef struct sim_options {
    uint64_t seed; /* for messages */
    int num_blocks, num_snapshots;
    di_sched_options sched;
    bool synchronous;
} sim_options; /* with sched.max_drafts, jobs have drafts: some right, some wrong */

typedef struct sim_job {
    di_job job;
    int64_t stop_at; /* ends when it has so many tokens, as if by a stop text */
    int32_t *wanted; /* [max_len] the tokens it has alone */
    uint64_t *states;
    bool decodes, ran; /* before the plan being made: is to be served by it; had a slot */
    long rows;         /* computed in all, those of drafts too */
    long first_token, last_token, max_gap; /* turns; -1 = none yet */
    bool done;                             /* no queued step mentions it */
    int32_t drafts[DI_MAX_DRAFTS];         /* at hand; the device's */
    int num_drafts;
} sim_job;

typedef struct sim_row {
    int64_t pos0;
    int num_tokens, num_blocks, source, outputs;
    int32_t slot, *blocks, *tokens;
} sim_row;

typedef struct sim_work {
    di_plan plan;
    sim_row *rows;
    int32_t *tokens;
    int32_t *results; /* [max_num_seqs, 1 + DI_MAX_DRAFTS] */
    int *emitted;     /* [max_num_seqs] */
    int *made;        /* [max_num_seqs] drafts for what follows */
    int32_t *blocks;
    const struct sim_work *before;
    bool ran;
} sim_work;

typedef struct sim {
    sim_options o;
    di_config config;
    di_backend *be;
    di_cache *cache;
    di_sched *sched;
    di_sched_costs costs;
    sim_work works[2];
    sim_work *unread, *planned; /* planned: by the last turn, NULL if nothing */
    sim_job **jobs;
    int num_jobs, job_capacity, num_alive;
    long turn, empty_turns; /* turns with jobs there and no row planned, nothing unread */
    const sim_job *best;
    long best_idle;
    long drafts_taken, drafts_refused;
} sim;

sim_options sim_defaults(void); /* 40 blocks, 8 sequences, 256 rows, 64 beside decoding */
void sim_open(sim *s, const sim_options *o);
void sim_close(sim *s); /* all jobs must have ended; pools must be whole */

/* Prompt of n tokens out of a family of texts: `branch` b from token `fork` on. */
void sim_prompt(int32_t *tokens, int64_t n, int branch, int64_t fork);

/* n tokens of prompt, max_len in all. Fields of `like` that the engine would set may be set there
 * (priority, leader, salt, prompt_logits, no_prefix). */
sim_job *sim_add(sim *s, const di_job *like, const int32_t *prompt, int64_t n, int64_t max_len);
void sim_end(sim *s, sim_job *job);

/* One turn of the engine's loop. False: nothing was planned, and nothing was unread. */
bool sim_turn(sim *s);
void sim_run(sim *s, long turns);
void sim_drain(sim *s); /* until all have ended; fails if that takes more turns than it can */

/* Rows the job has in the plan of the last turn. */
int sim_rows_of(const sim *s, const sim_job *job);

void sim_check(const sim *s); /* books of scheduler and cache */

#endif

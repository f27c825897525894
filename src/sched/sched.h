/* What runs next: each call makes the plan of one step from the jobs at hand.
 *
 * A step mixes decoding and prompts. Decoding jobs come first, one row each; prompts fill the rest
 * in chunks, in order of rank (priority, then arrival), except that the oldest takes no more than
 * its share while others wait, so that neither a long prompt nor a stream of short ones starves the
 * other; and while somebody decodes, prompts get no more than max_mixed_prefill_tokens rows, which
 * bounds the gap between two tokens. A job that needs a block when there is none takes it from the
 * running job of lowest rank, itself included: the job of highest rank is never preempted, so
 * something always ends.
 *
 * Plans are made ahead of results: seq.len counts rows that are queued. The token a queued step
 * will sample is a row's input like any other; a job whose result then turns out to end it has one
 * wasted row.
 *
 * Where the queued step verifies drafts, how many tokens it gives is not known: lengths, blocks and
 * rows are then planned as if all were accepted, and corrected when the result is in. What the
 * device runs begins where the accepted ones end. How many drafts a step verifies in all is the
 * plan's; which ones (of each job at most as many as its row has room for) is for the device to
 * find out, since it has them first.
 *
 * One thread (the step thread); no allocation once warm. */
#ifndef DI_SCHED_SCHED_H
#define DI_SCHED_SCHED_H

#include "sched/pricer.h"

typedef struct di_sched_options {
    int max_num_seqs;             /* jobs running at once */
    int max_num_batched_tokens;   /* rows of a step, >= max_num_seqs */
    int max_mixed_prefill_tokens; /* prompt rows of a step in which somebody decodes, >= 1 */
    int max_logits;               /* rows of logits of a step, >= max_num_seqs */
    int snapshot_interval;        /* tokens between snapshots in a prompt: multiple of the block */
    size_t host_bytes;            /* for the state of preempted jobs; 0 = they are recomputed */
    int max_drafts;               /* of a job at once; 0 = none. Snapshots need a cache with
                                   * max_backtracking > 2 * max_drafts */
} di_sched_options;

/* Measured: what decides between recomputing a preempted job and keeping its state. */
typedef struct di_sched_costs {
    double token_seconds; /* of a prompt token */
    double byte_seconds;  /* of a byte moved between device and host, one way */
} di_sched_costs;

typedef struct di_sched_stats {
    int running, waiting, decoding; /* now; waiting includes held jobs */
    uint64_t preemptions, recomputed, swapped;
    size_t host_bytes_used;
} di_sched_stats;

typedef struct di_plan_row {
    di_job *job;
    int64_t pos0;    /* upper bound, if the job has a step with drafts in flight */
    int num_tokens;  /* those of drafts included */
    int num_logits;  /* rows with logits, the last ones; 0, 1, or all (prompt_logits) */
    int outputs;     /* most tokens it can give: 0, or 1 + most drafts, whose rows are the last */
    int in_flight;   /* of the job, before this row */
    bool propose;    /* drafts are wanted for what follows */
    bool no_context; /* nothing is wanted of the draft model's context */
    int64_t draft_from; /* where that begins behind the row */
} di_plan_row;

/* State of a job to be moved before the step's forward, with its seq as it was then. */
typedef struct di_plan_move {
    bool to_host;
    di_seq seq; /* blocks owned by the plan */
    di_host_state *host;
} di_plan_move;

typedef struct di_plan {
    /* What the device does, in this order: moves to the host (what they read may be given to others
     * in this very plan), copies, moves from the host, rows. */
    di_plan_move *moves;
    size_t num_moves, move_capacity;
    di_slot_copy *copies;
    int num_copies, max_copies;
    di_plan_row *rows; /* [max_num_seqs] */
    int num_rows;
    int num_drafts;             /* that the step verifies in all: at most what its rows allow */
    int num_tokens, num_logits; /* with so many drafts */
    di_job *stuck; /* nothing runs, and this one does not fit even so: the engine must end it */
} di_plan;

typedef struct di_sched di_sched;

/* Borrows the cache. */
di_sched *di_sched_create(const di_sched_options *o, di_cache *cache, di_error *err);
void di_sched_destroy(di_sched *s); /* no job may be left in it */

/* Who decides how many drafts are verified and who gets new ones (borrowed). Without: all that jobs
 * have are verified, and everybody gets new ones. */
void di_sched_set_pricer(di_sched *s, di_pricer *pricer);

bool di_plan_create(di_plan *p, const di_sched_options *o, di_error *err);
void di_plan_destroy(di_plan *p);
void di_plan_clear(di_plan *p); /* gives back what its moves hold */

/* Takes a job. False only for want of memory. */
bool di_sched_add(di_sched *s, di_job *job, di_error *err);

/* Plans the next step into a cleared plan and counts its rows as queued. False: nothing can run. */
bool di_sched_plan(di_sched *s, const di_sched_costs *costs, di_plan *plan);

/* The results of a step are in that held this row, which gave `emitted` tokens (<= outputs); the
 * engine appends them to tokens next (unless the job has ended). */
void di_sched_result(di_sched *s, const di_plan_row *row, int emitted);

/* Nothing more of this job is to be run, whatever its state: it leaves the scheduler, its blocks
 * and slot go back, jobs that wait for it are released. It may still be `queued`; free it after
 * that. */
void di_sched_end(di_sched *s, di_job *job);

void di_sched_get_stats(const di_sched *s, di_sched_stats *stats);

/* For tests: counts and lists agree with each other. */
bool di_sched_check(const di_sched *s, di_error *err);

#endif

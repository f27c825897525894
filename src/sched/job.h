/* One sequence to be generated, as the scheduler sees it. A request of n choices is n jobs.
 *
 * Who writes what: the engine fills the first group before di_sched_add and appends to tokens as
 * results arrive; the scheduler alone writes the last group. Both run on the step thread. */
#ifndef DI_SCHED_JOB_H
#define DI_SCHED_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

typedef enum di_job_state {
    DI_JOB_NEW,     /* not with the scheduler, or taken from it */
    DI_JOB_HELD,    /* waits for another job's prompt (job->leader) */
    DI_JOB_WAITING, /* has no slot; may have state in host memory */
    DI_JOB_RUNNING, /* has a slot and blocks */
} di_job_state;

enum { DI_MAX_DRAFTS = 16 };

typedef struct di_job di_job;

/* State of a preempted job in host memory. Held by the job and by every plan that moves it, for a
 * job may end while the device has yet to write there. */
typedef struct di_host_state {
    int holders;             /* the step thread's to count */
    int64_t len, draft_from; /* tokens, as the sequence's */
    size_t bytes;
    unsigned char data[];
} di_host_state;

struct di_job {
    /* the engine's */
    void *owner;         /* the engine's record of this job */
    int priority;        /* lower runs first; FCFS among equals */
    int64_t num_prompt;  /* tokens of the prompt, >= 1 */
    int64_t max_len;     /* most tokens, prompt and output together */
    di_hash salt;        /* whose prefixes it may share */
    int64_t replay_from; /* bounded replay of the prompt (model.h); 0 = exact */
    bool prompt_logits;  /* logits of every prompt row; such a job resumes from no prefix */
    bool no_prefix;      /* resumes from no prefix for another reason */
    di_job *leader;      /* its prompt goes first (then it is in the prefix cache); NULL = none */
    int32_t *tokens;     /* prompt and known output */
    int64_t num_tokens;
    /* How many proposals the device holds for what follows tokens[num_tokens - 1]. */
    int num_drafts;
    /* What di_pricer_file made of them: the confidence in each, given those before it, and the
     * probability that all up to it are accepted. */
    float confidence[DI_MAX_DRAFTS], survival[DI_MAX_DRAFTS];
    bool ended; /* no row of it is wanted any more; set through di_sched_end */

    /* the scheduler's */
    di_job_state state;
    uint64_t arrival;  /* order of di_sched_add */
    size_t heap_index; /* while waiting */
    di_job *next_held; /* list of jobs that wait for the same leader */
    di_job *first_held;
    di_seq seq;            /* while running */
    int64_t opened_len;    /* seq.len when it was opened */
    int in_flight;         /* most tokens that queued steps can give, not in tokens yet: more than
                            * 1 only where drafts are being verified, and then seq.len and all that
                            * follows from it are upper bounds until the step has been read */
    int queued;            /* steps that hold a row of it and whose results are not in: 0 to 2 */
    int plan_row;          /* row in the plan being made, or -1 */
    int64_t prompt_border; /* last one that the same prompt could resume at: a snapshot is taken */
    int64_t kept_border;   /* last one behind which a snapshot was asked for */
    int64_t branch_border; /* border up to which others' blocks matched, without a snapshot; or 0 */
    int64_t cached_tokens; /* resumed from prefixes at the first admission */
    int64_t blocked_at;    /* spare blocks when it could not be admitted; INT64_MIN = not tried */
    int preemptions;
    float known[DI_MAX_DRAFTS]; /* running mean of survival over rounds that have been decided */
    uint64_t rounds;            /* how many those are */
    uint64_t proposed_at;       /* the pricer's turn */
    bool probe;                 /* the pricer tries whether its drafts would pay */
    int verify;                 /* most drafts in the plan being made */
    bool propose;               /* new ones are wanted at the end of the last planned output */
    di_host_state *host_state;  /* or NULL */
};

/* Tokens whose rows may be queued: known ones and those being sampled. */
static inline int64_t di_job_target(const di_job *j) {
    return j->num_tokens + j->in_flight;
}

/* Rows that are still to be queued; 1 while decoding. */
static inline int64_t di_job_need(const di_job *j) {
    return di_job_target(j) - j->seq.len;
}

/* Its prompt has been queued whole. */
static inline bool di_job_decodes(const di_job *j) {
    return j->state == DI_JOB_RUNNING && j->seq.len >= j->num_prompt;
}

/* Order of jobs: a runs before b. Total, so that somebody always makes progress. */
static inline bool di_job_before(const di_job *a, const di_job *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

#endif

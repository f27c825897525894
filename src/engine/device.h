/* The device's side of the step: a thread that does queued work in order. On the CPU it is what a
 * stream is on a GPU. The step thread fills a di_work from a plan, submits it, and reads its
 * results when it is done; while one is being done the next may be submitted, whose rows may take
 * as input the tokens that the first is about to sample, and go on where its drafts were accepted
 * up to (resolve.h). */
#ifndef DI_ENGINE_DEVICE_H
#define DI_ENGINE_DEVICE_H

#include "deepinfer/deepinfer.h"
#include "engine/guide.h"
#include "model/draft.h"
#include "sample/row.h"
#include "sched/sched.h"

/* Log-probability of a token and of the likeliest ones beside it. */
typedef struct di_scored {
    float logprob;
    int num_top;
    di_logprob *top; /* [at most max_logprobs] */
} di_scored;

/* What a row's sampling needs; lives as long as its job. The history is the device's: nobody else
 * touches it while steps are queued. */
typedef struct di_row_sampler {
    const di_sample_params *params;
    uint64_t seed;
    di_sample_history history;
    di_guide guide;    /* its constraint NULL: the answer has none; as the history, the device's */
    di_scored *prompt; /* [num_prompt] or NULL: written at the position that was predicted */
    /* The proposals at hand; the device's, as the history. */
    int num_drafts;
    int32_t drafts[DI_MAX_DRAFTS];
    float survival[DI_MAX_DRAFTS]; /* probability that all up to it are accepted */
    di_draft_law laws[DI_MAX_DRAFTS];
} di_row_sampler;

/* A token that a row gave. */
typedef struct di_row_token {
    int32_t id;
    di_scored scored; /* if the parameters ask for log-probabilities */
} di_row_token;

typedef struct di_row_result {
    bool failed; /* bad logits or no legal token: `error` says which */
    di_error error;
    int num_tokens; /* drafts that were right, and one more; or 0 */
    di_row_token tokens[1 + DI_MAX_DRAFTS];
    int num_drafts;                  /* proposals for what follows; the sampler has them */
    float confidence[DI_MAX_DRAFTS]; /* in each, before the sigmoid */
} di_row_result;

typedef struct di_work {
    /* Filled by the step thread, but for what it cannot know (resolve.h): then parts begin where
     * the work before gives one token, and drafts are added by the device. */
    di_plan plan;
    di_model_rows *parts;      /* [max_num_seqs], one for each plan row */
    int *outputs;              /* [max_num_seqs] most tokens it can give: 0, or 1 + its drafts */
    di_row_sampler **samplers; /* [max_num_seqs] */
    int *source; /* [max_num_seqs] row of the work before whose sampled token is the last input; -1
                  */
    di_pricer_law law; /* for the drafts that are made */
    int *first_logits; /* [max_num_seqs] the device's */
    int max_rows;
    const struct di_work *before; /* that work, NULL if none is queued */
    int32_t *tokens; /* [max_num_batched_tokens + max_num_seqs * max_drafts] behind `parts` */
    int32_t *blocks; /* block tables behind `parts`, grown as needed */
    size_t block_capacity;

    /* filled by the device */
    di_row_result *results; /* [max_num_seqs] */
    di_logprob *tops;       /* [max_num_seqs, 1 + max_drafts, max_logprobs] behind them */
    bool failed;            /* the step as a whole (set before: it is not run): `error` says why */
    di_error error;
    /* CLOCK_MONOTONIC seconds: moves and copies from begin, the forward pass from forward,
     * sampling from middle, drafts from sampled. On a card the forward pass counts as long as it
     * took there, draws included, and all that the host then does for drafts counts as theirs. */
    double begin, forward, middle, sampled, end;
    int num_drafted; /* answers that got drafts */
    /* On a card: the forward pass, and the round of drafts, were recorded programs. */
    bool recorded, round_recorded;
    /* For the moved state, counted whole though what is shared need not move: so it is planned. */
    double moved_seconds;
    size_t moved_bytes;
    bool done;
    /* Queued whole on a card (queued.h) and not yet waited for: its tokens are known there alone.
     */
    bool queued;
    int place;    /* there */
    bool by_card; /* it was queued whole, waited for or not */
} di_work;

bool di_work_create(di_work *w, const di_sched_options *o, int max_logprobs, int max_drafts,
                    di_error *err);
void di_work_destroy(di_work *w);

/* Position of the token in front of row i's outputs, once the row is resolved. */
static inline int64_t di_work_anchor(const di_work *w, int i) {
    return w->parts[i].pos0 + w->parts[i].num_tokens - w->outputs[i];
}

typedef struct di_device di_device;

typedef struct di_device_options {
    di_cache *cache;
    di_model *model;
    di_backend *backend;
    int vocab_size, max_logits, threads;
    int num_drafts;    /* proposed for each answer after each step; 0 = none */
    int block_size;    /* with drafts: rows of a block */
    bool queues_steps; /* the model can (model/queue.h): steps are queued whole where it may */
    int max_num_seqs, max_logprobs;
} di_device_options;

/* Starts the thread. Everything in the options is borrowed and, until destroy, the thread's alone,
 * but for the cache's bookkeeping, which it never touches. With queues_steps it has works in which
 * drafts are verified or made, or something else is the host's to do; the step thread queues the
 * others, and waits with that until the thread has nothing to do, as the thread waits for them. */
di_device *di_device_create(const di_device_options *o, di_error *err);
void di_device_destroy(di_device *d); /* waits for what was submitted */

/* For tests: drafts are what this says, not what the draft model does. Called on the device's
 * thread; anchor: position of the token before drafts[0 .. n). Set it before any request comes. */
typedef void (*di_force_fn)(void *user, const di_job *job, int64_t anchor, int n, int32_t *drafts);
void di_device_force(di_device *d, di_force_fn force, void *user);

/* At most two works may be submitted and not yet waited for. */
void di_device_submit(di_device *d, di_work *w);
void di_device_wait(di_device *d, di_work *w);

#endif

/* A request and its answers while they are made.
 *
 * Who touches what. Made by the caller's thread and handed to the step thread with the engine's
 * lock; from then on the step thread writes everything but `outbox`, which is the queue's: the step
 * thread adds to it and the reader takes from it under the queue's lock. The row sampler's history
 * is the device's while steps are queued. A request is freed when both sides have let go of it: the
 * step thread when all its jobs have ended, the queue when the last outputs have been read. */
#ifndef DI_ENGINE_REQUEST_H
#define DI_ENGINE_REQUEST_H

#include <stdatomic.h>

#include "base/buffer.h"
#include "deepinfer/deepinfer.h"
#include "engine/device.h"
#include "sample/stop.h"
#include "text/detokenizer.h"

typedef struct di_choice di_choice;
typedef struct di_request di_request;

/* What a reader has not been given yet. */
typedef struct di_outbox {
    di_ids tokens;
    di_buffer text;
    di_token_info *infos; /* [max tokens pending], their tops in `tops`; NULL without logprobs */
    di_logprob *tops;
    size_t num_infos, info_capacity;
    bool ready, last; /* in the queue's list; finished */
    double ready_at;  /* since when */
    bool held;        /* the last token waits for the answer's end */
    bool prompt_told; /* prompt log-probabilities have been given */
    di_choice *next;
} di_outbox;

struct di_choice {
    di_request *request;
    int index;
    di_job job;
    di_row_sampler sampler;
    di_detokenizer detokenizer;
    di_stop_stream stop;
    di_buffer piece, text; /* of one token: before and after stop texts */
    int unread_row;        /* its row in the newest submitted step */
    double started;        /* its first row was planned; 0 = not yet */
    bool failed;           /* its text could not be stored */
    bool retired;
    di_outbox outbox;
    /* what outputs tell, under the queue's lock */
    di_finish_reason reason;
    int32_t stop_token;
    di_error error;
    int64_t prompt_done, cached_tokens, completion_tokens;
    double begun, first_token, last_token; /* 0 = not yet; begun: `started`, as told */
};

struct di_request {
    uint64_t id;
    void *tag;
    di_queue *queue;
    atomic_int holders; /* step thread, queue */
    int unread;         /* answers whose last output has not been read; under the queue's lock */
    int running;        /* answers that have not ended; the step thread's */
    int retired;        /* answers that no queued step mentions any more; the step thread's */
    atomic_bool cancelled;
    double submitted, deadline;
    di_sample_params *params; /* owned */
    uint64_t seed;            /* the request's; each answer's is made from it */
    di_stop_set *stops;
    bool skip_special, echo, report_prompt, logprobs;
    di_ids prompt;
    di_constraint constraint;             /* its `compiled` NULL: none */
    bool awaits_grammar;                  /* and is not with the scheduler yet; the step thread's */
    struct di_pinned *pin;                /* until it is accepted; NULL = none */
    bool pins;                            /* its prompt is to be pinned */
    di_scored *prompt_scores;             /* [prompt.count] or NULL; of answer 0 */
    di_logprob *prompt_tops;              /* behind them */
    di_request *next;                     /* in the inbox */
    di_request *next_live, **link_live;   /* the step thread's list */
    di_request *next_known, **link_known; /* under the engine's lock */
    int n;
    di_choice choices[]; /* [n] */
};

/* A checked request, ready for the inbox; NULL with *err. */
di_request *di_request_create(const di_engine *e, di_queue *queue, const di_prompt *prompt,
                              const di_request_params *params, void *tag, di_error *err);

/* One holder lets go. */
void di_request_release(di_request *r);

/* ---- output.c: the step thread tells the queue ------------------------------------------------
 */

/* A token, and the text that may be shown because of it. */
/* `last`: the answer ends with it, and di_choice_finish follows. */
void di_choice_add_token(di_choice *c, const di_row_token *r, const di_buffer *text, bool last);
void di_choice_tell_prompt(di_choice *c, int64_t done);
/* The last output; `text` is what was held back until the end. */
void di_choice_finish(di_choice *c, di_finish_reason reason, const di_error *error,
                      const di_buffer *text);

/* Requests that may still put something into a queue keep it from being destroyed. */
void di_queue_attach(di_queue *q);
void di_queue_detach(di_queue *q);

#endif

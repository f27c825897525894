/* What the files of the engine share: the engine itself. Nothing outside src/engine includes it. */
#ifndef DI_ENGINE_INTERNAL_H
#define DI_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "deepinfer/deepinfer.h"
#include "engine/calibration.h"
#include "engine/device.h"
#include "engine/grammars.h"
#include "engine/parts.h"
#include "engine/pins.h"
#include "engine/spec.h"
#include "engine/trace.h"
#include "sample/params.h"
#include "sched/sched.h"

enum {
    DI_MAX_CHOICES = 128,
    DI_KEPT_STEPS = 1024, /* whose records di_engine_get_steps has */
};

struct di_request;

struct di_engine {
    /* fixed once opened */
    di_parts parts;
    int max_logprobs, max_queue;
    di_replay_mode replay_mode;
    int replay_keep;
    bool synchronous;
    int num_drafts;       /* proposed for an answer at a time; 0 = off */
    di_sampling defaults; /* generation_config.json */
    di_sched_options sched_options;
    di_device *device;
    di_grammars *grammars; /* NULL without a tokenizer */
    int max_masks;         /* of a guide */

    /* the step thread's */
    di_sched *sched;
    di_sched_costs costs;
    di_pricer pricer;        /* with drafts, else all zero */
    struct di_request *live; /* requests taken in and not retired */
    di_work works[2];
    di_work *unread; /* submitted, results not read */
    di_trace *trace;
    uint64_t failed_steps;
    double next_deadline; /* no request's is earlier; 0 = none has one */
    double last_end;      /* of the last step that was read; 0 after a rest */
    double opened;        /* when the step thread began */
    pthread_t thread;
    bool started;

    /* between callers and the step thread, under lock */
    pthread_mutex_t lock;
    pthread_cond_t called;
    struct di_request *inbox, **inbox_end;
    bool cancels;  /* some live request has been cancelled */
    bool compiled; /* some grammar is done */
    bool closing;
    bool lost; /* the device, for good; then how it was told */
    di_error loss;
    int num_requests; /* accepted, with an answer that has not ended */
    uint64_t next_id;
    struct di_pinned *pins;   /* of accepted requests, newest first */
    bool unpins;              /* some have been released */
    struct di_request *known; /* the same, newest first, for di_cancel */
    di_engine_stats stats;
    di_calibration calibration;
    di_step_stats steps[DI_KEPT_STEPS]; /* step n at n % DI_KEPT_STEPS */
};

/* Copies a caller's struct over one of ours: as many bytes as both have. False if the caller's was
 * not initialised. */
bool di_struct_read(void *ours, size_t our_bytes, const void *theirs, const char *name,
                    di_error *err);

/* Reads FOLDER/generation_config.json if there is one. */
bool di_defaults_read(di_sampling *defaults, const char *folder, di_error *err);

/* A copy of the caller's parameters in our layout, everything checked that needs no engine. */
bool di_params_read(di_request_params *ours, const di_request_params *theirs, di_error *err);

/* ---- stats.c, called by the step thread ---- */

typedef struct di_step_tokens {
    int prompt, completion;
} di_step_tokens;

/* The drafts that the job had have been decided: a row verified so many of them and accepted so
 * many. */
void di_engine_note_drafts(di_engine *e, const di_job *job, int verified, int accepted);

/* Predicted and measured seconds of a step. */
void di_engine_note_price(di_engine *e, double predicted, double measured);

/* What a step computes; before its results are read, for jobs that end are gone then. */
di_step_tokens di_engine_count_tokens(di_engine *e, const di_work *w);
void di_engine_note_step(di_engine *e, const di_work *w, di_step_tokens tokens, double host);
void di_engine_note_rest(di_engine *e); /* nothing runs, nothing waits */

/* The step thread (loop.c); its argument is the engine. */
void *di_engine_loop(void *engine);

/* Cancels every request whose outputs go to this queue. */
void di_engine_cancel_queue(di_engine *e, const di_queue *queue);

#endif

/* A request on the engine, with all its answers, from submission to the last byte that its client
 * reads.
 *
 * Two hold it: the client's side (http.c), until its connection is done with it, and the engine's
 * (pump.c), until the last output of the last answer has come. Either may be first. The lock guards
 * what both touch. Errors before the first output are told with a status of their own, later ones
 * in the stream. */
#ifndef DI_SERVER_GENERATION_H
#define DI_SERVER_GENERATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/answerer.h"
#include "server/reply.h"
#include "server/stream.h"
#include "server/tenant.h"
#include "text/recipe/answer.h"

struct di_server;
typedef struct di_generation di_generation;

enum { DI_ID_BYTES = 64, DI_REQUEST_ID_BYTES = 129 };

/* One of the n answers to one of the prompts. */
typedef struct di_generation_choice {
    di_answer *answer;            /* chat, messages, responses */
    bool answered;                /* nothing more is wanted of the engine */
    bool ended;                   /* its last output has come */
    int64_t tokens;               /* that were generated, the ending one not counted */
    double first_time, last_time; /* of outputs with tokens; 0: none yet */
    /* completions */
    di_buffer text, logprobs[4]; /* of a stream: since the last chunk */
    size_t characters;           /* so far, for the offsets of log-probabilities */
    di_finish_reason reason;
} di_generation_choice;

/* A prompt's request to the engine: the tag of its outputs. */
typedef struct di_submission {
    di_generation *generation;
    uint64_t request; /* 0: not submitted, or over */
    int first, count; /* its choices */
    int running;
} di_submission;

/* How the outputs are told to the client. All are called under the lock; a false is the end of the
 * generation as an error. */
typedef struct di_voice {
    /* An output; the last one of its choice if it has a finish reason. */
    bool (*take)(di_generation *g, int choice, const di_output *out, di_error *err);
    /* All have been answered: what stands behind in the stream. */
    bool (*done)(di_generation *g, di_error *err);
    /* The whole response. */
    bool (*whole)(const di_generation *g, di_buffer *out, di_error *err);
    /* An error inside the stream. */
    bool (*fail)(di_generation *g, const di_api_error *error, di_error *err);
} di_voice;

extern const di_voice di_recipe_voice, di_completions_voice;

struct di_generation {
    /* fixed once it is submitted */
    struct di_server *server;
    const di_voice *voice;
    di_shape shape;
    char id[DI_ID_BYTES];                 /* of the response */
    char request_id[DI_REQUEST_ID_BYTES]; /* of the HTTP request */
    uint64_t created;                     /* seconds since 1970 */
    double arrived;
    bool stream, include_usage, usage_always; /* in a chunk of its own; in every chunk */
    bool background; /* no connection waits for it: it is asked for by its id */
    char key_id[DI_KEY_ID_BYTES + 1];
    size_t charged;    /* of the server's body_bytes, of one in the background */
    di_pool pool;      /* of the body, for completions */
    di_request recipe; /* chat, messages, responses */
    di_str model;
    di_buffer input;    /* of a response that is to be stored: its items; else empty */
    int n, num_prompts; /* choices are n * num_prompts */
    int64_t max_tokens; /* asked for; 0: not */
    bool echo;
    di_submission *submissions; /* [num_prompts] */
    di_generation_choice *choices;
    struct di_generation *next_live, **link_live; /* under the server's lock */

    atomic_int holders;
    pthread_mutex_t lock;
    /* under the lock */
    di_tenant tenant;
    di_stream bytes;
    bool opened;    /* the client may be told something: its status is settled */
    bool over;      /* all that is to be told is there */
    bool gone;      /* the client is not there any more, or too slow: nothing is told */
    bool failed;    /* `error` is told, with error_status */
    bool cancelled; /* the engine has been asked to stop */
    bool slow;      /* its reader was so far behind that it was counted */
    bool revoked;   /* in the background: its client has cancelled it */
    bool dropped;   /* and wants nothing of it to be kept */
    bool counted;   /* in the server's num_background */
    int error_status;
    di_error error;
    int running; /* answers whose last output has not come */
    int unanswered;
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    double last_event; /* when the stream has got something */
    double offered;    /* since when something waits for the connection; 0: nothing does */
    void (*wake)(void *context); /* once, when there is news; NULL: nobody sleeps */
    void *wake_context;
    const char *finish; /* of the first answer, for the access log */
    double ttft;        /* -1: no token yet */
};

/* Memory for the choices; NULL with an error. It has one holder. */
di_generation *di_generation_create(struct di_server *s, const di_voice *voice, di_shape shape,
                                    int num_prompts, int n, di_error *err);

/* For each prompt its ids, for all the parameters (n in them). On failure nothing runs and the
 * caller releases it; on success the pump holds it too. */
bool di_generation_submit(di_generation *g, const di_ids *prompts, const di_request_params *params,
                          di_error *err);

/* An output of its submission (the pump), which came `now`. */
void di_generation_take(di_generation *g, di_submission *s, const di_output *out, double now);

/* Under the lock: the connection has taken what there was. */
void di_generation_taken(di_generation *g);

/* The client has left: the engine stops. */
void di_generation_abandon(di_generation *g);

/* The server ends: the same, but the client is told. */
void di_generation_stop(di_generation *g);

/* In the background: the response as it stands now. */
bool di_generation_report(di_generation *g, di_buffer *out, di_error *err);

/* In the background: the engine stops. `drop`: the response will not be kept either. False: it has
 * ended before. */
bool di_generation_revoke(di_generation *g, bool drop);

/* One that runs in the background, by its key and id; NULL: none does. Release it. */
di_generation *di_generation_find(struct di_server *s, const char *key_id, di_str id);

/* Time goes by: a comment if nothing else has gone out for long. */
void di_generation_tick(di_generation *g, double now);

void di_generation_keep(di_generation *g);
void di_generation_release(di_generation *g);

#endif

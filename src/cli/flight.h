/* Requests under way for `generate`: a ring in the order of the input. Its size bounds the memory
 * that an input of any length takes. */
#ifndef DI_CLI_FLIGHT_H
#define DI_CLI_FLIGHT_H

#include <jansson.h>

#include "base/buffer.h"
#include "deepinfer/deepinfer.h"
#include "text/ids.h"

/* One of a request's n answers, so far. */
typedef struct di_flight_answer {
    di_ids tokens;
    di_buffer text;
    json_t *logprobs; /* array, or NULL */
    di_finish_reason reason;
    char *stop; /* the text that ended it, or NULL */
    int32_t stop_token;
    uint64_t seed;
    di_error error;
} di_flight_answer;

typedef struct di_flight_request {
    int64_t index;
    char where[128];       /* "FILE line N" */
    int n, running;        /* answers; those that have not ended */
    bool drawn, says_stop; /* the seed matters; a stop text or token was asked for */
    di_flight_answer *answers;
    json_t *prompt_logprobs;
    int64_t prompt_tokens, completion_tokens;
    di_error error; /* it was refused */
    bool no_memory; /* some of its answer could not be kept */
} di_flight_request;

typedef struct di_flight {
    di_flight_request *ring;
    int capacity, first, count;
} di_flight;

bool di_flight_create(di_flight *f, int capacity, di_error *err);
void di_flight_destroy(di_flight *f);

/* A place at the end, which must be free; `where` is copied. */
di_flight_request *di_flight_push(di_flight *f, int64_t index, const char *where);

/* Makes room for its answers before it is submitted, the request being its tag. */
bool di_flight_expect(di_flight_request *r, const di_request_params *params, di_error *err);

/* An output whose tag is a di_flight_request. */
void di_flight_take(const di_output *out);

/* The oldest request if it has ended, else NULL; and the end of it. */
di_flight_request *di_flight_done(di_flight *f);
void di_flight_pop(di_flight *f);

/* Its line of output, without newline: an object with "index" and its answer, its n answers, or an
 * "error" (then *failed). NULL without memory. */
json_t *di_flight_object(di_flight_request *r, bool *failed);

#endif

/* One HTTP request and what becomes of it, without sockets: http.c hands in header and body, and
 * takes out a reply or a generation. */
#ifndef DI_SERVER_EXCHANGE_H
#define DI_SERVER_EXCHANGE_H

#include "server/generation.h"
#include "server/metrics.h"
#include "server/reply.h"

typedef struct di_exchange di_exchange;

enum {
    DI_ROUTE_KEY = 1 << 0,    /* a key is needed */
    DI_ROUTE_ADMIN = 1 << 1,  /* of an administrator */
    DI_ROUTE_QUOTA = 1 << 2,  /* counts as a request of the key */
    DI_ROUTE_ENGINE = 1 << 3, /* not while the server drains */
    DI_ROUTE_BARE = 1 << 4,   /* a POST that needs no body */
    DI_ROUTE_LONG = 1 << 5,   /* may take long without one */
};

typedef struct di_route {
    const char *method;
    const char *path; /* a '*' is one step of it, "**" at the end whatever follows */
    di_endpoint endpoint;
    di_shape shape;
    unsigned flags;
    /* Sets x->reply or x->generation. The body is whole. */
    void (*run)(di_exchange *x);
} di_route;

struct di_exchange {
    struct di_server *server;
    const di_route *route; /* NULL: nothing is there */
    di_shape shape;
    char request_id[DI_REQUEST_ID_BYTES], traceparent[64], tracestate[513];
    char method[12], path[256]; /* cut, for the log */
    di_str rest;                /* of the path, where the route has a '*' */
    double arrived, whole;      /* when the header was there, and the body */
    di_tenant tenant;
    char key_id[DI_KEY_ID_BYTES + 1];
    di_str model; /* as asked for, for the log: in `model_text` */
    char model_text[128];
    di_buffer body;
    size_t charged; /* of the server's body_bytes */
    di_reply reply;
    int kept_headers;          /* of the reply's, that also errors and streams have */
    di_generation *generation; /* held */
    /* of an error that is about to be told: what di_error does not say; 0 and NULL: the usual */
    int status;
    const char *code;
    int64_t retry_after;
    /* reads a header of the request, any case; NULL: it has none */
    const char *(*header)(void *context, const char *name);
    /* the same of the arguments behind the path's '?' */
    const char *(*argument)(void *context, const char *name);
    void *context;
};

/* The header is there. False: x->reply is the answer and the body is not wanted. `method` and
 * `path` are cut for the log but matched in full. */
bool di_exchange_begin(di_exchange *x, struct di_server *s, const char *method, const char *target);

/* Takes it so long to run that a thread of its own should? */
bool di_exchange_is_long(const di_exchange *x);

/* Adds to the body; false: above the limit, x->reply is the answer. */
bool di_exchange_body(di_exchange *x, const char *data, size_t size);

/* The body is whole: afterwards there is a reply or a generation. */
void di_exchange_run(di_exchange *x);

void di_exchange_free(di_exchange *x);

/* Ends it with an error; `param` may be NULL. Fields of errors that name one at their beginning
 * become `param`. */
void di_exchange_fail(di_exchange *x, const di_error *err);
void di_exchange_error(di_exchange *x, int status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A response that was taken from a generation which is over: whole or an error. */
void di_exchange_finish(di_exchange *x);

/* ---- handlers (api_*.c) ---- */
void di_serve_chat(di_exchange *x);
void di_serve_messages(di_exchange *x);
void di_serve_responses(di_exchange *x);
void di_serve_stored(di_exchange *x);
void di_serve_stored_drop(di_exchange *x);
void di_serve_stored_items(di_exchange *x);
void di_serve_stored_cancel(di_exchange *x);
void di_serve_count_tokens(di_exchange *x);
void di_serve_completions(di_exchange *x);
void di_serve_models(di_exchange *x);
void di_serve_model(di_exchange *x);
void di_serve_tokenize(di_exchange *x);
void di_serve_detokenize(di_exchange *x);
void di_serve_health(di_exchange *x);
void di_serve_ready(di_exchange *x);
void di_serve_version(di_exchange *x);
void di_serve_metrics(di_exchange *x);
void di_serve_page(di_exchange *x);

#endif

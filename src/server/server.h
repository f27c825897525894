/* The HTTP server: OpenAI's and Anthropic's APIs in front of an engine.
 *
 * Threads: one or a few of libmicrohttpd's do all that has to do with sockets, reading of short
 * requests included; one or a few read long ones; one, the pump, reads the engine's outputs and
 * turns them into events; one watches for clients that have left or are too slow to send.
 * docs/serving.md is the user's side. */
#ifndef DI_SERVER_SERVER_H
#define DI_SERVER_SERVER_H

#include "base/error.h"
#include "server/answerer.h"

/* Texts are copied. Seconds of 0 are never. */
typedef struct di_server_options {
    const char *host;          /* a name or an address */
    int port;                  /* 0: one that is free */
    const char *const *models; /* names by which requests may call the model; the first is told */
    size_t num_models;
    const char *key_file;           /* NULL: everybody is let in */
    const char *quota_journal;      /* NULL: quotas count from the start of the process */
    const char *tls_cert, *tls_key; /* PEM files, for HTTPS; NULL: HTTP */
    bool insecure_no_auth; /* without keys listen elsewhere than on the loopback all the same */
    bool no_thinking;      /* unless a request asks for it */
    int threads;           /* that serve sockets */
    int reader_threads;    /* that read long requests; 0: those of the sockets do */
    int max_connections;
    size_t max_header_bytes, max_body_bytes;
    size_t max_bodies_bytes; /* of all requests under way together */
    size_t max_stream_bytes; /* of an answer that its client has not read yet */
    double header_seconds;   /* from a connection's beginning to the end of the request's header */
    double body_seconds;     /* from there to the end of its body */
    double idle_seconds;     /* between two requests, and for a client that reads nothing */
    size_t response_store_bytes; /* for responses that clients may come back to; 0: none are kept */
    int response_store_per_key;
    double response_store_seconds; /* how long they are kept */
    int max_background;       /* responses that run without a connection, if there is a store */
    double keepalive_seconds; /* without an event, then a comment goes out */
    const char *access_log;   /* a path, "-" standard output; NULL: none */
} di_server_options;

void di_server_options_init(di_server_options *o);

typedef struct di_server di_server;

/* Would it start? Opens its files and its address for a moment, so that a mistake is told before a
 * model is loaded. */
bool di_server_check(const di_server_options *options, di_error *err);

/* Listens and answers until it is stopped. The answerer must outlive it. NULL with DI_ERR_ARGUMENT,
 * _IO, _FORMAT or _NO_MEMORY. */
di_server *di_server_start(const di_server_options *options, di_answerer *answerer, di_error *err);

int di_server_port(const di_server *s);
const char *di_server_address(const di_server *s); /* "127.0.0.1:8000" */

/* From now on requests that need the engine get 503, /health/ready too; what runs goes on, but for
 * responses in the background: they fail, for nobody could ask for them once the process is gone.
 */
void di_server_drain(di_server *s);

/* Answers that have not ended or are not read to their end. */
int di_server_running(di_server *s);

/* Reads the key file and the certificate and opens the access log again. Each on its own: what
 * fails stays as it was, and the error tells all that did. */
bool di_server_reload(di_server *s, di_error *err);

/* Cancels what still runs, tells its clients, and ends. */
void di_server_stop(di_server *s); /* NULL is allowed */

#endif

/* Counters, gauges and histograms of the server, and their text for Prometheus.
 *
 * What means the same as in vLLM has vLLM's name (vllm:...), so that its dashboards work; the rest
 * is called deepinfer:... Every sample carries model_name, those of vLLM's names engine="0" too.
 * docs/serving-operations.md lists them.
 *
 * Counting is a few relaxed atomic additions and never blocks; the only labels that strangers can
 * influence are key ids, which are known ones, at most DI_METRICS_KEYS of them ("other" beyond).
 * All functions may be called from any thread. */
#ifndef DI_SERVER_METRICS_H
#define DI_SERVER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "deepinfer/deepinfer.h"
#include "server/quota.h"

enum { DI_METRICS_KEYS = 1024 };

typedef struct di_metrics di_metrics;

/* `model` is copied. NULL: short of memory. */
di_metrics *di_metrics_create(const char *model);
void di_metrics_destroy(di_metrics *m); /* NULL is allowed */

/* ---- HTTP -------------------------------------------------------------------------------------*/

/* What was asked, for labels; DI_ENDPOINT_OTHER is whatever has no name (404s). */
typedef enum di_endpoint {
    DI_ENDPOINT_CHAT_COMPLETIONS,
    DI_ENDPOINT_COMPLETIONS,
    DI_ENDPOINT_RESPONSES,
    DI_ENDPOINT_MESSAGES,
    DI_ENDPOINT_COUNT_TOKENS,
    DI_ENDPOINT_MODELS,
    DI_ENDPOINT_TOKENIZE,
    DI_ENDPOINT_DETOKENIZE,
    DI_ENDPOINT_HEALTH,
    DI_ENDPOINT_METRICS,
    DI_ENDPOINT_PAGE,
    DI_ENDPOINT_OTHER,
    DI_NUM_ENDPOINTS,
} di_endpoint;

/* A request has been answered in full (or the client has left: 499), after `seconds`. */
void di_metrics_http(di_metrics *m, di_endpoint endpoint, int status, double seconds);

/* Connections open now; requests being answered now. delta is +1 or -1. */
void di_metrics_connections(di_metrics *m, int delta);
void di_metrics_in_flight(di_metrics *m, int delta);

/* The server's own part of a request's time: from the end of its body to the engine's acceptance;
 * and from when the engine had something to tell to when the connection has taken it. */
void di_metrics_request_read(di_metrics *m, double seconds);
void di_metrics_answer_wait(di_metrics *m, double seconds);

/* A long body is read by a thread of its own (readers.h). */
void di_metrics_long_request(di_metrics *m);

typedef enum di_server_event {
    DI_EVENT_DISCONNECT,       /* a client left before its answer's end */
    DI_EVENT_SLOW_READER,      /* half of what an answer may have waiting waited for its client */
    DI_EVENT_SLOW_READER_GONE, /* all of it; the answer was ended */
    DI_EVENT_QUEUE_FULL,       /* 503: too much under way */
    DI_EVENT_TIMEOUT,          /* a header, body or answer took too long */
    DI_EVENT_BAD_REQUEST,      /* what is no HTTP, or above a limit of size */
    DI_EVENT_UNAUTHORIZED,     /* 401 */
    DI_EVENT_PARSER_REPAIR,    /* an answer whose markup was mended */
    DI_EVENT_RELOAD,           /* the key file was read again */
    DI_EVENT_RELOAD_FAILED,
    DI_NUM_EVENTS,
} di_server_event;

void di_metrics_event(di_metrics *m, di_server_event event);

/* A request of `key` was refused by its limits. */
void di_metrics_refused(di_metrics *m, const char *key_id, di_quota_reason reason);

/* ---- requests on the engine -------------------------------------------------------------------*/

/* Once an answer's output (di_output) has arrived that holds tokens and is not its first:
 * `seconds` since the one before, for `tokens` tokens. Counts `tokens` gaps of seconds / tokens, so
 * that several tokens of one step do not look like one. */
void di_metrics_gap(di_metrics *m, double seconds, int64_t tokens);

/* A finished answer's reason, as vLLM's finished_reason says it. */
typedef enum di_finished {
    DI_FINISHED_STOP,
    DI_FINISHED_LENGTH,
    DI_FINISHED_ABORT,
    DI_FINISHED_ERROR,
    DI_FINISHED_TOOL_CALLS,
    DI_NUM_FINISHED,
} di_finished;

/* Once for each answer (choice) that has ended, refused ones not. Seconds below zero are not known
 * and not counted: ttft and what follows of an answer that had no token. */
typedef struct di_metrics_request {
    const char *key_id; /* borrowed */
    di_finished finished;
    int64_t prompt_tokens, cached_tokens; /* 0 for all but the first answer of a request with n */
    int64_t completion_tokens, reasoning_tokens;
    int64_t max_tokens; /* 0: the client named none */
    int n;              /* answers asked for; 0 for all but the first answer */
    bool stream;
    double ttft_seconds; /* from the request's arrival to the first token */
    double e2e_seconds;  /* from its arrival to its end */
    double queue_seconds, prefill_seconds, decode_seconds; /* di_output's */
} di_metrics_request;

void di_metrics_finish(di_metrics *m, const di_metrics_request *r);

/* ---- the engine -------------------------------------------------------------------------------*/

/* Reads the engine's counters and the records of its steps since the last call (host time, device
 * idle, tokens in a step), a few times a second or before di_metrics_write. One thread at a time
 * does the work, others return at once. Steps are kept by the engine 1024 deep: call it often
 * enough, or those beyond are missing in the histograms (and counted as missed). */
void di_metrics_poll(di_metrics *m, di_engine *engine);

/* The same with numbers from elsewhere, for tests. */
void di_metrics_engine(di_metrics *m, const di_engine_stats *stats, const di_step_stats *steps,
                       size_t num_steps);

/* Whether the journal of quotas could be written last time; fine until told otherwise. */
void di_metrics_journal(di_metrics *m, bool fine);

/* Lines of the access log that were lost so far. */
void di_metrics_log_lost(di_metrics *m, size_t lines);

/* Responses that are kept now. */
void di_metrics_stored(di_metrics *m, size_t count, size_t bytes, int background);

/* ---- reading ----------------------------------------------------------------------------------*/

/* Content-Type of what di_metrics_write appends. */
#define DI_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

bool di_metrics_write(di_metrics *m, di_buffer *out, di_error *err);

#endif

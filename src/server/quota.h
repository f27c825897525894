/* What each key has used: rates, concurrency, quotas of a day; admission and settlement.
 *
 * A request goes through three steps, each one call:
 *
 *     di_quota_enter    before its body is read: requests per minute and day, concurrency
 *     di_quota_reserve  when its prompt is tokenised: tokens per minute and day
 *     di_quota_leave    once, from wherever it ends: what it really used
 *
 * and in between di_quota_progress, as tokens are generated, which costs an atomic store.
 *
 * Rates are token buckets that hold one minute's worth and refill evenly. Input tokens are taken in
 * whole. Of output tokens at most DI_QUOTA_OUTPUT_AHEAD are taken ahead; what an answer turns out
 * longer is taken at its end, when the bucket may go below zero, and the next request waits until
 * it is above again: the rate holds over time, and a client that names no max_tokens is not shut
 * out by what it might use. A request larger than a whole bucket is let in when the bucket is full.
 *
 * Quotas of a day (UTC) are never exceeded: prompt and the most that may be generated are reserved
 * in full, and what was not used is given back. A request without max_tokens gets as much as is
 * left.
 *
 * Counters of the day live in a journal: text, one record a line with a checksum, only appended to;
 * docs/serving-operations.md describes it. A record is written (not synced) before a call returns,
 * so what kill -9 leaves is the truth but for tokens generated since the last flush (a second). A
 * thread flushes progress and syncs each second, for power failures; and replaces the journal by
 * its sums when it has grown. A torn end is cut off on opening; damage before the end is refused.
 * When the journal cannot be written (disk full), requests of keys with a quota of a day are
 * refused with 503 until it can, all others go on; what ended meanwhile is written then.
 *
 * All functions may be called from any thread. */
#ifndef DI_SERVER_QUOTA_H
#define DI_SERVER_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "server/keys.h"

enum { DI_QUOTA_OUTPUT_AHEAD = 1024 };

typedef struct di_quota di_quota;

/* For tests; zeros = the system's. */
typedef struct di_quota_clock {
    double (*monotonic)(void *user); /* seconds */
    int64_t (*wall)(void *user);     /* seconds since 1970 */
    void *user;
} di_quota_clock;

typedef struct di_quota_options {
    const char *journal;   /* its path; NULL: counters live as long as the process */
    bool read_only;        /* only looks at the journal, also while a server has it */
    double flush_seconds;  /* 0 = 1; negative: no thread, di_quota_flush is called by hand */
    int64_t compact_bytes; /* journal's growth that makes it be replaced by sums; 0 = 1 MiB */
    di_quota_clock clock;
} di_quota_options;

/* NULL with DI_ERR_IO (also: another process has the journal), _FORMAT ("..., line 7: ...") or
 * _NO_MEMORY. Requests that were under way when the last process died are settled with what is
 * known of them. */
di_quota *di_quota_open(const di_quota_options *options, di_error *err);

/* Writes what is open; no request may be under way. NULL is allowed. */
void di_quota_close(di_quota *q);

/* A request under way. */
typedef struct di_quota_ticket di_quota_ticket;

typedef enum di_quota_reason {
    DI_QUOTA_REQUESTS_PER_MINUTE = 1,
    DI_QUOTA_INPUT_TOKENS_PER_MINUTE,
    DI_QUOTA_OUTPUT_TOKENS_PER_MINUTE,
    DI_QUOTA_CONCURRENCY,
    DI_QUOTA_REQUESTS_PER_DAY,
    DI_QUOTA_TOKENS_PER_DAY,
    DI_QUOTA_JOURNAL,   /* 503: it cannot be written */
    DI_QUOTA_NO_MEMORY, /* 503 */
} di_quota_reason;

/* Why a request is not let in. */
typedef struct di_quota_refusal {
    di_quota_reason reason;
    int status;          /* 429 or 503 */
    int64_t retry_after; /* seconds, at least 1: the Retry-After header */
    char message[256];   /* for the client: which limit, how much of it, when again */
} di_quota_refusal;

/* "requests_per_minute", ...: for metrics and logs. */
const char *di_quota_reason_name(di_quota_reason reason);
enum { DI_QUOTA_NUM_REASONS = DI_QUOTA_NO_MEMORY + 1 };

/* A request of `key` begins: a ticket, or NULL with the refusal. Counts one request and one place
 * of concurrency. The key is read during the call only; a reload does not touch requests under way.
 * Refused requests cost nothing. */
di_quota_ticket *di_quota_enter(di_quota *q, const di_key *key, di_quota_refusal *refusal);

/* The prompt has input_tokens; the answers together may have at most wanted_output (n * max_tokens)
 * and the request is worth doing with least_output (= wanted_output if the client named a number).
 * True: *granted_output (least .. wanted) may be generated. False with the refusal: the ticket must
 * still be given back, and then counts as a request without tokens. Called once. */
bool di_quota_reserve(di_quota *q, di_quota_ticket *ticket, int64_t input_tokens,
                      int64_t wanted_output, int64_t least_output, int64_t *granted_output,
                      di_quota_refusal *refusal);

/* Tokens generated so far, all answers together. Never blocks. */
void di_quota_progress(di_quota_ticket *ticket, int64_t output_tokens);

/* Ends it with what it used and frees the ticket. NULL is allowed. input_tokens is what was really
 * computed for it: 0 for a request that never reached the engine. */
void di_quota_leave(di_quota *q, di_quota_ticket *ticket, int64_t input_tokens,
                    int64_t output_tokens);

/* How a key stands, for x-ratelimit-* headers. Limits are 0 where there is none, and then the
 * rest is 0 too. Seconds are until the bucket is full. */
typedef struct di_quota_bucket {
    int64_t limit, remaining;
    double reset_seconds;
} di_quota_bucket;

typedef struct di_quota_status {
    di_quota_bucket requests, input_tokens, output_tokens;     /* of a minute */
    int64_t day_requests, day_input_tokens, day_output_tokens; /* used today */
    int64_t day_reserved;                                      /* tokens of requests under way */
    int running;
    int64_t day_ends; /* seconds until the day's counters begin anew */
} di_quota_status;

void di_quota_get_status(di_quota *q, const di_key *key, di_quota_status *status);

/* What the thread does each flush_seconds. False: the journal cannot be written. */
bool di_quota_flush(di_quota *q, di_error *err);

/* Whether the journal could be written last time; `why` (may be NULL) gets the message if not. For
 * readiness and metrics. */
bool di_quota_healthy(di_quota *q, di_error *why);

#endif

/* What metrics.c counts and metrics_text.c writes down. */
#ifndef DI_SERVER_METRICS_INTERNAL_H
#define DI_SERVER_METRICS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "server/keys.h"
#include "server/metrics.h"

typedef atomic_uint_least64_t di_counter; /* relaxed: nothing is ordered by it */

/* Bounds of a kind of histogram, ascending; the last bucket is above them all. */
enum { DI_MOST_BOUNDS = 23 };
typedef struct di_bounds {
    int count;
    double at[DI_MOST_BOUNDS];
} di_bounds;

extern const di_bounds di_bounds_ttft, di_bounds_gap, di_bounds_latency, di_bounds_tokens,
    di_bounds_answers, di_bounds_step, di_bounds_own;

/* Sums are kept in whole millionths of `1`: microseconds, or tokens times a million. */
typedef struct di_histogram {
    const di_bounds *bounds;
    di_counter buckets[DI_MOST_BOUNDS + 1];
    di_counter sum_millionths;
} di_histogram;

/* What is known of one key. */
typedef struct di_key_counts {
    char id[DI_KEY_ID_BYTES + 1];
    di_counter requests, prompt_tokens, cached_tokens, completion_tokens;
    di_counter refused[DI_QUOTA_NUM_REASONS];
} di_key_counts;

/* Statuses with a label of their own; the last stands for all others. */
enum { DI_NUM_STATUSES = 24 };
extern const int di_statuses[DI_NUM_STATUSES - 1];

enum { DI_KEY_SLOTS = 2 * DI_METRICS_KEYS };

struct di_metrics {
    char *model;    /* escaped for a label */
    double started; /* seconds since 1970 */

    di_counter http_requests[DI_NUM_ENDPOINTS][DI_NUM_STATUSES];
    di_histogram http_seconds[DI_NUM_ENDPOINTS];
    atomic_int_least64_t connections, in_flight;
    atomic_bool journal_broken;
    di_counter long_requests;
    atomic_size_t stored, stored_bytes, log_lost;
    atomic_int background;
    di_histogram request_read, answer_wait;
    di_counter events[DI_NUM_EVENTS];

    di_counter finished[DI_NUM_FINISHED], streamed, reasoning_tokens;
    di_histogram ttft, gap, per_token, e2e, queue, inference, prefill, decode;
    di_histogram prompt_tokens, completion_tokens, max_tokens, answers;

    /* A hash table that only grows: a slot is filled once, by compare and swap. */
    _Atomic(di_key_counts *) keys[DI_KEY_SLOTS];
    atomic_int num_keys;
    di_key_counts other_keys;

    pthread_mutex_t engine_lock; /* of what follows */
    di_engine_stats engine;
    uint64_t last_step, missed_steps;
    di_histogram step_host, step_device, step_idle, step_tokens;
};

/* A label's value: quotes, backslashes and newlines escaped. NULL: short of memory. */
char *di_metrics_escape(const char *text);

#endif

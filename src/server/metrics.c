/* Counting: see metrics.h. */
#include "server/metrics.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "server/metrics_internal.h"

/* vLLM's bounds, and below its finest some more, for models and machines as quick as tests use. */
const di_bounds di_bounds_ttft = {22, {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                       0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                       20.0,  40.0,  80.0, 160.0, 640.0, 2560.0}};
const di_bounds di_bounds_gap = {23, {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075,
                                      0.1,   0.15,   0.2,   0.3,    0.4,  0.5,   0.75, 1.0,
                                      2.5,   5.0,    7.5,   10.0,   20.0, 40.0,  80.0}};
const di_bounds di_bounds_latency = {23, {0.01, 0.1,   0.3,   0.5,   0.8,    1.0,    1.5,    2.0,
                                          2.5,  5.0,   10.0,  15.0,  20.0,   30.0,   40.0,   50.0,
                                          60.0, 120.0, 240.0, 480.0, 1920.0, 7680.0, 30720.0}};
const di_bounds di_bounds_tokens = {
    22, {1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
         5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000}};
const di_bounds di_bounds_answers = {5, {1, 2, 5, 10, 20}};
const di_bounds di_bounds_step = {16,
                                  {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
                                   0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0}};

const di_bounds di_bounds_own = {23, {0.00001, 0.00002, 0.00003, 0.00005, 0.000075, 0.0001,
                                      0.00015, 0.0002,  0.0003,  0.0004,  0.0005,   0.00075,
                                      0.001,   0.0015,  0.002,   0.003,   0.005,    0.01,
                                      0.02,    0.05,    0.1,     0.5,     1.0}};

const int di_statuses[DI_NUM_STATUSES - 1] = {200, 201, 204, 206, 304, 400, 401, 402,
                                              403, 404, 405, 408, 409, 411, 413, 415,
                                              422, 429, 431, 499, 500, 503, 504};

/* ---- making one -------------------------------------------------------------------------------*/

char *di_metrics_escape(const char *text) {
    char *out = di_alloc(2 * strlen(text) + 1), *to = out;
    if (!out) {
        return NULL;
    }
    for (; *text; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n') {
            *to++ = '\\';
        }
        *to++ = *text;
        if (*text == '\n') {
            to[-1] = 'n';
        }
    }
    *to = 0;
    return out;
}

static void set_bounds(di_metrics *m) {
    for (int i = 0; i < DI_NUM_ENDPOINTS; i++) {
        m->http_seconds[i].bounds = &di_bounds_latency;
    }
    m->ttft.bounds = &di_bounds_ttft;
    m->gap.bounds = m->per_token.bounds = &di_bounds_gap;
    m->e2e.bounds = m->queue.bounds = m->inference.bounds = &di_bounds_latency;
    m->prefill.bounds = m->decode.bounds = &di_bounds_latency;
    m->prompt_tokens.bounds = m->completion_tokens.bounds = &di_bounds_tokens;
    m->max_tokens.bounds = m->step_tokens.bounds = &di_bounds_tokens;
    m->answers.bounds = &di_bounds_answers;
    m->request_read.bounds = m->answer_wait.bounds = &di_bounds_own;
    m->step_host.bounds = m->step_device.bounds = m->step_idle.bounds = &di_bounds_step;
}

di_metrics *di_metrics_create(const char *model) {
    di_metrics *m = di_calloc(1, sizeof *m);
    char *escaped = m ? di_metrics_escape(model) : NULL;
    if (!escaped) {
        di_free(m);
        return NULL;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->model = escaped;
    m->started = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    snprintf(m->other_keys.id, sizeof m->other_keys.id, "other");
    pthread_mutex_init(&m->engine_lock, NULL);
    set_bounds(m);
    return m;
}

void di_metrics_destroy(di_metrics *m) {
    if (m) {
        for (int i = 0; i < DI_KEY_SLOTS; i++) {
            di_free(atomic_load(&m->keys[i]));
        }
        pthread_mutex_destroy(&m->engine_lock);
        di_free(m->model);
        di_free(m);
    }
}

/* ---- counting ---------------------------------------------------------------------------------*/

static void add(di_counter *c, uint64_t n) {
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

static void add_tokens(di_counter *c, int64_t n) {
    if (n > 0) {
        add(c, (uint64_t)n);
    }
}

/* `times` observations of one value; below zero (or no number) it is not known. */
static void observe(di_histogram *h, double value, uint64_t times) {
    if (!(value >= 0) || times == 0) {
        return;
    }
    int i = 0;
    while (i < h->bounds->count && value > h->bounds->at[i]) {
        i++;
    }
    add(&h->buckets[i], times);
    double sum = value * 1e6 * (double)times;
    add(&h->sum_millionths, sum < 9e18 ? (uint64_t)(sum + 0.5) : 0);
}

/* The counts of a key, from the table, or those of all others when it is full. */
static di_key_counts *counts_of(di_metrics *m, const char *id) {
    size_t slot = (size_t)XXH3_64bits(id, strlen(id)) % DI_KEY_SLOTS;
    for (;;) {
        di_key_counts *found = atomic_load_explicit(&m->keys[slot], memory_order_acquire);
        if (found && strcmp(found->id, id) == 0) {
            return found;
        }
        if (!found) {
            break;
        }
        slot = (slot + 1) % DI_KEY_SLOTS;
    }
    /* A place is taken before the slot, so that the table is never more than half full. */
    if (atomic_fetch_add(&m->num_keys, 1) >= DI_METRICS_KEYS) {
        atomic_fetch_sub(&m->num_keys, 1);
        return &m->other_keys;
    }
    di_key_counts *fresh = di_calloc(1, sizeof *fresh);
    if (!fresh) {
        atomic_fetch_sub(&m->num_keys, 1);
        return &m->other_keys;
    }
    snprintf(fresh->id, sizeof fresh->id, "%s", id);
    for (;; slot = (slot + 1) % DI_KEY_SLOTS) {
        di_key_counts *found = NULL;
        if (atomic_compare_exchange_strong(&m->keys[slot], &found, fresh)) {
            return fresh;
        }
        if (strcmp(found->id, id) == 0) { /* another thread was quicker */
            atomic_fetch_sub(&m->num_keys, 1);
            di_free(fresh);
            return found;
        }
    }
}

void di_metrics_http(di_metrics *m, di_endpoint endpoint, int status, double seconds) {
    int e = (unsigned)endpoint < DI_NUM_ENDPOINTS ? (int)endpoint : DI_ENDPOINT_OTHER;
    int s = 0;
    while (s < DI_NUM_STATUSES - 1 && di_statuses[s] != status) {
        s++;
    }
    add(&m->http_requests[e][s], 1);
    observe(&m->http_seconds[e], seconds, 1);
}

void di_metrics_connections(di_metrics *m, int delta) {
    atomic_fetch_add_explicit(&m->connections, delta, memory_order_relaxed);
}

void di_metrics_in_flight(di_metrics *m, int delta) {
    atomic_fetch_add_explicit(&m->in_flight, delta, memory_order_relaxed);
}

void di_metrics_request_read(di_metrics *m, double seconds) {
    observe(&m->request_read, seconds, 1);
}

void di_metrics_answer_wait(di_metrics *m, double seconds) {
    observe(&m->answer_wait, seconds, 1);
}

void di_metrics_long_request(di_metrics *m) {
    add(&m->long_requests, 1);
}

void di_metrics_journal(di_metrics *m, bool fine) {
    atomic_store_explicit(&m->journal_broken, !fine, memory_order_relaxed);
}

void di_metrics_log_lost(di_metrics *m, size_t lines) {
    atomic_store_explicit(&m->log_lost, lines, memory_order_relaxed);
}

void di_metrics_stored(di_metrics *m, size_t count, size_t bytes, int background) {
    atomic_store_explicit(&m->background, background, memory_order_relaxed);
    atomic_store_explicit(&m->stored, count, memory_order_relaxed);
    atomic_store_explicit(&m->stored_bytes, bytes, memory_order_relaxed);
}

void di_metrics_event(di_metrics *m, di_server_event event) {
    if ((unsigned)event < DI_NUM_EVENTS) {
        add(&m->events[event], 1);
    }
}

void di_metrics_refused(di_metrics *m, const char *key_id, di_quota_reason reason) {
    if ((unsigned)reason < DI_QUOTA_NUM_REASONS) {
        add(&counts_of(m, key_id)->refused[reason], 1);
    }
}

void di_metrics_gap(di_metrics *m, double seconds, int64_t tokens) {
    if (tokens > 0) {
        observe(&m->gap, seconds / (double)tokens, (uint64_t)tokens);
    }
}

void di_metrics_finish(di_metrics *m, const di_metrics_request *r) {
    di_key_counts *key = counts_of(m, r->key_id);
    if ((unsigned)r->finished < DI_NUM_FINISHED) {
        add(&m->finished[r->finished], 1);
    }
    add(&m->streamed, r->stream && r->n > 0 ? 1 : 0);
    add_tokens(&m->reasoning_tokens, r->reasoning_tokens);
    add(&key->requests, r->n > 0 ? 1 : 0);
    add_tokens(&key->prompt_tokens, r->prompt_tokens);
    add_tokens(&key->cached_tokens, r->cached_tokens);
    add_tokens(&key->completion_tokens, r->completion_tokens);
    if (r->n > 0) {
        observe(&m->answers, r->n, 1);
        observe(&m->prompt_tokens, (double)r->prompt_tokens, 1);
        observe(&m->max_tokens, r->max_tokens > 0 ? (double)r->max_tokens : -1, 1);
    }
    observe(&m->completion_tokens, (double)r->completion_tokens, 1);
    observe(&m->ttft, r->ttft_seconds, 1);
    observe(&m->e2e, r->e2e_seconds, 1);
    observe(&m->queue, r->queue_seconds, 1);
    observe(&m->prefill, r->prefill_seconds, 1);
    observe(&m->decode, r->decode_seconds, 1);
    if (r->prefill_seconds >= 0 && r->decode_seconds >= 0) {
        observe(&m->inference, r->prefill_seconds + r->decode_seconds, 1);
    }
    if (r->completion_tokens > 1 && r->decode_seconds >= 0) {
        observe(&m->per_token, r->decode_seconds / (double)(r->completion_tokens - 1), 1);
    }
}

/* ---- the engine -------------------------------------------------------------------------------*/

/* Under the lock. */
static void take_steps(di_metrics *m, const di_step_stats *steps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const di_step_stats *s = &steps[i];
        if (s->number <= m->last_step) {
            continue;
        }
        m->missed_steps += s->number - m->last_step - 1;
        m->last_step = s->number;
        observe(&m->step_host, s->host_seconds, 1);
        observe(&m->step_device, s->device_seconds, 1);
        observe(&m->step_idle, s->idle_seconds, 1);
        observe(&m->step_tokens, (double)s->prompt_tokens + (double)s->completion_tokens, 1);
    }
}

void di_metrics_engine(di_metrics *m, const di_engine_stats *stats, const di_step_stats *steps,
                       size_t num_steps) {
    pthread_mutex_lock(&m->engine_lock);
    m->engine = *stats;
    take_steps(m, steps, num_steps);
    pthread_mutex_unlock(&m->engine_lock);
}

void di_metrics_poll(di_metrics *m, di_engine *engine) {
    enum { AT_ONCE = 64 };
    if (pthread_mutex_trylock(&m->engine_lock) != 0) {
        return;
    }
    di_step_stats steps[AT_ONCE];
    size_t count;
    do {
        count = di_engine_get_steps(engine, m->last_step, steps, sizeof *steps, AT_ONCE);
        take_steps(m, steps, count);
    } while (count == AT_ONCE);
    m->engine.struct_bytes = sizeof m->engine;
    di_engine_get_stats(engine, &m->engine);
    pthread_mutex_unlock(&m->engine_lock);
}

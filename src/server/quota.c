/* Admission, reservation and settlement of what keys use: see quota.h. */
#include "server/quota.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "server/quota_accounts.h"
#include "server/quota_journal.h"

enum { DAY_SECONDS = 86400, RETRY_JOURNAL = 5, RETRY_SOON = 1 };

struct di_quota_ticket {
    di_quota_account *account;
    uint64_t number; /* in the journal */
    int64_t day;     /* that it counts for */
    di_key_limits limits;
    bool reserved;                    /* di_quota_reserve has let it in */
    int64_t input;                    /* of the prompt */
    int64_t output_ahead;             /* taken from the minute's bucket */
    int64_t day_reserved;             /* tokens, of the account's */
    atomic_llong output;              /* generated so far */
    int64_t output_logged;            /* of that, what the journal knows */
    di_quota_ticket *before, *behind; /* in the list of those that have reserved */
};

struct di_quota {
    di_quota_options options;
    bool has_journal;
    pthread_mutex_t lock; /* of all below */
    di_journal journal;
    bool broken; /* the last write failed; mended by writing everything anew */
    di_error why;
    int64_t compact_at; /* size of the journal */
    di_accounts accounts;
    int64_t day; /* never goes back */
    uint64_t next_ticket;
    di_quota_ticket *oldest, *newest; /* of those that have reserved, in order of numbers */

    pthread_mutex_t flushing; /* one flush at a time */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_cond;
    bool stop;
};

/* ---- time -------------------------------------------------------------------------------------*/

static double seconds_now(const di_quota *q) {
    if (q->options.clock.monotonic) {
        return q->options.clock.monotonic(q->options.clock.user);
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t wall_now(const di_quota *q) {
    const di_quota_clock *c = &q->options.clock;
    int64_t now = c->wall ? c->wall(c->user) : (int64_t)time(NULL);
    return now > 0 ? now : 0;
}

/* A clock that is set back does not give yesterday's quota again. */
static int64_t today(di_quota *q) {
    int64_t day = wall_now(q) / DAY_SECONDS;
    q->day = day > q->day ? day : q->day;
    return q->day;
}

static int64_t day_left(const di_quota *q) {
    int64_t left = (q->day + 1) * DAY_SECONDS - wall_now(q);
    return left > 0 ? left : 1;
}

/* ---- the journal ------------------------------------------------------------------------------*/

static void broke(di_quota *q, const di_error *why) {
    if (!q->broken) {
        di_log(DI_LOG_ERROR,
               "quotas: %s; requests of keys with a quota of a day are refused until "
               "it can be written",
               why->message);
    }
    q->broken = true;
    q->why = *why;
}

/* Under the lock. A broken journal is not appended to: something half written may stand at its end,
 * behind which nothing may follow. */
static bool log_record(di_quota *q, const di_quota_record *record) {
    if (!q->has_journal || q->broken) {
        return !q->broken;
    }
    di_error why = {0};
    di_buffer line = {0};
    bool ok = di_quota_record_line(record, &line, &why) &&
              di_journal_append(&q->journal, line.data, line.size, &why);
    di_buffer_free(&line);
    if (!ok) {
        broke(q, &why);
    }
    return ok;
}

/* Under the lock: the lines of all that counts today. Requests under way are left out of the sums
 * and begin anew. */
static bool snapshot(di_quota *q, di_buffer *out, di_error *err) {
    int64_t day = today(q);
    for (size_t i = 0; i < q->accounts.count; i++) {
        const di_quota_account *a = q->accounts.all[i];
        di_quota_record r = {'T', 0, day, "", a->requests - a->open, a->input, a->output};
        memcpy(r.id, a->id, sizeof r.id);
        if (a->day == day && (r.requests || r.input || r.output) &&
            !di_quota_record_line(&r, out, err)) {
            return false;
        }
    }
    for (const di_quota_ticket *t = q->oldest; t; t = t->behind) {
        di_quota_record begun = {'A', t->number, day, "", 0, t->input, 0};
        di_quota_record so_far = {'P', t->number, 0, "", 0, 0, t->output_logged};
        memcpy(begun.id, t->account->id, sizeof begun.id);
        if (t->day == day &&
            !(di_quota_record_line(&begun, out, err) && di_quota_record_line(&so_far, out, err))) {
            return false;
        }
    }
    return true;
}

static int64_t compact_step(const di_quota *q) {
    return q->options.compact_bytes > 0 ? q->options.compact_bytes : 1 << 20;
}

/* Writes everything anew. Under the lock, which `let_go` gives away while the new file is written,
 * so that nobody waits for the disk; what is appended meanwhile is copied. A broken journal has no
 * such appendix: then the lock stays. */
static bool rewrite(di_quota *q, bool let_go, di_error *err) {
    di_buffer lines = {0};
    di_journal fresh = {.fd = -1};
    bool ok = snapshot(q, &lines, err);
    int64_t from = q->journal.size;
    di_journal old = q->journal;
    if (ok) {
        if (let_go) {
            pthread_mutex_unlock(&q->lock);
        }
        ok = di_journal_prepare(&old, lines.data, lines.size, &fresh, err);
        if (let_go) {
            pthread_mutex_lock(&q->lock);
        }
    }
    if (ok && q->broken && let_go) { /* records were lost while it was written */
        di_journal_discard(&fresh);
        ok = di_fail(err, DI_ERR_IO, "%s", q->why.message);
    }
    ok = ok && di_journal_replace(&q->journal, from, &fresh, err);
    if (ok) {
        q->compact_at = 2 * q->journal.size + compact_step(q);
    } else {
        q->compact_at = q->journal.size + compact_step(q); /* not again at once */
    }
    di_buffer_free(&lines);
    return ok;
}

/* Under the lock: a 'P' for each request that has generated something. */
static bool log_progress(di_quota *q, di_error *err) {
    di_buffer lines = {0};
    bool ok = true;
    for (di_quota_ticket *t = q->oldest; ok && t; t = t->behind) {
        int64_t output = atomic_load_explicit(&t->output, memory_order_relaxed);
        if (output != t->output_logged) {
            di_quota_record r = {'P', t->number, 0, "", 0, 0, output};
            ok = di_quota_record_line(&r, &lines, err);
            t->output_logged = output;
        }
    }
    ok = ok && (lines.size == 0 || di_journal_append(&q->journal, lines.data, lines.size, err));
    di_buffer_free(&lines);
    return ok;
}

/* Under the lock. */
static bool flush_lines(di_quota *q, di_error *why) {
    if (!q->broken && !log_progress(q, why)) {
        broke(q, why);
    }
    if (q->broken) {
        if (!rewrite(q, false, why)) {
            q->why = *why;
            return false;
        }
        q->broken = false;
        di_log(DI_LOG_WARN, "quotas: %s can be written again", q->journal.path);
    } else if (q->journal.size >= q->compact_at) {
        di_error ignored; /* without it the journal is right all the same, only longer */
        (void)rewrite(q, true, &ignored);
    }
    return !q->broken || di_fail(why, DI_ERR_IO, "%s", q->why.message);
}

bool di_quota_flush(di_quota *q, di_error *err) {
    di_error why = {0};
    if (!q->has_journal) {
        return true;
    }
    pthread_mutex_lock(&q->flushing);
    pthread_mutex_lock(&q->lock);
    int before = q->journal.fd;
    bool ok = flush_lines(q, &why);
    di_journal same = q->journal; /* nobody else replaces it while `flushing` is held */
    pthread_mutex_unlock(&q->lock);
    if (same.fd != before) {
        di_journal_sync_name(&same);
    }
    if (ok && !di_journal_sync(&same, &why)) {
        ok = false;
        pthread_mutex_lock(&q->lock);
        broke(q, &why);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&q->flushing);
    if (!ok && err) {
        *err = why;
    }
    return ok;
}

bool di_quota_healthy(di_quota *q, di_error *why) {
    pthread_mutex_lock(&q->lock);
    bool ok = !q->broken;
    if (!ok && why) {
        *why = q->why;
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

static void *flush_thread(void *arg) {
    di_quota *q = arg;
    double seconds = q->options.flush_seconds > 0 ? q->options.flush_seconds : 1;
    pthread_mutex_lock(&q->stop_lock);
    while (!q->stop) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        double whole = floor(seconds);
        t.tv_sec += (time_t)whole;
        t.tv_nsec += (long)((seconds - whole) * 1e9);
        if (t.tv_nsec >= 1000000000) {
            t.tv_nsec -= 1000000000;
            t.tv_sec++;
        }
        pthread_cond_timedwait(&q->stop_cond, &q->stop_lock, &t);
        pthread_mutex_unlock(&q->stop_lock);
        (void)di_quota_flush(q, NULL);
        pthread_mutex_lock(&q->stop_lock);
    }
    pthread_mutex_unlock(&q->stop_lock);
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------------------*/

/* A request that the journal has begun and not ended, in ascending order of tickets. */
typedef struct open_record {
    uint64_t ticket;
    di_quota_account *account;
    int64_t day, input, output;
    bool ended;
} open_record;

typedef struct replay_state {
    di_quota *q;
    open_record *open;
    size_t count, capacity, ended;
} replay_state;

static open_record *find_open(replay_state *s, uint64_t ticket) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->open[middle].ticket < ticket) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < s->count && s->open[low].ticket == ticket ? &s->open[low] : NULL;
}

/* Counters of a day that is over are of no use. */
static void charge(di_quota_account *account, int64_t day, int64_t requests, int64_t input,
                   int64_t output) {
    if (day > account->day) {
        di_account_turn(account, day);
    }
    if (day == account->day) {
        account->requests = di_count_add(account->requests, requests);
        account->input = di_count_add(account->input, input);
        account->output = di_count_add(account->output, output);
    }
}

static bool replay_begun(replay_state *s, const di_quota_record *r, di_quota_account *account,
                         di_error *err) {
    if (s->ended > 64 && 2 * s->ended > s->count) {
        size_t kept = 0;
        for (size_t i = 0; i < s->count; i++) {
            if (!s->open[i].ended) {
                s->open[kept++] = s->open[i];
            }
        }
        s->count = kept;
        s->ended = 0;
    }
    if (s->count > 0 && s->open[s->count - 1].ticket >= r->ticket) {
        return di_fail(err, DI_ERR_FORMAT, "ticket %" PRIu64 " does not follow %" PRIu64, r->ticket,
                       s->open[s->count - 1].ticket);
    }
    open_record *open = di_grow(s->open, s->count, &s->capacity, sizeof *s->open);
    if (!open) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu requests", s->count + 1);
    }
    s->open = open;
    s->open[s->count++] = (open_record){r->ticket, account, r->day, r->input, 0, false};
    charge(account, r->day, 1, 0, 0);
    return true;
}

static bool replay_record(void *user, const di_quota_record *r, di_error *err) {
    replay_state *s = user;
    di_quota *q = s->q;
    if (r->kind == 'T' || r->kind == 'A') {
        di_quota_account *account = di_accounts_get(&q->accounts, r->id);
        if (!account) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the counters");
        }
        q->day = r->day > q->day ? r->day : q->day;
        if (r->kind == 'A') {
            q->next_ticket = r->ticket >= q->next_ticket ? r->ticket + 1 : q->next_ticket;
            return replay_begun(s, r, account, err);
        }
        charge(account, r->day, r->requests, r->input, r->output);
        return true;
    }
    open_record *open = find_open(s, r->ticket); /* none: it began on a day that is over */
    if (open && !open->ended && r->kind == 'P') {
        open->output = r->output;
    } else if (open && !open->ended) {
        charge(open->account, open->day, 0, r->input, r->output);
        open->ended = true;
        s->ended++;
    }
    return true;
}

/* What was under way when the process died has used its prompt and what is known of its answer. */
static void settle_orphans(replay_state *s) {
    for (size_t i = 0; i < s->count; i++) {
        const open_record *o = &s->open[i];
        if (!o->ended) {
            di_quota_record end = {'E', o->ticket, 0, "", 0, o->input, o->output};
            charge(o->account, o->day, 0, o->input, o->output);
            (void)log_record(s->q, &end);
        }
    }
}

static bool read_journal(replay_state *s, const char *path, di_error *err) {
    char *text;
    size_t size, whole;
    if (!di_file_read(path, (size_t)1 << 30, &text, &size, err)) {
        return false;
    }
    bool ok = di_journal_replay(text, size, path, replay_record, s, &whole, err);
    di_free(text);
    if (ok) {
        settle_orphans(s);
    }
    di_free(s->open);
    return ok;
}

static bool open_journal(di_quota *q, di_error *err) {
    replay_state s = {.q = q};
    if (q->options.read_only) {
        return read_journal(&s, q->options.journal, err);
    }
    bool ok = di_journal_open(&q->journal, q->options.journal, replay_record, &s, err);
    if (ok) {
        /* A day far ahead would stop the counters from ever beginning anew. */
        if (q->day > wall_now(q) / DAY_SECONDS + 1) {
            ok = di_fail(err, DI_ERR_FORMAT,
                         "%s counts for day %" PRId64 " since 1970, but today is %" PRId64
                         ": set the clock, or move it away to count from zero",
                         q->options.journal, q->day, wall_now(q) / DAY_SECONDS);
            di_journal_close(&q->journal);
        }
    }
    if (ok) {
        q->has_journal = true;
        settle_orphans(&s);
        q->compact_at = compact_step(q);
    }
    di_free(s.open);
    return ok;
}

static bool start_thread(di_quota *q, di_error *err) {
    if (!q->has_journal || q->options.flush_seconds < 0) {
        return true;
    }
    q->has_thread = di_thread_start(&q->thread, flush_thread, q, "quotas", err);
    return q->has_thread;
}

di_quota *di_quota_open(const di_quota_options *options, di_error *err) {
    di_quota *q = di_calloc(1, sizeof *q);
    if (!q) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the quotas");
        return NULL;
    }
    q->options = *options;
    q->next_ticket = 1;
    q->journal.fd = -1;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&q->stop_cond, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->flushing, NULL);
    pthread_mutex_init(&q->stop_lock, NULL);
    if ((options->journal && !open_journal(q, err)) || !start_thread(q, err)) {
        di_quota_close(q);
        return NULL;
    }
    q->options.journal = NULL; /* the caller's */
    return q;
}

void di_quota_close(di_quota *q) {
    if (!q) {
        return;
    }
    if (q->has_thread) {
        pthread_mutex_lock(&q->stop_lock);
        q->stop = true;
        pthread_cond_signal(&q->stop_cond);
        pthread_mutex_unlock(&q->stop_lock);
        pthread_join(q->thread, NULL);
    }
    if (q->has_journal) {
        di_error ignored; /* reported when it broke */
        (void)di_quota_flush(q, &ignored);
        di_journal_close(&q->journal);
    }
    di_accounts_free(&q->accounts);
    pthread_mutex_destroy(&q->lock);
    pthread_mutex_destroy(&q->flushing);
    pthread_mutex_destroy(&q->stop_lock);
    pthread_cond_destroy(&q->stop_cond);
    di_free(q);
}

/* ---- refusing ---------------------------------------------------------------------------------*/

const char *di_quota_reason_name(di_quota_reason reason) {
    static const char *const names[DI_QUOTA_NUM_REASONS] = {
        "none",        "requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute",
        "concurrency", "requests_per_day",    "tokens_per_day",          "journal",
        "no_memory",
    };
    return (unsigned)reason < DI_QUOTA_NUM_REASONS ? names[reason] : "none";
}

/* Fills the refusal; returns false. */
__attribute__((format(printf, 4, 5))) static bool
refuse(di_quota_refusal *refusal, di_quota_reason reason, double wait, const char *format, ...) {
    bool ours = reason == DI_QUOTA_JOURNAL || reason == DI_QUOTA_NO_MEMORY;
    double seconds = ceil(wait);
    refusal->reason = reason;
    refusal->status = ours ? 503 : 429;
    refusal->retry_after = seconds > 1 ? (int64_t)seconds : 1;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(refusal->message, sizeof refusal->message, format, args);
    va_end(args);
    if (length > 0 && (size_t)length < sizeof refusal->message) {
        snprintf(refusal->message + length, sizeof refusal->message - (size_t)length,
                 "; again in %" PRId64 " s", refusal->retry_after);
    }
    return false;
}

static bool has_day_quota(const di_key_limits *limits) {
    return limits->requests_per_day > 0 || limits->tokens_per_day > 0;
}

/* Counters that cannot be written down may not be spent from. */
static bool journal_fits(const di_quota *q, const di_key_limits *limits,
                         di_quota_refusal *refusal) {
    return !q->broken || !has_day_quota(limits) ||
           refuse(refusal, DI_QUOTA_JOURNAL, RETRY_JOURNAL,
                  "the server cannot keep count of this key's quota of the day at the moment");
}

static int64_t day_tokens(const di_quota_account *a) {
    return di_count_add(di_count_add(a->input, a->output), a->reserved);
}

static bool may_enter(di_quota *q, di_quota_account *a, const di_key *key, double now,
                      di_quota_refusal *refusal) {
    const di_key_limits *l = &key->limits;
    if (!journal_fits(q, l, refusal)) {
        return false;
    }
    if (l->requests_per_day > 0 && a->requests >= l->requests_per_day) {
        return refuse(refusal, DI_QUOTA_REQUESTS_PER_DAY, (double)day_left(q),
                      "this key's %" PRId64 " requests of the day (UTC) are used up",
                      l->requests_per_day);
    }
    if (l->tokens_per_day > 0 && di_count_add(a->input, a->output) >= l->tokens_per_day) {
        return refuse(refusal, DI_QUOTA_TOKENS_PER_DAY, (double)day_left(q),
                      "this key's %" PRId64 " tokens of the day (UTC) are used up",
                      l->tokens_per_day);
    }
    if (l->concurrency > 0 && a->running >= l->concurrency) {
        return refuse(refusal, DI_QUOTA_CONCURRENCY, RETRY_SOON,
                      "this key may have %d requests under way, and has %d", l->concurrency,
                      a->running);
    }
    double wait = di_bucket_wait(&a->requests_minute, l->requests_per_minute, 1, now);
    if (wait > 0) {
        return refuse(refusal, DI_QUOTA_REQUESTS_PER_MINUTE, wait,
                      "this key may make %" PRId64 " requests a minute", l->requests_per_minute);
    }
    return true;
}

/* ---- the three steps --------------------------------------------------------------------------*/

static void link_ticket(di_quota *q, di_quota_ticket *t) {
    t->before = q->newest;
    if (q->newest) {
        q->newest->behind = t;
    } else {
        q->oldest = t;
    }
    q->newest = t;
}

static void unlink_ticket(di_quota *q, di_quota_ticket *t) {
    if (t->before) {
        t->before->behind = t->behind;
    } else {
        q->oldest = t->behind;
    }
    if (t->behind) {
        t->behind->before = t->before;
    } else {
        q->newest = t->before;
    }
}

/* Under the lock: lets the request in, or not. */
static bool enter(di_quota *q, di_quota_ticket *t, const di_key *key, di_quota_refusal *refusal) {
    int64_t day = today(q);
    double now = seconds_now(q);
    di_quota_account *a = di_accounts_get(&q->accounts, key->id);
    if (!a) {
        return refuse(refusal, DI_QUOTA_NO_MEMORY, RETRY_JOURNAL, "the server has no memory");
    }
    di_account_turn(a, day);
    if (!may_enter(q, a, key, now, refusal)) {
        return false;
    }
    di_bucket_take(&a->requests_minute, key->limits.requests_per_minute, 1, now);
    a->running++;
    a->requests++;
    a->open++;
    t->account = a;
    t->day = day;
    t->limits = key->limits;
    atomic_init(&t->output, 0);
    return true;
}

di_quota_ticket *di_quota_enter(di_quota *q, const di_key *key, di_quota_refusal *refusal) {
    di_quota_ticket *t = di_calloc(1, sizeof *t);
    if (!t) {
        refuse(refusal, DI_QUOTA_NO_MEMORY, RETRY_JOURNAL, "the server has no memory");
        return NULL;
    }
    pthread_mutex_lock(&q->lock);
    bool ok = enter(q, t, key, refusal);
    pthread_mutex_unlock(&q->lock);
    if (!ok) {
        di_free(t);
        return NULL;
    }
    return t;
}

/* How many tokens the day leaves for the answers; below `least`: a refusal. */
static bool day_grants(di_quota *q, const di_quota_ticket *t, int64_t input, int64_t wanted,
                       int64_t least, int64_t *granted, di_quota_refusal *refusal) {
    const di_quota_account *a = t->account;
    int64_t quota = t->limits.tokens_per_day;
    if (quota == 0) {
        *granted = wanted;
        return true;
    }
    int64_t used = di_count_add(a->input, a->output);
    int64_t left = quota - day_tokens(a) - input;
    least = least > 0 ? least : 0;
    *granted = left < wanted ? left : wanted;
    if (*granted >= least) {
        return true;
    }
    if (quota - used - input >= least) {
        return refuse(refusal, DI_QUOTA_TOKENS_PER_DAY, RETRY_SOON,
                      "of this key's %" PRId64 " tokens of the day (UTC) %" PRId64
                      " are used and %" PRId64 " reserved by requests under way, and this one "
                      "needs %" PRId64,
                      quota, used, a->reserved, di_count_add(input, least));
    }
    return refuse(refusal, DI_QUOTA_TOKENS_PER_DAY, (double)day_left(q),
                  "of this key's %" PRId64 " tokens of the day (UTC) %" PRId64
                  " are used, and this request needs %" PRId64,
                  quota, used, di_count_add(input, least));
}

static bool minute_grants(const di_quota_ticket *t, int64_t input, int64_t ahead, double now,
                          di_quota_refusal *refusal) {
    di_quota_account *a = t->account;
    const di_key_limits *l = &t->limits;
    double wait = di_bucket_wait(&a->input_minute, l->input_tokens_per_minute, input, now);
    if (wait > 0) {
        return refuse(refusal, DI_QUOTA_INPUT_TOKENS_PER_MINUTE, wait,
                      "this key may send %" PRId64 " prompt tokens a minute, and this request has "
                      "%" PRId64,
                      l->input_tokens_per_minute, input);
    }
    wait = di_bucket_wait(&a->output_minute, l->output_tokens_per_minute, ahead, now);
    if (wait > 0) {
        return refuse(refusal, DI_QUOTA_OUTPUT_TOKENS_PER_MINUTE, wait,
                      "this key may have %" PRId64 " tokens a minute generated",
                      l->output_tokens_per_minute);
    }
    return true;
}

bool di_quota_reserve(di_quota *q, di_quota_ticket *t, int64_t input, int64_t wanted, int64_t least,
                      int64_t *granted, di_quota_refusal *refusal) {
    int64_t output;
    pthread_mutex_lock(&q->lock);
    di_quota_account *a = t->account;
    double now = seconds_now(q);
    di_account_turn(a, today(q));
    bool ok = journal_fits(q, &t->limits, refusal) &&
              day_grants(q, t, input, wanted, least, &output, refusal);
    int64_t ahead = ok && output > DI_QUOTA_OUTPUT_AHEAD ? DI_QUOTA_OUTPUT_AHEAD : ok ? output : 0;
    ok = ok && minute_grants(t, input, ahead, now, refusal);
    if (ok) {
        if (t->day != a->day) { /* midnight has passed since it came in */
            t->day = a->day;
            a->requests++;
            a->open++;
        }
        di_quota_record begun = {'A', q->next_ticket, t->day, "", 0, input, 0};
        memcpy(begun.id, a->id, sizeof begun.id);
        (void)log_record(q, &begun);
        ok = journal_fits(q, &t->limits, refusal);
    }
    if (ok) {
        t->number = q->next_ticket++;
        t->reserved = true;
        link_ticket(q, t);
        t->input = input;
        t->output_ahead = ahead;
        t->day_reserved = di_count_add(input, output);
        a->reserved = di_count_add(a->reserved, t->day_reserved);
        di_bucket_take(&a->input_minute, t->limits.input_tokens_per_minute, input, now);
        di_bucket_take(&a->output_minute, t->limits.output_tokens_per_minute, ahead, now);
        *granted = output;
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

void di_quota_progress(di_quota_ticket *t, int64_t output_tokens) {
    atomic_store_explicit(&t->output, output_tokens, memory_order_relaxed);
}

/* Corrects what was taken ahead, and counts. */
static void settle(di_quota *q, di_quota_ticket *t, int64_t input, int64_t output) {
    di_quota_account *a = t->account;
    double now = seconds_now(q);
    if (t->reserved) {
        di_bucket_take(&a->input_minute, t->limits.input_tokens_per_minute, input - t->input, now);
        di_bucket_take(&a->output_minute, t->limits.output_tokens_per_minute,
                       output - t->output_ahead, now);
    }
    if (t->day == a->day) {
        a->open--;
        a->reserved -= t->day_reserved;
        a->input = di_count_add(a->input, input);
        a->output = di_count_add(a->output, output);
    }
    di_quota_record r;
    if (t->reserved) {
        r = (di_quota_record){'E', t->number, 0, "", 0, input, output};
    } else {
        r = (di_quota_record){'T', 0, t->day, "", 1, input, output};
        memcpy(r.id, a->id, sizeof r.id);
    }
    (void)log_record(q, &r);
}

void di_quota_leave(di_quota *q, di_quota_ticket *t, int64_t input_tokens, int64_t output_tokens) {
    if (!t) {
        return;
    }
    pthread_mutex_lock(&q->lock);
    di_account_turn(t->account, today(q));
    t->account->running--;
    settle(q, t, input_tokens > 0 ? input_tokens : 0, output_tokens > 0 ? output_tokens : 0);
    if (t->reserved) {
        unlink_ticket(q, t);
    }
    pthread_mutex_unlock(&q->lock);
    di_free(t);
}

void di_quota_get_status(di_quota *q, const di_key *key, di_quota_status *s) {
    const di_key_limits *l = &key->limits;
    *s = (di_quota_status){0};
    pthread_mutex_lock(&q->lock);
    di_quota_account *a = di_accounts_get(&q->accounts, key->id);
    if (a) {
        double now = seconds_now(q);
        di_account_turn(a, today(q));
        s->requests = di_bucket_status(&a->requests_minute, l->requests_per_minute, now);
        s->input_tokens = di_bucket_status(&a->input_minute, l->input_tokens_per_minute, now);
        s->output_tokens = di_bucket_status(&a->output_minute, l->output_tokens_per_minute, now);
        s->day_requests = a->requests;
        s->day_input_tokens = a->input;
        s->day_output_tokens = a->output;
        s->day_reserved = a->reserved;
        s->running = a->running;
        s->day_ends = day_left(q);
    }
    pthread_mutex_unlock(&q->lock);
}

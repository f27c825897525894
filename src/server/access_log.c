/* The access log: see access_log.h. Lines are gathered in memory, and a thread of its own writes
 * them, so that a slow disk or a stopped reader of a pipe holds up nobody who answers requests. */
#include "server/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "text/recipe/json_write.h"

enum {
    MOST_WAITING = 1 << 20, /* bytes; lines that come then are lost */
    PATIENCE_MS = 100,
    LAST_SECONDS = 2, /* for what waits when it is closed */
};

struct di_access_log {
    char *path; /* NULL: standard output, or none */
    bool none;
    pthread_t writer;
    bool started;
    atomic_size_t lost;

    pthread_mutex_t lock; /* of these */
    pthread_cond_t called;
    di_buffer waiting;
    int fresh; /* the file opened again, -1: it was not */
    bool stops;

    int fd;        /* the writer's, as all below */
    bool torn;     /* the last line that was written has no end */
    bool failing;  /* the last write failed */
    double closed; /* when it was; 0: it was not */
};

/* ---- the writing thread -----------------------------------------------------------------------*/

static size_t count_lines(const char *data, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += data[i] == '\n';
    }
    return n;
}

/* Under the lock: goes on with the file that was opened again. */
static void take_fresh(di_access_log *log) {
    if (log->fresh >= 0) {
        close(log->fd);
        log->fd = log->fresh;
        log->fresh = -1;
        log->torn = false;
    }
}

/* False: the log has been closed, and time is up. */
static bool go_on_waiting(di_access_log *log) {
    pthread_mutex_lock(&log->lock);
    take_fresh(log);
    bool stops = log->stops;
    pthread_mutex_unlock(&log->lock);
    if (stops && log->closed == 0) {
        log->closed = di_now();
    }
    return !stops || di_now() - log->closed < LAST_SECONDS;
}

/* Waits until so much can be written that a pipe takes without waiting for its reader. False: not
 * any more. */
static bool await_room(di_access_log *log) {
    struct pollfd p = {.fd = log->fd, .events = POLLOUT};
    while (poll(&p, 1, PATIENCE_MS) == 0) {
        if (!go_on_waiting(log)) {
            errno = ETIMEDOUT;
            return false;
        }
        p.fd = log->fd;
    }
    return true;
}

/* What was written; less than all with errno. */
static size_t write_some(di_access_log *log, const char *data, size_t size) {
    size_t done = 0;
    while (done < size) {
        size_t left = size - done;
        if (!await_room(log)) {
            break;
        }
        ssize_t n = write(log->fd, data + done, left < PIPE_BUF ? left : PIPE_BUF);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            break;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return done;
}

/* A full disk must not stop the server, nor be told at each request. */
static void write_lines(di_access_log *log, const di_buffer *lines) {
    const char *name = log->path ? log->path : "standard output";
    bool fine = !log->torn || write_some(log, "\n", 1) == 1;
    size_t done = fine ? write_some(log, lines->data, lines->size) : 0;
    int why = errno;
    log->torn = done > 0 ? lines->data[done - 1] != '\n' : log->torn && !fine;
    if (done < lines->size) {
        atomic_fetch_add(&log->lost, count_lines(lines->data + done, lines->size - done));
        if (!log->failing) {
            char text[128];
            di_log(DI_LOG_ERROR, "access log %s: %s; lines are lost until it can be written again",
                   name, strerror_r(why, text, sizeof text));
        }
    } else if (log->failing) {
        di_log(DI_LOG_WARN, "access log %s can be written again; %zu lines were lost so far", name,
               atomic_load(&log->lost));
    }
    log->failing = done < lines->size;
}

static void *run(void *context) {
    di_access_log *log = context;
    di_buffer lines = {0};
    pthread_mutex_lock(&log->lock);
    for (;;) {
        while (log->waiting.size == 0 && log->fresh < 0 && !log->stops) {
            pthread_cond_wait(&log->called, &log->lock);
        }
        take_fresh(log);
        if (log->waiting.size == 0 && !log->stops) {
            continue;
        }
        if (log->waiting.size == 0) {
            break;
        }
        di_buffer full = log->waiting; /* the two change places, so that their memory stays */
        log->waiting = lines;
        pthread_mutex_unlock(&log->lock);
        write_lines(log, &full);
        full.size = 0;
        lines = full;
        pthread_mutex_lock(&log->lock);
    }
    pthread_mutex_unlock(&log->lock);
    di_buffer_free(&lines);
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static int open_path(const char *path, di_error *err) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
    if (fd < 0) {
        di_fail_errno(err, "access log %s", path);
    }
    return fd;
}

di_access_log *di_access_log_open(const char *path, di_error *err) {
    di_access_log *log = di_calloc(1, sizeof *log);
    if (!log) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the access log");
        return NULL;
    }
    pthread_mutex_init(&log->lock, NULL);
    pthread_cond_init(&log->called, NULL);
    log->none = !path;
    log->fresh = -1;
    log->fd = path ? STDOUT_FILENO : -1;
    bool ok = true;
    if (path && strcmp(path, "-") != 0) {
        log->path = di_strdup(path);
        log->fd = log->path ? open_path(path, err) : -1;
        ok = log->fd >= 0 || (!log->path && di_fail(err, DI_ERR_NO_MEMORY, "no memory for a path"));
    }
    log->started = ok && path && di_thread_start(&log->writer, run, log, "the log's thread", err);
    if (path && !log->started) {
        di_access_log_close(log);
        return NULL;
    }
    return log;
}

void di_access_log_close(di_access_log *log) {
    if (!log) {
        return;
    }
    if (log->started) {
        pthread_mutex_lock(&log->lock);
        log->stops = true;
        pthread_cond_signal(&log->called);
        pthread_mutex_unlock(&log->lock);
        pthread_join(log->writer, NULL);
    }
    if (log->path && log->fd >= 0) {
        close(log->fd);
    }
    if (log->fresh >= 0) {
        close(log->fresh);
    }
    pthread_mutex_destroy(&log->lock);
    pthread_cond_destroy(&log->called);
    di_buffer_free(&log->waiting);
    di_free(log->path);
    di_free(log);
}

bool di_access_log_reopen(di_access_log *log, di_error *err) {
    if (!log->path) {
        return true;
    }
    int fd = open_path(log->path, err);
    if (fd < 0) {
        return false;
    }
    pthread_mutex_lock(&log->lock);
    int unused = log->fresh;
    log->fresh = fd;
    pthread_cond_signal(&log->called);
    pthread_mutex_unlock(&log->lock);
    if (unused >= 0) {
        close(unused);
    }
    return true;
}

size_t di_access_log_lost(const di_access_log *log) {
    return atomic_load((atomic_size_t *)&log->lost);
}

/* ---- lines ------------------------------------------------------------------------------------*/

static void text(di_writer *w, const char *key, const char *value) {
    if (value && *value) {
        di_write_key(w, key);
        di_write_text(w, value);
    }
}

static void number(di_writer *w, const char *key, int64_t value) {
    if (value >= 0) {
        di_write_key(w, key);
        di_write_uint(w, (uint64_t)value);
    }
}

/* Seconds to the microsecond. */
static void seconds(di_writer *w, const char *key, double value) {
    char digits[32];
    if (value >= 0) {
        int size = snprintf(digits, sizeof digits, "%.6f", value);
        di_write_key(w, key);
        di_write_raw(w, (di_str){digits, (size_t)size});
    }
}

static void write_time(di_writer *w) {
    struct timespec now;
    struct tm utc;
    char when[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(when + used, sizeof when - used, ".%03ldZ", now.tv_nsec / 1000000);
    text(w, "time", when);
}

/* A path is what a stranger sent: only its printable ASCII is written. */
static void write_path(di_writer *w, const char *path) {
    char clean[256];
    size_t n = 0;
    for (; path[n] && n + 1 < sizeof clean; n++) {
        clean[n] = path[n] > ' ' && path[n] < 127 ? path[n] : '?';
    }
    clean[n] = 0;
    text(w, "path", clean);
}

void di_access_log_write(di_access_log *log, const di_access_entry *e) {
    if (log->none) {
        return;
    }
    di_buffer line = {0};
    di_writer w = di_writer_to(&line, DI_JSON_COMPACT, NULL);
    di_write_open(&w, '{');
    write_time(&w);
    text(&w, "request_id", e->request_id);
    text(&w, "client", e->client);
    text(&w, "key", e->key_id);
    text(&w, "method", e->method);
    write_path(&w, e->path);
    number(&w, "status", e->status);
    number(&w, "bytes", (int64_t)e->bytes);
    seconds(&w, "seconds", e->seconds);
    text(&w, "model", e->model);
    if (e->prompt_tokens >= 0) {
        di_write_key(&w, "stream");
        di_write_bool(&w, e->stream);
        number(&w, "prompt_tokens", e->prompt_tokens);
        number(&w, "cached_tokens", e->cached_tokens);
        number(&w, "completion_tokens", e->completion_tokens);
        seconds(&w, "ttft_seconds", e->ttft_seconds);
        text(&w, "finish", e->finish);
    }
    text(&w, "traceparent", e->traceparent);
    text(&w, "tracestate", e->tracestate);
    di_write_close(&w, '}');
    bool ok = !w.failed && di_buffer_append(&line, "\n", 1, NULL);
    pthread_mutex_lock(&log->lock);
    ok = ok && log->waiting.size + line.size <= MOST_WAITING &&
         di_buffer_append(&log->waiting, line.data, line.size, NULL);
    pthread_cond_signal(&log->called);
    pthread_mutex_unlock(&log->lock);
    if (!ok) {
        atomic_fetch_add(&log->lost, 1);
    }
    di_buffer_free(&line);
}

/* The access log: see access_log.h. */
#include "server/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "text/recipe/json_write.h"

struct di_access_log {
    char *path; /* NULL: standard output, or none */
    int fd;     /* -1: none */
    pthread_mutex_t lock;
};

static int open_path(const char *path, di_error *err) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
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
    log->fd = path ? STDOUT_FILENO : -1;
    if (path && strcmp(path, "-") != 0) {
        log->path = di_strdup(path);
        log->fd = log->path ? open_path(path, err) : -1;
        if (log->fd < 0) {
            di_access_log_close(log);
            return NULL;
        }
    }
    return log;
}

void di_access_log_close(di_access_log *log) {
    if (!log) {
        return;
    }
    if (log->path && log->fd >= 0) {
        close(log->fd);
    }
    pthread_mutex_destroy(&log->lock);
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
    int old = log->fd;
    log->fd = fd;
    pthread_mutex_unlock(&log->lock);
    close(old);
    return true;
}

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
    if (log->fd < 0) {
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
    if (ok && write(log->fd, line.data, line.size) < 0) {
        ok = false; /* a full disk must not stop the server */
    }
    pthread_mutex_unlock(&log->lock);
    di_buffer_free(&line);
}

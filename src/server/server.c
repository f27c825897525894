/* The server: starts and ends its parts. See server.h. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "base/version.h"
#include "server/http.h"
#include "server/internal.h"
#include "server/peers.h"
#include "server/readers.h"
#include "server/response_store.h"
#include "server/tls.h"

enum { SPARE_FILES = 64, STOP_SECONDS = 10 };

void di_server_options_init(di_server_options *o) {
    *o = (di_server_options){
        .host = "127.0.0.1",
        .port = 8000,
        .threads = 1,
        .reader_threads = 2,
        .max_connections = 4096,
        .max_header_bytes = 32768,
        .max_body_bytes = 32 << 20,
        .max_bodies_bytes = 256 << 20,
        .max_stream_bytes = 1 << 20,
        .header_seconds = 10,
        .body_seconds = 60,
        .idle_seconds = 75,
        .keepalive_seconds = 15,
        .access_log = "-",
        .response_store_per_key = 1000,
        .response_store_seconds = 86400,
        .max_background = 256,
    };
}

/* ---- starting ---------------------------------------------------------------------------------*/

static const char *copy_text(const char *text) {
    return text ? di_strdup(text) : NULL;
}

static bool copy_options(di_server *s, const di_server_options *o, di_error *err) {
    size_t n = o->num_models;
    const char **names = di_calloc(n, sizeof *names);
    s->models = di_calloc(n, sizeof *s->models);
    s->options = *o;
    s->options.models = names;
    s->options.host = copy_text(o->host);
    s->options.key_file = copy_text(o->key_file);
    s->options.quota_journal = copy_text(o->quota_journal);
    s->options.access_log = copy_text(o->access_log);
    s->options.tls_cert = copy_text(o->tls_cert);
    s->options.tls_key = copy_text(o->tls_key);
    bool ok = names && s->models && s->options.host && !o->key_file == !s->options.key_file &&
              !o->quota_journal == !s->options.quota_journal &&
              !o->access_log == !s->options.access_log && !o->tls_cert == !s->options.tls_cert &&
              !o->tls_key == !s->options.tls_key;
    for (size_t i = 0; ok && i < n; i++) {
        names[i] = di_strdup(o->models[i]);
        s->models[i] = (di_model_name){names[i], DI_MODEL_V41};
        ok = names[i] != NULL;
    }
    return ok || di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server's options");
}

static void free_options(di_server *s) {
    for (size_t i = 0; s->options.models && i < s->options.num_models; i++) {
        di_free((void *)s->options.models[i]);
    }
    di_free((void *)s->options.models);
    di_free((void *)s->options.host);
    di_free((void *)s->options.key_file);
    di_free((void *)s->options.quota_journal);
    di_free((void *)s->options.access_log);
    di_free((void *)s->options.tls_cert);
    di_free((void *)s->options.tls_key);
    di_free(s->models);
}

/* Every connection is a file. */
static bool make_room(const di_server_options *o, di_error *err) {
    struct rlimit files;
    rlim_t wanted = (rlim_t)o->max_connections + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) {
        return true;
    }
    if (files.rlim_max < wanted) {
        return di_fail(
            err, DI_ERR_ARGUMENT,
            "--max-connections is %d, but the system allows this process %llu open files",
            o->max_connections, (unsigned long long)files.rlim_max);
    }
    files.rlim_cur = wanted;
    return setrlimit(RLIMIT_NOFILE, &files) == 0 || di_fail_errno(err, "open files");
}

static bool check_access(const di_server *s, bool loopback, di_error *err) {
    return loopback || di_keys_required(s->keys) || s->options.insecure_no_auth ||
           di_fail(err, DI_ERR_ARGUMENT,
                   "--host is %s, which others can reach, and there is no key file: give one "
                   "(--api-key-file), or say that everybody may use the server "
                   "(--insecure-no-auth)",
                   s->options.host);
}

/* The socket, if it may listen there; else -1. */
static int listen_to(di_server *s, bool *loopback, di_error *err) {
    int fd = di_http_listen(s, loopback, err);
    if (fd >= 0 && !check_access(s, *loopback, err)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool start_http(di_server *s, di_error *err) {
    bool loopback;
    int fd = listen_to(s, &loopback, err);
    if (fd < 0) {
        return false;
    }
    bool check_host = loopback && !di_keys_required(s->keys) && !s->options.insecure_no_auth;
    s->http = di_http_start(s, fd, check_host, err);
    return s->http != NULL;
}

static bool open_files(di_server *s, di_error *err) {
    const di_server_options *o = &s->options;
    di_quota_options quota = {.journal = o->quota_journal};
    return make_room(o, err) && (s->log = di_access_log_open(o->access_log, err)) &&
           (s->keys = di_keys_open(o->key_file, err)) && (s->quota = di_quota_open(&quota, err));
}

static bool start(di_server *s, di_error *err) {
    const di_server_options *o = &s->options;
    if (!open_files(s, err)) {
        return false;
    }
    s->metrics = di_metrics_create(o->models[0]);
    if (!s->metrics) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server's counters");
    }
    di_response_store_options store = {.max_bytes = o->response_store_bytes,
                                       .max_per_key = (size_t)o->response_store_per_key,
                                       .max_age = o->response_store_seconds};
    if (o->response_store_bytes > 0 && !(s->stored = di_response_store_create(&store, err))) {
        return false;
    }
    s->peers = di_peers_create(s, o->max_connections, err);
    s->readers = s->peers ? di_readers_create(o->reader_threads, err) : NULL;
    di_thread_prompt(true); /* the pump's thread and the daemon's, which this one starts */
    s->pump_started =
        s->readers && di_thread_start(&s->pump, di_server_pump, s, "the pump's thread", err);
    bool ok = s->pump_started && start_http(s, err);
    di_thread_prompt(false);
    return ok;
}

static bool check_options(const di_server_options *o, di_error *err) {
    if (!o->tls_cert != !o->tls_key) {
        return di_fail(err, DI_ERR_ARGUMENT, "--tls-%s is given without --tls-%s, TLS needs both",
                       o->tls_cert ? "cert" : "key", o->tls_cert ? "key" : "cert");
    }
    if (o->num_models == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "the served model has no name");
    }
    if (o->max_connections < 1 || o->threads < 1 || o->reader_threads < 0 ||
        o->max_header_bytes < 4096) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "--max-connections, --http-threads and --max-header are %d, %d and %zu, at "
                       "least 1, 1 and 4096 are needed",
                       o->max_connections, o->threads, o->max_header_bytes);
    }
    return true;
}

/* One that has opened nothing yet. */
static di_server *make_server(const di_server_options *options, di_error *err) {
    if (!check_options(options, err)) {
        return NULL;
    }
    di_server *s = di_calloc(1, sizeof *s);
    if (!s) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server");
        return NULL;
    }
    s->started = (uint64_t)time(NULL);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%.40s", di_git_revision());
    pthread_mutex_init(&s->live_lock, NULL);
    if (!copy_options(s, options, err)) {
        di_server_stop(s);
        return NULL;
    }
    di_recipe_options_init(&s->recipe);
    s->recipe.server = true;
    s->recipe.default_thinking = !options->no_thinking;
    s->recipe.models = s->models;
    s->recipe.model_count = s->options.num_models;
    return s;
}

static bool check_tls(const di_server_options *o, di_error *err) {
    di_tls *tls = o->tls_cert ? di_tls_open(o->tls_cert, o->tls_key, err) : NULL;
    di_tls_close(tls);
    return tls || !o->tls_cert;
}

bool di_server_check(const di_server_options *options, di_error *err) {
    di_server *s = make_server(options, err);
    bool ok = s && open_files(s, err) && check_tls(&s->options, err), loopback;
    int fd = ok ? listen_to(s, &loopback, err) : -1;
    if (fd >= 0) {
        close(fd);
    }
    di_server_stop(s);
    return fd >= 0;
}

di_server *di_server_start(const di_server_options *options, di_answerer *answerer, di_error *err) {
    di_server *s = make_server(options, err);
    if (s) {
        s->answerer = *answerer;
    }
    if (s && !start(s, err)) {
        di_server_stop(s);
        return NULL;
    }
    return s;
}

/* ---- running ----------------------------------------------------------------------------------*/

int di_server_port(const di_server *s) {
    return s->port;
}

const char *di_server_address(const di_server *s) {
    return s->address;
}

void di_server_drain(di_server *s) {
    atomic_store(&s->state, DI_SERVER_DRAINING);
    pthread_mutex_lock(&s->live_lock);
    for (di_generation *g = s->live; g; g = g->next_live) {
        if (g->background) {
            di_generation_stop(g);
        }
    }
    pthread_mutex_unlock(&s->live_lock);
}

int di_server_running(di_server *s) {
    pthread_mutex_lock(&s->live_lock);
    int running = s->num_live;
    pthread_mutex_unlock(&s->live_lock);
    return running;
}

bool di_server_reload(di_server *s, di_error *err) {
    di_error wrong[3] = {0};
    const bool done[] = {di_keys_reload(s->keys, NULL, &wrong[0]),
                         di_access_log_reopen(s->log, &wrong[1]),
                         di_http_reload(s->http, &wrong[2])};
    bool ok = done[0] && done[1] && done[2];
    char text[DI_ERROR_MESSAGE_BYTES] = "";
    for (int i = 0; i < 3; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s",
                 used && wrong[i].code != DI_OK ? "; " : "", wrong[i].message);
        err->code = wrong[i].code != DI_OK ? wrong[i].code : err->code;
    }
    if (!ok) {
        di_fail(err, err->code, "%s", text);
    }
    di_metrics_event(s->metrics, ok ? DI_EVENT_RELOAD : DI_EVENT_RELOAD_FAILED);
    return ok;
}

/* ---- ending -----------------------------------------------------------------------------------*/

/* Tells all that run that it is over, and gives their clients time to read so. */
static void stop_generations(di_server *s) {
    double until = di_now() + STOP_SECONDS;
    bool hard = false;
    while (di_server_running(s) > 0 && di_now() < until + STOP_SECONDS) {
        pthread_mutex_lock(&s->live_lock);
        for (di_generation *g = s->live; g; g = g->next_live) {
            if (hard) {
                di_generation_abandon(g);
            } else {
                di_generation_stop(g);
            }
        }
        pthread_mutex_unlock(&s->live_lock);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        hard = hard || di_now() > until;
    }
}

/* What was answered at once has no generation to wait for, but the daemon has yet to send it. Those
 * who do not read are not waited for longer than that. */
static void send_answers(di_server *s) {
    double until = di_now() + STOP_SECONDS;
    while (atomic_load(&s->answers_owed) > 0 && di_now() < until) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

void di_server_stop(di_server *s) {
    if (!s) {
        return;
    }
    di_server_drain(s);
    if (s->http) {
        di_http_quiesce(s->http);
        di_readers_finish(s->readers); /* what they read may become a generation */
        stop_generations(s);
        send_answers(s);
        di_http_stop(s->http);
    }
    if (s->pump_started) {
        atomic_store(&s->pump_stops, true);
        s->answerer.wake(s->answerer.self);
        pthread_join(s->pump, NULL);
    }
    di_readers_destroy(s->readers);
    di_peers_destroy(s->peers);
    di_response_store_destroy(s->stored);
    di_metrics_destroy(s->metrics);
    di_quota_close(s->quota);
    di_keys_close(s->keys);
    di_access_log_close(s->log);
    pthread_mutex_destroy(&s->live_lock);
    free_options(s);
    di_free(s);
}
